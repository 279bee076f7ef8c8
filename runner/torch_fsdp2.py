"""FSDP2 (`fully_shard`): its parameter groups, what they hold, and the moments at which that changes.

Everything here reads private state of `torch.distributed.fsdp._fully_shard`. The methods wrapped have had the same
signatures since torch 2.6; `check` and `check_group` say so when that ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fsdp_tui.runner.facts import Names, Part, UnitParts
from fsdp_tui.runner.interpose import Interposer, Observer, missing_names, not_available, without
from fsdp_tui.runner.storages import local_tensor, storage_bytes

METHODS = ("unshard", "wait_for_unshard", "reshard", "post_backward")
WAIT = "finalize_backward"
"""Where the compute stream waits for the last reductions. Without it their exposed time is not known, and nothing else."""
GROUP_NAMES = (
    "fsdp_params",
    "comm_ctx",
    "mesh_info",
    "mp_policy",
    "is_unsharded",
    "is_sharded_post_forward",
    "_all_gather_result",
    "_partial_reduce_output",
)
PARAM_NAMES = (
    "sharded_param",
    "padded_sharded_param_size",
    "all_gather_outputs",
    "unsharded_accumulated_grad",
    "_sharded_param_data",
)


def _group_class() -> type:
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    return FSDPParamGroup


def check(group_class: type | None = None) -> str:
    """ "ok", or why the events of FSDP2 cannot be seen with this torch."""
    try:
        return without(missing_names(group_class or _group_class(), METHODS))
    except ImportError as error:
        return not_available(str(error))


def check_waits() -> str:
    """ "ok", or why it cannot be seen where compute waits for reductions; only CUDA's streams wait anywhere else."""
    return without(missing_names(_group_class(), (WAIT,)))


def check_group(group: Any) -> str:
    """ "ok", or why the memory that this parameter group holds cannot be read."""
    missing = missing_names(group, GROUP_NAMES)
    if "fsdp_params" not in {name.rpartition(".")[2] for name in missing} and group.fsdp_params:
        missing += missing_names(group.fsdp_params[0], PARAM_NAMES)
    return without(missing)


def groups(model: nn.Module) -> list[tuple[str, Any]]:
    """Every parameter group under the model with the name of its (first) module, in `named_modules` order."""
    found: dict[int, tuple[str, Any]] = {}
    for name, module in model.named_modules():
        state_of = getattr(module, "_get_fsdp_state", None)
        if state_of is None:
            continue
        state = state_of()
        in_state = getattr(state, "_fsdp_param_groups", None)  # torch before 2.12 has one group at most
        if in_state is None:
            single = getattr(state, "_fsdp_param_group", None)
            in_state = [single] if single is not None else []
        for group in in_state:
            found.setdefault(id(group), (name, group))
    return list(found.values())


def wrapped_modules(model: nn.Module) -> list[str]:
    """Names of the modules that `fully_shard` was called on, whether they own parameters or not."""
    return [name for name, module in model.named_modules() if hasattr(module, "_get_fsdp_state")]


def param_dtype(model: nn.Module) -> torch.dtype | None:
    """What gathered parameters are cast to; None: they stay as they are."""
    found = groups(model)
    dtype: torch.dtype | None = getattr(getattr(found[0][1], "mp_policy", None), "param_dtype", None) if found else None
    return dtype


def unshard_asynchronously(model: nn.Module) -> bool:
    """Lets explicitly prefetched all-gathers run beside compute on a backend without streams; False if it cannot."""
    switch = getattr(model, "_set_unshard_async_op", None)
    if switch is None:
        return False
    switch(True)
    return True


PREFETCH_LISTS = ("_states_to_forward_prefetch", "_states_to_backward_prefetch")


def prefetching(model: nn.Module) -> dict[str, str | int | bool | None]:
    """How many units are gathered ahead of need, and how; None: not readable.

    Numbers are the longest list that a module was given. Without one in backward, PyTorch gathers one unit ahead there.
    """
    getters = [getattr(module, "_get_fsdp_state", None) for module in model.modules()]
    states = [state_of() for state_of in getters if state_of is not None]
    ahead = [
        max((len(getattr(state, name)) for state in states), default=0)
        if all(hasattr(state, name) for state in states)
        else None
        for name in PREFETCH_LISTS
    ]
    found = [group for _, group in groups(model)]
    return {
        "forward_prefetch": ahead[0],
        "backward_prefetch": "default" if ahead[1] == 0 else ahead[1],
        "asynchronous_unshard": getattr(found[0], "unshard_async_op", None) if found else None,
        "reduce_scatter_buffers": getattr(getattr(found[0], "comm_ctx", None), "reduce_scatter_max_input_buffers", None)
        if found
        else None,
    }


def shard_group_size(group: Any) -> int:
    return int(getattr(group.mesh_info, "shard_mesh_size", 1))


def replicas(group: Any) -> int:
    return int(getattr(group.mesh_info, "replicate_mesh_size", 1))


def ranks_beside(group: Any) -> int:
    """Ranks that split the group's parameters in other ways than FSDP, such as tensor parallelism: 1 for none."""
    params = getattr(group, "fsdp_params", None) or ()
    mesh = getattr(getattr(params[0], "_spmd_mesh", None), "size", None) if params else None
    return max(1, int(mesh()) // (shard_group_size(group) * replicas(group))) if mesh is not None else 1


def offloads(group: Any) -> bool:
    return type(getattr(group, "offload_policy", None)).__name__ == "CPUOffloadPolicy"


def kept_after_forward(group: Any) -> int | None:
    """Ranks over which the group's parameters stay split between forward and backward; None: kept whole."""
    mesh = getattr(group, "post_forward_mesh_info", None)
    return None if mesh is None else int(getattr(mesh, "shard_mesh_size", 1))


class Fsdp2Unit:
    """One parameter group. `memory` costs a few attribute reads per parameter of the group and never touches data."""

    def __init__(self, name: str, group: Any) -> None:
        self.name = name
        self.owner = group
        self._params: list[Any] = list(group.fsdp_params)
        self.params = sum(param.sharded_param.numel() for param in self._params)  # of a DTensor: over all ranks
        self.trainable_params = sum(p.sharded_param.numel() for p in self._params if p.sharded_param.requires_grad)
        self.param_bytes = sum(p.sharded_param.numel() * p.sharded_param.element_size() for p in self._params)
        self.shard_bytes = sum(storage_bytes(param._sharded_param_data) for param in self._params)
        compute = group.mp_policy.param_dtype
        sizes = [prod(p.padded_sharded_param_size) * (compute or p.sharded_param.dtype).itemsize for p in self._params]
        self.unsharded_bytes = shard_group_size(group) * sum(sizes)
        self._reduced = group.mp_policy.reduce_dtype or compute
        self._grad_shard_bytes: int | None = None

    @property
    def reduce_bytes(self) -> int:
        """Of the parameters that are trained; each has a gradient of its own."""
        trained = (param for param in self._params if param.sharded_param.requires_grad)
        sizes = [prod(p.padded_sharded_param_size) * (self._reduced or p.sharded_param.dtype).itemsize for p in trained]
        nbytes: int = shard_group_size(self.owner) * sum(sizes)
        return nbytes

    @property
    def kept(self) -> bool:
        """A root decides it in its first forward."""
        return kept_after_forward(self.owner) is None

    def is_gathered(self, memory: tuple[int, int, int, int]) -> bool:
        return bool(self.owner.is_unsharded) or self.owner._all_gather_result is not None

    def parts(self, names: Names) -> UnitParts:
        """The group's parameters."""
        sharded = [param.sharded_param for param in self._params]
        parts = [
            Part(names.get(id(p), ()), p.numel(), local_tensor(p).numel(), p.element_size(), p.requires_grad)
            for p in sharded
        ]
        return UnitParts(parts, self.shard_bytes, shard_group_size(self.owner) > 1, one_gradient=False)

    def memory(self) -> tuple[int, int, int, int]:
        """Bytes of param_unsharded, grad_shard, grad_unsharded and comm_buffer that the group holds now."""
        group = self.owner
        unsharded = self.unsharded_bytes if group.is_unsharded else 0
        if group.is_sharded_post_forward:
            unsharded += sum(storage_bytes(p._sharded_post_forward_param_data) for p in self._params)
        reduced = unreduced = 0
        if any(param.sharded_param.grad is not None for param in self._params):
            if self._grad_shard_bytes is None:
                grads = [local_tensor(p.sharded_param.grad) for p in self._params if p.sharded_param.grad is not None]
                here = getattr(group, "device", grads[0].device).type
                self._grad_shard_bytes = _distinct_bytes([grad for grad in grads if grad.device.type == here])
            reduced = self._grad_shard_bytes
        else:
            self._grad_shard_bytes = None
        for param in self._params:
            whole = getattr(param, "_unsharded_param", None)
            if whole is not None and whole.grad is not None:
                unreduced += whole.grad.numel() * whole.grad.element_size()
            if param.unsharded_accumulated_grad is not None:
                unreduced += storage_bytes(local_tensor(param.unsharded_accumulated_grad))
        if group._partial_reduce_output is not None:
            unreduced += storage_bytes(group._partial_reduce_output)
        pending = group._all_gather_result
        buffers = storage_bytes(pending.all_gather_output) if pending is not None else 0
        all_reduce = _all_reduce_input(group)
        if all_reduce is not None:
            buffers += storage_bytes(all_reduce)
        return unsharded, reduced, unreduced, buffers

    def tensors(self) -> Iterator[tuple[str, Tensor | None]]:
        """Every tensor that the group holds now, with its category; a storage may come twice."""
        group = self.owner
        for param in self._params:
            yield "param_shard", param._sharded_param_data
            yield "param_shard", local_tensor(param.sharded_param)
            yield "param_unsharded", getattr(param, "_sharded_post_forward_param_data", None)
            for tensor in (*param.all_gather_outputs, *getattr(param, "_unsharded_inner_tensors", ())):
                yield "param_unsharded", tensor
            if param.sharded_param.grad is not None:
                yield "grad_shard", local_tensor(param.sharded_param.grad)
            whole = getattr(param, "_unsharded_param", None)
            for grad in (None if whole is None else whole.grad, param.unsharded_accumulated_grad):
                if grad is not None:
                    yield "grad_unsharded", local_tensor(grad)
        yield "grad_unsharded", group._partial_reduce_output
        if group._all_gather_result is not None:
            yield "comm_buffer", group._all_gather_result.all_gather_output
        yield "comm_buffer", _all_reduce_input(group)


class Fsdp2Buffers:
    """The collective buffers that outlive their group's turn: they belong to the context all groups of a root share.

    An all-gather's output in forward is held until the next group has copied its own out, or until the root's forward
    ends; a reduce-scatter's input until the next group reduces, or until backward ends.
    """

    def __init__(self, groups: list[Any]) -> None:
        self._groups = groups

    def memory(self) -> tuple[int, int, int, int]:
        return 0, 0, 0, sum(storage_bytes(tensor) for _, tensor in self.tensors() if tensor is not None)

    def tensors(self) -> Iterator[tuple[str, Tensor | None]]:
        # One per root; which that is, a first forward decides.
        for context in {id(group.comm_ctx): group.comm_ctx for group in self._groups}.values():
            gathered = getattr(context, "all_gather_state", None)
            if gathered is not None:
                yield "comm_buffer", gathered.all_gather_result.all_gather_output
            states = getattr(context, "reduce_scatter_states", None)
            if states is None:  # torch before 2.12 has one
                states = [getattr(context, "reduce_scatter_state", None)]
            for state in states:
                if state is not None:
                    yield "comm_buffer", state.reduce_scatter_input


def install(interposer: Interposer, observer: Observer) -> None:
    """Wraps the methods of a parameter group at which its memory changes, or its collectives are issued or waited for."""
    group_class = _group_class()
    interposer.wrap(group_class, "unshard", lambda original: _unshard(observer, original))
    interposer.wrap(group_class, "wait_for_unshard", lambda original: _wait_for_unshard(observer, original))
    interposer.wrap(group_class, "reshard", lambda original: _reshard(observer, original))
    interposer.wrap(group_class, "post_backward", lambda original: _post_backward(observer, original))
    if hasattr(group_class, WAIT):
        interposer.wrap(group_class, WAIT, lambda original: _finalize_backward(observer, original))


def _unshard(observer: Observer, original: Callable[..., Any]) -> Callable[..., Any]:
    def unshard(group: Any, *args: Any, **kwargs: Any) -> Any:
        if not observer.on:
            return original(group, *args, **kwargs)
        observer.begin(group)
        try:
            result = original(group, *args, **kwargs)
        finally:
            observer.end()
        observer.changed(group)
        return result

    return unshard


def _wait_for_unshard(observer: Observer, original: Callable[..., Any]) -> Callable[..., Any]:
    def wait_for_unshard(group: Any) -> Any:
        pending = group._all_gather_result if observer.on else None
        if pending is None:
            return original(group)
        observer.waiting(group)
        # The original waits for an asynchronous all-gather and copies out in one call: waiting here first tells the two
        # apart. On CUDA it is the compute stream that waits, and goes on at once when the original waits again.
        if isinstance(pending.all_gather_work, dist.Work):
            pending.all_gather_work.wait()
        observer.waited(group)
        result = original(group)
        held = getattr(group.comm_ctx, "all_gather_state", None)
        deferred = held is not None and held.all_gather_result is pending
        observer.unsharded(group, 0 if deferred else storage_bytes(pending.all_gather_output))
        return result

    return wait_for_unshard


def _reshard(observer: Observer, original: Callable[..., Any]) -> Callable[..., Any]:
    def reshard(group: Any) -> Any:
        if not observer.on:
            return original(group)
        observer.changed(group)  # what the unit computed and its parameters are both there: the highest moment is here
        result = original(group)
        observer.changed(group)
        return result

    return reshard


def _post_backward(observer: Observer, original: Callable[..., Any]) -> Callable[..., Any]:
    def post_backward(group: Any, *args: Any) -> Any:
        if not observer.on:
            return original(group, *args)
        observer.reducing(group)
        if (newest := _left_under_way(group)) is not None:
            observer.reductions_needed(newest)
        observer.begin(group)
        try:
            result = original(group, *args)
        finally:
            observer.end()
            observer.reduced(group)
        return result

    return post_backward


def _finalize_backward(observer: Observer, original: Callable[..., Any]) -> Callable[..., Any]:
    def finalize_backward(group: Any) -> Any:
        if observer.on:
            observer.reductions_needed()
        return original(group)

    return finalize_backward


def _left_under_way(group: Any) -> int | None:
    """How many reduce-scatters compute does not wait for in this group's `post_backward`; None: it waits for none there.

    It waits for the older ones to have their input buffers back. Before torch 2.13 one buffer was in flight; of several
    groups of a module, the last one waits for all.
    """
    if not getattr(group, "reduce_grads", True):
        return None
    if getattr(group, "_param_group_index", 0) != getattr(group, "_num_param_groups", 1) - 1:
        return None
    return int(getattr(group.comm_ctx, "reduce_scatter_max_input_buffers", 1)) - 1


def _all_reduce_input(group: Any) -> Tensor | None:
    """The buffer of a hybrid all-reduce, if it is not the gradient's own storage (it is unless types differ)."""
    state = getattr(group, "_all_reduce_state", None)
    if state is None or state[0].dtype == getattr(group, "_orig_dtype", None):
        return None
    buffer: Tensor = state[0]
    return buffer


def _distinct_bytes(tensors: list[Tensor]) -> int:
    sizes = {tensor.untyped_storage()._cdata: storage_bytes(tensor) for tensor in tensors}
    return sum(sizes.values())


def is_wrapped(model: nn.Module) -> bool:
    return any(hasattr(module, "_get_fsdp_state") for module in model.modules())
