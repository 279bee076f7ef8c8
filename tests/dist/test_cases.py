"""Why is it not 1/N: each set-up that surprises people shows its bytes where they belong, and names its reason.

Expected bytes are worked out here from the shapes of the parameters. One world of two gloo ranks trains all set-ups.
"""

from __future__ import annotations

from math import ceil, prod

import pytest

from fsdp_tui.telemetry.messages import CATEGORIES, Launched, Step, Unit
from fsdp_tui.telemetry.report import show
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.telemetry.view import RunView, Verdict, category, total
from tests.dist import cases
from tests.dist.cases import CONTEXT, SHAPE, Seen, SetUp
from tests.dist.worlds import run_world

WITHIN = 0.01
BOTH = ("fsdp1", "fsdp2")
FULL = [f"{api}:full_shard" for api in BOTH]


def _both(label: str, sharding: str = "full_shard", **how: object) -> dict[str, SetUp]:
    return {f"{label} {api}": SetUp(f"{api}:{sharding}", **how) for api in BOTH}  # type: ignore[arg-type]


SETUPS = {
    **{f"healthy {strategy}": SetUp(strategy) for strategy in ("ddp", *FULL, "fsdp2:no_shard")},
    **_both("one unit", options=(("wrap", "none"),)),
    "no match size": SetUp("fsdp2:full_shard", options=(("wrap", "size:10_000_000"),)),
    "no match class": SetUp("fsdp1:full_shard", options=(("wrap", "modules:NotInTheModel"),)),
    **_both("activations", batch=64),
    **_both("kept", "shard_grad_op", batch=8),
    **_both("kept bf16", "shard_grad_op", options=(("precision", "bf16"),)),
    **_both("no_sync", accumulate=2),
    "no_sync ddp": SetUp("ddp", accumulate=2),
    "uneven": SetUp("fsdp2:full_shard", "uneven"),
    "narrow": SetUp("fsdp2:full_shard", "narrow"),
    "buffered": SetUp("fsdp2:full_shard", "buffered"),
    "offloaded": SetUp("fsdp2:full_shard", options=(("cpu_offload", True),)),
    "prefetch": SetUp("fsdp2:full_shard", options=(("prefetch", 2),)),
    "rank 0 from the start": SetUp("fsdp2:full_shard", hoard=1, hoarders=(0,)),
    "rank 0 later": SetUp("fsdp1:full_shard", hoard=3, hoarders=(0,), steps=4),
    "average": SetUp("fsdp2:full_shard", hoard=4, steps=6),
    **_both("ignored", ignoring=True),
    **{f"states {name}": SetUp("fsdp2:full_shard", optimizer=name, steps=2) for name in cases.OPTIMIZERS},
    **_both("hybrid", "hybrid_shard=2x1"),
    **_both("frozen", model="lora", steps=4),
    "own choice": SetUp("fsdp2:full_shard", launched="fsdp2:shard_grad_op"),
}


@pytest.fixture(scope="module")
def told() -> dict[str, list[Seen]]:
    """What both ranks told of each set-up."""
    by_rank: list[list[Seen]] = run_world(2, cases.run_all, list(SETUPS.values()))
    return {label: [seen[at] for seen in by_rank] for at, label in enumerate(SETUPS)}


def _view(setup: SetUp, ranks: list[Seen], *, before_first_step: bool = False) -> RunView:
    state = RunState()
    state.apply(
        Launched(run_id="r", name="n", created_ns=1, command=[], nproc=2, strategy=setup.launched or setup.strategy)
    )
    for seen in ranks:
        state.apply(seen.hello)
        for message in seen.messages:
            if before_first_step and isinstance(message, Step):
                break
            state.apply(message)
    assert state.bad_records == 0
    return state.view()


@pytest.fixture(scope="module")
def runs(told: dict[str, list[Seen]]) -> dict[str, RunView]:
    return {label: _view(SETUPS[label], ranks) for label, ranks in told.items()}


def params_of(model: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in cases.MODELS[model]().named_parameters()}


def whole_bytes(model: str = "gpt") -> int:
    """Of all parameters, in fp32, a tied one once."""
    return 4 * sum(prod(shape) for shape in params_of(model).values())


def unit_bytes(model: str = "gpt") -> dict[str, int]:
    """The same by unit of the default policy: each block, and the root with the rest."""
    units: dict[str, int] = {}
    for name, shape in params_of(model).items():
        unit = ".".join(name.split(".")[:2]) if name.startswith("blocks.") else "<root>"
        units[unit] = units.get(unit, 0) + 4 * prod(shape)
    return units


def verdicts(run: RunView) -> dict[str, Verdict]:
    return {verdict.kind: verdict for verdict in run.verdicts}


def now(run: RunView, name: str, rank: int = 0) -> int:
    held = category(run.ranks[rank].memory, name)
    assert held is not None
    return held


def at_peak(run: RunView, name: str, rank: int = 0) -> int:
    held = category(run.ranks[rank].peak, name)
    assert held is not None
    return held


def close(nbytes: float) -> object:
    return pytest.approx(nbytes, rel=WITHIN)


@pytest.mark.parametrize("label", SETUPS)
def test_every_event_of_every_set_up_is_exact(
    label: str, told: dict[str, list[Seen]], runs: dict[str, RunView]
) -> None:
    """The counters equal a walk over all storages, categories add up, and nothing but strangers is unexplained."""
    hoarded = whole_bytes() if SETUPS[label].hoard else 0
    for rank, seen in enumerate(told[label]):
        assert seen.result.mismatches == []
        assert seen.result.walked > 10
        column = runs[label].ranks[rank].memory
        whole = total(column)
        assert whole is not None
        assert whole == sum(part or 0 for part in column[: CATEGORIES.index("unexplained") + 1])
        strangers = seen.before_bytes + (hoarded if rank in SETUPS[label].hoarders else 0)
        assert abs(now(runs[label], "unexplained", rank) - strangers) < WITHIN * whole
    assert runs[label].probes["facts"] == "ok"


@pytest.mark.parametrize("label", [label for label in SETUPS if label.startswith("healthy")])
def test_healthy_runs_have_no_warning(label: str, told: dict[str, list[Seen]], runs: dict[str, RunView]) -> None:
    """Theory and measurement agree; with two ranks a note says what that means. Tensors outside are what other set-ups left."""
    found = verdicts(runs[label])
    left = {"tensors_outside"} if any(seen.before_bytes for seen in told[label]) else set()
    shards = label.endswith("full_shard")
    agree = {"states_match_theory", "communication_matches_theory"}
    assert set(found) - left == agree | ({"two_ranks"} if shards else set())
    assert found["states_match_theory"].expected == (0.5 if shards else 1) * 4 * whole_bytes()
    if shards:
        assert found["two_ranks"].measured == close(2 * whole_bytes())
        assert "4 ranks would keep 1.81 MiB each, 8 ranks 928 KiB" in found["two_ranks"].next
    if label == "healthy fsdp2:no_shard" or label == "healthy ddp":
        assert all(rank.structure and rank.structure.replicated_bytes == whole_bytes() for rank in runs[label].ranks)


@pytest.mark.parametrize("label", ["one unit fsdp1", "one unit fsdp2", "no match size", "no match class"])
def test_one_big_unit(label: str, runs: dict[str, RunView]) -> None:
    """All parameters are unsharded at once; wrapped, it would be the root's and two blocks'."""
    run, units = runs[label], unit_bytes()
    kind = "policy_matched_nothing" if label.startswith("no match") else "one_big_unit"
    verdict = verdicts(run)[kind]
    assert verdict.severity == "warn"
    assert verdict.measured == whole_bytes()
    assert verdict.expected == units["<root>"] + 2 * units["blocks.0"]
    if label == "no match class":
        assert "modules:NotInTheModel wrapped 0 submodules" in verdict.what


@pytest.mark.parametrize("label", ["activations fsdp1", "activations fsdp2"])
def test_activations_dominate(label: str, runs: dict[str, RunView]) -> None:
    """What autograd saves in the unsharded model is what is found here, and it is most of the peak."""
    run = runs[label]
    assert at_peak(run, "activation") == close(cases.saved_for_backward(SETUPS[label]))
    verdict = verdicts(run)["activations_dominate"]
    assert verdict.severity == "note"
    assert verdict.measured == max(at_peak(run, "activation", r) + at_peak(run, "temp", r) for r in (0, 1))
    assert "exact share" in verdict.reason
    assert all("activations_dominate" not in verdicts(runs[f"healthy {strategy}"]) for strategy in FULL)


@pytest.mark.parametrize("api", BOTH)
def test_shard_grad_op_keeps_what_it_gathered(api: str, runs: dict[str, RunView]) -> None:
    """All parameters at the peak; in bf16 half of their bytes, and none of the shards is lost."""
    verdict = verdicts(runs[f"kept {api}"])["shard_grad_op"]
    assert (verdict.severity, verdict.measured) == ("note", whole_bytes())
    assert at_peak(runs[f"kept {api}"], "param_unsharded") == whole_bytes()
    low, units = runs[f"kept bf16 {api}"], unit_bytes()
    for rank in low.ranks:
        assert rank.peak_units is not None
        blocks = rank.peak_units - 1  # the root's are there until the end
        assert at_peak(low, "param_unsharded", rank.rank) == (units["<root>"] + blocks * units["blocks.0"]) / 2
        assert now(low, "param_shard", rank.rank) == whole_bytes() / 2


@pytest.mark.parametrize("api", BOTH)
def test_no_sync_keeps_full_gradients(api: str, runs: dict[str, RunView]) -> None:
    """They wait whole for the next micro-batch, and are shards when the step is over."""
    run = runs[f"no_sync {api}"]
    verdict = verdicts(run)["no_sync"]
    assert (verdict.severity, verdict.measured) == ("note", whole_bytes())
    # A look at the heap that comes late may put the peak where the first unit is reduced already.
    assert whole_bytes() - unit_bytes()["blocks.0"] <= at_peak(run, "grad_unsharded") <= 1.01 * whole_bytes()
    assert (now(run, "grad_unsharded"), now(run, "grad_shard")) == (0, whole_bytes() / 2)
    assert "no_sync" not in verdicts(runs["no_sync ddp"]), "DDP's gradients are whole anyway"
    assert "no_sync" not in verdicts(runs[f"healthy {api}:full_shard"])


def test_fsdp1_has_gradients_for_frozen_parameters(runs: dict[str, RunView]) -> None:
    """A flat parameter's gradient is as long as it is: all blocks', though one parameter of each is trained."""
    run, units = runs["frozen fsdp1"], unit_bytes("lora")
    blocks = sum(nbytes for name, nbytes in units.items() if name != "<root>")
    trained = 4 * SHAPE.layers * SHAPE.width**2
    for rank in (0, 1):
        assert now(run, "grad_shard", rank) == blocks / 2
    spent = [sum(unit.frozen_grad_bytes or 0 for unit in _units(run, rank)) for rank in (0, 1)]
    assert sum(spent) == close(blocks - trained)
    verdict = verdicts(run)["frozen_mixed"]
    assert (verdict.severity, verdict.measured) == ("warn", max(spent))
    states = verdicts(run)["states_off_theory"]
    assert (states.severity, states.expected) == ("note", whole_bytes("lora") / 2 + 3 * trained / 2)
    assert states.measured == max(
        now(run, "param_shard", rank) + now(run, "grad_shard", rank) + now(run, "optimizer", rank) for rank in (0, 1)
    )
    assert states.reason.startswith("gradients of frozen parameters ")
    assert "states_match_theory" not in verdicts(run)
    assert [unit.frozen_params for unit in run.units if unit.name == "blocks.0"] == [
        units["blocks.0"] / 4 - SHAPE.width**2
    ]


def _units(run: RunView, rank: int) -> list[Unit]:
    structure = run.ranks[rank].structure
    assert structure is not None
    return list(structure.units)


def test_fsdp2_has_none(runs: dict[str, RunView]) -> None:
    """Each parameter has its own gradient; what is frozen is known all the same."""
    run = runs["frozen fsdp2"]
    trained = 4 * SHAPE.layers * SHAPE.width**2
    assert now(run, "grad_shard") == trained / 2
    assert now(run, "optimizer") == trained + 4 * SHAPE.layers
    assert "frozen_mixed" not in verdicts(run)
    assert show(run)["model"]["frozen_bytes"] == whole_bytes("lora") - trained


@pytest.mark.parametrize("api", BOTH)
def test_ignored_parameters_are_whole_on_every_rank(api: str, runs: dict[str, RunView]) -> None:
    """They are stored whole, with their gradients, and it is said that nobody reduces these."""
    run, ignored = runs[f"ignored {api}"], 4 * CONTEXT * SHAPE.width
    for rank in (0, 1):
        assert now(run, "param_shard", rank) == (whole_bytes() - ignored) / 2 + ignored
        assert now(run, "grad_shard", rank) == (whole_bytes() - ignored) / 2 + ignored
    verdict = verdicts(run)["ignored_parameters"]
    assert (verdict.severity, verdict.measured) == ("warn", ignored)
    assert "position.weight" in verdict.reason
    assert "does not reduce their gradients" in verdict.next
    assert show(run)["ranks"][1]["replicated_bytes"] == ignored
    assert "ignored_parameters" not in verdicts(runs[f"healthy {api}:full_shard"])


@pytest.mark.parametrize("model", ["uneven", "narrow"])
def test_uneven_shards(model: str, runs: dict[str, RunView]) -> None:
    """Rows that two ranks do not divide are padded on the second, down to a shard that is all padding."""
    shapes = params_of(model).values()
    stored = 4 * sum(ceil(rows / 2) * prod(rest) for rows, *rest in shapes)
    second = 4 * sum((rows - ceil(rows / 2)) * prod(rest) for rows, *rest in shapes)
    document = show(runs[model])
    assert [rank["memory"]["param_shard"] for rank in document["ranks"]] == [stored, stored]
    assert [rank["padding_bytes"] for rank in document["ranks"]] == [0, stored - second]
    verdict = verdicts(runs[model])["uneven_shards"]
    assert (verdict.severity, verdict.measured, verdict.expected) == ("note", 2 * stored, whole_bytes(model))
    assert "uneven_shards" not in verdicts(runs["healthy fsdp2:full_shard"])


def test_buffers(runs: dict[str, RunView]) -> None:
    """A category of their own, and not sharded."""
    assert [now(runs["buffered"], "buffer", rank) for rank in (0, 1)] == [400_000, 400_000]
    assert show(runs["buffered"])["model"]["buffer_bytes"] == 400_000


def test_offloaded_bytes_of_a_cpu_are_the_same_memory(runs: dict[str, RunView]) -> None:
    """Parameters, gradients and states are on the host, which is the device."""
    rank = show(runs["offloaded"])["ranks"][0]
    assert rank["host_bytes"] == close(2 * whole_bytes())
    assert rank["host_is_device"]
    assert show(runs["healthy fsdp2:full_shard"])["ranks"][0]["host_bytes"] == 0


def test_prefetched_units_are_in_flight(runs: dict[str, RunView]) -> None:
    """At the peak there are more units than the root's and the one that computes."""
    units = unit_bytes()
    for rank in runs["prefetch"].ranks:
        assert rank.peak_units is not None
        assert rank.peak_units >= 2
        gathered = at_peak(runs["prefetch"], "param_unsharded", rank.rank)
        assert (gathered - units["<root>"]) % units["blocks.0"] == 0


def test_rank_zero_is_bigger(runs: dict[str, RunView]) -> None:
    """By a copy of all weights, since the step in which it came."""
    for label, since in (("rank 0 from the start", "since the first step"), ("rank 0 later", "since step 3")):
        run = runs[label]
        assert now(run, "unexplained", 0) - now(run, "unexplained", 1) == close(whole_bytes())
        verdict = verdicts(run)["rank_outlier"]
        assert verdict.severity == "warn"
        assert since in verdict.what
        assert verdict.reason.startswith("1.81 MiB of it is unexplained")
    assert "rank_outlier" not in verdicts(runs["average"])


def test_an_average_of_the_weights_is_found(told: dict[str, list[Seen]], runs: dict[str, RunView]) -> None:
    """With its size, though it came after the second step, and with what it is made of."""
    run = runs["average"]
    assert now(run, "unexplained") - told["average"][0].before_bytes == close(whole_bytes())
    verdict = verdicts(run)["tensors_outside"]
    assert verdict.severity == "note"
    assert verdict.measured == max(now(run, "unexplained", rank) for rank in (0, 1))
    outside = {group["what"]: group["bytes"] for group in show(run)["ranks"][0]["outside"]}
    assert outside["float32 384x96"] >= 4 * SHAPE.layers * 384 * 96


@pytest.mark.parametrize("name", cases.OPTIMIZERS)
def test_optimizer_states_to_come(name: str, told: dict[str, list[Seen]], runs: dict[str, RunView]) -> None:
    """Before the first step their bytes are known to the byte."""
    label = f"states {name}"
    verdict = verdicts(_view(SETUPS[label], told[label], before_first_step=True)).get("optimizer_not_allocated")
    held = now(runs[label], "optimizer")
    if name == "SGD":
        assert (verdict, held) == (None, 0)
    else:
        assert verdict is not None
        assert (verdict.severity, verdict.expected, verdict.measured) == ("note", held, 0)
    assert "optimizer_not_allocated" not in verdicts(runs[label])


def test_a_script_whose_own_strategy_goes_first(runs: dict[str, RunView]) -> None:
    """It gives shard() a strategy, and the launch another: what runs is told, and who chose it."""
    run = runs["own choice"]
    assert (run.requested, run.effective) == ("fsdp2:shard_grad_op", "fsdp2:full_shard")
    verdict = verdicts(run)["strategy_changed"]
    assert (verdict.severity, verdict.what) == ("note", "fsdp2:full_shard runs, fsdp2:shard_grad_op was launched")
    assert verdict.reason == "the script chooses its strategy itself"


@pytest.mark.parametrize("api", BOTH)
def test_hybrid_over_one_rank_shards_nothing(api: str, runs: dict[str, RunView]) -> None:
    """Everything is on every rank."""
    run = runs[f"hybrid {api}"]
    assert run.effective == f"{api}:no_shard"
    verdict = verdicts(run)["hybrid_not_sharded"]
    assert (verdict.severity, verdict.expected) == ("warn", 2 * whole_bytes())
    assert verdict.measured == close(4 * whole_bytes())
    assert now(run, "param_shard") == whole_bytes()


def test_tied_parameters_count_once(runs: dict[str, RunView]) -> None:
    """Where their owner is, with the names of all who use them."""
    for strategy in ("ddp", *FULL):
        model = show(runs[f"healthy {strategy}"])["model"]
        assert model["param_bytes"] == whole_bytes()
        assert model["tied"] == [{"name": "token.weight", "aliases": ["head.weight"], "bytes": 4 * 256 * SHAPE.width}]
