"""What a follower does to batches before it appends them as they are: checks.

Source: Kafka's ``UnifiedLog.analyzeAndValidateRecords`` and ``append``.
"""

from __future__ import annotations

import numpy as np

from kafka_index.errors import InputError
from kafka_index.growing.incoming_batches import (
    IncomingBatches,
    as_bytes,
    first_offset_of,
)
from kafka_index.growing.settings import LogSettings
from kafka_index.storage import Bytes


def check_as_follower(
    data: bytes | bytearray | memoryview | Bytes,
    log_end_offset: int,
    leader_epoch: int,
    settings: LogSettings,
) -> IncomingBatches | None:
    """Check batches that were fetched from a leader.

    Parameters
    ----------
    data : bytes
        Batches with offsets and leader epochs, one behind the other.
    log_end_offset : int
        Where the log ends.
    leader_epoch : int
        The epoch they were fetched in: from the first batch of a later one on they are left out
        (KAFKA-18723).
    settings : LogSettings
        Of the topic; ``max.message.bytes`` is the leader's business.

    Returns
    -------
    IncomingBatches or None
        None when all are of a later epoch.

    Raises
    ------
    CorruptLogError
        A batch cannot be read.
    InputError
        Offsets go backward, or there is more than fits a segment.
    """
    array = as_bytes(data)
    batches = IncomingBatches.scan(array, max(first_offset_of(array), 0))
    later = np.flatnonzero(batches.columns.leader_epoch > leader_epoch)
    if len(later):
        if not later[0]:
            return None
        batches = batches.rows(0, int(later[0]))
    _check_offsets(batches, log_end_offset)
    if len(batches.data) > settings.segment_bytes:
        raise InputError(
            "the batches are larger than segment.bytes",
            expected=f"{settings.segment_bytes} bytes or less",
            found=len(batches.data),
        )
    return batches


def _check_offsets(batches: IncomingBatches, log_end_offset: int) -> None:
    columns = batches.columns
    backward = np.flatnonzero(columns.last_offset[1:] <= columns.last_offset[:-1])
    if len(backward):
        row = int(backward[0]) + 1
        raise InputError(
            "cannot append: offsets go backward",
            position_bytes=int(columns.position_bytes[row]),
            expected=f"a last offset above {int(columns.last_offset[row - 1])}",
            found=int(columns.last_offset[row]),
        )
    first = int(columns.base_offset[0])
    if first < log_end_offset:
        raise InputError(
            "cannot append: the first offset is before the end of the log",
            position_bytes=0,
            expected=f"{log_end_offset} or more",
            found=first,
        )
