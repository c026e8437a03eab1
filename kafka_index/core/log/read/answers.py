"""Columns of lookup results, with a status for each query, and findings about segments.

The statuses and columns are the same as in ``kafka-index lookup``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.errors import OPEN_FILES_HINT, KafkaIndexError, is_retriable, lacks_open_files
from kafka_index.core.format.longs import Longs
from kafka_index.core.log.choices import Resolve, Status

if TYPE_CHECKING:
    from kafka_index.core.log.read.segment_log import SegmentLog
    from kafka_index.core.logdir.partition_files import SegmentFile

#: The value that represents null in a result column.
NULL = np.iinfo(np.int64).min

#: An index file is missing. The index is built in memory.
NO_INDEX = "no_index"
#: An index file does not match its log. The index is built in memory.
INDEX_REFUSED = "index_refused"
#: The last segment ends in bytes that a broker truncates at startup.
TAIL = "tail"
#: Because of corruption or a read error, some queries have no result.
UNREADABLE = "unreadable"
#: No batch contains a requested offset, and no checkpoint shows that compaction removed the offset.
#: As in a broker, the result is the next batch.
GAP = "missing_offsets"
KINDS = (NO_INDEX, INDEX_REFUSED, TAIL, UNREADABLE, GAP)


class SpecialTimestamp(IntEnum):
    """Special timestamps of ``ListOffsetsRequest``."""

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
#: Names of the columns after the status, in the order of `Answers.values`.
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

# Number of leading value columns at each level of detail. Other columns are not allocated.
_COLUMN_COUNTS = {
    Resolve.INDEX: ENTRY_TIMESTAMP + 1,
    Resolve.BATCH: BATCH_SIZE + 1,
    Resolve.RECORD: FOUND_LEADER_EPOCH + 1,
}


@dataclass(frozen=True, slots=True)
class Answers:
    """The results of n queries, in their order.

    `values` has shape (k, n): the first k of `VALUE_COLUMNS`, depending on the level of detail.
    Missing values are `NULL`.
    """

    status: NDArray[np.int8]
    values: Longs

    @classmethod
    def empty(cls, count: int, resolve: Resolve, status: Status = Status.FOUND) -> Answers:
        """Return `count` results with the same status, without values."""
        return cls(
            np.full(count, status, np.int8),
            np.full((_COLUMN_COUNTS[resolve], count), NULL, np.int64),
        )

    def __len__(self) -> int:
        return len(self.status)

    def repeat(self, count: int) -> Answers:
        return Answers(np.repeat(self.status, count), np.repeat(self.values, count, axis=1))

    def put(self, rows: Longs | slice, answers: Answers) -> None:
        """Copy results into rows."""
        self.status[rows] = answers.status
        self.values[: len(answers.values), rows] = answers.values

    def to_arrow(self) -> pa.RecordBatch:
        """Convert to `ANSWER_SCHEMA`. Columns that are not part of the level of detail are null."""
        names = pa.array([status.text for status in Status], pa.string())
        status = pa.DictionaryArray.from_arrays(pa.array(self.status), names)
        columns = [status.cast(pa.string())]
        for column, field in enumerate(list(ANSWER_SCHEMA)[1:]):
            if column >= len(self.values):
                columns.append(pa.nulls(len(self), field.type))
                continue
            values = self.values[column]
            is_null = values == NULL
            array = pa.array(values, mask=is_null) if is_null.any() else pa.array(values)
            columns.append(array.cast(field.type))
        return pa.record_batch(columns, schema=ANSWER_SCHEMA)


@dataclass(frozen=True, slots=True)
class LookupFinding:
    """A finding about a partition or one of its segments.

    Attributes
    ----------
    kind
        A value of `KINDS`.
    queries
        Number of affected queries. These queries have no result, except if the kind is `GAP`.
    retriable
        True if the cause is the environment (permission, disk, memory), not the data.
    """

    topic: str
    partition: int
    segment_base_offset: int | None
    path: str
    kind: str
    reason: str
    position_bytes: int | None = None
    queries: int = 0
    retriable: bool = False


class Findings:
    """Collects findings. Equal findings are merged, and their query counts added."""

    def __init__(self) -> None:
        self._query_counts: dict[LookupFinding, int] = {}

    def add(self, finding: LookupFinding) -> None:
        key = replace(finding, queries=0)
        self._query_counts[key] = self._query_counts.get(key, 0) + finding.queries

    def all(self) -> list[LookupFinding]:
        return [
            replace(finding, queries=queries) for finding, queries in self._query_counts.items()
        ]

    def drain(self) -> list[LookupFinding]:
        """Return the collected findings, and remove them."""
        findings = self.all()
        self._query_counts.clear()
        return findings


class SegmentFindings:
    """Collects findings about one segment, and sets the status of the affected queries."""

    def __init__(self, segment: SegmentFile, log: SegmentLog, findings: Findings) -> None:
        self._segment = segment
        self._log = log
        self._findings = findings

    def add(
        self,
        kind: str,
        path: str,
        reason: str,
        position_bytes: int | None = None,
        queries: int = 0,
        *,
        retriable: bool = False,
    ) -> None:
        segment = self._segment
        self._findings.add(
            LookupFinding(
                segment.topic,
                segment.partition,
                segment.base_offset,
                path,
                kind,
                reason,
                position_bytes,
                queries,
                retriable,
            )
        )

    def damage(self, answers: Answers, rows: Longs, position_bytes: int) -> None:
        """Set the status of queries to unreadable, because of corruption at a position."""
        if len(rows):
            answers.status[rows] = Status.UNREADABLE
            reason = self._log.unreadable_reason(position_bytes)
            self.add(UNREADABLE, self._segment.log_path, reason, position_bytes, len(rows))

    def failure(self, answers: Answers, rows: Longs, error: KafkaIndexError) -> None:
        """Set the status of queries to unreadable, because of an error."""
        if len(rows):
            answers.status[rows] = Status.UNREADABLE
            path = error.path or self._segment.log_path
            self.add(
                UNREADABLE,
                path,
                f"{error.described}; {OPEN_FILES_HINT}"
                if lacks_open_files(error)
                else error.described,
                error.position_bytes,
                len(rows),
                retriable=is_retriable(error),
            )
