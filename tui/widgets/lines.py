"""Line charts in braille: 2 by 4 dots per cell, with axes, gaps that are marked, and a raw band behind a smooth line.

However many points there are, each column of dots shows the lowest and the highest value that the line takes in it, so
a single bad step out of a million stays visible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsdp_tui.tui.format import Unit, axis, count, scale_for
from fsdp_tui.tui.theme import SERIES, Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, Chart, Row, crop, flow, over

Floats = NDArray[np.float64]

_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], dtype=np.int64)
"""Braille bit of the dot at (row, column) of a cell."""


@dataclass(frozen=True, eq=False)
class Series:
    """One line.

    `y` is NaN or infinite where that was measured (a loss that diverged): the line has a gap, marked `×`. Where
    nothing is known, `known` is False: the gap is there, but it is nobody's fault and is marked `┈`.
    """

    x: Floats
    """Rising."""
    y: Floats
    label: str = ""
    role: str = ""
    """Colour; default: the next of theme.SERIES."""
    smooth: int = 1
    """Draw the mean of the last so many points, with the raw line behind it."""
    known: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Plot:
    """What a line chart shows."""

    series: Sequence[Series] = ()
    log: bool = False
    """Logarithmic y axis; values of 0 and less have no place on it and are gaps marked `×`."""
    window: tuple[float, float] | None = None
    """Part of x to show; default: all. An open end is an infinity."""
    marks: Sequence[tuple[float, str, str]] = field(default_factory=tuple)
    """(x, glyph, role) of events, drawn on the x axis."""
    y_units: Sequence[Unit] = (Unit("", 1),)
    """The axis is in one of these, with as many decimals as its numbers need."""
    x_text: Callable[[float], str] = count
    from_zero: bool = False
    """The y axis starts at 0 (not on a logarithmic one)."""
    empty: str = "no data yet"


def rolling_mean(y: Floats, points: int) -> Floats:
    """The mean of each value and the `points - 1` before it, leaving out those that are not finite."""
    if points <= 1 or not len(y):
        return y
    good = np.isfinite(y)
    sums = np.concatenate([[0.0], np.cumsum(np.where(good, y, 0.0))])
    counts = np.concatenate([[0], np.cumsum(good)])
    end = np.arange(1, len(y) + 1)
    begin = np.maximum(0, end - points)
    n = counts[end] - counts[begin]
    return np.where(good, (sums[end] - sums[begin]) / np.maximum(n, 1), np.nan)


def column_ranges(x: Floats, y: Floats, low: float, high: float, columns: int) -> tuple[Floats, Floats]:
    """The lowest and highest value of the line through (x, y) in each of `columns` equal parts of [low, high].

    The line is straight between points that follow each other, and has a gap where y is NaN. NaN where there is none.
    """
    lo, hi = np.full(columns, np.inf), np.full(columns, -np.inf)
    good = np.isfinite(y)
    if not good.any():
        return np.full(columns, np.nan), np.full(columns, np.nan)
    span = (high - low) or 1.0
    inside = good & (x >= low) & (x <= high)
    place = np.minimum(((x[inside] - low) / span * columns).astype(np.int64), columns - 1)
    np.minimum.at(lo, place, y[inside])
    np.maximum.at(hi, place, y[inside])
    # Where the line crosses from one column into the next it belongs to both.
    edges = low + span * np.arange(1, columns) / columns
    after = np.searchsorted(x, edges, side="left")
    between = (after > 0) & (after < len(x))
    right = np.clip(after, 1, max(1, len(x) - 1)) if len(x) > 1 else np.zeros(len(edges), dtype=np.int64)
    if len(x) > 1:
        x0, x1, y0, y1 = x[right - 1], x[right], y[right - 1], y[right]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            at = y0 + (y1 - y0) * np.where(x1 > x0, (edges - x0) / (x1 - x0), 0.0)
        at = np.where(between & np.isfinite(at), at, np.nan)
        for part in (slice(0, columns - 1), slice(1, columns)):
            lo[part] = np.fmin(lo[part], at)
            hi[part] = np.fmax(hi[part], at)
    nothing = hi < lo
    lo[nothing] = hi[nothing] = np.nan
    return lo, hi


def ticks(low: float, high: float, most: int, *, log: bool = False) -> list[float]:
    """Round numbers in [low, high], at most `most`, rising; on a log axis the arguments and results are exponents."""
    if most < 1 or not high > low:
        return [low] if most >= 1 else []
    if log:
        for digits in ((1, 2, 5), (1, 3), (1,)):
            found = [math.log10(d) + power for power in range(math.floor(low), math.ceil(high) + 1) for d in digits]
            found = [t for t in found if low - 1e-12 <= t <= high + 1e-12]
            if 2 <= len(found) <= most:
                return found
        if high - low < 1:
            return [math.log10(t) for t in ticks(10**low, 10**high, most) if t > 0]
    rough = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (power, 2 * power, 2.5 * power, 5 * power, 10 * power, 20 * power, 50 * power):
        first = math.ceil(low / step - 1e-9)
        last = math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            return [i * step for i in range(first, last + 1)]
    return []


def draw_lines(plot: Plot, width: int, height: int, *, letters: bool = False) -> list[Row]:
    """The chart as at most `height` rows of `width` cells: a legend (two and more series), the plot, the x axis."""
    if width < 1 or height < 1:
        return []
    shown = [_prepared(series, index, plot) for index, series in enumerate(plot.series)]
    extent = _x_extent(shown, plot.window)
    if extent is None:
        return [crop([(plot.empty, QUIET)], width)]
    left, right = extent
    rows: list[Row] = []
    labelled = [s for s in shown if s.label]
    if len(labelled) > 1 and height >= 4:
        names: list[Row] = [
            [(f"{s.key if letters else '━'} ", Ink(s.role, bold=True)), (s.label, LABEL)] for s in labelled
        ]
        legend, fitting = flow(names, width - 4)
        if fitting < len(names):
            legend.append((f" +{len(names) - fitting}", QUIET))
        rows.append(crop(legend, width))
    below = 2 if height >= 7 else 1 if height >= 4 else 0  # line and numbers; line with numbers in it; nothing
    lines = height - len(rows) - below

    low, high = _y_extent(shown, plot, left, right)
    marks = _y_ticks(low, high, lines, plot)
    gutter = max((len(text) for text in marks.values()), default=0)
    if gutter + 1 > width // 2:
        marks, gutter = {}, 0
    across = width - gutter - 1 if marks else width
    cells = _raster(shown, left, right, low, high, across, lines)
    if letters and len(labelled) > 1:
        cells = _lettered(cells, labelled, left, right, low, high, across)
    for y in range(lines):
        head: Row = (
            [(marks.get(y, "").rjust(gutter), QUIET), ("┤" if y in marks else "│", Ink("frame"))] if marks else []
        )
        rows.append(crop([*head, *cells[y]], width))
    if below:
        rows += _x_axis(plot, shown, left, right, gutter if marks else -1, across, below)
    return [crop(row, width) for row in rows]


@dataclass(frozen=True, eq=False)
class _Line:
    x: Floats
    y: Floats
    """As drawn: on a log axis the exponent; NaN at gaps."""
    smooth: Floats | None
    role: str
    label: str
    key: str
    """The letter that doubles the colour."""
    bad: Floats
    """x of values that were measured and cannot be drawn."""
    unknown: Floats


def _prepared(series: Series, index: int, plot: Plot) -> _Line:
    n = min(len(series.x), len(series.y))
    x, y = np.asarray(series.x[:n], dtype=float), np.asarray(series.y[:n], dtype=float)
    known = np.ones(n, dtype=bool) if series.known is None else np.asarray(series.known[:n], dtype=bool)

    def placed(values: Floats) -> Floats:
        drawable = known & np.isfinite(values) & ((values > 0) if plot.log else True)
        safe = np.where(drawable, values, 1.0)
        return np.where(drawable, np.log10(safe) if plot.log else safe, np.nan)

    drawn = placed(y)
    smooth = placed(rolling_mean(np.where(known, y, np.nan), series.smooth)) if series.smooth > 1 else None
    role = series.role or SERIES[index % len(SERIES)]
    return _Line(
        x, drawn, smooth, role, series.label, chr(ord("a") + index % 26), x[known & np.isnan(drawn)], x[~known]
    )


def _x_extent(lines: Sequence[_Line], window: tuple[float, float] | None) -> tuple[float, float] | None:
    xs = [line.x for line in lines if len(line.x)]
    if not xs:
        return None
    left, right = min(float(x[0]) for x in xs), max(float(x[-1]) for x in xs)
    if window is not None:
        left, right = max(left, window[0]), min(right, window[1])
    return (left, right) if right > left else (left - 0.5, left + 0.5)  # one point stands in the middle


def _y_extent(lines: Sequence[_Line], plot: Plot, left: float, right: float) -> tuple[float, float]:
    parts = [line.y[(line.x >= left) & (line.x <= right)] for line in lines]
    values = np.concatenate([part[np.isfinite(part)] for part in parts]) if parts else np.empty(0)
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if plot.from_zero and not plot.log:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-12):  # a flat line goes through the middle
        room = 0.5 if plot.log else abs(high) * 0.05 or 1.0
        return low - room, high + room
    return low, high


def _y_ticks(low: float, high: float, lines: int, plot: Plot) -> dict[int, str]:
    """Row -> label. A label stands at the row whose dots hold its value."""
    found: list[float] = []
    most = min(lines, max(2, (lines + 1) // 3))
    while len(found) < 2 and most <= lines:  # one number alone says nothing about the scale
        found = ticks(low, high, most, log=plot.log)
        most += 1
    values = [10**value if plot.log else value for value in found]
    unit = scale_for(values, plot.y_units)
    texts = [f"{text}{unit.name}" for text in axis([value / unit.size for value in values])]
    rows: dict[int, str] = {}
    for value, text in zip(found, texts, strict=True):
        dot = round((high - value) / (high - low) * (lines * 4 - 1))
        rows.setdefault(dot // 4, text)
    return rows


def _raster(
    lines: Sequence[_Line], left: float, right: float, low: float, high: float, width: int, height: int
) -> list[Row]:
    columns, dots = width * 2, height * 4
    bits = np.zeros((height, width), dtype=np.int64)
    owner = np.full((height, width), -1, dtype=np.int64)
    inks: list[Ink] = []

    def stroke(x: Floats, y: Floats, ink: Ink, *, over: bool) -> None:
        """Set the dots of one line; `over` wipes what its cells showed, so that it stays crisp on its own band."""
        lo, hi = column_ranges(x, y, left, right, columns)
        there = np.isfinite(lo)
        if not there.any():
            return
        scale = (dots - 1) / (high - low)
        top = np.clip(np.rint((high - np.where(there, hi, low)) * scale), 0, dots - 1)
        bottom = np.clip(np.rint((high - np.where(there, lo, low)) * scale), 0, dots - 1)
        row = np.arange(dots)[:, None]
        on = there[None, :] & (row >= top[None, :]) & (row <= bottom[None, :])
        mine = (on.reshape(height, 4, width, 2) * _BITS[None, :, None, :]).sum(axis=(1, 3))
        hit = mine > 0
        bits[hit] = mine[hit] if over else bits[hit] | mine[hit]
        owner[hit] = len(inks)
        inks.append(ink)

    for line in lines:
        if line.smooth is not None:
            stroke(line.x, line.y, Ink("raw"), over=False)
    for line in lines:
        ink = Ink(line.role)
        if line.smooth is None:
            stroke(line.x, line.y, ink, over=False)
        else:
            stroke(line.x, line.smooth, ink, over=True)
    rows: list[Row] = []
    for y in range(height):
        glyphs = "".join(chr(0x2800 + b) if b else " " for b in bits[y].tolist())
        bounds = [0, *(np.flatnonzero(np.diff(owner[y])) + 1).tolist(), width]
        rows.append([(glyphs[a:b], inks[owner[y, a]] if owner[y, a] >= 0 else LABEL) for a, b in pairwise(bounds)])
    # Gaps are told on the bottom line, below whatever is drawn above it.
    for line in lines:
        for at, glyph, ink in ((line.unknown, "┈", QUIET), (line.bad, "×", Ink("bad", bold=True))):
            for cell in _cells_of(at, left, right, width):
                rows[-1] = over(rows[-1], cell, glyph, ink)
    return rows


def _lettered(
    rows: list[Row], lines: Sequence[_Line], left: float, right: float, low: float, high: float, width: int
) -> list[Row]:
    """Each line's letter on it, here and there and never in one column with another's: colours are not the only cue."""
    rows = list(rows)
    apart = max(16, 3 * len(lines))
    for index, line in enumerate(lines):
        lo, hi = column_ranges(line.x, line.y if line.smooth is None else line.smooth, left, right, width)
        for cell in range(width - 1 - 3 * index, -1, -apart):
            if np.isfinite(hi[cell]):
                part = (high - (lo[cell] + hi[cell]) / 2) / (high - low)
                y = min(len(rows) - 1, max(0, round(part * (len(rows) * 4 - 1)) // 4))
                rows[y] = over(rows[y], cell, line.key, Ink(line.role, bold=True))
    return rows


def _x_axis(
    plot: Plot, lines: Sequence[_Line], left: float, right: float, gutter: int, width: int, height: int
) -> list[Row]:
    pad: Row = [(" " * gutter, QUIET), ("└", Ink("frame"))] if gutter >= 0 else []
    rule: Row = [("─" * width, Ink("frame"))]
    texts: Row = [(" " * width, QUIET)]
    target = texts if height == 2 else rule
    ends = 0
    for value in ticks(left, right, max(2, width // 10)):
        if float(value).is_integer() or plot.x_text is not count:
            text = plot.x_text(value)
            cell = min(width - 1, int((value - left) / (right - left) * width))
            begin = min(max(0, cell - len(text) // 2), width - len(text))
            if begin >= ends and begin >= 0:
                if height == 2:
                    rule = over(rule, cell, "┬", Ink("frame"))
                target = over(target, begin, text, QUIET)
                ends = begin + len(text) + 1
    if height == 2:
        texts = target
    else:
        rule = target
    for at, glyph, role in plot.marks:
        for cell in _cells_of(np.array([at]), left, right, width):
            rule = over(rule, cell, glyph, Ink(role, bold=True))
    blank: Row = [(" " * (gutter + 1), QUIET)] if gutter >= 0 else []
    return [[*pad, *rule], [*blank, *texts]][:height]


def _cells_of(at: Floats, left: float, right: float, width: int) -> list[int]:
    at = at[(at >= left) & (at <= right)]
    cells = np.minimum(((at - left) / (right - left) * width).astype(np.int64), width - 1)
    return [int(cell) for cell in np.unique(cells)]


class LineChart(Chart):
    """A live line chart; its title, with the newest value, is the screen's."""

    def __init__(self, plot: Plot | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._plot = plot or Plot()

    def show_plot(self, plot: Plot) -> None:
        """Draw this."""
        self._plot = plot
        self.redraw()

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        return draw_lines(self._plot, width, height, letters=letters)
