"""A key's answer comes first: the threads that make pictures wait for it."""

from __future__ import annotations

import threading
import time

LONGEST_S = 0.1
"""A key without a frame of its own holds nobody up for longer."""
PATIENCE_S = 0.2
"""Pictures come, however fast keys do: making one waits so long in all."""


class Answering:
    """Whether a key is being answered: from when it is heard to the frame that comes next."""

    def __init__(self) -> None:
        self._answered = threading.Event()
        self._answered.set()
        self._heard_s = time.monotonic()

    @property
    def since_s(self) -> float:
        """Seconds since the newest key."""
        return time.monotonic() - self._heard_s

    def begin(self) -> None:
        """A key is heard. For the thread of the app, as `end`."""
        self._heard_s = time.monotonic()
        self._answered.clear()

    def end(self) -> None:
        """A frame is shown."""
        self._answered.set()

    def wait(self, longest_s: float) -> float:
        """Returns when no key is being answered, or after so long; seconds that it has waited. For any other thread."""
        if self._answered.is_set():
            return 0.0
        began_s = time.monotonic()
        self._answered.wait(max(0.0, min(longest_s, self._heard_s + LONGEST_S - began_s)))
        return time.monotonic() - began_s
