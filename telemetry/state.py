"""The one reducer: messages in, the state of a run out.

The hub keeps it for late joiners, a viewer keeps its own copy, and replay of a recording builds it again; a screen takes
`view()` of it. It holds the loss of every step, and windows of the newest steps for everything that is only shown as a
median. It has no clock and does no I/O.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median, median_low
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry import verdicts
from fsdp_tui.telemetry.bandwidth import ALL_REDUCE
from fsdp_tui.telemetry.calls import Groups
from fsdp_tui.telemetry.collectives import FIRST_BUCKET, CommStep, sum_collectives
from fsdp_tui.telemetry.courtesy import pieces
from fsdp_tui.telemetry.grid import CommGrid
from fsdp_tui.telemetry.medians import CollectiveMedians
from fsdp_tui.telemetry.mesh import dimensions
from fsdp_tui.telemetry.messages import (
    CATEGORIES,
    COLLECTIVES,
    COMM_PHASES,
    PHASES,
    PROTOCOL,
    Beat,
    Capture,
    Comm,
    Ended,
    Event,
    Gauge,
    Goodbye,
    Hello,
    Launched,
    Message,
    Stack,
    Step,
    Structure,
    Where,
)
from fsdp_tui.telemetry.spread import NEWEST, newest
from fsdp_tui.telemetry.steps import NO_STEPS, StepFigures, StepMedians, first_step
from fsdp_tui.telemetry.view import (
    BUCKETS,
    BucketView,
    Column,
    Progress,
    RankView,
    RunView,
    Series,
    UnitView,
    total,
    typical,
)

STEP_WINDOW, LEAST_STEP_WINDOW = NEWEST, 64
"""Steps per rank that medians of step time, phases and overhead are taken over; fewer when ranks x steps would be more than"""
STEP_ROWS = 16_384
COMM_WINDOW, LEAST_COMM_WINDOW = 128, 24
"""Steps that medians of collectives are taken over: fewer when ranks x kinds of calls x steps would be more than so many cells,"""
COMM_CELLS, MOST_COMM_CELLS = 640_000, 2_600_000
"""for the sake of a picture's time; enough for statistics, up to the second number, for the sake of memory."""
PATIENCE = 16
"""Steps that a rank's collectives may lag behind the others' before the step is closed without them."""
SETTLING = 3
"""First steps in which memory still settles: optimizer states and gradients appear, pools grow."""
LOOKS_KEPT = 128
MAX_EVENTS = 2_000
CAPTURES_PER_RANK = 8
MAX_CAPTURES = 64
"""Captures that are kept, over all ranks: the newest of each, of all ranks as many, and at least one."""
DEVICE_READINGS = tuple(
    (CATEGORIES.index(category), reading)
    for category, reading in (("non_torch", "non_torch_bytes"), ("others", "nvml_others_bytes"))
)
"""Place of a memory category, and the reading of a `Gauge` that it is."""


def step_window(ranks: int) -> int:
    """Steps of each rank that are kept when there are so many ranks."""
    return max(LEAST_STEP_WINDOW, min(STEP_WINDOW, STEP_ROWS // max(1, ranks)))


def comm_window(cells: int) -> int:
    """Steps of collectives that are kept when each has so many ranks x kinds of calls."""
    cells = max(1, cells)
    return max(4, min(COMM_WINDOW, MOST_COMM_CELLS // cells, max(LEAST_COMM_WINDOW, COMM_CELLS // cells)))


class RankState(msgspec.Struct):
    """What is kept of one rank."""

    hello: Hello | None = None
    structure: Structure | None = None
    last: Step | None = None
    highest: int | None = None
    first_step: int | None = None
    window: list[Step] = []
    """The newest steps without the first one: it holds warm-up and compilation."""
    beat: Beat | None = None
    gauge: Gauge | None = None
    goodbye: Goodbye | None = None
    dropped_before: int = 0
    """By earlier incarnations."""
    captures: list[Capture] = []
    """The newest last."""
    metrics: dict[str, float] = {}
    """What the script has logged, the newest of each name."""
    moved_ns: int = 0
    """When a heartbeat first said where the training is now; 0 before the first."""
    looks: list[tuple[int, list[int | None]]] = []
    """Every `looks_every`th step that was looked at, and its memory; the first ones, in which all still settles, are left out."""
    looks_every: int = 1
    looks_seen: int = 0
    lost_at: int | None = None
    """First step whose loss was no number, or infinite."""
    stack: Stack | None = None


class RunState(msgspec.Struct, dict=True):
    """Everything known of a run. Not thread-safe."""

    launched: Launched | None = None
    ended: Ended | None = None
    ranks: dict[int, RankState] = {}
    said_world_size: int = 0
    """By the ranks; 0 before the first hello."""
    steps: list[int] = []
    loss_sum: list[float] = []
    loss_count: list[int] = []
    tokens: list[int] = []
    step_ns: list[int] = []
    reported: list[int] = []
    """How many ranks have reported the step at the same index of `steps`."""
    comm_open: dict[int, dict[int, Comm]] = {}
    """Steps whose collectives some ranks have not reported yet."""
    comm_window: list[CommStep] = []
    events: list[Event] = []
    bad_records: int = 0
    version: int = 0
    """Counts applied messages: a screen redraws when it has moved."""
    samples: list[int] = []
    """As `tokens`."""

    @property
    def world_size(self) -> int:
        """Ranks of the run: what they say of themselves, else what was asked for."""
        return self.said_world_size or (self.launched.nproc if self.launched else len(self.ranks))

    @property
    def state(self) -> str:
        if self.ended is not None:
            return self.ended.state
        alive = [rank for rank in self.ranks.values() if rank.goodbye is None]
        if alive and all(rank.beat is not None and rank.beat.paused for rank in alive):
            return "paused"
        return "running" if self.steps else "starting"

    def apply(self, message: Message) -> None:
        """Takes one message in. Never raises: what makes no sense is counted in `bad_records`."""
        self.version += 1
        try:
            self._apply(message)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            self.bad_records += 1

    def dump(self) -> bytes:
        """The whole state, for a late joiner or the recording."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def load(body: bytes | memoryview) -> RunState:
        """The state that `dump` wrote, read piece by piece: a thousand ranks take half a second, in which other threads go on.

        Raises:
            ValueError: it is no such state.
        """
        try:
            packed = _packed_fields.decode(body)
            ranks = _packed_ranks.decode(packed.pop("ranks", _NO_RANKS))
            fields = {
                field.name: msgspec.msgpack.decode(packed[field.name], type=field.type)
                for field in msgspec.structs.fields(RunState)
                if field.name in packed
            }
            return RunState(**fields, ranks={rank: _rank_state.decode(known) for rank, known in pieces(ranks.items())})
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"not a snapshot of a run: {error}") from None

    # What each message does

    def _apply(self, message: Message) -> None:
        match message:
            case Step():
                self._step(message)
            case Comm():
                self._comm(message)
            case Beat():
                self._beat(message)
            case Gauge():
                self._rank(message.rank).gauge = message
            case Event():
                self.events.append(message)
                del self.events[:-MAX_EVENTS]
            case Structure():
                self._rank(message.rank).structure = message
            case Hello():
                self._hello(message)
            case Goodbye():
                self._rank(message.rank).goodbye = message
            case Launched():
                if message.proto != PROTOCOL:
                    self.bad_records += 1
                else:
                    self.launched = message
            case Ended():
                self.ended = message
            case Capture():
                self._capture(message)
            case Stack():
                self._rank(message.rank).stack = message
            case _:  # commands and acknowledgements change nothing here
                pass

    def _rank(self, rank: int) -> RankState:
        found = self.ranks.get(rank)
        if found is None:
            found = self.ranks[rank] = RankState()
            self.ranks = dict(sorted(self.ranks.items()))
        return found

    def _hello(self, hello: Hello) -> None:
        if hello.proto != PROTOCOL:
            self.bad_records += 1
            return
        rank = self._rank(hello.rank)
        if rank.hello is not None and rank.hello.incarnation != hello.incarnation:
            rank.dropped_before += _dropped(rank)
            rank.goodbye = rank.beat = rank.gauge = rank.stack = rank.lost_at = None
            rank.looks, rank.looks_every, rank.looks_seen = [], 1, 0
        rank.hello = hello
        self.said_world_size = hello.world_size

    def _beat(self, beat: Beat) -> None:
        rank = self._rank(beat.rank)
        if rank.beat is None or beat.paused or _place(rank.beat) != _place(beat):
            rank.moved_ns = beat.sent_ns
        rank.beat = beat

    def _step(self, sample: Step) -> None:
        rank = self._rank(sample.rank)
        if rank.first_step is None:
            rank.first_step = sample.step
        elif sample.step != rank.first_step:
            rank.window.append(sample)
            del rank.window[: -step_window(self.world_size)]
        rank.last = sample
        highest = total(tuple(sample.peak))
        if highest is not None:
            rank.highest = max(rank.highest or 0, highest)
        at = self._index(sample.step)
        self.reported[at] += 1
        self.step_ns[at] = max(self.step_ns[at], sample.step_ns)
        self.tokens[at] += sample.tokens or 0
        self.samples[at] += sample.samples or 0
        rank.metrics.update(sample.metrics)
        if sample.looked_step in (0, sample.step) and sample.step >= rank.first_step + SETTLING:
            self._look(rank, sample)
        if sample.loss is not None:
            self.loss_sum[at] += sample.loss
            self.loss_count[at] += 1
            if rank.lost_at is None and not math.isfinite(sample.loss):
                rank.lost_at = sample.step

    def _look(self, rank: RankState, sample: Step) -> None:
        """Keeps an even choice of all looks, however long the run."""
        if rank.looks_seen % rank.looks_every == 0:
            rank.looks.append((sample.step, sample.memory))
        rank.looks_seen += 1
        if len(rank.looks) > LOOKS_KEPT:
            rank.looks, rank.looks_every = rank.looks[::2], 2 * rank.looks_every

    def _index(self, step: int) -> int:
        """Where the step is in the series, which change there; makes its place when it is new."""
        if not self.steps or step > self.steps[-1]:
            at = len(self.steps)
        else:
            at = bisect_left(self.steps, step)
        self.__dict__["changed_from"] = min(at, self.__dict__.get("changed_from", at))
        if at < len(self.steps) and self.steps[at] == step:
            return at
        self.steps.insert(at, step)
        self.loss_sum.insert(at, 0.0)
        self.samples += [0] * (len(self.loss_count) - len(self.samples))  # a snapshot from before they were counted
        for counts in (self.loss_count, self.tokens, self.samples, self.step_ns, self.reported):
            counts.insert(at, 0)
        return at

    def _comm(self, comm: Comm) -> None:
        if (
            len(
                {
                    len(c)
                    for c in (
                        comm.unit,
                        comm.kind,
                        comm.phase,
                        comm.group,
                        comm.nbytes,
                        comm.duration_ns,
                        comm.exposed_ns,
                    )
                }
            )
            != 1
        ):
            raise ValueError("columns of different lengths")
        if comm.unit and (max(comm.kind) >= len(COLLECTIVES) or max(comm.phase) >= len(COMM_PHASES)):
            raise ValueError("unknown kind of collective")
        by_rank = self.comm_open.setdefault(comm.step, {})
        by_rank[comm.rank] = comm
        world = self.world_size
        ready = [step for step, ranks in self.comm_open.items() if len(ranks) >= world or step < comm.step - PATIENCE]
        for step in sorted(ready):
            self._close(step, self.comm_open.pop(step))

    def _capture(self, capture: Capture) -> None:
        check_columns(capture)
        rank = self._rank(capture.rank)
        rank.captures = [*(one for one in rank.captures if one.id != capture.id), capture]
        keep = max(1, min(CAPTURES_PER_RANK, MAX_CAPTURES // len(self.ranks)))
        for known in self.ranks.values():
            if len(known.captures) > keep:
                known.captures = known.captures[-keep:]

    def _close(self, step: int, by_rank: dict[int, Comm]) -> None:
        first = min((rank.first_step for rank in self.ranks.values() if rank.first_step is not None), default=None)
        if first is None or step <= first:  # warm-up, compilation, lazy initialisation
            return
        newest = sum_collectives(step, by_rank, self._groups(by_rank), self.world_size)
        if self.comm_window and self.comm_window[-1].keys == newest.keys:
            newest.keys = self.comm_window[-1].keys  # one list, so that steps are seen to be alike at a glance
        self.comm_window.append(newest)
        del self.comm_window[: -comm_window(newest.ranks * len(newest.keys))]

    def _groups(self, ranks: Iterable[int]) -> Groups:
        """The process groups of some ranks; kept from step to step, and no part of what `dump` writes."""
        kept: Groups = self.__dict__.setdefault("kept_groups", Groups())
        for rank in ranks:
            structure = self.ranks[rank].structure if rank in self.ranks else None
            kept.name(rank, structure.groups if structure else ())
        return kept

    # The picture

    def view(self) -> RunView:
        """One immutable picture of everything, verdicts included."""
        stats, steps = self._medians(), self._step_medians()
        ranks = tuple(
            self._rank_view(rank, state, steps.get(rank, NO_STEPS), stats.exposed.get(rank, ()))
            for rank, state in pieces(self.ranks.items())
        )
        usual = typical([total(rank.memory) for rank in ranks])
        ranks = tuple(self._with_since(rank, usual) for rank in pieces(ranks))
        structures = [state.structure for state in self.ranks.values() if state.structure]
        lead = structures[0] if structures else None
        names = [unit.name for unit in lead.units] if lead else []
        most = self._largest(structures)
        units = tuple(
            UnitView(
                name=unit.name,
                params=unit.params,
                shard_bytes=most[at].shard_bytes or 0,
                unsharded_bytes=unit.unsharded_bytes,
                all_gather=stats.collective(at, 0),
                reduce_scatter=stats.collective(at, 1),
                all_reduce=stats.collective(at, 2),
                padding_bytes=most[at].padding_bytes,
                frozen_params=unit.frozen_params,
                frozen_grad_bytes=most[at].frozen_grad_bytes,
            )
            for at, unit in enumerate(lead.units if lead else ())
        )
        buckets = tuple(
            BucketView(index=at, bytes=nbytes, all_reduce=stats.collective(FIRST_BUCKET - at, ALL_REDUCE))
            for at, nbytes in enumerate(lead.buckets if lead else ())
        )
        series = self._series()
        later = newest(series.step_ns)
        probes: dict[str, str] = {}
        for structure in structures:
            for probe, said in structure.probes.items():
                if probes.get(probe, "ok") == "ok":
                    probes[probe] = said
        seen = [rank.hello.pid_started for rank in self.ranks.values() if rank.hello]
        picture = RunView(
            launched=self.launched,
            state=self.state,
            started_ns=self.launched.created_ns if self.launched else (int(min(seen) * 1e9) if seen else None),
            ended=self.ended,
            world_size=self.world_size,
            effective=lead.effective if lead else "",
            detail=lead.detail if lead else {},
            params=lead.params if lead else 0,
            trainable_params=lead.trainable_params if lead else 0,
            param_bytes=lead.param_bytes if lead else 0,
            ideal_state_bytes=next((s.ideal_state_bytes for s in structures if s.ideal_state_bytes), None),
            ranks=ranks,
            units=units,
            buckets=buckets,
            series=series,
            steps=min((state.last.step if state.last else 0 for state in self.ranks.values()), default=0),
            step_median_ns=int(np.median(later)) if later.size else None,
            step_p95_ns=int(np.percentile(later, 95)) if later.size else None,
            step_first_ns=self.step_ns[0] if self.step_ns else None,
            tokens_per_s=_recent_rate(series.tokens_per_s),
            samples_per_s=_recent_rate(series.samples_per_s),
            metrics=_mean_by_name([rank.metrics for rank in self.ranks.values()]),
            phases_ns=_median_columns([rank.phases_ns for rank in ranks if rank.phases_ns]),
            comm=stats.totals,
            events=(*self.events, *_bad_end(self.ended)),
            probes=probes,
            bad_records=self.bad_records,
            dropped=sum(rank.dropped for rank in ranks),
            overhead_ns=_median_known([rank.overhead_ns for rank in ranks]),
            exposed_ns=_median_columns([rank.exposed_ns for rank in ranks if rank.exposed_ns])[: len(COMM_PHASES)],
            lateness=stats.lateness(names),
            grid=self._grid(names),
            forwards=_usual_count(self._leader(), "forwards"),
            backwards=_usual_count(self._leader(), "backwards"),
            dimensions=dimensions([step.along for step in self.comm_window]),
            comm_alike=stats.steps / len(self.comm_window) if self.comm_window else None,
        )
        return verdicts.judged(picture)

    def _leader(self) -> RankState:
        return next(iter(self.ranks.values()), RankState())

    def _medians(self) -> CollectiveMedians:
        """Of the window as it is now; kept from picture to picture, and no part of what `dump` writes."""
        kept: CollectiveMedians = self.__dict__.setdefault("kept_medians", CollectiveMedians())
        kept.follow(self.comm_window)
        return kept

    def _step_medians(self) -> Mapping[int, StepFigures]:
        """As `_medians`, of the windows of steps."""
        kept: StepMedians = self.__dict__.setdefault("kept_steps", StepMedians())
        return kept.follow({rank: state.window for rank, state in self.ranks.items()}, step_window(self.world_size))

    def _largest(self, structures: list[Structure]) -> list[_Largest]:
        """As `_medians`: worked out anew when a rank has said another structure."""
        kept: tuple[list[Structure], list[_Largest]] | None = self.__dict__.get("kept_largest")
        if kept is None or len(kept[0]) != len(structures) or any(map(operator.is_not, kept[0], structures)):
            kept = self.__dict__["kept_largest"] = (structures, _largest(structures))
        return kept[1]

    def _grid(self, names: Sequence[str]) -> CommGrid:
        """Of the window as it is now, kept as long as it is that."""
        kept: CommGrid | None = self.__dict__.get("kept_grid")
        if kept is None or not kept.is_of(self.comm_window, names):
            kept = self.__dict__["kept_grid"] = CommGrid(self.comm_window, names, kept)
        return kept

    def _rank_view(
        self, rank: int, state: RankState, medians: StepFigures, exposed_ns: tuple[int | None, ...]
    ) -> RankView:
        last = state.last
        if last is not None and not state.window:
            medians = first_step(last)
        units = state.structure.units if state.structure else []
        seen = [
            at for at in (last.ended_ns if last else None, state.beat.sent_ns if state.beat else None) if at is not None
        ]
        return RankView(
            rank=rank,
            hello=state.hello,
            steps=last.step if last else 0,
            memory=_with_device(last.memory, state.gauge) if last else (),
            peak=_with_device(last.peak, state.gauge) if last else (),
            peak_phase=last.peak_phase if last else "",
            peak_unit=units[last.peak_unit].name if last and 0 <= last.peak_unit < len(units) else "",
            highest_bytes=state.highest,
            structure=state.structure,
            peak_units=last.peak_units if last else None,
            step_ns=medians.step_ns,
            phases_ns=medians.phases_ns,
            overhead_ns=medians.overhead_ns,
            seen_ns=max(seen, default=None),
            paused=state.beat is not None and state.beat.paused and self.ended is None,
            sent=state.beat.sent if state.beat else 0,
            dropped=state.dropped_before + _dropped(state),
            gauges=state.gauge.values if state.gauge else {},
            missing=state.gauge.missing if state.gauge else {},
            goodbye=state.goodbye.reason if state.goodbye else "",
            throttle=None if state.gauge is None or state.gauge.throttle is None else tuple(state.gauge.throttle),
            other_processes=None if state.gauge is None or state.gauge.others is None else tuple(state.gauge.others),
            captures=tuple(state.captures),
            exposed_ns=exposed_ns,
            progress=_progress(state, [unit.name for unit in units]),
            looks=tuple(state.looks),
            lost_at=state.lost_at,
            stack=state.stack,
        )

    def _with_since(self, rank: RankView, usual: int | None) -> RankView:
        """Adds since when the rank has been fuller than the usual one, if it is."""
        now = total(rank.memory)
        if now is None or usual is None or now <= verdicts.OUTLIER * usual:
            return rank
        halfway, since, state = (now + usual) / 2, rank.steps, self.ranks[rank.rank]
        for step in reversed(state.window):
            held = total(tuple(step.memory))
            if held is None or held < halfway:
                break
            since = step.step
        else:
            since = state.first_step or since  # as far back as is known
        return replace(rank, fuller_since=since)

    def _series(self) -> Series:
        """Of all steps; only those that have changed since the picture before are worked out."""
        kept: tuple[int, Series] | None = self.__dict__.get("kept_series")
        changed = self.__dict__.pop("changed_from", None)
        if kept is None or kept[0] != self.world_size:
            series = self._series_from(0)
        elif changed is None:
            return kept[1]
        else:
            series = kept[1].up_to(changed, self._series_from(changed))
        self.__dict__["kept_series"] = (self.world_size, series)
        return series

    def _series_from(self, at: int) -> Series:
        count = np.asarray(self.loss_count[at:], dtype=np.float64)
        step_ns = np.asarray(self.step_ns[at:], dtype=np.float64)
        # A step that some ranks have not reported would show less than was trained.
        whole = (np.asarray(self.reported[at:], dtype=np.int64) >= self.world_size) & (step_ns > 0)

        def rate(counts: list[int]) -> NDArray[np.float64]:
            counted = np.zeros(len(step_ns))
            counted[: len(counts)] = counts
            with np.errstate(divide="ignore", invalid="ignore"):
                per_s: NDArray[np.float64] = np.where(whole & (counted > 0), counted / step_ns * 1e9, np.nan)
            return per_s

        with np.errstate(divide="ignore", invalid="ignore"):
            loss = np.where(count > 0, np.asarray(self.loss_sum[at:], dtype=np.float64) / count, np.nan)
        return Series(
            steps=np.asarray(self.steps[at:], dtype=np.int64),
            loss=loss,
            loss_known=count > 0,
            step_ns=step_ns,
            tokens_per_s=rate(self.tokens[at:]),
            samples_per_s=rate(self.samples[at:]),
        )


_packed_fields = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_packed_ranks = msgspec.msgpack.Decoder(dict[int, msgspec.Raw])
_rank_state = msgspec.msgpack.Decoder(RankState)
_NO_RANKS = msgspec.Raw(msgspec.msgpack.encode({}))


def _place(beat: Beat) -> tuple[int, int, str, int]:
    """What moves from heartbeat to heartbeat while a training goes on."""
    where = beat.where
    return (beat.incarnation, beat.step, where.phase, where.calls) if where else (beat.incarnation, beat.step, "", 0)


def _progress(rank: RankState, units: Sequence[str]) -> Progress | None:
    beat = rank.beat
    if beat is None:
        return None
    where = beat.where or Where("", 0)
    moved_ns = max(rank.moved_ns, rank.last.ended_ns if rank.last else 0)
    return Progress(
        step=beat.step,
        phase=where.phase,
        calls=where.calls,
        kind=COLLECTIVES[where.kind] if 0 <= where.kind < len(COLLECTIVES) else "",
        unit=BUCKETS if where.unit <= FIRST_BUCKET else units[where.unit] if 0 <= where.unit < len(units) else "",
        inside=where.inside,
        idle_ns=max(0, beat.sent_ns - moved_ns),
    )


def _usual_count(rank: RankState, name: str) -> int | None:
    counts: list[int | None] = [getattr(step, name) for step in rank.window[-COMM_WINDOW:]]
    known = [count for count in counts if count is not None]
    return median_low(known) if known else None


def _bad_end(ended: Ended | None) -> list[Event]:
    """The end of a run that was not meant to end so, as an event: people look for it among those."""
    if ended is None or ended.state not in ("failed", "lost"):
        return []
    text = f"{ended.state}: {ended.reason}" if ended.reason else ended.state
    return [Event(at_ns=ended.ended_ns, kind="ended", severity="bad", text=text, rank=ended.failed_rank)]


def _recent_rate(per_step: NDArray[np.float64]) -> float | None:
    """The usual rate of late; the first step holds warm-up."""
    late = newest(per_step)
    return float(np.median(late)) if late.size else None


def _mean_by_name(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in figures for name in one)
    return {name: float(np.mean([one[name] for one in figures if name in one])) for name in names}


class _Largest(NamedTuple):
    """Of a unit, over all ranks."""

    shard_bytes: int | None
    padding_bytes: int | None
    frozen_grad_bytes: int | None


def _largest(structures: Sequence[Structure]) -> list[_Largest]:
    """Of each of the first rank's units."""
    found = []
    for at in range(len(structures[0].units) if structures else 0):
        units = [structure.units[at] for structure in structures if at < len(structure.units)]
        said = [(unit.shard_bytes, unit.padding_bytes, unit.frozen_grad_bytes) for unit in units]
        found.append(_Largest(*map(_most, zip(*said, strict=True))))
    return found


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def check_columns(capture: Capture) -> None:
    """Raises ValueError when the columns of a capture do not fit each other, so that nobody who reads them must check."""
    groups: tuple[tuple[list[int], ...], ...] = (
        (capture.at_ns, capture.delta_bytes, capture.category, capture.module, capture.phase),
        (capture.op, capture.op_at_ns, capture.op_ns, capture.op_module, capture.op_phase),
        (capture.span_module, capture.span_at_ns, capture.span_ns),
        (capture.call_kind, capture.call_module, capture.call_nbytes, capture.call_at_ns, capture.call_ns),
    )
    bounds: tuple[tuple[list[int], int], ...] = (
        (capture.category, len(CATEGORIES)),
        (capture.phase, len(PHASES)),
        (capture.op_phase, len(PHASES)),
        (capture.op, len(capture.op_names)),
        (capture.call_kind, len(COLLECTIVES)),
        *((column, len(capture.modules)) for column in (capture.module, capture.op_module, capture.span_module)),
        (capture.call_module, len(capture.modules)),
    )
    if any(len({len(column) for column in group}) > 1 for group in groups):
        raise ValueError("columns of different lengths")
    if any(column and max(column) >= bound for column, bound in bounds):
        raise ValueError("an index without its name")
    if not capture.error and not len(capture.peak) == len(capture.base) == len(CATEGORIES) + 1:
        raise ValueError("not a memory per category")


def _dropped(rank: RankState) -> int:
    beat = rank.beat.dropped if rank.beat else 0
    return max(beat, rank.last.dropped if rank.last else 0)


def _with_device(memory: Sequence[int | None], gauge: Gauge | None) -> Column:
    """The column of a step with what NVML says of the device, which the rank reads once a second beside its steps.

    What the rank has measured itself stays (a CPU's `non_torch` is its heap).
    """
    if gauge is None:
        return tuple(memory)
    column = list(memory)
    for at, reading in DEVICE_READINGS:
        value = gauge.values.get(reading)
        if value is not None and at < len(column) and column[at] is None:
            column[at] = int(value)
    return tuple(column)


def _median_known(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return int(median(known)) if known else None


def _median_columns(rows: Sequence[tuple[int | None, ...]]) -> tuple[int | None, ...]:
    if not rows:
        return ()
    return tuple(_median_known([row[at] if at < len(row) else None for row in rows]) for at in range(len(PHASES)))
