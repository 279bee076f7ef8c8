"""Collectives rank by rank and unit by unit: medians over the newest steps, worked out only for who asks.

The picture of a run has what every screen needs; a thousand ranks times a hundred units is what one screen needs, and of
that one metric at a time. So a grid only holds the steps, and reduces them when figures are asked for. Reduced steps are
kept: with each new step one is reduced, and the medians are taken anew.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry.bandwidth import ALL_REDUCE, bus_factor
from fsdp_tui.telemetry.calls import Floats
from fsdp_tui.telemetry.collectives import (
    BACKWARD,
    DURATION,
    EXPOSED,
    FIRST_BUCKET,
    NO_UNIT,
    CommStep,
    alike,
    median_known,
    order_of,
)
from fsdp_tui.telemetry.courtesy import pieces
from fsdp_tui.telemetry.messages import COLLECTIVES, COMM_PHASES

Metric = Literal["lateness", "exposed", "duration", "bandwidth"]
METRICS: Final[tuple[Metric, ...]] = ("lateness", "exposed", "duration", "bandwidth")
"""What the others wait for the rank, what its compute waits, what its calls take, each in ns per step; bytes per second on
its link while they run (bus bandwidth)."""
KEPT = 3 * len(METRICS)
"""Metrics and selections whose reduced steps are kept, those asked for last: who goes through them comes back to them."""
AT_ONCE = 1 << 17
"""Cells of steps, ranks and calls that are summed together: 1 MiB, which stays in the processor's cache."""


class Place(NamedTuple):
    """Where calls belong: a unit, a bucket, or none."""

    name: str
    """"" for no unit."""
    unit: int | None
    """As `Comm` has it; None: DDP's buckets together, whose times are known only so."""


class Selection(NamedTuple):
    """Which calls count."""

    kinds: tuple[int, ...] = tuple(range(len(COLLECTIVES)))
    """Indices into COLLECTIVES."""
    phases: tuple[int, ...] = tuple(range(len(COMM_PHASES)))
    """Indices into COMM_PHASES."""


ALL = Selection()


class Chosen(NamedTuple):
    """The calls of a selection, those of a place side by side."""

    columns: NDArray[np.int64]
    """(calls,): where each stands among all."""
    starts: NDArray[np.int64]
    """(places,): where those of each place begin,"""
    at: NDArray[np.int64]
    """(places,): and which place that is; only those that have any."""
    buckets: NDArray[np.bool_]
    """(calls,): DDP's."""
    replicas: NDArray[np.bool_]
    """(calls,): those between the replicas of a hybrid strategy."""


@dataclass(frozen=True, eq=False)
class Figures:
    """One metric of the selected calls: medians over steps. NaN is not known, or there is nothing: see `absent`."""

    metric: Metric
    cells: Floats
    """(ranks, places)"""
    absent: NDArray[np.bool_]
    """(ranks, places): the rank makes no such calls there, or nobody can wait for it."""
    by_rank: Floats
    """(ranks,) over all places; of DDP's buckets together."""
    steps: int

    @property
    def worst_is_low(self) -> bool:
        return self.metric == "bandwidth"

    @cached_property
    def usual(self) -> Floats:
        """(places,): the figure in the middle of those that are known, the better one of two, so that a rank of two can
        stand out."""
        sign = -1 if self.worst_is_low else 1
        known = np.isfinite(self.cells)
        count = known.sum(axis=0)
        if not len(self.cells):
            return np.full(self.cells.shape[1], np.nan)
        ordered = np.sort(np.where(known, sign * self.cells, np.inf), axis=0)
        middle = np.take_along_axis(ordered, np.maximum(0, (count - 1) // 2)[None], axis=0)[0]
        return np.where(count > 0, sign * middle, np.nan)

    @cached_property
    def excess(self) -> Floats:
        """(ranks, places): how much worse than the usual rank each is there."""
        behind = self.cells - self.usual
        return -behind if self.worst_is_low else behind


@dataclass(frozen=True, slots=True)
class CallFigures:
    """One kind of collective in one phase, of one rank in one place: medians over steps; None is not known."""

    kind: int
    phase: int
    calls: float
    """Per step."""
    nbytes: int
    """Per step: gathered output, or reduce input."""
    median_ns: int | None
    """Per call."""
    duration_ns: int | None
    """Per step."""
    exposed_ns: int | None
    late_ns: int | None
    """Per step: by how much longer the first of its group was in the call."""
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    group_size: int | None

    @property
    def overlapped_ns(self) -> int | None:
        """Per step: the part of `duration_ns` in which compute did not wait."""
        if self.duration_ns is None or self.exposed_ns is None:
            return None
        return max(0, self.duration_ns - self.exposed_ns)


class CommGrid:
    """The newest steps' collectives. Cheap to make, and may be asked from any thread.

    Attributes:
        places: where there are calls: DDP's buckets together and one by one, units in their order, no unit last.
        ranks: rows of every matrix.
        steps: how many steps medians are taken over.
    """

    def __init__(
        self, window: Sequence[CommStep] = (), names: Sequence[str] = (), before: CommGrid | None = None
    ) -> None:
        """`names`: of the units; `before`: the grid of an older window, whose reduced steps are used again."""
        self._window = alike(window)
        self._names = names
        self._newest = window[-1] if window else None
        self._keys = self._newest.keys if self._newest else []
        self.ranks = self._newest.ranks if self._newest else 0
        self.steps = len(self._window)
        self._reduced: dict[object, dict[int, tuple[CommStep, Floats]]] = {} if before is None else before._reduced
        self._lock: threading.Lock = threading.Lock() if before is None else before._lock
        self._figures: dict[tuple[Metric, Selection], Figures] = {}
        self._calls: dict[tuple[int, Place], list[CallFigures]] = {}
        units = {unit for unit, _, _ in self._keys}
        buckets = sorted((unit for unit in units if unit <= FIRST_BUCKET), reverse=True)
        self.places: tuple[Place, ...] = (
            *([Place("buckets", None)] if buckets else []),
            *(Place(f"bucket {FIRST_BUCKET - unit}", unit) for unit in buckets),
            *(Place(names[unit] if unit < len(names) else f"unit {unit}", unit) for unit in sorted(units) if unit >= 0),
            *([Place("", NO_UNIT)] if NO_UNIT in units else []),
        )
        self._place_of = {place.unit: at for at, place in enumerate(self.places)}
        self._sizes = list((self._newest.group_sizes if self._newest else []) or [0] * len(self._keys))
        alike_before = before is not None and before._keys == self._keys and before._sizes == self._sizes
        self._choices: dict[tuple[bool, Selection], Chosen] = before._choices if before and alike_before else {}

    def is_of(self, window: Sequence[CommStep], names: Sequence[str]) -> bool:
        """Whether it has been made of this window."""
        return self._newest is (window[-1] if window else None) and self._names == names

    def kinds(self) -> tuple[int, ...]:
        """Which collectives there are at all."""
        return tuple(sorted({kind for _, kind, _ in self._keys}))

    @cached_property
    def volume(self) -> list[tuple[float, int]]:
        """Of each place the calls and bytes of the newest step and a rank; of DDP's buckets together their sum."""
        if self._newest is None:
            return []
        units = np.array([unit for unit, _, _ in self._keys])
        calls, nbytes = np.asarray(self._newest.calls), np.asarray(self._newest.nbytes)
        chosen = [units <= FIRST_BUCKET if place.unit is None else units == place.unit for place in self.places]
        return [(float(calls[columns].sum()), int(nbytes[columns].sum())) for columns in chosen]

    def figures(self, metric: Metric, selection: Selection = ALL) -> Figures:
        """One metric of the selected calls, for every rank and place."""
        found = self._figures.get((metric, selection))
        if found is None:
            found = self._figures[metric, selection] = self._work_out(metric, selection)
        return found

    def add_up(self, metric: Metric, selection: Selection = ALL) -> list[Floats]:
        """What is asked for later is prepared by this: each step's part of `figures`, (ranks, places + 1), the last column over
        all places. Only steps that are new are added up."""
        asked = (metric, selection, tuple(self._keys))
        before = self._reduced.get(asked, {})
        new = [step for step in self._window if id(step) not in before]
        made = dict(zip(map(id, new), self._reduce(new, metric, self._chosen(metric, selection)), strict=True))
        kept = {id(step): before.get(id(step)) or (step, made[id(step)]) for step in self._window}
        with self._lock:  # not while figures are worked out: a key that asks for others would wait for a picture's
            self._reduced.pop(asked, None)
            self._reduced[asked] = kept
            while len(self._reduced) > KEPT:
                del self._reduced[next(iter(self._reduced))]
        return [row for _, row in kept.values()]

    def _work_out(self, metric: Metric, selection: Selection) -> Figures:
        rows = self.add_up(metric, selection)
        shape = (self.ranks, len(self.places))
        if not rows:
            return Figures(metric, np.full(shape, np.nan), np.ones(shape, bool), np.full(self.ranks, np.nan), 0)
        medians = median_known(np.ascontiguousarray(np.stack(rows).transpose(1, 2, 0)))
        absent = self._absent(self._chosen(metric, selection))
        return Figures(metric, np.where(absent, np.nan, medians[:, :-1]), absent, medians[:, -1], len(rows))

    def _figure(self, metric: Metric, rank: int, at: int) -> float | None:
        """As `figures` of all calls has it; where nobody has asked for those of all ranks, only this one is worked out."""
        known = self._figures.get((metric, ALL))
        if known is not None:
            value = float(known.cells[rank, at])
        else:
            own = slice(rank, rank + 1)
            steps = [reduced[0, at] for reduced in self._reduce(self._window, metric, self._chosen(metric, ALL), own)]
            value = float(median_known(np.array(steps)))
        return value if np.isfinite(value) else None

    def _chosen(self, metric: Metric, selection: Selection) -> Chosen:
        waited = metric == "lateness"
        found = self._choices.get((waited, selection))
        if found is None:
            found = self._choices[waited, selection] = self._choose(selection, waited=waited)
        return found

    def _choose(self, selection: Selection, *, waited: bool) -> Chosen:
        chosen = [
            (self._place_of[unit], column)
            for column, (unit, kind, phase) in enumerate(self._keys)
            if kind in selection.kinds
            and phase in selection.phases
            and not (waited and self._sizes[column] == 1)  # nobody can wait for it
        ]
        chosen.sort()
        at, starts = np.unique(np.array([place for place, _ in chosen], dtype=np.int64), return_index=True)
        columns = [column for _, column in chosen]
        units = np.array([self._keys[column][0] for column in columns])
        kinds = np.array([self._keys[column][1] for column in columns])
        return Chosen(
            columns=np.array(columns, dtype=np.int64),
            starts=starts.astype(np.int64),
            at=at,
            buckets=units <= FIRST_BUCKET,
            replicas=(units >= 0) & (kinds == ALL_REDUCE),
        )

    def _reduce(
        self, steps: Sequence[CommStep], metric: Metric, chosen: Chosen, ranks: slice = slice(None)
    ) -> list[Floats]:
        """Each step of all or some ranks: (ranks, places + 1), the last column over all places."""
        many = max(1, AT_ONCE // max(1, len(range(self.ranks)[ranks]) * len(chosen.columns)))
        parts = [steps[begin : begin + many] for begin in range(0, len(steps), many)]
        return [one for part in pieces(parts) for one in self._reduce_some(part, metric, chosen, ranks)]

    def _reduce_some(self, steps: Sequence[CommStep], metric: Metric, chosen: Chosen, ranks: slice) -> Floats:
        """(steps, ranks, places + 1)"""
        columns, starts, at, buckets, replicas = chosen
        out = np.full((len(steps), len(range(self.ranks)[ranks]), len(self.places) + 1), np.nan)
        if not len(columns):
            return out
        orders = [order_of(step, self._keys) for step in steps]
        picked = [columns if isinstance(order, slice) else np.asarray(order)[columns] for order in orders]

        def matrices(name: str) -> Floats:
            """(steps, ranks, calls), those of a place side by side."""
            return np.stack(
                [step.matrix(name)[ranks].take(own, axis=1) for step, own in zip(steps, picked, strict=True)]
            )

        spans = np.stack([step.spans() for step in steps])  # (steps, ranks, 2)
        spent = matrices("duration")
        together = self._place_of.get(None)
        if metric == "bandwidth":
            moved_bytes = [np.asarray(step.nbytes)[order] for step, order in zip(steps, orders, strict=True)]
            carried = (np.stack(moved_bytes) * self._bus())[:, columns]  # (steps, calls)
            with np.errstate(invalid="ignore", divide="ignore"):
                out[:, :, at] = (
                    np.add.reduceat(carried, starts, axis=1)[:, None] / np.add.reduceat(spent, starts, axis=2) * 1e9
                )
                time, moved = spent[:, :, ~buckets].sum(axis=2), carried[:, ~buckets].sum(axis=1)[:, None]
                if buckets.any() and together is not None:
                    span, of_buckets = spans[:, ranks, DURATION], carried[:, buckets].sum(axis=1)[:, None]
                    out[:, :, together] = of_buckets / span * 1e9
                    time, moved = time + span, moved + of_buckets
                out[:, :, -1] = moved / time * 1e9
            out[~np.isfinite(out)] = np.nan
            return out
        if metric == "lateness":
            # Who makes no call keeps nobody waiting.
            cells = np.where(spent == 0, 0.0, matrices("late"))
        else:
            cells = spent if metric == "duration" else matrices("exposed")
        # One delay makes the ranks of both groups of a hybrid strategy wait, one after the other: it counts once.
        if metric == "lateness" and replicas.any() and not replicas.all():
            first = np.add.reduceat(np.where(replicas, 0.0, cells), starts, axis=2)
            second = np.add.reduceat(np.where(replicas, cells, 0.0), starts, axis=2)
            out[:, :, at] = np.maximum(first, second)
            whole = np.maximum(cells[:, :, ~replicas & ~buckets].sum(axis=2), cells[:, :, replicas].sum(axis=2))
        else:
            out[:, :, at] = np.add.reduceat(cells, starts, axis=2)
            whole = (cells if not buckets.any() else cells[:, :, ~buckets]).sum(axis=2)
        if buckets.any() and together is not None:
            waited, span = spans[:, :, EXPOSED], spans[:, :, DURATION]
            behind = waited.max(axis=1, keepdims=True) - waited
            own = {"lateness": behind, "exposed": waited, "duration": span}[metric][:, ranks]
            out[:, :, together] = own
            whole = whole + own
        out[:, :, -1] = whole
        return out

    def _bus(self) -> Floats:
        pairs = zip(self._keys, self._sizes, strict=True)
        return np.array([bus_factor(kind, size) if size else np.nan for (_, kind, _), size in pairs])

    def _absent(self, chosen: Chosen) -> NDArray[np.bool_]:
        absent = np.ones((self.ranks, len(self.places)), dtype=bool)
        if len(chosen.columns) and self._newest is not None:
            spent = self._newest.matrix("duration")[:, chosen.columns]
            absent[:, chosen.at] = np.add.reduceat(spent != 0, chosen.starts, axis=1) == 0
            together = self._place_of.get(None)
            if together is not None:
                absent[:, together] = not chosen.buckets.any()
        return absent

    def calls(self, rank: int, place: Place) -> list[CallFigures]:
        """What the rank calls in a place, in the order in which a step does."""
        if self._newest is None or not 0 <= rank < self.ranks:
            return []
        found = self._calls.get((rank, place))
        if found is None:
            found = [self._buckets(rank)] if place.unit is None else self._calls_of(rank, place.unit)
            self._calls[rank, place] = found
        return found

    def together(self, rank: int, place: Place) -> CallFigures | None:
        """All calls of a rank in a place; its `kind` and `phase` are -1. None where there are none.

        Its times are medians of sums, which are not the sums of the calls' medians: one call is late in this step, and
        another in the next.
        """
        at = self.places.index(place)
        if not 0 <= rank < self.ranks or self._absent(self._chosen("duration", ALL))[rank, at]:
            return None
        calls, nbytes = self.volume[at]
        lateness, exposed, duration, bus = (self._figure(metric, rank, at) for metric in METRICS)
        return CallFigures(
            kind=-1,
            phase=-1,
            calls=calls,
            nbytes=nbytes,
            median_ns=None,
            duration_ns=_whole(duration),
            exposed_ns=_whole(exposed),
            late_ns=_whole(lateness),
            algbw_bytes_per_s=nbytes / duration * 1e9 if duration else None,
            busbw_bytes_per_s=bus,
            group_size=None,
        )

    def _calls_of(self, rank: int, place: int) -> list[CallFigures]:
        columns = [at for at, (unit, _, _) in enumerate(self._keys) if unit == place]
        sums, times = [], []
        for step in self._window:
            at = columns if step.keys == self._keys else [step.keys.index(self._keys[column]) for column in columns]
            sums.append([[step.calls[one] for one in at], [step.nbytes[one] for one in at]])
            times.append([step.matrix(name)[rank, at] for name in ("duration", "exposed", "late")])
        figures = np.concatenate([np.array(sums), np.array(times)], axis=1)  # (steps, 5, calls)
        return [
            _call(*self._keys[column][1:], self._sizes[column], *figures[:, :, at].T)
            for at, column in enumerate(columns)
            if figures[-1, 2, at] != 0
        ]

    def _buckets(self, rank: int) -> CallFigures:
        columns = [column for column, (unit, _, _) in enumerate(self._keys) if unit <= FIRST_BUCKET]
        calls, nbytes = (
            np.array(
                [sum(np.asarray(getattr(step, name))[order_of(step, self._keys)][columns]) for step in self._window]
            )
            for name in ("calls", "nbytes")
        )
        spans = np.stack([step.spans() for step in self._window])  # (steps, ranks, 2)
        waited = spans[:, :, EXPOSED]
        late = waited.max(axis=1) - waited[:, rank]
        figures = _call(
            ALL_REDUCE,
            BACKWARD,
            self._sizes[columns[0]],
            np.ones_like(calls),  # their times are known only together
            nbytes,
            spans[:, rank, DURATION],
            waited[:, rank],
            late,
        )
        return replace(figures, calls=float(np.median(calls)), median_ns=None)


def _call(
    kind: int, phase: int, size: int, calls: Floats, nbytes: Floats, duration: Floats, exposed: Floats, late: Floats
) -> CallFigures:
    per_step, whole = float(np.median(calls)), float(np.median(nbytes))
    median_ns = _known(duration / calls)
    seconds = per_step * median_ns / 1e9 if median_ns else None
    return CallFigures(
        kind=kind,
        phase=phase,
        calls=per_step,
        nbytes=int(whole),
        median_ns=_whole(median_ns),
        duration_ns=_whole(_known(duration)),
        exposed_ns=_whole(_known(exposed)),
        late_ns=_whole(_known(late)) if size != 1 else None,
        algbw_bytes_per_s=whole / seconds if seconds else None,
        busbw_bytes_per_s=whole * bus_factor(kind, size) / seconds if seconds and size else None,
        group_size=size or None,
    )


def _known(values: Floats) -> float | None:
    median = float(median_known(values))
    return median if median == median else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
