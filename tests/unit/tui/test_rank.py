"""One rank in full, as text."""

from __future__ import annotations

from fsdp_tui.telemetry.messages import Gauge
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.tui.screens.rank import write_rank

GIB = 2**30


def _written(gauge: Gauge) -> list[str]:
    state = RunState()
    state.apply(gauge)
    return ["".join(text for text, _ in row).rstrip() for row in write_rank(state.view().ranks[0], 100)]


def test_readings_of_a_gpu() -> None:
    """Each in the unit that a person uses, throttle reasons in words, others by their pids."""
    values: dict[str, int | float | None] = {
        "reserved_bytes": 8 * GIB,
        "power_mw": 312_000,
        "throttle_reasons": 0x44,
        "ecc_uncorrected": 0,
    }
    lines = _written(Gauge(0, 1, values, {}, ["power cap", "hardware thermal"], [(7, 2 * GIB), (9, None)]))
    for line in (
        f"reserved_bytes          {'8,589,934,592':>18}  8.00 GiB",
        f"power_mw                {'312,000':>18}  312 W",
        f"throttle_reasons        {'68':>18}  power cap, hardware thermal",
        f"ecc_uncorrected         {'0':>18}",
        "other processes         7 (2.00 GiB), 9 (–)",
    ):
        assert line in lines


def test_nothing_that_holds_the_clock_back_is_said() -> None:
    """Known to be none, which is not unknown."""
    assert f"throttle_reasons        {'0':>18}  none" in _written(Gauge(0, 1, {"throttle_reasons": 0}, {}, []))


def test_readings_with_one_reason_have_it_once() -> None:
    """No reading is listed twice, as unknown and as missing."""
    names = ("nvml_total_bytes", "power_mw")
    missing = dict.fromkeys(names, "GPU is lost") | {"utilization_percent": "Not Supported"}
    lines = _written(Gauge(0, 1, dict.fromkeys(missing), missing))
    assert lines[-3:] == [
        "nvml_total_bytes, power_mw",
        "                        not available: GPU is lost",
        "utilization_percent     not available: Not Supported",
    ]
