"""A script's own sharding calls: what they ask for, and what was asked for from outside in its place.

`FSDP(...)`, `fully_shard(...)` and `DDP(...)` are followed where they are defined, so it does not matter how a script
imports them. What cannot be overridden is refused by name before the first step: a run that quietly did something else
than what was asked for would be compared as if it had.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from fsdp_tui.telemetry.launch import OPTIONS, Sharding
from fsdp_tui.telemetry.strategy import HYBRID, Strategy, StrategyError, misfits, parse_strategy

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

ASKED = "FSDP_TUI_ASKED"
"""Names of the fields of `Sharding` that were asked for, separated by commas; set by `runner.launch`."""
WRAPPERS = {
    "fsdp1": "FullyShardedDataParallel(...)",
    "fsdp2": "fully_shard(...)",
    "ddp": "DistributedDataParallel(...)",
}
FLAGS = {option.field: option.flag for option in OPTIONS}


class Refused(SystemExit):
    """What was asked for cannot be applied to this script. Ends the process with 1 and one line on stderr."""


def refuse(text: str) -> NoReturn:
    raise Refused(f"fsdp-tui refuses: {text}")


_suspended = 0


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Wrappers called inside are ours (`shard`), not the script's."""
    global _suspended
    _suspended += 1
    try:
        yield
    finally:
        _suspended -= 1


class ScriptSharding:
    """Follows the script's calls. `asked` are the fields of `wanted` that replace the script's own choice."""

    def __init__(self, asked: frozenset[str] = frozenset(), wanted: Sharding | None = None) -> None:
        self.asked = asked
        self.wanted = wanted or Sharding()
        self.own: str | None = None
        """Strategy that the script's first call asked for, in text form."""
        self.calls = 0
        """How many there were."""
        self._inside = 0
        self._checked = False
        self._meshes: dict[tuple[int, ...], DeviceMesh] = {}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> ScriptSharding:
        """As it was launched.

        Raises:
            Refused: the environment names something that does not exist.
        """
        asked = frozenset(filter(None, environment.get(ASKED, "").split(",")))
        try:
            text = environment.get("FSDP_TUI_SHARDING")
            wanted = msgspec.json.decode(text, type=Sharding) if text else Sharding()
        except msgspec.MsgspecError as error:
            refuse(f"FSDP_TUI_SHARDING is no JSON of a sharding: {error}")
        if ASKED not in environment and (strategy := environment.get("FSDP_TUI_STRATEGY")):  # set by hand
            asked, wanted = frozenset({"strategy"}), msgspec.structs.replace(wanted, strategy=strategy)
        if unknown := asked - set(Sharding.__struct_fields__):
            refuse(
                f"{ASKED} names {', '.join(sorted(unknown))}: expected some of {', '.join(Sharding.__struct_fields__)}"
            )
        return cls(asked, wanted)

    @property
    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        """Module -> what to do once it is imported."""
        return {
            "torch.distributed.fsdp.fully_sharded_data_parallel": lambda module: _replace(
                module.FullyShardedDataParallel, "__init__", self._around_fsdp1
            ),
            "torch.distributed.fsdp._fully_shard._fully_shard": lambda module: _replace(
                module, "fully_shard", self._around_fully_shard
            ),
            "torch.nn.parallel.distributed": lambda module: _replace(
                module.DistributedDataParallel, "__init__", self._around_ddp
            ),
        }

    @property
    def asked_text(self) -> str:
        """As on the command line."""
        words = ((FLAGS[name], getattr(self.wanted, name)) for name in sorted(self.asked))
        return " ".join(flag if value is True else f"{flag} {value}" for flag, value in words)

    # What is the same for all

    def _outermost(self) -> bool:
        return not self._inside and not _suspended

    @contextlib.contextmanager
    def _call(self, api: str, own: str) -> Iterator[Strategy]:
        """Inside the script's call of a wrapper; gives the strategy to apply."""
        if self.own is None:
            self.own = own
        self._inside += 1
        self.calls += 1
        try:
            yield self._strategy_for(api, own)
        finally:
            self._inside -= 1

    def _strategy_for(self, api: str, own: str) -> Strategy:
        """What was asked for, if this wrapper can do it; else the script's own.

        Raises:
            Refused: it cannot.
        """
        import torch
        import torch.distributed as dist

        try:
            strategy = parse_strategy(self.wanted.strategy if "strategy" in self.asked else own)
        except StrategyError as error:
            refuse(str(error))
        if strategy.api != api:
            refuse(
                f"--strategy {strategy.text}: this script wraps its model with {WRAPPERS[api]} ({_caller()}), "
                f"which can run {'ddp' if api == 'ddp' else f'strategies of {api}'} only"
            )
        if self.asked and not self._checked:
            self._checked = True
            major, minor = torch.__version__.split(".")[:2]
            fields = {name: getattr(self.wanted, name) for name in self.asked if name != "strategy"}
            if "compile" in fields:
                fields["compiled"] = fields.pop("compile")
            fields = {name: value for name, value in fields.items() if name not in ("reduce", "checkpointing")}
            world_size = dist.get_world_size() if dist.is_initialized() else 1
            for problem in misfits(
                strategy,
                world_size=world_size,
                accelerator=torch.cuda.is_available(),
                torch_version=(int(major), int(minor)),
                **fields,
            ):
                refuse(problem)
        return strategy.with_mesh(dist.get_world_size()) if dist.is_initialized() else strategy

    def _mesh(self, shape: tuple[int, ...], module: Any, given: Any) -> DeviceMesh:
        """One per shape: every mesh creates process groups, on all ranks in the same order."""
        from torch.distributed.device_mesh import init_device_mesh

        if shape not in self._meshes:
            device_type = _device_type(module) if given is None else given.device_type
            names = ("replicate", "shard") if len(shape) == 2 else ("shard",)
            self._meshes[shape] = init_device_mesh(device_type, shape, mesh_dim_names=names)
        return self._meshes[shape]

    # FSDP1

    def _around_fsdp1(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            if not self._outermost():  # an auto-wrap policy's units get what the outermost call has
                return original(wrapper, *args, **kwargs)
            bound = signature.bind(wrapper, *args, **kwargs)  # torch's own complaint if it does not fit
            given = bound.arguments
            chosen = given.get("sharding_strategy")
            own = "full_shard" if chosen is None else chosen.name.lower().removeprefix("_")
            with self._call("fsdp1", f"fsdp1:{own}") as strategy:
                if self.asked:
                    self._change_fsdp1(given, strategy)
                with warnings.catch_warnings():
                    if "strategy" in self.asked:  # asked for, and deprecated
                        warnings.filterwarnings("ignore", message=".*NO_SHARD.*")
                    return original(*bound.args, **bound.kwargs)

        return __init__

    def _change_fsdp1(self, given: dict[str, Any], strategy: Strategy) -> None:
        from torch.distributed.fsdp import CPUOffload, ShardingStrategy

        from fsdp_tui.runner import sharding

        wanted = self.wanted
        if "strategy" in self.asked:
            hybrid = strategy.sharding in HYBRID
            if hybrid and strategy.shard == 1:  # PyTorch would never reduce gradients between the ranks (see `shard`)
                strategy, hybrid = Strategy("fsdp1", "no_shard"), False
            group, mesh = given.get("process_group"), given.get("device_mesh")
            if hybrid:
                assert strategy.replicate is not None
                assert strategy.shard is not None
                _spans_all(group.size() if group is not None and not isinstance(group, tuple) else None, strategy)
                given["device_mesh"] = self._mesh((strategy.replicate, strategy.shard), given["module"], mesh)
                given["process_group"] = None
            elif isinstance(group, tuple) or (mesh is not None and mesh.ndim > 1):
                given["device_mesh"] = self._mesh((_world_size(),), given["module"], mesh)
                given["process_group"] = None
            name = str(strategy.sharding).upper()
            given["sharding_strategy"] = ShardingStrategy[f"_{name}" if name == "HYBRID_SHARD_ZERO2" else name]
        if "wrap" in self.asked:
            given["auto_wrap_policy"] = self._policy(given["module"])
        if self.asked & {"precision", "reduce"}:
            given["mixed_precision"] = sharding.mixed_precision_1(wanted)
        if "cpu_offload" in self.asked:
            given["cpu_offload"] = CPUOffload(offload_params=wanted.cpu_offload)
        if "prefetch" in self.asked:
            given["forward_prefetch"] = wanted.prefetch > 0

    def _policy(self, module: nn.Module) -> Any:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import CustomPolicy

        from fsdp_tui.runner.wrapping import modules_to_wrap

        inside = [name for name, inner in module.named_modules() if isinstance(inner, FullyShardedDataParallel)]
        if inside:
            refuse(
                f"--wrap {self.wanted.wrap}: this script wraps {len(inside)} modules itself, {inside[0]!r} first; "
                "an auto-wrap policy can only choose in a model that is not wrapped yet"
            )
        try:
            units = modules_to_wrap(module, self.wanted.wrap)
        except StrategyError as error:
            refuse(str(error))
        if not units and self.wanted.wrap != "none":
            kinds = sorted({type(inner).__name__ for inner in module.modules() if inner is not module})
            refuse(
                f"--wrap {self.wanted.wrap} matches nothing in {type(module).__name__}, which this script wraps"
                f" ({_caller()}) and which is made of {', '.join(kinds[:12])}"
            )
        chosen = {id(unit) for unit in units}
        return CustomPolicy(lambda candidate: id(candidate) in chosen) if units else None

    # FSDP2

    def _around_fully_shard(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._outermost() or args:
                return original(module, *args, **kwargs)
            with self._call("fsdp2", _own_fsdp2(kwargs)) as strategy:
                if self.asked:
                    self._change_fsdp2(module, kwargs, strategy)
                return original(module, **kwargs)

        return fully_shard

    def _change_fsdp2(self, module: Any, given: dict[str, Any], strategy: Strategy) -> None:
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

        from fsdp_tui.runner import sharding

        wanted = self.wanted
        if "wrap" in self.asked:
            refuse(
                f"--wrap {wanted.wrap}: fully_shard takes no wrap policy; this script chooses its units itself ({_caller()})"
            )
        if "strategy" in self.asked:
            mesh = given.get("mesh")
            shape: tuple[int, ...] | None = None
            if strategy.sharding in HYBRID:
                shape = (strategy.replicate or 1, strategy.shard or 1)
            elif strategy.sharding == "no_shard":
                shape = (_world_size(), 1)
            elif mesh is not None and mesh.ndim > 1 and mesh.size() == _world_size():
                shape = (_world_size(),)
            if shape is not None:
                _spans_all(None if mesh is None else mesh.size(), strategy)
                given["mesh"] = self._mesh(shape, module, mesh)
            if strategy.sharding in ("shard_grad_op", "hybrid_shard_zero2"):
                given["reshard_after_forward"] = False
            elif strategy.sharding == "reshard":
                given["reshard_after_forward"] = strategy.reshard_to
            else:  # PyTorch's default: all but the root, whose parameters backward needs at once
                given.pop("reshard_after_forward", None)
        if self.asked & {"precision", "reduce"}:
            given["mp_policy"] = sharding.mixed_precision_2(wanted)
        if "cpu_offload" in self.asked:
            pinned = _device_type(module) != "cpu"
            given["offload_policy"] = CPUOffloadPolicy(pin_memory=pinned) if wanted.cpu_offload else OffloadPolicy()

    # DDP

    def _around_ddp(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            if not self._outermost():
                return original(wrapper, *args, **kwargs)
            with self._call("ddp", "ddp"):
                return original(wrapper, *args, **kwargs)

        return __init__

    # What is applied to the whole model, before its first forward

    def before_forward(self, roots: Sequence[nn.Module]) -> None:
        """Applies the rest of what was asked for.

        Raises:
            Refused: it cannot be.
        """
        from fsdp_tui.runner import sharding
        from fsdp_tui.runner.wrapping import repeated_blocks

        if not self.asked or any(sharding.applied_to(root) for root in roots):
            return
        if self.own is None and (self.asked != {"strategy"} or self.wanted.strategy != "single"):
            refuse(
                f"{self.asked_text}: this script wraps nothing; expected {', '.join(WRAPPERS.values())} or shard(model) in it"
            )
        for root in roots:
            if "checkpointing" in self.asked and self.wanted.checkpointing:
                blocks = repeated_blocks(root)
                if not blocks:
                    refuse("--checkpointing recomputes repeated blocks, and this model has none")
                sharding.checkpoint_blocks(blocks)
            if self.own is None or not self.own.startswith("fsdp2"):
                continue
            if "compile" in self.asked and self.wanted.compile:
                sharding.compile_blocks(repeated_blocks(root))
            if (
                "prefetch" in self.asked
                and self.wanted.prefetch
                and not sharding.prefetch_units(root, self.wanted.prefetch)
            ):
                refuse(
                    "--prefetch: the model's root is not wrapped with fully_shard(...), so no order of its units is known"
                )


def _replace(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(around(original)))


def _own_fsdp2(kwargs: dict[str, Any]) -> str:
    after, mesh = kwargs.get("reshard_after_forward"), kwargs.get("mesh")
    if mesh is not None and mesh.ndim == 2:
        name = "hybrid_shard_zero2" if after is False else "hybrid_shard"
        return f"fsdp2:{name}={mesh.size(0)}x{mesh.size(1)}"
    if after is False:
        return "fsdp2:shard_grad_op"
    return f"fsdp2:reshard={after}" if isinstance(after, int) and after is not True else "fsdp2:full_shard"


def _world_size() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_initialized() else 1


def _spans_all(ranks: int | None, strategy: Strategy) -> None:
    if ranks is not None and ranks != _world_size():
        refuse(
            f"--strategy {strategy.text} needs a mesh over all {_world_size()} ranks, and this script shards over {ranks} "
            f"of them ({_caller()})"
        )


def _device_type(module: Any) -> str:
    import torch

    modules = module if isinstance(module, (list, tuple)) else [module]
    for found in (param for one in modules for param in one.parameters()):
        if found.device.type != "meta":
            return str(found.device.type)
    return "cuda" if torch.cuda.is_available() else "cpu"


def _caller() -> str:
    """File and line of the script that called a wrapper."""
    ours, frame = os.path.dirname(__file__), sys._getframe(1).f_back
    while frame is not None:
        path = frame.f_code.co_filename
        if f"{os.sep}torch{os.sep}" not in path and not path.startswith((ours, "<")) and "contextlib" not in path:
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return "its own code"
