"""Launches that wait for each other: one queue of this machine, and the process that works through it.

The queue is a file in `runtime()`, since what waits on one machine is no other's to launch. Whoever adds to it starts the worker,
`python -m fsdp_tui.telemetry.queue`, unless one is there: a process of its own, so that the queue goes on when the dashboard is
left. Two locks, both given back by the kernel whatever happens: `edit` for a change of the file, `worker` while somebody
works. A worker that was killed leaves its run alone; the next one waits for that run and goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from fsdp_tui.telemetry.launch import BRIEF_STEPS, LaunchSpec, problems, run_name, start
from fsdp_tui.telemetry.machine import this_machine
from fsdp_tui.telemetry.messages import ENDED
from fsdp_tui.telemetry.places import RunError, home, make_runtime, runtime, said
from fsdp_tui.telemetry.rundir import RunEntry, entry_of, is_held, is_live, paths_of, read_run_file, write_file

LOOK_S = 0.2
"""How often the worker looks whether its run has ended, or is to be stopped."""
SETTLE_S = 10.0
"""What a hub whose launcher was killed gets to say how the run ended."""
Outcome = Literal["waiting", "starting", "running", "stopping", "finished", "stopped", "failed", "lost", "cancelled"]
GOING = frozenset({"starting", "running", "stopping"})
OVER = frozenset({"finished", "stopped", "failed", "lost", "cancelled"})


class QueueError(RunError):
    """The queue cannot be read or changed; the message is one line."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of the queue."""

    number: int
    """Counts up; it names the item while the queue changes."""
    spec: LaunchSpec
    state: Outcome = "waiting"
    run_id: str = ""
    """"" while it has not started."""
    reason: str = ""
    """Why it failed, or was not started; one line."""

    @property
    def name(self) -> str:
        return run_name(self.spec)


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for since the queue was last through, in the order in which it runs."""

    items: tuple[Item, ...] = ()

    @property
    def open(self) -> bool:
        """Whether something runs or waits."""
        return any(item.state not in OVER for item in self.items)

    @property
    def finished(self) -> list[str]:
        """The runs that came to their end, to compare them."""
        return [item.run_id for item in self.items if item.state == "finished"]

    def count(self, *states: str) -> int:
        return sum(item.state in states for item in self.items)


class Places(NamedTuple):
    """The queue's files. Runs of another FSDP_TUI_HOME have a queue of their own."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "queue.json"

    @property
    def log(self) -> Path:
        return self.folder / "queue.log"


def places() -> Places:
    return Places(runtime() / f"queue-{zlib.crc32(os.fsencode(home())):08x}")


def read() -> Queue:
    """The queue as it is; an empty one when nothing was ever queued.

    Raises:
        QueueError: its file cannot be read.
    """
    path = places().file
    try:
        return msgspec.json.decode(path.read_bytes(), type=Queue)
    except FileNotFoundError:
        return Queue()
    except OSError as error:
        raise QueueError(f"cannot read {path}: {said(error)}") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise QueueError(f"{path} is damaged: {' '.join(str(error).split())}; delete it to begin anew") from None


def working() -> bool:
    """Whether a worker is there. What runs or waits without one goes on when somebody looks."""
    return is_held(places().folder / "worker")


def look() -> Queue:
    """The queue as it is; one that is open and that nobody works on, since that process was killed, gets a new worker.

    Raises:
        QueueError: its file cannot be read, or the worker cannot be started.
    """
    queue = read()
    if queue.open:
        wake()
    return queue


def queueable(spec: LaunchSpec) -> LaunchSpec:
    """The same launch for a process that works elsewhere, and ends by itself: a demo without steps would train forever."""
    if spec.target != "demo":
        return msgspec.structs.replace(spec, directory=os.path.abspath(spec.directory or "."))
    data = os.path.abspath(spec.data) if spec.data is not None else None
    return msgspec.structs.replace(spec, steps=spec.steps or BRIEF_STEPS, data=data)


def add(specs: Sequence[LaunchSpec]) -> Queue:
    """Puts launches at the end, and sees to it that somebody works; a queue that was through begins anew.

    Raises:
        RunError: the queue cannot be written, or the worker cannot be started.
    """
    with _editing() as change:
        before = read()
        kept = before.items if before.open else ()
        first = 1 + max((item.number for item in kept), default=0)
        added = (Item(number=number, spec=queueable(spec)) for number, spec in enumerate(specs, first))
        queue = change(Queue(items=(*kept, *added)))
    wake()
    return queue


def cancel(numbers: Sequence[int] | None = None) -> Queue:
    """Takes what waits off the queue, and has what runs stopped by the worker: these items, or all.

    Raises:
        RunError: the queue cannot be written.
    """

    def cancelled(item: Item) -> Item:
        if item.state in OVER or (numbers is not None and item.number not in numbers):
            return item
        if item.state == "waiting":
            return msgspec.structs.replace(item, state="cancelled")
        return msgspec.structs.replace(item, state="stopping")

    with _editing() as change:
        queue = change(Queue(items=tuple(cancelled(item) for item in read().items)))
    if queue.open:
        wake()
    return queue


_woken: list[subprocess.Popen[bytes]] = []
"""Workers that this process has started, so that they do not stay zombies."""


def wake() -> None:
    """Starts the worker where there is none.

    Raises:
        QueueError: it cannot be started.
    """
    _woken[:] = [process for process in _woken if process.poll() is None]
    if working():
        return
    try:
        with open(places().log, "ab") as log:
            _woken.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", "fsdp_tui.telemetry.queue"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
    except OSError as error:
        raise QueueError(f"cannot start the queue's process: {said(error)}") from None


@contextlib.contextmanager
def _editing() -> Iterator[Callable[[Queue], Queue]]:
    """Nobody else changes the file meanwhile; gives what writes it."""
    make_runtime()
    where = places()
    try:
        where.folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(where.folder / "edit", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise QueueError(f"cannot write {where.folder}: {said(error)}") from None

    def change(queue: Queue) -> Queue:
        write_file(where.file, msgspec.json.encode(queue), mode=0o600)
        return queue

    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield change
    finally:
        os.close(handle)


# The worker


def work() -> None:
    """Works through the queue until it is through, or somebody else works already."""
    lock = _hold_lock()
    while lock is not None:
        with _editing() as change:
            queue = read()
            item = next((item for item in queue.items if item.state not in OVER), None)
            if item is None:
                os.close(lock)  # inside the edit: whoever adds next finds nobody working, and starts anew
                return
            left = item.state  # by a worker before, unless it waits
            if left == "waiting":
                item = msgspec.structs.replace(item, state="starting")
                change(_with(queue, item))
        process: subprocess.Popen[bytes] | None = None
        if left == "waiting":
            try:
                item, process = _launch(item)
            except (RunError, OSError) as error:
                item = msgspec.structs.replace(item, state="failed", reason=" ".join(str(error).split()))
        elif not item.run_id:
            item = msgspec.structs.replace(
                item, state="lost", reason="the queue's process was killed as it started this"
            )
        _update(item)
        if item.state not in OVER:
            _update(_follow(item, process))


def _hold_lock() -> int | None:
    """The worker's lock; None when somebody has it. A viewer that tests it holds it for an instant: that is waited for."""
    with _editing():
        lock = os.open(places().folder / "worker", os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + 1
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until:
                os.close(lock)
                return None
            time.sleep(0.02)
        else:
            return lock


def _with(queue: Queue, item: Item) -> Queue:
    return Queue(items=tuple(item if other.number == item.number else other for other in queue.items))


def _update(item: Item) -> None:
    """Writes what has become of an item. A stop that was asked for meanwhile stays asked for."""
    with _editing() as change:
        queue = read()
        asked = any(other.number == item.number and other.state == "stopping" for other in queue.items)
        if asked and item.state == "running":
            item = msgspec.structs.replace(item, state="stopping")
        change(_with(queue, item))


def _launch(item: Item) -> tuple[Item, subprocess.Popen[bytes]]:
    """Starts it; raises RunError when it cannot be."""
    if found := problems(item.spec, this_machine()):
        raise QueueError(found[0].text)
    run_id, process = start(item.spec)
    return msgspec.structs.replace(item, state="running", run_id=run_id), process


def _follow(item: Item, process: subprocess.Popen[bytes] | None) -> Item:
    """Waits for the end of an item's run, which a worker before this one may have started; gives how it ended."""
    paths, told = paths_of(item.run_id), False
    while process.poll() is None if process is not None else is_live(paths):
        if not told and any(other.number == item.number and other.state == "stopping" for other in read().items):
            told = _ask_to_stop(item.run_id)
        time.sleep(LOOK_S)
    entry = _settled(item.run_id)
    if entry is None:
        return msgspec.structs.replace(item, state="lost", reason="its run was deleted")
    state: Outcome = entry.state if entry.state in OVER else "lost"  # type: ignore[assignment]
    return msgspec.structs.replace(item, state=state, reason=entry.problem)


def _ask_to_stop(run_id: str) -> bool:
    """Has a run's launcher stop all ranks at one step; whether it was there to be asked."""
    try:
        launcher = read_run_file(paths_of(run_id).run_file).launcher
    except RunError:
        return False
    if launcher is None or not launcher.alive():
        return False
    os.kill(launcher.pid, signal.SIGTERM)
    return True


def _settled(run_id: str) -> RunEntry | None:
    until = time.monotonic() + SETTLE_S
    while True:
        try:
            entry = entry_of(run_id)
        except RunError:
            return None
        if entry.state in ENDED or time.monotonic() > until:
            return entry
        time.sleep(LOOK_S)


if __name__ == "__main__":
    try:
        work()
    except RunError as error:
        sys.exit(f"fsdp-tui: {error}")
