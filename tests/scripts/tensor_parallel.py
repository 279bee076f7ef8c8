"""FSDP2 over two replicas of two tensor-parallel ranks: a 2-D mesh of four."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from toy import Model, close, criterion, report
from toy import batch as batch_of_rank

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = Model(width=16)
plan = {
    "embed": RowwiseParallel(input_layouts=Replicate()),
    "blocks.*.up": ColwiseParallel(),
    "blocks.*.down": RowwiseParallel(),
    "head": ColwiseParallel(output_layouts=Replicate()),
}
parallelize_module(model, mesh["tp"], plan)
for block in model.blocks:
    fully_shard(block, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 7):
    x, y = batch_of_rank(step)
    # The ranks of one tensor-parallel group see the same batch.
    dist.broadcast(x, group=mesh["tp"].get_group(), group_src=0)
    dist.broadcast(y, group=mesh["tp"].get_group(), group_src=0)
    loss = criterion(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    report(step, loss)
close()
