"""Texts beside a captured step: what held at one moment of it, and why its peak is where it is."""

from __future__ import annotations

import numpy as np

from fsdp_tui.telemetry.messages import PHASES, TOTAL_CATEGORIES, Capture
from fsdp_tui.telemetry.peak import why
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.theme import GROUP_OF, Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Row
from fsdp_tui.tui.widgets.lanes import in_flight
from fsdp_tui.tui.widgets.table import TableColumn, draw_table, paragraph
from fsdp_tui.tui.widgets.timeline import Timeline


def where(timeline: Timeline, ns: int) -> tuple[str, str, str]:
    """Phase, module and operator at a time: those of the operator that runs, else of the event before; "" where not known."""
    capture = timeline.capture
    at = int(np.searchsorted(capture.op_at_ns, ns, side="right")) - 1
    if at >= 0 and ns <= capture.op_at_ns[at] + capture.op_ns[at]:
        return PHASES[capture.op_phase[at]], capture.modules[capture.op_module[at]], capture.op_names[capture.op[at]]
    row = int(timeline.event[timeline.moment(ns)])
    if row < 0:
        return "", "", ""
    return PHASES[capture.phase[row]], capture.modules[capture.module[row]], ""


def place_text(timeline: Timeline, ns: int) -> str:
    """ "backward of blocks.3.down", "the beginning of the step"."""
    phase, module, _ = where(timeline, ns)
    if not phase:
        return "the beginning of the step"
    phase = "between the phases" if phase == "rest" else phase
    return f"{phase} of {module}" if module else phase


def write_moment(timeline: Timeline, ns: int, width: int) -> list[Row]:
    """Where the step is at a time, what has just changed, and each category beside the peak."""
    moment, peak = timeline.moment(ns), timeline.peak
    _, _, operator = where(timeline, ns)
    doing = [operator] if operator else []
    doing += [
        f"{kind.replace('_', '-')} of {module or 'no unit'} in flight" for kind, module in in_flight(timeline.lanes, ns)
    ]
    rows = paragraph(place_text(timeline, ns), width, STRONG, first=[(f"{fmt.duration(ns)}  ", QUIET)])
    rows += paragraph(" · ".join(doing) or "no operator runs", width, QUIET)
    if moment:
        change = timeline.levels[moment] - timeline.levels[moment - 1]
        parts = [f"{fmt.size(int(change[at]), signed=True)} {TOTAL_CATEGORIES[at]}" for at in np.flatnonzero(change)]
        ago = ns - int(timeline.at_ns[moment])
        when = f", {fmt.duration(ago)} before" if ago else ""
        if parts:
            rows += paragraph(", ".join(parts) + when, width, LABEL, first=[("last change  ", QUIET)])
    here, there = timeline.levels[moment], timeline.levels[peak]
    # The total, and what makes most of the peak first: in an order that the cursor does not change.
    used = sorted(np.flatnonzero(timeline.levels.any(axis=0)).tolist(), key=lambda at: -there[at])
    values = [
        (int(timeline.total[moment]), int(timeline.total[peak])),
        *((int(here[at]), int(there[at])) for at in used),
    ]
    unit = fmt.scale_for([value for pair in values for value in pair])._replace(decimals=2)
    names = ["total", *(TOTAL_CATEGORIES[at] for at in used)]
    inks = [Ink(GROUP_OF[name].role, bold=True) if name in GROUP_OF else LABEL for name in names]
    keys = [GROUP_OF[name].key if name in GROUP_OF else "" for name in names]
    ink_of = [STRONG if name == "total" else LABEL for name in names]
    table = [
        TableColumn("", list(zip(keys, inks, strict=True)), left=True),
        TableColumn(unit.name, list(zip(names, ink_of, strict=True)), left=True),
        TableColumn("here", [(fmt.in_unit(a, unit), ink) for (a, _), ink in zip(values, ink_of, strict=True)]),
        TableColumn("at the peak", [(fmt.in_unit(b, unit), QUIET) for _, b in values], need=1),
        TableColumn(
            "difference", [(fmt.in_unit(a - b, unit, signed=True) if a != b else "", QUIET) for a, b in values], need=2
        ),
    ]
    return rows + draw_table(table, width, len(names) + 1)


def write_why(capture: Capture, width: int) -> list[Row]:
    """The sentence, what the capture could not see, and the largest parts of the peak."""
    rows = paragraph(why(capture), width, LABEL)
    for limit in capture.limits:
        rows += paragraph(limit, width, QUIET, first=[("· ", Ink("note", bold=True))])
    parts = capture.peak_parts
    if not parts:
        return rows
    unit = fmt.scale_for([part.nbytes for part in parts])._replace(decimals=2)
    names = [part.category + (f" → {part.becomes}" if part.becomes else "") for part in parts]
    table = [
        TableColumn(
            "",
            [
                (GROUP_OF[part.category].key, Ink(GROUP_OF[part.category].role, bold=True))
                if part.category in GROUP_OF
                else ""
                for part in parts
            ],
            left=True,
        ),
        TableColumn("at the peak", names, left=True, least=14),
        TableColumn("of", [part.module or fmt.UNKNOWN for part in parts], left=True, least=10),
        TableColumn(unit.name, [fmt.in_unit(part.nbytes, unit) for part in parts]),
        TableColumn("tensors", [(fmt.count(part.storages), QUIET) for part in parts], need=1),
    ]
    return [*rows, *draw_table(table, width, len(parts) + 1)]
