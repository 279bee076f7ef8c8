"""What the screens must say of a run, worked out from its messages in another way than the program does."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry.messages import Step

from .fixtures import Recipe

KINDS = ("all-gather", "reduce-scatter", "all-reduce")
GATHER, SCATTER, REDUCE = range(3)
PHASES = ("forward", "backward")
Floats = NDArray[np.float64]


class Truth:
    """Of the steps after the first, whose times are not usual ones; all ranks are in one group.

    Attributes:
        calls: (unit, kind, phase) of a step's collectives, in order.
        nbytes: of each.
        duration, exposed, late: (steps, ranks, calls) in ns.
    """

    def __init__(self, recipe: Recipe, steps: int | None = None) -> None:
        """`steps`: as far as it had come."""
        self.recipe = replace(recipe, steps=steps or recipe.steps)
        self.steps = range(2, self.recipe.steps + 1)
        first = recipe.comm(0, 2)
        self.calls = list(zip(first.unit, first.kind, first.phase, strict=True))
        self.nbytes = np.array(first.nbytes, dtype=float)
        told = [[recipe.comm(rank, number) for rank in range(recipe.ranks)] for number in self.steps]
        self.duration: Floats = np.array([[one.duration_ns for one in step] for step in told], dtype=float)
        self.exposed: Floats = np.array([[one.exposed_ns for one in step] for step in told], dtype=float)
        self.late: Floats = self.duration.max(axis=1, keepdims=True) - self.duration

    def of(self, unit: int | None = None, kind: int | None = None, phase: int | None = None) -> list[int]:
        """Which calls those are; None: any."""
        wanted = (unit, kind, phase)
        return [
            at for at, call in enumerate(self.calls) if all(w in (None, c) for w, c in zip(wanted, call, strict=True))
        ]

    def rank(self, matrix: Floats, rank: int, calls: list[int]) -> float:
        """A rank's sum over calls, the median over steps."""
        return float(np.median(matrix[:, rank, calls].sum(axis=1)))

    def mean(self, matrix: Floats, calls: list[int]) -> float:
        """The mean over ranks of their sums, the median over steps."""
        return float(np.median(matrix[:, :, calls].sum(axis=2).mean(axis=1)))

    def bytes(self, calls: list[int]) -> float:
        return float(self.nbytes[calls].sum())

    def carried(self, calls: list[int]) -> float:
        """Bytes that these calls put on a rank's link."""
        n = self.recipe.ranks
        factors = [(2 if self.calls[at][1] == REDUCE else 1) * (n - 1) / n for at in calls]
        return float((self.nbytes[calls] * factors).sum())

    def bus(self, rank: int, calls: list[int]) -> float:
        """Bytes a second on the rank's link while these calls run, the median over steps."""
        return float(np.median(self.carried(calls) / self.duration[:, rank, calls].sum(axis=1)) * 1e9)

    def latest(self, calls: list[int]) -> tuple[int, float]:
        """The rank that the others wait longest for in these calls, and how long."""
        by_rank = np.median(self.late[:, :, calls].sum(axis=2), axis=0)
        return int(by_rank.argmax()), float(by_rank.max())

    def straggler(self) -> tuple[int, float]:
        """The rank that is waited for most over all calls, and by how much more than the usual other one."""
        by_step = self.late.sum(axis=2)
        rank = int(np.median(by_step, axis=0).argmax())
        others = np.delete(by_step, rank, axis=1)
        return rank, float(np.median(by_step[:, rank] - np.median(others, axis=1)))

    # Steps

    def messages(self, rank: int) -> list[Step]:
        """A rank's steps after the first."""
        return [self.recipe.step(rank, number) for number in self.steps]

    @cached_property
    def step_ns(self) -> Floats:
        """Of the slowest rank."""
        return np.array([self.recipe.step_ns(number) for number in self.steps], dtype=float)

    @property
    def loss(self) -> float:
        return self.recipe.loss / (1 + self.recipe.steps / 50)

    @property
    def tokens_per_s(self) -> float:
        tokens = self.recipe.step(0, 1).tokens or 0
        return float(np.median(self.recipe.ranks * tokens / self.step_ns * 1e9))

    def exposed_in(self, phase: int, kinds: tuple[int, ...]) -> float:
        """What compute waits in a phase: unit by unit and kind by kind the mean over ranks, the median over steps."""
        parts = [
            self.of(unit, kind, phase) for unit in {unit for unit, _, _ in self.calls if unit >= 0} for kind in kinds
        ]
        return sum(self.mean(self.exposed, calls) for calls in parts if calls)

    def phases(self) -> dict[str, float]:
        """Of the usual step, without what compute waits for collectives in it."""
        names = ("input", "forward", "backward", "optimizer", "rest")
        values = {}
        for at, name in enumerate(names):
            spent = float(np.median([step.phases_ns[at] or 0 for step in self.messages(0)]))
            waited = self.exposed_in(PHASES.index(name), (GATHER, SCATTER, REDUCE)) if name in PHASES else 0.0
            values[name] = spent - waited
        return values
