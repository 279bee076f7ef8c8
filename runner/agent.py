"""torchrun in a process of its own, with the exit of every rank reported exactly.

    python -m fsdp_tui.runner.agent --nproc N --report-fd FD --parent PID -- [-m] TARGET args

torchrun itself tells the launcher little: on a signal no exit codes at all, and of ranks that it ended itself the same as of
ranks that failed. So this process writes one JSON line per rank when it starts and when it ends, in the order of
the events, and whether torchrun had asked the rank to end before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
import threading
import time
from subprocess import Popen
from typing import Any

from fsdp_tui.runner.bootstrap import PARENT, die_with_parent


class ExitReporter:
    """Writes starts and ends of ranks to a pipe; a thread waits for the ends."""

    def __init__(self, report_fd: int) -> None:
        self._report_fd = report_fd
        self._asked: set[int] = set()
        self._ranks: dict[int, tuple[int, Popen[bytes]]] = {}
        self._poll = select.poll()
        self._wake_read, self._wake_write = os.pipe()
        self._poll.register(self._wake_read, select.POLLIN)
        threading.Thread(target=self._watch, name="fsdp-tui-exits", daemon=True).start()

    def started(self, rank: int, process: Popen[bytes]) -> None:
        """A rank's process is there."""
        self._write(rank=rank, pid=process.pid)
        handle = os.pidfd_open(process.pid)
        self._ranks[handle] = (rank, process)
        self._poll.register(handle, select.POLLIN)
        os.write(self._wake_write, b"x")  # a poll under way does not see the new one

    def asked(self, process: Popen[bytes]) -> None:
        """torchrun is about to send this rank a signal."""
        self._asked.add(process.pid)

    def _watch(self) -> None:
        while True:
            ended = []
            for handle, _ in self._poll.poll():
                if handle == self._wake_read:
                    os.read(self._wake_read, 64)
                    continue
                self._poll.unregister(handle)
                os.close(handle)
                rank, process = self._ranks.pop(handle)
                ended.append((_exit_code(process), rank, process.pid))
            # Found together: the one that a signal killed is what made the others fail.
            for code, rank, pid in sorted(ended):
                self._write(rank=rank, code=code, asked=pid in self._asked)

    def _write(self, **fields: object) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone, and so will we be
            os.write(self._report_fd, json.dumps(fields).encode() + b"\n")


def _exit_code(process: Popen[bytes]) -> int:
    """The code of a process that has ended; torchrun's own poll may hold Popen's lock for a moment."""
    while (code := process.poll()) is None:
        time.sleep(0.001)
    return code


def watch_handlers(reporter: ExitReporter) -> None:
    """Makes torchrun's process handlers report."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    begin, end = SubprocessHandler.__init__, SubprocessHandler.close

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        env = kwargs.get("env") or args[2]
        reporter.started(int(env["RANK"]), self.proc)

    def close(self: Any, *args: Any, **kwargs: Any) -> None:
        reporter.asked(self.proc)
        end(self, *args, **kwargs)

    SubprocessHandler.__init__ = __init__  # type: ignore[method-assign]
    SubprocessHandler.close = close  # type: ignore[method-assign]


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="fsdp_tui.runner.agent")
    parser.add_argument("--nproc", type=int, required=True)
    parser.add_argument("--report-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    at = argv.index("--")
    options = parser.parse_args(argv[:at])
    die_with_parent(options.parent)
    os.set_inheritable(options.report_fd, False)
    os.environ[PARENT] = str(os.getpid())
    # One rank per process computes with one thread unless told otherwise; torchrun would say so at length.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from torch.distributed.run import main as torchrun

    watch_handlers(ExitReporter(options.report_fd))
    torchrun(
        [
            "--standalone",
            f"--nproc-per-node={options.nproc}",
            "--max-restarts=0",
            "--monitor-interval=0.1",
            "-m",
            "--",  # what follows is the script's: --n is no abbreviation of --nnodes
            "fsdp_tui.runner",
            *argv[at + 1 :],
        ]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
