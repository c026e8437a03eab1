"""Queries: which files, which columns, and the pieces that tasks take."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from kafka_index.lookup.queries.columns import needed_columns
from kafka_index.lookup.queries.csv_queries import check_csv
from kafka_index.lookup.queries.json_queries import check_json
from kafka_index.lookup.queries.parquet_queries import check_parquet
from kafka_index.lookup.queries.query_files import QueryFormat, find_query_files
from kafka_index.lookup.queries.query_piece import QueryPiece, file_size
from kafka_index.lookup.settings import By

__all__ = ["Queries", "QueryFormat", "QueryPiece", "open_queries"]


@dataclass(frozen=True, slots=True)
class Queries:
    """The checked queries of a run.

    Parameters
    ----------
    path : str
        As given.
    by : By
        What they ask for.
    format : QueryFormat
        The form of all files.
    schema : pa.Schema, optional
        Columns of all files (CSV: all text); None for JSON lines, where each line has its own,
        and for CSV files that are all empty.
    files : tuple of str
        Absolute, in the order of the queries.
    pieces : tuple of QueryPiece
        In order; one or more of each file.
    """

    path: str
    by: By
    format: QueryFormat
    schema: pa.Schema | None
    files: tuple[str, ...]
    pieces: tuple[QueryPiece, ...]

    @property
    def rows(self) -> int | None:
        """How many queries; None when only reading tells."""
        counts = [piece.rows for piece in self.pieces]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def size_bytes(self) -> int:
        """Size of all pieces."""
        return sum(piece.size_bytes for piece in self.pieces)


def open_queries(path: str, by: By) -> Queries:
    """Find query files and check their columns.

    Parameters
    ----------
    path : str
        A Parquet (``.parquet``), CSV (``.csv``) or JSON lines (``.json``, ``.jsonl``,
        ``.ndjson``) file, a folder of files of one kind, or a glob of either. Names that start
        with ``_`` or ``.`` are passed over in folders and globs. Texts may be compressed.
    by : By
        What they ask for.

    Raises
    ------
    InputError
        Nothing is there, the files are of several kinds or of another, or their columns are
        missing, of the wrong type, named like those of answers, or not the same in all files.
        Of JSON lines only the first of each file are looked at.
    """
    files, form = find_query_files(path)
    schema: pa.Schema | None = None
    if form is QueryFormat.PARQUET:
        schema, pieces = check_parquet(files, by)
    else:
        sizes = list(map(file_size, files))
        if form is QueryFormat.CSV:
            schema = check_csv(files, by)
            names = () if schema is None else tuple(schema.names)
        else:
            names = check_json(files, by)
        pieces = [
            QueryPiece(number, file, form, by, (), None, size, size, names or needed_columns(by))
            for number, (file, size) in enumerate(zip(files, sizes, strict=True))
        ]
    return Queries(path, by, form, schema, tuple(files), tuple(pieces))
