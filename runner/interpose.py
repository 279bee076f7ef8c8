"""Putting wrappers around torch's functions and taking them off again, and what the wrappers tell.

The modules `torch_*` hold every private name of torch that this program touches. They wrap those names here and report
to an `Observer`; they know nothing of ledgers, clocks or messages.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol

OK = "ok"


def not_available(why: str) -> str:
    """The one form in which a probe says that it cannot work here."""
    return f"not available: {why}"


def complain(text: str) -> None:
    """A line on stderr in one write: ranks share it, unbuffered, and `print` writes the end of a line on its own."""
    sys.stderr.write(f"fsdp-tui: {text}\n")


def missing_names(owner: object, names: tuple[str, ...]) -> list[str]:
    """Which of the names this object or class lacks, qualified for a person."""
    label = owner.__name__ if hasattr(owner, "__name__") else type(owner).__name__
    return [f"{label}.{name}" for name in names if not hasattr(owner, name)]


def without(missing: list[str]) -> str:
    """ "ok" if nothing is missing, else the reason that names it."""
    return not_available(f"this torch has no {', '.join(missing)}") if missing else OK


class Observer(Protocol):
    """Who is told about an event inside torch. No method raises; `on` is False when nobody wants to know."""

    on: bool

    def begin(self, owner: object) -> None:
        """Collectives issued until `end` belong to the unit of this owner."""

    def end(self) -> None: ...

    def changed(self, owner: object) -> None:
        """The unit holds other memory than before."""

    def waiting(self, owner: object) -> None:
        """Compute begins to wait for the unit's all-gather, which is under way or issued before `waited`."""

    def waited(self, owner: object) -> None: ...

    def reductions_needed(self, scatters_but: int | None = None) -> None:
        """Compute begins to wait for the reductions under way: all, or all reduce-scatters but the newest few."""

    def unsharded(self, owner: object, buffer_bytes: int) -> None:
        """The unit's parameters were copied out of an all-gather buffer, which is released unless someone holds it."""

    def reducing(self, owner: object) -> None:
        """The unit's unsharded gradients are complete and about to be reduced."""

    def reduced(self, owner: object) -> None: ...

    def recomputed(self, tensor: Any) -> None:
        """Backward takes a tensor that it has recomputed; the operator that needs it runs next."""

    def result_needed(self, storage: int) -> None:
        """Compute begins to wait for the result of a functional collective, by the identity of its storage."""

    def result_there(self, storage: int) -> None: ...

    def collective(self, kind: int, nbytes: int, group: Any, asynchronous: bool, call: Callable[[], Any]) -> Any:
        """Runs the call, which is a collective, and returns what it returned."""


class Interposer:
    """The wrappers that are in place, so that they can all be taken off."""

    def __init__(self) -> None:
        self._placed: list[tuple[Any, str, Any, Any, bool]] = []

    def wrap(self, owner: Any, name: str, wrapper_of: Callable[[Any], Any]) -> None:
        """Replaces `owner.name` by what `wrapper_of` makes of it."""
        original, own = getattr(owner, name), name in vars(owner)
        wrapper = functools.wraps(original)(wrapper_of(original))
        setattr(owner, name, wrapper)
        self._placed.append((owner, name, original, wrapper, own))

    def remove(self) -> None:
        """Takes every wrapper off. One that somebody else has wrapped since stays, and only passes through."""
        for owner, name, original, wrapper, own in reversed(self._placed):
            if getattr(owner, name) is not wrapper:
                continue
            if own:
                setattr(owner, name, original)
            else:  # inherited, as it is again now
                delattr(owner, name)
        self._placed.clear()
