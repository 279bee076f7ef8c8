"""What live viewers get of a run that says more than a screen can show: some steps, each of them whole, and of heartbeats and
readings the newest. The recording has everything."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fsdp_tui.telemetry.messages import Beat, Comm, Gauge, Message, Step

LIVE_PER_S = LIVE_BURST = 2_000
"""Messages per second, and those that a quiet time before leaves room for at once; more with very many ranks:"""
LIVE_PER_RANK = 4
"""a step, and a heartbeat and a reading of each, fit into a second."""
STEP_MESSAGES = 2
"""Of a rank: what it took, and its collectives."""
HOLD_S = 1.0
"""So long the newest heartbeats wait at most."""
STEPS_KEPT = 1_024
"""Steps of which it is remembered whether they were passed on, for ranks that are behind."""


class Thinning:
    """Chooses from all messages of a run, batch by batch.

    Attributes:
        withheld: messages of steps that were not passed on so far.
    """

    def __init__(self, now_s: float) -> None:
        self.withheld = 0
        self._room = math.inf
        self._filled_s = self._held_since_s = now_s
        self._chosen: dict[int, bool] = {}
        self._newest: dict[tuple[type, int | None], bytes] = {}

    def pass_on(self, batch: Iterable[tuple[Message, bytes]], ranks: int, now_s: float) -> list[bytes]:
        """The messages that viewers get now, of this batch and those that waited. `ranks`: how many the run has."""
        most = max(LIVE_BURST, LIVE_PER_RANK * ranks)
        per_s = max(LIVE_PER_S, LIVE_PER_RANK * ranks)
        self._room = min(most, self._room + (now_s - self._filled_s) * per_s)
        self._filled_s = now_s
        bodies: list[bytes] = []
        for message, body in batch:
            match message:
                case Step() | Comm():
                    if self._is_chosen(message.step, STEP_MESSAGES * max(1, ranks)):
                        bodies.append(body)
                    else:
                        self.withheld += 1
                case Beat() | Gauge():
                    self._newest[type(message), message.rank] = body
                case _:
                    # What a rank said before must not come after, its goodbye say.
                    rank = getattr(message, "rank", None)
                    bodies += [self._newest.pop((kind, rank)) for kind in (Beat, Gauge) if (kind, rank) in self._newest]
                    bodies.append(body)
                    self._room -= 1
        if self._room >= most / 2 or now_s - self._held_since_s >= HOLD_S:
            self._room -= len(self._newest)
            self._held_since_s = now_s
            bodies += self._newest.values()
            self._newest.clear()
        return bodies

    def _is_chosen(self, step: int, messages: int) -> bool:
        """The same for all ranks: half of a step would look like ranks that are behind."""
        found = self._chosen.get(step)
        if found is None:
            found = self._chosen[step] = self._room >= messages
            self._room -= messages * found
            if len(self._chosen) > STEPS_KEPT:
                del self._chosen[next(iter(self._chosen))]
        return found
