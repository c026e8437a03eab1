"""A small dump for all tests of lookups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.lookup.building import make_dump


@pytest.fixture(scope="session")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dump(tmp_path_factory.mktemp("dump"))
