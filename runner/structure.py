"""What a rank trains: its units, the strategy that PyTorch really runs, and the figures that a fair share is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from fsdp_tui.runner import facts, torch_ddp, torch_fsdp1, torch_fsdp2
from fsdp_tui.runner.interpose import OK, Interposer, Observer, not_available
from fsdp_tui.runner.ledger import GRAD_SHARD, ROOT, Holder, Ledger, Unit
from fsdp_tui.runner.sharding import DTYPES, applied_to
from fsdp_tui.runner.storages import Tally, local_tensor, storage_bytes
from fsdp_tui.runner.wrapping import repeated_blocks
from fsdp_tui.telemetry import messages

WRAPPER_PREFIXES = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "_forward_module")
"""Of PyTorch's wrappers, and Lightning Fabric's."""

Detail = dict[str, str | int | float | bool | None]


def unit_name(module_name: str) -> str:
    """The module's name in the model as its author wrote it."""
    parts = [part for part in module_name.split(".") if part and part not in WRAPPER_PREFIXES]
    return ".".join(parts) or ROOT


@dataclass(slots=True)
class Wrapped:
    """How a model is wrapped: its units, and how to be told of their events."""

    api: str
    effective: str
    shard_group: int = 1
    replicas: int = 1
    beside: int = 1
    """Ranks along the other dimensions of the mesh, which split the same model further: tensor parallelism's."""
    units: Sequence[Unit] = ()
    shared: Sequence[Holder] = ()
    plain: Sequence[nn.Parameter] = ()
    """Parameters that no unit manages."""
    ddp: Any = None
    install: Callable[[Interposer, Observer], None] | None = None
    check: str = OK
    facts_check: str = OK
    offloaded: bool = False
    """Whether parameters, gradients and optimizer states live on the host."""
    blind: frozenset[str] = field(default_factory=frozenset)
    """Memory categories that cannot be known, because `check` failed."""


BLIND_WITHOUT_UNITS = frozenset({"param_unsharded", "grad_unsharded", "comm_buffer"})


def inspect(model: nn.Module, device_type: str) -> Wrapped:
    """Finds out how the model is wrapped, from the wrappers themselves."""
    wrapped = _inspect(model)
    wrapped.plain = _unmanaged(model, wrapped.units, device_type)
    return wrapped


def _inspect(model: nn.Module) -> Wrapped:
    if torch_fsdp1.is_wrapped(model):
        return _fsdp1(model)
    if torch_fsdp2.is_wrapped(model):
        return _fsdp2(model)
    ddp = torch_ddp.find(model)
    if ddp is not None:
        replicas = dist.get_world_size(ddp.process_group)
        said = torch_ddp.check(ddp)
        blind = frozenset() if said == OK else frozenset({"comm_buffer"})
        return Wrapped("ddp", "ddp", replicas=replicas, ddp=ddp, check=said, blind=blind)
    return Wrapped("single", "single")


def is_wrapped(module: nn.Module) -> bool:
    """Whether a wrapper of PyTorch's reduces or shards something in it."""
    return torch_fsdp1.is_wrapped(module) or torch_fsdp2.is_wrapped(module) or torch_ddp.find(module) is not None


def spans_all_ranks(model: nn.Module) -> bool:
    """Whether every rank trains a part or a replica of this model, so that all of them step together."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    wrapped = _inspect(model)
    return wrapped.shard_group * wrapped.replicas * wrapped.beside == dist.get_world_size() > 1


def together(roots: Sequence[nn.Module]) -> nn.Module:
    """One module that holds them all, by their classes' names; the root itself if it is the only one."""
    if len(roots) == 1:
        return roots[0]
    holder = nn.Module()
    for root in roots:
        name = _own_class(root).__name__.lower()
        taken = sum(other == name or other.startswith(f"{name}_") for other, _ in holder.named_children())
        holder.add_module(f"{name}_{taken + 1}" if taken else name, root)
    return holder


def _own_class(root: nn.Module) -> type:
    """Of the module as its author wrote it: `fully_shard` makes a class of its own, the other wrappers hold it."""
    inner = getattr(root, "module", root) if torch_fsdp1.is_wrapper(root) or torch_ddp.find(root) is root else root
    return next(kind for kind in type(inner).__mro__ if not kind.__name__.startswith("FSDP"))


def parameters_only(params: Sequence[nn.Parameter]) -> nn.Module:
    """A module that has these parameters and is never called."""
    return nn.ParameterList(params)


def unreadable(model: nn.Module, error: Exception) -> Wrapped:
    """What is left to say when the wrappers cannot be understood: parameters as they are, the rest not known."""
    applied = applied_to(model)
    return Wrapped(
        api="unknown",
        effective=applied.sharding.strategy if applied is not None else "unknown",
        plain=list(model.parameters()),
        check=not_available(f"{type(error).__name__}: {error}"),
        blind=BLIND_WITHOUT_UNITS,
    )


def _text(api: str, sharding: str, shard: int, replicas: int) -> str:
    if sharding.startswith("hybrid"):
        return f"{api}:{sharding}={replicas}x{shard}" if shard > 1 else f"{api}:no_shard"
    return f"{api}:{sharding}"


def _fsdp1(model: nn.Module) -> Wrapped:
    sharding, shard, replicas = torch_fsdp1.root_strategy(model)
    if sharding == "no_shard":
        shard, replicas = 1, shard * replicas
    wrapped = Wrapped("fsdp1", _text("fsdp1", sharding, shard, replicas), shard, replicas)
    handles = torch_fsdp1.handles(model)
    said = [torch_fsdp1.check(), *(torch_fsdp1.check_handle(handle) for _, handle in handles[:1])]
    wrapped.check = next((text for text in said if text != OK), OK)
    if wrapped.check != OK:
        wrapped.blind = BLIND_WITHOUT_UNITS
        return wrapped
    roots = torch_fsdp1.outermost(model)
    wrapped.units = [
        torch_fsdp1.Fsdp1Unit(unit_name(name), handle, root=id(handle) in roots) for name, handle in handles
    ]
    wrapped.facts_check = torch_fsdp1.check_facts(handles[0][1]) if handles else OK
    wrapped.offloaded = any(torch_fsdp1.offloads(handle) for _, handle in handles)
    wrapped.install = torch_fsdp1.install
    return wrapped


def _fsdp2(model: nn.Module) -> Wrapped:
    wrapped = Wrapped("fsdp2", "fsdp2:full_shard", check=torch_fsdp2.check(), blind=BLIND_WITHOUT_UNITS)
    groups = torch_fsdp2.groups(model)
    if wrapped.check == OK and groups:
        wrapped.check = torch_fsdp2.check_group(groups[0][1])
    if wrapped.check != OK or not groups:
        if not groups:
            wrapped.check = not_available("this torch shows no FSDP2 parameter groups")
        applied = applied_to(model)
        if applied is not None:
            wrapped.effective = applied.sharding.strategy
        return wrapped
    leaves = [group for _, group in groups]
    wrapped.shard_group = torch_fsdp2.shard_group_size(leaves[0])
    wrapped.replicas = torch_fsdp2.replicas(leaves[0])
    wrapped.beside = torch_fsdp2.ranks_beside(leaves[0])
    wrapped.effective = _fsdp2_text(wrapped, groups, torch_fsdp2.wrapped_modules(model))
    wrapped.units = [torch_fsdp2.Fsdp2Unit(unit_name(name), group) for name, group in groups]
    wrapped.shared = [torch_fsdp2.Fsdp2Buffers(leaves)]
    wrapped.offloaded = any(torch_fsdp2.offloads(group) for group in leaves)
    wrapped.install = torch_fsdp2.install
    wrapped.blind = frozenset()
    return wrapped


def _fsdp2_text(wrapped: Wrapped, groups: list[tuple[str, Any]], modules: list[str]) -> str:
    """Text form from the mesh and the reshard flags. A root is kept after forward by default, so it is no witness."""
    if wrapped.shard_group == 1:
        return "fsdp2:no_shard"
    inner = [
        group
        for name, group in groups
        if any(name != around and (not around or name.startswith(f"{around}.")) for around in modules)
    ]
    kept = torch_fsdp2.kept_after_forward(inner[0] if inner else groups[0][1])
    if wrapped.replicas > 1:
        name = "hybrid_shard_zero2" if kept is None and inner else "hybrid_shard"
        return _text("fsdp2", name, wrapped.shard_group, wrapped.replicas)
    if kept is None and inner:
        return "fsdp2:shard_grad_op"
    if kept is not None and kept < wrapped.shard_group:
        return f"fsdp2:reshard={kept}"
    return "fsdp2:full_shard"


def detail_of(model: nn.Module, wrapped: Wrapped) -> Detail:
    """What was asked for and what came of it, for the record."""
    detail: Detail = {"shard_group": wrapped.shard_group, "replicas": wrapped.replicas, "units": len(wrapped.units)}
    beside = wrapped.beside if wrapped.api != "single" else ranks_of_tensors(model)
    if beside > 1:
        detail["beside"] = beside
    if wrapped.check == OK and wrapped.api == "fsdp1":
        detail |= torch_fsdp1.prefetching(model) | _precision(torch_fsdp1.param_dtype(model))
    elif wrapped.check == OK and wrapped.api == "fsdp2":
        detail |= torch_fsdp2.prefetching(model) | _precision(torch_fsdp2.param_dtype(model))
    applied = applied_to(model)
    if applied is not None:
        sharding = applied.sharding
        detail |= {
            "requested": sharding.strategy,
            "wrap": sharding.wrap,
            "wrapped_modules": applied.wrapped_modules,
            "precision": sharding.precision,
            "reduce": sharding.reduce or "fp32",
            "checkpointing": sharding.checkpointing,
            "cpu_offload": sharding.cpu_offload,
            "prefetch": sharding.prefetch,
            "compile": sharding.compile,
        }
    return detail


def ranks_of_tensors(model: nn.Module) -> int:
    """Ranks that the model's own DTensors are split over, as tensor parallelism without FSDP makes them; 1 for none."""
    meshes = (getattr(param, "device_mesh", None) for param in model.parameters())
    return max((int(mesh.size()) for mesh in meshes if mesh is not None), default=1)


def _precision(dtype: torch.dtype | None) -> Detail:
    """The type that the wrappers cast gathered parameters to, if they do."""
    return {"precision": next((name for name, known in DTYPES.items() if known == dtype), str(dtype))} if dtype else {}


def read_facts(
    model: nn.Module, wrapped: Wrapped, optimizers: Sequence[Optimizer], device_type: str
) -> tuple[facts.Facts, str]:
    """The facts of the model, and "ok" or why they are not known. To be read before the first forward."""
    said = next((text for text in (wrapped.check, wrapped.facts_check) if text != OK), OK)
    if said != OK:
        return facts.NOT_KNOWN, said
    outermost: Any = model
    model = outermost.module if wrapped.ddp is model else model
    try:
        names = facts.names_of(model, unit_name)
        blocks = {id(block) for block in repeated_blocks(model)}
        read = facts.gather(
            model,
            [unit.parts(names) for unit in wrapped.units],
            wrapped.plain,
            names,
            # Wrappers have their block's name, and FSDP1's root is of the same class as its wrapped blocks.
            {unit_name(name) for name, module in model.named_modules() if id(module) in blocks} - {ROOT},
            optimizers,
            fsdp=wrapped.api.startswith("fsdp"),
            ranks=wrapped.shard_group * wrapped.replicas,
            device_type=device_type,
        )
    except Exception as error:  # noqa: BLE001  # somebody's model: a fact that cannot be read is not known
        return facts.NOT_KNOWN, not_available(f"{type(error).__name__}: {error}")
    return read, OK


def build(
    rank: int,
    model: nn.Module,
    wrapped: Wrapped,
    ledger: Ledger | None,
    groups: list[list[int]],
    probes: dict[str, str],
    known: facts.Facts = facts.NOT_KNOWN,
    device_type: str = "cpu",
) -> messages.Structure:
    """The message that describes all this.

    `ideal_state_bytes` is (parameters + gradients + optimizer states) / shard group size: bytes of the unsharded model as
    stored, its trainable part once more for gradients, and that part times the bytes the optimizer keeps per byte of
    parameter (measured; AdamW: 2). None until the optimizer has states.
    """
    params, trainable, nbytes, trainable_bytes = _model_size(wrapped)
    ratio = None if ledger is None else ledger.optimizer_bytes_per_param_byte()
    ideal = None if ratio is None else round((nbytes + trainable_bytes * (1 + ratio)) / wrapped.shard_group)
    return messages.Structure(
        rank=rank,
        effective=wrapped.effective,
        detail=detail_of(model, wrapped),
        units=[
            messages.Unit(
                unit.name,
                unit.params,
                unit.shard_bytes,
                unit.unsharded_bytes,
                **(known.units[at]._asdict() if at < len(known.units) else {}),
                reduce_bytes=unit.reduce_bytes,
                kept=unit.kept,
            )
            for at, unit in enumerate(wrapped.units)
        ],
        buckets=torch_ddp.bucket_bytes(wrapped.ddp) if wrapped.ddp is not None and wrapped.check == OK else [],
        groups=[list(ranks) for ranks in groups],
        params=params,
        trainable_params=trainable,
        param_bytes=nbytes,
        ideal_state_bytes=ideal,
        probes=dict(probes),
        tied=list(known.tied),
        padding_bytes=known.padding_bytes,
        frozen_bytes=known.frozen_bytes,
        buffer_bytes=known.buffer_bytes,
        ignored_bytes=known.ignored_bytes,
        ignored_trainable_bytes=known.ignored_trainable_bytes,
        ignored=list(known.ignored),
        replicated_bytes=known.replicated_bytes,
        host_bytes=_host_bytes(wrapped, ledger, device_type),
        host_is_device=device_type == "cpu",
        optimizer_expected_bytes=known.optimizer_expected_bytes,
        no_sync_bytes=None if ledger is None or "grad_unsharded" in wrapped.blind else ledger.kept_gradients,
        outside=[] if ledger is None else [messages.Outside(*group) for group in ledger.outside[: facts.NAMED]],
        blocks=known.blocks,
        largest_block_params=known.largest_block_params,
        optimized=known.optimized,
    )


def _host_bytes(wrapped: Wrapped, ledger: Ledger | None, device_type: str) -> int | None:
    """Offloaded bytes. On a CPU they are in the categories too: the host's memory is the device's."""
    if ledger is None:
        return None
    if device_type != "cpu":
        return ledger.host_bytes
    if not wrapped.offloaded:
        return 0
    return sum(nbytes for name, nbytes in ledger.static.items() if name != "buffer") + ledger.live[GRAD_SHARD]


def _model_size(wrapped: Wrapped) -> tuple[int, int, int, int]:
    """Elements, trainable elements, bytes and trainable bytes of the unsharded model, a tied parameter once."""
    params = trainable = nbytes = trainable_bytes = 0
    for unit in wrapped.units:
        params += unit.params
        trainable += unit.trainable_params
        nbytes += unit.param_bytes
        trainable_bytes += unit.param_bytes * unit.trainable_params // max(1, unit.params)
    for param in wrapped.plain:
        size = param.numel() * param.element_size()
        params += param.numel()
        nbytes += size
        if param.requires_grad:
            trainable += param.numel()
            trainable_bytes += size
    return params, trainable, nbytes, trainable_bytes


def _unmanaged(model: nn.Module, holders: Sequence[Holder], device_type: str) -> list[nn.Parameter]:
    """Parameters whose storage no unit holds: all for single and ddp, ignored ones under FSDP."""
    managed = Tally(device_type)
    for holder in holders:
        managed.add_all(holder.tensors())
    return [
        param
        for param in model.parameters()
        if storage_bytes(local_tensor(param)) and local_tensor(param).untyped_storage()._cdata not in managed.seen
    ]


def current_device(model: nn.Module) -> torch.device:
    """The device of this rank: the current one where there is CUDA and the model uses it, else the CPU."""
    if torch.cuda.is_available() and any(parameter.is_cuda for parameter in model.parameters()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
