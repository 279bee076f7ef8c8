"""Launches that were saved: `$FSDP_TUI_HOME/presets/NAME.toml`, and the `[presets.NAME]` tables of a project's fsdp-tui.toml.

Both hold the same keys: target, script, args, directory, the options of `telemetry.launch` by field, and env. An option of
the sharding that is there is asked for, also where it equals the default; one that is not is left to the script. What
is saved here is one flat table, so that it can be pasted under a project's `[presets.NAME]` as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fsdp_tui.telemetry.launch import OPTIONS, SHARDING, LaunchSpec, written
from fsdp_tui.telemetry.rundir import RunError, home, home_error, write_file
from fsdp_tui.telemetry.strategy import StrategyError, parse_strategy, parse_wrap
from fsdp_tui.telemetry.tomlfile import TomlFile, as_toml

PROJECT_FILE = "fsdp-tui.toml"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
TARGETS = ("demo", "script", "module")


class PresetError(RunError):
    """A preset that is not there, cannot be read, or cannot be saved; the message is one line."""


class PresetTaken(PresetError):
    """There is a preset of this name already."""


class Preset(NamedTuple):
    name: str
    path: Path
    """The file that it is written in."""
    spec: LaunchSpec
    of_project: bool
    """Whether it is a table of a project's file, and not a file of its own."""


class Listing(NamedTuple):
    presets: list[Preset]
    """By name; a project's goes before a saved one of the same name."""
    problems: list[str]
    """What could not be read, a line each."""


# Reading


def listed(directory: Path | None = None) -> Listing:
    """All presets that can be used in a directory (None: the working one): its project file's and the saved ones."""
    found: dict[str, Preset] = {}
    problems: list[str] = []
    try:
        places = _of_project(directory)
    except PresetError as error:
        places = []
        problems.append(str(error))
    for place in [*places, *_saved()]:
        try:
            found.setdefault(place.name, _read(place))
        except PresetError as error:
            problems.append(str(error))
    return Listing([found[name] for name in sorted(found)], problems)


def find(name: str, directory: Path | None = None) -> Preset:
    """The preset of this name.

    Raises:
        PresetError: there is none, or a file that it may be in cannot be read.
    """
    places = [*_of_project(directory), *_saved()]
    for place in places:
        if place.name == name:
            return _read(place)
    names = ", ".join(sorted({place.name for place in places}))
    raise PresetError(f"no preset {name!r}: {f'expected one of {names}' if names else 'none is saved yet'}")


class _Place(NamedTuple):
    """Where a preset is written."""

    name: str
    path: Path
    of_project: bool


def _of_project(directory: Path | None) -> list[_Place]:
    path = (directory or Path.cwd()).absolute() / PROJECT_FILE
    return [_Place(name, path, True) for name in _project_names(TomlFile(path, PresetError))] if path.exists() else []


def _saved() -> list[_Place]:
    return [_Place(path.stem, path, False) for path in sorted((home() / "presets").glob("*.toml"))]


def _read(place: _Place) -> Preset:
    document = TomlFile(place.path, PresetError)
    if place.of_project:
        spec = _spec(document, ("presets", place.name), document.tables["presets"][place.name], place.path.parent)
    else:
        spec = _spec(document, (), document.tables, None)
    return Preset(place.name, place.path, spec, place.of_project)


def _project_names(document: TomlFile) -> list[str]:
    for key in document.tables:
        if key != "presets":
            document.fail((key,), "no such key: expected [presets.NAME]")
    tables = document.tables.get("presets", {})
    if not isinstance(tables, dict):
        document.fail(("presets",), "expected tables [presets.NAME]")
    return list(tables)


def _spec(document: TomlFile, keys: tuple[str, ...], table: object, base: Path | None) -> LaunchSpec:
    """The launch that a table describes; directories are relative to `base`."""
    if not isinstance(table, dict):
        document.fail(keys, f"expected a table, found {table!r}")
    options = {option.field: option for option in OPTIONS}
    fields: dict[str, Any] = {"target": "script" if "script" in table else "demo"}
    for key, value in table.items():
        here = (*keys, key)
        if key == "target":
            if value not in TARGETS:
                document.fail(here, f"expected one of {', '.join(TARGETS)}, found {value!r}")
        elif key in ("script", "directory"):
            _typed(document, here, value, str)
        elif key == "args":
            if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
                document.fail(here, f"expected a list of texts, found {value!r}")
            value = tuple(value)
        elif key == "env":
            value = _environment(document, here, value)
        elif option := options.get(key):
            value = _typed(document, here, value, option.kind)
            if expected := option.expects(value):
                document.fail(here, f"{expected}, found {value!r}")
            try:
                if key == "strategy":
                    parse_strategy(value)
                elif key == "wrap":
                    parse_wrap(value)
            except StrategyError as error:
                document.fail(here, str(error))
        else:
            known = ("target", "script", "args", "directory", "env", *options)
            document.fail(here, f"no such key: expected one of {', '.join(known)}")
        fields[key] = value
    if fields["target"] != "demo":
        if "script" not in fields:
            document.fail(keys or ("target",), 'which script? expected script = "PATH"')
        fields["asked"] = tuple(name for name in SHARDING if name in table)
        if base is not None or "directory" in fields:
            fields["directory"] = str((base or Path.cwd()) / fields.get("directory", ""))
    return LaunchSpec(**fields)


WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _typed(document: TomlFile, keys: tuple[str, ...], value: object, kind: type) -> Any:
    """The value as this type, to which a whole number is a number too but true is none."""
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, (int, float) if kind is float else kind):
        document.fail(keys, f"expected {WORDS[kind]}, found {value!r}")
    return kind(value)


def _environment(document: TomlFile, keys: tuple[str, ...], value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        document.fail(keys, f"expected a table of variables, found {value!r}")
    for name, said in value.items():
        if isinstance(said, bool) or not isinstance(said, str | int):
            document.fail((*keys, name), f"expected a text, found {said!r}")
    return {name: str(said) for name, said in value.items()}


# Writing


def as_table(spec: LaunchSpec) -> dict[str, Any]:
    """A launch as a preset's keys and values."""
    table: dict[str, Any] = {"target": spec.target}
    if spec.target != "demo":
        table["script"] = spec.script or ""
        table |= {"args": list(spec.args)} if spec.args else {}
        table |= {"directory": spec.directory} if spec.directory else {}
    table |= written(spec)
    return table | ({"env": dict(spec.env)} if spec.env else {})


def name_problem(name: str) -> str:
    """Why no preset can be saved under this name; "" when one can."""
    if not NAME.fullmatch(name):
        return f"{name!r} is no name for a preset: expected letters, digits, _, - and ."
    if any(place.name == name for place in _of_project(None)):
        return f"{name} is a preset of {PROJECT_FILE}, which would hide this one: choose another name"
    return ""


def save(name: str, spec: LaunchSpec, *, replace: bool = False) -> Path:
    """Writes a launch to a file of its own, with its directory in full; returns the file.

    Raises:
        PresetTaken: there is one, and it is not to be replaced.
        PresetError: this is no name for a file, or there is a text in the launch that is none.
        HomeError: the home cannot be written.
    """
    if problem := name_problem(name):
        raise PresetError(problem)
    path = home() / "presets" / f"{name}.toml"
    if path.exists() and not replace:
        raise PresetTaken(f"there is a preset {name} already, {path}: choose another name, or delete it first")
    if spec.target != "demo":
        spec = msgspec.structs.replace(spec, directory=os.path.abspath(spec.directory or "."))
    try:
        body = as_toml(as_table(spec)).encode()
    except UnicodeEncodeError:
        raise PresetError(f"preset {name}: a word of this launch is no text, which TOML cannot hold") from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise home_error(path.parent, error) from None
    write_file(path, body)
    return path


def remove(preset: Preset) -> None:
    """Deletes a saved preset.

    Raises:
        PresetError: it is a project's, or cannot be deleted.
    """
    if preset.of_project:
        raise PresetError(f"preset {preset.name} is a table of {preset.path}: delete it there")
    try:
        preset.path.unlink()
    except OSError as error:
        raise PresetError(f"cannot delete {preset.path}: {error.strerror}") from None
