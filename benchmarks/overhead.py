"""What watching costs a step: paired steps in one process, with a null control beside them, under a real hub.

The interval is a bootstrap of the median over pairs; an effect that the null control shows too is no effect.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from fsdp_tui.telemetry.client import open_run
from fsdp_tui.telemetry.launch import LaunchSpec, start

STRATEGIES = ("fsdp2:full_shard", "fsdp1:full_shard", "ddp")
PAIRS = 200
RESAMPLES = 4_000


def run() -> Iterator[str]:
    """One line per strategy."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FSDP_TUI_HOME": f"{folder}/home", "FSDP_TUI_RUNTIME_DIR": f"{folder}/live"}
        script = str(Path(__file__).with_name("paired_steps.py"))
        for strategy in STRATEGIES:
            spec = LaunchSpec(target="script", script=script, args=(str(PAIRS),), nproc=2, strategy=strategy)
            started = start(spec, bound=True)
            started.process.wait()
            with open_run(started.run_id) as client:
                log = client.entry.paths.log(0).read_text()
                picture = client.view()
            lines = [line for line in log.splitlines() if line.startswith("FIGURES ")]
            if not lines:
                raise RuntimeError(f"{strategy}: no figures; the log says: {log[-500:]}")
            figures = json.loads(lines[0].removeprefix("FIGURES "))
            watched, null = (_relative(figures[kind]) for kind in ("watched", "null"))
            step_s = median(second for _, second in figures["watched"])
            cost_ns = picture.overhead_ns or 0
            yield (
                f"{strategy:<17} step {step_s * 1e3:5.1f} ms   watched {watched}   null control {null}   "
                f"own count {cost_ns / 1e3:.0f} us = {cost_ns / step_s / 1e7:.2f} % of a step, {picture.dropped} dropped"
            )


def _relative(pairs: list[tuple[float, float]]) -> str:
    """Median of (first - second) / second over pairs, with its 95 % interval."""
    values = np.array([first / second - 1 for first, second in pairs])
    draws = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
    return f"{np.median(values) * 100:+.2f} % [{low * 100:+.2f}, {high * 100:+.2f}]"
