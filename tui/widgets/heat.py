"""A cell per value: the strip that shows a thousand ranks at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsdp_tui.tui.theme import HEAT_GLYPHS, HEAT_LEVELS, Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, Chart, Row, crop

Floats = NDArray[np.float64]


def heat_levels(values: Floats, low: float, high: float) -> NDArray[np.int64]:
    """Level 0 .. HEAT_LEVELS - 1 of each value, -1 where it is not known."""
    span = high - low if high > low else 1.0
    scaled = np.floor((np.nan_to_num(values, nan=low) - low) / span * HEAT_LEVELS)
    levels = np.clip(scaled, 0, HEAT_LEVELS - 1).astype(np.int64)
    return np.where(np.isfinite(values), levels, -1)


def draw_heat(
    values: Floats,
    width: int,
    height: int,
    *,
    letters: bool = False,
    label: int = 0,
    labels: Sequence[str] = (),
    low: float | None = None,
    high: float | None = None,
    least_span: float = 0.0,
) -> tuple[list[Row], int, float, float]:
    """Values as cells, row by row; where they do not fit, one cell is the highest of several neighbours.

    Args:
        values: (n,), NaN where not known.
        width: Cells.
        height: Rows.
        letters: Glyphs instead of colours.
        label: Cells at the left for the label of a row's first value, from `labels`; 0: none.
        labels: One per value.
        low: Value of the lowest level; default: the smallest.
        high: Value of the highest level; default: the largest.
        least_span: At least this far are low and high apart, so that noise does not look like a difference.

    Returns:
        The rows, the number of values per cell, and the low and high that were used.
    """
    finite = values[np.isfinite(values)]
    low = float(finite.min() if len(finite) else 0) if low is None else low
    high = float(finite.max() if len(finite) else 1) if high is None else high
    high = max(high, low + least_span)
    across = width - (label + 1 if label else 0)
    if across < 1 or height < 1 or not len(values):
        return [], 1, low, high
    per_cell = max(1, -(-len(values) // (across * height)))
    if per_cell > 1:
        padded = np.full(-(-len(values) // per_cell) * per_cell, -np.inf)
        padded[: len(values)] = np.where(np.isfinite(values), values, -np.inf)
        values = padded.reshape(-1, per_cell).max(axis=1)
    levels = heat_levels(values, low, high)
    if label and across > 32:
        across -= across % 8  # row starts that a person can count with
        if -(-len(levels) // across) > height:
            across = width - label - 1
    rows: list[Row] = []
    for begin in range(0, len(levels), across):
        row: Row = []
        if label:
            text = labels[begin * per_cell] if begin * per_cell < len(labels) else ""
            row.append((text[:label].rjust(label) + " ", QUIET))
        rows.append(crop(row + _cells(levels[begin : begin + across], letters), width))
    return rows, per_cell, low, high


def heat_key(low: float, high: float, text: Callable[[float], str], unit: str, *, letters: bool) -> Row:
    """What the levels mean: "42.7 ▉▉▉▉▉▉▉▉ 61.2 GiB"."""
    scale = _cells(np.arange(HEAT_LEVELS), letters)
    return [(f"{text(low)} ", QUIET), *scale, (f" {text(high)} {unit}".rstrip(), QUIET)]


def _cells(levels: NDArray[np.int64], letters: bool) -> Row:
    row: Row = []
    bounds = [0, *(np.flatnonzero(np.diff(levels)) + 1).tolist(), len(levels)]
    for begin, end in pairwise(bounds):
        level = int(levels[begin])
        if level < 0:
            row.append(("?" * (end - begin), QUIET))
        elif letters:
            row.append((HEAT_GLYPHS[level] * (end - begin), LABEL))
        else:
            row.append((" " * (end - begin), Ink(f"heat-{level}", f"heat-{level}")))
    return row


class HeatStrip(Chart):
    """One cell per value."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._values: Floats = np.empty(0)
        self._low: float | None = None
        self._high: float | None = None

    def show_values(self, values: Floats, *, low: float | None = None, high: float | None = None) -> None:
        """Draw these; NaN is not known."""
        self._values, self._low, self._high = values, low, high
        self.redraw()

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        return draw_heat(self._values, width, height, letters=letters, low=self._low, high=self._high)[0]
