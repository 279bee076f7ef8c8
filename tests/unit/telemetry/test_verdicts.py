"""Findings: each with its numbers, none on too little data, none on a healthy run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from fsdp_tui.telemetry.messages import Ended, Gauge, Outside, Unit
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.telemetry.view import RunView, Verdict

from .messages_for_tests import column, comm, hello, launched, step, structure

HEALTHY = column(param_shard=300, grad_shard=300, optimizer=600)


def a_run(
    *,
    steps: int = 25,
    world_size: int = 4,
    requested: str = "fsdp2:full_shard",
    effective: str = "fsdp2:full_shard",
    memory: list[int | None] = HEALTHY,
    peaks: dict[int, list[int | None]] | None = None,
    units: tuple[Unit, ...] = (Unit("<root>", 100, 200, 400), Unit("blocks.0", 50, 100, 200)),
    durations: tuple[int, ...] = (0, 0, 0),
    detail: dict[str, str | int | float | bool | None] | None = None,
    facts: Callable[[int], dict[str, Any]] | dict[str, Any] | None = None,
    memories: dict[int, list[int | None]] | None = None,
    gauge: Gauge | None = None,
    device: str = "cpu",
) -> RunView:
    """A run of equal ranks; what is given by rank differs on these. `facts` are fields of their `Structure`."""
    state = RunState()
    state.apply(launched(world_size, requested))
    for rank in range(world_size):
        state.apply(structs.replace(hello(rank, world_size), device=device))
        own = facts(rank) if callable(facts) else facts or {}
        group = tuple(range(world_size))
        state.apply(structure(rank, effective=effective, units=units, groups=(group,), detail=detail, **own))
    for number in range(1, steps + 1):
        for rank in range(world_size):
            now = (memories or {}).get(rank, memory)
            state.apply(step(rank, number, memory=now, peak=(peaks or {}).get(rank)))
            state.apply(comm(rank, number, durations))
    if gauge is not None:
        state.apply(gauge)
    return state.view()


def kinds(run: RunView) -> dict[str, Verdict]:
    return {verdict.kind: verdict for verdict in run.verdicts}


def test_a_healthy_run_has_no_warning() -> None:
    """States as theory says, nothing else."""
    found = kinds(a_run())
    assert set(found) == {"states_match_theory"}
    verdict = found["states_match_theory"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("ok", 1_200, 1_200)


def test_one_step_is_too_little() -> None:
    """Structural findings wait for the second step."""
    assert not a_run(steps=1).verdicts


def test_states_above_theory() -> None:
    """A third more than the exact share is a warning with both numbers."""
    verdict = kinds(a_run(memory=column(param_shard=700, grad_shard=300, optimizer=600)))["states_off_theory"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("warn", 1_200, 1_600)


def test_optimizer_without_state() -> None:
    """Before the first step there is memory to come: with its bytes, and no match is claimed."""
    expected = {"optimizer_expected_bytes": 600}
    before = kinds(a_run(steps=0, facts=expected))
    assert set(before) == {"optimizer_not_allocated"}
    verdict = before["optimizer_not_allocated"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("note", 600, 0)
    assert set(kinds(a_run(memory=column(param_shard=300, grad_shard=300), facts=expected))) == set(before)
    assert "optimizer_not_allocated" not in kinds(a_run(steps=0, facts={"optimizer_expected_bytes": 0})), "plain SGD"
    assert "optimizer_not_allocated" not in kinds(a_run(facts=expected))


def test_two_ranks() -> None:
    """A note, not a warning."""
    verdict = kinds(a_run(world_size=2))["two_ranks"]
    assert verdict.severity == "note"
    assert verdict.measured == 1_200


def test_changed_strategy() -> None:
    """PyTorch ran something else than what was asked for."""
    asked = "fsdp1:full_shard"
    run = a_run(requested=asked, effective="fsdp1:no_shard", detail={"requested": asked})
    assert (kinds(run)["strategy_changed"].severity, kinds(run)["strategy_changed"].reason) == (
        "warn",
        "PyTorch changed it",
    )
    assert "strategy_changed" not in kinds(a_run(requested="fsdp2:hybrid_shard", effective="fsdp2:hybrid_shard=2x2"))


def test_hybrid_over_one_rank() -> None:
    """It shards nothing: what every rank keeps, and what it would keep."""
    found = kinds(a_run(requested="fsdp1:hybrid_shard=4x1", effective="fsdp1:no_shard"))
    assert "strategy_changed" not in found
    verdict = found["hybrid_not_sharded"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("warn", 300, 1_200)


def test_a_script_that_chooses_its_strategy_is_not_pytorchs_doing() -> None:
    """The launch's default is no request of the user's."""
    run = a_run(requested="fsdp2:full_shard", effective="ddp")
    assert (kinds(run)["strategy_changed"].severity, kinds(run)["strategy_changed"].reason) == (
        "note",
        "the script chooses its strategy itself",
    )


@pytest.mark.parametrize("effective", ["fsdp1:no_shard", "ddp", "fsdp2:full_shard", "single"])
def test_a_script_that_was_left_alone_got_what_it_asked_for(effective: str) -> None:
    """Nothing was requested, so nothing was changed."""
    found = kinds(a_run(requested="", effective=effective, detail={"script": "fsdp2:hybrid_shard"}))
    assert not {"strategy_changed", "hybrid_not_sharded"} & found.keys()


def test_a_run_that_nobody_watched_says_so() -> None:
    """Zero steps are no success."""
    state = RunState()
    state.apply(launched())
    state.apply(Ended(state="finished", ended_ns=1, exit_codes={"0": 0}))
    assert [verdict.kind for verdict in state.view().verdicts] == ["not_watched"]


def test_shard_grad_op_keeps_parameters() -> None:
    """The bytes that stay unsharded at the peak."""
    peaks = {rank: column(param_shard=300, param_unsharded=1_200) for rank in range(4)}
    verdict = kinds(a_run(requested="fsdp2:shard_grad_op", effective="fsdp2:shard_grad_op", peaks=peaks))[
        "shard_grad_op"
    ]
    assert (verdict.severity, verdict.measured) == ("note", 1_200)


def test_one_big_unit() -> None:
    """Everything is gathered at once."""
    verdict = kinds(a_run(units=(Unit("<root>", 150, 300, 600),)))["one_big_unit"]
    assert (verdict.severity, verdict.measured) == ("warn", 600)


def test_one_big_unit_says_what_blocks_would_save() -> None:
    """Of ten blocks two are unsharded at once, and what is in none of them."""
    units = (Unit("<root>", 100, 300, 400),)
    verdict = kinds(a_run(units=units, facts={"blocks": 10, "largest_block_params": 8}))["one_big_unit"]
    assert verdict.expected == 400 * (20 + 2 * 8) // 100
    assert "10 blocks" in verdict.next


def test_policy_that_matched_nothing() -> None:
    """What was asked for, and what came of it."""
    detail: dict[str, str | int | float | bool | None] = {"wrap": "size:1000", "wrapped_modules": 0}
    found = kinds(a_run(units=(Unit("<root>", 150, 300, 600),), detail=detail))
    verdict = found["policy_matched_nothing"]
    assert (verdict.severity, verdict.measured) == ("warn", 600)
    assert "size:1000 wrapped 0 submodules" in verdict.what
    assert "one_big_unit" not in found


def test_activations_dominate() -> None:
    """More than half of the peak; half is not."""
    states = {"param_shard": 300, "grad_shard": 300, "optimizer": 600}
    peaks = {rank: column(**states, activation=1_500, temp=500) for rank in range(4)}
    verdict = kinds(a_run(peaks=peaks))["activations_dominate"]
    assert (verdict.severity, verdict.measured) == ("note", 2_000)
    assert "62 % of the peak" in verdict.what
    assert "checkpointing" in verdict.next
    even = {rank: column(**states, activation=1_200) for rank in range(4)}
    assert "activations_dominate" not in kinds(a_run(peaks=even))
    unknown = {rank: column(**states, activation=None) for rank in range(4)}
    assert "activations_dominate" not in kinds(a_run(peaks=unknown))


def test_no_sync_keeps_gradients() -> None:
    """The gradients that waited; none under DDP, whose gradients are whole anyway."""
    facts = {"no_sync_bytes": 1_200}
    verdict = kinds(a_run(facts=facts))["no_sync"]
    assert (verdict.severity, verdict.measured) == ("note", 1_200)
    assert "no_sync" not in kinds(a_run(requested="ddp", effective="ddp", facts=facts))
    assert "no_sync" not in kinds(a_run(facts={"no_sync_bytes": 0}))


def test_frozen_parameters_in_a_trained_unit() -> None:
    """The gradients that nobody needs, on the rank with most of them."""
    units = (Unit("<root>", 100, 200, 400), Unit("blocks.0", 50, 100, 200, 0, 40, 80))
    verdict = kinds(a_run(units=units))["frozen_mixed"]
    assert (verdict.severity, verdict.measured) == ("warn", 80)
    assert "blocks.0" in verdict.reason
    apart = (Unit("<root>", 100, 200, 400, 0, 100, 0), Unit("blocks.0", 50, 100, 200, 0, 0, 0))
    assert "frozen_mixed" not in kinds(a_run(units=apart))


def test_ignored_parameters() -> None:
    """Trained ones are a warning: nobody reduces their gradients."""
    verdict = kinds(a_run(facts={"ignored_bytes": 400, "ignored_trainable_bytes": 400, "ignored": ["head.weight"]}))[
        "ignored_parameters"
    ]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("warn", 100, 400)
    assert "head.weight" in verdict.reason
    frozen = kinds(a_run(facts={"ignored_bytes": 400, "ignored_trainable_bytes": 0}))["ignored_parameters"]
    assert frozen.severity == "note"


def test_uneven_shards() -> None:
    """Who holds most and least, without padding; a share below a percent is no finding."""
    verdict = kinds(a_run(facts=lambda rank: {"padding_bytes": 150 if rank == 3 else 0}))["uneven_shards"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("warn", 1_050, 1_200)
    assert "rank 3" in verdict.reason
    assert "rank 0" in verdict.reason
    assert "uneven_shards" not in kinds(a_run(facts=lambda rank: {"padding_bytes": 10 if rank == 3 else 0}))


def test_tensors_outside_the_training() -> None:
    """As large as the model: likely a copy of it."""
    memory = column(param_shard=300, grad_shard=300, optimizer=600, unexplained=600)
    outside = [Outside("float32 10x10", 2, 600)]
    verdict = kinds(a_run(memory=memory, facts={"outside": outside}))["tensors_outside"]
    assert (verdict.severity, verdict.measured) == ("note", 600)
    assert "as much as the whole model" in verdict.what
    assert "2 x float32 10x10" in verdict.reason
    little = column(param_shard=300, grad_shard=300, optimizer=600, unexplained=50)
    assert "tensors_outside" not in kinds(a_run(memory=little))


def test_rank_zero_holds_more() -> None:
    """A category, its bytes, and since when; structural findings need no twenty steps."""
    more = column(param_shard=300, grad_shard=300, optimizer=600, unexplained=900)
    verdict = kinds(a_run(steps=5, peaks={0: more}, memories={0: more}))["rank_outlier"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("warn", 1_200, 2_100)
    assert verdict.reason.startswith("900 B of it is unexplained")
    assert "since the first step" in verdict.what
    state = RunState()
    state.apply(launched(2))
    for number in range(1, 9):
        for rank in range(2):
            state.apply(hello(rank)) if number == 1 else None
            column_now = more if rank == 0 and number >= 6 else HEALTHY
            state.apply(step(rank, number, memory=column_now, peak=column_now))
    assert "since step 6" in kinds(state.view())["rank_outlier"].what


GIB = 2**30


def test_cache_of_a_gpu() -> None:
    """Much of it is a note, one that had to be emptied a warning; on a CPU it is not known."""
    memory = column(param_shard=6 * GIB, cache=5 * GIB)
    verdict = kinds(a_run(memory=memory, device="cuda:0"))["cache"]
    assert (verdict.severity, verdict.measured) == ("note", 5 * GIB)
    gauge = Gauge(0, 1, {"retries": 3})
    assert kinds(a_run(memory=memory, device="cuda:0", gauge=gauge))["cache"].severity == "warn"
    assert "cache" not in kinds(a_run(memory=column(param_shard=60 * GIB, cache=5 * GIB), device="cuda:0"))


def test_memory_beside_torch() -> None:
    """The context's share, and other processes by pid; ranks of this run on the same GPU are no strangers."""
    memory = column(param_shard=4 * GIB, non_torch=GIB, others=2 * GIB)
    gauge = Gauge(0, 1, {}, others=[(7, GIB), (101, GIB)])
    found = kinds(a_run(memory=memory, device="cuda:0", gauge=gauge))
    assert (found["non_torch"].severity, found["non_torch"].measured) == ("note", GIB)
    assert (found["others"].severity, found["others"].measured) == ("warn", GIB)
    assert found["others"].reason == "pid 7 1.00 GiB"
    assert not {"non_torch", "others"} & set(kinds(a_run(memory=memory)))


def test_rank_that_stands_out() -> None:
    """Only with enough steps."""
    peaks = {rank: column(activation=2_000 if rank == 2 else 1_000) for rank in range(4)}
    assert kinds(a_run(peaks=peaks))["rank_outlier"].measured == 2_000
    assert "rank_outlier" not in kinds(a_run(peaks=peaks, steps=5))


def test_exposed_communication_on_gloo_is_a_note() -> None:
    """30 of 100 ns: a CPU backend has no overlap."""
    verdict = kinds(a_run(durations=(10, 10, 10)))["exposed_communication"]
    assert (verdict.severity, verdict.measured) == ("note", 0.3)


HEALTHY_PHASES = (0, 400, 500, 50, 50)


def held_up(
    *,
    steps: int = 25,
    phases: tuple[int | None, ...] = HEALTHY_PHASES,
    late: int = 300,
    in_turn: bool = False,
    waits: tuple[int, int] = (100, 100),
) -> RunView:
    """Steps of 1,000 ns. Rank 1 comes `late` to the gather of blocks.0, in every second step if it takes turns with rank 0."""
    state = RunState()
    state.apply(launched(2))
    for rank in range(2):
        state.apply(hello(rank))
        state.apply(structure(rank))
    for number in range(1, steps + 1):
        slow = number % 2 if in_turn else 1
        for rank in range(2):
            mine = phases if rank == 1 else HEALTHY_PHASES
            state.apply(step(rank, number, step_ns=1_000, memory=HEALTHY, phases=mine))
            state.apply(comm(rank, number, (0, waits[0] + (0 if rank == slow else late), waits[1])))
    return state.view()


def test_straggler_by_compute() -> None:
    """Rank 1 computes 300 ns longer and waits 300 less, so its phases are as long as the other's."""
    verdict = kinds(held_up())["straggler"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("warn", 0.1, 0.3)
    assert verdict.what.startswith("the others wait for rank 1")
    assert verdict.reason.startswith("it begins at blocks.0's all-gather in forward; its compute takes")


def test_straggler_by_input() -> None:
    """300 ns more of input; 300 less of forward, since it waits for nobody there: its compute is the same."""
    assert "its input takes" in kinds(held_up(phases=(300, 100, 500, 50, 50)))["straggler"].reason


def test_straggler_between_the_phases() -> None:
    """Checkpoints, logging, or a loader that nobody watches."""
    assert "between the phases" in kinds(held_up(phases=(None, 100, 500, 50, 350)))["straggler"].reason


def test_straggler_with_nothing_longer() -> None:
    """It waits less and does not compute longer: what is left is its link."""
    assert "neither its input nor its compute" in kinds(held_up(phases=(0, 100, 500, 50, 50)))["straggler"].reason


def test_no_straggler() -> None:
    """Too little data, too little of the step, or now one rank and now the other."""
    for run in (held_up(steps=20), held_up(late=90), held_up(in_turn=True)):
        assert "straggler" not in kinds(run)


def test_failure_comes_first() -> None:
    """The gravest finding is on top."""
    state = RunState()
    state.apply(launched())
    state.apply(
        Ended(state="failed", ended_ns=1, exit_codes={"1": 7}, failed_rank=1, reason="exit code 7", log_tail=["boom"])
    )
    verdict = state.view().verdicts[0]
    assert (verdict.severity, verdict.what) == ("bad", "the run failed: exit code 7")
