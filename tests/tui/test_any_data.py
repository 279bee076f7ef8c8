"""No screen raises, whatever a run is like: without runs, partial, held, failed, of another launcher, torn, of another program."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from fsdp_tui.telemetry.client import open_run
from fsdp_tui.telemetry.messages import Beat, Ended, Event, Launched, Step, Structure, encode
from fsdp_tui.telemetry.recording import Recorder
from fsdp_tui.telemetry.rundir import RunEntry
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.keys import KEYS
from fsdp_tui.tui.screens.base import View
from fsdp_tui.tui.screens.calls import CallsScreen
from fsdp_tui.tui.screens.logs import LogsScreen
from fsdp_tui.tui.screens.rank import RankScreen

from .captures import training_step
from .drive import dashboard, press, settle, until
from .fixtures import STARTED_NS, FixtureSource, Recipe, World, entry

LEAVE = {"quit", "quit.now", "export.svg", "runs.delete", "launch.start", "back"}
"""Keys that end the program, write pictures, start trainings, or leave the screen."""


async def visit(app: Dashboard, pilot: Pilot[int], about: RunEntry | None = None, *, keys: bool = True) -> None:
    """Every screen that is about runs, its panes in full, and all of its keys; large and small."""
    for mode in ("runs", "run", "step", "comm", "compare"):
        app.action_show(mode)
        await settle(pilot)
        await try_out(app, pilot, keys=keys)
    if about is not None:
        app.action_show("run")
        for over in (CallsScreen(0, 0), RankScreen(0), RankScreen(99), LogsScreen(about, 0)):
            app.push_screen(over)
            await settle(pilot)
            await try_out(app, pilot, keys=keys)
            app.pop_screen()
    await pilot.resize_terminal(24, 6)
    for mode in ("runs", "step", "comm", "compare", "run"):
        app.action_show(mode)
        await settle(pilot)
    await pilot.resize_terminal(120, 40)
    await settle(pilot)


async def try_out(app: Dashboard, pilot: Pilot[int], *, keys: bool) -> None:
    """Opens each pane, then presses each key of the screen; what comes over it goes away again."""
    screen, mode, depth = app.screen, app.current_mode, len(app.screen_stack)
    assert isinstance(screen, View)

    def back() -> None:
        app.leave_past()
        app.action_show(mode)
        while len(app.screen_stack) > depth:
            app.pop_screen()
        screen.end_filter()
        if screen.maximized is not None:
            screen.minimize()

    for pane in screen.focus_chain:
        if pane.has_class("pane") and hasattr(screen, "action_open"):
            pane.focus()
            await app.run_action("screen.open")
            await settle(pilot)
            back()
    for key in KEYS:
        if keys and screen.KIND in key.screens and key.id not in LEAVE:
            await pilot.press(key.keys.split(",")[0])
            back()
    if keys:
        await press(pilot, "question_mark", "escape", "E")


# Runs that are not as they should be, live


def empty(recipe: Recipe) -> RunState:
    return RunState()


def launched_only(recipe: Recipe) -> RunState:
    state = RunState()
    state.apply(next(iter(recipe.messages())))
    return state


def no_steps(recipe: Recipe) -> RunState:
    state = launched_only(recipe)
    for rank in range(recipe.ranks):
        state.apply(recipe.hello(rank))
        state.apply(recipe.structure(rank))
    return state


def one_rank_of_two(recipe: Recipe) -> RunState:
    state = no_steps(recipe)
    for number in range(1, 4):
        state.apply(recipe.step(0, number))
    return state


def foreign(recipe: Recipe) -> RunState:
    """Columns of a shorter length, losses that are no numbers, a unit that is not there, events of an unknown kind."""
    state = no_steps(recipe)
    for number in range(1, 4):
        for rank in range(recipe.ranks):
            state.apply(
                Step(
                    rank,
                    number,
                    number,
                    5,
                    7,
                    [None],
                    float("nan") if rank else float("inf"),
                    None,
                    [1, None],
                    [],
                    "?",
                    99,
                    0,
                    0,
                )
            )
            state.apply(recipe.comm(rank, number))
    state.apply(Ended(state="evaporated", ended_ns=0, exit_codes={}))
    return state


def first_step_only(recipe: Recipe) -> RunState:
    state = no_steps(recipe)
    for rank in range(recipe.ranks):
        state.apply(recipe.step(rank, 1))
    return state


def died_at_once(recipe: Recipe) -> RunState:
    state = launched_only(recipe)
    state.apply(
        Ended(state="failed", ended_ns=1, exit_codes={"0": 1}, failed_rank=0, reason="[bold]no[/such] 'markup\x1b[31m")
    )
    return state


STRANGE: list[Callable[[Recipe], RunState]] = [
    empty,
    launched_only,
    no_steps,
    one_rank_of_two,
    first_step_only,
    foreign,
    died_at_once,
]


def hello_only(recipe: Recipe) -> RunState:
    state = launched_only(recipe)
    state.apply(recipe.hello(0))
    return state


def held(recipe: Recipe) -> RunState:
    state = recipe.state()
    for rank in range(recipe.ranks):
        state.apply(Beat(rank, 1, recipe.now_ns, recipe.steps, 80, 0, paused=True))
    return state


def of_another_launcher(recipe: Recipe) -> RunState:
    """torchrun's: nothing was asked for, nobody knows how many steps there are, and the exit codes are not ours to know."""
    state = RunState()
    for message in recipe.messages():
        if isinstance(message, Launched):
            state.apply(
                Launched(
                    run_id=message.run_id,
                    name="train",
                    created_ns=message.created_ns,
                    command=["torchrun", "--nproc-per-node", "2", "-m", "fsdp_tui.runner", "train.py"],
                    nproc=0,
                    strategy="",
                    options={},
                    steps=None,
                )
            )
        elif isinstance(message, Structure):
            state.apply(Structure(rank=message.rank, effective="", detail={}, units=[]))
        else:
            state.apply(message)
    state.apply(Ended(state="failed", ended_ns=recipe.now_ns, exit_codes={}, reason="a rank is gone without a goodbye"))
    return state


def failed(recipe: Recipe) -> RunState:
    """The captures of it too; and an event as no program of today tells one."""
    state = replace(recipe, ended="failed").state()
    for rank in range(recipe.ranks):
        state.apply(training_step(rank, error="RuntimeError: no memory probe"))
    state.apply(Event(at_ns=STARTED_NS, kind="of a newer program", severity="purple", text="[/] \x1b[2J", rank=7))
    return state


STRANGE += [hello_only, held, failed, of_another_launcher]
LIKE_OTHERS = (launched_only, no_steps, first_step_only, died_at_once)
"""Kinds on which only the screens and their details are visited: keys find in them what they find in others."""


@pytest.mark.parametrize("make", STRANGE, ids=lambda make: make.__name__)
async def test_no_screen_raises_on_strange_data(
    make: Callable[[Recipe], RunState], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose name is markup, and which is not what one expects."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    world = World()
    recipe = Recipe(name="[odd] name")
    about = entry(recipe.name, tmp_path / "runs")
    world.entries.append(about)
    world.sources[about.id] = FixtureSource(about, make(recipe))
    async with dashboard(world, open_on=about) as (app, pilot):
        await visit(app, pilot, about, keys=make not in LIKE_OTHERS)
        assert "[odd] name" in app.text() or "train" in app.text() or make is empty


async def test_no_screen_raises_without_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says what there would be, or where to begin."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    async with dashboard(World()) as (app, pilot):
        await visit(app, pilot)
        for key, words in (
            ("0", "no runs yet: 4 starts one"),
            ("1", "no run open"),
            ("2", "no run is open: 0 shows the runs"),
            ("3", "nothing yet"),
            ("5", "Mark two to six runs"),
            ("Q", "the queue is empty"),
        ):
            await press(pilot, key)
            assert words in app.text(), key


# Recordings that are torn


def whole(path: Path, recipe: Recipe) -> None:
    """As a hub leaves it behind when it is killed: half of it in a snapshot, all of it in the log."""
    state, recorder = RunState(), Recorder(path)
    messages = list(recipe.messages())
    for at, message in enumerate(messages):
        state.apply(message)
        recorder.add(message, encode(message), 1)
        if at == len(messages) // 2:
            recorder.flush(state, snapshot=True)
    recorder.close(state)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_by_a_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def scribbled_over(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 3 : len(body) // 3 + 9_000] = b"\xa5" * 9_000
    path.write_bytes(body)


def zeroed_at_the_end(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[-20_000:] = bytes(20_000)
    path.write_bytes(body)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def of_another_kind(path: Path) -> None:
    path.write_text("step,loss\n1,2.5\n")


NEWER = b"\x93\xa6newest\x01\x02"
"""A message that this program does not know."""


def of_a_newer_program(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


def without_snapshots(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM snapshot")
    db.close()


def with_messages_of_a_newer_program(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM snapshot")
        db.execute("UPDATE log SET body = ? WHERE id % 3 = 0", (NEWER,))
    db.close()


def newer_messages(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT COUNT(*) FROM log WHERE body = ?", (NEWER,)).fetchone()[0])


def gone(path: Path) -> None:
    path.unlink()


TORN: list[Callable[[Path], None]] = [
    cut_in_half,
    cut_by_a_byte,
    scribbled_over,
    zeroed_at_the_end,
    emptied,
    of_another_kind,
    of_a_newer_program,
    without_snapshots,
    with_messages_of_a_newer_program,
    gone,
]


@pytest.mark.parametrize("tear", TORN, ids=lambda tear: tear.__name__)
async def test_no_screen_raises_on_a_torn_recording(
    tear: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be read of it is shown, and how many records are missing; else one line says why nothing is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    recipe = Recipe(name="torn", ended="finished")
    about = entry(recipe.name, tmp_path / "runs", live=False, state="finished")
    about.paths.kept.mkdir(parents=True)
    whole(about.paths.recording, recipe)
    tear(about.paths.recording)
    world = World(entries=[about])
    services = replace(world.services(), open_run=open_run)
    app = Dashboard(services, open_on=about, entries=[about])
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.snapshot is not None or bool(app.feed and app.feed.error), "it is read or not")
        await settle(pilot)
        assert app.feed is not None
        if app.feed.error:
            assert tear not in (without_snapshots, with_messages_of_a_newer_program)
            assert "\n" not in app.feed.error
            assert app.feed.error[:60] in app.text()
        else:
            assert app.snapshot is not None
            view, lines = app.snapshot.view, app.text().splitlines()
            assert "torn" in lines[0]
            told = re.search(r"(▲ )?bad records ([\d,]+)", lines[-2])
            assert told is not None
            assert int(told[2].replace(",", "")) == view.bad_records
            assert bool(told[1]) == bool(view.bad_records)
            if tear is with_messages_of_a_newer_program:
                assert view.bad_records == newer_messages(about.paths.recording) > 0
            elif view.bad_records:
                assert "the recording is damaged" in app.text()
            else:
                assert tear in (cut_by_a_byte, without_snapshots)
                assert (view.steps, view.state) == (recipe.steps, "finished")
        await visit(app, pilot, about, keys=False)
