import functools

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from toy import Block, batch, close, criterion, report
from toy import Model as MyHugeModel

dist.init_process_group("gloo")
torch.manual_seed(0)

model = FSDP(
    MyHugeModel(),
    auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    use_orig_params=True,
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
