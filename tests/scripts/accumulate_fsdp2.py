"""Two backwards per step of sums over tokens, not of means; gradients are reduced in the second one only."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from toy import BATCH, LENGTH, Model, batch, close, criterion, report

PARTS = 2

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
fully_shard([*model.blocks])
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(1, 7):
    total = torch.zeros(())
    for part in range(PARTS):
        model.set_requires_gradient_sync(part == PARTS - 1)
        x, y = batch(PARTS * step + part)
        loss = criterion(model(x), y) * BATCH * LENGTH
        loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    optimizer.zero_grad()
    report(step, total)
close()
