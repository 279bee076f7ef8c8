"""Which steps the memory ledger looks at, so that looking stays within a share of the training's time.

A look reads the C heap and the units' tensors at every event of a step: milliseconds on a CPU, whose malloc walks all its
free chunks to answer. Steps repeat, so a training of long steps is looked at in every step, and one of short steps now
and then.
"""

from __future__ import annotations

SETTLING_STEPS = 3
"""Looked at one by one: optimizer states and gradients appear in them."""
BUDGET = 0.002
"""Share of the training thread's time that looks may take."""
LONGEST_INTERVAL = 256


class Looks:
    """Chooses steps by their number, at intervals that are powers of two, so that ranks look at the same ones."""

    def __init__(self, last_step: int | None) -> None:
        self._last_step = last_step
        self.interval = 1
        self._plain_ns: int | None = None
        self._look_ns: list[int] = []

    def at(self, step: int) -> bool:
        """Whether the step is looked at; the last one always is, since its figures stay."""
        return step <= SETTLING_STEPS or step == self._last_step or step % self.interval == 0

    def took(self, step: int, step_ns: int, overhead_ns: int) -> None:
        """Learns what a finished step cost."""
        if not self.at(step):
            self._plain_ns = overhead_ns if self._plain_ns is None else min(self._plain_ns, overhead_ns)
            return
        # The smallest of three: a search for unknown tensors, or a busy machine, is no measure of a look.
        self._look_ns = [*self._look_ns[-2:], overhead_ns]
        extra_ns = min(self._look_ns) - (self._plain_ns or 0)
        if step < SETTLING_STEPS:
            return
        allowed_ns = max(1.0, BUDGET * step_ns)
        self.interval = 1
        while self.interval * allowed_ns < extra_ns and self.interval < LONGEST_INTERVAL:
            self.interval *= 2
