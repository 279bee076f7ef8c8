"""One step's collectives over all ranks, as matrices: what each rank spent in each kind of call, and who came late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from fsdp_tui.telemetry.calls import Calls, Floats, Group, Groups, Ints, known, sum_by, tables
from fsdp_tui.telemetry.mesh import Along, along_dimensions
from fsdp_tui.telemetry.messages import COMM_PHASES, Comm

Key = tuple[int, int, int]
"""(unit, kind, phase), as `Comm` has them."""

NO_UNIT = -1
"""`Comm.unit` of a call that belongs to no unit."""
FIRST_BUCKET = -2
"""`Comm.unit` of DDP's first bucket; the others count down from it."""
FORWARD, BACKWARD = COMM_PHASES.index("forward"), COMM_PHASES.index("backward")
"""`Comm.phase` of calls in them."""
SHORT = 512
"""Up to this many values all of them are sorted sooner than their halves are told apart."""
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
    parts = tables(by_rank)
    keys: dict[Key, int] = {}
    columns = [
        np.array([keys.setdefault(key, len(keys)) for key in _keys(part.lead)], dtype=np.int64) for part in parts
    ]
    ranks = max(world_size, max(by_rank, default=-1) + 1)
    duration = np.full((ranks, len(keys)), np.nan)
    exposed, late = duration.copy(), np.zeros_like(duration)
    compared = np.zeros(late.shape, dtype=bool)
    calls, nbytes = np.zeros(len(keys)), np.zeros(len(keys))
    spans = np.full((ranks, 2), np.nan)
    for part, column in zip(parts, columns, strict=True):
        duration[part.ranks] = sum_by(column, part.duration, len(keys))
        exposed[part.ranks] = sum_by(column, part.exposed, len(keys))
        calls = np.maximum(calls, np.bincount(column, minlength=len(keys)))
        nbytes = np.maximum(nbytes, sum_by(column, part.nbytes, len(keys)).max(axis=0))
        told = [by_rank[rank] for rank in part.ranks]
        spans[part.ranks] = known([(comm.reductions_ns, comm.reductions_exposed_ns) for comm in told])
    for members, column, spent in _same_calls(parts, columns, groups):
        touched = np.unique(column)
        cells = (members[:, None], touched)
        late[cells] += sum_by(column, spent.max(axis=0) - spent, len(keys))[:, touched]
        compared[cells] = True
    late[~compared] = np.nan
    return CommStep(
        step=step,
        keys=list(keys),
        calls=calls.tolist(),
        nbytes=nbytes.tolist(),
        ranks=ranks,
        duration=duration.tobytes(),
        exposed=exposed.tobytes(),
        late=late.tobytes(),
        group_sizes=_group_sizes(parts, groups, keys),
        reductions=spans.tobytes() if np.isfinite(spans).any() else b"",
        along=along_dimensions(parts, groups),
    )


def alike(window: Sequence[CommStep]) -> list[CommStep]:
    """The steps that make the same calls as the newest one: a changed structure starts a new window."""
    if not window:
        return []
    newest, keys = window[-1], set(window[-1].keys)
    return [
        step for step in window if step.ranks == newest.ranks and (step.keys is newest.keys or set(step.keys) == keys)
    ]


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
        if n <= SHORT:
            ordered = np.sort(values, axis=-1)
            lower, upper = ordered[..., (n - 1) // 2], ordered[..., middle]
        else:
            halves = np.partition(values, middle, axis=-1)
            upper = halves[..., middle]
            lower = upper if n % 2 else halves[..., :middle].max(axis=-1)
        return np.asarray((lower + upper) / 2)
    ordered = np.sort(np.where(known, values, np.nan), axis=-1)  # NaN last
    count = known.sum(axis=-1)
    ends = np.stack([np.maximum(0, (count - 1) // 2), np.minimum(n - 1, count // 2)], axis=-1)
    return np.asarray(np.where(count > 0, np.take_along_axis(ordered, ends, axis=-1).mean(axis=-1), np.nan))


def _keys(comm: Comm) -> Iterator[Key]:
    return zip(comm.unit, comm.kind, comm.phase, strict=True)


def _group_sizes(parts: Sequence[Calls], groups: Groups, keys: Mapping[Key, int]) -> list[int]:
    """Of the first rank that knows its groups: they are of one size on all."""
    sizes = [0] * len(keys)
    for part in parts:
        for rank in part.ranks:
            of_rank = groups.of(rank)
            if not of_rank:
                continue
            for key, group in zip(_keys(part.lead), part.lead.group, strict=True):
                if not sizes[keys[key]] and group < len(of_rank):
                    sizes[keys[key]] = of_rank[group].size
            if all(sizes):
                return sizes
    return sizes


def _same_calls(parts: Sequence[Calls], columns: Sequence[Ints], groups: Groups) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Groups whose ranks have all made the same calls in them: the ranks, the columns of those calls, and what each rank
    spent in them, (ranks, calls)."""
    # Group -> (which part, which of the rank's groups it is) -> rows of the part.
    found: dict[Group, dict[tuple[int, tuple[int, ...]], list[int]]] = {}
    for at, part in enumerate(parts):
        used = set(part.lead.group)
        for row, rank in enumerate(part.ranks):
            numbers: dict[Group, tuple[int, ...]] = {}
            for number, group in enumerate(groups.of(rank)):
                if number in used and rank in group.ranks:
                    numbers[group] = (*numbers.get(group, ()), number)
            for group, own in numbers.items():
                found.setdefault(group, {}).setdefault((at, own), []).append(row)
    for group, made in found.items():
        if group.size < 2 or sum(map(len, made.values())) != group.size:
            continue
        places = [np.flatnonzero(np.isin(parts[at].lead.group, own)) for at, own in made]
        called = [columns[at][place] for (at, _), place in zip(made, places, strict=True)]
        if all(
            np.array_equal(place, places[0]) and np.array_equal(column, called[0])
            for place, column in zip(places, called, strict=True)
        ):
            rows = [(parts[at], some) for (at, _), some in made.items()]
            members = np.array([part.ranks[row] for part, some in rows for row in some], dtype=np.int64)
            yield members, called[0], np.concatenate([part.duration[some][:, places[0]] for part, some in rows])
