"""Screen 0: live and recorded runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Input

from fsdp_tui.telemetry import sheets
from fsdp_tui.telemetry.rundir import RunEntry, RunError
from fsdp_tui.telemetry.sheets import Sheet
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.filters import FilterError, run_filter
from fsdp_tui.tui.keys import RUNS, bindings_of
from fsdp_tui.tui.screens.base import View, title_of
from fsdp_tui.tui.screens.queue import queue_words
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Row, crop
from fsdp_tui.tui.widgets.chrome import Header, HeaderFacts, Tabs, ago, state_mark
from fsdp_tui.tui.widgets.table import Pane, Table, TableColumn

SORTS = ("started", "name", "state", "strategy", "steps", "loss", "size")
COMPARE_MAX = 6


class RunsScreen(View):
    """The first screen."""

    KIND = RUNS
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(RUNS))
    FILTER_HINT = "runs: a pattern of id, name, state, strategy or note; tag:NAME; !inverts"

    def __init__(self) -> None:
        super().__init__()
        self.sort = 0
        self.reverse = False
        self._keep = run_filter("")
        self._shown: list[RunEntry] = []
        self._returned_s: float | None = None
        """How old the list was when one came back to it."""

    def body(self) -> Iterable[Widget]:
        yield Table(id="list", classes="pane first")
        yield Pane(id="status")

    def on_mount(self) -> None:
        self.query_one("#status").can_focus = False

    def on_screen_resume(self) -> None:
        """What has begun and ended meanwhile is read at once."""
        if self.board.list_is_old:
            self._returned_s = self.board.listed_s
            self.board.list_runs()

    def on_tick(self) -> None:
        if not self.ready:
            return
        board = self.board
        chosen = self.chosen
        entries = [entry for entry in board.entries if self._keep(entry)]
        entries.sort(key=self._sort_key, reverse=self.reverse)
        self._shown = entries
        live = sum(entry.live for entry in board.entries)
        header = self.query_one(Header)
        header.show_facts(HeaderFacts(None, False, board.services.now_ns(), title="runs of this machine"))
        table = self.query_one("#list", Table)
        hidden = len(board.entries) - len(entries)
        title_of(
            table,
            f"runs · {live} live · {len(board.entries) - live} recorded"
            + (f" · {hidden} hidden by the filter" if hidden else "")
            + (" · reading …" if self._returned_s == board.listed_s else ""),
        )
        table.empty = (
            "no run matches the filter"
            if board.entries
            else board.keyed("no runs yet: {show.launch} starts one, or fsdp-tui run SCRIPT in another terminal")
        )
        at = next((index for index, entry in enumerate(entries) if chosen and entry.id == chosen.id), None)
        table.show_columns(
            columns(entries, board.marked, board.sizes, board.services.now_ns()) if entries else [], cursor=at
        )
        notes: list[Row] = [[(f"sort: {SORTS[self.sort]} {'▴' if self.reverse else '▾'}", QUIET)]]
        if board.marked:
            notes.insert(0, [(f"{len(board.marked)} marked: {board.keyed('{show.compare}')} compares", Ink("ok"))])
        if board.queue.open:
            notes.insert(0, [(f"{board.keyed('queue ({queue})')}: {queue_words(board.queue)}", LABEL)])
        self.query_one(Tabs).show_notes(notes)
        self.query_one("#status", Pane).show(lambda width, height, letters: [self._about(width)])

    def sheets(self) -> Sequence[Sheet]:
        return [sheets.listing(self._shown, self.board.sizes)]

    def _about(self, width: int) -> Row:
        """The run under the cursor: its id, where it is kept, and what is wrong with it, in full if that fits."""
        entry = self.chosen
        if entry is None:
            return crop([], width)
        row: Row = [(f" {entry.id}", QUIET)]
        if entry.note:
            row.append((f"  {fmt.fit(entry.note.line, max(0, min(len(entry.note.line), width - 24)))}", LABEL))
        if entry.problem:
            row.append(
                (
                    f"  {state_mark(entry.state).glyph} {fmt.fit(entry.problem, max(1, width - sum(len(text) for text, _ in row) - 4))}",
                    Ink("warn"),
                )
            )
        return crop(row, width)

    def _sort_key(self, entry: RunEntry) -> tuple[bool, object]:
        """Unknown values last."""
        size = self.board.sizes.get(entry.id)
        value = {
            "started": -entry.created_ns,
            "name": entry.name.lower(),
            "state": (not entry.live, entry.state, -entry.created_ns),
            "strategy": entry.effective or entry.strategy,
            "steps": -entry.steps,
            "loss": entry.loss if entry.loss is None or math.isfinite(entry.loss) else math.inf,
            "size": -size if size is not None else None,
        }[SORTS[self.sort]]
        return value is None, 0 if value is None else value

    @property
    def chosen(self) -> RunEntry | None:
        """The run under the cursor."""
        if not self._shown:
            return None
        return self._shown[min(self.query_one("#list", Table).cursor, len(self._shown) - 1)]

    def on_filter(self, text: str) -> str:
        try:
            self._keep = run_filter(text)
        except FilterError as error:
            return str(error)
        return ""

    def on_key(self) -> None:
        # The line about the run follows the cursor, which the table moves by itself.
        self.call_after_refresh(self.query_one("#status", Pane).redraw)

    def action_open(self) -> None:
        entry = self.chosen
        if entry is None:
            return
        if entry.state == "damaged" and not entry.live:
            self.app.notify(entry.problem or "this run cannot be read", severity="warning", markup=False)
            return
        self.board.open_run(entry)

    def action_restart(self) -> None:
        if self.chosen is not None:
            self.board.prepare_launch(self.chosen)

    def action_note(self) -> None:
        if self.chosen is not None:
            self.board.ask_note(self.chosen)

    def action_mark(self) -> None:
        entry = self.chosen
        if entry is None:
            return
        marked = self.board.marked
        if entry.id in marked:
            marked.remove(entry.id)
        elif entry.state == "damaged":
            self.app.notify(f"{entry.name} cannot be read: {entry.problem}", severity="warning", markup=False)
        elif len(marked) >= COMPARE_MAX:
            self.app.notify(f"{COMPARE_MAX} runs are marked: that is what a comparison can show", severity="warning")
        else:
            marked.append(entry.id)
        self.query_one("#list", Table).action_move(1)
        self.on_tick()

    def action_delete(self) -> None:
        entry = self.chosen
        if entry is None:
            return
        if entry.live:
            keys = self.board.keyed("({runs.open}, then {run.stop})")
            self.app.notify(f"{entry.name} is live: stop it first {keys}", severity="warning", markup=False)
            return
        size = self.board.sizes.get(entry.id)
        steps = f"{entry.steps:,} recorded steps" if entry.steps else "everything recorded"
        self.board.ask(
            f"Delete {entry.name} ({entry.id})? {steps.capitalize()} and its logs{f' ({fmt.size(size)})' if size else ''} are gone for good.",
            [("n", "no, keep it", "no"), ("d", "delete it", "delete")],
            lambda answer: self._delete(entry) if answer == "delete" else None,
        )

    def _delete(self, entry: RunEntry) -> None:
        try:
            self.board.forget(entry)
        except RunError as error:
            self.app.notify(str(error), severity="error", markup=False)
        self.on_tick()

    def action_sort(self) -> None:
        self.sort = (self.sort + 1) % len(SORTS)
        self.on_tick()

    def action_sort_reverse(self) -> None:
        self.reverse = not self.reverse
        self.on_tick()

    def leave(self) -> None:
        """There is nothing behind this screen."""

    def action_back(self) -> None:
        self.end_filter()

    @property
    def filter_text(self) -> str:
        return self.query_one("#filter-text", Input).value


def columns(entries: list[RunEntry], marked: list[str], sizes: dict[str, int], now_ns: int) -> list[TableColumn]:
    """A row per run."""
    marks = [state_mark(entry.state) for entry in entries]
    # A run that has a note is known to whoever wrote it: its problem is in the line below the list.
    notes = [(e.note.line, LABEL) if e.note else (e.problem, Ink("warn")) for e in entries]
    return [
        TableColumn(
            "",
            [(str(marked.index(e.id) + 1) if e.id in marked else " ", Ink("ok", bold=True)) for e in entries],
            left=True,
        ),
        TableColumn("state", [(f"{m.glyph} {m.word}", Ink(m.role)) for m in marks], left=True),
        TableColumn("name", [(entry.name, STRONG if entry.live else LABEL) for entry in entries], left=True, least=10),
        TableColumn("strategy", [strategy(entry) for entry in entries], left=True, need=1),
        TableColumn("ranks", [fmt.count(entry.world_size or None) for entry in entries], need=3),
        TableColumn("steps", [steps(entry) for entry in entries], need=0),
        TableColumn("loss", [fmt.number(entry.loss) for entry in entries], need=2),
        TableColumn(
            "started",
            [f"{ago(now_ns - entry.created_ns)}" if entry.created_ns else fmt.UNKNOWN for entry in entries],
            need=4,
        ),
        TableColumn("size", [fmt.size(sizes.get(entry.id)) for entry in entries], need=6),
        TableColumn("note", notes, left=True, need=2, least=12)
        if any(entry.note for entry in entries)
        else TableColumn("", notes, left=True, need=5, least=12)
        if any(text for text, _ in notes)
        else TableColumn("", ["" for _ in entries], need=9),
    ]


def strategy(entry: RunEntry) -> str:
    """Requested, and what PyTorch made of it where that differs; nothing was requested of a script that was left alone."""
    if entry.effective and entry.strategy and entry.effective != entry.strategy:
        return f"{entry.strategy} → {entry.effective}"
    return entry.effective or entry.strategy or (fmt.UNKNOWN if entry.state == "damaged" else fmt.OWN)


def steps(entry: RunEntry) -> str:
    return f"{entry.steps:,}" + (f"/{entry.planned_steps:,}" if entry.planned_steps else "")
