"""Which segments of a Parquet input are read together, and in order.

Segments of moderate size are gathered: a bin reads its row groups once, keeps the rows of its own
segments and sorts them, so that neither order nor interleaving matters. A segment above that size
is streamed alone, chunk by chunk, and has to lie in position order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kafka_index.build.parquet_plan import SegmentCount
from kafka_index.build.parquet_read import RowGroup, read_row_group
from kafka_index.build.parquet_rows import group_rows, key_codes
from kafka_index.build.parquet_schema import (
    KEY_COLUMNS,
    POSITION,
    ROW_COUNT,
    ParquetForm,
    ParquetInput,
)

_CHUNK_ROWS = 64 * 1024
_CHUNK_BYTES = 16 << 20
_BINS_PER_THREAD = 4


@dataclass(frozen=True, slots=True)
class GatherLimits:
    """How much of a Parquet input a thread may hold at a time.

    Parameters
    ----------
    rows, size_bytes : int
        Of a bin of gathered segments: rows of batch metadata, bytes of raw batches.
    unordered_rows : int
        Of one segment of batch metadata whose rows are not in position order.
    """

    rows: int = 1_000_000
    size_bytes: int = 64 << 20
    unordered_rows: int = 4_000_000


def can_order(one: SegmentCount, form: ParquetForm, limits: GatherLimits) -> bool:
    """Tell whether a segment's rows can be brought into position order within the limits."""
    if one.in_order:
        return True
    if form is ParquetForm.RAW:
        return one.size_bytes <= limits.size_bytes
    return one.row_count <= limits.unordered_rows


def pack(
    counts: Sequence[SegmentCount], form: ParquetForm, limits: GatherLimits, threads: int
) -> Iterator[list[SegmentCount]]:
    """Cut the segments, which are in the order of the input, into bins for one read each."""

    def weight(one: SegmentCount) -> int:
        return one.size_bytes if form is ParquetForm.RAW else one.row_count

    limit = limits.size_bytes if form is ParquetForm.RAW else limits.rows
    share = sum(map(weight, counts)) // (threads * _BINS_PER_THREAD) + 1
    target = min(limit, share)
    work: list[SegmentCount] = []
    filled = 0
    for one in counts:
        if work and filled + weight(one) > target:
            yield work
            work, filled = [], 0
        work.append(one)
        filled += weight(one)
    if work:
        yield work


def read_bin(
    source: ParquetInput, groups: Sequence[RowGroup], work: Sequence[SegmentCount]
) -> Iterator[pa.RecordBatch]:
    """Stream the rows of some segments: each segment's together, in position order, counted.

    Raises
    ------
    InputError
        A file cannot be read (any more).
    """
    rows = {(one.topic, one.partition, one.base_offset): one.row_count for one in work}
    names = list(source.columns)

    def stream() -> Iterator[pa.RecordBatch]:
        for number in sorted({number for one in work for number in one.row_groups}):
            group = groups[number]
            batch_rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(group.row_bytes, 1)))
            for batch in read_row_group(source, group, names, batch_rows):
                kept = _keep(batch, rows)
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


def _keep(batch: pa.RecordBatch, rows: dict[tuple[str, int, int], int]) -> pa.RecordBatch:
    """Keep the rows of some segments, and say with each how many its segment has."""
    topic, partition, base_offset = keys = [key_codes(batch, name) for name in KEY_COLUMNS]
    order, starts = group_rows(keys)
    first = starts if order is None else order[starts]
    topics = batch["topic"].dictionary_encode().dictionary.to_pylist()
    heads = zip(topic[first], partition[first].tolist(), base_offset[first].tolist(), strict=True)
    counts = np.array([rows.get((topics[code], *rest), 0) for code, *rest in heads], np.int64)
    per_row = np.repeat(counts, np.diff(np.append(starts, batch.num_rows)))
    if order is not None:
        ungrouped = np.empty_like(per_row)
        ungrouped[order] = per_row
        per_row = ungrouped
    batch = batch.append_column(ROW_COUNT, pa.array(per_row))
    return batch if counts.all() else batch.filter(pa.array(per_row != 0))


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
