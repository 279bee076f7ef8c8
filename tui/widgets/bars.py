"""Stacked memory bars, one per rank (or per run): by category, with the ideal mark, the peak mark and numbers.

The raster is exact to an eighth of a cell: `▌` in the colour of the left category on the right one's. When there are
more bars than rows they are packed into columns, and beyond that the worst are drawn as bars and every one as a heat
cell, with the number of those that are not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry.messages import CATEGORIES, TOTAL_CATEGORIES
from fsdp_tui.tui.format import UNKNOWN, Unit, change, count, fit, in_unit, known, scale_for
from fsdp_tui.tui.theme import GROUPS, SEVERITY_GLYPHS, Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Chart, Row, crop, flow, row_width
from fsdp_tui.tui.widgets.heat import draw_heat, heat_key, round_start

Floats = NDArray[np.float64]

HOT = 0.9
"""From this part of the capacity on, a peak is marked."""

_EIGHTHS = " ▏▎▍▌▋▊▉"
_ROLES = (*(group.role for group in GROUPS), "unknown", "free")
_UNKNOWN, _FREE = len(GROUPS), len(GROUPS) + 1
_KEYS = (*(group.key for group in GROUPS), "?", "·")


@dataclass(frozen=True, eq=False)
class Column:
    """Numbers beside the bars."""

    title: str
    values: Sequence[float | None] | Floats | Sequence[str]
    """Numbers are written in the chart's unit; texts as they are."""
    essential: bool = False
    """Kept where only some columns fit."""
    hot: NDArray[np.bool_] | None = None
    """Drawn as a warning, with `!`."""

    def text(self, index: int, unit: Unit) -> str:
        """What the column says about a bar."""
        value = self.values[index]
        return value if isinstance(value, str) else in_unit(value, unit)

    def width(self, unit: Unit) -> int:
        """Cells that fit its title and every value, without writing them all."""
        widest = [self.title]
        if len(self.values) and isinstance(self.values[0], str):
            widest += [str(value) for value in self.values]
        elif len(self.values):
            values = np.asarray(self.values, dtype=float)
            values = values[np.isfinite(values)]
            widest += [in_unit(float(v), unit) for v in (values.min(), values.max())] if len(values) else [UNKNOWN]
        return max(map(len, widest))


@dataclass(frozen=True, eq=False, kw_only=True)
class Bars:
    """What there is to draw: `n` bars, all in bytes; NaN is not known."""

    labels: Sequence[str]
    groups: Floats
    """(n, 6) in the order of GROUPS."""
    total: Floats
    """(n,) what the whole bar amounts to; what the known groups lack of it is drawn as `?`."""
    peak: Floats
    """(n,)"""
    ideal: Floats
    """(n,)"""
    scale_bytes: float
    """What the right edge of every bar stands for."""
    unit: Unit
    columns: Sequence[Column] = ()
    flags: Sequence[str] = ()
    """Severity per bar, "" for none; empty: no flags."""
    selected: int | None = None
    """Index of the selected bar."""
    heading: str = "rank"
    what: str = "ranks"
    """Plural, for "+48 more ranks"."""
    ideal_label: str = "ideal 1/N"
    peak_label: str = "peak so far"

    def __len__(self) -> int:
        return len(self.labels)


def group_bytes(memory: Sequence[Sequence[int | None] | None], *, device: bool) -> tuple[Floats, Floats]:
    """Memory columns of the wire as the six groups and the whole.

    Args:
        memory: Per rank: one number per category and the total, or None where nothing is known.
        device: What the device holds (allocated, cache, NVML's non_torch and others), or only what torch's tensors
            hold. The second is for CPU, where the heap of Python would dwarf the model.

    Returns:
        (n, 6) and (n,). A group is NaN if none of its categories is known; the whole is NaN if the total is not.
    """
    table = _table(memory)
    used = CATEGORIES if device else TOTAL_CATEGORIES
    groups = np.full((len(table), len(GROUPS)), np.nan)
    for index, group in enumerate(GROUPS):
        parts = table[:, [CATEGORIES.index(name) for name in group.categories if name in used]]
        some = np.isfinite(parts).any(axis=1)
        groups[some, index] = np.nansum(parts[some], axis=1)
    total = table[:, len(CATEGORIES)].copy()
    if device:
        total += np.nansum(table[:, len(TOTAL_CATEGORIES) : len(CATEGORIES)], axis=1)
    return groups, total


def _beside_torch(memory: Sequence[Sequence[int | None] | None]) -> Floats:
    """Bytes of the device that torch cannot have (cache it can), as far as they are known."""
    at = [CATEGORIES.index(name) for name in ("non_torch", "others")]
    beside: Floats = np.nansum(_table(memory)[:, at], axis=1)
    return beside


def _table(memory: Sequence[Sequence[int | None] | None]) -> Floats:
    """Memory columns as numbers; NaN for what is not known, or what an older program's shorter columns do not have."""
    width = len(CATEGORIES) + 1
    rows = [[*(row or ())[:width], *(None,) * (width - len(row or ()))] for row in memory]
    return np.array(rows, dtype=float).reshape(-1, width)


def round_scale(value: float) -> float:
    """The next round number of bytes: a bar that ends at it can be read (1, 1.5, 2, 3, 4, 6 or 8 times 2**n, and so on)."""
    if not np.isfinite(value) or value <= 0:
        return 1.0
    power = 2.0 ** np.floor(np.log2(value))
    return float(next(step * power for step in (1.0, 1.25, 1.5, 1.75, 2.0) if step * power >= value))


def rank_bars(
    ranks: Sequence[int],
    memory: Sequence[Sequence[int | None] | None],
    *,
    peak_bytes: Sequence[int | None] | None = None,
    ideal_bytes: float | None = None,
    capacity_bytes: float | None = None,
    device: bool = False,
    flags: Sequence[str] = (),
    selected_rank: int | None = None,
) -> Bars:
    """The bars of the Run screen.

    Args:
        ranks: In the order in which they are drawn.
        memory: Their memory columns, as on the wire.
        peak_bytes: The highest total of each so far.
        ideal_bytes: Model states per rank if cut into equal parts.
        capacity_bytes: Of one device: the right edge, and the `free` column. None: the right edge is the largest
            value rounded up, and free memory is not shown.
        device: See `group_bytes`.
        flags: Severity per rank ("" for none).
        selected_rank: The rank that the cursor is on.
    """
    groups, total = group_bytes(memory, device=device)
    n = len(ranks)
    peak = np.full(n, np.nan) if peak_bytes is None else np.array(list(peak_bytes), dtype=float)
    capacity = float(capacity_bytes) if capacity_bytes else None
    largest = _nanmax(np.concatenate([total, peak, np.nansum(groups, axis=1), [ideal_bytes or 0]]))
    scale = capacity or round_scale(largest)
    free = capacity - peak - _beside_torch(memory) if capacity else None
    unit = scale_for([scale])
    columns = [
        Column("now", total),
        Column("peak", peak, essential=True, hot=peak > HOT * capacity if capacity else None),
    ]
    if free is not None:
        columns.append(Column("free", free))
    order = list(ranks)
    return Bars(
        labels=[str(rank) for rank in ranks],
        groups=groups,
        total=total,
        peak=peak,
        ideal=np.full(n, np.nan if ideal_bytes is None else float(ideal_bytes)),
        scale_bytes=scale,
        unit=unit,
        columns=columns,
        flags=flags,
        selected=order.index(selected_rank) if selected_rank in order else None,
    )


def state_bytes(memory: Sequence[Sequence[int | None] | None]) -> Floats:
    """Model states of each row: parameters, gradients and optimizer that it stores; NaN if one is not known."""
    at = [CATEGORIES.index(name) for name in ("param_shard", "grad_shard", "optimizer")]
    states: Floats = _table(memory)[:, at].sum(axis=1)
    return states


def run_bars(
    names: Sequence[str],
    memory: Sequence[Sequence[int | None] | None],
    *,
    peak_bytes: Sequence[int | None],
    theory_bytes: Sequence[float | None],
    device: bool = False,
    flags: Sequence[str] = (),
    selected: int | None = None,
) -> Bars:
    """The bars of the Compare screen: one per run, all on the scale of the largest.

    Args:
        names: Of the runs.
        memory: Memory columns of each run's worst rank, as on the wire.
        peak_bytes: Measured peak of that rank.
        theory_bytes: What theory says its model states are.
        device: See `group_bytes`.
        flags: Severity per run ("" for none).
        selected: Index of the run that the cursor is on.
    """
    groups, total = group_bytes(memory, device=device)
    peak, theory = (np.array(list(values), dtype=float) for values in (peak_bytes, theory_bytes))
    states = state_bytes(memory)
    scale = round_scale(_nanmax(np.concatenate([total, peak, theory, np.nansum(groups, axis=1)])))
    differences = [change(s, t) if known(s) and known(t) else UNKNOWN for s, t in zip(states, theory, strict=True)]
    return Bars(
        labels=list(names),
        groups=groups,
        total=total,
        peak=peak,
        ideal=theory,
        scale_bytes=scale,
        unit=_finer(scale_for([scale])),
        columns=[
            Column("peak", peak, essential=True),
            Column("states", states),
            Column("theory", theory),
            Column("diff", differences),
        ],
        flags=flags,
        selected=selected,
        heading="run",
        what="runs",
        ideal_label="theory of states",
        peak_label="peak, worst rank",
    )


def spread(bars: Bars) -> Row:
    """How far the peaks are apart: "spread  min 42.7  median 44.3  max 61.2 (5)"."""
    good = np.flatnonzero(np.isfinite(bars.peak))
    if not len(good):
        return [("spread ", QUIET), (UNKNOWN, LABEL)]
    peaks = bars.peak[good]
    worst = bars.labels[int(good[int(peaks.argmax())])]
    row: Row = [("spread", QUIET)]
    for name, value in (("min", peaks.min()), ("median", np.median(peaks)), ("max", peaks.max())):
        row += [(f"  {name} ", QUIET), (in_unit(float(value), bars.unit), LABEL)]
    return [*row, (f" ({bars.heading} {worst})", QUIET)]


@dataclass(frozen=True)
class Layout:
    """Where everything goes."""

    shown: tuple[int, ...]
    """Indexes of the bars that are drawn, column by column."""
    ncols: int
    nrows: int
    """Bars per column."""
    cell: int
    """Width of a column, the gap of 2 behind it not counted."""
    label: int
    bar: int
    columns: tuple[Column, ...]
    tall: int
    """Rows per bar: 1 bar; 2 and more: numbers of each category below it."""
    header: bool
    heat: int
    """Rows of heat cells; 0: every bar is drawn."""
    legend: int

    @property
    def top(self) -> int:
        """The row of the first bar."""
        return int(self.header)


def layout_bars(bars: Bars, width: int, height: int) -> Layout:
    """Arrange bars in a space: all of them if that can be, the worst ones and a heat strip otherwise."""
    n = len(bars)
    legend = 1 if height >= 5 else 0
    if height >= 11 or (height >= 6 and -(-n // (height - 2)) == -(-n // (height - 1))):
        legend = 2
    if legend == 2 and len(legend_rows(bars, width, 2)) == 1:
        legend = 1
    room = height - legend
    label = min(max([len(bars.heading) if width >= 30 else 1, *map(len, bars.labels)]), max(3, width // 3))

    def arrange(ncols: int, nrows: int) -> tuple[int, int, tuple[Column, ...]]:
        cell = max(1, (width - 2 * (ncols - 1)) // ncols)
        tight = cell - label - 1
        essential = tuple(c for c in bars.columns if c.essential)
        for chosen, least in ((tuple(bars.columns), 22), (essential, 8)):
            bar = tight - _numbers_width(bars, chosen)
            if bar >= least:
                return cell, bar, chosen
        return cell, max(0, tight), ()

    # Fewest columns that show every bar with its essential number; then without numbers.
    for least, numbers in ((8, True), (6, False)):
        ncols = -(-n // max(1, room))
        cell, bar, columns = arrange(max(1, ncols), room)
        if n and ncols >= 1 and bar >= least and (bool(columns) == numbers or not bars.columns):
            nrows = -(-n // ncols)
            header = room > nrows
            spare = room - header
            tall = min(4, spare // nrows) if ncols == 1 else 1
            if tall > 1 and row_width(_breakdown(bars, 0)) > cell - label - 1:
                tall = 1
            return Layout(tuple(range(n)), ncols, nrows, cell, label, bar, columns, tall, header, 0, legend)

    header = room >= 5
    rest = room - header
    heat = 0 if rest < 3 else _heat_rows(n, width - label - 1, rest - 2)
    lines = max(1, rest - (heat + 1 if heat else 1 if rest > 1 else 0))
    ncols = max(1, (width + 2) // 62) if height > 1 else 1
    cell, bar, columns = arrange(ncols, lines)
    worst = worst_first(bars)[: lines * ncols]
    return Layout(tuple(worst), ncols, lines, cell, label, bar, columns, 1, header, max(heat, 1), legend)


def _heat_rows(n: int, across: int, room: int) -> int:
    """Rows of heat cells for so many bars: a cell for each if there is room for these, else as many as half of it has."""
    across = max(1, across)
    for per_row in (round_start(across), across):
        if (rows := math.ceil(n / per_row)) <= room:
            return rows
    most = max(1, (room + 2) // 2)
    cells = math.ceil(n / math.ceil(n / (across * most)))
    return min(most, math.ceil(cells / round_start(across)))


def worst_first(bars: Bars) -> list[int]:
    """Indexes by falling peak (the total where no peak is known); bars of which nothing is known first."""
    weight = np.where(np.isfinite(bars.peak), bars.peak, bars.total)
    return [int(i) for i in np.argsort(-np.where(np.isfinite(weight), weight, np.inf), kind="stable")]


def draw_bars(bars: Bars, width: int, height: int, *, letters: bool = False) -> list[Row]:
    """Bars as at most `height` rows of `width` cells."""
    if width < 1 or height < 1:
        return []
    if not len(bars):
        return [crop([(f"no {bars.what} yet", QUIET)], width)]
    plan = layout_bars(bars, width, height)
    rows: list[Row] = []
    if plan.header:
        rows.append(crop(_side_by_side([_header(bars, plan)] * plan.ncols, plan.cell), width))
    raster = dict(zip(plan.shown, bar_rows(bars, plan.shown, plan.bar, letters=letters), strict=True))
    for y in range(plan.nrows):
        line = plan.shown[y :: plan.nrows]
        rows.append(crop(_side_by_side([_bar_line(bars, plan, i, raster[i]) for i in line], plan.cell), width))
        if plan.tall >= 3:
            rows.append(crop([(" " * (plan.label + 1), LABEL), *raster[line[0]]], width))
        if plan.tall >= 2:
            rows.append(crop([(" " * (plan.label + 1), LABEL), *_breakdown(bars, line[0])], width))
        if plan.tall >= 4:
            rows.append(crop([], width))
    if plan.heat and height == 1:
        more = f" +{count(len(bars) - 1)}"
        plan = layout_bars(bars, max(1, width - len(more)), 1)
        bar = bar_rows(bars, plan.shown[:1], plan.bar, letters=letters)[0]
        rows = [crop([*crop(_bar_line(bars, plan, plan.shown[0], bar), plan.cell), (more, LABEL)], width)]
    elif plan.heat:
        rows += _all_of_them(bars, plan, width, height - plan.legend - len(rows), letters)
    if plan.legend:
        legend = legend_rows(bars, width, plan.legend)
        rows += [crop([], width)] * (height - len(rows) - len(legend))
        rows += legend
    return rows[:height]


def bar_rows(bars: Bars, shown: Sequence[int], width: int, *, letters: bool = False) -> list[Row]:
    """Only the bars: one row of exactly `width` cells for each index in `shown`."""
    if width < 1 or not shown:
        return [[] for _ in shown]
    index = np.array(shown, dtype=int)
    groups = np.nan_to_num(np.clip(bars.groups[index], 0, None), nan=0.0)
    total, peak, ideal = bars.total[index], bars.peak[index], bars.ideal[index]
    scale = bars.scale_bytes if bars.scale_bytes > 0 else 1.0

    explained = groups.sum(axis=1)
    ends = np.cumsum(np.column_stack([groups, np.clip(np.nan_to_num(total - explained, nan=0.0), 0, None)]), axis=1)
    edges = np.clip(np.rint(ends / scale * width * 8), 0, width * 8).astype(np.int64)
    edges = np.column_stack([edges, np.full(len(index), width * 8)])
    starts = np.column_stack([np.zeros(len(index), dtype=np.int64), edges[:, :-1]])
    left = (np.arange(width) * 8)[None, :, None]
    # (bar, cell, category): eighths of the cell that the category covers.
    cover = np.clip(np.minimum(edges[:, None, :], left + 8) - np.maximum(starts[:, None, :], left), 0, 8)
    order = np.argsort(-cover, axis=2, kind="stable")
    most, second = order[:, :, 0], order[:, :, 1]
    alone = np.take_along_axis(cover, second[:, :, None], 2)[:, :, 0] == 0
    first = np.where(alone, most, np.minimum(most, second))
    then = np.where(alone, most, np.maximum(most, second))
    # Two categories share a cell at the true edge of the left one, whatever a third one takes of it.
    filled = np.clip(np.take_along_axis(edges, first, 1) - left[:, :, 0], 1, 8)
    if letters:
        first, then, filled = most, most, np.full_like(filled, 8)
    endless = np.isnan(total)

    mark = np.zeros(first.shape, dtype=np.int64)
    for number, at in ((1, peak), (2, ideal)):
        fits = np.isfinite(at) & (at >= 0) & (at <= scale * (1 + 1e-9))
        where = np.minimum((np.where(fits, at, 0) / scale * width).astype(np.int64), width - 1)
        mark[np.flatnonzero(fits), where[fits]] = number
    beyond = np.fmax(np.fmax(total, explained), np.nan_to_num(peak, nan=0.0)) > scale * (1 + 1e-9)
    mark[beyond, width - 1] = 3

    code = ((first * 16 + then) * 16 + filled) * 8 + mark
    # Behind a bar of unknown length nothing is known to be free.
    code[endless[:, None] & (first == _FREE) & (mark == 0)] = -1
    return [_runs(line, most_line, letters) for line, most_line in zip(code, most, strict=True)]


def _runs(code: NDArray[np.int64], most: NDArray[np.int64], letters: bool) -> Row:
    """Cells of one bar as runs of one ink."""
    cuts = np.flatnonzero(np.diff(code)) + 1
    bounds = [0, *cuts.tolist(), len(code)]
    row: Row = []
    unknown_said = False
    for begin, end in pairwise(bounds):
        value, n = int(code[begin]), end - begin
        if value < 0:
            text = " " * n if unknown_said else "?" + " " * (n - 1)
            unknown_said = True
            row.append((text, QUIET))
            continue
        mark, filled = value & 7, value >> 3 & 15
        first, then = value >> 11, value >> 7 & 15
        if mark:
            glyph, role = (("▏", "peak"), ("┃", "ideal"), ("»", "bad"))[mark - 1]
            behind = "" if letters else _fill(int(most[begin]))
            row.append((glyph * n, Ink(role, behind, True)))
        elif letters or (first >= _UNKNOWN and filled == 8):
            ink = Ink("free-dot" if first == _FREE else "quiet" if first == _UNKNOWN else _ROLES[first])
            row.append((_KEYS[first] * n, ink if letters else ink._replace(bg=_fill(first))))
        elif filled == 8:
            row.append((" " * n, Ink(_ROLES[first], _ROLES[first])))
        else:
            row.append((_EIGHTHS[filled] * n, Ink(_fill(first), _fill(then))))
    return row


def _fill(code: int) -> str:
    return "free" if code == _UNKNOWN else _ROLES[code]


def _numbers_width(bars: Bars, columns: Sequence[Column]) -> int:
    flagged = any(bars.flags) or any(c.hot is not None for c in columns)
    return sum(c.width(bars.unit) + 2 for c in columns) + (2 if flagged else 0)


def _header(bars: Bars, plan: Layout) -> Row:
    edge = f"{in_unit(bars.scale_bytes, bars.unit)} {bars.unit.name}"
    row: Row = [(fit(bars.heading if len(bars.heading) <= plan.label else "", plan.label) + " ", QUIET)]
    row.append((edge.rjust(plan.bar) if plan.bar >= len(edge) else " " * plan.bar, QUIET))
    row += [(f"  {c.title:>{c.width(bars.unit)}}", QUIET) for c in plan.columns]
    return row


def _bar_line(bars: Bars, plan: Layout, index: int, bar: Row) -> Row:
    chosen = index == bars.selected
    label = bars.labels[index]
    label = label.rjust(plan.label) if label.isdigit() else fit(label, plan.label)
    if len(label) > plan.label:
        label = fit(label, plan.label)
    row: Row = [(label, Ink("strong", "cursor", True) if chosen else LABEL)]
    row += [("▸" if chosen else " ", STRONG), *bar]
    hot = False
    for column in plan.columns:
        warn = column.hot is not None and bool(column.hot[index])
        hot = hot or warn
        ink = Ink("bad", bold=True) if warn else STRONG if chosen else LABEL if column.essential else QUIET
        row.append((f"  {column.text(index, bars.unit):>{column.width(bars.unit)}}", ink))
    flag = bars.flags[index] if index < len(bars.flags) else ""
    flag = flag or ("warn" if hot else "")
    if flag and plan.columns:
        row.append((f" {SEVERITY_GLYPHS.get(flag, '!')}", Ink("bad" if hot else flag, bold=True)))
    return row


def _breakdown(bars: Bars, index: int) -> Row:
    """The numbers behind a bar: "P 3.7  G 3.7 ..." """
    row: Row = []
    for group, value in zip(GROUPS, bars.groups[index].tolist(), strict=True):
        row.append((("  " if row else "") + group.key, Ink(group.role, bold=True)))
        row.append((f" {in_unit(value, bars.unit)}", QUIET))
    return row


def _all_of_them(bars: Bars, plan: Layout, width: int, rows: int, letters: bool) -> list[Row]:
    """The line that says how many are not drawn, and a heat cell for each one."""
    hidden = len(bars) - len(plan.shown)
    if rows < 1:
        return []
    weight = np.where(np.isfinite(bars.peak), bars.peak, bars.total)
    heat, per_cell, low, high = draw_heat(
        weight,
        width,
        rows - 1,
        letters=letters,
        label=plan.label,
        least_span=bars.scale_bytes / 20,
        labels=bars.labels,
    )
    pieces: list[Row] = [[(f"+{count(hidden)} more {bars.what}", LABEL)]]
    if heat:
        words = f"worst of {per_cell} per cell" if per_cell > 1 else f"all {count(len(bars))} by peak"
        pieces.append([(words, QUIET)])
        pieces.append(heat_key(low, high, lambda v: in_unit(v, bars.unit), bars.unit.name, letters=letters))
    elif row_width(pieces[0]) > width:
        pieces = [[(f"+{hidden}", LABEL)]]
    line, _ = flow(pieces, width)
    return [crop(line, width), *heat]


def legend_rows(bars: Bars, width: int, height: int) -> list[Row]:
    """What the letters, colours and marks mean, in at most `height` rows; shorter words where there is less room."""
    edge = f"{in_unit(bars.scale_bytes, bars.unit)} {bars.unit.name}"
    ideals = {float(v) for v in bars.ideal if np.isfinite(v)}
    ideal = f" {bars.ideal_label}" + (f" = {in_unit(ideals.pop(), _finer(bars.unit))}" if len(ideals) == 1 else "")
    marks: list[Row] = []
    if np.isfinite(bars.ideal).any():
        marks.append([("┃", Ink("ideal", bold=True)), (ideal, QUIET)])
    if np.isfinite(bars.peak).any():
        marks.append([("▏", Ink("peak", bold=True)), (f" {bars.peak_label}", QUIET)])
    marks.append([(f"right edge = {edge}", QUIET)])
    keys = {
        name: [[(g.key, Ink(g.role, bold=True)), (f" {getattr(g, name)}" if name else "", QUIET)] for g in GROUPS]
        for name in ("label", "short")
    }
    letters: list[Row] = [[(g.key, Ink(g.role, bold=True))] for g in GROUPS]
    short_marks = [[piece[0], (" ideal" if piece[0][0] == "┃" else " peak", QUIET)] for piece in marks[:-1]]
    short_marks.append([(f"of {edge}", QUIET)])
    for names, told in (
        (keys["label"], marks),
        (keys["short"], marks),
        (keys["short"], short_marks),
        (letters, short_marks),
    ):
        pieces = [*names, *told]
        row, shown = flow(pieces, width)
        if shown == len(pieces):
            return [crop(row, width)]
        if height >= 2:
            rows = [flow(part, width) for part in (pieces[: len(GROUPS)], pieces[len(GROUPS) :])]
            if rows[0][1] == len(GROUPS) and rows[1][1] == len(pieces) - len(GROUPS):
                return [crop(part, width) for part, _ in rows]
    row, _ = flow([*letters, *short_marks], width, gap=" ")
    return [crop(row, width)]


def _finer(unit: Unit) -> Unit:
    """One digit more: the ideal is compared with the measured states."""
    return unit._replace(decimals=unit.decimals + 1) if unit.size > 1 else unit


def _side_by_side(cells: Sequence[Row], width: int) -> Row:
    row: Row = []
    for cell in cells:
        if row:
            row.append(("  ", LABEL))
        row += crop(cell, width)
    return row


def _nanmax(values: Floats) -> float:
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else 0.0


class MemoryBars(Chart):
    """Memory bars of ranks or runs."""

    def __init__(self, bars: Bars | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._bars = bars

    def show_bars(self, bars: Bars | None) -> None:
        """Draw these; None: nothing is known yet."""
        self._bars = bars
        self.redraw()

    def select(self, index: int | None) -> None:
        """Move the cursor to a bar."""
        if self._bars is not None:
            self.show_bars(replace(self._bars, selected=index))

    def bar_at(self, x: int, y: int) -> int | None:
        """The index of the bar at a cell of the widget, for the mouse."""
        if self._bars is None or not len(self._bars) or not self.size.area:
            return None
        plan = layout_bars(self._bars, *self.size)
        row, col = (y - plan.top) // plan.tall, x // (plan.cell + 2)
        place = col * plan.nrows + row
        fits = y >= plan.top and row < plan.nrows and col < plan.ncols and place < len(plan.shown)
        return plan.shown[place] if fits else None

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        if self._bars is None:
            return [crop([("no memory measured yet (o: what the ranks print)", QUIET)], width)]
        return draw_bars(self._bars, width, height, letters=letters)
