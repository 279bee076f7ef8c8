"""The thin line of time below a run that is gone back in: where one is, what happened when, and how it is played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click
from textual.message import Message

from fsdp_tui.tui.theme import SEVERITY_GLYPHS, Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, Chart, Row, crop, flow, row_width

GRAVITY = tuple(SEVERITY_GLYPHS)
"""Severities, the gravest last: it is the mark of a cell that has several events."""
MARKS = SEVERITY_GLYPHS | {"note": "┴"}
LEAST = 24
"""Cells of the line that hints make room for."""
HERE, GONE, COMING = "█", "━", "─"


@dataclass(frozen=True)
class TimeLine:
    """A run's time, and a moment in it."""

    begin_ns: int
    end_ns: int
    at_ns: int | None
    """None: on the way."""
    events: tuple[tuple[int, str], ...]
    """Time and severity."""
    playing: bool
    speed: int
    hints: tuple[str, ...] = ()

    def cell(self, at_ns: int, width: int) -> int:
        """Where a time is on a line of so many cells."""
        span = max(1, self.end_ns - self.begin_ns)
        return max(0, min(width - 1, (at_ns - self.begin_ns) * width // span))

    def time(self, cell: int, width: int) -> int:
        """The time in the middle of a cell."""
        return self.begin_ns + (self.end_ns - self.begin_ns) * (2 * cell + 1) // (2 * max(1, width))


def draw_line(line: TimeLine, width: int) -> Row:
    """`width` cells: what is behind one is drawn thick, what is ahead thin, events as marks."""
    here = line.cell(line.at_ns, width) if line.at_ns is not None else -1
    marks: dict[int, str] = {}
    for at_ns, severity in line.events:
        cell = line.cell(at_ns, width)
        marks[cell] = max(marks.get(cell, severity), severity, key=_gravity)
    row: Row = []
    for cell in range(width):
        if cell == here:
            row.append((HERE, Ink("strong", bold=True)))
        elif cell in marks:
            row.append(
                (MARKS.get(marks[cell], MARKS["note"]), Ink(marks[cell] if marks[cell] in MARKS else "note", bold=True))
            )
        else:
            row.append((GONE, Ink("ok")) if cell < here else (COMING, QUIET))
    return row


def _gravity(severity: str) -> int:
    return GRAVITY.index(severity) if severity in GRAVITY else 0


class Scrubber(Chart):
    """One line at the bottom; with the focus, arrows and the like move in time."""

    DEFAULT_CSS = "Scrubber { height: 1; display: none; }"
    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "screen.past_step(-1)", show=False),
        Binding("right", "screen.past_step(1)", show=False),
        Binding("pageup", "screen.past_part(-1)", show=False),
        Binding("pagedown", "screen.past_part(1)", show=False),
        Binding("home", "screen.past_begin", show=False),
        Binding("end", "screen.past_end", show=False),
        Binding("space", "screen.past_play", show=False),
        Binding("up", "screen.past_speed", show=False),
        Binding("enter", "screen.past_jump", show=False),
    ]
    FOCUSED: ClassVar[tuple[str, ...]] = ("← → step", "space play", "home begin", "end now")

    class Clicked(Message):
        """The line was clicked at a time."""

        def __init__(self, at_ns: int) -> None:
            super().__init__()
            self.at_ns = at_ns

    line: TimeLine | None = None

    def show_line(self, line: TimeLine | None) -> None:
        """Shows it, or goes away."""
        self.line = line
        self.display = line is not None
        self.redraw()

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        line = self.line
        if line is None:
            return []
        left, right = self._ends(line, width)
        room = max(0, width - row_width(left) - row_width(right))
        return [crop([*left, *draw_line(line, room), *right], width)]

    def _ends(self, line: TimeLine, width: int) -> tuple[Row, Row]:
        sign = "▶" if line.playing else "▮▮"
        left: Row = [(f" {sign} {line.speed}× ", Ink("warn", bold=True))]
        focused = self.has_focus
        hints: Sequence[str] = self.FOCUSED if focused else line.hints
        pieces: list[Row] = [[(hint, LABEL if focused else QUIET)] for hint in hints]
        row, _ = flow(pieces, max(0, width - row_width(left) - LEAST - 2))
        return left, [(" ", LABEL), *row, (" ", LABEL)]

    def on_click(self, event: Click) -> None:
        if self.line is None:
            return
        left, right = self._ends(self.line, self.size.width)
        room = self.size.width - row_width(left) - row_width(right)
        cell = event.x - row_width(left)
        if 0 <= cell < room:
            self.post_message(self.Clicked(self.line.time(cell, room)))
