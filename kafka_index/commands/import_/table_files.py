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
_KCAT_OTHERS = frozenset(("tstype", "ts", "broker", "payload"))
_ABSENT = object()


class Text(StrEnum):
    """How a text in a file encodes bytes."""

    STRING = "string"
    BASE64 = "bytes"
    JSON = "json"


class TextOf(NamedTuple):
    """The encoding of the texts of each field; None if it is not given."""

    key: Text | None = None
    value: Text | None = None
    headers: Text | None = None


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The layout of a file, and the contents of its name; small and picklable.

    `names` are the columns of its rows. Records without offsets are counted from `start_offset`.
    `end_offset` is the start offset of the next file, None if there is none. `keys` and `headers`
    are the paths of the files of keys and headers.
    """

    kind: str
    names: tuple[str, ...]
    texts: TextOf
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

    Raises `InputError` if it has other fields, a text of unknown encoding, or more or fewer records
    than offsets.
    """
    if layout.kind == "confluent-s3":
        rows = _confluent_rows(path, layout)
    elif layout.kind == "kcat":
        rows = (_kcat_row(each, path, layout) for each in _records(path))
    else:
        rows = _field_rows(path, layout)
    return rows if layout.topic is None else _numbered_rows(rows, path, layout)


def column_names(path: str) -> tuple[str, ...]:
    """Return the names of the columns of a file; empty if its records have no columns."""
    first = None
    # Lines that are not JSON have no columns. An unreadable Avro or Parquet file is an error.
    with nullcontext() if is_typed(path) else suppress(InputError):
        first = next(_records(path), None)
    return tuple(first) if isinstance(first, dict) else ()


def is_typed(path: str) -> bool:
    """Return whether a file is Avro or Parquet."""
    stream, magic = _opened(path)
    stream.close()
    return magic in (_AVRO_MAGIC, _PARQUET_MAGIC)


def _numbered_rows(
    rows: Iterator[dict[str, Any]], path: str, layout: FileLayout
) -> Iterator[dict[str, Any]]:
    offset, end = layout.start_offset, layout.end_offset
    for row in rows:
        row["topic"], row["partition"] = layout.topic, layout.partition
        if layout.counts_offsets:
            if offset == end:
                raise InputError(
                    "the file has more records than offsets up to the next file: the records of "
                    "a partition are distributed over several files, without their offsets",
                    path=path,
                    expected=f"{end - layout.start_offset} records",
                )
            row["offset"] = offset
            offset += 1
        yield row
    if layout.counts_offsets and not layout.is_packed and end is not None and offset < end:
        raise InputError(
            "the next file does not start at the offset after the last record of this file: the "
            "files do not contain which offsets are missing",
            path=path,
            expected=f"{end - layout.start_offset} records",
            found=offset - layout.start_offset,
            hint="set the property offsets=packed to assign consecutive offsets, starting at the "
            "offset in each file name",
        )


def _confluent_rows(path: str, layout: FileLayout) -> Iterator[dict[str, Any]]:
    texts = layout.texts
    side_files = [
        (name, at) for name, at in (("keys", layout.keys), ("headers", layout.headers)) if at
    ]
    values = _values(path, texts.value)
    others: list[Iterator[Any]] = [
        _values(at, texts.key, wrapped_in="key") if name == "keys" else _records(at)
        for name, at in side_files
    ]
    for value in values:
        row: dict[str, Any] = {"value": value}
        for (name, at), records in zip(side_files, others, strict=True):
            found = next(records, _ABSENT)
            if found is _ABSENT:
                raise InputError("the file has fewer records than the file of values", path=at)
            if name == "keys":
                row["key"] = found
            else:
                row["headers"] = _headers(found, at, texts.headers)
        yield row
    for (_, at), records in zip(side_files, others, strict=True):
        if next(records, _ABSENT) is not _ABSENT:
            raise InputError("the file has more records than the file of values", path=at)


def _values(path: str, text: Text | None, wrapped_in: str | None = None) -> Iterator[bytes | None]:
    """Yield the bytes of each record of a file: lines unchanged, other records decoded."""
    name = "key" if wrapped_in else "value"
    stream, magic = _opened(path)
    if magic not in (_AVRO_MAGIC, _PARQUET_MAGIC):
        is_json = ".json" in path.rpartition("/")[2].lower()
        for number, line in enumerate(stream, start=1):
            content = line.removesuffix(b"\n")
            if not is_json:
                yield content
            elif text is Text.JSON:
                yield None if _json(content, path, number) is None else content
            else:
                yield _record_bytes(_json(content, path, number), path, name, text)
        return
    stream.close()
    for record in _records(path):
        if wrapped_in and isinstance(record, dict) and set(record) == {wrapped_in}:
            record = record[wrapped_in]  # noqa: PLW2901, Parquet has only rows of columns
        yield _record_bytes(record, path, name, text)


def _kcat_row(record: Any, path: str, layout: FileLayout) -> dict[str, Any]:
    if not isinstance(record, dict) or "payload" not in record:
        raise InputError("not a line of kcat -J", path=path, found=_shown(record))
    unknown = set(record) - set(layout.names) - _KCAT_OTHERS
    if unknown:
        raise InputError(
            "a field that a record does not have", path=path, found=", ".join(sorted(unknown))
        )
    kind = record.get("tstype", "unknown")
    if kind not in _TIMESTAMP_TYPES:
        raise InputError(
            "not a tstype", path=path, expected=", ".join(_TIMESTAMP_TYPES), found=kind
        )
    flat = record.get("headers") or []
    if len(flat) % 2:
        raise InputError("headers of odd length", path=path, found=_shown(flat))
    pairs = [{"key": key, "value": value} for key, value in zip(flat[::2], flat[1::2], strict=True)]
    return {
        "topic": record.get("topic"),
        "partition": record.get("partition"),
        "offset": record.get("offset"),
        "timestamp": record.get("ts", NO_TIMESTAMP),
        "timestampType": _TIMESTAMP_TYPES[kind],
        "key": _record_bytes(record.get("key"), path, "key", layout.texts.key),
        "value": _record_bytes(record["payload"], path, "value", layout.texts.value),
        "headers": _headers(pairs, path, layout.texts.headers),
    }


def _field_rows(path: str, layout: FileLayout) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file whose records have a field for each column."""
    texts, names = layout.texts, set(layout.names)
    counted = {"topic", "partition", *(["offset"] if layout.counts_offsets else [])}
    is_spark = layout.topic is None
    needed = {"topic", "partition", "offset", "timestamp"} if is_spark else names - counted
    for record in _csv_records(path, layout) if layout.csv_fields else _records(path):
        if not isinstance(record, dict):
            raise InputError("a record without fields", path=path, found=_shown(record))
        if not needed <= set(record) <= names:
            raise InputError(
                "a record has other fields than the layout",
                path=path,
                expected=", ".join(sorted(needed)),
                found=", ".join(record),
            )
        row = dict(record)
        for name, text in (("key", texts.key), ("value", texts.value)):
            if name in row:
                row[name] = _record_bytes(row[name], path, name, text)
        if "headers" in row:
            row["headers"] = _headers(row["headers"], path, texts.headers)
        if not is_spark and row.get("timestamp", 0) is None:
            row["timestamp"] = NO_TIMESTAMP
        yield row


def _csv_records(path: str, layout: FileLayout) -> Iterator[dict[str, Any]]:
    """Yield the records of Aiven's CSV: base64 and plain numbers; empty for null."""
    fields = layout.csv_fields
    # Only a value without encoding can contain commas.
    place = fields.index("value") if "value" in fields and not layout.csv_base64 else None
    for number, line in enumerate(_opened(path)[0], start=1):
        parts = line.removesuffix(b"\n").split(b",")
        if place is not None and len(parts) > len(fields):
            end = len(parts) - (len(fields) - place - 1)
            parts[place:end] = [b",".join(parts[place:end])]
        if len(parts) != len(fields):
            raise InputError(
                f"line {number} has other fields than {', '.join(fields)}",
                path=path,
                expected=len(fields),
                found=len(parts),
            )
        row: dict[str, Any] = {}
        for name, part in zip(fields, parts, strict=True):
            if name in ("key", "value"):
                is_plain = name == "value" and not layout.csv_base64
                row[name] = (part if is_plain else _decoded(part)) if part else None
            elif name == "headers":
                pairs = (each.split(b":") for each in part.split(b";") if each)
                row[name] = [
                    {"key": _decoded(key).decode(), "value": _decoded(value)}
                    for key, value in pairs
                ]
            else:
                row[name] = part.decode() or None
        yield row


def _decoded(text: bytes) -> bytes:
    return base64.b64decode(text, validate=True)


def _headers(headers: Any, path: str, text: Text | None) -> list[dict[str, Any]] | None:
    """Convert headers: a list, a map, or a record that contains either."""
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
        each if isinstance(each, dict) else dict(zip(("key", "value"), each, strict=True))
        for each in headers
    ]
    return [
        {"key": each["key"], "value": _record_bytes(each.get("value"), path, "header", text)}
        for each in pairs
    ]


def _record_bytes(value: Any, path: str, name: str, text: Text | None) -> bytes | None:
    """Convert a value to bytes; other values than bytes are decoded as `text` says."""
    if value is None or isinstance(value, bytes):
        return value
    if text is Text.JSON:
        return json.encode(value)
    if isinstance(value, str) and text is Text.STRING:
        return value.encode()
    if isinstance(value, str) and text is Text.BASE64:
        return _decoded(value.encode())
    if isinstance(value, str):
        raise InputError(
            f"a {name} is text of unknown encoding: UTF-8, base64 or JSON",
            path=path,
            found=_shown(value),
            hint=f"give the property {name}.converter: string, bytes or json",
        )
    raise InputError(
        f"a {name} is neither text nor bytes: the file does not contain the record's bytes",
        path=path,
        found=_shown(value),
        hint=f"with the property {name}.converter=json, JSON is written instead",
    )


def _shown(value: Any) -> str:
    return repr(value)[:_SHOWN]


def _json(line: bytes, path: str, number: int) -> Any:
    try:
        return json.decode(line)
    except MALFORMED as error:
        raise InputError(f"line {number} is not JSON: {error}", path=path) from error


def _records(path: str) -> Iterator[Any]:
    """Yield the records of a file of Avro, Parquet, JSON lines, or a JSON array."""
    stream, magic = _opened(path)
    with stream:
        if magic == _PARQUET_MAGIC:
            is_packed = path.lower().endswith((".gz", ".snappy", ".zst"))
            source = pa.BufferReader(stream.read()) if is_packed else readable(path)
            with pq.ParquetFile(source) as parquet:
                for batch in parquet.iter_batches(_BATCH_ROWS):
                    yield from _without_zone(batch).to_pylist()
        elif magic == _AVRO_MAGIC:
            yield from _avro_records(stream, path)
        elif magic[:1] == b"[":
            # Aiven's format "json" is one array.
            yield from _json(stream.read(), path, 1)
        else:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield _json(line, path, number)


def _without_zone(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert the column timestamp to ms."""
    place = batch.schema.get_field_index("timestamp")
    if place < 0 or not pa.types.is_timestamp(batch.schema.field(place).type):
        return batch
    zone = batch.schema.field(place).type.tz
    column = batch.column(place).cast(pa.timestamp("ms", zone), safe=False).view(pa.int64())
    return batch.set_column(place, "timestamp", column)


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


def _opened(path: str) -> tuple[io.BufferedReader, bytes]:
    """Open a file, decompressed as its name says; return its first bytes as well."""
    stream = io.BufferedReader(input_stream(path))
    if path.lower().endswith(".snappy"):
        with stream:
            packed = memoryview(stream.read())
        try:
            content = b"".join(read_snappy(packed, _MAX_SNAPPY_BYTES, is_whole=True))
        except (CorruptLogError, TooLargeError) as error:
            raise InputError(error.message, path=path) from error
        stream = io.BufferedReader(io.BytesIO(content))
    return stream, stream.peek(len(_AVRO_MAGIC))[: len(_AVRO_MAGIC)]


#: The last column of every batch: the number of the row, ascending over all files.
ROW_NUMBER = "__row"

_PARQUET = (".parquet",)
_JSON = (".jsonl", ".json", ".ndjson")
_PACKED = (".gz", ".bz2", ".zst", ".lz4")
_READ_BYTES = 1 << 20
_BATCH_ROWS = 16 * 1024
_SORTED_BATCH_ROWS = 64 * 1024
_EXACT_IN_FLOATS = 1 << 53
_SHOWN = 60
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
        """Whether it is Parquet with the columns of records; otherwise it is read row by row."""
        return self.layout is None and self.path.lower().endswith(_PARQUET)


def list_table_files(inputs: Sequence[str]) -> list[TableFile]:
    """List the files of inputs, which are files, folders, or globs of either."""
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
    """List the paths of all files of inputs, whatever their suffixes."""
    found: list[str] = []
    for given in inputs:
        for path in expand_input(given):
            below = _all_below(path) if directory_exists(path) else [path]
            found += (each for each in below if all(map(_is_data, each[len(path) :].split("/"))))
    if not found:
        raise InputError("no file in the folder", path=inputs[0])
    return found


def _is_data(name: str) -> bool:
    """Return whether the name is not the name of a metadata file of Spark or Hadoop."""
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
    # Hidden names are not data: _SUCCESS, .part-0.crc, unfinished files.
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
    """Return the columns of a file that are read; all files of an import must have them."""
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

    ignored = (name for name in RECORD_SCHEMA.names if name not in _TYPES)
    with errors_of(file):
        for row in _json_rows(file, frozenset((*wanted, *ignored))):
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
                    f"line {number} has a column that the first row of the input lacks",
                    path=file.path,
                    found=", ".join(sorted(row.keys() - names)),
                    hint="write null in the first row, or give the layout of the files",
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
            f"{field.name} {repr(value)[:_SHOWN]} is not an integer of {field.type.bit_width} bits"
        )
    return number


def _milliseconds(value: object, field: pa.Field) -> int | None:
    # An export writes times outside the calendar as milliseconds.
    if not isinstance(value, str) or parse_integer(value) is not None:
        return _integer(value, field)
    moment = parse_iso_time(value)
    if moment is None:
        raise ValueError(
            f"timestamp {value[:_SHOWN]!r} is neither a time of ISO 8601 nor milliseconds"
        )
    # Rounded down, as in Parquet.
    return moment - is_between_milliseconds(value)


@contextmanager
def errors_of(file: TableFile) -> Iterator[None]:
    """Convert the errors of reading a file to `InputError`, or to `ReadError` if retriable."""
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
