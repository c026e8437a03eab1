"""Turning the queries of a piece, batch by batch, into rows of another format."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.errors import InputError
from kafka_index.lookup.conversion.cells import csv_cells, json_cells
from kafka_index.lookup.conversion.csv_text import csv_lines
from kafka_index.lookup.conversion.json_text import json_lines
from kafka_index.lookup.conversion.places import Place
from kafka_index.lookup.queries.columns import PARTITION
from kafka_index.lookup.queries.opening import Queries
from kafka_index.lookup.queries.query_files import QueryFormat
from kafka_index.lookup.queries.query_piece import LINE, QueryBatch, QueryPiece
from kafka_index.lookup.settings import By

_INT32 = -(2**31), 2**31 - 1


class Converter:
    """Makes the queries of a piece what the writer of another format takes.

    Parameters
    ----------
    piece : QueryPiece
        The queries.
    form : QueryFormat
        The other format.
    """

    def __init__(self, piece: QueryPiece, form: QueryFormat) -> None:
        self._piece = piece
        self._form = form
        self._rows = 0

    def convert(self, batch: QueryBatch) -> QueryBatch:
        """Return the next batch of the piece with other rows.

        Raises
        ------
        InputError
            A cell or a member of a line cannot be written in the other format.
        """
        place = Place(self._piece, self._rows)
        self._rows += len(batch)
        try:
            rows = self._columns(batch, place)
            if self._form is not QueryFormat.PARQUET:
                lines = csv_lines(rows) if self._form is QueryFormat.CSV else self._json(rows)
                rows = pa.RecordBatch.from_arrays([lines], [LINE])
        except pa.ArrowException as error:
            # As of a text in Parquet that is none. Texts themselves are looked at by the line.
            raise InputError(
                f"the queries cannot be written as {self._form.text}: {error}",
                path=self._piece.path,
            ) from error
        return replace(batch, rows=rows)

    def _columns(self, batch: QueryBatch, place: Place) -> pa.RecordBatch:
        piece = self._piece
        names = list(piece.columns)
        if piece.format is QueryFormat.PARQUET:
            return batch.rows if batch.rows.schema.names == names else batch.rows.select(names)
        read = csv_cells if piece.format is QueryFormat.CSV else json_cells
        cells = read(batch.rows.column(LINE), names, place)
        return _typed(cells, batch, piece.by) if self._form is QueryFormat.PARQUET else cells

    def _json(self, rows: pa.RecordBatch) -> pa.Array:
        is_text = self._piece.format is QueryFormat.CSV
        return json_lines(rows, numbers=(PARTITION, self._piece.by.column) if is_text else ())


def converted_schema(piece: QueryPiece) -> pa.Schema:
    """Return the columns of a Parquet file of queries that were texts."""
    types = {PARTITION: pa.int32(), piece.by.column: pa.int64()}
    return pa.schema([(name, types.get(name, pa.string())) for name in piece.columns])


def check_conversion(queries: Queries, form: QueryFormat, *, path: str) -> None:
    """Check that queries can be written in another format, as far as their columns tell.

    Parameters
    ----------
    queries : Queries
        Which.
    form : QueryFormat
        The format of the answers.
    path : str
        Where to, for errors.

    Raises
    ------
    InputError
        Columns share a name, or have a type that the format cannot hold.
    """
    if form is queries.format:
        return
    names = queries.pieces[0].columns
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(
            f"answers as {form.text} need columns of different names, and there is more than one "
            + ", ".join(repeated),
            path=path,
            hint="rename them, or leave out --output-format",
        )
    if queries.format is not QueryFormat.PARQUET or queries.schema is None:
        return
    write = csv_lines if form is QueryFormat.CSV else json_lines
    refused = []
    for field in queries.schema:
        # A value of its own, as a zone that nobody knows is only found with one.
        is_time = pa.types.is_timestamp(field.type)
        cells = pa.array([0], field.type) if is_time else pa.nulls(0, field.type)
        try:
            write(pa.RecordBatch.from_arrays([cells], [field.name]))
        except pa.ArrowException:
            refused.append(f"{field.name} ({field.type})")
    if refused:
        raise InputError(
            f"{form.text} cannot hold the values of {', '.join(refused)}",
            path=path,
            hint="leave these columns out, or choose another --output-format",
        )


def _typed(cells: pa.RecordBatch, batch: QueryBatch, by: By) -> pa.RecordBatch:
    """Return columns of texts with partitions and keys as the numbers that were asked for."""
    least, most = _INT32
    partitions = batch.partitions
    fits = pc.and_(pc.greater_equal(partitions, least), pc.less_equal(partitions, most))
    keys = batch.keys
    typed = {
        PARTITION: pc.if_else(fits, partitions, None).cast(pa.int32()),
        by.column: pa.array(keys.values, mask=None if keys.valid is None else ~keys.valid),
    }
    names = cells.schema.names
    columns = [typed.get(name, cells.column(name)) for name in names]
    return pa.RecordBatch.from_arrays(columns, names)
