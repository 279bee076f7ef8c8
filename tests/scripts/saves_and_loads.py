"""A distributed checkpoint is saved after the third step and loaded into a new optimizer, which makes its states for it."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from toy import Model, batch, close, criterion, report

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
for step in range(1, 7):
    x, y = batch(step)
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    report(step, loss)
    if step == 3:
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder[0])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        weights, states = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": states}
        dcp.load(saved, checkpoint_id=folder[0])
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
close()
