"""What the scan of a segment shows besides index entries: offsets that are missing, and epochs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kafka_index.layout.records import NO_LEADER_EPOCH, NO_TIMESTAMP
from kafka_index.records.batch_table import BatchColumns

_MAX_HOLES = 100


class Hole(NamedTuple):
    """Offsets that no batch holds, the end exclusive, and where the next batch begins."""

    first_offset: int
    end_offset: int
    position_bytes: int


class EpochRun(NamedTuple):
    """Batches of one leader epoch that follow each other: their first and last offset."""

    epoch: int
    first_offset: int
    last_offset: int


@dataclass
class LogFacts:
    """What the batches of a log show.

    Attributes
    ----------
    end_offset : int
        The offset after the last batch; before any batch the segment's base offset.
    end_bytes : int
        Where the last batch ends.
    batches : int
        How many there are.
    max_timestamp_ms : int
        The largest timestamp, -1 for none.
    holes : list of Hole
        The first ones.
    hole_count : int
        How many there are.
    overlap : Hole or None
        The first batch that begins before the one before it ends: its offset, and the one expected.
    epochs : list of EpochRun
        In order.
    """

    end_offset: int
    end_bytes: int = 0
    batches: int = 0
    max_timestamp_ms: int = NO_TIMESTAMP
    holes: list[Hole] = field(default_factory=list)
    hole_count: int = 0
    overlap: Hole | None = None
    epochs: list[EpochRun] = field(default_factory=list)

    def observe(self, batches: BatchColumns) -> None:
        """Look at a chunk of batches."""
        last = batches.last_offset
        is_contiguous = int(batches.base_offset[0]) == self.end_offset and bool(
            (batches.base_offset[1:] - last[:-1] == 1).all()
        )
        if not is_contiguous:
            self._observe_breaks(batches)
        self._observe_epochs(batches)
        self.batches += batches.rows
        self.end_offset = int(last[-1]) + 1
        self.end_bytes = batches.end_bytes
        self.max_timestamp_ms = max(self.max_timestamp_ms, int(batches.max_timestamp_ms.max()))

    def _observe_breaks(self, batches: BatchColumns) -> None:
        """Record the batches that do not begin where the one before ends."""
        expected = np.concatenate(([self.end_offset], batches.last_offset[:-1] + 1))
        # Messages of magic 0 and 1 have no epoch, and a wrapper only its last offset.
        has_epoch = batches.leader_epoch != NO_LEADER_EPOCH
        rows = np.flatnonzero((batches.base_offset > expected) & has_epoch)
        self.hole_count += len(rows)
        for row in rows[: _MAX_HOLES - len(self.holes)].tolist():
            self.holes.append(_break(batches, row, int(expected[row])))
        early = np.flatnonzero((batches.base_offset < expected) & has_epoch)
        if len(early) and self.overlap is None:
            row = int(early[0])
            offset, expected_offset, position = _break(batches, row, int(expected[row]))
            self.overlap = Hole(expected_offset, offset, position)

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


def _break(batches: BatchColumns, row: int, expected: int) -> Hole:
    return Hole(expected, int(batches.base_offset[row]), int(batches.position_bytes[row]))
