import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from toy import Model as MyHugeModel
from toy import batch, close, criterion, report

dist.init_process_group("gloo")
rank = int(os.environ["LOCAL_RANK"])
torch.manual_seed(0)
loader = [batch(at) for at in range(4)]
num_epochs = 2

model = MyHugeModel()
model = FSDP(
    model,
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    device_id=torch.device("cpu"),
)

# The training loop is the SAME as DDP
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
step = 0
for epoch in range(num_epochs):  # noqa: B007  # as the guide has it
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        report(step, loss)
close()
