"""A watched loop on real ranks: agreement, bit-identical training, and probes that fail alone."""

from __future__ import annotations

from typing import Any

import pytest

from fsdp_tui.runner import torch_ddp, torch_fsdp1, torch_fsdp2
from fsdp_tui.telemetry.messages import CATEGORIES
from tests.dist import behaviour
from tests.dist.worlds import run_world

STRATEGIES = ["ddp", "fsdp1:full_shard", "fsdp2:full_shard", "fsdp2:shard_grad_op"]
PRIVATE_NAMES = [
    *(("fsdp2", name) for name in (*torch_fsdp2.METHODS, *torch_fsdp2.GROUP_NAMES, *torch_fsdp2.PARAM_NAMES)),
    *(("fsdp1", name) for name in (*torch_fsdp1.METHODS, *torch_fsdp1.FUNCTIONS)),
    *(("fsdp1", name) for name in (*torch_fsdp1.HANDLE_NAMES, *torch_fsdp1.PARAM_NAMES)),
    *(("ddp", name) for name in torch_ddp.NAMES),
]


def _everything() -> dict[str, Any]:
    """All of the two-rank behaviour, in one world."""
    return {
        "stop": behaviour.stop_at_one_step(4),
        "pause": behaviour.pause_and_resume(),
        "losses": behaviour.losses_with_and_without(STRATEGIES),
        "left": behaviour.nothing_stays_wrapped(),
        "error": behaviour.error_is_reported(),
        "names": behaviour.without_names(PRIVATE_NAMES),
        "broken": behaviour.a_failing_probe(),
        "unwatched": behaviour.unwatched_steps(),
        "alone": behaviour.without_a_hub(),
        "refusals": behaviour.refusals(),
    }


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_world(2, _everything)


def test_all_ranks_stop_at_the_same_step(ranks: list[dict[str, Any]]) -> None:
    """Whoever asks, all ranks leave at one boundary, one step after the request was seen."""
    assert ranks[0]["stop"] == ranks[1]["stop"]
    assert [step for step, _ in ranks[0]["stop"]] == [4, 5, 6, 7]
    assert {reason for _, reason in ranks[0]["stop"]} == {"stopped"}


def test_a_pause_that_one_rank_heard_of_holds_all(ranks: list[dict[str, Any]]) -> None:
    """All ranks poll together while paused, and all go on to the last step."""
    for rank in ranks:
        steps, polls = rank["pause"]
        assert steps == 8
        assert polls == [True] * 3


def test_watching_changes_no_bit_of_the_losses(ranks: list[dict[str, Any]]) -> None:
    """The probes read; they never compute with the training's numbers."""
    for strategy, unwatched, watched in ranks[0]["losses"]:
        assert unwatched == watched, strategy


def test_nothing_stays_wrapped(ranks: list[dict[str, Any]]) -> None:
    """Off means gone: after the session every function of torch is torch's own."""
    assert [rank["left"] for rank in ranks] == [[], []]


def test_a_failure_is_the_last_message(ranks: list[dict[str, Any]]) -> None:
    """The goodbye names the error; the exception stays the script's."""
    assert ranks[0]["error"] == ("error", "ValueError: loss is nonsense")


def test_a_torch_without_a_private_name_loses_that_probe_only(ranks: list[dict[str, Any]]) -> None:
    """The probe says which name is missing, what cannot be known is None, and the training is the same."""
    by_api: dict[str, list[float]] = {}
    for label, probes, memory, losses in ranks[0]["names"]:
        api = label.partition(" ")[0]
        assert probes["memory"].startswith("not available: "), label
        assert "renamed_in_this_torch" in probes["memory"], label
        unknown = "comm_buffer" if api == "ddp" else "param_unsharded"
        assert memory[CATEGORIES.index(unknown)] is None, label
        assert memory[CATEGORIES.index("param_shard")] > 0, label
        assert by_api.setdefault(api, losses) == losses, label


def test_a_probe_that_raises_is_switched_off(ranks: list[dict[str, Any]]) -> None:
    """Training goes on; the reason is told."""
    said, losses = ranks[0]["broken"]
    assert said == "not available: KeyError: 'no such unit'"
    assert len(losses) == 3


def test_unwatched_steps_are_trained_and_not_told(ranks: list[dict[str, Any]]) -> None:
    """Inside `unwatched` the loop counts and agrees, and nothing else."""
    assert ranks[0]["unwatched"] == (6, [1, 3, 5])


def test_without_a_hub_nothing_is_wrapped(ranks: list[dict[str, Any]]) -> None:
    """The null run ends at FSDP_TUI_STEPS."""
    assert ranks[0]["alone"] == (3, True)


def test_shard_refuses_in_one_line(ranks: list[dict[str, Any]]) -> None:
    """Each refusal says what was expected and what was found."""
    said = ranks[0]["refusals"]
    assert said[0].startswith("2 ranks and no strategy: pass one")
    assert said[1].startswith("unknown strategy 'fsdp3:full_shard'")
    assert said[2].startswith("single trains in one process")
    assert "needs an accelerator" in said[3]
    assert "mesh of 15 ranks" in said[4]
    assert said[5].startswith("unknown wrap policy 'layers'")
    assert "fp8" in said[6]
    assert not any("\n" in line for line in said)


def test_activations_are_what_the_heap_grew_by() -> None:
    """The activations at the peak agree with glibc's own count over a forward, within 2 %."""
    (activation, grown), *_ = run_world(1, behaviour.activations_by_heap)
    assert activation == pytest.approx(grown, rel=0.02)
