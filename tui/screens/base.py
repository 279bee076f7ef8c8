"""What every screen has: its lines at the top and bottom, a filter field, questions, and a tick that it draws on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from fsdp_tui.telemetry.messages import ENDED
from fsdp_tui.telemetry.sheets import Sheet
from fsdp_tui.tui.keys import LIVE, MOVING, shown
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.chart import Chart, Row
from fsdp_tui.tui.widgets.chrome import Header, HeaderFacts, KeyBar, Tabs
from fsdp_tui.tui.widgets.table import Reader

if TYPE_CHECKING:
    from fsdp_tui.tui.app import Dashboard


class View(Screen[None]):
    """A screen of the dashboard. A subclass names its KIND, yields its panes in `body`, and draws in `on_tick`."""

    KIND: ClassVar[str]
    FILTER_HINT: ClassVar[str] = ""
    AUTO_FOCUS: ClassVar[str | None] = ".first"

    @property
    def board(self) -> Dashboard:
        """The app."""
        return cast("Dashboard", self.app)

    def body(self) -> Iterable[Widget]:
        """The panes."""
        raise NotImplementedError

    def on_tick(self) -> None:
        """Draws the newest picture; called at the app's rate and after every key that changes what is shown."""

    def on_run_opened(self) -> None:
        """Another run is open: nothing of the one before stays."""

    def show_header(self) -> None:
        """The open run in the first line."""
        board = self.board
        snapshot = board.snapshot
        needs = {LIVE} | ({MOVING} if board.place is None else set())
        self.query_one(KeyBar).show_idle(frozenset(needs if self.over else ()))
        self.query_one(Header).show_facts(
            HeaderFacts(
                snapshot.view if snapshot else None,
                bool(snapshot and snapshot.live),
                board.services.now_ns(),
                name=board.feed.entry.name if board.feed else "",
                problem=board.feed.error if board.feed else "",
                past=board.place,
                now=board.now.view if board.now else None,
            )
        )

    def sheets(self) -> Sequence[Sheet]:
        """What is shown, for other programs."""
        return ()

    def foot(self) -> Iterable[Widget]:
        """Lines between the panes and the keys."""
        return ()

    def on_filter(self, text: str) -> str:
        """Takes a filter while it is typed; returns why it is none, or ""."""
        return ""

    def compose(self) -> ComposeResult:
        yield Header()
        yield Tabs(self.KIND)
        yield from self.body()
        if self.FILTER_HINT:
            with Horizontal(id="filter"):
                yield Static("/", id="filter-slash")
                yield Input(placeholder=self.FILTER_HINT, compact=True, select_on_focus=False, id="filter-text")
                yield Static("", id="filter-problem")
        yield from self.foot()
        yield KeyBar(self.KIND)

    _composed = False

    @property
    def ready(self) -> bool:
        """Whether the panes are there: a tick may come before they are, and while the program is being left."""
        return self._composed and self.app.is_running

    def on_mount(self) -> None:
        self._composed = True
        self.set_class(self.board.still, "-still")
        self.fit_to_size()

    def on_screen_resume(self) -> None:
        if self.ready and self.is_current:  # not one that is made ahead
            self.on_tick()

    def on_resize(self) -> None:
        self.fit_to_size()

    def fit_to_size(self) -> None:
        """Very small terminals keep what matters: no frames, no tabs."""
        width, height = self.size
        self.set_class(height < 12 or width < 40, "-tiny")
        self.set_class(height < 8, "-flat")

    def on_descendant_focus(self) -> None:
        self._note_focus()

    def on_descendant_blur(self) -> None:
        self._note_focus()

    def _note_focus(self) -> None:
        for bar in self.query(KeyBar):
            bar.show_typing(isinstance(self.focused, Input))

    # The filter field

    def action_filter(self) -> None:
        """Opens the field; what is typed works at once."""
        self.query_one("#filter").add_class("-open")
        self.query_one("#filter-text", Input).focus()

    @on(Input.Changed, "#filter-text")
    def _filter_changed(self, event: Input.Changed) -> None:
        self.query_one("#filter-problem", Static).update(self.on_filter(event.value))
        self.on_tick()

    @on(Input.Submitted, "#filter-text")
    def _filter_kept(self) -> None:
        self.query_one("#filter").set_class(bool(self.query_one("#filter-text", Input).value), "-open")
        self.focus_first()

    def end_filter(self) -> bool:
        """Forgets the filter; returns whether there was one."""
        if not self.FILTER_HINT:
            return False
        bar, field = self.query_one("#filter"), self.query_one("#filter-text", Input)
        was = bar.has_class("-open") or bool(field.value)
        field.value = ""
        bar.remove_class("-open")
        if was and (self.focused is field or self.focused is None):
            self.focus_first()
        return was

    def focus_first(self) -> None:
        """Gives the focus to the screen's main pane."""
        for widget in self.query(".first"):
            self.set_focus(widget)
            return

    @property
    def next_pane(self) -> str:
        """The key that goes there."""
        return self.board.keyed("{focus.next}")

    # The training

    @property
    def over(self) -> bool:
        """The open run trains no more, or none is open."""
        return self.board.now is None or self.board.now.view.state in ENDED

    def going_on(self, word: str) -> bool:
        """Whether the open run still trains; else says that there is nothing to `word`."""
        snapshot = self.board.now
        if snapshot is not None and snapshot.live and snapshot.view.state not in ENDED:
            return True
        self.app.notify(f"this run is over: nothing to {word}" if snapshot else "no run is open")
        return False

    def action_capture(self) -> None:
        """Asks all ranks for a deep capture of the next step; on screens whose keys have it."""
        if self.going_on("capture"):
            self.board.command("capture")

    # Leaving

    def action_back(self) -> None:
        """Ends the filter if there is one, else leaves the screen."""
        if not self.end_filter():
            self.leave()

    def leave(self) -> None:
        """Goes to where this screen was opened from."""
        if len(self.board.screen_stack) > 1:
            self.board.pop_screen()
        else:
            self.board.action_show("runs")


CRAMPED = 6
"""A question with no more rows than this is not set apart from its answers."""


class Ask(ModalScreen[str]):
    """A question with its answers; escape and the first answer leave everything as it is."""

    def __init__(self, question: str, answers: Iterable[tuple[str, str, str]]) -> None:
        """`answers`: (key, label, value), the harmless one first."""
        super().__init__()
        self.question = question
        self.answers = list(answers)

    def compose(self) -> ComposeResult:
        with Vertical(id="ask"):
            yield Static(self.question, markup=False, id="question")
            with Vertical(id="answers"):
                for key, label, value in self.answers:
                    yield Button(f"{shown(key)}  {label}", compact=True, name=value)

    def on_mount(self) -> None:
        for key, _, value in self.answers:
            self._bindings.bind(key, f"answer('{value}')", show=False)
        self._bindings.bind("escape", f"answer('{self.answers[0][2]}')", show=False)
        if len(self.answers) == 2:  # a plain question can be answered with yes
            self._bindings.bind("y", f"answer('{self.answers[1][2]}')", show=False)
        self._bindings.bind("left,up", "app.focus_previous", show=False)
        self._bindings.bind("right,down", "app.focus_next", show=False)

    def on_resize(self) -> None:
        """Where not all fits, the answers stay."""
        question, room = self.query_one("#question"), self.size.height - 2 - len(self.answers)
        question.styles.max_height = max(1, room)
        question.styles.margin = (0, 0, 1 if room > CRAMPED else 0, 0)

    def action_answer(self, value: str) -> None:
        self.dismiss(value)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.name or self.answers[0][2])


class Text(ModalScreen[None]):
    """A text over the screen: details, help."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "close", "close", show=False),
    ]

    def __init__(self, title: str, write: Callable[[int], list[Row]]) -> None:
        super().__init__()
        self._title = title
        self._write = write

    def compose(self) -> ComposeResult:
        reader = Reader(self._write, id="text")
        reader.border_title = self._title.replace("[", "\\[")
        reader.border_subtitle = "esc close · ↑ ↓ scroll"
        yield reader

    def action_close(self) -> None:
        self.dismiss(None)


def title_of(widget: Widget, text: str) -> None:
    """Sets the title in a pane's frame, as plain text, only when it changes."""
    _set_frame(widget, "border_title", text)


def subtitle_of(widget: Widget, text: str) -> None:
    """As `title_of`, at the lower end."""
    _set_frame(widget, "border_subtitle", text)


def _set_frame(widget: Widget, name: str, text: str) -> None:
    text = text.replace("[", "\\[")
    if isinstance(widget, Chart):
        widget.set_frame(name, text)
    elif getattr(widget, name) != text:
        setattr(widget, name, text)


HEADING = Ink("strong", bold=True)
