"""What works everywhere: opening, leaving, themes, sizes, and data that are not as they should be."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.events import Key

from fsdp_tui.telemetry.messages import Event
from fsdp_tui.tui.app import Dashboard
from fsdp_tui.tui.once import screen_text
from fsdp_tui.tui.pace import FRAMES
from fsdp_tui.tui.theme import THEMES

from .captures import training_step
from .drive import check_fits, check_golden, dashboard, opened, press, said, settle, until
from .fixtures import SECOND, Recipe, World, entry

SIZES = [(300, 80), (20, 5), (30, 8), (200, 60), (60, 20), (120, 40), (40, 12)]


WAYS = {
    "runs": "0",
    "run": "1",
    "zoomed": "1 z",
    "filtered": "1 slash 1",
    "rank": "1 enter",
    "logs": "1 o",
    "step": "2",
    "comm": "3",
    "calls": "3 enter",
    "unit": "3 enter enter",
    "collective": "3 enter enter enter",
    "launch": "4",
    "sweep": "4 f7",
    "compare": "5",
    "queue": "Q",
    "help": "1 question_mark",
    "palette": "1 ctrl+p",
    "question": "1 x",
    "note": "1 n",
}
"""Screen, or what lies over one -> the keys that lead there."""


@pytest.mark.parametrize("way", WAYS)
async def test_resizing_while_data_come(way: str) -> None:
    """From 20x5 to 300x80 and back, a step between each two sizes; nothing is drawn beyond its place."""
    async with opened() as (app, pilot, world):
        source = next(iter(world.sources.values()))
        source.state.apply(training_step())
        app.marked = [source.entry.id, world.add(Recipe(name="other")).entry.id]
        app.entries = list(world.entries)
        await press(pilot, *WAYS[way].split())
        number = 41
        for width, height in (*SIZES, SIZES[0]):
            recipe = Recipe(steps=number)
            for rank in range(2):
                source.state.apply(recipe.step(rank, number))
                source.state.apply(recipe.comm(rank, number))
            number += 1
            await pilot.resize_terminal(width, height)
            await settle(pilot)
            check_fits(app)


async def test_a_question_keeps_its_answers_in_the_smallest_terminal() -> None:
    """What does not fit is cut from what it says."""
    async with opened(size=(20, 5)) as (app, pilot, _):
        await press(pilot, "x")
        assert "Stop the" in app.text()
        assert "n  no, let it" in app.text()
        assert "s  stop it" in app.text()
        await pilot.resize_terminal(80, 24)
        await settle(pilot)
        assert "afterwards." in app.text()


async def test_quit_is_one_key_when_nothing_is_ours() -> None:
    """A run of somebody else goes on; there is nothing to ask."""
    async with opened() as (app, pilot, world):
        await pilot.press("q")
        await pilot.pause()
        assert app.return_code == 0
        assert next(iter(world.sources.values())).commands == []


async def test_quit_asks_for_our_own_run() -> None:
    """Stay, leave it running, or stop it: each does what it says."""
    async with opened(own=True) as (app, pilot, world):
        source = next(iter(world.sources.values()))
        await press(pilot, "q")
        assert "tiny is still training" in app.text()
        await press(pilot, "escape")
        assert "tiny is still training" not in app.text()
        assert app.is_running
        await press(pilot, "q", "enter")  # the harmless answer has the focus
        assert app.is_running
        await press(pilot, "q")
        await pilot.press("l")
        await pilot.pause()
        assert app.return_code == 0
        assert source.commands == []


async def test_quit_and_stop_waits_until_it_has_stopped() -> None:
    """Nothing of ours is left behind."""
    async with opened(own=True) as (app, pilot, world):
        source = next(iter(world.sources.values()))
        await press(pilot, "q")
        await pilot.press("s")
        await until(pilot, lambda: source.commands == ["stop"])
        await until(pilot, lambda: app.return_code == 0)


async def test_quit_does_not_ask_when_our_run_has_ended() -> None:
    """It is over: there is nothing to leave running."""
    async with opened(Recipe(ended="finished"), own=True) as (app, pilot, _):
        await pilot.press("q")
        await pilot.pause()
        assert app.return_code == 0


@pytest.mark.parametrize("key", ["1", "2", "3", "4", "5", "Q", "n", "?"])
async def test_a_key_behind_the_last_one_opens_no_screen(key: str) -> None:
    """None could be made any more: nothing is mounted once the program is being left. Without it Pilot raises what it raised."""
    world = World()
    world.add(Recipe(ended="finished"))
    async with dashboard(world) as (app, pilot):
        before = [id(screen) for screen in app._screens()]
        for typed in ("q", key):
            app.post_message(Key(typed, typed))
        await pilot.pause()
        await until(pilot, lambda: app.return_code == 0)
        assert [id(screen) for screen in app._screens()] in (before, [])


async def test_the_same_notice_is_up_once() -> None:
    """A key that is pressed again and again does not cover the screen with what it says; other notices stay."""
    async with opened(Recipe(ended="finished")) as (app, pilot, _):
        app.notify("something else", markup=False)
        await press(pilot, *"kkkk", *"ttt", *"==")
        assert said(app).count("nothing to capture") == 1
        assert said(app).count("theme") == 1
        assert said(app).count("refresh") == 1
        assert said(app).count("something else") == 1
        assert len(app._notifications) == 4


async def test_ctrl_c_twice() -> None:
    """The first says what the second will do, also from inside a field."""
    async with opened(own=True) as (app, pilot, _):
        await press(pilot, "slash", "ctrl+c")
        assert "^c again quits" in said(app)
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert app.return_code == 0


async def test_a_stop_that_takes_long_says_what_it_does() -> None:
    """Each word once, as a notice, on whatever screen one is."""
    words = (("stop_waits", "note", "waiting: SIGTERM after 30 s"), ("stop_sigterm", "warn", "SIGTERM to all ranks"))
    async with opened() as (app, pilot, world):
        (source,) = world.sources.values()
        await press(pilot, "2")
        for at, (kind, severity, text) in enumerate(words):
            source.state.apply(Event(at_ns=at + 1, kind=kind, severity=severity, text=text))
            await until(pilot, lambda text=text: text in said(app))  # type: ignore[misc]
        await settle(pilot)
        assert [said(app).count(text) for _, _, text in words] == [1, 1]


async def test_themes_and_letters() -> None:
    """All four in turn, and letters on and off."""
    async with opened() as (app, pilot, _):
        seen = [app.theme]
        for _ in THEMES:
            await press(pilot, "t")
            seen.append(app.theme)
        assert set(seen) == {theme.name for theme in THEMES}
        assert seen[0] == seen[-1]
        assert "PPPP" in app.text()
        await press(pilot, "c")
        assert "PPPP" not in app.text()


async def test_faster_and_slower() -> None:
    """0.5 to 4 Hz, said in the tabs line."""
    async with opened() as (app, pilot, _):
        await press(pilot, "=", "=", "=")
        assert app.pace.hz == 4
        assert " 4 Hz" in app.text()
        await press(pilot, "-", "-", "-", "-")
        assert app.pace.hz == 0.5


async def test_screenshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SVG of what is seen, in the current directory."""
    monkeypatch.chdir(tmp_path)
    async with opened() as (app, pilot, _):
        await press(pilot, "e")
        (saved,) = tmp_path.glob("*.svg")
        assert "tiny" in saved.name
        assert str(saved) in said(app)


async def test_screens_by_their_numbers() -> None:
    """And the one that is open is marked."""
    async with opened() as (app, pilot, _):
        for key, mode in (("0", "runs"), ("4", "launch"), ("5", "compare"), ("1", "run")):
            await press(pilot, key)
            assert app.current_mode == mode
            assert f"[{key} {mode.title()}]" in app.text()
            if mode == "launch":
                await press(pilot, "escape")


async def test_tabs_and_keys_answer_the_mouse() -> None:
    """A click on a tab is its key; a click on the last line too."""
    async with opened() as (app, pilot, _):
        await pilot.click("Tabs", offset=(3, 0))
        await settle(pilot)
        assert app.current_mode == "runs"
        await press(pilot, "1")
        await pilot.click("KeyBar", offset=(3, 0))
        await settle(pilot)
        assert "help · run" in app.text()


async def test_once_is_the_run_screen_as_text() -> None:
    """Plain text of exactly the size that was asked for, without keys that nobody can press."""
    world = World()
    source = world.add(Recipe(ended="finished"))
    text = await screen_text(world.services(), source.entry, 80, 24)
    lines = text.split("\n")
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert "✓ DONE" in lines[0]
    assert "? help" not in text
    assert "\x1b" not in text
    assert "needs more lines: collectives, events" in text
    check_golden("once-80x24", text)


async def test_once_says_why_a_run_cannot_be_read() -> None:
    """It ends, and the reason is in the text."""
    world = World()
    about = entry("broken", live=False, state="finished")
    world.entries.append(about)
    assert "its recording is damaged" in await screen_text(world.services(), about, 80, 24)


async def test_slow_frames_halve_the_rate() -> None:
    """So that keys are answered on a machine that is busy training."""
    async with opened() as (app, pilot, _):
        assert any(app.pace.drew(0.1) for _ in range(2 * FRAMES))
        assert app.pace.hz == 1
        await settle(pilot)


async def test_many_ranks_draw_within_a_frame() -> None:
    """A guard against work per rank and cell, not a benchmark: 256 ranks in well under a second."""
    import time

    async with opened(Recipe(ranks=256, steps=3)) as (app, pilot, _):
        began_s = time.process_time()
        await settle(pilot)
        assert time.process_time() - began_s < 2
        assert "256 × CPU" in app.text()


def test_the_clock_is_the_services() -> None:
    """Nothing on the screen depends on when the test runs."""
    world = World()
    app = Dashboard(world.services())
    world.now_ns += SECOND
    assert app.services.now_ns() == world.now_ns
