"""An evaluation without gradients between the steps, and one before the first."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from toy import Model, batch, close, criterion, report


@torch.no_grad()
def evaluate():
    model.eval()
    losses = [criterion(model(x), y) for x, y in (batch(100), batch(101))]
    model.train()
    return torch.stack(losses).mean()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
report(0, evaluate(), word="evaluated")
for step in range(1, 9):
    x, y = batch(step)
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    report(step, loss)
    if step % 2 == 0:
        report(step, evaluate(), word="evaluated")
close()
