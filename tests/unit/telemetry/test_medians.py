"""Medians that follow their window: always what a new reducer makes of the same steps."""

from __future__ import annotations

import random
from statistics import mean, median

import msgspec
import numpy as np
import pytest

from fsdp_tui.telemetry.collectives import BACKWARD, FORWARD, median_known
from fsdp_tui.telemetry.messages import Comm
from fsdp_tui.telemetry.state import COMM_WINDOW, RunState

from .messages_for_tests import hello, launched, step, structure


def told(rank: int, number: int, chance: random.Random, calls: list[tuple[int, int, int]]) -> Comm:
    """Of each ten times, one was not measured."""
    times = [chance.choice([-1, *range(100, 1_000, 100)]) for _ in calls]
    return Comm(
        rank=rank,
        seq=number,
        step=number,
        unit=[call[0] for call in calls],
        kind=[call[1] for call in calls],
        phase=[call[2] for call in calls],
        group=[0] * len(calls),
        nbytes=[64] * len(calls),
        duration_ns=times,
        exposed_ns=times,
    )


def begun() -> RunState:
    """Two ranks before their first step."""
    state = RunState()
    state.apply(launched(2))
    for rank in range(2):
        state.apply(hello(rank))
        state.apply(structure(rank))
    return state


def test_followed_is_what_a_new_one_makes() -> None:
    """While the window fills, while its oldest steps leave, when calls come in another order, and when they change."""
    chance = random.Random(2)
    state = begun()
    calls = [(0, 0, 0), (1, 0, 0), (1, 0, 1), (1, 1, 1)]
    for number in range(1, 300):
        if number == 250:
            calls = [*calls, (0, 1, 1)]
        in_step = chance.sample(calls, len(calls)) if number % 7 == 0 else calls
        for rank in range(2):
            state.apply(step(rank, number))
            state.apply(told(rank, number, chance, in_step))
        if number % 10 == 0 or number < 5:
            fresh = RunState.load(state.dump()).view()
            view = state.view()
            assert view.units == fresh.units
            assert view.comm == fresh.comm
            assert [rank.exposed_ns for rank in view.ranks] == [rank.exposed_ns for rank in fresh.ranks]
            if number % 7:  # an order of calls of its own decides where lateness begins
                assert (view.lateness is None) == (fresh.lateness is None)
    assert len(state.comm_window) == COMM_WINDOW


def test_parts_of_an_older_picture_are_those_of_its_steps() -> None:
    """They are worked out when they are asked for, after which steps ever; against medians over what the ranks said."""
    state = begun()
    calls = [(1, 0, 0), (1, 0, 1), (1, 0, 1), (1, 1, 1)]
    chance = random.Random(4)
    said: dict[int, list[list[int]]] = {}
    views = {}
    for number in range(1, COMM_WINDOW + 60):
        for rank in range(2):
            times = [chance.randrange(100, 1_000) for _ in calls]
            said.setdefault(number, []).append(times)
            state.apply(step(rank, number))
            state.apply(msgspec.structs.replace(told(rank, number, chance, calls), duration_ns=times))
        if number in (20, COMM_WINDOW + 58):
            views[number] = state.view()
    for newest, view in views.items():
        gather = view.units[1].all_gather
        window = [said[number] for number in range(newest - view.grid.steps + 1, newest + 1)]
        assert (gather.in_phase(FORWARD).calls, gather.in_phase(BACKWARD).calls) == (1, 2)
        for part, chosen in ((gather.forward, (0,)), (gather.backward, (1, 2))):
            assert part.per_step == len(chosen)
            assert part.bytes == 64 * len(chosen)
            assert part.duration_ns == int(
                median(mean(sum(own[at] for at in chosen) for own in ranks) for ranks in window)
            )
            assert part.exposed_ns == gather.in_phase(FORWARD if chosen == (0,) else BACKWARD).exposed_ns
            for rank in range(2):
                waited = [sum(max(own[at] for own in ranks) - ranks[rank][at] for at in chosen) for ranks in window]
                assert part.late_ns[rank] == int(median(waited))


@pytest.mark.parametrize("steps", [1, 2, 7, 8])
def test_median_of_what_is_known(steps: int) -> None:
    """As numpy has it, row by row."""
    values = np.random.default_rng(3).normal(size=(5, 6, steps))
    assert np.array_equal(median_known(values), np.median(values, axis=-1))
    values[np.random.default_rng(4).random(values.shape) < 0.4] = np.nan
    for row, found in zip(values.reshape(-1, steps), median_known(values).ravel(), strict=True):
        known = row[np.isfinite(row)]
        assert np.isnan(found) if not known.size else found == pytest.approx(np.median(known))


def test_median_of_nothing() -> None:
    """Not known."""
    assert np.isnan(median_known(np.empty((3, 0)))).all()
