"""Each key of the table, by all of its names, on each screen that it works on: pressing it does what its help says."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input

from fsdp_tui.telemetry.launch import LaunchSpec
from fsdp_tui.telemetry.messages import encode
from fsdp_tui.telemetry.queue import Item, Queue
from fsdp_tui.telemetry.recording import Recorder
from fsdp_tui.telemetry.state import RunState
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.keys import CALLS, COMM, COMPARE, KEYS, LAUNCH, LOGS, QUEUE, RANK, RUN, RUNS, STEP, Key
from fsdp_tui.tui.screens.base import Ask, Text, View
from fsdp_tui.tui.screens.calls import CallsScreen
from fsdp_tui.tui.screens.comm import CommScreen
from fsdp_tui.tui.screens.compare import CompareScreen
from fsdp_tui.tui.screens.launch import LaunchScreen
from fsdp_tui.tui.screens.logs import LogsScreen, LogView
from fsdp_tui.tui.screens.note import AskNote
from fsdp_tui.tui.screens.presets import AskName, PresetList
from fsdp_tui.tui.screens.queue import AskSweep
from fsdp_tui.tui.screens.rank import RankScreen
from fsdp_tui.tui.screens.replayed import AskStep
from fsdp_tui.tui.screens.step import StepScreen

from .captures import PEAK_MS, training_step
from .checks import BAR
from .comm_runs import CommRecipe
from .drive import dashboard, press, said, settle, until
from .fixtures import World, entry, run_id
from .reading import cells, pane
from .recordings import Recorded

SCREENS = (RUNS, RUN, STEP, COMM, CALLS, RANK, LOGS, LAUNCH, QUEUE, COMPARE)
LIVE = Recorded(name="live", ranks=4, steps=20, blocks=4, late_rank=2, heavy_rank=2, ended="", clips=True)
MS = 1_000_000
Look = Mapping[str, object]
"""What keys can change -> how it is."""
Effect = Callable[[Look, Look], bool]


# What can be seen of the program


def look(app: Dashboard, world: World) -> Look:
    """Everything that a key may change, by name."""
    screen, view = app.screen, next(one for one in reversed(app.screen_stack) if isinstance(one, View))
    source = world.sources[run_id("live")]
    seen: dict[str, object] = {
        "over": type(screen) if screen is not view else None,
        "says": screen._title if isinstance(screen, Text) else screen.question if isinstance(screen, Ask) else "",
        "screen": view.KIND,
        "run": app.feed.entry.name if app.feed else "",
        "marked": tuple(app.marked),
        "theme": app.theme,
        "letters": app.letters,
        "hz": app.pace.hz,
        "clipboard": app.clipboard,
        "commands": tuple(source.commands),
        "told": said(app),
        "running": app.is_running and app.return_code is None,
        "past": app.place.step if app.place else None,
        "playing": app.place.playing if app.place else False,
        "speed": app.place.speed if app.place else 1,
        "files": tuple(sorted(Path.cwd().glob("*"))),
        "queue": len(world.queue.items),
        "started": len(world.started),
        "focus": view.focused.id if view.focused else None,
        "typing": isinstance(view.focused, Input),
        "rows": rows_of(view.KIND, app.text()) if screen is view else (),
    }
    for name in (
        "sort",
        "reverse",
        "log_scale",
        "window",
        "at_peak",
        "rank",
        "each",
        "spot",
        "baseline",
        "deltas",
        "place",
    ):
        seen[name] = getattr(view, name, None)
    seen["frozen"] = getattr(view, "frozen", None) is not None
    zoomed = getattr(view, "zoomed", None)
    seen["zoomed"] = zoomed.id if zoomed is not None else None
    for field in view.query("#filter-text"):
        assert isinstance(field, Input)
        seen["filter"] = (field.value, view.query_one("#filter").has_class("-open"))
    if isinstance(view, CommScreen):
        seen |= {name: getattr(view.choice, name) for name in ("metric", "kind", "phase", "group", "order")}
    if isinstance(view, StepScreen):
        chosen, at = view.chosen(), view.look
        assert chosen is not None
        assert at is not None
        seen |= {"rank": chosen.rank, "capture": chosen.number, "cursor": at.cursor_ns, "alone": at.alone}
        seen["span"] = at.end_ns - at.begin_ns
    if isinstance(view, LogsScreen):
        log = view.query_one("#log", LogView)
        seen |= {"follow": log.follow, "top": log.top}
    if isinstance(view, LaunchScreen):
        seen["spec"] = view.spec
    return seen


def rows_of(screen: str, text: str) -> tuple[str, ...]:
    """The runs, the ranks or the rows of the map that are seen on a screen of those."""
    if screen == RUNS:
        names = {one.split()[0] for line in pane(text, "runs")[1:] for one in cells(line)}
        return tuple(sorted(names & {"live", "done", "other"}))
    if screen == RUN:
        return tuple(rank for rank, *_ in BAR.findall(text))
    return tuple(re.findall(r"(?m)^[│┃] *([\w<].*?)[ ▸][·░▒▓█]{2,} \[?\d", text)) if screen == COMM else ()


# What keys do


def becomes(**values: object) -> Effect:
    """These are so afterwards, and were not before."""
    return lambda before, after: all(after[name] == value != before[name] for name, value in values.items())


def changes(*names: str) -> Effect:
    return lambda before, after: all(before[name] != after[name] for name in names)


def opens(kind: type[object], words: str = "") -> Effect:
    """A question or a text over the screen, which says this; nothing is done yet."""

    def effect(before: Look, after: Look) -> bool:
        return after["over"] is kind and words in str(after["says"]) and after["commands"] == before["commands"]

    return effect


def both(one: Effect, other: Effect) -> Effect:
    return lambda before, after: one(before, after) and other(before, after)


def tells(words: str) -> Effect:
    return lambda before, after: words in str(after["told"])


def moves(name: str, by: float) -> Effect:
    return lambda before, after: after[name] == before[name] + by  # type: ignore[operator]


def times(name: str, factor: float) -> Effect:
    return lambda before, after: abs(after[name] - before[name] * factor) <= 1  # type: ignore[operator]


def next_of(name: str, *values: object) -> Effect:
    """The value after this one, round and round."""
    return lambda before, after: after[name] == values[(values.index(before[name]) + 1) % len(values)]


def commands(*kinds: str) -> Effect:
    return lambda before, after: after["commands"] == (*before["commands"], *kinds)  # type: ignore[misc]


def shows(screen: str) -> Effect:
    return lambda before, after: after["screen"] == screen and after["over"] is None


def copies(words: str) -> Effect:
    return lambda before, after: words in str(after["clipboard"])


def writes(suffix: str) -> Effect:
    def effect(before: Look, after: Look) -> bool:
        new = set(after["files"]) - set(before["files"])  # type: ignore[call-overload]
        return bool(new) and all(path.suffix == suffix for path in new)

    return effect


EFFECTS: dict[str, Effect | dict[str, Effect]] = {
    "help": opens(Text, "help · run"),
    "palette": opens(CommandPalette),
    "leave_field": becomes(typing=False, focus="card"),
    "runs.open": shows(RUN),
    "runs.mark": becomes(marked=(run_id("live"),)),
    "runs.delete": opens(Ask, "Delete done"),
    "runs.unfilter": becomes(filter=("", False)),
    "comm.metric": next_of("metric", "lateness", "exposed", "duration", "bandwidth"),
    "comm.kind": next_of("kind", None, 0, 1, 2),
    "comm.phase": next_of("phase", None, 0, 1),
    "comm.group": both(next_of("group", "rank", "node", "unit"), becomes(rows=("node0",))),
    "comm.straggler": lambda before, after: getattr(after["spot"], "rank", None) == 2,
    "comm.open": {COMM: shows(CALLS), CALLS: becomes(place=1)},
    "comm.each": becomes(each=True),
    "comm.copy": copies("rank 2 · "),
    "run.freeze": becomes(frozen=True),
    "run.open": shows(RANK),
    "zoom": {
        RUN: becomes(zoomed="memory"),
        STEP: becomes(zoomed="timeline"),
        COMM: becomes(zoomed="map"),
        COMPARE: becomes(zoomed="bars"),
    },
    "past.back": becomes(past=19),
    "filter": becomes(filter=("", True), typing=True),
    "sort": {RUN: moves("sort", 1), RUNS: moves("sort", 1), COMM: changes("order")},
    "note": opens(AskNote),
    "run.logs": shows(LOGS),
    "run.stop": opens(Ask, "Stop the training live?"),
    "run.hold": opens(Ask, "Hold the training?"),
    "step.right": lambda before, after: after["cursor"] > before["cursor"],  # type: ignore[operator]
    "step.left": lambda before, after: after["cursor"] < before["cursor"],  # type: ignore[operator]
    "step.next_event": moves("cursor", 4 * MS),  # 9 MiB of activations are freed 107 ms after the begin
    "step.event_before": moves("cursor", -4 * MS),  # a block was gathered by 99 ms
    "step.peak": becomes(cursor=PEAK_MS * MS),
    "step.zoom_in": times("span", 0.5),
    "step.zoom_out": becomes(span=200 * MS),
    "step.capture_after": becomes(capture=2),
    "step.capture_before": becomes(capture=1),
    "step.next_rank": next_of("rank", 0, 1),
    "step.rank_before": next_of("rank", 1, 0),
    "run.capture": commands("capture"),
    "step.alone": moves("alone", 1),
    "step.open": opens(Text, "at the cursor"),
    "step.begin": becomes(cursor=0),
    "step.end": becomes(cursor=200 * MS),
    "run.log_y": becomes(log_scale=True),
    "run.moment": becomes(at_peak=False),
    "sort.reverse": becomes(reverse=True),
    "run.window": moves("window", 1),
    "run.restart": shows(LAUNCH),
    "run.copy": copies("fsdp-tui demo --strategy fsdp2:full_shard"),
    "rank.previous": {RANK: becomes(rank=0), LOGS: becomes(rank=0), CALLS: becomes(rank=0)},
    "rank.next": {RANK: becomes(rank=2), LOGS: becomes(rank=2), CALLS: becomes(rank=2)},
    "rank.stack": commands("stacks"),
    "logs.follow": becomes(follow=False),
    "logs.search": becomes(filter=("", True), typing=True),
    "logs.next": becomes(top=4),
    "logs.before": becomes(top=4),
    "launch.start": moves("started", 1),
    "launch.queue": moves("queue", 1),
    "launch.sweep": opens(AskSweep),
    "launch.copy": copies("fsdp-tui demo"),
    "launch.presets": opens(PresetList),
    "launch.save": opens(AskName),
    "launch.reset": becomes(spec=LaunchSpec()),
    "past.forth": becomes(past=11),
    "past.back_far": becomes(past=18),
    "past.forth_far": becomes(past=12),
    "past.event_before": becomes(past=4),
    "past.event_after": becomes(past=4),
    "past.jump": opens(AskStep),
    "past.begin": becomes(past=1),
    "past.end": becomes(past=None),
    "past.play": becomes(playing=True),
    "past.speed": becomes(speed=2),
    "queue.open": shows(RUN),
    "queue.compare": shows(COMPARE),
    "queue.cancel": opens(Ask, "Take it off the queue?"),
    "queue.cancel_all": opens(Ask, "Take 1 off the queue?"),
    "compare.open": shows(RUN),
    "compare.baseline": becomes(baseline=1),
    "compare.deltas": becomes(deltas=False),
    "compare.formula": opens(Text, "theory"),
    "compare.export": opens(Ask, "Write this comparison"),
    "back": dict.fromkeys((RUN, STEP, COMM, COMPARE), shows(RUNS))
    | {CALLS: shows(COMM), LOGS: shows(RUN), RANK: shows(RUN), QUEUE: shows(LAUNCH)},
    "show.runs": shows(RUNS),
    "show.run": shows(RUN),
    "show.step": shows(STEP),
    "show.comm": shows(COMM),
    "show.launch": shows(LAUNCH),
    "show.compare": shows(COMPARE),
    "queue": shows(QUEUE),
    "theme": changes("theme"),
    "letters": changes("letters"),
    "export.svg": writes(".svg"),
    "export.csv": writes(".csv"),
    "slower": becomes(hz=1.0),
    "faster": becomes(hz=4.0),
    "focus.next": becomes(focus="verdicts"),
    "quit": opens(Ask, "live is still training"),
    "quit.now": tells("again quits; runs go on"),
}
"""Action -> what it does; where that is another thing on another screen, by screen."""
BEFORE: dict[str, tuple[str, ...]] = {
    "leave_field": ("focus:field-batch",),
    "runs.delete": ("home", "down"),
    "runs.unfilter": ("slash", "z"),
    "comm.straggler": ("home", "up", "up", "up"),
    "step.peak": ("home",),
    "step.zoom_out": ("plus",),
    "step.capture_after": ("left_square_bracket",),
    "logs.next": ("slash", *"step 5 ", "enter"),
    "logs.before": ("slash", *"step 5 ", "enter"),
    "launch.reset": ("focus:field-batch", "9", "escape"),
    "past.forth": ("past:10",),
    "past.forth_far": ("past:10",),
    "past.event_before": ("past:10",),
    "past.event_after": ("past:2",),
    "past.end": ("past:10",),
    "past.speed": ("past:10",),
    "runs.mark": ("home",),
    "queue.open": ("home",),
    "queue.cancel": ("end",),
}
"""Action -> what is done before its key is pressed: keys, the focus given to a field, a step gone back to."""


PATIENCE = 200
OF_THE_PROGRAM = {"theme", "letters", "clipboard", "commands", "told", "files", "queue", "started", "marked"}
"""What stays when a screen is made anew."""


def test_every_key_is_here() -> None:
    """A new action needs its effect, on each of its screens."""
    assert EFFECTS.keys() == {key.id for key in KEYS}
    for key in KEYS:
        effect = EFFECTS[key.id]
        assert not isinstance(effect, dict) or effect.keys() == set(key.screens), key.id


@asynccontextmanager
async def visited(root: Path) -> AsyncIterator[tuple[Dashboard, Pilot[int], World]]:
    """The program on this screen: a live run of ours with a recording, captures and logs, a recorded one, and a queue."""
    world = World()
    about = entry("live", root, world_size=4)
    about.paths.logs.mkdir(parents=True)
    for rank in range(4):
        about.paths.log(rank).write_text("".join(f"step {n} \n" for n in range(1, 200)))
    source = world.add(LIVE, about)
    recorder, state = Recorder(about.paths.recording), RunState()
    for message in LIVE.messages():
        state.apply(message)
        recorder.add(message, encode(message), 1)
    recorder.close(state)
    for step, id_of in ((8, "one"), (12, "two")):
        for rank in (0, 1):
            source.state.apply(training_step(rank, step, id=id_of))
    for name in ("done", "other"):
        world.add(CommRecipe(name=name, ended="finished"))
    world.launches[about.id] = LaunchSpec(strategy="ddp")
    items = (
        Item(number=1, spec=LaunchSpec(name="done"), state="finished", run_id=run_id("done")),
        Item(number=2, spec=LaunchSpec(name="other"), state="finished", run_id=run_id("other")),
        Item(number=3, spec=LaunchSpec(name="third")),
    )
    world.queue = Queue(items=items)
    world.now_ns = LIVE.now_ns
    async with dashboard(world, open_on=about, own=(about.id,)) as (app, pilot):
        app.list_runs()
        await until(pilot, lambda: app.queue.open)
        yield app, pilot, world


async def go_to(screen: str, app: Dashboard, pilot: Pilot[int], world: World, at_first: dict[str, object]) -> None:
    """The screen as it is when it is opened, whatever was there before. `at_first`: how it looked when it was made."""
    while len(app.screen_stack) > 1:
        app.pop_screen()
    app.leave_past()
    app.marked = [run_id("done"), run_id("other")] if screen == COMPARE else []
    app.pace.asked = app.pace.hz = 2.0
    if app.feed is None or app.feed.entry.name != "live":
        app.open_run(world.entries[0])
        await until(pilot, lambda: app.snapshot is not None, "the run is open")
    app.clear_notifications()
    mode = {CALLS: COMM, RANK: RUN, LOGS: RUN}.get(screen, screen)
    app.action_show(mode)
    await settle(pilot)
    if own(look(app, world)) != at_first:
        app.action_show(QUEUE if mode != QUEUE else RUNS)
        await settle(pilot)
        await app.remove_mode(mode)  # it is made anew: nothing of the last key stays
        app.add_mode(mode, Dashboard.MODES[mode])
        app.action_show(mode)
        await settle(pilot)
    if screen == COMPARE:
        compared = app.screen
        assert isinstance(compared, CompareScreen)
        await until(pilot, lambda: len(compared.runs()) == 2)
        await settle(pilot)
    if screen == LAUNCH and (app.focused is None or app.focused.id != "card"):
        await pilot.press("escape")
    at_first |= own(look(app, world))
    if screen in (CALLS, RANK, LOGS):
        app.push_screen({CALLS: CallsScreen(1, 1), RANK: RankScreen(1), LOGS: LogsScreen(world.entries[0], 1)}[screen])
        await settle(pilot)


def own(seen: Look) -> Look:
    """What is the screen's own, and not the program's."""
    return {name: value for name, value in seen.items() if name not in OF_THE_PROGRAM}


async def do(step: str, app: Dashboard, pilot: Pilot[int]) -> None:
    kind, _, rest = step.partition(":")
    if kind == "focus":
        app.screen.query_one(f"#{rest}").focus()
    elif kind == "past":
        await pilot.press("number_sign", *rest, "enter")
        await until(pilot, lambda: app.place is not None and app.place.step == int(rest) and not app.place.fetching)
    else:
        await pilot.press(step)
    await settle(pilot)


@pytest.mark.parametrize("screen", SCREENS)
async def test_each_key_does_what_its_help_says(screen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys of the screen; those that work everywhere on the Run screen, which has keys for nearly everything too."""
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    keys = [key for key in KEYS if screen in key.screens or (screen == RUN and not key.screens)]
    wrong: list[str] = []
    at_first: dict[str, object] = {}
    async with visited(tmp_path) as (app, pilot, world):
        for key in keys:
            names = key.keys.split(",")
            done = {name: await works(key, name, screen, app, pilot, world, at_first) for name in names}
            wrong += [f"{name} ({key.id}): {key.help}" for name in names if not done[name]]
    assert not wrong


async def works(
    key: Key,
    name: str,
    screen: str,
    app: Dashboard,
    pilot: Pilot[int],
    world: World,
    at_first: dict[str, object],
) -> bool:
    """Presses one key on the screen as it is at first; whether what it is for came of it."""
    await go_to(screen, app, pilot, world, at_first)
    for step in BEFORE.get(key.id, ()):
        await do(step, app, pilot)
    if key.id == "show.run":
        app.action_show(RUNS)
    effect = EFFECTS[key.id]
    effect = effect[screen] if isinstance(effect, dict) else effect
    before = look(app, world)
    await pilot.press(name)
    for _ in range(PATIENCE):
        await settle(pilot)
        if effect(before, look(app, world)):
            return True
        await pilot.pause(0.01)  # for what a thread brings
    return False


@pytest.mark.parametrize(
    ("screen", "pattern", "every", "kept"),
    [
        (RUNS, "o", ("done", "live", "other"), ("done", "other")),
        (RUN, "1-2", ("0", "1", "2", "3"), ("1", "2")),
        (COMM, "1-2", ("0", "1", "2", "3"), ("1", "2")),
    ],
)
async def test_a_filter_leaves_what_matches(
    screen: str,
    pattern: str,
    every: tuple[str, ...],
    kept: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it is typed and after enter; escape brings all back."""
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    async with visited(tmp_path) as (app, pilot, world):
        await go_to(screen, app, pilot, world, {})
        assert rows_of(screen, app.text()) == every
        await press(pilot, "slash", *pattern)
        assert rows_of(screen, app.text()) == kept
        await press(pilot, "enter")
        assert rows_of(screen, app.text()) == kept
        await press(pilot, "escape")
        assert rows_of(screen, app.text()) == every
