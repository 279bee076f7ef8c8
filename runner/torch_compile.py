"""torch.compile: whether it compiled something, and how it is kept from compiling us.

Frames that run inside a compiled region, after a graph break say, are looked at by Dynamo one by one, ours too. Those of
our own work must run as they are: compiled, they would warn, or measure nothing. Our wrappers must run as they are too; but
where Dynamo inlines one into a graph, `torch.compiler.is_compiling()` sends it straight to what it wraps.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

from fsdp_tui.runner.imports import AfterImport

OUR_WORK = (
    "agreement",
    "allocators",
    "capture",
    "clocks",
    "collectives",
    "ledger",
    "phases",
    "probes",
    "session",
    "storages",
    "structure",
    "torch_checkpoint",
    "torch_ddp",
    "torch_fsdp1",
    "torch_fsdp2",
)
"""Modules of which no function belongs into a graph. Functions of FSDP that the last of them wrap never do."""
WRAPPERS = ("attach", "interpose", "override", "torch_dist")
"""Modules whose functions stand in front of some that may be in a graph."""


def graphs() -> int | None:
    """Graphs that this process has compiled so far; None if this torch does not count them."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:  # it is loaded by the first compilation
        return 0
    counters = getattr(utils, "counters", None)
    return None if counters is None else int(counters.get("stats", {}).get("unique_graphs", 0))


def leave_us_alone() -> None:
    """From now on, whenever Dynamo comes, it is told which of our functions to run as they are."""
    AfterImport({"torch._dynamo.trace_rules": _skip_work, "torch._dynamo.decorators": _skip_wrappers}).install()


def _skip_work(trace_rules: ModuleType) -> None:
    add: Any = getattr(trace_rules, "add", None)
    for name in OUR_WORK if add is not None else ():
        add(f"{__package__}.{name}")


def _skip_wrappers(decorators: ModuleType) -> None:
    skip: Any = getattr(decorators, "skip_code", None)
    for name in WRAPPERS if skip is not None else ():
        for code in _codes(importlib.import_module(f"{__package__}.{name}")):
            skip(code)


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """Of every function that the module defines, at any depth."""
    owners = [module, *(kind for kind in vars(module).values() if inspect.isclass(kind))]
    waiting = [
        function.__code__
        for owner in owners
        for function in vars(owner).values()
        if inspect.isfunction(function) and function.__module__ == module.__name__
    ]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
