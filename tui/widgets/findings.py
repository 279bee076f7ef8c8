"""The verdicts as a card, as a strip where there is little room, and in full; and the key figures beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from fsdp_tui.telemetry.view import RankView, RunView, Verdict, category, model_states, total
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.keys import with_keys
from fsdp_tui.tui.theme import SEVERITY_GLYPHS, Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Row, crop
from fsdp_tui.tui.widgets.table import paragraph

WAITING = "verdicts come after the second step"
HERE = {"failed": "{run.logs}", "lost": "{run.logs}", "stalled": "{run.open} on the rank, then {rank.stack}"}
"""Kind of verdict -> the keys that do what it advises."""
EXPECTED = {
    **dict.fromkeys(("exposed_communication", "input_bound", "straggler", "rank_silent"), "limit"),
    **dict.fromkeys(("stalled", "rank_outlier", "loss_spike"), "usual"),
    "not_recorded": "recorded",
}
"""Kind of verdict -> what its expected value is, where it is not what theory expects."""
WRONG = ("bad", "warn")
NEEDED_FIRST = (1, 2, 0)
"""Of a verdict's details where there is not room for all: why, then what to do, then the numbers, which it has told mostly."""
Keyed = Callable[[str], str]
"""Puts keys into a sentence: `keys.with_keys` with the table that a person has bound."""


def _mark(verdict: Verdict) -> Row:
    glyph = SEVERITY_GLYPHS.get(verdict.severity, "?")
    return [(f"{glyph} ", Ink(verdict.severity if verdict.severity in SEVERITY_GLYPHS else "note", bold=True))]


def amount(value: float | None, unit: str) -> str:
    """A verdict's number in its unit."""
    if unit == "bytes":
        return fmt.size(value)
    if unit == "ns":
        return fmt.duration(value)
    if unit.startswith("share"):
        return fmt.percent(value)
    if unit in ("steps", "parameters"):
        return f"{fmt.count(value)} {unit}"
    return fmt.number(value)


def numbers(verdict: Verdict) -> str:
    """Measured and expected, as far as the verdict has them."""
    words = []
    if verdict.measured is not None:
        words.append(f"measured {amount(verdict.measured, verdict.unit)}")
    if verdict.expected is not None:
        words.append(f"{EXPECTED.get(verdict.kind, 'expected')} {amount(verdict.expected, verdict.unit)}")
        if verdict.unit == "bytes" and verdict.measured is not None and verdict.expected:
            words.append(fmt.change(verdict.measured, verdict.expected))
    return "  ".join(words)


def draw_card(run: RunView | None, width: int, height: int, keyed: Keyed = with_keys) -> list[Row]:
    """What is the case, the gravest first; then, as far as there is room, why and what to do about what is wrong, the key
    figures, and the rest. What is missing is counted."""
    if run is None or width < 1 or height < 1:
        return []
    if not run.verdicts:
        return _with_figures(paragraph(_nothing(run), width, QUIET), key_figures(run, width), width, height)
    whats = [_what(verdict, width) for verdict in run.verdicts]
    if sum(map(len, whats)) > height:
        return _first_ones(whats, width, height, keyed)
    left = height - sum(map(len, whats))
    chosen: dict[int, list[int]] = {}
    parts = [_details(verdict, width, keyed) for verdict in run.verdicts]

    def take(verdicts: Iterable[int]) -> None:
        nonlocal left
        for at in verdicts:
            for part in NEEDED_FIRST:
                rows = parts[at][part]
                if rows and len(rows) <= left:
                    chosen.setdefault(at, []).append(part)
                    left -= len(rows)

    wrong = [at for at, verdict in enumerate(run.verdicts) if verdict.severity in WRONG]
    take(wrong)
    figures = key_figures(run, width)
    if len(figures) + 1 > left:
        figures = []
    left -= len(figures) + bool(figures)
    take(at for at in range(len(parts)) if at not in wrong)
    rows = []
    for at, what in enumerate(whats):
        rows += what
        for part in sorted(chosen.get(at, ())):
            rows += parts[at][part]
    return _with_figures(rows, figures, width, height)


def _with_figures(rows: list[Row], figures: list[Row], width: int, height: int) -> list[Row]:
    """The figures at the bottom, where there is room for all of them."""
    if not figures or len(rows) + 1 + len(figures) > height:
        return rows[:height]
    return [*rows, *([crop([], width)] * (height - len(rows) - len(figures))), *figures]


def _first_ones(blocks: Sequence[list[Row]], width: int, height: int, keyed: Keyed) -> list[Row]:
    """As many as there is room for, and how many more there are."""
    rows: list[Row] = []
    shown = 0
    for block in blocks:
        if rows and len(rows) + len(block) + (shown + 1 < len(blocks)) > height:
            break
        rows += block
        shown += 1
    if shown == len(blocks):
        return rows[:height]
    more = f"+{len(blocks) - shown} more {keyed('{run.open}')}"
    return [*rows[: height - 1], crop([(more, QUIET)], width)]


def _what(verdict: Verdict, width: int) -> list[Row]:
    return paragraph(verdict.what, width, STRONG if verdict.severity in WRONG else LABEL, first=_mark(verdict))


def _details(verdict: Verdict, width: int, keyed: Keyed) -> tuple[list[Row], ...]:
    """Its numbers, why, and what to do; without rows what it does not have."""
    keys = f" ({keyed(HERE[verdict.kind])})" if verdict.kind in HERE else ""
    said = [numbers(verdict), verdict.reason, f"→ {verdict.next}{keys}" if verdict.next else ""]
    return tuple(paragraph(text, width, QUIET, first=[("  ", QUIET)]) if text else [] for text in said)


def _nothing(run: RunView) -> str:
    return WAITING if run.steps < 2 and run.ended is None else "no verdict: nothing is known to be wrong"


def draw_strip(run: RunView | None, width: int, height: int, keyed: Keyed = with_keys) -> list[Row]:
    """The gravest verdicts in a row each, cut with "…"; the last row counts the rest."""
    if run is None or height < 1:
        return []
    if not run.verdicts:
        return [crop([(f" {_nothing(run)}", QUIET)], width)]
    rows: list[Row] = []
    for at, verdict in enumerate(run.verdicts[:height]):
        rest = len(run.verdicts) - height if at == height - 1 else 0
        more = f"  +{rest} {keyed('{run.open}')}" if rest > 0 else ""
        room = max(0, width - 3 - len(more))
        what = fmt.sentence(verdict.what, room).ljust(room)
        rows.append(crop([(" ", LABEL), *_mark(verdict), (what, LABEL), (more, QUIET)], width))
    return rows


def write_strategies(run: RunView, width: int) -> list[Row]:
    """What the launch asked for, what the script's own call asked for, and what runs; nothing where all say the same."""
    said = (("requested", run.requested), ("script's own", run.script), ("effective", run.effective))
    if len({text for _, text in said if text}) < 2:
        return []
    return [crop([(f"{name:<14}", QUIET), (text or fmt.UNKNOWN, STRONG)], width) for name, text in said]


def write_verdicts(run: RunView, width: int, keyed: Keyed = with_keys) -> list[Row]:
    """All verdicts in full, after the strategies where they differ."""
    rows = write_strategies(run, width)
    if rows:
        rows.append(crop([], width))
    for verdict in run.verdicts:
        rows += _what(verdict, width)
        for part in _details(verdict, width, keyed):
            rows += part
        rows.append(crop([], width))
    if not run.verdicts:
        rows += paragraph(_nothing(run), width, QUIET)
    for probe, said in run.probes.items():
        if said != "ok":
            rows += paragraph(f"{probe}: {said}", width, QUIET, first=[("· ", Ink("note", bold=True))])
    if run.ended and run.ended.log_tail:
        rows += [crop([], width), crop([("last lines of its log", QUIET)], width)]
        for line in run.ended.log_tail:
            rows += paragraph(line, width)
    return rows


def key_figures(run: RunView, width: int) -> list[Row]:
    """Worst rank's bytes beside what theory says: states, gathered parameters, activations, cache."""
    table = list(_figures(run))
    if not table:
        return []
    name_width = max(len(name) for name, _, _ in table)
    value_width = max(len(value) for _, value, _ in table)
    rows = []
    for name, value, note in table:
        row: Row = [(f"{name:<{name_width}}  ", QUIET), (f"{value:>{value_width}}", LABEL)]
        if note and name_width + value_width + len(note) + 4 <= width:
            row.append((f"  {note}", QUIET))
        rows.append(crop(row, width))
    return rows


def _figures(run: RunView) -> Iterator[tuple[str, str, str]]:
    states = worst(run.ranks, lambda rank: model_states(rank.memory))
    if states is not None:
        ideal = run.ideal_state_bytes
        note = f"ideal {fmt.size(ideal)}  {fmt.change(states, ideal)}" if ideal else "no formula for this strategy"
        yield "model states", fmt.size(states), note
    gathered = worst(run.ranks, lambda rank: category(rank.peak, "param_unsharded"))
    if gathered is not None:
        yield "unsharded", fmt.size(gathered), "gathered, at the peak"
    activations = worst(run.ranks, lambda rank: category(rank.peak, "activation"))
    if activations is not None:
        yield "activations", fmt.size(activations), "measured, at the peak"
    cache = worst(run.ranks, lambda rank: category(rank.peak, "cache"))
    if cache is not None:
        yield "cache", fmt.size(cache), "reserved − allocated"


def worst(ranks: Sequence[RankView], read: Callable[[RankView], int | None]) -> int | None:
    """The largest over ranks; not known when one rank's is not."""
    values = [read(rank) for rank in ranks]
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def peak_spread(run: RunView) -> str:
    """Lowest, median and highest peak so far: one line under the bars."""
    known = ((rank.highest_bytes or total(rank.peak), rank.rank) for rank in run.ranks)
    peaks = sorted(((peak, rank) for peak, rank in known if peak is not None), key=lambda one: (one[0], -one[1]))
    if len(peaks) < 2:
        return ""
    unit = fmt.scale_for([peak for peak, _ in peaks])
    middle = peaks[len(peaks) // 2][0] if len(peaks) % 2 else sum(p for p, _ in peaks[len(peaks) // 2 - 1 :][:2]) / 2
    return (
        f"peaks {unit.name}: min {fmt.in_unit(peaks[0][0], unit)}  median {fmt.in_unit(middle, unit)}"
        f"  max {fmt.in_unit(peaks[-1][0], unit)} (rank {peaks[-1][1]})"
    )
