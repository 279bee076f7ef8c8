"""Going back in the open run: which of its moments is shown, and the thread that fetches it.

The run goes on meanwhile: its feed is another thread, and what it brings is shown when one returns to the present.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsdp_tui.telemetry.past import Moment
from fsdp_tui.telemetry.recording import RecordingError
from fsdp_tui.telemetry.rundir import RunEntry
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui.source import Services

Steps = NDArray[np.int64]
"""All steps that a run has, in their order."""
SPEEDS = (1, 2, 10, 100)
"""Recorded time in multiples of the time that it is played in."""
FAR = 10
"""Of this many parts of the run one is gone through at a time."""


class Wanted(NamedTuple):
    """A moment to go to: a step, or where the run was at some time."""

    step: int | None = None
    at_ns: int | None = None
    after: bool = False
    """The step that had not ended then, so that what happened at that time is seen."""


class Place(NamedTuple):
    """Where in the run one is, for the header and the time line."""

    step: int
    last: int
    """The newest that is known."""
    at_ns: int | None
    """Wall clock; None: not known yet."""
    fetching: bool
    playing: bool
    speed: int


class Replay:
    """One visit to the past of a run. All but the fetching is for the thread of the app.

    Attributes:
        moment: the newest that was fetched; None before the first.
        error: why there is none, one line.
        playing: whether recorded time goes on.
        speed: one of SPEEDS.
    """

    def __init__(
        self, services: Services, entry: RunEntry, prepare: Callable[[RunView], object] = lambda view: None
    ) -> None:
        """`prepare` is called with each picture in the thread, as a feed's is."""
        self.moment: Moment | None = None
        self.error = ""
        self.playing = False
        self.speed = SPEEDS[0]
        self._services = services
        self._entry = entry
        self._prepare = prepare
        self._wanted = Wanted()
        self._served = Wanted()
        self._from_ns = (0, 0)
        """Since when it plays, as wall clock, and from which recorded time."""
        self._closed = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._follow, name=f"past of {entry.id}", daemon=True)
        self._thread.start()

    # Where

    def place(self, steps: Steps) -> Place:
        """Where one is, or is going to. `steps`: all that the run has."""
        wanted, fetching, moment = self._wanted, self._served != self._wanted, self.moment
        last = max(int(steps[-1]) if len(steps) else 0, moment.step if moment else 0)
        step, at_ns = wanted.step, wanted.at_ns
        if moment is not None and not fetching:
            step, at_ns = moment.step, moment.ended_ns if at_ns is None else at_ns
        elif step is None:
            step = moment.step if moment is not None else last
        return Place(step, last, at_ns, fetching, self.playing, self.speed)

    def by_steps(self, by: int, steps: Steps) -> bool:
        """Some recorded steps on, or back; returns whether that is still in the past."""
        at = bisect_right(steps, self.place(steps).step) - 1 + by
        if at >= len(steps):
            return False
        self.go(Wanted(step=int(steps[max(0, at)])))
        return True

    def by_part(self, by: int, steps: Steps) -> bool:
        """A tenth of the run on, or back; the ends are not passed over."""
        here = bisect_right(steps, self.place(steps).step) - 1
        goal = min(len(steps) - 1, here + by * max(1, len(steps) // FAR))
        return self.by_steps(goal - here, steps) if goal != here else by < 0

    def by_event(self, by: int, steps: Steps, run: RunView) -> bool:
        """To the next event, or the one before; returns whether there is one."""
        times = sorted({event.at_ns for event in run.events})
        at_ns = self.place(steps).at_ns
        if at_ns is None:  # on the way to a step: from where one was; from the present: after all of them
            at_ns = self.moment.ended_ns if self.moment else times[-1] + 1 if times else 0
        at = bisect_right(times, at_ns) if by > 0 else bisect_left(times, at_ns) - 1
        if not 0 <= at < len(times):
            return False
        self.go(Wanted(at_ns=times[at], after=True))
        return True

    def go(self, wanted: Wanted) -> None:
        """Goes there; what is played goes on from there."""
        with self._news:
            self._wanted = wanted
            self._news.notify()
        self._from_ns = (0, 0)

    # Playing

    def play(self, playing: bool) -> None:
        """Lets recorded time go on, or stand."""
        self.playing = playing
        self._from_ns = (0, 0)

    def faster(self) -> None:
        """The next of SPEEDS, and round again."""
        self.speed = SPEEDS[(SPEEDS.index(self.speed) + 1) % len(SPEEDS)]
        self._from_ns = (0, 0)

    def tick(self, now_ns: int, steps: Steps) -> int | None:
        """Goes on while it plays; returns the recorded time that is reached, None while it stands."""
        if not self.playing:
            return None
        wall_ns, recorded_ns = self._from_ns
        if not wall_ns:
            at_ns = self.place(steps).at_ns
            if at_ns is not None:
                self._from_ns = (now_ns, at_ns)
            return at_ns
        at_ns = recorded_ns + (now_ns - wall_ns) * self.speed
        if self._served == self._wanted:  # a disk that is slower than this shows fewer moments
            with self._news:
                self._wanted = Wanted(at_ns=at_ns)
                self._news.notify()
        return at_ns

    # The thread

    def close(self) -> None:
        """Ends the visit; the thread ends by itself."""
        with self._news:
            self._closed = True
            self._news.notify()

    def _follow(self) -> None:
        try:
            past = self._services.open_past(self._entry)
        except RecordingError as error:
            self.error = str(error)
            return
        try:
            while True:
                with self._news:
                    self._news.wait_for(lambda: self._closed or self._wanted != self._served)
                    wanted, closed = self._wanted, self._closed
                if closed:
                    return
                step = wanted.step
                if step is None:
                    step = past.step_at(wanted.at_ns or 0, after=wanted.after)
                moment = past.at(step)
                self._prepare(moment.view)
                self.moment, self._served = moment, wanted
        except RecordingError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001  # a thread that dies in silence would leave a picture that never comes
            self.error = f"cannot go back in run {self._entry.id}: {type(error).__name__}: {error}"
        finally:
            past.close()
