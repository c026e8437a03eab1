"""The bounds of a read: offsets or times, which are resolved to offsets in each partition.

Names and meaning follow the options of Spark's Kafka source: ``startingOffsets`` is inclusive,
``endingOffsets`` exclusive, -2 is the earliest offset and -1 the latest. A time stands for the
first record with this timestamp or a later one. The offsets can also come from a file that
`kafka-index lookup` writes with ``--starting-offsets`` and ``--reset-offsets``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from kafka_index.core.errors import (
    CorruptLogError,
    InputError,
    KafkaIndexError,
    ReadError,
    is_retriable,
)
from kafka_index.core.format.config import IndexConfig, parse_integer
from kafka_index.core.format.names import TopicPartition, is_legal_topic
from kafka_index.core.format.times import Time, TimeSpan, parse_time, time_text
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.fs.registry import read_text
from kafka_index.core.log.choices import Resolve, Status
from kafka_index.core.log.read.answers import FOUND_OFFSET, FOUND_TIMESTAMP, SpecialTimestamp
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.query.settings import ReadSettings

#: One offset for all partitions, or offsets keyed by topic and partition. -1 is `LATEST` and -2 is
#: `EARLIEST`.
Offsets: TypeAlias = int | Mapping[str, Mapping[int, int]]
#: One time for all partitions, or times keyed by topic and partition, in any form that `parse_time`
#: accepts.
Times: TypeAlias = Time | Mapping[str, Mapping[int, Time]]
#: One timestamp in ms since the epoch for all partitions, or timestamps keyed by topic and
#: partition.
Timestamps: TypeAlias = int | Mapping[str, Mapping[int, int]]

LATEST, EARLIEST = int(SpecialTimestamp.LATEST), int(SpecialTimestamp.EARLIEST)

_COLUMNS = 3
_HEADER = ["topic", "partition", "offset"]


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or end bound of reading a partition: an offset, or a timestamp in ms."""

    value: int
    is_timestamp: bool = False


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """The inclusive start and exclusive end of reading a partition.

    Attributes
    ----------
    needs_start : bool
        Raise an error if no record is at or after the start time.
    needs_offsets : bool
        Raise an error if the log does not contain a requested offset.
    needs_order : bool
        Raise an error if the start is after the end.
    """

    start: Bound = Bound(EARLIEST)
    end: Bound = Bound(LATEST)
    needs_start: bool = False
    needs_offsets: bool = False
    needs_order: bool = False


@dataclass(frozen=True, slots=True)
class BoundOptions:
    """The requested bounds of all partitions.

    Without a bound, a partition is read from its earliest to its latest offset. This includes
    partitions that a mapping does not contain.
    """

    starting_offsets: Offsets | None = None
    ending_offsets: Offsets | None = None
    starting_timestamp: Timestamps | None = None
    ending_timestamp: Timestamps | None = None
    needs_start: bool = False
    needs_offsets: bool = False
    needs_order: bool = False

    def __post_init__(self) -> None:
        for side in ("starting", "ending"):
            offsets, timestamp = (
                getattr(self, f"{side}_{kind}") for kind in ("offsets", "timestamp")
            )
            if offsets is not None and timestamp is not None:
                raise InputError(f"give either {side} offsets or a {side} timestamp, not both")

    @property
    def times(self) -> tuple[int | None, int | None]:
        """The minimum start time and the maximum end time, each None if not requested."""
        starts, ends = (
            [value for partition_times in times.values() for value in partition_times.values()]
            if isinstance(times, Mapping)
            else []
            if times is None
            else [times]
            for times in (self.starting_timestamp, self.ending_timestamp)
        )
        return min(starts, default=None), max(ends, default=None)

    def for_partition(self, partition: TopicPartition) -> ReadBounds:
        return ReadBounds(
            _select_bound(self.starting_offsets, self.starting_timestamp, partition, EARLIEST),
            _select_bound(self.ending_offsets, self.ending_timestamp, partition, LATEST),
            self.needs_start,
            self.needs_offsets,
            self.needs_order,
        )


def _select_bound(
    offsets: Offsets | None, timestamps: Timestamps | None, partition: TopicPartition, default: int
) -> Bound:
    if timestamps is not None:
        timestamp = _partition_value(timestamps, partition)
        if timestamp is not None:
            return Bound(timestamp, is_timestamp=True)
    offset = None if offsets is None else _partition_value(offsets, partition)
    if offset is None:
        return Bound(default)
    if not isinstance(offset, int) or offset < EARLIEST:  # type: ignore[redundant-expr]
        raise InputError(
            "the value is not an offset",
            expected="0 or more, -1 (latest) or -2 (earliest)",
            found=offset,
        )
    return Bound(offset)


def _partition_value(values: Offsets | Timestamps, partition: TopicPartition) -> int | None:
    if isinstance(values, Mapping):
        return values.get(partition.topic, {}).get(partition.partition)
    return values


def parse_times(times: Times | None, now: int) -> Timestamps | None:
    """Convert times to ms; `now` is the base of relative times."""
    if isinstance(times, Mapping):
        return {
            topic: {number: _parse_bound(value, now) for number, value in values.items()}
            for topic, values in times.items()
        }
    return None if times is None else _parse_bound(times, now)


def _parse_bound(value: Time, now: int) -> int:
    # Lookups treat negative timestamps as special timestamps. No record has a timestamp below 0.
    return max(parse_time(value, now=now), 0)


def check_order(start_times: Timestamps | None, end_times: Timestamps | None) -> None:
    """Raise `InputError` if the time range of a partition is empty; end times are exclusive."""
    partitions = {
        (topic, number)
        for times in (start_times, end_times)
        if isinstance(times, Mapping)
        for topic, values in times.items()
        for number in values
    }
    # If no times are given by partition, all partitions have equal bounds: check them once.
    for topic, number in sorted(partitions) or [("", 0)]:
        partition = TopicPartition(topic, number)
        start_ms = None if start_times is None else _partition_value(start_times, partition)
        end_ms = None if end_times is None else _partition_value(end_times, partition)
        if start_ms is not None and end_ms is not None and start_ms >= end_ms:
            scope = f" of {partition.directory_name}" if topic else ""
            raise InputError(
                f"no time is in the range{scope}, which starts at {time_text(start_ms)} and ends "
                f"before {time_text(end_ms)}"
            )


def resolve_bounds(log: PartitionLog, bounds: ReadBounds) -> tuple[int, int | None]:
    """Resolve bounds to a start offset and an exclusive end offset.

    An end offset of None means the end of the log. A start offset is at least the log start offset.
    A time after the last record is resolved to the log end.
    """
    has_end = log.files.high_watermark is not None
    end_offset = log.end_offset if has_end else None
    if has_end and log.segments[-1].end_damage is not None:
        # In a corrupt log, the log end offset may be before the corruption: use the high watermark.
        end_offset = log.files.high_watermark
    requested_start = _resolve_bound(log, bounds.start)
    if requested_start is None:
        check_start(log, bounds)
    start_offset = (
        log.end_offset if requested_start is None else max(requested_start, log.log_start_offset)
    )
    requested_end = _resolve_bound(log, bounds.end)
    if requested_end is not None:
        end_offset = requested_end if end_offset is None else min(requested_end, end_offset)
        refuse_start_after_end(log, bounds, requested_start, requested_end)
    return start_offset, end_offset


def refuse_start_after_end(
    log: PartitionLog, bounds: ReadBounds, start_offset: int | None, end_offset: int
) -> None:
    """With `needs_order`, raise if the start is after the end, like Spark's ``KafkaSourceRDD``.

    A start offset of None means the end of the log.
    """
    if (
        bounds.needs_order
        and (log.end_offset if start_offset is None else start_offset) > end_offset
    ):
        raise InputError(
            f"{log.topic}-{log.partition} starts after its end",
            path=log.files.segments[0].partition_directory,
            expected=f"a start at offset {end_offset} or before",
            found=log.end_offset if start_offset is None else start_offset,
        )


def check_start(log: PartitionLog, bounds: ReadBounds) -> None:
    """Raise if `needs_start` is set and the start is a time that no record reaches."""
    if bounds.needs_start and bounds.start.is_timestamp:
        raise InputError(
            f"no record is at or after the starting timestamp {bounds.start.value}",
            path=log.files.segments[0].partition_directory,
            hint="give an earlier time, or set startingOffsetsByTimestampStrategy to latest",
        )


def check_offsets(log: PartitionLog, bounds: ReadBounds, end_offset: int) -> None:
    """With `needs_offsets`, raise if a requested offset is outside the log.

    `end_offset` is the end for the reader: the log end offset or the last stable offset. An end
    offset below the log start is valid: then no record is read.
    """
    if not bounds.needs_offsets:
        return
    earliest = log.log_start_offset
    for side, bound, min_offset in (
        ("starting", bounds.start, earliest),
        ("ending", bounds.end, 0),
    ):
        if bound.is_timestamp or bound.value < 0 or min_offset <= bound.value <= end_offset:
            continue
        raise InputError(
            f"the log does not have the {side} offset",
            path=log.files.segments[0].partition_directory,
            expected=f"{earliest}..{end_offset}",
            found=bound.value,
            hint="set failOnDataLoss to false to read the existing offsets",
        )


def _resolve_bound(log: PartitionLog, bound: Bound) -> int | None:
    """Return the offset of a bound, None if the bound is the end of the log."""
    if bound.is_timestamp:
        return first_at_or_after(log, bound.value)
    if bound.value == EARLIEST:
        return log.log_start_offset
    return None if bound.value == LATEST else bound.value


def first_at_or_after(log: PartitionLog, timestamp_ms: int) -> int | None:
    """Return the offset of the first record at or after a time, None if no such record exists.

    Raises `CorruptLogError` if a corrupt range may contain the first such record.
    """
    answers = log.answer_timestamps(np.array([timestamp_ms], np.int64), Resolve.RECORD)
    status = Status(int(answers.status[0]))
    if status is Status.FOUND:
        return int(answers.values[FOUND_OFFSET, 0])
    end_damage = log.segments[-1].end_damage
    if status is not Status.UNREADABLE and end_damage is None:
        return None
    findings = [finding for finding in log.take_findings() if finding.reason]
    reason = findings[-1].reason if findings else status.text
    raise CorruptLogError(
        f"the first record at or after {timestamp_ms} cannot be found: {reason}",
        path=log.files.segments[0].partition_directory,
    )


def time_span(partitions: Iterable[PartitionFiles], settings: ReadSettings) -> TimeSpan:
    """Return the range of record timestamps in partitions.

    Only two batches of each partition are read: the first batch, and the batch with the largest
    timestamp, which time indexes locate. If a partition is corrupt, it is counted as `unknown`.
    """
    span = TimeSpan()
    for files in partitions:
        try:
            first_ms, last_ms = _read_time_range(files, settings.max_decompressed_bytes)
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            span = replace(span, unknown=span.unknown + 1)
        else:
            span = span.with_times(first_ms, last_ms)
    return span


def _read_time_range(
    files: PartitionFiles, max_decompressed_bytes: int
) -> tuple[int | None, int | None]:
    with PartitionLog(
        files, config=IndexConfig(), max_decompressed_bytes=max_decompressed_bytes
    ) as log:
        start = np.array([log.log_start_offset], np.int64)
        latest = np.array([SpecialTimestamp.MAX_TIMESTAMP], np.int64)
        results = [
            log.answer_offsets(start, Resolve.RECORD),
            log.answer_timestamps(latest, Resolve.RECORD),
        ]
        if any(answers.status[0] == Status.UNREADABLE for answers in results):
            for finding in log.take_findings():
                if finding.retriable:
                    raise ReadError(
                        f"the timestamps cannot be read: {finding.reason}", path=finding.path
                    )
            raise KafkaIndexError("the timestamps cannot be read", path=files.segments[0].log_path)
        first_ms, last_ms = (
            int(answers.values[FOUND_TIMESTAMP, 0]) if answers.status[0] == Status.FOUND else None
            for answers in results
        )
    return first_ms, last_ms


def read_offsets_file(path: str) -> dict[str, dict[int, int]]:
    """Read a file of offsets by topic and partition.

    The file contains either JSON such as ``{"orders": {"0": 123}}``, or one line such as
    ``orders,0,123`` for each partition.
    """
    content = read_text(absolute_path(path), "the offsets")
    rows = (
        _parse_json(content, path)
        if content.lstrip().startswith("{")
        else _parse_csv(content, path)
    )
    offsets: dict[str, dict[int, int]] = {}
    for topic, partition, offset in rows:
        number, value = parse_integer(partition), parse_integer(offset)
        if (
            number is None
            or value is None
            or not is_legal_topic(topic)
            or number < 0
            or value < EARLIEST
        ):
            raise _malformed_error(path, f"{topic},{partition},{offset}")
        topic_offsets = offsets.setdefault(topic, {})
        if number in topic_offsets:
            raise InputError("a partition is listed twice", path=path, found=f"{topic}-{number}")
        topic_offsets[number] = value
    if not offsets:
        raise InputError("the file contains no offsets", path=path)
    return offsets


def _parse_json(text: str, path: str) -> list[tuple[str, str, str]]:
    try:
        # Parse objects as lists of pairs, because a dictionary would silently drop a repeated
        # partition.
        topics = json.loads(text, object_pairs_hook=list)
        return [
            (topic, str(partition), str(offset))
            for topic, numbers in topics
            for partition, offset in numbers
        ]
    except (ValueError, TypeError) as error:
        raise _malformed_error(path, text[:60]) from error


def _parse_csv(text: str, path: str) -> Iterable[tuple[str, str, str]]:
    for row in csv.reader(text.splitlines()):
        if not row or [cell.strip().lower() for cell in row] == _HEADER:
            continue
        if len(row) != _COLUMNS:
            raise _malformed_error(path, ",".join(row))
        topic, partition, offset = (cell.strip() for cell in row)
        yield topic, partition, offset


def _malformed_error(path: str, text: str) -> InputError:
    return InputError(
        "the file is not a file of offsets",
        path=path,
        expected='{"topic": {"0": 123}}, or lines of topic,partition,offset',
        found=text,
    )
