"""The keeper of a run whose ranks somebody else has started (`runner.foreign`): no child of theirs, and not their parent.

    python -m fsdp_tui.runner.keeper FOLDER --world-size N --ranks LOCAL --command-of PID -- [-m] TARGET args

It makes the run and its hub, replaces a hub that was killed, takes the ranks down in steps when a viewer wants them stopped, and
when all of them have left says how the run ended. What nobody but their parent can know, it does not know: exit codes come from
the ranks themselves (their last word in FOLDER, their goodbye), and a rank that was killed leaves none.

Signals do not end it, so that a launcher which ends everything around its ranks still has a complete record.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from fsdp_tui.runner import foreign
from fsdp_tui.runner.supervision import Hub, Ladder, how, log
from fsdp_tui.telemetry import wire
from fsdp_tui.telemetry.launch import LaunchSpec, make_run, run_name
from fsdp_tui.telemetry.messages import BadMessage, Ended, Goodbye, Hello, decode
from fsdp_tui.telemetry.places import RunError, runtime
from fsdp_tui.telemetry.rundir import ProcessId, RunPaths, coming_up, remove_alive

LATE_S = 1.0
"""How long after all ranks that are known have left another one of the same launch may still come up."""
ROSTER_S = 0.5
"""Between questions who is there. Ranks that a registered process has made itself are known from their hello only."""
ANSWER_S = 0.7
"""What the hub gets at the end to say what the ranks said last."""

COMING_UP_S = 60.0
"""A launch so young may not have its keeper yet."""


@dataclass
class Process:
    """A process of one rank; the process that makes several (torch.multiprocessing) is there too."""

    rank: int
    pid: int
    handle: int
    """A pidfd; -1: it has left."""
    said: str = ""
    """Its last word: when, exit code, error."""
    gone_ns: int | None = None
    asked: bool = False
    """Whether we had sent it a signal before."""


@dataclass
class End:
    """How one process ended, as far as anybody knows."""

    rank: int
    at_ns: int
    code: int | None = None
    error: str = ""
    reason: str = ""
    """Of its goodbye; "" without one."""
    asked: bool = False

    @property
    def bad(self) -> bool:
        if self.asked:
            return False
        if self.code is not None:
            return self.code != 0
        return self.reason in ("", "error")

    @property
    def interrupted(self) -> bool:
        """By Ctrl-C, which its launcher has passed on."""
        return self.code == -signal.SIGINT

    @property
    def text(self) -> str:
        if self.code is not None:
            return how(self.rank, self.code, self.error)
        if self.reason:
            return f"rank {self.rank} ended with an error" + (f": {self.error[:300]}" if self.error else "")
        return f"rank {self.rank} is gone without a goodbye: killed, or ended by its launcher"


def verdict(ends: Iterable[End], rung: str | None) -> Ended:
    """How a run ended whose ranks ended so. `rung`: of the ladder of a stop that was asked for."""
    ends = list(ends)
    codes: dict[str, int] = {}
    for end in sorted(ends, key=lambda end: (end.rank, end.code or 0)):
        if end.code is not None and not codes.get(str(end.rank)):
            codes[str(end.rank)] = end.code
    now_ns = time.time_ns()
    if bad := [end for end in ends if end.bad]:
        # What happened to the others follows from the first.
        first = min(bad, key=lambda end: end.at_ns)
        if first.interrupted:
            reason = f"interrupted, as by Ctrl-C: rank {first.rank} ended with KeyboardInterrupt first"
            return Ended(state="stopped", ended_ns=now_ns, exit_codes=codes, stop_rung=rung, reason=reason)
        return Ended(
            state="failed",
            ended_ns=now_ns,
            exit_codes=codes,
            stop_rung=rung,
            failed_rank=first.rank,
            reason=first.text,
        )
    if rung is not None:
        return Ended(state="stopped", ended_ns=now_ns, exit_codes=codes, stop_rung=rung)
    return Ended(state="finished", ended_ns=now_ns, exit_codes=codes)


@dataclass
class Keeper:
    """One run from the word that its ranks are there to the word that they are not.

    Args:
        paths: of the run.
        folder: where its ranks are registered.
        ranks: how many of them this host is to have.
    """

    paths: RunPaths
    folder: Path
    ranks: int
    processes: dict[int, Process] = field(default_factory=dict)
    """By pid."""
    hellos: dict[int, Hello] = field(default_factory=dict)
    goodbyes: dict[int, Goodbye] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.hub = Hub(self.paths, self._context, ranks_stay=True)
        self.ladder = Ladder(self.hub, self._signal, listening=True)
        self._poller = zmq.Poller()
        self._registered: set[str] = set()
        self._asked_s = 0.0
        self._asked = self._answered = 0
        self._quiet_s = time.monotonic()
        """When a process came or went last."""

    def supervise(self) -> Ended:
        """Watches over the run until all its ranks have left; returns how it ended."""
        assert self.hub.channel is not None
        self._poller.register(self.hub.channel, zmq.POLLIN)
        while True:
            self._admit()
            # When one rank has left, the others do in a moment, and the last one waits for us.
            leaving = len(self._there()) < len(self.processes)
            self._see_off(dict(self._poller.poll(10 if leaving else 100)))
            self._hear()
            if self._over():
                break
            self.hub.keep_alive()
            self.ladder.climb_in_time({process.rank for process in self._there()})
            if time.monotonic() - self._asked_s > ROSTER_S:
                self._ask()
        self._ask()  # what is answered now holds what they said last
        until_s = time.monotonic() + ANSWER_S
        while self._answered < self._asked and self.hub.alive() and time.monotonic() < until_s:
            self.hub.channel.poll(20)
            self._hear()
        return verdict([self._end(process) for process in self.processes.values()], self.ladder.rung)

    def close(self) -> None:
        """Frees the sockets; the hub has everything by then."""
        self._context.destroy(linger=0)

    # Who is there

    def _there(self) -> list[Process]:
        return [process for process in self.processes.values() if process.gone_ns is None]

    def _over(self) -> bool:
        if self._there():
            return False
        return len(self._registered) >= self.ranks or time.monotonic() - self._quiet_s > LATE_S

    def _admit(self) -> None:
        """Takes in ranks that have registered since."""
        for name in _files(self.folder):
            kind, _, rank = name.partition("-")
            if kind != "rank" or name in self._registered or not rank.isdecimal():
                continue
            signature = foreign.read(self.folder / name)
            pid = signature.partition(" ")[0]
            if not pid:  # it is being written
                continue
            self._registered.add(name)
            self._add(int(rank), int(pid), there=foreign.lives(signature))

    def _add(self, rank: int, pid: int, *, there: bool) -> None:
        handle = -1
        if there:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                self._poller.register(handle, zmq.POLLIN)
        process = self.processes[pid] = Process(rank, pid, handle)
        self._quiet_s = time.monotonic()
        if handle < 0:
            self._gone(process)

    def _see_off(self, ready: dict[object, int]) -> None:
        """Processes that have ended, or have said that they do: then the script has, and that is the end of the run."""
        for process in self._there():
            if process.handle in ready or (self.folder / f"end-{process.pid}").exists():
                self._poller.unregister(process.handle)
                os.close(process.handle)
                process.handle = -1
                self._gone(process)

    def _gone(self, process: Process) -> None:
        process.gone_ns = time.time_ns()
        process.asked = self.ladder.reached("sigterm")
        process.said = foreign.read(self.folder / f"end-{process.pid}")
        self._quiet_s = time.monotonic()

    def _signal(self, number: signal.Signals) -> None:
        """To every process that is there, and to nothing else: their groups are their launcher's."""
        for process in self._there():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(process.handle, number)

    # What the hub knows

    def _ask(self) -> None:
        self._asked += 1
        self._asked_s = time.monotonic()
        self.hub.ask_roster(b"%d" % self._asked)

    def _hear(self) -> None:
        for frames in self.hub.receive():
            if frames[0] == wire.ROSTER and len(frames) == 3:
                self._answered = int(frames[1])
                self._read_roster(frames[2])
            else:
                self.ladder.hear(frames)

    def _read_roster(self, body: bytes) -> None:
        for one in msgspec.msgpack.decode(body, type=list[bytes]):
            try:
                message = decode(one)
            except BadMessage:
                continue
            if isinstance(message, Hello):
                self.hellos[message.rank] = message
                if message.host == os.uname().nodename and message.pid not in self.processes:
                    there = ProcessId(message.pid, message.pid_started).alive()
                    self._add(message.rank, message.pid, there=there)
            elif isinstance(message, Goodbye):
                self.goodbyes[message.rank] = message

    # The end

    def _end(self, process: Process) -> End:
        when, _, rest = process.said.partition(" ")
        code, _, error = rest.partition(" ")
        end = End(process.rank, process.gone_ns or time.time_ns(), error=error, asked=process.asked)
        if when.isdecimal():
            end.at_ns, end.code = int(when), int(code)
        hello, goodbye = self.hellos.get(process.rank), self.goodbyes.get(process.rank)
        if goodbye is not None and hello is not None and hello.pid == process.pid:
            end.reason = goodbye.reason
            end.error = end.error or goodbye.error
            end.code = goodbye.exit_code if end.code is None else end.code
        return end


def _files(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def command_of(pid: int) -> list[str]:
    """A process's command line, as a person would have typed it."""
    try:
        words = [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]]
    except OSError:
        return []
    # A script with an interpreter line shows as the interpreter and its own path.
    script = len(words) > 1 and Path(words[0]).name.startswith("python") and os.access(words[1], os.X_OK)
    return [Path(words[1]).name, *words[2:]] if script else words


def spec_of(words: Sequence[str], world_size: int) -> LaunchSpec:
    """The launch that the ranks were started for."""
    as_module = words[:1] == ["-m"]
    script, *args = words[1:] if as_module else words
    steps, strategy = os.environ.get("FSDP_TUI_STEPS", ""), os.environ.get("FSDP_TUI_STRATEGY", "")
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    spec = LaunchSpec(
        target="module" if as_module else "script",
        script=script,
        args=tuple(args),
        directory=os.getcwd(),
        nproc=world_size,
        steps=int(steps) if steps.isdecimal() and int(steps) else None,
    )
    if strategy:
        spec = msgspec.structs.replace(spec, strategy=strategy, asked=("strategy",))
    return spec if again == "0" else msgspec.structs.replace(spec, name=f"{run_name(spec)} restart {again}")


def sweep() -> None:
    """Removes the folders of launches whose keepers were killed, or never came up, and whose ranks are gone."""
    for folder in runtime().glob("launch-*"):
        keeper = foreign.read(folder / "keeper")
        with contextlib.suppress(OSError):
            coming_up = not keeper and time.time() - folder.stat().st_mtime < COMING_UP_S
            if not (coming_up or foreign.lives(keeper) or _ranks_there(folder)):
                shutil.rmtree(folder, ignore_errors=True)


def _ranks_there(folder: Path) -> bool:
    return any(foreign.lives(foreign.read(folder / name)) for name in _files(folder) if name.startswith("rank-"))


def main(argv: list[str] | None = None) -> int:
    """The keeper's process: 0 finished or stopped, 1 failed or no run."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="fsdp_tui.runner.keeper")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--command-of", type=int, required=True)
    at = argv.index("--")
    options = parser.parse_args(argv[:at])
    folder = options.folder
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # SIG_IGN would be the hub's too
    try:
        (folder / "keeper").write_text(foreign.signature(os.getpid()))
        return _keep(folder, options.ranks, spec_of(argv[at + 1 :], options.world_size), options.command_of)
    except (RunError, OSError) as error:
        log(str(error))
        with contextlib.suppress(OSError):
            (folder / "trouble").write_text(str(error))
        while _ranks_there(folder):  # they read it when their training begins
            time.sleep(0.2)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _keep(folder: Path, ranks: int, spec: LaunchSpec, command_of_pid: int) -> int:
    sweep()
    paths, _ = make_run(spec, spec.nproc or 1, command=command_of(command_of_pid) or [sys.executable])
    (folder / "run").symlink_to(paths.alive)
    with open(paths.launcher_log, "ab") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    keeper = Keeper(paths, folder, ranks)
    with coming_up(paths):
        trouble = keeper.hub.start()
    if trouble:
        keeper.hub.stop()
        remove_alive(paths)
        raise RunError(trouble)
    ended = keeper.supervise()
    shutil.rmtree(folder, ignore_errors=True)  # nobody is to join a run that is over
    if trouble := keeper.hub.finish(ended):
        log(trouble)
    keeper.close()
    return 1 if ended.state == "failed" else 0


if __name__ == "__main__":
    sys.exit(main())
