"""Reading a piece of queries, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator

from kafka_index.lookup.queries.csv_queries import read_csv
from kafka_index.lookup.queries.json_queries import read_json
from kafka_index.lookup.queries.parquet_queries import READ_ROWS, read_parquet
from kafka_index.lookup.queries.query_files import QueryFormat
from kafka_index.lookup.queries.query_piece import QueryBatch, QueryPiece

__all__ = ["QueryBatch", "read_piece"]


def read_piece(piece: QueryPiece, *, most_rows: int = READ_ROWS) -> Iterator[QueryBatch]:
    """Read the queries of a piece in their order.

    Parameters
    ----------
    piece : QueryPiece
        Which.
    most_rows : int
        Rows at a time, of Parquet; texts are read by some megabytes.

    Raises
    ------
    InputError
        The file cannot be read, is malformed, or is not what it was when it was checked.
    """
    if piece.format is QueryFormat.PARQUET:
        return read_parquet(piece, most_rows=most_rows)
    return read_csv(piece) if piece.format is QueryFormat.CSV else read_json(piece)
