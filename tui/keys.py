"""Every key of the dashboard, once: bindings, the line at the bottom, help and the command palette are made from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from textual.binding import Binding
from textual.keys import _character_to_key


class Key(NamedTuple):
    """One thing that a key does."""

    id: str
    """Stable, so that a key map can change its keys."""
    keys: str
    """Textual's names, separated by commas; the first is the one that is shown."""
    action: str
    """Method `action_...` of the screen, or of the app for keys that work everywhere."""
    label: str
    """In the line at the bottom."""
    help: str
    """What it does, in one sentence."""
    screens: tuple[str, ...] = ()
    """Empty: everywhere."""
    palette: str = ""
    """Prefix of its entry in the palette ("view", "run", "export", "theme"); empty: it has none."""
    footer: bool = True
    """Whether the line at the bottom shows it where there is room."""
    rests_on: tuple[str, ...] = ()
    """Screens on which its keys do something else."""
    needs: str = ""
    """Without what it does nothing: LIVE, MOVING; then the line at the bottom leaves it out."""


QUEUE = "queue"
RUN, RUNS, LAUNCH, COMPARE, LOGS, RANK = "run", "runs", "launch", "compare", "logs", "rank"
STEP, COMM, CALLS = "step", "comm", "calls"
LIVE = "a run that goes on"
MOVING = "a picture that goes on"
"""That of a live run, or of a past that is played."""
PANES = (RUN, COMPARE, RANK)
OF_RUN = (RUN, STEP, COMM, RANK, CALLS)
"""Screens of one run, which can be gone back in."""

# fmt: off
KEYS: tuple[Key, ...] = (
    # In the order of the line at the bottom: what is needed most comes first and is cut last.
    Key("help", "question_mark,f1", "help", "help", "What this screen shows, and every key that works on it.", (), "view"),
    Key("palette", "ctrl+p,colon", "command_palette", "palette", "Find anything that can be done here by its name."),
    Key("leave_field", "escape", "leave_field", "leave field", "Leave the field, so that letter keys work; once more: back to the runs.", (LAUNCH,)),
    # Runs
    Key("runs.open", "enter", "open", "open", "Open the run: a live one as it trains, a recorded one as it ended.", (RUNS,), "run"),
    Key("runs.mark", "space", "mark", "mark", "Mark the run for comparing; the first one marked is the baseline.", (RUNS,)),
    Key("runs.delete", "d,delete", "delete", "delete", "Delete the run and everything recorded of it. Asks first.", (RUNS,), "run"),
    Key("runs.unfilter", "escape", "back", "end filter", "Ends the filter: all runs are shown again.", (RUNS,), footer=False),
    # Comm
    Key("comm.metric", "x", "metric", "metric", "What the colours say: lateness, exposed time, duration, bus bandwidth.", (COMM,), "view"),
    Key("comm.kind", "a", "kind", "collective", "All collectives together, or one kind: all-gather, reduce-scatter, all-reduce.", (COMM,), "view"),
    Key("comm.phase", "f", "phase", "fwd/bwd", "The whole step, only forward, or only backward.", (COMM,), "view"),
    Key("comm.group", "g", "group", "group", "Rows are ranks, nodes (the worst rank of each), or units.", (COMM,), "view"),
    Key("comm.straggler", "n", "straggler", "next straggler", "To the worst cell, then to the worst of each other rank that stands out.", (COMM,), "view"),
    Key("comm.open", "enter", "open", "drill down", "From the map to all of a rank's units, to the collectives of one, to one in full.", (COMM, CALLS)),
    Key("comm.each", "d", "each", "density", "A cell for every rank and unit, and the map scrolls; or all in view, neighbours sharing a cell.", (COMM,), "view"),
    Key("comm.copy", "y", "copy", "copy cell", "Copy what is known of the cell as one line.", (COMM,), "view", footer=False),
    # Run
    Key("run.freeze", "p,space", "freeze", "freeze", "Freeze the panels (not the training, and not the header), or let them go on.", (RUN, COMM), "view", needs=MOVING),
    Key("run.open", "enter", "open", "details", "Details of the focused pane: all memory of a rank, all verdicts, a unit's calls, all events.", (RUN,)),
    Key("zoom", "z", "zoom", "zoom", "The focused pane takes the whole screen, or goes back to its place.", (RUN, STEP, COMM, COMPARE), "view"),
    Key("past.back", "less_than_sign", "past_step(-1)", "past", "One recorded step back, into the past. The run goes on meanwhile, and nothing is lost.", OF_RUN, "past"),
    Key("filter", "slash", "filter", "filter", "Show only what matches. Ranks: 5, 8-15, >90% of capacity, node:pattern, or any pattern, ! inverts; units beside them: unit:pattern; runs: a pattern, tag:NAME.", (RUN, RUNS, COMM), "view"),
    Key("sort", "s", "sort", "sort", "Sort by the next key.", (RUN, RUNS, COMM), "view"),
    Key("note", "n", "note", "note", "Write a note on the run, or tags; they are kept with its recording, and the filter finds tag:NAME.", (RUNS, RUN), "run"),
    Key("run.logs", "o,L", "logs", "logs", "What the ranks printed, as it comes, one log per rank.", (RUN,), "run"),
    Key("run.stop", "x,ctrl+k", "stop", "stop run", "Stop the training on all ranks at one step. Asks first.", (RUN,), "run", needs=LIVE),
    Key("run.hold", "h", "hold", "hold training", "Hold the training on all ranks at one step (asks first), or let it go on.", (RUN,), "run", needs=LIVE),
    # Step
    Key("step.right", "right", "column(1)", "cursor", "The cursor to the next column of the picture, at its highest moment.", (STEP,)),
    Key("step.left", "left", "column(-1)", "cursor back", "The cursor to the column before.", (STEP,), footer=False),
    Key("step.next_event", "full_stop", "event(1)", "event", "The cursor to the next change of memory.", (STEP,)),
    Key("step.event_before", "comma", "event(-1)", "event before", "The cursor to the change of memory before.", (STEP,), footer=False),
    Key("step.peak", "p", "peak", "peak", "The cursor to the highest moment of what is shown.", (STEP,), "view"),
    Key("step.zoom_in", "plus,equals_sign", "time_zoom(2)", "time zoom", "The axis of time twice as fine, around the cursor.", (STEP,), "view"),
    Key("step.zoom_out", "minus", "time_zoom(0.5)", "zoom out", "The axis of time half as fine.", (STEP,), "view", footer=False),
    Key("step.capture_after", "right_square_bracket", "other_capture(1)", "capture after", "The rank's next capture; on the newest one a newer one follows by itself.", (STEP,), footer=False),
    Key("step.capture_before", "left_square_bracket", "other_capture(-1)", "older", "The rank's capture before.", (STEP,)),
    Key("step.next_rank", "r,down", "other_rank(1)", "rank", "The next rank with a capture: of the same step the cursor stays where it is.", (STEP,)),
    Key("step.rank_before", "R,up", "other_rank(-1)", "rank before", "The rank before.", (STEP,), footer=False),
    Key("run.capture", "k", "capture", "capture", "Capture the next step on all ranks: every allocation and free of it, and why its peak is where it is: the Step screen shows it.", (RUN, STEP), "run", needs=LIVE),
    Key("step.alone", "m", "alone", "one alone", "Only unsharded parameters, activations, temporaries, gradients or collective buffers, each on its own scale; then all again.", (STEP,), "view"),
    Key("step.open", "enter", "open", "details", "The focused pane in full: every category at the cursor, or why the peak is where it is.", (STEP,)),
    Key("step.begin", "home", "begin", "begin", "The cursor to the beginning of the step.", (STEP,), footer=False),
    Key("step.end", "end", "end", "end", "The cursor to the end of the step.", (STEP,), footer=False),
    # Run, what is needed less
    Key("run.log_y", "l", "log_y", "log y", "Logarithmic loss axis, or back to linear.", (RUN,), "view"),
    Key("run.moment", "m", "moment", "peak/now", "Memory at the highest moment of the last step, or after its optimizer step, where parameters, gradients and optimizer remain.", (RUN,), "view"),
    Key("sort.reverse", "S", "sort_reverse", "reverse", "Reverse the order.", (RUN, RUNS), "view", footer=False),
    Key("run.window", "w", "window", "window", "Steps that the charts show: all, or only the newest 1,000, 200 or 50.", (RUN,), "view", footer=False),
    Key("run.restart", "R", "restart", "launch again", "Fill the Launch form in with this run's launch, to start it again with another strategy.", (RUN, RUNS), "run", footer=False),
    Key("run.copy", "y", "copy", "copy command", "Copy the command line that repeats this run.", (RUN,), "run", footer=False),
    # Rank and logs
    Key("rank.previous", "left,left_square_bracket", "previous", "previous rank", "The rank before.", (RANK, LOGS, CALLS)),
    Key("rank.next", "right,right_square_bracket", "next", "next rank", "The rank after.", (RANK, LOGS, CALLS)),
    Key("rank.stack", "s", "stack", "stack", "Ask the rank what it is doing: the stack of its training thread, also while it hangs in a collective.", (RANK,), "run", needs=LIVE),
    Key("logs.follow", "f", "follow", "follow", "Stay at the end as new lines come, or stay here.", (LOGS,), "view"),
    Key("logs.search", "slash", "filter", "search", "Find lines by a pattern.", (LOGS,), "view"),
    Key("logs.next", "n", "next_match", "next match", "The next line that matches.", (LOGS,)),
    Key("logs.before", "N", "previous_match", "match before", "The line before that matches.", (LOGS,), footer=False),
    # Launch
    Key("launch.start", "f5,ctrl+enter,ctrl+j", "launch", "launch", "Start this training; enter in a text field does it too. Refused while something is wrong with it.", (LAUNCH,), "run"),
    Key("launch.queue", "a,f6", "enqueue", "add to queue", "Put this training at the end of the queue: its launches run one after another, also when this program is left.", (LAUNCH,), "run"),
    Key("launch.sweep", "w,f7", "sweep", "sweep", "The same training under several strategies, one after another, to be compared.", (LAUNCH,), "run"),
    Key("launch.copy", "y", "copy", "copy command", "Copy the command line that does the same.", (LAUNCH,), "run"),
    Key("launch.presets", "o", "presets", "presets", "Saved launches: load one into the form, or delete it.", (LAUNCH,), "run"),
    Key("launch.save", "s", "save_preset", "save preset", "Save what the form says as a preset: a TOML file that can be committed.", (LAUNCH,), "run"),
    Key("launch.reset", "r", "reset", "reset", "Every field back to its default.", (LAUNCH,), "run"),
    # The past
    Key("past.forth", "greater_than_sign", "past_step(1)", "step on", "In the past: one recorded step on; beyond the newest one is the present.", OF_RUN, "past", footer=False),
    Key("past.back_far", "left_curly_bracket", "past_part(-1)", "a tenth back", "A tenth of the run back.", OF_RUN, "past", footer=False),
    Key("past.forth_far", "right_curly_bracket", "past_part(1)", "a tenth on", "In the past: a tenth of the run on.", OF_RUN, "past", footer=False),
    Key("past.event_before", "left_parenthesis", "past_event(-1)", "event before", "Back to the event before: the first step that ended after it.", OF_RUN, "past", footer=False),
    Key("past.event_after", "right_parenthesis", "past_event(1)", "next event", "In the past: on to the next event.", OF_RUN, "past", footer=False),
    Key("past.jump", "number_sign", "past_jump", "go to step", "Asks for a step of the run and goes there.", OF_RUN, "past", footer=False),
    Key("past.begin", "ctrl+home", "past_begin", "first step", "Back to the first recorded step.", OF_RUN, "past", footer=False),
    Key("past.end", "ctrl+end", "past_end", "now", "Back to the present; end on the line of time does it too.", OF_RUN, "past", footer=False),
    Key("past.play", "P", "past_play", "play", "Play the run from the moment that is shown, from its begin when that is the present; or stand still.", OF_RUN, "past", footer=False),
    Key("past.speed", "F", "past_speed", "speed", "Play at 1, 2, 10 or 100 times the speed at which it was recorded.", OF_RUN, "past", footer=False),
    # Queue
    Key("queue.open", "enter", "open", "open run", "Open the run of the launch that the cursor is on.", (QUEUE,)),
    Key("queue.compare", "v", "compare", "compare", "Mark the queue's finished runs, six at most, and compare them.", (QUEUE,), "run"),
    Key("queue.cancel", "x,d,delete", "cancel", "cancel", "Take the launch off the queue; of one that runs, stop the run. Asks first.", (QUEUE,), "run"),
    Key("queue.cancel_all", "X", "cancel_all", "cancel all", "Stop what runs, and take off the queue all that waits. Asks first.", (QUEUE,), "run"),
    # Compare
    Key("compare.open", "enter", "open", "open run", "Open the run that the cursor is on.", (COMPARE,)),
    Key("compare.baseline", "b", "baseline", "baseline", "The next run becomes the one that the others are compared with.", (COMPARE,), "view"),
    Key("compare.deltas", "d", "deltas", "differences", "With differences to the baseline, or the bare numbers.", (COMPARE,), "view"),
    Key("compare.formula", "f", "formula", "theory", "What theory says of each run beside what was measured, and how it is worked out.", (COMPARE,), "view"),
    Key("compare.export", "v", "export", "write file", "Write the comparison to a file: Markdown, SVG or JSON.", (COMPARE,), "export"),
    # Everywhere
    Key("back", "escape", "back", "back", "Back to where you came from; ends a filter or a zoom first, and returns from the past.", (RUN, STEP, COMM, CALLS, COMPARE, LOGS, RANK, QUEUE)),
    Key("show.runs", "0", "show('runs')", "runs", "Live and recorded runs of this machine.", (), "view", footer=False),
    Key("show.run", "1", "show('run')", "run", "The open run: memory, loss, throughput, step, collectives, events.", (), "view", footer=False),
    Key("show.step", "2", "show('step')", "step", "Memory inside one captured step: what is alive when, and why the peak is where it is.", (), "view", footer=False),
    Key("show.comm", "3", "show('comm')", "comm", "Collectives by rank and unit: who waits for whom, and where.", (), "view", footer=False),
    Key("show.launch", "4", "show('launch')", "launch", "Start a training.", (), "view", footer=False),
    Key("show.compare", "5", "show('compare')", "compare", "The marked runs side by side.", (), "view", footer=False),
    Key("queue", "Q", "show('queue')", "queue", "The queue of launches: what is done, runs and waits.", (), "view", footer=False),
    Key("theme", "t", "theme", "theme", "Next theme: dark, light, high contrast, the terminal's own colours.", (), "theme"),
    Key("letters", "c", "letters", "letters", "Letters and glyphs instead of colours, or back.", (), "theme", footer=False),
    Key("export.svg", "e", "screenshot", "export", "Save a picture of this screen as SVG in the current directory.", (), "export"),
    Key("export.csv", "E", "csv", "export data", "Write what this screen shows as CSV into the current directory: a file per table.", (), "export", footer=False),
    Key("slower", "minus", "slower", "slower", "Refresh half as often (down to every two seconds).", (), "view", footer=False, rests_on=(STEP,)),
    Key("faster", "equals_sign,plus", "faster", "faster", "Refresh twice as often (up to four times a second).", (), "view", footer=False, rests_on=(STEP,)),
    Key("focus.next", "tab", "app.focus_next", "next pane", "The next pane or field; shift+tab goes back.", (), footer=False),
    Key("quit", "q", "leave", "quit", "Quit. Asks while a run that was launched from here is still going on.", (), "run"),
    Key("quit.now", "ctrl+c", "interrupt", "quit now", "Twice: quit at once; runs go on.", (), footer=False),
)
# fmt: on

SIGNS = {sign: _character_to_key(sign) for sign in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"}
"""Sign -> Textual's name of its key."""
_SHOWN = {name: sign for sign, name in SIGNS.items()} | {
    "enter": "↵",
    "escape": "esc",
    "left": "←",
    "right": "→",
    "up": "↑",
    "down": "↓",
}


def shown(key: str) -> str:
    """A key as people write it: "^p", "?", "F5"."""
    if key in _SHOWN:
        return _SHOWN[key]
    if key.startswith("ctrl+"):
        return f"^{shown(key.removeprefix('ctrl+'))}"
    return key.upper() if len(key) > 1 and key[0] == "f" and key[1:].isdigit() else key


_NAMED = re.compile(r"\{([a-z._]+)\}")


def with_keys(text: str, table: Sequence[Key] = KEYS) -> str:
    """A sentence that names keys: in "{run.capture} captures" the first key of that action stands. `table`: as a person has
    bound them."""
    first = {key.id: shown(key.keys.split(",")[0]) for key in table}
    return _NAMED.sub(lambda found: first.get(found[1], found[0]), text)


def keys_for(screen: str, table: Sequence[Key] = KEYS) -> Iterator[Key]:
    """The keys that work on a screen, those that work everywhere included. `table`: as a person has bound them."""
    return (key for key in table if (not key.screens or screen in key.screens) and screen not in key.rests_on)


def bindings_of(screen: str | None) -> list[Binding]:
    """A screen's own bindings; None: those of the app."""
    return [
        Binding(
            key.keys,
            key.action,
            key.label,
            show=key.footer,
            key_display=shown(key.keys.split(",")[0]),
            tooltip=key.help,
            id=key.id if not key.screens else f"{screen}/{key.id}",
            # Ctrl-C must get through to us from inside a field too.
            priority=key.id == "quit.now",
        )
        for key in KEYS
        if (not key.screens if screen is None else screen in key.screens)
    ]
