"""The recording: what is written can be read again, also after kill -9, on a full disk, and when it is damaged."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fsdp_tui.telemetry import recording
from fsdp_tui.telemetry.messages import Beat, Event, Message, encode
from fsdp_tui.telemetry.recording import Recorder, RecordingError, last_message_ns, load_state
from fsdp_tui.telemetry.state import RunState
from tests.unit.telemetry.messages_for_tests import comm, hello, launched, step, structure


def training(steps: range) -> Iterator[Message]:
    """What two ranks send."""
    if steps.start == 1:
        yield launched()
        for rank in (0, 1):
            yield hello(rank)
            yield structure(rank)
    for number in steps:
        for rank in (0, 1):
            yield step(rank, number, loss=4.0 / number)
            yield comm(rank, number)
            yield Beat(rank=rank, incarnation=1, sent_ns=number, step=number, sent=number, dropped=0)


def record(recorder: Recorder, state: RunState, messages: Iterator[Message], at_ns: int = 1_000) -> None:
    for message in messages:
        state.apply(message)
        recorder.add(message, encode(message), at_ns)


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def test_a_recording_gives_the_state_again(tmp_path: Path) -> None:
    """With a snapshot and with rows after it, with rows alone, and closed."""
    path = tmp_path / "run.db"
    state, recorder = RunState(), Recorder(path)
    record(recorder, state, training(range(1, 20)))
    recorder.flush(state)
    assert load_state(path).dump() == state.dump()
    record(recorder, state, training(range(20, 30)))
    recorder.flush(state)
    assert load_state(path).dump() == state.dump()
    record(recorder, state, training(range(30, 40)), at_ns=5_000)
    recorder.close(state)
    assert load_state(path).dump() == state.dump()
    assert last_message_ns(path) == 5_000
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]  # one file, no WAL beside it
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM snapshot")
        db.commit()
    # Heartbeats before the last snapshot are gone from the log; nothing else is.
    replayed = load_state(path)
    assert (replayed.steps, replayed.loss_sum) == (state.steps, state.loss_sum)


def test_the_scalars_of_every_step_and_their_rollups_can_be_queried(tmp_path: Path) -> None:
    """Sums over buckets of 64 steps, written in several flushes, are those of the steps."""
    path = tmp_path / "run.db"
    state, recorder = RunState(), Recorder(path)
    for first in range(1, 200, 33):
        record(recorder, state, training(range(first, min(first + 33, 200))))
        recorder.flush(state)
    recorder.close(state)
    assert rows(path, "SELECT COUNT(*), MIN(step), MAX(step) FROM step") == [(398, 1, 199)]
    losses = [4.0 / number for number in range(64, 128)]
    ((n, total, low, high),) = rows(
        path, "SELECT n, sum, min, max FROM rollup WHERE level = 64 AND metric = 'loss' AND rank = 1 AND bucket = 1"
    )
    assert (n, low, high) == (64, min(losses), max(losses))
    assert total == pytest.approx(sum(losses))
    assert rows(path, "SELECT n FROM rollup WHERE level = 4096 AND metric = 'peak_bytes' AND rank = 0") == [(199,)]
    assert rows(path, "SELECT memory_bytes FROM step WHERE step = 7 AND rank = 0") == [(1_200,)]


def test_sums_are_those_of_the_steps_when_a_rank_is_behind_or_starts_again(tmp_path: Path) -> None:
    """While the run goes on whole buckets are there; a step that comes later, or once more, is in its own."""
    path = tmp_path / "run.db"
    state, recorder = RunState(), Recorder(path)
    query = "SELECT n, sum FROM rollup WHERE level = 64 AND metric = 'step_ns' AND rank = {} AND bucket = 1"

    def send(rank: int, numbers: range, step_ns: int) -> None:
        record(recorder, state, iter([step(rank, number, step_ns=step_ns) for number in numbers]))
        recorder.flush(state)

    record(recorder, state, iter([hello(0), hello(1)]))
    send(1, range(1, 127), 10)
    send(0, range(1, 150), 10)
    assert rows(path, query.format(0)) == []  # rank 1 is inside it
    send(1, range(127, 130), 10)
    assert rows(path, query.format(0)) == rows(path, query.format(1)) == [(64, 640.0)]
    send(0, range(100, 150), 20)
    send(1, range(100, 150), 20)
    assert rows(path, query.format(1)) == [(64, 36 * 10.0 + 28 * 20.0)]
    recorder.abandon()
    recorder = Recorder(path)
    send(0, range(150, 200), 10)
    send(1, range(150, 200), 10)
    recorder.close(state)
    assert rows(path, query.format(1)) == [(64, 36 * 10.0 + 28 * 20.0)]
    assert rows(path, "SELECT bucket, n FROM rollup WHERE level = 64 AND metric = 'loss' AND rank = 1") == [
        (0, 63),
        (1, 64),
        (2, 64),
        (3, 8),
    ]
    assert rows(path, "SELECT n FROM rollup WHERE level = 4096 AND metric = 'loss'") == [(199,), (199,)]


def test_a_loss_that_is_no_number_stays_out_of_the_sums(tmp_path: Path) -> None:
    """NaN and None are not zero."""
    path = tmp_path / "run.db"
    state, recorder = RunState(), Recorder(path)
    record(
        recorder, state, iter([hello(0, 1), step(0, 1, loss=float("nan")), step(0, 2, loss=None), step(0, 3, loss=2.0)])
    )
    recorder.close(state)
    assert rows(path, "SELECT n, sum FROM rollup WHERE metric = 'loss' AND level = 64") == [(1, 2.0)]
    assert rows(path, "SELECT loss FROM step ORDER BY step") == [(None,), (None,), (2.0,)]


def test_a_long_run_is_thinned_to_the_same_steps_on_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thousand steps keep their collectives, later ones each tenth; scalars stay for every step."""
    path = tmp_path / "run.db"
    monkeypatch.setattr(recording, "SNAPSHOT_EVERY_S", 0.0)
    monkeypatch.setattr(recording, "SNAPSHOT_BYTES_PER_S", 1e18)
    state, recorder = RunState(), Recorder(path)
    for first in range(1, 1600, 100):
        record(recorder, state, training(range(first, first + 100)))
        recorder.flush(state)
    assert load_state(path).dump() == state.dump()
    recorder.close(state)
    dense = rows(path, "SELECT COUNT(*) FROM log WHERE kind = 'comm' AND step <= 1000")
    assert dense == [(2_000,)]
    kept = [
        [
            number
            for (number,) in rows(path, f"SELECT step FROM log WHERE kind = 'comm' AND rank = {rank} AND step > 1000")
        ]
        for rank in (0, 1)
    ]
    assert kept[0] == kept[1]
    assert [number for number in kept[0] if number <= 1400] == list(range(1010, 1401, 10))
    assert rows(path, "SELECT COUNT(*) FROM step") == [(3_200,)]
    assert rows(path, "SELECT COUNT(*) FROM log WHERE kind = 'step'") == [(3_200,)]


def test_kill_9_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    """A writer killed in the middle: everything it acknowledged is there, and the next one goes on."""
    path = tmp_path / "run.db"
    code = (
        "from pathlib import Path; from fsdp_tui.telemetry.recording import *; from fsdp_tui.telemetry.state import *;"
        "from fsdp_tui.telemetry.messages import *\n"
        f"state, recorder = RunState(), Recorder(Path({str(path)!r}))\n"
        "n = 0\n"
        "while True:\n"
        "    for _ in range(50):\n"
        "        n += 1; e = Event(at_ns=n, kind='k', severity='ok', text='t'); state.apply(e); recorder.add(e, encode(e), n)\n"
        "    recorder.flush(state); print(n, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(20)][-1]
        os.kill(writer.pid, signal.SIGKILL)
    state = load_state(path)
    assert state.version >= acknowledged
    recorder = Recorder(path)
    record(recorder, state, iter([Event(at_ns=1, kind="next", severity="ok", text="")]))
    recorder.close(state)
    assert load_state(path).events[-1].kind == "next"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB; where none can be mounted the test is skipped."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if shutil.which("mount") is None or os.getuid() != 0:
        pytest.skip("a small disk needs root to be mounted")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_one_line_and_nothing_is_lost_when_there_is_room_again(tiny_disk: Path) -> None:
    """The flush that fails leaves the file as it was; the next one writes all of it."""
    filler = tiny_disk / "filler"
    path = tiny_disk / "run.db"
    state, recorder = RunState(), Recorder(path)
    record(recorder, state, training(range(1, 5)))
    recorder.flush(state)
    before = load_state(path).dump()
    room = os.statvfs(tiny_disk)
    filler.write_bytes(b"x" * (room.f_bavail * room.f_bsize))
    record(recorder, state, training(range(5, 400)))
    with pytest.raises(RecordingError, match="the disk is full") as error:
        recorder.flush(state)
    assert "\n" not in str(error.value)
    assert load_state(path).dump() == before
    filler.unlink()
    record(recorder, state, training(range(400, 410)))
    recorder.reopen()
    recorder.flush(state)
    assert load_state(path).steps == list(range(1, 410))
    recorder.close(state)
    assert load_state(path).steps == list(range(1, 410))


def test_memory_for_an_unwritable_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first, and are counted."""
    monkeypatch.setattr(recording, "PENDING_BYTES", 1_000)
    recorder = Recorder(tmp_path / "run.db")
    state = RunState()
    record(recorder, state, (Event(at_ns=at, kind="k", severity="ok", text="x" * 100) for at in range(50)))
    assert 1 <= recorder.pending <= 10
    assert recorder.lost == 50 - recorder.pending
    recorder.close(state)
    assert len(load_state(tmp_path / "run.db").events) == 50  # the snapshot has them all the same


@pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough to be one" * 100])
def test_what_is_no_recording_is_one_line(tmp_path: Path, content: bytes) -> None:
    """Empty, or something else."""
    path = tmp_path / "run.db"
    path.write_bytes(content)
    with pytest.raises(RecordingError) as error:
        load_state(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    with pytest.raises(RecordingError, match="there is no recording"):
        load_state(tmp_path / "other.db")


def test_of_a_damaged_recording_what_can_be_read_is_read(tmp_path: Path) -> None:
    """The snapshots are unreadable and half of the pages are gone: the steps before are there, and an event says so."""
    path = tmp_path / "run.db"
    state, recorder = RunState(), Recorder(path)
    record(recorder, state, training(range(1, 400)))
    recorder.close(state)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE snapshot SET body = x'00'")
        db.commit()
        page = db.execute("PRAGMA page_size").fetchone()[0]
        pages = db.execute("PRAGMA page_count").fetchone()[0]
    with open(path, "r+b") as file:
        for at in range(pages // 2, pages):
            file.seek(at * page)
            file.write(b"\xa5" * page)
    read = load_state(path)
    assert read.steps[:20] == list(range(1, 21))
    assert read.bad_records
    assert read.events[-1].kind == "recording_damaged"
    with open(path, "r+b") as file:
        file.truncate(pages // 3 * page)
    with pytest.raises(RecordingError, match="is damaged") as error:
        load_state(path)
    assert "\n" not in str(error.value)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    """By reader and writer."""
    path = tmp_path / "run.db"
    Recorder(path).close(RunState())
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 7")
    with pytest.raises(RecordingError, match="schema 7"):
        load_state(path)
    with pytest.raises(RecordingError, match="schema 7"):
        Recorder(path)


def test_a_remote_disk_is_recorded_without_wal_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WAL needs memory that all readers share."""
    monkeypatch.setattr(recording, "_remote_file_system", lambda path: "nfs4")
    path = tmp_path / "run.db"
    state, recorder = RunState(), Recorder(path)
    record(recorder, state, training(range(1, 5)))
    recorder.flush(state)
    assert "nfs4" in recorder.notice
    assert not (tmp_path / "run.db-wal").exists()
    assert load_state(path).steps == [1, 2, 3, 4]
    recorder.close(state)


def test_readers_do_not_disturb_the_writer(tmp_path: Path) -> None:
    """A reader that holds the file open while it is written and closed."""
    path = tmp_path / "run.db"
    state, recorder = RunState(), Recorder(path)
    record(recorder, state, training(range(1, 5)))
    recorder.flush(state)
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT COUNT(*) FROM step").fetchone() == (8,)
        record(recorder, state, training(range(5, 9)))
        recorder.flush(state)
        assert reader.execute("SELECT COUNT(*) FROM step").fetchone() == (8,)
        recorder.close(state)
    assert load_state(path).steps == list(range(1, 9))
