"""The order of batches in a log: each begins after the one before it has ended.

Missing offsets are legal, since compaction leaves them; offsets that go back are not. A batch that
is out of order is damage, and so are those after it, up to one that begins after all that came
before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kafka_index.records.batch_table import OVERLAP, BatchColumns, ScanStop


class BatchOrder:
    """Follows the order of the batches of a log, chunk by chunk.

    No batch may begin below `next_offset`, the offset after the last batch in order; a compressed
    message of magic 0 or 1, whose first offset is inside, is compared by its last offset. No batch
    may reach `end_offset`, where the next segment begins.
    """

    def __init__(self, next_offset: int, end_offset: int | None = None) -> None:
        self.next_offset = next_offset
        self._end_offset = end_offset
        self._is_broken = False

    def follow(self, batches: BatchColumns) -> Iterator[BatchColumns | ScanStop]:
        """Yield the batches that are in order, and where a run of others begins.

        `next_offset` is that before a run of batches while it is handed out.
        """
        kept = in_order(batches, self.next_offset, self._end_offset)
        if kept is None:
            yield batches
            self._follow(batches)
            return
        edges = [0, *(np.flatnonzero(kept[1:] != kept[:-1]) + 1).tolist(), batches.rows]
        for start, end in pairwise(edges):
            if kept[start]:
                run = batches.slice(start, end)
                yield run
                self._follow(run)
            elif not self._is_broken:
                self._is_broken = True
                yield self._stop(batches, start)

    def first_stop(self, batches: BatchColumns) -> ScanStop | None:
        """Follow batches of which all are wanted; return the first run that is out of order."""
        stops = [found for found in self.follow(batches) if isinstance(found, ScanStop)]
        return stops[0] if stops else None

    def _follow(self, run: BatchColumns) -> None:
        self.next_offset = int(run.last_offset[-1]) + 1
        self._is_broken = False

    def _stop(self, batches: BatchColumns, row: int) -> ScanStop:
        base, last = int(batches.base_offset[row]), int(batches.last_offset[row])
        position = int(batches.position_bytes[row])
        if base < self.next_offset:
            return ScanStop(
                OVERLAP, position, f"offset {self.next_offset} or more", f"offset {base}"
            )
        if last < base:
            return ScanStop(OVERLAP, position, f"a last offset of {base} or more", f"offset {last}")
        return ScanStop(OVERLAP, position, f"offsets below {self._end_offset}", f"offset {last}")


def in_order(
    batches: BatchColumns, next_offset: int, end_offset: int | None
) -> NDArray[np.bool_] | None:
    """Return which batches are in order from an offset on, and below an end; None for all."""
    base, last = batches.base_offset, batches.last_offset
    if (
        base[0] >= next_offset
        and (base[1:] > last[:-1]).all()
        and (last >= base).all()
        and (end_offset is None or last[-1] < end_offset)
    ):
        return None
    kept = np.zeros(batches.rows, np.bool_)
    for row, (first, last_one) in enumerate(zip(base.tolist(), last.tolist(), strict=True)):
        if next_offset <= first <= last_one and (end_offset is None or last_one < end_offset):
            kept[row] = True
            next_offset = last_one + 1
    return kept
