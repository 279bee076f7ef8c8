"""A hub in a process of its own, and the test in the place of its launcher and its ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil
import zmq

from fsdp_tui.runner.sender import Sender
from fsdp_tui.telemetry import wire
from fsdp_tui.telemetry.launch import Launch, LaunchSpec
from fsdp_tui.telemetry.messages import Ended, Hello, Message, encode
from fsdp_tui.telemetry.rundir import RunPaths, create_run, read_run_file, write_file
from tests.unit.telemetry.messages_for_tests import hello

T = TypeVar("T")


def until(met: Callable[[], T], what: str, timeout_s: float = 60.0) -> T:
    """Waits for a condition and returns its (true) value."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := met()):
        assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s} s"
        time.sleep(0.01)
    return value


def new_run(name: str = "a", nproc: int = 2) -> RunPaths:
    """The directories of a launch."""
    now_ns = time.time_ns()
    paths = create_run(now_ns)
    launch = Launch(run_id=paths.id, name=name, created_ns=now_ns, nproc=nproc, spec=LaunchSpec(nproc=nproc))
    write_file(paths.launch, msgspec.json.encode(launch))
    return paths


def here(rank: int, world_size: int = 2, incarnation: int = 1) -> Hello:
    """A rank that is this process."""
    me = psutil.Process()
    return msgspec.structs.replace(
        hello(rank, world_size, incarnation), host=os.uname().nodename, pid=me.pid, pid_started=me.create_time()
    )


class HubProcess:
    """`python -m fsdp_tui.telemetry.hub` for one run; this process is its launcher."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.process: subprocess.Popen[bytes] | None = None
        self.senders: list[Sender] = []
        self._sockets: list[zmq.Socket[bytes]] = []
        self._channel: zmq.Socket[bytes] | None = None

    def start(self) -> str:
        """Starts it; returns what it says when it is ready."""
        ready, said = os.pipe()
        command = [sys.executable, "-m", "fsdp_tui.telemetry.hub", self.paths.id]
        with open(self.paths.launcher_log, "ab") as log:
            self.process = subprocess.Popen(
                [*command, "--launcher", str(os.getpid()), "--ready-fd", str(said)],
                pass_fds=(said,),
                stdout=log,
                stderr=log,
            )
        os.close(said)
        with open(ready, "rb") as pipe:
            return pipe.readline().decode().strip()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def sender(self, rank: int, world_size: int = 2) -> Sender:
        """A rank's sender, in this process."""
        made = Sender.connect(self.paths.run_file, here(rank, world_size))
        self.senders.append(made)
        return made

    def connect(self, kind: int, name: str, **options: int | bytes) -> zmq.Socket[bytes]:
        """A socket of the test's own at one of the hub's."""
        made = wire.connect(self.context, kind, read_run_file(self.paths.run_file).endpoints[name], **options)
        self._sockets.append(made)
        return made

    @property
    def channel(self) -> zmq.Socket[bytes]:
        """The launcher's."""
        if self._channel is None:
            self._channel = self.connect(zmq.DEALER, "ranks", identity=wire.LAUNCHER)
        return self._channel

    def say(self, message: Message) -> None:
        self.channel.send(encode(message))

    def end(self, state: str = "finished") -> str:
        """Ends the run; returns what is missing from the recording."""
        self.say(Ended(state=state, ended_ns=time.time_ns(), exit_codes={"0": 0}))
        while True:
            assert self.channel.poll(60_000), "the hub does not confirm the end"
            frames = self.channel.recv_multipart()
            if frames[0] == wire.RECORDED:
                assert self.process is not None
                assert self.process.wait(60) == 0
                return frames[1].decode()

    def log(self) -> str:
        return Path(self.paths.launcher_log).read_text()

    def close(self) -> None:
        for sender in self.senders:
            sender.kill()
        if self.process is not None:
            self.kill()
        self.context.destroy(linger=0)
