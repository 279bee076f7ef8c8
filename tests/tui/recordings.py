"""Four recordings that were really written, of 2, 8, 64 and 1024 ranks: what pictures of a run's screens are taken of.

Each has captures, events of every severity, what a rank was doing, logs and a failed read-out; all of it made from messages, so
that a test can work every figure out again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from fsdp_tui.telemetry.client import open_run
from fsdp_tui.telemetry.messages import (
    Capture,
    Ended,
    Event,
    Frame,
    Gauge,
    Memory,
    Message,
    Stack,
    Step,
    Thread,
    encode,
)
from fsdp_tui.telemetry.recording import Recorder
from fsdp_tui.telemetry.rundir import RunEntry
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.tui.source import Services

from .captures import training_step
from .comm_runs import CommRecipe
from .fixtures import MIB, SECOND, STARTED_NS, STEP_NS, World, entry

GIB = 1024 * MIB
CAPTURED = 3
"""The step."""


@dataclass
class Recorded(CommRecipe):
    """A run that is over, and all that can be on record of one."""

    ended: str = "finished"
    captured: tuple[int, ...] = (0, 1)
    """Ranks whose captures there are; the last of them saw a MiB more than the others."""
    events: tuple[tuple[str, str], ...] = ()
    at_steps: dict[int, tuple[str, str]] = field(
        default_factory=lambda: {2: ("note", "checkpoint saved"), 4: ("warn", "the loss jumped")}
    )
    """Events: number of the step that ended after it -> severity and text."""

    def names(self) -> list[str]:
        """As those of the captures."""
        return [f"blocks.{at}" for at in range(self.blocks)]

    def messages(self) -> Iterable[Message]:
        for message in super().messages():
            if isinstance(message, Step) and message.rank == 0 and message.step in self.at_steps:
                severity, text = self.at_steps[message.step]
                at_ns = STARTED_NS + message.step * STEP_NS - STEP_NS // 2
                yield Event(at_ns=at_ns, kind="told", severity=severity, text=text, step=message.step)
            if isinstance(message, Gauge):
                message = self.gauge(message.rank)
            if isinstance(message, Ended):
                yield from (self.capture(rank) for rank in self.captured)
                yield self.stack(self.captured[-1])
            yield message

    def step(self, rank: int, number: int) -> Step:
        """With what is on a GPU beside torch's tensors."""
        told = super().step(rank, number)
        return (
            told if self.device == "cpu" else structs.replace(told, memory=beside(told.memory), peak=beside(told.peak))
        )

    def gauge(self, rank: int) -> Gauge:
        """Readings of the host, and of a GPU where there is one."""
        values: dict[str, int | float | None] = {"rss_bytes": 700 * MIB}
        if self.device == "cpu":
            return Gauge(rank, self.now_ns, values, {"power_mw": "no GPU"})
        values |= {"used_bytes": 45 * GIB, "power_mw": 312_000 + rank, "temperature_c": 61, "utilization_percent": 87}
        return Gauge(rank, self.now_ns, values, throttle=["power cap"], others=[(31_337, 2 * GIB)])

    def capture(self, rank: int) -> Capture:
        """Rank n of the captured ones had n MiB more than the first."""
        made = training_step(self.captured.index(rank), CAPTURED)
        return structs.replace(made, rank=rank)

    def stack(self, rank: int) -> Stack:
        frames = [
            Frame("/home/me/train.py", 112, "<module>", "loss = model(tokens)"),
            Frame("/home/me/model.py", 41, "forward", "return self.out(x)"),
            Frame("/usr/lib/python3/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 218, "all_gather", ""),
        ]
        taken_ns = STARTED_NS + 2 * SECOND
        return Stack(rank=rank, id="1", taken_ns=taken_ns, threads=[Thread("training", frames)])


def beside(memory: Memory) -> Memory:
    """2 GiB that torch's allocator keeps, 1 GiB of the context, and another process's 2 GiB."""
    return [*memory[:10], 2 * GIB, GIB, 2 * GIB, memory[-1]]


RECORDED = {
    2: Recorded(ranks=2, blocks=4, steps=24, name="tiny", late_rank=1),
    8: Recorded(
        ranks=8,
        blocks=6,
        steps=24,
        name="eight",
        device="cuda",
        capacity=80 * GIB,
        state_bytes=120 * GIB,
        activation=20 * GIB,
        heavy_rank=5,
        late_rank=5,
        slow_unit=4,
        clips=True,
        captured=(0, 5),
    ),
    64: Recorded(
        ranks=64,
        blocks=24,
        steps=6,
        name="many",
        device="cuda",
        capacity=80 * GIB,
        state_bytes=128 * GIB,
        activation=30 * GIB,
        late_rank=17,
        captured=tuple(range(0, 64, 9)),
    ),
    1024: Recorded(
        ranks=1024,
        blocks=4,
        steps=4,
        name="cluster",
        device="cuda",
        capacity=80 * GIB,
        state_bytes=64 * GIB,
        activation=30 * GIB,
        heavy_rank=517,
        late_rank=517,
        captured=(517,),
    ),
}


def write(recipe: Recorded, root: Path) -> RunEntry:
    """Records a run as its hub would have, with logs; its entry in a list of runs."""
    about = entry(
        recipe.name,
        root,
        state=recipe.ended,
        live=False,
        ended_ns=recipe.now_ns,
        world_size=recipe.ranks,
        steps=recipe.steps,
        planned_steps=recipe.planned,
    )
    about.paths.logs.mkdir(parents=True)
    state, recorder = RunState(), Recorder(about.paths.recording)
    for message in recipe.messages():
        state.apply(message)
        recorder.add(message, encode(message), 1)
    recorder.close(state)
    for rank in range(min(recipe.ranks, 8)):
        lines = [f"[rank {rank}] step {number} loss {recipe.loss / (1 + number / 50):.4f}" for number in range(1, 61)]
        lines.insert(30, f"[rank {rank}] " + "a line that is longer than the screen is wide, " * 4 + "and ends")
        about.paths.log(rank).write_text("".join(f"{line}\n" for line in lines))
    return about


def world_of(*entries: RunEntry) -> tuple[World, Services]:
    """A world whose runs are opened from their recordings."""
    world = World(entries=list(entries))
    world.now_ns = max((one.ended_ns or 0 for one in entries), default=STARTED_NS)
    return world, replace(world.services(), open_run=open_run)
