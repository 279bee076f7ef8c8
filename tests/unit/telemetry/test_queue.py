"""The queue: what it holds, what is cancelled, and a real worker that goes through launches which cannot start."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fsdp_tui.telemetry import queue
from fsdp_tui.telemetry.launch import LaunchSpec, sweep
from fsdp_tui.telemetry.machine import Machine
from fsdp_tui.telemetry.queue import Item, Queue, QueueError
from fsdp_tui.telemetry.strategy import parse_strategies

IMPOSSIBLE = LaunchSpec(batch=7, nproc=2)


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FSDP_TUI_RUNTIME_DIR", str(tmp_path / "live"))


def until(condition: Callable[[], bool], patience_s: float = 60) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, queue.read()
        time.sleep(0.05)


def test_nothing_was_queued_yet() -> None:
    """No file, no worker, nothing open."""
    assert queue.read() == Queue()
    assert not queue.working()
    assert not queue.read().open


def test_a_worker_goes_through_launches_that_cannot_start() -> None:
    """Each is failed with its reason, the worker leaves, and the next launches begin a new queue."""
    queue.add([IMPOSSIBLE, msgspec.structs.replace(IMPOSSIBLE, batch=9)])
    until(lambda: not queue.read().open)
    assert [item.state for item in queue.read().items] == ["failed", "failed"]
    assert "--batch 7 does not divide over 2 ranks" in queue.read().items[0].reason
    assert "--batch 9 does not divide over 2 ranks" in queue.read().items[1].reason
    until(lambda: not queue.working())
    queue.add([IMPOSSIBLE])
    assert len(queue.read().items) == 1
    until(lambda: not queue.read().open and not queue.working())


def test_what_waits_is_cancelled_and_what_runs_is_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One item or all; what is over stays as it was."""
    monkeypatch.setattr(queue, "wake", lambda: None)  # nobody works here: the file is what is tested
    queue.add([IMPOSSIBLE] * 4)
    with queue._editing() as change:
        items = [
            msgspec.structs.replace(item, state=state)
            for item, state in zip(queue.read().items, ("finished", "running", "waiting", "waiting"), strict=True)
        ]
        change(Queue(items=tuple(items)))
    assert [item.state for item in queue.cancel([3]).items] == ["finished", "running", "cancelled", "waiting"]
    after = queue.cancel()
    assert [item.state for item in after.items] == ["finished", "stopping", "cancelled", "cancelled"]
    assert after.open
    # Adding to a queue that is open keeps what is in it, with numbers of their own.
    assert [item.number for item in queue.add([IMPOSSIBLE]).items] == [1, 2, 3, 4, 5]


def test_an_item_that_a_killed_worker_was_starting_is_lost() -> None:
    """The queue goes on with the next; whether its run came up nobody knows."""
    with queue._editing() as change:
        change(Queue(items=(Item(number=1, spec=IMPOSSIBLE, state="starting"), Item(number=2, spec=IMPOSSIBLE))))
    queue.wake()
    until(lambda: not queue.read().open)
    assert [item.state for item in queue.read().items] == ["lost", "failed"]
    assert "was killed" in queue.read().items[0].reason
    until(lambda: not queue.working())


def test_a_damaged_file_is_named() -> None:
    """And says what to do."""
    queue.add([])
    until(lambda: not queue.working())
    queue.places().file.write_text("{")
    with pytest.raises(QueueError, match=r"queue\.json is damaged: .*; delete it"):
        queue.read()


def test_what_is_queued_ends_by_itself_and_knows_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo without steps would train forever; the worker works elsewhere."""
    monkeypatch.chdir(tmp_path)
    assert queue.queueable(LaunchSpec()).steps == 50
    assert queue.queueable(LaunchSpec(steps=7, data="texts")).data == str(tmp_path / "texts")
    script = queue.queueable(LaunchSpec(target="script", script="train.py"))
    assert (script.steps, script.directory) == (None, str(tmp_path))


def test_a_sweep_is_the_same_training_under_each_strategy() -> None:
    """One process for single, the same batch for all; a script's other options stay its own."""
    machine = Machine(torch="2.13.0+cpu", accelerators=0, cores=2)
    one, two = sweep(LaunchSpec(batch=16), parse_strategies("single,ddp"), machine)
    assert (one.strategy, one.nproc, two.strategy, two.nproc) == ("single", 1, "ddp", 2)
    assert (one.batch, two.batch, one.steps) == (16, 16, 50)
    (script,) = sweep(LaunchSpec(target="script", script="t.py", nproc=4), parse_strategies("ddp"), machine)
    assert (script.asked, script.name, script.nproc) == (("strategy",), "t ddp", 4)
