"""Where the dashboard's pictures come from: one seam, and one thread per open run.

The screens never wait for a socket or a disk. A `Feed` polls its source in a thread of its own and keeps the newest
picture; the screen takes it once per tick, so what arrives in between costs the drawing nothing.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fsdp_tui.telemetry import collector
from fsdp_tui.telemetry.courtesy import give_way
from fsdp_tui.telemetry.launch import LaunchSpec
from fsdp_tui.telemetry.machine import Machine, this_machine
from fsdp_tui.telemetry.notes import Note
from fsdp_tui.telemetry.past import Past
from fsdp_tui.telemetry.presets import Listing, Preset
from fsdp_tui.telemetry.queue import Queue
from fsdp_tui.telemetry.rundir import RunEntry, RunError
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui.answering import PATIENCE_S, Answering

POLL_MS = 100


class RunSource(Protocol):
    """One run, live or recorded; `telemetry.client.RunClient` is one, a test's fixture another."""

    entry: RunEntry
    live: bool

    def poll(self, max_ms: int) -> bool:
        """Takes in what has come; returns whether the picture has changed."""
        ...

    def view(self) -> RunView: ...

    def command(self, kind: str, ranks: Sequence[int] = ()) -> object:
        """Asks all ranks to "stop", "pause", "resume" or "capture", or these for their "stacks".

        Raises:
            RunError: it was not taken.
        """
        ...

    def close(self) -> None: ...


class Process(Protocol):
    """A launcher that this program started."""

    def poll(self) -> int | None: ...


@dataclass(frozen=True, kw_only=True)
class Services:
    """Everything the dashboard asks of the outside; tests bring their own."""

    list_runs: Callable[[], list[RunEntry]]
    find: Callable[[str], RunEntry]
    """Raises RunError when there is no such run."""
    open_run: Callable[[RunEntry], RunSource]
    remove: Callable[[RunEntry], None]
    save_note: Callable[[RunEntry, Note], None]
    """Raises RunError."""
    start: Callable[[LaunchSpec], tuple[str, Process]]
    """Raises RunError with one line when it did not start."""
    launch_of: Callable[[RunEntry], LaunchSpec]
    """What a run was launched as; raises RunError when that is not on record."""
    presets: Callable[[], Listing]
    save_preset: Callable[[str, LaunchSpec, bool], Path]
    """Name, launch, whether it replaces one of this name (PresetTaken when not). Raises RunError."""
    remove_preset: Callable[[Preset], None]
    """Raises RunError."""
    queue: Callable[[], Queue]
    """Raises RunError."""
    enqueue: Callable[[Sequence[LaunchSpec]], Queue]
    """Puts launches at the end of the queue; raises RunError."""
    cancel: Callable[[Sequence[int] | None], Queue]
    """Takes these items off the queue, or all; raises RunError."""
    machine: Callable[[], Machine]
    now_ns: Callable[[], int]
    """Wall clock."""
    stopwatch_s: Callable[[], float] = time.perf_counter
    """How long frames take."""
    open_past: Callable[[RunEntry], Past] = lambda entry: Past(entry.paths.recording)
    """A run's recording, to go back in; raises RecordingError when there is none."""


def real_services() -> Services:
    """This machine's runs, launcher and clock."""
    from fsdp_tui.telemetry import client, launch, presets, queue, rundir

    def start(spec: LaunchSpec) -> tuple[str, Process]:
        run_id, process = launch.start(spec)
        return run_id, process

    return Services(
        list_runs=rundir.list_runs,
        find=rundir.resolve,
        open_run=client.open_run,
        remove=rundir.remove,
        save_note=rundir.write_note,
        start=start,
        launch_of=lambda entry: launch.read_launch(entry.paths).spec,
        presets=presets.listed,
        save_preset=lambda name, spec, replace: presets.save(name, spec, replace=replace),
        remove_preset=presets.remove,
        queue=queue.look,
        enqueue=queue.add,
        cancel=queue.cancel,
        machine=this_machine,
        now_ns=time.time_ns,
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a feed knew of its run at one moment."""

    entry: RunEntry
    view: RunView
    live: bool


class Feed:
    """Follows one run in a thread. `latest` may be read at any time; None until something is known.

    Attributes:
        error: why the run cannot be read, one line; empty while it can.
    """

    def __init__(self, services: Services, entry: RunEntry, every_s: float, answering: Answering) -> None:
        self.entry = entry
        self.every_s = every_s
        """At most this often a picture is made."""
        self.prepare: Callable[[RunView], object] | None = None
        """Called with each picture in the feed's thread, before it is the latest: what a screen would else work
        out while keys wait. It must not fail."""
        self.latest: Snapshot | None = None
        self.error = ""
        self._prepare_again = False
        self._services = services
        self._answering = answering
        self._patience_s = PATIENCE_S
        self._closed = threading.Event()
        self._commands: queue.SimpleQueue[tuple[str, Sequence[int], Callable[[str], None]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._follow, name=f"feed {entry.id}", daemon=True)
        self._thread.start()

    @property
    def live(self) -> bool:
        """Whether the run is still going on, as far as is known."""
        return self.latest.live if self.latest else self.entry.live and not self.error

    def command(self, kind: str, answered: Callable[[str], None], ranks: Sequence[int] = ()) -> None:
        """Passes a command to the run. `answered` is called from the feed's thread, with "" or why it was refused."""
        self._commands.put((kind, ranks, answered))

    def prepare_again(self) -> None:
        """What `prepare` works out has changed: it is called for the latest picture too, within the next poll."""
        self._prepare_again = True

    def close(self) -> None:
        """Lets go of the run. The thread ends by itself within its next poll."""
        self._closed.set()

    def join(self, timeout_s: float) -> None:
        """Waits for the thread of a closed feed."""
        self._thread.join(timeout_s)

    def _follow(self) -> None:
        give_way(self._give_way)
        try:
            source = self._services.open_run(self.entry)
        except RunError as error:
            self.error = str(error)
            return
        except Exception as error:  # noqa: BLE001  # a thread that dies in silence would leave an empty screen
            self.error = f"cannot open run {self.entry.id}: {type(error).__name__}: {error}"
            return
        try:
            self._pump(source)
        except Exception as error:  # noqa: BLE001
            self.error = f"cannot read run {self.entry.id}: {type(error).__name__}: {error}"
        finally:
            source.close()

    def _pump(self, source: RunSource) -> None:
        changed, taken_s = True, 0.0
        while not self._closed.is_set():
            self._patience_s = PATIENCE_S
            due = not source.live or time.monotonic() - taken_s >= self.every_s
            if due and (changed or self.live != source.live):
                view, prepare = source.view(), self.prepare
                if prepare is not None:
                    prepare(view)
                self.latest = Snapshot(self.entry, view, source.live)
                changed, taken_s = False, time.monotonic()
                self._give_way()
                collector.sweep()
            if not source.live:
                return
            self._pass_commands(source)
            changed = source.poll(POLL_MS) or changed
            if self._prepare_again and self.latest is not None and self.prepare is not None:
                self._prepare_again = False
                self.prepare(self.latest.view)

    def _give_way(self) -> None:
        self._patience_s -= self._answering.wait(self._patience_s)

    def _pass_commands(self, source: RunSource) -> None:
        while True:
            try:
                kind, ranks, answered = self._commands.get_nowait()
            except queue.Empty:
                return
            try:
                source.command(kind, ranks)
            except RunError as error:
                answered(str(error))
            else:
                answered("")
