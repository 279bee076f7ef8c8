"""Reading numbers off a screen, without the code that has written them."""

from __future__ import annotations

import re

UNITS = {
    **{name: 2.0 ** (10 * power) for power, name in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))},
    **{f"{name}/s": 2.0 ** (10 * power) for power, name in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))},
    **{"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9},
    **{"k": 1e3, "M": 1e6, "G": 1e9, "%": 0.01, "": 1.0},
}
"""Unit -> how many bytes, nanoseconds or ones it is."""
_NUMBER = re.compile(r"([+−-]?)([\d,]+(?:\.(\d+))?) ?([A-Za-z%]+(?:/s)?)?")


def quantity(text: str) -> tuple[float, float]:
    """A number with its unit, in bytes, nanoseconds or ones; and by how much rounding may have moved it."""
    found = _NUMBER.fullmatch(text.strip())
    assert found is not None, text
    sign, digits, decimals, unit = found.groups()
    size = UNITS[unit or ""]
    value = float(digits.replace(",", "")) * size
    return (-value if sign in ("−", "-") else value), 0.5001 * size / 10 ** len(decimals or "")


def reads(text: str, value: float) -> bool:
    """Whether the text says this value, rounded; "<0.1 MiB" says that it is less, and not nothing."""
    if text.startswith("<"):
        return 0 < value < quantity(text[1:])[0]
    said, half = quantity(text)
    return abs(said - value) <= half + 1e-9 * abs(value)


def cells(line: str) -> list[str]:
    """The columns of a table's row, without its frame."""
    return [cell for cell in re.split(r" {2,}", line.strip("│┃║ ")) if cell]


def pane(text: str, title: str) -> list[str]:
    """The lines inside the frame whose title begins so, each cut to it."""
    lines = text.splitlines()
    for top, line in enumerate(lines):
        for found in re.finditer(r"[╭┏]─ .*?[╮┓]|[╭┏]━ .*?[╮┓]", line):
            if found[0][3:].startswith(title):
                begin, end = found.span()
                inside: list[str] = []
                for below in lines[top + 1 :]:
                    if below[begin : begin + 1] in ("╰", "┗", ""):
                        return inside
                    inside.append(below[begin + 1 : end - 1])
    raise AssertionError(f"no pane {title!r}\n{text}")
