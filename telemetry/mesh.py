"""Collectives by the dimension of the device mesh that they run along: sharding apart from replication and tensor parallelism.

Ranks of one dimension are equally far apart, on every rank: of a 2 x 2 mesh, [0, 1] and [2, 3] are one dimension (two ranks,
1 apart), [0, 2] and [1, 3] the other (two ranks, 2 apart).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from fsdp_tui.telemetry.calls import Calls, Floats, Groups, sum_by
from fsdp_tui.telemetry.messages import COLLECTIVES


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


def along_dimensions(parts: Sequence[Calls], groups: Groups) -> list[Along]:
    """One step's collectives by dimension and kind; empty when all run along one."""
    shapes: dict[tuple[int, int], int] = {}
    # Ranks number their groups as they meet them: which part, which dimension each group runs along -> rows of the part.
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for at, part in enumerate(parts):
        used = set(part.lead.group)
        for row, rank in enumerate(part.ranks):
            places = tuple(
                shapes.setdefault((group.size, group.stride), len(shapes)) if number in used else -1
                for number, group in enumerate(groups.of(rank))
            )
            alike.setdefault((at, places), []).append(row)
    if len(shapes) < 2:
        return []
    rows = [_by_place(parts[at], some, places, len(shapes)) for (at, places), some in alike.items()]
    calls, nbytes, duration, exposed = (np.concatenate(column) for column in zip(*rows, strict=True))
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


def _by_place(
    part: Calls, rows: Sequence[int], places: Sequence[int], count: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """Calls, bytes, time and exposed time of some ranks: sums by dimension and kind. NaN where one time is not known."""
    group = np.asarray(part.lead.group, dtype=np.int64)
    place = np.array([*places, -1], dtype=np.int64)[np.minimum(group, len(places))]
    told = place >= 0
    columns = (place * len(COLLECTIVES) + np.asarray(part.lead.kind, dtype=np.int64))[told]
    matrices = (np.ones_like(part.duration), part.nbytes, part.duration, part.exposed)
    calls, nbytes, duration, exposed = (
        sum_by(columns, matrix[list(rows)][:, told], count * len(COLLECTIVES)) for matrix in matrices
    )
    return calls, nbytes, duration, exposed


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


def _mean(over_ranks: Floats) -> int | None:
    known = over_ranks[np.isfinite(over_ranks)]
    return int(known.mean()) if known.size else None


def _median(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return int(median(known)) if known else None
