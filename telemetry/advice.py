"""One sentence on several runs of the same training: the fastest, the smallest, and the best trade between the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fsdp_tui.telemetry.losses import lost
from fsdp_tui.telemetry.view import RunView, total
from fsdp_tui.telemetry.wording import percent

ALIKE = 0.03
"""Runs whose speed or peak is this close, relatively, are not told apart."""


class Trade(NamedTuple):
    """What one run costs and gives."""

    at: int
    """Index among the runs compared."""
    peak: int
    """Bytes of the fullest rank at its peak."""
    per_s: float
    """Tokens or samples."""


class Advice(NamedTuple):
    """Indices among the runs compared; the sentence names them by what `names` calls them."""

    fastest: int
    smallest: int
    trade: int
    text: str


def advise(runs: Sequence[RunView], names: Sequence[str]) -> Advice | None:
    """Which of these runs to choose, and why; None unless two or more of one throughput unit and model are known.

    The best trade is the run whose loss of speed against the fastest, times its growth of the peak against the smallest, is
    least: giving up half of the speed is as bad as taking twice the memory. Runs whose loss is no number any more are left
    out, and the sentence says so: what a training costs that trains nothing is no figure to choose by.
    """
    trades = _trades(runs)
    if len(trades) < 2:
        return None
    fastest = max(trades, key=lambda trade: trade.per_s)
    smallest = min(trades, key=lambda trade: trade.peak)
    # Among equals in speed the smaller one, among equals in memory the faster one.
    fastest = min((one for one in trades if one.per_s >= fastest.per_s * (1 - ALIKE)), key=lambda one: one.peak)
    smallest = max((one for one in trades if one.peak <= smallest.peak * (1 + ALIKE)), key=lambda one: one.per_s)
    best = min(trades, key=lambda one: (fastest.per_s / one.per_s) * (one.peak / smallest.peak))
    least = min(trade.peak for trade in trades)
    most = max(trade.per_s for trade in trades)
    text = _sentence(fastest, smallest, best, names, exact=(fastest.per_s, smallest.peak) == (most, least))
    if out := left_out(runs, names):
        text += f"; {out}"
    if any(rank.hello is not None and rank.hello.device == "cpu" for run in runs for rank in run.ranks):
        text += "; these are times of a CPU, and on GPUs the order may be another"
    return Advice(fastest.at, smallest.at, best.at, text)


def left_out(runs: Sequence[RunView], names: Sequence[str]) -> str:
    """Which runs are no choice, and why; empty when all are."""
    found = [(names[at], gone) for at, run in enumerate(runs) if (gone := lost(run)) and gone.still]
    return "; ".join(f"{name} is left out: its loss is no number ({gone.word}) {gone.when}" for name, gone in found)


def _trades(runs: Sequence[RunView]) -> list[Trade]:
    units = {run.throughput.unit for run in runs}
    models = {run.params for run in runs}
    if len(units) != 1 or len(models) != 1:
        return []
    found = []
    for at, run in enumerate(runs):
        peaks = [total(rank.peak) for rank in run.ranks]
        known = [peak for peak in peaks if peak]
        gone = lost(run)
        if gone is not None and gone.still:
            continue
        if run.throughput.per_s and known and len(known) == len(peaks):
            found.append(Trade(at, max(known), run.throughput.per_s))
    return found


def _sentence(fastest: Trade, smallest: Trade, best: Trade, names: Sequence[str], *, exact: bool) -> str:
    if fastest.at == smallest.at:
        within = "" if exact else f", within {percent(ALIKE)}"
        return f"{names[fastest.at]} is the fastest and the smallest{within}: nothing speaks for another"
    memory, speed = 1 - smallest.peak / fastest.peak, 1 - smallest.per_s / fastest.per_s
    text = (
        f"{names[fastest.at]} is the fastest that fits, {names[smallest.at]} the smallest:"
        f" {percent(memory)} less memory for {percent(speed)} less speed"
    )
    if best.at in (fastest.at, smallest.at):
        return f"{text}; {names[best.at]} is the better trade"
    return (
        f"{text}; the best trade is {names[best.at]}:"
        f" {percent(1 - best.peak / fastest.peak)} less memory for {percent(1 - best.per_s / fastest.per_s)} less speed"
    )
