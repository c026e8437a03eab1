"""The judge, started once for a test session, and a fast place for the files it works on."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .both import Both
from .judge import Judge
from .judge_build import JudgeUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """Kafka's own recovery; skips where it cannot run, and fails instead where it has to."""
    try:
        started = Judge()
    except JudgeUnavailable as missing:
        if os.environ.get("CI") or os.environ.get("KAFKA_INDEX_REQUIRE_JUDGE") == "1":
            pytest.fail(f"the Kafka judge is required here: {missing}", pytrace=False)
        pytest.skip(f"the Kafka judge cannot run: {missing}")
    with started:
        yield started


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A folder, in memory where it can be: recovery resizes files ten times faster there."""
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def both(judge: Judge, scratch: Path) -> Both:
    """Kafka and us, to be asked the same."""
    return Both(judge, scratch)
