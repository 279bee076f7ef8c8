"""How the rows of panes share a screen's height, and what lies below the fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


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
