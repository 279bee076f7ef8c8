"""The rank's end of the telemetry never costs the training more than an append, whatever the hub does."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec
import pytest

from fsdp_tui.runner import sender as sender_module
from fsdp_tui.runner.sender import RING, Sender
from fsdp_tui.telemetry import wire
from fsdp_tui.telemetry.client import open_run
from fsdp_tui.telemetry.messages import Event, Gauge, Goodbye, Step
from fsdp_tui.telemetry.recording import load_state
from fsdp_tui.telemetry.rundir import RunError, RunFile, write_file
from tests.unit.telemetry.conftest import hub, places
from tests.unit.telemetry.hub_for_tests import HubProcess, here, until
from tests.unit.telemetry.messages_for_tests import step

__all__ = ["hub", "places"]


def goodbye(steps: int = 0) -> Goodbye:
    return Goodbye(rank=0, incarnation=1, reason="finished", steps=steps)


def test_a_message_may_be_made_when_it_is_sent(hub: HubProcess) -> None:
    """On the sender's thread, so that the training thread does not pay; one that cannot be made is dropped and counted."""
    sender = hub.sender(0, 1)
    made_by: list[str] = []

    def later() -> Step:
        made_by.append(threading.current_thread().name)
        return step(0, 1)

    def impossible() -> Step:
        raise ValueError("no such step")

    for message in (later, impossible, step(0, 2)):
        sender.put(message)
    sender.close(goodbye(2), timeout_s=60)
    hub.end()
    assert load_state(hub.paths.recording).steps == [1, 2]
    assert (set(made_by), sender.dropped) == ({"fsdp-tui-sender"}, 1)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Sender]:
    """A sender without a hub."""
    path = tmp_path / "run.json"
    endpoints = {name: f"ipc://{tmp_path}/{name}.sock" for name in ("up", "ranks")}
    write_file(path, msgspec.json.encode(RunFile(run_id="x", host="here", kept="", endpoints=endpoints)))
    sender = Sender.connect(path, here(0, 1))
    yield sender
    sender.kill()


def test_every_message_arrives_and_is_counted(hub: HubProcess) -> None:
    """Close sends what is left; the goodbye is the last."""
    sender = hub.sender(0, 1)
    for number in range(1, 301):
        sender.put(step(0, number))
    began_s = time.monotonic()
    sender.close(goodbye(300), timeout_s=120)
    assert time.monotonic() - began_s < 60  # it does not wait for longer than the hub needs
    with open_run(hub.paths.id) as client:
        until(lambda: client.poll(20) is not None and client.state.ranks[0].goodbye, "the goodbye")
    hub.end()
    state = load_state(hub.paths.recording)
    assert state.steps == list(range(1, 301))
    beat = state.ranks[0].beat
    assert beat is not None
    assert (beat.dropped, sender.dropped) == (0, 0)
    assert sender.sent >= 302


def test_closing_waits_for_a_hub_that_is_busy(hub: HubProcess) -> None:
    """More than the kernel's socket buffer holds is still there when the hub reads on."""
    sender = hub.sender(0, 1)
    assert hub.process is not None
    hub.process.send_signal(signal.SIGSTOP)
    for number in range(1500):
        sender.put(Event(at_ns=number, kind="test", severity="ok", text="x" * 1_000))
    closing = threading.Thread(target=sender.close, args=(goodbye(), 60.0))
    closing.start()
    until(lambda: 0 < len(sender._ring) < 1400, "ZeroMQ takes no more")
    hub.process.send_signal(signal.SIGCONT)
    closing.join()
    with open_run(hub.paths.id) as client:
        until(lambda: client.poll(20) is not None and client.state.ranks[0].goodbye, "the goodbye")
        assert len(client.state.events) == 1500


def test_the_heartbeat_carries_what_the_session_says(hub: HubProcess) -> None:
    """Step and paused."""
    sender = hub.sender(0, 1)
    sender.step, sender.paused = 17, True
    with open_run(hub.paths.id) as client:

        def beaten() -> bool:
            client.poll(20)
            beat = client.state.ranks[0].beat if client.state.ranks else None
            return beat is not None and (beat.step, beat.paused) == (17, True)

        until(beaten, "a heartbeat with it")
        assert client.state.state == "paused"


def test_without_a_hub_the_oldest_give_way_and_nothing_blocks(alone: Sender) -> None:
    """Counted; and closing is over within its bound."""
    spent = []
    for number in range(3 * RING):
        message = step(0, number)
        began = time.perf_counter_ns()
        alone.put(message)
        spent.append(time.perf_counter_ns() - began)
    assert median(spent) < 50_000
    assert alone.dropped >= RING  # the ring and ZeroMQ's queue hold the rest
    assert list(alone._ring)[-1] == step(0, 3 * RING - 1)
    began_s = time.monotonic()
    alone.close(goodbye(), timeout_s=0.3)
    assert time.monotonic() - began_s < 30
    alone.put(step(0, 1))  # after the end it does nothing
    alone.close(goodbye())


def test_a_message_that_cannot_be_sent_is_dropped_and_counted(hub: HubProcess) -> None:
    """Too large for the hub, or nothing that msgpack knows; those after it arrive."""
    sender = hub.sender(0, 1)
    sender.put(Event(at_ns=1, kind="large", severity="ok", text="x" * (wire.MESSAGE_MAX + 1)))
    sender.put(object())  # type: ignore[arg-type]
    sender.put(step(0, 5))
    with open_run(hub.paths.id) as client:
        until(lambda: client.poll(20) is not None and client.state.steps == [5], "the step")
        assert client.state.bad_records == 0
    assert sender.dropped == 2


def test_gauges_are_read_on_the_thread_until_they_fail_too_often(hub: HubProcess) -> None:
    """A driver's exceptions end the gauges, not the telemetry."""
    sender = hub.sender(0, 1)
    sender.read_gauges = lambda: Gauge(rank=0, taken_ns=1, values={"rss_bytes": 5})
    with open_run(hub.paths.id) as client:
        until(lambda: client.poll(20) is not None and client.state.ranks and client.state.ranks[0].gauge, "a gauge")
        assert client.state.ranks[0].gauge is not None
        assert client.state.ranks[0].gauge.values == {"rss_bytes": 5}

        def broken() -> Gauge:
            raise OSError("the driver is gone")

        sender.gauge_failures = sender_module.GAUGE_FAILURES - 1
        sender.read_gauges = broken
        until(lambda: sender.read_gauges is None, "they are given up")
        sender.put(step(0, 1))
        until(lambda: client.poll(20) is not None and client.state.steps == [1], "the telemetry goes on")


def test_a_forked_child_has_no_part_in_it(hub: HubProcess) -> None:
    """A data loader's worker neither sends nor hangs at its end."""
    sender = hub.sender(0, 1)
    sender.put(step(0, 1))
    with open_run(hub.paths.id) as client:
        until(lambda: client.poll(20) is not None and client.state.steps == [1], "the parent's")
    child = os.fork()
    if child == 0:
        sender.put(step(0, 2))
        sender.close(goodbye())
        os._exit(7 if not sender._ring else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    sender.put(step(0, 3))
    with open_run(hub.paths.id) as client:
        until(lambda: client.poll(20) is not None and client.state.steps == [1, 3], "the parent's again")
        assert client.state.ranks[0].goodbye is None


def test_a_damaged_run_file_is_one_line(tmp_path: Path) -> None:
    """For the session to say; it then trains unwatched."""
    path = tmp_path / "run.json"
    path.write_text("{")
    with pytest.raises(RunError, match="is damaged"):
        Sender.connect(path, here(0))
