"""The queue: filled from the Launch form, shown as it goes, cancelled with a question, compared at its end."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from fsdp_tui.telemetry.launch import LaunchSpec
from fsdp_tui.telemetry.queue import Item, Queue
from fsdp_tui.tui.screens.base import Ask
from fsdp_tui.tui.screens.compare import CompareScreen
from fsdp_tui.tui.screens.launch import LaunchScreen
from fsdp_tui.tui.screens.queue import AskSweep, QueueScreen, queue_words
from fsdp_tui.tui.screens.run import RunScreen

from .drive import check_golden, dashboard, press, said, settle, until
from .fixtures import Recipe, World


def a_world() -> World:
    """A queue of five: done, done, running, failed before, waiting."""
    world = World()
    for recipe in (
        Recipe(name="sweep ddp", strategy="ddp", ended="finished", planned=40),
        Recipe(name="sweep full", strategy="fsdp2:full_shard", ended="finished", planned=40),
        Recipe(name="sweep zero2", strategy="fsdp2:shard_grad_op", steps=12, planned=40),
    ):
        world.add(recipe)
    ids = {one.name: one.id for one in world.entries}
    items = [
        Item(number=1, spec=spec("sweep ddp", "ddp"), state="finished", run_id=ids["sweep ddp"]),
        Item(number=2, spec=spec("sweep full", "fsdp2:full_shard"), state="finished", run_id=ids["sweep full"]),
        Item(number=3, spec=spec("sweep odd", "fsdp1:full_shard"), state="failed", reason="ValueError: no more data"),
        Item(number=4, spec=spec("sweep zero2", "fsdp2:shard_grad_op"), state="running", run_id=ids["sweep zero2"]),
        Item(number=5, spec=spec("sweep one", "single")),
    ]
    world.queue = Queue(items=tuple(items))
    return world


def spec(name: str, strategy: str) -> LaunchSpec:
    return LaunchSpec(name=name, strategy=strategy, steps=40)


def through(queue: Queue) -> Queue:
    """The same queue when all that was open is finished."""
    return Queue(
        items=tuple(
            msgspec.structs.replace(item, state="finished" if item.state == "running" else "cancelled")
            if item.state in ("running", "waiting")
            else item
            for item in queue.items
        )
    )


async def test_what_the_queue_shows() -> None:
    """Done, running with its steps, waiting, failed with the reason."""
    for size in ((120, 40), (80, 24), (60, 20)):
        async with dashboard(a_world(), size=size) as (app, pilot):
            app.list_runs()
            await until(pilot, lambda: app.queue.open)
            await press(pilot, "Q")
            text = app.text()
            for line, done in zip(text.splitlines()[4:], (40, 40, None, 12, 0), strict=False):
                bar = re.findall("[█·]{10}", line)
                assert bar == ([] if not done or size[0] < 80 else [("█" * (done * 10 // 40)).ljust(10, "·")])
                assert (f" {done}/40 " if done else " 40 ") in line
            assert "WAITING" in text
            assert "2 of 5 done, 1 failed" in text
            await press(pilot, "down", "down")
            assert "ValueError: no more data" in app.text()
            check_golden(f"queue-{size[0]}x{size[1]}", app.text())


async def test_an_empty_queue_says_how_to_fill_it() -> None:
    """And has nothing to cancel or compare."""
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "Q")
        assert "the queue is empty" in app.text()
        await press(pilot, "x", "X", "enter", "v")
        assert isinstance(app.screen, QueueScreen)
        assert "nothing to cancel" in said(app)
        await press(pilot, "escape")
        assert isinstance(app.screen, LaunchScreen)


async def test_the_form_is_put_at_the_end_of_the_queue() -> None:
    """From inside a field by F6, outside by a; not while something is wrong."""
    world = World()
    async with dashboard(world) as (app, pilot):
        await press(pilot, "4", "f6", "escape", "a")
        assert [item.number for item in world.queue.items] == [1, 2]
        assert "It trains 50 steps" in said(app)
        assert "queue (Q): 0 of 2 done" in app.text()
        field = app.screen.query_one("#field-batch")
        field.value = "7"  # type: ignore[attr-defined]
        await press(pilot, "a")
        assert len(world.queue.items) == 2
        assert "does not divide" in said(app)


async def test_a_sweep_of_chosen_strategies() -> None:
    """Those that this machine cannot run cannot be chosen; others are typed and checked."""
    world = World()
    async with dashboard(world) as (app, pilot):
        await press(pilot, "4", "f7")
        assert isinstance(app.screen, AskSweep)
        assert "6 runs of 50 steps" in app.text()
        assert "[✓]  fsdp2:shard_grad_op" in app.text()
        await press(pilot, "end", "space")
        assert "hybrid_shard_zero2" in said(app)
        await press(pilot, "a", "a")
        assert "nothing is chosen" in app.text()
        await press(pilot, "f5", "enter")
        assert isinstance(app.screen, AskSweep)
        await press(pilot, "home", "space", "down", "space", "tab", *"nonsense")
        assert "▲" in app.text()
        await press(pilot, "enter")
        assert not world.queue.items
        await press(pilot, *["backspace"] * 8, *"ddp,fsdp2:full_shard", "enter")
        await settle(pilot)
        assert app.current_mode == "queue"
        strategies = [item.spec.strategy for item in world.queue.items]
        assert strategies == ["single", "ddp", "fsdp2:full_shard"]
        assert {item.spec.steps for item in world.queue.items} == {50}


@pytest.mark.parametrize("effective", ["fsdp1:shard_grad_op", ""])
async def test_a_sweep_begins_with_what_the_script_was_seen_to_use(effective: str, tmp_path: Path) -> None:
    """Of a script that chose its strategy by itself, the strategy of the run; one run is no plural."""
    script = tmp_path / "train.py"
    script.write_text("")
    async with dashboard(World()) as (app, pilot):
        await press(pilot, "4")
        form = app.screen
        assert isinstance(form, LaunchScreen)
        form.fill(LaunchSpec(target="script", script=str(script), steps=1), effective=effective)
        await settle(pilot)
        await press(pilot, "f7")
        assert isinstance(app.screen, AskSweep)
        assert app.screen.chosen == {effective or "fsdp2:full_shard"}
        assert "1 run of 1 step" in app.text()
        assert "1 steps" not in app.text()


async def test_cancelling_asks() -> None:
    """One launch or all; what is over has nothing to cancel."""
    world = a_world()
    async with dashboard(world) as (app, pilot):
        app.list_runs()
        await until(pilot, lambda: app.queue.open)
        await press(pilot, "Q", "x")
        assert "is over" in said(app)
        await press(pilot, "end", "x")
        assert isinstance(app.screen, Ask)
        assert "Take it off the queue?" in app.text()
        await press(pilot, "escape")
        assert world.cancelled == []
        await press(pilot, "x", "x", "up", "x")
        assert "Stop it on all ranks at one step" in app.text()
        await press(pilot, "x", "X", "x")
        assert world.cancelled == [[5], [4], None]


async def test_at_the_end_it_offers_to_compare() -> None:
    """A question on the queue's own screens, a notice elsewhere; the finished runs are marked."""
    world = a_world()
    async with dashboard(world) as (app, pilot):
        app.list_runs()
        await until(pilot, lambda: app.queue.open)
        await press(pilot, "Q")
        world.queue = through(world.queue)
        app.list_runs()
        await until(pilot, lambda: isinstance(app.screen, Ask))
        await settle(pilot)
        assert "Compare the runs?" in app.text()
        await press(pilot, "v")
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        assert app.marked == world.queue.finished
        await until(pilot, lambda: len(screen.runs()) == 3)


async def test_elsewhere_its_end_is_a_notice() -> None:
    """Nobody who looks at a run is asked something that takes a key."""
    world = a_world()
    async with dashboard(world) as (app, pilot):
        app.list_runs()
        await until(pilot, lambda: app.queue.open)
        await press(pilot, "enter")
        assert isinstance(app.screen, RunScreen)
        app._show_queue(through(app.queue))
        await settle(pilot)
        assert "3 of 5 done, 1 failed, 1 cancelled" in said(app)
        assert isinstance(app.screen, RunScreen)
        await press(pilot, "Q", "enter")
        assert app.feed is not None
        assert app.feed.entry.name == "sweep ddp"


def test_the_queue_in_a_few_words() -> None:
    """Nothing for an empty one."""
    assert queue_words(Queue()) == ""
    assert queue_words(a_world().queue) == "2 of 5 done, 1 failed"
