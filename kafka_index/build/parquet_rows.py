"""The rows of segments, split from a stream where the segment changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from kafka_index.build.parquet_columns import BATCH, KEY_COLUMNS, POSITION
from kafka_index.build.parquet_input import ROW_COUNT
from kafka_index.build.parquet_order import SegmentKey, key_codes, run_starts
from kafka_index.errors import InputError
from kafka_index.layout.integers import INT64_MAX


@dataclass
class SegmentRows:
    """The rows of one segment in position order, readable once.

    `row_count` rows were counted before the work began.
    """

    topic: str
    partition: int
    base_offset: int
    row_count: int
    chunks: Iterator[pa.RecordBatch]
    rows_met: int = field(default=0, init=False)
    end_bytes: int = field(default=0, init=False)
    _latest: pa.RecordBatch | None = field(default=None, init=False, repr=False)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; raises `InputError` if fewer or more come than were counted."""
        for chunk in self.chunks:
            self.rows_met += chunk.num_rows
            self._latest = chunk
            yield chunk
        if self.rows_met != self.row_count:
            raise InputError(
                "the input ended early, or changed since it was counted",
                position_bytes=self.end_bytes,
                expected=f"{self.row_count} rows",
                found=self.rows_met,
                hint="build again",
            )

    def skip_rest(self) -> None:
        """Skip the rows nobody read, and record where the last batch ends."""
        for chunk in self.chunks:
            self.rows_met += chunk.num_rows
            self._latest = chunk
        if self._latest is not None:
            self.end_bytes = max(self.end_bytes, _end_of_last(self._latest))
            self._latest = None


def split_segments(
    batches: Iterator[pa.RecordBatch], counts: Mapping[SegmentKey, int] | None = None
) -> Iterator[SegmentRows]:
    """Cut a stream of rows, those of a segment together, into its segments.

    The batches have the canonical columns. `counts` has the number of rows of each wanted segment;
    by default it is the column `ROW_COUNT`, and all are wanted. Each result is read before the next
    is asked for; its remaining rows are skipped then.
    """
    pending: Iterator[pa.RecordBatch] = _runs(batches)
    head = next(pending, None)
    while head is not None:
        key = _key(head)
        follower: list[pa.RecordBatch] = []

        def chunks(
            first: pa.RecordBatch = head,
            key: SegmentKey = key,
            follower: list[pa.RecordBatch] = follower,
        ) -> Iterator[pa.RecordBatch]:
            yield first
            for run in pending:
                if _key(run) != key:
                    follower.append(run)
                    return
                yield run

        count = head[ROW_COUNT][0].as_py() if counts is None else counts.get(key)
        rows = SegmentRows(*key, count or 0, chunks())
        if count is not None:
            yield rows
        rows.skip_rest()
        head = follower[0] if follower else None


def _runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut record batches where the segment changes, without copying."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        starts = run_starts([key_codes(batch, name) for name in KEY_COLUMNS])
        ends = np.append(starts[1:], batch.num_rows)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            yield batch.slice(start, end - start)


def _end_of_last(chunk: pa.RecordBatch) -> int:
    """Return where the last batch of some rows claims to end; they may be wrong."""
    last = chunk.slice(chunk.num_rows - 1)
    position = last[POSITION][0].as_py() or 0
    if BATCH in last.schema.names:
        size = len(last[BATCH][0].as_py() or b"")
    else:
        size = last["size_bytes"][0].as_py() or 0
    return min(position + size, INT64_MAX)


def _key(batch: pa.RecordBatch) -> SegmentKey:
    topic, partition, base_offset = (batch[name][0].as_py() for name in KEY_COLUMNS)
    return topic, partition, base_offset
