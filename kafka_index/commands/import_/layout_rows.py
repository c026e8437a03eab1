"""The records in files of other exports, as the rows of `kafka_index.commands.import_.table_files`.

Sources: Spark's ``kafka`` source; kcat's ``json.c``; Confluent's ``RecordViews`` and
``JsonRecordWriterProvider``; Aiven's ``OutputFieldBuilder``, ``SinkSchemaBuilder`` and
``OutputFieldPlainWriter`` classes.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import json

from kafka_index.core.errors import CorruptLogError, InputError, TooLargeError
from kafka_index.core.format.records import NO_TIMESTAMP
from kafka_index.core.format.state_files import MALFORMED
from kafka_index.core.fs.registry import input_stream, readable
from kafka_index.core.records.decompression import read_snappy

#: The fields of a record that a file may hold.
FIELDS = ("key", "value", "offset", "timestamp", "headers")

_AVRO_MAGIC, _PARQUET_MAGIC = b"Obj\x01", b"PAR1"
_BATCH_ROWS = 16 * 1024
_SHOWN = 60
_MAX_SNAPPY_BYTES = 1 << 31
_TIMESTAMP_TYPES = {"create": 0, "logappend": 1, "unknown": -1}
_KCAT_OTHERS = frozenset(("tstype", "ts", "broker", "payload"))
_ABSENT = object()


class Text(StrEnum):
    """The bytes that a text in a file stands for."""

    STRING = "string"
    BASE64 = "bytes"
    JSON = "json"


class TextOf(NamedTuple):
    """The bytes that texts stand for, by field; None where nobody has said."""

    key: Text | None = None
    value: Text | None = None
    headers: Text | None = None


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The layout of a file, and what its name holds; small, and picklable.

    `names` are the columns of its rows. Where the records have no offsets, they are counted from
    the start offset; the end offset is that of the next file, None for none. `keys` and `headers`
    are paths of the files beside it.
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

    Raises `InputError` if it has other fields, a text that may stand for several bytes, or more or
    fewer records than offsets.
    """
    if layout.kind == "confluent-s3":
        rows = _confluent_rows(path, layout)
    elif layout.kind == "kcat":
        rows = (_kcat_row(each, path, layout) for each in _records(path))
    else:
        rows = _field_rows(path, layout)
    return rows if layout.topic is None else _numbered_rows(rows, path, layout)


def column_names(path: str) -> tuple[str, ...]:
    """Return the names of the columns of a file; none if it is not of rows with columns."""
    first = None
    # Lines that are not JSON have no columns; a typed file that cannot be read is an error.
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
                    "the file has more records than offsets up to the next file: records of one "
                    "partition are in several files at a time, and their offsets in none",
                    path=path,
                    expected=f"{end - layout.start_offset} records",
                )
            row["offset"] = offset
            offset += 1
        yield row
    if layout.counts_offsets and not layout.is_packed and end is not None and offset < end:
        raise InputError(
            "the next file starts at a higher offset than the last record of this one has: which "
            "offsets are missing is not in the files",
            path=path,
            expected=f"{end - layout.start_offset} records",
            found=offset - layout.start_offset,
            hint="the property offsets=packed counts from the offset in each name, without gaps",
        )


def _confluent_rows(path: str, layout: FileLayout) -> Iterator[dict[str, Any]]:
    texts = layout.texts
    beside = [(name, at) for name, at in (("keys", layout.keys), ("headers", layout.headers)) if at]
    values = _values(path, texts.value)
    others: list[Iterator[Any]] = [
        _values(at, texts.key, wrapped_in="key") if name == "keys" else _records(at)
        for name, at in beside
    ]
    for value in values:
        row: dict[str, Any] = {"value": value}
        for (name, at), records in zip(beside, others, strict=True):
            found = next(records, _ABSENT)
            if found is _ABSENT:
                raise InputError("the file has fewer records than that of the values", path=at)
            if name == "keys":
                row["key"] = found
            else:
                row["headers"] = _headers(found, at, texts.headers)
        yield row
    for (_, at), records in zip(beside, others, strict=True):
        if next(records, _ABSENT) is not _ABSENT:
            raise InputError("the file has more records than that of the values", path=at)


def _values(path: str, text: Text | None, wrapped_in: str | None = None) -> Iterator[bytes | None]:
    """Yield what each record of a file stands for: lines as they are, and others by their text."""
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
                yield _bytes(_json(content, path, number), path, name, text)
        return
    stream.close()
    for record in _records(path):
        if wrapped_in and isinstance(record, dict) and set(record) == {wrapped_in}:
            record = record[wrapped_in]  # noqa: PLW2901, Parquet has no rows but of columns
        yield _bytes(record, path, name, text)


def _kcat_row(record: Any, path: str, layout: FileLayout) -> dict[str, Any]:
    if not isinstance(record, dict) or "payload" not in record:
        raise InputError("a line that kcat -J does not write", path=path, found=_shown(record))
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
        "key": _bytes(record.get("key"), path, "key", layout.texts.key),
        "value": _bytes(record["payload"], path, "value", layout.texts.value),
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
                row[name] = _bytes(row[name], path, name, text)
        if "headers" in row:
            row["headers"] = _headers(row["headers"], path, texts.headers)
        if not is_spark and row.get("timestamp", 0) is None:
            row["timestamp"] = NO_TIMESTAMP
        yield row


def _csv_records(path: str, layout: FileLayout) -> Iterator[dict[str, Any]]:
    """Yield the records of Aiven's CSV: base64, and bare numbers; nothing for null."""
    fields = layout.csv_fields
    # A value without encoding may have commas, and the other fields have none.
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


def _headers(found: Any, path: str, text: Text | None) -> list[dict[str, Any]] | None:
    """Return headers, which are a list, a map, or either in a record of its own."""
    if (
        isinstance(found, dict)
        and set(found) == {"headers"}
        and not isinstance(found["headers"], str)
    ):
        found = found["headers"]
    if found is None:
        return None
    if isinstance(found, dict):
        found = [{"key": key, "value": value} for key, value in found.items()]
    pairs = [
        each if isinstance(each, dict) else dict(zip(("key", "value"), each, strict=True))
        for each in found
    ]
    return [
        {"key": each["key"], "value": _bytes(each.get("value"), path, "header", text)}
        for each in pairs
    ]


def _bytes(value: Any, path: str, name: str, text: Text | None) -> bytes | None:
    """Return the bytes of a value, which for anything but bytes are what the text says."""
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
            f"a {name} that is text: the record's bytes may be the text, base64 or JSON",
            path=path,
            found=_shown(value),
            hint=f"the property {name}.converter=string, bytes or json says which",
        )
    raise InputError(
        f"a {name} that is no text and no bytes: the record's bytes are not in the file",
        path=path,
        found=_shown(value),
        hint=f"the property {name}.converter=json writes JSON in their place",
    )


def _shown(value: Any) -> str:
    return repr(value)[:_SHOWN]


def _json(line: bytes, path: str, number: int) -> Any:
    try:
        return json.decode(line)
    except MALFORMED as error:
        raise InputError(f"line {number} is not JSON: {error}", path=path) from error


def _records(path: str) -> Iterator[Any]:
    """Yield the records of a file of Avro, Parquet, or JSON: lines, or an array."""
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
            # Aiven's format "json", one array.
            yield from _json(stream.read(), path, 1)
        else:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield _json(line, path, number)


def _without_zone(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose column timestamp is in ms."""
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
            f"cannot read the Avro file: {str(error) or 'it is cut short'}", path=path
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
