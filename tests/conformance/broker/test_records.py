"""The rows of `read_records` against what consumers got from the broker that wrote the logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .client import ISOLATIONS
from .digests import digest
from .files import remove_all_but_logs
from .topics import FOLLOWED, TOPICS, Topic

if TYPE_CHECKING:
    from .conftest import Written

_TOPICS = (*TOPICS, *FOLLOWED)


@pytest.fixture(scope="module")
def logs_without_indexes(written: Written, broker_root: Path) -> Path:
    """The data directory of the broker without indexes and snapshots."""
    home = written.leader.copy_to(broker_root / "records-of-logs")
    remove_all_but_logs(home.data)
    return home.data


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("topic", _TOPICS, ids=lambda topic: topic.name[:24])
def test_read_records_equals_the_records_of_consumers(
    written: Written, topic: Topic, isolation: str
) -> None:
    expected = written.digests[isolation]
    for partition in range(topic.partitions):
        actual = digest(written.leader.data, topic.name, partition, isolation)
        assert actual == expected[f"{topic.name}-{partition}"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("topic", _TOPICS, ids=lambda topic: topic.name[:24])
def test_records_of_logs_without_indexes_equal_those_of_consumers(
    written: Written, logs_without_indexes: Path, topic: Topic, isolation: str
) -> None:
    expected = written.digests[isolation]
    for partition in range(topic.partitions):
        actual = digest(logs_without_indexes, topic.name, partition, isolation)
        assert actual == expected[f"{topic.name}-{partition}"]
