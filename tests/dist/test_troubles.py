"""Each trouble of a training is found, named and counted on two real ranks; healthy trainings of every strategy have none.

Expected bytes are worked out here from the shapes of the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

import pytest

from fsdp_tui.demo.model import GPT
from fsdp_tui.telemetry.messages import Message, Step
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.telemetry.view import STATISTICAL, RunView, Verdict
from tests.dist import troubles
from tests.dist.timings import picture
from tests.dist.troubles import (
    CONTEXT,
    INPUT_S,
    LATE_ON,
    LATE_S,
    LEAK_BYTES,
    NAN_AT,
    NAN_ON,
    SHAPE,
    SPIKE_AT,
    Training,
)
from tests.dist.worlds import run_world

BOTH = ("fsdp1", "fsdp2")
LONG = 26
"""Steps of which all findings may speak, statistics too."""
SHARDINGS = ("full_shard", "shard_grad_op", "no_shard")
COMPUTES = "ddp that computes for long"
"""The one healthy training here whose compute hardly waits: all that gloo moves on a CPU is exposed."""

HEALTHY = {
    **{f"{api}:{sharding}": Training(f"{api}:{sharding}", steps=LONG) for api in BOTH for sharding in SHARDINGS},
    "ddp": Training("ddp", steps=LONG),
    "fsdp2:hybrid_shard=1x2": Training("fsdp2:hybrid_shard=1x2"),
    **{
        f"{api}:{sharding} accumulated{word}": Training(f"{api}:{sharding}", accumulate=2, skip_sync=skip)
        for api in BOTH
        for sharding in SHARDINGS
        for word, skip in (("", False), (" in no_sync", True))
    },
    "ddp accumulated": Training("ddp", accumulate=2),
    "ddp accumulated in no_sync": Training("ddp", accumulate=2, skip_sync=True),
    COMPUTES: Training("ddp", "long compute", steps=LONG),
    **{
        f"{api} {name}={value}": Training(f"{api}:full_shard", options=((name, value),))
        for api in BOTH
        for name, value in (("checkpointing", True), ("prefetch", 1), ("precision", "bf16"))
    },
    "fsdp2 reduce in bf16": Training("fsdp2:full_shard", options=(("precision", "bf16"), ("reduce", "bf16"))),
    "fsdp2 offloaded": Training("fsdp2:full_shard", options=(("cpu_offload", True),)),
    "fsdp2 recomputed units": Training("fsdp2:full_shard", "recomputed units"),
    "fsdp2 evaluates now and then": Training("fsdp2:full_shard", "evaluates at times", steps=13),
}
TROUBLED = {
    **{f"recomputed {api}": Training(f"{api}:full_shard", "recomputed units") for api in BOTH[:1]},
    **{f"twice {api}": Training(f"{api}:full_shard", "twice forward") for api in BOTH},
    **{f"evaluates {api}": Training(f"{api}:full_shard", "evaluates") for api in BOTH},
    **{f"shared {api}": Training(f"{api}:full_shard", "shared block") for api in BOTH},
    **{f"fewer {api}": Training(f"{api}:full_shard", "unused block") for api in BOTH},
    "never reduced ddp": Training("ddp", "never reduced"),
    "never reduced fsdp2": Training("fsdp2:full_shard", "never reduced"),
    "apart": Training("", steps=3),
    "made before fsdp2": Training("fsdp2:full_shard", "made before", steps=LONG),
    "not a number": Training("ddp", "not a number", steps=NAN_AT + 4),
    "spike": Training("fsdp2:full_shard", "spike", steps=SPIKE_AT + 4),
    "leak": Training("fsdp2:full_shard", "leak", steps=2 * LONG),
    "slow input": Training("fsdp1:full_shard", "slow input", steps=LONG),
    **{f"late {api}": Training(f"{api}:full_shard", "late rank", steps=LONG) for api in BOTH},
}
"""And what must be found in each, which nothing else has."""
FOUND = {
    "recomputed": "extra_communication",
    "twice": "extra_communication",
    "evaluates": "extra_communication",
    "shared": "extra_communication",
    "fewer": "less_communication",
    "never": "never_reduced",
    "apart": "ranks_apart",
    "made": "trains_nothing",
    "not": "loss_lost",
    "spike": "loss_spike",
    "leak": "memory_creep",
    "slow": "input_bound",
    "late": "straggler",
}
TIMED = {"straggler"}
"""Findings that a busy machine makes by itself, as it may slow one rank in most steps: who has them is measured again."""
HIDDEN = {"straggler", "input_bound"}
"""And those that it may hide."""
TRIES = 5


@pytest.fixture(scope="module")
def told() -> dict[str, list[list[Message]]]:
    """What both ranks told of each training."""
    found: dict[str, list[list[Message]]] = {}
    disturbed = HEALTHY | TROUBLED
    for _ in range(TRIES):
        found |= _measure(disturbed)
        disturbed = {
            name: training for name, training in disturbed.items() if _is_disturbed(name, picture(found[name]))
        }
        if not disturbed:
            break
    return found


def _is_disturbed(name: str, run: RunView) -> bool:
    """Whether something else than its trouble held this training up."""
    due = {FOUND[name.split()[0]]} if name in TROUBLED else set()
    return bool(TIMED - due & kinds(run).keys() or due & HIDDEN - kinds(run).keys())


def _measure(trainings: dict[str, Training]) -> dict[str, list[list[Message]]]:
    by_rank = run_world(2, troubles.run_all, list(trainings.values()))
    return {name: [messages[at] for messages in by_rank] for at, name in enumerate(trainings)}


@pytest.fixture(scope="module")
def runs(told: dict[str, list[list[Message]]]) -> dict[str, RunView]:
    return {name: picture(ranks) for name, ranks in told.items()}


def kinds(run: RunView) -> dict[str, Verdict]:
    return {verdict.kind: verdict for verdict in run.verdicts}


def alarms(run: RunView) -> list[str]:
    return [f"{verdict.kind}: {verdict.what}" for verdict in run.verdicts if verdict.severity in ("warn", "bad")]


# Expected bytes


def _by_unit() -> dict[str, list[tuple[int, ...]]]:
    """Shapes of the parameters of the root and of each block."""
    units: dict[str, list[tuple[int, ...]]] = {}
    for name, parameter in GPT(SHAPE, CONTEXT).named_parameters():
        unit = ".".join(name.split(".")[:2]) if name.startswith("blocks.") else "<root>"
        units.setdefault(unit, []).append(tuple(parameter.shape))
    return units


def gathered(shapes: list[tuple[int, ...]], itemsize: int = 4) -> int:
    """Bytes of one gather over two ranks: all dimensions of this model are even, nothing is padded."""
    assert all(rows % 2 == 0 for rows, *_ in shapes)
    return itemsize * sum(2 * ceil(rows / 2) * prod(rest) for rows, *rest in shapes)


ROOT = gathered(_by_unit()["<root>"])
BLOCKS = sum(gathered(shapes) for name, shapes in _by_unit().items() if name != "<root>")
BLOCK = BLOCKS // SHAPE.layers
ALL = ROOT + BLOCKS

EXPECTED = {
    # Two gathers of what is freed after forward, one of the root, one reduction.
    **{f"{api}:full_shard": 2 * BLOCKS + ROOT + ALL for api in BOTH},
    **{f"{api}:shard_grad_op": 2 * ALL for api in BOTH},
    **{f"{api}:no_shard": 2 * ALL for api in BOTH},  # an all-reduce moves its bytes twice
    "ddp": 2 * ALL,
    "fsdp2:hybrid_shard=1x2": 2 * BLOCKS + ROOT + ALL,
    **{f"{api}:full_shard accumulated": 2 * (2 * BLOCKS + ROOT + ALL) for api in BOTH},
    **{f"{api}:full_shard accumulated in no_sync": 2 * (2 * BLOCKS + ROOT) + ALL for api in BOTH},
    **{f"{api}:shard_grad_op accumulated": 4 * ALL for api in BOTH},
    # FSDP1 keeps its parameters gathered over the backward that does not reduce, FSDP2 does not.
    "fsdp1:shard_grad_op accumulated in no_sync": 2 * ALL,
    "fsdp2:shard_grad_op accumulated in no_sync": 3 * ALL,
    **{f"{api}:no_shard accumulated": 4 * ALL for api in BOTH},
    **{f"{api}:no_shard accumulated in no_sync": 2 * ALL for api in BOTH},
    "ddp accumulated": 4 * ALL,
    "ddp accumulated in no_sync": 2 * ALL,
    COMPUTES: 2 * ALL,
    **{f"{api} checkpointing=True": 2 * BLOCKS + ROOT + ALL for api in BOTH},
    **{f"{api} prefetch=1": 2 * BLOCKS + ROOT + ALL for api in BOTH},
    **{f"{api} precision=bf16": (2 * BLOCKS + ROOT) // 2 + ALL for api in BOTH},
    "fsdp2 reduce in bf16": (2 * BLOCKS + ROOT + ALL) // 2,
    "fsdp2 offloaded": 2 * BLOCKS + ROOT + ALL,
    "fsdp2 recomputed units": 2 * BLOCKS + ROOT + ALL,
    "fsdp2 evaluates now and then": 2 * BLOCKS + ROOT + ALL,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_trainings_have_no_alarm(name: str, runs: dict[str, RunView]) -> None:
    """And their communication is what theory says, to the byte."""
    run = runs[name]
    assert alarms(run) == []
    verdict = kinds(run)["communication_matches_theory"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("ok", EXPECTED[name], EXPECTED[name])
    assert not set(FOUND.values()) & kinds(run).keys()


@pytest.mark.parametrize("name", TROUBLED)
def test_each_trouble_is_found(name: str, runs: dict[str, RunView]) -> None:
    """As one finding, of a kind of its own."""
    found = kinds(runs[name])
    assert set(FOUND.values()) & found.keys() == {FOUND[name.split()[0]]}
    verdict = found[FOUND[name.split()[0]]]
    assert verdict.measured is not None
    assert verdict.expected is not None
    assert verdict.reason
    assert verdict.next


FOUR = {
    # Gathers and reductions over the two ranks of a shard, then an all-reduce of that half between two replicas.
    **{f"{api}:hybrid_shard=2x2": 2 * BLOCKS + ROOT + ALL + 2 * (ALL // 2) for api in BOTH},
    **{f"{api}:hybrid_shard_zero2=2x2": 2 * ALL + 2 * (ALL // 2) for api in BOTH},
    # The second gather is over two ranks, and to the same whole.
    "fsdp2:reshard=2": 2 * BLOCKS + ROOT + ALL,
}


def test_four_ranks() -> None:
    """What needs four: replicas that shard, and resharding to two."""
    by_rank = run_world(4, troubles.run_all, [Training(strategy, steps=4) for strategy in FOUR])
    for at, (strategy, nbytes) in enumerate(FOUR.items()):
        run = picture([messages[at] for messages in by_rank])
        assert alarms(run) == [], strategy
        verdict = kinds(run)["communication_matches_theory"]
        assert (verdict.expected, verdict.measured) == (nbytes, nbytes), strategy


@pytest.mark.parametrize("api", BOTH)
def test_a_unit_that_takes_no_part(api: str, runs: dict[str, RunView]) -> None:
    """Two gathers and a reduction of it are missing; it has neither gradients nor optimizer states."""
    found = kinds(runs[f"fewer {api}"])
    less = found["less_communication"]
    whole = 2 * BLOCKS + ROOT + ALL
    assert (less.severity, less.expected, less.measured) == ("note", whole, whole - 3 * BLOCK)
    assert "blocks.1 took no part" in less.reason
    assert "communication_matches_theory" not in found
    states = found["states_off_theory"]
    assert (states.severity, states.expected) == ("note", 2 * ALL)
    assert states.measured == pytest.approx(2 * ALL - 1.5 * BLOCK, rel=0.01)
    assert "no gradient reaches" in states.reason


EXTRA = {
    # Recomputation with use_reentrant gathers, frees, and gathers again.
    "recomputed fsdp1": (BLOCKS, "warn", "checkpointing is around the wrapped module"),
    # A second forward gathers what was freed; in FSDP2 its own part of backward does so again.
    "twice fsdp1": (BLOCKS, "note", "the model is called 2 times for 1 backward"),
    "twice fsdp2": (2 * BLOCKS, "note", "the model is called 2 times for 1 backward"),
    "evaluates fsdp1": (BLOCKS, "note", "the model is evaluated in the step"),
    "evaluates fsdp2": (BLOCKS, "note", "the model is evaluated in the step"),
    "shared fsdp1": (BLOCK, "note", "blocks.0 is gathered more than once in a forward"),
    "shared fsdp2": (2 * BLOCK, "note", "blocks.0 is called more than once in a forward"),
}


@pytest.mark.parametrize("name", EXTRA)
def test_extra_communication_has_its_cause(name: str, runs: dict[str, RunView]) -> None:
    """By how many bytes, and where they come from. A root that an evaluation has gathered is there for the next forward."""
    extra, severity, cause = EXTRA[name]
    verdict = kinds(runs[name])["extra_communication"]
    assert verdict.expected == 2 * BLOCKS + ROOT + ALL
    assert verdict.measured == verdict.expected + extra
    assert verdict.severity == severity
    assert cause in verdict.reason


@pytest.mark.parametrize("name", ["never reduced ddp", "never reduced fsdp2", "apart"])
def test_ranks_that_train_apart(name: str, runs: dict[str, RunView]) -> None:
    """All parameters' gradients are missing from between the ranks."""
    verdict = kinds(runs[name])["ranks_apart" if name == "apart" else "never_reduced"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("bad", ALL, 0)
    assert "no gradient is" in verdict.what


def test_an_optimizer_that_was_made_before_wrapping(runs: dict[str, RunView]) -> None:
    """It has none of the model's parameters; the next one to do so is told when it is to be made."""
    verdict = kinds(runs["made before fsdp2"])["trains_nothing"]
    assert (verdict.severity, verdict.expected, verdict.measured) == ("bad", ALL // 4, 0)
    assert "made before the model was wrapped" in verdict.reason


def test_a_lost_loss_is_told_with_its_first_rank(
    told: dict[str, list[list[Message]]], runs: dict[str, RunView]
) -> None:
    """Its gradients reach the other rank in that step's reduction, and its loss in the next. Before it there is nothing."""
    verdict = kinds(runs["not a number"])["loss_lost"]
    assert (verdict.severity, verdict.measured) == ("bad", 5)
    assert f"NaN since step {NAN_AT}" in verdict.what
    assert f"it began on rank {NAN_ON} in step {NAN_AT}, and came to the others in step {NAN_AT + 1}" in verdict.reason
    before = _until(told["not a number"], NAN_AT - 1)
    assert "loss_lost" not in kinds(before)


def test_a_jump_of_the_loss(told: dict[str, list[list[Message]]], runs: dict[str, RunView]) -> None:
    """A thousand times the learning rate in the step before; with 20 losses before it at least."""
    run = runs["spike"]
    verdict = kinds(run)["loss_spike"]
    assert verdict.severity == "warn"
    assert f"in step {SPIKE_AT}" in verdict.what
    assert verdict.measured == run.series.loss[SPIKE_AT - 1]
    assert verdict.measured is not None
    assert verdict.expected is not None
    assert verdict.measured > 2 * verdict.expected
    assert "loss_spike" not in kinds(_until(told["spike"], SPIKE_AT - 1))


def test_memory_that_creeps(told: dict[str, list[list[Message]]], runs: dict[str, RunView]) -> None:
    """By what the script keeps in each step, once enough steps have been looked at."""
    verdict = kinds(runs["leak"])["memory_creep"]
    assert verdict.severity == "warn"
    assert verdict.measured == pytest.approx(LEAK_BYTES, rel=0.1)
    assert "neither the model nor its optimizer" in verdict.reason or "no search has found" in verdict.reason
    assert "so does 1 other rank" in verdict.reason
    early = _until(told["leak"], 22)  # 3 steps settle, 19 have been looked at
    assert "memory_creep" not in kinds(early)
    healthy = runs[COMPUTES]
    assert all(len(rank.looks) >= STATISTICAL for rank in healthy.ranks), "enough to speak of it"
    assert "memory_creep" not in kinds(healthy)


def test_steps_that_wait_for_input(told: dict[str, list[list[Message]]], runs: dict[str, RunView]) -> None:
    """Both ranks sleep before each batch."""
    run = runs["slow input"]
    verdict = kinds(run)["input_bound"]
    assert verdict.severity == "warn"
    assert verdict.measured is not None
    steps = [rank.step_ns for rank in run.ranks if rank.step_ns]
    assert INPUT_S * 1e9 / max(steps) <= verdict.measured + 0.02
    assert verdict.measured < 1
    assert "straggler" not in kinds(run)
    assert "input_bound" not in kinds(_until(told["slow input"], 19))


@pytest.mark.parametrize("api", BOTH)
def test_a_rank_that_the_others_wait_for(
    api: str, told: dict[str, list[list[Message]]], runs: dict[str, RunView]
) -> None:
    """By what it sleeps in its forward, and the first collective after it; not before the statistics are there."""
    verdict = kinds(runs[f"late {api}"])["straggler"]
    step = runs[f"late {api}"].step_median_ns
    assert (verdict.severity, verdict.expected, verdict.unit) == ("warn", 0.1, "share of step")
    assert verdict.measured is not None
    assert step is not None
    assert 0.75 * LATE_S * 1e9 < verdict.measured * step < 1.5 * LATE_S * 1e9
    assert f"wait for rank {LATE_ON}" in verdict.what
    assert "it begins at blocks.2's all-gather in backward; its compute takes" in verdict.reason
    assert "straggler" not in kinds(_until(told[f"late {api}"], 20))


def test_compute_that_waits_for_communication(told: dict[str, list[list[Message]]], runs: dict[str, RunView]) -> None:
    """All of gloo's collectives; not where that is under a twentieth of the step, nor before the statistics are there."""
    shares = {}
    for name in ("fsdp1:full_shard", "fsdp2:full_shard", "ddp", COMPUTES):
        run = runs[name]
        assert run.comm.exposed_ns is not None
        assert run.step_median_ns is not None
        shares[name] = run.comm.exposed_ns / run.step_median_ns
        verdict = kinds(run).get("exposed_communication")
        assert (verdict is not None) == (shares[name] >= 0.05)
        if verdict is not None:
            assert (verdict.severity, verdict.expected, verdict.measured) == ("note", 0.05, shares[name])
        assert "exposed_communication" not in kinds(_until(told[name], 19))
    assert "exposed_communication" in kinds(runs["fsdp2:full_shard"])
    assert "exposed_communication" not in kinds(runs[COMPUTES]), shares


def _until(ranks: list[list[Message]], last: int) -> RunView:
    """The run as it was after this step."""
    state = RunState()
    for rank in ranks:
        for message in _before(rank, last):
            state.apply(message)
    return state.view()


def _before(messages: list[Message], last: int) -> Iterator[Message]:
    for message in messages:
        if isinstance(message, Step) and message.step > last:
            return
        yield message
