"""Screen 4: start a training. One form from the table of options, checked while it is filled in."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, NamedTuple

import msgspec
from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import Button, Checkbox, Input, Select, Static

from fsdp_tui.telemetry.launch import OPTIONS, LaunchSpec, Option, Problem, command_text, problems
from fsdp_tui.telemetry.machine import Machine
from fsdp_tui.telemetry.strategy import DEFAULT, StrategyError, parse_strategy
from fsdp_tui.tui.keys import LAUNCH, bindings_of
from fsdp_tui.tui.screens.base import View, title_of
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Row, crop
from fsdp_tui.tui.widgets.chrome import Header, HeaderFacts, Tabs
from fsdp_tui.tui.widgets.table import Reader, paragraph

STRATEGIES = (
    DEFAULT,
    "fsdp2:shard_grad_op",
    "fsdp2:reshard=2",
    "fsdp2:hybrid_shard",
    "fsdp2:no_shard",
    "fsdp1:full_shard",
    "fsdp1:shard_grad_op",
    "fsdp1:hybrid_shard",
    "fsdp1:hybrid_shard_zero2",
    "fsdp1:no_shard",
    "ddp",
    "single",
)
OTHER = "other"
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

Value = str | bool


class Field(NamedTuple):
    """One row of the form."""

    name: str
    label: str
    help: str
    choices: tuple[str, ...] = ()
    kind: type = str
    default: Value = ""
    when: str = ""
    """"demo" or "script": only for that kind of target."""


def _from_option(option: Option, label: str = "", choices: tuple[str, ...] = ()) -> Field:
    value = getattr(LaunchSpec(), option.field)
    return Field(
        option.field,
        label or option.flag.removeprefix("--").replace("-", " "),
        option.help,
        choices or option.choices,
        option.kind,
        value
        if isinstance(value, bool)
        else ""
        if value is None
        else f"{value:g}"
        if option.kind is float
        else str(value),
        "demo" if option.demo_only else "",
    )


_BY_NAME = {option.field: option for option in OPTIONS}
_SPECIAL = {
    "target": Field(
        "target",
        "what",
        "The demo's training, a Python script, or a module as with python -m.",
        ("demo", "script", "module"),
        default="demo",
    ),
    "script": Field("script", "script", "Path of the script, or name of the module.", when="script"),
    "args": Field("args", "arguments", "The script's own arguments, as in a shell.", when="script"),
    "strategy": _from_option(_BY_NAME["strategy"], choices=(*STRATEGIES, OTHER)),
    "strategy_text": Field(
        "strategy_text",
        "other",
        "A strategy in its text form: fsdp2:reshard=4, fsdp1:hybrid_shard=2x2 (replicate x shard), ...",
    ),
}
_GROUPS = (
    ("training", ("target", "script", "args", "model", "data", "batch", "seq", "lr", "seed", "steps")),
    ("sharding", ("strategy", "strategy_text", "nproc", "wrap", "precision", "reduce")),
    ("memory and time", ("checkpointing", "cpu_offload", "prefetch", "compile", "accumulate", "no_sync")),
    ("run", ("name", "telemetry")),
)
GROUPS = tuple(
    (title, tuple(_SPECIAL.get(name) or _from_option(_BY_NAME[name]) for name in names)) for title, names in _GROUPS
)
FIELDS = {field.name: field for _, fields in GROUPS for field in fields}


def read_form(values: Mapping[str, Value]) -> tuple[LaunchSpec, list[Problem]]:
    """The launch that a filled-in form means, and what in it is not even a value."""
    found: list[Problem] = []
    given: dict[str, object] = {}
    demo = values.get("target") == "demo"
    for name, field in FIELDS.items():
        value = values.get(name, field.default)
        option = _BY_NAME.get(name)
        if option is None or (option.demo_only and not demo):
            continue
        if isinstance(value, bool):
            given[name] = value
            continue
        text = value.strip()
        if name == "strategy" and text == OTHER:
            text = str(values.get("strategy_text", "")).strip() or OTHER
        if not text:
            if field.default:
                found.append(Problem(name, f"{option.flag}: expected {_expected(option)}, found nothing"))
            continue
        try:
            given[name] = option.kind(text)
        except ValueError:
            found.append(Problem(name, f"{option.flag} {text}: expected {_expected(option)}"))
    if not demo:
        given["target"] = values.get("target")
        given["script"] = str(values.get("script", "")).strip() or None
        try:
            given["args"] = tuple(shlex.split(str(values.get("args", ""))))
        except ValueError as error:
            found.append(Problem("args", f"arguments: {error}"))
    return msgspec.structs.replace(LaunchSpec(), **given), found


def _expected(option: Option) -> str:
    return {int: "a whole number", float: "a number"}.get(option.kind, "a text")


PLACEHOLDERS = {
    "data": "Python's standard library",
    "steps": "until stopped",
    "nproc": "one per GPU, 2 on a CPU",
    "name": "made from the strategy",
    "script": "train.py",
    "args": "--config a.yaml",
    "strategy_text": "fsdp1:hybrid_shard=2x2",
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
        self._starting = False
        self._failed = ""

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
            return Select(options, prompt="default", **about)  # type: ignore[arg-type]
        return Input(value=str(field.default), placeholder=PLACEHOLDERS.get(field.name, ""), **about)  # type: ignore[arg-type]

    def on_mount(self) -> None:
        title_of(self.query_one("#form"), "a new run")
        title_of(self.query_one("#command"), "the same from a shell (y copies)")
        self.check()

    def fit_to_size(self) -> None:
        super().fit_to_size()
        self.set_class(self.size.width < 72, "-narrow")

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
        self.spec, found = read_form(values)
        self.found = found or problems(self.spec, self.board.services.machine())
        wrong = {problem.field for problem in self.found}
        if values["strategy"] == OTHER and "strategy" in wrong:
            wrong.add("strategy_text")
        for name, field in FIELDS.items():
            row = self.query_one(f"#row-{name}")
            row.set_class(name in wrong, "-wrong")
            row.query_one(".label", Static).update(f"{'▲' if name in wrong else ' '} {field.label}")
        self.query_one("#go", Button).disabled = bool(self.found) or self._starting
        self.on_tick()

    def on_tick(self) -> None:
        if not self.ready:
            return
        machine = self.board.services.machine()
        self.query_one(Header).show_facts(
            HeaderFacts(None, False, self.board.services.now_ns(), title="new run", about=about_machine(machine))
        )
        count = f"▲ {len(self.found)} to put right" if self.found else "✓ ready"
        self.query_one(Tabs).show_notes([[(count, Ink("bad" if self.found else "ok", bold=True))]])
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
            self.set_focus(self.query_one("#card"))
        else:
            self.board.action_show("runs")

    def action_reset(self) -> None:
        for name, field in FIELDS.items():
            widget = self.query_one(f"#field-{name}")
            if isinstance(widget, Checkbox):
                widget.value = bool(field.default)
            elif isinstance(widget, Select):
                widget.value = field.default or Select.NULL
            elif isinstance(widget, Input):
                widget.value = str(field.default)


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
    try:
        strategy = parse_strategy(spec.strategy)
    except StrategyError:
        pass
    else:
        rows += [crop([], width), crop([(strategy.text, STRONG)], width)]
        rows += paragraph(MEANING.get(strategy.sharding or strategy.api, ""), width, QUIET)
    if field is not None:
        rows += [crop([], width), crop([(field.label, STRONG)], width)]
        rows += paragraph(field.help, width, QUIET)
        if field.default and not isinstance(field.default, bool):
            rows += paragraph(f"default: {field.default}", width, QUIET)
    return rows
