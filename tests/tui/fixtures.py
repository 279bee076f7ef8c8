"""Runs for the screens: real RunStates fed with real messages, behind the same seam as a live run."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fsdp_tui.telemetry import presets
from fsdp_tui.telemetry.launch import LaunchSpec
from fsdp_tui.telemetry.machine import Machine
from fsdp_tui.telemetry.messages import (
    CATEGORIES,
    Beat,
    Comm,
    Ended,
    Event,
    Frame,
    Gauge,
    Hello,
    Launched,
    Message,
    Stack,
    Step,
    Structure,
    Thread,
    Unit,
)
from fsdp_tui.telemetry.notes import Note
from fsdp_tui.telemetry.queue import Item, Queue
from fsdp_tui.telemetry.rundir import RunEntry, RunError, RunPaths, UnknownRun
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui.source import Process, Services

MIB = 2**20
SECOND = 10**9
STARTED_NS = 1_700_000_000 * SECOND
STEP_NS = 200_000_000


@dataclass
class Recipe:
    """A made-up training whose numbers a test can work out by hand."""

    ranks: int = 2
    steps: int = 40
    strategy: str = "fsdp2:full_shard"
    effective: str = ""
    name: str = "tiny"
    device: str = "cpu"
    capacity: int | None = None
    state_bytes: int = 48 * MIB
    """Parameters, gradients and optimizer of the whole model: 1 : 1 : 2."""
    activation: int = 9 * MIB
    heavy_rank: int | None = None
    """Holds twice the activations."""
    loss: float = 5.0
    blocks: int = 4
    planned: int | None = 1_000
    events: tuple[tuple[str, str], ...] = (("note", "the hub was replaced: 1.2 s are missing from the live picture"),)
    ended: str = ""
    options: dict[str, str | int | float | bool | None] = field(default_factory=lambda: {"precision": "fp32"})

    @property
    def shards(self) -> int:
        return self.ranks if self.strategy.startswith("fsdp") else 1

    def states(self) -> int:
        """Bytes of model states that each rank keeps."""
        return self.state_bytes // self.shards

    def activations(self, rank: int) -> int:
        return self.activation * (2 if rank == self.heavy_rank else 1)

    def peak(self, rank: int) -> int:
        return self.states() + self.activations(rank) + self.gathered()

    def gathered(self) -> int:
        """Bytes of gathered parameters at the peak: one block."""
        return self.state_bytes // 4 // self.blocks if self.strategy.startswith("fsdp") else 0

    def step_ns(self, number: int) -> int:
        return STEP_NS + (number * 7919 % 11) * 1_000_000

    def messages(self) -> Iterable[Message]:
        yield Launched(
            run_id=run_id(self.name),
            name=self.name,
            created_ns=STARTED_NS,
            command=["fsdp-tui", "demo", "--strategy", self.strategy],
            nproc=self.ranks,
            strategy=self.strategy,
            options=self.options,
            steps=self.planned,
        )
        for rank in range(self.ranks):
            yield self.hello(rank)
            yield self.structure(rank)
        for number in range(1, self.steps + 1):
            for rank in range(self.ranks):
                yield self.step(rank, number)
                yield self.comm(rank, number)
        for rank in range(self.ranks):
            yield Beat(
                rank=rank,
                incarnation=1,
                sent_ns=self.now_ns - SECOND // 5,
                step=self.steps,
                sent=self.steps * 2,
                dropped=0,
            )
            yield Gauge(
                rank=rank, taken_ns=self.now_ns, values={"rss_bytes": 700 * MIB}, missing={"power_mw": "no GPU"}
            )
        for severity, text in self.events:
            yield Event(at_ns=STARTED_NS + 5 * SECOND, kind="hub_gap", severity=severity, text=text)
        if self.ended:
            yield Ended(
                state=self.ended,
                ended_ns=self.now_ns,
                exit_codes={str(rank): 0 for rank in range(self.ranks)},
                failed_rank=1 if self.ended == "failed" else None,
                reason="ValueError: no more data" if self.ended == "failed" else "",
                log_tail=["Traceback (most recent call last):", "ValueError: no more data"]
                if self.ended == "failed"
                else [],
            )

    @property
    def now_ns(self) -> int:
        """Just after the last step."""
        return STARTED_NS + self.steps * STEP_NS + 2 * SECOND

    def hello(self, rank: int) -> Hello:
        return Hello(
            rank=rank,
            world_size=self.ranks,
            incarnation=1,
            host=f"node{rank // 8}",
            pid=4_000 + rank,
            pid_started=STARTED_NS / 1e9,
            device=self.device if self.device == "cpu" else f"cuda:{rank % 8}",
            device_name="a cpu" if self.device == "cpu" else "NVIDIA H100 80GB HBM3",
            capacity_bytes=self.capacity,
            backend="gloo" if self.device == "cpu" else "nccl",
            versions={"torch": "2.13.0"},
        )

    def structure(self, rank: int) -> Structure:
        params = self.state_bytes // 16
        per_block = params // self.blocks
        units = [
            Unit(f"blocks.{n}", per_block, per_block * 4 // self.shards, per_block * 4) for n in range(self.blocks)
        ]
        return Structure(
            rank=rank,
            effective=self.effective or self.strategy,
            detail={"wrap": "transformer", "wrapped_modules": self.blocks},
            units=units if self.strategy.startswith("fsdp") else [],
            groups=[list(range(self.ranks))],
            params=params,
            trainable_params=params,
            param_bytes=params * 4,
            ideal_state_bytes=self.states(),
            probes={"ledger": "ok", "nvml": "not available: no GPU"},
        )

    def step(self, rank: int, number: int) -> Step:
        states = self.states()
        memory = {"param_shard": states // 4, "grad_shard": states // 4, "optimizer": states // 2}
        peak = memory | {"activation": self.activations(rank), "param_unsharded": self.gathered()}
        return Step(
            rank=rank,
            seq=number,
            step=number,
            ended_ns=STARTED_NS + number * STEP_NS,
            step_ns=self.step_ns(number),
            phases_ns=[1_000_000, 60_000_000, 110_000_000, 20_000_000, self.step_ns(number) - 191_000_000],
            loss=self.loss / (1 + number / 50),
            tokens=512,
            memory=column(memory),
            peak=column(peak),
            peak_phase="backward",
            peak_unit=self.blocks - 1 if self.strategy.startswith("fsdp") else -1,
            dropped=0,
            overhead_ns=400_000,
        )

    def comm(self, rank: int, number: int) -> Comm:
        if not self.strategy.startswith("fsdp") or self.ranks == 1:
            return Comm(
                rank=rank,
                seq=number,
                step=number,
                unit=[],
                kind=[],
                phase=[],
                group=[],
                nbytes=[],
                duration_ns=[],
                exposed_ns=[],
            )
        forward = [(unit, 0, 0) for unit in range(self.blocks)]
        backward = [call for unit in reversed(range(self.blocks)) for call in ((unit, 0, 1), (unit, 1, 1))]
        calls = forward + backward
        nbytes = self.state_bytes // 4 // self.blocks
        # Rank 1 comes last into everything: it waits 1 ms, the others 3 ms.
        duration = 1_000_000 if rank == 1 else 3_000_000
        return Comm(
            rank=rank,
            seq=number,
            step=number,
            unit=[unit for unit, _, _ in calls],
            kind=[kind for _, kind, _ in calls],
            phase=[phase for _, _, phase in calls],
            group=[0] * len(calls),
            nbytes=[nbytes] * len(calls),
            duration_ns=[duration] * len(calls),
            exposed_ns=[duration] * len(calls),
        )

    def state(self) -> RunState:
        state = RunState()
        for message in self.messages():
            state.apply(message)
        return state


def column(nbytes: dict[str, int]) -> list[int | None]:
    """A memory column of a CPU rank: what is not named is 0, cache and others are not known."""
    values: list[int | None] = [
        nbytes.get(name, None if name in ("cache", "non_torch", "others") else 0) for name in CATEGORIES
    ]
    return [*values, sum(value or 0 for value in values[:10])]


def run_id(name: str) -> str:
    """An id that is the same for the same name."""
    digest = zlib.crc32(name.encode())
    return "20231114-221320-" + "".join(
        "abcdefghijklmnopqrstuvwxyz234567"[digest >> shift & 31] for shift in (0, 5, 10, 15)
    )


def entry(name: str = "tiny", root: Path = Path("/nowhere"), **changes: object) -> RunEntry:
    """A run as the list shows it."""
    found: dict[str, object] = {
        "id": run_id(name),
        "name": name,
        "state": "running",
        "live": True,
        "created_ns": STARTED_NS,
        "ended_ns": None,
        "strategy": "fsdp2:full_shard",
        "effective": "fsdp2:full_shard",
        "world_size": 2,
        "steps": 40,
        "planned_steps": 1_000,
        "loss": 2.5,
        "problem": "",
        "paths": RunPaths(run_id(name), root / "kept" / name, root / "alive" / name),
    }
    return RunEntry(**(found | changes))  # type: ignore[arg-type]


class FixtureSource:
    """A run that a test holds in its hands."""

    def __init__(self, about: RunEntry, state: RunState) -> None:
        self.entry = about
        self.state = state
        self.live = about.live
        self.commands: list[str] = []
        self.refusal = ""
        self.closed = False
        self._seen = -1

    def poll(self, max_ms: int) -> bool:
        import time

        changed = self.state.version != self._seen
        self._seen = self.state.version
        if not changed:
            time.sleep(min(max_ms, 5) / 1000)  # what a socket without news does
        return changed

    def view(self) -> RunView:
        return self.state.view()

    def command(self, kind: str, ranks: Sequence[int] = ()) -> None:
        if self.refusal:
            raise RunError(self.refusal)
        self.commands.append(kind)
        if kind == "stacks":
            frames = [Frame("/home/me/train.py", 12, "<module>", "loss = model(x)"), Frame("", 0, "all_gather", "")]
            for rank in ranks:
                told = Stack(rank=rank, id="1", taken_ns=STARTED_NS + 61 * SECOND, threads=[Thread("training", frames)])
                self.state.apply(told)
        if kind == "stop":
            self.state.apply(Ended(state="stopped", ended_ns=STARTED_NS, exit_codes={}, stop_rung="agreed"))
            self.live = False

    def close(self) -> None:
        self.closed = True


class FixtureProcess:
    def poll(self) -> int | None:
        return None


@dataclass
class World:
    """Everything outside the dashboard."""

    sources: dict[str, FixtureSource] = field(default_factory=dict)
    entries: list[RunEntry] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    started: list[LaunchSpec] = field(default_factory=list)
    queue: Queue = field(default_factory=Queue)
    cancelled: list[Sequence[int] | None] = field(default_factory=list)
    """What the screens asked to be taken off the queue."""
    launches: dict[str, LaunchSpec] = field(default_factory=dict)
    """By the id of the run that it made."""
    now_ns: int = STARTED_NS + 60 * SECOND
    machine: Machine = field(default_factory=lambda: Machine(torch="2.13.0+cpu", accelerators=0, cores=2))
    start_error: str = ""

    def add(self, recipe: Recipe, about: RunEntry | None = None) -> FixtureSource:
        """A run made by a recipe."""
        live = not recipe.ended
        about = about or entry(
            recipe.name,
            state=recipe.ended or "running",
            live=live,
            strategy=recipe.strategy,
            effective=recipe.effective or recipe.strategy,
            world_size=recipe.ranks,
            steps=recipe.steps,
            planned_steps=recipe.planned,
        )
        self.now_ns = recipe.now_ns
        source = FixtureSource(about, recipe.state())
        self.sources[about.id] = source
        self.entries.append(about)
        return source

    def services(self) -> Services:
        def find(ref: str) -> RunEntry:
            for one in self.entries:
                if ref in (one.id, one.name):
                    return one
            raise UnknownRun(f"no run {ref}")

        def open_run(about: RunEntry) -> FixtureSource:
            if about.id not in self.sources:
                raise RunError(f"run {about.id}: its recording is damaged")
            return self.sources[about.id]

        def remove(about: RunEntry) -> None:
            self.removed.append(about.id)
            self.entries = [one for one in self.entries if one.id != about.id]

        def save_note(about: RunEntry, note: Note) -> None:
            self.entries = [replace(one, note=note) if one.id == about.id else one for one in self.entries]

        def enqueue(specs: Sequence[LaunchSpec]) -> Queue:
            items = [Item(number=number, spec=spec) for number, spec in enumerate(specs, len(self.queue.items) + 1)]
            self.queue = Queue(items=(*self.queue.items, *items))
            return self.queue

        def cancel(numbers: Sequence[int] | None) -> Queue:
            self.cancelled.append(numbers)
            return self.queue

        def launch_of(about: RunEntry) -> LaunchSpec:
            if about.id not in self.launches:
                raise RunError(f"run {about.id} was not launched from here")
            return self.launches[about.id]

        def start(spec: LaunchSpec) -> tuple[str, Process]:
            if self.start_error:
                raise RunError(self.start_error)
            self.started.append(spec)
            source = self.add(Recipe(name="fresh", strategy=spec.strategy, steps=3))
            return source.entry.id, FixtureProcess()

        return Services(
            list_runs=lambda: list(self.entries),
            find=find,
            open_run=open_run,
            remove=remove,
            save_note=save_note,
            queue=lambda: self.queue,
            enqueue=enqueue,
            cancel=cancel,
            start=start,
            launch_of=launch_of,
            presets=presets.listed,
            save_preset=lambda name, spec, replace: presets.save(name, spec, replace=replace),
            remove_preset=presets.remove,
            machine=lambda: self.machine,
            now_ns=lambda: self.now_ns,
            stopwatch_s=lambda: 0.0,
        )
