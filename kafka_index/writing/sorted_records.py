"""The records of files in the order of their partitions and offsets, sorted by DuckDB.

DuckDB sorts on disk when its memory is full, so that the size of a table does not matter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

import pyarrow as pa

from kafka_index.errors import InputError, PublishError
from kafka_index.storage import publish_error, workspace
from kafka_index.writing.import_columns import check_columns
from kafka_index.writing.import_settings import ImportSettings
from kafka_index.writing.table_files import ROW_NUMBER, TableFile, read_tables, table_schema

_BATCH_ROWS = 64 * 1024
_MEMORY = "1GB"
_NEEDED_FILES = 16


def sorted_records(
    files: Sequence[TableFile], settings: ImportSettings, *, threads: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records of files by topic, partition, and offset or the column to order by.

    Raises `InputError` if a file cannot be read, or its columns are not those of records, and
    `PublishError` if there is no room to sort.
    """
    # It takes a while, and only imports need it.
    import duckdb  # noqa: PLC0415

    folder = os.path.join(workspace(), "sort")
    _refuse_few_files(folder)
    schema = table_schema(files[0], settings.order_by)
    check_columns(schema.remove(len(schema) - 1), settings)
    by = "offset" if settings.order_by is None else settings.order_by.replace('"', '""')
    options: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": _MEMORY,
        "threads": threads,
        "temp_directory": folder,
    }
    tables = _Tables(read_tables(files, schema))
    reader = pa.RecordBatchReader.from_batches(schema, tables)
    with closing(duckdb.connect(":memory:", config=options)) as connection:
        connection.register("records", reader)
        query = f'SELECT * FROM records ORDER BY topic, "partition", "{by}", {ROW_NUMBER}'  # noqa: S608, because the name is quoted
        try:
            found = connection.sql(query).to_arrow_reader(_BATCH_ROWS)
            names = [name for name in schema.names if name != ROW_NUMBER]
            for batch in found:
                tables.check()
                yield batch.select(names)
            tables.check()
        except duckdb.OutOfMemoryException as error:
            raise PublishError(
                f"cannot sort the records: {error}", path=folder, hint="give TMPDIR more room"
            ) from error
        except (duckdb.IOException, duckdb.FatalException, duckdb.InternalException) as error:
            raise PublishError(
                f"cannot sort the records: {error}", path=folder, hint="check TMPDIR and its disk"
            ) from error
        except duckdb.Error as error:
            raise InputError(f"cannot sort the records: {error}") from error


def _refuse_few_files(folder: str) -> None:
    """Raise PublishError where few files can be opened: DuckDB would abort the process."""
    with ExitStack() as stack:
        try:
            for _ in range(_NEEDED_FILES):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise publish_error(error, folder, "sort the records") from error


class _Tables:
    """The batches that DuckDB sorts, up to the first error, which never passes through DuckDB."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except BaseException as error:  # noqa: BLE001, because what it is decides `check`
            self._error = error

    def check(self) -> None:
        """Raise the error that has ended the batches, if there was one."""
        if self._error is not None:
            raise self._error
