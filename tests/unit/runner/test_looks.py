"""Which steps the ledger looks at."""

from __future__ import annotations

import pytest

from fsdp_tui.runner.looks import BUDGET, LONGEST_INTERVAL, Looks

MS = 1_000_000


def looked_at(step_ns: int, look_ns: int, steps: int = 2_000, plain_ns: int = 0) -> list[int]:
    """Numbers of the steps that are looked at when a look costs this much."""
    looks = Looks(None)
    seen = []
    for step in range(1, steps + 1):
        if looks.at(step):
            seen.append(step)
        looks.took(step, step_ns, look_ns if looks.at(step) else plain_ns)
    return seen


def test_the_first_steps_are_looked_at_one_by_one() -> None:
    """States appear in them."""
    assert looked_at(100 * MS, 10 * MS)[:3] == [1, 2, 3]


def test_looks_that_cost_nothing_are_taken_in_every_step() -> None:
    """A long step is looked at whenever it happens."""
    assert looked_at(5_000 * MS, MS, 50) == list(range(1, 51))


@pytest.mark.parametrize("look_ns", [MS // 2, MS, 3 * MS])
def test_looks_stay_within_the_budget(look_ns: int) -> None:
    """What the looks after settling cost, over what the steps took."""
    seen = [step for step in looked_at(100 * MS, look_ns) if step > 3]
    assert len(seen) * look_ns <= BUDGET * 2_000 * 100 * MS
    assert all(step % 2 == 0 for step in seen)


def test_ranks_of_different_cost_look_at_the_same_steps() -> None:
    """The rank with the longer interval looks when the others do, so that they wait for each other once."""
    cheap, dear = set(looked_at(100 * MS, MS)), set(looked_at(100 * MS, 4 * MS))
    assert dear < cheap


def test_one_slow_look_does_not_count() -> None:
    """A search for unknown tensors is rare and no measure of a look."""
    looks = Looks(None)
    for step in range(1, 4):
        looks.took(step, 100 * MS, 80 * MS if step < 3 else MS // 10)
    assert looks.interval == 1


def test_the_last_step_is_looked_at() -> None:
    """Its figures are what remains of the run."""
    looks = Looks(77)
    for step in range(1, 4):
        looks.took(step, MS, 50 * MS)
    assert looks.interval == LONGEST_INTERVAL
    assert looks.at(77)
    assert not looks.at(76)
