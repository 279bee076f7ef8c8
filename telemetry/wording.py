"""Sizes, times and lists as findings word them."""

from __future__ import annotations

from collections.abc import Sequence


def size(nbytes: float) -> str:
    """Three digits that count, in the unit that has them: "512 B", "1.85 MiB"."""
    scaled, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if round(abs(scaled)) < 1000:
            break
        scaled, unit = scaled / 1024, larger
    decimals = 0 if unit == "B" else 2 if round(abs(scaled), 2) < 10 else 1 if round(abs(scaled), 1) < 100 else 0
    return f"{scaled:,.{decimals}f} {unit}"


def percent(share: float, decimals: int = 0, *, signed: bool = False) -> str:
    """ "12 %", "+0.03 %", "−3 %"."""
    return f"{share * 100:{'+' if signed else ''},.{decimals}f} %".replace("-", "−")


def duration(ns: float) -> str:
    for limit, unit in ((1e3, "ns"), (1e6, "us"), (1e9, "ms"), (600e9, "s")):
        if ns < limit:
            scale = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
            return f"{ns / scale:,.3g} {unit}" if ns / scale < 1_000 else f"{ns / scale:,.0f} {unit}"
    return f"{ns / 60e9:,.0f} min"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def told_apart(names: Sequence[str]) -> list[str]:
    """The names, with their numbers in front where two are alike."""
    return list(names) if len(set(names)) == len(names) else [f"{at} {name}" for at, name in enumerate(names, 1)]


def ranks(numbers: Sequence[int]) -> str:
    """ "rank 3", "ranks 0, 2-5": runs of neighbours joined, of many the first ones."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"rank{'' if len(numbers) == 1 else 's'} {listed(words, 8)}"
