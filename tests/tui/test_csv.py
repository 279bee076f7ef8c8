"""Data of what is shown as CSV: the numbers in the files against those of the run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from fsdp_tui.telemetry.messages import CATEGORIES
from fsdp_tui.telemetry.view import total
from fsdp_tui.tui.app import Dashboard, file_name
from tests.unit.telemetry.messages_for_tests import capture

from .drive import dashboard, opened, press, said, settle, until
from .fixtures import Recipe, World, entry, run_id


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def written(app: Dashboard, pilot: Pilot[int], folder: Path, count: int = 1) -> dict[str, list[dict[str, str]]]:
    """Presses the key; the files that are new, by what their names say between screen and time."""
    before = set(folder.iterdir())
    await pilot.press("E")
    await until(pilot, lambda: "saved" in said(app), "the files are written")
    await settle(pilot)
    files = sorted(set(folder.iterdir()) - before)
    assert len(files) == count
    assert all(str(file) in said(app) for file in files)
    app.clear_notifications()
    found = {}
    for file in files:
        with file.open(newline="") as body:
            found[file.name.rpartition("-")[0]] = list(csv.DictReader(body))
    return found


def number(text: str) -> float | None:
    return float(text) if text else None


async def test_run_screen(tmp_path: Path) -> None:
    """Memory of the ranks that are shown, every step, every unit; unknown is empty."""
    recipe = Recipe(ranks=4, heavy_rank=2, name="my run/1")
    async with opened(recipe) as (app, pilot, _):
        await press(pilot, "slash")
        await pilot.press(*"1-3")
        await press(pilot, "enter")
        files = await written(app, pilot, tmp_path, 3)
        assert app.snapshot is not None
        run = app.snapshot.view
    memory = files["fsdp-tui-my-run-1-run-memory"]
    assert [row["rank"] for row in memory] == ["1", "2", "3"]
    for row in memory:
        rank = run.ranks[int(row["rank"])]
        assert int(row["peak_total_bytes"]) == total(rank.peak) == recipe.peak(rank.rank)
        for at, name in enumerate(CATEGORIES):
            assert number(row[f"memory_{name}_bytes"]) == rank.memory[at]
            assert number(row[f"peak_{name}_bytes"]) == rank.peak[at]
        assert row["memory_cache_bytes"] == ""
        assert row["peak_phase"] == "backward"
    series = files["fsdp-tui-my-run-1-run-series"]
    assert len(series) == recipe.steps
    for row in series:
        step = int(row["step"])
        assert float(row["loss"]) == recipe.loss / (1 + step / 50)
        assert int(row["step_ns"]) == recipe.step_ns(step)
        assert float(row["tokens_per_s"]) == pytest.approx(4 * 512 / recipe.step_ns(step) * 1e9)
        assert row["samples_per_s"] == ""
    collectives = files["fsdp-tui-my-run-1-run-collectives"]
    assert {(row["unit"], row["collective"]) for row in collectives if row["phase"] == "step"} == {
        (f"blocks.{at}", kind) for at in range(4) for kind in ("all_gather", "reduce_scatter")
    }
    gather = next(row for row in collectives if row["unit"] == "blocks.1" and row["phase"] == "step")
    assert (gather["calls"], gather["latest_rank"], gather["late_ns"]) == ("2.0", "1", "4000000")


async def test_comm_calls_and_rank(tmp_path: Path) -> None:
    """The matrix is the one that is shown: its metric, in the order of its rows."""
    async with opened(Recipe(ranks=4)) as (app, pilot, _):
        await press(pilot, "3")
        files = await written(app, pilot, tmp_path)
        rows = files["fsdp-tui-tiny-comm-lateness_ns"]
        assert [row["rank"] for row in rows] == ["0", "1", "2", "3"]
        # Rank 1 is in each call 2 ms shorter than the others; a unit has two gathers and a reduction.
        assert [float(row["blocks.2"]) for row in rows] == [0, 6_000_000, 0, 0]
        assert float(rows[1]["all"]) == 24_000_000
        await press(pilot, "x")
        (rows,) = (await written(app, pilot, tmp_path)).values()
        assert float(rows[0]["blocks.0"]) == 9_000_000
        await press(pilot, "enter")
        files = await written(app, pilot, tmp_path)
        rows = files["fsdp-tui-tiny-calls-rank0"]
        assert {row["collective"] for row in rows} == {"all_gather", "reduce_scatter"}
        assert all(row["median_call_ns"] == "3000000" for row in rows)
        await press(pilot, "right")
        files = await written(app, pilot, tmp_path)
        assert all(row["median_call_ns"] == "1000000" for row in files["fsdp-tui-tiny-calls-rank1"])
        await press(pilot, "escape", "1", "enter")
        (rows,) = (await written(app, pilot, tmp_path)).values()
        assert [row["rank"] for row in rows] == ["0"]


async def test_step(tmp_path: Path) -> None:
    """Row by row what was taken and freed, and what was alive."""
    async with opened() as (app, pilot, world):
        source = next(iter(world.sources.values()))
        await press(pilot, "2")
        await press(pilot, "E")
        assert "no table to write" in said(app)
        app.clear_notifications()
        source.state.apply(capture(1, 7))
        await until(pilot, lambda: app.snapshot is not None and bool(app.snapshot.view.ranks[1].captures))
        await settle(pilot)
        rows = (await written(app, pilot, tmp_path))["fsdp-tui-tiny-step-step7-rank1"]
    assert [int(row["alive_bytes"]) for row in rows] == [1_300, 1_500, 1_600, 1_400, 1_300, 1_400, 1_100]
    assert rows[1] == {
        "at_ns": "20",
        "delta_bytes": "200",
        "category": "activation",
        "module": "blocks.0.up",
        "phase": "forward",
        "alive_bytes": "1500",
    }


async def test_runs_and_compare(tmp_path: Path) -> None:
    """The list as it is filtered and sorted; the figures of the marked runs."""
    world = World()
    for name, strategy in (("a", "fsdp2:full_shard"), ("b", "ddp"), ("other", "ddp")):
        world.add(
            Recipe(name=name, strategy=strategy), entry(name, strategy=strategy, loss=None if name == "a" else 2.5)
        )
    async with dashboard(world) as (app, pilot):
        await press(pilot, "slash")
        await pilot.press(*"^(?!.*other)")
        await press(pilot, "enter")
        rows = (await written(app, pilot, tmp_path))["fsdp-tui-runs"]
        assert {row["name"]: (row["id"], row["loss"], row["strategy"]) for row in rows} == {
            "a": (run_id("a"), "", "fsdp2:full_shard"),
            "b": (run_id("b"), "2.5", "ddp"),
        }
        assert rows[0]["created"] == "2023-11-14T22:13:20+00:00"
        app.marked = [run_id("a"), run_id("b")]
        await press(pilot, "5")
        await until(pilot, lambda: len(app.screen.runs()) == 2)  # type: ignore[attr-defined]
        await settle(pilot)
        rows = (await written(app, pilot, tmp_path))["fsdp-tui-compare"]
        peak: dict[str, Any] = next(row for row in rows if row["figure"] == "peak")
        assert sorted(
            int(float(value)) for name, value in peak.items() if name not in ("figure", "unit", "best")
        ) == sorted(Recipe(strategy=strategy).peak(0) for strategy in ("fsdp2:full_shard", "ddp"))
        assert "full_shard" in peak["best"]
        await press(pilot, "4", "escape", "E")
        assert "no table to write" in said(app)


async def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and no traceback."""
    (tmp_path / "file").write_text("")
    async with opened() as (app, pilot, _):
        monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "file")
        monkeypatch.setattr(Path, "home", lambda: tmp_path / "file")
        await pilot.press("E")
        await until(pilot, lambda: "can be written" in said(app))


def test_names_of_files() -> None:
    """Nothing that a shell or a file system stumbles over."""
    assert file_name(["fsdp-tui", "a b/c:é", "", "x"], "csv") == "fsdp-tui-a-b-c-é-x.csv"
