"""What the threads of this process are doing, asked from another thread: it works while the training hangs in a collective,
since torch lets go of the interpreter there."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from itertools import dropwhile
from types import FrameType

from fsdp_tui.telemetry.messages import Frame, Stack, Thread

DEEPEST = 200
"""Frames of a thread that are told."""
OURS = os.path.dirname(__file__) + os.sep
LONGEST = 500
"""Characters of a name or a source line that are told."""


def take(rank: int, id: str, training_thread: int) -> Stack:
    """The stacks of the training's thread and of threads that Python has not made. On a device it is one of autograd's that
    runs backward, and with it the hooks of FSDP.

    Args:
        training_thread: identity of the thread that trains.
    """
    running = sys._current_frames()
    others = [ident for ident in running if ident != training_thread and not _made_by_python(ident)]
    threads = []
    for ident in (training_thread, *others):
        if (frame := running.get(ident)) is not None:
            name = "training" if ident == training_thread else f"not Python's own, {ident}"
            threads.append(Thread(name, _frames(frame)))
    return Stack(rank=rank, id=id, taken_ns=time.time_ns(), threads=threads)


def _made_by_python(ident: int) -> bool:
    known = threading._active.get(ident)  # type: ignore[attr-defined]
    return known is not None and not isinstance(known, threading._DummyThread)


def _frames(innermost: FrameType) -> list[Frame]:
    calls = list(dropwhile(_is_ours, traceback.extract_stack(innermost)))  # from the script's own first line on
    if len(calls) > DEEPEST:
        half = DEEPEST // 2
        left_out = len(calls) - 2 * half
        told = [_frame(call) for call in calls[:half]]
        told.append(Frame("", 0, f"... {left_out:,} more calls ...", ""))
        return told + [_frame(call) for call in calls[-half:]]
    return [_frame(call) for call in calls]


def _is_ours(call: traceback.FrameSummary) -> bool:
    return call.filename == "<frozen runpy>" or call.filename.startswith(OURS)


def _frame(call: traceback.FrameSummary) -> Frame:
    return Frame(call.filename[:LONGEST], call.lineno or 0, call.name[:LONGEST], (call.line or "")[:LONGEST])
