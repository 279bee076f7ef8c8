"""The ledger on a device whose allocator tells everything, with torch's statistics set by hand.

Tensors on "meta" have sizes and no memory: they stand for those on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fsdp_tui.runner.allocators import CudaAllocator
from fsdp_tui.runner.ledger import Ledger
from fsdp_tui.telemetry.messages import CATEGORIES, TOTAL_CATEGORIES

META = torch.device("meta")


class Statistics:
    """`torch.cuda`'s, of an allocator that rounds nothing."""

    def __init__(self, allocated: int) -> None:
        self.allocated = self.peak = allocated
        self.reserved = 10_000
        self.known = True

    def take(self, nbytes: int) -> None:
        self.allocated += nbytes
        self.peak = max(self.peak, self.allocated)

    def memory_stats_as_nested_dict(self, device: torch.device) -> dict[str, Any]:
        if not self.known:
            return {}
        return {
            "allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": self.reserved}},
        }

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.peak = self.allocated


def _named(row: list[int | None]) -> dict[str, int | None]:
    assert sum(value or 0 for value in row[: len(TOTAL_CATEGORIES)]) == row[-1]
    return dict(zip((*CATEGORIES, "total"), row, strict=True))


def _one_step(statistics: Statistics, *, grows: int = 0) -> tuple[dict[str, int | None], dict[str, int | None]]:
    """Memory after the step and at its peak: 400 bytes of parameters, as many gradients, 3,000 saved, 700 on top."""
    model = nn.Linear(10, 10, bias=False, device=META)
    optimizer = torch.optim.SGD(model.parameters())
    ledger = Ledger(model, [optimizer], [], [], model.parameters(), CudaAllocator(META, statistics), "meta")
    statistics.take(3_000)
    ledger.backward_begins()
    ledger.phase = "backward"
    model.weight.grad = torch.zeros_like(model.weight)
    statistics.take(400)
    ledger.touch()
    statistics.take(700)  # between two events: only the allocator has seen it
    statistics.take(-3_700)
    statistics.reserved += grows
    ledger.optimizer_returned()
    row, phase, _ = ledger.peak()
    assert phase == "backward"
    assert ledger.end is not None
    return _named(ledger.end), _named(row)


def test_the_allocator_gives_total_and_peak() -> None:
    """To the byte, at the end as at the highest moment; an EMA copy of 400 bytes is unexplained in both."""
    now, peak = _one_step(Statistics(800))
    assert (now["total"], now["unexplained"], now["cache"]) == (1_200, 400, 10_000 - 1_200)
    assert peak["total"] == 800 + 3_000 + 400 + 700
    assert (peak["activation"], peak["temp"], peak["unexplained"]) == (3_000, 700, 400)
    assert peak["cache"] == 10_000 - 4_900


def test_cache_at_the_peak_is_not_known_when_the_step_reserved_memory() -> None:
    """What was reserved at that moment nobody has written down."""
    now, peak = _one_step(Statistics(400), grows=2_000)
    assert (now["cache"], peak["cache"]) == (12_000 - 800, None)


def test_a_device_without_statistics() -> None:
    """Before CUDA is initialised torch gives none."""
    statistics = Statistics(400)
    statistics.known = False
    allocator = CudaAllocator(META, statistics)
    assert (allocator.allocated(), allocator.peak(), allocator.reserved()) == (None, None, None)
