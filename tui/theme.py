"""Colours, and the letter or glyph that doubles each of them.

A chart names a *role* ("params", "bad", "heat-3"); the theme says which colour that is. Roles are theme variables, so
`.tcss` files use them as `$params`, and `palette_for` turns them into rich styles for charts. The six category colours
keep apart under protanopia, deuteranopia and tritanopia and are never the only cue (letters mode prints GROUPS' keys).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rich.color import Color as RichColor
from rich.style import Style
from textual.app import App
from textual.color import Color, ColorParseError
from textual.theme import Theme

from fsdp_tui.telemetry.messages import CATEGORIES


class Group(NamedTuple):
    """Memory categories that share one colour and one letter."""

    key: str
    """The letter."""
    role: str
    label: str
    short: str
    categories: tuple[str, ...]


GROUPS: Final = (
    # In the order of the stack: what is always there first, so that the ideal mark meets the end of the states.
    Group("P", "params", "params", "par", ("param_shard", "buffer")),
    Group("G", "grads", "grads", "grad", ("grad_shard", "grad_unsharded")),
    Group("O", "optimizer", "optim", "opt", ("optimizer",)),
    Group("U", "unsharded", "unsharded", "unsh", ("param_unsharded", "comm_buffer")),
    Group("A", "activation", "activ.", "act", ("activation", "temp")),
    Group("c", "cache", "cache+rest", "cache", ("cache", "non_torch", "unexplained", "others")),
)
"""Letters: P params, G gradients, O optimizer, U unsharded (all-gathered), A activations, c cache and the rest."""

GROUP_OF: Final = {category: group for group in GROUPS for category in group.categories}
"""Category -> its group; every category of the wire has one."""
assert GROUP_OF.keys() == set(CATEGORIES)

SEVERITY_GLYPHS: Final = {"ok": "✓", "note": "·", "warn": "!", "bad": "▲"}
"""Severity (also its role) -> glyph."""


class StateMark(NamedTuple):
    """How a run's state looks."""

    glyph: str
    word: str
    role: str


STATE_MARKS: Final = {
    "starting": StateMark("◌", "STARTING", "note"),
    "running": StateMark("●", "LIVE", "ok"),
    "stale": StateMark("◌", "STALE", "warn"),
    "ending": StateMark("◌", "ENDING", "note"),
    "paused": StateMark("❚❚", "PAUSED", "warn"),
    "stopping": StateMark("■", "STOPPING", "warn"),
    "stopped": StateMark("■", "STOPPED", "note"),
    "finished": StateMark("✓", "DONE", "ok"),
    "failed": StateMark("✗", "FAILED", "bad"),
    "lost": StateMark("✕", "LOST", "bad"),
}
"""Run state (and of a live one "stale": silent, "stopping": asked to stop, "ending": its ranks have all left) -> mark."""

SERIES: Final = ("series-1", "series-2", "series-3", "series-4", "series-5", "series-6")
"""Roles of lines in one chart, in order."""
HEAT_LEVELS: Final = 8
HEAT_GLYPHS: Final = "··░░▒▒▓█"
"""Letters mode: one per level."""

_DARK: Final = {
    "label": "#c8d0d8",
    "quiet": "#7d8994",
    "strong": "#ffffff",
    "cursor": "#2c3e50",
    "frame": "#33414f",
    "params": "#0072B2",
    "grads": "#009E73",
    "optimizer": "#CC79A7",
    "unsharded": "#E69F00",
    "activation": "#56B4E9",
    "cache": "#606060",
    "free": "#1c232b",
    "free-dot": "#3d4853",
    "ideal": "#F0E442",
    "peak": "#ffffff",
    "ok": "#4aa3df",
    "note": "#8b98a5",
    "warn": "#E69F00",
    "bad": "#D55E00",
    "gather": "#E69F00",
    "reduce": "#D55E00",
    "phase-input": "#009E73",
    "phase-forward": "#56B4E9",
    "phase-backward": "#0072B2",
    "phase-optimizer": "#CC79A7",
    "phase-rest": "#1c232b",
    "raw": "#46535f",
    "series-1": "#56B4E9",
    "series-2": "#E69F00",
    "series-3": "#CC79A7",
    "series-4": "#009E73",
    "series-5": "#F0E442",
    "series-6": "#D55E00",
    # cividis, 8 levels
    "heat-0": "#00204D",
    "heat-1": "#13366E",
    "heat-2": "#434E6C",
    "heat-3": "#666870",
    "heat-4": "#848279",
    "heat-5": "#A59D74",
    "heat-6": "#CBBA69",
    "heat-7": "#FFEA46",
    "heat-text-low": "#ffffff",
    "heat-text-high": "#000000",
}

_LIGHT: Final = _DARK | {
    "label": "#24303a",
    "quiet": "#66727d",
    "strong": "#000000",
    "cursor": "#cfe0ee",
    "frame": "#b6c2cc",
    "params": "#00507D",
    "grads": "#00815E",
    "optimizer": "#B9609A",
    "unsharded": "#A66300",
    "activation": "#3A96CC",
    "cache": "#8C8C8C",
    "free": "#e8edf2",
    "free-dot": "#b3bfca",
    "ideal": "#8a7a00",
    "peak": "#000000",
    "ok": "#00507D",
    "note": "#66727d",
    "warn": "#8f5600",
    "bad": "#B34700",
    "gather": "#A66300",
    "reduce": "#B34700",
    "phase-input": "#00815E",
    "phase-forward": "#3A96CC",
    "phase-backward": "#00507D",
    "phase-optimizer": "#B9609A",
    "phase-rest": "#e8edf2",
    "raw": "#b3bfca",
    "series-1": "#00507D",
    "series-2": "#A66300",
    "series-3": "#B9609A",
    "series-4": "#00815E",
    "series-5": "#3A96CC",
    "series-6": "#B34700",
}

_CONTRAST: Final = _DARK | {
    "label": "#ffffff",
    "quiet": "#c4c4c4",
    "cursor": "#003c8f",
    "frame": "#8A8A8A",
    "params": "#2E86FF",
    "grads": "#00C07A",
    "optimizer": "#FF7FC8",
    "unsharded": "#FFB000",
    "activation": "#9BE8FF",
    "cache": "#8A8A8A",
    "free": "#000000",
    "free-dot": "#8A8A8A",
    "ideal": "#FFFF00",
    "ok": "#9BE8FF",
    "note": "#c4c4c4",
    "warn": "#FFB000",
    "bad": "#FF7A33",
    "gather": "#FFB000",
    "reduce": "#FF7A33",
    "phase-input": "#00C07A",
    "phase-forward": "#9BE8FF",
    "phase-backward": "#2E86FF",
    "phase-optimizer": "#FF7FC8",
    "phase-rest": "#000000",
    "raw": "#8A8A8A",
    "series-1": "#9BE8FF",
    "series-2": "#FFB000",
    "series-3": "#FF7FC8",
    "series-4": "#00C07A",
    "series-5": "#FFFF00",
    "series-6": "#FF7A33",
}

# The terminal's own 16 colours. A table and not a down-sampling, which would give params and grads the same cyan.
_TERMINAL: Final = {
    "label": "ansi_default",
    "quiet": "ansi_bright_black",
    "strong": "ansi_default",
    "cursor": "ansi_bright_black",
    "frame": "ansi_bright_black",
    "params": "ansi_blue",
    "grads": "ansi_green",
    "optimizer": "ansi_magenta",
    "unsharded": "ansi_yellow",
    "activation": "ansi_cyan",
    "cache": "ansi_bright_black",
    "free": "ansi_default",
    "free-dot": "ansi_bright_black",
    "ideal": "ansi_bright_yellow",
    "peak": "ansi_default",
    "ok": "ansi_bright_blue",
    "note": "ansi_default",
    "warn": "ansi_yellow",
    "bad": "ansi_bright_red",
    "gather": "ansi_yellow",
    "reduce": "ansi_bright_red",
    "phase-input": "ansi_green",
    "phase-forward": "ansi_cyan",
    "phase-backward": "ansi_blue",
    "phase-optimizer": "ansi_magenta",
    "phase-rest": "ansi_default",
    "raw": "ansi_bright_black",
    "series-1": "ansi_cyan",
    "series-2": "ansi_yellow",
    "series-3": "ansi_magenta",
    "series-4": "ansi_green",
    "series-5": "ansi_bright_yellow",
    "series-6": "ansi_bright_red",
    "heat-0": "ansi_black",
    "heat-1": "ansi_blue",
    "heat-2": "ansi_bright_blue",
    "heat-3": "ansi_cyan",
    "heat-4": "ansi_bright_cyan",
    "heat-5": "ansi_yellow",
    "heat-6": "ansi_bright_yellow",
    "heat-7": "ansi_bright_white",
    "heat-text-low": "ansi_bright_white",
    "heat-text-high": "ansi_black",
}

ROLES: Final[Mapping[str, str]] = _DARK
"""Every role with its colour in the dark theme; an app returns this from `get_theme_variable_defaults` so that
`$params` parses under Textual's own themes too."""

THEMES: Final = (
    Theme(
        name="fsdp-dark",
        primary="#4aa3df",
        secondary="#0072B2",
        accent="#56B4E9",
        warning="#E69F00",
        error="#D55E00",
        success="#4aa3df",
        foreground="#dbe2e8",
        background="#101418",
        surface="#161c22",
        panel="#1b2a38",
        variables={**_DARK, "footer-key-foreground": "#56B4E9", "border": "#56B4E9", "border-blurred": "#33414f"},
    ),
    Theme(
        name="fsdp-light",
        primary="#00507D",
        secondary="#3A96CC",
        accent="#00507D",
        warning="#A66300",
        error="#B34700",
        success="#00507D",
        foreground="#1a242d",
        background="#ffffff",
        surface="#f3f6f8",
        panel="#dfe8ef",
        dark=False,
        variables={**_LIGHT, "footer-key-foreground": "#00507D", "border": "#00507D", "border-blurred": "#b6c2cc"},
    ),
    Theme(
        name="fsdp-contrast",
        primary="#9BE8FF",
        secondary="#2E86FF",
        accent="#FFFF00",
        warning="#FFB000",
        error="#FF7A33",
        success="#9BE8FF",
        foreground="#ffffff",
        background="#000000",
        surface="#000000",
        panel="#141414",
        variables={**_CONTRAST, "footer-key-foreground": "#FFFF00", "border": "#FFFF00", "border-blurred": "#8A8A8A"},
    ),
    Theme(
        name="fsdp-terminal",
        ansi=True,
        primary="ansi_blue",
        secondary="ansi_cyan",
        accent="ansi_cyan",
        warning="ansi_yellow",
        error="ansi_bright_red",
        success="ansi_bright_blue",
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        variables={
            **_TERMINAL,
            "ansi-background": "ansi_black",
            "ansi-foreground": "ansi_white",
            "border": "ansi_cyan",
            "border-blurred": "ansi_bright_black",
            "footer-key-foreground": "ansi_cyan",
            "input-cursor-text-style": "reverse",
            # In lists: what one is on, also where there are no colours. (Textual's lists do not know reverse.)
            "block-cursor-foreground": "ansi_black",
            "block-cursor-background": "ansi_white",
            "block-cursor-text-style": "bold underline",
        },
    ),
)
"""In the order that the theme key goes through them."""


def theme_for(color_system: str | None) -> str:
    """The theme to start with: the terminal's own colours where there are no more than 16."""
    return "fsdp-dark" if color_system in ("truecolor", "256", "windows", "auto") else "fsdp-terminal"


def next_theme(name: str) -> str:
    """The theme after this one."""
    names = [theme.name for theme in THEMES]
    return names[(names.index(name) + 1) % len(names)] if name in names else names[0]


def letters_mode(app: App[Any]) -> bool:
    """Whether charts print letters: the app's `letters` is on, or NO_COLOR is set."""
    return app.no_color or bool(getattr(app, "letters", False))


class Ink(NamedTuple):
    """Which roles a piece of a chart is drawn in. An empty `bg` is the widget's own background."""

    fg: str = "label"
    bg: str = ""
    bold: bool = False


CURSOR: Final = "cursor"
"""The role that lies behind what one is on."""


class Palette:
    """Rich styles for inks under one theme."""

    def __init__(self, variables: Mapping[str, str], *, reverse_cursor: bool = False) -> None:
        """`reverse_cursor`: what one is on is shown in reverse, where a colour for it may be none, or the background's."""
        self._variables = variables
        self._reverse_cursor = reverse_cursor
        self._colors: dict[str, RichColor | None] = {}
        self._styles: dict[Ink, Style] = {}

    def __getitem__(self, ink: Ink) -> Style:
        style = self._styles.get(ink)
        if style is None:
            reverse = self._reverse_cursor and ink.bg == CURSOR
            background = None if reverse else self.color(ink.bg)
            style = Style(
                color=None if reverse else self.color(ink.fg),
                bgcolor=background,
                bold=ink.bold or None,
                reverse=reverse or None,
            )
            self._styles[ink] = style
        return style

    def color(self, role: str) -> RichColor | None:
        """A role's colour; None for no role, and for a role whose colour cannot be read (a foreign theme)."""
        if not role:
            return None
        if role not in self._colors:
            try:
                self._colors[role] = Color.parse(self._variables.get(role, ROLES[role])).rich_color
            except ColorParseError:
                self._colors[role] = None
        return self._colors[role]


_palettes: dict[tuple[str, str, bool], Palette] = {}


def palette_for(app: App[Any]) -> Palette:
    """The palette of the app's theme."""
    variables = app.theme_variables
    # The name alone is not enough: a theme may be registered again under it.
    key = (app.theme, variables.get("params", "") + variables.get("background", ""), app.native_ansi_color)
    if key not in _palettes:
        _palettes[key] = Palette(dict(variables), reverse_cursor=key[2])
    return _palettes[key]
