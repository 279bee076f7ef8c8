"""torch.compile: whether it compiled something. While it does, the C heap holds the compiler's own work."""

from __future__ import annotations

import sys


def graphs() -> int | None:
    """Graphs that this process has compiled so far; None if this torch does not count them."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:  # it is loaded by the first compilation
        return 0
    counters = getattr(utils, "counters", None)
    return None if counters is None else int(counters.get("stats", {}).get("unique_graphs", 0))
