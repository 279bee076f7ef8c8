"""Why the highest moment of a captured step is where it is, in one sentence with its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fsdp_tui.telemetry.messages import CATEGORIES, Capture, Part
from fsdp_tui.telemetry.wording import percent

GRADIENTS = ("grad_shard", "grad_unsharded")
COUNTS = {1: "one", 2: "two", 3: "three"}
NAMED = 3
"""Units that are named; of more only the number is told."""


def why(capture: Capture) -> str:
    """The sentence; "" for a capture without a result.

    It names where the step was, the units whose parameters are gathered, how much of what forward saved is still there,
    the gradients that are not reduced yet, and temporaries; sizes in MiB.
    """
    if capture.error or not capture.peak:
        return ""
    causes = [
        cause
        for cause in (
            _unsharded(capture),
            _activations(capture),
            _gradients(capture),
            _sized("collective buffers", _at_peak(capture, "comm_buffer")),
            _temporary(capture),
        )
        if cause
    ]
    return f"{place(capture)}: {', '.join(causes)}" if causes else place(capture)


def place(capture: Capture) -> str:
    """Phase and module of the highest moment: "backward of blocks.3"."""
    phase = {"rest": "between the phases", "optimizer": "optimizer step"}.get(capture.peak_phase, capture.peak_phase)
    return f"{phase} of {capture.peak_module}" if capture.peak_module else phase


def unsharded_units(capture: Capture) -> list[Part]:
    """Units whose parameters are gathered at the highest moment."""
    return [part for part in capture.peak_parts if part.category == "param_unsharded"]


def full_gradients(capture: Capture) -> list[Part]:
    """Gradients of whole parameters at the highest moment, those that are still being computed included."""
    return [
        part
        for part in capture.peak_parts
        if part.category == "grad_unsharded" or (part.becomes in GRADIENTS and part.category == "temp")
    ]


def _at_peak(capture: Capture, category: str) -> int:
    return capture.peak[CATEGORIES.index(category)] or 0


def _unsharded(capture: Capture) -> str:
    units = list(dict.fromkeys(part.module for part in unsharded_units(capture)))
    if not units:
        return ""
    count = f"{COUNTS.get(len(units), len(units))} unit{'s' if len(units) > 1 else ''}"
    return f"{count} unsharded ({_names(units)}: {_mib(_at_peak(capture, 'param_unsharded'))})"


def _activations(capture: Capture) -> str:
    alive = _at_peak(capture, "activation")
    if not alive:
        return ""
    if capture.peak_phase != "backward" or not capture.saved_bytes:
        return f"activations {_mib(alive)}"
    if alive >= 0.995 * capture.saved_bytes:
        more = " and recomputed ones" if alive > 1.005 * capture.saved_bytes else ""
        return f"all activations still alive{more} ({_mib(alive)})"
    return f"{percent(alive / capture.saved_bytes)} of the activations still alive ({_mib(alive)})"


def _gradients(capture: Capture) -> str:
    parts = full_gradients(capture)
    if not parts:
        return ""
    units = list(dict.fromkeys(part.module for part in parts if part.module))
    word = "full gradient" if len(units) == 1 else "full gradients"
    if not _at_peak(capture, "grad_shard"):  # nothing is reduced yet: backward has just come to its first parameters
        word = f"first {word}"
    owner = f"{_names(units)}: " if units else ""
    return f"{word} ({owner}{_mib(sum(part.nbytes for part in parts))})"


def _temporary(capture: Capture) -> str:
    """Gradients that are still being computed count as temporary, and have been told apart: the others."""
    told = sum(part.nbytes for part in full_gradients(capture) if part.category == "temp")
    return _sized("other temporary" if told else "temporary", _at_peak(capture, "temp") - told)


def _sized(word: str, nbytes: int) -> str:
    return f"{word} {_mib(nbytes)}" if nbytes > 0 else ""


def _names(names: Sequence[str]) -> str:
    shown: Iterable[str] = names[:NAMED]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(shown) + more


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.2f} MiB"
