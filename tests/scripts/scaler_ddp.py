"""GradScaler with a scale that overflows float16 at first: the first step is skipped."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from toy import Model, batch, close, criterion, report

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, backoff_factor=2.0**-12)
skipped = []
for step in range(1, 9):
    x, y = batch(step)
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = criterion(model(x), y)
    scale = scaler.get_scale()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() < scale:
        skipped.append(step)
    report(step, loss)
assert skipped == [1], skipped
close()
