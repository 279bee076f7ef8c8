"""Screen 1: one run, live or recorded. Memory per rank, verdicts, loss, throughput, step, collectives, events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.events import Click
from textual.message import Message
from textual.widget import Widget

from fsdp_tui.telemetry import sheets
from fsdp_tui.telemetry.notes import Note
from fsdp_tui.telemetry.sheets import Sheet
from fsdp_tui.telemetry.view import RankView, RunView, model_states, total
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.filters import FilterError, RankTest, UnitTest, rank_filter, split_unit_filter
from fsdp_tui.tui.keys import RUN, bindings_of
from fsdp_tui.tui.screens.bands import Band, Banded
from fsdp_tui.tui.screens.base import Text, subtitle_of, title_of
from fsdp_tui.tui.screens.details import write_call, write_events
from fsdp_tui.tui.screens.logs import LogsScreen
from fsdp_tui.tui.screens.rank import RankScreen
from fsdp_tui.tui.source import Snapshot
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.bars import Column, MemoryBars, rank_bars
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, Row, crop, flow
from fsdp_tui.tui.widgets.chrome import Tabs, own_share
from fsdp_tui.tui.widgets.findings import draw_card, draw_strip, peak_spread, write_verdicts
from fsdp_tui.tui.widgets.lines import LineChart, Plot, Series
from fsdp_tui.tui.widgets.phases import PhaseBar
from fsdp_tui.tui.widgets.table import Pane, Reader, Table, paragraph
from fsdp_tui.tui.widgets.traffic import (
    Call,
    calls_of,
    collective_columns,
    comm_title,
    no_collectives,
    step_phases,
)

SORTS = ("rank", "peak", "states", "lateness")
WINDOWS = (None, 1000, 200, 50)
"""Steps that the charts show; None: all."""
NOTE_WIDTH = 40
"""Of a note above the panes; the events pane has it in full."""
WIDE, MEDIUM = 100, 60
"""From these widths on: two panes side by side everywhere; the charts side by side."""


def bands_for(width: int, ranks: int, calls: int, verdicts: int = 2) -> list[Band]:
    """The rows of panes for a width, the most important first."""
    bars = min(400, 5 + 4 * max(1, ranks))
    table = 3 + max(3, calls)
    if width >= WIDE:
        return [
            Band("top", 9, max(14, bars), 4),
            Band("charts", 7, 40, 4),
            Band("step", 5, 6, 1),
            Band("lists", 6, max(8, table), 3),
        ]
    if width >= MEDIUM:
        return [
            Band("top", 7, bars, 4),
            Band("strip", max(1, min(2, verdicts)), max(1, min(4, verdicts)), 1),
            Band("charts", 7, 30, 4),
            Band("step", 4, 6, 1),
            Band("lists", 10, 10 + table, 3),
        ]
    return [
        Band("top", 5, bars, 3),
        Band("strip", 2, 4, 1),
        Band("charts", 12, 24, 2),
        Band("step", 4, 6, 1),
        Band("lists", 10, 10 + table, 1),
    ]


class RankBars(MemoryBars):
    """The bars, with a cursor on a rank."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
    ]

    empty = ""
    """Said instead of the bars."""

    class Moved(Message):
        """The cursor is to move by some bars, or to one."""

        def __init__(self, by: int = 0, to: int | None = None) -> None:
            super().__init__()
            self.by = by
            self.to = to

    def action_move(self, by: int) -> None:
        self.post_message(self.Moved(by))

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        return [crop([(self.empty, QUIET)], width)] if self.empty else super().draw(width, height, letters)

    def on_click(self, event: Click) -> None:
        at = event.get_content_offset(self)
        if at is not None and (bar := self.bar_at(at.x, at.y)) is not None:
            self.post_message(self.Moved(to=bar))


class RunScreen(Banded):
    """The open run."""

    KIND = RUN
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(RUN))
    BANDS = ("top", "strip", "charts", "step", "lists")
    FILTER_HINT = "ranks: 5   8-15   >90%   node:pattern   any pattern   !inverts   collectives: unit:pattern"

    def __init__(self) -> None:
        super().__init__()
        self.sort = 0
        self.reverse = False
        self.log_scale = False
        self.window = 0
        self.at_peak = True
        self.rank = 0
        """The one that the cursor is on."""
        self._keep: RankTest = rank_filter("")
        self._keep_unit: UnitTest = split_unit_filter("")[1]
        self._drawn: tuple[object, ...] = ()
        self._drawn_run: RunView | None = None

    def body(self) -> Iterable[Widget]:
        bars = RankBars(id="memory", classes="pane first")
        loss, rate = LineChart(id="loss", classes="pane"), LineChart(id="rate", classes="pane")
        step = PhaseBar(id="phases", classes="pane")
        loss.can_focus = rate.can_focus = step.can_focus = True
        yield VerticalScroll(
            Horizontal(bars, Pane(id="verdicts", classes="pane"), id="top"),
            Pane(id="strip"),
            Horizontal(loss, rate, id="charts"),
            Horizontal(step, id="step"),
            Horizontal(
                Table(id="collectives", classes="pane"),
                Reader(id="events", classes="pane"),
                id="lists",
            ),
            id="body",
            can_focus=False,
        )
        yield Pane(id="status")

    def compose(self) -> ComposeResult:
        yield from super().compose()

    def on_mount(self) -> None:
        self.query_one("#status").can_focus = False
        settings = self.board.settings
        self.log_scale, self.at_peak = settings.log_loss, settings.memory == "peak"
        self.window = WINDOWS.index(settings.window if isinstance(settings.window, int) else None)

    @property
    def snapshot(self) -> Snapshot | None:
        """What the panels show."""
        return self.frozen or self.board.snapshot

    def on_run_opened(self) -> None:
        self.frozen, self.rank, self._drawn = None, 0, ()
        if self.ready:
            self.end_filter()

    def sheets(self) -> Sequence[Sheet]:
        shown = self.snapshot
        if shown is None:
            return ()
        run = shown.view
        return [sheets.memory(run, self.ranks()), sheets.series(run), sheets.collectives(run)]

    # Drawing

    def on_tick(self) -> None:
        if not self.ready:
            return
        self.show_header()
        self.query_one(Tabs).show_notes(self._notes(), urgent=self.frozen is not None)
        shown = self.snapshot
        run = shown.view if shown else None
        key = (
            self.size,
            self.query_one("#body").size,
            self.at_peak,
            self.sort,
            self.reverse,
            self.log_scale,
            self.window,
            self.rank,
            self._keep,
            self._keep_unit,
            self.zoomed,
            self._note,
        )
        if run is self._drawn_run and key == self._drawn:
            return
        self._drawn_run, self._drawn = run, key
        self._lay_out(run)
        self._show_memory(run)
        self._show_verdicts(run)
        self._show_charts(run)
        self._show_step(run)
        self._show_lists(run)
        self.query_one("#status", Pane).show(lambda width, height, letters: self._status(run, width))

    def _notes(self) -> list[Row]:
        notes: list[Row] = []
        if self.frozen:
            key = self.board.keyed("({run.freeze})")
            notes.append([(f"❚❚ panels frozen at step {self.frozen.view.steps:,} {key}", Ink("warn", bold=True))])
        text = self.filter_text
        if text:
            notes.append([(f"filter: {text}", Ink("ok"))])
        if line := self._note.line:
            notes.append([(line if len(line) <= NOTE_WIDTH else fmt.fit(line, NOTE_WIDTH), LABEL)])
        notes.append([(f"sort: {SORTS[self.sort]} {'▴' if self.reverse else '▾'}", QUIET)])
        notes.append([(f"{self.board.pace.hz:g} Hz", QUIET)])
        return notes

    @property
    def _note(self) -> Note:
        """What a person wrote on the run."""
        feed = self.board.feed
        return self.board.entry_now(feed.entry).note if feed is not None else Note()

    def action_note(self) -> None:
        if self.board.feed is not None:
            self.board.ask_note(self.board.feed.entry)

    @property
    def filter_text(self) -> str:
        from textual.widgets import Input

        return self.query_one("#filter-text", Input).value.strip()

    def on_filter(self, text: str) -> str:
        try:
            words, self._keep_unit = split_unit_filter(text)
            self._keep = rank_filter(words)
        except FilterError as error:
            return str(error)
        return ""

    def _calls(self, run: RunView) -> list[Call]:
        """The collectives that are shown."""
        return [call for call in calls_of(run) if self._keep_unit(call.unit)]

    def ranks(self) -> list[RankView]:
        """Those that are shown, in their order."""
        shown = self.snapshot
        if shown is None:
            return []
        run = shown.view
        late = lateness(run) if SORTS[self.sort] == "lateness" else ()
        keys = {
            "rank": lambda rank: rank.rank,
            "peak": lambda rank: -(rank.highest_bytes or 0),
            "states": lambda rank: -(model_states(rank.memory) or 0),
            "lateness": lambda rank: -late[rank.rank],
        }
        kept = [rank for rank in run.ranks if self._keep(rank)]
        return sorted(kept, key=keys[SORTS[self.sort]], reverse=self.reverse)

    def _lay_out(self, run: RunView | None) -> None:
        width = self.size.width
        self.set_class(width >= WIDE, "-wide")
        self.set_class(width < MEDIUM, "-narrow")
        ranks = len(self.ranks()) if run else 1
        self.lay_out(bands_for(width, ranks, len(self._calls(run)) if run else 0, len(run.verdicts) if run else 1))

    def _show_memory(self, run: RunView | None) -> None:
        pane = self.query_one("#memory", RankBars)
        if run is None or not run.ranks:
            title_of(pane, "memory per rank")
            pane.show_bars(None)
            return
        ranks = self.ranks()
        pane.empty = "" if ranks else f"no rank matches {self.filter_text}"
        chosen = next((rank.rank for rank in ranks if rank.rank == self.rank), ranks[0].rank if ranks else 0)
        hello = next((rank.hello for rank in run.ranks if rank.hello), None)
        device = hello is not None and hello.device.startswith("cuda")
        capacity = hello.capacity_bytes if device and hello else None
        bars = rank_bars(
            [rank.rank for rank in ranks],
            [(rank.peak if self.at_peak else rank.memory) or None for rank in ranks],
            peak_bytes=[rank.highest_bytes for rank in ranks],
            ideal_bytes=run.ideal_state_bytes,
            capacity_bytes=capacity,
            device=device,
            flags=[rank_flag(run, rank) for rank in ranks],
            selected_rank=chosen if len(run.ranks) > 1 and pane.has_focus and not self.board.still else None,
        )
        now = [float("nan") if (held := total(rank.memory)) is None else float(held) for rank in ranks]
        bars = replace(
            bars,
            columns=[
                Column("now", now, essential=not self.at_peak),
                replace(bars.columns[1], essential=self.at_peak),
                *bars.columns[2:],
            ],
        )
        when = "at the peak of a step" if self.at_peak else "after the optimizer's step"
        title_of(pane, f"memory per rank {when} · {bars.unit.name}")
        subtitle_of(pane, peak_spread(run) if self.size.width >= WIDE else "")
        pane.show_bars(bars)

    def _show_verdicts(self, run: RunView | None) -> None:
        card = self.query_one("#verdicts", Pane)
        title_of(card, "verdict")
        keyed = self.board.keyed
        card.show(lambda width, height, letters: draw_card(run, width, height, keyed))
        self.query_one("#strip", Pane).show(lambda width, height, letters: draw_strip(run, width, height, keyed))

    def _show_charts(self, run: RunView | None) -> None:
        loss, rate = self.query_one("#loss", LineChart), self.query_one("#rate", LineChart)
        if run is None:
            title_of(loss, "loss")
            title_of(rate, "tokens/s")
            loss.show_plot(Plot())
            rate.show_plot(Plot())
            return
        # The newest step is still being reported by some ranks: a mean over the others would jump.
        whole = int(np.searchsorted(run.series.steps, run.steps, side="right"))
        x, losses, rates = (
            run.series.steps[:whole].astype(float),
            run.series.loss[:whole],
            run.throughput.series[:whole],
        )
        last = WINDOWS[self.window]
        window = (x[-1] - last, float("inf")) if last and len(x) else None
        span = f" · last {last:,} steps" if last else ""
        title_of(
            loss,
            f"loss {fmt.number(last_known(losses[run.series.loss_known[:whole]]))}{trend(losses)}{' · log' if self.log_scale else ''}{span}",
        )
        smooth = self.board.settings.smooth(len(x))
        loss.show_plot(
            Plot(
                series=[Series(x, losses, smooth=smooth, known=run.series.loss_known[:whole])],
                log=self.log_scale,
                window=window,
            )
        )
        ranks = max(1, run.world_size)
        unit, per_s, _ = run.throughput
        per_rank = f" · {fmt.rate(per_s / ranks)} per rank" if per_s and ranks > 1 else ""
        title_of(rate, f"{unit} {fmt.rate(per_s)}{per_rank}{span}")
        rate.show_plot(
            Plot(
                series=[Series(x, rates, role="series-4", known=np.isfinite(rates))],
                window=window,
                y_units=fmt.ONES,
                empty="no tokens or samples counted yet",
            )
        )

    def _show_step(self, run: RunView | None) -> None:
        pane = self.query_one("#phases", PhaseBar)
        words = "one step"
        if run and run.step_median_ns is not None:
            words = f"one step · {fmt.duration(run.step_median_ns)} median · {fmt.duration(run.step_p95_ns)} p95"
        title_of(pane, words)
        pane.show_phases(step_phases(run) if run else [])

    def _show_lists(self, run: RunView | None) -> None:
        collectives, events = self.query_one("#collectives", Table), self.query_one("#events", Reader)
        title_of(collectives, comm_title(run) if run else "collectives")
        collectives.empty = f"none matches {self.filter_text}" if run and calls_of(run) else no_collectives(run)
        collectives.show_columns(collective_columns(self._calls(run)) if run else [])
        title_of(events, f"events · {len(run.events):,}" if run else "events")
        note = self._note
        events.show(
            lambda width: [
                *(paragraph(note.line, width, first=[("note  ", QUIET)]) if note else []),
                *(write_events(run, width) if run and run.events else paragraph("no events", width, QUIET)),
            ]
        )

    def _status(self, run: RunView | None, width: int) -> list[Row]:
        """What watching costs, what was lost on the way, and what lies below the fold."""
        trouble: list[Row] = []
        calm: list[Row] = []
        below = {"lists": "collectives, events", "step": "step", "charts": "loss", "strip": "verdicts"}
        hint: list[Row] = []
        if self.below and self.zoomed is None:
            hidden = ", ".join(below[name] for name in self.below if name in below)
            where = f"not shown, needs more lines: {hidden}" if self.board.still else f"▼ {hidden}: {self.next_pane}"
            hint = [[(where, Ink("ok"))]]
        if run is not None:
            cost = f"watching costs {fmt.duration(run.overhead_ns)}/step"
            if run.overhead_ns is not None and run.step_median_ns:
                cost += f" ({own_share(run)})"
            calm.append([(cost, QUIET)])
            for count, word in ((run.dropped, "dropped"), (run.bad_records, "bad records")):
                if count:
                    trouble.append([(f"▲ {word} {count:,}", Ink("warn", bold=True))])
                else:
                    calm.append([(f"{word} 0", QUIET)])
            missing = [probe for probe, said in run.probes.items() if said != "ok"]
            if missing:
                calm.append([(f"not available: {', '.join(missing)}", Ink("note"))])
        row, _ = flow([*trouble, *hint, *calm], max(0, width - 2), gap="   ")
        return [crop([(" ", LABEL), *row], width)]

    # Keys

    def on_rank_bars_moved(self, event: RankBars.Moved) -> None:
        ranks = self.ranks()
        if not ranks:
            return
        at = next((index for index, rank in enumerate(ranks) if rank.rank == self.rank), 0)
        at = event.to if event.to is not None else max(0, min(len(ranks) - 1, at + event.by))
        self.rank = ranks[min(at, len(ranks) - 1)].rank
        self.on_tick()

    def on_descendant_focus(self) -> None:
        self._drawn = ()
        self.on_tick()

    def action_sort(self) -> None:
        self.sort = (self.sort + 1) % len(SORTS)
        self.on_tick()

    def action_sort_reverse(self) -> None:
        self.reverse = not self.reverse
        self.on_tick()

    def action_log_y(self) -> None:
        self.log_scale = not self.log_scale
        self.on_tick()

    def action_moment(self) -> None:
        self.at_peak = not self.at_peak
        self.on_tick()

    def action_window(self) -> None:
        self.window = (self.window + 1) % len(WINDOWS)
        self.on_tick()

    def action_open(self) -> None:
        """Details of the focused pane."""
        shown, focused = self.snapshot, self.focused
        if shown is None or focused is None:
            return
        run = shown.view
        if focused.id == "memory" and (ranks := self.ranks()):
            chosen = self.rank if any(rank.rank == self.rank for rank in ranks) else ranks[0].rank
            self.app.push_screen(RankScreen(chosen))
        elif focused.id in ("verdicts", "strip"):
            self.app.push_screen(Text("verdicts", lambda width: write_verdicts(run, width, self.board.keyed)))
        elif focused.id == "collectives" and (calls := self._calls(run)):
            call = calls[min(self.query_one("#collectives", Table).cursor, len(calls) - 1)]
            self.app.push_screen(Text(f"{call.unit} · {call.words}", lambda width: write_call(call, run, width)))
        elif focused.id == "events" and run.events:
            self.app.push_screen(Text("events", lambda width: write_events(run, width)))
        elif focused.has_class("pane"):
            self.action_zoom()

    def action_logs(self) -> None:
        if self.board.feed is not None:
            self.app.push_screen(LogsScreen(self.board.feed.entry, self.rank))

    def action_copy(self) -> None:
        shown = self.snapshot
        if shown and shown.view.launched:
            import shlex

            self.board.copy(shlex.join(shown.view.launched.command))

    def action_restart(self) -> None:
        if self.board.feed is not None:
            self.board.prepare_launch(self.board.feed.entry)

    def action_stop(self) -> None:
        if not self.going_on("stop"):
            return
        name = self.board.feed.entry.name if self.board.feed else ""
        self.board.ask(
            f"Stop the training {name}? All ranks stop after the same step. What is recorded stays; the training cannot go on afterwards.",
            [("n", "no, let it train", "no"), ("s", "stop it", "stop")],
            lambda answer: self.board.command("stop") if answer == "stop" else None,
        )

    def action_hold(self) -> None:
        if not self.going_on("hold"):
            return
        if self.board.now and self.board.now.view.state == "paused":
            self.board.command("resume")
            return
        self.board.ask(
            self.board.keyed(
                "Hold the training? All ranks wait after the same step, keep their memory, and go on when you press {run.hold}"
                " again."
            ),
            [("n", "no, let it train", "no"), ("h", "hold it", "hold")],
            lambda answer: self.board.command("pause") if answer == "hold" else None,
        )


def lateness(run: RunView) -> NDArray[np.float64]:
    """By rank, ns per step that others waited for it, over all collectives."""
    late = np.zeros(1 + max((rank.rank for rank in run.ranks), default=0))
    for call in calls_of(run):
        values = np.nan_to_num(call.collective.step.late_ns.values_ns)[: len(late)]
        late[: len(values)] += values
    return late


def rank_flag(run: RunView, rank: RankView) -> str:
    """The severity that a rank's bar is marked with, "" for none."""
    if rank.goodbye == "error" or (run.ended is not None and run.ended.failed_rank == rank.rank):
        return "bad"
    outlier = next((verdict for verdict in run.verdicts if verdict.kind == "rank_outlier"), None)
    if outlier is not None and outlier.measured == total(rank.peak):
        return "warn"
    return "warn" if rank.dropped else ""


def last_known(values: NDArray[np.float64]) -> float | None:
    """The newest value; None when there is none."""
    return float(values[-1]) if values.size else None


def trend(losses: NDArray[np.float64]) -> str:
    """How the loss moves, from the means of the last hundred steps and of the hundred before: "  ↓ 0.8 %/100 steps".

    "  flat" if they differ by less than two standard errors of their difference.
    """
    loss = losses[np.isfinite(losses)]
    if len(loss) < 200:
        return ""
    before, now = loss[-200:-100], loss[-100:]
    mean, moved = float(before.mean()), float(now.mean() - before.mean())
    if abs(moved) <= 2 * math.sqrt((float(before.var()) + float(now.var())) / 100):
        return "  flat"
    if not mean:
        return ""
    change = moved / abs(mean)
    return f"  {'↓' if change < 0 else '↑'} {fmt.percent(abs(change))}/100 steps"
