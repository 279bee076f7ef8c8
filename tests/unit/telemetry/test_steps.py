"""What the newest steps of each rank took, against medians of plain lists."""

from __future__ import annotations

import random
from statistics import median

import msgspec

from fsdp_tui.telemetry.messages import PHASES, Step
from fsdp_tui.telemetry.state import (
    COMM_WINDOW,
    LEAST_COMM_WINDOW,
    LEAST_STEP_WINDOW,
    STEP_ROWS,
    STEP_WINDOW,
    RunState,
    comm_window,
    step_window,
)
from fsdp_tui.telemetry.steps import StepFigures
from fsdp_tui.telemetry.view import STATISTICAL
from tests.unit.telemetry.messages_for_tests import step


def a_step(rank: int, number: int, chance: random.Random) -> Step:
    """Of a rank of its own pace; the checkpoint is known now and then, and an old rank does not tell of it at all."""
    phases: list[int | None] = [chance.randrange(100) for _ in PHASES[:5]]
    if rank:
        phases.append(chance.choice((None, 7)))
    made = step(rank, number, step_ns=chance.randrange(1_000), phases=tuple(phases))
    return msgspec.structs.replace(made, overhead_ns=chance.randrange(50))


def expected(steps: list[Step]) -> StepFigures:
    """By the definition; the first step is in no median."""

    def middle(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return int(median(known)) if known else None

    window = steps[1:][-step_window(3) :]
    rows = [[*one.phases_ns, None][: len(PHASES)] for one in window or steps]
    return StepFigures(
        middle([one.step_ns for one in window]),
        middle([one.overhead_ns for one in window]),
        tuple(middle([row[at] for row in rows]) for at in range(len(PHASES))),
    )


def test_medians_are_those_of_the_window() -> None:
    """However many steps come between two pictures, more than the window holds too, and when ranks differ."""
    chance, state = random.Random(1), RunState()
    said: dict[int, list[Step]] = {rank: [] for rank in range(3)}
    for steps in (1, 1, 2, 40, 1, 500, 1, 700, 3):
        for _ in range(steps):
            for rank, own in said.items():
                if rank < 2 or chance.random() < 0.5:
                    own.append(a_step(rank, len(own) + 1, chance))
                    state.apply(own[-1])
        for shown in state.view().ranks:
            found = StepFigures(shown.step_ns, shown.overhead_ns, shown.phases_ns)
            assert found == expected(said[shown.rank])


def test_a_rank_that_comes_later_is_in_the_medians_too() -> None:
    state = RunState()
    for number in range(1, 5):
        state.apply(step(0, number, step_ns=10 * number))
    assert state.view().ranks[0].step_ns == 30
    for number in range(1, 4):
        state.apply(step(1, number, step_ns=number))
    assert [rank.step_ns for rank in state.view().ranks] == [30, 2]


def test_many_ranks_keep_fewer_steps() -> None:
    """So that a thousand ranks fit into memory: never fewer than medians need."""
    assert step_window(1) == step_window(STEP_ROWS // STEP_WINDOW) == STEP_WINDOW
    assert step_window(128) == 128
    assert step_window(1_024) == LEAST_STEP_WINDOW
    state = RunState()
    for number in range(1, 200):
        for rank in range(256):
            state.apply(step(rank, number))
    assert {len(rank.window) for rank in state.ranks.values()} == {step_window(256)}


def test_many_calls_of_many_ranks_are_kept_for_fewer_steps() -> None:
    """But for enough that a statistic may speak, as long as there is memory for it."""
    assert comm_window(2 * 51) == COMM_WINDOW
    assert comm_window(64 * 240) == 41
    assert comm_window(1_024 * 99) == LEAST_COMM_WINDOW > STATISTICAL
    assert comm_window(1_024 * 600) == 4
