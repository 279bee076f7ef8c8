"""Coalescing, and the agreement's part for a capture."""

from __future__ import annotations

import numpy as np
import pytest

from fsdp_tui.runner.agreement import Agreement
from fsdp_tui.runner.capture import coalesced
from fsdp_tui.telemetry.messages import TOTAL_CATEGORIES, Command


@pytest.mark.parametrize("count", [1_000, 99_999])
def test_coalesced_levels_are_exact(count: int) -> None:
    """However few rows are left, the levels at each are those of all rows up to its time, the peak and the end included."""
    chance = np.random.default_rng(1)
    rows = np.zeros((count, 6), dtype=np.int64)
    rows[:, 0] = np.arange(count)
    rows[:, 1] = chance.integers(-1_000, 1_001, count)
    rows[:, 2] = chance.integers(0, len(TOTAL_CATEGORIES), count)
    limit = 500
    kept = coalesced(rows, limit)
    assert len(kept) <= limit
    whole = np.zeros((count, len(TOTAL_CATEGORIES)), dtype=np.int64)
    whole[np.arange(count), rows[:, 2]] = rows[:, 1]
    whole = whole.cumsum(axis=0)
    level = np.zeros(len(TOTAL_CATEGORIES), dtype=np.int64)
    highest = 0
    for at_ns in np.unique(kept[:, 0]):
        for row in kept[kept[:, 0] == at_ns]:
            level[row[2]] += row[1]
        assert level.tolist() == whole[at_ns].tolist()
        highest = max(highest, int(level.sum()))
    assert highest == whole.sum(axis=1).max()
    assert kept[-1, 0] == count - 1


def test_few_rows_stay_as_they_are() -> None:
    rows = np.arange(60, dtype=np.int64).reshape(10, 6)
    assert coalesced(rows, 10) is rows


class Requested:
    stop = False
    pause = False
    capture: Command | None = None


def test_a_request_is_one_capture() -> None:
    """Also when it stays the newest one; the next one needs a higher number."""
    requested = Requested()
    agreement = Agreement(requested)
    seen = []
    for number in (0, 5, 5, 4, 6):
        if number:
            requested.capture = Command(id=str(number), kind="capture", number=number)
        assert agreement.at_boundary(lambda _: None)
        seen.append(agreement.capture.id if agreement.capture else None)
    assert seen == [None, "5", None, None, "6"]
