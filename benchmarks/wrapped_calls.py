"""The script that `benchmarks.wrappers` launches: what one call of each wrapper costs, how many there are in a step, what the
end of a step takes, and what the instrument adds to the process's memory. Rank 0 prints one JSON line.

Each wrapped function is counted below its wrapper. Once counted, the counter stands for the function and returns at once, so
that the wrapper in its place, with its probe on the real unit, is all that is timed.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from statistics import median
from types import SimpleNamespace
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW

from fsdp_tui.demo.data import Batches, read_text
from fsdp_tui.demo.model import build
from fsdp_tui.runner import shard, watch

UNITS = 50
UNWATCHED, SETTLE, STEPS = 20, 8, 40
REPEATS, CALLS = 5, 400


class Counted:
    """Counts the calls of one function; `quiet`, it does nothing else."""

    def __init__(self, owner: Any, name: str, counts: Counter[str]) -> None:
        self.owner, self.name, self.quiet = owner, name, False
        original = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if self.quiet:
                return None
            counts[name] += 1
            return original(*args, **kwargs)

        self.counted = counted
        setattr(owner, name, counted)

    def cost_ns(self, *args: Any, **kwargs: Any) -> float:
        """Of the wrapper, per call: what a call takes with it, less what it takes without; the least of several tries."""
        self.quiet = True
        with_it, without = (
            min(_per_call_ns(call, args, kwargs) for _ in range(REPEATS))
            for call in (getattr(self.owner, self.name), self.counted)
        )
        self.quiet = False
        return with_it - without


def _per_call_ns(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    began = time.perf_counter_ns()
    for _ in range(CALLS):
        call(*args, **kwargs)
    return (time.perf_counter_ns() - began) / CALLS


class Deep(nn.Module):
    """Many small units."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(UNITS))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return nn.functional.mse_loss(x, target)


def main(strategy: str, what: str) -> None:
    if what == "demo":
        model: nn.Module = shard(build("tiny", 128, 0), strategy)
    else:
        torch.manual_seed(0)
        model = shard(Deep(), strategy, wrap="modules:Linear")
    optimizer = AdamW(model.parameters(), lr=1e-3)
    batches = _batches(what)
    counts: Counter[str] = Counter()
    targets = [
        Counted(owner, name, counts) for owner, names in _targets(strategy) for name in names if hasattr(owner, name)
    ]
    for _ in range(UNWATCHED):
        _train(model, optimizer, next(batches))
    gc.collect()
    before = psutil.Process().memory_full_info().uss
    spent, ends = [], []
    with watch(model, optimizer) as run:
        watched: Any = run
        finish = watched._finish_step

        def timed(*args: Any) -> None:
            began = time.perf_counter_ns()
            finish(*args)
            ends.append(time.perf_counter_ns() - began)

        watched._finish_step = timed
        for step in range(SETTLE + STEPS):
            if step == SETTLE:
                counts.clear()
                ends.clear()
            began = time.perf_counter_ns()
            loss = _train(model, optimizer, next(batches))
            run.step(loss)
            spent.append(time.perf_counter_ns() - began)
        gc.collect()
        grown = psutil.Process().memory_full_info().uss - before
        per_step = {name: count / STEPS for name, count in counts.items()}
        looks = watched._looks.interval
        costs = _costs(watched, targets, strategy)
        dist.barrier()
    if dist.get_rank() == 0:
        figures = {
            "step_ns": median(spent[SETTLE:]),
            "calls": per_step,
            "plain_ns": costs[0],
            "looking_ns": costs[1],
            "looks_every": looks,
            "end_ns": median(ends),
            "grown_bytes": grown,
        }
        print("FIGURES " + json.dumps(figures), flush=True)


def _batches(what: str) -> Iterator[tuple[Tensor, Tensor]]:
    if what == "demo":
        rank, size = dist.get_rank(), dist.get_world_size()
        for parts in Batches(read_text(None), batch=8, length=128, accumulate=1, seed=0, rank=rank, world_size=size):
            yield parts[0]
    while True:
        yield torch.randn(16, 64), torch.randn(16, 64)


def _train(model: nn.Module, optimizer: AdamW, batch: tuple[Tensor, Tensor]) -> Tensor:
    optimizer.zero_grad()
    loss: Tensor = model(*batch)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def _targets(strategy: str) -> list[tuple[Any, tuple[str, ...]]]:
    from fsdp_tui.runner import torch_dist, torch_fsdp1, torch_fsdp2

    if strategy.startswith("fsdp2"):
        return [(dist, tuple(torch_dist.FUNCTIONS)), (torch_fsdp2._group_class(), torch_fsdp2.METHODS)]
    return [
        (dist, tuple(torch_dist.FUNCTIONS)),
        (torch_fsdp1._handle_class(), torch_fsdp1.METHODS),
        (torch_fsdp1._runtime(), torch_fsdp1.FUNCTIONS),
    ]


def _costs(run: Any, targets: list[Counted], strategy: str) -> list[dict[str, float]]:
    """Nanoseconds per call of each wrapper in a step whose memory is not looked at, and in one where it is."""
    owner = run._wrapped.units[-1].owner
    tensor = torch.zeros(64)
    found = []
    for looking in (False, True):
        run.probes.ledger.start_step(look=looking)
        costs = {}
        for target in targets:
            args: tuple[Any, ...] = (owner,)
            if target.owner is dist:
                args = (
                    ([tensor],)
                    if target.name == "all_gather"
                    else (tensor, tensor)[: 1 + (target.name != "all_reduce")]
                )
            elif target.name.startswith("_reduce_grad"):
                args = (None, owner)
            if target.name == "wait_for_unshard":
                owner._all_gather_result = SimpleNamespace(all_gather_work=None, all_gather_output=tensor)
            costs[target.name] = target.cost_ns(*args)
            if target.name == "wait_for_unshard":
                owner._all_gather_result = None
            run.probes.collectives.take()
        found.append(costs)
    run.probes.ledger.start_step(look=False)
    return found


main(sys.argv[1], sys.argv[2])
