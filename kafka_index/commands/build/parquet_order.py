"""The order of a Parquet input: its segments, and which rows belong to each segment.

One pass over the key and position columns counts the rows of each segment, and detects whether the
rows are consecutive and in position order. In this case, rows are read in input order, with several
bins of segments concurrently. Otherwise DuckDB sorts the rows first.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kafka_index.commands.build.parquet_input import (
    KEY_COLUMNS,
    POSITION,
    NumberedGroup,
    ParquetForm,
    ParquetInput,
    RowGroup,
    for_each_footer,
    open_file,
    read_row_group,
)
from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.names import is_legal_topic
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.local_work import query_batches, sorted_batches, workspace
from kafka_index.core.fs.store import FileInfo
from kafka_index.core.job.engine import Workers

Codes = npt.NDArray[np.integer[Any]]

#: Approximate size of a row of batch metadata.
METADATA_ROW_BYTES = 128
_COUNT_ROWS = 256 * 1024
_CHUNK_ROWS = 64 * 1024
_CHUNK_BYTES = 16 << 20


class SegmentKey(NamedTuple):
    topic: str
    partition: int
    base_offset: int


#: Counts of the rows of one segment in one record batch of the input. `first_row` is a row number
#: in the complete input. `first_position` and `last_position` are the byte positions of the batches
#: in the first and last row. `size_bytes` is the approximate size of the log up to the last row.
#: `in_order` is true if the rows of each segment in the record batch are consecutive and in
#: position order. For rows that cannot be counted, only `error` is set, to a pickled exception: if
#: a Spark task raised the exception, Spark would retry the task.
BATCH_COUNT_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("segment_base_offset", pa.int64()),
        ("first_row", pa.int64()),
        ("row_count", pa.int64()),
        ("first_position", pa.int64()),
        ("last_position", pa.int64()),
        ("size_bytes", pa.int64()),
        ("in_order", pa.bool_()),
        ("error", pa.binary()),
    ]
)
#: Query that merges rows of `BATCH_COUNT_SCHEMA` to one row per segment, in DuckDB and Spark.
#: `is_sorted` is true if the rows of a segment are consecutive in the input and in position order.
SEGMENTS_QUERY = """
WITH parts AS (
    SELECT
        *,
        lag(first_row + row_count) OVER so_far AS row_before,
        lag(last_position) OVER so_far AS position_before
    FROM {parts}
    WINDOW so_far AS (PARTITION BY topic, partition, segment_base_offset ORDER BY first_row)
)
SELECT
    topic, partition, segment_base_offset,
    min(first_row) AS first_row,
    CAST(sum(row_count) AS BIGINT) AS row_count,
    max(size_bytes) AS size_bytes,
    bool_and(
        in_order
        AND (row_before IS NULL OR (row_before = first_row AND position_before < first_position))
    ) AS is_sorted,
    max(error) AS error
FROM parts
GROUP BY topic, partition, segment_base_offset
"""


@dataclass(frozen=True, slots=True)
class SegmentCount:
    """The number and location of the rows of a segment; in a sorted input, they are consecutive.

    `first_row` is a row number in the complete input. `size_bytes` is the approximate size of the
    log.
    """

    key: SegmentKey
    first_row: int
    row_count: int
    size_bytes: int

    def read_bytes(self, form: ParquetForm) -> int:
        """Return the approximate number of bytes that a build of the segment reads."""
        return self.size_bytes if form is ParquetForm.RAW else self.row_count * METADATA_ROW_BYTES


@dataclass(frozen=True, slots=True)
class CountedInput:
    """A Parquet input with its row groups and segments, both in input order.

    `is_sorted` is True if the rows of each segment are consecutive and in position order.
    """

    source: ParquetInput
    groups: Sequence[NumberedGroup]
    segments: Sequence[SegmentCount]
    is_sorted: bool


@dataclass(frozen=True, slots=True)
class Bin:
    """Segments that are read together, and the row groups that contain them."""

    segments: Sequence[SegmentCount]
    groups: Sequence[NumberedGroup]

    @property
    def size_bytes(self) -> int:
        """Approximate size of the logs."""
        return sum(segment.size_bytes for segment in self.segments)


def count_segments(source: ParquetInput, workers: Workers) -> CountedInput:
    """Count the rows of each segment, row group by row group, in threads.

    Raises `InputError` if there are no rows, a file cannot be read, a key column has a null, or a
    partition is not a 32-bit integer. Raises `PublishError` if there is no disk space for counting.
    """
    groups = row_groups(source)
    counted = workers.run(
        groups,
        lambda group, _: list(count_batches(group, source)),
        sizes=[group.size_bytes for group in groups],
        description="count the batches of {:,} row groups",
    )
    with closing(counted):
        segments = query_batches(
            (batch for group_batches in counted for batch in group_batches),
            BATCH_COUNT_SCHEMA,
            SEGMENTS_QUERY.format(parts="input_rows") + "ORDER BY first_row",
            rows="batches of the input",
            batch_rows=_COUNT_ROWS,
            threads=workers.count,
        )
        table = pa.Table.from_batches(segments)
    is_sorted = pc.all(table["is_sorted"]).as_py()
    return CountedInput(source, groups, segment_counts(table), is_sorted)


def segment_counts(table: pa.Table) -> list[SegmentCount]:
    """Convert result rows of `SEGMENTS_QUERY`."""
    keys = map(SegmentKey, *(table[name].to_pylist() for name in KEY_COLUMNS))
    counts = (table[name].to_pylist() for name in ("first_row", "row_count", "size_bytes"))
    return list(map(SegmentCount, keys, *counts))


def row_groups(source: ParquetInput) -> list[NumberedGroup]:
    """Return the row groups that have rows.

    Raises `InputError` if no row group has rows, or a file cannot be read.
    """
    groups_by_file = for_each_footer(source.files, partial(_row_groups, source))
    groups = [group for groups in groups_by_file for group in groups if group.rows]
    if not groups:
        raise InputError("the Parquet input has no rows", path=source.path)
    first_rows = accumulate((group.rows for group in groups), initial=0)
    return [NumberedGroup(first, group) for first, group in zip(first_rows, groups, strict=False)]


def _row_groups(source: ParquetInput, file: FileInfo) -> list[RowGroup]:
    with open_file(file) as parquet:
        metadata = parquet.metadata
    groups = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        columns = map(group.column, range(group.num_columns))
        row_bytes = sum(
            column.total_uncompressed_size
            for column in columns
            if column.path_in_schema.lower() in source.columns
        )
        groups.append(RowGroup(file, index, group.num_rows, row_bytes // max(group.num_rows, 1)))
    return groups


def count_batches(group: NumberedGroup, source: ParquetInput) -> Iterator[pa.RecordBatch]:
    """Yield the row counts of a row group as `BATCH_COUNT_SCHEMA`; raises like `count_segments`."""
    first_row = group.first_row
    # The size of the last batch of a segment is not in the columns read here. For raw batches, the
    # mean row size is used instead.
    last_bytes = group.group.row_bytes if source.form is ParquetForm.RAW else 0
    for batch in read_row_group(source, group.group, [*KEY_COLUMNS, POSITION], _COUNT_ROWS):
        nulls = [batch[name].null_count for name in KEY_COLUMNS]
        partitions = batch["partition"].to_numpy(zero_copy_only=False)
        check_keys(nulls, partitions, group.group.file.path)
        yield _count_batch(batch, first_row, last_bytes)
        first_row += batch.num_rows


def segment_rejection(key: SegmentKey) -> str | None:
    """Return why no broker can have a segment with this key; None if a broker can."""
    if not is_legal_topic(key.topic):
        return "the topic name is not legal"
    if not 0 <= key.partition <= INT32_MAX:
        return f"partition is outside of 0..{INT32_MAX}"
    return "segment_base_offset is negative" if key.base_offset < 0 else None


def pack_bins(counted: CountedInput, segments: Sequence[SegmentCount], bins: int) -> Iterator[Bin]:
    def weight(segment: SegmentCount) -> int:
        return segment.read_bytes(counted.source.form)

    max_bin_bytes = sum(map(weight, segments)) // bins + 1
    bin_segments: list[SegmentCount] = []
    bin_bytes = 0
    for segment in segments:
        if bin_segments and bin_bytes + weight(segment) > max_bin_bytes:
            yield _to_bin(bin_segments, counted.groups)
            bin_segments, bin_bytes = [], 0
        bin_segments.append(segment)
        bin_bytes += weight(segment)
    if bin_segments:
        yield _to_bin(bin_segments, counted.groups)


def _to_bin(segments: Sequence[SegmentCount], groups: Sequence[NumberedGroup]) -> Bin:
    end_row = segments[-1].first_row + segments[-1].row_count
    first_group = bisect_right(groups, segments[0].first_row, key=attrgetter("first_row"))
    end_group = bisect_left(groups, end_row, key=attrgetter("first_row"))
    return Bin(segments, groups[first_group - 1 : end_group])


def read_bin(source: ParquetInput, bin_: Bin) -> Iterator[pa.RecordBatch]:
    """Stream the rows of a bin, including rows of other segments between rows of the bin.

    Raises `InputError` if a file cannot be read.
    """
    last_segment = bin_.segments[-1]
    first_row_of_bin, end_row_of_bin = (
        bin_.segments[0].first_row,
        last_segment.first_row + last_segment.row_count,
    )
    names = list(source.columns)
    for numbered_group in bin_.groups:
        first_row, group = numbered_group.first_row, numbered_group.group
        for batch in read_row_group(source, group, names, _rows_per_read(group)):
            skipped = max(first_row_of_bin - first_row, 0)
            rows = batch.slice(
                skipped, max(min(end_row_of_bin - first_row, batch.num_rows) - skipped, 0)
            )
            if rows.num_rows:
                yield rows
            first_row += batch.num_rows
            if first_row >= end_row_of_bin:
                return


def read_all_columns(source: ParquetInput, group: RowGroup) -> Iterator[pa.RecordBatch]:
    """Stream all columns of a row group; raises `InputError` if the file cannot be read."""
    return read_row_group(source, group, list(source.columns), _rows_per_read(group))


@contextmanager
def sorted_input(counted: CountedInput, workers: Workers) -> Iterator[CountedInput]:
    """Sort an input into a temporary file; yield the input unchanged if it is sorted.

    Raises `InputError` if the input cannot be read, and `PublishError` if there is no disk space.
    """
    if counted.is_sorted:
        yield counted
        return
    source = counted.source
    batch_rows = min(_rows_per_read(numbered_group.group) for numbered_group in counted.groups)
    with TemporaryDirectory(dir=workspace(), prefix="sorted") as folder:
        path = os.path.join(folder, "sorted.parquet")
        batches = chain.from_iterable(
            read_all_columns(source, numbered_group.group) for numbered_group in counted.groups
        )
        try:
            with pq.ParquetWriter(
                path, source.schema, compression="lz4", use_dictionary=["topic"]
            ) as writer:
                for batch in sorted_batches(
                    batches,
                    source.schema,
                    (*KEY_COLUMNS, POSITION),
                    rows="batches of the input",
                    batch_rows=batch_rows,
                    threads=workers.count,
                    nulls_first=True,
                ):
                    writer.write_batch(batch.cast(source.schema))
        except OSError as error:
            raise publish_error(error, path, "sort the input") from error
        # Counted again: if a segment repeats a position, `is_sorted` remains false, but the rows of
        # each segment are now consecutive.
        yield count_segments(replace(source, files=(FileInfo(path, 0, 0),)), workers)


def _rows_per_read(group: RowGroup) -> int:
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(group.row_bytes, 1)))


def key_codes(batch: pa.RecordBatch, name: str) -> Codes:
    """Return a key column as integers; topics become dictionary indices of this batch."""
    column = batch[name]
    if name == "topic":
        column = column.dictionary_encode().indices
    codes: Codes = column.to_numpy(zero_copy_only=False)
    return codes


def run_starts(keys: Sequence[Codes]) -> npt.NDArray[np.intp]:
    """Return the number of the first row of each group of consecutive equal keys."""
    changes = np.zeros(keys[0].size, np.bool_)
    changes[:1] = True
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changes)


def check_keys(null_counts: Sequence[int], partitions: Codes, path: str) -> None:
    """Reject rows whose keys identify no segment; `null_counts` is in order of `KEY_COLUMNS`."""
    for name, null_count in zip(KEY_COLUMNS, null_counts, strict=True):
        if null_count:
            raise InputError(
                f"column {name} is null, and rows without a segment cannot be built",
                path=path,
                hint="remove the rows with nulls",
            )
    if (partitions != partitions.astype(np.int32)).any():
        raise InputError("column partition has a value that is not a 32-bit integer", path=path)


def _count_batch(batch: pa.RecordBatch, first_row: int, last_bytes: int) -> pa.RecordBatch:
    """Count the rows of each segment in a batch; `in_order` is equal for all segments."""
    keys = [key_codes(batch, name) for name in KEY_COLUMNS]
    position = batch[POSITION].fill_null(-1).to_numpy()
    starts = run_starts(keys)
    ends = np.append(starts[1:], batch.num_rows)
    is_ascending = np.append(True, position[1:] > position[:-1])
    is_ascending[starts] = True
    runs = {
        "first_row": first_row + starts,
        "row_count": ends - starts,
        "first_position": position[starts],
        "last_position": position[ends - 1],
        "size_bytes": np.maximum.reduceat(position, starts) + last_bytes,
    }
    table = pa.Table.from_batches([batch.select(KEY_COLUMNS).take(pa.array(starts))])
    for name, column in runs.items():
        table = table.append_column(name, pa.array(column))
    functions = dict(zip(runs, ("min", "sum", "first", "last", "max"), strict=True))
    groups = table.group_by(KEY_COLUMNS, use_threads=False)
    aggregates = groups.aggregate(list(functions.items()))
    in_order = aggregates.num_rows == len(starts) and bool(is_ascending.all())
    columns = [aggregates[name] for name in KEY_COLUMNS]
    columns += [aggregates[f"{name}_{function}"] for name, function in functions.items()]
    columns += [
        pa.array([in_order] * aggregates.num_rows),
        pa.nulls(aggregates.num_rows, pa.binary()),
    ]
    counted = pa.table(columns, names=BATCH_COUNT_SCHEMA.names).cast(BATCH_COUNT_SCHEMA)
    return counted.combine_chunks().to_batches()[0]
