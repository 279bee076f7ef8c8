"""A made-up captured step whose every figure can be worked out by hand.

200 ms of a model of four blocks, fully sharded over two ranks, in MiB: 12 of parameters and 24 of optimizer states are
always there. In forward block n is gathered (6) from 10 + 20n ms on for 5 ms, saves 9, and is resharded 18 ms after its
begin. In backward blocks come in reverse order, 22 ms each from 95 ms on: gathered for 4 ms, a gradient of 6 after 8 ms,
9 of activations freed after 12, resharded after 14, reduced to 3 between 15 and 20. The optimizer works from 185 to 195 ms.
So the peak is 12 + 24 + 36 + 6 + 6 = 84 MiB, 103 ms after the begin, in blocks.3.
"""

from __future__ import annotations

from typing import NamedTuple

from fsdp_tui.telemetry.messages import CATEGORIES, COLLECTIVES, PHASES, Capture, Part

from .fixtures import MIB, STARTED_NS, column

MS = 1_000_000
BLOCKS = 4
PARAMS, OPTIMIZER, GATHERED, SAVED, SHARD = 12, 24, 6, 9, 3
"""MiB."""
PEAK_MIB, PEAK_MS, STEP_MS = 84, 103, 200
GATHERS = [(10 + 20 * n, 15 + 20 * n, n) for n in range(BLOCKS)] + [
    (95 + 22 * (3 - n), 99 + 22 * (3 - n), n) for n in reversed(range(BLOCKS))
]
"""Begin and end in ms, and block, in order."""
REDUCES = [(110 + 22 * (3 - n), 115 + 22 * (3 - n), n) for n in reversed(range(BLOCKS))]
OPERATORS = (
    [(15 + 20 * n, 28 + 20 * n, n, "forward") for n in range(BLOCKS)]
    + [(99 + 22 * (3 - n), 109 + 22 * (3 - n), n, "backward") for n in reversed(range(BLOCKS))]
    + [(185, 195, -1, "optimizer")]
)
FREED_MS = [28 + 20 * n for n in range(BLOCKS)] + [109 + 22 * (3 - n) for n in reversed(range(BLOCKS))]


class Change(NamedTuple):
    at_ns: int
    mib: int
    category: str
    block: int
    phase: str


def changes() -> list[Change]:
    """Every allocation and free, in order."""
    rows = []
    for n in range(BLOCKS):
        begin = (10 + 20 * n) * MS
        rows += [
            Change(begin + 5 * MS, GATHERED, "param_unsharded", n, "forward"),
            Change(begin + 10 * MS, SAVED, "activation", n, "forward"),
            Change(begin + 18 * MS, -GATHERED, "param_unsharded", n, "forward"),
        ]
    for n in reversed(range(BLOCKS)):
        begin = (95 + 22 * (3 - n)) * MS
        rows += [
            Change(begin + 4 * MS, GATHERED, "param_unsharded", n, "backward"),
            Change(begin + 8 * MS, GATHERED, "temp", n, "backward"),
            Change(begin + 12 * MS, -SAVED, "activation", n, "backward"),
            Change(begin + 13 * MS, -GATHERED, "temp", n, "backward"),  # it becomes the parameter's gradient
            Change(begin + 13 * MS, GATHERED, "grad_unsharded", n, "backward"),
            Change(begin + 14 * MS, -GATHERED, "param_unsharded", n, "backward"),
            Change(begin + 15 * MS, -GATHERED, "grad_unsharded", n, "backward"),
            Change(begin + 15 * MS, GATHERED, "comm_buffer", n, "backward"),
            Change(begin + 20 * MS, SHARD, "grad_shard", n, "backward"),
            Change(begin + 20 * MS, -GATHERED, "comm_buffer", n, "backward"),
        ]
    return rows


def held_mib(ms: float) -> dict[str, int]:
    """MiB per category at a time, added up event by event."""
    held = dict.fromkeys(CATEGORIES[:10], 0) | {"param_shard": PARAMS, "optimizer": OPTIMIZER}
    for change in changes():
        if change.at_ns <= ms * MS:
            held[change.category] += change.mib
    return held


def training_step(rank: int = 0, step: int = 41, *, id: str = "one", error: str = "", timed: bool = True) -> Capture:
    """The capture; rank 1 saves as much, and takes it a MiB of temporaries higher. `timed`: whether collectives have ends."""
    if error:
        return Capture(rank=rank, step=step, id=id, began_ns=STARTED_NS + step * 200 * MS, step_ns=0, error=error)
    modules = ["", *(f"blocks.{n}" for n in range(BLOCKS))]
    rows = changes()
    extra = rank  # MiB
    calls = sorted([(*one, "all_gather") for one in GATHERS] + [(*one, "reduce_scatter") for one in REDUCES])
    return Capture(
        rank=rank,
        step=step,
        id=id,
        began_ns=STARTED_NS + step * 200 * MS,
        step_ns=STEP_MS * MS,
        modules=modules,
        base=column({"param_shard": PARAMS * MIB, "optimizer": OPTIMIZER * MIB, "unexplained": extra * MIB}),
        at_ns=[row.at_ns for row in rows],
        delta_bytes=[row.mib * MIB for row in rows],
        category=[CATEGORIES.index(row.category) for row in rows],
        module=[row.block + 1 for row in rows],
        phase=[PHASES.index(row.phase) for row in rows],
        events=len(rows),
        peak=column(
            {
                "param_shard": PARAMS * MIB,
                "optimizer": OPTIMIZER * MIB,
                "activation": BLOCKS * SAVED * MIB,
                "param_unsharded": GATHERED * MIB,
                "temp": GATHERED * MIB,
                "unexplained": extra * MIB,
            }
        ),
        peak_at_ns=PEAK_MS * MS,
        peak_phase="backward",
        peak_module="blocks.3",
        peak_parts=[
            Part("optimizer", "", OPTIMIZER * MIB, 16),
            Part("param_shard", "", PARAMS * MIB, 8),
            *(Part("activation", f"blocks.{n}", SAVED * MIB, 3) for n in range(BLOCKS)),
            Part("param_unsharded", "blocks.3", GATHERED * MIB, 1),
            Part("temp", "blocks.3", GATHERED * MIB, 1, "grad_unsharded"),
        ],
        saved_bytes=BLOCKS * SAVED * MIB,
        op_names=["aten.mm.default", "c10d.allgather_.default"],
        op=[0] * len(OPERATORS),
        op_at_ns=[begin * MS for begin, *_ in OPERATORS],
        op_ns=[(end - begin) * MS for begin, end, *_ in OPERATORS],
        op_module=[block + 1 for _, _, block, _ in OPERATORS],
        op_phase=[PHASES.index(phase) for *_, phase in OPERATORS],
        ops=len(OPERATORS),
        call_kind=[COLLECTIVES.index(kind) for *_, kind in calls],
        call_module=[block + 1 for _, _, block, _ in calls],
        call_nbytes=[GATHERED * MIB] * len(calls),
        call_at_ns=[begin * MS for begin, *_ in calls],
        call_ns=[(end - begin) * MS if timed else -1 for begin, end, *_ in calls],
        limits=["memory that an operator takes and frees within itself is not seen"],
    )
