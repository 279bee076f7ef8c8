"""Captured steps on real ranks, and the measurements that they are compared with; each function runs on every rank."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fsdp_tui.demo.model import build
from fsdp_tui.runner.allocators import heap_reader
from fsdp_tui.runner.ledger import Ledger
from fsdp_tui.runner.session import WatchedRun
from fsdp_tui.runner.sharding import shard
from fsdp_tui.telemetry.messages import CATEGORIES, Capture, Command, Hello, Step
from tests.dist import trainings
from tests.dist.behaviour import wrapped_names
from tests.dist.trainings import Case, Mailbox, train_step

EXACT = ("param_shard", "optimizer", "buffer", "param_unsharded", "grad_shard", "grad_unsharded")
"""Categories in which the ledger knows every byte. A collective's buffer it is not: gloo's thread lets go of it a little
after the training's has."""
ASKED, CAPTURED, MEASURED, STEPS = 3, 5, 7, 7
"""Steps: in which the request comes, which it captures, in which the heap is measured, and how many there are."""


@dataclass
class Outcome:
    """One training whose step CAPTURED was captured on the ranks asked."""

    losses: list[float]
    captures: list[Capture]
    steps: list[Step]
    heap_peak: int = 0
    """Highest growth of the C heap over the step, looked at after each operator by a mode of its own."""
    saved: int | None = 0
    """What the ledger calls activations when backward of the captured step begins."""
    mismatches: list[str] = field(default_factory=list)
    compared: int = 0
    left: list[str] = field(default_factory=list)


class HeapAfterEachOperator(TorchDispatchMode):
    """The independent measurement: glibc's total after each operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        read = heap_reader()
        assert read is not None
        self.read = read
        self.base = self.highest = read()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in (Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self.highest = max(self.highest, self.read())
        return result


def capture_one(case: Case, ranks: tuple[int, ...] = (), *, capture: bool = True, measure: bool = True) -> Outcome:
    """Trains STEPS steps; captures one, and measures the heap in another."""
    gc.collect()  # the last model must not go while the heap is measured
    before = wrapped_names()
    model = shard(trainings.model(case.dims), case.strategy, **dict(case.options))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    boxes: list[Mailbox] = []

    def connect(hello: Hello) -> Mailbox:
        boxes.append(Mailbox(hello))
        return boxes[-1]

    run = WatchedRun(model, [optimizer], connect, None)
    outcome = Outcome([], [], [])
    with run:
        for step in range(1, STEPS + 1):
            # Ranks hear of a request at different times: all act when the last one has.
            if capture and step == ASKED - (0 if dist.get_rank() == 0 else 1):
                boxes[0].requested.capture = Command(id="one", kind="capture", ranks=list(ranks), number=7)
            heap = None
            if step in (CAPTURED, MEASURED) and measure:
                _wait_for_gloo()
            if step == MEASURED and measure:
                heap = HeapAfterEachOperator()
                heap.__enter__()  # type: ignore[no-untyped-call]
            if run.probes.capture is not None:
                _compare_events(run, outcome)
            outcome.losses.append(train_step(case, model, optimizer, step))
            if run.probes.capture is not None and run.probes.ledger is not None:
                outcome.saved = run.probes.ledger._saved_for_backward
            if heap is not None:
                heap.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                outcome.heap_peak = heap.highest - heap.base
            assert run.step(outcome.losses[-1])
    outcome.captures = [message for message in boxes[0].messages if isinstance(message, Capture)]
    outcome.steps = [message for message in boxes[0].messages if isinstance(message, Step)]
    after = wrapped_names()
    outcome.left = [name for name in before if before[name] is not after[name]]
    return outcome


def _wait_for_gloo() -> None:
    """Its thread lets go of a step's last buffers a little after the training has: what is there at a step's begin is subtracted."""
    read = heap_reader()
    assert read is not None
    last, same = read(), 0
    while same < 5:
        time.sleep(0.02)
        same = same + 1 if read() == last else 0
        last = read()


def compiled_region() -> tuple[list[float], list[float], Capture, list[Step]]:
    """A model with a compiled block (by a backend that needs no C compiler), without and with a capture."""
    losses: list[list[float]] = []
    steps: list[Step] = []
    for capture in (False, True):
        model = trainings.model("even")
        model.blocks[0].forward = torch.compile(model.blocks[0].forward, backend="aot_eager")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        boxes: list[Mailbox] = []

        def connect(hello: Hello, boxes: list[Mailbox] = boxes) -> Mailbox:
            boxes.append(Mailbox(hello))
            return boxes[-1]

        run = WatchedRun(model, [optimizer], connect, None)
        losses.append([])
        with run:
            for step in range(1, 7):
                if step == 3 and capture:
                    boxes[0].requested.capture = Command(id="one", kind="capture", number=7)
                losses[-1].append(train_step(Case("single"), model, optimizer, step))
                assert run.step(losses[-1][-1])
        if not capture:  # the second training finds all compiled
            steps = [message for message in boxes[0].messages if isinstance(message, Step)]
    messages = boxes[0].messages
    return losses[0], losses[1], next(message for message in messages if isinstance(message, Capture)), steps


def cost(pairs: int) -> float:
    """How many times the CPU time of its neighbour a captured step of the demo's default takes: the median over pairs."""
    model = shard(build("tiny", 128, 0), "single")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 256, (8, 128))
    boxes: list[Mailbox] = []

    def connect(hello: Hello) -> Mailbox:
        boxes.append(Mailbox(hello))
        return boxes[-1]

    run = WatchedRun(model, [optimizer], connect, None)
    spent: dict[bool, list[int]] = {True: [], False: []}
    with run:
        for step in range(2 * pairs + 4):
            if step % 2:
                boxes[0].requested.capture = Command(id=str(step), kind="capture", number=step)
            captured = run.probes.capture is not None
            began = time.process_time_ns()
            optimizer.zero_grad()
            loss = model(tokens, tokens)
            loss.backward()
            optimizer.step()
            assert run.step(loss)
            if step > 3:
                spent[captured].append(time.process_time_ns() - began)
    return median(on / off for on, off in zip(spent[True], spent[False], strict=False))


def without_numbers(all_there: bool = False) -> tuple[Capture, list[float]]:
    """A capture with a torch that has renamed what tells autograd's nodes apart, or with ours."""
    from fsdp_tui.runner import torch_autograd

    original = torch_autograd.AUTOGRAD_NAMES
    torch_autograd.AUTOGRAD_NAMES = original if all_there else ("renamed_in_this_torch",)
    try:
        outcome = capture_one(Case("single"), measure=False)
    finally:
        torch_autograd.AUTOGRAD_NAMES = original
    return outcome.captures[0], outcome.losses


def broken_tracker() -> tuple[list[float], list[float], Capture]:
    """A capture that fails inside an operator: losses of an untouched training, of this one, and what is told."""
    from fsdp_tui.runner import capture as module

    case = Case("fsdp2:full_shard")
    untouched = capture_one(case, capture=False, measure=False).losses
    original = module.Tracker._drain

    def broken(self: module.Tracker) -> None:
        raise KeyError("no such storage")

    module.Tracker._drain = broken  # type: ignore[method-assign]
    try:
        outcome = capture_one(case, measure=False)
    finally:
        module.Tracker._drain = original  # type: ignore[method-assign]
    return untouched, outcome.losses, outcome.captures[0]


def under_another_mode() -> tuple[int, Any]:
    """A mode of the script's own that is entered inside the captured step and left after it: results, and what is left."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    case = Case("ddp")
    model = shard(trainings.model(case.dims), case.strategy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    boxes: list[Mailbox] = []

    def connect(hello: Hello) -> Mailbox:
        boxes.append(Mailbox(hello))
        return boxes[-1]

    run = WatchedRun(model, [optimizer], connect, None)
    with run:
        other = HeapAfterEachOperator()
        for step in range(1, STEPS + 1):
            if step == ASKED:
                boxes[0].requested.capture = Command(id="one", kind="capture", number=7)
            if step == CAPTURED:
                other.__enter__()  # type: ignore[no-untyped-call]
            if step == CAPTURED + 1:
                other.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            assert run.step(train_step(case, model, optimizer, step))
    return sum(isinstance(message, Capture) for message in boxes[0].messages), _get_current_dispatch_mode()


def _compare_events(run: WatchedRun, outcome: Outcome) -> None:
    """Compares the capture's categories with the ledger's at every moment that the ledger looks at in this step."""
    ledger, tracker = run.probes.ledger, run.probes.capture
    assert ledger is not None
    assert tracker is not None
    original = ledger._sample
    tracker_looks_too = True

    def recomputed(tensor: Tensor) -> None:
        # The tracker takes categories from the holders at units' events only.
        nonlocal tracker_looks_too
        tracker_looks_too = False
        Ledger.recomputed(ledger, tensor)
        tracker_looks_too = True

    def sample(unit: int, extra: tuple[int, int, int, int] = (0, 0, 0, 0), freed: int = 0) -> None:
        if run.probes.capture is tracker and tracker_looks_too:
            expected = ledger.walk().bytes
            seen = dict.fromkeys(CATEGORIES, 0)
            for storage in tracker._live.values():
                seen[CATEGORIES[storage.category]] += storage.nbytes
            for name in EXACT:
                # While gradients are reduced they are in FSDP's local variables, where a walk cannot find them.
                reducing = bool(ledger._in_reduction) or any(extra[1:3])
                hidden = reducing and name.startswith("grad")
                if not hidden and seen[name] != expected.get(name, 0):
                    outcome.mismatches.append(
                        f"{ledger.phase} unit {unit}: {name} {seen[name]}, not {expected.get(name, 0)}"
                    )
                outcome.compared += not hidden
        original(unit, extra, freed)

    ledger._sample = sample  # type: ignore[method-assign]
    ledger.recomputed = recomputed  # type: ignore[method-assign]
