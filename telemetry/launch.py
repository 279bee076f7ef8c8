"""One launch: its options, what is wrong with them, the command line that repeats it, and starting it.

One table of options serves the command line, the form on the Launch screen and the line to copy, so that the three cannot
drift apart. Starting a launch starts `fsdp_tui.runner.launch` as a process: nothing here imports torch.
"""

from __future__ import annotations

import math
import os
import re
import selectors
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from fsdp_tui.telemetry.machine import Machine, this_machine
from fsdp_tui.telemetry.messages import PROTOCOL, Launched
from fsdp_tui.telemetry.rundir import RunError, RunPaths, coming_up, create_run, remove_alive, write_file
from fsdp_tui.telemetry.strategy import DEFAULT, DTYPES, Strategy, StrategyError, misfits, parse_strategy, parse_wrap

BRIEF_STEPS = 50
"""Of a headless demo, and of each run of a sweep, that is not told how many."""
MODELS = ("tiny", "small", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
"""Sizes of the demo's model; `fsdp_tui.demo.model` gives their shapes."""


class Sharding(msgspec.Struct, frozen=True, kw_only=True):
    """What `fsdp_tui.runner.shard` applies. Travels to the ranks as JSON in FSDP_TUI_SHARDING."""

    strategy: str = DEFAULT
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


SHARDING = Sharding.__struct_fields__
"""Its options by name. A script that is left alone has its own; the demo, and a script that calls `shard`, take the launch's."""


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
    strategy: str = DEFAULT
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
    asked: tuple[str, ...] = ()
    """Options of SHARDING that were given explicitly, also where they equal the default; see `overrides`."""
    env: dict[str, str] = {}
    """Environment variables of the ranks, beside the launcher's own."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """The options that override a script's own choice, in the order of SHARDING; none for the demo, which has no other."""
        if self.target == "demo":
            return ()
        return tuple(name for name in SHARDING if name in self.asked or getattr(self, name) != getattr(UNTOUCHED, name))

    def decides(self, option: str) -> bool:
        """Whether this option of SHARDING is the launch's to say; otherwise it is left as the script has it."""
        return self.target == "demo" or option in self.overrides

    @property
    def requested(self) -> str:
        """The strategy that was asked for, in text form; "" when it is left to the script."""
        return self.strategy if self.decides("strategy") else ""

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


UNTOUCHED = LaunchSpec()
"""What a launch is without options."""


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
    maximum: int | None = None
    """Beyond what any training of today can be: most likely a slip of the keyboard."""
    unset: str = ""
    """What it means to leave it out, where the default is None."""

    @property
    def default(self) -> str:
        """What it means to leave it out, in words; "" for a switch."""
        value = getattr(UNTOUCHED, self.field)
        if value is None or self.kind is bool:
            return self.unset
        return f"{value:g}" if self.kind is float else str(value)

    def expects(self, value: Any) -> str:
        """What a value of the right type should have been instead, in words; "" when it can be."""
        if self.choices and value not in self.choices:
            return f"expected one of {', '.join(self.choices)}"
        if self.kind is float and not math.isfinite(value):
            return "expected a number"
        if self.minimum is not None and value < self.minimum:
            return f"expected {self.minimum:g} or more"
        if self.maximum is not None and value > self.maximum:
            return f"expected {self.maximum:,} at most"
        return ""


OPTIONS = (
    Option("name", "--name", str, "name of the run", unset="made from what is launched"),
    Option("nproc", "--nproc", int, "number of ranks", minimum=1, maximum=1_024, unset="one per GPU, 2 on a CPU"),
    Option(
        "strategy", "--strategy", str, "single, ddp, fsdp1:full_shard, fsdp2:full_shard, fsdp2:hybrid_shard=2x2, ..."
    ),
    Option("wrap", "--wrap", str, "units: none, transformer, size:MIN_PARAMS or modules:CLASS,CLASS"),
    Option("precision", "--precision", str, "type of gathered parameters and compute", DTYPES),
    Option("reduce", "--reduce", str, "type of the gradient reduction", DTYPES, unset="fp32"),
    Option("checkpointing", "--checkpointing", bool, "recompute each block's activations in backward"),
    Option("cpu_offload", "--cpu-offload", bool, "keep shards and optimizer states in host memory"),
    Option("prefetch", "--prefetch", int, "units to gather ahead of their use", minimum=0, maximum=1_000),
    Option("compile", "--compile", bool, "torch.compile each block (fsdp2)"),
    Option("steps", "--steps", int, "optimizer steps", minimum=1, maximum=1_000_000_000, unset="until stopped"),
    Option("telemetry", "--telemetry", str, "off: launch without watching", ("on", "off")),
    Option("model", "--model", str, "size of the demo's model", MODELS, demo_only=True),
    Option(
        "accumulate", "--accumulate", int, "backwards per optimizer step", minimum=1, maximum=10_000, demo_only=True
    ),
    Option(
        "no_sync",
        "--no-sync",
        bool,
        "reduce gradients in the last of the accumulated backwards only",
        demo_only=True,
    ),
    Option(
        "batch",
        "--batch",
        int,
        "sequences per optimizer step over all ranks",
        minimum=1,
        maximum=1_000_000,
        demo_only=True,
    ),
    Option("seq", "--seq", int, "bytes per sequence", minimum=2, maximum=1_000_000, demo_only=True),
    Option("lr", "--lr", float, "learning rate of AdamW", minimum=0, maximum=1_000, demo_only=True),
    Option("seed", "--seed", int, "seed of weights and data order", minimum=0, maximum=2**63 - 1, demo_only=True),
    Option(
        "data",
        "--data",
        str,
        "file or folder of training text",
        demo_only=True,
        unset="Python's standard library",
    ),
)


class Problem(NamedTuple):
    """One thing wrong with a launch, and the option it belongs to."""

    field: str
    text: str


def problems(spec: LaunchSpec, machine: Machine, unread: Collection[str] = ()) -> list[Problem]:
    """Everything that would make this launch fail, each in one sentence; an empty list means go.

    `unread`: options that were given and could not be read; `spec` has their defaults, and what these go with is not judged.
    """
    return [problem for problem in _problems(spec, machine, together=not unread) if problem.field not in unread]


def _problems(spec: LaunchSpec, machine: Machine, *, together: bool) -> Iterator[Problem]:
    if machine.torch is None:
        yield Problem(
            "strategy",
            "torch is not installed here: pip install 'fsdp-tui[train]', or install into the environment that has it",
        )
    for option in OPTIONS:
        value = getattr(spec, option.field)
        if value is None:
            continue
        if expected := option.expects(value):
            together = False
            yield Problem(option.field, f"{option.flag} {value}: {expected}")
    if spec.target != "demo":
        yield from _script_problems(spec)
    yield from _environment_problems(spec)
    if spec.target == "demo" and spec.data is not None and not Path(spec.data).exists():
        yield Problem("data", f"--data {spec.data}: no such file or folder")
    strategy = None
    try:
        strategy = parse_strategy(spec.strategy)
    except StrategyError as error:
        yield Problem("strategy", str(error))
    try:
        parse_wrap(spec.wrap)
    except StrategyError as error:
        yield Problem("wrap", str(error))
    if strategy is None or not together:
        return
    ranks = spec.ranks(machine)
    # What a script's own strategy can and cannot do shows only when it runs.
    if spec.requested:
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
    if spec.reduce not in (None, "fp32") and spec.precision == "fp32" and spec.decides("precision"):
        yield Problem("reduce", f"--reduce {spec.reduce} goes with --precision bf16 or fp16")
    if spec.target == "demo" and spec.no_sync and spec.accumulate == 1:
        yield Problem("no_sync", "--no-sync goes with --accumulate 2 or more")
    if spec.target == "demo" and spec.batch % (ranks * spec.accumulate):
        each = f"{ranks} ranks" + (f" x {spec.accumulate} accumulated" if spec.accumulate > 1 else "")
        yield Problem("batch", f"--batch {spec.batch} does not divide over {each}")


def _script_problems(spec: LaunchSpec) -> Iterator[Problem]:
    astray = bool(spec.directory) and not os.path.isdir(spec.directory or "")
    if astray:
        yield Problem("directory", f"{spec.directory}: no such folder, and the ranks were to work in it")
    if not spec.script:
        yield Problem("script", "which script? expected fsdp-tui run [options] SCRIPT [arguments]")
    elif not astray and spec.target == "script":
        path = Path(spec.directory or ".") / spec.script
        if path.is_dir():
            yield Problem("script", f"{spec.script} is a folder: expected a Python script")
        elif not path.exists():
            yield Problem("script", f"{spec.script}: no such file")


NOT_YOURS = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
"""Variables that torchrun gives each rank, whatever there was before."""


def _environment_problems(spec: LaunchSpec) -> Iterator[Problem]:
    for name in spec.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield Problem("env", f"--env {name!r}: expected a name of letters, digits and _")
        elif name.startswith("FSDP_TUI_") or name in NOT_YOURS:
            whose = "fsdp-tui" if name.startswith("FSDP_TUI_") else "torchrun"
            yield Problem("env", f"--env {name}: {whose} sets it for each rank; leave it out")
    for field, words in (("script", (spec.script or "",)), ("args", spec.args), ("env", (*spec.env.values(),))):
        if any("\0" in word for word in words):
            yield Problem(field, f"{field}: there is a null character in it, which no process can be given")


def written(spec: LaunchSpec) -> dict[str, Any]:
    """The options that are worth writing down, by field: what was asked for, or is not at its default."""
    overrides = spec.overrides
    return {
        option.field: value
        for option in OPTIONS
        if (value := getattr(spec, option.field)) is not None
        and (value != getattr(UNTOUCHED, option.field) or option.field in overrides)
        and (spec.target == "demo" or not option.demo_only)
    }


def command_line(spec: LaunchSpec, *, headless: bool = False) -> list[str]:
    """The words that repeat this launch, from its directory; what was not asked for and is at its default is left out."""
    words = ["fsdp-tui", "demo" if spec.target == "demo" else "run"]
    if headless:
        words.append("--headless")
    given = written(spec)
    for option in OPTIONS:
        value = given.get(option.field)
        if value is not None and value is not False:  # 0 is a value
            words += [option.flag] if option.kind is bool else [option.flag, str(value)]
    for name, value in spec.env.items():
        words += ["--env", f"{name}={value}"]
    if spec.target != "demo":
        words += (["-m"] if spec.target == "module" else []) + [spec.script or "", *spec.args]
    return words


def command_text(spec: LaunchSpec, *, headless: bool = False) -> str:
    """`command_line` as one line for a shell in this process's working directory."""
    line = shlex.join(command_line(spec, headless=headless))
    elsewhere = spec.target != "demo" and spec.directory and os.path.abspath(spec.directory) != os.getcwd()
    return f"cd {shlex.quote(spec.directory or '')} && {line}" if elsewhere else line


def sweep(spec: LaunchSpec, strategies: Sequence[Strategy], machine: Machine) -> list[LaunchSpec]:
    """The same training under each of these strategies: the same global batch, and as many steps."""
    base = spec.name or ("sweep" if spec.target == "demo" else run_name(spec))
    ranks = spec.nproc if spec.nproc is not None else machine.default_ranks
    return [
        msgspec.structs.replace(
            spec,
            strategy=strategy.text,
            asked=tuple(name for name in SHARDING if name == "strategy" or name in spec.asked),
            name=f"{base} {strategy.text}",
            # `single` is the unsharded yardstick: the same global batch in one process.
            nproc=1 if strategy.api == "single" and ranks > 0 else ranks,
            steps=spec.steps or BRIEF_STEPS,
        )
        for strategy in strategies
    ]


# Starting


class StartError(RunError):
    """A launch that did not come up; the message is one line."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """`launch.json`: one launch with what was decided for it."""

    proto: int = PROTOCOL
    run_id: str
    name: str
    created_ns: int
    nproc: int
    spec: LaunchSpec
    requested: str = ""
    """`spec.requested`, for lists that need no more of the spec."""
    command: list[str] = []
    """The command line of the launcher that started the ranks, when that is not ours; what they print is there too."""


class Started(NamedTuple):
    """A run that is coming up. `process` is its launcher: it ends (0 finished or stopped, 1 failed) when the recording is
    complete, and takes SIGINT or SIGTERM as a request to stop; a second one means at once."""

    run_id: str
    process: subprocess.Popen[bytes]


def run_name(spec: LaunchSpec) -> str:
    """The name of a run that was not given one."""
    if spec.name:
        return spec.name
    if spec.target == "demo":
        return f"{spec.model}-{spec.strategy}"
    return Path(spec.script or "run").stem if spec.target == "script" else (spec.script or "run")


def make_run(spec: LaunchSpec, nproc: int, *, command: Sequence[str] = ()) -> tuple[RunPaths, Launch]:
    """Makes the directories of a new run, with its launch.json. `command`: of the launcher, when that is not ours.

    Raises:
        HomeError: the home cannot be written.
        RunError: the runtime directory cannot be used.
    """
    now_ns = time.time_ns()
    paths = create_run(now_ns)
    launch = Launch(
        run_id=paths.id,
        name=run_name(spec),
        created_ns=now_ns,
        nproc=nproc,
        spec=spec,
        requested=spec.requested,
        command=list(command),
    )
    try:
        write_file(paths.launch, msgspec.json.encode(launch))
    except RunError:  # a full disk: no half of a run is left behind
        shutil.rmtree(paths.kept, ignore_errors=True)
        remove_alive(paths)
        raise
    return paths, launch


def start(spec: LaunchSpec, *, bound: bool = False, timeout_s: float = 30.0) -> Started:
    """Starts a launch that `problems` has found nothing wrong with; returns when its hub can be attached to.

    Args:
        bound: the run is stopped when the calling process is gone; otherwise it outlives it.

    Raises:
        HomeError: the run's directory cannot be made.
        StartError: the launcher or the hub did not come up.
    """
    paths, _ = make_run(spec, spec.ranks(this_machine()))
    with coming_up(paths):
        process, line = _bring_up(paths, bound=bound, timeout_s=timeout_s)
    if line == "ready":
        return Started(paths.id, process)
    process.terminate()
    process.wait()
    remove_alive(paths)
    raise StartError(line.removeprefix("error: ") or f"the launcher ended at once: {_last_words(paths)}")


def _bring_up(paths: RunPaths, *, bound: bool, timeout_s: float) -> tuple[subprocess.Popen[bytes], str]:
    """Starts a run's launcher; gives its process, and "ready" or "error: ..." from it."""
    ready, said = os.pipe()
    # -P: a file of the working directory must not replace a module of ours.
    command = [sys.executable, "-P", "-m", "fsdp_tui.runner.launch", paths.id, "--ready-fd", str(said)]
    if bound:
        command += ["--bound", str(os.getpid())]
    try:
        with open(paths.launcher_log, "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(said,),
                start_new_session=True,  # Ctrl-C in our terminal is ours to pass on
            )
        os.close(said)
        said = -1
        line = first_line(ready, timeout_s, "the launcher")
    finally:
        os.close(ready)
        if said >= 0:
            os.close(said)
    return process, line


def first_line(handle: int, timeout_s: float, who: str) -> str:
    """What `who` writes to a pipe up to a newline or its end; "error: ..." when nothing comes in time."""
    found = b""
    deadline_s = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        while not found.endswith(b"\n"):
            if not selector.select(max(0.0, deadline_s - time.monotonic())):
                return f"error: {who} did not answer for {timeout_s:.0f} s"
            part = os.read(handle, 4096)
            if not part:
                break
            found += part
    return found.decode(errors="replace").strip()


def _last_words(paths: RunPaths) -> str:
    try:
        lines = paths.launcher_log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else f"it said nothing; see {paths.logs}"


def read_launch(paths: RunPaths) -> Launch:
    """Reads a run's launch.json.

    Raises:
        StartError: it is not there, or damaged.
    """
    try:
        return msgspec.json.decode(paths.launch.read_bytes(), type=Launch)
    except OSError as error:
        raise StartError(f"cannot read {paths.launch}: {error.strerror}") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise StartError(f"{paths.launch} is damaged: {' '.join(str(error).split())}") from None


def printed_elsewhere(paths: RunPaths) -> str:
    """Where the ranks of this run print to when that is not to logs of ours, as one line; else ""."""
    try:
        command = read_launch(paths).command
    except StartError:
        return ""
    return f"its ranks print to the launcher that started them: {shlex.join(command)}" if command else ""


def launched_message(launch: Launch) -> Launched:
    """The first message of the run that this launch makes."""
    spec = launch.spec
    shown = {
        # What is left to the script is not known here.
        option.field: getattr(spec, option.field)
        if option.field not in SHARDING or spec.decides(option.field)
        else None
        for option in OPTIONS
        if option.field not in ("name", "nproc", "strategy", "steps")
        and (spec.target == "demo" or not option.demo_only)
    }
    shown |= {f"env.{name}": value for name, value in spec.env.items()}
    return Launched(
        run_id=launch.run_id,
        name=launch.name,
        created_ns=launch.created_ns,
        command=launch.command or command_line(spec),
        nproc=launch.nproc,
        strategy=spec.requested,
        options={"target": spec.target, "script": spec.script, **shown},
        steps=spec.steps,
    )
