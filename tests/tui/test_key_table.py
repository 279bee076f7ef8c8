"""The key table against the screens that it makes bindings for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from textual.widgets import OptionList

from fsdp_tui import tui
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.keys import (
    CALLS,
    COMM,
    COMPARE,
    KEYS,
    LAUNCH,
    LOGS,
    QUEUE,
    RANK,
    RUN,
    RUNS,
    STEP,
    bindings_of,
    keys_for,
    with_keys,
)
from fsdp_tui.tui.screens.base import Ask, Text, View
from fsdp_tui.tui.screens.calls import CallsScreen
from fsdp_tui.tui.screens.comm import CommScreen
from fsdp_tui.tui.screens.compare import CompareScreen
from fsdp_tui.tui.screens.details import SHOWS, write_help
from fsdp_tui.tui.screens.launch import LaunchScreen
from fsdp_tui.tui.screens.logs import LogsScreen
from fsdp_tui.tui.screens.queue import QueueScreen
from fsdp_tui.tui.screens.rank import RankScreen
from fsdp_tui.tui.screens.run import RunScreen
from fsdp_tui.tui.screens.runs import RunsScreen
from fsdp_tui.tui.screens.step import StepScreen
from fsdp_tui.tui.widgets.chart import row_text
from fsdp_tui.tui.widgets.chrome import KeyBar

from .drive import opened, press, settle, until
from .fixtures import Recipe

SOURCES = Path(tui.__file__).parent
SCREENS: dict[str, type[View]] = {
    RUN: RunScreen,
    STEP: StepScreen,
    RUNS: RunsScreen,
    LAUNCH: LaunchScreen,
    COMM: CommScreen,
    CALLS: CallsScreen,
    QUEUE: QueueScreen,
    COMPARE: CompareScreen,
    LOGS: LogsScreen,
    RANK: RankScreen,
}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.id)
def test_every_key_has_an_action(key: object) -> None:
    """A binding without its action would vanish from the last line in silence."""
    assert key in KEYS
    for name, action, screens in ((one.id, one.action, one.screens) for one in KEYS if one is key):
        method = "action_" + action.removeprefix("app.").partition("(")[0]
        owners: list[type[object]] = [SCREENS[screen] for screen in screens]
        for owner in owners or [Dashboard]:
            assert callable(getattr(owner, method, None)), f"{name}: {owner.__name__} has no {method}"


@pytest.mark.parametrize("screen", SCREENS)
def test_no_key_does_two_things(screen: str) -> None:
    """Of the keys that work on one screen, none is given twice, and none but escape hides one that works everywhere."""
    names = [name for key in keys_for(screen) for name in key.keys.split(",")]
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)


@pytest.mark.parametrize("screen", [*SCREENS, None])
def test_bindings_carry_id_words_and_tooltip(screen: str | None) -> None:
    """So that a key map can change them, and help can tell them."""
    for binding in bindings_of(screen):
        assert binding.id
        assert binding.description
        assert binding.tooltip.endswith(".")


@pytest.mark.parametrize("screen", SCREENS)
def test_help_has_every_key(screen: str) -> None:
    """Help is made from the same table; a wide and a narrow one say the same."""
    assert SHOWS[screen]
    for width in (20, 60, 100):
        text = "".join("".join(row_text(row) for row in write_help(screen, width)).split())
        for key in keys_for(screen):
            assert "".join(key.help.split()) in text, key.id


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_the_last_line_always_ends_with_a_way_out(width: int) -> None:
    """However narrow: help first, quit last."""
    bar = KeyBar(RUN)
    (row,) = bar.draw(width, 1, False)
    words = row_text(row)
    assert words.startswith(" ? help")
    assert words.rstrip().endswith("q quit")
    assert len(words) == width


async def test_the_last_line_leaves_out_what_does_nothing() -> None:
    """Of an ended run there is nothing to stop, hold, capture or freeze; in its past there is what can be played."""

    def offered(app: Dashboard) -> set[str]:
        line = app.text().splitlines()[-1]
        return {word for word in ("stop run", "hold training", "freeze", "logs", "capture") if word in line}

    async with opened(Recipe(), size=(300, 40)) as (app, pilot, _):
        await settle(pilot)
        assert offered(app) == {"stop run", "hold training", "freeze", "logs", "capture"}
    async with opened(Recipe(ended="finished"), size=(300, 40)) as (app, pilot, _):
        await settle(pilot)
        assert offered(app) == {"logs"}


async def test_yes_answers_a_question() -> None:
    """As the key that is shown does; enter leaves all as it is."""
    async with opened() as (app, pilot, world):
        source = next(iter(world.sources.values()))
        await press(pilot, "x", "enter")
        assert not isinstance(app.screen, Ask)
        assert source.commands == []
        await press(pilot, "x", "y")
        await until(pilot, lambda: source.commands == ["stop"])


async def test_help_opens_and_closes() -> None:
    """With `?`, and away with escape."""
    async with opened() as (app, pilot, _):
        await press(pilot, "question_mark")
        assert isinstance(app.screen, Text)
        assert "help · run" in app.text()
        await press(pilot, "escape")
        assert isinstance(app.screen, RunScreen)


async def test_palette_does_what_the_key_does() -> None:
    """Found by a word of its help."""
    async with opened() as (app, pilot, _):
        await press(pilot, "ctrl+p")
        await pilot.press(*"logar")
        options = app.screen.query_one(OptionList)
        await until(pilot, lambda: options.option_count > 0)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        screen = app.screen
        assert isinstance(screen, RunScreen)
        await until(pilot, lambda: screen.log_scale)
        await settle(pilot)


def test_sentences_name_keys_by_their_actions() -> None:
    """What stands in braces is an action of the table, so that its key can be put there."""
    found: dict[str, str] = {}
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= dict.fromkeys(re.findall(r"\{([a-z]+(?:\.[a-z_]+)*)\}", node.value), path.name)
    assert len(found) > 20
    assert found.keys() <= {key.id for key in KEYS}, found


def test_a_sentence_with_keys() -> None:
    """The first key of each action, as people write it; what is no action stays as it is."""
    moved = [key._replace(keys="f9,k") if key.id == "run.capture" else key for key in KEYS]
    text = "{run.capture} captures, {back} leaves {x} and {run}"
    assert with_keys(text) == "k captures, esc leaves {x} and {run}"
    assert with_keys(text, moved) == "F9 captures, esc leaves {x} and {run}"
