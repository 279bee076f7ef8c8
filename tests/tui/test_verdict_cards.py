"""Every kind of verdict as it is drawn: kept as text, its numbers worked out from the run."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import median

import pytest

from fsdp_tui.telemetry.view import RunView, Verdict
from fsdp_tui.tui.widgets.chart import row_text
from fsdp_tui.tui.widgets.findings import draw_card, draw_strip
from tests.unit.test_verdict_kinds import kinds_in_the_source

from .drive import check_golden
from .fixtures import MIB, SECOND
from .reading import quantity, reads
from .verdict_runs import GIB, Even, made

CARD, STRIPS = (48, 10), (80, 60)
"""Cells and rows of the card at 120x40, and cells of the strip at 80x24 and 60x20."""
EVEN = Even()
STEP_NS = median(EVEN.step_ns(number) for number in range(2, 26))
PARAMS = EVEN.state_bytes // 16
WEIGHTS = 4 * PARAMS
BIG = WEIGHTS * (PARAMS - 30 * 218_000_000) / PARAMS
"""Of 32 blocks two are unsharded at once, and what is in none."""
FIGURES: dict[str, tuple[float, float | None]] = {
    "hybrid_not_sharded": (48 * GIB, 6 * GIB),
    "optimizer_not_allocated": (0, 7 * GIB),
    "states_match_theory": (14 * GIB, 14 * GIB),
    "states_off_theory": (19 * GIB, 14 * GIB),
    "frozen_mixed": (32 * 115 * MIB, 0),
    "ignored_parameters": (500 * MIB, 500 * MIB / 8),
    "uneven_shards": (28 * GIB, 28 * GIB - 700 * MIB),
    "no_sync": (WEIGHTS, 0),
    "activations_dominate": (44 * GIB, None),
    "tensors_outside": (3.5 * GIB, None),
    "two_ranks": (56 * GIB, None),
    "shard_grad_op": (27 * GIB + WEIGHTS / 32, None),
    "one_big_unit": (WEIGHTS, BIG),
    "policy_matched_nothing": (WEIGHTS, BIG),
    "exposed_communication": (96 * 350_000 / STEP_NS, 0.05),
    "straggler": (24e6 / STEP_NS, 0.1),
    "rank_outlier": (EVEN.peak(0) + 10 * GIB, EVEN.peak(0)),
    "cache": (12 * GIB, None),
    "non_torch": (4 * GIB, None),
    "others": (6 * GIB, 0),
    "not_recorded": (25, 12),
    "communication_matches_theory": (3 * WEIGHTS, 3 * WEIGHTS),
    "less_communication": (3 * WEIGHTS * 31 / 32, 3 * WEIGHTS),
    "extra_communication": (4 * WEIGHTS, 3 * WEIGHTS),
    "never_reduced": (0, WEIGHTS),
    "ranks_apart": (0, WEIGHTS),
    "trains_nothing": (0, PARAMS),
    "loss_lost": (60 - 41, 0),
    "loss_spike": (11.4, median(3.2 + 0.01 * (step * 37 % 11) for step in range(1, 48))),
    "memory_creep": (30 * MIB, 0),
    "input_bound": (70e6 / STEP_NS, 0.2),
    "rank_silent": (28.2 * SECOND, 10 * SECOND),
    "stalled": (42 * SECOND, STEP_NS),
}
"""Kind -> measured and expected, in bytes, nanoseconds, shares or ones."""
WITHOUT = {"strategy_changed", "not_watched", "not_covered", "failed", "lost"}
"""Kinds that are no matter of a number."""
CUT = {"frozen_mixed", "failed"}
"""What they say is longer than 80 cells."""
RUNS = cache(made)


def alone(kind: str) -> tuple[RunView, Verdict]:
    """The run with nothing but this verdict, and the verdict."""
    run = RUNS()[kind]
    verdict = next(one for one in run.verdicts if one.kind == kind)
    return replace(run, verdicts=(verdict,)), verdict


def drawn(kind: str) -> tuple[list[str], list[str]]:
    """The card's lines, and the strip of each width."""
    run, _ = alone(kind)
    card = [row_text(row).rstrip() for row in draw_card(run, *CARD)]
    return card, [row_text(draw_strip(run, width, 1)[0]).rstrip() for width in STRIPS]


def test_every_kind_is_here() -> None:
    """With its figures, or without one for a reason."""
    assert RUNS().keys() == kinds_in_the_source() == FIGURES.keys() | WITHOUT


def test_pictures() -> None:
    """All of them in one document: the card, and the strip at both widths."""
    parts = []
    for kind in RUNS():
        card, strips = drawn(kind)
        parts += [f"== {kind}", *(f"  {line}".rstrip() for line in card), *strips, ""]
    check_golden("verdicts", "\n".join(parts))


@pytest.mark.parametrize("kind", RUNS())
def test_card(kind: str) -> None:
    """What, how much, why and what to do are all there, and nothing is cut in a number."""
    _, verdict = alone(kind)
    card, (wide, narrow) = drawn(kind)
    assert all(len(line) <= CARD[0] for line in card)
    said = " ".join(line.strip() for line in card)
    assert verdict.what in said
    assert verdict.reason in said
    if verdict.severity in ("warn", "bad"):
        assert f"→ {verdict.next}" in said
    for line, below in pairwise(card):
        assert not (re.search(r"\d$", line) and re.match(r" +([KMGT]?iB|[num]?s|%)\b", below)), (line, below)
    assert wide.endswith("…") is (kind in CUT)
    for strip in (wide, narrow):
        assert verdict.what.startswith(strip[3:].removesuffix("…").rstrip())
        assert not re.search(r"(?<!step )(?<!rank )\b[\d.]+ …$", strip), "a number without its unit"
    found = re.search(
        r"measured (.+?)(?:  (?:expected|limit|usual|recorded) (.+?))?(?:  [+−]?[\d.]+ %)?$", numbers_of(card)
    )
    if kind in FIGURES and found is not None:
        measured, expected = FIGURES[kind]
        assert reads(figure(found[1]), measured)
        if expected is not None:
            assert reads(figure(found[2]), expected)
    if kind in FIGURES:
        check(verdict, *FIGURES[kind])


def numbers_of(card: list[str]) -> str:
    """The line with what was measured, its end on the next line included."""
    at = next((at for at, line in enumerate(card) if line.startswith("  measured ")), None)
    if at is None:
        return ""
    more = card[at + 1].strip() if at + 1 < len(card) and card[at + 1].strip() == "parameters" else ""
    return f"{card[at].strip()} {more}".strip()


def figure(text: str) -> str:
    return text.removesuffix(" steps").removesuffix(" parameters")


def check(verdict: Verdict, measured: float, expected: float | None) -> None:
    """The numbers themselves, finer than a card tells them."""
    assert verdict.measured == pytest.approx(measured, rel=2e-3)
    assert verdict.expected == (None if expected is None else pytest.approx(expected, rel=2e-3))


def test_reading() -> None:
    """The reader of numbers tells right from wrong."""
    assert quantity("−1,024.50 MiB") == pytest.approx((-1024.5 * MIB, 0.005001 * MIB))
    assert reads("12.0 %", 0.1204)
    assert not reads("12.0 %", 0.1206)
    assert reads("752 ms", 752.4e6)
    assert not reads("752 ms", 752.6e6)
