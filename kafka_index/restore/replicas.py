"""Copies of one partition in several dumps: which of them is the base of the restore."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.restore.dump_files import Replica
from kafka_index.scan import LogFileSource
from kafka_index.storage import SegmentFile

_NOTHING = (-1, -1)


def base_replica(replicas: Sequence[Replica]) -> list[Replica]:
    """Return the copies of a partition, the one with the highest last epoch and end first.

    Raises
    ------
    ReadError
        A copy cannot be read now.
    """
    if len(replicas) == 1:
        return list(replicas)
    return sorted(replicas, key=_last_epoch_and_end, reverse=True)


def _last_epoch_and_end(replica: Replica) -> tuple[int, int]:
    """Return the leader epoch of the last sound batch, and the offset after it."""
    for segment in reversed(replica.segments.files()):
        try:
            found = _last_batch(segment)
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            continue
        if found is not None:
            return found
    return _NOTHING


def _last_batch(segment: SegmentFile) -> tuple[int, int] | None:
    found = None
    source = LogFileSource.of_segment(segment, verify_crc=True)
    for batches in source.chunks():
        if batches.rows:
            found = int(batches.leader_epoch[-1]), int(batches.last_offset[-1]) + 1
    return found
