"""A map of rows by columns: numbers in the cells where they fit, cells of any size, half cells, and cells that stand for several.

Everything is always in view unless asked otherwise: where there are more rows or columns than cells, neighbours share one,
which then shows the worst of them. `each` gives every row and column a cell of its own, and the map scrolls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.message import Message

from fsdp_tui.tui.format import UNKNOWN, count, fit
from fsdp_tui.tui.theme import HEAT_GLYPHS, HEAT_LEVELS, SEVERITY_GLYPHS, Ink, letters_mode
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Chart, Row, crop, row_width
from fsdp_tui.tui.widgets.heat import HeatScale, scale_key
from fsdp_tui.tui.widgets.spark import gauge, spark

Floats = NDArray[np.float64]
Levels = NDArray[np.int64]

BAR = Ink("series-1")
UNKNOWN_LEVEL, ABSENT_LEVEL = -1, -2
UNKNOWN_GLYPH = "╱"
TALL = 5
"""Rows of a cell at most."""
WIDEST = 24
"""Cells of a column at most, so that one column is not a wall."""
LEAST_BAR, MOST_BAR = 8, 24
"""Cells of the bars beside the rows."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HeatMap:
    """What there is to draw, `n` rows of `m` columns; values are in `unit`, NaN is not known."""

    cells: Floats
    """(n, m)"""
    absent: NDArray[np.bool_]
    """(n, m): there is nothing to measure, which is drawn as an empty cell."""
    rows: Sequence[str]
    columns: Sequence[str]
    scale: HeatScale
    text: Callable[[float], str]
    """The number in a cell."""
    unit: str
    heading: str = "rank"
    """Of the row labels."""
    what: str = "ranks"
    """Plural of the rows."""
    columns_what: str = "units"
    sums: Floats | None = None
    """(n,) beside the rows."""
    sums_text: Callable[[float], str] = str
    sums_title: str = "Σ"
    foot: Floats | None = None
    """(m,) below the columns."""
    foot_title: str = ""
    flags: Sequence[str] = ()
    """Severity of each row, "" for none; empty: no flags."""
    cursor: tuple[int, int] | None = None
    empty: str = ""
    """Said where there is no row or no column."""

    @property
    def low_is_worst(self) -> bool:
        return self.scale.falling

    @cached_property
    def digits(self) -> int:
        """Cells that the widest number needs."""
        known = self.cells[np.isfinite(self.cells)]
        if not known.size:
            return len(UNKNOWN)
        return max(len(self.text(float(known.min()))), len(self.text(float(known.max()))))

    @cached_property
    def sums_ends(self) -> tuple[float, float] | None:
        """Least and most of the sums that are known."""
        known = self.sums[np.isfinite(self.sums)] if self.sums is not None else np.empty(0)
        return (float(known.min()), float(known.max())) if known.size else None

    @cached_property
    def sums_digits(self) -> int:
        """Cells that the widest sum and its title need."""
        if self.sums is None:
            return 0
        return max(map(len, [self.sums_title, UNKNOWN, *map(self.sums_text, self.sums_ends or ())]))


@dataclass(frozen=True)
class MapLayout:
    """How a map is put into a space."""

    width: int
    height: int
    label: int
    """Cells of the row labels."""
    cell: int
    """Cells of a column."""
    gap: int
    """Of them, those that part it from the next."""
    tall: int
    """Text rows of a row of the map."""
    half: bool
    """Two rows of the map in a text row."""
    share_rows: int
    """Rows of the map that share a cell."""
    share_columns: int
    blocks: int
    """Blocks of rows side by side."""
    lines: int
    """Text rows of the cells."""
    first_row: int
    """Of the groups of rows."""
    first_column: int
    shown_rows: int
    """Groups of rows that are in view."""
    shown_columns: int
    header: bool
    sums: int
    """Cells of the sums, the space before them included; 0: none."""
    foot: bool
    legend: bool

    @property
    def block(self) -> int:
        """Cells of a block."""
        return self.label + 1 + self.shown_columns * self.cell + self.sums

    @property
    def used(self) -> int:
        """Rows that the map needs of its height."""
        return self.header + self.lines + self.foot + self.legend

    @property
    def per_block(self) -> int:
        """Groups of rows in a block."""
        return self.lines * 2 if self.half else self.lines // self.tall

    def group_at(self, x: int, y: int) -> tuple[int, int] | None:
        """Which groups of rows and columns are drawn there."""
        y -= self.header
        block, x = divmod(x, self.block + (2 if self.blocks > 1 else 0))
        x -= self.label + 1
        if not (0 <= y < self.lines and 0 <= x < self.shown_columns * self.cell and block < self.blocks):
            return None
        row = block * self.per_block + (y * 2 if self.half else y // self.tall)
        column = x // self.cell
        return (self.first_row + row, self.first_column + column) if row < self.shown_rows else None


def lay_out(
    chart: HeatMap, width: int, height: int, *, letters: bool, each: bool = False, corner: tuple[int, int] = (0, 0)
) -> MapLayout:
    """Puts a map into a space.

    Args:
        chart: The map.
        width: Cells.
        height: Rows.
        letters: Glyphs instead of colours; then there are no half cells.
        each: Every row and column has a cell of its own.
        corner: With `each`, the first row and column, moved so that the cursor is in view.
    """
    n, m = chart.cells.shape
    label = min(max((len(text) for text in [*chart.rows, chart.heading]), default=0), max(4, width // 4))
    header, legend = height >= 3, height >= 5
    foot = chart.foot is not None and height >= 9 and m > 1
    lines = max(1, height - header - legend - foot)
    number = chart.sums_digits
    flag = 2 if chart.flags else 0
    sums = 0
    if chart.sums is not None and width >= 44:
        sums = 2 + number + flag + (LEAST_BAR + 1 if width >= 76 else 0)
    room = max(1, width - label - 1 - sums)
    digits = chart.digits
    cell = min(max(1, room // max(1, m)), WIDEST)
    share_columns = 1 if each else _parts(m, room)
    shown_columns = min(_parts(m, share_columns), room // cell)
    tall, half, share_rows, blocks = max(1, min(TALL, lines // max(1, n))), False, 1, 1
    if each:
        tall = max(1, min(TALL, lines // n)) if n and n <= lines else 1
    elif n > lines:
        half, columns = not letters, _parts(m, share_columns)
        share_rows = _parts(n, lines * (2 if half else 1))
        # Blocks of rows side by side: where every row then has its numbers, or far fewer rows have to share a cell.
        bare, small = max(1, height - header - legend), 1 if columns > 8 else 2
        beside = 2 + number + flag if chart.sums is not None else 0
        for least, extra, paired in (
            (digits + 1, beside, False),
            (digits + 1, 0, False),
            (small, beside, half),
            (small, 0, half),
        ):
            possible = max(1, (width + 2) // (label + 1 + columns * least + extra + 2))
            packed = _parts(n, bare * (2 if paired else 1) * possible)
            if (packed == 1 and (share_rows > 1 or least > small)) or (packed * 4 <= share_rows and least == small):
                share_rows, half, lines, sums, foot = packed, paired, bare, extra, False
                blocks = _parts(_parts(n, share_rows), lines * (2 if half else 1))
                cell = min(max(1, ((width + 2) // blocks - 2 - label - 1 - extra) // columns), digits + 4)
                shown_columns = columns
                break
    gap = 1 if cell > digits else 0
    if sums and width >= 76 and blocks == 1:  # the bars take what room the cells leave
        sums += max(0, min(width - label - 1 - shown_columns * cell - sums, MOST_BAR - LEAST_BAR))
    groups = _parts(n, share_rows)
    per_block = lines * 2 if half else lines // tall
    shown_rows = min(groups, per_block * blocks)
    first_row, first_column = corner if each else (0, 0)
    if each and chart.cursor is not None:
        row, column = chart.cursor
        first_row = max(min(first_row, row), row - shown_rows + 1)
        first_column = max(min(first_column, column), column - shown_columns + 1)
    in_block = _parts(shown_rows, blocks)
    lines = min(lines, _parts(in_block, 2) if half else in_block * tall)
    return MapLayout(
        width=width,
        height=height,
        label=label,
        cell=cell,
        gap=gap,
        tall=tall,
        half=half,
        share_rows=share_rows,
        share_columns=share_columns,
        blocks=blocks,
        lines=lines,
        first_row=max(0, min(first_row, groups - shown_rows)),
        first_column=max(0, min(first_column, _parts(m, share_columns) - shown_columns)),
        shown_rows=shown_rows,
        shown_columns=shown_columns,
        header=header,
        sums=sums,
        foot=foot,
        legend=legend,
    )


def _parts(whole: int, size: int) -> int:
    """How many parts of at most this size."""
    return -(-whole // max(1, size))


def fold(values: Floats, by: int, *, lowest: bool) -> Floats:
    """(n, ...) to (n / by, ...): the highest, or lowest, of `by` neighbours; NaN only where nothing is known."""
    if by == 1:
        return values
    n = _parts(len(values), by)
    edge = np.inf if lowest else -np.inf
    padded = np.full((n * by, *values.shape[1:]), edge)
    padded[: len(values)] = np.where(np.isfinite(values), values, edge)
    parts = padded.reshape(n, by, *values.shape[1:])
    worst = parts.min(axis=1) if lowest else parts.max(axis=1)
    return np.where(np.isfinite(worst), worst, np.nan)


def _levels(chart: HeatMap, plan: MapLayout) -> tuple[Floats, Levels]:
    """Value and level of each cell in view."""
    rows = slice(plan.first_row * plan.share_rows, (plan.first_row + plan.shown_rows) * plan.share_rows)
    columns = slice(
        plan.first_column * plan.share_columns, (plan.first_column + plan.shown_columns) * plan.share_columns
    )
    low = chart.low_is_worst
    values = fold(chart.cells[rows, columns], plan.share_rows, lowest=low)
    values = fold(values.T, plan.share_columns, lowest=low).T
    nothing = fold(np.where(chart.absent[rows, columns], 1.0, 0.0), plan.share_rows, lowest=True)
    nothing = fold(nothing.T, plan.share_columns, lowest=True).T
    levels = chart.scale.levels(values)
    levels[(levels < 0) & (nothing > 0)] = ABSENT_LEVEL
    return values, levels


def worst_of(chart: HeatMap, plan: MapLayout, group: tuple[int, int]) -> tuple[int, int]:
    """The row and column that a cell stands for: of those that share it, the worst that is known, else the first."""
    n, m = chart.cells.shape
    row, column = group[0] * plan.share_rows, group[1] * plan.share_columns
    part = chart.cells[row : min(n, row + plan.share_rows), column : min(m, column + plan.share_columns)]
    known = np.isfinite(part)
    if not known.any():
        return row, column
    at = np.argmin(np.where(known, part, np.inf)) if chart.low_is_worst else np.argmax(np.where(known, part, -np.inf))
    down, across = np.unravel_index(at, part.shape)
    return row + int(down), column + int(across)


def draw_map(chart: HeatMap, plan: MapLayout, *, letters: bool = False) -> list[Row]:
    """The map with its headings, sums, foot and legend, in at most `plan.height` rows of `plan.width` cells."""
    n, m = chart.cells.shape
    if plan.width < 1 or plan.height < 1:
        return []
    if not n or not m:
        return [crop([(chart.empty, QUIET)], plan.width)]
    values, levels = _levels(chart, plan)
    cursor = None
    if chart.cursor is not None:
        cursor = (
            chart.cursor[0] // plan.share_rows - plan.first_row,
            chart.cursor[1] // plan.share_columns - plan.first_column,
        )
    rows: list[Row] = []
    if plan.header:
        rows.append(_header(chart, plan, cursor))
    for line in range(plan.lines):
        row: Row = []
        for block in range(plan.blocks):
            if block:
                row.append(("  ", LABEL))
            row += _line(chart, plan, values, levels, block, line, cursor, letters)
        rows.append(crop(row, plan.width))
    if plan.foot:
        rows.append(_foot(chart, plan))
    if plan.legend:
        rows.append(_legend(chart, plan, levels, letters))
    return rows[: plan.height]


def _line(
    chart: HeatMap,
    plan: MapLayout,
    values: Floats,
    levels: Levels,
    block: int,
    line: int,
    cursor: tuple[int, int] | None,
    letters: bool,
) -> Row:
    """One text row of a block."""
    at = block * plan.per_block + (line * 2 if plan.half else line // plan.tall)
    if at >= plan.shown_rows:
        return [(" " * plan.block, LABEL)]
    group = plan.first_row + at
    chosen = cursor is not None and cursor[0] in ((at, at + 1) if plan.half else (at,))
    head = plan.half or line % plan.tall == (plan.tall - 1) // 2
    name = chart.rows[group * plan.share_rows] if head else ""
    row: Row = [
        (
            fit(name, plan.label) if not name.isdigit() else name[: plan.label].rjust(plan.label),
            STRONG if chosen else QUIET,
        ),
        ("▸" if chosen and head else " ", STRONG),
    ]
    column = cursor[1] if chosen and cursor is not None else None
    if plan.half:
        below = levels[at + 1] if at + 1 < plan.shown_rows else np.full(plan.shown_columns, ABSENT_LEVEL)
        upper = cursor is not None and cursor[0] == at
        row += _half_cells(levels[at].tobytes(), below.tobytes(), plan.cell, column, upper)
    else:
        row += _cells(chart, plan, values[at], levels[at], column, head, letters)
    if plan.sums:
        row += _sums(chart, plan, group, head)
    return row


def _cells(
    chart: HeatMap, plan: MapLayout, values: Floats, levels: Levels, chosen: int | None, head: bool, letters: bool
) -> Row:
    """The cells of a row of the map, on one of its text rows."""
    inner = plan.cell - plan.gap
    if not plan.gap or not head:
        return _plain_cells(levels, inner, plan.gap, chosen if head else None, letters)
    row: Row = []
    for at, (value, level) in enumerate(zip(values.tolist(), levels.tolist(), strict=True)):
        glyph, ink = _look(level, letters)
        text = UNKNOWN if level == UNKNOWN_LEVEL else "" if level == ABSENT_LEVEL else chart.text(value)
        if at == chosen:
            text = f"[{text}]" if len(text) + 2 <= inner else text
            ink = ink._replace(bold=True)
        if inner - len(text) >= 4 and glyph != " " and text:
            text = f" {text} "
        row.append((text.center(inner, glyph), ink))
        if plan.gap:
            row.append((" " * plan.gap, LABEL))
    return row


def _plain_cells(levels: Levels, inner: int, gap: int, chosen: int | None, letters: bool) -> Row:
    row: Row = []
    bounds = (
        range(len(levels) + 1)
        if gap
        else sorted(
            {
                0,
                *(np.flatnonzero(np.diff(levels)) + 1).tolist(),
                len(levels),
                *(() if chosen is None else (chosen, chosen + 1)),
            }
        )
    )
    for begin, end in pairwise(bounds):
        glyph, ink = _look(int(levels[begin]), letters)
        text = glyph * inner * (end - begin)
        if begin == chosen:
            text = "◆".center(inner) if not letters else "◆".center(inner, glyph)
            ink = ink._replace(bold=True)
        row.append((text, ink))
        if gap:
            row.append((" " * gap, LABEL))
    return row


@lru_cache(1024)
def _half_cells(
    above: bytes, below: bytes, cell: int, chosen: int | None, chosen_upper: bool
) -> tuple[tuple[str, Ink], ...]:
    """Two rows of the map in one text row; `above` and `below`: their levels. From one picture to the next many are as they were."""
    upper, lower = np.frombuffer(above, dtype=np.int64), np.frombuffer(below, dtype=np.int64)
    row: Row = []
    pairs = upper * 16 + lower
    marks = set() if chosen is None else {chosen, chosen + 1}
    bounds = sorted({0, *(np.flatnonzero(np.diff(pairs)) + 1).tolist(), len(pairs), *marks})
    for begin, end in pairwise(bounds):
        top, bottom = int(upper[begin]), int(lower[begin])
        if begin == chosen:
            own = top if chosen_upper else bottom
            row.append((("▴" if chosen_upper else "▾") * cell, _on_heat(own)._replace(bold=True)))
            continue
        row.append(_half(top, bottom, cell * (end - begin)))
    return tuple(row)


@cache
def _half(top: int, bottom: int, width: int) -> tuple[str, Ink]:
    if top == bottom:
        glyph, ink = _look(top, False)
        return glyph * width, ink
    if UNKNOWN_LEVEL in (top, bottom):  # hatched, on the colour of the one that is known
        known = max(top, bottom)
        return UNKNOWN_GLYPH * width, _on_heat(known)
    if bottom == ABSENT_LEVEL:
        return "▀" * width, Ink(f"heat-{top}")
    if top == ABSENT_LEVEL:
        return "▄" * width, Ink(f"heat-{bottom}")
    return "▀" * width, Ink(f"heat-{top}", f"heat-{bottom}")


@cache
def _on_heat(level: int) -> Ink:
    """How text on a cell of this level looks."""
    if level < 0:
        return QUIET
    return Ink("heat-text-low" if level < HEAT_LEVELS // 2 else "heat-text-high", f"heat-{level}")


@cache
def _look(level: int, letters: bool) -> tuple[str, Ink]:
    """What fills a cell, and how text in it looks."""
    if level == UNKNOWN_LEVEL:
        return UNKNOWN_GLYPH, QUIET
    if level == ABSENT_LEVEL:
        return " ", QUIET
    return (HEAT_GLYPHS[level], LABEL) if letters else (" ", _on_heat(level))


def _sums(chart: HeatMap, plan: MapLayout, group: int, head: bool) -> Row:
    if chart.sums is None or not head:
        return [(" " * plan.sums, LABEL)]
    rows = slice(group * plan.share_rows, (group + (2 if plan.half else 1)) * plan.share_rows)
    value = float(fold(chart.sums[rows], max(1, len(chart.sums[rows])), lowest=chart.low_is_worst)[0])
    flags = [flag for flag in chart.flags[rows] if flag]
    flag = 2 if chart.flags else 0
    bar = plan.sums - 2 - flag - chart.sums_digits - 1
    row: Row = [("  ", LABEL)]
    if bar > 1:
        ends = chart.sums_ends
        drawn = gauge(value, ends[1], bar) if ends is not None and np.isfinite(value) else UNKNOWN_GLYPH * bar
        row += [(drawn, Ink(flags[0]) if flags else BAR), (" ", LABEL)]
    text = chart.sums_text(value) if np.isfinite(value) else UNKNOWN
    row.append((text.rjust(plan.sums - row_width(row) - flag), LABEL))
    if flag:
        row.append((f" {SEVERITY_GLYPHS[flags[0]]}" if flags else "  ", Ink(flags[0], bold=True) if flags else LABEL))
    return row


def column_ticks(
    names: Sequence[str], cell: int, width: int, chosen: int | None = None, gap: int = 0
) -> list[tuple[int, str]]:
    """What stands above columns: (cell, text) of those names that find room, the chosen one among them.

    Of names that only differ in the number at their end, one is written out and round numbers stand for the others.
    """
    if max(map(len, names), default=0) < cell:
        return [(at * cell + (cell - gap - len(name)) // 2, name) for at, name in enumerate(names)]
    stems = ["" if not (tail := name.rpartition(".")[2]).isdigit() else name.removesuffix(tail) for name in names]
    common = max(stems, key=stems.count) if any(stems) else ""
    numbers = {
        at: int(name.removeprefix(common))
        for at, (name, stem) in enumerate(zip(names, stems, strict=True))
        if stem == common and name.removeprefix(common).isdigit()
    }
    most = len(str(max(numbers.values(), default=0)))
    stride = next((step for step in _STRIDES if step * cell > most), _STRIDES[-1])
    taken = [False] * width
    ticks: list[tuple[int, str]] = []

    def place(at: int, text: str) -> bool:
        middle = at * cell + max(0, cell - gap - len(text)) // 2
        begin = max(0, min(middle, width - len(text)))
        end = begin + len(text)
        if not text or end > width or any(taken[max(0, begin - 1) : end + 1]):
            return False
        taken[begin:end] = [True] * len(text)
        ticks.append((begin, text))
        return True

    if chosen is not None:
        place(chosen, str(numbers[chosen]) if chosen in numbers else fit(names[chosen], min(len(names[chosen]), 16)))
    written = not common
    for at, name in enumerate(names):
        if at not in numbers:
            place(at, name if len(name) <= max(cell, 12) else fit(name, max(cell - 1, 12)))
        elif numbers[at] % stride == 0 and at != chosen:
            if not written:
                written = place(at, name)
                if written:
                    continue
            place(at, str(numbers[at]))
    return sorted(ticks)


_STRIDES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def _header(chart: HeatMap, plan: MapLayout, cursor: tuple[int, int] | None) -> Row:
    shown = range(plan.first_column, plan.first_column + plan.shown_columns)
    names = [chart.columns[at * plan.share_columns] for at in shown]
    across = plan.shown_columns * plan.cell
    chosen = cursor[1] if cursor is not None and plan.blocks == 1 and 0 <= cursor[1] < plan.shown_columns else None
    if chosen is not None and chart.cursor is not None:
        names[chosen] = chart.columns[chart.cursor[1]]
    ticks = column_ticks(names, plan.cell, across, chosen, plan.gap)
    row: Row = []
    for block in range(plan.blocks):
        if block:
            row.append(("  ", LABEL))
        row.append((chart.heading[: plan.label].rjust(plan.label) + " ", QUIET))
        x = 0
        for begin, text in ticks:
            mine = chosen is not None and begin < (chosen + 1) * plan.cell and chosen * plan.cell < begin + len(text)
            row += [(" " * (begin - x), QUIET), (text, STRONG if mine else QUIET)]
            x = begin + len(text)
        row.append((" " * (across - x), QUIET))
        if plan.sums:
            flag = 2 if chart.flags else 0
            row.append((chart.sums_title.rjust(plan.sums - flag) + " " * flag, QUIET))
    return crop(row, plan.width)


def _foot(chart: HeatMap, plan: MapLayout) -> Row:
    assert chart.foot is not None
    values = fold(chart.foot, plan.share_columns, lowest=chart.low_is_worst)
    values = values[plan.first_column : plan.first_column + plan.shown_columns]
    known = chart.foot[np.isfinite(chart.foot)]
    inner = plan.cell - plan.gap
    row: Row = [(fit(chart.foot_title, plan.label).rjust(plan.label) + " ", QUIET)]
    if plan.gap:
        for value in values.tolist():
            text = chart.text(value) if np.isfinite(value) else UNKNOWN
            row.append((text.center(inner) + " " * plan.gap, LABEL))
    else:
        blocks = spark(values, len(values), low=0.0, high=float(known.max()) if known.size else 1.0)
        row.append(("".join(block * inner + " " * plan.gap for block in blocks), BAR))
    return crop(row, plan.width)


def _legend(chart: HeatMap, plan: MapLayout, levels: Levels, letters: bool) -> Row:
    """The scale, what a cell stands for, and what is out of view."""
    n, m = chart.cells.shape
    shared = [
        (share, what)
        for share, what in ((plan.share_rows, chart.what), (plan.share_columns, chart.columns_what))
        if share > 1
    ]
    notes = []
    if shared:
        notes.append(
            (
                f"a cell is the worst of {' × '.join(f'{share} {what}' for share, what in shared)}",
                f"worst of {' × '.join(str(share) for share, _ in shared)} per cell",
            )
        )
    for first, shown, share, whole, what in (
        (plan.first_row, plan.shown_rows, plan.share_rows, n, chart.what),
        (plan.first_column, plan.shown_columns, plan.share_columns, m, chart.columns_what),
    ):
        if shown * share < whole:
            part = f"{count(first + 1)}–{count(first + shown)} of {count(whole)}"
            notes.append((f"{what} {part}", part))
    if (levels == UNKNOWN_LEVEL).any():
        notes.append((f"{UNKNOWN_GLYPH} not known", f"{UNKNOWN_GLYPH} ?"))
    if plan.half:
        words = f"2 {chart.what} per row" if plan.share_rows == 1 else "two cells per row"
        notes.append((words, ""))
    key, short = (
        scale_key(chart.scale, lambda edge: f"{edge:g}", chart.unit, w, letters=letters) for w in (plan.width, 0)
    )
    for keep in range(len(notes), -1, -1):
        for brief, scale in ((False, key), (False, short), (True, short)):
            words = " · ".join(text for text in (note[brief] for note in notes[:keep]) if text)
            if row_width(scale) + len(words) + 2 <= plan.width:
                gap = " " * (plan.width - row_width(scale) - len(words))
                return crop([*scale, (gap, LABEL), (words, QUIET)], plan.width)
    return crop(short, plan.width)


class HeatGrid(Chart):
    """A map with a cursor on one of its cells."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1, 0)", show=False),
        Binding("down", "move(1, 0)", show=False),
        Binding("left", "move(0, -1)", show=False),
        Binding("right", "move(0, 1)", show=False),
        Binding("pageup", "page(-1, 0)", show=False),
        Binding("pagedown", "page(1, 0)", show=False),
        Binding("home", "move(-1000000, 0)", show=False),
        Binding("end", "move(1000000, 0)", show=False),
    ]

    class Moved(Message):
        """The cursor is to be on this row and column."""

        def __init__(self, row: int, column: int) -> None:
            super().__init__()
            self.row = row
            self.column = column

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.chart: HeatMap | None = None
        self.each = False
        self._corner = (0, 0)
        self.plan: MapLayout | None = None
        self._words = ""

    def show_map(self, chart: HeatMap, *, each: bool) -> None:
        """Draw this; `each`: every row and column has a cell of its own."""
        self.chart, self.each = chart, each
        self.redraw()

    def show_words(self, words: str) -> None:
        """Said instead of a map."""
        self.chart, self._words = None, words
        self.redraw()

    def wanted(self, width: int, height: int) -> int:
        """Rows that the map makes use of, at most `height`."""
        if self.chart is None or not self.chart.cells.size:
            return min(1, height)
        return lay_out(self.chart, width, height, letters=letters_mode(self.app), each=self.each).used

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        if self.chart is None:
            return [crop([(self._words, QUIET)], width)]
        self.plan = lay_out(self.chart, width, height, letters=letters, each=self.each, corner=self._corner)
        self._corner = (self.plan.first_row, self.plan.first_column)
        return draw_map(self.chart, self.plan, letters=letters)

    def action_move(self, down: int, across: int) -> None:
        chart, plan = self.chart, self.plan
        if chart is None or plan is None or not chart.cells.size:
            return
        row, column = chart.cursor or (0, 0)
        n, m = chart.cells.shape
        last = (_parts(n, plan.share_rows) - 1, _parts(m, plan.share_columns) - 1)
        group = (
            max(0, min(last[0], row // plan.share_rows + down)),
            max(0, min(last[1], column // plan.share_columns + across)),
        )
        self.post_message(self.Moved(*worst_of(chart, plan, group)))

    def action_page(self, down: int, across: int) -> None:
        plan = self.plan
        if plan is not None:
            self.action_move(down * plan.per_block, across * plan.shown_columns)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.action_move(0 if event.shift else 1, 1 if event.shift else 0)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.action_move(0 if event.shift else -1, -1 if event.shift else 0)

    def on_click(self, event: Click) -> None:
        at, chart, plan = event.get_content_offset(self), self.chart, self.plan
        if at is None or chart is None or plan is None or not chart.cells.size:
            return
        group = plan.group_at(at.x, at.y)
        if group is not None:
            self.post_message(self.Moved(*worst_of(chart, plan, group)))
