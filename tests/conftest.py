"""Which tests have the machine for themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

REAL_PROCESSES = frozenset({"dist", "e2e", "frameworks", "launch"})
"""Folders whose tests start ranks, hubs and terminals, which wait for each other and show notices for seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in REAL_PROCESSES:
            item.add_marker(pytest.mark.alone)
