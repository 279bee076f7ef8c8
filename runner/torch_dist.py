"""The collective functions of `torch.distributed`, which FSDP calls as module attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from fsdp_tui.runner.interpose import OK, Interposer, Observer, not_available
from fsdp_tui.telemetry.messages import COLLECTIVES

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = (
    COLLECTIVES.index(kind) for kind in ("all_gather", "reduce_scatter", "all_reduce")
)

# Function -> its kind, and position and names of the argument whose bytes count: the gathered output, or the reduce's
# input. torch 2.13 renamed the *_tensor functions to *_single and kept the old names for users.
FUNCTIONS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "all_gather": (ALL_GATHER, 0, ("tensor_list",)),
    "all_gather_into_tensor": (ALL_GATHER, 0, ("output_tensor",)),
    "all_gather_single": (ALL_GATHER, 0, ("output_tensor",)),
    "reduce_scatter_tensor": (REDUCE_SCATTER, 1, ("input",)),
    "reduce_scatter_single": (REDUCE_SCATTER, 1, ("input",)),
    "all_reduce": (ALL_REDUCE, 0, ("tensor",)),
}
ONE_OF_EACH = (
    ("all_gather_single", "all_gather_into_tensor"),
    ("reduce_scatter_single", "reduce_scatter_tensor"),
    ("all_reduce",),
)


def check() -> str:
    """ "ok", or why collectives cannot be seen with this torch."""
    for names in ONE_OF_EACH:
        if not any(name in FUNCTIONS and hasattr(dist, name) for name in names):
            return not_available(f"this torch.distributed has no {' or '.join(names)}")
    return OK


def install(interposer: Interposer, observer: Observer) -> None:
    """Wraps every collective function that this torch has."""
    for name, (kind, position, names) in FUNCTIONS.items():
        if hasattr(dist, name):
            interposer.wrap(dist, name, _wrapper_of(observer, kind, position, names))


def _wrapper_of(
    observer: Observer, kind: int, position: int, names: tuple[str, ...]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*args: Any, **kwargs: Any) -> Any:
            if not observer.on:
                return original(*args, **kwargs)
            counted = (
                args[position]
                if len(args) > position
                else next((kwargs[name] for name in names if name in kwargs), None)
            )
            return observer.collective(
                kind,
                _nbytes(counted),
                kwargs.get("group"),
                bool(kwargs.get("async_op")),
                lambda: original(*args, **kwargs),
            )

        return collective

    return wrap


def _nbytes(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(_nbytes(item) for item in value)
    try:
        return int(value.numel() * value.element_size())
    except AttributeError:  # torch will say what is wrong with this argument
        return 0


def group_ranks(group: Any) -> list[int]:
    """Global ranks of a process group; None is the default group."""
    return list(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))
