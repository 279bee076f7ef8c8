"""A launch: what is wrong with it, and the command line that repeats it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdp_tui.telemetry.launch import OPTIONS, LaunchSpec, Sharding, command_line, problems
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
    }


def test_sharding_travels_as_json() -> None:
    """What the ranks read is what was asked for."""
    sharding = LaunchSpec(strategy="fsdp1:no_shard", precision="bf16", prefetch=1).sharding
    assert msgspec.json.decode(msgspec.json.encode(sharding), type=Sharding) == sharding
