"""When compute waited, on streams whose time is set by hand: the CUDA side of the collectives without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fsdp_tui.runner import clocks
from fsdp_tui.runner.clocks import CudaClock
from fsdp_tui.runner.collectives import Call, Collectives, StepCalls
from fsdp_tui.runner.torch_dist import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER

ONE, TWO = object(), object()


class Streams:
    """A clock whose marks are made at `now`, which a test moves as it goes from stream to stream; None while capturing."""

    def __init__(self) -> None:
        self.now: int | None = 0
        self.reached = 1_000_000
        self.given_back: list[Any] = []

    def mark(self) -> int | None:
        return self.now

    def ready(self, mark: int | None) -> bool:
        return mark is None or mark <= self.reached

    def between(self, begin: int | None, end: int | None) -> int | None:
        return None if begin is None or end is None else end - begin

    def release(self, marks: list[int | None]) -> None:
        self.given_back += [mark for mark in marks if mark is not None]


class Trace:
    """Collectives of two units, and the calls of FSDP in the order it makes them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fsdp_tui.runner.collectives.group_ranks", lambda group: [0, 1])
        self.clock = Streams()
        self.calls = Collectives(self.clock, {id(ONE): 0, id(TWO): 1}, on_cpu=False)

    def at(self, now: int | None) -> Collectives:
        self.clock.now = now
        return self.calls

    def issue(self, kind: int, owner: object | None, begin: int, end: int, *, asynchronous: bool = False) -> None:
        if owner is not None:
            self.calls.begin(owner)
        record = self.at(begin).issue(kind, 100, None, asynchronous)
        assert record is not None
        self.calls.left()
        self.at(end).returned(record, None)
        if owner is not None:
            self.calls.end()

    def read(self) -> list[tuple[int, int]]:
        """Duration and exposed time of each call."""
        columns = self.calls.take().columns()
        return list(zip(columns["duration_ns"], columns["exposed_ns"], strict=True))


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    return Trace(monkeypatch)


@pytest.mark.parametrize(("needed", "exposed"), [(10, 30), (25, 15), (40, 0), (90, 0), (5, 30)])
def test_what_remains_of_a_gather_is_exposed(trace: Trace, needed: int, exposed: int) -> None:
    """From 10 to 40; needed before it began is all of it and no more: the rest is other collectives' time."""
    trace.issue(ALL_GATHER, ONE, 10, 40)
    trace.at(needed).waiting(ONE)
    trace.calls.waited(ONE)
    assert trace.read() == [(30, exposed)]


def test_a_gather_that_is_issued_when_it_is_needed(trace: Trace) -> None:
    """FSDP1 issues inside of what waits, and prefetches the next unit's there too: that one is not needed yet."""
    trace.at(10).waiting(ONE)
    trace.issue(ALL_GATHER, ONE, 8, 30)  # the gathers' stream was free before compute came
    trace.issue(ALL_GATHER, TWO, 30, 60)
    trace.calls.waited(ONE)
    trace.at(50).waiting(TWO)
    trace.calls.waited(TWO)
    trace.at(70).waiting(TWO)  # again in backward, where nothing was freed: nothing is gathered
    trace.calls.waited(TWO)
    assert trace.read() == [(22, 20), (30, 10)]
    assert 70 in trace.clock.given_back


def test_an_asynchronous_gather_ends_when_the_wait_is_over(trace: Trace) -> None:
    trace.issue(ALL_GATHER, ONE, 10, 11, asynchronous=True)
    trace.at(20).waiting(ONE)
    trace.at(45).waited(ONE)
    assert trace.read() == [(35, 25)]


def test_reductions_are_needed_when_their_buffer_is(trace: Trace) -> None:
    """The next unit's backward waits for the first reduce-scatter, the end of backward for what is left."""
    trace.issue(REDUCE_SCATTER, TWO, 10, 40)
    trace.issue(ALL_REDUCE, TWO, 40, 50)  # of a hybrid strategy: nobody waits for it before the end
    trace.at(25).reductions_needed(0)
    trace.issue(REDUCE_SCATTER, ONE, 50, 90)
    trace.at(60).reductions_needed()
    trace.at(95).reductions_needed()  # each unit says it
    assert trace.read() == [(30, 15), (10, 0), (40, 30)]


def test_some_reductions_may_stay_under_way(trace: Trace) -> None:
    for begin in (10, 20, 30):
        trace.issue(REDUCE_SCATTER, ONE, begin, begin + 10)
    trace.at(12).reductions_needed(2)
    assert trace.read() == [(10, 8), (10, -1), (10, -1)]


def test_compute_s_own_collective_is_exposed_in_full(trace: Trace) -> None:
    """Gradient clipping's all-reduce belongs to no unit and runs where compute does."""
    trace.issue(ALL_REDUCE, None, 10, 40)
    assert trace.read() == [(30, 30)]


def test_what_was_captured_into_a_graph_is_not_known(trace: Trace) -> None:
    trace.at(None)
    record = trace.calls.issue(ALL_GATHER, 100, None, False)
    assert record is not None
    trace.calls.left()
    trace.calls.returned(record, None)
    trace.calls.waiting(ONE)
    assert trace.read() == [(-1, -1)]


def test_a_collective_inside_another_counts_once(trace: Trace) -> None:
    assert trace.calls.issue(ALL_GATHER, 100, None, False) is not None
    assert trace.calls.issue(ALL_GATHER, 100, None, False) is None
    trace.calls.left()
    assert trace.read() == [(-1, -1)]


def test_a_step_is_ready_when_its_last_mark_is() -> None:
    """A record that has no end is not waited for."""
    clock = Streams()
    done, failed = Call(0, ALL_GATHER, 0, 0, 100, 1, False), Call(0, ALL_GATHER, 0, 0, 100, 1, False)
    done.end = 50
    step = StepCalls(clock, [done, failed], on_cpu=False)
    clock.reached = 49
    assert not step.ready()
    clock.reached = 50
    assert step.ready()


class Event:
    """A CUDA event whose time is the number it was recorded as."""

    recorded = 0

    def record(self) -> None:
        Event.recorded += 1
        self.at_ms = Event.recorded

    def query(self) -> bool:
        return self.at_ms <= 2

    def elapsed_time(self, end: Event) -> float:
        return float(end.at_ms - self.at_ms)


def test_cuda_s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are used again; none is recorded or queried while a graph is captured."""
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(clocks, "_timing_event", Event)
    clock = CudaClock()
    first, second, third = clock.mark(), clock.mark(), clock.mark()
    assert clock.between(first, second) == 1_000_000
    assert [clock.ready(mark) for mark in (first, second, third)] == [True, True, False]
    capturing = True
    assert clock.mark() is None
    assert not clock.ready(first)
    assert clock.ready(None)
    assert clock.between(first, None) is None
    capturing = False
    clock.release([first, None])
    assert clock.mark() is first
    assert clock.mark() is not second
