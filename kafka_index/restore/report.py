"""The report of a restore: rows of partitions, of lost ranges, and of offsets of groups."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from kafka_index.restore.lost_ranges import LostRange
from kafka_index.restore.restored_partition import OffsetBeyondEnd, RestoredPartition

RESTORED = "restored"
SALVAGED = "salvaged"
LEFT_OUT = "left_out"
LOST = "lost"

RESTORE_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("topic_id", pa.string()),
        pa.field("log_start_offset", pa.int64()),
        pa.field("log_end_offset", pa.int64()),
        pa.field("last_epoch", pa.int32()),
        pa.field("segments", pa.int64()),
        pa.field("size_bytes", pa.int64()),
        pa.field("segment_base_offset", pa.int64()),
        pa.field("position_bytes", pa.int64()),
        pa.field("first_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("first_timestamp_ms", pa.int64()),
        pa.field("last_timestamp_ms", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("reason_code", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("note", pa.string()),
        pa.field("group", pa.string()),
        pa.field("committed_offset", pa.int64()),
    ]
)


def status_of(restored: RestoredPartition) -> str:
    """Return what became of a partition, as a word."""
    if restored.is_left_out:
        return LEFT_OUT
    return SALVAGED if restored.lost else RESTORED


def report_rows(
    partitions: Iterable[RestoredPartition], beyond_end: Iterable[OffsetBeyondEnd]
) -> pa.Table:
    """Return the report: each partition, and what was lost of it; then offsets of groups."""
    rows: list[dict[str, object]] = []
    for each in partitions:
        rows.append(_partition_row(each))
        rows += [_lost_row(each, lost) for lost in each.lost]
    rows += map(_offset_row, beyond_end)
    return pa.Table.from_pylist(rows, schema=RESTORE_SCHEMA)


def _partition_row(restored: RestoredPartition) -> dict[str, object]:
    row: dict[str, object] = {
        "topic": restored.partition.topic,
        "partition": restored.partition.partition,
        "status": status_of(restored),
        "path": restored.source,
        "topic_id": restored.topic_id or None,
        "reason_code": restored.code,
        "reason": restored.reason,
        "note": "; ".join(restored.notes) or None,
    }
    if not restored.is_left_out:
        row |= {
            "log_start_offset": restored.log_start_offset,
            "log_end_offset": restored.log_end_offset,
            "last_epoch": restored.last_epoch,
            "segments": restored.segments,
            "size_bytes": restored.size_bytes,
        }
    return row


def _lost_row(restored: RestoredPartition, lost: LostRange) -> dict[str, object]:
    return {
        "topic": restored.partition.topic,
        "partition": restored.partition.partition,
        "status": LOST,
        "path": lost.path,
        "topic_id": restored.topic_id or None,
        "size_bytes": lost.size_bytes,
        "segment_base_offset": lost.segment_base_offset,
        "position_bytes": lost.position_bytes,
        "first_offset": lost.first_offset,
        "last_offset": lost.last_offset,
        "first_timestamp_ms": lost.first_timestamp_ms,
        "last_timestamp_ms": lost.last_timestamp_ms,
        "records": lost.records,
        "reason_code": lost.code,
        "reason": lost.reason,
    }


def _offset_row(one: OffsetBeyondEnd) -> dict[str, object]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "status": one.status,
        "path": one.path,
        "log_end_offset": one.end_offset,
        "reason": str(one),
        "group": one.group,
        "committed_offset": one.offset,
    }
