"""A training that nobody runs: what its ranks say, and a process that says it to a real hub (`python -m benchmarks.simulated`).

The messages are those of ranks on 80 GiB GPUs under fully_shard, each step in the sizes of a real one. In each step a
share of the ranks, others every time, have other times and another memory than in their step before.
"""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np
import psutil
import zmq
from numpy.typing import NDArray

from fsdp_tui.runner.supervision import Hub
from fsdp_tui.telemetry import places, wire
from fsdp_tui.telemetry.launch import LaunchSpec, make_run
from fsdp_tui.telemetry.messages import (
    CATEGORIES,
    TOTAL_CATEGORIES,
    Beat,
    Comm,
    Gauge,
    Hello,
    Launched,
    Message,
    Step,
    Structure,
    Unit,
    Where,
    encode,
)
from fsdp_tui.telemetry.rundir import RunPaths, entry_of, paths_of, read_run_file
from fsdp_tui.telemetry.state import step_window

BEGAN_NS = 10**18
GIB, MIB = 2**30, 2**20
PARAMS = 7_000_000_000
GAUGE_S = 1.0
TURN_S = 0.01
"""The process looks at what is due this often."""


def column(**nbytes: int) -> list[int | None]:
    """Memory of a rank on a GPU: what NVML reads comes apart from the steps, in gauges."""
    values: list[int | None] = [nbytes.get(name, None if name in ("non_torch", "others") else 0) for name in CATEGORIES]
    return [*values, sum(values[at] or 0 for at in range(len(TOTAL_CATEGORIES)))]


class Training:
    """All ranks of a training. `advance` goes to the next step, and the messages are those of it.

    Attributes:
        changing: the share of ranks whose numbers change in a step.
        number: of the step; 0 before the first.
    """

    def __init__(self, ranks: int, units: int, step_ns: int, changing: float = 1.0, began_ns: int = BEGAN_NS) -> None:
        self.ranks = ranks
        self.step_ns = step_ns
        self.changing = changing
        self.began_ns = began_ns
        self.number = 0
        self._chance = np.random.default_rng(1)
        forward = [(unit, 0, 0) for unit in range(units)]
        backward = [call for unit in reversed(range(units)) for call in ((unit, 0, 1), (unit, 1, 1))]
        self._unit, self._kind, self._phase = (list(row) for row in zip(*forward, *backward, strict=True))
        self._unit_bytes = 2 * PARAMS // units
        self._units = [
            Unit(f"layers.{at}", PARAMS // units, 4 * PARAMS // units // ranks, self._unit_bytes) for at in range(units)
        ]
        self._group = list(range(ranks))
        # What a rank's calls take together is half of its step.
        self._call_ns = step_ns // (2 * len(self._unit))
        self._times = self._drawn_times(ranks)
        self._activation = self._drawn_activation(ranks)

    def _drawn_times(self, ranks: int) -> NDArray[np.int64]:
        return self._chance.integers(self._call_ns // 2, 2 * self._call_ns, (ranks, len(self._unit)))

    def _drawn_activation(self, ranks: int) -> NDArray[np.int64]:
        return self._chance.integers(20 * GIB, 24 * GIB, ranks)

    def advance(self) -> None:
        """To the next step."""
        self.number += 1
        moved = self._chance.permutation(self.ranks)[: math.ceil(self.changing * self.ranks)]
        self._times[moved] = self._drawn_times(len(moved))
        self._activation[moved] = self._drawn_activation(len(moved))

    # What ranks say

    def launched(self) -> Launched:
        return Launched(
            run_id="20260101-000000-abcd",
            name="simulated",
            created_ns=self.began_ns,
            command=["fsdp-tui", "run", "train.py"],
            nproc=self.ranks,
            strategy="fsdp2:full_shard",
        )

    def hello(self, rank: int) -> Hello:
        return Hello(
            rank=rank,
            world_size=self.ranks,
            incarnation=1,
            host=f"node{rank // 8}",
            pid=100 + rank,
            pid_started=self.began_ns / 1e9,
            device=f"cuda:{rank % 8}",
            device_name="NVIDIA H100 80GB HBM3",
            capacity_bytes=80 * GIB,
            backend="nccl",
            versions={"torch": "2.13.0"},
        )

    def structure(self, rank: int) -> Structure:
        return Structure(
            rank=rank,
            effective="fsdp2:full_shard",
            detail={"wrap": "transformer"},
            units=self._units,
            groups=[self._group],
            params=PARAMS,
            trainable_params=PARAMS,
            param_bytes=4 * PARAMS,
            ideal_state_bytes=16 * PARAMS // self.ranks,
            probes={"ledger": "ok", "nvml": "ok"},
        )

    def beginning(self) -> Iterator[Message]:
        """What comes before the first step."""
        yield self.launched()
        for rank in range(self.ranks):
            yield self.hello(rank)
            yield self.structure(rank)

    def step(self, rank: int) -> Step:
        share = PARAMS // self.ranks
        states = {"param_shard": 4 * share, "grad_shard": 4 * share, "optimizer": 8 * share, "cache": 2 * GIB}
        activation, waited_ns = int(self._activation[rank]), int(self._times[rank, 0])
        spent_ns = self.step_ns + waited_ns
        return Step(
            rank=rank,
            seq=self.number,
            step=self.number,
            ended_ns=self.began_ns + self.number * self.step_ns + rank * 1_000,
            step_ns=spent_ns,
            phases_ns=[10**6, spent_ns // 3, spent_ns // 2, spent_ns // 10, spent_ns // 15 - 10**6, None],
            loss=5 / (1 + self.number / 1_000) + (rank + self.number) % 7 / 1_000,
            tokens=4_096,
            memory=column(**states),
            peak=column(**states, activation=activation, param_unsharded=2 * self._unit_bytes),
            peak_phase="backward",
            peak_unit=1,
            dropped=0,
            overhead_ns=400_000,
            looked_step=self.number,
            peak_units=2,
            samples=8,
            metrics={"lr": 1e-3},
            forwards=1,
            backwards=1,
        )

    def comm(self, rank: int) -> Comm:
        calls = len(self._unit)
        times = self._times[rank]
        return Comm(
            rank=rank,
            seq=self.number,
            step=self.number,
            unit=self._unit,
            kind=self._kind,
            phase=self._phase,
            group=[0] * calls,
            nbytes=[self._unit_bytes] * calls,
            duration_ns=times.tolist(),
            exposed_ns=(times // 4).tolist(),
        )

    def beat(self, rank: int, now_ns: int) -> Beat:
        where = Where("backward", 3 * len(self._units) * self.number, 0, self.number % len(self._units), True)
        return Beat(rank=rank, incarnation=1, sent_ns=now_ns, step=self.number, sent=1, dropped=0, where=where)

    def gauge(self, rank: int, now_ns: int) -> Gauge:
        return Gauge(
            rank=rank,
            taken_ns=now_ns,
            values={
                "rss_bytes": 4 * GIB,
                "allocated_bytes": int(self._activation[rank]),
                "reserved_bytes": int(self._activation[rank]) + 2 * GIB,
                "retries": 0,
                "ooms": 0,
                "nvml_total_bytes": 80 * GIB,
                "nvml_used_bytes": 60 * GIB,
                "nvml_ours_bytes": 60 * GIB,
                "nvml_others_bytes": 0,
                "non_torch_bytes": 600 * MIB,
                "utilization_percent": 97,
                "power_mw": 650_000,
                "power_limit_mw": 700_000,
                "temperature_c": 64,
                "throttle_reasons": 0,
                "ecc_uncorrected": 0,
            },
            throttle=[],
            others=[],
        )


class Ranks:
    """The sockets of all ranks, in this process: of each what `runner.sender` has, with its limits."""

    def __init__(self, training: Training, paths: RunPaths) -> None:
        self.training = training
        self.sent = self.dropped = 0
        endpoints = read_run_file(paths.run_file).endpoints
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 2 * training.ranks + 10)
        self._up = [wire.connect(self._context, zmq.PUSH, endpoints["up"], sndhwm=200) for _ in range(training.ranks)]
        self._control = [
            wire.connect(self._context, zmq.DEALER, endpoints["ranks"], identity=wire.rank_identity(rank), sndhwm=20)
            for rank in range(training.ranks)
        ]

    def send(self, rank: int, message: Message, flags: int = zmq.NOBLOCK) -> None:
        try:
            self._up[rank].send(encode(message), flags)
        except zmq.Again:  # a real rank keeps it a while
            self.dropped += 1
        else:
            self.sent += 1

    def ping(self, rank: int) -> None:
        """As a sender does with each heartbeat; what the hub answered to the one before is read."""
        control = self._control[rank]
        with suppress(zmq.Again):
            control.send(wire.PING, zmq.NOBLOCK)
            while True:
                control.recv_multipart(zmq.NOBLOCK)

    def begin(self, steps: int) -> None:
        """The first steps, as fast as the hub takes them."""
        training, ranks = self.training, range(self.training.ranks)
        for rank in ranks:
            self.send(rank, training.hello(rank), 0)
            self.send(rank, training.structure(rank), 0)
        for _ in range(steps):
            training.advance()
            for rank in ranks:
                self.send(rank, training.step(rank), 0)
                self.send(rank, training.comm(rank), 0)

    def train(self) -> None:
        """Says everything that is due, when it is due: heartbeats and readings evenly, each step from all ranks at once.

        Until stdin ends.
        """
        training, ranks = self.training, range(self.training.ranks)
        began_s = step_s = time.monotonic()
        beats, gauges = ([began_s + every * rank / len(ranks) for rank in ranks] for every in (wire.BEAT_S, GAUGE_S))
        while True:
            now_s, now_ns = time.monotonic(), time.time_ns()
            for rank in ranks:
                if now_s >= beats[rank]:
                    beats[rank] += wire.BEAT_S
                    self.send(rank, training.beat(rank, now_ns))
                    self.ping(rank)
                if now_s >= gauges[rank]:
                    gauges[rank] += GAUGE_S
                    self.send(rank, training.gauge(rank, now_ns))
            if now_s >= step_s:
                step_s += training.step_ns / 1e9
                training.advance()
                for rank in ranks:
                    self.send(rank, training.step(rank))
                    self.send(rank, training.comm(rank))
            if select.select([sys.stdin], [], [], max(0.0, now_s + TURN_S - time.monotonic()))[0]:
                return

    def close(self) -> None:
        self._context.destroy(linger=0)


class Said(NamedTuple):
    """What the ranks have said, all together, since the begin of the run's time."""

    messages: int
    dropped: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds


class Live:
    """A live run: its hub and its ranks, each a process."""

    def __init__(self, run_id: str, hub_pid: int, ranks: subprocess.Popen[str]) -> None:
        self.id = run_id
        self.hub = psutil.Process(hub_pid)
        self._ranks = ranks

    def wait(self, steps: int, patience_s: float = 120) -> None:
        """Until the hub has these steps."""
        end_s = time.monotonic() + patience_s
        while entry_of(self.id).steps < steps:
            if time.monotonic() > end_s:
                raise TimeoutError(f"{steps} steps are not there after {patience_s:g} s")
            time.sleep(0.2)

    def end(self) -> Said:
        """Ends the ranks; they, and the hub, go without a word."""
        said, _ = self._ranks.communicate(timeout=20)
        return Said(**json.loads(said))


@contextmanager
def live(ranks: int, units: int, step_s: float, *, changing: float = 1.0, refresh: float = 2.0) -> Iterator[Live]:
    """A run in a home of its own, where dashboards are drawn `refresh` times a second; gone when it is left.

    When it is there it has made as many steps as windows hold. `changing`: see Training.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FSDP_TUI_HOME": f"{folder}/home", "FSDP_TUI_RUNTIME_DIR": f"{folder}/live"}
        paths, _ = make_run(LaunchSpec(name="simulated", nproc=ranks, strategy="fsdp2:full_shard"), ranks)
        (places.home() / "config.toml").write_text(f"refresh = {refresh}\n")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        hub = Hub(paths, context)
        if trouble := hub.start():
            raise RuntimeError(trouble)
        hub_process = read_run_file(paths.run_file).hub
        assert hub_process is not None
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.simulated", paths.id, *map(str, (ranks, units, step_s, changing))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            run = Live(paths.id, hub_process.pid, process)
            run.wait(history(ranks))
            yield run
        finally:
            process.kill()
            process.wait()
            hub.stop()
            context.destroy(linger=0)


def history(ranks: int) -> int:
    """Steps that fill the windows."""
    return step_window(ranks) + 2


def main(run_id: str, ranks: int, units: int, step_ns: int, changing: float) -> None:
    """The ranks' process; says at its end what they have sent."""
    before = history(ranks)
    training = Training(ranks, units, step_ns, changing, began_ns=time.time_ns() - before * step_ns)
    said = Ranks(training, paths_of(run_id))
    said.begin(before)
    said.sent, began_s = 0, time.monotonic()
    said.train()
    print(json.dumps(Said(said.sent, said.dropped, time.monotonic() - began_s)._asdict()))
    said.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), round(float(sys.argv[4]) * 1e9), float(sys.argv[5]))
