"""Collectives as a map: which ranks and units its rows and columns are, its scale and words, and who stands out in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry.bandwidth import note
from fsdp_tui.telemetry.grid import METRICS, CallFigures, Figures, Metric, Place, Selection
from fsdp_tui.telemetry.messages import COLLECTIVES, COMM_PHASES
from fsdp_tui.telemetry.view import BUCKETS, RunView
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.filters import UnitTest
from fsdp_tui.tui.theme import SEVERITY_GLYPHS, Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Row, crop, flow, wrap
from fsdp_tui.tui.widgets.heat import heat_scale
from fsdp_tui.tui.widgets.heatmap import BAR, HeatMap, fold
from fsdp_tui.tui.widgets.spark import gauge
from fsdp_tui.tui.widgets.table import Cell, TableColumn, paragraph
from fsdp_tui.tui.widgets.traffic import KINDS, no_collectives

Floats = NDArray[np.float64]

GROUPS: Final = ("rank", "node", "unit")
"""What the rows are. Of a node a cell is the worst rank; with units as rows the ranks are the columns."""
ORDERS: Final = ("rank", "worst first")
NO_UNIT_WORDS = "no unit"
UNKNOWN_HOST = "host not known"
ROLES = {kind: role for kind, (_, _, role) in enumerate(KINDS)}
WORDS = {kind: words for kind, (_, words, _) in enumerate(KINDS)}
NOISE = 1e-3
"""Of a step: a cell below this does not shine, however dark the others are."""
STANDS_OUT = 0.1
"""Of the worst excess over the median rank, from which on a rank is gone to as a straggler too."""


SHORT = 3
"""Rows up to which there is only who is waited for, and a line of figures."""
SHORT_PHASES: Final = ("fwd", "bwd", "other")
"""As COMM_PHASES."""


class MetricWords(NamedTuple):
    title: str
    short: str
    of_rank: str


METRIC_WORDS: Final[dict[Metric, MetricWords]] = {
    "lateness": MetricWords("lateness: how long the others wait for a rank", "lateness", "late"),
    "exposed": MetricWords("exposed: how long compute waits for it", "exposed", "exposed"),
    "duration": MetricWords("duration of the calls", "duration", "takes"),
    "bandwidth": MetricWords("bus bandwidth", "bandwidth", "bus"),
}


@dataclass(frozen=True)
class Choice:
    """What of the collectives is shown, and how."""

    metric: Metric = METRICS[0]
    kind: int | None = None
    """Index into COLLECTIVES; None: all together."""
    phase: int | None = None
    """Index into COMM_PHASES, forward or backward; None: all of the step."""
    group: str = GROUPS[0]
    order: str = ORDERS[0]

    @property
    def selection(self) -> Selection:
        every = Selection()
        return Selection(
            every.kinds if self.kind is None else (self.kind,), every.phases if self.phase is None else (self.phase,)
        )

    @property
    def calls_words(self) -> str:
        """Which calls count: "collectives", "all-gather in forward"."""
        kinds = "collectives" if self.kind is None else WORDS[self.kind]
        return kinds if self.phase is None else f"{kinds} in {COMM_PHASES[self.phase]}"


class Spot(NamedTuple):
    """A cell: a rank in a place."""

    rank: int
    place: int
    """Index into `CommGrid.places`."""


@dataclass(frozen=True, eq=False)
class CommMap:
    """A map, and what its rows and columns are."""

    chart: HeatMap
    figures: Figures
    rows: Sequence[Sequence[int]]
    """Ranks of each row, or the place of each where units are the rows."""
    columns: Sequence[int]
    """Places, or ranks."""
    flipped: bool
    choice: Choice
    ranks: Sequence[int]
    places: Sequence[int]

    def title(self, width: int) -> str:
        """What the numbers are, in as many words as fit."""
        words, steps = METRIC_WORDS[self.choice.metric], self.figures.steps
        if not self.chart.cells.size:
            return f"{words.short} · {self.choice.calls_words}"
        per = self.chart.unit if self.figures.worst_is_low else f"{self.chart.unit} per step"
        over = [f"median of {steps} steps"] if steps > 1 else []
        tries = [
            [words.title, self.choice.calls_words, per, *over],
            [words.short, self.choice.calls_words, per, *over],
            [words.short, self.choice.calls_words, per],
        ]
        return next((text for parts in tries if len(text := " · ".join(parts)) <= width), f"{words.short} · {per}")

    def with_cursor(self, spot: Spot | None) -> CommMap:
        """The same map with its cursor there, or without one."""
        cursor = self.cell_of(spot) if spot is not None else None
        return replace(self, chart=replace(self.chart, cursor=cursor))

    def spot(self, row: int, column: int) -> Spot:
        """The rank and place of a cell; of a node its worst rank there."""
        if self.flipped:
            return Spot(self.columns[column], self.rows[row][0])
        place = self.columns[column]
        return Spot(worst_rank(self.figures, self.rows[row], place), place)

    def cell_of(self, spot: Spot) -> tuple[int, int] | None:
        """Where a rank and place are in the map; None: not in it."""
        if self.flipped:
            row = next((at for at, places in enumerate(self.rows) if places[0] == spot.place), None)
            column = self.columns.index(spot.rank) if spot.rank in self.columns else None
        else:
            row = next((at for at, ranks in enumerate(self.rows) if spot.rank in ranks), None)
            column = self.columns.index(spot.place) if spot.place in self.columns else None
        return None if row is None or column is None else (row, column)


def place_words(place: Place) -> str:
    """A place's name as a person reads it."""
    return place.name or NO_UNIT_WORDS


def worst_rank(figures: Figures, ranks: Sequence[int], place: int) -> int:
    """Of these ranks the one with the worst figure in a place; the first where none is known."""
    values = figures.cells[list(ranks), place]
    known = np.isfinite(values)
    if not known.any():
        return ranks[0]
    if figures.worst_is_low:
        return ranks[int(np.argmin(np.where(known, values, np.inf)))]
    return ranks[int(np.argmax(np.where(known, values, -np.inf)))]


def stragglers(figures: Figures, ranks: Sequence[int], places: Sequence[int]) -> list[Spot]:
    """The cells to look at, the worst first: each rank where it is most behind the median rank, if it is by a part of
    STANDS_OUT of what the worst one is."""
    behind = figures.excess[list(ranks)][:, list(places)]
    if not behind.size:
        return []
    behind = np.where(np.isfinite(behind), behind, -np.inf)
    at = behind.argmax(axis=1)
    most = behind.max(axis=1)
    order = [row for row in np.argsort(-most, kind="stable").tolist() if most[row] > 0]
    return [Spot(ranks[row], places[int(at[row])]) for row in order if most[row] >= STANDS_OUT * most[order[0]]]


def host_of(run: RunView, rank: int) -> str:
    found = next((one.hello.host for one in run.ranks if one.rank == rank and one.hello), None)
    return found or UNKNOWN_HOST


def comm_map(
    run: RunView, choice: Choice, ranks: Sequence[int], spot: Spot | None = None, *, keep_unit: UnitTest | None = None
) -> CommMap:
    """The map of a run.

    Args:
        run: The run.
        choice: What is shown.
        ranks: Those that are to be in it, in their order.
        spot: Where the cursor is.
        keep_unit: Which units are to be in it, by name; default: all.
    """
    grid = run.grid
    figures = grid.figures(choice.metric, choice.selection)
    ranks = [rank for rank in ranks if rank < grid.ranks]
    chosen = figures.cells[ranks] if ranks else figures.cells[:0]
    there = [at for at in range(len(grid.places)) if ranks and not figures.absent[ranks, at].all()]
    places = [at for at in there if keep_unit is None or keep_unit(place_words(grid.places[at]))]
    names = [place_words(grid.places[at]) for at in places]
    low = figures.worst_is_low
    unit = _unit(chosen, choice.metric)
    sums_unit = _unit(figures.by_rank[ranks] if ranks else np.empty(0), choice.metric)
    per_second = "/s" if choice.metric == "bandwidth" else ""
    foot_words = "max" if choice.metric == "lateness" else "mean"
    straggling = {verdict.kind: verdict.severity for verdict in run.verdicts}.get("straggler")
    late = run.lateness.rank if run.lateness is not None and straggling else None

    rows, labels = _rows(run, choice.group, ranks)
    if choice.order != ORDERS[0] and choice.group != "unit":
        order = _worst_first(_of_rows(figures.by_rank, rows, low), low)
        rows, labels = [rows[at] for at in order], [labels[at] for at in order]
    cells = _of_rows(figures.cells, rows, low)[:, places]
    absent = ~(_of_rows(np.where(figures.absent, np.nan, 1.0), rows, low)[:, places] > 0)
    sums = _of_rows(figures.by_rank, rows, low)
    foot = _over_ranks(chosen[:, places], foot_words)
    flags = [straggling or "" if late in members else "" for members in rows] if straggling else []
    flipped, columns = choice.group == "unit", places
    if flipped:
        cells, absent = cells.T, absent.T
        labels, names = names, labels
        rows, columns = [[place] for place in places], [members[0] for members in rows]
        sums, foot, sums_unit, foot_unit = foot, sums, unit, sums_unit
        flags = []
    else:
        foot_unit = unit
    # Medians of sums: those of some units cannot be had from those of all.
    sums_words = foot_words if flipped else "all units" if len(places) < len(there) else "all" if low else "Σ"
    empty = f"no {choice.calls_words}" + (" that anybody could wait for" if choice.metric == "lateness" else "")
    if not grid.places or run.world_size == 1:
        empty = no_collectives(run)
    elif not ranks:
        empty = "no rank matches"
    chart = HeatMap(
        cells=cells / unit.size,
        absent=absent,
        rows=labels,
        columns=names,
        scale=heat_scale(
            chosen / unit.size,
            least=(run.step_median_ns or 0) * NOISE / unit.size if choice.metric in ("lateness", "exposed") else 0.0,
            falling=low,
        ),
        text=lambda value: f"{value:.{unit.decimals}f}",
        unit=f"{unit.name}{per_second}",
        heading="unit" if flipped else choice.group,
        what="units" if flipped else "nodes" if choice.group == "node" else "ranks",
        columns_what="ranks" if flipped else "units",
        sums=sums / sums_unit.size,
        sums_text=lambda value: f"{value:.{sums_unit.decimals}f}",
        sums_title=f"{sums_words} {sums_unit.name}{per_second}",
        foot=foot / foot_unit.size,
        foot_title="" if flipped else foot_words,
        flags=flags,
        empty=empty,
    )
    return CommMap(chart, figures, rows, columns, flipped, choice, ranks, places).with_cursor(spot)


def _rows(run: RunView, group: str, ranks: Sequence[int]) -> tuple[list[list[int]], list[str]]:
    """The ranks of each row, and its label."""
    if group != "node":
        return [[rank] for rank in ranks], [str(rank) for rank in ranks]
    hosts = {one.rank: one.hello.host for one in run.ranks if one.hello}
    members: dict[str, list[int]] = {}
    for rank in ranks:
        members.setdefault(hosts.get(rank, UNKNOWN_HOST), []).append(rank)
    return list(members.values()), list(members)


def _of_rows(by_rank: Floats, rows: Sequence[Sequence[int]], low: bool) -> Floats:
    """Of each row its worst rank; NaN only where none is known."""
    if all(len(ranks) == 1 for ranks in rows):
        return by_rank[[ranks[0] for ranks in rows]] if rows else by_rank[:0]
    return np.stack([fold(by_rank[list(ranks)], len(ranks), lowest=low)[0] for ranks in rows])


def _unit(values: Floats, metric: Metric) -> fmt.Unit:
    units = fmt.BYTES if metric == "bandwidth" else fmt.NANOSECONDS
    known = values[np.isfinite(values)]
    return fmt.scale_for([float(known.max())] if known.size else [], units)


def _over_ranks(cells: Floats, words: str) -> Floats:
    """What stands for all ranks in each place: of lateness the most, of others the mean of what is known."""
    if not len(cells):
        return np.full(cells.shape[1], np.nan)
    if words == "max":
        return np.asarray(fold(cells, len(cells), lowest=False)[0])
    known = np.isfinite(cells)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known, cells, 0.0).sum(axis=0) / known.sum(axis=0))


def _worst_first(sums: Floats, low: bool) -> list[int]:
    """The order of the rows; those that are not known come last."""
    return [int(at) for at in np.argsort(sums if low else -sums, kind="stable")]


# The cell under the cursor


@lru_cache(4096)  # tables write hundreds in each picture, and most of them have been in the one before
def metric_text(metric: Metric, value: float | None) -> str:
    """A figure with its unit."""
    return fmt.bandwidth(value) if metric == "bandwidth" else fmt.duration(value)


def spot_words(run: RunView, choice: Choice, spot: Spot, width: int = 1000) -> str:
    """The cell in one line: "rank 17 · node2 · blocks.40 · late 3.10 ms (median rank 120 us)"; what is least needed gives way."""
    grid = run.grid
    if not (spot.rank < grid.ranks and spot.place < len(grid.places)):
        return ""
    figures = grid.figures(choice.metric, choice.selection)
    value, usual = float(figures.cells[spot.rank, spot.place]), ""
    if figures.absent[spot.rank, spot.place]:
        said = f"no {choice.calls_words}"
    else:
        said = f"{METRIC_WORDS[choice.metric].of_rank} {metric_text(choice.metric, value)}"
        middle = float(figures.usual[spot.place])
        if grid.ranks > 1 and np.isfinite(middle):
            usual = f" ({'the better one' if grid.ranks == 2 else 'median rank'} {metric_text(choice.metric, middle)})"
    who, where = f"rank {spot.rank}", place_words(grid.places[spot.place])
    host = host_of(run, spot.rank)
    tries = [[who, host, where, said + usual], [who, where, said + usual], [who, where, said], [who, said]]
    return next((text for parts in tries if len(text := " · ".join(parts)) <= width), f"{who} · {said}")


def call_words(call: CallFigures) -> str:
    """ "all-gather fwd"; of all of them it is the median of their sum, which is not the sum of their medians."""
    return "median sum" if call.kind < 0 else f"{WORDS[call.kind]} {SHORT_PHASES[call.phase]}"


def call_columns(calls: Sequence[CallFigures]) -> list[TableColumn]:
    """A row per collective of a rank in a place: bytes and times of a step, the median of one call."""
    if not calls:
        return []
    return [
        TableColumn(
            "collective",
            [(call_words(call), Ink(ROLES[call.kind]) if call.kind >= 0 else STRONG) for call in calls],
            left=True,
        ),
        TableColumn("calls", [f"{call.calls:g}" for call in calls], need=4),
        TableColumn("bytes", [fmt.size(call.nbytes) for call in calls], need=3),
        TableColumn("a call", [fmt.duration(call.median_ns) for call in calls], need=2),
        TableColumn("exposed", [fmt.duration(call.exposed_ns) for call in calls]),
        TableColumn("overlapped", [fmt.duration(call.overlapped_ns) for call in calls], need=6),
        TableColumn("late", [fmt.duration(call.late_ns) for call in calls]),
        TableColumn("S/t", [fmt.bandwidth(call.algbw_bytes_per_s) for call in calls], need=7),
        TableColumn("bus", [fmt.bandwidth(call.busbw_bytes_per_s) for call in calls], need=1),
    ]


def unit_columns(run: RunView, rank: int, drawn: Metric = METRICS[0]) -> list[TableColumn]:
    """A row per place of what a rank calls there, sums over a step's calls; one metric is drawn too."""
    grid = run.grid
    if not grid.places or rank >= grid.ranks:
        return []
    volume = grid.volume
    figures = {metric: grid.figures(metric) for metric in METRICS}

    def cells(metric: Metric) -> list[Cell]:
        one = figures[metric]
        values, behind = one.cells[rank], one.excess[rank]
        out = (
            (behind > 0)
            & (behind > np.abs(values) * STANDS_OUT)
            & (behind >= fold(one.excess, grid.ranks, lowest=False)[0])
        )
        return [
            ("", QUIET) if absent else (metric_text(metric, value), STRONG if stands_out else LABEL)
            for value, absent, stands_out in zip(values.tolist(), one.absent[rank].tolist(), out.tolist(), strict=True)
        ]

    own = figures[drawn].cells[rank]
    most = float(np.nanmax(own)) if np.isfinite(own).any() else 0.0
    bars = [gauge(float(value) if np.isfinite(value) else None, most, 24) if most > 0 else "" for value in own]
    return [
        TableColumn("unit", [place_words(place) for place in grid.places], left=True, least=10),
        TableColumn("calls", [f"{calls:g}" for calls, _ in volume], need=3),
        TableColumn("bytes", [fmt.size(nbytes) for _, nbytes in volume], need=2),
        TableColumn("late", cells("lateness")),
        TableColumn("exposed", cells("exposed")),
        TableColumn("duration", cells("duration"), need=1),
        TableColumn("bus", cells("bandwidth"), need=4),
        TableColumn(METRIC_WORDS[drawn].short, [(bar, BAR) for bar in bars], left=True, need=5),
    ]


# Who waits for whom


def write_waiting(run: RunView, width: int, height: int) -> list[Row]:
    """Who waits for whom and why, where most is waited, and what that comes to; what is needed most goes first into the room."""
    what, reason, advice = _who(run, width, most=max(1, height - (height <= SHORT)))
    parts: list[Row] = [[(part, QUIET)] for part in _whole(run)]
    if height <= SHORT:
        row, _ = flow(parts, width, gap="   ")
        return [*what, crop(row, width)][: max(0, height)]
    blocks = (what, reason, advice, _where(run, width), wrap(parts, width, len(parts), gap="   ")[0])
    chosen: set[int] = set()
    for at in (0, 1, 4, 3, 2):
        if sum(len(blocks[index]) for index in chosen) + len(blocks[at]) <= height:
            chosen.add(at)
    if not chosen:
        return what[: max(0, height)]
    return [row for at in sorted(chosen) for row in blocks[at]]


def _who(run: RunView, width: int, most: int) -> tuple[list[Row], list[Row], list[Row]]:
    """What is the case, in so many rows at most; why; and what to do about it."""
    verdict = next((one for one in run.verdicts if one.kind == "straggler"), None)
    if verdict is not None:
        mark: Row = [(f"{SEVERITY_GLYPHS[verdict.severity]} ", Ink(verdict.severity, bold=True))]
        what = paragraph(verdict.what, width, STRONG, first=mark, most=most)
        reason = paragraph(verdict.reason, width, QUIET, first=[("  ", QUIET)])
        advice = paragraph(f"→ {verdict.next}", width, QUIET, first=[("  ", QUIET)]) if verdict.next else []
        return what, reason, advice
    late = run.lateness
    if late is None:
        unknown = "which rank comes late is not known: not every rank reported its calls"
        said = unknown if run.grid.places else no_collectives(run)
        return paragraph(said, width, QUIET, first=_NOTE, most=most), [], []
    if late.ns <= 0:
        said = "nobody is waited for more than the others"
        return paragraph(said, width, LABEL, first=_NOTE, most=most), [], []
    share = f" ({_share(late.ns, run.step_median_ns)})" if run.step_median_ns else ""
    steady = "" if late.steady_ns >= late.ns / 2 else "; now one rank is late, now another"
    said = f"rank {late.rank} is waited for most: {fmt.duration(late.ns)} per step{share}{steady}"
    where = "the buckets' " if late.unit == BUCKETS else f"{late.unit}'s " if late.unit else ""
    begins = f"it begins at {where}{late.kind.replace('_', '-')} in {late.phase}"
    what = paragraph(said, width, LABEL, first=_NOTE, most=most)
    return what, paragraph(begins, width, QUIET, first=[("  ", QUIET)]), []


_NOTE: Row = [(f"{SEVERITY_GLYPHS['note']} ", Ink("note", bold=True))]


def _where(run: RunView, width: int) -> list[Row]:
    """Where compute waits longest."""
    waited = {unit.name: sum(getattr(unit, kind).step.exposed_ns or 0 for kind, _, _ in KINDS) for unit in run.units}
    if run.comm.buckets_exposed_ns is not None:
        waited["the buckets"] = run.comm.buckets_exposed_ns
    worst = max(waited, key=lambda name: waited[name], default="")
    if not worst or not waited[worst]:
        return []
    share = f" ({_share(waited[worst], run.step_median_ns)})" if run.step_median_ns else ""
    return paragraph(
        f"compute waits longest at {worst}: {fmt.duration(waited[worst])} per step on the mean rank{share}",
        width,
        LABEL,
        first=_NOTE,
    )


def _share(ns: float, step_ns: int) -> str:
    share = ns / step_ns
    return fmt.percent(share, decimals=1 if share >= 0.01 else 2) if share >= 1e-4 else "under 0.01 %"


def _whole(run: RunView) -> list[str]:
    """Exposed and overlapped time, and how fast the links were."""
    comm, step = run.comm, run.step_median_ns
    if not run.grid.places:
        return []
    parts: list[str] = []
    if comm.exposed_ns is not None:
        share = f" ({_share(comm.exposed_ns, step)} of the step)" if step else ""
        parts.append(f"exposed {fmt.duration(comm.exposed_ns)}{share}")
        if comm.duration_ns:
            hidden = max(0, comm.duration_ns - comm.exposed_ns)
            share = fmt.percent(hidden / comm.duration_ns)
            parts.append(
                f"overlapped {fmt.duration(hidden)} ({share} of the calls)" if hidden else "nothing overlapped"
            )
    else:
        parts.append("exposed time is not known")
    for kind, words, _ in KINDS:
        speeds = [getattr(unit, kind).step.busbw_bytes_per_s for unit in run.units]
        known = [speed for speed in speeds if speed is not None]
        if known:
            parts.append(f"{words} {fmt.bandwidth(float(np.median(known)))} bus")
    return parts


def backend_note(run: RunView, kind: int) -> str:
    """What to know about this backend's collective."""
    backend = next((rank.hello.backend for rank in run.ranks if rank.hello), "")
    return note(backend, COLLECTIVES[kind])
