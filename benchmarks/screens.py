"""What the Run and the Comm screen of a live run cost a viewer: the whole program in a terminal, from the messages to the escape
codes, beside its real hub.

Limits, in shares of a core: Run with 8 ranks 5 %, with 256 ranks 10 %, Comm with 64 ranks x 80 units 15 %; 100 kB/s to the
terminal when one rank in ten changes from frame to frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.simulated import live
from benchmarks.watched import Cost, Watched

SIZES = ((120, 40), (200, 60))
SETTLE_S, MEASURED_S = 4.0, 20.0
ONE_IN_TEN = 0.1
RUN_SHOWS, COMM_SHOWS = "memory per rank", "who waits for whom"
"""Words that only this screen has."""


class Case(NamedTuple):
    """A screen on a run."""

    screen: str
    ranks: int
    units: int
    hz: float
    step_s: float
    changing: float = 1.0
    """Share of the ranks that have other numbers in each step."""

    def __str__(self) -> str:
        changing = "one rank in ten changes" if self.changing == ONE_IN_TEN else "all ranks change"
        return (
            f"{self.screen}, {self.ranks} ranks x {self.units} units, {self.hz:g} Hz: a step each {self.step_s:g} s, in which"
            f" {changing}"
        )


CASES = (
    Case("Run", 8, 33, 2.0, 0.2),
    Case("Run", 256, 33, 2.0, 1.0),
    Case("Comm", 64, 80, 4.0, 1.0),
    Case("Run", 8, 33, 2.0, 0.5, ONE_IN_TEN),
    Case("Run", 256, 33, 2.0, 0.5, ONE_IN_TEN),
    Case("Comm", 64, 80, 4.0, 0.25, ONE_IN_TEN),
)


def run() -> Iterator[str]:
    """A line per run and size of the terminal."""
    for case in CASES:
        yield str(case)
        with live(case.ranks, case.units, case.step_s, changing=case.changing, refresh=case.hz) as simulated:
            for size in SIZES:
                with Watched(simulated.id, size) as dashboard:
                    dashboard.until(RUN_SHOWS)
                    if case.screen == "Comm":
                        dashboard.answered("3", COMM_SHOWS)
                    dashboard.read(SETTLE_S)
                    yield f"  {size[0]}x{size[1]}: {words(dashboard.cost(MEASURED_S))}"


def words(cost: Cost) -> str:
    return (
        f"{cost.share:.1%} of a core, {cost.bytes_per_s / 1000:.0f} kB/s, drawn {cost.frames_per_s:.1f} times a second"
    )


if __name__ == "__main__":
    for line in run():
        print(line, flush=True)
