"""Slow readings of this process's host and device, about once a second: memory, utilisation, power.

A reading that cannot be had is None and its reason is in `missing`. On CUDA, bytes of one moment add up:

    reserved (torch) + non_torch (this process beside torch: context, NCCL) + others (other processes) = NVML's used

which is what nvidia-smi shows. NVML is the driver's library, through nvidia-ml-py (`pynvml`).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psutil
import torch

Value = int | float | None

THROTTLE = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons in words (nvml.h). Bit 0 is "idle": no clock is held back."""
IDLE = 0x1

ALLOCATOR_BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes")
"""Keys of `torch.cuda.memory_stats`; the last is free memory in blocks that cannot be given back."""
ALLOCATOR = (*ALLOCATOR_BYTES, "retries", "ooms", "largest_free_block_bytes")

NO_LARGEST = "torch tells it only in a snapshot of all blocks, which holds up the allocator"
NO_MIG_UTILIZATION = "MIG is on: NVML has it for the whole GPU only"
NOT_AMONG_THEM = "NVML names other pids than this process's, as in a container with pids of its own"


@dataclass
class Readings:
    """One reading of everything."""

    values: dict[str, Value] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Name in `values` -> why it is None."""
    throttle: list[str] | None = None
    others: list[tuple[int, int | None]] | None = None
    """Pid, as NVML names it, and bytes of the other processes on the device."""


class Cuda(Protocol):
    """What is read from `torch.cuda`."""

    def memory_stats_as_nested_dict(self, device: torch.device) -> dict[str, Any]: ...

    def get_device_properties(self, device: torch.device) -> Any: ...


class _Handles(NamedTuple):
    """`memory` is the device that torch has, maybe an instance of a GPU (MIG); `board` is the whole GPU."""

    memory: Any
    board: Any
    instance: bool


class Devices:
    """Reads one process's host and device. Made and used on the sender's thread; never touches a stream.

    It asks for nothing that waits: NVML's PCIe throughput, for one, samples for 20 ms.
    """

    def __init__(self, device: torch.device, cuda: Cuda = torch.cuda) -> None:
        self._device = device
        self._cuda = cuda
        self._process = psutil.Process()
        self._nvml: Any = None
        self._handles: _Handles | None = None
        self._closed = ""
        """Why NVML cannot be read; it is not asked again."""

    def read(self) -> Readings:
        """The readings that can be had, and why others cannot. One that fails takes no other with it."""
        readings = Readings({"rss_bytes": self._process.memory_info().rss})
        if self._device.type == "cuda":
            _attempt(readings, ALLOCATOR, self._allocator)
            self._read_nvml(readings)
        return readings

    # Torch's allocator

    def _allocator(self, readings: Readings) -> None:
        stats = self._cuda.memory_stats_as_nested_dict(self._device)  # the flat form costs several times as much
        if not stats:
            raise _NotAvailableError("torch has not used CUDA in this process")
        for name in ALLOCATOR_BYTES:
            readings.values[name] = stats[name]["all"]["current"]
        readings.values |= {"retries": stats["num_alloc_retries"], "ooms": stats["num_ooms"]}
        readings.values["largest_free_block_bytes"] = None
        readings.missing["largest_free_block_bytes"] = NO_LARGEST

    # NVML

    def _read_nvml(self, readings: Readings) -> None:
        if self._handles is None and not self._closed:
            try:
                import pynvml

                self._nvml = pynvml
                pynvml.nvmlInit()
                self._handles = _find(pynvml, str(self._cuda.get_device_properties(self._device).uuid))
            except ImportError:
                self._closed = "nvidia-ml-py is not installed"
            except Exception as error:  # noqa: BLE001  # the driver's, or of bindings that lack a function
                self._closed = _said(error)
        for names, reading in (
            (("nvml_total_bytes", "nvml_used_bytes"), self._device_memory),
            (("nvml_ours_bytes", "nvml_others_bytes", "non_torch_bytes"), self._processes),
            (("utilization_percent",), self._utilization),
            (("power_mw",), self._power),
            (("power_limit_mw",), self._power_limit),
            (("temperature_c",), self._temperature),
            (("throttle_reasons",), self._throttle),
            (("ecc_uncorrected",), self._ecc),
        ):
            _attempt(readings, names, reading)

    @property
    def _open(self) -> _Handles:
        if self._handles is None:
            raise _NotAvailableError(self._closed)
        return self._handles

    def _device_memory(self, readings: Readings) -> None:
        # Version 1 counts what the driver keeps for itself as used, and whether version 2's `used` does is documented both
        # ways; the difference of the other three is free of the question.
        info = self._nvml.nvmlDeviceGetMemoryInfo(self._open.memory, self._nvml.nvmlMemory_v2)
        readings.values["nvml_total_bytes"] = info.total
        readings.values["nvml_used_bytes"] = info.total - info.free - info.reserved

    def _processes(self, readings: Readings) -> None:
        listed = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._open.memory)
        ours = [process.usedGpuMemory for process in listed if process.pid == os.getpid()]
        if not ours:
            raise _NotAvailableError(NOT_AMONG_THEM if listed else "NVML names no process, as in a container")
        if None in ours:
            raise _NotAvailableError("NVML does not tell the memory of single processes here")
        reserved, used = readings.values.get("reserved_bytes"), readings.values.get("nvml_used_bytes")
        mine = sum(ours)
        if reserved is not None and mine < reserved:  # the pid of somebody else, in another namespace
            raise _NotAvailableError(NOT_AMONG_THEM)
        readings.values["nvml_ours_bytes"] = mine
        readings.others = [(p.pid, p.usedGpuMemory) for p in listed if p.pid != os.getpid()]
        # From the device's figure, not from the list: processes that NVML does not list take memory too.
        for name, whole, part, why in (
            ("nvml_others_bytes", used, mine, "nvml_used_bytes"),
            ("non_torch_bytes", mine, reserved, "reserved_bytes"),
        ):
            if whole is None or part is None:
                readings.values[name], readings.missing[name] = None, f"{why} is not available"
            else:
                readings.values[name] = max(0, int(whole - part))

    def _utilization(self, readings: Readings) -> None:
        if self._open.instance:
            raise _NotAvailableError(NO_MIG_UTILIZATION)
        readings.values["utilization_percent"] = self._nvml.nvmlDeviceGetUtilizationRates(self._open.board).gpu

    def _power(self, readings: Readings) -> None:
        readings.values["power_mw"] = self._nvml.nvmlDeviceGetPowerUsage(self._open.board)

    def _power_limit(self, readings: Readings) -> None:
        readings.values["power_limit_mw"] = self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._open.board)

    def _temperature(self, readings: Readings) -> None:
        nvml = self._nvml
        readings.values["temperature_c"] = nvml.nvmlDeviceGetTemperature(self._open.board, nvml.NVML_TEMPERATURE_GPU)

    def _throttle(self, readings: Readings) -> None:
        nvml, board = self._nvml, self._open.board
        try:
            bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(board)
        except (AttributeError, nvml.NVMLError_FunctionNotFound):  # its name before driver 535
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(board)
        readings.values["throttle_reasons"] = bits
        readings.throttle = throttle_words(bits)

    def _ecc(self, readings: Readings) -> None:
        """Uncorrected errors since the driver was loaded."""
        nvml = self._nvml
        readings.values["ecc_uncorrected"] = nvml.nvmlDeviceGetTotalEccErrors(
            self._open.board, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )


class _NotAvailableError(Exception):
    """A reading that is not to be had, with its reason."""


def _attempt(readings: Readings, names: tuple[str, ...], reading: Callable[[Readings], None]) -> None:
    try:
        reading(readings)
    except Exception as error:  # noqa: BLE001  # whatever a driver does, it costs these readings and no others
        for name in names:
            readings.values[name], readings.missing[name] = None, _said(error)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def throttle_words(bits: int) -> list[str]:
    """What holds the clocks back; empty for nothing. A bit that is not known is named by its number."""
    return [THROTTLE.get(1 << at, f"reason {1 << at:#x}") for at in range(64) if bits & ~IDLE & (1 << at)]


def _find(nvml: Any, uuid: str) -> _Handles:
    """NVML's device with torch's UUID. Indices differ: CUDA_VISIBLE_DEVICES renumbers, containers hide devices.

    Raises:
        NVMLError, _NotAvailableError: it cannot be found, or which instance of a GPU it is cannot be told.
    """
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    found = _by_uuid(nvml, f"GPU-{bare}")
    if found is None:
        found = _by_uuid(nvml, f"MIG-{bare}")
        if found is None:
            raise _NotAvailableError(f"NVML knows no device with torch's UUID {uuid}")
        return _Handles(found, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(found), instance=True)
    if not _mig_is_on(nvml, found):
        return _Handles(found, found, instance=False)
    # CUDA before 11.4 gives an instance the UUID of its GPU. A process sees one instance: the first that is visible.
    return _Handles(_visible_instance(nvml, found), found, instance=True)


def _by_uuid(nvml: Any, uuid: str) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
        return None


def _mig_is_on(nvml: Any, board: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(board)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return False


def _visible_instance(nvml: Any, board: Any) -> Any:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    instances = []
    for at in range(nvml.nvmlDeviceGetMaxMigDeviceCount(board)):
        try:
            instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, at))
        except nvml.NVMLError_NotFound:  # no instance at this index
            continue
    if visible.startswith("MIG-"):
        instances = [one for one in instances if str(nvml.nvmlDeviceGetUUID(one)).startswith(visible)]
    if len(instances) != 1:
        raise _NotAvailableError(
            f"MIG is on and {len(instances)} instances fit: name one by its UUID in CUDA_VISIBLE_DEVICES"
        )
    return instances[0]


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
