"""Bytes of tensor storages: the only honest count, since views, wrappers and resized storages share or free them."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor itself."""
    inner: Any = getattr(tensor, "_local_tensor", None)
    return inner if isinstance(inner, Tensor) else tensor


def storage_bytes(tensor: Tensor | None) -> int:
    """Bytes of the storage behind the tensor now: 0 while FSDP has freed it by resizing."""
    return 0 if tensor is None else tensor.untyped_storage().nbytes()


class Tally:
    """Bytes per category, each storage once: the first category that claims it keeps it."""

    def __init__(self, device_type: str) -> None:
        self.bytes: dict[str, int] = {}
        self.seen: set[int] = set()
        self.host_bytes = 0
        """Bytes on the host of a training whose device is another."""
        self._device_type = device_type

    def add(self, category: str, tensor: Tensor | None) -> None:
        if tensor is None:
            return
        storage = local_tensor(tensor).untyped_storage()
        if storage._cdata in self.seen:
            return
        self.seen.add(storage._cdata)
        if storage.device.type != self._device_type:  # offloaded, say: no bytes of this device
            self.host_bytes += storage.nbytes() if storage.device.type == "cpu" else 0
            return
        self.bytes[category] = self.bytes.get(category, 0) + storage.nbytes()

    def add_all(self, pairs: Iterable[tuple[str, Tensor | None]]) -> None:
        for category, tensor in pairs:
            self.add(category, tensor)


class Unknown(NamedTuple):
    """Live tensors that nobody claims: their bytes, and the same by type and shape as (text, tensors, bytes)."""

    nbytes: int
    groups: list[tuple[str, int, int]]


def unknown_tensors(known: set[int], device_type: str) -> Unknown:
    """Live tensors on the device whose storages are not among the known ones, the largest groups first.

    Visits every object that Python's garbage collector tracks: tens of milliseconds, for rare moments only. Tensors that
    only C++ holds (buckets of DDP, what autograd saved) are not seen.
    """
    found: dict[int, tuple[int, str]] = {}
    for candidate in gc.get_objects():
        # type(), not isinstance: the __class__ of a proxy may run somebody's code
        if not issubclass(type(candidate), Tensor):
            continue
        try:
            tensor = local_tensor(candidate)
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                # The storage's device, not the tensor's: the compiler's fake tensors name a device that they do not use.
                if storage.device.type == device_type and storage._cdata not in known and storage._cdata not in found:
                    size = "x".join(str(extent) for extent in tensor.shape) or "scalar"
                    found[storage._cdata] = storage.nbytes(), f"{str(tensor.dtype).removeprefix('torch.')} {size}"
        except (RuntimeError, NotImplementedError):  # a subclass without a storage of its own
            continue
    groups: dict[str, tuple[int, int]] = {}
    for nbytes, what in found.values():
        tensors, taken = groups.get(what, (0, 0))
        groups[what] = tensors + 1, taken + nbytes
    ordered = sorted(((what, *counted) for what, counted in groups.items()), key=lambda group: -group[2])
    return Unknown(sum(nbytes for nbytes, _ in found.values()), [group for group in ordered if group[2]])
