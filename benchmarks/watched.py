"""The dashboard as a person has it: `fsdp-tui attach` on a terminal of its own; what it costs, sends and answers."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import time
from fcntl import ioctl
from termios import TIOCSWINSZ
from types import TracebackType
from typing import NamedTuple, Self

import psutil

SYNC_ASKED, SYNC_GIVEN = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
"""A program asks for frames that are shown whole, and the terminal has them."""
FRAME_ENDS = b"\x1b[?2026l"


class Cost(NamedTuple):
    """Of some seconds."""

    share: float
    """Of a core, all threads together."""
    bytes_per_s: float
    """To the terminal."""
    frames_per_s: float


class Watched:
    """The dashboard on a run of this machine. Nothing of it is changed: what it costs is counted from outside."""

    def __init__(self, run_id: str, size: tuple[int, int]) -> None:
        self._terminal, child = pty.openpty()
        ioctl(child, TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        environment.pop("NO_COLOR", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fsdp_tui", "attach", run_id],
            env=environment,
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
        )
        os.close(child)
        self._usage = psutil.Process(self._process.pid)
        self._written = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._terminal)

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self, seconds: float) -> int:
        """Reads as a terminal does; returns how many bytes came."""
        end_s, count = time.monotonic() + seconds, 0
        while (left_s := end_s - time.monotonic()) > 0:
            count += self._read(left_s)
        return count

    def _read(self, wait_s: float) -> int:
        if not select.select([self._terminal], [], [], max(0.0, wait_s))[0]:
            return 0
        try:
            part = os.read(self._terminal, 1 << 16)
        except OSError:
            part = b""
        if not part:
            raise RuntimeError(f"the dashboard has ended: {bytes(self._written[-2000:]).decode(errors='replace')}")
        if SYNC_ASKED in part:
            os.write(self._terminal, SYNC_GIVEN)
        self._written += part
        return len(part)

    def until(self, words: str, patience_s: float = 30) -> None:
        """Waits until it has written these words since the last key, and the frame that has them."""
        looked, wanted, end_s = 0, words.encode(), time.monotonic() + patience_s
        while (at := self._written.find(wanted, looked)) < 0 or self._written.find(FRAME_ENDS, at) < 0:
            looked = max(0, len(self._written) - len(wanted)) if at < 0 else at
            if not self._read(end_s - time.monotonic()) and time.monotonic() > end_s:
                raise TimeoutError(
                    f"not within {patience_s:g} s: {words!r}; the last that came is "
                    f"{bytes(self._written[-2000:]).decode(errors='replace')!r}"
                )

    def answered(self, key: str, words: str) -> float:
        """Presses a key; seconds until the frame that has these words is written whole."""
        self._written.clear()
        began_s = time.perf_counter()
        os.write(self._terminal, key.encode())
        self.until(words)
        return time.perf_counter() - began_s

    def cost(self, seconds: float) -> Cost:
        """What it takes from now on."""
        self._written.clear()
        before, began_s = self._usage.cpu_times(), time.perf_counter()
        count = self.read(seconds)
        after, wall_s = self._usage.cpu_times(), time.perf_counter() - began_s
        spent_s = after.user + after.system - before.user - before.system
        return Cost(spent_s / wall_s, count / wall_s, self._written.count(FRAME_ENDS) / wall_s)
