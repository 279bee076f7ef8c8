"""A viewer against a hub of the test's own, which can do what a real one does only under load."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from fsdp_tui.telemetry import client as client_module
from fsdp_tui.telemetry import wire
from fsdp_tui.telemetry.client import follow_log, open_run
from fsdp_tui.telemetry.messages import Ended, Event, Message, encode
from fsdp_tui.telemetry.recording import Recorder
from fsdp_tui.telemetry.rundir import ProcessId, RunError, RunFile, RunPaths, hold_lock, resolve, write_file
from fsdp_tui.telemetry.state import RunState
from tests.unit.telemetry.hub_for_tests import new_run, until
from tests.unit.telemetry.messages_for_tests import launched, step


def event(text: str) -> Event:
    return Event(at_ns=1, kind="test", severity="ok", text=text)


class ScriptedHub:
    """Sends what the test tells it to."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.state = RunState()
        self.epoch = b"epoch--1"
        self.seq = 0
        self.asked = 0
        self.lock = hold_lock(paths)
        endpoints = {name: f"ipc://{paths.alive}/{name}.sock" for name in ("pub", "view")}
        self.pub = self.context.socket(zmq.XPUB)
        self.pub.bind(endpoints["pub"])
        self.view = self.context.socket(zmq.ROUTER)
        self.view.bind(endpoints["view"])
        found = RunFile(run_id=paths.id, host="here", kept=str(paths.kept), endpoints=endpoints)
        write_file(paths.run_file, msgspec.json.encode(found))

    def publish(self, *messages: Message, thinned: int = 0, lost: bool = False) -> None:
        """One batch; a lost one counts and does not arrive."""
        for message in messages:
            self.state.apply(message)
        self.seq += 1
        if not lost:
            header = wire.Header(self.epoch, self.seq, thinned).pack()
            self.pub.send_multipart([header, msgspec.msgpack.encode([encode(message) for message in messages])])

    def answer(self, *, late: int = 0) -> bool:
        """Answers one snapshot request if there is one."""
        if not self.view.poll(0):
            return False
        client, _ = self.view.recv_multipart()
        self.asked += 1
        header = wire.Header(self.epoch, self.seq - late, 0).pack()
        self.view.send_multipart([client, wire.SNAPSHOT, header, self.state.dump()])
        return True

    def close(self) -> None:
        self.context.destroy(linger=0)
        os.close(self.lock)


@pytest.fixture
def scripted(places: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedHub]:
    monkeypatch.setattr(client_module, "ATTACH_S", 0.3)  # it attaches without a snapshot, which the test then gives
    monkeypatch.setattr(client_module, "ASK_AGAIN_S", 0.05)
    monkeypatch.setattr(client_module, "QUIET_S", 60)  # it has no heartbeat
    hub = ScriptedHub(new_run())
    yield hub
    hub.close()


def texts(state: RunState) -> list[str]:
    return [found.text for found in state.events]


def test_nothing_is_applied_twice_or_missed_around_a_snapshot(scripted: ScriptedHub) -> None:
    """Batches that came before the snapshot's number are part of it; later ones are applied, in order."""
    scripted.publish(event("before"))
    with open_run(scripted.paths.id) as client:
        assert not client.synced
        scripted.publish(event("one"))
        scripted.publish(event("two"))
        until(lambda: client.poll(20) is not None and len(client._held) == 2, "two batches are held")
        until(scripted.answer, "the snapshot")
        scripted.publish(event("three"))
        until(lambda: client.poll(20) and texts(client.state)[-1] == "three", "the last one")
        assert texts(client.state) == ["before", "one", "two", "three"]
        assert client.snapshots == 1


def synced(hub: ScriptedHub, client: client_module.RunClient) -> None:
    until(lambda: (hub.answer(), client.poll(10), client.synced)[2], "in step")


def test_a_lost_batch_means_a_new_snapshot(scripted: ScriptedHub) -> None:
    """A viewer that did not read for too long misses batches, and then nothing."""
    with open_run(scripted.paths.id) as client:
        synced(scripted, client)
        scripted.publish(event("lost"), lost=True)
        scripted.publish(event("next"))
        until(lambda: client.poll(20) is not None and not client.synced, "it notices")
        synced(scripted, client)
        assert texts(client.state) == ["lost", "next"]
        assert client.snapshots == 2


def test_a_new_epoch_means_a_new_snapshot(scripted: ScriptedHub) -> None:
    """A new hub counts from the beginning, and may know less."""
    with open_run(scripted.paths.id) as client:
        synced(scripted, client)
        scripted.publish(event("old"))
        until(lambda: client.poll(20) and texts(client.state) == ["old"], "the old hub's")
        version = client.state.version
        scripted.epoch, scripted.seq, scripted.state = b"epoch--2", 0, RunState()
        scripted.publish(event("new"))
        until(lambda: client.poll(20) is not None and not client.synced, "it notices")
        synced(scripted, client)
        assert texts(client.state) == ["new"]
        assert client.state.version > version  # a screen sees that it has changed


def test_what_was_thinned_comes_with_a_snapshot_when_it_is_quiet(
    scripted: ScriptedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live view heals by itself."""
    monkeypatch.setattr(client_module, "HEAL_S", 0.0)
    with open_run(scripted.paths.id) as client:
        synced(scripted, client)
        asked = scripted.asked
        scripted.state.apply(event("kept from viewers"))
        scripted.publish(event("seen"), thinned=1)
        until(lambda: client.poll(20) and client.thinned == 1, "it hears of it")
        assert texts(client.state) == ["seen"]
        until(lambda: (scripted.answer(), client.poll(10), len(client.state.events) == 2)[2], "the rest")
        assert texts(client.state) == ["kept from viewers", "seen"]
        assert scripted.asked > asked


def test_garbage_from_a_hub_is_counted(scripted: ScriptedHub) -> None:
    """No header, no array, no message: the next good batch is applied."""
    with open_run(scripted.paths.id) as client:
        synced(scripted, client)
        scripted.pub.send_multipart([b"short", b""])
        scripted.pub.send_multipart([wire.Header(scripted.epoch, 1, 0).pack(), b"\xc1"])
        scripted.pub.send_multipart([wire.Header(scripted.epoch, 2, 0).pack(), msgspec.msgpack.encode([b"\xff"])])
        scripted.seq = 2
        scripted.publish(event("good"))
        until(lambda: client.poll(20) and texts(client.state) == ["good"], "the good one")
        assert client.state.bad_records == 3
        with pytest.raises(struct.error):
            wire.Header.unpack(b"short")


def test_a_silent_hub_is_shown_as_gone_and_is_found_again(
    scripted: ScriptedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known stays on the screen meanwhile."""
    with open_run(scripted.paths.id) as client:
        synced(scripted, client)
        scripted.publish(event("one"))
        until(lambda: client.poll(20) and texts(client.state) == ["one"], "the first")
        monkeypatch.setattr(client_module, "QUIET_S", 0.2)
        until(lambda: (client.poll(20), client.hub_gone)[1], "it is missed")
        monkeypatch.setattr(client_module, "QUIET_S", 60)
        assert client.live
        assert texts(client.state) == ["one"]
        scripted.publish(event("two"))
        synced(scripted, client)
        assert not client.hub_gone
        assert texts(client.state) == ["one", "two"]


def test_when_the_run_is_over_the_recording_takes_over(scripted: ScriptedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the hub's last word, or by nobody being left; the whole record is read either way."""
    messages: list[Message] = [
        launched(),
        step(0, 1),
        step(0, 2),
        Ended(state="finished", ended_ns=9, exit_codes={"0": 0}),
    ]
    with open_run(scripted.paths.id) as told, open_run(scripted.paths.id) as left:
        synced(scripted, told)
        synced(scripted, left)
        state, recorder = RunState(), Recorder(scripted.paths.recording)
        for message in messages:
            state.apply(message)
            recorder.add(message, encode(message), 1)
        recorder.close(state)
        scripted.publish(messages[-1])
        until(lambda: (told.poll(20), not told.live)[1], "it is told")
        assert told.state.steps == [1, 2]
        scripted.close()
        scripted.lock = os.open("/dev/null", os.O_RDONLY)
        monkeypatch.setattr(client_module, "QUIET_S", 0.2)
        until(lambda: (left.poll(20), not left.live)[1], "it sees that nobody is left")
        assert left.state.steps == [1, 2]
        assert told.poll(0) is False


def test_a_run_that_left_no_record_is_one_line(places: Path) -> None:
    """Neither a hub nor a recording."""
    paths = new_run("nothing")
    with pytest.raises(RunError, match="there is no recording") as error:
        open_run("nothing")
    assert paths.id in str(error.value)
    assert "\n" not in str(error.value)


def test_a_hub_that_is_just_starting_is_waited_for(scripted: ScriptedHub) -> None:
    """The lock is taken before run.json is written; without one in time it is one line."""
    scripted.paths.run_file.unlink()
    with pytest.raises(RunError, match="no such file"):
        open_run(scripted.paths.id)


def test_logs_are_followed_byte_by_byte_until_the_run_has_ended(places: Path) -> None:
    """Bytes that are no text, a log that comes late, and what is written at the very end."""
    paths = new_run()
    me = ProcessId.of(os.getpid())
    write_file(
        paths.run_file,
        msgspec.json.encode(RunFile(run_id=paths.id, host="", kept=str(paths.kept), launcher=me, endpoints={})),
    )
    following = follow_log(resolve(paths.id), 3, poll_s=0.01)
    paths.log(3).write_bytes(b"\x00first \xff\r\n")
    assert next(following) == b"\x00first \xff\r\n"
    with open(paths.log(3), "ab") as log:
        log.write(b"half a li")
    assert next(following) == b"half a li"
    with open(paths.log(3), "ab") as log:
        log.write(b"ne")
    paths.run_file.unlink()
    assert list(following) == [b"ne"]
    assert list(follow_log(resolve(paths.id), 3, follow=False)) == [b"\x00first \xff\r\nhalf a line"]
    assert list(follow_log(resolve(paths.id), 0, follow=False)) == []
