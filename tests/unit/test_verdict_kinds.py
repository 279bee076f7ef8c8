"""Every kind of finding has a real run that makes it and a real one that does not; which kinds there are is read from the source."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent.parent
TELEMETRY = TESTS.parent / "telemetry"
REAL = ("dist", "launch", "e2e", "frameworks")
"""Folders whose tests train on real ranks."""


class Runs(NamedTuple):
    """The test of a real run that has the finding, with its figures, and of one that has not."""

    found: str
    absent: str


CASES, TROUBLES, LAUNCH, STALLS = (
    "dist/test_cases.py",
    "dist/test_troubles.py",
    "launch/test_launch.py",
    "launch/test_stalls.py",
)
IN_VAIN, SCRIPTS = "launch/test_in_vain.py", "launch/test_scripts.py"
FULL_DISK = "launch/test_full_disk.py"
EXACTLY = f"{CASES}::test_healthy_runs_have_no_warning"
"""The whole list of what is found: nothing else is."""
NO_ALARM = f"{TROUBLES}::test_healthy_trainings_have_no_alarm"
AS_WITHOUT_US = f"{SCRIPTS}::test_a_script_trains_as_without_us_and_is_seen"
LIVE = f"{STALLS}::test_a_live_healthy_run_neither_stalls_nor_is_silent_until_a_rank_is_stopped"
"""Looked at while it trains, for longer than a stall has to last."""
FINISHED = f"{LAUNCH}::test_a_finished_run_is_recorded_whole_before_the_launcher_returns"
WAITS = f"{TROUBLES}::test_compute_that_waits_for_communication"
CREEPS = f"{TROUBLES}::test_memory_that_creeps"
WHOLE = {EXACTLY, NO_ALARM}
"""Tests that look at all that is found, so that no kind needs to be named in them."""

KINDS = {
    # Memory
    "states_match_theory": Runs(EXACTLY, f"{CASES}::test_fsdp1_has_gradients_for_frozen_parameters"),
    "states_off_theory": Runs(f"{CASES}::test_fsdp1_has_gradients_for_frozen_parameters", EXACTLY),
    "one_big_unit": Runs(f"{CASES}::test_one_big_unit", EXACTLY),
    "policy_matched_nothing": Runs(f"{CASES}::test_one_big_unit", EXACTLY),
    "activations_dominate": Runs(f"{CASES}::test_activations_dominate", EXACTLY),
    "shard_grad_op": Runs(f"{CASES}::test_shard_grad_op_keeps_what_it_gathered", EXACTLY),
    "no_sync": Runs(f"{CASES}::test_no_sync_keeps_full_gradients", EXACTLY),
    "frozen_mixed": Runs(f"{CASES}::test_fsdp1_has_gradients_for_frozen_parameters", f"{CASES}::test_fsdp2_has_none"),
    "ignored_parameters": Runs(f"{CASES}::test_ignored_parameters_are_whole_on_every_rank", EXACTLY),
    "uneven_shards": Runs(f"{CASES}::test_uneven_shards", EXACTLY),
    "rank_outlier": Runs(f"{CASES}::test_rank_zero_is_bigger", NO_ALARM),
    "tensors_outside": Runs(f"{CASES}::test_an_average_of_the_weights_is_found", EXACTLY),
    "optimizer_not_allocated": Runs(f"{CASES}::test_optimizer_states_to_come", EXACTLY),
    "hybrid_not_sharded": Runs(f"{CASES}::test_hybrid_over_one_rank_shards_nothing", EXACTLY),
    "strategy_changed": Runs(f"{CASES}::test_a_script_whose_own_strategy_goes_first", EXACTLY),
    "two_ranks": Runs(EXACTLY, EXACTLY),  # strategies that shard, and those that do not
    "memory_creep": Runs(CREEPS, CREEPS),
    # Communication and ranks
    "communication_matches_theory": Runs(NO_ALARM, f"{TROUBLES}::test_a_unit_that_takes_no_part"),
    "extra_communication": Runs(f"{TROUBLES}::test_extra_communication_has_its_cause", NO_ALARM),
    "less_communication": Runs(f"{TROUBLES}::test_a_unit_that_takes_no_part", NO_ALARM),
    "never_reduced": Runs(f"{TROUBLES}::test_ranks_that_train_apart", NO_ALARM),
    "ranks_apart": Runs(f"{IN_VAIN}::test_ranks_that_never_meet", NO_ALARM),
    "trains_nothing": Runs(f"{TROUBLES}::test_an_optimizer_that_was_made_before_wrapping", NO_ALARM),
    # Loss and time
    "loss_lost": Runs(f"{TROUBLES}::test_a_lost_loss_is_told_with_its_first_rank", NO_ALARM),
    "loss_spike": Runs(f"{TROUBLES}::test_a_jump_of_the_loss", NO_ALARM),
    "input_bound": Runs(f"{TROUBLES}::test_steps_that_wait_for_input", NO_ALARM),
    "exposed_communication": Runs(WAITS, WAITS),
    "straggler": Runs(f"{TROUBLES}::test_a_rank_that_the_others_wait_for", NO_ALARM),
    "stalled": Runs(f"{STALLS}::test_a_rank_that_hangs", LIVE),
    "rank_silent": Runs(f"{STALLS}::test_a_rank_that_hangs", LIVE),
    # The run itself
    "failed": Runs(
        f"{LAUNCH}::test_a_killed_rank_makes_the_run_failed_with_that_rank_within_seconds",
        FINISHED,
    ),
    "lost": Runs(
        f"{LAUNCH}::test_a_killed_launcher_takes_every_rank_with_it_and_the_run_is_lost",
        FINISHED,
    ),
    "not_recorded": Runs(f"{FULL_DISK}::test_a_run_on_a_full_disk_ends_as_it_did", AS_WITHOUT_US),
    "not_watched": Runs(f"{IN_VAIN}::test_a_script_without_an_optimizer", AS_WITHOUT_US),
    "not_covered": Runs(f"{IN_VAIN}::test_a_library_that_shards_by_itself", AS_WITHOUT_US),
}
NOT_HERE = {
    "cache": "torch's CUDA allocator has it, a CPU's has none",
    "non_torch": "of a GPU, by NVML",
    "others": "of a GPU, by NVML",
}
"""No run here can have them: tested on constructed runs (unit/telemetry/test_verdicts.py), and the readings they are of through
NVML's real bindings on a stub of its library (unit/runner/test_devices.py)."""


def kinds_in_the_source() -> set[str]:
    """Every word that a `Verdict(kind=...)` in telemetry can have."""
    found: set[str] = set()
    for path in sorted(TELEMETRY.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Verdict":
                kind = next(keyword.value for keyword in node.keywords if keyword.arg == "kind")
                choices = [kind.body, kind.orelse] if isinstance(kind, ast.IfExp) else [kind]
                words = [str(choice.value) for choice in choices if isinstance(choice, ast.Constant)]
                assert len(words) == len(choices), (
                    f"{path.name}:{kind.lineno}: its kinds cannot be read from the source"
                )
                found.update(words)
    return found


def functions_in(path: Path) -> dict[str, ast.FunctionDef]:
    body = ast.parse(path.read_text()).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_kind_has_its_runs() -> None:
    """A new kind is in one of both tables, and a kind that is gone is in neither."""
    assert KINDS.keys() | NOT_HERE.keys() == kinds_in_the_source()
    assert not KINDS.keys() & NOT_HERE.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_the_runs_are_real_and_speak_of_the_kind(kind: str) -> None:
    """Both tests are there, train on real ranks, and name it, or look at all that is found."""
    for name in KINDS[kind]:
        file, _, function = name.partition("::")
        assert file.split("/")[0] in REAL
        test = functions_in(TESTS / file)[function]
        words = {node.value for node in ast.walk(test) if isinstance(node, ast.Constant)}
        assert kind in words or (name in WHOLE and name == KINDS[kind].absent), name


@pytest.mark.parametrize("kind", NOT_HERE)
def test_what_needs_a_gpu_is_tested_on_constructed_runs(kind: str) -> None:
    """By name."""
    assert f'"{kind}"' in (TESTS / "unit/telemetry/test_verdicts.py").read_text()
