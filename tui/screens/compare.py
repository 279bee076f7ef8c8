"""Screen 5: two to six runs side by side, and what theory says of each."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from fsdp_tui.telemetry import sheets
from fsdp_tui.telemetry.report import metrics, theory
from fsdp_tui.telemetry.sheets import Sheet
from fsdp_tui.telemetry.spread import spread_of
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.comparison import (
    FOOTNOTE,
    FORMATS,
    TRAFFIC,
    findings,
    losses_word,
    mark,
    match,
    names,
    run_bars,
    theory_rows,
    times,
)
from fsdp_tui.tui.keys import COMPARE, bindings_of
from fsdp_tui.tui.screens.bands import Band, Zooming, fit_bands
from fsdp_tui.tui.screens.base import Text, title_of
from fsdp_tui.tui.screens.run import RankBars
from fsdp_tui.tui.source import Feed
from fsdp_tui.tui.tables import amount
from fsdp_tui.tui.theme import SERIES, Ink
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Row, crop
from fsdp_tui.tui.widgets.chrome import Header, HeaderFacts, Tabs, state_mark
from fsdp_tui.tui.widgets.spark import spark
from fsdp_tui.tui.widgets.table import GAP, Pane, Reader, Table, TableColumn, paragraph

T = TypeVar("T")
NEEDED = 2
ROWS = {
    "model_states": "model states",
    "peak": "peak",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "step_time": "step time",
    "exposed_communication": "exposed",
    "tokens_per_s": "tokens/s",
    "samples_per_s": "samples/s",
    "loss": "last loss",
}
PICK = (
    "Mark two to six runs with {runs.mark} on the Runs screen ({show.runs}), then come back with {show.compare}. The first one marked is the baseline;"
    " a strategy sweep (fsdp-tui sweep) makes runs that compare well: same model, data, batch and seed."
)


class CompareScreen(Zooming):
    """The marked runs."""

    KIND = COMPARE
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(COMPARE))

    def __init__(self) -> None:
        super().__init__()
        self.deltas = True
        self.baseline = 0
        self.cursor = 0
        self._feeds: dict[str, Feed] = {}
        self._drawn: tuple[object, ...] = ()
        self._drawn_runs: list[RunView] = []

    def body(self) -> Iterable[Widget]:
        yield VerticalScroll(
            RankBars(id="bars", classes="pane first"),
            Table(id="numbers", classes="pane"),
            Reader(id="said", classes="pane"),
            Pane(id="trends", classes="pane"),
            id="body",
            can_focus=False,
        )
        yield Reader(lambda width: self._write_pick(width), id="pick", classes="pane")
        yield Pane(id="status")

    def on_mount(self) -> None:
        self.query_one("#status").can_focus = False
        title_of(self.query_one("#numbers"), "numbers")
        title_of(self.query_one("#pick"), "compare")

    # Data

    def _follow(self) -> None:
        """One feed per marked run, and none for others."""
        marked = self.board.marked
        for run_id in [run_id for run_id in self._feeds if run_id not in marked]:
            self._feeds.pop(run_id).close()
        for run_id in marked:
            entry = next((entry for entry in self.board.entries if entry.id == run_id), None)
            if run_id not in self._feeds and entry is not None:
                self._feeds[run_id] = Feed(self.board.services, entry, 1.0, self.board.answering)

    def on_unmount(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def runs(self) -> list[RunView]:
        """Those that could be read, in the order in which they were marked."""
        feeds = [self._feeds[run_id] for run_id in self.board.marked if run_id in self._feeds]
        return [feed.latest.view for feed in feeds if feed.latest is not None]

    def sheets(self) -> Sequence[Sheet]:
        runs = self.runs()
        return [sheets.comparison(runs, names(runs))] if len(runs) >= NEEDED else ()

    def on_tick(self) -> None:
        if not self.ready:
            return
        self._follow()
        runs = self.runs()
        self.query_one(Header).show_facts(
            HeaderFacts(None, False, self.board.services.now_ns(), title="compare", about=same_text(runs))
        )
        key = (self.size, self.deltas, self.baseline, self.cursor, self.focused, self.zoomed, len(self._feeds))
        same = len(runs) == len(self._drawn_runs) and all(a is b for a, b in zip(runs, self._drawn_runs, strict=True))
        if same and key == self._drawn:
            return
        self._drawn_runs, self._drawn = runs, key
        enough = len(runs) >= NEEDED
        self.set_class(not enough, "-empty")
        if not enough:
            self.zoomed = None
            self.show_zoom()
            self.query_one("#pick", Reader).redraw()
            if self.focused is None or self.focused.id != "pick":
                self.set_focus(self.query_one("#pick"))
            self.query_one(Tabs).show_notes([])
            return
        if self.focused is not None and self.focused.id == "pick":
            self.focus_first()
        self.baseline = min(self.baseline, len(runs) - 1)
        self.cursor = min(self.cursor, len(runs) - 1)
        self.query_one(Tabs).show_notes([[(f"baseline: {names(runs)[self.baseline]}", Ink("ok"))]])
        room = self.query_one("#body").size.height or self.size.height - 4
        heights, below = fit_bands(self._bands(runs), room)
        if self.zoomed is not None and self.zoomed.id in heights:
            heights, below = heights | {self.zoomed.id: room}, []
        self.show_zoom()
        for name, height in heights.items():
            self.query_one(f"#{name}").styles.height = height
        self._draw(runs)
        hidden = {"said": "do they compare", "trends": "step times", "numbers": "numbers"}
        hint = f"   ▼ {', '.join(hidden[name] for name in below)}: {self.next_pane}" if below else ""
        losses = agreement(first_is(self.baseline, runs))
        self.query_one("#status", Pane).show(
            lambda width, height, letters: [crop([(" ", LABEL), *losses, (hint, Ink("ok"))], width)]
        )

    def _bands(self, runs: Sequence[RunView]) -> list[Band]:
        n = len(runs)
        return [
            Band("bars", 3 + n, 5 + 2 * n, 1),
            Band("numbers", 8, 3 + len(_lines(runs)), 6),
            Band("said", 5, 24, 3),
            Band("trends", 2 + n, 2 + n, 1),
        ]

    def _draw(self, runs: Sequence[RunView]) -> None:
        bars = self.query_one("#bars", RankBars)
        drawn = run_bars(runs, self.cursor if bars.has_focus else None)
        title_of(bars, f"memory of the fullest rank at the peak of a step · {drawn.unit.name}")
        bars.show_bars(drawn)
        self.query_one("#numbers", Table).show_columns(
            number_columns(runs, self.baseline, self.deltas, self.size.width - 2)
        )
        said = self.query_one("#said", Reader)
        title_of(said, "do they compare")
        said.show(lambda width: write_verdict(runs, self.baseline, width))
        trends = self.query_one("#trends", Pane)
        title_of(trends, "step time over the run, on one scale")
        trends.show(lambda width, height, letters: draw_trends(runs, width, height))

    def _write_pick(self, width: int) -> list[Row]:
        rows = paragraph(self.board.keyed(PICK), width)
        rows.append(crop([], width))
        for run_id in self.board.marked:
            feed = self._feeds.get(run_id)
            entry = next((entry for entry in self.board.entries if entry.id == run_id), None)
            name = entry.name if entry else run_id
            said = feed.error if feed and feed.error else "reading …" if feed and feed.latest is None else "marked"
            rows += paragraph(f"{name}: {said}", width, Ink("warn") if feed and feed.error else LABEL)
        return rows

    # Keys

    def action_formula(self) -> None:
        """What theory says of each, in full."""
        if len(runs := self.runs()) >= NEEDED:
            self.app.push_screen(Text("theory", lambda width: write_theory(runs, width)))

    def action_export(self) -> None:
        """Asks for a format and writes the comparison to a file."""
        if len(self.runs()) < NEEDED:
            self.app.notify("a comparison needs two runs: mark them on the Runs screen", severity="warning")
            return
        self.board.ask(
            "Write this comparison to a file?",
            [("escape", "no", ""), ("m", "Markdown", "md"), ("s", "SVG, a picture", "svg"), ("j", "JSON", "json")],
            lambda answer: self._export(answer) if answer else None,
        )

    def _export(self, form: str) -> None:
        runs = self.runs()
        order = first_is(self.baseline, runs)
        self.board.write_out(f"fsdp-tui-compare-{time.strftime('%H%M%S')}.{form}", FORMATS[form](order))

    def on_rank_bars_moved(self, event: RankBars.Moved) -> None:
        last = len(self.runs()) - 1
        self.cursor = max(0, min(last, event.to if event.to is not None else self.cursor + event.by))
        self.on_tick()

    def on_descendant_focus(self) -> None:
        self.on_tick()

    def action_baseline(self) -> None:
        if runs := self.runs():
            self.baseline = (self.baseline + 1) % len(runs)
            self.on_tick()

    def action_deltas(self) -> None:
        self.deltas = not self.deltas
        self.on_tick()

    def action_open(self) -> None:
        feeds = [
            self._feeds[run_id] for run_id in self.board.marked if run_id in self._feeds and self._feeds[run_id].latest
        ]
        if feeds and self.cursor < len(feeds):
            self.board.open_run(feeds[self.cursor].entry)


def first_is(at: int, all_of_them: Sequence[T]) -> list[T]:
    """One of them, the baseline, and then the others."""
    return [all_of_them[at], *all_of_them[:at], *all_of_them[at + 1 :]]


def same_text(runs: Sequence[RunView]) -> str:
    """What all runs share, for the header."""
    if not runs:
        return ""
    options = [run.launched.options if run.launched else {} for run in runs]
    parts = []
    for key in ("model", "batch", "seq", "precision"):
        values = {str(option.get(key, "")) for option in options}
        if len(values) == 1 and (value := values.pop()) not in ("", "None"):
            parts.append(value if key in ("model", "precision") else f"{key} {value}")
    return " · ".join([f"{len(runs)} runs", *parts])


class _Line(NamedTuple):
    """One row of the numbers."""

    name: str
    unit: str
    values: Sequence[float | None]
    alike: Collection[int] = ()
    """Indices of the best, and of those that cannot be told apart from it."""
    theory: Sequence[float | None] = ()
    """What the values are measured against; then the row says how far they are from it."""


def _lines(runs: Sequence[RunView]) -> list[_Line]:
    """What there is to compare, theory below what it speaks of; rows that are 0 or not known in all runs are left out."""
    told = dict(theory_rows(runs))
    lines = []
    for row in metrics(runs):
        metric, values = row["metric"], row["values"]
        if metric in TRAFFIC and not any(values):
            continue
        lines.append(_Line(ROWS.get(metric, metric), row["unit"], values, row["alike"]))
        if metric == "model_states":
            lines.append(_theory_line("  vs theory", told["model states"]))
        if metric == "all_reduce" and TRAFFIC["moved"] in told:
            lines.append(_theory_line("  vs theory", told[TRAFFIC["moved"]]))
    if TRAFFIC["moved"] in told and not any(line.name == ROWS["all_reduce"] for line in lines):
        at = max(at for at, line in enumerate(lines) if line.name in (ROWS["all_gather"], ROWS["reduce_scatter"]))
        lines.insert(at + 1, _theory_line("  vs theory", told[TRAFFIC["moved"]]))
    return lines


def _theory_line(name: str, pairs: Sequence[tuple[int | None, int | None]]) -> _Line:
    return _Line(name, "", [measured for _, measured in pairs], theory=[expected for expected, _ in pairs])


def number_columns(runs: Sequence[RunView], baseline: int, deltas: bool, width: int) -> list[TableColumn]:
    """A row per metric, a column per run; differences to the baseline where asked and where there is room for them. Where
    there is hardly any, the unit of a row stands in its name."""
    lines = _lines(runs)
    labels = [f"{state_mark(run.state).glyph} {name}" for run, name in zip(runs, names(runs), strict=True)]
    room = (width - max(len(line.name) for line in lines)) // len(runs) - GAP
    short = room < 11
    units = [_unit_of(line) if short and line.unit in UNITS else None for line in lines]
    words = [
        f"{line.name} {unit.name}".rstrip() if unit else line.name for line, unit in zip(lines, units, strict=True)
    ]
    room = (width - max(map(len, words))) // len(runs) - GAP
    with_deltas = deltas and room >= 18
    columns = [TableColumn("", words, left=True)]
    for at, label in enumerate(labels):
        cells: list[tuple[str, Ink]] = []
        for line, unit in zip(lines, units, strict=True):
            value, base = line.values[at], line.values[baseline]
            if line.theory:
                cells.append(
                    _theory_cell(value, line.theory[at], padded=" " * 9 if with_deltas and at != baseline else "")
                )
                continue
            best = at in line.alike
            text = (fmt.in_unit(value, unit) if unit else amount(value, line.unit)) + ("*" if best else " ")
            if with_deltas and at != baseline:
                # Of one width, so that numbers stand under numbers and differences under differences.
                text = f"{text}{difference(value, base) if value is not None and base and line.unit else '':>9}"
            cells.append((text, Ink("ok", bold=True) if best else LABEL))
        widest = max(len(text) for text, _ in cells)
        columns.append(
            TableColumn(
                label if len(label) <= room else fmt.fit(label, max(widest, room)),
                cells,
                need=0 if at == baseline else at + 1,
            )
        )
    return columns


def _unit_of(line: _Line) -> fmt.Unit:
    """One unit for a row, with two digits after the point where its small values need them."""
    unit = fmt.scale_for(line.values, UNITS[line.unit])
    small = any(0 < value < 10 * unit.size for value in line.values if value is not None)
    return unit._replace(decimals=2) if small and unit.size > 1 else unit


UNITS = {"bytes": fmt.BYTES, "ns": fmt.NANOSECONDS, "tokens/s": fmt.ONES, "samples/s": fmt.ONES}


def _theory_cell(measured: float | None, expected: float | None, padded: str) -> tuple[str, Ink]:
    """How far a measurement is from theory, with its mark."""
    severity = match(measured, expected)
    glyph = mark(severity)
    if not expected and measured is not None:  # nothing is to be moved, and nothing is
        return f"{glyph} {fmt.count(measured)} {padded}", Ink(severity)
    return f"{glyph} {fmt.change(measured, expected)} {padded}", Ink(severity)


def difference(value: float, base: float) -> str:
    """As a percentage, and as a multiple where that says more: "−36.8 %", "×320"."""
    return f"×{value / base:,.0f}" if value / base >= 10 else fmt.change(value, base)


def write_verdict(runs: Sequence[RunView], baseline: int, width: int) -> list[Row]:
    """The advice, whether it is one training, what differs, and what theory says of each run."""
    rows: list[Row] = []
    for one in findings(first_is(baseline, runs), first_is(baseline, names(runs))):
        role = "ok" if one.severity == "advice" else one.severity
        rows += paragraph(one.text, width, first=[(f"{one.mark} ", Ink(role, bold=True))])
    return rows + paragraph(FOOTNOTE, width, QUIET)


def write_theory(runs: Sequence[RunView], width: int) -> list[Row]:
    """What theory says of each run, beside what was measured, and how it is worked out."""
    rows = paragraph(THEORY, width, QUIET)
    by_theory = theory_rows(runs)
    for at, (name, run) in enumerate(zip(names(runs), runs, strict=True)):
        said = theory(run)["communication"]
        ranks = f"{run.world_size:,} rank{'s' if run.world_size != 1 else ''}"
        rows += [crop([], width), crop([(name, STRONG), (f"  {ranks}", QUIET)], width)]
        for label, pairs in by_theory:
            expected, measured = pairs[at]
            severity = match(measured, expected)
            row: Row = [
                (f"  {mark(severity)} ", Ink(severity, bold=True)),
                (f"{label:<15}", LABEL),
                (f"{fmt.size(measured):>11} {'measured' if width >= THEORY_WORDS else 'of'}", LABEL),
                (f"{fmt.size(expected):>11}{' by theory' if width >= THEORY_WORDS else ''}", LABEL),
                (f"  {fmt.change(measured, expected) if expected else ''}", Ink(severity)),
            ]
            rows.append(crop(row, width))
        if said is not None:
            passes = (
                f"{said['forwards']} forward and {said['backwards']} backward per step, {said['reducing_backwards']} of which"
                f" reduces; {fmt.size(said['parameters_bytes'])} of parameters: {times(said)} of them are moved"
            )
            rows += paragraph(passes, width, QUIET, first=[("    ", QUIET)])
    return rows


THEORY_WORDS = 70
"""Cells from which on measured and theory's figures are called so."""
THEORY = (
    "Model states: parameters, gradients and optimizer state, whole for single and DDP, cut into equal parts for FSDP (by groups"
    " for a hybrid). Communication per step and rank: each unit is all-gathered once per forward, once more per backward unless"
    " its parameters were kept, and reduce-scattered once per backward that reduces; DDP all-reduces the gradients of all"
    " parameters. Bytes are of the gathered or reduced type with padding: gathered output, reduce input. Moved in all counts an"
    " all-reduce twice, as a reduce-scatter and an all-gather. ✓ within 5 %, ! within 15 %, ✗ further away, ? not known."
)


def agreement(runs: Sequence[RunView]) -> Row:
    """Whether the losses agree with the first run's, in the words that the pane begins with."""
    said = losses_word(runs)
    return [(f"{said.mark} {said.text}", Ink(said.severity, bold=said.severity == "bad"))]


def draw_trends(runs: Sequence[RunView], width: int, height: int) -> list[Row]:
    """A line per run: its step times without the first step, highest of those that share a cell; the median of the newest, as in
    the numbers, and what they vary by."""
    label = min(max(map(len, names(runs)), default=0), max(6, width // 3))
    series = [run.series.step_ns[1:] for run in runs]
    known = [values[np.isfinite(values) & (values > 0)] for values in series]
    spreads = [spread_of(run.series.step_ns) for run in runs]
    numbers = [
        f"{fmt.duration(one.median)} ± {fmt.duration(one.half)}" if one is not None else fmt.UNKNOWN for one in spreads
    ]
    room = max(0, width - label - 2 - max(map(len, numbers), default=0) - 2)
    everything = np.concatenate(known) if known else np.empty(0)
    # A single slow step must not flatten all the others.
    low, high = (float(everything.min()), float(np.percentile(everything, 99))) if everything.size else (0.0, 1.0)
    rows: list[Row] = []
    for at, (name, values, said) in enumerate(zip(names(runs), series, numbers, strict=True)):
        line = spark(np.where(values > 0, values, np.nan), room, low=low, high=max(high, low + 1.0))
        rows.append(
            crop(
                [
                    (f"{fmt.fit(name, label)}  ", STRONG),
                    (line.ljust(room), Ink(SERIES[at % len(SERIES)])),
                    (f"  {said}", QUIET),
                ],
                width,
            )
        )
    return rows[:height]
