"""The parts of the screens that need no app: bands, pace, filters, tables, the header, the tail of a log."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
import pytest
from rich.cells import cell_len

from fsdp_tui.telemetry.messages import PHASES, Launched, Structure
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.telemetry.view import RankView
from fsdp_tui.tui import tables
from fsdp_tui.tui.filters import FilterError, rank_filter, run_filter
from fsdp_tui.tui.pace import FRAMES, Pace
from fsdp_tui.tui.replay import Place
from fsdp_tui.tui.screens.bands import Band, fit_bands
from fsdp_tui.tui.screens.logs import KEEP_BYTES, LogView, Tail
from fsdp_tui.tui.screens.run import bands_for, lateness, trend
from fsdp_tui.tui.widgets.chart import LABEL, row_text, row_width
from fsdp_tui.tui.widgets.chrome import HeaderFacts, ago, draw_header
from fsdp_tui.tui.widgets.findings import draw_card, draw_strip, peak_spread, write_strategies
from fsdp_tui.tui.widgets.table import TableColumn, draw_table, paragraph
from fsdp_tui.tui.widgets.traffic import calls_of, step_phases

from .fixtures import MIB, Recipe, entry


@pytest.mark.parametrize("width", [20, 59, 60, 99, 100, 300])
@pytest.mark.parametrize("ranks", [1, 8, 1024])
def test_bands_fill_the_room_exactly(width: int, ranks: int) -> None:
    """Above the fold nothing is left over, nothing sticks out, and every band has its least."""
    bands = bands_for(width, ranks, 8)
    for room in range(1, 80):
        heights, below = fit_bands(bands, room)
        above = [band for band in bands if band.name not in below]
        used = sum(heights[band.name] for band in above)
        full = all(heights[band.name] == band.most for band in above)
        assert used == room or (used < room and full)
        assert all(heights[band.name] >= band.least for band in above[1:])
        assert [band.name for band in bands[len(above) :]] == below


def test_a_band_never_grows_beyond_its_most() -> None:
    """What is left goes to the others."""
    heights, below = fit_bands([Band("a", 2, 3, 5), Band("b", 2, 100, 1)], 20)
    assert heights == {"a": 3, "b": 17}
    assert below == []


def test_pace_halves_and_recovers() -> None:
    """Slow frames halve it down to 0.5 Hz; quick ones bring back what was asked for, and a slow one now and then does nothing."""
    pace = Pace(4)
    for expected in (2, 1, 0.5, 0.5):
        for _ in range(FRAMES):
            pace.drew(0.2)
        assert pace.hz == expected
    for at in range(3 * FRAMES):
        pace.drew(0.2 if at % FRAMES in (1, 3) else 0.001)
    assert pace.hz == 4
    for at in range(3 * FRAMES):
        pace.drew(0.2 if at % FRAMES in (1, 3) else 0.025)
    assert pace.hz == 4


def views(recipe: Recipe) -> tuple[RankView, ...]:
    return recipe.state().view().ranks


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", list(range(16))),
        ("5", [5]),
        ("8-10", [8, 9, 10]),
        ("10-8", [8, 9, 10]),
        ("1, 3-4", [1, 3, 4]),
        ("!0-13", [14, 15]),
        ("node1", list(range(8, 16))),
        ("node:1$", list(range(8, 16))),
        ("node:cuda", []),
        ("cuda:3", [3, 11]),
        (">90%", [3]),
        ("!", list(range(16))),
        ("nobody", []),
    ],
)
def test_rank_filter(text: str, kept: list[int]) -> None:
    """Numbers, ranges, patterns, shares of the capacity; `!` inverts."""
    capacity = 30 * MIB  # rank 3 peaks at 3 + 3 + 22 MiB of them
    ranks = views(Recipe(ranks=16, steps=2, heavy_rank=3, activation=11 * MIB, device="cuda", capacity=capacity))
    test = rank_filter(text)
    assert [rank.rank for rank in ranks if test(rank)] == kept


def test_filters_refuse_what_is_no_pattern() -> None:
    """With the text and the reason."""
    for make in (rank_filter, run_filter):
        with pytest.raises(FilterError, match="is no pattern"):
            make("(")


def test_run_filter() -> None:
    """Against id, name, state and strategy, whatever the case."""
    about = entry("Zero", state="finished")
    assert run_filter("zero")(about)
    assert run_filter("FINISHED")(about)
    assert run_filter("full_shard")(about)
    assert not run_filter("!zero")(about)
    assert run_filter("!")(about)


def test_table_leaves_out_whole_columns_and_says_so() -> None:
    """The least needed first, and the heading ends in an ellipsis."""
    columns = [
        TableColumn("name", ["alpha", "beta"], left=True, least=4),
        TableColumn("first", ["1", "22"]),
        TableColumn("second", ["333333", "4"], need=1),
    ]
    wide = [row_text(row) for row in draw_table(columns, 40, 5)]
    assert wide[0].split() == ["name", "first", "second"]
    narrow = [row_text(row) for row in draw_table(columns, 16, 5)]
    assert narrow[0].split() == ["name", "first", "…"]
    tight = [row_text(row) for row in draw_table(columns, 13, 5)]
    assert tight[1].startswith("alp…")
    assert all(len(line) == 13 for line in tight)


def test_table_counts_the_rows_that_found_no_room() -> None:
    """In its last line, above and below."""
    columns = [TableColumn("n", [str(n) for n in range(10)])]
    lines = [row_text(row).strip() for row in draw_table(columns, 20, 5, first=2)]
    assert lines == ["n", "2", "3", "4", "↑ 2  ↓ 5 more"]
    assert len(draw_table(columns, 20, 1)) == 1


@pytest.mark.parametrize("width", [1, 7, 20, 80])
def test_paragraphs_keep_every_word(width: int) -> None:
    """Wrapped to the width exactly, nothing lost."""
    text = "each rank keeps one half of the model states, as theory says"
    rows = [row_text(row) for row in paragraph(text, width, first=[("✓ ", LABEL)] if width > 2 else [])]
    assert {len(row) for row in rows} == {width}
    assert "".join("".join(rows).split()).removeprefix("✓") == "".join(text.split())


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("name", ["n" * 130, "学習" * 40, "🔥" * 70], ids=["long", "wide", "emoji"])
def test_a_long_name_leaves_room_in_the_header(name: str, width: int) -> None:
    """It is cut; strategy, ranks, step and age stay. A wide character takes two cells."""
    recipe = Recipe(name=name)
    row = draw_header(HeaderFacts(recipe.state().view(), True, recipe.now_ns), width)
    text = row_text(row)
    assert cell_len(text) == row_width(row) == width
    assert re.search(rf"LIVE  {name[0]}+.*…? · fsdp2:full_shard · \d × .* · step 40", text)
    assert text.rstrip().endswith("0.2 s old")
    assert name[:4] in text


@pytest.mark.parametrize("width", range(1, 200, 7))
def test_header_fits_every_width(width: int) -> None:
    """State first; the age stays longer than the strategy; the step longest."""
    recipe = Recipe(name="a-long-name-of-a-run")
    run = recipe.state().view()
    text = row_text(draw_header(HeaderFacts(run, True, recipe.now_ns), width))
    assert len(text) == width
    if width >= 30:
        assert "● LIVE" in text
        assert "step 40" in text
    if width >= 60:
        assert "0.2 s old" in text
    if width >= 140:
        usual_ns = median(recipe.step_ns(number) for number in range(2, recipe.steps + 1))
        assert f"cost {400e3 / usual_ns * 100:.2f} % · 0 dropped" in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_header_says_what_was_dropped(width: int) -> None:
    """Before nearly everything else, once there is something."""
    recipe = Recipe(name="a-long-name-of-a-run")
    state = recipe.state()
    for rank, lost in ((0, 1_200), (1, 34)):
        state.apply(msgspec.structs.replace(recipe.step(rank, recipe.steps + 1), dropped=lost))
    text = row_text(draw_header(HeaderFacts(state.view(), True, recipe.now_ns), width))
    assert "LIVE  ▲ 1,234 dropped" in text
    assert "0 dropped" not in text.replace("1,234 dropped", "")
    assert "step 4" in text


@pytest.mark.parametrize(
    ("requested", "script", "effective", "shown", "details"),
    [
        ("", "", "", "the script's own", 0),
        ("", "ddp", "ddp", "ddp", 0),
        ("", "fsdp1:full_shard", "fsdp1:no_shard", "fsdp1:full_shard → fsdp1:no_shard", 3),
        ("ddp", "ddp", "ddp", "ddp", 0),
        ("fsdp2:no_shard", "ddp", "fsdp2:no_shard", "fsdp2:no_shard · script: ddp", 3),
        ("fsdp1:full_shard", "ddp", "fsdp1:no_shard", "fsdp1:full_shard → fsdp1:no_shard · script: ddp", 3),
    ],
)
def test_requested_own_and_effective_strategy(
    requested: str, script: str, effective: str, shown: str, details: int
) -> None:
    """The header has what differs, the verdicts' details all three, and the text of `show` too."""
    recipe = Recipe(effective=effective)
    state = RunState()
    for message in recipe.messages():
        if isinstance(message, Launched):
            message = msgspec.structs.replace(message, strategy=requested)
        elif isinstance(message, Structure):
            if not effective:
                continue
            message = msgspec.structs.replace(message, detail={"script": script} if script else {})
        state.apply(message)
    run = state.view()
    header = row_text(draw_header(HeaderFacts(run, True, recipe.now_ns), 160)).partition(" · ")[2]
    assert header.startswith(f"{shown} · ")
    rows = [row_text(row).rstrip() for row in write_strategies(run, 60)]
    assert len(rows) == details
    if details:
        assert rows == [
            f"requested     {requested or '–'}",
            f"script's own  {script}",
            f"effective     {effective}",
        ]
    for word in filter(None, (requested, script, effective)):
        assert word in tables.summary(run).splitlines()[1]


def test_a_small_model_s_summary_has_no_zeros_for_what_is_there() -> None:
    """Each number in its own unit; a phase that the usual step lacks is left out."""
    recipe = Recipe(state_bytes=6 * 1024, activation=9 * MIB)
    run = recipe.state().view()
    text = tables.summary(run)
    assert f"{recipe.states() // 4} B" in text
    assert "9.00 MiB" in text
    assert " 0.0" not in text
    phases = next(line for line in text.splitlines() if line.startswith("step phases"))
    assert "forward" in phases
    without = replace(run, phases_ns=(*run.phases_ns[:-1], 0))
    assert PHASES[-1] not in tables.summary(without)
    assert f"{PHASES[-1]} 12.0 ms" in tables.summary(replace(run, phases_ns=(*run.phases_ns[:-1], 12_000_000)))


@pytest.mark.parametrize(
    ("ended", "asked", "word"),
    [("", False, "● LIVE"), ("", True, "■ STOPPING"), ("stopped", True, "■ STOPPED"), ("failed", True, "✗ FAILED")],
)
def test_header_says_that_a_stop_was_asked_for(ended: str, asked: bool, word: str) -> None:
    """From then until the run has ended."""
    recipe = Recipe(ended=ended, events=(("note", "stop asked for"),))
    run = recipe.state().view()
    kind = "stop_requested" if asked else "hold_requested"
    run = replace(run, events=tuple(msgspec.structs.replace(event, kind=kind) for event in run.events))
    assert row_text(draw_header(HeaderFacts(run, not ended, recipe.now_ns), 120)).startswith(f" {word} ")
    past = Place(step=3, last=40, at_ns=recipe.now_ns, playing=False, speed=1, fetching=False)
    text = row_text(draw_header(HeaderFacts(run, not ended, recipe.now_ns, past=past), 160))
    assert f"now {word}" in text


def test_header_before_the_first_sign_of_life() -> None:
    """Not known is said, and is not 0."""
    recipe = Recipe(steps=0)
    state = recipe.state().__class__()
    state.apply(next(iter(recipe.messages())))
    text = row_text(draw_header(HeaderFacts(state.view(), True, recipe.now_ns), 120))
    assert "STARTING" in text
    assert "no rank heard yet" in text


def test_phases_and_what_was_exposed_in_them() -> None:
    """Forward: 4 gathers of 1 or 3 ms, 8 ms in the mean; backward: as many again, and 4 reduces."""
    phases = {phase.name: phase for phase in step_phases(Recipe().state().view())}
    assert phases["forward"].gather_ns == 8_000_000
    assert phases["forward"].reduce_ns == 0
    assert phases["backward"].gather_ns == 8_000_000
    assert phases["backward"].reduce_ns == 8_000_000
    assert phases["optimizer"].gather_ns == 0


def test_lateness_adds_up_over_calls() -> None:
    """Rank 1 is 2 ms late in each of 12 calls; rank 0 never is."""
    run = Recipe().state().view()
    assert len(calls_of(run)) == 8
    assert lateness(run).tolist() == [0, 24_000_000]


def test_trend_needs_enough_steps() -> None:
    """Nothing is said from a few values."""
    assert trend(Recipe(steps=50).state().view().series.loss) == ""
    assert trend(Recipe(steps=200).state().view().series.loss).startswith("  ↓ ")


@pytest.mark.parametrize(("per_100", "said"), [(-0.2, "  ↓ "), (0.2, "  ↑ "), (0.0, "  flat")])
def test_a_trend_is_told_from_noise(per_100: float, said: str) -> None:
    """Noise of 0.3 on a loss of 2: the mean of a hundred steps is known to 0.03."""
    steps = np.arange(400)
    for seed in range(20):
        noise = np.random.default_rng(seed).permutation(np.tile([-0.3, 0.3], 200))
        loss = 2 + per_100 * steps / 100 + (noise if per_100 else np.tile([-0.3, 0.3], 200))
        assert trend(loss).startswith(said), (seed, trend(loss))


def test_peak_spread_names_the_worst_rank() -> None:
    """The lowest, the middle and the highest."""
    recipe = Recipe(ranks=4, heavy_rank=2)
    text = peak_spread(recipe.state().view())
    assert text == "peaks MiB: min 24.0  median 24.0  max 33.0 (rank 2)"


@pytest.mark.parametrize("height", range(1, 30))
@pytest.mark.parametrize("width", [10, 30, 60])
def test_the_card_keeps_to_its_room_and_counts_the_rest(width: int, height: int) -> None:
    """A verdict that is not shown is counted."""
    run = Recipe(ended="failed").state().view()
    rows = [row_text(row) for row in draw_card(run, width, height)]
    assert len(rows) <= height
    assert {len(row) for row in rows} == {width}
    marks = sum(row.startswith(("▲ ", "! ", "· ", "✓ ")) for row in rows)
    assert marks == len(run.verdicts) or any("more ↵" in row for row in rows) or height == 1
    strip = [row_text(row) for row in draw_strip(run, width, height)]
    assert len(strip) <= height
    assert len(strip) == len(run.verdicts) or f"+{len(run.verdicts) - height} ↵" in strip[-1]


def test_ago() -> None:
    """In the largest unit that is full."""
    texts = [ago(seconds * 10**9) for seconds in (0, 59, 60, 3_600, 90_000, -5)]
    assert texts == ["0 s ago", "59 s ago", "1 min ago", "1 h ago", "1 d ago", "0 s ago"]


def test_tail_follows_a_growing_log(tmp_path: Path) -> None:
    """Whole lines, the unfinished one too; colours and cursor moves are taken out, progress bars show their last state."""
    path = tmp_path / "rank-0.log"
    tail = Tail(path)
    assert not tail.read()
    assert tail.text == []
    path.write_bytes(b"one\n\x1b[31mtwo\x1b[0m\n10%\r50%\r100%\nhalf")
    assert tail.read()
    assert tail.text == ["one", "two", "100%", "half"]
    with path.open("ab") as file:
        file.write(b" done\nbell\x07\n\xff\n")
    assert tail.read()
    assert tail.text == ["one", "two", "100%", "half done", "bell·", "�"]
    assert not tail.read()
    path.write_bytes(b"new\n")
    assert tail.read()
    assert tail.text == ["new"]


def test_tail_of_a_long_log_says_that_it_is_cut(tmp_path: Path) -> None:
    """The newest part is held; the file has all of it."""
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * (KEEP_BYTES // 100 + 10))
    tail = Tail(path)
    tail.read()
    assert tail.cut
    assert tail.text[-1] == "y" * 99


def test_log_lines_are_wrapped_and_never_cut() -> None:
    """A line longer than the screen goes on below."""
    view = LogView()
    view.lines, view.follow = ["abcdefgh", "z"], False
    assert [row_text(row) for row in view.draw(5, 4, False)] == ["abcde", "fgh  ", "z    "]
