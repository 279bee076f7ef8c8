"""What is sent of a frame. Of a line that has changed Textual sends everything from its pane's left edge on; here it is the cells
that have changed. And no control character that is in a text is sent."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.control import Control
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from fsdp_tui.tui.format import plain

try:
    from textual._compositor import ChopsUpdate
except ImportError:  # it is private: a Textual without it sends its frames as it likes
    ChopsUpdate = object  # type: ignore[assignment,misc]


class ChangedCells(ChopsUpdate):
    """An update that keeps to its spans on both sides."""

    def render_segments(self, console: Console) -> str:
        parts: list[str] = []
        for y, begin, end in self.spans:
            for right, (left, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                if strip is not None and left < end and right > begin:
                    x = max(left, begin)
                    parts.append(Control.move_to(x, y).segment.text)
                    parts.append(strip.crop(x - left, min(right, end) - left).render(console))
        return "".join(parts)


class Harmless(LineFilter):
    """Other programs' texts as `plain` has them, in the cells that their place was measured for: every widget's lines, frames,
    titles and fields pass here."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [
            segment if segment.control else Segment(_in_its_place(segment.text), segment.style) for segment in segments
        ]


def _in_its_place(text: str) -> str:
    return set_cell_size(plain(text), cell_len(text))


def exact(update: RenderableType | None) -> RenderableType | None:
    """The same update, of changed cells only where it is one of some spans of some lines."""
    if type(update) is ChopsUpdate and all(hasattr(update, name) for name in ("chops", "spans", "chop_ends")):
        return ChangedCells(update.chops, update.spans, update.chop_ends)
    return update
