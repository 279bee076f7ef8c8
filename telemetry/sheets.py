"""Tables of numbers for other programs, as CSV: base units (bytes, nanoseconds), names in the first row.

What is not known is an empty cell, never 0; a loss that was measured as NaN is "nan".
"""

from __future__ import annotations

import csv
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TextIO

from fsdp_tui.telemetry.grid import Figures, Place
from fsdp_tui.telemetry.messages import CATEGORIES, COLLECTIVES, COMM_PHASES, PHASES, BadMessage, Capture, Step, decode
from fsdp_tui.telemetry.recording import RecordingError, load_state, open_to_read, said
from fsdp_tui.telemetry.report import metrics
from fsdp_tui.telemetry.rundir import RunEntry
from fsdp_tui.telemetry.view import Column, RankView, RunView

Value = str | int | float | None
COLUMN = tuple(f"{name}_bytes" for name in (*CATEGORIES, "total"))
"""Of a column of memory."""
PHASE = tuple(f"{name}_ns" for name in PHASES)
MOMENTS = ("memory", "peak")
"""After the optimizer's step, and at the highest moment inside the step."""


class Sheet(NamedTuple):
    """One table."""

    name: str
    """What it is of, in a file's name."""
    header: Sequence[str]
    rows: Iterable[Sequence[Value]]


def write(sheet: Sheet, file: TextIO) -> None:
    """The sheet as CSV, its header first."""
    out = csv.writer(file, lineterminator="\n")
    out.writerow(sheet.header)
    out.writerows(sheet.rows)


def _column(column: Column) -> Sequence[Value]:
    return [*column, *[None] * (len(COLUMN) - len(column))][: len(COLUMN)]


def _named(moment: str) -> list[str]:
    return [f"{moment}_{name}" for name in COLUMN]


# Of a run


def memory(run: RunView, ranks: Sequence[RankView]) -> Sheet:
    """A row per rank: memory after its last step and at the peak, and what steps take it."""
    header = [
        "rank", "host", "device", "step", *_named("memory"), *_named("peak"), "peak_phase", "peak_unit", "highest_peak_bytes",
        "ideal_states_bytes", "step_median_ns", *(f"median_{name}" for name in PHASE),
    ]  # fmt: skip

    def rows() -> Iterator[Sequence[Value]]:
        for rank in ranks:
            hello = rank.hello
            phases = [*rank.phases_ns, *[None] * (len(PHASES) - len(rank.phases_ns))]
            yield [
                rank.rank, hello.host if hello else None, hello.device if hello else None, rank.steps,
                *_column(rank.memory), *_column(rank.peak), rank.peak_phase or None, rank.peak_unit or None, rank.highest_bytes,
                run.ideal_state_bytes, rank.step_ns, *phases,
            ]  # fmt: skip

    return Sheet("memory", header, rows())


def series(run: RunView) -> Sheet:
    """A row per step that all ranks have finished: loss, the slowest rank's time, throughput of all ranks together."""
    found = run.series

    def rows() -> Iterator[Sequence[Value]]:
        columns = (found.steps, found.loss, found.loss_known, found.step_ns, found.tokens_per_s, found.samples_per_s)
        for step, loss, known, ns, tokens, samples in zip(*(column.tolist() for column in columns), strict=True):
            if step <= run.steps:
                yield [step, loss if known else None, int(ns), _known(tokens), _known(samples)]

    return Sheet("series", ["step", "loss", "step_ns", "tokens_per_s", "samples_per_s"], rows())


def collectives(run: RunView) -> Sheet:
    """A row per unit or bucket, kind and part of the step: medians over the newest steps."""
    header = [
        "unit", "collective", "phase", "calls", "bytes", "median_call_ns", "duration_ns", "exposed_ns", "overlapped_ns",
        "algorithm_bytes_per_s", "bus_bytes_per_s", "latest_rank", "late_ns",
    ]  # fmt: skip
    kinds = [(unit.name, kind, getattr(unit, kind)) for unit in run.units for kind in COLLECTIVES]
    kinds += [(f"bucket {bucket.index}", "all_reduce", bucket.all_reduce) for bucket in run.buckets]

    def rows() -> Iterator[Sequence[Value]]:
        for unit, kind, collective in kinds:
            for phase in ("step", "forward", "backward"):
                stats = getattr(collective, phase)
                if not stats.per_step:
                    continue
                latest = stats.late_ns.highest
                yield [
                    unit, kind, phase, stats.per_step, stats.bytes, stats.median_ns, stats.duration_ns, stats.exposed_ns,
                    stats.overlapped_ns, stats.algbw_bytes_per_s, stats.busbw_bytes_per_s, latest,
                    stats.late_ns.get(latest) if latest is not None else None,
                ]  # fmt: skip

    return Sheet("collectives", header, rows())


def comm_matrix(figures: Figures, places: Sequence[Place], ranks: Sequence[int], columns: Sequence[int]) -> Sheet:
    """A row per rank, a column per unit: one metric of the collectives. `columns` index `places`."""
    unit = "bytes_per_s" if figures.metric == "bandwidth" else "ns"
    header = ["rank", *(places[at].name or "no unit" for at in columns), "all"]
    rows = (
        [rank, *(_known(figures.cells[rank, at]) for at in columns), _known(figures.by_rank[rank])] for rank in ranks
    )
    return Sheet(f"{figures.metric}_{unit}", header, rows)


def calls(run: RunView, rank: int) -> Sheet:
    """A row per unit, kind and phase of one rank: medians over the newest steps."""
    header = [
        "rank", "unit", "collective", "phase", "calls", "bytes", "median_call_ns", "duration_ns", "exposed_ns", "late_ns",
        "algorithm_bytes_per_s", "bus_bytes_per_s", "group_size",
    ]  # fmt: skip
    rows = (
        [
            rank,
            place.name or "no unit",
            COLLECTIVES[one.kind],
            COMM_PHASES[one.phase],
            one.calls,
            one.nbytes,
            one.median_ns,
            one.duration_ns,
            one.exposed_ns,
            one.late_ns,
            one.algbw_bytes_per_s,
            one.busbw_bytes_per_s,
            one.group_size,
        ]
        for place in run.grid.places
        for one in run.grid.calls(rank, place)
    )
    return Sheet(f"rank{rank}", header, rows)


def timeline(capture: Capture) -> Sheet:
    """A row per change of memory inside a captured step, in its order, and what was alive then."""

    def rows() -> Iterator[Sequence[Value]]:
        alive = sum(value or 0 for value in capture.base[: len(CATEGORIES)])
        columns = (capture.at_ns, capture.delta_bytes, capture.category, capture.module, capture.phase)
        for at_ns, delta, category, module, phase in zip(*columns, strict=True):
            alive += delta
            yield [at_ns, delta, CATEGORIES[category], capture.modules[module] or None, PHASES[phase], alive]

    header = ["at_ns", "delta_bytes", "category", "module", "phase", "alive_bytes"]
    return Sheet(f"step{capture.step}-rank{capture.rank}", header, rows())


# Of several runs


def comparison(runs: Sequence[RunView], names: Sequence[str]) -> Sheet:
    """A row per figure, a column per run, and which is best."""
    rows = (
        [row["metric"], row["unit"], *row["values"], names[row["best"]] if row["best"] is not None else None]
        for row in metrics(runs)
    )
    return Sheet("", ["figure", "unit", *names, "best"], rows)


def listing(entries: Sequence[RunEntry], sizes: dict[str, int]) -> Sheet:
    """A row per run."""
    header = [
        "id", "name", "state", "live", "strategy", "effective", "ranks", "steps", "planned_steps", "loss", "created", "ended",
        "bytes", "tags", "note", "problem",
    ]  # fmt: skip
    rows = (
        [
            one.id,
            one.name,
            one.state,
            int(one.live),
            one.strategy or None,
            one.effective or None,
            one.world_size,
            one.steps,
            one.planned_steps,
            one.loss,
            _date(one.created_ns),
            _date(one.ended_ns),
            sizes.get(one.id),
            " ".join(one.note.tags) or None,
            one.note.text or None,
            one.problem or None,
        ]
        for one in entries
    )
    return Sheet("", header, rows)


# A whole recording


def steps(path: Path, ranks: Sequence[int] = ()) -> Sheet:
    """A row per step and rank of a recording, however long it is; `ranks`: only of these.

    Raises:
        RecordingError: it cannot be read.
    """
    state = load_state(path)
    logged = sorted({name for rank in state.ranks.values() for name in rank.metrics})
    units = {
        rank: [unit.name for unit in known.structure.units] for rank, known in state.ranks.items() if known.structure
    }
    header = [
        "step", "rank", "ended_ns", "loss", "step_ns", *PHASE, "tokens", "samples", "memory_of_step", *_named("memory"),
        *_named("peak"), "peak_phase", "peak_unit", "probes_ns", *(f"logged_{name}" for name in logged),
    ]  # fmt: skip

    def rows() -> Iterator[Sequence[Value]]:
        for one in _recorded(path, ranks):
            phases = [*one.phases_ns, *[None] * (len(PHASES) - len(one.phases_ns))][: len(PHASES)]
            names = units.get(one.rank, [])
            yield [
                one.step, one.rank, one.ended_ns, one.loss, one.step_ns, *phases, one.tokens, one.samples,
                one.looked_step or one.step, *_column(tuple(one.memory)), *_column(tuple(one.peak)), one.peak_phase or None,
                names[one.peak_unit] if 0 <= one.peak_unit < len(names) else None, one.overhead_ns,
                *(one.metrics.get(name) for name in logged),
            ]  # fmt: skip

    return Sheet("steps", header, rows())


def _recorded(path: Path, ranks: Sequence[int]) -> Iterator[Step]:
    """In the order of steps and ranks; of a step that was trained again after a restart, the last time."""
    try:
        with closing(open_to_read(path)) as order, closing(open_to_read(path)) as log:
            query = "SELECT MAX(id), rank FROM log WHERE kind = 'step' GROUP BY step, rank ORDER BY step, rank"
            for log_id, rank in order.execute(query):
                if ranks and rank not in ranks:
                    continue
                try:
                    message = decode(log.execute("SELECT body FROM log WHERE id = ?", (log_id,)).fetchone()[0])
                except BadMessage:
                    continue
                if isinstance(message, Step):
                    yield message
    except sqlite3.Error as error:
        raise RecordingError(said(path, error)) from None


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _date(ns: int | None) -> str | None:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="seconds") if ns is not None else None
