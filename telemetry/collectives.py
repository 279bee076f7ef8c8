"""One step's collectives over all ranks, as matrices: what each rank spent in each kind of call, and who came late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry.mesh import Along, along_dimensions
from fsdp_tui.telemetry.messages import Comm

Floats = NDArray[np.float64]
Key = tuple[int, int, int]
"""(unit, kind, phase), as `Comm` has them."""
Groups = Mapping[int, Sequence[Sequence[int]]]
"""Rank -> the global ranks of each of its process groups."""

NO_UNIT = -1
"""`Comm.unit` of a call that belongs to no unit."""
FIRST_BUCKET = -2
"""`Comm.unit` of DDP's first bucket; the others count down from it."""
DURATION, EXPOSED = 0, 1
"""Columns of `CommStep.spans`."""


class CommStep(msgspec.Struct):
    """Collectives of one step over ranks: sums per (unit, kind, phase), float64 matrices of ranks x keys as bytes.

    Inside them NaN is "not known": the rank did not report the step, or a collective's waiting time was not measured.
    """

    step: int
    keys: list[Key]
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
    along: list[Along] = []
    """The same calls by dimension of the mesh, where there are several."""

    def matrix(self, name: str) -> Floats:
        """`duration`, `exposed` or `late`: (ranks, keys), in ns."""
        cells: Floats = np.frombuffer(getattr(self, name), dtype=np.float64)
        return cells.reshape(self.ranks, len(self.keys))

    def spans(self) -> Floats:
        """DDP's buckets together: (ranks, 2), DURATION and EXPOSED in ns."""
        if not self.reductions:
            return np.full((self.ranks, 2), np.nan)
        return np.frombuffer(self.reductions, dtype=np.float64).reshape(self.ranks, 2)


def sum_collectives(step: int, by_rank: Mapping[int, Comm], groups: Groups, world_size: int) -> CommStep:
    """Sums one step's calls per (unit, kind, phase) and rank.

    Lateness needs no clocks: a collective ends nearly together on the ranks of its group, so the rank that spent the least
    time in it came last, and the others waited for (longest duration - its duration). It is known only for calls that
    every rank of the group reported in the same order.
    """
    keys: dict[Key, int] = {}
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
        along=along_dimensions(by_rank, groups),
    )


def alike(window: Sequence[CommStep]) -> list[CommStep]:
    """The steps that make the same calls as the newest one: a changed structure starts a new window."""
    if not window:
        return []
    newest, keys = window[-1], set(window[-1].keys)
    return [step for step in window if step.ranks == newest.ranks and set(step.keys) == keys]


def order_of(step: CommStep, keys: Sequence[Key]) -> list[int] | slice:
    """Where each of these keys stands in the step's columns."""
    if step.keys == keys:
        return slice(None)
    places = {key: at for at, key in enumerate(step.keys)}
    return [places[key] for key in keys]


def median_known(values: Floats) -> Floats:
    """Median over the last axis of what is known; NaN where nothing is.

    (np.nanmedian goes through the rows one by one, and np.median spends most of its time on looking for NaN.)
    """
    n = values.shape[-1]
    if not n:
        return np.full(values.shape[:-1], np.nan)
    known = np.isfinite(values)
    if known.all():
        middle = n // 2
        halves = np.partition(values, middle, axis=-1)
        if n % 2:
            return np.asarray(halves[..., middle])
        return np.asarray((halves[..., :middle].max(axis=-1) + halves[..., middle]) / 2)
    ordered = np.sort(np.where(known, values, np.nan), axis=-1)  # NaN last
    count = known.sum(axis=-1)
    ends = np.stack([np.maximum(0, (count - 1) // 2), np.minimum(n - 1, count // 2)], axis=-1)
    return np.asarray(np.where(count > 0, np.take_along_axis(ordered, ends, axis=-1).mean(axis=-1), np.nan))


def _group_sizes(by_rank: Mapping[int, Comm], groups: Groups, keys: Mapping[Key, int]) -> list[int]:
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


def _known(times_ns: Sequence[int]) -> Floats:
    times = np.asarray(times_ns, dtype=np.float64)
    return np.where(times < 0, np.nan, times)


def _sums(column: NDArray[np.int64], values: Floats, size: int) -> Floats:
    return np.bincount(column, weights=values, minlength=size).astype(np.float64)


def _same_calls(
    by_rank: Mapping[int, Comm], columns: Mapping[int, NDArray[np.int64]], groups: Groups
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
