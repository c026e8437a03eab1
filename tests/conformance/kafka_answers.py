"""Kafka's answers to the questions of a lookup, in the columns of the product; useful questions.

A broker's answers are translated here and nowhere else: exceptions to statuses, bounds by the
high watermark, and which of Kafka's methods stands for which level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.answers import NULL, SpecialTimestamp
from tests.support.partitions import Row

from .reference_partition import EMPTY, RejectedCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .reference_partition import Answer, ReferencePartition

OUT_OF_RANGE = "OffsetOutOfRangeException"
_NO_EPOCH = -1
_LATEST, _EARLIEST, _LARGEST = (int(special) for special in list(SpecialTimestamp)[:3])

UNREADABLE = Row("unreadable")
NO_RECORD = Row("no_record_at_or_after")


def offset_rows(
    kafka_log: ReferencePartition, offsets: Sequence[int], resolve: Resolve
) -> list[Row]:
    """Kafka's answers to lookups of offsets, none negative."""
    if resolve is Resolve.INDEX:
        return [
            Row("before_log_start")
            if offset < kafka_log.log_start_offset
            else Row("found", *_numbers(answer))
            for offset, answer in zip(offsets, kafka_log.offset_entry(offsets), strict=True)
        ]
    fetched = kafka_log.fetch(offsets, committed=kafka_log.high_watermark is not None)
    answers = kafka_log.record(offsets) if resolve is Resolve.RECORD else fetched
    return [
        _offset_row(kafka_log.log_start_offset, kafka_log.bound, *asked)
        for asked in zip(offsets, fetched, answers, strict=True)
    ]


def _offset_row(log_start: int, bound: int, offset: int, fetched: Answer, answer: Answer) -> Row:
    if isinstance(fetched, RejectedCall) and fetched.error_class == OUT_OF_RANGE:
        return Row("before_log_start" if offset < log_start else "after_log_end")
    if fetched is EMPTY and offset >= bound:
        return Row("log_end")
    if fetched is EMPTY or answer is None:
        return NO_RECORD
    if isinstance(answer, RejectedCall):
        return UNREADABLE
    segment, base, last, position, size, *entry_and_record = _numbers(answer)
    entry, record = entry_and_record[:2], entry_and_record[2:]
    if record and record[0] >= bound:
        return NO_RECORD
    floor = Row("found", segment, *entry)
    return _with_batch(floor, (base, last, position, size), record)


def time_rows(kafka_log: ReferencePartition, times: Sequence[int], resolve: Resolve) -> list[Row]:
    """Kafka's answers to lookups of timestamps, none negative but the special ones.

    The rules of the high watermark are those of Kafka's
    ``Partition.fetchOffsetForTimestamp``, which hands a client nothing at or above it.
    """
    bound = kafka_log.bound
    questions = {Resolve.INDEX: kafka_log.time_entry, Resolve.BATCH: kafka_log.time_batch}
    answers = questions.get(resolve, kafka_log.time)(times)
    entries = kafka_log.time_entry(times)
    rows = []
    for time, answer, entry in zip(times, answers, entries, strict=True):
        edge = {_LATEST: bound, _EARLIEST: kafka_log.log_start_offset}.get(time)
        if resolve is Resolve.INDEX and time in (_LATEST, _LARGEST):
            rows.append(Row("invalid_query"))
        elif edge is not None and resolve is not Resolve.RECORD:
            rows += offset_rows(kafka_log, [edge], resolve)
        elif edge is not None:
            _, _, epoch = _numbers(answer)
            rows.append(_with_batch(Row("found"), (), [edge, -1, epoch]))
        else:
            rows.append(_time_row(time, answer, entry, resolve, bound))
    return rows


def _time_row(time: int, answer: Answer, entry: Answer, resolve: Resolve, bound: int) -> Row:
    if answer is None:
        return NO_RECORD
    if isinstance(answer, RejectedCall):
        return UNREADABLE
    floor = Row("found")
    if time != _LARGEST:
        # The reference program has them in the order of the search.
        segment, timestamp, offset, position = _numbers(entry)
        floor = Row("found", segment, offset, position, timestamp)
        if resolve is Resolve.INDEX:
            return floor
    numbers = _numbers(answer)
    record, batch = ((), numbers) if resolve is Resolve.BATCH else (numbers[:3], numbers[3:])
    segment, base, *_ = batch
    if (record[0] if record else base) >= bound:
        return NO_RECORD
    return _with_batch(floor._replace(segment_base_offset=segment), batch[1:], record)


def _with_batch(row: Row, batch: Sequence[int], record: Sequence[int]) -> Row:
    """Add a batch, without its segment, and a record, where there are any."""
    if batch:
        base, last, position, size = batch
        row = row._replace(
            batch_base_offset=base,
            batch_last_offset=last,
            batch_position_bytes=position,
            batch_size_bytes=size,
        )
    if record:
        offset, timestamp, epoch = record
        row = row._replace(
            found_offset=offset,
            # The one number that stands for null in our answers.
            found_timestamp_ms=None if timestamp == NULL else timestamp,
            found_leader_epoch=None if epoch == _NO_EPOCH else epoch,
        )
    return row


def _numbers(answer: Answer) -> tuple[int, ...]:
    assert isinstance(answer, tuple), answer
    return answer


INT64_MAX = 2**63 - 1
#: Latest, earliest, the largest timestamp.
SPECIAL_TIMES = (-1, -2, -3)


def offsets_of(kafka_log: ReferencePartition) -> list[int]:
    """Offsets of batches, segments, log start and log end, and their neighbours; no negative."""
    edges = {kafka_log.log_start_offset, kafka_log.log_end_offset, *kafka_log.base_offsets}
    for base_offset in kafka_log.base_offsets:
        for batch, _ in kafka_log.batches(base_offset):
            middle = (batch.base_offset + batch.last_offset) // 2
            edges |= {batch.base_offset, batch.last_offset, middle}
    return _with_adjacent_offsets(edges, least=0)


def times_of(kafka_log: ReferencePartition, offsets: Iterable[int]) -> list[int]:
    """Timestamps of batches and of these records, their neighbours, 0 and the special times."""
    edges = {0, INT64_MAX}
    for base_offset in kafka_log.base_offsets:
        edges.update(timestamp for _, timestamp in kafka_log.batches(base_offset))
    for answer in kafka_log.record(offsets):
        if isinstance(answer, tuple):
            edges.add(answer[-2])  # its timestamp
    return [*SPECIAL_TIMES, *_with_adjacent_offsets(edges, least=0)]


def _with_adjacent_offsets(edges: set[int], least: int) -> list[int]:
    near = {edge + step for edge in edges for step in (-1, 0, 1)}
    return sorted(number for number in near if least <= number <= INT64_MAX)
