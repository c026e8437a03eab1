"""From offsets to the parts of segments that hold them, and these in pieces of about equal size.

Both go through the indexes, whose entries are compared with the log as they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kafka_index.errors import CorruptLogError
from kafka_index.layout.integers import Longs
from kafka_index.reading import LogSegment, PartitionLog
from kafka_index.tables.range_scan import LogRange


def ranges_of(
    log: PartitionLog, first_offset: int, end_offset: int | None, *, strict: bool
) -> Iterator[LogRange]:
    """Yield the parts of segments that hold a range of offsets.

    With `strict`, damage that hides where they begin or end is an error; else more is read.
    """
    bases = np.array([segment.base_offset for segment in log.segments], np.int64)
    first = max(int(np.searchsorted(bases, first_offset, "right")) - 1, 0)
    for number, segment in enumerate(log.segments[first:], first):
        following = int(bases[number + 1]) if number + 1 < len(bases) else None
        if end_offset is not None and number > first and segment.base_offset >= end_offset:
            return
        start, end = 0, segment.file.log_size_bytes
        if first_offset > segment.base_offset:
            start = _start_of(segment, first_offset, strict=strict)
        if end_offset is not None and (following is None or end_offset < following):
            end = _end_of(segment, end_offset, strict=strict)
        if start < end:
            base = segment.base_offset
            yield LogRange(
                segment.file, start, end, max(first_offset, base), base, end_offset=following
            )


def _start_of(segment: LogSegment, offset: int, *, strict: bool) -> int:
    """Return where the batch begins that holds an offset, or comes next."""
    try:
        batch = segment.offset_to_position(offset)
    except CorruptLogError:
        if strict:
            raise
        # Damage hides it: the read passes over what is damaged, and filters the rest.
        return 0
    return segment.file.log_size_bytes if batch is None else batch.position


def _end_of(segment: LogSegment, offset: int, *, strict: bool) -> int:
    """Return where the batches end that hold records below an offset.

    Where the first batch above it is out of order, others below it may follow.
    """
    try:
        batch = segment.offset_to_position(offset)
    except CorruptLogError:
        if strict:
            raise
        return segment.file.log_size_bytes
    if batch is None or segment.goes_back_after(batch):
        return segment.file.log_size_bytes
    # It may also hold records before that offset.
    return batch.position + batch.size if batch.offset < offset else batch.position


def split_ranges(
    log: PartitionLog, ranges: Sequence[LogRange], max_bytes: int | None, *, strict: bool
) -> Iterator[tuple[LogRange, ...]]:
    """Yield ranges in groups of no more bytes than that, as far as batches allow."""
    group: list[LogRange] = []
    room = max_bytes or 0
    for part in ranges if max_bytes is None else _cut(log, ranges, max_bytes, strict=strict):
        if max_bytes is not None and group and part.size_bytes > room:
            yield tuple(group)
            group, room = [], max_bytes
        group.append(part)
        room -= part.size_bytes
    if group:
        yield tuple(group)


def _cut(
    log: PartitionLog, ranges: Sequence[LogRange], max_bytes: int, *, strict: bool
) -> Iterator[LogRange]:
    """Yield ranges of about equal sizes, none much larger than that."""
    segments = {segment.base_offset: segment for segment in log.segments}
    for part in ranges:
        pieces = -(-part.size_bytes // max_bytes)
        starts = [(part.start_bytes, part.start_offset)]
        if pieces > 1:
            wanted = part.start_bytes + part.size_bytes * np.arange(1, pieces) // pieces
            segment = segments[part.segment.base_offset]
            starts += [
                found
                for found in _batch_starts(segment, wanted, strict=strict)
                if part.start_bytes < found[0] < part.end_bytes
            ]
        ends = [*starts[1:], (part.end_bytes, part.end_offset)]
        for (start, offset), (end, end_offset) in zip(starts, ends, strict=True):
            least = part.least_offset if start == part.start_bytes else offset
            yield LogRange(part.segment, start, end, offset, least, end_offset)


def _batch_starts(segment: LogSegment, wanted: Longs, *, strict: bool) -> list[tuple[int, int]]:
    """Return position and offset of batches near some positions, ascending.

    They follow those that index entries lead to: the offset of an entry is a batch's last.
    """
    offsets, positions = segment.indexes.offset_index.read_entries()
    if not len(positions):
        return []
    entries = np.unique(np.searchsorted(positions, wanted).clip(0, len(positions) - 1))
    starts: list[tuple[int, int]] = []
    for offset in offsets[entries].tolist():
        # The entry is compared with the log, and the batch that it ends with is found.
        try:
            indexed, batch = map(segment.offset_to_position, (offset, offset + 1))
        except CorruptLogError:
            if strict:
                raise
            # Damage hides it: the split before is larger, and the read passes over the damage.
            continue
        if batch is None or indexed is None:
            break
        if indexed.position < batch.position and (not starts or starts[-1][0] < batch.position):
            starts.append((batch.position, offset + 1))
    return starts
