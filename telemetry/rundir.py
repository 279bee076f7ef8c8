"""Where runs live on disk, and how a run is found.

A run has two places. What is kept, `home()/runs/<id>/`: `launch.json` (what was asked for), `summary.json` (what a list
of runs shows), `run.db` (the recording), `note.json` (what a person wrote on it) and `logs/`. What lives,
`runtime()/<id>/`: `run.json` and `view.json` (how to reach the hub), the sockets, and `lock`, which the hub holds: the
kernel releases it even after kill -9, so that the lock, and not a file, says whether a run is live. Until there is a hub, who
brings it up holds `coming-up`.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import secrets
import shutil
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from fsdp_tui.telemetry.messages import ENDED, PROTOCOL
from fsdp_tui.telemetry.notes import Note, NoteError, read_note
from fsdp_tui.telemetry.places import RunError as RunError
from fsdp_tui.telemetry.places import home as home
from fsdp_tui.telemetry.places import make_runtime as make_runtime
from fsdp_tui.telemetry.places import runtime as runtime
from fsdp_tui.telemetry.places import said

if TYPE_CHECKING:
    from fsdp_tui.telemetry.state import RunState

SOCKET_PATH_MAX = 107
"""Bytes of a Unix socket's path (sockaddr_un, without its terminating zero)."""
SOCKETS = ("up", "ranks", "pub", "view", "control")
VIEWER_SOCKETS = ("pub", "view")
RUN_ID = re.compile(r"\d{8}-\d{6}-[a-z2-7]{4}")


NO_NOTE = Note()


class HomeError(RunError):
    """The place where runs are kept cannot be written."""


class UnknownRun(RunError):
    """No run answers to this name, or several do."""


class ProcessId(msgspec.Struct, frozen=True):
    """A process, named for good: pids are reused, a pid with its start time is not."""

    pid: int
    started: float

    @staticmethod
    def of(pid: int) -> ProcessId | None:
        """The process that has this pid now; None when there is none, or only its zombie."""
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return ProcessId(pid, process.create_time())
        except psutil.Error:
            return None

    def alive(self) -> bool:
        now = ProcessId.of(self.pid)
        return now is not None and abs(now.started - self.started) < 0.05


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`, and with the viewers' endpoints only, `view.json`."""

    proto: int = PROTOCOL
    run_id: str
    host: str
    kept: str
    """Directory of what is kept of the run."""
    hub: ProcessId | None = None
    launcher: ProcessId | None = None
    endpoints: dict[str, str]
    """Socket -> ZeroMQ address."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """`summary.json`: what a list of runs shows, so that it need not open recordings."""

    run_id: str
    name: str
    state: str
    created_ns: int
    ended_ns: int | None = None
    strategy: str = ""
    """Requested, in text form."""
    effective: str = ""
    world_size: int = 0
    steps: int = 0
    planned_steps: int | None = None
    loss: float | None = None
    reason: str = ""
    """Why it failed or was lost."""
    unrecorded: str = ""
    """Since when its recording cannot be written, and why; empty when it can."""
    loss_lost: str = ""
    """What the loss is when it is no number, which JSON cannot hold: "nan", "inf" or "-inf"; `loss` is null then."""

    @property
    def last_loss(self) -> float | None:
        """Of the newest step; NaN and infinity where that was measured, None where no loss is known."""
        return float(self.loss_lost) if self.loss_lost in ("nan", "inf", "-inf") else self.loss


class _Spec(msgspec.Struct):
    steps: int | None = None


class _Launch(msgspec.Struct):
    """The part of `launch.json` that a list needs (all of it: `telemetry.launch.Launch`)."""

    run_id: str
    name: str
    created_ns: int
    nproc: int
    spec: _Spec
    requested: str = ""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run as a list shows it."""

    id: str
    name: str
    state: str
    """One of messages.STATES; "damaged" when neither launch.json nor summary.json can be read."""
    live: bool
    created_ns: int
    ended_ns: int | None
    strategy: str
    effective: str
    world_size: int
    steps: int
    planned_steps: int | None
    loss: float | None
    """NaN or infinite where that was measured; None: not known."""
    problem: str
    """One line on what is wrong with the run or its files; empty when nothing is."""
    paths: RunPaths
    note: Note = NO_NOTE


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The files of one run. Nothing here says that they exist."""

    id: str
    kept: Path
    alive: Path

    @property
    def launch(self) -> Path:
        return self.kept / "launch.json"

    @property
    def summary(self) -> Path:
        return self.kept / "summary.json"

    @property
    def note(self) -> Path:
        return self.kept / "note.json"

    @property
    def recording(self) -> Path:
        return self.kept / "run.db"

    @property
    def logs(self) -> Path:
        return self.kept / "logs"

    def log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    @property
    def launcher_log(self) -> Path:
        return self.logs / "launcher.log"

    @property
    def run_file(self) -> Path:
        return self.alive / "run.json"

    @property
    def view_file(self) -> Path:
        return self.alive / "view.json"

    @property
    def lock(self) -> Path:
        return self.alive / "lock"

    @property
    def coming_up(self) -> Path:
        return self.alive / "coming-up"


# A run's two places


def paths_of(run_id: str) -> RunPaths:
    """The files of a run by its id."""
    return RunPaths(run_id, home() / "runs" / run_id, runtime() / run_id)


def create_run(now_ns: int) -> RunPaths:
    """Makes the two directories of a new run.

    Raises:
        HomeError: the home cannot be written.
        RunError: the runtime directory cannot be used.
    """
    make_runtime()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_ns // 10**9))
    while True:
        paths = paths_of(f"{stamp}-{''.join(secrets.choice('abcdefghijklmnopqrstuvwxyz234567') for _ in range(4))}")
        try:
            paths.logs.parent.parent.mkdir(parents=True, exist_ok=True)
            paths.kept.mkdir()
            paths.logs.mkdir()
            paths.alive.mkdir(mode=0o700)
        except FileExistsError as error:
            if error.filename == str(paths.kept):
                continue
            raise home_error(paths.kept, error) from None
        except OSError as error:
            raise home_error(paths.kept, error) from None
        return paths


def home_error(path: Path, error: OSError) -> HomeError:
    """The one line for a home that cannot be written."""
    return HomeError(f"cannot write {path}: {said(error)}; make room or set FSDP_TUI_HOME to another folder")


def write_file(path: Path, body: bytes, *, mode: int = 0o644) -> None:
    """Writes a whole file or nothing: temporary file, then rename.

    Raises:
        HomeError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with open(handle, "wb") as file:
            file.write(body)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise home_error(path, error) from None


def write_over(path: Path, body: bytes) -> None:
    """Writes over a file that is there, padded with spaces to its length: most full disks have room for that.

    Raises:
        HomeError: it is not there, or cannot be written.
    """
    try:
        with open(path, "r+b", buffering=0) as file:
            file.write(body.ljust(os.fstat(file.fileno()).st_size))
    except OSError as error:
        raise home_error(path, error) from None


def read_summary(paths: RunPaths) -> Summary:
    """Reads a run's summary.json.

    Raises:
        RunError: it is not there, or damaged.
    """
    try:
        return msgspec.json.decode(paths.summary.read_bytes(), type=Summary)
    except OSError as error:
        raise RunError(f"{paths.summary}: {said(error)}") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RunError(f"summary.json is damaged: {_one_line(error)}") from None


def summary_of(run_id: str, state: RunState, unrecorded: str = "") -> Summary:
    """What a list shows of a run in this state. The loss is that of the step beside it, which all ranks have finished."""
    launched = state.launched
    structures = [rank.structure for rank in state.ranks.values() if rank.structure]
    steps = min((rank.last.step if rank.last else 0 for rank in state.ranks.values()), default=0)
    at = bisect_left(state.steps, steps)
    loss = None
    if at < len(state.steps) and state.steps[at] == steps and state.loss_count[at]:
        loss = state.loss_sum[at] / state.loss_count[at]
    is_number = loss is None or math.isfinite(loss)
    return Summary(
        run_id=run_id,
        name=launched.name if launched else run_id,
        state=state.state,
        created_ns=launched.created_ns if launched else _time_of(run_id) or time.time_ns(),
        ended_ns=state.ended.ended_ns if state.ended else None,
        strategy=launched.strategy if launched else "",
        effective=structures[0].effective if structures else "",
        world_size=state.world_size,
        steps=steps,
        planned_steps=launched.steps if launched else None,
        loss=loss if is_number else None,
        reason=state.ended.reason if state.ended else "",
        unrecorded=unrecorded,
        loss_lost="" if is_number else str(loss),
    )


def _recorded_summary(paths: RunPaths) -> Summary | None:
    """What the recording says of an ended run whose summary cannot be read; None when it cannot be read either."""
    try:
        found = paths.recording.stat()
    except OSError:
        return None
    return _summary_from(paths, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=64)
def _summary_from(paths: RunPaths, changed_ns: int, nbytes: int) -> Summary | None:
    """Reading a recording takes time, and a list is made again and again: once for each state of the file."""
    from fsdp_tui.telemetry.recording import RecordingError, load_state

    try:
        return summary_of(paths.id, load_state(paths.recording))
    except RecordingError:
        return None


# The runtime files of a live run


def endpoints_for(paths: RunPaths) -> dict[str, str]:
    """Addresses for a new hub: those of the hub before it where there was one, so that ranks find the new one.

    Raises:
        RunError: no private folder with a path short enough for sockets can be made.
    """
    try:
        return dict(read_run_file(paths.run_file).endpoints)
    except RunError:
        pass
    folder = paths.alive
    longest = max(len(name) for name in SOCKETS) + len("/.sock")
    if len(os.fsencode(folder)) + longest > SOCKET_PATH_MAX:
        # mkdtemp makes it 0700 and ours; TMPDIR may be what is long.
        roots = [root for root in (tempfile.gettempdir(), "/tmp") if len(root) + 20 + longest <= SOCKET_PATH_MAX]
        try:
            folder = Path(tempfile.mkdtemp(prefix="fsdp-tui-", dir=roots[0] if roots else "/tmp"))
        except OSError as error:
            raise RunError(f"no folder with a short path for sockets: {error}; set FSDP_TUI_RUNTIME_DIR") from None
    return {name: f"ipc://{folder}/{name}.sock" for name in SOCKETS}


def read_run_file(path: Path) -> RunFile:
    """Reads a run.json or view.json.

    Raises:
        RunError: it is not there, is damaged, or speaks another protocol.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=RunFile)
    except OSError as error:
        raise RunError(f"{path}: {said(error)}") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged: {_one_line(error)}") from None
    if found.proto != PROTOCOL:
        raise RunError(
            f"{path} speaks protocol {found.proto}, this fsdp-tui speaks {PROTOCOL}: use the fsdp-tui that launched the run"
        )
    return found


def remove_alive(paths: RunPaths) -> None:
    """Removes the runtime directory of a run and its sockets; what is not there is fine."""
    try:
        endpoints = read_run_file(paths.run_file).endpoints
    except RunError:
        endpoints = {}
    folders = {Path(address.removeprefix("ipc://")).parent for address in endpoints.values()}
    for folder in folders - {paths.alive}:
        if folder.name.startswith("fsdp-tui-"):  # the short one that endpoints_for made
            shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(paths.alive, ignore_errors=True)


def hold_lock(paths: RunPaths, *, timeout_s: float = 1.0) -> int:
    """Takes the run's lock for a hub and returns the file descriptor that holds it.

    A viewer that tests the lock holds it for an instant, so one refusal is not final.

    Raises:
        RunError: another hub serves this run.
    """
    handle = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > deadline:
                os.close(handle)
                raise RunError(f"run {paths.id} already has a hub") from None
            time.sleep(0.02)
        else:
            return handle


@contextmanager
def coming_up(paths: RunPaths) -> Iterator[None]:
    """Inside it the run is live, though its hub and its launcher are only being started; and not if this process is killed."""
    handle = os.open(paths.coming_up, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def hub_alive(paths: RunPaths) -> bool:
    """Whether a hub holds the run's lock now."""
    return is_held(paths.lock)


def is_held(lock: Path) -> bool:
    """Whether a process has this file locked for itself now; False where there is no such file."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def is_live(paths: RunPaths) -> bool:
    """Whether the run has a hub, or somebody who is about to give it one."""
    if hub_alive(paths) or is_held(paths.coming_up):
        return True
    try:
        found = read_run_file(paths.run_file)
    except RunError:
        return False
    return found.launcher is not None and found.launcher.alive()


# Discovery


def list_runs() -> list[RunEntry]:
    """Every run that is kept here or lives here, newest first. Damaged files make an entry with a reason, never an error."""
    found: dict[str, RunPaths] = {}
    for root in (home() / "runs", runtime()):
        for run_id in _folders(root):
            if RUN_ID.fullmatch(run_id):
                found.setdefault(run_id, paths_of(run_id))
    entries = [_entry(paths) for paths in found.values()]
    return sorted(entries, key=lambda entry: (entry.created_ns, entry.id), reverse=True)


def _folders(root: Path) -> Iterator[str]:
    try:
        with os.scandir(root) as entries:
            yield from [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return


def entry_of(run_id: str) -> RunEntry:
    """One run by its full id.

    Raises:
        UnknownRun: nothing of it is here.
    """
    paths = paths_of(run_id)
    if not (paths.kept.is_dir() or paths.alive.is_dir()):
        raise UnknownRun(f"no run {run_id} in {home()}")
    return _entry(paths)


def _entry(paths: RunPaths) -> RunEntry:
    live = is_live(paths)
    problem = ""
    if not paths.kept.is_dir():
        # It was launched with another FSDP_TUI_HOME: run.json knows where that is.
        try:
            paths = RunPaths(paths.id, Path(read_run_file(paths.run_file).kept), paths.alive)
        except RunError as error:
            problem = str(error)
    summary: Summary | None = None
    try:
        summary = read_summary(paths)
    except RunError as error:
        if paths.summary.exists():
            problem = str(error)
        summary = None if live else _recorded_summary(paths)
        if summary is not None:
            problem = f"{problem or 'summary.json is missing'}; taken from the recording"
    if summary is None:
        try:
            launch = msgspec.json.decode(paths.launch.read_bytes(), type=_Launch)
            summary = Summary(
                run_id=paths.id,
                name=launch.name,
                state="starting",
                created_ns=launch.created_ns,
                strategy=launch.requested,
                world_size=launch.nproc,
                planned_steps=launch.spec.steps,
            )
        except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as second:
            problem = problem or f"launch.json cannot be read: {_one_line(second)}"
    if live and paths.alive.is_dir() and not is_held(paths.coming_up):
        try:
            read_run_file(paths.run_file)
        except RunError as error:
            problem = str(error)
    try:
        note = read_note(paths.note)
    except NoteError as error:
        note, problem = Note(), "; ".join(filter(None, (problem, str(error))))
    if summary is None:
        return RunEntry(
            id=paths.id,
            name=paths.id,
            state="damaged",
            live=live,
            created_ns=_time_of(paths.id),
            ended_ns=None,
            strategy="",
            effective="",
            world_size=0,
            steps=0,
            planned_steps=None,
            loss=None,
            problem=problem,
            paths=paths,
            note=note,
        )
    state = summary.state
    if state not in ENDED and not live:
        # Nobody is left to say how it ended.
        state = "lost"
        problem = problem or "neither its hub nor its launcher is running"
    return RunEntry(
        id=paths.id,
        name=summary.name,
        state=state,
        live=live,
        created_ns=summary.created_ns,
        ended_ns=summary.ended_ns,
        strategy=summary.strategy,
        effective=summary.effective,
        world_size=summary.world_size,
        steps=summary.steps,
        planned_steps=summary.planned_steps,
        loss=summary.last_loss,
        problem=problem or "; ".join(filter(None, (summary.reason, summary.unrecorded))),
        paths=paths,
        note=note,
    )


def _time_of(run_id: str) -> int:
    """Nanoseconds since the epoch that a run's id was made from."""
    try:
        import calendar

        return calendar.timegm(time.strptime(run_id[:15], "%Y%m%d-%H%M%S")) * 10**9
    except ValueError:
        return 0


def _one_line(error: Exception) -> str:
    text = said(error) if isinstance(error, OSError) else str(error)
    return " ".join(text.split())


def resolve(ref: str) -> RunEntry:
    """The run that a person means: an id, a unique prefix of one, a name (the newest), `last`, or the path of a run.json.

    Raises:
        UnknownRun: none or several.
        RunError: a run.json that cannot be used.
    """
    if ref.endswith(".json") or os.sep in ref:
        return _by_path(Path(ref).expanduser())
    runs = list_runs()
    if ref == "last":
        if not runs:
            raise UnknownRun(f"there is no run yet in {home()}: start one with fsdp-tui demo")
        return runs[0]
    for entry in runs:
        if entry.id == ref:
            return entry
    for entry in runs:  # newest first
        if entry.name == ref:
            return entry
    matches = [entry for entry in runs if ref and entry.id.startswith(ref)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(entry.id for entry in matches[:4]) + (", ..." if len(matches) > 4 else "")
        raise UnknownRun(f"{ref!r} fits {len(matches)} runs ({shown}): give more of the id")
    raise UnknownRun(
        f"no run {ref!r}: expected an id, the beginning of one, a name, last, or a run.json; fsdp-tui runs lists them"
    )


def resolve_live(ref: str) -> RunEntry:
    """As `resolve`, for who wants to act on a run: of a name the run that goes on, if there is one.

    Raises:
        UnknownRun: none or several, also several that go on and have this name.
        RunError: a run.json that cannot be used.
    """
    live = [entry for entry in list_runs() if entry.live and entry.name == ref]
    if len(live) > 1:
        ids = ", ".join(entry.id for entry in live)
        raise UnknownRun(f"{len(live)} live runs are named {ref!r}: say which by its id ({ids})")
    return live[0] if live else resolve(ref)


def _by_path(path: Path) -> RunEntry:
    path = path.absolute()
    if path.is_dir():
        path = path / "run.json"
    try:
        found = read_run_file(path)
    except RunError:
        # An ended run leaves no run.json; its folder's name still says which run it was.
        if not path.exists() and RUN_ID.fullmatch(path.parent.name):
            return entry_of(path.parent.name)
        raise
    return _entry(RunPaths(found.run_id, Path(found.kept), path.parent))


def write_note(entry: RunEntry, note: Note) -> None:
    """Keeps a note with the run, or removes it when it is empty.

    Raises:
        HomeError: the run's folder cannot be written.
        UnknownRun: it is gone.
    """
    if not entry.paths.kept.is_dir():
        raise UnknownRun(f"run {entry.id} is gone: its folder {entry.paths.kept} is not there")
    if note:
        write_file(entry.paths.note, msgspec.json.encode(note))
        return
    try:
        entry.paths.note.unlink(missing_ok=True)
    except OSError as error:
        raise home_error(entry.paths.note, error) from None


# Removal


def remove(entry: RunEntry) -> None:
    """Deletes a run with everything that is kept of it.

    Raises:
        RunError: the run is live.
        HomeError: it cannot be deleted.
    """
    if is_live(entry.paths):
        raise RunError(f"run {entry.id} is live: stop it first (fsdp-tui stop {entry.id})")
    remove_alive(entry.paths)
    try:
        if entry.paths.kept.exists():
            shutil.rmtree(entry.paths.kept)
    except OSError as error:
        raise HomeError(f"cannot delete {entry.paths.kept}: {said(error)}") from None


def prune(*, keep: int, now_ns: int, older_than_ns: int = 0) -> list[RunEntry]:
    """Deletes ended runs, all but the `keep` newest, that were created more than `older_than_ns` ago; returns them.

    Raises:
        HomeError: one of them cannot be deleted.
    """
    ended = [entry for entry in list_runs() if not entry.live]
    gone = [entry for entry in ended[keep:] if now_ns - entry.created_ns >= older_than_ns]
    for entry in gone:
        remove(entry)
    return gone
