"""Stop, pause and capture, agreed by all ranks at one step boundary.

At each boundary a rank reads the result of the all-reduce that it issued at the boundary before, then issues the next one
with its own wishes. All ranks read the same numbers at the same step, whoever asked and whenever; one rank alone never
acts, since that would leave the others in a collective that never completes. The group is gloo's own, on the host, beside
whatever the training uses; an all-reduce is issued a whole step before anybody waits for it.

A capture is due when the newest request is the same one on all ranks: then the step after is captured, on the ranks that
it names.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from fsdp_tui.telemetry.messages import Command

PAUSE_POLL_S = 0.1
PATIENCE_S = 10.0
"""How long the others' word of a whole step ago is waited for."""
NEVER_LAST = 2**63 - 1
"""In place of its newest capture's number from a rank that hears of none: the others do not wait for it."""


class Requests(Protocol):
    """What this rank was asked for so far; another thread sets these."""

    stop: bool
    pause: bool
    capture: Command | None
    """The newest request for a capture."""


class Agreement:
    """The ranks' common decision. Make it on every rank at the same point: it creates a process group."""

    def __init__(
        self,
        requested: Requests,
        sleep: Callable[[float], None] = time.sleep,
        *,
        listening: bool = True,
        together: bool = True,
    ) -> None:
        """`listening`: whether this rank can be asked for anything; `together`: whether the ranks train in step. Ranks that
        do not are asked and answer each for itself."""
        self.together = together
        self._requested = requested
        self._listening = listening
        self._sleep = sleep
        self._alone = not (together and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
        # The function itself: the wrapper that times collectives must not count this one.
        self._all_reduce = dist.all_reduce if not self._alone else None
        self._group = None if self._alone else dist.new_group(backend="gloo")
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._deaf = False
        """Whether requests are not acted on any more, since the ranks cannot agree."""
        self._agreed: tuple[bool, bool, Command | None] | None = None
        """Of the boundary that comes next, if it was asked for early."""
        self._pause_is_old = False
        self._wished: Command | None = None
        self._captures_done = 0
        self.stopped = False
        self.capture: Command | None = None
        """What all ranks capture in the step that begins now; None: nothing."""

    def stops(self) -> bool:
        """What the boundary that comes next will decide, as soon as its step's training is done."""
        if self._agreed is None:
            self._agreed = self._previous()
        return self._agreed[0]

    def at_boundary(self, on_pause: Callable[[bool], None]) -> bool:
        """False if all ranks stop here. While they pause, this does not return; `on_pause` hears begin and end."""
        stop, pause, capture = self._agreed or self._previous()
        self._agreed = None
        if pause and not stop:
            on_pause(True)
            stop = self._until_resumed()
            on_pause(False)
        if stop:
            self.stopped = True
            return False
        self.capture = capture
        if not self._alone:
            self._wished = self._requested.capture
            newest = self._wished.number if self._wished else 0
            oldest = newest if self._listening else NEVER_LAST
            self._pending = self._issue(self._requested.stop, self._wants_pause(), newest, -oldest)
        return True

    def close(self, *, failed: bool) -> None:
        """Takes back what is outstanding. After a failure the other ranks may never issue theirs: nobody waits then."""
        if self._pending is not None and not failed:
            self._completed(self._pending[0])
        self._pending = None

    def _previous(self) -> tuple[bool, bool, Command | None]:
        if self._deaf:
            return False, False, None
        if self._alone:
            wished = self._requested.capture
            return self._requested.stop, self._wants_pause(), self._due(wished, wished.number if wished else 0)
        if self._pending is None:
            return False, False, None
        work, wishes = self._pending
        self._pending = None
        if not self._completed(work):
            return False, False, None
        stop, pause, newest, oldest = wishes.tolist()
        return stop > 0, pause > 0, self._due(self._wished, newest) if newest == -oldest else None

    def _completed(self, work: Any) -> bool:
        """Whether all ranks have issued the same. They have, if they train in step: each waits for the others in every step.

        A rank whose loop has ended earlier (uneven inputs) never will, and nobody must wait for it: then it is over with
        agreeing, and a stop takes its next rung.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while not work.is_completed():
            if time.monotonic() > deadline_s:
                self._alone = self._deaf = True
                return False
            time.sleep(0.0005)
        try:
            work.wait()
        except RuntimeError:  # a rank is gone
            self._alone = self._deaf = True
            return False
        return True

    def _due(self, wished: Command | None, number: int) -> Command | None:
        if wished is None or number <= self._captures_done:
            return None
        self._captures_done = number
        return wished

    def _issue(self, *wished: int) -> tuple[Any, torch.Tensor]:
        assert self._all_reduce is not None
        wishes = torch.tensor(wished, dtype=torch.int64)
        work = self._all_reduce(wishes, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return work, wishes

    def _wants_pause(self) -> bool:
        """Whether this rank was asked to pause since the last pause ended."""
        if not self._requested.pause:
            self._pause_is_old = False
        return self._requested.pause and not self._pause_is_old

    def _until_resumed(self) -> bool:
        """Sleeps until any rank was asked to resume or stop; True: stop. Between polls no collective is outstanding.

        A rank that has not heard of the pause yet has nothing to resume from, so it must hear of it first.
        """
        heard = False
        while True:
            heard = heard or self._requested.pause
            stop, resume = self._requested.stop, heard and not self._requested.pause
            if not self._alone:
                work, wishes = self._issue(stop, resume)
                work.wait()
                stop, resume = (wish > 0 for wish in wishes.tolist())
            if stop or resume:
                self._pause_is_old = True  # another rank's resume came first: ours is still on its way
                return stop
            self._sleep(PAUSE_POLL_S)
