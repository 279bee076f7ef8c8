"""The headless commands: everything the dashboard does, for scripts and CI.

Results go to stdout, progress and messages to stderr, so that `--json` is exactly one document.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fsdp_tui.telemetry.rundir import RunError, resolve
from fsdp_tui.tui.commands.asking import capture, hold, stacks_of, stop
from fsdp_tui.tui.commands.common import CommandError, dashboard, say
from fsdp_tui.tui.commands.keeping import list_all, list_presets, note_run, prune, remove_runs, show_queue
from fsdp_tui.tui.commands.launching import launch
from fsdp_tui.tui.commands.reading import compare_runs, export, logs, show_run, watch
from fsdp_tui.tui.commands.sweeping import sweep_strategies


def execute(parsed: argparse.Namespace) -> int:
    """Runs one parsed command line and returns its exit code.

    Raises:
        CommandError: with the line to print.
    """
    try:
        return COMMANDS[parsed.command](parsed)
    except RunError as error:
        raise CommandError(str(error)) from None


def _config(parsed: argparse.Namespace) -> int:
    from fsdp_tui.tui import settings

    path = settings.config_path()
    found = settings.load(path)
    for problem in found.problems:
        say(f"fsdp-tui: {problem}", aside=True)
    if _is_stdout(path):
        say(f"fsdp-tui: the shell has emptied {path} before it could be read: these are the defaults", aside=True)
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
    return dashboard(open_on)


COMMANDS: dict[str | None, Callable[[argparse.Namespace], int]] = {
    None: lambda _: _dashboard(),
    "demo": launch,
    "run": launch,
    "sweep": sweep_strategies,
    "attach": _attach,
    "runs": list_all,
    "show": show_run,
    "watch": watch,
    "logs": logs,
    "stop": stop,
    "pause": hold,
    "resume": hold,
    "capture": capture,
    "stacks": stacks_of,
    "export": export,
    "config": _config,
    "compare": compare_runs,
    "note": note_run,
    "queue": show_queue,
    "rm": remove_runs,
    "prune": prune,
    "presets": list_presets,
}

__all__: Sequence[str] = ("CommandError", "execute")
