"""DDP's times: what is said of them where they cannot be read."""

from __future__ import annotations

from types import SimpleNamespace

from fsdp_tui.runner import torch_ddp
from fsdp_tui.runner.clocks import HostClock
from fsdp_tui.runner.collectives import NOT_KNOWN, Collectives


class Logger:
    """Of a wrapper that took `times` in its last backward."""

    def __init__(self, **times: int) -> None:
        self.times = times

    def set_runtime_stats_and_log(self) -> None: ...

    def _get_ddp_logging_data(self) -> SimpleNamespace:
        return SimpleNamespace(ints_map=self.times)


def wrapper(**times: int) -> SimpleNamespace:
    return SimpleNamespace(logger=Logger(**times), _set_ddp_runtime_logging_sample_rate=lambda rate: None)


def test_why_buckets_have_no_times() -> None:
    """Reading DDP's timers would wait for a GPU; another torch may lack a name."""
    assert torch_ddp.check_times(wrapper(), "cpu") == torch_ddp.TOGETHER
    assert "waits for the device" in torch_ddp.check_times(wrapper(), "cuda")
    without_rate = SimpleNamespace(logger=Logger())
    assert "_set_ddp_runtime_logging_sample_rate" in torch_ddp.check_times(without_rate, "cpu")
    without_log = SimpleNamespace(logger=object(), _set_ddp_runtime_logging_sample_rate=None)
    assert "set_runtime_stats_and_log" in torch_ddp.check_times(without_log, "cpu")


def test_what_is_left_when_gradients_are_there_is_exposed() -> None:
    """100 ns of all-reduces, 70 of them beside the backward; not sampled is not known."""
    told = wrapper(backward_comm_time=100, backward_compute_comm_overlap_time=70)
    assert torch_ddp.reduction_times(told) == (100, 30)
    assert torch_ddp.reduction_times(wrapper()) is None


def test_backwards_of_a_step_add_up() -> None:
    """Two that were timed; one that was not makes the sum unknown. The next step begins without them."""
    calls = Collectives(HostClock(), {}, on_cpu=True)
    calls._group_index[id(None)] = 0  # the default group, of no process group here
    for times in ((100, 30), (50, 20)):
        calls.buckets_reduced([700, 300], times)
    taken = calls.take()
    assert taken.reductions_ns == (150, 50)
    assert taken.columns()["nbytes"] == [700, 300, 700, 300]
    calls.buckets_reduced([700], (100, 30))
    calls.buckets_reduced([700], None)
    assert calls.take().reductions_ns == (NOT_KNOWN, NOT_KNOWN)
    assert calls.take().reductions_ns == (NOT_KNOWN, NOT_KNOWN)
