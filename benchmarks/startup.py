"""Time from the shell to `--help` and to the first screen, in a real pseudo-terminal, beside bare Python."""

from __future__ import annotations

import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

REPEATS = 9
FIRST_SCREEN = b"Runs"
"""Written on the run list, the first screen of a machine without runs."""


def run() -> Iterator[str]:
    """Medians over REPEATS starts."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "FSDP_TUI_HOME": f"{folder}/home",
            "FSDP_TUI_RUNTIME_DIR": f"{folder}/runtime",
            "TERM": "xterm-256color",
        }
        bare = [sys.executable, "-c", "pass"]
        program = [sys.executable, "-m", "fsdp_tui"]
        for name, seconds in (
            ("python -c pass", [_whole(bare, environment) for _ in range(REPEATS)]),
            ("fsdp-tui --help", [_whole([*program, "--help"], environment) for _ in range(REPEATS)]),
            ("first screen", [_until(program, FIRST_SCREEN, environment) for _ in range(REPEATS)]),
        ):
            yield f"{name:<16} median {statistics.median(seconds) * 1e3:6.0f} ms   worst {max(seconds) * 1e3:6.0f} ms"


def _whole(command: list[str], environment: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _until(command: list[str], words: bytes, environment: Mapping[str, str], patience_s: float = 20) -> float:
    """Seconds until the program has written the words to its terminal."""
    terminal, child = pty.openpty()
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True
    )
    os.close(child)
    seen = b""
    try:
        while time.perf_counter() - began < patience_s:
            if select.select([terminal], [], [], 0.05)[0]:
                seen += os.read(terminal, 65536)
                if words in seen:
                    return time.perf_counter() - began
        raise TimeoutError(f"{command} did not show {words!r} in {patience_s} s")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
