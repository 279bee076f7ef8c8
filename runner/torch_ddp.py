"""DistributedDataParallel: its gradient buckets.

The reducer is C++ and issues its all-reduces itself. A communication hook would show each of them, but it takes DDP off
its default path (the division by the world size moves, and with it the rounding). What is read here is passive: the sizes
of the buckets, and on a CPU the times of the reducer's own logging, which are of all buckets together.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fsdp_tui.runner.interpose import missing_names, not_available, without

NAMES = ("_get_ddp_logging_data", "gradient_as_bucket_view")
LOGGER_NAMES = ("set_runtime_stats_and_log", "_get_ddp_logging_data")
SAMPLE_RATE = "_set_ddp_runtime_logging_sample_rate"
DEFAULT_SAMPLE_RATE = 100
TOGETHER = not_available("DDP's reducer is C++; its all-reduces are counted per bucket and timed all together")


def check_times(ddp: Any, device_type: str) -> str:
    """What to say of the buckets' times; `TOGETHER` if they are known as a total."""
    if device_type != "cpu":
        return not_available(
            "DDP's reducer is C++, and reading its timers waits for the device: buckets are only counted"
        )
    missing = missing_names(ddp, (SAMPLE_RATE, "logger"))
    missing += missing_names(ddp.logger, LOGGER_NAMES) if hasattr(ddp, "logger") else []
    return without(missing) if missing else TOGETHER


def time_every_step(ddp: Any, *, on: bool) -> None:
    """DDP's reducer takes its times in the first steps and in every hundredth, unless told."""
    getattr(ddp, SAMPLE_RATE)(1 if on else DEFAULT_SAMPLE_RATE)


def reduction_times(ddp: Any) -> tuple[int, int] | None:
    """Of the backward that has just ended: nanoseconds from the first bucket's all-reduce to the last one's end, and the
    part after the gradients were computed; None if the reducer did not take them."""
    ddp.logger.set_runtime_stats_and_log()  # brings this backward's times into the log; DDP does it in the next forward
    logged = ddp.logger._get_ddp_logging_data().ints_map
    span, overlap = logged.get("backward_comm_time"), logged.get("backward_compute_comm_overlap_time")
    return None if not span or overlap is None else (span, max(0, span - overlap))


def find(model: nn.Module) -> Any | None:
    """The DDP wrapper in this model, or the one that the composable `replicate` made for it in its first forward; or None."""
    composable: Any = sys.modules.get("torch.distributed._composable.replicate")
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            return module
        if composable is not None and isinstance(module, getattr(composable, "DDP", ())):
            return getattr(composable.replicate.state(module), "_ddp", None)
    return None


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
    """Whether the backward of the last forward reduces gradients: not if that was inside `no_sync`."""
    return bool(getattr(ddp, "require_forward_param_sync", True))
