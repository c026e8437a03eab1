"""The judges, started once for a test session, and a fast place for the files they work on."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .both import Both
from .campaign import pytest_report_header
from .judge import Judge
from .kafka_jars import DEFAULT_VERSION, OLD_VERSION, JudgeUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["pytest_report_header"]


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """Kafka 4.3.1's own code; skips where it cannot run, and fails instead where it has to."""
    with _started(DEFAULT_VERSION) as started:
        yield started


@pytest.fixture(scope="session")
def old_judge() -> Iterator[Judge]:
    """Kafka 3.9.1's own code, by the same rule."""
    with _started(OLD_VERSION) as started:
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


def _started(version: str) -> Judge:
    try:
        return Judge(version)
    except JudgeUnavailable as missing:
        if os.environ.get("CI") or os.environ.get("KAFKA_INDEX_REQUIRE_JUDGE") == "1":
            pytest.fail(f"the Kafka judge is required here: {missing}", pytrace=False)
        pytest.skip(f"the Kafka judge cannot run: {missing}")
