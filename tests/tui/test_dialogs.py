"""Texts, questions and fields over a screen: each at three sizes in one document, with the numbers that they tell."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest
from textual.pilot import Pilot

from fsdp_tui.telemetry import presets
from fsdp_tui.telemetry.launch import BRIEF_STEPS, LaunchSpec
from fsdp_tui.telemetry.queue import Item, Queue
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.screens.compare import CompareScreen

from .drive import check_fits, check_golden, dashboard, press, settle, until
from .fixtures import MIB, Recipe, World, run_id

SIZES = ((120, 40), (80, 24), (60, 20))
LIVE, DONE, OTHER = (
    Recipe(name="tiny"),
    Recipe(name="done", ended="finished", ranks=8),
    Recipe(name="other", ended="finished", strategy="ddp"),
)
OPENED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "help": (("1", "question_mark"), ("escape",)),
    "palette": (("1", "ctrl+p"), ("escape", "escape")),
    "verdicts": (("1", "#verdicts", "enter"), ("escape",)),
    "events": (("1", "#events", "enter"), ("escape",)),
    "note": (("n",), ("escape",)),
    "stop": (("1", "x"), ("n",)),
    "hold": (("1", "h"), ("n",)),
    "quit": (("1", "q"), ("escape",)),
    "go-to-step": (("1", "number_sign"), ("escape",)),
    "filter": (("1", "slash", "left_parenthesis"), ("escape",)),
    "frozen": (("1", "p"), ("p",)),
    "delete": (("0", "home", "down", "d"), ("n",)),
    "save-preset": (("4", "escape", "s"), ("escape",)),
    "replace-preset": (("4", "s", "enter"), ("n",)),
    "presets": (("4", "o"), ("escape",)),
    "delete-preset": (("4", "o", "d"), ("n", "escape")),
    "sweep": (("4", "w"), ("escape",)),
    "sweep-refused": (("4", "w", "tab", *"nonsense"), ("escape",)),
    "theory": (("5", "f"), ("escape",)),
    "write-file": (("5", "v"), ("escape",)),
    "cancel": (("Q", "end", "x"), ("n",)),
    "cancel-all": (("Q", "X"), ("n",)),
}
"""Name -> the keys that open it, or a pane that is given the focus, and the keys that close it again."""


@pytest.fixture(scope="module")
def taken() -> dict[str, list[str]]:
    """Name -> its pictures, of one visit."""
    return {}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With a preset; its path is always as long, since it is shown."""
    folder = Path(tempfile.mkdtemp(prefix="fsdp-", dir="/tmp"))
    monkeypatch.setenv("FSDP_TUI_HOME", str(folder))
    presets.save("tiny-fsdp2-full_shard", LaunchSpec(nproc=2, steps=9), replace=False)
    yield folder
    shutil.rmtree(folder)


def a_world() -> World:
    world = World()
    for recipe in (LIVE, DONE, OTHER):
        world.add(recipe)
    items = (
        Item(number=1, spec=LaunchSpec(name="first", steps=40), state="finished", run_id=run_id("done")),
        Item(number=2, spec=LaunchSpec(name="second", steps=40)),
        Item(number=3, spec=LaunchSpec(name="third", steps=40)),
    )
    world.queue = Queue(items=items)
    return world


async def picture(app: Dashboard, pilot: Pilot[int]) -> str:
    """When nothing moves any more: screens that lie below are told of a size later than the one on top."""
    await until(pilot, lambda: all(one.size == app.size for one in app.screen_stack))
    seen: list[str] = []
    while len(seen) < 3 or len(set(seen[-3:])) > 1:
        await settle(pilot, 0.01)
        seen.append(app.text())
        assert len(seen) < 100, "it never stands still"
    check_fits(app)
    return seen[-1]


async def take(home: Path) -> dict[str, list[str]]:
    """Opens one after another, goes through the sizes, and closes it."""
    world = a_world()
    found: dict[str, list[str]] = {}
    async with dashboard(world, open_on=world.entries[0], own=(run_id("tiny"),)) as (app, pilot):
        app.list_runs()
        await until(pilot, lambda: app.queue.open)
        app.sizes = dict.fromkeys((one.id for one in app.entries), 12 * MIB)
        app.marked = [run_id("done"), run_id("other")]
        await press(pilot, "5")
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        await until(pilot, lambda: len(screen.runs()) == 2)
        for name, (keys, back) in OPENED.items():
            for key in keys:
                if key.startswith("#"):
                    app.screen.query_one(key).focus()
                else:
                    await press(pilot, key)
            await settle(pilot, None)
            found[name] = []
            for size in (*SIZES, SIZES[0]):
                await pilot.resize_terminal(*size)
                found[name].append((await picture(app, pilot)).replace(str(home), "/tmp/fsdp-xxxxxxxx"))
            await press(pilot, *back)
        for source in world.sources.values():
            assert source.commands == []
        assert (world.removed, world.cancelled, world.started) == ([], [], [])
    return found


NUMBERS: dict[str, Callable[[str], None]] = {}
"""Name -> what holds the numbers of its pictures against the world."""


def numbers_of(name: str) -> Callable[[Callable[[str], None]], Callable[[str], None]]:
    def put(check: Callable[[str], None]) -> Callable[[str], None]:
        NUMBERS[name] = check
        return check

    return put


@numbers_of("verdicts")
def verdicts(said: str) -> None:
    """Rank 1 spends 1 ms where rank 0 spends 3, in 12 calls of a step."""
    step_ns = median(LIVE.step_ns(number) for number in range(2, LIVE.steps + 1))
    assert f"the others wait for rank 1: 24.0 ms per step ({24e6 / step_ns:.0%}".replace("%", " %)") in said
    shares = re.findall(r"measured ([\d.]+) %", said)  # exposed in the mean, too: (12 x 1 + 12 x 3) / 2
    assert shares
    assert shares == [f"{24e8 / step_ns:.1f}"] * len(shares)
    assert (
        f"measured {LIVE.states() / MIB:.1f} MiB expected {LIVE.states() / MIB:.1f} MiB 0.0 %" in said
        or "more lines" in said
    )
    assert (
        f"4 ranks would keep {LIVE.states() / 2 / MIB:.1f} MiB each, 8 ranks {LIVE.states() / 4 / MIB:.2f} MiB" in said
    )


@numbers_of("events")
def events(said: str) -> None:
    assert "0:00:05 · the hub was replaced: 1.2 s are missing" in said


@numbers_of("go-to-step")
def go_to_step(said: str) -> None:
    assert f"Go to which step, 1 to {LIVE.steps}?" in said


@numbers_of("frozen")
def frozen(said: str) -> None:
    assert f"panels frozen at step {LIVE.steps} (p)" in said


@numbers_of("delete")
def delete(said: str) -> None:
    assert (
        f"Delete done ({run_id('done')})? {DONE.steps} recorded steps and its logs (12.0 MiB) are gone for good" in said
    )


@numbers_of("sweep")
def sweep(said: str) -> None:
    """As many as are ticked, of the demo's brief steps."""
    assert f"{said.count('[✓]')} runs of {BRIEF_STEPS} steps, one after another" in said


@numbers_of("theory")
def theory(said: str) -> None:
    found = [float(number) for number in re.findall(r"([\d.]+) MiB", said)]
    assert found == [value / MIB for recipe in (DONE, OTHER) for value in [recipe.states()] * 2][: len(found)]


@numbers_of("cancel-all")
def cancel_all(said: str) -> None:
    assert "Take 2 off the queue?" in said


@numbers_of("presets")
def of_presets(said: str) -> None:
    assert "fsdp-tui demo --nproc 2 --steps 9" in said


@pytest.mark.parametrize("name", OPENED)
async def test_picture(name: str, taken: dict[str, list[str]], home: Path) -> None:
    """As it was kept at each size, with the numbers of the world below; and nothing was done by opening and closing it."""
    if not taken:
        taken |= await take(home)
    *pictures, last = taken[name]
    assert last == pictures[0], "back at its size it is what it was"
    for text in pictures:
        if name in NUMBERS:
            NUMBERS[name](" ".join(text.replace("│", " ").split()))
    check_golden(f"dialog-{name}", "\n\n".join(pictures))
