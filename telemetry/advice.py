"""One sentence on several runs of the same training: the fastest, the smallest, and the best trade between the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fsdp_tui.telemetry.losses import lost
from fsdp_tui.telemetry.spread import APART, LEAST, Spread, apart, differ, spread_of
from fsdp_tui.telemetry.view import RunView, Verdict, highest, worst
from fsdp_tui.telemetry.wording import count, duration, percent


class Trade(NamedTuple):
    """What one run costs and gives."""

    at: int
    """Index among the runs compared."""
    peak: int
    """Highest so far of the fullest rank, in bytes."""
    speed: Spread
    """Tokens or samples per second."""

    @property
    def per_s(self) -> float:
        return self.speed.median


class Advice(NamedTuple):
    """Indices among the runs compared; the sentence names them by what `names` calls them."""

    fastest: int | None
    """None where no run is faster than another by more than steps vary by,"""
    smallest: int | None
    """and where none is smaller."""
    trade: int | None
    """None where neither is."""
    text: str


def advise(runs: Sequence[RunView], names: Sequence[str]) -> Advice | None:
    """Which of these runs to choose, and why; None unless two or more of one throughput unit and model are known.

    Differences that steps' variation explains are none. The best trade is the run whose loss of speed against the fastest,
    times its growth of the peak against the smallest, is least: giving up half of the speed is as bad as taking twice the
    memory. Runs that did not train to their end or do not go on (`unfit`) are left out, and the sentence says so.
    """
    trades = _trades(runs)
    if len(trades) < 2:
        return None
    quickest = max(trades, key=lambda one: one.per_s)
    least = min(trades, key=lambda one: one.peak)
    fast = [one for one in trades if one is quickest or not differ(one.speed, quickest.speed)]
    small = [one for one in trades if not apart(one.peak, least.peak)]
    # Among equals in speed the smaller one, among equals in memory the faster one.
    fastest = min(fast, key=lambda one: one.peak)
    smallest = max(small, key=lambda one: one.per_s)
    best = min(trades, key=lambda one: (fastest.per_s / one.per_s) * (one.peak / smallest.peak))
    if len(fast) == len(small) == len(trades):
        will_do = "either" if len(trades) == 2 else "any"
        found = Advice(None, None, None, f"no difference beyond what steps vary by: {will_do} will do")
    elif len(fast) == len(trades):
        found = Advice(None, smallest.at, smallest.at, _by_memory(small, trades, names))
    elif len(small) == len(trades):
        found = Advice(fastest.at, None, fastest.at, _by_speed(fast, trades, names))
    elif both := [one for one in fast if one in small]:
        one = max(both, key=lambda one: one.per_s / one.peak)
        exact = (max(one.per_s for one in both), min(one.peak for one in both)) == (quickest.per_s, least.peak)
        nearly = "" if exact else ", as far as can be told"
        text = f"{_are(both, names)} the fastest and the smallest{nearly}: nothing speaks for another"
        found = Advice(one.at, one.at, one.at, text)
    else:
        found = Advice(fastest.at, smallest.at, best.at, _by_both(fastest, smallest, best, names))
    text = found.text
    if out := left_out(runs, names):
        text += f"; {out}"
    if any(rank.hello is not None and rank.hello.device == "cpu" for run in runs for rank in run.ranks):
        text += "; these are times of a CPU, and on GPUs the order may be another"
    return found._replace(text=text)


def unfit(run: RunView) -> str:
    """Why a run's figures recommend nothing, as the end of a sentence; empty where they may."""
    if (gone := lost(run)) and gone.still:
        return f"its loss is no number ({gone.word}) {gone.when}"
    if stuck := next((one for one in run.verdicts if _stands_still(one)), None):
        until = " until it ended" if run.ended is not None else ""
        return f"no {'step' if stuck.kind == 'stalled' else 'heartbeat'} for {duration(stuck.measured or 0)}{until}"
    return {"failed": "it failed", "lost": "it was lost"}.get(run.state, "")


def _stands_still(found: Verdict) -> bool:
    """A note is of the script's own work between steps, as an evaluation: that is no reason."""
    return found.kind in ("stalled", "rank_silent") and found.severity in ("warn", "bad")


def left_out(runs: Sequence[RunView], names: Sequence[str]) -> str:
    """Which runs are no choice, and why; empty when all are."""
    reasons = [(names[at], unfit(run) or _too_few(run)) for at, run in enumerate(runs)]
    return "; ".join(f"{name} is left out: {reason}" for name, reason in reasons if reason)


def _too_few(run: RunView) -> str:
    speed = spread_of(run.throughput.series)
    if speed is None or speed.steps >= LEAST:
        return ""
    return (
        f"{count(speed.steps, 'step')} after the first {'is' if speed.steps == 1 else 'are'} too few to tell its speed"
    )


def _trades(runs: Sequence[RunView]) -> list[Trade]:
    fit = [(at, run) for at, run in enumerate(runs) if not unfit(run)]
    units = {run.throughput.unit for _, run in fit}
    models = {run.params for _, run in fit}
    if len(units) != 1 or len(models) != 1:
        return []
    found = []
    for at, run in fit:
        peak, speed = worst(run, highest), spread_of(run.throughput.series)
        if peak and speed is not None and speed.steps >= LEAST:
            found.append(Trade(at, peak, speed))
    return found


def _are(trades: Sequence[Trade], names: Sequence[str]) -> str:
    """ "a is", "a and b are"."""
    *others, last = [names[one.at] for one in trades]
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"


def _by_memory(small: Sequence[Trade], trades: Sequence[Trade], names: Sequence[str]) -> str:
    most = max(trades, key=lambda one: one.peak)
    share = 1 - max(one.peak for one in small) / most.peak
    return (
        f"no difference in speed beyond what steps vary by; {_are(small, names)} the smallest:"
        f" {percent(share)} less memory than {names[most.at]}"
    )


def _by_speed(fast: Sequence[Trade], trades: Sequence[Trade], names: Sequence[str]) -> str:
    slowest = min(trades, key=lambda one: one.per_s)
    share = min(one.per_s for one in fast) / slowest.per_s - 1
    return (
        f"no difference in memory beyond {percent(APART)}; {_are(fast, names)} the fastest:"
        f" {percent(share)} more speed than {names[slowest.at]}"
    )


def _by_both(fastest: Trade, smallest: Trade, best: Trade, names: Sequence[str]) -> str:
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
