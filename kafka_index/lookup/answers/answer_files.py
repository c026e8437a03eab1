"""Files of answers: the columns of the queries, and behind them those of the answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_index.lookup.answers.answer_text import CsvAnswers, JsonAnswers
from kafka_index.lookup.conversion.converter import converted_schema
from kafka_index.lookup.conversion.csv_text import csv_record
from kafka_index.lookup.queries.csv_queries import csv_header
from kafka_index.lookup.queries.parquet_queries import parquet_schema
from kafka_index.lookup.queries.query_files import QueryFormat
from kafka_index.lookup.queries.query_piece import QueryBatch, QueryPiece
from kafka_index.reading.answers import ANSWER_SCHEMA, Answers

_COMPRESSION = "snappy"
# Few values, many times each; the others are numbers of which hardly two are the same, but
# neighbours are close.
_REPEATED = ("status", "segment_base_offset", "found_leader_epoch")
_CLOSE = tuple(name for name in ANSWER_SCHEMA.names if name not in _REPEATED)
_DICTIONARY_ENCODINGS = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
# Where there is one, Spark believes it rather than the columns.
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_TYPES = {pa.string(): "string", pa.int64(): "long", pa.int32(): "integer"}


class AnswerWriter(Protocol):
    """Writes answers to a file."""

    def write(self, batch: QueryBatch, answers: Answers) -> None:
        """Write queries with their answers."""

    def close(self) -> None:
        """Finish and close the file; it is not durable by that."""


def open_answers(path: str, form: QueryFormat, piece: QueryPiece) -> AnswerWriter:
    """Open a file for answers.

    Parameters
    ----------
    path : str
        The file to write.
    form : QueryFormat
        The form of the answers.
    piece : QueryPiece
        Whose answers they are, or the first of several such pieces. Rows of another form than its
        are converted before they are written.

    Raises
    ------
    OSError
        It cannot be written.
    InputError
        The queries cannot be read.
    """
    if form is QueryFormat.JSON:
        return JsonAnswers(path)
    if form is QueryFormat.CSV:
        header = csv_header(piece.path) if piece.format is form else None
        return CsvAnswers(path, csv_record(piece.columns) if header is None else header)
    if piece.format is not form:
        return ParquetAnswers(path, converted_schema(piece), None)
    footer = pq.read_metadata(piece.path)
    return ParquetAnswers(path, parquet_schema(footer), footer)


class ParquetAnswers:
    """Writes Parquet, a row group for each batch.

    Parameters
    ----------
    path : str
        The file to write.
    queries : pa.Schema
        Columns and metadata of the queries.
    like : FileMetaData, optional
        As for `parquet_writer`.
    """

    def __init__(self, path: str, queries: pa.Schema, like: pq.FileMetaData | None) -> None:
        self._names = queries.names
        self._schema = pa.schema([*queries, *ANSWER_SCHEMA], _metadata(queries))
        self._writer = parquet_writer(path, self._schema, like)

    def write(self, batch: QueryBatch, answers: Answers) -> None:
        """Write queries with their answers."""
        rows = batch.rows
        if rows.schema.names != self._names:
            rows = rows.select(self._names)
        columns = [*rows.columns, *answers.to_arrow().columns]
        table = pa.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(table, row_group_size=max(len(batch), 1))

    def close(self) -> None:
        """Write the footer and close the file."""
        self._writer.close()


def parquet_writer(path: str, schema: pa.Schema, like: pq.FileMetaData | None) -> pq.ParquetWriter:
    """Open a Parquet file of answers; columns are dictionary-encoded if they are in `like`.

    Without such a file all columns of the queries are, as long as that makes them smaller.
    """
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


def make_file_durable(path: str) -> None:
    """Make the data of a file durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _dictionary_columns(footer: pq.FileMetaData, names: Sequence[str]) -> Iterator[str]:
    """Return the columns, of those of the queries, that are dictionary-encoded."""
    if footer.num_row_groups:
        group = footer.row_group(0)
        for number in range(group.num_columns):
            column = group.column(number)
            is_query = column.path_in_schema.partition(".")[0] in names
            if is_query and _DICTIONARY_ENCODINGS & set(column.encodings):
                yield column.path_in_schema


def _metadata(queries: pa.Schema) -> dict[bytes, bytes] | None:
    """Return the metadata of a file of queries, made to tell of the answers' columns, too."""
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
        # Without it the columns speak for themselves.
        del metadata[_SPARK_SCHEMA]
    return metadata
