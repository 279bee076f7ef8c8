"""`z`: a pane takes all the room, and gives it back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot
from textual.widget import Widget

from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.screens.bands import Zooming

from .drive import dashboard, opened, press, until
from .fixtures import Recipe, World


def shown(screen: Zooming) -> set[str]:
    """Panes that have room on the screen."""
    return {str(pane.id) for pane in screen.query(".pane").results(Widget) if pane.region.area and pane.display}


@asynccontextmanager
async def compared() -> AsyncIterator[tuple[Dashboard, Pilot[int], Zooming]]:
    """The Compare screen on two runs, its first pane in focus."""
    world = World()
    for recipe in (Recipe(name="one", ended="finished"), Recipe(name="two", strategy="ddp", ended="finished")):
        world.add(recipe)
    async with dashboard(world, size=(80, 24)) as (app, pilot):
        await press(pilot, "space", "down", "space", "5")
        screen = app.screen
        assert isinstance(screen, Zooming)
        await until(pilot, lambda: screen.focused is not None and screen.focused.id == "bars")
        yield app, pilot, screen


async def test_a_compared_pane_takes_the_room() -> None:
    """Also that of panes below the fold; `escape` brings all back."""
    async with compared() as (_, pilot, screen):
        every = shown(screen)
        assert {"bars", "numbers"} <= every
        await press(pilot, "tab", "z")
        assert screen.focused is not None
        assert shown(screen) == {str(screen.focused.id)}
        assert screen.focused.outer_size.height >= 18
        await press(pilot, "escape")
        assert shown(screen) == every


async def test_without_runs_to_compare_nothing_is_zoomed() -> None:
    """What is said instead of them is seen."""
    async with compared() as (app, pilot, screen):
        await press(pilot, "z", "0", "space", "5")
        await until(pilot, lambda: screen.has_class("-empty"))
        assert "Mark two to six runs" in app.text()
        assert shown(screen) == {"pick"}


async def test_zoom_in_the_past() -> None:
    """There the line of time has the focus: the first pane is meant."""
    async with opened(Recipe(ended="finished")) as (app, pilot, _):
        await press(pilot, "less_than_sign", "z")
        screen = app.screen
        assert isinstance(screen, Zooming)
        assert screen.zoomed is not None
        assert screen.zoomed.id == "memory"
