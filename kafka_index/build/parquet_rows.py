"""Rows of segments, in a stream: where one segment ends and the next begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_index.build.parquet_schema import BATCH, KEY_COLUMNS, POSITION, ROW_COUNT
from kafka_index.errors import InputError
from kafka_index.layout.names import INT64_MAX

Codes = npt.NDArray[np.integer[Any]]


@dataclass
class SegmentRows:
    """The rows of one segment, readable once.

    Parameters
    ----------
    topic, partition, base_offset
        The segment.
    row_count : int
        How many rows were counted for it before the work began.
    chunks : iterator of pa.RecordBatch
        Its rows, in position order.
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
        """Yield the rows.

        Raises
        ------
        InputError
            Fewer came than were counted, or more.
        """
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
        """Pass over the rows nobody read, noting where the last batch ends."""
        for chunk in self.chunks:
            self.rows_met += chunk.num_rows
            self._latest = chunk
        if self._latest is not None:
            self.end_bytes = max(self.end_bytes, _end_of_last(self._latest))
            self._latest = None


def split_segments(batches: Iterator[pa.RecordBatch]) -> Iterator[SegmentRows]:
    """Cut a stream of rows into its segments.

    Parameters
    ----------
    batches : iterator of pa.RecordBatch
        Canonical columns and `ROW_COUNT`; the rows of a segment follow each other.

    Yields
    ------
    SegmentRows
        To be read before the next is asked for; what is left of it is passed over then.
    """
    pending: Iterator[pa.RecordBatch] = _runs(batches)
    head = next(pending, None)
    while head is not None:
        key = _key(head)
        follower: list[pa.RecordBatch] = []

        def chunks(
            first: pa.RecordBatch = head,
            key: tuple[str, int, int] = key,
            follower: list[pa.RecordBatch] = follower,
        ) -> Iterator[pa.RecordBatch]:
            yield first
            for run in pending:
                if _key(run) != key:
                    follower.append(run)
                    return
                yield run

        rows = SegmentRows(*key, head[ROW_COUNT][0].as_py(), chunks())
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


def key_codes(batch: pa.RecordBatch, name: str) -> Codes:
    """Return a key column as integers; a topic as its place in a dictionary of this batch."""
    column = batch[name]
    if name == "topic":
        column = column.dictionary_encode().indices
    codes: Codes = column.to_numpy(zero_copy_only=False)
    return codes


def run_starts(keys: list[Codes]) -> npt.NDArray[np.intp]:
    """Return the rows at which any of the columns differs from the row before; row 0 first."""
    changes = np.zeros(keys[0].size, np.bool_)
    changes[:1] = True
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changes)


def _end_of_last(chunk: pa.RecordBatch) -> int:
    """Return where the last batch of some rows claims to end; they may be wrong."""
    last = chunk.slice(chunk.num_rows - 1)
    position = last[POSITION][0].as_py() or 0
    if BATCH in last.schema.names:
        size = len(last[BATCH][0].as_py() or b"")
    else:
        size = last["size_bytes"][0].as_py() or 0
    return min(position + size, INT64_MAX)


def _key(batch: pa.RecordBatch) -> tuple[str, int, int]:
    topic, partition, base_offset = (batch[name][0].as_py() for name in KEY_COLUMNS)
    return topic, partition, base_offset


def group_rows(
    keys: list[Codes],
) -> tuple[npt.NDArray[np.intp] | None, npt.NDArray[np.intp]]:
    """Group rows by key, the rows of a group in their order.

    Returns
    -------
    tuple of order and starts
        `order` is the permutation that groups the rows (None: they are grouped as they lie), and
        `starts` the places in it where groups start.
    """
    starts = run_starts(keys)
    heads = [key[starts] for key in keys]
    order = np.lexsort(heads[::-1])
    repeated = run_starts([head[order] for head in heads]).size < starts.size
    if not repeated:
        return None, starts
    order = np.lexsort(keys[::-1])
    return order, run_starts([key[order] for key in keys])
