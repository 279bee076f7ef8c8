"""What this machine can train with, found without importing torch."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Machine:
    """`torch` is the installed version text, None when there is none; `accelerators` counts usable CUDA devices."""

    torch: str | None
    accelerators: int
    cores: int

    @property
    def torch_version(self) -> tuple[int, int] | None:
        match = re.match(r"(\d+)\.(\d+)", self.torch or "")
        return (int(match[1]), int(match[2])) if match else None

    @property
    def default_ranks(self) -> int:
        return self.accelerators or 2


@cache
def this_machine() -> Machine:
    """Reads the installed torch's metadata and asks NVML for devices; a CPU build of torch has none."""
    from importlib.metadata import PackageNotFoundError, version  # a tenth of the program's start, so not at the top

    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = None
    accelerators = 0
    if torch is not None and "+cpu" not in torch:
        accelerators = _cuda_devices()
    return Machine(torch=torch, accelerators=accelerators, cores=len(os.sched_getaffinity(0)))


def _cuda_devices() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        named = [part for part in visible.split(",") if part.strip()]
        return 0 if named[:1] == ["-1"] else len(named)
    try:
        import pynvml
    except ImportError:
        return 0
    try:
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:  # no driver, no library, no permission: no accelerator for us
        return 0
