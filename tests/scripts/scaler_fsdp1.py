"""FSDP1's own gradient scaler around autocast, and its own clipping."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from toy import Block, Model, batch, close, criterion, report

dist.init_process_group("gloo")
torch.manual_seed(0)
model = FSDP(Model(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = ShardedGradScaler(device="cpu", init_scale=2.0**10)
for step in range(1, 7):
    x, y = batch(step)
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    model.clip_grad_norm_(1.0)
    scaler.step(optimizer)
    scaler.update()
    report(step, loss)
close()
