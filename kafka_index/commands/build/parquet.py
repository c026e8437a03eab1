"""Builds from Parquet: count the rows, sort unsorted rows, scan the segments, publish the files.

On any engine, tasks read the row groups of their segments directly, from any store, with the
credentials of their process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_index.commands.build.log_build import (
    AFTER_FAILURE,
    BuildListener,
    Publisher,
    build_settings,
    group_partitions,
    locked_target,
)
from kafka_index.commands.build.parquet_input import (
    BATCH,
    KEY_COLUMNS,
    METADATA_COLUMNS,
    POSITION,
    ROW_COUNT,
    ParquetForm,
    ParquetInput,
)
from kafka_index.commands.build.parquet_order import (
    Bin,
    SegmentCount,
    SegmentKey,
    count_segments,
    key_codes,
    pack_bins,
    read_bin,
    run_starts,
    segment_rejection,
    sorted_input,
)
from kafka_index.commands.build.request import BuildRequest
from kafka_index.commands.build.result import BuildPlan, BuildResult, BuildRows
from kafka_index.core.errors import InputError, KafkaIndexError
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import LOG_SUFFIX, TopicPartition, segment_file_name
from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    MAGIC_RECORD_BATCH,
    NO_COORDINATOR_EPOCH,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from kafka_index.core.job.engine import Engine, Listener, ThreadEngine, Workers
from kafka_index.core.job.result import ReportSink
from kafka_index.core.kernels.headers import CONTROL_COMPRESSED, CONTROL_EMPTY, CONTROL_MESSAGE
from kafka_index.core.log.choices import ALL_OUTPUTS, INDEX_OUTPUTS
from kafka_index.core.log.recovery.publish import GROUP_SEGMENTS
from kafka_index.core.log.recovery.scan import stage_segment
from kafka_index.core.log.recovery.settings import BuildSettings, SegmentReport
from kafka_index.core.log.recovery.staged_segment import StagedSegment
from kafka_index.core.log.scan.segment_scan import ByteStreamSource
from kafka_index.core.logdir.partition_files import NO_LOG_MTIME_NS, SegmentFile
from kafka_index.core.records.batch_table import (
    CONTROL_NONE,
    OFFSET_OVERFLOW,
    BatchColumns,
    BatchSource,
    ScanStop,
)

# Values of the optional columns that an input lacks.
_DEFAULTS = {
    "leader_epoch": NO_LEADER_EPOCH,
    "magic": MAGIC_RECORD_BATCH,
    "attributes": 0,
    "producer_id": NO_PRODUCER_ID,
    "control_type": CONTROL_NONE,
    "producer_epoch": NO_PRODUCER_EPOCH,
    "base_sequence": NO_SEQUENCE,
    "coordinator_epoch": NO_COORDINATOR_EPOCH,
    "control_timestamp_ms": NO_TIMESTAMP,
}


def segment_source(
    rows: SegmentRows, source: ParquetInput, *, verify_crc: bool
) -> MetadataSource | RawBatchSource:
    if source.form is ParquetForm.RAW:
        return RawBatchSource(rows, verify_crc=verify_crc)
    return MetadataSource(rows, knows_markers=not source.missing_for_state)


class MetadataSource:
    """A `BatchSource` over the batches of one segment, given as rows of batch metadata.

    If `knows_markers`, the input has all columns for transaction markers. A control batch without a
    control type then has no records.
    """

    def __init__(self, rows: SegmentRows, *, knows_markers: bool) -> None:
        self.stop: ScanStop | None = None
        self._rows = rows
        self._knows_markers = knows_markers

    @property
    def log_size_bytes(self) -> int:
        """Byte position after the last batch read so far."""
        return self._rows.end_bytes

    def chunks(self) -> Iterator[BatchColumns]:
        """Yield the rows as batch columns.

        Raises `InputError` if no log can contain the batch of a row, or rows are missing.
        """
        for columns in self._read_columns():
            representable_rows = self._count_representable(columns)
            if representable_rows:
                yield columns.slice(0, representable_rows)
            if self.stop is not None:
                break
        self._rows.skip_rest()

    def _read_columns(self) -> Iterator[BatchColumns]:
        first_row = 0
        for chunk in self._rows:
            position = _read_longs(chunk, POSITION, first_row)
            size, last_offset, max_timestamp = (
                _read_longs(chunk, name, first_row) for name in METADATA_COLUMNS
            )
            base_offset = _read_with_default(chunk, "base_offset", last_offset)
            _check_positions(position, size, self._rows)
            _reject_rows("last_offset is negative", last_offset < 0, position, last_offset)
            _reject_rows("base_offset is negative", base_offset < 0, position, base_offset)
            backwards = base_offset > last_offset
            _reject_rows("base_offset is above last_offset", backwards, position, base_offset)
            optional = {
                name: _read_with_default(chunk, name, value) for name, value in _DEFAULTS.items()
            }
            control_type = self._control_codes(
                optional["magic"], optional["attributes"], optional.pop("control_type")
            )
            yield BatchColumns(
                position_bytes=position,
                size_bytes=size,
                base_offset=base_offset,
                last_offset=last_offset,
                max_timestamp_ms=max_timestamp,
                control_type=control_type,
                record_count=np.full(chunk.num_rows, -1, np.int64),
                **optional,
            )
            first_row += chunk.num_rows

    def _control_codes(self, magic: Longs, attributes: Longs, control_type: Longs) -> Longs:
        """Return a control type per batch, or the code that a log scan would assign."""
        # Negative codes are assigned only by a scan, so negative input values mean no control type.
        codes = np.maximum(control_type, CONTROL_NONE)
        if self._knows_markers:
            is_control = attributes & CONTROL_MASK != 0
            is_compressed = is_control & (attributes & COMPRESSION_MASK != 0)
            lacks_records = is_control & (codes == CONTROL_NONE)
            codes[is_compressed] = CONTROL_COMPRESSED
            codes[lacks_records] = CONTROL_EMPTY
        codes[magic < MAGIC_RECORD_BATCH] = CONTROL_MESSAGE
        return codes

    def _count_representable(self, columns: BatchColumns) -> int:
        """Count the batches before the first batch whose offset an index cannot represent.

        Recovery would fail at this first batch, and `stop` is set to it.
        """
        base_offset = self._rows.key.base_offset
        relative = columns.last_offset - base_offset
        outside = (relative < 0) | (relative > INT32_MAX)
        if not outside.any():
            return columns.rows
        row = int(np.argmax(outside))
        self.stop = ScanStop(
            OFFSET_OVERFLOW,
            int(columns.position_bytes[row]),
            expected=f"a last offset from {base_offset} to {base_offset + INT32_MAX}",
            found=str(columns.last_offset[row]),
            refused=True,
        )
        return row


class RawBatchSource:
    """A `BatchSource` over raw batches, whose concatenation is the content of the ``.log``."""

    def __init__(self, rows: SegmentRows, *, verify_crc: bool) -> None:
        self._rows = rows
        self._bytes: BatchSource = ByteStreamSource(
            self._read_windows(),
            segment_base_offset=rows.key.base_offset,
            verify_crc=verify_crc,
            batches_within_blocks=True,
        )

    @property
    def stop(self) -> ScanStop | None:
        """Why the scan ended before the end of the log; None if it did not."""
        return self._bytes.stop

    @property
    def log_size_bytes(self) -> int:
        """Byte position after the last batch read so far."""
        return self._rows.end_bytes

    def chunks(self) -> Iterator[BatchColumns]:
        """Scan the raw batches; raises like `MetadataSource.chunks`."""
        yield from self._bytes.chunks()
        self._rows.skip_rest()

    def _read_windows(self) -> Iterator[npt.NDArray[np.uint8]]:
        first_row = 0
        for chunk in self._rows:
            position = _read_longs(chunk, POSITION, first_row)
            batch = chunk[BATCH]
            _reject_nulls(batch, BATCH, first_row)
            _, offsets_buffer, data = batch.buffers()
            offsets = np.frombuffer(
                offsets_buffer, np.int64, chunk.num_rows + 1, offset=8 * batch.offset
            )
            _check_positions(position, np.diff(offsets), self._rows)
            start_bytes, end_bytes = int(offsets[0]), int(offsets[-1])
            yield np.frombuffer(data, np.uint8, end_bytes - start_bytes, offset=start_bytes)
            first_row += chunk.num_rows


def _check_positions(positions: Longs, sizes_bytes: Longs, rows: SegmentRows) -> None:
    wrong_size = (sizes_bytes <= 0) | (sizes_bytes > INT32_MAX)
    _reject_rows(f"size_bytes is outside of 1..{INT32_MAX}", wrong_size, positions, sizes_bytes)
    expected = np.empty_like(positions)
    expected[0] = rows.end_bytes
    np.add(positions[:-1], sizes_bytes[:-1], out=expected[1:])
    wrong_rows = np.flatnonzero(positions != expected)
    if wrong_rows.size:
        row = int(wrong_rows[0])
        overlaps = positions[row] < expected[row]
        reported_position = positions[row] if 0 <= positions[row] < expected[row] else expected[row]
        raise InputError(
            "overlapping_positions: the batch overlaps the previous batch"
            if overlaps
            else "position_gap: bytes are missing after the previous batch",
            position_bytes=int(reported_position),
            expected=f"a batch at {expected[row]}",
            found=int(positions[row]),
        )
    rows.end_bytes = int(positions[-1] + sizes_bytes[-1])
    if rows.end_bytes > INT32_MAX:
        raise InputError(
            "the log is larger than the maximum segment size",
            expected=INT32_MAX,
            found=rows.end_bytes,
        )


def _reject_rows(
    message: str, is_wrong: npt.NDArray[np.bool_], positions: Longs, values: Longs
) -> None:
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise InputError(message, position_bytes=int(positions[row]), found=int(values[row]))


def _reject_nulls(column: pa.Array, name: str, first_row: int) -> None:
    if column.null_count:
        row = first_row + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(f"column {name} is null in row {row} of the segment (the first row is 0)")


def _read_longs(chunk: pa.RecordBatch, name: str, first_row: int) -> Longs:
    column = chunk[name]
    _reject_nulls(column, name, first_row)
    return _copy_values(column)


def _read_with_default(chunk: pa.RecordBatch, name: str, default: int | Longs) -> Longs:
    if name not in chunk.schema.names:
        return np.broadcast_to(np.asarray(default, np.int64), chunk.num_rows).copy()
    column = chunk[name]
    if not column.null_count:
        return _copy_values(column)
    is_present = column.is_valid().to_numpy(zero_copy_only=False)
    return np.where(is_present, column.fill_null(0).to_numpy(zero_copy_only=False), default)


def _copy_values(column: pa.Array) -> Longs:
    # Arrow memory is read-only, and numba would compile another kernel for read-only arrays.
    values: Longs = column.to_numpy().copy()
    return values


@dataclass
class SegmentRows:
    """The rows of one segment in order of batch position; can be read only once.

    Attributes
    ----------
    row_count
        Number of rows of the segment when the input was counted.
    rows_read
        Number of rows read so far.
    end_bytes
        Byte position after the last batch read so far.
    """

    key: SegmentKey
    row_count: int
    chunks: Iterator[pa.RecordBatch]
    rows_read: int = field(default=0, init=False)
    end_bytes: int = field(default=0, init=False)
    _last_chunk: pa.RecordBatch | None = field(default=None, init=False, repr=False)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; finally raises `InputError` if their number differs from `row_count`."""
        for chunk in self.chunks:
            self.rows_read += chunk.num_rows
            self._last_chunk = chunk
            yield chunk
        if self.rows_read != self.row_count:
            raise InputError(
                "the input ended early, or changed after its rows were counted",
                position_bytes=self.end_bytes,
                expected=f"{self.row_count} rows",
                found=self.rows_read,
                hint="build again",
            )

    def skip_rest(self) -> None:
        """Read and ignore the remaining rows, and set `end_bytes` to the end of the last batch."""
        for chunk in self.chunks:
            self.rows_read += chunk.num_rows
            self._last_chunk = chunk
        if self._last_chunk is not None:
            self.end_bytes = max(self.end_bytes, _last_end_bytes(self._last_chunk))
            self._last_chunk = None


def split_segments(
    batches: Iterator[pa.RecordBatch], counts: Mapping[SegmentKey, int] | None = None
) -> Iterator[SegmentRows]:
    """Split a stream of rows into segments; the rows of each segment are consecutive.

    The record batches have the canonical columns. If `counts` is given, only its segments are
    yielded, and it has their numbers of rows. Otherwise all segments are yielded, and the column
    `ROW_COUNT` has the number of rows of each segment. Each result must be read before the next one
    is requested, which skips the unread rows.
    """
    for key, segment_batches in groupby(_split_batches(batches), key=_segment_key):
        chunks = iter(segment_batches)
        first_chunk = next(chunks)
        row_count = first_chunk[ROW_COUNT][0].as_py() if counts is None else counts.get(key)
        rows = SegmentRows(key, row_count or 0, chain([first_chunk], chunks))
        if row_count is not None:
            yield rows
        rows.skip_rest()


def _split_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Split record batches where the segment changes, without copying rows."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        starts = run_starts([key_codes(batch, name) for name in KEY_COLUMNS])
        ends = np.append(starts[1:], batch.num_rows)
        for start_row, end_row in zip(starts.tolist(), ends.tolist(), strict=True):
            yield batch.slice(start_row, end_row - start_row)


def _last_end_bytes(chunk: pa.RecordBatch) -> int:
    """Return the end of the last batch, according to its unchecked row."""
    last_row = chunk.slice(chunk.num_rows - 1)
    position = last_row[POSITION][0].as_py() or 0
    if BATCH in last_row.schema.names:
        size = len(last_row[BATCH][0].as_py() or b"")
    else:
        size = last_row["size_bytes"][0].as_py() or 0
    return min(position + size, INT64_MAX)


def _segment_key(batch: pa.RecordBatch) -> SegmentKey:
    return SegmentKey(*(batch[name][0].as_py() for name in KEY_COLUMNS))


#: Total progress units of a build in other processes.
SHARES = 100
#: Progress units of counting rows, as a part of `SHARES`.
COUNT_SHARES = 10
#: Reason codes of segments that were not built from their rows.
NO_SEGMENT = "no_segment"
INPUT_CHANGED = "input_changed"

_ROWS_REMOVED = "the input changed after its rows were counted: this segment has no rows any more"
# More than one bin per worker, so that no worker waits long for the last bin.
_BINS_PER_WORKER = 4


class TableBuilder(Protocol):
    """A function that builds from a Parquet input or a DataFrame, like `build_parquet`."""

    def __call__(
        self,
        workers: Workers,
        source: ParquetInput,
        settings: BuildSettings,
        *,
        listener: BuildListener,
        fail_fast: bool = False,
    ) -> None: ...


def plan_table(source: ParquetInput) -> BuildPlan:
    with ThreadEngine().start("count") as workers:
        segments = count_segments(source, workers).segments
    return BuildPlan.from_sizes(
        [
            (TopicPartition(segment.key.topic, segment.key.partition), 1, segment.size_bytes)
            for segment in segments
        ]
    )


def build_from_table(
    request: BuildRequest,
    source: ParquetInput,
    engine: Engine,
    listener: Listener,
    report: ReportSink | None,
    build_table: TableBuilder | None = None,
) -> BuildResult:
    """Build all segments of a Parquet input, or of a DataFrame if `source` has no files."""
    outputs = INDEX_OUTPUTS if source.missing_for_state else ALL_OUTPUTS
    settings = build_settings(request, request.config.config, outputs, listener)
    check_settings(source, settings)
    with locked_target(request, settings, inputs=request.inputs if source.files else ()) as root:
        settings = replace(settings, target_root=root)
        listener.on_plan(0, 0, ("segment", "segments"))
        with (
            BuildRows(request, settings, listener, report) as rows,
            engine.start(
                "build",
                after_failure=AFTER_FAILURE,
                listener=listener,
                tasks=SHARES,
                inputs=[file.path for file in source.files],
                outputs=[str(root)],
            ) as workers,
        ):
            build_function = build_table or build_parquet
            build_function(workers, source, settings, listener=rows, fail_fast=request.fail_fast)
    return rows.result()


def build_parquet(
    workers: Workers,
    source: ParquetInput,
    settings: BuildSettings,
    *,
    listener: BuildListener,
    fail_fast: bool = False,
) -> None:
    """Build from a Parquet input of `open_parquet`, on threads.

    Every segment is built, even if its files exist. A segment is published only if all its counted
    rows were read. DuckDB sorts rows that are not in order of segment and position. With
    `fail_fast`, no further bin starts after a segment has failed.

    Raises `InputError` if there is no target root, if columns for the requested files are missing,
    or if the input cannot be counted (`count_segments`). Raises `PublishError` if there is no disk
    space for sorting.
    """
    check_settings(source, settings)
    path_listener = PathListener(source.path, listener)
    with sorted_input(count_segments(source, workers), workers) as counted:
        valid_segments, rejected_rows = split_rejected(source, counted.segments)
        bins = list(pack_bins(counted, valid_segments, workers.count * _BINS_PER_WORKER))
        groups = _partition_groups(valid_segments)
        publisher = Publisher(map(len, groups), settings, path_listener, fail_fast=fail_fast)
        for row in rejected_rows:
            publisher.report(row)
        group_numbers = {
            segment.key: number for number, group in enumerate(groups) for segment in group
        }

        def build(bin_: Bin, attempt_id: str) -> None:
            if publisher.stopped.is_set():
                return
            for staged in stage_bin(counted.source, bin_, settings, attempt_id=attempt_id):
                publisher.add(group_numbers[_staged_key(staged)], staged, attempt_id)
                if publisher.stopped.is_set():
                    return

        sizes = [bin_.size_bytes for bin_ in bins]
        publisher.finish(workers.run(bins, build, sizes=sizes, description="build {:,} bins"))


def stage_bin(
    source: ParquetInput, bin_: Bin, settings: BuildSettings, *, attempt_id: str
) -> Iterator[StagedSegment]:
    """Stage each segment of a bin once; segments that were not read get a failed row."""
    unstaged_segments = {segment.key: segment for segment in bin_.segments}
    counts = {segment.key: segment.row_count for segment in bin_.segments}
    failure: KafkaIndexError | None = None

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal failure
        try:
            yield from read_bin(source, bin_)
        except KafkaIndexError as error:
            # Staging converts the error to a failed row of the current segment, and then ends.
            failure = error
            raise

    try:
        for staged in stage_stream(rows(), source, settings, counts=counts, attempt_id=attempt_id):
            # Both entries are removed, because a changed input may contain the segment a second
            # time.
            del unstaged_segments[_staged_key(staged)], counts[_staged_key(staged)]
            yield staged
    except KafkaIndexError as error:
        failure = error
    for segment in unstaged_segments.values():
        file = _segment_file(source, segment.key, settings)
        row = SegmentReport(*segment.key, file.log_path, segment.size_bytes)
        changed_row = row.failed(INPUT_CHANGED, _ROWS_REMOVED)
        yield StagedSegment(file, changed_row if failure is None else row.failed_by(failure))


def stage_stream(
    batches: Iterator[pa.RecordBatch],
    source: ParquetInput,
    settings: BuildSettings,
    *,
    attempt_id: str,
    counts: Mapping[SegmentKey, int] | None = None,
) -> Iterator[StagedSegment]:
    """Stage segments from sorted rows; for `counts`, see `split_segments`."""
    for rows in split_segments(batches, counts):
        batch_source = segment_source(rows, source, verify_crc=settings.verify_crc)
        segment = _segment_file(source, rows.key, settings)
        staged = stage_segment(segment, batch_source, settings, attempt_id)
        rows.skip_rest()
        report = replace(staged.report, log_size_bytes=batch_source.log_size_bytes)
        yield replace(staged, report=report)


def check_settings(source: ParquetInput, settings: BuildSettings) -> None:
    """Reject settings without a target root, or with files for which columns are missing."""
    if settings.target_root is None:
        raise InputError("Parquet input cannot be built in place", hint="give --output")
    if settings.needs_state and source.missing_for_state:
        raise InputError(
            "this batch metadata is sufficient only for index and timeindex",
            path=source.path,
            expected=f"columns {', '.join(source.missing_for_state)} in every file",
            hint="add the columns, build from raw batches, or use --what index,timeindex",
        )


def split_rejected(
    source: ParquetInput, counts: Sequence[SegmentCount]
) -> tuple[list[SegmentCount], list[SegmentReport]]:
    """Return the segments that a broker can have, and failed report rows of the other segments."""
    valid_segments, rejected_rows = [], []
    for segment in counts:
        reason = segment_rejection(segment.key)
        if reason is None:
            valid_segments.append(segment)
        else:
            row = SegmentReport(*segment.key, source.path, segment.size_bytes)
            rejected_rows.append(row.failed(NO_SEGMENT, reason))
    return valid_segments, rejected_rows


@dataclass(frozen=True, slots=True)
class PathListener:
    """Replaces the log path in report rows by the input path, as no ``.log`` files exist."""

    path: str
    listener: BuildListener

    def on_scanned(self, row: SegmentReport) -> None:
        self.listener.on_scanned(replace(row, log_path=self.path))

    def on_report(self, row: SegmentReport) -> None:
        self.listener.on_report(replace(row, log_path=self.path))


def _partition_groups(segments: Sequence[SegmentCount]) -> list[list[SegmentCount]]:
    """Combine complete partitions into groups whose files are published together."""
    partitions: dict[tuple[str, int], list[SegmentCount]] = {}
    for segment in segments:
        partitions.setdefault(segment.key[:2], []).append(segment)
    partition_segments = list(partitions.values())
    groups = group_partitions(
        [len(partition) for partition in partition_segments], max_segments=GROUP_SEGMENTS
    )
    return [list(chain.from_iterable(partition_segments[group])) for group in groups]


def _staged_key(staged: StagedSegment) -> SegmentKey:
    segment = staged.segment
    return SegmentKey(segment.topic, segment.partition, segment.base_offset)


def _segment_file(source: ParquetInput, key: SegmentKey, settings: BuildSettings) -> SegmentFile:
    """Return a placeholder for the ``.log``; its modification time matches no build manifest."""
    folder = TopicPartition(key.topic, key.partition).directory_name
    log_path = os.path.join(source.path, folder, segment_file_name(key.base_offset, LOG_SUFFIX))
    run_mtime_ns = NO_LOG_MTIME_NS - crc32(settings.run_id.encode())
    return SegmentFile(*key, log_path, 0, run_mtime_ns)
