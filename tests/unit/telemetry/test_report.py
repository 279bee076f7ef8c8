"""show and compare: the keys of the contract, and numbers against the messages."""

from __future__ import annotations

import json

import pytest

from fsdp_tui.telemetry.messages import CATEGORIES, Ended
from fsdp_tui.telemetry.report import compare, equivalence, show
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.telemetry.view import RunView

from .messages_for_tests import column, comm, hello, launched, step, structure

CONTRACT = {
    "run": "id name state world_size backend device started_ns ended_ns exit_codes stop_rung steps",
    "strategy": "requested effective detail",
    "model": "params trainable_params param_bytes",
    "loss": "steps values",
    "step_ns": "median p95 first",
    "comm": "all_gather_bytes reduce_scatter_bytes all_reduce_bytes exposed_ns",
    "telemetry": "overhead_ns_per_step dropped bad_records probes",
}


def a_run(strategy: str = "fsdp2:full_shard", loss: float = 2.0, shard: int = 300, **options: str) -> RunView:
    state = RunState()
    state.apply(launched(2, strategy, **options))
    for rank in range(2):
        state.apply(hello(rank))
        state.apply(structure(rank, effective=strategy))
    for number in range(1, 4):
        for rank in range(2):
            memory = column(param_shard=shard, grad_shard=shard, optimizer=2 * shard)
            state.apply(step(rank, number, loss=loss / number, memory=memory))
            state.apply(comm(rank, number))
    state.apply(Ended(state="finished", ended_ns=9, exit_codes={"0": 0, "1": 0}))
    return state.view()


def test_show_has_the_keys_of_the_contract() -> None:
    """Other people's scripts rely on them."""
    document = show(a_run())
    for part, keys in CONTRACT.items():
        assert set(keys.split()) <= set(document[part]), part
    rank = document["ranks"][0]
    assert {"rank", "host", "pid", "device", "memory", "peak", "steps", "sent", "dropped"} <= set(rank)
    assert set(rank["memory"]) == {*CATEGORIES, "total"}
    gather = document["units"][0]["all_gather"]
    assert {"per_step", "bytes", "median_ns", "exposed_ns", "late_ns", "forward", "backward"} <= set(gather)


def test_three_strategies_of_a_script() -> None:
    """What the launch asked for, what the script's own call asked for, and what runs; each may be unknown."""
    state = RunState()
    state.apply(launched(2, ""))
    assert show(state.view())["strategy"] == {"requested": None, "script": None, "effective": None, "detail": {}}
    state.apply(structure(0, effective="fsdp2:full_shard", detail={"script": "fsdp2:shard_grad_op"}))
    found = show(state.view())["strategy"]
    assert (found["requested"], found["script"], found["effective"]) == (
        None,
        "fsdp2:shard_grad_op",
        "fsdp2:full_shard",
    )


def test_losses_of_a_script_are_held_to_the_precision_that_runs() -> None:
    """The launch knows it when it asked for one, else the ranks do."""

    def run(launch: str | None, ranks: str | None = None) -> RunView:
        state = RunState()
        state.apply(launched(1, "", precision=launch))
        state.apply(structure(0, detail={"precision": ranks} if ranks else {}))
        return state.view()

    assert equivalence([run(None), run(None)])["tolerance"] == 1e-4
    assert equivalence([run(None, "bf16"), run("fp32")])["tolerance"] == 2e-2


def test_times_of_a_collective() -> None:
    """10 ns for 400 B of 2 ranks; gloo's reduce-scatter says what it is."""
    root, block = show(a_run())["units"]
    gather = root["all_gather"]
    keys = ("duration_ns", "exposed_ns", "overlapped_ns", "algbw_bytes_per_s", "busbw_bytes_per_s", "note")
    assert [gather[key] for key in keys] == [10, 10, 0, pytest.approx(40e9), pytest.approx(20e9), ""]
    assert block["reduce_scatter"]["note"].startswith("gloo runs it as an all-reduce")
    document = show(a_run())
    assert document["phases_exposed_ns"] == {"forward": 30, "backward": 30, "other": 0}
    assert document["lateness"]["ns"] == 0


def test_show_is_plain_json() -> None:
    """A NaN loss must not leak as the word NaN, which is no JSON."""
    document = show(a_run(loss=float("nan")))
    assert json.loads(json.dumps(document, allow_nan=False))["loss"]["values"] == [None, None, None]


def test_unknown_is_null_and_never_zero() -> None:
    """A CPU has no allocator cache: null."""
    memory = show(a_run())["ranks"][0]["memory"]
    assert (memory["cache"], memory["param_shard"], memory["total"]) == (None, 300, 1_200)


def test_a_collective_that_did_not_happen() -> None:
    """0 calls and null times."""
    reduce = show(a_run())["units"][0]["all_reduce"]
    assert (reduce["per_step"], reduce["median_ns"], reduce["exposed_ns"]) == (0, None, None)


def test_compare_rows_and_best() -> None:
    """The smaller model states are the better ones; gathered bytes have no better."""
    document = compare([a_run("ddp", shard=600), a_run(shard=300)])
    rows = {row["metric"]: row for row in document["rows"]}
    assert (rows["model_states"]["values"], rows["model_states"]["best"]) == ([2_400, 1_200], 1)
    assert rows["all_gather"]["best"] is None
    assert rows["tokens_per_s"]["best"] is None  # a tie has no best


@pytest.mark.parametrize(("other", "agrees"), [(2.00005, True), (2.01, False)])
def test_losses_agree_within_the_tolerance(other: float, agrees: bool) -> None:
    """fp32 losses at equal steps: 1e-4."""
    verdict = compare([a_run(), a_run(loss=other)])["equivalence"]
    assert verdict["agrees"] is agrees
    assert verdict["steps_compared"] == 3
    assert verdict["loss_max_abs_diff"] == pytest.approx(other - 2.0)


def test_nothing_in_common_is_not_agreement() -> None:
    """Without a common step agreement is not known."""
    empty = RunState().view()
    assert compare([a_run(), empty])["equivalence"]["agrees"] is None


def test_differences_are_named() -> None:
    """Runs with other options are not silently compared."""
    found = compare([a_run(model="tiny"), a_run(model="small")])["differences"]
    assert found == {"model": ["tiny", "small"]}
