"""What it takes to open a long recording, and to go to any moment of it: 100,000 steps x 8 ranks, 17 units.

The recording is what such a run leaves behind, collectives thinned as the recorder thins them; it takes a minute to write.
Limits: opening and each jump under a second.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from fsdp_tui.telemetry.messages import (
    CATEGORIES,
    Beat,
    Comm,
    Ended,
    Event,
    Gauge,
    Hello,
    Launched,
    Message,
    Step,
    Structure,
    Unit,
    encode,
)
from fsdp_tui.telemetry.past import Past
from fsdp_tui.telemetry.recording import Recorder, load_state
from fsdp_tui.telemetry.state import RunState

STEPS, RANKS, UNITS = 100_000, 8, 17
BEGAN_NS = 10**18
EVERY_NS = 110_000_000
FLUSH_EVERY = 5_000
MIB = 2**20


def column(**nbytes: int) -> list[int | None]:
    """Memory of a CPU rank."""
    values: list[int | None] = [nbytes.get(name, None if name in ("cache", "others") else 0) for name in CATEGORIES]
    return [*values, sum(value or 0 for value in values[:10])]


def beginning(steps: int, ranks: int) -> Iterator[Message]:
    yield Launched(
        run_id="20260101-000000-abcd",
        name="long",
        created_ns=BEGAN_NS,
        command=["fsdp-tui", "demo"],
        nproc=ranks,
        strategy="fsdp2:full_shard",
        options={},
        steps=steps,
    )
    units = [Unit(f"blocks.{at}", MIB, 4 * MIB // ranks, 4 * MIB) for at in range(UNITS)]
    for rank in range(ranks):
        yield Hello(
            rank=rank,
            world_size=ranks,
            incarnation=1,
            host="host",
            pid=100 + rank,
            pid_started=BEGAN_NS / 1e9,
            device="cpu",
            device_name="a cpu",
            capacity_bytes=2**34,
            backend="gloo",
            versions={"torch": "2.13.0"},
        )
        yield Structure(
            rank=rank,
            effective="fsdp2:full_shard",
            detail={},
            units=units,
            groups=[list(range(ranks))],
            params=UNITS * MIB,
            trainable_params=UNITS * MIB,
            param_bytes=UNITS * 4 * MIB,
            ideal_state_bytes=UNITS * 16 * MIB // ranks,
            probes={"ledger": "ok"},
        )


def messages(steps: int = STEPS, ranks: int = RANKS) -> Iterator[Message]:
    """A run's messages, without the collectives that would be thinned out."""
    chance = random.Random(1)
    yield from beginning(steps, ranks)
    forward = [(unit, 0, 0) for unit in range(UNITS)]
    backward = [call for unit in reversed(range(UNITS)) for call in ((unit, 0, 1), (unit, 1, 1))]
    unit, kind, phase = (list(row) for row in zip(*forward, *backward, strict=True))
    states = UNITS * 4 * MIB // ranks
    for number in range(1, steps + 1):
        now_ns = BEGAN_NS + number * EVERY_NS
        kept = number <= 1_000 or number > steps - 300 or number % (10 if number <= 10_000 else 100) == 0
        for rank in range(ranks):
            activation = 20 * MIB + chance.randrange(MIB)
            step_ns = 100_000_000 + chance.randrange(10**7)
            held = {"param_shard": states, "grad_shard": states, "optimizer": 2 * states}
            yield Step(
                rank=rank,
                seq=number,
                step=number,
                ended_ns=now_ns + rank * 1_000,
                step_ns=step_ns,
                phases_ns=[10**6, 40 * 10**6, 50 * 10**6, 5 * 10**6, step_ns - 96 * 10**6, None],
                loss=5 / (1 + number / 1_000) + chance.random() / 100,
                tokens=4_096,
                memory=column(**held),
                peak=column(**held, activation=activation),
                peak_phase="backward",
                peak_unit=1,
                dropped=0,
                overhead_ns=100_000,
                looked_step=number,
                peak_units=2,
                samples=8,
                metrics={"lr": 1e-3},
            )
            if kept:
                times = [10**6 + chance.randrange(10**5) for _ in unit]
                yield Comm(
                    rank, number, number, unit, kind, phase, [0] * len(unit), [4 * MIB] * len(unit), times, times
                )
            if number % 9 == 0:
                yield Gauge(rank=rank, taken_ns=now_ns, values={"rss_bytes": 700 * MIB})
            if number % 5 == 0:
                yield Beat(rank=rank, incarnation=1, sent_ns=now_ns, step=number, sent=number, dropped=0)
        if number % 5_000 == 0:
            yield Event(at_ns=now_ns, kind="note", severity="note", text=f"something in step {number}", step=number)
    yield Ended(state="finished", ended_ns=BEGAN_NS + steps * EVERY_NS, exit_codes={})


def write(path: Path, steps: int = STEPS, ranks: int = RANKS) -> None:
    """Records it."""
    state, recorder = RunState(), Recorder(path)
    for at, message in enumerate(messages(steps, ranks)):
        state.apply(message)
        recorder.add(message, encode(message), BEGAN_NS)
        if at % FLUSH_EVERY == 0:
            recorder.flush(state)
    recorder.close(state)


def run(steps: int = STEPS, ranks: int = RANKS) -> Iterator[str]:
    """A line per figure."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        write(path, steps, ranks)
        began_s = time.perf_counter()
        load_state(path).view()
        took_s = time.perf_counter() - began_s
        yield f"open {steps:,} steps x {ranks} ranks, {path.stat().st_size / MIB:.0f} MiB: {took_s:.3f} s"
        chance = random.Random(2)
        jumps = [timed(path, chance.randrange(1, steps + 1)) for _ in range(20)]
        yield f"jump, each from a fresh start, 20 of them: median {statistics.median(jumps):.3f} s, worst {max(jumps):.3f} s"
        with closing(Past(path)) as past:
            middle = steps // 2
            past.at(middle)
            began_s = time.perf_counter()
            for number in range(middle + 1, middle + 51):
                past.at(number)
            yield f"step forth: {(time.perf_counter() - began_s) / 50:.3f} s"
            began_s = time.perf_counter()
            for number in range(middle, middle - 10, -1):
                past.at(number - 50)
            yield f"step back: {(time.perf_counter() - began_s) / 10:.3f} s"


def timed(path: Path, step: int) -> float:
    """Seconds until the picture at a step is there, the opening of the recording included."""
    began_s = time.perf_counter()
    with closing(Past(path)) as past:
        assert past.at(step).view.steps == step
    return time.perf_counter() - began_s
