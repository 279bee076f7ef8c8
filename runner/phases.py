"""What a step's wall-clock time went into: input, forward, backward, optimizer, checkpoint and the rest. They add up to the
step."""

from __future__ import annotations

from typing import Any

from fsdp_tui.runner.clocks import Clock
from fsdp_tui.telemetry.messages import PHASES

INPUT, FORWARD, BACKWARD, OPTIMIZER, REST, CHECKPOINT = PHASES


class StepTimes:
    """The times of one step; they can be read once `ready`."""

    def __init__(
        self, clock: Clock, begin: Any, end: Any, spans: list[tuple[str, Any, Any]], known: frozenset[str]
    ) -> None:
        self._clock, self._begin, self._end = clock, begin, end
        self._spans, self._known = spans, known

    def ready(self) -> bool:
        return all(self._clock.ready(mark) for mark in (self._end, *(end for _, _, end in self._spans)))

    def read(self) -> tuple[int, list[int | None]]:
        """Nanoseconds of the step and of each phase in the order of PHASES; a phase nobody watches is None."""
        step = max(0, self._clock.between(self._begin, self._end) or 0)
        times: dict[str, int | None] = dict.fromkeys(self._known, 0)
        for phase, begin, end in self._spans:
            spent, before = self._clock.between(begin, end), times.get(phase, 0)
            times[phase] = None if spent is None or before is None else before + max(0, spent)
        times[REST] = max(0, step - sum(ns or 0 for ns in times.values()))
        marks = [mark for _, begin, end in self._spans for mark in (begin, end)] + [self._begin]
        self._clock.release(list({id(mark): mark for mark in marks}.values()))  # one ends a span and begins another
        return step, [times.get(phase) for phase in PHASES]


class Phases:
    """Follows the phases of the current step. They may nest, and the outermost one has the time; but an optimizer's closure,
    which runs forward and backward inside its step, has its own."""

    def __init__(self, clock: Clock, known: frozenset[str]) -> None:
        self._clock = clock
        self._known = known
        self._open: list[str] = []
        self._since: Any = None
        """When the phase that has the time began to."""
        self._spans: list[tuple[str, Any, Any]] = []
        self._begin = clock.mark()

    @property
    def current(self) -> str:
        """The innermost one."""
        return self._open[-1] if self._open else REST

    def _holder(self) -> str | None:
        """The phase that has the time now."""
        return next((phase for phase in self._open if phase != OPTIMIZER), self._open[0] if self._open else None)

    def watch(self, phase: str) -> None:
        """From now on this phase is known: a step without it took 0, not None."""
        self._known = self._known | {phase}

    def enter(self, phase: str) -> None:
        before = self._holder()
        self._open.append(phase)
        self._hand_over(before)

    def leave(self, phase: str) -> None:
        """Ends the phase, and any inside it that an exception left open."""
        if phase not in self._open:
            return
        before = self._holder()
        while self._open.pop() != phase:
            pass
        self._hand_over(before)

    def _hand_over(self, before: str | None) -> None:
        after = self._holder()
        if after == before:
            return
        now = self._clock.mark()
        if before is not None:
            self._spans.append((before, self._since, now))
        self._since = now

    def finish_step(self, *, at_last_phase: bool = False) -> StepTimes:
        """Ends the step, now or where its last phase ended, and begins the next at the same mark."""
        end = self._spans[-1][2] if at_last_phase and self._spans else self._clock.mark()
        times = StepTimes(self._clock, self._begin, end, self._spans, self._known)
        self._spans, self._open, self._begin = [], [], end
        return times

    def restart_step(self) -> None:
        """Begins the step now: what happened since the last one ended was no training."""
        self._spans, self._open, self._begin = [], [], self._clock.mark()
