"""What ranks of a test world do in the tests of the session; each function runs on every rank."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fsdp_tui.runner import torch_ddp, torch_dist, torch_fsdp1, torch_fsdp2
from fsdp_tui.runner.session import WatchedRun, unwatched, watch
from fsdp_tui.runner.sharding import ShardingError, shard
from fsdp_tui.telemetry.messages import Hello, Step, Structure
from tests.dist import trainings
from tests.dist.trainings import Case, Mailbox, model, train, train_step


def _watched(case: Case, max_steps: int | None = None) -> tuple[Any, Any, WatchedRun, Mailbox]:
    sharded = shard(model(case.dims), case.strategy, **dict(case.options))
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=1e-2)
    boxes: list[Mailbox] = []

    def connect(hello: Hello) -> Mailbox:
        boxes.append(Mailbox(hello))
        return boxes[-1]

    run = WatchedRun(sharded, [optimizer], connect, max_steps)
    return sharded, optimizer, run, boxes[0]


def wrapped_names() -> dict[str, Any]:
    """Everything that interposition replaces, as it is now."""
    from torch.distributed.fsdp import _runtime_utils
    from torch.distributed.fsdp._flat_param import FlatParamHandle
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    names: dict[str, Any] = {name: getattr(dist, name) for name in torch_dist.FUNCTIONS if hasattr(dist, name)}
    names |= {f"group.{name}": getattr(FSDPParamGroup, name) for name in torch_fsdp2.METHODS}
    names |= {f"handle.{name}": getattr(FlatParamHandle, name) for name in torch_fsdp1.METHODS}
    names |= {name: getattr(_runtime_utils, name) for name in torch_fsdp1.FUNCTIONS}
    return names | {"Tensor.backward": Tensor.backward, "autograd.backward": torch.autograd.backward}


def stop_at_one_step(trials: int) -> list[tuple[int, str]]:
    """A different rank asks for the stop each time, at its own step; gives the step at which this rank stopped."""
    stopped = []
    for trial in range(trials):
        case = Case("fsdp2:full_shard")
        sharded, optimizer, run, box = _watched(case)
        asks = trial % dist.get_world_size() == dist.get_rank()
        with run:
            for step in range(50):
                loss = train_step(case, sharded, optimizer, step)
                if asks and step == 2 + trial:
                    box.requested.stop = True
                if not run.step(loss):
                    break
        assert box.goodbye is not None
        stopped.append((run.steps, box.goodbye.reason))
    return stopped


def pause_and_resume() -> tuple[int, list[bool]]:
    """Only the first rank hears of the pause and of its end; all wait for it. Gives steps, and this rank's pauses."""
    case = Case("ddp")
    sharded, optimizer, run, box = _watched(case, max_steps=8)
    polls: list[bool] = []

    def sleep(_: float) -> None:
        polls.append(box.paused)
        if dist.get_rank() == 0 and len(polls) == 3:
            box.requested.pause = False

    run._agreement._sleep = sleep
    with run:
        for step in range(20):
            loss = train_step(case, sharded, optimizer, step)
            if dist.get_rank() == 0 and step == 2:
                box.requested.pause = True
            if not run.step(loss):
                break
    return run.steps, polls


def losses_with_and_without(strategies: list[str]) -> list[tuple[str, list[float], list[float]]]:
    """Losses unwatched, then watched, to the last bit."""
    return [
        (strategy, train(Case(strategy, "odd", 5, watched=False)).losses, train(Case(strategy, "odd", 5)).losses)
        for strategy in strategies
    ]


def nothing_stays_wrapped() -> list[str]:
    """Names that differ after a watched training, and those that do not differ during it."""
    before = wrapped_names()
    sharded, optimizer, run, _ = _watched(Case("fsdp1:full_shard"))
    with run:
        train_step(Case("fsdp1:full_shard"), sharded, optimizer, 0)
        assert dist.all_reduce is not before["all_reduce"]
        assert run.step(1.0)
    after = wrapped_names()
    assert not sharded._forward_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    return [name for name in before if before[name] is not after[name]]


def error_is_reported() -> tuple[str, str]:
    """A failure inside the loop leaves with the script's exception and a goodbye that says so."""
    sharded, optimizer, run, box = _watched(Case("ddp"))
    case = Case("ddp")
    try:
        with run:
            train_step(case, sharded, optimizer, 0)
            run.step(0.5)
            raise ValueError("loss is nonsense")
    except ValueError:
        pass
    assert box.goodbye is not None
    return box.goodbye.reason, box.goodbye.error


def without_names(names: list[tuple[str, str]]) -> list[tuple[str, dict[str, str], list[Any], list[float]]]:
    """Trains with each private name unknown in turn, as in a torch that has renamed it; gives what the probes say."""
    modules = {"fsdp1": torch_fsdp1, "fsdp2": torch_fsdp2, "ddp": torch_ddp}
    outcomes = []
    for api, name in names:
        home = modules[api]
        tables = {key: value for key, value in vars(home).items() if isinstance(value, tuple) and name in value}
        for key, value in tables.items():
            setattr(home, key, tuple("renamed_in_this_torch" if part == name else part for part in value))
        try:
            case = Case("ddp" if api == "ddp" else f"{api}:full_shard", steps=2)
            sharded, optimizer, run, box = _watched(case)
            losses = []
            with run:
                for step in range(case.steps):
                    losses.append(train_step(case, sharded, optimizer, step))
                    assert run.step(losses[-1])
            structure = [message for message in box.messages if isinstance(message, Structure)][-1]
            last = [message for message in box.messages if isinstance(message, Step)][-1]
            outcomes.append((f"{api} {name}", structure.probes, list(last.memory), losses))
        finally:
            for key, value in tables.items():
                setattr(home, key, value)
    return outcomes


def a_failing_probe() -> tuple[str, list[float]]:
    """The ledger raises at some event: the training does not notice, and the probe says why it is off."""
    case = Case("fsdp2:full_shard")
    sharded, optimizer, run, box = _watched(case)
    assert run.probes.ledger is not None

    def broken(owner: object, in_flight: int = 0) -> None:
        raise KeyError("no such unit")

    run.probes.ledger.changed = broken  # type: ignore[method-assign]
    losses = []
    with run:
        for step in range(3):
            losses.append(train_step(case, sharded, optimizer, step))
            assert run.step(losses[-1])
    return [message for message in box.messages if isinstance(message, Structure)][-1].probes["memory"], losses


def unwatched_steps() -> tuple[int, list[int]]:
    """Every second step inside `unwatched`: gives the steps trained and those that were told."""
    case = Case("fsdp2:full_shard")
    sharded, optimizer, run, box = _watched(case)
    with run:
        for step in range(6):
            if step % 2:
                with unwatched():
                    loss = train_step(case, sharded, optimizer, step)
                    assert run.step(loss)
            else:
                assert run.step(train_step(case, sharded, optimizer, step))
    return run.steps, [message.step for message in box.messages if isinstance(message, Step)]


def without_a_hub() -> tuple[int, bool]:
    """`watch` with no run to report to wraps nothing, and still ends at the number of steps that was launched."""
    os.environ.pop("FSDP_TUI_RUN", None)
    os.environ["FSDP_TUI_STEPS"] = "3"
    try:
        before = wrapped_names()
        sharded = shard(model("even"), "ddp")
        optimizer = torch.optim.AdamW(sharded.parameters())
        with watch(sharded, optimizer) as run:
            untouched = wrapped_names() == before and not sharded._forward_pre_hooks
            for step in range(10):
                if not run.step(train_step(Case("ddp"), sharded, optimizer, step)):
                    break
        return run.steps, untouched
    finally:
        del os.environ["FSDP_TUI_STEPS"]


def refusals() -> list[str]:
    """What `shard` says when it cannot do as asked."""
    said = []
    for strategy, options in (
        (None, {}),
        ("fsdp3:full_shard", {}),
        ("single", {}),
        ("fsdp1:full_shard", {"cpu_offload": True}),
        ("fsdp2:hybrid_shard=3x5", {}),
        ("fsdp2:full_shard", {"wrap": "layers"}),
        ("fsdp2:full_shard", {"precision": "fp8"}),
    ):
        try:
            shard(torch.nn.Linear(2, 2), strategy, **options)
            said.append("nothing")
        except ShardingError as error:
            said.append(str(error))
    return said


def activations_by_heap() -> tuple[int, int]:
    """Activations at the peak of a step, and what glibc's heap grew by over the forward of an unwatched one."""
    from fsdp_tui.runner.allocators import heap_reader

    case = Case("single", "even")
    heap = heap_reader()
    assert heap is not None
    sharded, optimizer, run, box = _watched(case)
    tokens, targets = (part.repeat(16, 1) for part in trainings.micro_batches(case, 0)[0])

    def step() -> None:
        optimizer.zero_grad()
        loss = sharded(tokens, targets)
        loss.backward()
        optimizer.step()

    with run:
        for _ in range(6):
            step()
            assert run.step(1.0)
    for _ in range(3):
        step()
    optimizer.zero_grad()
    before = heap()
    loss = sharded(tokens, targets)
    grown = heap() - before
    del loss
    from fsdp_tui.telemetry.messages import CATEGORIES

    last = [message for message in box.messages if isinstance(message, Step)][-1]
    activation = last.peak[CATEGORIES.index("activation")]
    assert activation is not None
    return activation, grown
