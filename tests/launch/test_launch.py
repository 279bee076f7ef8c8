"""Launching, watching, stopping, and every way in which a part can be killed."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fsdp_tui.runner.launch import Launcher, Rank
from fsdp_tui.telemetry.launch import Launch as LaunchFile
from fsdp_tui.telemetry.launch import LaunchSpec, StartError, start
from fsdp_tui.telemetry.recording import load_state
from fsdp_tui.telemetry.rundir import HomeError, create_run, hub_alive, list_runs, resolve
from fsdp_tui.tui.cli import main
from tests.launch.conftest import TOY, Launch, gone, until

PLAIN = """\
import json, os, sys
if os.environ["RANK"] == "0":
    os.write(1, b"\\x00bytes \\xff\\n")
    print("to stderr", file=sys.stderr)
    print("to stdout")
    print(json.dumps({k: v for k, v in os.environ.items() if k.startswith("FSDP_TUI")} | {
        "omp": os.environ["OMP_NUM_THREADS"], "argv": sys.argv[1:], "cwd": os.getcwd()}))
"""


def test_a_finished_run_is_recorded_whole_before_the_launcher_returns(launch: Launch) -> None:
    """All steps, exit codes and goodbyes; nothing of it lives on."""
    run = launch(TOY, steps=300, name="whole")
    with run.open() as client:
        assert (client.live, client.synced) == (True, True)
        assert stat.S_IMODE(run.paths.run_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(run.paths.alive.stat().st_mode) == 0o700
        view = json.loads(run.paths.view_file.read_bytes())
        assert set(view["endpoints"]) == {"pub", "view"}
        while client.live:
            client.poll(100)
        assert client.state.state == "finished"
        assert client.state.steps == list(range(1, 301))
    assert run.wait() == 0
    assert not hub_alive(run.paths)
    assert not run.paths.alive.exists()
    state = load_state(run.paths.recording)
    assert state.steps == list(range(1, 301))
    assert state.reported == [2] * 300
    assert state.launched is not None
    assert state.launched.command[:2] == ["fsdp-tui", "run"]
    assert state.ended is not None
    assert (state.ended.state, state.ended.exit_codes, state.ended.stop_rung) == ("finished", {"0": 0, "1": 0}, None)
    assert {rank.goodbye.reason for rank in state.ranks.values() if rank.goodbye} == {"finished"}
    assert not {"failed", "lost"} & {verdict.kind for verdict in state.view().verdicts}
    entry = resolve("whole")
    assert (entry.id, entry.state, entry.live, entry.steps, entry.world_size) == (run.run_id, "finished", False, 300, 2)


def test_without_telemetry_the_run_is_recorded_as_launched_and_ended(launch: Launch, places: Path) -> None:
    """Logs are byte-exact, and the ranks get what the launch says in their environment."""
    run = launch(PLAIN, "a", "b c", telemetry="off", strategy="ddp", steps=7, directory=str(places))
    assert run.wait() == 0
    state = load_state(run.paths.recording)
    assert state.ended is not None
    assert (state.ended.state, state.ended.exit_codes) == ("finished", {"0": 0, "1": 0})
    log = run.paths.log(0).read_bytes()
    first, second, third, fourth = log.splitlines()
    assert (first, second, third) == (b"\x00bytes \xff", b"to stderr", b"to stdout")
    said = json.loads(fourth)
    assert said["omp"] == "1"
    assert said["argv"] == ["a", "b c"]
    assert said["cwd"] == str(places)
    assert "FSDP_TUI_RUN" not in said
    assert (said["FSDP_TUI_STRATEGY"], said["FSDP_TUI_STEPS"], said["FSDP_TUI_TELEMETRY"]) == ("ddp", "7", "off")
    assert json.loads(said["FSDP_TUI_SHARDING"])["strategy"] == "ddp"
    assert run.paths.log(1).read_bytes() == b""


ASKED = """\
import json, os
if os.environ["RANK"] == "0":
    print(json.dumps({name: os.environ.get(name) for name in ("FSDP_TUI_ASKED", "FSDP_TUI_STRATEGY", "GIVEN", "EMPTY", "OURS")}))
"""


def test_ranks_know_what_was_asked_for_and_have_the_environment(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was inherited from a launch around this one is not taken for asked."""
    monkeypatch.setenv("FSDP_TUI_ASKED", "compile")
    monkeypatch.setenv("GIVEN", "before")
    monkeypatch.setenv("OURS", "stays")
    about = {"telemetry": "off", "env": {"GIVEN": "a 'b'=c", "EMPTY": ""}}
    for options, asked in (({}, ""), ({"asked": ("strategy",), "prefetch": 1}, "strategy,prefetch")):
        run = launch(ASKED, **about, **options)
        assert run.wait() == 0
        assert json.loads(run.paths.log(0).read_text()) == {
            "FSDP_TUI_ASKED": asked,
            "FSDP_TUI_STRATEGY": "fsdp2:full_shard",
            "GIVEN": "a 'b'=c",
            "EMPTY": "",
            "OURS": "stays",
        }
        launched = load_state(run.paths.recording).launched
        assert launched is not None
        assert launched.strategy == ("fsdp2:full_shard" if asked else "")
        assert ("--strategy" in launched.command) == bool(asked)
        assert "GIVEN=a 'b'=c" in launched.command
        assert launched.options["env.GIVEN"] == "a 'b'=c"


def test_a_refusal_is_the_reason_whatever_was_printed_before(launch: Launch) -> None:
    """It is the word of the runner, and not one of the script's."""
    run = launch("import sys\nprint('loading: data')\nsys.exit('fsdp-tui refuses: --wrap none: not in this script')\n")
    assert run.wait() == 1
    ended = load_state(run.paths.recording).ended
    assert ended is not None
    assert ended.reason.endswith("exited with 1: fsdp-tui refuses: --wrap none: not in this script")


def test_a_script_that_raises_is_failed_with_its_rank_and_its_last_lines(launch: Launch) -> None:
    """The traceback in the log begins in the script."""
    text = 'import os, time\nif os.environ["RANK"] == "1":\n    raise ValueError("no such layer")\ntime.sleep(60)\n'
    run = launch(text)
    assert run.wait() == 1
    ended = load_state(run.paths.recording).ended
    assert ended is not None
    assert (ended.state, ended.failed_rank) == ("failed", 1)
    assert ended.exit_codes["1"] == 1
    assert ended.exit_codes["0"] < 0
    assert ended.reason == "rank 1 exited with 1: ValueError: no such layer"
    assert ended.log_tail[0] == "Traceback (most recent call last):"
    assert "train.py" in ended.log_tail[1]
    assert resolve("last").problem == ended.reason


def test_a_killed_rank_makes_the_run_failed_with_that_rank_within_seconds(launch: Launch) -> None:
    """Also when the other rank does not listen to SIGTERM."""
    run = launch(TOY, "stubborn")
    pids = run.pids()
    os.kill(pids[1], signal.SIGKILL)
    killed_s = time.monotonic()
    assert run.wait() == 1
    assert time.monotonic() - killed_s < 20  # torchrun alone takes 30
    ended = load_state(run.paths.recording).ended
    assert ended is not None
    assert (ended.state, ended.failed_rank, ended.exit_codes) == ("failed", 1, {"0": -9, "1": -9})
    assert ended.reason == "rank 1 was killed by SIGKILL"
    first = load_state(run.paths.recording).view().verdicts[0]
    assert (first.kind, first.severity) == ("failed", "bad")
    assert first.what == "the run failed: rank 1 was killed by SIGKILL"
    assert gone(pids[0])


def test_a_killed_launcher_takes_every_rank_with_it_and_the_run_is_lost(launch: Launch) -> None:
    """The kernel kills the agent and the ranks; the hub is left to say so, and then goes too."""
    run = launch(TOY, "stubborn")
    pids, hub = run.pids(), run.hub_pid()
    run.process.kill()
    until(lambda: all(gone(pid) for pid in pids.values()), "no rank survives")
    until(lambda: gone(hub), "the hub ends")
    state = load_state(run.paths.recording)
    assert state.state == "lost"
    assert state.ended is not None
    assert "launcher was killed" in state.ended.reason
    first = state.view().verdicts[0]
    assert (first.kind, first.severity, first.what) == ("lost", "bad", f"the run was lost: {state.ended.reason}")
    assert resolve(run.run_id).state == "lost"


def test_with_launcher_and_hub_killed_the_run_still_reads_as_lost(launch: Launch) -> None:
    """Nobody is left to write an end; the record opens all the same, with what it has."""
    run = launch(TOY)
    pids = run.pids()
    with run.open() as client:
        until(lambda: client.poll(50) and len(client.state.steps) > 60, "more than one commit's worth of steps")
    run.process.kill()
    os.kill(run.hub_pid(), signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in pids.values()), "no rank survives")
    run.process.wait()
    until(lambda: resolve(run.run_id).state == "lost", "it is lost")
    assert not resolve(run.run_id).live
    with run.open() as client:
        assert not client.live
        assert client.view().state == "lost"
        assert client.state.steps


def test_a_killed_hub_is_replaced_and_the_gap_is_an_event(launch: Launch) -> None:
    """Training does not notice; a viewer follows the new hub; commands work again."""
    run = launch(TOY)
    with run.open() as client:
        until(lambda: client.poll(50) and len(client.state.steps) > 20, "steps come")
        before, hub = client.state.steps[-1], run.hub_pid()
        run.process.send_signal(signal.SIGSTOP)  # who replaces it takes its time
        os.kill(hub, signal.SIGKILL)
        time.sleep(3)
        run.process.send_signal(signal.SIGCONT)
        until(lambda: gone(hub) and run.paths.run_file.exists() and run.hub_pid() != hub, "a new hub serves")
        until(lambda: client.poll(50) and client.synced and client.state.steps[-1] > before + 50, "the viewer follows")
        assert client.snapshots >= 2
        gaps = [event for event in client.state.events if event.kind == "hub_gap"]
        assert len(gaps) == 1
        assert client.command("stop").accepted
    assert run.wait() == 0
    state = load_state(run.paths.recording)
    assert state.ended is not None
    assert (state.ended.state, state.ended.stop_rung) == ("stopped", "agreed")
    assert [event.kind for event in state.events].count("hub_gap") == 1
    # The ranks kept what they could not send, 300 steps or so: at most what the dead hub had not yet committed is missing.
    missing = set(range(1, state.steps[-1] + 1)) - set(state.steps)
    assert len(missing) < 150
    assert all(rank.hello and rank.last and not rank.last.dropped for rank in state.ranks.values())


def test_a_run_is_never_listed_as_lost_from_its_start_to_its_end(launch: Launch) -> None:
    """Starting, running, finished, in this order, however often one looks."""
    seen: list[str] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for entry in list_runs():
                if entry.state not in seen[-1:]:
                    seen.append(entry.state)
            time.sleep(0.002)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        run = launch(steps=100)
        assert run.wait() == 0
    finally:
        over.set()
        looking.join()
    assert [state for state in seen if state != "damaged"] == ["starting", "running", "finished"]


def test_pause_resume_and_stop_reach_every_rank(launch: Launch) -> None:
    """A viewer's stop is the agreed one, and the launcher returns 0."""
    run = launch(TOY)
    run.pids()
    with run.open() as client:
        assert client.command("pause").ranks == [0, 1]
        until(lambda: client.poll(50) and client.state.state == "paused", "it is paused")
        client.command("resume")
        until(lambda: client.poll(50) and client.state.state == "running", "it goes on")
        reply = client.command("stop")
        assert reply.ranks == [0, 1]
        until(lambda: client.poll(50) is not None and not client.live, "it ends")
        ended = client.state.ended
        kinds = [event.kind for event in client.state.events]
    assert ended is not None
    assert (ended.state, ended.stop_rung, ended.exit_codes) == ("stopped", "agreed", {"0": 0, "1": 0})
    assert kinds == ["pause_requested", "resume_requested", "stop_requested"]
    assert run.wait() == 0


@pytest.mark.parametrize(
    ("manner", "patience", "rung", "codes"),
    [
        (["deaf"], "0.5,100", "sigterm", {"0": -15, "1": -15}),
        (["deaf", "stubborn"], "0.5,0.5", "sigkill", {"0": -9, "1": -9}),
    ],
)
def test_ranks_that_do_not_stop_are_taken_down_rung_by_rung(
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
    manner: list[str],
    patience: str,
    rung: str,
    codes: dict[str, int],
) -> None:
    """The rung that was needed is reported; the patience of each is bounded."""
    monkeypatch.setenv("FSDP_TUI_STOP_PATIENCE", patience)
    run = launch(TOY, *manner)
    run.pids()
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 0
    ended = load_state(run.paths.recording).ended
    assert ended is not None
    assert (ended.state, ended.stop_rung, ended.exit_codes) == ("stopped", rung, codes)


def test_a_stop_that_takes_long_says_what_it_does(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On stderr as it goes: what it waits for and how long, then each rung with its reason."""
    monkeypatch.setenv("FSDP_TUI_STOP_PATIENCE", "4,0.5")
    run = launch(TOY, "deaf", "stubborn")
    run.pids()
    assert main(["stop", run.run_id]) == 0
    out, err = capfd.readouterr()
    assert out.startswith(f"{run.run_id} stopped by SIGKILL")
    asked, waits, term, kill = err.splitlines()
    assert asked == f"asked all ranks of run {run.run_id} to stop at their next step boundary"
    assert waits.startswith("asked to stop at a step boundary, and waiting for ")
    assert waits.endswith(": SIGTERM after 4 s, SIGKILL 0.5 s after that")
    assert term.startswith("SIGTERM to all ranks: no step boundary for ")
    assert term.endswith("; SIGKILL after 0.5 s")
    assert kill.startswith("SIGKILL to all ranks: still there ")


def test_ranks_that_take_long_to_end_have_still_agreed(places: Path) -> None:
    """Nobody is left to be signalled: the rung stays the one that was needed."""
    paths = create_run(1)
    launcher = Launcher(LaunchFile(run_id=paths.id, name="a", created_ns=1, nproc=1, spec=LaunchSpec()), paths, None)
    launcher.ladder.climb("a viewer asked to stop")
    launcher.ladder.since_s -= 1_000
    launcher.ranks[0] = Rank(pid=1, code=0)
    launcher._climb_in_time()
    ended = launcher._verdict()
    launcher.close()
    assert (ended.state, ended.stop_rung, ended.exit_codes) == ("stopped", "agreed", {"0": 0})


def test_a_second_signal_does_not_wait_for_the_first(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C twice is SIGTERM, whatever the patience."""
    monkeypatch.setenv("FSDP_TUI_STOP_PATIENCE", "600,600")
    run = launch(TOY, "deaf")
    run.pids()
    run.process.send_signal(signal.SIGINT)
    with run.open() as client:
        until(
            lambda: client.poll(20) is not None and "stop_requested" in [e.kind for e in client.state.events], "asked"
        )
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 0
    ended = load_state(run.paths.recording).ended
    assert ended is not None
    assert ended.stop_rung == "sigterm"


def test_a_bound_run_does_not_outlive_the_process_that_started_it(launch: Launch, places: Path) -> None:
    """A killed `run --headless` leaves nothing that trains after five seconds, and a complete record."""
    script = places / "train.py"
    script.write_text(TOY)
    code = (
        "import sys, time; from fsdp_tui.telemetry.launch import LaunchSpec, start;"
        f"run = start(LaunchSpec(target='script', script={str(script)!r}, args=('stubborn', 'deaf'), nproc=2), bound=True);"
        "print(run.run_id, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        run_id = parent.stdout.readline().strip()
        from tests.launch.conftest import Launched

        run = Launched(run_id, parent)  # type: ignore[arg-type]
        pids, hub = run.pids(), run.hub_pid()
        parent.kill()
    until(lambda: all(gone(pid) for pid in pids.values()), "no rank survives", 20)  # the usual patience is 35 s
    until(lambda: gone(hub), "the hub ends")
    ended = load_state(run.paths.recording).ended
    assert ended is not None
    assert (ended.state, ended.stop_rung) == ("stopped", "sigkill")


def test_five_viewers_come_and_go_by_kill_and_the_run_does_not_notice(launch: Launch) -> None:
    """No step is lost, and the hub is the same at the end."""
    run = launch(TOY)
    hub = run.hub_pid()
    code = (
        f"import sys; from fsdp_tui.telemetry.client import open_run; c = open_run({run.run_id!r})\n"
        "assert c.synced; print('in', flush=True)\nwhile True: c.poll(100)"
    )
    viewers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(5)]
    for viewer in viewers:
        assert viewer.stdout is not None
        assert viewer.stdout.readline() == b"in\n"
        viewer.kill()
        viewer.wait()
        viewer.stdout.close()
    assert run.hub_pid() == hub
    with run.open() as client:
        while min(client.state.reported, default=0) < 2:  # they train; the test's own limit ends it if not
            client.poll(100)
        client.command("stop")
    assert run.wait() == 0
    state = load_state(run.paths.recording)
    both = min(rank.goodbye.steps for rank in state.ranks.values() if rank.goodbye)  # each leaves at a step of its own
    assert both > 0
    assert state.reported[:both] == [2] * both
    assert state.steps == list(range(1, len(state.steps) + 1))
    assert not state.bad_records


def test_a_home_that_cannot_be_made_is_one_line(places: Path) -> None:
    """A file where the folder should be; nothing is left behind."""
    (places / "home").write_text("not a folder")
    with pytest.raises(HomeError) as error:
        start(LaunchSpec(target="script", script="x.py", nproc=1))
    assert "\n" not in str(error.value)
    assert str(places / "home") in str(error.value)
    assert "FSDP_TUI_HOME" in str(error.value)
    assert list_runs() == []


def test_a_launch_that_cannot_start_is_one_line(launch: Launch) -> None:
    """A working directory that is not there."""
    with pytest.raises(StartError) as error:
        launch(TOY, directory="/nonexistent/folder")
    assert "\n" not in str(error.value)
    assert "/nonexistent/folder" in str(error.value)
    entry = resolve("last")
    assert (entry.state, entry.live) == ("lost", False)


def test_torchrun_that_ends_before_its_ranks_is_failed_with_what_it_said(
    launch: Launch, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch that cannot be imported, for one."""
    broken = places / "broken"
    (broken / "torch").mkdir(parents=True)
    (broken / "torch" / "__init__.py").write_text('raise ImportError("libcudart.so: no such file")')
    monkeypatch.setenv("PYTHONPATH", str(broken))
    run = launch(TOY)
    assert run.wait() == 1
    ended = load_state(run.paths.recording).ended
    assert ended is not None
    assert (ended.state, ended.exit_codes) == ("failed", {})
    assert "before it started a rank" in ended.reason
    assert "libcudart.so: no such file" in ended.reason
