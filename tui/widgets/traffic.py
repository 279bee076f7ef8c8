"""Collectives per unit as columns of a table, and the phases of a step with what was exposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fsdp_tui.telemetry.messages import COMM_PHASES, PHASES
from fsdp_tui.telemetry.view import Collective, CollectiveStats, RunView
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.phases import Phase
from fsdp_tui.tui.widgets.table import Cell, TableColumn

KINDS = (
    ("all_gather", "all-gather", "gather"),
    ("reduce_scatter", "reduce-scatter", "reduce"),
    ("all_reduce", "all-reduce", "reduce"),
)
"""Attribute, words, role."""


class Call(NamedTuple):
    """One line of the table: a collective of a unit or bucket, or the sum of a kind over all of them."""

    unit: str
    params: int | None
    kind: str
    words: str
    role: str
    collective: Collective


def calls_of(run: RunView) -> list[Call]:
    """Every collective that happens, unit by unit, then bucket by bucket."""
    found = []
    for unit in run.units:
        for name, words, role in KINDS:
            collective: Collective = getattr(unit, name)
            if collective.step.per_step:
                found.append(Call(unit.name, unit.params, name, words, role, collective))
    found += [
        Call(f"bucket {bucket.index}", None, "all_reduce", "all-reduce", "reduce", bucket.all_reduce)
        for bucket in run.buckets
        if bucket.all_reduce.step.per_step
    ]
    return found


def late_text(stats: CollectiveStats) -> str:
    """The rank that the others waited longest for, and how long per step."""
    rank = stats.late_ns.highest
    if rank is None:
        return fmt.UNKNOWN
    return f"{rank} +{fmt.duration(stats.late_ns[rank])}" if stats.late_ns[rank] > 0 else "none"


def collective_columns(calls: Sequence[Call]) -> list[TableColumn]:
    """A row per unit and kind of collective. Times of one call, bytes and exposed time of one step."""
    if not calls:
        return []
    stats = [call.collective.step for call in calls]
    names: list[Cell] = ["" if at and calls[at - 1].unit == call.unit else call.unit for at, call in enumerate(calls)]
    return [
        TableColumn("unit", names, left=True, least=8),
        TableColumn("collective", [(call.words, Ink(call.role)) for call in calls], left=True),
        TableColumn("calls", [f"{one.per_step:g}" for one in stats], need=3),
        TableColumn("bytes", [fmt.size(one.bytes) for one in stats]),
        TableColumn("median", [fmt.duration(one.median_ns) for one in stats], need=2),
        TableColumn("exposed", [fmt.duration(one.exposed_ns) for one in stats]),
        TableColumn("late rank", [late_text(one) for one in stats], need=1),
    ]


def no_collectives(run: RunView | None) -> str:
    """Why the table is empty."""
    if run is None:
        return "nothing yet"
    said = run.probes.get("collectives", "ok")
    if said != "ok":
        return f"collectives: {said}"
    if run.world_size == 1:
        return "one rank: there is nobody to communicate with"
    return "none measured yet: they are counted from the second step on"


def comm_title(run: RunView) -> str:
    """Bytes of each kind per step and rank."""
    parts = [
        f"{words} {fmt.size(value)}"
        for words, value in (
            ("AG", run.comm.all_gather_bytes),
            ("RS", run.comm.reduce_scatter_bytes),
            ("AR", run.comm.all_reduce_bytes),
        )
        if value
    ]
    return "collectives per step and rank" + (f" · {' · '.join(parts)}" if parts else "")


def step_phases(run: RunView) -> list[Phase]:
    """Median phases of a step, and how long compute waited for collectives in forward and in backward."""
    values = run.phases_ns or (None,) * len(PHASES)
    return [
        Phase(name, value, _exposed(run, name, ("all_gather",)), _exposed(run, name, ("reduce_scatter", "all_reduce")))
        for name, value in zip(PHASES, values, strict=False)
        if value is not None or name != "checkpoint"  # of which there was none
    ]


def _exposed(run: RunView, phase: str, kinds: Sequence[str]) -> int | None:
    """0 where no such collective happens in the phase; None where one does and its waiting time is not known."""
    if phase not in ("forward", "backward"):
        return 0
    if run.comm.exposed_ns is None and (run.units or run.buckets):
        return None  # no step after the first has told yet, or nobody measures it
    at = COMM_PHASES.index(phase)
    seen = [getattr(unit, kind).in_phase(at) for unit in run.units for kind in kinds]
    parts = [part.exposed_ns for part in seen if part.calls]
    if run.buckets and phase == "backward" and "all_reduce" in kinds:
        parts.append(run.comm.buckets_exposed_ns)
    known = [ns for ns in parts if ns is not None]
    return None if len(known) < len(parts) else sum(known)
