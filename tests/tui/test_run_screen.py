"""The Run screen: its numbers against the run, and each key against what help says."""

from __future__ import annotations

import math

import pytest
from textual.widgets import Input

from fsdp_tui.telemetry.messages import Beat, Event, Goodbye
from fsdp_tui.tui.screens.base import Ask, Text
from fsdp_tui.tui.screens.logs import LogsScreen
from fsdp_tui.tui.screens.rank import RankScreen
from fsdp_tui.tui.screens.run import RankBars, RunScreen
from fsdp_tui.tui.widgets.lines import LineChart
from tests.unit.telemetry.messages_for_tests import capture

from .checks import check_collective, check_header, check_line, check_run, check_steps
from .comm_runs import CommRecipe
from .drive import check_golden, dashboard, opened, press, said, settle, until
from .fixtures import MIB, SECOND, Recipe, World, entry
from .reading import cells, pane
from .truth import GATHER, SCATTER, Truth

EIGHT_GPUS = Recipe(
    ranks=8,
    name="eight",
    device="cuda",
    capacity=80 * 1024 * MIB,
    state_bytes=120 * 1024 * MIB,
    activation=20 * 1024 * MIB,
    heavy_rank=5,
)
RECIPES = {2: Recipe(), 8: EIGHT_GPUS, 64: Recipe(ranks=64, name="many", heavy_rank=17)}
RECIPES[1024] = Recipe(ranks=1024, name="very many", heavy_rank=517, steps=6, state_bytes=4096 * MIB)


@pytest.mark.parametrize("ranks", RECIPES)
async def test_what_the_screen_shows(ranks: int) -> None:
    """Kept as text at three sizes, and the numbers in it worked out from the recipe."""
    recipe = RECIPES[ranks]
    truth = Truth(recipe)
    async with opened(recipe) as (app, pilot, _):
        for size in ((120, 40), (80, 24), (60, 20)):
            await pilot.resize_terminal(*size)
            await settle(pilot, None)
            text = app.text()
            check_header(recipe, text, since=("data 0.2 s old", "0.2 s old"))
            check_run(truth, text, size[0])
            check_golden(f"run-{ranks}-{size[0]}x{size[1]}", text)


async def test_exposed_parts_add_up_to_the_step() -> None:
    """4 forward and 4 backward gathers and 4 reduces, 1 and 3 ms on the two ranks: 8, 8 and 8 ms in the mean.

    1 + (60 - 8) + (110 - 16) + 20 + 14 + 16 + 8 = 205 ms, the median step.
    """
    async with opened() as (app, _, _):
        text = app.text()
    assert "205 ms median" in text
    for part in ("input 1.0", "forward 52.0", "backward 94.0", "optimizer 20.0", "rest 14.0"):
        assert f"{part} ms" in text
    assert "exposed all-gather 16.0 ms" in text
    assert "exposed reduce 8.0 ms" in text


async def test_collectives_name_the_rank_that_comes_late() -> None:
    """Rank 1 spends 1 ms where rank 0 spends 3: it is 2 ms late per call, and a unit is gathered twice."""
    async with opened() as (app, _, _):
        assert "1 +4.00 ms" in app.text()


async def test_a_collective_in_full() -> None:
    """Enter on the collectives opens the one under the cursor: its unit's, its kind's, with its numbers."""
    recipe = CommRecipe(ranks=2, blocks=5, steps=12, late_rank=1, slow_unit=2)
    truth = Truth(recipe)
    async with opened(recipe) as (app, pilot, _):
        app.screen.query_one("#collectives").focus()
        for keys, unit, kind in (
            ((), 0, GATHER),
            (("down",), 0, SCATTER),
            (("down", "down", "down"), 2, GATHER),
            (("end",), 4, SCATTER),
            (("up",), 4, GATHER),
        ):
            await press(pilot, *keys, "enter")
            assert isinstance(app.screen, Text)
            check_collective(truth, None, unit, kind, app.text())
            await press(pilot, "escape")
            assert isinstance(app.screen, RunScreen)


async def test_freeze_stops_the_panels_and_not_the_header() -> None:
    """What is looked at stays; the header still says how the training goes."""
    async with opened() as (app, pilot, world):
        await press(pilot, "p")
        assert "panels frozen at step 40" in app.text()
        source = next(iter(world.sources.values()))
        recipe = Recipe(steps=41)
        for rank in range(2):
            source.state.apply(recipe.step(rank, 41))
        await until(pilot, lambda: app.snapshot is not None and app.snapshot.view.steps == 41)
        await settle(pilot)
        text = app.text()
        assert "step 41/1,000" in text
        assert "loss 2.778" in text
        await press(pilot, "space")
        assert "frozen" not in app.text()
        assert "loss 2.747" in app.text()  # 5 / (1 + 41/50)


async def test_stale_data_say_so() -> None:
    """The ranks are silent for 12 s: nobody should take the picture for the present."""
    async with opened() as (app, pilot, world):
        world.now_ns += 12 * SECOND
        await settle(pilot)
        assert "◌ STALE 12 s" in app.text()
        assert "LIVE" not in app.text()


async def test_a_run_whose_ranks_have_left_is_ending() -> None:
    """Not stale, though nobody is heard: how it ended is known in a moment."""
    async with opened() as (app, pilot, world):
        source = next(iter(world.sources.values()))
        for rank in range(2):
            hello = source.state.ranks[rank].hello
            assert hello is not None
            source.state.apply(Goodbye(rank=rank, incarnation=hello.incarnation, reason="stopped", steps=40))
        world.now_ns += 12 * SECOND
        await until(pilot, lambda: "◌ ENDING" in app.text())
        assert "its ranks have left" in app.text()
        assert "STALE" not in app.text()


@pytest.mark.parametrize(
    ("state", "mark"), [("finished", "✓ DONE"), ("failed", "✗ FAILED"), ("stopped", "■ STOPPED"), ("lost", "✕ LOST")]
)
async def test_ended_runs_say_how(state: str, mark: str) -> None:
    """A recorded run looks like a live one, but for its mark and its age."""
    async with opened(Recipe(ended=state)) as (app, _, _):
        text = app.text()
        assert mark in text
        assert "ended 0 s ago" in text
        if state == "failed":
            assert "the run failed: ValueError: no more data" in text


async def test_paused_training() -> None:
    """All ranks say that they wait."""
    async with opened() as (app, pilot, world):
        source = next(iter(world.sources.values()))
        for rank in range(2):
            source.state.apply(
                Beat(rank=rank, incarnation=1, sent_ns=world.now_ns, step=40, sent=80, dropped=0, paused=True)
            )
        await until(pilot, lambda: app.snapshot is not None and app.snapshot.view.state == "paused")
        await settle(pilot)
        assert "❚❚ PAUSED" in app.text()
        await press(pilot, "h")  # goes on without a question
        await until(pilot, lambda: source.commands == ["resume"])


async def test_a_changed_strategy_is_shown_as_changed() -> None:
    """PyTorch made something else of it: both are in the header, and a verdict says so."""
    async with opened(Recipe(strategy="fsdp1:hybrid_shard", effective="fsdp1:no_shard")) as (app, _, _):
        assert "fsdp1:hybrid_shard → fsdp1:no_shard" in app.text()


async def test_filter_ranks() -> None:
    """`/` narrows while typing, a broken pattern is said, escape brings all back."""
    async with opened(RECIPES[64]) as (app, pilot, _):
        screen = app.screen
        assert isinstance(screen, RunScreen)
        await press(pilot, "slash", "1", "7")
        assert [rank.rank for rank in screen.ranks()] == [17]
        assert "filter: 17" in app.text()
        await press(pilot, "enter")
        assert isinstance(app.focused, RankBars)
        await press(pilot, "slash", "-", "2", "0")
        assert [rank.rank for rank in screen.ranks()] == [17, 18, 19, 20]
        await press(pilot, "escape")
        assert len(screen.ranks()) == 64
        await press(pilot, "slash", *"unit:s.1", "space", "5", "enter")
        assert [rank.rank for rank in screen.ranks()] == [5]
        rows = [cells(line) for line in pane(app.text(), "collectives")[1:]]
        assert {word for row in rows for word in row if word.startswith("blocks")} == {"blocks.1"}
        await press(pilot, "slash", "left_parenthesis")
        assert "no pattern" in app.text()


async def test_sort_reverse_and_cursor() -> None:
    """By peak the heavy rank comes first; enter opens it."""
    async with opened(EIGHT_GPUS) as (app, pilot, _):
        screen = app.screen
        assert isinstance(screen, RunScreen)
        await press(pilot, "s")
        assert screen.ranks()[0].rank == 5
        await press(pilot, "S")
        assert screen.ranks()[-1].rank == 5
        await press(pilot, "end", "enter")
        assert isinstance(app.screen, RankScreen)
        assert app.screen.rank == 5


async def test_rank_in_full() -> None:
    """Every category to the byte, gauges, and why what is missing is missing."""
    recipe = Recipe()
    async with opened(recipe, size=(120, 50)) as (app, pilot, _):
        await press(pilot, "down", "enter")
        await settle(pilot, None)
        text = app.text()
        assert "rank 1" in text
        assert f"{recipe.states() // 4:,}" in text
        assert f"{recipe.peak(1):,}" in text
        assert "rss_bytes" in text
        assert "not available: no GPU" in text
        check_golden("rank-120x50", text)
        await press(pilot, "right")
        assert isinstance(app.screen, RankScreen)
        assert app.screen.rank == 0
        await press(pilot, "escape")
        assert isinstance(app.screen, RunScreen)


async def test_memory_after_the_step() -> None:
    """Only the states are left then: the bar ends at the ideal mark."""
    async with opened() as (app, pilot, _):
        await press(pilot, "m")
        assert "after the optimizer's step" in app.text()
        assert "A 0.0" in app.text()


async def test_zoom_and_back() -> None:
    """Each pane can have the screen for itself."""
    async with opened() as (app, pilot, _):
        for pane in ("memory", "verdicts", "loss", "rate", "phases", "collectives", "events"):
            widget = app.screen.query_one(f"#{pane}")
            widget.focus()
            await press(pilot, "z")
            assert widget.size.width == 118, pane
            assert widget.size.height >= 33, pane
            await press(pilot, "escape")
            assert widget.size.height < 33, pane


async def test_log_axis_and_window() -> None:
    """`l` makes the loss's axis logarithmic and linear again; with `w` both charts begin 1000, 200 and 50 steps before the newest."""
    recipe = Recipe(steps=1_200)
    async with opened(recipe) as (app, pilot, _):
        for begin, words in ((1, ""), (200, "last 1,000 steps"), (1_000, "last 200 steps"), (1_150, "last 50 steps")):
            for key, scale in (("l", float), ("l", math.log10)):
                text = app.text()
                check_line(pane(text, "loss"), lambda step: recipe.loss / (1 + step / 50), begin, recipe.steps, scale)
                check_steps(pane(text, "tokens/s"), begin, recipe.steps)
                title = app.screen.query_one("#loss", LineChart).border_title
                assert ("· log" in str(title), words in str(title)) == (scale is math.log10, True)
                assert ("steps" in str(title).replace("/100 steps", "")) == bool(words)
                await press(pilot, key)
            await press(pilot, "w")
        check_steps(pane(app.text(), "loss"), 1, recipe.steps)


async def test_stop_asks_first() -> None:
    """No is no; yes passes the command on and the screen says how it ended."""
    async with opened() as (app, pilot, world):
        source = next(iter(world.sources.values()))
        await press(pilot, "x")
        assert isinstance(app.screen, Ask)
        await press(pilot, "n")
        assert source.commands == []
        await press(pilot, "x", "escape")
        await press(pilot, "x", "enter")  # the focus is on the harmless answer
        assert source.commands == []
        await press(pilot, "x", "s")
        await until(pilot, lambda: source.commands == ["stop"])
        await until(pilot, lambda: app.snapshot is not None and not app.snapshot.live)
        await settle(pilot)
        assert "■ STOPPED" in app.text()
        await press(pilot, "x")
        assert not isinstance(app.screen, Ask)


async def test_hold_asks_first() -> None:
    """Holding is not freezing: other key, other words, a question."""
    async with opened() as (app, pilot, world):
        source = next(iter(world.sources.values()))
        await press(pilot, "h")
        assert isinstance(app.screen, Ask)
        assert "Hold the training?" in app.text()
        await press(pilot, "h")
        await until(pilot, lambda: source.commands == ["pause"])


async def test_capture_is_asked_for_and_told() -> None:
    """It asks nothing; the rank's details then say why the peak was where it was."""
    async with opened() as (app, pilot, world):
        source = next(iter(world.sources.values()))
        await press(pilot, "k")
        await until(pilot, lambda: source.commands == ["capture"])
        source.state.apply(capture(0))
        await until(pilot, lambda: app.snapshot is not None and bool(app.snapshot.view.ranks[0].captures))
        await settle(pilot)
        await press(pilot, "enter")
        assert "step 7: the peak was in backward of blocks.0.up: one unit unsharded (blocks.0" in app.text()
        assert "something is not seen" in app.text()


async def test_a_refused_command_is_said() -> None:
    """Nothing happens in silence."""
    async with opened() as (app, pilot, world):
        source = next(iter(world.sources.values()))
        source.refusal = "no hub"
        await press(pilot, "x", "s")
        await until(pilot, lambda: "no hub" in said(app))


async def test_copy_the_command() -> None:
    """The line that repeats the run."""
    async with opened() as (app, pilot, _):
        await press(pilot, "y")
        assert app.clipboard == "fsdp-tui demo --strategy fsdp2:full_shard"


async def test_verdicts_and_events_in_full() -> None:
    """Enter on the card and on the events opens the whole text."""
    async with opened() as (app, pilot, _):
        for pane, words in (("verdicts", "two ranks share the states"), ("events", "the hub was replaced")):
            app.screen.query_one(f"#{pane}").focus()
            await press(pilot, "enter")
            assert isinstance(app.screen, Text)
            assert words in app.text()
            await press(pilot, "escape")


async def test_logs_open_on_the_rank() -> None:
    """And go back to the run."""
    async with opened() as (app, pilot, _):
        await press(pilot, "down", "o")
        assert isinstance(app.screen, LogsScreen)
        assert app.screen.rank == 1
        await press(pilot, "escape")
        assert isinstance(app.screen, RunScreen)


async def test_letters_rest_while_a_field_has_the_focus() -> None:
    """`q` in a filter is a letter, and the last line shows no letter keys then."""
    async with opened() as (app, pilot, _):
        await press(pilot, "slash", "q")
        assert app.screen.query_one("#filter-text", Input).value == "q"
        assert "p freeze" not in app.text()


async def test_new_events_come_without_a_message_per_sample() -> None:
    """The picture is taken once per tick, however much arrives in between."""
    async with opened() as (app, pilot, world):
        source = next(iter(world.sources.values()))
        for at in range(500):
            source.state.apply(Event(at_ns=world.now_ns, kind="note", severity="note", text=f"event {at}"))
        await until(pilot, lambda: app.snapshot is not None and len(app.snapshot.view.events) == 501)
        await settle(pilot)
        assert "events · 501" in app.text()


async def test_a_run_that_cannot_be_read() -> None:
    """The reason instead of an empty screen."""
    world = World()
    about = entry("broken", live=False, state="finished")
    world.entries.append(about)
    async with dashboard(world, open_on=about) as (app, _):
        assert "its recording is damaged" in app.text()
