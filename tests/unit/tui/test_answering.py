"""A key's answer comes first, and pictures come all the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from fsdp_tui.telemetry.courtesy import pieces
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui import answering
from fsdp_tui.tui.answering import LONGEST_S, Answering
from fsdp_tui.tui.source import Feed
from tests.tui.fixtures import FixtureSource, Recipe, World

PATIENT_S = 60


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def test_nobody_waits_while_no_key_is_answered() -> None:
    key = Answering()
    assert key.wait(PATIENT_S) == 0
    key.begin()
    key.end()
    assert key.wait(PATIENT_S) == 0


def test_the_frame_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "LONGEST_S", PATIENT_S)
    key, waited = Answering(), []
    key.begin()
    thread = threading.Thread(target=lambda: waited.append(key.wait(PATIENT_S)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    key.end()
    thread.join(PATIENT_S)
    assert 0.1 < waited[0] < PATIENT_S


def test_without_a_frame_the_wait_ends_by_itself() -> None:
    """Whether one began to wait before or after it."""
    key = Answering()
    key.begin()
    assert key.wait(PATIENT_S) >= 0.5 * LONGEST_S
    assert key.wait(PATIENT_S) < LONGEST_S
    key.begin()
    began_s = time.monotonic()
    key.wait(0.01)
    assert time.monotonic() - began_s >= 0.01


class Worked(FixtureSource):
    """A picture is many pieces of work."""

    done = 0

    def view(self) -> RunView:
        for _ in pieces(range(10)):
            self.done += 1
        return super().view()


def a_feed(key: Answering) -> tuple[Feed, Worked]:
    world = World()
    told = world.add(Recipe())
    source = Worked(told.entry, told.state)
    services = replace(world.services(), open_run=lambda entry: source)
    return Feed(services, source.entry, 0.0, key), source


def test_a_feed_waits_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "LONGEST_S", PATIENT_S)
    monkeypatch.setattr("fsdp_tui.tui.source.PATIENCE_S", PATIENT_S)
    key = Answering()
    key.begin()
    feed, source = a_feed(key)
    try:
        time.sleep(0.3)
        assert (source.done, feed.latest) == (0, None)
        key.end()
        until(lambda: feed.latest)
        assert source.done >= 10
    finally:
        feed.close()
        feed.join(PATIENT_S)


def test_pictures_come_however_fast_keys_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when not one of them is ever answered."""
    monkeypatch.setattr(answering, "LONGEST_S", 1e6)
    key = Answering()
    key.begin()
    feed, source = a_feed(key)
    try:
        shown: list[object] = [None]
        while len(shown) < 4:
            until(lambda: feed.latest is not shown[-1])
            shown.append(feed.latest)
            source.state.version += 1
    finally:
        feed.close()
        feed.join(PATIENT_S)
