"""A run for ranks that somebody else has started: torchrun, accelerate, srun, mpirun, or a shell.

The ranks of one launch on one host meet in a folder of the runtime directory that is named after the process which launched
them. Each leaves its pid there and goes on at once; the first local rank also starts a keeper (`runner.keeper`), which
makes the run while the script imports its torch.

    launch-<launched by>-<n>/rank-3     pid and start of a rank's process
                             end-4711   how the process of that pid ended: when, exit code, last line of its error
                             keeper     pid and start of the keeper; empty while that comes up
                             run        link to the live folder of the run
                             trouble    why there is no run, in one line

All this happens before the script does, so nothing is imported that could matter to it, and nothing raises.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from binascii import crc32
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RUN = "FSDP_TUI_RUN"
"""Path of the run's run.json, or of where it will be in a moment."""
TELEMETRY = "FSDP_TUI_TELEMETRY"
WAIT_S = 5.0
"""How long a training waits for the hub before its first step at most; it has had the time of all imports by then."""
RECORDED_S = 2.0
"""How long the last rank waits at most until its end is recorded."""

RANKS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
)
"""Variables that say which rank a process is."""
MARKS = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK")
"""Variables that a launcher gives to its ranks and does not have itself, from the innermost launcher outwards."""
SHARED = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
)
"""Variables that are the same in all ranks of a launch, and not in those of another one by the same process."""


class Rank(NamedTuple):
    """What a process knows of its place in a launch."""

    rank: int
    local: int | None
    """None: nobody said."""
    world_size: int
    local_size: int


class _Joined(NamedTuple):
    """Where this process is registered."""

    folder: Path
    rank: int
    pid: int
    """A forked child has all this too and is no rank."""


_joined: _Joined | None = None
_trouble = ""


# A process's name for good: pids are reused


def started(pid: int) -> str:
    """When this process started, in the kernel's ticks; "" when there is none, or only its zombie."""
    fields = _stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else ""


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on: state, parent, ..."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def signature(pid: int) -> str:
    """What stands in the files `rank-N` and `keeper`."""
    return f"{pid} {started(pid)}"


def lives(said: str) -> bool:
    """Whether the process of such a signature is there."""
    pid, _, when = said.partition(" ")
    return pid.isdecimal() and bool(when) and started(int(pid)) == when


# Before the script


def ensure_run(arguments: list[str], *, as_module: bool = False) -> Path | None:
    """Gives this rank a run of its own if nobody has: call it once, before the script runs. Never raises.

    From here on FSDP_TUI_RUN is set in every rank of the launch, also where there will be no run: whether ranks take
    part in what they agree on must not depend on their host's disks.

    Args:
        arguments: the script or module, and its own arguments.

    Returns:
        Where the run's run.json will be (`wait_for_run`); None if there is a run already or nothing is to be watched.
    """
    global _joined, _trouble
    if os.environ.get(RUN) or os.environ.get(TELEMETRY) == "off":
        return None
    folder = Path("no-launch")
    try:
        rank = this_rank()
        with _modules_of_python_only():
            folder = _meet(rank)
            if rank is None or not rank.local:
                _start_keeper(folder, rank, arguments, as_module)
    except Exception as error:  # noqa: BLE001  # the training is worth more than its telemetry
        _trouble = str(error)
    path = folder / "run" / "run.json"
    os.environ[RUN] = str(path)
    return path


def this_rank() -> Rank | None:
    """This process's place among the ranks that a launcher has started; None: it was started alone."""
    for names in RANKS:
        rank, local, world_size, local_size = (_number(os.environ.get(name, "")) for name in names)
        if rank is not None and world_size is not None:
            return Rank(rank, local, world_size, local_size or 1)
    return None


def _number(text: str) -> int | None:
    digits = text.partition("(")[0].partition(",")[0]  # Slurm says 4(x2) for two hosts with four tasks each
    return int(digits) if digits.isdecimal() else None


def launched_by(rank: Rank | None) -> int:
    """Pid of the process that all ranks of this launch on this host come from: the nearest ancestor that is no rank.

    A wrapper around each rank (bash, numactl) has the rank's environment. Slurm's own process does not show its.
    """
    mark = next((name for name in MARKS if name in os.environ), None)
    if rank is None or mark is None:
        return os.getpid()
    pid = os.getppid()
    while pid > 1 and _has(pid, mark) and (fields := _stat(pid)):
        pid = int(fields[1])
    return pid


def _has(pid: int, variable: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"\0{variable}=".encode() in b"\0" + file.read()
    except OSError:
        return False


@contextlib.contextmanager
def _modules_of_python_only() -> Iterator[None]:
    """A file of the working directory must not be imported in place of one of Python's."""
    path = list(sys.path)
    if not sys.flags.safe_path:
        del sys.path[0]
    try:
        yield
    finally:
        sys.path[:] = path


def _meet(rank: Rank | None) -> Path:
    """Registers this process in the folder of its launch.

    Raises:
        RunError: there is no place for it.
        OSError: it cannot be written.
    """
    global _joined
    from fsdp_tui.telemetry.places import RunError, make_runtime

    pid, number = os.getpid(), rank.rank if rank else 0
    launcher = launched_by(rank)
    shared = "\0".join([os.uname().nodename, *(os.environ.get(name, "") for name in SHARED)])
    name = f"launch-{launcher}.{started(launcher)}.{crc32(shared.encode(errors='replace')):08x}-"
    root = make_runtime()
    for _ in range(100):
        folder = root / f"{name}{_turn(root, name, number)}"
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            file = os.open(folder / f"rank-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except (FileExistsError, FileNotFoundError):  # another one of that number, or its keeper is leaving
            continue
        os.write(file, signature(pid).encode())
        os.close(file)
        _joined = _Joined(folder, number, pid)
        return folder
    raise RunError(f"{root}: no place for rank {number} in any {name}*; remove those that are old")


def _turn(root: Path, name: str, rank: int) -> int:
    """Which of the launches that go by this name a rank belongs to, when one process makes several, one after the other:
    the first that still misses it, and whose keeper has not been killed."""
    endings = [found[len(name) :] for found in os.listdir(root) if found.startswith(name)]
    turns = sorted(int(ending) for ending in endings if ending.isdecimal())
    for turn in turns:
        folder = root / f"{name}{turn}"
        keeper = read(folder / "keeper")
        if not (folder / f"rank-{rank}").exists() and (not keeper or lives(keeper)):
            return turn
    return turns[-1] + 1 if turns else 0


def read(path: Path) -> str:
    """What stands in a small file; "" when it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _start_keeper(folder: Path, rank: Rank | None, arguments: list[str], as_module: bool) -> None:
    """Starts the keeper, unless another rank that takes itself for the first has."""
    try:
        os.close(os.open(folder / "keeper", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    # torchrun's command line repeats the launch; of other launchers only the rank's own is known.
    launcher = launched_by(rank) if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()
    command = [sys.executable, "-P", "-m", "fsdp_tui.runner.keeper", str(folder), "--command-of", str(launcher)]
    command += ["--world-size", str(rank.world_size if rank else 1), "--ranks", str(rank.local_size if rank else 1)]
    command += ["--", *(["-m"] if as_module else []), *arguments]
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:  # twice, so that the keeper is nobody's child: scripts wait for their children, or kill them
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT, 0o600)
            for target, source in enumerate((null, said, said)):
                os.dup2(source, target)
            most = os.sysconf("SC_OPEN_MAX")
            os.closerange(3, most if most > 0 else 1 << 16)  # a pipe held open would keep its reader waiting
            os.execv(sys.executable, command)
    finally:
        os._exit(0)


# While it runs


def run_file() -> Path | None:
    """The run.json of this process's run, which may still be coming up (`wait_for_run`); None: it is not to be watched."""
    told = os.environ.get(RUN)
    return Path(told) if told and os.environ.get(TELEMETRY) != "off" else None


def find_run(timeout_s: float) -> Path | None:
    """The run.json of this process's run once its hub serves; None when there is none by then."""
    from fsdp_tui.telemetry.places import RunError

    path = run_file()
    try:
        if path is not None:
            wait_for_run(path, timeout_s)
    except RunError:
        return None
    return path if path is not None and path.exists() else None


def wait_for_run(path: Path, timeout_s: float = WAIT_S) -> None:
    """Returns when the hub of a run that is coming up serves; at once for one whose launcher is ours.

    Raises:
        RunError: there will be no run, with the reason.
    """
    from fsdp_tui.telemetry.places import RunError

    if _trouble:
        raise RunError(_trouble)
    folder = path.parent.parent
    deadline_s = time.monotonic() + timeout_s
    while path.parent.name == "run" and not path.exists():
        if trouble := read(folder / "trouble"):
            raise RunError(trouble)
        if not folder.exists() or time.monotonic() > deadline_s:
            said = read(folder / "said").strip().splitlines()
            raise RunError(f"its run did not come up in {timeout_s:g} s" + (f": {said[-1]}" if said else ""))
        time.sleep(0.02)


# After the script


def leave(code: int, error: BaseException | None) -> None:
    """This rank's last word: what Python will exit with, and what the script has raised. Nobody but a process's parent can
    read its exit code, so that the keeper has it from here.

    The last rank waits until the end of the run is recorded: with it a Slurm step or a container may end, and the keeper.
    """
    if _joined is None or _joined.pid != os.getpid():
        return
    said = ""
    if error is not None and not isinstance(error, SystemExit):
        said = f"{type(error).__name__}: {_line(error)}".removesuffix(": ")
    elif isinstance(error, SystemExit) and isinstance(error.code, str):
        said = _line(error.code)
    code = -2 if isinstance(error, KeyboardInterrupt) else code & 0xFF
    folder = _joined.folder
    with contextlib.suppress(OSError, KeyboardInterrupt):
        if (folder / "keeper").exists():
            last = folder / f"end-{_joined.pid}"
            last.write_text(f"{time.time_ns()} {code} {said}", encoding="utf-8", errors="replace")
            if _all_have_left(folder):
                _wait_for_record(folder)
        else:  # the first local rank never came: there is nobody to tell
            (folder / f"rank-{_joined.rank}").unlink()
            folder.rmdir()


def _all_have_left(folder: Path) -> bool:
    names = set(os.listdir(folder))
    pids = [read(folder / name).partition(" ")[0] for name in names if name.startswith("rank-")]
    return all(f"end-{pid}" in names for pid in pids)


def _wait_for_record(folder: Path) -> None:
    """Returns when the keeper has ended the run, or cannot."""
    keeper, alive = read(folder / "keeper"), os.readlink(folder / "run")
    deadline_s = time.monotonic() + RECORDED_S
    while os.path.exists(alive) and lives(keeper) and time.monotonic() < deadline_s:
        time.sleep(0.01)


def _line(what: object) -> str:
    try:
        return (str(what).strip().splitlines() or [""])[-1][:2000]
    except Exception:  # noqa: BLE001  # an exception of the script's own, whose text cannot be made
        return ""
