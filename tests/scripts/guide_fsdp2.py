import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed._composable.fsdp import fully_shard
from toy import Block, close, report


# FSDP2 is per-parameter and per-block, not whole-model
class TransformerStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(15) for _ in range(3)])

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return x


dist.init_process_group("gloo")
torch.manual_seed(0)
model = TransformerStack()

# Apply FSDP2 to each block — finer control than FSDP1's wrap policy
for layer in model.blocks:
    fully_shard(layer)
fully_shard(model)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 9):
    chance = torch.Generator().manual_seed(2 * step + dist.get_rank())
    x = torch.randn(4, 15, generator=chance)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.roll(1, dims=1))
    loss.backward()
    optimizer.step()
    report(step, loss)
close()
