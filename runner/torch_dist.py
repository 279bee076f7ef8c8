"""The collective functions of `torch.distributed`, which FSDP calls as module attributes, and the functional ones, by which
DTensor communicates (tensor parallelism, gradient clipping): their results are waited for where they are first used."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from fsdp_tui.runner.interpose import OK, Interposer, Observer, missing_names, not_available, without
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
FUNCTIONAL: dict[str, int] = {
    "all_gather_single": ALL_GATHER,
    "all_gather_tensor": ALL_GATHER,
    "reduce_scatter_single": REDUCE_SCATTER,
    "reduce_scatter_tensor": REDUCE_SCATTER,
    "all_reduce": ALL_REDUCE,
}
WAIT = "wait_tensor"
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
    functional: Any = sys.modules.get("torch.distributed._functional_collectives")
    if functional is None or check_functional(functional) != OK:
        return
    for name, kind in FUNCTIONAL.items():
        if hasattr(functional, name):
            interposer.wrap(functional, name, _functional(observer, kind))
    interposer.wrap(functional, WAIT, lambda original: _wait(observer, original))


def check_functional(functional: Any) -> str:
    """ "ok", or why DTensor's collectives cannot be seen with this torch."""
    return without(missing_names(functional, (WAIT, "AsyncCollectiveTensor", "all_reduce")))


def _functional(observer: Observer, kind: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        position = list(inspect.signature(original).parameters).index("group") - 1  # after the tensor

        def collective(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not observer.on:
                return original(tensor, *args, **kwargs)
            group = resolved_group(args[position] if len(args) > position else kwargs.get("group"))
            size = len(group_ranks(group)) if kind == ALL_GATHER else 1
            return observer.collective(
                kind, _nbytes(tensor) * size, group, True, lambda: original(tensor, *args, **kwargs)
            )

        return collective

    return wrap


def awaited_storage(result: Any) -> int | None:
    """Identity of the storage that a functional collective fills, if it is still to be waited for."""
    elem = getattr(result, "elem", None)
    return elem.untyped_storage()._cdata if isinstance(elem, torch.Tensor) else None


def _wait(observer: Observer, original: Callable[..., Any]) -> Callable[..., Any]:
    def wait_tensor(tensor: Any) -> Any:
        if torch.compiler.is_compiling() or not observer.on:
            return original(tensor)
        storage = tensor.untyped_storage()._cdata
        observer.result_needed(storage)
        result = original(tensor)
        observer.result_there(storage)
        return result

    return wait_tensor


def _wrapper_of(
    observer: Observer, kind: int, position: int, names: tuple[str, ...]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not observer.on:
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


def resolved_group(group: Any) -> Any:
    """The process group that stands behind a mesh, a mesh and its dimension, or a name; anything else itself."""
    if isinstance(group, tuple):
        return group[0].get_group(group[1])
    if isinstance(group, DeviceMesh):
        return group.get_group()
    if isinstance(group, str):
        functions: Any = dist.distributed_c10d
        return functions._resolve_process_group(group)
    return group


def group_ranks(group: Any) -> list[int]:
    """Global ranks of a process group, or of a list of them; None is the default group."""
    if isinstance(group, list):
        return list(group)
    return list(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))
