"""The headless commands: everything the dashboard does, for scripts and CI.

Results go to stdout, progress and messages to stderr, so that `--json` is exactly one document.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fsdp_tui.telemetry import presets, queue, sheets
from fsdp_tui.telemetry.client import RunClient, open_run
from fsdp_tui.telemetry.launch import (
    BRIEF_STEPS,
    OPTIONS,
    LaunchSpec,
    StartError,
    command_text,
    printed_elsewhere,
    problems,
    start,
    sweep,
)
from fsdp_tui.telemetry.machine import this_machine
from fsdp_tui.telemetry.messages import ENDED, STOPPING, Capture
from fsdp_tui.telemetry.notes import NoteError, make_note, split_tags
from fsdp_tui.telemetry.recording import RecordingError
from fsdp_tui.telemetry.report import compare, finite, show, stacks
from fsdp_tui.telemetry.rundir import RunEntry, RunError, list_runs, remove, resolve, resolve_live, write_note
from fsdp_tui.telemetry.strategy import SWEEP, StrategyError, parse_strategies
from fsdp_tui.telemetry.trace import perfetto, plain, summary
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui import tables
from fsdp_tui.tui.cli import spec_from
from fsdp_tui.tui.comparison import FORMATS, as_text

SUCCESS = frozenset({"finished", "stopped"})
REPORT_EVERY_S = 2.0
"""Between progress lines where there is no terminal."""
SETTLE_S = 10.0
STACKS_PATIENCE_S = 3.0
"""A rank answers at once, or not at all."""
BEGIN_PATIENCE_S = 180.0
"""For ranks that are coming up: torch is imported, weights are loaded."""
NAME_MOST = 30
"""Cells of a run's name in the list on a terminal."""
COMMAND_PATIENCE_S = 60.0
"""For pause and resume: a step may take long."""


class CommandError(Exception):
    """One line for stderr, and the exit code: 1 could not do it, 2 usage."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def execute(parsed: argparse.Namespace) -> int:
    """Runs one parsed command line and returns its exit code.

    Raises:
        CommandError: with the line to print.
    """
    try:
        return COMMANDS[parsed.command](parsed)
    except RunError as error:
        raise CommandError(str(error)) from None


# Launching


def _launch(parsed: argparse.Namespace) -> int:
    spec = _spec(parsed)
    if parsed.save_preset is not None:
        return _save_preset(parsed.save_preset, spec)
    spec = checked(spec)
    if not (parsed.headless or parsed.json) and sys.stdin.isatty() and sys.stdout.isatty():
        from fsdp_tui.tui.app import run_app

        run_id, _ = _start(spec, bound=False)
        return run_app(open_on=run_id, own=run_id)
    if spec.steps is None and spec.target == "demo":  # a script ends by itself
        spec = msgspec.structs.replace(spec, steps=BRIEF_STEPS)
    run = train(spec)
    print(json.dumps(show(run)) if parsed.json else tables.summary(run))
    return 0 if run.state in SUCCESS else 1


def _spec(parsed: argparse.Namespace) -> LaunchSpec:
    """The launch that the command line asks for, over the preset that it names.

    Raises:
        CommandError: it has options that this launch has no use for.
    """
    spec = spec_from(parsed, presets.find(parsed.preset).spec if parsed.preset is not None else None)
    if spec.target == "demo":
        return spec
    if parsed.command == "demo":
        raise CommandError(f"preset {parsed.preset} is of {spec.script}: fsdp-tui run --preset {parsed.preset}", 2)
    for option in OPTIONS:
        if option.demo_only and getattr(parsed, option.field, None) is not None:
            raise CommandError(
                f"{option.flag} is the demo's, and this launch is of {spec.script}: its own options follow it", 2
            )
    return spec


def checked(spec: LaunchSpec) -> LaunchSpec:
    """The same launch when nothing is wrong with it.

    Raises:
        CommandError: with the first problem and how many more there are.
    """
    found = problems(spec, this_machine())
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise CommandError(found[0].text + more, exit_code=2)
    return spec


def _start(spec: LaunchSpec, *, bound: bool) -> tuple[str, subprocess.Popen[bytes]]:
    try:
        return start(spec, bound=bound)
    except StartError as error:
        raise CommandError(str(error)) from None


def train(spec: LaunchSpec, prefix: str = "") -> RunView:
    """Launches, shows progress on stderr, and returns the run's last picture when its recording is complete.

    Ctrl-C asks all ranks to stop at one step; a second one sends SIGTERM, a third SIGKILL.
    """
    with _counted_interrupts() as interrupts:
        run_id, launcher = _start(spec, bound=True)
        line = ProgressLine(prefix)
        answered, news = 0, _StopNews()
        with open_run(run_id) as client:
            line.say(f"run {run_id} · {spec.requested or fmt.OWN + ' strategy'} · logs in {client.entry.paths.logs}")
            while launcher.poll() is None:
                if client.poll(200):
                    line.show(client.view())
                for text in news.of(client):
                    line.say(text)
                while answered < len(interrupts):
                    answered += 1
                    _interrupt(answered, client, launcher, line)
            until = time.monotonic() + SETTLE_S
            while client.live and time.monotonic() < until:
                client.poll(100)
            seen = client.view()
            line.show(seen, last=True)
        line.end()
        recorded = _settled(run_id)
        # On a full disk the recording ends before the run does.
        return seen if seen.state in SUCCESS and seen.steps > recorded.steps else recorded


def _settled(run_id: str) -> RunView:
    """The run as it is recorded; a hub whose launcher was killed needs a moment to say so."""
    until = time.monotonic() + SETTLE_S
    while True:
        with open_run(run_id) as recorded:
            run = recorded.view()
        if run.state in ENDED or time.monotonic() > until:
            return run
        time.sleep(0.1)


@contextmanager
def _counted_interrupts() -> Iterator[list[int]]:
    """Ctrl-C adds to the list instead of raising: it may come while the one before it is still being answered."""
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


class _StopNews:
    """What a stop that takes long has come to, each word once."""

    def __init__(self) -> None:
        self._told: set[tuple[str, int]] = set()

    def of(self, client: RunClient) -> Iterator[str]:
        for event in client.state.events:
            if event.kind in STOPPING and (event.kind, event.at_ns) not in self._told:
                self._told.add((event.kind, event.at_ns))
                yield event.text


def _interrupt(times: int, client: RunClient, launcher: subprocess.Popen[bytes], line: ProgressLine) -> None:
    if times == 1:
        line.say("stopping all ranks at the next step they agree on (again: SIGTERM)")
        try:
            client.command("stop")
        except RunError as error:  # no hub answers, or the run has just ended: the launcher knows what to do
            line.say(str(error))
            launcher.send_signal(signal.SIGTERM)
    else:
        # Each further signal is a rung of the launcher's ladder, which records how the run ended.
        line.say("sending SIGTERM (again: SIGKILL)" if times == 2 else "sending SIGKILL")
        launcher.send_signal(signal.SIGTERM)


class ProgressLine:
    """Progress on stderr: one line that rewrites itself on a terminal, else a line now and then."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._terminal = sys.stderr.isatty()
        self._next = 0.0
        self._open = False
        self._steps = -1

    def show(self, run: RunView, *, last: bool = False) -> None:
        now = time.monotonic()
        if (not last and now < self._next) or run.steps == self._steps:
            return
        self._steps = run.steps
        self._next = now + (0.25 if self._terminal else REPORT_EVERY_S)
        text = self._prefix + tables.progress(run)
        if self._terminal:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            sys.stderr.write("\r\x1b[K" + text[: max(1, width - 1)])
            self._open = True
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def say(self, text: str) -> None:
        self.end()
        print(self._prefix + text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._open:
            sys.stderr.write("\n")
            self._open = False


# Sweeping


@dataclass
class _Trial:
    """One strategy of a sweep: its run, or why there is none."""

    strategy: str
    run: RunView | None = None
    refused: str = ""

    @property
    def worked(self) -> bool:
        return self.run is not None and self.run.state in SUCCESS

    def failure(self) -> dict[str, Any]:
        """Why it is not in the comparison, and how far it came."""
        run = self.run
        return {
            "strategy": self.strategy,
            "reason": self.refused or (tables.failure(run) if run else ""),
            "run": run.launched.run_id if run and run.launched else None,
            "state": run.state if run else None,
            "steps": run.steps if run else None,
        }


def _sweep(parsed: argparse.Namespace) -> int:
    spec = _spec(parsed)
    if parsed.strategies is None and spec.target != "demo":
        raise CommandError(
            "which strategies? say --strategies, for example"
            f" fsdp-tui sweep --strategies fsdp2:full_shard,fsdp2:shard_grad_op {spec.script}",
            exit_code=2,
        )
    try:
        strategies = parse_strategies(parsed.strategies if parsed.strategies is not None else ",".join(SWEEP))
    except StrategyError as error:
        raise CommandError(str(error), exit_code=2) from None
    machine = this_machine()
    trials = [(one.strategy, one, problems(one, machine)) for one in sweep(spec, strategies, machine)]
    sound = [one for _, one, found in trials if not found]
    if not sound:
        raise CommandError(trials[0][2][0].text, exit_code=2)
    results: list[_Trial] = []
    try:
        for at, (text, one, found) in enumerate(trials, 1):
            prefix = f"[{at}/{len(trials)}] {text}  "
            if found:
                results.append(_Trial(text, refused=found[0].text))
                print(prefix + found[0].text, file=sys.stderr)
                continue
            try:
                run = train(one, prefix)
            except (CommandError, RunError) as error:
                results.append(_Trial(text, refused=str(error)))
                print(prefix + str(error), file=sys.stderr)
                continue
            results.append(_Trial(text, run))
            if run.ended is not None and run.state == "stopped" and run.steps < (one.steps or 0):
                break  # Ctrl-C means the sweep, not this strategy alone
    except KeyboardInterrupt:
        print("sweep stopped", file=sys.stderr)
    worked = [trial.run for trial in results if trial.worked and trial.run is not None]
    failed = [trial.failure() for trial in results if not trial.worked]
    if parsed.json:
        print(
            json.dumps({**compare(worked), "failed": failed} if worked else {"runs": [], "rows": [], "failed": failed})
        )
    else:
        if worked:
            print(as_text(worked))
        if failed:
            print(tables.failures(failed))
    return 0 if len(worked) == len(trials) else 1


# Presets


def _save_preset(name: str, spec: LaunchSpec) -> int:
    if spec.target != "demo" and not spec.script:
        raise CommandError("which script? expected fsdp-tui run --save-preset NAME [options] SCRIPT [arguments]", 2)
    path = presets.save(name, spec)
    print(f"saved {path}; fsdp-tui run --preset {name} launches it", file=sys.stderr)
    return 0


def _presets(parsed: argparse.Namespace) -> int:
    if parsed.rm is not None:
        return _remove_preset(parsed.rm, sure=parsed.yes)
    found, damaged = presets.listed()
    for problem in damaged:
        print(f"fsdp-tui: {problem}", file=sys.stderr)
    if parsed.json:
        print(
            json.dumps(
                [
                    {
                        "name": preset.name,
                        "path": str(preset.path),
                        "command": command_text(preset.spec),
                        "launch": presets.as_table(preset.spec),
                    }
                    for preset in found
                ]
            )
        )
    elif found:
        rows = [[preset.name, command_text(preset.spec), str(preset.path)] for preset in found]
        print(tables.table(["name", "launches", "kept in"], rows, left=3))
    elif not damaged:
        print("no presets yet: fsdp-tui run --save-preset NAME [options] SCRIPT saves one", file=sys.stderr)
    return 1 if damaged else 0


def _remove_preset(name: str, *, sure: bool) -> int:
    preset = presets.find(name)
    if not sure:
        if not sys.stdin.isatty():
            raise CommandError(f"would delete {preset.path}: say --yes")
        print(f"delete {preset.path}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return 1
    presets.remove(preset)
    print(f"deleted {preset.path}", file=sys.stderr)
    return 0


# Reading


@contextmanager
def _opened(ref: str) -> Iterator[RunClient]:
    with open_run(resolve(ref)) as client:
        yield client


@contextmanager
def _opened_to(word: str, ref: str) -> Iterator[RunClient]:
    """A run that goes on, to do with it what the word says."""
    with open_run(resolve_live(ref)) as client:
        if not client.live:
            raise CommandError(f"run {client.entry.id} is not live ({client.view().state}): nothing to {word}")
        yield client


def _runs(parsed: argparse.Namespace) -> int:
    entries = list_runs()
    if parsed.json:
        print(json.dumps([_entry(entry) for entry in entries]))
    elif not entries:
        print("no runs yet: fsdp-tui demo starts one", file=sys.stderr)
    else:
        now = time.time_ns()
        # One long name would push every row past the terminal; a file or a pipe gets all of it.
        name_most = NAME_MOST if sys.stdout.isatty() else sys.maxsize
        rows = [
            [
                entry.id,
                fmt.shortened(entry.name, name_most),
                entry.state,
                entry.effective or entry.strategy or (fmt.UNKNOWN if entry.state == "damaged" else fmt.OWN),
                str(entry.world_size or fmt.UNKNOWN),
                fmt.count(entry.steps),
                fmt.number(entry.loss),
                f"{fmt.duration(now - entry.created_ns)} ago",
                "  ".join(said for said in (entry.note.line, entry.problem) if said),
            ]
            for entry in entries
        ]
        print(tables.table(["id", "name", "state", "strategy", "ranks", "steps", "loss", "started", ""], rows, left=4))
    return 0


def _entry(entry: RunEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "name": entry.name,
        "state": entry.state,
        "live": entry.live,
        "created_ns": entry.created_ns,
        "ended_ns": entry.ended_ns,
        "strategy": {"requested": entry.strategy or None, "effective": entry.effective or None},
        "world_size": entry.world_size or None,
        "steps": entry.steps,
        "planned_steps": entry.planned_steps,
        "loss": finite(entry.loss),
        "problem": entry.problem,
        "note": entry.note.text,
        "tags": list(entry.note.tags),
    }


def _note(parsed: argparse.Namespace) -> int:
    """Changes what is given and leaves the rest; without anything given it only tells."""
    entry = resolve(parsed.run)
    added, gone = ([tag for word in words or () for tag in split_tags(word)] for words in (parsed.tag, parsed.untag))
    note = entry.note
    if parsed.text or added or gone:
        text = " ".join(parsed.text) if parsed.text else note.text
        away = {tag.removeprefix("#") for tag in gone}
        try:
            note = make_note(text, [tag for tag in (*note.tags, *added) if tag.removeprefix("#") not in away])
        except NoteError as error:
            raise CommandError(str(error), exit_code=2) from None
        write_note(entry, note)
    if parsed.json:
        print(json.dumps({"id": entry.id, "note": note.text, "tags": list(note.tags)}))
    else:
        print(f"{entry.id}  {note.line or 'no note'}")
    return 0


def _queue(parsed: argparse.Namespace) -> int:
    """Lists the queue, or cancels all of it."""
    known = queue.look()
    if parsed.cancel and known.open:
        if not parsed.yes:
            left = known.count("waiting")
            if not sys.stdin.isatty():
                raise CommandError(f"would stop the queue, with {left} launches that wait: say --yes")
            print(f"stop what runs, and take {left} off the queue? [y/N] ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                return 1
        known = queue.cancel()
    if parsed.json:
        document = [
            {
                "name": item.name,
                "strategy": item.spec.requested or None,
                "state": item.state,
                "run": item.run_id or None,
                "reason": item.reason,
                "command": command_text(item.spec),
            }
            for item in known.items
        ]
        print(json.dumps(document))
    elif not known.items:
        print("nothing is queued: a and w on the Launch screen queue launches", file=sys.stderr)
    else:
        rows = [
            [str(at), item.name, item.state, item.spec.requested or fmt.OWN, item.run_id or fmt.UNKNOWN, item.reason]
            for at, item in enumerate(known.items, 1)
        ]
        print(tables.table(["", "name", "state", "strategy", "run", ""], rows, left=6))
    return 0


def _show(parsed: argparse.Namespace) -> int:
    with _opened(parsed.run) as client:
        run = client.view()
    print(json.dumps(show(run)) if parsed.json else tables.summary(run))
    return 0


def _watch(parsed: argparse.Namespace) -> int:
    with _opened(parsed.run) as client:
        printed = 0 if parsed.from_start or not client.live else client.view().steps
        while True:
            run = client.view()
            printed = _print_steps(run, printed, as_json=parsed.json)
            if run.state in ENDED or not client.live:
                break
            client.poll(500)
        run = client.view()
        _print_steps(run, printed, as_json=parsed.json)
        if not parsed.json:
            print(tables.ending(run))
    return 0


def _print_steps(run: RunView, printed: int, *, as_json: bool) -> int:
    """Prints the steps after `printed` that all ranks have finished; returns the last one printed."""
    series = run.series
    first, last = np.searchsorted(series.steps, [printed, run.steps], side="right").tolist()
    for at in range(first, last):
        step, loss = int(series.steps[at]), float(series.loss[at])
        step_ns, rate = float(series.step_ns[at]), float(run.throughput.series[at])
        if as_json:
            record = {
                "step": step,
                "loss": finite(loss),
                "step_ns": int(step_ns),
                "tokens_per_s": finite(float(series.tokens_per_s[at])),
                "samples_per_s": finite(float(series.samples_per_s[at])),
            }
            print(json.dumps(record), flush=True)
        else:
            print(
                f"step {step:,}  loss {fmt.number(loss if series.loss_known[at] else None)}  step {fmt.duration(step_ns)}"
                f"  {fmt.rate(rate)} {run.throughput.unit}",
                flush=True,
            )
    return max(printed, run.steps)


def _logs(parsed: argparse.Namespace) -> int:
    entry = resolve(parsed.run)
    rank = parsed.rank if parsed.rank is not None else 0
    path = entry.paths.launcher_log if rank == -1 else entry.paths.log(rank)
    if not path.exists() and (elsewhere := printed_elsewhere(entry.paths)):
        raise CommandError(f"run {entry.id} has no logs: {elsewhere}")
    if not path.exists() and not (parsed.follow and entry.live):
        kept = sorted(entry.paths.logs.glob("*.log")) if entry.paths.logs.is_dir() else []
        found = ", ".join(log.stem for log in kept) or "none"
        raise CommandError(f"run {entry.id} has no log of rank {rank} (logs kept: {found})")
    from fsdp_tui.telemetry.client import follow_log

    if parsed.json:
        body = b"".join(follow_log(entry, rank, follow=parsed.follow))
        print(json.dumps({"id": entry.id, "rank": rank, "text": body.decode(errors="replace")}))
        return 0
    for chunk in follow_log(entry, rank, follow=parsed.follow):
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    return 0


def _stop(parsed: argparse.Namespace) -> int:
    with _opened_to("stop", parsed.run) as client:
        run_id = client.entry.id
        print(f"asked all ranks of run {run_id} to stop at their next step boundary", file=sys.stderr, flush=True)
        client.command("stop")
        news = _StopNews()
        while True:
            for text in news.of(client):
                print(text, file=sys.stderr, flush=True)
            if not client.live:
                break
            client.poll(200)
    run = _settled(client.entry.id)
    if parsed.json:
        print(json.dumps(show(run)))
    else:
        print(f"{client.entry.id} {tables.ending(run)}")
    return 0 if run.state in ENDED else 1


def _hold(parsed: argparse.Namespace) -> int:
    wanted = "paused" if parsed.command == "pause" else "running"
    with _opened_to(parsed.command, parsed.run) as client:
        client.command(parsed.command)
        until = time.monotonic() + COMMAND_PATIENCE_S
        while client.view().state != wanted:
            if not client.live or client.view().state in ENDED:
                raise CommandError(
                    f"run {client.entry.id} ended before it could {parsed.command}: {tables.ending(client.view())}"
                )
            if time.monotonic() > until:
                raise CommandError(
                    f"run {client.entry.id} is not {wanted} after {COMMAND_PATIENCE_S:.0f} s: no step boundary was reached"
                )
            client.poll(100)
        run = client.view()
    print(json.dumps(show(run)) if parsed.json else f"{client.entry.id} {run.state} at step {run.steps:,}")
    return 0


def _ranks(text: str) -> tuple[int, ...]:
    """The ranks of `--ranks`; empty: all."""
    if text == "all":
        return ()
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise CommandError(f"--ranks {text}: expected numbers separated by commas, or all", exit_code=2)
    return tuple(sorted({int(word) for word in words}))


def _capture(parsed: argparse.Namespace) -> int:
    ranks = _ranks(parsed.ranks)
    with _opened_to("capture", parsed.run) as client:
        run_id = client.entry.id
        _until_they_train(client, ranks)
        asked = client.command("capture", ranks)
        there = (rank for rank, known in client.state.ranks.items() if known.hello and not known.goodbye)
        wanted = set(ranks or there)
        print(f"asked ranks {', '.join(map(str, sorted(wanted)))} of run {run_id} for a step", file=sys.stderr)
        if client.state.state == "paused":
            print("the run is paused: it is captured when it goes on", file=sys.stderr)
        found = _captures_arriving(client, asked.id, wanted)
    taken = [capture for capture in found if not capture.error]
    if parsed.output and taken:
        _write(parsed.output, trace_document(parsed.format, run_id, taken))
    print(json.dumps([summary(capture) for capture in found]) if parsed.json else tables.captures(found))
    return 0 if taken and len(taken) == len(found) else 1


def _until_they_train(client: RunClient, ranks: Sequence[int]) -> None:
    """Returns when the ranks that are to be asked (empty: all) listen, which is when their training begins; at once when
    they never will.

    Raises:
        CommandError: the run has ended before, or none has begun in time.
    """
    until, told = time.monotonic() + BEGIN_PATIENCE_S, False
    while True:
        state = client.state
        listening = {rank for rank, known in state.ranks.items() if known.hello}
        wanted = set(ranks or range(state.world_size or 1))
        off = state.launched is not None and state.launched.options.get("telemetry") == "off"
        begun = any(known.last for known in state.ranks.values())  # who is not there by then is on another host
        if off or begun or wanted <= listening or not wanted <= set(range(state.world_size or 1)):
            return
        if not client.live or state.state in ENDED:
            raise CommandError(f"run {client.entry.id} ended before it began to train: {tables.ending(client.view())}")
        missing = ", ".join(map(str, sorted(wanted - listening)))
        if time.monotonic() > until:
            raise CommandError(
                f"run {client.entry.id}: ranks {missing} have not begun to train in {BEGIN_PATIENCE_S:.0f} s: nothing to capture yet"
            )
        if not told:
            told = True
            print(
                f"ranks {missing} have not begun to train yet: waiting for that, {BEGIN_PATIENCE_S:.0f} s at most",
                file=sys.stderr,
                flush=True,
            )
        client.poll(100)


def _captures_arriving(client: RunClient, asked_id: str, wanted: set[int]) -> list[Capture]:
    """Waits for the captures of all ranks asked.

    Raises:
        CommandError: the run has ended before, or reached no step boundary in time.
    """
    found: dict[int, Capture] = {}
    until = time.monotonic() + COMMAND_PATIENCE_S
    while True:
        for rank, known in client.state.ranks.items():
            for capture in known.captures:
                if capture.id == asked_id and rank not in found:
                    found[rank] = capture
                    print(tables.capture_line(capture), file=sys.stderr, flush=True)
        if wanted <= found.keys():
            return [found[rank] for rank in sorted(found)]
        missing = ", ".join(str(rank) for rank in sorted(wanted - found.keys()))
        if not client.live or client.state.state in ENDED:
            raise CommandError(f"run {client.entry.id} ended before ranks {missing} were captured")
        if time.monotonic() > until:
            raise CommandError(
                f"run {client.entry.id}: nothing of ranks {missing} after {COMMAND_PATIENCE_S:.0f} s: no step boundary was reached"
            )
        client.poll(100)


def _stacks(parsed: argparse.Namespace) -> int:
    """Live: asks the ranks, and waits for all that can answer. Recorded: what was asked then."""
    with _opened(parsed.run) as client:
        known = [rank.rank for rank in client.view().ranks]
        if parsed.rank is not None and parsed.rank not in known:
            raise CommandError(
                f"run {client.entry.id} has no rank {parsed.rank}: it has {', '.join(map(str, known)) or 'none'}"
            )
        asked, missing = _ask_for_stacks(client, parsed.rank) if client.live else ("", [])
        ranks = [rank for rank in client.view().ranks if parsed.rank in (None, rank.rank)]
        told = [rank for rank in ranks if rank.stack is not None and asked in ("", rank.stack.id)]
        if not told and not missing:
            raise CommandError(
                f"run {client.entry.id} is over ({client.view().state}), and nobody asked for stacks while it went on"
            )
    for rank in missing:
        print(
            f"rank {rank} does not answer: its process is stopped, or something holds Python's interpreter lock",
            file=sys.stderr,
        )
    print(json.dumps({"stacks": stacks(told), "missing": missing}) if parsed.json else tables.stacks(told))
    return 1 if missing else 0


def _ask_for_stacks(client: RunClient, rank: int | None) -> tuple[str, list[int]]:
    """Asks one rank or all, and waits; gives the id of the question, and the ranks that did not answer."""
    asked = client.command("stacks", () if rank is None else (rank,))
    until = time.monotonic() + STACKS_PATIENCE_S
    while True:
        wanted = {
            one: known
            for one, known in client.state.ranks.items()
            if known.hello and not known.goodbye and rank in (None, one)
        }
        missing = [one for one, known in wanted.items() if known.stack is None or known.stack.id != asked.id]
        if not missing or not client.live or time.monotonic() > until:
            return asked.id, missing
        client.poll(100)


def _export(parsed: argparse.Namespace) -> int:
    ranks = _ranks(parsed.ranks)
    if parsed.format == "csv":
        return _export_steps(resolve(parsed.run), ranks, parsed.output)
    with _opened(parsed.run) as client:
        run_id = client.entry.id
        newest = [
            known.captures[-1]
            for rank, known in client.state.ranks.items()
            if known.captures and not known.captures[-1].error and (not ranks or rank in ranks)
        ]
    if not newest:
        raise CommandError(f"run {run_id} has no capture: fsdp-tui capture takes one while it goes on")
    document = trace_document(parsed.format, run_id, newest)
    if parsed.output:
        _write(parsed.output, document)
    else:
        print(json.dumps(document))
    return 0


def _export_steps(entry: RunEntry, ranks: Sequence[int], output: str | None) -> int:
    """Steps as they are read: a long run is more than memory holds."""
    try:
        sheet = sheets.steps(entry.paths.recording, ranks)
        rows = iter(sheet.rows)
        first = next(rows, None)
        if first is None:
            of = f" of ranks {', '.join(map(str, ranks))}" if ranks else ""
            raise CommandError(f"run {entry.id} has no step{of}")
        sheet = sheet._replace(rows=chain([first], rows))
        if output is None:
            sheets.write(sheet, sys.stdout)
            return 0
        try:
            with open(output, "w", encoding="utf-8", newline="") as file:
                sheets.write(sheet, file)
        except OSError as error:
            raise CommandError(f"cannot write {output}: {error.strerror}") from None
    except RecordingError as error:
        raise CommandError(f"run {entry.id}: {error}") from None
    print(f"wrote {output}", file=sys.stderr)
    return 0


def trace_document(form: str, run_id: str, captures: Sequence[Capture]) -> dict[str, Any]:
    """The captures in one of the formats of `export`."""
    return perfetto(run_id, captures) if form == "perfetto" else plain(run_id, captures)


def _write(path: str, document: dict[str, Any]) -> None:
    _write_text(path, json.dumps(document))


def _write_text(path: str, body: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(body)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    print(f"wrote {path}", file=sys.stderr)


def _compare(parsed: argparse.Namespace) -> int:
    if len(parsed.runs) < 2:
        raise CommandError("compare needs two runs or more", exit_code=2)
    runs = []
    for ref in parsed.runs:
        with _opened(ref) as client:
            runs.append(client.view())
    form = "json" if parsed.json else parsed.format
    body = FORMATS[form](runs) if form else as_text(runs) + "\n"
    if parsed.output:
        _write_text(parsed.output, body)
    else:
        sys.stdout.write(body)
    return 0


def _rm(parsed: argparse.Namespace) -> int:
    entries = list({entry.id: entry for entry in map(resolve, parsed.runs)}.values())
    if not parsed.yes:
        which = ", ".join(f"{entry.name} ({entry.id})" for entry in entries)
        if not sys.stdin.isatty():
            raise CommandError(f"would delete {which}: say --yes")
        print(f"delete {which}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return 1
    for entry in entries:
        remove(entry)
        print(f"deleted {entry.id}", file=sys.stderr)
    if parsed.json:
        print(json.dumps({"deleted": [entry.id for entry in entries]}))
    return 0


def _runs_of(number: int) -> str:
    return f"{number} run{'s' * (number != 1)}"


def _prune(parsed: argparse.Namespace) -> int:
    if parsed.keep < 0:
        raise CommandError(f"--keep {parsed.keep}: expected 0 or more", exit_code=2)
    ended = [entry for entry in list_runs() if not entry.live]
    old = ended[parsed.keep :]
    kept = "none is kept" if not parsed.keep else f"the newest {parsed.keep} are kept"
    if not old:
        print(f"nothing to delete of {_runs_of(len(ended))} that ended; {kept} (--keep)", file=sys.stderr)
        if parsed.json:
            print(json.dumps({"deleted": []}))
        return 0
    if not parsed.yes:
        if not sys.stdin.isatty():
            raise CommandError(f"would delete {_runs_of(len(old))}; {kept} (--keep): say --yes")
        which = f"{_runs_of(len(old))}, {old[-1].id} to {old[0].id}"
        print(f"{kept} (--keep): delete {which}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return 1
    for entry in old:
        remove(entry)
    print(f"deleted {_runs_of(len(old))}; {kept} (--keep)", file=sys.stderr)
    if parsed.json:
        print(json.dumps({"deleted": [entry.id for entry in old]}))
    return 0


def _config(parsed: argparse.Namespace) -> int:
    from fsdp_tui.tui import settings

    path = settings.config_path()
    found = settings.load(path)
    for problem in found.problems:
        print(f"fsdp-tui: {problem}", file=sys.stderr)
    if _is_stdout(path):
        print(
            f"fsdp-tui: the shell has emptied {path} before it could be read: these are the defaults", file=sys.stderr
        )
    sys.stdout.write(settings.written(found, path))
    return 1 if found.problems else 0


def _is_stdout(path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(sys.stdout.fileno()), path.stat())
    except (OSError, ValueError):
        return False


def _attach(parsed: argparse.Namespace) -> int:
    entry = resolve(parsed.run)
    if parsed.once:
        from fsdp_tui.tui.once import print_once

        return print_once(entry)
    return _dashboard(entry.id)


def _dashboard(open_on: str | None = None) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError(
            "the dashboard needs a terminal; without one: fsdp-tui runs, show, watch, or demo --headless"
        )
    from fsdp_tui.tui.app import run_app

    return run_app(open_on=open_on)


COMMANDS: dict[str | None, Callable[[argparse.Namespace], int]] = {
    None: lambda _: _dashboard(),
    "demo": _launch,
    "run": _launch,
    "sweep": _sweep,
    "attach": _attach,
    "runs": _runs,
    "show": _show,
    "watch": _watch,
    "logs": _logs,
    "stop": _stop,
    "pause": _hold,
    "resume": _hold,
    "capture": _capture,
    "stacks": _stacks,
    "export": _export,
    "config": _config,
    "compare": _compare,
    "note": _note,
    "queue": _queue,
    "rm": _rm,
    "prune": _prune,
    "presets": _presets,
}

__all__: Sequence[str] = ("CommandError", "execute", "train")
