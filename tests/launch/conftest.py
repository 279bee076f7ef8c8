"""Real launches: real torchrun, real hub, real sockets; only the training is a toy."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from fsdp_tui.telemetry import client
from fsdp_tui.telemetry.client import RunClient, open_run
from fsdp_tui.telemetry.launch import LaunchSpec, start
from fsdp_tui.telemetry.rundir import RunPaths, paths_of

T = TypeVar("T")

TOY = """\
import os, signal, sys, time
import psutil
from pathlib import Path
from fsdp_tui.runner.sender import Sender
from fsdp_tui.telemetry.messages import Goodbye, Hello, Step

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
deaf = "deaf" in sys.argv  # acknowledges a stop, but its training never looks
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
hello = Hello(rank=rank, world_size=world, incarnation=time.time_ns(), host=os.uname().nodename, pid=os.getpid(),
              pid_started=psutil.Process().create_time(), device="cpu", device_name="toy", capacity_bytes=None,
              backend="gloo", versions={})
sender = Sender.connect(Path(os.environ["FSDP_TUI_RUN"]), hello)
limit, step, reason = int(os.environ.get("FSDP_TUI_STEPS", 10**9)), 0, "finished"
while step < limit:
    if sender.requested.stop and not deaf:
        reason = "stopped"
        break
    sender.paused = sender.requested.pause
    time.sleep(0.01)
    if sender.paused:
        continue
    step += 1
    sender.step = step
    sender.put(Step(rank, step, step, time.time_ns(), 10_000_000, [None] * 5, 5.0 / step, 100, [1] * 14, [2] * 14,
                    "forward", -1, sender.dropped, 1000))
sender.close(Goodbye(rank=rank, incarnation=hello.incarnation, reason=reason, steps=step))
"""


def until(met: Callable[[], T], what: str, timeout_s: float = 60.0) -> T:
    """Waits for a condition and returns its (true) value."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := met()):
        assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)
    return value


class Launched:
    """One launched run of a test."""

    def __init__(self, run_id: str, process: subprocess.Popen[bytes]) -> None:
        self.run_id = run_id
        self.process = process
        self.paths: RunPaths = paths_of(run_id)

    def open(self) -> RunClient:
        return open_run(self.run_id)

    def pids(self) -> dict[int, int]:
        """Rank -> pid, when all ranks train."""
        with self.open() as client:

            def training() -> bool:
                client.poll(50)
                known = client.state.ranks
                return bool(known) and len(known) == client.state.world_size and all(r.last for r in known.values())

            until(training, "all ranks train")
            return {rank: known.hello.pid for rank, known in client.state.ranks.items() if known.hello}

    def hub_pid(self) -> int:
        from fsdp_tui.telemetry.rundir import read_run_file

        hub = read_run_file(self.paths.run_file).hub
        assert hub is not None
        return hub.pid

    def wait(self, timeout_s: float = 120.0) -> int:
        return self.process.wait(timeout_s)


def gone(pid: int) -> bool:
    """No such process, or only its zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a runtime directory of the test's own."""
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FSDP_TUI_RUNTIME_DIR", str(tmp_path / "rt"))
    monkeypatch.delenv("FSDP_TUI_STOP_PATIENCE", raising=False)
    for patience in ("ATTACH_S", "REPLY_S"):  # a busy machine may need more than people have
        monkeypatch.setattr(client, patience, 60)
    return tmp_path


Launch = Callable[..., Launched]


@pytest.fixture
def launch(places: Path) -> Iterator[Launch]:
    """Launches a script's text with two ranks; nothing of it is left when the test ends."""
    runs: list[Launched] = []

    def begin(text: str = TOY, *args: str, **options: Any) -> Launched:
        script = places / "train.py"
        script.write_text(text)
        bound = options.pop("bound", False)
        fields: dict[str, Any] = {"target": "script", "script": str(script), "args": args, "nproc": 2} | options
        spec = LaunchSpec(**fields)
        run = Launched(*start(spec, bound=bound))
        runs.append(run)
        return run

    yield begin
    for run in runs:
        with suppress(Exception):
            os.kill(run.hub_pid(), signal.SIGKILL)
        run.process.kill()
        run.process.wait()
