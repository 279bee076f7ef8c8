"""Long work gives way between its pieces, in the threads that have said so."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdp_tui.telemetry import collector
from fsdp_tui.telemetry.courtesy import give_way, pieces
from fsdp_tui.telemetry.messages import Comm
from fsdp_tui.telemetry.state import RunState
from tests.unit.telemetry.messages_for_tests import hello, launched, step, structure

RANKS = 40


def test_who_has_promised_nothing_is_not_held_up() -> None:
    """Not even by a generator in between."""
    items = [1, 2, 3]
    assert pieces(items) is items


def test_only_the_thread_that_gives_way_waits() -> None:
    waits: list[int] = []
    found: list[int] = []

    def work() -> None:
        give_way(lambda: waits.append(len(found)))
        found.extend(pieces(range(3)))
        found.extend(ord(one) for one in pieces("ab"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [0, 1, 2, 97, 98]
    assert len(waits) == 5
    assert waits[3:] == [3, 4]  # before each piece
    assert list(pieces(range(3))) == [0, 1, 2]
    assert len(waits) == 5


def a_run() -> RunState:
    state = RunState()
    state.apply(launched(RANKS))
    for rank in range(RANKS):
        state.apply(hello(rank, RANKS))
        state.apply(structure(rank, groups=(tuple(range(RANKS)),)))
    for number in range(1, 6):
        for rank in range(RANKS):
            state.apply(step(rank, number))
            times = [1_000 + rank + number] * 2
            state.apply(
                Comm(
                    rank=rank,
                    seq=number,
                    step=number,
                    unit=[0, 0],
                    kind=[0, 1],
                    phase=[0, 1],
                    group=[0, 0],
                    nbytes=[8, 8],
                    duration_ns=times,
                    exposed_ns=times,
                )
            )
    return state


def test_a_picture_stops_between_its_pieces_and_is_the_same_picture() -> None:
    """In every part of it that goes through all ranks, all calls or all rules."""
    may_go, waiting = threading.Event(), threading.Semaphore(0)
    waits: Counter[str] = Counter()
    found = []

    def wait() -> None:
        waits[Path(sys._getframe(2).f_code.co_filename).name] += 1  # who goes through the pieces
        waiting.release()
        assert may_go.wait(60)

    def work() -> None:
        give_way(wait)
        run = a_run().view()
        run.grid.figures("lateness")
        found.append(run)

    thread = threading.Thread(target=work)
    thread.start()
    assert waiting.acquire(timeout=60)
    thread.join(0.2)
    assert thread.is_alive()
    assert (waits.total(), found) == (1, [])
    may_go.set()
    thread.join(60)
    assert waits.keys() == {"state.py", "verdicts.py", "steps.py", "medians.py", "grid.py"}
    assert waits["state.py"] == 2 * RANKS
    usual = a_run().view()
    assert (found[0].ranks, found[0].verdicts, found[0].comm) == (usual.ranks, usual.verdicts, usual.comm)


class Node:
    """One half of a pair that only the collector can free."""

    def __init__(self) -> None:
        self.other: Node | None = None


def a_cycle() -> weakref.ref[Node]:
    one, two = Node(), Node()
    one.other, two.other = two, one
    return weakref.ref(one)


@pytest.fixture
def usual_collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.collect()
    yield
    gc.enable()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("usual_collector")
def test_garbage_is_looked_for_where_that_is_asked() -> None:
    """And nowhere else, however much is made; little of it is not worth a look."""
    collector.by_hand()
    gone = a_cycle()
    collector.sweep()
    assert gone() is not None
    made = [a_cycle() for _ in range(collector.MANY)]
    assert all(one() is not None for one in made)
    collector.sweep()
    assert gone() is None
    assert not any(one() for one in made)
