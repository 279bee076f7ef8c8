"""The garbage collector's pace in a process that keeps the state of a run: the hub, and a viewer."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 10_000
"""New objects that are worth a look."""


def relax() -> None:
    """Lets the collector look at what is new, in larger parts, and never go through everything.

    A state is hundreds of thousands of lists without a cycle, which go when their steps leave the window. To walk them all
    takes half a second with 1,024 ranks, in which no key is answered and no message is read; so it is left to `tidy`.
    """
    gc.set_threshold(20_000, 1, 1_000_000)


def by_hand() -> None:
    """Lets the collector look at nothing by itself: `sweep` does, where it is called.

    Else it looks in whatever thread makes one list too many, in the middle of a step's messages, and a key waits for it:
    with 1,024 ranks 40 ms.
    """
    gc.disable()


def sweep() -> None:
    """Looks at what is new, where that is much. It never goes through everything, as `relax` says."""
    if gc.get_count()[0] >= MANY:
        gc.collect(1)


@contextmanager
def importing() -> Iterator[None]:
    """Looks at nothing meanwhile, nor later at what was made: what modules are made of stays, and to go through it again and
    again is a tenth of a start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def tidy() -> None:
    """Goes through everything, at a moment when nobody waits."""
    gc.collect()
