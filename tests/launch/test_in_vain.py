"""Scripts whose ranks train in vain, or by means that are not covered: each is told so, by name."""

from __future__ import annotations

from pathlib import Path

from fsdp_tui.telemetry.recording import load_state
from fsdp_tui.telemetry.view import RunView, Verdict
from tests.launch.conftest import Launch, Launched

MODEL = """\
import time

import torch
import torch.distributed as dist
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
PARAMETERS = 16 * 32 + 32 + 32 * 16 + 16
"""
PARAMETERS = 16 * 32 + 32 + 32 * 16 + 16
LOOP = """\
for step in range(22):
    model(torch.ones(4, 16)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NO_GROUP = MODEL + "optimizer = torch.optim.AdamW(model.parameters())\n" + LOOP
"""As `accelerate launch` without a configuration: several processes that never meet."""
MADE_BEFORE = f"""\
{MODEL}
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
optimizer = torch.optim.AdamW(model.parameters())
fully_shard(model)
{LOOP}
time.sleep(0.3)
dist.destroy_process_group()
"""
NO_OPTIMIZER = f"""\
{MODEL}
for step in range(3):
    model(torch.ones(4, 16)).mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
"""
ENGINE = """\
import torch


class DeepSpeedEngine:
    def __init__(self, model):
        self.model = model
        self.flat = torch.nn.Parameter(torch.cat([p.detach().flatten() for p in model.parameters()]))
        self.optimizer = torch.optim.SGD([self.flat], lr=0.1)

    def train(self, x):
        self.model(x).mean().backward()
        self.flat.grad = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        self.optimizer.step()
        self.model.zero_grad()
"""
ELSEWHERE = f"""\
{MODEL}
from deepspeed.runtime.engine import DeepSpeedEngine

engine = DeepSpeedEngine(model)
for step in range(4):
    engine.train(torch.ones(4, 16))
"""


def _ended(run: Launched) -> RunView:
    assert run.wait() == 0
    return load_state(run.paths.recording).view()


def _verdict(run: RunView, kind: str) -> Verdict:
    return next(verdict for verdict in run.verdicts if verdict.kind == kind)


def test_ranks_that_never_meet(launch: Launch) -> None:
    """Each trains alone, and thinks so: the number of ranks is the launch's word."""
    run = _ended(launch(NO_GROUP))
    verdict = _verdict(run, "ranks_apart")
    assert (verdict.severity, verdict.expected, verdict.measured) == ("bad", 4 * PARAMETERS, 0)
    assert verdict.what.startswith("2 ranks train 2 models")
    assert "there is no process group" in verdict.reason
    assert run.verdicts[0] == verdict


def test_an_optimizer_that_was_made_before_wrapping(launch: Launch) -> None:
    """FSDP2 has made other parameters of those it has; its loss never moves."""
    verdict = _verdict(_ended(launch(MADE_BEFORE)), "trains_nothing")
    assert (verdict.severity, verdict.expected, verdict.measured) == ("bad", PARAMETERS, 0)
    assert "made before the model was wrapped" in verdict.reason
    assert "for 20 steps" in verdict.reason


def test_a_script_without_an_optimizer(launch: Launch) -> None:
    """No step is seen, and it is said what would be one."""
    verdict = _verdict(_ended(launch(NO_OPTIMIZER)), "not_watched")
    assert verdict.severity == "note"
    assert "no optimizer of torch.optim stepped" in verdict.reason
    assert "with watch(model, optimizer) as run" in verdict.next


def test_a_library_that_shards_by_itself(launch: Launch, places: Path) -> None:
    """What it is; a stand-in for it here, which trains a flat copy as the real one does."""
    package = places / "deepspeed" / "runtime"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "engine.py").write_text(ENGINE)
    run = _ended(launch(ELSEWHERE))
    assert run.steps
    verdict = _verdict(run, "not_covered")
    assert verdict.severity == "note"
    assert verdict.what.startswith("DeepSpeed shards by means of its own")
