"""What a strategy must move in a step, and what was moved.

With F forwards and B backwards in a step, of which S reduce (all, or under no_sync the last), each unit of FSDP

- is gathered once for each forward that a backward follows, and once more for each backward unless its parameters were kept.
  FSDP1 keeps those of SHARD_GRAD_OP over backwards that do not reduce too: then it is once for each that does;
- is reduce-scattered S times, all-reduced S times between replicas, with 1/shard of the bytes.

DDP all-reduces the gradients of all parameters S times. That is 3 times the parameters per step for full_shard and 2 times
for shard_grad_op and DDP (an all-reduce is a reduce-scatter and an all-gather, and moves its bytes twice), less what the root
keeps. Bytes are of the types that are gathered and reduced, with padding, per step and rank: gathered output, reduce input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fsdp_tui.telemetry.collectives import BACKWARD, FORWARD
from fsdp_tui.telemetry.messages import Structure, Unit
from fsdp_tui.telemetry.strategy import Strategy, StrategyError, parse_strategy
from fsdp_tui.telemetry.view import RunView, UnitView

KEPT_BY_STRATEGY = ("shard_grad_op", "hybrid_shard_zero2")


class Volume(NamedTuple):
    """Bytes per step and rank."""

    all_gather: int = 0
    reduce_scatter: int = 0
    all_reduce: int = 0

    @property
    def moved(self) -> int:
        """Of all together, an all-reduce twice."""
        return self.all_gather + self.reduce_scatter + 2 * self.all_reduce


@dataclass(frozen=True, slots=True)
class Share:
    """What one unit, or DDP's buckets together, moved and should have moved."""

    name: str
    expected: Volume
    measured: Volume
    parameters: int
    """Bytes of one gather, or of the gradients where nothing is gathered."""
    forward_gathers: float = 0
    """Calls per step."""
    backward_gathers: float = 0
    other_gathers: float = 0
    """Outside forward and backward: an evaluation's."""
    expected_forward: int = 0
    expected_backward: int = 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """A whole step's."""

    shares: tuple[Share, ...]
    forwards: int
    backwards: int
    reducing: int
    """Backwards whose gradients are reduced."""

    @property
    def expected(self) -> Volume:
        return _sum(share.expected for share in self.shares)

    @property
    def measured(self) -> Volume:
        return _sum(share.measured for share in self.shares)

    @property
    def parameters(self) -> int:
        return sum(share.parameters for share in self.shares)


def traffic(run: RunView) -> Traffic | None:
    """None where there is no theory: strategies that are not known, several models in one training, steps whose forwards and
    backwards were not counted, and ranks that do not share a training."""
    lead = next((rank.structure for rank in run.ranks if rank.structure), None)
    strategy = _strategy(run)
    if lead is None or strategy is None or not run.backwards or not run.forwards or run.world_size < 2:
        return None
    if run.comm_alike is None or lead.detail.get("roots"):
        return None
    if strategy.api == "ddp":
        return _of_buckets(run, lead, run.forwards, run.backwards)
    replicas = lead.detail.get("replicas")
    if not strategy.is_fsdp or not isinstance(replicas, int):
        return None
    if not lead.units or any(unit.reduce_bytes is None or unit.kept is None for unit in lead.units):
        return None
    return _of_units(run, lead, strategy, replicas, run.forwards, run.backwards)


def _strategy(run: RunView) -> Strategy | None:
    try:
        return parse_strategy(run.effective)
    except StrategyError:
        return None


def _of_buckets(run: RunView, lead: Structure, forwards: int, backwards: int) -> Traffic | None:
    if not run.buckets or lead.frozen_bytes is None:
        return None
    trained = lead.param_bytes - lead.frozen_bytes
    reducing = min(backwards, round(max(bucket.all_reduce.step.per_step for bucket in run.buckets)))
    moved = Volume(all_reduce=sum(bucket.all_reduce.step.bytes for bucket in run.buckets))
    share = Share("DDP's buckets", Volume(all_reduce=reducing * trained), moved, trained)
    return Traffic((share,), forwards, backwards, reducing)


def _of_units(
    run: RunView, lead: Structure, strategy: Strategy, replicas: int, forwards: int, backwards: int
) -> Traffic:
    shards = strategy.shard_group_size(run.world_size)
    pairs = list(zip(run.units, lead.units, strict=True))
    calls = [(seen.reduce_scatter if shards > 1 else seen.all_reduce).step.per_step for seen, _ in pairs]
    reducing = min(backwards, round(max(calls)))
    followed = min(forwards, backwards)  # of the forwards, those that have a backward
    shares = []
    for seen, unit in pairs:
        ahead, again = followed, 0 if unit.kept else backwards
        if strategy.api == "fsdp1" and strategy.sharding in KEPT_BY_STRATEGY:
            ahead = min(followed, max(1, reducing))
        if unit.frozen_params is not None and unit.frozen_params >= unit.params:
            again = min(again, round(seen.all_gather.in_phase(BACKWARD).calls))  # nothing may need its gradient
        if shards == 1:
            ahead = again = 0
        reduced = reducing * (unit.reduce_bytes or 0)
        expected = Volume(
            (ahead + again) * unit.unsharded_bytes,
            reduced if shards > 1 else 0,
            reduced // shards if replicas > 1 else 0,
        )
        shares.append(_share(seen, unit, expected, ahead, again, run.comm_alike or 0, replicas))
    return Traffic(tuple(shares), forwards, backwards, reducing)


def _share(seen: UnitView, unit: Unit, expected: Volume, ahead: int, again: int, alike: float, replicas: int) -> Share:
    gathers = seen.all_gather
    forward, backward = gathers.in_phase(FORWARD).calls, gathers.in_phase(BACKWARD).calls
    other, gathered = gathers.step.per_step - forward - backward, gathers.step.bytes
    if alike < 0.5 and other > 0:
        # A step unlike the others, as one with an evaluation after it is: what is outside the training is left out, but
        # for the gather that a forward would have made.
        counted = forward + backward + min(other, max(0.0, ahead - forward))
        gathered, other = round(gathered * counted / gathers.step.per_step), 0
    return Share(
        name=seen.name,
        expected=expected,
        measured=Volume(
            gathered,
            seen.reduce_scatter.step.bytes,
            seen.all_reduce.step.bytes if replicas > 1 else 0,  # over one rank nothing is moved
        ),
        parameters=unit.unsharded_bytes or unit.reduce_bytes or 0,
        forward_gathers=forward,
        backward_gathers=backward,
        other_gathers=other,
        expected_forward=ahead,
        expected_backward=again,
    )


def _sum(volumes: Iterator[Volume]) -> Volume:
    columns = list(zip(*volumes, strict=True))
    return Volume(*(sum(column) for column in columns)) if columns else Volume()
