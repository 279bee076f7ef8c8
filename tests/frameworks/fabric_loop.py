"""Lightning Fabric with accumulation: `fabric_loop.py fsdp` or `fabric_loop.py model_parallel` (FSDP2)."""

import sys
import time

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(15, 31), nn.ReLU(), nn.Linear(31, 15))


def parallelize(model, mesh):
    for block in model[1:3]:
        fully_shard(block, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])


def main():
    strategy = (
        FSDPStrategy(auto_wrap_policy={Block}, use_orig_params=True)
        if sys.argv[1] == "fsdp"
        else ModelParallelStrategy(parallelize, data_parallel_size=2, tensor_parallel_size=1)
    )
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    fabric.seed_everything(0)
    model = fabric.setup_module(nn.Sequential(nn.Linear(7, 15), Block(), Block(), nn.Linear(15, 3)))
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-2))
    for step in range(1, 9):
        total = torch.zeros(())
        for part in range(2):
            chance = torch.Generator().manual_seed(100 * step + 10 * part + fabric.global_rank)
            x, y = torch.randn(4, 7, generator=chance), torch.randn(4, 3, generator=chance)
            with fabric.no_backward_sync(model, enabled=part == 0):
                loss = nn.functional.mse_loss(model(x), y) / 2
                fabric.backward(loss)
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        mean = fabric.all_reduce(total, reduce_op="mean")
        if fabric.global_rank == 0:
            print("loss", step, mean.item().hex(), flush=True)
    time.sleep(0.3)  # gloo's thread may hold the last tensor a moment longer, and an exit meanwhile aborts


if __name__ == "__main__":
    main()
