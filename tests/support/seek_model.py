"""The walks over a log once more, slowly: one target at a time, as Kafka's ``FileRecords`` does.

What Kafka throws over is `Damage` here. As recovery and the readers of index files see to it that
a last segment ends where its batches do, bytes left over are damage too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.support import kernel_models
from tests.support.kernel_models import BATCH_HEADER, int64

Decoded = tuple[list[tuple[int, int]], bool]


def read_all(
    data: bytes,
    count: int,
    base_offset: int = 0,
    base_timestamp: int = 0,
    append_timestamp: int | None = None,
) -> Decoded:
    """Offset and timestamp of the records that are handed out, and whether those are all."""
    reader = kernel_models.RecordReader(data)
    records: list[tuple[int, int]] = []
    for number in range(1, count + 1):
        try:
            result = reader.record(reader.varint())
        except (kernel_models.InvalidRecord, kernel_models.LongVarint):
            return records, False
        if number == count and reader.remaining:
            return records, False
        timestamp = int64(base_timestamp + result.timestamp_delta)
        if append_timestamp is not None:
            timestamp = append_timestamp
        records.append((int64(base_offset + result.offset_delta), timestamp))
    return records, True


AT_END = -1
_APPEND_TIME = 0x08


class OffsetEntry(NamedTuple):
    """A last offset, and the position of its batch."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """A largest timestamp, and the last offset of its batch."""

    timestamp: int
    offset: int


class Damage(Exception):  # noqa: N818
    """No valid batch at this position, or an unreadable one."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class DamageInside(Damage):
    """A message is there, but what it holds cannot be unpacked."""


@dataclass(frozen=True)
class Header:
    """The header of an entry."""

    position: int
    size: int
    magic: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    codec: int
    leader_epoch: int = -1

    @property
    def is_packed_legacy(self) -> bool:
        """Whether its first offset is inside."""
        return self.magic < 2 and self.codec != 0


def header_at(log: bytes, position: int) -> Header:
    """The header of the entry at a position."""
    left = len(log) - position
    if left <= 17:
        raise Damage(position)
    base, length = struct.unpack_from(">qi", log, position)
    (magic,) = struct.unpack_from(">b", log, position + 16)
    size = 12 + length
    if length < 14 or size > left or (magic >= 2 and size < BATCH_HEADER.size):
        raise Damage(position)
    if magic >= 2:
        _, _, epoch, _, _, bits, delta, _, latest, *_ = BATCH_HEADER.unpack_from(log, position)
        last = int64(base + delta)
        return Header(position, size, magic, base, last, latest, bits & 7, epoch)
    (bits,) = struct.unpack_from(">b", log, position + 17)
    latest = struct.unpack_from(">q", log, position + 18)[0] if magic else -1
    return Header(position, size, magic, base, base, latest, bits & 7)


def headers_from(log: bytes, position: int) -> Iterator[Header]:
    """All entries from a position on."""
    while position < len(log):
        header = header_at(log, position)
        yield header
        position += header.size


def search_offset(
    log: bytes, start: int, target: int, first_offsets: Mapping[int, int | None]
) -> int:
    """Position of the batch with an offset or the first after it, or `AT_END`.

    `first_offsets` are those of packed messages by position, None for a message that cannot be
    unpacked.
    """
    previous = None
    try:
        for header in headers_from(log, start):
            base = _base_offset(header, target, first_offsets)
            if base == target:
                return header.position
            if base > target:
                overlaps = previous is not None and previous.last_offset >= target
                return previous.position if previous is not None and overlaps else header.position
            previous = header
    except Damage:
        # The batch before is known, and holds the offset.
        if previous is None or previous.last_offset < target:
            raise
    if previous is not None and previous.last_offset >= target:
        return previous.position
    return AT_END


def _base_offset(header: Header, target: int, first_offsets: Mapping[int, int | None]) -> int:
    # Unpacked only where it matters.
    if not header.is_packed_legacy or header.last_offset < target:
        return header.base_offset
    first = first_offsets[header.position]
    if first is None:
        raise DamageInside(header.position)
    return first


def search_time(log: bytes, start: int, timestamp: int, starting_offset: int = 0) -> int:
    """Position of the first batch from a position on that is as late, or `AT_END`.

    A batch that ends below the starting offset does not count.
    """
    late = (
        head
        for head in headers_from(log, start)
        if head.max_timestamp >= timestamp and head.last_offset >= starting_offset
    )
    result = next(late, None)
    return AT_END if result is None else result.position


def offset_entry_holds(log: bytes, entry: OffsetEntry) -> bool:
    """Whether the first batch from the position on that reaches the offset ends with it."""
    try:
        for header in headers_from(log, entry.position):
            if header.last_offset >= entry.offset:
                return header.last_offset == entry.offset
    except Damage:
        return False
    return False


def time_entry_holds(log: bytes, start: int, entry: TimeEntry) -> bool:
    """Whether the first batch as late, from `start` on, has that timestamp and that offset."""
    try:
        for header in headers_from(log, start):
            if header.max_timestamp >= entry.timestamp:
                holds = header.magic < 2 or header.base_offset <= entry.offset
                same = header.max_timestamp == entry.timestamp
                return holds and same and entry.offset <= header.last_offset
    except Damage:
        return False
    return False


def index_of(headers: Sequence[Header], interval: int) -> tuple[list[OffsetEntry], list[TimeEntry]]:
    """The entries of both indexes of batches, as `index_entries` has them."""
    return index_entries(
        [(header.position, header.last_offset, header.max_timestamp) for header in headers],
        interval,
    )


def index_entries(
    batches: Sequence[tuple[int, int, int]], interval: int
) -> tuple[list[OffsetEntry], list[TimeEntry]]:
    """The entries of both indexes, as an append or a recovery makes them, closed.

    `batches`: position, last offset and largest timestamp of each.
    """
    chosen, (_, latest, latest_offset) = kernel_models.choose_entries(batches, interval)
    offsets: list[OffsetEntry] = []
    times: list[TimeEntry] = []
    for row, timestamp, offset in chosen:
        position, last_offset, _ = batches[row]
        offsets.append(OffsetEntry(last_offset, position))
        _maybe_append(times, TimeEntry(timestamp, offset))
    if latest_offset >= 0:
        _maybe_append(times, TimeEntry(latest, latest_offset))
    return offsets, times


def _maybe_append(times: list[TimeEntry], entry: TimeEntry) -> None:
    if entry.timestamp > (times[-1].timestamp if times else -1):
        times.append(entry)


def floor_offset(entries: Sequence[OffsetEntry], offset: int, base_offset: int) -> OffsetEntry:
    """The last entry at or below an offset; the start of the segment for none."""
    below = [entry for entry in entries if entry.offset <= offset]
    return below[-1] if below else OffsetEntry(base_offset, 0)


def floor_time(entries: Sequence[TimeEntry], timestamp: int, base_offset: int) -> TimeEntry:
    """The last entry at or below a timestamp; -1 at the base offset for none."""
    below = [entry for entry in entries if entry.timestamp <= timestamp]
    return below[-1] if below else TimeEntry(-1, base_offset)


class Record(NamedTuple):
    """A record and the batch it is in."""

    position: int
    offset: int
    timestamp: int
    leader_epoch: int


#: Offset and timestamp of each record, and whether those are all.
Given = tuple[list[tuple[int, int]], bool]


def search_record(
    log: bytes,
    start: int,
    target: int,
    given: Mapping[int, Given],
    *,
    starting_offset: int | None = None,
) -> Record | None:
    """The first record from a batch on with that offset or a later one; None for none.

    With a starting offset the target is a timestamp, and lower offsets do not count. `given` are
    the records of compressed batches by position.
    """
    for header in headers_from(log, start):
        by_time = starting_offset is not None
        if (header.max_timestamp if by_time else header.last_offset) < target:
            continue
        records, whole = _records_of(log, header, given)
        for offset, timestamp in records:
            if starting_offset is None:
                fits = offset >= target
            else:
                fits = timestamp >= target and offset >= starting_offset
            if fits:
                return Record(header.position, offset, timestamp, header.leader_epoch)
        if not whole:
            raise Damage(header.position)
    return None


def _records_of(log: bytes, header: Header, given: Mapping[int, Given]) -> Given:
    entry = log[header.position : header.position + header.size]
    stored, computed = kernel_models.checksums(entry)
    if stored != computed:
        return [], False
    if header.codec:
        return given[header.position]
    if header.magic < 2:
        return [(header.base_offset, header.max_timestamp)], True
    fields = BATCH_HEADER.unpack_from(entry)
    count = fields[-1]
    if count < 0:
        return [], False
    append_time = header.max_timestamp if fields[5] & _APPEND_TIME else None
    return read_all(entry[BATCH_HEADER.size :], count, header.base_offset, fields[7], append_time)
