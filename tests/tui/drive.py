"""Driving the dashboard in a test: open it on a world, wait for conditions, read the screen."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot

from fsdp_tui.telemetry.rundir import RunEntry
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.widgets.chart import Chart, row_text, row_width

from .fixtures import Recipe, World

GOLDEN = Path(__file__).parent / "golden"
PATIENCE_S = 60


async def until(pilot: Pilot[int], condition: Callable[[], bool], why: str = "") -> None:
    """Lets the app go on until the condition holds."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"still not: {why or condition}"
        await pilot.pause(0.005)


async def settle(pilot: Pilot[int], delay: float | None = 0) -> None:
    """Draws the newest picture in its final places. Without a delay it waits until the app has nothing left to do."""
    app = pilot.app
    assert isinstance(app, Dashboard)
    await until(pilot, lambda: not app._listing, "the list of runs is read")
    for _ in range(2):
        app.tick()
        await pilot.pause(delay)


async def press(pilot: Pilot[int], *keys: str) -> None:
    """Presses keys one by one and draws."""
    await pilot.press(*keys)
    await settle(pilot)


def check_fits(app: Dashboard) -> None:
    """No chart in view draws beyond its place. The picture cannot tell: what lies beyond is cut from it."""
    charts = [chart for chart in app.screen.query(Chart) if chart.is_on_screen and chart.size.area]
    assert charts or not app.screen.query(Chart)
    for chart in charts:
        width, height = chart.size
        rows = chart.draw(width, height, app.letters)
        assert len(rows) <= height, f"{chart}: {len(rows)} rows in {height}"
        for row in rows:
            assert row_width(row) <= width, f"{chart}: {row_width(row)} cells in {width}: {row_text(row)}"


def said(app: Dashboard) -> str:
    """The notifications that are up."""
    return "\n".join(f"{note.title} {note.message}" for note in app._notifications)


@asynccontextmanager
async def dashboard(
    world: World,
    *,
    open_on: RunEntry | None = None,
    size: tuple[int, int] = (120, 40),
    own: tuple[str, ...] = (),
) -> AsyncIterator[tuple[Dashboard, Pilot[int]]]:
    """The app with the letters of no-colour mode; with `open_on`, that run's first picture is there."""
    app = Dashboard(world.services(), open_on=open_on, own=own, entries=list(world.entries))
    app.letters = True
    async with app.run_test(size=size) as pilot:
        if open_on is not None:
            await until(pilot, lambda: app.snapshot is not None or bool(app.feed and app.feed.error), "the run is open")
        await settle(pilot, None)
        yield app, pilot


@asynccontextmanager
async def opened(
    recipe: Recipe | None = None, *, size: tuple[int, int] = (120, 40), own: bool = False
) -> AsyncIterator[tuple[Dashboard, Pilot[int], World]]:
    """The Run screen on one run."""
    world = World()
    source = world.add(recipe or Recipe())
    ids = (source.entry.id,) if own else ()
    async with dashboard(world, open_on=source.entry, size=size, own=ids) as (app, pilot):
        yield app, pilot, world


def check_golden(name: str, text: str) -> None:
    """Compares a screen with its kept picture. With GOLDEN=write in the environment it is kept anew: read the diff."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text + "\n")
    kept = path.read_text()
    changed = "\n".join(difflib.unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", n=0, lineterm=""))
    assert text + "\n" == kept, f"{path} differs; if that is meant: GOLDEN=write pytest tests/tui\n{changed}"
