"""Ranks that somebody else has started: real torchrun, real processes, and every way in which a part can go."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from fsdp_tui.runner import foreign
from fsdp_tui.runner.keeper import End, sweep, verdict
from fsdp_tui.telemetry.client import RunClient, open_run
from fsdp_tui.telemetry.hub import ORPHANED_S
from fsdp_tui.telemetry.messages import Ended
from fsdp_tui.telemetry.recording import load_state
from fsdp_tui.telemetry.report import show
from fsdp_tui.telemetry.rundir import RunEntry, list_runs, make_runtime, read_run_file
from fsdp_tui.telemetry.state import RunState
from tests.launch.conftest import TOY, gone, until

TRAIN = """\
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
from fsdp_tui.runner import shard, watch

torch.manual_seed(0)
model = shard(nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16)), "fsdp2:full_shard")
optimizer = torch.optim.AdamW(model.parameters())
steps, end = int(sys.argv[1]), sys.argv[2]
with watch(model, optimizer) as run:
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        if end == "raises" and step == 5 and dist.get_rank() == 1:
            raise ValueError("bad batch")
        if not run.step(loss):
            break
        while end == "waits" and step == 10 and not os.path.exists("go on"):
            time.sleep(0.01)
        time.sleep(0.01)
dist.destroy_process_group()
print(f"rank {sys.argv[1:]} is done")
if end == "exits":
    sys.exit(3)
"""

UNMODIFIED = """\
import time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = fully_shard(nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16)))
optimizer = torch.optim.AdamW(model.parameters())
while True:
    optimizer.zero_grad()
    model(torch.ones(8, 16)).square().mean().backward()
    optimizer.step()
    time.sleep(0.01)
"""
MODULE = [sys.executable, "-m", "fsdp_tui.runner"]
TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]

Begin = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def begin(places: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Starts a process in a folder with train.py; in the end nothing of it, its ranks, keepers and hubs is left."""
    for name in [*foreign.MARKS, *foreign.SHARED, "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "FSDP_TUI_RUN"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TEST_OF", str(places))
    processes: list[subprocess.Popen[bytes]] = []

    def start(*words: str, text: str = TOY, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        (places / "train.py").write_text(text)
        with open(places / "printed", "ab") as printed:
            processes.append(
                subprocess.Popen(words, cwd=places, env=os.environ | (env or {}), stdout=printed, stderr=printed)
            )
        return processes[-1]

    yield start
    try:
        until(lambda: not _family(places), "every process has ended by itself")
        assert not list(places.glob("rt/*")), "no socket, no folder"
    finally:
        for process in _family(places):
            process.kill()
        for one in processes:
            one.wait()


def _family(places: Path) -> list[psutil.Process]:
    """Everything that a test has started, whoever its parent is: it has the test's environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("TEST_OF") == str(places):
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if not gone(process.pid)]


def _ranks(
    begin: Begin, *words: str, count: int = 2, of: int | None = None, **options: Any
) -> list[subprocess.Popen[bytes]]:
    """Ranks that this process is the launcher of."""
    env = options.pop("env", {})
    return [
        begin(*(words or (*MODULE, "train.py")), env=_rank_env(rank, of or count) | env, **options)
        for rank in range(count)
    ]


def _rank_env(rank: int, of: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(of),
        "LOCAL_WORLD_SIZE": str(of),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29400",
    }


def _live(count: int = 1) -> list[RunEntry]:
    """So many live runs."""

    def live() -> list[RunEntry]:
        found = [run for run in list_runs() if run.live and run.paths.run_file.exists()]
        return found if len(found) == count else []

    return until(live, "they are live")


def _training(client: RunClient, ranks: int = 2) -> dict[int, int]:
    """Rank -> pid, when all of them train."""

    def all_train() -> bool:
        client.poll(50)
        known = client.state.ranks
        return len(known) == ranks and all(rank.last for rank in known.values())

    until(all_train, "all ranks train")
    return {number: rank.hello.pid for number, rank in client.state.ranks.items() if rank.hello}


def _keeper(run: RunEntry) -> int:
    launcher = read_run_file(run.paths.run_file).launcher
    assert launcher is not None
    return launcher.pid


def _recorded(run: RunEntry | None = None) -> tuple[RunState, Ended]:
    """A run (the only one) whose recording is complete."""

    def complete() -> RunEntry | None:
        found = [one for one in list_runs() if run is None or one.id == run.id]
        assert len(found) < 2
        ended = [one for one in found if not (one.live or one.paths.alive.exists()) and one.paths.summary.exists()]
        return ended[0] if ended else None

    entry = until(complete, "it is recorded")
    assert entry is not None
    state = load_state(entry.paths.recording)
    assert state.ended is not None
    return state, state.ended


def _code(torchrun: subprocess.Popen[bytes], places: Path) -> int:
    """Its exit code; now and then torch aborts at the very end of a rank, with or without us, which is no failure here."""
    code = torchrun.wait(60)
    return 0 if b"terminate called without an active exception" in (places / "printed").read_bytes() else code


# torchrun


def test_torchrun_alone_makes_a_run_that_is_live_and_then_recorded(begin: Begin, places: Path) -> None:
    """Both ranks are there, what they print stays torchrun's, and nobody waits for the keeper."""
    torchrun = begin(*TORCHRUN, "-m", "fsdp_tui.runner", "train.py", "80", "waits", text=TRAIN)
    [run] = _live()
    assert (run.name, run.world_size, run.strategy) == ("train", 2, "")
    with open_run(run) as client:
        pids = _training(client)
        keeper = psutil.Process(_keeper(run))
        assert os.getsid(keeper.pid) == os.getsid(os.getpid()) or os.getsid(keeper.pid) not in pids.values()
        assert torchrun.pid not in [parent.pid for parent in keeper.parents()]
        assert str(places / "printed") not in [os.readlink(link) for link in Path(f"/proc/{keeper.pid}/fd").iterdir()]
    (places / "go on").touch()
    assert _code(torchrun, places) == 0
    until(lambda: gone(keeper.pid), "the keeper ends")
    state, ended = _recorded()
    assert state.steps == list(range(1, 81))
    assert state.reported == [2] * 80
    assert (ended.state, ended.exit_codes, ended.reason) == ("finished", {"0": 0, "1": 0}, "")
    assert state.launched is not None
    assert state.launched.command == [*["torchrun", *TORCHRUN[1:]], "-m", "fsdp_tui.runner", "train.py", "80", "waits"]
    with open_run(run) as client:
        document = show(client.view())
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    assert {rank["pid"] for rank in document["ranks"]} == set(pids.values())
    assert document["strategy"]["effective"] == "fsdp2:full_shard"
    assert (places / "printed").read_bytes().count(b"is done") == 2
    assert list(run.paths.logs.glob("rank-*")) == []
    said = subprocess.run([sys.executable, "-m", "fsdp_tui", "logs", run.id], capture_output=True, text=True)
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (1, "", 1)
    assert "torchrun --standalone --nproc-per-node 2 -m fsdp_tui.runner train.py 80 waits" in said.stderr


def test_a_script_that_exits_with_3_does_so_under_torchrun(begin: Begin) -> None:
    """The code is known though the keeper is nobody's parent."""
    torchrun = begin(*TORCHRUN, "-m", "fsdp_tui.runner", "train.py", "5", "exits", text=TRAIN)
    assert torchrun.wait(60) == 1  # as torchrun says of any failure
    _, ended = _recorded()
    assert (ended.state, ended.exit_codes.get(str(ended.failed_rank))) == ("failed", 3)
    assert ended.reason == f"rank {ended.failed_rank} exited with 3"


def test_an_exception_in_one_rank_is_that_ranks(begin: Begin, places: Path) -> None:
    """torchrun ends the other one, which is not to blame; the traceback is where it always was."""
    torchrun = begin(*TORCHRUN, "-m", "fsdp_tui.runner", "train.py", "1000", "raises", text=TRAIN)
    assert torchrun.wait(60) == 1
    _, ended = _recorded()
    assert (ended.state, ended.failed_rank, ended.exit_codes["1"]) == ("failed", 1, 1)
    assert ended.reason == "rank 1 exited with 1: ValueError: bad batch"
    assert b"ValueError: bad batch" in (places / "printed").read_bytes()


@pytest.mark.parametrize("text", [TRAIN, UNMODIFIED], ids=["with watch", "unmodified"])
def test_a_viewer_stops_all_ranks_at_one_step_and_torchrun_ends_well(begin: Begin, places: Path, text: str) -> None:
    """Agreed, as under our own launcher; so are a pause and a capture."""
    torchrun = begin(*TORCHRUN, "-m", "fsdp_tui.runner", "train.py", "100000", "ends", text=text)
    [run] = _live()
    with open_run(run) as client:
        _training(client)
        client.command("pause")
        until(lambda: client.poll(50) and client.state.state == "paused", "it is paused")
        client.command("resume")
        until(lambda: client.poll(50) and client.state.state == "running", "it goes on")
        assert client.command("capture").accepted
        until(lambda: client.poll(50) and all(rank.captures for rank in client.state.ranks.values()), "captured")
        assert client.command("stop").ranks == [0, 1]
    assert _code(torchrun, places) == 0
    state, ended = _recorded()
    assert (ended.state, ended.stop_rung, ended.exit_codes) == ("stopped", "agreed", {"0": 0, "1": 0})
    assert state.reported[-1] == 2


def test_a_killed_rank_is_reported_without_a_code_that_nobody_can_know(begin: Begin) -> None:
    """The run failed because of it; the other one was ended by torchrun."""
    torchrun = begin(*TORCHRUN, "-m", "fsdp_tui.runner", "train.py")
    [run] = _live()
    with open_run(run) as client:
        pids = _training(client)
    os.kill(pids[1], signal.SIGKILL)
    assert torchrun.wait(60) == 1
    _, ended = _recorded()
    assert (ended.state, ended.failed_rank, ended.exit_codes) == ("failed", 1, {})
    assert ended.reason == "rank 1 is gone without a goodbye: killed, or ended by its launcher"
    with open_run(run) as client:
        assert show(client.view())["run"]["exit_codes"] == {"0": None, "1": None}


def test_a_launcher_that_ends_everything_around_it_still_has_its_record(begin: Begin) -> None:
    """SIGTERM to torchrun and to the keeper itself: the ranks go, the keeper after them."""
    torchrun = begin(*TORCHRUN, "-m", "fsdp_tui.runner", "train.py")
    [run] = _live()
    with open_run(run) as client:
        _training(client)
    os.kill(_keeper(run), signal.SIGTERM)
    torchrun.send_signal(signal.SIGTERM)
    assert torchrun.wait(60) == 1
    _, ended = _recorded()
    assert ended.state == "failed"
    assert ended.reason.endswith("is gone without a goodbye: killed, or ended by its launcher")


def test_a_restart_by_torchrun_is_a_run_of_its_own(begin: Begin) -> None:
    """The first attempt keeps its record of why it failed."""
    text = 'import os, sys\nsys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and 7)\n'
    torchrun = begin(*TORCHRUN, "--max-restarts", "1", "-m", "fsdp_tui.runner", "train.py", text=text)
    assert torchrun.wait(60) == 0
    until(lambda: len(list_runs()) == 2 and all(run.paths.summary.exists() for run in list_runs()), "two runs")
    second, first = list_runs()
    assert (first.name, second.name) == ("train", "train restart 1")
    _, ended = _recorded(first)
    assert (ended.state, ended.exit_codes.get(str(ended.failed_rank))) == ("failed", 7)
    _, ended = _recorded(second)
    assert (ended.state, ended.exit_codes) == ("finished", {"0": 0, "1": 0})


# Other launchers


LAUNCHERS = {
    "by hand": {},
    "slurm": {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "{rank}",
        "SLURM_LOCALID": "{rank}",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    },
    "mpi": {
        "OMPI_COMM_WORLD_RANK": "{rank}",
        "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "torchrun with one GPU visible to each": {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0"},
}


@pytest.mark.parametrize("variables", LAUNCHERS.values(), ids=LAUNCHERS)
def test_ranks_of_any_launcher_meet_also_when_each_is_wrapped(begin: Begin, variables: dict[str, str]) -> None:
    """Each has a shell of its own for a parent, started by the same process."""
    text = TOY.replace('os.environ["RANK"]', "sys.argv[1]").replace('os.environ["WORLD_SIZE"]', "2")
    processes = []
    for rank in range(2):
        told = {name: value.format(rank=rank) for name, value in variables.items()}
        env = told if "slurm" in str(told).lower() or "OMPI" in str(told) else _rank_env(rank, 2) | told
        shell = f"{' '.join(MODULE)} train.py {rank}; exit $?"
        processes.append(begin("sh", "-c", shell, text=text, env=env))
    [run] = _live()
    with open_run(run) as client:
        _training(client)
        client.command("stop")
    assert [process.wait(60) for process in processes] == [0, 0]
    state, ended = _recorded()
    assert (ended.state, ended.exit_codes) == ("stopped", {"0": 0, "1": 0})
    assert sorted(state.ranks) == [0, 1]


def test_two_launches_at_the_same_time_are_two_runs(begin: Begin) -> None:
    """torchrun twice; each run has the ranks of its own."""
    both = [begin(*TORCHRUN, "-m", "fsdp_tui.runner", "train.py") for _ in range(2)]
    runs = _live(2)
    found = []
    for run in runs:
        with open_run(run) as client:
            pids = _training(client)
            found.append({psutil.Process(pid).ppid() for pid in pids.values()})
            client.command("stop")
    assert sorted(map(sorted, found)) == sorted([one.pid] for one in both)
    assert [one.wait(60) for one in both] == [0, 0]
    for run in runs:
        state, ended = _recorded(run)
        assert (ended.state, ended.exit_codes) == ("stopped", {"0": 0, "1": 0})
        assert sorted(state.ranks) == [0, 1]


def test_launches_by_one_process_that_overlap_are_two_runs(begin: Begin) -> None:
    """A launcher that counts nothing, such as a script under srun that trains twice: a rank may be ahead of the others."""
    first = _ranks(begin)
    [before] = _live()
    with open_run(before) as client:
        _training(client)
    first[0].kill()
    first[0].wait()
    again = begin(*MODULE, "train.py", env=_rank_env(0, 2))
    _live(2)
    first[1].kill()
    first[1].wait()
    until(lambda: not before.paths.alive.exists(), "the first run ends")
    late = begin(*MODULE, "train.py", env=_rank_env(1, 2))
    [after] = [run for run in list_runs() if run.id != before.id]
    with open_run(after) as client:
        _training(client)
        client.command("stop")
    assert [again.wait(60), late.wait(60)] == [0, 0]
    state, ended = _recorded(after)
    assert (ended.state, ended.exit_codes) == ("stopped", {"0": 0, "1": 0})
    assert sorted(state.ranks) == [0, 1]


def test_python_alone_is_a_run_of_one_rank(begin: Begin) -> None:
    """Its exit code is its own, and when it ends its record is complete."""
    text = "import sys\nfrom fsdp_tui.runner import watch\nprint('hello')\nsys.exit(3)\n"
    assert begin(*MODULE, "train.py", "--lr", "1", text=text).wait(60) == 3
    [run] = list_runs()  # at once: a Slurm step or a container that ends with its last rank has all of it too
    assert (run.state, run.live) == ("failed", False)
    state, ended = _recorded()
    assert (ended.state, ended.failed_rank, ended.exit_codes) == ("failed", 0, {"0": 3})
    assert state.launched is not None
    assert (state.launched.nproc, state.launched.command) == (1, [*MODULE, "train.py", "--lr", "1"])


def test_a_script_that_trains_nothing_is_a_run_without_steps(begin: Begin) -> None:
    """It is finished, whatever it was for."""
    assert begin(*MODULE, "train.py", text="print('hello')\n").wait(60) == 0
    state, ended = _recorded()
    assert (ended.state, ended.exit_codes, state.steps) == ("finished", {"0": 0}, [])


def test_a_training_that_makes_its_ranks_itself_is_one_run_with_all_of_them(begin: Begin) -> None:
    """torch.multiprocessing.spawn: the ranks are known from what they say; one that is killed is missed."""
    text = (
        "import multiprocessing\n\n\ndef work(rank):\n    import os\n    os.environ.update(RANK=str(rank), WORLD_SIZE='2')\n"
        + "".join(f"    {line}\n" for line in TOY.splitlines())
        + "\n\nif __name__ == '__main__':\n    context = multiprocessing.get_context('spawn')\n"
        "    ranks = [context.Process(target=work, args=(rank,)) for rank in range(2)]\n"
        "    [rank.start() for rank in ranks]\n    [rank.join() for rank in ranks]\n"
    )
    process = begin(*MODULE, "train.py", text=text)
    [run] = _live()
    with open_run(run) as client:
        pids = _training(client)
        assert process.pid not in pids.values()
        os.kill(pids[1], signal.SIGKILL)
        until(lambda: gone(pids[1]), "it is gone")
        client.command("stop")
    assert process.wait(60) == 0
    _, ended = _recorded()
    assert (ended.state, ended.failed_rank, ended.exit_codes) == ("failed", 1, {"0": 0})


def test_without_telemetry_nothing_is_made(begin: Begin, places: Path) -> None:
    """No folder, no process, no variable."""
    text = "import os, sys\nsys.exit('FSDP_TUI_RUN' in os.environ)\n"
    assert begin(*MODULE, "train.py", text=text, env={"FSDP_TUI_TELEMETRY": "off"}).wait(60) == 0
    assert not (places / "home").exists()
    assert not (places / "rt").exists()


# Stopping those who do not listen, and killing those who keep


@pytest.mark.parametrize(("manner", "rung"), [(["deaf"], "sigterm"), (["deaf", "stubborn"], "sigkill")])
def test_ranks_that_do_not_stop_are_taken_down_rung_by_rung(begin: Begin, manner: list[str], rung: str) -> None:
    """Only the ranks: who launched them is left to act on it."""
    processes = _ranks(begin, *MODULE, "train.py", *manner, env={"FSDP_TUI_STOP_PATIENCE": "0.5,0.5"})
    [run] = _live()
    with open_run(run) as client:
        _training(client)
        client.command("stop")
    codes = [process.wait(60) for process in processes]
    assert codes == ([-signal.SIGTERM] * 2 if rung == "sigterm" else [-signal.SIGKILL] * 2)
    state, ended = _recorded()
    assert (ended.state, ended.stop_rung, ended.exit_codes) == ("stopped", rung, {})
    assert f"stop_{rung}" in [event.kind for event in state.events]


def test_a_killed_hub_is_replaced(begin: Begin) -> None:
    """The ranks find the new one, and the gap is an event."""
    processes = _ranks(begin)
    [run] = _live()
    with open_run(run) as client:
        _training(client)
        until(lambda: client.poll(50) and client.state.steps[-1] > 60, "more than one commit's worth of steps")
        hub = read_run_file(run.paths.run_file).hub
        assert hub is not None
        os.kill(hub.pid, signal.SIGKILL)
        until(lambda: client.poll(50) and client.snapshots == 2 and client.synced, "the viewer has the new one")
        client.command("stop")
    assert [process.wait(60) for process in processes] == [0, 0]
    state, ended = _recorded()
    assert (ended.state, ended.exit_codes) == ("stopped", {"0": 0, "1": 0})
    assert "hub_gap" in [event.kind for event in state.events]


def test_ranks_live_on_without_their_keeper_and_the_hub_ends_the_run(begin: Begin, places: Path) -> None:
    """What the killed keeper left behind is cleared away by the next one."""
    processes = _ranks(begin)
    [run] = _live()
    with open_run(run) as client:
        _training(client)
        os.kill(_keeper(run), signal.SIGKILL)
        killed_s = time.monotonic()
        while time.monotonic() - killed_s < ORPHANED_S + 1:
            client.poll(50)
        trained = client.state.steps[-1]
        until(lambda: client.poll(50) and client.state.steps[-1] > trained, "they train on for longer than orphans may")
        assert client.command("stop").ranks == [0, 1]
    assert [process.wait(60) for process in processes] == [0, 0]
    _, ended = _recorded()
    assert (ended.state, ended.stop_rung) == ("stopped", "agreed")
    assert len(list(places.glob("rt/launch-*"))) == 1
    again = _ranks(begin, env={"FSDP_TUI_STEPS": "200"})
    assert [process.wait(60) for process in again] == [0, 0]
    [after] = [one for one in list_runs() if one.id != run.id]
    state, ended = _recorded(after)
    assert (ended.state, state.reported) == ("finished", [2] * 200)


def test_a_keeper_killed_before_any_rank_was_heard_of_leaves_a_run_that_is_lost(begin: Begin, places: Path) -> None:
    """The hub cannot know who is there, and does not stay for ever."""
    process = begin(*MODULE, "train.py", text="import time\ntime.sleep(8)\n")
    [run] = _live()
    os.kill(_keeper(run), signal.SIGKILL)
    _, ended = _recorded()
    assert (ended.state, ended.reason) == ("lost", "its keeper was killed before a rank was heard of")
    assert process.wait(60) == 0
    shutil.rmtree(next(places.glob("rt/launch-*")))


def test_what_killed_launches_leave_is_swept_and_nothing_else(places: Path) -> None:
    """Folders with a process that lives, or that is just coming up, stay."""
    root = make_runtime()
    own, dead = foreign.signature(os.getpid()), f"{os.getpid()} 1"
    folders = {
        "launch-killed-0": {"keeper": dead, "rank-0": dead},
        "launch-kept-0": {"keeper": own, "rank-0": dead},
        "launch-training-0": {"keeper": dead, "rank-0": dead, "rank-1": own},
        "launch-new-0": {"keeper": "", "rank-0": dead},
        "launch-old-0": {"keeper": "", "rank-0": dead},
        "20260101-000000-aaaa": {"run.json": ""},
    }
    for folder, files in folders.items():
        (root / folder).mkdir()
        for name, text in files.items():
            (root / folder / name).write_text(text)
    os.utime(root / "launch-old-0", (1, 1))
    sweep()
    assert {path.name for path in root.iterdir()} == set(folders) - {"launch-killed-0", "launch-old-0"}


def test_ranks_that_never_come_are_not_waited_for(begin: Begin) -> None:
    """One of two that were announced."""
    [process] = _ranks(begin, count=1, of=2, env={"FSDP_TUI_STEPS": "3"})
    assert process.wait(60) == 0
    ended_s = time.monotonic()
    _, ended = _recorded()
    assert time.monotonic() - ended_s < 30
    assert (ended.state, ended.exit_codes) == ("finished", {"0": 0})


def test_a_rank_without_a_first_one_leaves_nothing_behind(begin: Begin, places: Path) -> None:
    """Nobody makes its run: it says so in one line, and goes on."""
    text = TRAIN.replace("time.sleep(0.01)", "pass")
    env = _rank_env(0, 1) | {"LOCAL_RANK": "1"}
    assert begin(*MODULE, "train.py", "3", "ends", text=text, env=env).wait(60) == 0
    printed = (places / "printed").read_text()
    assert printed.count("trains unwatched") == 1
    assert "is done" in printed
    assert list_runs() == []


@pytest.mark.parametrize("place", ["home", "rt"])
def test_ranks_that_cannot_write_train_unwatched_and_say_so_in_one_line(begin: Begin, places: Path, place: str) -> None:
    """They still agree with the others about when to act: another host may have a disk that works."""
    (places / place).write_text("not a folder")
    torchrun = begin(*TORCHRUN, "-m", "fsdp_tui.runner", "train.py", "20", "ends", text=TRAIN)
    assert _code(torchrun, places) == 0
    printed = (places / "printed").read_text()
    said = sorted(line for line in printed.splitlines() if line.startswith("fsdp-tui: rank"))
    assert [line.split(": ")[1] for line in said] == ["rank 0 trains unwatched", "rank 1 trains unwatched"]
    assert all(str(places / place) in line and "; set FSDP_TUI_" in line.replace("make room or ", "") for line in said)
    assert printed.count("is done") == 2
    assert list_runs() == []


def test_ctrl_c_of_another_launcher_is_a_stop(begin: Begin, places: Path) -> None:
    """torchrun passes it on; ranks whose KeyboardInterrupt nobody catches have not failed, and their codes say what it was."""
    torchrun = begin(*TORCHRUN, *MODULE[1:], "train.py", text=UNMODIFIED)
    (run,) = _live()
    with open_run(run) as client:
        _training(client)
    torchrun.send_signal(signal.SIGINT)
    state, ended = _recorded(run)
    assert (ended.state, ended.failed_rank, ended.stop_rung) == ("stopped", None, None)
    assert ended.reason.startswith("interrupted")
    assert -signal.SIGINT in ended.exit_codes.values()
    assert not {"failed", "lost"} & {found.kind for found in state.view().verdicts}
    torchrun.wait()


# What is decided from what is known


def test_the_first_bad_end_is_to_blame() -> None:
    """What the others did after it follows from it."""
    ends = [End(0, 30), End(1, 20, code=1, error="ValueError: x"), End(2, 40, code=0)]
    ended = verdict(ends, None)
    assert (ended.state, ended.failed_rank, ended.exit_codes) == ("failed", 1, {"1": 1, "2": 0})
    assert ended.reason == "rank 1 exited with 1: ValueError: x"


def test_an_interrupted_rank_is_no_failure_and_neither_is_what_follows() -> None:
    """The others lose their connections to it; one that had failed before is to blame all the same."""
    ends = [
        End(0, 20, code=-2, error="KeyboardInterrupt"),
        End(1, 30, code=1, error="RuntimeError: closed"),
        End(2, 40),
    ]
    ended = verdict(ends, None)
    assert (ended.state, ended.failed_rank, ended.exit_codes) == ("stopped", None, {"0": -2, "1": 1})
    assert ended.reason == "interrupted, as by Ctrl-C: rank 0 ended with KeyboardInterrupt first"
    assert verdict([End(1, 10, code=1), *ends[:1]], None).state == "failed"


@pytest.mark.parametrize(
    ("end", "rung", "state"),
    [
        (End(0, 1, code=0), None, "finished"),
        (End(0, 1, reason="finished"), None, "finished"),  # killed after its training was over
        (End(0, 1, code=0, reason="error"), None, "finished"),  # the script has caught it
        (End(0, 1, code=3, reason="finished"), None, "failed"),
        (End(0, 1, reason="error", error="E: x"), None, "failed"),
        (End(0, 1), None, "failed"),
        (End(0, 1), "agreed", "failed"),  # nobody had sent it a signal
        (End(0, 1, asked=True), "sigterm", "stopped"),
        (End(0, 1, code=0, reason="stopped"), "agreed", "stopped"),
    ],
)
def test_how_a_rank_ended_is_how_the_run_ended(end: End, rung: str | None, state: str) -> None:
    """Its exit code decides if it is known, else its goodbye."""
    assert verdict([end], rung).state == state


def test_pids_are_named_for_good() -> None:
    """A signature is of one process, alive; a zombie is not."""
    own = foreign.signature(os.getpid())
    assert foreign.lives(own)
    assert not foreign.lives(f"{os.getpid()} 1")
    assert not foreign.lives("")
    child = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: gone(child.pid), "it is a zombie")
    assert not foreign.lives(foreign.signature(child.pid))
    child.wait()


def test_a_rank_imports_nothing_that_its_script_could_miss() -> None:
    """Before the script: no torch, no library, and no file of the working directory in place of a module."""
    code = (
        "import sys, json; from fsdp_tui.runner import foreign; foreign.ensure_run(['x.py']);"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"FSDP_TUI_RUNTIME_DIR": "/proc/no", "FSDP_TUI_HOME": "/proc/no"},
        capture_output=True,
        check=True,
    )
    assert not {"torch", "msgspec", "psutil", "zmq", "numpy", "subprocess"} & set(json.loads(done.stdout))
