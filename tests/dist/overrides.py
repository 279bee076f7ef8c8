"""What ranks do in the tests of overrides: wrap a model as a script would, under hooks that ask for something else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.nn.parallel
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from fsdp_tui.runner import structure
from fsdp_tui.runner.override import Refused, ScriptSharding
from fsdp_tui.telemetry.launch import Sharding
from tests.dist.trainings import Case, model, train_step

PLACES = {
    "torch.distributed.fsdp.fully_sharded_data_parallel": ("FullyShardedDataParallel", "__init__"),
    "torch.distributed.fsdp._fully_shard._fully_shard": ("", "fully_shard"),
    "torch.nn.parallel.distributed": ("DistributedDataParallel", "__init__"),
}


@dataclass
class Outcome:
    refused: str = ""
    own: str | None = None
    effective: str = ""
    units: list[str] = field(default_factory=list)
    shard_bytes: int = 0
    checkpointed: list[str] = field(default_factory=list)
    """Modules whose forward was replaced."""
    dtypes: set[str] = field(default_factory=set)
    detail: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


@contextmanager
def hooked(sharding: ScriptSharding) -> Iterator[None]:
    before = []
    for name, hook in sharding.hooks.items():
        module = sys.modules[name]
        kind, attribute = PLACES[name]
        owner = getattr(module, kind) if kind else module
        before.append((owner, attribute, getattr(owner, attribute)))
        hook(module)
    try:
        yield
    finally:
        for owner, attribute, original in before:
            setattr(owner, attribute, original)


def wrap_as(script: str, trained: nn.Module) -> nn.Module:
    """The ways in which scripts wrap."""
    fsdp1 = partial(torch.distributed.fsdp.FullyShardedDataParallel, device_id=torch.device("cpu"))
    # As a script has it that imports the function after the hook is in place.
    fully_shard = sys.modules["torch.distributed.fsdp._fully_shard._fully_shard"].fully_shard
    blocks: Any = trained.blocks
    if script == "fsdp1":
        return fsdp1(trained)
    if script == "fsdp1 policy":
        policy = partial(
            torch.distributed.fsdp.wrap.transformer_auto_wrap_policy, transformer_layer_cls={type(blocks[0])}
        )
        return fsdp1(trained, auto_wrap_policy=policy, use_orig_params=True)
    if script == "fsdp1 by hand":
        for at in range(len(blocks)):
            blocks[at] = fsdp1(blocks[at])
        return fsdp1(trained)
    if script == "ddp":
        return nn.parallel.DistributedDataParallel(trained)
    if script == "plain":
        return trained
    mesh = init_device_mesh("cpu", (1, dist.get_world_size())) if script == "fsdp2 hybrid" else None
    after = False if script == "fsdp2 kept" else None
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=after)
    fully_shard(trained, mesh=mesh, reshard_after_forward=after)
    return trained


def override(script: str, asked: dict[str, Any]) -> Outcome:
    """Wraps and trains three steps, or is refused."""
    sharding = ScriptSharding(frozenset(asked), Sharding(**asked))
    outcome = Outcome()
    try:
        with hooked(sharding):
            trained = wrap_as(script, model("odd"))
            sharding.before_forward([trained])
    except Refused as refused:
        outcome.refused = str(refused)
        return outcome
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    wrapped = structure.inspect(trained, "cpu")
    outcome.own, outcome.effective = sharding.own, wrapped.effective
    outcome.detail = structure.detail_of(trained, wrapped)
    outcome.units = [unit.name for unit in wrapped.units]
    outcome.shard_bytes = sum(unit.shard_bytes for unit in wrapped.units)
    outcome.checkpointed = [
        structure.unit_name(name) for name, module in trained.named_modules() if "forward" in vars(module)
    ]
    outcome.losses = [train_step(Case("any", "odd"), trained, optimizer, step) for step in range(3)]
    return outcome


def override_all(cases: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Outcome]:
    return {name: override(script, asked) for name, (script, asked) in cases.items()}
