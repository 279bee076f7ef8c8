"""What surprises people about a model's bytes: padding, tied, frozen and ignored parameters, and optimizer states to come.

All of it follows from the structure, is exact, and is read once, while the parameters are sharded: FSDP1 hides the original
ones while they are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from fsdp_tui.runner.storages import local_tensor
from fsdp_tui.telemetry.messages import Tied

NAMED = 20
"""Names and groups of tensors that a message lists at most."""

Names = Mapping[int, Sequence[str]]
"""id of a parameter -> its names in the model, the owner's first."""


class Part(NamedTuple):
    """One parameter of a unit."""

    names: Sequence[str]
    params: int
    """Elements over all ranks."""
    local: int
    """Elements on this rank, without padding."""
    element_size: int
    trainable: bool


class UnitFacts(NamedTuple):
    padding_bytes: int
    frozen_params: int
    frozen_grad_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Fields as in `messages.Structure`."""

    units: Sequence[UnitFacts] = ()
    tied: Sequence[Tied] = ()
    padding_bytes: int | None = None
    frozen_bytes: int | None = None
    buffer_bytes: int | None = None
    ignored_bytes: int | None = None
    ignored_trainable_bytes: int | None = None
    ignored: Sequence[str] = ()
    replicated_bytes: int | None = None
    optimizer_expected_bytes: int | None = None
    blocks: int | None = None
    largest_block_params: int | None = None
    optimized: int | None = None


NOT_KNOWN = Facts()


class UnitParts(NamedTuple):
    """A unit's parameters, and the memory that is made for them."""

    parts: Sequence[Part]
    shard_bytes: int
    sharded: bool
    """Whether other ranks hold other parts."""
    one_gradient: bool
    """Whether frozen parameters have gradients too, as part of one gradient for all."""


def gather(
    model: nn.Module,
    units: Sequence[UnitParts],
    plain: Iterable[nn.Parameter],
    names: Names,
    blocks: Iterable[str],
    optimizers: Sequence[Optimizer],
    *,
    fsdp: bool,
    ranks: int,
    device_type: str,
) -> Facts:
    """Reads the facts of a model. `plain` are the parameters in no unit, `blocks` the names of its repeated blocks."""
    whole = [
        Part(names.get(id(p), ()), p.numel(), local_tensor(p).numel(), p.element_size(), p.requires_grad) for p in plain
    ]
    parts = [*(part for unit in units for part in unit.parts), *whole]
    unit_facts = [_unit_facts(unit) for unit in units]
    ignored = sorted(whole, key=lambda part: -part.params) if fsdp else []
    replicated = whole + [part for unit in units if not unit.sharded for part in unit.parts]
    block_params = [sum(p.params for p in parts if _inside(p, f"{block}.")) for block in blocks]
    return Facts(
        units=unit_facts,
        tied=[Tied(p.names[0], list(p.names[1:]), p.params * p.element_size) for p in parts if len(p.names) > 1],
        padding_bytes=sum(unit.padding_bytes for unit in unit_facts),
        frozen_bytes=sum(part.params * part.element_size for part in parts if not part.trainable),
        buffer_bytes=sum(local_tensor(buffer).untyped_storage().nbytes() for buffer in model.buffers()),
        ignored_bytes=_local_bytes(ignored),
        ignored_trainable_bytes=_local_bytes(part for part in ignored if part.trainable),
        ignored=[part.names[0] for part in ignored if part.names][:NAMED],
        replicated_bytes=_local_bytes(replicated) if ranks > 1 else 0,
        optimizer_expected_bytes=expected_states(optimizers, device_type),
        blocks=len(block_params),
        largest_block_params=max(block_params, default=None),
        optimized=len(names.keys() & _optimized(optimizers)),
    )


def _optimized(optimizers: Sequence[Optimizer]) -> set[int]:
    return {id(param) for optimizer in optimizers for group in optimizer.param_groups for param in group["params"]}


def _unit_facts(unit: UnitParts) -> UnitFacts:
    frozen = [part for part in unit.parts if not part.trainable]
    mixed = unit.one_gradient and 0 < len(frozen) < len(unit.parts)
    return UnitFacts(
        padding_bytes=max(0, unit.shard_bytes - _local_bytes(unit.parts)),
        frozen_params=sum(part.params for part in frozen),
        frozen_grad_bytes=_local_bytes(frozen) if mixed else 0,
    )


def _local_bytes(parts: Iterable[Part]) -> int:
    return sum(part.local * part.element_size for part in parts)


def _inside(part: Part, prefix: str) -> bool:
    return bool(part.names) and part.names[0].startswith(prefix)


STATES_LIKE_PARAM: dict[type[Optimizer], Callable[[Mapping[str, Any]], int]] = {
    Adam: lambda options: 3 if options.get("amsgrad") else 2,
    AdamW: lambda options: 3 if options.get("amsgrad") else 2,
    NAdam: lambda options: 2,
    RAdam: lambda options: 2,
    Adamax: lambda options: 2,
    Adadelta: lambda options: 2,
    Adagrad: lambda options: 1,
    RMSprop: lambda options: 1 + bool(options.get("momentum")) + bool(options.get("centered")),
    SGD: lambda options: int(bool(options.get("momentum"))),
}
"""Tensors of a parameter's own size that torch.optim keeps for each, from the `_init_group` of every class."""
SCALARS: dict[type[Optimizer], int] = {SGD: 0, NAdam: 2}
"""Numbers of 4 bytes beside them, a step count mostly; 1 unless said here."""


def expected_states(optimizers: Sequence[Optimizer], device_type: str) -> int | None:
    """Bytes that these optimizers keep on the device after their first step; None when one's rule is not known.

    Parameters of which this rank has no part get no state in FSDP1; in FSDP2 they do, of the scalars only.
    """
    nbytes = 0
    for optimizer in optimizers:
        like_param = STATES_LIKE_PARAM.get(type(optimizer))  # a subclass may keep anything
        if like_param is None:
            return None
        for group in optimizer.param_groups:
            on_device = device_type == "cpu" or bool(group.get("capturable")) or bool(group.get("fused"))
            scalars = 4 * SCALARS.get(type(optimizer), 1) if on_device else 0
            for param in group["params"]:
                local = local_tensor(param)
                here = local.device.type == device_type
                if not param.requires_grad or (local is param and not local.numel()) or not here:
                    continue
                nbytes += like_param(group) * local.numel() * local.element_size() + scalars
    return nbytes


def names_of(model: nn.Module, clean: Callable[[str], str]) -> dict[int, list[str]]:
    """Every parameter's names, a tied one's in the order in which the model's modules are visited."""
    found: dict[int, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        cleaned = clean(name)
        if cleaned not in found.setdefault(id(param), []):
            found[id(param)].append(cleaned)
    return found
