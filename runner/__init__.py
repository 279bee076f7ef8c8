"""Training that can be watched: `shard` a model, `watch` its loop.

    from fsdp_tui.runner import shard, watch

    model = shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    with watch(model, optimizer) as run:
        for batch in run.batches(loader):
            ...
            if not run.step(loss):
                break

Importing this does not import torch: the launcher lives here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsdp_tui.runner.session import Run, log, unwatched, watch
    from fsdp_tui.runner.sharding import ShardingError, no_sync, shard

__all__ = ["Run", "ShardingError", "log", "no_sync", "shard", "unwatched", "watch"]

_HOMES = {
    "Run": "session",
    "log": "session",
    "unwatched": "session",
    "watch": "session",
    "ShardingError": "sharding",
    "no_sync": "sharding",
    "shard": "sharding",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
