"""What is kept: `runs`, `note`, `queue`, `presets`, `rm` and `prune`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from fsdp_tui.telemetry import presets, queue
from fsdp_tui.telemetry.launch import LaunchSpec, command_text
from fsdp_tui.telemetry.notes import NoteError, make_note, split_tags
from fsdp_tui.telemetry.report import finite
from fsdp_tui.telemetry.rundir import RunEntry, list_runs, remove, resolve, write_note
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui import tables
from fsdp_tui.tui.commands.common import CommandError, say, sure

NAME_MOST = 30
"""Cells of a run's name in the list on a terminal."""


def list_all(parsed: argparse.Namespace) -> int:
    entries = list_runs()
    if parsed.json:
        say(json.dumps([_entry(entry) for entry in entries]))
    elif not entries:
        say("no runs yet: fsdp-tui demo starts one", aside=True)
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
        say(tables.table(["id", "name", "state", "strategy", "ranks", "steps", "loss", "started", ""], rows, left=4))
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


def note_run(parsed: argparse.Namespace) -> int:
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
        say(json.dumps({"id": entry.id, "note": note.text, "tags": list(note.tags)}))
    else:
        say(f"{entry.id}  {note.line or 'no note'}")
    return 0


def show_queue(parsed: argparse.Namespace) -> int:
    """Lists the queue, or cancels all of it."""
    known = queue.look()
    if parsed.cancel and known.open:
        left = known.count("waiting")
        if not sure(
            f"stop the queue, with {left} launches that wait",
            f"stop what runs, and take {left} off the queue",
            yes=parsed.yes,
        ):
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
        say(json.dumps(document))
    elif not known.items:
        say("nothing is queued: a and w on the Launch screen queue launches", aside=True)
    else:
        rows = [
            [str(at), item.name, item.state, item.spec.requested or fmt.OWN, item.run_id or fmt.UNKNOWN, item.reason]
            for at, item in enumerate(known.items, 1)
        ]
        say(tables.table(["", "name", "state", "strategy", "run", ""], rows, left=6))
    return 0


def save_preset(name: str, spec: LaunchSpec) -> int:
    if spec.target != "demo" and not spec.script:
        raise CommandError("which script? expected fsdp-tui run --save-preset NAME [options] SCRIPT [arguments]", 2)
    path = presets.save(name, spec)
    say(f"saved {path}; fsdp-tui run --preset {name} launches it", aside=True)
    return 0


def list_presets(parsed: argparse.Namespace) -> int:
    if parsed.rm is not None:
        return _remove_preset(parsed.rm, yes=parsed.yes)
    found, damaged = presets.listed()
    for problem in damaged:
        say(f"fsdp-tui: {problem}", aside=True)
    if parsed.json:
        say(
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
        say(tables.table(["name", "launches", "kept in"], rows, left=3))
    elif not damaged:
        say("no presets yet: fsdp-tui run --save-preset NAME [options] SCRIPT saves one", aside=True)
    return 1 if damaged else 0


def _remove_preset(name: str, *, yes: bool) -> int:
    preset = presets.find(name)
    delete = f"delete {preset.path}"
    if not sure(delete, delete, yes=yes):
        return 1
    presets.remove(preset)
    say(f"deleted {preset.path}", aside=True)
    return 0


def remove_runs(parsed: argparse.Namespace) -> int:
    entries = list({entry.id: entry for entry in map(resolve, parsed.runs)}.values())
    delete = f"delete {', '.join(f'{entry.name} ({entry.id})' for entry in entries)}"
    if not sure(delete, delete, yes=parsed.yes):
        return 1
    for entry in entries:
        remove(entry)
        say(f"deleted {entry.id}", aside=True)
    return _deleted(entries, parsed)


def _deleted(entries: Sequence[RunEntry], parsed: argparse.Namespace) -> int:
    if parsed.json:
        say(json.dumps({"deleted": [entry.id for entry in entries]}))
    return 0


def _runs_of(number: int) -> str:
    return f"{number} run{'s' * (number != 1)}"


def prune(parsed: argparse.Namespace) -> int:
    if parsed.keep < 0:
        raise CommandError(f"--keep {parsed.keep}: expected 0 or more", exit_code=2)
    ended = [entry for entry in list_runs() if not entry.live]
    old = ended[parsed.keep :]
    kept = "none is kept" if not parsed.keep else f"the newest {parsed.keep} are kept"
    if not old:
        say(f"nothing to delete of {_runs_of(len(ended))} that ended; {kept} (--keep)", aside=True)
        return _deleted(old, parsed)
    if not sure(
        f"delete {_runs_of(len(old))}; {kept} (--keep)",
        f"{kept} (--keep): delete {_runs_of(len(old))}, {old[-1].id} to {old[0].id}",
        yes=parsed.yes,
    ):
        return 1
    for entry in old:
        remove(entry)
    say(f"deleted {_runs_of(len(old))}; {kept} (--keep)", aside=True)
    return _deleted(old, parsed)
