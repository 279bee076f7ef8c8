"""The dashboard: which screens there are, the run that is open, and the tick that all of them draw on."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from rich.console import RenderableType
from textual.app import App
from textual.binding import BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.events import Event, InputEvent, MouseMove
from textual.filter import LineFilter
from textual.notifications import Notify, SeverityLevel
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import AwaitMount
from textual.widgets import Input

from fsdp_tui.telemetry import collector
from fsdp_tui.telemetry.launch import LaunchSpec, command_text
from fsdp_tui.telemetry.messages import ENDED, STOPPING
from fsdp_tui.telemetry.notes import Note
from fsdp_tui.telemetry.queue import Queue
from fsdp_tui.telemetry.rundir import RunEntry, RunError
from fsdp_tui.telemetry.sheets import write
from fsdp_tui.tui.answering import Answering
from fsdp_tui.tui.format import plain_lines
from fsdp_tui.tui.frames import Harmless, exact
from fsdp_tui.tui.keys import bindings_of, keys_for, shown, with_keys
from fsdp_tui.tui.pace import Pace
from fsdp_tui.tui.replay import Place, Replay
from fsdp_tui.tui.screens.base import Ask, Text, View
from fsdp_tui.tui.screens.comm import CommScreen
from fsdp_tui.tui.screens.compare import CompareScreen
from fsdp_tui.tui.screens.details import write_help
from fsdp_tui.tui.screens.launch import LaunchScreen
from fsdp_tui.tui.screens.note import AskNote
from fsdp_tui.tui.screens.queue import QueueScreen, queue_words
from fsdp_tui.tui.screens.replayed import Replayed, newest_ns
from fsdp_tui.tui.screens.run import RunScreen
from fsdp_tui.tui.screens.runs import COMPARE_MAX, RunsScreen, strategy
from fsdp_tui.tui.screens.step import StepScreen
from fsdp_tui.tui.settings import AUTO, Settings, keymap, load
from fsdp_tui.tui.source import Feed, Process, Services, Snapshot, real_services
from fsdp_tui.tui.theme import ROLES, THEMES, next_theme, theme_for
from fsdp_tui.tui.widgets.chart import Chart

AHEAD_MODES = ("comm", "step")
"""The other screens of a run, which are made before a key opens them: to make one takes longer than a key should."""
IDLE_S = 1.0
"""They are made when no key has come for so long, one at a time."""
LIST_EVERY_S = 1.5
AHEAD = 0.9
"""Pictures are made a little more often than frames, so that each has a new one."""
TWICE_S = 2.0
"""Two ctrl+c within this time quit."""
STOP_PATIENCE_S = 60.0
TURN_S = 0.001
"""So long a thread that makes a picture may keep the interpreter from a key; Python's own 5 ms come many times in a frame."""
HELD_S = 0.01
"""So long no frame is drawn when a screen gives way to another that is there already."""
STOP_NEWS_S = 10.0
"""How long a notice on a stop stays."""
LATEST = frozenset({"theme", "refresh"})
"""Titles of notices of which only the last one is worth reading."""
HARMLESS = Harmless()


class KeyCommands(Provider):
    """The palette: every key that has an entry there, and every run."""

    def _entries(self) -> Iterable[tuple[str, str, Callable[[], object]]]:
        app = self.app
        assert isinstance(app, Dashboard)
        screen = self.screen
        kind = screen.KIND if isinstance(screen, View) else ""
        for key in keys_for(kind, app.keys):
            if key.palette:
                where = screen if key.screens else app
                yield (
                    f"{key.palette}: {key.label} ({shown(key.keys.split(',')[0])})",
                    key.help,
                    lambda key=key, where=where: app.call_later(app.run_action, key.action, where),  # type: ignore[misc]
                )
        for theme in THEMES:
            yield f"theme: {theme.name.removeprefix('fsdp-')}", "Colours.", lambda name=theme.name: app.use_theme(name)  # type: ignore[misc]
        for entry in app.entries[:50]:
            yield (
                f"run: open {entry.name} · {entry.state}",
                f"{entry.id} · {strategy(entry)}",
                lambda entry=entry: app.open_run(entry),  # type: ignore[misc]
            )

    async def discover(self) -> Hits:
        for text, words, call in self._entries():
            yield DiscoveryHit(text, call, help=words)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for text, words, call in self._entries():
            if (score := matcher.match(f"{text} {words}")) > 0:
                yield Hit(score, text, call, help=words)


class Dashboard(App[int]):
    """The program.

    Attributes:
        entries: the runs that are known, newest first.
        marked: ids of the runs to compare, the baseline first.
        feed: the open run.
        replay: the visit to its past; None: it is shown as it is now.
        keys: the table of keys, as they are bound.
        listed_s: when `entries` were read, by the monotonic clock.
        settings: what a person has set for good.
        letters: whether charts print letters instead of colours.
    """

    CSS_PATH = "dashboard.tcss"
    TITLE = "fsdp-tui"
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        "runs": RunsScreen,
        "run": RunScreen,
        "step": StepScreen,
        "comm": CommScreen,
        "launch": LaunchScreen,
        "queue": QueueScreen,
        "compare": CompareScreen,
    }
    DEFAULT_MODE = "runs"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(None))
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {KeyCommands}
    ENABLE_COMMAND_PALETTE = True

    def __init__(
        self,
        services: Services | None = None,
        *,
        open_on: RunEntry | None = None,
        own: Sequence[str] = (),
        entries: Sequence[RunEntry] | None = None,
        settings: Settings | None = None,
    ) -> None:
        # No colour means none, not greys: what is left is the terminal's own two.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.settings = settings or Settings()
        # A pane that slides into place is late, and costs bytes over ssh.
        self.animation_level = "none"
        self.services = services or real_services()
        self.entries = list(entries or ())
        self.sizes: dict[str, int] = {}
        self.marked: list[str] = []
        self.queue = Queue()
        self.queue_problem = ""
        """Why the queue cannot be read, one line."""
        self.feed: Feed | None = None
        self.replay: Replay | None = None
        self.keys = self.settings.keys
        self.letters = self.settings.letters
        self.still = False
        """Nobody presses keys: the line of keys stays away."""
        self.pace = Pace(self.settings.refresh)
        self.answering = Answering()
        self.own = list(own)
        self._open_on = open_on
        self._processes: list[Process] = []
        self._ticker: Timer | None = None
        self.listed_s = 0.0 if entries is None else time.monotonic()
        self._listing = False
        self._making = True
        """Whether the screen that is shown next must be made first."""
        self._ahead: tuple[str, ...] = AHEAD_MODES
        """Those that are still to be made or drawn."""
        self._interrupted_s = -TWICE_S
        self.leaving = False
        """No screen is opened any more."""
        self._leaving_s: float | None = None
        self._told: set[tuple[str, int]] = set()
        """Words on a stop that a notice has told: run and time."""

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {**super().get_theme_variable_defaults(), **ROLES}

    def on_mount(self) -> None:
        for theme in THEMES:
            self.register_theme(theme)
        wanted, can = self.settings.theme, None if self.no_color else self.console.color_system
        self.theme = theme_for(can) if wanted == AUTO or self.no_color else f"fsdp-{wanted}"
        self.set_keymap(keymap(self.keys))
        for problem in self.settings.problems:
            self.notify(problem, title="settings", severity="warning", timeout=20, markup=False)
        self._ticker = self.set_interval(1 / self.pace.hz, self.tick)
        if self._open_on is not None:
            self.open_run(self._open_on)
        self.tick()

    # The tick

    @property
    def now(self) -> Snapshot | None:
        """The newest picture of the open run."""
        return self.feed.latest if self.feed else None

    @property
    def snapshot(self) -> Snapshot | None:
        """The picture that is to be shown: the newest, or that of a moment in the past."""
        now, moment = self.now, self.replay.moment if self.replay else None
        return replace(now, view=moment.view) if now is not None and moment is not None else now

    @property
    def place(self) -> Place | None:
        """Where in the past of the open run one is; None: in the present."""
        if self.replay is None or self.now is None:
            return None
        return self.replay.place(self.now.view.series.steps)

    def clock_ns(self) -> int:
        """Wall clock of what is shown."""
        place = self.place
        return self.services.now_ns() if place is None or place.at_ns is None else place.at_ns

    def tick(self) -> None:
        """Draws what is visible with the newest pictures, and takes note of how long that took."""
        screens = self.screen_stack
        if not screens:  # it is being left
            return
        began_s = self.services.stopwatch_s()
        self._play()
        self._draw()
        if self.pace.drew(self.services.stopwatch_s() - began_s):
            self._set_rate()
        if self.list_is_old:
            if isinstance(screens[0], RunsScreen | QueueScreen):
                self.list_runs()
            elif self.queue.open:
                self.listed_s = time.monotonic()
                self._show_queue(*self._read_queue())
        for process in self._processes:
            process.poll()  # so that it does not stay a zombie
        self._tell_of_stop()
        self._leave_when_stopped()
        self._make_ahead()
        if self.feed is None or not self.feed.live:  # else it does that, when it has made a picture
            collector.sweep()

    def _make_ahead(self) -> None:
        """Makes one of the screens that keys open next, or draws it, when nobody waits for anything."""
        if not self._ahead or self.now is None or self.leaving or self.answering.since_s < IDLE_S:
            return
        mode = self._ahead[0]
        stack = self._screen_stacks.get(mode)
        if stack is None and hasattr(
            self, "_init_mode"
        ):  # it is private: without it, screens are made when they are opened
            self._init_mode(mode)
            # Its styles are those of now: they need not all be read once more when it is opened.
            self._screen_stacks[mode][0]._css_update_count = self._css_update_count
            return
        self._ahead = self._ahead[1:]
        if stack is not None and isinstance(stack[0], View) and stack[0].ready:
            stack[0].on_tick()  # so that its panes have their places

    def _tell_of_stop(self) -> None:
        """A stop that takes long says what it has come to, on whatever screen one is."""
        now = self.now
        if now is None or not now.live:
            return
        for event in now.view.events:
            told = (now.entry.id, event.at_ns)
            if event.kind in STOPPING and told not in self._told:
                self._told.add(told)
                severity: SeverityLevel = "warning" if event.severity == "warn" else "information"
                self.notify(event.text, title="stopping", severity=severity, timeout=STOP_NEWS_S, markup=False)

    def _set_rate(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        self._ticker = self.set_interval(1 / self.pace.hz, self.tick)
        if self.feed is not None:
            self.feed.every_s = AHEAD / self.pace.hz

    @property
    def list_is_old(self) -> bool:
        """It is time to read the list of runs again."""
        return time.monotonic() - self.listed_s > LIST_EVERY_S

    def list_runs(self) -> None:
        """Reads the list of runs again, in a thread."""
        if self._listing:
            return
        self._listing = True
        threading.Thread(target=self._list_in_thread, name="list of runs", daemon=True).start()

    def _list_in_thread(self) -> None:
        try:
            entries = self.services.list_runs()
            sizes = {
                entry.id: self.sizes[entry.id]
                if entry.id in self.sizes and not entry.live
                else size_of(entry.paths.kept)
                for entry in entries
            }
        except OSError:
            entries, sizes = self.entries, self.sizes
        self.entries, self.sizes = entries, sizes
        queue = self._read_queue()
        self.listed_s, self._listing = time.monotonic(), False
        if self.is_running:
            self.call_from_thread(self._show_list, *queue)

    def _show_list(self, queue: Queue, problem: str) -> None:
        self._show_queue(queue, problem)
        if any(isinstance(screen, RunsScreen) for screen in self.screen_stack[:1]):
            self._draw()

    # The open run

    def open_run(self, entry: RunEntry) -> None:
        """Opens a run on the Run screen."""
        if (
            self.feed is None
            or self.feed.entry.id != entry.id
            or self.feed.error
            or (entry.live and not self.feed.live)
        ):
            self.leave_past()
            if self.feed is not None:
                self.feed.close()
            collector.tidy()
            self.feed = Feed(self.services, entry, AHEAD / self.pace.hz, self.answering)
            for screen in self._screens():
                if isinstance(screen, View):
                    screen.on_run_opened()
        self.action_show("run")

    def _screens(self) -> Iterable[Screen[Any]]:
        for stack in self._screen_stacks.values():
            yield from stack

    def command(self, kind: str, ranks: Sequence[int] = ()) -> None:
        """Passes "stop", "pause", "resume", "capture" or "stacks" to the open run, and says what came of it."""
        if self.feed is None:
            return
        said = {
            "stop": "stopping: all ranks leave after the step they agree on",
            "pause": "holding: all ranks wait after the step they agree on",
            "resume": "the training goes on",
            "capture": self.keyed(
                "the next step is captured; when it is there, the Step screen ({show.step}) shows it and an event says so"
            ),
            "stacks": "asked: its stack is shown as soon as it answers; a process that is stopped does not",
        }[kind]

        def answered(problem: str) -> None:
            self.call_from_thread(
                self.notify, problem or said, severity="error" if problem else "information", markup=False
            )

        self.feed.command(kind, answered, ranks)

    # Its past

    def enter_past(self) -> Replay | None:
        """The visit to the open run's past, begun when there is none; None, and why, when there is nothing to go back to."""
        now = self.now
        if self.replay is not None or self.feed is None or now is None or not len(now.view.series.steps):
            if self.replay is None:
                self.notify("no run is open" if self.feed is None else "nothing to go back to: no step has ended yet")
            return self.replay
        feed = self.feed
        self.replay = Replay(self.services, feed.entry, lambda run: feed.prepare(run) if feed.prepare else None)
        for screen in self._screens():
            if isinstance(screen, Replayed):
                screen.frozen = None
        return self.replay

    def leave_past(self) -> None:
        """Back to the present."""
        if self.replay is not None:
            self.replay.close()
            self.replay = None
            self._draw()

    def _play(self) -> None:
        """Goes on in what is played, up to the present; leaves a past that cannot be read."""
        replay, now = self.replay, self.now
        if replay is None or now is None:
            return
        if replay.error:
            self.notify(replay.error, title="cannot go back", severity="error", markup=False)
            self.leave_past()
            return
        at_ns = replay.tick(self.services.now_ns(), now.view.series.steps)
        if at_ns is not None and at_ns >= newest_ns(now.view):
            self.notify("played to the end", timeout=2)
            self.leave_past()

    def _draw(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, View) and screen.ready:
                screen.on_tick()

    def launch(self, spec: LaunchSpec, done: Callable[[str], None]) -> None:
        """Starts a training in a thread; then opens it, or calls `done` with why it did not start."""

        def work() -> None:
            try:
                run_id, process = self.services.start(spec)
                entry = self.services.find(run_id)
            except (RunError, OSError) as error:
                self.call_from_thread(done, str(error))
                return
            self.call_from_thread(started, entry, process)

        def started(entry: RunEntry, process: Process) -> None:
            done("")
            self._processes.append(process)
            self.own.append(entry.id)
            self.entries = [entry, *(other for other in self.entries if other.id != entry.id)]
            self.open_run(entry)
            self.notify(command_text(spec), title="started", markup=False)

        threading.Thread(target=work, name="launch", daemon=True).start()

    def prepare_launch(self, entry: RunEntry) -> None:
        """Opens the Launch form filled in with a run's launch."""
        try:
            spec = self.services.launch_of(entry)
        except RunError as error:
            self.notify(str(error), title="cannot be launched again", severity="warning", markup=False)
            return
        self.action_show("launch")
        screen = self.screen
        if isinstance(screen, LaunchScreen):
            screen.fill(spec, focus="strategy", effective=entry.effective)

    def entry_now(self, entry: RunEntry) -> RunEntry:
        """What is known by now of a run that was listed before."""
        return next((other for other in self.entries if other.id == entry.id), entry)

    def ask_note(self, entry: RunEntry) -> None:
        """Asks for a run's note and keeps it."""

        def answered(note: Note | None) -> None:
            if note is None:
                return
            try:
                self.services.save_note(entry, note)
            except RunError as error:
                self.notify(str(error), title="not kept", severity="error", markup=False)
                return
            self.entries = [replace(other, note=note) if other.id == entry.id else other for other in self.entries]
            self.tick()

        self.push_screen(AskNote(entry.name, self.entry_now(entry).note), answered)

    def forget(self, entry: RunEntry) -> None:
        """Deletes a run.

        Raises:
            RunError: it is live or cannot be deleted.
        """
        if self.feed is not None and self.feed.entry.id == entry.id:
            self.leave_past()
            self.feed.close()
            self.feed = None
        self.services.remove(entry)
        self.entries = [other for other in self.entries if other.id != entry.id]
        if entry.id in self.marked:
            self.marked.remove(entry.id)

    # The queue

    def _read_queue(self) -> tuple[Queue, str]:
        """The queue as it is, or the one that is known and why there is no newer one."""
        try:
            return self.services.queue(), ""
        except RunError as error:
            return self.queue, str(error)

    def _show_queue(self, queue: Queue, problem: str = "") -> None:
        """Takes the newest queue; says when it is through."""
        through = self.queue.open and not queue.open
        self.queue, self.queue_problem = queue, problem
        if not through:
            return
        words = queue_words(queue)
        enough = len(queue.finished) > 1
        if enough and isinstance(self.screen, LaunchScreen | QueueScreen) and not isinstance(self.focused, Input):
            self.ask(
                f"The queue is through: {words}. Compare the runs?",
                [("n", "not now", "no"), ("v", "compare them", "compare")],
                lambda answer: self.compare_queue() if answer == "compare" else None,
            )
        else:
            self.notify(
                f"it is through: {words}"
                + self.keyed(
                    "; {queue} shows it" + (", and {queue.compare} there compares the runs" if enough else "")
                ),
                title="queue",
            )

    def change_queue(self, change: Callable[[], Queue]) -> bool:
        """Does something to the queue; says why not when it cannot be done."""
        try:
            queue = change()
        except RunError as error:
            self.notify(str(error), title="queue", severity="error", markup=False)
            return False
        self._show_queue(queue)
        self.tick()
        return True

    def enqueue(self, specs: Sequence[LaunchSpec]) -> bool:
        """Puts launches at the end of the queue; returns whether it could be done."""
        return self.change_queue(lambda: self.services.enqueue(specs))

    def cancel_queued(self, numbers: Sequence[int] | None) -> None:
        """Takes these items off the queue, or all of them; a run that goes on is stopped."""
        self.change_queue(lambda: self.services.cancel(numbers))

    def compare_queue(self) -> None:
        """Marks the runs that the queue has finished, and compares them."""
        finished = self.queue.finished
        if len(finished) < 2:
            self.notify(f"{len(finished)} of the queue's runs finished: a comparison needs two", severity="warning")
            return
        if len(finished) > COMPARE_MAX:
            self.notify(f"the first {COMPARE_MAX} of {len(finished)}: that is what a comparison can show")
        self.entries = self.services.list_runs()
        self.marked[:] = finished[:COMPARE_MAX]
        self.action_show("compare")

    # What screens use

    def on_notify(self, event: Notify) -> None:
        """A notice takes the place of one that says the same: a key that is held down fills no screen with it."""
        new = event.notification
        for old in list(self._notifications):
            if old.title == new.title and (old.message == new.message or new.title in LATEST):
                del self._notifications[old]

    def ask(self, question: str, answers: Sequence[tuple[str, str, str]], then: Callable[[str | None], object]) -> None:
        """Asks over the current screen. `answers` are (key, label, value), the harmless one first."""

        def answered(answer: str | None) -> None:
            then(answer)

        self.push_screen(Ask(question, answers), answered)

    def keyed(self, text: str) -> str:
        """A sentence that names actions, with the keys that they are bound to: see `keys.with_keys`."""
        return with_keys(text, self.keys)

    def copy(self, text: str) -> None:
        """To the clipboard, as far as the terminal lets us; shown too, so that it can be copied by hand."""
        self.copy_to_clipboard(text)
        self.notify(text, title="copied", markup=False)

    def write_out(self, name: str, text: str) -> None:
        """Writes a file into the working directory, else into the home; says where, or why not."""
        for folder in (Path.cwd(), Path.home()):
            try:
                (folder / name).write_text(plain_lines(text), encoding="utf-8")
            except OSError:
                continue
            self.notify(str(folder / name), title="saved", markup=False)
            return
        self.notify("neither the current directory nor the home can be written", severity="error")

    def use_theme(self, name: str) -> None:
        self.theme = name

    # Keys that work everywhere

    def action_show(self, name: str) -> None:
        if self.current_mode != name and not self.leaving:
            self._making = name not in self._screen_stacks
            self.switch_mode(name)

    def push_screen(self, *args: Any, **kwargs: Any) -> Any:
        """Textual's; while the program is left it opens nothing, since no widget would be mounted in it."""
        return AwaitMount(self.screen, []) if self.leaving else super().push_screen(*args, **kwargs)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's, and last what keeps control characters from the terminal and from pictures of the screen."""
        return [*super().get_line_filters(), HARMLESS]

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        super()._display(screen, exact(renderable))
        if renderable is not None and not self._batch_count:
            self.answering.end()

    async def on_event(self, event: Event) -> None:
        """Textual's; what makes pictures waits for the answer."""
        if isinstance(event, InputEvent) and not isinstance(event, MouseMove):
            self.answering.begin()
        await super().on_event(event)

    def delay_update(self, delay: float = 0.05) -> None:
        """Textual's way not to show how a screen is made: a key waits for it, so only then."""
        super().delay_update(delay if self._making else HELD_S)
        self._making = True

    def action_help(self) -> None:
        kind = next((screen.KIND for screen in reversed(self.screen_stack) if isinstance(screen, View)), "runs")
        self.push_screen(Text(f"help · {kind}", lambda width: write_help(kind, width, self.keys)))

    def action_theme(self) -> None:
        self.theme = next_theme(self.theme)
        self.notify(self.theme.removeprefix("fsdp-"), title="theme", timeout=2)

    def action_letters(self) -> None:
        self.letters = not self.letters
        for screen in self._screens():
            for chart in screen.query(Chart):
                chart.refresh()

    def action_screenshot(self, filename: str | None = None, path: str | None = None) -> None:
        name = self.feed.entry.name if self.feed and self.current_mode == "run" else self.current_mode
        wanted = filename or file_name(["fsdp-tui", name, time.strftime("%H%M%S")], "svg")
        for folder in (Path(path) if path else Path.cwd(), Path.home()):
            try:
                saved = self.save_screenshot(wanted, str(folder))
            except OSError:
                continue
            self.notify(saved, title="saved", markup=False)
            return
        self.notify("neither the current directory nor the home can be written", severity="error")

    def action_csv(self) -> None:
        """What the screen shows, a file per table, written in a thread: a series may be long."""
        screen = next((screen for screen in reversed(self.screen_stack) if isinstance(screen, View)), None)
        found = list(screen.sheets()) if screen is not None else []
        if screen is None or not found:
            self.notify("this screen has no table to write", timeout=3)
            return
        run = self.feed.entry.name if self.feed and isinstance(screen, Replayed) else ""
        time_words = time.strftime("%H%M%S")

        def work() -> None:
            names = [file_name(["fsdp-tui", run, screen.KIND, sheet.name, time_words], "csv") for sheet in found]
            for folder in (Path.cwd(), Path.home()):
                try:
                    for name, sheet in zip(names, found, strict=True):
                        with (folder / name).open("w", newline="", encoding="utf-8") as file:
                            write(sheet, file)
                except OSError:
                    continue
                said = "\n".join(str(folder / name) for name in names)
                self.call_from_thread(self.notify, said, title="saved", markup=False)
                return
            said = "neither the current directory nor the home can be written"
            self.call_from_thread(self.notify, said, severity="error")

        threading.Thread(target=work, name="export", daemon=True).start()

    def action_slower(self) -> None:
        self._ask_rate(faster=False)

    def action_faster(self) -> None:
        self._ask_rate(faster=True)

    def _ask_rate(self, *, faster: bool) -> None:
        self.pace.ask(faster)
        self._set_rate()
        self.notify(f"{self.pace.hz:g} times a second", title="refresh", timeout=2)

    # Leaving

    def exit(self, *args: Any, **kwargs: Any) -> None:
        """Textual's; keys that were typed meanwhile open no screen."""
        self.leaving = True
        super().exit(*args, **kwargs)

    def action_leave(self) -> None:
        """Quits; asks while a run that was launched from here is going on."""
        if self._leaving_s is not None:
            self.exit(0)
            return
        alive = self._own_alive()
        if not alive:
            self.exit(0)
            return
        names = ", ".join(entry.name for entry in alive)
        which = f"{names} is" if len(alive) == 1 else f"{names} are"
        self.ask(
            f"{which} still training. It was started from here and can go on without this screen.",
            [("escape", "stay here", "stay"), ("l", "leave it running", "leave"), ("s", "stop it and quit", "stop")],
            self._leave,
        )

    def _own_alive(self) -> list[RunEntry]:
        found = []
        for run_id in self.own:
            if self.feed is not None and self.feed.entry.id == run_id:
                if self.feed.live and not (self.now and self.now.view.state in ENDED):
                    found.append(self.feed.entry)
                continue
            try:
                entry = self.services.find(run_id)
            except RunError:
                continue
            if entry.live:
                found.append(entry)
        return found

    def _leave(self, answer: str | None) -> None:
        if answer == "leave":
            self.exit(0)
        elif answer == "stop":
            self._leaving_s = time.monotonic()
            for entry in self._own_alive():
                feed = (
                    self.feed
                    if self.feed and self.feed.entry.id == entry.id
                    else Feed(self.services, entry, 1.0, self.answering)
                )
                feed.command("stop", lambda problem: None)
            self.notify(
                self.keyed("stopping after the step that all ranks agree on; {quit} again quits at once"),
                timeout=STOP_PATIENCE_S,
                markup=False,
            )

    def _leave_when_stopped(self) -> None:
        if self._leaving_s is None:
            return
        if not self._own_alive():
            self.exit(0)
        elif time.monotonic() - self._leaving_s > STOP_PATIENCE_S:
            self._leaving_s = None
            self.notify(self.keyed("it has not stopped yet; {quit} asks again"), severity="warning", markup=False)

    def action_interrupt(self) -> None:
        now_s = time.monotonic()
        if now_s - self._interrupted_s < TWICE_S:
            self.exit(0)
        self._interrupted_s = now_s
        said = "{quit.now} again quits; runs go on. ({quit} asks what becomes of them)"
        self.notify(self.keyed(said), timeout=TWICE_S, markup=False)

    def text(self) -> str:
        """What is on the screen, without colours."""
        strips = self.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    def on_unmount(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        if self.replay is not None:
            self.replay.close()
        if self.feed is not None:
            self.feed.close()


def file_name(parts: Sequence[str], suffix: str) -> str:
    """A file's name of these words, without what a shell or a file system may stumble over."""
    words = "-".join(part for part in parts if part)
    return "".join(char if char.isalnum() or char in "-_." else "-" for char in words) + f".{suffix}"


def size_of(folder: Path) -> int:
    """Bytes of the files in a run's directory."""
    total = 0
    try:
        for path in folder.rglob("*"):
            total += path.lstat().st_size
    except OSError:  # it is being written, or deleted
        pass
    return total


def run_app(open_on: str | None = None, own: str | None = None) -> int:
    """Runs the dashboard until it is left; returns the exit code.

    Args:
        open_on: a run to open first. With none, and exactly one live run, that one is opened.
        own: id of a run that this process has launched: leaving asks what becomes of it.

    Raises:
        RunError: there is no such run.
    """
    collector.by_hand()
    sys.setswitchinterval(TURN_S)
    services = real_services()
    entries = services.list_runs()
    entry = services.find(open_on) if open_on is not None else None
    live = [entry for entry in entries if entry.live]
    if entry is None and len(live) == 1:
        entry = live[0]
    app = Dashboard(services, open_on=entry, own=[own] if own else [], entries=entries, settings=load())
    app.run()
    if app.feed is not None:
        app.feed.close()
        app.feed.join(1.0)
    return app.return_code or 0
