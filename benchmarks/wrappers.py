"""What the wrappers cost by count: the cost of a call times the calls of a step, the end of a step, and memory.

Wall clocks of paired steps (`benchmarks.overhead`) cannot show a few tenths of a percent on a busy machine; this can.
Goals: wrappers under 0.5 % of the demo's step, the end of a step of 50 units under 100 us, under 20 MiB per rank.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsdp_tui.telemetry.client import open_run
from fsdp_tui.telemetry.launch import LaunchSpec, start

CASES = (("fsdp2:full_shard", "demo"), ("fsdp1:full_shard", "demo"), ("fsdp2:full_shard", "50 units"))


def run() -> Iterator[str]:
    """One line per strategy and model."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FSDP_TUI_HOME": f"{folder}/home", "FSDP_TUI_RUNTIME_DIR": f"{folder}/live"}
        script = str(Path(__file__).with_name("wrapped_calls.py"))
        for strategy, what in CASES:
            spec = LaunchSpec(target="script", script=script, args=(strategy, what), nproc=2, strategy=strategy)
            started = start(spec, bound=True)
            started.process.wait()
            with open_run(started.run_id) as client:
                log = client.entry.paths.log(0).read_text()
            lines = [line for line in log.splitlines() if line.startswith("FIGURES ")]
            if not lines:
                raise RuntimeError(f"{strategy}: no figures; the log says: {log[-800:]}")
            yield line_of(strategy, what, json.loads(lines[0].removeprefix("FIGURES ")))


def line_of(strategy: str, what: str, figures: dict[str, Any]) -> str:
    """Sums over the wrapped functions; memory is looked at in one step of `looks_every`."""
    calls: dict[str, float] = figures["calls"]
    plain, looking = (
        sum(count * figures[cost][name] for name, count in calls.items()) for cost in ("plain_ns", "looking_ns")
    )
    total, every, step = sum(calls.values()), figures["looks_every"], figures["step_ns"]
    mean = plain + (looking - plain) / every
    return (
        f"{strategy:<17} {what:<8} {total:3.0f} calls/step of {plain / total / 1e3:.2f} us, {looking / total / 1e3:.1f} us when"
        f" memory is looked at (every {every}): {mean / 1e3:.0f} us = {mean / step:.2%} of {step / 1e6:.0f} ms   "
        f"end of step {figures['end_ns'] / 1e3:.0f} us   memory {figures['grown_bytes'] / 2**20:+.1f} MiB"
    )
