"""The list of runs."""

from __future__ import annotations

from fsdp_tui.tui.screens.base import Ask
from fsdp_tui.tui.screens.runs import RunsScreen

from .drive import check_golden, dashboard, press, said, settle
from .fixtures import STARTED_NS, Recipe, World, entry


def a_world() -> World:
    world = World()
    world.add(Recipe(name="live one", steps=40))
    world.add(Recipe(name="zero3", ended="finished", strategy="fsdp2:full_shard"))
    world.add(Recipe(name="zero2", ended="failed", strategy="fsdp2:shard_grad_op", ranks=4))
    world.add(Recipe(name="plain", ended="stopped", strategy="ddp"))
    world.entries.append(
        entry(
            "broken",
            state="damaged",
            live=False,
            strategy="",
            effective="",
            world_size=0,
            steps=0,
            planned_steps=None,
            loss=None,
            problem="summary.json is damaged: Expected `object`, got `int`",
        )
    )
    world.now_ns = STARTED_NS + 3 * 3_600 * 10**9
    return world


async def test_what_the_list_shows() -> None:
    """Live and recorded runs, and the damaged one with its reason."""
    for size in ((120, 40), (80, 24)):
        async with dashboard(a_world(), size=size) as (app, pilot):
            text = app.text()
            assert "1 live · 4 recorded" in text
            assert "● LIVE" in text
            assert "✗ FAILED" in text
            assert "3 h ago" in text
            check_golden(f"runs-{size[0]}x{size[1]}", text)
            await press(pilot, "end")
            assert "Expected `object`" in app.text()


async def test_no_runs_yet_says_what_to_do() -> None:
    """An empty list is no dead end."""
    async with dashboard(World()) as (app, _):
        assert "no runs yet: 4 starts one" in app.text()


async def test_enter_opens_and_escape_comes_back() -> None:
    """The cursor's run, live or recorded."""
    async with dashboard(a_world()) as (app, pilot):
        await press(pilot, "down", "enter")
        assert app.current_mode == "run"
        assert app.feed is not None
        assert app.feed.entry.name == "zero3"
        await press(pilot, "escape")
        screen = app.screen
        assert isinstance(screen, RunsScreen)
        assert screen.chosen is not None
        assert screen.chosen.name == "zero3"


async def test_a_damaged_run_says_why_it_does_not_open() -> None:
    """And the list stays."""
    async with dashboard(a_world()) as (app, pilot):
        await press(pilot, "end", "enter")
        assert isinstance(app.screen, RunsScreen)
        assert "summary.json is damaged" in said(app)


async def test_filter_and_invert() -> None:
    """A pattern of id, name, state or strategy."""
    async with dashboard(a_world()) as (app, pilot):
        await press(pilot, "slash", *"zero")
        assert "zero2" in app.text()
        assert "plain" not in app.text()
        assert "3 hidden by the filter" in app.text()
        await press(pilot, *["backspace"] * 4, *"!zero")
        assert "plain" in app.text()
        assert "zero2" not in app.text()
        await press(pilot, "escape")
        assert "zero2" in app.text()


async def test_sort_and_reverse() -> None:
    """By name after one press; unknown values come last."""
    async with dashboard(a_world()) as (app, pilot):
        screen = app.screen
        assert isinstance(screen, RunsScreen)
        await press(pilot, "s")
        assert [one.name for one in screen._shown] == ["broken", "live one", "plain", "zero2", "zero3"]
        await press(pilot, "S")
        assert screen._shown[0].name == "zero3"
        for _ in range(4):
            await press(pilot, "s")
        assert "sort: loss" in app.text()


async def test_mark_for_comparing() -> None:
    """In the order of marking; a damaged run cannot be marked."""
    async with dashboard(a_world()) as (app, pilot):
        await press(pilot, "down", "space", "space")
        names = {one.id: one.name for one in app.entries}
        assert [names[run_id] for run_id in app.marked] == ["zero3", "zero2"]
        assert "2 marked: 5 compares" in app.text()
        await press(pilot, "home", "down", "space")
        assert [names[run_id] for run_id in app.marked] == ["zero2"]
        await press(pilot, "end", "space")
        assert len(app.marked) == 1


async def test_delete_asks_and_refuses_live_runs() -> None:
    """Nothing is lost by a slip."""
    world = a_world()
    async with dashboard(world) as (app, pilot):
        await press(pilot, "d")
        assert not isinstance(app.screen, Ask)
        assert "is live: stop it first" in said(app)
        await press(pilot, "down", "d", "n")
        assert world.removed == []
        await press(pilot, "d", "enter")
        assert world.removed == []
        gone = app.screen.chosen if isinstance(app.screen, RunsScreen) else None
        assert gone is not None
        await press(pilot, "d", "d")
        assert world.removed == [gone.id]
        assert gone.name not in app.text().replace("live one", "")


async def test_the_list_keeps_itself_up_to_date() -> None:
    """A run started elsewhere appears by itself, and the cursor stays on its run."""
    world = a_world()
    async with dashboard(world) as (app, pilot):
        await press(pilot, "down", "down")
        screen = app.screen
        assert isinstance(screen, RunsScreen)
        before = screen.chosen
        world.entries.insert(0, entry("newcomer", created_ns=world.now_ns))
        app.list_runs()
        for _ in range(500):
            if len(app.entries) == 6:
                break
            await pilot.pause(0.005)
        await settle(pilot)
        assert "newcomer" in app.text()
        assert screen.chosen == before
