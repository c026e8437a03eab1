"""A segment's own lookups are those of Kafka's ``LogSegment`` and its two indexes.

Targets are any offsets and timestamps, negative ones and those of other segments included.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.errors import CorruptLogError
from kafka_index.core.format.config import IndexConfig
from kafka_index.core.log.read.log_segment import LogSegment
from kafka_index.core.logdir.partition_files import SegmentFile

from .campaign import random_cases
from .kafka_answers import INT64_MAX, offsets_of, times_of
from .partitions import Partition, partitions
from .reference_partition import RejectedCall
from .test_lookups import open_random, write_both

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .kafka_reference import KafkaReference
from .reference_partition import Answer

INT64_MIN = -INT64_MAX - 1
_NO_EPOCH = -1


def segment_file(directory: Path, base_offset: int, *, is_last: bool) -> SegmentFile:
    """A segment as a listing hands it on."""
    path = directory / f"{base_offset:020d}.log"
    status = path.stat()
    return SegmentFile(
        "topic", 0, base_offset, str(path), status.st_size, status.st_mtime_ns, is_last
    )


def answer_of(ask: Callable[[], tuple[int | None, ...] | None]) -> Answer:
    """Our answer in the form of Kafka's; what exactly cannot be read is not compared."""
    try:
        result = ask()
    except CorruptLogError:
        return RejectedCall("")
    return None if result is None else tuple(_NO_EPOCH if part is None else part for part in result)


def unnamed(answers: list[Answer]) -> list[Answer]:
    """Kafka's answers without the names of its exceptions."""
    return [RejectedCall("") if isinstance(answer, RejectedCall) else answer for answer in answers]


@random_cases(share=0.1)
@given(partition=partitions(), data=st.data())
def test_lookups_in_a_segment_equal_kafkas(
    reference: KafkaReference, scratch: Path, partition: Partition, data: st.DataObject
) -> None:
    for_kafka, for_us = write_both(scratch, partition)
    config = IndexConfig(index_interval_bytes=partition.index_interval_bytes)
    with open_random(reference, for_kafka, partition) as kafka_log:
        offsets = [INT64_MIN, -1, *offsets_of(kafka_log), INT64_MAX]
        times = [INT64_MIN, INT64_MIN + 1, -10, -9, *times_of(kafka_log, offsets_of(kafka_log))]
        starting = data.draw(st.sampled_from(offsets))
        base_offset = data.draw(st.sampled_from(kafka_log.base_offsets))
        translated = kafka_log.translate(base_offset, offsets)
        result = kafka_log.find(base_offset, times, starting)
        offset_entries = kafka_log.offset_entry_of(base_offset, offsets)
        time_entries = kafka_log.time_entry_of(base_offset, times)
        largest = kafka_log.largest_timestamp(base_offset)
        is_last = base_offset == kafka_log.base_offsets[-1]
    listed = segment_file(for_us, base_offset, is_last=is_last)
    with LogSegment(listed, config=config) as segment:
        assert [
            answer_of(partial(segment.offset_to_position, offset)) for offset in offsets
        ] == unnamed(translated)
        assert [
            _as_kafka(answer_of(partial(segment.find_offset_by_timestamp, time, starting)))
            for time in times
        ] == unnamed(result)
        assert [tuple(segment.indexes.offset_index.lookup(o)) for o in offsets] == offset_entries
        assert [tuple(segment.indexes.time_index.lookup(t)) for t in times] == time_entries
        assert tuple(segment.largest)[:2] == largest


def _as_kafka(answer: Answer) -> Answer:
    """Offset before timestamp."""
    if not isinstance(answer, tuple):
        return answer
    timestamp, offset, epoch = answer
    return offset, timestamp, epoch
