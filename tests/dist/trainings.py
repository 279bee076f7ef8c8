"""Small trainings that ranks of a test world run, and what they bring back."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fsdp_tui.demo.model import GPT, Shape
from fsdp_tui.runner.ledger import Ledger
from fsdp_tui.runner.session import WatchedRun
from fsdp_tui.runner.sharding import no_sync, shard
from fsdp_tui.telemetry.messages import Comm, Command, Gauge, Goodbye, Hello, Later, Message, Step, Structure

SHAPES = {"even": (Shape(3, 32, 2), 16), "odd": (Shape(3, 33, 3), 17), "large": (Shape(2, 128, 2), 512)}
"""Odd: neither 2 nor 4 divides the rows of any parameter but the byte embedding's. Large: what Python and malloc take
beside the tensors is under half a percent."""
BATCH = 8


@dataclass(frozen=True)
class Case:
    """One training."""

    strategy: str
    dims: str = "even"
    steps: int = 3
    options: tuple[tuple[str, Any], ...] = ()
    accumulate: int = 1
    skip_sync: bool = False
    watched: bool = True

    @property
    def label(self) -> str:
        words = [self.strategy, self.dims, *(f"{name}={value}" for name, value in self.options)]
        if self.accumulate > 1:
            words.append(f"accumulate={self.accumulate}{'/no_sync' if self.skip_sync else ''}")
        return " ".join(words)


class Requested:
    def __init__(self) -> None:
        self.stop = False
        self.pause = False
        self.capture: Command | None = None


class Mailbox:
    """A sender that keeps everything."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.requested = Requested()
        self.step = 0
        self.paused = False
        self.dropped = 0
        self.read_gauges: Any = None
        self.where: Any = None
        self.messages: list[Message] = []
        self.goodbye: Goodbye | None = None
        self.gauge: Gauge | None = None

    def put(self, message: Message | Later) -> None:
        if self.read_gauges is not None and self.gauge is None:
            self.gauge = self.read_gauges()
        self.messages.append(message() if callable(message) else message)

    def close(self, goodbye: Goodbye, timeout_s: float = 2.0) -> None:
        self.goodbye = goodbye


@dataclass
class Result:
    """What one rank saw of one training."""

    losses: list[float]
    """Mean over ranks, as trained."""
    structures: list[Structure] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    comms: list[Comm] = field(default_factory=list)
    hello: Hello | None = None
    goodbye: Goodbye | None = None
    gauge: Gauge | None = None
    walked: int = 0
    """Events at which the ledger's counters were compared with a full walk."""
    mismatches: list[str] = field(default_factory=list)


def model(dims: str, seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    shape, context = SHAPES[dims]
    return GPT(shape, context)


def micro_batches(case: Case, step: int) -> list[tuple[Tensor, Tensor]]:
    """This rank's part of the step's global batch, which is the same for every world."""
    rank, size = dist.get_rank(), dist.get_world_size()
    chance = torch.Generator().manual_seed(1000 + step)
    length = SHAPES[case.dims][1]
    text = torch.randint(0, 256, (BATCH, length + 1), generator=chance)
    each = BATCH // (size * case.accumulate)
    parts = []
    for part in range(case.accumulate):
        first = (part * size + rank) * each
        rows = text[first : first + each]
        parts.append((rows[:, :-1].contiguous(), rows[:, 1:].contiguous()))
    return parts


def train(case: Case) -> Result:
    """Runs the training; watched with a mailbox in place of a hub, and every event checked against a full walk."""
    dist.barrier()
    sharded = shard(model(case.dims), case.strategy, **dict(case.options))
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=1e-2)
    result = Result([])
    if not case.watched:
        for step in range(case.steps):
            result.losses.append(train_step(case, sharded, optimizer, step))
        return result
    boxes: list[Mailbox] = []

    def connect(hello: Hello) -> Mailbox:
        boxes.append(Mailbox(hello))
        return boxes[-1]

    run = WatchedRun(sharded, [optimizer], connect, None)
    with checked_events(run.probes.ledger, result), run:
        for step in range(case.steps):
            loss = train_step(case, sharded, optimizer, step)
            result.losses.append(loss)
            assert run.step(loss)
    box = boxes[0]
    result.structures = [message for message in box.messages if isinstance(message, Structure)]
    result.steps = [message for message in box.messages if isinstance(message, Step)]
    result.comms = [message for message in box.messages if isinstance(message, Comm)]
    result.hello, result.goodbye, result.gauge = box.hello, box.goodbye, box.gauge
    del run, sharded, optimizer
    gc.collect()
    return result


def train_step(case: Case, sharded: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    """One optimizer step; the mean loss over micro-batches and ranks."""
    import contextlib

    optimizer.zero_grad()
    losses = []
    parts = micro_batches(case, step)
    for at, (tokens, targets) in enumerate(parts):
        apart = case.skip_sync and at < len(parts) - 1
        with no_sync(sharded) if apart else contextlib.nullcontext():
            loss = sharded(tokens, targets)
            (loss / len(parts)).backward()
        losses.append(loss.detach())
    optimizer.step()
    mean = torch.stack(losses).mean()
    with torch.no_grad():
        total = mean.clone()
        torch.distributed.distributed_c10d.all_reduce(total)  # not the wrapped name: this is the test's own
    return float(total) / dist.get_world_size()


class checked_events:  # reads as a function
    """Compares the ledger's counters with a walk over all storages at every sample it takes."""

    def __init__(self, ledger: Ledger | None, result: Result) -> None:
        self._ledger, self._result = ledger, result

    def __enter__(self) -> None:
        ledger, result = self._ledger, self._result
        if ledger is None:
            return
        original = ledger._sample

        def sample(unit: int, extra: tuple[int, int, int, int] = (0, 0, 0, 0), freed: int = 0) -> None:
            walked = ledger.walk().bytes
            counted = dict(
                zip(("param_unsharded", "grad_shard", "grad_unsharded", "comm_buffer"), ledger.live, strict=True)
            )
            carried = bool(ledger._in_reduction)
            for name, nbytes in counted.items():
                if carried and name.startswith("grad"):
                    continue  # FSDP holds them in a local list at this moment
                if walked.get(name, 0) != nbytes:
                    result.mismatches.append(
                        f"{ledger.phase} unit {unit}: {name} {nbytes} counted, {walked.get(name, 0)} there"
                    )
            result.walked += 1
            original(unit, extra, freed)

        ledger._sample = sample  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None: ...


def train_all(cases: list[Case]) -> list[Result]:
    return [train(case) for case in cases]
