"""Read splits as Arrow record batches: the requested records, or a row per Kafka batch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from functools import partial

import numpy as np
import pyarrow as pa

from kafka_index.core.errors import CorruptLogError
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.records import RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.log.choices import Isolation, OnDamage
from kafka_index.core.log.missing_offsets import ScannedLog
from kafka_index.core.log.scan.segment_scan import batch_rows
from kafka_index.core.query.range_scan import RangeScan
from kafka_index.core.query.read_plan import RecordSplit
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.records.batch_table import BATCH_SCHEMA, WindowBatches
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_decoder import (
    BatchDamage,
    RecordChunk,
    RecordDecoder,
    RecordParts,
)
from kafka_index.core.records.record_table import CORRUPT_RECORD, RecordTable
from kafka_index.core.schema.columns import UnmatchedErrors

_log = logging.getLogger(__name__)

#: Smaller Arrow record batches are combined up to this size, since segments may be small.
_MIN_BATCH_BYTES = 1 << 20
_MANY_RECORDS = 2048

#: Kafka batches as bytes, in the form that `kafka_index.commands.build.parquet_input` accepts.
RAW_SCHEMA = pa.schema([*list(BATCH_SCHEMA)[:4], pa.field("batch", pa.binary(), nullable=False)])


class DamageHandler:
    """Raises or skips a corruption, or returns it as a row, depending on the read settings."""

    def __init__(
        self,
        split: RecordSplit,
        settings: ReadSettings,
        on_skipped: Callable[[CorruptLogError], None] | None = None,
    ) -> None:
        self._split = split
        self._settings = settings
        self._on_skipped = on_skipped or log_skipped_corruption
        self._is_end_reported = False

    @property
    def at_end(self) -> CorruptLogError | None:
        """The corruption that ends the split, None if it was already handled."""
        return None if self._is_end_reported else self._split.damage

    def rows(self, error: CorruptLogError, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield a row for a corruption, or raise or skip it."""
        end_damage = self._split.damage
        if end_damage is not None and (end_damage.path, end_damage.position_bytes) == (
            error.path,
            error.position_bytes,
        ):
            self._is_end_reported = True
        if self._settings.on_damage is OnDamage.FAILFAST:
            raise error
        if self._settings.on_damage is OnDamage.DROP:
            self._on_skipped(error)
            return
        values = {
            "topic": self._split.topic,
            "partition": self._split.partition,
            "position_bytes": error.position_bytes,
            CORRUPT_RECORD: str(error),
        }
        row = {name: values.get(name) for name in schema.names}
        yield pa.RecordBatch.from_pylist([row], schema=schema)


class RecordReader:
    """Reads the records of a split in log order.

    `on_skipped` is called with each skipped corruption (`OnDamage.DROP`); by default, a warning is
    logged.

    Attributes
    ----------
    bytes_read : int
        The number of bytes of logs read so far.
    ranges : tuple of LogRange
        The byte ranges from the start of the last returned Arrow record batch to the end of the
        split.
    last_header : bytes, optional
        The header of the last Kafka batch whose base offset is within the split.
    read_logs : list of ScannedLog
        The log ranges read so far, with the offsets that they contain.
    decode_errors : Counter
        Numbers of keys and values of returned records that did not decode, by error code.
    unmatched_errors : UnmatchedErrors
        Keys and values that did not decode in records that do not satisfy the condition.
    """

    def __init__(
        self,
        split: RecordSplit,
        settings: ReadSettings,
        *,
        on_skipped: Callable[[CorruptLogError], None] | None = None,
    ) -> None:
        self.bytes_read = 0
        self.last_header: bytes | None = None
        self.read_logs: list[ScannedLog] = []
        self.decode_errors: Counter[str] = Counter()
        self.unmatched_errors = UnmatchedErrors()
        self.ranges = self._reached = split.ranges
        self._split = split
        self._settings = settings
        self._schema = settings.record_schema
        self._table = RecordTable(split.topic, split.partition, settings.record_columns)
        self._filter = settings.record_filter
        self._damages = DamageHandler(split, settings, on_skipped)
        self._budget = shared_budget(settings.max_decompressed_bytes)
        self._decoder = RecordDecoder(
            self._budget,
            self._table.parts | (RecordParts.NONE if self._filter is None else self._filter.parts),
            verify_crc=settings.verify_crc,
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow record batches of a few MiB."""
        typed, condition, schema = self._settings.typed, self._settings.where, self._settings.schema
        matcher = None if condition is None else condition.matcher()
        for batch in self._join_small_batches():
            records = batch
            if condition is not None and matcher is not None:
                self.unmatched_errors.begin_batch()
                records = condition.filter(batch, matcher, self.unmatched_errors)
            if len(records) and typed is not None:
                yield from typed.decode(records, self.decode_errors)
            elif len(records):
                yield records.select(schema.names)

    def _join_small_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow record batches with the columns `ReadSettings.record_columns`."""
        small: list[pa.RecordBatch] = []
        size = 0
        for batch in self._read_batches():
            # A batch with many records counts as large: computing the size in bytes would be slow.
            is_large = len(batch) >= _MANY_RECORDS
            if is_large and small:
                yield pa.concat_batches(small)
                small, size = [], 0
            if not small:
                self.ranges = self._reached
            if is_large:
                yield batch
                continue
            small.append(batch)
            size += batch.nbytes
            if size >= _MIN_BATCH_BYTES:
                yield pa.concat_batches(small) if len(small) > 1 else batch
                small, size = [], 0
        if small:
            yield pa.concat_batches(small)

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        for number, log_range in enumerate(self._split.ranges):
            later_ranges = self._split.ranges[number + 1 :]
            path = log_range.segment.log_path
            reported_damage = self._split.reported_damage
            scan = RangeScan(
                log_range,
                verify_crc=self._settings.verify_crc,
                decompressor=self._budget,
                after_damage=reported_damage is not None and reported_damage[0] == path,
            )
            self.read_logs.append(scan.read_log)
            read_before = self.bytes_read
            for window in scan.windows():
                self.bytes_read = read_before + scan.bytes_read
                if isinstance(window, CorruptLogError):
                    yield from self._damages.rows(window, self._schema)
                elif window.batches.rows:
                    start = int(window.batches.position_bytes[0])
                    reached = replace(log_range, start_bytes=start, min_offset=scan.min_offset)
                    self._reached = (reached, *later_ranges)
                    self._track_header(window)
                    yield from self._decode(window, path)
            self.bytes_read = read_before + scan.bytes_read
        if self._damages.at_end is not None:
            yield from self._damages.rows(self._damages.at_end, self._schema)

    def _track_header(self, source: WindowBatches) -> None:
        batches, last_offset = source.batches, self._split.last_offset
        count = int(np.searchsorted(batches.base_offset, last_offset, "right"))
        if count:
            position = int(batches.position_bytes[count - 1]) - source.position_bytes
            self.last_header = source.window[
                position : position + RECORD_BATCH_OVERHEAD_BYTES
            ].tobytes()

    def _decode(self, source: WindowBatches, path: str) -> Iterator[pa.RecordBatch]:
        source = self._select_batches(source)
        positions = source.batches.position_bytes
        for decoded in self._decoder.decode(
            source.window,
            positions - source.position_bytes,
            source.batches.size_bytes,
            partial(self._convert, source=source),
            first_offset=self._split.first_offset,
            last_offset=self._split.last_offset,
        ):
            if isinstance(decoded, BatchDamage):
                error = decoded.error.at(path, int(positions[decoded.batch]))
                yield from self._damages.rows(error, self._schema)
            elif decoded is not None:
                yield self._add_damage_column(decoded)

    def _convert(self, chunk: RecordChunk, source: WindowBatches) -> pa.RecordBatch | None:
        """Return the records of a chunk that match the filter, None if no record matches."""
        if self._filter is not None:
            rows = self._filter.match_rows(chunk)
            if not len(rows):
                return None
            if len(rows) < len(chunk):
                chunk = chunk.select(rows)
        return self._table.convert(chunk, source)

    def _select_batches(self, source: WindowBatches) -> WindowBatches:
        """Return the batches that may contain requested records."""
        batches, split = source.batches, self._split
        is_needed = batches.last_offset >= split.first_offset
        if self._filter is not None:
            is_needed &= self._filter.match_batches(batches)
        if not self._settings.include_control:
            is_needed &= ~batches.is_control
        if split.aborted is not None:
            is_aborted = split.aborted.mask(batches)
            if self._settings.isolation is Isolation.READ_COMMITTED:
                is_needed &= ~is_aborted
            source = replace(source, is_aborted=is_aborted)
        return source if is_needed.all() else source.select(is_needed)

    def _add_damage_column(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._settings.on_damage is not OnDamage.PERMISSIVE:
            return batch
        arrays = [*batch.columns, pa.nulls(len(batch), pa.string())]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def log_skipped_corruption(error: CorruptLogError) -> None:
    _log.warning("skipped: %s", error)


class BatchForm(Enum):
    """How Kafka batches are returned as rows."""

    #: One row of `BATCH_SCHEMA` per batch.
    BATCHES = "batches"
    #: One row of `RAW_SCHEMA` per batch, with the bytes of the batch.
    RAW = "raw"

    @property
    def schema(self) -> pa.Schema:
        return RAW_SCHEMA if self is BatchForm.RAW else BATCH_SCHEMA


class BatchReader:
    """Reads the Kafka batches whose offsets overlap with a split, including control batches."""

    def __init__(self, split: RecordSplit, form: BatchForm, settings: ReadSettings) -> None:
        self._split = split
        self._form = form
        self._settings = settings
        self._damages = DamageHandler(split, settings)
        self.schema = batch_schema(form, settings)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow record batches, in which each row is a Kafka batch."""
        for log_range in self._split.ranges:
            scan = RangeScan(log_range, verify_crc=self._settings.verify_crc)
            for window in scan.windows():
                if isinstance(window, CorruptLogError):
                    yield from self._damages.rows(window, self.schema)
                    continue
                selected = self._select_batches(window)
                if selected.batches.rows:
                    yield self._rows(selected, log_range.segment.base_offset)
        if self._damages.at_end is not None:
            yield from self._damages.rows(self._damages.at_end, self.schema)

    def _select_batches(self, source: WindowBatches) -> WindowBatches:
        batches, split = source.batches, self._split
        is_needed = batches.last_offset >= split.first_offset
        is_needed &= batches.base_offset <= split.last_offset
        if split.first_base_offset is not None:
            is_needed &= batches.base_offset >= split.first_base_offset
        return source.select(is_needed)

    def _rows(self, source: WindowBatches, segment_base_offset: int) -> pa.RecordBatch:
        partition = TopicPartition(self._split.topic, self._split.partition)
        rows = batch_rows(source, partition, segment_base_offset)
        if self._form is BatchForm.RAW:
            columns = rows.columns[:4]
            rows = pa.record_batch([*columns, _batch_bytes(source)], schema=RAW_SCHEMA)
        if CORRUPT_RECORD in self.schema.names:
            columns = [*rows.columns, pa.nulls(len(rows), pa.string())]
            rows = pa.record_batch(columns, schema=self.schema)
        return rows


def batch_schema(form: BatchForm, settings: ReadSettings) -> pa.Schema:
    if settings.on_damage is not OnDamage.PERMISSIVE:
        return form.schema
    # In the row for a corruption, the other columns are null.
    fields = [field.with_nullable(True) for field in form.schema]  # noqa: FBT003
    return pa.schema([*fields, pa.field(CORRUPT_RECORD, pa.string())])


def _batch_bytes(source: WindowBatches) -> pa.Array:
    sizes = source.batches.size_bytes
    starts = source.batches.position_bytes - source.position_bytes
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    data = np.empty(int(ends[-1]), np.uint8)
    # Copy adjacent batches together; usually, all batches are adjacent.
    first_batch = 0
    for end_batch in [
        *(np.flatnonzero(starts[1:] != (starts + sizes)[:-1]) + 1).tolist(),
        len(sizes),
    ]:
        size = int(ends[end_batch] - ends[first_batch])
        data[ends[first_batch] : ends[end_batch]] = source.window[
            starts[first_batch] : starts[first_batch] + size
        ]
        first_batch = end_batch
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
