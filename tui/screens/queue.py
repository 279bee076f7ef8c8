"""The queue of launches: what is done, runs and waits, and the question for the strategies of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from fsdp_tui.telemetry.launch import LaunchSpec, command_text, problems, sweep
from fsdp_tui.telemetry.queue import GOING, OVER, Item, Queue, queueable
from fsdp_tui.telemetry.rundir import RunEntry
from fsdp_tui.telemetry.strategy import DEFAULT, SWEEP, StrategyError, parse_strategies
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.form import STRATEGIES
from fsdp_tui.tui.keys import QUEUE, bindings_of
from fsdp_tui.tui.screens.base import View, title_of
from fsdp_tui.tui.theme import STATE_MARKS, Ink, StateMark
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Row, crop
from fsdp_tui.tui.widgets.chrome import Header, HeaderFacts, Tabs, state_mark
from fsdp_tui.tui.widgets.table import Pane, Table, TableColumn

if TYPE_CHECKING:
    from fsdp_tui.tui.app import Dashboard

BAR = 10
"""Cells of a progress bar."""
MARKS = {
    "waiting": StateMark("○", "WAITING", "quiet"),
    "cancelled": StateMark("–", "CANCELLED", "quiet"),
}


class QueueScreen(View):
    """The queue of this machine."""

    KIND = QUEUE
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(QUEUE))

    def body(self) -> Iterable[Widget]:
        yield Table(
            empty=self.board.keyed(
                "the queue is empty: on the Launch screen ({show.launch}), {launch.queue} adds what the form says and"
                " {launch.sweep} sweeps strategies"
            ),
            id="list",
            classes="pane first",
        )
        yield Pane(id="status")

    def on_mount(self) -> None:
        self.query_one("#status").can_focus = False

    def on_tick(self) -> None:
        if not self.ready:
            return
        board = self.board
        queue = board.queue
        self.query_one(Header).show_facts(HeaderFacts(None, False, board.services.now_ns(), title="queue of launches"))
        self.query_one(Tabs).show_notes([[(board.queue_problem, Ink("warn"))]] if board.queue_problem else [])
        table = self.query_one("#list", Table)
        title_of(table, f"one after another · {queue_words(queue)}" if queue.items else "one after another")
        table.show_columns(columns(queue.items, {entry.id: entry for entry in board.entries}))
        self.query_one("#status", Pane).show(lambda width, height, letters: [self._about(width)])

    def _about(self, width: int) -> Row:
        """The launch under the cursor: why it failed, else its command."""
        item = self.chosen
        if item is None:
            return crop([], width)
        text, ink = (item.reason, Ink("warn")) if item.reason else (command_text(item.spec), QUIET)
        return crop([(f" {fmt.fit(text, max(0, min(len(text), width - 1)))}", ink)], width)

    @property
    def chosen(self) -> Item | None:
        """The launch under the cursor."""
        items = self.board.queue.items
        return items[min(self.query_one("#list", Table).cursor, len(items) - 1)] if items else None

    @on(Table.CursorMoved)
    def _follow(self) -> None:
        self.query_one("#status", Pane).redraw()

    # Keys

    def action_open(self) -> None:
        item = self.chosen
        if item is None:
            return
        entry = next((entry for entry in self.board.entries if entry.id == item.run_id), None)
        if entry is None:
            self.app.notify(f"{item.name} has no run: {item.reason or 'it waits'}", markup=False)
        else:
            self.board.open_run(entry)

    def action_compare(self) -> None:
        self.board.compare_queue()

    def action_cancel(self) -> None:
        item = self.chosen
        if item is None:
            return
        if item.state in OVER:
            self.app.notify(f"{item.name} is over: nothing to cancel", markup=False)
            return
        what = (
            "Stop it on all ranks at one step? The queue goes on with the next."
            if item.state in GOING
            else "Take it off the queue?"
        )
        self._ask_cancel(f"{item.name} {'is running' if item.state in GOING else 'waits'}. {what}", [item.number])

    def action_cancel_all(self) -> None:
        queue = self.board.queue
        if not queue.open:
            self.app.notify("the queue is through: nothing to cancel")
            return
        waiting, going = queue.count("waiting"), queue.count(*GOING)
        parts = ["Stop the run that is going on"] * bool(going) + [f"take {waiting} off the queue"] * bool(waiting)
        question = " and ".join(parts)
        self._ask_cancel(f"{question[:1].upper()}{question[1:]}?", None)

    def _ask_cancel(self, question: str, numbers: Sequence[int] | None) -> None:
        self.board.ask(
            question,
            [("n", "no, let it be", "no"), ("x", "yes", "cancel")],
            lambda answer: self.board.cancel_queued(numbers) if answer == "cancel" else None,
        )

    def leave(self) -> None:
        self.board.action_show("launch")


def queue_words(queue: Queue) -> str:
    """The queue in a few words: "2 of 7 done, 1 failed"; "" for an empty one."""
    if not queue.items:
        return ""
    done, failed = queue.count("finished", "stopped"), queue.count("failed", "lost")
    cancelled = queue.count("cancelled")
    words = f"{done} of {len(queue.items)} done"
    words += f", {failed} failed" if failed else ""
    return words + (f", {cancelled} cancelled" if cancelled else "")


def columns(items: Sequence[Item], entries: dict[str, RunEntry]) -> list[TableColumn]:
    """A row per launch."""
    if not items:
        return []
    marks = [
        MARKS.get(item.state) or (STATE_MARKS["starting"] if item.state == "starting" else state_mark(item.state))
        for item in items
    ]
    runs = [entries.get(item.run_id) for item in items]
    return [
        TableColumn("", [(str(at), QUIET) for at in range(1, len(items) + 1)]),
        TableColumn("state", [(f"{mark.glyph} {mark.word}", Ink(mark.role)) for mark in marks], left=True),
        TableColumn(
            "name", [(item.name, STRONG if item.state in GOING else LABEL) for item in items], left=True, least=10
        ),
        TableColumn("strategy", [item.spec.requested or fmt.OWN for item in items], left=True, need=3),
        TableColumn(
            "progress", [progress(item, run) for item, run in zip(items, runs, strict=True)], left=True, need=2
        ),
        TableColumn("steps", [steps(item, run) for item, run in zip(items, runs, strict=True)]),
        TableColumn("loss", [fmt.number(run.loss if run else None) for run in runs], need=4),
        TableColumn("", [(item.reason, Ink("warn")) for item in items], left=True, need=1, least=16)
        if any(item.reason for item in items)
        else TableColumn("", ["" for _ in items], need=9),
    ]


def steps(item: Item, run: RunEntry | None) -> str:
    done = f"{run.steps:,}" if run else fmt.UNKNOWN if item.run_id else ""
    return done + (
        f"/{item.spec.steps:,}" if item.spec.steps and done else f"{item.spec.steps:,}" if item.spec.steps else ""
    )


def progress(item: Item, run: RunEntry | None) -> tuple[str, Ink]:
    """How far a run is; nothing where its end is not known."""
    if run is None or not item.spec.steps:
        return "", QUIET
    filled = min(BAR, run.steps * BAR // item.spec.steps)
    return "█" * filled + "·" * (BAR - filled), Ink("ok") if item.state in GOING else QUIET


ORDER = (*SWEEP, *(text for text in STRATEGIES if text not in SWEEP))
"""The yardsticks first: the first run of a comparison is its baseline."""
CHOSEN = tuple(text for text in SWEEP if text != "fsdp1:no_shard")
"""At first: as many as a comparison can show."""


class AskSweep(ModalScreen[list[LaunchSpec] | None]):
    """Asks under which strategies a training is to run; answers with a launch for each."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", show=False),
        Binding("space", "choose", show=False),
        Binding("a", "choose_all", show=False),
        Binding("f5,ctrl+enter,ctrl+j,enter", "save", show=False),
    ]

    def __init__(self, spec: LaunchSpec, known: str = "") -> None:
        """`known`: the strategy that the script was seen to train under by itself; "" where that is not known."""
        super().__init__()
        self._spec = spec
        self._known = known
        self._wrong: dict[str, str] = {}
        """Strategy -> why this machine cannot run the training under it; "" when it can."""
        self.chosen: set[str] = set()

    @property
    def board(self) -> Dashboard:
        return cast("Dashboard", self.app)

    def compose(self) -> ComposeResult:
        frame = Vertical(
            Table(id="strategies"),
            Static("others, separated by commas", classes="asked", markup=False),
            Input(placeholder="fsdp1:hybrid_shard=2x2, fsdp2:reshard=4", compact=True, id="other-strategies"),
            Static("", id="sweep-says", markup=False),
            Horizontal(
                Button("↵  run them one after another", compact=True, name="save"),
                Button("esc  not now", compact=True, name="close"),
                id="answers",
            ),
            id="sweep",
        )
        frame.border_title = "the same training under"
        frame.border_subtitle = "space chooses · a all or none · ↵ starts · esc close"
        yield frame

    def on_mount(self) -> None:
        wanted = CHOSEN if self._spec.target == "demo" else (self._spec.requested or self._known or DEFAULT,)
        self._wrong = {text: self._problem(text) for text in ORDER}
        self.chosen = {text for text in wanted if not self._wrong.get(text, "no such")}
        self.query_one("#strategies").focus()
        self._show()

    def _problem(self, text: str) -> str:
        machine = self.board.services.machine()
        (one,) = sweep(self._spec, parse_strategies(text), machine)
        found = problems(one, machine)
        return found[0].text if found else ""

    def _show(self) -> None:
        able = [not self._wrong[text] for text in ORDER]
        self.query_one("#strategies", Table).show_columns(
            [
                TableColumn(
                    "",
                    [
                        ("[✓]" if text in self.chosen else "[ ]" if can else " ▲ ", Ink("ok" if can else "warn"))
                        for text, can in zip(ORDER, able, strict=True)
                    ],
                    left=True,
                ),
                TableColumn(
                    "strategy",
                    [(text, LABEL if can else QUIET) for text, can in zip(ORDER, able, strict=True)],
                    left=True,
                ),
                TableColumn(
                    "",
                    [(self._wrong[text].removeprefix(f"{text} "), QUIET) for text in ORDER],
                    left=True,
                    need=1,
                    least=12,
                ),
            ]
        )
        try:
            specs = self._specs()
            said = "nothing is chosen"
            if specs:
                runs, steps = len(specs), specs[0].steps or 0
                said = f"{runs} run{'s' * (runs != 1)} of {steps:,} step{'s' * (steps != 1)}"
                said += ", one after another" * (runs > 1)
        except StrategyError as error:
            said = f"▲ {error}"
        self.query_one("#sweep-says", Static).update(said)

    def _specs(self) -> list[LaunchSpec]:
        """The launches that are chosen; raises StrategyError for what is none, or cannot run."""
        words = [text for text in ORDER if text in self.chosen]
        others = [word.strip() for word in self.query_one("#other-strategies", Input).value.split(",") if word.strip()]
        for text in others:
            if wrong := self._problem(text):
                raise StrategyError(wrong)
        if not (words or others):
            return []
        strategies = list(dict.fromkeys(parse_strategies(",".join([*words, *others]))))
        return [queueable(one) for one in sweep(self._spec, strategies, self.board.services.machine())]

    # Keys

    def action_choose(self) -> None:
        """The strategy under the cursor, or not; what cannot run says why."""
        text = ORDER[self.query_one("#strategies", Table).cursor]
        if self._wrong[text]:
            self.app.notify(self._wrong[text], severity="warning", markup=False)
        else:
            self.chosen ^= {text}
            self._show()

    def action_choose_all(self) -> None:
        """All that can run, or none."""
        every = {text for text in ORDER if not self._wrong[text]}
        self.chosen = set() if self.chosen == every else every
        self._show()

    @on(Input.Changed)
    def _typed(self) -> None:
        self._show()

    @on(Input.Submitted)
    def action_save(self) -> None:
        try:
            specs = self._specs()
        except StrategyError:
            return  # it is said already
        if specs:
            self.dismiss(specs)

    def action_close(self) -> None:
        self.dismiss(None)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        if event.button.name == "save":
            self.action_save()
        else:
            self.action_close()
