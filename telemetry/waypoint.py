"""Waypoints: states of a run kept in its recording, sparsely, so that its past is reached from the nearest one before.

A waypoint is a snapshot without what the recording has elsewhere: the series of steps that are complete are the newest
snapshot's, and the windows of steps, collectives and captures are filled again from the log before the moment that is shown.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right

import msgspec

from fsdp_tui.telemetry.state import RunState

SERIES = ("steps", "loss_sum", "loss_count", "tokens", "step_ns", "reported", "samples")
"""Fields of a RunState that hold a value per step."""


def highest_step(state: RunState) -> int:
    """The newest step that any rank has reported; 0 before the first."""
    return max((rank.last.step for rank in state.ranks.values() if rank.last), default=0)


def complete_to(state: RunState) -> int:
    """The step that every rank has reported, and all before it: their sums do not change any more."""
    if len(state.ranks) < state.world_size:
        return 0
    return min((rank.last.step if rank.last else 0 for rank in state.ranks.values()), default=0)


def pack(state: RunState) -> bytes:
    """The waypoint of a state."""
    begin = bisect_right(state.steps, complete_to(state))
    series = {name: getattr(state, name)[begin:] for name in SERIES}
    ranks = {
        rank: msgspec.structs.replace(known, window=[], captures=[], beat=None, moved_ns=0)
        for rank, known in state.ranks.items()
    }
    bare = msgspec.structs.replace(state, ranks=ranks, comm_open={}, comm_window=[], **series)
    return zlib.compress(bare.dump(), 1)


def unpack(body: bytes, newest: RunState) -> RunState:
    """The state that was packed, with empty windows; `newest` is of the same run, at that moment or later.

    Raises:
        ValueError: it is no waypoint.
    """
    try:
        state = RunState.load(zlib.decompress(body))
    except zlib.error as error:
        raise ValueError(f"not a waypoint of a run: {error}") from None
    end = bisect_right(newest.steps, complete_to(state))
    for name in SERIES:
        setattr(state, name, getattr(newest, name)[:end] + getattr(state, name))
    return state
