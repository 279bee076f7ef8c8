"""The question for a run's note and tags."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from fsdp_tui.telemetry.notes import Note, NoteError, make_note, split_tags


class AskNote(ModalScreen[Note | None]):
    """Asks for a note, filled in with the one that there is; answers with None when nothing is to change."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", show=False)]

    def __init__(self, name: str, note: Note) -> None:
        super().__init__()
        self._name, self._note = name, note

    def compose(self) -> ComposeResult:
        with Vertical(id="ask"):
            yield Static(f"Note on {self._name}: kept with its recording", markup=False, id="question")
            yield Static("tags, separated by spaces", classes="asked")
            yield Input(" ".join(self._note.tags), placeholder="baseline lr-sweep", compact=True, id="note-tags")
            yield Static("note", classes="asked")
            yield Input(self._note.text, placeholder="what it was for, what came of it", compact=True, id="note-text")
            yield Static("", id="note-problem", markup=False)
            with Horizontal(id="answers"):
                yield Button("↵  keep it", compact=True, name="save")
                yield Button("esc  leave it as it was", compact=True, name="close")

    @on(Input.Submitted)
    def action_save(self) -> None:
        words, text = (self.query_one(f"#note-{name}", Input).value for name in ("tags", "text"))
        try:
            self.dismiss(make_note(text, split_tags(words)))
        except NoteError as error:
            self.query_one("#note-problem", Static).update(str(error))

    def action_close(self) -> None:
        self.dismiss(None)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        if event.button.name == "save":
            self.action_save()
        else:
            self.action_close()
