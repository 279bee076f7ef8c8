"""The Run screen as text, for logs and for a look without a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace

from fsdp_tui.telemetry.client import open_run
from fsdp_tui.telemetry.rundir import RunEntry
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.settings import Settings, load
from fsdp_tui.tui.source import Services, real_services

PATIENCE_S = 30.0


def print_once(entry: RunEntry) -> int:
    """Prints the Run screen in COLUMNS x LINES characters (80 x 24 where they are not set), letters for colours.

    Raises:
        RunError: nothing of the run can be read.
    """
    open_run(entry).close()
    width, height = _size("COLUMNS", 80), _size("LINES", 24)
    text = asyncio.run(screen_text(real_services(), entry, width, height, replace(load(), problems=())))
    sys.stdout.write(text + "\n")
    return 0


def _size(name: str, default: int) -> int:
    try:
        return max(1, min(1000, int(os.environ.get(name, default))))
    except ValueError:
        return default


async def screen_text(
    services: Services, entry: RunEntry, width: int, height: int, settings: Settings | None = None
) -> str:
    """The Run screen on this run, line by line, as a terminal of this size would show it."""
    app = Dashboard(services, open_on=entry, entries=[entry], settings=settings)
    app.letters = True
    app.still = True
    async with app.run_test(size=(width, height)) as pilot:
        waited_s = 0.0
        while app.snapshot is None and not (app.feed and app.feed.error) and waited_s < PATIENCE_S:
            await pilot.pause(0.02)
            waited_s += 0.02
        # Twice: the panes are laid out for what they show, and then drawn in their places.
        for _ in range(2):
            app.tick()
            await pilot.pause()
        return app.text()
