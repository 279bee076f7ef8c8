"""A launch: what is wrong with it, and the command line that repeats it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdp_tui.telemetry.launch import (
    OPTIONS,
    SHARDING,
    Launch,
    LaunchSpec,
    Sharding,
    command_line,
    command_text,
    launched_message,
    problems,
)
from fsdp_tui.telemetry.machine import Machine

CPU = Machine(torch="2.13.0+cpu", accelerators=0, cores=2)


def fields(spec: LaunchSpec, machine: Machine = CPU) -> list[str]:
    return [problem.field for problem in problems(spec, machine)]


def test_the_default_launch_is_sound() -> None:
    """`fsdp-tui demo` works as it is."""
    assert problems(LaunchSpec(), CPU) == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (LaunchSpec(nproc=0), "nproc"),
        (LaunchSpec(steps=0), "steps"),
        (LaunchSpec(precision="int8"), "precision"),
        (LaunchSpec(strategy="zero"), "strategy"),
        (LaunchSpec(wrap="zero"), "wrap"),
        (LaunchSpec(nproc=3), "batch"),
        (LaunchSpec(accumulate=8), "batch"),
        (LaunchSpec(data="/nowhere"), "data"),
        (LaunchSpec(no_sync=True), "no_sync"),
        (LaunchSpec(reduce="bf16"), "reduce"),
        (LaunchSpec(target="script"), "script"),
        (LaunchSpec(target="script", script="/nowhere.py"), "script"),
        (LaunchSpec(target="script", script="/tmp"), "script"),
        (LaunchSpec(model="gpt9"), "model"),
        (LaunchSpec(env={"A B": "1"}), "env"),
        (LaunchSpec(env={"FSDP_TUI_STEPS": "1"}), "env"),
        (LaunchSpec(env={"RANK": "1"}), "env"),
        (LaunchSpec(env={"A": "\0"}), "env"),
        (LaunchSpec(target="script", script="/dev/null", args=("\0",)), "args"),
        (LaunchSpec(target="module", script="pkg", directory="/nowhere"), "directory"),
        (LaunchSpec(target="script", script="/dev/null", strategy="fsdp2:reshard=3"), "strategy"),
        (LaunchSpec(target="script", script="/dev/null", strategy="ddp", prefetch=1), "strategy"),
        (LaunchSpec(target="script", script="/dev/null", reduce="bf16", asked=("precision",)), "reduce"),
    ],
)
def test_each_problem_names_its_option(spec: LaunchSpec, field: str) -> None:
    """One problem, at the option that has to change."""
    assert fields(spec) == [field]


def test_a_machine_without_torch_says_what_to_install() -> None:
    """The light viewer cannot train."""
    assert "pip install" in problems(LaunchSpec(), Machine(None, 0, 2))[0].text


def test_more_ranks_than_gpus_are_refused() -> None:
    """Two NCCL ranks on one GPU fail late and obscurely."""
    assert fields(LaunchSpec(nproc=2), Machine("2.13.0", 1, 8)) == ["nproc"]


def test_ranks_by_default() -> None:
    """One per GPU, two on a CPU, one for single."""
    assert [
        LaunchSpec().ranks(CPU),
        LaunchSpec().ranks(Machine("2.13.0", 8, 8)),
        LaunchSpec(strategy="single").ranks(CPU),
    ] == [2, 8, 1]


def test_command_line_leaves_defaults_out(tmp_path: Path) -> None:
    """What is shown to be copied is as short as it can be."""
    spec = LaunchSpec(strategy="ddp", nproc=2, checkpointing=True, steps=5)
    assert command_line(spec) == [
        "fsdp-tui",
        "demo",
        "--nproc",
        "2",
        "--strategy",
        "ddp",
        "--checkpointing",
        "--steps",
        "5",
    ]
    script = LaunchSpec(target="script", script="train.py", args=("--lr", "1"), nproc=2, model="small")
    assert command_line(script, headless=True) == [
        "fsdp-tui",
        "run",
        "--headless",
        "--nproc",
        "2",
        "train.py",
        "--lr",
        "1",
    ]


def test_every_option_is_a_field_of_the_launch() -> None:
    """The table, the form and the struct cannot drift apart."""
    assert {option.field for option in OPTIONS} == set(LaunchSpec.__struct_fields__) - {
        "target",
        "script",
        "args",
        "directory",
        "asked",
        "env",
    }


def test_sharding_travels_as_json() -> None:
    """What the ranks read is what was asked for."""
    sharding = LaunchSpec(strategy="fsdp1:no_shard", precision="bf16", prefetch=1).sharding
    assert msgspec.json.decode(msgspec.json.encode(sharding), type=Sharding) == sharding


SCRIPT = LaunchSpec(target="script", script="/dev/null")


def launched(spec: LaunchSpec) -> tuple[str, dict[str, object]]:
    """What the first message of such a run says: the strategy that was asked for, and the options."""
    message = launched_message(Launch(run_id="r", name="n", created_ns=1, nproc=2, spec=spec))
    return message.strategy, dict(message.options)


def test_what_is_not_asked_for_is_left_to_the_script() -> None:
    """Nothing of it is known before the run, and nothing of it is claimed."""
    assert SCRIPT.overrides == ()
    assert SCRIPT.requested == ""
    strategy, options = launched(SCRIPT)
    assert strategy == ""
    assert {name: options[name] for name in SHARDING if name != "strategy"} == dict.fromkeys(
        name for name in SHARDING if name != "strategy"
    )
    assert "batch" not in options


def test_what_is_asked_for_overrides_the_script() -> None:
    """Also where it equals the default; a value that differs needs no word that it was asked for."""
    spec = LaunchSpec(target="script", script="/dev/null", strategy="fsdp2:full_shard", prefetch=2, asked=("strategy",))
    assert spec.overrides == ("strategy", "prefetch")
    strategy, options = launched(spec)
    assert (strategy, options["prefetch"], options["precision"]) == ("fsdp2:full_shard", 2, None)
    assert command_line(spec) == [
        "fsdp-tui",
        "run",
        "--strategy",
        "fsdp2:full_shard",
        "--prefetch",
        "2",
        "/dev/null",
    ]


def test_to_the_demo_everything_applies() -> None:
    """It has no choice of its own that could be overridden."""
    assert (LaunchSpec().overrides, LaunchSpec().requested) == ((), "fsdp2:full_shard")
    assert launched(LaunchSpec(prefetch=1))[1]["precision"] == "fp32"


def test_misfits_are_those_of_the_strategy_that_was_asked_for() -> None:
    """On a torch whose FSDP2 does not run on a CPU, a script may still wrap with FSDP1 by itself."""
    old = Machine(torch="2.6.0+cpu", accelerators=0, cores=2)
    assert fields(SCRIPT, old) == []
    assert fields(msgspec.structs.replace(SCRIPT, asked=("strategy",)), old) == ["strategy"]
    assert fields(msgspec.structs.replace(SCRIPT, strategy="single", nproc=2)) == ["strategy"]
    assert fields(msgspec.structs.replace(SCRIPT, reduce="bf16")) == []  # its own precision may be bf16


def test_asking_for_no_prefetching_is_part_of_the_command() -> None:
    """0 is a value, not an absence."""
    spec = msgspec.structs.replace(SCRIPT, asked=("prefetch",))
    assert command_line(spec) == ["fsdp-tui", "run", "--prefetch", "0", "/dev/null"]


def test_the_environment_is_part_of_the_command_and_of_the_record() -> None:
    """Runs that differ in it say so when they are compared."""
    spec = msgspec.structs.replace(SCRIPT, env={"NCCL_DEBUG": "INFO", "B": "x y=z"})
    assert command_text(spec) == "fsdp-tui run --env NCCL_DEBUG=INFO --env 'B=x y=z' /dev/null"
    assert launched(spec)[1]["env.B"] == "x y=z"


def test_the_command_to_copy_goes_where_the_script_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another directory it begins with cd."""
    monkeypatch.chdir(tmp_path)
    here = msgspec.structs.replace(SCRIPT, directory=str(tmp_path))
    assert command_text(here) == "fsdp-tui run /dev/null"
    assert command_text(msgspec.structs.replace(here, directory="/a b")) == "cd '/a b' && fsdp-tui run /dev/null"
