"""Why memory is not 1/N, and what else a person should know: pure functions from a picture of a run to findings.

A verdict has its numbers or is not given. What follows from the structure may speak after STRUCTURAL steps, what is a
statistic of timings after STATISTICAL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from fsdp_tui.telemetry.messages import COMM_PHASES, PHASES
from fsdp_tui.telemetry.strategy import Strategy, StrategyError, parse_strategy
from fsdp_tui.telemetry.view import BUCKETS, Lateness, RankView, RunView, Verdict, category, model_states, total

STRUCTURAL = 2
STATISTICAL = 20
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
    found = [verdict for rule in RULES for verdict in rule(run)]
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
    if requested != run.effective:
        alone = run.world_size == 1
        yield Verdict(
            kind="strategy_changed",
            severity="note" if alone else "warn",
            what=f"{run.requested} was asked for, {run.effective} runs",
            expected=None,
            measured=None,
            unit="",
            reason="one rank has nothing to shard with" if alone else "PyTorch changed it",
            next="use two ranks or more"
            if alone
            else "ask for a strategy that fits the ranks, or give the mesh (replicate x shard)",
        )


def states_against_theory(run: RunView) -> Iterator[Verdict]:
    """Measured parameters, gradients and optimizer states of the fullest rank against their exact share."""
    if run.steps < STRUCTURAL or not run.ideal_state_bytes:
        return
    states = {rank.rank: model_states(rank.memory) for rank in run.ranks}
    known = {rank: held for rank, held in states.items() if held is not None}
    if not known or len(known) < len(states):
        return
    if any(not category(rank.memory, "optimizer") for rank in run.ranks):
        yield Verdict(
            kind="optimizer_not_allocated",
            severity="note",
            what="the optimizer holds no state yet",
            expected=None,
            measured=0,
            unit="bytes",
            reason="most optimizers allocate their state in their first step; SGD without momentum has none",
            next="expect memory to grow at the first optimizer step, unless the optimizer keeps no state",
        )
        return
    worst = max(known, key=lambda rank: known[rank])
    held, ideal = known[worst], run.ideal_state_bytes
    off = held / ideal - 1
    strategy = _strategy(run)
    shards = strategy.shard_group_size(run.world_size) if strategy else 1
    share = f"1/{shards} of the model states" if shards > 1 else "all of the model states, on every rank"
    if abs(off) <= 0.05:
        yield Verdict(
            kind="states_match_theory",
            severity="ok",
            what=f"each rank keeps {share}, as theory says",
            expected=ideal,
            measured=held,
            unit="bytes",
            reason=f"parameters, gradients and optimizer of rank {worst}, the fullest: {off:+.2%} against equal parts",
            next="",
        )
    else:
        yield Verdict(
            kind="states_off_theory",
            severity="warn" if off > 0.15 else "note",
            what=f"rank {worst} keeps {held / ideal:.2f} times {share}",
            expected=ideal,
            measured=held,
            unit="bytes",
            reason="padding of uneven dimensions, parameters left out of sharding, or gradients that are not reduced",
            next="compare the categories of the ranks; dimensions that divide by the ranks need no padding",
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
        next=f"4 ranks would keep {_mib(held / 2)} each, 8 ranks {_mib(held / 4)}",
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
            what="gathered parameters stay from forward to backward; it is no leak",
            expected=None,
            measured=max(known),
            unit="bytes",
            reason=f"{strategy.text} does not reshard after forward",
            next="full_shard frees them, for one more all-gather per unit in backward",
        )


def one_big_unit(run: RunView) -> Iterator[Verdict]:
    """With a single unit every all-gather brings all parameters at once."""
    strategy = _strategy(run)
    if (
        run.steps < STRUCTURAL
        or strategy is None
        or strategy.shard_group_size(run.world_size) < 2
        or len(run.units) != 1
    ):
        return
    wrap = str(run.detail.get("wrap", "none"))
    nothing = run.detail.get("wrapped_modules") == 0 and wrap != "none"
    yield Verdict(
        kind="policy_matched_nothing" if nothing else "one_big_unit",
        severity="warn",
        what=f"the wrap policy {wrap} matched no module" if nothing else "the whole model is one unit",
        expected=None,
        measured=run.units[0].unsharded_bytes,
        unit="bytes",
        reason="all parameters are gathered at once, in every forward",
        next="wrap each block: only the blocks in use are then unsharded",
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
            what=f"compute waits for communication during {share:.0%} of the step",
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
        what=f"the others wait for rank {late.rank}: {late.ns / 1e6:,.1f} ms of each step, {share:.0%} of it",
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
    """A rank whose peak stands out from the median of the ranks."""
    peaks = {rank.rank: total(rank.peak) for rank in run.ranks}
    known = {rank: peak for rank, peak in peaks.items() if peak}
    if run.steps < STATISTICAL or len(known) < 2 or len(known) < len(peaks):
        return
    middle = median(known.values())
    worst = max(known, key=lambda rank: known[rank])
    if known[worst] > 1.15 * middle:
        yield Verdict(
            kind="rank_outlier",
            severity="warn",
            what=f"rank {worst} peaks at {known[worst] / middle:.2f} times the median",
            expected=middle,
            measured=known[worst],
            unit="bytes",
            reason="longer sequences, an uneven shard, or extra tensors on that rank",
            next=f"compare the categories of rank {worst} with its neighbours",
        )


def failure(run: RunView) -> Iterator[Verdict]:
    """A run that ended badly says so before anything else."""
    if run.ended is None or run.ended.state not in ("failed", "lost"):
        return
    yield Verdict(
        kind=run.ended.state,
        severity="bad",
        what=f"the run {'failed' if run.ended.state == 'failed' else 'was lost'}: {run.ended.reason}",
        expected=None,
        measured=None,
        unit="",
        reason="",
        next="read its log (o)",
    )


RULES = (
    failure,
    strategy_changed,
    states_against_theory,
    one_big_unit,
    peak_spread,
    parameters_kept,
    two_ranks,
    exposed_communication,
    straggler,
)


def _mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:,.1f} MiB"
