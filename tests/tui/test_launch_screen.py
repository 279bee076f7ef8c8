"""The form: what it means, what it refuses, and what it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Button, Input, Select

from fsdp_tui.telemetry.launch import OPTIONS, LaunchSpec
from fsdp_tui.telemetry.machine import Machine
from fsdp_tui.tui.screens.launch import FIELDS, LaunchScreen, read_form
from fsdp_tui.tui.screens.run import RunScreen

from .drive import check_golden, dashboard, press, said, settle, until
from .fixtures import World

DEFAULTS = {name: field.default for name, field in FIELDS.items()}


def test_every_option_has_a_field() -> None:
    """One table: a new option appears in the form by itself."""
    assert {option.field for option in OPTIONS} <= FIELDS.keys()


def test_an_untouched_form_is_the_default_launch() -> None:
    """What the command line does without options."""
    assert read_form(DEFAULTS) == (LaunchSpec(), [])


def test_a_filled_in_form() -> None:
    """Types as the options have them; the other strategy in words; a script with its arguments."""
    values = DEFAULTS | {
        "target": "script",
        "script": "train.py",
        "args": "--config 'a b.yaml'",
        "strategy": "other",
        "strategy_text": "fsdp1:hybrid_shard=2x2",
        "nproc": "4",
        "checkpointing": True,
        "lr": "nonsense, but a script has no --lr",
    }
    spec, found = read_form(values)
    assert found == []
    assert spec == LaunchSpec(
        target="script",
        script="train.py",
        args=("--config", "a b.yaml"),
        strategy="fsdp1:hybrid_shard=2x2",
        nproc=4,
        checkpointing=True,
    )


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("batch", "eight", "--batch eight: expected a whole number"),
        ("batch", "", "--batch: expected a whole number, found nothing"),
        ("lr", "fast", "--lr fast: expected a number"),
    ],
)
def test_what_is_no_value(field: str, value: str, words: str) -> None:
    """Each in one sentence that names the option."""
    _, found = read_form(DEFAULTS | {field: value})
    assert [(problem.field, problem.text) for problem in found] == [(field, words)]


def test_broken_quotes_in_arguments() -> None:
    """As a shell would refuse them."""
    _, found = read_form(DEFAULTS | {"target": "script", "script": "a.py", "args": "'"})
    assert [problem.field for problem in found] == ["args"]


async def test_what_the_form_shows() -> None:
    """All groups at 120x40; it scrolls at 80x24."""
    for size in ((120, 40), (80, 24)):
        async with dashboard(World(), size=size) as (app, pilot):
            await press(pilot, "4")
            await settle(pilot, None)
            text = app.text()
            assert "fsdp-tui demo" in text
            assert "✓ ready" in text
            assert "fsdp2:full_shard" in text
            check_golden(f"launch-{size[0]}x{size[1]}", text)


async def test_problems_are_said_while_typing_and_launching_is_refused() -> None:
    """At the field, in the card, in the tabs line; and nothing is started."""
    world = World()
    async with dashboard(world) as (app, pilot):
        await press(pilot, "4")
        field = app.screen.query_one("#field-batch", Input)
        field.focus()
        field.value = "7"
        await settle(pilot)
        text = app.text()
        assert "--batch 7 does not divide over 2 ranks" in " ".join(text.replace("│", " ").split())
        assert "▲ batch" in text
        assert "▲ 1 to put right" in text
        assert app.screen.query_one("#go", Button).disabled
        await press(pilot, "enter", "f5")
        assert world.started == []
        assert "does not divide" in said(app)


async def test_a_strategy_that_cannot_run_here() -> None:
    """Refused before launch, with the reason."""
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "4")
        app.screen.query_one("#field-strategy", Select).value = "fsdp1:hybrid_shard"
        await settle(pilot)
        assert "needs its mesh" in " ".join(app.text().replace("│", " ").split())


async def test_without_torch_the_form_says_so() -> None:
    """The light viewer has no trainer."""
    world = World(machine=Machine(torch=None, accelerators=0, cores=2))
    async with dashboard(world) as (app, pilot):
        await press(pilot, "4")
        assert "torch is not installed here" in " ".join(app.text().replace("│", " ").split())


async def test_start_opens_the_run() -> None:
    """The options of the form reach the launcher, and the new run is on the screen."""
    world = World()
    async with dashboard(world) as (app, pilot):
        await press(pilot, "4")
        app.screen.query_one("#field-strategy", Select).value = "ddp"
        steps = app.screen.query_one("#field-steps", Input)
        steps.focus()
        await press(pilot, *"30")
        assert "fsdp-tui demo --strategy ddp --steps 30" in app.text()
        await press(pilot, "enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.snapshot is not None)
        await settle(pilot)
        assert world.started == [LaunchSpec(strategy="ddp", steps=30)]
        assert "fresh" in app.text()
        assert app.own == [app.feed.entry.id if app.feed else ""]


async def test_a_launch_that_fails_says_why() -> None:
    """The form stays as it was."""
    world = World(start_error="the hub did not come up: the disk is full")
    async with dashboard(world) as (app, pilot):
        await press(pilot, "4", "f5")
        await until(pilot, lambda: "the disk is full" in said(app))
        await settle(pilot)
        assert isinstance(app.screen, LaunchScreen)
        assert "the disk is full" in app.text()
        assert not app.screen.query_one("#go", Button).disabled


async def test_copy_leave_and_reset() -> None:
    """Letter keys work once the field is left."""
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "4")
        field = app.screen.query_one("#field-seed", Input)
        field.focus()
        await press(pilot, "3", "y")
        assert field.value == "3y"
        await press(pilot, "backspace", "escape", "y")
        assert app.clipboard == "fsdp-tui demo --seed 3"
        await press(pilot, "r")
        assert field.value == "0"
        await press(pilot, "escape")
        assert app.current_mode == "runs"


async def test_script_fields_take_the_place_of_the_demos(tmp_path: Path) -> None:
    """Only what matters for the target is asked."""
    script = tmp_path / "train.py"
    script.write_text("")
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "4")
        assert not app.screen.query_one("#row-script").display
        app.screen.query_one("#field-target", Select).value = "script"
        await settle(pilot)
        assert app.screen.query_one("#row-script").display
        assert not app.screen.query_one("#row-model").display
        assert "which script?" in app.text()
        app.screen.query_one("#field-script", Input).value = str(script)
        await settle(pilot)
        assert "✓ ready" in app.text()
