"""Two optimizers share a model and step one after the other in each iteration."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from toy import Model, batch, close, criterion, report

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
matrices = [p for p in model.parameters() if p.ndim > 1]
vectors = [p for p in model.parameters() if p.ndim == 1]
optimizers = [torch.optim.AdamW(matrices, lr=1e-2), torch.optim.SGD(vectors, lr=1e-1)]
for step in range(1, 9):
    x, y = batch(step)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    report(step, loss)
close()
