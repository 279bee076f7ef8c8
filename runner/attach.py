"""Finds the training of a script that knows nothing of us, and watches it as `watch` would.

Hooks sit on classes and functions where they are defined, placed right after their module is imported. The first forward
of a module that an optimizer trains begins the watching: by then the script has wrapped what it wraps. A step ends when
the training goes on (next batch, forward or backward) after its optimizers have stepped; there all ranks act together.

No torch in this module: a script may still have to set its environment before it imports it.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fsdp_tui.runner.imports import AfterImport
from fsdp_tui.runner.interpose import complain, not_available
from fsdp_tui.runner.override import Refused, ScriptSharding

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from fsdp_tui.runner.session import Loss, WatchedRun
    from fsdp_tui.telemetry.messages import Hello

CHECKPOINTING = {
    "torch.serialization": ("save", "load"),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "torch.distributed.checkpoint.state_dict_loader": ("load",),
    "torch.distributed.checkpoint.state_dict": (
        "get_state_dict",
        "get_model_state_dict",
        "get_optimizer_state_dict",
        "set_state_dict",
        "set_model_state_dict",
        "set_optimizer_state_dict",
    ),
}
"""Functions whose time is a checkpoint's."""
SHARDS_ITSELF = {
    "deepspeed.runtime.engine": ("DeepSpeedEngine", "DeepSpeed shards by means of its own"),
    "megatron.core.distributed.distributed_data_parallel": (
        "DistributedDataParallel",
        "Megatron shards by means of its own",
    ),
}
"""Module -> a class of it, and what it means when one is made."""


class Optimizers(Sequence["Optimizer"]):
    """Those of them that the script still has: being watched must not keep a model's memory."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._refs = [weakref.ref(optimizer) for optimizer in optimizers]

    def _alive(self) -> list[Optimizer]:
        return [optimizer for ref in self._refs if (optimizer := ref()) is not None]

    def __len__(self) -> int:
        return len(self._alive())

    def __getitem__(self, at: Any) -> Any:
        return self._alive()[at]

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self._alive())


class Attachment:
    """What is known of the script's training so far."""

    def __init__(self, run_file: Callable[[], Path | None], max_steps: int | None, sharding: ScriptSharding) -> None:
        self._run_file = run_file
        self._max_steps = max_steps
        self._sharding = sharding
        self._run: WatchedRun | None = None
        self._over = False
        """Nothing is watched any more, and nothing will be."""
        self.left = False
        """Whether the script was asked to leave, at a step boundary."""
        self._thread = threading.get_ident()
        self._imports = AfterImport(self._hooks())
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._module: Any = None
        """`nn.Module`, once it is there."""
        self._own_call: Any = None
        """Its own `__call__`, while calls of modules are looked at. A global forward hook would do the same, but torch.compile
        warns of one."""
        self._roots: list[weakref.ref[nn.Module]] = []
        self._known: set[int] = set()
        """Modules inside the roots, by id."""
        self._stand_in: nn.Module | None = None
        self._armed_steps = 0
        self._calls_seen = 0
        """Of the script's wrapping calls, when the model was last looked at: a late one changes it."""
        self.together = True
        self.checks: dict[str, str] = {}
        self.detail: dict[str, str | int | float | bool | None] = {}
        # The step that goes on
        self._loss: Loss | None = None
        self._next_loss: Loss | None = None
        """Of backwards that may belong to the next step."""
        self._backwards = 0
        self._unscaled: tuple[weakref.ref[Tensor], Tensor] | None = None
        self._checkpointing = 0
        """Loading an optimizer's states runs a step of it that changes nothing."""
        self._stepping: list[tuple[int, bool]] = []
        """Optimizers in whose step one is, the outermost first: id, and whether a closure trains inside it."""
        self._closure_losses = 0
        self._stepped: set[int] = set()
        """Optimizers that have stepped in it, by id."""
        self._seen_stepping: set[int] = set()
        """Optimizers that have stepped at all, by id."""
        self._awaited: set[int] | None = None
        """Optimizers that a step waits for; None: for all there are."""
        self._gone_on = False
        """Whether training went on while some of them had not: what comes may belong to the next step."""
        self._split = False
        """Whether it does."""
        self._finished = False
        """Whether the step was told, and the ranks have not acted on it yet."""
        os.register_at_fork(after_in_child=self._forked)

    def install(self) -> None:
        self._imports.install()

    # Hooks, each placed when its module has been imported

    def _hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        hooks: dict[str, Callable[[ModuleType], None]] = {
            "torch.autograd": lambda module: _around(module, "backward", self._around_backward),
            "torch.nn.modules.module": self._module_imported,
            "torch.optim.optimizer": self._optimizer_imported,
            "torch.utils.data.dataloader": lambda module: _around(
                module._BaseDataLoaderIter, "__next__", self._around_next
            ),
            "torch.amp.grad_scaler": lambda module: self._scaler_imported(module.GradScaler),
            "torch.distributed.fsdp.sharded_grad_scaler": lambda module: self._scaler_imported(
                module.ShardedGradScaler
            ),
            "torch.distributed.distributed_c10d": lambda module: _around(
                module, "destroy_process_group", self._around_destroy
            ),
            **self._sharding.hooks,
        }
        for name, functions in CHECKPOINTING.items():
            hooks[name] = functools.partial(self._checkpointing_imported, functions)
        for name, (made, what) in SHARDS_ITSELF.items():
            hooks[name] = functools.partial(self._sharder_imported, made, what)
        return hooks

    def _module_imported(self, module: ModuleType) -> None:
        self._module = module.Module

    def _optimizer_imported(self, module: ModuleType) -> None:
        _around(module.Optimizer, "__init__", self._around_optimizer)
        _around(module.Optimizer, "zero_grad", self._around_zero_grad)
        module.register_optimizer_step_pre_hook(self._optimizer_begins)
        module.register_optimizer_step_post_hook(lambda optimizer, *_: self._optimizer_ends(optimizer))

    def _scaler_imported(self, scaler: type) -> None:
        for name, around in (("scale", self._around_scale), ("step", self._around_scaler_step)):
            if name in vars(scaler):
                _around(scaler, name, around)

    def _checkpointing_imported(self, functions: Sequence[str], module: ModuleType) -> None:
        for name in functions:
            if hasattr(module, name):
                _around(module, name, self._around_checkpoint)

    def _sharder_imported(self, made: str, what: str, module: ModuleType) -> None:
        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def init(engine: Any, *args: Any, **kwargs: Any) -> Any:
                self.checks["sharding"] = not_available(f"{what}: its units and buffers are not told apart")
                return original(engine, *args, **kwargs)

            return init

        if hasattr(module, made):
            _around(getattr(module, made), "__init__", around)

    # The wrappers

    def _around_optimizer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            if not self._over:
                self._guarded(lambda: self._optimizer_made(optimizer))
            return result

        return init

    def _around_zero_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self._run is not None and not _compiling():
                self._gradients_used(optimizer)
            return original(optimizer, *args, **kwargs)

        return zero_grad

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._run is None or _compiling():
                return original(tensors, *args, **kwargs)
            if not self._run.probes.in_backward:
                self.goes_on()
                self._guarded(lambda: self._loss_of(tensors))
            run = self._run
            first: Any = tensors if not isinstance(tensors, (list, tuple)) else next(iter(tensors), None)
            if run is None or not run.probes.on or not hasattr(first, "grad_fn"):
                return original(tensors, *args, **kwargs)
            run.probes.backward_begins(first)
            try:
                return original(tensors, *args, **kwargs)
            finally:
                run.probes.backward_ends()

        return backward

    def _around_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(batches: Any) -> Any:
            if self._run is None or _compiling() or threading.get_ident() != self._thread:
                return original(batches)
            self.goes_on()
            if (run := self._run) is None or not run.probes.on:
                return original(batches)
            run.input_begins()
            try:
                return original(batches)
            finally:
                run.input_ends()

        return __next__

    def _around_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if hasattr(scaled, "detach") and hasattr(outputs, "detach"):
                self._unscaled = weakref.ref(scaled), outputs.detach()
            return scaled

        return scale

    def _around_scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, optimizer, *args, **kwargs)
            if self._run is not None:
                self._stepped.add(id(optimizer))  # it did not if gradients were infinite: an iteration all the same
            return result

        return step

    def _around_checkpoint(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def checkpoint(*args: Any, **kwargs: Any) -> Any:
            if self._over or threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            run = self._run if self._run is not None and self._run.probes.on else None
            self._checkpointing += 1
            if run is not None:
                run.probes.checkpoint_begins()
            try:
                return original(*args, **kwargs)
            finally:
                self._checkpointing -= 1
                if run is not None:
                    run.probes.checkpoint_ends()

        return checkpoint

    def _around_destroy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            if not args and not kwargs:
                self._guarded(self._training_over)
            return original(*args, **kwargs)

        return destroy_process_group

    # Looking for the model

    def _optimizer_made(self, optimizer: Optimizer) -> None:
        self._optimizers.append(weakref.ref(optimizer, self._optimizer_gone))
        self._arm()

    def _arm(self) -> None:
        """Looks at every module that is called, until all that optimizers train is known."""
        self._armed_steps = 0
        if self._own_call is not None or self._module is None:
            return
        own = self._own_call = self._module.__call__

        @functools.wraps(own)
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self._forward_seen(module, args, kwargs)
            return own(module, *args, **kwargs)

        self._module.__call__ = __call__

    def _disarm(self) -> None:
        own, self._own_call = self._own_call, None
        if own is not None and getattr(self._module.__call__, "__wrapped__", None) is own:
            self._module.__call__ = own

    def _forward_seen(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._over or self._own_call is None or _compiling() or id(module) in self._known:
            return
        import torch

        if torch.is_grad_enabled():
            self._guarded(lambda: self._consider(module, args, kwargs))

    def _training_optimizers(self) -> list[Optimizer]:
        found = (ref() for ref in self._optimizers)
        return [one for one in found if one is not None and any(group["params"] for group in one.param_groups)]

    def _consider(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        optimizers = self._training_optimizers()
        if not optimizers:
            return
        here = {id(param) for param in module.parameters()}
        trained = {
            id(param) for optimizer in optimizers for group in optimizer.param_groups for param in group["params"]
        }
        from fsdp_tui.runner import structure

        if not here & trained and not structure.is_wrapped(module):
            return
        self._sharding.before_forward([module])
        inside = {id(inner) for inner in module.modules()}
        roots = [*(root for root in self._live_roots() if id(root) not in inside), module]
        self._roots = [weakref.ref(root) for root in roots]
        self._known = {id(inner) for root in roots for inner in root.modules()}
        known = {id(param) for root in roots for param in root.parameters()}
        if not here & trained:
            self.checks["optimizer"] = not_available(
                "no optimizer has a parameter of the wrapped model: one that was made before wrapping trains nothing"
            )
        if trained <= known:
            self._disarm()
        self._watch(roots, optimizers)
        self._describe((*args, *kwargs.values()))

    def _live_roots(self) -> list[nn.Module]:
        """But for one that only stood in for modules that nobody had called."""
        found = (ref() for ref in self._roots)
        return [root for root in found if root is not None and root is not self._stand_in]

    def _watch(self, roots: list[nn.Module], optimizers: list[Optimizer]) -> None:
        from fsdp_tui.runner import session, structure

        run_file = self._run_file()
        if run_file is None:  # what was asked for is applied, and that is all
            self._over = self._own_call is None
            return
        model = structure.together(roots)
        self._calls_seen = self._sharding.calls
        self.together = structure.spans_all_ranks(model)
        if self._run is None:
            from fsdp_tui.runner import sender

            def connect(hello: Hello) -> session.Sender:
                return sender.Sender.connect(run_file, hello)

            self._thread = threading.get_ident()
            run = session.WatchedRun(model, Optimizers(optimizers), connect, self._max_steps, roots=roots, found=self)
            run.__enter__()
            self._run = run
        else:
            run = self._run
            run.rewatch(model, Optimizers(optimizers), roots)

    def _describe(self, inputs: Sequence[Any]) -> None:
        shapes = [
            f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            for value in inputs
            if hasattr(value, "dtype")
        ]
        self.detail["attached"] = True
        if shapes:
            self.detail["inputs"] = ", ".join(shapes)[:200]
        if self._sharding.own is not None:
            self.detail["script"] = self._sharding.own
        if "strategy" in self._sharding.asked:
            self.detail["requested"] = self._sharding.wanted.strategy
        if self._sharding.asked:
            self.detail["asked"] = self._sharding.asked_text

    def _optimizer_gone(self, ref: weakref.ref[Optimizer]) -> None:
        """The script has dropped an optimizer, and with it, for all that is known, the model it trained."""
        if ref in self._optimizers:
            self._optimizers.remove(ref)
        run = self._run
        if run is None or self._over or len(run.trained_by):
            return
        if self._stepped and not self._finished:
            self._finish()
        run.let_go()
        self._roots, self._known = [], set()

    # A step

    def goes_on(self) -> None:
        """The training goes on: with a batch, a forward or a backward. After its optimizers have stepped, the step is over."""
        if self._run is None or threading.get_ident() != self._thread:
            return
        if self._stepping and not self._stepping[-1][1]:
            self._steps_raised(0)  # without a closure no training goes on inside a step
        if not self._stepped and not self._finished:
            return
        if not self._finished and not self._awaits() <= self._stepped:
            self._gone_on = True
            return
        self._end_step()

    def _awaits(self) -> set[int]:
        if self._awaited is not None:
            return self._awaited
        run = self._run
        return set() if run is None else {id(optimizer) for optimizer in run.trained_by}

    def _steps_raised(self, at: int) -> None:
        """The steps from this one inwards have left with an exception that the script has caught: nothing tells of their end."""
        del self._stepping[at:]
        if (run := self._run) is not None and run.probes.on:
            run.probes.optimizer_raised()

    def _optimizer_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._over or self._checkpointing or _compiling():
            return
        inside = [stepping for stepping, _ in self._stepping]
        if id(optimizer) in inside:  # none steps inside its own step
            self._steps_raised(inside.index(id(optimizer)))
        run = self._run
        if run is not None and id(optimizer) in self._stepped and not self._stepping:
            if not self._awaits() <= self._stepped:  # it steps alone: the others have their own turns
                self._awaited = self._awaits() & self._stepped
                self._split = True
            self._end_step()
            run = self._run
        self._stepping.append((id(optimizer), any(map(callable, (*args[1:], *kwargs.values())))))
        self._closure_losses = 0
        if run is not None and run.probes.on:
            if run.probes.in_backward:
                self.checks["optimizer"] = not_available(
                    "it steps inside backward: its time and gradients are counted as backward's"
                )
            run.probes.optimizer_begins()

    def _optimizer_ends(self, optimizer: Optimizer) -> None:
        if self._over or self._checkpointing or _compiling():
            return
        inside = [stepping for stepping, _ in self._stepping]
        del self._stepping[inside.index(id(optimizer)) if id(optimizer) in inside else len(inside) :]
        if self._run is None:
            self._guarded(lambda: self._consider_optimizer(optimizer))
        if (run := self._run) is not None:
            if run.probes.on:
                run.probes.optimizer_ends()
            self._stepped.add(id(optimizer))
            self._seen_stepping.add(id(optimizer))
            self._leave_early(run)

    def _leave_early(self, run: WatchedRun) -> None:
        """A handler of SIGTERM that sets a flag is looked at before the next forward, so it must run before that."""
        if (
            not self._stepping
            and self._awaits() <= self._stepped
            and callable(signal.getsignal(signal.SIGTERM))
            and run.ends_here()
        ):
            self._leave()

    def _gradients_used(self, optimizer: Optimizer) -> None:
        """Gradients are dropped. If no step of this optimizer was ever seen, and something was compiled, its step was."""
        from fsdp_tui.runner import torch_compile

        if self._backwards and id(optimizer) not in self._seen_stepping and torch_compile.graphs():
            self.checks["optimizer"] = not_available("its step is compiled: its time is in the rest")
            if self._run is not None and self._run.probes.on:
                self._run.probes.optimizer_ends()  # the memory of now, with the gradients
            self._stepped.add(id(optimizer))

    def _consider_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped, and no module that it trains was ever called: its parameters are all that is known."""
        from fsdp_tui.runner import structure

        optimizers = self._training_optimizers()
        if not any(one is optimizer for one in optimizers) or any(ref() is not None for ref in self._roots):
            return
        params = [param for one in optimizers for group in one.param_groups for param in group["params"]]
        model = structure.parameters_only(params)
        self._sharding.before_forward([model])
        self._stand_in = model
        self._roots = [weakref.ref(model)]
        self._watch([model], optimizers)

    def _loss_of(self, tensors: Any) -> None:
        """Adds what backward is called on to the step's loss: gradients add up in the same way."""
        from fsdp_tui.runner.session import Loss

        run = self._run
        if run is None:
            return
        if self._stepping:
            self._closure_losses += 1
            if self._closure_losses > 1:  # a line search looks at the same batch again
                return
        self._backwards += 1
        if self._gone_on:
            self._next_loss = held = self._next_loss or Loss(run.clock)
        else:
            self._loss = held = self._loss or Loss(run.clock)
        for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
            if not hasattr(tensor, "numel") or tensor.numel() != 1:
                continue
            if self._unscaled is not None and self._unscaled[0]() is tensor:
                tensor, self._unscaled = self._unscaled[1], None
            held.add(tensor)

    def _end_step(self) -> None:
        run = self._run
        if run is None:
            return
        if not self._finished:
            self._finish()
        self._finished = False
        if self._sharding.calls != self._calls_seen and (roots := self._live_roots()):
            self._guarded(lambda: self._watch(roots, list(run.trained_by)))
        if self._own_call is not None:
            self._armed_steps += 1
            if self._armed_steps > 2:  # what is trained and never called is not searched for longer
                self._disarm()
        if not run.boundary():
            self._leave()

    def _finish(self, *, at_last_phase: bool = False) -> None:
        from fsdp_tui.runner.session import Loss

        run = self._run
        assert run is not None
        if self._backwards > 1:
            self.detail["loss"] = f"sum of {self._backwards} backwards"
        loss, self._loss, self._next_loss = self._loss, self._next_loss, None
        if loss is not None and self._loss is not None and not self._split:
            loss.extend(self._loss)
            self._loss = None
        self._backwards, self._gone_on, self._split = 0, False, False
        self._stepped.clear()
        self._finished = True
        run.finish(loss or Loss(run.clock), at_last_phase=at_last_phase)

    # The end

    def _leave(self) -> None:
        """All ranks stop here: as if SIGTERM had come, for a script that handles it; else the interpreter ends."""
        self.left = True
        self.close()
        if callable(signal.getsignal(signal.SIGTERM)):
            os.kill(os.getpid(), signal.SIGTERM)
            return
        raise SystemExit(0)

    def _training_over(self) -> None:
        """The last step is told; what comes now is no training."""
        self.close()

    def close(self, error: BaseException | None = None, exit_code: int | None = None) -> None:
        """Ends the watching, with the script or before it."""
        self._disarm()
        run, self._run = self._run, None
        over, self._over = self._over, True
        if over or run is None:
            return
        self._run = run
        if self._stepped and error is None:
            self._finish(at_last_phase=True)
        self._run = None
        run.exit_code = exit_code
        run.__exit__(None if error is None else type(error), error, None)

    def stand_back(self) -> None:
        """The script watches its training itself."""
        self.close()
        self._imports.remove()

    def _forked(self) -> None:
        """In a child, such as a data loader's worker: the training is the parent's."""
        self._run, self._over = None, True

    def _guarded(self, work: Callable[[], None]) -> None:
        """What goes wrong here must not end the training; what was refused must."""
        try:
            work()
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001
            complain(f"this training is not watched: {type(error).__name__}: {error}")
            self._over = True
            self._disarm()
            if (run := self._run) is not None:
                self._run = None
                run.__exit__(None, None, None)


def _around(owner: Any, name: str, wrapper_of: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(wrapper_of(original)))


def _compiling() -> bool:
    torch: Any = sys.modules.get("torch")
    return bool(torch is not None and torch.compiler.is_compiling())


_attachment: Attachment | None = None


def begin(run_file: Callable[[], Path | None]) -> Attachment | None:
    """Waits for a training in the script that this process is about to become; `run_file` gives its run, or None.

    None when there is nothing to do: telemetry is off, and nothing was asked of the script's sharding.

    Raises:
        Refused: what was asked for does not exist.
    """
    global _attachment
    sharding = ScriptSharding.from_environment()
    off = os.environ.get("FSDP_TUI_TELEMETRY") == "off"
    if off and not sharding.asked:
        return None
    steps = os.environ.get("FSDP_TUI_STEPS", "")
    max_steps = int(steps) if steps.isdigit() and int(steps) > 0 else None
    _attachment = Attachment((lambda: None) if off else run_file, max_steps, sharding)
    _attachment.install()
    return _attachment


def stand_back() -> None:
    """The script says itself what is to be watched."""
    if _attachment is not None:
        _attachment.stand_back()
