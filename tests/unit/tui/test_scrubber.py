"""The line of time: where one is, what is behind, and what happened when."""

from __future__ import annotations

import pytest

from fsdp_tui.tui.theme import ROLES
from fsdp_tui.tui.widgets.chart import row_text
from fsdp_tui.tui.widgets.scrubber import TimeLine, draw_line


def line(at_ns: int | None, *events: tuple[int, str]) -> TimeLine:
    return TimeLine(begin_ns=1_000, end_ns=2_000, at_ns=at_ns, events=events, playing=False, speed=1)


def test_what_is_behind_is_thick_and_what_comes_is_thin() -> None:
    """Ten cells of 100 ns."""
    assert row_text(draw_line(line(1_450), 10)) == "━━━━█─────"
    assert row_text(draw_line(line(1_000), 10)) == "█─────────"
    assert row_text(draw_line(line(2_000), 10)) == "━━━━━━━━━█"
    assert row_text(draw_line(line(None), 10)) == "──────────"
    assert row_text(draw_line(line(5_000), 10)) == "━━━━━━━━━█"  # clocks of two hosts


def test_events_are_marks_by_severity_the_gravest_of_a_cell() -> None:
    """Each has a glyph of its own; one of a newer program reads as a note."""
    events = [(1_050, "ok"), (1_150, "note"), (1_250, "warn"), (1_350, "bad"), (1_750, "new")]
    row = draw_line(line(1_550, *events), 10)
    assert row_text(row) == "✓┴!▲━█─┴──"
    assert all(ink.fg in ROLES for _, ink in row)
    for first, second in (("bad", "note"), ("note", "bad")):
        assert row_text(draw_line(line(1_950, (1_010, first), (1_090, second)), 10)).startswith("▲")
    assert row_text(draw_line(line(1_550, (1_550, "bad")), 10))[5] == "█"


@pytest.mark.parametrize("width", [1, 7, 80])
def test_a_cell_and_its_time_belong_together(width: int) -> None:
    found = line(None)
    for cell in range(width):
        assert found.cell(found.time(cell, width), width) == cell


def test_a_run_of_no_time_is_drawn_too() -> None:
    empty = TimeLine(begin_ns=5, end_ns=5, at_ns=5, events=((5, "bad"),), playing=False, speed=1)
    assert len(row_text(draw_line(empty, 8))) == 8
    assert draw_line(empty, 0) == []
