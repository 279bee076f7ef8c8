"""Meta-device init, clipping, a schedule, arguments, and a loader with two workers."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset
from toy import Model, batch, close, criterion, report


class Batches(Dataset):
    def __init__(self, steps):
        self.steps = steps

    def __len__(self):
        return self.steps

    def __getitem__(self, at):
        # A worker may differentiate something of its own, and is no rank.
        scale = torch.ones((), requires_grad=True)
        (2 * scale).backward()
        assert scale.grad == 2
        return batch(at)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--n", dest="steps", type=int, default=6)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with torch.device("meta"):
        model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    loader = DataLoader(Batches(args.steps), batch_size=None, num_workers=2)
    for step, (x, y) in enumerate(loader, 1):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        report(step, loss)
    print("pid", os.getpid(), flush=True)
    close()


if __name__ == "__main__":
    main()
