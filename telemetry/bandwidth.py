"""How fast a collective moved its bytes, by the conventions of nccl-tests (doc/PERFORMANCE.md).

S is the gathered output, or the reduce's input; t the time of one call. Algorithm bandwidth is S / t. Bus bandwidth is
algorithm bandwidth times what each rank's link has to carry per byte of S, so that it can be held against the link's speed
whatever the number of ranks.
"""

from __future__ import annotations

from fsdp_tui.telemetry.messages import COLLECTIVES

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = map(COLLECTIVES.index, ("all_gather", "reduce_scatter", "all_reduce"))
NOTES = {
    ("gloo", "reduce_scatter"): "gloo runs it as an all-reduce: 2(n-1)/n of its bytes are on the wire, not (n-1)/n"
}
"""Backend and kind -> what makes its figures other than they look. (Measured with loopback counters: 1.00 S at 2 ranks and
1.50 S at 4, as for an all-reduce.)"""


def bus_factor(kind: int, ranks: int) -> float:
    """Bytes on each rank's link per byte of S: (n-1)/n for all-gather and reduce-scatter, 2(n-1)/n for all-reduce."""
    return (2 if kind == ALL_REDUCE else 1) * (ranks - 1) / ranks


def note(backend: str, kind: str) -> str:
    """What to know about this backend's collective; "" when it is what its name says."""
    return NOTES.get((backend, kind), "")
