"""Which modules become units: one rule for FSDP1 and FSDP2, so that both cut a model at the same places."""

from __future__ import annotations

from collections import Counter

from torch import nn

from fsdp_tui.telemetry.strategy import parse_wrap

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules without a forward: nothing runs when they are wrapped, so they cannot be units."""


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a transformer, found by structure: the children of the largest list of equal modules.

    A list counts when all its children are of one class, there are at least two, and the class is no leaf of torch.nn.
    The same class elsewhere in the model (a second tower, say) is a block too. Empty when there is no such list.
    """
    best: type[nn.Module] | None = None
    most = 0
    for module in model.modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or len(module) < 2:
            continue
        children = [_without_wrapper(child) for child in module]
        kinds = {type(child) for child in children}
        kind = kinds.pop()
        if kinds or not any(True for _ in children[0].children()):
            continue
        size = sum(parameter.numel() for parameter in module.parameters())
        if size > most:
            best, most = kind, size
    return [] if best is None else [module for module in model.modules() if type(module) is best]


def _without_wrapper(module: nn.Module) -> nn.Module:
    """What FSDP1 has wrapped, if it has."""
    inner = getattr(module, "_fsdp_wrapped_module", None)
    return inner if isinstance(inner, nn.Module) else module


def modules_to_wrap(model: nn.Module, wrap: str) -> list[nn.Module]:
    """The modules that the policy makes units of, inner ones first; the root, which is always one, is not among them.

    Raises:
        StrategyError: `wrap` is no policy.
    """
    kind, value = parse_wrap(wrap)
    tied = _TiedParameters(model)
    if kind == "none":
        return []
    if isinstance(value, int):
        return _by_size(model, value, tied)
    if kind == "transformer":
        chosen = repeated_blocks(model)
    else:
        chosen = [module for module in _inner_first(model) if type(module).__name__ in (value or ())]
    return [module for module in chosen if module is not model and not tied.reach_outside(module)]


class _TiedParameters:
    """Parameters that more than one module has. A unit that held one of several owners would leave the others without,
    so such a module is no unit: the parameter belongs to the next one outside that has all its owners."""

    def __init__(self, model: nn.Module) -> None:
        owners: Counter[int] = Counter()
        for module in model.modules():
            owners.update(id(parameter) for parameter in module._parameters.values() if parameter is not None)
        self._owners = {key: count for key, count in owners.items() if count > 1}

    def reach_outside(self, module: nn.Module) -> bool:
        if not self._owners:
            return False
        inside: Counter[int] = Counter()
        for inner in module.modules():
            inside.update(id(parameter) for parameter in inner._parameters.values() if parameter is not None)
        return any(count < self._owners.get(key, count) for key, count in inside.items())


def _by_size(model: nn.Module, min_params: int, tied: _TiedParameters) -> list[nn.Module]:
    """As PyTorch's size-based policy: inner modules first, and what they hold no longer counts for the outer ones."""
    chosen: list[nn.Module] = []
    taken: set[int] = set()
    for module in _inner_first(model):
        left = [parameter for parameter in module.parameters() if id(parameter) not in taken]
        if module is model or isinstance(module, CONTAINERS) or sum(p.numel() for p in left) < min_params:
            continue
        if tied.reach_outside(module):
            continue
        chosen.append(module)
        taken.update(id(parameter) for parameter in left)
    return chosen


def _inner_first(model: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    seen: set[int] = set()

    def visit(module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        for child in module.children():
            visit(child)
        found.append(module)

    visit(model)
    return found
