"""The hub: nothing that ranks, viewers or the disk do ends it, and a new one takes up where a killed one ended."""

from __future__ import annotations

import math
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import zmq

from fsdp_tui.runner.sender import Sender
from fsdp_tui.telemetry import client as client_module
from fsdp_tui.telemetry import hub as hub_module
from fsdp_tui.telemetry import thinning, wire
from fsdp_tui.telemetry.client import CommandRefused, RunClient, open_run
from fsdp_tui.telemetry.hub import Hub
from fsdp_tui.telemetry.messages import Ack, Beat, Command, Ended, Event, Goodbye, Message, Where, decode, encode
from fsdp_tui.telemetry.recording import load_state
from fsdp_tui.telemetry.rundir import ProcessId, paths_of, read_run_file, resolve
from tests.unit.telemetry.hub_for_tests import HubProcess, here, new_run, until
from tests.unit.telemetry.messages_for_tests import capture, comm, step, structure


def event(text: str) -> Event:
    return Event(at_ns=time.time_ns(), kind="test", severity="ok", text=text)


def kinds(client: RunClient) -> list[str]:
    client.poll(20)
    return [found.kind for found in client.state.events]


def collected(client: RunClient, number: int) -> bool:
    client.poll(20)
    return bool(client.state.comm_window) and client.state.comm_window[-1].step == number


def test_a_late_viewer_sees_everything_since_the_start(hub: HubProcess) -> None:
    """One that was there from the start and one that comes later have the same state."""
    with open_run(hub.paths.id) as early:
        senders = [hub.sender(rank) for rank in (0, 1)]
        for rank, sender in enumerate(senders):
            sender.put(structure(rank))
            for number in range(1, 101):
                sender.put(step(rank, number))
                sender.put(comm(rank, number))
        until(lambda: early.poll(20) and early.state.reported == [2] * 100, "all steps at the early viewer")
        with open_run(hub.paths.id) as late:
            assert late.state.reported == [2] * 100
            for client in (early, late):
                until(partial(collected, client, 100), "all collectives")
            assert (late.state.steps, late.state.loss_sum) == (early.state.steps, early.state.loss_sum)
            assert late.state.comm_window == early.state.comm_window
            assert late.snapshots == early.snapshots == 1
        assert resolve(hub.paths.id).live
    assert hub.end() == ""
    assert load_state(hub.paths.recording).reported == [2] * 100
    assert resolve("a").state == "finished"


@pytest.mark.parametrize("recorded", [True, False])
def test_a_new_hub_knows_the_run_again(hub: HubProcess, recorded: bool) -> None:
    """From the recording; and when that is lost, from the ranks, which introduce themselves again."""
    sender = hub.sender(0, 1)
    sender.put(structure(0))
    sender.put(step(0, 1))
    with open_run(hub.paths.id) as client:
        until(lambda: client.poll(20) and client.state.steps == [1], "the first step")
        until(lambda: load_state(hub.paths.recording).steps == [1], "it is recorded")
        hub.kill()
        sender.put(step(0, 2))
        until(lambda: (client.poll(20), client.hub_gone)[1], "the viewer notices")
        assert client.live
        assert client.state.steps == [1]
        if not recorded:
            hub.paths.recording.unlink()
            for suffix in ("-wal", "-shm"):
                hub.paths.recording.with_name(f"run.db{suffix}").unlink(missing_ok=True)
        assert hub.start() == "ready"
        steps = [1, 2] if recorded else [2]
        until(lambda: client.poll(20) and client.state.steps == steps, "the step sent without a hub")
        until(lambda: client.poll(20) and (rank := client.state.ranks[0]).hello and rank.structure, "who the rank is")
        assert kinds(client).count("hub_gap") == int(recorded)
        assert not client.hub_gone
        assert client.state.launched is not None
    hub.end()


def test_a_second_hub_is_refused(hub: HubProcess) -> None:
    """An ipc path can be taken over silently; the lock is what prevents it."""
    second = HubProcess(hub.paths)
    assert "already has a hub" in second.start()
    assert second.process is not None
    assert second.process.wait() == 1
    second.context.destroy()
    with open_run(hub.paths.id) as client:
        assert client.synced


def test_hostile_bytes_are_counted_and_change_nothing(hub: HubProcess) -> None:
    """On every socket: garbage, wrong shapes, roles that are not theirs, too many and too large frames."""
    up = hub.connect(zmq.PUSH, "up", linger=1000)
    garbage = [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgspec.msgpack.encode(["unknown", 1]),
        encode(event("x"))[:-3],
        b"GET /",
    ]
    for body in garbage:
        up.send(body)
    up.send_multipart([encode(event("two")), b"frames"])
    ranks = hub.connect(zmq.DEALER, "ranks", identity=b"rank-7", linger=1000)
    ranks.send(b"\xff")
    ranks.send(encode(Ended(state="finished", ended_ns=1, exit_codes={})))  # not the launcher
    ranks.send_multipart([b"a", b"b", b"c"])
    view = hub.connect(zmq.DEALER, "view", linger=1000)
    view.send(b"give")
    view.send_multipart([wire.SNAPSHOT, b"x"])
    control = hub.connect(zmq.DEALER, "control", linger=1000)
    control.send_multipart([wire.COMMAND, encode(event("no command"))])
    control.send(b"stop")
    large = hub.connect(zmq.DEALER, "view", linger=1000)
    large.send(b"x" * (wire.REQUEST_MAX + 1))  # costs its connection
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(read_run_file(hub.paths.run_file).endpoints["control"].removeprefix("ipc://"))
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1000)
    counted = len(garbage) + 1 + 3 + 2 + 2
    with open_run(hub.paths.id) as client:
        client.state.bad_records = 0

        def bad() -> int:
            with open_run(hub.paths.id) as fresh:
                return fresh.state.bad_records

        until(lambda: bad() == counted, f"{counted} bad records")
        assert client.state.state == "starting"
        assert kinds(client).count("bad_records") == 2  # the first, the tenth
    up.send(encode(event("still here")))
    with open_run(hub.paths.id) as client:
        until(lambda: client.poll(20) is not None and client.state.events[-1].text == "still here", "it still serves")
    hub.end()


def test_commands_need_someone_to_obey(hub: HubProcess) -> None:
    """Before the ranks are there pause is refused; stop goes to the launcher. Each answer is one line."""
    with open_run(hub.paths.id) as client:
        with pytest.raises(CommandRefused, match="no rank is listening"):
            client.command("pause")
        with pytest.raises(CommandRefused, match="unknown command 'dance'"):
            client.command("dance")
        hub.channel.send(wire.PING)
        reply = client.command("stop")
        assert reply.ranks == []
        assert "the launcher will act" in reply.text
        commands = []
        while hub.channel.poll(60_000):
            frames = hub.channel.recv_multipart()
            if frames[0] == wire.COMMAND:
                commands.append(decode(frames[1]))
                break
        assert isinstance(commands[0], Command)
        assert commands[0].kind == "stop"
        hub.say(Ack(rank=0, id=commands[0].id))
        # A rank that comes up after the request gets it all the same.
        sender = hub.sender(0, 1)
        until(lambda: sender.requested.stop, "a late rank has the stop")
    hub.end("stopped")
    with open_run(hub.paths.id) as client, pytest.raises(CommandRefused, match="is not live"):
        client.command("stop")


def test_a_command_asked_twice_is_one_command(hub: HubProcess) -> None:
    """The id decides; the second answer is the first."""
    sender = hub.sender(0, 1)
    with open_run(hub.paths.id) as client:
        until(lambda: client.poll(20) is not None and client.state.ranks, "the rank is there")
        control = hub.connect(zmq.DEALER, "control")
        replies = []
        for _ in range(2):
            control.send_multipart([wire.COMMAND, encode(Command(id="x", kind="pause"))])
            assert control.poll(60_000)
            replies.append(msgspec.msgpack.decode(control.recv_multipart()[-1], type=wire.Reply))
        assert replies[0] == replies[1]
        assert replies[0].ranks == [0]
        assert sender.requested.pause
        until(lambda: kinds(client) == ["pause_requested"], "one event")
        client.command("resume")
        until(lambda: not sender.requested.pause, "resumed")


def test_a_viewer_with_view_json_may_only_look(hub: HubProcess, places: Path) -> None:
    """The other sockets are not in it."""
    paths = paths_of(hub.paths.id)
    paths.run_file.write_bytes(paths.view_file.read_bytes())
    with open_run(str(paths.view_file)) as client:
        assert client.synced
        with pytest.raises(CommandRefused, match="may only look"):
            client.command("stop")


def test_a_crowd_of_samples_is_thinned_for_viewers_and_recorded_whole(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ranks lose the same steps in the live view; when the run has ended the viewer has all."""
    monkeypatch.setattr(thinning, "LIVE_PER_S", 10)  # so that no machine is too slow for a crowd
    monkeypatch.setattr(thinning, "LIVE_BURST", 1000)
    monkeypatch.setattr(client_module, "HEAL_S", 3600)
    served = ThreadedHub(None)
    senders = [Sender.connect(served.paths.run_file, here(rank)) for rank in (0, 1)]
    with open_run(served.paths.id) as client:
        until(lambda: client.poll(20) is not None and len(client.state.ranks) == 2, "both ranks")
        for number in range(1, 3001):
            for rank, sender in enumerate(senders):
                sender.put(step(rank, number))
        until(lambda: client.poll(20) is not None and client.thinned > 3000, "it is told that there is more")
        until(lambda: client.poll(20) is not None and set(client.state.reported) == {2}, "what it has is of both")
        assert len(client.state.steps) < 3000
        for rank, sender in enumerate(senders):
            sender.close(Goodbye(rank=rank, incarnation=1, reason="finished", steps=3000), timeout_s=60)
        assert sum(sender.dropped for sender in senders) == 0
        until(lambda: (client.poll(20), not client.live)[1], "the end")
        assert client.state.steps == list(range(1, 3001))
        assert client.state.reported == [2] * 3000


@pytest.fixture
def small_home(places: Path) -> Iterator[Path]:
    """A home with room for little; skipped where no small disk can be mounted."""
    home = places / "home"
    home.mkdir()
    if shutil.which("mount") is None or os.getuid() != 0:
        pytest.skip("a small disk needs root to be mounted")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(home)], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield home
    subprocess.run(["umount", "-l", str(home)], check=True)


def test_a_disk_that_fills_up_stops_the_recording_and_nothing_else(small_home: Path) -> None:
    """Said live; when there is room again the record becomes whole."""
    hub = HubProcess(new_run())
    try:
        assert hub.start() == "ready"
        sender = hub.sender(0, 1)
        with open_run(hub.paths.id) as client:
            sender.put(step(0, 1))
            until(lambda: client.poll(20) is not None and client.state.steps, "a step")
            until(lambda: load_state(hub.paths.recording).steps == [1], "it is recorded")
            filler = small_home / "filler"
            room = os.statvfs(small_home)
            filler.write_bytes(b"x" * (room.f_bavail * room.f_bsize))
            for number in range(2, 1002):
                sender.put(step(0, number))
            until(lambda: "recording_stopped" in kinds(client), "the viewer hears of it")
            (stopped,) = [found for found in client.state.events if found.kind == "recording_stopped"]
            assert "the disk is full" in stopped.text
            sender.put(step(0, 1002))
            until(lambda: client.poll(20) is not None and client.state.steps[-1] == 1002, "the live view goes on")
            filler.unlink()
            until(lambda: "recording_resumed" in kinds(client), "it is recorded again")
        assert hub.end() == ""
        state = load_state(hub.paths.recording)
        assert state.steps == list(range(1, 1003))
        assert [found.kind for found in state.events] == ["recording_stopped", "recording_resumed"]
    finally:
        hub.close()


def test_a_recording_that_cannot_be_made_is_an_event(places: Path) -> None:
    """Something else is in its place: the run is watched all the same, and the end says what is missing."""
    paths = new_run()
    paths.recording.mkdir()
    hub = HubProcess(paths)
    try:
        assert hub.start() == "ready"
        with open_run(paths.id) as client:
            assert kinds(client) == ["recording_stopped"]
            assert client.synced
        assert "run.db" in hub.end()
    finally:
        hub.close()


def test_a_damaged_recording_is_put_aside(places: Path) -> None:
    """The new hub records into a new file; the old one stays for a person to look at."""
    paths = new_run()
    paths.recording.write_bytes(b"scrambled" * 1000)
    hub = HubProcess(paths)
    try:
        assert hub.start() == "ready"
        with open_run(paths.id) as client:
            assert kinds(client) == ["recording_damaged"]
        assert hub.end() == ""
        assert load_state(paths.recording).state == "finished"
        assert [file.read_bytes()[:9] for file in paths.kept.glob("run.damaged-*.db")] == [b"scrambled"]
    finally:
        hub.close()


class ThreadedHub:
    """A hub in this process, whose clockwork a test can make faster."""

    def __init__(self, launcher: ProcessId | None) -> None:
        self.paths = new_run()
        self._launcher = launcher
        self._ready = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        assert self._ready.wait(60)

    def _serve(self) -> None:
        hub = Hub(self.paths, self._launcher)
        hub.open()
        hub.serve(self._ready.set)


def test_a_rank_that_is_gone_without_a_goodbye_is_an_event(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by pid and start time: another process with its pid does not hide it. Then the launcher dies: lost."""
    monkeypatch.setattr(hub_module, "SILENT_S", 0.2)
    monkeypatch.setattr(hub_module, "CHECK_S", 0.05)
    sleeper = subprocess.Popen(["sleep", "60"])
    launcher = ProcessId.of(sleeper.pid)
    served = ThreadedHub(launcher)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        up = wire.connect(context, zmq.PUSH, read_run_file(served.paths.run_file).endpoints["up"])
        up.send(encode(here(0)))
        up.send(encode(msgspec.structs.replace(here(1), pid_started=1.0)))
        with open_run(served.paths.id) as client:
            until(lambda: "rank_lost" in kinds(client), "the event")
            assert [(found.kind, found.rank) for found in client.state.events] == [("rank_lost", 1)]
            monkeypatch.setattr(hub_module, "ORPHANED_S", 0.2)
            sleeper.kill()
            sleeper.wait()
            until(lambda: (client.poll(20), not client.live)[1], "the end")
            assert client.state.state == "lost"
    finally:
        sleeper.kill()
        sleeper.wait()
        context.destroy(linger=0)
    served.thread.join(60)
    assert not served.thread.is_alive()


@pytest.mark.parametrize(
    ("reasons", "state", "failed"),
    [
        (("finished", "finished"), "finished", None),
        (("stopped", "stopped"), "stopped", None),
        (("stopped", "error"), "failed", 1),
    ],
)
def test_without_a_launcher_the_goodbyes_say_how_it_ended(
    places: Path, monkeypatch: pytest.MonkeyPatch, reasons: tuple[str, str], state: str, failed: int | None
) -> None:
    """For ranks that somebody else has started."""
    monkeypatch.setattr(hub_module, "CHECK_S", 0.05)
    served = ThreadedHub(None)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    up = wire.connect(context, zmq.PUSH, read_run_file(served.paths.run_file).endpoints["up"], linger=1000)
    for rank, reason in enumerate(reasons):
        up.send(encode(here(rank)))
        up.send(encode(Goodbye(rank=rank, incarnation=1, reason=reason, steps=3, error="boom")))
    served.thread.join(60)
    assert not served.thread.is_alive()
    context.destroy(linger=0)
    ended = load_state(served.paths.recording).ended
    assert ended is not None
    assert (ended.state, ended.failed_rank) == (state, failed)


def test_a_stop_that_came_too_late_leaves_the_run_finished(hub: HubProcess) -> None:
    """The launcher cannot know; the goodbyes do."""
    hub.sender(0, 1).close(Goodbye(rank=0, incarnation=1, reason="finished", steps=0), timeout_s=60)
    hub.say(Ended(state="stopped", ended_ns=1, exit_codes={"0": 0}, stop_rung="agreed"))
    assert hub.process is not None
    assert hub.process.wait(60) == 0
    ended = load_state(hub.paths.recording).ended
    assert ended is not None
    assert (ended.state, ended.stop_rung) == ("finished", None)


def test_a_stop_that_the_launcher_has_not_heard_of_is_a_stop(hub: HubProcess) -> None:
    """Asked for when the hub was new, and the launcher had not found it yet."""
    hub.sender(0, 1).close(Goodbye(rank=0, incarnation=1, reason="stopped", steps=3), timeout_s=60)
    hub.say(Ended(state="finished", ended_ns=1, exit_codes={"0": 0}))
    assert hub.process is not None
    assert hub.process.wait(60) == 0
    ended = load_state(hub.paths.recording).ended
    assert ended is not None
    assert (ended.state, ended.stop_rung) == ("stopped", "agreed")


def test_a_capture_goes_to_the_ranks_and_comes_back(hub: HubProcess) -> None:
    """All ranks have the request with one number; a second one waits its turn; an event says that all results are there."""
    senders = [hub.sender(0), hub.sender(1)]
    with open_run(hub.paths.id) as client:
        until(lambda: client.poll(20) is not None and len(client.state.ranks) == 2, "the ranks are there")
        with pytest.raises(CommandRefused, match="rank 7 is not there: the run has ranks 0, 1"):
            client.command("capture", [7])
        reply = client.command("capture", [1])
        newest = [sender.requested.capture for sender in senders]
        assert newest[0] == newest[1]
        assert newest[0] is not None
        assert (newest[0].id, newest[0].ranks) == (reply.id, [1])
        assert newest[0].number > 0
        with pytest.raises(CommandRefused, match="another capture is being taken"):
            client.command("capture")
        senders[1].put(capture(1, id=reply.id))
        until(lambda: client.poll(20) is not None and "captured" in kinds(client), "the event")
        assert client.state.ranks[1].captures == [capture(1, id=reply.id)]
        second = client.command("capture")
        senders[0].put(capture(0, id=second.id, error="no memory probe"))
        until(lambda: client.poll(20) is not None and "capture_failed" in kinds(client), "the failure is told")
    hub.end()
    assert load_state(hub.paths.recording).ranks[1].captures == [capture(1, id=reply.id)]


def test_a_lost_loss_and_a_stall_are_events(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, live and in the recording: where the loss was lost first, and where steps stop coming and go on."""
    monkeypatch.setattr(hub_module, "STALLED_NS", 200_000_000)  # until the hub looks; what a stall is stays as it is
    monkeypatch.setattr(hub_module, "STALL_LOOK_S", 0.05)
    monkeypatch.setattr(hub_module, "CHECK_S", 0.05)
    served = ThreadedHub(None)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    up = wire.connect(context, zmq.PUSH, read_run_file(served.paths.run_file).endpoints["up"])

    def send(*messages: Message) -> None:
        for message in messages:
            up.send(encode(message))

    def steps(number: int, *losses: float) -> None:
        send(*(step(rank, number, loss=loss) for rank, loss in enumerate(losses)))

    def beats(idle_s: int) -> None:
        """Rank 1 has made fewer calls than rank 0, and neither has moved for so long."""
        now_ns = time.time_ns()
        for sent_ns in (now_ns - idle_s * 1_000_000_000, now_ns):
            send(*(Beat(rank, 1, sent_ns, 5, 9, 0, where=Where("forward", 9 - rank, 0, 0, True)) for rank in (0, 1)))

    try:
        send(here(0), here(1))
        for number in range(1, 4):
            steps(number, 2.0, 2.0)
        steps(4, 2.0, float("nan"))
        steps(5, float("nan"), float("nan"))
        with open_run(served.paths.id) as client:
            until(lambda: "loss_lost" in kinds(client), "the loss")
            beats(20)
            until(lambda: "stalled" in kinds(client), "the stall")
            steps(6, float("nan"), float("nan"))
            until(lambda: "stall_over" in kinds(client), "its end")
            for rank in (0, 1):
                send(Goodbye(rank=rank, incarnation=1, reason="finished", steps=6))
            until(lambda: (client.poll(20), not client.live)[1], "the end")
            said = [(found.kind, found.severity, found.rank, found.step) for found in client.state.events]
            assert said == [
                ("loss_lost", "bad", 1, 4),
                ("stalled", "warn", None, 5),
                ("stall_over", "note", 0, 6),
            ]
            lost, stalled, _ = (found.text for found in client.state.events)
            assert lost == "the loss is NaN on rank 1"
            assert stalled.startswith("no step for 20 s: rank 1 is behind; rank 1 waits in the all-gather")
        assert load_state(served.paths.recording).events == client.state.events
        assert math.isnan(resolve(served.paths.id).loss or 0.0)
    finally:
        up.close(linger=0)
        context.destroy(linger=0)
