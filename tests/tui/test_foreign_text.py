"""Texts of other programs: what a terminal would obey in them reaches neither the terminal nor a picture of the screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from textual.events import Paste

from fsdp_tui.telemetry.messages import Ended, Event
from fsdp_tui.tui.app import Dashboard

from .drive import dashboard, press, said, settle
from .fixtures import Recipe, World

REASON = "RuntimeError: boom \x1b[31mred\x1b[0m \x07\x9b2J"


def a_world() -> World:
    """A run whose name, note column, verdict, event and log tail have control characters in them."""
    world = World()
    source = world.add(Recipe(name="tiny\x1b[5m", ended="failed"))
    ended = source.state.ended
    assert isinstance(ended, Ended)
    source.state.apply(Event(at_ns=ended.ended_ns, kind="hub_gap", severity="warn", text=f"an event: {REASON}"))
    source.state.apply(msgspec.structs.replace(ended, reason=REASON, log_tail=["\tindented", REASON]))
    world.entries[:] = [replace(source.entry, problem=REASON)]
    source.entry = world.entries[0]
    return world


def check_harmless(app: Dashboard) -> None:
    """Every cell, and the picture of them."""
    drawn = app.screen._compositor.render_strips()
    assert all(text.isprintable() for strip in drawn for text, _, control in strip if not control)
    width = app.size.width
    assert {strip.cell_length for strip in drawn} == {width}
    ElementTree.fromstring(app.export_screenshot())


async def test_of_a_run() -> None:
    """Words stay, and every widget keeps its cells."""
    world = a_world()
    async with dashboard(world, open_on=world.entries[0]) as (app, pilot):
        assert "boom red" in app.text()
        check_harmless(app)
        for way in ("enter", "escape", "tab tab enter", "escape", "0", "d", "escape", "ctrl+p", "escape"):
            await press(pilot, *way.split())
            check_harmless(app)
        assert "boom red" in app.text()
        app.notify(REASON, markup=False)
        await settle(pilot)
        assert "boom" in said(app)
        check_harmless(app)


async def test_of_what_is_pasted_into_a_field() -> None:
    """The form draws it, says what is wrong with it, and draws the command."""
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "4")
        app.screen.set_focus(app.screen.query_one("#field-data"))
        app.post_message(Paste("a\x03b\x1b[31mc"))
        await settle(pilot)
        assert "no such file" in app.text()
        check_harmless(app)


async def test_of_the_picture_that_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is well-formed."""
    monkeypatch.chdir(tmp_path)
    world = a_world()
    async with dashboard(world, open_on=world.entries[0]) as (_, pilot):
        await press(pilot, "e")
        (saved,) = tmp_path.glob("*.svg")
        ElementTree.parse(saved)
