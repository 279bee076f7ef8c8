"""Presets: what is written is read again, a project's go with the saved ones, and damage is one line with its place."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fsdp_tui.telemetry.launch import LaunchSpec, command_line
from fsdp_tui.telemetry.presets import (
    PROJECT_FILE,
    PresetError,
    PresetTaken,
    as_table,
    find,
    listed,
    remove,
    save,
)
from fsdp_tui.telemetry.rundir import HomeError
from fsdp_tui.telemetry.tomlfile import as_toml


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, and a working directory with nothing in it."""
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


SPECS = (
    LaunchSpec(),
    LaunchSpec(model="small", lr=1e-05, batch=4, strategy="ddp", accumulate=2, no_sync=True, telemetry="off"),
    LaunchSpec(target="script", script="train.py", args=("--name", 'a "b"\\ \n\t\x7f é'), directory="/somewhere"),
    LaunchSpec(
        target="script",
        script="train.py",
        directory="/somewhere",
        nproc=4,
        strategy="fsdp2:full_shard",
        prefetch=0,
        compile=True,
        asked=("strategy", "prefetch", "compile"),
        env={"NCCL_DEBUG": "INFO", "EMPTY": "", "odd name": "x=y"},
        steps=30,
        name="a name",
    ),
    LaunchSpec(target="module", script="pkg.train", directory="/somewhere", precision="bf16", asked=("precision",)),
)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.script or spec.model)
def test_what_is_saved_is_what_is_found(spec: LaunchSpec, home: Path) -> None:
    """All of it, in a file that other TOML readers understand."""
    path = save("mine", spec)
    assert path == home / "presets" / "mine.toml"
    assert tomllib.loads(path.read_text()) == as_table(spec)
    assert find("mine").spec == spec


def test_what_is_written_is_flat_and_only_what_matters() -> None:
    """A line per key; a table of variables is one too, so that the whole can be pasted under [presets.NAME]."""
    assert as_toml(as_table(SPECS[3])) == (
        'target = "script"\n'
        'script = "train.py"\n'
        'directory = "/somewhere"\n'
        'name = "a name"\n'
        "nproc = 4\n"
        'strategy = "fsdp2:full_shard"\n'
        "prefetch = 0\n"
        "compile = true\n"
        "steps = 30\n"
        'env = { NCCL_DEBUG = "INFO", EMPTY = "", "odd name" = "x=y" }\n'
    )


def test_an_option_that_is_written_is_asked_for() -> None:
    """Also where it equals the default; what is not written is the script's own."""
    Path(PROJECT_FILE).write_text(
        '[presets.a]\nscript = "t.py"\nstrategy = "fsdp2:full_shard"\n[presets.b]\nscript = "t.py"\n'
    )
    assert (find("a").spec.requested, find("b").spec.requested) == ("fsdp2:full_shard", "")
    assert command_line(find("a").spec) == ["fsdp-tui", "run", "--strategy", "fsdp2:full_shard", "t.py"]


def test_a_script_is_saved_with_the_directory_it_is_in() -> None:
    """It must be found from anywhere."""
    save("here", LaunchSpec(target="script", script="train.py"))
    save("below", LaunchSpec(target="script", script="train.py", directory="sub"))
    assert find("here").spec.directory == str(Path.cwd())
    assert find("below").spec.directory == str(Path.cwd() / "sub")


def test_a_projects_directories_begin_where_its_file_is(tmp_path: Path) -> None:
    """A file that is committed knows no absolute paths."""
    project = tmp_path / "project"
    project.mkdir()
    (project / PROJECT_FILE).write_text(
        '[presets.top]\nscript = "a.py"\n[presets.sub]\nscript = "a.py"\ndirectory = "sub"\n'
        '[presets.demo]\nmodel = "small"\nenv.A = 1\n'
    )
    assert find("top", project).spec.directory == str(project)
    assert find("sub", project).spec.directory == str(project / "sub")
    assert find("demo", project).spec == LaunchSpec(model="small", env={"A": "1"})
    assert [preset.name for preset in listed(project).presets] == ["demo", "sub", "top"]
    assert listed().presets == []


def test_a_projects_preset_goes_first() -> None:
    """It is what the people who share it mean; saving another under its name is refused."""
    save("both", LaunchSpec(steps=1))
    save("mine", LaunchSpec(steps=2))
    Path(PROJECT_FILE).write_text("[presets.both]\nsteps = 3\n")
    assert find("both").spec.steps == 3
    assert [(preset.name, preset.of_project) for preset in listed().presets] == [("both", True), ("mine", False)]
    with pytest.raises(PresetError, match="would hide this one"):
        save("both", LaunchSpec(), replace=True)


def test_saving_does_not_replace_unless_told() -> None:
    """What was saved may be all there is of it."""
    save("a", LaunchSpec(steps=1))
    with pytest.raises(PresetTaken, match="there is a preset a already"):
        save("a", LaunchSpec(steps=2))
    assert find("a").spec.steps == 1
    save("a", LaunchSpec(steps=2), replace=True)
    assert find("a").spec.steps == 2


def test_deleting() -> None:
    """A saved one with its file; a project's is the project's to delete."""
    path = save("a", LaunchSpec())
    remove(find("a"))
    assert not path.exists()
    with pytest.raises(PresetError, match=r"no preset 'a': none is saved yet"):
        find("a")
    Path(PROJECT_FILE).write_text("[presets.a]\nsteps = 3\n")
    with pytest.raises(PresetError, match="delete it there"):
        remove(find("a"))


@pytest.mark.parametrize("name", ["", "../a", "a/b", "a b", ".hidden", "-a"])
def test_names_are_names_of_files(name: str) -> None:
    """Nothing is written outside the folder."""
    with pytest.raises(PresetError, match="is no name for a preset"):
        save(name, LaunchSpec())


def test_a_name_that_is_not_there_says_which_are() -> None:
    """Where to go on."""
    save("one", LaunchSpec())
    save("two", LaunchSpec())
    with pytest.raises(PresetError, match="no preset 'three': expected one of one, two"):
        find("three")


DAMAGED = (
    ('script = "a.py"\nnprocs = 2\n', "line 2: nprocs: no such key: expected one of target, script, "),
    ('script = "a.py"\nnproc = "two"\n', "line 2: nproc: expected a whole number, found 'two'"),
    ('script = "a.py"\nnproc = true\n', "line 2: nproc: expected a whole number, found True"),
    ('script = "a.py"\nnproc = 0\n', "line 2: nproc: expected 1 or more, found 0"),
    ('script = "a.py"\n# a comment\ncompile = 1\n', "line 3: compile: expected true or false, found 1"),
    ('script = "a.py"\nprecision = "int8"\n', "line 2: precision: expected one of fp32, bf16, fp16, found 'int8'"),
    ('script = "a.py"\nstrategy = "zero"\n', "line 2: strategy: unknown strategy 'zero': expected single, ddp, "),
    ('script = "a.py"\nwrap = "zero"\n', "line 2: wrap: unknown wrap policy 'zero'"),
    ('script = "a.py"\nargs = "--lr 1"\n', "line 2: args: expected a list of texts, found '--lr 1'"),
    ('script = "a.py"\nargs = [\n  "--lr",\n  1,\n]\n', "line 2: args: expected a list of texts"),
    ('script = "a.py"\nenv = { A = 1.5 }\n', "line 2: env.A: expected a text, found 1.5"),
    ('script = "a.py"\n\n[env]\nB = "x"\nA = true\n', "line 5: env.A: expected a text, found True"),
    ('script = "a.py"\nenv = "A=1"\n', "line 2: env: expected a table of variables"),
    ("script = 3\n", "line 1: script: expected a text, found 3"),
    ('target = "notebook"\n', "line 1: target: expected one of demo, script, module, found 'notebook'"),
    ('target = "module"\n', "line 1: target: which script?"),
    ("lr = nan\n", "line 1: lr: expected a number, found nan"),
    ('script = "a.py"\nnproc = two\n', "line 2: invalid value, in 'nproc = two'"),
    ('script = "a.py"\nargs = ["a"\n', "line 2: unclosed array, in 'args = [\"a\"'"),
)


@pytest.mark.parametrize(("text", "said"), DAMAGED, ids=[said.partition(":")[2].strip()[:40] for _, said in DAMAGED])
def test_damage_is_one_line_with_file_line_and_key(text: str, said: str, home: Path) -> None:
    """As a saved preset and as a project's, and the others can still be used."""
    save("good", LaunchSpec())
    path = home / "presets" / "bad.toml"
    path.write_text(text)
    with pytest.raises(PresetError) as error:
        find("bad")
    assert str(error.value).startswith(f"{path}, {said}"), error.value
    assert "\n" not in str(error.value)
    assert find("good").spec == LaunchSpec()
    assert ([preset.name for preset in listed().presets], listed().problems) == (["good"], [str(error.value)])


@pytest.mark.parametrize(
    ("text", "said", "readable"),
    [
        ("[presets.a]\nsteps = 1\n\n[presets.b]\nsteps = 2\nstep = 3\n", "line 6: presets.b.step: no such key", True),
        ('[presets.a]\nsteps = 1\n[presets."b"]\nenv = { A = [] }\n', "line 4: presets.b.env.A: expected a text", True),
        ("[presets]\na.steps = 1\nb.steps = 0\n", "line 3: presets.b.steps: expected 1 or more", True),
        ("[presets]\na = { steps = 1 }\nb = 3\n", "line 3: presets.b: expected a table, found 3", True),
        ("[presets.a]\nsteps = 1\n[[presets.b]]\nsteps = 3\n", "line 3: presets.b: expected a table", True),
        ("[presets.a]\nsteps = 1\n[presets.a]\n", "line 3: cannot declare", False),
        ("presets = 3\n", "line 1: presets: expected tables [presets.NAME]", False),
        ('[preset.a]\nscript = "a.py"\n', "line 1: preset: no such key: expected [presets.NAME]", False),
    ],
)
def test_damage_in_a_projects_file(text: str, said: str, readable: bool) -> None:
    """Its preset b cannot be used; its preset a can where the file can be read."""
    Path(PROJECT_FILE).write_text(text)
    with pytest.raises(PresetError) as error:
        find("b")
    assert str(error.value).startswith(f"{Path.cwd() / PROJECT_FILE}, {said}"), error.value
    assert "\n" not in str(error.value)
    assert listed().problems == [str(error.value)]
    assert [preset.name for preset in listed().presets] == (["a"] if readable else [])


def test_what_is_no_toml_at_all(home: Path) -> None:
    """Not text, not a file, not readable: a line each."""
    save("good", LaunchSpec())
    (home / "presets" / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (home / "presets" / "folder.toml").mkdir()
    (home / "presets" / "empty.toml").write_text("")
    assert [preset.name for preset in listed().presets] == ["empty", "good"]
    assert find("empty").spec == LaunchSpec()
    assert [problem.rpartition("/")[2] for problem in listed().problems] == [
        "binary.toml is no text in UTF-8: expected TOML",
        "folder.toml: Is a directory",
    ]


def test_a_home_that_cannot_be_written(home: Path) -> None:
    """One line, as for a launch."""
    home.write_text("in the way")
    with pytest.raises(HomeError, match="cannot write"):
        save("a", LaunchSpec())


def test_a_word_that_is_no_text_cannot_be_saved() -> None:
    """A file name in another encoding comes in as surrogates, and TOML is UTF-8."""
    with pytest.raises(PresetError, match="no text"):
        save("a", LaunchSpec(target="script", script="a.py", args=("\udcff",)))
    assert listed().presets == []
