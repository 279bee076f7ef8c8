"""Three backwards per step, and gradients are reduced in the last one only."""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from toy import Block, Model, batch, close, criterion, report

PARTS = 3

dist.init_process_group("gloo")
torch.manual_seed(0)
model = FSDP(Model(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 7):
    total = torch.zeros(())
    for part in range(PARTS):
        x, y = batch(PARTS * step + part)
        with model.no_sync() if part < PARTS - 1 else contextlib.nullcontext():
            loss = criterion(model(x), y) / PARTS
            loss.backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    report(step, total)
close()
