"""Advice on runs whose peaks and speeds are made up here, and samples where nobody counts tokens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from fsdp_tui.telemetry.advice import advise, left_out
from fsdp_tui.telemetry.messages import Step
from fsdp_tui.telemetry.report import show
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.telemetry.view import RunView

from .messages_for_tests import column, hello, launched, step, structure

SECOND = 1_000_000_000


def a_run(
    peak: int,
    step_ns: int,
    *,
    tokens: int | None = 100,
    device: str = "cuda:0",
    params: int = 500,
    losses: Sequence[float] = (4.0, 3.0, 2.0, 1.0),
) -> RunView:
    """Two ranks, four steps of 32 samples each."""
    state = RunState()
    state.apply(launched(2, "fsdp2:full_shard"))
    for rank in range(2):
        state.apply(msgspec.structs.replace(hello(rank), device=device))
        state.apply(msgspec.structs.replace(structure(rank), params=params))
    for number in range(1, 5):
        for rank in range(2):
            one: Step = msgspec.structs.replace(
                step(rank, number, memory=column(param_shard=10), peak=column(param_shard=peak - rank)),
                step_ns=step_ns,
                tokens=tokens,
                samples=32,
                loss=losses[number - 1],
                metrics={"lr": 0.5 + rank} if number < 4 else {},
            )
            state.apply(one)
    return state.view()


NAMES = ["a", "b", "c"]


def test_the_extremes_and_the_trade() -> None:
    """c loses 10 % of a's speed for half of its memory, b 75 % for a little more: 1.11 x 1.25 < 4 x 1 < 1 x 2.5."""
    runs = [a_run(1000, SECOND), a_run(400, 4 * SECOND), a_run(500, int(SECOND / 0.9))]
    advice = advise(runs, NAMES)
    assert advice is not None
    assert (advice.fastest, advice.smallest, advice.trade) == (0, 1, 2)
    assert advice.text == (
        "a is the fastest that fits, b the smallest: 60 % less memory for 75 % less speed;"
        " the best trade is c: 50 % less memory for 10 % less speed"
    )


def test_one_that_is_both() -> None:
    advice = advise([a_run(1000, SECOND), a_run(400, SECOND // 2)], NAMES)
    assert advice is not None
    assert advice.text == "b is the fastest and the smallest: nothing speaks for another"


def test_alike_is_not_told_apart() -> None:
    """a is 2 % faster than b and needs twice the memory: nobody would choose it."""
    advice = advise([a_run(1000, SECOND), a_run(500, int(SECOND * 1.02))], NAMES)
    assert advice is not None
    assert advice.fastest == advice.smallest == 1
    assert advice.text == "b is the fastest and the smallest, within 3 %: nothing speaks for another"


def test_a_run_whose_loss_is_lost_is_no_choice() -> None:
    """a is the fastest and the smallest, and trains nothing from step 3 on; where it came back, it is a choice."""
    nan = float("nan")
    lost = a_run(100, SECOND // 9, losses=(4.0, 3.0, nan, nan))
    advice = advise([lost, a_run(1000, SECOND), a_run(400, SECOND // 2)], NAMES)
    assert advice is not None
    assert (advice.fastest, advice.smallest, advice.trade) == (2, 2, 2)
    out = "a is left out: its loss is no number (nan) from step 3 on"
    assert advice.text == f"c is the fastest and the smallest: nothing speaks for another; {out}"
    assert advise([lost, a_run(1000, SECOND)], NAMES) is None
    assert left_out([lost, a_run(1000, SECOND)], NAMES) == out
    back = a_run(100, SECOND // 9, losses=(4.0, float("inf"), 2.0, 1.0))
    advice = advise([back, a_run(1000, SECOND)], NAMES)
    assert advice is not None
    assert advice.text == "a is the fastest and the smallest: nothing speaks for another"


def test_times_of_a_cpu_are_said_to_be() -> None:
    advice = advise([a_run(1000, SECOND, device="cpu"), a_run(400, SECOND // 2, device="cpu")], NAMES)
    assert advice is not None
    assert advice.text.endswith("these are times of a CPU, and on GPUs the order may be another")


@pytest.mark.parametrize(
    "other",
    [a_run(500, SECOND, params=501), a_run(500, SECOND, tokens=None), a_run(500, 0)],
    ids=["model", "unit", "unknown"],
)
def test_what_cannot_be_compared_is_not(other: RunView) -> None:
    assert advise([a_run(1000, SECOND), other], NAMES) is None


def test_samples_where_no_tokens_are_counted() -> None:
    """Two ranks x 32 in two seconds; logged figures are means over ranks of the newest that each has."""
    run = a_run(10, 2 * SECOND, tokens=None)
    assert run.throughput.unit == "samples/s"
    assert run.throughput.per_s == pytest.approx(32.0)
    document = show(run)
    assert (document["tokens_per_s"], document["samples_per_s"]) == (None, pytest.approx(32.0))
    assert document["metrics"] == {"lr": 1.0}
    assert a_run(10, 2 * SECOND).throughput.unit == "tokens/s"


def test_a_snapshot_from_before_samples_were_counted_goes_on() -> None:
    state = RunState()
    state.apply(step(0, 1))
    state.samples = []
    state = RunState.load(state.dump())
    state.apply(step(0, 2))
    assert len(state.view().series.samples_per_s) == 2
