"""Where CUDA's compute stream would wait: FSDP's own calls, on real ranks without streams, told as if there were some.

Without streams a collective is over when the call returns. So what is issued before it is needed is not exposed, and what
is issued only when it is needed is exposed in full: any other number means that a wait was not seen, or at another place.
"""

from __future__ import annotations

import pytest

from fsdp_tui.runner import session
from fsdp_tui.runner.clocks import Clock
from fsdp_tui.runner.collectives import BACKWARD, Collectives
from fsdp_tui.runner.torch_dist import ALL_GATHER, ALL_REDUCE
from fsdp_tui.telemetry.messages import Comm
from tests.dist.trainings import Case, train
from tests.dist.worlds import run_world

CASES = [
    Case("fsdp1:full_shard"),
    Case("fsdp1:shard_grad_op"),
    Case("fsdp1:full_shard", accumulate=2, skip_sync=True),
    Case("fsdp1:no_shard"),
    Case("fsdp2:full_shard"),
    Case("fsdp2:shard_grad_op"),
    Case("fsdp2:full_shard", accumulate=2),
    Case("fsdp2:hybrid_shard=2x1"),
]


def _trainings() -> list[Comm]:
    """The last step's collectives of each case."""

    def with_streams(clock: Clock, unit_of: dict[int, int], on_cpu: bool) -> Collectives:
        return Collectives(clock, unit_of, on_cpu=False)

    vars(session)["Collectives"] = with_streams
    return [train(case).comms[-1] for case in CASES]


@pytest.fixture(scope="module")
def comms() -> list[Comm]:
    first, _ = run_world(2, _trainings)
    return list(first)


@pytest.mark.parametrize("at", range(len(CASES)), ids=[str(case) for case in CASES])
def test_every_wait_is_seen(comms: list[Comm], at: int) -> None:
    """FSDP1 issues a gather inside what waits for it, except in backward, where each unit prefetches the next one's."""
    comm, case = comms[at], CASES[at]
    assert comm.kind
    late = case.strategy.startswith("fsdp1")
    for kind, phase, duration, exposed in zip(comm.kind, comm.phase, comm.duration_ns, comm.exposed_ns, strict=True):
        assert duration > 0
        when_needed = late and kind == ALL_GATHER and phase != BACKWARD
        assert exposed == (duration if when_needed else 0), (kind, phase)
    assert (ALL_REDUCE in comm.kind) == (case.strategy in ("fsdp1:no_shard", "fsdp2:hybrid_shard=2x1"))
