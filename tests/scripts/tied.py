"""The head uses the embedding's weight."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from toy import Model, batch, close, criterion, report

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
model.head.weight = model.embed.weight
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 9):
    x, y = batch(step)
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    report(step, loss)
close()
