"""The `fsdp-tui` command line. Usage errors are one line and exit code 2; a command that could not do its work exits with 1."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Container, Sequence
from typing import Any, NoReturn

import msgspec

import fsdp_tui
from fsdp_tui.telemetry import collector
from fsdp_tui.telemetry.launch import BRIEF_STEPS, OPTIONS, SHARDING, LaunchSpec, Option
from fsdp_tui.tui.format import OWN

DESCRIPTION = """See inside PyTorch FSDP training: memory per rank by category, communication per unit and loss, live and compared.

Without a command: the dashboard, with the runs of this machine and the recorded ones."""


class _Parser(argparse.ArgumentParser):
    """argparse with its errors in one line, and no abbreviated options: a script's own must not be taken for ours."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"fsdp-tui {fsdp_tui.__version__}")
        raise SystemExit(0)


def build_parser() -> argparse.ArgumentParser:
    """The whole grammar. The script of run and sweep and its arguments are split off before (`split_script`)."""
    parser = _Parser(prog="fsdp-tui", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    demo = commands.add_parser("demo", help="train the built-in demo model, watched")
    _add_launch_options(demo)
    run = commands.add_parser(
        "run",
        help="train a script under torchrun, watched",
        usage="fsdp-tui run [options] SCRIPT|-m MODULE [arguments]",
    )
    _add_launch_options(run)
    sweep = commands.add_parser(
        "sweep",
        help="the same training under several strategies, then compare them",
        usage="fsdp-tui sweep [options] [SCRIPT|-m MODULE [arguments]]",
    )
    sweep.add_argument(
        "--strategies",
        metavar="S,S,...",
        help="which, separated by commas (default for the demo: the usual seven; a script's are to be named)",
    )
    _add_launch_options(sweep)

    attach = commands.add_parser("attach", help="dashboard on a live or recorded run")
    attach.add_argument(
        "run", metavar="RUN", nargs="?", default="last", help="id, prefix, name, last or a run.json (default: last)"
    )
    attach.add_argument("--once", action="store_true", help="print the Run screen once, as text of COLUMNS x LINES")

    _read_command(commands, "runs", "live and recorded runs", run=False)
    _read_command(commands, "show", "one run in full")
    watch = _read_command(commands, "watch", "a line per step, until the run ends")
    watch.add_argument("--from-start", action="store_true", help="begin with the steps that are already recorded")
    logs = commands.add_parser("logs", help="what the ranks printed")
    logs.add_argument("run", metavar="RUN")
    logs.add_argument("--rank", type=int, help="this rank only (default: rank 0; launcher's words with --rank -1)")
    logs.add_argument("--json", action="store_true", help="JSON on stdout")
    logs.add_argument("--follow", "-f", action="store_true", help="go on until the run ends")
    for word, help_text in (
        ("stop", "stop all ranks at one step, then SIGTERM, then SIGKILL; returns when the run has ended"),
        ("pause", "hold all ranks at one step"),
        ("resume", "let a paused run go on"),
    ):
        _read_command(commands, word, help_text)
    stacks = _read_command(commands, "stacks", "what each rank is doing right now, also while it hangs in a collective")
    stacks.add_argument("--rank", type=int, metavar="R", help="of this rank only (default: of all)")
    capture = _read_command(
        commands, "capture", "every allocation and free of one step of a live run; returns when it is there"
    )
    capture.add_argument("--ranks", default="all", metavar="0,1|all", help="of which ranks (default: all)")
    _output_options(capture, "also write it to FILE")
    export = commands.add_parser(
        "export",
        help="the newest captures of a run as a trace for ui.perfetto.dev or as JSON; or all its steps as CSV",
    )
    export.add_argument("run", metavar="RUN", help="id, unique prefix, name (the newest of it) or last")
    export.add_argument("--ranks", default="all", metavar="0,1|all", help="of which ranks (default: all)")
    _output_options(export, "write to FILE instead of stdout", "csv")
    compare = _read_command(commands, "compare", "two or more runs side by side", run=False)
    compare.add_argument("runs", metavar="RUN", nargs="+")
    compare.add_argument(
        "--format", choices=("md", "svg", "json"), help="a document instead of the table: Markdown, a picture, or JSON"
    )
    compare.add_argument("--output", "-o", metavar="FILE", help="write to FILE instead of stdout")
    presets = commands.add_parser(
        "presets", help="saved launches; run --save-preset NAME saves one, run --preset NAME launches it"
    )
    presets.add_argument("--json", action="store_true", help="JSON on stdout")
    presets.add_argument("--rm", metavar="NAME", help="delete this one")
    presets.add_argument("--yes", "-y", action="store_true", help="do not ask")
    queue = commands.add_parser("queue", help="launches that run one after another, from the Launch screen")
    queue.add_argument("--json", action="store_true", help="JSON on stdout")
    queue.add_argument("--cancel", action="store_true", help="stop what runs, take off what waits")
    queue.add_argument("--yes", "-y", action="store_true", help="do not ask")
    note = _read_command(commands, "note", "write a note on a run, or tags; without any, print what is there")
    note.add_argument("text", metavar="TEXT", nargs="*", help='the note, instead of the one before; "" removes it')
    note.add_argument("--tag", "-t", action="append", metavar="T", help="add this tag; may be given several times")
    note.add_argument("--untag", action="append", metavar="T", help="take this tag away")
    commands.add_parser("config", help="settings and keys as they are, as TOML for config.toml, with its path")
    remove = commands.add_parser("rm", help="delete recorded runs")
    remove.add_argument("runs", metavar="RUN", nargs="+")
    remove.add_argument("--json", action="store_true", help="JSON on stdout")
    remove.add_argument("--yes", "-y", action="store_true", help="do not ask")
    prune = commands.add_parser("prune", help="delete old recorded runs")
    prune.add_argument("--keep", type=int, default=20, metavar="N", help="how many of the newest to keep (default 20)")
    prune.add_argument("--json", action="store_true", help="JSON on stdout")
    prune.add_argument("--yes", "-y", action="store_true", help="do not ask")
    return parser


def _read_command(commands: Any, name: str, help_text: str, *, run: bool = True) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text)
    if run:
        parser.add_argument("run", metavar="RUN", help="id, unique prefix, name (the newest of it) or last")
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    return parser


def _output_options(parser: argparse.ArgumentParser, help_text: str, *more: str) -> None:
    parser.add_argument(
        "--format", choices=("perfetto", "json", *more), default="perfetto", help="of the file (default perfetto)"
    )
    parser.add_argument("--output", "-o", metavar="FILE", help=help_text)


def _add_launch_options(parser: argparse.ArgumentParser) -> None:
    command = parser.prog.split()[-1]
    for option in OPTIONS:
        if (option.demo_only and command == "run") or (option.field == "strategy" and command == "sweep"):
            continue
        help_text = (option.help + _default_of(option, command)).replace("%", "%%")
        if option.kind is bool:
            parser.add_argument(option.flag, dest=option.field, action="store_true", default=None, help=help_text)
            continue
        parser.add_argument(
            option.flag,
            dest=option.field,
            type=option.kind,
            metavar="|".join(option.choices) if option.choices else option.field.upper(),
            help=help_text,
        )
    parser.add_argument(
        "--env",
        type=_variable,
        action="append",
        metavar="NAME=VALUE",
        help="environment variable of the ranks; may be given several times; recorded with the run",
    )
    parser.add_argument(
        "--preset", metavar="NAME", help="begin with this preset; options and script given here replace its own"
    )
    if command != "sweep":
        parser.add_argument("--save-preset", metavar="NAME", help="save all this as a preset instead of launching it")
    parser.add_argument("--headless", action="store_true", help="no dashboard: progress lines and a summary")
    parser.add_argument("--json", action="store_true", help="headless, with one JSON document on stdout at the end")


WITH_VALUE = {"--strategies", "--env", "--preset", "--save-preset"}
"""Options beside the table's that are followed by a word of theirs."""


def _default_of(option: Option, command: str) -> str:
    if command == "run" and option.field in SHARDING:
        return f" (default: {OWN})"
    if option.field == "steps":
        return {
            "demo": f" (default: until stopped; {BRIEF_STEPS} when headless)",
            "run": " (default: until the script ends)",
            "sweep": f" (default: {BRIEF_STEPS})",
        }[command]
    return f" (default: {option.default})" if option.default else ""


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")
    return name, value


def split_script(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the words after `run` or `sweep` into ours and the script's: the first that is no option of ours begins it."""
    with_value = {option.flag for option in OPTIONS if option.kind is not bool} | WITH_VALUE
    at = 0
    while at < len(words):
        word = words[at]
        if word == "-m" or not word.startswith("-"):
            break
        if word == "--":
            return list(words[:at]), list(words[at + 1 :])
        at += 2 if word in with_value else 1
    return list(words[:at]), list(words[at:])


def options_first(words: Sequence[str], with_value: Container[str]) -> list[str]:
    """The same words in an order that argparse takes when an optional positional follows an option."""
    options, others, rest = list[str](), list[str](), list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*options, "--", *others, *rest]
        if word.startswith("-") and word != "-":
            options += [word, *([rest.pop(0)] if word in with_value and rest else [])]
        else:
            others.append(word)
    return [*options, *others]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses a whole command line; `script_words` of the result are the script and its arguments."""
    words = list(argv)
    script: list[str] = []
    if words[:1] in (["run"], ["sweep"]):
        ours, script = split_script(words[1:])
        words = [words[0], *ours]
    elif words[:1] == ["note"]:
        words = ["note", *options_first(words[1:], {"--tag", "-t", "--untag"})]
    parsed = build_parser().parse_args(words)
    parsed.script_words = script
    return parsed


def spec_from(parsed: argparse.Namespace, preset: LaunchSpec | None = None) -> LaunchSpec:
    """The launch that the words ask for. What they leave open is the preset's, else the default."""
    given: dict[str, Any] = {
        option.field: getattr(parsed, option.field)
        for option in OPTIONS
        if getattr(parsed, option.field, None) is not None
    }
    asked = given.keys() & set(SHARDING)
    script = parsed.script_words
    if script or (parsed.command == "run" and preset is None):
        module = script[:1] == ["-m"]
        rest = script[1:] if module else script
        given |= {
            "target": "module" if module else "script",
            "script": rest[0] if rest else None,
            "args": tuple(rest[1:]),
            "directory": os.getcwd(),
        }
    base = preset or LaunchSpec()
    if given.get("target", base.target) != "demo":
        asked |= set(base.asked)
        given["asked"] = tuple(name for name in SHARDING if name in asked)
    return msgspec.structs.replace(base, **given, env=base.env | dict(parsed.env or ()))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `fsdp-tui`; returns the exit code."""
    parsed = parse(sys.argv[1:] if argv is None else argv)
    with collector.importing():
        from fsdp_tui.tui import commands
        from fsdp_tui.tui.commands.common import say

    try:
        return commands.execute(parsed)
    except commands.CommandError as error:
        say(f"fsdp-tui: {error}", aside=True)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output went away, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
