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
from fsdp_tui.tui.comparison import FOOTNOTE, as_markdown, as_svg, as_text, names, run_bars
from fsdp_tui.tui.screens.compare import agreement, draw_trends, number_columns, write_verdict
from fsdp_tui.tui.tables import column_name, memory_table, progress
from fsdp_tui.tui.widgets.chart import row_text
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


BACK = a_run(3.0, NAN, 1.0, 0.5, strategy="ddp")


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([GOOD, GOOD], "✓ losses agree"),
        ([LOST, GOOD], "✗ losses differ"),
        ([GOOD, LOST], "✗ losses differ"),
        ([LOST, LOST], "✗ losses are no numbers any more"),
        ([LOST, a_run(3.0, 2.0)], "✗ losses are no numbers any more"),
        ([BACK, BACK], "! losses agree where they are numbers"),
        ([GOOD, a_run(None, None)], "· losses cannot be compared"),
        ([GOOD, a_run(None, None, ended=False)], "· losses cannot be compared yet"),
        ([LOST, a_run(None, None)], "✗ losses are no numbers any more"),
    ],
    ids=["same", "lost", "lost second", "both lost", "short", "back", "none", "none yet", "lost and none"],
)
def test_losses_are_said_in_one_way_everywhere(runs: Sequence[RunView], said: str) -> None:
    """The status line says how the sentence of the pane and of every format begins, with its mark: no ✗ beside "agree"."""
    assert agreement(runs)[0][0] == said
    assert f"\n{said}: " in as_text(runs)
    assert f"\n- {said}: " in as_markdown(runs)
    pane = [row_text(row) for row in write_verdict(runs, 0, 300)]
    assert sum(line.startswith(f"{said}: ") for line in pane) == 1
    assert sum("losses" in line for line in pane) == 1


def test_what_is_left_out_has_no_star() -> None:
    """LOST is a hundred times as small and fast."""
    assert "*" not in as_text([LOST, GOOD]).partition(FOOTNOTE)[0]
    assert "**" not in as_markdown([LOST, GOOD]).partition("**best of its row**")[0]
    for shown in number_columns([LOST, GOOD], 0, True, 200)[1:]:
        assert not any("*" in cell[0] for cell in shown.cells)


def test_what_is_as_good_as_the_best_has_a_star_too() -> None:
    """Two of three keep the same, in text, Markdown and on the screen."""
    runs = [GOOD, a_run(3.0, strategy="ddp", ns=2000), a_run(3.0, strategy="fsdp2:shard_grad_op", ns=1001)]
    row = next(line for line in as_text(runs).splitlines() if line.startswith("peak per rank"))
    assert [after.startswith(" *") for after in row.split("B")[1:]] == [True, False, True]
    row = next(line for line in as_markdown(runs).splitlines() if line.startswith("| peak per rank"))
    assert [cell.strip().startswith("**") for cell in row.split("|")[2:5]] == [True, False, True]
    at = list(number_columns(runs, 0, False, 200)[0].cells).index("peak")
    assert ["*" in one.cells[at][0] for one in number_columns(runs, 0, False, 200)[1:]] == [True, False, True]


def test_peaks_are_the_highest_so_far() -> None:
    """A run whose newest step looked at peaked at 930 bytes, and an earlier one at 1,000: in bars, numbers, every format."""
    state = RunState()
    state.apply(launched(1, "ddp"))
    for number, nbytes in enumerate((900, 990, 930), 1):
        state.apply(
            step(0, number, memory=column(param_shard=800), peak=column(param_shard=800, activation=nbytes - 800))
        )
    run = state.view()
    bars = run_bars([run, run], None)
    assert (bars.peak.tolist(), bars.total.tolist()) == ([990, 990], [930, 930])
    assert next(list(one.values) for one in bars.columns if one.title == "peak") == [990, 990]
    row = next(line for line in as_text([run, run]).splitlines() if line.startswith("peak per rank"))
    assert row.split()[3:] == ["990", "B", "990", "B"]
    assert "| peak per rank | 990 B | 990 B |" in as_markdown([run, run])
    assert "peak 0.97  states 0.78" in as_svg([run, run])
    assert "peak 990 B" in progress(run)
    header, cells = memory_table(run.ranks).splitlines()
    assert header.endswith("total  peak so far")
    assert cells.split()[-4:] == ["800", "B", "990", "B"]


def test_one_step_time_everywhere() -> None:
    """600 steps that get slower: the median is of the newest 512, 344.5 us, in the numbers and beside the line of all steps."""
    state = RunState()
    state.apply(launched(1, "ddp"))
    for number in range(1, 601):
        state.apply(step(0, number, step_ns=number * 1_000))
    run = state.view()
    assert run.step_median_ns == 344_500
    for said in (as_text([run, run]), row_text(draw_trends([run, run], 80, 5)[0])):
        assert "344 us" in said
    assert row_text(draw_trends([run, run], 80, 5)[0]).rstrip().endswith("344 us ± 128 us")


def test_runs_of_one_name_are_told_apart() -> None:
    header, *lines = as_text([GOOD, GOOD]).splitlines()
    name = column_name(GOOD)
    assert [part.strip() for part in header.split("  ") if part] == [f"1 {name}", f"2 {name}"]
    about = [line[2:].split(" against theory")[0] for line in lines if "against theory" in line]
    assert about == [f"1 {name}", f"2 {name}"]
