"""Long work in pieces, between which another thread may go first.

Python's threads share one interpreter: while one makes the picture of a thousand ranks, one that answers a key gets every
other millisecond at best. So what takes long goes through its pieces with `pieces`, which costs nothing until a thread says,
with `give_way`, what it waits for between any two of them. No lock may be held there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

_T = TypeVar("_T")
_wait: ContextVar[Callable[[], None] | None] = ContextVar("_wait", default=None)


def give_way(wait: Callable[[], None]) -> None:
    """From now on this thread calls `wait` between pieces; it returns when nothing goes first, and does not raise."""
    _wait.set(wait)


def pieces(items: Iterable[_T]) -> Iterable[_T]:
    """The same items, each a piece of long work."""
    wait = _wait.get()
    return items if wait is None else _between(items, wait)


def _between(items: Iterable[_T], wait: Callable[[], None]) -> Iterator[_T]:
    for item in items:
        wait()
        yield item
