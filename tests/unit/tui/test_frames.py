"""What a terminal shows after many partial frames is what one whole frame would show."""

from __future__ import annotations

import random
from typing import Any

import pyte
from rich.console import Console, RenderableType
from rich.control import Control
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.screen import Screen

from fsdp_tui.tui.frames import ChangedCells, exact
from fsdp_tui.tui.theme import ROLES, Ink
from fsdp_tui.tui.widgets.chart import Chart, Row

SIZE = (60, 12)
WORDS = ("ab", "cdef", "層", "—", "  ", "unit 層7", "0.35 GiB")


class Cells(Chart):
    """Rows of pieces, some of which change."""

    DEFAULT_CSS = "Cells { border: round white; }"

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.rows: list[Row] = [self.piece_row() for _ in range(SIZE[1])]

    def piece_row(self) -> Row:
        return [self.piece() for _ in range(12)]

    def piece(self) -> tuple[str, Ink]:
        return self.chance.choice(WORDS), Ink(
            self.chance.choice(("ok", "warn", "note")), bold=self.chance.random() < 0.3
        )

    def change(self) -> None:
        for row in self.chance.sample(self.rows, 4):
            for _ in range(self.chance.randrange(3)):
                row[self.chance.randrange(len(row))] = self.piece()
        self.redraw()
        for end in ("border_title", "border_subtitle"):
            if self.chance.random() < 0.5:
                self.set_frame(end, " ".join(self.chance.sample(WORDS, 2)))

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        return [list(row) for row in self.rows]


class Terminal(App[None]):
    """Two charts side by side, drawn on an emulator."""

    def __init__(self) -> None:
        super().__init__()
        self.chance = random.Random(1)
        self.shown = pyte.Screen(*SIZE)
        self.partial = 0
        self._stream = pyte.Stream(self.shown)
        self._colours = Console(color_system="truecolor", force_terminal=True)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(ROLES)

    def compose(self) -> ComposeResult:
        yield Horizontal(Cells(self.chance), Cells(self.chance))

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        update: Any = exact(renderable)
        if update is not None and not self._batch_count:
            self.partial += (
                isinstance(update, ChangedCells) and min(end - x for _, x, end in update.spans) < SIZE[0] // 2
            )
            self._stream.feed(update.render_segments(self._colours))

    def whole(self) -> pyte.Screen:
        """One frame of everything."""
        screen = pyte.Screen(*SIZE)
        stream = pyte.Stream(screen)
        for y, strip in enumerate(self.screen._compositor.render_strips()):
            stream.feed(Control.move_to(0, y).segment.text + strip.render(self._colours))
        return screen


async def test_partial_frames_add_up() -> None:
    """Text, colours and weight of every cell, names of two cells per character included."""
    app = Terminal()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        for _ in range(40):
            for chart in app.query(Cells):
                chart.change()
            await pilot.pause(0.02)
            expected = app.whole()
            for y in range(SIZE[1]):
                for x in range(SIZE[0]):
                    assert app.shown.buffer[y][x] == expected.buffer[y][x], (y, x)
        assert app.partial >= 30
