"""Runs whose collectives differ by rank, unit and step, as arrival times say: a test can work every duration out again."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_tui.telemetry.messages import Comm, Structure, Unit
from fsdp_tui.telemetry.state import RunState

from .fixtures import Recipe

_MADE: dict[str, bytes] = {}
AG, RS, AR = 0, 1, 2
FORWARD, BACKWARD, OTHER = 0, 1, 2
ROOT = "<root>"
Call = tuple[int, int, int]
"""(unit, kind, phase)"""


@dataclass
class CommRecipe(Recipe):
    """Every rank arrives at each call a little later or earlier; the call begins with the last one of its group."""

    late_rank: int | None = None
    late_ns: int = 3_000_000
    """By which that rank arrives late at every all-gather of a forward."""
    slow_unit: int | None = None
    """Whose calls take four times as long."""
    shards_of: int | None = None
    """Ranks of a shard group, where gradients are also reduced over replicas (HSDP)."""
    clips: bool = False
    """A gradient clipping reduces its norm, which belongs to no unit."""
    untimed: tuple[int, int] | None = None
    """(rank, unit) whose waiting is not known."""
    buckets: tuple[int, ...] = (3_000_000, 2_000_000, 500_000)
    """Bytes of DDP's, with a strategy of that name."""

    def names(self) -> list[str]:
        """Units: the root and the blocks."""
        return [ROOT, *(f"layers.{at}" for at in range(self.blocks - 1))]

    def calls(self) -> list[Call]:
        """Of a step, in order."""
        if self.strategy == "ddp":
            return [(-2 - at, AR, BACKWARD) for at in range(len(self.buckets))]
        if not self.strategy.startswith("fsdp"):
            return []
        forward = [(unit, AG, FORWARD) for unit in range(self.blocks)]
        backward: list[Call] = []
        for unit in reversed(range(self.blocks)):
            backward += [(unit, AG, BACKWARD), (unit, RS, BACKWARD)]
            backward += [(unit, AR, BACKWARD)] if self.shards_of else []
        return forward + backward + ([(-1, AR, OTHER)] if self.clips else [])

    def groups(self, rank: int) -> list[list[int]]:
        """Of its shards, and of its replicas where there are any."""
        if not self.shards_of:
            return [list(range(self.ranks))]
        first = rank // self.shards_of * self.shards_of
        return [
            list(range(first, first + self.shards_of)),
            list(range(rank % self.shards_of, self.ranks, self.shards_of)),
        ]

    def group_of(self, rank: int, call: Call) -> list[int]:
        return self.groups(rank)[1 if self.shards_of and call[1] == AR else 0]

    def arrives_ns(self, rank: int, call: Call, number: int) -> int:
        """After the first one could: noise of up to 80 us, and what makes this rank late."""
        chance = zlib.crc32(f"{rank} {call} {number}".encode()) % 80_000
        late = self.late_ns if rank == self.late_rank and call[1:] == (AG, FORWARD) else 0
        return chance + late

    def moves_ns(self, call: Call) -> int:
        """What the call itself takes."""
        return (4 if call[0] == self.slow_unit else 1) * (400_000 if call[1] == AG else 600_000)

    def duration_ns(self, rank: int, call: Call, number: int) -> int:
        """From when the rank arrives until the call ends."""
        last = self.last_ns(self.group_of(rank, call), call, number)
        return last - self.arrives_ns(rank, call, number) + self.moves_ns(call)

    def last_ns(self, members: Iterable[int], call: Call, number: int) -> int:
        key = (tuple(members), call, number)
        if key not in self._last:
            self._last[key] = max(self.arrives_ns(rank, call, number) for rank in key[0])
        return self._last[key]

    def exposed_ns(self, rank: int, call: Call, number: int) -> int:
        """A quarter of it: the rest overlaps with compute."""
        return self.duration_ns(rank, call, number) // 4

    def __post_init__(self) -> None:
        self._last: dict[tuple[tuple[int, ...], Call, int], int] = {}

    def state(self) -> RunState:
        """Made once, and opened from then on: a thousand ranks send many messages."""
        key = repr(self)
        if key not in _MADE:
            _MADE[key] = super().state().dump()
        return RunState.load(_MADE[key])

    def structure(self, rank: int) -> Structure:
        params = self.state_bytes // 16
        per_block = params // self.blocks
        made = super().structure(rank)
        units = [Unit(name, per_block, per_block * 4 // self.shards, per_block * 4) for name in self.names()]
        return Structure(
            rank=rank,
            effective=made.effective,
            detail=made.detail,
            units=units if self.strategy.startswith("fsdp") else [],
            buckets=list(self.buckets) if self.strategy == "ddp" else [],
            groups=self.groups(rank),
            params=params,
            trainable_params=params,
            param_bytes=params * 4,
            ideal_state_bytes=made.ideal_state_bytes,
            probes=made.probes,
        )

    def nbytes(self, call: Call) -> int:
        if call[0] < -1:
            return self.buckets[-2 - call[0]]
        return self.state_bytes // 4 // self.blocks if call[0] >= 0 else 4

    def reduction_ns(self, rank: int, number: int) -> int:
        """DDP's buckets together; half of it is after the gradients were computed."""
        return sum(self.duration_ns(rank, call, number) for call in self.calls())

    def comm(self, rank: int, number: int) -> Comm:
        calls = self.calls()
        ddp = self.strategy == "ddp"
        unknown = [self.untimed == (rank, unit) for unit, _, _ in calls]
        return Comm(
            rank=rank,
            seq=number,
            step=number,
            unit=[unit for unit, _, _ in calls],
            kind=[kind for _, kind, _ in calls],
            phase=[phase for _, _, phase in calls],
            group=[1 if self.shards_of and call[1] == AR else 0 for call in calls],
            nbytes=[self.nbytes(call) for call in calls],
            duration_ns=[-1 if ddp else self.duration_ns(rank, call, number) for call in calls],
            exposed_ns=[
                -1 if hidden or ddp else self.exposed_ns(rank, call, number)
                for call, hidden in zip(calls, unknown, strict=True)
            ],
            reductions_ns=self.reduction_ns(rank, number) if ddp else -1,
            reductions_exposed_ns=self.reduction_ns(rank, number) // 2 if ddp else -1,
        )
