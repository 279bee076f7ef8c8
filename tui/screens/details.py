"""Texts behind the panes: a unit's collective in full, all events, and help."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fsdp_tui.telemetry.bandwidth import note
from fsdp_tui.telemetry.grid import Place, Selection
from fsdp_tui.telemetry.messages import COLLECTIVES
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.keys import KEYS, Key, keys_for, shown
from fsdp_tui.tui.theme import GROUPS, SEVERITY_GLYPHS, STATE_MARKS, Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Row, crop
from fsdp_tui.tui.widgets.table import TableColumn, draw_table, paragraph
from fsdp_tui.tui.widgets.traffic import Call, calls_of


def write_call(call: Call, run: RunView, width: int, rank: int | None = None) -> list[Row]:
    """One collective of a unit: forward and backward apart, and rank by rank; `rank` is marked."""
    parts = [
        ("whole step", call.collective.step),
        ("forward", call.collective.forward),
        ("backward", call.collective.backward),
    ]
    rows = []
    if call.params is not None:
        unit = next((unit for unit in run.units if unit.name == call.unit), None)
        if unit is not None:
            rows += paragraph(
                f"{fmt.count(unit.params)} parameters, {unit.shard_bytes:,} bytes on the fullest rank,"
                f" {unit.unsharded_bytes:,} bytes when gathered",
                width,
            )
            rows.append(crop([], width))
    table = [
        TableColumn("per step and rank", [name for name, _ in parts], left=True),
        TableColumn("calls", [f"{stats.per_step:g}" for _, stats in parts], need=2),
        TableColumn("bytes", [fmt.count(stats.bytes) for _, stats in parts], need=3),
        TableColumn("median of a call", [fmt.duration(stats.median_ns) for _, stats in parts]),
        TableColumn("exposed", [fmt.duration(stats.exposed_ns) for _, stats in parts], need=1),
        TableColumn("overlapped", [fmt.duration(stats.overlapped_ns) for _, stats in parts], need=4),
        TableColumn("S/t", [fmt.bandwidth(stats.algbw_bytes_per_s) for _, stats in parts], need=6),
        TableColumn("bus", [fmt.bandwidth(stats.busbw_bytes_per_s) for _, stats in parts], need=5),
    ]
    rows += draw_table(table, width, 4)
    backend = next((rank.hello.backend for rank in run.ranks if rank.hello), "")
    if said := note(backend, call.kind):
        rows += paragraph(said, width, QUIET)
    rows.append(crop([], width))
    place = next((place for place in run.grid.places if place.name == call.unit), None)
    return rows if place is None else [*rows, *_write_ranks(run, place, KIND_INDEX[call.kind], rank, width)]


def write_collective(run: RunView, place: Place, kind: int, rank: int, width: int) -> list[Row]:
    """One collective of a unit, of a bucket, of all buckets, or of none: over all ranks, and rank by rank."""
    call = next((call for call in calls_of(run) if call.unit == place.name and KIND_INDEX[call.kind] == kind), None)
    if call is None:
        return _write_ranks(run, place, kind, rank, width)
    return write_call(call, run, width, rank)


def _write_ranks(run: RunView, place: Place, kind: int, chosen: int | None, width: int) -> list[Row]:
    """What each rank spends in it, who comes latest first."""
    grid = run.grid
    at, selection = grid.places.index(place), Selection(kinds=(kind,))
    late, duration, exposed = (
        grid.figures(metric, selection).cells[:, at] for metric in ("lateness", "duration", "exposed")
    )
    rows: list[Row] = []
    if not np.isfinite(late).any():
        rows += paragraph("which rank comes late is not known: not every rank reported its calls", width, QUIET)
    order = sorted(range(grid.ranks), key=lambda rank: (-np.nan_to_num(late[rank]), rank))
    table = [
        TableColumn(
            "rank",
            [(f"{rank} ◂" if rank == chosen else f"{rank}  ", STRONG if rank == chosen else LABEL) for rank in order],
        ),
        TableColumn("the others wait for it", [fmt.duration(late[rank]) for rank in order]),
        TableColumn("duration", [fmt.duration(duration[rank]) for rank in order]),
        TableColumn("exposed", [fmt.duration(exposed[rank]) for rank in order]),
    ]
    return [*rows, *paragraph("per step, rank by rank", width, QUIET), *draw_table(table, width, len(order) + 1)]


KIND_INDEX = {kind: at for at, kind in enumerate(COLLECTIVES)}


def write_events(run: RunView, width: int) -> list[Row]:
    """Every event in full, newest first."""
    rows: list[Row] = []
    start = run.started_ns or 0
    for event in reversed(run.events):
        glyph = SEVERITY_GLYPHS.get(event.severity, "·")
        where = f"rank {event.rank}: " if event.rank is not None and f"rank {event.rank}" not in event.text else ""
        lead: Row = [
            (f"{fmt.clock(max(0, event.at_ns - start))} ", QUIET),
            (f"{glyph} ", Ink(event.severity if event.severity in SEVERITY_GLYPHS else "note", bold=True)),
        ]
        rows += paragraph(where + event.text, width, first=lead)
    return rows


SHOWS = {
    "run": "Bars: the memory of each rank at the highest moment of its last step, cut into categories; ┃ is what it would keep of"
    " parameters, gradients and optimizer if they were cut into equal parts; ▏ is the highest peak so far. Step: the median step;"
    " hatched is the time in which compute waited for communication. Exposed, late and median leave the first step out.",
    "step": "Memory inside one captured step, a column at its highest moment, and the figures at the cursor below. Lanes: the phase, ╱ ╲"
    " where no operator runs while an all-gather or a reduction is in flight; each kind of collective, ┆ where its end is not known;"
    " unsharded parameters on a scale of their own, × where they are freed. Times are the captured step's, which takes longer.",
    "comm": "What collectives cost each rank in each unit: medians of the newest steps, without the first. Late: what the longest-waiting"
    " rank of the group spent more in the same calls, so that is how long it waited for this one. Exposed: what compute waited."
    " Brighter is worse. ╱ is not known; an empty cell has no such calls. Every number of a cell is below the map.",
    "calls": "All units of one rank, then the collectives of one of them, then one collective on all ranks: sums over a step's calls,"
    " medians over the steps. What stands out against the median rank is bright.",
    "runs": "Live runs of this machine and recorded ones, newest first. A run that cannot be read stays in the list with the reason.",
    "launch": "A training to start: the demo's, or your own script. What cannot work is said before anything is started.",
    "queue": "Launches that run one after another, in a process of their own: it goes on while other screens are open and when this"
    " program is left. What failed says why, and the next one starts all the same.",
    "compare": "Marked runs side by side: the fullest rank's memory, and medians of steps without the first. Losses agree when they"
    " differ by no more than reordered sums explain.",
    "logs": "What a rank printed, byte for byte as far as it can be shown; the log of the launcher comes before rank 0.",
    "rank": "Every memory category of one rank in bytes; – is not known, which is not zero.",
}


def write_help(screen: str, width: int, table: Sequence[Key] = KEYS) -> list[Row]:
    """What the screen shows, its keys, those that work everywhere, and what marks and letters mean."""
    keys = list(keys_for(screen, table))
    rows = paragraph(SHOWS.get(screen, ""), width, LABEL)
    rows += [crop([], width), crop([("keys of this screen", STRONG)], width)]
    rows += _key_rows([key for key in keys if key.screens], width)
    rows += [crop([], width), crop([("everywhere", STRONG)], width)]
    rows += _key_rows([key for key in keys if not key.screens], width)
    rows += paragraph(
        "arrows, page up and down, home and end move inside the focused pane; the mouse works too.", width, QUIET
    )
    rows += [crop([], width), crop([("letters and marks", STRONG)], width)]
    for group in GROUPS:
        categories = ", ".join(group.categories)
        rows += paragraph(
            f"{group.label}: {categories}", width, QUIET, first=[(f"{group.key:<11}", Ink(group.role, bold=True))]
        )
    for severity, glyph in SEVERITY_GLYPHS.items():
        rows.append(crop([(f"{glyph:<11}", Ink(severity, bold=True)), (severity, QUIET)], width))
    for mark in STATE_MARKS.values():
        rows.append(crop([(f"{mark.glyph:<11}", Ink(mark.role, bold=True)), (mark.word.lower(), QUIET)], width))
    return rows


def _key_rows(keys: Sequence[Key], width: int) -> list[Row]:
    rows: list[Row] = []
    for key in keys:
        names = " ".join(shown(name) for name in key.keys.split(","))
        rows += paragraph(key.help, width, first=[(f"{names:<11} ", Ink("ok", bold=True))])
    return rows
