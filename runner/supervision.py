"""What a run needs from outside its ranks: a hub that is replaced when it is killed, and a stop that comes to its end.

Both supervisors of runs use it: `runner.launch`, which starts the ranks, and `runner.keeper`, which finds them started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable

import zmq

from fsdp_tui.telemetry import wire
from fsdp_tui.telemetry.launch import first_line
from fsdp_tui.telemetry.messages import Ack, BadMessage, Command, Ended, Event, Message, decode, encode
from fsdp_tui.telemetry.rundir import RunError, RunPaths, read_run_file

RUNGS = ("agreed", "sigterm", "sigkill")
AGREED_S = 30.0
"""How long ranks that have acknowledged a stop may take to their next step boundary."""
ANSWER_S = 3.0
"""How long ranks may take to acknowledge a stop."""
SIGTERM_S = 5.0
PROMPT_S = 1.5
"""A stop that takes longer than this says what it waits for."""
HURRY_S = 1.5
"""Each of the first two rungs, when nobody is left who could wait: all ranks must be gone in five seconds."""
HUB_READY_S = 15.0
RECORDED_S = 10.0
HUB_TRIES_AT_END = 3
PATIENCE = "FSDP_TUI_STOP_PATIENCE"
"""Seconds for the agreed stop and after SIGTERM, as "30,5"."""


class Hub:
    """The hub's process, and its supervisor's channel to it.

    `ranks_stay`: the ranks do not end with their supervisor, and so the hub must not either.
    """

    def __init__(self, paths: RunPaths, context: zmq.Context[zmq.Socket[bytes]], *, ranks_stay: bool = False) -> None:
        self.paths = paths
        self._context = context
        self._ranks_stay = ranks_stay
        self._process: subprocess.Popen[bytes] | None = None
        self.channel: zmq.Socket[bytes] | None = None
        self._next_try_s = 0.0

    def start(self) -> str:
        """Starts a hub and waits until it serves; returns "" or, in one line, why it does not."""
        ready, said = os.pipe()
        command = [sys.executable, "-P", "-m", "fsdp_tui.telemetry.hub", self.paths.id]
        command += ["--launcher", str(os.getpid()), "--ready-fd", str(said)]
        command += ["--ranks-stay"] if self._ranks_stay else []
        try:
            with open(self.paths.launcher_log, "ab") as log:
                # A session of its own: it must be there to say that the launcher was killed.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(said,), start_new_session=True
                )
            os.close(said)
            said = -1
            line = first_line(ready, HUB_READY_S, "the hub")
        except OSError as error:
            return f"the hub cannot be started: {error}"
        finally:
            os.close(ready)
            if said >= 0:
                os.close(said)
        if line != "ready":
            self.stop()
            return line.removeprefix("error: ") or "the hub ended at once"
        if self.channel is None:
            try:
                address = read_run_file(self.paths.run_file).endpoints["ranks"]
            except (RunError, KeyError) as error:
                return str(error)
            self.channel = wire.connect(self._context, zmq.DEALER, address, identity=wire.LAUNCHER, sndhwm=1000)
        return ""

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def keep_alive(self) -> None:
        """Starts a new hub when this one was killed; at most one try a second."""
        if self.alive() or time.monotonic() < self._next_try_s:
            return
        trouble = self.start()
        self._next_try_s = time.monotonic() + 1.0
        if trouble:
            log(f"no hub: {trouble}")

    def send(self, message: Message) -> None:
        """To the hub, now or when there is one again."""
        self._send(encode(message))

    def ask_roster(self, number: bytes) -> None:
        """Asks for every rank's hello and goodbye; the answer, with the same number, comes with what is received."""
        self._send(wire.ROSTER, number)

    def _send(self, *frames: bytes) -> None:
        if self.channel is not None:
            try:
                self.channel.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                log("the hub does not read")

    def receive(self) -> list[list[bytes]]:
        """What the hub has sent since."""
        found: list[list[bytes]] = []
        while self.channel is not None:
            try:
                found.append(self.channel.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
        return found

    def finish(self, ended: Ended) -> str:
        """Has the run's end recorded; returns "" or, in one line, what is missing from the recording."""
        for _ in range(HUB_TRIES_AT_END):
            if not self.alive() and (trouble := self.start()):
                log(f"no hub: {trouble}")
                continue
            self.send(ended)
            deadline_s = time.monotonic() + RECORDED_S
            while time.monotonic() < deadline_s:
                for frames in self.receive():
                    if frames[0] == wire.RECORDED:
                        self._wait(3.0)
                        return frames[1].decode(errors="replace")
                if not self.alive():
                    break
                if self.channel is not None:
                    self.channel.poll(50)
        return "the end of the run could not be recorded: no hub answers"

    def _wait(self, timeout_s: float) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Ends the hub without a word to it."""
        if self._process is not None:
            self._process.terminate()
            self._wait(2.0)


class Ladder:
    """A stop: what the ranks agree on at a step boundary, then SIGTERM, then SIGKILL, each with its patience.

    Args:
        signal_ranks: sends a signal to every rank that is still there.
        listening: whether there is somebody in the ranks who can be asked.
    """

    def __init__(self, hub: Hub, signal_ranks: Callable[[signal.Signals], None], *, listening: bool) -> None:
        self._hub = hub
        self._signal_ranks = signal_ranks
        self._listening = listening
        self.hurry = False
        """Whether nobody is left who could wait."""
        self.rung: str | None = None
        """The highest so far; None: nobody asked to stop."""
        self.since_s = 0.0
        self._acked: set[int] = set()
        self._said = False
        """Whether it was said what the first rung waits for."""
        told = os.environ.get(PATIENCE, "")
        try:
            self._agreed_s, self._sigterm_s = (float(part) for part in told.split(","))
        except ValueError:
            self._agreed_s, self._sigterm_s = AGREED_S, SIGTERM_S

    def reached(self, rung: str) -> bool:
        return self.rung is not None and RUNGS.index(self.rung) >= RUNGS.index(rung)

    def hear(self, frames: list[bytes]) -> None:
        """Takes in what the hub passes on: a viewer's stop, and which ranks have it."""
        if frames[0] != wire.COMMAND or len(frames) != 2:
            return
        try:
            message = decode(frames[1])
        except BadMessage:
            return
        if isinstance(message, Ack):
            self._acked.add(message.rank)
        elif isinstance(message, Command) and message.kind == "stop":
            self._hub.send(Ack(rank=0, id=message.id))
            if self.rung is None:
                # The ranks have it from the hub.
                self._enter("agreed", "a viewer asked to stop")

    def climb(self, why: str) -> None:
        """The next rung."""
        if self.rung is None:
            if self._listening:
                self._hub.send(Command(id=uuid.uuid4().hex, kind="stop"))
                self._enter("agreed", why)
            else:
                self._enter("sigterm", why)
        elif self.rung != RUNGS[-1]:
            self._enter(RUNGS[RUNGS.index(self.rung) + 1], why)

    def climb_in_time(self, alive: set[int]) -> None:
        """Goes on to the next rung when this one has had its time; `alive` are the ranks that are still there."""
        if self.rung is None:
            return
        waited_s = time.monotonic() - self.since_s
        if self.rung == "agreed":
            answered = bool(alive) and alive <= self._acked
            if waited_s > (HURRY_S if self.hurry else min(ANSWER_S, self._agreed_s)) and not answered:
                self.climb(f"no answer to the stop for {waited_s:.0f} s")
            elif waited_s > (HURRY_S if self.hurry else self._agreed_s):
                self.climb(f"no step boundary for {waited_s:.0f} s")
            elif waited_s > PROMPT_S and not self._said and not self.hurry:
                self._said = True
                self._say("stop_waits", "note", self._waits_for(answered))
        elif self.rung == "sigterm" and waited_s > (HURRY_S if self.hurry else self._sigterm_s):
            self.climb(f"still there {waited_s:.0f} s after SIGTERM")
        elif self.rung == "sigkill" and waited_s > 1.0:
            # A rank may have come up meanwhile.
            self.since_s = time.monotonic()
            self._signal_ranks(signal.SIGKILL)

    def _enter(self, rung: str, why: str) -> None:
        self.rung = rung
        self.since_s = time.monotonic()
        if rung == "agreed":
            return
        self._signal_ranks(signal.SIGTERM if rung == "sigterm" else signal.SIGKILL)
        then = f"; SIGKILL after {HURRY_S if self.hurry else self._sigterm_s:g} s" if rung == "sigterm" else ""
        self._say(f"stop_{rung}", "warn", f"{rung.upper()} to all ranks: {why}{then}")

    def _waits_for(self, answered: bool) -> str:
        patience_s = self._agreed_s if answered else min(ANSWER_S, self._agreed_s)
        waits = "for the step that they are in to end" if answered else "for all ranks to answer"
        return (
            f"asked to stop at a step boundary, and waiting {waits}: SIGTERM after {patience_s:g} s,"
            f" SIGKILL {self._sigterm_s:g} s after that"
        )

    def _say(self, kind: str, severity: str, text: str) -> None:
        self._hub.send(Event(at_ns=time.time_ns(), kind=kind, severity=severity, text=text))


def how(rank: int, code: int, said: str) -> str:
    """How a rank ended, with the last line of its error if there is one."""
    return f"rank {rank} {code_text(code)}" + (f": {said[:300]}" if said else "")


def code_text(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def log(text: str) -> None:
    """A line for `logs --rank -1`, if there is room for it."""
    with contextlib.suppress(OSError):
        print(f"fsdp-tui launcher: {text}", file=sys.stderr, flush=True)
