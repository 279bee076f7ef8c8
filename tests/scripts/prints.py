"""Writes to stdout in every way but lines of text."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from toy import Model, batch, close, criterion, report

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
sys.stdout.buffer.write(b"\x00\xff\r\n\x1b[31m")
for step in range(1, 7):
    x, y = batch(step)
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"\r{step}/6", end="", flush=True)
    os.write(1, bytes([step]))
    print("halfway", file=sys.stderr, end="" if step % 2 else "\n", flush=True)
print(flush=True)
report(6, loss)
close()
sys.stdout.write("no newline at the end")
