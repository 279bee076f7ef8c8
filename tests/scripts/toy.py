"""What the scripts of this folder train, as a project would have it in a module beside them."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH, BATCH = 33, 15, 8, 4
"""No dimension is a multiple of two: shards are padded."""


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(torch.relu(self.up(x)))
        return out


class Model(nn.Module):
    """Predicts the next token from the last one."""

    def __init__(self, layers: int = 2, width: int = WIDTH) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x.flatten(0, 1))
        return logits


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def batch(step: int) -> tuple[Tensor, Tensor]:
    """This rank's tokens and the ones that follow them."""
    chance = torch.Generator().manual_seed(1000 * step + rank())
    text = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=chance)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def criterion(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, targets.flatten())


def report(step: int, loss: Tensor, word: str = "loss") -> None:
    """Rank 0 prints the mean over ranks, to the last bit."""
    mean = loss.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
    if rank() == 0:
        print(word, step, float(mean).hex(), flush=True)


def close() -> None:
    """Ends the process group, a while after its last collective.

    gloo's thread may hold that one's tensor a moment longer, and where the interpreter ends meanwhile the process aborts
    (PyTorch 179291): one exit in thirty on a busy machine.
    """
    time.sleep(0.3)
    dist.destroy_process_group()
