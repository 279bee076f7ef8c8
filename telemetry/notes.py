"""What a person writes on a run: a text and tags, `note.json` in the run's folder, kept with its recording."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fsdp_tui.telemetry.places import RunError, said

TAG = re.compile(r"[^\s,#!:]{1,32}")
TEXT_MAX = 2_000
"""Characters. What is longer belongs into a file."""


class NoteError(RunError):
    """A note that cannot be read or written; the message is one line."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A run's note; an empty one is no file."""

    text: str = ""
    tags: tuple[str, ...] = ()
    """In the order in which they were given, each once."""

    def __bool__(self) -> bool:
        return bool(self.text or self.tags)

    @property
    def line(self) -> str:
        """All of it in one line: "#baseline #lr  the text"."""
        return "  ".join(part for part in (" ".join(f"#{tag}" for tag in self.tags), self.text) if part)


def make_note(text: str, tags: Iterable[str]) -> Note:
    """A note of what was typed; tags may begin with # and be given twice.

    Raises:
        NoteError: a word that is no tag, or a text that is too long.
    """
    names = [name for tag in tags if (name := tag.strip().removeprefix("#"))]
    for name in names:
        if not TAG.fullmatch(name):
            raise NoteError(f"{name!r} is no tag: expected 1 to 32 characters without spaces, commas, '#', '!' and ':'")
    text = " ".join(text.split())
    if len(text) > TEXT_MAX:
        raise NoteError(f"a note of {len(text):,} characters: expected {TEXT_MAX:,} at most")
    return Note(text=text, tags=tuple(dict.fromkeys(names)))


def split_tags(words: str) -> list[str]:
    """Tags as they are typed into one field: separated by spaces or commas."""
    return [word for word in re.split(r"[\s,]+", words) if word]


def read_note(path: Path) -> Note:
    """The note kept at this path; an empty one where there is none.

    Raises:
        NoteError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Note)
    except FileNotFoundError:
        return Note()
    except OSError as error:
        raise NoteError(f"cannot read {path}: {said(error)}") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise NoteError(f"{path} is damaged: {' '.join(str(error).split())}") from None
