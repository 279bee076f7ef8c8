"""The widgets in an app: lines are exact, only changes are redrawn, themes and letters take effect."""

import random
from collections.abc import Mapping
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
import pytest
from rich.cells import cell_len
from rich.color import Color as RichColor
from textual.app import App, ComposeResult
from textual.geometry import Region

from fsdp_tui.tui.theme import ROLES, THEMES, Ink
from fsdp_tui.tui.widgets.bars import MemoryBars, rank_bars
from fsdp_tui.tui.widgets.chart import NEAR, Chart, Row, changed_spans, crop, row_text
from fsdp_tui.tui.widgets.heat import HeatStrip
from fsdp_tui.tui.widgets.lines import LineChart, Plot, Series
from fsdp_tui.tui.widgets.phases import Phase, PhaseBar


class Words(Chart):
    """A chart of plain lines."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines
        self.draws = 0
        self.regions: list[Region] = []

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        self.draws += 1
        return [[(line, Ink("ok" if not letters else "label"))] for line in self.lines]

    def refresh(self, *regions: Region, **kwargs: bool) -> "Words":
        if hasattr(self, "regions"):
            self.regions += regions
        return super().refresh(*regions, **kwargs)


class Show(App[None]):
    """One chart."""

    letters = False

    def __init__(self, *charts: Chart) -> None:
        super().__init__()
        self.charts = charts

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(ROLES)

    def compose(self) -> ComposeResult:
        yield from self.charts

    def on_mount(self) -> None:
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = "fsdp-dark"


def test_what_differs_of_a_line() -> None:
    """Whole pieces; those that are near each other together; names of two cells per character count as such."""
    ok, note = Ink("ok"), Ink("note")
    row: Row = [("rank ", ok), ("12", note), (" " * NEAR, ok), ("34", note), (" GiB ", ok)]
    width = 14 + NEAR

    def spans(*changes: tuple[int, tuple[str, Ink]], among: Row = row) -> list[tuple[int, int]]:
        after = list(among)
        for at, piece in changes:
            after[at] = piece
        return changed_spans(among, after, sum(map(cell_len, map(itemgetter(0), among))))

    assert spans() == []
    assert spans((3, ("35", note))) == [(7 + NEAR, 9 + NEAR)]
    assert spans((1, ("12", ok)), (3, ("35", note))) == [(5, 7), (7 + NEAR, 9 + NEAR)]
    assert spans((0, ("Rank ", ok)), (1, ("13", note))) == [(0, 7)]
    assert spans((2, ("x" * NEAR, ok)), (4, (" MiB ", ok))) == [(7, 14 + NEAR)]
    assert spans((1, ("2", note)), among=[("層 ", ok), ("1", note), (" 層", ok)]) == [(3, 4)]
    assert changed_spans(row, row[:-1], width) == changed_spans(row[:-1], row, width) == [(0, width)]
    assert changed_spans(None, row, width) == changed_spans(row, None, width) == [(0, width)]
    assert changed_spans(row, row[::-1], width + 1) == [(0, width + 1)]


def test_rows_drawn_by_their_differences_are_those_drawn_at_once() -> None:
    """Whatever changes from one to the next."""
    chance, inks = random.Random(1), [Ink("ok"), Ink("note"), Ink("warn")]

    def drawn() -> Row:
        cuts = sorted(chance.sample(range(1, 40), chance.randrange(1, 12)))
        return [("ab"[chance.random() < 0.2] * (y - x), chance.choice(inks)) for x, y in pairwise([0, *cuts, 40])]

    for _ in range(3_000):
        before, other = drawn(), drawn()
        after = other if chance.random() < 0.2 else mixed(before, other, chance)
        shown, wanted = cells_of(before), cells_of(after)
        for begin, end in changed_spans(before, after, 40):
            shown[begin:end] = wanted[begin:end]
        assert shown == wanted


def mixed(row: Row, other: Row, chance: random.Random) -> Row:
    """The row with some of its cells from another one, cut into pieces anew."""
    cells = [b if chance.random() < 0.1 else a for a, b in zip(cells_of(row), cells_of(other), strict=True)]
    return [("".join(letter for letter, _ in run), ink) for ink, run in groupby(cells, key=itemgetter(1))]


def cells_of(row: Row) -> list[tuple[str, Ink]]:
    return [(letter, ink) for text, ink in row for letter in text]


def lines_of(chart: Chart) -> list[str]:
    return [chart.render_line(y).text for y in range(chart.size.height)]


async def test_lines_are_cut_and_padded_to_the_widget() -> None:
    chart = Words(["short", "x" * 200])
    async with Show(chart).run_test(size=(30, 5)):
        assert [len(line) for line in lines_of(chart)] == [30] * 5
        assert [chart.render_line(y).cell_length for y in range(5)] == [30] * 5


async def test_only_lines_that_changed_are_refreshed() -> None:
    chart = Words(["one", "two", "three"])
    async with Show(chart).run_test(size=(30, 5)) as pilot:
        await pilot.pause()
        chart.regions.clear()
        chart.lines = ["one", "TWO", "three", "four"]
        chart.redraw()
        assert chart.regions == [Region(0, 1, 30, 1), Region(0, 3, 30, 1)]
        draws = chart.draws
        await pilot.pause()
        lines_of(chart)
        assert chart.draws == draws
        chart.regions.clear()
        chart.redraw()
        assert chart.regions == []


async def test_a_theme_changes_colours_and_letters_change_text() -> None:
    chart = Words(["one"])
    app = Show(chart)
    async with app.run_test(size=(30, 5)) as pilot:
        for theme in THEMES:
            app.theme = theme.name
            await pilot.pause()
            style = next(iter(chart.render_line(0))).style
            assert style is not None
            expected = theme.variables["ok"]
            if not theme.ansi:
                assert style.color == RichColor.parse(expected.lower())
            assert style.bgcolor is not None
        app.theme = "textual-light"  # a theme that knows none of our roles
        await pilot.pause()
        assert lines_of(chart)[0].startswith("one")
        draws = chart.draws
        app.letters = True
        lines_of(chart)
        assert chart.draws == draws + 1


@pytest.mark.parametrize("size", [(1, 1), (20, 5), (80, 24), (120, 40), (300, 80)])
async def test_every_chart_with_and_without_data_at_every_size(size: tuple[int, int]) -> None:
    charts: Mapping[str, Chart] = {
        "bars": MemoryBars(),
        "lines": LineChart(),
        "phases": PhaseBar(),
        "heat": HeatStrip(),
    }
    async with Show(*charts.values()).run_test(size=size) as pilot:
        await pilot.pause()
        charts["bars"].show_bars(rank_bars(range(64), [None] * 64))  # type: ignore[attr-defined]
        charts["lines"].show_plot(Plot(series=[Series(np.arange(9.0), np.arange(9.0))]))  # type: ignore[attr-defined]
        charts["phases"].show_phases([Phase("forward", 10), Phase("rest", None)])  # type: ignore[attr-defined]
        charts["heat"].show_values(np.array([1.0, np.nan]))  # type: ignore[attr-defined]
        await pilot.pause()
        for chart in charts.values():
            assert {len(line) for line in lines_of(chart)} <= {chart.size.width}


async def test_a_click_finds_its_bar() -> None:
    chart = MemoryBars(rank_bars(range(8), [[2**30] + [0] * 12 + [2**30]] * 8))
    async with Show(chart).run_test(size=(78, 5)) as pilot:
        await pilot.pause()
        for index in range(8):
            where = [
                (x, y)
                for y, line in enumerate(lines_of(chart))
                for x in range(78)
                if chart.bar_at(x, y) == index and line[x : x + 2].strip() == str(index)
            ]
            assert where, index
        chart.select(3)
        assert any("3▸" in line for line in lines_of(chart))
        assert chart.bar_at(0, 99) is None


def test_crop() -> None:
    row: Row = [("ab", Ink("ok")), ("cd", Ink("bad"))]
    assert crop(row, 3) == [("ab", Ink("ok")), ("c", Ink("bad"))]
    assert row_text(crop(row, 6)) == "abcd  "
