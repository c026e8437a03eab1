"""Files of answers: the columns of the queries, and after them those of the answers."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from kafka_index.commands.lookup.queries import (
    LINE,
    QueryFormat,
    QuerySplit,
    read_footer,
    written_schema,
)
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.fs.json_lines import extended_lines
from kafka_index.core.fs.registry import input_stream, store_of
from kafka_index.core.log.read.answers import ANSWER_SCHEMA, Answers
from kafka_index.core.query.keys import PARTITION, QueryBatch

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_COMPRESSION = "snappy"
# Few values, many times each; the others are numbers of which hardly two are the same, but
# neighbours are close.
_REPEATED = ("status", "segment_base_offset", "found_leader_epoch")
_CLOSE = tuple(name for name in ANSWER_SCHEMA.names if name not in _REPEATED)
_DICTIONARY_ENCODINGS = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
# Where it is present, Spark trusts it rather than the columns.
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_TYPES = {pa.string(): "string", pa.int64(): "long", pa.int32(): "integer"}
_COPY_BYTES = 1 << 20


#: Writes queries as they were read, and their answers.
Write = Callable[[pa.RecordBatch, QueryBatch, Answers], None]


@contextmanager
def open_answers(
    path: str, form: QueryFormat, split: QuerySplit, *, to_join: bool = False
) -> Iterator[Write]:
    """Create a file of answers, in a format; yield what writes queries of a split with theirs.

    The queries have the same format, unless the answers are in Parquet. A file `to_join` is only an
    intermediate one, for `join_parts`. It is closed at the end, and not durable. Raises `OSError`
    if it cannot be written, and `InputError` if the queries cannot be read.
    """
    if form is QueryFormat.JSON:
        with open(path, "wb", buffering=0) as file:
            yield partial(_write_lines, file)
        return
    if form is QueryFormat.CSV:
        schema = _csv_schema(split)
        writer = pa_csv.CSVWriter(path, schema)
    else:
        queries = written_schema(split)
        schema = pa.schema([*queries, *ANSWER_SCHEMA], _metadata(queries))
        # Parquet is encoded once, when the parts are joined. A stream, other than a file, may have
        # different dictionaries in each batch.
        writer = (
            pa.ipc.new_stream(path, schema) if to_join else _parquet_writer(path, schema, split)
        )
    with writer:
        yield partial(_write_rows, writer, schema)


def _write_rows(
    writer: Any, schema: pa.Schema, rows: pa.RecordBatch, queries: QueryBatch, answers: Answers
) -> None:
    """Write queries and their answers, in Parquet as a row group."""
    if rows.schema.names != schema.names[: rows.num_columns]:
        rows = rows.select(schema.names[: rows.num_columns])
    columns = [
        column if column.type == field.type else _cast(column, field, queries)
        for column, field in zip(rows.columns, schema, strict=False)
    ]
    table = pa.Table.from_arrays([*columns, *answers.to_arrow().columns], schema=schema)
    writer.write_table(table, max(len(answers), 1))


def _cast(column: pa.Array, field: pa.Field, queries: QueryBatch) -> pa.Array:
    """Return a column of queries in the type in which it is written: numbers for texts."""
    if not pa.types.is_string(column.type):
        return column.cast(field.type)
    if field.name != PARTITION:
        return queries.keys.to_arrow()
    partitions = queries.partitions
    fits = pc.and_(
        pc.greater_equal(partitions, -INT32_MAX - 1), pc.less_equal(partitions, INT32_MAX)
    )
    return pc.if_else(fits, partitions, None).cast(field.type)


def _write_lines(
    file: io.FileIO, rows: pa.RecordBatch, _queries: QueryBatch, answers: Answers
) -> None:
    """Write the JSON object of each query, with the members of its answer added."""
    lines = extended_lines(rows.column(LINE), answers.to_arrow())
    offsets = lines.buffers()[1]
    assert lines.offset == 0 and offsets is not None  # noqa: S101, PT018, fresh from Arrow
    end = memoryview(offsets).cast("q")[len(lines)]
    view = memoryview(lines.buffers()[2])[:end]
    while view:
        view = view[file.write(view) :]


def _csv_schema(split: QuerySplit) -> pa.Schema:
    """Return the columns of CSV, those of the queries as the strings that they are."""
    return pa.schema([*(pa.field(name, pa.string()) for name in split.columns), *ANSWER_SCHEMA])


def _parquet_writer(path: str, schema: pa.Schema, split: QuerySplit) -> pq.ParquetWriter:
    """Open a Parquet file of answers; columns are dictionary-encoded if those of the queries are.

    Columns of text are, as long as that makes them smaller.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415, slow to import

    is_parquet = split.format is QueryFormat.PARQUET
    names = schema.names[: -len(ANSWER_SCHEMA)]
    return pq.ParquetWriter(
        path,
        schema,
        compression=_COMPRESSION,
        use_dictionary=[
            *(_dictionary_columns(read_footer(split.path), names) if is_parquet else names),
            *_REPEATED,
        ],
        column_encoding=dict.fromkeys(_CLOSE, "DELTA_BINARY_PACKED"),
    )


def join_parts(parts: Sequence[str], path: str, form: QueryFormat, split: QuerySplit) -> None:
    """Write the answers of all parts into one file.

    The parts were opened with `to_join`, and come in the order of the splits, of which the first is
    given.
    """
    if form is QueryFormat.PARQUET:
        _join_parquet(parts, path, split)
        return
    header = io.BytesIO()
    if form is QueryFormat.CSV:
        pa_csv.CSVWriter(header, _csv_schema(split)).close()
    with open(path, "wb") as whole:
        for number, part in enumerate(parts):
            with input_stream(part) as file:
                file.read(header.tell() if number else 0)
                shutil.copyfileobj(file, whole, _COPY_BYTES)


def _join_parquet(parts: Sequence[str], path: str, split: QuerySplit) -> None:
    with _mapped(parts[0]) as file:
        schema = pa.ipc.open_stream(file).schema
    with _parquet_writer(path, schema, split) as writer:
        for part in parts:
            with _mapped(part) as file:
                for batch in pa.ipc.open_stream(file):
                    rows = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                    writer.write_table(rows, row_group_size=max(len(batch), 1))


def _mapped(part: str) -> pa.NativeFile:
    return input_stream(part) if store_of(part).needs_requests else pa.memory_map(part)


def _dictionary_columns(footer: pq.FileMetaData, names: Sequence[str]) -> Iterator[str]:
    """Return the columns of the queries that are dictionary-encoded."""
    if footer.num_row_groups:
        group = footer.row_group(0)
        for number in range(group.num_columns):
            column = group.column(number)
            is_query = column.path_in_schema.partition(".")[0] in names
            if is_query and _DICTIONARY_ENCODINGS & set(column.encodings):
                yield column.path_in_schema


def _metadata(queries: pa.Schema) -> dict[bytes, bytes] | None:
    """Return the metadata of a file of queries, with the columns of answers added for Spark."""
    if not queries.metadata or _SPARK_SCHEMA not in queries.metadata:
        return queries.metadata  # type: ignore[no-any-return]
    metadata: dict[bytes, bytes] = dict(queries.metadata)
    try:
        spark: dict[str, Any] = json.loads(metadata[_SPARK_SCHEMA])
        spark["fields"] += [
            {
                "name": field.name,
                "type": _SPARK_TYPES[field.type],
                "nullable": True,
                "metadata": {},
            }
            for field in ANSWER_SCHEMA
        ]
        metadata[_SPARK_SCHEMA] = json.dumps(spark, separators=(",", ":")).encode()
    except (ValueError, TypeError, KeyError):
        # Without it, Spark reads the columns themselves.
        del metadata[_SPARK_SCHEMA]
    return metadata
