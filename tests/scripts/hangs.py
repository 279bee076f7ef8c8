"""Rank 1 has one batch less and waits elsewhere: rank 0 hangs in the gather of its sixth step until gloo gives up."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from toy import Model, batch, criterion

dist.init_process_group("gloo", timeout=timedelta(seconds=6))
torch.manual_seed(0)
model = Model()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 7 - dist.get_rank()):
    x, y = batch(step)
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, flush=True)
time.sleep(60)
