"""What the ranks printed."""

from __future__ import annotations

from pathlib import Path

from fsdp_tui.tui.screens.logs import LogsScreen, LogView

from .drive import dashboard, press, said, settle
from .fixtures import Recipe, World, entry


def a_world(root: Path) -> World:
    world = World()
    about = entry("tiny", root)
    world.add(Recipe(), about)
    about.paths.logs.mkdir(parents=True)
    about.paths.log(0).write_text("".join(f"step {n} loss {5 / n:.3f}\n" for n in range(1, 101)))
    about.paths.launcher_log.write_text("started 2 ranks\n")
    return world


async def test_follow_and_stand_still(tmp_path: Path) -> None:
    """New lines come by themselves until one scrolls up; f goes back to the end."""
    world = a_world(tmp_path)
    about = world.entries[0]
    async with dashboard(world, open_on=about) as (app, pilot):
        await press(pilot, "o")
        assert "step 100 loss" in app.text()
        assert "100 lines" in app.text()
        with about.paths.log(0).open("a") as log:
            log.write("something new\n")
        await settle(pilot)
        assert "something new" in app.text()
        await press(pilot, "home")
        assert "step 1 loss" in app.text()
        assert "standing still" in app.text()
        await press(pilot, "f")
        assert "something new" in app.text()
        await press(pilot, "pageup")
        assert "something new" not in app.text()
        await press(pilot, "end")
        assert "following the end" in app.text()
        await pilot.resize_terminal(40, 12)
        await settle(pilot)
        assert "/logs/rank-0.log ─╯" in app.text()  # the end of a long path tells one from another


async def test_search(tmp_path: Path) -> None:
    """A pattern, then n and N; what matches nothing is said."""
    world = a_world(tmp_path)
    async with dashboard(world, open_on=world.entries[0], size=(80, 24)) as (app, pilot):
        await press(pilot, "o", "slash", *"step 5 ", "enter", "n")
        assert "/step 5  1 lines" in app.text()
        view = app.screen.query_one("#log", LogView)
        assert view.lines[view.top].startswith("step 5 ")
        await press(pilot, "N")
        assert view.lines[view.top].startswith("step 5 ")
        await press(pilot, "slash", *"zzz")
        assert "no line matches" in app.text()
        await press(pilot, "enter", "n")
        assert "no line matches" in said(app)


async def test_other_ranks_and_the_launcher(tmp_path: Path) -> None:
    """Left and right; a rank without a log says so."""
    world = a_world(tmp_path)
    async with dashboard(world, open_on=world.entries[0]) as (app, pilot):
        await press(pilot, "o", "right")
        assert "rank 1 has printed nothing" in app.text()
        await press(pilot, "left", "left")
        assert isinstance(app.screen, LogsScreen)
        assert "started 2 ranks" in app.text()
