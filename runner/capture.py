"""Deep capture: every allocation and free of one step, by category, module and phase.

A dispatch mode sees each operator with its results. A storage is counted when it is first seen, and a weak reference tells
when it is freed; what FSDP resizes is seen by its resize. Categories come from the holders of the ledger at the events at
which they change; what no holder claims is a collective's buffer inside FSDP's own work, an activation before backward,
and temporary otherwise. The mode calls every operator as it would have been called, so numbers do not change.

[Note: activation or temporary] Forward does not say what autograd will keep. A tensor that is made in a forward (or in
checkpointing's second one, inside backward) and freed before that forward ends was temporary; the rest was saved. So the
category of the first kind is corrected when it is freed, for its whole life.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from fsdp_tui.runner import torch_autograd
from fsdp_tui.runner.interpose import OK, Interposer
from fsdp_tui.runner.ledger import Ledger
from fsdp_tui.runner.phases import BACKWARD, OPTIMIZER, REST, Phases
from fsdp_tui.runner.storages import local_tensor
from fsdp_tui.telemetry.messages import CATEGORIES, PHASES, TOTAL_CATEGORIES, Capture, Command, Part

ROWS_MAX = 8_000
"""Rows of one capture's columns at most; a step with more is coalesced."""
PARTS_MAX = 96
PLAIN = (Tensor, nn.Parameter)
ACTIVATION, TEMP, COMM, GRAD, UNEXPLAINED = (
    CATEGORIES.index(name) for name in ("activation", "temp", "comm_buffer", "grad_shard", "unexplained")
)
Ints = NDArray[np.int64]


class _Storage:
    """One storage that is alive."""

    __slots__ = ("category", "gone", "nbytes", "number", "span")

    def __init__(self, number: int, nbytes: int, category: int, span: int, gone: Any) -> None:
        self.number, self.nbytes, self.category, self.span = number, nbytes, category, span
        self.gone = gone
        """The weak reference; it lives as long as this."""


class _Row(NamedTuple):
    at_ns: int
    delta: int
    category: int
    storage: int
    module: int
    phase: int


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows one step from `start` to `stop`; `finish` makes the result.

    Attributes:
        error: why it gave up; "" while it works. It never raises into the training.
    """

    def __init__(
        self,
        model: nn.Module,
        ledger: Ledger,
        phases: Phases,
        device_type: str,
        *,
        plain: Sequence[nn.Parameter] = (),
        buckets: Sequence[int] = (),
        name_of: Callable[[str], str] = str,
    ) -> None:
        """`plain` are the parameters that no unit manages, `buckets` the bytes of DDP's own, `name_of` a module's plain name."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.error = ""
        self._model, self._ledger, self._phases = model, ledger, phases
        self._device_type = device_type
        self._plain = plain
        self._buckets = list(buckets)
        self._name_of = name_of
        self._interposer = Interposer()
        self._hooks: list[Any] = []
        self._on = self._entered = False
        self._live: dict[int, _Storage] = {}
        self._dead: deque[tuple[int, int]] = deque()
        """Freed since last looked: key and time. Filled by whichever thread frees, emptied by the training's."""
        self._rows: list[_Row] = []
        self._base_rows = 0
        self._home: list[int] = []
        """By storage number: the module that it belongs to."""
        self._short_lived: set[int] = set()
        self._opaque = {COMM: 0, UNEXPLAINED: 0}
        """Bytes that are counted and whose storages were not seen yet."""
        self._opaque_base: dict[int, int] = {}
        self._late_bytes = 0
        self._saved_marks: list[int] = []

        self._modules: dict[str, int] = {"": 0}
        self._stack: list[tuple[int, int]] = []
        """Modules whose forward is going on, with its begin."""
        self._units: list[int] = []
        self._span = 0
        self._numbers: list[int] = []
        self._number_modules: list[int] = []
        self._backward_module = 0
        self._numbered = torch_autograd.check()
        self._compiled = False

        self._op_names: dict[Any, int] = {}
        self._ops: list[tuple[int, int, int, int, int]] = []
        self._spans: list[tuple[int, int, int]] = []
        self._calls: list[list[int]] = []
        self._calling = False
        self._begin = self._end = self._began_ns = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """A compiled region runs as it was compiled: falling back to eager would change numbers."""
        return True

    # Begin and end

    def start(self) -> None:
        """Begins now. Everything that training holds is what the step starts from."""
        self._on = True
        _trackers.add(self)
        self._claim(self._ledger.tensors())
        self._opaque = {COMM: self._ledger.buckets, UNEXPLAINED: self._ledger.unexplained or 0}
        self._opaque_base = dict(self._opaque)
        self._base_rows = len(self._rows)
        gradient = self._guard(self._gradient)
        for parameter in self._plain:
            if parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(gradient)  # type: ignore[no-untyped-call]
                self._hooks.append(hook)
        entered, left = self._guard(self._enter_module), self._guard(self._leave_module)
        for name, module in _outside_compiled(self._model):
            at = self._module(self._name_of(name))
            self._hooks += [
                module.register_forward_pre_hook(functools.partial(entered, at)),
                module.register_forward_hook(functools.partial(left, at), always_call=True),
            ]
        self._compiled = any(True for _ in _compiled(self._model))
        self._interposer.wrap(torch.UntypedStorage, "resize_", self._resizing)
        self.__enter__()  # type: ignore[no-untyped-call]
        self._entered = True
        self._begin = time.perf_counter_ns()
        self._began_ns = time.time_ns()

    def stop(self) -> bool:
        """Ends now; False if another mode that was entered since is still active, so that this one cannot be left yet."""
        self._guard(self._drain)()
        self._on = False
        self._end = self._end or time.perf_counter_ns()
        self._live.clear()  # with the weak references, which call back into this
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._interposer.remove()
        if self._entered:
            if _get_current_dispatch_mode() is not self:
                return False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._entered = False
        return True

    def fail(self, error: Exception) -> None:
        """Gives up; the training goes on."""
        self._on = False
        self.error = self.error or f"{type(error).__name__}: {error}"

    def _guard(self, work: Callable[..., None]) -> Callable[..., None]:
        def guarded(*args: Any, **kwargs: Any) -> None:
            if self._on:
                try:
                    work(*args, **kwargs)
                except Exception as error:  # noqa: BLE001  # nothing of ours ends a training
                    self.fail(error)

        return guarded

    # Operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for kind in types:
            if kind not in PLAIN:  # a DTensor's own operators come back one by one
                return NotImplemented
        if not self._on:
            return func(*args, **(kwargs or {}))
        began = time.perf_counter_ns()
        result = func(*args, **(kwargs or {}))
        ended = time.perf_counter_ns()
        try:
            self._operator(func, (args, list(kwargs.values())) if kwargs else args, result, began, ended)
        except Exception as error:  # noqa: BLE001  # nothing of ours ends a training
            self.fail(error)
        return result

    def _operator(self, func: Any, args: tuple[Any, ...], result: Any, began: int, ended: int) -> None:
        if self._dead:
            self._drain()
        current = self._phases.current
        phase, module = PHASES.index(current), self._where()
        if current != OPTIMIZER:  # whatever it works on is the training's, and known; its many operators are cheap
            for value in args:
                self._look(value, False, ended, module, phase)
        self._look(result, True, ended, module, phase)
        name = self._op_names.get(func)
        if name is None:
            name = self._op_names[func] = len(self._op_names)
        self._ops.append((name, began, ended, module, phase))

    def _look(self, value: Any, made: bool, at_ns: int, module: int, phase: int) -> None:
        """Looks at what an operator has got or made: a tensor, or a list of them."""
        if isinstance(value, Tensor):
            try:
                storage = value.untyped_storage()
            except (RuntimeError, NotImplementedError):  # sparse, or a kind without a storage of its own
                return
            known = self._live.get(storage._cdata)
            if known is not None:
                if made and known.nbytes != (nbytes := storage.nbytes()):
                    self._resized(known, nbytes, at_ns, module, phase)
            elif value.device.type == self._device_type:
                if made:
                    self._add(storage, storage.nbytes(), self._born_as(phase), at_ns, module, phase)
                else:
                    self._unknown(storage, at_ns, module, phase)
        elif isinstance(value, (tuple, list)):
            for part in value:
                self._look(part, made, at_ns, module, phase)

    def _where(self) -> int:
        """The module that works now: the innermost forward, FSDP's unit, or in backward the one whose node runs."""
        if self._units:
            return self._units[-1]
        if self._stack:
            return self._stack[-1][0]
        if self._phases.current == BACKWARD:
            number = torch_autograd.running_number() if self._numbered == OK else None
            if number is not None:
                at = bisect_right(self._numbers, number) - 1
                self._backward_module = self._number_modules[at] if at >= 0 else 0
            return self._backward_module
        return 0

    def _unknown(self, storage: torch.UntypedStorage, at_ns: int, module: int, phase: int) -> None:
        """What comes in without having been seen to be made was there before, or was made where nobody sees."""
        nbytes = storage.nbytes()
        if nbytes in self._buckets and nbytes <= self._opaque[COMM]:
            category = COMM
        elif nbytes <= self._opaque[UNEXPLAINED]:
            category = UNEXPLAINED
        else:
            self._late_bytes += nbytes
            self._add(storage, nbytes, self._born_as(phase), at_ns, module, phase)
            return
        self._opaque[category] -= nbytes
        self._add(storage, nbytes, category, at_ns, module, phase, counted=True)

    def _born_as(self, phase: int) -> int:
        if self._units:
            return COMM
        if self._stack:
            return ACTIVATION
        return TEMP if PHASES[phase] in (BACKWARD, OPTIMIZER) else ACTIVATION

    # Storages

    def _add(
        self,
        storage: torch.UntypedStorage,
        nbytes: int,
        category: int,
        at_ns: int,
        module: int,
        phase: int,
        *,
        counted: bool = False,
    ) -> None:
        key, number = storage._cdata, len(self._home)
        gone = weakref.ref(storage, functools.partial(self._freed, key))
        self._live[key] = _Storage(number, nbytes, category, self._span, gone)
        self._home.append(module)
        if nbytes and not counted:
            self._rows.append(_Row(at_ns, nbytes, category, number, module, phase))

    def _freed(self, key: int, _: Any) -> None:
        self._dead.append((key, time.perf_counter_ns()))

    def _drain(self) -> None:
        """Takes in what was freed. An address may be in use again only after this."""
        module, phase = self._where(), PHASES.index(self._phases.current)
        while self._dead:
            key, at_ns = self._dead.popleft()
            known = self._live.pop(key, None)
            if known is None:
                continue
            if known.category == ACTIVATION and known.span == self._span:
                self._short_lived.add(known.number)
            if known.nbytes:
                self._rows.append(_Row(at_ns, -known.nbytes, known.category, known.number, module, phase))

    def _resized(self, known: _Storage, nbytes: int, at_ns: int, module: int, phase: int) -> None:
        if nbytes != known.nbytes:
            self._rows.append(_Row(at_ns, nbytes - known.nbytes, known.category, known.number, module, phase))
            known.nbytes = nbytes

    def _resizing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def seen(storage: torch.UntypedStorage) -> None:
            known = self._live.get(storage._cdata)
            if known is not None:
                phase = PHASES.index(self._phases.current)
                self._resized(known, storage.nbytes(), time.perf_counter_ns(), self._where(), phase)

        guarded = self._guard(seen)

        def resize_(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            if self._dead:
                guarded_drain()
            result = original(storage, *args, **kwargs)
            guarded(storage)
            return result

        guarded_drain = self._guard(self._drain)
        return resize_

    def _claim(self, holders: Iterable[tuple[str, Iterator[tuple[str, Tensor | None]]]]) -> None:
        """Gives every storage to the first holder that has it."""
        self._drain()
        now, phase = time.perf_counter_ns(), PHASES.index(self._phases.current)
        claimed: set[int] = set()
        for holder, tensors in holders:
            home = self._module(holder) if holder else 0
            for category, tensor in tensors:
                if tensor is None or tensor.device.type != self._device_type:
                    continue
                storage = local_tensor(tensor).untyped_storage()
                key = storage._cdata
                if key in claimed:
                    continue
                claimed.add(key)
                self._give(storage, CATEGORIES.index(category), home, now, phase)

    def _give(self, storage: torch.UntypedStorage, category: int, home: int, now: int, phase: int) -> None:
        known = self._live.get(storage._cdata)
        if known is None:
            self._add(storage, storage.nbytes(), category, now, home, phase)
            return
        if home:
            self._home[known.number] = home
        if known.category != category:
            if known.nbytes:
                self._rows.append(_Row(now, -known.nbytes, known.category, known.number, home, phase))
                self._rows.append(_Row(now, known.nbytes, category, known.number, home, phase))
            known.category = category

    def _gradient(self, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is not None and gradient.device.type == self._device_type:
            self._drain()
            storage = local_tensor(gradient).untyped_storage()
            self._give(storage, GRAD, self._where(), time.perf_counter_ns(), PHASES.index(self._phases.current))

    # Events of the training, from the probes

    def begin(self, owner: object) -> None:
        self._units.append(self._module(self._ledger.unit_name(owner)))

    def end(self) -> None:
        if self._units:
            self._units.pop()

    def changed(self, owner: object) -> None:
        """The unit holds other memory than before."""
        self._claim(self._ledger.tensors_around(owner))

    def boundary(self, *, claim: bool = False) -> None:
        """A phase begins or ends. `claim`: things have new owners without an event, as gradients after backward."""
        if claim:
            self._claim(self._ledger.tensors())
        else:
            self._drain()
        self._span += 1

    def backward_begins(self) -> None:
        self.boundary()
        self._saved_marks.append(len(self._rows))

    def collective(self, kind: int, nbytes: int, asynchronous: bool, call: Callable[[], Any]) -> Any:
        """Runs the collective and takes its time; an asynchronous one on a CPU ends when its future does."""
        if self._calling or not self._on:
            return call()
        record = [kind, self._where(), nbytes, time.perf_counter_ns(), -1]
        self._calls.append(record)
        self._calling = True
        try:
            result = call()
        finally:
            self._calling = False
        if not asynchronous:
            record[4] = time.perf_counter_ns()
        elif self._device_type == "cpu" and result is not None:
            result.get_future().add_done_callback(lambda _: record.__setitem__(4, time.perf_counter_ns()))
        return result

    def _module(self, name: str) -> int:
        return self._modules.setdefault(name, len(self._modules))

    def _enter_module(self, at: int, *_: Any) -> None:
        if self._phases.current == BACKWARD and not self._stack:
            self._drain()
            self._span += 1  # a second forward begins
        self._stack.append((at, time.perf_counter_ns()))
        self._mark(at)

    def _leave_module(self, at: int, *_: Any) -> None:
        now = time.perf_counter_ns()
        while self._stack:  # checkpointing leaves a second forward early, by an exception
            module, began = self._stack.pop()
            self._spans.append((module, began, now))
            if module == at:
                break
        self._mark(self._stack[-1][0] if self._stack else 0)
        if self._phases.current == BACKWARD and not self._stack:
            self._drain()
            self._span += 1

    def _mark(self, module: int) -> None:
        if self._numbered == OK:
            self._numbers.append(torch_autograd.next_number())
            self._number_modules.append(module)

    # The result

    def finish(self, rank: int, step: int, command: Command) -> Capture:
        """The capture of the step that ended with `stop`."""
        if self.error:
            return failed(rank, step, command, self.error)
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, len(_Row._fields))
        if self._short_lived:
            mistaken = np.isin(rows[:, 3], list(self._short_lived)) & (rows[:, 2] == ACTIVATION)
            rows[mistaken, 2] = TEMP
        base_rows, rows = rows[: self._base_rows], rows[self._base_rows :]
        base = np.bincount(base_rows[:, 2], weights=base_rows[:, 1], minlength=len(CATEGORIES)).astype(np.int64)
        for category, nbytes in self._opaque_base.items():
            base[category] += nbytes
        heights = np.cumsum(rows[:, 1])
        top = int(np.argmax(heights)) + 1 if len(rows) and heights.max() > 0 else 0
        """Rows up to and with the highest moment."""
        levels = base + _by_category(rows[:top])
        marks = [mark - self._base_rows for mark in self._saved_marks]
        saved = max((int((base + _by_category(rows[:mark]))[ACTIVATION]) for mark in marks), default=0)
        kept = coalesced(rows, ROWS_MAX)
        ops = _longest(self._ops, [ended - began for _, began, ended, _, _ in self._ops])
        spans = _longest(self._spans, [ended - began for _, began, ended in self._spans])
        calls = self._calls[:ROWS_MAX]
        peak_row = rows[top - 1] if top else None
        begin = self._begin
        return Capture(
            rank=rank,
            step=step,
            id=command.id,
            began_ns=self._began_ns,
            step_ns=max(0, self._end - begin),
            modules=list(self._modules),
            base=_memory(base),
            at_ns=_since(kept[:, 0], begin),
            delta_bytes=kept[:, 1].tolist(),
            category=kept[:, 2].tolist(),
            module=kept[:, 4].tolist(),
            phase=kept[:, 5].tolist(),
            events=len(rows),
            peak=_memory(levels),
            peak_at_ns=0 if peak_row is None else max(0, int(peak_row[0]) - begin),
            peak_phase=REST if peak_row is None else PHASES[int(peak_row[5])],
            peak_module="" if peak_row is None else list(self._modules)[int(peak_row[4])],
            peak_parts=self._parts(base_rows, rows, top),
            saved_bytes=saved,
            op_names=[str(name) for name in self._op_names],
            op=[name for name, *_ in ops],
            op_at_ns=[max(0, began - begin) for _, began, *_ in ops],
            op_ns=[ended - began for _, began, ended, *_ in ops],
            op_module=[module for *_, module, _ in ops],
            op_phase=[phase for *_, phase in ops],
            ops=len(self._ops),
            span_module=[module for module, _, _ in spans],
            span_at_ns=[max(0, began - begin) for _, began, _ in spans],
            span_ns=[ended - began for _, began, ended in spans],
            call_kind=[call[0] for call in calls],
            call_module=[call[1] for call in calls],
            call_nbytes=[call[2] for call in calls],
            call_at_ns=[max(0, call[3] - begin) for call in calls],
            call_ns=[call[4] - call[3] if call[4] >= 0 else -1 for call in calls],
            limits=self._limits(len(rows)),
        )

    def _parts(self, base_rows: Ints, rows: Ints, top: int) -> list[Part]:
        """What is alive at the highest moment, by category and module."""
        until, width = np.concatenate([base_rows, rows[:top]]), len(CATEGORIES)
        sizes = np.bincount(until[:, 3] * width + until[:, 2], weights=until[:, 1])
        last = {int(row[3]): int(row[2]) for row in rows[top:]}
        sums: dict[tuple[int, int, int], list[int]] = {}
        for cell in np.flatnonzero(sizes > 0).tolist():
            storage, category = divmod(cell, width)
            later = last.get(storage, category)
            entry = sums.setdefault((category, self._home[storage], later), [0, 0])
            entry[0] += int(sizes[cell])
            entry[1] += 1
        names = list(self._modules)
        parts = [
            Part(
                category=CATEGORIES[category],
                module=names[module],
                nbytes=nbytes,
                storages=storages,
                becomes=CATEGORIES[later] if later != category else "",
            )
            for (category, module, later), (nbytes, storages) in sums.items()
        ]
        parts.sort(key=lambda part: -part.nbytes)
        return parts[:PARTS_MAX]

    def _limits(self, events: int) -> list[str]:
        found = ["memory that an operator takes and frees within itself is not seen"]
        if self._compiled:
            found.append("compiled regions run as they are: what they allocate is seen when it comes out of them")
        if self._opaque_base.get(COMM):
            found.append(
                f"DDP's buckets ({self._opaque_base[COMM]:,} bytes) and their all-reduces are C++'s: the sizes are DDP's own, "
                "seen at their first use only, and the times of the all-reduces are not seen"
            )
        if self._ledger.unexplained is None:
            found.append("tensors outside of model and optimizer were not searched for yet")
        if self._late_bytes:
            found.append(
                f"{self._late_bytes:,} bytes were seen at their first use (a collective's own copies, say), not when they were allocated"
            )
        if self._numbered != OK:
            found.append(f"modules in backward are {self._numbered}")
        if self._device_type != "cpu":
            found.append("times are the host's, and the allocator rounds each storage up to 512 bytes")
        if events > ROWS_MAX:
            found.append(
                f"{events:,} allocations and frees were coalesced; the peak is exact, and so is every level shown"
            )
        if len(self._ops) > ROWS_MAX:
            found.append(f"of {len(self._ops):,} operators the {ROWS_MAX:,} longest are kept")
        return found


_trackers: weakref.WeakSet[Tracker] = weakref.WeakSet()


def _after_fork() -> None:
    """A data loader's worker is no part of the step, and inherits the mode."""
    for tracker in _trackers:
        tracker._on = False


os.register_at_fork(after_in_child=_after_fork)


def failed(rank: int, step: int, command: Command, error: str) -> Capture:
    """The answer of a rank that could not capture."""
    return Capture(rank=rank, step=step, id=command.id, began_ns=time.time_ns(), step_ns=0, error=error[:500])


def coalesced(rows: Ints, limit: int) -> Ints:
    """At most `limit` rows with exact levels at every time that remains, the highest moment among them.

    Of each window of rows the highest moment stays, with what has changed in each category since the one before.
    """
    if len(rows) <= limit:
        return rows
    windows = max(1, limit // len(TOTAL_CATEGORIES) - 1)
    heights = np.cumsum(rows[:, 1])
    edges = np.linspace(0, len(rows), windows + 1).astype(np.int64)
    chosen = [begin + int(np.argmax(heights[begin:end])) for begin, end in itertools.pairwise(edges)]
    kept: list[Ints] = []
    begin = 0
    for at in dict.fromkeys([*chosen, len(rows) - 1]):
        change = _by_category(rows[begin : at + 1])
        for category in np.flatnonzero(change):
            row = rows[at].copy()
            row[1], row[2] = change[category], category
            kept.append(row)
        begin = at + 1
    return np.array(kept, dtype=np.int64).reshape(-1, rows.shape[1])


def _by_category(rows: Ints) -> Ints:
    sums = np.bincount(rows[:, 2], weights=rows[:, 1], minlength=len(CATEGORIES))
    whole: Ints = sums.astype(np.int64)
    return whole


def _memory(levels: Ints) -> list[int | None]:
    count = len(TOTAL_CATEGORIES)
    rest: list[int | None] = [None] * (len(CATEGORIES) - count)
    return [*levels[:count].tolist(), *rest, int(levels[:count].sum())]


def _since(times: Ints, begin: int) -> list[int]:
    since: list[int] = np.maximum(0, times - begin).tolist()
    return since


def _longest(entries: list[Any], lengths: list[int]) -> list[Any]:
    if len(entries) <= ROWS_MAX:
        return entries
    return [entries[at] for at in sorted(np.argsort(lengths)[-ROWS_MAX:].tolist())]


def _compiled(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules whose forward is compiled as a whole."""
    for name, module in model.named_modules():
        whole = type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        if whole or hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable"):
            yield name, module


def _outside_compiled(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that may have a hook: one inside a compiled region would have it compiled again."""
    inside = tuple(f"{name}." if name else "" for name, _ in _compiled(model))
    for name, module in model.named_modules():
        if not (inside and name.startswith(inside)):
            yield name, module
