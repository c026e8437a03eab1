"""The sound ranges of a damaged log: runs of whole batches with right checksums, in offset order.

After damage the next batch is looked for (`kafka_index.scan.batch_search`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kafka_index.kernels.scan import SCAN_END, SCAN_ROWS_FULL
from kafka_index.layout.integers import INT64_MAX
from kafka_index.layout.records import (
    LOG_OVERHEAD,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    NO_LEADER_EPOCH,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
)
from kafka_index.scan.batch_order import in_order
from kafka_index.scan.batch_search import HeldBytes, OffsetBounds, next_batch, plausible_headers
from kafka_index.scan.scanner import Scanner
from kafka_index.storage import Bytes


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
    """

    start_bytes: int
    end_bytes: int
    first: BatchMark
    last: BatchMark


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
        position = next_batch(HeldBytes(log), position, OffsetBounds(next_offset, end_offset))
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
    if not plausible_headers(header, OffsetBounds(next_offset, INT64_MAX)):
        return None
    return _Header(
        LOG_OVERHEAD_BYTES + int(header["length"]),
        int(header["base_offset"]) + int(header["last_offset_delta"]),
        int(header["record_count"]),
        int(header["base_timestamp_ms"]),
        int(header["max_timestamp_ms"]),
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
    code = SCAN_ROWS_FULL
    while code == SCAN_ROWS_FULL:
        code = scanner.scan(log, 0, len(log))
        for batches in scanner.drain():
            kept = in_order(batches, next_offset, end_offset)
            good = batches.rows if kept is None else int(np.argmin(kept))
            if good:
                last_at = int(batches.position_bytes[good - 1])
                end = last_at + int(batches.size_bytes[good - 1])
                next_offset = int(batches.last_offset[good - 1]) + 1
            if good < batches.rows:
                code = SCAN_END
    if last_at is None:
        return None
    return SoundRange(position, end, mark_at(log, position), mark_at(log, last_at))
