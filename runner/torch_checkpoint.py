"""Activation checkpointing (`torch.utils.checkpoint`): the moments at which backward takes what it has recomputed.

No unit has an event between the second forward of a block and its gradients, and the highest moment of a step is often
there. The non-reentrant kind hands out each recomputed tensor through a hook of its own, right before the operator that
needs it runs. The reentrant kind calls `backward` inside backward, which is seen anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint

from fsdp_tui.runner.interpose import OK, Interposer, Observer, not_available

HOOKS = "_checkpoint_hook"
UNPACK = "unpack_hook"


def check(module: Any = torch.utils.checkpoint) -> str:
    """ "ok", or why the memory of a recomputation is not looked at with this torch."""
    return OK if hasattr(module, HOOKS) else not_available(f"this torch has no torch.utils.checkpoint.{HOOKS}")


def install(interposer: Interposer, observer: Observer) -> None:
    """Wraps the hooks through which checkpointed regions hand out their tensors."""
    if check() == OK:
        hooks = getattr(torch.utils.checkpoint, HOOKS)
        interposer.wrap(hooks, "__init__", lambda original: _made(observer, original))


def _made(observer: Observer, original: Callable[..., None]) -> Callable[..., None]:
    def made(hooks: Any, *args: Any, **kwargs: Any) -> None:
        original(hooks, *args, **kwargs)
        unpack = getattr(hooks, UNPACK, None)
        if observer.on and unpack is not None:
            setattr(hooks, UNPACK, _unpacking(observer, unpack))

    return made


def _unpacking(observer: Observer, unpack: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def unpacked(packed: Any) -> Any:
        tensor = unpack(packed)
        if observer.on:
            observer.recomputed(tensor)
        return tensor

    return unpacked
