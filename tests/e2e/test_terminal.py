"""The dashboard in a real terminal: start, watch, stop, start another strategy, compare, quit."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import psutil
import pytest

from .conftest import PROGRAM, Program
from .terminal import Terminal


@pytest.fixture(autouse=True)
def nothing_left(fsdp_tui: Program) -> Iterator[None]:
    """A dashboard that a failed test leaves behind leaves its run too: that is what users want of it."""
    yield
    for entry in fsdp_tui.json("runs"):
        if entry["live"]:
            fsdp_tui("stop", entry["id"])


def processes_of(program: Program) -> list[str]:
    """Command lines of live processes that belong to this home."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FSDP_TUI_HOME") == program.environment["FSDP_TUI_HOME"]:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def test_a_day_at_the_dashboard(fsdp_tui: Program) -> None:
    """`fsdp-tui demo`, stop, another strategy from the form, the two side by side, quit: nothing of ours is left."""
    with Terminal([*PROGRAM, "demo", "--name", "first"], fsdp_tui.environment, fsdp_tui.directory) as terminal:
        shown = terminal.until(r"LIVE.*first.*step [1-9]")
        assert "fsdp2:full_shard" in shown
        terminal.until(lambda text: "all-gather" in text and "blocks.0" in text)
        _resize_on_every_screen(terminal)
        terminal.type("x")
        terminal.until("Stop the training")
        terminal.type("s")
        terminal.until(r"STOPPED|stopped")

        terminal.type("4")
        terminal.until(r"\[4 Launch\]")
        _go_to(terminal, "steps")
        terminal.type("8")
        _go_to(terminal, "strategy")
        terminal.type("enter")
        terminal.until(r"fsdp1:no_shard")  # the list is open
        # The default; full_shard, shard_grad_op, reshard, hybrid_shard, no_shard of fsdp2; full_shard.
        terminal.type(*["down"] * 7)
        terminal.type("enter")
        _go_to(terminal, "name")
        terminal.type("second")
        terminal.until(r"fsdp-tui demo .*--strategy fsdp1:shard_grad_op")
        terminal.type("f5")
        terminal.until(r"DONE.*second")

        terminal.type("0")
        terminal.until(lambda text: "[0 Runs]" in text and "first" in text and "second" in text)
        terminal.type("up", " ", "down", " ")
        terminal.until("2 marked")
        terminal.type("5")
        terminal.until(r"\[5 Compare\]")
        terminal.until(lambda text: all(word in text for word in ("fsdp1:shard_grad_op", "fsdp2:full_shard", "loss")))
        _resize(terminal, r"\[5 Compare\]")
        terminal.type("q")
        assert terminal.wait() == 0
    end = time.monotonic() + 60
    while processes_of(fsdp_tui):  # those of the second run are about to go
        assert time.monotonic() < end, processes_of(fsdp_tui)
        time.sleep(0.2)
    states = {entry["name"]: entry["state"] for entry in fsdp_tui.json("runs")}
    assert states == {"first": "stopped", "second": "finished"}
    assert fsdp_tui.json("show", "second")["run"]["steps"] == 8


SIZES = ((20, 5), (300, 80), (80, 24), (120, 40))
SCREENS = (
    ("0", r"\[0 Runs\]"),
    ("2", r"\[2 Step\]"),
    ("3", r"\[3 Comm\]"),
    ("4", r"\[4 Launch\]"),
    ("escape Q", "queue of launches"),
    ("1 enter", "at the peak of a step|node0|pid"),
    ("escape o", r"rank-0\.log"),
    ("escape", r"\[1 Run\]"),
)
"""Keys, in the order in which they lead from one screen to the next -> what is seen of it unless the terminal is tiny."""


def _resize_on_every_screen(terminal: Terminal) -> None:
    """While a training runs: the picture fits, whatever the terminal is, and the next key is answered."""
    for keys, shown in SCREENS:
        terminal.type(*keys.split())
        terminal.until(shown)
        _resize(terminal, shown)


def _resize(terminal: Terminal, shown: str) -> None:
    """From the smallest to the largest: the header is in the first line, the keys are in the last."""

    def fits(text: str) -> bool:
        lines = text.split("\n")
        framed = re.match(r" (fsdp-tui|\S [A-Z]+)", lines[0]) is not None and "? help" in lines[-1]
        return framed and (len(lines) < 8 or re.search(shown, text) is not None)

    for columns, rows in SIZES:
        terminal.resize(columns, rows)
        terminal.until(fits)


def _go_to(terminal: Terminal, field: str) -> None:
    """Presses tab until the card beside the form tells of this field."""
    for _ in range(40):
        if re.search(rf"│{field} *│", terminal.text):
            return
        terminal.type("tab")
    raise AssertionError(f"no field {field}\n{terminal.text}")


def test_keys_behind_the_last_one(fsdp_tui: Program) -> None:
    """Typed faster than the program can leave: it leaves, with nothing said."""
    with Terminal(PROGRAM, fsdp_tui.environment, fsdp_tui.directory) as terminal:
        terminal.until(r"\[0 Runs\]")
        terminal.type("q13")
        assert terminal.wait() == 0
        assert b"NoMatches" not in terminal.written
