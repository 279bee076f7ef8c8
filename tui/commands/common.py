"""What commands share: their errors, the run that they are about, and what they ask or write."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fsdp_tui.telemetry.client import RunClient, open_run
from fsdp_tui.telemetry.collector import importing
from fsdp_tui.telemetry.rundir import resolve, resolve_live
from fsdp_tui.tui.format import plain_lines


class CommandError(Exception):
    """One line for stderr, and the exit code: 1 could not do it, 2 usage."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def say(text: str, *, aside: bool = False, end: str = "\n", flush: bool = False) -> None:
    """Prints a result, or a message `aside` to stderr. A run's texts are whoever's: what a terminal obeys in them is left out
    (JSON has it escaped)."""
    print(plain_lines(text), file=sys.stderr if aside else sys.stdout, end=end, flush=flush)


def dashboard(open_on: str | None = None, *, own: str | None = None) -> int:
    """As `run_app`; it is imported when it is needed."""
    with importing():
        from fsdp_tui.tui.app import run_app
    return run_app(open_on=open_on, own=own)


@contextmanager
def opened(ref: str) -> Iterator[RunClient]:
    with open_run(resolve(ref)) as client:
        yield client


@contextmanager
def opened_to(word: str, ref: str) -> Iterator[RunClient]:
    """A run that goes on, to do with it what the word says."""
    with open_run(resolve_live(ref)) as client:
        if not client.live:
            raise CommandError(f"run {client.entry.id} is not live ({client.view().state}): nothing to {word}")
        yield client


def ranks_of(text: str) -> tuple[int, ...]:
    """The ranks of `--ranks`; empty: all."""
    if text == "all":
        return ()
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise CommandError(f"--ranks {text}: expected numbers separated by commas, or all", exit_code=2)
    return tuple(sorted({int(word) for word in words}))


def sure(would: str, question: str, *, yes: bool) -> bool:
    """Whether a person wants what a command `would` do: with `--yes`, or by the answer to the question on a terminal.

    Raises:
        CommandError: there is neither.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise CommandError(f"would {would}: say --yes")
    say(f"{question}? [y/N] ", end="", aside=True, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def write_text(path: str, body: str) -> None:
    """Writes a file, and says so."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(plain_lines(body))
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    say(f"wrote {path}", aside=True)
