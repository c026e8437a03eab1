"""The rows that a read has to return, of what Kafka reads in the logs of a partition.

Kafka says which batches there are, whether each is valid, and which records it has. Four rules are
the product's own: which damage ends a segment and which is passed over, which batches are out of
order, what a broker cuts off the end of a log anyway, and that a batch must not need more memory
than is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tests.support.partition_model import BatchSequence, Offsets, is_tail
from tests.support.segments import BATCH_HEADER_SIZE, INT32_MAX

from .reference_files import ReadBatch, ReadLog, ReadRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CONTENTS = {"key", "value", "headers"}


class Damage(NamedTuple):
    """A place where a read fails, or has a row that says so."""

    segment: int
    position_bytes: int


Row = tuple[object, ...]


@dataclass(frozen=True)
class SegmentRead:
    """A segment: its bytes, and what Kafka reads in them."""

    base_offset: int
    data: bytes
    log: ReadLog


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read.

    `first_offset`, `last_offset`: both inclusive.
    """

    columns: tuple[str, ...]
    first_offset: int
    last_offset: int = 2**63 - 1
    include_control: bool = False
    verify_crc: bool = True
    max_decompressed_bytes: int = 1 << 28


def expected_rows(segments: list[SegmentRead], wanted: ReadOptions) -> Iterator[Row | Damage]:
    """Yield the rows of a partition, and the damage between them, in the order of the log."""
    for number, segment in enumerate(segments, 1):
        following = segments[number].base_offset if number < len(segments) else None
        yield from _rows_of_segment(segment, wanted, following)


def _rows_of_segment(
    segment: SegmentRead, wanted: ReadOptions, following: int | None
) -> Iterator[Row | Damage]:
    end = 0
    order, last = BatchSequence(segment.base_offset, following), segment.base_offset - 1
    for batch in segment.log.batches:
        damage = Damage(segment.base_offset, batch.position_bytes)
        if batch.magic >= 2 and batch.size_bytes < BATCH_HEADER_SIZE:
            yield damage
            return
        end = batch.position_bytes + batch.size_bytes
        if wanted.verify_crc and batch.invalid is not None:
            yield damage
            continue
        last_offset = header_last_offset(segment.data, batch)
        if not 0 <= last_offset - segment.base_offset <= INT32_MAX:
            yield damage
            return
        last = last_offset
        if not order.is_kept(header_base_offset(segment.data, batch), last_offset):
            if order.begins_break():
                yield damage
            continue
        if last_offset < wanted.first_offset or (batch.is_control and not wanted.include_control):
            continue
        if _needs_too_much(segment.data, batch, wanted.max_decompressed_bytes):
            yield damage
            continue
        # The checksum of a message that is not compressed is the batch's own.
        verify_crc = wanted.verify_crc and batch.magic < 2
        yield from _rows_of_batch(batch, wanted, damage, verify_crc=verify_crc)
    offsets = Offsets(last + 1, segment.base_offset + INT32_MAX + 1)
    is_last = following is None
    if end < len(segment.data) and not (is_last and is_tail(segment.data, end, offsets)):
        yield Damage(segment.base_offset, end)


def _rows_of_batch(
    batch: ReadBatch, wanted: ReadOptions, damage: Damage, *, verify_crc: bool
) -> Iterator[Row | Damage]:
    for record in batch.records:
        if verify_crc and not record.is_valid:
            yield damage
            return
        if not record.has_contents and _CONTENTS & set(wanted.columns):
            yield damage
            return
        if wanted.first_offset <= record.offset <= wanted.last_offset:
            yield row_of(batch, record, wanted.columns)
    if batch.fault is not None:
        yield damage


def header_base_offset(data: bytes, batch: ReadBatch) -> int:
    """The base offset of a batch as its header has it: the last one for magic 0 and 1."""
    return int.from_bytes(data[batch.position_bytes :][:8], "big", signed=True)


def header_last_offset(data: bytes, batch: ReadBatch) -> int:
    """The last offset of a batch as its header has it."""
    offset = header_base_offset(data, batch)
    if batch.magic < 2:
        return offset
    delta = data[batch.position_bytes + 23 : batch.position_bytes + 27]
    return offset + int.from_bytes(delta, "big", signed=True)


def is_compressed(data: bytes, batch: ReadBatch) -> bool:
    """Whether the records of a batch are compressed."""
    at = batch.position_bytes + (22 if batch.magic >= 2 else 17)
    return data[at] & 7 != 0


def row_of(batch: ReadBatch, record: ReadRecord, columns: tuple[str, ...]) -> Row:
    """The row of a record; null for no headers, as Spark's Kafka source has it."""
    headers = [{"key": name, "value": value} for name, value in record.headers]
    row: Mapping[str, object] = {
        "key": record.key,
        "value": record.value,
        "topic": "topic",
        "partition": 0,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestampType": batch.timestamp_type,
        "headers": headers or None,
        "leader_epoch": batch.leader_epoch,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "sequence": record.sequence,
        "batch_base_offset": batch.base_offset,
        "position_bytes": batch.position_bytes,
        "is_control": batch.is_control,
    }
    return tuple(row[name] for name in columns)


def _needs_too_much(data: bytes, batch: ReadBatch, max_bytes: int) -> bool:
    if not is_compressed(data, batch):
        return False
    return sum(record.size_bytes for record in batch.records) > max_bytes
