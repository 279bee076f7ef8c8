import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from toy import Model, batch, close, criterion, report

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
for step in range(1, 9):
    x, y = batch(step)
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    report(step, loss)
close()
