"""Compare the leader epochs of batches with ``leader-epoch-checkpoint``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.records import NO_LEADER_EPOCH
from kafka_index.core.records.batch_table import BatchColumns


class EpochRange(NamedTuple):
    """Consecutive batches with one leader epoch: their first and last offset."""

    epoch: int
    first_offset: int
    last_offset: int


class EpochRanges:
    """The leader epochs of the batches of a log, in order."""

    def __init__(self) -> None:
        self.ranges: list[EpochRange] = []

    def observe(self, batches: BatchColumns) -> None:
        epochs = batches.leader_epoch
        is_one = bool((epochs == epochs[0]).all())
        starts = [0] if is_one else [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], batches.rows], strict=True):
            epoch = int(epochs[start])
            if epoch == NO_LEADER_EPOCH:
                continue
            first_offset = int(batches.base_offset[start])
            if self.ranges and self.ranges[-1].epoch == epoch:
                first_offset = self.ranges.pop().first_offset
            self.ranges.append(EpochRange(epoch, first_offset, int(batches.last_offset[end - 1])))


class WrongEpoch(NamedTuple):
    """An offset whose epoch differs from the checkpoint; `found` is None for no epoch."""

    offset: int
    expected: int
    found: int | None


def first_wrong_epoch(
    cache: LeaderEpochCache, ranges: Iterable[EpochRange], log_start_offset: int
) -> WrongEpoch | None:
    """Return the first offset whose epoch differs from the checkpoint, None if all match."""
    for range_ in ranges:
        if range_.last_offset < log_start_offset:
            continue
        for offset in (max(range_.first_offset, log_start_offset), range_.last_offset):
            found = cache.epoch_for_offset(offset)
            if found != range_.epoch:
                return WrongEpoch(offset, range_.epoch, found)
    return None
