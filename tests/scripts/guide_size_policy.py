import functools

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from toy import Model as MyHugeModel
from toy import batch, close, criterion, report

dist.init_process_group("gloo")
torch.manual_seed(0)

# Wrap any nn.Module submodule with > 900 params automatically
auto_wrap_policy = functools.partial(
    size_based_auto_wrap_policy,
    min_num_params=900,
)

model = FSDP(
    MyHugeModel(),
    auto_wrap_policy=auto_wrap_policy,
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    device_id=torch.device("cpu"),
)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 9):
    x, y = batch(step)
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    report(step, loss)
close()
