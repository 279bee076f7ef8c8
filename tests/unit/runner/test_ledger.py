"""The ledger of one plain process, against sizes written out here."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fsdp_tui.runner.allocators import HeapAllocator, heap_reader
from fsdp_tui.runner.ledger import Ledger
from fsdp_tui.runner.storages import unknown_tensors
from fsdp_tui.telemetry.messages import CATEGORIES, TOTAL_CATEGORIES


class Steady:
    """An allocator whose total is set by hand."""

    def __init__(self) -> None:
        self.bytes = 1_000_000

    def allocated(self) -> int:
        return self.bytes

    settled = allocated

    def peak(self) -> None: ...

    def reset_peak(self) -> None: ...

    def reserved(self) -> None: ...


def _ledger(model: nn.Module, optimizer: torch.optim.Optimizer, allocator: Steady | HeapAllocator) -> Ledger:
    return Ledger(model, [optimizer], [], [], model.parameters(), allocator, "cpu")


def _named(row: list[int | None]) -> dict[str, int | None]:
    return dict(zip((*CATEGORIES, "total"), row, strict=True))


def test_activations_and_temporaries_are_the_growth_beyond_the_ledger() -> None:
    """Forward's growth is activation; backward's beyond that is temporary; both come on top of what is owned."""
    model = nn.Linear(10, 10, bias=False)
    allocator = Steady()
    ledger = _ledger(model, torch.optim.SGD(model.parameters()), allocator)
    ledger.phase = "forward"
    allocator.bytes += 3_000
    ledger.refresh()
    ledger.phase = "backward"
    ledger.backward_begins()
    model.weight.grad = torch.zeros_like(model.weight)
    allocator.bytes += 400 + 700
    ledger.touch()
    row, phase, unit = ledger.peak()
    peak = _named(row)
    assert (peak["param_shard"], peak["grad_shard"], peak["activation"], peak["temp"]) == (400, 400, 3_000, 700)
    assert (peak["total"], phase, unit) == (4_500, "backward", -1)


@pytest.mark.parametrize("saved", [3_000, 100])
def test_the_first_step_s_peak_has_an_optimizer_s_states_only_once_they_are_there(saved: int) -> None:
    """Its highest moment is in backward, before them, or in the optimizer's step, with them: never both."""
    model = nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    allocator = Steady()
    ledger = _ledger(model, optimizer, allocator)
    before = ledger.unexplained
    ledger.phase = "backward"
    allocator.bytes += saved
    ledger.backward_begins()
    model.weight.grad = torch.zeros_like(model.weight)
    allocator.bytes += 400 - saved
    ledger.touch()
    ledger.phase = "optimizer"
    optimizer.step()
    allocator.bytes += 804
    result = torch.zeros(9)  # nothing of the step before this one, which there was not
    ledger.optimizer_returned()
    peak, phase, _ = ledger.peak()
    named = _named(peak)
    assert named["unexplained"] == before
    assert result.numel() == 9
    states, high = (0, "backward") if saved == 3_000 else (804, "optimizer")
    assert (named["optimizer"], phase) == (states, high)
    known = 400 + states + (saved if states == 0 else 400)
    assert named["total"] == known + (before or 0)


def test_the_end_of_a_step_adds_up_and_finds_strangers() -> None:
    """A tensor the training does not own is unexplained, with its size; the heap's remainder is not torch's."""
    model = nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    ledger = _ledger(model, optimizer, HeapAllocator(heap_reader()))
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    gc.collect()
    before = unknown_tensors(ledger.walk().seen, "cpu").nbytes
    copy = torch.empty(50_000)  # an EMA, say
    ledger.optimizer_returned()
    assert ledger.end is not None
    now = _named(ledger.end)
    assert (now["param_shard"], now["grad_shard"], now["optimizer"]) == (400, 400, 2 * 400 + 4)
    assert now["unexplained"] == before + copy.numel() * 4
    assert now["total"] == sum(now[name] or 0 for name in TOTAL_CATEGORIES)
    assert now["non_torch"] is not None
    assert now["cache"] is None


def test_without_an_allocator_total_activations_are_not_known() -> None:
    """None, not 0."""
    model = nn.Linear(4, 4)
    ledger = _ledger(model, torch.optim.SGD(model.parameters()), HeapAllocator(None))
    ledger.refresh()
    peak = _named(ledger.peak()[0])
    assert peak["activation"] is None
    assert peak["param_shard"] == 80


def test_optimizer_bytes_per_param_byte() -> None:
    """AdamW keeps two moments; plain SGD keeps nothing; before the first step nobody knows."""
    model = nn.Linear(8, 8)
    adamw, sgd = torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1)
    assert _ledger(model, adamw, Steady()).optimizer_bytes_per_param_byte() is None
    model(torch.ones(1, 8)).sum().backward()
    adamw.step()
    sgd.step()
    assert _ledger(model, adamw, Steady()).optimizer_bytes_per_param_byte() == 2.0
    stateless = _ledger(model, sgd, Steady())
    stateless.optimizer_returned()
    assert stateless.optimizer_bytes_per_param_byte() == 0.0


def test_fake_tensors_take_no_memory() -> None:
    """What torch.compile traces with says that it is on a device, and is not."""
    held = torch.ones(1000)
    before = unknown_tensors(set(), "cpu").nbytes
    with FakeTensorMode():
        fake = torch.ones(1_000_000)
    assert fake.device.type == "cpu"
    assert unknown_tensors(set(), "cpu").nbytes == before
    assert before >= held.untyped_storage().nbytes()
