"""The phase bar, the heat strip and the sparkline."""

import itertools

import numpy as np
import pytest

from fsdp_tui.telemetry.messages import PHASES
from fsdp_tui.tui.widgets.chart import row_text
from fsdp_tui.tui.widgets.heat import draw_heat, heat_levels
from fsdp_tui.tui.widgets.phases import PHASE_LOOKS, Phase, draw_phases, phase_bar, phase_legend
from fsdp_tui.tui.widgets.spark import gauge, spark

MS = 1_000_000
STEP = [
    Phase("input", 10 * MS),
    Phase("forward", 30 * MS, gather_ns=10 * MS),
    Phase("backward", 40 * MS, gather_ns=5 * MS, reduce_ns=5 * MS),
    Phase("optimizer", 10 * MS),
    Phase("rest", 10 * MS),
]


def test_every_phase_of_the_wire_has_a_look() -> None:
    assert tuple(PHASE_LOOKS) == PHASES
    assert len({look.key for look in PHASE_LOOKS.values()}) == len(PHASES)


def test_exposed_communication_is_hatched_inside_its_phase() -> None:
    # 100 ms over 20 cells: 5 ms a cell.
    assert row_text(phase_bar(STEP, 20, letters=True)) == "iiffff╱╱bbbbbb╱╲oo··"


def test_a_coloured_bar_says_the_same() -> None:
    row = phase_bar(STEP, 20)
    assert [(ink.bg, len(text)) for text, ink in row if not text.strip()] == [
        ("phase-input", 2),
        ("phase-forward", 4),
        ("phase-backward", 6),
        ("phase-optimizer", 2),
    ]


def test_more_exposed_time_than_the_phase_has_is_kept_inside_it() -> None:
    row = phase_bar([Phase("forward", 10, gather_ns=30, reduce_ns=10), Phase("rest", 10)], 20, letters=True)
    assert row_text(row) == "╱" * 8 + "╲" * 2 + "·" * 10  # 3 : 1 kept, at most the phase


def test_the_legend_names_every_time_and_says_what_is_unknown() -> None:
    text = " ".join(row_text(row) for row in phase_legend(STEP, 120, 3))
    for part in ("i input 10.0 ms", "f forward 20.0 ms", "b backward 30.0 ms", "╱ exposed all-gather 15.0 ms"):
        assert part in text
    assert "╲ exposed reduce 5.0 ms" in text
    unknown = [Phase("forward", None, None, None), Phase("backward", 5 * MS, None, None), Phase("rest", 5 * MS)]
    text = " ".join(row_text(row) for row in phase_legend(unknown, 120, 3))
    assert "forward –" in text
    assert "all-gather –" in text
    assert row_text(phase_legend(STEP, 20, 1)[0]).endswith("…")


def test_phases_in_any_space() -> None:
    for phases, width, height in itertools.product(([], STEP, [Phase("rest", None)]), range(1, 130), (1, 2, 3, 9)):
        rows = draw_phases(phases, width, height)
        assert 1 <= len(rows) <= height
        assert {len(row_text(row)) for row in rows} == {width}


def test_heat_levels_split_the_range_evenly() -> None:
    assert heat_levels(np.array([0, 0.99, 1, 7.99, 8, 9, -1, np.nan]), 0, 8).tolist() == [0, 0, 1, 7, 7, 7, 0, -1]


def test_every_value_has_a_cell_or_shares_one_with_the_worst_of_it() -> None:
    for n, width, height in itertools.product((1, 8, 64, 1024), (5, 20, 78, 300), (1, 2, 6)):
        values = np.arange(n, dtype=float)
        rows, per_cell, low, high = draw_heat(
            values, width, height, letters=True, label=4, labels=[str(i) for i in range(n)]
        )
        if width <= 5:
            continue
        cells = "".join(row_text(row)[5:].rstrip() for row in rows)
        assert len(cells) == -(-n // per_cell)
        assert len(rows) <= height
        assert (low, high) == (0, max(n - 1, 0))
        if n > 1:
            assert cells[-1] == "█"


def test_an_unknown_value_is_not_the_lowest() -> None:
    rows, *_ = draw_heat(np.array([1.0, np.nan, 2.0]), 3, 1, letters=True)
    assert row_text(rows[0]) == "·?█"


@pytest.mark.parametrize(
    ("values", "width", "text"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([0, 7, 0, 7], 2, "▅▅"),  # the highest of each pair: equal, so neither low nor high
        ([1, np.nan, 2], 9, "▁·█"),
        ([np.nan], 3, "·"),
        ([], 3, ""),
        ([1], 0, ""),
    ],
)
def test_spark(values: list[float], width: int, text: str) -> None:
    assert spark(np.array(values, dtype=float), width) == text


def test_sparks_with_given_ends_compare() -> None:
    assert spark(np.array([5.0]), 1, low=0, high=10) == "▅"
    assert spark(np.array([50.0, -1.0]), 2, low=0, high=10) == "█▁"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "    "), (5, "██  "), (1.25, "▌   "), (10, "████"), (11, "███»"), (-1, "    "), (None, "?   ")],
)
def test_gauge(value: float | None, text: str) -> None:
    assert gauge(value, 10, 4) == text
    assert gauge(value, 10, 0) == ""
