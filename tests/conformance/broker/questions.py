"""The questions to a partition: times and offsets at and near the edges of its batches."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kafka_index.layout.names import LOG_SUFFIX, parse_partition_directory
from kafka_index.reading import PartitionLog
from kafka_index.scan import read_batches

if TYPE_CHECKING:
    from pathlib import Path

    from .commands import Query

_SEED = 20240229
_INT64_MAX = 2**63 - 1
#: The end, the start, the largest timestamp.
SPECIAL_TIMES = (-1, -2, -3)


def time_queries(partition: Path, count: int) -> list[Query]:
    """The special times, those before and after all, and so many near the times of batches."""
    random_numbers = random.Random(f"{_SEED} {partition.name}")
    edges = [
        time
        for log in sorted(partition.glob(f"*{LOG_SUFFIX}"))
        for batches in read_batches(log)
        for name in ("base_timestamp_ms", "max_timestamp_ms")
        for time in batches.column(name).to_pylist()
    ]
    near = {0, _INT64_MAX, *edges[:1], max(edges), min(max(edges) + 1, _INT64_MAX)}
    while len(near) < min(count, 3 * len(set(edges))):
        near.add(random_numbers.choice(edges) + random_numbers.choice((-1, 0, 1)))
    times = sorted(time for time in near if 0 <= time <= _INT64_MAX)
    return _queries(partition, [*SPECIAL_TIMES, *times])


def offset_queries(partition: Path, count: int) -> list[Query]:
    """Both ends, their neighbours, one far beyond, and so many between."""
    random_numbers = random.Random(f"{_SEED} {partition.name}")
    with PartitionLog.open(partition) as log:
        start, end = log.log_start_offset, log.log_end_offset
    edges = {0, start - 1, start, start + 1, end - 1, end, end + 1, end + 100_000}
    between = {random_numbers.randrange(start, end) for _ in range(count)}
    return _queries(partition, sorted(offset for offset in edges | between if offset >= 0))


def _queries(partition: Path, targets: list[int]) -> list[Query]:
    name = parse_partition_directory(partition.name)
    assert name is not None
    return [(name.topic, name.partition, target) for target in targets]
