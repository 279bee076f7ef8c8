"""Nothing is told by colour alone: what changes on a coloured screen changes without colours too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from rich.style import Style
from textual.pilot import Pilot

from fsdp_tui.telemetry.rundir import RunEntry
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.keys import keys_for
from fsdp_tui.tui.screens.base import View
from fsdp_tui.tui.screens.compare import CompareScreen
from tests.unit.telemetry.messages_for_tests import capture

from .drive import settle, until
from .fixtures import Recipe, World, entry, run_id

MOVES = ("tab", "down", "right", "down", "up", "left", "end", "home", "pagedown", "tab", "down", "shift+tab")
COLOURS_ONLY = {"theme", "letters"}
ELSEWHERE = (
    # They end the program, write files, open something else, or want what a fixture does not have.
    {"quit", "quit.now", "palette", "help", "filter", "note", "back", "focus.next", "leave_field", "queue"}
    | {"run.stop", "run.hold", "run.capture", "run.open", "run.logs", "run.restart", "run.copy"}
    | {
        "runs.open",
        "runs.delete",
        "runs.unfilter",
        "comm.open",
        "comm.copy",
        "compare.open",
        "compare.export",
        "compare.formula",
        "step.open",
        "rank.stack",
    }
)
PREFIXES = ("show.", "past.", "export.", "launch.", "queue.")


def world() -> World:
    """Three runs; the first has captures, a rank that stands out, and events of every severity."""
    made = World()
    events = tuple((severity, f"a {severity} event") for severity in ("ok", "note", "warn", "bad"))
    for name in ("one", "two", "three"):
        source = made.add(
            Recipe(name=name, ranks=4, heavy_rank=2 if name == "one" else None, events=events),
            entry(name, world_size=4),
        )
        for rank in range(4):
            source.state.apply(capture(rank, 7, id="first"))
            source.state.apply(capture(rank, 9, id="second"))
    return made


@dataclass
class Side:
    """One of the two apps."""

    app: Dashboard
    pilot: Pilot[int]

    async def press(self, *keys: str) -> None:
        """Presses keys and draws; what asks for the app is to find this one of the two."""
        with self.app._context():
            for key in keys or ("",):
                if key:
                    await self.pilot.press(key)
                await settle(self.pilot)

    def cells(self, *, colours: bool) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        with self.app._context():
            strips = self.app.screen._compositor.render_strips()
        for strip in strips:
            for segment in strip:
                style = segment.style or Style()
                look: tuple[object, ...] = (style.bold, style.reverse, style.underline, style.italic)
                look += (style.color, style.bgcolor) if colours else ()
                found += [(character, *look) for character in segment.text]
        return found


@asynccontextmanager
async def side(open_on: RunEntry | None, size: tuple[int, int]) -> AsyncIterator[Side]:
    made = world()
    first = next(iter(made.entries))
    app = Dashboard(made.services(), open_on=first if open_on else None, entries=list(made.entries))
    async with app.run_test(size=size) as pilot:
        if open_on is not None:
            await until(pilot, lambda: app.snapshot is not None)
        if not app.no_color:
            app.use_theme("fsdp-dark")
        await settle(pilot, None)
        yield Side(app, pilot)


async def run(side: Side) -> None:
    pass


async def step(side: Side) -> None:
    await side.press("2")


async def comm(side: Side) -> None:
    await side.press("3")


async def rank(side: Side) -> None:
    await side.press("enter")


async def calls(side: Side) -> None:
    await side.press("3", "enter")


async def launch(side: Side) -> None:
    await side.press("4")


async def runs(side: Side) -> None:
    await side.press("0")
    await until(side.pilot, lambda: len(side.app.sizes) == 3, "the list has sizes")


async def compare(side: Side) -> None:
    side.app.marked = [run_id(name) for name in ("one", "two", "three")]
    await side.press("5")
    with side.app._context():
        await until(side.pilot, lambda: isinstance(side.app.screen, CompareScreen) and len(side.app.screen.runs()) == 3)


WAYS: dict[str, Callable[[Side], Awaitable[None]]] = {
    way.__name__: way for way in (run, step, comm, rank, calls, launch, runs, compare)
}


@pytest.mark.parametrize("way", WAYS)
async def test_what_changes_in_colours_changes_without(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key of the screen, and moving about in it, on a coloured screen and under NO_COLOR."""
    silent: list[str] = []
    about = entry("one")
    monkeypatch.delenv("NO_COLOR", raising=False)
    async with side(about, (120, 40)) as coloured:
        monkeypatch.setenv("NO_COLOR", "1")
        async with side(about, (120, 40)) as plain:
            assert plain.app.no_color
            assert not coloured.app.no_color
            for one in (coloured, plain):
                await WAYS[way](one)
                await one.press()
            screen = coloured.app.screen
            assert isinstance(screen, View)
            assert way == screen.KIND
            keys = [key for key in keys_for(way) if key.id not in COLOURS_ONLY | ELSEWHERE]
            own = [key.keys.split(",")[0] for key in keys if not key.id.startswith(PREFIXES)]
            for name in [*MOVES, *own]:
                before = coloured.cells(colours=True), plain.cells(colours=False)
                for one in (coloured, plain):
                    await one.press(name)
                assert coloured.app.screen is screen, f"{name} opens another screen"
                after = coloured.cells(colours=True), plain.cells(colours=False)
                if before[0] != after[0] and before[1] == after[1]:
                    silent.append(name)
    assert not silent
