"""Files that people write in TOML: read with the line that a mistake is in, and written a line per key."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from fsdp_tui.telemetry.places import RunError


class TomlFile:
    """One TOML file, with the lines that its keys are in."""

    def __init__(self, path: Path, error: type[RunError]) -> None:
        """Raises `error`, as `fail` does, when it cannot be read or is no TOML."""
        self.path = path
        self._error = error
        try:
            self.text = path.read_text(encoding="utf-8")
        except OSError as found:
            raise error(f"{path}: {found.strerror}") from None
        except UnicodeDecodeError:
            raise error(f"{path} is no text in UTF-8: expected TOML") from None
        try:
            self.tables = tomllib.loads(self.text)
        except (tomllib.TOMLDecodeError, RecursionError) as found:
            raise error(self._broken(str(found))) from None

    def _broken(self, said: str) -> str:
        lines = self.text.splitlines() or [""]
        place = re.search(r"\(at (?:line (\d+), column \d+|end of document)\)", said)
        number = int(place[1]) if place and place[1] else len(lines)
        found = lines[min(number, len(lines)) - 1].strip()
        what = said[: place.start()].strip() if place else said
        return f"{self.path}, line {number}: {what[:1].lower()}{what[1:]}, in {found[:80]!r}"

    def fail(self, keys: tuple[str, ...], text: str) -> NoReturn:
        """Raises the error with the place of a key."""
        raise self._error(self.at(keys, text))

    def at(self, keys: tuple[str, ...], text: str) -> str:
        """A line about a key, with its place."""
        line = next((at for end in range(len(keys), 0, -1) if (at := self._line_of(keys[:end]))), None)
        where = f", line {line}" if line else ""
        return f"{self.path}{where}: {'.'.join(keys)}: {text}"

    def _line_of(self, keys: tuple[str, ...]) -> int | None:
        """The first line that is of this key, or of something inside it. tomllib does not say."""
        table: tuple[str, ...] = ()
        for number, line in enumerate(self.text.splitlines(), 1):
            is_header = line.lstrip().startswith("[")
            try:
                read = tomllib.loads(line if is_header else f"{line.partition('=')[0]}= 0")
            except tomllib.TOMLDecodeError:  # a comment, or the middle of a longer value
                continue
            found = tuple(_only_keys(read))
            table = found if is_header else table
            if (found if is_header else table + found)[: len(keys)] == keys:
                return number
        return None


def _only_keys(table: object) -> Iterator[str]:
    while isinstance(table, dict) and table:
        ((key, table),) = table.items()
        yield key


def as_toml(table: Mapping[str, Any]) -> str:
    """A flat table of texts, numbers, switches, lists of texts and tables of texts, a line per key."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    if isinstance(value, float):
        return repr(value)
    # JSON's texts, switches and whole numbers are TOML's, but for one character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
