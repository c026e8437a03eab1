"""Lookups answer as a broker does that has correct index files.

Each random partition is queried at every boundary of its batches and segments, with Kafka's index
files, without index files and with damaged ones. The results always equal Kafka's.

`test_lookup_differences` has the intended differences: a file's modification time is never used as
a timestamp, and damage is always reported. Random partitions do not show these.

`campaign` sets how many partitions are generated.
"""

from __future__ import annotations

import operator
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import assume, given, note, reject
from hypothesis import strategies as st

from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.answers import GAP, NO_INDEX, TAIL, UNREADABLE
from tests.support.index_files import damaged_indexes
from tests.support.partitions import DIRECTORY, Row

from .both import Queries, QueryResults, query_kafka_index
from .campaign import random_cases
from .kafka_answers import offset_rows, offsets_of, time_rows, times_of
from .kafka_reference import KafkaReferenceError
from .partitions import Partition, long_partitions, partitions, tails

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .kafka_reference import KafkaReference
    from .reference_partition import ReferencePartition

    Same = Callable[[Row, Row], bool]


def query_kafka(kafka_log: ReferencePartition) -> tuple[Queries, QueryResults]:
    """Ask Kafka at every edge; timestamps first, a committed fetch moves the high watermark."""
    offsets = offsets_of(kafka_log)
    times = times_of(kafka_log, offsets)
    return Queries(offsets, times), QueryResults(
        times={level: time_rows(kafka_log, times, level) for level in Resolve},
        offsets={level: offset_rows(kafka_log, offsets, level) for level in Resolve},
        log_start_offset=kafka_log.log_start_offset,
        log_end_offset=kafka_log.log_end_offset,
    )


def opened_by_kafka(
    reference: KafkaReference, directory: Path, partition: Partition
) -> ReferencePartition:
    """The partition, opened by Kafka from files of its own; what Kafka refuses is not asked."""
    try:
        return reference.open_partition(
            directory, partition.index_interval_bytes, log_start_offset=partition.log_start_offset
        )
    except KafkaReferenceError:
        reject()


def open_random(
    reference: KafkaReference, directory: Path, partition: Partition
) -> ReferencePartition:
    """The same of a partition that Kafka leaves as it is."""
    kafka_log = opened_by_kafka(reference, directory, partition)
    # What Kafka cuts off is not asked for either: `test_lookup_differences` does.
    left = [path.stat().st_size for path in sorted(directory.glob("*.log"))]
    assume(left == [len(segment.log) for segment in partition.segments])
    return kafka_log


def write_both(scratch: Path, partition: Partition) -> tuple[Path, Path]:
    """Partition directories for Kafka and for us, the same logs in both."""
    shutil.rmtree(scratch / "lookups", ignore_errors=True)
    for_kafka, for_us = scratch / "lookups/kafka", scratch / "lookups/us"
    for data_directory in (for_kafka, for_us):
        partition.write(data_directory / DIRECTORY)
    return for_kafka / DIRECTORY, for_us / DIRECTORY


def assert_equal(
    asked: Queries, ours: QueryResults, kafka: QueryResults, same: Same = operator.eq
) -> None:
    """All answers are the same, and what was asked of both."""
    assert (ours.log_start_offset, ours.log_end_offset) == (
        kafka.log_start_offset,
        kafka.log_end_offset,
    )
    for by in ("offsets", "times"):
        for level, our_rows in getattr(ours, by).items():
            if our_rows:
                rows = zip(getattr(asked, by), our_rows, getattr(kafka, by)[level], strict=True)
                differences = [row for row in rows if not same(*row[1:])]
                assert not differences, (by, level)


def same_from_earlier_entry(ours: Row, kafkas: Row) -> bool:
    """An index that lost entries is right, and leads to the same answers from earlier entries."""
    return ours.without_entry == kafkas.without_entry


@random_cases(share=0.1)
@given(partition=partitions())
def test_lookups_with_kafkas_indexes_equal_kafkas(
    reference: KafkaReference, scratch: Path, partition: Partition
) -> None:
    for_kafka, for_us = write_both(scratch, partition)
    with open_random(reference, for_kafka, partition) as kafka_log:
        asked, kafka = query_kafka(kafka_log)
    ours = query_kafka_index(for_us, asked, indexes=for_kafka.parent)
    assert_equal(asked, ours, kafka)
    if not any(path.read_bytes()[:12] == bytes(12) for path in for_kafka.glob("*.timeindex")):
        assert {finding.kind for finding in ours.findings} <= {GAP, UNREADABLE}


@random_cases(share=0.1)
@given(partition=partitions())
def test_lookups_without_indexes_equal_kafkas(
    reference: KafkaReference, scratch: Path, partition: Partition
) -> None:
    for_kafka, for_us = write_both(scratch, partition)
    with open_random(reference, for_kafka, partition) as kafka_log:
        asked, kafka = query_kafka(kafka_log)
    ours = query_kafka_index(for_us, asked, interval=partition.index_interval_bytes)
    assert_equal(asked, ours, kafka)
    assert {finding.kind for finding in ours.findings} <= {GAP, NO_INDEX, UNREADABLE}


# Which of two equal batches is found depends on the entries between them.
@random_cases(share=0.1)
@given(partition=partitions(repeating=False) | long_partitions(), data=st.data())
def test_lookups_with_damaged_indexes_equal_kafkas(
    reference: KafkaReference, scratch: Path, partition: Partition, data: st.DataObject
) -> None:
    for_kafka, for_us = write_both(scratch, partition)
    with open_random(reference, for_kafka, partition) as kafka_log:
        asked, kafka = query_kafka(kafka_log)
    note(data.draw(damaged_indexes(for_kafka)))
    # On a log of its own each: what one answer shows about an index helps the next.
    for level in Resolve:
        for some in (Queries(offsets=asked.offsets), Queries(times=asked.times)):
            ours = query_kafka_index(
                for_us,
                some,
                interval=partition.index_interval_bytes,
                indexes=for_kafka.parent,
                levels=[level],
            )
            assert_equal(some, ours, kafka, same_from_earlier_entry)


@random_cases(share=0.1)
@given(partition=partitions(), tail=tails())
def test_lookups_with_a_torn_tail_equal_kafkas(
    reference: KafkaReference, scratch: Path, partition: Partition, tail: Callable[[int], bytes]
) -> None:
    for_kafka, _ = write_both(scratch, partition)
    with open_random(reference, for_kafka, partition) as kafka_log:
        next_offset = kafka_log.log_end_offset
    *others, last = partition.segments
    # A broker rolls before a batch that does not fit.
    assume(next_offset + 1 - last.base_offset <= INT32_MAX)
    torn = replace(partition, segments=(*others, replace(last, log=last.log + tail(next_offset))))
    for_kafka, for_us = write_both(scratch, torn)
    with open_random(reference, for_kafka, partition) as kafka_log:
        asked, kafka = query_kafka(kafka_log)
    ours = query_kafka_index(for_us, asked, interval=partition.index_interval_bytes)
    assert_equal(asked, ours, kafka)
    assert TAIL in {finding.kind for finding in ours.findings}


def is_in_order(kafka_log: ReferencePartition) -> bool:
    """Whether offsets rise from batch to batch, and records lie in theirs.

    Elsewhere Kafka's own entries lead astray.
    """
    least = 0
    for segment_base_offset in kafka_log.base_offsets:
        least = max(least, segment_base_offset)
        for batch, _ in kafka_log.batches(segment_base_offset):
            if batch.base_offset < least or batch.last_offset < batch.base_offset:
                return False
            least = batch.last_offset + 1
    records = (one for one in kafka_log.record(offsets_of(kafka_log)) if isinstance(one, tuple))
    return all(record[1] <= record[-3] <= record[2] for record in records)


def equal_except_negative_epoch(ours: Row, kafkas: Row) -> bool:
    """An epoch below 0, which no checksum covers, is none to us; Kafka hands on all but -1."""
    epoch = kafkas.found_leader_epoch
    return ours == kafkas._replace(found_leader_epoch=None if (epoch or 0) < 0 else epoch)


@random_cases(share=0.1)
@given(partition=partitions(damaged=True))
def test_lookups_in_recovered_damaged_logs_equal_kafkas(
    reference: KafkaReference, scratch: Path, partition: Partition
) -> None:
    for_kafka, for_us = write_both(scratch, partition)
    with opened_by_kafka(reference, for_kafka, partition) as kafka_log:
        assume(is_in_order(kafka_log))
        asked, kafka = query_kafka(kafka_log)
    for path in for_us.glob("*.log"):
        path.unlink()
    for path in for_kafka.glob("*.log"):
        shutil.copy(path, for_us)
    with_indexes = query_kafka_index(for_us, asked, indexes=for_kafka.parent)
    assert_equal(asked, with_indexes, kafka, equal_except_negative_epoch)
    without = query_kafka_index(for_us, asked, interval=partition.index_interval_bytes)
    assert_equal(asked, without, kafka, equal_except_negative_epoch)


@random_cases(share=0.1)
@given(partition=partitions(), data=st.data())
def test_lookups_below_the_high_watermark_equal_kafkas(
    reference: KafkaReference, scratch: Path, partition: Partition, data: st.DataObject
) -> None:
    for_kafka, for_us = write_both(scratch, partition)
    with open_random(reference, for_kafka, partition) as kafka_log:
        batches = [batch for base in kafka_log.base_offsets for batch, _ in kafka_log.batches(base)]
        edges = [0, kafka_log.log_end_offset + 1, *(batch.last_offset + 1 for batch in batches)]
        checkpointed = data.draw(st.sampled_from(edges))
        kafka_log.update_high_watermark(checkpointed)
        asked, kafka = query_kafka(kafka_log)
    replace(partition, high_watermark=checkpointed).write_checkpoints(for_us.parent)
    ours = query_kafka_index(for_us, asked, indexes=for_kafka.parent, high_watermark=True)
    assert_equal(asked, ours, kafka)
