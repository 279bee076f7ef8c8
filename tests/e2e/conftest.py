"""The program as a person starts it: the installed command, in places of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAM = [sys.executable, "-m", "fsdp_tui"]


@dataclass(frozen=True)
class Program:
    """Runs `fsdp-tui` with its own home."""

    environment: Mapping[str, str]
    directory: Path

    def __call__(self, *words: str, code: int | None = 0, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Any exit code is right if `code` is None."""
        done = subprocess.run(
            [*PROGRAM, *words],
            env=dict(self.environment),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert code in (None, done.returncode), f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *words: str, **kwargs: Any) -> Any:
        """What the command says with --json; our options come before a script's."""
        return json.loads(self(words[0], "--json", *words[1:], **kwargs).stdout)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """In the background; what it prints is not kept."""
        return subprocess.Popen(
            [*PROGRAM, *words],
            env=dict(self.environment),
            cwd=self.directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def program_in(folder: Path) -> Program:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FSDP_TUI_")}
    environment |= {
        "FSDP_TUI_HOME": str(folder / "home"),
        "FSDP_TUI_RUNTIME_DIR": str(folder / "live"),
        "OMP_NUM_THREADS": "1",
    }
    (folder / "work").mkdir()
    return Program(environment, folder / "work")


@pytest.fixture(scope="module")
def fsdp_tui(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """One home for all tests of a module: launches cost seconds."""
    return program_in(tmp_path_factory.mktemp("fsdp-tui"))
