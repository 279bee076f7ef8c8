"""Settings and the key map: what is written counts, and a mistake is one line that says what is expected."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fsdp_tui.tui.keys import KEYS, keys_for
from fsdp_tui.tui.settings import SETTINGS, Settings, key_name, keymap, load, rebound, written


def read(folder: Path, text: str) -> Settings:
    path = folder / "config.toml"
    path.write_text(text)
    return load(path)


def keys_of(settings: Settings, name: str) -> str:
    return next(key.keys for key in settings.keys if key.id == name)


def test_without_a_file_there_are_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path / "none.toml") == Settings()
    assert Settings().keys == KEYS
    assert not keymap(KEYS)


def test_every_setting_counts(tmp_path: Path) -> None:
    """And a whole number is a rate too."""
    found = read(
        tmp_path,
        'theme = "light"\nrefresh = 4\nletters = true\nmemory = "now"\nlog_loss = true\nsmoothing = 7\nwindow = 200\n',
    )
    assert found == Settings(
        theme="light", refresh=4.0, letters=True, memory="now", log_loss=True, smoothing=7, window=200
    )
    assert not found.problems
    assert (found.smooth(10), Settings().smooth(10), Settings().smooth(1_000)) == (7, 1, 25)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('theme = "drak"', "expected one of auto, dark, light, contrast, terminal, found 'drak'"),
        ("refresh = 3", "expected one of 0.5, 1, 2, 4, found 3"),
        ("refresh = true", "expected one of 0.5, 1, 2, 4, found True"),
        ("letters = 1", "expected true or false, found 1"),
        ("smoothing = 0", "expected auto, or steps from 1 on, found 0"),
        ("window = 100", "expected one of all, 1000, 200, 50, found 100"),
        ('thme = "dark"', "no such setting: expected theme"),
        ("keys = 3", "expected a table [keys], found 3"),
    ],
)
def test_a_wrong_setting_is_one_line_and_the_rest_counts(tmp_path: Path, line: str, expected: str) -> None:
    found = read(tmp_path, f'memory = "now"\n\n{line}\n')
    assert found.memory == "now"
    assert found == Settings(memory="now")
    (problem,) = found.problems
    assert problem.startswith(f"{tmp_path}/config.toml, line 3: ")
    assert problem.endswith(expected)


def test_what_is_no_toml_is_one_line(tmp_path: Path) -> None:
    found = read(tmp_path, 'theme = "light"\nletters = yes\n')
    assert found == Settings()
    (problem,) = found.problems
    assert "config.toml, line 2: " in problem
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe\x00")
    (problem,) = load(tmp_path / "config.toml").problems
    assert problem.endswith("is no text in UTF-8: expected TOML")


def test_keys_move(tmp_path: Path) -> None:
    """One or several, in the words that people use; quoted names, or tables in tables."""
    found = read(
        tmp_path,
        '[keys]\n"run.freeze" = ["ctrl+f", ";"]\nrun.hold = "H"\n"past.back" = "F77"\n"help" = "?"\n',
    )
    assert [problem for problem in found.problems if "past.back" not in problem] == []
    assert keys_of(found, "run.freeze") == "ctrl+f,semicolon"
    assert keys_of(found, "run.hold") == "H"
    assert keys_of(found, "help") == "question_mark"
    assert keymap(found.keys)["run/run.freeze"] == keymap(found.keys)["comm/run.freeze"] == "ctrl+f,semicolon"
    assert keymap(found.keys)["help"] == "question_mark"
    (problem,) = found.problems
    assert "line 4: keys.past.back: expected a key or a list of keys" in problem
    assert problem.endswith("found 'F77'")


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("x", "x"),
        ("X", "X"),
        ("?", "question_mark"),
        (",", "comma"),
        ("+", "plus"),
        ("f5", "f5"),
        ("F5", "f5"),
        ("^p", "ctrl+p"),
        ("^", "circumflex_accent"),
        ("esc", "escape"),
        ("ctrl+x", "ctrl+x"),
        ("ctrl+shift+left", "ctrl+shift+left"),
        ("pagedown", "pagedown"),
        ("ctrl+home", "ctrl+home"),
        ("slash", "slash"),
        ("question_mark", "question_mark"),
        ("", None),
        ("xx", None),
        ("super+x", None),
        ("f99", None),
        (3, None),
    ],
)
def test_names_of_keys(said: object, name: str | None) -> None:
    assert key_name(said) == name


def test_a_key_that_is_taken_stays_with_its_owner(tmp_path: Path) -> None:
    """On any screen that both work on; on different screens they do not meet."""
    found = read(tmp_path, '[keys]\n"run.hold" = "q"\n"launch.reset" = "z"\n"step.peak" = "k"\n')
    assert keys_of(found, "run.hold") == "h"
    assert keys_of(found, "launch.reset") == "z"
    assert keys_of(found, "step.peak") == "p"
    first, second = sorted(found.problems)
    assert "line 2: keys.run.hold: 'q' is quit (\"quit\") on the run screen: choose another key" in first
    assert "line 4: keys.step.peak: 'k' is run.capture" in second


def test_two_actions_can_change_places() -> None:
    """What they leave is free; of two that want the same key, the first one has it."""
    table, refused = rebound({"run.hold": ["x"], "run.stop": ["h"]})
    assert not refused
    assert {key.id: key.keys for key in table if key.id in ("run.hold", "run.stop")} == {
        "run.hold": "x",
        "run.stop": "h",
    }
    table, refused = rebound({"run.hold": ["f9"], "run.stop": ["f9"]})
    assert [name for name, _ in refused] == ["run.stop"]
    assert next(key.keys for key in table if key.id == "run.hold") == "f9"


def test_no_map_makes_a_key_do_two_things() -> None:
    """Every action on the same key: all but one of each screen stay where they are."""
    table, refused = rebound({key.id: ["f9"] for key in KEYS})
    assert refused
    for screen in {screen for key in KEYS for screen in key.screens}:
        names = [name for key in keys_for(screen, table) for name in key.keys.split(",")]
        assert len(names) == len(set(names)), screen


def test_unknown_actions_are_named_with_what_may_be_meant(tmp_path: Path) -> None:
    (problem,) = read(tmp_path, '[keys]\n"run.freze" = "x"\n').problems
    assert "line 2: keys.run.freze: no such action: expected run.freeze" in problem


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """The defaults, and settings of one's own with every key moved."""
    path = tmp_path / "config.toml"
    moved, refused = rebound({"run.freeze": ["comma", "ctrl+f7"], "help": ["f2"], "filter": ["quotation_mark"]})
    assert not refused
    for settings in (Settings(), Settings(theme="contrast", refresh=0.5, smoothing=3, window=50, keys=moved)):
        text = written(settings, path)
        path.write_text(text)
        assert load(path) == settings
        assert not load(path).problems
        assert text.startswith(f"# {path}")
        tables = tomllib.loads(text)
        assert set(tables) == {*(setting.name for setting in SETTINGS), "keys"}
        assert list(tables["keys"]) == [key.id for key in KEYS]
        assert "not there" not in written(settings, path)


def test_config_prints_what_can_be_redirected_into_the_file(tmp_path: Path) -> None:
    """Problems go to stderr and are exit code 1; a file that the shell emptied first is said."""
    environment = {**os.environ, "FSDP_TUI_HOME": str(tmp_path)}
    path = tmp_path / "config.toml"

    def config(stdout: int | object = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fsdp_tui", "config"],
            env=environment,
            stdout=stdout,  # type: ignore[arg-type]
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )

    done = config()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"# {path}: not there" in done.stdout
    path.write_text('theme = "light"\nletters = "no"\n')
    done = config()
    assert done.returncode == 1
    assert "line 2: letters: expected true or false, found 'no'" in done.stderr
    assert tomllib.loads(done.stdout)["theme"] == "light"
    with path.open("w") as file:
        done = config(file)
    assert "before it could be read" in done.stderr
    assert load(path) == Settings()
