"""Whether a training does well, beside its memory: what it communicates against theory, its loss, memory that creeps, input
that it waits for, ranks that train apart or stand still (`stalls`). Pure functions from a picture of a run to findings, as in `verdicts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry import stalls
from fsdp_tui.telemetry.collectives import median_known
from fsdp_tui.telemetry.losses import lost
from fsdp_tui.telemetry.messages import CATEGORIES, PHASES
from fsdp_tui.telemetry.view import (
    STATISTICAL,
    STRUCTURAL,
    Floats,
    RankView,
    RunView,
    Verdict,
    category,
    typical,
)
from fsdp_tui.telemetry.volume import Traffic, traffic
from fsdp_tui.telemetry.wording import count, duration, listed, percent, size
from fsdp_tui.telemetry.wording import ranks as ranks_named

AGREES = 0.01
"""Of what theory says, by which the communication of a step may differ from it."""
APART = 0.01
"""Of the trained parameters' bytes: ranks that reduce less than this between them in a step train apart."""
SPIKE_WINDOW = 50
"""Losses before a step that its own is held against."""
SPIKE_SETTLED = 5
"""Losses that the median of must be known before any is held against it."""
SPIKE_DEVIATIONS, SPIKE_RANGES = 10.0, 3.0
"""How far above their median a loss must be: in deviations of late, and in times what was the most before."""
NEWEST = 512
"""Steps in which a spike is still worth a finding."""
CREEP_QUARTER = 1 / 3
"""Of the average growth, that memory must have grown by from each quarter of the looks to the next: it has not settled."""
CREEP_LEAST, CREEP_BYTES = 0.01, 1 << 20
"""Growth that is worth a finding: of the level, and in bytes."""
CREEP_AHEAD, CREEP_SHARE = 10_000, 0.05
"""And in so many more steps it must come to this much of the level."""
CREEP_NEWEST = 32
"""Looks that a creep is searched for in when there is none over the whole run: it may have begun late."""
INPUT_SHARE = 0.2
"""Of the step, from which on waiting for input is a finding."""


# Communication


def communication(run: RunView) -> Iterator[Verdict]:
    """Bytes per step against what the strategy must move, and what moves more or less."""
    found = traffic(run)
    if run.steps < STRUCTURAL or found is None:
        return
    expected, measured = found.expected.moved, found.measured.moved
    if not found.reducing:
        if sum(share.parameters for share in found.shares):
            yield _never_reduced(run, found)
        return
    times = measured / found.parameters if found.parameters else 0.0
    numbers = _parts(found) + _kept(found)
    if abs(measured - expected) <= AGREES * expected:
        yield Verdict(
            kind="communication_matches_theory",
            severity="ok",
            what=f"{size(measured)} is communicated per step, {times:.2f} times the parameters, as theory says",
            expected=expected,
            measured=measured,
            unit="bytes",
            reason=numbers,
            next="",
        )
    elif measured > expected:
        yield _extra(found, numbers)
    else:
        fewer = [share.name for share in found.shares if share.measured.moved < (1 - AGREES) * share.expected.moved]
        yield Verdict(
            kind="less_communication",
            severity="note",
            what=f"{size(expected - measured)} less is communicated per step than the strategy moves",
            expected=expected,
            measured=measured,
            unit="bytes",
            reason=f"{listed(fewer)} took no part in every forward and backward; {numbers}",
            next="unused parts are sharded and stored all the same: leave them out, or freeze them",
        )


def _parts(found: Traffic) -> str:
    measured = found.measured
    parts = [
        f"{name} {size(nbytes)}{also}"
        for name, nbytes, also in (
            ("all-gather", measured.all_gather, ""),
            ("reduce-scatter", measured.reduce_scatter, ""),
            ("all-reduce", measured.all_reduce, ", which moves its bytes twice"),
        )
        if nbytes
    ]
    passes = ""
    if found.backwards > 1:
        passes = f", for {count(found.backwards, 'backward')}"
        passes += f" of which {found.reducing} reduce" if found.reducing < found.backwards else ""
    return f"per step and rank: {', '.join(parts) or 'nothing'}{passes}"


def _kept(found: Traffic) -> str:
    """Which units of many are gathered once less than the others."""
    kept = [share.name for share in found.shares if share.expected_forward and not share.expected_backward]
    if not kept or len(kept) == len(found.shares):
        return ""
    return f"; {_names(kept)} kept from forward to backward, which saves a gather"


def _extra(found: Traffic, numbers: str) -> Verdict:
    """More than theory: what gathers or reduces more often, with the units it is of."""
    shares = found.shares
    again = [share for share in shares if share.backward_gathers > share.expected_backward]
    ahead = [share for share in shares if share.forward_gathers > share.expected_forward]
    beside = [share for share in shares if share.other_gathers > 0]
    causes, advice, severity = [], [], "note"
    if found.forwards > found.backwards:
        causes.append(f"the model is called {found.forwards} times for {count(found.backwards, 'backward')}")
        advice.append("call it once with a larger batch, if both calls need not be apart")
    elif ahead and again and {share.name for share in ahead} >= {share.name for share in again}:
        causes.append(f"{_names(share.name for share in ahead)} called more than once in a forward")
        advice.append("wrap the module that calls it, so that all calls use one gather")
    elif ahead:
        causes.append(f"{_names(share.name for share in ahead)} gathered more than once in a forward")
        advice.append("wrap the module around them, so that all calls use one gather")
    elif again:
        severity = "warn"
        causes.append(
            f"{_names(share.name for share in again)} gathered again in backward: checkpointing is around the wrapped module"
        )
        advice.append(
            "checkpoint inside of it, or with use_reentrant=False: then recomputing uses backward's own gather"
        )
    if beside:
        causes.append("the model is evaluated in the step, which gathers all of it")
        advice.append("evaluate less often, or accept the time it takes")
    extra = found.measured.moved - found.expected.moved
    return Verdict(
        kind="extra_communication",
        severity=severity,
        what=f"{size(extra)} more is communicated per step than the strategy needs: {percent(extra / found.expected.moved, signed=True)}",
        expected=found.expected.moved,
        measured=found.measured.moved,
        unit="bytes",
        reason=f"{'; '.join(causes) or 'units take part more often than the model is called'}; {numbers}",
        next="; ".join(advice) or "see the units' calls per step",
    )


def _names(units: Iterable[str]) -> str:
    names = list(units)
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'}"


def _never_reduced(run: RunView, found: Traffic) -> Verdict:
    expected = sum(share.parameters for share in found.shares)
    return Verdict(
        kind="never_reduced",
        severity="bad",
        what=f"no gradient is reduced between the {run.world_size} ranks: each trains a model of its own",
        expected=expected,
        measured=0,
        unit="bytes",
        reason=f"{run.effective} reduces gradients in backward, and in {count(found.backwards, 'backward')} per step none were",
        next="leave no_sync (set_requires_gradient_sync) before the last backward, and call the wrapped model, not the one"
        " inside it",
    )


def ranks_apart(run: RunView) -> Iterator[Verdict]:
    """Several ranks, and nothing that reduces gradients between them: the worst outcome, and a silent one."""
    ranks = max(run.world_size, len(run.ranks))
    there = [rank.structure for rank in run.ranks if rank.structure is not None]
    if (
        run.steps < STRUCTURAL
        or ranks < 2
        or len(there) < ranks
        or "sharding" in run.probes
        or not run.trainable_params
    ):
        return
    detail = run.detail
    alone = run.effective == "single" or (detail.get("shard_group"), detail.get("replicas")) == (1, 1)
    if not alone or detail.get("beside"):
        return
    if len({(one.params, one.trainable_params) for one in there}) > 1:  # stages of a pipeline are other models
        return
    trained = run.param_bytes * run.trainable_params // max(1, run.params)
    reduced = (run.comm.all_reduce_bytes or 0) + (run.comm.reduce_scatter_bytes or 0)
    groups = {tuple(group) for one in there for group in one.groups}
    if run.effective == "single" and reduced >= APART * trained:  # by the script's own hand
        return
    if run.effective != "single" and not all(len(group) == 1 for group in groups):
        return
    met = any(rank.hello is not None and rank.hello.backend != "none" for rank in run.ranks)
    yield Verdict(
        kind="ranks_apart",
        severity="bad",
        what=f"{ranks} ranks train {ranks} models: no gradient is reduced between them",
        expected=trained,
        measured=reduced if run.effective == "single" else 0,
        unit="bytes",
        reason="the model is not wrapped"
        + ("" if met else ", and there is no process group")
        + ": each rank sees its own data only"
        if run.effective == "single"
        else f"{run.effective} runs over groups of one rank",
        next="wrap it with DDP or FSDP; a launcher's own switch for it may be off (accelerate: fsdp_config, distributed_type)"
        if run.effective == "single"
        else "give the mesh (replicate x shard): without one a CPU rank takes itself for a node",
    )


def trains_nothing(run: RunView) -> Iterator[Verdict]:
    """An optimizer that was made before wrapping has parameters that nobody uses any more."""
    there = [rank.structure for rank in run.ranks if rank.structure is not None]
    if run.steps < STRUCTURAL or not there or any(one.optimized != 0 for one in there) or not run.trainable_params:
        return
    if any(category(rank.memory, "optimizer") for rank in run.ranks):  # it has states: it steps something
        return
    losses = run.series.loss[run.series.loss_known][-STATISTICAL:]
    still = len(losses) == STATISTICAL and bool((losses == losses[0]).all())
    yield Verdict(
        kind="trains_nothing",
        severity="bad",
        what="no optimizer has a parameter of the model: nothing is trained",
        expected=run.trainable_params,
        measured=0,
        unit="parameters",
        reason="an optimizer that was made before the model was wrapped keeps the parameters that wrapping has replaced"
        + (f"; the loss has been {losses[0]:.6g} for {STATISTICAL} steps" if still else ""),
        next="make the optimizer after wrapping, from the wrapped model's parameters()",
    )


def not_covered(run: RunView) -> Iterator[Verdict]:
    """Libraries that shard by means of their own."""
    said = run.probes.get("sharding", "ok")
    if said == "ok":
        return
    yield Verdict(
        kind="not_covered",
        severity="note",
        what=said.removeprefix("not available: "),
        expected=None,
        measured=None,
        unit="",
        reason="only PyTorch's own DDP, FSDP1 and FSDP2 are looked into",
        next="totals of memory, phases and loss are right all the same",
    )


# Loss


def loss_lost(run: RunView) -> Iterator[Verdict]:
    """A loss that is no number, or infinite."""
    found = lost(run)
    if found is None:
        return
    first, still = found.step, found.still
    word = "NaN" if found.word == "nan" else "infinite"
    by_rank = {rank.rank: rank.lost_at for rank in run.ranks if rank.lost_at is not None}
    began = min(by_rank.values(), default=None)
    earliest = [rank for rank, step in by_rank.items() if step == began]
    later = [step for step in by_rank.values() if step != began]
    where = ""
    if began is not None:
        where = f"it began on {ranks_named(earliest)} in step {began:,}"
        if later:
            where += f", and came to the others in step {min(later):,}"
        elif len(by_rank) == len(run.ranks) > 1:
            where = f"on all ranks at once, in step {began:,}"
    low = run.detail.get("precision") in ("fp16", "float16")
    yield Verdict(
        kind="loss_lost",
        severity="bad" if still else "warn",
        what=f"the loss has been {word} since step {first:,}" if still else f"the loss was {word} in step {first:,}",
        expected=0,
        measured=found.steps,
        unit="steps",
        reason=where,
        next=(
            "fp16 overflows at 65,504: use bf16, or a gradient scaler"
            if low
            else "lower the learning rate, clip gradients"
        )
        + (f"; look at what {ranks_named(earliest)} read in that step" if 0 < len(earliest) < len(run.ranks) else "")
        + ("" if not still else "; go back to a checkpoint before it: weights that are no numbers stay so"),
    )


def loss_spike(run: RunView) -> Iterator[Verdict]:
    """A loss far above those before it, by their own spread."""
    known = run.series.loss_known & np.isfinite(run.series.loss)
    losses = run.series.loss[known][-(NEWEST + SPIKE_WINDOW) :]
    steps = run.series.steps[known][-(NEWEST + SPIKE_WINDOW) :]
    found = _spikes(losses)
    if not found:
        return
    newest = found[-1]
    before, after = losses[max(0, newest - SPIKE_WINDOW) : newest], losses[newest + 1 :]
    usual = float(np.median(before))
    spread = float(np.median(np.abs(before - usual)))
    halfway = (usual + float(losses[newest])) / 2
    back = len(after) >= 3 and float(np.median(after[-STATISTICAL:])) < halfway
    yield Verdict(
        kind="loss_spike",
        severity="warn",
        what=f"the loss jumped to {losses[newest]:.4g} in step {int(steps[newest]):,}, from {usual:.4g}",
        expected=usual,
        measured=float(losses[newest]),
        unit="loss",
        reason=f"half of the {count(len(before), 'step')} before it were within {spread:.2g} of that"
        + (f"; {count(len(found), 'jump')} in the newest {min(NEWEST, len(losses)):,} steps" if len(found) > 1 else "")
        + ("; it came back" if back else ""),
        next="look at that step's batch and learning rate; clip gradients",
    )


def _spikes(losses: Floats) -> list[int]:
    """Positions of losses that stand out, of which STATISTICAL others come before it at least.

    Each is held against the median of the SPIKE_WINDOW before it: what it is above that must be far more than it ever was
    before, and than its deviation of late. So a loss that falls is no trouble, one that stays up is one jump, and hard batches
    that come again and again are none.
    """
    if len(losses) <= STATISTICAL:
        return []
    padded = np.concatenate([np.full(SPIKE_WINDOW, np.nan), losses])
    windows = np.lib.stride_tricks.sliding_window_view(padded, SPIKE_WINDOW)[:-1]
    usual = median_known(windows)
    above = losses - usual
    above[:SPIKE_SETTLED] = 0.0  # held against too few
    reach = np.maximum.accumulate(np.maximum(above, 0.0))
    squares = np.cumsum(np.concatenate([[0.0], above**2]))
    sums = np.cumsum(np.concatenate([[0.0], above]))
    at = np.arange(STATISTICAL, len(losses))
    first = np.maximum(0, at - SPIKE_WINDOW)
    mean = (sums[at] - sums[first]) / (at - first)
    deviation = np.sqrt(np.maximum(0.0, (squares[at] - squares[first]) / (at - first) - mean**2))
    own = above[at]
    stands_out = (own > SPIKE_DEVIATIONS * deviation) & (own > SPIKE_RANGES * reach[at - 1])
    return [int(position) for position in at[stands_out & (own > 1e-3 * np.abs(usual[at]))]]


# Memory


class Creep(NamedTuple):
    rate: float
    """Bytes per step."""
    grown: int
    since: int
    """The step of the first look."""
    looks: int
    category: str


def memory_creep(run: RunView) -> Iterator[Verdict]:
    """Memory between two steps that goes on growing."""
    found = [(creep, rank) for rank in run.ranks if (creep := _creep(rank)) is not None]
    if not found:
        return
    creep, rank = max(found, key=lambda pair: pair[0].rate)
    others = len(found) - 1
    capacity = rank.hello.capacity_bytes if rank.hello and rank.hello.device.startswith("cuda") else None
    level = _level(rank.looks[-1][1], on_cpu=False)
    left = ""
    if capacity and level is not None and capacity > level:
        left = f"; at this rate it is full in {(capacity - level) / creep.rate:,.0f} steps"
    why, advice = CREEPS.get(creep.category, (f"it is {creep.category}", "see what is made anew in each step and kept"))
    yield Verdict(
        kind="memory_creep",
        severity="warn",
        what=f"rank {rank.rank} grows by {size(creep.rate)} per step since step {creep.since:,}: {size(creep.grown)} so far",
        expected=0,
        measured=creep.rate,
        unit="bytes",
        reason=f"{why}; over {creep.looks} looks"
        + (f", and so {'does' if others == 1 else 'do'} {count(others, 'other rank')}" if others else "")
        + left,
        next=advice,
    )


CREEPS = {
    "unexplained": (
        "tensors that neither the model nor its optimizer owns",
        "something keeps them from step to step: losses or outputs in a list, without detach() or item()",
    ),
    "non_torch": (
        "memory that no search has found tensors for: kept since, held by a graph that is kept, or Python's own",
        "sum losses with loss.item() or loss.detach(); look for lists and caches that grow",
    ),
    "optimizer": ("optimizer states", "parameters are added in every step, or states are kept of those that are gone"),
    "grad_unsharded": ("full gradients that are not reduced", "leave no_sync before the last backward"),
    "param_unsharded": ("parameters that stay gathered", "an unshard() or summon_full_params that nothing ends"),
    "comm_buffer": ("buffers of collectives", "asynchronous calls that nobody waits for"),
}


def _creep(rank: RankView) -> Creep | None:
    """Over the whole run, or over the newest looks."""
    return _steady_growth(rank, rank.looks) or _steady_growth(rank, rank.looks[-CREEP_NEWEST:])


def _steady_growth(rank: RankView, looks: Sequence[tuple[int, Sequence[int | None]]]) -> Creep | None:
    if len(looks) < STATISTICAL:
        return None
    on_cpu = rank.hello is not None and rank.hello.device == "cpu"
    first, last = _level(looks[0][1], on_cpu), _level(looks[-1][1], on_cpu)
    if first is None or last is None or last - first < max(CREEP_LEAST * first, CREEP_BYTES):
        return None  # as nearly every rank, and at once
    steps = np.array([step for step, _ in looks], dtype=np.float64)
    levels = np.array([_level(column, on_cpu) for _, column in looks], dtype=np.float64)
    quarters = np.array_split(np.arange(len(looks)), 4)
    heights = np.array([np.median(levels[quarter]) for quarter in quarters])
    grown = float(heights[-1] - heights[0])
    goes_on = np.diff(heights).min() >= CREEP_QUARTER * grown / 3
    if not goes_on or not grown >= max(CREEP_LEAST * heights[0], CREEP_BYTES):
        return None
    rate = grown / float(np.median(steps[quarters[-1]]) - np.median(steps[quarters[0]]))
    if rate * CREEP_AHEAD < CREEP_SHARE * heights[0]:
        return None
    growth = {name: _grown([column for _, column in looks], quarters, name) for name in CATEGORIES}
    return Creep(rate, last - first, looks[0][0], len(looks), max(growth, key=lambda name: growth[name]))


def _level(column: Sequence[int | None], on_cpu: bool) -> int | None:
    """All that the rank's tensors take; of a CPU all of the heap, since what grows there is known only when it is searched."""
    if len(column) <= len(CATEGORIES):
        return None
    whole, heap = column[len(CATEGORIES)], column[CATEGORIES.index("non_torch")] if on_cpu else 0
    return None if whole is None or heap is None else whole + heap


def _grown(columns: Sequence[Sequence[int | None]], quarters: Sequence[NDArray[np.int64]], name: str) -> float:
    """By how much a category's median is higher in the last quarter than in the first; 0 where it is not known."""
    at = CATEGORIES.index(name)
    values = np.array([column[at] if at < len(column) else None for column in columns], dtype=np.float64)
    grown = float(np.median(values[quarters[-1]]) - np.median(values[quarters[0]]))
    return grown if np.isfinite(grown) else 0.0


# Time


def input_bound(run: RunView) -> Iterator[Verdict]:
    """Steps that wait for their input on the usual rank; a single slow one is a straggler."""
    waited = [rank.phases_ns[PHASES.index("input")] if rank.phases_ns else None for rank in run.ranks]
    spent, step = typical(waited), typical([rank.step_ns for rank in run.ranks])
    if run.steps < STATISTICAL or not spent or not step or spent < INPUT_SHARE * step:
        return
    yield Verdict(
        kind="input_bound",
        severity="warn",
        what=f"{percent(spent / step)} of each step is waiting for input",
        expected=INPUT_SHARE,
        measured=spent / step,
        unit="share of step",
        reason=f"{duration(spent)} of {duration(step)}, on the usual rank",
        next="give the DataLoader more workers, let them prefetch, or prepare the data beforehand",
    )


RULES = (
    communication,
    ranks_apart,
    trains_nothing,
    not_covered,
    loss_lost,
    loss_spike,
    memory_creep,
    input_bound,
    *stalls.RULES,
)
