"""A queue of real runs: filled in a terminal, left alone by the program that filled it, and compared at its end."""

from __future__ import annotations

import os
import signal
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from .conftest import PROGRAM, Program, program_in
from .terminal import Terminal


@pytest.fixture(scope="module")
def fsdp_tui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A home of its own: there is one queue for it, and what a test has left in it does not train on."""
    program = program_in(tmp_path_factory.mktemp("queue"))
    yield program
    program("queue", "--cancel", "--yes", code=None)


def states(program: Program) -> list[str]:
    return [item["state"] for item in program.json("queue")]


def until(condition: Callable[[], bool], patience_s: float = 240) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.5)  # each look is a start of the program


def workers(program: Program) -> list[psutil.Process]:
    """The processes that work through this home's queue."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = "fsdp_tui.telemetry.queue" in process.cmdline()
            if ours and process.environ().get("FSDP_TUI_HOME") == program.environment["FSDP_TUI_HOME"]:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_two_runs_one_after_another_survive_the_dashboard(fsdp_tui: Program) -> None:
    """Queued with F6 from the form; the dashboard is quit at once, and the queue's own process killed while the first run trains:
    that run ends as if nothing had happened, and the second one is trained when somebody looks."""
    steps = ("--steps", "60", "--nproc", "2", "--model", "tiny", "--batch", "8", "--seq", "64")
    for name, strategy in (("one", "ddp"), ("two", "fsdp2:full_shard")):
        fsdp_tui("demo", "--save-preset", name, "--name", name, "--strategy", strategy, *steps)
    with Terminal([*PROGRAM], fsdp_tui.environment, fsdp_tui.directory) as terminal:
        terminal.until("no runs yet")
        terminal.type("4")
        terminal.until("a new run")
        terminal.type("escape", "o")
        terminal.until("kept in")
        terminal.type("enter")
        terminal.until("--name one")
        terminal.type("a")
        until(lambda: len(states(fsdp_tui)) == 1)  # a notice says so too, and may be gone before it is looked at
        terminal.type("o")
        terminal.until("kept in")
        terminal.type("down", "enter")
        terminal.until("--name two")
        terminal.type("a")
        until(lambda: len(states(fsdp_tui)) == 2)
        terminal.type("Q")
        terminal.until("one after another")
        terminal.type("q")
        assert terminal.wait() == 0
    until(lambda: states(fsdp_tui)[0] == "running")
    for worker in workers(fsdp_tui):
        os.kill(worker.pid, signal.SIGKILL)
    until(lambda: states(fsdp_tui) == ["finished", "finished"])
    runs = {run["name"]: run for run in fsdp_tui.json("runs")}
    assert {name: (run["state"], run["steps"]) for name, run in runs.items()} == {
        "one": ("finished", 60),
        "two": ("finished", 60),
    }
    # One at a time: the second was launched when the first had ended.
    assert runs["two"]["created_ns"] >= runs["one"]["ended_ns"]
    until(lambda: not workers(fsdp_tui))


def test_they_are_compared_with_theory(fsdp_tui: Program, tmp_path: Path) -> None:
    """The same training; what was measured is what theory says, to the byte of communication; in every format."""
    document: dict[str, Any] = fsdp_tui.json("compare", "one", "two")
    assert {check["subject"]: check["same"] for check in document["comparability"]} == dict.fromkeys(
        ("model", "data", "global batch", "seed", "device", "versions"), True
    )
    assert (document["differences"], document["settings"]) == ({}, {})
    for told in document["theory"]:
        assert told["communication"]["moved"]["measured"] == told["communication"]["moved"]["expected"] > 0
        states = told["model_states"]
        assert states["measured"] == pytest.approx(states["expected"], rel=0.001)
    assert document["theory"][0]["model_states"]["expected"] == 2 * document["theory"][1]["model_states"]["expected"]
    markdown = fsdp_tui("compare", "one", "two", "--format", "md").stdout
    assert "| peak per rank |" in markdown
    assert "same model, data, global batch, seed, device, versions" in markdown
    fsdp_tui("compare", "one", "two", "--format", "svg", "-o", str(tmp_path / "c.svg"))
    assert ET.parse(tmp_path / "c.svg").getroot().tag.endswith("svg")


def test_a_note_is_kept_with_the_run(fsdp_tui: Program) -> None:
    """Tags are added and taken away, the text is replaced; the list has both; what is no tag is refused."""
    assert fsdp_tui.json("note", "one", "--tag", "base", "-t", "lr", "first try")["tags"] == ["base", "lr"]
    fsdp_tui("note", "one", "--untag", "lr")
    run = next(run for run in fsdp_tui.json("runs") if run["name"] == "one")
    assert (run["note"], run["tags"]) == ("first try", ["base"])
    assert "is no tag" in fsdp_tui("note", "one", "--tag", "a!b", code=2).stderr
    fsdp_tui("note", "one", "", "--untag", "base")
    assert "no note" in fsdp_tui("note", "one").stdout


def test_what_runs_is_stopped_and_what_waits_is_taken_off(fsdp_tui: Program) -> None:
    """queue --cancel, which asks first."""
    long = ("--steps", "100000", "--nproc", "2", "--model", "tiny")
    fsdp_tui("demo", "--save-preset", "long", "--name", "long", *long)
    with Terminal([*PROGRAM], fsdp_tui.environment, fsdp_tui.directory) as terminal:
        terminal.until("one")
        terminal.type("4")
        terminal.until("a new run")
        terminal.type("escape", "o")
        terminal.until("kept in")
        terminal.type("enter")
        terminal.until("--name long")
        terminal.type("a", "a")
        until(lambda: states(fsdp_tui) == ["running", "waiting"])
        terminal.type("q")
        assert terminal.wait() == 0
    until(lambda: any(run["name"] == "long" and run["steps"] > 2 for run in fsdp_tui.json("runs")))
    assert "say --yes" in fsdp_tui("queue", "--cancel", code=1).stderr
    fsdp_tui("queue", "--cancel", "--yes")
    until(lambda: states(fsdp_tui) == ["stopped", "cancelled"])
    until(lambda: not workers(fsdp_tui))
