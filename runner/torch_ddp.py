"""DistributedDataParallel: its gradient buckets.

The reducer is C++ and issues its all-reduces itself. A communication hook would show each of them, but it takes DDP off
its default path (the division by the world size moves, and with it the rounding), so only sizes are read here.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fsdp_tui.runner.interpose import missing_names, not_available, without

NAMES = ("_get_ddp_logging_data", "gradient_as_bucket_view")
NO_TIMES = not_available("DDP's reducer is C++; its all-reduces are counted per bucket, without times")


def find(model: nn.Module) -> Any | None:
    """The DDP wrapper in this model, or None."""
    return next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)


def check(ddp: Any) -> str:
    """ "ok", or why the buckets of this wrapper cannot be read."""
    return without(missing_names(ddp, NAMES))


def bucket_bytes(ddp: Any) -> list[int]:
    """Bytes of each gradient bucket, in the order they are reduced; DDP rebuilds them in the first backward."""
    logged = ddp._get_ddp_logging_data()
    sizes = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or ""
    return [int(size) for size in sizes.split(",") if size.strip()]


def buffer_bytes(ddp: Any) -> int:
    """Bytes of bucket memory beside the gradients: none when gradients are views into the buckets."""
    return 0 if ddp.gradient_as_bucket_view else sum(bucket_bytes(ddp))


def reduces(ddp: Any) -> bool:
    """Whether the next backward reduces gradients (not inside `no_sync`)."""
    return bool(getattr(ddp, "require_backward_grad_sync", True))
