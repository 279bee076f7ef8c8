"""Trainings in which something is wrong, and healthy ones of every strategy, as ranks of a test world run them."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.checkpoint import checkpoint

from fsdp_tui.demo.model import GPT, Shape
from fsdp_tui.runner import looks
from fsdp_tui.runner.session import WatchedRun
from fsdp_tui.runner.sharding import no_sync, shard
from fsdp_tui.telemetry.messages import Hello, Message
from tests.dist.trainings import Mailbox

SHAPE, CONTEXT, BATCH = Shape(3, 32, 2), 16, 4
LR = 1e-3
NAN_AT, NAN_ON = 12, 1
"""Step and rank of the first loss that is no number."""
SPIKE_AT = 25
INPUT_S = 0.1
LATE_S, LATE_ON = 0.1, 1
"""How long that rank sleeps in the forward of its last block."""
COMPUTE_S = 0.1
"""How long all ranks do in a training that computes for long: what a busy machine adds to that is little."""
LEAK_BYTES = 1 << 20


@dataclass(frozen=True)
class Training:
    """One training: its strategy ("" leaves the model as it is), and what goes wrong in it, "" for nothing."""

    strategy: str
    trouble: str = ""
    steps: int = 6
    options: tuple[tuple[str, Any], ...] = ()
    accumulate: int = 1
    skip_sync: bool = False


class Around(nn.Module):
    """Recomputes a module that may be a unit: its forward runs once more in backward."""

    def __init__(self, inner: nn.Module, *, reentrant: bool = True) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return out


class Shared(GPT):
    """Its first block is called once more after the last."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        self.blocks.append(self.blocks[0])
        try:
            return super().forward(tokens, targets)
        finally:
            del self.blocks[-1]


class Unused(GPT):
    """Its middle block is never called."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        blocks = self.blocks
        self.blocks = nn.ModuleList([blocks[0], *blocks[2:]])
        try:
            return super().forward(tokens, targets)
        finally:
            self.blocks = blocks


MODELS: dict[str, type[GPT]] = {"shared block": Shared, "unused block": Unused}


def run_all(trainings: list[Training]) -> list[list[Message]]:
    return [run(training) for training in trainings]


def run(training: Training) -> list[Message]:
    """What this rank tells of the training."""
    gc.collect()  # what the last one has left would be this one's tensors outside, and on one rank sooner than on another
    dist.barrier()
    torch.manual_seed(0)
    trouble = training.trouble
    model = MODELS.get(trouble, GPT)(SHAPE, CONTEXT)
    if trouble == "late rank" and dist.get_rank() == LATE_ON:
        model.blocks[-1].register_forward_pre_hook(lambda *_: time.sleep(LATE_S))
    if trouble == "long compute":
        model.blocks[-1].register_forward_pre_hook(lambda *_: time.sleep(COMPUTE_S))
    early = torch.optim.AdamW(model.parameters(), lr=LR)
    wrapped = _wrapped(model, training)
    optimizer = early if trouble == "made before" else torch.optim.AdamW(wrapped.parameters(), lr=LR)
    boxes: list[Mailbox] = []

    def connect(hello: Hello) -> Mailbox:
        boxes.append(Mailbox(hello))
        return boxes[-1]

    budget = looks.BUDGET
    looks.BUDGET = (
        1.0 if trouble in ("leak", "long compute") else budget
    )  # every step, so that a short run has enough of them
    watched = WatchedRun(wrapped, [optimizer], connect, None)
    kept: list[Tensor] = []
    try:
        with watched:
            for step, parts in enumerate(watched.batches(_loader(training)), start=1):
                loss = _step(training, wrapped, optimizer, step, parts)
                if trouble == "leak":  # such as predictions that wait for a metric
                    kept.append(torch.ones(LEAK_BYTES // 4))
                assert watched.step(loss.detach())
    finally:
        looks.BUDGET = budget
    del kept, watched, wrapped, optimizer, early, model
    gc.collect()
    return [boxes[0].hello, *boxes[0].messages]


def _wrapped(model: GPT, training: Training) -> nn.Module:
    if not training.strategy:
        return model
    if training.trouble != "recomputed units":
        return shard(model, training.strategy, **dict(training.options))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole: dict[str, Any] = {"device_mesh": mesh, "device_id": torch.device("cpu"), "use_orig_params": True}
    if training.strategy.startswith("fsdp1"):
        model.blocks = nn.ModuleList(Around(FullyShardedDataParallel(block, **whole)) for block in model.blocks)
        return FullyShardedDataParallel(model, **whole)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    model.blocks = nn.ModuleList(Around(block) for block in model.blocks)
    fully_shard(model, mesh=mesh)
    return model


def _step(
    training: Training,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    parts: list[tuple[Tensor, Tensor]],
) -> Tensor:
    """Trains one step and gives its loss."""
    trouble = training.trouble
    optimizer.zero_grad()
    loss = torch.zeros(())
    for at, (tokens, targets) in enumerate(parts):
        last = at == len(parts) - 1
        apart = (training.skip_sync and not last) or trouble == "never reduced"
        with no_sync(model) if apart else contextlib.nullcontext():
            loss = model(tokens, targets)
            if trouble == "twice forward":
                loss = (loss + model(tokens, targets)) / 2
            if trouble == "not a number" and step >= NAN_AT and dist.get_rank() == NAN_ON:
                loss = loss * math.nan
            (loss / len(parts)).backward()
    if trouble == "spike":
        for group in optimizer.param_groups:
            group["lr"] = 1.0 if step == SPIKE_AT - 1 else LR
    optimizer.step()
    if trouble == "evaluates" or (trouble == "evaluates at times" and step % 4 == 1):
        with torch.no_grad():
            model(*parts[0])
    return loss


def _loader(training: Training) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """This rank's parts of each step's batch: a text that can be learned, so that losses fall and differ little."""
    for step in range(training.steps):
        if training.trouble == "slow input":
            time.sleep(INPUT_S)
        chance = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        begins = torch.randint(0, 256, (training.accumulate * BATCH, 1), generator=chance)
        text = (begins + torch.arange(CONTEXT + 1)) % 256
        parts = text.view(training.accumulate, BATCH, CONTEXT + 1)
        yield [(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) for rows in parts]
