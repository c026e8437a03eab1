"""Lookups once more, slowly: every batch and record of a partition is looked at, one by one.

Only where an answer names an index entry, or begins at one, are the entries worked out; they are
those of the rule, not of any file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kafka_index.reading.answers import Resolve
from tests.support.partitions import Batch, OffsetEntry, Partition, Row, Segment, TimeEntry

NO_RECORD = Row("no_record_at_or_after")
LATEST, EARLIEST, LARGEST = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -4, -5, -6


@dataclass
class Twin:
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
        below = [entry for entry in self._entries_of(segment)[1] if entry.timestamp <= time]
        entry = below[-1] if below else TimeEntry(-1, segment.base_offset)
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
            same = [one for one in batch.records if one[1] == largest.timestamp]
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
        below = [entry for entry in self._entries_of(segment)[0] if entry.offset <= offset]
        return below[-1] if below else OffsetEntry(segment.base_offset, 0)

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
