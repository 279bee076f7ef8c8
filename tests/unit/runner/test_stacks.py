"""Stacks of threads that cannot speak for themselves."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from fsdp_tui.runner.stacks import DEEPEST, take
from fsdp_tui.telemetry.messages import Stack, decode, encode


def _taken_while(body: Callable[[threading.Event, threading.Event], None]) -> Stack:
    """The stack of a thread that runs `body`, taken once it has said that it is there, and waits."""
    there, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=body, args=(there, go_on))
    thread.start()
    assert there.wait(60)
    assert thread.ident is not None
    try:
        while (stack := take(3, "asked", thread.ident)).threads[0].frames[-1].function != "wait":
            assert thread.is_alive()
        return stack
    finally:
        go_on.set()
        thread.join()


def test_a_thread_that_waits_in_c() -> None:
    """Its Python calls, the innermost last; other threads that Python has made are left out."""

    def waits(there: threading.Event, go_on: threading.Event) -> None:
        there.set()
        go_on.wait(60)

    stack = _taken_while(waits)
    assert (stack.rank, stack.id) == (3, "asked")
    # A test's process may have been begun by a thread that is none of Python's: that one is told.
    assert [thread.name for thread in stack.threads if not thread.name.startswith("not Python's own")] == ["training"]
    functions = [frame.function for frame in stack.threads[0].frames]
    assert functions.index("waits") < len(functions) - 1
    mine = next(frame for frame in stack.threads[0].frames if frame.function == "waits")
    assert (mine.file, mine.code) == (__file__, "go_on.wait(60)")
    assert decode(encode(stack)) == stack


def test_a_very_deep_stack_is_cut_in_the_middle() -> None:
    """Both ends are told, and how much is missing."""
    depth = 3 * DEEPEST
    assert sys.getrecursionlimit() > depth

    def deep(there: threading.Event, go_on: threading.Event, left: int = depth) -> None:
        if left:
            return deep(there, go_on, left - 1)
        there.set()
        go_on.wait(60)
        return None

    frames = _taken_while(deep).threads[0].frames
    assert len(frames) == DEEPEST + 1
    assert frames[0].function == "_bootstrap"
    missing = int(next(frame.function for frame in frames if not frame.file).split()[1].replace(",", ""))
    assert missing + DEEPEST == depth + 1 + len(["_bootstrap", "_bootstrap_inner", "run"]) + sum(
        frame.file == threading.__file__ for frame in frames[-5:]
    )


def test_a_thread_that_is_gone() -> None:
    """Nothing is there to tell."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert thread.ident is not None
    assert all(told.name != "training" for told in take(0, "asked", thread.ident).threads)
