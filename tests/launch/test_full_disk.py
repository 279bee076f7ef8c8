"""A disk that fills up while ranks train: they go on, viewers see them, and what could not be recorded is told, also afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdp_tui.telemetry.client import RunClient, open_run
from fsdp_tui.telemetry.rundir import resolve
from fsdp_tui.telemetry.view import Verdict
from fsdp_tui.tui.cli import main
from tests.launch.conftest import Launch, until

TRAIN = """\
import time
import torch
import torch.distributed as dist
from torch import nn
from fsdp_tui.runner import shard, watch

print("begins", flush=True)  # the page of the log that is written to at the end
torch.manual_seed(0)
model = shard(nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16)), "fsdp2:full_shard")
optimizer = torch.optim.AdamW(model.parameters())
with watch(model, optimizer) as run:
    while True:
        optimizer.zero_grad()
        loss = model(torch.ones(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        if not run.step(loss):
            break
        time.sleep(0.01)
dist.destroy_process_group()
"""


@pytest.fixture
def small_home(places: Path) -> Iterator[Path]:
    """A home with room for little; skipped where no small disk can be mounted."""
    home = places / "home"
    home.mkdir()
    if shutil.which("mount") is None or os.getuid() != 0:
        pytest.skip("a small disk needs root to be mounted")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(home)], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield home
    subprocess.run(["umount", "-l", str(home)], check=True)


def _fill(disk: Path) -> Path:
    filler, room = disk / "filler", os.statvfs(disk)
    filler.write_bytes(b"x" * (room.f_bavail * room.f_bsize))
    return filler


def _found(client: RunClient, kind: str) -> Verdict | None:
    client.poll(50)
    return next((verdict for verdict in client.view().verdicts if verdict.kind == kind), None)


def test_a_run_on_a_full_disk_ends_as_it_did(
    small_home: Path, launch: Launch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its last state is written over the one before it, which needs no room; the recording says where it ends, and why."""
    run = launch(TRAIN)
    run.pids()
    with run.open() as client:
        assert _found(client, "not_recorded") is None
        _fill(small_home)
        verdict = until(lambda: _found(client, "not_recorded"), "it is told", 60)
        assert verdict is not None
        since, told = verdict.expected, verdict.measured
        assert (verdict.severity, verdict.unit) == ("warn", "steps")
        assert since is not None
        assert told is not None
        assert verdict.what.startswith(f"not recorded since step {since:,}")
        assert verdict.reason.startswith(f"cannot write {run.paths.recording}: the disk is full")
        seen = client.view().steps
        until(lambda: client.poll(50) and client.view().steps > seen + 20, "the live view goes on", 60)
        until(lambda: "not recorded since step" in resolve(run.run_id).problem, "lists tell it too", 30)
        client.command("stop")
        until(lambda: client.poll(50) is not None and not client.live, "it ends", 60)
        assert client.view().steps > seen + 20, "what was seen live is not taken back"
    assert run.wait(60) == 0
    entry = resolve(run.run_id)
    assert (entry.state, entry.live) == ("stopped", False)
    assert f"not recorded since step {since:,}: cannot write" in entry.problem
    with open_run(run.run_id) as recorded:
        view = recorded.view()
        after = _found(recorded, "not_recorded")
    assert view.state == "stopped"
    assert after is not None
    assert after.reason.endswith(f"the disk is full; it went on to step {entry.steps:,}")
    assert after.expected == view.steps < entry.steps
    assert main(["show", run.run_id, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["run"]["state"] == "stopped"


def test_when_there_is_room_again_the_recording_is_whole(small_home: Path, launch: Launch) -> None:
    """What memory held meanwhile is written, and the finding goes."""
    run = launch(TRAIN)
    run.pids()
    with run.open() as client:
        filler = _fill(small_home)
        until(lambda: _found(client, "not_recorded"), "it is told", 60)
        filler.unlink()
        until(lambda: _found(client, "not_recorded") is None, "it is recorded again", 60)
        client.command("stop")
        until(lambda: client.poll(50) is not None and not client.live, "it ends", 60)
    assert run.wait(60) == 0
    with open_run(run.run_id) as recorded:
        steps = recorded.view().series.steps
        assert list(steps) == list(range(1, len(steps) + 1))
        assert _found(recorded, "not_recorded") is None
    assert resolve(run.run_id).problem == ""
