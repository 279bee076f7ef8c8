"""The script that `benchmarks.overhead` launches: steps of the demo's training in pairs, watched and not, in one process.

A pair is two steps, one of each kind, in an order that alternates (so that drift cancels); the null control pairs two
unwatched steps in the same way. A step that is not watched does not even call `run.step`. Rank 0 prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext

import torch.distributed as dist
from torch import nn
from torch.optim import AdamW, Optimizer

from fsdp_tui.demo.data import Batches, read_text
from fsdp_tui.demo.model import build
from fsdp_tui.runner import shard, unwatched, watch
from fsdp_tui.runner.session import Run

WARM_UP = 6


def main(pairs: int) -> None:
    rank, world_size = 0, 1
    model: nn.Module = shard(build("tiny", 128, 0))
    if dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    batches = iter(
        Batches(read_text(None), batch=8, length=128, accumulate=1, seed=0, rank=rank, world_size=world_size)
    )
    figures: dict[str, list[tuple[float, float]]] = {"watched": [], "null": []}
    with watch(model, optimizer) as run:
        for _ in range(WARM_UP):
            one_step(model, optimizer, batches, run)
        for at in range(2 * pairs):
            kind = "watched" if at % 2 else "null"
            flipped = at // 2 % 2 == 1
            with_probes = (kind == "watched", False)
            order = with_probes[::-1] if flipped else with_probes
            times = [one_step(model, optimizer, batches, run if probed else None) for probed in order]
            first, second = times[::-1] if flipped else times
            figures[kind].append((first, second))
    if rank == 0:
        print("FIGURES " + json.dumps(figures), flush=True)


def one_step(model: nn.Module, optimizer: Optimizer, batches: object, run: Run | None) -> float:
    """Seconds of one step, from a barrier to its end; watched when there is a run."""
    tokens, targets = next(batches)[0]  # type: ignore[call-overload]
    with nullcontext() if run is not None else unwatched():
        if dist.is_initialized():
            dist.barrier()
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        float(loss)
        if run is not None:
            run.step(loss)
        return time.perf_counter() - began


main(int(sys.argv[1]))
