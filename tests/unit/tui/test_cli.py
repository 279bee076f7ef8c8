"""The grammar of the command line: a script's options are never taken for ours, and ours never for its."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
import tty
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len

from fsdp_tui.telemetry import presets, sheets
from fsdp_tui.telemetry.launch import LaunchSpec, command_line
from fsdp_tui.telemetry.rundir import Summary, create_run, list_runs
from fsdp_tui.tui.cli import main, parse, spec_from, split_script
from fsdp_tui.tui.commands.common import say, write_text
from fsdp_tui.tui.screens.runs import columns


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["--nproc", "2", "train.py", "--nproc", "9"], ["train.py", "--nproc", "9"]),
        (["--nproc=2", "train.py"], ["train.py"]),
        (["--checkpointing", "train.py", "-m", "x"], ["train.py", "-m", "x"]),
        (["--headless", "-m", "pkg.train", "--lr", "1"], ["-m", "pkg.train", "--lr", "1"]),
        (["--", "-odd.py", "a"], ["-odd.py", "a"]),
        (["--strategies", "ddp,single"], []),
        (["--env", "A=b", "--env=C=d", "train.py", "--env", "x"], ["train.py", "--env", "x"]),
        (["--preset", "mine", "--save-preset", "other"], []),
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
        ["run", "--env", "A", "/dev/null"],
        ["run", "--env", "=b", "/dev/null"],
        ["run", "--env", "RANK=3", "/dev/null"],
        ["run", "--batch", "3", "/dev/null"],
        ["run", "--accumulate", "3", "/dev/null"],
        ["run", "--save-preset", "a"],
        ["sweep", "/dev/null"],
        ["sweep", "--strategies", "ddp", "--batch", "3", "/dev/null"],
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


def test_prune_says_what_it_keeps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With and without --keep, before and after."""
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FSDP_TUI_RUNTIME_DIR", str(tmp_path / "rt"))
    for at in range(3):
        paths = create_run((1_700_000_000 + at) * 10**9)
        about = Summary(run_id=paths.id, name="a", state="finished", created_ns=at)
        paths.summary.write_bytes(msgspec.json.encode(about))
        paths.alive.rmdir()
    assert main(["prune"]) == 0
    assert capsys.readouterr().err == "nothing to delete of 3 runs that ended; the newest 20 are kept (--keep)\n"
    assert main(["prune", "--keep", "2"]) == 1
    assert "would delete 1 run; the newest 2 are kept (--keep): say --yes" in capsys.readouterr().err
    assert main(["prune", "--keep", "2", "--yes"]) == 0
    assert capsys.readouterr().err == "deleted 1 run; the newest 2 are kept (--keep)\n"
    assert len(list_runs()) == 2


@pytest.mark.parametrize(("loss", "word"), [("nan", "nan"), ("", "–")])
def test_a_measured_nan_is_told_from_a_loss_that_is_not_known(
    loss: str, word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the list of runs, its screen and in its CSV; in JSON, which has no NaN, both are null."""
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FSDP_TUI_RUNTIME_DIR", str(tmp_path / "rt"))
    paths = create_run(1_700_000_000 * 10**9)
    about = Summary(run_id=paths.id, name="a", state="finished", created_ns=1, world_size=2, steps=7, loss_lost=loss)
    paths.summary.write_bytes(msgspec.json.encode(about))
    paths.alive.rmdir()
    assert main(["runs"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[row.index("7") + 1] == word
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["loss"] is None
    (column,) = (one for one in columns(list_runs(), [], {}, 2) if one.title == "loss")
    assert column.cells == [word]
    sheet = sheets.listing(list_runs(), {})
    (cells,) = sheet.rows
    assert str(cells[sheet.header.index("loss")]) == (loss or "None")


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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a working directory of the test's own."""
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FSDP_TUI_RUNTIME_DIR", str(tmp_path / "rt"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def asked(*words: str) -> LaunchSpec:
    """The launch of a command line over the preset that it names."""
    parsed = parse(words)
    return spec_from(parsed, presets.find(parsed.preset).spec if parsed.preset else None)


def test_only_what_is_given_is_asked_for() -> None:
    """Also what equals the default; the demo has nothing to override."""
    assert asked("run", "train.py").overrides == ()
    assert asked("run", "--strategy", "fsdp2:full_shard", "--prefetch", "0", "train.py").asked == (
        "strategy",
        "prefetch",
    )
    assert asked("demo", "--strategy", "ddp").asked == ()


def test_a_preset_and_what_is_given_beside_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Options replace its options, a script its script; both ask for what they say."""
    words = ["--nproc", "2", "--strategy", "ddp", "--env", "A=1", "--env", "B=2", "train.py", "--lr", "1"]
    assert main(["run", "--save-preset", "mine", *words]) == 0
    assert "fsdp-tui run --preset mine launches it" in capsys.readouterr().err
    plain = LaunchSpec(
        target="script",
        script="train.py",
        args=("--lr", "1"),
        directory=str(home),
        nproc=2,
        strategy="ddp",
        asked=("strategy",),
        env={"A": "1", "B": "2"},
    )
    assert asked("run", "--preset", "mine") == plain
    other = asked("run", "--preset", "mine", "--precision", "bf16", "--env", "B=3", "--nproc", "4")
    assert other == msgspec.structs.replace(
        plain, precision="bf16", nproc=4, env={"A": "1", "B": "3"}, asked=("strategy", "precision")
    )
    module = asked("run", "--preset", "mine", "-m", "pkg", "x")
    assert (module.target, module.script, module.args, module.requested) == ("module", "pkg", ("x",), "ddp")
    assert asked("sweep", "--preset", "mine", "--steps", "3").steps == 3


def test_presets_are_listed_and_deleted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the command that each launches; deleting wants a word."""
    assert main(["presets"]) == 0
    assert "no presets yet" in capsys.readouterr().err
    assert main(["demo", "--save-preset", "small", "--model", "small"]) == 0
    (home / "fsdp-tui.toml").write_text('[presets.ours]\nscript = "train.py"\nnproc = 2\n')
    capsys.readouterr()
    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", "ours", "small"]
    assert "fsdp-tui run --nproc 2 train.py" in lines[1]
    assert "fsdp-tui demo --model small" in lines[2]
    assert main(["presets", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document[1] == {
        "name": "small",
        "path": str(home / "home" / "presets" / "small.toml"),
        "command": "fsdp-tui demo --model small",
        "launch": {"target": "demo", "model": "small"},
    }
    assert main(["presets", "--rm", "small"]) == 1  # nobody is there to be asked
    assert "say --yes" in capsys.readouterr().err
    assert main(["presets", "--rm", "small", "--yes"]) == 0
    assert main(["presets", "--rm", "ours", "--yes"]) == 1
    assert "delete it there" in capsys.readouterr().err
    (home / "fsdp-tui.toml").write_text("[presets.ours]\nnprocs = 2\n")
    assert main(["presets"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "fsdp-tui.toml, line 2: presets.ours.nprocs: no such key" in err


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("run", "--preset", "nope"), "no preset 'nope': expected one of mine", 1),
        (("demo", "--preset", "mine"), "preset mine is of train.py: fsdp-tui run --preset mine", 2),
        (("sweep", "--preset", "mine"), "which strategies? say --strategies, for example fsdp-tui sweep", 2),
        (("run", "--preset", "mine", "--strategy", "x"), "unknown strategy 'x'", 2),
        (("run", "--save-preset", "mine", "train.py"), "there is a preset mine already", 1),
        (("run", "--save-preset", "a/b", "train.py"), "is no name for a preset", 1),
    ],
)
def test_presets_that_cannot_be_used(
    words: tuple[str, ...], said: str, code: int, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line each, and nothing is launched."""
    assert main(["run", "--save-preset", "mine", "train.py"]) == 0
    capsys.readouterr()
    assert main(words) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_a_note_takes_its_options_anywhere() -> None:
    """argparse alone does not take a text that follows an option."""
    parsed = parse(["note", "last", "--tag", "a", "-t", "b", "the text", "goes on"])
    assert (parsed.run, parsed.tag, parsed.text) == ("last", ["a", "b"], ["the text", "goes on"])
    assert parse(["note", "last", ""]).text == [""]
    assert parse(["note", "--json", "last", "--untag=a", "--", "-x"]).text == ["-x"]


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, typed: str = "") -> Iterator[Callable[[], str]]:
    """The program's input and output are a terminal on which this is typed; gives what it prints there."""
    handle, child = pty.openpty()
    tty.setraw(child)
    with closing(os.fdopen(child, "r+b", buffering=0)) as raw, monkeypatch.context() as patch:
        out = io.TextIOWrapper(raw, write_through=True)
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stdin", open(os.ttyname(child)))  # noqa: SIM115
        os.write(handle, typed.encode())
        yield lambda: os.read(handle, 65_536).decode()
        sys.stdin.close()
    os.close(handle)


def kept(name: str, at_s: int) -> str:
    """The id of a recorded run of this name."""
    paths = create_run(at_s * 10**9)
    summary = Summary(run_id=paths.id, name=name, state="finished", created_ns=at_s * 10**9)
    paths.summary.write_bytes(msgspec.json.encode(summary))
    return paths.id


def test_rm_asks_before_it_deletes(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal; without one it wants --yes."""
    one, two = kept("one", 1_767_268_800), kept("two", 1_767_268_801)
    assert main(["rm", "one", "two"]) == 1
    assert capsys.readouterr().err == f"fsdp-tui: would delete one ({one}), two ({two}): say --yes\n"
    with terminal(monkeypatch, "\n"):
        assert main(["rm", "one"]) == 1
    assert f"delete one ({one})? [y/N]" in capsys.readouterr().err
    assert {entry.id for entry in list_runs()} == {one, two}
    with terminal(monkeypatch, "y\n"):
        assert main(["rm", "one", one]) == 0
    assert [entry.id for entry in list_runs()] == [two]
    assert main(["rm", "two", "--yes"]) == 0
    assert list_runs() == []


def test_control_characters_of_a_run_stay_off_the_terminal_and_whole_in_json(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the list, in messages and in errors; the columns stay aligned."""
    name = "boom \x1b[31mred\x1b[0m"
    for at_s, text in enumerate((name, "plain")):
        kept(text, at_s)
    assert main(["runs"]) == 0
    printed = capsys.readouterr().out
    assert "boom red" in printed
    assert printed.replace("\n", "").isprintable()
    heading, *rows = printed.splitlines()
    assert {row.index("finished") for row in rows} == {heading.index("state")}
    for aside in (False, True):
        say(f"{name}:\n\ta\x07", aside=aside)
    assert capsys.readouterr() == ("boom red:\n a·\n",) * 2
    write_text(str(home / "of.md"), f"| {name} |\n")
    assert (home / "of.md").read_text() == "| boom red |\n"
    capsys.readouterr()
    assert main(["runs", "--json"]) == 0
    assert name in {run["name"] for run in json.loads(capsys.readouterr().out)}


def test_a_long_name_does_not_push_the_list_off_the_terminal(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Elsewhere it is whole; a wide character takes two cells."""
    kept("n" * 130, 1_767_268_800)
    kept("学習" * 40, 1_767_268_801)
    assert main(["runs"]) == 0
    assert "n" * 130 in capsys.readouterr().out
    with terminal(monkeypatch) as printed:
        assert main(["runs"]) == 0
        lines = printed().splitlines()
    assert f"{'n' * 29}…  finished" in lines[2]
    assert len({cell_len(line.partition("finished")[0]) for line in lines[1:]}) == 1
    assert "学習" in lines[1]
