"""Findings: each with its numbers, none on too little data, none on a healthy run."""

from __future__ import annotations

from fsdp_tui.telemetry.messages import Ended, Unit
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
) -> RunView:
    state = RunState()
    state.apply(launched(world_size, requested))
    for rank in range(world_size):
        state.apply(hello(rank, world_size))
        state.apply(structure(rank, effective=effective, units=units, groups=(tuple(range(world_size)),)))
    for number in range(1, steps + 1):
        for rank in range(world_size):
            state.apply(step(rank, number, memory=memory, peak=(peaks or {}).get(rank)))
            state.apply(comm(rank, number, durations))
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
    """Before the first step there is memory to come: no match is claimed."""
    assert set(kinds(a_run(memory=column(param_shard=300, grad_shard=300)))) == {"optimizer_not_allocated"}


def test_two_ranks() -> None:
    """A note, not a warning."""
    verdict = kinds(a_run(world_size=2))["two_ranks"]
    assert verdict.severity == "note"
    assert verdict.measured == 1_200


def test_changed_strategy() -> None:
    """PyTorch ran something else than what was asked for."""
    assert (
        kinds(a_run(requested="fsdp1:hybrid_shard=4x1", effective="fsdp1:no_shard"))["strategy_changed"].severity
        == "warn"
    )
    assert "strategy_changed" not in kinds(a_run(requested="fsdp2:hybrid_shard", effective="fsdp2:hybrid_shard=2x2"))


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
