"""Two models that train against each other, each with its optimizer and a backward of its own in every iteration."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from toy import close, report


class Generator(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(7, 21), nn.ReLU(), nn.Linear(21, 5))


class Critic(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 1))


dist.init_process_group("gloo")
torch.manual_seed(0)
generator, critic = Generator(), Critic()
for model in (generator, critic):
    fully_shard(model)
make = torch.optim.Adam(generator.parameters(), lr=1e-2)
judge = torch.optim.Adam(critic.parameters(), lr=1e-2)
judged = nn.functional.binary_cross_entropy_with_logits
for step in range(1, 9):
    chance = torch.Generator().manual_seed(2 * step + dist.get_rank())
    real = torch.randn(6, 5, generator=chance) + 2
    noise = torch.randn(6, 7, generator=chance)
    judge.zero_grad()
    fake = generator(noise)
    judge_loss = judged(critic(real), torch.ones(6, 1)) + judged(critic(fake.detach()), torch.zeros(6, 1))
    judge_loss.backward()
    judge.step()
    make.zero_grad()
    make_loss = judged(critic(fake), torch.ones(6, 1))
    make_loss.backward()
    make.step()
    report(step, judge_loss.detach() + make_loss.detach())
close()
