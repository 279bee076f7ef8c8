"""What config.toml says, in the dashboard: settings that it begins with, and keys that are elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from fsdp_tui.telemetry.messages import Ended
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.screens.base import Ask
from fsdp_tui.tui.screens.launch import LaunchScreen
from fsdp_tui.tui.screens.logs import LogsScreen
from fsdp_tui.tui.screens.run import RunScreen
from fsdp_tui.tui.settings import Settings, load
from fsdp_tui.tui.widgets.lines import LineChart

from .drive import press, said, settle, until
from .fixtures import FixtureSource, Recipe, World


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


SENTENCES = {
    "focus.next": "f13",
    "run.freeze": "f14",
    "run.hold": "f15",
    "run.open": "f16",
    "run.logs": "f17",
    "run.capture": "f18",
    "step.next_rank": "f19",
    "rank.stack": "f20",
    "back": "f21",
    "rank.next": "f22",
    "comm.metric": "f23",
    "comm.open": "f24",
    "show.runs": "f2",
    "show.compare": "f3",
    "show.launch": "f4",
    "runs.mark": "f6",
    "runs.open": "f8",
    "queue": "f9",
    "launch.copy": "f10",
    "launch.queue": "f11",
    "launch.save": "f12",
    "logs.next": "alt+n",
    "logs.follow": "alt+f",
    "quit": "alt+q",
    "quit.now": "alt+c",
    "run.stop": "alt+x",
    "show.step": "alt+s",
}
"""Actions that sentences name, and keys that nothing else has."""


async def test_sentences_name_the_keys_as_they_are_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints, questions, notices and advice on every screen: none tells a key that is elsewhere."""
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    text = "[keys]\n" + "".join(f'"{action}" = "{key}"\n' for action, key in SENTENCES.items())
    failed = Ended(state="failed", ended_ns=1, exit_codes={"1": 1}, failed_rank=1, reason="exit code 1")
    async with with_settings(tmp_path, text) as (app, pilot, screen):
        (entry,) = app.entries
        assert not screen.board.settings.problems
        await pilot.resize_terminal(80, 24)
        await settle(pilot, None)
        assert "▼ collectives, events: F13" in app.text()
        assert "+2 F16" in app.text()
        await press(pilot, "f14")
        assert "panels frozen at step 40 (F14)" in app.text()
        await press(pilot, "f14", "f15")
        assert "when you press F15 again" in " ".join(app.text().replace("│", " ").split())
        await press(pilot, "escape", "alt+c")
        assert "alt+c again quits; runs go on. (alt+q asks what becomes of them)" in said(app)
        await press(pilot, "f18")
        await until(pilot, lambda: "Step screen (alt+s)" in said(app))
        await pilot.resize_terminal(120, 40)
        await settle(pilot, None)
        await press(pilot, "f16")
        assert "← F22 rank   F20 stack   F21 back" in app.text()
        await press(pilot, "f21", "f17")
        assert isinstance(app.screen, LogsScreen)
        await press(pilot, "home", "up")
        assert "find a pattern; enter, then alt+n and N" in app.screen.query_one("#filter-text", Input).placeholder
        await press(pilot, "f21", "alt+s")
        assert "F18 captures the next step on all ranks" in app.text()
        await press(pilot, "3")
        assert "F23 lateness" in app.text()
        await press(pilot, "f14")
        assert "frozen at step 40 (F14)" in app.text()
        await press(pilot, "f14", "f24")
        assert "F24 into   F21 back   ← F22 rank" in app.text()
        await press(pilot, "f21", "f3")
        assert "with F6 on the Runs screen (F2), then come back with F3" in app.text()
        await press(pilot, "f9")
        assert "on the Launch screen (F4), F11 adds what the form says and w sweeps" in app.text()
        await press(pilot, "f4")
        assert "the same from a shell (F10 copies)" in app.text()
        await press(pilot, "escape", "f11")
        assert "F9 shows the queue" in said(app)
        assert "queue (F9): 0 of 1 done" in app.text()
        await press(pilot, "o")
        assert "no presets yet: F12 on the form" in app.text()
        await press(pilot, "escape", "f2", "f6")
        assert "1 marked: F3 compares" in app.text()
        await press(pilot, "home", "d")
        assert "is live: stop it first (F8, then alt+x)" in said(app)
        app.entries = []
        await settle(pilot)
        assert "no runs yet: F4 starts one" in app.text()
        app.entries = [entry]
        source = app.services.open_run(entry)
        assert isinstance(source, FixtureSource)
        source.state.apply(failed)
        await press(pilot, "1")
        await until(pilot, lambda: app.snapshot is not None and app.snapshot.view.ended is not None)
        app.screen.query_one("#verdicts").focus()
        await press(pilot, "f16")
        assert "→ read its log (F17)" in app.text()
