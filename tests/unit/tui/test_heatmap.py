"""The map of rows by columns: what is drawn against the numbers that it was made of."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from numpy.typing import NDArray

from fsdp_tui.tui.theme import HEAT_GLYPHS
from fsdp_tui.tui.widgets.chart import row_text
from fsdp_tui.tui.widgets.heat import heat_scale, scale_key
from fsdp_tui.tui.widgets.heatmap import Floats, HeatMap, MapLayout, column_ticks, draw_map, fold, lay_out, worst_of


def made(
    cells: Floats,
    *,
    cursor: tuple[int, int] | None = None,
    absent: NDArray[np.bool_] | None = None,
    falling: bool = False,
) -> HeatMap:
    n, m = cells.shape
    known = np.where(np.isfinite(cells), cells, 0.0)
    return HeatMap(
        cells=cells,
        absent=np.zeros(cells.shape, dtype=bool) if absent is None else absent,
        rows=[str(at) for at in range(n)],
        columns=["<root>", *(f"layers.{at}" for at in range(m - 1))][:m],
        scale=heat_scale(cells, falling=falling),
        text=lambda value: f"{value:.1f}",
        unit="ms",
        sums=known.sum(axis=1),
        sums_text=lambda value: f"{value:.1f}",
        sums_title="Σ ms",
        foot=known.max(axis=0) if n else np.zeros(m),
        foot_title="max",
        flags=["warn" if at == n // 2 else "" for at in range(n)],
        cursor=cursor,
        empty="nothing here",
    )


def text_of(chart: HeatMap, plan: MapLayout, *, letters: bool = True) -> list[str]:
    return [row_text(row) for row in draw_map(chart, plan, letters=letters)]


def drawn(chart: HeatMap, width: int, height: int, *, letters: bool = True, each: bool = False) -> list[str]:
    return text_of(chart, lay_out(chart, width, height, letters=letters, each=each), letters=letters)


@pytest.mark.parametrize(
    ("values", "edges"),
    [
        ([0.0, 10.0], (0.1, 0.2, 0.5, 1, 2, 5, 10)),
        ([0.001, 3.0], (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)),
        ([2.0, 9.0], (3, 4, 5, 6, 7, 8, 9)),
        ([0.0, 0.0], (1, 2, 3, 4, 5, 6, 7)),
        ([np.nan], (1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_scales_have_round_edges(values: list[float], edges: tuple[float, ...]) -> None:
    """1, 2, 5, 10 ... where values differ much, even steps where they lie close together."""
    assert heat_scale(np.array(values)).edges == pytest.approx(edges)


def test_the_highest_value_has_the_highest_level_of_a_wide_scale() -> None:
    """Else nothing would shine."""
    for high in (1e-3, 0.7, 1, 1.9, 4.99, 5, 300, 1e9):
        values = np.array([0.0, high])
        assert heat_scale(values).levels(values).tolist() == [0, 7], high


def test_noise_does_not_shine() -> None:
    """Below `least` the highest level is not reached."""
    values = np.array([0.001, 0.02])
    assert heat_scale(values, least=1.0).levels(values).max() < 4


def test_of_bandwidth_the_lowest_shines() -> None:
    """And its key begins with what is fast."""
    values = np.array([np.nan, 2.0, 9.0])
    scale = heat_scale(values, falling=True)
    assert scale.levels(values).tolist() == [-1, 7, 0]
    words = "".join(text for text, _ in scale_key(scale, lambda v: f"{v:g}", "GiB/s", 80, letters=True))
    assert words.index("8") < words.index("3")


def test_the_key_says_where_each_glyph_begins() -> None:
    """Levels that share a glyph share its place."""
    scale = heat_scale(np.array([0.0, 10.0]))
    words = "".join(text for text, _ in scale_key(scale, lambda v: f"{v:g}", "ms", 80, letters=True))
    assert words == "·· 0.2 ░░ 1 ▒▒ 5 ▓▓ 10 ██ ms"
    short = "".join(text for text, _ in scale_key(scale, lambda v: f"{v:g}", "ms", 20, letters=True))
    assert short == "<0.1 ··░░▒▒▓█ ≥10 ms"


def test_in_any_space() -> None:
    """Never wider, never taller, never an exception; the same in colours and letters."""
    chance = np.random.default_rng(1)
    sizes = [(1, 1), (2, 5), (8, 33), (64, 80), (256, 9), (1024, 4), (3, 200)]
    for (n, m), width, height in itertools.product(sizes, (1, 7, 20, 58, 118, 298), (1, 2, 4, 5, 9, 24)):
        cells = chance.exponential(1.0, (n, m))
        cells[chance.random((n, m)) < 0.1] = np.nan
        chart = made(cells, cursor=(n - 1, m - 1))
        for letters, each in itertools.product((True, False), repeat=2):
            plan = lay_out(chart, width, height, letters=letters, each=each)
            rows = text_of(chart, plan, letters=letters)
            assert 1 <= len(rows) <= height, (n, m, width, height, letters, each)
            assert {len(row) for row in rows} == {width}, (n, m, width, height, letters, each)


def test_nothing_to_draw_says_so() -> None:
    """No rows, or no columns."""
    assert drawn(made(np.empty((0, 3))), 20, 5) == ["nothing here        "]


@pytest.mark.parametrize(("n", "m", "width", "height"), [(2, 4, 76, 12), (8, 12, 118, 12), (64, 12, 198, 60)])
def test_numbers_are_in_the_cells_where_they_fit(n: int, m: int, width: int, height: int) -> None:
    """Row by row those of the map, and below them the foot's."""
    cells = np.round(np.random.default_rng(2).uniform(1, 9, (n, m)), 1)
    chart = made(cells)
    plan = lay_out(chart, width, height, letters=False)
    assert plan.gap
    rows = text_of(chart, plan, letters=False)
    for at in range(n):
        block, line = divmod(at, plan.per_block)
        tall = 1 + line * plan.tall + (plan.tall - 1) // 2
        begin = block * (plan.block + 2)
        part = rows[tall][begin : begin + plan.block]
        assert re.findall(r"\d+\.\d", part)[:m] == [f"{value:.1f}" for value in cells[at]]
        assert part.split()[0].rstrip("▸") == str(at)
        assert f"{cells[at].sum():.1f}" in part


def test_every_row_has_a_cell_or_shares_one_with_the_worst() -> None:
    """One value of a thousand stands out: it is there, whatever the space."""
    for (n, m), width, height in itertools.product(((64, 80), (1024, 4), (1024, 80)), (58, 78, 118), (9, 14, 24)):
        for row, column in ((0, 0), (n - 1, m - 1), (n // 2, m // 3)):
            cells = np.full((n, m), 0.01)
            cells[row, column] = 100.0
            chart = made(cells)
            plan = lay_out(chart, width, height, letters=True)
            text = text_of(chart, plan)[1 : 1 + plan.lines]
            assert "".join(text).count("█") >= plan.cell - plan.gap
            places = [(x, y) for y, line in enumerate(text) for x, glyph in enumerate(line) if glyph == "█"]
            groups = [plan.group_at(x, y + 1) for x, y in places if plan.group_at(x, y + 1)]
            assert {worst_of(chart, plan, group) for group in groups if group} == {(row, column)}


def test_half_cells_show_two_rows_in_a_line() -> None:
    """The upper one in the ink, the lower one behind it."""
    cells = np.tile(np.array([[0.0, 10.0]]), (20, 1))
    cells[1::2] = cells[1::2, ::-1]
    plan = lay_out(made(cells), 12, 13, letters=False)
    assert plan.half
    assert plan.share_rows == 1
    row = draw_map(made(cells), plan)[1]
    left, right = [(text, ink) for text, ink in row if "▀" in text]
    assert (left[1].fg, left[1].bg) == ("heat-0", "heat-7")
    assert (right[1].fg, right[1].bg) == ("heat-7", "heat-0")


def test_what_is_not_known_is_hatched_and_what_is_not_there_is_empty() -> None:
    """Neither is the lowest value, in any density and both looks."""
    cells = np.array([[2.0, np.nan, np.nan], [9.0, 2.0, 2.0]])
    absent = np.array([[False, False, True], [False, False, False]])
    chart = made(cells, absent=absent)
    wide = drawn(chart, 60, 8)
    assert "–" in wide[1] + wide[2]
    assert "╱" in wide[1]
    assert "╱ not known" in wide[-1]
    narrow = lay_out(chart, 9, 5, letters=True)
    assert text_of(chart, narrow)[1][5:8] == "·╱ "
    half = lay_out(made(np.tile(cells, (6, 1)), absent=np.tile(absent, (6, 1))), 9, 8, letters=False)
    row = draw_map(made(np.tile(cells, (6, 1)), absent=np.tile(absent, (6, 1))), half)[1]
    looks = [(text, ink) for text, ink in row if text in "▀▄╱"]
    assert [text for text, _ in looks] == ["▀", "╱", "▄"]
    assert looks[1][1].bg.startswith("heat-")  # hatched on what is known of the pair
    assert looks[2][1].bg == ""


def test_letters_double_every_colour() -> None:
    """Rising levels have rising glyphs."""
    values = np.array([[0.01, 0.15, 0.3, 0.7, 1.5, 3.0, 7.0, 10.0]])
    chart = made(values)
    plan = lay_out(chart, 14, 5, letters=True)
    assert text_of(chart, plan)[1][5:13] == "".join(HEAT_GLYPHS)


def test_the_cursor_is_seen_in_every_density() -> None:
    """In brackets around a number, as a lozenge, or as a pointer into half a cell; and the column has its name."""
    cells = np.random.default_rng(3).uniform(1, 9, (30, 40))
    assert "[" in "".join(drawn(made(cells[:2, :4], cursor=(1, 2)), 76, 10))
    small = drawn(made(cells, cursor=(20, 33)), 58, 34)
    assert sum("◆" in line for line in small) == 1
    assert "32" in small[0]
    row = next(line for line in small if "◆" in line)
    assert row[4] == "▸"
    for at, glyph in ((20, "▴"), (21, "▾")):
        half = drawn(made(cells, cursor=(at, 5)), 58, 20, letters=False)
        assert sum(glyph in line for line in half) == 1


def test_each_has_a_cell_of_its_own_and_the_cursor_stays_in_view() -> None:
    """What is out of view is said."""
    cells = np.arange(64 * 80, dtype=float).reshape(64, 80)
    for row, column in ((0, 0), (63, 79), (30, 40)):
        chart = made(cells, cursor=(row, column))
        plan = lay_out(chart, 58, 14, letters=True, each=True, corner=(10, 10))
        assert (plan.share_rows, plan.share_columns) == (1, 1)
        assert plan.first_row <= row < plan.first_row + plan.shown_rows
        assert plan.first_column <= column < plan.first_column + plan.shown_columns
        text = text_of(chart, plan)
        assert f"{plan.first_row + 1}–{plan.first_row + plan.shown_rows} of 64" in text[-1]
        assert any("◆" in line for line in text)


def test_clicks_meet_what_is_drawn() -> None:
    """The cell under a place is the one whose group is drawn there, in blocks side by side too."""
    for (n, m), width, height, letters in itertools.product(
        ((2, 5), (64, 12), (1024, 4)), (78, 198), (12, 40), (True, False)
    ):
        for row, column in ((0, 0), (n - 1, m - 1), (n // 3, m // 2)):
            chart = made(np.ones((n, m)), cursor=(row, column))
            plan = lay_out(chart, width, height, letters=letters)
            text = text_of(chart, plan, letters=letters)
            marks = [(x, y) for y, line in enumerate(text) for x, glyph in enumerate(line) if glyph in "◆▴▾["]
            assert marks, (n, m, width, height, letters)
            for x, y in marks:
                group = plan.group_at(x, y)
                assert group is not None
                if plan.half:  # which half was meant cannot be told: the upper one
                    group = (group[0] + (text[y][x] == "▾"), group[1])
                assert group == (row // plan.share_rows, column // plan.share_columns)


@pytest.mark.parametrize(
    ("names", "cell", "text"),
    [
        (["a", "b"], 6, "  a     b   "),
        ([f"layers.{at}" for at in range(12)], 1, "layers.0  10"),
        (["<root>", *(f"blocks.{at}" for at in range(23))], 1, "<root>     blocks.10 20 "),
        ([f"layers.{at}" for at in range(6)], 4, "layers.0 2   3   4   5  "),
        (["embed", "layers.0", "norm"], 1, "   "),
    ],
)
def test_columns_are_named_where_there_is_room(names: list[str], cell: int, text: str) -> None:
    """All of them, or round numbers after one that is written out."""
    width = cell * len(names)
    line = [" "] * width
    for begin, name in column_ticks(names, cell, width):
        line[begin : begin + len(name)] = name
    assert "".join(line)[:width] == text[:width]


def test_fold_keeps_the_worst() -> None:
    """NaN only where nothing of it is known."""
    values = np.array([1.0, np.nan, 3.0, np.nan, np.nan, 2.0])
    assert np.array_equal(fold(values, 2, lowest=False), [1, 3, 2])
    assert np.array_equal(fold(values, 3, lowest=True), [1, 2])
    assert np.array_equal(fold(values[3:5], 2, lowest=True), [np.nan], equal_nan=True)
