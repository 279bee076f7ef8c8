"""One rank in full: every memory category in bytes, its gauges, and why what is missing is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from fsdp_tui.telemetry import sheets
from fsdp_tui.telemetry.messages import CATEGORIES, PHASES, TOTAL_CATEGORIES, Capture, Stack
from fsdp_tui.telemetry.peak import why as why_there
from fsdp_tui.telemetry.sheets import Sheet
from fsdp_tui.telemetry.stalls import doing
from fsdp_tui.telemetry.view import Progress, RankView, adds_up, category, total
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.keys import RANK, bindings_of
from fsdp_tui.tui.screens.base import title_of
from fsdp_tui.tui.screens.replayed import Replayed
from fsdp_tui.tui.theme import GROUP_OF, Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Row, crop
from fsdp_tui.tui.widgets.chrome import Tabs
from fsdp_tui.tui.widgets.table import Reader, TableColumn, draw_table, paragraph

IDLE_NS = 5_000_000_000
"""From so long on it is told that nothing moves."""


class RankScreen(Replayed):
    """Opened on a rank of the Run screen."""

    KIND = RANK
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(RANK))

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def body(self) -> Iterable[Widget]:
        yield Reader(id="rank", classes="pane first")

    def on_tick(self) -> None:
        snapshot = self.board.snapshot
        run = snapshot.view if snapshot else None
        self.show_header()
        stack = "" if self.over else "{rank.stack} stack   "
        keys = self.board.keyed(f"{{rank.previous}} {{rank.next}} rank   {stack}{{back}} back")
        self.query_one(Tabs).show_notes([[(keys, QUIET)]])
        pane = self.query_one("#rank", Reader)
        found = next((rank for rank in run.ranks if rank.rank == self.rank), None) if run else None
        title_of(pane, f"rank {self.rank}")
        if found is None:
            pane.show(lambda width: paragraph(f"rank {self.rank} has not been heard of", width, QUIET))
        else:
            pane.show(lambda width: write_rank(found, width, run.started_ns if run else None))

    def action_stack(self) -> None:
        """Asks the rank what it is doing; the answer is shown here."""
        if self.going_on("ask"):
            self.board.command("stacks", (self.rank,))

    def sheets(self) -> Sequence[Sheet]:
        snapshot = self.board.snapshot
        run = snapshot.view if snapshot else None
        return [sheets.memory(run, [rank for rank in run.ranks if rank.rank == self.rank])] if run else ()

    def action_next(self) -> None:
        self._go(1)

    def action_previous(self) -> None:
        self._go(-1)

    def _go(self, by: int) -> None:
        snapshot = self.board.snapshot
        known = [rank.rank for rank in snapshot.view.ranks] if snapshot else []
        if self.rank in known:
            self.rank = known[(known.index(self.rank) + by) % len(known)]
            self.on_tick()


def write_rank(rank: RankView, width: int, started_ns: int | None = None) -> list[Row]:
    """Everything that is known of a rank. `started_ns`: of the run, which its times count from."""
    rows: list[Row] = []
    hello = rank.hello
    if hello is not None:
        rows += paragraph(
            f"{hello.host} · pid {hello.pid} · {hello.device} · {hello.device_name} · {hello.backend}"
            f" · {', '.join(f'{name} {version}' for name, version in hello.versions.items())}",
            width,
            QUIET,
        )
    said = f" · said goodbye: {rank.goodbye}" if rank.goodbye else ""
    paused = " · holding" if rank.paused else ""
    rows += paragraph(
        f"step {rank.steps:,} · {fmt.duration(rank.step_ns)} per step · probes {fmt.duration(rank.overhead_ns)} per step"
        f" · sent {rank.sent:,} · dropped {rank.dropped:,}{paused}{said}",
        width,
        LABEL,
    )
    if rank.progress is not None and rank.progress.phase:
        rows += paragraph(_at(rank.progress), width, LABEL)
    if rank.stack is not None:
        rows += [crop([], width), *_stack(rank.stack, width, started_ns)]
    rows.append(crop([], width))
    rows += _memory(rank, width)
    if rank.captures:
        rows += [crop([], width), crop([("last capture", STRONG)], width), *_capture(rank.captures[-1], width)]
    if rank.phases_ns:
        rows.append(crop([], width))
        known = dict(zip(PHASES, rank.phases_ns, strict=False))
        if known.get("checkpoint") is None:  # there was none
            known.pop("checkpoint", None)
        words = "  ".join(f"{name} {fmt.duration(ns)}" for name, ns in known.items())
        rows += paragraph(f"median step: {words}", width, LABEL)
    if rank.gauges or rank.missing:
        rows += [crop([], width), crop([("gauges", STRONG)], width), *_gauges(rank, width)]
    return rows


def _at(at: Progress) -> str:
    idle = f"; nothing has moved for {fmt.duration(at.idle_ns)}" if at.idle_ns >= IDLE_NS else ""
    return f"at its last heartbeat it {doing(at)}{idle}"


def _stack(stack: Stack, width: int, started_ns: int | None) -> list[Row]:
    """Each thread's calls, the innermost first: that is where it stands."""
    since = f" at {fmt.clock(max(0, stack.taken_ns - started_ns))}" if started_ns is not None else ""
    rows = [crop([(f"what it was doing{since}", STRONG), (", innermost call first", QUIET)], width)]
    for thread in stack.threads:
        if len(stack.threads) > 1:
            rows.append(crop([(thread.name, QUIET)], width))
        for frame in reversed(thread.frames):
            place = f"{frame.file}:{frame.line}" if frame.file else ""
            room = max(12, width - len(frame.function) - 4)
            place = place if len(place) <= room else f"…{place[1 - room :]}"
            rows.append(crop([("  ", QUIET), (frame.function, LABEL), (f"  {place}", QUIET)], width))
            if frame.code:
                rows.append(crop([(f"    {frame.code}", STRONG)], width))
    return rows


def _gauges(rank: RankView, width: int) -> list[Row]:
    rows: list[Row] = []
    for name, value in rank.gauges.items():
        if value is None and name in rank.missing:
            continue
        words = fmt.reading(name, value)
        if name == "throttle_reasons" and rank.throttle is not None:
            words = ", ".join(rank.throttle) or "none"
        text = fmt.UNKNOWN if value is None else f"{value:,}"
        rows.append(crop([(f"{name:<24}", QUIET), (f"{text:>18}", LABEL), (f"  {words}", QUIET)], width))
    if rank.other_processes:
        named = ", ".join(f"{pid} ({fmt.size(nbytes)})" for pid, nbytes in rank.other_processes)
        rows += paragraph(named, width, LABEL, first=[(f"{'other processes':<24}", QUIET)])
    reasons: dict[str, list[str]] = {}
    for name, why in rank.missing.items():
        reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():  # without NVML all its readings have one
        words = ", ".join(names)
        if len(names) > 1:
            rows += paragraph(words, width, QUIET)
            words = ""
        rows += paragraph(why, width, QUIET, first=[(f"{words:<24}", QUIET), ("not available: ", Ink("note"))])
    return rows


def _capture(capture: Capture, width: int) -> list[Row]:
    if capture.error:
        return paragraph(f"step {capture.step:,}: {capture.error}", width, Ink("warn"))
    rows = paragraph(f"step {capture.step:,}: the peak was in {why_there(capture)}", width, LABEL)
    levels = [(name, capture.peak[at]) for at, name in enumerate(TOTAL_CATEGORIES)]
    unit = fmt.scale_for([level for _, level in levels])
    held = "  ".join(f"{name} {fmt.in_unit(level, unit)}" for name, level in levels if level)
    rows += paragraph(f"{held}  total {fmt.in_unit(capture.peak[-1], unit)} {unit.name}", width, LABEL)
    for limit in capture.limits:
        rows += paragraph(limit, width, QUIET)
    return rows


def _memory(rank: RankView, width: int) -> list[Row]:
    if not rank.memory and not rank.peak:
        return paragraph("no memory measured yet: it is after the first step", width, QUIET)
    names = [*TOTAL_CATEGORIES, "total", *CATEGORIES[len(TOTAL_CATEGORIES) :]]

    def read(column: tuple[int | None, ...], name: str) -> int | None:
        return total(column) if name == "total" else category(column, name)

    now, peak = [read(rank.memory, name) for name in names], [read(rank.peak, name) for name in names]
    unit = fmt.scale_for([*now, *peak])
    letters = [GROUP_OF[name].key if name in GROUP_OF else "" for name in names]
    inks = [Ink(GROUP_OF[name].role, bold=True) if name in GROUP_OF else LABEL for name in names]
    table = [
        TableColumn("", list(zip(letters, inks, strict=True)), left=True),
        TableColumn("bytes", [(name, STRONG if name == "total" else LABEL) for name in names], left=True, least=8),
        TableColumn("after the step", [fmt.count(value) for value in now], need=1),
        TableColumn(unit.name, [fmt.in_unit(value, unit) for value in now], need=3),
        TableColumn("at the peak", [fmt.count(value) for value in peak]),
        TableColumn(unit.name, [fmt.in_unit(value, unit) for value in peak], need=2),
    ]
    rows = draw_table(table, width, len(names) + 1)
    where = f"the peak was in {rank.peak_phase or 'an unknown phase'}" + (
        f", unit {rank.peak_unit}" if rank.peak_unit else ""
    )
    rows += paragraph(f"{where}; highest total so far {fmt.count(rank.highest_bytes)} bytes", width, QUIET)
    for words, column in (("after the step", rank.memory), ("at the peak", rank.peak)):
        if not adds_up(column):
            rows += paragraph(f"{words} the categories do not add up to the total", width, Ink("bad"))
    return rows
