"""Files of records: Parquet and JSON lines, in folders or not, as batches of the same columns.

JSON lines have the members that `core.output.report_file` writes: bytes are base64, times ISO
8601, in UTC where they name no zone, or ms. DuckDB sorts them by partition and offset.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import json

from kafka_index.commands.import_.import_columns import check_columns
from kafka_index.commands.import_.import_settings import ImportSettings
from kafka_index.commands.import_.layout_rows import FileLayout, layout_rows
from kafka_index.core.errors import InputError, ReadError, is_retriable
from kafka_index.core.format.config import parse_integer
from kafka_index.core.format.state_files import MALFORMED
from kafka_index.core.format.times import is_between_milliseconds, parse_iso_time
from kafka_index.core.fs.local_work import sorted_batches
from kafka_index.core.fs.paths import expand_input
from kafka_index.core.fs.registry import directory_exists, input_stream, readable, store_of
from kafka_index.core.records.record_table import RECORD_SCHEMA

#: Where a row comes from: the last column of every batch, ascending over all files.
ROW_NUMBER = "__row"

_PARQUET = (".parquet",)
_JSON = (".jsonl", ".json", ".ndjson")
_PACKED = (".gz", ".bz2", ".zst", ".lz4")
_READ_BYTES = 1 << 20
_BATCH_ROWS = 16 * 1024
_SORTED_BATCH_ROWS = 64 * 1024
_EXACT_IN_FLOATS = 1 << 53
_SHOWN = 60
#: Columns of records, in the types that they are read in. Times are in ms.
_TYPES = {
    "key": pa.large_binary(),
    "value": pa.large_binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "timestampType": pa.int32(),
    "headers": RECORD_SCHEMA.field("headers").type,
    "is_control": pa.bool_(),
}


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of records, and the columns in the names of its folders, such as ``topic=orders``."""

    path: str
    folders: tuple[tuple[str, str], ...] = ()
    #: None for the columns of the product's own export. The digest of an import has it apart.
    layout: FileLayout | None = field(default=None, repr=False)

    @property
    def is_parquet(self) -> bool:
        """Whether it is Parquet with the columns of records; rows otherwise."""
        return self.layout is None and self.path.lower().endswith(_PARQUET)


def list_table_files(inputs: Sequence[str]) -> list[TableFile]:
    """Return the files that inputs name: files, folders of them, and globs of either."""
    found: list[TableFile] = []
    for given in inputs:
        before = len(found)
        for path in expand_input(given):
            if directory_exists(path):
                found += (TableFile(each, _folders(each, path)) for each in _files_below(path))
            elif _is_table(path):
                found.append(TableFile(path))
            else:
                raise InputError(
                    "neither Parquet nor JSON lines",
                    path=path,
                    expected=", ".join((*_PARQUET, *_JSON)),
                )
        if len(found) == before:
            raise InputError("no Parquet and no JSON lines in the folder", path=given)
    return found


def list_files(inputs: Sequence[str]) -> list[str]:
    """Return the paths of all files that inputs name, whatever their endings."""
    found: list[str] = []
    for given in inputs:
        for path in expand_input(given):
            below = _all_below(path) if directory_exists(path) else [path]
            found += (each for each in below if all(map(_is_data, each[len(path) :].split("/"))))
    if not found:
        raise InputError("no file in the folder", path=inputs[0])
    return found


def _is_data(name: str) -> bool:
    """Return whether a name is no mark that Spark or Hadoop puts beside the data."""
    return not name.endswith(".crc") and not name.startswith(
        ("_SUCCESS", "_committed_", "_started_", "_spark_metadata", "_temporary")
    )


def _is_table(path: str) -> bool:
    name = path.lower()
    for ending in _PACKED:
        if name.endswith(ending):
            return name.removesuffix(ending).endswith(_JSON)
    return name.endswith((*_PARQUET, *_JSON))


def _all_below(root: str) -> list[str]:
    return sorted(store_of(root).files_below(root))


def _files_below(root: str) -> list[str]:
    # Names with these marks are not data: _SUCCESS, .part-0.crc, unfinished files.
    return [
        path
        for path in _all_below(root)
        if _is_table(path) and not any(map(_is_hidden, path[len(root) :].split("/")))
    ]


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) and "=" not in name


def _folders(path: str, root: str) -> tuple[tuple[str, str], ...]:
    parts = path[len(root) :].split("/")[:-1]
    pairs = (part.partition("=") for part in parts if "=" in part)
    return tuple((name, unquote(value)) for name, _, value in pairs if name in _TYPES)


def table_schema(file: TableFile, order_by: str | None) -> pa.Schema:
    """Return the columns of a file that are read; all files of an import have to have them."""
    given: dict[str, pa.DataType | None] = {}
    if file.layout is not None:
        given = dict.fromkeys(file.layout.names)
    elif file.is_parquet:
        with errors_of(file):
            given = {field.name: field.type for field in pq.read_schema(readable(file.path))}
    else:
        first = next(_json_rows(file), {})
        given = {name: None if name in _TYPES else pa.array([first[name]]).type for name in first}
    names = dict.fromkeys((*given, *(name for name, _ in file.folders)))
    fields = [
        pa.field(name, _TYPES.get(name) or given[name])
        for name in names
        if name in _TYPES or name not in RECORD_SCHEMA.names or name == order_by
    ]
    return pa.schema([*fields, pa.field(ROW_NUMBER, pa.int64())])


def read_tables(files: Sequence[TableFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files; raises `InputError` if one cannot be read, or lacks a column."""
    row = 0
    for file in files:
        batches = _parquet_batches(file, schema) if file.is_parquet else _json_batches(file, schema)
        for columns, count in batches:
            numbers = pa.array(range(row, row + count), pa.int64())
            yield pa.RecordBatch.from_arrays([*columns, numbers], schema=schema)
            row += count


def _parquet_batches(file: TableFile, schema: pa.Schema) -> Iterator[tuple[list[pa.Array], int]]:
    folders = dict(file.folders)
    wanted = [name for name in schema.names if name != ROW_NUMBER]
    with errors_of(file), pq.ParquetFile(readable(file.path)) as parquet:
        inside = [name for name in wanted if name in parquet.schema_arrow.names]
        for name in wanted:
            if name not in inside and name not in folders:
                raise InputError(f"the file has no column {name}", path=file.path)
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=inside):
            yield (
                [
                    _converted(batch.column(name), schema.field(name))
                    if name in inside
                    else _repeated(folders[name], schema.field(name), len(batch))
                    for name in wanted
                ],
                len(batch),
            )


def _converted(column: pa.Array, field: pa.Field) -> pa.Array:
    kind = field.type
    if pa.types.is_timestamp(column.type) and pa.types.is_int64(kind):
        zone = column.type.tz
        return column.cast(pa.timestamp("ms", zone), safe=False).view(pa.int64())
    if pa.types.is_integer(kind) and not pa.types.is_integer(column.type):
        return _json_column(column.to_pylist(), field)
    return column.cast(kind)


def _repeated(text: str, field: pa.Field, count: int) -> pa.Array:
    kind = field.type
    if pa.types.is_integer(kind):
        return pa.repeat(_json_column([text], field)[0], count)
    return pa.repeat(pa.scalar(text).cast(kind), count)


def _json_batches(file: TableFile, schema: pa.Schema) -> Iterator[tuple[list[pa.Array], int]]:
    wanted = [name for name in schema.names if name != ROW_NUMBER]
    folders = dict(file.folders)
    rows: list[dict[str, Any]] = []

    def columns() -> tuple[list[pa.Array], int]:
        arrays = [
            _json_column([row.get(name, folders.get(name)) for row in rows], schema.field(name))
            for name in wanted
        ]
        return arrays, len(rows)

    passed_over = (name for name in RECORD_SCHEMA.names if name not in _TYPES)
    with errors_of(file):
        for row in _json_rows(file, frozenset((*wanted, *passed_over))):
            rows.append(row)
            if len(rows) == _BATCH_ROWS:
                yield columns()
                rows.clear()
        if rows:
            yield columns()


def _json_rows(file: TableFile, names: frozenset[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of JSON lines; raises `InputError` if one has a column besides those named."""
    if file.layout is not None:
        yield from layout_rows(file.path, file.layout)
        return
    with errors_of(file), input_stream(file.path) as stream:
        for number, line in enumerate(io.BufferedReader(stream, _READ_BYTES), start=1):
            if not line.strip():
                continue
            try:
                row = json.decode(line)
            except MALFORMED as error:
                raise InputError(f"line {number} is not JSON: {error}", path=file.path) from error
            if not isinstance(row, dict):
                raise InputError(f"line {number} is not an object", path=file.path)
            if names is not None and not row.keys() <= names:
                raise InputError(
                    f"line {number} has a column that the first row of all does not have",
                    path=file.path,
                    found=", ".join(sorted(row.keys() - names)),
                    hint="write null in the first row, or name the layout of the files",
                )
            yield row


def _json_column(values: list[Any], field: pa.Field) -> pa.Array:
    if pa.types.is_large_binary(field.type):
        values = [_bytes(value) for value in values]
    elif field.name == "timestamp":
        values = [_milliseconds(value, field) for value in values]
    elif field.name in _TYPES and pa.types.is_integer(field.type):
        values = [_integer(value, field) for value in values]
    elif field.name == "headers":
        values = [
            None
            if headers is None
            else [{"key": each["key"], "value": _bytes(each.get("value"))} for each in headers]
            for headers in values
        ]
    return pa.array(values, field.type)


def _bytes(value: str | bytes | None) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return base64.b64decode(value, validate=True)


def _integer(value: object, field: pa.Field) -> int | None:
    """Return a value as an integer if it is one exactly, in whatever type; None for null."""
    number = None
    if isinstance(value, str):
        number = parse_integer(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, float | Decimal):
        # Beyond, a float may stand for several integers.
        is_exact = isinstance(value, Decimal) or abs(value) <= _EXACT_IN_FLOATS
        number = int(value) if is_exact and value == value // 1 else None
    bound = 1 << (field.type.bit_width - 1)
    if value is not None and (number is None or not -bound <= number < bound):
        raise ValueError(
            f"{field.name} {repr(value)[:_SHOWN]} is not an integer of {field.type.bit_width} bits"
        )
    return number


def _milliseconds(value: object, field: pa.Field) -> int | None:
    # An export has milliseconds in digits where a time is no day of the calendar.
    if not isinstance(value, str) or parse_integer(value) is not None:
        return _integer(value, field)
    moment = parse_iso_time(value)
    if moment is None:
        raise ValueError(
            f"timestamp {value[:_SHOWN]!r} is neither a time of ISO 8601 nor milliseconds"
        )
    # Without a fraction of a millisecond, as in Parquet.
    return moment - is_between_milliseconds(value)


@contextmanager
def errors_of(file: TableFile) -> Iterator[None]:
    """Raise InputError where a file is at fault."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError("there is no such file", path=file.path) from error
    except OSError as error:
        kind = ReadError if is_retriable(error) else InputError
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise kind(f"cannot read the table: {reason}", path=file.path) from error
    except (pa.ArrowException, binascii.Error, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read the table: {error}", path=file.path) from error


def sorted_records(
    files: Sequence[TableFile], settings: ImportSettings, *, threads: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records of files by topic, partition, and offset or the column to order by."""
    schema = table_schema(files[0], settings.order_by)
    check_columns(schema.remove(len(schema) - 1), settings)
    order = ("topic", "partition", settings.order_by or "offset", ROW_NUMBER)
    names = [name for name in schema.names if name != ROW_NUMBER]
    batches = read_tables(files, schema)
    for batch in sorted_batches(
        batches, schema, order, rows="records", batch_rows=_SORTED_BATCH_ROWS, threads=threads
    ):
        yield batch.select(names)
