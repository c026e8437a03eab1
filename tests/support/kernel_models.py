"""The kernels once more, slowly: plain Python that follows Kafka's code line by line."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import google_crc32c
import numpy as np

from kafka_index.core.format.records import ABORTED_TXN
from kafka_index.core.kernels import headers, scan
from kafka_index.core.records.batch_table import BatchColumns

INT32_MAX = 2**31 - 1
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
CONTROL, TRANSACTIONAL = 0x20, 0x10


def int64(value: int) -> int:
    """The value as a Java long."""
    return (value + 2**63) % 2**64 - 2**63


@dataclass(frozen=True)
class Row:
    """A batch as the scan sees it, in the order of its columns."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    attributes: int
    producer_id: int
    control_type: int
    producer_epoch: int
    base_sequence: int
    magic: int
    record_count: int


def scan_log(
    log: bytes, segment_base_offset: int, *, verify_crc: bool = True
) -> tuple[int, int, list[Row]]:
    """The batches of a whole log, and why and where they end."""
    rows: list[Row] = []
    position = 0
    while True:
        left = len(log) - position
        if left <= 17:
            return (scan.SCAN_TORN_HEADER if left else scan.SCAN_END), position, rows
        length, magic = struct.unpack_from(">i4xb", log, position + 8)
        if length < 14:
            return scan.SCAN_BAD_LENGTH, position, rows
        if left < 12 + length:
            return scan.SCAN_TORN_BATCH, position, rows
        entry = log[position : position + 12 + length]
        if magic >= 2 and len(entry) < BATCH_HEADER.size:
            return scan.SCAN_BAD_SIZE, position, rows
        stored, computed = checksums(entry)
        if verify_crc and stored != computed:
            return scan.SCAN_BAD_CRC, position, rows
        row = _batch_row(entry, position) if magic >= 2 else _message_row(entry, position)
        if not 0 <= int64(row.last_offset - segment_base_offset) <= INT32_MAX:
            return scan.SCAN_OFFSET_OVERFLOW, position, rows
        rows.append(row)
        position += len(entry)


def checksums(entry: bytes) -> tuple[int, int]:
    """The stored and the right checksum of an entry."""
    if struct.unpack_from(">b", entry, 16)[0] >= 2:
        return struct.unpack_from(">I", entry, 17)[0], google_crc32c.value(entry[21:])
    return struct.unpack_from(">I", entry, 12)[0], zlib.crc32(entry[16:])


def _batch_row(entry: bytes, position: int) -> Row:
    (
        base,
        _,
        epoch,
        magic,
        _,
        attributes,
        delta,
        _,
        latest,
        producer,
        producer_epoch,
        sequence,
        count,
    ) = BATCH_HEADER.unpack_from(entry)
    control = headers.CONTROL_NONE
    if attributes & CONTROL and producer >= 0:
        control = control_type(entry)
    return Row(
        position,
        len(entry),
        base,
        int64(base + delta),
        latest,
        epoch,
        attributes,
        producer,
        control,
        producer_epoch if producer >= 0 else 0,
        sequence if producer >= 0 else 0,
        magic,
        count,
    )


def _message_row(entry: bytes, position: int) -> Row:
    offset, magic, attributes = struct.unpack_from(">q8xbb", entry)
    timestamp = struct.unpack_from(">q", entry, 18)[0] if magic else -1
    return Row(
        position,
        len(entry),
        offset,
        offset,
        timestamp,
        -1,
        attributes,
        -1,
        headers.CONTROL_MESSAGE,
        0,
        0,
        magic,
        1,
    )


class InvalidRecord(Exception):  # noqa: N818
    """Kafka's InvalidRecordException."""


class LongVarint(Exception):  # noqa: N818
    """Kafka's IllegalArgumentException about a varint."""


class Record(NamedTuple):
    """The fields of a record, but for its headers."""

    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None


class RecordReader:
    """Kafka's reading of the records of a batch."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        if self.at == len(self.data):
            raise InvalidRecord
        self.at += 1
        return self.data[self.at - 1]

    @property
    def remaining(self) -> int:
        return len(self.data) - self.at

    def varint(self, most_bytes: int = 5) -> int:
        raw = 0
        for number in range(most_bytes):
            byte = self.byte()
            raw |= (byte & 0x7F) << 7 * number
            if byte < 0x80:
                raw %= 2**32 if most_bytes == 5 else 2**64
                return -(raw + 1) // 2 if raw % 2 else raw // 2
        raise LongVarint

    def sized(self) -> bytes | None:
        size = self.varint()
        if size < 0:
            return None
        if size > self.remaining:
            raise InvalidRecord
        self.at += size
        return self.data[self.at - size : self.at]

    def record(self, size: int) -> Record:
        """Read a record whose size was read."""
        if size > self.remaining:
            raise InvalidRecord
        start = self.at
        self.byte()
        deltas = self.varint(10), self.varint()
        key, value = self.sized(), self.sized()
        headers = self.varint()
        if not 0 <= headers <= self.remaining:
            raise InvalidRecord
        for _ in range(headers):
            if self.sized() is None:
                raise InvalidRecord
            self.sized()
        if self.at - start != size:
            raise InvalidRecord
        return Record(*deltas, key, value)


def control_type(entry: bytes) -> int:
    """The effect of a control batch with a producer in recovery."""
    attributes, count = BATCH_HEADER.unpack_from(entry)[5], BATCH_HEADER.unpack_from(entry)[-1]
    if count == 0:
        return headers.CONTROL_EMPTY
    if attributes & 7 > 4:
        return headers.CONTROL_REFUSED
    if attributes & 7:
        return headers.CONTROL_COMPRESSED
    if count < 0:
        return headers.CONTROL_INVALID
    try:
        return _marker_type(RecordReader(entry[BATCH_HEADER.size :]), only=count == 1)
    except InvalidRecord:
        return headers.CONTROL_INVALID


def _marker_type(reader: RecordReader, *, only: bool) -> int:
    try:
        size = reader.varint()
    except LongVarint:
        return headers.CONTROL_REFUSED
    try:
        _, _, key, value = reader.record(size)
    except LongVarint:
        raise InvalidRecord from None
    if only and reader.remaining:
        raise InvalidRecord
    if key is None:
        return headers.CONTROL_REFUSED
    if len(key) < 4 or struct.unpack_from(">h", key)[0] < 0:
        raise InvalidRecord
    kind: int = struct.unpack_from(">h", key, 2)[0]
    if kind not in {0, 1} or value is None or len(value) < 2:
        return headers.CONTROL_REFUSED
    if struct.unpack_from(">h", value)[0] < 0:
        raise InvalidRecord
    return kind if len(value) >= 6 else headers.CONTROL_REFUSED


def choose_entries(
    batches: Sequence[tuple[int, int, int]], interval: int
) -> tuple[list[tuple[int, int, int]], tuple[int, int, int]]:
    """Rows with their time entries, and the state at the end, of (position, offset, time)."""
    chosen = []
    last_position, latest, latest_offset = 0, -1, -1
    for row, (position, last_offset, max_timestamp) in enumerate(batches):
        if max_timestamp > latest:
            latest, latest_offset = max_timestamp, last_offset
        if position - last_position > interval:
            chosen.append((row, latest, latest_offset))
            last_position = position
    return chosen, (last_position, latest, latest_offset)


def floor_slot(keys: Sequence[int], target: int) -> int:
    """The last slot whose key is at or below the target, -1 for none."""
    return max((slot for slot, key in enumerate(keys) if key <= target), default=-1)


ABORT, COMMIT, EMPTY, INVALID, REFUSED = 0, 1, -2, -3, -4


@dataclass(frozen=True)
class ProducerRow:
    """The fields of a batch that matter to producers and epochs."""

    base_offset: int
    producer_id: int = -1
    attributes: int = 0
    control_type: int = -1
    last_offset_delta: int = 0
    producer_epoch: int = 0
    base_sequence: int = 0
    timestamp_ms: int = 0
    coordinator_epoch: int = 0
    leader_epoch: int = -1


def columns(rows: list[ProducerRow], first_position: int = 0) -> BatchColumns:
    """The rows as a chunk; the position of a batch is its number."""
    values = {
        field_.name: [getattr(row, field_.name) for row in rows] for field_ in fields(ProducerRow)
    }
    longs = {name: np.array(column, np.int64) for name, column in values.items()}
    return BatchColumns(
        position_bytes=first_position + np.arange(len(rows)),
        size_bytes=np.ones(len(rows), np.int64),
        base_offset=longs["base_offset"],
        last_offset=longs["base_offset"] + longs["last_offset_delta"],
        max_timestamp_ms=longs["timestamp_ms"],
        leader_epoch=longs["leader_epoch"],
        attributes=longs["attributes"],
        producer_id=longs["producer_id"],
        control_type=longs["control_type"],
        producer_epoch=longs["producer_epoch"],
        base_sequence=longs["base_sequence"],
        coordinator_epoch=longs["coordinator_epoch"],
        control_timestamp_ms=longs["timestamp_ms"],
        magic=np.full(len(rows), 2),
        record_count=np.ones(len(rows), np.int64),
    )


@dataclass(frozen=True)
class Entry:
    """The state of a producer."""

    epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp_ms: int = -1
    coordinator_epoch: int = -1
    first_offset: int | None = None

    def of_epoch(self, epoch: int) -> Entry:
        """Another epoch forgets the last batch."""
        if epoch == self.epoch:
            return self
        return replace(self, epoch=epoch, last_sequence=-1, last_offset=-1, offset_delta=0)


class Refusal(Exception):  # noqa: N818, an answer
    """Recovery fails here; the reason is a word."""


class ScanEnd(Exception):  # noqa: N818, an answer
    """The batch is kept, and the scan ends."""


@dataclass
class ProducerModel:
    """Producers, open transactions by first offset, and leader epochs."""

    producers: dict[int, Entry] = field(default_factory=dict)
    ongoing: dict[int, int] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)

    def begin_segment(self) -> None:
        """A segment has a transaction index of its own."""
        self.aborted = []

    def follow(self, row: ProducerRow) -> None:
        """Take up a batch."""
        if row.leader_epoch > (self.epochs[-1][0] if self.epochs else -1):
            if row.base_offset < 0:
                raise Refusal("epoch_offset_negative")
            while self.epochs and self.epochs[-1][1] >= row.base_offset:
                self.epochs.pop()
            self.epochs.append((row.leader_epoch, row.base_offset))
        if row.producer_id < 0:
            return
        entry = self.producers.get(row.producer_id, Entry())
        if row.attributes & CONTROL:
            self._marker(row, entry)
        else:
            self._data(row, entry)

    def _data(self, row: ProducerRow, entry: Entry) -> None:
        is_transactional = bool(row.attributes & TRANSACTIONAL)
        if entry.first_offset is not None and not is_transactional:
            raise Refusal("not_transactional")
        sequence = row.base_sequence
        if sequence != -1:
            sequence = (sequence + row.last_offset_delta) % 2**31
        entry = replace(
            entry.of_epoch(row.producer_epoch),
            last_sequence=sequence,
            last_offset=row.base_offset + row.last_offset_delta,
            offset_delta=row.last_offset_delta,
            timestamp_ms=row.timestamp_ms,
        )
        if is_transactional and entry.first_offset is None:
            entry = replace(entry, first_offset=row.base_offset)
            self.ongoing[row.base_offset] = row.producer_id
        self.producers[row.producer_id] = entry

    def _marker(self, row: ProducerRow, entry: Entry) -> None:
        if row.control_type == INVALID:
            raise ScanEnd
        if row.control_type == REFUSED or row.control_type > COMMIT:
            raise Refusal("unreadable_marker")
        if row.control_type == EMPTY:
            self.producers.setdefault(row.producer_id, entry)
            return
        first_offset = entry.first_offset
        self.producers[row.producer_id] = replace(
            entry.of_epoch(row.producer_epoch),
            timestamp_ms=row.timestamp_ms,
            coordinator_epoch=row.coordinator_epoch,
            first_offset=None,
        )
        if first_offset is None:
            return
        if row.control_type == ABORT:
            others = [
                first for first, one in sorted(self.ongoing.items()) if one != row.producer_id
            ]
            stable = others[0] if others else row.base_offset + 1
            if self.aborted and row.base_offset <= self.aborted[-1][2]:
                raise Refusal("abort_offset_backward")
            self.aborted.append((row.producer_id, first_offset, row.base_offset, stable))
        if self.ongoing.pop(first_offset, None) is None:
            raise Refusal("transaction_unknown")


def aborted_rows(aborted: np.ndarray) -> list[tuple[int, ...]]:
    """Entries of a transaction index as tuples, without the version."""
    assert aborted.dtype == ABORTED_TXN
    return [tuple(int(value) for value in entry)[1:] for entry in aborted.tolist()]


def entry_rows(entries: np.ndarray) -> dict[int, Entry]:
    """Producers by id."""
    result = {}
    for entry in entries.tolist():
        first_offset = None if entry[7] < 0 else entry[7]
        result[entry[0]] = replace(Entry(*entry[1:7]), first_offset=first_offset)
    return result
