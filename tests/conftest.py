"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: the first call of a kernel compiles it, and shared machines stall. In CI the same
# examples are drawn each time, so that a failure there is a failure here.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

_TESTS = Path(__file__).parent
#: What one worker of pytest-xdist runs alone: tests that share brokers, and those on Spark and of
#: killed processes, which would slow one another down. They start first.
_TOGETHER = {
    _TESTS / "conformance" / "broker": "brokers",
    _TESTS / "endtoend": "spark",
    _TESTS / "spark": "spark",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group tests by `_TOGETHER`, others by file, for ``--dist loadgroup``."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        group = _TOGETHER.get(item.path.parent, str(item.path.relative_to(_TESTS)))
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: item.path.parent not in _TOGETHER)
