"""Pictures finer than cells: several samples per cell, drawn as the block glyph and the two colours that are nearest to them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Blocks(NamedTuple):
    """Glyphs and the samples that each of them paints."""

    glyphs: str
    painted: NDArray[np.bool_]
    """(glyphs, samples of a cell)."""


class Cells(NamedTuple):
    """What to print in each cell, all (rows, columns)."""

    glyph: Ints
    """Index into `Blocks.glyphs`; -1: the whole cell is `first`."""
    first: Ints
    """The value that the glyph paints."""
    then: Ints
    """The value of the rest of the cell."""
    most: Ints
    """The value of most samples: what a letter stands for."""


def _area() -> Blocks:
    """Two columns by eight rows, for areas that stand on a floor: what is painted lies below or beside the rest."""
    painted = {glyph: _lower(8 - at, 8 - at) for at, glyph in enumerate("▇▆▅▄▃▂▁", 1)}
    painted |= {"▌": _lower(8, 0), "▐": _lower(0, 8), "▖": _lower(4, 0), "▗": _lower(0, 4)}
    painted |= {"▙": _lower(8, 4), "▟": _lower(4, 8)}
    return Blocks("".join(painted), np.array(list(painted.values())))


def _lower(left: int, right: int) -> NDArray[np.bool_]:
    """Sixteen samples, row by row from the top, of which so many of a column's eight are painted, from below."""
    row = np.arange(8)[:, None]
    whole: NDArray[np.bool_] = (row >= 8 - np.array([[left, right]])).ravel()
    return whole


def _bar() -> Blocks:
    """Eight columns, for bars that begin and end inside a cell."""
    column = np.arange(8)
    painted = {glyph: column < at for at, glyph in enumerate("▏▎▍▌▋▊▉", 1)}
    painted |= {"▐": column >= 4, "▕": column >= 7}
    return Blocks("".join(painted), np.array(list(painted.values())))


AREA, BAR = _area(), _bar()
AREA_ROWS, AREA_COLUMNS, BAR_COLUMNS = 8, 2, 8


def fit_cells(samples: Ints, blocks: Blocks, *, above: int | None = None) -> Cells:
    """The nearest glyph for each cell.

    Args:
        samples: (rows, columns, samples of a cell), small numbers from 0 on. Of the two values that most samples of a
            cell have, the smaller one is painted, with all that is smaller than the other.
        blocks: The glyphs there are.
        above: A value, the largest, that is one of the two wherever it is: the outline of a stack is then where it
            should be, whatever lies below it.
    """
    low, high = samples.min(axis=2), samples.max(axis=2)
    glyph = np.full(low.shape, -1, dtype=np.int64)
    first, then, most = low.copy(), low.copy(), low.copy()
    mixed = low != high
    if mixed.any():
        cells = samples[mixed]
        counts = np.stack([(cells == value).sum(axis=1) for value in range(int(high.max()) + 1)], axis=1)
        top = most[mixed] = counts.argmax(axis=1)
        if above is not None and above < counts.shape[1]:
            top = np.where(counts[:, above] > 0, above, top)
        counts[np.arange(len(counts)), top] = -1
        second = counts.argmax(axis=1)
        painted, rest = np.minimum(top, second), np.maximum(top, second)
        on = (cells < rest[:, None]).astype(np.int64)
        off = 1 - on
        patterns = blocks.painted.astype(np.int64)
        agreeing = on @ patterns.T + off @ (1 - patterns).T
        # One value all over may be nearer than any glyph: a sliver that would have to be drawn too large.
        alone = np.maximum(on.sum(axis=1), off.sum(axis=1)) > agreeing.max(axis=1)
        glyph[mixed] = np.where(alone, -1, agreeing.argmax(axis=1))
        first[mixed] = np.where(alone & (off.sum(axis=1) > on.sum(axis=1)), rest, painted)
        then[mixed] = rest
    return Cells(glyph, first, then, most)


def stacked(levels: NDArray[np.float64], scale: float, height: int) -> Ints:
    """Samples for AREA of areas stacked on each other.

    Args:
        levels: (AREA_COLUMNS * columns, values) what each value adds to the stack, 0 and more.
        scale: What the upper edge stands for.
        height: Rows.

    Returns:
        (height, columns, AREA_ROWS * AREA_COLUMNS): the value's index, or the number of values above the stack.
    """
    lines = height * AREA_ROWS
    ends = np.rint(np.cumsum(levels, axis=1) / (scale or 1.0) * lines)
    at = np.arange(lines - 1, -1, -1)
    values = np.zeros((lines, len(levels)), dtype=np.int64)
    for column in ends.T:
        values += column[None, :] <= at[:, None]
    columns = len(levels) // AREA_COLUMNS
    return (
        values.reshape(height, AREA_ROWS, columns, AREA_COLUMNS)
        .transpose(0, 2, 1, 3)
        .reshape(height, columns, AREA_ROWS * AREA_COLUMNS)
    )
