"""The grammar of the command line: a script's options are never taken for ours, and ours never for its."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdp_tui.telemetry.launch import LaunchSpec, command_line
from fsdp_tui.tui.cli import main, parse, spec_from, split_script


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["--nproc", "2", "train.py", "--nproc", "9"], ["train.py", "--nproc", "9"]),
        (["--nproc=2", "train.py"], ["train.py"]),
        (["--checkpointing", "train.py", "-m", "x"], ["train.py", "-m", "x"]),
        (["--headless", "-m", "pkg.train", "--lr", "1"], ["-m", "pkg.train", "--lr", "1"]),
        (["--", "-odd.py", "a"], ["-odd.py", "a"]),
        (["--strategies", "ddp,single"], []),
        ([], []),
    ],
)
def test_the_script_begins_at_the_first_word_that_is_no_option(words: list[str], script: list[str]) -> None:
    """Everything after it is the script's."""
    assert split_script(words)[1] == script


def test_run_of_a_script() -> None:
    """Options before the script are ours, the rest is passed on."""
    spec = spec_from(parse(["run", "--nproc", "4", "--strategy", "ddp", "train.py", "--lr", "1e-4", "--headless"]))
    assert (spec.target, spec.script, spec.args, spec.nproc, spec.strategy) == (
        "script",
        "train.py",
        ("--lr", "1e-4", "--headless"),
        4,
        "ddp",
    )


def test_run_of_a_module() -> None:
    """-m as with python."""
    spec = spec_from(parse(["run", "-m", "pkg.train", "x"]))
    assert (spec.target, spec.script, spec.args) == ("module", "pkg.train", ("x",))


def test_demo_without_options_is_the_default_launch() -> None:
    """Defaults live in one place."""
    assert spec_from(parse(["demo"])) == LaunchSpec()


def test_sweep_without_a_script_is_the_demo() -> None:
    """sweep takes the demo's options too."""
    spec = spec_from(parse(["sweep", "--strategies", "ddp,single", "--steps", "3", "--model", "small"]))
    assert (spec.target, spec.steps, spec.model) == ("demo", 3, "small")


@pytest.mark.parametrize(
    "words",
    [
        ["demo", "--nproc", "x"],
        ["demo", "--nproc", "0"],
        ["demo", "--strategy", "zero3"],
        ["demo", "--nope"],
        ["demo", "--headles"],
        ["run"],
        ["run", "/nowhere/train.py"],
        ["nonsense"],
        ["show"],
        ["compare", "one"],
        ["sweep", "--strategies", "zero3"],
        ["prune", "--keep", "-1"],
    ],
)
def test_usage_errors_are_one_line_and_exit_2(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """No usage dump, no traceback, nothing on stdout."""
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path))
    try:
        code = main(words)
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the installed version."""
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("fsdp-tui 0.")


@pytest.mark.parametrize(
    "spec",
    [
        LaunchSpec(strategy="ddp", nproc=2, checkpointing=True, steps=5, accumulate=2, no_sync=True, env={"A": "b=c"}),
        LaunchSpec(target="script", script="train.py", args=("--lr", "1", "--strategy", "x"), asked=("strategy",)),
        LaunchSpec(target="module", script="pkg.train", prefetch=0, precision="bf16", asked=("precision", "prefetch")),
        LaunchSpec(target="script", script="train.py", compile=True, asked=("compile",), env={"A": ""}, name="n"),
    ],
)
def test_the_command_line_repeats_the_launch(spec: LaunchSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed to be copied is parsed to the same launch."""
    monkeypatch.chdir(tmp_path)
    read = spec_from(parse(command_line(spec)[1:]))
    assert msgspec.structs.replace(read, directory=None) == spec
