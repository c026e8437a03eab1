"""Which segments a Parquet input holds, where, and which of them are read together.

One pass over the key and position columns counts each segment's rows, and records the row groups
that hold them and whether they are in position order. Memory grows with the segments and the row
groups each of them touches, not with the rows.

Segments of moderate size are gathered: a bin reads its row groups once, keeps the rows of its own
segments and sorts them, so that neither order nor interleaving matters. A larger segment is
streamed alone, chunk by chunk, and has to lie in position order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_index.build.parquet_input import (
    KEY_COLUMNS,
    POSITION,
    ParquetForm,
    ParquetInput,
    RowGroup,
    open_file,
    read_row_group,
)
from kafka_index.build.parquet_rows import SegmentCount, group_rows, key_codes, run_starts
from kafka_index.config import INT32_MAX
from kafka_index.errors import InputError
from kafka_index.layout.names import is_legal_topic

COUNT_ROWS = 256 * 1024
_BINS_PER_THREAD = 4

_Longs = npt.NDArray[np.int64]


def list_row_groups(source: ParquetInput) -> list[RowGroup]:
    """Return the row groups of all files, in order.

    Raises
    ------
    InputError
        A file cannot be read.
    """
    groups = []
    for file in source.files:
        with open_file(file) as parquet:
            metadata = parquet.metadata
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            row_bytes = 0
            for number in range(group.num_columns):
                column = group.column(number)
                if column.path_in_schema in source.columns:
                    row_bytes += column.total_uncompressed_size
            rows = group.num_rows
            groups.append(RowGroup(file, index, rows, row_bytes // max(rows, 1)))
    return groups


def count_segments(source: ParquetInput, groups: list[RowGroup]) -> list[SegmentCount]:
    """Count the rows of each segment.

    Returns
    -------
    list of SegmentCount
        In the order in which the segments begin in the input.

    Raises
    ------
    InputError
        A key column holds a null or a partition that is not a 32-bit integer: those rows belong to
        no segment, and no report row could name them. Also when there are no rows, or a file
        cannot be read.
    """
    names = [*KEY_COLUMNS, POSITION]
    topics: dict[str, int] = {}
    parts: list[_Longs] = []
    for number, group in enumerate(groups):
        for batch in read_row_group(source, group, names, COUNT_ROWS):
            _check_keys(batch, group.file)
            local = batch["topic"].dictionary_encode()
            numbers = [
                topics.setdefault(name, len(topics)) for name in local.dictionary.to_pylist()
            ]
            topic = np.asarray(numbers, np.int64)[local.indices.to_numpy()]
            parts.append(_count_batch(batch, topic, number, group.row_bytes))
    if not parts:
        raise InputError("the Parquet input has no rows", path=source.path)
    return _merge(np.concatenate(parts, axis=1), list(topics), source.form)


def why_no_segment(topic: str, partition: int, base_offset: int) -> str | None:
    """Return why no broker has such a segment, or None. What passes is safe as a folder name."""
    if not is_legal_topic(topic):
        return "not a legal topic name"
    if not 0 <= partition <= INT32_MAX:
        return f"partition outside 0..{INT32_MAX}"
    return "segment_base_offset is negative" if base_offset < 0 else None


def _check_keys(batch: pa.RecordBatch, file: str) -> None:
    for name in KEY_COLUMNS:
        if batch[name].null_count:
            raise InputError(
                f"null in column {name}: these rows belong to no segment",
                path=file,
                hint="remove those rows",
            )
    partition = batch["partition"].to_numpy()
    if (partition != partition.astype(np.int32)).any():
        raise InputError("a partition that is not a 32-bit integer", path=file)


# Rows of the arrays that `_count_batch` makes and `_merge` joins.
_TOPIC, _PARTITION, _BASE, _GROUP, _ROWS, _FIRST, _LAST, _HIGHEST, _ORDERED, _ROW_BYTES = range(10)


def _count_batch(batch: pa.RecordBatch, topic: _Longs, group: int, row_bytes: int) -> _Longs:
    keys = [topic, *(key_codes(batch, name) for name in KEY_COLUMNS[1:])]
    position = batch[POSITION].fill_null(-1).to_numpy()
    order, starts = group_rows(keys)
    if order is not None:
        position = position[order]
        keys = [key[order] for key in keys]
    ends = np.append(starts[1:], batch.num_rows)
    ascends = np.ones(batch.num_rows, np.bool_)
    ascends[1:] = position[1:] > position[:-1]
    ascends[starts] = True
    counted = np.empty((10, starts.size), np.int64)
    for row, key in zip((_TOPIC, _PARTITION, _BASE), keys, strict=True):
        counted[row] = key[starts]
    counted[_GROUP] = group
    counted[_ROWS] = ends - starts
    counted[_FIRST] = position[starts]
    counted[_LAST] = position[ends - 1]
    counted[_HIGHEST] = np.maximum.reduceat(position, starts)
    counted[_ORDERED] = np.logical_and.reduceat(ascends, starts)
    counted[_ROW_BYTES] = row_bytes
    return counted


def _merge(parts: _Longs, topics: list[str], form: ParquetForm) -> list[SegmentCount]:
    """Join the counts of batches; `parts` are in the order of the input, and stay so."""
    first_seen = np.lexsort(parts[[_BASE, _PARTITION, _TOPIC]])  # stable: keeps that order
    parts = parts[:, first_seen]
    starts = run_starts([parts[_TOPIC], parts[_PARTITION], parts[_BASE]])
    ends = np.append(starts[1:], parts.shape[1])
    ascends = np.ones(parts.shape[1], np.bool_)
    ascends[1:] = parts[_FIRST, 1:] > parts[_LAST, :-1]
    ascends[starts] = True
    ascends &= parts[_ORDERED] != 0
    rows = np.add.reduceat(parts[_ROWS], starts)
    highest = np.maximum.reduceat(parts[_HIGHEST], starts)
    in_order = np.logical_and.reduceat(ascends, starts)
    result = []
    for segment in np.argsort(first_seen[starts]).tolist():
        start, end = int(starts[segment]), int(ends[segment])
        # A batch's own size is not known yet: a mean one, for the last.
        mean = int(parts[_ROW_BYTES, start]) if form is ParquetForm.RAW else 0
        result.append(
            SegmentCount(
                topic=topics[parts[_TOPIC, start]],
                partition=int(parts[_PARTITION, start]),
                base_offset=int(parts[_BASE, start]),
                row_count=int(rows[segment]),
                size_bytes=max(int(highest[segment]), 0) + mean,
                in_order=bool(in_order[segment]),
                row_groups=tuple(np.unique(parts[_GROUP, start:end]).tolist()),
            )
        )
    return result


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
