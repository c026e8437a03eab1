"""From batches to records: verified, decompressed where they are compressed, and searched.

Sources: Kafka's ``FileRecords.searchForTimestamp`` and ``LogSegment.findOffsetByTimestamp``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from kafka_index.errors import CorruptLogError
from kafka_index.kernels import batch_header
from kafka_index.kernels import find_records as finder
from kafka_index.kernels.records import EMPTY_SECTION
from kafka_index.layout.integers import Longs
from kafka_index.layout.records import NO_LEADER_EPOCH
from kafka_index.reading.answers import FOUND_LEADER_EPOCH, FOUND_OFFSET, FOUND_TIMESTAMP, NULL
from kafka_index.reading.located import Located
from kafka_index.reading.segment_log import SegmentLog
from kafka_index.records.batch_walk import BatchDamage
from kafka_index.records.record_chunk import RecordChunk
from kafka_index.records.record_decoder import decode_entry
from kafka_index.records.record_sections import BatchRecords


def find_records(
    log: SegmentLog,
    size_bytes: int,
    targets: Longs,
    located: Located,
    *,
    starting_offset: int | None,
) -> None:
    """Continue from batches to records, by timestamp when there is a starting offset."""
    found = np.empty((finder.FOUND_ROWS, len(targets)), np.int64)
    state = finder.new_state()
    records: BatchRecords | None = None
    code = finder.FIND_NEEDS_RECORDS
    while code == finder.FIND_NEEDS_RECORDS:
        code = finder.find_records(
            log.address,
            size_bytes,
            starting_offset is not None,
            NULL if starting_offset is None else starting_offset,
            targets,
            located.batches,
            tuple(EMPTY_SECTION if records is None else records.section),
            state,
            found,
        )
        if records is not None:
            # Before others are decompressed: a thread waits for room without holding any.
            records.close()
        if code == finder.FIND_NEEDS_RECORDS:
            records = None
            state[finder.STATE_FAULT] = finder.FAULT_RECORD
            with contextlib.suppress(CorruptLogError):
                records = log.records(int(state[finder.STATE_OPEN]))
                if records.fault is None:
                    state[finder.STATE_FAULT] = finder.FAULT_NONE
    at = found[finder.FOUND_BATCH]
    located.batches[:] = at
    hit = at >= 0
    values = located.values
    for row, found_row in (
        (FOUND_OFFSET, finder.FOUND_OFFSET),
        (FOUND_TIMESTAMP, finder.FOUND_TIMESTAMP),
    ):
        values[row] = np.where(hit, found[found_row], NULL)
    epochs = found[finder.FOUND_EPOCH]
    values[FOUND_LEADER_EPOCH] = np.where(hit & (epochs > NO_LEADER_EPOCH), epochs, NULL)


def put_largest(located: Located, log: SegmentLog, position: int, timestamp: int) -> None:
    """Fill in the first record of a batch that has a timestamp, its largest."""
    header = log.address + np.uint64(position)
    batch = log.batch(position)
    if not batch_header.checksum_matches(header, len(batch)):
        located.batches[:] = batch_header.damage_at(position)
        return
    is_damaged, offset = False, None
    for found in decode_entry(batch, log.budget, _first_with(timestamp)):
        if isinstance(found, BatchDamage):
            is_damaged = True
        elif offset is None:
            offset = found
    # Records of magic 0 have no timestamp to be the largest.
    if offset is None or batch_header.magic_of(header) == 0:
        located.batches[:] = batch_header.damage_at(position) if is_damaged else batch_header.AT_END
        return
    located.values[FOUND_OFFSET] = offset
    located.values[FOUND_TIMESTAMP] = timestamp
    epoch = int(batch_header.leader_epoch_of(header))
    located.values[FOUND_LEADER_EPOCH] = NULL if epoch < 0 else epoch


def _first_with(timestamp: int) -> Callable[[RecordChunk], int | None]:
    """Return what finds the offset of the first record of a chunk with a timestamp."""

    def find(chunk: RecordChunk) -> int | None:
        rows = np.flatnonzero(chunk.timestamps_ms == timestamp)
        return int(chunk.offsets[rows[0]]) if len(rows) else None

    return find
