"""FSDP1 (`FullyShardedDataParallel`): its flat-parameter handles, what they hold, and when that changes.

Everything here reads private state of `torch.distributed.fsdp._flat_param` and `_runtime_utils`, which torch has frozen;
`check` and `check_handle` say so if that ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fsdp_tui.runner.facts import Names, Part, UnitParts
from fsdp_tui.runner.interpose import Interposer, Observer, missing_names, not_available, without
from fsdp_tui.runner.storages import storage_bytes

METHODS = ("unshard", "post_unshard", "reshard", "post_reshard")
FUNCTIONS = ("_reduce_grad", "_reduce_grad_no_shard")
GATHER_WAITS = ("_pre_forward_unshard", "_pre_backward_hook")
"""Where the compute stream waits for a gather, issued before or inside. `FullyShardedDataParallel` has imported the first."""
REDUCTION_WAIT = "_post_backward_final_callback"
"""Where it waits for the reductions. Without these names exposed time is not known, and nothing else."""
HANDLE_NAMES = ("flat_param", "uses_sharded_strategy", "world_size")
PARAM_NAMES = ("_shapes", "_sharded_size")
FACT_NAMES = ("_params", "_fqns", "_shard_param_infos", "_shared_param_infos")
"""Of a flat parameter: what it was made from. Without these names padding, tied and frozen parameters are not known."""
FULL = ("_full_param_padded", "_full_prec_full_param_padded", "_mp_shard")
"""Tensors of a flat parameter that exist only while it is unsharded; their storages are resized to 0 between."""


RESHARDING = ("FULL_SHARD", "HYBRID_SHARD")
"""Sharding strategies of a handle that free its parameters after forward."""


def _handle_class() -> type:
    from torch.distributed.fsdp._flat_param import FlatParamHandle

    return FlatParamHandle


def _runtime() -> Any:
    from torch.distributed.fsdp import _runtime_utils

    return _runtime_utils


def check(handle_class: type | None = None, runtime: Any = None) -> str:
    """ "ok", or why the events of FSDP1 cannot be seen with this torch."""
    try:
        missing = missing_names(handle_class or _handle_class(), METHODS)
        return without(missing + missing_names(runtime or _runtime(), FUNCTIONS))
    except ImportError as error:
        return not_available(str(error))


def _wrapper_module() -> Any:
    from torch.distributed.fsdp import fully_sharded_data_parallel

    return fully_sharded_data_parallel


def check_waits() -> str:
    """ "ok", or why it cannot be seen where compute waits for collectives; only CUDA's streams wait anywhere else."""
    missing = missing_names(_wrapper_module(), GATHER_WAITS[:1])
    return without(missing + missing_names(_runtime(), (*GATHER_WAITS[1:], REDUCTION_WAIT)))


def check_handle(handle: Any) -> str:
    """ "ok", or why the memory that this handle holds cannot be read."""
    missing = missing_names(handle, HANDLE_NAMES)
    if hasattr(handle, "flat_param"):
        missing += missing_names(handle.flat_param, PARAM_NAMES)
    return without(missing)


def check_facts(handle: Any) -> str:
    """ "ok", or why it cannot be told what this handle's flat parameter was made from."""
    return without(missing_names(handle.flat_param, FACT_NAMES))


def offloads(handle: Any) -> bool:
    return bool(getattr(handle, "_offload_params", False))


def is_wrapped(model: nn.Module) -> bool:
    return bool(_wrappers(model))


def is_wrapper(module: nn.Module) -> bool:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return isinstance(module, FullyShardedDataParallel)


def _wrappers(model: nn.Module) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in model.named_modules() if is_wrapper(module)]


def handles(model: nn.Module) -> list[tuple[str, Any]]:
    """Every handle under the model with the name of its wrapper, in `named_modules` order."""
    found = ((name, getattr(wrapper, "_handle", None)) for name, wrapper in _wrappers(model))
    return [(name, handle) for name, handle in found if handle is not None]


def outermost(model: nn.Module) -> set[int]:
    """Identities of the handles whose wrapper is inside no other: PyTorch does not free their parameters after forward."""
    names = [name for name, _ in _wrappers(model)]
    inner = {name for name in names for other in names if name != other and (not other or name.startswith(f"{other}."))}
    return {id(handle) for name, handle in handles(model) if name not in inner}


def root_strategy(model: nn.Module) -> tuple[str, int, int]:
    """Sharding that PyTorch runs (its ShardingStrategy name in lower case), shard group size and replicas."""
    wrapper = _wrappers(model)[0][1]
    name = wrapper.sharding_strategy.name.lower().removeprefix("_")
    shard = wrapper.process_group.size()
    between = getattr(wrapper, "_inter_node_pg", None)
    replicas = between.size() if between is not None else 1
    return name, shard, replicas


def prefetching(model: nn.Module) -> dict[str, str | bool | None]:
    """Which gathers the root issues ahead of need, and whether it limits how many are under way; None: not readable."""
    root = _wrappers(model)[0][1]
    backward = getattr(root, "backward_prefetch", None)
    return {
        "forward_prefetch": getattr(root, "forward_prefetch", None),
        "backward_prefetch": "none" if backward is None and hasattr(root, "backward_prefetch") else _word(backward),
        "limit_all_gathers": getattr(root, "limit_all_gathers", None),
    }


def param_dtype(model: nn.Module) -> torch.dtype | None:
    """What gathered parameters are cast to; None: they stay as they are."""
    mixed = getattr(_wrappers(model)[0][1], "mixed_precision", None)
    dtype: torch.dtype | None = getattr(mixed, "param_dtype", None)
    return dtype


def _word(choice: Any) -> str | None:
    return None if choice is None else str(choice.name).lower()


class Fsdp1Unit:
    """One flat parameter. `memory` is O(1). `root` is whether it is the outermost wrapper's."""

    def __init__(self, name: str, handle: Any, *, root: bool = False) -> None:
        self.name = name
        self.owner = handle
        self._root = root
        flat = handle.flat_param
        self.params = sum(prod(shape) for shape in flat._shapes)
        trains = [param.requires_grad for param in getattr(flat, "_params", None) or ()] or [flat.requires_grad]
        if len(trains) < len(flat._shapes):  # without use_orig_params they train together or not at all
            trains = trains[:1] * len(flat._shapes)
        self.trainable_params = sum(prod(shape) for shape, train in zip(flat._shapes, trains, strict=True) if train)
        self._trains = trains
        self.param_bytes = self.params * flat.element_size()
        self.shard_bytes = storage_bytes(flat)
        self._device_type = getattr(handle, "device", flat.device).type
        self._shard_numel = prod(flat._sharded_size)
        compute = getattr(handle, "_fwd_bwd_param_dtype", None) or flat.dtype
        sharded = handle.uses_sharded_strategy
        self.unsharded_bytes = self._shard_numel * handle.world_size * compute.itemsize if sharded else 0

    @property
    def reduce_bytes(self) -> int:
        """All of the flat gradient, frozen parts included; nothing if all of it is frozen."""
        handle = self.owner
        if not any(self._trains):
            return 0
        reduced: torch.dtype = getattr(handle, "_reduce_dtype", None) or handle.flat_param.dtype
        ranks: int = handle.world_size if handle.uses_sharded_strategy else 1
        nbytes: int = self._shard_numel * ranks * reduced.itemsize
        return nbytes

    @property
    def kept(self) -> bool:
        strategy = getattr(getattr(self.owner, "_sharding_strategy", None), "name", "")
        return self._root or strategy not in RESHARDING

    def is_gathered(self, memory: tuple[int, int, int, int]) -> bool:
        return memory[0] > 0

    def parts(self, names: Names) -> UnitParts:
        """The parameters that were flattened into this one. Their names come from the handle, not from `names`."""
        flat = self.owner.flat_param
        prefix = "" if self.name == "<root>" else f"{self.name}."
        aliases: dict[str, list[str]] = {}
        for tied in flat._shared_param_infos:
            owner = _joined(tied.prim_module_name, tied.prim_param_name)
            aliases.setdefault(owner, []).append(prefix + _joined(tied.module_name, tied.param_name))
        parts = [
            Part(
                (prefix + fqn, *aliases.get(fqn, ())), prod(shape), part.numel_in_shard or 0, flat.element_size(), train
            )
            for fqn, shape, part, train in zip(
                flat._fqns, flat._shapes, flat._shard_param_infos, self._trains, strict=True
            )
        ]
        return UnitParts(parts, self.shard_bytes, bool(self.owner.uses_sharded_strategy), one_gradient=True)

    def memory(self) -> tuple[int, int, int, int]:
        """Bytes of param_unsharded, grad_shard, grad_unsharded and comm_buffer that the handle holds now."""
        reduced = unreduced = 0
        counted: set[int] = set()
        for category, grad in self._grads():
            key = grad.untyped_storage()._cdata
            if key in counted or grad.device.type != self._device_type:  # an offloaded one is on the host
                continue
            counted.add(key)
            if category == "grad_shard":
                reduced += storage_bytes(grad)
            else:
                unreduced += storage_bytes(grad)
        return sum(storage_bytes(tensor) for tensor in self._unsharded()), reduced, unreduced, 0

    def tensors(self) -> Iterator[tuple[str, Tensor | None]]:
        """Every tensor that the handle holds now, with its category; a storage may come twice."""
        flat = self.owner.flat_param
        yield "param_shard", getattr(flat, "_local_shard", None)
        for tensor in self._unsharded():
            yield "param_unsharded", tensor
        if not hasattr(flat, "_local_shard"):  # before the first forward
            yield "param_shard", flat.data
        yield from self._grads()

    def _unsharded(self) -> Iterator[Tensor]:
        for name in FULL:
            tensor = getattr(self.owner.flat_param, name, None)
            if tensor is not None:
                yield tensor

    def _grads(self) -> Iterator[tuple[str, Tensor]]:
        flat = self.owner.flat_param
        for name in ("_saved_grad_shard", "_cpu_grad"):
            saved = getattr(flat, name, None)
            if saved is not None:
                yield "grad_shard", saved
        if flat.grad is not None:
            whole = self.owner.uses_sharded_strategy and flat.grad.numel() != self._shard_numel
            yield ("grad_unsharded" if whole else "grad_shard"), flat.grad


def _joined(module_name: str, name: str) -> str:
    return f"{module_name}.{name}" if module_name else name


def install(interposer: Interposer, observer: Observer) -> None:
    """Wraps what gathers and frees a flat parameter, what reduces its gradient, and where compute waits for either."""
    handle_class, runtime = _handle_class(), _runtime()
    interposer.wrap(handle_class, "unshard", lambda original: _unshard(observer, original))
    interposer.wrap(handle_class, "reshard", lambda original: _freeing(observer, original))
    for name in ("post_unshard", "post_reshard"):
        interposer.wrap(handle_class, name, lambda original: _freeing(observer, original, low_precision_only=True))
    for name in FUNCTIONS:
        interposer.wrap(runtime, name, lambda original: _reduce(observer, original))
    for owner, name, position in zip((_wrapper_module(), runtime), GATHER_WAITS, (1, 2), strict=True):
        if hasattr(owner, name):
            interposer.wrap(owner, name, _gather_wait_of(observer, position))
    if hasattr(runtime, REDUCTION_WAIT):
        interposer.wrap(runtime, REDUCTION_WAIT, lambda original: _reduction_wait(observer, original))


def _unshard(observer: Observer, original: Callable[..., Any]) -> Callable[..., Any]:
    def unshard(handle: Any) -> Any:
        if not observer.on:
            return original(handle)
        observer.begin(handle)
        try:
            result = original(handle)
        finally:
            observer.end()
        observer.changed(handle)
        return result

    return unshard


def _freeing(
    observer: Observer, original: Callable[..., Any], *, low_precision_only: bool = False
) -> Callable[..., Any]:
    def freeing(handle: Any, *args: Any, **kwargs: Any) -> Any:
        told = observer.on and (not low_precision_only or hasattr(handle.flat_param, "_mp_shard"))
        if told:
            observer.changed(
                handle
            )  # what the unit computed and its parameters are both there: the highest moment is here
        result = original(handle, *args, **kwargs)
        if told:
            observer.changed(handle)
        return result

    return freeing


def _reduce(observer: Observer, original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(state: Any, handle: Any) -> Any:
        if not observer.on:
            return original(state, handle)
        observer.reducing(handle)
        observer.begin(handle)
        try:
            result = original(state, handle)
        finally:
            observer.end()
            observer.reduced(handle)
        return result

    return reduce


def _gather_wait_of(observer: Observer, position: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`position` is that of the handle among the arguments."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def gather_wait(*args: Any) -> Any:
            handle = args[position] if observer.on else None
            if handle is None:
                return original(*args)
            observer.waiting(handle)
            try:
                return original(*args)
            finally:
                observer.waited(handle)

        return gather_wait

    return wrap


def _reduction_wait(observer: Observer, original: Callable[..., Any]) -> Callable[..., Any]:
    def reduction_wait(*args: Any) -> Any:
        if observer.on:
            observer.reductions_needed()
        return original(*args)

    return reduction_wait
