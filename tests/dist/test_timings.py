"""Times on real ranks: what is planted is found where it was planted, as long as it was, and nowhere else.

Bounds hold for medians over steps. A case that misses one is measured again: other processes may hold up a rank too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from fsdp_tui.telemetry.messages import COLLECTIVES, COMM_PHASES, PHASES, Comm, Message, Step
from fsdp_tui.telemetry.view import CollectiveStats, RunView
from tests.dist.timings import SLOW, Timed, picture, run_all
from tests.dist.trainings import Case
from tests.dist.worlds import run_world

STEPS = 12
MS = 1_000_000
PLANTED = range(25 * MS, 37 * MS)
ELSEWHERE = 5 * MS
TRIES = 5


@dataclass
class Measured:
    ranks: list[list[Message]]
    run: RunView

    def comms(self, rank: int = 0) -> list[Comm]:
        return [message for message in self.ranks[rank] if isinstance(message, Comm)]

    def steps(self, rank: int = 0) -> list[Step]:
        return [message for message in self.ranks[rank] if isinstance(message, Step)]

    def late(self) -> dict[tuple[str, str, str, int], int]:
        """Unit, kind, phase and rank -> ns per step."""
        return {
            (unit, kind, phase, rank): ns
            for unit, kind, phase, stats in self.parts()
            for rank, ns in stats.late_ns.items()
        }

    def parts(self) -> Iterator[tuple[str, str, str, CollectiveStats]]:
        for unit in self.run.units:
            for kind in COLLECTIVES:
                for phase in ("forward", "backward"):
                    stats: CollectiveStats = getattr(getattr(unit, kind), phase)
                    if stats.per_step:
                        yield unit.name, kind, phase, stats


def late_only_at(unit: str, kind: str, phase: str) -> Callable[[Measured], list[str]]:
    """Rank 1 is late by what was planted at this collective, and nobody anywhere else."""

    def judge(measured: Measured) -> list[str]:
        late = measured.late()
        planted = (unit, kind, phase, SLOW)
        wrong = [f"{key}: {ns / MS:.1f} ms late" for key, ns in late.items() if key != planted and ns > ELSEWHERE]
        if late.get(planted, 0) not in PLANTED:
            wrong.append(f"{planted}: {late.get(planted, 0) / MS:.1f} ms late")
        found = measured.run.lateness
        if found is None or (found.rank, found.unit, found.kind, found.phase) != (SLOW, unit, kind, phase):
            wrong.append(f"named: {found}")
        return wrong

    return judge


def late_input(measured: Measured) -> list[str]:
    """Rank 1 waits for its loader, and the others for it."""
    waited = [dict(zip(PHASES, rank.phases_ns, strict=True))["input"] or 0 for rank in measured.run.ranks]
    found = measured.run.lateness
    wrong = [] if waited[SLOW] in PLANTED and waited[0] < ELSEWHERE else [f"input {waited}"]
    if found is None or found.rank != SLOW or found.ns not in PLANTED:
        wrong.append(f"named: {found}")
    return wrong


def late_buckets(measured: Measured) -> list[str]:
    """DDP's ranks wait at the end of backward."""
    found = measured.run.lateness
    right = found is not None and (found.rank, found.unit) == (SLOW, "buckets") and found.ns in PLANTED
    return [] if right else [f"named: {found}"]


def prefetched(measured: Measured) -> list[str]:
    """Units that are gathered ahead are mostly there when compute comes to need them."""
    covered = [part for part in measured.parts() if part[:3] in COVERED]
    return [
        f"{where}: {stats.exposed_ns} of {stats.duration_ns} ns exposed"
        for *where, stats in covered
        if stats.exposed_ns is None or stats.duration_ns is None or stats.exposed_ns > stats.duration_ns / 2
    ]


COVERED = (
    ("blocks.1", "all_gather", "forward"),
    ("blocks.1", "all_gather", "backward"),
    ("blocks.0", "all_gather", "backward"),
)


def nothing(_: Measured) -> list[str]:
    return []


FSDP1, FSDP2 = "fsdp1:full_shard", "fsdp2:full_shard"
IN_FORWARD = late_only_at("blocks.2", "all_gather", "forward")
IN_BACKWARD = late_only_at("blocks.1", "reduce_scatter", "backward")


def _case(strategy: str, **options: int) -> Case:
    accumulate, skip = options.get("accumulate", 1), bool(options.get("skip_sync", 0))
    return Case(strategy, steps=STEPS, accumulate=accumulate, skip_sync=skip)


CASES: dict[str, tuple[Timed, Callable[[Measured], list[str]]]] = {
    "fsdp1 forward": (Timed(_case(FSDP1), "forward"), IN_FORWARD),
    "fsdp1 backward": (Timed(_case(FSDP1), "backward"), IN_BACKWARD),
    "fsdp2 forward": (Timed(_case(FSDP2), "forward"), IN_FORWARD),
    "fsdp2 backward": (Timed(_case(FSDP2), "backward"), IN_BACKWARD),
    "fsdp1 input": (Timed(_case(FSDP1), "input"), late_input),
    "fsdp2 input": (Timed(_case(FSDP2), "input"), late_input),
    "ddp input": (Timed(_case("ddp"), "input"), late_input),
    "ddp forward": (Timed(_case("ddp"), "forward"), late_buckets),
    "ddp backward": (Timed(_case("ddp"), "backward"), late_buckets),
    "prefetch": (Timed(Case(FSDP2, "large", 8, options=(("prefetch", 1),))), prefetched),
    "no prefetch": (Timed(Case(FSDP2, "large", 8)), nothing),
    "fsdp1 accumulate": (Timed(_case(FSDP1, accumulate=2), clip=True), nothing),
    "fsdp2 no_sync": (Timed(_case(FSDP2, accumulate=2, skip_sync=1)), nothing),
    "ddp accumulate": (Timed(_case("ddp", accumulate=2)), nothing),
    "ddp no_sync": (Timed(_case("ddp", accumulate=2, skip_sync=1)), nothing),
}
PLANTED_CASES = [name for name, (_, judge) in CASES.items() if judge is not nothing]


@pytest.fixture(scope="module")
def measured() -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    missed = list(CASES)
    for _ in range(TRIES):
        found |= _measure(missed)
        missed = [name for name in missed if CASES[name][1](found[name])]
        if not missed:
            break
    return found


def _measure(names: list[str]) -> dict[str, Measured]:
    ranks = run_world(2, run_all, [CASES[name][0] for name in names])
    told = {name: [rank[at] for rank in ranks] for at, name in enumerate(names)}
    return {name: Measured(messages, picture(messages)) for name, messages in told.items()}


@pytest.mark.parametrize("name", PLANTED_CASES)
def test_what_was_planted_is_found(measured: dict[str, Measured], name: str) -> None:
    """In forward at the next unit's all-gather; in backward at the block's own reduction, the next gather being there."""
    assert CASES[name][1](measured[name]) == []


def test_exposed_and_overlapped_are_the_duration(measured: dict[str, Measured]) -> None:
    """Of every call: all of a synchronous one is exposed, never more than all of another."""
    for name, one in measured.items():
        for comm in one.comms(0) + one.comms(1):
            for spent, exposed in zip(comm.duration_ns, comm.exposed_ns, strict=True):
                assert (spent, exposed) == (-1, -1) if name.startswith("ddp") else 0 <= exposed <= spent
        for *_, stats in one.parts():
            assert stats.duration_ns is not None
            assert (stats.exposed_ns or 0) + (stats.overlapped_ns or 0) == stats.duration_ns
            assert name == "prefetch" or stats.overlapped_ns == 0


def test_prefetch_lowers_what_is_exposed(measured: dict[str, Measured]) -> None:
    """From all of a gather to less than half, for the units that it covers; the facts say which setting it was.

    Shares of the gather's own time: what a gather takes is another matter when other processes load the machine.
    """
    shares = [
        {part[:3]: (part[3].exposed_ns or 0) / (part[3].duration_ns or 1) for part in measured[name].parts()}
        for name in ("prefetch", "no prefetch")
    ]
    for part in COVERED:
        assert shares[0][part] < 0.5, part
        assert shares[1][part] == 1.0, part
    detail = measured["prefetch"].run.detail
    assert [detail[name] for name in ("forward_prefetch", "backward_prefetch", "asynchronous_unshard")] == [1, 1, True]
    plain = measured["no prefetch"].run.detail
    assert [plain[name] for name in ("forward_prefetch", "backward_prefetch", "asynchronous_unshard")] == [
        0,
        "default",
        False,
    ]
    fsdp1 = measured["fsdp1 input"].run.detail
    assert [fsdp1[name] for name in ("forward_prefetch", "backward_prefetch", "limit_all_gathers")] == [
        False,
        "backward_pre",
        True,
    ]


def test_phases_add_up_to_the_step(measured: dict[str, Measured]) -> None:
    """To the nanosecond, under accumulation too, where a step is an optimizer step; and the first stays out of medians."""
    for one in measured.values():
        for step in one.steps():
            assert sum(ns or 0 for ns in step.phases_ns) == step.step_ns
    accumulated = measured["fsdp1 accumulate"]
    assert [step.step for step in accumulated.steps()] == list(range(1, STEPS + 1))
    assert accumulated.run.lateness is not None
    assert accumulated.run.lateness.steps == STEPS - 1
    for one in measured.values():
        phases = dict(zip(PHASES, one.run.ranks[0].phases_ns, strict=True))
        exposed = dict(zip(COMM_PHASES, one.run.ranks[0].exposed_ns, strict=True))
        for phase in ("forward", "backward"):
            assert (exposed[phase] or 0) <= (phases[phase] or 0)


def test_accumulation(measured: dict[str, Measured]) -> None:
    """Two micro-batches gather twice and reduce twice, or once inside no_sync; clipping reduces one fp32 norm outside both."""
    twice, once = measured["fsdp1 accumulate"].run, measured["fsdp2 no_sync"].run
    for unit in twice.units:
        assert unit.reduce_scatter.step.per_step == 2
    for unit in once.units:
        assert (unit.all_gather.forward.per_step, unit.reduce_scatter.step.per_step) == (2, 1)
    assert twice.comm.all_reduce_bytes == 4
    clipping = measured["fsdp1 accumulate"].comms()[-1]
    assert (clipping.unit[-1], clipping.kind[-1], clipping.phase[-1]) == (-1, 2, COMM_PHASES.index("other"))
    reduced = [measured[name].run.comm.all_reduce_bytes for name in ("ddp accumulate", "ddp no_sync")]
    size = measured["ddp no_sync"].run.param_bytes
    assert reduced == [2 * size, size]


def test_ddp_s_times_are_of_all_buckets_together(measured: dict[str, Measured]) -> None:
    """And the probe says so; exposed is what was left of them when the gradients were there."""
    run = measured["ddp input"].run
    assert run.probes["collectives"].endswith("counted per bucket and timed all together")
    assert run.comm.buckets_ns is not None
    assert run.comm.buckets_exposed_ns is not None
    assert 0 < run.comm.buckets_exposed_ns <= run.comm.buckets_ns
    assert run.buckets[0].all_reduce.step.median_ns is None
