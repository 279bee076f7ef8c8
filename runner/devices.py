"""Slow readings of this process's host and device, about once a second: memory, utilisation, power.

A reading that cannot be had is absent from the values and its reason is in `missing`.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil
import torch

Values = dict[str, int | float | None]


class Devices:
    """Reads one process's host and device. Made and used on the sender's thread; never touches a stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._process = psutil.Process()
        self._nvml: Any = None
        self._handle: Any = None
        self._nvml_missing = ""
        self._opened = False

    def read(self) -> tuple[Values, dict[str, str]]:
        """The readings that could be had, and why others could not."""
        values: Values = {"rss_bytes": self._process.memory_info().rss}
        missing: dict[str, str] = {}
        if self._device.type == "cuda":
            self._read_allocator(values)
            if not self._opened:
                self._opened = True
                self._open_nvml()
            if self._handle is None:
                missing["nvml"] = self._nvml_missing
            else:
                self._read_nvml(values, missing)
        return values, missing

    def _read_allocator(self, values: Values) -> None:
        stats = torch.cuda.memory_stats(self._device)
        values["allocated_bytes"] = stats.get("allocated_bytes.all.current")
        values["reserved_bytes"] = stats.get("reserved_bytes.all.current")
        values["retries"] = stats.get("num_alloc_retries")
        values["ooms"] = stats.get("num_ooms")

    def _open_nvml(self) -> None:
        """Finds torch's device in NVML by UUID: indices differ under CUDA_VISIBLE_DEVICES and in containers."""
        try:
            import pynvml
        except ImportError:
            self._nvml_missing = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            uuid = str(torch.cuda.get_device_properties(self._device).uuid)
            known = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(known)
            self._nvml = pynvml
        except (pynvml.NVMLError, AttributeError) as error:
            self._nvml_missing = str(error) or type(error).__name__

    def _read_nvml(self, values: Values, missing: dict[str, str]) -> None:
        nvml, handle = self._nvml, self._handle

        def memory() -> None:
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
            values["nvml_total_bytes"] = info.total
            mine = others = 0
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                used = process.usedGpuMemory
                if used is None:
                    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
                if process.pid == os.getpid():
                    mine += used
                else:
                    others += used
            if not mine:  # in a container NVML may name host pids, so nobody here is us
                raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)
            values["nvml_used_bytes"], values["nvml_others_bytes"] = mine, others

        def utilization() -> None:
            values["utilization_percent"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu

        def power() -> None:
            values["power_mw"] = nvml.nvmlDeviceGetPowerUsage(handle)

        def power_limit() -> None:
            values["power_limit_mw"] = nvml.nvmlDeviceGetEnforcedPowerLimit(handle)

        def temperature() -> None:
            values["temperature_c"] = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)

        def throttle() -> None:
            values["throttle_reasons"] = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)

        for name, reading in (
            ("nvml_used_bytes", memory),
            ("utilization_percent", utilization),
            ("power_mw", power),
            ("power_limit_mw", power_limit),
            ("temperature_c", temperature),
            ("throttle_reasons", throttle),
        ):
            try:
                reading()
            except nvml.NVMLError as error:
                missing[name] = str(error)


def device_name(device: torch.device) -> str:
    """What a person calls this device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def capacity_bytes(device: torch.device) -> int:
    """Memory of the device, or of the host for a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total
