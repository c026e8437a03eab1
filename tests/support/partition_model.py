"""Lookups once more, slowly: every batch and record of a partition is looked at, one by one.

Only where an answer names an index entry, or begins at one, are the entries worked out; they are
those of the rule, not of any file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_index.core.log.choices import Resolve
from tests.support import kernel_models, seek_model
from tests.support.partitions import Batch, Partition, Row, Segment
from tests.support.seek_model import OffsetEntry, TimeEntry

NO_RECORD = Row("no_record_at_or_after")
LATEST, EARLIEST, LARGEST = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -4, -5, -6


@dataclass
class PartitionModel:
    """The right answers about a partition."""

    partition: Partition
    _entries: dict[int, tuple[list[OffsetEntry], list[TimeEntry]]] = field(default_factory=dict)

    def offset(self, offset: int, resolve: Resolve) -> Row:
        """The answer to an offset."""
        partition = self.partition
        out_of_range = self._out_of_range(offset, resolve)
        if out_of_range is not None:
            return Row(out_of_range)
        below = [one for one in partition.segments if one.base_offset <= offset]
        for segment in partition.segments[max(len(below) - 1, 0) :]:
            floor = self._floor_offset(segment, offset)
            entered = Row("found", segment.base_offset, *floor)
            if resolve is Resolve.INDEX:
                return entered
            for position, batch in _batches(segment):
                if batch.last_offset < offset:
                    continue
                if resolve is Resolve.BATCH:
                    return self._seen(_with_batch(entered, position, batch), batch.base_offset)
                for record in batch.records:
                    if record[0] >= offset:
                        row = _with_record(_with_batch(entered, position, batch), batch, record)
                        return self._seen(row, record[0])
        return NO_RECORD

    def _out_of_range(self, offset: int, resolve: Resolve) -> str | None:
        if offset < 0:
            return "invalid_query"
        if offset < self.partition.log_start_offset:
            return "before_log_start"
        if resolve is Resolve.INDEX or offset < self._bound:
            return None
        return "after_log_end" if offset > self.partition.log_end_offset else "log_end"

    def time(self, time: int, resolve: Resolve) -> Row:
        """The answer to a timestamp."""
        if time < 0:
            return self._special(time, resolve)
        for segment in self.partition.segments:
            if self._largest(segment).timestamp >= time:
                return self._time_in(segment, time, resolve)
        return NO_RECORD

    def _time_in(self, segment: Segment, time: int, resolve: Resolve) -> Row:
        start = self.partition.log_start_offset
        entry = seek_model.floor_time(self._entries_of(segment)[1], time, segment.base_offset)
        floor = self._floor_offset(segment, max(entry.offset, start))
        entered = Row("found", segment.base_offset, entry.offset, floor.position, entry.timestamp)
        if resolve is Resolve.INDEX:
            return entered
        for position, batch in _batches(segment):
            if position < floor.position or batch.max_timestamp < time or batch.last_offset < start:
                continue
            row = _with_batch(entered, position, batch)
            if resolve is Resolve.BATCH:
                return self._seen(row, batch.base_offset)
            for record in batch.records:
                if record[0] >= start and record[1] >= time:
                    return self._seen(_with_record(row, batch, record), record[0])
        return NO_RECORD

    def _special(self, time: int, resolve: Resolve) -> Row:
        start = self.partition.log_start_offset
        if time < PENDING_UPLOAD or (resolve is Resolve.INDEX and time != EARLIEST):
            return Row("invalid_query")
        if time in (LATEST_TIERED, PENDING_UPLOAD):
            # Nothing of it is in tiered storage.
            return NO_RECORD
        if time == LARGEST:
            return self._at_largest(resolve)
        edge = self._bound if time == LATEST else start
        if resolve is Resolve.RECORD:
            return Row("found", found_offset=edge, found_timestamp_ms=-1)
        return self.offset(edge, resolve)

    def _at_largest(self, resolve: Resolve) -> Row:
        latest = max(self.partition.segments, key=lambda one: self._largest(one).timestamp)
        largest = self._largest(latest)
        floor = self._floor_offset(latest, largest.offset)
        for position, batch in _batches(latest):
            if position < floor.position or batch.max_timestamp != largest.timestamp:
                continue
            row = _with_batch(Row("found", latest.base_offset), position, batch)
            if resolve is Resolve.BATCH:
                return self._seen(row, batch.base_offset)
            same = [record for record in batch.records if record[1] == largest.timestamp]
            if not same or batch.data[16] == 0:
                return NO_RECORD
            return self._seen(_with_record(row, batch, same[0]), same[0][0])
        return NO_RECORD

    @property
    def _bound(self) -> int:
        end, watermark = self.partition.log_end_offset, self.partition.high_watermark
        return end if watermark is None else min(watermark, end)

    def _seen(self, row: Row, offset: int) -> Row:
        return NO_RECORD if offset >= self._bound else row

    def _entries_of(self, segment: Segment) -> tuple[list[OffsetEntry], list[TimeEntry]]:
        key = segment.base_offset
        if key not in self._entries:
            self._entries[key] = segment.entries(self.partition.interval)
        return self._entries[key]

    def _floor_offset(self, segment: Segment, offset: int) -> OffsetEntry:
        return seek_model.floor_offset(self._entries_of(segment)[0], offset, segment.base_offset)

    def _largest(self, segment: Segment) -> TimeEntry:
        times = self._entries_of(segment)[1]
        return times[-1] if times else TimeEntry(-1, segment.base_offset)


def _batches(segment: Segment) -> Iterator[tuple[int, Batch]]:
    return zip(segment.positions, segment.batches, strict=True)


def _with_batch(row: Row, position: int, batch: Batch) -> Row:
    return row._replace(
        batch_base_offset=batch.base_offset,
        batch_last_offset=batch.last_offset,
        batch_position_bytes=position,
        batch_size_bytes=len(batch.data),
    )


def _with_record(row: Row, batch: Batch, record: tuple[int, int]) -> Row:
    return row._replace(
        found_offset=record[0], found_timestamp_ms=record[1], found_leader_epoch=batch.leader_epoch
    )


_HEADER_BYTES = 61
_MAX_BYTES = 2**31 - 1
_MIN_LENGTH = 14


class Offsets(NamedTuple):
    """The offsets that a batch may have, the end exclusive."""

    first: int
    end: int


class BatchSequence:
    """The batches that come one after the other, given one by one."""

    def __init__(self, first_offset: int, end_offset: int | None) -> None:
        self.next_offset = first_offset
        self._end_offset = end_offset
        self._is_broken = False

    def is_kept(self, base_offset: int, last_offset: int) -> bool:
        """Whether a batch begins after all before it, and ends before the next segment."""
        is_before = self._end_offset is None or last_offset < self._end_offset
        is_kept = self.next_offset <= base_offset <= last_offset and is_before
        if is_kept:
            self.next_offset = last_offset + 1
            self._is_broken = False
        return is_kept

    def begins_break(self) -> bool:
        """Whether the batch that was not kept is the first of a run of such."""
        is_first, self._is_broken = not self._is_broken, True
        return is_first


def is_tail(log: bytes, position: int, offsets: Offsets) -> bool:
    """Whether a log ends in zeros, or in a batch that was not written to its end."""
    rest = log[position:]
    length = _int(rest, 8, 4)
    if (len(rest) <= 17 or (length is not None and length < _MIN_LENGTH)) and not any(rest):
        return True
    if len(rest) > 17 and not (length is not None and len(rest) < 12 + length):
        return False
    if not _may_begin(rest, position, offsets):
        return False
    if any(_is_valid(rest[:size]) for size in _other_sizes(rest)):
        return False
    return not any(
        _is_plausible(log[at : at + _HEADER_BYTES], offsets)
        and at + 12 + (_int(log, at + 8, 4) or 0) <= len(log)
        and _is_valid(log[at : at + 12 + (_int(log, at + 8, 4) or 0)])
        for at in range(position + 1, len(log))
    )


def _int(data: bytes, at: int, size: int) -> int | None:
    field = data[at : at + size]
    return int.from_bytes(field, "big", signed=True) if len(field) == size else None


def _may_begin(rest: bytes, position: int, offsets: Offsets) -> bool:
    """Whether these may be the first bytes of a batch, as far as its header is there."""
    # All that is missing may be anything: the smallest and the largest offset that it leaves.
    low = int.from_bytes(rest[:8].ljust(8, b"\0"), "big")
    high = int.from_bytes(rest[:8].ljust(8, b"\xff"), "big")
    if high < max(offsets.first, 0) or low >= max(offsets.end, 1):
        return False
    length = _int(rest, 8, 4)
    if length is None:
        return True
    if length < _MIN_LENGTH or position + 12 + length > _MAX_BYTES:
        return False
    if len(rest) < 17:
        return True
    if rest[16] < 2:
        return len(rest) < 18 or rest[17] < 16
    attributes, delta, count = (
        _int(rest, 21, 2) or 0,
        _int(rest, 23, 4) or 0,
        _int(rest, 57, 4) or 0,
    )
    return (
        rest[16] == 2
        and length >= _HEADER_BYTES - 12
        and 0 <= attributes < 128
        and attributes & 7 < 5
        and delta >= 0
        and low + delta < offsets.end
        and 0 <= count <= delta + 1
    )


def _other_sizes(rest: bytes) -> set[int]:
    """The sizes that a batch has under a length of which one bit is another."""
    if len(rest) < 26:
        return set()
    length = int.from_bytes(rest[8:12], "big")
    sizes = {len(rest), *(12 + (length ^ 1 << bit) for bit in range(32))}
    least = 26 if rest[16] < 2 else _HEADER_BYTES
    return {size for size in sizes if least <= size <= len(rest)}


def _is_plausible(start: bytes, offsets: Offsets) -> bool:
    base, length = _int(start, 0, 8), _int(start, 8, 4)
    if base is None or length is None or len(start) < 26 or not base >= offsets.first:
        return False
    if start[16] < 2:
        return length >= _MIN_LENGTH and base < offsets.end and start[17] < 16
    delta, count = _int(start, 23, 4), _int(start, 57, 4)
    return (
        start[16] == 2
        and length >= _HEADER_BYTES - 12
        and delta is not None
        and count is not None
        and delta >= 0
        and base + delta < offsets.end
        and 0 <= count <= delta + 1
    )


def _is_message(entry: bytes) -> bool:
    """Whether the magic of a batch, a signed byte, is below 2."""
    return entry[16] < 2 or entry[16] > 127


def _is_valid(entry: bytes) -> bool:
    """Whether all of a batch is there, and its checksum right."""
    length = _int(entry, 8, 4)
    if length is None or len(entry) < 26:
        return False
    if len(entry) < _HEADER_BYTES and not _is_message(entry):
        return False
    stored, computed = kernel_models.checksums(entry)
    return stored == computed


class ExpectedRecords(NamedTuple):
    """The records that readers deliver of a log of magic 2.

    `offsets`: of the records, each taken to be one of consecutive ones of its batch. `damage`:
    positions of damage. `end_bytes`: where the batches end. `first_damaged_offset`: the first
    offset after the first damage; None without.
    """

    offsets: list[int]
    damage: list[int]
    end_bytes: int
    first_damaged_offset: int | None


def expected_read(log: bytes, base_offset: int) -> ExpectedRecords:
    """The records that readers deliver of a log of one segment, and the damage they report."""
    order = BatchSequence(base_offset, None)
    offsets: list[int] = []
    damage: list[int] = []
    following, position, first_damaged = base_offset, 0, None
    while len(log) - position > 17:
        length = int.from_bytes(log[position + 8 : position + 12], "big", signed=True)
        entry = log[position : position + 12 + max(length, 0)]
        if length < _MIN_LENGTH or len(entry) < 12 + length:
            break
        if not _is_message(entry) and len(entry) < _HEADER_BYTES:
            damage.append(position)
            return ExpectedRecords(offsets, damage, len(log), first_damaged)
        if _is_valid(entry):
            base, last = _offsets_of(entry)
            if not 0 <= last - base_offset < 2**31:
                damage.append(position)
                return ExpectedRecords(offsets, damage, len(log), first_damaged)
            following = last + 1
            if order.is_kept(base, last):
                own = range(base, last + 1)
                first_damaged = base if damage and first_damaged is None else first_damaged
                offsets += own
            elif order.begins_break():
                damage.append(position)
        else:
            damage.append(position)
        position += len(entry)
    is_whole = position == len(log)
    if not is_whole and not is_tail(log, position, Offsets(following, base_offset + 2**31)):
        damage.append(position)
    return ExpectedRecords(offsets, damage, position, first_damaged)


def _offsets_of(entry: bytes) -> tuple[int, int]:
    base = int.from_bytes(entry[:8], "big", signed=True)
    if _is_message(entry):
        return base, base
    return base, base + int.from_bytes(entry[23:27], "big", signed=True)
