"""Screen 5: two to six runs side by side, and what theory says of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from fsdp_tui.telemetry.advice import advise
from fsdp_tui.telemetry.report import METRICS, compare
from fsdp_tui.telemetry.view import RankView, RunView, model_states, total
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.keys import COMPARE, bindings_of
from fsdp_tui.tui.screens.bands import Band, fit_bands
from fsdp_tui.tui.screens.base import View, title_of
from fsdp_tui.tui.screens.run import RankBars
from fsdp_tui.tui.source import Feed
from fsdp_tui.tui.tables import amount, share_lines
from fsdp_tui.tui.theme import SERIES, Ink
from fsdp_tui.tui.widgets.bars import Bars, Column, group_bytes, round_scale
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Row, crop
from fsdp_tui.tui.widgets.chrome import Header, HeaderFacts, Tabs, state_mark
from fsdp_tui.tui.widgets.spark import spark
from fsdp_tui.tui.widgets.table import GAP, Pane, Reader, Table, TableColumn, paragraph

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
    "Mark two to six runs with space on the Runs screen (0), then come back with 5. The first one marked is the baseline;"
    " a strategy sweep (fsdp-tui sweep) makes runs that compare well: same model, data, batch and seed."
)


class CompareScreen(View):
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
                self._feeds[run_id] = Feed(self.board.services, entry, 1.0)

    def on_unmount(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def runs(self) -> list[RunView]:
        """Those that could be read, in the order in which they were marked."""
        feeds = [self._feeds[run_id] for run_id in self.board.marked if run_id in self._feeds]
        return [feed.latest.view for feed in feeds if feed.latest is not None]

    def on_tick(self) -> None:
        if not self.ready:
            return
        self._follow()
        runs = self.runs()
        self.query_one(Header).show_facts(
            HeaderFacts(None, False, self.board.services.now_ns(), title="compare", about=same_text(runs))
        )
        key = (self.size, self.deltas, self.baseline, self.cursor, self.focused, len(self._feeds))
        same = len(runs) == len(self._drawn_runs) and all(a is b for a, b in zip(runs, self._drawn_runs, strict=True))
        if same and key == self._drawn:
            return
        self._drawn_runs, self._drawn = runs, key
        enough = len(runs) >= NEEDED
        self.set_class(not enough, "-empty")
        if not enough:
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
        heights, below = fit_bands(self._bands(runs), self.query_one("#body").size.height or self.size.height - 4)
        for name, height in heights.items():
            self.query_one(f"#{name}").styles.height = height
        self._draw(runs)
        hidden = {"said": "do they compare", "trends": "step times", "numbers": "numbers"}
        hint = f"   ▼ {', '.join(hidden[name] for name in below)}: tab" if below else ""
        losses = agreement(runs)
        self.query_one("#status", Pane).show(
            lambda width, height, letters: [crop([(" ", LABEL), *losses, (hint, Ink("ok"))], width)]
        )

    def _bands(self, runs: Sequence[RunView]) -> list[Band]:
        n = len(runs)
        return [
            Band("bars", 3 + n, 5 + 2 * n, 1),
            Band("numbers", 1 + len(METRICS), 2 + len(METRICS), 3),
            Band("said", 5, 14, 3),
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
        rows = paragraph(PICK, width)
        rows.append(crop([], width))
        for run_id in self.board.marked:
            feed = self._feeds.get(run_id)
            entry = next((entry for entry in self.board.entries if entry.id == run_id), None)
            name = entry.name if entry else run_id
            said = feed.error if feed and feed.error else "reading …" if feed and feed.latest is None else "marked"
            rows += paragraph(f"{name}: {said}", width, Ink("warn") if feed and feed.error else LABEL)
        return rows

    # Keys

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


def names(runs: Sequence[RunView]) -> list[str]:
    """The number that each was marked with, and the strategy where all differ, else the name."""
    strategies = [run.effective or run.requested or run.script or fmt.UNKNOWN for run in runs]
    own = [run.name or strategy for run, strategy in zip(runs, strategies, strict=True)]
    chosen = strategies if len(set(strategies)) == len(runs) else own
    return [f"{at} {name}" for at, name in enumerate(chosen, 1)]


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


def fullest(run: RunView) -> RankView | None:
    """The rank with the highest peak."""
    return max(run.ranks, key=lambda rank: total(rank.peak) or 0, default=None)


def run_bars(runs: Sequence[RunView], cursor: int | None) -> Bars:
    """A bar per run: its fullest rank at the peak, and the states that theory gives it."""
    full = [fullest(run) for run in runs]
    device = any(rank is not None and rank.hello is not None and rank.hello.device.startswith("cuda") for rank in full)
    groups, whole = group_bytes([rank.peak or None if rank else None for rank in full], device=device)
    peak = np.array([rank.highest_bytes if rank else None for rank in full], dtype=float)
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
            Column("peak", whole, essential=True),
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
    held = [model_states(rank.memory) for rank in run.ranks]
    known = [value for value in held if value is not None]
    return max(known) if known and len(known) == len(held) else None


def number_columns(runs: Sequence[RunView], baseline: int, deltas: bool, width: int) -> list[TableColumn]:
    """A row per metric, a column per run; differences to the baseline where asked and where there is room for them."""
    document = compare(runs)
    words = [ROWS.get(row["metric"], row["metric"]) for row in document["rows"]]
    labels = [f"{state_mark(run.state).glyph} {name}" for run, name in zip(runs, names(runs), strict=True)]
    room = (width - max(map(len, words))) // len(runs) - GAP
    with_deltas = deltas and room >= 18
    columns = [TableColumn("", words, left=True)]
    for at, label in enumerate(labels):
        cells: list[tuple[str, Ink]] = []
        for row in document["rows"]:
            value, values = row["values"][at], row["values"]
            text = amount(value, row["unit"])
            best = row["best"] is not None and value == values[row["best"]]
            mark = "*" if best else " "
            if with_deltas and at != baseline:
                # Of one width, so that numbers stand under numbers and differences under differences.
                known = value is not None and values[baseline] and row["metric"] != "loss"
                text = f"{text}{mark}{difference(value, values[baseline]) if known else '':>9}"
            else:
                text += mark
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


def difference(value: float, base: float) -> str:
    """As a percentage, and as a multiple where that says more: "−36.8 %", "×320"."""
    return f"×{value / base:,.0f}" if value / base >= 10 else fmt.change(value, base)


def write_verdict(runs: Sequence[RunView], baseline: int, width: int) -> list[Row]:
    """Loss agreement, what differs besides the strategy, and the share of the states that each run keeps."""
    order = [runs[baseline], *(run for at, run in enumerate(runs) if at != baseline)]
    document = compare(order)
    rows: list[Row] = []
    labels = names(runs)
    order_names = [labels[baseline], *(label for at, label in enumerate(labels) if at != baseline)]
    if (advice := advise(order, order_names)) is not None:
        rows += paragraph(advice.text, width, first=[("→ ", Ink("ok", bold=True))])
    verdict = document["equivalence"]
    if verdict["agrees"] is None:
        rows += paragraph(
            "losses cannot be compared yet: no step has one in all runs",
            width,
            QUIET,
            first=[("? ", Ink("note", bold=True))],
        )
    else:
        good = bool(verdict["agrees"])
        rows += paragraph(
            f"losses {'agree' if good else 'differ'}: largest difference {fmt.number(verdict['loss_max_abs_diff'], 2)}"
            f" over {verdict['steps_compared']:,} steps, tolerance {verdict['tolerance']:g}",
            width,
            first=[("✓ " if good else "▲ ", Ink("ok" if good else "bad", bold=True))],
        )
    for key, values in document["differences"].items():
        if key == "nproc":
            continue
        said = ", ".join(fmt.UNKNOWN if value is None else str(value) for value in values)
        rows += paragraph(f"{key} differs: {said}", width, first=[("! ", Ink("warn", bold=True))])
    # A share of another model's states would say nothing.
    for line in share_lines([run for run in order if run.params == order[0].params]):
        rows += paragraph(line, width, first=[("✓ ", Ink("ok", bold=True))])
    rows += paragraph("* best of its row; memory of the fullest rank, times and bytes per step and rank", width, QUIET)
    return rows


def agreement(runs: Sequence[RunView]) -> Row:
    """Whether the losses agree, in two words."""
    agrees = compare(runs)["equivalence"]["agrees"]
    if agrees is None:
        return [("? losses not comparable yet", Ink("note"))]
    return [("✓ losses agree", Ink("ok"))] if agrees else [("▲ losses differ", Ink("bad", bold=True))]


def draw_trends(runs: Sequence[RunView], width: int, height: int) -> list[Row]:
    """A line per run: its step times without the first step, highest of those that share a cell."""
    label = min(max(map(len, names(runs)), default=0), max(6, width // 3))
    series = [run.series.step_ns[1:] for run in runs]
    known = [values[np.isfinite(values) & (values > 0)] for values in series]
    numbers = [
        f"{fmt.duration(np.median(v))} ± {fmt.duration((np.percentile(v, 75) - np.percentile(v, 25)) / 2)}"
        if v.size
        else fmt.UNKNOWN
        for v in known
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
