"""What a run that goes on is asked for: `stop`, `pause`, `resume`, `capture` and `stacks`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

from fsdp_tui.telemetry.client import RunClient
from fsdp_tui.telemetry.messages import ENDED, Capture
from fsdp_tui.telemetry.report import show, stacks
from fsdp_tui.telemetry.trace import summary
from fsdp_tui.tui import tables
from fsdp_tui.tui.commands.common import CommandError, opened, opened_to, ranks_of, say, write_text
from fsdp_tui.tui.commands.launching import StopNews, settled
from fsdp_tui.tui.commands.reading import trace_document

STACKS_PATIENCE_S = 3.0
"""A rank answers at once, or not at all."""
BEGIN_PATIENCE_S = 180.0
"""For ranks that are coming up: torch is imported, weights are loaded."""
COMMAND_PATIENCE_S = 60.0
"""For pause and resume: a step may take long."""


def stop(parsed: argparse.Namespace) -> int:
    with opened_to("stop", parsed.run) as client:
        run_id = client.entry.id
        say(f"asked all ranks of run {run_id} to stop at their next step boundary", aside=True, flush=True)
        client.command("stop")
        news = StopNews()
        while True:
            for text in news.of(client):
                say(text, aside=True, flush=True)
            if not client.live:
                break
            client.poll(200)
    run = settled(client.entry.id)
    if parsed.json:
        say(json.dumps(show(run)))
    else:
        say(f"{client.entry.id} {tables.ending(run)}")
    return 0 if run.state in ENDED else 1


def hold(parsed: argparse.Namespace) -> int:
    wanted = "paused" if parsed.command == "pause" else "running"
    with opened_to(parsed.command, parsed.run) as client:
        client.command(parsed.command)
        until = time.monotonic() + COMMAND_PATIENCE_S
        while client.view().state != wanted:
            if not client.live or client.view().state in ENDED:
                raise CommandError(
                    f"run {client.entry.id} ended before it could {parsed.command}: {tables.ending(client.view())}"
                )
            if time.monotonic() > until:
                raise CommandError(
                    f"run {client.entry.id} is not {wanted} after {COMMAND_PATIENCE_S:.0f} s: no step boundary was reached"
                )
            client.poll(100)
        run = client.view()
    say(json.dumps(show(run)) if parsed.json else f"{client.entry.id} {run.state} at step {run.steps:,}")
    return 0


def capture(parsed: argparse.Namespace) -> int:
    ranks = ranks_of(parsed.ranks)
    with opened_to("capture", parsed.run) as client:
        run_id = client.entry.id
        _until_they_train(client, ranks)
        asked = client.command("capture", ranks)
        there = (rank for rank, known in client.state.ranks.items() if known.hello and not known.goodbye)
        wanted = set(ranks or there)
        say(f"asked ranks {', '.join(map(str, sorted(wanted)))} of run {run_id} for a step", aside=True)
        if client.state.state == "paused":
            say("the run is paused: it is captured when it goes on", aside=True)
        found = _captures_arriving(client, asked.id, wanted)
    taken = [capture for capture in found if not capture.error]
    if parsed.output and taken:
        write_text(parsed.output, json.dumps(trace_document(parsed.format, run_id, taken)))
    say(json.dumps([summary(capture) for capture in found]) if parsed.json else tables.captures(found))
    return 0 if taken and len(taken) == len(found) else 1


def _until_they_train(client: RunClient, ranks: Sequence[int]) -> None:
    """Returns when the ranks that are to be asked (empty: all) listen, which is when their training begins; at once when
    they never will.

    Raises:
        CommandError: the run has ended before, or none has begun in time.
    """
    until, told = time.monotonic() + BEGIN_PATIENCE_S, False
    while True:
        state = client.state
        listening = {rank for rank, known in state.ranks.items() if known.hello}
        wanted = set(ranks or range(state.world_size or 1))
        off = state.launched is not None and state.launched.options.get("telemetry") == "off"
        begun = any(known.last for known in state.ranks.values())  # who is not there by then is on another host
        if off or begun or wanted <= listening or not wanted <= set(range(state.world_size or 1)):
            return
        if not client.live or state.state in ENDED:
            raise CommandError(f"run {client.entry.id} ended before it began to train: {tables.ending(client.view())}")
        missing = ", ".join(map(str, sorted(wanted - listening)))
        if time.monotonic() > until:
            raise CommandError(
                f"run {client.entry.id}: ranks {missing} have not begun to train in {BEGIN_PATIENCE_S:.0f} s: nothing to capture yet"
            )
        if not told:
            told = True
            say(
                f"ranks {missing} have not begun to train yet: waiting for that, {BEGIN_PATIENCE_S:.0f} s at most",
                aside=True,
                flush=True,
            )
        client.poll(100)


def _captures_arriving(client: RunClient, asked_id: str, wanted: set[int]) -> list[Capture]:
    """Waits for the captures of all ranks asked.

    Raises:
        CommandError: the run has ended before, or reached no step boundary in time.
    """
    found: dict[int, Capture] = {}
    until = time.monotonic() + COMMAND_PATIENCE_S
    while True:
        for rank, known in client.state.ranks.items():
            for capture in known.captures:
                if capture.id == asked_id and rank not in found:
                    found[rank] = capture
                    say(tables.capture_line(capture), aside=True, flush=True)
        if wanted <= found.keys():
            return [found[rank] for rank in sorted(found)]
        missing = ", ".join(str(rank) for rank in sorted(wanted - found.keys()))
        if not client.live or client.state.state in ENDED:
            raise CommandError(f"run {client.entry.id} ended before ranks {missing} were captured")
        if time.monotonic() > until:
            raise CommandError(
                f"run {client.entry.id}: nothing of ranks {missing} after {COMMAND_PATIENCE_S:.0f} s: no step boundary was reached"
            )
        client.poll(100)


def stacks_of(parsed: argparse.Namespace) -> int:
    """Live: asks the ranks, and waits for all that can answer. Recorded: what was asked then."""
    with opened(parsed.run) as client:
        known = [rank.rank for rank in client.view().ranks]
        if parsed.rank is not None and parsed.rank not in known:
            raise CommandError(
                f"run {client.entry.id} has no rank {parsed.rank}: it has {', '.join(map(str, known)) or 'none'}"
            )
        asked, missing = _ask_for_stacks(client, parsed.rank) if client.live else ("", [])
        ranks = [rank for rank in client.view().ranks if parsed.rank in (None, rank.rank)]
        told = [rank for rank in ranks if rank.stack is not None and asked in ("", rank.stack.id)]
        if not told and not missing:
            raise CommandError(
                f"run {client.entry.id} is over ({client.view().state}), and nobody asked for stacks while it went on"
            )
    for rank in missing:
        say(
            f"rank {rank} does not answer: its process is stopped, or something holds Python's interpreter lock",
            aside=True,
        )
    say(json.dumps({"stacks": stacks(told), "missing": missing}) if parsed.json else tables.stacks(told))
    return 1 if missing else 0


def _ask_for_stacks(client: RunClient, rank: int | None) -> tuple[str, list[int]]:
    """Asks one rank or all, and waits; gives the id of the question, and the ranks that did not answer."""
    asked = client.command("stacks", () if rank is None else (rank,))
    until = time.monotonic() + STACKS_PATIENCE_S
    while True:
        wanted = {
            one: known
            for one, known in client.state.ranks.items()
            if known.hello and not known.goodbye and rank in (None, one)
        }
        missing = [one for one, known in wanted.items() if known.stack is None or known.stack.id != asked.id]
        if not missing or not client.live or time.monotonic() > until:
            return asked.id, missing
        client.poll(100)
