"""Screen 3: collectives, ranks by units: who waits for whom, where, and what the calls cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widget import Widget
from textual.widgets import Input

from fsdp_tui.telemetry import sheets
from fsdp_tui.telemetry.collectives import BACKWARD, FORWARD
from fsdp_tui.telemetry.grid import ALL, METRICS, CallFigures
from fsdp_tui.telemetry.messages import COMM_PHASES
from fsdp_tui.telemetry.sheets import Sheet
from fsdp_tui.telemetry.view import RankView, RunView
from fsdp_tui.tui.filters import FilterError, RankTest, UnitTest, rank_filter, split_unit_filter
from fsdp_tui.tui.keys import COMM, bindings_of
from fsdp_tui.tui.screens.bands import Band, Banded
from fsdp_tui.tui.screens.base import Text, title_of
from fsdp_tui.tui.screens.calls import CallsScreen
from fsdp_tui.tui.screens.details import write_collective
from fsdp_tui.tui.source import Snapshot
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.chart import QUIET, Row
from fsdp_tui.tui.widgets.chrome import Tabs
from fsdp_tui.tui.widgets.commmap import (
    GROUPS,
    METRIC_WORDS,
    ORDERS,
    WORDS,
    Choice,
    CommMap,
    Spot,
    call_columns,
    comm_map,
    place_words,
    spot_words,
    stragglers,
    unit_columns,
    write_waiting,
)
from fsdp_tui.tui.widgets.heatmap import HeatGrid
from fsdp_tui.tui.widgets.table import Pane, Table

CELL_PERCENT = 59
"""Of the width for the cell under the cursor, where the panes stand side by side."""
WIDE = 100
"""From this width on the two lower panes stand side by side."""
FRAME = 2
AROUND_CELLS = 3
"""Of the map: heading, foot and legend."""
LOWER = 8
"""Rows of the lower panes at least."""
NEARLY = 1.25
"""So much worse another cell must be for the cursor to go there by itself."""
UNITS = 6
"""Rows of the table of units at least."""
_T = TypeVar("_T")
PHASES = (None, FORWARD, BACKWARD)


class CommScreen(Banded):
    """The open run's collectives."""

    KIND = COMM
    BANDS = ("map-band", "lower", "units-band")
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(COMM))
    FILTER_HINT = "ranks: 5   8-15   >90%   node:pattern   any pattern   !inverts   units: unit:pattern"

    def __init__(self) -> None:
        super().__init__()
        self.choice = Choice()
        self.each = False
        """Every rank and unit has a cell of its own, and the map scrolls."""
        self.spot: Spot | None = None
        self.map: CommMap | None = None
        self._led = True
        """Nobody has moved the cursor yet: it goes where it is worst."""
        self._shown = False
        """It is the screen that is open."""
        self._has_units = False
        """The table of all units of a rank is in view."""
        self._keep: RankTest = rank_filter("")
        self._keep_unit: UnitTest = split_unit_filter("")[1]
        self._drawn: tuple[object, ...] = ()
        self._drawn_run: RunView | None = None

    def body(self) -> Iterable[Widget]:
        yield VerticalScroll(
            Horizontal(HeatGrid(id="map", classes="pane first"), id="map-band"),
            Horizontal(Table(id="cell", classes="pane"), Pane(id="waiting", classes="pane"), id="lower"),
            Horizontal(Table(id="units", classes="pane"), id="units-band"),
            id="body",
            can_focus=False,
        )

    def on_mount(self) -> None:
        title_of(self.query_one("#waiting"), "who waits for whom")
        self._prepare_ahead()

    @property
    def snapshot(self) -> Snapshot | None:
        """What the panes show."""
        return self.frozen or self.board.snapshot

    @property
    def run(self) -> RunView | None:
        snapshot = self.snapshot
        return snapshot.view if snapshot else None

    def on_run_opened(self) -> None:
        self.frozen, self.spot, self.map, self._drawn, self._drawn_run, self._led = None, None, None, (), None, True
        self._prepare_ahead()
        if self.ready:
            self.end_filter()

    def sheets(self) -> Sequence[Sheet]:
        """The metric that is shown, of the ranks and units that are shown."""
        run, found = self.run, self.map
        if run is None or found is None or not found.chart.cells.size:
            return ()
        return [sheets.comm_matrix(found.figures, run.grid.places, found.ranks, found.places)]

    # Drawing

    def on_tick(self) -> None:
        if not self.ready:
            return
        self.show_header()
        self.query_one(Tabs).show_notes(self._notes(), urgent=self.frozen is not None)
        run = self.run
        key = (
            self.query_one("#body").size,
            self.choice,
            self.each,
            self.spot,
            self._keep,
            self._keep_unit,
            self.zoomed,
            self.focused,
            self.query_one("#cell").size,  # it has room for the sum of the calls or not
            self.is_current,
        )
        if run is self._drawn_run and key == self._drawn:
            return
        before, self._drawn_run = self._drawn_run, run
        waiting = self.query_one("#waiting", Pane)
        waiting.show(lambda width, height, letters: write_waiting(run, width, height) if run else [])
        if key == self._drawn and looks_alike(before, run):
            return
        self.set_class(self.size.width >= WIDE, "-wide")
        self._show_map(run)
        self._drawn = (*key[:3], self.spot, *key[4:])
        self.lay_out(self._bands(run))
        self._show_cell(run)
        self._show_units(run)

    def on_screen_resume(self) -> None:
        self._shown = self.is_current
        self._prepare_again()

    def on_screen_suspend(self) -> None:
        """Another screen is open: nobody needs figures per rank and unit, until one comes back."""
        self._shown = False

    def _prepare_ahead(self) -> None:
        if self.board.feed is not None:
            self.board.feed.prepare = self._prepare

    def _prepare_again(self) -> None:
        """Other keys lead elsewhere: the next one may come before the next picture."""
        if self.board.feed is not None:
            self.board.feed.prepare_again()

    def _prepare(self, run: RunView) -> None:
        """Works out what the next tick shows, and adds up what one key leads to, in the feed's thread."""
        choice, spot = self.choice, self.spot
        if not self._shown:
            run.grid.add_up(choice.metric, choice.selection)
            return
        shown = [(choice.metric, choice.selection)]
        if self._has_units:
            shown += [(metric, ALL) for metric in METRICS]
        for metric, selection in shown:
            run.grid.figures(metric, selection).excess  # noqa: B018
        if spot is not None:
            self._calls(run, spot)
        away = [replace(choice, metric=metric) for metric in METRICS]
        away += [replace(choice, phase=phase) for phase in PHASES]
        away.append(replace(choice, kind=self._next_kind(run)))
        for other in away:
            run.grid.add_up(other.metric, other.selection)

    def _notes(self) -> list[Row]:
        choice, keyed = self.choice, self.board.keyed
        notes: list[Row] = []
        if self.frozen:
            notes.append(
                [(f"❚❚ frozen at step {self.frozen.view.steps:,} {keyed('({run.freeze})')}", Ink("warn", bold=True))]
            )
        if text := self.query_one("#filter-text", Input).value.strip():
            notes.append([(f"filter: {text}", Ink("ok"))])
        notes.append([(f"{keyed('{comm.metric}')} {METRIC_WORDS[choice.metric].short}", QUIET)])
        notes.append([(f"{keyed('{comm.kind}')} {'all' if choice.kind is None else WORDS[choice.kind]}", QUIET)])
        notes.append(
            [(f"{keyed('{comm.phase}')} {'step' if choice.phase is None else COMM_PHASES[choice.phase]}", QUIET)]
        )
        notes.append([(f"{keyed('{comm.group}')} {choice.group}", QUIET)])
        if choice.order != ORDERS[0]:
            notes.append([(f"{keyed('{sort}')} {choice.order}", QUIET)])
        return notes

    def _bands(self, run: RunView | None) -> list[Band]:
        """The map takes the rows that it makes use of, and what that leaves is for the panes below."""
        if run is None or self.map is None or not self.map.chart.cells.size:
            return [Band("map-band", 3, 3, 1)]
        height = self.query_one("#body").size.height or max(1, self.size.height - 4)
        n, units = self.map.chart.cells.shape[0], len(run.grid.places) + FRAME + 1
        room = height - LOWER - FRAME
        # The units have their room where the map's rows need no more than one line each for it.
        spare = room - n - AROUND_CELLS
        room -= units if units <= spare else UNITS * 2 if spare >= UNITS * 2 else 0
        rows = self.query_one("#map", HeatGrid).wanted(self.size.width - FRAME, max(4, room)) + FRAME
        return [
            Band("map-band", rows, rows, 1),
            Band("lower", LOWER, max(LOWER, height - rows - (units if height - rows - LOWER >= UNITS else 0)), 1),
            Band("units-band", UNITS, max(UNITS, units), 1),
        ]

    def ranks(self) -> list[RankView]:
        """Those that are shown."""
        run = self.run
        return [rank for rank in run.ranks if self._keep(rank)] if run else []

    def _show_map(self, run: RunView | None) -> None:
        pane = self.query_one("#map", HeatGrid)
        if run is None:
            self.map = None
            title_of(pane, "collectives")
            pane.show_words("nothing yet")
            return
        ranks = [rank.rank for rank in self.ranks()]
        found = comm_map(run, self.choice, ranks, self.spot, keep_unit=self._keep_unit)
        if found.chart.cells.size and (self._led or found.chart.cursor is None):
            self.spot = self._lead(found)
            found = found.with_cursor(self.spot)
        if found.chart.cursor is not None:
            self.spot = found.spot(*found.chart.cursor)  # of a node its worst rank, whose figure the cell has
        self.map = found
        title_of(pane, found.title(self.size.width - 6))
        if self.board.still:
            found = found.with_cursor(None)
        pane.show_map(found.chart, each=self.each)

    def _lead(self, found: CommMap) -> Spot:
        """The worst cell; where the cursor is already as long as that is nearly as bad, or it would not stand still."""
        spots = stragglers(found.figures, found.ranks, found.places)
        worst = spots[0] if spots else Spot(found.ranks[0], found.places[0])
        if self.spot is None or found.chart.cursor is None:
            return worst
        behind = found.figures.excess
        return worst if not behind[self.spot] * NEARLY >= behind[worst] else self.spot

    def _show_cell(self, run: RunView | None) -> None:
        pane = self.query_one("#cell", Table)
        spot = self.spot
        if run is None or spot is None or self.map is None or not self.map.chart.cells.size:
            title_of(pane, "a rank's collectives in a unit")
            pane.empty = "" if run is None else self.map.chart.empty if self.map else ""
            pane.show_columns([])
            return
        wide = self.size.width * CELL_PERCENT // 100 if self.size.width >= WIDE else self.size.width
        title_of(pane, spot_words(run, self.choice, spot, wide - 6))
        pane.empty = "this rank makes no calls here"
        calls = self._calls(run, spot)
        # What all of them come to, where they leave a row for it.
        room = pane.size.height - 1 > len(calls) > 1
        whole = run.grid.together(spot.rank, run.grid.places[spot.place]) if room else None
        pane.show_columns(call_columns([*calls, whole] if whole is not None else calls))

    def _show_units(self, run: RunView | None) -> None:
        """All units of the chosen rank, where there is room: what the next step into the rank shows too."""
        table, spot = self.query_one("#units", Table), self.spot
        table.empty = ""
        self._has_units = self.is_current and ("units-band" not in self.below or table.has_focus)
        if run is None or spot is None or not run.grid.places or not self._has_units:
            table.show_columns([])
            return
        title_of(table, f"rank {spot.rank} in all units")
        table.show_columns(unit_columns(run, spot.rank, self.choice.metric), cursor=spot.place)

    def _calls(self, run: RunView, spot: Spot) -> list[CallFigures]:
        places = run.grid.places
        return run.grid.calls(spot.rank, places[spot.place]) if spot.place < len(places) else []

    # Keys

    def on_filter(self, text: str) -> str:
        try:
            words, self._keep_unit = split_unit_filter(text)
            self._keep = rank_filter(words)
        except FilterError as error:
            return str(error)
        return ""

    def on_heat_grid_moved(self, event: HeatGrid.Moved) -> None:
        if self.map is not None:
            self.spot, self._led = self.map.spot(event.row, event.column), False
            self.on_tick()

    def on_table_cursor_moved(self) -> None:
        """In the table of units the cursor is the map's."""
        table = self.query_one("#units", Table)
        if self.spot is not None and self.focused is table and table.cursor != self.spot.place:
            self.spot, self._led = Spot(self.spot.rank, table.cursor), False
            self.on_tick()

    def _choose(self, **changes: object) -> None:
        self.choice = replace(self.choice, **changes)  # type: ignore[arg-type]
        self.on_tick()
        self._prepare_again()

    def action_metric(self) -> None:
        self._choose(metric=_after(METRICS, self.choice.metric))

    def action_kind(self) -> None:
        self._choose(kind=self._next_kind(self.run))

    def _next_kind(self, run: RunView | None) -> int | None:
        return _after((None, *(run.grid.kinds() if run else ())), self.choice.kind)

    def action_phase(self) -> None:
        self._choose(phase=_after(PHASES, self.choice.phase))

    def action_group(self) -> None:
        self._choose(group=_after(GROUPS, self.choice.group))

    def action_sort(self) -> None:
        self._choose(order=_after(ORDERS, self.choice.order))

    def action_each(self) -> None:
        self.each = not self.each
        self.on_tick()

    def action_straggler(self) -> None:
        """To the worst cell, then to that of the next rank that stands out."""
        found = self.map
        spots = stragglers(found.figures, found.ranks, found.places) if found else []
        if not spots:
            self.app.notify(f"no rank stands out: {METRIC_WORDS[self.choice.metric].short} is alike, or not known")
            return
        self.spot = spots[(spots.index(self.spot) + 1) % len(spots)] if self.spot in spots else spots[0]
        self._led = False
        self.on_tick()
        self.focus_first()

    def action_copy(self) -> None:
        run = self.run
        if run is not None and self.spot is not None:
            self.board.copy(spot_words(run, self.choice, self.spot))

    def action_open(self) -> None:
        """From the map to the rank, from the cell to one collective."""
        run, spot, focused = self.run, self.spot, self.focused
        if run is None or focused is None:
            return
        if focused.id == "waiting":
            self.app.push_screen(Text("who waits for whom", lambda width: write_waiting(run, width, 1000)))
        elif spot is None or not run.grid.places:
            return
        elif focused.id == "cell" and (calls := self._calls(run, spot)):
            call = calls[min(self.query_one("#cell", Table).cursor, len(calls) - 1)]
            place = run.grid.places[spot.place]
            title = f"{place_words(place)} · {WORDS[call.kind]}"
            self.app.push_screen(Text(title, lambda width: write_collective(run, place, call.kind, spot.rank, width)))
        else:
            self.app.push_screen(CallsScreen(spot.rank, spot.place))

    def on_descendant_focus(self) -> None:
        super().on_descendant_focus()
        if self.is_current:  # not while it is made ahead
            self.on_tick()


def looks_alike(before: RunView | None, now: RunView | None) -> bool:
    """Whether the map of one picture is that of the other: no step has been told of since."""
    if before is None or now is None or before.grid is not now.grid or len(before.ranks) != len(now.ranks):
        return False
    kinds = [{verdict.kind for verdict in run.verdicts} for run in (before, now)]
    return before.lateness == now.lateness and kinds[0] == kinds[1]


def _after(choices: tuple[_T, ...], now: _T) -> _T:
    """The next choice, round and round."""
    return choices[(choices.index(now) + 1) % len(choices)] if now in choices else choices[0]
