"""Scripts on several ranks: by Python alone, in the environment that torchrun gives, and by the installed program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.e2e.conftest import Program

TIMED = re.compile(rb"^(\[rank\d+\]:)?\[?[IWE]\d{4} .*\n", re.MULTILINE)
"""Lines of PyTorch's own logs, which begin with the time."""
OWN_PID = re.compile(rb"^pid \d+$", re.MULTILINE)


@dataclass(frozen=True)
class Ended:
    """What is left of the ranks: exit codes and all that each printed, by rank."""

    codes: list[int]
    logs: list[bytes]

    @property
    def said(self) -> list[bytes]:
        """The logs without what differs from run to run."""
        return [OWN_PID.sub(b"pid", TIMED.sub(b"", log)) for log in self.logs]

    @property
    def losses(self) -> dict[int, float]:
        """Step -> loss, from the script's own lines in the log of rank 0."""
        words = (
            line.split() for line in self.logs[0].decode(errors="replace").splitlines() if line.startswith("loss ")
        )
        return {int(step): float.fromhex(value) for _, step, value in words}


def run_alone(
    words: Sequence[str],
    folder: Path,
    ranks: int = 2,
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 120,
) -> Ended:
    """Runs `python WORDS` on every rank and waits; logs go to `folder`.

    As under torchrun the ranks meet at a store that is there before them, so no port can be taken in between; and when
    one fails the others are ended.

    Raises:
        subprocess.TimeoutExpired: they did not end in time; none is left.
    """
    return _unless_torch_aborts(lambda: _run_alone(words, folder, ranks, directory, environment, timeout_s))


def _unless_torch_aborts(run: Callable[[], Ended], tries: int = 4) -> Ended:
    """PyTorch's own threads end a process at its exit with SIGABRT now and then (1 of 30 that raise): that says nothing."""
    ended = run()
    while tries > 1 and any(b"terminate called without an active exception" in log for log in ended.logs):
        ended, tries = run(), tries - 1
    return ended


def _run_alone(
    words: Sequence[str],
    folder: Path,
    ranks: int,
    directory: Path | None,
    environment: Mapping[str, str] | None,
    timeout_s: float,
) -> Ended:
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    shared = {key: value for key, value in (environment or os.environ).items() if not key.startswith("FSDP_TUI_")}
    shared |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "plain",
        "OMP_NUM_THREADS": "1",
    }
    folder.mkdir(parents=True, exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            with open(folder / f"rank-{rank}.log", "wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-u", *words],
                        env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank)},
                        cwd=directory,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        codes = _wait(processes, timeout_s)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return Ended(codes, [(folder / f"rank-{rank}.log").read_bytes() for rank in range(ranks)])


def _wait(processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> list[int]:
    left = timeout_s
    while any(process.poll() is None for process in processes):
        if any(process.poll() not in (None, 0) for process in processes):
            for process in processes:
                process.terminate()
        for process in processes:
            if process.poll() is None:
                try:
                    process.wait(0.05)
                except subprocess.TimeoutExpired:
                    left -= 0.05
                    if left < 0:
                        raise
    return [process.returncode for process in processes]


def run_watched(program: Program, words: Sequence[str], ranks: int = 2, code: int = 0) -> tuple[dict[str, Any], Ended]:
    """What `run --json` says of it, and what is left of its ranks."""
    document: dict[str, Any] = {}
    exited: int | None = None

    def run() -> Ended:
        nonlocal document, exited
        done = program("run", "--json", "--headless", "--nproc", str(ranks), *words, code=None)
        document, exited = json.loads(done.stdout), done.returncode
        return left_by(program, document, ranks)

    ended = _unless_torch_aborts(run)
    assert exited == code, ended.logs
    return document, ended


def left_by(program: Program, document: dict[str, Any], ranks: int = 2) -> Ended:
    folder = Path(program.environment["FSDP_TUI_HOME"]) / "runs" / document["run"]["id"] / "logs"
    codes = document["run"]["exit_codes"]
    return Ended(
        [codes[str(rank)] for rank in range(ranks)],
        [(folder / f"rank-{rank}.log").read_bytes() for rank in range(ranks)],
    )
