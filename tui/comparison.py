"""Runs side by side outside of the dashboard: what there is to say of them, as text, Markdown and SVG.

The Compare screen says the same in the same words; `telemetry.report.compare` is the data, and the JSON.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import numpy as np

from fsdp_tui.telemetry.advice import advise, left_out
from fsdp_tui.telemetry.losses import lost
from fsdp_tui.telemetry.report import (
    METRICS,
    comparability,
    compare,
    differences,
    equivalence,
    metrics,
    settings,
    theory,
)
from fsdp_tui.telemetry.view import RankView, RunView, highest, model_states, worst
from fsdp_tui.telemetry.wording import count, told_apart
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.tables import LABELS, amount, column_name, share_lines, table
from fsdp_tui.tui.theme import GROUPS, SERIES, THEMES
from fsdp_tui.tui.widgets.bars import Bars, Column, group_bytes, round_scale

CLOSE, NEAR = 0.05, 0.15
"""Relative distances from theory up to which a measurement matches it, and up to which it is only near."""
FOOTNOTE = "* best of its row, or as good; memory of the fullest rank, times and bytes per step and rank"


class Finding(NamedTuple):
    """One line on a comparison."""

    severity: str
    """"ok", "note", "warn" or "bad"; "advice" for the sentence that sums up."""
    text: str

    @property
    def mark(self) -> str:
        return {"ok": "✓", "note": "·", "warn": "!", "bad": "✗", "advice": "→"}[self.severity]


def findings(runs: Sequence[RunView], labels: Sequence[str]) -> list[Finding]:
    """What there is to say of these runs, the first of which is the baseline: the advice, whether they are one training, what
    differs, and what theory says of each."""
    found = []
    if (advice := advise(runs, labels)) is not None:
        found.append(Finding("advice", advice.text))
    elif out := left_out(runs, labels):
        found.append(Finding("warn", f"no two runs to choose between: {out}"))
    found += [_losses(runs, labels), *_sameness(runs)]
    found += [Finding("ok", line) for line in share_lines(runs, labels)]
    return [*found, *(_against_theory(label, run) for label, run in zip(labels, runs, strict=True))]


def _losses(runs: Sequence[RunView], labels: Sequence[str]) -> Finding:
    said = losses_word(runs)
    gone = [(label, found) for label, run in zip(labels, runs, strict=True) if (found := lost(run))]
    parts = [f"{label} has no number ({found.word}) {found.when}" for label, found in gone]
    verdict = equivalence(runs)
    if steps := verdict["steps_compared"]:
        parts.append(
            f"largest difference {fmt.number(verdict['loss_max_abs_diff'], 2)} over {count(steps, 'step')},"
            f" tolerance {verdict['tolerance']:g}"
        )
    else:
        parts.append("no step has a number in all runs")
    return said._replace(text=f"{said.text}: {'; '.join(parts)}")


def losses_word(runs: Sequence[RunView]) -> Finding:
    """What the losses of these runs do against the first one's, in a few words: the one place that says it."""
    agrees = equivalence(runs)["agrees"]
    gone = [found for run in runs if (found := lost(run))]
    if agrees is False:
        return Finding("bad", "losses differ")
    if any(found.still for found in gone):
        return Finding("bad", "losses are no numbers any more")
    if agrees is None:
        yet = " yet" if any(run.ended is None for run in runs) else ""
        return Finding("bad" if gone else "note", f"losses cannot be compared{yet}")
    return Finding("warn", "losses agree where they are numbers") if gone else Finding("ok", "losses agree")


def _sameness(runs: Sequence[RunView]) -> list[Finding]:
    """Whether it is one training, and what is not the same."""
    checks = comparability(runs)
    same, unknown = ([check["subject"] for check in checks if check["same"] is wanted] for wanted in (True, None))
    found = []
    if same or unknown:
        text = f"same {', '.join(same)}" if same else ""
        text += f"{'; ' if same else ''}not known of all runs: {', '.join(unknown)}" if unknown else ""
        found.append(Finding("note" if unknown else "ok", text))
    for severity, differing in (("warn", differences(runs)), ("note", settings(runs))):
        for key, values in differing.items():
            words = ", ".join(fmt.UNKNOWN if value is None else str(value) for value in values)
            found.append(Finding(severity, f"{WORDS.get(key, key)} differ{'' if key in PLURAL else 's'}: {words}"))
    return found


WORDS = {"params": "parameters", "batch": "global batch", "lr": "learning rate"}
PLURAL = ("params", "ranks", "arguments")


def match(measured: float | None, expected: float | None) -> str:
    """How a measurement stands to theory: "ok", "warn", "bad"; "note" where one of them is not known."""
    if measured is None or expected is None:
        return "note"
    off = abs(measured - expected)
    return "ok" if off <= CLOSE * expected else "warn" if off <= NEAR * expected else "bad"


def mark(severity: str) -> str:
    """What stands beside a measurement: ✓ matches, ! is near, ✗ is not, ? is not known."""
    return {"ok": "✓", "warn": "!", "bad": "✗", "note": "?"}[severity]


def _against_theory(label: str, run: RunView) -> Finding:
    said = theory(run)
    states, traffic = said["model_states"], said["communication"]
    parts = [f"model states {_beside(states)}"]
    severities = [match(states["measured"], states["expected"])]
    if traffic is not None:
        parts.append(f"communication {_beside(traffic['moved'])}, {times(traffic)} the parameters")
        severities.append(match(traffic["moved"]["measured"], traffic["moved"]["expected"]))
    elif run.world_size == 1:
        parts.append("one rank communicates nothing")
    else:
        parts.append("communication: no theory, or nothing measured yet")
        severities.append("note")
    worst = max(severities, key=("ok", "note", "warn", "bad").index)
    return Finding(worst, f"{label} against theory: {'; '.join(parts)}")


def _beside(pair: dict[str, int | None]) -> str:
    """A measurement with what theory says, and how far apart they are."""
    measured, expected = pair["measured"], pair["expected"]
    return f"{fmt.size(measured)} of {fmt.size(expected)}" + (
        f" ({fmt.change(measured, expected)})" if expected else ""
    )


def times(traffic: dict[str, Any]) -> str:
    """What is moved, in times the parameters: "3.00 times"."""
    whole = traffic["parameters_bytes"]
    return f"{traffic['moved']['measured'] / whole:.2f} times" if whole else fmt.UNKNOWN


# As text and Markdown


def as_text(runs: Sequence[RunView]) -> str:
    """Runs side by side as columns, the best of each row marked, and what there is to say of them."""
    header = ["", *told_apart([column_name(run) for run in runs])]
    lines = [table(header, _cells(runs, "{} *", "{}  ")), "", FOOTNOTE]
    return "\n".join([*lines, *(f"{one.mark} {one.text}" for one in findings(runs, header[1:]))])


def as_markdown(runs: Sequence[RunView]) -> str:
    """The same as a Markdown document."""
    labels = names(runs)
    lines = [
        f"# {' · '.join(labels)}",
        "",
        f"| | {' | '.join(map(_plain, labels))} |",
        "| --- |" + " ---: |" * len(runs),
    ]
    lines += [f"| {row[0]} | {' | '.join(map(_plain, row[1:]))} |" for row in _cells(runs, "**{}**", "{}")]
    for name, pairs in theory_rows(runs):
        lines.append(f"| {name}, by theory | {' | '.join(map(fmt.size, (expected for expected, _ in pairs)))} |")
    lines += ["", "**best of its row**, or as good; memory of the fullest rank, times and bytes per step and rank.", ""]
    lines += [f"- {one.mark} {_plain(one.text)}" for one in findings(runs, labels)]
    lines += ["", "| run | id | state | steps |", "| --- | --- | --- | ---: |"]
    for label, run in zip(labels, runs, strict=True):
        run_id = run.launched.run_id if run.launched else fmt.UNKNOWN
        lines.append(f"| {_plain(label)} | `{run_id}` | {run.state} | {run.steps:,} |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Text as Markdown prints it: what marks up is escaped, but for the bold of a best cell."""
    if text.startswith("**") and text.endswith("**"):
        return f"**{_plain(text[2:-2])}**"
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in text)


def _cells(runs: Sequence[RunView], best: str, other: str) -> list[list[str]]:
    """A row per metric, its name first; the best of a row, and what cannot be told apart from it, in their form."""
    kinds = {name: unit for name, unit, _, _ in METRICS}
    rows = []
    for row in metrics(runs):
        cells = (amount(value, kinds[row["metric"]]) for value in row["values"])
        rows.append(
            [
                LABELS[row["metric"]],
                *((best if at in row["alike"] else other).format(cell) for at, cell in enumerate(cells)),
            ]
        )
    return rows


def theory_rows(runs: Sequence[RunView]) -> list[tuple[str, list[tuple[int | None, int | None]]]]:
    """By what theory speaks of: (expected, measured) of each run; what no run has to do is left out."""
    told = [theory(run) for run in runs]
    rows = [("model states", [(one["model_states"]["expected"], one["model_states"]["measured"]) for one in told])]
    for name, label in TRAFFIC.items():
        pairs = [
            (None, None) if (said := one["communication"]) is None else (said[name]["expected"], said[name]["measured"])
            for one in told
        ]
        if any(expected or measured for expected, measured in pairs):
            rows.append((label, pairs))
    return rows


TRAFFIC = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "moved": "moved in all",
}


# As a picture

WIDE, PAD, LINE, CHAR = 1060, 20, 20, 7.3
"""Pixels: of the picture, around it, of a line of text, of a character."""


class _Picture:
    """SVG from the top down."""

    def __init__(self) -> None:
        theme = next(theme for theme in THEMES if theme.name == "fsdp-light")
        self._colors = theme.variables
        self._parts: list[str] = []
        self.y = PAD + 4.0

    def text(
        self, x: float, y: float, text: str, role: str = "label", *, anchor: str = "start", bold: bool = False
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{self._colors[role]}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, role: str) -> None:
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}" fill="{self._colors[role]}"/>'
        )

    def line(self, points: Sequence[tuple[float, float]], role: str, width: float = 1.6) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{self._colors[role]}" stroke-width="{width}" stroke-linejoin="round"/>'
        )

    def heading(self, text: str) -> None:
        self.y += LINE * 0.6
        self.text(PAD, self.y, text, "strong", bold=True)
        self.y += LINE

    def done(self) -> str:
        height = self.y + PAD
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {height:.0f}" width="{WIDE}" height="{height:.0f}"'
            ' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12" xml:space="preserve">\n'
            f'<rect width="{WIDE}" height="{height:.0f}" fill="#ffffff"/>\n' + "\n".join(self._parts) + "\n</svg>\n"
        )


def as_svg(runs: Sequence[RunView]) -> str:
    """The same as one picture: memory, numbers beside theory, losses and step times, and what there is to say."""
    picture, labels = _Picture(), names(runs)
    _draw_memory(picture, runs)
    _draw_numbers(picture, runs, labels)
    half = (WIDE - 3 * PAD) / 2
    top = picture.y
    _draw_lines(picture, "loss", runs, PAD, half, [run.series.loss for run in runs], fmt.number)
    picture.y = top
    _draw_lines(
        picture,
        "step time",
        runs,
        2 * PAD + half,
        half,
        [run.series.step_ns[1:] for run in runs],
        fmt.duration,
        first=1,
    )
    picture.heading("what there is to say")
    for one in findings(runs, labels):
        role = "ok" if one.severity == "advice" else one.severity
        for at, line in enumerate(textwrap.wrap(one.text, int((WIDE - 3 * PAD) / CHAR))):
            if not at:
                picture.text(PAD, picture.y, one.mark, role, bold=True)
            picture.text(PAD + 20, picture.y, line)
            picture.y += LINE
    return picture.done()


def _draw_memory(picture: _Picture, runs: Sequence[RunView]) -> None:
    bars = run_bars(runs, None)
    picture.heading(f"memory of the fullest rank at the peak of a step · {bars.unit.name}")
    left, right = PAD + CHAR * (2 + max(map(len, bars.labels))), WIDE - PAD - CHAR * 26
    per_byte = (right - left) / bars.scale_bytes if bars.scale_bytes else 0.0
    for at, label in enumerate(bars.labels):
        y, x = picture.y - 13, left
        picture.text(PAD, picture.y, label, "strong")
        picture.box(left, y, right - left, 17, "free")
        for group, nbytes in zip(GROUPS, bars.groups[at].tolist(), strict=True):
            wide = nbytes * per_byte if np.isfinite(nbytes) else 0.0
            picture.box(x, y, wide, 17, group.role)
            if wide > 10:
                picture.text(x + wide / 2, picture.y, group.key, "free", anchor="middle")
            x += wide
        if np.isfinite(bars.ideal[at]):
            picture.box(left + bars.ideal[at] * per_byte - 1.5, y - 2, 3, 21, "ideal")
        if np.isfinite(bars.peak[at]):
            picture.box(left + bars.peak[at] * per_byte - 0.5, y, 1, 17, "peak")
        peak, states = (fmt.in_unit(value, bars.unit) for value in (bars.peak[at], _states(runs[at])))
        picture.text(WIDE - PAD, picture.y, f"peak {peak}  states {states}", anchor="end")
        picture.y += 24
    x = left
    for group in GROUPS:
        picture.box(x, picture.y - 10, 10, 10, group.role)
        picture.text(x + 15, picture.y, f"{group.key} {group.label}", "quiet")
        x += 15 + CHAR * (len(group.label) + 4)
    picture.y += LINE
    picture.text(
        left,
        picture.y,
        "bar: newest step looked at · thick line: states by theory · thin line, peak: highest so far"
        f" · right edge {fmt.size(bars.scale_bytes)}",
        "quiet",
    )
    picture.y += LINE


def _draw_numbers(picture: _Picture, runs: Sequence[RunView], labels: Sequence[str]) -> None:
    picture.heading("numbers")
    first = PAD + 200
    step = (WIDE - PAD - first) / len(runs)

    def row(name: str, cells: Sequence[tuple[str, str]], role: str = "label", *, bold: bool = False) -> None:
        picture.text(PAD, picture.y, name, role)
        for at, (cell, ink) in enumerate(cells, 1):
            picture.text(first + at * step, picture.y, cell, ink, anchor="end", bold=bold or cell.endswith("*"))
        picture.y += LINE

    room = max(4, int(step / CHAR) - 1)
    row("", [(fmt.fit(label, min(room, len(label))), "strong") for label in labels], bold=True)
    for name, *cells in _cells(runs, "{} *", "{}  "):
        row(name, [(cell, "ok" if cell.endswith("*") else "label") for cell in cells])
    picture.y += LINE / 2
    for name, pairs in theory_rows(runs):
        beside = [
            (
                f"{fmt.size(expected)} {mark(match(measured, expected))} {fmt.change(measured, expected) if expected else ''}".rstrip(),
                match(measured, expected),
            )
            for expected, measured in pairs
        ]
        row(f"theory: {name}", beside, "quiet")
    picture.text(PAD, picture.y, f"{FOOTNOTE}; beside theory: what was measured, against it", "quiet")
    picture.y += LINE


def _draw_lines(
    picture: _Picture,
    title: str,
    runs: Sequence[RunView],
    x: float,
    width: float,
    series: Sequence[np.ndarray[Any, np.dtype[np.float64]]],
    say: Callable[[float], str],
    first: int = 0,
) -> None:
    """One chart: a line per run over its steps."""
    picture.y += LINE * 0.6
    picture.text(x, picture.y, title, "strong", bold=True)
    top, bottom = picture.y + 12, picture.y + 150
    left, right = x + CHAR * 9, x + width
    known = [values[np.isfinite(values)] for values in series]
    every = np.concatenate(known) if known else np.empty(0)
    picture.box(left, bottom, right - left, 1, "frame")
    picture.box(left, top, 1, bottom - top, "frame")
    if every.size:
        # A single slow step must not flatten all the others.
        low, high = float(every.min()), float(np.percentile(every, 99))
        high = high if high > low else low + 1.0
        last = max(int(run.series.steps[-1]) for run in runs if len(run.series.steps))
        for value, y in ((high, top + 8), (low, bottom)):
            picture.text(left - 6, y, say(value), "quiet", anchor="end")
        picture.text(right, bottom + 16, f"step {last:,}", "quiet", anchor="end")
        for at, (run, values) in enumerate(zip(runs, series, strict=True)):
            steps = run.series.steps[first:]
            points = [
                (
                    left + (right - left) * step / max(1, last),
                    bottom - (bottom - top) * (min(value, high) - low) / (high - low),
                )
                for step, value in zip(steps.tolist(), values.tolist(), strict=True)
                if np.isfinite(value)
            ]
            picture.line(points, SERIES[at % len(SERIES)])
            picture.text(left + 8 + at * 26, top - 2, f"━{at + 1}", SERIES[at % len(SERIES)])
    else:
        picture.text(left + 8, top + 20, "no step has a number", "quiet")
    picture.y = bottom + LINE * 1.5


def as_json(runs: Sequence[RunView]) -> str:
    """The document of `compare --json`."""
    return json.dumps(compare(runs)) + "\n"


FORMATS: dict[str, Callable[[Sequence[RunView]], str]] = {"md": as_markdown, "svg": as_svg, "json": as_json}
"""By the ending of a file."""


# What the screen draws too


def names(runs: Sequence[RunView]) -> list[str]:
    """The number that each was marked with, and the strategy where all differ, else the name."""
    strategies = [run.effective or run.requested or run.script or fmt.UNKNOWN for run in runs]
    own = [run.name or strategy for run, strategy in zip(runs, strategies, strict=True)]
    chosen = strategies if len(set(strategies)) == len(runs) else own
    return [f"{at} {name}" for at, name in enumerate(chosen, 1)]


def fullest(run: RunView) -> RankView | None:
    """The rank with the highest peak so far."""
    return max(run.ranks, key=lambda rank: highest(rank) or 0, default=None)


def run_bars(runs: Sequence[RunView], cursor: int | None) -> Bars:
    """A bar per run: its fullest rank at the peak of the newest step looked at, its highest peak so far, and the states that
    theory gives it."""
    full = [fullest(run) for run in runs]
    device = any(rank is not None and rank.hello is not None and rank.hello.device.startswith("cuda") for rank in full)
    groups, whole = group_bytes([rank.peak or None if rank else None for rank in full], device=device)
    peak = np.array([worst(run, highest) for run in runs], dtype=float)
    ideal = np.array([run.ideal_state_bytes for run in runs], dtype=float)
    states = [_states(run) for run in runs]
    known = np.concatenate([whole[np.isfinite(whole)], peak[np.isfinite(peak)], ideal[np.isfinite(ideal)]])
    scale = round_scale(float(known.max()) if known.size else 0.0)
    unit = fmt.scale_for([scale])
    theory = [float("nan") if value is None else float(value) for value in (run.ideal_state_bytes for run in runs)]
    off = [fmt.change(value, run.ideal_state_bytes) for value, run in zip(states, runs, strict=True)]
    return Bars(
        labels=names(runs),
        groups=groups,
        total=whole,
        peak=peak,
        ideal=ideal,
        scale_bytes=scale,
        unit=unit,
        columns=[
            Column("peak", peak, essential=True),
            Column("states", [float("nan") if value is None else float(value) for value in states], essential=True),
            Column("theory", theory),
            Column("off", off),
        ],
        selected=cursor,
        heading="run",
        what="runs",
        ideal_label="states by theory",
    )


def _states(run: RunView) -> int | None:
    return worst(run, lambda rank: model_states(rank.memory))
