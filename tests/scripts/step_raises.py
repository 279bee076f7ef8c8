"""Two backwards per step; an optimizer step that raises, before it has changed anything, is caught and tried again."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from toy import Model, batch, close, criterion, report

PARTS, FAILS_IN = 2, 2

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
failures = []


def fails_once(*_: object) -> None:
    if step == FAILS_IN and not failures:
        failures.append(step)
        raise OSError("the disk of the offloaded states does not answer")


optimizer.register_step_pre_hook(fails_once)
for step in range(1, 9):
    total = torch.zeros(())
    for part in range(PARTS):
        x, y = batch(PARTS * step + part)
        loss = criterion(model(x), y) / PARTS
        loss.backward()
        total += loss.detach()
    try:
        optimizer.step()
    except OSError:
        optimizer.step()
    optimizer.zero_grad()
    report(step, total)
assert failures == [FAILS_IN]
close()
