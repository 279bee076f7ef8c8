"""Going back in a run: on a recording that was really written, each key against what help says."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from fsdp_tui.telemetry.messages import Event, Message, Step, encode
from fsdp_tui.telemetry.recording import Recorder
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.screens.comm import CommScreen
from fsdp_tui.tui.screens.rank import RankScreen
from fsdp_tui.tui.screens.replayed import AskStep
from fsdp_tui.tui.screens.run import RunScreen
from fsdp_tui.tui.screens.runs import RunsScreen
from fsdp_tui.tui.widgets.scrubber import HERE, Scrubber
from tests.unit.telemetry.messages_for_tests import capture

from .drive import dashboard, press, said, settle, until
from .fixtures import SECOND, STARTED_NS, STEP_NS, FixtureSource, Recipe, World, entry


@dataclass
class Eventful(Recipe):
    """A run with events of which each is before the step that its number tells."""

    at_steps: dict[int, str] = field(default_factory=lambda: {10: "warn", 25: "bad"})
    captured: int | None = None

    def messages(self) -> Iterable[Message]:
        for message in super().messages():
            if isinstance(message, Step) and message.rank == 0:
                number = message.step
                if number in self.at_steps:
                    at_ns = STARTED_NS + number * STEP_NS - STEP_NS // 2
                    text = f"before step {number} ended"
                    yield Event(at_ns=at_ns, kind="told", severity=self.at_steps[number], text=text)
                if number - 1 == self.captured:
                    yield from (capture(rank, self.captured, id="one") for rank in range(self.ranks))
            yield message


class Written:
    """A run whose messages are recorded, as a hub does it."""

    def __init__(self, source: FixtureSource) -> None:
        self.source = source
        path = source.entry.paths.recording
        path.parent.mkdir(parents=True)
        self.state, self.recorder = RunState(), Recorder(path)

    def write(self, messages: Iterable[Message], *, seen: bool = True) -> None:
        """Also to the viewer, unless it has `seen` them."""
        for message in messages:
            self.state.apply(message)
            self.recorder.add(message, encode(message), 1)
            if not seen:
                self.source.state.apply(message)
        self.recorder.flush(self.state)


@asynccontextmanager
async def recorded(
    folder: Path, recipe: Recipe, *, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[Dashboard, Pilot[int], World, Written]]:
    """The Run screen on a run that has a recording."""
    world = World()
    about = entry(recipe.name, folder, live=not recipe.ended, state=recipe.ended or "running")
    source = world.add(recipe, about)
    run = Written(source)
    run.write(recipe.messages())
    try:
        async with dashboard(world, open_on=about, size=size) as (app, pilot):
            yield app, pilot, world, run
    finally:
        run.recorder.close(run.state)


async def arrive(app: Dashboard, pilot: Pilot[int]) -> str:
    """Waits until the moment is fetched and drawn; the screen."""
    await until(pilot, lambda: app.place is None or not app.place.fetching, "the moment is there")
    await settle(pilot)
    return app.text()


async def go(app: Dashboard, pilot: Pilot[int], *keys: str) -> str:
    await pilot.press(*keys)
    return await arrive(app, pilot)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 20)])
async def test_the_past_is_said_plainly_and_its_numbers_are_those_of_then(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    """Step 39 of 40 had ended 2.2 s before the run's clock now; its loss is 5 / (1 + 39/50)."""
    async with recorded(tmp_path, Recipe(), size=size) as (app, pilot, _, _):
        assert "LIVE" in app.text()
        text = await go(app, pilot, "less_than_sign")
        first, *_, last, _ = text.splitlines()
        assert "▮▮ step 39 of 40 · 0:00:02 ago" in first
        assert "● LIVE  " not in first
        assert f"loss {5 / (1 + 39 / 50):.3f}" in text
        assert HERE in last
        text = await go(app, pilot, "escape")
        assert "LIVE" in text.splitlines()[0]
        assert "loss 2.778" in text
        assert HERE not in text.splitlines()[-2]


async def test_steps_tenths_and_ends(tmp_path: Path) -> None:
    """Each key goes where help says; beyond the newest step is the present."""
    async with recorded(tmp_path, Recipe(ended="finished")) as (app, pilot, _, _):

        def shown() -> int:
            assert app.place is not None
            assert app.snapshot is not None
            assert app.snapshot.view.steps == app.place.step == app.snapshot.view.series.steps[-1]
            return app.place.step

        for keys, step in (
            (("less_than_sign",), 39),
            (("less_than_sign",) * 3, 36),
            (("greater_than_sign",), 37),
            (("left_curly_bracket",), 33),
            (("right_curly_bracket",), 37),
            (("left",), 36),  # the line of time has the focus
            (("right", "right"), 38),
            (("pageup",), 34),
            (("ctrl+home",), 1),
            (("left_curly_bracket", "less_than_sign"), 1),
            (("pagedown",), 5),
            (("home",), 1),
        ):
            text = await go(app, pilot, *keys)
            assert shown() == step, keys
            assert f"step {step} of 40" in text.splitlines()[0]
            assert "before the end" in text.splitlines()[0]
        await go(app, pilot, *["right_curly_bracket"] * 10)
        assert shown() == 40
        await go(app, pilot, "greater_than_sign")
        assert app.replay is None
        for key in ("end", "ctrl+end", "escape"):
            await go(app, pilot, "less_than_sign")
            assert shown() == 39
            await go(app, pilot, key)
            assert app.replay is None, key
            assert isinstance(app.screen, RunScreen)
        await go(app, pilot, "escape")
        assert isinstance(app.screen, RunsScreen)  # in the present it leaves, as ever


async def test_a_step_is_asked_for(tmp_path: Path) -> None:
    """What is no step of the run is one line, and nothing else happens."""
    async with recorded(tmp_path, Recipe()) as (app, pilot, _, _):
        await press(pilot, "number_sign")
        assert isinstance(app.screen, AskStep)
        for words in ("41", "0", "", "x", "-3"):
            app.screen.query_one(Input).value = words
            await press(pilot, "enter")
            assert f"expected a step from 1 to 40, found {words or 'nothing'!r}" in app.text()
        app.screen.query_one(Input).value = "12"
        await pilot.press("enter")
        assert "step 12 of 40" in await arrive(app, pilot)
        await press(pilot, "number_sign", "escape")
        assert isinstance(app.screen, RunScreen)
        assert app.place is not None
        assert app.place.step == 12


async def test_events_are_marks_and_can_be_gone_to(tmp_path: Path) -> None:
    """The step shown is the first that had ended after the event, and the event is told in it."""
    recipe = Eventful(events=())
    async with recorded(tmp_path, recipe) as (app, pilot, _, _):
        text = await go(app, pilot, "left_parenthesis")
        assert "step 25 of 40" in text
        assert "before step 25 ended" in text
        line = text.splitlines()[-2]
        assert "!" in line  # the mark of the warning; the cursor is on the other one
        assert "before step 10" in await go(app, pilot, "left_parenthesis")
        assert app.place is not None
        assert app.place.step == 10
        assert "▲" in app.text().splitlines()[-2]
        assert "before step 25" not in app.text()
        await go(app, pilot, "left_parenthesis")
        assert "no event before this one" in said(app)
        assert app.place.step == 10
        await go(app, pilot, "right_parenthesis")
        assert app.place.step == 25
        await go(app, pilot, "right_parenthesis")
        assert "no event after this one" in said(app)


async def test_playing_is_recorded_time_times_speed(tmp_path: Path) -> None:
    """A step takes 200 ms: one second at 1x is five steps, at 10x fifty; at the end is the present."""
    async with recorded(tmp_path, Recipe(steps=400, ended="finished")) as (app, pilot, world, _):

        async def after(seconds: float) -> int:
            app.tick()
            world.now_ns += int(seconds * SECOND)
            app.tick()
            await arrive(app, pilot)
            app.tick()  # what was asked for while the one before was being fetched
            await arrive(app, pilot)
            return app.place.step if app.place else 0

        await go(app, pilot, "P")
        assert "▶ 1× step 1 of 400" in app.text().splitlines()[0]
        assert await after(1) == 6
        assert await after(2) == 16
        await pilot.press("space")
        assert "▮▮ 1×" in app.text().splitlines()[-2]
        assert await after(5) == 16
        await pilot.press("F", "F")
        await pilot.press("P")
        assert await after(1) == 66
        assert "▶ 10×" in app.text().splitlines()[-2]
        assert await after(1) == 116
        await pilot.press("F")
        assert await after(0.1) == 166
        assert await after(60) == 0
        assert app.replay is None
        assert "DONE" in app.text()


async def test_a_live_run_goes_on_meanwhile(tmp_path: Path) -> None:
    """It is received and recorded: the header tells how far it is, and its new steps can be gone to."""
    recipe = Recipe()
    async with recorded(tmp_path, recipe) as (app, pilot, world, run):
        await go(app, pilot, "number_sign", "1", "0", "enter")
        world.now_ns += SECOND
        run.write(
            [
                one
                for number in (41, 42)
                for rank in (0, 1)
                for one in (recipe.step(rank, number), recipe.comm(rank, number))
            ],
            seen=False,
        )
        await until(pilot, lambda: app.now is not None and app.now.view.steps == 42)
        await settle(pilot)
        first = app.text().splitlines()[0]
        assert "▮▮ step 10 of 42 · 0:00:09 ago" in first  # 41 steps, 1 and 2 s after the tenth
        assert first.rstrip().endswith("now ● LIVE step 42")
        await go(app, pilot, "number_sign", "4", "1", "enter")
        assert app.snapshot is not None
        assert app.snapshot.view.steps == 41
        assert [rank.steps for rank in app.snapshot.view.ranks] == [41, 41]
        await go(app, pilot, "escape")
        assert app.snapshot.view.steps == 42


async def test_commands_are_for_the_training_as_it_is_now(tmp_path: Path) -> None:
    """Also while its past is looked at; and of an ended run's past there is nothing to stop."""
    async with recorded(tmp_path, Recipe()) as (app, pilot, _, run):
        await go(app, pilot, "ctrl+home")
        await press(pilot, "k")
        await until(pilot, lambda: run.source.commands == ["capture"])
    async with recorded(tmp_path / "ended", Recipe(ended="stopped")) as (app, pilot, _world, run):
        await go(app, pilot, "ctrl+home")
        assert app.snapshot is not None
        assert app.snapshot.view.state == "running"
        await press(pilot, "x")
        assert "this run is over: nothing to stop" in said(app)


async def test_every_screen_of_the_run_shows_the_same_moment(tmp_path: Path) -> None:
    """Rank details, Comm and Step take the same picture, and have the same keys."""
    async with recorded(tmp_path, Eventful(captured=20), size=(120, 50)) as (app, pilot, _, _):
        await press(pilot, "enter")
        assert isinstance(app.screen, RankScreen)
        text = await go(app, pilot, "less_than_sign")
        assert "step 39 ·" in text
        await go(app, pilot, "escape")
        assert isinstance(app.screen, RankScreen)
        await press(pilot, "escape", "3")
        assert isinstance(app.screen, CommScreen)
        text = await go(app, pilot, "number_sign", "5", "enter")
        assert "step 5 of 40" in text.splitlines()[0]
        assert app.screen.query_one(Scrubber).display
        await press(pilot, "2")
        text = await arrive(app, pilot)
        assert "step 5 of 40" in text.splitlines()[0]
        assert "no step of this run has been captured" in text
        text = await go(app, pilot, "number_sign", "3", "0", "enter")
        assert "memory inside step 20" in text
        await press(pilot, "1")
        assert "step 30 of 40" in app.text().splitlines()[0]


async def test_focus_comes_back(tmp_path: Path) -> None:
    """The pane that had it before has it in the present again; tab leaves the line of time too."""
    async with recorded(tmp_path, Recipe()) as (app, pilot, _, _):
        app.screen.query_one("#events").focus()
        await settle(pilot)
        await go(app, pilot, "less_than_sign")
        assert isinstance(app.screen.focused, Scrubber)
        await go(app, pilot, "escape")
        assert app.screen.focused is app.screen.query_one("#events")
        await go(app, pilot, "less_than_sign", "tab")
        assert app.screen.focused is app.screen.query_one("#memory")
        await go(app, pilot, "end")  # now the cursor of the bars
        assert app.replay is not None
        await go(app, pilot, "escape")
        assert app.screen.focused is app.screen.query_one("#memory")


async def test_a_click_on_the_line_goes_there(tmp_path: Path) -> None:
    """In the middle of it is the middle of the run's time: 10 s of which 8 were steps."""
    async with recorded(tmp_path, Recipe(ended="finished")) as (app, pilot, _, _):
        await go(app, pilot, "less_than_sign")
        scrubber = app.screen.query_one(Scrubber)
        row = app.text().splitlines()[-2]
        begin, end = row.index("━"), max(row.rindex("─"), row.rindex(HERE)) + 1
        await pilot.click(scrubber, offset=(begin + (end - begin) // 2, 0))
        await arrive(app, pilot)
        assert app.place is not None
        assert abs(app.place.step - 25) <= 1


async def test_nothing_to_go_back_to(tmp_path: Path) -> None:
    """No step yet; no recording; a recording that is damaged: one line, and the present stays."""
    async with recorded(tmp_path, Recipe(steps=0)) as (app, pilot, _, _):
        for key in ("less_than_sign", "left_curly_bracket", "P", "number_sign", "ctrl+home", "left_parenthesis"):
            await press(pilot, key)
            assert "no step has ended yet" in said(app)
            assert app.replay is None
    world = World()
    about = entry("tiny", tmp_path / "none")
    world.add(Recipe(), about)
    async with dashboard(world, open_on=about) as (app, pilot):
        await pilot.press("less_than_sign")
        await until(pilot, lambda: "there is no recording" in said(app), "it is told")
        await settle(pilot)
        assert app.replay is None
        assert "LIVE" in app.text()
        await press(pilot, "greater_than_sign", "right_curly_bracket", "right_parenthesis", "F")
        assert app.replay is None


async def test_freezing_ends_in_the_past_and_threads_end(tmp_path: Path) -> None:
    """A frozen panel would hide it; and nothing is left behind when one leaves, opens another run, or quits."""
    async with recorded(tmp_path, Recipe()) as (app, pilot, world, _):
        await press(pilot, "p")
        assert "frozen" in app.text()
        text = await go(app, pilot, "ctrl+home")
        assert "frozen" not in text
        assert f"loss {5 / (1 + 1 / 50):.3f}" in text
        other = world.add(Recipe(name="other"))
        app.open_run(other.entry)
        await until(pilot, lambda: app.snapshot is not None)
        await settle(pilot)
        assert app.replay is None
        assert "LIVE" in app.text().splitlines()[0]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("past of") and thread.is_alive()]
