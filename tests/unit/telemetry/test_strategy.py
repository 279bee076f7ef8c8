"""The words for strategies: what is read, what is refused and why."""

from __future__ import annotations

import pytest

from fsdp_tui.telemetry.strategy import (
    SWEEP,
    Strategy,
    StrategyError,
    misfits,
    parse_strategies,
    parse_strategy,
    parse_wrap,
)

FORMS = [
    "single",
    "ddp",
    "fsdp1:full_shard",
    "fsdp1:shard_grad_op",
    "fsdp1:no_shard",
    "fsdp1:hybrid_shard",
    "fsdp1:hybrid_shard=2x2",
    "fsdp1:hybrid_shard_zero2=2x4",
    "fsdp2:full_shard",
    "fsdp2:shard_grad_op",
    "fsdp2:no_shard",
    "fsdp2:hybrid_shard=4x2",
    "fsdp2:reshard=2",
]


@pytest.mark.parametrize("text", FORMS)
def test_text_form_is_kept(text: str) -> None:
    """Reading and writing a strategy is the identity."""
    assert parse_strategy(text).text == text


@pytest.mark.parametrize(
    "text",
    ["", "fsdp", "fsdp2", "fsdp2:", "fsdp3:full_shard", "fsdp2:zero3", "fsdp1:reshard=2", "fsdp2:reshard", "fsdp2:reshard=0",
     "fsdp2:full_shard=2x2", "fsdp1:hybrid_shard=2", "fsdp1:hybrid_shard=0x2", "ddp:full_shard"],
)  # fmt: skip
def test_what_is_no_strategy_is_named(text: str) -> None:
    """The error repeats the text and lists the forms."""
    with pytest.raises(StrategyError, match="expected single, ddp") as error:
        parse_strategy(text)
    assert repr(text) in str(error.value)


def test_lists_keep_their_order_and_drop_repeats() -> None:
    """`--strategies` runs each strategy once."""
    assert [s.text for s in parse_strategies("ddp, single,ddp")] == ["ddp", "single"]
    assert [s.text for s in parse_strategies(",".join(SWEEP))] == list(SWEEP)
    with pytest.raises(StrategyError):
        parse_strategies(" , ")


@pytest.mark.parametrize(
    ("text", "ranks", "group"),
    [("ddp", 4, 1), ("fsdp2:full_shard", 4, 4), ("fsdp1:no_shard", 4, 1), ("fsdp1:hybrid_shard=2x2", 4, 2),
     ("fsdp2:hybrid_shard", 8, 4), ("fsdp2:reshard=2", 4, 4)],
)  # fmt: skip
def test_ranks_that_share_one_copy(text: str, ranks: int, group: int) -> None:
    """How many parts the states are cut into."""
    assert parse_strategy(text).shard_group_size(ranks) == group


def test_hybrid_takes_two_replicas_when_it_is_not_told() -> None:
    """The mesh is always explicit in what runs."""
    assert Strategy("fsdp2", "hybrid_shard").with_mesh(8).text == "fsdp2:hybrid_shard=2x4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("none", ("none", None)), ("transformer", ("transformer", None)), ("size:1000", ("size", 1000)),
     ("modules:Block,Mlp", ("modules", ("Block", "Mlp")))],
)  # fmt: skip
def test_wrap_policies(text: str, expected: object) -> None:
    """The four policies."""
    assert parse_wrap(text) == expected


@pytest.mark.parametrize("text", ["", "size", "size:0", "size:x", "modules:", "modules:a b", "blocks"])
def test_what_is_no_wrap_policy_is_named(text: str) -> None:
    """The error lists the policies."""
    with pytest.raises(StrategyError, match="expected none, transformer"):
        parse_wrap(text)


@pytest.mark.parametrize(
    ("text", "ranks", "options", "word"),
    [
        ("single", 2, {}, "one process"),
        ("fsdp1:hybrid_shard", 2, {}, "needs its mesh"),
        ("fsdp2:hybrid_shard=2x2", 2, {}, "mesh of 4 ranks"),
        ("fsdp2:reshard=3", 4, {}, "must divide"),
        ("fsdp2:reshard=4", 4, {}, "ask for that"),
        ("fsdp2:full_shard", 2, {"torch_version": (2, 6)}, "from torch 2.7"),
        ("fsdp1:full_shard", 2, {"cpu_offload": True}, "needs an accelerator"),
        ("ddp", 2, {"cpu_offload": True}, "--cpu-offload"),
        ("ddp", 2, {"prefetch": 1}, "--prefetch"),
        ("fsdp1:full_shard", 2, {"prefetch": 2}, "one unit at most"),
        ("fsdp1:full_shard", 2, {"compiled": True}, "--compile"),
        ("ddp", 2, {"precision": "bf16"}, "--precision"),
        ("ddp", 2, {"wrap": "none"}, "--wrap"),
    ],
)
def test_what_a_machine_cannot_do_is_refused(text: str, ranks: int, options: dict[str, object], word: str) -> None:
    """One sentence each, before anything is launched."""
    facts: dict[str, object] = {"world_size": ranks, "accelerator": False, "torch_version": (2, 13), **options}
    found = list(misfits(parse_strategy(text), **facts))  # type: ignore[arg-type]
    assert len(found) == 1
    assert word in found[0]


@pytest.mark.parametrize("text", SWEEP)
def test_the_usual_seven_run_on_two_ranks(text: str) -> None:
    """What sweep runs by itself is possible on a CPU."""
    strategy = parse_strategy(text)
    ranks = 1 if text == "single" else 2
    assert not list(misfits(strategy, world_size=ranks, accelerator=False, torch_version=(2, 13)))
