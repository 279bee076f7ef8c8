"""The one reducer: messages in, the state of a run out.

The hub keeps it for late joiners, a viewer keeps its own copy, and replay of a recording builds it again; a screen takes
`view()` of it. It holds the loss of every step, and windows of the newest steps for everything that is only shown as a
median. It has no clock and does no I/O.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry import bandwidth, verdicts
from fsdp_tui.telemetry.bandwidth import ALL_REDUCE
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
    Step,
    Structure,
)
from fsdp_tui.telemetry.view import (
    BUCKETS,
    NO_CALLS,
    BucketView,
    Collective,
    CollectiveStats,
    Column,
    CommTotals,
    Lateness,
    RankView,
    RunView,
    Series,
    UnitView,
    total,
    typical,
)

STEP_WINDOW = 512
"""Steps per rank that medians of step time, phases and overhead are taken over."""
COMM_WINDOW = 128
"""Steps that medians of collectives are taken over; fewer when ranks x kinds of calls would need more than this many cells:"""
COMM_CELLS = 8_000_000
PATIENCE = 16
"""Steps that a rank's collectives may lag behind the others' before the step is closed without them."""
MAX_EVENTS = 2_000
CAPTURES_PER_RANK = 2
MAX_CAPTURES = 64
"""Captures that are kept, over all ranks; the oldest go first, but of each rank the newest stays."""
STEADY = 0.85
"""Share of the steps in which a rank must be late for it to be late steadily: with 20 steps, 17 of them."""
DURATION, EXPOSED = 0, 1
"""Columns of `CommStep.spans`."""
FIRST_BUCKET = -2
"""`Comm.unit` of DDP's first bucket; the others count down from it."""
DEVICE_READINGS = {"non_torch": "non_torch_bytes", "others": "nvml_others_bytes"}
"""Memory category -> the reading of a `Gauge` that it is."""


class CommStep(msgspec.Struct):
    """Collectives of one step over ranks: sums per (unit, kind, phase), float64 matrices of ranks x keys as bytes.

    Inside them NaN is "not known": the rank did not report the step, or a collective's waiting time was not measured.
    """

    step: int
    keys: list[tuple[int, int, int]]
    calls: list[float]
    nbytes: list[float]
    ranks: int
    duration: bytes
    exposed: bytes
    late: bytes
    group_sizes: list[int] = []
    """Ranks that take part in the calls of each key; 0: not known."""
    reductions: bytes = b""
    """Ranks x (duration, exposed) of DDP's buckets together; empty when no rank has told."""

    def matrix(self, name: str) -> NDArray[np.float64]:
        cells: NDArray[np.float64] = np.frombuffer(getattr(self, name), dtype=np.float64)
        return cells.reshape(self.ranks, len(self.keys))

    def spans(self) -> NDArray[np.float64]:
        if not self.reductions:
            return np.full((self.ranks, 2), np.nan)
        return np.frombuffer(self.reductions, dtype=np.float64).reshape(self.ranks, 2)


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


class RunState(msgspec.Struct):
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
        """The state that `dump` wrote.

        Raises:
            ValueError: it is no such state.
        """
        try:
            return msgspec.msgpack.decode(body, type=RunState)
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
                self._rank(message.rank).beat = message
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
            rank.goodbye = rank.beat = rank.gauge = None
        rank.hello = hello
        self.said_world_size = hello.world_size

    def _step(self, sample: Step) -> None:
        rank = self._rank(sample.rank)
        if rank.first_step is None:
            rank.first_step = sample.step
        elif sample.step != rank.first_step:
            rank.window.append(sample)
            if len(rank.window) > 2 * STEP_WINDOW:
                del rank.window[:-STEP_WINDOW]
        rank.last = sample
        highest = total(tuple(sample.peak))
        if highest is not None:
            rank.highest = max(rank.highest or 0, highest)
        at = self._index(sample.step)
        self.reported[at] += 1
        self.step_ns[at] = max(self.step_ns[at], sample.step_ns)
        self.tokens[at] += sample.tokens or 0
        if sample.loss is not None:
            self.loss_sum[at] += sample.loss
            self.loss_count[at] += 1

    def _index(self, step: int) -> int:
        """Where the step is in the series; makes its place when it is new."""
        if not self.steps or step > self.steps[-1]:
            at = len(self.steps)
        else:
            at = bisect_left(self.steps, step)
            if self.steps[at] == step:
                return at
        self.steps.insert(at, step)
        self.loss_sum.insert(at, 0.0)
        for counts in (self.loss_count, self.tokens, self.step_ns, self.reported):
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
        rank.captures = [*(one for one in rank.captures if one.id != capture.id), capture][-CAPTURES_PER_RANK:]
        surplus = sum(len(known.captures) for known in self.ranks.values()) - MAX_CAPTURES
        for known in self.ranks.values():
            if surplus > 0 and len(known.captures) > 1:
                surplus -= len(known.captures) - 1
                known.captures = known.captures[-1:]

    def _close(self, step: int, by_rank: dict[int, Comm]) -> None:
        first = min((rank.first_step for rank in self.ranks.values() if rank.first_step is not None), default=None)
        if first is None or step <= first:  # warm-up, compilation, lazy initialisation
            return
        self.comm_window.append(_sum_collectives(step, by_rank, self._groups(by_rank), self.world_size))
        newest = self.comm_window[-1]
        room = COMM_CELLS // max(1, 3 * newest.ranks * len(newest.keys))
        del self.comm_window[: -max(4, min(COMM_WINDOW, room))]

    def _groups(self, ranks: Iterable[int]) -> dict[int, list[list[int]]]:
        found: dict[int, list[list[int]]] = {}
        for rank in ranks:
            structure = self.ranks[rank].structure if rank in self.ranks else None
            found[rank] = structure.groups if structure else []
        return found

    # The picture

    def view(self) -> RunView:
        """One immutable picture of everything, verdicts included."""
        stats = _CollectiveMedians(self.comm_window)
        exposed = stats.exposed_by_phase()
        ranks = tuple(self._rank_view(rank, state, exposed.get(rank, ())) for rank, state in self.ranks.items())
        usual = typical([total(rank.memory) for rank in ranks])
        ranks = tuple(self._with_since(rank, usual) for rank in ranks)
        structures = [state.structure for state in self.ranks.values() if state.structure]
        lead = structures[0] if structures else None
        units = tuple(
            UnitView(
                name=unit.name,
                params=unit.params,
                shard_bytes=max(
                    (s.units[at].shard_bytes for s in structures if at < len(s.units)), default=unit.shard_bytes
                ),
                unsharded_bytes=unit.unsharded_bytes,
                all_gather=stats.collective(at, 0),
                reduce_scatter=stats.collective(at, 1),
                all_reduce=stats.collective(at, 2),
                padding_bytes=_most(structures, at, "padding_bytes"),
                frozen_params=unit.frozen_params,
                frozen_grad_bytes=_most(structures, at, "frozen_grad_bytes"),
            )
            for at, unit in enumerate(lead.units if lead else ())
        )
        buckets = tuple(
            BucketView(index=at, bytes=nbytes, all_reduce=stats.collective(-2 - at, 2))
            for at, nbytes in enumerate(lead.buckets if lead else ())
        )
        series = self._series()
        later = series.step_ns[1:][-STEP_WINDOW:]
        later = later[later > 0]
        rates = series.tokens_per_s[1:][-STEP_WINDOW:]
        rates = rates[np.isfinite(rates)]
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
            tokens_per_s=float(np.median(rates)) if rates.size else None,
            phases_ns=_median_columns([rank.phases_ns for rank in ranks if rank.phases_ns]),
            comm=stats.totals(),
            events=tuple(self.events),
            probes=probes,
            bad_records=self.bad_records,
            dropped=sum(rank.dropped for rank in ranks),
            overhead_ns=_median_known([rank.overhead_ns for rank in ranks]),
            exposed_ns=_median_columns([rank.exposed_ns for rank in ranks if rank.exposed_ns])[: len(COMM_PHASES)],
            lateness=stats.lateness([unit.name for unit in lead.units] if lead else []),
        )
        return verdicts.judged(picture)

    def _rank_view(self, rank: int, state: RankState, exposed_ns: tuple[int | None, ...]) -> RankView:
        last, window = state.last, state.window[-STEP_WINDOW:]
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
            step_ns=_median_known([step.step_ns for step in window]),
            phases_ns=_median_columns([tuple(step.phases_ns) for step in window or ([last] if last else [])]),
            overhead_ns=_median_known([step.overhead_ns for step in window]),
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
        count = np.asarray(self.loss_count, dtype=np.float64)
        step_ns = np.asarray(self.step_ns, dtype=np.float64)
        tokens = np.asarray(self.tokens, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = np.where(count > 0, np.asarray(self.loss_sum, dtype=np.float64) / count, np.nan)
            # A step that some ranks have not reported would show fewer tokens than were trained.
            whole = (np.asarray(self.reported) >= self.world_size) & (tokens > 0) & (step_ns > 0)
            rate = np.where(whole, tokens / step_ns * 1e9, np.nan)
        return Series(
            steps=np.asarray(self.steps, dtype=np.int64),
            loss=loss,
            loss_known=count > 0,
            step_ns=step_ns,
            tokens_per_s=rate,
        )


def _most(structures: Sequence[Structure], at: int, name: str) -> int | None:
    """The largest figure that any rank has of a unit."""
    said: list[int | None] = [getattr(s.units[at], name) for s in structures if at < len(s.units)]
    return max((value for value in said if value is not None), default=None)


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
    column = list(memory)
    for name, reading in DEVICE_READINGS.items():
        value = gauge.values.get(reading) if gauge is not None else None
        at = CATEGORIES.index(name)
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


def _sum_collectives(
    step: int, by_rank: dict[int, Comm], groups: dict[int, list[list[int]]], world_size: int
) -> CommStep:
    """Sums one step's calls per (unit, kind, phase) and rank.

    Lateness needs no clocks: a collective ends nearly together on the ranks of its group, so the rank that spent the least
    time in it came last, and the others waited for (longest duration - its duration). It is known only for calls that
    every rank of the group reported in the same order.
    """
    keys: dict[tuple[int, int, int], int] = {}
    for comm in by_rank.values():
        for key in zip(comm.unit, comm.kind, comm.phase, strict=True):
            keys.setdefault(key, len(keys))
    ranks = max(world_size, max(by_rank, default=-1) + 1)
    duration = np.full((ranks, len(keys)), np.nan)
    exposed, late = duration.copy(), duration.copy()
    calls, nbytes = np.zeros(len(keys)), np.zeros(len(keys))
    columns: dict[int, NDArray[np.int64]] = {}
    for rank, comm in by_rank.items():
        column = columns[rank] = np.array(
            [keys[key] for key in zip(comm.unit, comm.kind, comm.phase, strict=True)], dtype=np.int64
        )
        duration[rank] = _sums(column, _known(comm.duration_ns), len(keys))
        exposed[rank] = _sums(column, _known(comm.exposed_ns), len(keys))
        calls = np.maximum(calls, _sums(column, np.ones(len(column)), len(keys)))
        nbytes = np.maximum(nbytes, _sums(column, np.asarray(comm.nbytes, dtype=np.float64), len(keys)))
    spans = np.full((ranks, 2), np.nan)
    for rank, comm in by_rank.items():
        spans[rank] = _known([comm.reductions_ns, comm.reductions_exposed_ns])
    for members, rows in _same_calls(by_rank, columns, groups):
        spent = np.array([_known(by_rank[rank].duration_ns)[rows] for rank in members])
        behind = spent.max(axis=0) - spent
        for rank, row in zip(members, behind, strict=True):
            part = _sums(columns[rank][rows], row, len(keys))
            touched = np.bincount(columns[rank][rows], minlength=len(keys)) > 0
            late[rank] = np.where(touched, np.nan_to_num(late[rank]) + part, late[rank])
    return CommStep(
        step=step,
        keys=list(keys),
        calls=calls.tolist(),
        nbytes=nbytes.tolist(),
        ranks=ranks,
        duration=duration.tobytes(),
        exposed=exposed.tobytes(),
        late=late.tobytes(),
        group_sizes=_group_sizes(by_rank, groups, keys),
        reductions=spans.tobytes() if np.isfinite(spans).any() else b"",
    )


def _group_sizes(
    by_rank: dict[int, Comm], groups: dict[int, list[list[int]]], keys: dict[tuple[int, int, int], int]
) -> list[int]:
    """Of the rank that reported first and knows its groups: they are of one size on all."""
    sizes = [0] * len(keys)
    for rank, comm in by_rank.items():
        known = groups.get(rank, [])
        for key, group in zip(zip(comm.unit, comm.kind, comm.phase, strict=True), comm.group, strict=True):
            if not sizes[keys[key]] and group < len(known):
                sizes[keys[key]] = len(known[group])
        if all(sizes):
            break
    return sizes


def _known(times_ns: list[int]) -> NDArray[np.float64]:
    times = np.asarray(times_ns, dtype=np.float64)
    return np.where(times < 0, np.nan, times)


def _sums(column: NDArray[np.int64], values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    return np.bincount(column, weights=values, minlength=size).astype(np.float64)


def _same_calls(
    by_rank: dict[int, Comm], columns: dict[int, NDArray[np.int64]], groups: dict[int, list[list[int]]]
) -> Iterable[tuple[tuple[int, ...], NDArray[np.int64]]]:
    """Groups of ranks with the positions of the calls that they made together."""
    found: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for rank, comm in by_rank.items():
        known = groups.get(rank, [])
        for at, group in enumerate(comm.group):
            if group < len(known) and rank in known[group]:
                found.setdefault(tuple(known[group]), {}).setdefault(rank, []).append(at)
    for members, positions in found.items():
        if len(members) < 2 or set(positions) != set(members):
            continue
        rows = np.asarray(positions[members[0]], dtype=np.int64)
        lead = columns[members[0]][rows]
        if all(
            len(positions[rank]) == len(rows)
            and bool((np.asarray(positions[rank]) == rows).all())
            and bool((columns[rank][rows] == lead).all())
            for rank in members
        ):
            yield members, rows


class _CollectiveMedians:
    """Medians over the window of closed steps."""

    def __init__(self, window: Sequence[CommStep]) -> None:
        keys: dict[tuple[int, int, int], int] = {}
        if window:
            # Only steps shaped like the newest one: a changed structure starts a new window.
            newest = window[-1]
            window = [step for step in window if step.ranks == newest.ranks and set(step.keys) == set(newest.keys)]
            keys = {key: at for at, key in enumerate(newest.keys)}
        self._at = keys
        self._calls = np.array([_aligned(step.calls, step, keys) for step in window]).reshape(len(window), len(keys))
        self._nbytes = np.array([_aligned(step.nbytes, step, keys) for step in window]).reshape(len(window), len(keys))
        self._duration = _stack(window, "duration", keys)
        self._exposed = _stack(window, "exposed", keys)
        self._late = _stack(window, "late", keys)
        self._spans = np.stack([step.spans() for step in window]) if window else np.empty((0, 0, 2))
        self._buckets = np.array([unit <= FIRST_BUCKET for unit, _, _ in keys], dtype=bool)
        sizes = (window[-1].group_sizes if window else []) or [0] * len(keys)
        self._bus = np.array(
            [
                bandwidth.bus_factor(kind, size) if size else np.nan
                for (_, kind, _), size in zip(keys, sizes, strict=True)
            ]
        )

    def collective(self, unit: int, kind: int) -> Collective:
        columns = [self._at.get((unit, kind, phase)) for phase in range(len(COMM_PHASES))]
        present = [at for at in columns if at is not None]
        if not present:
            return Collective()
        forward, backward = columns[COMM_PHASES.index("forward")], columns[COMM_PHASES.index("backward")]
        return Collective(
            step=self._stats(present),
            forward=self._stats([forward]) if forward is not None else NO_CALLS,
            backward=self._stats([backward]) if backward is not None else NO_CALLS,
        )

    def _stats(self, columns: list[int]) -> CollectiveStats:
        calls = self._calls[:, columns]
        with np.errstate(invalid="ignore", divide="ignore"):
            per_call = self._duration[:, :, columns] / np.where(calls > 0, calls, np.nan)[:, None, :]
        late = _nanmedian(self._late[:, :, columns].sum(axis=2), axis=0)
        per_step = float(np.median(calls.sum(axis=1)))
        nbytes = self._nbytes[:, columns]
        median_ns = _nanmedian(per_call.ravel())
        seconds = per_step * median_ns / 1e9 or np.nan
        return CollectiveStats(
            per_step=per_step,
            bytes=int(np.median(nbytes.sum(axis=1))),
            median_ns=_whole(median_ns),
            duration_ns=_whole(_nanmedian(_nanmean(self._duration[:, :, columns].sum(axis=2)))),
            algbw_bytes_per_s=_finite(np.median(nbytes.sum(axis=1)) / seconds),
            busbw_bytes_per_s=_finite(np.median((nbytes * self._bus[columns]).sum(axis=1)) / seconds),
            exposed_ns=_whole(_nanmedian(_nanmean(self._exposed[:, :, columns].sum(axis=2)))),
            late_ns={rank: int(ns) for rank, ns in enumerate(late) if math.isfinite(ns)},
        )

    def totals(self) -> CommTotals:
        """Sums over all units, and over calls that belong to none."""
        if not len(self._calls):
            return CommTotals()
        kinds = np.array([kind for _, kind, _ in self._at], dtype=np.int64)

        def nbytes(kind: int) -> int:
            return int(np.median(self._nbytes[:, kinds == kind].sum(axis=1)))

        def time(matrix: NDArray[np.float64], chosen: NDArray[np.bool_], of_buckets: int) -> int | None:
            return _whole(_nanmedian(_nanmean(self._per_rank(matrix, chosen, of_buckets))))

        every = np.ones(len(kinds), dtype=bool)
        return CommTotals(
            all_gather_bytes=nbytes(0),
            reduce_scatter_bytes=nbytes(1),
            all_reduce_bytes=nbytes(2),
            exposed_ns=time(self._exposed, every, EXPOSED),
            exposed_all_gather_ns=time(self._exposed, kinds == 0, EXPOSED),
            exposed_reduce_ns=time(self._exposed, kinds != 0, EXPOSED),
            duration_ns=time(self._duration, every, DURATION),
            buckets_ns=_whole(_nanmedian(_nanmean(self._spans[:, :, DURATION]))),
            buckets_exposed_ns=_whole(_nanmedian(_nanmean(self._spans[:, :, EXPOSED]))),
        )

    def _per_rank(self, matrix: NDArray[np.float64], chosen: NDArray[np.bool_], of_buckets: int) -> NDArray[np.float64]:
        """Sums over the chosen calls, per step and rank; DDP's buckets are known only all together."""
        times: NDArray[np.float64] = matrix[:, :, chosen & ~self._buckets].sum(axis=2)
        return times + self._spans[:, :, of_buckets] if (chosen & self._buckets).any() else times

    def exposed_by_phase(self) -> dict[int, tuple[int | None, ...]]:
        """Rank -> medians in the order of COMM_PHASES."""
        if not len(self._calls):
            return {}
        phases = np.array([phase for _, _, phase in self._at], dtype=np.int64)
        medians = [
            _nanmedian(self._per_rank(self._exposed, phases == phase, EXPOSED), axis=0)
            for phase in range(len(COMM_PHASES))
        ]
        return {rank: tuple(_whole(float(row[rank])) for row in medians) for rank in range(self._exposed.shape[1])}

    def lateness(self, names: Sequence[str]) -> Lateness | None:
        """Who is waited for, and where that begins; keys stand in the order in which a step's calls are issued.

        With DDP all ranks wait at one place, the end of backward: who waits least there came last.
        """
        if not self._late.size:
            return None
        waited = self._spans[:, :, [EXPOSED]]
        late = np.concatenate([self._late, waited.max(axis=1, keepdims=True) - waited], axis=2)
        known = np.isfinite(late).all(axis=1)
        chosen = known.any(axis=0)  # a call that some ranks do alone makes nobody wait
        late = late[known[:, chosen].all(axis=1)][:, :, chosen]
        if late.shape[1] < 2 or not late.shape[0] or not late.shape[2]:
            return None
        # One delay makes the ranks of both groups of a hybrid strategy wait, one after the other: it counts once.
        replicas = np.array([unit >= 0 and kind == ALL_REDUCE for unit, kind, _ in self._at] + [False])[chosen]
        per_step = np.maximum(late[:, :, ~replicas].sum(axis=2), late[:, :, replicas].sum(axis=2))
        rank = int(np.median(late.sum(axis=2), axis=0).argmax())  # whom both groups wait for comes before its partner
        others = [other for other in range(late.shape[1]) if other != rank]
        excess = per_step[:, rank] - np.median(per_step[:, others], axis=1)
        ns = float(np.median(excess))
        by_call = np.median(late[:, rank] - np.median(late[:, others], axis=1), axis=0)
        large = np.flatnonzero(by_call >= ns / 4)
        at = int(large[0]) if ns > 0 and large.size else int(by_call.argmax())
        places = [*self._at, (FIRST_BUCKET, ALL_REDUCE, COMM_PHASES.index("backward"))]
        unit, kind, phase = places[np.flatnonzero(chosen)[at]]
        return Lateness(
            rank=rank,
            ns=int(ns),
            steady_ns=int(np.percentile(excess, 100 * (1 - STEADY))),
            steps=len(excess),
            unit=BUCKETS if unit <= FIRST_BUCKET else names[unit] if 0 <= unit < len(names) else "",
            kind=COLLECTIVES[kind],
            phase=COMM_PHASES[phase],
            start_ns=int(by_call[at]),
        )


def _aligned(values: list[float], step: CommStep, keys: dict[tuple[int, int, int], int]) -> list[float]:
    by_key = dict(zip(step.keys, values, strict=True))
    return [by_key[key] for key in keys]


def _stack(window: Sequence[CommStep], name: str, keys: dict[tuple[int, int, int], int]) -> NDArray[np.float64]:
    if not window:
        return np.empty((0, 0, len(keys)))
    rows = []
    for step in window:
        matrix = step.matrix(name)
        if step.keys != list(keys):
            matrix = matrix[:, [step.keys.index(key) for key in keys]]
        rows.append(matrix)
    return np.stack(rows)


def _nanmedian(values: NDArray[np.float64], axis: int | None = None) -> Any:
    """np.nanmedian without its warning for a column that is not known at all."""
    if values.size == 0:
        return np.nan
    if axis is None:
        known = values[np.isfinite(values)]
        return float(np.median(known)) if known.size else np.nan
    if np.isfinite(values).all():
        return np.median(values, axis=axis)
    return np.array([_nanmedian(values[:, at]) for at in range(values.shape[1])])


def _nanmean(per_rank: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the ranks that reported, per step."""
    known = np.isfinite(per_rank)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: NDArray[np.float64] = np.where(known, per_rank, 0.0).sum(axis=1) / known.sum(axis=1)
    return means


def _whole(value: float) -> int | None:
    return int(value) if math.isfinite(value) else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
