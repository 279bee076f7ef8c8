"""All steps of a recording as CSV: each figure against the message that it came in."""

from __future__ import annotations

import csv
import io
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from fsdp_tui.telemetry import sheets
from fsdp_tui.telemetry.messages import CATEGORIES, PHASES, Message, encode
from fsdp_tui.telemetry.recording import Recorder, RecordingError
from fsdp_tui.telemetry.state import RunState
from tests.unit.telemetry.messages_for_tests import column, hello, launched, step, structure


def record(path: Path, messages: list[Message]) -> None:
    state, recorder = RunState(), Recorder(path)
    for message in messages:
        state.apply(message)
        recorder.add(message, encode(message), 1)
    recorder.close(state)


def read(path: Path, *ranks: int) -> list[dict[str, str]]:
    body = io.StringIO(newline="")
    sheets.write(sheets.steps(path, ranks), body)
    body.seek(0)
    return list(csv.DictReader(body))


def test_every_step_of_every_rank_in_their_order(tmp_path: Path) -> None:
    """However the ranks' messages came in; what is not known is empty, and a lost loss is not."""
    own = column(param_shard=300, optimizer=600, cache=None)
    steps = [
        msgspec.structs.replace(
            step(rank, number, loss=None if number == 2 else math.nan if number == 3 else number / 3, memory=own),
            metrics={"lr": 0.5 / number} if rank else {},
            samples=8,
        )
        for rank in (1, 0)
        for number in (3, 1, 2)
    ]
    path = tmp_path / "run.db"
    record(path, [launched(), *(message for rank in (0, 1) for message in (hello(rank), structure(rank))), *steps])
    rows = read(path)
    assert [(row["step"], row["rank"]) for row in rows] == [(str(at), str(rank)) for at in (1, 2, 3) for rank in (0, 1)]
    for row in rows:
        sent = next(one for one in steps if (str(one.step), str(one.rank)) == (row["step"], row["rank"]))
        assert [row[f"memory_{name}_bytes"] for name in (*CATEGORIES, "total")] == [
            "" if value is None else str(value) for value in sent.memory
        ]
        assert [row[f"{name}_ns"] for name in PHASES] == ["", "40", "50", "5", "5", ""]
        assert row["loss"] == {1: repr(1 / 3), 2: "", 3: "nan"}[sent.step]
        assert row["logged_lr"] == (repr(0.5 / sent.step) if sent.rank else "")
        assert (row["step_ns"], row["tokens"], row["samples"], row["probes_ns"]) == ("100", "1000", "8", "3")
        assert (row["peak_phase"], row["peak_unit"], row["ended_ns"]) == (
            "backward",
            "blocks.0",
            str(1_000 * sent.step),
        )
    assert [row["rank"] for row in read(path, 1)] == ["1", "1", "1"]
    assert read(path, 7) == []


def test_a_step_that_was_trained_again_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    record(path, [launched(nproc=1), hello(0, 1), step(0, 1), step(0, 2, loss=9.0), step(0, 2, loss=1.0), step(0, 3)])
    assert [(row["step"], row["loss"]) for row in read(path)] == [("1", "2.0"), ("2", "1.0"), ("3", "2.0")]


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="there is no recording"):
        sheets.steps(tmp_path / "none.db")
    path = tmp_path / "run.db"
    record(path, [launched(nproc=1), hello(0, 1), step(0, 1), step(0, 2)])
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE log SET body = x'00' WHERE kind = 'step' AND step = 1")
        db.commit()
    assert [row["step"] for row in read(path)] == ["2"]
