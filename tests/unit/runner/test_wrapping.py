"""Which modules become units."""

from __future__ import annotations

import pytest
from torch import nn

from fsdp_tui.runner.wrapping import modules_to_wrap, repeated_blocks
from fsdp_tui.telemetry.strategy import StrategyError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 16)
        self.down = nn.Linear(16, 4)


class Tower(nn.Module):
    """Two lists of blocks, a list of leaves that is larger, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(32, 4)
        self.encoder = nn.ModuleList(Block() for _ in range(3))
        self.decoder = nn.Sequential(Block(), Block())
        self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.head = nn.Linear(4, 32, bias=False)
        self.head.weight = self.token.weight


def test_blocks_are_the_class_that_fills_the_largest_list() -> None:
    """A list of leaves is no transformer; the class is a block wherever it is."""
    model = Tower()
    assert repeated_blocks(model) == [*model.encoder, *model.decoder]


def test_a_model_without_repetition_has_no_blocks() -> None:
    """Nothing is guessed."""
    assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []
    assert modules_to_wrap(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "transformer") == []


def test_size_counts_what_inner_units_left() -> None:
    """A block whose layers are units already has nothing left to be one for."""
    model = Tower()
    assert modules_to_wrap(model, "size:4000") == list(model.experts)
    assert modules_to_wrap(model, "size:100") == [*model.encoder, *model.decoder, *model.experts]


def test_a_tied_module_is_no_unit() -> None:
    """Its parameter belongs to the unit that has all its owners."""
    model = Tower()
    assert model.token not in modules_to_wrap(model, "size:100")
    assert modules_to_wrap(model, "modules:Embedding") == []
    tied_inside = nn.Sequential(Tower(), nn.Linear(2, 2))
    assert modules_to_wrap(tied_inside, "modules:Tower") == [tied_inside[0]]


def test_named_classes_inner_first() -> None:
    """Nested units are made from the inside, as FSDP wants them."""
    model = Tower()
    chosen = modules_to_wrap(model, "modules:Block,Linear")
    block = model.encoder[0]
    assert isinstance(block, Block)
    assert chosen.index(block.up) < chosen.index(block)
    assert modules_to_wrap(model, "none") == []


def test_an_unknown_policy_is_an_error() -> None:
    """The words of the launch form hold here too."""
    with pytest.raises(StrategyError, match="unknown wrap policy"):
        modules_to_wrap(Tower(), "layers")
