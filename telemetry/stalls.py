"""Trainings that stand still, and ranks that do not answer: who is behind, and where each one is, by their heartbeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdp_tui.telemetry.view import BUCKETS, Progress, RankView, RunView, Verdict
from fsdp_tui.telemetry.wording import duration, listed
from fsdp_tui.telemetry.wording import ranks as ranks_named

SECOND = 1_000_000_000

STALLED_STEPS, STALLED_NS = 10, 10 * SECOND
"""No step for so many times the usual one, and at least so long, is a stall."""
FIRST_STEPS, FIRST_STEPS_NS = 3, 120 * SECOND
"""Before so many steps nobody knows the usual one, and compilation may take long."""
HANGS_NS = 300 * SECOND
"""Nobody lets ranks wait for one of them for so long on purpose."""
SILENT_NS = 10 * SECOND
"""Without a heartbeat, which come twice a second."""

IN_PHASE = {
    "input": "waiting for its next batch",
    "forward": "in forward",
    "backward": "in backward",
    "optimizer": "in its optimizer step",
    "rest": "between the phases of a step",
    "checkpoint": "saving or loading a checkpoint",
    "": "somewhere",
}
ORDER = {"forward": 1, "backward": 2, "optimizer": 3}
"""Phases in which a rank is further in its step than in any other."""


def rank_silent(run: RunView) -> Iterator[Verdict]:
    """Ranks whose heartbeats have stopped, held against the newest word of anybody."""
    if run.ended is not None:
        return
    newest = _newest_ns(run)
    silent = {rank.rank: newest - rank.seen_ns for rank in _there(run) if rank.seen_ns and _is_silent(rank, newest)}
    if not silent:
        return
    longest = max(silent.values())
    yield Verdict(
        kind="rank_silent",
        severity="warn",
        what=f"{ranks_named(list(silent))} {'does' if len(silent) == 1 else 'do'} not answer: no heartbeat for {duration(longest)}",
        expected=SILENT_NS,
        measured=longest,
        unit="ns",
        reason="the process is stopped, or something holds Python's interpreter lock",
        next="look at the process from outside: "
        + listed([_process(rank) for rank in run.ranks if rank.rank in silent]),
    )


def _process(rank: RankView) -> str:
    return f"pid {rank.hello.pid} on {rank.hello.host}" if rank.hello else f"rank {rank.rank}"


def _newest_ns(run: RunView) -> int:
    """When anybody was last heard of; the hub's events tell the time too."""
    seen = [rank.seen_ns for rank in run.ranks if rank.seen_ns is not None]
    return max([*seen, *(event.at_ns for event in run.events[-1:])], default=0)


def _there(run: RunView) -> list[RankView]:
    return [rank for rank in run.ranks if not rank.goodbye]


def _is_silent(rank: RankView, newest_ns: int) -> bool:
    return rank.seen_ns is not None and newest_ns - rank.seen_ns > SILENT_NS


def stalled(run: RunView) -> Iterator[Verdict]:
    """No step for long, while heartbeats come: who is silent, who is behind, and where each one is."""
    if run.state == "paused" or (run.ended is not None and run.ended.state == "finished"):
        return
    newest = _newest_ns(run)
    there = [(rank, rank.progress) for rank in _there(run) if rank.progress is not None and rank.progress.phase]
    answering = [(rank, at) for rank, at in there if not rank.paused and not _is_silent(rank, newest)]
    if not answering:
        return
    silent = [rank for rank in _there(run) if _is_silent(rank, newest)]
    last_heard = [(rank, at) for rank, at in there if _is_silent(rank, newest)]
    idle = min(at.idle_ns for _, at in answering)
    usual = run.step_median_ns if run.steps >= FIRST_STEPS else None
    limit = max(STALLED_NS, STALLED_STEPS * usual) if usual else FIRST_STEPS_NS
    waiting = any(at.inside for _, at in answering)
    if idle < limit or (not run.steps and not waiting):
        return
    places = {rank.rank: _place(at) for rank, at in answering}
    behind = [rank for rank, place in places.items() if place == min(places.values())]
    apart = len(set(places.values())) > 1
    saving = all(at.phase == "checkpoint" for rank, at in answering if not apart or rank.rank in behind)
    together = not apart and not silent
    ownwork = not waiting and together and all(at.phase in ("rest", "checkpoint") for _, at in answering)
    severity = "bad" if (waiting or not together) and idle >= HANGS_NS and not saving else "note" if ownwork else "warn"
    if run.ended is not None and severity == "note":
        return
    who = [f"{_named([rank.rank for rank in silent])} silent"] if silent else []
    if apart:
        who.append(f"{_named(behind)} behind")
    elif silent and all(at.inside for _, at in answering):
        who.append("the other waits" if len(answering) == 1 else "the others wait")
    elif not silent:
        who.append("all ranks are at one place")
    steps_differ = len({at.step for _, at in answering + last_heard}) > 1
    heard = _whereabouts(last_heard, steps_differ)
    if heard:
        heard[0] = f"by {'its' if len(last_heard) == 1 else 'their'} last heartbeat {heard[0]}"
        late = [rank.rank for rank, at in last_heard if _place(at) < min(places.values())]
        if late:  # by then: what a rank did after its last heartbeat nobody knows
            heard.append(f"by then {_named(late)} behind the others")
    gone = [f"rank {rank.rank} has left ({rank.goodbye})" for rank in run.ranks if rank.goodbye]
    name = run.launched.run_id if run.launched else "RUN"
    yield Verdict(
        kind="stalled",
        severity=severity,
        what=f"no step for {duration(idle)}: {', '.join(who)}"
        + (", until the run ended" if run.ended is not None else ""),
        expected=usual,
        measured=idle,
        unit="ns",
        reason="; ".join([*_whereabouts(answering, steps_differ), *heard, *gone]),
        next="it may be an evaluation or the script's own work"
        if severity == "note"
        else "see where each rank was"
        if run.ended is not None
        else f"a silent process is stopped or swapped out: see {listed([_process(rank) for rank in silent])}, and its log"
        if silent
        else f"fsdp-tui stacks {name} shows what each rank is doing",
    )


def _named(ranks: Sequence[int]) -> str:
    return f"{ranks_named(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _place(at: Progress) -> tuple[int, int, int]:
    """Orders ranks by how far they are."""
    return at.step, at.calls, ORDER.get(at.phase, 0)


def _whereabouts(ranks: Sequence[tuple[RankView, Progress]], steps_differ: bool) -> list[str]:
    """Where each is, those that are at one place together, who is behind first."""
    groups: dict[tuple[tuple[int, int, int], str, str], list[int]] = {}
    for rank, at in sorted(ranks, key=lambda pair: _place(pair[1])):
        groups.setdefault((_place(at), doing(at), doing(at, several=True)), []).append(rank.rank)
    return [
        f"{ranks_named(members)} {several if len(members) > 1 else one}"
        + (f" after step {place[0]:,}" if steps_differ else "")
        for (place, one, several), members in list(groups.items())[:4]
    ] + ([f"{len(groups) - 4} more places"] if len(groups) > 4 else [])


def doing(at: Progress, *, several: bool = False) -> str:
    """What a rank is at, as the end of a sentence that begins with its name, or with those of several."""
    unit = "DDP's buckets" if at.unit == BUCKETS else at.unit
    called = f"{at.kind.replace('_', '-')}{f' of {unit}' if unit else ''}" if at.kind else ""
    if at.inside and called:
        return f"{'wait' if several else 'waits'} in the {called} ({at.phase}), collective {at.calls:,}"
    words = f"{'are' if several else 'is'} {IN_PHASE.get(at.phase, at.phase)}"
    them = "them" if several else "it"
    return f"{words}, {at.calls:,} collectives behind {them}, the last the {called}" if called else words


RULES = (rank_silent, stalled)
