"""What drawing costs: CPU ms per refresh of each chart, in an app without a terminal, when every value changes.

At 10 refreshes a second a millisecond is one percent of a core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import numpy as np
from textual.app import App, ComposeResult

from fsdp_tui.telemetry.messages import CATEGORIES, Capture
from fsdp_tui.tui.theme import ROLES
from fsdp_tui.tui.widgets.bars import MemoryBars, rank_bars
from fsdp_tui.tui.widgets.chart import Chart
from fsdp_tui.tui.widgets.lines import LineChart, Plot, Series
from fsdp_tui.tui.widgets.timeline import Look, StepTimeline, at_column, time_zoomed, timeline_of, whole_step

SIZE = (120, 30)


class Bench(App[None]):
    """One chart on the whole screen."""

    def __init__(self, chart: Chart) -> None:
        super().__init__()
        self.chart = chart

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(ROLES)

    def compose(self) -> ComposeResult:
        yield self.chart


async def cost_ms(chart: Chart, change: Callable[[int], None], refreshes: int, size: tuple[int, int] = SIZE) -> float:
    """CPU ms per refresh; the compositor's part is in it, the terminal's is not."""
    async with Bench(chart).run_test(size=size) as pilot:
        for tick in range(5):
            change(tick)
            await pilot.pause()
        begin = time.process_time()
        for tick in range(refreshes):
            change(tick)
            chart.screen._compositor.render_strips()
        spent = time.process_time() - begin
    return spent / refreshes * 1000


def run(refreshes: int = 50) -> Iterator[str]:
    """A line per chart and size."""
    rng = np.random.default_rng(1)
    for n in (8, 64, 256, 1024):
        bars = MemoryBars()
        frames = []
        for _ in range(8):
            memory = (rng.uniform(0.5, 1.5, (n, len(CATEGORIES))) * 2**31).astype(int).tolist()
            frames.append([[*row, sum(row[:10])] for row in memory])

        def change(tick: int, bars: MemoryBars = bars, frames: list[list[list[int]]] = frames, n: int = n) -> None:
            memory = frames[tick % len(frames)]
            peaks = [2 * row[-1] for row in memory]
            bars.show_bars(rank_bars(range(n), memory, peak_bytes=peaks, capacity_bytes=80 * 2**30, device=True))

        yield (f"memory bars {n:>5} ranks   {asyncio.run(cost_ms(bars, change, refreshes)):6.2f} ms")
    for series, points in ((1, 1000), (3, 1000), (1, 100_000)):
        chart = LineChart()
        x = np.arange(float(points))
        values = [[rng.normal(size=points) for _ in range(series)] for _ in range(8)]

        def plot(
            tick: int, chart: LineChart = chart, x: np.ndarray = x, values: list[list[np.ndarray]] = values
        ) -> None:
            chart.show_plot(Plot(series=[Series(x, y) for y in values[tick % len(values)]]))

        yield (f"line chart {series} x {points:>7}  {asyncio.run(cost_ms(chart, plot, refreshes)):6.2f} ms")
    yield from timelines(refreshes, rng)


def timelines(refreshes: int, rng: np.random.Generator, events: int = 20_000) -> Iterator[str]:
    """A captured step of many events on a large screen: the cursor moves, or time is zoomed, which draws all anew."""
    timeline = timeline_of(busy_capture(rng, events))
    whole = whole_step(timeline)
    for what, look_of in (
        ("cursor moves", lambda tick: at_column(timeline, whole, tick, 100)),
        ("time zooms", lambda tick: time_zoomed(timeline, whole, 2 ** (tick % 8))),
    ):
        chart = StepTimeline()

        def show(tick: int, chart: StepTimeline = chart, look_of: Callable[[int], Look] = look_of) -> None:
            chart.show_timeline(timeline, look_of(tick))

        yield (
            f"step of {events} events, 200x60, {what:<12}  {asyncio.run(cost_ms(chart, show, refreshes, (200, 60))):6.2f} ms"
        )


def busy_capture(rng: np.random.Generator, events: int) -> Capture:
    """As many events as operators, and 500 collectives, over 400 ms."""
    at, calls = np.sort(rng.integers(0, 400_000_000, events)).tolist(), 500
    base: list[int | None] = [2**30] * 10 + [None] * 3 + [10 * 2**30]
    phase = [1] * (events // 3) + [2] * (events - events // 3)
    return Capture(
        rank=0,
        step=1,
        id="busy",
        began_ns=0,
        step_ns=400_000_000,
        modules=[""],
        base=base,
        at_ns=at,
        delta_bytes=(rng.integers(1, 2**20, events) * rng.choice([1, -1], events)).tolist(),
        category=rng.integers(0, 9, events).tolist(),
        module=[0] * events,
        phase=phase,
        events=events,
        peak=base,
        op_names=["aten.mm.default"],
        op=[0] * events,
        op_at_ns=at,
        op_ns=[10_000] * events,
        op_module=[0] * events,
        op_phase=phase,
        call_kind=rng.integers(0, 3, calls).tolist(),
        call_module=[0] * calls,
        call_nbytes=[1] * calls,
        call_at_ns=np.sort(rng.integers(0, 400_000_000, calls)).tolist(),
        call_ns=[500_000] * calls,
    )
