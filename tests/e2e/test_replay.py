"""A recorded run gone back through in a real terminal, its data in files, settings, and terminals of few colours."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from .conftest import PROGRAM, Program
from .terminal import TRUE_COLOUR, Terminal

STEPS = 40
SGR = re.compile(rb"\x1b\[([0-9;]*)m")


@pytest.fixture(scope="module")
def recorded(fsdp_tui: Program) -> Program:
    """A home with one run of the demo."""
    fsdp_tui(
        "demo", "--headless", "--nproc", "2", "--steps", str(STEPS), "--batch", "4", "--seq", "32", "--name", "past"
    )
    return fsdp_tui


def losses(program: Program) -> dict[int, list[float]]:
    body = program("export", "past", "--format", "csv").stdout
    found: dict[int, list[float]] = {}
    for row in csv.DictReader(io.StringIO(body)):
        found.setdefault(int(row["step"]), []).append(float(row["loss"]))
    return found


def test_every_step_is_there_with_its_numbers(recorded: Program) -> None:
    """What the screen says of a step is what the recording, read by another way, has of it."""
    by_step = losses(recorded)
    assert list(by_step) == list(range(1, STEPS + 1))
    assert all(len(values) == 2 for values in by_step.values())
    with Terminal([*PROGRAM, "attach", "past"], recorded.environment, recorded.directory) as terminal:
        terminal.until(rf"DONE.*past.*step {STEPS}/{STEPS}")

        def check(step: int) -> None:
            loss = sum(by_step[step]) / 2
            shown = terminal.until(lambda text: f"▮▮ step {step} of {STEPS}" in text and f"loss {loss:.3f}" in text)
            assert "before the end" in shown.splitlines()[0]
            assert "now ✓ DONE" in shown.splitlines()[0]

        terminal.type("<")
        check(STEPS - 1)
        terminal.type("#", "7", "enter")
        check(7)
        terminal.type(">")
        check(8)
        terminal.type("}")
        check(12)
        terminal.type("P", "F", "F", "F")
        terminal.until(rf"DONE.*step {STEPS}/{STEPS}")  # played to its end
        terminal.type("{", "{")
        check(STEPS - 8)
        terminal.type("escape")
        terminal.until(rf"DONE.*step {STEPS}/{STEPS}")
        terminal.type("q")
        assert terminal.wait() == 0


def test_data_as_csv(recorded: Program) -> None:
    """Of a screen by its key, of the whole run by the command; both are of the same numbers."""
    shown: dict[str, Any] = recorded.json("show", "past")
    out = recorded.directory / "steps.csv"
    recorded("export", "past", "--format", "csv", "--ranks", "1", "-o", str(out))
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["rank"]) for row in rows] == [(str(step), "1") for step in range(1, STEPS + 1)]
    last = rows[-1]
    for name, value in shown["ranks"][1]["memory"].items():
        assert last[f"memory_{name}_bytes"] == ("" if value is None else str(value)), name
    phases = [
        int(last[f"{name}_ns"] or 0) for name in ("input", "forward", "backward", "optimizer", "rest", "checkpoint")
    ]
    assert sum(phases) == int(last["step_ns"])
    with Terminal([*PROGRAM, "attach", "past"], recorded.environment, recorded.directory) as terminal:
        terminal.until(r"DONE.*past")
        terminal.type("E")
        # The notice says where, too, on as many lines as the path is long.
        terminal.until(lambda _: any(recorded.directory.glob("fsdp-tui-past-run-series-*.csv")))
        terminal.type("q")
        assert terminal.wait() == 0
    (memory,) = recorded.directory.glob("fsdp-tui-past-run-memory-*.csv")
    with memory.open(newline="") as file:
        by_rank = list(csv.DictReader(file))
    assert by_rank[1]["memory_total_bytes"] == last["memory_total_bytes"]
    (series,) = recorded.directory.glob("fsdp-tui-past-run-series-*.csv")
    with series.open(newline="") as file:
        assert {int(row["step"]): float(row["loss"]) for row in csv.DictReader(file)} == pytest.approx(
            {step: sum(values) / 2 for step, values in losses(recorded).items()}
        )
    recorded("export", "past", "--format", "csv", "--ranks", "5", code=1)


def test_settings_and_keys(recorded: Program) -> None:
    """`config > config.toml` is a beginning; what is changed in it counts, also where another line is wrong."""
    path = Path(recorded.environment["FSDP_TUI_HOME"]) / "config.toml"
    text = recorded("config").stdout
    text = text.replace('"run.logs" = ["o", "L"]', '"run.logs" = "f9"').replace("refresh = 2.0", "refresh = 7")
    try:
        path.write_text(text.replace('memory = "peak"', 'memory = "now"'))
        done = recorded("config", code=1)
        assert re.search(r"config.toml, line \d+: refresh: expected one of 0.5, 1, 2, 4, found 7", done.stderr)
        assert '"run.logs" = "f9"' in done.stdout
        with Terminal([*PROGRAM, "attach", "past"], recorded.environment, recorded.directory) as terminal:
            terminal.until(lambda text: "F9 logs" in text and "refresh:" in text)
            terminal.until("memory per rank after the optimizer's step")  # the recording is read meanwhile
            terminal.type("\x1b[20~")  # F9
            terminal.until("rank 0")
            terminal.type("escape")
            terminal.until("F9 logs")
            terminal.type("q")
            assert terminal.wait() == 0
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        (TRUE_COLOUR, "38;2"),
        ({"TERM": "xterm-256color", "COLORTERM": ""}, "38;5"),
        ({"TERM": "xterm", "COLORTERM": ""}, "3x"),
        ({**TRUE_COLOUR, "NO_COLOR": "1"}, ""),
    ],
    ids=["true colour", "256 colours", "16 colours", "no colour"],
)
def test_colours_that_a_terminal_has(recorded: Program, kind: Mapping[str, str], allowed: str) -> None:
    """No more than those are sent; with few, or none, the same is told by letters, glyphs and reverse."""
    with Terminal([*PROGRAM, "attach", "past"], recorded.environment, recorded.directory, kind=kind) as terminal:
        terminal.until(r"DONE.*past")
        terminal.until("verdict")
        terminal.type("t", "t", "t", "t")  # all themes
        terminal.type("down")
        shown = terminal.text
        reversed_ = [cell for row in terminal.cells for cell in row if cell.reverse and cell.data.strip()]
        terminal.type("q")
        assert terminal.wait() == 0
    codes = [code for group in SGR.findall(bytes(terminal.written)) for code in _codes(group.decode())]
    kinds = {
        "38;2" if c.startswith(("38;2", "48;2")) else "38;5" if c.startswith(("38;5", "48;5")) else c for c in codes
    }
    named = {c for c in kinds if c.isdigit() and (30 <= int(c) <= 37 or 40 <= int(c) <= 47 or 90 <= int(c) <= 107)}
    assert ("38;2" in kinds) == (allowed == "38;2")
    assert ("38;5" in kinds) <= (allowed in ("38;2", "38;5"))
    if allowed == "3x":
        assert named
    if not allowed:
        assert not named
        assert any(letters in shown for letters in ("AAAA", "PPP"))
        assert "".join(cell.data for cell in reversed_).startswith("1")  # the rank that the cursor is on
    for words in ("✓", "P params", "┃ ideal"):
        assert words in shown


def _codes(group: str) -> list[str]:
    """The codes of one sequence; a colour with its numbers is one."""
    found, parts = [], (group or "0").split(";")
    while parts:
        length = {"2": 5, "5": 3}.get(parts[1], 1) if parts[0] in ("38", "48") and len(parts) > 1 else 1
        found.append(";".join(parts[:length]))
        parts = parts[length:]
    return found
