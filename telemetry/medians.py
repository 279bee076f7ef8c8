"""What collectives cost over the newest steps: medians per unit and kind, sums over all units, and who comes late."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry.bandwidth import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, bus_factor
from fsdp_tui.telemetry.calls import Floats
from fsdp_tui.telemetry.collectives import (
    BACKWARD,
    DURATION,
    EXPOSED,
    FIRST_BUCKET,
    NO_UNIT,
    CommStep,
    Key,
    alike,
    median_known,
    order_of,
)
from fsdp_tui.telemetry.courtesy import pieces
from fsdp_tui.telemetry.messages import COLLECTIVES, COMM_PHASES
from fsdp_tui.telemetry.view import (
    BUCKETS,
    ByRank,
    Collective,
    CollectiveStats,
    CommTotals,
    InPhase,
    Lateness,
)

STEADY = 0.85
"""Share of the steps in which a rank must be late for it to be late steadily: with 20 steps, 17 of them."""
CACHED_CELLS = 1 << 17
"""Cells that are worked on at a time."""

SUMS = (
    "_duration_sums", "_exposed_sums", "_late_sums", "_exposed_parts", "_spent", "_late_shards", "_late_replicas",
)  # fmt: skip
"""What is added up of each step once, in the window's order."""
NO_COLLECTIVE = Collective()


class CollectiveMedians:
    """Medians over a window of closed steps that is followed: a step that is new to it is written over one that has left.

    Matrices are calls x ranks x steps, so that a median runs over neighbours in memory, and are gone through some calls at a
    time, so that what is made on the way stays in the processor's cache: 64 ranks x 240 calls x 128 steps are 2 million cells.

    Attributes:
        totals: sums over all units, and over calls that belong to none.
        exposed: rank -> medians of the time that compute waited, in the order of COMM_PHASES.
    """

    def __init__(self) -> None:
        self._newest: CommStep | None = None
        self._clear([], 0)
        self._work_out()

    def follow(self, window: Sequence[CommStep]) -> None:
        """Brings the figures up to date; cheap when no step has been closed since."""
        steps = alike(window)
        if steps and steps[-1] is self._newest and len(steps) == len(self._slots):
            return
        if not steps and not self._slots:
            return
        new = self._make_room(steps)
        if new is None:
            self._clear(steps[-1].keys if steps else [], steps[-1].ranks if steps else 0)
            self._fill(steps)
        else:
            for at, step in pieces(new):
                self._write(at, step)
        self._newest = steps[-1] if steps else None
        self._work_out()

    @property
    def steps(self) -> int:
        """Steps that the figures are of."""
        return len(self._slots)

    def collective(self, unit: int, kind: int) -> Collective:
        """One unit's collectives of one kind; `unit` as `Comm` has it."""
        return self._stats.get((unit, kind), NO_COLLECTIVE)

    def lateness(self, names: Sequence[str]) -> Lateness | None:
        """Who is waited for, and where that begins. `names`: of the units."""
        if self._late_rank is None:
            return None
        unit = self._late_unit
        name = BUCKETS if unit <= FIRST_BUCKET else names[unit] if 0 <= unit < len(names) else ""
        return replace(self._late_rank, unit=name)

    # The window

    def _clear(self, keys: Sequence[Key], ranks: int) -> None:
        self._keys = list(keys)
        self._newest = None
        self._slots: list[CommStep] = []
        self._duration, self._exposed, self._late = (np.empty((len(keys), ranks, 0)) for _ in range(3))
        self._calls, self._nbytes = np.empty((len(keys), 0)), np.empty((len(keys), 0))
        self._spans = np.empty((2, ranks, 0))
        self._duration_sums, self._exposed_sums, self._late_sums = (np.empty((len(keys), 0)) for _ in range(3))
        at: dict[tuple[int, int], list[int]] = {}
        for column, (unit, kind, phase) in enumerate(keys):
            at.setdefault((kind, phase), []).extend([column] if unit > FIRST_BUCKET else [])
        self._parts = {part: np.array(columns, dtype=np.int64) for part, columns in at.items()}
        self._buckets_in = next(((kind, phase) for unit, kind, phase in keys if unit <= FIRST_BUCKET), None)
        self._exposed_parts = np.empty((len(at), ranks, 0))
        self._spent, self._late_shards, self._late_replicas = (np.empty((ranks, 0)) for _ in range(3))
        self._units = np.array([unit for unit, _, _ in keys], dtype=np.int64)
        self._kinds = np.array([kind for _, kind, _ in keys], dtype=np.int64)

    def _make_room(self, steps: Sequence[CommStep]) -> list[tuple[int, CommStep]] | None:
        """Where each new step goes; None: the steps that are here do not belong to this window."""
        if not steps or set(steps[-1].keys) != set(self._keys) or steps[-1].ranks != self._duration.shape[1]:
            return None
        staying = {id(step) for step in steps}
        here = {id(step) for step in self._slots}
        new = [step for step in steps if id(step) not in here]
        free = [at for at, step in enumerate(self._slots) if id(step) not in staying]
        if len(free) > len(new):
            return None
        return list(zip([*free, *range(len(self._slots), len(steps))], new, strict=True))

    def _fill(self, steps: Sequence[CommStep]) -> None:
        """All steps at once, where none is yet: many columns written one by one would take far longer."""
        self._slots = list(steps)
        if not steps:
            return
        orders = [order_of(step, self._keys) for step in steps]
        for name in ("duration", "exposed", "late"):
            rows = np.stack([step.matrix(name)[:, order] for step, order in zip(steps, orders, strict=True)])
            setattr(self, f"_{name}", np.ascontiguousarray(rows.transpose(2, 1, 0)))
        for name in ("calls", "nbytes"):
            sums = [np.asarray(getattr(step, name))[order] for step, order in zip(steps, orders, strict=True)]
            setattr(self, f"_{name}", np.stack(sums, axis=-1))
        self._spans = np.stack([step.spans().T for step in steps], axis=-1)
        for name in SUMS:
            setattr(self, name, np.empty((*getattr(self, name).shape[:-1], len(steps))))
        self._add_up(slice(None))

    def _write(self, at: int, step: CommStep) -> None:
        if at >= self._calls.shape[-1]:
            self._grow(2 * at + 8)
        order = order_of(step, self._keys)
        self._duration[:, :, at] = step.matrix("duration")[:, order].T
        self._exposed[:, :, at] = step.matrix("exposed")[:, order].T
        self._late[:, :, at] = step.matrix("late")[:, order].T
        self._calls[:, at] = np.asarray(step.calls)[order]
        self._nbytes[:, at] = np.asarray(step.nbytes)[order]
        self._spans[:, :, at] = step.spans().T
        self._slots[at : at + 1] = [step]
        self._add_up(slice(at, at + 1))

    def _add_up(self, steps: slice) -> None:
        """Sums over ranks, and over calls, of some steps of the window. (Whole ns: exact in whatever order.)"""
        for of_calls, matrix in (
            (self._duration_sums, self._duration),
            (self._exposed_sums, self._exposed),
            (self._late_sums, self._late),
        ):
            of_calls[:, steps] = matrix[:, :, steps].sum(axis=1)
        self._spent[:, steps] = 0
        for at, (part, columns) in enumerate(self._parts.items()):
            exposed, spent = self._exposed[columns, :, steps].sum(axis=0), self._duration[columns, :, steps].sum(axis=0)
            if part == self._buckets_in:  # known only all together
                exposed, spent = exposed + self._spans[EXPOSED, :, steps], spent + self._spans[DURATION, :, steps]
            self._exposed_parts[at, :, steps] = exposed
            self._spent[:, steps] += spent
        replicas = self._replicas()
        self._late_shards[:, steps] = self._late[~replicas, :, steps].sum(axis=0)
        self._late_replicas[:, steps] = self._late[replicas, :, steps].sum(axis=0)

    def _replicas(self) -> NDArray[np.bool_]:
        """(calls,): those between the replicas of a hybrid strategy."""
        return np.asarray((self._units >= 0) & (self._kinds == ALL_REDUCE))

    def _grow(self, capacity: int) -> None:
        for name in ("_duration", "_exposed", "_late", "_calls", "_nbytes", "_spans", *SUMS):
            old = getattr(self, name)
            wider = np.empty((*old.shape[:-1], capacity))
            wider[..., : old.shape[-1]] = old
            setattr(self, name, wider)

    # The figures

    def of_one(self, steps: Sequence[CommStep], key: Key, bus: Floats) -> CollectiveStats:
        """The figures of a call over these steps, which take the place of the window."""
        self._clear([key], steps[-1].ranks)
        self._fill(steps)
        return self._stats_of(np.array([[0]]), bus)[0]

    def _work_out(self) -> None:
        self._stats = self._all_stats() if self._slots and self._keys else {}
        self.totals = self._totals() if self._slots else CommTotals()
        self.exposed = self._exposed_by_phase() if self._slots else {}
        self._late_unit, self._late_rank = self._latest() if self._slots else (NO_UNIT, None)

    def _all_stats(self) -> Mapping[tuple[int, int], Collective]:
        at: dict[tuple[int, int], dict[int, int]] = {}
        for column, (unit, kind, phase) in enumerate(self._keys):
            at.setdefault((unit, kind), {})[phase] = column
        phases = self._phases_of_calls()
        sizes = self._newest_sizes()
        bus = np.array(
            [bus_factor(kind, size) if size else np.nan for (_, kind, _), size in zip(self._keys, sizes, strict=True)]
        )
        wanted = {tuple(sorted(by_phase.values())) for by_phase in at.values()}
        found: dict[tuple[int, ...], CollectiveStats] = {}
        for size in sorted({len(columns) for columns in wanted}):
            same = sorted(columns for columns in wanted if len(columns) == size)
            for some in pieces(self._chunks(len(same), size)):
                found |= zip(same[some], self._stats_of(np.array(same[some]), bus), strict=True)
        steps = tuple(self._slots)  # what is asked for later is still that of these
        return {
            call: Collective(
                step=found[tuple(sorted(by_phase.values()))],
                phases={phase: phases[column] for phase, column in by_phase.items()},
                of_phase=partial(_stats_of_phase, steps, bus, by_phase, *call),
            )
            for call, by_phase in at.items()
        }

    def _phases_of_calls(self) -> list[InPhase]:
        """Of each column."""
        per_step = np.median(self._calls[:, : len(self._slots)], axis=-1).tolist()
        waited = self._together(self._exposed, self._exposed_sums, np.arange(len(self._keys))[:, None]).tolist()
        return [InPhase(calls, _whole(ns)) for calls, ns in zip(per_step, waited, strict=True)]

    def _newest_sizes(self) -> Sequence[int]:
        newest = self._slots[-1] if self._newest is None else self._newest
        sizes = dict(zip(newest.keys, newest.group_sizes, strict=False))
        return [sizes.get(key, 0) for key in self._keys]

    def _chunks(self, count: int, size: int = 1) -> list[slice]:
        """Cuts of a list of calls, or of sets of them, that are worked on at a time."""
        cells = max(1, size * self._duration.shape[1] * len(self._slots))
        many = max(1, CACHED_CELLS // cells)
        return [slice(begin, begin + many) for begin in range(0, count, many)]

    def _stats_of(self, columns: NDArray[np.int64], bus: Floats) -> list[CollectiveStats]:
        """Figures of sets of calls. `columns`: (sets, calls in each)."""
        n = len(self._slots)
        duration = self._of(self._duration, columns)  # (sets, calls, ranks, steps)
        calls, nbytes = self._calls[columns, :n], self._nbytes[columns, :n]  # (sets, calls, steps)
        with np.errstate(invalid="ignore", divide="ignore"):
            per_call = duration if (calls == 1).all() else duration / np.where(calls > 0, calls, np.nan)[:, :, None, :]
            median_ns = median_known(per_call.reshape(len(columns), -1))
            per_step = np.median(calls.sum(axis=1), axis=-1)
            seconds = np.where(per_step * median_ns > 0, per_step * median_ns / 1e9, np.nan)
            whole = np.median(nbytes.sum(axis=1), axis=-1)
            algbw = whole / seconds
            busbw = np.median((nbytes * bus[columns][:, :, None]).sum(axis=1), axis=-1) / seconds
        late = median_known(_sum_calls(self._of(self._late, columns)))
        together = self._together(self._duration, self._duration_sums, columns)
        waited = self._together(self._exposed, self._exposed_sums, columns)
        figures = np.stack([per_step, whole, median_ns, together, algbw, busbw, waited]).T.tolist()
        return [
            CollectiveStats(
                per_step=calls_in_step,
                bytes=int(bytes_in_step),
                median_ns=_whole(one_ns),
                duration_ns=_whole(spent_ns),
                algbw_bytes_per_s=_finite(alg),
                busbw_bytes_per_s=_finite(on_link),
                exposed_ns=_whole(exposed_ns),
                late_ns=ByRank(row),
            )
            for row, (calls_in_step, bytes_in_step, one_ns, spent_ns, alg, on_link, exposed_ns) in zip(
                late, figures, strict=True
            )
        ]

    def _together(self, matrix: Floats, sums: Floats, columns: NDArray[np.int64]) -> Floats:
        """Of sets of calls the median over steps of the mean over ranks, (sets,); `sums`: the matrix over its ranks."""
        means = sums[columns, : len(self._slots)].sum(axis=1) / matrix.shape[1]
        found = median_known(means)
        lost = np.flatnonzero(~np.isfinite(means).all(axis=-1))  # the mean is over those who said it
        if len(lost):
            found[lost] = median_known(_mean_known(_sum_calls(self._of(matrix, columns[lost]))))
        return found

    def _of(self, matrix: Floats, columns: NDArray[np.int64]) -> Floats:
        """(sets, calls, ranks, steps); of single calls that are neighbours nothing is copied."""
        if columns.shape[1] == 1 and columns[-1, 0] - columns[0, 0] == len(columns) - 1:
            return matrix[columns[0, 0] : columns[-1, 0] + 1, None, :, : len(self._slots)]
        return matrix[columns, :, : len(self._slots)]

    def _totals(self) -> CommTotals:
        n = len(self._slots)

        def nbytes(kind: int) -> int:
            return int(np.median(self._nbytes[self._kinds == kind, :n].sum(axis=0)))

        def time(per_rank: Floats) -> int | None:
            return _whole(median_known(_mean_known(per_rank)))

        def exposed(chosen: list[bool]) -> int | None:
            return time(self._exposed_parts[chosen, :, :n].sum(axis=0))

        gathers = [kind == ALL_GATHER for kind, _ in self._parts]
        return CommTotals(
            all_gather_bytes=nbytes(ALL_GATHER),
            reduce_scatter_bytes=nbytes(REDUCE_SCATTER),
            all_reduce_bytes=nbytes(ALL_REDUCE),
            exposed_ns=exposed([True] * len(gathers)),
            exposed_all_gather_ns=exposed(gathers),
            exposed_reduce_ns=exposed([not gather for gather in gathers]),
            duration_ns=time(self._spent[:, :n]),
            buckets_ns=time(self._spans[DURATION, :, :n]),
            buckets_exposed_ns=time(self._spans[EXPOSED, :, :n]),
        )

    def _exposed_by_phase(self) -> dict[int, tuple[int | None, ...]]:
        parts = self._exposed_parts[..., : len(self._slots)]
        medians = [
            median_known(parts[[own == phase for _, own in self._parts]].sum(axis=0)).tolist()
            for phase in pieces(range(len(COMM_PHASES)))
        ]
        return {rank: tuple(map(_whole, row)) for rank, row in enumerate(zip(*medians, strict=True))}

    def _latest(self) -> tuple[int, Lateness | None]:
        """Who is waited for, without the unit's name, and the unit where that begins.

        Keys stand in the order in which a step's calls are issued. With DDP all ranks wait at one place, the end of backward:
        who waits least there came last.
        """
        n = len(self._slots)
        waited = self._spans[EXPOSED, :, :n]
        late, buckets = self._late[..., :n], (waited.max(axis=0) - waited)[None]
        places = [*self._keys, (FIRST_BUCKET, ALL_REDUCE, BACKWARD)]
        known = np.isfinite(np.concatenate([self._late_sums[:, :n], buckets.sum(axis=1)]))  # (calls + 1, steps)
        chosen = known.any(axis=1)  # a call that some ranks do alone makes nobody wait
        steps = known[chosen].all(axis=0)
        if len(waited) < 2 or not chosen.any() or not steps.any():
            return NO_UNIT, None
        calls = np.flatnonzero(chosen)

        def of(some: slice) -> Floats:
            """(calls, ranks, steps)"""
            picked = calls[some]
            parts = [late[picked[picked < len(late)]], buckets[picked[picked >= len(late)] - len(late)]]
            return np.concatenate(parts)[:, :, steps] if len(parts[1]) or not steps.all() else parts[0]

        # One delay makes the ranks of both groups of a hybrid strategy wait, one after the other: it counts once.
        chunks = self._chunks(len(calls))
        if known[:-1].all() and not chosen[-1]:
            in_shards, in_replicas = self._late_shards[:, :n], self._late_replicas[:, :n]
        else:
            replicas = np.append(self._replicas(), False)[chosen]
            in_shards, in_replicas = np.zeros((2, len(waited), int(steps.sum())))
            for some in chunks:
                part = of(some)
                in_shards += part[~replicas[some]].sum(axis=0)
                in_replicas += part[replicas[some]].sum(axis=0)
        per_step = np.maximum(in_shards, in_replicas)
        # Whom both groups wait for comes before its partner.
        rank = int(median_known(in_shards + in_replicas).argmax())
        others = np.arange(len(waited)) != rank
        excess = per_step[rank] - median_known(per_step[others].T)
        ns = float(np.median(excess))
        by_call = np.empty(0)
        large = np.empty(0, dtype=np.int64)
        for part in map(of, pieces(chunks)):  # up to the first large one
            own, of_others = part[:, rank], np.ascontiguousarray(part[:, others].transpose(0, 2, 1))
            by_call = np.append(by_call, median_known(own - median_known(of_others)))
            large = np.flatnonzero(by_call >= ns / 4)
            if ns > 0 and large.size:
                break
        at = int(large[0]) if ns > 0 and large.size else int(by_call.argmax())
        unit, kind, phase = places[calls[at]]
        return unit, Lateness(
            rank=rank,
            ns=int(ns),
            steady_ns=int(np.percentile(excess, 100 * (1 - STEADY))),
            steps=len(excess),
            unit="",
            kind=COLLECTIVES[kind],
            phase=COMM_PHASES[phase],
            start_ns=int(by_call[at]),
        )


def _stats_of_phase(
    steps: Sequence[CommStep], bus: Floats, by_phase: Mapping[int, int], unit: int, kind: int, phase: int
) -> CollectiveStats:
    """`bus`: of all columns; `by_phase`: the column of each phase."""
    return CollectiveMedians().of_one(steps, (unit, kind, phase), bus[[by_phase[phase]]])


def _sum_calls(times: Floats) -> Floats:
    """(sets, calls, ...) to (sets, ...)"""
    return np.asarray(times[:, 0] if times.shape[1] == 1 else times.sum(axis=1))


def _mean_known(times: Floats) -> Floats:
    """Mean over the ranks that reported, per step. `times`: (..., ranks, steps)."""
    known = np.isfinite(times)
    if known.all() and times.shape[-2]:
        return np.asarray(times.mean(axis=-2))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known, times, 0.0).sum(axis=-2) / known.sum(axis=-2))


def _whole(value: float | Floats) -> int | None:
    return int(value) if math.isfinite(value) else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
