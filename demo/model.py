"""A GPT over bytes, in the shapes that people know by name."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256
"""One token per byte."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers, width and attention heads of one size."""

    layers: int
    width: int
    heads: int


SHAPES = {
    "tiny": Shape(4, 144, 4),
    "small": Shape(8, 384, 6),
    "gpt2": Shape(12, 768, 12),
    "gpt2-medium": Shape(24, 1024, 16),
    "gpt2-large": Shape(36, 1280, 20),
    "gpt2-xl": Shape(48, 1600, 25),
}


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_1 = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        fed: Tensor = self.down(functional.gelu(self.up(self.norm_2(x))))
        return x + fed


class GPT(nn.Module):
    """The model; called with bytes and the bytes that follow them, it gives the mean loss in nats per byte."""

    def __init__(self, shape: Shape, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, shape.width)
        self.position = nn.Embedding(context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        self._initialise(shape)

    def _initialise(self, shape: Shape) -> None:
        """As GPT-2: normal with 0.02, and narrower where blocks add to the residual stream."""
        narrow = 0.02 / math.sqrt(2 * shape.layers)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=narrow if name.endswith(("out.weight", "down.weight")) else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(size: str, context: int, seed: int) -> GPT:
    """A model whose weights depend on size, context and seed only, so that all ranks and strategies start alike."""
    torch.manual_seed(seed)
    return GPT(SHAPES[size], context)
