"""What a step's wall-clock time went into: input, forward, backward, optimizer and the rest. They add up to the step."""

from __future__ import annotations

from typing import Any

from fsdp_tui.runner.clocks import Clock
from fsdp_tui.telemetry.messages import PHASES

INPUT, FORWARD, BACKWARD, OPTIMIZER, REST = PHASES


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
        self._clock.release([mark for _, begin, end in self._spans for mark in (begin, end)] + [self._begin])
        return step, [times.get(phase) for phase in PHASES]


class Phases:
    """Follows the phases of the current step. Spans do not nest: the outermost one has the time."""

    def __init__(self, clock: Clock, known: frozenset[str]) -> None:
        self._clock = clock
        self._known = known
        self._open: list[tuple[str, Any]] = []
        self._spans: list[tuple[str, Any, Any]] = []
        self._begin = clock.mark()

    @property
    def current(self) -> str:
        return self._open[-1][0] if self._open else REST

    def watch(self, phase: str) -> None:
        """From now on this phase is known: a step without it took 0, not None."""
        self._known = self._known | {phase}

    def enter(self, phase: str) -> None:
        self._open.append((phase, self._clock.mark()))

    def leave(self, phase: str) -> None:
        """Ends the phase, and any inside it that an exception left open."""
        while self._open:
            opened, begin = self._open.pop()
            if opened == phase:
                if not self._open:
                    self._spans.append((phase, begin, self._clock.mark()))
                return

    def finish_step(self) -> StepTimes:
        """Ends the step and begins the next at the same mark."""
        end = self._clock.mark()
        times = StepTimes(self._clock, self._begin, end, self._spans, self._known)
        self._spans, self._open, self._begin = [], [], end
        return times

    def restart_step(self) -> None:
        """Begins the step now: what happened since the last one ended was no training."""
        self._spans, self._open, self._begin = [], [], self._clock.mark()
