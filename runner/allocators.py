"""How much memory is taken in all: glibc's heap on a CPU, PyTorch's caching allocator on CUDA."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

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


class CudaAllocator:
    """The caching allocator. Its statistics cost tens of microseconds: for the ends of steps, not for every event."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocated(self) -> int | None:
        return None

    def settled(self) -> int | None:
        return torch.cuda.memory_allocated(self._device)

    def peak(self) -> int | None:
        return torch.cuda.max_memory_allocated(self._device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def reserved(self) -> int | None:
        return torch.cuda.memory_reserved(self._device)


def allocator_for(device: torch.device) -> tuple[HeapAllocator | CudaAllocator, str]:
    """The allocator of this device, and "ok" or why its total is not known."""
    if device.type == "cuda":
        return CudaAllocator(device), OK
    heap = heap_reader()
    return HeapAllocator(heap), OK if heap else not_available(
        "this libc has no mallinfo2, so activations are not known"
    )
