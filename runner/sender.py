"""The rank's end of the telemetry: a ring that the training thread appends to, and one thread that sends.

The training never waits for a socket, a lock or the disk: `put` appends to a bounded deque, which drops its oldest entry
by itself when the thread cannot keep up or there is no hub.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import zmq

from fsdp_tui.runner import stacks
from fsdp_tui.runner.foreign import wait_for_run
from fsdp_tui.telemetry import wire
from fsdp_tui.telemetry.messages import (
    Ack,
    BadMessage,
    Beat,
    Command,
    Gauge,
    Goodbye,
    Hello,
    Later,
    Message,
    Structure,
    Where,
    decode,
    encode,
)
from fsdp_tui.telemetry.rundir import read_run_file

RING = 4096
"""Messages that wait for the thread at most: two seconds without a hub at 1,000 steps per second."""
POLL_MS = 20
GAUGE_S = 1.0
GAUGE_FAILURES = 3
"""After so many exceptions in a row the gauges are not asked any more."""


class Requested:
    """What viewers have asked of the run; the session acts on it at a step boundary that all ranks agree on."""

    __slots__ = ("capture", "pause", "stop")

    def __init__(self) -> None:
        self.stop = False
        self.pause = False
        self.capture: Command | None = None


class Sender:
    """One rank's connection to its hub. Make it with `connect`, end it with `close`.

    Attributes:
        requested: set by the sending thread when a command arrives.
        step, paused: set by the session; every heartbeat carries them.
        sent, dropped: messages so far.
        read_gauges: called once a second on the sending thread.
        where: called with every heartbeat, on the sending thread.
    """

    def __init__(self, endpoints: dict[str, str], hello: Hello) -> None:
        self.hello = hello
        self.requested = Requested()
        self.step = 0
        self.paused = False
        self.sent = 0
        self.dropped = 0
        self.gauge_failures = 0
        self.read_gauges: Callable[[], Gauge] | None = None
        self.where: Callable[[], Where] | None = None
        self._training_thread = threading.get_ident()
        self._ring: deque[Message | Later] = deque(maxlen=RING)
        self._structure: Structure | None = None
        self._closing = threading.Event()
        self._heard = False
        """Whether the hub has our goodbye, and so everything before it. ZeroMQ's lingering close is no proof: a receiver
        that is behind throws away what it has not read when the connection ends."""
        self._deadline_s = 0.0
        self._alive = True
        self._endpoints = endpoints
        self._epoch: bytes | None = None
        self._ring.append(hello)
        _senders.add(self)
        self._thread = threading.Thread(target=self._run, name="fsdp-tui-sender", daemon=True)
        self._thread.start()

    @classmethod
    def connect(cls, run_file: Path, hello: Hello) -> Sender:
        """Starts sending to the hub that `run_file` names, whether it is there already or not; waits for a run that is coming up.

        Raises:
            RunError: the run file cannot be read, or speaks another protocol; the run does not come up.
        """
        wait_for_run(run_file)
        return cls(read_run_file(run_file).endpoints, hello)

    def put(self, message: Message | Later) -> None:
        """Takes a message from the training thread; never blocks or raises. The oldest waiting message gives way.

        One that is made `Later` is made by the sender's thread, so that the training thread does not pay for it.
        """
        if not self._alive:
            return
        ring = self._ring
        if len(ring) == RING:
            self.dropped += 1
        ring.append(message)

    def close(self, goodbye: Goodbye, timeout_s: float = 5.0) -> None:
        """Sends what is left and the goodbye, and ends the thread when the hub has them or the time is over."""
        if not self._alive:
            return
        self.put(goodbye)
        self._alive = False
        self._deadline_s = time.monotonic() + timeout_s
        self._closing.set()
        self._thread.join(timeout_s + 0.5)

    def kill(self) -> None:
        """Ends the thread at once, as if the process had been killed; what waits is lost."""
        self._alive = False
        self._ring.clear()
        self._closing.set()
        self._thread.join()

    # The thread

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        rank = self.hello.rank
        # With its peer gone a PUSH keeps what it has queued, and sends it to the hub that binds next.
        up = wire.connect(context, zmq.PUSH, self._endpoints["up"], sndhwm=200)
        control = wire.connect(
            context,
            zmq.DEALER,
            self._endpoints["ranks"],
            identity=wire.rank_identity(rank),
            sndhwm=20,
            maxmsgsize=wire.REQUEST_MAX,
        )
        next_beat_s = next_gauge_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= next_beat_s:
                next_beat_s = now_s + wire.BEAT_S
                self._beat(up, control)
            if now_s >= next_gauge_s:
                next_gauge_s = now_s + GAUGE_S
                self._gauge()
            blocked = not self._send_ring(up)
            if self._closing.is_set() and ((self._heard and not self._ring) or now_s >= self._deadline_s):
                break
            # A full socket is tried again soon; an empty ring is looked at in the same time.
            if control.poll(5 if self._closing.is_set() or blocked else POLL_MS):
                self._receive(control)
        context.destroy(linger=0)

    def _send_ring(self, up: zmq.Socket[bytes]) -> bool:
        """Sends the ring until it is empty (True) or the socket is full (False)."""
        ring = self._ring
        while ring:
            try:
                message = ring.popleft()
            except IndexError:  # the training thread's append has just dropped it
                break
            if isinstance(message, Structure):
                self._structure = message
            if not self._send(up, message):
                if len(ring) < RING:
                    ring.appendleft(message)
                else:
                    self.dropped += 1
                return False
        return True

    def _send(self, up: zmq.Socket[bytes], message: Message | Later) -> bool:
        try:
            body = encode(message() if callable(message) else message)
        except Exception:  # noqa: BLE001  # a probe's odd number must end neither the thread nor the training
            self.dropped += 1
            return True
        if len(body) > wire.MESSAGE_MAX:  # it would cost the connection
            self.dropped += 1
            return True
        try:
            up.send(body, zmq.NOBLOCK)
        except zmq.Again:
            return False
        self.sent += 1
        return True

    def _beat(self, up: zmq.Socket[bytes], control: zmq.Socket[bytes]) -> None:
        beat = Beat(
            rank=self.hello.rank,
            incarnation=self.hello.incarnation,
            sent_ns=time.time_ns(),
            step=self.step,
            sent=self.sent,
            dropped=self.dropped,
            paused=self.paused,
            where=self._where(),
        )
        self._send(up, beat)
        with contextlib.suppress(zmq.Again):
            control.send(wire.PING, zmq.NOBLOCK)

    def _where(self) -> Where | None:
        read = self.where
        try:
            return None if read is None else read()
        except Exception:  # noqa: BLE001  # the training changes what is read here, and its thread waits for nobody
            return None

    def _gauge(self) -> None:
        read = self.read_gauges
        if read is None:
            return
        try:
            self._ring.append(read())
            self.gauge_failures = 0
        except Exception:  # noqa: BLE001  # whatever a driver does: the telemetry goes on without it
            self.gauge_failures += 1
            if self.gauge_failures >= GAUGE_FAILURES:
                self.read_gauges = None

    def _receive(self, control: zmq.Socket[bytes]) -> None:
        while True:
            try:
                frames = control.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 2:
                continue
            if frames[0] == wire.GOODBYE:
                self._heard = True
            elif frames[0] == wire.EPOCH:
                self._meet_hub(frames[1])
            elif frames[0] == wire.COMMAND:
                try:
                    command = decode(frames[1])
                except BadMessage:
                    continue
                if isinstance(command, Command):
                    self._obey(command)
                    with contextlib.suppress(zmq.Again):  # the hub asks again
                        control.send(encode(Ack(rank=self.hello.rank, id=command.id)), zmq.NOBLOCK)

    def _obey(self, command: Command) -> None:
        if command.kind == "stop":
            self.requested.stop = True
        elif command.kind in ("pause", "resume"):
            self.requested.pause = command.kind == "pause"
        elif command.kind == "capture":
            newest = self.requested.capture
            if newest is None or command.number > newest.number:
                self.requested.capture = command
        elif command.kind == "stacks" and (not command.ranks or self.hello.rank in command.ranks):
            self._ring.append(partial(stacks.take, self.hello.rank, command.id, self._training_thread))

    def _meet_hub(self, epoch: bytes) -> None:
        """A hub that is not the one before may not know who we are."""
        if self._epoch is not None and epoch != self._epoch:
            if self._structure is not None:
                self._ring.appendleft(self._structure)
            self._ring.appendleft(self.hello)
        self._epoch = epoch

    def _forget(self) -> None:
        """In a forked child (a data loader's worker): the thread and the sockets are the parent's."""
        self._alive = False


_senders: weakref.WeakSet[Sender] = weakref.WeakSet()


def _after_fork() -> None:
    for sender in _senders:
        sender._forget()


os.register_at_fork(after_in_child=_after_fork)
