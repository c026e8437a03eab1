"""The facts that the scan of a segment shows besides index entries: offsets, times and epochs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kafka_index.layout.records import NO_LEADER_EPOCH, NO_TIMESTAMP
from kafka_index.records.batch_table import BatchColumns
from kafka_index.scan.log_offsets import LogOffsets


class EpochRun(NamedTuple):
    """Batches of one leader epoch that follow each other: their first and last offset."""

    epoch: int
    first_offset: int
    last_offset: int


@dataclass
class LogFacts:
    """The facts about the batches of a log; the largest timestamp is -1 for none."""

    offsets: LogOffsets
    batches: int = 0
    max_timestamp_ms: int = NO_TIMESTAMP
    epochs: list[EpochRun] = field(default_factory=list)

    @property
    def end_offset(self) -> int:
        """The offset after the last batch; before any batch the segment's base offset."""
        return self.offsets.end_offset

    @property
    def end_bytes(self) -> int:
        """The position after the last batch."""
        return self.offsets.end_bytes

    def observe(self, batches: BatchColumns) -> None:
        """Look at a chunk of batches."""
        self.offsets.observe(batches)
        self._observe_epochs(batches)
        self.batches += batches.rows
        self.max_timestamp_ms = max(self.max_timestamp_ms, int(batches.max_timestamp_ms.max()))

    def _observe_epochs(self, batches: BatchColumns) -> None:
        epochs = batches.leader_epoch
        is_one = bool((epochs == epochs[0]).all())
        starts = [0] if is_one else [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], batches.rows], strict=True):
            run = EpochRun(
                int(epochs[start]),
                int(batches.base_offset[start]),
                int(batches.last_offset[end - 1]),
            )
            if run.epoch == NO_LEADER_EPOCH:
                continue
            if self.epochs and self.epochs[-1].epoch == run.epoch:
                run = EpochRun(run.epoch, self.epochs[-1].first_offset, run.last_offset)
                self.epochs[-1] = run
            else:
                self.epochs.append(run)
