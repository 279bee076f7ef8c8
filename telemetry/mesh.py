"""Collectives by the dimension of the device mesh that they run along: sharding apart from replication and tensor parallelism.

Ranks of one dimension are equally far apart, on every rank: of a 2 x 2 mesh, [0, 1] and [2, 3] are one dimension (two ranks,
1 apart), [0, 2] and [1, 3] the other (two ranks, 2 apart).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry.messages import COLLECTIVES, Comm

Floats = NDArray[np.float64]
Groups = Mapping[int, Sequence[Sequence[int]]]


class Along(msgspec.Struct, array_like=True):
    """One step's collectives of one kind along one dimension, per rank."""

    size: int
    stride: int
    """Distance of neighbours; 0: they are not equally far apart."""
    kind: int
    calls: int
    nbytes: int
    duration_ns: int | None
    exposed_ns: int | None


class Dimension(NamedTuple):
    """Medians over steps, per step and rank, of one kind of collective along one dimension."""

    size: int
    stride: int
    kind: str
    per_step: float
    bytes: int
    duration_ns: int | None
    exposed_ns: int | None


def along_dimensions(by_rank: Mapping[int, Comm], groups: Groups) -> list[Along]:
    """One step's collectives by dimension and kind; empty when all run along one."""
    shapes: dict[tuple[int, int], int] = {}
    places: dict[int, list[int]] = {}
    for rank, comm in by_rank.items():
        used = set(comm.group)
        places[rank] = [
            shapes.setdefault(_shape(ranks), len(shapes)) if at in used else -1
            for at, ranks in enumerate(groups.get(rank, []))
        ]
    if len(shapes) < 2:
        return []
    rows = [_by_place(comm, places[rank], len(shapes)) for rank, comm in by_rank.items()]
    calls, nbytes, duration, exposed = (np.stack(column) for column in zip(*rows, strict=True))
    found = [
        Along(
            size,
            stride,
            kind,
            calls=int(calls[:, at].max()),
            nbytes=int(nbytes[:, at].max()),
            duration_ns=_mean(duration[:, at]),
            exposed_ns=_mean(exposed[:, at]),
        )
        for (size, stride), place in shapes.items()
        for kind in range(len(COLLECTIVES))
        if calls[:, at := place * len(COLLECTIVES) + kind].any()
    ]
    return sorted(found, key=lambda one: (one.size, one.stride, one.kind))


def _by_place(comm: Comm, places: Sequence[int], count: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Calls, bytes, time and exposed time of one rank: sums by dimension and kind. NaN where one time is not known."""
    group = np.asarray(comm.group, dtype=np.int64)
    place = np.array([*places, -1], dtype=np.int64)[np.minimum(group, len(places))]
    told = place >= 0
    index = (place * len(COLLECTIVES) + np.asarray(comm.kind, dtype=np.int64))[told]

    def sums(values: Sequence[int] | None) -> Floats:
        weights = None if values is None else np.asarray(values, dtype=np.float64)[told]
        if weights is not None:
            weights = np.where(weights < 0, np.nan, weights)
        return np.bincount(index, weights=weights, minlength=count * len(COLLECTIVES)).astype(np.float64)

    return sums(None), sums(comm.nbytes), sums(comm.duration_ns), sums(comm.exposed_ns)


def dimensions(steps: Sequence[Sequence[Along]]) -> tuple[Dimension, ...]:
    """Medians over those steps that have the same dimensions and kinds as the newest."""
    if not steps or not steps[-1]:
        return ()
    keys = [(one.size, one.stride, one.kind) for one in steps[-1]]
    alike = [step for step in steps if [(one.size, one.stride, one.kind) for one in step] == keys]
    found = []
    for at, (size, stride, kind) in enumerate(keys):
        column = [step[at] for step in alike]
        found.append(
            Dimension(
                size,
                stride,
                COLLECTIVES[kind],
                float(median(one.calls for one in column)),
                int(median(one.nbytes for one in column)),
                _median([one.duration_ns for one in column]),
                _median([one.exposed_ns for one in column]),
            )
        )
    return tuple(found)


def _shape(ranks: Sequence[int]) -> tuple[int, int]:
    ordered = sorted(ranks)
    gaps = {later - earlier for earlier, later in pairwise(ordered)}
    return len(ordered), gaps.pop() if len(gaps) == 1 else 0


def _mean(over_ranks: Floats) -> int | None:
    known = over_ranks[np.isfinite(over_ranks)]
    return int(known.mean()) if known.size else None


def _median(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return int(median(known)) if known else None
