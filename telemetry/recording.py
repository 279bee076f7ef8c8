"""The recording of one run: an SQLite file with every message, and what makes it quick to open and to query.

`log` holds the messages as they came; replaying them through `RunState.apply` gives the state again. `snapshot` holds
the state itself every few seconds, so that opening a run is one snapshot and the few messages after it. `waypoint` holds
sparse states of the whole run, from which `telemetry.past` reaches any step. `step` and `rollup` are for queries: the scalars
of every step, and their sums over 64 and 4096 steps.

On long runs the log is thinned behind the last snapshot but one: heartbeats go, and of the collectives only some steps
stay, the same ones on all ranks. The scalars of every step stay for good.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from fsdp_tui.telemetry.messages import (
    PHASES,
    BadMessage,
    Capture,
    Comm,
    Event,
    Message,
    Step,
    decode,
)
from fsdp_tui.telemetry.state import LEAST_STEP_WINDOW, RunState
from fsdp_tui.telemetry.view import total
from fsdp_tui.telemetry.waypoint import highest_step, pack

SCHEMA = 1
LEVELS = (64, 4096)
"""Steps in one bucket of each rollup level."""
SNAPSHOT_EVERY_S = 5.0
SNAPSHOT_BYTES_PER_S = 500_000
"""A large state is written less often, so that snapshots never need more of the disk than this."""
WAYPOINT_ROWS = 16_384
"""Messages between two waypoints, at least: what a jump into the past replays, a tenth of a second. Of very many ranks as many
as fill their windows, which a jump replays anyway: their states are large."""
WAYPOINT_SHARE = 8
"""The log between two waypoints is this many times as large as one, at least: they add no more than an eighth to a recording."""
COMM_DENSE_STEPS = 1_000
PENDING_BYTES = 64 << 20
"""What is kept in memory for a disk that cannot be written now; the oldest goes first."""
REMOTE = ("nfs", "cifs", "smb", "9p", "afs", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs")
"""File systems (by the beginning of their name) on which SQLite's WAL does not work: it needs memory shared by all readers."""

_TABLES = f"""
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, kind TEXT, rank INTEGER, step INTEGER, at_ns INTEGER, body BLOB);
CREATE INDEX IF NOT EXISTS log_comm ON log (step) WHERE kind = 'comm';
CREATE INDEX IF NOT EXISTS log_beat ON log (id) WHERE kind = 'beat';
CREATE INDEX IF NOT EXISTS log_capture ON log (id) WHERE kind = 'capture';
CREATE TABLE IF NOT EXISTS step (
    step INTEGER, rank INTEGER, ended_ns INTEGER, step_ns INTEGER, loss REAL, tokens INTEGER,
    memory_bytes INTEGER, peak_bytes INTEGER, overhead_ns INTEGER, {", ".join(f"{name}_ns INTEGER" for name in PHASES)},
    PRIMARY KEY (step, rank)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rollup (
    level INTEGER, metric TEXT, rank INTEGER, bucket INTEGER, n INTEGER, sum REAL, min REAL, max REAL,
    PRIMARY KEY (level, metric, rank, bucket)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS snapshot (id INTEGER PRIMARY KEY, log_id INTEGER, at_ns INTEGER, body BLOB);
CREATE TABLE IF NOT EXISTS waypoint (log_id INTEGER PRIMARY KEY, step INTEGER, body BLOB);
"""
_NO_PHASES = (None,) * len(PHASES)
_METRICS = ("step_ns", "loss", "tokens", "memory_bytes", "peak_bytes", "overhead_ns")
_ROLL_STEPS = """
INSERT OR REPLACE INTO rollup
SELECT {level}, '{metric}', rank, step / {level}, COUNT({metric}), SUM({metric}), MIN({metric}), MAX({metric})
FROM step WHERE step >= ? * {level} AND step < ? * {level} AND {metric} IS NOT NULL GROUP BY rank, step / {level}
"""
_ROLL_BUCKETS = """
INSERT OR REPLACE INTO rollup
SELECT {level}, metric, rank, bucket * {finer} / {level}, SUM(n), SUM(sum), MIN(min), MAX(max)
FROM rollup WHERE level = {finer} AND bucket >= ? * {level} / {finer} AND bucket < ? * {level} / {finer}
GROUP BY metric, rank, bucket * {finer} / {level}
"""


class RecordingError(Exception):
    """A recording that cannot be written or read; the message is one line."""


class _Row(NamedTuple):
    kind: str
    rank: int | None
    step: int | None
    at_ns: int
    body: bytes
    message: Message


class Recorder:
    """Writes one run's recording. One writer at a time: the hub, which holds the run's lock.

    `add` only remembers; `flush` writes. A flush that fails loses nothing as long as the messages fit into
    PENDING_BYTES: the next one that succeeds writes them all.
    """

    def __init__(self, path: Path) -> None:
        """Opens or creates the recording.

        Raises:
            RecordingError: it cannot be written, or an older or newer fsdp-tui has made it.
        """
        self.path = path
        self.notice = ""
        """One line when the disk needs another way of writing than usual."""
        self.lost = 0
        """Messages that did not fit into memory while the disk could not be written."""
        self._pending: list[_Row] = []
        self._pending_bytes = 0
        self._next_snapshot_s = 0.0
        self._since_waypoint = 0
        """Bytes of messages."""
        self._waypoint_bytes = 0
        self._rolled: dict[int, int] = {}
        """Level -> the first bucket that is not complete yet, as far as is known."""
        self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = None
        try:
            db = sqlite3.connect(self.path, timeout=0.5, isolation_level=None)
            remote = _remote_file_system(self.path)
            mode = "wal" if not remote else "truncate"
            if remote:
                self.notice = f"{self.path.parent} is on {remote}: recording without WAL, readers may have to wait"
            try:
                got = db.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0]
            except sqlite3.OperationalError as error:
                if "locking" not in str(error):
                    raise
                got = "none"
            if got != mode:
                db.execute("PRAGMA journal_mode = TRUNCATE")
                self.notice = f"{self.path.parent} does not support SQLite's WAL: readers may have to wait"
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA wal_autocheckpoint = 2000")
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, SCHEMA):
                raise RecordingError(f"{self.path} has schema {found}, this fsdp-tui writes {SCHEMA}")
            db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
            row = db.execute("SELECT MAX(id) FROM log").fetchone()
            self._last_id = int(row[0] or 0)
            row = db.execute("SELECT MAX(log_id) FROM waypoint").fetchone()
            self._waypoint_id = int(row[0] or 0)
            newest = db.execute("SELECT MAX(bucket) FROM rollup WHERE level = ?", (LEVELS[0],)).fetchone()[0] or 0
            self._rolled = {level: newest * LEVELS[0] // level for level in LEVELS}
        except sqlite3.Error as error:
            if db is not None:
                db.close()
            raise RecordingError(said(self.path, error)) from None
        except BaseException:
            if db is not None:
                db.close()
            raise
        return db

    @property
    def pending(self) -> int:
        """Messages not yet on disk."""
        return len(self._pending)

    def add(self, message: Message, body: bytes, at_ns: int) -> None:
        """Remembers a message for the next flush."""
        rank = getattr(message, "rank", None)
        step = message.step if isinstance(message, Step | Comm | Capture) else None
        self._pending.append(_Row(type(message).__name__.lower(), rank, step, at_ns, body, message))
        self._pending_bytes += len(body)
        while self._pending_bytes > PENDING_BYTES and len(self._pending) > 1:
            self._pending_bytes -= len(self._pending.pop(0).body)
            self.lost += 1

    def flush(self, state: RunState, *, snapshot: bool | None = None, final: bool = False) -> None:
        """Writes what was added, in one transaction, and with it a snapshot of `state` (None: when one is due).

        `final`: nothing comes after it.

        `state` must be what the messages added so far have made.

        Raises:
            RecordingError: the disk is full, or the file cannot be written; nothing of this flush is on disk.
        """
        now_s = time.monotonic()
        if snapshot is None:
            snapshot = bool(self._pending) and now_s >= self._next_snapshot_s
        if not self._pending and not snapshot:
            return
        last_id = self._last_id
        body = waypoint = b""
        since_waypoint = self._since_waypoint + self._pending_bytes
        try:
            self._db.execute("BEGIN IMMEDIATE")
            rows = [(last_id + at, *row[:5]) for at, row in enumerate(self._pending, start=1)]
            self._db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)", rows)
            last_id += len(rows)
            self._write_steps([row.message for row in self._pending if isinstance(row.message, Step)])
            self._roll_up(highest_step(state) if final else _slowest_step(state), whole=not final)
            if snapshot:
                body = state.dump()
                self._write_snapshot(last_id, body)
            apart = max(WAYPOINT_ROWS, LEAST_STEP_WINDOW * len(state.ranks))
            if last_id - self._waypoint_id >= apart and since_waypoint >= WAYPOINT_SHARE * self._waypoint_bytes:
                waypoint = pack(state)
                self._db.execute("INSERT INTO waypoint VALUES (?, ?, ?)", (last_id, highest_step(state), waypoint))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise RecordingError(said(self.path, error)) from None
        self._last_id = last_id
        self._pending.clear()
        self._pending_bytes = 0
        self._since_waypoint = since_waypoint
        if waypoint:
            self._waypoint_id, self._waypoint_bytes, self._since_waypoint = last_id, len(waypoint), 0
        if snapshot:
            self._next_snapshot_s = now_s + max(SNAPSHOT_EVERY_S, len(body) / SNAPSHOT_BYTES_PER_S)

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:  # the failure may have ended the transaction already
            pass

    def _write_steps(self, steps: Sequence[Step]) -> None:
        table = [
            (step.step, step.rank, step.ended_ns, *_scalars(step), *(*step.phases_ns, *_NO_PHASES)[: len(PHASES)])
            for step in steps
        ]
        self._db.executemany(f"INSERT OR REPLACE INTO step VALUES ({', '.join('?' * (9 + len(PHASES)))})", table)
        first = min((step.step for step in steps), default=None)
        if first is not None:  # a rank that is behind, or was started again: its bucket is summed anew
            self._rolled = {level: min(bucket, first // level) for level, bucket in self._rolled.items()}

    def _roll_up(self, newest: int, *, whole: bool) -> None:
        """Sums the buckets up to a step, all of whose scalars are there; `whole`: only those that end there or before."""
        finer = 1
        for level in LEVELS:
            begin, end = self._rolled[level], (newest + 1 if whole else newest + level) // level
            if end <= begin:
                return
            if finer == 1:
                for metric in _METRICS:
                    self._db.execute(_ROLL_STEPS.format(level=level, metric=metric), (begin, end))
            else:
                self._db.execute(_ROLL_BUCKETS.format(level=level, finer=finer), (begin, end))
            self._rolled[level], finer = end, level

    def _write_snapshot(self, log_id: int, body: bytes) -> None:
        db = self._db
        # The one before stays, with every message since it: should the newest be damaged, it is replayed instead.
        before = db.execute("SELECT id, log_id FROM snapshot ORDER BY id DESC LIMIT 1").fetchone()
        db.execute("INSERT INTO snapshot (log_id, at_ns, body) VALUES (?, ?, ?)", (log_id, time.time_ns(), body))
        if before is None:
            return
        db.execute("DELETE FROM snapshot WHERE id < ?", (before[0],))
        db.execute("DELETE FROM log WHERE kind = 'beat' AND id <= ?", (before[1],))
        done = db.execute("SELECT value FROM meta WHERE key = 'thinned_to'").fetchone()
        low = max(done[0] if done else 0, COMM_DENSE_STEPS)
        high = db.execute("SELECT MAX(step) FROM log WHERE kind = 'comm' AND id <= ?", (before[1],)).fetchone()[0]
        if high is not None and high > low:
            db.execute(
                "DELETE FROM log WHERE kind = 'comm' AND step > ? AND step <= ? AND id <= ?"
                " AND step % (CASE WHEN step <= 10000 THEN 10 ELSE 100 END) != 0",
                (low, high, before[1]),
            )
            # Messages of these steps may still come in late; they are few, and stay.
            db.execute("INSERT OR REPLACE INTO meta VALUES ('thinned_to', ?)", (high,))

    def reopen(self) -> None:
        """Tries the disk again after a failed flush.

        Raises:
            RecordingError: it still cannot be written.
        """
        self._db.close()
        self._db = self._open()

    def close(self, state: RunState) -> None:
        """Writes the rest and a last snapshot, and makes it one file that a read-only disk can serve.

        Raises:
            RecordingError: the rest could not be written. The file is closed all the same.
        """
        try:
            try:
                self.flush(state, snapshot=True, final=True)
            except RecordingError:  # a disk with room for the last messages only
                self.flush(state, snapshot=False)
            with contextlib.suppress(sqlite3.Error):  # a reader has it open: WAL mode is as good on this disk
                self._db.execute("PRAGMA journal_mode = DELETE")
        finally:
            self._db.close()

    def abandon(self) -> None:
        """Closes the file without writing."""
        self._db.close()


def _slowest_step(state: RunState) -> int:
    """The newest step of the rank that is behind all others; 0 before the first."""
    return min((rank.last.step for rank in state.ranks.values() if rank.last), default=0)


def _scalars(step: Step) -> tuple[float | None, ...]:
    """Values of `_METRICS`."""
    return (step.step_ns, step.loss, step.tokens, total(tuple(step.memory)), total(tuple(step.peak)), step.overhead_ns)


def said(path: Path, error: sqlite3.Error) -> str:
    """What went wrong, in a line."""
    text = " ".join(str(error).split())
    if "full" in text:
        return f"cannot write {path}: the disk is full"
    if "not a database" in text or "malformed" in text:
        return f"{path} is damaged: {text}"
    if "unable to open" in text:
        return f"cannot open {path}: the folder is missing or cannot be written"
    return f"{path}: {text}"


def _remote_file_system(path: Path) -> str:
    """The type of the file system that holds the path when it is a remote one, else ""."""
    where = os.path.realpath(path.parent)
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, mounted, fs, *_ = [*line.split(" "), "", "", ""]
        mounted = mounted.replace("\\040", " ")
        inside = where == mounted or where.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(best):
            best, kind = mounted, fs
    return kind if kind.startswith(REMOTE) else ""


# Reading


def load_state(path: Path) -> RunState:
    """The state of a recorded run: its newest readable snapshot and the messages after it.

    A damaged file gives what can be read of it; `bad_records` counts, and an event says, what could not.

    Raises:
        RecordingError: there is no recording, or nothing in it can be read.
    """
    if not path.exists():
        raise RecordingError(f"there is no recording {path}")
    try:
        db = open_to_read(path)
    except sqlite3.Error as error:
        raise RecordingError(said(path, error)) from None
    with closing(db):
        return _load(db, path)


def last_message_ns(path: Path) -> int | None:
    """Wall clock of the last recorded message in nanoseconds; None when there is none."""
    try:
        with closing(open_to_read(path)) as db:
            row = db.execute("SELECT at_ns FROM log ORDER BY id DESC LIMIT 1").fetchone()
    except sqlite3.Error:
        return None
    return int(row[0]) if row else None


def open_to_read(path: Path) -> sqlite3.Connection:
    """The recording for queries, also on a disk that cannot be written.

    Raises:
        sqlite3.Error: it cannot be read; `said` words it.
    """
    address = path.absolute().as_uri()
    db = sqlite3.connect(f"{address}?mode=ro", uri=True, timeout=2.0)
    try:
        db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        # A WAL file in a folder that we may not write to: readable as long as nobody writes it.
        db.close()
        db = sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True)
        try:
            db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        except sqlite3.Error:
            db.close()
            raise
    except sqlite3.Error:
        db.close()
        raise
    return db


def _load(db: sqlite3.Connection, path: Path) -> RunState:
    damage: list[str] = []
    found = db.execute("PRAGMA user_version").fetchone()[0]
    if found != SCHEMA:
        raise RecordingError(f"{path} has schema {found}, this fsdp-tui reads {SCHEMA}")
    state, after = RunState(), 0
    for log_id, body in _readable(db, "SELECT log_id, body FROM snapshot ORDER BY id DESC", damage):
        try:
            state, after = RunState.load(body), log_id
            break
        except ValueError as error:  # an older snapshot, or the whole log, makes the same state
            damage.append(str(error))
    applied = 0
    for (body,) in _readable(db, f"SELECT body FROM log WHERE id > {int(after)} ORDER BY id", damage):
        applied += 1
        try:
            state.apply(decode(body))
        except BadMessage:
            state.bad_records += 1
    if damage:
        if not after and not applied:
            raise RecordingError(f"{path} is damaged: {damage[0]}")
        state.bad_records += 1
        text = f"the recording is damaged ({damage[0]}): this is what could be read of it"
        state.apply(Event(at_ns=last_message_ns(path) or 0, kind="recording_damaged", severity="bad", text=text))
    return state


def _readable(db: sqlite3.Connection, query: str, damage: list[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of a query up to the first one that cannot be read."""
    try:
        yield from db.execute(query)
    except sqlite3.Error as error:
        damage.append(" ".join(str(error).split()))
