"""Rank 1 fails in its fifth step."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from toy import Model, batch, criterion, report


def train(step):
    x, y = batch(step)
    loss = criterion(model(x), y)
    if dist.get_rank() == 1 and step == 5:
        raise ValueError("no such layer: blocks.7")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    report(step, loss)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 9):
    train(step)
