"""What the check of a GPU does where there is none, and that it fails on a single byte."""

from __future__ import annotations

import sys

import pytest
import torch
from benchmarks import gpu_check

from fsdp_tui.telemetry.messages import CATEGORIES, Step


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and no failure."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    assert gpu_check.main() == 0
    assert capsys.readouterr().out == "gpu_check: not run: this torch sees no CUDA device\n"


@pytest.mark.parametrize("off", [0, 1])
def test_bytes_are_to_be_equal(off: int) -> None:
    column = [{"param_shard": 700, "cache": 300}.get(name, 0) for name in CATEGORIES]
    step = Step(0, 1, 2, 0, 10, [], None, None, [*column, 700], [*column, 900], "backward", -1, 0, 0, looked_step=2)
    rows = list(gpu_check._memory("fsdp1", [step], {2: gpu_check.Seen(700 + off, 1_000 + off, 900 + off)}))
    assert [row.holds for row in rows] == [not off, not off, not off, True]
    assert ("FAILED" in "".join(gpu_check.written(rows))) == bool(off)
