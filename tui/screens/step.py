"""Screen 2: memory inside one step, from a deep capture of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widget import Widget

from fsdp_tui.telemetry import sheets
from fsdp_tui.telemetry.messages import ENDED, Capture
from fsdp_tui.telemetry.sheets import Sheet
from fsdp_tui.telemetry.view import RankView, RunView
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.keys import STEP, bindings_of
from fsdp_tui.tui.screens.bands import Band, Banded
from fsdp_tui.tui.screens.base import Text, subtitle_of, title_of
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Row, crop, flow
from fsdp_tui.tui.widgets.chrome import ago
from fsdp_tui.tui.widgets.moment import place_text, write_moment, write_why
from fsdp_tui.tui.widgets.table import Pane, Reader
from fsdp_tui.tui.widgets.timeline import (
    ALONE,
    Look,
    StepTimeline,
    Timeline,
    at_column,
    at_peak,
    at_time,
    by_event,
    left_out,
    next_alone,
    time_zoomed,
    timeline_of,
    unzoomed,
    whole_step,
)

WIDE = 100
"""From this width on the figures at the cursor stand beside the reasons."""
LEAST_WORDS = 20
"""Cells below which a sentence is left out rather than cut."""


class Body(VerticalScroll, can_focus=False, inherit_bindings=False):
    """Scrolls by the mouse and by tab; the arrow keys are the cursor's."""


@dataclass(frozen=True)
class Chosen:
    """The capture that is shown, and how many there are to choose from."""

    rank: int
    of: int
    """Ranks of the run."""
    ranks: tuple[int, ...]
    """Those with a capture."""
    capture: Capture | None
    number: int
    """1 for the rank's oldest."""
    count: int


class StepScreen(Banded):
    """Captures of the open run."""

    KIND = STEP
    BANDS = ("time", "cards")
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(STEP))

    def __init__(self) -> None:
        super().__init__()
        self.rank: int | None = None
        """None: the fullest one."""
        self.capture_id = ""
        """"": the newest, also when a newer one comes."""
        self.look: Look | None = None
        self.timeline: Timeline | None = None
        self._drawn: tuple[object, ...] = ()

    def body(self) -> Iterable[Widget]:
        yield Body(
            Horizontal(StepTimeline(id="timeline", classes="pane first"), id="time"),
            Horizontal(Reader(id="moment", classes="pane"), Reader(id="why", classes="pane"), id="cards"),
            id="body",
        )
        yield Pane(id="status")

    def on_mount(self) -> None:
        self.query_one("#status").can_focus = False
        title_of(self.query_one("#moment"), "at the cursor")
        title_of(self.query_one("#why"), "why the peak is here")

    def on_run_opened(self) -> None:
        self.rank, self.capture_id, self.look, self.timeline, self._drawn = None, "", None, None, ()

    # What is shown

    @property
    def run(self) -> RunView | None:
        snapshot = self.board.snapshot
        return snapshot.view if snapshot else None

    def chosen(self) -> Chosen | None:
        """None before any rank is known."""
        run = self.run
        return choose(run, self.rank, self.capture_id) if run else None

    def _follow(self, chosen: Chosen | None) -> None:
        """Works a capture out when it is another than before; the same step of another rank keeps cursor and axis."""
        capture = chosen.capture if chosen else None
        before = self.timeline
        if capture is None or capture.error:
            self.timeline = None
        elif before is None or before.capture is not capture:
            self.timeline = timeline_of(capture)
            look = self.look if before is not None and before.capture.id == capture.id else None
            if look is None:
                self.look = whole_step(self.timeline, self.look.alone if self.look else 0)
            elif look.end_ns > self.timeline.end_ns:
                self.look = at_time(self.timeline, whole_step(self.timeline, look.alone), look.cursor_ns)

    def sheets(self) -> Sequence[Sheet]:
        return [sheets.timeline(self.timeline.capture)] if self.timeline else ()

    # Drawing

    def on_tick(self) -> None:
        if not self.ready:
            return
        self.show_header()
        run, chosen = self.run, self.chosen()
        self._follow(chosen)
        now_ns = self.board.clock_ns()
        waiting = waiting_text(run, chosen, now_ns) if run and chosen else ""
        said = (
            ()
            if self.timeline
            else tuple(
                (self.board.keyed(words), ink)
                for words, ink in absent(run, chosen, waiting, self.board.feed.entry.name if self.board.feed else "")
            )
        )
        key = (
            self.timeline,
            self.look,
            said,
            waiting,
            self.size,
            self.query_one("#body").size,
            self.zoomed,
            self.focused,
            chosen,
        )
        if key == self._drawn:
            return
        self._drawn = key
        wide = self.size.width >= WIDE
        self.set_class(wide, "-wide")
        self.lay_out(bands_for(self.size.width) if self.timeline else [Band("time", 3, 1000, 1)])
        pane = self.query_one("#timeline", StepTimeline)
        if self.timeline is None or self.look is None or chosen is None:
            title_of(pane, " · ".join(["memory inside a step", *counts(chosen)]))
            subtitle_of(pane, "")
            pane.show_words(said)
        else:
            self._show(self.timeline, self.look, chosen, pane)
        self.query_one("#status", Pane).show(lambda width, height, letters: self._status(waiting, width))

    def _show(self, timeline: Timeline, look: Look, chosen: Chosen, pane: StepTimeline) -> None:
        capture = timeline.capture
        unit = fmt.scale_for([float(timeline.alone[look.alone].max())])
        what = f"{ALONE[look.alone][0]} alone" if look.alone else "memory"
        title_of(pane, " · ".join([f"{what} inside step {capture.step:,}", *counts(chosen), unit.name]))
        here = f"{fmt.duration(look.cursor_ns)} · {place_text(timeline, look.cursor_ns)}"
        lanes = len(left_out(timeline, *pane.size)) if pane.size.area else 0
        more = (
            self.board.keyed(f"+{lanes} lane{'s' * (lanes != 1)}: {{zoom}} · ") if lanes and self.zoomed is None else ""
        )
        subtitle_of(pane, more + here)
        pane.show_timeline(timeline, look)
        self.query_one("#moment", Reader).show(lambda width: write_moment(timeline, look.cursor_ns, width))
        self.query_one("#why", Reader).show(lambda width: write_why(capture, width))

    def _status(self, waiting: str, width: int) -> list[Row]:
        """What is awaited, what lies below the fold, what the capture could not see, and how much it saw."""
        timeline, look = self.timeline, self.look
        pieces: list[Row] = [[(f"◌ {waiting}", Ink("warn", bold=True))]] if waiting and timeline is not None else []
        if self.below and self.zoomed is None:
            pieces.append([(f"▼ why: {self.next_pane}", Ink("ok"))])
        if timeline is not None and (failed := self.board.keyed(failures(self.run, timeline.capture))):
            pieces.append([(failed, Ink("warn", bold=True))])
        if timeline is not None and look is not None:
            capture = timeline.capture
            if self._zoomed_in():
                shown = (look.end_ns - look.begin_ns) / timeline.end_ns
                pieces.append([(f"zoomed in to {fmt.percent(shown)} of {fmt.duration(timeline.end_ns)}", Ink("ok"))])
            limits = capture.limits
            if limits:
                more = f" +{len(limits) - 1}" if len(limits) > 1 else ""
                words = f"not seen: {limits[0].removesuffix(' is not seen')}{more}"
                room = width - 2 - sum(len(text) + 3 for piece in pieces for text, _ in piece)
                if room >= min(len(words), LEAST_WORDS):
                    pieces.append([(fmt.fit(words, min(len(words), room)), QUIET)])
            pieces.append([(f"{capture.events:,} changes of memory", QUIET)])
            pieces.append([(f"{capture.ops:,} operators", QUIET)])
            pieces.append([(f"captured {ago(self.board.clock_ns() - capture.began_ns)}", QUIET)])
        row, _ = flow(pieces, max(0, width - 2), gap="   ")
        return [crop([(" ", LABEL), *row], width)]

    # Keys

    def _move(self, moved: Callable[[Timeline, Look], Look]) -> None:
        if self.timeline is not None and self.look is not None:
            self.look = moved(self.timeline, self.look)
            self.on_tick()

    def _to_column(self, column: Callable[[Look, int], int]) -> None:
        columns = self.query_one("#timeline", StepTimeline).columns
        self._move(lambda timeline, look: at_column(timeline, look, column(look, columns), columns))

    def action_column(self, by: int) -> None:
        self._to_column(lambda look, columns: look.column(look.cursor_ns, columns) + by)

    def on_step_timeline_clicked(self, event: StepTimeline.Clicked) -> None:
        self._to_column(lambda look, columns: event.column)

    def action_event(self, by: int) -> None:
        self._move(lambda timeline, look: by_event(timeline, look, by))

    def action_peak(self) -> None:
        self._move(at_peak)

    def action_begin(self) -> None:
        self._move(lambda timeline, look: at_time(timeline, look, 0))

    def action_end(self) -> None:
        self._move(lambda timeline, look: at_time(timeline, look, timeline.end_ns))

    def action_time_zoom(self, factor: float) -> None:
        self._move(lambda timeline, look: time_zoomed(timeline, look, factor))

    def action_alone(self) -> None:
        self._move(next_alone)

    def action_other_rank(self, by: int) -> None:
        chosen = self.chosen()
        if chosen is not None and chosen.ranks:
            at = chosen.ranks.index(chosen.rank) if chosen.rank in chosen.ranks else 0
            self.rank = chosen.ranks[(at + by) % len(chosen.ranks)]
            self.on_tick()

    def action_other_capture(self, by: int) -> None:
        chosen, run = self.chosen(), self.run
        if chosen is None or run is None or not chosen.count:
            return
        self.rank = chosen.rank  # the fullest one may be another rank in another step
        captures = next(rank.captures for rank in run.ranks if rank.rank == chosen.rank)
        at = max(0, min(chosen.count - 1, chosen.number - 1 + by))
        self.capture_id = "" if at == chosen.count - 1 else captures[at].id
        self.on_tick()

    def action_capture(self) -> None:
        self.capture_id = ""
        super().action_capture()

    def action_open(self) -> None:
        """The focused pane in full."""
        timeline, look, focused = self.timeline, self.look, self.focused
        if timeline is None or look is None or focused is None:
            return
        if focused.id == "why":
            self.app.push_screen(Text("why the peak is here", lambda width: write_why(timeline.capture, width)))
        else:
            self.app.push_screen(Text("at the cursor", lambda width: write_moment(timeline, look.cursor_ns, width)))

    def action_back(self) -> None:
        """Ends the zoom of a pane, then that of the axis, then leaves."""
        if self.zoomed is None and self._zoomed_in():
            self._move(unzoomed)
        else:
            super().action_back()

    def _zoomed_in(self) -> bool:
        timeline, look = self.timeline, self.look
        return timeline is not None and look is not None and look.end_ns - look.begin_ns < timeline.end_ns


def bands_for(width: int) -> list[Band]:
    """The rows of panes for a width."""
    if width >= WIDE:
        return [Band("time", 12, 1000, 3), Band("cards", 8, 18, 1)]
    return [Band("time", 9, 1000, 3), Band("cards", 5, 12, 1)]


def choose(run: RunView, rank: int | None, capture_id: str) -> Chosen | None:
    """The capture to show: of the rank that was chosen, or of the fullest in the newest captured step."""
    captured = [one for one in run.ranks if one.captures]
    if not run.ranks:
        return None
    if rank is None or all(one.rank != rank for one in run.ranks):
        rank = fullest(captured) if captured else run.ranks[0].rank
    captures = next(one.captures for one in run.ranks if one.rank == rank)
    at = next((at for at, one in enumerate(captures) if one.id == capture_id), len(captures) - 1)
    return Chosen(
        rank=rank,
        of=len(run.ranks),
        ranks=tuple(one.rank for one in captured),
        capture=captures[at] if captures else None,
        number=at + 1,
        count=len(captures),
    )


def fullest(ranks: Sequence[RankView]) -> int:
    """The rank with the highest peak in the newest captured step, the first of equal ones; one that failed only if all did."""
    ranks = [rank for rank in ranks if not rank.captures[-1].error] or ranks
    newest = max(rank.captures[-1].step for rank in ranks)
    there = [rank for rank in ranks if rank.captures[-1].step == newest]
    return max(there, key=lambda rank: (rank.captures[-1].peak[-1] or 0) if rank.captures[-1].peak else -1).rank


def counts(chosen: Chosen | None) -> list[str]:
    """ "rank 0 of 2", "capture 2 of 3"."""
    if chosen is None:
        return []
    some = f" ({len(chosen.ranks)} captured)" if 0 < len(chosen.ranks) < chosen.of else ""
    words = [f"rank {chosen.rank} of {chosen.of}{some}" if chosen.of > 1 else f"rank {chosen.rank}"]
    if chosen.count:
        words.append(f"capture {chosen.number} of {chosen.count}")
    return words


def failures(run: RunView | None, shown: Capture) -> str:
    """Which other ranks could not do what was asked for last, in few words, with the key that goes there as `keys.with_keys` takes
    it; "" when all could."""
    ranks = [
        rank.rank
        for rank in (run.ranks if run else ())
        if rank.rank != shown.rank and rank.captures and rank.captures[-1].error
    ]
    if not ranks:
        return ""
    who = f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks[:4]))}{' …' * (len(ranks) > 4)}"
    return f"▲ no capture of {who}: {{step.next_rank}} says why"


def asked_ns(run: RunView, rank: int) -> int | None:
    """When a capture was asked for that this rank has not answered; None: nothing is awaited.

    Whoever asked: the hub tells of it in events.
    """
    if run.state in ENDED:
        return None
    for event in reversed(run.events):
        if event.kind == "captured" or (event.kind == "capture_failed" and event.rank == rank):
            return None
        if event.kind == "capture_requested":
            newest = next((one.captures[-1] for one in run.ranks if one.rank == rank and one.captures), None)
            return None if newest is not None and newest.began_ns >= event.at_ns else event.at_ns
    return None


def waiting_text(run: RunView, chosen: Chosen, now_ns: int) -> str:
    """That a capture is awaited, and for what; "" when none is."""
    since = asked_ns(run, chosen.rank)
    if since is None:
        return ""
    held = "; the training is held, and it is taken when that goes on" if run.state == "paused" else ""
    return f"capture asked for {ago(now_ns - since)}{held}"


def absent(run: RunView | None, chosen: Chosen | None, waiting: str, name: str) -> Iterable[tuple[str, Ink]]:
    """Why there is nothing to show, and what to do; keys as `keys.with_keys` takes them."""
    if run is None:
        yield (
            ("no run is open: {show.runs} shows the runs, {runs.open} opens one", LABEL)
            if not name
            else (f"opening {name} …", QUIET)
        )
        return
    capture = chosen.capture if chosen else None
    if capture is not None and capture.error:
        yield f"rank {capture.rank} could not capture step {capture.step:,}: {capture.error}", Ink("bad", bold=True)
    elif chosen is None:
        yield "no rank has been heard of yet", LABEL
    elif chosen.ranks:
        yield f"rank {chosen.rank} has no capture; {{step.next_rank}} goes to one that has", STRONG
    else:
        yield "no step of this run has been captured", STRONG
    if waiting:
        yield f"◌ {waiting}", Ink("warn", bold=True)
    elif run.state in ENDED:
        yield (
            "The run is over. A step is captured while the training goes on: with {run.capture} here, or with fsdp-tui capture.",
            LABEL,
        )
        return
    else:
        yield (
            "{run.capture} captures the next step on all ranks; so does, from a shell, fsdp-tui capture"
            + (f" {name}" if name else ""),
            LABEL,
        )
    yield (
        (
            "A capture tells every allocation and free of one step by category, module and phase, and why the peak is where"
            " it is. That step takes somewhat longer; the training's numbers stay the same to the last bit."
        ),
        QUIET,
    )
