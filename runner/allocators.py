"""How much memory is taken in all: glibc's heap on a CPU, PyTorch's caching allocator on CUDA."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

import torch

from fsdp_tui.runner.interpose import OK, not_available


class _Mallinfo2(ctypes.Structure):
    _fields_ = [  # ctypes reads it from the class
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def heap_reader() -> Callable[[], int] | None:
    """A function that gives the bytes that malloc has handed out, small and mapped ones; None where libc is no glibc 2.33+.

    torch allocates CPU tensors with malloc, so this is the CPU's counterpart of `torch.cuda.memory_allocated`, at 4 us.
    """
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    mallinfo2.restype = _Mallinfo2

    def heap() -> int:
        info = mallinfo2()
        return int(info.uordblks + info.hblkhd)

    return heap


class HeapAllocator:
    """The C heap. It has no high-water mark: the highest moment is the highest at which somebody looked."""

    def __init__(self, heap: Callable[[], int] | None) -> None:
        self._heap = heap

    def allocated(self) -> int | None:
        return None if self._heap is None else self._heap()

    settled = allocated

    def peak(self) -> int | None:
        return None

    def reset_peak(self) -> None: ...

    def reserved(self) -> int | None:
        return None


class Statistics(Protocol):
    """What is read from `torch.cuda`. The flat forms, such as `memory_allocated`, sort all of it for one figure."""

    def memory_stats_as_nested_dict(self, device: torch.device) -> dict[str, Any]: ...

    def reset_peak_memory_stats(self, device: torch.device) -> None: ...


class CudaAllocator:
    """The caching allocator, whose own high-water mark sees every moment."""

    def __init__(self, device: torch.device, cuda: Statistics = torch.cuda) -> None:
        self._device = device
        self._cuda = cuda
        self._reserved: int | None = None

    def allocated(self) -> int | None:
        return self._read("current")

    settled = allocated

    def peak(self) -> int | None:
        return self._read("peak")

    def reset_peak(self) -> None:
        self._cuda.reset_peak_memory_stats(self._device)

    def reserved(self) -> int | None:
        return self._reserved

    def _read(self, which: str) -> int | None:
        stats = self._cuda.memory_stats_as_nested_dict(self._device)
        if not stats:  # nothing on this device yet
            return None
        self._reserved = int(stats["reserved_bytes"]["all"]["current"])
        return int(stats["allocated_bytes"]["all"][which])


def allocator_for(device: torch.device) -> tuple[HeapAllocator | CudaAllocator, str]:
    """The allocator of this device, and "ok" or why its total is not known."""
    if device.type == "cuda":
        return CudaAllocator(device), OK
    heap = heap_reader()
    return HeapAllocator(heap), OK if heap else not_available(
        "this libc has no mallinfo2, so activations are not known"
    )
