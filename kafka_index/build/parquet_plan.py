"""The segments of a Parquet input, their places, and the bins in which they are read together.

One pass over the key and position columns counts each segment's rows, and records the row groups
that hold them and whether they are in position order. Memory grows with the segments and the row
groups each of them touches, not with the rows.

Segments of moderate size are gathered: a bin reads its row groups once, keeps the rows of its own
segments and sorts them, so that neither order nor interleaving matters. A larger segment is
streamed alone, chunk by chunk, and has to lie in position order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from kafka_index.build.parquet_columns import KEY_COLUMNS, POSITION, ParquetForm
from kafka_index.build.parquet_input import (
    ParquetInput,
    RowGroup,
    for_each_footer,
    open_file,
    read_row_group,
)
from kafka_index.build.parquet_rows import group_rows, key_codes
from kafka_index.build.segment_counts import CountedRows, SegmentCount, SegmentKey
from kafka_index.errors import InputError
from kafka_index.layout.integers import INT32_MAX
from kafka_index.layout.names import is_legal_topic
from kafka_index.stores import FileInfo

COUNT_ROWS = 256 * 1024
_BINS_PER_THREAD = 4

#: Rows of a segment that lie together, and the segment.
SegmentPart = tuple[SegmentKey, CountedRows]


def list_row_groups(source: ParquetInput) -> list[RowGroup]:
    """Return the row groups of all files, in order.

    Raises `InputError` if a file cannot be read.
    """
    each = for_each_footer(source.files, partial(_row_groups, frozenset(source.columns)))
    return [group for groups in each for group in groups]


def _row_groups(columns: frozenset[str], file: FileInfo) -> list[RowGroup]:
    with open_file(file) as parquet:
        metadata = parquet.metadata
    groups = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        row_bytes = 0
        for number in range(group.num_columns):
            column = group.column(number)
            if column.path_in_schema in columns:
                row_bytes += column.total_uncompressed_size
        rows = group.num_rows
        groups.append(RowGroup(file, index, rows, row_bytes // max(rows, 1)))
    return groups


def count_segments(
    source: ParquetInput, groups: Sequence[RowGroup], *, threads: int = 1
) -> list[SegmentCount]:
    """Count the rows of each segment, in the order in which the segments begin in the input.

    Raises `InputError` if a key column holds a null or a partition that is not a 32-bit integer:
    those rows belong to no segment, and no report row could name them. Also when there are no rows,
    or a file cannot be read.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="count") as pool:
        return join_counts(source, groups, pool.map(partial(count_row_group, source), groups))


def count_row_group(source: ParquetInput, group: RowGroup) -> list[SegmentPart]:
    """Count the rows of each segment in a row group; raises as `count_segments` does."""
    parts: list[SegmentPart] = []
    for batch in read_row_group(source, group, [*KEY_COLUMNS, POSITION], COUNT_ROWS):
        check_keys(batch, group.file.path)
        parts += _count_batch(batch)
    return parts


def join_counts(
    source: ParquetInput, groups: Sequence[RowGroup], counted: Iterable[Sequence[SegmentPart]]
) -> list[SegmentCount]:
    """Join what was counted in each row group, in their order."""
    counts: dict[SegmentKey, SegmentCount] = {}
    for number, (group, parts) in enumerate(zip(groups, counted, strict=True)):
        # The size of a segment's last batch is not known yet: a mean one stands for it.
        last_bytes = group.row_bytes if source.form is ParquetForm.RAW else 0
        for key, part in parts:
            if key not in counts:
                counts[key] = SegmentCount(*key, row_count=0, size_bytes=last_bytes)
            counts[key].add(part, last_bytes=last_bytes, row_group=number)
    if not counts:
        raise InputError("the Parquet input has no rows", path=source.path)
    return list(counts.values())


def why_no_segment(segment: SegmentCount) -> str | None:
    """Return why no broker has such a segment, or None. What passes is safe as a folder name."""
    if not is_legal_topic(segment.topic):
        return "not a legal topic name"
    if not 0 <= segment.partition <= INT32_MAX:
        return f"partition outside 0..{INT32_MAX}"
    return "segment_base_offset is negative" if segment.base_offset < 0 else None


def check_keys(rows: pa.RecordBatch, path: str) -> None:
    """Refuse rows with a null key, or a partition that is not a 32-bit integer."""
    for name in KEY_COLUMNS:
        if rows[name].null_count:
            raise InputError(
                f"null in column {name}: these rows belong to no segment",
                path=path,
                hint="remove those rows",
            )
    partition = rows["partition"].to_numpy()
    if (partition != partition.astype(np.int32)).any():
        raise InputError("a partition that is not a 32-bit integer", path=path)


def _count_batch(batch: pa.RecordBatch) -> Iterator[SegmentPart]:
    """Count the rows of each segment in a batch."""
    order, starts = group_rows([key_codes(batch, name) for name in KEY_COLUMNS])
    position = batch[POSITION].fill_null(-1).to_numpy()
    if order is not None:
        position = position[order]
    ends = np.append(starts[1:], batch.num_rows)
    ascends = np.ones(batch.num_rows, np.bool_)
    ascends[1:] = position[1:] > position[:-1]
    ascends[starts] = True
    heads = batch.select(KEY_COLUMNS).take(pa.array(starts if order is None else order[starts]))
    columns = (
        ends - starts,
        position[starts],
        position[ends - 1],
        np.maximum.reduceat(position, starts),
        np.logical_and.reduceat(ascends, starts),
    )
    yield from zip(
        zip(*(column.to_pylist() for column in heads.columns), strict=True),
        map(CountedRows, *(column.tolist() for column in columns)),
        strict=True,
    )


@dataclass(frozen=True, slots=True)
class GatherLimits:
    """The limits of a Parquet input in the memory of a thread.

    Rows of batch metadata and bytes of raw batches are those of a bin of gathered segments;
    `unordered_rows` is for one segment of batch metadata whose rows are not in position order.
    """

    rows: int = 1_000_000
    size_bytes: int = 64 << 20
    unordered_rows: int = 4_000_000


def can_order(segment: SegmentCount, form: ParquetForm, limits: GatherLimits) -> bool:
    """Return whether a segment's rows can be sorted by position within the limits."""
    if segment.in_order:
        return True
    if form is ParquetForm.RAW:
        return segment.size_bytes <= limits.size_bytes
    return segment.row_count <= limits.unordered_rows


def pack(
    counts: Sequence[SegmentCount], form: ParquetForm, limits: GatherLimits, threads: int
) -> Iterator[list[SegmentCount]]:
    """Cut the segments, which are in the order of the input, into bins for one read each."""

    def weight(segment: SegmentCount) -> int:
        return segment.size_bytes if form is ParquetForm.RAW else segment.row_count

    limit = limits.size_bytes if form is ParquetForm.RAW else limits.rows
    share = sum(map(weight, counts)) // (threads * _BINS_PER_THREAD) + 1
    target = min(limit, share)
    work: list[SegmentCount] = []
    filled = 0
    for segment in counts:
        if work and filled + weight(segment) > target:
            yield work
            work, filled = [], 0
        work.append(segment)
        filled += weight(segment)
    if work:
        yield work
