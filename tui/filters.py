"""What a person types to see only some ranks or runs.

Ranks: `5`, `8-15`, `node:pattern` (the host), any other pattern against host and device, `>90%` (of the device's capacity),
several separated by commas; `!` in front inverts. Units: `unit:pattern` beside them. Runs: a pattern against id, name, state, strategy, note
and tags; `tag:NAME` beside it, several of them together.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from fsdp_tui.telemetry.rundir import RunEntry
from fsdp_tui.telemetry.view import RankView

RankTest = Callable[[RankView], bool]
UnitTest = Callable[[str], bool]
"""Of a unit's name."""


class FilterError(ValueError):
    """The text is no filter; the message says why."""


def rank_filter(text: str) -> RankTest:
    """Whether a rank is to be shown. An empty text shows all.

    Raises:
        FilterError: a pattern that is no regular expression.
    """
    text = text.strip()
    inverted = text.startswith("!")
    words = [word.strip() for word in text.removeprefix("!").split(",") if word.strip()]
    if not words:
        return lambda rank: True
    tests = [_rank_test(word) for word in words]
    return lambda rank: any(test(rank) for test in tests) != inverted


def split_unit_filter(text: str) -> tuple[str, UnitTest]:
    """What is left for ranks when words that begin with `unit:` are taken out, and the test that these are.

    Raises:
        FilterError: a pattern that is no regular expression.
    """
    words = text.split()
    patterns = [_pattern(word.removeprefix("unit:")) for word in words if word.startswith("unit:")]
    rest = " ".join(word for word in words if not word.startswith("unit:"))
    return rest, lambda name: not patterns or any(pattern.search(name) for pattern in patterns)


def _rank_test(word: str) -> RankTest:
    if re.fullmatch(r"\d+", word):
        return lambda rank: rank.rank == int(word)
    if match := re.fullmatch(r"(\d+)\s*-\s*(\d+)", word):
        low, high = sorted((int(match[1]), int(match[2])))
        return lambda rank: low <= rank.rank <= high
    if match := re.fullmatch(r"([<>])\s*(\d+(?:\.\d+)?)\s*%", word):
        part, more = float(match[2]) / 100, match[1] == ">"

        def by_share(rank: RankView) -> bool:
            capacity = rank.hello.capacity_bytes if rank.hello else None
            if not capacity or rank.highest_bytes is None:
                return False
            share = rank.highest_bytes / capacity
            return share > part if more else share < part

        return by_share
    if match := re.fullmatch(r"node:(.+)", word):
        host = _pattern(match[1])
        return lambda rank: bool(rank.hello and host.search(rank.hello.host))
    pattern = _pattern(word)

    def by_text(rank: RankView) -> bool:
        hello = rank.hello
        return bool(
            pattern.search(
                f"rank {rank.rank} {hello.host} {hello.device} {hello.device_name}" if hello else f"rank {rank.rank}"
            )
        )

    return by_text


def run_filter(text: str) -> Callable[[RunEntry], bool]:
    """Whether a run is to be shown: it has all the tags, and matches the rest of the text.

    Raises:
        FilterError: the text is no regular expression.
    """
    text = text.strip()
    inverted = text.startswith("!")
    words = text.removeprefix("!").split(" ")
    tags = [_pattern(word.removeprefix("tag:") or ".*") for word in words if word.startswith("tag:")]
    rest = " ".join(word for word in words if not word.startswith("tag:")).strip()
    if not tags and not rest:
        return lambda entry: True
    pattern = _pattern(rest)

    def kept(entry: RunEntry) -> bool:
        said = (entry.id, entry.name, entry.state, entry.strategy, entry.effective, entry.note.line)
        tagged = all(any(tag.fullmatch(name) for name in entry.note.tags) for tag in tags)
        return (tagged and bool(pattern.search(" ".join(said)))) != inverted

    return kept


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise FilterError(f"{text!r} is no pattern: {error.msg}") from None
