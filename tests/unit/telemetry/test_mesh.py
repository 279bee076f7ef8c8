"""Collectives by dimension of a mesh, from messages whose sums can be seen."""

from __future__ import annotations

from fsdp_tui.telemetry.calls import Groups, tables
from fsdp_tui.telemetry.mesh import Along, along_dimensions, dimensions
from fsdp_tui.telemetry.messages import Comm

GATHER, SCATTER, REDUCE = 0, 1, 2
MESH = Groups(
    {
        0: [[0, 2], [0, 1]],
        1: [[0, 1], [1, 3]],  # each rank numbers its groups as it meets them
        2: [[0, 2], [2, 3]],
        3: [[1, 3], [2, 3]],
    }
)


def a_comm(rank: int, sharding: int, *, unknown: bool = False) -> Comm:
    """Two gathers of 8 and 16 bytes along the sharding dimension, one all-reduce of 4 bytes along the other."""
    other = 1 - sharding
    return Comm(
        rank=rank,
        seq=1,
        step=1,
        unit=[0, 1, -1],
        kind=[GATHER, GATHER, REDUCE],
        phase=[0, 0, 1],
        group=[sharding, sharding, other],
        nbytes=[8, 16, 4],
        duration_ns=[10, 20, -1 if unknown else 100 * (rank + 1)],
        exposed_ns=[1, 2, 3],
    )


BY_RANK = {0: a_comm(0, 0), 1: a_comm(1, 1), 2: a_comm(2, 0), 3: a_comm(3, 0)}


def test_dimensions_are_told_apart() -> None:
    """[0, 2] and [1, 3] are one, [0, 1] and [2, 3] the other; times are means over ranks."""
    assert along_dimensions(tables(BY_RANK), MESH) == [
        Along(2, 1, REDUCE, calls=1, nbytes=4, duration_ns=250, exposed_ns=3),
        Along(2, 2, GATHER, calls=2, nbytes=24, duration_ns=30, exposed_ns=3),
    ]


def test_one_dimension_is_none() -> None:
    assert along_dimensions(tables({0: a_comm(0, 0)}), Groups({0: [[0, 1], [0, 1]]})) == []
    assert along_dimensions(tables({0: a_comm(0, 0)}), Groups()) == []


def test_a_time_that_is_not_known_is_left_out() -> None:
    """Of the ranks that know theirs; None where none does."""
    some = {**BY_RANK, 3: a_comm(3, 0, unknown=True)}
    assert along_dimensions(tables(some), MESH)[0].duration_ns == 200
    none = {rank: a_comm(rank, comm.group[0], unknown=True) for rank, comm in BY_RANK.items()}
    assert along_dimensions(tables(none), MESH)[0].duration_ns is None


def test_medians_are_over_steps_like_the_newest() -> None:
    steps = [[Along(2, 1, REDUCE, 1, 4, ns, None)] for ns in (10, 30, 20)]
    other = [[Along(4, 1, REDUCE, 9, 9, 9, 9)]]
    (found,) = dimensions([*other, *steps])
    assert (found.kind, found.per_step, found.bytes, found.duration_ns, found.exposed_ns) == (
        "all_reduce",
        1,
        4,
        20,
        None,
    )
    assert dimensions([]) == dimensions([[]]) == ()
