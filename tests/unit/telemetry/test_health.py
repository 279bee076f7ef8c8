"""Findings beside memory: each with its numbers, none on too little data, none where nothing is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fsdp_tui.telemetry.messages import Beat, Comm, Ended, Event, Goodbye, Step, Unit, Where
from fsdp_tui.telemetry.state import LOOKS_KEPT, SETTLING, RunState
from fsdp_tui.telemetry.view import RunView, Verdict

from .messages_for_tests import bucket_comm, column, hello, launched, step, structure

UNITS = (
    Unit("<root>", 100, 200, 400, 0, 0, 0, reduce_bytes=400, kept=True),
    Unit("blocks.0", 50, 100, 200, 0, 0, 0, reduce_bytes=200, kept=False),
)
DETAIL: dict[str, str | int | float | bool | None] = {"shard_group": 2, "replicas": 1}
GATHER, SCATTER, REDUCE = 0, 1, 2
FORWARD, BACKWARD, OTHER = 0, 1, 2
Call = tuple[int, int, int, int]
"""Unit, kind, phase and bytes."""
FULL_SHARD: tuple[Call, ...] = (
    (0, GATHER, FORWARD, 400),
    (1, GATHER, FORWARD, 200),
    (1, GATHER, BACKWARD, 200),
    (1, SCATTER, BACKWARD, 200),
    (0, SCATTER, BACKWARD, 400),
)


def calls(rank: int, number: int, made: Sequence[Call]) -> Comm:
    unit, kind, phase, nbytes = ([call[at] for call in made] for at in range(4))
    nothing = [0] * len(made)
    return Comm(rank, number, number, unit, kind, phase, nothing, nbytes, nothing, list(nothing))


def a_run(
    steps: int = 25,
    *,
    ranks: int = 2,
    made: Sequence[Call] | Callable[[int], Sequence[Call]] = FULL_SHARD,
    change: Callable[[Step], Step] = lambda sample: sample,
    effective: str = "fsdp2:full_shard",
    detail: Mapping[str, str | int | float | bool | None] = DETAIL,
    units: Sequence[Unit] = UNITS,
    passes: tuple[int, int] | None = (1, 1),
    buckets: tuple[int, ...] = (),
    world: int | None = None,
    backend: str = "gloo",
    nproc: int | None = None,
    **facts: Any,
) -> RunState:
    """A training of equal ranks. `change` alters each step's message, `passes` are forwards and backwards per step."""
    state = RunState()
    state.apply(launched(nproc or ranks))
    for rank in range(ranks):
        state.apply(hello(rank, world or ranks, backend=backend))
        told = structure(rank, effective=effective, units=tuple(units), detail=dict(detail), buckets=buckets, **facts)
        state.apply(told)
    for number in range(1, steps + 1):
        for rank in range(ranks):
            sample = step(rank, number)
            if passes is not None:
                sample = structs.replace(sample, forwards=passes[0], backwards=passes[1])
            state.apply(change(sample))
            each = made(number) if callable(made) else made
            state.apply(bucket_comm(rank, number, buckets) if buckets else calls(rank, number, each))
    assert state.bad_records == 0
    return state


def kinds(state: RunState) -> dict[str, Verdict]:
    return {verdict.kind: verdict for verdict in state.view().verdicts}


# Communication


def test_communication_as_theory_says() -> None:
    """Two gathers of what is freed, one of what is kept, one reduction of both: 1,400 bytes."""
    verdict = kinds(a_run())["communication_matches_theory"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("ok", 1_400, 1_400)
    assert "2.33 times the parameters" in verdict.what
    assert "<root> is kept from forward to backward" in verdict.reason


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"passes": None}, "an older writer counted neither forwards nor backwards"),
        ({"steps": 1}, "the first step is warm-up"),
        (
            {"units": [structs.replace(unit, kept=None) for unit in UNITS]},
            "a unit whose fate after forward is not known",
        ),
        ({"detail": DETAIL | {"roots": 2}}, "two models in one training take turns"),
        ({"effective": "unknown"}, "no strategy, no theory"),
        ({"ranks": 1}, "nobody to communicate with"),
    ],
)
def test_no_theory_no_verdict(how: dict[str, Any], why: str) -> None:
    """Nothing is said where nothing can be known."""
    found = kinds(a_run(**how))
    assert not {kind for kind in found if "communication" in kind or kind == "never_reduced"}, why


def test_a_unit_that_takes_no_part() -> None:
    """Less than theory is a note, with the unit's name."""
    verdict = kinds(a_run(made=[call for call in FULL_SHARD if call[0] == 0]))["less_communication"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("note", 1_400, 800)
    assert verdict.reason.startswith("blocks.0 took no part")


def test_frozen_units_need_no_backward() -> None:
    """What nobody trains is reduced never, and gathered again only where gradients pass through it."""
    frozen = structs.replace(UNITS[1], frozen_params=50, reduce_bytes=0)
    without = [call for call in FULL_SHARD if call[:2] != (1, SCATTER)]
    for made, nbytes in ((without, 1_200), ([call for call in without if call[:3] != (1, GATHER, BACKWARD)], 1_000)):
        verdict = kinds(a_run(made=made, units=(UNITS[0], frozen)))["communication_matches_theory"]
        assert (verdict.expected, verdict.measured) == (nbytes, nbytes)


def test_an_evaluation_now_and_then_is_no_part_of_the_step() -> None:
    """Every fourth step gathers once more; when the newest is one of them, the verdict stays as it was."""
    evaluated = (*FULL_SHARD, (0, GATHER, OTHER, 400), (1, GATHER, OTHER, 200))
    for steps in (24, 25):
        found = kinds(a_run(steps, made=lambda number: evaluated if number % 4 == 0 else FULL_SHARD))
        assert found["communication_matches_theory"].measured == 1_400
        assert "extra_communication" not in found
    always = kinds(a_run(made=evaluated))["extra_communication"]
    assert (always.severity, always.measured) == ("note", 2_000)
    assert "evaluated in the step" in always.reason


def test_buckets_against_the_gradients() -> None:
    """DDP's are counted against the parameters, which are 600 bytes here; frozen ones are not reduced."""
    ddp: dict[str, Any] = {"effective": "ddp", "units": (), "detail": {"shard_group": 1, "replicas": 2}}
    verdict = kinds(a_run(buckets=(500, 100), frozen_bytes=0, **ddp))["communication_matches_theory"]
    assert (verdict.expected, verdict.measured) == (1_200, 1_200)
    lost = kinds(a_run(buckets=(500,), frozen_bytes=0, **ddp))["less_communication"]
    assert (lost.expected, lost.measured) == (1_200, 1_000)
    frozen = kinds(a_run(buckets=(500,), frozen_bytes=100, **ddp))["communication_matches_theory"]
    assert (frozen.expected, frozen.measured) == (1_000, 1_000)


def test_gradients_that_are_never_reduced() -> None:
    """Nobody leaves no_sync."""
    verdict = kinds(a_run(made=[call for call in FULL_SHARD if call[1] == GATHER]))["never_reduced"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("bad", 600, 0)


# Ranks that train apart


def apart(**how: Any) -> Verdict | None:
    return kinds(a_run(**({"effective": "single", "units": (), "made": (), "detail": {}} | how))).get("ranks_apart")


def test_ranks_apart() -> None:
    """Several ranks of a model that nothing wraps; with too few steps, or one rank, nothing is said."""
    verdict = apart()
    assert verdict is not None
    assert (verdict.severity, verdict.expected, verdict.measured) == ("bad", 600, 0)
    assert "there is no process group" not in verdict.reason
    alone = apart(world=1, backend="none")
    assert alone is not None
    assert "there is no process group" in alone.reason
    assert apart(steps=1) is None
    assert apart(ranks=1) is None


def test_ranks_that_only_look_apart() -> None:
    """Gradients reduced by hand, tensor parallelism, a pipeline's stages, a library of its own; a scalar is no gradient."""
    assert apart(made=[(-1, REDUCE, BACKWARD, 600)]) is None
    assert apart(made=[(-1, REDUCE, OTHER, 4)]) is not None
    assert apart(detail={"beside": 2}) is None
    stages = a_run(effective="single", units=(), made=(), detail={})
    stages.apply(structs.replace(structure(1, effective="single", units=()), params=151))
    assert "ranks_apart" not in kinds(stages)
    elsewhere = a_run(effective="single", units=(), made=(), detail={})
    told = structure(0, effective="single", units=())
    elsewhere.apply(structs.replace(told, probes={"sharding": "not available: DeepSpeed shards by means of its own"}))
    found = kinds(elsewhere)
    assert "ranks_apart" not in found
    assert found["not_covered"].what == "DeepSpeed shards by means of its own"


def test_a_wrapper_over_groups_of_one_rank() -> None:
    """FSDP1's hybrid on CPUs without a mesh: each rank is a node of its own, and only a warning says so."""
    how: dict[str, Any] = {"effective": "fsdp1:no_shard", "detail": {"shard_group": 1, "replicas": 1}}
    verdict = apart(groups=((0,),), **how)
    assert verdict is not None
    assert verdict.reason == "fsdp1:no_shard runs over groups of one rank"
    assert apart(groups=((0, 1),), **how) is None


def test_an_optimizer_without_parameters_of_the_model() -> None:
    """Only if no rank has any, and no optimizer state is there; a loss that stands still is told too."""
    empty = column(param_shard=300)
    state = a_run(optimized=0, change=lambda sample: structs.replace(sample, memory=empty, peak=empty))
    verdict = kinds(state)["trains_nothing"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("bad", 150, 0)
    assert "the loss has been 2 for 20 steps" in verdict.reason
    moving = a_run(optimized=0, change=lambda sample: structs.replace(sample, memory=empty, loss=1 / sample.step))
    assert "the loss" not in kinds(moving)["trains_nothing"].reason
    assert "trains_nothing" not in kinds(a_run(optimized=0)), "it has states"
    assert "trains_nothing" not in kinds(a_run(change=lambda sample: structs.replace(sample, memory=empty))), "unknown"


# Loss


def losses(values: Sequence[float], on: int | None = None) -> RunState:
    """A run with these losses, on one rank or on both; the other rank's are 2."""

    def change(sample: Step) -> Step:
        mine = on in (None, sample.rank)
        return structs.replace(sample, loss=values[sample.step - 1] if mine else 2.0)

    return a_run(len(values), change=change)


def test_a_lost_loss() -> None:
    """Which step, which rank first; one that comes back is a warning."""
    verdict = kinds(losses([2.0, 2.0, math.nan, math.nan], on=1))["loss_lost"]
    assert (verdict.severity, verdict.measured, verdict.what) == ("bad", 2, "the loss has been NaN since step 3")
    assert verdict.reason == "it began on rank 1 in step 3"
    both = kinds(losses([2.0, math.inf, 2.0]))["loss_lost"]
    assert (both.severity, both.measured, both.what) == ("warn", 1, "the loss was infinite in step 2")
    assert both.reason == "on all ranks at once, in step 2"
    assert "loss_lost" not in kinds(losses([2.0] * 5))
    unknown = a_run(5, change=lambda sample: structs.replace(sample, loss=None))
    assert "loss_lost" not in kinds(unknown), "a loss that nobody told is no lost one"


def noisy(steps: int, *, start: float = 4.0, end: float = 2.0, noise: float = 0.05, seed: int = 0) -> list[float]:
    chance = np.random.default_rng(seed)
    falling = end + (start - end) * np.exp(-np.arange(steps) / (steps / 4))
    return list((falling + chance.normal(0, noise, steps)).tolist())


@pytest.mark.parametrize("at", [21, 60, 199])
def test_a_jump_of_the_loss(at: int) -> None:
    """Far above what came before it, by its own spread; with twenty losses before it at least."""
    values = noisy(200)
    values[at - 1] *= 1.6
    verdict = kinds(losses(values[: at + 4]))["loss_spike"]
    assert verdict.severity == "warn"
    assert verdict.measured == pytest.approx(values[at - 1])
    assert f"in step {at}," in verdict.what
    assert ("came back" in verdict.reason) == (at + 3 <= 200)
    assert "loss_spike" not in kinds(losses(values[: at - 1]))


def test_a_jump_in_the_first_steps_is_no_finding() -> None:
    """Twenty losses are too few to know what is usual."""
    values = noisy(40)
    values[18] = 50.0
    assert "loss_spike" not in kinds(losses(values))


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3])
def test_noise_is_no_jump(noise: float) -> None:
    """Falling losses with normal noise never; with hard batches among easy ones (exponential: an extreme) hardly ever."""
    jumps = 0
    for seed in range(20):
        values = noisy(300, noise=noise, seed=seed)
        assert "loss_spike" not in kinds(losses(values))
        chance = np.random.default_rng(1_000 + seed)
        hard = np.where(chance.random(300) < 0.3, chance.exponential(0.5, 300), 0.0).tolist()
        jumps += "loss_spike" in kinds(losses([value + more for value, more in zip(values, hard, strict=True)]))
    assert jumps <= 2


def test_a_loss_that_stays_up_is_one_jump() -> None:
    """A plateau above the old one: the first step of it."""
    values = noisy(60, start=2.0)
    verdict = kinds(losses(values + [value + 3 for value in noisy(60, start=2.0, seed=1)]))["loss_spike"]
    assert "in step 61," in verdict.what
    assert "came back" not in verdict.reason
    assert "jumps" not in verdict.reason


# Memory

MIB = 2**20


def grows(
    at: Callable[[int], int],
    steps: int = 40,
    name: str = "unexplained",
    looked: Callable[[int], int] = lambda step: step,
) -> dict[str, Verdict]:
    """A run whose rank 1 holds 100 MiB, and this many bytes more in a category after each step."""

    def change(sample: Step) -> Step:
        extra = at(sample.step) if sample.rank == 1 else 0
        held = {"param_shard": 100 * MIB, "non_torch": 0} | ({name: extra} if name != "param_shard" else {})
        return structs.replace(sample, memory=column(**held), looked_step=looked(sample.step))

    return kinds(a_run(steps, change=change))


def test_memory_that_creeps() -> None:
    """Which rank, category, how much per step; first steps are left out."""
    verdict = grows(lambda number: number * MIB)["memory_creep"]
    assert verdict.severity == "warn"
    assert verdict.measured == pytest.approx(MIB)
    assert verdict.what.startswith(f"rank 1 grows by 1.00 MiB per step since step {1 + SETTLING}")
    assert "neither the model nor its optimizer" in verdict.reason
    assert "no search has found" in grows(lambda number: number * MIB, name="non_torch")["memory_creep"].reason


def test_memory_that_creeps_needs_twenty_looks() -> None:
    """Steps that nobody looked at do not count."""
    assert "memory_creep" not in grows(lambda number: number * MIB, SETTLING + 19)
    assert "memory_creep" in grows(lambda number: number * MIB, SETTLING + 20)

    def fourth(number: int) -> int:
        return number - number % 4 or 1

    assert "memory_creep" not in grows(lambda number: number * MIB, 4 * 19 + 3, looked=fourth)
    later = grows(lambda number: number * MIB, 4 * 20, looked=fourth)["memory_creep"]
    assert later.measured == pytest.approx(MIB)


@pytest.mark.parametrize(
    ("why", "at"),
    [
        ("it is what it was", lambda number: 0),
        ("it has settled", lambda number: min(number, 20) * MIB),
        ("it goes up and down", lambda number: (number * 37 % 40) * MIB),
        ("a cache fills and is emptied", lambda number: (number % 13) * 2 * MIB),
        ("too little to matter", lambda number: number * 40),
        ("it falls", lambda number: (100 - number) * MIB),
        ("one step up", lambda number: 50 * MIB if number > 20 else 0),
    ],
)
def test_memory_that_does_not_creep(why: str, at: Callable[[int], int]) -> None:
    """Healthy runs do all of this."""
    assert "memory_creep" not in grows(at, 60), why


def test_a_creep_that_begins_late() -> None:
    """The newest looks tell it, though the run's first ones outnumber them."""
    found = grows(lambda number: max(0, number - 60) * MIB, 100)
    assert found["memory_creep"].measured == pytest.approx(MIB, rel=0.2)


def test_looks_of_a_long_run_are_an_even_choice() -> None:
    """So many at most, over all of it."""
    rank = a_run(1_000).ranks[0]
    numbers = [number for number, _ in rank.looks]
    assert LOOKS_KEPT / 2 <= len(numbers) <= LOOKS_KEPT
    assert len(set(np.diff(numbers))) == 1
    assert numbers[0] == 1 + SETTLING
    assert numbers[-1] > 990


# Input


def test_steps_that_wait_for_input() -> None:
    """On the usual rank; where the phase is known, and with twenty steps."""

    def waiting(ns: int | None, only: int | None = None) -> Callable[[Step], Step]:
        def change(sample: Step) -> Step:
            mine = ns if only in (None, sample.rank) else 0
            return structs.replace(sample, phases_ns=[mine, 40, 50, 5, 5])

        return change

    verdict = kinds(a_run(change=waiting(30)))["input_bound"]
    assert (verdict.severity, verdict.measured) == ("warn", 0.3)
    assert "input_bound" not in kinds(a_run(19, change=waiting(30)))
    assert "input_bound" not in kinds(a_run(change=waiting(10)))
    assert "input_bound" not in kinds(a_run(change=waiting(None)))
    assert "input_bound" not in kinds(a_run(change=waiting(30, only=1))), "one slow rank is a straggler"


# Stalls

SECOND = 10**9


def beats(
    state: RunState,
    ranks: Mapping[int, Where],
    *,
    step: int = 25,
    from_s: float = 0.0,
    until_s: float,
    paused: bool = False,
) -> None:
    """Heartbeats every half second in which nothing moves."""
    for tick in range(int(from_s * 2), int(until_s * 2) + 1):
        for rank, where in ranks.items():
            sent_ns = 25_000 + tick * SECOND // 2
            state.apply(Beat(rank, 1, sent_ns, step, 50, 0, paused=paused, where=where))


WAITS = Where("forward", 101, GATHER, 1, inside=True)
LATE = Where("input", 99, SCATTER, 0)


def test_a_stall() -> None:
    """Who is behind comes first: fewer collectives; the other waits in one, and where that is."""
    state = a_run()
    beats(state, {0: WAITS, 1: LATE}, until_s=9)
    assert "stalled" not in kinds(state)
    beats(state, {0: WAITS, 1: LATE}, from_s=9.5, until_s=12)
    verdict = kinds(state)["stalled"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("warn", 100, 12 * SECOND)
    assert verdict.what == "no step for 12 s: rank 1 is behind"
    assert verdict.reason == (
        "rank 1 is waiting for its next batch, 99 collectives behind it, the last the reduce-scatter of <root>;"
        " rank 0 waits in the all-gather of blocks.0 (forward), collective 101"
    )
    assert "fsdp-tui stacks 20260101-000000-abcd" in verdict.next
    beats(state, {0: WAITS, 1: LATE}, from_s=12.5, until_s=300)
    assert kinds(state)["stalled"].severity == "bad"


def test_what_moves_is_no_stall() -> None:
    """Collectives of an evaluation, another phase, a step; a pause is asked for."""
    state = a_run()
    for tick in range(40):
        beats(state, {rank: Where("rest", tick, GATHER, 0) for rank in (0, 1)}, from_s=tick, until_s=tick)
    assert "stalled" not in kinds(state)
    held = a_run()
    beats(held, {0: LATE, 1: LATE}, until_s=60, paused=True)
    assert "stalled" not in kinds(held)
    older = a_run()
    for tick in range(60):
        older.apply(Beat(0, 1, tick * SECOND, 25, 50, 0))
    assert "stalled" not in kinds(older), "a writer that does not say where it is"


def test_work_of_the_script_s_own_is_a_note() -> None:
    """All ranks between two steps, or in a checkpoint: an evaluation without collectives, say."""
    for phase in ("rest", "checkpoint"):
        state = a_run()
        beats(state, dict.fromkeys((0, 1), Where(phase, 100, SCATTER, 0)), until_s=1_000)
        verdict = kinds(state)["stalled"]
        assert (verdict.severity, verdict.what) == ("note", "no step for 17 min: all ranks are at one place")
    saving = a_run()
    beats(saving, {0: Where("checkpoint", 100, SCATTER, 0), 1: WAITS}, until_s=1_000)
    assert kinds(saving)["stalled"].severity == "warn", "one rank saves for long, and the other waits for it"


def test_all_ranks_in_one_collective() -> None:
    """Nobody is behind: what is between them hangs."""
    state = a_run()
    beats(state, {0: WAITS, 1: WAITS}, until_s=20)
    verdict = kinds(state)["stalled"]
    assert verdict.what == "no step for 20 s: all ranks are at one place"
    assert verdict.reason.startswith("ranks 0-1 wait in the all-gather")


def test_ddp_s_reducer_is_told_by_phases() -> None:
    """Its collectives are C++'s: who is in backward waits for who is not."""
    state = a_run(effective="ddp", units=(), made=())
    beats(state, {0: Where("backward", 0), 1: Where("rest", 0)}, until_s=20)
    assert kinds(state)["stalled"].what == "no step for 20 s: rank 1 is behind"


def test_a_usual_step_decides_what_is_long() -> None:
    """Ten of them; and while nobody knows it, two minutes."""
    slow = a_run(change=lambda sample: structs.replace(sample, step_ns=5 * SECOND))
    beats(slow, {0: WAITS, 1: LATE}, until_s=49)
    assert "stalled" not in kinds(slow)
    beats(slow, {0: WAITS, 1: LATE}, from_s=49.5, until_s=51)
    assert "stalled" in kinds(slow)
    first = a_run(0)
    beats(first, {0: WAITS, 1: LATE}, step=0, until_s=119)
    assert "stalled" not in kinds(first)
    beats(first, {0: WAITS, 1: LATE}, step=0, from_s=119.5, until_s=121)
    assert "stalled" in kinds(first)
    loading = a_run(0)
    beats(loading, dict.fromkeys((0, 1), Where("rest", 0)), step=0, until_s=1_000)
    assert "stalled" not in kinds(loading), "nobody waits for anybody yet"


def test_a_stall_stays_known_when_the_run_has_failed() -> None:
    """What it died of; a run that finished was not stalled."""
    for ended, told in (("failed", True), ("finished", False)):
        state = a_run()
        beats(state, {0: WAITS, 1: LATE}, until_s=20)
        state.apply(Ended(state=ended, ended_ns=1, exit_codes={}))
        assert ("stalled" in kinds(state)) == told
    left = a_run()
    beats(left, {0: WAITS}, until_s=20)
    left.apply(Goodbye(rank=1, incarnation=1, reason="finished", steps=25))
    assert kinds(left)["stalled"].reason.endswith("rank 1 has left (finished)")


def test_a_rank_that_does_not_answer() -> None:
    """Held against the newest word of the others, or the hub's event when all are silent."""
    state = a_run()
    beats(state, {0: WAITS, 1: LATE}, until_s=5)
    beats(state, {0: WAITS}, from_s=5.5, until_s=14)
    assert "rank_silent" not in kinds(state)
    beats(state, {0: WAITS}, from_s=14.5, until_s=17)
    found = kinds(state)
    verdict = found["rank_silent"]
    assert (verdict.severity, verdict.measured, verdict.what) == (
        "warn",
        12 * SECOND,
        "rank 1 does not answer: no heartbeat for 12 s",
    )
    assert "pid 101 on host" in verdict.next
    assert found["stalled"].what == "no step for 17 s: rank 1 is silent, the other waits"
    state.apply(Event(at_ns=100 * SECOND, kind="rank_silent", severity="warn", text="rank 0", rank=0))
    assert kinds(state)["rank_silent"].what.startswith("ranks 0-1 do not answer")
    state.apply(Ended(state="failed", ended_ns=1, exit_codes={}))
    assert "rank_silent" not in kinds(state)


IN_BACKWARD = Where("backward", 104, SCATTER, 1, inside=True)
AND_ITS_LOG = "a silent process is stopped or swapped out: see pid 10{} on host, and its log"


def test_a_stall_for_a_rank_that_is_silent() -> None:
    """It is named, and where the other waits for it; that it was behind, if its last heartbeat says so."""
    state = a_run()
    beats(state, {0: LATE, 1: Where("backward", 103, GATHER, 1)}, until_s=1)
    beats(state, {1: IN_BACKWARD}, from_s=1.5, until_s=20)
    verdict = kinds(state)["stalled"]
    assert (verdict.severity, verdict.measured) == ("warn", 18.5 * SECOND)
    assert verdict.what == "no step for 18.5 s: rank 0 is silent, the other waits"
    waits = "rank 1 waits in the reduce-scatter of blocks.0 (backward), collective 104"
    assert verdict.reason == (
        f"{waits}; by its last heartbeat rank 0 is waiting for its next batch, 99 collectives behind it,"
        " the last the reduce-scatter of <root>; by then rank 0 is behind the others"
    )
    assert verdict.next == AND_ITS_LOG.format(0)
    beats(state, {1: IN_BACKWARD}, from_s=20.5, until_s=302)
    assert kinds(state)["stalled"].severity == "bad"

    level = a_run()
    beats(level, {0: IN_BACKWARD, 1: IN_BACKWARD}, until_s=1)
    beats(level, {1: IN_BACKWARD}, from_s=1.5, until_s=20)
    same = kinds(level)["stalled"]
    assert same.what == "no step for 20 s: rank 0 is silent, the other waits"
    assert "behind" not in same.reason

    unheard = a_run()
    beats(unheard, {1: IN_BACKWARD}, until_s=20)
    assert kinds(unheard)["stalled"].reason == waits, "a rank whose place nobody knows"


def test_a_stall_of_many_ranks_one_of_which_is_silent() -> None:
    """Who is behind of those that answer is told too; between two steps it is no evaluation when a rank is silent."""
    state = a_run(ranks=4)
    beats(state, {0: WAITS, 1: WAITS, 2: WAITS, 3: LATE}, until_s=1)
    beats(state, {0: WAITS, 1: WAITS, 2: WAITS}, from_s=1.5, until_s=20)
    assert kinds(state)["stalled"].what == "no step for 20 s: rank 3 is silent, the others wait"
    other = a_run(ranks=4)
    beats(other, {0: WAITS, 1: WAITS, 2: LATE, 3: LATE}, until_s=1)
    beats(other, {0: WAITS, 1: WAITS, 2: LATE}, from_s=1.5, until_s=20)
    assert kinds(other)["stalled"].what == "no step for 20 s: rank 3 is silent, rank 2 is behind"
    resting = a_run()
    beats(resting, dict.fromkeys((0, 1), Where("rest", 100, SCATTER, 0)), until_s=1)
    beats(resting, {1: Where("rest", 100, SCATTER, 0)}, from_s=1.5, until_s=20)
    found = kinds(resting)["stalled"]
    assert (found.severity, found.what) == ("warn", "no step for 20 s: rank 0 is silent")


def test_a_view_with_nothing_known_has_no_finding() -> None:
    """Neither an empty run nor one rank's first word."""
    state = RunState()
    assert state.view().verdicts == ()
    state.apply(hello(0))
    state.apply(Beat(0, 1, 1, 0, 0, 0))
    view: RunView = state.view()
    assert view.verdicts == ()
