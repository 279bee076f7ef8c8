"""Bytes of tensor storages: the only honest count, since views, wrappers and resized storages share or free them."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

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
        self._device_type = device_type

    def add(self, category: str, tensor: Tensor | None) -> None:
        if tensor is None or tensor.device.type != self._device_type:
            return  # bytes elsewhere (offloaded to the host, say) are no bytes of this device
        storage = local_tensor(tensor).untyped_storage()
        if storage._cdata in self.seen:
            return
        self.seen.add(storage._cdata)
        self.bytes[category] = self.bytes.get(category, 0) + storage.nbytes()

    def add_all(self, pairs: Iterable[tuple[str, Tensor | None]]) -> None:
        for category, tensor in pairs:
            self.add(category, tensor)


def unknown_bytes(known: set[int], device_type: str) -> int:
    """Bytes of live tensors on the device whose storages are not among the known ones.

    Visits every object that Python's garbage collector tracks: tens of milliseconds, for rare moments only. Tensors that
    only C++ holds (buckets of DDP, what autograd saved) are not seen.
    """
    found: dict[int, int] = {}
    for candidate in gc.get_objects():
        # type(), not isinstance: the __class__ of a proxy may run somebody's code
        if not issubclass(type(candidate), Tensor):
            continue
        try:
            tensor = local_tensor(candidate)
            if tensor.device.type == device_type and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                found[storage._cdata] = storage.nbytes()
        except (RuntimeError, NotImplementedError):  # a subclass without a storage of its own
            continue
    return sum(nbytes for key, nbytes in found.items() if key not in known)
