"""Fixtures: the reference programs, started once per session, and a fast folder for their files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .both import ComparedPartition
from .campaign import pytest_report_header
from .kafka_jars import DEFAULT_VERSION, KAFKA_DID_NOT_RUN, OLD_VERSION, needing_kafka
from .kafka_reference import KafkaReference

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["pytest_report_header"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a banner if tests were skipped because Kafka's own code cannot run here."""
    skipped = sum(
        KAFKA_DID_NOT_RUN in str(report.longrepr)
        for report in terminalreporter.stats.get("skipped", [])
    )
    if skipped:
        terminalreporter.section(KAFKA_DID_NOT_RUN.upper(), sep="!", red=True, bold=True)
        terminalreporter.line(f"{skipped} conformance tests were skipped: nothing was compared.")


@pytest.fixture(scope="session")
def reference() -> Iterator[KafkaReference]:
    """Kafka 4.3.1's own code; skips where it cannot run, and fails instead where it has to."""
    with needing_kafka():
        started = KafkaReference(DEFAULT_VERSION)
    with started:
        yield started


@pytest.fixture(scope="session")
def old_reference() -> Iterator[KafkaReference]:
    """Kafka 3.9.1's own code, by the same rule."""
    with needing_kafka():
        started = KafkaReference(OLD_VERSION)
    with started:
        yield started


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A folder, in memory where it can be: recovery resizes files ten times faster there."""
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def both(reference: KafkaReference, scratch: Path) -> ComparedPartition:
    """Kafka and us, to be asked the same."""
    return ComparedPartition(reference, scratch)
