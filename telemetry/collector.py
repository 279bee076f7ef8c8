"""The garbage collector's pace in a process that keeps the state of a run: the hub, and a viewer."""

from __future__ import annotations

import gc


def relax() -> None:
    """Lets the collector look at what is new, in larger parts, and never go through everything.

    A state is hundreds of thousands of lists without a cycle, which go when their steps leave the window. To walk them all
    takes half a second with 1,024 ranks, in which no key is answered and no message is read; so it is left to `tidy`.
    """
    gc.set_threshold(20_000, 1, 1_000_000)


def tidy() -> None:
    """Goes through everything, at a moment when nobody waits."""
    gc.collect()
