"""How the rows of panes share a screen's height, and what lies below the fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.widget import Widget

from fsdp_tui.tui.screens.base import View
from fsdp_tui.tui.screens.replayed import Replayed


class Band(NamedTuple):
    """A row of panes."""

    name: str
    least: int
    most: int
    weight: int
    """Share of the room that is left when every band has its least."""


def fit_bands(bands: Sequence[Band], room: int) -> tuple[dict[str, int], list[str]]:
    """The height of each band, and the names of those that lie below the fold: one scrolls, or tabs, to them."""
    heights: dict[str, int] = {}
    above: list[Band] = []
    left = room
    for band in bands:
        if left >= band.least and len(above) == len(heights):
            above.append(band)
            left -= band.least
            heights[band.name] = band.least
        else:
            break
    if not above:
        above = [bands[0]]
        heights[bands[0].name] = max(1, room)
        left = 0
    growing = [band for band in above if band.most > heights[band.name]]
    while left > 0 and growing:
        whole = sum(band.weight for band in growing)
        given = 0
        for band in growing:
            more = min(left - given, band.most - heights[band.name], max(1, left * band.weight // whole))
            heights[band.name] += more
            given += more
        left -= given
        growing = [band for band in growing if band.most > heights[band.name]]
    below = [band.name for band in bands if band.name not in heights]
    for band in bands:
        if band.name in below:
            heights[band.name] = min(band.most, max(band.least, min(room, band.least + 4)))
    return heights, below


class Zooming(View):
    """A screen one of whose panes may take all the room.

    Attributes:
        zoomed: the pane that does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.zoomed: Widget | None = None

    def show_zoom(self) -> None:
        """Puts the other panes away, or back."""
        zoomed = self.zoomed
        for pane in self.query(".pane"):
            pane.set_class(zoomed is not None and pane is not zoomed, "-away")
            pane.set_class(pane is zoomed, "-alone")

    def action_zoom(self) -> None:
        """The focused pane alone, the first where none is, or all of them again."""
        pane = self.focused if self.focused is not None and self.focused.has_class("pane") else None
        self.zoomed = (pane or self.query(".pane.first").first()) if self.zoomed is None else None
        self.on_tick()

    def action_back(self) -> None:
        """Ends the zoom first."""
        if self.zoomed is not None:
            self.action_zoom()
        else:
            super().action_back()


class Banded(Zooming, Replayed):
    """A screen of panes in bands: ids of BANDS inside `#body`.

    Attributes:
        below: bands that lie below the fold.
    """

    BANDS: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        super().__init__()
        self.below: list[str] = []

    def lay_out(self, bands: Sequence[Band]) -> None:
        """Gives the bands their heights; those that are not in `bands` are not shown."""
        room = self.query_one("#body").size.height or max(1, self.size.height - 4)
        zoomed = self.zoomed
        self.show_zoom()
        if zoomed is not None:
            heights = {name: room for name in self.BANDS if zoomed in self.query_one(f"#{name}").children}
            self.below = []
        else:
            heights, self.below = fit_bands(bands, room)
        for name in self.BANDS:
            band = self.query_one(f"#{name}")
            band.display = name in heights
            if name in heights:
                band.styles.height = heights[name]
