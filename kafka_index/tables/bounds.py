"""The bounds of a read: offsets or times, for all partitions or each, resolved to offsets.

Names and meaning are those of the options of Spark's Kafka source: ``startingOffsets`` is
inclusive, ``endingOffsets`` exclusive, -2 is the earliest offset and -1 the latest, and a time
stands for the offset of the first record as late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import numpy as np

from kafka_index.errors import CorruptLogError, InputError
from kafka_index.layout.names import TopicPartition
from kafka_index.reading import PartitionLog, Resolve, Status
from kafka_index.reading.answers import FOUND_OFFSET, SpecialTimestamp

#: An offset (-1 and -2 are `LATEST` and `EARLIEST`), for all partitions or by topic and partition.
Offsets: TypeAlias = int | Mapping[str, Mapping[int, int]]
#: A time in ms since the epoch or as a datetime with a time zone, likewise.
Timestamps: TypeAlias = int | datetime | Mapping[str, Mapping[int, int | datetime]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LATEST, EARLIEST = int(SpecialTimestamp.LATEST), int(SpecialTimestamp.EARLIEST)


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what is read of a partition.

    Parameters
    ----------
    value : int
        The offset, or the time in ms.
    is_timestamp : bool
        Which of them.
    """

    value: int
    is_timestamp: bool = False


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """Where reading a partition begins, and where it ends, exclusive.

    Parameters
    ----------
    start, end : Bound
        The bounds.
    needs_start : bool
        Whether it is an error that no record is as late as a start in time.
    needs_offsets : bool
        Whether it is an error that the log does not have an offset that is given.
    """

    start: Bound = Bound(EARLIEST)
    end: Bound = Bound(LATEST)
    needs_start: bool = False
    needs_offsets: bool = False


@dataclass(frozen=True, slots=True)
class BoundOptions:
    """The bounds of all partitions, as they are given.

    Parameters
    ----------
    starting_offsets, ending_offsets : Offsets, optional
        The earliest and the latest by default, also for partitions that a mapping leaves out.
    starting_timestamp, ending_timestamp : Timestamps, optional
        Instead of offsets.
    needs_start, needs_offsets : bool
        As for `ReadBounds`.

    Raises
    ------
    InputError
        One end is given twice, or a value is none.
    """

    starting_offsets: Offsets | None = None
    ending_offsets: Offsets | None = None
    starting_timestamp: Timestamps | None = None
    ending_timestamp: Timestamps | None = None
    needs_start: bool = False
    needs_offsets: bool = False

    def __post_init__(self) -> None:
        for end in ("starting", "ending"):
            offsets, timestamp = (
                getattr(self, f"{end}_{what}") for what in ("offsets", "timestamp")
            )
            if offsets is not None and timestamp is not None:
                raise InputError(f"give either {end} offsets or a {end} timestamp, not both")

    def of(self, partition: TopicPartition) -> ReadBounds:
        """Return the bounds of a partition."""
        return ReadBounds(
            _bound(self.starting_offsets, self.starting_timestamp, partition, EARLIEST),
            _bound(self.ending_offsets, self.ending_timestamp, partition, LATEST),
            self.needs_start,
            self.needs_offsets,
        )


def _bound(
    offsets: Offsets | None, timestamps: Timestamps | None, partition: TopicPartition, default: int
) -> Bound:
    if timestamps is not None:
        timestamp = _of_partition(timestamps, partition)
        if timestamp is not None:
            return Bound(_milliseconds(timestamp), is_timestamp=True)
    offset = None if offsets is None else _of_partition(offsets, partition)
    if offset is None:
        return Bound(default)
    if not isinstance(offset, int) or offset < EARLIEST:
        raise InputError(
            "not an offset", expected="0 or more, -1 (latest) or -2 (earliest)", found=offset
        )
    return Bound(offset)


def _of_partition(values: Offsets | Timestamps, partition: TopicPartition) -> int | datetime | None:
    if isinstance(values, Mapping):
        return values.get(partition.topic, {}).get(partition.partition)
    return values


def _milliseconds(timestamp: int | datetime) -> int:
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise InputError("a time without a time zone", found=timestamp.isoformat())
        # Rounded up: no record before it is meant.
        return -((_EPOCH - timestamp) // timedelta(milliseconds=1))
    if timestamp < 0:
        raise InputError("not a timestamp", expected="0 or more, in ms", found=timestamp)
    return timestamp


def resolve_bounds(log: PartitionLog, bounds: ReadBounds) -> tuple[int, int | None]:
    """Return the offsets that bounds stand for, the second exclusive, None for the end of the log.

    A start before the first offset that the log has is that offset. A time after the last record
    is the end.

    Raises
    ------
    CorruptLogError
        Damage hides what a time stands for.
    """
    has_end = log.files.high_watermark is not None
    end = log.end_offset if has_end else None
    start = _resolve(log, bounds.start)
    if start is None:
        check_start(log, bounds)
    first = log.end_offset if start is None else max(start, log.log_start_offset)
    wanted = _resolve(log, bounds.end)
    if wanted is not None:
        end = wanted if end is None else min(wanted, end)
    return first, end


def check_start(log: PartitionLog, bounds: ReadBounds) -> None:
    """Refuse a start in time that no record is as late as, if there has to be one.

    Raises
    ------
    InputError
        It is such a start.
    """
    if bounds.needs_start and bounds.start.is_timestamp:
        raise InputError(
            f"no record is as late as the starting timestamp {bounds.start.value}",
            path=log.files.segments[0].partition_directory,
            hint="give an earlier one, or set startingOffsetsByTimestampStrategy to latest",
        )


def check_offsets(log: PartitionLog, bounds: ReadBounds, end_offset: int) -> None:
    """Refuse offsets that are not in the log, if they have to be.

    Parameters
    ----------
    log : PartitionLog
        The partition.
    bounds : ReadBounds
        What is asked of it.
    end_offset : int
        Where it ends for the reader: the log end offset, or the last stable offset.

    Raises
    ------
    InputError
        One is not. An end below the start of the log is fine: there is nothing to read.
    """
    if not bounds.needs_offsets:
        return
    earliest = log.log_start_offset
    for what, bound, first in (
        ("starting", bounds.start, earliest),
        ("ending", bounds.end, 0),
    ):
        if bound.is_timestamp or bound.value < 0 or first <= bound.value <= end_offset:
            continue
        raise InputError(
            f"the log does not have the {what} offset",
            path=log.files.segments[0].partition_directory,
            expected=f"{earliest}..{end_offset}",
            found=bound.value,
            hint="set failOnDataLoss to false to read what is there",
        )


def _resolve(log: PartitionLog, bound: Bound) -> int | None:
    """Return the offset that a bound stands for; None for the end of the log."""
    if bound.is_timestamp:
        return _first_as_late(log, bound.value)
    if bound.value == EARLIEST:
        return log.log_start_offset
    return None if bound.value == LATEST else bound.value


def _first_as_late(log: PartitionLog, timestamp_ms: int) -> int | None:
    answers = log.answer_timestamps(np.array([timestamp_ms], np.int64), Resolve.RECORD)
    status = Status(int(answers.status[0]))
    if status is Status.FOUND:
        return int(answers.values[FOUND_OFFSET, 0])
    if status is not Status.UNREADABLE:
        return None
    findings = [finding for finding in log.take_findings() if finding.reason]
    reason = findings[-1].reason if findings else status.text
    raise CorruptLogError(
        f"the first record at {timestamp_ms} cannot be found: {reason}",
        path=log.files.segments[0].partition_directory,
    )
