"""Exact bytes, agreeing losses and counted collectives of every strategy, on real gloo ranks."""

from __future__ import annotations

from itertools import product
from math import ceil, prod
from typing import Any

import pytest
from torch import nn

from fsdp_tui.demo.model import GPT
from fsdp_tui.telemetry.messages import CATEGORIES, COLLECTIVES, Step, Structure
from tests.dist import trainings
from tests.dist.trainings import Case, Result
from tests.dist.worlds import run_world

FSDP = ("full_shard", "shard_grad_op", "no_shard")
EVERYWHERE = ["ddp", *(f"{api}:{sharding}" for api in ("fsdp1", "fsdp2") for sharding in FSDP)]
STRATEGIES = {
    1: ["single", *EVERYWHERE],
    2: [*EVERYWHERE, "fsdp1:hybrid_shard=2x1", "fsdp2:hybrid_shard=2x1", "fsdp2:hybrid_shard=1x2"],
    4: [
        *EVERYWHERE,
        *(f"{api}:{sharding}=2x2" for api in ("fsdp1", "fsdp2") for sharding in ("hybrid_shard", "hybrid_shard_zero2")),
        "fsdp2:reshard=2",
    ],
}
SHARD_GROUP = {  # ranks that share one copy; every other strategy shards over all of them
    "single": 1,
    "ddp": 1,
    "fsdp1:no_shard": 1,
    "fsdp2:no_shard": 1,
    "fsdp1:hybrid_shard=2x1": 1,
    "fsdp2:hybrid_shard=2x1": 1,
    "fsdp2:hybrid_shard=1x2": 2,
    "fsdp1:hybrid_shard=2x2": 2,
    "fsdp1:hybrid_shard_zero2=2x2": 2,
    "fsdp2:hybrid_shard=2x2": 2,
    "fsdp2:hybrid_shard_zero2=2x2": 2,
}
ALL_REDUCE_OVER_ONE_RANK = ("fsdp2:no_shard", "fsdp2:hybrid_shard=1x2")
"""FSDP2 calls the all-reduce of a mesh with a replicate dimension, however small."""
VARIATIONS = [
    (("wrap", "none"),),
    (("wrap", "size:3000"),),
    (("wrap", "modules:Linear"),),
    (("precision", "bf16"),),
    (("precision", "bf16"), ("reduce", "bf16")),
    (("precision", "fp16"),),
    (("checkpointing", True),),
    (("prefetch", 1),),
]


def _shapes(dims: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(parameter.shape)) for name, parameter in trainings.model(dims).named_parameters()]


def _fsdp1_units(case: Case) -> list[list[int]]:
    """Elements of each parameter, by flat parameter: each parameter belongs to the innermost wrapped module around it."""
    model = trainings.model(case.dims)
    wrapped = _wrapped(model, str(dict(case.options).get("wrap", "transformer")))
    units: dict[str, list[int]] = {}
    for name, parameter in model.named_parameters():
        around = [unit for unit in wrapped if name.startswith(f"{unit}.")]
        units.setdefault(max(around, key=len, default=""), []).append(parameter.numel())
    return list(units.values())


def _wrapped(model: GPT, wrap: str) -> set[str]:
    """Names of the modules that a policy wraps, by its rule. A module with one of two tied weights cannot be a unit."""
    kind, _, rest = wrap.partition(":")
    able = {
        name: module
        for name, module in model.named_modules()
        if name and not isinstance(module, nn.ModuleList) and not name.startswith(("head", "token"))
    }
    if kind == "size":
        chosen: list[str] = []
        for name in sorted(able, key=lambda name: -name.count(".")):  # what inner units hold does not count again
            left = [n for n, _ in able[name].named_parameters(prefix=name) if not n.startswith(tuple(chosen))]
            if sum(dict(model.named_parameters())[n].numel() for n in left) >= int(rest):
                chosen.append(name)
        return set(chosen)
    classes = {"none": (), "transformer": ("Block",), "modules": (rest,)}[kind]
    return {name for name, module in able.items() if type(module).__name__ in classes}


def expected(case: Case, world: int, rank: int) -> dict[str, int]:
    """Bytes of the model states by the rules of each API. Mixed precision changes what is gathered, not what is kept."""
    shapes = _shapes(case.dims)
    group = SHARD_GROUP.get(case.strategy, world)
    if case.strategy in ("single", "ddp"):
        numel = sum(prod(shape) for _, shape in shapes)
        return {"param_shard": 4 * numel, "grad_shard": 4 * numel, "optimizer": 8 * numel + 4 * len(shapes)}
    if case.strategy.startswith("fsdp2"):
        # Each parameter is cut along dim 0 in ceil(d0/N) rows; the stored shard is padded to that, optimizer states are not.
        at = rank % group
        padded = local = 0
        for _, (rows, *rest) in shapes:
            each = ceil(rows / group)
            padded += each * prod(rest)
            local += max(0, min(each, rows - at * each)) * prod(rest)
        return {"param_shard": 4 * padded, "grad_shard": 4 * padded, "optimizer": 8 * local + 4 * len(shapes)}
    # FSDP1 concatenates a unit's parameters, each but the last padded to 16 bytes so that views stay aligned, pads that to
    # a multiple of its ranks (no_shard too), and cuts it into N equal parts. Optimizer states follow the parts of the original parameters.
    aligned = 16 // (
        4 if dict(case.options).get("precision", "fp32") == "fp32" else 2
    )  # elements as they are computed with
    stored = states = tensors = 0
    for numels in _fsdp1_units(case):
        starts, flat = [], 0
        for numel in numels:
            flat += -flat % aligned
            starts.append(flat)
            flat += numel
        flat += -flat % (world if group == 1 else group)
        each = flat // group
        stored += each
        begin, end = (rank % group) * each, (rank % group + 1) * each
        for start, numel in zip(starts, numels, strict=True):
            mine = max(0, min(end, start + numel) - max(begin, start))
            states += mine
            tensors += mine > 0
    return {"param_shard": 4 * stored, "grad_shard": 4 * stored, "optimizer": 8 * states + 4 * tensors}


def memory(step: Step) -> dict[str, int | None]:
    return dict(zip((*CATEGORIES, "total"), step.memory, strict=True))


def check_states(case: Case, world: int, results: list[Result]) -> None:
    for rank, result in enumerate(results):
        now = memory(result.steps[-1])
        assert {name: now[name] for name in ("param_shard", "grad_shard", "optimizer")} == expected(
            case, world, rank
        ), f"{case.label} rank {rank} of {world}"
        buckets = expected(case, world, rank)["param_shard"] if case.strategy == "ddp" else 0
        assert now["comm_buffer"] == buckets, case.label
        assert (now["param_unsharded"], now["grad_unsharded"], now["buffer"]) == (0, 0, 0), case.label
        assert now["cache"] is None
        assert now["others"] is None
        assert now["total"] == sum(now[name] or 0 for name in CATEGORIES[:10]), case.label


def check_ledger(case: Case, result: Result) -> None:
    assert result.walked > 10, case.label
    assert result.mismatches == [], f"{case.label}: {result.mismatches[:3]}"
    assert all(said == "ok" for name, said in result.structures[-1].probes.items() if name in ("memory", "phases")), (
        case.label
    )
    for step in result.steps:
        peak = dict(zip((*CATEGORIES, "total"), step.peak, strict=True))
        assert peak["total"] is not None
        assert peak["total"] >= (peak["param_shard"] or 0) + (peak["activation"] or 0)
        assert step.peak_phase in ("forward", "backward", "optimizer", "rest")
        assert step.step_ns == sum(ns for ns in step.phases_ns if ns is not None), case.label
    assert result.goodbye is not None
    assert result.goodbye.reason == "finished"


def run_cases(world: int, cases: list[Case]) -> list[list[Result]]:
    """Results by case, then by rank."""
    by_rank: list[list[Result]] = run_world(world, trainings.train_all, cases)
    return [[ranks[at] for ranks in by_rank] for at in range(len(cases))]


@pytest.fixture(scope="module")
def single_losses() -> dict[str, list[float]]:
    cases = [Case("single", dims) for dims in ("even", "odd")]
    return {case.dims: results[0].losses for case, results in zip(cases, run_cases(1, cases), strict=True)}


def _check_all(world: int, cases: list[Case], single_losses: dict[str, list[float]]) -> None:
    for case, results in zip(cases, run_cases(world, cases), strict=True):
        for result in results:
            check_ledger(case, result)
        if dict(case.options).get("precision", "fp32") == "fp32":
            assert results[0].losses == pytest.approx(single_losses[case.dims][: case.steps], abs=1e-4), case.label
        if {name for name, _ in case.options} <= {"wrap", "precision", "reduce"}:
            check_states(case, world, results)
        if not case.options:
            check_collectives(case, world, results[0])


def check_collectives(case: Case, world: int, result: Result) -> None:
    """Counts and bytes of one step: gathers before forward and again before backward if resharded between, one reduction."""
    structure, comm = result.structures[-1], result.comms[-1]
    seen: dict[tuple[str, int], tuple[int, int]] = {}
    for unit, kind, nbytes in zip(comm.unit, comm.kind, comm.nbytes, strict=True):
        count, total = seen.get((COLLECTIVES[kind], unit), (0, 0))
        seen[COLLECTIVES[kind], unit] = count + 1, total + nbytes
    assert seen == _expected_collectives(case, world, structure), case.label
    assert len({len(column) for column in (comm.unit, comm.kind, comm.phase, comm.group, comm.nbytes)}) == 1
    assert all(0 <= group < len(structure.groups) for group in comm.group)
    if case.strategy != "ddp":
        assert all(ns > 0 for ns in comm.duration_ns), case.label
        assert comm.exposed_ns == comm.duration_ns, "synchronous gloo: all of it is exposed"


def _expected_collectives(case: Case, world: int, structure: Structure) -> dict[tuple[str, int], tuple[int, int]]:
    group = SHARD_GROUP.get(case.strategy, world)
    if case.strategy == "ddp":
        return {("all_reduce", -2 - at): (1, nbytes) for at, nbytes in enumerate(structure.buckets)}
    calls: dict[tuple[str, int], tuple[int, int]] = {}
    keeps = "shard_grad_op" in case.strategy or "zero2" in case.strategy
    for at, unit in enumerate(structure.units):
        whole = unit.shard_bytes * group
        if group > 1:
            calls["all_gather", at] = (1, whole) if keeps or unit.name == "<root>" else (2, 2 * whole)
            if case.strategy.startswith("fsdp2:reshard=2") and unit.name != "<root>":
                calls["all_gather", at] = (2, 2 * whole)  # the second over two ranks, to the same whole
            calls["reduce_scatter", at] = (1, whole)
        if world // group > 1 or case.strategy in ALL_REDUCE_OVER_ONE_RANK or (world == 1 and "fsdp1" in case.strategy):
            calls["all_reduce", at] = (1, unit.shard_bytes)
    return calls


def test_one_rank(single_losses: dict[str, list[float]]) -> None:
    """One rank: every strategy stores everything, and FSDP1 says that it became no_shard."""
    cases = [Case(strategy, "odd" if at % 2 else "even") for at, strategy in enumerate(STRATEGIES[1])]
    cases += _wraps_and_precisions(1, pairwise=True)[::2]
    _check_with_groups(1, cases, single_losses)


def test_two_ranks(single_losses: dict[str, list[float]]) -> None:
    """Two ranks, pairwise: strategies, wrap policies, precisions and dimensions; each other option with one strategy."""
    cases = [Case(strategy, "even" if at % 2 else "odd") for at, strategy in enumerate(STRATEGIES[2])]
    cases += [
        Case(("fsdp1", "fsdp2")[at % 2] + ":full_shard", ("odd", "even")[at % 2], options=options)
        for at, options in enumerate(VARIATIONS)
        if len(options) > 1 or options[0][0] not in ("wrap", "precision")
    ]
    cases += _wraps_and_precisions(2, pairwise=True)
    cases += [
        Case("fsdp2:full_shard", "odd", options=(("cpu_offload", True),)),
        Case("fsdp2:full_shard", "odd", options=(("prefetch", 2),)),
        Case("fsdp2:shard_grad_op", accumulate=2, options=(("wrap", "transformer"),)),
        *(
            Case(s, accumulate=2, skip_sync=True, options=(("wrap", "transformer"),))
            for s in ("fsdp1:full_shard", "fsdp2:full_shard")
        ),
    ]
    _check_all(2, cases, single_losses)


def test_four_ranks(single_losses: dict[str, list[float]]) -> None:
    """Four ranks: hybrid meshes, resharding to two, and uneven shards."""
    strategies = [s for s in STRATEGIES[4] if "=" in s] + ["fsdp1:full_shard", "fsdp2:full_shard"]
    cases = [Case(strategy, "odd", steps=2) for strategy in strategies]
    _check_all(4, cases + _wraps_and_precisions(4, pairwise=True)[::6], single_losses)


WRAPS = ("none", "transformer", "size:3000", "modules:Linear")
PRECISIONS = ("fp32", "bf16", "fp16")


def _wraps_and_precisions(world: int, *, pairwise: bool) -> list[Case]:
    """Every strategy that wraps, with every policy, precision and dimension; pairwise: every two of them together once."""
    cases = []
    for at, strategy in enumerate(s for s in STRATEGIES[world] if s.startswith("fsdp")):
        for number, (wrap, precision, dims) in enumerate(product(WRAPS, PRECISIONS, ("even", "odd"))):
            turn, step = divmod(number, 6)  # turn is the policy's
            if pairwise and step != 2 * ((at + turn) % 3) + (at + turn // 2) % 2:
                continue
            cases.append(Case(strategy, dims, steps=1, options=(("wrap", wrap), ("precision", precision))))
    return cases


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_all_wrap_policies_and_precisions(world: int, single_losses: dict[str, list[float]]) -> None:
    """States are exact for every strategy, wrap policy, precision and dimension."""
    cases = _wraps_and_precisions(world, pairwise=False)
    for start in range(0, len(cases), 48):
        _check_with_groups(world, cases[start : start + 48], single_losses)


def _check_with_groups(world: int, cases: list[Case], single_losses: dict[str, list[float]]) -> None:
    """As `_check_all`; with one rank there is one copy, whatever the strategy."""
    known = dict(SHARD_GROUP)
    if world == 1:
        SHARD_GROUP.update(dict.fromkeys((case.strategy for case in cases), 1))
    try:
        _check_all(world, cases, single_losses)
    finally:
        SHARD_GROUP.clear()
        SHARD_GROUP.update(known)


@pytest.mark.matrix
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("world", [2, 4])
def test_full_matrix(world: int, single_losses: dict[str, list[float]]) -> None:
    """Every strategy in both dimensions, and every option with every strategy that takes it."""
    cases = [Case(strategy, dims) for strategy in STRATEGIES[world] for dims in ("even", "odd")]
    takes: list[tuple[Any, str]] = [
        (options, strategy) for options in VARIATIONS for strategy in STRATEGIES[world] if strategy != "ddp"
    ]
    cases += [Case(strategy, dims, options=options) for options, strategy in takes for dims in ("even", "odd")]
    for start in range(0, len(cases), 40):
        _check_all(world, cases[start : start + 40], single_losses)
