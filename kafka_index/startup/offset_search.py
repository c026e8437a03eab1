"""The search for an offset in a log that may be damaged, and what a starting broker fails on in it.

A broker reads from an index entry, which it does not verify, to the batch that holds the offset. It
knows that batch by the next one, unless it begins with the offset; and it reads where each begins,
which a compressed message of magic 0 or 1 has inside.
"""

from __future__ import annotations

import numpy as np

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.errors import CorruptLogError, StartRefusedError
from kafka_index.growing.growing_segment import translate_offset
from kafka_index.index import OffsetIndex
from kafka_index.kernels.headers import CONTROL_MESSAGE
from kafka_index.layout.records import (
    COMPRESSION_MASK,
    HEADER_SIZE_UP_TO_MAGIC,
    LOG_OVERHEAD_BYTES,
)
from kafka_index.records.batch_table import TORN_BATCH, TORN_HEADER, BatchColumns, ScanStop
from kafka_index.records.decompression import shared_budget
from kafka_index.records.record_sections import first_offset
from kafka_index.scan.batch_search import entry_length
from kafka_index.scan.file_records import LogBatches, LogOffsetPosition, batch_at
from kafka_index.storage import Bytes

_TORN = (TORN_HEADER, TORN_BATCH)


def find_batch(
    log: Bytes, path: str, offset_index: OffsetIndex, offset: int
) -> LogOffsetPosition | None:
    """Find the batch that holds an offset, or the next one; None when there is none.

    Raises `StartRefusedError` if a broker meets on the way what it cannot read; a batch that is cut
    off is the end of the log to it. Source: ``LogSegment.translateOffset``.
    """
    floor = offset_index.lookup(offset)
    start = max(floor.position, 0)
    if start >= len(log):
        return None
    try:
        found = translate_offset(log, path, offset_index, offset, verify_entry=False)
    except CorruptLogError:
        found = None
    _check_way(log, path, start, offset_index.base_offset, _end_of_way(log, found, offset))
    return found


def check_stop(stop: ScanStop | None, log_size: int, path: str, what: str) -> None:
    """Refuse to start where a broker does not read past a batch; a torn one ends the log to it."""
    if stop is None or stop.code in _TORN:
        return
    if log_size - stop.position_bytes <= HEADER_SIZE_UP_TO_MAGIC:
        return
    raise StartRefusedError(
        f"{what} cannot be read: {stop.name}",
        path=path,
        position_bytes=stop.position_bytes,
        expected=stop.expected,
        found=stop.found,
    )


def _end_of_way(log: Bytes, found: LogOffsetPosition | None, offset: int) -> int:
    """Return the position after the last batch that a search reads; all of the log without any."""
    if found is None:
        return len(log)
    end = found.position + found.size
    if found.offset >= offset:
        return end
    following = log[end : end + HEADER_SIZE_UP_TO_MAGIC + 1]
    length = entry_length(following) if len(following) >= LOG_OVERHEAD_BYTES else 0
    return min(end + max(LOG_OVERHEAD_BYTES + length, len(following)), len(log))


def _check_way(log: Bytes, path: str, start: int, base_offset: int, end: int) -> None:
    batches = LogBatches(log[:end], start, base_offset, verify_crc=False, any_offset=True)
    for chunk in batches:
        _check_messages(log, path, chunk)
    check_stop(batches.stop, end, path, "the log")


def _check_messages(log: Bytes, path: str, chunk: BatchColumns) -> None:
    """Refuse compressed messages whose first offset cannot be read (``baseOffset``)."""
    is_message = chunk.control_type == CONTROL_MESSAGE
    positions = chunk.position_bytes[is_message & (chunk.attributes & COMPRESSION_MASK != 0)]
    for position in np.unique(positions).tolist():
        try:
            first_offset(batch_at(log, position), shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES))
        except CorruptLogError as error:
            raise StartRefusedError(
                f"a compressed message cannot be read: {error.message}",
                path=path,
                position_bytes=position,
                expected=error.expected,
                found=error.found,
            ) from error
