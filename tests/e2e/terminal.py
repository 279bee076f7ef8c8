"""A real terminal for a test: the program behind a pseudo-terminal, its screen in an emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyte

KEYS = {
    "enter": "\r",
    "escape": "\x1b",
    "down": "\x1b[B",
    "up": "\x1b[A",
    "tab": "\t",
    "f5": "\x1b[15~",
    "ctrl+c": "\x03",
}
# The emulator knows no Kitty keyboard protocol and no private answers; it would print them.
UNKNOWN = re.compile(
    rb"\x1b\[[<>=?][0-9;]*[a-zA-Z]?u|\x1b\[\?[0-9;$]+[pu]|\x1b\[>[0-9;]*[a-zA-Z]|\x1bP.*?\x1b\\", re.DOTALL
)


TRUE_COLOUR = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}


class Terminal:
    """Starts a program on a terminal of this size; ends it when left."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        columns: int = 120,
        rows: int = 40,
        kind: Mapping[str, str] = TRUE_COLOUR,
    ) -> None:
        """`kind`: the variables by which the program knows what it can."""
        self.written = bytearray()
        """All that the program has sent."""
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._handle, child = pty.openpty()
        self._set_size(columns, rows)
        self.process = subprocess.Popen(
            command,
            env={**environment, **kind},
            cwd=directory,
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
        )
        self._child = child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._handle)
        os.close(self._child)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        self._screen.resize(rows, columns)
        self._set_size(columns, rows)
        self.process.send_signal(signal.SIGWINCH)  # the terminal is not its controlling one

    def type(self, *keys: str) -> None:
        """Presses keys: names of KEYS, or text as it is."""
        for key in keys:
            os.write(self._handle, KEYS.get(key, key).encode())
            # An escape must have been read alone; after another key a notice may be gone in a few seconds.
            self._settle(patience_s=10 if key == "escape" else 2)

    def _settle(self, quiet_s: float = 0.2, *, patience_s: float) -> None:
        """Reads until nothing comes for a moment, which also tells a lone escape from the start of a sequence.

        A program that waits for a processor says nothing either: it has settled when it has read what was typed and sleeps.
        """
        end = time.monotonic() + patience_s
        while time.monotonic() < end and (self._read(quiet_s) or self._is_busy()):
            pass

    def _is_busy(self) -> bool:
        (unread,) = struct.unpack("i", fcntl.ioctl(self._child, termios.FIONREAD, bytes(4)))
        try:
            states = [
                task.read_text().rpartition(")")[2].split()[0]
                for task in Path(f"/proc/{self.process.pid}/task").glob("*/stat")
            ]
        except OSError:  # it ends, or a thread of it
            return False
        return unread > 0 or "R" in states

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def cells(self) -> list[list[Any]]:
        """Rows of the emulator's characters, with their looks."""
        return [[self._screen.buffer[y][x] for x in range(self._screen.columns)] for y in range(self._screen.lines)]

    def _read(self, wait_s: float) -> bool:
        """Takes in what the program writes within this time; whether there was anything."""
        seen = False
        while select.select([self._handle], [], [], 0 if seen else wait_s)[0]:
            try:
                part = os.read(self._handle, 65536)
            except OSError:  # the program has closed its end
                return False
            self.written += part
            self._stream.feed(UNKNOWN.sub(b"", part))
            seen = True
        return seen

    def until(self, shown: str | Callable[[str], bool], patience_s: float = 120) -> str:
        """Waits until the screen shows it; returns the screen."""
        end = time.monotonic() + patience_s
        met = shown if callable(shown) else lambda text: re.search(shown, text) is not None
        while True:
            self._read(0.05)
            if met(self.text):
                return self.text
            assert time.monotonic() < end, f"not within {patience_s} s: {shown}\n{self.text}"

    def wait(self, patience_s: float = 60) -> int:
        """The exit code, when the program has ended of itself."""
        end = time.monotonic() + patience_s
        while self.process.poll() is None:
            self._read(0.05)
            assert time.monotonic() < end, f"still there after {patience_s} s\n{self.text}"
        return self.process.returncode
