"""show and compare: the keys of the contract, and numbers against the messages."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fsdp_tui.telemetry.messages import CATEGORIES, Ended
from fsdp_tui.telemetry.report import compare, equivalence, global_batch, show
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


def test_a_loss_that_is_no_number_differs_from_one_that_is() -> None:
    """A NaN has no difference to a number, so it must not be left out of the comparison. Two NaN at one step are no difference."""
    nan = float("nan")
    good, lost = some_losses(3.0, 2.0, 1.0), some_losses(3.0, nan, nan)
    for runs in ([lost, good], [good, lost]):
        document = json.loads(json.dumps(compare(runs), allow_nan=False))
        verdict = document["equivalence"]
        assert (verdict["agrees"], verdict["loss_max_abs_diff"], verdict["steps_compared"]) == (False, 0.0, 1)
        assert [verdict["lost"][runs.index(run)] for run in (good, lost)] == [
            None,
            {"step": 2, "value": "nan", "still": True},
        ]
        rows = {row["metric"]: row["values"] for row in document["rows"]}
        assert [rows["loss"][runs.index(run)] for run in (good, lost)] == [1.0, None]
    assert equivalence([lost, some_losses(3.0, nan, nan)])["agrees"] is True
    assert equivalence([some_losses(nan, nan), some_losses(nan, nan)])["agrees"] is None
    assert equivalence([good, some_losses(3.0, float("inf"), 1.0)])["lost"][1] == {
        "step": 2,
        "value": "inf",
        "still": False,
    }


def some_losses(*losses: float) -> RunView:
    state = RunState()
    state.apply(launched(1, "ddp"))
    for number, loss in enumerate(losses, 1):
        state.apply(step(0, number, loss=loss))
    return state.view()


def test_nothing_in_common_is_not_agreement() -> None:
    """Without a common step agreement is not known."""
    empty = RunState().view()
    assert compare([a_run(), empty])["equivalence"]["agrees"] is None


def test_differences_are_named() -> None:
    """Runs with other options are not silently compared."""
    found = compare([a_run(model="tiny"), a_run(model="small")])["differences"]
    assert found == {"model": ["tiny", "small"]}


def test_the_same_training_and_another_one() -> None:
    """How it runs is no difference; what is trained is; what nobody tells is not known."""
    options: dict[str, Any] = {"target": "demo", "model": "tiny", "batch": "8", "seq": "128", "seed": "0"}
    document = compare([a_run(**options, wrap="transformer"), a_run("ddp", **options, wrap="none", accumulate="2")])
    assert document["differences"] == {}
    assert document["settings"] == {"wrap": ["transformer", "none"], "accumulate": [None, "2"]}
    assert {check["subject"]: check["same"] for check in document["comparability"]} == {
        "model": True,
        "data": True,
        "global batch": True,
        "seed": True,
        "device": True,
        "versions": True,
    }
    other = compare([a_run(**options), a_run(**(options | {"batch": "16", "seed": "1", "data": "texts"}))])
    assert other["differences"] == {"batch": ["8", "16"], "seed": ["0", "1"], "data": ["the demo's own", "texts"]}
    assert [check["subject"] for check in other["comparability"] if check["same"] is False] == [
        "data",
        "global batch",
        "seed",
    ]
    unknown = compare([a_run(), a_run()])["comparability"]
    assert {check["subject"] for check in unknown if check["same"] is None} == {"data", "global batch", "seed"}


def test_the_global_batch_of_a_script_is_counted() -> None:
    """Inputs of all ranks, and of all backwards of a step, whatever way they are cut."""

    def a_script(samples: int, ranks: int, *arguments: str) -> RunView:
        state = RunState()
        command = ["fsdp-tui", "run", "train.py", *arguments]
        told = msgspec.structs.replace(launched(ranks, "ddp", target="script", script="train.py"), command=command)
        state.apply(told)
        for rank in range(ranks):
            state.apply(msgspec.structs.replace(hello(rank), world_size=ranks))
            state.apply(structure(rank, effective="ddp"))
        for number in range(1, 4):
            for rank in range(ranks):
                state.apply(msgspec.structs.replace(step(rank, number), samples=samples, backwards=8 // samples))
        return state.view()

    one, two, three = a_script(8, 2), a_script(4, 4), a_script(8, 4, "--lr", "1")
    assert [global_batch(run) for run in (one, two, three)] == [16, 16, 32]
    assert compare([one, two])["differences"] == {}
    assert compare([one, two])["settings"] == {"ranks": [2, 4]}
    assert compare([one, three])["differences"] == {"batch": [16, 32], "arguments": ["", "--lr 1"]}
