"""The past of a run: the picture at any step is the one that was there then."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fsdp_tui.telemetry import past, recording
from fsdp_tui.telemetry import state as state_module
from fsdp_tui.telemetry.messages import Beat, Ended, Event, Gauge, Message, encode
from fsdp_tui.telemetry.past import Moment, Past
from fsdp_tui.telemetry.recording import Recorder, RecordingError
from fsdp_tui.telemetry.state import STEP_WINDOW, RunState
from fsdp_tui.telemetry.view import RunView
from tests.unit.telemetry.messages_for_tests import capture, comm, hello, launched, step, structure

STEPS = 1_300
"""Longer than the window of the newest steps, so that the last ones are reached from a waypoint."""


def beginning() -> Iterator[Message]:
    yield launched()
    for rank in (0, 1):
        yield hello(rank)
        yield structure(rank)


def one_step(number: int) -> Iterator[Message]:
    """What two ranks send in a step; the second half of them has a larger peak, and an event every fiftieth."""
    for rank in (0, 1):
        sample = step(rank, number, loss=4.0 / number + rank, step_ns=100 + number % 7)
        yield msgspec.structs.replace(sample, looked_step=number, metrics={"lr": 1 / number})
        yield comm(rank, number, durations=(10 + number % 5, 20, 30 + rank))
        yield Beat(rank=rank, incarnation=1, sent_ns=1_000 * number, step=number, sent=number, dropped=0)
        if number % 10 == 0:
            yield Gauge(rank=rank, taken_ns=number, values={"rss_bytes": number})
    if number % 50 == 0:
        yield Event(at_ns=1_000 * number + 1, kind="note", severity="note", text=f"after step {number}")


def training(steps: int = STEPS) -> Iterator[Message]:
    yield from beginning()
    for number in range(1, steps + 1):
        yield from one_step(number)
    yield Ended(state="finished", ended_ns=1_000 * steps + 500, exit_codes={"0": 0, "1": 0})


def record(path: Path, messages: Iterable[Message], flush_every: int = 40) -> RunState:
    state, recorder = RunState(), Recorder(path)
    for at, message in enumerate(messages, 1):
        state.apply(message)
        recorder.add(message, encode(message), at)
        if at % flush_every == 0:
            recorder.flush(state)
    recorder.close(state)
    return state


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a waypoint about every twenty steps."""
    path = tmp_path_factory.mktemp("past") / "run.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "WAYPOINT_ROWS", 120)
        patch.setattr(recording, "WAYPOINT_SHARE", 0)
        record(path, training())
    return path


@pytest.fixture(scope="module")
def seen() -> dict[int, RunView]:
    """The pictures of a viewer who was there, without heartbeats, which are not kept."""
    state, pictures = RunState(), {}
    for message in beginning():
        state.apply(message)
    for number in range(1, STEPS + 1):
        for message in one_step(number):
            if not isinstance(message, Beat):
                state.apply(message)
        if number in VISITED:
            pictures[number] = state.view()
    return pictures


VISITED = (5, 6, 7, 933, 934, 1_299, 2, 1, 150, STEPS, 940)


def check(moment: Moment, number: int, expected: RunView) -> None:
    """Everything that is on a screen, but for heartbeats and what comes between this step and the next."""
    got = moment.view
    assert (moment.step, moment.ended_ns) == (number, 1_000 * number)
    assert (got.steps, got.state, got.ended) == (number, "running", None)
    for name in ("steps", "loss", "loss_known", "step_ns", "tokens_per_s", "samples_per_s"):
        np.testing.assert_array_equal(getattr(got.series, name), getattr(expected.series, name))
    for name in ("units", "comm", "lateness", "metrics", "phases_ns", "exposed_ns", "step_median_ns", "step_first_ns"):
        assert getattr(got, name) == getattr(expected, name), name
    assert got.events == tuple(event for event in expected.events if event.at_ns < moment.ended_ns)
    for one, other in zip(got.ranks, expected.ranks, strict=True):
        for name in ("memory", "peak", "highest_bytes", "step_ns", "phases_ns", "overhead_ns", "looks", "dropped"):
            assert getattr(one, name) == getattr(other, name), name
    assert [verdict.kind for verdict in got.verdicts] == [verdict.kind for verdict in expected.verdicts]


def test_any_step_looks_as_it_did_then(recorded: Path, seen: dict[int, RunView]) -> None:
    """Whether it is reached from the begin, from a waypoint, from the step before, or from far ahead."""
    with closing(Past(recorded)) as run:
        assert run.bounds() == (1, STEPS)
        for number in VISITED:
            check(run.at(number), number, seen[number])
        assert run.at(940) is run.at(940)  # kept
        assert run.at(STEPS + 5).step == STEPS
        assert run.at(-3).step == 1


def test_a_jump_reads_from_the_nearest_waypoint_on(recorded: Path, tmp_path: Path, seen: dict[int, RunView]) -> None:
    """Of the log before it, which could as well be gone, only collectives and captures."""
    path = tmp_path / "run.db"
    path.write_bytes(recorded.read_bytes())
    with closing(sqlite3.connect(path)) as db:
        ((begin, at),) = db.execute(
            "SELECT log_id, step FROM waypoint WHERE step <= ? ORDER BY log_id DESC LIMIT 1",
            (1_299 - STEP_WINDOW,),
        ).fetchall()
        assert at > 700
        db.execute("DELETE FROM log WHERE kind != 'comm' AND id <= ?", (begin,))
        db.commit()
    with closing(Past(path)) as run:
        check(run.at(1_299), 1_299, seen[1_299])


def test_a_recording_without_waypoints_is_gone_through_from_its_begin(
    recorded: Path, tmp_path: Path, seen: dict[int, RunView]
) -> None:
    """They were not always kept."""
    path = tmp_path / "run.db"
    path.write_bytes(recorded.read_bytes())
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE waypoint")
        db.commit()
    with closing(Past(path)) as run:
        check(run.at(1_299), 1_299, seen[1_299])


def test_waypoints_add_no_more_than_an_eighth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large a state is beside its messages."""
    monkeypatch.setattr(recording, "WAYPOINT_ROWS", 10)
    path = tmp_path / "run.db"
    record(path, training(600), flush_every=10)
    with closing(sqlite3.connect(path)) as db:
        count, kept = db.execute("SELECT COUNT(*), SUM(LENGTH(body)) FROM waypoint").fetchone()
        (written,) = db.execute("SELECT SUM(LENGTH(body)) FROM log").fetchone()
    assert count > 3
    assert kept <= written / recording.WAYPOINT_SHARE * 1.25  # heartbeats and the first one


def test_ranks_that_are_ahead_are_shown_where_the_others_are(tmp_path: Path) -> None:
    """Batches of ranks come one after the other: rank 0's steps are in the log before rank 1's."""
    rows: list[Message] = list(beginning())
    for first in range(1, 60, 6):
        for rank in (0, 1):
            rows += [step(rank, number, loss=float(number + rank)) for number in range(first, first + 6)]
    path = tmp_path / "run.db"
    record(path, rows)
    with closing(Past(path)) as run:
        for number in (20, 21, 22, 40, 3):
            view = run.at(number).view
            assert [rank.steps for rank in view.ranks] == [number, number]
            assert view.series.loss.tolist() == [at + 0.5 for at in range(1, number + 1)]


def test_a_rank_that_died_stays_where_it_was(tmp_path: Path) -> None:
    """The others' last steps can be looked at all the same."""
    rows = [*beginning(), *(step(rank, number) for number in range(1, 9) for rank in (0, 1) if rank == 0 or number < 6)]
    path = tmp_path / "run.db"
    record(path, rows)
    with closing(Past(path)) as run:
        assert [rank.steps for rank in run.at(8).view.ranks] == [8, 5]
        assert [rank.steps for rank in run.at(6).view.ranks] == [6, 5]
        assert [rank.steps for rank in run.at(5).view.ranks] == [5, 5]


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    """What is recorded meanwhile can be gone to; of the newest step, ranks that were not there yet come."""
    path = tmp_path / "run.db"
    state, recorder = RunState(), Recorder(path)

    def write(messages: Iterable[Message]) -> None:
        for message in messages:
            state.apply(message)
            recorder.add(message, encode(message), 1)
        recorder.flush(state)

    write(beginning())
    with closing(Past(path)) as run:
        assert run.bounds() is None
        with pytest.raises(RecordingError, match="no step yet"):
            run.at(1)
        write([*one_step(1), step(0, 2)])
        assert [rank.steps for rank in run.at(2).view.ranks] == [2, 1]
        write([step(1, 2), *one_step(3)])
        assert [rank.steps for rank in run.at(2).view.ranks] == [2, 2]
        assert [rank.steps for rank in run.at(3).view.ranks] == [3, 3]
        assert run.at(1).view.steps == 1
        assert run.bounds() == (1, 3)
    recorder.close(state)


def test_captures_are_there_from_their_step_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when they lie before the waypoint."""
    monkeypatch.setattr(recording, "WAYPOINT_ROWS", 120)
    monkeypatch.setattr(state_module, "STEP_ROWS", 2 * state_module.LEAST_STEP_WINDOW)
    rows: list[Message] = list(beginning())
    for number in range(1, 401):
        rows += one_step(number)
        if number == 50:
            rows += [capture(rank, 50, id="early") for rank in (0, 1)]
    path = tmp_path / "run.db"
    record(path, rows)
    with closing(Past(path)) as run:
        assert [one.id for rank in run.at(395).view.ranks for one in rank.captures] == ["early", "early"]
        assert not run.at(49).view.ranks[0].captures
        assert run.at(51).view.ranks[1].captures[0].step == 50


def test_times_lead_to_steps(tmp_path: Path) -> None:
    """Step n ends at 1,000 n; steps 5 to 7 are missing."""
    rows = [*beginning(), *(step(rank, number) for number in (1, 2, 3, 4, 8, 9) for rank in (0, 1))]
    path = tmp_path / "run.db"
    record(path, rows)
    with closing(Past(path)) as run:
        for at_ns, before, after in (
            (0, 1, 1),
            (1_000, 1, 1),
            (1_001, 1, 2),
            (3_999, 3, 4),
            (4_000, 4, 4),
            (4_001, 4, 8),
            (7_999, 4, 8),
            (9_000, 9, 9),
            (99_000, 9, 9),
        ):
            assert (run.step_at(at_ns), run.step_at(at_ns, after=True)) == (before, after), at_ns
        assert (run.nearest(6), run.nearest(0), run.nearest(100)) == (4, 1, 9)
        assert run.at(6).step == 4


def test_what_cannot_be_read_is_one_line(tmp_path: Path, recorded: Path) -> None:
    with pytest.raises(RecordingError, match="there is no recording"):
        Past(tmp_path / "none.db")
    path = tmp_path / "run.db"
    path.write_bytes(b"no database at all, but long enough to be read as one" * 40)
    with pytest.raises(RecordingError, match="damaged"):
        Past(path)
    path.write_bytes(recorded.read_bytes())
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE waypoint SET body = x'00'")
        db.commit()
    with closing(Past(path)) as run:
        with pytest.raises(RecordingError, match="damaged"):
            run.at(1_299)
        assert run.at(3).step == 3


def test_steps_back_are_made_on_one_way(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going back step by step reads the log once for some of them, and each is the one that was asked for."""
    begun = 0
    begin = Past._begin_from

    def counted(run: Past, waypoint: tuple[int, bytes] | None) -> object:
        nonlocal begun
        begun += 1
        return begin(run, waypoint)

    monkeypatch.setattr(Past, "_begin_from", counted)
    with closing(Past(recorded)) as run:
        for number in range(1_250, 1_250 - 3 * past.BACKWARDS, -1):
            moment = run.at(number)
            assert (moment.step, moment.view.steps, moment.view.series.steps[-1]) == (number, number, number)
    assert begun == 4
