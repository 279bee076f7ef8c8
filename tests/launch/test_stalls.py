"""A training that stands still is told, with who is behind and where each rank is; stacks come from ranks that hang."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import Any

import pytest

from fsdp_tui.telemetry import stalls
from fsdp_tui.telemetry.client import RunClient
from fsdp_tui.telemetry.view import Verdict
from fsdp_tui.tui.cli import main
from tests.launch.conftest import Launch, Launched, until
from tests.launch.test_full_disk import TRAIN

HANGS = """\
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", timeout=timedelta(seconds=300))
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3)))
for block in model:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(12):
    if step == 10 and dist.get_rank() == 1:
        time.sleep(300)  # waits for a batch that never comes
    model(torch.ones(4, 16)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
STEPS = 9
"""That both have told: a step of a script that knows nothing of us ends when the training goes on."""


def _stacks(run: Launched, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, document and messages of `fsdp-tui stacks`."""
    code = main(["stacks", run.run_id, "--json", *words])
    out, err = capfd.readouterr()
    return code, json.loads(out), err


def _found(client: RunClient, kind: str) -> Verdict | None:
    client.poll(100)
    return next((verdict for verdict in client.view().verdicts if verdict.kind == kind), None)


def _await(client: RunClient, kind: str) -> Verdict:
    until(lambda: _found(client, kind), f"a finding of kind {kind}")
    return next(verdict for verdict in client.view().verdicts if verdict.kind == kind)


def test_a_rank_that_hangs(launch: Launch, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 waits in the first gather of its eleventh step for rank 1, which does not come to it."""
    monkeypatch.setenv("FSDP_TUI_STOP_PATIENCE", "0.5,0.5")
    run = launch(HANGS)
    with run.open() as client:

        def hanging() -> bool:
            client.poll(50)
            run = client.view()
            still = [rank for rank in run.ranks if rank.progress and rank.progress.idle_ns > 1e9]
            return run.steps == STEPS and len(still) == 2

        until(hanging, "both ranks stand still")
        assert _found(client, "stalled") is None, "it may still be a long step"

        code, document, _ = _stacks(run, capfd)
        assert (code, document["missing"]) == (0, [])
        waiting, sleeping = (rank["threads"][0] for rank in document["stacks"])
        assert (waiting["name"], sleeping["name"]) == ("training", "training")
        assert all(thread["frames"][0]["file"].endswith("train.py") for thread in (waiting, sleeping))
        lines = HANGS.splitlines()
        assert sleeping["frames"][-1]["code"] == lines[sleeping["frames"][-1]["line"] - 1].strip()
        assert sleeping["frames"][-1]["code"].startswith("time.sleep(300)")
        assert waiting["frames"][0]["code"] == "model(torch.ones(4, 16)).mean().backward()"
        assert any("all_gather" in frame["function"] for frame in waiting["frames"])
        at = document["stacks"][0]["progress"]
        assert (at["phase"], at["collective"], at["unit"], at["inside"]) == ("forward", "all_gather", "0", True)
        assert at["collectives"] == document["stacks"][1]["progress"]["collectives"] + 1
        code, document, _ = _stacks(run, capfd, "--rank", "1")
        assert [rank["rank"] for rank in document["stacks"]] == [1]
        assert main(["stacks", run.run_id]) == 0
        assert "rank 0 waits in the all-gather of 0 (forward)" in capfd.readouterr().out
        assert main(["stacks", run.run_id, "--rank", "7"]) == 1
        assert "has no rank 7: it has 0, 1" in capfd.readouterr().err

        stalled = _await(client, "stalled")
        assert (stalled.severity, stalled.unit) == ("warn", "ns")
        assert stalled.measured is not None
        assert stalled.measured >= stalls.STALLED_NS
        assert "rank 1 is behind" in stalled.what
        assert stalled.reason.startswith("rank 1 is between the phases of a step")
        assert "rank 0 waits in the all-gather of 0 (forward), collective " in stalled.reason

        pids = {rank: known.hello.pid for rank, known in client.state.ranks.items() if known.hello}
        os.kill(pids[1], signal.SIGSTOP)
        try:
            code, document, said = _stacks(run, capfd)
            assert (code, document["missing"], [rank["rank"] for rank in document["stacks"]]) == (1, [1], [0])
            assert "rank 1 does not answer" in said
            silent = _await(client, "rank_silent")
            assert silent.what.startswith("rank 1 does not answer")
            assert str(pids[1]) in silent.next
            until(lambda: client.poll(100) is not None and _events(client, "rank_silent"), "the hub says so too")
            (words,) = _events(client, "rank_silent")
            assert re.fullmatch(r"rank 1 has not answered for \d\d s", words)
        finally:
            os.kill(pids[1], signal.SIGCONT)
        until(lambda: client.poll(100) is not None and _events(client, "rank_answers"), "it answers again")
        assert _found(client, "rank_silent") is None
        client.command("stop")
        until(lambda: client.poll(100) is not None and not client.live, "it is stopped")
        after = next(verdict for verdict in client.view().verdicts if verdict.kind == "stalled")
        assert after.what.endswith("until the run ended")
        assert main(["stacks", run.run_id]) == 0, "what was asked is on record"
        assert "time.sleep(300)" in capfd.readouterr().out


def test_a_live_healthy_run_neither_stalls_nor_is_silent_until_a_rank_is_stopped(launch: Launch) -> None:
    """Looked at while it trains, for longer than either rule waits; then rank 0 is silent, and rank 1 is where it waits for it."""
    run = launch(TRAIN)
    pids = run.pids()
    with run.open() as client:
        begin_s, begun = time.monotonic(), client.view().steps
        longest_s = max(stalls.STALLED_NS, stalls.SILENT_NS) / 1e9
        while time.monotonic() - begin_s < longest_s + 1:
            assert _found(client, "stalled") is None
            assert _found(client, "rank_silent") is None
        now = client.view()
        assert now.steps > begun + stalls.STALLED_STEPS
        assert all(rank.progress is not None and rank.seen_ns is not None for rank in now.ranks), "the rules have data"

        os.kill(pids[0], signal.SIGSTOP)
        try:
            silent, stalled = _await(client, "rank_silent"), _await(client, "stalled")
            assert silent.what.startswith("rank 0 does not answer")
            assert re.fullmatch(r"no step for [\d.]+ s: rank 0 is silent, the other waits", stalled.what)
            assert re.match(
                r"rank 1 waits in the (all-gather|reduce-scatter) of <root> \(\w+\), collective", stalled.reason
            )
            assert "; by its last heartbeat rank 0 " in stalled.reason
            assert "all ranks are at one place" not in stalled.what
            assert f"stopped or swapped out: see pid {pids[0]} on " in stalled.next
        finally:
            os.kill(pids[0], signal.SIGCONT)
        until(lambda: _found(client, "stalled") is None and _found(client, "rank_silent") is None, "it goes on")
        client.command("stop")
        until(lambda: client.poll(100) is not None and not client.live, "it is stopped")
    assert run.wait() == 0


def _events(client: RunClient, kind: str) -> list[str]:
    return [event.text for event in client.state.events if event.kind == kind]
