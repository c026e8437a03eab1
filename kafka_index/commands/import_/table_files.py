"""Files of records: Parquet, JSON lines and the files of other tools, as batches of columns.

JSON lines have the members that `core.output.report_file` writes: bytes are base64; times
are ISO 8601, in UTC without a zone, or ms. DuckDB sorts the records by partition and offset.

Sources for the files of other tools: Spark's ``kafka`` source; kcat's ``json.c``; Confluent's
``RecordViews`` and ``JsonRecordWriterProvider``; Aiven's ``OutputFieldBuilder``,
``SinkSchemaBuilder`` and ``OutputFieldPlainWriter`` classes.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import IO, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import json

from kafka_index.commands.import_.import_columns import check_columns
from kafka_index.commands.import_.request import ImportSettings
from kafka_index.core.errors import (
    CorruptLogError,
    InputError,
    ReadError,
    TooLargeError,
    is_retriable,
)
from kafka_index.core.format.config import parse_integer
from kafka_index.core.format.records import NO_TIMESTAMP
from kafka_index.core.format.state_files import MALFORMED
from kafka_index.core.format.times import is_between_milliseconds, parse_iso_time
from kafka_index.core.fs.local_work import sorted_batches
from kafka_index.core.fs.paths import expand_input
from kafka_index.core.fs.registry import directory_exists, input_stream, readable, store_of
from kafka_index.core.records.decompression import read_snappy
from kafka_index.core.records.record_table import RECORD_SCHEMA

#: The fields of a record that a file can contain.
FIELDS = ("key", "value", "offset", "timestamp", "headers")

_AVRO_MAGIC, _PARQUET_MAGIC = b"Obj\x01", b"PAR1"


_MAX_SNAPPY_BYTES = 1 << 31
_TIMESTAMP_TYPES = {"create": 0, "logappend": 1, "unknown": -1}
_KCAT_FIELDS = frozenset(("tstype", "ts", "broker", "payload"))
_NO_RECORD = object()


class TextEncoding(StrEnum):
    """The encoding of bytes as text in a file."""

    STRING = "string"
    BASE64 = "bytes"
    JSON = "json"


class FieldEncodings(NamedTuple):
    """The encoding of each field; None if no encoding is given."""

    key: TextEncoding | None = None
    value: TextEncoding | None = None
    headers: TextEncoding | None = None


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The layout of a file, and the contents of its name; small and picklable.

    Attributes
    ----------
    kind : str
        The name of the layout.
    names : tuple of str
        The columns of the rows.
    start_offset : int
        The offset of the first record.
    end_offset : int, optional
        The start offset of the next file; None for the last file.
    is_packed : bool
        The user has confirmed that no offsets are missing (``offsets=packed``).
    counts_offsets : bool
        The file has no offsets, so they are counted from `start_offset`.
    keys, headers : str, optional
        The paths of the files of keys and headers.
    """

    kind: str
    names: tuple[str, ...]
    texts: FieldEncodings
    topic: str | None = None
    partition: int = 0
    start_offset: int = 0
    end_offset: int | None = None
    is_packed: bool = False
    counts_offsets: bool = True
    csv_fields: tuple[str, ...] = ()
    csv_base64: bool = True
    keys: str | None = None
    headers: str | None = None


def layout_rows(path: str, layout: FileLayout) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, with keys and values as bytes.

    Raises `InputError` if the file has unknown fields, a text of unknown encoding, or more or fewer
    records than offsets.
    """
    if layout.kind == "confluent-s3":
        rows = _confluent_rows(path, layout)
    elif layout.kind == "kcat":
        rows = (_kcat_row(record, path, layout) for record in _read_records(path))
    else:
        rows = _field_rows(path, layout)
    return rows if layout.topic is None else _add_offsets(rows, path, layout)


def column_names(path: str) -> tuple[str, ...]:
    """Return the names of the columns of a file; none if its records have no columns."""
    first_record = None
    # Lines that are not JSON have no columns. An unreadable Avro or Parquet file is an error.
    with nullcontext() if is_avro_or_parquet(path) else suppress(InputError):
        first_record = next(_read_records(path), None)
    return tuple(first_record) if isinstance(first_record, dict) else ()


def is_avro_or_parquet(path: str) -> bool:
    """Return whether a file is Avro or Parquet."""
    stream, magic = _open_decompressed(path)
    stream.close()
    return magic in (_AVRO_MAGIC, _PARQUET_MAGIC)


def _add_offsets(
    rows: Iterator[dict[str, Any]], path: str, layout: FileLayout
) -> Iterator[dict[str, Any]]:
    offset, end_offset = layout.start_offset, layout.end_offset
    for row in rows:
        row["topic"], row["partition"] = layout.topic, layout.partition
        if layout.counts_offsets:
            if offset == end_offset:
                raise InputError(
                    "the file has more records than there are offsets before the next file. The "
                    "files do not contain the offsets of their records",
                    path=path,
                    expected=f"{end_offset - layout.start_offset} records",
                )
            row["offset"] = offset
            offset += 1
        yield row
    if (
        layout.counts_offsets
        and not layout.is_packed
        and end_offset is not None
        and offset < end_offset
    ):
        raise InputError(
            "offsets are missing between the last record of the file and the next file, and the "
            "files do not show where",
            path=path,
            expected=f"{end_offset - layout.start_offset} records",
            found=offset - layout.start_offset,
            hint="set the property offsets=packed to assign consecutive offsets, starting at the "
            "offset in each file name",
        )


def _confluent_rows(path: str, layout: FileLayout) -> Iterator[dict[str, Any]]:
    encodings = layout.texts
    side_files = [
        (name, side_path)
        for name, side_path in (("keys", layout.keys), ("headers", layout.headers))
        if side_path
    ]
    values = _read_values(path, encodings.value)
    side_records: list[Iterator[Any]] = [
        _read_values(side_path, encodings.key, wrapped_in="key")
        if name == "keys"
        else _read_records(side_path)
        for name, side_path in side_files
    ]
    for value in values:
        row: dict[str, Any] = {"value": value}
        for (name, side_path), records in zip(side_files, side_records, strict=True):
            record = next(records, _NO_RECORD)
            if record is _NO_RECORD:
                raise InputError(
                    "the file has fewer records than the file of values", path=side_path
                )
            if name == "keys":
                row["key"] = record
            else:
                row["headers"] = _convert_headers(record, side_path, encodings.headers)
        yield row
    for (_, side_path), records in zip(side_files, side_records, strict=True):
        if next(records, _NO_RECORD) is not _NO_RECORD:
            raise InputError("the file has more records than the file of values", path=side_path)


def _read_values(
    path: str, encoding: TextEncoding | None, wrapped_in: str | None = None
) -> Iterator[bytes | None]:
    """Yield the bytes of each record of a file. Lines that are not JSON are unchanged."""
    name = "key" if wrapped_in else "value"
    stream, magic = _open_decompressed(path)
    if magic not in (_AVRO_MAGIC, _PARQUET_MAGIC):
        is_json = ".json" in path.rpartition("/")[2].lower()
        for line_number, line in enumerate(stream, start=1):
            content = line.removesuffix(b"\n")
            if not is_json:
                yield content
            elif encoding is TextEncoding.JSON:
                yield None if _decode_json(content, path, line_number) is None else content
            else:
                yield _record_bytes(_decode_json(content, path, line_number), path, name, encoding)
        return
    stream.close()
    for record in _read_records(path):
        if wrapped_in and isinstance(record, dict) and set(record) == {wrapped_in}:
            record = record[wrapped_in]  # noqa: PLW2901, Parquet has only rows of columns
        yield _record_bytes(record, path, name, encoding)


def _kcat_row(record: Any, path: str, layout: FileLayout) -> dict[str, Any]:
    if not isinstance(record, dict) or "payload" not in record:
        raise InputError("the line is not from kcat -J", path=path, found=_shorten(record))
    unknown = set(record) - set(layout.names) - _KCAT_FIELDS
    if unknown:
        raise InputError(
            "the record has an unknown field", path=path, found=", ".join(sorted(unknown))
        )
    timestamp_type = record.get("tstype", "unknown")
    if timestamp_type not in _TIMESTAMP_TYPES:
        raise InputError(
            "the record has an unknown tstype",
            path=path,
            expected=", ".join(_TIMESTAMP_TYPES),
            found=timestamp_type,
        )
    flat = record.get("headers") or []
    if len(flat) % 2:
        raise InputError(
            "the headers are not pairs of keys and values", path=path, found=_shorten(flat)
        )
    pairs = [{"key": key, "value": value} for key, value in zip(flat[::2], flat[1::2], strict=True)]
    return {
        "topic": record.get("topic"),
        "partition": record.get("partition"),
        "offset": record.get("offset"),
        "timestamp": record.get("ts", NO_TIMESTAMP),
        "timestampType": _TIMESTAMP_TYPES[timestamp_type],
        "key": _record_bytes(record.get("key"), path, "key", layout.texts.key),
        "value": _record_bytes(record["payload"], path, "value", layout.texts.value),
        "headers": _convert_headers(pairs, path, layout.texts.headers),
    }


def _field_rows(path: str, layout: FileLayout) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file whose records have a field for each column."""
    encodings, names = layout.texts, set(layout.names)
    derived_fields = {"topic", "partition", *(["offset"] if layout.counts_offsets else [])}
    is_spark = layout.topic is None
    required_fields = (
        {"topic", "partition", "offset", "timestamp"} if is_spark else names - derived_fields
    )
    for record in _csv_records(path, layout) if layout.csv_fields else _read_records(path):
        if not isinstance(record, dict):
            raise InputError("a record has no fields", path=path, found=_shorten(record))
        if not required_fields <= set(record) <= names:
            raise InputError(
                "a record has other fields than the layout",
                path=path,
                expected=", ".join(sorted(required_fields)),
                found=", ".join(record),
            )
        row = dict(record)
        for name, encoding in (("key", encodings.key), ("value", encodings.value)):
            if name in row:
                row[name] = _record_bytes(row[name], path, name, encoding)
        if "headers" in row:
            row["headers"] = _convert_headers(row["headers"], path, encodings.headers)
        if not is_spark and row.get("timestamp", 0) is None:
            row["timestamp"] = NO_TIMESTAMP
        yield row


def _csv_records(path: str, layout: FileLayout) -> Iterator[dict[str, Any]]:
    """Yield the records of Aiven's CSV: bytes are base64 or plain, an empty cell is null."""
    fields = layout.csv_fields
    # Only a plain value, without base64, can contain commas.
    value_index = fields.index("value") if "value" in fields and not layout.csv_base64 else None
    for line_number, line in enumerate(_open_decompressed(path)[0], start=1):
        cells = line.removesuffix(b"\n").split(b",")
        if value_index is not None and len(cells) > len(fields):
            value_end = len(cells) - (len(fields) - value_index - 1)
            cells[value_index:value_end] = [b",".join(cells[value_index:value_end])]
        if len(cells) != len(fields):
            raise InputError(
                f"line {line_number} does not have the fields {', '.join(fields)}",
                path=path,
                expected=len(fields),
                found=len(cells),
            )
        row: dict[str, Any] = {}
        for name, cell in zip(fields, cells, strict=True):
            if name in ("key", "value"):
                is_plain = name == "value" and not layout.csv_base64
                row[name] = (cell if is_plain else _decode_base64(cell)) if cell else None
            elif name == "headers":
                pairs = (pair.split(b":") for pair in cell.split(b";") if pair)
                row[name] = [
                    {"key": _decode_base64(key).decode(), "value": _decode_base64(value)}
                    for key, value in pairs
                ]
            else:
                row[name] = cell.decode() or None
        yield row


def _decode_base64(encoded: bytes) -> bytes:
    return base64.b64decode(encoded, validate=True)


def _convert_headers(
    headers: Any, path: str, encoding: TextEncoding | None
) -> list[dict[str, Any]] | None:
    """Convert headers, which are a list, a map, or a record that contains a list or map."""
    if (
        isinstance(headers, dict)
        and set(headers) == {"headers"}
        and not isinstance(headers["headers"], str)
    ):
        headers = headers["headers"]
    if headers is None:
        return None
    if isinstance(headers, dict):
        headers = [{"key": key, "value": value} for key, value in headers.items()]
    pairs = [
        header if isinstance(header, dict) else dict(zip(("key", "value"), header, strict=True))
        for header in headers
    ]
    return [
        {
            "key": header["key"],
            "value": _record_bytes(header.get("value"), path, "header", encoding),
        }
        for header in pairs
    ]


def _record_bytes(value: Any, path: str, name: str, encoding: TextEncoding | None) -> bytes | None:
    """Convert a value to bytes; a text is decoded by its encoding."""
    if value is None or isinstance(value, bytes):
        return value
    if encoding is TextEncoding.JSON:
        return json.encode(value)
    if isinstance(value, str) and encoding is TextEncoding.STRING:
        return value.encode()
    if isinstance(value, str) and encoding is TextEncoding.BASE64:
        return _decode_base64(value.encode())
    if isinstance(value, str):
        raise InputError(
            f"the encoding of a {name} is not known: its text may be UTF-8, base64 or JSON",
            path=path,
            found=_shorten(value),
            hint=f"give the property {name}.converter: string, bytes or json",
        )
    raise InputError(
        f"the file does not contain the bytes of a {name}, which is neither text nor bytes",
        path=path,
        found=_shorten(value),
        hint=f"give the property {name}.converter=json to write JSON instead",
    )


def _shorten(value: Any) -> str:
    return repr(value)[:_MAX_SHOWN_LENGTH]


def _decode_json(line: bytes, path: str, line_number: int) -> Any:
    try:
        return json.decode(line)
    except MALFORMED as error:
        raise InputError(f"line {line_number} is not JSON: {error}", path=path) from error


def _read_records(path: str) -> Iterator[Any]:
    """Yield the records of an Avro or Parquet file, of JSON lines, or of a JSON array."""
    stream, magic = _open_decompressed(path)
    with stream:
        if magic == _PARQUET_MAGIC:
            is_packed = path.lower().endswith((".gz", ".snappy", ".zst"))
            source = pa.BufferReader(stream.read()) if is_packed else readable(path)
            with pq.ParquetFile(source) as parquet:
                for batch in parquet.iter_batches(_BATCH_ROWS):
                    yield from _convert_timestamps(batch).to_pylist()
        elif magic == _AVRO_MAGIC:
            yield from _avro_records(stream, path)
        elif magic[:1] == b"[":
            # Aiven's format "json" is one array.
            yield from _decode_json(stream.read(), path, 1)
        else:
            for line_number, line in enumerate(stream, start=1):
                if line.strip():
                    yield _decode_json(line, path, line_number)


def _convert_timestamps(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert the column timestamp to ms."""
    column_index = batch.schema.get_field_index("timestamp")
    if column_index < 0 or not pa.types.is_timestamp(batch.schema.field(column_index).type):
        return batch
    zone = batch.schema.field(column_index).type.tz
    column = batch.column(column_index).cast(pa.timestamp("ms", zone), safe=False).view(pa.int64())
    return batch.set_column(column_index, "timestamp", column)


def _avro_records(stream: IO[bytes], path: str) -> Iterator[Any]:
    try:
        import fastavro  # noqa: PLC0415, of the extra write
    except ImportError as error:
        raise InputError(
            "the library for Avro files is not installed (fastavro)",
            path=path,
            hint="pip install 'kafka-index[write]'",
        ) from error
    try:
        for record in fastavro.reader(stream):
            if isinstance(record, dict) and hasattr(record.get("timestamp"), "timestamp"):
                record["timestamp"] = record["timestamp"].isoformat()
            yield record
    except (EOFError, zlib.error, fastavro.schema.SchemaParseException) as error:
        raise InputError(
            f"cannot read the Avro file: {str(error) or 'it is truncated'}", path=path
        ) from error


def _open_decompressed(path: str) -> tuple[io.BufferedReader, bytes]:
    """Open a file, and decompress it by the suffix of its name; also return its first bytes."""
    stream = io.BufferedReader(input_stream(path))
    if path.lower().endswith(".snappy"):
        with stream:
            compressed_bytes = memoryview(stream.read())
        try:
            content = b"".join(read_snappy(compressed_bytes, _MAX_SNAPPY_BYTES, is_whole=True))
        except (CorruptLogError, TooLargeError) as error:
            raise InputError(error.message, path=path) from error
        stream = io.BufferedReader(io.BytesIO(content))
    return stream, stream.peek(len(_AVRO_MAGIC))[: len(_AVRO_MAGIC)]


#: Name of the last column of every batch: row numbers, ascending over all files.
ROW_NUMBER = "__row"

_PARQUET = (".parquet",)
_JSON = (".jsonl", ".json", ".ndjson")
_PACKED = (".gz", ".bz2", ".zst", ".lz4")
_READ_BYTES = 1 << 20
_BATCH_ROWS = 16 * 1024
_SORTED_BATCH_ROWS = 64 * 1024
_EXACT_IN_FLOATS = 1 << 53
_MAX_SHOWN_LENGTH = 60
#: The types in which columns of records are read. Times are in ms.
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
    #: None for files of `export`. The digest of an import includes it separately.
    layout: FileLayout | None = field(default=None, repr=False)

    @property
    def is_parquet(self) -> bool:
        """Whether the file is Parquet with the columns of records. Others are read row by row."""
        return self.layout is None and self.path.lower().endswith(_PARQUET)


def list_table_files(inputs: Sequence[str]) -> list[TableFile]:
    """List the files of inputs, which are files, folders, or globs of either."""
    files: list[TableFile] = []
    for input_path in inputs:
        previous_count = len(files)
        for path in expand_input(input_path):
            if directory_exists(path):
                files += (
                    TableFile(file_path, _folder_columns(file_path, path))
                    for file_path in _list_tables_below(path)
                )
            elif _is_table(path):
                files.append(TableFile(path))
            else:
                raise InputError(
                    "the file is neither Parquet nor JSON lines",
                    path=path,
                    expected=", ".join((*_PARQUET, *_JSON)),
                )
        if len(files) == previous_count:
            raise InputError(
                "the folder contains neither Parquet files nor JSON lines", path=input_path
            )
    return files


def list_files(inputs: Sequence[str]) -> list[str]:
    """List the paths of all files of inputs, with any suffix."""
    paths: list[str] = []
    for input_path in inputs:
        for path in expand_input(input_path):
            file_paths = _list_files_below(path) if directory_exists(path) else [path]
            paths += (
                file_path
                for file_path in file_paths
                if all(map(_is_data, file_path[len(path) :].split("/")))
            )
    if not paths:
        raise InputError("the folder contains no files", path=inputs[0])
    return paths


def _is_data(name: str) -> bool:
    """Return whether a name belongs to a data file, not to metadata of Spark or Hadoop."""
    return not name.endswith(".crc") and not name.startswith(
        ("_SUCCESS", "_committed_", "_started_", "_spark_metadata", "_temporary")
    )


def _is_table(path: str) -> bool:
    name = path.lower()
    for ending in _PACKED:
        if name.endswith(ending):
            return name.removesuffix(ending).endswith(_JSON)
    return name.endswith((*_PARQUET, *_JSON))


def _list_files_below(root: str) -> list[str]:
    return sorted(store_of(root).files_below(root))


def _list_tables_below(root: str) -> list[str]:
    # Hidden files, such as _SUCCESS, .part-0.crc and unfinished files, contain no data.
    return [
        path
        for path in _list_files_below(root)
        if _is_table(path) and not any(map(_is_hidden, path[len(root) :].split("/")))
    ]


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) and "=" not in name


def _folder_columns(path: str, root: str) -> tuple[tuple[str, str], ...]:
    folder_names = path[len(root) :].split("/")[:-1]
    pairs = (folder_name.partition("=") for folder_name in folder_names if "=" in folder_name)
    return tuple((name, unquote(value)) for name, _, value in pairs if name in _TYPES)


def table_schema(file: TableFile, order_by: str | None) -> pa.Schema:
    """Return the columns to read from a file; all files of an import must have these columns."""
    types: dict[str, pa.DataType | None] = {}
    if file.layout is not None:
        types = dict.fromkeys(file.layout.names)
    elif file.is_parquet:
        with convert_read_errors(file):
            types = {field.name: field.type for field in pq.read_schema(readable(file.path))}
    else:
        first_row = next(_json_rows(file), {})
        types = {
            name: None if name in _TYPES else pa.array([first_row[name]]).type for name in first_row
        }
    names = dict.fromkeys((*types, *(name for name, _ in file.folders)))
    fields = [
        pa.field(name, _TYPES.get(name) or types[name])
        for name in names
        if name in _TYPES or name not in RECORD_SCHEMA.names or name == order_by
    ]
    return pa.schema([*fields, pa.field(ROW_NUMBER, pa.int64())])


def read_tables(files: Sequence[TableFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files; raises `InputError` if a file cannot be read or lacks a column."""
    row = 0
    for file in files:
        batches = _parquet_batches(file, schema) if file.is_parquet else _json_batches(file, schema)
        for columns, count in batches:
            numbers = pa.array(range(row, row + count), pa.int64())
            yield pa.RecordBatch.from_arrays([*columns, numbers], schema=schema)
            row += count


def _parquet_batches(file: TableFile, schema: pa.Schema) -> Iterator[tuple[list[pa.Array], int]]:
    folders = dict(file.folders)
    column_names = [name for name in schema.names if name != ROW_NUMBER]
    with convert_read_errors(file), pq.ParquetFile(readable(file.path)) as parquet:
        file_columns = [name for name in column_names if name in parquet.schema_arrow.names]
        for name in column_names:
            if name not in file_columns and name not in folders:
                raise InputError(f"the file has no column {name}", path=file.path)
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=file_columns):
            yield (
                [
                    _convert_column(batch.column(name), schema.field(name))
                    if name in file_columns
                    else _repeat_value(folders[name], schema.field(name), len(batch))
                    for name in column_names
                ],
                len(batch),
            )


def _convert_column(column: pa.Array, field: pa.Field) -> pa.Array:
    target_type = field.type
    if pa.types.is_timestamp(column.type) and pa.types.is_int64(target_type):
        zone = column.type.tz
        return column.cast(pa.timestamp("ms", zone), safe=False).view(pa.int64())
    if pa.types.is_integer(target_type) and not pa.types.is_integer(column.type):
        return _json_column(column.to_pylist(), field)
    return column.cast(target_type)


def _repeat_value(value: str, field: pa.Field, count: int) -> pa.Array:
    target_type = field.type
    if pa.types.is_integer(target_type):
        return pa.repeat(_json_column([value], field)[0], count)
    return pa.repeat(pa.scalar(value).cast(target_type), count)


def _json_batches(file: TableFile, schema: pa.Schema) -> Iterator[tuple[list[pa.Array], int]]:
    column_names = [name for name in schema.names if name != ROW_NUMBER]
    folders = dict(file.folders)
    rows: list[dict[str, Any]] = []

    def columns() -> tuple[list[pa.Array], int]:
        arrays = [
            _json_column([row.get(name, folders.get(name)) for row in rows], schema.field(name))
            for name in column_names
        ]
        return arrays, len(rows)

    ignored_columns = (name for name in RECORD_SCHEMA.names if name not in _TYPES)
    with convert_read_errors(file):
        for row in _json_rows(file, frozenset((*column_names, *ignored_columns))):
            rows.append(row)
            if len(rows) == _BATCH_ROWS:
                yield columns()
                rows.clear()
        if rows:
            yield columns()


def _json_rows(file: TableFile, names: frozenset[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of JSON lines; raises `InputError` for a column that is not in `names`."""
    if file.layout is not None:
        yield from layout_rows(file.path, file.layout)
        return
    with convert_read_errors(file), input_stream(file.path) as stream:
        for line_number, line in enumerate(io.BufferedReader(stream, _READ_BYTES), start=1):
            if not line.strip():
                continue
            try:
                row = json.decode(line)
            except MALFORMED as error:
                raise InputError(
                    f"line {line_number} is not JSON: {error}", path=file.path
                ) from error
            if not isinstance(row, dict):
                raise InputError(f"line {line_number} is not a JSON object", path=file.path)
            if names is not None and not row.keys() <= names:
                raise InputError(
                    f"line {line_number} has a column that the first row of the input lacks",
                    path=file.path,
                    found=", ".join(sorted(row.keys() - names)),
                    hint="write the column as null in the first row, or give --layout",
                )
            yield row


def _json_column(values: list[Any], field: pa.Field) -> pa.Array:
    if pa.types.is_large_binary(field.type):
        values = [_decode_bytes(value) for value in values]
    elif field.name == "timestamp":
        values = [_convert_time(value, field) for value in values]
    elif field.name in _TYPES and pa.types.is_integer(field.type):
        values = [_convert_integer(value, field) for value in values]
    elif field.name == "headers":
        values = [
            None
            if headers is None
            else [
                {"key": header["key"], "value": _decode_bytes(header.get("value"))}
                for header in headers
            ]
            for headers in values
        ]
    return pa.array(values, field.type)


def _decode_bytes(value: str | bytes | None) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return base64.b64decode(value, validate=True)


def _convert_integer(value: object, field: pa.Field) -> int | None:
    """Convert a value of any type to an integer without loss; None for null."""
    number = None
    if isinstance(value, str):
        number = parse_integer(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, float | Decimal):
        # A larger float may represent several integers.
        is_exact = isinstance(value, Decimal) or abs(value) <= _EXACT_IN_FLOATS
        number = int(value) if is_exact and value == value // 1 else None
    bound = 1 << (field.type.bit_width - 1)
    if value is not None and (number is None or not -bound <= number < bound):
        raise ValueError(
            f"{field.name} {_shorten(value)} is not an integer of {field.type.bit_width} bits"
        )
    return number


def _convert_time(value: object, field: pa.Field) -> int | None:
    # An export writes times outside the calendar as milliseconds.
    if not isinstance(value, str) or parse_integer(value) is not None:
        return _convert_integer(value, field)
    time_ms = parse_iso_time(value)
    if time_ms is None:
        raise ValueError(
            f"timestamp {value[:_MAX_SHOWN_LENGTH]!r} is neither an ISO 8601 time nor a number of "
            "milliseconds"
        )
    # Times between milliseconds are rounded down, as in Parquet.
    return time_ms - is_between_milliseconds(value)


@contextmanager
def convert_read_errors(file: TableFile) -> Iterator[None]:
    """Convert the errors of reading a file to `InputError`, or to `ReadError` if retriable."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError("the file does not exist", path=file.path) from error
    except OSError as error:
        error_class = ReadError if is_retriable(error) else InputError
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise error_class(f"cannot read the table: {reason}", path=file.path) from error
    except (pa.ArrowException, binascii.Error, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read the table: {error}", path=file.path) from error


def sorted_records(
    files: Sequence[TableFile], settings: ImportSettings, *, threads: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records of files, sorted by topic, partition, and offset or `order_by`."""
    schema = table_schema(files[0], settings.order_by)
    check_columns(schema.remove(len(schema) - 1), settings)
    order = ("topic", "partition", settings.order_by or "offset", ROW_NUMBER)
    names = [name for name in schema.names if name != ROW_NUMBER]
    batches = read_tables(files, schema)
    for batch in sorted_batches(
        batches, schema, order, rows="records", batch_rows=_SORTED_BATCH_ROWS, threads=threads
    ):
        yield batch.select(names)
