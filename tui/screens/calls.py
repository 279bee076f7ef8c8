"""One rank's collectives: all units, then one unit, then one collective."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from fsdp_tui.telemetry import sheets
from fsdp_tui.telemetry.sheets import Sheet
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui.keys import CALLS, bindings_of
from fsdp_tui.tui.screens.base import Text, title_of
from fsdp_tui.tui.screens.details import write_collective
from fsdp_tui.tui.screens.replayed import Replayed
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.chart import QUIET
from fsdp_tui.tui.widgets.chrome import Tabs
from fsdp_tui.tui.widgets.commmap import WORDS, call_columns, host_of, place_words, unit_columns
from fsdp_tui.tui.widgets.table import Table
from fsdp_tui.tui.widgets.traffic import no_collectives


class CallsScreen(Replayed):
    """Opened on a rank and a unit of the Comm screen.

    Attributes:
        place: index of the unit whose collectives are shown; None: all units.
    """

    KIND = CALLS
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(CALLS))

    def __init__(self, rank: int, place: int) -> None:
        super().__init__()
        self.rank = rank
        self.place: int | None = None
        self._begin = place

    def body(self) -> Iterable[Widget]:
        yield Table(id="calls", classes="pane first")

    def on_mount(self) -> None:
        self.query_one("#calls", Table).cursor = self._begin

    @property
    def run(self) -> RunView | None:
        snapshot = self.board.snapshot
        return snapshot.view if snapshot else None

    def on_tick(self) -> None:
        self.show_header()
        run, table = self.run, self.query_one("#calls", Table)
        places = run.grid.places if run else ()
        trail = f"rank {self.rank}"
        if run is not None and self.place is not None and self.place < len(places):
            trail += f" › {place_words(places[self.place])}"
            table.empty = "this rank makes no calls here"
            calls = run.grid.calls(self.rank, places[self.place])
            whole = run.grid.together(self.rank, places[self.place])
            table.show_columns(call_columns([*calls, whole] if whole is not None and len(calls) > 1 else calls))
        else:
            table.empty = no_collectives(run)
            table.show_columns(unit_columns(run, self.rank) if run else [])
        keys = self.board.keyed("{comm.open} into   {back} back   {rank.previous} {rank.next} rank")
        self.query_one(Tabs).show_notes([[(trail, Ink("ok"))], [(keys, QUIET)]])
        where = f" · {host_of(run, self.rank)}" if run else ""
        steps = f" · median of {run.grid.steps} steps" if run and run.grid.steps > 1 else ""
        title_of(table, f"{trail}{where} · per step{steps}")

    def sheets(self) -> Sequence[Sheet]:
        return [sheets.calls(self.run, self.rank)] if self.run else ()

    def action_open(self) -> None:
        run, cursor = self.run, self.query_one("#calls", Table).cursor
        if run is None or not run.grid.places:
            return
        if self.place is None:
            self.place = min(cursor, len(run.grid.places) - 1)
            self.query_one("#calls", Table).cursor = 0
            self.on_tick()
            return
        place = run.grid.places[self.place]
        calls = run.grid.calls(self.rank, place)
        if calls:
            call = calls[min(cursor, len(calls) - 1)]
            title = f"{place_words(place)} · {WORDS[call.kind]}"
            self.app.push_screen(Text(title, lambda width: write_collective(run, place, call.kind, self.rank, width)))

    def action_back(self) -> None:
        """From a unit to all of the rank's, from there to the map."""
        if self.place is None:
            super().action_back()
            return
        self.query_one("#calls", Table).cursor, self.place = self.place, None
        self.on_tick()

    def action_next(self) -> None:
        self._go(1)

    def action_previous(self) -> None:
        self._go(-1)

    def _go(self, by: int) -> None:
        known = [rank.rank for rank in self.run.ranks] if self.run else []
        if self.rank in known:
            self.rank = known[(known.index(self.rank) + by) % len(known)]
            self.on_tick()
