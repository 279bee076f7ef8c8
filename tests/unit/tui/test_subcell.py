"""Block glyphs finer than cells: each stands for exactly the samples that it paints."""

import numpy as np
import pytest

from fsdp_tui.tui.widgets.subcell import AREA, BAR, Blocks, fit_cells, stacked


@pytest.mark.parametrize("blocks", [AREA, BAR], ids=["area", "bar"])
def test_a_glyph_is_found_from_its_own_samples(blocks: Blocks) -> None:
    samples = np.where(blocks.painted, 2, 5)[None]
    cells = fit_cells(samples, blocks)
    assert [blocks.glyphs[at] for at in cells.glyph[0]] == list(blocks.glyphs)
    assert (cells.first == 2).all()
    assert (cells.then == 5).all()


def test_a_cell_of_one_value_needs_no_glyph() -> None:
    cells = fit_cells(np.full((1, 1, 16), 3), AREA)
    assert (cells.glyph[0, 0], cells.first[0, 0], cells.most[0, 0]) == (-1, 3, 3)


def test_of_three_values_the_two_largest_are_drawn() -> None:
    """From below: five eighths of 0, one of 1, two of 2: the outline below the 2 stays where it is."""
    rows = np.array([2, 2, 1, 0, 0, 0, 0, 0])
    cells = fit_cells(np.repeat(rows, 2)[None, None], AREA)
    assert AREA.glyphs[cells.glyph[0, 0]] == "▆"
    assert (cells.first[0, 0], cells.then[0, 0], cells.most[0, 0]) == (0, 2, 0)


def test_the_outline_stays_however_little_is_above_it() -> None:
    """From below: four eighths of 0, three of 1, one of 2, which is what is above the stack."""
    rows = np.array([2, 1, 1, 1, 0, 0, 0, 0])
    samples = np.repeat(rows, 2)[None, None]
    inside, outlined = fit_cells(samples, AREA), fit_cells(samples, AREA, above=2)
    assert (AREA.glyphs[inside.glyph[0, 0]], inside.then[0, 0]) == ("▄", 1)
    assert (AREA.glyphs[outlined.glyph[0, 0]], outlined.first[0, 0], outlined.then[0, 0]) == ("▇", 0, 2)


def test_lower_blocks_paint_as_many_eighths_as_their_name_says() -> None:
    for at, glyph in enumerate("▁▂▃▄▅▆▇", 1):
        painted = AREA.painted[AREA.glyphs.index(glyph)].reshape(8, 2)
        assert painted.sum() == 2 * at
        assert painted[8 - at :].all()


def test_a_stack_is_as_high_as_its_values() -> None:
    """Scale 4 over 2 rows: 16 eighths, 4 for each unit. Two half columns, 1 + 0.5 + 0 and 0 + 2 + 2."""
    samples = stacked(np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 2.0]]), 4.0, 2)
    assert samples.shape == (2, 1, 16)
    column = samples[:, 0].reshape(2, 8, 2).reshape(16, 2)[::-1]  # from below
    assert column[:, 0].tolist() == [0] * 4 + [1] * 2 + [3] * 10
    assert column[:, 1].tolist() == [1] * 8 + [2] * 8
