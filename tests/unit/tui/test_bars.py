"""Memory bars: what is drawn is what was measured, at every size, and nothing is left out in silence."""

import itertools
import re

import numpy as np
import pytest

from fsdp_tui.telemetry.messages import CATEGORIES
from fsdp_tui.tui.theme import GROUPS
from fsdp_tui.tui.widgets.bars import (
    Bars,
    bar_rows,
    draw_bars,
    group_bytes,
    layout_bars,
    legend_rows,
    rank_bars,
    round_scale,
    run_bars,
    spread,
    worst_first,
)
from fsdp_tui.tui.widgets.chart import Row, row_text

GIB = 2**30
UNITS = " ▏▎▍▌▋▊▉"


def memory(**gib: float | None) -> list[int | None]:
    """Memory columns; what is not named is 0, and the total adds up."""
    parts = [gib.get(name, 0) for name in CATEGORIES]
    row = [None if part is None else int(part * GIB) for part in parts]
    total = gib["total"] if "total" in gib else sum(part or 0 for part in parts[:10])
    return [*row, None if total is None else int(total * GIB)]


def ranks(n: int, *, capacity: float | None = 64.0, **more: object) -> Bars:
    """n ranks with 8 P, 8 G, 16 O; rank i holds i % 7 GiB of activations."""
    rows = [memory(param_shard=8, grad_shard=8, optimizer=16, activation=i % 7) for i in range(n)]
    peaks = [(33 + i % 7) * GIB for i in range(n)]
    return rank_bars(
        range(n),
        rows,
        peak_bytes=peaks,
        ideal_bytes=32 * GIB,
        capacity_bytes=capacity and capacity * GIB,
        **more,  # type: ignore[arg-type]
    )


def fills(row: Row) -> dict[str, float]:
    """Cells that each role fills in a coloured bar, eighths included; a mark counts for what is behind it."""
    cells: dict[str, float] = {}
    for text, ink in row:
        if len(text) == 1 and text in UNITS[1:] and ink.fg != "peak":
            part = UNITS.index(text) / 8
            cells[ink.fg] = cells.get(ink.fg, 0) + part
            cells[ink.bg] = cells.get(ink.bg, 0) + 1 - part
        else:
            cells[ink.bg] = cells.get(ink.bg, 0) + len(text)
    return cells


def test_groups_add_up_their_categories() -> None:
    row = memory(param_shard=4, buffer=1, grad_shard=2, grad_unsharded=3, activation=7, temp=1, cache=2, non_torch=5)
    groups, total = group_bytes([row], device=True)
    assert (groups[0] / GIB).tolist() == [5, 5, 0, 0, 8, 7]
    assert total[0] / GIB == 18 + 7  # the total, plus cache and non_torch
    groups, total = group_bytes([row], device=False)
    assert (groups[0] / GIB).tolist() == [5, 5, 0, 0, 8, 0]
    assert total[0] / GIB == 18


def test_what_is_not_known_is_nan_and_not_zero() -> None:
    groups, total = group_bytes([memory(optimizer=None, cache=None, non_torch=None, others=None), None], device=True)
    assert np.isnan(groups[0, 2])
    assert groups[0, 5] == 0  # unexplained is known to be 0
    assert total[0] == 0
    assert np.isnan(groups[1]).all()
    assert np.isnan(total[1])


def test_a_bar_is_exact_to_an_eighth_of_a_cell() -> None:
    # 64 GiB over 64 cells: a GiB is a cell, so 10.25 P is ten cells and two eighths.
    bars = rank_bars([0], [memory(param_shard=10.25, optimizer=20.5)], capacity_bytes=64 * GIB)
    (row,) = bar_rows(bars, [0], 64)
    assert row_text(row) == " " * 10 + "▎" + " " * 19 + "▊" + "·" * 33
    assert fills(row) == {"params": 10.25, "optimizer": 20.5, "free": 33.25}


def test_letters_ideal_and_peak() -> None:
    bars = rank_bars(
        [0],
        [memory(param_shard=8, grad_shard=8, optimizer=16, param_unsharded=2, activation=10)],
        peak_bytes=[48 * GIB],
        ideal_bytes=32 * GIB,
        capacity_bytes=64 * GIB,
        device=True,
    )
    (row,) = bar_rows(bars, [0], 32, letters=True)
    # 2 GiB a cell: the ideal is at cell 16, right behind the optimizer, in place of the one U; the peak at cell 24.
    assert row_text(row) == "PPPPGGGGOOOOOOOO┃AAAAA··▏·······"


def test_the_part_that_no_category_explains_is_drawn_as_unknown() -> None:
    bars = rank_bars([0], [memory(param_shard=8, activation=None, total=32)], capacity_bytes=64 * GIB)
    assert row_text(bar_rows(bars, [0], 16, letters=True)[0]) == "PP??????········"


def test_a_bar_of_unknown_length_claims_no_free_memory() -> None:
    bars = rank_bars([0, 1], [memory(param_shard=8, total=None), None], capacity_bytes=64 * GIB)
    rows = [row_text(row) for row in bar_rows(bars, [0, 1], 16, letters=True)]
    assert rows == ["PP?" + " " * 13, "?" + " " * 15]
    text = "\n".join(row_text(row) for row in draw_bars(bars, 70, 8))
    assert "–" in text
    assert "nan" not in text


def test_more_than_the_scale_is_marked() -> None:
    bars = rank_bars([0], [memory(activation=70)], capacity_bytes=64 * GIB)
    assert row_text(bar_rows(bars, [0], 16, letters=True)[0]) == "A" * 15 + "»"


def test_without_a_capacity_the_scale_is_the_largest_value_rounded_up() -> None:
    bars = rank_bars([0, 1], [memory(param_shard=1), memory(param_shard=2.1)], peak_bytes=[3 * GIB, 5.2 * GIB // 1])  # type: ignore[list-item]
    assert bars.scale_bytes == 6 * GIB
    assert [c.title for c in bars.columns] == ["now", "peak"]
    assert [round_scale(v) for v in (0, 1, 100, 129, 2**20 + 1)] == [1, 1, 112, 160, 1.25 * 2**20]


def test_numbers_beside_the_bars_are_the_inputs() -> None:
    text = [row_text(row) for row in draw_bars(ranks(8), 80, 14, letters=True)]
    assert text[0].split() == ["rank", "64.0", "GiB", "now", "peak", "free"]
    for i in range(8):
        assert text[1 + i].split()[-3:] == [f"{32 + i % 7}.0", f"{33 + i % 7}.0", f"{31 - i % 7}.0"]
    assert text[-2].split() == [
        "P",
        "params",
        "G",
        "grads",
        "O",
        "optim",
        "U",
        "unsharded",
        "A",
        "activ.",
        "c",
        "cache+rest",
    ]
    assert "┃ ideal 1/N = 32.00" in text[-1]
    assert "right edge = 64.0 GiB" in text[-1]


def test_a_peak_above_nine_tenths_of_the_capacity_is_marked() -> None:
    rows = draw_bars(ranks(8, capacity=42.0), 80, 14)  # 38 of 42 GiB is more than 0.9, 37 is less
    marked = [row_text(row).split()[0] for row in rows[1:9] if row_text(row).rstrip().endswith("!")]
    assert marked == ["5", "6"]


def test_few_ranks_show_the_numbers_of_each_category() -> None:
    text = [row_text(row).strip() for row in draw_bars(ranks(2), 80, 14, letters=True)]
    assert "P 8.0  G 8.0  O 16.0  U 0.0  A 1.0  c 0.0" in text


@pytest.mark.parametrize("letters", [False, True])
@pytest.mark.parametrize("n", [1, 2, 8, 64, 256, 1024])
def test_any_number_of_ranks_in_any_space(n: int, letters: bool) -> None:
    bars = ranks(n, flags=["warn" if i % 3 == 0 else "" for i in range(n)], selected_rank=n // 2)
    for width, height in itertools.product((1, 2, 5, 20, 37, 78, 118, 198, 300), (1, 2, 3, 5, 6, 12, 28, 80)):
        rows = draw_bars(bars, width, height, letters=letters)
        assert 1 <= len(rows) <= height
        assert {len(row_text(row)) for row in rows} == {width}, (width, height)
        plan = layout_bars(bars, width, height)
        assert len(set(plan.shown)) == len(plan.shown) <= n
        if len(plan.shown) < n and width >= 20:
            hidden = n - len(plan.shown)
            assert re.search(rf"\+{hidden:,}\b", "\n".join(map(row_text, rows))), (width, height)
        if width >= 20:
            for row in bar_rows(bars, plan.shown, plan.bar):
                assert sum(fills(row).values()) == pytest.approx(plan.bar)


def test_too_many_ranks_show_the_worst_and_a_heat_cell_for_each() -> None:
    bars = ranks(256)
    rows = draw_bars(bars, 80, 12, letters=True)
    text = [row_text(row) for row in rows]
    shown = layout_bars(bars, 80, 12).shown
    assert list(shown) == [i for i in range(256) if i % 7 == 6][: len(shown)]
    assert worst_first(bars)[: len(shown)] == list(shown)
    heat = [line[5:] for line in text if re.match(r" *\d+ [·░▒▓█]{40}", line)]
    assert sum(len(line.rstrip()) for line in heat) == 256
    assert "".join(heat).count("█") == sum(i % 7 == 6 for i in range(256))


@pytest.mark.parametrize(("width", "height"), [(118, 16), (76, 24), (66, 11)])
def test_a_thousand_ranks_have_a_cell_each_where_there_is_room(width: int, height: int) -> None:
    """Where there is none, the words say how many share one; two lines are left for the worst."""
    bars = ranks(1024)
    plan = layout_bars(bars, width, height)
    text = [row_text(row) for row in draw_bars(bars, width, height, letters=True)]
    cells = sum(len(line[plan.label + 1 :].rstrip()) for line in text if re.match(r" *\d+ [·░▒▓█]{3}", line))
    shared = next((int(found[1]) for line in text if (found := re.search(r"worst of (\d+) per cell", line))), 1)
    assert cells == -(-1024 // shared)
    assert plan.nrows >= 1
    assert shared == 1 or width < 70
    assert "" not in [line.strip() for line in text]


def test_unknown_ranks_come_first_among_the_worst() -> None:
    bars = rank_bars(range(3), [memory(param_shard=1), None, memory(param_shard=2)], capacity_bytes=64 * GIB)
    assert worst_first(bars) == [1, 2, 0]


def test_runs_are_compared_on_one_scale_with_their_theory() -> None:
    bars = run_bars(
        ["ddp", "zero3", "old"],
        [memory(param_shard=8, grad_shard=8, optimizer=16.4, activation=4), memory(optimizer=4, activation=4), None],
        peak_bytes=[38 * GIB, 9 * GIB, None],
        theory_bytes=[32 * GIB, 4 * GIB, None],
    )
    assert bars.scale_bytes == 40 * GIB
    text = [row_text(row) for row in draw_bars(bars, 100, 6, letters=True)]
    assert text[0].split() == ["run", "40.00", "GiB", "peak", "states", "theory", "diff"]
    assert re.search(r" 38\.00 +32\.40 +32\.00 +\+1\.2 %$", text[1].rstrip())
    assert re.search(r" 9\.00 +4\.00 +4\.00 +0\.0 %$", text[2].rstrip())
    assert re.search(r"(– +){3}–$", text[3].rstrip())


def test_the_spread_names_the_worst_rank() -> None:
    assert row_text(spread(ranks(8))) == "spread  min 33.0  median 35.5  max 39.0 (rank 6)"
    assert row_text(spread(rank_bars([0], [None]))) == "spread –"


def test_nothing_to_draw() -> None:
    assert row_text(draw_bars(rank_bars([], []), 30, 5)[0]).strip() == "no ranks yet"
    assert draw_bars(ranks(2), 0, 5) == []


def test_the_legend_shortens_its_words_before_it_leaves_any_out() -> None:
    bars = ranks(2)
    for width in range(40, 200):
        text = " ".join(row_text(row) for row in legend_rows(bars, width, 2))
        assert all(re.search(rf"\b{group.key}\b", text) for group in GROUPS)
        assert "┃" in text
        assert "64.0 GiB" in text


def test_free_memory_is_what_torch_can_still_have() -> None:
    """Of 80 GiB: 30 at the peak, 2 beside torch and 8 of others are gone; the cache is torch's own. Unknown is not there."""
    rows = [
        memory(param_shard=20, cache=5, non_torch=2, others=8),
        memory(param_shard=20, cache=5, non_torch=None, others=None),
    ]
    bars = rank_bars([0, 1], rows, peak_bytes=[30 * GIB] * 2, capacity_bytes=80 * GIB, device=True)
    free = next(column for column in bars.columns if column.title == "free")
    assert [value / GIB for value in np.asarray(free.values, dtype=float)] == [40, 50]
