"""Each parameter has an optimizer of its own, which steps inside backward as soon as its gradient is there."""

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
optimizers = {parameter: torch.optim.AdamW([parameter], lr=1e-2) for parameter in model.parameters()}


def step_now(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_now)
for step in range(1, 9):
    x, y = batch(step)
    loss = criterion(model(x), y)
    loss.backward()
    report(step, loss)
close()
