"""What it takes to open a long recording, and to go to any moment of it: 100,000 steps x 8 ranks, and 10,000 x 64.

The recording is what such a run leaves behind, collectives thinned as the recorder thins them; each takes a minute to write.
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

from benchmarks.simulated import BEGAN_NS, MIB, Training
from fsdp_tui.telemetry.messages import Ended, Event, Message, encode
from fsdp_tui.telemetry.past import Past
from fsdp_tui.telemetry.recording import Recorder, load_state
from fsdp_tui.telemetry.state import RunState

RUNS = ((100_000, 8), (10_000, 64))
"""Steps, ranks."""
UNITS = 17
STEP_NS = 110_000_000
FLUSH_EVERY = 5_000
JUMPS = 20


def messages(steps: int, ranks: int) -> Iterator[Message]:
    """A run's messages, without the collectives that would be thinned out."""
    training = Training(ranks, UNITS, STEP_NS)
    yield from training.beginning()
    for number in range(1, steps + 1):
        training.advance()
        now_ns = BEGAN_NS + number * STEP_NS
        kept = number <= 1_000 or number > steps - 300 or number % (10 if number <= 10_000 else 100) == 0
        for rank in range(ranks):
            yield training.step(rank)
            if kept:
                yield training.comm(rank)
            if number % 9 == 0:
                yield training.gauge(rank, now_ns)
            if number % 5 == 0:
                yield training.beat(rank, now_ns)
        if number % 5_000 == 0:
            yield Event(at_ns=now_ns, kind="note", severity="note", text=f"something in step {number}", step=number)
    yield Ended(state="finished", ended_ns=BEGAN_NS + steps * STEP_NS, exit_codes={})


def write(path: Path, steps: int, ranks: int) -> None:
    """Records it."""
    state, recorder = RunState(), Recorder(path)
    for at, message in enumerate(messages(steps, ranks)):
        state.apply(message)
        recorder.add(message, encode(message), BEGAN_NS)
        if at % FLUSH_EVERY == 0:
            recorder.flush(state)
    recorder.close(state)


def run() -> Iterator[str]:
    """Lines for each run."""
    for steps, ranks in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.db"
            write(path, steps, ranks)
            yield from measured(path, steps, ranks)


def measured(path: Path, steps: int, ranks: int) -> Iterator[str]:
    """A line per figure."""
    began_s = time.perf_counter()
    load_state(path).view()
    took_s = time.perf_counter() - began_s
    yield f"open {steps:,} steps x {ranks} ranks, {path.stat().st_size / MIB:.0f} MiB: {took_s:.3f} s"
    chance = random.Random(2)
    jumps = [timed(path, chance.randrange(1, steps + 1)) for _ in range(JUMPS)]
    yield (
        f"  jump, each from a fresh start, {JUMPS} of them: median {statistics.median(jumps):.3f} s, worst {max(jumps):.3f} s"
    )
    with closing(Past(path)) as past:
        middle = steps // 2
        past.at(middle)
        began_s = time.perf_counter()
        for number in range(middle + 1, middle + 51):
            past.at(number)
        yield f"  step forth: {(time.perf_counter() - began_s) / 50:.3f} s"
        began_s = time.perf_counter()
        for number in range(middle, middle - 10, -1):
            past.at(number - 50)
        yield f"  step back: {(time.perf_counter() - began_s) / 10:.3f} s"


def timed(path: Path, step: int) -> float:
    """Seconds until the picture at a step is there, the opening of the recording included."""
    began_s = time.perf_counter()
    with closing(Past(path)) as past:
        assert past.at(step).view.steps == step
    return time.perf_counter() - began_s
