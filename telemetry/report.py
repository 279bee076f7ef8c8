"""`show --json` and `compare --json`: plain data whose keys other people's scripts rely on.

Keys may be added, never renamed. Bytes and nanoseconds are integers; what is not known is null, never 0.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fsdp_tui.telemetry.advice import advise, unfit
from fsdp_tui.telemetry.bandwidth import note
from fsdp_tui.telemetry.launch import SHARDING
from fsdp_tui.telemetry.losses import last_loss, losses, lost
from fsdp_tui.telemetry.messages import COMM_PHASES, PHASES, Structure
from fsdp_tui.telemetry.spread import apart, differ, spread_of
from fsdp_tui.telemetry.trace import summary
from fsdp_tui.telemetry.view import (
    Collective,
    CollectiveStats,
    Floats,
    Progress,
    RankView,
    RunView,
    UnitView,
    as_dict,
    highest,
    model_states,
    worst,
)
from fsdp_tui.telemetry.volume import traffic
from fsdp_tui.telemetry.wording import told_apart

LOSS_TOLERANCE = {"fp32": 1e-4}
"""Largest difference of fp32 losses at equal steps that reordered sums explain; other types differ by their rounding."""
ROUNDING_TOLERANCE = 2e-2


def show(run: RunView) -> dict[str, Any]:
    """One run as the document of `show RUN --json`."""
    launched, ended = run.launched, run.ended
    hello = next((rank.hello for rank in run.ranks if rank.hello), None)
    backend = hello.backend if hello else ""
    return {
        "run": {
            "id": launched.run_id if launched else None,
            "name": launched.name if launched else None,
            "state": run.state,
            "world_size": run.world_size,
            "backend": hello.backend if hello else None,
            "device": hello.device.partition(":")[0] if hello else None,
            "device_name": hello.device_name if hello else None,
            "started_ns": run.started_ns,
            "ended_ns": ended.ended_ns if ended else None,
            "exit_codes": {**{str(rank.rank): None for rank in run.ranks}, **ended.exit_codes} if ended else {},
            "stop_rung": ended.stop_rung if ended else None,
            "failed_rank": ended.failed_rank if ended else None,
            "reason": ended.reason if ended else "",
            "log_tail": list(ended.log_tail) if ended else [],
            "steps": run.steps,
            "planned_steps": launched.steps if launched else None,
            "command": list(launched.command) if launched else [],
            "options": dict(launched.options) if launched else {},
            "versions": dict(hello.versions) if hello else {},
        },
        "strategy": {
            "requested": run.requested or None,
            "script": run.script or None,
            "effective": run.effective or None,
            "detail": dict(run.detail),
        },
        "model": {
            "params": run.params or None,
            "trainable_params": run.trainable_params if run.params else None,
            "param_bytes": run.param_bytes or None,
            "ideal_state_bytes": run.ideal_state_bytes,
            **_model_facts(next((rank.structure for rank in run.ranks if rank.structure), None)),
        },
        "ranks": [_rank(rank) for rank in run.ranks],
        "loss": {
            "steps": run.series.steps.tolist(),
            "values": [finite(value) for value in run.series.loss.tolist()],
        },
        "step_ns": {"median": run.step_median_ns, "p95": run.step_p95_ns, "first": run.step_first_ns},
        "phases_ns": dict(zip(PHASES, run.phases_ns, strict=False)),
        "phases_exposed_ns": _by_phase(run.exposed_ns),
        "tokens_per_s": run.tokens_per_s,
        "samples_per_s": run.samples_per_s,
        "metrics": dict(run.metrics),
        "units": [_unit(unit, backend) for unit in run.units],
        "buckets": [
            {
                "index": bucket.index,
                "bytes": bucket.bytes,
                "all_reduce": _collective(bucket.all_reduce, backend, "all_reduce"),
            }
            for bucket in run.buckets
        ],
        "comm": {
            "all_gather_bytes": run.comm.all_gather_bytes,
            "reduce_scatter_bytes": run.comm.reduce_scatter_bytes,
            "all_reduce_bytes": run.comm.all_reduce_bytes,
            "exposed_ns": run.comm.exposed_ns,
            "duration_ns": run.comm.duration_ns,
            "buckets_ns": run.comm.buckets_ns,
            "buckets_exposed_ns": run.comm.buckets_exposed_ns,
            "dimensions": [along._asdict() for along in run.dimensions],
        },
        "lateness": None
        if run.lateness is None
        else {
            "rank": run.lateness.rank,
            "ns": run.lateness.ns,
            "steady_ns": run.lateness.steady_ns,
            "steps": run.lateness.steps,
            "unit": run.lateness.unit or None,
            "collective": run.lateness.kind,
            "phase": run.lateness.phase,
            "start_ns": run.lateness.start_ns,
        },
        "verdict": [
            {
                "kind": verdict.kind,
                "severity": verdict.severity,
                "what": verdict.what,
                "expected": verdict.expected,
                "measured": verdict.measured,
                "unit": verdict.unit,
                "reason": verdict.reason,
                "next": verdict.next,
            }
            for verdict in run.verdicts
        ],
        "events": [
            {"at_ns": e.at_ns, "kind": e.kind, "severity": e.severity, "text": e.text, "rank": e.rank, "step": e.step}
            for e in run.events
        ],
        "captures": [summary(capture) for rank in run.ranks for capture in rank.captures],
        "telemetry": {
            "overhead_ns_per_step": run.overhead_ns,
            "dropped": run.dropped,
            "bad_records": run.bad_records,
            "probes": dict(run.probes),
        },
    }


def _model_facts(structure: Structure | None) -> dict[str, Any]:
    known = structure or Structure(rank=0, effective="", detail={}, units=[])
    return {
        "frozen_bytes": known.frozen_bytes,
        "buffer_bytes": known.buffer_bytes,
        "tied": [{"name": tied.name, "aliases": list(tied.aliases), "bytes": tied.nbytes} for tied in known.tied],
        "ignored": list(known.ignored),
        "blocks": known.blocks,
        "largest_block_params": known.largest_block_params,
    }


def stacks(ranks: Sequence[RankView]) -> list[dict[str, Any]]:
    """What these ranks were doing when they were asked: frames as in a traceback, the innermost last."""
    return [
        {
            "rank": rank.rank,
            "taken_ns": rank.stack.taken_ns,
            "progress": _progress(rank.progress),
            "threads": [
                {
                    "name": thread.name,
                    "frames": [
                        {"file": frame.file, "line": frame.line, "function": frame.function, "code": frame.code}
                        for frame in thread.frames
                    ],
                }
                for thread in rank.stack.threads
            ],
        }
        for rank in ranks
        if rank.stack is not None
    ]


def _progress(at: Progress | None) -> dict[str, Any] | None:
    if at is None:
        return None
    return {
        "step": at.step,
        "phase": at.phase or None,
        "collectives": at.calls,
        "collective": at.kind or None,
        "unit": at.unit or None,
        "inside": at.inside,
        "idle_ns": at.idle_ns,
    }


RANK_FACTS = (
    "padding_bytes",
    "ignored_bytes",
    "replicated_bytes",
    "host_bytes",
    "host_is_device",
    "optimizer_expected_bytes",
    "no_sync_bytes",
)


def _rank(rank: RankView) -> dict[str, Any]:
    hello = rank.hello
    return {
        "rank": rank.rank,
        "host": hello.host if hello else None,
        "pid": hello.pid if hello else None,
        "device": hello.device if hello else None,
        "memory": as_dict(rank.memory),
        "peak": as_dict(rank.peak),
        "peak_phase": rank.peak_phase or None,
        "peak_unit": rank.peak_unit or None,
        "highest_bytes": rank.highest_bytes,
        "peak_units": rank.peak_units,
        **{name: getattr(rank.structure, name) if rank.structure else None for name in RANK_FACTS},
        "outside": [
            {"what": group.what, "tensors": group.tensors, "bytes": group.nbytes}
            for group in (rank.structure.outside if rank.structure else ())
        ],
        "steps": rank.steps,
        "progress": _progress(rank.progress),
        "step_ns": rank.step_ns,
        "phases_ns": dict(zip(PHASES, rank.phases_ns, strict=False)),
        "phases_exposed_ns": _by_phase(rank.exposed_ns),
        "sent": rank.sent,
        "dropped": rank.dropped,
        "gauges": dict(rank.gauges),
        "missing": dict(rank.missing),
        "throttle": None if rank.throttle is None else list(rank.throttle),
        "other_processes": None
        if rank.other_processes is None
        else [{"pid": pid, "bytes": nbytes} for pid, nbytes in rank.other_processes],
    }


def _by_phase(exposed_ns: tuple[int | None, ...]) -> dict[str, int | None]:
    return dict(zip(COMM_PHASES, exposed_ns or (None,) * len(COMM_PHASES), strict=False))


def _unit(unit: UnitView, backend: str) -> dict[str, Any]:
    return {
        "name": unit.name,
        "params": unit.params,
        "shard_bytes": unit.shard_bytes,
        "unsharded_bytes": unit.unsharded_bytes,
        "padding_bytes": unit.padding_bytes,
        "frozen_params": unit.frozen_params,
        "frozen_grad_bytes": unit.frozen_grad_bytes,
        "all_gather": _collective(unit.all_gather, backend, "all_gather"),
        "reduce_scatter": _collective(unit.reduce_scatter, backend, "reduce_scatter"),
        "all_reduce": _collective(unit.all_reduce, backend, "all_reduce"),
    }


def _collective(collective: Collective, backend: str, kind: str) -> dict[str, Any]:
    return {
        **_stats(collective.step),
        "forward": _stats(collective.forward),
        "backward": _stats(collective.backward),
        "note": note(backend, kind),
    }


def _stats(stats: CollectiveStats) -> dict[str, Any]:
    per_step = stats.per_step
    return {
        "per_step": int(per_step) if float(per_step).is_integer() else per_step,
        "bytes": stats.bytes,
        "median_ns": stats.median_ns,
        "duration_ns": stats.duration_ns,
        "exposed_ns": stats.exposed_ns,
        "overlapped_ns": stats.overlapped_ns,
        "algbw_bytes_per_s": stats.algbw_bytes_per_s,
        "busbw_bytes_per_s": stats.busbw_bytes_per_s,
        "late_ns": {str(rank): ns for rank, ns in stats.late_ns.items()},
    }


Value = int | float | None
Better = Callable[..., int]
"""`min` or `max`."""


METRICS: tuple[tuple[str, str, Callable[[RunView], Value], Better | None], ...] = (
    ("model_states", "bytes", lambda run: worst(run, lambda rank: model_states(rank.memory)), min),
    ("peak", "bytes", lambda run: worst(run, highest), min),
    ("all_gather", "bytes", lambda run: run.comm.all_gather_bytes, None),
    ("reduce_scatter", "bytes", lambda run: run.comm.reduce_scatter_bytes, None),
    ("all_reduce", "bytes", lambda run: run.comm.all_reduce_bytes, None),
    ("step_time", "ns", lambda run: run.step_median_ns, min),
    ("exposed_communication", "ns", lambda run: run.comm.exposed_ns, None),
    ("tokens_per_s", "tokens/s", lambda run: run.tokens_per_s, max),
    ("samples_per_s", "samples/s", lambda run: run.samples_per_s, max),
    ("loss", "", last_loss, None),
)
"""Rows of a comparison: memory of the fullest rank, bytes and times per step and rank. No best where less is not better
by itself: a strategy that gathers more is not a worse one."""
THROUGHPUT = ("tokens_per_s", "samples_per_s")
"""Of these there is one row: samples where nobody counts tokens."""
PER_STEP: Mapping[str, Callable[[RunView], Floats]] = {
    "step_time": lambda run: run.series.step_ns,
    "tokens_per_s": lambda run: run.series.tokens_per_s,
    "samples_per_s": lambda run: run.series.samples_per_s,
}
"""Metrics that vary from step to step, and what each step's was."""


def finite(value: Value) -> Value:
    """NaN and infinity are no JSON."""
    return value if value is None or math.isfinite(value) else None


def compare(runs: Sequence[RunView]) -> dict[str, Any]:
    """Several runs as the document of `compare A B --json`; the first is the baseline."""
    return {
        "runs": [show(run) for run in runs],
        "rows": [{**row, "values": [finite(value) for value in row["values"]]} for row in metrics(runs)],
        "equivalence": equivalence(runs),
        "comparability": comparability(runs),
        "differences": differences(runs),
        "settings": settings(runs),
        "theory": [theory(run) for run in runs],
        "advice": _advice(runs),
    }


def metrics(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """A row per metric: its unit, the value of each run, the index of the best where one is, and which cannot be told apart from
    it (`alike`, itself too). A loss may be NaN.

    A row has a best where one run at least is worse by more than steps vary by. Runs that recommend nothing are never best.
    """
    rows = []
    counted = "tokens_per_s" if any(run.throughput.unit == "tokens/s" for run in runs) else "samples_per_s"
    fit = [at for at, run in enumerate(runs) if not unfit(run)]
    for metric, unit, read, better in METRICS:
        if metric in THROUGHPUT and metric != counted:
            continue
        values = [read(run) for run in runs]
        known = [at for at in fit if values[at] is not None]
        best = better(known, key=values.__getitem__) if better and known else None
        alike = [at for at in known if best is not None and not _told_apart(metric, runs, values, best, at)]
        if len(alike) == len(known):
            best, alike = None, []
        rows.append({"metric": metric, "unit": unit, "values": values, "best": best, "alike": alike})
    return rows


def _told_apart(metric: str, runs: Sequence[RunView], values: Sequence[Value], one: int, other: int) -> bool:
    """Whether two runs differ in a metric by more than their steps vary by."""
    if metric in PER_STEP:
        first, second = (spread_of(PER_STEP[metric](runs[at])) for at in (one, other))
        return first is not None and second is not None and differ(first, second)
    return apart(values[one] or 0, values[other] or 0)


def _advice(runs: Sequence[RunView]) -> dict[str, Any] | None:
    """Indices of the runs that it is about, and the sentence."""
    said = advise(runs, told_apart([run.effective or run.name for run in runs]))
    return None if said is None else said._asdict()


def equivalence(runs: Sequence[RunView]) -> dict[str, Any]:
    """Whether all runs' losses agree with the first one's at equal steps.

    Numbers are subtracted; a number and none (NaN, infinite) at one step differ, and by nothing that could be subtracted.
    """
    largest: float | None = None
    compared: int | None = None
    apart = False
    base = losses(runs[0])
    for run in runs[1:]:
        other = losses(run)
        both = base.keys() & other.keys()
        common = [step for step in both if math.isfinite(base[step]) and math.isfinite(other[step])]
        apart |= any(math.isfinite(base[step]) != math.isfinite(other[step]) for step in both)
        compared = len(common) if compared is None else min(compared, len(common))
        if common:
            gap = max(abs(base[step] - other[step]) for step in common)
            largest = gap if largest is None else max(largest, gap)
    precisions = {_precision(run) for run in runs}
    tolerance = LOSS_TOLERANCE["fp32"] if precisions <= {"fp32"} else ROUNDING_TOLERANCE
    return {
        "loss_max_abs_diff": largest,
        "steps_compared": compared or 0,
        "tolerance": tolerance,
        "agrees": False if apart else largest <= tolerance if largest is not None and compared else None,
        "lost": [
            None if found is None else {"step": found.step, "value": found.word, "still": found.still}
            for found in map(lost, runs)
        ],
    }


def _precision(run: RunView) -> str:
    """As launched, else as the ranks know it; fp32 where nobody says otherwise."""
    launched = run.launched.options.get("precision") if run.launched else None
    return str(launched or run.detail.get("precision") or "fp32")


# Comparability

SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "model": ("model", "params"),
    "data": ("data",),
    "global batch": ("batch", "seq"),
    "seed": ("seed",),
    "device": ("device",),
    "versions": (),
}
"""What has to be the same for losses and speeds to compare, and the facts that tell it; versions: of every package."""
SETTINGS = (*SHARDING, "accumulate", "no_sync", "telemetry", "ranks")
"""What belongs to the way in which a training runs: a comparison is about these. `batch` is over all ranks and accumulated
backwards, so that they do not change it."""


def comparability(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """Whether the runs are the same training, subject by subject; `same` is None where a run does not tell."""
    facts = [_facts(run) for run in runs]
    packages = dict.fromkeys(key for fact in facts for key in fact if key.endswith(VERSION))
    found = []
    for subject, keys in SUBJECTS.items():
        values = [[fact.get(key) for key in (keys or packages)] for fact in facts]
        columns = list(zip(*values, strict=True))
        known = [[value for value in column if value is not None] for column in columns]
        differs = any(value != column[0] for column in known for value in column)
        told = all(any(value is not None for value in row) for row in values)
        found.append({"subject": subject, "same": False if differs else True if told else None})
    return found


def differences(runs: Sequence[RunView]) -> dict[str, list[Any]]:
    """What differs between the trainings besides how they run, so that nobody compares apples with pears."""
    return {key: values for key, values in _differing(runs).items() if key not in SETTINGS}


def settings(runs: Sequence[RunView]) -> dict[str, list[Any]]:
    """What differs in how they run besides the strategy's name: wrapping, precision, prefetch, ranks, ..."""
    return {key: values for key, values in _differing(runs).items() if key in SETTINGS}


def _differing(runs: Sequence[RunView]) -> dict[str, list[Any]]:
    facts = [_facts(run) for run in runs]
    keys = dict.fromkeys(key for fact in facts for key in fact)
    table = {key: [fact.get(key) for fact in facts] for key in keys}
    return {key: values for key, values in table.items() if _differ(key, values)}


def _differ(key: str, values: list[Any]) -> bool:
    if key in MEASURED or key.endswith(VERSION):
        values = [value for value in values if value is not None]  # not known is not another one
    return any(value != values[0] for value in values)


VERSION = " version"
MEASURED = ("params", "batch", "device", "ranks")
"""Facts that a run tells when it has trained a while, and not before."""


def _facts(run: RunView) -> Mapping[str, Any]:
    hello = next((rank.hello for rank in run.ranks if rank.hello), None)
    options = dict(run.launched.options) if run.launched else {}
    demo = options.get("target") == "demo"
    script = options.get("script")
    return {
        **options,
        **({"data": options.get("data") or "the demo's own"} if demo else {}),
        **({"arguments": _arguments(run, str(script))} if script else {}),
        "batch": options.get("batch") or global_batch(run),
        "ranks": run.world_size or None,
        "params": run.params or None,
        "device": hello.device_name if hello else None,
        **{f"{package}{VERSION}": said for package, said in (hello.versions if hello else {}).items()},
    }


def _arguments(run: RunView, script: str) -> str:
    """The script's own arguments, as in a shell."""
    command = list(run.launched.command) if run.launched else []
    return shlex.join(command[command.index(script) + 1 :]) if script in command else ""


def global_batch(run: RunView) -> int | None:
    """Inputs of an optimizer step over all ranks and accumulated backwards, as measured; None where nobody counted them."""
    counted = run.series.samples_per_s * run.series.step_ns / 1e9
    known = counted[np.isfinite(counted)]
    return round(float(np.median(known))) if known.size else None


# Theory


def theory(run: RunView) -> dict[str, Any]:
    """What a run's strategy should cost beside what it does: bytes per rank, communication per step; None where there is no
    theory, or no measurement."""
    found = traffic(run)
    return {
        "model_states": {
            "expected": run.ideal_state_bytes,
            "measured": worst(run, lambda rank: model_states(rank.memory)),
        },
        "communication": None
        if found is None
        else {
            "forwards": found.forwards,
            "backwards": found.backwards,
            "reducing_backwards": found.reducing,
            "parameters_bytes": found.parameters,
            **{
                name: {"expected": getattr(found.expected, name), "measured": getattr(found.measured, name)}
                for name in ("all_gather", "reduce_scatter", "all_reduce", "moved")
            },
        },
    }
