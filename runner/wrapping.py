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
        kinds = {type(child) for child in module}
        kind = kinds.pop()
        if kinds or not any(True for _ in next(iter(module)).children()):
            continue
        size = sum(parameter.numel() for parameter in module.parameters())
        if size > most:
            best, most = kind, size
    return [] if best is None else [module for module in model.modules() if type(module) is best]


def modules_to_wrap(model: nn.Module, wrap: str) -> list[nn.Module]:
    """The modules that the policy makes units of, inner ones first; the root, which is always one, is not among them.

    Raises:
        StrategyError: `wrap` is no policy.
    """
    kind, value = parse_wrap(wrap)
    if kind == "none":
        return []
    if kind == "transformer":
        return [block for block in repeated_blocks(model) if block is not model]
    if isinstance(value, int):
        return _by_size(model, value)
    names = value or ()
    return [module for module in _inner_first(model) if module is not model and type(module).__name__ in names]


def _by_size(model: nn.Module, min_params: int) -> list[nn.Module]:
    """As PyTorch's size-based policy: inner modules first, and what they hold no longer counts for the outer ones."""
    chosen: list[nn.Module] = []
    taken: set[int] = set()
    for module in _inner_first(model):
        left = [parameter for parameter in module.parameters() if id(parameter) not in taken]
        if module is model or isinstance(module, CONTAINERS) or sum(p.numel() for p in left) < min_params:
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


def class_names(modules: list[nn.Module]) -> str:
    """ "6 x Block, 1 x Head": for a person."""
    counts = Counter(type(module).__name__ for module in modules)
    return ", ".join(f"{count} x {name}" for name, count in counts.items())
