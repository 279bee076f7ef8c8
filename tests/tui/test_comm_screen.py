"""The Comm screen: its numbers against the run, and each key against what help says."""

from __future__ import annotations

import re
from functools import cache
from statistics import median

import pytest
from textual.widgets import Input

from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.screens.base import Text
from fsdp_tui.tui.screens.calls import CallsScreen
from fsdp_tui.tui.screens.comm import CommScreen
from fsdp_tui.tui.widgets.commmap import Spot
from fsdp_tui.tui.widgets.heatmap import HeatGrid
from fsdp_tui.tui.widgets.table import Table

from .checks import check_comm, check_header
from .comm_runs import AG, FORWARD, ROOT, CommRecipe
from .drive import check_fits, check_golden, opened, press, said, settle, until
from .reading import reads
from .truth import Truth

RECIPES = {
    2: CommRecipe(ranks=2, blocks=5, steps=24, late_rank=1),
    8: CommRecipe(ranks=8, blocks=13, steps=24, name="eight", device="cuda", late_rank=5, slow_unit=7, clips=True),
    64: CommRecipe(ranks=64, blocks=80, steps=5, name="many", device="cuda", late_rank=17, late_ns=400_000),
    1024: CommRecipe(ranks=1024, blocks=6, steps=4, name="cluster", device="cuda", late_rank=517),
}


truth = cache(lambda ranks: Truth(RECIPES[ranks]))


def lateness_ns(recipe: CommRecipe, rank: int, unit: int | None) -> float:
    """Of a unit, or of all: what the longest-waiting rank of the group spends more in the same calls, the median over steps."""
    calls = [call for call in recipe.calls() if unit in (None, call[0])]
    return median(
        sum(
            max(recipe.duration_ns(other, call, number) for other in recipe.group_of(rank, call))
            - recipe.duration_ns(rank, call, number)
            for call in calls
        )
        for number in range(2, recipe.steps + 1)
    )


@pytest.mark.parametrize("ranks", RECIPES)
async def test_what_the_screen_shows(ranks: int) -> None:
    """Kept as text at three sizes; every number, and who comes late, by how much and where, is worked out from the recipe."""
    recipe = RECIPES[ranks]
    late = recipe.late_rank
    async with opened(recipe) as (app, pilot, _):
        await press(pilot, "3")
        for size in ((120, 40), (80, 24), (60, 20)):
            await pilot.resize_terminal(*size)
            await settle(pilot, None)
            screen, text = app.screen, app.text()
            assert isinstance(screen, CommScreen)
            assert screen.spot is not None
            assert screen.spot.rank == late
            plan = screen.query_one("#map", HeatGrid).plan
            assert plan is not None
            assert plan.sums or plan.blocks > 1 or size[0] < 44
            check_header(recipe, text, since=("data 0.2 s old", "0.2 s old"))
            check_comm(truth(ranks), text, size[0])
            check_golden(f"comm-{ranks}-{size[0]}x{size[1]}", text)


async def test_every_cell_of_a_small_map_is_the_recipes() -> None:
    """Eight ranks by thirteen units, number by number, as they stand on the screen."""
    recipe = CommRecipe(ranks=8, blocks=8, steps=10, late_rank=5)
    async with opened(recipe, size=(120, 40)) as (app, pilot, _):
        await press(pilot, "3")
        await settle(pilot, None)
        lines = app.text().splitlines()
    found = {}
    for line in lines:
        numbers = re.findall(r"\d+\.\d\d", line)
        if (label := re.match(r"[│┃] *(\d)[ ▸]", line)) and len(numbers) >= 8:
            found[int(label[1])] = [float(number) for number in numbers[:8]]
    assert sorted(found) == list(range(8))
    for rank, row in found.items():
        for unit, value in enumerate(row):
            assert value == pytest.approx(lateness_ns(recipe, rank, unit) / 1e6, abs=0.006)


async def test_metric() -> None:
    """`x` goes through lateness, exposed time, duration and bandwidth; the title and the cell say which."""
    recipe = RECIPES[2]
    async with opened(recipe) as (app, pilot, _):
        await press(pilot, "3")
        screen = app.screen
        assert isinstance(screen, CommScreen)
        calls = [call for call in recipe.calls() if call[0] == 0]
        for words, metric in (("exposed", recipe.exposed_ns), ("duration", recipe.duration_ns)):
            await press(pilot, "x")
            assert words in str(screen.query_one("#map").border_title)
            screen.spot = Spot(0, 0)
            await settle(pilot)
            cell = median(sum(metric(0, call, number) for call in calls) for number in range(2, recipe.steps + 1))
            assert f"{fmt.duration(cell)} (the better one" in app.text()
        await press(pilot, "x")
        assert "bus bandwidth" in app.text()
        assert "iB/s" in app.text()
        await press(pilot, "x")
        assert "lateness" in app.text()


async def test_one_kind_and_one_phase() -> None:
    """`a` and `f` narrow what counts; columns without such calls go."""
    recipe = RECIPES[8]
    async with opened(recipe) as (app, pilot, _):
        await press(pilot, "3")
        screen = app.screen
        assert isinstance(screen, CommScreen)
        assert screen.map is not None
        assert "no unit" in screen.map.chart.columns
        await press(pilot, "a")
        assert "· all-gather ·" in app.text()
        assert "no unit" not in screen.map.chart.columns
        await press(pilot, "f")
        assert "· all-gather in forward ·" in app.text()
        spent = [recipe.duration_ns(5, (0, AG, FORWARD), number) for number in range(2, 25)]
        longest = [
            max(recipe.duration_ns(rank, (0, AG, FORWARD), number) for rank in range(8)) for number in range(2, 25)
        ]
        late = median(most - own for most, own in zip(longest, spent, strict=True))
        found = screen.map
        unit = 1e6 if found.chart.unit == "ms" else 1e3
        assert found.chart.cells[5, 0] * unit == pytest.approx(late)
        await press(pilot, "f", "f", "a", "a")
        assert "· all-reduce ·" in app.text()
        assert list(screen.map.chart.columns) == ["no unit"]
        await press(pilot, "a")
        assert "· collectives ·" in app.text()


async def test_group() -> None:
    """Rows are ranks, then nodes, then units; the cursor stays on its rank and unit."""
    async with opened(RECIPES[64]) as (app, pilot, _):
        await press(pilot, "3")
        screen = app.screen
        assert isinstance(screen, CommScreen)
        spot = screen.spot
        await press(pilot, "g")
        assert screen.map is not None
        assert list(screen.map.chart.rows) == [f"node{at}" for at in range(8)]
        assert "node2" in app.text()
        await press(pilot, "g")
        assert screen.map.chart.rows[:2] == [ROOT, "layers.0"]
        assert screen.spot == spot
        await press(pilot, "g")
        assert screen.map.chart.rows[:2] == ["0", "1"]


async def test_a_node_is_its_worst_rank() -> None:
    """Three nodes of 8, 8 and 4 ranks: in each unit the figure of the rank that is worst there, whatever the metric."""
    recipe = CommRecipe(ranks=20, blocks=8, steps=10, late_rank=13)
    of_all = Truth(recipe)

    def figure(metric: str, rank: int, unit: int) -> float:
        calls = of_all.of(unit)
        matrices = {"lateness": of_all.late, "exposed": of_all.exposed, "duration": of_all.duration}
        return of_all.bus(rank, calls) if metric == "bandwidth" else of_all.rank(matrices[metric], rank, calls)

    async with opened(recipe) as (app, pilot, _):
        await press(pilot, "3", "g")
        screen = app.screen
        assert isinstance(screen, CommScreen)
        for metric, worst in (("lateness", max), ("exposed", max), ("duration", max), ("bandwidth", min)):
            await settle(pilot, None)
            lines = app.text().splitlines()
            found = {label[1]: label[2] for line in lines if (label := re.match(r"[│┃] *(node\d)[ ▸](.*)", line))}
            assert list(found) == ["node0", "node1", "node2"]
            assert screen.choice.metric == metric
            assert screen.map is not None
            for node, row in enumerate(found.values()):
                numbers = re.findall(r"\d+(?:\.\d+)?", row)[: recipe.blocks]
                assert len(numbers) == recipe.blocks
                for unit, number in enumerate(numbers):
                    value = worst(figure(metric, rank, unit) for rank in range(20) if rank // 8 == node)
                    assert reads(f"{number} {screen.map.chart.unit}", value), (metric, node, unit)
            # The cursor stands for the rank whose figure the cell has.
            assert screen.spot is not None
            node, unit = screen.spot.rank // 8, screen.spot.place
            members = range(node * 8, min(20, node * 8 + 8))
            assert figure(metric, screen.spot.rank, unit) == worst(figure(metric, rank, unit) for rank in members)
            await press(pilot, "x")


async def test_next_straggler() -> None:
    """To the worst cell from wherever the cursor is; where nobody stands out it says so."""
    recipe = RECIPES[8]
    async with opened(recipe) as (app, pilot, _):
        await press(pilot, "3", "home", "left", "left", "up", "up", "up")
        screen = app.screen
        assert isinstance(screen, CommScreen)
        await press(pilot, "n")
        assert screen.spot is not None
        assert screen.spot.rank == 5
        behind = [lateness_ns(recipe, 5, unit) for unit in range(recipe.blocks)]
        assert lateness_ns(recipe, 5, screen.spot.place) == pytest.approx(max(behind), rel=0.02)
        worst = screen.spot
        await press(pilot, "n")  # nobody else is late by a tenth of that
        assert screen.spot == worst


async def test_next_straggler_goes_through_all_that_stand_out() -> None:
    """Of exposed time the ranks differ a little: each is gone to once, then it begins anew."""
    async with opened(CommRecipe(ranks=4, blocks=4, steps=10)) as (app, pilot, _):
        await press(pilot, "3", "x")
        screen = app.screen
        assert isinstance(screen, CommScreen)
        seen = []
        for _ in range(5):
            await press(pilot, "n")
            assert screen.spot is not None
            seen.append(screen.spot)
        assert len({spot.rank for spot in seen[:4]}) >= 2
        first = seen.index(seen[-1])
        assert first < 4


async def test_nobody_stands_out() -> None:
    """DDP's single buckets have no times: there is nothing to go to, and a word."""
    async with opened(CommRecipe(ranks=2, steps=10, strategy="ddp")) as (app, pilot, _):
        await press(pilot, "3", "slash", *"unit:bucket", "space", "0", "enter")
        screen = app.screen
        assert isinstance(screen, CommScreen)
        await press(pilot, "escape", "slash", *"unit:0", "enter", "n")
        assert "no rank stands out" in said(app)


async def test_drill_down_from_rank_to_unit_to_collective_and_back() -> None:
    """Enter goes in, escape comes back the same way; ← and → are the ranks."""
    recipe = RECIPES[8]
    async with opened(recipe) as (app, pilot, _):
        await press(pilot, "3", "n", "enter")
        rank = app.screen
        assert isinstance(rank, CallsScreen)
        assert rank.rank == 5
        text = app.text()
        for unit in (0, 7):
            line = next(line for line in text.splitlines() if line[1:].startswith(f"{recipe.names()[unit]} "))
            assert fmt.duration(lateness_ns(recipe, 5, unit)) in line
        await press(pilot, "right")
        assert rank.rank == 6
        await press(pilot, "left", "home", "down", "enter")
        assert "rank 5 › layers.0" in app.text()
        assert "all-gather fwd" in app.text()
        assert "overlapped" in app.text()
        await press(pilot, "enter")
        assert isinstance(app.screen, Text)
        text = app.text()
        assert "layers.0 · all-gather" in text
        assert "rank by rank" in text
        assert "5 ◂" in text
        await press(pilot, "escape", "escape")
        assert isinstance(app.screen, CallsScreen)
        assert "rank 5 ›" not in app.text()
        assert app.screen.query_one("#calls", Table).cursor == 1
        await press(pilot, "escape")
        assert isinstance(app.screen, CommScreen)


async def test_a_collective_in_full_from_the_table_below() -> None:
    """Enter on the cell's table opens the collective that the cursor is on; on the waiting pane all of it."""
    async with opened(RECIPES[8]) as (app, pilot, _):
        await press(pilot, "3")
        app.screen.query_one("#cell").focus()
        await press(pilot, "down", "down", "enter")
        assert isinstance(app.screen, Text)
        assert "reduce-scatter" in app.text()
        await press(pilot, "escape")
        app.screen.query_one("#waiting").focus()
        await press(pilot, "enter")
        assert isinstance(app.screen, Text)
        assert "wait" in app.text()


async def test_the_table_of_units_moves_the_cursor() -> None:
    """It is the map's."""
    async with opened(RECIPES[8]) as (app, pilot, _):
        await press(pilot, "3")
        screen = app.screen
        assert isinstance(screen, CommScreen)
        screen.query_one("#units").focus()
        await press(pilot, "home", "down", "down")
        assert screen.spot == Spot(5, 2)


async def test_cursor_and_mouse() -> None:
    """Arrows move by a cell, a click goes to one."""
    recipe = RECIPES[2]
    async with opened(recipe) as (app, pilot, _):
        await press(pilot, "3", "up", "left", "left", "left", "left", "left")
        screen = app.screen
        assert isinstance(screen, CommScreen)
        assert screen.spot == Spot(0, 0)
        await press(pilot, "right", "right", "down")
        assert screen.spot == Spot(1, 2)
        grid = screen.query_one("#map", HeatGrid)
        plan = grid.plan
        assert plan is not None
        x, y = plan.label + 1 + 3 * plan.cell + 2, 1 + plan.tall // 2
        await pilot.click(grid, offset=(x + 1, y + 1))  # inside the frame
        await settle(pilot)
        assert screen.spot == Spot(0, 3)


async def test_density() -> None:
    """`d` gives every rank and unit a cell; then the map scrolls with the cursor."""
    async with opened(RECIPES[64], size=(80, 24)) as (app, pilot, _):
        await press(pilot, "3")
        assert "a cell is the worst of" in app.text()
        await press(pilot, "d")
        text = app.text()
        assert "of 64" in text
        assert "of 80" in text
        await press(pilot, "home", "end", "right")
        assert "◆" in app.text()
        await press(pilot, "d")
        assert "a cell is the worst of" in app.text()


async def test_filter_and_sort() -> None:
    """Ranks by number and range, units by pattern; worst first; escape brings all back."""
    async with opened(RECIPES[8]) as (app, pilot, _):
        await press(pilot, "3")
        screen = app.screen
        assert isinstance(screen, CommScreen)
        assert screen.map is not None
        await press(pilot, "s")
        assert screen.map.chart.rows[0] == "5"
        await press(pilot, "s", "slash", *"2-5", "space", *"unit:1", "enter")
        assert list(screen.map.chart.rows) == ["2", "3", "4", "5"]
        assert list(screen.map.chart.columns) == ["layers.1", "layers.10", "layers.11"]
        await press(pilot, "escape")
        assert len(screen.map.chart.rows) == 8
        await press(pilot, "slash", *"unit:(")
        assert "is no pattern" in app.text()
        screen.query_one("#filter-text", Input).value = "99"
        await settle(pilot)
        assert "no rank matches" in app.text()


async def test_freeze_and_copy() -> None:
    """Frozen cells stay while the training goes on; the cell as one line is on the clipboard."""
    recipe = CommRecipe(ranks=2, blocks=3, steps=24, late_rank=1)
    async with opened(recipe) as (app, pilot, world):
        await press(pilot, "3", "p")
        before = app.text()
        source = next(iter(world.sources.values()))
        later = CommRecipe(ranks=2, blocks=3, steps=60, late_rank=0, late_ns=9_000_000)
        for number in range(25, 61):
            for rank in range(2):
                source.state.apply(later.step(rank, number))
                source.state.apply(later.comm(rank, number))
        await until(pilot, lambda: app.snapshot is not None and app.snapshot.view.steps == 60)
        await settle(pilot)
        frozen = app.text()
        assert "frozen" in frozen
        assert [line for line in frozen.splitlines() if line[1:3] == "  "] == [
            line for line in before.splitlines() if line[1:3] == "  "
        ]
        await press(pilot, "space")
        assert "median of 59 steps" in app.text()
        await press(pilot, "y")
        assert app.clipboard.startswith("rank ")
        assert "late" in app.clipboard


async def test_zoom() -> None:
    """Each pane can have the screen for itself."""
    async with opened(RECIPES[8]) as (app, pilot, _):
        await press(pilot, "3")
        for pane in ("map", "cell", "waiting", "units"):
            widget = app.screen.query_one(f"#{pane}")
            widget.focus()
            await press(pilot, "z")
            await settle(pilot)
            assert widget.size.width >= 116, pane
            assert widget.size.height >= 30, pane
            await press(pilot, "escape")
            await settle(pilot)
            assert widget.size.height < 30, pane


@pytest.mark.parametrize("strategy", ["ddp", "single", "fsdp2:full_shard"])
async def test_runs_without_units_or_with_more_than_them(strategy: str) -> None:
    """Buckets; nobody to communicate with; two groups, and calls of no unit. On every screen of a small terminal too."""
    ranks, shards = (1, None) if strategy == "single" else (2, None) if strategy == "ddp" else (4, 2)
    recipe = CommRecipe(ranks=ranks, blocks=4, steps=8, strategy=strategy, shards_of=shards, clips=True)
    for size in ((120, 40), (60, 20), (20, 5)):
        async with opened(recipe, size=size) as (app, pilot, _):
            await press(pilot, "3", "x", "a", "g", "n", "d", "enter")
            if isinstance(app.screen, CallsScreen):
                await press(pilot, "escape")
            if size == (120, 40):
                await press(pilot, "d", "g", "g", "a")
                words = {"ddp": "bucket 0", "single": "one rank", "fsdp2:full_shard": "all-"}[strategy]
                assert words in app.text()


async def test_no_run_partial_data_and_a_foreign_recording() -> None:
    """Before any step, without structures, with ranks missing: a sentence and no exception."""
    for recipe in (CommRecipe(ranks=2, steps=0), CommRecipe(ranks=2, steps=1)):
        async with opened(recipe) as (app, pilot, _):
            await press(pilot, "3", "n", "enter", "g", "g", "x", "y", "d")
            assert "none measured yet" in app.text() or "nothing yet" in app.text()
    async with opened(RECIPES[2]) as (app, pilot, world):
        source = next(iter(world.sources.values()))
        for rank in source.state.ranks.values():
            rank.structure = None
            rank.hello = None
        source.state.version += 1
        await until(pilot, lambda: app.snapshot is not None and app.snapshot.view.ranks[0].hello is None)
        await press(pilot, "3", "g")
        assert "host not known" in app.text()
        assert "unit 0" in app.text()


async def test_resizing_while_it_goes_on() -> None:
    """From very small to very large, and nothing is drawn beyond its place."""
    async with opened(RECIPES[64]) as (app, pilot, _):
        await press(pilot, "3")
        for size in ((20, 5), (40, 12), (60, 20), (80, 24), (120, 40), (200, 60), (300, 80)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            check_fits(app)
