"""The numbers of a picture, read off it and held against the run that it was taken of."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fsdp_tui.telemetry.messages import CATEGORIES

from .captures import OPERATORS, changes, held_mib
from .fixtures import MIB, STARTED_NS, Recipe
from .reading import cells, pane, quantity, reads
from .recordings import Recorded
from .truth import GATHER, KINDS, PHASES, REDUCE, SCATTER, Floats, Truth

BAR = re.compile(r"(\d+)[▸ ]([PGOUAc┃▏·»]{8,})  +([\d,]+\.\d)(?:  +([\d,]+\.\d))?(?:  +([\d,]+\.\d))?")
"""Rank, bar, and its numbers."""
HEAT = "·░▒▓█"


def table(lines: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a table by its headings; the last lines may say how many more there are."""
    head = [name.removesuffix(" …") for name in cells(lines[0])]
    rows = []
    for line in lines[1:]:
        found = cells(line)
        if found and not found[0].startswith(("↓", "↑")):
            rows.append(dict(zip(head, found, strict=False)))
    return rows


def check_header(recipe: Recipe, text: str, *, since: Sequence[str] = ("ended 0 s ago", "0 s ago")) -> None:
    """Name, strategy, devices, how far and how long, what watching costs, as far as there is room; and how old the picture is."""
    first, width = text.splitlines()[0], max(map(len, text.splitlines()))
    device = "CPU" if recipe.device == "cpu" else "H100 80GB HBM3"
    seconds = round((recipe.now_ns - STARTED_NS) / 1e9)
    whole = (
        f"{recipe.name} · {recipe.strategy} · fp32 · {recipe.ranks:,} × {device} · step {recipe.steps}/1,000"
        f" · 0:00:{seconds:02}"
    )
    told = re.fullmatch(rf" (?:✓ DONE|● LIVE)  (.+?) +({'|'.join(since)})", first)
    assert told is not None, first
    # The first step is left out of what is usual.
    usual_ns = float(np.median([recipe.step_ns(number) for number in range(min(2, recipe.steps), recipe.steps + 1)]))
    parts, every = (
        told[1].split(" · "),
        [*whole.split(" · "), f"cost {400e3 / usual_ns:.2%}".replace("%", " %"), "0 dropped"],
    )
    assert parts == [part for part in every if part in parts]
    assert {recipe.name, f"step {recipe.steps}/1,000"} <= set(parts)
    assert set(every) - set(parts) <= {"fp32", "0 dropped"} if width >= 120 else len(parts) >= 2


def check_axis(
    lines: Sequence[str], scale: Callable[[float], float] = float
) -> tuple[Callable[[float], float], list[tuple[int, str]]]:
    """The numbers beside a chart are at their heights on this scale. Returns value -> row, and the chart's rows."""
    rows = [(at, found) for at, line in enumerate(lines) if (found := re.match(r" *([\d.,]+)?([kMG]?)[┤│](.*)", line))]
    told = [(at, quantity(f"{found[1]}{found[2]}")[0]) for at, found in rows if found[1]]
    assert len(told) >= 2
    (top, high), (bottom, low) = told[0], told[-1]

    def height(value: float) -> float:
        return top + (scale(high) - scale(value)) / (scale(high) - scale(low)) * (bottom - top)

    for at, value in told:
        assert at == pytest.approx(height(value), abs=0.99)  # each stands in the row that it falls into
    return height, [(at, found[3]) for at, found in rows]


def check_steps(lines: Sequence[str], first: float, last: float) -> None:
    """The numbers below a chart are at their places between its first step and its last."""
    rule, numbers = next((line, lines[at + 1]) for at, line in enumerate(lines) if "└" in line)
    rule, begin = rule[rule.index("└") + 1 :], rule.index("└") + 1
    told = list(re.finditer(r"[\d,]+", numbers))
    assert len(told) == rule.count("┬") >= 2
    for found in told:
        cell = min(len(rule) - 1, int((quantity(found[0])[0] - first) / (last - first) * len(rule)))
        assert rule[cell] == "┬", (found[0], rule)
        assert found.start() <= begin + cell <= found.end()


def check_line(
    lines: Sequence[str],
    value: Callable[[float], float],
    first: float,
    last: float,
    scale: Callable[[float], float] = float,
) -> None:
    """In each of its columns the line of a chart is where the values of the column's steps are; they fall from step to step."""
    check_steps(lines, first, last)
    height, rows = check_axis(lines, scale)
    width = max(len(drawn) for _, drawn in rows)
    for cell in range(width):
        top, bottom = (height(value(first + (last - first) * x / width)) for x in (cell, cell + 1))
        assert any(top - 1 <= at <= bottom + 1 for at, drawn in rows if drawn[cell : cell + 1].strip()), cell


def check_curve(lines: Sequence[str], first: float, last: float) -> None:
    """The line of a chart begins and ends at these values, and the steps below it are in their places."""
    height, rows = check_axis(lines)
    left, right = ([at for at, drawn in rows if drawn[side : side + 1 or None].strip()] for side in (0, -1))
    assert min(abs(at - height(first)) for at in left) <= 1.3
    assert min(abs(at - height(last)) for at in right) <= 1.3


# Run


def check_run(truth: Truth, text: str, width: int) -> None:
    """Bars, findings, loss, throughput, step and, where there is room for them, collectives and events."""
    recipe = truth.recipe
    check_bars(truth, text)
    check_findings(truth, text, width)
    steps = [recipe.step(0, number) for number in range(1, recipe.steps + 1)]
    check_curve(pane(text, "loss"), steps[0].loss or 0, truth.loss)
    rates = [recipe.ranks * (step.tokens or 0) / step.step_ns * 1e9 for step in steps]
    check_curve(pane(text, "tokens/s"), rates[0], rates[-1])
    title = re.search(r"─ loss ([\d.]+)", text)
    assert title is not None
    assert reads(title[1], truth.loss)
    rate = re.search(r"─ tokens/s ([\d.]+[kM]?)(?: · ([\d.]+[kM]?)[ ])?", text)
    assert rate is not None
    assert reads(rate[1], truth.tokens_per_s)
    assert rate[2] is None or reads(rate[2], truth.tokens_per_s / recipe.ranks)
    if step := re.search(r"one step · ([\d.]+ \w+) median · ([\d.]+ \w+) p95", text):
        assert reads(step[1], float(np.median(truth.step_ns)))
        assert reads(step[2], float(np.percentile(truth.step_ns, 95)))
        check_phases(truth, pane(text, "one step"))
    if width >= 120:
        check_collectives(truth, text)
        cost = re.search(r"watching costs ([\d.]+ us)/step \(([\d.]+ %)\)", text)
        assert cost is None or (reads(cost[1], 400e3) and reads(cost[2], 400e3 / float(np.median(truth.step_ns))))


def check_findings(truth: Truth, text: str, width: int) -> None:
    """What verdicts say of this run, each with its number; and the key figures below them."""
    recipe = truth.recipe
    said = " ".join(line.strip() for line in pane(text, "verdict")) if width >= 120 else text
    peaks = [recipe.peak(rank) for rank in range(recipe.ranks)]
    usual, fullest = float(np.median(peaks)), int(np.argmax(peaks))
    step_ns = float(np.median(truth.step_ns))
    seen = 0
    for found in re.finditer(r"rank (\d+) peaks ([\d.]+ \w+) above the usual rank \(×([\d.]+)\)", said):
        seen += 1
        assert int(found[1]) == fullest
        assert reads(found[2], peaks[fullest] - usual)
        assert reads(found[3], peaks[fullest] / usual)
    for found in re.finditer(r"(\d+ %) of the peak is activations", said):
        seen += 1
        assert reads(found[1], recipe.activations(fullest) / peaks[fullest])
    for found in re.finditer(r"the others wait for rank (\d+): ([\d.]+ ms) per step \((\d+ %)\)", said):
        seen += 1
        rank, ns = truth.straggler()
        assert int(found[1]) == rank
        assert reads(found[2], ns)
        assert reads(found[3], ns / step_ns)
    for found in re.finditer(r"(\d+ %) of the step is exposed", said):
        seen += 1
        assert reads(found[1], truth.mean(truth.exposed, truth.of()) / step_ns)
    for found in re.finditer(r"each rank keeps 1/(\d+) of the model states", said):
        seen += 1
        assert int(found[1]) == recipe.ranks
    assert seen
    for line in pane(text, "verdict") if width >= 120 else ():
        figures: dict[str, float] = {"model states": recipe.states(), "unsharded": recipe.gathered()}
        figures |= {"activations": recipe.activations(fullest), "cache": recipe.step(0, 2).memory[10] or 0}
        for name, value in figures.items():
            if (told := re.match(rf"{name} +([\d.]+ \w+)  ", line)) is not None:
                assert reads(told[1], value), name


def check_bars(truth: Truth, text: str) -> None:
    """Each bar's numbers, and the places of its marks on the scale; the line about the others, and a cell for each rank."""
    recipe = truth.recipe
    lines = pane(text, "memory per rank")
    unit = MIB * 1024 if recipe.capacity else MIB
    peaks = [recipe.peak(rank) for rank in range(recipe.ranks)]
    found = BAR.findall("\n".join(lines))
    scale = re.search(r"(?:of|right edge =) ([\d.,]+) [MG]iB", text)
    assert found
    assert scale is not None
    for rank, bar, *numbers in found:
        peak, states = peaks[int(rank)], recipe.states()
        known = [number for number in numbers if number]
        wanted = [peak] if len(known) == 1 else [states, peak, (recipe.capacity or 0) - peak - beside_torch(recipe)]
        for number, value in zip(known, wanted, strict=False):
            assert quantity(number)[0] == pytest.approx(value / unit, abs=0.051), (rank, numbers)
        cell = float(scale[1].replace(",", "")) / len(bar)
        assert bar.index("▏") * cell == pytest.approx(peak / unit, abs=1.01 * cell), rank
        assert bar.index("┃") * cell == pytest.approx(states / unit, abs=1.01 * cell), rank
    if ideal := re.search(r"ideal 1/N = ([\d.]+)", text):
        assert float(ideal[1]) == pytest.approx(recipe.states() / unit, abs=0.0051)
    if spread := re.search(r"min ([\d.,]+)  median ([\d.,]+)  max ([\d.,]+) \(rank (\d+)\)", text):
        of_peaks = (min(peaks), float(np.median(peaks)), max(peaks))
        for number, wanted_bytes in zip(spread.groups(), of_peaks, strict=False):
            assert quantity(number)[0] == pytest.approx(wanted_bytes / unit, abs=0.051)
        assert int(spread[4]) == int(np.argmax(peaks))
    if more := re.search(r"\+([\d,]+) more ranks  all ([\d,]+) by peak", text):
        assert int(more[1].replace(",", "")) == recipe.ranks - len({rank for rank, *_ in found})
        assert int(more[2].replace(",", "")) == recipe.ranks
        if key := re.search(r"by peak  ([\d.,]+) ··░░▒▒▓█ ([\d.,]+) ", text):
            assert quantity(key[1])[0] == pytest.approx(min(peaks) / unit, abs=0.051)
            assert quantity(key[2])[0] >= max(peaks) / unit - 0.051
        check_heat(lines, peaks)


def beside_torch(recipe: Recipe) -> int:
    """Bytes of a GPU that torch cannot have."""
    memory = recipe.step(0, 2).memory
    return sum(memory[CATEGORIES.index(name)] or 0 for name in ("non_torch", "others"))


def check_heat(lines: Sequence[str], peaks: Sequence[int]) -> None:
    """A cell for so many neighbours, each as dark as the highest of its ranks."""
    strip = [found for line in lines if (found := re.fullmatch(rf" *(\d+) ([{HEAT}]+) *", line))]
    shades = "".join(found[2] for found in strip)
    per_cell = -(-len(peaks) // len(shades))
    assert len(shades) == -(-len(peaks) // per_cell)
    assert [int(found[1]) for found in strip] == [per_cell * at for at in row_starts([len(f[2]) for f in strip])]
    highest = [max(peaks[at : at + per_cell]) for at in range(0, len(peaks), per_cell)]
    order = np.array([HEAT.index(shade) for shade in shades])[np.argsort(highest, kind="stable")]
    assert (np.diff(order) >= 0).all()


def row_starts(lengths: Sequence[int]) -> list[int]:
    return [sum(lengths[:at]) for at in range(len(lengths))]


def check_phases(truth: Truth, lines: Sequence[str]) -> None:
    """Times of the phases, and their parts of the bar."""
    said = " ".join(line.strip() for line in lines[1:])
    phases = truth.phases()
    gather = sum(truth.exposed_in(phase, (GATHER,)) for phase in (0, 1))
    reduce = sum(truth.exposed_in(phase, (SCATTER, REDUCE)) for phase in (0, 1))
    wide = re.findall(r"(?:^|[ifbo·╱╲] )(input|forward|backward|optimizer|rest|exposed [a-z-]+) ([\d.]+ ms)", said)
    short = re.findall(r"[ifbo·╱╲] (in|fwd|bwd|opt|rest|AG|RS) ([\d.]+)", said)
    names = {"in": "input", "fwd": "forward", "bwd": "backward", "opt": "optimizer", "AG": "exposed all-gather"}
    names |= {"RS": "exposed reduce"}
    found = wide or [(names.get(name, name), f"{value} ms") for name, value in short]
    wanted = phases | {"exposed all-gather": gather, "exposed reduce": reduce}
    assert {name for name, _ in found} == wanted.keys()
    for name, value in found:
        assert reads(value, wanted[name]), (name, value, wanted[name])
    bar, whole = lines[0].strip(), sum(wanted.values())
    for sign, name in (("f", "forward"), ("b", "backward"), ("o", "optimizer"), ("╱", "exposed all-gather")):
        assert bar.count(sign) == pytest.approx(wanted[name] / whole * len(bar), abs=2.01), name


def check_collectives(truth: Truth, text: str) -> None:
    """Row by row, and each kind's bytes in the title."""
    lines = pane(text, "collectives per step")
    title = next(line for line in text.splitlines() if "collectives per step and rank" in line)
    for short, kind in (("AG", GATHER), ("RS", SCATTER)):
        told = re.search(rf"{short} ([\d.]+ \w+)", title)
        assert (told is not None) == bool(truth.of(kind=kind))
        assert told is None or reads(told[1], truth.bytes(truth.of(kind=kind)))
    unit = -1
    units = [one.name for one in truth.recipe.structure(0).units]
    for line in lines[1:]:
        found = cells(line)
        if not found or found[0].startswith("↓"):
            continue
        if found[0] in units:
            unit = units.index(found.pop(0))
        words, calls, nbytes, median, exposed, late = found
        chosen = truth.of(unit, KINDS.index(words))
        assert int(calls) == len(chosen)
        assert reads(nbytes, truth.bytes(chosen))
        assert reads(median, float(np.median(truth.duration[:, :, chosen])))
        assert reads(exposed, truth.mean(truth.exposed, chosen))
        rank, ns = truth.latest(chosen)
        who, _, by = late.partition(" +")
        assert reads(by, ns)
        assert int(who) == rank or truth.rank(truth.late, int(who), chosen) == ns


# A rank


def check_rank(recipe: Recorded, rank: int, text: str) -> None:
    """Each category to the byte, in the unit beside it where there is room, and what else is known of the rank."""
    lines = pane(text, f"rank {rank}")
    last = recipe.step(rank, recipe.steps)
    steps = [recipe.step(rank, number) for number in range(2, recipe.steps + 1)]
    unit = next((cell for line in lines for cell in cells(line) if cell in ("MiB", "GiB")), "")
    seen = 0
    names = (*CATEGORIES, "total")
    for line in lines:
        found = cells(line)
        if found and len(found[0]) == 1:
            found.pop(0)
        if len(found) < 2 or found[0] not in names:
            continue
        seen += 1
        wanted = [column[names.index(found[0])] for column in (last.memory, last.peak)]
        exact, rounded = found[1::2] if len(found) == 5 else found[1:], found[2::2] if len(found) == 5 else []
        for said, value in zip(exact, wanted, strict=True):
            assert said == ("–" if value is None else f"{value:,}")
        for said, value in zip(rounded, wanted, strict=False):
            assert said == "–" if value is None else reads(f"{said} {unit}", value)
    assert seen >= (1 if "what it was doing" in text else 5)
    whole = " ".join(line.strip() for line in lines)
    hello = recipe.hello(rank)
    told = f"{hello.host} · pid {hello.pid} · {hello.device} · {hello.device_name} · {hello.backend} · torch 2.13.0"
    assert whole.startswith(told)
    step_ns = float(np.median([step.step_ns for step in steps]))
    found_step = re.search(
        r"step (\d+) · ([\d.]+ ms) per step · probes (400 us) per step · sent (\d+) · dropped 0", whole
    )
    assert found_step is not None
    assert (int(found_step[1]), int(found_step[4])) == (recipe.steps, 2 * recipe.steps)
    assert reads(found_step[2], step_ns)
    if "highest total" in whole:
        assert f"the peak was in backward, unit blocks.{recipe.blocks - 1};" in whole
        assert f"highest total so far {last.peak[-1]:,} bytes" in whole
    if phases := re.search(
        r"median step: input ([\d.]+ ms)  forward ([\d.]+ ms)  backward ([\d.]+ ms)  optimizer ([\d.]+ ms)  rest ([\d.]+ ms)",
        whole,
    ):
        for at, text_of in enumerate(phases.groups()):
            assert reads(text_of, float(np.median([step.phases_ns[at] or 0 for step in steps])))
    gauge = recipe.gauge(rank)
    for line in lines:
        name, *values = cells(line) or [""]
        if name in gauge.values:
            reading = gauge.values[name] or 0
            assert values[0] == f"{reading:,}"
            assert reads(*READINGS[name.rpartition("_")[2]](values[1], float(reading)))
    if "other processes" in whole:
        assert "31337 (2.00 GiB)" in whole
    if "last capture" in whole:
        check_why(0, whole)
    if "what it was doing" in whole:
        assert "what it was doing at 0:00:02, innermost call first" in whole
        assert all(f":{frame.line}" in whole for frame in recipe.stack(rank).threads[0].frames)


READINGS: dict[str, Callable[[str, float], tuple[str, float]]] = {
    "bytes": lambda said, value: (said, value),
    "mw": lambda said, value: (said.removesuffix(" W"), value / 1000),
    "c": lambda said, value: (said.removesuffix(" °C"), value),
    "percent": lambda said, value: (said, value / 100),
}
"""End of a reading's name -> how it is said."""


# A captured step


def check_step(recipe: Recorded, text: str) -> None:
    """Which capture it is, and every figure at its peak; rank n of the captured ones has n MiB more."""
    rank, extra = recipe.captured[-1], len(recipe.captured) - 1
    some = f" ({len(recipe.captured)} captured)" if len(recipe.captured) < recipe.ranks else ""
    assert f"memory inside step 3 · rank {rank} of {recipe.ranks}{some}"[:40] in text
    held = held_mib(103) | {"unexplained": extra}
    total = sum(held.values())
    groups = {
        "P": held["param_shard"],
        "O": held["optimizer"],
        "G": held["grad_shard"] + held["grad_unsharded"],
        "U": held["param_unsharded"] + held["comm_buffer"],
        "A": held["activation"] + held["temp"],
        "c": extra,
    }
    legend = next(line for line in text.splitlines() if f"= {total:.1f} MiB" in line)
    told = dict(re.findall(r"([POGUAc])[a-z .+]* (\d+\.\d)", legend))
    assert {key: float(value) for key, value in told.items()} == groups
    axis = [line.rstrip() for line in pane(text, "memory inside")]
    top = next(at for at, line in enumerate(axis) if re.match(r" *│", line))
    bottom = next(at for at, line in enumerate(axis) if re.match(r" *0┤", line))
    check_axis(axis[top : bottom + 1])
    times = next(line for line in axis[bottom:] if " ms" in line)
    ticks = [(found.start(), int(found[1])) for found in re.finditer(r"(\d+)(?: ms)?", times)]
    (left, first), (right, last) = ticks[0], ticks[-1]
    assert (first, last) == (0, 200)
    for x, ms in ticks:
        assert x == pytest.approx(left + (right - left) * ms / 200, abs=6 if ms == 103 else 3)
    check_why(extra, " ".join(line.strip() for line in pane(text, "why the peak is here")))
    if peak := re.search(r"▼ peak ([\d.]+ MiB)", text):
        assert reads(peak[1], total * MIB)
    assert "103 ms · backward of blocks.3" in text
    for name, begin_ms, end_ms in (("forward", 10, 83), ("backward", 99, 181)):
        if lane := re.search(rf"{name} ([\d.]+ ms)", " ".join(axis)):
            assert reads(lane[1], (end_ms - begin_ms) * 1e6)
    for words, count in (("changes of memory", len(changes())), ("operators", len(OPERATORS))):
        if told_count := re.search(rf"(\d+) {words}", text):
            assert int(told_count[1]) == count
    if "─ at the cursor " in text:
        rows = [cells(line) for line in pane(text, "at the cursor")]
        figures = {row[-3]: row[-2:] for row in rows if len(row) >= 3 and re.fullmatch(r"[\d.]+", row[-1])}
        assert figures["total"] == [f"{total:.2f}"] * 2
        for name, row in figures.items():
            if name != "total":
                assert row == [f"{held[name]:.2f}"] * 2, name


def check_why(extra: int, said: str) -> None:
    """Units, activations and gradients at the peak, and the largest parts of it."""
    held = held_mib(103)
    assert (
        f"backward of blocks.3: one unit unsharded (blocks.3: {held['param_unsharded']:.2f} MiB), all activations still alive"
        f" ({held['activation']:.2f} MiB), first full gradient (blocks.3: {held['temp']:.2f} MiB)"
    ) in said
    for name, value in re.findall(r" (optimizer|param_shard) +– +([\d.]+) ", said):
        assert value == f"{held[name]:.2f}"
    for name, value in re.findall(
        r"(param_shard|param_unsharded|optimizer|activation|temp|unexplained) ([\d.]+)  ", said
    ):
        assert value == f"{(held | {'unexplained': extra})[name]:.1f}"
    if total := re.search(r"  total ([\d.]+) MiB", said):
        assert float(total[1]) == sum(held.values()) + extra


# Collectives


def check_calls(truth: Truth, rank: int, text: str) -> None:
    """All units of a rank."""
    assert f"─ rank {rank} · node{rank // 8} · per step · median of {len(truth.steps)} steps ─" in text
    check_units(truth, rank, table(pane(text, f"rank {rank} · ")))


def check_unit(truth: Truth, rank: int, unit: int, text: str) -> None:
    """A row per collective of a rank in a unit, and what they come to."""
    name = truth.recipe.structure(0).units[unit].name
    title = f"rank {rank} › {name} · node{rank // 8} · per step · median of {len(truth.steps)} steps"
    check_unit_rows(truth, rank, unit, table(pane(text, title[:45])))


def check_unit_rows(truth: Truth, rank: int, unit: int, rows: Sequence[dict[str, str]]) -> None:
    assert rows
    for row in rows:
        calls = truth.of(unit)
        if row["collective"] != "median sum":
            words, phase = row["collective"].split(" ")
            calls = truth.of(unit, KINDS.index(words), ("fwd", "bwd").index(phase))
        if "calls" in row:
            assert int(row["calls"]) == len(calls)
        if "bytes" in row:
            assert reads(row["bytes"], truth.bytes(calls))
        spent = truth.rank(truth.duration, rank, calls)
        assert row["a call"] == "–" if row["collective"] == "median sum" else reads(row["a call"], spent)
        assert reads(row["exposed"], truth.rank(truth.exposed, rank, calls))
        assert reads(row["late"], truth.rank(truth.late, rank, calls))
        if "bus" in row:
            assert reads(row["bus"], truth.bus(rank, calls))
        if "S/t" in row:
            assert reads(row["S/t"], truth.bytes(calls) / spent * 1e9)
            assert reads(row["overlapped"], spent - truth.rank(truth.exposed, rank, calls))


def check_comm(truth: Truth, text: str, width: int) -> None:
    """The map of lateness, the cell under the cursor, the rank's units, and who waits for whom."""
    recipe = truth.recipe
    names = [one.name for one in recipe.structure(0).units]
    places = [*range(len(names)), *([-1] if truth.of(-1) else [])]
    late = np.array([np.median(truth.late[:, :, truth.of(place)].sum(axis=2), axis=0) for place in places]).T
    sums = np.median(truth.late.sum(axis=2), axis=0)
    check_map(pane(text, "lateness"), late, sums)
    title = re.search(
        r"╭─ rank (\d+) · (?:node(\d+) · )?(\S+) · late ([\d.]+ \w+)(?: \((?:median rank|the better one) ([\d.]+ \w+)\))?",
        text,
    )
    assert title is not None
    rank, unit = int(title[1]), names.index(title[3])
    assert title[2] is None or int(title[2]) == rank // 8
    assert reads(title[4], late[rank, unit])
    middle = sorted(late[:, unit])[(recipe.ranks - 1) // 2]  # of an even number the better one
    assert title[5] is None or reads(title[5], middle)
    check_unit_rows(truth, rank, unit, table(pane(text, f"rank {rank} · ")))
    if f"─ rank {rank} in all units " in text:
        check_units(truth, rank, table(pane(text, f"rank {rank} in all units")))
    check_waiting(truth, " ".join(line.strip() for line in pane(text, "who waits")) if width >= 120 else text)


CELLS = re.compile(
    r"(\d+)[ ▸](?=[\[\d.]*[·░▒▓█◆])((?:[·░▒▓█◆\[\]\d.]| (?! ))*[·░▒▓█◆\]\d])(?:  +[▏▎▍▌▋▊▉█]*)? *(\d+\.\d(?!\d))?"
)
"""First rank of a row of a map, its cells, and their sum."""


def check_map(lines: Sequence[str], late: Floats, sums: Floats) -> None:
    """Every cell's number or shade, and each row's sum."""
    said = " ".join(lines)
    folded = re.search(r"worst of (?:(\d+) × (\d+) per cell|(\d+) ranks(?: × (\d+) units)?)", said)
    ranks, units = (int(folded[1] or folded[3]), int(folded[2] or folded[4] or 1)) if folded else (1, 1)
    starts = range(0, late.shape[1], units)
    shades: list[tuple[float, str]] = []
    rows = 0
    for line in lines[:-1]:  # the last one is the legend
        for label, cells_of, sum_of in CELLS.findall(line):
            rows += 1
            of_row = late[int(label) : int(label) + ranks].max(axis=0)
            values = [of_row[at : at + units].max() for at in starts]
            if sum_of:
                assert float(sum_of) == pytest.approx(sums[int(label) : int(label) + ranks].max() / 1e6, abs=0.051)
            numbers = re.findall(r"\d+\.\d\d", cells_of)
            if numbers:
                assert [float(number) for number in numbers] == pytest.approx([v / 1e6 for v in values], abs=0.0051)
                continue
            wide = len(cells_of) // len(values)
            assert len(cells_of) == wide * len(values)
            for at, value in enumerate(values):
                shade = set(cells_of[wide * at : wide * (at + 1)])
                shades += [(value, one) for one in shade - {"◆"}]
    assert rows == -(-len(late) // ranks)
    if (most := next((line for line in lines if line.startswith("max ")), None)) and (
        numbers := re.findall(r"\d+\.\d\d", most)
    ):
        assert [float(number) for number in numbers] == pytest.approx(list(late.max(axis=0) / 1e6), abs=0.0051)
    limits = re.search(r"·· ([\d.]+) ░░ ([\d.]+) ▒▒ ([\d.]+) ▓▓ ([\d.]+) ██ (us|ms)", said)
    if limits is not None:
        steps = [quantity(f"{limits[at]} {limits[5]}")[0] for at in range(1, 5)]
        assert all(HEAT[sum(value >= step for step in steps)] == shade for value, shade in shades)
    order = [HEAT.index(shade) for _, shade in sorted(shades)]
    assert order == sorted(order)


def check_units(truth: Truth, rank: int, rows: Sequence[dict[str, str]]) -> None:
    """A row per unit: sums over a step's calls."""
    names = [one.name for one in truth.recipe.structure(0).units]
    assert rows
    for row in rows:
        calls = truth.of(names.index(row["unit"]) if row["unit"] in names else -1)
        assert int(row["calls"]) == len(calls)
        assert reads(row["bytes"], truth.bytes(calls))
        for title, matrix in (("late", truth.late), ("exposed", truth.exposed), ("duration", truth.duration)):
            assert title not in row or reads(row[title], truth.rank(matrix, rank, calls)), (row["unit"], title)
        if "bus" in row:
            assert reads(row["bus"], truth.bus(rank, calls))


def check_waiting(truth: Truth, said: str) -> None:
    """Who is waited for, where compute waits, and what that comes to."""
    step_ns, everything = float(np.median(truth.step_ns)), truth.of()
    rank, ns = truth.straggler()
    found = re.search(
        r"(?:rank (\d+) is waited for most|the others wait for rank (\d+)): ([\d.]+ ms) per step \(([\d.]+ %)\)", said
    )
    assert found is not None
    assert int(found[1] or found[2]) == rank
    assert reads(found[3], ns)
    assert reads(found[4], ns / step_ns)
    exposed, spent = truth.mean(truth.exposed, everything), truth.mean(truth.duration, everything)
    if found := re.search(r"exposed ([\d.]+ \w+) \(([\d.]+ %) of the step\)", said):
        assert reads(found[1], exposed)
        assert reads(found[2], exposed / step_ns)
    if found := re.search(r"overlapped ([\d.]+ \w+) \(([\d.]+ %) of the calls\)", said):
        assert reads(found[1], spent - exposed)
        assert reads(found[2], 1 - exposed / spent)
    names = [one.name for one in truth.recipe.structure(0).units]
    kinds = {kind for _, kind, _ in truth.calls}
    waited = [sum(truth.mean(truth.exposed, truth.of(at, kind)) for kind in kinds) for at in range(len(names))]
    if found := re.search(
        r"compute waits longest at (\S+): ([\d.]+ \w+) per step on the mean rank \(([\d.]+ %)\)", said
    ):
        assert reads(found[2], max(waited))
        assert reads(found[3], max(waited) / step_ns)
        assert waited[names.index(found[1])] == pytest.approx(max(waited), rel=1e-3)
    for words, speed in re.findall(r"(all-gather|reduce-scatter) ([\d.]+ \wiB/s) bus", said):
        each = []
        for at in range(len(names)):
            calls = truth.of(at, KINDS.index(words))
            each.append(truth.carried(calls) / len(calls) / float(np.median(truth.duration[:, :, calls])) * 1e9)
        assert reads(speed, float(np.median(each)))


def check_collective(truth: Truth, rank: int | None, unit: int, kind: int, text: str) -> None:
    """Forward and backward apart over all ranks, then rank by rank, who comes latest first; `rank` is marked."""
    lines = pane(text, f"{truth.recipe.structure(0).units[unit].name} · {KINDS[kind]}")
    told = truth.recipe.structure(0).units[unit]
    assert (
        f"{told.params:,} parameters, {told.shard_bytes:,} bytes on the fullest rank, {told.unsharded_bytes:,} bytes when gathered"
        in " ".join(line.strip() for line in lines)
    )
    at = next(at for at, line in enumerate(lines) if "per step and rank" in line)
    for row in table(lines[at : at + 4]):
        phase = None if row["per step and rank"] == "whole step" else PHASES.index(row["per step and rank"])
        calls = truth.of(unit, kind, phase)
        if not calls:
            assert row["calls"] == "0"
            assert row["median of a call"] == "–"
            continue
        assert reads(row["median of a call"], float(np.median(truth.duration[:, :, calls])))
        assert reads(row["exposed"], truth.mean(truth.exposed, calls))
        if "calls" in row:
            assert int(row["calls"]) == len(calls)
        if "bytes" in row:
            assert quantity(row["bytes"])[0] == truth.bytes(calls)
        if "overlapped" in row:
            assert reads(row["overlapped"], truth.mean(truth.duration, calls) - truth.mean(truth.exposed, calls))
        if "bus" in row:
            seconds = len(calls) * float(np.median(truth.duration[:, :, calls])) / 1e9
            assert reads(row["bus"], truth.carried(calls) / seconds)
    at = next(at for at, line in enumerate(lines) if "rank by rank" in line)
    rows = table(lines[at + 1 :])
    calls = truth.of(unit, kind)
    assert {row["rank"] for row in rows if "◂" in row["rank"]} == (set() if rank is None else {f"{rank} ◂"})
    before = np.inf
    for row in rows:
        who = int(row["rank"].split()[0])
        late = truth.rank(truth.late, who, calls)
        assert late <= before
        before = late
        for title, value in (
            ("the others wait for it", late),
            ("duration", truth.rank(truth.duration, who, calls)),
            ("exposed", truth.rank(truth.exposed, who, calls)),
        ):
            assert reads(row[title], value), (who, title)


# The past


def check_past(recipe: Recorded, step: int, text: str) -> None:
    """Which moment it is, and where it and the events are on the line of time."""
    ended_ns = recipe.now_ns
    at_ns = STARTED_NS + step * 200_000_000
    first, *_, line, _ = text.splitlines()
    seconds = round((ended_ns - at_ns) / 1e9)
    assert f"▮▮ step {step} of {recipe.steps} · 0:00:{seconds:02} before the end" in first
    found = re.match(r" ▮▮ 1× ([━─█┴!▲✓]+) ", line)
    assert found is not None
    cells_of = found[1]
    span = ended_ns - STARTED_NS
    assert cells_of.index("█") == pytest.approx((at_ns - STARTED_NS) / span * len(cells_of), abs=1)
    for number, (severity, _) in recipe.at_steps.items():
        place = (number * 200_000_000 - 100_000_000) / span * len(cells_of)
        assert cells_of.index({"note": "┴", "warn": "!"}[severity]) == pytest.approx(place, abs=1)


# Comparison


def check_compare(recipes: Sequence[Recipe], text: str) -> None:
    """Bars, every row of numbers with its differences to the first run, and the step times."""
    truths = [Truth(recipe) for recipe in recipes]
    check_compared_bars(recipes, pane(text, "memory of the fullest rank"))
    everything = [truth.of() for truth in truths]
    rows: dict[str, list[float]] = {
        "model states": [recipe.states() for recipe in recipes],
        "peak": [max(map(recipe.peak, range(recipe.ranks))) for recipe in recipes],
        "all-gather": [truth.bytes(truth.of(kind=GATHER)) for truth in truths],
        "reduce-scatter": [truth.bytes(truth.of(kind=SCATTER)) for truth in truths],
        "step time": [float(np.median(truth.step_ns)) for truth in truths],
        "exposed": [truth.mean(truth.exposed, calls) for truth, calls in zip(truths, everything, strict=True)],
        "tokens/s": [truth.tokens_per_s for truth in truths],
        "last loss": [truth.loss for truth in truths],
    }
    seen = 0
    if "─ numbers " in text:
        for line in pane(text, "numbers"):
            seen += check_compared(rows, line)
        assert seen
    for recipe, line in zip(recipes, pane(text, "memory of the fullest rank")[-len(recipes) - 2 :], strict=False):
        assert "%" not in line or line.rstrip("│ ").endswith("  0.0 %"), recipe.name
    for at, held, theory, off in re.findall(
        r"(\d) \S.* against theory: model states (\S+ \w+) of (\S+ \w+) \((.*?)\)", text
    ):
        assert reads(held, recipes[int(at) - 1].states())
        assert reads(theory, recipes[int(at) - 1].states())
        assert off == "0.0 %"
    for truth, line in zip(truths, pane(text, "step time") if "─ step time" in text else (), strict=False):
        told = re.search(r"([\d.]+ ms) ± ([\d.]+ ms)$", line.strip())
        assert told is not None
        low, middle, high = np.percentile(truth.step_ns, (25, 50, 75))
        assert reads(told[1], float(middle))
        assert reads(told[2], float(high - low) / 2)


def check_compared(rows: dict[str, list[float]], line: str) -> bool:
    """One row; False for one that is no metric's."""
    name = next((name for name in rows if line.startswith(name)), None)
    if name is None:
        if line.startswith("  vs theory"):  # model states, which are as theory says
            assert re.findall(r"(\S) ([+−]?[\d.]+ %)", line) == [("✓", "0.0 %")] * len(rows["peak"])
        return False
    rest, unit = line[len(name) :], ""
    if found := re.match(r" ([KMGT]?i?B|[num]?s|k)  ", rest):  # where there is little room the unit stands in the name
        unit, rest = found[1], rest[found.end() :]
    changes_of = re.findall(r"[+−]?[\d.]+ %|×[\d,]+", rest)
    for change in changes_of:
        rest = rest.replace(change, " ", 1)
    told = re.findall(r"<?[\d.,]+(?: ?(?:[KMGT]i?B|B|[num]?s|[kM]))?", rest)
    values = rows[name]
    assert len(told) == len(values)
    for said, value in zip(told, values, strict=True):
        assert reads(f"{said} {unit}" if unit else said, value), (name, said, value)
    best = min(values) if name not in ("tokens/s",) else max(values)
    assert all(
        value == best
        for value, mark in zip(values, re.findall(r"\d(?: ?\w*)?(\*)?(?= |$)", rest), strict=False)
        if mark
    )
    wanted = [value / values[0] - 1 for value in values[1:]] if values[0] else []
    for said, change in zip(changes_of, wanted, strict=False):
        if said.startswith("×"):
            assert reads(said[1:], change + 1)
        else:
            assert reads(said.lstrip("+"), change), (name, said, change)
    return True


def check_compared_bars(recipes: Sequence[Recipe], lines: Sequence[str]) -> None:
    """Peak, states and theory beside each bar, and their marks on one scale."""
    scale = re.search(r"(?:of|right edge =) ([\d.,]+) ([MG])iB", " ".join(lines))
    assert scale is not None
    unit = MIB * (1024 if scale[2] == "G" else 1)
    drawn = [found for line in lines if (found := re.search(r"[ ▸]([PGOUAc┃▏·]{8,})  (.*)", line))]
    assert len(drawn) == len(recipes)
    for recipe, found in zip(recipes, drawn, strict=True):
        bar, peak = found[1], max(map(recipe.peak, range(recipe.ranks)))
        numbers = re.findall(r"<?[\d,]+\.\d+(?= |$)", found[2])
        for said, value in zip(numbers, (peak, recipe.states(), recipe.states()), strict=False):
            assert reads(f"{said} {scale[2]}iB", value)
        cell = float(scale[1].replace(",", "")) / len(bar)
        assert bar.index("▏") * cell == pytest.approx(peak / unit, abs=1.01 * cell)
        assert bar.index("┃") * cell == pytest.approx(recipe.states() / unit, abs=1.01 * cell)
