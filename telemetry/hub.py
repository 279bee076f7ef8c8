"""The hub: one process per run between its ranks and its viewers (`python -m fsdp_tui.telemetry.hub RUN_ID`).

It outlives every viewer, and the ranks do not need it: if it is killed they go on, and the launcher starts another one on
the same sockets, which takes up the recording where it ended. It ends within two seconds of the run.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import zmq

from fsdp_tui.telemetry import collector, wire
from fsdp_tui.telemetry.launch import StartError, launched_message, read_launch
from fsdp_tui.telemetry.messages import (
    ENDED,
    Ack,
    BadMessage,
    Capture,
    Command,
    Ended,
    Event,
    Goodbye,
    Hello,
    Message,
    Step,
    decode,
    encode,
)
from fsdp_tui.telemetry.peak import why
from fsdp_tui.telemetry.recording import Recorder, RecordingError, last_message_ns, load_state
from fsdp_tui.telemetry.rundir import (
    VIEWER_SOCKETS,
    HomeError,
    ProcessId,
    RunError,
    RunFile,
    RunPaths,
    Summary,
    endpoints_for,
    hold_lock,
    make_runtime,
    paths_of,
    remove_alive,
    summary_of,
    write_file,
    write_over,
)
from fsdp_tui.telemetry.stalls import STALLED_NS, stalled
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.telemetry.thinning import Thinning
from fsdp_tui.telemetry.wording import duration

BATCH_S = 0.05
COMMIT_S = 0.2
CHECK_S = 0.5
"""Between looks at who is still alive."""
SUMMARY_S = 1.0
RETRY_S = 2.0
"""Between tries of a disk that could not be written."""
SILENT_S = 3.0
"""A rank that sent nothing for so long is looked for."""
UNANSWERED_S = 10.0
"""One that sent nothing for so long, and lives, is an event."""
STALL_LOOK_S = 2.0
"""Between looks at whether a training without steps stands still: each takes a picture of all ranks."""
ORPHANED_S = 5.0
"""How long ranks may outlive their launcher before the run is called lost all the same."""
REPLY_S = 1.0
DRAIN_S = 1.0
LINGER_MS = 500
CAPTURE_S = 60.0
"""So long a capture may take before another one may be asked for all the same."""


@dataclass(slots=True)
class _Capturing:
    """The capture that was asked for last."""

    id: str
    missing: set[int]
    """Ranks whose result has not come yet."""
    deadline_s: float


@dataclass(slots=True)
class _Pending:
    """A command that waits for its ranks."""

    client: bytes
    command: Command
    deadline_s: float
    have: set[int] = field(default_factory=set)


class Hub:
    """One run's hub. `serve` returns when the run has ended and its recording is complete."""

    def __init__(self, paths: RunPaths, launcher: ProcessId | None, *, ranks_stay: bool = False) -> None:
        self.paths = paths
        self.launcher = launcher
        self.ranks_stay = ranks_stay
        """Whether ranks live on without the launcher, which is only their keeper then."""
        self.state = RunState()
        self.epoch = secrets.token_bytes(8)
        self.seq = 0
        self._thinning = Thinning(time.monotonic())
        self._batch: list[tuple[Message, bytes]] = []
        self._recorder: Recorder | None = None
        self._recording_trouble = ""
        """Since when and why nothing is recorded; "" while it is."""
        self._recorded_step = 0
        """The last step that every rank has ended and that is on disk."""
        self._retry_s = 0.0
        self._summary: Summary | None = None
        self._replies: dict[str, wire.Reply] = {}
        self._waiting: dict[str, _Pending] = {}
        self._standing: dict[str, Command] = {}
        self._acked: set[tuple[bytes, str]] = set()
        self._capturing: _Capturing | None = None
        self._heard_s: dict[int, float] = {}
        self._gone: set[int] = set()
        self._silent: set[int] = set()
        """Ranks of which it was said that they do not answer."""
        self._stepped_s = self._looked_s = time.monotonic()
        """When the newest step came, and when it was last looked for a stall."""
        self._stalled = False
        """Whether it was said that no step comes."""
        self._orphaned_s: float | None = None
        self._done = False

    # Start

    def open(self) -> None:
        """Takes the lock, the recording and the sockets, and tells the world where they are.

        Raises:
            RunError: another hub serves the run, or its directories cannot be used.
        """
        make_runtime()
        self.paths.alive.mkdir(mode=0o700, exist_ok=True)
        self._lock = hold_lock(self.paths)
        self._take_up_recording()
        endpoints = endpoints_for(self.paths)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # Per rank; a rank that is killed while this queue is full takes with it what is not yet in it.
        room = min(2_000, max(50, 50_000 // max(1, self.state.world_size)))
        self._up = self._bind(zmq.PULL, endpoints["up"], maxmsgsize=wire.MESSAGE_MAX, rcvhwm=room)
        self._ranks = self._bind(
            zmq.ROUTER, endpoints["ranks"], maxmsgsize=wire.MESSAGE_MAX, router_handover=1, router_mandatory=1
        )
        self._pub = self._bind(zmq.XPUB, endpoints["pub"], sndhwm=400)
        self._view = self._bind(zmq.ROUTER, endpoints["view"], maxmsgsize=wire.REQUEST_MAX, sndhwm=8)
        self._control = self._bind(zmq.ROUTER, endpoints["control"], maxmsgsize=wire.REQUEST_MAX, sndhwm=100)
        hub = ProcessId.of(os.getpid())
        run_file = RunFile(
            run_id=self.paths.id,
            host=socket.gethostname(),
            kept=str(self.paths.kept),
            hub=hub,
            launcher=self.launcher,
            endpoints=endpoints,
        )
        viewer = {name: endpoints[name] for name in VIEWER_SOCKETS}
        write_file(self.paths.run_file, msgspec.json.encode(run_file), mode=0o600)
        write_file(
            self.paths.view_file, msgspec.json.encode(msgspec.structs.replace(run_file, endpoints=viewer)), mode=0o600
        )
        self._write_summary()

    def _bind(self, kind: int, address: str, **options: int) -> zmq.Socket[bytes]:
        bound = self._context.socket(kind)
        bound.setsockopt(zmq.LINGER, LINGER_MS)
        for name, value in options.items():
            bound.setsockopt(getattr(zmq, name.upper()), value)
        bound.bind(address)
        return bound

    def _take_up_recording(self) -> None:
        """Restores what an earlier hub recorded; the time without one becomes an event."""
        recording = self.paths.recording
        now_ns = time.time_ns()
        last_ns = None
        if recording.is_file():
            last_ns = last_message_ns(recording)
            try:
                self.state = load_state(recording)
            except RecordingError as error:
                self._event("recording_damaged", "bad", f"the record so far is lost: {error}")
        told = [event.kind for event in self.state.events if event.kind in ("stalled", "stall_over")]
        self._stalled = told[-1:] == ["stalled"]
        self._open_recorder()
        if self.state.launched is None:
            try:
                self._take(launched_message(read_launch(self.paths)))
            except StartError as error:
                self._event("launch_unknown", "warn", str(error))
        elif last_ns is not None and self.state.ended is None:
            gap_s = max(0.0, (now_ns - last_ns) / 1e9)
            self._event(
                "hub_gap",
                "warn",
                f"the hub was replaced: nothing was recorded for {gap_s:.1f} s; training was not affected",
            )

    def _open_recorder(self) -> None:
        try:
            self._recorder = Recorder(self.paths.recording)
        except RecordingError as error:
            if "damaged" in str(error):
                # The damaged file stays as it is, for a person to look at; the run goes on in a new one.
                aside = self.paths.recording.with_name(f"run.damaged-{time.time_ns()}.db")
                try:
                    self.paths.recording.rename(aside)
                    for suffix in ("-wal", "-shm"):
                        self.paths.recording.with_name(f"run.db{suffix}").unlink(missing_ok=True)
                    self._recorder = Recorder(self.paths.recording)
                except (OSError, RecordingError) as second:
                    self._stop_recording(str(second))
            else:
                self._stop_recording(str(error))
        if self._recorder is not None and self._recorder.notice:
            self._event("recording_mode", "note", self._recorder.notice)

    # The loop

    def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serves until the run is over."""
        poller = zmq.Poller()
        for served in (self._up, self._ranks, self._view, self._control, self._pub):
            poller.register(served, zmq.POLLIN)
        ready()
        published_s = committed_s = checked_s = summed_s = time.monotonic()
        while not self._over():
            wait_s = BATCH_S if self._batch or self._waiting else min(COMMIT_S, CHECK_S)
            events = dict(poller.poll(int(wait_s * 1000)))
            if self._up in events:
                self._drain_up()
            if self._ranks in events:
                self._drain_ranks()
            if self._pub in events:  # subscriptions; nothing depends on them
                self._drain(self._pub, lambda frames: None)
            if self._view in events:
                self._drain(self._view, self._answer_view)
            if self._control in events:
                self._drain(self._control, self._answer_control)
            if self._over():
                break
            now_s = time.monotonic()
            if now_s - published_s >= (BATCH_S if self._batch else wire.BEAT_S):
                published_s = now_s
                self._publish()
            if now_s - committed_s >= COMMIT_S:
                committed_s = now_s
                self._commit()
            if now_s - checked_s >= CHECK_S:
                checked_s = now_s
                self._check_alive(now_s)
            if now_s - summed_s >= SUMMARY_S:
                summed_s = now_s
                self._write_summary()
            self._settle_replies(now_s)
        self._close()

    def _over(self) -> bool:
        return self._done

    def _drain(self, source: zmq.Socket[bytes], handle: Callable[[list[bytes]], None], limit: int = 1000) -> None:
        for _ in range(limit):
            if self._over():
                return
            try:
                frames = source.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            handle(frames)

    def _drain_up(self) -> int:
        count = 0

        def handle(frames: list[bytes]) -> None:
            nonlocal count
            count += 1
            self._take_bytes(frames)

        self._drain(self._up, handle)
        return count

    def _take_bytes(self, frames: list[bytes]) -> Message | None:
        try:
            if len(frames) != 1:
                raise BadMessage(f"{len(frames)} frames")
            message = decode(frames[0])
        except BadMessage as error:
            self._bad(str(error))
            return None
        self._take(message, frames[0])
        return message

    def _bad(self, why: str) -> None:
        """Counts what cannot be read; the 1st, 10th, 100th ... is an event too."""
        self.state.bad_records += 1
        count = self.state.bad_records
        if count == 10 ** (len(str(count)) - 1):
            self._event("bad_records", "warn", f"bad records: {count} so far; the last one: {why[:200]}")

    def _take(self, message: Message, body: bytes | None = None) -> None:
        """The one way in: state, recording, viewers."""
        body = encode(message) if body is None else body
        first_lost = isinstance(message, Step) and self._first_lost(message)
        self.state.apply(message)
        if self._recorder is not None:
            self._recorder.add(message, body, time.time_ns())
        self._batch.append((message, body))
        if isinstance(message, Capture):
            self._captured(message)
        elif isinstance(message, Step):
            self._stepped(message, first_lost=first_lost)
        rank = getattr(message, "rank", None)
        if isinstance(rank, int) and not isinstance(message, Event):
            self._heard_s[rank] = time.monotonic()
            if isinstance(message, Hello):
                self._gone.discard(rank)
            elif isinstance(message, Goodbye):
                self._send(self._ranks, [wire.rank_identity(rank), wire.GOODBYE, b""])

    def _event(self, kind: str, severity: str, text: str, rank: int | None = None, step: int | None = None) -> None:
        self._take(Event(at_ns=time.time_ns(), kind=kind, severity=severity, text=text, rank=rank, step=step))

    def _first_lost(self, step: Step) -> bool:
        """Whether this is the first loss of any rank that is no number."""
        lost = step.loss is not None and not math.isfinite(step.loss)
        return lost and all(rank.lost_at is None for rank in self.state.ranks.values())

    def _stepped(self, step: Step, *, first_lost: bool) -> None:
        """Says that a loss is lost, the first time, and that a stall is over."""
        if first_lost and step.loss is not None:
            word = "NaN" if math.isnan(step.loss) else "infinite"
            self._event("loss_lost", "bad", f"the loss is {word} on rank {step.rank}", step.rank, step.step)
        now_s = time.monotonic()
        if self._stalled:
            self._stalled = False
            idle = duration((now_s - self._stepped_s) * 1e9)
            self._event("stall_over", "note", f"steps go on, after {idle}", step.rank, step.step)
        self._stepped_s = now_s

    def _captured(self, capture: Capture) -> None:
        """Says so once all ranks that were asked have sent theirs; a rank that could not is said at once."""
        if capture.error:
            text = f"rank {capture.rank} could not capture step {capture.step:,}: {capture.error}"
            self._event("capture_failed", "warn", text, capture.rank, capture.step)
        asked = self._capturing
        if asked is None or asked.id != capture.id:
            return
        asked.missing.discard(capture.rank)
        if asked.missing:
            return
        self._capturing = None
        self._standing.pop("capture", None)  # not for a rank that comes later
        taken = [
            one
            for known in self.state.ranks.values()
            for one in known.captures
            if one.id == capture.id and not one.error
        ]
        if taken:
            highest = max(taken, key=lambda one: one.peak[-1] or 0)
            text = f"step {capture.step:,} captured on {len(taken)} rank{'s' * (len(taken) > 1)}; rank {highest.rank}: {why(highest)}"
            self._event("captured", "ok", text, step=capture.step)

    # Viewers

    def _publish(self) -> None:
        """One batch. An empty one is the hub's heartbeat."""
        batch, self._batch = self._batch, []
        bodies = self._thinning.pass_on(batch, len(self.state.ranks), time.monotonic())
        self.seq += 1
        # XPUB drops for a viewer that does not read; it sees the jump in seq and asks for a snapshot.
        self._pub.send_multipart([self._header(), msgspec.msgpack.encode(bodies)], zmq.NOBLOCK)

    def _header(self) -> bytes:
        return wire.Header(self.epoch, self.seq, self._thinning.withheld).pack()

    def _answer_view(self, frames: list[bytes]) -> None:
        if len(frames) != 2 or frames[1] != wire.SNAPSHOT:
            self._bad("a viewer's request is not a snapshot request")
            return
        # What is in the snapshot must not come again in a later batch.
        if self._batch:
            self._publish()
        self._send(self._view, [frames[0], wire.SNAPSHOT, self._header(), self.state.dump()])

    def _send(self, target: zmq.Socket[bytes], frames: list[bytes]) -> bool:
        try:
            target.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:  # the other side is gone, or does not read
            return False
        return True

    # Commands

    def _answer_control(self, frames: list[bytes]) -> None:
        try:
            if len(frames) != 3 or frames[1] != wire.COMMAND:
                raise BadMessage("not a command")
            command = decode(frames[2])
            if not isinstance(command, Command):
                raise BadMessage("not a command")
        except BadMessage as error:
            self._bad(f"a viewer's request is {error}")
            return
        client = frames[0]
        if command.id in self._replies:  # asked again because the answer was late
            self._reply(client, self._replies[command.id])
        elif command.id in self._waiting:
            self._waiting[command.id].client = client
        elif command.kind not in ("stop", "pause", "resume", "capture", "stacks"):
            self._reply(client, wire.Reply(id=command.id, accepted=False, text=f"unknown command {command.kind!r}"))
        elif self.state.state in ENDED:
            self._reply(
                client, wire.Reply(id=command.id, accepted=False, text=f"the run is {self.state.state} already")
            )
        elif command.kind != "stop" and not self._present():
            text = "no rank is listening: it has not started yet, or runs without telemetry"
            self._reply(client, wire.Reply(id=command.id, accepted=False, text=text))
        elif command.kind in ("capture", "stacks") and (refusal := self._refused(command)):
            self._reply(client, wire.Reply(id=command.id, accepted=False, text=refusal))
        else:
            self._waiting[command.id] = _Pending(client, command, time.monotonic() + REPLY_S)
            self._order(command)

    def _refused(self, command: Command) -> str:
        """Why this capture, or these stacks, are not taken; or ""."""
        present = self._present()
        absent = sorted(set(command.ranks) - set(present))
        if absent:
            return f"rank {absent[0]} is not there: the run has ranks {', '.join(map(str, sorted(present)))}"
        if command.kind != "capture":
            return ""
        if self._capturing is not None and time.monotonic() < self._capturing.deadline_s:
            return "another capture is being taken"
        return ""

    def _order(self, command: Command) -> None:
        """Gives a command to every rank, and stop also to the launcher, until they have it."""
        if command.kind == "capture":
            # The clock, so that a hub that replaces this one goes on counting.
            command = msgspec.structs.replace(command, number=time.time_ns())
            wanted = set(command.ranks or self._present())
            self._capturing = _Capturing(command.id, wanted, time.monotonic() + CAPTURE_S)
        if command.kind == "stop" and "stop" in self._standing:
            command = self._standing["stop"]
        else:
            self._take(command)
            if command.kind != "stacks":  # it changes nothing
                self._event(f"{command.kind}_requested", "note", f"{command.kind} asked for")
        if command.kind == "resume":
            self._standing.pop("pause", None)
        if command.kind == "pause":
            self._standing.pop("resume", None)
        self._standing[command.kind] = command
        for rank in self._present():
            self._hand_over(wire.rank_identity(rank))
        self._hand_over(wire.LAUNCHER)

    def _hand_over(self, identity: bytes) -> None:
        for command in self._standing.values():
            if identity == wire.LAUNCHER and command.kind != "stop":
                continue
            if (identity, command.id) not in self._acked:
                self._send(self._ranks, [identity, wire.COMMAND, encode(command)])

    def _present(self) -> list[int]:
        """Ranks that said hello and not yet goodbye."""
        return [
            rank
            for rank, known in self.state.ranks.items()
            if known.hello and not known.goodbye and rank not in self._gone
        ]

    def _drain_ranks(self) -> None:
        self._drain(self._ranks, self._from_rank)

    def _from_rank(self, frames: list[bytes]) -> None:
        identity, *rest = frames
        if rest == [wire.PING]:
            self._send(self._ranks, [identity, wire.EPOCH, self.epoch])
            known = self.state.ranks.get(wire.rank_of(identity))
            if known is not None and known.goodbye:  # it did not hear us the first time
                self._send(self._ranks, [identity, wire.GOODBYE, b""])
            self._hand_over(identity)
            return
        if identity == wire.LAUNCHER and len(rest) == 2 and rest[0] == wire.ROSTER:
            ranks = self.state.ranks.values()
            roster = [encode(said) for one in ranks for said in (one.hello, one.goodbye) if said is not None]
            self._send(self._ranks, [identity, *rest, msgspec.msgpack.encode(roster)])
            return
        try:
            message = decode(rest[0]) if len(rest) == 1 else None
        except BadMessage:
            message = None
        match message:
            case Ack():
                self._acked.add((identity, message.id))
                if identity == wire.LAUNCHER:
                    return
                for pending in self._waiting.values():
                    standing = self._standing.get(pending.command.kind)
                    if message.id == pending.command.id or (standing and standing.id == message.id):
                        pending.have.add(message.rank)
                self._take(message, rest[0])
                if "stop" in self._standing and message.id == self._standing["stop"].id:
                    self._send(self._ranks, [wire.LAUNCHER, wire.COMMAND, rest[0]])
            case Command() if identity == wire.LAUNCHER:
                self._acked.add((identity, message.id))
                self._order(message)
                self._acked.add((identity, self._standing[message.kind].id))
            case Event() if identity == wire.LAUNCHER:
                self._take(message, rest[0])
            case Ended() if identity == wire.LAUNCHER:
                trouble = self._end(message)
                self._send(self._ranks, [identity, wire.RECORDED, trouble.encode()])
            case _:
                self._bad(f"{identity[:40]!r} sent what only others may send")

    def _settle_replies(self, now_s: float) -> None:
        for key, pending in list(self._waiting.items()):
            present = set(self._present())
            if pending.command.kind == "stacks" and pending.command.ranks:
                present &= set(pending.command.ranks)
            if (present and pending.have >= present) or now_s >= pending.deadline_s:
                del self._waiting[key]
                missing = sorted(present - pending.have)
                text = f"{pending.command.kind}: every rank has it and acts at its next step"
                if pending.command.kind == "stacks":
                    text = f"stacks: ranks {missing} do not answer" if missing else "stacks: every rank has answered"
                    if self._standing.get("stacks") is pending.command:  # stacks of later are not what was asked for
                        del self._standing["stacks"]
                elif not present:
                    text = f"{pending.command.kind}: no rank is listening; the launcher will act"
                elif missing:
                    text = f"{pending.command.kind}: ranks {missing} do not answer yet; they get it when they do"
                reply = wire.Reply(id=key, accepted=True, ranks=sorted(pending.have), text=text)
                self._replies[key] = reply
                self._reply(pending.client, reply)

    def _reply(self, client: bytes, reply: wire.Reply) -> None:
        self._send(self._control, [client, wire.COMMAND, msgspec.msgpack.encode(reply)])

    # The disk

    def _commit(self, *, final: bool = False) -> None:
        recorder = self._recorder
        now_s = time.monotonic()
        try:
            if recorder is None:
                if now_s < self._retry_s and not final:
                    return
                self._recorder = recorder = Recorder(self.paths.recording)
                self._resume_recording(recorder)
                recorder.flush(self.state, snapshot=True)
                return
            if self._recording_trouble:
                if now_s < self._retry_s and not final:
                    return
                recorder.reopen()
                # The state holds what did not fit into memory meanwhile, so a snapshot makes the record whole again.
                recorder.flush(self.state, snapshot=True)
                self._resume_recording(recorder)
            recorder.flush(self.state)
            self._recorded_step = self._step()
        except RecordingError as error:
            self._stop_recording(str(error))

    def _step(self) -> int:
        return min((rank.last.step if rank.last else 0 for rank in self.state.ranks.values()), default=0)

    def _stop_recording(self, why: str) -> None:
        self._retry_s = time.monotonic() + RETRY_S
        if not self._recording_trouble:
            since = self._recorded_step
            self._recording_trouble = f"not recorded since step {since:,}: {why}"
            self._event("recording_stopped", "bad", f"{self._recording_trouble}; the live view goes on", step=since)

    def _resume_recording(self, recorder: Recorder) -> None:
        if self._recording_trouble:
            self._recording_trouble = ""
            lost = f"; {recorder.lost} messages of that time are not in the log" if recorder.lost else ""
            recorder.lost = 0
            self._event("recording_resumed", "note", f"recording again{lost}")

    def _write_summary(self) -> None:
        summary = summary_of(self.paths.id, self.state, self._recording_trouble)
        if summary == self._summary:
            return
        body = msgspec.json.encode(summary)
        try:
            write_file(self.paths.summary, body)
        except HomeError:
            try:
                write_over(self.paths.summary, body)
            except HomeError as error:
                self._stop_recording(str(error))
                return
        self._summary = summary

    # The end

    def _check_alive(self, now_s: float) -> None:
        self._look_for_silent(now_s)
        self._look_for_stall(now_s)
        for rank in self._present():
            known = self.state.ranks[rank].hello
            if (
                now_s - self._heard_s.setdefault(rank, now_s) > SILENT_S
                and known
                and known.host == socket.gethostname()
            ) and not ProcessId(known.pid, known.pid_started).alive():
                self._gone.add(rank)
                self._event("rank_lost", "bad", f"rank {rank} (pid {known.pid}) is gone without a goodbye", rank)
        hellos = [known.hello for known in self.state.ranks.values() if known.hello]
        if self.launcher is None:
            if len(hellos) >= max(1, self.state.world_size) and not self._present():
                self._end(self._ended_alone())
            return
        if self.launcher.alive():
            return
        if self._orphaned_s is None:
            self._orphaned_s = now_s
        alive = any(ProcessId(h.pid, h.pid_started).alive() for h in hellos)
        if now_s - self._orphaned_s < ORPHANED_S and (alive or self.ranks_stay):
            return
        if self.ranks_stay and hellos:
            if not alive:
                self._end(self._ended_alone())
            return
        self._end(
            Ended(
                state="lost",
                ended_ns=time.time_ns(),
                exit_codes={},
                reason="its keeper was killed before a rank was heard of"
                if self.ranks_stay
                else "its launcher was killed, and its ranks with it",
            )
        )

    def _look_for_silent(self, now_s: float) -> None:
        """A rank whose heartbeats stop is an event, and that it answers again is another."""
        for rank in self._present():
            silent_s = now_s - self._heard_s.setdefault(rank, now_s)
            if silent_s > UNANSWERED_S and rank not in self._silent:
                self._silent.add(rank)
                self._event("rank_silent", "warn", f"rank {rank} has not answered for {silent_s:.0f} s", rank)
            elif silent_s < SILENT_S and rank in self._silent:
                self._silent.discard(rank)
                self._event("rank_answers", "note", f"rank {rank} answers again", rank)

    def _look_for_stall(self, now_s: float) -> None:
        """That no step comes for long is an event, in the words of the verdict; `_stepped` says when one comes again."""
        if self._stalled or now_s - self._stepped_s < STALLED_NS / 1e9 or now_s - self._looked_s < STALL_LOOK_S:
            return
        self._looked_s = now_s
        for verdict in stalled(self.state.view()):
            self._stalled = True
            self._event("stalled", verdict.severity, f"{verdict.what}; {verdict.reason}", step=self._step())

    def _ended_alone(self) -> Ended:
        """The end of a run that no launcher of ours has started: what its ranks said last."""
        now_ns = time.time_ns()
        for rank, known in self.state.ranks.items():
            if known.goodbye is None or known.goodbye.reason == "error":
                why = f": {known.goodbye.error}" if known.goodbye else " without a goodbye"
                return Ended(
                    state="failed", ended_ns=now_ns, exit_codes={}, failed_rank=rank, reason=f"rank {rank} ended{why}"
                )
        stopped = any(known.goodbye and known.goodbye.reason == "stopped" for known in self.state.ranks.values())
        if stopped:
            return Ended(state="stopped", ended_ns=now_ns, exit_codes={}, stop_rung="agreed")
        return Ended(state="finished", ended_ns=now_ns, exit_codes={})

    def _end(self, ended: Ended) -> str:
        """Takes in what is still on its way, completes the recording and tells the viewers; returns what went wrong."""
        deadline_s = time.monotonic() + DRAIN_S
        while self._up.poll(50) and time.monotonic() < deadline_s:
            self._drain_up()
        reasons = {known.goodbye.reason for known in self.state.ranks.values() if known.goodbye}
        if ended.state == "stopped" and ended.stop_rung == "agreed" and reasons == {"finished"}:
            ended = msgspec.structs.replace(ended, state="finished", stop_rung=None)  # it was done before the stop came
        if ended.state == "finished" and "stopped" in reasons:
            # It was asked for when its hub was new.
            ended = msgspec.structs.replace(ended, state="stopped", stop_rung="agreed")
        self._take(ended)
        self._commit(final=True)
        trouble = self._recording_trouble
        if self._recorder is not None:
            try:
                self._recorder.close(self.state)
            except RecordingError as error:
                self._stop_recording(str(error))
                trouble = self._recording_trouble
        self._write_summary()
        self._publish()
        self._settle_replies(math.inf)  # who asked for the stop may still wait for a rank that was killed
        self._done = True
        return trouble

    def _close(self) -> None:
        # Before the sockets go: whoever sees them gone finds the run ended.
        remove_alive(self.paths)
        self._context.destroy(linger=LINGER_MS)
        os.close(self._lock)


def main(argv: list[str] | None = None) -> int:
    """The hub's process; writes a line to `--ready-fd` when it serves, or why it cannot."""
    parser = argparse.ArgumentParser(prog="fsdp_tui.telemetry.hub")
    parser.add_argument("run_id")
    parser.add_argument("--launcher", type=int, help="pid of the launcher")
    parser.add_argument("--ranks-stay", action="store_true", help="ranks live on without the launcher")
    parser.add_argument("--ready-fd", type=int)
    options = parser.parse_args(argv)

    def say(line: str) -> None:
        if options.ready_fd is not None:
            os.write(options.ready_fd, f"{line}\n".encode())
            os.close(options.ready_fd)
            options.ready_fd = None

    launcher = None
    if options.launcher:
        # One that is dead already must not look like a run that never had one.
        launcher = ProcessId.of(options.launcher) or ProcessId(options.launcher, 0.0)
    collector.relax()
    hub = Hub(paths_of(options.run_id), launcher, ranks_stay=options.ranks_stay)
    try:
        hub.open()
    except (RunError, zmq.ZMQError, OSError) as error:
        say(f"error: {error}")
        print(f"fsdp-tui hub: {error}", file=sys.stderr)
        return 1
    hub.serve(lambda: say("ready"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
