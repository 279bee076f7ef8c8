"""What one message costs the training thread.

Three cases: no hub, a hub that reads, a hub that is stuck (its sockets accept, nobody reads). The goal is under 10 us
at the median in each of them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zmq

from fsdp_tui.runner.sender import Sender
from fsdp_tui.telemetry.messages import Goodbye, Hello, Step
from fsdp_tui.telemetry.rundir import RunFile

MESSAGES = 5_000
PAUSE_S = 0.0005
"""Between messages: about 2,000 a second, ten times what a fast training sends."""


def step(number: int) -> Step:
    column: list[int | None] = [2**30 + at for at in range(14)]
    return Step(
        rank=0,
        seq=number,
        step=number,
        ended_ns=time.time_ns(),
        step_ns=10**8,
        phases_ns=[None, 10**7, 2 * 10**7, 10**6, 10**6],
        loss=2.5,
        tokens=4096,
        memory=column,
        peak=column,
        peak_phase="backward",
        peak_unit=3,
        dropped=0,
        overhead_ns=10**5,
    )


def measure(folder: Path, count: int, hub: str) -> str:
    """One line on a hub that is "none", "reading" or "stuck"."""
    endpoints = {name: f"ipc://{folder}/{hub}-{name}" for name in ("up", "ranks")}
    run_file = folder / f"{hub}.json"
    run_file.write_bytes(msgspec.json.encode(RunFile(run_id="bench", host="", kept="", endpoints=endpoints)))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = []
    if hub != "none":
        for kind, name in ((zmq.PULL, "up"), (zmq.ROUTER, "ranks")):
            socket = context.socket(kind)
            socket.bind(endpoints[name])
            sockets.append(socket)
    hello = Hello(
        rank=0,
        world_size=1,
        incarnation=1,
        host="",
        pid=1,
        pid_started=0.0,
        device="cpu",
        device_name="",
        capacity_bytes=None,
        backend="gloo",
        versions={},
    )
    sender = Sender.connect(run_file, hello)
    spent = []
    for number in range(count):
        message = step(number)
        began = time.perf_counter_ns()
        sender.put(message)
        spent.append(time.perf_counter_ns() - began)
        time.sleep(PAUSE_S)
        while hub == "reading" and sockets[0].poll(0):
            sockets[0].recv()
    sender.close(Goodbye(rank=0, incarnation=1, reason="finished", steps=count), timeout_s=0.2)
    context.destroy(linger=0)
    spent.sort()
    median, late = (spent[int(part * (len(spent) - 1))] / 1000 for part in (0.5, 0.99))
    return (
        f"hub {hub:8} put {median:6.2f} us median  {late:6.2f} us p99"
        f"  sent {sender.sent:6,}  dropped {sender.dropped:6,}"
    )


def run() -> Iterator[str]:
    """One line per case."""
    with tempfile.TemporaryDirectory() as folder:
        for hub in ("none", "reading", "stuck"):
            yield measure(Path(folder), MESSAGES, hub)
