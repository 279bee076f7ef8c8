"""Collectives per rank and unit: every figure against sums and medians worked out here, in plain Python, from the messages."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np
import pytest

from fsdp_tui.telemetry.bandwidth import bus_factor
from fsdp_tui.telemetry.collectives import NO_UNIT
from fsdp_tui.telemetry.grid import METRICS, CommGrid, Metric, Place, Selection
from fsdp_tui.telemetry.messages import Comm, Unit
from fsdp_tui.telemetry.state import RunState

from .messages_for_tests import bucket_comm, hello, launched, step, structure

AG, RS, AR = 0, 1, 2
FORWARD, BACKWARD, OTHER = 0, 1, 2
Call = tuple[int, int, int, int, int]
"""(unit, kind, phase, group, bytes)"""
CALLS: list[Call] = [
    (0, AG, FORWARD, 0, 400),
    (1, AG, FORWARD, 0, 200),
    (1, AG, FORWARD, 0, 200),  # a second micro-batch
    (1, AG, BACKWARD, 0, 200),
    (1, RS, BACKWARD, 0, 300),
    (0, RS, BACKWARD, 0, 600),
    (NO_UNIT, AR, OTHER, 0, 4),
]
UNITS = (Unit("<root>", 100, 200, 400), Unit("blocks.0", 50, 100, 200))


def message(rank: int, number: int, calls: Sequence[Call], duration: Sequence[int], exposed: Sequence[int]) -> Comm:
    return Comm(
        rank=rank,
        seq=number,
        step=number,
        unit=[call[0] for call in calls],
        kind=[call[1] for call in calls],
        phase=[call[2] for call in calls],
        group=[call[3] for call in calls],
        nbytes=[call[4] for call in calls],
        duration_ns=list(duration),
        exposed_ns=list(exposed),
    )


class Made:
    """A run whose every duration is known here: `duration[step][rank][call]`."""

    def __init__(
        self,
        *,
        ranks: int = 4,
        steps: int = 9,
        groups: Sequence[Sequence[int]] | None = None,
        seed: int = 1,
        unknown: Iterable[tuple[int, int, int]] = (),
    ) -> None:
        """`unknown`: (step, rank, call) whose times were not measured."""
        chance = random.Random(seed)
        self.ranks, self.numbers = ranks, list(range(2, steps + 1))
        self.duration = {
            number: [[chance.randrange(1_000, 9_000) for _ in CALLS] for _ in range(ranks)]
            for number in range(1, steps + 1)
        }
        self.exposed = {
            number: [[value // chance.choice([2, 3, 5]) for value in row] for row in rows]
            for number, rows in self.duration.items()
        }
        for number, rank, call in unknown:
            self.duration[number][rank][call] = self.exposed[number][rank][call] = -1
        self.groups = groups or [list(range(ranks))]
        self.state = RunState()
        self.state.apply(launched(ranks))
        for rank in range(ranks):
            self.state.apply(hello(rank, ranks))
            self.state.apply(structure(rank, units=UNITS, groups=tuple(tuple(group) for group in self.groups)))
        for number in range(1, steps + 1):
            for rank in range(ranks):
                self.state.apply(step(rank, number))
                self.state.apply(message(rank, number, CALLS, self.duration[number][rank], self.exposed[number][rank]))

    def chosen(self, selection: Selection, unit: int | None = None) -> list[int]:
        return [
            at
            for at, (owner, kind, phase, _, _) in enumerate(CALLS)
            if kind in selection.kinds and phase in selection.phases and unit in (None, owner)
        ]

    def expected(self, metric: Metric, selection: Selection, rank: int, unit: int | None = None) -> float | None:
        """Of one unit, or of all; None: no such calls."""
        calls = self.chosen(selection, unit)
        if not calls:
            return None
        per_step: list[float] = []
        for number in self.numbers:
            spent = self.duration[number]
            if metric == "duration":
                per_step.append(sum(spent[rank][at] for at in calls))
            elif metric == "exposed":
                per_step.append(sum(self.exposed[number][rank][at] for at in calls))
            elif metric == "lateness":
                per_step.append(sum(max(row[at] for row in spent) - spent[rank][at] for at in calls))
            else:
                carried = sum(CALLS[at][4] * bus_factor(CALLS[at][1], self.ranks) for at in calls)
                per_step.append(carried / sum(spent[rank][at] for at in calls) * 1e9)
        return median(per_step)


SELECTIONS = {
    "all": Selection(),
    "all-gather": Selection(kinds=(AG,)),
    "reduce-scatter": Selection(kinds=(RS,)),
    "forward": Selection(phases=(FORWARD,)),
    "all-gather in backward": Selection((AG,), (BACKWARD,)),
}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_figures_per_rank_and_unit(metric: Metric, selection: Selection) -> None:
    """Sums over the calls of a step, then the median over the steps without the first."""
    made = Made()
    grid = made.state.view().grid
    assert [place.name for place in grid.places] == ["<root>", "blocks.0", ""]
    figures = grid.figures(metric, selection)
    assert figures.steps == 8
    for rank in range(4):
        for at, place in enumerate(grid.places):
            wanted = made.expected(metric, selection, rank, place.unit)
            assert figures.absent[rank, at] == (wanted is None)
            if wanted is None:
                assert np.isnan(figures.cells[rank, at])
            else:
                assert figures.cells[rank, at] == pytest.approx(wanted)
        assert figures.by_rank[rank] == pytest.approx(made.expected(metric, selection, rank))


def test_a_time_that_was_not_measured_is_left_out_of_its_median_and_is_never_0() -> None:
    """Rank 2 does not know one all-gather of step 5; of rank 3 no reduce-scatter of the root is known at all."""
    made = Made(unknown=[(5, 2, 0), *((number, 3, 5) for number in range(1, 10))])
    grid = made.state.view().grid
    gathers = grid.figures("duration", Selection(kinds=(AG,)))
    known = [made.duration[number][2][0] for number in made.numbers if number != 5]
    assert gathers.cells[2, 0] == median(known)
    reduces = grid.figures("duration", Selection(kinds=(RS,)))
    assert np.isnan(reduces.cells[3, 0])
    assert not reduces.absent[3, 0]
    assert np.isnan(reduces.by_rank[3])
    # Nobody knows who was late into a call that one rank has not timed.
    assert np.isnan(grid.figures("lateness", Selection(kinds=(RS,))).cells[:, 0]).all()


def test_with_each_step_the_figures_move_on() -> None:
    """Steps that were reduced for the picture before are used again, and give what a new reducer gives; a picture that is
    kept stays as it is."""
    made = Made(steps=6)
    state = RunState.load(made.state.dump())
    before = state.view().grid
    kept = before.figures("exposed").cells.copy()
    longer = Made(steps=9)
    for number in (7, 8, 9):
        for rank in range(4):
            state.apply(step(rank, number))
            state.apply(message(rank, number, CALLS, longer.duration[number][rank], longer.exposed[number][rank]))
        grid = state.view().grid
        assert grid is state.view().grid
        fresh = RunState.load(state.dump()).view().grid
        for metric in METRICS:
            assert np.array_equal(grid.figures(metric).cells, fresh.figures(metric).cells, equal_nan=True)
    assert np.array_equal(before.figures("exposed").cells, kept)
    assert before.steps == 5


def test_what_was_added_up_ahead_is_not_added_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are then medians of what there is, and the same."""
    made = Made()
    grid, fresh = made.state.view().grid, RunState.load(made.state.dump()).view().grid
    for selection in SELECTIONS.values():
        grid.add_up("lateness", selection)
    reduce, reduced = CommGrid._reduce_some, []

    def counted(self: CommGrid, *about: Any) -> Any:
        reduced.append(self)
        return reduce(self, *about)

    monkeypatch.setattr(CommGrid, "_reduce_some", counted)
    for selection in SELECTIONS.values():
        own, other = grid.figures("lateness", selection), fresh.figures("lateness", selection)
        assert np.array_equal(own.cells, other.cells, equal_nan=True)
        assert np.array_equal(own.by_rank, other.by_rank, equal_nan=True)
    assert reduced == [fresh] * len(SELECTIONS)


def test_other_groups_are_other_calls() -> None:
    """Nobody waits for a rank that is alone; from when it is not, the same calls have lateness."""
    made = Made(groups=[[0], [1], [2], [3]])
    assert made.state.view().grid.figures("lateness").absent.all()
    together = Made(steps=10)
    for rank in range(4):
        made.state.apply(structure(rank, units=UNITS, groups=((0, 1, 2, 3),)))
        made.state.apply(step(rank, 10))
        made.state.apply(message(rank, 10, CALLS, together.duration[10][rank], together.exposed[10][rank]))
    assert not made.state.view().grid.figures("lateness").absent.any()


def hybrid(late_ns: int) -> RunState:
    """2 x 2: shard groups (0, 1) and (2, 3), replicas (0, 2) and (1, 3). Rank 1 is late by so much."""
    state = RunState()
    state.apply(launched(4))
    for rank in range(4):
        shards, replicas = ((0, 1), (2, 3))[rank // 2], ((0, 2), (1, 3))[rank % 2]
        state.apply(hello(rank, 4))
        state.apply(structure(rank, units=UNITS, groups=(shards, replicas)))
    calls: list[Call] = [(0, AG, FORWARD, 0, 400), (0, RS, BACKWARD, 0, 200), (0, AR, BACKWARD, 1, 100)]
    for number in range(1, 6):
        for rank in range(4):
            # Rank 0 waits for rank 1 when it gathers, and rank 3 when it reduces over the replicas.
            times = [100 + (late_ns if rank == 0 else 0), 50, 20 + (late_ns if rank == 3 else 0)]
            state.apply(step(rank, number))
            state.apply(message(rank, number, calls, times, times))
    return state


def test_one_delay_in_both_groups_of_a_hybrid_strategy_counts_once() -> None:
    """The partner in the other group waits for the same delay: 700 ns, not 1,400."""
    figures = hybrid(700).view().grid.figures("lateness")
    assert figures.cells[:, 0].tolist() == [0, 700, 0, 0]
    assert figures.by_rank.tolist() == [0, 700, 0, 0]


def test_bandwidth_counts_what_each_groups_link_carries() -> None:
    """400 B gathered and 200 B reduced by 2 ranks: half of each; 100 B all-reduced by 2: all of it; in 170 ns."""
    state = RunState()
    for rank in range(4):
        state.apply(hello(rank, 4))
        state.apply(structure(rank, units=UNITS, groups=(((0, 1), (2, 3))[rank // 2], ((0, 2), (1, 3))[rank % 2])))
        for number in (1, 2):
            state.apply(step(rank, number))
    calls: list[Call] = [(0, AG, FORWARD, 0, 400), (0, RS, BACKWARD, 0, 200), (0, AR, BACKWARD, 1, 100)]
    for rank in range(4):
        state.apply(message(rank, 2, calls, [100, 50, 20], [0, 0, 0]))
    figures = state.view().grid.figures("bandwidth")
    assert figures.cells[:, 0].tolist() == pytest.approx([(200 + 100 + 100) / 170e-9] * 4)
    assert figures.worst_is_low


def test_a_group_that_is_not_known_has_no_bandwidth() -> None:
    """Nobody can say what a link carried; how long it took is known."""
    made = Made(groups=[[]])
    grid = made.state.view().grid
    assert np.isnan(grid.figures("bandwidth").cells).all()
    assert np.isnan(grid.figures("lateness").cells).all()
    assert np.isfinite(grid.figures("duration").cells).all()


def with_buckets() -> RunState:
    """DDP; rank 0 waits 400 ns in each step, rank 1 100, 200, 300, 400."""
    state = RunState()
    state.apply(launched(2, "ddp"))
    for rank in range(2):
        state.apply(hello(rank))
        state.apply(structure(rank, effective="ddp", units=(), buckets=(700, 300)))
        for number in range(1, 5):
            state.apply(step(rank, number))
    for number in range(1, 5):
        for rank in range(2):
            state.apply(bucket_comm(rank, number, reductions=(1_000, 400 if rank == 0 else 100 * number)))
    return state


def test_buckets_are_known_together() -> None:
    """DDP: single buckets have bytes and no times; the rank that waits least after its backward came last."""
    grid = with_buckets().view().grid
    assert [place.name for place in grid.places] == ["buckets", "bucket 0", "bucket 1"]
    exposed = grid.figures("exposed")
    assert exposed.cells[:, 0].tolist() == [400, 300]  # steps 2 to 4: 200, 300, 400
    assert np.isnan(exposed.cells[:, 1:]).all()
    assert not exposed.absent.any()
    assert exposed.by_rank.tolist() == [400, 300]
    assert grid.figures("lateness").cells[:, 0].tolist() == [0, 100]
    assert grid.figures("bandwidth").cells[:, 0].tolist() == pytest.approx([1_000 * bus_factor(AR, 2) / 1_000e-9] * 2)
    assert grid.figures("exposed", Selection(kinds=(AG,))).absent.all()
    (together,) = grid.calls(1, grid.places[0])
    assert (together.calls, together.nbytes, together.duration_ns, together.exposed_ns) == (2, 1_000, 1_000, 300)
    assert (together.late_ns, together.median_ns, together.overlapped_ns) == (100, None, 700)
    (single,) = grid.calls(1, grid.places[2])
    assert (single.nbytes, single.duration_ns, single.exposed_ns) == (300, None, None)


def test_what_a_rank_calls_in_a_unit() -> None:
    """Two gathers in forward: the median of a call is that of half their time, bytes and times are of the step."""
    made = Made()
    grid = made.state.view().grid
    figures = grid.calls(3, grid.places[1])
    assert [(one.kind, one.phase, one.calls, one.nbytes) for one in figures] == [
        (AG, FORWARD, 2, 400),
        (AG, BACKWARD, 1, 200),
        (RS, BACKWARD, 1, 300),
    ]
    together = [made.duration[number][3][1] + made.duration[number][3][2] for number in made.numbers]
    gather = figures[0]
    assert gather.duration_ns == int(median(together))
    assert gather.median_ns == int(median(together) / 2)
    assert gather.algbw_bytes_per_s == pytest.approx(400 / (median(together) * 1e-9))
    assert gather.busbw_bytes_per_s == pytest.approx(400 / (median(together) * 1e-9) * 3 / 4)
    assert gather.late_ns == int(made.expected("lateness", Selection((AG,), (FORWARD,)), 3, 1) or 0)
    assert gather.group_size == 4


def test_all_calls_of_a_rank_in_a_unit_have_a_median_of_their_own() -> None:
    """Of the sums of each step, which is not the sum of the calls' medians."""
    made = Made()
    grid = made.state.view().grid
    whole = grid.together(2, grid.places[1])
    assert whole is not None
    every = Selection()
    assert (whole.calls, whole.nbytes, whole.median_ns) == (4, 900, None)
    assert whole.duration_ns == int(made.expected("duration", every, 2, 1) or 0)
    assert whole.exposed_ns == int(made.expected("exposed", every, 2, 1) or 0)
    assert whole.late_ns == int(made.expected("lateness", every, 2, 1) or 0)
    assert whole.busbw_bytes_per_s == pytest.approx(made.expected("bandwidth", every, 2, 1))
    assert whole.algbw_bytes_per_s == pytest.approx(900 / (made.expected("duration", every, 2, 1) or 1) * 1e9)
    assert grid.together(9, grid.places[1]) is None


def test_a_single_figure_is_that_of_the_whole_grid() -> None:
    """Of a hybrid strategy and of DDP too; worked out alone, for nobody has asked for all ranks'."""
    for made in (Made(unknown=[(4, 1, 2)]).state, hybrid(700), with_buckets()):
        grid = made.view().grid
        alone = {(rank, place): grid.together(rank, place) for rank in range(grid.ranks) for place in grid.places}
        assert any(alone.values())
        for metric in METRICS:
            grid.figures(metric)
        for (rank, place), found in alone.items():
            assert grid.together(rank, place) == found


def test_a_rank_that_makes_no_call_is_absent_and_not_0() -> None:
    """Rank 0 alone reduces something at the end of the step."""
    state = RunState()
    for rank in range(2):
        state.apply(hello(rank))
        state.apply(structure(rank, units=UNITS))
        for number in (1, 2, 3):
            state.apply(step(rank, number))
    both: list[Call] = [(0, AG, FORWARD, 0, 400)]
    for number in (2, 3):
        state.apply(message(0, number, [*both, (NO_UNIT, AR, OTHER, 0, 4)], [100, 7], [100, 7]))
        state.apply(message(1, number, both, [90], [90]))
    grid = state.view().grid
    figures = grid.figures("duration")
    assert figures.absent.tolist() == [[False, False], [False, True]]
    assert figures.by_rank.tolist() == [107, 90]
    assert grid.calls(1, Place("", NO_UNIT)) == []


def test_nothing_yet() -> None:
    """No step has been told of: no places, and no figures."""
    grid = CommGrid()
    assert (grid.places, grid.ranks, grid.steps) == ((), 0, 0)
    assert grid.figures("lateness").cells.shape == (0, 0)
    assert RunState().view().grid.places == ()
