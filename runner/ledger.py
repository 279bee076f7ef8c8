"""The memory ledger: exact bytes per category, kept at every event inside FSDP, and the highest moment of each step.

What changes inside a step (unsharded parameters, gradients, collective buffers) is re-read from the unit whose event it
was: O(1) work. What changes rarely (shards, optimizer states, buffers) comes from a walk over all storages when the
structure changes. What autograd holds has no owner to ask: it is what the allocator's total grew by since the step began,
beyond what the ledger knows.

Steps repeat, so not every one is looked at: `looks` decides. While the ledger is not looking its events cost nothing, and
what it says is of the newest step that it did look at.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fsdp_tui.runner import torch_compile
from fsdp_tui.runner.facts import Names, UnitParts
from fsdp_tui.runner.storages import Tally, local_tensor, unknown_tensors
from fsdp_tui.telemetry.messages import CATEGORIES, TOTAL_CATEGORIES

LIVE = ("param_unsharded", "grad_shard", "grad_unsharded", "comm_buffer")
"""Categories that change inside a step, in the order of every `Live`."""
Live = tuple[int, int, int, int]
NOTHING: Live = (0, 0, 0, 0)
GRAD_SHARD, GRAD_UNSHARDED, COMM_BUFFER = 1, 2, 3

ROOT = "<root>"

WALK_AT_STEPS = frozenset({1, 2})
"""Steps after which live tensors are searched for what the ledger does not know. The heap still settles in the first."""


SEARCH_BUDGET = 0.002
"""Share of the training's time that searches for unknown tensors may take: of 40 ms each, one in 20 s."""
SEARCH_HEAD_START_S = 0.5
"""On top of it, for what appears while a training gets going."""
GROWTH_TOLERANCE = 256 << 10
"""Growth of the heap in bytes that is malloc's and Python's own, and no reason to search for tensors."""


class Holder(Protocol):
    """Something that holds tensors of the training: a unit, FSDP2's shared buffers, or the unmanaged parameters."""

    def memory(self) -> Live: ...

    def tensors(self) -> Iterator[tuple[str, Tensor | None]]: ...


class Unit(Holder, Protocol):
    """A group that owns parameters. `owner` is the torch object whose events are the unit's.

    `is_gathered` tells whether its parameters are there in full, or on their way, given its `memory` of this moment.
    """

    name: str
    owner: object
    params: int
    trainable_params: int
    param_bytes: int
    shard_bytes: int
    unsharded_bytes: int

    @property
    def reduce_bytes(self) -> int:
        """What goes into one reduction of its gradients."""

    @property
    def kept(self) -> bool:
        """Whether its parameters stay gathered from forward to backward."""

    def is_gathered(self, memory: Live) -> bool: ...

    def parts(self, names: Names) -> UnitParts: ...


class Allocator(Protocol):
    """Who knows how much memory is taken in all, whoever holds it."""

    def allocated(self) -> int | None:
        """Bytes taken now, cheap enough for every event; None: not known, or not cheaply."""

    def settled(self) -> int | None:
        """Bytes taken now, for the end of a step; None: not known."""

    def peak(self) -> int | None:
        """The allocator's own highest figure since `reset_peak`; None if it keeps none."""

    def reset_peak(self) -> None: ...

    def reserved(self) -> int | None:
        """Bytes the allocator had taken from the device when another figure was last asked for; None on a CPU."""


class PlainParams:
    """Parameters that no unit manages: all of them for single and ddp, the ignored ones under FSDP."""

    def __init__(self, params: Iterable[nn.Parameter], device_type: str) -> None:
        self._params = list(params)
        self._device_type = device_type
        self._sizes: dict[int, int] = {}

    def memory(self) -> Live:
        if all(param.grad is None for param in self._params):
            return NOTHING
        tally = Tally(self._device_type)
        for param in self._params:
            tally.add("grad_shard", param.grad)
        return 0, tally.bytes.get("grad_shard", 0), 0, 0

    def tensors(self) -> Iterator[tuple[str, Tensor | None]]:
        for param in self._params:
            yield "param_shard", param.data
            yield "grad_shard", param.grad


class Moment(NamedTuple):
    """The memory at one moment inside a step."""

    live: Live
    activation: int | None
    temp: int | None
    phase: str
    unit: int
    gathered: int
    """Units whose parameters were there in full, or on their way."""
    static: dict[str, int]
    """What changes rarely, as it was then: before its first step an optimizer holds nothing."""


class _Reduction(NamedTuple):
    """A unit's gradients when their reduction began."""

    grad_shard: int
    grad_unsharded: int


class Ledger:
    """Bytes per category of one rank.

    `fixed` are bytes of comm_buffer that no tensor in Python shows (DDP's buckets). `blind` are categories that cannot be
    read here: they are None, never 0.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        units: Sequence[Unit],
        shared: Sequence[Holder],
        plain: Iterable[nn.Parameter],
        allocator: Allocator,
        device_type: str,
        *,
        fixed: Callable[[], int] = lambda: 0,
        blind: frozenset[str] = frozenset(),
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self._units = list(units)
        self._index = {id(unit.owner): at for at, unit in enumerate(units)}
        self._allocator = allocator
        self._device_type = device_type
        self._fixed = fixed
        self._blind = blind
        self.phase = "rest"
        self.looking = True
        self.stepped = False
        """Whether an optimizer has stepped since the step began."""
        self.captured = False
        """Whether the step is captured: then what the heap grows by is the capture's own."""
        self._graphs = torch_compile.graphs()

        self._static: dict[str, int] = {}
        self._static_bytes = 0
        self._structure: tuple[int, ...] = ()
        self.walks = 0
        self.searches = 0
        self.outside: list[tuple[str, int, int]] = []
        """Type and shape, number and bytes of the tensors that the newest search found."""
        self.host_bytes = 0
        """Bytes of the training on the host, when the device is another one."""
        self.kept_gradients: int | None = None
        """Full-size gradients that waited for the next micro-batch, in the newest step that was looked at."""
        self._kept = 0
        self._gathered = [False] * len(self._units)
        self._holders: list[Holder] = [*self._units, *shared, PlainParams(plain, device_type)]
        # Shared buffers and parameters in no unit change between any unit's events. Without units the latter are all there is.
        ignored = bool(self._units) and any(True for _ in self._holders[-1].tensors())
        self._always = range(len(self._units), len(self._holders) - (not ignored))
        self._around = [self._enclosing(unit) for unit in self._units]
        self._stale = False
        self._last: list[Live] = [NOTHING] * len(self._holders)
        self._totals = [0, 0, 0, 0]
        self._in_reduction: dict[int, _Reduction] = {}
        self._taken: list[tuple[weakref.ref[torch.UntypedStorage], int]] = []
        """Recomputed storages that backward has taken and not yet freed."""
        self._highest = -1
        self._unexplained: int | None = None
        self._made_s = time.monotonic()
        self._searched_s = 0.0
        self._at_walk: tuple[int, int] | None = None
        self._step = 0
        self.end: list[int | None] | None = None
        tally = self._walk_static()
        if device_type == "cpu":  # what is there before the first step is no part of that step
            self._search(tally)
        self.start_step()

    # Structure

    def walk(self) -> Tally:
        """Visits every tensor that training holds, each storage once: the full state, independent of all counters."""
        tally = Tally(self._device_type)
        for _, tensors in self.tensors():
            tally.add_all(tensors)
        return tally

    def tensors(self) -> Iterator[tuple[str, Iterator[tuple[str, Tensor | None]]]]:
        """Every holder's name ("" when it is no unit) with its tensors and their categories; the first claim counts."""
        for holder in self._holders:
            yield getattr(holder, "name", ""), holder.tensors()
        yield "", (("buffer", buffer) for buffer in self._model.buffers())
        yield "", self._optimizer_tensors()

    def tensors_around(self, owner: object) -> Iterator[tuple[str, Iterator[tuple[str, Tensor | None]]]]:
        """As `tensors`, of what an event of this unit may have changed."""
        at = self._index.get(id(owner), -1)
        for near in (*(self._around[at] if at >= 0 else ()), *self._always):
            yield getattr(self._holders[near], "name", ""), self._holders[near].tensors()

    def unit_name(self, owner: object) -> str:
        """Of the unit of this owner; "" for none."""
        at = self._index.get(id(owner), -1)
        return self._units[at].name if at >= 0 else ""

    def _optimizer_tensors(self) -> Iterator[tuple[str, Tensor | None]]:
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                for value in state.values() if isinstance(state, dict) else ():
                    if isinstance(value, Tensor):
                        yield "optimizer", value

    def _walk_static(self) -> Tally:
        self.walks += 1
        tally = self.walk()
        self._static = {name: tally.bytes.get(name, 0) for name in ("param_shard", "buffer", "optimizer")}
        self._static_bytes = sum(self._static.values())
        self.host_bytes = tally.host_bytes
        self._structure = self._structure_now()
        return tally

    def _structure_now(self) -> tuple[int, ...]:
        return tuple(len(optimizer.state) for optimizer in self._optimizers)

    def _enclosing(self, unit: Unit) -> list[int]:
        """The unit's index and those of the units around it, whose own gradients may arrive between its events."""
        return [
            at
            for at, other in enumerate(self._units)
            if other is unit or other.name == ROOT or unit.name.startswith(f"{other.name}.")
        ]

    # Events

    def _read(self, at: int) -> None:
        now = self._holders[at].memory()
        carried = self._in_reduction.get(at)
        if carried is not None:  # FSDP holds them in a local list, where nobody else can see them
            now = (now[0], now[1], max(now[2], carried.grad_unsharded), now[3])
        if at < len(self._gathered):
            self._gathered[at] = self._units[at].is_gathered(now)
        before = self._last[at]
        if now != before:
            for column in range(4):
                self._totals[column] += now[column] - before[column]
            self._last[at] = now

    def _read_all(self) -> None:
        self._stale = False
        for at in range(len(self._holders)):
            self._read(at)

    def _read_around(self, at: int) -> None:
        """Re-reads what the event of this unit (-1: of none) may have changed.

        At the root's events in backward it may be any: a unit whose inputs need no gradient reduces at the very end.
        """
        if self._stale or at < 0 or (self.phase == "backward" and self._units[at].name == ROOT):
            self._read_all()
            return
        for holder in self._around[at]:
            self._read(holder)
        for holder in self._always:
            self._read(holder)

    # Only while looking

    def refresh(self) -> None:
        """A phase boundary, where anything may have changed."""
        self._read_all()
        self._sample(-1)

    def forward_begins(self) -> None:
        """As `refresh`; the next event re-reads everything too, since FSDP1 drops old gradients as its forward begins."""
        self.refresh()
        self._kept = max(self._kept, self._totals[GRAD_UNSHARDED])
        self._stale = True

    def touch(self) -> None:
        """A moment inside autograd: parameters may have new gradients."""
        self._read_around(-1)
        self._sample(-1)

    def recomputed(self, tensor: Tensor) -> None:
        """Backward takes a recomputed tensor, and the operator that took one before is done.

        That operator's results and what it took were both there when it ended: what is gone since is added.
        """
        freed = sum(nbytes for storage, nbytes in self._taken if storage() is None)
        self._taken = [(storage, nbytes) for storage, nbytes in self._taken if storage() is not None]
        self._read_around(-1)
        self._sample(-1, freed=freed)
        here = tensor.untyped_storage()
        self._taken.append((weakref.ref(here), here.nbytes()))

    def changed(self, owner: object, in_flight: int = 0) -> None:
        """The unit of this owner holds other memory than before, or is about to.

        `in_flight` are bytes of a collective buffer that were there at the highest moment of the event and are gone now.
        """
        at = self._index.get(id(owner), -1)
        self._read_around(at)
        self._sample(at, (0, 0, 0, in_flight))

    def reducing(self, owner: object) -> None:
        """The unit's unsharded gradients are complete."""
        at = self._index.get(id(owner), -1)
        if at < 0:
            return
        self._read_around(at)
        self._sample(at)
        _, shard, unsharded, _ = self._last[at]
        self._in_reduction[at] = _Reduction(shard, unsharded)

    def reduced(self, owner: object) -> None:
        """The unit's gradients are reduced. While their copy was scattered, they and the collective's input were both there."""
        at = self._index.get(id(owner), -1)
        before = self._in_reduction.pop(at, None)
        if before is None:
            return
        self._read_around(at)
        now = self._last[at]
        extra = NOTHING
        if now[GRAD_UNSHARDED] < before.grad_unsharded:
            extra = (0, before.grad_shard - now[GRAD_SHARD], before.grad_unsharded - now[GRAD_UNSHARDED], 0)
        self._sample(at, extra)

    # The highest moment

    def start_step(self, *, look: bool = True) -> None:
        """Begins the next step: what is there now is what the step's own memory is measured from."""
        self.looking = look
        self.stepped = False
        self._in_reduction.clear()
        self._taken.clear()
        self._graphs = torch_compile.graphs()
        if not look:
            return
        self._read_all()
        self._allocator.reset_peak()
        self._base = self._allocator.allocated()
        self._reserved = self._allocator.reserved()
        self._known_base = sum(self._totals) + self._static_bytes
        # What was there before the step and is no part of the training, of an allocator that knows all of its bytes.
        self._foreign = None if self._base is None else self._base - self._known_bytes()
        self._saved_for_backward: int | None = None
        self._kept = 0
        self._strangers = self._unexplained
        self._highest = -1
        self.top: Moment | None = None
        self._sample(-1)

    def _own(self) -> int | None:
        """Bytes this step has taken that no holder knows: what autograd saved, and temporaries."""
        taken = self._allocator.allocated()
        if taken is None or self._base is None:
            return None
        return max(0, taken - self._base - (sum(self._totals) + self._static_bytes - self._known_base))

    def _sample(self, unit: int, extra: Live = NOTHING, freed: int = 0) -> None:
        """Compares this moment, or one just before it that had these bytes more, with the highest so far."""
        own = self._own()
        if own is not None:
            own += freed
        height = self._static_bytes + sum(self._totals) + sum(extra) + (own or 0)
        if height <= self._highest:
            return
        self._highest = height
        live = tuple(self._totals[column] + extra[column] for column in range(4))
        gathered = sum(self._gathered)
        self.top = Moment(live, *self._split(own), self.phase, unit, gathered, self._static)  # type: ignore[arg-type]

    def _split(self, own: int | None) -> tuple[int | None, int | None]:
        """Activations and temporaries: until backward begins all is saved for it, then what exceeds that is temporary.

        Backward frees what was saved as it goes, so late in backward this calls some temporaries activations.
        """
        if own is None:
            return None, None
        if self._saved_for_backward is None:
            return own, 0
        saved = min(own, self._saved_for_backward)
        return saved, own - saved

    def backward_begins(self) -> None:
        """Everything the step has taken by now is what autograd saved for backward."""
        self._read_all()
        self._sample(-1)
        own = self._own()
        if own is not None:
            self._saved_for_backward = max(self._saved_for_backward or 0, own)

    # The end of the step

    def optimizer_returned(self) -> None:
        """Takes the memory of the step: when optimizer.step() returned, before any zero_grad."""
        self._step += not self.stepped
        self.stepped = True
        changed = self._structure_now() != self._structure
        if not (self.looking or changed or self.end is None):
            return
        self._read_all()
        tally = self._walk_static() if changed else None
        if self.looking:
            self._sample(-1)
            self.kept_gradients = self._kept
        self.end = self._memory_now(tally)

    def _memory_now(self, tally: Tally | None) -> list[int | None]:
        known = self._known_bytes()
        taken = self._allocator.settled()
        reserved = self._allocator.reserved()
        if self._device_type == "cpu":
            grown = not self.captured and self._grown(taken, known) and self._may_search()
            if tally is not None or self._step in WALK_AT_STEPS or grown:
                self._search(tally or self.walk())
                self._at_walk = None if taken is None else (taken, known)
            unexplained = self._unexplained
        else:
            unexplained = None if taken is None else taken - known
        memory = self._row(self._static, tuple(self._totals), 0, 0, unexplained)  # type: ignore[arg-type]
        total = memory[-1]
        if self._device_type == "cpu":
            self._put(memory, "non_torch", None if taken is None or total is None else max(0, taken - total))
        else:
            self._put(memory, "cache", None if reserved is None or taken is None else reserved - taken)
        return memory

    def _search(self, tally: Tally) -> None:
        """Looks for live tensors that are not in this walk."""
        began_s = time.monotonic()
        self._unexplained, self.outside = unknown_tensors(tally.seen, self._device_type)
        self.searches += 1
        self._searched_s += time.monotonic() - began_s

    def _may_search(self) -> bool:
        """Whether the searches so far have left something of their budget."""
        return self._searched_s < SEARCH_HEAD_START_S + SEARCH_BUDGET * (time.monotonic() - self._made_s)

    def _grown(self, taken: int | None, known: int) -> bool:
        """Whether the heap grew or shrank since live tensors were last searched, beyond what the ledger knows of.

        It may be tensors or not, which only a search tells; until then it counts as non_torch, the rest of the heap.
        """
        if taken is None or self._at_walk is None:
            return False
        return abs((taken - self._at_walk[0]) - (known - self._at_walk[1])) > GROWTH_TOLERANCE

    def peak(self) -> tuple[list[int | None], str, int]:
        """The highest moment of the step so far: its memory by category, phase, and unit (-1: none)."""
        top = self.top
        if top is None:
            return [None] * (len(CATEGORIES) + 1), "", -1
        activation, temp = top.activation, top.temp
        if self._device_type == "cpu" and torch_compile.graphs() != self._graphs:
            activation = temp = None  # the heap has grown by the compiler's work too
        unexplained = self._strangers  # what came in this step is in its own growth
        highest = self._allocator.peak()
        if highest is not None:  # the allocator saw every moment, the ledger only its events
            foreign = self._foreign or 0
            rest = highest - sum(top.static.values()) - self._fixed() - sum(top.live) - foreign
            activation, temp = self._split(max(0, rest))
            unexplained = foreign + min(0, rest)
        row = self._row(top.static, top.live, activation, temp, unexplained)
        # Reserved memory has no figure of that moment: it is known when the step left it as it was.
        if highest is not None and self._reserved is not None and self._reserved == self._allocator.reserved():
            self._put(row, "cache", self._reserved - highest)
        return row, top.phase, top.unit

    def _known_bytes(self) -> int:
        return self._static_bytes + self._fixed() + sum(self._totals)

    def _row(
        self, static: dict[str, int], live: Live, activation: int | None, temp: int | None, unexplained: int | None
    ) -> list[int | None]:
        values: dict[str, int | None] = dict(static)
        values.update(zip(LIVE, live, strict=True))
        values["comm_buffer"] = live[COMM_BUFFER] + self._fixed()
        values.update(activation=activation, temp=temp, unexplained=unexplained)
        for name in self._blind:
            values[name] = None
        total = sum(values.get(name) or 0 for name in TOTAL_CATEGORIES)
        return [*(values.get(name) for name in CATEGORIES), total]

    @staticmethod
    def _put(memory: list[int | None], category: str, value: int | None) -> None:
        memory[CATEGORIES.index(category)] = value

    # What the structure is made of

    @property
    def buckets(self) -> int:
        """Bytes of comm_buffer that no tensor in Python shows."""
        return self._fixed()

    @property
    def unexplained(self) -> int | None:
        """Bytes of live tensors that none of the training owns, when they were last searched; None: not yet."""
        return self._unexplained

    @property
    def static(self) -> dict[str, int]:
        return dict(self._static)

    @property
    def live(self) -> Live:
        first, second, third, fourth = self._totals
        return first, second, third, fourth

    def optimizer_bytes_per_param_byte(self) -> float | None:
        """How many bytes the optimizer keeps per byte of parameter, from this rank's states; None before there are any.

        Only states shaped like their parameter count (AdamW's two moments: 2.0); its scalar step is no sharded state.
        """
        states = params = 0
        for optimizer in self._optimizers:
            for param, state in optimizer.state.items():
                local = local_tensor(param)
                if not local.numel() or not isinstance(state, dict):
                    continue
                params += local.numel() * local.element_size()
                for value in state.values():
                    if isinstance(value, Tensor) and local_tensor(value).shape == local.shape:
                        states += local_tensor(value).numel() * value.element_size()
        if not any(optimizer.state for optimizer in self._optimizers):
            return 0.0 if self._step else None  # plain SGD keeps nothing
        return states / params if params else None
