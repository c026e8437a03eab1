"""Where a single lookup leads."""

from __future__ import annotations

from typing import NamedTuple


class LogOffsetPosition(NamedTuple):
    """Where the batch is that holds an offset (Kafka: ``LogOffsetPosition``).

    Parameters
    ----------
    offset : int
        Base offset of the batch.
    position : int
        Byte position in the log.
    size : int
        In bytes.
    """

    offset: int
    position: int
    size: int


class TimestampAndOffset(NamedTuple):
    """A record found by its time (Kafka: ``FileRecords.TimestampAndOffset``).

    Parameters
    ----------
    timestamp, offset : int
        Of the record; the timestamp in ms.
    leader_epoch : int or None
        Of its batch.
    """

    timestamp: int
    offset: int
    leader_epoch: int | None
