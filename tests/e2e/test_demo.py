"""The demo from the command line: exact bytes, stopping, comparing, and what is said when things go wrong."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fsdp_tui.demo.model import build
from fsdp_tui.telemetry.strategy import SWEEP

from .conftest import Program

RANKS = 2
SEQ = 128


@pytest.fixture(scope="module")
def a(fsdp_tui: Program) -> dict[str, Any]:
    """The run that the others read: 20 steps of the default demo."""
    words = ("--nproc", "2", "--strategy", "fsdp2:full_shard", "--steps", "20", "--name", "a")
    done = fsdp_tui("demo", "--headless", *words)
    assert "finished" in done.stdout
    document: dict[str, Any] = fsdp_tui.json("show", "a")
    return document


@pytest.fixture(scope="module")
def unwatched(fsdp_tui: Program) -> str:
    """The same training with telemetry off; its id."""
    words = ("--nproc", "2", "--strategy", "fsdp2:full_shard", "--steps", "20", "--telemetry", "off")
    fsdp_tui("demo", "--headless", *words, "--name", "unwatched")
    run_id: str = fsdp_tui.json("show", "unwatched")["run"]["id"]
    return run_id


def until(condition: Callable[[], bool], patience_s: float = 120) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.5)  # each look is a start of the program


def test_show_has_twenty_falling_losses_of_two_ranks(a: dict[str, Any]) -> None:
    """The loss of every step, in full."""
    losses = a["loss"]["values"]
    assert (len(losses), len(a["ranks"]), a["run"]["state"], a["run"]["steps"]) == (20, 2, "finished", 20)
    assert sum(losses[-5:]) < sum(losses[:5]) - 3
    assert a["run"]["exit_codes"] == {"0": 0, "1": 0}


def test_bytes_are_exact_on_every_rank(a: dict[str, Any]) -> None:
    """FSDP2 pads dimension 0 of each parameter to a multiple of the ranks; AdamW keeps two of the unpadded shard and a step."""
    parameters = list(build("tiny", SEQ, 0).parameters())
    for rank in a["ranks"]:
        padded = local = 0
        for parameter in parameters:
            rows, rest = parameter.shape[0], parameter.numel() // parameter.shape[0]
            chunk = math.ceil(rows / RANKS)
            padded += chunk * rest * 4
            local += max(0, min(chunk, rows - rank["rank"] * chunk)) * rest * 4
        memory = rank["memory"]
        assert memory["param_shard"] == padded
        assert memory["grad_shard"] == padded
        assert memory["optimizer"] == 2 * local + 4 * len(parameters)
        known = (memory[name] or 0 for name in list(memory)[:10])
        assert memory["total"] == sum(known)
        assert rank["dropped"] == 0


def test_collectives_are_counted_per_unit(a: dict[str, Any]) -> None:
    """Blocks are gathered in forward and backward and reduced once; bytes are the padded unsharded parameters."""
    model = build("tiny", SEQ, 0)
    block_bytes = 4 * sum(
        math.ceil(p.shape[0] / RANKS) * RANKS * (p.numel() // p.shape[0]) for p in model.blocks[0].parameters()
    )
    units = {unit["name"]: unit for unit in a["units"]}
    assert list(units) == ["<root>", *(f"blocks.{at}" for at in range(len(model.blocks)))]
    block = units["blocks.1"]
    assert (block["all_gather"]["per_step"], block["reduce_scatter"]["per_step"]) == (2, 1)
    assert (block["all_gather"]["bytes"], block["reduce_scatter"]["bytes"]) == (2 * block_bytes, block_bytes)
    assert block["all_gather"]["forward"]["per_step"] == block["all_gather"]["backward"]["per_step"] == 1
    assert set(block["all_gather"]["late_ns"]) == {"0", "1"}
    assert a["model"]["params"] == sum(p.numel() for p in model.parameters())


def test_nothing_is_dropped_and_the_cost_is_known(a: dict[str, Any]) -> None:
    """The program's own cost is part of the record."""
    telemetry = a["telemetry"]
    assert (telemetry["dropped"], telemetry["bad_records"]) == (0, 0)
    assert telemetry["overhead_ns_per_step"] > 0
    assert all(said == "ok" for said in telemetry["probes"].values())


def test_losses_are_bit_identical_without_telemetry(fsdp_tui: Program, a: dict[str, Any], unwatched: str) -> None:
    """Watching changes no number: the demo prints its losses to the last bit of a float32."""
    watched = fsdp_tui("logs", "a").stdout
    assert "loss" in watched
    assert fsdp_tui("logs", unwatched).stdout == watched


def test_runs_and_references(fsdp_tui: Program, a: dict[str, Any]) -> None:
    """id, unique prefix, name and last; an unknown one is one line and exit 1."""
    run_id = a["run"]["id"]
    assert run_id in [entry["id"] for entry in fsdp_tui.json("runs")]
    assert fsdp_tui.json("show", run_id)["run"]["id"] == run_id
    assert fsdp_tui("show", "nonsense", code=1).stderr.count("\n") == 1


def test_watch_of_a_recorded_run_prints_each_step(fsdp_tui: Program, a: dict[str, Any]) -> None:
    """One JSON object per line."""
    lines = fsdp_tui("watch", "a", "--json").stdout.splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 21))
    assert [json.loads(line)["loss"] for line in lines] == a["loss"]["values"]


def test_pause_resume_stop(fsdp_tui: Program) -> None:
    """All ranks hold at one step, go on, and leave at one step; the rung is reported."""
    process = fsdp_tui.start("demo", "--headless", "--steps", "100000", "--name", "held")
    try:
        until(lambda: any(r["name"] == "held" and r["steps"] > 2 for r in fsdp_tui.json("runs")))
        paused = fsdp_tui.json("pause", "held")
        steps = {rank["steps"] for rank in paused["ranks"]}
        assert paused["run"]["state"] == "paused"
        assert len(steps) == 1
        assert {rank["steps"] for rank in fsdp_tui.json("show", "held")["ranks"]} == steps
        assert "running" in fsdp_tui("resume", "held").stdout
        assert "by agreement of all ranks" in fsdp_tui("stop", "held").stdout
        assert process.wait(60) == 0
    finally:
        process.kill()
    shown = fsdp_tui.json("show", "held")
    assert (shown["run"]["state"], shown["run"]["stop_rung"]) == ("stopped", "agreed")
    assert len({rank["steps"] for rank in shown["ranks"]}) == 1
    assert "not live" in fsdp_tui("stop", "held", code=1).stderr


def test_capture_of_a_live_demo(fsdp_tui: Program, tmp_path: Path) -> None:
    """Asked while it trains: every rank's step with its peak and why; recorded, shown, and exported as a trace and as JSON."""
    words = ("--headless", "--nproc", "2", "--strategy", "fsdp2:full_shard", "--steps", "100000", "--name", "captured")
    process = fsdp_tui.start("demo", *words)
    try:
        until(lambda: any(r["name"] == "captured" for r in fsdp_tui.json("runs")))
        done = fsdp_tui("capture", "captured", "--json", "-o", str(tmp_path / "trace.json"))
        assert "have not begun to train yet: waiting for that" in done.stderr
        taken = json.loads(done.stdout)
        (chosen,) = fsdp_tui.json("capture", "captured", "--ranks", "1")
        assert "is not there" in fsdp_tui("capture", "captured", "--ranks", "9", code=1).stderr
        fsdp_tui("stop", "captured")
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert [one["rank"] for one in taken] == [0, 1]
    assert len({one["step"] for one in taken}) == 1
    assert (chosen["rank"], chosen["step"] > taken[0]["step"]) == (1, True)
    assert done.stderr.count("peak") == 2
    shown = fsdp_tui.json("show", "captured")
    for one in taken:
        parameters = shown["ranks"][one["rank"]]["memory"]["param_shard"]
        assert one["categories"]["param_shard"] == parameters
        assert one["peak_bytes"] == sum(value or 0 for name, value in one["categories"].items() if name != "total")
        assert one["why"].startswith(f"{one['peak_phase']} of {one['peak_module']}: ")
        assert one["error"] is None
    assert [one["step"] for one in shown["captures"]] == [taken[0]["step"], taken[0]["step"], chosen["step"]]
    told = [event["text"] for event in shown["events"] if event["kind"] == "captured"]
    assert told[0].startswith(f"step {taken[0]['step']} captured on 2 ranks; ")
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in trace} == {0, 1}
    highest = max(e["args"]["bytes"] for e in trace if e["ph"] == "C" and e["name"] == "total" and e["pid"] == 0)
    assert highest == taken[0]["peak_bytes"]
    gathered = [e for e in trace if e["ph"] == "b" and e["name"] == "all_gather" and e["pid"] == 0]
    assert len(gathered) == 9  # four blocks in forward and in backward, and the root, which is kept
    plain = json.loads(fsdp_tui("export", "captured", "--format", "json").stdout)
    assert [one["step"] for one in plain["captures"]] == [taken[0]["step"], chosen["step"]]
    assert "is not live" in fsdp_tui("capture", "captured", code=1).stderr


def test_export_needs_a_capture(fsdp_tui: Program, a: dict[str, Any]) -> None:
    """One line that says how to get one."""
    assert "has no capture: fsdp-tui capture" in fsdp_tui("export", "a", code=1).stderr
    assert "--ranks x" in fsdp_tui("capture", "a", "--ranks", "x", code=2).stderr


def test_ctrl_c_stops_by_agreement(fsdp_tui: Program) -> None:
    """The first Ctrl-C is the agreed stop: exit 0."""
    process = fsdp_tui.start("demo", "--headless", "--steps", "100000", "--name", "interrupted")
    try:
        until(lambda: any(r["name"] == "interrupted" and r["steps"] > 2 for r in fsdp_tui.json("runs")))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert fsdp_tui.json("show", "interrupted")["run"]["stop_rung"] == "agreed"


def test_sweep_shows_that_full_shard_is_one_nth(fsdp_tui: Program) -> None:
    """The guide's exercise, for the usual seven strategies, and their losses agree."""
    document = fsdp_tui.json("sweep", "--nproc", "2", "--steps", "4", "--name", "swept", timeout_s=500)
    assert document["failed"] == []
    assert [run["strategy"]["requested"] for run in document["runs"]] == list(SWEEP)
    rows = {row["metric"]: row["values"] for row in document["rows"]}
    states = dict(zip(SWEEP, rows["model_states"], strict=True))
    for sharded in ("fsdp1:full_shard", "fsdp1:shard_grad_op", "fsdp2:full_shard", "fsdp2:shard_grad_op"):
        assert states[sharded] == pytest.approx(states["single"] / 2, rel=1e-3)
    assert states["ddp"] == states["single"]
    gathered = dict(zip(SWEEP, rows["all_gather"], strict=True))
    assert gathered["fsdp2:full_shard"] > gathered["fsdp2:shard_grad_op"] > 0
    assert document["equivalence"]["agrees"] is True
    assert document["equivalence"]["loss_max_abs_diff"] < 1e-4
    assert all(value for value in rows["tokens_per_s"])


def test_compare_and_delete(fsdp_tui: Program, a: dict[str, Any]) -> None:
    """compare reads recorded runs; rm deletes one; prune asks."""
    fsdp_tui("demo", "--headless", "--strategy", "single", "--steps", "5", "--name", "brief")
    document = fsdp_tui.json("compare", "a", "brief")
    assert document["equivalence"]["steps_compared"] == 5
    assert document["equivalence"]["agrees"] is True
    fsdp_tui("rm", "brief", "--yes")
    fsdp_tui("show", "brief", code=1)
    assert "none is kept (--keep): say --yes" in fsdp_tui("prune", "--keep", "0", code=1).stderr
    nothing = fsdp_tui("prune").stderr
    assert nothing.startswith("nothing to delete of ")
    assert nothing.endswith(" that ended; the newest 20 are kept (--keep)\n")


def test_a_script_that_raises_at_once(fsdp_tui: Program) -> None:
    """failed, with the rank and the last line of its log; exit 1."""
    (fsdp_tui.directory / "broken.py").write_text("raise ValueError('no data here')\n")
    done = fsdp_tui("run", "--headless", "--nproc", "2", "broken.py", code=1)
    assert "failed" in done.stdout
    assert "ValueError: no data here" in done.stdout
    shown = fsdp_tui.json("show", "last")
    assert (shown["run"]["state"], shown["run"]["failed_rank"] in (0, 1)) == ("failed", True)


def test_a_script_with_the_two_lines(fsdp_tui: Program) -> None:
    """A user's own loop with shard and watch, its arguments passed on, its output kept byte by byte."""
    (fsdp_tui.directory / "train.py").write_text(
        "import sys, torch\n"
        "from fsdp_tui.runner import shard, watch\n"
        "torch.manual_seed(0)\n"
        "model = shard(torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8)) for _ in range(3))))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "print('arguments', *sys.argv[1:], flush=True)\n"
        "with watch(model, optimizer) as run:\n"
        "    while True:\n"
        "        loss = model(torch.ones(4, 8)).square().mean()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        "        if not run.step(loss):\n"
        "            break\n"
    )
    document = fsdp_tui.json(
        "run", "--nproc", "2", "--steps", "6", "--strategy", "fsdp1:full_shard", "train.py", "--lr", "1"
    )
    assert (document["run"]["state"], len(document["loss"]["values"])) == ("finished", 6)
    assert document["strategy"]["effective"] == "fsdp1:full_shard"
    assert document["ranks"][0]["memory"]["optimizer"] == 0  # plain SGD keeps no state
    assert fsdp_tui("logs", "last").stdout == "arguments --lr 1\n"


WRAPS_ITSELF = """\
import os, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()))
fully_shard(model[1])
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=float(sys.argv[1]))
print("GIVEN is", os.environ.get("GIVEN"), flush=True)
for step in range(8):
    if step == 2 and os.environ["FSDP_TUI_STRATEGY"] == "fsdp2:no_shard":
        torch.empty(2**60)
    loss = model(torch.ones(4, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def script(fsdp_tui: Program) -> str:
    """A script that knows nothing of us and wraps its model itself; out of memory under one strategy."""
    (fsdp_tui.directory / "own.py").write_text(WRAPS_ITSELF)
    return "own.py"


def test_a_script_is_left_alone_until_something_is_asked_for(fsdp_tui: Program, script: str) -> None:
    """Requested, the script's own and what runs; all its steps without --steps; a preset gives the same again."""
    words = ("--nproc", "2", "--env", "GIVEN=a b")
    alone = fsdp_tui.json("run", *words, script, "0.01")
    assert (alone["run"]["state"], alone["run"]["steps"]) == ("finished", 8)
    strategy = alone["strategy"]
    assert (strategy["requested"], strategy["script"], strategy["effective"]) == (
        None,
        "fsdp2:full_shard",
        "fsdp2:full_shard",
    )
    assert "strategy_changed" not in {verdict["kind"] for verdict in alone["verdict"]}
    fsdp_tui("run", "--save-preset", "mine", *words, script, "0.01")
    asked = fsdp_tui.json("run", "--preset", "mine", "--strategy", "fsdp2:shard_grad_op", "--steps", "5")
    assert (asked["run"]["state"], asked["run"]["steps"]) == ("finished", 5)
    strategy = asked["strategy"]
    assert (strategy["requested"], strategy["script"], strategy["effective"]) == (
        "fsdp2:shard_grad_op",
        "fsdp2:full_shard",
        "fsdp2:shard_grad_op",
    )
    assert asked["comm"]["all_gather_bytes"] < alone["comm"]["all_gather_bytes"]
    assert fsdp_tui("logs", "last").stdout == "GIVEN is a b\n"
    assert asked["run"]["command"] == [
        *("fsdp-tui", "run", "--nproc", "2", "--strategy", "fsdp2:shard_grad_op", "--steps", "5"),
        *("--env", "GIVEN=a b", "own.py", "0.01"),
    ]
    assert "(the script's own: fsdp2:full_shard)" in fsdp_tui("show", "last").stdout


def test_a_sweep_of_a_script_goes_on_after_each_failure(fsdp_tui: Program, script: str) -> None:
    """Refused, out of memory, refused before it starts: each with its reason; what worked is compared."""
    strategies = "fsdp2:full_shard,fsdp1:full_shard,fsdp2:no_shard,fsdp2:reshard=3,fsdp2:shard_grad_op"
    words = ("--nproc", "2", "--strategies", strategies, "--steps", "4", "--name", "own")
    document = fsdp_tui.json("sweep", *words, script, "0.01", code=1, timeout_s=500)
    assert [run["strategy"]["requested"] for run in document["runs"]] == ["fsdp2:full_shard", "fsdp2:shard_grad_op"]
    assert [run["run"]["steps"] for run in document["runs"]] == [4, 4]
    assert document["equivalence"]["agrees"] is True
    refused, out_of_memory, misfit = document["failed"]
    assert (refused["strategy"], refused["state"], refused["steps"]) == ("fsdp1:full_shard", "failed", 0)
    assert (
        "fsdp-tui refuses: --strategy fsdp1:full_shard: this script wraps its model with fully_shard"
        in refused["reason"]
    )
    assert (out_of_memory["strategy"], out_of_memory["state"]) == ("fsdp2:no_shard", "failed")
    assert "can't allocate memory" in out_of_memory["reason"]
    assert fsdp_tui.json("show", out_of_memory["run"])["run"]["state"] == "failed"
    assert (misfit["strategy"], misfit["run"], misfit["steps"]) == ("fsdp2:reshard=3", None, None)
    assert misfit["reason"] == "fsdp2:reshard=3: 3 must divide the 2 ranks"


def test_a_sweep_in_which_nothing_works_still_has_its_rows(fsdp_tui: Program, script: str) -> None:
    """The reasons are all there is to say."""
    done = fsdp_tui("sweep", "--nproc", "2", "--strategies", "ddp", "--steps", "2", script, "0.01", code=1)
    (row,) = done.stdout.splitlines()
    assert row.startswith("✗ ddp  rank ")
    assert "which can run strategies of fsdp2 only, after 0 steps" in row


def test_a_home_that_cannot_be_used(tmp_path: Path, fsdp_tui: Program) -> None:
    """One line, nothing started."""
    (tmp_path / "home").write_text("in the way")
    other = Program({**fsdp_tui.environment, "FSDP_TUI_HOME": str(tmp_path / "home")}, tmp_path)
    done = other("demo", "--headless", "--steps", "1", code=1)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_damaged_records_are_named(fsdp_tui: Program, a: dict[str, Any], unwatched: str) -> None:
    """A run whose files are damaged stays in the list with its reason, and the others stay readable."""
    victim = unwatched
    folder = Path(fsdp_tui.environment["FSDP_TUI_HOME"]) / "runs" / victim
    (folder / "run.db").write_bytes(b"not a database" * 100)
    for leftover in ("run.db-wal", "run.db-shm"):
        (folder / leftover).unlink(missing_ok=True)
    assert fsdp_tui("show", victim, code=1).stderr.count("\n") == 1
    assert fsdp_tui("attach", victim, "--once", code=1).stdout == ""
    for facts in ("launch.json", "summary.json"):
        (folder / facts).write_bytes(b"{")
    listed = {entry["id"]: entry for entry in fsdp_tui.json("runs")}
    assert listed[victim]["problem"]
    assert fsdp_tui.json("show", "a")["run"]["steps"] == 20


def test_torch_is_the_pinned_one() -> None:
    """The formulas above were checked with it; a newer one must pass them too."""
    assert tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 7)
