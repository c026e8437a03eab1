"""Reading Parquet files row group by row group, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_index.build.parquet_schema import ParquetInput
from kafka_index.errors import InputError


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of one of the input's files."""

    file: str
    index: int
    rows: int
    row_bytes: int


def open_file(file: str) -> pq.ParquetFile:
    """Open a Parquet file for bounded reading: pages are streamed, not whole row groups."""
    try:
        return pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read the Parquet file: {error}", path=file) from error


def read_row_group(
    source: ParquetInput, group: RowGroup, names: list[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Stream the columns of a row group in their canonical types; absent ones are nulls.

    Raises
    ------
    InputError
        The file cannot be read, or a value does not fit 64 bits.
    """
    schema = pa.schema([source.schema.field(name) for name in names])
    with open_file(group.file) as parquet:
        present = [name for name in names if name in parquet.schema_arrow.names]
        batches = parquet.iter_batches(
            batch_size=batch_rows, row_groups=[group.index], columns=present, use_threads=False
        )
        try:
            for batch in batches:
                yield _canonical(batch, schema)
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"cannot read the Parquet file: {error}", path=group.file) from error


def _canonical(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for column in schema:
        if column.name in batch.schema.names:
            columns.append(batch[column.name].cast(column.type))
        else:
            columns.append(pa.nulls(batch.num_rows, column.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
