"""The list of runs."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from fsdp_tui.telemetry.notes import Note
from fsdp_tui.telemetry.rundir import RunEntry
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.screens.base import Ask
from fsdp_tui.tui.screens.runs import RunsScreen

from .drive import check_golden, dashboard, press, said, settle, until
from .fixtures import STARTED_NS, Recipe, World, entry
from .reading import cells


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
    for size in ((120, 40), (80, 24), (60, 20)):
        async with dashboard(a_world(), size=size) as (app, pilot):
            text = app.text()
            for one in app.entries:
                row = [one.name, one.strategy or "–", "–", "0", "–", "3 h ago"]
                if one.state != "damaged":
                    row[2:5] = str(one.world_size), f"{one.steps}/1,000", f"{one.loss:.3f}"
                if size[0] < 80:
                    row = [*row[:2], row[3]]
                assert cells(next(line for line in text.splitlines() if one.name in line))[1:][: len(row)] == row
            assert "1 live · 4 recorded" in text
            assert "● LIVE" in text
            assert "✗ FAILED" in text
            assert ("3 h ago" in text) is (size[0] > 60)
            check_golden(f"runs-{size[0]}x{size[1]}", text)
            await press(pilot, "end")
            assert "summary.json is damaged: Expected" in app.text()


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
        await until(pilot, lambda: len(app.entries) == 6, "it is listed")
        await settle(pilot)
        assert "newcomer" in app.text()
        assert screen.chosen == before


async def test_coming_back_reads_the_list_at_once() -> None:
    """It says that it is old until it has been read again; the cursor stays on its run."""
    world = a_world()
    about = world.entries[0]
    async with dashboard(world, open_on=about) as (app, pilot):
        await press(pilot, "0", "down")
        chosen = runs_screen(app).chosen
        await press(pilot, "1")
        world.entries[0] = replace(about, live=False, state="stopped", steps=527)
        world.entries.insert(0, entry("newcomer", created_ns=world.now_ns))
        app.listed_s -= 18
        assert app._ticker is not None
        app._ticker.stop()
        reading, read = threading.Event(), app.services.list_runs

        def slowly() -> list[RunEntry]:
            reading.wait(60)
            return read()

        app.services = replace(app.services, list_runs=slowly)
        await pilot.press("0")
        await until(pilot, lambda: "reading …" in app.text(), "it says so")
        assert "newcomer" not in app.text()
        reading.set()
        await until(pilot, lambda: "newcomer" in app.text(), "it is listed, without a tick")
        assert "527" in app.text()
        assert "reading" not in app.text()
        assert runs_screen(app).chosen == chosen


def runs_screen(app: Dashboard) -> RunsScreen:
    screen = app.screen
    assert isinstance(screen, RunsScreen)
    return screen


async def test_a_note_is_written_shown_and_found() -> None:
    """n asks for it; list and Run screen show it; / finds its tags, and what has none by !."""
    world = a_world()
    async with dashboard(world, size=(80, 24)) as (app, pilot):
        await press(pilot, "down", "n", *"base", "space", *"lr", "tab", *"first")
        await press(pilot, "enter")
        noted = next(one for one in world.entries if one.name == "zero3")
        assert noted.note == Note(text="first", tags=("base", "lr"))
        assert "#base #lr  first" in app.text()
        await press(pilot, "slash", *"tag:base")
        assert "zero3" in app.text()
        assert "zero2" not in app.text()
        await press(pilot, *["backspace"] * 8, *"!tag:lr")
        assert "zero2" in app.text()
        assert "zero3" not in app.text()
        await press(pilot, "escape", "home", "down", "enter")
        await until(pilot, lambda: app.snapshot is not None)
        await settle(pilot)
        assert "#base #lr  first" in app.text()


async def test_escape_leaves_a_note_as_it_was_and_what_is_no_tag_is_said() -> None:
    """Nothing is written until it is right."""
    world = a_world()
    async with dashboard(world) as (app, pilot):
        await press(pilot, "n", *"a:b", "enter")
        assert "'a:b' is no tag" in app.text()
        await press(pilot, "escape")
        assert not any(one.note for one in world.entries)


async def test_two_hundred_runs() -> None:
    """The list scrolls, finds, sorts and deletes among many, and a frame stays cheap."""
    world = World()
    for number in range(200):
        about = entry(
            f"run-{number:03}",
            state="finished",
            live=False,
            created_ns=STARTED_NS - number * 60 * 10**9,
            loss=2 + (number * 37 % 200) / 100,
            steps=number,
        )
        world.entries.append(replace(about, id=f"20231114-{number:06}-aaaa"))
    async with dashboard(world, size=(80, 24)) as (app, pilot):
        screen = app.screen
        assert isinstance(screen, RunsScreen)
        assert "200 recorded" in app.text()
        await press(pilot, "end")
        assert screen.chosen is not None
        assert screen.chosen.name == "run-199"
        await press(pilot, *["s"] * 5)
        assert [one.loss for one in screen._shown] == sorted(one.loss or 0 for one in world.entries)
        await press(pilot, "slash", *"run-1[0-4]", "enter", "home")
        assert "150 hidden by the filter" in app.text()
        gone = screen._shown[0]
        await press(pilot, "d", "n")
        assert world.removed == []
        await press(pilot, "d", "d")
        assert world.removed == [gone.id]
        began_s = time.process_time()
        for _ in range(10):
            screen.on_tick()
        assert time.process_time() - began_s < 1
