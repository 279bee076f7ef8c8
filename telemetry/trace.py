"""Captures as files for other programs: a Perfetto or Chrome trace, and plain JSON.

The trace is Chrome's JSON format (Trace Event Format): ui.perfetto.dev, chrome://tracing and speedscope open it. Each rank
is a process; ranks are aligned by their hosts' wall clocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fsdp_tui.telemetry.messages import CATEGORIES, COLLECTIVES, PHASES, TOTAL_CATEGORIES, Capture
from fsdp_tui.telemetry.peak import place, unsharded_units, why
from fsdp_tui.telemetry.view import as_dict

PHASE_TRACK, MODULE_TRACK, OP_TRACK, BACKWARD_TRACK = 1, 2, 3, 4
TRACKS = {PHASE_TRACK: "phases", MODULE_TRACK: "modules", OP_TRACK: "operators", BACKWARD_TRACK: "modules in backward"}


def summary(capture: Capture) -> dict[str, Any]:
    """What `show` tells of a capture: the peak and why it is where it is."""
    return {
        "rank": capture.rank,
        "step": capture.step,
        "id": capture.id,
        "began_ns": capture.began_ns,
        "step_ns": capture.step_ns,
        "error": capture.error or None,
        "peak_bytes": capture.peak[-1] if capture.peak else None,
        "peak_at_ns": capture.peak_at_ns if capture.peak else None,
        "peak_phase": capture.peak_phase or None,
        "peak_module": capture.peak_module or None,
        "where": place(capture) if capture.peak else None,
        "why": why(capture) or None,
        "categories": as_dict(tuple(capture.peak)),
        "start": as_dict(tuple(capture.base)),
        "saved_bytes": capture.saved_bytes if capture.peak else None,
        "unsharded_units": [part.module for part in unsharded_units(capture)],
        "events": capture.events,
        "events_kept": len(capture.at_ns),
        "operators": capture.ops,
        "operators_kept": len(capture.op),
        "limits": list(capture.limits),
    }


def levels(capture: Capture) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Bytes per category of TOTAL_CATEGORIES (columns) after each row of the capture (rows)."""
    count = len(TOTAL_CATEGORIES)
    changes = np.zeros((len(capture.at_ns), count), dtype=np.int64)
    changes[np.arange(len(changes)), capture.category] = capture.delta_bytes
    base = np.array([value or 0 for value in capture.base[:count]] or [0] * count, dtype=np.int64)
    whole: np.ndarray[Any, np.dtype[np.int64]] = base + np.cumsum(changes, axis=0)
    return whole


def plain(run_id: str, captures: Sequence[Capture]) -> dict[str, Any]:
    """Everything that was captured, with names instead of indices where a person would look."""
    return {"run": run_id, "categories": list(CATEGORIES), "phases": list(PHASES), "captures": [*map(_plain, captures)]}


def _plain(capture: Capture) -> dict[str, Any]:
    return {
        **summary(capture),
        "peak_parts": [
            {
                "category": part.category,
                "module": part.module or None,
                "bytes": part.nbytes,
                "storages": part.storages,
                "becomes": part.becomes or None,
            }
            for part in capture.peak_parts
        ],
        "memory": {
            "at_ns": capture.at_ns,
            "delta_bytes": capture.delta_bytes,
            "category": [CATEGORIES[at] for at in capture.category],
            "module": [capture.modules[at] for at in capture.module],
            "phase": [PHASES[at] for at in capture.phase],
        },
        "operator_calls": {
            "name": [capture.op_names[at] for at in capture.op],
            "at_ns": capture.op_at_ns,
            "ns": capture.op_ns,
            "module": [capture.modules[at] for at in capture.op_module],
            "phase": [PHASES[at] for at in capture.op_phase],
        },
        "module_calls": {
            "module": [capture.modules[at] for at in capture.span_module],
            "at_ns": capture.span_at_ns,
            "ns": capture.span_ns,
        },
        "collectives": {
            "kind": [COLLECTIVES[at] for at in capture.call_kind],
            "module": [capture.modules[at] for at in capture.call_module],
            "bytes": capture.call_nbytes,
            "at_ns": capture.call_at_ns,
            "ns": [ns if ns >= 0 else None for ns in capture.call_ns],
        },
    }


def perfetto(run_id: str, captures: Sequence[Capture]) -> dict[str, Any]:
    """A trace: memory counters by category, slices of phases, modules, operators and collectives."""
    first_ns = min((capture.began_ns for capture in captures), default=0)
    events = [event for capture in captures for event in _events(capture, capture.began_ns - first_ns)]
    notes = {f"rank {capture.rank}": summary(capture) for capture in captures}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": run_id, **notes}}


def _events(capture: Capture, offset_ns: int) -> Iterator[dict[str, Any]]:
    rank = capture.rank

    def named(kind: str, name: str, track: int = 0) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": rank, "tid": track, "args": {"name": name}}

    def us(at_ns: int) -> float:
        return (offset_ns + at_ns) / 1e3

    def piece(name: str, track: int, at_ns: int, ns: int, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "name": name, "pid": rank, "tid": track, "ts": us(at_ns), "dur": ns / 1e3, "args": args}

    def counters(at_ns: int, values: Sequence[int]) -> Iterator[dict[str, Any]]:
        for name, value in (*zip(TOTAL_CATEGORIES, values, strict=True), ("total", sum(values))):
            if name == "total" or name in used:
                yield {"ph": "C", "name": name, "pid": rank, "ts": us(at_ns), "args": {"bytes": value}}

    yield named("process_name", f"rank {rank}, step {capture.step}")
    for track, name in TRACKS.items():
        yield named("thread_name", name, track)
    rows = levels(capture)
    base = [value or 0 for value in capture.base[: len(TOTAL_CATEGORIES)]] or [0] * len(TOTAL_CATEGORIES)
    used = {name for at, name in enumerate(TOTAL_CATEGORIES) if base[at] or (len(rows) and rows[:, at].any())}
    yield from counters(0, base)
    for at, at_ns in enumerate(capture.at_ns):
        if at + 1 == len(rows) or capture.at_ns[at + 1] != at_ns:  # the last of those at one time has them all
            yield from counters(at_ns, rows[at].tolist())
    if capture.peak:
        yield {
            "ph": "i",
            "s": "p",
            "name": f"peak: {why(capture)}",
            "pid": rank,
            "tid": OP_TRACK,
            "ts": us(capture.peak_at_ns),
        }
    for module, at_ns, ns in zip(capture.span_module, capture.span_at_ns, capture.span_ns, strict=True):
        yield piece(capture.modules[module] or "model", MODULE_TRACK, at_ns, ns)
    ops = list(zip(capture.op, capture.op_at_ns, capture.op_ns, capture.op_module, capture.op_phase, strict=True))
    for op, at_ns, ns, module, phase in ops:
        yield piece(capture.op_names[op], OP_TRACK, at_ns, ns, module=capture.modules[module], phase=PHASES[phase])
    yield from (piece(PHASES[phase], PHASE_TRACK, *when) for phase, *when in _runs([(op[4], *op[1:3]) for op in ops]))
    backward = [(op[3], *op[1:3]) for op in ops if PHASES[op[4]] == "backward"]
    for module, *when in _runs(backward):
        if module:
            yield piece(capture.modules[module], BACKWARD_TRACK, *when)
    for at, (kind, module, nbytes, at_ns, ns) in enumerate(
        zip(
            capture.call_kind,
            capture.call_module,
            capture.call_nbytes,
            capture.call_at_ns,
            capture.call_ns,
            strict=True,
        )
    ):
        # Asynchronous ones overlap, which slices of one track must not: each is a track of its own, drawn together.
        common = {"cat": "collective", "name": COLLECTIVES[kind], "pid": rank, "tid": 0, "id": f"{rank}.{at}"}
        args = {"module": capture.modules[module], "bytes": nbytes, "duration known": ns >= 0}
        yield {**common, "ph": "b", "ts": us(at_ns), "args": args}
        yield {**common, "ph": "e", "ts": us(at_ns + max(0, ns))}


def _runs(pieces: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Neighbours with the same key as one: key, begin and duration."""
    key, begin, end = -1, 0, 0
    for this, at_ns, ns in pieces:
        if this != key:
            if key >= 0:
                yield key, begin, end - begin
            key, begin = this, at_ns
        end = at_ns + ns
    if key >= 0:
        yield key, begin, end - begin
