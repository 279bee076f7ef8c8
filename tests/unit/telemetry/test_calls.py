"""One step's calls as tables, against what is summed rank by rank and call by call."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from fsdp_tui.telemetry.calls import Groups, tables
from fsdp_tui.telemetry.collectives import Key, sum_collectives
from fsdp_tui.telemetry.messages import Comm

RANKS = 4
ROWS, COLUMNS = [[0, 1], [2, 3]], [[0, 2], [1, 3]]


def made(rank: int, calls: Sequence[tuple[int, int, int, int]], times: Sequence[int]) -> Comm:
    """`calls`: (unit, kind, phase, group)."""
    unit, kind, phase, group = ([call[at] for call in calls] for at in range(4))
    return Comm(rank, 1, 1, unit, kind, phase, group, [rank + 1] * len(calls), list(times), [t // 2 for t in times])


def keys_of(comm: Comm) -> list[Key]:
    return list(zip(comm.unit, comm.kind, comm.phase, strict=True))


def expected(by_rank: dict[int, Comm], key: Key, rank: int) -> tuple[float, float]:
    """What a rank spent in the calls of a key, and how late it was, by the definition."""
    spent, late, compared = 0.0, 0.0, False
    for at, own in enumerate(keys_of(by_rank[rank])):
        if own != key:
            continue
        spent += by_rank[rank].duration_ns[at]
        group = (ROWS, COLUMNS)[by_rank[rank].group[at]]
        members = next(ranks for ranks in group if rank in ranks)
        late += max(by_rank[one].duration_ns[at] for one in members) - by_rank[rank].duration_ns[at]
        compared = True
    return spent, late if compared else np.nan


def test_sums_and_lateness_are_those_of_every_single_call() -> None:
    """Of 2 x 2 ranks with a group along each dimension, which number them as they meet them; some calls share a key."""
    chance = random.Random(1)
    groups = Groups({rank: [ROWS[rank // 2], COLUMNS[rank % 2]] for rank in range(RANKS)})
    for _ in range(100):
        calls = [tuple(chance.randrange(2) for _ in range(4)) for _ in range(chance.randrange(1, 9))]
        by_rank = {rank: made(rank, calls, [chance.randrange(100) for _ in calls]) for rank in range(RANKS)}  # type: ignore[arg-type]
        step = sum_collectives(1, by_rank, groups, RANKS)
        assert set(step.keys) == set(keys_of(by_rank[0]))
        for column, key in enumerate(step.keys):
            assert step.calls[column] == keys_of(by_rank[0]).count(key)
            assert step.nbytes[column] == step.calls[column] * RANKS  # of the rank with most
            for rank in range(RANKS):
                found = (step.matrix("duration")[rank, column], step.matrix("late")[rank, column])
                np.testing.assert_equal(found, expected(by_rank, key, rank))


def test_lateness_needs_the_same_calls_of_all_ranks_of_a_group() -> None:
    """Rank 3 makes two calls the other way round: it and rank 2 cannot be compared, 0 and 1 can."""
    calls = [(0, 0, 0, 0), (1, 0, 0, 0)]
    by_rank = {rank: made(rank, calls if rank < 3 else calls[::-1], [10 * rank, 20]) for rank in range(RANKS)}
    assert [part.ranks for part in tables(by_rank)] == [[0, 1, 2], [3]]
    step = sum_collectives(1, by_rank, Groups({rank: [ROWS[rank // 2]] for rank in range(RANKS)}), RANKS)
    late = step.matrix("late")[:, step.keys.index((0, 0, 0))]
    np.testing.assert_equal(late, [10.0, 0.0, np.nan, np.nan])


def test_ranks_that_name_one_group_have_one_object_of_it() -> None:
    """However many they are; a list that has been seen is not looked at again."""
    groups, said = Groups(), [list(range(100))]
    for rank in range(100):
        groups.name(rank, [list(range(100))])
    assert len({id(groups.of(rank)[0]) for rank in range(100)}) == 1
    assert (groups.of(0)[0].size, groups.of(0)[0].stride) == (100, 1)
    assert groups.of(200) == ()
    groups.name(0, said)
    before = groups.of(0)
    groups.name(0, said)
    assert groups.of(0) is before
