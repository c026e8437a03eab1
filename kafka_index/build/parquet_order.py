"""The order of a Parquet input: the segments that it holds, and where their rows lie.

One pass over the key and position columns counts the rows of each segment, and finds out whether
the rows of each lie together, in position order. They are read in that order, several bins of
segments at a time; rows in any other order are sorted first, by DuckDB.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kafka_index.build.parquet_input import (
    KEY_COLUMNS,
    POSITION,
    ParquetForm,
    ParquetInput,
    RowGroup,
    for_each_footer,
    open_file,
    read_row_group,
)
from kafka_index.errors import InputError
from kafka_index.execution import Workers
from kafka_index.layout.integers import INT32_MAX
from kafka_index.layout.names import is_legal_topic
from kafka_index.storage import workspace
from kafka_index.storage.local_work import sorted_batches
from kafka_index.stores import FileInfo
from kafka_index.stores.durable_files import publish_error

Codes = npt.NDArray[np.integer[Any]]

_COUNT_ROWS = 256 * 1024
_CHUNK_ROWS = 64 * 1024
_CHUNK_BYTES = 16 << 20


class SegmentKey(NamedTuple):
    """The name of a segment in an input."""

    topic: str
    partition: int
    base_offset: int


class CountedRows(NamedTuple):
    """Rows of one segment that a batch of the input holds: their number, and their positions."""

    row_count: int
    first_position: int
    last_position: int
    highest_position: int
    in_order: bool


#: Rows of a segment that lie together, and the segment.
SegmentPart = tuple[SegmentKey, CountedRows]


@dataclass(frozen=True, slots=True)
class SegmentCount:
    """The rows of a segment, in all files; in a sorted input they follow each other.

    The first row counts over the whole input. The size is about that of the log (exact only for
    batch metadata that is in order).
    """

    key: SegmentKey
    first_row: int
    row_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CountedInput:
    """A Parquet input with its row groups and segments, both in the order of the input.

    `is_sorted` means that the rows of each segment follow each other, in position order.
    """

    source: ParquetInput
    groups: Sequence[RowGroup]
    segments: Sequence[SegmentCount]
    is_sorted: bool


@dataclass(frozen=True, slots=True)
class Bin:
    """Segments that are read together, and the row groups that hold them, with their first rows."""

    segments: Sequence[SegmentCount]
    groups: Sequence[tuple[int, RowGroup]]


def count_segments(
    source: ParquetInput, workers: Workers | None = None, *, shares: int = 0
) -> CountedInput:
    """Count the rows of each segment, row group by row group; here if there are no workers.

    The count amounts to so many shares of the listener of the workers. Raises `InputError` if there
    are no rows, a file cannot be read, or a key column holds a null or a partition that is not a
    32-bit integer: those rows belong to no segment, and no report row could name them.
    """
    each = for_each_footer(source.files, partial(_row_groups, frozenset(source.columns)))
    groups = [group for groups in each for group in groups]
    if workers is None:
        return _join_counts(source, groups, (_count_row_group(group, source) for group in groups))
    counted = workers.run(
        groups,
        partial(_try_count, source=source),
        sizes=[group.rows * group.row_bytes for group in groups],
        what="count the batches of {:,} row groups",
        ordered=True,
        shares=shares,
    )
    with closing(counted):
        return _join_counts(source, groups, map(_counts, counted))


def _try_count(
    group: RowGroup, _attempt_id: str, *, source: ParquetInput
) -> list[SegmentPart] | InputError:
    """Count a row group, or return why that cannot be done: another attempt cannot either."""
    try:
        return _count_row_group(group, source)
    except InputError as error:
        return error


def _counts(found: list[SegmentPart] | InputError) -> list[SegmentPart]:
    if isinstance(found, InputError):
        raise found
    return found


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


def _count_row_group(group: RowGroup, source: ParquetInput) -> list[SegmentPart]:
    """Count the rows of each segment in a row group."""
    parts: list[SegmentPart] = []
    for batch in read_row_group(source, group, [*KEY_COLUMNS, POSITION], _COUNT_ROWS):
        _check_keys(batch, group.file.path)
        parts += _count_batch(batch)
    return parts


def _join_counts(
    source: ParquetInput, groups: Sequence[RowGroup], counted: Iterable[Sequence[SegmentPart]]
) -> CountedInput:
    """Join what was counted in each row group, in their order."""
    counts: dict[SegmentKey, SegmentCount] = {}
    is_sorted = True
    first_row = 0
    last: SegmentKey | None = None
    last_position = -1
    for group, parts in zip(groups, counted, strict=True):
        # The size of a segment's last batch is not known yet: a mean one stands for it.
        last_bytes = group.row_bytes if source.form is ParquetForm.RAW else 0
        for key, part in parts:
            count = counts.get(key) or SegmentCount(key, first_row, 0, last_bytes)
            follows = key == last and part.first_position > last_position
            is_sorted &= part.in_order and (not count.row_count or follows)
            counts[key] = replace(
                count,
                row_count=count.row_count + part.row_count,
                size_bytes=max(count.size_bytes, part.highest_position + last_bytes),
            )
            first_row += part.row_count
            last, last_position = key, part.last_position
    if not counts:
        raise InputError("the Parquet input has no rows", path=source.path)
    return CountedInput(source, groups, list(counts.values()), is_sorted)


def why_no_segment(segment: SegmentCount) -> str | None:
    """Return why no broker has such a segment, or None. What passes is safe as a folder name."""
    if not is_legal_topic(segment.key.topic):
        return "not a legal topic name"
    if not 0 <= segment.key.partition <= INT32_MAX:
        return f"partition outside 0..{INT32_MAX}"
    return "segment_base_offset is negative" if segment.key.base_offset < 0 else None


def pack(counted: CountedInput, segments: Sequence[SegmentCount], bins: int) -> Iterator[Bin]:
    """Cut segments of a sorted input into about so many bins for one read each."""

    def weight(segment: SegmentCount) -> int:
        is_raw = counted.source.form is ParquetForm.RAW
        return segment.size_bytes if is_raw else segment.row_count

    firsts = [0, *accumulate(group.rows for group in counted.groups)]
    numbered = list(zip(firsts, counted.groups, strict=False))
    target = sum(map(weight, segments)) // bins + 1
    work: list[SegmentCount] = []
    filled = 0
    for segment in segments:
        if work and filled + weight(segment) > target:
            yield _bin(work, firsts, numbered)
            work, filled = [], 0
        work.append(segment)
        filled += weight(segment)
    if work:
        yield _bin(work, firsts, numbered)


def _bin(
    work: Sequence[SegmentCount], firsts: Sequence[int], groups: Sequence[tuple[int, RowGroup]]
) -> Bin:
    end = work[-1].first_row + work[-1].row_count
    low, high = np.searchsorted(firsts, [work[0].first_row + 1, end])
    return Bin(work, groups[int(low) - 1 : int(high)])


def read_bin(source: ParquetInput, work: Bin) -> Iterator[pa.RecordBatch]:
    """Stream the rows of a bin, and those of segments between them.

    Raises `InputError` if a file cannot be read (any more).
    """
    last = work.segments[-1]
    start, end = work.segments[0].first_row, last.first_row + last.row_count
    names = list(source.columns)
    for first_row, group in work.groups:
        for batch in read_row_group(source, group, names, _batch_rows(group)):
            skipped = max(start - first_row, 0)
            rows = batch.slice(skipped, max(min(end - first_row, batch.num_rows) - skipped, 0))
            if rows.num_rows:
                yield rows
            first_row += batch.num_rows  # noqa: PLW2901
            if first_row >= end:
                return


def read_row_groups(source: ParquetInput, groups: Iterable[RowGroup]) -> Iterator[pa.RecordBatch]:
    """Stream the rows of row groups, all columns; `InputError` when a file cannot be read."""
    for group in groups:
        yield from read_row_group(source, group, list(source.columns), _batch_rows(group))


@contextmanager
def sorted_input(counted: CountedInput, workers: Workers) -> Iterator[CountedInput]:
    """Sort an input that is not sorted, into a file that is removed at the end.

    Raises `InputError` if it cannot be read, and `PublishError` if there is no room to sort.
    """
    if counted.is_sorted:
        yield counted
        return
    source = counted.source
    batch_rows = min(map(_batch_rows, counted.groups))
    with TemporaryDirectory(dir=workspace(), prefix="sorted") as folder:
        path = os.path.join(folder, "sorted.parquet")
        batches = read_row_groups(source, counted.groups)
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
        # A segment whose positions are not unique is in no order, and its rows are together.
        yield count_segments(replace(source, files=(FileInfo(path, 0, 0),)), workers)


def _batch_rows(group: RowGroup) -> int:
    """Return how many rows of a row group make a batch of bounded size."""
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(group.row_bytes, 1)))


def key_codes(batch: pa.RecordBatch, name: str) -> Codes:
    """Return a key column as integers; a topic as its place in a dictionary of this batch."""
    column = batch[name]
    if name == "topic":
        column = column.dictionary_encode().indices
    codes: Codes = column.to_numpy(zero_copy_only=False)
    return codes


def run_starts(keys: Sequence[Codes]) -> npt.NDArray[np.intp]:
    """Return the rows at which any of the columns differs from the row before; row 0 first."""
    changes = np.zeros(keys[0].size, np.bool_)
    changes[:1] = True
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changes)


def _check_keys(rows: pa.RecordBatch, path: str) -> None:
    """Refuse rows whose keys cannot name a segment."""
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
    """Count the rows of each segment in a batch; none is in order where another one is not."""
    keys = [key_codes(batch, name) for name in KEY_COLUMNS]
    position = batch[POSITION].fill_null(-1).to_numpy()
    starts = run_starts(keys)
    ends = np.append(starts[1:], batch.num_rows)
    ascends = np.append(True, position[1:] > position[:-1])
    ascends[starts] = True
    runs = {
        "start": starts,
        "row_count": ends - starts,
        "first": position[starts],
        "last": position[ends - 1],
        "highest": np.maximum.reduceat(position, starts),
    }
    table = pa.Table.from_batches([batch.select(KEY_COLUMNS).take(pa.array(starts))])
    for name, column in runs.items():
        table = table.append_column(name, pa.array(column))
    asked = [("row_count", "sum"), ("first", "first"), ("last", "last"), ("highest", "max")]
    groups = table.group_by(KEY_COLUMNS, use_threads=False)
    # Arrow returns groups in no order.
    found = groups.aggregate([("start", "min"), *asked]).sort_by("start_min")
    in_order = found.num_rows == len(starts) and bool(ascends.all())
    names = [*KEY_COLUMNS, *(f"{name}_{function}" for name, function in asked)]
    for *key, count, first, last, highest in zip(
        *(found[name].to_pylist() for name in names), strict=True
    ):
        yield SegmentKey(*key), CountedRows(count, first, last, highest, in_order)
