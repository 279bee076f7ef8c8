"""Two ranks that nothing connects: each trains a model of its own."""

import torch
import torch.distributed as dist
from toy import Model, batch, close, criterion, report

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 9):
    x, y = batch(step)
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    report(step, loss)
close()
