"""The collectives of one step in the order they were issued: unit, kind, bytes, duration, and how long compute waited.

Duration is issue to completion of the call on this rank. Exposed is the part in which compute waited: all of it for a
synchronous call on a CPU, the time inside `wait` for an asynchronous one; on CUDA what remained of it when the compute stream
came to need it (a gather before its unit computes, a reduction when its buffer or the gradients are wanted).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fsdp_tui.runner.clocks import Clock
from fsdp_tui.runner.torch_dist import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, awaited_storage, group_ranks
from fsdp_tui.telemetry.messages import COMM_PHASES

NOT_KNOWN = -1
NO_UNIT = -1
FIRST_BUCKET = -2
FORWARD, BACKWARD, OTHER = (COMM_PHASES.index(name) for name in ("forward", "backward", "other"))


class Call:
    """One collective. `end` is None until it is known to be complete; `needed` is when compute came to wait for it."""

    __slots__ = ("asynchronous", "begin", "end", "group", "kind", "nbytes", "needed", "phase", "unit", "waited_ns")

    def __init__(
        self, unit: int, kind: int, phase: int, group: int, nbytes: int, begin: Any, asynchronous: bool
    ) -> None:
        self.unit, self.kind, self.phase, self.group, self.nbytes = unit, kind, phase, group, nbytes
        self.begin, self.asynchronous = begin, asynchronous
        self.end: Any = None
        self.needed: Any = None
        self.waited_ns = NOT_KNOWN


class StepCalls:
    """The calls of one step; columns can be read once `ready`."""

    def __init__(
        self, clock: Clock, calls: list[Call], on_cpu: bool, reductions_ns: tuple[int, int] = (NOT_KNOWN, NOT_KNOWN)
    ) -> None:
        self._clock, self._calls, self._on_cpu = clock, calls, on_cpu
        self.reductions_ns = reductions_ns
        """DDP's buckets together: their time, and the part of it that compute waited for."""

    def ready(self) -> bool:
        return self._on_cpu or all(
            self._clock.ready(mark) for call in self._calls for mark in (call.end, call.needed) if mark is not None
        )

    def columns(self) -> dict[str, list[int]]:
        """`Comm`'s columns; on CUDA the marks are given back, so ask once."""
        calls = self._calls
        # On a CPU marks are numbers, and nothing is given back.
        if self._on_cpu:
            durations = [NOT_KNOWN if c.begin is None or c.end is None else c.end - c.begin for c in calls]
            # Waking up after it was complete is no part of it.
            exposed = [
                min(c.waited_ns, spent) if c.asynchronous else spent for c, spent in zip(calls, durations, strict=True)
            ]
        else:
            durations = [self._duration(c) for c in calls]
            exposed = [self._exposed(c, spent) for c, spent in zip(calls, durations, strict=True)]
            marks = [mark for c in calls for mark in (c.begin, c.end, c.needed) if mark is not None]
            self._clock.release(marks)
        return {
            "unit": [c.unit for c in calls],
            "kind": [c.kind for c in calls],
            "phase": [c.phase for c in calls],
            "group": [c.group for c in calls],
            "nbytes": [c.nbytes for c in calls],
            "duration_ns": durations,
            "exposed_ns": exposed,
        }

    def _duration(self, call: Call) -> int:
        if call.begin is None or call.end is None:
            return NOT_KNOWN
        spent = self._clock.between(call.begin, call.end)
        return NOT_KNOWN if spent is None else max(0, spent)

    def _exposed(self, call: Call, duration: int) -> int:
        if call.unit == NO_UNIT and not call.asynchronous:
            return duration  # nobody's stream but compute's own, such as gradient clipping's
        if duration == NOT_KNOWN or call.needed is None:
            return NOT_KNOWN
        # Needed before it had begun (it stood behind others on its stream) is all of it: their time is theirs.
        before = self._clock.between(call.begin, call.needed)
        return NOT_KNOWN if before is None else max(0, duration - max(0, before))


class Collectives:
    """Records the calls of the current step."""

    def __init__(self, clock: Clock, unit_of: dict[int, int], on_cpu: bool) -> None:
        self._clock = clock
        self._unit_of = unit_of
        self._on_cpu = on_cpu
        self._context: list[int] = []
        self._inside = False
        self._calls: list[Call] = []
        self._last_gather: dict[int, Call] = {}
        self._wanted: dict[int, Any] = {}
        """Unit -> when compute came to need a gather that was not issued yet."""
        self._awaited: dict[int, Call] = {}
        """Functional collectives by the storage of their result."""
        self._reductions: list[Call] = []
        """On CUDA, those that compute has not come to need yet."""
        self._reductions_ns: list[tuple[int, int]] = []
        """DDP's, one per backward of the step."""
        self._group_index: dict[int | tuple[int, ...], int] = {}
        self.groups: list[list[int]] = []
        self.phase = OTHER
        self.issued = 0
        """Calls so far, over all steps."""
        self.newest: Call | None = None

    def begin(self, owner: object) -> None:
        self._context.append(self._unit_of.get(id(owner), NO_UNIT))

    def end(self) -> None:
        if self._context:
            self._context.pop()

    def issue(self, kind: int, nbytes: int, group: Any, asynchronous: bool) -> Call | None:
        """The record of a collective that is about to be called; None for one inside another, which counts once."""
        if self._inside:
            return None
        unit = self._context[-1] if self._context else NO_UNIT
        record = Call(unit, kind, self.phase, self._index(group), nbytes, self._clock.mark(), asynchronous)
        self._calls.append(record)
        self.newest = record
        self.issued += 1
        if kind == ALL_GATHER:
            self._last_gather[unit] = record
            record.needed = self._wanted.pop(unit, None)
        elif not self._on_cpu and unit != NO_UNIT:
            self._reductions.append(record)
        self._inside = True
        return record

    @property
    def under_way(self) -> bool:
        """Whether the newest call has not ended yet; on a device it is known only of the call itself."""
        return self._inside or (self._on_cpu and self.newest is not None and self.newest.end is None)

    def left(self) -> None:
        """The call is over, well or not: a record without an end is one that failed."""
        self._inside = False

    def returned(self, record: Call, result: Any) -> None:
        """The call has returned, which is its end if it is synchronous."""
        storage = awaited_storage(result)
        if storage is not None:
            self._awaited[storage] = record
        elif not record.asynchronous or isinstance(result, Tensor):  # a functional one, waited for inside
            record.asynchronous = False
            record.end = self._clock.mark()
        elif self._on_cpu and result is not None:
            result.get_future().add_done_callback(lambda _: self._complete(record))

    def _complete(self, record: Call) -> None:
        record.end = self._clock.mark()  # on gloo's thread; one assignment

    def result_needed(self, storage: int) -> None:
        """Compute comes to wait for the functional collective that fills this storage."""
        if (call := self._awaited.get(storage)) is not None and call.needed is None:
            call.needed = self._clock.mark()

    def result_there(self, storage: int) -> None:
        call = self._awaited.pop(storage, None)
        if call is None or call.needed is None:
            return
        call.end = self._clock.mark()
        if self._on_cpu:
            call.waited_ns = self._clock.between(call.needed, call.end) or 0

    def waiting(self, owner: object) -> None:
        """Compute comes to need the unit's all-gather, which is under way or issued before `waited`."""
        unit = self._unit_of.get(id(owner), NO_UNIT)
        call = self._last_gather.get(unit)
        if call is None or call.needed is not None:
            if not self._on_cpu:
                self._wanted[unit] = self._clock.mark()
        elif call.asynchronous or not self._on_cpu:
            call.needed = self._clock.mark()

    def waited(self, owner: object) -> None:
        unit = self._unit_of.get(id(owner), NO_UNIT)
        self._clock.release([self._wanted.pop(unit, None)])  # there was nothing to gather
        call = self._last_gather.get(unit)
        if call is None or call.needed is None or not call.asynchronous:
            return
        if self._on_cpu:
            call.waited_ns = self._clock.between(call.needed, self._clock.mark()) or 0
        elif call.end is None:  # the stream goes on when it is complete: its end, or somewhat later
            call.end = self._clock.mark()

    def reductions_needed(self, scatters_but: int | None = None) -> None:
        """Compute comes to wait for the reductions under way: all, or all reduce-scatters but the newest few."""
        waiting = self._reductions
        if scatters_but is not None:
            scatters = [call for call in waiting if call.kind == REDUCE_SCATTER]
            waiting = scatters[: max(0, len(scatters) - scatters_but)]
        for call in waiting:
            call.needed = self._clock.mark()
        self._reductions = [call for call in self._reductions if call not in waiting]

    def buckets_reduced(self, sizes: list[int], times_ns: tuple[int, int] | None) -> None:
        """DDP: one all-reduce per bucket took place in this backward; when, is known only of all together."""
        self._reductions_ns.append(times_ns or (NOT_KNOWN, NOT_KNOWN))
        for at, nbytes in enumerate(sizes):
            self._calls.append(
                Call(FIRST_BUCKET - at, ALL_REDUCE, BACKWARD, self._index(None), nbytes, None, asynchronous=True)
            )

    def take(self) -> StepCalls:
        """Ends the step: its calls, and a clean page."""
        taken, self._calls = self._calls, []
        self._last_gather.clear()
        self._awaited.clear()
        self._reductions = []
        times, self._reductions_ns = self._reductions_ns, []
        known = bool(times) and all(span != NOT_KNOWN for span, _ in times)
        together = (sum(span for span, _ in times), sum(exposed for _, exposed in times))
        return StepCalls(self._clock, taken, self._on_cpu, together if known else (NOT_KNOWN, NOT_KNOWN))

    def _index(self, group: Any) -> int:
        key = tuple(group) if isinstance(group, list) else id(group)
        known = self._group_index.get(key)
        if known is not None:
            return known
        ranks = group_ranks(group)
        if ranks not in self.groups:
            self.groups.append(ranks)
        self._group_index[key] = self.groups.index(ranks)
        return self._group_index[key]
