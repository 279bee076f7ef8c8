"""The pictures of the README: real runs of the demo, in the real dashboard. `make screenshots` writes docs/*.svg."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from fsdp_tui.telemetry.client import open_run
from fsdp_tui.telemetry.launch import LaunchSpec, start
from fsdp_tui.telemetry.rundir import resolve
from fsdp_tui.tui.app import Dashboard

PICTURES = Path(__file__).parents[1] / "docs"
STEPS = 60
WARM_STEPS = 5
STRATEGIES = ("single", "ddp", "fsdp2:shard_grad_op", "fsdp2:full_shard")
SIZE = (120, 40)


def main() -> int:
    """Trains, opens each screen and saves it."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FSDP_TUI_HOME": f"{folder}/home", "FSDP_TUI_RUNTIME_DIR": f"{folder}/live"}
        runs = []
        for strategy in STRATEGIES:
            print(f"training {strategy} ...", file=sys.stderr)
            started = start(LaunchSpec(strategy=strategy, steps=STEPS, name=f"gpt {strategy}"), bound=True)
            if strategy == STRATEGIES[-1]:
                capture(started.run_id)
            if started.process.wait():
                raise RuntimeError(f"{strategy} failed: fsdp-tui logs {started.run_id}")
            runs.append(started.run_id)
        asyncio.run(photograph(runs))
    return 0


def capture(run_id: str) -> None:
    """Asks for a deep capture once the training is warm."""
    client = open_run(resolve(run_id))
    try:
        while client.live and client.view().steps < WARM_STEPS:
            client.poll(100)
        client.command("capture")
    finally:
        client.close()


async def photograph(runs: list[str]) -> None:
    app = Dashboard(open_on=resolve(runs[-1]))
    async with app.run_test(size=SIZE) as pilot:
        app.use_theme("fsdp-dark")
        for name, keys, shown in (
            ("run", ["1"], "blocks.0"),
            ("step", ["2"], "why the peak is here"),
            ("comm", ["3"], "who waits for whom"),
            ("launch", ["4"], "the same from a shell"),
            ("runs", ["escape", "0"], STRATEGIES[0]),
            ("compare", ["5"], "losses agree"),
        ):
            if name == "compare":
                for _ in runs:
                    await pilot.press("space", "down")
            await pilot.press(*keys)
            for _ in range(100):
                await pilot.pause(0.1)
                picture = app.export_screenshot(title="fsdp-tui")
                if shown.replace(" ", "&#160;") in picture:
                    break
            else:
                raise RuntimeError(f"{name} does not show {shown!r}")
            (PICTURES / f"{name}.svg").write_text(picture)
            print(PICTURES / f"{name}.svg", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
