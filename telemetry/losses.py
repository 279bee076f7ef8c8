"""The losses of a run: the newest, and those that are no numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fsdp_tui.telemetry.view import RunView


class Lost(NamedTuple):
    """A loss that was measured as NaN or infinite."""

    step: int
    """The first such."""
    word: str
    """What it was there: "nan", "inf" or "-inf"."""
    still: bool
    """Whether the newest loss is no number either."""
    steps: int
    """How many there are."""

    @property
    def when(self) -> str:
        return f"from step {self.step:,} on" if self.still else f"in step {self.step:,}"


def last_loss(run: RunView) -> float | None:
    """Loss of the newest step that has one; a measured NaN is one."""
    known = run.series.loss[run.series.loss_known]
    return float(known[-1]) if known.size else None


def lost(run: RunView) -> Lost | None:
    """Where the loss of a run is no number; None where it always is one."""
    known = run.series.loss_known
    losses, steps = run.series.loss[known], run.series.steps[known]
    bad = ~np.isfinite(losses)
    if not bad.any():
        return None
    return Lost(int(steps[bad][0]), str(float(losses[bad][0])), bool(bad[-1]), int(bad.sum()))


def losses(run: RunView) -> dict[int, float]:
    """Step -> loss, of the steps that have one; NaN and infinity are losses too."""
    known = run.series.loss_known
    return dict(zip(run.series.steps[known].tolist(), run.series.loss[known].tolist(), strict=True))
