"""Memory inside one step: what is drawn against the capture, worked out event by event."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from fsdp_tui.telemetry.messages import CATEGORIES, Capture
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.theme import GROUPS
from fsdp_tui.tui.widgets.chart import Row, row_text, row_width
from fsdp_tui.tui.widgets.lanes import Covered, lanes_of, waiting
from fsdp_tui.tui.widgets.moment import place_text, write_moment, write_why
from fsdp_tui.tui.widgets.subcell import AREA
from fsdp_tui.tui.widgets.timeline import (
    ALONE,
    LANES,
    STACK,
    UNSHARDED,
    Look,
    Timeline,
    at_column,
    at_peak,
    at_time,
    by_event,
    draw_picture,
    draw_timeline,
    next_alone,
    plan_timeline,
    readout,
    time_zoomed,
    timeline_of,
    unzoomed,
    whole_step,
)
from tests.tui.captures import (
    FREED_MS,
    GATHERS,
    MS,
    PEAK_MIB,
    PEAK_MS,
    REDUCES,
    STEP_MS,
    changes,
    held_mib,
    training_step,
)
from tests.tui.fixtures import MIB
from tests.unit.telemetry.messages_for_tests import capture as small_capture

STEP = timeline_of(training_step())
TIMES = sorted({0, *(change.at_ns for change in changes())})


def random_capture(seed: int, events: int) -> Capture:
    """Any order of any sizes; nothing falls below what was there in the beginning."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.integers(0, 50_000, events))
    category, delta = rng.integers(0, 9, events), rng.integers(1, 2**20, events) * rng.choice([1, -1], events)
    base: list[int | None] = [2**30] * 10 + [None] * 3 + [10 * 2**30]
    return Capture(
        rank=0,
        step=1,
        id="x",
        began_ns=0,
        step_ns=60_000,
        modules=[""],
        base=base,
        at_ns=at.tolist(),
        delta_bytes=delta.tolist(),
        category=category.tolist(),
        module=[0] * events,
        phase=[1] * events,
        events=events,
        peak=base,
    )


def lane_texts(timeline: Timeline, look: Look, width: int, height: int, *, letters: bool = True) -> dict[str, str]:
    """Lane -> what is right of its name."""
    plan = plan_timeline(timeline, width, height)
    rows = draw_picture(timeline, look, width, height, letters=letters)[plan.flag + plan.stack :]
    return {name: row_text(row)[plan.gutter :] for name, row in zip(plan.lanes, rows, strict=True)}


def runs(text: str, chars: str) -> list[tuple[int, int]]:
    """Where these characters stand without a gap: first cell and the one after the last."""
    found, at = [], 0
    for inside, group in itertools.groupby(text, lambda char: char in chars):
        size = len(list(group))
        if inside:
            found.append((at, at + size))
        at += size
    return found


# Moments


@pytest.mark.parametrize("ms", [0, 14.999, 15, 20, 27.9, 28, 90, 103, 107.5, 108, 110, 111, 199])
def test_what_is_held_at_a_time(ms: float) -> None:
    moment = STEP.moment(int(ms * MS))
    held = held_mib(ms)
    assert STEP.levels[moment].tolist() == [held[name] * MIB for name in CATEGORIES[:10]]
    assert STEP.total[moment] == sum(held.values()) * MIB
    of_group = [sum(held.get(name, 0) for name in group.categories) * MIB for group in STACK]
    assert STEP.groups[moment].tolist() == of_group


def test_all_groups_are_stacked_once() -> None:
    assert sorted(group.key for group in STACK) == sorted(group.key for group in GROUPS)


def test_the_peak_is_the_captures_own() -> None:
    for capture in (training_step(), training_step(1), small_capture()):
        timeline = timeline_of(capture)
        assert timeline.total[timeline.peak] == capture.peak[-1]
        assert timeline.at_ns[timeline.peak] == capture.peak_at_ns


def test_a_change_of_category_is_no_dip() -> None:
    """108 ms after the begin 6 MiB of temporaries become a gradient: at no moment are they nowhere."""
    around = STEP.total[(STEP.at_ns >= 107 * MS) & (STEP.at_ns < 109 * MS)]
    assert around.tolist() == [(PEAK_MIB - 9) * MIB] * 2


@pytest.mark.parametrize("seed", range(6))
def test_a_column_is_as_high_as_its_highest_moment(seed: int) -> None:
    capture = random_capture(seed, [1, 5, 60, 900][seed % 4])
    timeline = timeline_of(capture)
    base = 10 * 2**30
    for columns, alone in itertools.product((1, 7, 60), (0, UNSHARDED)):
        look = Look(3_000, 47_003, 0)
        edges = look.edges(columns)
        found = timeline.highest(edges, alone)
        wanted = [CATEGORIES.index(name) for name in ALONE[alone][1]] or list(range(10))
        for left, right, moment in zip(edges, edges[1:], found, strict=False):
            level = base if not alone else 2**30
            by_time = {-1: level}
            for at, delta, category in zip(capture.at_ns, capture.delta_bytes, capture.category, strict=True):
                if category in wanted:
                    level += delta
                by_time[at] = level
            before = by_time[max(at for at in by_time if at <= left)]
            inside = [level for at, level in by_time.items() if left < at < right]
            assert timeline.alone[alone][moment] == max([before, *inside])


def test_a_coalesced_capture_has_no_level_that_never_was() -> None:
    """Three rows of one time are one event: 10 taken and 8 + 2 freed at once are nothing, not a peak of 10."""
    capture = msgspec.structs.replace(
        random_capture(1, 0),
        at_ns=[5, 5, 5, 9],
        delta_bytes=[10, -8, -2, 1],
        category=[1, 7, 8, 7],
        module=[0] * 4,
        phase=[1] * 4,
    )
    timeline = timeline_of(capture)
    assert (timeline.total - timeline.total[0]).tolist() == [0, 0, 1]
    assert timeline.at_ns.tolist() == [0, 5, 9]
    words = "\n".join(row_text(row) for row in write_moment(timeline, 5, 100))
    assert "+10 B param_unsharded, −8 B activation, −2 B temp" in words


def test_no_peak_is_lost_however_few_columns_there_are() -> None:
    timeline = timeline_of(random_capture(3, 900))
    for columns in (1, 3, 50, 400):
        tops = timeline.highest(Look(0, timeline.end_ns, 0).edges(columns))
        assert timeline.total[tops].max() == timeline.total.max()


# The picture


def heights(rows: list[Row], gutter: int, columns: int) -> np.ndarray:
    """Eighths of a row that are painted in each column, at its left and its right half."""
    painted = np.zeros((columns, 2), dtype=int)
    for row in rows:
        x = -gutter
        for text, ink in row:
            for char in text:
                if 0 <= x < columns:
                    if ink.bg:
                        painted[x] += 8
                    elif char in AREA.glyphs:
                        painted[x] += AREA.painted[AREA.glyphs.index(char)].reshape(8, 2).sum(axis=0)
                x += 1
    return painted


@pytest.mark.parametrize(("width", "height"), [(118, 26), (78, 12), (58, 9), (200, 60)])
def test_the_stack_is_as_high_as_the_total(width: int, height: int) -> None:
    """Where both halves of a column are the same, to an eighth of a row; elsewhere to half a row, which is what glyphs have."""
    look = whole_step(STEP)
    plan = plan_timeline(STEP, width, height)
    picture = draw_picture(STEP, look, width, height)[plan.flag : plan.flag + plan.stack]
    painted = heights(picture, plan.gutter, plan.columns)
    halves = look.edges(2 * plan.columns)
    true = STEP.total[STEP.highest(halves)].reshape(-1, 2) / (PEAK_MIB * MIB) * plan.stack * 8
    flat = true[:, 0] == true[:, 1]
    assert flat.mean() > 0.5
    assert np.abs(painted - true)[flat].max() <= 0.5
    assert np.abs(painted - true).max() <= 8


def test_letters_have_their_categories_share() -> None:
    """84 rows, one per MiB: at 100 ms 12 P, 24 O, 6 U and 36 A, from below."""
    look = Look(int(99.2 * MS), 102 * MS, 0)
    height = 84 + 5 + 2 + 1 + 1  # lanes, axis, readout, flag
    plan = plan_timeline(STEP, 60, height)
    assert plan.stack == PEAK_MIB
    picture = draw_picture(STEP, look, 60, height, letters=True)[1 : 1 + plan.stack]
    column = "".join(row_text(row)[plan.gutter + 3] for row in reversed(picture))
    assert column.replace("┈", " ").rstrip() == "P" * 12 + "O" * 24 + "U" * 6 + "A" * 36


def test_the_axis_says_where_things_are() -> None:
    """Each number stands under the column that its time is in."""
    look = at_time(STEP, whole_step(STEP), 30 * MS)
    plan = plan_timeline(STEP, 118, 26)
    rows = [row_text(row) for row in draw_timeline(STEP, look, 118, 26)]
    rule, texts = rows[plan.flag + plan.stack : plan.flag + plan.stack + 2]
    assert rule.index("▲") == plan.gutter + look.column(30 * MS, plan.columns)
    assert " 30.0 ms " in texts
    for number in (50, 100, 150):
        column = plan.gutter + look.column(number * MS, plan.columns)
        assert rule[column] == "┬"
        assert abs(texts.index(f" {number} ") + 1 - column) <= 1


def test_the_flag_points_at_the_peak_or_to_it() -> None:
    plan = plan_timeline(STEP, 118, 26)
    look = whole_step(STEP)
    flag = row_text(draw_picture(STEP, look, 118, 26)[0])
    assert flag.index("▼") == plan.gutter + look.column(PEAK_MS * MS, plan.columns)
    assert "peak 84.0 MiB" in flag
    before, after = Look(0, 50 * MS, 0), Look(150 * MS, 200 * MS, 160 * MS)
    assert row_text(draw_picture(STEP, before, 118, 26)[0]).rstrip().endswith("peak 84.0 MiB at 103 ms ▸")
    assert "◂ peak 84.0 MiB at 103 ms" in row_text(draw_picture(STEP, after, 118, 26)[0])


def test_one_alone_has_a_scale_of_its_own() -> None:
    """Unsharded parameters are 6 of 84 MiB; alone they fill the height, eight times."""
    look = Look(0, STEP.end_ns, 0, UNSHARDED)
    plan = plan_timeline(STEP, 218, 30)
    picture = draw_picture(STEP, look, 218, 30, letters=True)
    assert "peak 6.00 MiB" in row_text(picture[0])
    top = row_text(picture[1])[plan.gutter :]
    assert len(runs(top, "U")) == len(GATHERS)


# Lanes


def test_calls_stand_where_they_were_in_flight() -> None:
    """To the cell: a lane is filled where a call covers half an eighth of it, or more."""
    look = whole_step(STEP)
    lanes = lane_texts(STEP, look, 215, 30)
    edges = look.edges(len(lanes["all_gather"]))
    for name, calls in (("all_gather", GATHERS), ("reduce_scatter", REDUCES)):
        found = runs(lanes[name], "━")
        assert len(found) == len(calls)
        for (first, after), (begin, end, _) in zip(found, calls, strict=True):
            assert edges[first] == pytest.approx(begin * MS, abs=int(edges[1]))
            assert edges[after] == pytest.approx(end * MS, abs=int(edges[1]))
    assert "all_reduce" not in lanes


def test_bars_end_inside_a_cell() -> None:
    """30 columns of 4 ms from 8 ms on: the first gather, 10 to 15 ms, is the second half of one and 3/4 of the next."""
    lanes = lane_texts(STEP, Look(8 * MS, 128 * MS, 0), 36, 30, letters=False)
    assert len(lanes["all_gather"]) == 30
    assert lanes["all_gather"][:4] == "▐▊  "


def test_the_sawtooth_shows_each_gather_and_each_free() -> None:
    look = whole_step(STEP)
    for width in (118, 200):
        lanes = lane_texts(STEP, look, width, 30)
        edges = look.edges(len(lanes["unsharded"]))
        teeth = runs(lanes["unsharded"], "█▌▐")
        assert len(teeth) == len(GATHERS)
        marks = runs(lanes["freed"], "×")
        assert [a for a, _ in marks] == [look.column(ms * MS, len(edges) - 1) for ms in FREED_MS]
        for (_, end), (mark, _) in zip(teeth, marks, strict=True):
            assert abs(end - mark) <= 1


def test_a_call_of_unknown_duration_is_a_mark() -> None:
    timeline = timeline_of(training_step(timed=False))
    look = whole_step(timeline)
    lane = lane_texts(timeline, look, 118, 30)["all_gather"]
    assert "━" not in lane
    assert [a for a, _ in runs(lane, "┆")] == [look.column(begin * MS, len(lane)) for begin, _, _ in GATHERS]
    assert "╱" not in lane_texts(timeline, look, 118, 30)["phase"]  # nobody knows whether anything waited


def test_a_very_short_call_is_seen() -> None:
    capture = msgspec.structs.replace(training_step(), call_ns=[1] * len(training_step().call_ns))
    for letters, chars in ((True, "━"), (False, AREA.glyphs + "▏▕▎▍")):
        lane = lane_texts(timeline_of(capture), whole_step(STEP), 118, 30, letters=letters)["all_gather"]
        assert len(runs(lane, chars)) == len(GATHERS)


def test_phases_and_what_waits_in_them() -> None:
    """No operator runs during the gathers and reduces: their whole time is waiting, 20 and 16 and 20 ms."""
    lanes = lanes_of(training_step())
    gather, reduce = waiting(lanes, np.array([0.0, STEP_MS * MS]))
    assert gather[0] == sum(end - begin for begin, end, _ in GATHERS) * MS
    assert reduce[0] == sum(end - begin for begin, end, _ in REDUCES) * MS
    look = whole_step(STEP)
    text = lane_texts(STEP, look, 215, 30)["phase"]
    assert " forward 73.0 ms " in text  # the first operator begins at 15, the last one ends at 88
    assert " backward 82.0 ms " in text  # from the gather's end, 99, to the last gradient, 181
    edges = look.edges(len(text))
    for at, char in enumerate(text):
        middle = (edges[at] + edges[at + 1]) / 2
        inside = [b for b, e, _ in GATHERS if b * MS + (edges[1]) <= middle <= e * MS - edges[1]]
        if char in "╱fbo" and inside:
            assert char == "╱", (at, text)
    assert text.count("o") >= 0.9 * 10 * MS / edges[1]


def test_communication_operators_are_no_work() -> None:
    """An all-gather under the dispatch mode is an operator too; while it runs, compute waits all the same."""
    plain = training_step()
    gathers = [(begin * MS, (end - begin) * MS) for begin, end, _ in GATHERS]
    ops = sorted([*zip(plain.op_at_ns, plain.op_ns, plain.op, strict=True), *((at, ns, 1) for at, ns in gathers)])
    capture = msgspec.structs.replace(
        plain,
        op=[op for _, _, op in ops],
        op_at_ns=[at for at, _, _ in ops],
        op_ns=[ns for _, ns, _ in ops],
        op_module=[0] * len(ops),
        op_phase=[1] * len(ops),
    )
    edges = np.array([0.0, STEP_MS * MS])
    assert waiting(lanes_of(capture), edges)[0] == waiting(lanes_of(plain), edges)[0]


def test_covered_time_counts_overlaps_once() -> None:
    covered = Covered([10, 0, 12, 30], [20, 15, 13, 31])
    assert covered.within(np.array([0.0, 5, 12, 25, 40])).tolist() == [5, 7, 8, 1]
    assert Covered([], []).within(np.array([0.0, 1])).tolist() == [0]


# The cursor


def test_a_column_is_entered_at_its_highest_moment() -> None:
    columns = 50
    look = at_column(STEP, whole_step(STEP), 0, columns)
    for column in range(columns):
        look = at_column(STEP, look, column, columns)
        left, right = look.edges(columns)[column : column + 2]
        assert left <= look.cursor_ns < right
        assert look.column(look.cursor_ns, columns) == column
        inside = [left, *(time for time in TIMES if left < time < right)]
        highest = max(sum(held_mib(time / MS).values()) for time in inside)
        assert STEP.total[STEP.moment(look.cursor_ns)] == highest * MIB


def test_events_are_visited_one_by_one() -> None:
    look = at_time(STEP, whole_step(STEP), 0)
    seen = [look.cursor_ns]
    for _ in range(len(TIMES) + 3):
        look = by_event(STEP, look, 1)
        seen.append(look.cursor_ns)
    assert seen == [*TIMES, *[TIMES[-1]] * 4]
    for time in reversed(TIMES[:-1]):
        look = by_event(STEP, look, -1)
        assert look.cursor_ns == time
    assert by_event(STEP, look, -1).cursor_ns == 0


def test_zooming_keeps_the_cursor_in_its_place() -> None:
    look = whole_step(STEP)
    closer = time_zoomed(STEP, look, 2)
    assert closer.cursor_ns == look.cursor_ns == PEAK_MS * MS
    assert closer.end_ns - closer.begin_ns == pytest.approx(STEP.end_ns / 2, abs=1)
    assert closer.column(closer.cursor_ns, 100) == pytest.approx(look.column(look.cursor_ns, 100), abs=1)
    for _ in range(40):
        closer = time_zoomed(STEP, closer, 2)
    assert closer.end_ns - closer.begin_ns == 1_000
    assert closer.begin_ns <= closer.cursor_ns < closer.end_ns
    for _ in range(40):
        closer = time_zoomed(STEP, closer, 0.5)
    assert closer == look == unzoomed(STEP, time_zoomed(STEP, look, 8))


def test_the_axis_follows_a_cursor_that_leaves_it() -> None:
    look = Look(50 * MS, 60 * MS, 55 * MS)
    right = at_column(STEP, look, 10, 10)
    assert (right.begin_ns, right.end_ns) == (51 * MS, 61 * MS)
    left = at_column(STEP, look, -2, 10)
    assert (left.begin_ns, left.end_ns) == (48 * MS, 58 * MS)
    assert at_column(STEP, Look(0, 10 * MS, 0), -5, 10).begin_ns == 0
    far = at_peak(STEP, look)
    assert far.begin_ns <= far.cursor_ns == PEAK_MS * MS < far.end_ns
    assert far.end_ns - far.begin_ns == 10 * MS
    assert at_time(STEP, look, 10**12).cursor_ns == STEP.end_ns - 1


def test_what_is_not_there_is_not_offered_alone() -> None:
    look = whole_step(STEP)
    seen = []
    for _ in range(len(ALONE)):
        look = next_alone(STEP, look)
        seen.append(ALONE[look.alone][0])
    assert seen[:6] == ["unsharded parameters", "activations", "temporary", "gradients", "collective buffers", "all"]
    bare = timeline_of(random_capture(1, 0))
    zeros = msgspec.structs.replace(bare.capture, base=[0] * 14)
    assert next_alone(timeline_of(zeros), Look(0, 1_000, 0)).alone == 0


# Figures


def test_the_readout_adds_up_to_the_total() -> None:
    for ms in (0, 50, 103, 130, 199):
        look = at_time(STEP, whole_step(STEP), ms * MS)
        held = held_mib(ms)
        text = row_text(readout(STEP, look, 140))
        assert f"= {sum(held.values()):.1f} MiB" in text
        for group in STACK:
            assert f"{group.key} {group.label} {sum(held.get(name, 0) for name in group.categories):.1f}" in text


@pytest.mark.parametrize("ms", [0, 50, 103, 130])
def test_the_moment_in_full(ms: int) -> None:
    rows = [row_text(row).split() for row in write_moment(STEP, ms * MS, 70)]
    heading = next(at for at, row in enumerate(rows) if row[:2] == ["MiB", "here"])
    # The letter of the group, but for the total; then the name, here, at the peak, and the difference if there is one.
    table = {next(word for word in row if len(word) > 1): row for row in rows[heading + 1 :]}
    held, top = held_mib(ms), held_mib(PEAK_MS)
    held["total"], top["total"] = sum(held.values()), sum(top.values())
    ever = {name for name in held for time in TIMES if name == "total" or held_mib(time / MS)[name]}
    assert table.keys() == ever
    for name, row in table.items():
        numbers = row[row.index(name) + 1 :]
        assert numbers[:2] == [f"{held[name]:.2f}", f"{top[name]:.2f}"]
        difference = f"{held[name] - top[name]:+.2f}".replace("-", fmt.MINUS)
        assert numbers[2:] == ([difference] if held[name] != top[name] else [])


def test_where_the_step_is() -> None:
    assert place_text(STEP, 0) == "the beginning of the step"
    assert place_text(STEP, PEAK_MS * MS) == "backward of blocks.3"
    assert place_text(STEP, 16 * MS) == "forward of blocks.0"
    assert place_text(STEP, 190 * MS) == "optimizer"
    words = "\n".join(row_text(row) for row in write_moment(STEP, 97 * MS, 100))
    assert "all-gather of blocks.3 in flight" in words
    assert "−6.00 MiB param_unsharded, 9.00 ms before" in words
    assert "aten.mm.default" in "\n".join(row_text(row) for row in write_moment(STEP, PEAK_MS * MS, 100))


def test_why_and_what_was_not_seen() -> None:
    words = "\n".join(row_text(row).rstrip() for row in write_why(training_step(), 300))
    assert (
        "backward of blocks.3: one unit unsharded (blocks.3: 6.00 MiB), all activations still alive (36.00 MiB)"
        in words
    )
    assert "· memory that an operator takes and frees within itself is not seen" in words
    assert "temp → grad_unsharded" in words


# Any data, any size


@pytest.mark.parametrize("letters", [True, False])
def test_every_size_is_filled_exactly(letters: bool) -> None:
    whole = whole_step(STEP)
    for width, height in itertools.product((1, 2, 5, 11, 24, 25, 40, 89, 90, 130), (1, 2, 3, 4, 5, 7, 12, 16, 30)):
        for look in (whole, time_zoomed(STEP, whole, 64), Look(0, STEP.end_ns, 7, 3)):
            rows = draw_timeline(STEP, look, width, height, letters=letters)
            assert 1 <= len(rows) <= height
            assert {row_width(row) for row in rows} == {width}


def test_a_picture_at_hand_changes_nothing() -> None:
    look = at_time(STEP, whole_step(STEP), 20 * MS)
    picture = draw_picture(STEP, whole_step(STEP), 100, 24)
    assert draw_timeline(STEP, look, 100, 24, picture=picture) == draw_timeline(STEP, look, 100, 24)


def test_strange_captures() -> None:
    """No event, nothing held, all at once, more freed than there was, an end before the last event."""
    plain = small_capture()
    empty: dict[str, object] = {name: [] for name in ("at_ns", "delta_bytes", "category", "module", "phase")}
    nothing: dict[str, object] = {name: [] for name in ("op", "op_at_ns", "op_ns", "op_module", "op_phase", "op_names")}
    calls: dict[str, object] = {
        name: [] for name in ("call_kind", "call_module", "call_nbytes", "call_at_ns", "call_ns")
    }
    for changed in (
        empty,
        empty | nothing | calls,
        empty | {"base": [0] * 14},
        {"base": [None] * 14},
        {"at_ns": [7] * 7},
        {"at_ns": [60, 10, 20, 30, 40, 50, 55]},
        {"delta_bytes": [-(2**40)] * 7},
        {"step_ns": 0},
    ):
        timeline = timeline_of(msgspec.structs.replace(plain, **changed))
        look = whole_step(timeline)
        for letters in (True, False):
            assert draw_timeline(timeline, look, 80, 20, letters=letters)
        for moved in (at_column(timeline, look, 3, 60), by_event(timeline, look, 1), time_zoomed(timeline, look, 2)):
            assert 0 <= moved.begin_ns <= moved.cursor_ns < moved.end_ns <= timeline.end_ns
        write_moment(timeline, look.cursor_ns, 40)
        assert (timeline.levels >= 0).all()
        assert "nan" not in row_text(readout(timeline, look, 80))


def test_names_of_lanes_fit_into_their_gutter() -> None:
    assert max(len(name) for name, _ in LANES.values()) <= plan_timeline(STEP, 118, 26).gutter - 1
    assert max(len(short) for _, short in LANES.values()) <= plan_timeline(STEP, 78, 12).gutter - 1
