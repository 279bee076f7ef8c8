"""A comparison as text, Markdown and SVG: what it says of runs whose losses are no numbers, that have none, that are alike."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

import msgspec
import pytest

from fsdp_tui.telemetry import sheets
from fsdp_tui.telemetry.messages import Ended
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui.comparison import as_markdown, as_svg, as_text, names
from fsdp_tui.tui.screens.compare import agreement
from fsdp_tui.tui.tables import column_name
from tests.unit.telemetry.messages_for_tests import column, launched, step, structure

NAN = float("nan")


def a_run(*losses: float | None, strategy: str = "ddp", ended: bool = True, ns: int = 10) -> RunView:
    state = RunState()
    state.apply(launched(1, strategy))
    state.apply(structure(0, effective=strategy))
    for number, loss in enumerate(losses, 1):
        memory = column(param_shard=ns)
        state.apply(msgspec.structs.replace(step(0, number, loss=loss, memory=memory, peak=memory), step_ns=ns))
    if ended:
        state.apply(Ended(state="finished", ended_ns=9, exit_codes={"0": 0}))
    return state.view()


LOST = a_run(3.0, 2.0, NAN, NAN)
GOOD = a_run(3.0, 2.0, 1.0, 0.5, strategy="fsdp2:full_shard", ns=1000)


@pytest.mark.parametrize("write", [as_text, as_markdown, as_svg], ids=["text", "md", "svg"])
def test_a_lost_loss_is_said_and_recommends_nothing(write: Callable[[Sequence[RunView]], str]) -> None:
    """LOST is a hundred times as fast and as small."""
    said = " ".join(write([LOST, GOOD]).replace("</text>", " ").split())
    assert "losses differ: " in said
    assert "has no number (nan) from step 3 on" in said.replace("\\", "")
    assert "is left out: its loss is no number" in said.replace("\\", "")
    assert "fastest" not in said
    assert "losses agree" not in said


def test_a_measured_nan_is_nan_in_every_table() -> None:
    row = next(line for line in as_text([LOST, GOOD]).splitlines() if line.startswith("last loss"))
    assert row.split() == ["last", "loss", "nan", "0.500"]
    assert "| last loss | nan | 0.500 |" in as_markdown([LOST, GOOD])
    assert ">nan  <" in as_svg([LOST, GOOD])
    file = io.StringIO()
    sheets.write(sheets.comparison([LOST, GOOD], names([LOST, GOOD])), file)
    assert {row[0]: row[2:4] for row in csv.reader(file.getvalue().splitlines())}["loss"] == ["nan", "0.5"]


def test_the_screen_says_so_too() -> None:
    assert agreement([LOST, GOOD])[0][0] == "▲ losses differ (nan)"
    assert agreement([GOOD, GOOD])[0][0] == "✓ losses agree"


@pytest.mark.parametrize(("ended", "word"), [(True, "cannot be compared"), (False, "cannot be compared yet")])
def test_yet_is_for_runs_that_go_on(ended: bool, word: str) -> None:
    runs = [GOOD, a_run(None, None, ended=ended)]
    assert f"losses {word}: no step has a number in all runs" in as_text(runs)
    assert agreement(runs)[0][0] == f"? losses {word}"


def test_runs_of_one_name_are_told_apart() -> None:
    header, *lines = as_text([GOOD, GOOD]).splitlines()
    name = column_name(GOOD)
    assert [part.strip() for part in header.split("  ") if part] == [f"1 {name}", f"2 {name}"]
    about = [line[2:].split(" against theory")[0] for line in lines if "against theory" in line]
    assert about == [f"1 {name}", f"2 {name}"]
