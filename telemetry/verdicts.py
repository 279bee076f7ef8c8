"""Why memory is not 1/N, and what else a person should know: pure functions from a picture of a run to findings.

A verdict has its numbers or is not given. What follows from the structure may speak after STRUCTURAL steps, what is a
statistic of timings after STATISTICAL. Memory and who is waited for are judged here, what else ails a training in `health`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median

from fsdp_tui.telemetry import health
from fsdp_tui.telemetry.courtesy import pieces
from fsdp_tui.telemetry.messages import COMM_PHASES, PHASES, Structure
from fsdp_tui.telemetry.strategy import HYBRID, Strategy, StrategyError, parse_strategy
from fsdp_tui.telemetry.view import (
    BUCKETS,
    STATE_CATEGORIES,
    STATISTICAL,
    STRUCTURAL,
    Column,
    Lateness,
    RankView,
    RunView,
    Verdict,
    category,
    model_states,
    total,
    typical,
)
from fsdp_tui.telemetry.wording import count as _count
from fsdp_tui.telemetry.wording import listed as _listed
from fsdp_tui.telemetry.wording import percent
from fsdp_tui.telemetry.wording import size as _size

OUTLIER = 1.15
"""How many times the usual rank's memory one must hold to stand out."""
BIG_UNIT = 0.9
"""Share of the parameters in one unit from which on it is the whole model, in effect."""
OUTSIDE = 0.05
"""Share of a rank's memory that tensors outside the training hold before they are worth a finding."""
MINOR = 0.01
"""Share of the model states below which padding and the like are not worth a finding."""
LATE_SHARE = 0.10
"""Of the step, from which on waiting for one rank is a finding."""
CAUSES = {
    "input": ("its input takes", "give that rank's loader more workers, or what the others read from"),
    "compute": ("its compute takes", "compare its clocks, its batch and what else runs there with the others'"),
    "rest": (
        "its time between the phases is",
        "look for logging, checkpoints or transfers on that rank; run.batches(loader) tells waiting for input apart",
    ),
}
ORDER = {"bad": 0, "warn": 1, "note": 2, "ok": 3}


def judged(run: RunView) -> RunView:
    """The same picture with its verdicts, the gravest first and the costliest first among equals."""
    found = [verdict for rule in pieces((*RULES, *health.RULES)) for verdict in rule(run)]
    found.sort(
        key=lambda verdict: (ORDER[verdict.severity], -(verdict.measured or 0) if verdict.unit == "bytes" else 0)
    )
    return replace(run, verdicts=tuple(found))


def _strategy(run: RunView) -> Strategy | None:
    try:
        return parse_strategy(run.effective)
    except StrategyError:
        return None


def strategy_changed(run: RunView) -> Iterator[Verdict]:
    """PyTorch replaces some strategies by others with no more than a warning."""
    if not run.requested or not run.effective:
        return
    try:
        requested = parse_strategy(run.requested).with_mesh(run.world_size).text
    except StrategyError:
        return
    if requested == run.effective or _hybrid_that_does_not_shard(run):
        return
    alone = run.world_size == 1
    by_script = (
        run.detail.get("requested") != run.requested
    )  # what shard() was given; absent: the script wraps by itself
    if by_script:
        reason, next_step = "the script chooses its strategy itself", "call shard(model) in it, and the launch decides"
    elif alone:
        reason, next_step = "one rank has nothing to shard with", "use two ranks or more"
    else:
        reason = "PyTorch changed it"
        next_step = "ask for a strategy that fits the ranks, or give the mesh (replicate x shard)"
    yield Verdict(
        kind="strategy_changed",
        severity="note" if alone or by_script else "warn",
        what=f"{run.effective} runs, {run.requested} was launched",
        expected=None,
        measured=None,
        unit="",
        reason=reason,
        next=next_step,
    )


def not_watched(run: RunView) -> Iterator[Verdict]:
    """A run that ended without a step that anybody saw."""
    if run.ended is None or run.steps or any(rank.steps for rank in run.ranks):
        return
    if run.ended.state not in ("finished", "stopped"):
        return
    off = run.launched is not None and run.launched.options.get("telemetry") == "off"
    yield Verdict(
        kind="not_watched",
        severity="note",
        what="nothing was seen from inside" if not run.ranks else "no optimizer step was seen",
        expected=None,
        measured=None,
        unit="",
        reason="it was launched with --telemetry off"
        if off
        else "no optimizer of torch.optim stepped, with a model or without one"
        if not run.ranks
        else f"{_count(len(run.ranks), 'rank')} began to train, and no optimizer of torch.optim stepped",
        next=""
        if off
        else "if it trains all the same, say what a step is: `with watch(model, optimizer) as run:` around the loop, and"
        " run.step(loss) after each step",
    )


def _hybrid_that_does_not_shard(run: RunView) -> bool:
    try:
        requested = parse_strategy(run.requested).with_mesh(run.world_size)
    except StrategyError:
        return False
    effective = _strategy(run)
    return (
        requested.sharding in HYBRID
        and run.world_size > 1
        and effective is not None
        and effective.is_fsdp
        and effective.shard_group_size(run.world_size) == 1
    )


def hybrid_not_sharded(run: RunView) -> Iterator[Verdict]:
    """A hybrid strategy whose shard group is one rank replicates everything."""
    held = [model_states(rank.memory) for rank in run.ranks]
    if run.steps < STRUCTURAL or None in held or not held or not _hybrid_that_does_not_shard(run):
        return
    ideal = run.ideal_state_bytes
    yield Verdict(
        kind="hybrid_not_sharded",
        severity="warn",
        what=f"{run.requested} was asked for, {run.effective} runs: nothing is sharded",
        expected=ideal / run.world_size if ideal else None,
        measured=max(held, key=lambda nbytes: nbytes or 0),
        unit="bytes",
        reason="its shard group is one rank, so every rank keeps all model states",
        next="shard over more ranks: full_shard"
        + (f", or hybrid_shard={run.world_size // 2}x2" if run.world_size >= 4 else ""),
    )


def _facts(rank: RankView) -> Structure:
    """What the rank has said of its model; everything is not known when it has said nothing."""
    return rank.structure or Structure(rank=rank.rank, effective="", detail={}, units=[])


def _fullest(run: RunView, read: Callable[[RankView], int | None]) -> tuple[RankView, int] | None:
    """The rank with most of something, and how much; None when nobody has any, or one rank's is not known."""
    values = [(rank, read(rank)) for rank in run.ranks]
    known = [(rank, value) for rank, value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    rank, value = max(known, key=lambda pair: pair[1])
    return (rank, value) if value else None


def optimizer_not_allocated(run: RunView) -> Iterator[Verdict]:
    """Optimizer states come with the first step: memory that a look before it does not show."""
    expected = _fullest(run, lambda rank: _facts(rank).optimizer_expected_bytes)
    if expected is None or len(run.ranks) < run.world_size or any(category(r.memory, "optimizer") for r in run.ranks):
        return
    if run.steps == 0 and any(rank.steps for rank in run.ranks):  # this very step is coming in
        return
    rank, nbytes = expected
    yield Verdict(
        kind="optimizer_not_allocated",
        severity="note",
        what=f"the optimizer holds no state yet: {_size(nbytes)} on rank {rank.rank} is still to come",
        expected=nbytes,
        measured=0,
        unit="bytes",
        reason="torch.optim allocates its states in its first step"
        if run.steps == 0
        else f"no optimizer has stepped in {run.steps} steps",
        next="leave room for them: a model that fits in its first backward can run out of memory in the step after it",
    )


def states_against_theory(run: RunView) -> Iterator[Verdict]:
    """Measured parameters, gradients and optimizer states of the fullest rank against their exact share."""
    if run.steps < STRUCTURAL or not run.ideal_state_bytes:
        return
    fullest = _fullest(run, lambda rank: model_states(rank.memory))
    if fullest is None or next(optimizer_not_allocated(run), None) is not None:
        return
    worst, held = fullest
    ideal = run.ideal_state_bytes
    off = held / ideal - 1
    strategy = _strategy(run)
    shards = strategy.shard_group_size(run.world_size) if strategy else 1
    part = f"1/{shards} of the model states"
    share = part if shards > 1 else "all of the model states"
    if abs(off) <= 0.05:
        yield Verdict(
            kind="states_match_theory",
            severity="ok",
            what=f"each rank keeps {share}, as theory says",
            expected=ideal,
            measured=held,
            unit="bytes",
            reason=f"parameters, gradients and optimizer of rank {worst.rank}, the fullest: {percent(off, 2, signed=True)} against equal parts",
            next="",
        )
    else:
        causes = _causes(worst)
        yield Verdict(
            kind="states_off_theory",
            severity="warn" if off > 0.15 and not causes else "note",
            what=f"rank {worst.rank} keeps {held / ideal:.2f} times {f'its share, {part}' if shards > 1 else 'the model states'}",
            expected=ideal,
            measured=held,
            unit="bytes",
            reason=causes
            or (
                "states are spread unevenly, or gradients are not reduced"
                if off > 0
                else "parameters that no gradient reaches have neither gradient nor optimizer state"
            ),
            next="see the findings on each" if causes else "compare the categories of the ranks",
        )


def _causes(rank: RankView) -> str:
    """What is known to put a rank's states off their exact share, with bytes of its parameters or gradients."""
    facts = _facts(rank)
    frozen = sum(unit.frozen_grad_bytes or 0 for unit in facts.units)
    parts = (
        ("padding", facts.padding_bytes),
        ("parameters left out of sharding", facts.ignored_bytes),
        ("gradients of frozen parameters", frozen),
    )
    return ", ".join(f"{what} {_size(nbytes)}" for what, nbytes in parts if nbytes)


def frozen_mixed(run: RunView) -> Iterator[Verdict]:
    """FSDP1 has one gradient for a whole flat parameter, the frozen part of it included."""
    if run.steps < STRUCTURAL or not any(unit.frozen_grad_bytes for unit in run.units):
        return
    mixed = _fullest(run, lambda rank: sum(unit.frozen_grad_bytes or 0 for unit in _facts(rank).units))
    if mixed is None:
        return
    rank, nbytes = mixed
    held = model_states(rank.memory)
    if held is None or nbytes < MINOR * held:
        return
    units = [unit.name for unit in _facts(rank).units if unit.frozen_grad_bytes]
    yield Verdict(
        kind="frozen_mixed",
        severity="warn",
        what=f"{_size(nbytes)} of gradients for frozen parameters on rank {rank.rank}:"
        f" {_count(len(units), 'unit')} {'mixes' if len(units) == 1 else 'mix'} them with trainable ones",
        expected=0,
        measured=nbytes,
        unit="bytes",
        reason=f"a flat parameter has one gradient for all of it, frozen parts included: {_listed(units)}",
        next="wrap trainable parts (adapters, say) apart from frozen ones, or use fsdp2, which has a gradient for each",
    )


def ignored_parameters(run: RunView) -> Iterator[Verdict]:
    """Parameters left out of sharding are whole on every rank, and FSDP does not reduce their gradients."""
    ignored = _fullest(run, lambda rank: _facts(rank).ignored_bytes)
    if run.steps < STRUCTURAL or ignored is None or run.world_size < 2:
        return
    rank, nbytes = ignored
    facts = _facts(rank)
    trains = facts.ignored_trainable_bytes or 0
    yield Verdict(
        kind="ignored_parameters",
        severity="warn" if trains else "note",
        what=f"{_size(nbytes)} of parameters are on every rank, not sharded",
        expected=nbytes / run.world_size,
        measured=nbytes,
        unit="bytes",
        reason=f"FSDP was told to ignore them: {_listed(facts.ignored)}",
        next=f"{_size(trains)} of them are trained, and FSDP does not reduce their gradients: reduce them yourself, or the"
        " ranks drift apart"
        if trains
        else "leave them to FSDP if every rank need not have them whole",
    )


def uneven_shards(run: RunView) -> Iterator[Verdict]:
    """Dimensions that the ranks do not divide are padded, and the last ranks hold less, or nothing."""
    if run.steps < STRUCTURAL or len(run.ranks) < 2:
        return
    stored = {rank.rank: category(rank.memory, "param_shard") for rank in run.ranks}
    padding = {rank.rank: _facts(rank).padding_bytes for rank in run.ranks}
    held = {r: (stored[r] or 0) - (padding[r] or 0) for r in stored}
    whole = sum(nbytes or 0 for nbytes in stored.values())
    lost = sum(nbytes or 0 for nbytes in padding.values())
    if None in stored.values() or None in padding.values() or not lost or lost < MINOR * whole:
        return
    least, most = min(held, key=lambda rank: held[rank]), max(held, key=lambda rank: held[rank])
    yield Verdict(
        kind="uneven_shards",
        severity="warn" if lost > 0.1 * whole else "note",
        what=f"{_size(lost)} of padding, {percent(lost / whole, 1)} of the stored parameters: shards are uneven",
        expected=whole - lost,
        measured=whole,
        unit="bytes",
        reason=f"without padding rank {most} holds {_size(held[most])}, rank {least} {_size(held[least])}:"
        " the first dimension of parameters is not a multiple of the ranks",
        next="choose dimensions that divide by the ranks, or shard small parameters in larger units (fsdp1 pads per unit)",
    )


def no_sync(run: RunView) -> Iterator[Verdict]:
    """Without synchronisation gradients stay whole between micro-batches."""
    strategy = _strategy(run)
    kept = _fullest(run, lambda rank: _facts(rank).no_sync_bytes)
    if kept is None or strategy is None or strategy.shard_group_size(run.world_size) < 2 or run.steps < STRUCTURAL:
        return
    rank, nbytes = kept
    yield Verdict(
        kind="no_sync",
        severity="note",
        what=f"{_size(nbytes)} of full-size gradients wait between micro-batches on rank {rank.rank}",
        expected=0,
        measured=nbytes,
        unit="bytes",
        reason="gradients are accumulated without synchronisation, so that nothing is reduced to a shard until the last"
        " backward",
        next="reduce in every backward (leave no_sync out): less memory, for one reduce-scatter per unit and micro-batch",
    )


def activations_dominate(run: RunView) -> Iterator[Verdict]:
    """Where most of the peak was made by forward and backward, sharding has little left to save."""
    peak = _fullest(run, lambda rank: total(rank.peak))
    if run.steps < STRUCTURAL or peak is None or run.world_size < 2:
        return
    rank, whole = peak
    saved, temp = category(rank.peak, "activation"), category(rank.peak, "temp")
    if saved is None or temp is None or 2 * (saved + temp) <= whole:
        return
    held, ideal = model_states(rank.memory), run.ideal_state_bytes
    fair = held is not None and ideal is not None and abs(held / ideal - 1) <= 0.05
    checkpointed = bool(run.detail.get("checkpointing"))
    yield Verdict(
        kind="activations_dominate",
        severity="note",
        what=f"{percent((saved + temp) / whole)} of the peak is activations, which sharding does not touch",
        expected=None,
        measured=saved + temp,
        unit="bytes",
        reason=("model states are their exact share; " if fair else "")
        + f"the peak of rank {rank.rank} is in {rank.peak_phase}, with {_size(saved)} saved for backward"
        + (f" and {_size(temp)} temporary" if temp else ""),
        next="use smaller micro-batches or shorter sequences"
        if checkpointed
        else "use activation checkpointing, or smaller micro-batches",
    )


def tensors_outside(run: RunView) -> Iterator[Verdict]:
    """Live tensors that are neither the model's nor an optimizer's, such as an average of the weights."""
    outside = _fullest(run, lambda rank: category(rank.memory, "unexplained"))
    if run.steps < STRUCTURAL or outside is None:
        return
    rank, nbytes = outside
    whole = total(rank.memory)
    if not whole or nbytes < OUTSIDE * whole:
        return
    groups = _facts(rank).outside
    on_cpu = rank.hello is None or rank.hello.device == "cpu"
    if on_cpu and sum(group.nbytes for group in groups) < OUTSIDE * whole:
        return  # the heap grew, and no search has found tensors yet
    copies = {"the whole model": run.param_bytes, "its parameters": category(rank.memory, "param_shard")}
    size = next(
        (f", as much as {whose}" for whose, same in copies.items() if same and abs(nbytes / same - 1) < 0.02), ""
    )
    yield Verdict(
        kind="tensors_outside",
        severity="note",
        what=f"rank {rank.rank} holds {_size(nbytes)} outside model and optimizer{size}",
        expected=None,
        measured=nbytes,
        unit="bytes",
        reason="the largest: " + _listed([f"{group.tensors} x {group.what}" for group in groups])
        if groups
        else "no tensor that Python can see accounts for them",
        next="keep an average of the weights in shards, or on the host; drop what is not needed",
    )


def two_ranks(run: RunView) -> Iterator[Verdict]:
    """With two ranks states halve and no more: people expect more."""
    strategy = _strategy(run)
    states = [model_states(rank.memory) for rank in run.ranks]
    if run.steps < STRUCTURAL or strategy is None or strategy.shard_group_size(run.world_size) != 2 or None in states:
        return
    held = max(state for state in states if state is not None)
    yield Verdict(
        kind="two_ranks",
        severity="note",
        what="two ranks share the states: they halve, and no more",
        expected=None,
        measured=held,
        unit="bytes",
        reason="sharding divides model states by the ranks of the shard group",
        next=f"4 ranks would keep {_size(held / 2)} each, 8 ranks {_size(held / 4)}",
    )


def parameters_kept(run: RunView) -> Iterator[Verdict]:
    """SHARD_GRAD_OP keeps the gathered parameters from forward to backward."""
    strategy = _strategy(run)
    if run.steps < STRUCTURAL or strategy is None or strategy.sharding not in ("shard_grad_op", "hybrid_shard_zero2"):
        return
    kept = [category(rank.peak, "param_unsharded") for rank in run.ranks]
    known = [value for value in kept if value]
    if known and run.world_size > 1:
        yield Verdict(
            kind="shard_grad_op",
            severity="note",
            what=f"{_size(max(known))} of gathered parameters stay from forward to backward: no leak",
            expected=None,
            measured=max(known),
            unit="bytes",
            reason=f"{strategy.text} does not reshard after forward",
            next="full_shard frees them, for one more all-gather per unit in backward",
        )


def one_big_unit(run: RunView) -> Iterator[Verdict]:
    """With a single unit every all-gather brings all parameters at once."""
    strategy = _strategy(run)
    if run.steps < STRUCTURAL or strategy is None or strategy.shard_group_size(run.world_size) < 2 or not run.units:
        return
    big = max(run.units, key=lambda unit: unit.params)
    params = sum(unit.params for unit in run.units)
    if big.params < BIG_UNIT * params:
        return
    wrap = str(run.detail.get("wrap", "none"))
    nothing = run.detail.get("wrapped_modules") == 0 and wrap != "none"
    facts = _facts(run.ranks[0])
    blocks, block = facts.blocks or 0, facts.largest_block_params or 0
    at_once, advice = None, "wrap parts of it: only the ones in use are then unsharded"
    if blocks > 2 and block:
        # What is in no block stays in the root's unit; of the blocks one is in use and the next is on its way.
        at_once = big.unsharded_bytes * (params - (blocks - 2) * block) // params
        advice = (
            f"wrap each of the {blocks} blocks (--wrap transformer): {_size(at_once)} unsharded at once,"
            f" {_size(big.unsharded_bytes - at_once)} less"
        )
    yield Verdict(
        kind="policy_matched_nothing" if nothing else "one_big_unit",
        severity="warn",
        what=f"the wrap policy {wrap} wrapped 0 submodules: {_size(big.unsharded_bytes)} unsharded at once"
        if nothing
        else f"the whole model is one unit: {_size(big.unsharded_bytes)} unsharded at once"
        if len(run.units) == 1
        else f"one unit ({big.name}) holds {percent(big.params / params)} of the parameters",
        expected=at_once,
        measured=big.unsharded_bytes,
        unit="bytes",
        reason=f"all {big.params:,} parameters are unsharded at every all-gather"
        + (f"; the largest block has {block:,}" if block else ""),
        next=advice,
    )


def exposed_communication(run: RunView) -> Iterator[Verdict]:
    """Share of a step in which compute waits for communication."""
    exposed, step = run.comm.exposed_ns, run.step_median_ns
    if run.steps < STATISTICAL or exposed is None or not step or run.world_size < 2:
        return
    share = exposed / step
    backend = next((rank.hello.backend for rank in run.ranks if rank.hello), "")
    if share >= 0.05:
        yield Verdict(
            kind="exposed_communication",
            severity="note" if backend == "gloo" else "warn",
            what=f"{percent(share)} of the step is exposed communication: compute waits",
            expected=0.05,
            measured=share,
            unit="share of step",
            reason="gloo's collectives on a CPU do not overlap with compute"
            if backend == "gloo"
            else "gathers are not hidden behind compute",
            next="" if backend == "gloo" else "prefetch further ahead, or make units larger",
        )


def straggler(run: RunView) -> Iterator[Verdict]:
    """A rank that the others wait for in nearly every step, where that begins, and what its phases say of the cause.

    Jitter makes now one rank late and now another: their difference then is small against its spread over the steps.
    """
    late, step = run.lateness, run.step_median_ns
    if late is None or not step or late.steps < STATISTICAL:
        return
    share = late.ns / step
    if share < LATE_SHARE or late.steady_ns < late.ns / 2:
        return
    where = "the buckets' " if late.unit == BUCKETS else f"{late.unit}'s " if late.unit else ""
    reason, advice = _why_late(run, late)
    yield Verdict(
        kind="straggler",
        severity="warn",
        what=f"the others wait for rank {late.rank}: {late.ns / 1e6:,.1f} ms per step ({percent(share)})",
        expected=LATE_SHARE,
        measured=share,
        unit="share of step",
        reason=f"it begins at {where}{late.kind.replace('_', '-')} in {late.phase}; {reason}",
        next=advice,
    )


def _why_late(run: RunView, late: Lateness) -> tuple[str, str]:
    """Reason and advice: which part of its step is longer than the others', by half of the lateness or more."""
    parts = {rank.rank: _own_time(rank) for rank in run.ranks}
    if late.rank not in parts or len(parts) < 2:
        return "its phases are not known", ""
    longer: dict[str, float] = {}
    for name, own in parts[late.rank].items():
        others = [part[name] for rank, part in parts.items() if rank != late.rank]
        known = [value for value in others if value is not None]
        if own is not None and known:
            longer[name] = own - median(known)
    worst = max(longer, key=lambda name: longer[name], default="")
    if worst and longer[worst] >= late.ns / 2:
        words, advice = CAUSES[worst]
        return f"{words} {longer[worst] / 1e6:,.1f} ms longer than the others'", advice
    if longer.keys() >= {"compute", "rest"}:
        return "neither its input nor its compute is longer", f"compare the link of rank {late.rank} with the others'"
    return "its phases do not tell why", ""


def _own_time(rank: RankView) -> dict[str, float | None]:
    """A rank's step without what it spent in collectives, where that is known."""
    phases = dict(zip(PHASES, rank.phases_ns, strict=False))
    exposed = dict(zip(COMM_PHASES, rank.exposed_ns, strict=False))
    wanted = [phases.get("forward"), phases.get("backward"), exposed.get("forward"), exposed.get("backward")]
    forward, backward, *waited = wanted
    compute = None
    if forward is not None and backward is not None and None not in waited:
        compute = forward + backward + (phases.get("optimizer") or 0) - sum(ns for ns in waited if ns is not None)
    rest, other = phases.get("rest"), exposed.get("other")
    return {
        "input": phases.get("input"),
        "compute": compute,
        "rest": None if rest is None else rest - (other or 0),
    }


def peak_spread(run: RunView) -> Iterator[Verdict]:
    """A rank whose peak stands out from the usual one's, and the category that makes the difference."""
    usual = typical([total(rank.peak) for rank in run.ranks])
    fullest = _fullest(run, lambda rank: total(rank.peak))
    if run.steps < STRUCTURAL or len(run.ranks) < 2 or not usual or fullest is None or fullest[1] <= OUTLIER * usual:
        return
    rank, measured = fullest
    others = [other.peak for other in run.ranks]
    excess = {name: _excess(rank.peak, others, name) for name in dict.fromkeys((*STATE_CATEGORIES, *EXCESS))}
    name = max(excess, key=lambda name: excess[name])
    if name in ("activation", "temp") and run.steps < STATISTICAL:  # batches differ from step to step
        return
    since = "" if rank.fuller_since is None else f", since step {rank.fuller_since}"
    if rank.fuller_since == 1:
        since = ", since the first step"
    yield Verdict(
        kind="rank_outlier",
        severity="warn",
        what=f"rank {rank.rank} peaks {_size(measured - usual)} above the usual rank (×{measured / usual:.2f}){since}",
        expected=usual,
        measured=measured,
        unit="bytes",
        reason=f"{_size(excess[name])} of it is {name}: {EXCESS.get(name, 'its share of the model states is larger')}",
        next=f"see what rank {rank.rank} alone does: "
        + EXCESS_ADVICE.get(name, "compare its categories with its neighbours'"),
    )


EXCESS = {
    "activation": "longer sequences or a larger batch",
    "temp": "longer sequences or a larger batch",
    "unexplained": "tensors outside the training, as of a full state dict or a model that was loaded whole",
    "param_unsharded": "parameters that stay gathered",
    "grad_unsharded": "gradients that are not reduced",
    "comm_buffer": "buffers of collectives",
    "buffer": "buffers of the model",
}
EXCESS_ADVICE = {
    "unexplained": "free what loading or checkpointing left there; load on the meta device, gather state dicts in shards",
    "activation": "balance the tokens that ranks are given",
    "temp": "balance the tokens that ranks are given",
}


def _excess(column: Column, others: list[Column], name: str) -> int:
    own, usual = category(column, name), typical([category(other, name) for other in others])
    return 0 if own is None or usual is None else own - usual


def cache(run: RunView) -> Iterator[Verdict]:
    """Memory that torch's CUDA allocator has reserved and not given to any tensor; none of it on a CPU."""
    fullest = _fullest(run, lambda rank: category(rank.memory, "cache"))
    if run.steps < STRUCTURAL or fullest is None:
        return
    rank, nbytes = fullest
    reserved = nbytes + (total(rank.memory) or 0)
    retries = int(rank.gauges.get("retries") or 0)
    if not retries and (nbytes < 0.3 * reserved or nbytes < 2**30):
        return
    yield Verdict(
        kind="cache",
        severity="warn" if retries else "note",
        what=f"rank {rank.rank} has {_size(nbytes)} reserved and not allocated",
        expected=None,
        measured=nbytes,
        unit="bytes",
        reason=f"{percent(nbytes / reserved)} of what torch has reserved is cache"
        + (f"; it was emptied {_count(retries, 'time')} to find room, which is slow" if retries else ""),
        next="expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF fits blocks of changing size better",
    )


def beside_torch(run: RunView) -> Iterator[Verdict]:
    """Memory of a GPU that is not torch's: the CUDA context and NCCL's buffers, and other processes."""
    if run.steps < STRUCTURAL:
        return
    devices = [rank for rank in run.ranks if rank.hello is not None and rank.hello.device.startswith("cuda")]
    if not devices or len(devices) < len(run.ranks):
        return
    fullest = _fullest(run, lambda rank: category(rank.memory, "non_torch"))
    if fullest is not None:
        rank, nbytes = fullest
        ours = nbytes + (category(rank.memory, "cache") or 0) + (total(rank.memory) or 0)
        if nbytes >= 0.1 * ours and nbytes >= 2**30:
            yield Verdict(
                kind="non_torch",
                severity="note",
                what=f"the process of rank {rank.rank} holds {_size(nbytes)} of its GPU beside torch",
                expected=None,
                measured=nbytes,
                unit="bytes",
                reason="the CUDA context, its kernels, and buffers of NCCL and other libraries",
                next="fewer process groups and NCCL channels need less (NCCL_MAX_NCHANNELS, NCCL_BUFFSIZE)",
            )
    fullest = _fullest(run, lambda rank: category(rank.memory, "others"))
    if fullest is None:
        return
    rank, nbytes = fullest
    own = {(other.hello.host, other.hello.pid) for other in run.ranks if other.hello is not None}
    host, capacity = (rank.hello.host, rank.hello.capacity_bytes) if rank.hello else ("", None)
    listed = [(pid, held) for pid, held in rank.other_processes or () if (host, pid) not in own]
    siblings = sum(held or 0 for pid, held in rank.other_processes or () if (host, pid) in own)
    foreign = nbytes - siblings
    if capacity and foreign >= 0.02 * capacity:
        who = ", ".join(f"pid {pid}" + (f" {_size(held)}" if held is not None else "") for pid, held in listed[:3])
        yield Verdict(
            kind="others",
            severity="warn",
            what=f"other processes hold {_size(foreign)} of rank {rank.rank}'s GPU",
            expected=0,
            measured=foreign,
            unit="bytes",
            reason=who or "NVML does not name them",
            next="end them, or train on another GPU",
        )


def failure(run: RunView) -> Iterator[Verdict]:
    """A run that ended badly says so before anything else."""
    if run.ended is None or run.ended.state not in ("failed", "lost"):
        return
    failed = run.ended.state == "failed"
    yield Verdict(
        kind="failed" if failed else "lost",
        severity="bad",
        what=f"the run {'failed' if failed else 'was lost'}: {run.ended.reason}",
        expected=None,
        measured=None,
        unit="",
        reason="",
        next="read its log",
    )


def not_recorded(run: RunView) -> Iterator[Verdict]:
    """A recording that cannot be written, as on a full disk: the live picture goes on."""
    told = [event for event in run.events if event.kind in ("recording_stopped", "recording_resumed")]
    if not told or told[-1].kind == "recording_resumed":
        return
    stopped = told[-1]
    since = stopped.step or 0
    yield Verdict(
        kind="not_recorded",
        severity="warn",
        what=f"not recorded since step {since:,}"
        + (f": {_count(run.steps - since, 'step')}" if run.steps > since else ""),
        expected=since,
        measured=run.steps,
        unit="steps",
        reason=stopped.text.partition(": ")[2],
        next="make room where runs are kept, or set FSDP_TUI_HOME to another disk for the next run"
        if run.ended is not None
        else "make room where runs are kept: then what memory still holds of it is recorded too",
    )


RULES = (
    failure,
    not_recorded,
    not_watched,
    strategy_changed,
    hybrid_not_sharded,
    optimizer_not_allocated,
    states_against_theory,
    one_big_unit,
    frozen_mixed,
    ignored_parameters,
    uneven_shards,
    peak_spread,
    parameters_kept,
    no_sync,
    activations_dominate,
    tensors_outside,
    two_ranks,
    cache,
    beside_torch,
    exposed_communication,
    straggler,
)
