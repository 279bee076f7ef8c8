"""What a person may set for good: `$FSDP_TUI_HOME/config.toml`, its settings and its key map.

A mistake in it is one line that says what is expected; everything else in it counts all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from fsdp_tui.telemetry.places import RunError, home
from fsdp_tui.telemetry.tomlfile import TomlFile, as_toml
from fsdp_tui.tui.keys import KEYS, SIGNS, Key, keys_for
from fsdp_tui.tui.pace import RATES

FILE = "config.toml"
KEY_TABLE = "keys"
AUTO, ALL = "auto", "all"


@dataclass(frozen=True)
class Settings:
    """What the dashboard begins with; keys change it while it runs."""

    theme: str = AUTO
    refresh: float = 2.0
    """Times a second."""
    letters: bool = False
    memory: str = "peak"
    log_loss: bool = False
    smoothing: int | str = AUTO
    """Steps that the loss is averaged over; AUTO: more on longer runs."""
    window: int | str = ALL
    """Steps that the charts show."""
    keys: tuple[Key, ...] = KEYS
    problems: tuple[str, ...] = field(default=(), compare=False)
    """What could not be taken from the file, a line each."""

    def smooth(self, steps: int) -> int:
        """Steps that the loss of a run of so many is averaged over; 1: it is not."""
        if isinstance(self.smoothing, int):
            return self.smoothing
        return 1 if steps < 200 else min(50, steps // 40)


class Setting(NamedTuple):
    """One key of the file beside the key map."""

    name: str
    takes: Callable[[object], bool]
    expected: str
    about: str


def _one_of(*choices: object) -> Callable[[object], bool]:
    return lambda value: any(type(value) is type(choice) and value == choice for choice in choices)


def _is_rate(value: object) -> bool:
    return not isinstance(value, bool) and value in RATES


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    return value == AUTO or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


WINDOWS = (ALL, 1000, 200, 50)
MOMENTS = ("peak", "now")
THEMES = (AUTO, "dark", "light", "contrast", "terminal")
SETTINGS = (
    Setting(
        "theme",
        _one_of(*THEMES),
        f"one of {', '.join(THEMES)}",
        "auto: dark, or the terminal's own colours where there are no more than 16",
    ),
    Setting("refresh", _is_rate, f"one of {', '.join(f'{rate:g}' for rate in RATES)}", "pictures a second"),
    Setting("letters", _is_switch, "true or false", "letters and glyphs instead of colours; NO_COLOR does it too"),
    Setting("memory", _one_of(*MOMENTS), f"one of {', '.join(MOMENTS)}", "bars at the peak of a step, or after it"),
    Setting("log_loss", _is_switch, "true or false", "logarithmic loss axis"),
    Setting(
        "smoothing",
        _is_count,
        "auto, or steps from 1 on",
        "steps that the loss is averaged over; 1: it is not averaged",
    ),
    Setting("window", _one_of(*WINDOWS), f"one of {', '.join(map(str, WINDOWS))}", "newest steps that the charts show"),
)


def config_path() -> Path:
    """Where the settings are, if there are any."""
    return home() / FILE


def load(path: Path | None = None) -> Settings:
    """The settings of a file (None: `config_path()`); the defaults, and why, where it has mistakes."""
    path = path or config_path()
    if not path.exists():
        return Settings()
    try:
        document = TomlFile(path, RunError)
    except RunError as error:
        return Settings(problems=(str(error),))
    known = {setting.name: setting for setting in SETTINGS}
    given: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in document.tables.items():
        if name == KEY_TABLE:
            continue
        setting = known.get(name)
        if setting is None:
            problems.append(document.at((name,), f"no such setting: {expected_name(name, [*known, f'[{KEY_TABLE}]'])}"))
        elif not setting.takes(value):
            problems.append(document.at((name,), f"expected {setting.expected}, found {value!r}"))
        else:
            given[name] = float(value) if name == "refresh" else value
    wanted, paths, wrong = _key_map(document)
    keys, clashes = rebound(wanted)
    problems += wrong + [document.at((KEY_TABLE, *paths[name]), why) for name, why in clashes]
    return Settings(**given, keys=keys, problems=tuple(problems))


def expected_name(name: str, names: Sequence[str]) -> str:
    """The names that a wrong one may have meant, or all when none is near."""
    near = get_close_matches(name, names, n=3)
    return f"expected {' or '.join(near)}" if near else f"expected one of {', '.join(names)}"


# The key map


def _key_map(document: TomlFile) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]], list[str]]:
    """Action -> its keys in Textual's names; action -> where in the table it is; and what is wrong with others."""
    table = document.tables.get(KEY_TABLE, {})
    if not isinstance(table, dict):
        return {}, {}, [document.at((KEY_TABLE,), f"expected a table [{KEY_TABLE}], found {table!r}")]
    ids = [key.id for key in KEYS]
    wanted: dict[str, tuple[str, ...]] = {}
    paths: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    for path, value in _leaves(table):
        name = ".".join(path)
        names = value if isinstance(value, list) else [value]
        found = [key_name(one) for one in names]
        if name not in ids:
            problems.append(document.at((KEY_TABLE, *path), f"no such action: {expected_name(name, ids)}"))
        elif not found or None in found:
            wrong = next((one for one, known in zip(names, found, strict=True) if known is None), value)
            said = f'expected a key or a list of keys, such as "x", "ctrl+x", "f5" or "escape", found {wrong!r}'
            problems.append(document.at((KEY_TABLE, *path), said))
        else:
            paths[name] = path
            wanted[name] = tuple(dict.fromkeys(one for one in found if one is not None))
    return wanted, paths, problems


def _leaves(table: Mapping[str, object], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """`run.stop = "x"` is a table in a table where its name is not quoted."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def key_name(said: object) -> str | None:
    """Textual's name of a key as people write it: a character, or a name with modifiers; None when it is none."""
    from textual.keys import Keys

    if not isinstance(said, str) or not said.isprintable():
        return None
    if len(said) == 1:
        return SIGNS.get(said, "space" if said == " " else said)
    if said.startswith("^"):
        said = f"ctrl+{said[1:]}"
    *modifiers, last = said.split("+")
    last = SIGNS.get(last, last)
    if len(last) != 1:
        last = {"esc": "escape", "return": "enter", "del": "delete"}.get(last.lower(), last.lower())
        if last not in {key.value for key in Keys} and last not in SIGNS.values():
            return None
    return "+".join([*modifiers, last]) if {*modifiers} <= {"ctrl", "shift", "alt"} else None


def rebound(wanted: Mapping[str, Sequence[str]]) -> tuple[tuple[Key, ...], list[tuple[str, str]]]:
    """The table of keys with some of them moved, and those that stay where they were, with the reason.

    Of two actions that would share a key on a screen, the one that was to be moved stays; of two that were, the later one.
    """
    moved = {name: ",".join(keys) for name, keys in wanted.items()}
    refused: list[tuple[str, str]] = []
    while True:
        table = tuple(key._replace(keys=moved.get(key.id, key.keys)) for key in KEYS)
        clash = _clash(table, list(moved))
        if clash is None:
            return table, refused
        loser, name, winner, screen = clash
        where = f"on the {screen} screen" if screen else "everywhere"
        refused.append(
            (loser, f'{name!r} is {winner.id} ("{winner.label}") {where}: choose another key, or move that one too')
        )
        del moved[loser]


def _clash(table: Sequence[Key], moved: Sequence[str]) -> tuple[str, str, Key, str] | None:
    """The first action that has to stay, the key that two would share, the other action, and on which screen."""
    screens = sorted({screen for key in table for screen in key.screens})
    for screen in screens:
        owners: dict[str, Key] = {}
        for key in keys_for(screen, table):
            for name in key.keys.split(","):
                other = owners.setdefault(name, key)
                pair = [one for one in (other, key) if one.id in moved]
                if other is key or not pair:
                    continue
                loser = max(pair, key=lambda one: moved.index(one.id))
                return (
                    loser.id,
                    name,
                    key if loser is other else other,
                    "" if not (key.screens or other.screens) else screen,
                )
    return None


def keymap(table: Sequence[Key]) -> dict[str, str]:
    """For Textual: binding -> its keys, where they are not the ones that it was made with."""
    found: dict[str, str] = {}
    for key, before in zip(table, KEYS, strict=True):
        if key.keys != before.keys:
            found |= dict.fromkeys([f"{screen}/{key.id}" for screen in key.screens] or [key.id], key.keys)
    return found


# Writing


def written(settings: Settings, path: Path) -> str:
    """The effective settings as TOML that `load` reads again."""
    missing = "" if path.exists() else ": not there, so these are the defaults"
    lines = [f"# {path}{missing}", ""]
    for setting in SETTINGS:
        value = getattr(settings, setting.name)
        lines += [f"# {setting.about}; {setting.expected}", as_toml({setting.name: value}).rstrip()]
    lines += ["", "# One key or several for each action; an action that is left out keeps its own.", f"[{KEY_TABLE}]"]
    for key in settings.keys:
        where = ", ".join(key.screens) or "everywhere"
        names = [_written(name) for name in key.keys.split(",")]
        value = as_toml({"keys": names if len(names) > 1 else names[0]}).partition(" = ")[2].rstrip()
        lines.append(f'"{key.id}" = {value}  # {where}: {key.label}')
    return "\n".join(lines) + "\n"


def _written(name: str) -> str:
    """A key as people write it."""
    return next((sign for sign, known in SIGNS.items() if known == name), name)
