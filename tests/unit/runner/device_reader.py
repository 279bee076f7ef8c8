"""Reads devices in a process of its own, whose loader finds the stub of NVML: one request and one answer per line, as JSON.

`torch.cuda` is the part that cannot be real here: a stand-in gives the UUID and the allocator's statistics of the request.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import torch

from fsdp_tui.runner.devices import Devices


class Cuda:
    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request

    def get_device_properties(self, device: torch.device) -> Any:
        return SimpleNamespace(uuid=self.request["uuid"])

    def memory_stats_as_nested_dict(self, device: torch.device) -> dict[str, Any]:
        if self.request["allocator"] is None:
            raise RuntimeError("CUDA error: unspecified launch failure")
        stats: dict[str, Any] = {name: {"all": {"current": at}} for name, at in self.request["allocator"].items()}
        return stats | {"num_alloc_retries": 3, "num_ooms": 0}


def main() -> None:
    devices: Devices | None = None
    cuda = Cuda({})
    for line in sys.stdin:
        cuda.request = json.loads(line)
        os.environ["CUDA_VISIBLE_DEVICES"] = cuda.request["visible"]
        if devices is None or cuda.request["again"]:
            devices = Devices(torch.device("cuda", 0), cuda)
        print(json.dumps({"pid": os.getpid(), **asdict(devices.read())}), flush=True)


if __name__ == "__main__":
    main()
