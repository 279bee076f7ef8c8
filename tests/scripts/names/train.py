"""Its modules have the names of ours, and its data is where it is started."""

import sys
import time
from pathlib import Path

import runner
import telemetry
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from tui import banner

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rows = torch.tensor(
        [[float(word) for word in line.split()] for line in Path("data/rows.txt").read_text().splitlines()]
    )
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if dist.get_rank() == 0:
        print(banner(runner.WORD), sys.argv, Path(sys.path[0]).name, Path(telemetry.__file__).parent.name, __name__)
        print(sorted(name for name in vars() if not name.startswith("_")))
    for step in range(1, 7):
        loss = nn.functional.mse_loss(model(rows[:, :3]), rows[:, 3:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            telemetry.log(step, loss)
    time.sleep(0.3)  # as in toy.py
    dist.destroy_process_group()
