"""What the screens, `show` and the verdicts read: one immutable picture of a run.

Live, recorded and paused runs give the same picture. `None` means not known, everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from statistics import median_low
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry.collectives import BACKWARD, FORWARD
from fsdp_tui.telemetry.grid import CommGrid
from fsdp_tui.telemetry.mesh import Dimension
from fsdp_tui.telemetry.messages import (
    CATEGORIES,
    TOTAL_CATEGORIES,
    Capture,
    Ended,
    Event,
    Hello,
    Launched,
    Stack,
    Structure,
)

Floats = NDArray[np.float64]
Column = tuple[int | None, ...]
"""Bytes per category in the order of CATEGORIES, then the total."""

BUCKETS = "buckets"
"""Stands for DDP's gradient buckets where a unit's name is told: their times are known only together."""
_PLACES = {name: at for at, name in enumerate(CATEGORIES)}
STATE_CATEGORIES = ("param_shard", "grad_shard", "optimizer")
"""The model states that sharding divides."""


def category(column: Column, name: str) -> int | None:
    """Bytes of one category; None when it, or the whole column, is not known, or an older program had no such category."""
    at = _PLACES[name]
    return column[at] if at < len(column) else None


def total(column: Column) -> int | None:
    """Bytes of the first ten categories together, as the rank measured them."""
    return column[len(CATEGORIES)] if len(column) > len(CATEGORIES) else None


def worst(run: RunView, read: Callable[[RankView], int | None]) -> int | None:
    """The largest over ranks; not known when one rank's is not."""
    values = [read(rank) for rank in run.ranks]
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def highest(rank: RankView) -> int | None:
    """Bytes of a rank's highest peak so far; of the newest step looked at where nobody has kept more."""
    return total(rank.peak) if rank.highest_bytes is None else rank.highest_bytes


def typical(values: Sequence[int | None]) -> int | None:
    """The value in the middle, the lower one of two, so that a rank of two can stand out; None when one is not known."""
    known = [value for value in values if value is not None]
    return median_low(known) if known and len(known) == len(values) else None


def model_states(column: Column) -> int | None:
    """Parameter, gradient and optimizer bytes that this rank keeps; None when one of them is not known."""
    parts = [category(column, name) for name in STATE_CATEGORIES]
    return None if None in parts else sum(part for part in parts if part is not None)


def as_dict(column: Column) -> dict[str, int | None]:
    """The column with its names, `total` last."""
    if not column:
        return dict.fromkeys((*CATEGORIES, "total"))
    return dict(zip((*CATEGORIES, "total"), column, strict=False))


def adds_up(column: Column) -> bool:
    """Whether the known categories of the total add up to the total, to the byte."""
    whole = total(column)
    return whole is None or whole == sum(column[i] or 0 for i in range(len(TOTAL_CATEGORIES)))


class ByRank(Mapping[int, int]):
    """Nanoseconds of those ranks whose figure is known. A thousand ranks times a hundred calls are turned into numbers of
    Python only where somebody asks."""

    __slots__ = ("values_ns",)

    def __init__(self, values_ns: Sequence[float] | Floats = ()) -> None:
        self.values_ns: Floats = np.asarray(values_ns, dtype=np.float64)
        """(ranks,), NaN where not known."""

    def __getitem__(self, rank: int) -> int:
        if not (0 <= rank < len(self.values_ns) and np.isfinite(self.values_ns[rank])):
            raise KeyError(rank)
        return int(self.values_ns[rank])

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(np.isfinite(self.values_ns)).tolist())

    def __len__(self) -> int:
        return int(np.isfinite(self.values_ns).sum())

    @property
    def highest(self) -> int | None:
        """The rank with most, the first one of several; None when nothing is known."""
        if not len(self.values_ns):
            return None
        # As np.nanargmax does, in a third of the time.
        highest = int(np.where(np.isnan(self.values_ns), -np.inf, self.values_ns).argmax())
        return None if np.isnan(self.values_ns[highest]) else highest


@dataclass(frozen=True, slots=True)
class CollectiveStats:
    """One kind of collective of one unit, per step and rank; the first step is left out of every median."""

    per_step: float
    bytes: int
    """Per step: gathered output, or reduce input."""
    median_ns: int | None
    """Per call, over steps and ranks."""
    exposed_ns: int | None
    """Per step: median over steps of the mean over ranks of the time that compute waited."""
    late_ns: ByRank
    """Rank -> ns per step by which the others waited for it; empty when not known."""
    duration_ns: int | None = None
    """Per step: median over steps of the mean over ranks of the calls' durations together."""
    algbw_bytes_per_s: float | None = None
    """Bytes of a call / `median_ns` (`telemetry.bandwidth`)."""
    busbw_bytes_per_s: float | None = None
    """The same times the share of those bytes that a rank's link carries; None also when the group is not known."""

    @property
    def overlapped_ns(self) -> int | None:
        """Per step: the part of `duration_ns` in which compute did not wait; with `exposed_ns` it is all of it."""
        if self.duration_ns is None or self.exposed_ns is None:
            return None
        return max(0, self.duration_ns - self.exposed_ns)


NO_CALLS = CollectiveStats(per_step=0, bytes=0, median_ns=None, exposed_ns=None, late_ns=ByRank())


class InPhase(NamedTuple):
    """Of a collective's calls in one phase, per step and rank, what every picture shows."""

    calls: float = 0.0
    exposed_ns: int | None = None


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective of a unit over the whole step, and its forward and backward parts, which are worked out when asked for."""

    step: CollectiveStats = NO_CALLS
    phases: Mapping[int, InPhase] = field(default_factory=dict)
    """Those in which there are calls, as indices into COMM_PHASES."""
    of_phase: Callable[[int], CollectiveStats] = lambda _: NO_CALLS
    """All figures of one of several phases."""

    def in_phase(self, phase: int) -> InPhase:
        return self.phases.get(phase, InPhase())

    @cached_property
    def forward(self) -> CollectiveStats:
        return self._part(FORWARD)

    @cached_property
    def backward(self) -> CollectiveStats:
        return self._part(BACKWARD)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Collective):
            return NotImplemented
        return (self.step, self.forward, self.backward) == (other.step, other.forward, other.backward)

    __hash__ = None  # type: ignore[assignment]

    def _part(self, phase: int) -> CollectiveStats:
        if phase not in self.phases:
            return NO_CALLS
        return self.step if len(self.phases) == 1 else self.of_phase(phase)


@dataclass(frozen=True, slots=True)
class UnitView:
    name: str
    params: int
    shard_bytes: int
    """The largest over ranks."""
    unsharded_bytes: int
    all_gather: Collective
    reduce_scatter: Collective
    all_reduce: Collective
    padding_bytes: int | None = None
    """Of the shard of the rank that pads most."""
    frozen_params: int | None = None
    frozen_grad_bytes: int | None = None
    """The most over ranks."""


@dataclass(frozen=True, slots=True)
class BucketView:
    """A gradient bucket of DDP."""

    index: int
    bytes: int
    all_reduce: Collective


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a rank's training was when it was last heard of."""

    step: int
    """Finished by then."""
    phase: str
    """One of PHASES; "" when nothing was trained yet, or it is not known."""
    calls: int
    """Collectives issued by then: of ranks at one step, that with fewest is behind."""
    kind: str
    """The newest of them, one of COLLECTIVES; "" for none."""
    unit: str
    """Its unit; "" for none, BUCKETS for DDP's."""
    inside: bool
    """Whether that one was not known to be complete."""
    idle_ns: int
    """Since when neither step nor phase nor calls had moved."""


@dataclass(frozen=True, slots=True)
class RankView:
    rank: int
    hello: Hello | None
    steps: int
    memory: Column
    """When the last optimizer.step() returned; empty before the first step. NVML's part of it, `non_torch` and `others`, is
    read once a second, here as in `peak`: they are of the newest reading."""
    peak: Column
    """Highest moment inside the last full step; empty before the first step."""
    peak_phase: str
    peak_unit: str
    """Name of the unit, "" for none."""
    highest_bytes: int | None
    """Largest peak total so far."""
    step_ns: int | None
    phases_ns: tuple[int | None, ...]
    """Medians in the order of PHASES."""
    overhead_ns: int | None
    """Median time of the probes on the training thread, per step."""
    seen_ns: int | None
    """Wall clock of the last sign of life."""
    paused: bool
    sent: int
    dropped: int
    gauges: Mapping[str, int | float | None]
    missing: Mapping[str, str]
    goodbye: str
    """"finished", "stopped", "error", or "" while it has not said one."""
    captures: tuple[Capture, ...] = ()
    """The newest deep captures of this rank, the newest last."""
    throttle: tuple[str, ...] | None = None
    """Why the GPU does not run at its full clock, in words; empty: it does; None: not known."""
    other_processes: tuple[tuple[int, int | None], ...] | None = None
    """Others on the same device: pid and bytes; None: not known."""
    exposed_ns: tuple[int | None, ...] = ()
    """Medians of the time in which compute waited for collectives, in the order of COMM_PHASES: it is inside `phases_ns`."""
    structure: Structure | None = None
    """What this rank has said of its model."""
    peak_units: int | None = None
    """Units whose parameters were gathered, or on their way, at the peak."""
    fuller_since: int | None = None
    """First step since which a rank that holds clearly more than the others has held it; None for every other rank."""
    progress: Progress | None = None
    looks: tuple[tuple[int, Sequence[int | None]], ...] = ()
    """Steps of the whole run, evenly chosen of those that were looked at, and their `memory`; the first ones are left out."""
    lost_at: int | None = None
    """First step whose loss was no number on this rank, or infinite."""
    stack: Stack | None = None
    """What its threads were doing when that was last asked."""


@dataclass(frozen=True, slots=True)
class Series:
    """Per optimizer step, all arrays of one length; NaN where not known."""

    steps: NDArray[np.int64]
    loss: Floats
    """Mean over the ranks that reported."""
    loss_known: NDArray[np.bool_]
    """Whether any did: a loss that was measured as NaN is known."""
    step_ns: Floats
    """The slowest rank's."""
    tokens_per_s: Floats
    """Over all ranks."""
    samples_per_s: Floats
    """As `tokens_per_s`."""

    def up_to(self, end: int, later: Series) -> Series:
        """The first `end` steps of this one, then another one."""
        joined = {
            one.name: np.concatenate([getattr(self, one.name)[:end], getattr(later, one.name)]) for one in fields(self)
        }
        return Series(**joined)


class Throughput(NamedTuple):
    """What a run gets through, over all ranks."""

    unit: str
    per_s: float | None
    """Of late."""
    series: Floats
    """Per step."""


@dataclass(frozen=True, slots=True)
class CommTotals:
    """Per step and rank; None before the first full step."""

    all_gather_bytes: int | None = None
    reduce_scatter_bytes: int | None = None
    all_reduce_bytes: int | None = None
    exposed_ns: int | None = None
    exposed_all_gather_ns: int | None = None
    exposed_reduce_ns: int | None = None
    """Reduce-scatter and all-reduce together."""
    duration_ns: int | None = None
    """Of all calls together: those that run at one time count each."""
    buckets_ns: int | None = None
    """DDP's buckets together, from the first one's begin to the last one's end: single ones are not timed."""
    buckets_exposed_ns: int | None = None
    """The part of it after the gradients were computed."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """The rank that the others wait for most, per step, and where in the step that begins."""

    rank: int
    ns: int
    """Median over steps of what it is late by, over all calls, less the median of the other ranks."""
    steady_ns: int
    """Reached in 85 % of the steps: near `ns` when it is late in all of them, negative when others are as often."""
    steps: int
    unit: str
    """First in the step where a quarter of the lateness, or more, arises; "" for none, BUCKETS for those of DDP."""
    kind: str
    """One of COLLECTIVES."""
    phase: str
    """One of COMM_PHASES."""
    start_ns: int
    """Lateness there, as `ns`."""


STRUCTURAL = 2
"""Steps after which a finding may speak that follows from the structure,"""
STATISTICAL = 20
"""and one that is a statistic."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding, with its numbers."""

    kind: str
    severity: str
    """"ok", "note", "warn" or "bad"."""
    what: str
    expected: float | None
    measured: float | None
    unit: str
    reason: str
    next: str


@dataclass(frozen=True, slots=True)
class RunView:
    launched: Launched | None
    state: str
    started_ns: int | None
    ended: Ended | None
    world_size: int
    effective: str
    """Strategy that PyTorch runs, "" while not known."""
    detail: Mapping[str, str | int | float | bool | None]
    params: int
    trainable_params: int
    param_bytes: int
    ideal_state_bytes: int | None
    ranks: tuple[RankView, ...]
    units: tuple[UnitView, ...]
    buckets: tuple[BucketView, ...]
    series: Series
    steps: int
    """Optimizer steps that every rank has finished."""
    step_median_ns: int | None
    step_p95_ns: int | None
    step_first_ns: int | None
    tokens_per_s: float | None
    samples_per_s: float | None
    metrics: Mapping[str, float]
    """What the script has logged: means over the ranks of each one's newest."""
    phases_ns: tuple[int | None, ...]
    """Median over ranks of each rank's medians, in the order of PHASES."""
    comm: CommTotals
    events: tuple[Event, ...]
    probes: Mapping[str, str]
    """Probe -> "ok" or the first rank's reason why not."""
    bad_records: int
    dropped: int
    overhead_ns: int | None
    verdicts: tuple[Verdict, ...] = field(default=())
    exposed_ns: tuple[int | None, ...] = ()
    """Median over ranks of each rank's, in the order of COMM_PHASES."""
    lateness: Lateness | None = None
    """None: not known, or there is nobody to be late for."""
    dimensions: tuple[Dimension, ...] = ()
    """Collectives by dimension of the device mesh; empty when all run along one."""
    forwards: int | None = None
    """Per step: of the model, with gradients."""
    backwards: int | None = None
    """Per step."""
    comm_alike: float | None = None
    """Share of the newest steps that make the same calls as the very newest: those that `units` and `comm` are of."""
    grid: CommGrid = field(default_factory=CommGrid)
    """Collectives rank by rank and unit by unit."""

    @property
    def name(self) -> str:
        return self.launched.name if self.launched else ""

    @property
    def throughput(self) -> Throughput:
        """In tokens where they are known, else in samples."""
        if self.tokens_per_s is None and self.samples_per_s is not None:
            return Throughput("samples/s", self.samples_per_s, self.series.samples_per_s)
        return Throughput("tokens/s", self.tokens_per_s, self.series.tokens_per_s)

    @property
    def requested(self) -> str:
        """Strategy that the launch asked for, "" when it left it to the script."""
        return self.launched.strategy if self.launched else ""

    @property
    def script(self) -> str:
        """Strategy that the script's own call asked for, "" while not known."""
        said = self.detail.get("script")
        return said if isinstance(said, str) else ""
