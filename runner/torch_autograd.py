"""Autograd's sequence numbers: which module's forward made the node that runs in backward.

A node keeps the number that was next when it was made, so the numbers at a module's begin and end say which nodes are the
module's, without a hook in the graph.
"""

from __future__ import annotations

from typing import Any

import torch

from fsdp_tui.runner.interpose import missing_names, without

NAMES = ("_current_autograd_node",)
AUTOGRAD_NAMES = ("_get_sequence_nr",)
NOT_NUMBERED = 2**63
"""From here on numbers mean none: a leaf's node, which belongs to no module."""


def check() -> str:
    """ "ok", or why nodes cannot be told apart with this torch."""
    return without(missing_names(torch._C, NAMES) + missing_names(torch._C._autograd, AUTOGRAD_NAMES))


def next_number() -> int:
    """The number of the next node that this thread makes."""
    private: Any = torch._C._autograd
    return int(private._get_sequence_nr())


def running_number() -> int | None:
    """The number of the node that runs on this thread; None outside backward, and for a node without one."""
    private: Any = torch._C
    node = private._current_autograd_node()
    if node is None:
        return None
    number = int(node._sequence_nr())
    return number if number < NOT_NUMBERED else None
