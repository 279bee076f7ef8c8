"""An optimizer that asks for the loss several times in one step."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from toy import Model, batch, close, criterion, report

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model())
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
x, y = batch(0)
for step in range(1, 7):
    evaluated = []

    def closure(evaluated=evaluated):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        evaluated.append(loss.detach())
        return loss

    first = optimizer.step(closure)
    assert len(evaluated) == 3
    report(step, first)
close()
