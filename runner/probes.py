"""What stands between torch's events and the probes: one observer that never raises into the training.

A probe that fails is switched off with its reason; the others, and the training, go on.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fsdp_tui.runner import collectives as comm
from fsdp_tui.runner.capture import Tracker
from fsdp_tui.runner.collectives import Collectives
from fsdp_tui.runner.interpose import OK, not_available
from fsdp_tui.runner.ledger import Ledger
from fsdp_tui.runner.phases import BACKWARD, CHECKPOINT, FORWARD, OPTIMIZER, Phases

NODES_NEAR_LOSS = 6
"""Autograd nodes after the loss at which memory is looked at: no unit's event happens there, and the first gradients of
a language model (of its logits) are often the highest moment of the step."""
COMM_PHASE = {FORWARD: comm.FORWARD, BACKWARD: comm.BACKWARD}
"""Phases whose collectives are told apart from others."""


class Probes:
    """Follows one process's training. `on` is False while nobody watches: the wrappers then only pass through."""

    def __init__(self, phases: Phases, collectives: Collectives | None, ledger: Ledger | None) -> None:
        self.on = True
        self.phases = phases
        self.collectives = collectives
        self.ledger = ledger
        self.capture: Tracker | None = None
        """Of the step that goes on, if it is captured."""
        self.health: dict[str, str] = {}
        self.overhead_ns = 0
        self.tokens = 0
        self.tokens_known = False
        self.samples = 0
        self.forwards = self.backwards = 0
        """Of the step that goes on."""
        self.after_forward: Callable[[], None] | None = None
        """Called once, after the first."""
        self.after_backward: Callable[[], None] | None = None
        """Called after each."""
        self._backward_depth = 0

    @property
    def _looking(self) -> Ledger | None:
        """The ledger, in a step that it looks at."""
        return self.ledger if self.ledger is not None and self.ledger.looking else None

    @property
    def in_backward(self) -> bool:
        return self._backward_depth > 0

    # The guard

    def _guarded(self, probe: str, work: Callable[[], None]) -> None:
        began = time.perf_counter_ns()
        try:
            work()
        except Exception as error:  # noqa: BLE001  # whatever a probe does wrong, it must not end the training
            self._fail(probe, error)
        self.overhead_ns += time.perf_counter_ns() - began

    def _fail(self, probe: str, error: Exception) -> None:
        if probe == "capture":  # this step's only
            if self.capture is not None:
                self.capture.fail(error)
            return
        self.health[probe] = not_available(f"{type(error).__name__}: {error}")
        if probe == "memory":
            self.ledger = None
        elif probe == "collectives":
            self.collectives = None

    def _captured_change(self, owner: object) -> None:
        if (capture := self.capture) is not None:
            self._guarded("capture", lambda: capture.changed(owner))

    def _captured_boundary(self, *, claim: bool = False) -> None:
        if (capture := self.capture) is not None:
            self._guarded("capture", lambda: capture.boundary(claim=claim))

    # Events of FSDP

    def begin(self, owner: object) -> None:
        if (capture := self.capture) is not None:
            self._guarded("capture", lambda: capture.begin(owner))
        if self.collectives is not None:
            self.collectives.begin(owner)

    def end(self) -> None:
        if (capture := self.capture) is not None:
            self._guarded("capture", capture.end)
        if self.collectives is not None:
            self.collectives.end()

    def changed(self, owner: object) -> None:
        self._captured_change(owner)
        if (ledger := self._looking) is not None:
            self._guarded("memory", lambda: ledger.changed(owner))

    def waiting(self, owner: object) -> None:
        if (collectives := self.collectives) is not None:
            self._guarded("collectives", lambda: collectives.waiting(owner))

    def waited(self, owner: object) -> None:
        if (collectives := self.collectives) is not None:
            self._guarded("collectives", lambda: collectives.waited(owner))

    def reductions_needed(self, scatters_but: int | None = None) -> None:
        if (collectives := self.collectives) is not None:
            self._guarded("collectives", lambda: collectives.reductions_needed(scatters_but))

    def unsharded(self, owner: object, buffer_bytes: int) -> None:
        self._captured_change(owner)
        if (ledger := self._looking) is not None:
            self._guarded("memory", lambda: ledger.changed(owner, buffer_bytes))

    def reducing(self, owner: object) -> None:
        self._captured_change(owner)
        if (ledger := self._looking) is not None:
            self._guarded("memory", lambda: ledger.reducing(owner))

    def reduced(self, owner: object) -> None:
        self._captured_change(owner)
        if (ledger := self._looking) is not None:
            self._guarded("memory", lambda: ledger.reduced(owner))

    def collective(self, kind: int, nbytes: int, group: Any, asynchronous: bool, call: Callable[[], Any]) -> Any:
        if (capture := self.capture) is not None:
            call = functools.partial(capture.collective, kind, nbytes, asynchronous, call)
        if (collectives := self.collectives) is None:
            return call()
        issued = None
        try:
            issued = collectives.issue(kind, nbytes, group, asynchronous)
        except Exception as error:  # noqa: BLE001  # as in `_guarded`
            self._fail("collectives", error)
        if issued is None:
            return call()
        try:
            result = call()
        finally:
            collectives.left()
        try:
            collectives.returned(issued, result)
        except Exception as error:  # noqa: BLE001
            self._fail("collectives", error)
        return result

    def result_needed(self, storage: int) -> None:
        if (collectives := self.collectives) is not None:
            self._guarded("collectives", lambda: collectives.result_needed(storage))

    def result_there(self, storage: int) -> None:
        if (collectives := self.collectives) is not None:
            self._guarded("collectives", lambda: collectives.result_there(storage))

    # Phases

    def _enter(self, phase: str) -> None:
        self.phases.enter(phase)
        if self.collectives is not None:
            self.collectives.phase = COMM_PHASE.get(phase, comm.OTHER)
        if self.ledger is not None:
            self.ledger.phase = phase

    def _leave(self, phase: str) -> None:
        self.phases.leave(phase)
        around = self.phases.current
        if self.collectives is not None:
            self.collectives.phase = COMM_PHASE.get(around, comm.OTHER)
        if self.ledger is not None:
            self.ledger.phase = around

    def forward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def work() -> None:
            self.forwards += 1
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            if tensors and tensors[0].dim():
                self.samples += tensors[0].shape[0]
            for value in tensors:
                if not value.is_floating_point() and not value.is_complex():
                    self.tokens += value.numel()
                    self.tokens_known = True
                    break
            self._enter(FORWARD)

        self._guarded("phases", work)
        self._captured_boundary()
        if (ledger := self._looking) is not None:
            self._guarded("memory", ledger.forward_begins)

    def forward_ends(self) -> None:
        self._captured_boundary()
        self._refresh()
        self._guarded("phases", lambda: self._leave(FORWARD))
        if (first := self.after_forward) is not None:
            self.after_forward = None
            self._guarded("structure", first)

    def backward_begins(self, loss: Tensor) -> None:
        self._backward_depth += 1
        if self._backward_depth > 1:  # reentrant checkpointing: of what it has just recomputed
            self._touch()
            return
        self.backwards += 1
        self._guarded("phases", lambda: self._enter(BACKWARD))
        if (capture := self.capture) is not None:
            self._guarded("capture", capture.backward_begins)
        if (ledger := self._looking) is not None:

            def work() -> None:
                ledger.backward_begins()
                self._look_near_loss(loss)

            self._guarded("memory", work)

    def backward_ends(self) -> None:
        self._backward_depth -= 1
        if self._backward_depth > 0:
            return
        self._captured_boundary(claim=True)
        self._refresh()
        self._guarded("phases", lambda: self._leave(BACKWARD))
        if (after := self.after_backward) is not None:
            self._guarded("collectives", after)

    def recomputed(self, tensor: Any) -> None:
        if (ledger := self._looking) is not None:
            self._guarded("memory", lambda: ledger.recomputed(tensor))

    def _touch(self) -> None:
        if (ledger := self._looking) is not None:
            self._guarded("memory", ledger.touch)

    def _look_near_loss(self, loss: Tensor) -> None:
        def look(*_: Any) -> None:
            if self.on:
                self._touch()

        node = loss.grad_fn
        for _ in range(NODES_NEAR_LOSS):
            if node is None:
                return
            node.register_hook(look)
            node = next((following for following, _ in node.next_functions if following is not None), None)

    def optimizer_begins(self) -> None:
        self._captured_boundary()
        self._refresh()
        self._guarded("phases", lambda: self._enter(OPTIMIZER))

    def optimizer_ends(self) -> None:
        self._captured_boundary(claim=True)
        self._guarded("phases", lambda: self._leave(OPTIMIZER))
        if (ledger := self.ledger) is not None:
            self._guarded("memory", ledger.optimizer_returned)

    def optimizer_raised(self) -> None:
        """Its step has left with an exception."""
        self._guarded("phases", lambda: self._leave(OPTIMIZER))

    def checkpoint_begins(self) -> None:
        """Parameters or optimizer states are saved or loaded: what is communicated and allocated meanwhile is no training's."""
        self._guarded("phases", lambda: self.phases.watch(CHECKPOINT))
        self._guarded("phases", lambda: self._enter(CHECKPOINT))

    def checkpoint_ends(self) -> None:
        self._guarded("phases", lambda: self._leave(CHECKPOINT))

    def _refresh(self) -> None:
        if (ledger := self._looking) is not None:
            self._guarded("memory", ledger.refresh)

    def said(self, probe: str, checked: str = OK) -> str:
        """What this probe has to say about itself: its failure, else what the check at the start said."""
        return self.health.get(probe, checked)
