"""How often the screen is drawn: as often as asked, and less often by itself where drawing is slow."""

from __future__ import annotations

RATES = (0.5, 1.0, 2.0, 4.0)
SLOW_S = 0.030
"""A frame that takes longer makes keys lag: timers do not queue up, ticks are lost."""
QUICK_S = 0.010
PATIENCE = 8
"""Quick frames in a row before the rate goes up again."""


class Pace:
    """The rate that was asked for, and the one that the frames allow."""

    def __init__(self, hz: float = 2.0) -> None:
        self.asked = hz
        self.hz = hz
        self._quick = 0

    def ask(self, faster: bool) -> None:
        """Next or previous of RATES."""
        at = RATES.index(self.asked) + (1 if faster else -1)
        self.asked = self.hz = RATES[max(0, min(len(RATES) - 1, at))]
        self._quick = 0

    def drew(self, seconds: float) -> bool:
        """Takes note of a frame; returns whether the rate has changed."""
        before = self.hz
        if seconds > SLOW_S:
            self._quick = 0
            self.hz = max(RATES[0], self.hz / 2)
        elif seconds < QUICK_S and self.hz < self.asked:
            self._quick += 1
            if self._quick >= PATIENCE:
                self._quick = 0
                self.hz = min(self.asked, self.hz * 2)
        else:
            self._quick = 0
        return self.hz != before
