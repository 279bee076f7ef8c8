"""The lines around a screen's panes: what is watched, where one is, and which keys work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from textual.events import Click
from textual.widget import Widget

from fsdp_tui.telemetry.messages import ENDED
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui import format as fmt
from fsdp_tui.tui.keys import KEYS, Key, keys_for, shown
from fsdp_tui.tui.replay import Place
from fsdp_tui.tui.theme import STATE_MARKS, Ink, StateMark
from fsdp_tui.tui.widgets.chart import LABEL, QUIET, STRONG, Chart, Row, crop, row_width

STALE_NS = 3_000_000_000
"""Ranks give a sign of life twice a second; after this long without one the picture is stale."""
NAME_LEAST = 8
"""Cells of a run's name that are shown before other parts of the header."""
DAMAGED = StateMark("✗", "DAMAGED", "bad")


def state_mark(state: str) -> StateMark:
    """How a state looks; a state of a newer program reads as its own name."""
    return STATE_MARKS.get(state) or (DAMAGED if state == "damaged" else StateMark("?", state.upper(), "note"))


def is_stopping(run: RunView) -> bool:
    """Whether the run has been asked to stop and still goes on."""
    return run.state not in ENDED and any(event.kind == "stop_requested" for event in run.events)


def data_age_ns(run: RunView, now_ns: int) -> int | None:
    """Since the last sign of life of any rank; None before the first."""
    seen = max((rank.seen_ns for rank in run.ranks if rank.seen_ns is not None), default=None)
    return None if seen is None else max(0, now_ns - seen)


def ranks_text(run: RunView) -> str:
    """How many of which device: "8 × H100 80GB HBM3", "2 × CPU"."""
    hello = next((rank.hello for rank in run.ranks if rank.hello), None)
    if hello is None:
        return f"{fmt.count(run.world_size or None)} ranks" if run.world_size != 1 else "1 rank"
    device = "CPU" if hello.device == "cpu" else hello.device_name.removeprefix("NVIDIA ").strip() or hello.device
    return f"{run.world_size:,} × {device}"


def strategy_text(run: RunView) -> str:
    """The strategy that was asked for, by the launch or else by the script, and what PyTorch made of it where that differs."""
    asked = run.requested or run.script
    if asked and run.effective and asked != run.effective:
        return f"{asked} → {run.effective}"
    return run.effective or asked or (fmt.OWN if run.launched else fmt.UNKNOWN)


def overridden(run: RunView) -> str:
    """The script's own strategy where the launch asked for another; else ""."""
    return run.script if run.requested not in ("", run.script) else ""


def ago(ns: int) -> str:
    """ "12 s ago", "3 min ago", "2 h ago", "5 d ago"."""
    seconds = max(0, ns // 10**9)
    for size, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {word} ago"
    return f"{seconds} s ago"


@dataclass(frozen=True)
class HeaderFacts:
    """What the header says of the open run, and when."""

    run: RunView | None
    live: bool
    now_ns: int
    name: str = ""
    problem: str = ""
    """Instead of everything else."""
    title: str = ""
    """Of a screen that is not about one run, with a few words about it."""
    about: str = ""
    past: Place | None = None
    """Where in its past the run is shown; None: as it is now."""
    now: RunView | None = None
    """How it goes meanwhile."""


class _Part(NamedTuple):
    need: int
    """The largest goes first where room is short."""
    row: Row


def draw_header(facts: HeaderFacts, width: int) -> Row:
    """One row: state, name, strategy, ranks, step, time, and at the right how old the data are."""
    run = facts.run
    if facts.title:
        row: Row = [
            (" fsdp-tui", STRONG),
            ("  " + fmt.fit(facts.title, min(len(facts.title), max(0, width - 11))), LABEL),
        ]
        room = width - row_width(row) - 4
        return crop([*row, (f"   {facts.about}" if len(facts.about) <= room else "", QUIET)], width)
    if facts.problem or run is None:
        mark = STATE_MARKS["failed"] if facts.problem else STATE_MARKS["starting"]
        said = facts.problem or (f"opening {facts.name} …" if facts.name else "no run open")
        return crop([(f" {mark.glyph} ", Ink(mark.role, bold=True)), (fmt.fit(said, max(0, width - 3)), LABEL)], width)
    age = data_age_ns(run, facts.now_ns)
    mark, extra, right = state_mark(run.state), "", ""
    if run.state in ENDED:
        ended = run.ended.ended_ns if run.ended else None
        right = f"ended {ago(facts.now_ns - ended)}" if ended and facts.now_ns >= ended else "recorded"
    elif run.ranks and all(rank.goodbye for rank in run.ranks):  # silent, as is right
        mark, right = STATE_MARKS["ending"], "its ranks have left"
    elif is_stopping(run):
        mark, right = STATE_MARKS["stopping"], f"data {fmt.age(age)}" if age is not None else "no rank heard yet"
    elif age is not None and age > STALE_NS:
        mark, extra = STATE_MARKS["stale"], f" {fmt.age(age).removesuffix(' old')}"
        right = f"data {fmt.age(age)}"
    else:
        right = f"data {fmt.age(age)}" if age is not None else "no rank heard yet"
    planned = run.launched.steps if run.launched else None
    until = run.ended.ended_ns if run.ended else facts.now_ns
    steps = f"step {run.steps:,}" + (f"/{planned:,}" if planned else "")
    options = run.launched.options if run.launched else {}
    precision = str(options.get("precision") or "")
    changed = "→" in strategy_text(run)
    own = overridden(run)
    state = [(f"{mark.glyph} {mark.word}{extra}", Ink(mark.role, bold=True))]
    if facts.past is not None:
        state, steps, until = [(past_text(facts.past, facts.now or run, facts.now_ns), Ink("warn", bold=True))], "", 0
        right = now_text(facts.now or run)
    watching, lost = ("", 0) if facts.past is not None or not run.ranks else (f"cost {own_share(run)}", run.dropped)
    parts = [
        _Part(0, state),
        _Part(1, [(f"▲ {lost:,} dropped", Ink("warn", bold=True))] if lost else []),
        _Part(2, [(run.name or "unnamed", STRONG)]),
        _Part(3, [(strategy_text(run), Ink("warn") if changed else LABEL)]),
        _Part(6, [(f"script: {own}", QUIET)] if own else []),
        _Part(8, [(precision, LABEL)] if precision else []),
        _Part(4, [(ranks_text(run), LABEL)]),
        _Part(1, [(steps, LABEL)] if steps else []),
        _Part(7, [(fmt.clock(until - run.started_ns), LABEL)] if run.started_ns and until >= run.started_ns else []),
        _Part(5, [(watching, QUIET)] if watching else []),
        _Part(9, [("0 dropped", QUIET)] if watching and not lost else []),
    ]
    # A name of any length leaves room for what is as needed.
    others = [part for part in parts if part.row and part.need <= 4 and part is not parts[2]]
    room = width - 1 - len(right) - 3 - _width([*others, _Part(2, [("", STRONG)])])
    parts[2] = _Part(2, [(fmt.shortened(run.name or "unnamed", max(NAME_LEAST, room)), STRONG)])
    # How old the data are is said in fewer words before the strategy goes; the strategy goes before the age does.
    for wide, enough in ((right, 3), (right.removeprefix("data ").removeprefix("ended "), 2), ("", 0)):
        chosen = [part for part in parts if part.row]
        room = width - 1 - (len(wide) + 3 if wide else 0)
        while _width(chosen) > room and max(part.need for part in chosen) > enough:
            worst = max(part.need for part in chosen)
            chosen = [part for part in chosen if part.need != worst]
        if _width(chosen) <= room:
            # What has gone leaves its room to the name.
            least = row_width(parts[2].row) + max(0, room - _width(chosen))
            full = _Part(2, [(fmt.shortened(run.name or "unnamed", least), STRONG)])
            chosen = [full if part is parts[2] else part for part in chosen]
            break
    row = [(" ", LABEL)]
    for at, part in enumerate(chosen):
        row += ([(" · " if at > 1 else "  ", QUIET)] if at else []) + part.row
    if row_width(row) > width:
        text, ink = row.pop()
        row.append((fmt.fit(text, max(0, width - row_width(row))), ink))
    return crop([*row, (" " * max(0, width - row_width(row) - len(wide) - 1), LABEL), (wide, QUIET)], width)


def own_share(run: RunView) -> str:
    """What watching takes of a step: "0.16 %"."""
    share = run.overhead_ns / run.step_median_ns if run.overhead_ns is not None and run.step_median_ns else None
    return fmt.percent(share, decimals=2)


def past_text(place: Place, now: RunView, now_ns: int) -> str:
    """That a moment of the past is shown, and which: "▮▮ step 120 of 400 · 00:12:30 ago"."""
    sign = f"▶ {place.speed}×" if place.playing else "▮▮"
    ended = now.ended.ended_ns if now.ended else None
    words = "before the end" if ended is not None else "ago"
    since = (ended if ended is not None else now_ns) - place.at_ns if place.at_ns is not None else None
    when = f" · {fmt.clock(max(0, since))} {words}" if since is not None else ""
    if place.fetching and not place.playing:
        when += " · …"
    # The newest steps are not all ranks' yet: as far as the header says that the run has come.
    return f"{sign} step {place.step:,} of {max(place.step, now.steps or place.last):,}{when}"


def now_text(now: RunView) -> str:
    """How the run goes meanwhile."""
    mark = STATE_MARKS["stopping"] if is_stopping(now) else state_mark(now.state)
    return f"now {mark.glyph} {mark.word}" + (f" step {now.steps:,}" if now.state not in ENDED else "")


def _width(parts: Sequence[_Part]) -> int:
    return sum(row_width(part.row) for part in parts) + max(0, 3 * len(parts) - 4)


class Header(Chart):
    """The first line."""

    DEFAULT_CSS = "Header { height: 1; }"
    facts = HeaderFacts(None, False, 0)

    def show_facts(self, facts: HeaderFacts) -> None:
        self.facts = facts
        self.redraw()

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        return [draw_header(self.facts, width)]


def bound_keys(widget: Widget) -> Sequence[Key]:
    """The table of keys as a person has bound them."""
    return getattr(widget.app, "keys", KEYS) if widget.is_attached else KEYS


class Tabs(Chart):
    """The screens with their keys, and at the right how the current one is set."""

    DEFAULT_CSS = "Tabs { height: 1; }"

    def __init__(self, screen: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._current = screen
        self._notes: Sequence[Row] = ()
        self._urgent = False

    def show_notes(self, notes: Sequence[Row], *, urgent: bool = False) -> None:
        """Pieces for the right end, the most important first; `urgent`: the screens' names give way to the first."""
        self._notes, self._urgent = notes, urgent
        self.redraw()

    def _tabs(self, width: int) -> list[tuple[Key, str]]:
        """Each screen's key with what stands for it; its name only where there is room for all names."""
        screens = [key for key in bound_keys(self) if key.id.startswith("show.")]
        urgent = row_width(self._notes[0]) + 3 if self._urgent and self._notes else 0
        for named in (True, False):
            tabs = []
            for key in screens:
                text = shown(key.keys.split(",")[0]) + (f" {key.label.title()}" if named else "")
                mine = key.id == f"show.{self._current}"
                tabs.append((key, f"[{text}]" if mine else f" {text} "))
            if sum(len(text) for _, text in tabs) + urgent <= width:
                break
        return tabs

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        row: Row = [(text, STRONG if key.id == f"show.{self._current}" else QUIET) for key, text in self._tabs(width)]
        notes: Row = []
        for note in self._notes:
            piece = [*note, ("   ", QUIET), *notes] if notes else note
            if row_width(row) + row_width(piece) + 3 <= width:
                notes = piece
        return [crop([*row, (" " * max(0, width - row_width(row) - row_width(notes) - 1), LABEL), *notes], width)]

    def on_click(self, event: Click) -> None:
        x = 0
        for key, text in self._tabs(self.size.width):
            x += len(text)
            if event.x < x:
                self.app.call_later(self.app.run_action, f"app.{key.action}")
                return


class KeyBar(Chart):
    """The last line: the keys of the screen, as many as fit; `?` shows them all."""

    DEFAULT_CSS = "KeyBar { height: 1; }"

    def __init__(self, screen: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._screen = screen
        self._typing = False
        self._idle: frozenset[str] = frozenset()

    def show_idle(self, idle: frozenset[str]) -> None:
        """What keys may need that there is not now (`Key.needs`): those that need it are left out."""
        if idle != self._idle:
            self._idle = idle
            self.redraw()

    def show_typing(self, typing: bool) -> None:
        """Whether a field has the focus: letter keys rest then."""
        if typing != self._typing:
            self._typing = typing
            self.redraw()

    def _keys(self, width: int) -> list[tuple[Key, Row]]:
        chosen: list[tuple[Key, Row]] = []
        x = 1
        keys = [key for key in keys_for(self._screen, bound_keys(self)) if key.needs not in self._idle]
        quitting = [key for key in keys if key.id == "quit"]
        for key in [*(key for key in keys if key.footer and key.id != "quit"), *quitting]:
            name = _field_key(key) if self._typing else key.keys.split(",")[0]
            if not name:
                continue
            piece = _piece(key, name)
            # Quit keeps its place: nobody should have to look for it.
            reserved = 0 if key.id == "quit" or self._typing else sum(2 + row_width(_piece(one)) for one in quitting)
            if x + row_width(piece) + reserved <= width:
                chosen.append((key, piece))
                x += row_width(piece) + 2
        return chosen

    def draw(self, width: int, height: int, letters: bool) -> list[Row]:
        row: Row = [(" ", LABEL)]
        for at, (_, piece) in enumerate(self._keys(width)):
            row += ([("  ", LABEL)] if at else []) + piece
        return [crop(row, width)]

    def on_click(self, event: Click) -> None:
        x = 1
        for key, piece in self._keys(self.size.width):
            if x <= event.x < x + row_width(piece):
                target = "screen" if key.screens else "app"
                self.app.call_later(self.app.run_action, key.action if "." in key.action else f"{target}.{key.action}")
                return
            x += row_width(piece) + 2


def _piece(key: Key, name: str = "") -> Row:
    """A key with its label; `name`: not the first of its keys."""
    return [(shown(name or key.keys.split(",")[0]), Ink("ok", bold=True)), (f" {key.label}", QUIET)]


def _field_key(key: Key) -> str:
    """The first of a key's names that a text field does not take for itself; "" when it takes all."""
    free = (
        name
        for name in key.keys.split(",")
        if name in ("escape", "tab", "f1", "f5", "f6", "f7") or name.startswith("ctrl+")
    )
    return next(free, "")
