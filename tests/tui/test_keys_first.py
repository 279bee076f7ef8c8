"""What makes keys quick: who makes pictures gives way, and the screens of a run are there before a key opens them."""

from __future__ import annotations

import gc
import weakref

import pytest
from textual.pilot import Pilot

from fsdp_tui.telemetry.grid import METRICS
from fsdp_tui.telemetry.messages import Event
from fsdp_tui.tui.app import AHEAD_MODES, Dashboard
from fsdp_tui.tui.screens.comm import CommScreen

from .drive import opened, press, until
from .fixtures import STARTED_NS, FixtureSource, Recipe

NEVER_S = 1e9


async def ticks(app: Dashboard, pilot: Pilot[int]) -> None:
    for _ in range(2 * len(AHEAD_MODES) + 1):
        app.tick()
        await pilot.pause()


async def another_picture(app: Dashboard, pilot: Pilot[int], source: FixtureSource) -> None:
    before = app.now
    source.state.apply(Event(at_ns=STARTED_NS, kind="note", severity="note", text="something"))
    await until(pilot, lambda: app.now is not before)


class Node:
    """It holds itself: only the collector frees it."""

    def __init__(self) -> None:
        self.own = self


@pytest.mark.parametrize("live", [True, False])
async def test_garbage_is_looked_for_by_who_makes_pictures(monkeypatch: pytest.MonkeyPatch, live: bool) -> None:
    """With a run that is over, or none, by the tick."""
    monkeypatch.setattr("fsdp_tui.telemetry.collector.MANY", 0)
    gc.disable()
    try:
        async with opened(Recipe(ended="" if live else "finished")) as (app, pilot, world):
            await until(pilot, lambda: app.feed is not None and (live or not app.feed._thread.is_alive()))
            gone = weakref.ref(Node())
            if live:
                await another_picture(app, pilot, next(iter(world.sources.values())))
            else:
                app.tick()
            await until(pilot, lambda: gone() is None)
    finally:
        gc.enable()


async def test_the_frame_with_the_answer_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mouse that only moves asks for nothing."""
    monkeypatch.setattr("fsdp_tui.tui.answering.LONGEST_S", 60.0)
    async with opened() as (app, pilot, _):
        heard: list[str] = []
        begin = app.answering.begin

        def counted() -> None:
            heard.append("")
            begin()

        monkeypatch.setattr(app.answering, "begin", counted)
        for key in ("s", "question_mark", "escape", "3", "x", "1"):
            heard.clear()
            await press(pilot, key)
            assert heard, key
            assert app.answering.wait(60) == 0, key
        heard.clear()
        await pilot.hover("Header")
        assert not heard
        await pilot.click("Header")
        assert heard


@pytest.mark.parametrize("resized", [True, False])
async def test_screens_of_a_run_are_made_when_nobody_waits(monkeypatch: pytest.MonkeyPatch, resized: bool) -> None:
    """One that is open shows what it would have shown, whatever was opened before it."""
    monkeypatch.setattr("fsdp_tui.tui.app.IDLE_S", NEVER_S)
    async with opened(size=(120, 40)) as (app, pilot, _):
        await ticks(app, pilot)
        assert "comm" not in app._screen_stacks
        await press(pilot, "3")
        usual = app.text()
    monkeypatch.setattr("fsdp_tui.tui.app.IDLE_S", 0.0)
    async with opened(size=(120, 40)) as (app, pilot, _):
        await ticks(app, pilot)
        assert set(AHEAD_MODES) <= set(app._screen_stacks)
        assert (app.current_mode, app.screen.is_current) == ("run", True)
        if resized:
            await pilot.resize_terminal(80, 24)
            await press(pilot, "3")
            await pilot.resize_terminal(120, 40)
        else:
            await press(pilot, "3")
        await ticks(app, pilot)
        assert app.text() == usual


async def test_a_screen_is_not_drawn_in_the_tick_that_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes long enough; in one of the next ones its figures have been added up."""
    monkeypatch.setattr("fsdp_tui.tui.app.IDLE_S", NEVER_S)
    async with opened() as (app, pilot, _):
        monkeypatch.setattr("fsdp_tui.tui.app.IDLE_S", 0.0)
        app._make_ahead()
        await pilot.pause()
        (screen,) = app._screen_stacks["comm"]
        assert isinstance(screen, CommScreen)
        assert (screen.ready, screen.map) == (True, None)
        app._make_ahead()
        assert screen.map is not None


async def test_a_screen_that_is_not_open_only_has_its_steps_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that is opened later too."""
    monkeypatch.setattr("fsdp_tui.tui.app.IDLE_S", 0.0)
    async with opened(Recipe(name="one")) as (app, pilot, world):
        await ticks(app, pilot)
        other = world.add(Recipe(name="two"))
        for source in (next(iter(world.sources.values())), other):
            app.open_run(source.entry)
            await until(pilot, lambda: app.now is not None)
            (screen,) = app._screen_stacks["comm"]
            assert isinstance(screen, CommScreen)
            assert app.now is not None
            app.now.view.grid._figures.clear()  # it was drawn once
            await another_picture(app, pilot, source)
            grid = app.now.view.grid
            assert (list(grid._figures), len(grid._reduced)) == ([], 1)
            await press(pilot, "3")
            await another_picture(app, pilot, source)
            grid = app.now.view.grid
            assert screen.choice.metric in {metric for metric, _ in grid._figures}
            assert len(grid._reduced) > 5
            await press(pilot, "1")


async def test_what_the_next_key_leads_to_is_added_up_without_a_new_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the screen is opened, and when a key has changed what it shows."""
    monkeypatch.setattr("fsdp_tui.tui.app.IDLE_S", NEVER_S)
    async with opened() as (app, pilot, _):
        assert app.now is not None
        picture, grid = app.now, app.now.view.grid
        await press(pilot, "3")
        screen = app.screen
        assert isinstance(screen, CommScreen)

        def ready(metric: str) -> bool:
            asked = (metric, screen.choice.selection)
            return any(kept[:2] == asked for kept in list(grid._reduced))  # type: ignore[index]

        for key in ("", "f", "k"):
            if key:
                await press(pilot, key)
            for metric in METRICS:
                await until(pilot, lambda metric=metric: ready(metric), f"{metric} after {key}")  # type: ignore[misc]
        assert app.now is picture
