"""Launching a training and following it: `demo` and `run`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from fsdp_tui.telemetry import presets
from fsdp_tui.telemetry.client import RunClient, open_run
from fsdp_tui.telemetry.launch import BRIEF_STEPS, OPTIONS, LaunchSpec, StartError, problems, start
from fsdp_tui.telemetry.machine import this_machine
from fsdp_tui.telemetry.messages import ENDED, STOPPING
from fsdp_tui.telemetry.report import show
from fsdp_tui.telemetry.rundir import RunError
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui import tables
from fsdp_tui.tui.cli import spec_from
from fsdp_tui.tui.commands.common import CommandError, dashboard, say
from fsdp_tui.tui.commands.keeping import save_preset

SUCCESS = frozenset({"finished", "stopped"})
REPORT_EVERY_S = 2.0
"""Between progress lines where there is no terminal."""
SETTLE_S = 10.0


def launch(parsed: argparse.Namespace) -> int:
    spec = spec_of(parsed)
    if parsed.save_preset is not None:
        return save_preset(parsed.save_preset, spec)
    spec = checked(spec)
    if not (parsed.headless or parsed.json) and sys.stdin.isatty() and sys.stdout.isatty():
        run_id, _ = _start(spec, bound=False)
        return dashboard(run_id, own=run_id)
    if spec.steps is None and spec.target == "demo":  # a script ends by itself
        spec = msgspec.structs.replace(spec, steps=BRIEF_STEPS)
    run = train(spec)
    say(json.dumps(show(run)) if parsed.json else tables.summary(run))
    return 0 if run.state in SUCCESS else 1


def spec_of(parsed: argparse.Namespace) -> LaunchSpec:
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
        answered, news = 0, StopNews()
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
        recorded = settled(run_id)
        # On a full disk the recording ends before the run does.
        return seen if seen.state in SUCCESS and seen.steps > recorded.steps else recorded


def settled(run_id: str) -> RunView:
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


class StopNews:
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
        text = fmt.plain(self._prefix + tables.progress(run))
        if self._terminal:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            sys.stderr.write("\r\x1b[K" + text[: max(1, width - 1)])
            self._open = True
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def say(self, text: str) -> None:
        self.end()
        say(self._prefix + text, aside=True, flush=True)

    def end(self) -> None:
        if self._open:
            sys.stderr.write("\n")
            self._open = False
