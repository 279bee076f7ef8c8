"""Memory inside one step: categories stacked over time, with what ran meanwhile below, on one time axis.

A column shows the highest moment of its time, and so does each half of it: however many events there are, no peak is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from textual.events import Click
from textual.message import Message

from fsdp_tui.telemetry.messages import TOTAL_CATEGORIES, Capture
from fsdp_tui.telemetry.trace import levels
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.theme import GROUP_OF, GROUPS, Group, Ink
from fsdp_tui.tui.widgets import lanes as lane
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Chart, Row, crop, flow, over
from fsdp_tui.tui.widgets.lanes import Lanes, lanes_of
from fsdp_tui.tui.widgets.lines import ticks
from fsdp_tui.tui.widgets.subcell import AREA, AREA_COLUMNS, BAR, Cells, fit_cells, stacked

Ints = NDArray[np.int64]

_BY_ROLE = {group.role: group for group in GROUPS}
STACK: tuple[Group, ...] = tuple(
    _BY_ROLE[role] for role in ("params", "optimizer", "grads", "unsharded", "activation", "cache")
)
"""From the floor up: what does not change within a step first, so that what is gathered and freed stands on a flat floor."""
ALONE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("all", ()),
    ("unsharded parameters", ("param_unsharded",)),
    ("activations", ("activation",)),
    ("temporary", ("temp",)),
    ("gradients", ("grad_shard", "grad_unsharded")),
    ("collective buffers", ("comm_buffer",)),
)
"""What may be stacked: all categories, or those of one name alone, on a scale of their own."""
UNSHARDED = 1
"""Which of ALONE the sawtooth is."""
LEAST_NS = 1_000
"""The shortest time that the axis shows."""
WIDE = 90
"""From this width on lanes have their full names."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """A capture as arrays, worked out once. A *moment* is what holds from one event on to the next; the first one is the
    beginning of the step."""

    capture: Capture
    at_ns: Ints
    """(moments,) when each begins, rising; 0 for the first, and for what happened in the same nanosecond."""
    levels: Ints
    """(moments, TOTAL_CATEGORIES) bytes."""
    groups: Ints
    """(moments, STACK) bytes."""
    total: Ints
    """(moments,) bytes."""
    event: Ints
    """(moments,) index of the capture's row, the last of its time, that it begins with; -1 for the beginning."""
    lanes: Lanes
    freed_ns: Ints
    """When gathered parameters were freed."""
    end_ns: int
    """Of the step."""
    alone: Ints
    """(ALONE, moments) bytes of what each of them shows."""
    place: Ints
    """(ALONE, moments) the place of each moment in their order: all different, the first of equal ones the highest."""

    @property
    def peak(self) -> int:
        """The highest moment, the first of equal ones."""
        return int(self.total.argmax())

    def moment(self, ns: float) -> int:
        """The moment at a time."""
        return max(0, int(np.searchsorted(self.at_ns, ns, side="right")) - 1)

    def highest(self, edges: Ints, alone: int = 0) -> Ints:
        """The highest moment between each two neighbours of `edges`, the first of equal ones, by one of ALONE."""
        place = self.place[alone]
        first = np.maximum(0, np.searchsorted(self.at_ns, edges[:-1], side="right") - 1)
        last = np.maximum(first, np.searchsorted(self.at_ns, edges[1:], side="left") - 1)
        # Pairs of bounds; of the results only those between the bounds of one pair count. The last bound needs an end.
        bounds = np.column_stack([first, last + 1]).ravel()
        tops = np.maximum.reduceat(np.append(place, -1), bounds)[::2]
        by_place = np.empty(len(place), dtype=np.int64)
        by_place[place] = np.arange(len(place))
        found: Ints = by_place[tops]
        return found


def timeline_of(capture: Capture) -> Timeline:
    """Everything about a capture with a result that does not depend on how it is shown."""
    rows = levels(capture)
    count = len(TOTAL_CATEGORIES)
    base = np.array([[value or 0 for value in capture.base[:count]] or [0] * count], dtype=np.int64)
    at = np.maximum.accumulate(np.asarray(capture.at_ns, dtype=np.int64)) if capture.at_ns else np.zeros(0, np.int64)
    # Rows of one time are one event (a change of category is two, a coalesced capture has one per category): what holds
    # between them was never there.
    kept = np.flatnonzero(np.append(np.diff(at) > 0, True)) if len(at) else np.zeros(0, np.int64)
    whole = np.maximum(0, np.concatenate([base, rows[kept]]))
    at_ns = np.concatenate([[0], at[kept]])
    groups = np.stack(
        [
            whole[:, [TOTAL_CATEGORIES.index(c) for c in g.categories if c in TOTAL_CATEGORIES]].sum(axis=1)
            for g in STACK
        ],
        axis=1,
    )
    total = whole.sum(axis=1)
    alone = np.stack(
        [whole[:, [TOTAL_CATEGORIES.index(c) for c in names or TOTAL_CATEGORIES]].sum(axis=1) for _, names in ALONE]
    )
    lanes = lanes_of(capture)
    ends = [capture.step_ns, int(at_ns[-1]), *(int(calls.end_ns.max()) for calls in lanes.calls.values())]
    return Timeline(
        capture=capture,
        at_ns=at_ns,
        levels=whole,
        groups=groups,
        total=total,
        event=np.concatenate([[-1], kept]),
        lanes=lanes,
        freed_ns=lane.freed_ns(at_ns, whole),
        end_ns=max(LEAST_NS, max(ends) + 1),
        alone=alone,
        place=np.stack([_places(values) for values in alone]),
    )


def _places(values: Ints) -> Ints:
    order = np.lexsort((-np.arange(len(values)), values))
    places = np.empty(len(values), dtype=np.int64)
    places[order] = np.arange(len(values))
    return places


# What is shown of it


@dataclass(frozen=True)
class Look:
    """The part of the step that the axis shows, where the cursor is, and what is stacked."""

    begin_ns: int
    end_ns: int
    cursor_ns: int
    alone: int = 0
    """Which of ALONE is stacked."""

    def edges(self, columns: int) -> Ints:
        """Bounds of so many columns, equal to the nanosecond."""
        found: Ints = self.begin_ns + (self.end_ns - self.begin_ns) * np.arange(columns + 1) // columns
        return found

    def column(self, ns: float, columns: int) -> int:
        """The column that a time is in; -1 or `columns` outside."""
        return int(np.searchsorted(self.edges(columns), ns, side="right")) - 1


def whole_step(timeline: Timeline, alone: int = 0) -> Look:
    """All of the step, with the cursor at its peak."""
    return Look(0, timeline.end_ns, int(timeline.at_ns[timeline.peak]), alone)


def next_alone(timeline: Timeline, look: Look) -> Look:
    """The next of ALONE that there is anything of."""
    ahead = [*range(look.alone + 1, len(ALONE)), 0]
    return replace(look, alone=next(at for at in ahead if not at or timeline.alone[at].max() > 0))


def at_time(timeline: Timeline, look: Look, ns: float) -> Look:
    """The cursor at a time, and the axis moved as far as it takes to show it."""
    cursor = max(0, min(timeline.end_ns - 1, int(ns)))
    move = min(0, cursor - look.begin_ns) or max(0, cursor + 1 - look.end_ns)
    return replace(look, begin_ns=look.begin_ns + move, end_ns=look.end_ns + move, cursor_ns=cursor)


def at_peak(timeline: Timeline, look: Look) -> Look:
    """The cursor at the highest moment of what is stacked."""
    return at_time(timeline, look, int(timeline.at_ns[timeline.alone[look.alone].argmax()]))


def at_column(timeline: Timeline, look: Look, column: int, columns: int) -> Look:
    """The cursor at the highest moment of a column; one beyond the ends moves the axis."""
    width = (look.end_ns - look.begin_ns) / columns
    shift = round(width * (min(0, column) or max(0, column - columns + 1)))
    shift = max(-look.begin_ns, min(timeline.end_ns - look.end_ns, shift))
    look = replace(look, begin_ns=look.begin_ns + shift, end_ns=look.end_ns + shift)
    column = max(0, min(columns - 1, column))
    edges = look.edges(columns)[column : column + 2]
    top = int(timeline.at_ns[timeline.highest(edges, look.alone)[0]])
    return replace(look, cursor_ns=max(top, int(edges[0])))


def by_event(timeline: Timeline, look: Look, by: int) -> Look:
    """The cursor at the next (1) or previous (-1) time at which memory changes."""
    times = timeline.at_ns
    if by > 0:
        at = min(len(times) - 1, int(np.searchsorted(times, look.cursor_ns, side="right")))
        return at_time(timeline, look, max(look.cursor_ns, int(times[at])))
    at = max(0, int(np.searchsorted(times, look.cursor_ns, side="left")) - 1)
    return at_time(timeline, look, int(times[at]))


def time_zoomed(timeline: Timeline, look: Look, factor: float) -> Look:
    """The axis `factor` times as fine, the cursor where it was on it."""
    before = look.end_ns - look.begin_ns
    span = max(LEAST_NS, min(timeline.end_ns, round(before / factor)))
    begin = round(look.cursor_ns - (look.cursor_ns - look.begin_ns) * span / before)
    begin = max(0, min(timeline.end_ns - span, begin))
    return replace(look, begin_ns=begin, end_ns=begin + span)


def unzoomed(timeline: Timeline, look: Look) -> Look:
    """All of the step."""
    return replace(look, begin_ns=0, end_ns=timeline.end_ns)


# Drawing


@dataclass(frozen=True)
class Plan:
    """Where everything goes."""

    gutter: int
    """Cells at the left for names and numbers, with the line of the axis behind them; 0: there is no room for any."""
    columns: int
    flag: bool
    """A row above the stack that points at the peak."""
    stack: int
    """Rows."""
    axis: int
    """0; 1: a line with numbers in it; 2: numbers below it."""
    lanes: tuple[str, ...]
    readout: bool


_FULL = "█" + "".join(
    glyph
    for blocks in (AREA, BAR)
    for glyph, share in zip(blocks.glyphs, blocks.painted.mean(axis=1), strict=True)
    if share > 0.5
)
"""Glyphs that paint more than half of their cell."""
LANES = {
    "phase": ("phase", "phase"),
    "all_gather": ("all-gather", "AG"),
    "freed": ("reshard", "free"),
    "unsharded": ("unsharded", "unsh"),
    "reduce_scatter": ("reduce-scatter", "RS"),
    "all_reduce": ("all-reduce", "AR"),
}
"""Lane -> its names where there is room and where there is little, in the order of the screen."""
_FIRST = ("phase", "all_gather", "reduce_scatter", "all_reduce", "freed", "unsharded")
"""What is kept where not all lanes have room."""
_LANE_ROLES = {"all_gather": "gather", "reduce_scatter": "reduce", "all_reduce": "reduce"}


def plan_timeline(timeline: Timeline, width: int, height: int) -> Plan:
    """The stack gets what is left, and never less than the lanes."""
    gutter = 0 if width < 24 else (14 if width >= WIDE else 5) + 1
    readout = height >= 3
    axis = 2 if height >= 16 else 1 if height >= 5 else 0
    there = _lanes_there(timeline)
    room = height - readout - axis
    lanes = there[: max(0, (room - 2) // 2)]
    rest = room - len(lanes)
    flag = rest >= 8
    return Plan(
        gutter,
        max(1, width - gutter),
        flag,
        max(1, rest - flag),
        axis,
        tuple(name for name in LANES if name in lanes),
        readout,
    )


def left_out(timeline: Timeline, width: int, height: int) -> list[str]:
    """The lanes that find no room, by name."""
    shown = plan_timeline(timeline, width, height).lanes
    return [LANES[name][0] for name in _lanes_there(timeline) if name not in shown]


def _lanes_there(timeline: Timeline) -> list[str]:
    return [name for name in _FIRST if _has_lane(timeline, name)]


def _has_lane(timeline: Timeline, name: str) -> bool:
    if name == "phase":
        return bool(timeline.lanes.phases)
    if name == "freed":
        return bool(len(timeline.freed_ns))
    if name == "unsharded":
        return bool(timeline.alone[UNSHARDED].max())
    return name in timeline.lanes.calls


def draw_timeline(
    timeline: Timeline, look: Look, width: int, height: int, *, letters: bool = False, picture: Sequence[Row] = ()
) -> list[Row]:
    """Stack, axis, lanes and the figures at the cursor in at most `height` rows of `width` cells.

    `picture` is what `draw_picture` gave for the same arguments but for the cursor, if that is at hand.
    """
    if width < 1 or height < 1:
        return []
    plan = plan_timeline(timeline, width, height)
    rows = list(picture or draw_picture(timeline, look, width, height, letters=letters))
    rows = _with_cursor(rows, look, plan, letters)
    above = len(rows) - len(plan.lanes)
    rows[above:above] = _axis(look, plan)
    if plan.readout:
        rows.append(readout(timeline, look, width))
    return [crop(row, width) for row in rows]


def draw_picture(timeline: Timeline, look: Look, width: int, height: int, *, letters: bool = False) -> list[Row]:
    """What the cursor does not change: the stack and the lanes."""
    plan = plan_timeline(timeline, width, height)
    edges = look.edges(plan.columns)
    halves = look.edges(plan.columns * AREA_COLUMNS)
    tops = timeline.highest(halves, look.alone)
    if look.alone:
        shown = np.zeros((len(tops), len(STACK)))
        shown[:, _band(look.alone)] = timeline.alone[look.alone][tops]
    else:
        shown = timeline.groups[tops].astype(np.float64)
    scale = scale_bytes(timeline, look)
    unit = fmt.scale_for([scale])
    marks = _y_marks(scale, unit, plan.stack)
    if plan.gutter and max(map(len, marks.values()), default=0) >= plan.gutter:
        marks = {}
    cells = fit_cells(stacked(shown, scale, plan.stack), AREA, above=len(STACK))
    rows: list[Row] = []
    if plan.flag:
        rows.append([*_gutter("", plan, " "), *_flag(timeline, look, plan)])
    for y in range(plan.stack):
        line = "┤" if y in marks else "│"
        rows.append([*_gutter(marks.get(y, ""), plan, line), *_stack_row(cells, y, y in marks, letters)])
    for name in plan.lanes:
        label = LANES[name][0 if plan.gutter > 10 else 1]
        rows.append([*_gutter(label, plan, " "), *_lane(timeline, look, plan, name, edges, letters)])
    return rows


def scale_bytes(timeline: Timeline, look: Look) -> float:
    """What the upper edge of the stack stands for: the highest moment of the whole step, whatever part of it is shown."""
    return float(timeline.alone[look.alone].max()) or 1.0


def _band(alone: int) -> int:
    """Whose colour it has, of STACK."""
    return STACK.index(GROUP_OF[ALONE[alone][1][0]])


def _gutter(text: str, plan: Plan, line: str) -> Row:
    if not plan.gutter:
        return []
    return [(text.rjust(plan.gutter - 1)[: plan.gutter - 1], QUIET), (line, Ink("frame"))]


def _y_marks(scale: float, unit: fmt.Unit, rows: int) -> dict[int, str]:
    """Row -> label; each stands in the row whose middle is nearest to its value."""
    values = ticks(0.0, scale / unit.size, max(2, min(8, (rows + 1) // 3)))
    marks: dict[int, str] = {}
    for value, text in zip(values, fmt.axis(values), strict=True):
        from_below = min(rows - 1, max(0, round(value * unit.size / scale * rows - 0.5)))
        marks.setdefault(rows - 1 - from_below, text)
    return marks


def _stack_row(cells: Cells, y: int, marked: bool, letters: bool) -> Row:
    above = len(STACK)
    if letters:
        return _joined(cells.most[y], lambda value: _letter(value, marked))
    code = ((cells.glyph[y] + 1) * 16 + cells.first[y]) * 16 + cells.then[y]

    def piece(value: int) -> tuple[str, Ink]:
        glyph, first, then = (value >> 8) - 1, value >> 4 & 15, value & 15
        if glyph < 0:
            return _letter(above, marked) if first == above else (" ", Ink(STACK[first].role, STACK[first].role))
        return AREA.glyphs[glyph], Ink(STACK[first].role, "" if then == above else STACK[then].role)

    return _joined(code, piece)


def _letter(value: int, marked: bool) -> tuple[str, Ink]:
    if value == len(STACK):
        return ("┈" if marked else " ", Ink("frame"))
    return STACK[value].key, Ink(STACK[value].role)


def _joined(codes: Ints, piece: Any) -> Row:
    """Runs of equal codes as pieces of text."""
    bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    row: Row = []
    for begin, end in pairwise(bounds):
        text, ink = piece(int(codes[begin]))
        row.append((text * (end - begin), ink))
    return row


def _flag(timeline: Timeline, look: Look, plan: Plan) -> Row:
    """Points at the highest moment, or to where it is outside of what is shown."""
    values = timeline.alone[look.alone]
    top = int(values.argmax())
    at_ns = int(timeline.at_ns[top])
    column = look.column(at_ns, plan.columns)
    text = f"peak {fmt.size(int(values[top]))}"
    row: Row = [(" " * plan.columns, LABEL)]
    if column < 0:
        return over(row, 0, f"◂ {text} at {fmt.duration(at_ns)}"[: plan.columns], QUIET)
    if column >= plan.columns:
        words = f"{text} at {fmt.duration(at_ns)} ▸"[-plan.columns :]
        return over(row, plan.columns - len(words), words, QUIET)
    if column + 2 + len(text) <= plan.columns:
        row = over(row, column + 2, text, QUIET)
    elif column >= len(text) + 1:
        row = over(row, column - len(text) - 1, text, QUIET)
    return over(row, column, "▼", Ink("peak", bold=True))


def _axis(look: Look, plan: Plan) -> list[Row]:
    """The line of time with its numbers and the cursor's, before which those in its way give way."""
    if not plan.axis:
        return []
    rule: Row = [("─" * plan.columns, Ink("frame"))]
    texts: Row = [(" " * plan.columns, QUIET)]
    here = look.column(look.cursor_ns, plan.columns)
    taken = range(0)
    if 0 <= here < plan.columns:
        text = f" {fmt.duration(look.cursor_ns)} "
        begin = max(0, min(here - len(text) // 2, plan.columns - len(text)))
        taken = range(begin, begin + len(text))
        if plan.axis == 2:
            rule = over(rule, here, "▲", Ink("peak", bold=True))
            texts = over(texts, begin, text, STRONG)
        else:
            rule = over(rule, begin, text, STRONG)
    unit = fmt.scale_for([look.end_ns], fmt.NANOSECONDS)
    values = ticks(look.begin_ns / unit.size, look.end_ns / unit.size, max(2, plan.columns // 12))
    ends = 0
    for value, text in zip(values, fmt.axis(values), strict=True):
        column = min(plan.columns - 1, max(0, look.column(value * unit.size, plan.columns)))
        if plan.axis == 2 and column != here:
            rule = over(rule, column, "┬", Ink("frame"))
        text = text if ends else f"{text} {unit.name}"
        begin = max(0, min(column - len(text) // 2, plan.columns - len(text)))
        if begin < ends or (begin < taken.stop and begin + len(text) > taken.start):
            continue
        if plan.axis == 2:
            texts = over(texts, begin, text, QUIET)
        else:
            rule = over(rule, begin, text, QUIET)
        ends = begin + len(text) + 2
    rows = [[*_gutter("", plan, "└"), *rule], [*_gutter("", plan, " "), *texts]]
    return rows[: plan.axis]


def _lane(timeline: Timeline, look: Look, plan: Plan, name: str, edges: Ints, letters: bool) -> Row:
    if name == "phase":
        return lane.phase_lane(timeline.lanes, edges, letters=letters)
    if name == "freed":
        return lane.mark_lane(timeline.freed_ns, edges, "×", Ink("unsharded", bold=True))
    if name == "unsharded":
        return _profile(timeline, look, plan, letters)
    return lane.call_lane(timeline.lanes.calls[name], edges, _LANE_ROLES[name], letters=letters)


def _profile(timeline: Timeline, look: Look, plan: Plan, letters: bool) -> Row:
    """What is gathered, on its own scale: the sawtooth, however thin it is in the stack."""
    values = timeline.alone[UNSHARDED]
    tops = timeline.highest(look.edges(plan.columns * AREA_COLUMNS), UNSHARDED)
    cells = fit_cells(stacked(values[tops].astype(np.float64)[:, None], float(values.max()), 1), AREA)
    code = (cells.glyph[0] + 1) * 2 + cells.first[0]

    def piece(value: int) -> tuple[str, Ink]:
        glyph, first = (value >> 1) - 1, value & 1
        return (AREA.glyphs[glyph] if glyph >= 0 else " " if first else "█"), Ink("unsharded")

    return _joined(code, piece)


def _with_cursor(rows: list[Row], look: Look, plan: Plan, letters: bool) -> list[Row]:
    """The cursor's line through stack and lanes."""
    column = look.column(look.cursor_ns, plan.columns)
    if not 0 <= column < plan.columns:
        return rows
    x = plan.gutter + column
    return [
        over(row, x, "│", Ink("peak", "" if letters else _behind(row, x))) if y >= plan.flag else row
        for y, row in enumerate(rows)
    ]


def _behind(row: Row, x: int) -> str:
    """The role that fills most of a cell."""
    for text, ink in row:
        if x < len(text):
            return ink.fg if text[x] in _FULL else ink.bg
        x -= len(text)
    return ""


def readout(timeline: Timeline, look: Look, width: int) -> Row:
    """The figures at the cursor, which are also what letters and colours mean."""
    moment = timeline.moment(look.cursor_ns)
    unit = fmt.scale_for([float(timeline.total.max())])
    if look.alone:
        name, group = ALONE[look.alone][0], STACK[_band(look.alone)]
        alone: Row = [(group.key, Ink(group.role, bold=True)), (f" {name} ", QUIET)]
        alone.append((fmt.size(int(timeline.alone[look.alone][moment])), STRONG))
        row, _ = flow([alone, [(f"of {fmt.size(int(timeline.total[moment]))}", QUIET)]], width, gap=" ")
        return crop(row or [alone[2]], width)
    held = [fmt.in_unit(int(value), unit) for value in timeline.groups[moment]]
    whole: Row = [("= ", QUIET), (f"{fmt.in_unit(int(timeline.total[moment]), unit)} {unit.name}", STRONG)]
    for names in ("label", "short", ""):
        pieces: list[Row] = []
        for group, value in zip(STACK, held, strict=True):
            name = f" {getattr(group, names)}" if names else ""
            pieces.append([(group.key, Ink(group.role, bold=True)), (f"{name} ", QUIET), (value, LABEL)])
        for gap in ("   ", "  ", " ") if names else ("  ", " "):
            row, shown = flow([*pieces, whole], width, gap=gap)
            if shown == len(pieces) + 1:
                return crop(row, width)
    row, _ = flow([whole, *pieces], width, gap=" ")
    return crop(row, width)


class StepTimeline(Chart):
    """The timeline of a capture, or words where there is none."""

    can_focus = True

    class Clicked(Message):
        """A column was clicked."""

        def __init__(self, column: int) -> None:
            super().__init__()
            self.column = column

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._timeline: Timeline | None = None
        self._look = Look(0, LEAST_NS, 0)
        self._words: Sequence[tuple[str, Ink]] = ()
        self._pictured: tuple[Any, ...] = ()
        self._picture: list[Row] = []

    def show_timeline(self, timeline: Timeline, look: Look) -> None:
        """Draw this."""
        self._timeline, self._look = timeline, look
        self.redraw()

    def show_words(self, words: Sequence[tuple[str, Ink]]) -> None:
        """Say this instead, a paragraph each."""
        self._timeline, self._words = None, words
        self.redraw()

    @property
    def columns(self) -> int:
        """Columns that the time axis has now."""
        if self._timeline is None or not self.size.area:
            return 1
        return plan_timeline(self._timeline, *self.size).columns

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        if self._timeline is None:
            from fsdp_tui.tui.widgets.table import paragraph

            rows: list[Row] = []
            for text, ink in self._words:
                rows += [*paragraph(text, width, ink), crop([], width)]
            return rows[:height]
        look = replace(self._look, cursor_ns=0)
        pictured = (self._timeline, look, width, height, letters)
        if pictured != self._pictured:
            self._picture = draw_picture(self._timeline, look, width, height, letters=letters)
            self._pictured = pictured
        return draw_timeline(self._timeline, self._look, width, height, letters=letters, picture=self._picture)

    def on_click(self, event: Click) -> None:
        at = event.get_content_offset(self)
        if at is None or self._timeline is None:
            return
        plan = plan_timeline(self._timeline, *self.size)
        if at.x >= plan.gutter:
            self.post_message(self.Clicked(at.x - plan.gutter))
