"""The list of presets over the Launch form, and the question for a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from fsdp_tui.telemetry.launch import command_text
from fsdp_tui.telemetry.presets import Preset, name_problem
from fsdp_tui.telemetry.rundir import RunError
from fsdp_tui.tui.theme import Ink
from fsdp_tui.tui.widgets.chart import QUIET, STRONG, Row
from fsdp_tui.tui.widgets.table import Reader, Table, TableColumn, paragraph

if TYPE_CHECKING:
    from fsdp_tui.tui.app import Dashboard


class PresetList(ModalScreen[Preset | None]):
    """The presets of this machine and of the project; answers with the one to load."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "load", show=False),
        Binding("d,delete", "delete", show=False),
        Binding("escape,q", "close", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._found: list[Preset] = []
        self._problems: list[str] = []

    @property
    def board(self) -> Dashboard:
        return cast("Dashboard", self.app)

    def compose(self) -> ComposeResult:
        frame = Vertical(
            Table(empty=self.board.keyed("no presets yet: {launch.save} on the form saves it as one")),
            Reader(self._in_full),
            id="presets",
        )
        frame.border_title = "presets"
        frame.border_subtitle = "↵ load · d delete · esc close"
        yield frame

    def _in_full(self, width: int) -> list[Row]:
        """The line under the cursor, which the table may have cut."""
        at = self.query_one(Table).cursor
        if self.chosen is not None:
            return [
                *paragraph(str(self.chosen.path), width, QUIET),
                *paragraph(command_text(self.chosen.spec), width, indent=2),
            ]
        return paragraph(self._problems[at - len(self._found)], width, Ink("warn")) if self._problems else []

    @on(Table.CursorMoved)
    def _follow(self) -> None:
        self.query_one(Reader).redraw()

    def on_mount(self) -> None:
        self._list()

    def _list(self) -> None:
        self._found, self._problems = self.board.services.presets()
        self.query_one(Table).show_columns(columns(self._found, self._problems))
        self.query_one(Reader).can_focus = False
        self.query_one(Reader).redraw()

    @property
    def chosen(self) -> Preset | None:
        """The preset under the cursor; None on a line about one that cannot be read."""
        at = self.query_one(Table).cursor
        return self._found[at] if at < len(self._found) else None

    def action_load(self) -> None:
        if self.chosen is not None:
            self.dismiss(self.chosen)

    def action_delete(self) -> None:
        preset = self.chosen
        if preset is not None:
            self.board.ask(
                f"Delete the preset {preset.name}? Its file {preset.path} is gone for good.",
                [("n", "no, keep it", "no"), ("d", "delete it", "delete")],
                lambda answer: self._delete(preset) if answer == "delete" else None,
            )

    def _delete(self, preset: Preset) -> None:
        try:
            self.board.services.remove_preset(preset)
        except RunError as error:
            self.app.notify(str(error), title="not deleted", severity="error", markup=False)
        self._list()

    def action_close(self) -> None:
        self.dismiss(None)


def columns(presets: Sequence[Preset], problems: Sequence[str]) -> list[TableColumn]:
    """A row per preset, then one per problem."""
    if not presets and not problems:
        return []
    return [
        TableColumn(
            "name", [*((one.name, STRONG) for one in presets), *(("✗", Ink("bad")) for _ in problems)], left=True
        ),
        TableColumn(
            "launches",
            [*(command_text(one.spec) for one in presets), *((said, Ink("warn")) for said in problems)],
            left=True,
            least=24,
        ),
        TableColumn(
            "kept in",
            [*(("the project" if one.of_project else "home", QUIET) for one in presets), *("" for _ in problems)],
            left=True,
            need=1,
        ),
    ]


class AskName(ModalScreen[str | None]):
    """Asks for the name of a preset until it is one."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", show=False)]

    def __init__(self, suggested: str) -> None:
        super().__init__()
        self._suggested = "".join(char if char.isalnum() or char in "_.-" else "-" for char in suggested)

    def compose(self) -> ComposeResult:
        with Vertical(id="ask"):
            yield Static("Save what the form says as the preset", markup=False, id="question")
            yield Input(self._suggested, compact=True, id="preset-name")
            yield Static("", id="preset-problem", markup=False)
            with Horizontal(id="answers"):
                yield Button("↵  save it", compact=True, name="save")
                yield Button("esc  not now", compact=True, name="close")

    @on(Input.Submitted)
    def action_save(self) -> None:
        name = self.query_one(Input).value.strip()
        if problem := name_problem(name):
            self.query_one("#preset-problem", Static).update(problem)
        else:
            self.dismiss(name)

    def action_close(self) -> None:
        self.dismiss(None)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        if event.button.name == "save":
            self.action_save()
        else:
            self.action_close()
