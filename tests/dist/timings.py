"""Trainings whose times are looked at: rank 1 is held up somewhere, and a run's state is made of what all ranks tell."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fsdp_tui.runner import torch_fsdp2
from fsdp_tui.runner.session import WatchedRun
from fsdp_tui.runner.sharding import no_sync, shard
from fsdp_tui.telemetry.messages import Hello, Message
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.telemetry.view import RunView
from tests.dist.trainings import Case, Mailbox, micro_batches, model

DELAY_S = 0.03
SLOW = 1
"""The rank that is held up."""


@dataclass(frozen=True)
class Timed:
    """One training, and where rank 1 sleeps: "" for nowhere, "input", or a phase of the module `where`."""

    case: Case
    held_up: str = ""
    where: str = "blocks.1.up"
    clip: bool = False
    asynchronous: bool = False
    """FSDP2: explicitly prefetched gathers run beside compute."""


def run(timed: Timed) -> list[Message]:
    """What this rank tells of the training."""
    case = timed.case
    dist.barrier()
    sharded = shard(model(case.dims), case.strategy, **dict(case.options))
    if timed.asynchronous:
        torch_fsdp2.unshard_asynchronously(sharded)
    if dist.get_rank() == SLOW and timed.held_up in ("forward", "backward"):
        _hold_up(sharded, timed)
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=1e-2)
    boxes: list[Mailbox] = []

    def connect(hello: Hello) -> Mailbox:
        boxes.append(Mailbox(hello))
        return boxes[-1]

    with WatchedRun(sharded, [optimizer], connect, None) as watched:
        for parts in watched.batches(_loader(timed)):
            optimizer.zero_grad()
            for at, (tokens, targets) in enumerate(parts):
                apart = case.skip_sync and at < len(parts) - 1
                with no_sync(sharded) if apart else contextlib.nullcontext():
                    loss = sharded(tokens, targets)
                    (loss / len(parts)).backward()
            if timed.clip:
                clip: Any = getattr(sharded, "clip_grad_norm_", None)
                clip(1.0) if clip else nn.utils.clip_grad_norm_(sharded.parameters(), 1.0)
            optimizer.step()
            assert watched.step(loss)
    return [boxes[0].hello, *boxes[0].messages]


def run_all(trainings: list[Timed]) -> list[list[Message]]:
    return [run(timed) for timed in trainings]


def picture(ranks: list[list[Message]]) -> RunView:
    """The run that these ranks' messages make."""
    state = RunState()
    queues = [iter(messages) for messages in ranks]
    while queues:
        for queue in list(queues):
            message = next(queue, None)
            if message is None:
                queues.remove(queue)
            else:
                state.apply(message)
    assert state.bad_records == 0
    return state.view()


def _loader(timed: Timed) -> Iterator[list[tuple[Tensor, Tensor]]]:
    for step in range(timed.case.steps):
        if timed.held_up == "input" and dist.get_rank() == SLOW:
            time.sleep(DELAY_S)
        yield micro_batches(timed.case, step)


def _hold_up(sharded: nn.Module, timed: Timed) -> None:
    """Sleeps inside the module, so that its unit is gathered already and not yet reduced."""
    module = next(module for name, module in sharded.named_modules() if _plain(name) == timed.where)

    def forward(*_: Any) -> None:
        time.sleep(DELAY_S)

    def backward(_: Any, __: Any, output: Tensor) -> None:
        output.register_hook(lambda *_: time.sleep(DELAY_S))  # type: ignore[no-untyped-call]

    module.register_forward_hook(forward if timed.held_up == "forward" else backward)


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in ("_fsdp_wrapped_module", "module"))
