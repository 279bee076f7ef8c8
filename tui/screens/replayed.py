"""What screens of one run have: its past. The same picture, of another moment; the run goes on, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Static

from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui.keys import shown
from fsdp_tui.tui.replay import Replay, Steps, Wanted
from fsdp_tui.tui.screens.base import View
from fsdp_tui.tui.source import Snapshot
from fsdp_tui.tui.widgets.scrubber import Scrubber, TimeLine

HINTS = ("past.back", "past.forth", "past.event_before", "past.event_after", "past.play", "past.speed", "back")
"""Keys that the line of time names, where it has room."""


class Replayed(View):
    """A screen of one run.

    Attributes:
        frozen: what the panels stay at while the header goes on; None: they go on too.
    """

    frozen: Snapshot | None = None
    _focus_before: Widget | None = None

    def foot(self) -> Iterable[Widget]:
        yield Scrubber()

    # Drawing

    def show_header(self) -> None:
        """And the line of time, in place of the line about watching, while one is in the past."""
        super().show_header()
        scrubber = self.query_one(Scrubber)
        replay, now = self.board.replay, self.board.now
        if replay is None or now is None:
            if scrubber.has_focus:
                self._give_focus_back()
            scrubber.show_line(None)
        else:
            scrubber.show_line(self._line(replay, now.view))
        self.set_class(scrubber.display, "-past")

    def _line(self, replay: Replay, run: RunView) -> TimeLine:
        end_ns = newest_ns(run)
        names = {key.id: (shown(key.keys.split(",")[0]), key.label) for key in self.board.keys}
        place = replay.place(run.series.steps)
        return TimeLine(
            begin_ns=run.started_ns or 0,
            end_ns=end_ns,
            at_ns=place.at_ns,
            events=tuple((event.at_ns, event.severity) for event in run.events),
            playing=replay.playing,
            speed=replay.speed,
            hints=tuple(
                " ".join(names[key]) if key != "back" else f"{names[key][0]} now" for key in HINTS if key in names
            ),
        )

    def _give_focus_back(self) -> None:
        before, self._focus_before = self._focus_before, None
        if before is not None and before.is_attached and before.display:
            self.set_focus(before)
        else:
            self.focus_first()

    # Keys

    def action_freeze(self) -> None:
        """Panels that stay; in the past, where they stay by themselves, playing."""
        if self.board.replay is not None:
            self.action_past_play()
            return
        self.frozen = None if self.frozen else self.board.snapshot
        self.on_tick()

    def _enter(self) -> Replay | None:
        """The replay, a new one when one is not in the past yet; None, and why, when there is nothing to go back to."""
        replay = self.board.enter_past()
        if replay is not None:
            scrubber = self.query_one(Scrubber)
            if not scrubber.display and not isinstance(self.focused, Input):
                self._focus_before = self.focused
                self.show_header()
                self.set_focus(scrubber)
        return replay

    def _steps(self) -> Steps:
        now = self.board.now
        return now.view.series.steps if now is not None else np.empty(0, dtype=np.int64)

    def _moved(self, still_in_the_past: bool) -> None:
        if still_in_the_past:
            self.on_tick()
        else:
            self.board.leave_past()

    def action_past_step(self, by: int) -> None:
        """Some steps on or back; forth beyond the newest one is the present."""
        if (self.board.replay or by < 0) and (replay := self._enter()):
            self._moved(replay.by_steps(by, self._steps()))

    def action_past_part(self, by: int) -> None:
        if (self.board.replay or by < 0) and (replay := self._enter()):
            self._moved(replay.by_part(by, self._steps()))

    def action_past_event(self, by: int) -> None:
        if not (self.board.replay or by < 0):
            return
        began = self.board.replay is None
        replay, now = self._enter(), self.board.now
        if replay is None or now is None:
            return
        if not replay.by_event(by, self._steps(), now.view):
            self.app.notify("no event after this one" if by > 0 else "no event before this one", timeout=2)
            if began:
                self.board.leave_past()
        self.on_tick()

    def action_past_begin(self) -> None:
        if (replay := self._enter()) is not None:
            replay.go(Wanted(step=int(self._steps()[0])))
            self.on_tick()

    def action_past_end(self) -> None:
        """Back to the present."""
        self.board.leave_past()

    def action_past_play(self) -> None:
        """Lets recorded time go on from here, from the begin when one is in the present; or lets it stand."""
        began = self.board.replay is None
        if (replay := self._enter()) is not None:
            if began:
                replay.go(Wanted(step=int(self._steps()[0])))
            replay.play(not replay.playing)
            self.on_tick()

    def action_past_speed(self) -> None:
        if (replay := self.board.replay) is not None:
            replay.faster()
            self.on_tick()
        else:
            self.app.notify("speed is that of playing: go back first", timeout=2)

    def action_past_jump(self) -> None:
        """Asks for a step."""
        steps = self._steps()
        if not len(steps):
            self._enter()  # says why not
            return

        def go(step: int | None) -> None:
            if step is not None and (replay := self._enter()) is not None:
                replay.go(Wanted(step=step))
                self.on_tick()

        self.app.push_screen(AskStep(int(steps[0]), int(steps[-1])), go)

    @on(Scrubber.Clicked)
    def _clicked(self, event: Scrubber.Clicked) -> None:
        if (replay := self.board.replay) is not None:
            replay.go(Wanted(at_ns=event.at_ns))
            self.on_tick()

    def action_back(self) -> None:
        """Ends a filter, then the past, then leaves."""
        if self.board.replay is None:
            super().action_back()
        elif not self.end_filter():
            self.board.leave_past()


class AskStep(ModalScreen[int | None]):
    """Asks for a step to go to."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last = first, last

    def compose(self) -> ComposeResult:
        with Vertical(id="ask"):
            yield Static(f"Go to which step, {self.first:,} to {self.last:,}?", markup=False, id="question")
            yield Input(compact=True, id="step-number")
            yield Static("↵ go · esc not now", markup=False, id="step-problem")

    def on_mount(self) -> None:
        self._bindings.bind("escape", "close", show=False)

    @on(Input.Submitted)
    def _go(self, event: Input.Submitted) -> None:
        words = event.value.replace(",", "").strip()
        if words.isdecimal() and self.first <= int(words) <= self.last:
            self.dismiss(int(words))
        else:
            said = f"expected a step from {self.first:,} to {self.last:,}, found {event.value.strip() or 'nothing'!r}"
            self.query_one("#step-problem", Static).update(said)

    def action_close(self) -> None:
        self.dismiss(None)


def newest_ns(run: RunView) -> int:
    """Wall clock of the newest that is known of a run."""
    seen = [rank.seen_ns for rank in run.ranks if rank.seen_ns is not None]
    events = [event.at_ns for event in run.events]
    ended = [run.ended.ended_ns] if run.ended else []
    return max([*seen, *events, *ended], default=run.started_ns or 0)
