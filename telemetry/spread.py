"""What a run's steps vary by, and whether two runs differ by more than that."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NEWEST = 512
"""Steps that a run's usual step time and speed are of; the first one of all, which warms up, is none of them."""
LEAST = 5
"""Steps without which there are no quartiles to speak of."""
APART = 0.02
"""Figures nearer than this, relatively, are alike: nobody would choose by less."""
ERRORS = 3.0
"""Standard errors by which two medians differ before the runs do."""
COUNTED = 16
"""Steps that an error is worked out from at most: neighbours are slow together, as when another program runs for a while, so
that many of them say little more than a few. Of 49 recorded runs, halves held against each other, 9 were told apart where
every step counted, and none this way."""


class Spread(NamedTuple):
    """Of a figure's value in a run's newest steps."""

    median: float
    half: float
    """Half of the distance between the quartiles: what is written after ±."""
    steps: int

    @property
    def error(self) -> float:
        """How far the median may be from where it would be on another day; about one standard error of normal values."""
        return 2 * self.half / math.sqrt(min(self.steps, COUNTED))


def newest(per_step: NDArray[np.float64]) -> NDArray[np.float64]:
    """Those values of all steps that a run's usual figure is the median of: NaN and 0 are not known."""
    late = per_step[1:][-NEWEST:]
    return late[np.isfinite(late) & (late > 0)]


def spread_of(per_step: NDArray[np.float64]) -> Spread | None:
    """Of the newest of all steps; None when no step after the first has a value."""
    known = newest(per_step)
    if not known.size:
        return None
    low, middle, high = np.percentile(known, (25, 50, 75))
    return Spread(float(middle), float(high - low) / 2, int(known.size))


def differ(one: Spread, other: Spread) -> bool:
    """Whether two medians are further apart than their steps' variation explains."""
    if min(one.steps, other.steps) < LEAST:
        return False
    gap = abs(one.median - other.median)
    return gap > ERRORS * math.hypot(one.error, other.error) and apart(one.median, other.median)


def apart(one: float, other: float) -> bool:
    """Whether two figures that do not vary are worth telling apart."""
    return abs(one - other) > APART * max(abs(one), abs(other))
