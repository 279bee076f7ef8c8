"""The past of a recorded run, or of one that goes on: the picture at any step.

It is what the recording holds up to that step, put through the one reducer: the nearest waypoint that leaves room to fill the
windows of the newest steps, then the messages after it. The next step goes on from the one before. Steps are the
moments of the past: every rank has finished this one and none has reported a later one.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fsdp_tui.telemetry.messages import BadMessage, Beat, decode
from fsdp_tui.telemetry.recording import RecordingError, load_state, open_to_read, said
from fsdp_tui.telemetry.state import COMM_WINDOW, MAX_CAPTURES, RunState, step_window
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.telemetry.waypoint import complete_to, unpack

KEPT = 32
"""Moments that are kept."""
BACKWARDS = 8
"""Who goes back a step goes on doing so: so many moments are made on the way, of which the others are there when they are asked for."""
COMM_ROWS, LEAST_COMM = 4_096, 8
"""Medians of many ranks' collectives are taken over fewer steps than in the present, so that a jump stays quick: steps x ranks."""
CHUNK = 512
"""Rows that are read at a time; no transaction stays open in between, so that whoever records is not held up."""


class Moment(NamedTuple):
    """A run at one of its steps."""

    step: int
    ended_ns: int
    """Wall clock when the last rank had finished it."""
    view: RunView


class _Place:
    """A state, and where in the log it is."""

    def __init__(self, state: RunState, log_id: int) -> None:
        self.state = state
        self.log_id = log_id
        """Rows up to this one are taken in, or wait in `ahead`."""
        self.step = 0
        self.ahead: list[tuple[int, int, bytes]] = []
        """Steps that a rank has reported before others had finished theirs: step, rank, body."""
        self.comm_to: int | None = None
        """Collectives are taken in up to this step; None: of none."""


class Past:
    """Reads one recording. Not thread-safe, and for one thread: SQLite's."""

    def __init__(self, path: Path) -> None:
        """Opens it; takes no time.

        Raises:
            RecordingError: there is none, or it cannot be read.
        """
        if not path.exists():
            raise RecordingError(f"there is no recording {path}")
        self.path = path
        self._kept: OrderedDict[int, Moment] = OrderedDict()
        self._place: _Place | None = None
        self._newest = RunState()
        """Has the series of all steps that waypoints leave out; read when the first one is needed."""
        try:
            self._db = open_to_read(path)
            names = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        except sqlite3.Error as error:
            raise RecordingError(said(path, error)) from None
        self._has_waypoints = (
            "waypoint",
        ) in names  # a recording from before they were kept is replayed from its begin

    def close(self) -> None:
        self._db.close()

    # Steps and times

    def bounds(self) -> tuple[int, int] | None:
        """The first and the last recorded step; None before the first.

        Raises:
            RecordingError: the recording cannot be read.
        """
        first, last = self._one("SELECT (SELECT MIN(step) FROM step), (SELECT MAX(step) FROM step)")
        return None if first is None else (first, last)

    def nearest(self, step: int) -> int:
        """The newest recorded step that is not after this one, or the first.

        Raises:
            RecordingError: the recording cannot be read, or has no step.
        """
        (found,) = self._one("SELECT MAX(step) FROM step WHERE step <= ?", step)
        if found is None:
            (found,) = self._one("SELECT MIN(step) FROM step")
        if found is None:
            raise RecordingError(f"{self.path} has no step yet")
        return int(found)

    def ended_ns(self, step: int) -> int:
        """Wall clock when the last rank had finished a recorded step.

        Raises:
            RecordingError: the recording cannot be read, or does not have it.
        """
        (ended,) = self._one("SELECT MAX(ended_ns) FROM step WHERE step = ?", step)
        if ended is None:
            raise RecordingError(f"{self.path} does not have step {step}")
        return int(ended)

    def step_at(self, at_ns: int, *, after: bool = False) -> int:
        """The last step that had ended at a moment, or the first one; `after`: the first that ended then or later, or the last.

        Raises:
            RecordingError: the recording cannot be read, or has no step.
        """
        bounds = self.bounds()
        if bounds is None:
            raise RecordingError(f"{self.path} has no step yet")
        first, last = bounds
        low, high = first, last + 1  # the first step that ends after it is in [low, high]
        while low < high:
            middle = self.nearest((low + high) // 2)
            ended = self.ended_ns(middle)
            if ended > at_ns or (after and ended == at_ns):
                high = middle
            else:
                (follows,) = self._one("SELECT MIN(step) FROM step WHERE step > ?", (low + high) // 2)
                low = high if follows is None else min(high, int(follows))
        if after:
            return self.nearest(min(low, last))
        return self.nearest(low - 1)

    # Pictures

    def at(self, step: int) -> Moment:
        """The run when every rank had finished this step, or the nearest recorded one before it.

        Raises:
            RecordingError: the recording cannot be read, or has no step.
        """
        step = self.nearest(step)
        if step in self._kept:
            self._kept.move_to_end(step)
            return self._kept[step]
        if self._place is not None and 0 < self._place.step - step <= BACKWARDS:
            before = self.nearest(step - BACKWARDS + 1)
            while before < step:
                if before not in self._kept:
                    self._make(before)
                (before,) = self._one("SELECT MIN(step) FROM step WHERE step > ?", before)
        return self._make(step)

    def _make(self, step: int) -> Moment:
        try:
            place = self._reached(step)
        except sqlite3.Error as error:
            raise RecordingError(said(self.path, error)) from None
        moment = Moment(step, self.ended_ns(step), place.state.view())
        (later,) = self._one("SELECT MAX(step) FROM step")
        if later > step:  # of the newest one some ranks may not be there yet
            self._kept[step] = moment
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return moment

    def _reached(self, step: int) -> _Place:
        place, self._place = self._place, None  # should reading fail half-way, nothing goes on from there
        begin = self._waypoint_before(step)
        if place is None or place.step > step or (begin is not None and begin[0] > place.log_id):
            place = self._begin_from(begin)
        self._follow(place, step)
        self._take_collectives(place, step)
        self._place = place
        return place

    def _waypoint_before(self, step: int) -> tuple[int, bytes] | None:
        """The newest one from which the windows can still be filled: its row in the log, and its body."""
        if not self._has_waypoints:
            return None
        (ranks,) = self._one("SELECT COUNT(*) FROM step WHERE step = ?", step)
        query = "SELECT log_id, body FROM waypoint WHERE step <= ? ORDER BY log_id DESC LIMIT 1"
        row: tuple[int, bytes] | None = self._db.execute(query, (step - step_window(ranks),)).fetchone()
        return row

    def _begin_from(self, waypoint: tuple[int, bytes] | None) -> _Place:
        if waypoint is None:
            return _Place(RunState(), 0)
        log_id, body = waypoint
        try:
            state = unpack(body, self._newest)
            if complete_to(state) > (self._newest.steps[-1] if self._newest.steps else 0):
                self._newest = load_state(self.path)
                state = unpack(body, self._newest)
        except ValueError as error:
            raise RecordingError(f"{self.path} is damaged: {error}") from None
        query = "SELECT body FROM log WHERE kind = 'capture' AND id <= ? ORDER BY id DESC LIMIT ?"
        for (capture,) in reversed(self._db.execute(query, (log_id, MAX_CAPTURES)).fetchall()):
            _take(state, capture)
        return _Place(state, log_id)

    def _follow(self, place: _Place, step: int) -> None:
        """Takes in rows until every rank that has recorded the step has finished it."""
        state = place.state
        recorded = {rank for (rank,) in self._db.execute("SELECT rank FROM step WHERE step = ?", (step,))}
        waiting = {
            rank
            for rank in recorded
            if (last := state.ranks[rank].last if rank in state.ranks else None) is None or last.step < step
        }
        ahead, place.ahead = place.ahead, []
        for known, rank, body in ahead:
            if known <= step:
                _take(state, body)
            else:
                place.ahead.append((known, rank, body))
            if known >= step:
                waiting.discard(rank)
        place.step = step
        if not waiting:
            return
        for log_id, kind, rank, known, body in self._rows(place.log_id):
            place.log_id = log_id
            if kind != "step":
                _take(state, body, not_beyond=step)
                continue
            if known <= step:
                _take(state, body)
            else:
                place.ahead.append((known, rank, body))
            if known >= step:
                waiting.discard(rank)
                if not waiting:
                    return

    def _rows(self, after: int) -> Iterator[tuple[Any, ...]]:
        """The log but for collectives, which are thinned and need only the newest."""
        query = "SELECT id, kind, rank, step, body FROM log WHERE id > ? AND kind != 'comm' ORDER BY id LIMIT ?"
        while chunk := self._db.execute(query, (after, CHUNK)).fetchall():
            yield from chunk
            after = chunk[-1][0]

    def _take_collectives(self, place: _Place, step: int) -> None:
        """Those of the newest steps up to this one that fit the window: more would be taken in only to be dropped."""
        query = (
            "SELECT step, COUNT(*) FROM log WHERE kind = 'comm' AND step > ? AND step <= ?"
            " GROUP BY step ORDER BY step DESC LIMIT ?"
        )
        begin, taken = None, 0
        for at, (known, rows) in enumerate(self._db.execute(query, (place.comm_to or -1, step, COMM_WINDOW))):
            taken += rows
            if taken > COMM_ROWS and at >= LEAST_COMM:
                break
            begin = known
        if begin is not None:
            query = "SELECT body FROM log WHERE kind = 'comm' AND step >= ? AND step <= ? ORDER BY step, id"
            for (body,) in self._db.execute(query, (begin, step)).fetchall():
                _take(place.state, body)
        place.comm_to = step

    def _one(self, query: str, *values: int) -> tuple[Any, ...]:
        try:
            row: tuple[Any, ...] = self._db.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise RecordingError(said(self.path, error)) from None
        return row


def _take(state: RunState, body: bytes, *, not_beyond: int | None = None) -> None:
    """Takes a recorded message in; not a heartbeat of a rank that is beyond a step already."""
    try:
        message = decode(body)
    except BadMessage:
        state.bad_records += 1
        return
    if not_beyond is None or not isinstance(message, Beat) or message.step <= not_beyond:
        state.apply(message)
