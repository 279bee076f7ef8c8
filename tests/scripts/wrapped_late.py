"""The optimizer comes first; prepare() shards the model and gives the optimizer its new parameters."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from toy import Model, batch, close, criterion, report


def prepare(model, optimizer):
    names = {parameter: name for name, parameter in model.named_parameters()}
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    sharded = dict(model.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [sharded[names[parameter]] for parameter in group["params"]]
    return model, optimizer


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
dist.init_process_group("gloo")
model, optimizer = prepare(model, optimizer)
for step in range(1, 9):
    x, y = batch(step)
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    report(step, loss)
close()
