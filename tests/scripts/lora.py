"""Frozen weights with a small trainable part beside each."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from toy import Block, Model, batch, close, criterion, report


class Adapted(nn.Module):
    def __init__(self, base, rank=3):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model().requires_grad_(False)
for block in model.blocks:
    block.up, block.down = Adapted(block.up), Adapted(block.down)
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True, device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-1)
for step in range(1, 9):
    x, y = batch(step)
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    report(step, loss)
close()
