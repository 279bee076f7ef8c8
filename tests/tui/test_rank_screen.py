"""The rank's own screen: asked what it is doing, it shows it."""

from __future__ import annotations

from fsdp_tui.telemetry.messages import Beat, Where

from .drive import opened, press, said, settle, until
from .fixtures import SECOND, STARTED_NS, Recipe


async def test_a_rank_is_asked_what_it_is_doing() -> None:
    """This rank and no other; the innermost call comes first, and the run's clock says when it was."""
    async with opened(size=(120, 50)) as (app, pilot, world):
        (source,) = world.sources.values()
        await press(pilot, "down", "enter", "s")
        await until(pilot, lambda: source.commands == ["stacks"], "the run is asked")
        await until(pilot, lambda: "what it was doing" in app.text(), "the answer is shown")
        text = app.text()
        assert "what it was doing at 0:01:01, innermost call first" in text
        assert text.index("all_gather") < text.index("/home/me/train.py:12") < text.index("loss = model(x)")
        assert [rank for rank, known in source.state.ranks.items() if known.stack] == [1]


async def test_where_a_rank_is() -> None:
    """By its heartbeats: the collective that it waits in, and for how long nothing has moved."""
    async with opened(size=(120, 50)) as (app, pilot, world):
        (source,) = world.sources.values()
        began_ns = STARTED_NS + 60 * SECOND
        for seconds in (0, 7):
            where = Where("forward", 41, 0, 0, inside=True)
            source.state.apply(Beat(0, 1, began_ns + seconds * SECOND, 40, 9, 0, where=where))
        await press(pilot, "enter")
        await until(pilot, lambda: "nothing has moved" in app.text(), "it is told")
        assert "at its last heartbeat it waits in the all-gather of blocks.0 (forward), collective 41" in app.text()
        assert "nothing has moved for 7.00 s" in app.text()


async def test_a_run_that_is_over_is_not_asked() -> None:
    """There is nobody to ask."""
    async with opened(Recipe(ended="finished")) as (app, pilot, world):
        (source,) = world.sources.values()
        await press(pilot, "enter", "s")
        await settle(pilot)
        assert "this run is over: nothing to ask" in said(app)
        assert source.commands == []


async def test_dropped_samples_are_counted() -> None:
    """What the ranks could not send: all of it in the first line, at any width, and each rank's own in its details."""
    async with opened() as (app, pilot, world):
        assert "0 dropped" in app.text().splitlines()[0]
        source = next(iter(world.sources.values()))
        for rank, dropped in ((0, 3), (1, 1_234)):
            source.state.apply(Beat(rank, 1, world.now_ns, step=40, sent=80, dropped=dropped))
        await until(pilot, lambda: app.snapshot is not None and app.snapshot.view.dropped > 0)
        for width in (60, 80, 120):
            await pilot.resize_terminal(width, 40)
            await settle(pilot)
            assert "▲ 1,237 dropped" in app.text().splitlines()[0]
        await press(pilot, "down", "enter")
        assert "sent 80 · dropped 1,234" in app.text()
        await press(pilot, "left")
        assert "sent 80 · dropped 3" in app.text()
