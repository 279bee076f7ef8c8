"""Checks on one GPU what cannot be checked without: the ledger against the allocator and NVML, events against a clock.

    python -m benchmarks.gpu_check [--model gpt2] [--steps 12] [--pairs 30]

Trains the demo's model alone (world size 1, NCCL) under fsdp1 and fsdp2, prints a table, and ends with 1 if a check fails.
Without a GPU it says so and ends with 0. What the machine does not tell (NVML in a container, say) is no failure: it is
written as not available, with its reason.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fsdp_tui.demo.data import Batches, read_text
from fsdp_tui.demo.model import SHAPES, build
from fsdp_tui.runner import shard
from fsdp_tui.runner.clocks import CudaClock
from fsdp_tui.runner.collectives import Collectives
from fsdp_tui.runner.devices import Devices, Readings
from fsdp_tui.runner.sender import Requested
from fsdp_tui.runner.session import WatchedRun, unwatched
from fsdp_tui.runner.torch_dist import ALL_GATHER
from fsdp_tui.telemetry.messages import Gauge, Goodbye, Hello, Later, Message, Step, Where
from fsdp_tui.telemetry.view import as_dict

STRATEGIES = ("fsdp1:full_shard", "fsdp2:full_shard")
BATCH, LENGTH = 8, 512
MIB = 1 << 20
WORKSPACES = 80 * MIB
"""cuBLAS keeps its workspaces in torch's allocator, 32 MiB for each stream on a Hopper, and no tensor owns them."""
DRIVER_SLACK = 64 * MIB
"""Between what NVML and the CUDA driver call used."""
GATHERED = 1 << 30
"""Bytes of the all-gather that is timed: about a millisecond of copying on the GPU itself."""
CALLS = 20
WARM_UP = 1
"""The ledger looks at every one of the first steps, and at the last; later ones within its budget."""


class Row(NamedTuple):
    """A check: what was to be expected beside what was measured."""

    where: str
    check: str
    expected: str
    measured: str
    holds: bool | None
    """None: this machine does not tell."""


class Kept:
    """A sender that keeps the messages, in place of a hub."""

    def __init__(self) -> None:
        self.requested = Requested()
        self.step = self.dropped = 0
        self.paused = False
        self.read_gauges: Callable[[], Gauge] | None = None
        self.where: Callable[[], Where] | None = None
        self.messages: list[Message] = []

    def put(self, message: Message | Later) -> None:
        self.messages.append(message() if callable(message) else message)

    def close(self, goodbye: Goodbye, timeout_s: float = 2.0) -> None: ...


class Training:
    """The demo's training, one step at a time."""

    def __init__(self, strategy: str, model: str) -> None:
        self.model: nn.Module = shard(build(model, LENGTH, 0), strategy)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._batches = iter(
            Batches(read_text(None), batch=BATCH, length=LENGTH, accumulate=1, seed=0, rank=0, world_size=1)
        )

    def step(self) -> Tensor:
        tokens, targets = next(self._batches)[0]
        self.optimizer.zero_grad()
        loss: Tensor = self.model(tokens.cuda(), targets.cuda())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()


class Seen(NamedTuple):
    """What torch said when a step had ended."""

    allocated: int
    reserved: int
    peak: int


def check_training(strategy: str, model: str, steps: int, pairs: int) -> Iterator[Row]:
    """The ledger, the step's time, NVML and the cost of watching under one strategy."""
    training = Training(strategy, model)
    kept = Kept()

    def connect(hello: Hello) -> Kept:
        return kept

    seen: dict[int, Seen] = {}
    with WatchedRun(training.model, [training.optimizer], connect, WARM_UP + steps) as run:
        for _ in range(WARM_UP):
            run.step(training.step())
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        for _ in range(steps):
            loss = training.step()
            seen[run.steps + 1] = Seen(
                torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()
            )
            run.step(loss)
        torch.cuda.synchronize()
        wall_ns = time.perf_counter_ns() - began
        readings, used = _readings(), _driver_used()
        costs = [_pair(training, run, flipped=bool(at % 2)) for at in range(pairs)]
    told = [message for message in kept.messages if isinstance(message, Step)]
    looked = [step for step in told if step.looked_step == step.step and step.step in seen]
    yield Row(strategy, "steps that were looked at", "1 or more", str(len(looked)), bool(looked))
    yield from _memory(strategy, looked, seen)
    timed_ns = sum(step.step_ns for step in told if step.step in seen)
    yield Row(strategy, "time of the steps, ms", _ms(wall_ns), _ms(timed_ns), _near(timed_ns, wall_ns, 0.05))
    exceeding = [step for step in told if sum(ns or 0 for ns in step.phases_ns) > step.step_ns]
    yield Row(strategy, "phases beyond their step", "0", str(len(exceeding)), not exceeding)
    yield from _nvml(strategy, readings, used)
    if costs:
        cost = median(costs)
        yield Row(strategy, "cost of watching, % of a step", "under 2", f"{cost * 100:+.2f}", cost < 0.02)
    overhead_ns, step_ns = median(step.overhead_ns for step in told), median(step.step_ns for step in told)
    yield Row(strategy, "own count of it, us per step", f"of {_ms(step_ns)} ms", f"{overhead_ns / 1e3:.0f}", None)


def _memory(strategy: str, looked: list[Step], seen: dict[int, Seen]) -> Iterator[Row]:
    """The worst step of each comparison: these are to be equal to the byte."""
    exact: dict[str, list[tuple[int, int]]] = {"allocated": [], "allocated + cache = reserved": [], "peak": []}
    largest, share = 0, 0.0
    for step in looked:
        now, peak, torch_s = as_dict(tuple(step.memory)), as_dict(tuple(step.peak)), seen[step.step]
        total = now["total"] or 0
        exact["allocated"].append((torch_s.allocated, total))
        exact["allocated + cache = reserved"].append((torch_s.reserved, total + (now["cache"] or 0)))
        exact["peak"].append((torch_s.peak, peak["total"] or 0))
        largest = max(largest, abs(now["unexplained"] or 0))
        share = max(share, (abs(now["unexplained"] or 0) - WORKSPACES) / max(1, total))
    for name, pairs in exact.items():
        if pairs:
            expected, measured = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
            yield Row(strategy, f"{name}, bytes", f"{expected:,}", f"{measured:,}", expected == measured)
    yield Row(strategy, "unexplained, MiB", "1 % + workspaces", f"{largest / MIB:,.1f}", share < 0.01)


def _nvml(strategy: str, readings: Readings, driver_used: int) -> Iterator[Row]:
    """Reserved + non_torch + others against what the CUDA driver, asked by another way, calls used."""
    parts = [readings.values.get(name) for name in ("reserved_bytes", "non_torch_bytes", "nvml_others_bytes")]
    known = [int(part) for part in parts if part is not None]
    measured, holds = "not available", None
    if len(known) == len(parts):
        measured, holds = f"{sum(known) / MIB:,.0f}", abs(sum(known) - driver_used) <= DRIVER_SLACK
    yield Row(strategy, "reserved + non_torch + others, MiB", f"{driver_used / MIB:,.0f}", measured, holds)


def every_reading() -> Iterator[Row]:
    """Of torch's allocator and NVML, to be looked at by a person."""
    readings = _readings()
    for name, value in readings.values.items():
        said = f"not available: {readings.missing[name]}" if value is None else f"{value:,}"
        yield Row("device", name, "", said, None)
    if readings.throttle is not None:
        yield Row("device", "throttle", "", ", ".join(readings.throttle) or "none", None)


def _readings() -> Readings:
    return Devices(torch.device("cuda", torch.cuda.current_device())).read()


def _driver_used() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


def _pair(training: Training, run: WatchedRun, *, flipped: bool) -> float:
    """How much longer a watched step takes than one that is not, as a fraction; in either order."""
    times_ns: dict[bool, int] = {}
    for watched in (False, True) if flipped else (True, False):
        with nullcontext() if watched else unwatched():
            torch.cuda.synchronize()
            began = time.perf_counter_ns()
            loss = training.step()
            if watched:
                run.step(loss)
            torch.cuda.synchronize()
            times_ns[watched] = time.perf_counter_ns() - began
    return times_ns[True] / times_ns[False] - 1


def check_events() -> Iterator[Row]:
    """All-gathers on a stream of their own: their events against a synchronized clock, and when compute needs them."""
    unit = object()
    calls = Collectives(CudaClock(), {id(unit): 0}, on_cpu=False)
    gathers = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    source = torch.ones(GATHERED // 4, device="cuda")
    target = torch.empty_like(source)
    busy = torch.ones(4096, 4096, device="cuda")
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13

    def gather() -> None:
        with torch.cuda.stream(gathers):
            calls.begin(unit)
            record = calls.issue(ALL_GATHER, GATHERED, None, False)
            all_gather(target, source)
            calls.left()
            if record is not None:
                calls.returned(record, None)
            calls.end()

    def needed() -> None:
        calls.waiting(unit)
        calls.waited(unit)
        torch.cuda.current_stream().wait_stream(gathers)

    def timed(between: Callable[[], None]) -> tuple[int, int, int]:
        """Synchronized time, duration by events, and exposed time, each the median over calls."""
        wall_ns = []
        for _ in range(CALLS):
            torch.cuda.synchronize()
            began = time.perf_counter_ns()
            gather()
            between()
            needed()
            torch.cuda.synchronize()
            wall_ns.append(time.perf_counter_ns() - began)
        step = calls.take()
        if not step.ready():
            raise RuntimeError("events are not ready after a synchronize")
        columns = step.columns()
        return int(median(wall_ns)), int(median(columns["duration_ns"])), int(median(columns["exposed_ns"]))

    def compute() -> None:
        for _ in range(40):
            torch.mm(busy, busy)

    timed(lambda: None)  # NCCL makes its communicator in the first call
    wall, duration, exposed = timed(lambda: None)
    holds = duration <= wall and wall - duration < 0.1 * wall + 100_000  # two launches and a synchronize lie between
    yield Row("all-gather", "duration by events, ms", f"{_ms(wall)} synchronized", _ms(duration), holds)
    yield Row(
        "all-gather", "exposed when needed at once, ms", _ms(duration), _ms(exposed), _near(exposed, duration, 0.3)
    )
    _, duration, exposed = timed(compute)
    yield Row("all-gather", "exposed behind compute, ms", "0", _ms(exposed), exposed < 0.05 * duration)


def _near(value: float, other: float, tolerance: float) -> bool:
    return abs(value - other) <= tolerance * abs(other)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f}"


def written(rows: list[Row]) -> Iterator[str]:
    """The table."""
    words = {True: "ok", False: "FAILED", None: ""}
    table = [("", "check", "expected", "measured", ""), *((*row[:4], words[row.holds]) for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(5)]
    for line in table:
        yield "  ".join(
            cell.rjust(width) if at in (2, 3) else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=list(SHAPES), default="gpt2")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=30)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_check: not run: this torch sees no CUDA device")
        return 0
    rows: list[Row] = []
    for strategy in STRATEGIES:
        rows += check_training(strategy, chosen.model, chosen.steps, chosen.pairs)
        gc.collect()
        torch.cuda.empty_cache()
    rows += [*check_events(), *every_reading()]
    dist.destroy_process_group()
    version = torch.version.cuda
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {version}, {chosen.model}, world size 1")
    print("\n".join(written(rows)))
    failed = sum(row.holds is False for row in rows)
    print(f"{failed} of {sum(row.holds is not None for row in rows)} checks failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
