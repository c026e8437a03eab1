"""A start after the end, as Spark's Kafka source refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.errors import InputError
from kafka_index.tables import plan_read
from kafka_index.tables.bounds import BoundOptions
from tests.support.record_tables import batch_of, write_partition

LATEST = -1


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Offsets 0 to 29 at times 1000 to 1029."""
    log = b"".join(
        batch_of(first, [(1000 + at, None, b"v") for at in range(first, first + 10)])
        for first in (0, 10, 20)
    )
    write_partition(tmp_path, {0: log})
    return tmp_path


@pytest.mark.parametrize(
    "bounds",
    [
        {"starting_offsets": 20, "ending_offsets": 10},
        {"starting_offsets": 20, "ending_timestamp": 1005},
        {"starting_timestamp": 1025, "ending_offsets": 5},
        {"starting_timestamp": 9999, "ending_offsets": 5},
        {"starting_offsets": 40},
        {"starting_offsets": 40, "ending_offsets": LATEST},
    ],
)
def test_a_start_after_the_end_is_refused_where_it_has_to_be_before(
    dump: Path, bounds: dict[str, int]
) -> None:
    assert not plan_read(dump, bounds=BoundOptions(**bounds)).splits  # type: ignore[arg-type]
    with pytest.raises(InputError, match="topic-0 starts after its end"):
        plan_read(dump, bounds=BoundOptions(**bounds, needs_order=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"starting_offsets": 10, "ending_offsets": 10},
        {"starting_offsets": 30},
        {"starting_offsets": 20, "ending_timestamp": 9999},
        {"starting_timestamp": 9999},
    ],
)
def test_a_start_at_the_end_reads_nothing(dump: Path, bounds: dict[str, int]) -> None:
    plan_read(dump, bounds=BoundOptions(**bounds, needs_order=True))  # type: ignore[arg-type]
