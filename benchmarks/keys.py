"""How soon a key is answered while 1,024 ranks send ten messages a second each: the whole program in a terminal, beside its real
hub.

Measured from the key's write to the end of the frame that shows its answer. Limit: 100 ms.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import psutil

from benchmarks.screens import words
from benchmarks.simulated import live
from benchmarks.watched import Watched

RANKS, UNITS = 1_024, 33
STEP_S = 2 / 7
"""3.5 steps a second, each a message of its own and one of its collectives; two heartbeats and a reading: ten messages."""
SIZE = (120, 40)
ROUNDS = 4
MEASURED_S = 20.0
BETWEEN_S = (0.2, 0.6)


class Press(NamedTuple):
    """A key, and words of its answer that the screen does not have before."""

    name: str
    key: str
    shows: str


ESCAPE = "\x1b[27u"
"""As terminals send it that have Kitty's protocol; with others it is waited 100 ms for the rest of another key."""
AT_PEAK, MAP = "memory per rank at the peak", "how long the others wait"
TO_COMM, TO_RUN, TO_STEP = (
    Press("3 Comm", "3", MAP),
    Press("1 Run", "1", AT_PEAK),
    Press("2 Step", "2", "inside a step"),
)
OPENING = (TO_COMM, TO_RUN, TO_STEP, TO_RUN)
"""Screens are made when they are opened first."""
ROUND = (
    Press("s sort", "s", "sort: peak"),
    Press("s sort", "s", "sort: states"),
    Press("s sort", "s", "sort: lateness"),
    Press("s sort", "s", "sort: rank"),
    Press("S reverse", "S", "▴"),
    Press("S reverse", "S", "▾"),
    Press("m memory", "m", "memory per rank after"),
    Press("m memory", "m", AT_PEAK),
    Press("? help", "?", "esc close"),
    Press("esc back", ESCAPE, AT_PEAK),
    TO_COMM,
    Press("x metric", "x", "exposed: how long"),
    Press("x metric", "x", "duration of the calls"),
    Press("x metric", "x", "bus bandwidth"),
    Press("x metric", "x", MAP),
    Press("f phase", "f", "in forward"),
    Press("f phase", "f", "in backward"),
    Press("f phase", "f", "collectives ·"),
    TO_RUN,
)


def run() -> Iterator[str]:
    """What is sent, what that costs, and how soon which keys are answered."""
    chance = random.Random(1)
    with live(RANKS, UNITS, STEP_S) as simulated, Watched(simulated.id, SIZE) as dashboard:
        dashboard.until(TO_RUN.shows)
        dashboard.read(4.0)
        first = pressed(dashboard, OPENING, chance)
        before = hub_s(simulated.hub)
        began_s = time.monotonic()
        yield f"{RANKS} ranks, {SIZE[0]}x{SIZE[1]}: dashboard {words(dashboard.cost(MEASURED_S))}"
        took = [one for _ in range(ROUNDS) for one in pressed(dashboard, ROUND, chance)]
        share = (hub_s(simulated.hub) - before) / (time.monotonic() - began_s)
        memory = simulated.hub.memory_info().rss / 2**20
        said = simulated.end()
        yield (
            f"  the ranks send {said.per_s:,.0f} messages a second, {said.dropped:,} dropped; hub {share:.0%} of a core, {memory:,.0f} MiB"
        )
    seconds = [taken for _, taken in took]
    yield f"  {len(took)} keys: median {statistics.median(seconds):.3f} s, worst {max(seconds):.3f} s"
    for name in dict.fromkeys(press.name for press, _ in took):
        own = [taken for press, taken in took if press.name == name]
        yield f"    {name:<9} {len(own):>2} times: median {statistics.median(own):.3f} s, worst {max(own):.3f} s"
    opened = ", ".join(f"{press.name} {taken:.3f} s" for press, taken in first if press is not TO_RUN)
    yield f"  a screen's first opening, which makes it: {opened}"


def pressed(dashboard: Watched, presses: tuple[Press, ...], chance: random.Random) -> list[tuple[Press, float]]:
    """Presses the keys one after another, each at some moment between two frames; seconds of each."""
    found = []
    for press in presses:
        found.append((press, dashboard.answered(press.key, press.shows)))
        dashboard.read(chance.uniform(*BETWEEN_S))
    return found


def hub_s(hub: psutil.Process) -> float:
    times = hub.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    for line in run():
        print(line, flush=True)
