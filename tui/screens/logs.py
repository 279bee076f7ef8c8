"""What the ranks printed: follows the end of a log, wraps long lines, finds patterns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Input

from fsdp_tui.telemetry.launch import printed_elsewhere
from fsdp_tui.telemetry.rundir import RunEntry
from fsdp_tui.tui.filters import FilterError
from fsdp_tui.tui.format import plain
from fsdp_tui.tui.keys import LOGS, bindings_of
from fsdp_tui.tui.screens.base import View, subtitle_of, title_of
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, Chart, Row, crop
from fsdp_tui.tui.widgets.chrome import Header, HeaderFacts, Tabs
from fsdp_tui.tui.widgets.table import Table, paragraph

KEEP_BYTES = 1 << 20
"""Of a long log the screen holds the newest so many bytes; the file has all of it."""
KEEP_LINES = 20_000
LAUNCHER = -1


class Tail:
    """The newest lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []
        self.cut = False
        """Whether older bytes are only in the file."""
        self._at = -1
        self._rest = b""

    def read(self) -> bool:
        """Takes in what was appended; returns whether there was something."""
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if self._at < 0 or size < self._at:  # the first time, or it was truncated
                    self._at = max(0, size - KEEP_BYTES)
                    self.cut = self._at > 0
                    self.lines, self._rest = [], b""
                if size == self._at:
                    return False
                file.seek(self._at)
                body = self._rest + file.read(KEEP_BYTES)
                self._at = file.tell()
        except OSError:
            return False
        *whole, self._rest = body.split(b"\n")
        # A progress bar rewrites its line: the last state of it is what a terminal would show.
        self.lines += [plain(line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]) for line in whole]
        if len(self.lines) > KEEP_LINES:
            del self.lines[:-KEEP_LINES]
            self.cut = True
        return True

    @property
    def text(self) -> list[str]:
        """The lines, and the one that is not finished yet."""
        rest = plain(self._rest.decode(errors="replace").rpartition("\r")[2])
        return [*self.lines, rest] if rest else self.lines


class LogView(Chart):
    """Lines, wrapped; the position is a line, so that it stays when the width changes."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = Table.BINDINGS

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lines: list[str] = []
        self.empty = ""
        self.follow = True
        self.top = 0
        self.pattern: re.Pattern[str] | None = None

    def show_lines(self, lines: list[str], empty: str) -> None:
        self.lines, self.empty = lines, empty
        self.redraw()

    def action_move(self, by: int) -> None:
        """Scrolls by lines; at the end it follows again."""
        if self.follow:
            self.top = self._last_page(*self.size)
        last = self._last_page(*self.size)
        self.top = max(0, min(self.top + by, last))
        self.follow = by > 0 and self.top >= last
        self.redraw()

    def action_page(self, direction: int) -> None:
        self.action_move(direction * max(1, self.size.height - 2))

    def on_mouse_scroll_down(self) -> None:
        self.action_move(3)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-3)

    def go_to_match(self, step: int) -> bool:
        """The next line that matches, beyond the end from the other end again; False when none does."""
        if self.pattern is None:
            return False
        n = len(self.lines)
        start = self._last_page(*self.size) if self.follow else self.top
        for offset in range(1, n + 1):
            at = (start + step * offset) % n
            if self.pattern.search(self.lines[at]):
                self.top, self.follow = at, False
                self.redraw()
                return True
        return False

    def _last_page(self, width: int, height: int) -> int:
        used, at = 0, len(self.lines)
        while at > 0:
            used += max(1, -(-len(self.lines[at - 1]) // max(1, width)))
            if used > height:
                break
            at -= 1
        return min(at, max(0, len(self.lines) - 1))

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        if not self.lines:
            return paragraph(self.empty, width, QUIET)[:height]
        if self.follow:
            self.top = self._last_page(width, height)
        rows: list[Row] = []
        for line in self.lines[self.top : self.top + height]:
            parts = (line[begin : begin + width] for begin in range(0, max(1, len(line)), width))
            rows += [crop(self._inked(part), width) for part in parts]
        return rows[:height]

    def _inked(self, line: str) -> Row:
        if self.pattern is None:
            return [(line, LABEL)]
        row: Row = []
        at = 0
        for match in self.pattern.finditer(line):
            if match.end() > match.start():
                row += [(line[at : match.start()], LABEL), (match[0], Ink("ideal", "cursor", True))]
                at = match.end()
        return [*row, (line[at:], LABEL)]


class LogsScreen(View):
    """The log of one rank; left and right go through the ranks."""

    KIND = LOGS
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(LOGS))
    FILTER_HINT = "find a pattern"

    def __init__(self, entry: RunEntry, rank: int) -> None:
        super().__init__()
        self.entry = entry
        self.rank = rank
        self._elsewhere = printed_elsewhere(entry.paths)
        self._tail = Tail(entry.paths.log(rank))

    def body(self) -> Iterable[Widget]:
        yield LogView(id="log", classes="pane first")

    def on_mount(self) -> None:
        hint = self.board.keyed(f"{self.FILTER_HINT}; enter, then {{logs.next}} and {{logs.before}}")
        self.query_one("#filter-text", Input).placeholder = hint

    def on_tick(self) -> None:
        snapshot = self.board.snapshot
        run = snapshot.view if snapshot else None
        self.query_one(Header).show_facts(
            HeaderFacts(run, bool(snapshot and snapshot.live), self.board.services.now_ns(), name=self.entry.name)
        )
        view = self.query_one("#log", LogView)
        self._tail.read()
        lines = self._tail.text
        title_of(view, f"{self.who} · {len(lines):,} lines" + (" (older ones in the file)" if self._tail.cut else ""))
        path, room = str(self._tail.path), max(8, view.size.width - 4)
        path = path if len(path) <= room else f"…{path[1 - room :]}"  # its end tells one from another
        subtitle_of(view, path)
        elsewhere = self._elsewhere if self.rank != LAUNCHER else ""
        view.show_lines(lines, elsewhere or f"{self.who} has printed nothing")
        notes: list[Row] = [
            [
                (
                    "following the end" if view.follow else self.board.keyed("standing still ({logs.follow} follows)"),
                    Ink("ok") if view.follow else Ink("warn"),
                )
            ]
        ]
        if view.pattern is not None:
            hits = sum(1 for line in lines if view.pattern.search(line))
            notes.insert(
                0 if view.follow else 1,
                [(f"/{view.pattern.pattern} {hits:,} lines", Ink("ok") if hits else Ink("warn"))],
            )
        self.query_one(Tabs).show_notes(notes, urgent=not view.follow)

    @property
    def who(self) -> str:
        """Whose log it is."""
        return "launcher" if self.rank == LAUNCHER else f"rank {self.rank}"

    def on_filter(self, text: str) -> str:
        view = self.query_one("#log", LogView)
        try:
            view.pattern = re.compile(text, re.IGNORECASE) if text else None
        except re.error as error:
            return str(FilterError(f"no pattern: {error.msg}"))
        if view.pattern is not None and not any(view.pattern.search(line) for line in view.lines):
            return "no line matches"
        view.redraw()
        return ""

    def action_follow(self) -> None:
        view = self.query_one("#log", LogView)
        view.follow = not view.follow
        self.on_tick()

    def action_next_match(self) -> None:
        self._go_to_match(1)

    def action_previous_match(self) -> None:
        self._go_to_match(-1)

    def _go_to_match(self, step: int) -> None:
        view = self.query_one("#log", LogView)
        if view.pattern is None:
            self.action_filter()
        elif not view.go_to_match(step):
            self.app.notify("no line matches")
        self.on_tick()

    def action_next(self) -> None:
        self._go(1)

    def action_previous(self) -> None:
        self._go(-1)

    def _go(self, by: int) -> None:
        snapshot = self.board.snapshot
        ranks = max(snapshot.view.world_size if snapshot else 0, self.entry.world_size, 1)
        self.rank = (self.rank + 1 + by) % (ranks + 1) - 1
        self._tail = Tail(self.entry.paths.launcher_log if self.rank == LAUNCHER else self.entry.paths.log(self.rank))
        view = self.query_one("#log", LogView)
        view.follow, view.top = True, 0
        self.on_tick()
