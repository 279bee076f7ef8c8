"""`watch`: one training loop with its probes, its messages, and the stop and pause that all ranks agree on.

Without a hub it is a null object that wraps nothing; the number of steps that was launched still ends the loop.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import msgspec
import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from fsdp_tui.runner import (
    attach,
    devices,
    foreign,
    structure,
    torch_checkpoint,
    torch_compile,
    torch_ddp,
    torch_dist,
    torch_fsdp1,
    torch_fsdp2,
)
from fsdp_tui.runner.agreement import Agreement, Requests
from fsdp_tui.runner.allocators import allocator_for
from fsdp_tui.runner.capture import Tracker, failed
from fsdp_tui.runner.clocks import Clock, clock_for
from fsdp_tui.runner.collectives import Collectives, StepCalls
from fsdp_tui.runner.interpose import OK, Interposer, complain, not_available
from fsdp_tui.runner.ledger import Ledger
from fsdp_tui.runner.looks import Looks
from fsdp_tui.runner.phases import BACKWARD, FORWARD, INPUT, OPTIMIZER, Phases, StepTimes
from fsdp_tui.runner.probes import Probes
from fsdp_tui.telemetry.messages import (
    CATEGORIES,
    Comm,
    Command,
    Gauge,
    Goodbye,
    Hello,
    Later,
    Message,
    Step,
    Structure,
    Where,
)
from fsdp_tui.telemetry.places import RunError

torch_compile.leave_us_alone()

T = TypeVar("T")


class Found(Protocol):
    """What is known of a training that was found from outside (`runner.attach`)."""

    together: bool
    """Whether all ranks train the same model, in step: then they can agree on something."""

    def goes_on(self) -> None:
        """A forward of the model is about to begin."""

    @property
    def detail(self) -> dict[str, str | int | float | bool | None]:
        """For the record, beside what the structure tells."""

    @property
    def checks(self) -> dict[str, str]:
        """Of probes that are its own."""


EXPOSED_CHECKS = {"fsdp1": torch_fsdp1.check_waits, "fsdp2": torch_fsdp2.check_waits}
COMPILED_CALL = "_compiled_call_impl"
"""Attribute of a module that was compiled in place; None in any other. Its hooks are compiled with it."""
BUCKETS_SETTLE = 3
"""Steps after which DDP has rebuilt its buckets in the order in which gradients really come."""


class Sender(Protocol):
    """What takes messages off the training thread (`runner.sender.Sender`)."""

    step: int
    paused: bool
    read_gauges: Callable[[], Gauge] | None
    where: Callable[[], Where] | None

    @property
    def requested(self) -> Requests: ...

    @property
    def dropped(self) -> int: ...

    def put(self, message: Message | Later) -> None: ...

    def close(self, goodbye: Goodbye, timeout_s: float = 5.0) -> None: ...


class _Wishes:
    """Requests that nobody makes."""

    stop = False
    pause = False
    capture: Command | None = None


class _Nobody:
    """A sender without a hub."""

    def __init__(self) -> None:
        self.requested: Requests = _Wishes()
        self.step = 0
        self.paused = False
        self.read_gauges: Callable[[], Gauge] | None = None
        self.where: Callable[[], Where] | None = None
        self.dropped = 0

    def put(self, message: Message | Later) -> None: ...

    def close(self, goodbye: Goodbye, timeout_s: float = 5.0) -> None: ...


class Run(contextlib.AbstractContextManager["Run", None]):
    """A training loop, as its script sees it. This one watches nothing; it counts steps and ends at `FSDP_TUI_STEPS`."""

    def __init__(self, max_steps: int | None) -> None:
        self._max_steps = max_steps
        self.steps = 0
        """Optimizer steps so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def step(self, loss: Tensor | float | None = None, tokens: int | None = None) -> bool:
        """Call once after each optimizer step; when it returns False, leave the loop.

        Args:
            loss: this rank's loss of the step; with accumulation, the mean over its backwards.
            tokens: tokens this rank trained on in this step; None: counted from the model's integer inputs.
        """
        self.steps += 1
        return self._max_steps is None or self.steps < self._max_steps

    def batches(self, iterable: Iterable[T]) -> Iterator[T]:
        """The same items; the time spent waiting for each is the step's input phase."""
        yield from iterable


class _Pending(NamedTuple):
    """A step that is over and whose figures may still be on their way from the device."""

    step: Step
    times: StepTimes
    calls: StepCalls | None
    loss: Loss
    metrics: dict[str, Loss]


class Loss:
    """A step's loss on its way to the host, a sum of parts: copied without a synchronisation, read once the copies are done."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parts: list[tuple[Tensor | float, Any]] = []

    def add(self, value: Tensor | float) -> None:
        if not isinstance(value, Tensor):
            self._parts.append((value, None))
            return
        value = value.detach()
        if not value.is_cuda:
            self._parts.append((float(value), None))
            return
        host = torch.empty((), dtype=value.dtype, pin_memory=True)
        host.copy_(value.reshape(()), non_blocking=True)
        self._parts.append((host, self._clock.mark()))

    def extend(self, other: Loss) -> None:
        self._parts += other._parts

    def ready(self) -> bool:
        return all(mark is None or self._clock.ready(mark) for _, mark in self._parts)

    def read(self) -> float | None:
        """None if there is no part."""
        self._clock.release([mark for _, mark in self._parts])
        return sum(float(value) for value, _ in self._parts) if self._parts else None


_current: WatchedRun | None = None

NOT_KNOWN: list[int | None] = [None] * (len(CATEGORIES) + 1)
"""A memory column of which nothing is known."""


class WatchedRun(Run):
    """A training loop whose every step is measured and sent."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        connect: Callable[[Hello], Sender],
        max_steps: int | None,
        *,
        roots: Sequence[nn.Module] = (),
        found: Found | None = None,
    ) -> None:
        """`roots` are the modules whose forward is the model's, if that is not the model itself. `found` says what is known of
        a training that was found from outside, which tells of its optimizers and backwards itself."""
        super().__init__(max_steps)
        self._found = found
        self._device = structure.current_device(model)
        self._rank = dist.get_rank() if _distributed() else int(os.environ.get("RANK", "0"))
        self._incarnation = time.time_ns()
        self._seq = 0
        self._pending: deque[_Pending] = deque()
        self._structure: Structure | None = None
        self._hooks: list[Any] = []
        self._interposer = Interposer()
        # Every rank creates the agreement's group here, before anything that could fail on one rank alone.
        self._sender = self._connected(connect)
        self._agreement = self._new_agreement()
        self._capturing: tuple[Tracker, Command] | None = None
        self._was_captured = False
        self._leaving: list[Tracker] = []
        """Captures that are over, under a mode of somebody else's that is not."""
        self.clock = clock_for(self._device)
        self._readings = devices.Devices(self._device)
        self._looks = Looks(max_steps)
        self._began = time.perf_counter_ns()
        self._peak: tuple[list[int | None], str, int] = (list(NOT_KNOWN), "", -1)
        self._peak_units: int | None = None
        self._looked_step = 0
        self.exit_code: int | None = None
        """What the process is about to exit with, for the goodbye."""
        self._logged: dict[str, Loss] = {}
        self._take(model, optimizers, roots)

    def _take(self, model: nn.Module, optimizers: Sequence[Optimizer], roots: Sequence[nn.Module]) -> None:
        """From now on this is what is trained."""
        self._model = model
        self._roots = roots or [model]
        self._optimizers = optimizers
        self._structure_key: Any = None
        self._buckets: list[int] = []
        self._wrapped = self._inspected()
        self._checks: dict[str, str] = {}
        self.probes = self._make_probes()

    def _new_agreement(self) -> Agreement:
        return Agreement(
            self._sender.requested,
            listening=not isinstance(self._sender, _Nobody),
            together=self._found is None or self._found.together,
        )

    @property
    def trained_by(self) -> Sequence[Optimizer]:
        """The optimizers that train what is watched."""
        return self._optimizers

    # Making

    def _hello(self) -> Hello:
        process = psutil.Process()
        return Hello(
            rank=self._rank,
            world_size=dist.get_world_size() if _distributed() else 1,
            incarnation=self._incarnation,
            host=socket.gethostname(),
            pid=process.pid,
            pid_started=process.create_time(),
            device=str(self._device),
            device_name=devices.device_name(self._device),
            capacity_bytes=devices.capacity_bytes(self._device),
            backend=dist.get_backend() if _distributed() else "none",
            versions={"python": platform.python_version(), "torch": str(torch.__version__)},
        )

    def _connected(self, connect: Callable[[Hello], Sender]) -> Sender:
        try:
            return connect(self._hello())
        except Exception as error:  # noqa: BLE001  # the training is worth more than its telemetry
            # The rank still takes part in the agreement: the others wait for it there.
            said = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
            complain(f"rank {self._rank} trains unwatched: {said}")
            return _Nobody()

    def _inspected(self) -> structure.Wrapped:
        try:
            return structure.inspect(self._model, self._device.type)
        except Exception as error:  # noqa: BLE001  # private state of torch: anything may happen in another version
            return structure.unreadable(self._model, error)

    def _make_probes(self) -> Probes:
        wrapped, cpu = self._wrapped, self._device.type == "cpu"
        allocator, heap_said = allocator_for(self._device)
        self._facts, facts_said = structure.read_facts(self._model, wrapped, self._optimizers, self._device.type)
        self._checks = {
            "memory": wrapped.check,
            "facts": facts_said,
            "activations": heap_said,
            "recomputation": torch_checkpoint.check(),
            "collectives": torch_dist.check()
            if wrapped.ddp is None
            else torch_ddp.check_times(wrapped.ddp, self._device.type),
            "phases": OK,
            "input": not_available(
                "the loop does not iterate over run.batches(...)"
                if self._found is None
                else "no DataLoader is iterated over"
            ),
        }
        if not cpu and wrapped.api in EXPOSED_CHECKS:
            self._checks["exposed"] = EXPOSED_CHECKS[wrapped.api]()
        ledger = Ledger(
            self._model,
            self._optimizers,
            wrapped.units,
            wrapped.shared,
            wrapped.plain,
            allocator,
            self._device.type,
            fixed=self._bucket_memory,
            blind=wrapped.blind,
        )
        collectives = Collectives(self.clock, {id(unit.owner): at for at, unit in enumerate(wrapped.units)}, cpu)
        return Probes(Phases(self.clock, frozenset({FORWARD, BACKWARD, OPTIMIZER})), collectives, ledger)

    def _bucket_memory(self) -> int:
        ddp = self._wrapped.ddp
        return torch_ddp.buffer_bytes(ddp) if ddp is not None and self._wrapped.check == OK else 0

    # Begin and end

    def __enter__(self) -> Self:
        global _current
        if _current is not None:
            raise RuntimeError("watch: another training loop of this process is being watched")
        _current = self
        self._begin()
        return self

    def _begin(self) -> None:
        self.probes.after_forward = self._send_structure
        self._sender.read_gauges = self._gauges
        self._sender.where = self._where
        if isinstance(self._sender, _Nobody):
            self.probes.on = False
        else:
            self._install()

    def rewatch(self, model: nn.Module, optimizers: Sequence[Optimizer], roots: Sequence[nn.Module] = ()) -> None:
        """The same run goes on with another model: it was replaced, or more of it has appeared."""
        self._remove()
        if self._found is not None and self._found.together and not self._agreement.together:
            self._agreement = self._new_agreement()
        self._take(model, optimizers, roots)
        self._begin()
        self.restart_step()

    def let_go(self) -> None:
        """Holds on to nothing of the model any more: the script is done with it, and may need its memory."""
        self._remove()
        self._model, self._roots, self._optimizers = nn.Module(), [], ()
        self._wrapped = structure.Wrapped("none", "none")
        self.probes.ledger = self.probes.collectives = None
        self.probes.after_forward = self.probes.after_backward = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _current
        _current = None
        self._remove()
        self._agreement.close(failed=error is not None)
        if error is None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # training is over: the last figures may be waited for
        self._send_ready(all_of_them=error is None)
        last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1] if error is not None else ""
        reason = "error" if error is not None else "stopped" if self._agreement.stopped else "finished"
        self._sender.read_gauges = self._sender.where = None
        self._sender.close(
            Goodbye(
                rank=self._rank,
                incarnation=self._incarnation,
                reason=reason,
                steps=self.steps,
                error=last[:2000],
                exit_code=self.exit_code,
            )
        )

    def _install(self) -> None:
        probes, interposer = self.probes, self._interposer
        if self._checks["collectives"] == OK:
            torch_dist.install(interposer, probes)
        if self._wrapped.ddp is not None and self._wrapped.check == OK:
            probes.after_backward = self._buckets_reduced
            if self._checks["collectives"] == torch_ddp.TOGETHER:
                torch_ddp.time_every_step(self._wrapped.ddp, on=True)
        if self._wrapped.install is not None:
            self._wrapped.install(interposer, probes)
        torch_checkpoint.install(interposer, probes)

        found = self._found

        def forward_begins(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if found is not None:
                found.goes_on()
            if probes.on and self._trains():
                probes.forward_begins(args, kwargs)

        def forward_ends(*_: Any) -> None:
            if probes.on and probes.phases.current == FORWARD:
                probes.forward_ends()

        for root in self._roots:
            if getattr(root, COMPILED_CALL, None) is not None:  # hooks would be in its graph
                self._interposer.wrap(root, COMPILED_CALL, _called(root, forward_begins, forward_ends))
                continue
            self._hooks += [
                root.register_forward_pre_hook(forward_begins, prepend=True, with_kwargs=True),
                root.register_forward_hook(forward_ends),
            ]
        if self._found is not None:
            return
        for optimizer in self._optimizers:
            self._hooks += [
                optimizer.register_step_pre_hook(lambda *_: probes.optimizer_begins() if probes.on else None),
                optimizer.register_step_post_hook(lambda *_: probes.optimizer_ends() if probes.on else None),
            ]
        for owner in (Tensor, torch.autograd):
            interposer.wrap(owner, "backward", lambda original: _watched_backward(probes, original))

    def _trains(self) -> bool:
        return torch.is_grad_enabled()  # an evaluation is no part of a step's forward

    def _remove(self) -> None:
        self.probes.on = False
        if self._capturing is not None:  # the loop ended inside the step: there is nothing to tell
            (tracker, _), self._capturing = self._capturing, None
            self.probes.capture = None
            tracker.stop()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._interposer.remove()
        if self.probes.after_backward is not None and self._checks["collectives"] == torch_ddp.TOGETHER:
            torch_ddp.time_every_step(self._wrapped.ddp, on=False)

    # A step

    def step(self, loss: Tensor | float | None = None, tokens: int | None = None) -> bool:
        held = Loss(self.clock)
        if loss is not None and self.probes.on:
            held.add(loss)
        self.finish(held, tokens)
        return self.boundary()

    def finish(
        self,
        loss: Loss,
        tokens: int | None = None,
        *,
        at_last_phase: bool = False,
    ) -> None:
        """Ends the step, now or where its last phase ended, and sends it. `boundary` comes next."""
        began = time.perf_counter_ns()
        self.steps += 1
        self._end_capture()
        if self.probes.on:
            try:
                self._finish_step(loss, tokens, began, at_last_phase)
            except Exception as error:  # noqa: BLE001  # a step that cannot be told must not end the training
                self.probes.health["session"] = not_available(f"{type(error).__name__}: {error}")
        self._sender.step = self.steps

    def ends_here(self) -> bool:
        """Whether all ranks will stop at the boundary after the step that goes on, whose optimizers have all stepped."""
        if self._max_steps is not None and self.steps + 1 >= self._max_steps:
            return True
        if self._agreement.stops():
            self._agreement.stopped = True
            return True
        return False

    def boundary(self) -> bool:
        """Between two steps, where all ranks act together: False if they stop here. Once after each `finish`."""
        if self._max_steps is not None and self.steps >= self._max_steps:
            return False
        if not self._agreement.at_boundary(self._on_pause):
            return False
        if self._agreement.capture is not None:
            self._begin_capture(self._agreement.capture)
        return True

    def _begin_capture(self, command: Command) -> None:
        """Captures the step that begins now, if this rank was asked."""
        if command.ranks and self._rank not in command.ranks:
            return
        probes = self.probes
        ledger = probes.ledger
        if ledger is None or not probes.on or isinstance(self._sender, _Nobody):
            why = probes.said("memory", self._checks["memory"]) if probes.on else "the step is not watched"
            self._sender.put(failed(self._rank, self.steps + 1, command, why))
            return
        try:
            self._start_capture(ledger, command)
        except Exception as error:  # noqa: BLE001  # no result, and the training goes on
            self._sender.put(failed(self._rank, self.steps + 1, command, f"{type(error).__name__}: {error}"))

    def _start_capture(self, ledger: Ledger, command: Command) -> None:
        wrapped = self._wrapped
        model: Any = self._model
        tracker = Tracker(
            model.module if wrapped.ddp is model else model,
            ledger,
            self.probes.phases,
            self._device.type,
            plain=wrapped.plain,
            buckets=self._buckets if wrapped.ddp is not None and ledger.buckets else [],
            name_of=structure.unit_name,
        )
        if not ledger.looking:
            ledger.start_step()  # so that this step has the ledger's figures too
        self._capturing, self.probes.capture, ledger.captured = (tracker, command), tracker, True
        try:
            tracker.start()
        except Exception as error:  # noqa: BLE001  # its answer is the failure
            tracker.fail(error)

    def _end_capture(self) -> None:
        self._leaving = [tracker for tracker in self._leaving if not tracker.stop()]
        self._was_captured = self._capturing is not None
        if self._capturing is None:
            return
        (tracker, command), self._capturing = self._capturing, None
        self.probes.capture = None
        try:
            if not tracker.stop():
                self._leaving.append(tracker)
            if not self.probes.on:
                tracker.fail(RuntimeError("the step was not watched"))
            message = tracker.finish(self._rank, self.steps, command)
        except Exception as error:  # noqa: BLE001  # no result, and the training goes on
            message = failed(self._rank, self.steps, command, f"{type(error).__name__}: {error}")
        self._sender.put(message)

    def log(self, values: dict[str, Tensor | float]) -> None:
        """What the script says of the step that goes on: its loss, by the name of "loss", and anything else."""
        for name, value in values.items():
            self._logged[name] = Loss(self.clock)
            self._logged[name].add(value)

    def _finish_step(self, loss: Loss, tokens: int | None, began: int, at_last_phase: bool) -> None:
        probes = self.probes
        metrics, self._logged = self._logged, {}
        loss = metrics.pop("loss", loss)
        times = probes.phases.finish_step(at_last_phase=at_last_phase)
        memory = peak = list(NOT_KNOWN)
        peak_phase, peak_unit = "", -1
        if (ledger := probes.ledger) is not None:
            if not ledger.stepped:  # no optimizer of ours did
                ledger.optimizer_returned()
            memory = ledger.end or memory
            if ledger.looking:
                self._peak, self._looked_step = ledger.peak(), self.steps
                seen = "param_unsharded" not in self._wrapped.blind
                self._peak_units = ledger.top.gathered if seen and ledger.top is not None else None
            peak, peak_phase, peak_unit = self._peak
        calls = None
        if probes.collectives is not None:
            calls = probes.collectives.take()
        if tokens is None and probes.tokens_known:
            tokens = probes.tokens
        samples = probes.samples or None
        forwards, backwards = probes.forwards, probes.backwards
        probes.tokens, probes.tokens_known, probes.samples = 0, False, 0
        probes.forwards = probes.backwards = 0
        self._send_structure()
        overhead, probes.overhead_ns = probes.overhead_ns, 0
        step = Step(
            rank=self._rank,
            seq=0,
            step=self.steps,
            ended_ns=time.time_ns(),
            step_ns=0,
            phases_ns=[],
            loss=None,
            tokens=tokens,
            memory=memory,
            peak=peak,
            peak_phase=peak_phase,
            peak_unit=peak_unit,
            dropped=0,
            overhead_ns=overhead + time.perf_counter_ns() - began,
            looked_step=self._looked_step,
            peak_units=self._peak_units,
            samples=samples,
            forwards=forwards,
            backwards=backwards,
        )
        self._pending.append(_Pending(step, times, calls, loss, metrics))
        self._send_ready(all_of_them=False)
        if ledger is not None:
            ledger.captured = False
            ended = time.perf_counter_ns()
            if not self._was_captured:  # its cost is no look's
                self._looks.took(self.steps, ended - self._began, overhead + ended - began)
            self._began = ended
            ledger.start_step(look=self._looks.at(self.steps + 1))

    def _buckets_reduced(self) -> None:
        """A backward of DDP is over: it has reduced every bucket in it, unless it was told not to."""
        ddp, collectives = self._wrapped.ddp, self.probes.collectives
        if collectives is None or not torch_ddp.reduces(ddp):
            return
        if self.steps < BUCKETS_SETTLE:
            self._buckets = torch_ddp.bucket_bytes(ddp)
        timed = self._checks["collectives"] == torch_ddp.TOGETHER
        collectives.buckets_reduced(self._buckets, torch_ddp.reduction_times(ddp) if timed else None)

    def _send_ready(self, *, all_of_them: bool) -> None:
        while self._pending:
            waiting = self._pending[0]
            parts = (waiting.times, waiting.calls, waiting.loss, *waiting.metrics.values())
            if not all_of_them and not all(part.ready() for part in parts if part is not None):
                return
            self._pending.popleft()
            step_ns, phases_ns = waiting.times.read()
            step = msgspec.structs.replace(
                waiting.step,
                seq=self._next_seq(),
                step_ns=step_ns,
                phases_ns=phases_ns,
                loss=waiting.loss.read(),
                metrics={name: value for name, held in waiting.metrics.items() if (value := held.read()) is not None},
                dropped=self._sender.dropped,
            )
            self._sender.put(step)
            if waiting.calls is not None:
                comm = partial(_comm, self._rank, self._next_seq(), step.step, waiting.calls)
                # CUDA's events go back to a pool that is the training thread's own.
                self._sender.put(comm if self._device.type == "cpu" else comm())

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _send_structure(self) -> None:
        """Sends the structure if it is not what was sent last."""
        probes = self.probes
        groups = probes.collectives.groups if probes.collectives is not None else []
        checks = self._checks if self._found is None else self._checks | self._found.checks
        said = {name: probes.said(name, checked) for name, checked in checks.items()}
        said |= {name: why for name, why in probes.health.items() if name not in said}
        key = (
            (ledger.walks, ledger.searches, ledger.kept_gradients) if (ledger := probes.ledger) else None,
            len(groups),
            self.steps < 2,
            tuple(self._buckets),
            tuple(said.items()),
            None if self._found is None else tuple(self._found.detail.items()),
        )
        if key == self._structure_key:
            return
        self._structure_key = key
        built = structure.build(
            self._rank, self._model, self._wrapped, probes.ledger, groups, said, self._facts, self._device.type
        )
        if self._found is not None:
            built.detail.update(self._found.detail)
        if len(self._roots) > 1:
            built.detail["roots"] = len(self._roots)
        if built != self._structure:
            self._structure = built
            self._sender.put(built)

    def _on_pause(self, paused: bool) -> None:
        self._sender.paused = paused
        if not paused:
            self.restart_step()

    def restart_step(self) -> None:
        """Begins the step now: what happened since the last one ended was no training."""
        self.probes.phases.restart_step()
        self._began = time.perf_counter_ns()
        if (ledger := self.probes.ledger) is not None:
            ledger.start_step(look=self._looks.at(self.steps + 1))

    def _gauges(self) -> Gauge:
        read = self._readings.read()
        return Gauge(self._rank, time.time_ns(), read.values, read.missing, read.throttle, read.others)

    def _where(self) -> Where:
        """Where the training is, asked from the sender's thread: it only reads."""
        probes = self.probes
        phase, collectives = probes.phases.current, probes.collectives
        call = None if collectives is None else collectives.newest
        if collectives is None or call is None:
            return Where(phase, 0)
        return Where(phase, collectives.issued, call.kind, call.unit, collectives.under_way)

    def input_begins(self) -> None:
        """The training waits for its next batch."""
        phases = self.probes.phases
        phases.watch(INPUT)
        self._checks["input"] = OK
        phases.enter(INPUT)

    def input_ends(self) -> None:
        self.probes.phases.leave(INPUT)

    def batches(self, iterable: Iterable[T]) -> Iterator[T]:
        self._checks["input"] = OK
        items = iter(iterable)
        while True:
            watching = self.probes.on
            if watching:
                self.input_begins()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                if watching:
                    self.input_ends()
            yield item


def _called(
    root: nn.Module, begins: Callable[..., None], ends: Callable[..., None]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(compiled: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begins(root, args, kwargs)
            result = compiled(*args, **kwargs)
            ends()
            return result

        return call

    return wrap


def _watched_backward(probes: Probes, original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
        if not probes.on or not isinstance(loss, Tensor):
            return original(loss, *args, **kwargs)
        probes.backward_begins(loss)
        try:
            return original(loss, *args, **kwargs)
        finally:
            probes.backward_ends()

    return backward


def _comm(rank: int, seq: int, step: int, calls: StepCalls) -> Comm:
    span, exposed = calls.reductions_ns
    return Comm(rank, seq, step, **calls.columns(), reductions_ns=span, reductions_exposed_ns=exposed)


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def watch(model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]) -> Run:
    """Watches a training loop: a context manager whose `step` is called once after each optimizer step.

    The run is the one that launched this process (`FSDP_TUI_RUN`, the path of its run.json). Without one, with
    `FSDP_TUI_TELEMETRY=off`, or when the hub cannot be reached, nothing is watched and nothing is wrapped.
    """
    steps = os.environ.get("FSDP_TUI_STEPS", "")
    max_steps = int(steps) if steps.isdigit() and int(steps) > 0 else None
    attach.stand_back()
    run_file = foreign.run_file()
    if run_file is None:
        return Run(max_steps)
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    from fsdp_tui.runner import sender

    def connect(hello: Hello) -> Sender:
        return sender.Sender.connect(run_file, hello)

    return WatchedRun(model, optimizers, connect, max_steps)


def log(loss: Tensor | float | None = None, **metrics: Tensor | float) -> None:
    """Says what the step that goes on has for a loss (on this rank), and any other figures to keep with it.

    Works in scripts that are watched from outside too, where the loss is otherwise the sum of what backward was called on.
    Where nothing is watched it does nothing.
    """
    values: dict[str, Tensor | float] = dict(metrics)
    if loss is not None:
        values["loss"] = loss
    if _current is not None and _current.probes.on:
        _current.log(values)


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Every probe is a pass-through inside: for measuring what watching costs, or for a part that is no training."""
    run = _current
    if run is None or not run.probes.on:
        yield
        return
    run.probes.on = False
    if run.probes.capture is not None:
        run.probes.capture.fail(RuntimeError("a part of the step was unwatched"))
    try:
        yield
    finally:
        run.probes.on = True
        run.restart_step()
