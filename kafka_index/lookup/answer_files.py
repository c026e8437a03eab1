"""Files of answers: the columns of the queries, and after them those of the answers."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv

from kafka_index.lookup.queries import converted_schema, parquet_schema, read_footer
from kafka_index.lookup.query_files import QueryBatch, QueryFormat, QuerySplit
from kafka_index.reading.answers import ANSWER_SCHEMA, Answers
from kafka_index.storage.json_lines import extended_lines
from kafka_index.stores import is_remote
from kafka_index.stores.registry import input_stream

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


class AnswerWriter(Protocol):
    """Writes answers to a file."""

    def write(self, batch: QueryBatch, answers: Answers) -> None:
        """Write queries with their answers."""

    def close(self) -> None:
        """Finish and close the file, without making it durable."""


def open_answers(
    path: str, form: QueryFormat, split: QuerySplit, *, to_join: bool = False
) -> AnswerWriter:
    """Create a file of answers, in a format, to the queries of a split.

    The queries have the same format, unless the answers are in Parquet. A file `to_join` is only an
    intermediate one, for `join_parts`. Raises `OSError` if it cannot be written, and `InputError`
    if the queries cannot be read.
    """
    if form is QueryFormat.JSON:
        return JsonAnswers(path)
    if form is QueryFormat.CSV:
        return CsvAnswers(path, split.columns)
    is_parquet = split.format is QueryFormat.PARQUET
    footer = read_footer(split.path) if is_parquet else None
    schema = converted_schema(split) if footer is None else parquet_schema(footer)
    writer = partial(_parquet_writer, path, like=footer)
    # Parquet is encoded once, when the parts are joined. A stream, other than a file, may have
    # different dictionaries in each batch.
    return TableAnswers(schema, partial(pa.ipc.new_stream, path) if to_join else writer)


class TableAnswers:
    """Writes Parquet, a row group for each batch, or Arrow's stream format.

    `queries` has the columns and metadata of the queries; `open_writer` opens the file for a
    schema.
    """

    def __init__(self, queries: pa.Schema, open_writer: Callable[[pa.Schema], Any]) -> None:
        self._names = queries.names
        self._schema = pa.schema([*queries, *ANSWER_SCHEMA], _metadata(queries))
        self._writer = open_writer(self._schema)

    def write(self, batch: QueryBatch, answers: Answers) -> None:
        """Write queries with their answers."""
        rows = batch.rows
        if rows.schema.names != self._names:
            rows = rows.select(self._names)
        columns = [*rows.columns, *answers.to_arrow().columns]
        table = pa.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(table, max(len(batch), 1))

    def close(self) -> None:
        """Write the footer and close the file."""
        self._writer.close()


def _parquet_writer(path: str, schema: pa.Schema, like: pq.FileMetaData | None) -> pq.ParquetWriter:
    """Open a Parquet file of answers; columns are dictionary-encoded if they are in `like`.

    Without such a file all columns of the queries are, as long as that makes them smaller.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415, slow to import

    names = schema.names[: -len(ANSWER_SCHEMA)]
    return pq.ParquetWriter(
        path,
        schema,
        compression=_COMPRESSION,
        use_dictionary=[
            *(names if like is None else _dictionary_columns(like, names)),
            *_REPEATED,
        ],
        column_encoding=dict.fromkeys(_CLOSE, "DELTA_BINARY_PACKED"),
    )


class CsvAnswers:
    """Writes CSV as Arrow does, the columns of the queries as the strings that they are."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        fields = [(name, pa.string()) for name in names]
        self._schema = pa.schema([*pa.schema(fields), *ANSWER_SCHEMA])
        self._writer = pa_csv.CSVWriter(path, self._schema)

    def write(self, batch: QueryBatch, answers: Answers) -> None:
        """Write queries with their answers."""
        columns = [*batch.rows.columns, *answers.to_arrow().columns]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class JsonAnswers:
    """Writes JSON lines: the object of each query, with the members of its answer added."""

    def __init__(self, path: str) -> None:
        self._file: BinaryIO = open(path, "wb", buffering=0)  # noqa: SIM115, because close() is a method here

    def write(self, batch: QueryBatch, answers: Answers) -> None:
        """Write queries with their answers."""
        lines = extended_lines(batch.lines, answers.to_arrow())
        offsets = lines.buffers()[1]
        assert lines.offset == 0 and offsets is not None  # noqa: S101, PT018, fresh from Arrow
        end = memoryview(offsets).cast("q")[len(lines)]
        view = memoryview(lines.buffers()[2])[:end]
        while view:
            view = view[self._file.write(view) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def join_parts(parts: Sequence[str], path: str, form: QueryFormat, split: QuerySplit) -> None:
    """Write the answers of all parts into one file.

    The parts were opened with `to_join`, and come in the order of the splits, of which the first is
    given.
    """
    if form is QueryFormat.PARQUET:
        _join_parquet(parts, path, split)
        return
    header_bytes = _csv_header_bytes(split.columns) if form is QueryFormat.CSV else 0
    with open(path, "wb") as whole:
        for number, part in enumerate(parts):
            with input_stream(part) as file:
                file.read(header_bytes if number else 0)
                shutil.copyfileobj(file, whole, _COPY_BYTES)


def _csv_header_bytes(names: Sequence[str]) -> int:
    sink = io.BytesIO()
    fields = [pa.field(name, pa.string()) for name in (*names, *ANSWER_SCHEMA.names)]
    pa_csv.CSVWriter(sink, pa.schema(fields)).close()
    return sink.tell()


def _join_parquet(parts: Sequence[str], path: str, split: QuerySplit) -> None:
    with _mapped(parts[0]) as file:
        schema = pa.ipc.open_stream(file).schema
    is_parquet = split.format is QueryFormat.PARQUET
    like = read_footer(split.path) if is_parquet else None
    with _parquet_writer(path, schema, like) as writer:
        for part in parts:
            with _mapped(part) as file:
                for batch in pa.ipc.open_stream(file):
                    rows = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                    writer.write_table(rows, row_group_size=max(len(batch), 1))


def _mapped(part: str) -> pa.NativeFile:
    return input_stream(part) if is_remote(part) else pa.memory_map(part)


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
