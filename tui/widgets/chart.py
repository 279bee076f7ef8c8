"""What all charts share: rows of inked text, and the widget that shows them line by line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from fsdp_tui.tui.theme import Ink, Palette, letters_mode, palette_for

Row = list[tuple[str, Ink]]
"""One line of a chart: pieces of text, each with its ink."""

NEAR = 8
"""Cells between two changes that are sent again: to move the cursor over them takes as many bytes."""
LABEL = Ink("label")
QUIET = Ink("quiet")
STRONG = Ink("strong", bold=True)


def row_text(row: Row) -> str:
    """The row without its inks."""
    return "".join(text for text, _ in row)


def row_width(row: Row) -> int:
    """Cells that the row takes: other scripts' names and emoji take two per character."""
    return sum(cell_len(text) for text, _ in row)


def crop(row: Row, width: int) -> Row:
    """The row cut or padded to exactly this width."""
    out: Row = []
    for text, ink in row:
        if width <= 0:
            break
        cells = cell_len(text)
        out.append((text if cells <= width else set_cell_size(text, width), ink))
        width -= cells
    if width > 0:
        out.append((" " * width, LABEL))
    return out


def over(row: Row, at: int, text: str, ink: Ink) -> Row:
    """The row with text laid over it from a cell on."""
    before, after = [], []
    x = 0
    for piece, own in row:
        if x < at:
            before.append((piece[: at - x], own))
        if x + len(piece) > at + len(text):
            after.append((piece[max(0, at + len(text) - x) :], own))
        x += len(piece)
    return [*before, (text, ink), *after]


def changed_spans(before: Row | None, after: Row | None, width: int) -> list[tuple[int, int]]:
    """Where two lines of this width differ, as cells from and up to: whole pieces, near ones together."""
    if before == after:
        return []
    spans: list[tuple[int, int]] = []
    old, new = iter(before or ()), iter(after or ())
    old_piece = next(old, None)
    old_x = x = 0
    for piece in new:
        end = x + cell_len(piece[0])
        if old_x != x or old_piece != piece:
            if spans and x - spans[-1][1] < NEAR:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((x, end))
        x = end
        while old_piece is not None and old_x < x:
            old_x += cell_len(old_piece[0])
            old_piece = next(old, None)
    if before is None or x != width or old_x != width or old_piece is not None:
        return [(0, width)]  # what is drawn is padded or cut
    return spans


def flow(pieces: Sequence[Row], width: int, *, gap: str = "  ") -> tuple[Row, int]:
    """As many whole pieces as fit into a row, and how many those are."""
    row: Row = []
    used = 0
    for index, piece in enumerate(pieces):
        need = row_width(piece) + (len(gap) if row else 0)
        if used + need > width:
            return row, index
        if row:
            row.append((gap, LABEL))
        row += piece
        used += need
    return row, len(pieces)


def wrap(pieces: Sequence[Row], width: int, height: int, *, gap: str = "  ") -> tuple[list[Row], int]:
    """Whole pieces in at most `height` rows of `width` cells, and how many pieces found no room."""
    rows: list[Row] = []
    rest = list(pieces)
    while rest and len(rows) < height:
        row, shown = flow(rest, width, gap=gap)
        if not shown:
            break
        rows.append(crop(row, width))
        rest = rest[shown:]
    return rows, len(rest)


class Chart(Widget):
    """A widget drawn from rows.

    A subclass keeps its data, implements `draw`, and calls `redraw` after a change; only what differs of a line is sent to
    the terminal. Nothing is computed while the chart is hidden.
    """

    DEFAULT_CSS = """
    Chart { width: 1fr; height: 1fr; }
    """
    ALLOW_SELECT = False

    _only_frame = False
    _rows: list[Row] | None = None
    _strips: list[Strip | None]
    _drawn_for: tuple[int, int, bool] = (0, 0, False)
    _palette: Palette | None = None
    _styles: dict[Ink, Style]

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        """At most `height` rows of `width` cells."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw again after the data changed."""
        width, height = self.size
        if not (width and height and self.is_attached and self._rows is not None):
            self._rows = None
            self.refresh()
            return
        before = self._rows
        self._compute()
        after = self._rows
        changed = [
            Region(x, y, end - x, 1)
            for y in range(height)
            for x, end in changed_spans(_at(before, y), _at(after, y), width)
        ]
        if changed:
            self.refresh(*changed)

    def set_frame(self, name: str, text: str) -> None:
        """Sets `border_title` or `border_subtitle`. Textual draws all of a widget again for it; here it is the frame."""
        if getattr(self, name) != text:
            self._only_frame = True
            try:
                setattr(self, name, text)
            finally:
                self._only_frame = False

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        if self._only_frame and not regions:
            x, y = self.content_offset
            width, height = self.outer_size
            regions = (Region(-x, -y, width, 1), Region(-x, height - 1 - y, width, 1))
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def render_line(self, y: int) -> Strip:
        """One line, from the cache if nothing changed."""
        palette = palette_for(self.app)
        width, height = self.size
        if self._rows is None or self._drawn_for != (width, height, letters_mode(self.app)):
            self._compute()
        if palette is not self._palette:
            self._palette, self._styles = palette, {}
            self._strips = [None] * len(self._strips)
        if not self._rows or y >= len(self._rows):
            return Strip.blank(width, self._style(LABEL))
        strip = self._strips[y]
        if strip is None:
            strip = Strip([Segment(text, self._style(ink)) for text, ink in self._rows[y]])
            # Strip believes a length that it is told; measured and cut, nothing is painted over the neighbour.
            strip = self._strips[y] = strip.adjust_cell_length(width, self._style(LABEL))
        return strip

    def notify_style_update(self) -> None:
        """Forget styles: the theme or the background (of a focused pane, say) may be another."""
        super().notify_style_update()
        self._palette = None

    def _style(self, ink: Ink) -> Style:
        style = self._styles.get(ink)
        if style is None:
            assert self._palette is not None
            style = self._palette[ink]
            if not ink.bg:
                # Lines that a widget renders itself do not get its background from Textual.
                style = Style(bgcolor=self.background_colors[1].rich_color) + style
            self._styles[ink] = style
        return style

    def _compute(self) -> None:
        width, height = self.size
        letters = letters_mode(self.app)
        kept, strips = self._rows or [], getattr(self, "_strips", [])
        same_size = self._drawn_for == (width, height, letters)
        self._rows = self.draw(width, height, letters)[:height] if width and height else []
        self._strips = [
            strips[y] if same_size and y < len(kept) and kept[y] == row else None for y, row in enumerate(self._rows)
        ]
        self._drawn_for = (width, height, letters)


def _at(rows: list[Row] | None, y: int) -> Row | None:
    return rows[y] if rows is not None and y < len(rows) else None
