"""Pictures of every screen of a run, from four recordings, at three sizes; the numbers in each are those of the messages."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from textual.pilot import Pilot

from fsdp_tui.telemetry.messages import Beat, Ended
from fsdp_tui.telemetry.rundir import RunEntry
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.screens.calls import CallsScreen
from fsdp_tui.tui.screens.logs import LogsScreen
from fsdp_tui.tui.screens.rank import RankScreen
from fsdp_tui.tui.screens.replayed import newest_ns

from .checks import (
    check_calls,
    check_collective,
    check_header,
    check_past,
    check_rank,
    check_run,
    check_step,
    check_unit,
)
from .drive import check_fits, check_golden, dashboard, press, settle, until
from .fixtures import FixtureSource, World, entry
from .reading import pane
from .recordings import RECORDED, world_of, write
from .truth import GATHER, Truth

SIZES = ((120, 40), (80, 24), (60, 20))
SCREENS = ("run", "step", "rank", "calls", "unit", "collective", "logs", "past")
PAST = 3
"""The step that is gone back to."""
UNIT = 1
Pictures = dict[tuple[str, tuple[int, int]], str]
truth = cache(lambda ranks, steps=None: Truth(RECORDED[ranks], steps))


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A folder whose path is always as long, since screens show it."""
    folder = Path(tempfile.mkdtemp(prefix="fsdp-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def taken() -> dict[int, Pictures]:
    """Number of ranks -> the pictures that have been taken of that run."""
    return {}


@asynccontextmanager
async def watching(about: RunEntry) -> AsyncIterator[tuple[Dashboard, Pilot[int]]]:
    """The recording, opened by what opens recordings."""
    _, services = world_of(about)
    app = Dashboard(services, open_on=about, entries=[about])
    app.letters = True
    async with app.run_test(size=SIZES[0]) as pilot:
        await until(pilot, lambda: app.snapshot is not None, "the recording is open")
        await settle(pilot, None)
        yield app, pilot


async def take(about: RunEntry, ranks: int) -> Pictures:
    """Every screen at every size, in one visit."""
    recipe = RECORDED[ranks]
    late, captured = recipe.late_rank or 0, recipe.captured[0]
    pictures: Pictures = {}
    async with watching(about) as (app, pilot):

        async def take_all(name: str) -> None:
            for size in (*SIZES, SIZES[0]):
                await pilot.resize_terminal(*size)
                await settle(pilot, None)
                check_fits(app)
                pictures[name, size] = app.text()

        await take_all("run")
        app.push_screen(RankScreen(captured))
        await take_all("rank")
        await press(pilot, "escape", "2")
        await take_all("step")
        await press(pilot, "3")
        app.push_screen(CallsScreen(late, UNIT))
        await take_all("calls")
        await press(pilot, "enter")
        await take_all("unit")
        await press(pilot, "enter")
        await take_all("collective")
        await press(pilot, "escape", "escape", "escape", "1")
        app.push_screen(LogsScreen(about, 1))
        await take_all("logs")
        await press(pilot, "escape", "number_sign", str(PAST))
        await pilot.press("enter")
        await until(pilot, lambda: app.place is not None and not app.place.fetching, "the moment is there")
        await take_all("past")
        assert app.now is not None
        assert newest_ns(app.now.view) == recipe.now_ns
    return pictures


def run_screen(ranks: int, text: str, width: int) -> None:
    check_run(truth(ranks), text, width)


def past(ranks: int, text: str, width: int) -> None:
    check_past(RECORDED[ranks], PAST, text)
    check_run(truth(ranks, PAST), text, width)


def logs(ranks: int, text: str, width: int) -> None:
    lines = pane(text, "rank 1 · 61 lines")
    last = lines[-1].strip()
    assert last == f"[rank 1] step 60 loss {RECORDED[ranks].loss / (1 + 60 / 50):.4f}"


def rank_screen(ranks: int, text: str, width: int) -> None:
    recipe = RECORDED[ranks]
    check_rank(recipe, recipe.captured[0], text)


def unit(ranks: int, text: str, width: int) -> None:
    late = RECORDED[ranks].late_rank or 0
    check_unit(truth(ranks), late, UNIT, text)


CHECKS: dict[str, Callable[[int, str, int], None]] = {
    "run": run_screen,
    "past": past,
    "logs": logs,
    "rank": rank_screen,
    "step": lambda ranks, text, width: check_step(RECORDED[ranks], text),
    "calls": lambda ranks, text, width: check_calls(truth(ranks), RECORDED[ranks].late_rank or 0, text),
    "unit": unit,
    "collective": lambda ranks, text, width: check_collective(
        truth(ranks), RECORDED[ranks].late_rank or 0, UNIT, GATHER, text
    ),
}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("ranks", RECORDED)
async def test_picture(ranks: int, screen: str, size: tuple[int, int], root: Path, taken: dict[int, Pictures]) -> None:
    """As it was kept, and right; nothing in it is drawn beyond its place."""
    if ranks not in taken:
        taken[ranks] = await take(write(RECORDED[ranks], root), ranks)
    text = taken[ranks][screen, size].replace(str(root), "/tmp/fsdp-xxxxxxxx")
    if screen != "run":  # test_run_screen keeps those
        check_golden(f"{screen}-{ranks}-{size[0]}x{size[1]}", text)
    if screen not in ("past", "collective"):  # whose first line says something else
        check_header(RECORDED[ranks], text)
    CHECKS[screen](ranks, text, size[0])


async def test_live_held_and_recorded_runs_look_the_same(root: Path) -> None:
    """But for the first line, which says which it is and how old the picture is, and the keys that act on a live run."""
    recipe = replace(RECORDED[2], name="same")
    async with watching(write(recipe, root)) as (app, _):
        recorded = app.text().splitlines()
    assert recorded[0].startswith(" ✓ DONE")
    world = World()
    about = entry(recipe.name)
    source = FixtureSource(about, RunState())
    world.entries.append(about)
    world.sources[about.id] = source
    world.now_ns = recipe.now_ns
    for message in recipe.messages():
        if not isinstance(message, Ended):
            source.state.apply(message)
    async with dashboard(world, open_on=about) as (app, pilot):
        live = app.text().splitlines()
        for rank in range(recipe.ranks):
            held = Beat(rank, 1, recipe.now_ns, recipe.steps, 48, 0, paused=True)
            source.state.apply(held)
        await until(pilot, lambda: app.snapshot is not None and app.snapshot.view.state == "paused")
        await settle(pilot)
        paused = app.text().splitlines()
    assert live[0].startswith(" ● LIVE")
    assert paused[0].startswith(" ❚❚ PAUSED")
    assert live[1:-1] == paused[1:-1] == recorded[1:-1]
    assert live[-1] == paused[-1]
