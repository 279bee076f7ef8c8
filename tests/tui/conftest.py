"""Textual's own tests guess from CPU time when an app is idle: slow on a machine at rest, wrong on a busy one."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import textual.app
import textual.pilot
from textual._context import active_app

PATIENCE_S = 10.0


async def quiet(_: float = 0) -> None:
    """Waits until nothing is left to do at once: no task can go on, no worker searches, and what was changed is drawn.

    What a thread or a timer will bring is not waited for: a test waits for that by its condition.
    """
    loop: Any = asyncio.get_running_loop()
    app: Any = active_app.get()
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        await asyncio.sleep(0)
        if loop._ready:
            continue
        # Only timers are left; a frame's does not take its time.
        if app._exit or not app.screen_stack:
            return
        if app._resize_event is not None:
            app._check_resize()
        elif app._batch_count or any(worker.is_running for worker in app.workers):
            await asyncio.sleep(0.005)
        elif app.screen._update_timer._active.is_set():
            app.screen._on_timer_update()
        else:
            return


@pytest.fixture(autouse=True)
def no_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and pauses wait until the app is quiet."""
    for module in (textual.app, textual.pilot):
        monkeypatch.setattr(module, "wait_for_idle", quiet)
