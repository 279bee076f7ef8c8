"""`shard`: places a model's states on the ranks by the strategy that was passed, or launched."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.checkpoint import checkpoint

from fsdp_tui.runner import override, torch_fsdp2
from fsdp_tui.runner.wrapping import modules_to_wrap, repeated_blocks
from fsdp_tui.telemetry.launch import Sharding
from fsdp_tui.telemetry.strategy import HYBRID, Strategy, StrategyError, misfits, parse_strategy

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class ShardingError(RuntimeError):
    """The model cannot be sharded as asked; the message is one line."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What `shard` did to a model. `wrapped_modules` are those that the wrap policy matched."""

    sharding: Sharding
    wrapped_modules: int


_applied: weakref.WeakKeyDictionary[nn.Module, Applied] = weakref.WeakKeyDictionary()


def applied_to(model: nn.Module) -> Applied | None:
    """What `shard` did to this model; None if it was sharded by other means."""
    return _applied.get(model)


def shard(
    model: nn.Module,
    strategy: str | None = None,
    *,
    wrap: str | None = None,
    precision: str | None = None,
    reduce: str | None = None,
    checkpointing: bool | None = None,
    cpu_offload: bool | None = None,
    prefetch: int | None = None,
    compile: bool | None = None,
) -> nn.Module:
    """Moves the model to this rank's device and shards it; returns the model to train, to make the optimizer from.

    Each argument that is not given comes from the launch (`FSDP_TUI_STRATEGY`, `FSDP_TUI_SHARDING`), else from the
    defaults of `telemetry.launch.Sharding`. Under torchrun the process group is initialised if it is not yet.

    Raises:
        ShardingError: several ranks and no strategy, an unknown one, or one that this machine cannot run.
    """
    world_size = dist.get_world_size() if _initialised() else int(os.environ.get("WORLD_SIZE", "1"))
    wanted = _wanted(
        world_size,
        strategy=strategy,
        wrap=wrap,
        precision=precision,
        reduce=reduce,
        checkpointing=checkpointing,
        cpu_offload=cpu_offload,
        prefetch=prefetch,
        compile=compile,
    )
    accelerator = torch.cuda.is_available()
    try:
        parsed = parse_strategy(wanted.strategy)
        problem = next(_problems(parsed, wanted, world_size, accelerator), None)
        if problem is not None:
            raise ShardingError(problem)
        units = modules_to_wrap(model, wanted.wrap) if parsed.is_fsdp else []
    except StrategyError as error:
        raise ShardingError(str(error)) from None
    parsed = parsed.with_mesh(world_size)
    device = _prepare_process(parsed, accelerator)
    model = model.to(device)
    blocks = repeated_blocks(model)
    if wanted.checkpointing and not blocks:
        raise ShardingError("--checkpointing recomputes repeated blocks, and this model has none")
    if parsed.is_fsdp and wanted.wrap != "none" and not units and _is_first_rank():
        print(f"fsdp-tui: wrap {wanted.wrap} matched no module: the whole model is one unit", file=sys.stderr)
    if wanted.checkpointing:
        checkpoint_blocks(blocks)
    with override.suspended():
        if parsed.api == "ddp":
            model = nn.parallel.DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
        elif parsed.api == "fsdp1":
            model = _fully_shard_1(model, parsed, wanted, units, device, world_size)
        elif parsed.api == "fsdp2":
            _fully_shard_2(model, parsed, wanted, units, device, world_size)
    _applied[model] = Applied(msgspec.structs.replace(wanted, strategy=parsed.text), len(units))
    return model


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()


def _is_first_rank() -> bool:
    return not _initialised() or dist.get_rank() == 0


def _wanted(world_size: int, **given: Any) -> Sharding:
    launched: dict[str, Any] = {}
    if text := os.environ.get("FSDP_TUI_SHARDING"):
        try:
            launched = msgspec.structs.asdict(msgspec.json.decode(text, type=Sharding))
        except msgspec.MsgspecError as error:
            raise ShardingError(f"FSDP_TUI_SHARDING is no JSON of a sharding: {error}") from None
    if text := os.environ.get("FSDP_TUI_STRATEGY"):
        launched["strategy"] = text
    words = launched | {name: value for name, value in given.items() if value is not None}
    if "strategy" not in words:
        if world_size > 1:
            raise ShardingError(
                f"{world_size} ranks and no strategy: pass one, as in shard(model, 'fsdp2:full_shard'),"
                " set FSDP_TUI_STRATEGY, or launch with fsdp-tui run"
            )
        words["strategy"] = "single"
    try:
        return msgspec.convert(words, Sharding)
    except msgspec.ValidationError as error:
        raise ShardingError(str(error)) from None


def _problems(strategy: Strategy, wanted: Sharding, world_size: int, accelerator: bool) -> Iterator[str]:
    major, minor = torch.__version__.split(".")[:2]
    yield from misfits(
        strategy,
        world_size=world_size,
        accelerator=accelerator,
        torch_version=(int(major), int(minor)),
        cpu_offload=wanted.cpu_offload,
        precision=wanted.precision,
        prefetch=wanted.prefetch,
        compiled=wanted.compile,
        # The default policy may stay in place when a script's own strategy has no units.
        wrap=wanted.wrap,
    )


def _prepare_process(strategy: Strategy, accelerator: bool) -> torch.device:
    """Initialises the process group if the strategy needs one and nobody has; gives this rank's device."""
    device = torch.device("cpu")
    if accelerator:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if strategy.api != "single" and not _initialised():
        backend = "nccl" if accelerator else "gloo"
        if "RANK" in os.environ and "MASTER_ADDR" in os.environ:
            dist.init_process_group(backend)
        else:  # one process, started by hand
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    return device


def _mesh(strategy: Strategy, device: torch.device, world_size: int) -> DeviceMesh:
    """Always explicit: without one FSDP1 takes a CPU "node" for a single rank and never reduces between them."""
    if strategy.sharding in HYBRID:
        assert strategy.replicate is not None
        assert strategy.shard is not None
        shape: tuple[int, ...] = (strategy.replicate, strategy.shard)
    elif strategy.api == "fsdp2" and strategy.sharding == "no_shard":
        shape = (world_size, 1)
    else:
        shape = (world_size,)
    names = ("replicate", "shard") if len(shape) == 2 else ("shard",)
    return init_device_mesh(device.type, shape, mesh_dim_names=names)


def _fully_shard_1(
    model: nn.Module,
    strategy: Strategy,
    wanted: Sharding,
    units: list[nn.Module],
    device: torch.device,
    world_size: int,
) -> nn.Module:
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import CustomPolicy

    if strategy.sharding in HYBRID and strategy.shard == 1:
        # PyTorch makes this no_shard within each group of one rank, and the ranks never reduce their gradients. The same
        # placement that trains right is no_shard over all of them; that it was asked for as hybrid stays on record.
        strategy = Strategy("fsdp1", "no_shard")
    assert strategy.sharding is not None
    name = strategy.sharding.upper()
    chosen = {id(unit) for unit in units}
    with warnings.catch_warnings():
        # Both are what was asked for: NO_SHARD is deprecated, and one rank makes FULL_SHARD no_shard (shown as changed).
        warnings.filterwarnings("ignore", message=".*NO_SHARD.*")
        return FullyShardedDataParallel(
            model,
            device_mesh=_mesh(strategy, device, world_size),
            sharding_strategy=ShardingStrategy["_HYBRID_SHARD_ZERO2" if name == "HYBRID_SHARD_ZERO2" else name],
            auto_wrap_policy=CustomPolicy(lambda module: id(module) in chosen) if units else None,
            mixed_precision=mixed_precision_1(wanted),
            cpu_offload=CPUOffload(offload_params=True) if wanted.cpu_offload else None,
            forward_prefetch=wanted.prefetch > 0,
            device_id=device,
            use_orig_params=True,
        )


def _fully_shard_2(
    model: nn.Module,
    strategy: Strategy,
    wanted: Sharding,
    units: list[nn.Module],
    device: torch.device,
    world_size: int,
) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    mixed = mixed_precision_2(wanted)
    offload = CPUOffloadPolicy(pin_memory=device.type != "cpu") if wanted.cpu_offload else OffloadPolicy()
    mesh = _mesh(strategy, device, world_size)
    keep = strategy.sharding in ("shard_grad_op", "hybrid_shard_zero2")
    if wanted.compile:
        compile_blocks(repeated_blocks(model) or units)
    for unit in units:
        after_forward = strategy.reshard_to if strategy.sharding == "reshard" else not keep
        fully_shard(unit, mesh=mesh, reshard_after_forward=after_forward, mp_policy=mixed, offload_policy=offload)
    # By default PyTorch keeps the root's parameters after forward, since backward needs them at once.
    fully_shard(
        model, mesh=mesh, reshard_after_forward=False if keep else None, mp_policy=mixed, offload_policy=offload
    )
    if wanted.prefetch:
        prefetch_units(model, wanted.prefetch)


def mixed_precision_1(wanted: Sharding) -> Any:
    """FSDP1's policy for the precision asked for; None for its default."""
    from torch.distributed.fsdp import MixedPrecision

    if wanted.precision == "fp32":
        return None
    return MixedPrecision(param_dtype=DTYPES[wanted.precision], reduce_dtype=DTYPES[wanted.reduce or "fp32"])


def mixed_precision_2(wanted: Sharding) -> Any:
    """FSDP2's policy for the precision asked for."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if wanted.precision == "fp32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=DTYPES[wanted.precision], reduce_dtype=DTYPES[wanted.reduce or "fp32"])


def checkpoint_blocks(blocks: list[nn.Module]) -> None:
    """Has each block's activations recomputed in backward."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def compile_blocks(blocks: list[nn.Module]) -> None:
    for block in blocks:
        block.forward = torch.compile(block.forward)


def prefetch_units(root: Any, ahead: int) -> bool:
    """Gathers the next `ahead` units of the order in which the modules are registered, in forward and in backward.

    False if the root is not wrapped with `fully_shard`: then nothing is changed.
    """
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(root, FSDPModule):
        return False
    modules: Iterable[Any] = root.modules()  # type: ignore[attr-defined]  # it is an nn.Module too
    units = [module for module in modules if isinstance(module, FSDPModule) and module is not root]
    for at, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch(units[at + 1 : at + 1 + ahead])
        unit.set_modules_to_backward_prefetch(units[max(0, at - ahead) : at][::-1])
    root.set_modules_to_forward_prefetch(units[:ahead])
    root.set_modules_to_backward_prefetch(units[::-1][:ahead])
    torch_fsdp2.unshard_asynchronously(root)  # type: ignore[arg-type]
    return True


@contextlib.contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Gradients stay on their rank inside: for every backward of an accumulation but the last.

    Works for a model of any strategy; forward and backward both belong inside. Sharded strategies then keep full-size
    gradients until the last backward.
    """
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
    elif isinstance(model, (FullyShardedDataParallel, nn.parallel.DistributedDataParallel)):
        with model.no_sync():
            yield
    else:
        yield
