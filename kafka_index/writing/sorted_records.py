"""The records of files in the order of their partitions and offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from kafka_index.storage.local_work import sorted_batches
from kafka_index.writing.import_columns import check_columns
from kafka_index.writing.import_settings import ImportSettings
from kafka_index.writing.table_files import ROW_NUMBER, TableFile, read_tables, table_schema

_BATCH_ROWS = 64 * 1024


def sorted_records(
    files: Sequence[TableFile], settings: ImportSettings, *, threads: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records of files by topic, partition, and offset or the column to order by.

    Raises `InputError` if a file cannot be read, or its columns are not those of records, and
    `PublishError` if there is no room to sort.
    """
    schema = table_schema(files[0], settings.order_by)
    check_columns(schema.remove(len(schema) - 1), settings)
    order = ("topic", "partition", settings.order_by or "offset", ROW_NUMBER)
    names = [name for name in schema.names if name != ROW_NUMBER]
    batches = read_tables(files, schema)
    for batch in sorted_batches(
        batches, schema, order, rows="records", batch_rows=_BATCH_ROWS, threads=threads
    ):
        yield batch.select(names)
