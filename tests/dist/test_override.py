"""A script's own sharding calls, replaced by what was asked for, on two real ranks; what cannot be is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from fsdp_tui.runner.override import ASKED, ScriptSharding
from tests.dist.overrides import Outcome, override_all
from tests.dist.trainings import SHAPES
from tests.dist.worlds import run_world

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "left alone 1": ("fsdp1 policy", {}),
    "left alone 2": ("fsdp2", {}),
    "kept": ("fsdp2 kept", {}),
    "grad_op 1": ("fsdp1 policy", {"strategy": "fsdp1:shard_grad_op"}),
    "no_shard 1": ("fsdp1", {"strategy": "fsdp1:no_shard"}),
    "hybrid 1": ("fsdp1", {"strategy": "fsdp1:hybrid_shard=1x2"}),
    "grad_op 2": ("fsdp2", {"strategy": "fsdp2:shard_grad_op"}),
    "full 2": ("fsdp2 kept", {"strategy": "fsdp2:full_shard"}),
    "no_shard 2": ("fsdp2", {"strategy": "fsdp2:no_shard"}),
    "hybrid 2": ("fsdp2", {"strategy": "fsdp2:hybrid_shard=1x2"}),
    "flat again": ("fsdp2 hybrid", {"strategy": "fsdp2:full_shard"}),
    "wrap": ("fsdp1", {"wrap": "transformer"}),
    "unwrap": ("fsdp1 policy", {"wrap": "none"}),
    "low 1": ("fsdp1 policy", {"precision": "bf16"}),
    "low 2": ("fsdp2", {"precision": "bf16"}),
    "prefetch 1": ("fsdp1 policy", {"prefetch": 1}),
    "prefetch 2": ("fsdp2", {"prefetch": 2}),
    "checkpointing 1": ("fsdp1 policy", {"checkpointing": True}),
    "checkpointing 2": ("fsdp2", {"checkpointing": True}),
    "ddp": ("ddp", {"strategy": "ddp"}),
    # Refused
    "other api 1": ("fsdp1", {"strategy": "fsdp2:full_shard"}),
    "other api 2": ("fsdp2", {"strategy": "fsdp1:full_shard"}),
    "ddp is no fsdp": ("ddp", {"strategy": "fsdp2:full_shard"}),
    "nothing wrapped": ("plain", {"strategy": "fsdp2:full_shard"}),
    "no policy": ("fsdp2", {"wrap": "transformer"}),
    "wrapped by hand": ("fsdp1 by hand", {"wrap": "transformer"}),
    "no such class": ("fsdp1", {"wrap": "modules:Blok"}),
    "wrong mesh": ("fsdp2", {"strategy": "fsdp2:hybrid_shard=2x4"}),
    "ddp has no types": ("ddp", {"precision": "bf16"}),
}
BLOCKS = [f"blocks.{at}" for at in range(SHAPES["odd"][0].layers)]
WHOLE = ["<root>"]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    found: dict[str, Outcome] = run_world(2, override_all, CASES)[0]
    return found


@pytest.mark.parametrize(
    ("name", "own", "effective", "units"),
    [
        ("left alone 1", "fsdp1:full_shard", "fsdp1:full_shard", WHOLE + BLOCKS),
        ("left alone 2", "fsdp2:full_shard", "fsdp2:full_shard", WHOLE + BLOCKS),
        ("kept", "fsdp2:shard_grad_op", "fsdp2:shard_grad_op", WHOLE + BLOCKS),
        ("grad_op 1", "fsdp1:full_shard", "fsdp1:shard_grad_op", WHOLE + BLOCKS),
        ("no_shard 1", "fsdp1:full_shard", "fsdp1:no_shard", WHOLE),
        ("hybrid 1", "fsdp1:full_shard", "fsdp1:hybrid_shard=1x2", WHOLE),
        ("grad_op 2", "fsdp2:full_shard", "fsdp2:shard_grad_op", WHOLE + BLOCKS),
        ("full 2", "fsdp2:shard_grad_op", "fsdp2:full_shard", WHOLE + BLOCKS),
        ("no_shard 2", "fsdp2:full_shard", "fsdp2:no_shard", WHOLE + BLOCKS),
        ("flat again", "fsdp2:hybrid_shard=1x2", "fsdp2:full_shard", WHOLE + BLOCKS),
        ("wrap", "fsdp1:full_shard", "fsdp1:full_shard", WHOLE + BLOCKS),
        ("unwrap", "fsdp1:full_shard", "fsdp1:full_shard", WHOLE),
        ("ddp", "ddp", "ddp", []),
    ],
)
def test_what_was_asked_for_is_what_runs(
    name: str, own: str, effective: str, units: list[str], outcomes: dict[str, Outcome]
) -> None:
    outcome = outcomes[name]
    assert (outcome.refused, outcome.own, outcome.effective) == ("", own, effective)
    assert sorted(outcome.units) == sorted(units)


def test_sharding_more_or_less_is_seen_in_bytes(outcomes: dict[str, Outcome]) -> None:
    """no_shard stores all parameters, the others half of them and padding."""
    whole, half = outcomes["no_shard 2"].shard_bytes, outcomes["grad_op 2"].shard_bytes
    assert half == outcomes["left alone 2"].shard_bytes
    assert whole / 2 <= half < whole * 0.55


@pytest.mark.parametrize("name", ["low 1", "low 2"])
def test_precision(name: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[name].detail["precision"] == "bf16"
    assert outcomes[name].losses != outcomes["left alone 2"].losses
    assert outcomes[name].losses == pytest.approx(outcomes["left alone 2"].losses, rel=0.02)


@pytest.mark.parametrize("name", ["checkpointing 1", "checkpointing 2"])
def test_checkpointing_is_of_blocks(name: str, outcomes: dict[str, Outcome]) -> None:
    """Inside their wrappers, so that nothing is gathered once more."""
    assert outcomes[name].checkpointed == BLOCKS


def test_prefetch(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["left alone 1"].detail["forward_prefetch"] is False
    assert outcomes["prefetch 1"].detail["forward_prefetch"] is True
    assert outcomes["left alone 2"].detail["forward_prefetch"] == 0
    assert outcomes["prefetch 2"].detail["forward_prefetch"] == 2


@pytest.mark.parametrize("name", [name for name, (_, asked) in CASES.items() if not asked or "precision" not in asked])
def test_the_training_stays_the_same(name: str, outcomes: dict[str, Outcome]) -> None:
    """Other placements of the same model: losses agree but for rounding."""
    if not outcomes[name].refused:
        assert outcomes[name].losses == pytest.approx(outcomes["left alone 2"].losses, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other api 1", "--strategy fsdp2:full_shard: this script wraps its model with FullyShardedDataParallel(...)"),
        ("other api 2", "--strategy fsdp1:full_shard: this script wraps its model with fully_shard(...)"),
        ("ddp is no fsdp", "this script wraps its model with DistributedDataParallel(...)"),
        ("nothing wrapped", "--strategy fsdp2:full_shard: this script wraps nothing"),
        ("no policy", "--wrap transformer: fully_shard takes no wrap policy"),
        ("wrapped by hand", "--wrap transformer matches nothing in Block, which this script wraps (overrides.py:"),
        ("no such class", "--wrap modules:Blok matches nothing in GPT, which this script wraps (overrides.py:"),
        ("wrong mesh", "is a mesh of 8 ranks, and there are 2"),
        ("ddp has no types", "--precision bf16 is FSDP's mixed precision"),
    ],
)
def test_refused_by_name(name: str, words: str, outcomes: dict[str, Outcome]) -> None:
    refused = outcomes[name].refused
    assert words in refused
    assert refused.startswith("fsdp-tui refuses: ")
    assert "\n" not in refused
    if "this script wraps its" in words:
        assert "overrides.py:" in refused  # where


def test_a_strategy_set_by_hand_is_asked_for() -> None:
    """Under torchrun there is no launcher of ours that says what was asked for."""
    by_hand = ScriptSharding.from_environment({"FSDP_TUI_STRATEGY": "fsdp1:no_shard"})
    assert (by_hand.asked, by_hand.wanted.strategy) == (frozenset({"strategy"}), "fsdp1:no_shard")
    launched = ScriptSharding.from_environment({"FSDP_TUI_STRATEGY": "fsdp1:no_shard", ASKED: ""})
    assert launched.asked == frozenset()
