"""Rows of segments: gathered from row groups, in a stream, and split where the segment changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_index.build.parquet_columns import BATCH, KEY_COLUMNS, POSITION
from kafka_index.build.parquet_input import ROW_COUNT, ParquetInput, RowGroup, read_row_group
from kafka_index.build.segment_counts import SegmentCount, SegmentKey
from kafka_index.errors import InputError
from kafka_index.layout.integers import INT64_MAX, Longs

_CHUNK_ROWS = 64 * 1024
_CHUNK_BYTES = 16 << 20

Codes = npt.NDArray[np.integer[Any]]


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


def split_segments(batches: Iterator[pa.RecordBatch]) -> Iterator[SegmentRows]:
    """Cut a stream of rows, those of a segment together, into its segments.

    The batches have the canonical columns and `ROW_COUNT`. Each result is read before the next is
    asked for; its remaining rows are skipped then.
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


def _key(batch: pa.RecordBatch) -> SegmentKey:
    topic, partition, base_offset = (batch[name][0].as_py() for name in KEY_COLUMNS)
    return topic, partition, base_offset


def group_rows(
    keys: list[Codes],
) -> tuple[npt.NDArray[np.intp] | None, npt.NDArray[np.intp]]:
    """Group rows by key, the rows of a group in their order.

    Returns the permutation that groups the rows (None: they are grouped as they lie), and the
    places in it where groups start.
    """
    starts = run_starts(keys)
    heads = [key[starts] for key in keys]
    order = np.lexsort(heads[::-1])
    repeated = run_starts([head[order] for head in heads]).size < starts.size
    if not repeated:
        return None, starts
    order = np.lexsort(keys[::-1])
    return order, run_starts([key[order] for key in keys])


def read_bin(
    source: ParquetInput, groups: Mapping[int, RowGroup], work: Sequence[SegmentCount]
) -> Iterator[pa.RecordBatch]:
    """Stream the rows of some segments: each segment's together, in position order, counted.

    `groups` has at least the row groups of these segments, by number. Raises `InputError` if a file
    cannot be read (any more).
    """
    rows = {each.key: each.row_count for each in work}
    names = list(source.columns)

    def stream() -> Iterator[pa.RecordBatch]:
        for number in sorted({number for each in work for number in each.row_groups}):
            group = groups[number]
            for batch in read_row_group(source, group, names, batch_rows_of(group)):
                kept = keep_segments(batch, rows)
                if kept.num_rows:
                    yield kept

    if len(work) == 1 and work[0].in_order:
        yield from stream()
        return
    schema = source.schema.append(pa.field(ROW_COUNT, pa.int64()))
    table = pa.Table.from_batches(list(stream()), schema).combine_chunks()
    if table.num_rows == 0:
        return
    yield from _sorted(table).to_batches(max_chunksize=_CHUNK_ROWS)


def batch_rows_of(group: RowGroup) -> int:
    """Return how many rows of a row group make a batch of bounded size."""
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(group.row_bytes, 1)))


def keep_segments(batch: pa.RecordBatch, rows: Mapping[SegmentKey, int]) -> pa.RecordBatch:
    """Keep the rows of some segments, each with the number of rows of its segment."""
    per_row = values_of_segments(batch, rows)
    batch = batch.append_column(ROW_COUNT, pa.array(per_row))
    return batch if per_row.all() else batch.filter(pa.array(per_row != 0))


def values_of_segments(batch: pa.RecordBatch, values: Mapping[SegmentKey, int]) -> Longs:
    """Return for each row the value of its segment; 0 where it has none."""
    topic, partition, base_offset = keys = [key_codes(batch, name) for name in KEY_COLUMNS]
    order, starts = group_rows(keys)
    first = starts if order is None else order[starts]
    topics = batch["topic"].dictionary_encode().dictionary.to_pylist()
    heads = zip(topic[first], partition[first].tolist(), base_offset[first].tolist(), strict=True)
    found = np.array([values.get((topics[code], *rest), 0) for code, *rest in heads], np.int64)
    per_row = np.repeat(found, np.diff(np.append(starts, batch.num_rows)))
    if order is not None:
        ungrouped = np.empty_like(per_row)
        ungrouped[order] = per_row
        per_row = ungrouped
    return per_row


def _sorted(table: pa.Table) -> pa.Table:
    """Sort by segment and position; a table that is sorted already is not copied."""
    batch = table.to_batches()[0]
    keys = [key_codes(batch, name) for name in KEY_COLUMNS]
    position = batch[POSITION].fill_null(-1).to_numpy()
    order, starts = group_rows(keys)
    if order is None:
        ascends = np.ones(position.size, np.bool_)
        ascends[1:] = position[1:] >= position[:-1]
        ascends[starts] = True
        if ascends.all():
            return table
    return table.take(pa.array(np.lexsort([position, *keys[::-1]])))
