"""Rows of a Parquet input as what the builder reads: one `BatchSource` per segment.

Both engines end here. The rows of a segment come in position order; the sources check what the
builder relies on: no nulls, positions that start at 0 and leave neither gap nor overlap, sizes
and offsets that a log can hold, and as many rows as were counted before. An input that ends early
looks like a finished one (a cancelled Spark task sees that), so the count decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_index.build.parquet_input import (
    BATCH,
    KEY_COLUMNS,
    METADATA_COLUMNS,
    POSITION,
    ROW_COUNT,
    ParquetForm,
    ParquetInput,
)
from kafka_index.build.parquet_order import SegmentKey, key_codes, run_starts
from kafka_index.errors import InputError
from kafka_index.kernels.headers import (
    CONTROL_COMPRESSED,
    CONTROL_EMPTY,
    CONTROL_MESSAGE,
)
from kafka_index.layout.integers import INT32_MAX, INT64_MAX, Longs
from kafka_index.layout.records import (
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
from kafka_index.records.batch_table import (
    CONTROL_NONE,
    OFFSET_OVERFLOW,
    BatchColumns,
    BatchSource,
    ScanStop,
)
from kafka_index.scan.segment_scan import ByteStreamSource

# What stands for an absent value of an optional column.
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
    """Return the source over the rows of one segment."""
    if source.form is ParquetForm.RAW:
        return RawBatchSource(rows, verify_crc=verify_crc)
    return MetadataSource(rows, knows_markers=not source.missing_for_state)


class MetadataSource:
    """A `BatchSource` over the rows of batch metadata of one segment.

    `knows_markers`: a control batch without a control type is one without records.
    """

    def __init__(self, rows: SegmentRows, *, knows_markers: bool) -> None:
        self.stop: ScanStop | None = None
        self._rows = rows
        self._knows_markers = knows_markers

    @property
    def log_size_bytes(self) -> int:
        """End of the last batch met so far."""
        return self._rows.end_bytes

    def chunks(self) -> Iterator[BatchColumns]:
        """Yield the rows as batch columns.

        Raises `InputError` if a log cannot hold a row, or rows are missing.
        """
        for columns in self._columns():
            kept = self._representable(columns)
            if kept:
                yield columns.slice(0, kept)
            if self.stop is not None:
                break
        self._rows.skip_rest()

    def _columns(self) -> Iterator[BatchColumns]:
        first_row = 0
        for chunk in self._rows:
            position = _longs(chunk, POSITION, first_row)
            size, last_offset, max_timestamp = (
                _longs(chunk, name, first_row) for name in METADATA_COLUMNS
            )
            base_offset = _filled(chunk, "base_offset", last_offset)
            _check_positions(position, size, self._rows)
            _refuse("last_offset is negative", last_offset < 0, position, last_offset)
            _refuse("base_offset is negative", base_offset < 0, position, base_offset)
            backwards = base_offset > last_offset
            _refuse("base_offset above last_offset", backwards, position, base_offset)
            optional = {name: _filled(chunk, name, value) for name, value in _DEFAULTS.items()}
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
                **optional,
            )
            first_row += chunk.num_rows

    def _control_codes(self, magic: Longs, attributes: Longs, control_type: Longs) -> Longs:
        """Return control types, and for what has none the codes of a scan of the log."""
        # Negative types are findings of a scan, not for an input to claim.
        codes = np.maximum(control_type, CONTROL_NONE)
        if self._knows_markers:
            is_control = attributes & CONTROL_MASK != 0
            is_compressed = is_control & (attributes & COMPRESSION_MASK != 0)
            lacks_records = is_control & (codes == CONTROL_NONE)
            codes[is_compressed] = CONTROL_COMPRESSED
            codes[lacks_records] = CONTROL_EMPTY
        codes[magic < MAGIC_RECORD_BATCH] = CONTROL_MESSAGE
        return codes

    def _representable(self, columns: BatchColumns) -> int:
        """Return how many batches an index can represent; note where recovery would fail."""
        base_offset = self._rows.key.base_offset
        relative = columns.last_offset - base_offset
        outside = (relative < 0) | (relative > INT32_MAX)
        if not outside.any():
            return columns.rows
        row = int(np.argmax(outside))
        self.stop = ScanStop(
            OFFSET_OVERFLOW,
            int(columns.position_bytes[row]),
            expected=f"last offset {base_offset} to 2^31 - 1 above it",
            found=str(columns.last_offset[row]),
            refused=True,
        )
        return row


class RawBatchSource:
    """A `BatchSource` over raw batches, which together are the bytes of the log."""

    def __init__(self, rows: SegmentRows, *, verify_crc: bool) -> None:
        self._rows = rows
        self._bytes: BatchSource = ByteStreamSource(
            self._windows(),
            segment_base_offset=rows.key.base_offset,
            verify_crc=verify_crc,
            whole_batches=True,
        )

    @property
    def stop(self) -> ScanStop | None:
        """The reason why the scan ended before the log did."""
        return self._bytes.stop

    @property
    def log_size_bytes(self) -> int:
        """End of the last batch met so far."""
        return self._rows.end_bytes

    def chunks(self) -> Iterator[BatchColumns]:
        """Scan the bytes; raises as `MetadataSource.chunks` does."""
        yield from self._bytes.chunks()
        self._rows.skip_rest()

    def _windows(self) -> Iterator[npt.NDArray[np.uint8]]:
        first_row = 0
        for chunk in self._rows:
            position = _longs(chunk, POSITION, first_row)
            batch = chunk[BATCH]
            _refuse_null(batch, BATCH, first_row)
            _, offsets_buffer, data = batch.buffers()
            offsets = np.frombuffer(
                offsets_buffer, np.int64, chunk.num_rows + 1, offset=8 * batch.offset
            )
            _check_positions(position, np.diff(offsets), self._rows)
            start, end = int(offsets[0]), int(offsets[-1])
            yield np.frombuffer(data, np.uint8, end - start, offset=start)
            first_row += chunk.num_rows


def _check_positions(position: Longs, size: Longs, rows: SegmentRows) -> None:
    wrong_size = (size <= 0) | (size > INT32_MAX)
    _refuse(f"size_bytes outside 1..{INT32_MAX}", wrong_size, position, size)
    expected = np.empty_like(position)
    expected[0] = rows.end_bytes
    np.add(position[:-1], size[:-1], out=expected[1:])
    wrong = np.flatnonzero(position != expected)
    if wrong.size:
        row = int(wrong[0])
        overlaps = position[row] < expected[row]
        place = position[row] if 0 <= position[row] < expected[row] else expected[row]
        raise InputError(
            "overlapping_positions" if overlaps else "position_gap",
            position_bytes=int(place),
            expected=f"a batch at {expected[row]}",
            found=int(position[row]),
        )
    rows.end_bytes = int(position[-1] + size[-1])
    if rows.end_bytes > INT32_MAX:
        raise InputError(
            "the log is larger than any broker's", expected=INT32_MAX, found=rows.end_bytes
        )


def _refuse(message: str, wrong: npt.NDArray[np.bool_], position: Longs, value: Longs) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(message, position_bytes=int(position[row]), found=int(value[row]))


def _refuse_null(column: pa.Array, name: str, first_row: int) -> None:
    if column.null_count:
        row = first_row + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(f"null in column {name}, in row {row} of the segment (from 0)")


def _longs(chunk: pa.RecordBatch, name: str, first_row: int) -> Longs:
    column = chunk[name]
    _refuse_null(column, name, first_row)
    return _copied(column)


def _filled(chunk: pa.RecordBatch, name: str, default: int | Longs) -> Longs:
    if name not in chunk.schema.names:
        return np.broadcast_to(np.asarray(default, np.int64), chunk.num_rows).copy()
    column = chunk[name]
    if not column.null_count:
        return _copied(column)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    return np.where(present, column.fill_null(0).to_numpy(zero_copy_only=False), default)


def _copied(column: pa.Array) -> Longs:
    # Arrow's memory cannot be written to; numba compiles a kernel again for each such argument.
    values: Longs = column.to_numpy().copy()
    return values


@dataclass
class SegmentRows:
    """The rows of one segment in position order, readable once.

    `row_count` rows were counted before the work began.
    """

    key: SegmentKey
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
    for key, found in groupby(_runs(batches), key=_key):
        chunks = iter(found)
        head = next(chunks)
        count = head[ROW_COUNT][0].as_py() if counts is None else counts.get(key)
        rows = SegmentRows(key, count or 0, chain([head], chunks))
        if count is not None:
            yield rows
        rows.skip_rest()


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
    return SegmentKey(*(batch[name][0].as_py() for name in KEY_COLUMNS))
