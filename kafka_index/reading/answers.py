"""Answers of lookups: the outcome of each query, as columns.

The statuses and columns are the public ones of ``kafka-index lookup``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.layout.integers import Longs

#: Null in a column of answers.
NULL = np.iinfo(np.int64).min


class Status(IntEnum):
    """The outcome of a query."""

    #: There is an answer at the requested level.
    FOUND = 0
    #: The offset is below the first one that the partition still has.
    BEFORE_LOG_START = 1
    #: The offset is the next one to be written (or not yet visible below the upper bound): an
    #: empty read, no error.
    LOG_END = 2
    #: The offset is above the end of the log: a broker calls it out of range.
    AFTER_LOG_END = 3
    #: No record is that late, or (compacted away) none is left at or after the offset.
    NO_RECORD_AT_OR_AFTER = 4
    #: The dump holds no segments of that partition.
    UNKNOWN_PARTITION = 5
    #: A null or negative offset, a null or unsupported timestamp, a null topic or partition.
    INVALID_QUERY = 6
    #: Damage, or a failing disk, hides the answer.
    UNREADABLE = 7

    @property
    def text(self) -> str:
        """The status as users see it."""
        return self.name.lower()


class Resolve(Enum):
    """The level of detail of a lookup."""

    #: To the floor entry, by the index files alone.
    INDEX = "index"
    #: To the batch.
    BATCH = "batch"
    #: To the record.
    RECORD = "record"


class UpperBound(Enum):
    """The end of a log for a lookup."""

    LOG_END = "log-end"
    HIGH_WATERMARK = "high-watermark"
    #: The high watermark, or where the first open transaction below it begins.
    LAST_STABLE_OFFSET = "last-stable-offset"


class SpecialTimestamp(IntEnum):
    """Timestamps that ask for a place instead (``ListOffsetsRequest``)."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


ANSWER_SCHEMA = pa.schema(
    [
        pa.field("status", pa.string(), nullable=False),
        pa.field("segment_base_offset", pa.int64()),
        pa.field("entry_offset", pa.int64()),
        pa.field("entry_position_bytes", pa.int64()),
        pa.field("entry_timestamp_ms", pa.int64()),
        pa.field("batch_base_offset", pa.int64()),
        pa.field("batch_last_offset", pa.int64()),
        pa.field("batch_position_bytes", pa.int64()),
        pa.field("batch_size_bytes", pa.int64()),
        pa.field("found_offset", pa.int64()),
        pa.field("found_timestamp_ms", pa.int64()),
        pa.field("found_leader_epoch", pa.int32()),
    ]
)
#: Names of the columns after the status, in order: the rows of `Answers.values`.
VALUE_COLUMNS = tuple(ANSWER_SCHEMA.names[1:])
(
    SEGMENT_BASE_OFFSET,
    ENTRY_OFFSET,
    ENTRY_POSITION,
    ENTRY_TIMESTAMP,
    BATCH_BASE_OFFSET,
    BATCH_LAST_OFFSET,
    BATCH_POSITION,
    BATCH_SIZE,
    FOUND_OFFSET,
    FOUND_TIMESTAMP,
    FOUND_LEADER_EPOCH,
) = range(len(VALUE_COLUMNS))

_STATUS_TEXTS = pa.array([status.text for status in Status], pa.string())
# Columns that a level never fills are not even allocated.
_COLUMNS_OF = {
    Resolve.INDEX: ENTRY_TIMESTAMP + 1,
    Resolve.BATCH: BATCH_SIZE + 1,
    Resolve.RECORD: FOUND_LEADER_EPOCH + 1,
}


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to n queries, in their order.

    `values` has shape (k, n): the first k of `VALUE_COLUMNS`, as many as the level fills, with
    `NULL` for no value.
    """

    status: NDArray[np.int8]
    values: Longs

    @classmethod
    def empty(cls, count: int, resolve: Resolve, status: Status = Status.FOUND) -> Answers:
        """Return answers of one status, all values null."""
        return cls(
            np.full(count, status, np.int8), np.full((_COLUMNS_OF[resolve], count), NULL, np.int64)
        )

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self.status)

    def repeat(self, count: int) -> Answers:
        """Return one answer for each of several queries."""
        return Answers(np.repeat(self.status, count), np.repeat(self.values, count, axis=1))

    def put(self, rows: Longs, answers: Answers) -> None:
        """Set the answers to the queries in these rows."""
        self.status[rows] = answers.status
        self.values[: len(answers.values), rows] = answers.values

    def to_arrow(self) -> pa.RecordBatch:
        """Return the answers as `ANSWER_SCHEMA`, columns of further levels null."""
        status = pa.DictionaryArray.from_arrays(pa.array(self.status), _STATUS_TEXTS)
        columns = [status.cast(pa.string())]
        for column, field in enumerate(list(ANSWER_SCHEMA)[1:]):
            if column >= len(self.values):
                columns.append(pa.nulls(len(self), field.type))
                continue
            values = self.values[column]
            missing = values == NULL
            array = pa.array(values, mask=missing) if missing.any() else pa.array(values)
            columns.append(array.cast(field.type))
        return pa.record_batch(columns, schema=ANSWER_SCHEMA)
