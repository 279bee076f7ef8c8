"""Two losses go through one torch.autograd.backward."""

import torch
import torch.distributed as dist
from torch.autograd import backward
from torch.distributed.fsdp import fully_shard
from toy import Model, batch, close, criterion, report

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 9):
    x, y = batch(step)
    logits = model(x)
    loss = criterion(logits, y)
    regular = 1e-3 * logits.square().mean()
    optimizer.zero_grad()
    backward([loss, regular])
    optimizer.step()
    report(step, loss.detach() + regular.detach())
close()
