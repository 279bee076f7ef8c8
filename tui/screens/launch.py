"""Screen 4: start a training. One form from the table of options, checked while it is filled in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import Button, Checkbox, Input, Select, Static

from fsdp_tui.telemetry.launch import BRIEF_STEPS, SHARDING, LaunchSpec, Problem, command_text, problems, run_name
from fsdp_tui.telemetry.machine import Machine
from fsdp_tui.telemetry.presets import Preset, PresetTaken
from fsdp_tui.telemetry.rundir import RunError
from fsdp_tui.telemetry.strategy import DEFAULT, StrategyError, parse_strategy
from fsdp_tui.tui.form import FIELDS, GROUPS, OTHER, Field, Value, fill_form, read_form
from fsdp_tui.tui.format import OWN
from fsdp_tui.tui.keys import LAUNCH, bindings_of
from fsdp_tui.tui.screens.base import View, title_of
from fsdp_tui.tui.screens.presets import AskName, PresetList
from fsdp_tui.tui.screens.queue import AskSweep, queue_words
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Row, crop
from fsdp_tui.tui.widgets.chrome import Header, HeaderFacts, Tabs
from fsdp_tui.tui.widgets.table import Reader, paragraph

SHORT = 18
"""With fewer rows than this the command line, and on a narrow terminal the card, give way to the form."""

MEANING = {
    "single": "One process, nothing is shared: what the others are measured against.",
    "ddp": "Every rank keeps everything; gradients are all-reduced.",
    "full_shard": "Parameters, gradients and optimizer are cut into 1/N; each unit is gathered in forward and again in backward.",
    "shard_grad_op": "Gradients and optimizer are cut into 1/N; gathered parameters stay from forward to backward.",
    "no_shard": "FSDP's machinery without cutting anything: as much memory as ddp.",
    "hybrid_shard": "full_shard inside groups of ranks, copies between them.",
    "hybrid_shard_zero2": "shard_grad_op inside groups of ranks, copies between them.",
    "reshard": "full_shard, but after forward each rank keeps a larger part, so that backward gathers from fewer ranks.",
}


class Line(Horizontal):
    """One field with its label and, when something is wrong with it, a mark."""


class Toggle(Checkbox):
    """A checkbox that shows its state without colour."""

    @property
    def BUTTON_INNER(self) -> str:  # type: ignore[override]
        return "✓" if self.value else " "


class LaunchScreen(View):
    """The form, what is wrong with it, and the command line that does the same."""

    KIND = LAUNCH
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(LAUNCH))

    def __init__(self) -> None:
        super().__init__()
        self.spec = LaunchSpec()
        self.found: list[Problem] = []
        self.unreadable: list[Problem] = []
        """What in the form is not even a launch."""
        self._starting = False
        self._failed = ""
        self._filled_with = fill_form(self.spec)
        self._focus = ""
        self._own = ("", "")
        """A script, and the strategy that a run of it was seen to train under."""
        self._preset = ""
        """Name of the preset that was loaded or saved last."""

    def body(self) -> Iterable[Widget]:
        form = VerticalScroll(*self._rows(), id="form", classes="pane", can_focus=False)
        side = Vertical(Reader(id="card", classes="pane"), id="side")
        yield Horizontal(form, side, id="launch")
        yield Reader(id="command", classes="pane")
        yield Horizontal(
            Button("Launch", compact=True, id="go", variant="primary"),
            Static("", id="answer", markup=False),
            id="bottom",
        )

    def _rows(self) -> Iterator[Widget]:
        for at, (title, fields) in enumerate(GROUPS):
            yield Static(title, classes="group", markup=False)
            for field in fields:
                first = " first" if at == 0 and field.name == "target" else ""
                yield Line(
                    Static(f"  {field.label}", classes="label", markup=False),
                    self._input(field, first),
                    id=f"row-{field.name}",
                )

    def _input(self, field: Field, classes: str) -> Widget:
        about = {"id": f"field-{field.name}", "classes": f"field{classes}", "compact": True}
        if field.kind is bool:
            return Toggle("", value=bool(field.default), **about)  # type: ignore[arg-type]
        if field.choices:
            options = [(OTHER + " …" if choice == OTHER else choice, choice) for choice in field.choices]
            if field.default:
                return Select(options, value=field.default, allow_blank=False, **about)  # type: ignore[arg-type]
            return Select(options, prompt=field.blank, **about)  # type: ignore[arg-type]
        return Input(value=str(field.default), placeholder=field.blank or field.example, **about)  # type: ignore[arg-type]

    def on_mount(self) -> None:
        title_of(self.query_one("#form"), "a new run")
        title_of(self.query_one("#command"), self.board.keyed("the same from a shell ({launch.copy} copies)"))
        self._fill()
        self.check()

    def fit_to_size(self) -> None:
        """Where there is little room it is for the fields."""
        super().fit_to_size()
        self.set_class(self.size.width < 72, "-narrow")
        self.set_class(self.size.height < SHORT, "-short")

    # The form

    def values(self) -> dict[str, Value]:
        """What is filled in."""
        found: dict[str, Value] = {}
        for name in FIELDS:
            widget = self.query_one(f"#field-{name}")
            if isinstance(widget, Checkbox):
                found[name] = widget.value
            elif isinstance(widget, Select):
                found[name] = "" if widget.value is Select.NULL else str(widget.value)
            elif isinstance(widget, Input):
                found[name] = widget.value
        return found

    def fill(self, spec: LaunchSpec, focus: str = "", effective: str = "") -> None:
        """Fills the form in with a launch, also before the screen is there; gives the focus to a field.

        `effective`: the strategy that a run of this launch trained under.
        """
        self._own = (spec.script or "", effective)
        self._filled_with, self._focus = fill_form(spec), focus
        if self.ready:
            self._fill()
            self.check()

    def _fill(self) -> None:
        if self._focus:
            self.set_focus(self.query_one(f"#field-{self._focus}"))
        for name, value in self._filled_with.items():
            widget = self.query_one(f"#field-{name}")
            if isinstance(widget, Checkbox):
                widget.value = bool(value)
            elif isinstance(widget, Select):
                widget.value = value or Select.NULL
            elif isinstance(widget, Input):
                widget.value = str(value)

    @on(Input.Changed)
    @on(Select.Changed)
    @on(Checkbox.Changed)
    def _changed(self) -> None:
        self._failed = ""
        self.check()

    def check(self) -> None:
        """Says what is wrong with the form as it is."""
        values = self.values()
        demo = values["target"] == "demo"
        for name, field in FIELDS.items():
            hidden = (field.when == "demo" and not demo) or (field.when == "script" and demo)
            hidden = hidden or (name == "strategy_text" and values["strategy"] != OTHER)
            self.query_one(f"#row-{name}").display = not hidden
            if name in SHARDING:
                self._say_left_alone(field, demo=demo)
        self.spec, self.unreadable = read_form(values)
        unread = {problem.field for problem in self.unreadable}
        self.found = [*self.unreadable, *problems(self.spec, self.board.services.machine(), unread)]
        wrong = {problem.field for problem in self.found}
        if values["strategy"] == OTHER and "strategy" in wrong:
            wrong.add("strategy_text")
        for name, field in FIELDS.items():
            row = self.query_one(f"#row-{name}")
            row.set_class(name in wrong, "-wrong")
            row.query_one(".label", Static).update(f"{'▲' if name in wrong else ' '} {field.label}")
        self.query_one("#go", Button).disabled = bool(self.found) or self._starting
        self.on_tick()

    def _say_left_alone(self, field: Field, *, demo: bool) -> None:
        widget = self.query_one(f"#field-{field.name}")
        words = field.left_alone(demo=demo)
        if isinstance(widget, Select):
            widget.prompt = words
        elif isinstance(widget, Input):
            widget.placeholder = words

    def on_tick(self) -> None:
        if not self.ready:
            return
        machine = self.board.services.machine()
        self.query_one(Header).show_facts(
            HeaderFacts(None, False, self.board.services.now_ns(), title="new run", about=about_machine(machine))
        )
        count = f"▲ {len(self.found)} to put right" if self.found else "✓ ready"
        notes: list[Row] = [[(count, Ink("bad" if self.found else "ok", bold=True))]]
        if words := queue_words(self.board.queue):
            notes.append([(f"{self.board.keyed('queue ({queue})')}: {words}", LABEL)])
        self.query_one(Tabs).show_notes(notes)
        card = self.query_one("#card", Reader)
        title_of(card, "what is wrong" if self.found else "ready")
        focused = self.focused.id.removeprefix("field-") if self.focused is not None and self.focused.id else ""
        card.show(lambda width: write_card(self.spec, self.found, machine, FIELDS.get(focused), width))
        self.query_one("#command", Reader).show(
            lambda width: paragraph(command_text(self.spec), width, LABEL, indent=2)
        )
        answer = (
            "starting …"
            if self._starting
            else self._failed or ("" if not self.found else "not until what is marked ▲ is put right")
        )
        self.query_one("#answer", Static).update(answer)

    def on_descendant_focus(self) -> None:
        self.on_tick()

    # Keys

    @on(Input.Submitted)
    @on(Button.Pressed, "#go")
    def action_launch(self) -> None:
        """Starts it, if nothing is wrong."""
        self.check()
        if self.found:
            self.app.notify(self.found[0].text, title="not started", severity="error", markup=False)
            return
        if not self._starting:
            self._starting, self._failed = True, ""
            self.check()
            self.board.launch(self.spec, self._answered)

    def _answered(self, problem: str) -> None:
        self._starting, self._failed = False, problem
        if problem:
            self.app.notify(problem, title="not started", severity="error", markup=False)
        self.check()

    def action_copy(self) -> None:
        self.board.copy(command_text(self.spec))

    def action_leave_field(self) -> None:
        """Out of the field; from outside of any, back to the runs."""
        if isinstance(self.focused, Input | Select | Checkbox):
            card = self.query_one("#card")
            self.set_focus(card if card in self.focus_chain else None)
        else:
            self.board.action_show("runs")

    def action_reset(self) -> None:
        self._preset = ""
        self.fill(LaunchSpec())

    # Queue

    def action_enqueue(self) -> None:
        """Puts the form at the end of the queue."""
        if self._sound() and self.board.enqueue([self.spec]):
            left = self.board.queue.count("waiting")
            steps = "" if self.spec.steps or self.spec.target != "demo" else f" It trains {BRIEF_STEPS} steps."
            self.app.notify(
                f"{run_name(self.spec)}: {left} waiting; {self.board.keyed('{queue}')} shows the queue.{steps}",
                title="queued",
                markup=False,
            )

    def action_sweep(self) -> None:
        """Asks for strategies, and puts a launch for each at the end of the queue."""
        if self._sound():
            script, effective = self._own
            known = effective if self.spec.script == script else ""
            self.app.push_screen(AskSweep(self.spec, known), self._swept)

    def _swept(self, specs: list[LaunchSpec] | None) -> None:
        if specs and self.board.enqueue(specs):
            self.board.action_show("queue")

    def _sound(self) -> bool:
        """Whether nothing is wrong with the form; says what is."""
        self.check()
        if self.found:
            self.app.notify(self.found[0].text, title="not queued", severity="error", markup=False)
        return not self.found

    # Presets

    def action_presets(self) -> None:
        """Opens the list of presets; the one that is chosen fills the form in."""
        self.app.push_screen(PresetList(), self._load)

    def _load(self, preset: Preset | None) -> None:
        if preset is not None:
            self._preset = preset.name
            self.fill(preset.spec)
            self.app.notify(preset.name, title="preset loaded", timeout=2, markup=False)

    def action_save_preset(self) -> None:
        """Asks for a name and saves the form."""
        self.check()
        wrong = self.unreadable or [problem for problem in self.found if problem.field == "script"]
        if wrong:
            self.app.notify(wrong[0].text, title="not saved", severity="error", markup=False)
            return
        self.app.push_screen(AskName(self._preset or self.spec.name or run_name(self.spec)), self._save)

    def _save(self, name: str | None, *, replace: bool = False) -> None:
        if not name:
            return
        try:
            path = self.board.services.save_preset(name, self.spec, replace)
        except PresetTaken:
            self.board.ask(
                f"There is a preset {name} already. Replace it with what the form says?",
                [("n", "no, keep it", "no"), ("r", "replace it", "replace")],
                lambda answer: self._save(name, replace=True) if answer == "replace" else None,
            )
        except RunError as error:
            self.app.notify(str(error), title="not saved", severity="error", markup=False)
        else:
            self._preset = name
            self.app.notify(str(path), title="preset saved", markup=False)


def about_machine(machine: Machine) -> str:
    """What there is to train on."""
    torch = f"torch {machine.torch}" if machine.torch else "no torch"
    if machine.accelerators:
        return f"{machine.accelerators} GPUs · {torch}"
    return f"CPU, {machine.cores} cores · {torch}"


def write_card(spec: LaunchSpec, found: list[Problem], machine: Machine, field: Field | None, width: int) -> list[Row]:
    """What is wrong, or what would be started; then what the field with the cursor is for."""
    rows: list[Row] = []
    for problem in found:
        rows += paragraph(problem.text, width, STRONG, first=[("▲ ", Ink("bad", bold=True))])
    if not found:
        ranks = spec.ranks(machine)
        steps = f"{spec.steps:,} steps" if spec.steps else "until it is stopped"
        rows += paragraph(
            f"{ranks} rank{'s' if ranks > 1 else ''}, {steps}", width, LABEL, first=[("✓ ", Ink("ok", bold=True))]
        )
        if ranks > machine.cores and not machine.accelerators:
            rows += paragraph(
                f"more ranks than the {machine.cores} cores: expect it to be slow",
                width,
                LABEL,
                first=[("! ", Ink("warn", bold=True))],
            )
    rows += _about_strategy(spec, width)
    if field is not None:
        rows += [crop([], width), crop([(field.label, STRONG)], width)]
        rows += paragraph(field.help, width, QUIET)
        demo = spec.target == "demo"
        if words := "" if field.kind is bool and demo else field.left_alone(demo=demo):
            how = "not checked" if field.kind is bool else "default" if words != OWN else "left empty"
            rows += paragraph(f"{how}: {words}", width, QUIET)
    return rows


def _about_strategy(spec: LaunchSpec, width: int) -> list[Row]:
    if not spec.requested:
        text = (
            f"How the script wraps its model is left as it is; one that calls shard() gets {DEFAULT}."
            " What is chosen here is applied at the script's own calls."
        )
        return [crop([], width), crop([(OWN + " strategy", STRONG)], width), *paragraph(text, width, QUIET)]
    try:
        strategy = parse_strategy(spec.strategy)
    except StrategyError:
        return []
    rows = [crop([], width), crop([(strategy.text, STRONG)], width)]
    return rows + paragraph(MEANING.get(strategy.sharding or strategy.api, ""), width, QUIET)
