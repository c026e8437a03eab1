"""The sound ranges of a damaged log: runs of whole batches with right checksums, in offset order.

After damage the next batch is looked for: first where the damaged one says that it ends, then byte
by byte. A batch counts as found when its header is plausible, its checksum right, and its offsets
are those that may come next. Batches of magic 0 and 1, whose checksum is a short one, are found
only where a length leads to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kafka_index.kernels.batch_header import batch_checksums
from kafka_index.kernels.scan import SCAN_END, SCAN_ROWS_FULL
from kafka_index.layout.records import (
    LOG_OVERHEAD,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MIN_LENGTH,
    NO_LEADER_EPOCH,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
)
from kafka_index.records.batch_table import BatchColumns
from kafka_index.scan.scanner import Scanner, entry_length, only_zeros
from kafka_index.storage import Bytes

_SEARCH_BYTES = 1 << 20


class BatchMark(NamedTuple):
    """What tells a batch from others: two logs that agree on it hold the same batch."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    checksum: int


@dataclass(frozen=True, slots=True)
class SoundRange:
    """A run of sound batches.

    Parameters
    ----------
    start_bytes, end_bytes : int
        Where it begins, and ends, exclusive.
    first, last : BatchMark
        Its first and its last batch.
    has_gaps : bool
        Whether offsets are missing between its batches.
    """

    start_bytes: int
    end_bytes: int
    first: BatchMark
    last: BatchMark
    has_gaps: bool = False


@dataclass(frozen=True, slots=True)
class HoleContent:
    """What the headers in a damaged range say.

    Parameters
    ----------
    records : int or None
        How many records; None where that cannot be known.
    last_offset : int or None
        The largest offset.
    first_timestamp_ms, last_timestamp_ms : int or None
        The smallest and the largest timestamp.
    """

    records: int | None = None
    last_offset: int | None = None
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None


def sound_ranges(log: Bytes, segment_base_offset: int, end_offset: int) -> list[SoundRange]:
    """Return the sound ranges of a log.

    Parameters
    ----------
    log : ndarray of uint8
        The log.
    segment_base_offset : int
        Of its segment.
    end_offset : int
        No batch may reach it: the base offset of the next segment.
    """
    ranges: list[SoundRange] = []
    position, next_offset = 0, segment_base_offset
    while position < len(log):
        run = _run(log, position, segment_base_offset, next_offset, end_offset)
        if run is not None:
            ranges.append(run)
            position, next_offset = run.end_bytes, run.last.last_offset + 1
        if position >= len(log):
            break
        position = _next_batch(log, position, next_offset, end_offset)
    return ranges


def mark_at(log: Bytes, position_bytes: int) -> BatchMark:
    """Return the mark of the batch at a position."""
    base_offset = int(_overhead(log, position_bytes)["base_offset"])
    if int(log[position_bytes + MAGIC_POSITION]) < MAGIC_RECORD_BATCH:
        # Offset and checksum of its wrapper, for a compressed one.
        at = position_bytes + LOG_OVERHEAD_BYTES
        checksum = int.from_bytes(log[at : at + 4].tobytes(), "big")
        return BatchMark(base_offset, base_offset, NO_LEADER_EPOCH, checksum)
    header = _header(log, position_bytes)
    return BatchMark(
        base_offset,
        base_offset + int(header["last_offset_delta"]),
        int(header["leader_epoch"]),
        int(header["crc"]),
    )


def hole_content(log: Bytes, start_bytes: int, end_bytes: int, next_offset: int) -> HoleContent:
    """Return what the headers between two positions say, as far as they are plausible."""
    records = 0
    largest = first_ms = last_ms = None
    position = start_bytes
    while position < end_bytes:
        header = _plausible(log, position, next_offset)
        # The last batch of a log may be torn: its header counts all the same.
        if header is None or (position + header.size_bytes > end_bytes < len(log)):
            return HoleContent(None, largest, first_ms, last_ms)
        records += header.records
        largest = header.last_offset
        next_offset = largest + 1
        if header.first_timestamp_ms >= 0:
            first_ms = min(header.first_timestamp_ms, first_ms or header.first_timestamp_ms)
            last_ms = max(header.last_timestamp_ms, last_ms or header.last_timestamp_ms)
        position += header.size_bytes
    return HoleContent(records, largest, first_ms, last_ms)


class _Header(NamedTuple):
    size_bytes: int
    last_offset: int
    records: int
    first_timestamp_ms: int
    last_timestamp_ms: int


def _plausible(log: Bytes, position: int, next_offset: int) -> _Header | None:
    """Return the header of a batch that may be at a position, whatever its checksum."""
    if len(log) - position < RECORD_BATCH_OVERHEAD_BYTES:
        return None
    header = _header(log, position)
    size = LOG_OVERHEAD_BYTES + int(header["length"])
    base, delta = int(header["base_offset"]), int(header["last_offset_delta"])
    count = int(header["record_count"])
    if header["magic"] != MAGIC_RECORD_BATCH or size < RECORD_BATCH_OVERHEAD_BYTES:
        return None
    if base < next_offset or delta < 0 or not 0 <= count <= delta + 1:
        return None
    return _Header(
        size, base + delta, count, int(header["base_timestamp_ms"]), int(header["max_timestamp_ms"])
    )


def _header(log: Bytes, position: int) -> np.void:
    found: np.void = np.frombuffer(log, RECORD_BATCH_HEADER, 1, position)[0]
    return found


def _overhead(log: Bytes, position: int) -> np.void:
    found: np.void = np.frombuffer(log, LOG_OVERHEAD, 1, position)[0]
    return found


def _run(
    log: Bytes, position: int, segment_base_offset: int, next_offset: int, end_offset: int
) -> SoundRange | None:
    """Return the run of sound batches that begins at a position; None where there is none."""
    scanner = Scanner(segment_base_offset, verify_crc=True, position_bytes=position)
    end = position
    last_at = None
    has_gaps = False
    code = SCAN_ROWS_FULL
    while code == SCAN_ROWS_FULL:
        code = scanner.scan(log, 0, len(log))
        for batches in scanner.drain():
            good = _in_order(batches, next_offset, end_offset)
            if good:
                before = batches.last_offset[: good - 1]
                has_gaps |= bool((batches.base_offset[1:good] > before + 1).any())
                has_gaps |= last_at is not None and int(batches.base_offset[0]) > next_offset
                last_at = int(batches.position_bytes[good - 1])
                end = last_at + int(batches.size_bytes[good - 1])
                next_offset = int(batches.last_offset[good - 1]) + 1
            if good < batches.rows:
                code = SCAN_END
    if last_at is None:
        return None
    return SoundRange(position, end, mark_at(log, position), mark_at(log, last_at), has_gaps)


def _in_order(batches: BatchColumns, next_offset: int, end_offset: int) -> int:
    """Return how many of the batches come one after the other, from an offset on."""
    before = np.concatenate(([next_offset - 1], batches.last_offset[:-1]))
    wrong = (
        (batches.base_offset <= before)
        | (batches.last_offset < batches.base_offset)
        | (batches.last_offset >= end_offset)
    )
    found = np.flatnonzero(wrong)
    return int(found[0]) if len(found) else batches.rows


def _next_batch(log: Bytes, after: int, next_offset: int, end_offset: int) -> int:
    """Return where the next batch begins after a damaged one; the end of the log for nowhere."""
    if len(log) - after >= LOG_OVERHEAD_BYTES:
        length = entry_length(log[after:])
        at = after + LOG_OVERHEAD_BYTES + length
        if length >= MIN_LENGTH and at < len(log) and _is_batch(log, at, next_offset, end_offset):
            return at
    for at in _candidates(log, after + 1):
        if _is_batch(log, at, next_offset, end_offset):
            return at
    return len(log)


def _candidates(log: Bytes, start: int) -> Iterator[int]:
    """Yield the positions that may begin a batch of magic 2."""
    stop = len(log) - RECORD_BATCH_OVERHEAD_BYTES + 1
    for first in range(start, stop, _SEARCH_BYTES):
        last = min(first + _SEARCH_BYTES, stop)
        window = log[first + MAGIC_POSITION : last + MAGIC_POSITION]
        if only_zeros(window):
            continue
        yield from (first + np.flatnonzero(window == MAGIC_RECORD_BATCH)).tolist()


def _is_batch(log: Bytes, position: int, next_offset: int, end_offset: int) -> bool:
    header = _plausible(log, position, next_offset)
    if header is None or header.last_offset >= end_offset:
        return False
    if position + header.size_bytes > len(log):
        return False
    stored, computed = batch_checksums(log, position, header.size_bytes)
    return bool(stored == computed)
