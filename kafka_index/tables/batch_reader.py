"""Batches instead of records as rows: their headers, or their bytes as builds read them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import numpy as np
import pyarrow as pa

from kafka_index.errors import CorruptLogError
from kafka_index.layout.names import TopicPartition
from kafka_index.records.batch_table import BATCH_SCHEMA, BatchColumns
from kafka_index.records.record_table import CORRUPT_RECORD, WindowBatches
from kafka_index.scan.batches import batch_rows
from kafka_index.tables.range_scan import RangeScan
from kafka_index.tables.read_plan import RecordSplit
from kafka_index.tables.record_reader import Damages
from kafka_index.tables.settings import OnDamage, ReadSettings

#: The form of raw batches that `kafka_index.build.parquet_input` takes.
RAW_SCHEMA = pa.schema([*list(BATCH_SCHEMA)[:4], pa.field("batch", pa.binary(), nullable=False)])


class BatchForm(Enum):
    """The form of the rows."""

    #: A row of `BATCH_SCHEMA` for each batch.
    BATCHES = "batches"
    #: A row of `RAW_SCHEMA`: its place and its bytes.
    RAW = "raw"

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return RAW_SCHEMA if self is BatchForm.RAW else BATCH_SCHEMA


class BatchReader:
    """Reads the batches of a split that have offsets between its bounds, control batches too."""

    def __init__(self, split: RecordSplit, form: BatchForm, settings: ReadSettings) -> None:
        self._split = split
        self._form = form
        self._settings = settings
        self._damages = Damages(split, settings)
        self.schema = batch_schema(form, settings)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches, one or more for each window of the log.

        Raises `CorruptLogError` at a damaged batch if the settings say so.
        """
        for part in self._split.ranges:
            scan = RangeScan(part, verify_crc=self._settings.verify_crc)
            for found in scan.windows():
                if isinstance(found, CorruptLogError):
                    yield from self._damage_rows(found)
                    continue
                wanted = self._wanted(found)
                if wanted.batches.rows:
                    yield self._rows(wanted, part.segment.base_offset)
        if self._damages.at_end is not None:
            yield from self._damage_rows(self._damages.at_end)

    def _damage_rows(self, error: CorruptLogError) -> Iterator[pa.RecordBatch]:
        row = self._damages.row(error, self.schema)
        if row is not None:
            yield row

    def _wanted(self, source: WindowBatches) -> WindowBatches:
        batches, split = source.batches, self._split
        kept = batches.last_offset >= split.first_offset
        kept &= batches.base_offset <= split.last_offset
        if split.first_base_offset is not None:
            kept &= batches.base_offset >= split.first_base_offset
        columns = BatchColumns(*(column[kept] for column in batches))
        return WindowBatches(source.window, source.position_bytes, columns)

    def _rows(self, source: WindowBatches, segment_base_offset: int) -> pa.RecordBatch:
        partition = TopicPartition(self._split.topic, self._split.partition)
        rows = batch_rows(source, partition, segment_base_offset)
        if self._form is BatchForm.RAW:
            columns = rows.columns[:4]
            rows = pa.record_batch([*columns, _bytes_of(source)], schema=RAW_SCHEMA)
        if CORRUPT_RECORD in self.schema.names:
            columns = [*rows.columns, pa.nulls(len(rows), pa.string())]
            rows = pa.record_batch(columns, schema=self.schema)
        return rows


def batch_schema(form: BatchForm, settings: ReadSettings) -> pa.Schema:
    """Return the columns of batches as rows."""
    if settings.on_damage is not OnDamage.PERMISSIVE:
        return form.schema
    # The row of a damage has nothing but its place.
    fields = [field.with_nullable(True) for field in form.schema]  # noqa: FBT003
    return pa.schema([*fields, pa.field(CORRUPT_RECORD, pa.string())])


def _bytes_of(source: WindowBatches) -> pa.Array:
    """Return the bytes of each batch."""
    sizes = source.batches.size_bytes
    starts = source.batches.position_bytes - source.position_bytes
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    data = np.empty(int(ends[-1]), np.uint8)
    # Successive batches are copied together; mostly that is all of them.
    first = 0
    for cut in [*(np.flatnonzero(starts[1:] != (starts + sizes)[:-1]) + 1).tolist(), len(sizes)]:
        size = int(ends[cut] - ends[first])
        data[ends[first] : ends[cut]] = source.window[starts[first] : starts[first] + size]
        first = cut
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
