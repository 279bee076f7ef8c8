"""Notes and tags: what is one, and that they are kept with the run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdp_tui.telemetry.notes import Note, NoteError, make_note, read_note, split_tags
from fsdp_tui.telemetry.rundir import Summary, UnknownRun, create_run, entry_of, list_runs, remove, write_note


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FSDP_TUI_RUNTIME_DIR", str(tmp_path / "live"))


def test_what_is_typed_becomes_a_note() -> None:
    """Each tag once, with or without #; the text in one line."""
    note = make_note(" two\n lines ", split_tags("#a, b a"))
    assert note == Note(text="two lines", tags=("a", "b"))
    assert note.line == "#a #b  two lines"
    assert not make_note(" ", [])


@pytest.mark.parametrize("tag", ["a:b", "!a", "x" * 33])
def test_what_is_no_tag(tag: str) -> None:
    """A tag can be written after tag: in a filter."""
    with pytest.raises(NoteError, match="is no tag"):
        make_note("", [tag])


def test_it_is_kept_listed_and_removed() -> None:
    """A file of the run's folder; an empty note is no file; a damaged one is named and the run stays."""
    paths = create_run(1_700_000_000 * 10**9)
    paths.summary.write_bytes(msgspec.json.encode(Summary(run_id=paths.id, name="a", state="finished", created_ns=1)))
    write_note(entry_of(paths.id), Note(text="why", tags=("t",)))
    assert read_note(paths.note) == Note(text="why", tags=("t",))
    assert [one.note.line for one in list_runs()] == ["#t  why"]
    assert sorted(path.name for path in paths.kept.iterdir() if path.is_file()) == ["note.json", "summary.json"]
    write_note(entry_of(paths.id), Note())
    assert not paths.note.exists()
    paths.note.write_text('{"text": 1}')
    assert (entry_of(paths.id).state, entry_of(paths.id).note) == ("finished", Note())
    assert "note.json is damaged" in entry_of(paths.id).problem
    remove(entry_of(paths.id))
    with pytest.raises(UnknownRun):
        entry_of(paths.id)


def test_a_run_that_is_gone_gets_no_note() -> None:
    """No folder appears again."""
    paths = create_run(1_700_000_001 * 10**9)
    entry = entry_of(paths.id)
    remove(entry)
    with pytest.raises(UnknownRun, match="is gone"):
        write_note(entry, Note(text="late"))
    assert not paths.kept.exists()
