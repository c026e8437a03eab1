"""Decode batches of a segment, for queries that need records.

This module is imported on first use, because the record decoder is slow to import.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from kafka_index.core.errors import CorruptLogError, TooLargeError
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import NO_LEADER_EPOCH
from kafka_index.core.kernels import batch_header
from kafka_index.core.kernels import find_records as finder
from kafka_index.core.kernels.records import EMPTY_SECTION
from kafka_index.core.log.read.answers import (
    FOUND_LEADER_EPOCH,
    FOUND_OFFSET,
    FOUND_TIMESTAMP,
    NULL,
)
from kafka_index.core.records.batch_table import TOO_LARGE
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_decoder import BatchDamage, RecordChunk, decode_entry
from kafka_index.core.records.record_sections import BatchRecords, first_offset, open_records

if TYPE_CHECKING:
    from kafka_index.core.log.read.log_segment import LocatedBatches
    from kafka_index.core.log.read.segment_log import SegmentLog


class BatchDecoder:
    """Decodes batches of one segment. All decoders of a process share a decompression limit."""

    def __init__(self, log: SegmentLog, max_decompressed_bytes: int) -> None:
        self._log = log
        self._budget = shared_budget(max_decompressed_bytes)

    def first_offset_at(self, position_bytes: int) -> int:
        """Return the first offset inside a compressed v0 or v1 message.

        Raises `CorruptLogError` if the message cannot be decompressed.
        """
        return first_offset(self._log.batch(position_bytes), self._budget)

    def unreadable_reason(self, position_bytes: int) -> str:
        """Return why the records of a batch cannot be read."""
        for result in decode_entry(self._log.batch(position_bytes), self._budget, len):
            if isinstance(result, BatchDamage):
                is_too_large = isinstance(result.error, TooLargeError)
                return f"{TOO_LARGE}: {result.error}" if is_too_large else str(result.error)
        return "the batch cannot be read"

    def find_records(
        self,
        targets: Longs,
        located: LocatedBatches,
        size_bytes: int,
        *,
        starting_offset: int | None,
    ) -> None:
        """Find the records of queries whose batches are located, and set their record columns.

        If a record is in a later batch, the position of this batch replaces the located one.
        """
        found_values = np.empty((finder.FOUND_ROWS, len(targets)), np.int64)
        state = finder.new_state()
        records: BatchRecords | None = None
        code = finder.FIND_NEEDS_RECORDS
        while code == finder.FIND_NEEDS_RECORDS:
            code = finder.find_records(
                self._log.address,
                size_bytes,
                starting_offset is not None,
                NULL if starting_offset is None else starting_offset,
                targets,
                located.batches,
                tuple(EMPTY_SECTION if records is None else records.section),
                state,
                found_values,
            )
            if records is not None:
                # This batch is closed before the next batch is decompressed, because a thread must
                # not hold memory while it waits for memory.
                records.close()
            if code == finder.FIND_NEEDS_RECORDS:
                records = None
                state[finder.STATE_FAULT] = finder.FAULT_RECORD
                with contextlib.suppress(CorruptLogError):
                    batch = self._log.batch(int(state[finder.STATE_OPEN]))
                    records = open_records(batch, self._budget)
                    if records.fault is None:
                        state[finder.STATE_FAULT] = finder.FAULT_NONE
        positions = found_values[finder.FOUND_BATCH]
        located.batches[:] = positions
        is_found = positions >= 0
        values = located.values
        for row, found_row in (
            (FOUND_OFFSET, finder.FOUND_OFFSET),
            (FOUND_TIMESTAMP, finder.FOUND_TIMESTAMP),
        ):
            values[row] = np.where(is_found, found_values[found_row], NULL)
        epochs = found_values[finder.FOUND_EPOCH]
        values[FOUND_LEADER_EPOCH] = np.where(is_found & (epochs > NO_LEADER_EPOCH), epochs, NULL)

    def find_timestamp(self, located: LocatedBatches, position: int, timestamp: int) -> None:
        """Set the record columns to a batch's first record with a timestamp."""
        log = self._log
        header = log.address + np.uint64(position)
        batch = log.batch(position)
        if not batch_header.checksum_matches(header, len(batch)):
            located.batches[:] = batch_header.damage_at(position)
            return
        is_damaged, offset = False, None
        for decoded in decode_entry(batch, self._budget, _offset_finder(timestamp)):
            if isinstance(decoded, BatchDamage):
                is_damaged = True
            elif offset is None:
                offset = decoded
        # v0 records have no timestamp.
        if offset is None or batch_header.magic_of(header) == 0:
            located.batches[:] = (
                batch_header.damage_at(position) if is_damaged else batch_header.AT_END
            )
            return
        located.values[FOUND_OFFSET] = offset
        located.values[FOUND_TIMESTAMP] = timestamp
        epoch = int(batch_header.leader_epoch_of(header))
        located.values[FOUND_LEADER_EPOCH] = NULL if epoch < 0 else epoch


def _offset_finder(timestamp: int) -> Callable[[RecordChunk], int | None]:
    """Return a function that returns the offset of the first record with a timestamp in a chunk."""

    def find(chunk: RecordChunk) -> int | None:
        rows = np.flatnonzero(chunk.timestamps_ms == timestamp)
        return int(chunk.offsets[rows[0]]) if len(rows) else None

    return find
