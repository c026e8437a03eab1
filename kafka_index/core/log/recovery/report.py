"""The rows of a build report, one for each segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import pyarrow as pa

from kafka_index.core.errors import KafkaIndexError, is_retriable
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import OVERLAP, PREALLOCATED_TAIL

BUILT = "built"
UNCHANGED = "unchanged"
TRUNCATED = "truncated"
FAILED = "failed"
STATUSES = (BUILT, UNCHANGED, TRUNCATED, FAILED)

#: The reason code of a segment that an error ended: its file, or its target, cannot be used.
ERROR = "error"

REPORT_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("segment_base_offset", pa.int64(), nullable=False),
        pa.field("log_path", pa.string(), nullable=False),
        pa.field("log_size_bytes", pa.int64(), nullable=False),
        pa.field("valid_bytes", pa.int64()),
        pa.field("batch_count", pa.int64()),
        pa.field("offset_entries", pa.int64()),
        pa.field("time_entries", pa.int64()),
        pa.field("next_offset", pa.int64()),
        pa.field("max_timestamp_ms", pa.int64()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("position_bytes", pa.int64()),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("aborted_txns", pa.int64()),
        pa.field("producers", pa.int64()),
        pa.field("note", pa.string()),
        pa.field("retriable", pa.bool_(), nullable=False),
        pa.field("reason_code", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """The counts of a scanned segment.

    `valid_bytes` is the length of the prefix that the indexes cover, and `batch_count` its record
    batches. `next_offset` comes after the last one, as a broker reads it: the base offset where
    offsets go back after the last index entry. The largest timestamp is -1 for none.
    """

    valid_bytes: int
    batch_count: int
    offset_entries: int
    time_entries: int
    next_offset: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """The result of one segment; one of which only the log is known has failed.

    Parameters
    ----------
    topic, partition, segment_base_offset
        The segment.
    log_path : str
        Its log, absolute.
    log_size_bytes : int
        Size of the log.
    counts : SegmentCounts, optional
        What the scan counted; None when the segment failed before that was known.
    status : str
        One of `STATUSES`.
    reason : str, optional
        Why the status is not ``built``, or which batches are out of order, for people.
    position_bytes : int, optional
        Where in the log the reason lies.
    seconds : float
        Time it took.
    aborted_txns : int, optional
        Entries of ``.txnindex``; None when no state was asked for.
    producers : int, optional
        Producers known at the segment's end; None when no state was asked for.
    note : str, optional
        What is worth knowing of a segment that has nothing wrong with it.
    retriable : bool
        The segment failed because of permission, disk or memory, not because of its data.
    reason_code : str, optional
        What programs go by: the code of the reason, such as ``bad_crc``; without a reason that of
        the note, if it has one.
    """

    topic: str
    partition: int
    segment_base_offset: int
    log_path: str
    log_size_bytes: int
    counts: SegmentCounts | None = None
    status: str = FAILED
    reason: str | None = None
    position_bytes: int | None = None
    seconds: float = 0.0
    aborted_txns: int | None = None
    producers: int | None = None
    note: str | None = None
    retriable: bool = False
    reason_code: str | None = None

    def failed(self, code: str, reason: str, position_bytes: int | None = None) -> Self:
        """Return the row of the segment, failed."""
        return replace(
            self, status=FAILED, reason=reason, reason_code=code, position_bytes=position_bytes
        )

    def failed_by(self, error: KafkaIndexError) -> Self:
        """Return the row of the segment, failed by an error."""
        row = self.failed(ERROR, str(error), error.position_bytes)
        return replace(row, retriable=is_retriable(error))

    @property
    def is_preallocated_tail(self) -> bool:
        """Whether the log ends in the zeros of preallocation, and all before them is sound."""
        return self.reason_code == PREALLOCATED_TAIL

    @property
    def is_damage(self) -> bool:
        """Whether someone should look at this segment, and the exit code say so."""
        is_cut = self.status == TRUNCATED and not self.is_preallocated_tail
        # Recovery keeps batches that are out of order, and readers do not.
        return self.status == FAILED or is_cut or self.reason_code == OVERLAP


def empty_row(segment: SegmentFile) -> SegmentReport:
    """Return the row of a segment of which only the log is known."""
    return SegmentReport(
        segment.topic,
        segment.partition,
        segment.base_offset,
        segment.log_path,
        segment.log_size_bytes,
    )


_COUNT_NAMES = tuple(field.name for field in fields(SegmentCounts))
_ROW_NAMES = tuple(name for name in REPORT_SCHEMA.names if name not in _COUNT_NAMES)


def report_table(rows: Sequence[SegmentReport]) -> pa.Table:
    """Return report rows as an Arrow table of `REPORT_SCHEMA`."""
    columns = {name: [getattr(row, name) for row in rows] for name in _ROW_NAMES}
    columns |= {
        name: [None if row.counts is None else getattr(row.counts, name) for row in rows]
        for name in _COUNT_NAMES
    }
    return pa.table(columns, schema=REPORT_SCHEMA)


def report_rows(table: pa.Table) -> list[SegmentReport]:
    """Return the rows of an Arrow table of `REPORT_SCHEMA`."""
    rows = []
    for row in table.select(REPORT_SCHEMA.names).to_pylist():
        counts = [row.pop(name) for name in _COUNT_NAMES]
        known = None if counts[0] is None else SegmentCounts(*counts)
        rows.append(SegmentReport(**row, counts=known))
    return rows
