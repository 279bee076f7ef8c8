"""Directories and hubs of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdp_tui.telemetry import client
from tests.unit.telemetry.hub_for_tests import HubProcess, new_run


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a runtime directory of the test's own."""
    monkeypatch.setenv("FSDP_TUI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FSDP_TUI_RUNTIME_DIR", str(tmp_path / "rt"))
    for patience in ("ATTACH_S", "REPLY_S"):  # a busy machine may need more than people have
        monkeypatch.setattr(client, patience, 60)
    return tmp_path


@pytest.fixture
def hub(places: Path) -> Iterator[HubProcess]:
    """A hub that serves a new run."""
    process = HubProcess(new_run())
    assert process.start() == "ready"
    yield process
    process.close()
