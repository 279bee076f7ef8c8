"""Colours can be told apart in every colour depth, and each has a letter or glyph."""

from rich.color import Color as RichColor
from rich.color import ColorSystem
from textual.color import Color

from fsdp_tui.telemetry.messages import CATEGORIES
from fsdp_tui.tui.theme import (
    GROUP_OF,
    GROUPS,
    ROLES,
    SEVERITY_GLYPHS,
    STATE_MARKS,
    THEMES,
    Ink,
    Palette,
    next_theme,
    theme_for,
)

FILLS = [group.role for group in GROUPS]


def luminance(color: Color) -> float:
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio."""
    high, low = sorted((luminance(Color.parse(a)), luminance(Color.parse(b))), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_category_has_exactly_one_letter() -> None:
    assert sorted(GROUP_OF) == sorted(CATEGORIES)
    assert "".join(group.key for group in GROUPS) == "PGOUAc"


def test_every_theme_defines_every_role_and_says_nothing_of_unknown_ones() -> None:
    for theme in THEMES:
        assert theme.variables.keys() >= ROLES.keys(), theme.name
        for role in ROLES:
            Color.parse(theme.variables[role])
    assert {*SEVERITY_GLYPHS} | {mark.role for mark in STATE_MARKS.values()} <= ROLES.keys()


def test_the_six_fills_stay_six_colours_in_16_and_256() -> None:
    for theme in THEMES:
        if theme.ansi:
            numbers = [Color.parse(theme.variables[role]).rich_color.number for role in FILLS]
        else:
            numbers = [RichColor.parse(theme.variables[role]).downgrade(ColorSystem.EIGHT_BIT).number for role in FILLS]
        assert len(set(numbers)) == len(FILLS), theme.name


def test_fills_and_text_stand_out_from_the_background() -> None:
    for theme, fill, text in zip(THEMES, (2.9, 3.2, 4.5), (4.5, 4.5, 7.0), strict=False):
        assert theme.background is not None
        for role in FILLS:
            assert contrast(theme.variables[role], theme.background) >= fill, (theme.name, role)
        for role in ("label", "quiet"):
            assert contrast(theme.variables[role], theme.background) >= text, (theme.name, role)


def test_themes_go_round_and_start_with_what_the_terminal_can() -> None:
    names = [theme.name for theme in THEMES]
    assert [next_theme(name) for name in names] == [*names[1:], names[0]]
    assert next_theme("textual-dark") == names[0]
    assert theme_for("truecolor") == "fsdp-dark"
    assert theme_for("standard") == "fsdp-terminal"


def test_a_palette_survives_a_foreign_theme() -> None:
    palette = Palette({"params": "no colour"})
    assert palette[Ink("params")].color is None
    assert palette[Ink("grads", "", True)].bold
    assert palette[Ink("ok")] is palette[Ink("ok")]
