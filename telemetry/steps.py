"""What the newest steps of each rank took: medians over windows that are followed, those of all ranks in one matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fsdp_tui.telemetry.collectives import median_known
from fsdp_tui.telemetry.courtesy import pieces
from fsdp_tui.telemetry.messages import PHASES, Step

FIGURES = 2 + len(PHASES)
"""Of each step: its time, that of the probes, and the phases."""


class StepFigures(NamedTuple):
    """Medians of one rank's steps; None is not known."""

    step_ns: int | None = None
    overhead_ns: int | None = None
    phases_ns: tuple[int | None, ...] = ()
    """In the order of PHASES; empty before the first step."""


NO_STEPS = StepFigures()


class StepMedians:
    """Medians over each rank's window of steps: a step that is new to it is written over one that has left.

    `by_rank` has the figures of those ranks that have made a step.
    """

    def __init__(self) -> None:
        self._clear((), 0)

    def _clear(self, ranks: Sequence[int], length: int) -> None:
        self.by_rank: Mapping[int, StepFigures] = {}
        self._row = {rank: row for row, rank in enumerate(ranks)}
        self._newest: dict[int, Step] = {}
        self._length = length
        self._written = np.zeros(len(ranks), dtype=np.int64)
        self._values = np.full((FIGURES, len(ranks), length), np.nan)

    def follow(self, windows: Mapping[int, Sequence[Step]], length: int) -> Mapping[int, StepFigures]:
        """Brings the figures up to date; cheap when no step has come since. `length`: of a window that is full."""
        if self._row.keys() != windows.keys() or length != self._length:
            self._clear(tuple(windows), length)
        rows: list[int] = []
        places: list[int] = []
        values: list[tuple[int | None, ...]] = []
        for rank, window in pieces(windows.items()):
            new = self._new(rank, window)
            if not new:
                continue
            row = self._row[rank]
            first = int(self._written[row])
            rows += [row] * len(new)
            places += [(first + at) % length for at in range(len(new))]
            values += map(_figures, new)
            self._written[row] += len(new)
            self._newest[rank] = window[-1]
        if values:
            self._values[:, rows, places] = np.array(values, dtype=np.float64).T
            self._work_out()
        return self.by_rank

    def _new(self, rank: int, window: Sequence[Step]) -> Sequence[Step]:
        newest = self._newest.get(rank)
        if newest is not None:
            for back in range(1, len(window) + 1):
                if window[-back] is newest:
                    return window[len(window) - back + 1 :]
        return window[-self._length :]

    def _work_out(self) -> None:
        full = self._values[:, :, : int(self._written.max())]
        medians = [
            median_known(one) for one in pieces(full)
        ]  # one by one: the phases that nobody knows do not slow the others
        columns = [[None if value != value else int(value) for value in one.tolist()] for one in medians]
        self.by_rank = {
            rank: StepFigures(step_ns, overhead_ns, tuple(phases))
            for rank, written, step_ns, overhead_ns, *phases in zip(
                self._row, self._written.tolist(), *columns, strict=True
            )
            if written
        }


def _figures(step: Step) -> tuple[int | None, ...]:
    phases = step.phases_ns[: len(PHASES)]
    return (step.step_ns, step.overhead_ns, *phases, *[None] * (len(PHASES) - len(phases)))


def first_step(step: Step) -> StepFigures:
    """While there is only the first one: its phases, which are not usual ones, are all that is known."""
    return StepFigures(phases_ns=_figures(step)[2:])
