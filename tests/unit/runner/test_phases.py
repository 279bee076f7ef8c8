"""Phases add up to the step, whatever order and depth they come in."""

from __future__ import annotations

from typing import Any

from fsdp_tui.runner.phases import BACKWARD, FORWARD, INPUT, OPTIMIZER, Phases
from fsdp_tui.telemetry.messages import PHASES


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0
        self.released: list[Any] = []

    def mark(self) -> int:
        return self.now

    def ready(self, mark: int) -> bool:
        return mark <= self.now

    def between(self, begin: int, end: int) -> int:
        return end - begin

    def release(self, marks: list[int]) -> None:
        self.released += marks


def _spend(clock: Hands, phases: Phases, phase: str, ns: int) -> None:
    phases.enter(phase)
    clock.now += ns
    phases.leave(phase)


def test_accumulated_phases_add_up() -> None:
    """Two micro-batches: forward and backward are sums, and what is left over is the rest."""
    clock = Hands()
    phases = Phases(clock, frozenset({FORWARD, BACKWARD, OPTIMIZER}))
    for _ in range(2):
        _spend(clock, phases, FORWARD, 30)
        _spend(clock, phases, BACKWARD, 50)
    _spend(clock, phases, OPTIMIZER, 7)
    clock.now += 13
    step, times = phases.finish_step().read()
    assert step == 180
    assert dict(zip(PHASES, times, strict=True)) == {
        "input": None,
        "forward": 60,
        "backward": 100,
        "optimizer": 7,
        "rest": 13,
        "checkpoint": None,
    }


def test_a_watched_phase_that_did_not_happen_took_nothing() -> None:
    """Known and zero is not unknown."""
    clock = Hands()
    phases = Phases(clock, frozenset({FORWARD}))
    phases.watch(INPUT)
    clock.now += 5
    assert phases.finish_step().read() == (5, [0, 0, None, None, 5, None])


def test_inner_phases_belong_to_the_outer_one() -> None:
    """A forward inside backward (activation checkpointing) is backward's time; an exception's leftovers are closed."""
    clock = Hands()
    phases = Phases(clock, frozenset({FORWARD, BACKWARD}))
    phases.enter(BACKWARD)
    _spend(clock, phases, FORWARD, 10)
    phases.enter(FORWARD)
    clock.now += 5
    phases.leave(BACKWARD)
    assert phases.finish_step().read()[1][1:3] == [0, 15]


def test_a_closure_inside_an_optimizer_has_its_own_time() -> None:
    """What is left of the optimizer's step is before, between and after."""
    clock = Hands()
    phases = Phases(clock, frozenset({FORWARD, BACKWARD, OPTIMIZER}))
    phases.enter(OPTIMIZER)
    clock.now += 1
    _spend(clock, phases, FORWARD, 10)
    clock.now += 2
    _spend(clock, phases, BACKWARD, 20)
    clock.now += 4
    phases.leave(OPTIMIZER)
    clock.now += 100
    assert phases.finish_step(at_last_phase=True).read() == (37, [None, 10, 20, 7, 0, None])


def test_a_pause_is_no_part_of_a_step() -> None:
    """The next step begins when training does."""
    clock = Hands()
    phases = Phases(clock, frozenset())
    phases.finish_step()
    clock.now += 1_000
    phases.restart_step()
    clock.now += 10
    assert phases.finish_step().read()[0] == 10


def test_a_phase_with_a_mark_that_is_not_known_is_not_known() -> None:
    """Captured into a CUDA graph: None, and its time is in the rest."""

    class Captured(Hands):
        def between(self, begin: int, end: int) -> int | None:  # type: ignore[override]
            return None if begin == 7 else end - begin

    clock = Captured()
    phases = Phases(clock, frozenset({FORWARD, BACKWARD}))
    clock.now = 7
    _spend(clock, phases, FORWARD, 30)
    _spend(clock, phases, BACKWARD, 50)
    step, times = phases.finish_step().read()
    assert dict(zip(PHASES, times, strict=True)) == {
        "input": None,
        "forward": None,
        "backward": 50,
        "optimizer": None,
        "rest": step - 50,
        "checkpoint": None,
    }
