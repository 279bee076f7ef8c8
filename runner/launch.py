"""The launcher of one run: `python -m fsdp_tui.runner.launch RUN_ID [--bound PID]`. No torch in this process.

It starts the hub and torchrun (`runner.agent`), replaces a hub that was killed, takes the ranks down in steps when they
are to stop, and says how the run ended. It is the parent of everything that trains: when it is killed, the kernel kills
the agent, and with it the ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec
import zmq

from fsdp_tui.runner.bootstrap import LOGS
from fsdp_tui.runner.supervision import Hub, Ladder, code_text, how, log
from fsdp_tui.telemetry.launch import OPTIONS, Launch, LaunchSpec, read_launch
from fsdp_tui.telemetry.messages import Ended
from fsdp_tui.telemetry.rundir import RunError, RunPaths, paths_of

FAILURE_S = 2.0
"""What the other ranks get between torchrun's SIGTERM and our SIGKILL when one has failed."""
AGENT_S = 3.0
"""What torchrun gets to end when all its ranks have."""
LOG_TAIL_LINES = 20


@dataclass(slots=True)
class Rank:
    """One rank's process as the agent reports it."""

    pid: int
    code: int | None = None
    asked: bool = False
    """Whether torchrun or we had sent it a signal before it ended."""


class Launcher:
    """One run from its start to the word on how it ended."""

    def __init__(self, launch: Launch, paths: RunPaths, bound_to: int | None) -> None:
        self.launch = launch
        self.paths = paths
        self._bound_to = bound_to
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.hub = Hub(paths, self._context)
        self.ladder = Ladder(self.hub, self._signal_ranks, listening=launch.spec.telemetry == "on")
        self.ranks: dict[int, Rank] = {}
        self._deaths: list[int] = []
        """Ranks in the order of their ends."""
        self._agent: subprocess.Popen[bytes] | None = None
        self._report = -1
        self._report_open = True
        self._partial = b""
        self._signals = 0
        self._failed_before_stop = False
        self._killing_s: float | None = None

    def start(self) -> str:
        """Brings up hub and torchrun; returns "" or, in one line, why the run did not start."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        if trouble := self.hub.start():
            return trouble
        report, said = os.pipe()
        command = [sys.executable, "-P", "-m", "fsdp_tui.runner.agent"]
        command += ["--nproc", str(self.launch.nproc), "--report-fd", str(said), "--parent", str(os.getpid()), "--"]
        command += target(self.launch.spec)
        try:
            with open(self.paths.launcher_log, "ab") as log:
                # From the main thread: the kernel's word to the agent is bound to the thread that started it.
                self._agent = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(said,),
                    cwd=self.launch.spec.directory,
                    env=self._environment(),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(report)
            return f"cannot start torchrun: {error}"
        finally:
            os.close(said)
        os.set_blocking(report, False)
        self._report = report
        return ""

    def _environment(self) -> dict[str, str]:
        spec = self.launch.spec
        env = dict(os.environ) | spec.env
        env[LOGS] = str(self.paths.logs)
        env["FSDP_TUI_STRATEGY"] = spec.strategy
        env["FSDP_TUI_SHARDING"] = msgspec.json.encode(spec.sharding).decode()
        env["FSDP_TUI_ASKED"] = ",".join(spec.overrides)
        env["FSDP_TUI_TELEMETRY"] = spec.telemetry
        env.pop("FSDP_TUI_RUN", None)
        env.pop("FSDP_TUI_STEPS", None)
        if spec.steps is not None:
            env["FSDP_TUI_STEPS"] = str(spec.steps)
        if spec.telemetry == "on":
            env["FSDP_TUI_RUN"] = str(self.paths.run_file)
        return env

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def close(self) -> None:
        """Frees the sockets; the hub has everything by then."""
        self._context.destroy(linger=0)

    # While it runs

    def supervise(self) -> Ended:
        """Watches over the run until all its ranks have ended; returns how."""
        poller = zmq.Poller()
        poller.register(self._report, zmq.POLLIN)
        if self.hub.channel is not None:
            poller.register(self.hub.channel, zmq.POLLIN)
        taken = 0
        while not self._over():
            ready = dict(poller.poll(100))
            if self._report in ready and not self._read_report():
                poller.unregister(self._report)
            for frames in self.hub.receive():
                self.ladder.hear(frames)
            self.hub.keep_alive()
            if self._bound_to is not None and not self.ladder.hurry and os.getppid() != self._bound_to:
                self.ladder.hurry = True
                self.ladder.climb("the process that started this run is gone")
            while taken < self._signals:
                taken += 1
                self.ladder.climb("the launcher was asked to stop")
            self._climb_in_time()
            self._end_after_failure()
        self._end_agent()
        os.close(self._report)
        return self._verdict()

    def _over(self) -> bool:
        if self._report_open:
            return len(self.ranks) >= self.launch.nproc and all(rank.code is not None for rank in self.ranks.values())
        return True

    def _read_report(self) -> bool:
        """Takes in the agent's lines; False when it has closed its end."""
        try:
            part = os.read(self._report, 65536)
        except BlockingIOError:
            return True
        if not part:
            self._report_open = False
            return False
        *lines, self._partial = (self._partial + part).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "pid" in said:
                self.ranks[said["rank"]] = Rank(said["pid"])
                continue
            rank = self.ranks[said["rank"]]
            rank.code = said["code"]
            rank.asked = said["asked"] or self.ladder.reached("sigterm")
            self._deaths.append(said["rank"])
            if rank.code != 0 and not rank.asked and self.ladder.rung is None:
                self._failed_before_stop = True
        return True

    def _climb_in_time(self) -> None:
        if not self._over():
            self.ladder.climb_in_time({rank for rank, process in self.ranks.items() if process.code is None})

    def _signal_ranks(self, number: signal.Signals) -> None:
        """To the process groups of all ranks; torchrun gives each its own. To torchrun itself while it has no ranks."""
        alive = [rank for rank in self.ranks.values() if rank.code is None]
        for rank in alive:
            _kill_group(rank.pid, number)
        if len(self.ranks) < self.launch.nproc and self._agent is not None:
            _kill_group(self._agent.pid, number)

    def _end_after_failure(self) -> None:
        """One rank has failed: torchrun tells the others, but waits half a minute for those that do not listen."""
        if not self._failed_before_stop:
            return
        if self._killing_s is None:
            self._killing_s = time.monotonic() + FAILURE_S
        elif time.monotonic() > self._killing_s:
            self._killing_s = time.monotonic() + FAILURE_S
            self._signal_ranks(signal.SIGKILL)

    def _end_agent(self) -> None:
        agent = self._agent
        assert agent is not None
        for rank in self.ranks.values():
            # What a rank has started lives in its session; a dead agent leaves ranks to the kernel's signal.
            _kill_group(rank.pid, signal.SIGKILL)
        try:
            agent.wait(AGENT_S)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()

    # The end

    def _verdict(self) -> Ended:
        codes = {str(number): rank.code for number, rank in sorted(self.ranks.items()) if rank.code is not None}
        failed = self._first_failure()
        now_ns = time.time_ns()
        if failed is not None:
            code = self.ranks[failed].code or 0
            tail = self._log_tail(failed)
            return Ended(
                state="failed",
                ended_ns=now_ns,
                exit_codes=codes,
                stop_rung=self.ladder.rung,
                failed_rank=failed,
                reason=how(failed, code, _last_words(tail) if code > 0 else ""),
                log_tail=tail,
            )
        if self.ladder.rung is not None:
            return Ended(state="stopped", ended_ns=now_ns, exit_codes=codes, stop_rung=self.ladder.rung)
        if len(codes) < self.launch.nproc:
            tail = _tail(self.paths.launcher_log)
            code = self._agent.returncode if self._agent is not None else 0
            what = "before its ranks did" if self.ranks else "before it started a rank"
            reason = f"torchrun ended {what} ({code_text(code)}): {tail[-1] if tail else 'it said nothing'}"
            return Ended(state="failed", ended_ns=now_ns, exit_codes=codes, reason=reason, log_tail=tail)
        return Ended(state="finished", ended_ns=now_ns, exit_codes=codes)

    def _first_failure(self) -> int | None:
        """The first rank that ended badly of itself; what happened to the others follows from it."""
        for number in self._deaths:
            rank = self.ranks[number]
            if rank.code != 0 and not rank.asked:
                return number
        return None

    def _log_tail(self, rank: int) -> list[str]:
        # A rank that ends before it has its log has said why in the launcher's.
        path = self.paths.log(rank)
        return _tail(path if path.exists() else self.paths.launcher_log)


def target(spec: LaunchSpec) -> list[str]:
    """What `fsdp_tui.runner` is to become in each rank."""
    if spec.target == "script":
        return [spec.script or "", *spec.args]
    if spec.target == "module":
        return ["-m", spec.script or "", *spec.args]
    words = ["-m", "fsdp_tui.demo"]
    for option in OPTIONS:
        value = getattr(spec, option.field)
        if not option.demo_only or value is None or value is False:
            continue
        words += [option.flag] if value is True else [option.flag, str(value)]
    return [*words, *spec.args]


def _last_words(tail: list[str]) -> str:
    """Why a process ended, if its log tells: the last line of a traceback, or of an error in one line on its own.

    Another last line is only what it printed last, and would put the blame on it.
    """
    lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in tail if line.strip()]
    for at in range(len(lines) - 1, -1, -1):
        if re.match(r"[\w.]+(Error|Exception|Interrupt|Warning|Exit)\b|fsdp-tui refuses: ", lines[at]) or (
            at and re.match(r"\S+: ", lines[at]) and lines[at - 1].startswith("    ")
        ):
            return lines[at].strip()
    return lines[-1].strip() if len(lines) == 1 else ""


def _tail(path: Path) -> list[str]:
    """The last lines of a log."""
    try:
        with open(path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - 16_384))
            text = log.read().decode(errors="replace")
    except OSError:
        return []
    return [line[:2_000] for line in text.splitlines()[-LOG_TAIL_LINES:]]


def _kill_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def main(argv: list[str] | None = None) -> int:
    """The launcher's process: 0 finished or stopped, 1 failed; it returns when the recording is complete."""
    parser = argparse.ArgumentParser(prog="fsdp_tui.runner.launch")
    parser.add_argument("run_id")
    parser.add_argument("--bound", type=int, metavar="PID", help="stop the run when this process, our parent, is gone")
    parser.add_argument("--ready-fd", type=int, help='gets "ready" when the hub serves, or "error: why"')
    options = parser.parse_args(argv)
    paths = paths_of(options.run_id)

    def say(line: str) -> None:
        if options.ready_fd is not None:
            with contextlib.suppress(OSError):  # whoever started us is gone already
                os.write(options.ready_fd, f"{line}\n".encode())
            os.close(options.ready_fd)
            options.ready_fd = None

    try:
        launcher = Launcher(read_launch(paths), paths, options.bound)
    except RunError as error:
        say(f"error: {error}")
        log(str(error))
        return 1
    if trouble := launcher.start():
        say(f"error: {trouble}")
        log(trouble)
        launcher.hub.stop()
        return 1
    say("ready")
    ended = launcher.supervise()
    if trouble := launcher.hub.finish(ended):
        log(trouble)
    launcher.close()
    return 1 if ended.state == "failed" else 0


if __name__ == "__main__":
    sys.exit(main())
