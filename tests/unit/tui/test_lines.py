"""Braille line charts: positions worked out by hand, spikes kept, gaps marked."""

import itertools

import numpy as np
import pytest

from fsdp_tui.tui.format import ONES, Unit
from fsdp_tui.tui.widgets.chart import Row, row_text
from fsdp_tui.tui.widgets.lines import Plot, Series, column_ranges, draw_lines, rolling_mean, ticks

X = np.arange(1.0, 101.0)


def dots(rows: list[Row]) -> set[tuple[int, int]]:
    """(column, row) of every braille dot."""
    order = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
    found = set()
    for y, row in enumerate(rows):
        for x, char in enumerate(row_text(row)):
            if 0x2800 <= ord(char) <= 0x28FF:
                found |= {(2 * x + c, 4 * y + r) for bit, (c, r) in enumerate(order) if ord(char) - 0x2800 >> bit & 1}
    return found


def test_a_diagonal_is_a_diagonal() -> None:
    # 4 x 2 cells are 8 x 8 dots; without labels (too narrow) the line y = x fills the rising diagonal.
    rows = draw_lines(
        Plot(series=[Series(np.array([0.0, 1.0]), np.array([0.0, 1.0]))], y_units=[Unit("wide", 1)]), 4, 2
    )
    assert [len(row_text(row)) for row in rows] == [4, 4]
    found = dots(rows)
    for column in range(8):
        heights = [7 - r for c, r in found if c == column]
        # In column c the line runs from 7c/8 to 7(c+1)/8 dots above the bottom.
        assert min(heights) == pytest.approx(7 * column / 8, abs=0.5)
        assert max(heights) == pytest.approx(7 * (column + 1) / 8, abs=0.5)


def test_a_single_spike_in_a_million_is_seen() -> None:
    y = np.zeros(1_000_000)
    y[777_777] = 5.0
    lo, hi = column_ranges(np.arange(1e6), y, 0, 1e6, 100)
    assert np.flatnonzero(hi == 5).tolist() == [77]
    assert (lo == 0).all()


def test_ranges_are_the_minimum_and_maximum_of_the_line() -> None:
    rng = np.random.default_rng(3)
    for n, columns in itertools.product((1, 2, 3, 17, 400), (1, 2, 9, 120)):
        x = np.sort(rng.uniform(0, 10, n))
        y = rng.normal(size=n)
        lo, hi = column_ranges(x, y, float(x[0]), float(x[-1]) + 1e-9, columns)
        assert np.nanmin(lo) == y.min()
        assert np.nanmax(hi) == y.max()
        assert not (np.isnan(lo) != np.isnan(hi)).any()
        assert n == 1 or not np.isnan(lo).any()  # no gap in the data, no gap in the line


def test_a_gap_is_left_open_and_marked() -> None:
    y = np.ones(100)
    y[40:60] = np.nan
    y[80] = np.inf
    rows = draw_lines(Plot(series=[Series(X, y)]), 60, 6)
    lo, _ = column_ranges(X, np.where(np.isfinite(y), y, np.nan), 1, 100, 100)
    assert np.isnan(lo[41:59]).all()
    assert not np.isnan(lo[:40]).any()
    bottom = row_text(rows[-2])
    assert bottom.count("×") >= 12
    assert "┈" not in bottom
    known = np.isfinite(y)
    rows = draw_lines(Plot(series=[Series(X, y, known=known)]), 60, 6)
    assert "×" not in row_text(rows[-2])
    assert row_text(rows[-2]).count("┈") >= 12


def test_a_log_axis_has_equal_steps_per_decade() -> None:
    y = 10.0 ** np.linspace(0, 2, 100)
    plot = Plot(series=[Series(X, y)], log=True)
    rows = draw_lines(plot, 50, 12)
    linear = draw_lines(Plot(series=[Series(X, np.linspace(0, 2, 100))], y_units=[Unit("xx", 1)]), 50, 12)
    assert dots(rows) == dots(linear)
    text = [row_text(row).split("┤")[0].strip() for row in rows if "┤" in row_text(row)]
    assert text == ["100", "10", "1"]


@pytest.mark.parametrize(("low", "high"), [(19_401, 20_600), (19_990, 20_010), (950, 1_050), (0.0, 3e6)])
@pytest.mark.parametrize("height", [4, 5, 9, 12])
def test_an_axis_has_two_numbers_that_differ(low: float, high: float, height: int) -> None:
    """One alone would not say what the scale is."""
    rows = draw_lines(Plot(series=[Series(X, np.linspace(low, high, 100))], y_units=ONES), 50, height)
    text = [row_text(row).split("┤")[0].strip() for row in rows if "┤" in row_text(row)]
    values = [float(label.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(label[-1], 1) for label in text]
    assert len(set(values)) >= 2
    assert all(low <= value <= high for value in values)
    assert values == sorted(values, reverse=True)


def test_a_log_axis_within_a_decade_has_plain_numbers() -> None:
    rows = draw_lines(Plot(series=[Series(X, np.linspace(2, 4, 100))], log=True), 50, 12)
    assert [row_text(row).split("┤")[0].strip() for row in rows if "┤" in row_text(row)] == ["4", "3", "2"]


def test_what_a_log_axis_cannot_show_is_marked() -> None:
    rows = draw_lines(Plot(series=[Series(X, np.where(X == 50, 0.0, X))], log=True), 60, 6)
    assert "×" in row_text(rows[-2])


def test_the_rolling_mean_leaves_out_what_is_not_finite() -> None:
    y = np.array([1.0, 2.0, 3.0, np.nan, 5.0])
    assert rolling_mean(y, 1) is y
    np.testing.assert_allclose(rolling_mean(y, 2), [1, 1.5, 2.5, np.nan, 5])


def test_smoothing_keeps_the_raw_band_behind_it() -> None:
    y = np.where(X % 2 == 0, 1.0, 3.0)
    rows = draw_lines(Plot(series=[Series(X, y, smooth=50)]), 60, 8)
    inks = {ink.fg for row in rows for text, ink in row if any(0x2800 < ord(c) <= 0x28FF for c in text)}
    assert inks == {"raw", "series-1"}


def test_ticks_are_round_and_inside() -> None:
    assert ticks(2, 11, 3) == [5, 10]
    assert ticks(0, 1, 5) == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    for low, high, most in itertools.product((-3.7, 0, 1e-6), (1.3e-5, 9, 4.2e7), (1, 2, 4, 9)):
        found = ticks(low, high, most)
        assert len(found) <= most
        assert all(low - 1e-8 * (high - low) <= t <= high + 1e-8 * (high - low) for t in found)


def test_a_window_shows_only_its_part() -> None:
    rows = draw_lines(Plot(series=[Series(X, X)], window=(50, np.inf)), 60, 9)
    labels = row_text(rows[-1]).split()
    assert all(50 <= int(label) <= 100 for label in labels)
    assert labels


def test_several_lines_are_named_and_what_does_not_fit_is_counted() -> None:
    series = [Series(X, X * i, f"strategy-{i}") for i in range(1, 7)]
    assert "+" not in row_text(draw_lines(Plot(series=series), 100, 8)[0])
    assert row_text(draw_lines(Plot(series=series), 36, 8)[0]).split()[-1] == "+4"


def test_an_event_is_marked_on_the_axis() -> None:
    rows = draw_lines(Plot(series=[Series(X, X)], marks=[(1, "▲", "bad"), (100, "◆", "note")]), 40, 9)
    assert row_text(rows[-2]).split("└")[1][0] == "▲"
    assert row_text(rows[-2])[-1] == "◆"


def test_any_data_in_any_space() -> None:
    odd = [
        Plot(),
        Plot(series=[Series(np.empty(0), np.empty(0))]),
        Plot(series=[Series(np.array([3.0]), np.array([2.0]))]),
        Plot(series=[Series(X, np.full(100, np.nan))]),
        Plot(series=[Series(X, np.full(100, np.nan), smooth=5)], log=True),
        Plot(series=[Series(X, np.full(100, 7.0), smooth=5)], log=True),
        Plot(series=[Series(X, np.full(100, -1e300)), Series(X, np.full(100, 1e300))]),
        Plot(series=[Series(np.full(9, 4.0), np.arange(9.0))]),
        Plot(series=[Series(X, X)], window=(500, 600)),
        Plot(series=[Series(X, X * 1e-30, "a"), Series(X, X * 1e-30, "b")], from_zero=True),
    ]
    for plot, width, height in itertools.product(odd, (1, 2, 7, 20, 58, 300), (1, 2, 3, 4, 7, 10, 80)):
        rows = draw_lines(plot, width, height)
        assert 1 <= len(rows) <= height
        assert {len(row_text(row)) for row in rows} == {width}


def test_letters_double_the_colours_of_several_lines() -> None:
    plot = Plot(series=[Series(X, np.full(100, 1.0), "ddp"), Series(X, np.full(100, 3.0), "zero3")])
    text = [row_text(row) for row in draw_lines(plot, 60, 9, letters=True)]
    assert text[0].split() == ["a", "ddp", "b", "zero3"]
    assert [line.count("b") > 1 and "a" not in line for line in text[1:-2]] == [True] + [False] * 5
    assert text[-3].count("a") > 1
    assert not any(c in row_text(row) for row in draw_lines(plot, 60, 9)[1:] for c in "ab")
