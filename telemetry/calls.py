"""One step's collectives as tables, and the process groups they are made in: what a thousand ranks say alike is there once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry.messages import Comm

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Ranks that make collectives together. One object for all of them, so that it is enough to compare objects."""

    ranks: frozenset[int]
    size: int
    stride: int
    """Distance of neighbours; 0: they are not equally far apart."""


class Groups:
    """The process groups of all ranks, by the number that each rank knows them by."""

    def __init__(self, named: Mapping[int, Sequence[Sequence[int]]] | None = None) -> None:
        """`named`: rank -> the ranks of each of its groups."""
        self._groups: dict[tuple[int, ...], Group] = {}
        self._named: dict[int, Sequence[Sequence[int]]] = {}
        self._of: dict[int, list[Group]] = {}
        for rank, groups in (named or {}).items():
            self.name(rank, groups)

    def name(self, rank: int, groups: Sequence[Sequence[int]]) -> None:
        """Takes note of a rank's groups; takes no time when it is the same list as before."""
        if self._named.get(rank) is not groups:
            self._named[rank] = groups
            self._of[rank] = [self._group(tuple(ranks)) for ranks in groups]

    def _group(self, ranks: tuple[int, ...]) -> Group:
        found = self._groups.get(ranks)
        if found is None:
            gaps = {later - earlier for earlier, later in pairwise(sorted(ranks))}
            found = Group(frozenset(ranks), len(ranks), gaps.pop() if len(gaps) == 1 else 0)
            self._groups[ranks] = found
        return found

    def of(self, rank: int) -> Sequence[Group]:
        """A rank's groups, as `Comm.group` counts them; empty while it has not said any."""
        return self._of.get(rank, ())


@dataclass(frozen=True, eq=False, slots=True)
class Calls:
    """The ranks that make the same calls in the same order, and what those took.

    Matrices are (ranks, calls), in ns and bytes; NaN: not known.
    """

    ranks: list[int]
    lead: Comm
    """Of the first of them: `unit`, `kind`, `phase` and `group` are the same on all."""
    duration: Floats
    exposed: Floats
    nbytes: Floats


def tables(by_rank: Mapping[int, Comm]) -> list[Calls]:
    """One step's calls; one table, when all ranks do the same."""
    alike: list[list[int]] = []
    for rank, comm in by_rank.items():
        for ranks in alike:
            lead = by_rank[ranks[0]]
            if (
                comm.unit == lead.unit
                and comm.kind == lead.kind
                and comm.phase == lead.phase
                and comm.group == lead.group
            ):
                ranks.append(rank)
                break
        else:
            alike.append([rank])
    return [
        Calls(
            ranks,
            by_rank[ranks[0]],
            known([by_rank[rank].duration_ns for rank in ranks]),
            known([by_rank[rank].exposed_ns for rank in ranks]),
            _sizes([by_rank[rank].nbytes for rank in ranks]),
        )
        for ranks in alike
    ]


def known(times_ns: Sequence[Sequence[int]]) -> Floats:
    """Times as they are on the wire, where a negative one is not known; rows of one length."""
    row = Struct(f"{len(times_ns[0])}q")  # three times as fast as lists of lists are for numpy
    packed = b"".join([row.pack(*times) for times in times_ns])
    times = np.frombuffer(packed, dtype=np.int64).reshape(len(times_ns), -1).astype(np.float64)
    times[times < 0] = np.nan
    return times


def _sizes(nbytes: Sequence[Sequence[int]]) -> Floats:
    """Most often those of all ranks are the same."""
    lead = np.array(nbytes[0], dtype=np.float64)
    if all(one == nbytes[0] for one in nbytes):
        return np.broadcast_to(lead, (len(nbytes), len(lead)))
    return np.array(nbytes, dtype=np.float64)


def sum_by(columns: Ints, values: Floats, size: int) -> Floats:
    """Sums of a matrix's columns that go into the same of `size` columns; 0 where none goes. (ranks, calls) to (ranks, size)."""
    if len(columns) == size and bool((columns == np.arange(size)).all()):
        return values
    out = np.zeros((len(values), size))
    if len(columns):
        order = np.argsort(columns, kind="stable")
        present, starts = np.unique(columns[order], return_index=True)
        out[:, present] = np.add.reduceat(values[:, order], starts, axis=1)
    return out
