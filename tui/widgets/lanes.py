"""What happened beside memory in a captured step: phases, collectives in flight, parameters that were freed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry.messages import CATEGORIES, COLLECTIVES, PHASES, Capture
from fsdp_tui.tui.format import duration
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.chart import LABEL, Row, over
from fsdp_tui.tui.widgets.phases import PHASE_LOOKS
from fsdp_tui.tui.widgets.subcell import BAR, BAR_COLUMNS, fit_cells

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

COMMUNICATION = "c10d"
"""Namespace of torch's collectives: the operators that are no work of the device."""
SHORTEST_NAME = min(len(name) for name in PHASES) + 6
"""Cells that the name of a phase takes, with something of its line on both sides."""
WAITING = 0.5
"""From this share of a cell on it is drawn as waiting."""


class Covered:
    """How much of a time is covered by intervals that may overlap."""

    def __init__(self, begins: Sequence[int] | Ints, ends: Sequence[int] | Ints) -> None:
        begin, end = np.asarray(begins, dtype=np.float64), np.asarray(ends, dtype=np.float64)
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], np.maximum.accumulate(end[order]) if len(begin) else end
        # An interval that begins inside those before it adds only what reaches beyond them.
        begin = np.maximum(begin, np.concatenate([[-np.inf], end[:-1]])) if len(begin) else begin
        length = np.maximum(0.0, end - begin)
        self._at = np.column_stack([begin, begin + length]).ravel()
        sums = np.cumsum(length)
        self._sum = np.column_stack([sums - length, sums]).ravel()

    def within(self, edges: Ints | Floats) -> Floats:
        """Covered time between each two neighbours of `edges`."""
        if not len(self._at):
            return np.zeros(len(edges) - 1)
        whole: Floats = np.diff(np.interp(edges, self._at, self._sum))
        return whole


@dataclass(frozen=True, eq=False)
class Calls:
    """The collectives of one kind, in the order in which they were issued."""

    begin_ns: Ints
    end_ns: Ints
    """-1: not known."""
    module: tuple[str, ...]
    in_flight: Covered


@dataclass(frozen=True, eq=False)
class Lanes:
    """The intervals of one capture."""

    phases: tuple[tuple[str, int, int], ...]
    """Name, begin and end of each, as far as operators tell."""
    phase_bounds: Floats
    """(2, phases): their begins and ends."""
    covered: tuple[tuple[str, Covered], ...]
    """Of each phase, all its parts."""
    calls: dict[str, Calls]
    """By the names of COLLECTIVES, those that happened."""
    busy: Covered
    """An operator other than a collective runs."""
    busy_or_gather: Covered
    busy_or_any: Covered


def lanes_of(capture: Capture) -> Lanes:
    """The intervals of a capture, worked out once."""
    communication = np.array([name.startswith(COMMUNICATION) for name in capture.op_names], dtype=bool)
    op = np.asarray(capture.op, dtype=np.int64)
    begin = np.asarray(capture.op_at_ns, dtype=np.int64)
    end = begin + np.asarray(capture.op_ns, dtype=np.int64)
    working = ~communication[op] if len(op) else np.zeros(0, dtype=bool)
    calls: dict[str, Calls] = {}
    kind = np.asarray(capture.call_kind, dtype=np.int64)
    at, ns = np.asarray(capture.call_at_ns, dtype=np.int64), np.asarray(capture.call_ns, dtype=np.int64)
    for number, name in enumerate(COLLECTIVES):
        mine = np.flatnonzero(kind == number)
        if not len(mine):
            continue
        known = mine[ns[mine] >= 0]
        calls[name] = Calls(
            at[mine],
            np.where(ns[mine] >= 0, at[mine] + ns[mine], -1),
            tuple(capture.modules[capture.call_module[i]] for i in mine),
            Covered(at[known], at[known] + np.maximum(1, ns[known])),
        )
    phases = tuple(_phases(capture, begin, end))
    timed = ns >= 0
    gather = timed & (kind == COLLECTIVES.index("all_gather"))

    def joined(chosen: NDArray[np.bool_]) -> Covered:
        return Covered(np.concatenate([begin[working], at[chosen]]), np.concatenate([end[working], (at + ns)[chosen]]))

    return Lanes(
        phases=phases,
        phase_bounds=np.array([(begin, end) for _, begin, end in phases], dtype=np.float64).reshape(-1, 2).T,
        covered=tuple(
            (name, Covered([b for n, b, _ in phases if n == name], [e for n, _, e in phases if n == name]))
            for name in PHASES
        ),
        calls=calls,
        busy=Covered(begin[working], end[working]),
        busy_or_gather=joined(gather),
        busy_or_any=joined(timed),
    )


def _phases(capture: Capture, begin: Ints, end: Ints) -> Iterable[tuple[str, int, int]]:
    """Neighbouring operators and allocations of one phase as one interval."""
    rows = np.asarray(capture.at_ns, dtype=np.int64)
    at = np.concatenate([begin, rows])
    until = np.concatenate([end, rows])
    phase = np.concatenate([np.asarray(capture.op_phase, np.int64), np.asarray(capture.phase, np.int64)])
    if not len(at):
        return
    order = np.argsort(at, kind="stable")
    at, until, phase = at[order], np.maximum.accumulate(until[order]), phase[order]
    cuts = [0, *(np.flatnonzero(np.diff(phase)) + 1).tolist(), len(at)]
    for first, after in pairwise(cuts):
        yield PHASES[int(phase[first])], int(at[first]), int(until[after - 1])


def phase_lane(lanes: Lanes, edges: Ints, *, letters: bool) -> Row:
    """A cell per two neighbours of `edges`: its phase, or that no operator ran while a collective was in flight."""
    cells = len(edges) - 1
    width = np.diff(edges)
    shares = np.array([covered.within(edges) for _, covered in lanes.covered])
    best, share = shares.argmax(axis=0), shares.max(axis=0)
    gather, reduce = waiting(lanes, edges)
    row: Row = []
    for at in range(cells):
        if gather[at] + reduce[at] > WAITING * width[at]:
            piece = ("╱", Ink("gather", bold=True)) if gather[at] >= reduce[at] else ("╲", Ink("reduce", bold=True))
        elif share[at] <= 0:
            piece = (" ", LABEL)
        else:
            look = PHASE_LOOKS[lanes.covered[int(best[at])][0]]
            glyph = "·" if look.key == "·" else look.key if letters else "━"
            piece = (glyph, Ink("free-dot" if look.key == "·" else look.role, bold=True))
        if row and row[-1][1] == piece[1]:
            row[-1] = (row[-1][0] + piece[0], piece[1])
        else:
            row.append(piece)
    return _named(row, lanes, edges)


def _named(row: Row, lanes: Lanes, edges: Ints) -> Row:
    """Names and durations of the phases that are long enough for them, in their middle."""
    cells = np.interp(lanes.phase_bounds, edges, np.arange(len(edges)))
    for at in np.flatnonzero(cells[1] - cells[0] >= SHORTEST_NAME).tolist():
        name, begin, end = lanes.phases[at]
        if name == "rest":
            continue
        left, right = cells[:, at]
        whole = begin >= edges[0] and end <= edges[-1]
        for text in (f" {name} {duration(end - begin)} " if whole else f" {name} ", f" {name} "):
            if len(text) + 4 <= right - left:
                row = over(row, int(left + (right - left - len(text)) / 2), text, LABEL)
                break
    return row


def waiting(lanes: Lanes, edges: Ints) -> tuple[Floats, Floats]:
    """Time in each cell in which no operator runs and an all-gather is in flight, or else a reduction is."""
    busy, with_gather, with_any = (part.within(edges) for part in (lanes.busy, lanes.busy_or_gather, lanes.busy_or_any))
    return np.maximum(0.0, with_gather - busy), np.maximum(0.0, with_any - with_gather)


def call_lane(calls: Calls, edges: Ints, role: str, *, letters: bool) -> Row:
    """Bars while calls are in flight; `┆` where one begins whose duration is not known."""
    cells = len(edges) - 1
    fine = np.interp(np.arange(cells * BAR_COLUMNS + 1) / BAR_COLUMNS, np.arange(cells + 1), edges)
    covered = calls.in_flight.within(fine).reshape(cells, BAR_COLUMNS)
    on = covered > np.diff(fine).reshape(cells, BAR_COLUMNS) / 2
    # A call too short for an eighth of a cell is there all the same.
    timed = (calls.end_ns >= 0) & (calls.begin_ns >= edges[0]) & (calls.begin_ns < edges[-1])
    first = np.searchsorted(fine, calls.begin_ns[timed], side="right") - 1
    after = np.searchsorted(fine, calls.end_ns[timed], side="left")
    drawn = np.concatenate([[0], np.cumsum(on)])
    unseen = drawn[np.clip(after, 0, on.size)] == drawn[first]
    on.ravel()[first[unseen]] = True
    found = fit_cells(np.where(on, 0, 1).astype(np.int64)[None], BAR)
    ink = Ink(role)
    text = ""
    for cell in range(cells):
        there = bool(on[cell].any())
        if letters or not there:
            text += "━" if there else " "
        elif (glyph := int(found.glyph[0, cell])) >= 0:
            text += BAR.glyphs[glyph]
        elif found.first[0, cell]:  # too short for a glyph in its place
            text += "▏" if on[cell, : BAR_COLUMNS // 2].any() else "▕"
        else:
            text += "█"
    row: Row = [(text, ink)]
    unknown = calls.begin_ns[calls.end_ns < 0]
    for cell in _cells_of(unknown, edges):
        if text[cell] == " ":
            row = over(row, cell, "┆", Ink(role, bold=True))
    return row


def mark_lane(at_ns: Ints, edges: Ints, glyph: str, ink: Ink) -> Row:
    """A glyph in each cell in which something happens."""
    cells = len(edges) - 1
    text = [" "] * cells
    for cell in _cells_of(at_ns, edges):
        text[cell] = glyph
    return [("".join(text), ink)]


def _cells_of(at_ns: Ints, edges: Ints) -> list[int]:
    inside = at_ns[(at_ns >= edges[0]) & (at_ns < edges[-1])]
    found: list[int] = np.unique(np.searchsorted(edges, inside, side="right") - 1).tolist()
    return found


def freed_ns(at_ns: Ints, levels: Ints) -> Ints:
    """When gathered parameters are freed.

    Args:
        at_ns: (n,) times of the rows of `levels`.
        levels: (n, categories of the total).
    """
    gathered = levels[:, CATEGORIES.index("param_unsharded")]
    found: Ints = at_ns[1:][np.diff(gathered) < 0]
    return found


def in_flight(lanes: Lanes, ns: int) -> list[tuple[str, str]]:
    """Kind and module of the collectives that are in flight at a time."""
    return [
        (name, calls.module[at])
        for name, calls in lanes.calls.items()
        for at in np.flatnonzero((calls.begin_ns <= ns) & (calls.end_ns > ns)).tolist()
    ]
