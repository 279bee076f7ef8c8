"""The form: what it means, what it refuses, and what it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input, Select

from fsdp_tui.telemetry import presets
from fsdp_tui.telemetry.launch import OPTIONS, LaunchSpec, Option, problems
from fsdp_tui.telemetry.machine import Machine
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.form import FIELDS, fill_form, read_form
from fsdp_tui.tui.screens.base import Ask
from fsdp_tui.tui.screens.launch import LaunchScreen
from fsdp_tui.tui.screens.presets import AskName, PresetList
from fsdp_tui.tui.screens.run import RunScreen

from .drive import check_golden, dashboard, press, said, settle, until
from .fixtures import Recipe, World

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
        asked=("strategy", "checkpointing"),
    )


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("batch", "eight", "--batch eight: expected a whole number"),
        ("seq", "1e5", "--seq 1e5: expected a whole number"),
        ("lr", "fast", "--lr fast: expected a number"),
    ],
)
def test_what_is_no_value(field: str, value: str, words: str) -> None:
    """Each in one sentence that names the option."""
    _, found = read_form(DEFAULTS | {field: value})
    assert [(problem.field, problem.text) for problem in found] == [(field, words)]


@pytest.mark.parametrize("field", ["batch", "seq", "lr", "seed", "accumulate", "steps", "prefetch"])
def test_an_emptied_field_means_its_default(field: str) -> None:
    """Which it shows in grey."""
    spec, found = read_form(DEFAULTS | {field: " "})
    assert (spec, found) == (LaunchSpec(), [])


@pytest.mark.parametrize("option", [one for one in OPTIONS if one.kind in (int, float)], ids=lambda one: one.field)
def test_no_number_is_taken_without_bound(option: Option) -> None:
    """A slip of the keyboard is named before it is launched; the largest that is taken is taken."""
    machine = Machine(cores=4, torch="2.13.0", accelerators=0)
    assert option.maximum is not None
    for value, words in ((option.maximum + 1, f"expected {option.maximum:,} at most"), (option.maximum, "")):
        spec, unreadable = read_form(DEFAULTS | {option.field: str(value)})
        assert not unreadable
        found = [problem.text for problem in problems(spec, machine) if problem.field == option.field]
        assert [text.partition(": ")[2] for text in found] == [words] * bool(words)


def test_broken_quotes_in_arguments() -> None:
    """As a shell would refuse them."""
    _, found = read_form(DEFAULTS | {"target": "script", "script": "a.py", "args": "'"})
    assert [problem.field for problem in found] == ["args"]


async def test_what_the_form_shows() -> None:
    """All groups at 120x40; it scrolls at 80x24 and 60x20."""
    for size in ((120, 40), (80, 24), (60, 20)):
        async with dashboard(World(), size=size) as (app, pilot):
            await press(pilot, "4")
            await settle(pilot, None)
            text = app.text()
            assert "fsdp-tui demo" in text
            assert "ready" in text
            assert "fsdp2:full_shard" in text or size[0] < 72
            filled = {words[0]: words[1] for line in text.splitlines() if len(words := line.strip("│ ").split()) > 1}
            for name in ("batch", "seq", "lr", "seed", "prefetch", "accumulate")[: 6 if size[1] == 40 else 2]:
                assert float(filled[name]) == getattr(LaunchSpec(), name, None), name
            check_golden(f"launch-{size[0]}x{size[1]}", text)


async def test_small_terminals_keep_the_fields() -> None:
    """The card, the command line and the frames go first; the keys stay, and escape leaves the field."""
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "4")
        for width, height, fields in ((80, 16, 8), (60, 14, 7), (40, 12, 5), (30, 8, 3), (20, 5, 2)):
            await pilot.resize_terminal(width, height)
            await settle(pilot)
            lines = app.text().splitlines()
            shown = [line.strip("│ ").split()[0] for line in lines if line.strip("│ ")]
            assert [word for word in shown if word in DEFAULTS or word == "what"][:fields] == (
                ["what", "model", "data", "batch", "seq", "lr", "seed", "steps"][:fields]
            )
            assert "? help" in lines[-1]
        await press(pilot, "escape", "escape")
        assert app.current_mode == "runs"


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


async def test_all_that_is_wrong_is_marked_at_once() -> None:
    """What is no value hides neither what is out of bounds nor what is missing; what would follow from a default is not said."""
    async with dashboard(World(), size=(120, 50)) as (app, pilot):
        await press(pilot, "4")
        screen = app.screen
        assert isinstance(screen, LaunchScreen)
        await fill(pilot, data="1.5", batch="xx", seq="-3", lr="nix", wrap="odd", nproc="3")
        assert {problem.field for problem in screen.found} == {"data", "batch", "seq", "lr", "wrap"}
        assert "▲ 5 to put right" in app.text()
        assert all(f"▲ {label} " in app.text() for label in ("data", "batch", "seq", "lr", "wrap"))
        await fill(
            pilot, target="script", strategy="other", strategy_text="zero", steps="x", directory="/nowhere", args="'"
        )
        assert {problem.field for problem in screen.found} == {
            "script",
            "directory",
            "args",
            "steps",
            "strategy",
            "wrap",
        }


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


SCRIPTS = (
    LaunchSpec(target="script", script="a b.py", args=("--x", "it's", ""), directory="/tmp", env={"A": "1 2", "B": ""}),
    LaunchSpec(target="module", script="pkg.train", strategy="fsdp2:reshard=4", nproc=8, asked=("strategy",), steps=3),
    LaunchSpec(target="script", script="t.py", prefetch=0, compile=True, asked=("prefetch", "compile"), name="n"),
    LaunchSpec(model="small", lr=3e-4, accumulate=2, no_sync=True, strategy="ddp", env={"A": "b"}, telemetry="off"),
)


@pytest.mark.parametrize("spec", SCRIPTS, ids=lambda spec: spec.script or "demo")
def test_a_launch_and_its_form_are_the_same(spec: LaunchSpec) -> None:
    """What fills the form in is read from it again."""
    assert read_form(fill_form(spec)) == (spec, [])


def test_environment_that_is_none() -> None:
    """In one sentence, at its field."""
    _, found = read_form(DEFAULTS | {"env": "A=1 B"})
    assert [(problem.field, problem.text) for problem in found] == [("env", "environment: B: expected NAME=VALUE")]


def words(app: Dashboard) -> str:
    """The screen without frames and line ends."""
    return " ".join(app.text().replace("│", " ").split())


async def fill(pilot: Pilot[int], **values: str) -> None:
    """Sets fields as a person would leave them."""
    for name, value in values.items():
        widget = pilot.app.screen.query_one(f"#field-{name}")
        assert isinstance(widget, Input | Select)
        widget.value = value
        await settle(pilot)


async def test_a_scripts_sharding_is_its_own_until_something_is_chosen(tmp_path: Path) -> None:
    """Choosing is asking, also for what is the default; a field that is emptied again is left to the script."""
    script = tmp_path / "train.py"
    script.write_text("")
    world = World(machine=Machine(torch="2.6.0+cpu", accelerators=0, cores=2))
    async with dashboard(world) as (app, pilot):
        await press(pilot, "4")
        assert "FSDP2 runs on a CPU from torch 2.7 on" in words(app)  # the demo's default
        await fill(pilot, target="script", script=str(script))
        assert "✓ ready" in app.text()  # a script may wrap with FSDP1 by itself
        assert "the script's own strategy" in words(app)
        assert app.text().count("the script's own") >= 5
        screen = app.screen
        assert isinstance(screen, LaunchScreen)
        assert (screen.spec.overrides, screen.spec.requested) == ((), "")
        await fill(pilot, strategy="fsdp2:full_shard", prefetch="0")
        assert screen.spec.overrides == ("strategy", "prefetch")
        assert "FSDP2 runs on a CPU from torch 2.7 on" in words(app)
        assert f"fsdp-tui run --strategy fsdp2:full_shard --prefetch 0 {script}" in "".join(
            line.strip("│ ") + ("" if line.rstrip("│ ").endswith("/") else " ") for line in app.text().splitlines()
        )
        await press(pilot, "f5")
        assert world.started == []
        await fill(pilot, strategy="fsdp1:shard_grad_op", prefetch="")
        await press(pilot, "f5")
        await until(pilot, lambda: bool(world.started))
        assert (world.started[0].overrides, world.started[0].requested) == (("strategy",), "fsdp1:shard_grad_op")


async def test_going_back_to_the_demo_brings_its_defaults_back() -> None:
    """What an empty field means follows what is launched."""
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "4")
        await fill(pilot, target="module")
        assert app.screen.query_one("#field-wrap", Input).placeholder == "the script's own"
        await fill(pilot, target="demo")
        assert app.screen.query_one("#field-wrap", Input).placeholder == "transformer"
        assert "✓ ready" in app.text()
        assert "the script's own" not in app.text()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a working directory of the test's own."""
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text("")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


async def test_a_preset_is_saved_loaded_replaced_and_deleted(home: Path) -> None:
    """From the keyboard alone; replacing and deleting ask."""
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "4", "escape", "o")
        assert "no presets yet" in app.text()
        await press(pilot, "escape")
        await fill(pilot, target="script", script="train.py", strategy="ddp", nproc="2", env="A='b c'", steps="9")
        await press(pilot, "s")
        assert isinstance(app.screen, AskName)
        assert app.screen.query_one(Input).value == "train"
        await press(pilot, *("backspace",) * 5, *"mine", "enter")
        file = home / "presets" / "mine.toml"
        assert "saved" in said(app)
        saved = presets.find("mine").spec
        assert saved == LaunchSpec(
            target="script",
            script="train.py",
            directory=str(Path.cwd()),
            strategy="ddp",
            nproc=2,
            env={"A": "b c"},
            steps=9,
            asked=("strategy",),
        )
        # Replacing asks, and "no" keeps what was.
        await fill(pilot, steps="10")
        await press(pilot, "s", "enter")
        assert isinstance(app.screen, Ask)
        await press(pilot, "n")
        assert presets.find("mine").spec.steps == 9
        await press(pilot, "s", "enter", "r")
        assert presets.find("mine").spec.steps == 10
        # Loading fills in what is not there any more.
        await press(pilot, "r", "o")
        assert isinstance(app.screen, PresetList)
        assert "fsdp-tui run --nproc 2 --strategy ddp --steps 10 --env 'A=b c' train.py" in words(app)
        await press(pilot, "enter")
        assert isinstance(app.screen, LaunchScreen)
        assert app.screen.spec == presets.find("mine").spec
        assert "✓ ready" in app.text()
        # Deleting asks.
        await press(pilot, "o", "d", "n")
        assert file.exists()
        await press(pilot, "d", "d")
        assert not file.exists()
        assert "no presets yet" in app.text()


async def test_a_projects_preset_is_loaded_and_not_deleted_and_damage_is_a_line(home: Path) -> None:
    """fsdp-tui.toml in the working directory goes with the saved ones."""
    Path("fsdp-tui.toml").write_text(
        '[presets.big]\nscript = "train.py"\nnproc = 2\n[presets.odd]\nscript = "x.py"\nnprocs = 2\n'
    )
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "4", "escape", "o")
        await press(pilot, "down")
        assert "fsdp-tui.toml, line 6: presets.odd.nprocs: no such key" in words(app)
        await press(pilot, "enter", "d")  # there is nothing to load or delete
        assert isinstance(app.screen, PresetList)
        await press(pilot, "up", "d", "d")
        assert "delete it there" in said(app)
        await press(pilot, "enter")
        assert isinstance(app.screen, LaunchScreen)
        assert (app.screen.spec.script, app.screen.spec.nproc) == ("train.py", 2)


async def test_a_name_that_is_none_is_refused(home: Path) -> None:
    """Said where it was typed, and asked again; nothing is written, and no key is one of the form's."""
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "4", "escape", "s")
        await press(pilot, *("backspace",) * 30, *"../x", "enter")
        assert "is no name for a preset" in words(app)
        assert isinstance(app.screen, AskName)
        assert app.screen.query_one(Input).value == "../x"
        await press(pilot, *("backspace",) * 4, "enter")  # no name at all
        assert isinstance(app.screen, AskName)
        await press(pilot, "escape")
        assert isinstance(app.screen, LaunchScreen)
        assert not (home / "presets").exists()
        await press(pilot, "s", *("backspace",) * 30, *"../x", "enter", *("backspace",) * 4, *"q", "enter")
        assert presets.find("q").spec == LaunchSpec()


async def test_a_form_that_means_no_launch_is_not_saved(home: Path) -> None:
    """One without a script would only fail later."""
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "4", "escape")
        await fill(pilot, target="script")
        await press(pilot, "s")
        assert isinstance(app.screen, LaunchScreen)
        assert "which script?" in said(app)


@pytest.mark.parametrize("where", ["run", "runs"])
async def test_a_run_of_a_script_is_launched_again_with_another_strategy(where: str, home: Path) -> None:
    """Command, ranks and environment stay; the form opens on the strategy."""
    world = World()
    source = world.add(Recipe(ended="finished"))
    spec = LaunchSpec(
        target="script", script="train.py", args=("--lr", "1"), directory=str(Path.cwd()), nproc=2, env={"A": "b"}
    )
    world.launches[source.entry.id] = spec
    async with dashboard(world, open_on=source.entry if where == "run" else None) as (app, pilot):
        await press(pilot, "R")
        assert isinstance(app.screen, LaunchScreen)
        assert app.screen.spec == spec
        assert app.focused is app.screen.query_one("#field-strategy")
        await fill(pilot, strategy="fsdp2:shard_grad_op")
        await press(pilot, "f5")
        await until(pilot, lambda: bool(world.started))
        (started,) = world.started
        assert (started.script, started.args, started.nproc, started.env, started.directory, started.requested) == (
            "train.py",
            ("--lr", "1"),
            2,
            {"A": "b"},
            str(Path.cwd()),
            "fsdp2:shard_grad_op",
        )


async def test_a_run_that_was_not_launched_from_here_cannot_be_launched_again() -> None:
    """In one line, and the screen stays."""
    world = World()
    source = world.add(Recipe())
    async with dashboard(world, open_on=source.entry) as (app, pilot):
        await press(pilot, "R")
        assert "was not launched from here" in said(app)
        assert isinstance(app.screen, RunScreen)
