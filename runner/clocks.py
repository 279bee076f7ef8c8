"""Marks in time that cost nothing to make and are read later: host time on a CPU, events on the current CUDA stream."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Makes marks. `between` may only be asked for marks that are `ready`, and never waits for the device."""

    def mark(self) -> Any: ...

    def ready(self, mark: Any) -> bool: ...

    def between(self, begin: Any, end: Any) -> int | None:
        """Nanoseconds from one mark to the other; negative if they are the other way round, None if one is not known."""

    def release(self, marks: list[Any]) -> None:
        """Takes back marks that will not be read again."""


class HostClock:
    """`time.perf_counter_ns`: right for a CPU, where work is done when the call returns."""

    def mark(self) -> int:
        return time.perf_counter_ns()

    def ready(self, mark: int) -> bool:
        return True

    def between(self, begin: int, end: int) -> int:
        return end - begin

    def release(self, marks: list[int]) -> None: ...


class CudaClock:
    """Pooled timing events on the stream that is current when the mark is made, resolved with `query`: nothing ever waits.

    FSDP calls its collectives inside `with stream(...)`, and a synchronous one returns with that stream waiting for it (or
    has run on it): events around the call are on the right stream. A mark is None while the stream is being captured into
    a CUDA graph, which events must not enter; what needed it is then unknown.
    """

    def __init__(self) -> None:
        self._pool: list[torch.cuda.Event] = []

    def mark(self) -> torch.cuda.Event | None:
        if torch.cuda.is_current_stream_capturing():
            return None
        event = self._pool.pop() if self._pool else _timing_event()
        event.record()
        return event

    def ready(self, mark: torch.cuda.Event | None) -> bool:
        if mark is None:
            return True
        if torch.cuda.is_current_stream_capturing():  # a query would end the capture with an error
            return False
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def between(self, begin: torch.cuda.Event | None, end: torch.cuda.Event | None) -> int | None:
        if begin is None or end is None:
            return None
        return int(begin.elapsed_time(end) * 1e6)  # milliseconds, at a resolution of half a microsecond

    def release(self, marks: list[torch.cuda.Event | None]) -> None:
        self._pool.extend(mark for mark in marks if mark is not None)


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def clock_for(device: torch.device) -> Clock:
    return CudaClock() if device.type == "cuda" else HostClock()
