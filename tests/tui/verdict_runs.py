"""A run for every kind of verdict, with figures as real trainings have them: for the picture of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from fsdp_tui.telemetry.messages import (
    CATEGORIES,
    Beat,
    Comm,
    Ended,
    Event,
    Gauge,
    Hello,
    Launched,
    Message,
    Outside,
    Step,
    Structure,
    Unit,
    Where,
)
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.telemetry.view import RunView

from .fixtures import MIB, SECOND, STARTED_NS, Recipe, column

GIB = 1024 * MIB
MS = 1_000_000
GATHER, SCATTER, REDUCE = 0, 1, 2
FORWARD, BACKWARD = 0, 1
Call = tuple[int, int, int, int]
"""Unit, kind, phase and bytes."""
Change = Callable[[Any], Any]


@dataclass
class Even(Recipe):
    """Eight GPUs train 7.5 G parameters in 32 blocks; nobody comes late, and theory can speak of all of it."""

    ranks: int = 8
    steps: int = 25
    name: str = "llama-8b"
    device: str = "cuda"
    capacity: int | None = 80 * GIB
    state_bytes: int = 112 * GIB
    activation: int = 10 * GIB
    blocks: int = 32
    exposed_ns: int = 40_000
    """Of each call, which takes 2 ms."""

    def structure(self, rank: int) -> Structure:
        plain = super().structure(rank)
        units = [
            structs.replace(unit, kept=False, reduce_bytes=unit.unsharded_bytes, frozen_params=0, frozen_grad_bytes=0)
            for unit in plain.units
        ]
        detail = {**plain.detail, "shard_group": self.shards, "replicas": self.ranks // self.shards}
        return structs.replace(plain, units=units, detail=detail, frozen_bytes=0)

    def step(self, rank: int, number: int) -> Step:
        return structs.replace(super().step(rank, number), forwards=1, backwards=1)

    def calls(self) -> list[Call]:
        """Of a step, in order."""
        if not self.strategy.startswith("fsdp") or self.shards == 1:
            return []
        nbytes = self.state_bytes // 4 // self.blocks
        forward = [(unit, GATHER, FORWARD, nbytes) for unit in range(self.blocks)]
        backward: list[Call] = []
        for unit in reversed(range(self.blocks)):
            backward += [(unit, GATHER, BACKWARD, nbytes), (unit, SCATTER, BACKWARD, nbytes)]
        return forward + backward

    def comm(self, rank: int, number: int) -> Comm:
        return calls(rank, number, self.calls(), 2 * MS, self.exposed_ns)


class Copies(Even):
    """A hybrid strategy whose shard group is one rank."""

    shards = 1


def calls(rank: int, number: int, made: Sequence[Call], duration_ns: int, exposed_ns: int) -> Comm:
    unit, kind, phase, nbytes = ([call[at] for call in made] for at in range(4))
    count = len(made)
    return Comm(
        rank, number, number, unit, kind, phase, [0] * count, nbytes, [duration_ns] * count, [exposed_ns] * count
    )


def seen(
    recipe: Recipe,
    changes: Mapping[type[Any], Change] | None = None,
    *more: Message,
    without: Sequence[type[Any]] = (),
) -> RunView:
    """The picture of a recipe's run, each of its messages of a type changed, and more of them."""
    state = RunState()
    for message in (*recipe.messages(), *more):
        change = (changes or {}).get(type(message))
        if not isinstance(message, tuple(without)):
            state.apply(change(message) if change else message)
    assert state.bad_records == 0
    return state.view()


def facts(**values: Any) -> dict[type[Any], Change]:
    """Other facts in every rank's structure."""
    return {Structure: lambda told: structs.replace(told, **values)}


def holds(rank: int | None = None, **more: int) -> dict[type[Any], Change]:
    """So many bytes more in these categories, at the peak too, on a rank or on all."""

    def change(step: Step) -> Step:
        if rank not in (None, step.rank):
            return step

        def add(values: list[int | None]) -> list[int | None]:
            names = (*CATEGORIES, "total")
            extra = more | {"total": sum(more.values())}
            return [
                value if value is None else value + extra.get(name, 0)
                for name, value in zip(names, values, strict=True)
            ]

        return structs.replace(step, memory=add(step.memory), peak=add(step.peak))

    return {Step: change}


def beside(**nbytes: int) -> dict[type[Any], Change]:
    """So much in categories that are not part of a rank's total."""

    def put(values: list[int | None]) -> list[int | None]:
        return [nbytes.get(name, value) for name, value in zip((*CATEGORIES, "total"), values, strict=True)]

    return {Step: lambda step: structs.replace(step, memory=put(step.memory), peak=put(step.peak))}


def losses(at: Callable[[int], float], steps: int = 60, only: int | None = None) -> RunView:
    def change(step: Step) -> Step:
        lost = at(step.step)
        return step if only not in (None, step.rank) and not math.isfinite(lost) else structs.replace(step, loss=lost)

    return seen(Even(steps=steps), {Step: change})


def beats(ranks: Mapping[int, Where], seconds: int, after: int = 25) -> Iterable[Beat]:
    """Heartbeats in which nothing moves."""
    begin_ns = STARTED_NS + after * SECOND // 5
    for tick in range(2 * seconds + 1):
        for rank, where in ranks.items():
            yield Beat(rank, 1, begin_ns + tick * SECOND // 2, after, 50, 0, where=where)


def straggler() -> RunView:
    """Rank 5 comes 24 ms late to the first gather of each step, in which the others wait for so long; all phases take as long."""

    def comm(told: Comm) -> Comm:
        mine = [2 * MS] * len(told.unit)
        if told.rank != 5:
            mine[0] += 24 * MS
        return structs.replace(told, duration_ns=mine, exposed_ns=mine)

    def step(told: Step) -> Step:
        input_ns, forward, backward, optimizer, rest = told.phases_ns
        return (
            told if told.rank != 5 else structs.replace(told, phases_ns=[input_ns, forward, backward, optimizer, rest])
        )

    return seen(Even(), {Comm: comm, Step: step})


def trains_nothing() -> RunView:
    def change(step: Step) -> Step:
        memory = column({"param_shard": 28 * GIB // 8})
        return structs.replace(step, memory=memory, peak=memory, loss=10.82)

    return seen(Even(), {Step: change, **facts(optimized=0)})


def creeps() -> RunView:
    def change(step: Step) -> Step:
        extra = step.step * 30 * MIB if step.rank == 3 else 0
        return structs.replace(holds(3, unexplained=extra)[Step](step) if extra else step, looked_step=step.step)

    return seen(Even(steps=60), {Step: change})


def phases(**ns: int) -> dict[type[Any], Change]:
    """Other phases of every step."""
    order = ("input", "forward", "backward", "optimizer", "rest")

    def change(step: Step) -> Step:
        told = [ns.get(name, old) for name, old in zip(order, step.phases_ns, strict=True)]
        return structs.replace(step, phases_ns=told)

    return {Step: change}


def launched(**values: Any) -> dict[type[Any], Change]:
    return {Launched: lambda told: structs.replace(told, **values)}


FSDP1 = Even(strategy="fsdp1:full_shard")
NOTHING = Recipe(name="watched not", ranks=2, steps=0)
WAITS = Where("forward", 101, GATHER, 1, inside=True)
LATE = Where("input", 99, SCATTER, 0)


def made() -> dict[str, RunView]:
    """Kind of verdict -> a run that has it."""
    even = Even()
    whole = [Unit("<root>", 7_516_192_768, 28 * GIB // 8, 28 * GIB, kept=False, reduce_bytes=28 * GIB)]
    adapters = [
        structs.replace(unit, frozen_params=230_000_000, frozen_grad_bytes=115 * MIB)
        for unit in even.structure(0).units
    ]
    twice = [*even.calls(), *((unit, GATHER, BACKWARD, 28 * GIB // 32) for unit in range(32))]
    not_reduced = [call for call in even.calls() if call[1] == GATHER]
    fewer = [call for call in even.calls() if call[0] != 31]
    found: dict[str, RunView] = {
        "strategy_changed": seen(
            Even(strategy="fsdp1:hybrid_shard=2x4", effective="fsdp1:full_shard"),
            facts(detail={"requested": "fsdp1:hybrid_shard=2x4", "shard_group": 8, "replicas": 1}),
        ),
        "not_watched": seen(
            NOTHING,
            None,
            Ended(state="finished", ended_ns=STARTED_NS + SECOND, exit_codes={"0": 0, "1": 0}),
            without=(Hello, Structure, Beat, Gauge),
        ),
        "hybrid_not_sharded": seen(
            Copies(strategy="fsdp1:hybrid_shard=8x1", effective="fsdp1:no_shard", state_bytes=48 * GIB),
            facts(detail={"requested": "fsdp1:hybrid_shard=8x1", "shard_group": 1, "replicas": 8}),
        ),
        "optimizer_not_allocated": seen(Even(steps=0), facts(optimizer_expected_bytes=7 * GIB)),
        "states_match_theory": seen(even),
        "states_off_theory": seen(even, holds(3, optimizer=5 * GIB)),
        "frozen_mixed": seen(FSDP1, facts(units=adapters)),
        "ignored_parameters": seen(
            even, facts(ignored_bytes=500 * MIB, ignored_trainable_bytes=500 * MIB, ignored=["lm_head.weight"])
        ),
        "uneven_shards": seen(
            even,
            {Structure: lambda told: structs.replace(told, padding_bytes=700 * MIB if told.rank == 7 else 0)},
        ),
        "no_sync": seen(even, facts(no_sync_bytes=28 * GIB)),
        "activations_dominate": seen(replace(even, activation=44 * GIB)),
        "tensors_outside": seen(
            even,
            {
                **facts(
                    outside=[Outside("float32 4096x11008", 32, 5 * GIB), Outside("float32 4096x4096", 64, 2 * GIB)]
                ),
                **holds(None, unexplained=3584 * MIB),
            },
        ),
        "two_ranks": seen(replace(even, ranks=2)),
        "shard_grad_op": seen(Even(strategy="fsdp2:shard_grad_op"), holds(None, param_unsharded=27 * GIB)),
        "one_big_unit": seen(even, facts(units=whole, blocks=32, largest_block_params=218_000_000)),
        "policy_matched_nothing": seen(
            even,
            facts(
                units=whole,
                blocks=32,
                largest_block_params=218_000_000,
                detail={"wrap": "LlamaBlock", "wrapped_modules": 0, "shard_group": 8, "replicas": 1},
            ),
        ),
        "exposed_communication": seen(replace(even, exposed_ns=350_000)),
        "straggler": straggler(),
        "rank_outlier": seen(replace(even, heavy_rank=5)),
        "cache": seen(
            even,
            beside(cache=12 * GIB),
            Gauge(0, even.now_ns + 1, {"retries": 3}),
        ),
        "non_torch": seen(
            even,
            beside(non_torch=4 * GIB),
        ),
        "others": seen(
            even,
            beside(others=6 * GIB),
            Gauge(0, even.now_ns + 1, {}, others=[(31_337, 6 * GIB)]),
        ),
        "failed": seen(
            even,
            None,
            Ended(
                state="failed",
                ended_ns=even.now_ns,
                exit_codes={"5": 1},
                failed_rank=5,
                reason="rank 5: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB",
            ),
        ),
        "lost": seen(
            even, None, Ended(state="lost", ended_ns=even.now_ns, exit_codes={}, reason="its launcher was killed")
        ),
        "not_recorded": seen(
            even,
            None,
            Event(
                at_ns=even.now_ns,
                kind="recording_stopped",
                severity="warn",
                text="not recorded since step 12: cannot write /data/run.db: the disk is full; the live view goes on",
                step=12,
            ),
        ),
        "communication_matches_theory": seen(even),
        "less_communication": seen(even, {Comm: lambda told: calls(told.rank, told.step, fewer, 2 * MS, 40_000)}),
        "extra_communication": seen(even, {Comm: lambda told: calls(told.rank, told.step, twice, 2 * MS, 40_000)}),
        "never_reduced": seen(even, {Comm: lambda told: calls(told.rank, told.step, not_reduced, 2 * MS, 40_000)}),
        "ranks_apart": seen(
            Even(strategy="single", device="cpu", capacity=None),
            {**launched(strategy=""), **facts(detail={}), Hello: lambda told: structs.replace(told, backend="none")},
        ),
        "trains_nothing": trains_nothing(),
        "not_covered": seen(even, facts(probes={"sharding": "not available: DeepSpeed shards by means of its own"})),
        "loss_lost": losses(lambda step: math.nan if step > 41 else 3.2, only=6),
        "loss_spike": losses(lambda step: 11.4 if step == 48 else 3.2 + 0.01 * (step * 37 % 11)),
        "memory_creep": creeps(),
        "input_bound": seen(even, phases(input=70 * MS, forward=30 * MS, backward=71 * MS)),
        "rank_silent": seen(even, None, *beats(dict.fromkeys(range(7), WAITS), 30)),
        "stalled": seen(even, None, *beats({**dict.fromkeys(range(8), WAITS), 5: LATE}, 42)),
    }
    return found
