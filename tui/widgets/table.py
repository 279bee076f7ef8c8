"""Tables and text panes: aligned columns that give way by importance, wrapped text, and a cursor that scrolls.

A column that finds no room is left out whole and the heading ends in "…"; rows that find none are counted in the last
line. Nothing disappears without a word.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.message import Message

from fsdp_tui.tui.format import GLUE, count, fit, glued, plain
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, Chart, Row, crop, row_width

GAP = 2
Cell = str | tuple[str, Ink]
Draw = Callable[[int, int, bool], list[Row]]
"""(width, height, letters) -> rows."""


@dataclass(frozen=True, eq=False)
class TableColumn:
    """One column; all columns of a table have the same number of cells."""

    title: str
    cells: Sequence[Cell]
    left: bool = False
    """Text to the left; numbers stand at the right."""
    need: int = 0
    """0: always there; where room is short, the column with the largest number goes first."""
    least: int | None = None
    """A column that may be cut to this width, its texts then ending in "…"; it also takes what room is left."""

    @property
    def width(self) -> int:
        """Cells that its title and every text need."""
        return max([len(self.title), *(len(_text(cell)) for cell in self.cells)])


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def arrange(columns: Sequence[TableColumn], width: int) -> tuple[list[tuple[TableColumn, int]], bool]:
    """The columns that fit with the width of each, and whether some were left out."""
    chosen = [column for column in columns if column.cells or column.title]
    while True:
        short = len(chosen) < len(columns)
        room = width - GAP * (len(chosen) - 1) - (2 if short else 0)
        fixed = sum(column.width for column in chosen if column.least is None)
        soft = [column for column in chosen if column.least is not None]
        least = sum(min(column.width, column.least or 0) for column in soft)
        worst = max((column.need for column in chosen), default=0)
        if fixed + least <= room or worst == 0:
            break
        last = max(index for index, column in enumerate(chosen) if column.need == worst)
        del chosen[last]
    left = max(0, room - fixed - least)
    widths = []
    for column in chosen:
        if column.least is None:
            widths.append(column.width)
            continue
        base = min(column.width, column.least)
        extra = min(left, column.width - base)
        left -= extra
        widths.append(base + extra)
    return list(zip(chosen, widths, strict=True)), short


def draw_table(
    columns: Sequence[TableColumn], width: int, height: int, *, first: int = 0, cursor: int | None = None
) -> list[Row]:
    """The heading and the rows from `first` on, in at most `height` rows of `width` cells."""
    if width < 1 or height < 1 or not columns:
        return []
    plan, short = arrange(columns, width)
    n = len(columns[0].cells)
    heading: Row = []
    for column, wide in plan:
        title = fit(column.title, wide)
        heading.append((title if column.left else title.strip().rjust(wide), QUIET))
        heading.append((" " * GAP, QUIET))
    if short:
        heading[-1] = (" …", QUIET)
    rows = [_cut(heading, width)] if height > 1 else []
    space = height - len(rows)
    first = max(0, min(first, n - space if n > space > 1 else n - 1))
    hidden = n > space > 1
    rows += [_cut(_row(plan, index, index == cursor), width) for index in range(first, min(n, first + space - hidden))]
    if hidden:
        below = n - first - (space - 1)
        words = [f"↑ {count(first)}"] if first else []
        words += [f"↓ {count(below)} more"] if below > 0 else []
        rows.append(crop([("  ".join(words), QUIET)], width))
    return rows


def _cut(row: Row, width: int) -> Row:
    """The row in `width` cells; one that needs more ends in "…"."""
    while row and not row[-1][0].strip():
        row = row[:-1]
    return crop(row, width) if row_width(row) <= width else [*crop(row, width - 1), ("…", QUIET)]


def _row(plan: Sequence[tuple[TableColumn, int]], index: int, chosen: bool) -> Row:
    row: Row = []
    for column, wide in plan:
        cell = column.cells[index]
        text, ink = (cell, LABEL) if isinstance(cell, str) else cell
        text = fit(text, wide) if column.left or len(text) > wide else text.rjust(wide)
        row.append(
            (text, Ink("strong", "cursor", ink.bold) if chosen and ink in (LABEL, QUIET) else _under(ink, chosen))
        )
        row.append((" " * GAP, Ink("strong", "cursor") if chosen else LABEL))
    return row[:-1]


def _under(ink: Ink, chosen: bool) -> Ink:
    return ink._replace(bg="cursor") if chosen else ink


def paragraph(
    text: str,
    width: int,
    ink: Ink = LABEL,
    *,
    first: Row = (),  # type: ignore[assignment]
    indent: int = 0,
    most: int | None = None,
) -> list[Row]:
    """Text wrapped to rows of `width` cells, `first` before it and later lines indented; of more rows than `most` the last ends
    in "…"."""
    lead = list(first)
    taken = sum(len(piece) for piece, _ in lead)
    indent = min(indent or taken, max(0, width - 8))
    lines = textwrap.wrap(
        glued(plain(text)),
        max(1, width),
        initial_indent=" " * taken,
        subsequent_indent=" " * indent,
        break_long_words=True,
        break_on_hyphens=False,
        max_lines=most,
        placeholder=" …",
    ) or [" " * taken]
    lines = [line.replace(GLUE, " ") for line in lines]
    rows: list[Row] = [crop([*lead, (lines[0][taken:], ink)], width)]
    return rows + [crop([(line, ink)], width) for line in lines[1:]]


class Pane(Chart):
    """A pane drawn by a function of its size: text, key figures, cards."""

    can_focus = True

    def __init__(self, draw: Draw | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._draw = draw

    def show(self, draw: Draw) -> None:
        """Draw with this from now on."""
        self._draw = draw
        self.redraw()

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        return self._draw(width, height, letters) if self._draw else []


class Table(Chart):
    """A table that scrolls, with a cursor on one of its rows."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
    ]

    class CursorMoved(Message):
        """The cursor is on another row."""

    def __init__(self, *, empty: str = "nothing yet", cursor: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.empty = empty
        self.cursor = self._told = 0
        self._has_cursor = cursor
        self._columns: Sequence[TableColumn] = ()
        self._first = 0

    @property
    def row_count(self) -> int:
        return len(self._columns[0].cells) if self._columns else 0

    def show_columns(self, columns: Sequence[TableColumn], *, cursor: int | None = None) -> None:
        """Draw these; the cursor stays where it is unless told."""
        self._columns = columns
        self.cursor = self.cursor if cursor is None else cursor
        self._settle()

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()

    def action_move(self, by: int) -> None:
        """Moves the cursor, or the text where there is none."""
        if self._has_cursor:
            self.cursor += by
        else:
            self._first += by
        self._settle()

    def action_page(self, direction: int) -> None:
        self.action_move(direction * max(1, self.size.height - 2))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.action_move(1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.action_move(-1)

    def on_click(self, event: Click) -> None:
        row = event.get_content_offset(self)
        if row is not None and self._has_cursor and 1 <= row.y < self.size.height:
            self.cursor = self._first + row.y - 1
            self._settle()

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        if not self.row_count:
            return paragraph(self.empty, width, QUIET)[:height]
        self._scroll(height)
        cursor = self.cursor if self._has_cursor and self.has_focus else None
        return draw_table(self._columns, width, height, first=self._first, cursor=cursor)

    def _settle(self) -> None:
        self.cursor = max(0, min(self.cursor, self.row_count - 1))
        self._scroll(self.size.height)
        self.redraw()
        if self.cursor != self._told:
            self._told = self.cursor
            self.post_message(self.CursorMoved())

    def _scroll(self, height: int) -> None:
        space = max(1, height - 1)
        visible = space - 1 if self.row_count > space > 1 else space
        last = max(0, self.row_count - visible)
        if self._has_cursor:
            self._first = max(min(self._first, self.cursor), self.cursor - visible + 1)
        self._first = max(0, min(self._first, last))


class Reader(Chart):
    """Text that scrolls, laid out anew for every width."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = Table.BINDINGS

    def __init__(self, write: Callable[[int], list[Row]] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._write = write
        self._first = 0

    def show(self, write: Callable[[int], list[Row]]) -> None:
        """Show what this writes for a width; stays where it was scrolled to."""
        self._write = write
        self.redraw()

    def action_move(self, by: int) -> None:
        """Scrolls by rows."""
        last = max(0, len(self._written(self.size.width)) - max(1, self.size.height - 1))
        self._first = max(0, min(self._first + by, last))
        self.redraw()

    def action_page(self, direction: int) -> None:
        self.action_move(direction * max(1, self.size.height - 2))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.action_move(2)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.action_move(-2)

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        rows = self._written(width)
        if len(rows) <= height:
            return rows
        if height == 1:
            return rows[self._first :][:1]
        first = self._first = min(self._first, len(rows) - (height - 1))
        below = len(rows) - first - (height - 1)
        words = ([f"↑ {count(first)}"] if first else []) + ([f"↓ {count(below)} more lines"] if below else [])
        return [*rows[first : first + height - 1], crop([("  ".join(words), QUIET)], width)]

    def _written(self, width: int) -> list[Row]:
        return self._write(max(1, width)) if self._write else []
