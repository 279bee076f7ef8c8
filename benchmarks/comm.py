"""What the Comm screen costs a viewer of a large run: the whole program in a terminal, from the messages to the escape codes.

64 ranks x 80 units make a step a second, every time of every call another one; the screen is drawn four times a second.
"""

from __future__ import annotations

import json
import os
import pty
import select
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import numpy as np

from fsdp_tui.telemetry.messages import Beat, Comm, Hello, Launched, Message, Step, Structure, Unit, decode, encode
from fsdp_tui.telemetry.rundir import RunEntry, RunPaths
from fsdp_tui.telemetry.state import COMM_WINDOW, RunState
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui import app
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.screens.comm import CommScreen
from fsdp_tui.tui.source import real_services

RANKS, UNITS = 64, 80
STEP_NS = 1_000_000_000
WARM_S, MEASURED_S = 4.0, 12.0
HZ = 4.0
SIZES = ((120, 40), (200, 60))


class Made:
    """A live run that makes itself: a step of all ranks a second, heartbeats twice a second."""

    live = True

    def __init__(self) -> None:
        about = RunPaths("bench", Path("/nowhere"), Path("/nowhere"))
        self.entry = RunEntry(
            id="bench",
            name="bench",
            state="running",
            live=True,
            created_ns=0,
            ended_ns=None,
            strategy="fsdp2:full_shard",
            effective="fsdp2:full_shard",
            world_size=RANKS,
            steps=0,
            planned_steps=None,
            loss=None,
            problem="",
            paths=about,
        )
        self.state = RunState()
        self._chance = np.random.default_rng(1)
        for message in self._beginning():
            self.state.apply(message)
        self._number = 0
        for _ in range(COMM_WINDOW + 2):
            for body in self._step():
                self.state.apply(decode(body))
        self._bodies = [self._step() for _ in range(int(WARM_S + MEASURED_S) + 4)]
        self._next_step_s = self._next_beat_s = time.monotonic()

    def _beginning(self) -> Iterator[Message]:
        yield Launched(run_id="bench", name="bench", created_ns=0, command=[], nproc=RANKS, strategy="fsdp2:full_shard")
        for rank in range(RANKS):
            yield Hello(
                rank=rank,
                world_size=RANKS,
                incarnation=1,
                host=f"node{rank // 8}",
                pid=rank,
                pid_started=0.0,
                device=f"cuda:{rank % 8}",
                device_name="H100",
                capacity_bytes=80 * 2**30,
                backend="nccl",
                versions={},
            )
            yield Structure(
                rank=rank,
                effective="fsdp2:full_shard",
                detail={},
                units=[Unit(f"layers.{at}", 10**6, 4 * 10**6 // RANKS, 4 * 10**6) for at in range(UNITS)],
                groups=[list(range(RANKS))],
            )

    def _step(self) -> list[bytes]:
        self._number += 1
        calls = [(unit, 0, 0) for unit in range(UNITS)]
        calls += [call for unit in reversed(range(UNITS)) for call in ((unit, 0, 1), (unit, 1, 1))]
        times = self._chance.integers(500_000, 5_000_000, (RANKS, len(calls)))
        bodies = []
        for rank in range(RANKS):
            memory = [2**30] * 10 + [None] * 3 + [10 * 2**30]
            bodies.append(
                encode(
                    Step(
                        rank=rank,
                        seq=self._number,
                        step=self._number,
                        ended_ns=self._number * STEP_NS,
                        step_ns=STEP_NS + int(times[rank, 0]),
                        phases_ns=[10**6, 3 * 10**8, 6 * 10**8, 5 * 10**7, 5 * 10**7],
                        loss=2.0,
                        tokens=4096,
                        memory=memory,
                        peak=memory,
                        peak_phase="backward",
                        peak_unit=3,
                        dropped=0,
                        overhead_ns=400_000,
                    )
                )
            )
            bodies.append(
                encode(
                    Comm(
                        rank=rank,
                        seq=self._number,
                        step=self._number,
                        unit=[unit for unit, _, _ in calls],
                        kind=[kind for _, kind, _ in calls],
                        phase=[phase for _, _, phase in calls],
                        group=[0] * len(calls),
                        nbytes=[4 * 10**6] * len(calls),
                        duration_ns=times[rank].tolist(),
                        exposed_ns=(times[rank] // 4).tolist(),
                    )
                )
            )
        return bodies

    def poll(self, max_ms: int) -> bool:
        now_s, changed = time.monotonic(), False
        if now_s >= self._next_step_s and self._bodies:
            self._next_step_s, changed = now_s + STEP_NS / 1e9, True
            for body in self._bodies.pop():
                self.state.apply(decode(body))
        if now_s >= self._next_beat_s:
            self._next_beat_s, changed = now_s + 0.5, True
            for rank in range(RANKS):
                self.state.apply(Beat(rank=rank, incarnation=1, sent_ns=time.time_ns(), step=1, sent=1, dropped=0))
        if not changed:
            time.sleep(max_ms / 1000)
        return changed

    def view(self) -> RunView:
        return self.state.view()

    def command(self, kind: str, ranks: Sequence[int] = ()) -> None:
        """There is nobody to obey."""

    def close(self) -> None:
        """Nothing is held."""


class Watched(Dashboard):
    """Opens on the Comm screen, and says what it took."""

    CSS_PATH = str(Path(app.__file__).with_name("dashboard.tcss"))

    def __init__(self, made: Made, said: Path) -> None:
        services = replace(
            real_services(),
            list_runs=lambda: [made.entry],
            find=lambda ref: made.entry,
            open_run=lambda entry: made,
            stopwatch_s=time.thread_time,  # what else runs on this machine does not slow the rate
        )
        super().__init__(services, open_on=made.entry)
        self._said = said

    def on_mount(self) -> None:
        super().on_mount()
        self.pace.asked = self.pace.hz = HZ
        self._set_rate()
        self.set_timer(1.0, lambda: self.action_show("comm"))
        self.set_timer(WARM_S, self._begin)
        self.set_timer(WARM_S + MEASURED_S, self._end)

    def _begin(self) -> None:
        self._began = (time.process_time(), time.monotonic())

    def _end(self) -> None:
        cpu_s, wall_s = time.process_time() - self._began[0], time.monotonic() - self._began[1]
        shown = isinstance(self.screen, CommScreen) and self.screen.map is not None
        self._said.write_text(json.dumps({"share": cpu_s / wall_s, "hz": self.pace.hz, "shown": shown}))
        self.exit(0)


def watch(size: tuple[int, int]) -> tuple[float, float, float]:
    """Share of a core, bytes to the terminal per second, and the rate at the end."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        os.environ |= {"COLORTERM": "truecolor", "TERM": "xterm-256color", "FSDP_TUI_HOME": folder}
        pid, terminal = pty.fork()
        if pid == 0:
            Watched(Made(), said).run()
            os._exit(0)
        ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        taken, tail = 0, b""
        try:
            while True:
                if select.select([terminal], [], [], 60)[0]:
                    tail = os.read(terminal, 1 << 16)
                    taken += len(tail)
                else:
                    raise TimeoutError("the dashboard says nothing")
        except OSError:  # it has ended
            pass
        os.waitpid(pid, 0)
        if not said.exists():
            raise RuntimeError(f"the dashboard ended early: {tail[-2000:].decode(errors='replace')}")
        found = json.loads(said.read_text())
        assert found["shown"], "the Comm screen was not there"
        return found["share"], taken / (WARM_S + MEASURED_S), found["hz"]


def run() -> Iterator[str]:
    """A line per size of the terminal."""
    for size in SIZES:
        share, rate, hz = watch(size)
        yield (
            f"Comm {RANKS} ranks x {UNITS} units, {size[0]}x{size[1]}, all cells change once a second, drawn at {hz:g} Hz:"
            f" {share:.1%} of a core, {rate / 1000:.0f} kB/s"
        )


if __name__ == "__main__":
    for line in run():
        print(line, file=sys.stdout, flush=True)
