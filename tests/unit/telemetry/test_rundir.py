"""Run directories: where they are, how runs are found, and what damage and foreign hands do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from fsdp_tui.telemetry import rundir
from fsdp_tui.telemetry.launch import LaunchSpec, make_run
from fsdp_tui.telemetry.messages import Ended, Message, encode
from fsdp_tui.telemetry.recording import Recorder
from fsdp_tui.telemetry.rundir import (
    HomeError,
    ProcessId,
    RunError,
    RunFile,
    RunPaths,
    Summary,
    UnknownRun,
    coming_up,
    create_run,
    endpoints_for,
    hold_lock,
    hub_alive,
    list_runs,
    make_runtime,
    prune,
    remove,
    resolve,
    resolve_live,
    runtime,
    summary_of,
    write_file,
)
from fsdp_tui.telemetry.state import RunState
from tests.unit.telemetry.messages_for_tests import hello, launched, step, structure

SECOND = 10**9
NOON = 1_767_268_800 * SECOND
"""2026-01-01 12:00:00 UTC."""


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FSDP_TUI_RUNTIME_DIR", str(tmp_path / "rt"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path


def recorded(at_s: int, name: str, state: str = "finished", steps: int = 3) -> RunPaths:
    """A run as its hub leaves it."""
    paths = create_run(NOON + at_s * SECOND)
    summary = Summary(
        run_id=paths.id,
        name=name,
        state=state,
        created_ns=NOON + at_s * SECOND,
        strategy="ddp",
        world_size=2,
        steps=steps,
    )
    write_file(paths.summary, msgspec.json.encode(summary))
    paths.alive.rmdir()
    return paths


def run_file(paths: RunPaths, **changes: object) -> None:
    """A run.json as a hub writes it."""
    found = RunFile(run_id=paths.id, host="here", kept=str(paths.kept), endpoints={"pub": "ipc:///nowhere"})
    write_file(paths.run_file, msgspec.json.encode(msgspec.structs.replace(found, **changes)), mode=0o600)


def test_ids_sort_by_time_and_are_never_used_twice() -> None:
    """The same second gives different ids."""
    ids = [create_run(NOON + at * SECOND).id for at in (0, 0, 1)]
    assert len(set(ids)) == 3
    assert all(run_id.startswith("20260101-120000-") for run_id in ids[:2])
    assert ids[2] > max(ids[:2])


def test_runs_are_listed_newest_first_and_found_by_every_kind_of_name() -> None:
    """Id, unique prefix, name (the newest), last."""
    old, new, other = recorded(0, "a"), recorded(60, "a"), recorded(30, "b")
    assert [entry.id for entry in list_runs()] == [new.id, other.id, old.id]
    assert resolve("last").id == new.id
    assert resolve("a").id == new.id
    assert resolve(old.id).id == old.id
    assert resolve(other.id[:15]).id == other.id
    assert resolve("b").steps == 3


def test_an_ambiguous_or_unknown_name_is_one_line() -> None:
    """It names the candidates, or what was expected."""
    first, second = recorded(0, "a"), recorded(1, "b")
    with pytest.raises(UnknownRun, match="fits 2 runs") as error:
        resolve("2026")
    assert first.id in str(error.value)
    assert second.id in str(error.value)
    with pytest.raises(UnknownRun, match="no run 'zzz'"):
        resolve("zzz")
    with pytest.raises(UnknownRun):
        resolve("")


def test_no_run_at_all_says_how_to_start_one() -> None:
    """Also when the home does not exist."""
    assert list_runs() == []
    with pytest.raises(UnknownRun, match="fsdp-tui demo"):
        resolve("last")


@pytest.mark.parametrize("damage", [b"", b"{", b"[1, 2]", b"\xff\xfe", b'{"run_id": 5}', b"[" * 100_000])
def test_a_damaged_summary_or_launch_is_an_entry_with_a_reason(damage: bytes) -> None:
    """Never an exception; the other runs are there."""
    fine, broken = recorded(0, "fine"), recorded(1, "broken")
    broken.summary.write_bytes(damage)
    broken.launch.write_bytes(damage)
    entries = {entry.id: entry for entry in list_runs()}
    assert entries[fine.id].state == "finished"
    assert entries[broken.id].state == "damaged"
    assert entries[broken.id].created_ns == NOON + SECOND
    assert "damaged" in entries[broken.id].problem
    assert "\n" not in entries[broken.id].problem
    remove(entries[broken.id])
    assert [entry.id for entry in list_runs()] == [fine.id]


@pytest.mark.parametrize("damage", [None, b"", b"garbage"])
def test_the_list_takes_from_the_recording_what_a_lost_summary_said(damage: bytes | None) -> None:
    """As `show` does, and says that the summary is damaged; not for a run whose recording cannot be read either."""
    paths, gone = recorded(0, "whole"), recorded(1, "gone")
    state, recorder = RunState(), Recorder(paths.recording)
    steps = (step(rank, number, loss=float(number + rank)) for number in range(1, 8) for rank in (0, 1))
    messages: list[Message] = [
        launched(),
        hello(0),
        hello(1),
        structure(0),
        *steps,
        Ended(state="finished", ended_ns=9, exit_codes={}),
    ]
    for message in messages:
        state.apply(message)
        recorder.add(message, encode(message), 1_000)
    recorder.close(state)
    gone.recording.write_bytes(b"garbage")
    for one in (paths, gone):
        if damage is None:
            one.summary.unlink()
        else:
            one.summary.write_bytes(damage)
    paths.note.write_bytes(b"[]")
    entries = {entry.id: entry for entry in list_runs()}
    entry = entries[paths.id]
    assert (entry.state, entry.name, entry.steps, entry.loss, entry.ended_ns) == ("finished", "a", 7, 7.5, 9)
    assert ("summary.json is missing" if damage is None else "summary.json is damaged") in entry.problem
    assert "taken from the recording" in entry.problem
    assert "note.json is damaged" in entry.problem
    assert entries[gone.id].state == "damaged"


def test_the_loss_of_a_list_is_that_of_the_step_beside_it() -> None:
    """While one rank is a step ahead: the mean of the step that both have finished."""
    state = RunState()
    for message in (launched(), hello(0), hello(1), step(0, 1, loss=4.0), step(1, 1, loss=6.0), step(0, 2, loss=1.0)):
        state.apply(message)
    summary = summary_of("20260101-120000-abcd", state)
    assert (summary.steps, summary.loss) == (1, 5.0)
    state.apply(step(1, 2, loss=2.0))
    assert summary_of("20260101-120000-abcd", state).loss == 1.5


@pytest.mark.parametrize("damage", [b"", b"null", b'{"proto": 1}'])
def test_a_damaged_run_file_of_a_live_run_is_an_entry_with_a_reason(damage: bytes) -> None:
    """The lock, not the file, says that it is live."""
    paths = create_run(NOON)
    write_file(paths.summary, msgspec.json.encode(Summary(run_id=paths.id, name="a", state="running", created_ns=NOON)))
    handle = hold_lock(paths)
    paths.run_file.write_bytes(damage)
    (entry,) = list_runs()
    assert (entry.state, entry.live) == ("running", True)
    assert "run.json is damaged" in entry.problem
    os.close(handle)
    assert list_runs()[0].state == "lost"


def test_a_run_whose_hub_and_launcher_are_gone_is_lost() -> None:
    """A run that ended keeps its state."""
    recorded(0, "a", state="running")
    recorded(1, "b", state="failed")
    assert [(entry.name, entry.state) for entry in list_runs()] == [("b", "failed"), ("a", "lost")]


def test_a_run_that_is_coming_up_is_live() -> None:
    """Before its hub or launcher are there it is starting and cannot be deleted; it is lost when nobody brings it up any more."""
    paths, _ = make_run(LaunchSpec(), 2)
    with coming_up(paths):
        (entry,) = list_runs()
        assert (entry.state, entry.live, entry.problem) == ("starting", True, "")
        with pytest.raises(RunError, match="is live"):
            remove(entry)
        assert prune(keep=0, now_ns=time.time_ns()) == []
    (entry,) = list_runs()
    assert (entry.state, entry.live) == ("lost", False)


def test_a_run_between_two_hubs_is_live_while_its_launcher_is() -> None:
    """The launcher is named by pid and start time, so that a reused pid does not count."""
    paths = recorded(0, "a", state="running")
    paths.alive.mkdir()
    me = ProcessId.of(os.getpid())
    assert me is not None
    run_file(paths, launcher=me)
    assert resolve("a").live
    run_file(paths, launcher=ProcessId(me.pid, me.started - 100))
    assert not resolve("a").live


def test_of_a_name_the_run_that_goes_on_is_meant() -> None:
    """Whoever wants to act on it means that one, also when a newer one has ended; of several it has to be said which."""
    first, second, over = create_run(NOON), create_run(NOON + SECOND), recorded(2, "a")
    for paths in (first, second):
        about = Summary(run_id=paths.id, name="a", state="running", created_ns=NOON)
        write_file(paths.summary, msgspec.json.encode(about))
    locks = [hold_lock(first)]
    assert resolve("a").id == over.id
    assert resolve_live("a").id == first.id
    assert resolve_live("last").id == over.id
    locks.append(hold_lock(second))
    with pytest.raises(
        UnknownRun, match=rf"2 live runs are named 'a': say which by its id \({second.id}, {first.id}\)"
    ):
        resolve_live("a")
    assert resolve_live(second.id).id == second.id
    for lock in locks:
        os.close(lock)
    assert resolve_live("a").id == over.id


def test_a_run_file_opens_its_run_wherever_it_is_kept(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By path; and by the path it had when the run has ended since."""
    paths = recorded(0, "a")
    paths.alive.mkdir()
    run_file(paths)
    monkeypatch.setenv("FSDP_TUI_HOME", str(places / "elsewhere"))
    assert resolve(str(paths.run_file)).paths.kept == paths.kept
    assert [entry.name for entry in list_runs()] == ["a"]
    monkeypatch.setenv("FSDP_TUI_HOME", str(places / "home"))
    paths.run_file.unlink()
    assert resolve(str(paths.run_file)).id == paths.id
    with pytest.raises(RunError, match="no such file"):
        resolve(str(places / "other.json"))


def test_another_protocol_is_refused_in_a_plain_sentence() -> None:
    """Which one was found, which one we speak."""
    paths = create_run(NOON)
    run_file(paths, proto=99)
    with pytest.raises(RunError, match="speaks protocol 99, this fsdp-tui speaks 1"):
        rundir.read_run_file(paths.run_file)


def test_the_lock_goes_with_its_process(places: Path) -> None:
    """Kill -9 frees it at once; while it is held nobody else gets it."""
    paths = create_run(NOON)
    code = f"from fsdp_tui.telemetry.rundir import *; hold_lock(paths_of({paths.id!r})); print('held', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert hub_alive(paths)
        with pytest.raises(RunError, match="already has a hub"):
            hold_lock(paths, timeout_s=0.05)
        with pytest.raises(RunError, match="is live"):
            remove(resolve(paths.id))
        holder.kill()
    assert not hub_alive(paths)
    os.close(hold_lock(paths))


def test_sockets_move_to_a_short_private_folder_when_the_path_is_too_long(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sun_path holds 107 bytes; what a hub before used stays in use, and goes with the run."""
    monkeypatch.setenv("FSDP_TUI_RUNTIME_DIR", str(places / ("long" * 30)))
    paths = create_run(NOON)
    endpoints = endpoints_for(paths)
    longest = max(len(address.removeprefix("ipc://")) for address in endpoints.values())
    assert longest <= 107
    folder = Path(endpoints["up"].removeprefix("ipc://")).parent
    assert folder.stat().st_mode & 0o077 == 0
    run_file(paths, endpoints=endpoints)
    assert endpoints_for(paths) == endpoints
    rundir.remove_alive(paths)
    assert not folder.exists()
    assert not paths.alive.exists()


def test_the_fallback_runtime_folder_is_private_or_refused(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link, an open mode or another owner in a world-writable place would let others reach our sockets."""
    monkeypatch.delenv("FSDP_TUI_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(places))
    folder = runtime()
    assert folder.parent == places
    assert make_runtime().stat().st_mode & 0o777 == 0o700
    folder.chmod(0o750)
    with pytest.raises(RunError, match="mode 0750"):
        make_runtime()
    folder.rmdir()
    (places / "theirs").mkdir(mode=0o700)
    folder.symlink_to(places / "theirs")
    with pytest.raises(RunError, match="is a link"):
        make_runtime()
    folder.unlink()
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    monkeypatch.setattr("fsdp_tui.telemetry.places.runtime", lambda: folder)
    with pytest.raises(RunError, match="belongs to user"):
        make_runtime()


def test_places_default_to_the_xdg_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours first, then XDG's, then its defaults."""
    monkeypatch.delenv("FSDP_TUI_HOME")
    monkeypatch.delenv("FSDP_TUI_RUNTIME_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert (rundir.home(), runtime()) == (Path("/data/fsdp-tui"), Path("/run/user/7/fsdp-tui"))
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert rundir.home() == Path("/home/me/.local/share/fsdp-tui")


def test_a_home_that_cannot_be_written_is_one_line(places: Path) -> None:
    """A file in the place of a folder; nothing half-made stays."""
    (places / "home").mkdir()
    (places / "home" / "runs").write_text("")
    with pytest.raises(HomeError, match="cannot write") as error:
        create_run(NOON)
    assert "\n" not in str(error.value)
    assert "FSDP_TUI_HOME" in str(error.value)
    assert list_runs() == []


def test_a_file_is_written_whole_or_not_at_all(places: Path) -> None:
    """The old content stays when the new cannot be written."""
    target = places / "file.json"
    write_file(target, b"old", mode=0o600)
    assert target.stat().st_mode & 0o777 == 0o600
    with pytest.raises(HomeError):
        write_file(places / "no" / "file.json", b"new")
    assert target.read_bytes() == b"old"


def test_prune_keeps_the_newest_and_the_young() -> None:
    """Live runs are not counted and not touched."""
    runs = [recorded(at, f"r{at}") for at in range(4)]
    live = create_run(NOON - 100 * SECOND)
    handle = hold_lock(live)
    gone = prune(keep=1, now_ns=NOON + 3 * SECOND, older_than_ns=2 * SECOND)
    assert [entry.id for entry in gone] == [runs[1].id, runs[0].id]
    assert {entry.id for entry in list_runs()} == {runs[3].id, runs[2].id, live.id}
    os.close(handle)
