"""The map of a run's collectives: its cells, sums and words against the arrival times that the run was made of."""

from __future__ import annotations

from statistics import median, median_low

import numpy as np
import pytest

from fsdp_tui.telemetry.bandwidth import bus_factor
from fsdp_tui.telemetry.grid import METRICS, Metric
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.widgets.chart import Row, row_text
from fsdp_tui.tui.widgets.commmap import (
    Choice,
    CommMap,
    Spot,
    call_columns,
    comm_map,
    spot_words,
    stragglers,
    unit_columns,
    write_waiting,
)
from tests.tui.comm_runs import AG, AR, BACKWARD, FORWARD, ROOT, RS, CommRecipe

RECIPE = CommRecipe(ranks=16, blocks=5, steps=8, late_rank=11, slow_unit=3, clips=True)


@pytest.fixture(scope="module")
def run() -> RunView:
    return RECIPE.state().view()


def figure(recipe: CommRecipe, choice: Choice, rank: int, unit: int | None) -> float:
    """One cell, or a rank's sum, in ns or bytes per second: sums of a step's calls, the median over the steps."""
    calls = [
        call
        for call in recipe.calls()
        if choice.kind in (None, call[1]) and choice.phase in (None, call[2]) and unit in (None, call[0])
    ]
    per_step = []
    for number in range(2, recipe.steps + 1):
        spent = [recipe.duration_ns(rank, call, number) for call in calls]
        if choice.metric == "lateness":
            longest = [
                max(recipe.duration_ns(other, call, number) for other in recipe.group_of(rank, call)) for call in calls
            ]
            per_step.append(float(sum(longest) - sum(spent)))
        elif choice.metric == "exposed":
            per_step.append(float(sum(recipe.exposed_ns(rank, call, number) for call in calls)))
        elif choice.metric == "duration":
            per_step.append(float(sum(spent)))
        else:
            carried = sum(recipe.nbytes(call) * bus_factor(call[1], len(recipe.group_of(rank, call))) for call in calls)
            per_step.append(carried / sum(spent) * 1e9)
    return median(per_step)


def unit_of(found: CommMap) -> float:
    """What the map's numbers are in."""
    units = {unit.name: unit.size for unit in (*fmt.NANOSECONDS, *fmt.BYTES)}
    return units[found.chart.unit.removesuffix("/s")]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("kind", "phase"), [(None, None), (AG, None), (RS, None), (None, FORWARD), (AG, BACKWARD)])
def test_cells_and_sums(run: RunView, metric: Metric, kind: int | None, phase: int | None) -> None:
    """Each as it is worked out from the recipe, in the unit that the title names."""
    choice = Choice(metric, kind, phase)
    found = comm_map(run, choice, range(16))
    names = [*RECIPE.names(), "no unit"] if kind is None and phase is None else RECIPE.names()
    assert list(found.chart.columns) == names
    assert list(found.chart.rows) == [str(rank) for rank in range(16)]
    size = unit_of(found)
    for rank in range(16):
        for at, name in enumerate(names):
            unit = -1 if name == "no unit" else RECIPE.names().index(name)
            assert found.chart.cells[rank, at] * size == pytest.approx(figure(RECIPE, choice, rank, unit))
    assert found.chart.foot is not None
    whole = [
        found.chart.cells[:, at].max() if metric == "lateness" else found.chart.cells[:, at].mean()
        for at in range(len(names))
    ]
    assert found.chart.foot.tolist() == pytest.approx(whole)
    assert found.chart.unit in found.title(200)
    assert "median of 7 steps" in found.title(200)


def test_sums_are_of_the_whole_rank(run: RunView) -> None:
    """In a unit of their own: a sum over many units is larger than a cell."""
    found = comm_map(run, Choice(), range(16))
    assert found.chart.sums is not None
    assert found.chart.sums_title == "Σ ms"
    for rank in range(16):
        assert found.chart.sums[rank] * 1e6 == pytest.approx(figure(RECIPE, Choice(), rank, None))


def test_of_a_node_a_cell_is_its_worst_rank(run: RunView) -> None:
    """Ranks 0 to 7 are on node0, the others on node1; and the cell's rank is that one."""
    for metric in ("lateness", "bandwidth"):
        choice = Choice(metric, group="node")
        found = comm_map(run, choice, range(16))
        assert list(found.chart.rows) == ["node0", "node1"]
        for node in range(2):
            ranks = range(node * 8, node * 8 + 8)
            for at, name in enumerate(RECIPE.names()):
                figures = {rank: figure(RECIPE, choice, rank, RECIPE.names().index(name)) for rank in ranks}
                worst = (min if metric == "bandwidth" else max)(figures, key=lambda rank: figures[rank])
                assert found.chart.cells[node, at] * unit_of(found) == pytest.approx(figures[worst])
                assert found.spot(node, at) == Spot(worst, at)


def test_with_units_as_rows_ranks_are_the_columns(run: RunView) -> None:
    """The same cells, turned."""
    upright, turned = comm_map(run, Choice(), range(16)), comm_map(run, Choice(group="unit"), range(16))
    assert np.array_equal(turned.chart.cells, upright.chart.cells.T)
    assert turned.chart.rows == upright.chart.columns
    assert turned.spot(2, 11) == upright.spot(11, 2) == Spot(11, 2)
    assert turned.cell_of(Spot(11, 2)) == (2, 11)
    assert np.array_equal(turned.chart.sums, upright.chart.foot)  # type: ignore[arg-type]


def test_worst_first(run: RunView) -> None:
    """The late rank leads."""
    found = comm_map(run, Choice(order="worst first"), range(16))
    assert found.chart.rows[0] == "11"
    assert found.chart.sums is not None
    assert (np.diff(found.chart.sums) <= 0).all()
    slow = comm_map(run, Choice("bandwidth", order="worst first"), range(16))
    assert slow.chart.sums is not None
    assert (np.diff(slow.chart.sums) >= 0).all()


def test_only_the_ranks_and_units_that_are_asked_for(run: RunView) -> None:
    """And a word where none is left."""
    found = comm_map(run, Choice(), [3, 11], keep_unit=lambda name: name == "layers.1")
    assert (list(found.chart.rows), list(found.chart.columns)) == (["3", "11"], ["layers.1"])
    assert found.chart.cells[1, 0] * unit_of(found) == pytest.approx(figure(RECIPE, Choice(), 11, 2))
    assert comm_map(run, Choice(), []).chart.empty == "no rank matches"
    assert comm_map(run, Choice(kind=AR, phase=BACKWARD), range(16)).chart.cells.size == 0


def test_stragglers_are_who_stands_out_from_the_median_rank(run: RunView) -> None:
    """The late rank in the unit where it is latest, and nobody that is late by noise only."""
    found = comm_map(run, Choice(), range(16))
    behind = {}
    for at, name in enumerate(RECIPE.names()):
        unit = RECIPE.names().index(name)
        column = [figure(RECIPE, Choice(), rank, unit) for rank in range(16)]
        behind[at] = column[11] - median_low(column)
    assert stragglers(found.figures, found.ranks, found.places) == [Spot(11, max(behind, key=lambda at: behind[at]))]


def test_the_cell_in_one_line(run: RunView) -> None:
    """What is least needed gives way."""
    spot = Spot(11, 2)
    late = figure(RECIPE, Choice(), 11, 2)
    usual = median_low(figure(RECIPE, Choice(), rank, 2) for rank in range(16))
    said = spot_words(run, Choice(), spot)
    assert said == f"rank 11 · node1 · layers.1 · late {fmt.duration(late)} (median rank {fmt.duration(usual)})"
    assert spot_words(run, Choice(), spot, 60) == said.replace("node1 · ", "")
    assert spot_words(run, Choice(), spot, 40) == f"rank 11 · layers.1 · late {fmt.duration(late)}"
    assert spot_words(run, Choice(), Spot(99, 0)) == ""


def texts(rows: list[Row]) -> str:
    return " ".join(" ".join(row_text(row) for row in rows).split())


def test_who_is_waited_for(run: RunView) -> None:
    """Figures of the whole, with the verdict where there is one."""
    late = run.lateness
    assert late is not None
    assert late.rank == 11
    said = texts(write_waiting(run, 80, 20))
    assert f"rank 11 is waited for most: {fmt.duration(late.ns)} per step" in said
    assert f"exposed {fmt.duration(run.comm.exposed_ns)}" in said
    assert "all-gather" in said
    assert "reduce-scatter" in said
    assert "compute waits longest at layers.2" in said  # the slow unit, the fourth with the root
    for height in range(1, 12):
        rows = write_waiting(run, 60, height)
        assert 1 <= len(rows) <= height
        assert "rank 11" in row_text(rows[0])


def test_a_straggler_is_the_verdicts() -> None:
    """With enough steps its reason and advice are there."""
    view = CommRecipe(ranks=4, blocks=8, steps=30, late_rank=2).state().view()
    assert "straggler" in {verdict.kind for verdict in view.verdicts}
    said = texts(write_waiting(view, 90, 20))
    assert "the others wait for rank 2" in said
    assert "it begins at" in said
    assert "compare the link of rank 2" in said
    assert comm_map(view, Choice(), range(4)).chart.flags == ["", "", "warn", ""]


def test_calls_of_a_cell(run: RunView) -> None:
    """Bytes of the step, and the median of a call."""
    calls = run.grid.calls(11, run.grid.places[1])
    columns = {column.title: list(column.cells) for column in call_columns(calls)}
    assert [str(cell[0]) for cell in columns["collective"]] == [
        "all-gather fwd",
        "all-gather bwd",
        "reduce-scatter bwd",
    ]
    assert columns["bytes"] == [fmt.size(RECIPE.nbytes((1, AG, FORWARD)))] * 3
    spent = median(RECIPE.duration_ns(11, (1, RS, BACKWARD), number) for number in range(2, 9))
    assert columns["a call"][2] == fmt.duration(spent)
    assert columns["S/t"][2] == fmt.bandwidth(RECIPE.nbytes((1, RS, BACKWARD)) / int(spent) * 1e9)


def test_units_of_a_rank(run: RunView) -> None:
    """Every place with what the rank spends there."""
    columns = {column.title: list(column.cells) for column in unit_columns(run, 11)}
    assert columns["unit"] == [*RECIPE.names(), "no unit"]
    for at in range(5):
        assert columns["late"][at][0] == fmt.duration(figure(RECIPE, Choice(), 11, at))
        assert columns["duration"][at][0] == fmt.duration(figure(RECIPE, Choice("duration"), 11, at))
        assert columns["calls"][at] == "3"


def test_replicas_of_a_hybrid_strategy() -> None:
    """The delay that both groups wait for counts once; all-reduce is a kind of its own."""
    recipe = CommRecipe(ranks=4, blocks=3, steps=6, shards_of=2, late_rank=2)
    view = recipe.state().view()
    assert view.grid.kinds() == (AG, RS, AR)
    found = comm_map(view, Choice(kind=AR), range(4))
    assert list(found.chart.columns) == recipe.names()
    choice = Choice(kind=AR)
    for rank in range(4):
        assert found.chart.cells[rank, 1] * unit_of(found) == pytest.approx(figure(recipe, choice, rank, 1))
    whole = comm_map(view, Choice(), range(4))
    shards = [
        [
            sum(
                max(recipe.duration_ns(other, call, number) for other in recipe.group_of(2, call))
                - recipe.duration_ns(2, call, number)
                for call in recipe.calls()
                if call[0] == 1 and (call[1] == AR) == replicas
            )
            for replicas in (False, True)
        ]
        for number in range(2, 7)
    ]
    assert whole.chart.cells[2, 1] * unit_of(whole) == pytest.approx(median(max(pair) for pair in shards))


def test_buckets_instead_of_units() -> None:
    """Together they have times, one by one they have not."""
    recipe = CommRecipe(ranks=2, steps=6, strategy="ddp")
    view = recipe.state().view()
    found = comm_map(view, Choice("exposed"), range(2))
    assert list(found.chart.columns) == ["buckets", "bucket 0", "bucket 1", "bucket 2"]
    waited = [median(recipe.reduction_ns(rank, number) // 2 for number in range(2, 7)) for rank in range(2)]
    assert (found.chart.cells[:, 0] * unit_of(found)).tolist() == pytest.approx(waited)
    assert np.isnan(found.chart.cells[:, 1:]).all()
    assert not found.chart.absent.any()
    assert "the buckets" in texts(write_waiting(view, 100, 20))


def test_what_is_not_known_is_not_0() -> None:
    """One rank does not know how long compute waited at one unit."""
    recipe = CommRecipe(ranks=4, blocks=3, steps=6, untimed=(1, 2))
    found = comm_map(recipe.state().view(), Choice("exposed"), range(4))
    assert np.isnan(found.chart.cells[1, 2])
    assert np.isnan(found.chart.sums[1])  # type: ignore[index]
    assert not found.chart.absent[1, 2]
    assert np.isfinite(np.delete(found.chart.cells, 1, axis=0)).all()
    assert spot_words(recipe.state().view(), Choice("exposed"), Spot(1, 2)).startswith(
        "rank 1 · node0 · layers.1 · exposed – "
    )


def test_one_rank_has_nobody() -> None:
    """It says so, also where its strategy makes calls to itself."""
    for strategy in ("single", "fsdp2:full_shard"):
        view = CommRecipe(ranks=1, steps=4, strategy=strategy).state().view()
        found = comm_map(view, Choice(), [0])
        assert found.chart.cells.size == 0
        assert found.chart.empty == "one rank: there is nobody to communicate with"
        assert write_waiting(view, 80, 5)


def test_before_the_first_full_step() -> None:
    """No places yet, and a reason."""
    view = CommRecipe(ranks=2, steps=1).state().view()
    assert (
        comm_map(view, Choice(), range(2)).chart.empty == "none measured yet: they are counted from the second step on"
    )
    assert ROOT in {unit.name for unit in view.units}
