"""The Step screen: its numbers against the capture, each key against what help says, and what it says without a capture."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from fsdp_tui.telemetry.messages import Beat, Capture, Event
from fsdp_tui.telemetry.rundir import RunError
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.screens.base import Text
from fsdp_tui.tui.screens.run import RunScreen
from fsdp_tui.tui.screens.runs import RunsScreen
from fsdp_tui.tui.screens.step import StepScreen
from fsdp_tui.tui.theme import THEMES
from fsdp_tui.tui.widgets.timeline import StepTimeline, plan_timeline

from .captures import MS, PEAK_MS, changes, held_mib, training_step
from .drive import check_golden, dashboard, press, said, settle, until
from .fixtures import SECOND, FixtureSource, Recipe, World

TWO = (training_step(0), training_step(1), training_step(0, 60, id="two"), training_step(1, 60, id="two"))


@asynccontextmanager
async def stepped(
    *captures: Capture, size: tuple[int, int] = (120, 40), recipe: Recipe | None = None
) -> AsyncIterator[tuple[Dashboard, Pilot[int], StepScreen, FixtureSource]]:
    """The Step screen on a run with these captures."""
    world = World()
    source = world.add(recipe or Recipe())
    for capture in captures:
        source.state.apply(capture)
    async with dashboard(world, open_on=source.entry, size=size) as (app, pilot):
        await press(pilot, "2")
        assert isinstance(app.screen, StepScreen)
        await settle(pilot, None)
        yield app, pilot, app.screen, source


async def come(app: Dashboard, pilot: Pilot[int], source: FixtureSource, *messages: Event | Beat | Capture) -> None:
    """Messages that reach the screen."""
    before = app.snapshot
    for message in messages:
        source.state.apply(message)
    await until(pilot, lambda: app.snapshot is not before)
    await settle(pilot)


def cursor_ns(screen: StepScreen) -> int:
    assert screen.look is not None
    return screen.look.cursor_ns


def columns(screen: StepScreen) -> int:
    return screen.query_one("#timeline", StepTimeline).columns


def held(ms: float) -> str:
    return f"= {sum(held_mib(ms).values()):.1f} MiB"


# What it shows


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 20)])
async def test_what_the_screen_shows(size: tuple[int, int]) -> None:
    """Kept as text, and the numbers in it worked out from the capture."""
    async with stepped(training_step(), training_step(1, error="no memory probe"), size=size) as (app, _, screen, _):
        text = app.text()
        assert cursor_ns(screen) == PEAK_MS * MS
    assert held(PEAK_MS) == "= 84.0 MiB"
    assert held(PEAK_MS) in text
    assert "inside step 41 · rank 0 of 2 · capture 1 of 1" in text
    assert "103 ms · backward of blocks.3" in text
    assert "backward of blocks.3: one unit unsharded" in text  # why
    assert "not seen: memory tha" in text
    check_golden(f"step-{size[0]}x{size[1]}", text)


@pytest.mark.parametrize("size", [(20, 5), (30, 9), (40, 12), (59, 30), (200, 60), (300, 80)])
async def test_any_size(size: tuple[int, int]) -> None:
    """Nothing is raised, and the figures at the cursor are there, cut at the right if they must be."""
    async with stepped(*TWO, size=size) as (app, pilot, _, _):
        lines = app.text().split("\n")
        assert len(lines) == size[1]
        assert any("85.0 MiB" in line or "84.0 MiB" in line for line in lines)
        await pilot.resize_terminal(100, 30)
        await settle(pilot, None)
        assert "why the peak is here" in app.text()


@pytest.mark.parametrize("theme", [theme.name for theme in THEMES])
async def test_every_theme_in_colours_and_letters(theme: str) -> None:
    """The same figures; letters stand in the picture only where they are asked for."""
    async with stepped(*TWO) as (app, pilot, _, _):
        app.use_theme(theme)
        await settle(pilot, None)
        assert "OOOOOOOOOO" in app.text()
        await press(pilot, "c")
        assert "OOOOOOOOOO" not in app.text()
        assert "85.0 MiB" in app.text()


async def test_the_fullest_rank_is_shown_first() -> None:
    """Rank 1 holds a MiB more."""
    async with stepped(*TWO) as (app, _, _, _):
        assert "inside step 60 · rank 1 of 2 · capture 2 of 2" in app.text()
        assert "= 85.0 MiB" in app.text()


async def test_a_recorded_run_shows_its_captures() -> None:
    """As a live one does."""
    async with stepped(*TWO, recipe=Recipe(ended="finished")) as (app, pilot, _, source):
        assert "✓ DONE" in app.text()
        assert "= 85.0 MiB" in app.text()
        await press(pilot, "k")
        assert "this run is over: nothing to capture" in said(app)
        assert source.commands == []


async def test_another_run_shows_nothing_of_the_one_before() -> None:
    """Opened from the list of runs."""
    world = World()
    first, second = world.add(Recipe()), world.add(Recipe(name="other"))
    first.state.apply(training_step())
    async with dashboard(world, open_on=first.entry) as (app, pilot):
        await press(pilot, "2", "plus", "m")
        assert "inside step 41" in app.text()
        app.open_run(second.entry)
        await until(pilot, lambda: app.snapshot is not None and app.snapshot.entry.id == second.entry.id)
        await press(pilot, "2")
        assert "no step of this run has been captured" in app.text()
        assert "step 41" not in app.text()


# Keys of the cursor


async def test_the_cursor_goes_column_by_column() -> None:
    """Each at its highest moment, whose figures are told."""
    async with stepped(training_step()) as (app, pilot, screen, _):
        here = cursor_ns(screen)
        await press(pilot, "left")
        assert cursor_ns(screen) < here
        assert held(cursor_ns(screen) / MS) in app.text()
        await press(pilot, "right")
        assert cursor_ns(screen) == here
        await press(pilot, *["right"] * 5)
        assert screen.look is not None
        assert screen.look.column(cursor_ns(screen), columns(screen)) == screen.look.column(here, columns(screen)) + 5
        assert held(cursor_ns(screen) / MS) in app.text()


async def test_the_cursor_goes_event_by_event() -> None:
    """Full stop to the next change of memory, comma to the one before."""
    times = sorted({change.at_ns for change in changes()})
    async with stepped(training_step()) as (app, pilot, screen, _):
        at = times.index(PEAK_MS * MS)
        await press(pilot, "full_stop")
        assert cursor_ns(screen) == times[at + 1]
        assert held(times[at + 1] / MS) in app.text()
        await press(pilot, "comma", "comma")
        assert cursor_ns(screen) == times[at - 1]
        assert held(times[at - 1] / MS) in app.text()


async def test_home_end_and_peak() -> None:
    """From anywhere."""
    async with stepped(training_step()) as (app, pilot, screen, _):
        await press(pilot, "home")
        assert cursor_ns(screen) == 0
        assert "the beginning of the step" in app.text()
        assert held(0) in app.text()
        await press(pilot, "end")
        assert cursor_ns(screen) == 200 * MS
        assert held(200) in app.text()
        await press(pilot, "p")
        assert cursor_ns(screen) == PEAK_MS * MS


async def test_time_is_zoomed_around_the_cursor() -> None:
    """Plus twice, minus once, escape for all of it; the rate of the refresh stays."""
    async with stepped(training_step()) as (app, pilot, screen, _):
        rate = app.pace.hz
        await press(pilot, "plus", "equals_sign")
        assert "zoomed in to 25.0 % of 200 ms" in app.text()
        assert cursor_ns(screen) == PEAK_MS * MS
        await press(pilot, "minus")
        assert "zoomed in to 50.0 % of 200 ms" in app.text()
        await press(pilot, "escape")
        assert "zoomed in" not in app.text()
        assert app.pace.hz == rate
        assert isinstance(app.screen, StepScreen)


async def test_zoomed_in_the_axis_follows_the_cursor() -> None:
    """Out at the left end, and to the peak again."""
    async with stepped(training_step()) as (app, pilot, screen, _):
        await press(pilot, *["plus"] * 4, "home")
        assert screen.look is not None
        assert screen.look.begin_ns == 0
        assert "peak 84.0 MiB at 103 ms ▸" in app.text()
        await press(pilot, "p")
        assert screen.look.begin_ns <= PEAK_MS * MS < screen.look.end_ns


async def test_a_click_sets_the_cursor() -> None:
    """At the highest moment of the column under the mouse."""
    async with stepped(training_step()) as (app, pilot, screen, _):
        pane = screen.query_one("#timeline", StepTimeline)
        assert screen.timeline is not None
        assert screen.look is not None
        plan = plan_timeline(screen.timeline, *pane.size)
        await pilot.click("#timeline", offset=(1 + plan.gutter + 20, 6))
        await settle(pilot)
        assert screen.look.column(cursor_ns(screen), plan.columns) == 20
        assert held(cursor_ns(screen) / MS) in app.text()


async def test_one_category_alone() -> None:
    """Unsharded parameters on their own scale, their own peak, and all again after the last."""
    async with stepped(training_step()) as (app, pilot, screen, _):
        await press(pilot, "m")
        assert "unsharded parameters alone inside step 41" in app.text()
        assert "peak 6.00 MiB" in app.text()
        assert "U unsharded parameters 6.00 MiB of 84.0 MiB" in app.text()
        await press(pilot, "p")
        assert cursor_ns(screen) == 15 * MS  # the first gather
        for words in ("activations", "temporary", "gradients", "collective buffers"):
            await press(pilot, "m")
            assert f"{words} alone inside step 41" in app.text()
        await press(pilot, "m")
        assert "memory inside step 41" in app.text()


# Keys of captures and ranks


async def test_ranks() -> None:
    """Round and round; in the same step the cursor and the axis stay."""
    async with stepped(*TWO) as (app, pilot, screen, _):
        await press(pilot, "plus", "home", "full_stop")
        look = screen.look
        for key, rank in (("r", 0), ("r", 1), ("R", 0), ("down", 1), ("up", 0)):
            await press(pilot, key)
            assert f"inside step 60 · rank {rank} of 2 · capture 2 of 2" in app.text()
            assert screen.look == look


async def test_captures() -> None:
    """Back and forth, to the ends and no further; another step begins at its peak."""
    async with stepped(*TWO) as (app, pilot, screen, _):
        await press(pilot, "home", "left_square_bracket")
        assert "inside step 41 · rank 1 of 2 · capture 1 of 2" in app.text()
        assert cursor_ns(screen) == PEAK_MS * MS
        await press(pilot, "left_square_bracket")
        assert "capture 1 of 2" in app.text()
        await press(pilot, "r")
        assert "inside step 41 · rank 0 of 2 · capture 1 of 2" in app.text()
        await press(pilot, "right_square_bracket", "right_square_bracket")
        assert "inside step 60 · rank 0 of 2 · capture 2 of 2" in app.text()


async def test_a_newer_capture_follows_unless_an_older_one_was_chosen() -> None:
    """What is looked at stays."""
    async with stepped(*TWO) as (app, pilot, _, source):
        await come(app, pilot, source, training_step(1, 70, id="three"))
        assert "inside step 70 · rank 1 of 2 · capture 3 of 3" in app.text()
        await press(pilot, "left_square_bracket")
        await come(app, pilot, source, training_step(1, 80, id="four"))
        assert "inside step 60 · rank 1 of 2 · capture 2 of 4" in app.text()


async def test_zoom_and_details_and_back() -> None:
    """The focused pane alone; enter shows it in full; escape step by step back to the runs."""
    async with stepped(training_step()) as (app, pilot, screen, _):
        await press(pilot, "z")
        assert "why the peak is here" not in app.text()
        await press(pilot, "right")
        await press(pilot, "escape")
        assert "why the peak is here" in app.text()
        await press(pilot, "enter")
        assert isinstance(app.screen, Text)
        assert "grad_unsharded" in app.text()
        await press(pilot, "escape")
        screen.query_one("#why").focus()
        await press(pilot, "enter")
        assert isinstance(app.screen, Text)
        assert "temp → grad_unsharded" in app.text()
        await press(pilot, "escape", "escape")
        assert isinstance(app.screen, RunsScreen)


# Taking one


async def test_capture_is_asked_for_and_awaited() -> None:
    """k on either screen; until it is there, the screen says since when; then it is shown."""
    async with stepped() as (app, pilot, screen, source):
        text = app.text()
        assert "no step of this run has been captured" in text
        assert "k captures the next step on all ranks; so does, from a shell, fsdp-tui capture tiny" in text
        await press(pilot, "k")
        await until(pilot, lambda: source.commands == ["capture"])
        now_ns = app.services.now_ns()
        asked = Event(at_ns=now_ns - 3 * SECOND, kind="capture_requested", severity="note", text="capture asked for")
        await come(app, pilot, source, asked)
        assert "◌ capture asked for 3 s ago" in app.text()
        await press(pilot, "1", "k")
        await until(pilot, lambda: source.commands == ["capture"] * 2)
        assert isinstance(app.screen, RunScreen)
        await press(pilot, "2")
        taken = replace_time(training_step(), now_ns)
        await come(app, pilot, source, taken)
        assert "asked for" not in app.text()
        assert "inside step 41 · rank 0 of 2 (1 captured) · capture 1 of 1" in app.text()
        assert screen.timeline is not None


def replace_time(capture: Capture, began_ns: int) -> Capture:
    import msgspec

    return msgspec.structs.replace(capture, began_ns=began_ns)


async def test_a_newer_one_is_awaited_beside_an_older_one() -> None:
    """Until the event that says that it is there, or that this rank could not."""
    async with stepped(training_step(), training_step(1)) as (app, pilot, _, source):
        now_ns = app.services.now_ns()
        asked = Event(at_ns=now_ns, kind="capture_requested", severity="note", text="capture asked for")
        await come(app, pilot, source, asked)
        assert "◌ capture asked for 0 s ago" in app.text()
        assert "= 85.0 MiB" in app.text()
        failed = Event(at_ns=now_ns, kind="capture_failed", severity="warn", text="rank 1 could not", rank=1)
        await come(app, pilot, source, failed)
        assert "asked for" not in app.text()
        await press(pilot, "r")
        assert "◌ capture asked for" in app.text()  # rank 0 has not answered
        await come(app, pilot, source, Event(at_ns=now_ns, kind="captured", severity="ok", text="step 50 captured"))
        assert "asked for" not in app.text()


async def test_a_held_training_is_captured_when_it_goes_on() -> None:
    """The screen says what it waits for."""
    async with stepped() as (app, pilot, _, source):
        now_ns = app.services.now_ns()
        beats = [
            Beat(rank=rank, incarnation=1, sent_ns=now_ns, step=40, sent=80, dropped=0, paused=True) for rank in (0, 1)
        ]
        asked = Event(at_ns=now_ns, kind="capture_requested", severity="note", text="capture asked for")
        await come(app, pilot, source, *beats, asked)
        assert "the training is held, and it is taken when that goes on" in app.text()


async def test_a_failed_capture_says_why() -> None:
    """And how to try again; the other rank's and the one before are there."""
    failed = training_step(0, 70, id="three", error="RuntimeError: the step was not watched")
    async with stepped(*TWO, failed) as (app, pilot, _, _):
        assert "inside step 60 · rank 1 of 2" in app.text()
        assert "▲ no capture of rank 0: r says why" in app.text()
        await press(pilot, "r")
        text = app.text()
        assert "rank 0 could not capture step 70: RuntimeError: the step was not watched" in text
        assert "k captures the next step" in text
        assert "rank 0 of 2 · capture 3 of 3" in text
        await press(pilot, "left_square_bracket")
        assert "inside step 60 · rank 0 of 2" in app.text()


async def test_an_ended_run_without_a_capture_says_that_it_is_too_late() -> None:
    """Nothing can be captured of it any more."""
    async with stepped(recipe=Recipe(ended="finished")) as (app, pilot, _, _):
        assert "The run is over. A step is captured while the training goes on" in app.text()
        await press(pilot, "right", "left", "full_stop", "comma", "p", "home", "end", "plus", "minus", "m", "r", "R")
        await press(pilot, "left_square_bracket", "right_square_bracket", "enter", "z", "z")
        assert "The run is over." in app.text()


async def test_without_a_run() -> None:
    """The screen says where runs are."""
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "2", "k", "right", "r")
        assert "no run is open: 0 shows the runs" in app.text()


async def test_a_refused_capture_says_why() -> None:
    """The hub's words."""
    async with stepped() as (app, pilot, _, source):
        source.refusal = "another capture is being taken"
        assert isinstance(RunError(source.refusal), Exception)
        await press(pilot, "k")
        await until(pilot, lambda: "another capture is being taken" in said(app))


async def test_only_some_ranks_were_captured() -> None:
    """r goes through those that have one; a rank that has none is not offered."""
    recipe = replace(Recipe(), ranks=8)
    async with stepped(training_step(3), training_step(6), recipe=recipe) as (app, pilot, screen, _):
        assert "rank 6 of 8 (2 captured) · capture 1 of 1" in app.text()
        seen = []
        for _ in range(3):
            await press(pilot, "r")
            chosen = screen.chosen()
            assert chosen is not None
            seen.append(chosen.rank)
        assert sorted(set(seen)) == [3, 6]
