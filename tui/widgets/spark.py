"""Trends and shares as plain text, for tables and titles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BLOCKS = "▁▂▃▄▅▆▇█"


def spark(values: NDArray[np.float64], width: int, *, low: float | None = None, high: float | None = None) -> str:
    """Values as at most `width` blocks, each the highest of those it stands for; `·` where nothing is known.

    Args:
        values: (n,), oldest first; NaN is not known.
        width: Cells.
        low: Value of the lowest block; default: the smallest. Give both to compare several trends.
        high: Value of the highest block; default: the largest.
    """
    values = np.asarray(values, dtype=float)
    if width < 1 or not len(values):
        return ""
    if len(values) > width:
        starts = np.arange(width) * len(values) // width
        filled = np.where(np.isfinite(values), values, -np.inf)
        values = np.maximum.reduceat(filled, starts)
    good = np.isfinite(values)
    if not good.any():
        return "·" * len(values)
    low = float(values[good].min()) if low is None else low
    high = float(values[good].max()) if high is None else high
    span = high - low
    part = (np.where(good, values, low) - low) / span if span > 0 else np.full(len(values), 0.5)
    levels = np.clip((part * len(_BLOCKS)).astype(int), 0, len(_BLOCKS) - 1)
    return "".join(_BLOCKS[level] if ok else "·" for level, ok in zip(levels.tolist(), good.tolist(), strict=True))


def gauge(value: float | None, scale: float, width: int) -> str:
    """A value as a bar of exactly `width` cells, to an eighth of a cell; `?` where it is not known."""
    if value is None or not np.isfinite(value) or not scale > 0:
        return "?".ljust(width)[: max(0, width)]
    if value > scale:
        return ("█" * (width - 1) + "»")[: max(0, width)]
    eighths = round(max(0.0, value) / scale * width * 8)
    return ("█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")).ljust(width)
