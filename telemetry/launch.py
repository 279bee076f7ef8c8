"""One launch: its options, what is wrong with them, the command line that repeats it, and starting it.

One table of options serves the command line, the form on the Launch screen and the line to copy, so that the three cannot
drift apart. Starting a launch starts `fsdp_tui.runner.launch` as a process: nothing here imports torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from fsdp_tui.telemetry.machine import Machine
from fsdp_tui.telemetry.strategy import DTYPES, StrategyError, misfits, parse_strategy, parse_wrap

MODELS = ("tiny", "small", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
"""Sizes of the demo's model; `fsdp_tui.demo.model` gives their shapes."""


class Sharding(msgspec.Struct, frozen=True, kw_only=True):
    """What `fsdp_tui.runner.shard` applies. Travels to the ranks as JSON in FSDP_TUI_SHARDING."""

    strategy: str = "fsdp2:full_shard"
    wrap: str = "transformer"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type of the gathered parameters and of compute."""
    reduce: Literal["fp32", "bf16", "fp16"] | None = None
    """Type of the gradient reduction; None: fp32."""
    checkpointing: bool = False
    cpu_offload: bool = False
    prefetch: int = 0
    """Units gathered ahead, beyond what PyTorch does by itself."""
    compile: bool = False


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a launch is made of; `launch.json` in the run's directory."""

    target: Literal["demo", "script", "module"] = "demo"
    script: str | None = None
    """Path of the script, or name of the module."""
    args: tuple[str, ...] = ()
    """The script's own arguments."""
    directory: str | None = None
    """Working directory of the ranks; None: the launcher's."""
    name: str | None = None
    nproc: int | None = None
    """Ranks; None: one per GPU, two on a CPU, one for `single`."""
    strategy: str = "fsdp2:full_shard"
    wrap: str = "transformer"
    precision: str = "fp32"
    reduce: str | None = None
    checkpointing: bool = False
    cpu_offload: bool = False
    prefetch: int = 0
    compile: bool = False
    accumulate: int = 1
    no_sync: bool = False
    steps: int | None = None
    telemetry: Literal["on", "off"] = "on"
    model: str = "tiny"
    batch: int = 8
    seq: int = 128
    lr: float = 1e-3
    seed: int = 0
    data: str | None = None

    def ranks(self, machine: Machine) -> int:
        """The number of processes this launch starts."""
        if self.nproc is not None:
            return self.nproc
        return 1 if self.strategy.strip().lower() == "single" else machine.default_ranks

    @property
    def sharding(self) -> Sharding:
        return Sharding(
            strategy=self.strategy,
            wrap=self.wrap,
            precision=self.precision,  # type: ignore[arg-type]  # problems() has refused anything else
            reduce=self.reduce,  # type: ignore[arg-type]
            checkpointing=self.checkpointing,
            cpu_offload=self.cpu_offload,
            prefetch=self.prefetch,
            compile=self.compile,
        )


class Option(NamedTuple):
    """One option of run, demo and sweep: a flag on the command line and a field on the Launch form."""

    field: str
    flag: str
    kind: type
    """str, int, float or bool (a bool is a switch)."""
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    demo_only: bool = False


OPTIONS = (
    Option("name", "--name", str, "name of the run"),
    Option("nproc", "--nproc", int, "number of ranks (default: one per GPU, 2 on a CPU)", minimum=1),
    Option(
        "strategy", "--strategy", str, "single, ddp, fsdp1:full_shard, fsdp2:full_shard, fsdp2:hybrid_shard=2x2, ..."
    ),
    Option("wrap", "--wrap", str, "units: none, transformer, size:MIN_PARAMS or modules:CLASS,CLASS"),
    Option("precision", "--precision", str, "type of gathered parameters and compute", DTYPES),
    Option("reduce", "--reduce", str, "type of the gradient reduction (default fp32)", DTYPES),
    Option("checkpointing", "--checkpointing", bool, "recompute each block's activations in backward"),
    Option("cpu_offload", "--cpu-offload", bool, "keep shards and optimizer states in host memory"),
    Option("prefetch", "--prefetch", int, "units to gather ahead of their use", minimum=0),
    Option("compile", "--compile", bool, "torch.compile each block (fsdp2)"),
    Option("accumulate", "--accumulate", int, "backwards per optimizer step", minimum=1),
    Option("no_sync", "--no-sync", bool, "reduce gradients in the last of the accumulated backwards only"),
    Option("steps", "--steps", int, "optimizer steps (default: until stopped; 50 when headless)", minimum=1),
    Option("telemetry", "--telemetry", str, "off: launch without watching", ("on", "off")),
    Option("model", "--model", str, "size of the demo's model", MODELS, demo_only=True),
    Option("batch", "--batch", int, "sequences per optimizer step over all ranks", minimum=1, demo_only=True),
    Option("seq", "--seq", int, "bytes per sequence", minimum=2, demo_only=True),
    Option("lr", "--lr", float, "learning rate of AdamW", minimum=0, demo_only=True),
    Option("seed", "--seed", int, "seed of weights and data order", minimum=0, demo_only=True),
    Option(
        "data", "--data", str, "file or folder of training text (default: Python's standard library)", demo_only=True
    ),
)


class Problem(NamedTuple):
    """One thing wrong with a launch, and the option it belongs to."""

    field: str
    text: str


def problems(spec: LaunchSpec, machine: Machine) -> list[Problem]:
    """Everything that would make this launch fail, each in one sentence; an empty list means go."""
    return list(_problems(spec, machine))


def _problems(spec: LaunchSpec, machine: Machine) -> Iterator[Problem]:
    if machine.torch is None:
        yield Problem(
            "strategy",
            "torch is not installed here: pip install 'fsdp-tui[train]', or install into the environment that has it",
        )
    in_bounds = True
    for option in OPTIONS:
        value = getattr(spec, option.field)
        if value is None:
            continue
        if option.choices and value not in option.choices:
            in_bounds = False
            yield Problem(option.field, f"{option.flag} {value}: expected one of {', '.join(option.choices)}")
        if option.minimum is not None and value < option.minimum:
            in_bounds = False
            yield Problem(option.field, f"{option.flag} {value}: expected {option.minimum:g} or more")
    if spec.target != "demo":
        yield from _script_problems(spec)
    if spec.target == "demo" and spec.data is not None and not Path(spec.data).exists():
        yield Problem("data", f"--data {spec.data}: no such file or folder")
    try:
        strategy = parse_strategy(spec.strategy)
    except StrategyError as error:
        yield Problem("strategy", str(error))
        return
    try:
        parse_wrap(spec.wrap)
    except StrategyError as error:
        yield Problem("wrap", str(error))
    if not in_bounds:
        return
    ranks = spec.ranks(machine)
    for text in misfits(
        strategy,
        world_size=ranks,
        accelerator=machine.accelerators > 0,
        torch_version=machine.torch_version,
        cpu_offload=spec.cpu_offload,
        precision=spec.precision,
        prefetch=spec.prefetch,
        compiled=spec.compile,
        wrap=spec.wrap,
    ):
        yield Problem("strategy", text)
    if machine.accelerators and ranks > machine.accelerators:
        yield Problem("nproc", f"--nproc {ranks}: this machine has {machine.accelerators} GPUs")
    if spec.reduce is not None and spec.precision == "fp32" and spec.reduce != "fp32":
        yield Problem("reduce", f"--reduce {spec.reduce} goes with --precision bf16 or fp16")
    if spec.no_sync and spec.accumulate == 1:
        yield Problem("no_sync", "--no-sync goes with --accumulate 2 or more")
    if spec.target == "demo" and spec.batch % (ranks * spec.accumulate):
        each = f"{ranks} ranks" + (f" x {spec.accumulate} accumulated" if spec.accumulate > 1 else "")
        yield Problem("batch", f"--batch {spec.batch} does not divide over {each}")


def _script_problems(spec: LaunchSpec) -> Iterator[Problem]:
    if not spec.script:
        yield Problem("script", "which script? expected fsdp-tui run [options] SCRIPT [arguments]")
    elif spec.target == "script":
        path = Path(spec.directory or ".") / spec.script
        if path.is_dir():
            yield Problem("script", f"{spec.script} is a folder: expected a Python script")
        elif not path.exists():
            yield Problem("script", f"{spec.script}: no such file")


def command_line(spec: LaunchSpec, *, headless: bool = False) -> list[str]:
    """The words that repeat this launch; options at their default are left out."""
    default = LaunchSpec()
    words = ["fsdp-tui", "demo" if spec.target == "demo" else "run"]
    if headless:
        words.append("--headless")
    for option in OPTIONS:
        value = getattr(spec, option.field)
        if value == getattr(default, option.field) or (option.demo_only and spec.target != "demo"):
            continue
        words += [option.flag] if option.kind is bool else [option.flag, str(value)]
    if spec.target != "demo":
        words += (["-m"] if spec.target == "module" else []) + [spec.script or "", *spec.args]
    return words


def command_text(spec: LaunchSpec, *, headless: bool = False) -> str:
    """`command_line` as one line for a shell."""
    return shlex.join(command_line(spec, headless=headless))
