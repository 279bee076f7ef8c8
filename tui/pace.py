"""How often the screen is drawn: as often as asked, and less often by itself where drawing is slow."""

from __future__ import annotations

from statistics import median_low

RATES = (0.5, 1.0, 2.0, 4.0)
SLOW_S = 0.030
"""Frames that usually take longer make keys lag: timers do not queue up, ticks are lost."""
QUICK_S = 0.020
FRAMES = 5
"""Judged together by the one in the middle: a frame that had to wait for another thread says nothing of the others."""


class Pace:
    """The rate that was asked for, and the one that the frames allow."""

    def __init__(self, hz: float = 2.0) -> None:
        self.asked = hz
        self.hz = hz
        self._frames: list[float] = []

    def ask(self, faster: bool) -> None:
        """Next or previous of RATES."""
        at = RATES.index(self.asked) + (1 if faster else -1)
        self.asked = self.hz = RATES[max(0, min(len(RATES) - 1, at))]
        self._frames.clear()

    def drew(self, seconds: float) -> bool:
        """Takes note of a frame; returns whether the rate has changed."""
        self._frames.append(seconds)
        if len(self._frames) < FRAMES:
            return False
        usual, before = median_low(self._frames), self.hz
        self._frames.clear()
        if usual > SLOW_S:
            self.hz = max(RATES[0], self.hz / 2)
        elif usual < QUICK_S:
            self.hz = min(self.asked, self.hz * 2)
        return self.hz != before
