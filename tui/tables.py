"""What the headless commands print for people: summaries and tables as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from fsdp_tui.telemetry.bandwidth import note
from fsdp_tui.telemetry.losses import last_loss
from fsdp_tui.telemetry.messages import CATEGORIES, PHASES, TOTAL_CATEGORIES, Capture
from fsdp_tui.telemetry.peak import why
from fsdp_tui.telemetry.stalls import doing
from fsdp_tui.telemetry.view import RankView, RunView, category, highest, model_states, total
from fsdp_tui.tui import format as fmt

MARKS = {"ok": "✓", "note": "·", "warn": "!", "bad": "✗"}
LABELS = {
    "model_states": "model states per rank",
    "peak": "peak per rank",
    "all_gather": "all-gather per step",
    "reduce_scatter": "reduce-scatter per step",
    "all_reduce": "all-reduce per step",
    "step_time": "step time",
    "exposed_communication": "exposed communication",
    "tokens_per_s": "tokens/s",
    "samples_per_s": "samples/s",
    "loss": "last loss",
}


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Aligned columns: the first `left` to the left, the others to the right."""
    rows = [[fmt.plain(cell) for cell in row] for row in rows]
    widths = [max(cell_len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = []
        for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
            spare = " " * (width - cell_len(cell))
            cells.append(cell + spare if at < left else spare + cell)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def progress(run: RunView) -> str:
    """One line about a run as it goes."""
    planned = run.launched.steps if run.launched else None
    steps = f"step {run.steps:,}" + (f"/{planned:,}" if planned else "")
    peak = max((peak for rank in run.ranks if (peak := highest(rank)) is not None), default=None)
    return "  ".join(
        (
            steps,
            f"loss {fmt.number(last_loss(run))}",
            f"{fmt.rate(run.throughput.per_s)} {run.throughput.unit}",
            f"step {fmt.duration(run.step_median_ns)}",
            f"peak {fmt.size(peak)}",
        )
    )


def ending(run: RunView) -> str:
    """How a run ended, in a line."""
    ended = run.ended
    if ended is None:
        return run.state
    words = [ended.state]
    if ended.stop_rung:
        words.append(
            {"agreed": "by agreement of all ranks", "sigterm": "by SIGTERM", "sigkill": "by SIGKILL"}[ended.stop_rung]
        )
    words.append(f"after {_count(run.steps, 'step')}")
    if ended.failed_rank is not None:
        code = ended.exit_codes.get(str(ended.failed_rank))
        words.append(f"(rank {ended.failed_rank}" + (f", exit code {code})" if code is not None else ")"))
    if ended.reason:
        words.append(f"· {ended.reason}")
    return " ".join(words)


def failure(run: RunView) -> str:
    """Why a run has no result, in a line."""
    reason = run.ended.reason if run.ended else ""
    return f"{reason}, after {_count(run.steps, 'step')}" if reason else ending(run)


def summary(run: RunView) -> str:
    """Everything a person asks of one run, as text."""
    name = run.name or "run"
    identity = f"{name}  {run.launched.run_id}" if run.launched else name
    strategy = run.effective or run.requested or run.script or (fmt.OWN if run.launched else fmt.UNKNOWN)
    others = [
        f"{who}: {asked}"
        for who, asked in (("asked for", run.requested), ("the script's own", run.script))
        if asked and run.effective and asked != run.effective
    ]
    if others:
        strategy = f"{strategy} ({', '.join(others)})"
    lines = [
        identity,
        f"{ending(run)}  ·  {strategy}  ·  {_count(run.world_size, 'rank')}  ·  {fmt.count(run.params or None)} parameters",
    ]
    lines += [progress(run), ""]
    if run.ranks:
        lines += [memory_table(run.ranks), ""]
    # Medians: what most steps lack, as a checkpoint, is 0 and no part of the usual step.
    known = [(name, ns) for name, ns in zip(PHASES, run.phases_ns, strict=False) if ns]
    if known:
        lines += ["step phases  " + "  ".join(f"{name} {fmt.duration(ns)}" for name, ns in known), ""]
    if run.units:
        lines += [unit_table(run), ""]
    if run.buckets:
        lines += [bucket_line(run), ""]
    lines += [f"captured  {capture_line(rank.captures[-1])}" for rank in run.ranks if rank.captures]
    lines += [f"{MARKS[v.severity]} {v.what}" + (f": {v.reason}" if v.reason else "") for v in run.verdicts]
    lines += [f"· {probe}: {said}" for probe, said in run.probes.items() if said != "ok"]
    if run.ended and run.ended.state == "failed" and run.ended.log_tail:
        lines += ["", "last lines of its log:", *(f"  {line}" for line in run.ended.log_tail)]
    lines.append(
        f"telemetry: {fmt.duration(run.overhead_ns)} per step on the training thread, {run.dropped} dropped, "
        f"{run.bad_records} bad records"
    )
    return "\n".join(lines)


def capture_line(capture: Capture) -> str:
    """One rank's captured step in a line."""
    where = f"rank {capture.rank} step {capture.step:,}"
    if capture.error:
        return f"{where}: {capture.error}"
    return f"{where}  peak {fmt.size(capture.peak[-1])} in {why(capture)}"


def captures(taken: Sequence[Capture]) -> str:
    """What captured steps hold at their peaks, and what could not be seen."""
    good = [capture for capture in taken if not capture.error]
    lines = []
    if good:
        shown = [name for at, name in enumerate(TOTAL_CATEGORIES) if any(capture.peak[at] for capture in good)]
        columns = [[capture.peak[CATEGORIES.index(name)] for capture in good] for name in shown]
        columns.append([capture.peak[-1] for capture in good])
        rows = [
            [f"rank {capture.rank}", *(fmt.size(column[at]) for column in columns)] for at, capture in enumerate(good)
        ]
        lines += [table(["peak", *shown, "total"], rows), ""]
    lines += [capture_line(capture) for capture in taken]
    lines += [f"· {limit}" for limit in dict.fromkeys(limit for capture in good for limit in capture.limits)]
    return "\n".join(lines)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def memory_table(ranks: Sequence[RankView]) -> str:
    """Bytes per category when the optimizer has stepped and their total, and the highest peak of all steps so far, which they do
    not add up to; a row per rank.

    Each in its own unit: gathered parameters of a small model are KiB beside activations of MiB.
    """
    shown = [name for name in CATEGORIES if any(category(rank.memory, name) for rank in ranks)]
    columns = [[category(rank.memory, name) for rank in ranks] for name in shown]
    columns += [[total(rank.memory) for rank in ranks], [highest(rank) for rank in ranks]]
    rows = [[str(rank.rank), *(fmt.size(column[at]) for column in columns)] for at, rank in enumerate(ranks)]
    return table(["rank", *shown, "total", "peak so far"], rows)


def unit_table(run: RunView) -> str:
    """Collectives per unit: calls and bytes per step, time per call."""
    rows = []
    for unit in run.units:
        gather, reduce, replicate = unit.all_gather.step, unit.reduce_scatter.step, unit.all_reduce.step
        rows.append(
            [
                unit.name,
                fmt.count(unit.params),
                fmt.size(unit.shard_bytes),
                f"{gather.per_step:g} × {fmt.duration(gather.median_ns)}",
                fmt.size(gather.bytes),
                fmt.bandwidth(gather.busbw_bytes_per_s),
                f"{reduce.per_step:g} × {fmt.duration(reduce.median_ns)}",
                fmt.size(reduce.bytes),
                fmt.bandwidth(reduce.busbw_bytes_per_s),
                f"{replicate.per_step:g} × {fmt.duration(replicate.median_ns)}",
            ]
        )
    each = ("bytes", "bus")
    header = ["unit", "parameters", "shard", "all-gather", *each, "reduce-scatter", *each, "all-reduce"]
    if not any(unit.all_reduce.step.per_step for unit in run.units):
        header, rows = header[:-1], [row[:-1] for row in rows]
    backend = next((rank.hello.backend for rank in run.ranks if rank.hello), "")
    said = note(backend, "reduce_scatter") if any(unit.reduce_scatter.step.per_step for unit in run.units) else ""
    return table(header, rows) + (f"\nreduce-scatter: {said}" if said else "")


def bucket_line(run: RunView) -> str:
    """DDP's buckets: their bytes, and the time of all of them together."""
    together = ""
    if run.comm.buckets_ns is not None:
        together = (
            f", together {fmt.duration(run.comm.buckets_ns)} per step,"
            f" {fmt.duration(run.comm.buckets_exposed_ns)} of it exposed"
        )
    count = len(run.buckets)
    return f"{count} bucket{'s' * (count != 1)} all-reduced, {fmt.size(run.comm.all_reduce_bytes)} per step{together}"


def stacks(ranks: Sequence[RankView]) -> str:
    """Each rank's threads as Python prints them: the innermost call last."""
    lines: list[str] = []
    for rank in ranks:
        if rank.stack is None:
            continue
        at = rank.progress
        where = f" {doing(at)}, after step {at.step:,}" if at is not None and at.phase else ""
        lines.append(f"{'' if not lines else chr(10)}rank {rank.rank}{where}")
        for thread in rank.stack.threads:
            lines.append(f"  {thread.name}")
            for frame in thread.frames:
                lines.append(
                    f"    {frame.file}:{frame.line} {frame.function}" if frame.file else f"    {frame.function}"
                )
                if frame.code:
                    lines.append(f"      {frame.code}")
    return "\n".join(lines)


def failures(failed: Sequence[Mapping[str, Any]]) -> str:
    """A row per run of a sweep that is not in its comparison: why, and whose logs tell more."""
    width = max(len(one["strategy"]) for one in failed)
    lines = []
    for one in failed:
        logs = f"  (fsdp-tui logs {one['run']})" if one["run"] else ""
        lines.append(f"✗ {one['strategy']:<{width}}  {one['reason']}{logs}")
    return "\n".join(lines)


def share_lines(runs: Sequence[RunView], labels: Sequence[str]) -> list[str]:
    """What part of the unsharded model states each sharded run keeps per rank, against an unsharded run among them of the first
    one's model: a share of another model's would say nothing."""

    def states(run: RunView) -> int | None:
        known = [held for rank in run.ranks if (held := model_states(rank.memory)) is not None]
        return max(known) if known and len(known) == len(run.ranks) else None

    model = runs[0].params
    yardstick = next((run for run in runs if run.effective in ("single", "ddp") and run.params == model), None)
    whole = states(yardstick) if yardstick else None
    if not yardstick or not whole:
        return []
    lines = []
    for label, run in zip(labels, runs, strict=True):
        held = states(run)
        if held and run.effective not in ("single", "ddp") and run.params == yardstick.params:
            lines.append(
                f"{label} keeps 1/{whole / held:.2f} of the unsharded model states per rank ({_count(run.world_size, 'rank')})"
            )
    return lines


def column_name(run: RunView) -> str:
    """A run's strategy; its name too when that says more."""
    strategy = run.effective or run.requested or run.script or fmt.UNKNOWN
    return strategy if run.name in ("", strategy) or run.name.endswith(strategy) else f"{run.name} ({strategy})"


def amount(value: int | float | None, unit: str) -> str:
    if unit == "bytes":
        return fmt.size(value)
    if unit == "ns":
        return fmt.duration(value)
    return fmt.rate(value) if unit in ("tokens/s", "samples/s") else fmt.number(value)
