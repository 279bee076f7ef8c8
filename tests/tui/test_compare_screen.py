"""Runs side by side."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from fsdp_tui.telemetry.messages import Step, Structure
from fsdp_tui.telemetry.report import compare
from fsdp_tui.tui.comparison import FORMATS, as_markdown, as_svg, as_text, findings, match, names, run_bars
from fsdp_tui.tui.screens.compare import CompareScreen, number_columns, write_theory, write_verdict
from fsdp_tui.tui.screens.run import RunScreen
from fsdp_tui.tui.widgets.chart import row_text

from .checks import check_compare
from .drive import check_golden, dashboard, press, said, settle, until
from .fixtures import MIB, Recipe, World

OPTIONS: dict[str, str | int | float | bool | None] = {"model": "tiny", "batch": 8, "precision": "fp32"}
RECIPES = (
    Recipe(name="one", ranks=1, strategy="single", ended="finished", options=OPTIONS),
    Recipe(name="copies", ranks=2, strategy="ddp", ended="finished", options=OPTIONS),
    Recipe(name="shards", ranks=2, strategy="fsdp2:full_shard", ended="finished", options=OPTIONS),
)


def a_world() -> World:
    world = World()
    for recipe in RECIPES:
        world.add(recipe)
    return world


def six() -> list[Recipe]:
    """As many as a comparison can show."""
    return [
        Recipe(name=f"run {at}", ranks=ranks, strategy=strategy, ended="finished", options=OPTIONS)
        for at, (strategy, ranks) in enumerate(
            (
                ("single", 1),
                ("ddp", 8),
                ("fsdp1:full_shard", 8),
                ("fsdp1:shard_grad_op", 8),
                ("fsdp2:full_shard", 64),
                ("fsdp2:shard_grad_op", 64),
            )
        )
    ]


def of_ranks() -> list[Recipe]:
    """The same training on 2, 8, 64 and 1024 ranks."""
    return [
        Recipe(name=f"on {ranks}", ranks=ranks, steps=6, state_bytes=4096 * MIB, ended="finished", options=OPTIONS)
        for ranks in (2, 8, 64, 1024)
    ]


SETS = {"compare": list(RECIPES), "compare-6": six(), "compare-ranks": of_ranks()}


@pytest.mark.parametrize("name", SETS)
async def test_what_the_comparison_shows(name: str) -> None:
    """Kept as text at three sizes; bars, numbers, differences and step times are worked out from the recipes."""
    recipes = SETS[name]
    world = World()
    for recipe in recipes:
        world.add(recipe)
    async with dashboard(world) as (app, pilot):
        await press(pilot, *["space"] * len(recipes), "5")
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        await until(pilot, lambda: len(screen.runs()) == len(recipes))
        for size in ((120, 40), (80, 24), (60, 20)):
            await pilot.resize_terminal(*size)
            await settle(pilot, None)
            text = app.text()
            assert ("baseline: 1 " in text) is (size[0] >= 80)
            check_golden(f"{name}-{size[0]}x{size[1]}", text)
            check_compare(recipes, text)
            await press(pilot, "tab")
            if size[0] >= 80 or len(recipes) < 4:  # every run has a column of numbers
                check_compare(recipes, app.text())
            await press(pilot, "shift+tab")


def test_numbers_and_differences() -> None:
    """Half the states is −50 % of the baseline; the losses agree."""
    views = [recipe.state().view() for recipe in RECIPES]
    assert names(views) == ["1 single", "2 ddp", "3 fsdp2:full_shard"]
    columns = number_columns(views, 0, True, 118)
    states = columns[3].cells[0]
    assert isinstance(states, tuple)
    assert "24.0 MiB" in states[0]
    assert "−50.0 %" in states[0]
    assert "*" in states[0]
    bare = number_columns(views, 0, False, 118)[3].cells[0]
    assert isinstance(bare, tuple)
    assert "%" not in bare[0]
    said = " ".join(row_text(row) for row in write_verdict(views, 0, 100))
    assert "losses agree" in said
    assert "1/2.00 of the unsharded model states" in said


def test_what_differs_is_named() -> None:
    """Apples and pears, and losses that are not the same training's."""
    other = Recipe(name="other", ended="finished", loss=6.0, options=OPTIONS | {"batch": 16})
    views = [RECIPES[2].state().view(), other.state().view()]
    said = " ".join(row_text(row) for row in write_verdict(views, 0, 100))
    assert "losses differ" in said
    assert "batch differs: 8, 16" in said
    assert names(views) == ["1 shards", "2 other"]


def test_bars_compare_on_one_scale() -> None:
    """All runs in one unit, each with what theory gives it."""
    bars = run_bars([recipe.state().view() for recipe in RECIPES], 0)
    assert bars.ideal.tolist() == [48 * MIB, 48 * MIB, 24 * MIB]
    assert bars.total.tolist() == [recipe.peak(0) for recipe in RECIPES]
    assert bars.scale_bytes >= max(recipe.peak(0) for recipe in RECIPES)


async def test_fewer_than_two_runs_say_how_to_choose() -> None:
    """No empty screen."""
    async with dashboard(a_world()) as (app, pilot):
        await press(pilot, "5")
        assert "Mark two to six runs with space" in app.text()
        await press(pilot, "0", "space", "5")
        assert "Mark two to six runs with space" in app.text()
        await press(pilot, "escape")
        assert app.current_mode == "runs"


async def test_baseline_differences_and_open() -> None:
    """b goes through the runs, d hides the differences, enter opens the run under the cursor."""
    async with dashboard(a_world()) as (app, pilot):
        await press(pilot, "space", "space", "space", "5")
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        await until(pilot, lambda: len(screen.runs()) == 3)
        await settle(pilot)  # drawn, too
        await press(pilot, "b", "b")
        assert "baseline: 3 fsdp2:full_shard" in app.text()
        assert "+100.0 %" in app.text()
        await press(pilot, "d")
        assert "+100.0 %" not in app.text()
        await press(pilot, "down", "enter")
        assert isinstance(app.screen, RunScreen)
        assert app.feed is not None
        assert app.feed.entry.name == "copies"


class Lost(Recipe):
    """Its loss is no number from step 31 on."""

    def step(self, rank: int, number: int) -> Step:
        whole = super().step(rank, number)
        return whole if number < 31 else msgspec.structs.replace(whole, loss=float("nan"))


async def test_losses_are_said_once_whatever_the_baseline() -> None:
    """Of the first 20 steps, all that the first run has, all losses agree; held against the third run the second differs. The
    line at the bottom says what the pane says, and the run that is left out has no star."""
    world = World()
    for recipe in (
        Recipe(name="short", steps=20, strategy="ddp", ended="finished", options=OPTIONS),
        Lost(name="lost", strategy="fsdp2:full_shard", ended="finished", options=OPTIONS),
        Recipe(name="whole", strategy="fsdp2:shard_grad_op", ended="finished", options=OPTIONS),
    ):
        world.add(recipe)
    async with dashboard(world) as (app, pilot):
        await press(pilot, "space", "space", "space", "5")
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        await until(pilot, lambda: len(screen.runs()) == 3)
        await settle(pilot)  # drawn, too
        for wanted in ("✗ losses are no numbers any more", "✗ losses differ", "✗ losses differ"):
            lines = [line.strip("│ ") for line in app.text().splitlines() if "losses" in line]
            assert [line.partition(":")[0] for line in lines] == [wanted, wanted]
            await press(pilot, "b")
        states = next(line for line in app.text().splitlines() if line.startswith("│model states"))
        assert states.count("*") == 1
        assert "2 fsdp2:full_shard is left out: its loss is no number (nan) from step 31 on" in app.text()


async def test_a_run_that_cannot_be_read_is_named() -> None:
    """The others wait for a second one."""
    world = a_world()
    world.sources.pop(world.entries[1].id)
    async with dashboard(world) as (app, pilot):
        await press(pilot, "space", "space", "5")
        await until(pilot, lambda: "damaged" in app.text())
        assert "copies: run" in app.text()


class Counted(Recipe):
    """A training whose forwards, backwards and units are counted, so that theory can speak of its communication."""

    kept = False
    """Whether units stay gathered from forward to backward. The calls are those of units that do not."""

    def structure(self, rank: int) -> Structure:
        plain = super().structure(rank)
        units = [
            msgspec.structs.replace(unit, kept=self.kept, reduce_bytes=unit.unsharded_bytes) for unit in plain.units
        ]
        return msgspec.structs.replace(plain, units=units, detail={**plain.detail, "replicas": 1}, frozen_bytes=0)

    def step(self, rank: int, number: int) -> Step:
        return msgspec.structs.replace(super().step(rank, number), forwards=1, backwards=1, samples=4)


class Kept(Counted):
    kept = True


def test_theory_stands_beside_what_was_measured() -> None:
    """full_shard gathers 4 units of 3 MiB twice and reduces them once: 36 MiB, 3 times the parameters. One that keeps its units
    should gather once, and 24 MiB where 12 are due is no match."""
    good = Counted(name="good", ended="finished", options=OPTIONS).state().view()
    bad = Kept(name="bad", strategy="fsdp2:shard_grad_op", ended="finished", options=OPTIONS).state().view()
    told = compare([good, bad])["theory"]
    assert told[0]["model_states"] == {"expected": 24 * MIB, "measured": 24 * MIB}
    assert told[0]["communication"]["moved"] == {"expected": 36 * MIB, "measured": 36 * MIB}
    assert told[1]["communication"]["all_gather"] == {"expected": 12 * MIB, "measured": 24 * MIB}
    lines = {one.text: one.severity for one in findings([good, bad], ["a", "b"]) if "theory" in one.text}
    (first, second) = lines.items()
    assert first == (
        "a against theory: model states 24.0 MiB of 24.0 MiB (0.0 %);"
        " communication 36.0 MiB of 36.0 MiB (0.0 %), 3.00 times the parameters",
        "ok",
    )
    assert "communication 36.0 MiB of 24.0 MiB (+50.0 %)" in second[0]
    assert second[1] == "bad"
    cells = [
        [cell[0] if isinstance(cell, tuple) else cell for cell in one.cells]
        for one in number_columns([good, bad], 0, False, 118)
    ]
    assert cells[0][-5:][0] == "  vs theory"
    at = len(cells[0]) - 5
    assert (cells[1][at].strip(), cells[2][at].strip()) == ("✓ 0.0 %", "✗ +50.0 %")
    text = "\n".join(row_text(row) for row in write_theory([good, bad], 100))
    assert "24.0 MiB measured   12.0 MiB by theory  +100.0 %" in text
    assert "1 forward and 1 backward per step, 1 of which reduces; 12.0 MiB of parameters: 3.00 times" in text


@pytest.mark.parametrize(
    ("measured", "expected", "severity"),
    [
        (100, 100, "ok"),
        (105, 100, "ok"),
        (110, 100, "warn"),
        (80, 100, "bad"),
        (0, 0, "ok"),
        (1, 0, "bad"),
        (None, 1, "note"),
    ],
)
def test_how_near_is_near(measured: float | None, expected: float | None, severity: str) -> None:
    """5 % matches, 15 % is near; nothing where nothing is due matches."""
    assert match(measured, expected) == severity


def test_every_format_has_the_numbers() -> None:
    """Of the recipes, in Markdown, in the picture, as text and as JSON."""
    views = [recipe.state().view() for recipe in RECIPES]
    markdown = as_markdown(views)
    assert "| model states per rank | 48.0 MiB | 48.0 MiB | **24.0 MiB** |" in markdown
    assert "| model states, by theory | 48.0 MiB | 48.0 MiB | 24.0 MiB |" in markdown
    assert "fsdp2:full\\_shard" in markdown
    assert "losses agree" in markdown
    assert "24.0 MiB *" in as_text(views)
    assert json.loads(FORMATS["json"](views))["rows"] == compare(views)["rows"]
    picture = ET.fromstring(as_svg(views))
    texts = [node.text or "" for node in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "24.0 MiB *" in texts
    assert "3 fsdp2:full_shard" in texts
    for recipe in RECIPES:
        assert any(f"peak {recipe.peak(0) / MIB:.1f}  states {recipe.states() / MIB:.1f}" in text for text in texts)
    # Bars are to scale: the ideal mark of a half is half as far from the left edge as that of a whole.
    marks = [
        float(node.get("x", 0)) + 1.5
        for node in picture.iter("{http://www.w3.org/2000/svg}rect")
        if node.get("width") == "3.0"
    ]
    left = next(
        float(node.get("x", 0))
        for node in picture.iter("{http://www.w3.org/2000/svg}rect")
        if node.get("height") == "17.0" or node.get("height") == "17"
    )
    assert marks[2] - left == pytest.approx((marks[0] - left) / 2, abs=0.2)


def test_a_run_without_numbers_is_compared_all_the_same() -> None:
    """What is not known is –, in every format."""
    views = [RECIPES[0].state().view(), Recipe(name="<new & empty>", steps=0, ended="failed").state().view()]
    for write in (as_text, as_markdown, as_svg):
        assert "–" in write(views)
    ET.fromstring(as_svg(views))


async def test_the_comparison_is_written_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """v asks for the format; the baseline comes first; f shows the theory."""
    monkeypatch.chdir(tmp_path)
    async with dashboard(a_world()) as (app, pilot):
        await press(pilot, "space", "space", "space", "5")
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        await until(pilot, lambda: len(screen.runs()) == 3)
        await settle(pilot)  # drawn, too
        await press(pilot, "v", "escape")
        assert list(tmp_path.iterdir()) == []
        await press(pilot, "b", "v", "m")
        (written,) = tmp_path.iterdir()
        assert written.suffix == ".md"
        assert written.read_text().startswith("# 1 ddp · 2 single · 3 fsdp2:full")
        assert str(written) in said(app).replace("\n", "")
        await press(pilot, "f")
        await settle(pilot)
        assert "by theory" in app.text()
