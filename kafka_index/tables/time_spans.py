"""The times of the records of partitions: read where a range of times has turned out empty."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from kafka_index.config import IndexConfig
from kafka_index.errors import KafkaIndexError
from kafka_index.layout.times import TimeSpan
from kafka_index.reading import PartitionFiles, PartitionLog, Resolve, Status
from kafka_index.reading.answers import FOUND_TIMESTAMP, SpecialTimestamp
from kafka_index.tables.settings import ReadSettings


def time_span(partitions: Iterable[PartitionFiles], settings: ReadSettings) -> TimeSpan:
    """Return the times of partitions, within the memory of a read.

    Of each it reads the first batch, and the one with the largest timestamp, to which the time
    indexes lead.
    """
    span = TimeSpan()
    for files in partitions:
        try:
            first_ms, last_ms = _times_of(files, settings.max_decompressed_bytes)
        except KafkaIndexError:
            span = replace(span, unknown=span.unknown + 1)
        else:
            span = span.with_times(first_ms, last_ms)
    return span


def _times_of(files: PartitionFiles, max_decompressed_bytes: int) -> tuple[int | None, int | None]:
    with PartitionLog(
        files, config=IndexConfig(), max_decompressed_bytes=max_decompressed_bytes
    ) as log:
        start = np.array([log.log_start_offset], np.int64)
        latest = np.array([SpecialTimestamp.MAX_TIMESTAMP], np.int64)
        found = [
            log.answer_offsets(start, Resolve.RECORD),
            log.answer_timestamps(latest, Resolve.RECORD),
        ]
        if any(answers.status[0] == Status.UNREADABLE for answers in found):
            raise KafkaIndexError("the times cannot be read", path=files.segments[0].log_path)
        first_ms, last_ms = (
            int(answers.values[FOUND_TIMESTAMP, 0]) if answers.status[0] == Status.FOUND else None
            for answers in found
        )
    return first_ms, last_ms
