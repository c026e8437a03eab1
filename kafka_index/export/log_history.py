"""The test whether an export has read this log so far, or the log has another history by now.

The export record holds the last batch of each split, as its header was. A log that still has that
batch has the same history up to it. Retention and compaction keep a history; a log that was cut and
grew again, or a topic that was made anew, has another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from kafka_index.errors import CorruptLogError
from kafka_index.layout.records import (
    DELETE_HORIZON_MASK,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MESSAGE_V0_HEADER,
    NO_LEADER_EPOCH,
    RECORD_BATCH_HEADER,
)
from kafka_index.reading import PartitionLog

#: The record keeps the last batches of so many splits, and fewer of those before.
_MAX_KEPT = 64


@dataclass(frozen=True, slots=True)
class ExportedBatch:
    """The last batch of a split that was exported, as its header has it.

    The leader epoch is -1 for messages of magic 0 and 1; `end_offset` is the exclusive end of the
    split.
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    checksum: int
    records: int
    end_offset: int = 0

    @classmethod
    def of_header(cls, header: bytes) -> Self:
        """Return the batch that begins with these bytes."""
        if header[MAGIC_POSITION] < MAGIC_RECORD_BATCH:
            old = np.frombuffer(header, MESSAGE_V0_HEADER, 1)[0]
            offset = int(old["base_offset"])
            return cls(offset, offset, NO_LEADER_EPOCH, int(old["crc"]), 1)
        new = np.frombuffer(header, RECORD_BATCH_HEADER, 1)[0]
        base = int(new["base_offset"])
        return cls(
            base,
            base + int(new["last_offset_delta"]),
            int(new["leader_epoch"]),
            int(new["crc"]),
            int(new["record_count"]),
        )


@dataclass(frozen=True, slots=True)
class DataLoss:
    """The reason why an export cannot be continued.

    The log still has, or had, the records that were exported before `agreed_offset`; None for none.
    `is_gap`: all that was exported is right, and only later offsets are missing.
    """

    reason: str
    agreed_offset: int | None
    is_gap: bool = False


def thinned(batches: Sequence[ExportedBatch]) -> tuple[ExportedBatch, ...]:
    """Return the latest of these batches, and every second of the others where there are many."""
    if len(batches) <= _MAX_KEPT:
        return tuple(batches)
    half = len(batches) - _MAX_KEPT // 2
    return (*batches[:half:2], *batches[half:])


def find_loss(
    log: PartitionLog,
    batches: Sequence[ExportedBatch],
    next_offset: int,
    end_offset: int | None,
) -> DataLoss | None:
    """Return why an export cannot be continued with a log; None if it can.

    The batches are those of the export record, and `next_offset` is the first that was not
    exported; the end of the log is None if damage hides it.
    """
    agreed = missing = None
    for one in reversed(batches):
        has_it = _has(log, one)
        if has_it:
            agreed = one.end_offset
            break
        if has_it is False and missing is None:
            missing = one
    if end_offset is not None and end_offset < next_offset:
        reason = f"the log ends at offset {end_offset}, and was exported up to {next_offset}"
        return DataLoss(reason, agreed)
    if missing is not None:
        return DataLoss(
            "the log has another history: it does not have the batch of offsets "
            f"{missing.base_offset} to {missing.last_offset} that was exported (leader epoch "
            f"{missing.leader_epoch}, checksum 0x{missing.checksum:08x})",
            agreed,
        )
    if log.log_start_offset > next_offset:
        return DataLoss(
            f"offsets {next_offset} to {log.log_start_offset - 1} were deleted from the log before "
            "they were exported",
            next_offset,
            is_gap=True,
        )
    return None


def _has(log: PartitionLog, batch: ExportedBatch) -> bool | None:
    """Return whether a log has a batch; None where that cannot be known."""
    bases = [segment.base_offset for segment in log.segments]
    number = int(np.searchsorted(bases, batch.base_offset, "right")) - 1
    if batch.last_offset < log.log_start_offset or number < 0:
        return None
    segment = log.segments[number]
    # A cleaner never touches the active segment.
    may_be_cleaned = not segment.file.is_last
    try:
        place = segment.offset_to_position(batch.base_offset)
        header = None if place is None else segment.header_at(place.position)
    except CorruptLogError:
        # The damage is reported by what reads it.
        return None
    if header is None:
        return None if may_be_cleaned else False
    found = ExportedBatch.of_header(header)
    if found.base_offset > batch.last_offset:
        is_later = found.leader_epoch >= batch.leader_epoch
        return None if may_be_cleaned and is_later else False
    same = replace(found, checksum=batch.checksum, records=batch.records, end_offset=0)
    if same != replace(batch, end_offset=0):
        return False
    is_cleaned = may_be_cleaned and (found.records < batch.records or _has_horizon(header))
    return found.checksum == batch.checksum or is_cleaned


def _has_horizon(header: bytes) -> bool:
    """Return whether a cleaner has marked a batch, which keeps its records."""
    if header[MAGIC_POSITION] < MAGIC_RECORD_BATCH:
        return False
    attributes = int(np.frombuffer(header, RECORD_BATCH_HEADER, 1)[0]["attributes"])
    return bool(attributes & DELETE_HORIZON_MASK)
