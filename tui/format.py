"""The wording of every number on a screen: one place, so that the same value reads the same everywhere.

A value of None or NaN is not known and reads as `UNKNOWN`; it never becomes 0. (A loss that was measured as NaN is
known: `number` says "nan".) Rounding never shows four digits where the next unit reads better: 999.7 us is 1.00 ms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

UNKNOWN = "–"
OWN = "the script's own"
"""For what a launch leaves to the script."""
MINUS = "−"

Value = int | float | None


class Unit(NamedTuple):
    """A unit and the digits after the point that its column shows."""

    name: str
    size: float
    """How many base units (bytes, nanoseconds, ones) one of it is."""
    decimals: int = 0


BYTES = (Unit("B", 1), Unit("KiB", 2**10), Unit("MiB", 2**20), Unit("GiB", 2**30), Unit("TiB", 2**40))
NANOSECONDS = (Unit("ns", 1), Unit("us", 1e3), Unit("ms", 1e6), Unit("s", 1e9))
MILLIWATTS = (Unit("mW", 1), Unit("W", 1e3), Unit("kW", 1e6))
ONES = (Unit("", 1), Unit("k", 1e3), Unit("M", 1e6), Unit("G", 1e9), Unit("T", 1e12))


def known(value: Value) -> bool:
    """Whether there is a number to show."""
    return value is not None and math.isfinite(value)


def _decimals(scaled: float) -> int:
    """Digits after the point that give three significant ones, judged after rounding."""
    scaled = abs(scaled)
    if round(scaled, 2) < 10:
        return 2
    return 1 if round(scaled, 1) < 100 else 0


def _unit_for(value: float, units: Sequence[Unit]) -> Unit:
    for unit in units:
        scaled = abs(value) / unit.size
        if scaled >= 1000:
            continue
        decimals = 0 if unit.size == 1 else _decimals(scaled)
        if round(scaled, decimals) < 1000:
            return unit._replace(decimals=decimals)
    return units[-1]._replace(decimals=0)


def scale_for(values: Iterable[Value], units: Sequence[Unit] = BYTES) -> Unit:
    """The one unit for a column, a bar or an axis, so that its numbers compare: chosen by the largest known value."""
    unit = _unit_for(max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0), units)
    # A column of 139 and 4.6 GiB needs the tenth of its small ones.
    return unit._replace(decimals=max(unit.decimals, 1)) if unit.size > 1 else unit


def in_unit(value: Value, unit: Unit, *, signed: bool = False) -> str:
    """The number alone, in a unit that a heading names. What is there and too little for it reads "<0.1", and not 0.0."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    text = f"{value / unit.size:{'+' if signed else ''},.{unit.decimals}f}"
    if value > 0 and not signed and not text.strip("0."):
        return f"<{10**-unit.decimals:.{unit.decimals}f}"
    return _sign(text)


def size(value: Value, *, signed: bool = False) -> str:
    """Bytes: "14.9 GiB", "512 B"."""
    return _with_unit(value, BYTES, signed)


def bandwidth(bytes_per_s: Value) -> str:
    """Bytes per second: "1.2 GiB/s"."""
    text = _with_unit(bytes_per_s, BYTES, signed=False)
    return text if text == UNKNOWN else f"{text}/s"


def duration(ns: Value, *, signed: bool = False) -> str:
    """Nanoseconds as a person reads them: "12.3 us", "752 ms", "41.2 s", "1:23", "1:02:03"."""
    if ns is None or not math.isfinite(ns):
        return UNKNOWN
    if round(abs(ns) / 1e9, 1) >= 60:
        seconds = round(abs(ns) / 1e9)
        text = f"{seconds // 60}:{seconds % 60:02}" if seconds < 3600 else clock(abs(ns))
        return (MINUS if ns < 0 else "+" if signed else "") + text
    return _with_unit(ns, NANOSECONDS, signed)


def clock(ns: Value) -> str:
    """A time span as h:mm:ss: "0:41:07"."""
    if ns is None or not math.isfinite(ns):
        return UNKNOWN
    minutes, seconds = divmod(round(ns / 1e9), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def rate(per_second: Value) -> str:
    """Something per second: "10.9k", "850", "1.20M"; the caller names what."""
    return _with_unit(per_second, ONES, False).replace(" ", "")


def percent(fraction: Value, *, signed: bool = False, decimals: int = 1) -> str:
    """A fraction as a percentage: "86.0 %"; with its sign: "+3.1 %", "−0.4 %"."""
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    return _sign(f"{fraction * 100:{'+' if signed else ''}.{decimals}f} %")


def change(value: Value, base: Value, *, decimals: int = 1) -> str:
    """How far a value is from a base: "+3.1 %"; not known when either is not, or the base is 0."""
    if value is None or base is None or not base:
        return UNKNOWN
    return percent(value / base - 1, signed=True, decimals=decimals)


GLUE = "\N{NO-BREAK SPACE}"
_TOGETHER = re.compile(r"(?<=\d) (?=(?:(?:[KMGT]i)?B|[num]?s|min|h|d|times)\b|%)|(?<=\brank|\bstep) (?=\d)")


def glued(text: str) -> str:
    """The text with GLUE for the spaces at which no line may end: between a number and its unit, or "rank" and its number."""
    return _TOGETHER.sub(GLUE, text)


def sentence(text: str, width: int) -> str:
    """A sentence in at most so many cells; one that needs more ends in "…" after a whole word, or a number with its unit."""
    if len(text) <= width:
        return text
    kept = ""
    for word in glued(text).split(" "):
        if len(kept) + len(word) + 3 > width:
            break
        kept += f" {word}" if kept else word
    return f"{kept.rstrip(' ,;:')} …".replace(GLUE, " ") if kept else fit(text, width)


def count(value: Value) -> str:
    """A whole number with thousands separators: "1,225"."""
    return UNKNOWN if value is None or not math.isfinite(value) else _sign(f"{round(value):,}")


def number(value: Value, digits: int = 4) -> str:
    """A plain measurement such as a loss: "2.113", "0.02130", "1.2e-07". A measured NaN is "nan"."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return _sign(str(value))
    if value and not 1e-3 <= abs(value) < 1e6:
        return _sign(f"{value:.{min(digits, 2) - 1}e}")
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return _sign(f"{value:,.{max(0, digits - max(whole, 1))}f}")


def axis(values: Sequence[float]) -> list[str]:
    """Labels of an axis: all with the fewest decimals that write every one of them exactly ("2.5", "5.0")."""
    largest = max((abs(v) for v in values), default=0.0)
    if largest >= 1e6 or 0 < largest < 1e-4:
        return [number(v, 3) for v in values]
    for decimals in range(7):
        texts = [_sign(f"{v:,.{decimals}f}") for v in values]
        if all(abs(v - round(v, decimals)) <= 1e-6 * largest for v in values):
            break
    return texts


def age(ns: Value) -> str:
    """How old data is: "0.2 s old", "41 s old", "2:05 old"."""
    if ns is None or not math.isfinite(ns):
        return f"age {UNKNOWN}"
    seconds = max(0.0, ns / 1e9)
    if seconds < 9.95:
        return f"{seconds:.1f} s old"
    return f"{round(seconds)} s old" if round(seconds) < 60 else f"{duration(ns)} old"


def fit(text: str, width: int) -> str:
    """Text of exactly so many cells, of which a wide character takes two; what is cut ends in "…"."""
    spare = width - cell_len(text)
    if spare >= 0:
        return text + " " * spare
    return set_cell_size(text, width - 1) + "…" if width > 0 else ""


def shortened(text: str, width: int) -> str:
    """Text of at most so many cells; what is cut ends in "…"."""
    return text if cell_len(text) <= width else fit(text, width)


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def plain(text: str) -> str:
    """Someone else's text without what a terminal obeys: no escape sequences, other control characters as "·", one line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "·" for c in _ESCAPES.sub("", text))


def plain_lines(text: str) -> str:
    """As `plain`, of a text of several lines."""
    return text if text.isprintable() else "\n".join(plain(line) for line in text.split("\n"))


def reading(name: str, value: Value) -> str:
    """A device's reading in the unit that its name ends in, as a person says it: "80.0 GiB", "312 W", "87 %", "61 °C"."""
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_mw"):
        return _with_unit(value, MILLIWATTS, False)
    if name.endswith("_percent"):
        return percent(None if value is None else value / 100, decimals=0)
    if name.endswith("_c"):
        return UNKNOWN if value is None else f"{value} °C"
    return ""


def _with_unit(value: Value, units: Sequence[Unit], signed: bool) -> str:
    if value is None or not math.isfinite(value):
        return UNKNOWN
    unit = _unit_for(value, units)
    return f"{in_unit(value, unit, signed=signed)} {unit.name}".rstrip()


def _sign(text: str) -> str:
    """A real minus, and no sign on a zero that rounding made."""
    if text[:1] not in ("-", "+"):
        return text
    if not text.strip("+-0., %"):
        return text[1:]
    return text.replace("-", MINUS, 1) if text[0] == "-" else text
