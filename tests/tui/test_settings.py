"""What config.toml says, in the dashboard: settings that it begins with, and keys that are elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import OptionList

from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.screens.base import Ask
from fsdp_tui.tui.screens.launch import LaunchScreen
from fsdp_tui.tui.screens.run import RunScreen
from fsdp_tui.tui.settings import Settings, load
from fsdp_tui.tui.widgets.lines import LineChart

from .drive import press, said, settle, until
from .fixtures import Recipe, World


@asynccontextmanager
async def with_settings(
    folder: Path, text: str, recipe: Recipe | None = None
) -> AsyncIterator[tuple[Dashboard, Pilot[int], RunScreen]]:
    """The Run screen under a config.toml."""
    path = folder / "config.toml"
    path.write_text(text)
    world = World()
    source = world.add(recipe or Recipe())
    app = Dashboard(world.services(), open_on=source.entry, entries=list(world.entries), settings=load(path))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.snapshot is not None)
        await settle(pilot)
        screen = app.screen
        assert isinstance(screen, RunScreen)
        yield app, pilot, screen


async def test_the_dashboard_begins_as_set(tmp_path: Path) -> None:
    text = (
        'theme = "contrast"\nrefresh = 4\nletters = true\nmemory = "now"\nlog_loss = true\nsmoothing = 7\nwindow = 50\n'
    )
    async with with_settings(tmp_path, text, Recipe(steps=400)) as (app, _, screen):
        assert app.theme == "fsdp-contrast"
        assert app.pace.asked == 4.0
        assert app.letters
        text = app.text()
        assert "4 Hz" in text
        assert "memory per rank after the optimizer's step" in text
        assert " · log · last 50 steps" in text
        assert screen.query_one("#loss", LineChart)._plot.series[0].smooth == 7
    async with with_settings(tmp_path, "", Recipe(steps=400)) as (app, _, screen):
        text = app.text()
        assert app.theme == "fsdp-terminal"  # without a terminal there is no more to use
        assert "2 Hz" in text
        assert "memory per rank at the peak of a step" in text
        assert " · log" not in text
        assert screen.query_one("#loss", LineChart)._plot.series[0].smooth == 10


async def test_moved_keys_work_and_are_told_everywhere(tmp_path: Path) -> None:
    """Last line, help, palette and tabs; where they were, nothing happens."""
    text = 'theme = "dark"\n[keys]\n"run.freeze" = ["f9", ";"]\n"theme" = "f10"\n"show.launch" = "f4"\n'
    async with with_settings(tmp_path, text) as (app, pilot, screen):
        for key in ("f9", "semicolon"):
            await press(pilot, key)
            assert screen.frozen is not None, key
            await press(pilot, key)
            assert screen.frozen is None, key
        await press(pilot, "p", "space", "t", "4")
        assert screen.frozen is None
        assert app.theme == "fsdp-dark"
        assert app.screen is screen
        assert "F9 freeze" in app.text().splitlines()[-1]
        assert " F4 Launch" in app.text().splitlines()[1]
        await press(pilot, "f10")
        assert app.theme == "fsdp-light"
        await press(pilot, "question_mark")
        assert "F9 ;" in app.text()
        await press(pilot, "escape", "ctrl+p")
        await pilot.press(*"freeze")
        options = app.screen.query_one(OptionList)
        await until(pilot, lambda: options.option_count > 0)
        assert "freeze (F9)" in str(options.get_option_at_index(0).prompt)
        await press(pilot, "escape", "escape")
        await press(pilot, "f4")
        assert isinstance(app.screen, LaunchScreen)


async def test_keys_that_changed_places(tmp_path: Path) -> None:
    """Hold where stop was, and stop where hold was."""
    text = '[keys]\nrun.hold = ["x", "ctrl+k"]\nrun.stop = "h"\n'
    async with with_settings(tmp_path, text) as (app, pilot, _):
        for key, question in (("x", "Hold the training"), ("ctrl+k", "Hold the training"), ("h", "Stop the training")):
            await press(pilot, key)
            assert isinstance(app.screen, Ask)
            assert question in app.text()
            await press(pilot, "escape")


async def test_mistakes_are_told_and_the_rest_counts(tmp_path: Path) -> None:
    """The program starts in any case."""
    text = 'theme = "light"\nrefresh = 99\n[keys]\n"run.hold" = "q"\n"run.logs" = "f8"\nnonsense = "x"\n'
    async with with_settings(tmp_path, text) as (app, pilot, _):
        assert app.theme == "fsdp-light"
        for line in (
            "line 2: refresh: expected one of 0.5, 1, 2, 4",
            "line 4: keys.run.hold: 'q' is quit",
            "line 6: keys.nonsense",
        ):
            assert line in said(app)
        await press(pilot, "f8")
        assert not isinstance(app.screen, RunScreen)
    async with with_settings(tmp_path, "not toml") as (app, _, _):
        assert "line 1" in said(app)
        assert app.settings == Settings()
