"""Where the time of a step goes: its phases in a row, with the parts in which compute waits for communication hatched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fsdp_tui.tui.format import NANOSECONDS, UNKNOWN, in_unit, scale_for
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, Chart, Row, crop, wrap


class PhaseLook(NamedTuple):
    """How a phase looks: its letter, role, and names in a wide and in a narrow legend."""

    key: str
    role: str
    label: str
    short: str


PHASE_LOOKS = {
    "input": PhaseLook("i", "phase-input", "input", "in"),
    "forward": PhaseLook("f", "phase-forward", "forward", "fwd"),
    "backward": PhaseLook("b", "phase-backward", "backward", "bwd"),
    "optimizer": PhaseLook("o", "phase-optimizer", "optimizer", "opt"),
    "rest": PhaseLook("·", "phase-rest", "rest", "rest"),
    "checkpoint": PhaseLook("c", "phase-rest", "checkpoint", "ckpt"),
}
"""By the names of telemetry.messages.PHASES."""
_GATHER, _REDUCE = "╱", "╲"


@dataclass(frozen=True)
class Phase:
    """One phase of a step. Exposed communication is a part of it, not beside it."""

    name: str
    """One of telemetry.messages.PHASES."""
    ns: float | None
    """None: not known; its time is then in `rest`."""
    gather_ns: float | None = 0
    """Of it, waiting for all-gathers."""
    reduce_ns: float | None = 0
    """Of it, waiting for reduce-scatters and all-reduces."""


def draw_phases(phases: Sequence[Phase], width: int, height: int, *, letters: bool = False) -> list[Row]:
    """The bar (as tall as there is room for) and below it what it shows, in at most `height` rows of `width` cells."""
    if width < 1 or height < 1:
        return []
    if not any(phase.ns for phase in phases):
        return [crop([("no step measured yet", QUIET)], width)]
    bar = phase_bar(phases, width, letters=letters)
    legend = phase_legend(phases, width, max(0, min(3, height - 1)))
    return [bar] * max(1, min(2, height - len(legend))) + legend


def phase_bar(phases: Sequence[Phase], width: int, *, letters: bool = False) -> Row:
    """One row of exactly `width` cells; each part ends where its time ends, to the nearest cell."""
    parts: list[tuple[str, Ink, float]] = []
    for phase in phases:
        look = PHASE_LOOKS[phase.name]
        whole = max(0.0, phase.ns or 0)
        gather, reduce = (max(0.0, value or 0) for value in (phase.gather_ns, phase.reduce_ns))
        waiting = gather + reduce
        if waiting > whole:  # measured on other clocks: keep their ratio inside the phase
            gather, reduce = gather * whole / waiting, reduce * whole / waiting
        solid = (look.key, Ink(look.role)) if letters or look.key == "·" else (" ", Ink(look.role, look.role))
        if look.key == "·":
            solid = ("·", Ink("free-dot", "" if letters else look.role))
        parts.append((*solid, whole - gather - reduce))
        behind = "" if letters else "free"
        parts += [(_GATHER, Ink("gather", behind, True), gather), (_REDUCE, Ink("reduce", behind, True), reduce)]
    ends = np.cumsum([part[2] for part in parts])
    if not ends[-1] > 0:
        return crop([], width)
    edges = [0, *np.rint(ends / ends[-1] * width).astype(int).tolist()]
    return [(glyph * (b - a), ink) for (glyph, ink, _), a, b in zip(parts, edges, edges[1:], strict=False) if b > a]


def phase_legend(phases: Sequence[Phase], width: int, height: int) -> list[Row]:
    """Letters, names and times in one unit; wrapped to whole entries, in at most `height` rows."""
    if height < 1:
        return []
    unit = scale_for([phase.ns for phase in phases], NANOSECONDS)
    gathers, reduces = [p.gather_ns for p in phases if p.ns], [p.reduce_ns for p in phases if p.ns]
    totals = [None if any(v is None for v in part) else sum(v or 0 for v in part) for part in (gathers, reduces)]
    rows: list[Row] = []
    left = 0
    for wide in (True, False):
        if not wide and unit.size > 1 and max(phase.ns or 0 for phase in phases) >= 100 * unit.size:
            unit = unit._replace(decimals=0)
        pieces: list[Row] = []
        for phase in phases:
            look = PHASE_LOOKS[phase.name]
            # Without what is told apart below, so that all the times add up to the step, as the parts of the bar do.
            waiting = (phase.gather_ns or 0) + (phase.reduce_ns or 0)
            value = UNKNOWN if phase.ns is None else in_unit(max(0, phase.ns - waiting), unit)
            name = look.label if wide else look.short
            pieces.append(
                [(look.key, Ink("free-dot" if look.key == "·" else look.role, bold=True)), (f" {name} ", QUIET)]
                + [(value, LABEL)]
                + ([(f" {unit.name}", QUIET)] if wide else [])
            )
        for glyph, role, name, value_ns in (
            (_GATHER, "gather", "exposed all-gather" if wide else "AG", totals[0]),
            (_REDUCE, "reduce", "exposed reduce" if wide else "RS", totals[1]),
        ):
            share: Row = [(glyph, Ink(role, bold=True)), (f" {name} ", QUIET), (in_unit(value_ns, unit), LABEL)]
            pieces.append(share + ([(f" {unit.name}", QUIET)] if wide else []))
        if not wide:
            pieces[-1].append((f" {unit.name}", QUIET))
        rows, left = wrap(pieces, width, height, gap="   " if wide else " ")
        if not left:
            break
    return [*rows[:-1], [*crop(rows[-1], width - 1), ("…", QUIET)]] if left and rows else rows


class PhaseBar(Chart):
    """The phases of one step."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._phases: Sequence[Phase] = ()

    def show_phases(self, phases: Sequence[Phase]) -> None:
        """Draw these."""
        self._phases = phases
        self.redraw()

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        return draw_phases(self._phases, width, height, letters=letters)
