"""Readings of a GPU through NVML's real Python bindings, against a stub of the driver's library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fsdp_tui.runner.devices import Devices, throttle_words

GIB = 1 << 30
UUID = "11111111-2222-3333-4444-55555555555{}"
INSTANCE = "MIG-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeee{}"
ALLOCATOR = {
    "allocated_bytes": 6 * GIB,
    "reserved_bytes": 8 * GIB,
    "active_bytes": 7 * GIB,
    "inactive_split_bytes": GIB,
}
NVML = {
    "nvml_total_bytes",
    "nvml_used_bytes",
    "nvml_ours_bytes",
    "nvml_others_bytes",
    "non_torch_bytes",
    "utilization_percent",
    "power_mw",
    "power_limit_mw",
    "temperature_c",
    "throttle_reasons",
    "ecc_uncorrected",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a libnvidia-ml.so.1 that is compiled here."""
    compiler = shutil.which("cc")
    if compiler is None:
        message = "no C compiler (cc), which the stub of NVML is compiled with"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_stub.c")
    soname = "libnvidia-ml.so.1"  # the bindings load it by this name
    subprocess.run(
        [compiler, "-Wall", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", folder / soname, source],
        check=True,
    )
    return folder


class Machine:
    """A process that reads devices, and the file that says what NVML tells it."""

    def __init__(self, library: Path, file: Path) -> None:
        self.file = file
        self.file.touch()
        environment = os.environ | {"LD_LIBRARY_PATH": str(library), "NVML_STUB": str(file)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.runner.device_reader"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def says(self, **lines: object) -> None:
        """Adds lines to the file: `gpu0__used=5` is "gpu0.used 5". The last line of a key counts."""
        with self.file.open("a") as file:
            file.writelines(f"{key.replace('__', '.')} {value}\n" for key, value in lines.items())

    def fails(self, function: str, code: int) -> None:
        self.says(**{f"fail__{function}": code})

    def read(
        self,
        uuid: str = UUID.format(0),
        *,
        visible: str = "",
        again: bool = False,
        allocator: dict[str, int] | None = ALLOCATOR,
    ) -> dict[str, Any]:
        """One reading; `again` is that of a process which has just started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"uuid": uuid, "visible": visible, "again": again, "allocator": allocator}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        with self._process:
            pass  # closes its stdin, which ends it


@pytest.fixture(scope="module")
def machine(library: Path) -> Iterator[Machine]:
    running = Machine(library, library / "says")
    yield running
    running.close()


@pytest.fixture
def two_gpus(machine: Machine) -> Machine:
    """Two GPUs of 80 GiB; this process has 9 GiB of the first and another 2."""
    machine.file.write_text("")
    machine.says(gpus=2)
    for gpu in range(2):
        machine.says(
            **{
                f"gpu{gpu}__uuid": f"GPU-{UUID.format(gpu)}",
                f"gpu{gpu}__total": 80 * GIB,
                f"gpu{gpu}__reserved": GIB // 2,
                f"gpu{gpu}__used": 11 * GIB,
                f"gpu{gpu}__processes": f"{machine.pid}:{9 * GIB} 7:{2 * GIB}",
                f"gpu{gpu}__utilization": 87,
                f"gpu{gpu}__power": 312_000,
                f"gpu{gpu}__power_limit": 700_000,
                f"gpu{gpu}__temperature": 61 + gpu,
                f"gpu{gpu}__throttle": 0,
                f"gpu{gpu}__ecc_uncorrected": 0,
            }
        )
    machine.read(again=True)
    return machine


def test_every_reading(two_gpus: Machine) -> None:
    """reserved + non_torch + others is what the device has in use: 8 + 1 + 2 of 11 GiB."""
    seen = two_gpus.read()
    values = seen["values"]
    assert {key: values[key] for key in ALLOCATOR} == ALLOCATOR
    assert (values["retries"], values["ooms"]) == (3, 0)
    assert (values["nvml_total_bytes"], values["nvml_used_bytes"]) == (80 * GIB, 11 * GIB)
    assert (values["nvml_ours_bytes"], values["nvml_others_bytes"]) == (9 * GIB, 2 * GIB)
    assert values["non_torch_bytes"] == GIB
    assert (values["utilization_percent"], values["temperature_c"]) == (87, 61)
    assert (values["power_mw"], values["power_limit_mw"]) == (312_000, 700_000)
    assert (values["throttle_reasons"], seen["throttle"], values["ecc_uncorrected"]) == (0, [], 0)
    assert seen["others"] == [[7, 2 * GIB]]
    assert values["rss_bytes"] > 0
    assert set(seen["missing"]) == {"largest_free_block_bytes"}
    assert values["largest_free_block_bytes"] is None
    assert set(values) >= NVML


def test_values_move(two_gpus: Machine) -> None:
    """What NVML says now, not what it said when it was opened; memory that no listed process has is others', too."""
    two_gpus.says(gpu0__used=15 * GIB, gpu0__throttle=0x44, gpu0__ecc_uncorrected=2, gpu0__utilization=0)
    seen = two_gpus.read()
    assert seen["values"]["nvml_others_bytes"] == 6 * GIB
    assert seen["throttle"] == ["power cap", "hardware thermal"]
    assert seen["values"]["throttle_reasons"] == 0x44
    assert (seen["values"]["ecc_uncorrected"], seen["values"]["utilization_percent"]) == (2, 0)


def test_throttle_reasons_in_words() -> None:
    """Idle holds nothing back; a bit of a newer driver has its number."""
    assert throttle_words(0x1) == []
    assert throttle_words(0xA1) == ["software thermal", "power brake"]
    assert throttle_words(1 << 40) == ["reason 0x10000000000"]


FAULTS = {
    "nvmlDeviceGetMemoryInfo_v2": {"nvml_total_bytes", "nvml_used_bytes", "nvml_others_bytes"},
    "nvmlDeviceGetComputeRunningProcesses_v3": {"nvml_ours_bytes", "nvml_others_bytes", "non_torch_bytes"},
    "nvmlDeviceGetUtilizationRates": {"utilization_percent"},
    "nvmlDeviceGetPowerUsage": {"power_mw"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_mw"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"throttle_reasons"},
    "nvmlDeviceGetTotalEccErrors": {"ecc_uncorrected"},
}
CODES = {3: "Not Supported", 4: "Insufficient Permissions", 15: "GPU is lost"}


@pytest.mark.parametrize("code", CODES)
def test_a_fault_costs_its_own_readings_only(two_gpus: Machine, code: int) -> None:
    """They are None with the driver's words; all others are there."""
    for function, lost in FAULTS.items():
        two_gpus.fails(function, code)
        seen = two_gpus.read()
        assert {name for name, value in seen["values"].items() if value is None} - {
            "largest_free_block_bytes"
        } == lost, function
        for name in lost:
            said = seen["missing"][name]
            assert CODES[code] in said or said == "nvml_used_bytes is not available", (function, name)
        two_gpus.fails(function, 0)
    assert set(two_gpus.read()["missing"]) == {"largest_free_block_bytes"}


def test_a_lost_gpu(two_gpus: Machine) -> None:
    """All of NVML is unknown while it lasts; what torch's allocator says stays."""
    for function in FAULTS:
        two_gpus.fails(function, 15)
    seen = two_gpus.read()
    assert {seen["values"][name] for name in NVML} == {None}
    assert {seen["missing"][name] for name in NVML} == {"GPU is lost"}
    assert seen["values"]["reserved_bytes"] == 8 * GIB
    assert (seen["throttle"], seen["others"]) == (None, None)


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetHandleByUUID"])
def test_nvml_that_does_not_open(two_gpus: Machine, function: str) -> None:
    two_gpus.fails(function, 4)
    seen = two_gpus.read(again=True)
    assert {seen["missing"][name] for name in NVML} == {"Insufficient Permissions"}
    assert seen["values"]["allocated_bytes"] == 6 * GIB


def test_no_library(library: Path, tmp_path: Path) -> None:
    """A machine without the driver's library: here one that cannot be loaded, whatever else is installed."""
    (tmp_path / "libnvidia-ml.so.1").touch()
    machine = Machine(tmp_path, tmp_path / "says")
    seen = machine.read()
    machine.close()
    assert {seen["missing"][name] for name in NVML} == {"NVML Shared Library Not Found"}
    assert seen["values"]["rss_bytes"] > 0


def test_a_torch_that_fails_costs_its_readings_only(two_gpus: Machine) -> None:
    """What is computed from them is unknown as well, and never a difference from 0."""
    seen = two_gpus.read(allocator=None)
    assert seen["values"]["reserved_bytes"] is None
    assert "launch failure" in seen["missing"]["reserved_bytes"]
    assert (seen["values"]["non_torch_bytes"], seen["values"]["nvml_others_bytes"]) == (None, 2 * GIB)
    assert seen["missing"]["non_torch_bytes"] == "reserved_bytes is not available"


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ("", "names no process"),
        ("7:1024 8:2048", "names other pids"),
        ("{pid}:1024 8:2048", "names other pids"),  # our number belongs to somebody who holds less than torch here
        ("{pid}:- 8:2048", "memory of single processes"),
    ],
)
def test_a_container_that_hides_processes(two_gpus: Machine, listed: str, words: str) -> None:
    """Who holds what is unknown; what the whole device holds is known."""
    two_gpus.says(gpu0__processes=listed.format(pid=two_gpus.pid))
    seen = two_gpus.read()
    for name in ("nvml_ours_bytes", "nvml_others_bytes", "non_torch_bytes"):
        assert seen["values"][name] is None
        assert words in seen["missing"][name]
    assert seen["values"]["nvml_used_bytes"] == 11 * GIB
    assert seen["others"] is None


@pytest.mark.parametrize("visible", ["1", "GPU-1111", f"GPU-{UUID.format(1)}", "1,0"])
def test_torch_s_device_is_found_by_uuid(two_gpus: Machine, visible: str) -> None:
    """CUDA_VISIBLE_DEVICES makes NVML's second GPU torch's first."""
    seen = two_gpus.read(UUID.format(1), visible=visible, again=True)
    assert seen["values"]["temperature_c"] == 62
    assert two_gpus.read(f"GPU-{UUID.format(0)}", again=True)["values"]["temperature_c"] == 61


def test_a_device_that_nvml_does_not_know(two_gpus: Machine) -> None:
    seen = two_gpus.read(UUID.format(9), again=True)
    assert {seen["missing"][name] for name in NVML} == {f"NVML knows no device with torch's UUID {UUID.format(9)}"}


def _with_instances(machine: Machine, count: int) -> None:
    machine.says(gpu0__mig_mode=1)
    for at in range(count):
        machine.says(
            **{
                f"gpu0.mig{at}__uuid": INSTANCE.format(at),
                f"gpu0.mig{at}__total": 20 * GIB,
                f"gpu0.mig{at}__used": (9 + at) * GIB,
                f"gpu0.mig{at}__processes": f"{machine.pid}:{9 * GIB}",
            }
        )


@pytest.mark.parametrize(
    ("uuid", "visible"),
    [
        (INSTANCE.format(1).removeprefix("MIG-"), ""),  # torch names the instance
        (UUID.format(0), INSTANCE.format(1)),  # an older CUDA names its GPU
        (UUID.format(0), f"{INSTANCE.format(1)},{INSTANCE.format(0)}"),
    ],
)
def test_an_instance_of_a_gpu(two_gpus: Machine, uuid: str, visible: str) -> None:
    """MIG: memory and processes are the instance's, power and clocks the board's, and utilisation is not to be had."""
    _with_instances(two_gpus, 2)
    seen = two_gpus.read(uuid, visible=visible, again=True)
    values = seen["values"]
    assert (values["nvml_total_bytes"], values["nvml_used_bytes"]) == (20 * GIB, 10 * GIB)
    assert (values["non_torch_bytes"], values["nvml_others_bytes"]) == (GIB, GIB)
    assert (values["power_mw"], values["temperature_c"]) == (312_000, 61)
    assert values["utilization_percent"] is None
    assert seen["missing"]["utilization_percent"] == "MIG is on: NVML has it for the whole GPU only"


def test_the_only_instance_needs_no_name(two_gpus: Machine) -> None:
    """With two of them nothing is guessed."""
    _with_instances(two_gpus, 1)
    assert two_gpus.read(again=True)["values"]["nvml_total_bytes"] == 20 * GIB
    _with_instances(two_gpus, 2)
    assert "MIG is on and 2 instances fit" in two_gpus.read(again=True)["missing"]["nvml_total_bytes"]


def test_an_old_driver_has_other_names(two_gpus: Machine) -> None:
    """Clocks' event reasons were throttle reasons before; 13 is what the bindings say of a symbol that is not there."""
    two_gpus.says(gpu0__throttle=4)
    two_gpus.fails("nvmlDeviceGetCurrentClocksEventReasons", 13)
    assert two_gpus.read()["throttle"] == ["power cap"]


def test_a_cpu_has_no_gpu_readings() -> None:
    """Nothing is missing where nothing is expected."""
    readings = Devices(torch.device("cpu")).read()
    assert set(readings.values) == {"rss_bytes"}
    assert (readings.missing, readings.throttle, readings.others) == ({}, None, None)
