"""Set-ups whose memory surprises people, as ranks of a test world train them; each function runs on every rank."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from fsdp_tui.demo.model import GPT, Block, Shape
from fsdp_tui.runner.session import WatchedRun
from fsdp_tui.runner.sharding import no_sync, shard
from fsdp_tui.telemetry.messages import Hello, Message
from tests.dist.trainings import Mailbox, Result, checked_events

SHAPE, CONTEXT = Shape(4, 96, 3), 32
UNEVEN = Shape(3, 33, 3)
STEPS = 3


class Buffered(GPT):
    """A model with a buffer that is worth counting."""

    def __init__(self) -> None:
        super().__init__(SHAPE, CONTEXT)
        self.register_buffer("table", torch.zeros(100, 1_000))


class Narrow(GPT):
    """A model with a parameter of fewer rows than there are ranks."""

    def __init__(self) -> None:
        super().__init__(SHAPE, CONTEXT)
        self.scale = nn.Parameter(torch.ones(1, 50_000))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return super().forward(tokens, targets) * self.scale.mean()


def lora_like() -> GPT:
    """Most parameters frozen; one of each block is trained."""
    model = GPT(SHAPE, CONTEXT)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("out.weight"))
    return model


MODELS: dict[str, Callable[[], GPT]] = {
    "gpt": lambda: GPT(SHAPE, CONTEXT),
    "uneven": lambda: GPT(UNEVEN, CONTEXT),
    "narrow": Narrow,
    "buffered": Buffered,
    "lora": lora_like,
}


@dataclass(frozen=True)
class SetUp:
    """One training. `ignoring` leaves the position embedding out of sharding, by the wrappers' own arguments; `hoard` keeps
    a copy of all weights from that step on, on the ranks `hoarders`; `launched` is the strategy that its launch asked for,
    "" for the same."""

    strategy: str
    model: str = "gpt"
    options: tuple[tuple[str, Any], ...] = ()
    batch: int = 2
    steps: int = STEPS
    accumulate: int = 1
    ignoring: bool = False
    hoard: int | None = None
    hoarders: tuple[int, ...] = (0, 1)
    optimizer: str = "AdamW"
    launched: str = ""


@dataclass
class Seen:
    """What one rank has told."""

    hello: Hello
    messages: list[Message]
    result: Result
    before_bytes: int
    """Live tensors of this process before the set-up: what earlier ones have left."""


def run_all(setups: list[SetUp]) -> list[Seen]:
    return [_run(setup) for setup in setups]


def _run(setup: SetUp) -> Seen:
    dist.barrier()
    before = live_bytes()
    torch.manual_seed(0)
    model = MODELS[setup.model]()
    sharded = _wrapped(model, setup) if setup.ignoring else shard(model, setup.strategy, **dict(setup.options))
    trained: list[nn.Parameter] = [parameter for parameter in sharded.parameters() if parameter.requires_grad]
    optimizer = OPTIMIZERS[setup.optimizer](trained)
    boxes: list[Mailbox] = []

    def connect(hello: Hello) -> Mailbox:
        boxes.append(Mailbox(hello))
        return boxes[-1]

    result = Result([])
    run = WatchedRun(sharded, [optimizer], connect, setup.steps)
    copy: list[Tensor] = []
    with checked_events(run.probes.ledger, result), run:
        for step in range(1, setup.steps + 1):
            if setup.hoard == step and dist.get_rank() in setup.hoarders:
                copy = [torch.zeros(shape) for shape in _shapes(setup.model)]
            optimizer.zero_grad()
            for part in range(setup.accumulate):
                with no_sync(sharded) if part < setup.accumulate - 1 else contextlib.nullcontext():
                    sharded(*_batch(setup, step * 10 + part)).backward()
            optimizer.step()
            assert run.step(1.0) == (step < setup.steps)
    del copy, run, sharded, optimizer, model, trained
    gc.collect()
    return Seen(boxes[0].hello, boxes[0].messages, result, before)


def live_bytes() -> int:
    """Bytes of all tensors in this process that Python knows."""
    gc.collect()
    tensors = (thing for thing in gc.get_objects() if issubclass(type(thing), Tensor))
    storages = (getattr(tensor, "_local_tensor", tensor).untyped_storage() for tensor in tensors)
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, amsgrad=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, momentum=0.9, centered=True),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, lr=1e-3),
}


def _shapes(model: str) -> list[torch.Size]:
    with torch.device("meta"):
        return [parameter.shape for parameter in MODELS[model]().parameters()]


def _batch(setup: SetUp, seed: int) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    text = torch.randint(0, 256, (setup.batch, CONTEXT + 1), generator=chance)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _wrapped(model: GPT, setup: SetUp) -> nn.Module:
    """Sharded as a script does it that leaves a part of its model out."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if setup.strategy.startswith("fsdp1"):
        return FullyShardedDataParallel(
            model,
            device_mesh=mesh,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            ignored_modules=[model.position],
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh, ignored_params=set(model.position.parameters()))
    return model


def saved_for_backward(setup: SetUp) -> int:
    """Bytes of the storages that autograd saves in one forward of the unsharded model, the parameters' own left out."""
    model = MODELS[setup.model]()
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved: dict[int, int] = {}
    tokens, targets = _batch(setup, 10)

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage.nbytes()
        return tensor.detach()  # the tensor itself could be its own node's, and would never be freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(tokens, targets)
    nbytes = sum(saved.values())
    del loss
    return nbytes
