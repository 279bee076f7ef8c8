"""Runs side by side."""

from __future__ import annotations

import pytest

from fsdp_tui.tui.screens.compare import CompareScreen, names, number_columns, run_bars, write_verdict
from fsdp_tui.tui.screens.run import RunScreen
from fsdp_tui.tui.widgets.chart import row_text

from .drive import check_golden, dashboard, press, settle, until
from .fixtures import MIB, Recipe, World

OPTIONS: dict[str, str | int | float | bool | None] = {"model": "tiny", "batch": 8, "precision": "fp32"}
RECIPES = (
    Recipe(name="one", ranks=1, strategy="single", ended="finished", options=OPTIONS),
    Recipe(name="copies", ranks=2, strategy="ddp", ended="finished", options=OPTIONS),
    Recipe(name="shards", ranks=2, strategy="fsdp2:full_shard", ended="finished", options=OPTIONS),
)


def a_world() -> World:
    world = World()
    for recipe in RECIPES:
        world.add(recipe)
    return world


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_what_the_comparison_shows(size: tuple[int, int]) -> None:
    """States, theory and peak of each, worked out from the recipes."""
    async with dashboard(a_world(), size=size) as (app, pilot):
        await press(pilot, "space", "space", "space", "5")
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        await until(pilot, lambda: len(screen.runs()) == 3)
        await settle(pilot, None)
        text = app.text()
        for recipe in RECIPES:
            assert f"{recipe.states() / MIB:.1f}" in text
            assert f"{recipe.peak(0) / MIB:.1f}" in text
        assert "baseline: 1 single" in text
        check_golden(f"compare-{size[0]}x{size[1]}", text)


def test_numbers_and_differences() -> None:
    """Half the states is −50 % of the baseline; the losses agree."""
    views = [recipe.state().view() for recipe in RECIPES]
    assert names(views) == ["1 single", "2 ddp", "3 fsdp2:full_shard"]
    columns = number_columns(views, 0, True, 118)
    states = columns[3].cells[0]
    assert isinstance(states, tuple)
    assert "24.0 MiB" in states[0]
    assert "−50.0 %" in states[0]
    assert "*" in states[0]
    bare = number_columns(views, 0, False, 118)[3].cells[0]
    assert isinstance(bare, tuple)
    assert "%" not in bare[0]
    said = " ".join(row_text(row) for row in write_verdict(views, 0, 100))
    assert "losses agree" in said
    assert "1/2.00 of the unsharded model states" in said


def test_what_differs_is_named() -> None:
    """Apples and pears, and losses that are not the same training's."""
    other = Recipe(name="other", ended="finished", loss=6.0, options=OPTIONS | {"batch": 16})
    views = [RECIPES[2].state().view(), other.state().view()]
    said = " ".join(row_text(row) for row in write_verdict(views, 0, 100))
    assert "losses differ" in said
    assert "batch differs: 8, 16" in said
    assert names(views) == ["1 shards", "2 other"]


def test_bars_compare_on_one_scale() -> None:
    """All runs in one unit, each with what theory gives it."""
    bars = run_bars([recipe.state().view() for recipe in RECIPES], 0)
    assert bars.ideal.tolist() == [48 * MIB, 48 * MIB, 24 * MIB]
    assert bars.total.tolist() == [recipe.peak(0) for recipe in RECIPES]
    assert bars.scale_bytes >= max(recipe.peak(0) for recipe in RECIPES)


async def test_fewer_than_two_runs_say_how_to_choose() -> None:
    """No empty screen."""
    async with dashboard(a_world()) as (app, pilot):
        await press(pilot, "5")
        assert "Mark two to six runs with space" in app.text()
        await press(pilot, "0", "space", "5")
        assert "Mark two to six runs with space" in app.text()
        await press(pilot, "escape")
        assert app.current_mode == "runs"


async def test_baseline_differences_and_open() -> None:
    """b goes through the runs, d hides the differences, enter opens the run under the cursor."""
    async with dashboard(a_world()) as (app, pilot):
        await press(pilot, "space", "space", "space", "5")
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        await until(pilot, lambda: len(screen.runs()) == 3)
        await press(pilot, "b", "b")
        assert "baseline: 3 fsdp2:full_shard" in app.text()
        assert "+100.0 %" in app.text()
        await press(pilot, "d")
        assert "+100.0 %" not in app.text()
        await press(pilot, "down", "enter")
        assert isinstance(app.screen, RunScreen)
        assert app.feed is not None
        assert app.feed.entry.name == "copies"


async def test_a_run_that_cannot_be_read_is_named() -> None:
    """The others wait for a second one."""
    world = a_world()
    world.sources.pop(world.entries[1].id)
    async with dashboard(world) as (app, pilot):
        await press(pilot, "space", "space", "5")
        await until(pilot, lambda: "damaged" in app.text())
        assert "copies: run" in app.text()
