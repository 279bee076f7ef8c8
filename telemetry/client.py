"""A viewer's side of a run: live or recorded, the same surface.

A live client subscribes first and then asks for a snapshot; batches that are part of the snapshot are skipped. A jump in
the numbering (this viewer did not read for too long) or a new epoch (a new hub) means a new snapshot. When the hub is
gone the client keeps what it has and waits for the next one; when the run is over it reads the recording.
"""

from __future__ import annotations

import contextlib
import struct
import time
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import msgspec
import zmq

from fsdp_tui.telemetry import wire
from fsdp_tui.telemetry.courtesy import pieces
from fsdp_tui.telemetry.messages import ENDED, BadMessage, Command, Ended, Event, decode, encode
from fsdp_tui.telemetry.recording import RecordingError, load_state
from fsdp_tui.telemetry.rundir import RunEntry, RunError, is_held, is_live, read_run_file, read_summary, resolve
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.telemetry.view import RunView

ATTACH_S = 3.0
"""How long opening a live run waits for the first snapshot."""
ASK_AGAIN_S = 1.0
QUIET_S = 1.5
"""A hub sends something every half second; after this long without, it is looked for."""
HEAL_S = 1.0
"""So long after the last thinned batch a new snapshot brings what was left out,"""
HEAL_BYTES_PER_S = 2_000_000
"""and large ones less often."""
HELD_MAX = 20_000
REPLY_S = 4.0

_bodies = msgspec.msgpack.Decoder(list[bytes])
_reply = msgspec.msgpack.Decoder(wire.Reply)


class CommandRefused(RunError):
    """The hub did not take a command, or there is none; the message says why."""


def open_run(run: str | RunEntry) -> RunClient:
    """Opens a run, live or recorded. `run` is what `rundir.resolve` takes, or an entry.

    Raises:
        RunError: no such run, or nothing of it can be read.
    """
    return RunClient(resolve(run) if isinstance(run, str) else run)


class RunClient:
    """One viewer of one run. Not thread-safe; close it, or use it in a with statement.

    Attributes:
        state: everything known of the run; `poll` moves it on.
        live: whether the run is still going on. A client of a recorded run is never live.
        hub_gone: the run is live but its hub does not answer now.
        thinned: samples that the hub has kept from live viewers because there were too many; the recording has them.
    """

    def __init__(self, entry: RunEntry) -> None:
        self.entry = entry
        self.state = RunState()
        self.live = entry.live
        self.hub_gone = False
        self.thinned = 0
        self.snapshots = 0
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._epoch: bytes | None = None
        self._seq = 0
        self._held: list[tuple[wire.Header, bytes]] = []
        self._asked_s = 0.0
        self._thinned_s: float | None = None
        self._heal_from_s = 0.0
        self._heard_s = time.monotonic()
        self._control: zmq.Socket[bytes] | None = None
        if self.live:
            self._attach()
        else:
            self._load_recorded()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def view(self) -> RunView:
        """The picture of the run as it is now."""
        return self.state.view()

    @property
    def synced(self) -> bool:
        """Whether `state` follows the hub."""
        return self._epoch is not None

    def close(self) -> None:
        """Leaves the run alone and frees the sockets."""
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    # Live

    def _attach(self) -> None:
        deadline_s = time.monotonic() + ATTACH_S
        while True:
            try:
                run_file = read_run_file(self.entry.paths.run_file)
                break
            except RunError:
                # Its hub is being replaced or about to write it, or the run has just ended.
                if not is_live(self.entry.paths):
                    self._become_recorded()
                    return
                if is_held(self.entry.paths.coming_up):  # for as long as who brings it up waits for it
                    deadline_s = time.monotonic() + ATTACH_S
                elif time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)
        self._endpoints = run_file.endpoints
        self._context = zmq.Context()
        self._sub = wire.connect(self._context, zmq.SUB, run_file.endpoints["pub"], rcvhwm=2000, subscribe=b"")
        self._view = wire.connect(self._context, zmq.DEALER, run_file.endpoints["view"])
        self._poller = zmq.Poller()
        self._poller.register(self._sub, zmq.POLLIN)
        self._poller.register(self._view, zmq.POLLIN)
        while self.live and not self.synced and time.monotonic() < deadline_s:
            self.poll(50)
        if self.live and not self.synced:
            self.hub_gone = True
            with contextlib.suppress(RecordingError):  # nothing yet; the snapshot brings it
                self.state = load_state(self.entry.paths.recording)

    def poll(self, max_ms: int) -> bool:
        """Takes in what has come, waiting for it at most `max_ms`; returns whether `state` has changed.

        Never raises because of the hub: see `hub_gone` and `live`.
        """
        if not self.live or self._context is None:
            return False
        before, state = self.state.version, self.state
        now_s = time.monotonic()
        healing = self._thinned_s is not None and now_s > max(self._thinned_s + HEAL_S, self._heal_from_s)
        if (healing or not self.synced) and now_s - self._asked_s > ASK_AGAIN_S:
            self._ask(now_s)
        events = dict(self._poller.poll(max_ms))
        if self._sub in events:
            self._drain()
        if self._view in events:
            self._take_snapshot()
        now_s = time.monotonic()
        if self.live and now_s - self._heard_s > QUIET_S:
            self._look_for_hub(now_s)
        if self.state.state in ENDED and self.live:
            # The hub completes the recording before it says so.
            self._become_recorded()
        return self.state is not state or self.state.version != before

    def _ask(self, now_s: float) -> None:
        self._asked_s = now_s
        with contextlib.suppress(zmq.Again):
            self._view.send(wire.SNAPSHOT, zmq.NOBLOCK)

    def _drain(self) -> None:
        for _ in range(2000):
            try:
                frames = self._sub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard_s = time.monotonic()
            self.hub_gone = False
            try:
                header = wire.Header.unpack(frames[0])
                body = frames[1]
            except (struct.error, IndexError):
                self.state.bad_records += 1
                continue
            if not self.synced:
                self._held.append((header, body))
                del self._held[:-HELD_MAX]
            elif header.epoch != self._epoch or header.seq > self._seq + 1:  # a new hub
                self._lose_sync(header, body)
            elif header.seq == self._seq + 1:
                self._apply(header, body)

    def _lose_sync(self, header: wire.Header, body: bytes) -> None:
        self._epoch = None
        self._held = [(header, body)]
        self._ask(time.monotonic())

    def _apply(self, header: wire.Header, body: bytes) -> None:
        self._seq = header.seq
        if header.thinned != self.thinned:
            self.thinned = header.thinned
            self._thinned_s = time.monotonic()
        try:
            bodies = _bodies.decode(body)
        except (msgspec.MsgspecError, RecursionError):
            self.state.bad_records += 1
            return
        for one in pieces(bodies):
            try:
                self.state.apply(decode(one))
            except BadMessage:
                self.state.bad_records += 1

    def _take_snapshot(self) -> None:
        while True:
            try:
                frames = self._view.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard_s = time.monotonic()
            if len(frames) != 3 or frames[0] != wire.SNAPSHOT or (self.synced and self._thinned_s is None):
                continue
            try:
                header = wire.Header.unpack(frames[1])
                state = RunState.load(frames[2])
            except (struct.error, ValueError):
                self.state.bad_records += 1
                continue
            if self.synced and (header.epoch != self._epoch or header.seq < self._seq):
                continue  # older than what we have; it is asked for again
            # A view tells a new state from an old one by its version, which must not go back.
            state.version = max(state.version, self.state.version + 1)
            self.state = state
            self.snapshots += 1
            self.hub_gone = False
            self._thinned_s, self._heal_from_s = None, time.monotonic() + len(frames[2]) / HEAL_BYTES_PER_S
            self._epoch, self._seq, self.thinned = header.epoch, header.seq, header.thinned
            held, self._held = self._held, []
            for later, body in held:
                if later.epoch != self._epoch or later.seq <= self._seq:
                    continue
                if later.seq != self._seq + 1:
                    self._lose_sync(later, body)
                    break
                self._apply(later, body)

    def _look_for_hub(self, now_s: float) -> None:
        self.hub_gone = True
        self._heard_s = now_s  # look again after another QUIET_S
        if not is_live(self.entry.paths):
            self._become_recorded()
        elif self.synced:
            self._epoch = None  # the next hub, or this one when it wakes up
            self._held = []

    # Recorded

    def _become_recorded(self) -> None:
        """The run is over: the recording has all of it, also what the hub kept from live viewers."""
        seen, version = self.state, self.state.version
        self.live = self.hub_gone = False
        try:
            self.state = load_state(self.entry.paths.recording)
        except RecordingError as error:
            if not version:
                raise RunError(f"run {self.entry.id}: {error}") from None
        if self.state.ended is None and version:
            self.state = seen  # a disk that could not be written to the end: what we saw live is what there is
        self._settle()
        self.state.version = max(self.state.version, version + 1)
        self.close()

    def _load_recorded(self) -> None:
        try:
            self.state = load_state(self.entry.paths.recording)
        except RecordingError as error:
            raise RunError(f"run {self.entry.id}: {error}") from None
        self._settle()

    def _settle(self) -> None:
        """A run whose end is not in its recording ended as its summary says, which needs no room on a full disk; one that nobody
        ended is lost."""
        state = self.state
        if state.ended is not None:
            return
        seen = [rank.beat.sent_ns for rank in state.ranks.values() if rank.beat]
        at_ns = max(seen, default=state.launched.created_ns if state.launched else 0)
        try:
            summary = read_summary(self.entry.paths)
        except RunError:
            summary = None
        if summary is None or summary.state not in ENDED:
            reason = "its end was not recorded: launcher and hub are both gone"
            state.apply(Ended(state="lost", ended_ns=at_ns, exit_codes={}, reason=reason))
            return
        if summary.unrecorded and not any(event.kind == "recording_stopped" for event in state.events):
            recorded = min((rank.last.step if rank.last else 0 for rank in state.ranks.values()), default=0)
            text = f"{summary.unrecorded}; it went on to step {summary.steps:,}"
            state.apply(Event(at_ns=at_ns, kind="recording_stopped", severity="bad", text=text, step=recorded))
        ended_ns = summary.ended_ns if summary.ended_ns is not None else at_ns
        state.apply(Ended(state=summary.state, ended_ns=ended_ns, exit_codes={}, reason=summary.reason))

    # Commands

    def command(self, kind: str, ranks: Sequence[int] = ()) -> wire.Reply:
        """Asks all ranks to "stop", "pause", "resume", "capture" or for "stacks"; returns when they have it, which is before
        they do it.

        `ranks` are those that a capture or stacks are of; empty: all. Results come with the id of the reply: captures when
        the step has ended, stacks at once from every rank whose process can answer.

        Raises:
            CommandRefused: the run is over, or its hub does not answer or does not take it.
        """
        if not self.live or self._context is None:
            raise CommandRefused(f"run {self.entry.id} is not live: nothing to {kind}")
        if "control" not in self._endpoints:
            raise CommandRefused(f"run {self.entry.id} was opened with a view.json, which may only look")
        if self._control is None:
            self._control = wire.connect(self._context, zmq.DEALER, self._endpoints["control"])
        request = Command(id=uuid.uuid4().hex, kind=kind, ranks=list(ranks))
        deadline_s = time.monotonic() + REPLY_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(zmq.Again):
                self._control.send_multipart([wire.COMMAND, encode(request)], zmq.NOBLOCK)
            # A hub that is being replaced takes it from the next try: the id makes it one command.
            until_s = min(deadline_s, time.monotonic() + REPLY_S / 2)
            while (left_s := until_s - time.monotonic()) > 0:
                if not self._control.poll(int(left_s * 1000) + 1):
                    break
                frames = self._control.recv_multipart()
                try:
                    reply = _reply.decode(frames[-1])
                except (msgspec.MsgspecError, RecursionError):
                    continue
                if reply.id == request.id:
                    if not reply.accepted:
                        raise CommandRefused(f"run {self.entry.id}: {reply.text}")
                    return reply
        raise CommandRefused(
            f"run {self.entry.id}: its hub does not answer; try again, or end pid {self._launcher_pid()}"
        )

    def _launcher_pid(self) -> str:
        try:
            launcher = read_run_file(self.entry.paths.run_file).launcher
        except RunError:
            launcher = None
        return f"{launcher.pid} (the launcher)" if launcher else "of its launcher"


def follow_log(entry: RunEntry, rank: int, *, follow: bool = True, poll_s: float = 0.1) -> Iterator[bytes]:
    """The bytes of one rank's log, exactly; rank -1 is the launcher's.

    With `follow` it goes on until the run has ended, waiting for a log that is not there yet.
    """
    path = entry.paths.launcher_log if rank < 0 else entry.paths.log(rank)
    at = 0
    while True:
        # Asked before reading: what is written until the end is still read.
        going_on = follow and is_live(entry.paths)
        try:
            with open(path, "rb") as log:
                log.seek(at)
                while part := log.read(1 << 16):
                    at += len(part)
                    yield part
        except FileNotFoundError:
            pass
        if not going_on:
            return
        time.sleep(poll_s)
