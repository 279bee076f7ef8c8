"""What runs have told: `show`, `watch`, `logs`, `export` and `compare`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from fsdp_tui.telemetry import sheets
from fsdp_tui.telemetry.launch import printed_elsewhere
from fsdp_tui.telemetry.messages import ENDED, Capture
from fsdp_tui.telemetry.recording import RecordingError
from fsdp_tui.telemetry.report import finite, show
from fsdp_tui.telemetry.rundir import RunEntry, resolve
from fsdp_tui.telemetry.trace import perfetto, plain
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui import tables
from fsdp_tui.tui.commands.common import CommandError, opened, ranks_of, say, write_text
from fsdp_tui.tui.comparison import FORMATS, as_text


def show_run(parsed: argparse.Namespace) -> int:
    with opened(parsed.run) as client:
        run = client.view()
    say(json.dumps(show(run)) if parsed.json else tables.summary(run))
    return 0


def watch(parsed: argparse.Namespace) -> int:
    with opened(parsed.run) as client:
        printed = 0 if parsed.from_start or not client.live else client.view().steps
        while True:
            run = client.view()
            printed = _print_steps(run, printed, as_json=parsed.json)
            if run.state in ENDED or not client.live:
                break
            client.poll(500)
        run = client.view()
        _print_steps(run, printed, as_json=parsed.json)
        if not parsed.json:
            say(tables.ending(run))
    return 0


def _print_steps(run: RunView, printed: int, *, as_json: bool) -> int:
    """Prints the steps after `printed` that all ranks have finished; returns the last one printed."""
    series = run.series
    first, last = np.searchsorted(series.steps, [printed, run.steps], side="right").tolist()
    for at in range(first, last):
        step, loss = int(series.steps[at]), float(series.loss[at])
        step_ns, rate = float(series.step_ns[at]), float(run.throughput.series[at])
        if as_json:
            record = {
                "step": step,
                "loss": finite(loss),
                "step_ns": int(step_ns),
                "tokens_per_s": finite(float(series.tokens_per_s[at])),
                "samples_per_s": finite(float(series.samples_per_s[at])),
            }
            say(json.dumps(record), flush=True)
        else:
            say(
                f"step {step:,}  loss {fmt.number(loss if series.loss_known[at] else None)}  step {fmt.duration(step_ns)}"
                f"  {fmt.rate(rate)} {run.throughput.unit}",
                flush=True,
            )
    return max(printed, run.steps)


def logs(parsed: argparse.Namespace) -> int:
    entry = resolve(parsed.run)
    rank = parsed.rank if parsed.rank is not None else 0
    path = entry.paths.launcher_log if rank == -1 else entry.paths.log(rank)
    if not path.exists() and (elsewhere := printed_elsewhere(entry.paths)):
        raise CommandError(f"run {entry.id} has no logs: {elsewhere}")
    if not path.exists() and not (parsed.follow and entry.live):
        kept = sorted(entry.paths.logs.glob("*.log")) if entry.paths.logs.is_dir() else []
        found = ", ".join(log.stem for log in kept) or "none"
        raise CommandError(f"run {entry.id} has no log of rank {rank} (logs kept: {found})")
    from fsdp_tui.telemetry.client import follow_log

    if parsed.json:
        body = b"".join(follow_log(entry, rank, follow=parsed.follow))
        say(json.dumps({"id": entry.id, "rank": rank, "text": body.decode(errors="replace")}))
        return 0
    for chunk in follow_log(entry, rank, follow=parsed.follow):
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    return 0


def export(parsed: argparse.Namespace) -> int:
    ranks = ranks_of(parsed.ranks)
    if parsed.format == "csv":
        return _export_steps(resolve(parsed.run), ranks, parsed.output)
    with opened(parsed.run) as client:
        run_id = client.entry.id
        newest = [
            known.captures[-1]
            for rank, known in client.state.ranks.items()
            if known.captures and not known.captures[-1].error and (not ranks or rank in ranks)
        ]
    if not newest:
        raise CommandError(f"run {run_id} has no capture: fsdp-tui capture takes one while it goes on")
    document = trace_document(parsed.format, run_id, newest)
    if parsed.output:
        write_text(parsed.output, json.dumps(document))
    else:
        say(json.dumps(document))
    return 0


def _export_steps(entry: RunEntry, ranks: Sequence[int], output: str | None) -> int:
    """Steps as they are read: a long run is more than memory holds."""
    try:
        sheet = sheets.steps(entry.paths.recording, ranks)
        rows = iter(sheet.rows)
        first = next(rows, None)
        if first is None:
            of = f" of ranks {', '.join(map(str, ranks))}" if ranks else ""
            raise CommandError(f"run {entry.id} has no step{of}")
        sheet = sheet._replace(rows=chain([first], rows))
        if output is None:
            sheets.write(sheet, sys.stdout)
            return 0
        try:
            with open(output, "w", encoding="utf-8", newline="") as file:
                sheets.write(sheet, file)
        except OSError as error:
            raise CommandError(f"cannot write {output}: {error.strerror}") from None
    except RecordingError as error:
        raise CommandError(f"run {entry.id}: {error}") from None
    say(f"wrote {output}", aside=True)
    return 0


def trace_document(form: str, run_id: str, captures: Sequence[Capture]) -> dict[str, Any]:
    """The captures in one of the formats of `export`."""
    return perfetto(run_id, captures) if form == "perfetto" else plain(run_id, captures)


def compare_runs(parsed: argparse.Namespace) -> int:
    if len(parsed.runs) < 2:
        raise CommandError("compare needs two runs or more", exit_code=2)
    runs = []
    for ref in parsed.runs:
        with opened(ref) as client:
            runs.append(client.view())
    form = "json" if parsed.json else parsed.format
    body = FORMATS[form](runs) if form else as_text(runs) + "\n"
    if parsed.output:
        write_text(parsed.output, body)
    else:
        say(body, end="")
    return 0
