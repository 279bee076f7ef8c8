"""A wider model takes the place of the first one, which is deleted."""

import gc

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from toy import Model, batch, close, criterion, report


def build(width):
    torch.manual_seed(width)
    model = Model(layers=3, width=width)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(first, last):
    for step in range(first, last + 1):
        x, y = batch(step)
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        report(step, loss)


dist.init_process_group("gloo")
model, optimizer = build(9)
train(1, 4)
del model, optimizer
gc.collect()
model, optimizer = build(21)
train(5, 10)
close()
