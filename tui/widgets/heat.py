"""A cell per value: the strip that shows a thousand ranks at once, and the scales of strips and maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    if label and -(-len(levels) // round_start(across)) <= height:
        across = round_start(across)
    rows: list[Row] = []
    for begin in range(0, len(levels), across):
        row: Row = []
        if label:
            text = labels[begin * per_cell] if begin * per_cell < len(labels) else ""
            row.append((text[:label].rjust(label) + " ", QUIET))
        rows.append(crop(row + _cells(levels[begin : begin + across], letters), width))
    return rows, per_cell, low, high


def round_start(across: int) -> int:
    """Cells of a row, of at most `across`, after which the next one starts with a number that a person can count with."""
    return across - across % 8 if across > 32 else max(1, across)


@dataclass(frozen=True)
class HeatScale:
    """Where each level begins, in round numbers: a scale that moved with every value would flicker."""

    edges: tuple[float, ...]
    """HEAT_LEVELS - 1 rising values."""
    falling: bool = False
    """Low values have the high levels: bandwidth, where the eye should find what is slow."""

    def levels(self, values: Floats) -> NDArray[np.int64]:
        """Level of each value, -1 where it is not known."""
        levels = np.searchsorted(self.edges, values, side="right")
        return np.where(np.isfinite(values), HEAT_LEVELS - 1 - levels if self.falling else levels, -1)


_ROUND = (1.0, 2.0, 5.0)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 ..."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in _ROUND if step * power >= value * (1 - 1e-9)), 10 * power)


def heat_scale(values: Floats, *, least: float = 0.0, falling: bool = False) -> HeatScale:
    """A scale for these values: even steps where they lie within a factor of eight, else 1, 2, 5, 10, 20, ... up to the highest.

    Args:
        values: Of any shape; NaN is not known.
        least: The highest level begins here or above, so that noise does not shine.
        falling: See HeatScale.
    """
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    if high <= 0 and least <= 0:
        return HeatScale(tuple(float(level) for level in range(1, HEAT_LEVELS)), falling)
    if low >= high / 8 and high >= least and low > 0:
        step = _round_up(max((high - low) / HEAT_LEVELS, high / 50))
        while math.floor(low / step) * step + HEAT_LEVELS * step < high:
            step = _round_up(step * 1.01)
        begin = math.floor(low / step) * step
        return HeatScale(tuple(begin + step * level for level in range(1, HEAT_LEVELS)), falling)
    top = _round_up(max(high, least))
    if top > high and top > least:  # the highest value is to reach the highest level
        top = _round_up(top / 2.6)
    edges = [top]
    while len(edges) < HEAT_LEVELS - 1:
        edges.append(_round_up(edges[-1] / 2.6))
    return HeatScale(tuple(reversed(edges)), falling)


def scale_key(scale: HeatScale, text: Callable[[float], str], unit: str, width: int, *, letters: bool) -> Row:
    """What the levels mean, from the lowest: every edge between its swatches, or only the ends where there is little room."""
    edges = [text(edge) for edge in (reversed(scale.edges) if scale.falling else scale.edges)]
    looks = _looks(letters)
    row: Row = []
    for level, (swatch, ink) in enumerate(looks):
        if level and (not letters or swatch != looks[level - 1][0]):
            row.append((f" {edges[level - 1]} ", QUIET))
        if not letters or not level or swatch != looks[level - 1][0]:
            row.append((swatch * 2, ink))
    row.append((f" {unit}", QUIET))
    if sum(len(piece) for piece, _ in row) <= width:
        return row
    first, last = ("≥", "<") if scale.falling else ("<", "≥")
    return [
        (f"{first}{edges[0]} ", QUIET),
        *((swatch, ink) for swatch, ink in looks),
        (f" {last}{edges[-1]} {unit}", QUIET),
    ]


def _looks(letters: bool) -> list[tuple[str, Ink]]:
    """Glyph and ink of each level."""
    if letters:
        return [(glyph, LABEL) for glyph in HEAT_GLYPHS]
    return [(" ", Ink(f"heat-{level}", f"heat-{level}")) for level in range(HEAT_LEVELS)]


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
