"""Columns as records of CSV."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.lookup.conversion.values import base64_texts, is_binary, is_text, stored
from kafka_index.lookup.text_arrays import TEXT, join_texts

_BINARY = pa.large_binary()
_ODD = '[",\r\n]'


def csv_record(names: Sequence[str]) -> str:
    """Return cells as a record, without its line end."""
    cells = [pa.array([name], TEXT) for name in names]
    line: str = csv_lines(pa.RecordBatch.from_arrays(cells, list(names)))[0].as_py()
    return line


def csv_lines(rows: pa.RecordBatch) -> pa.Array:
    """Return rows as records without line ends; a null is an empty cell.

    Raises
    ------
    pa.ArrowException
        CSV cannot hold such values.

    Notes
    -----
    Values are the texts that ``pyarrow.csv`` writes, but only those are quoted that must be: cells
    with quotes, commas and line ends, and empty texts, which are no nulls. Bytes are base64.
    """
    return join_texts([_cells(column) for column in rows.columns], separator=",")


def _cells(column: pa.Array) -> pa.Array:
    column = stored(column)
    if is_binary(column.type):
        return base64_texts(column)
    if not is_text(column.type):
        return pc.cast(column, TEXT)
    # As bytes: CSV that was not UTF-8 stays what it was.
    cells = pc.cast(column, _BINARY)
    odd = pc.or_(pc.match_substring_regex(cells, _ODD), pc.equal(pc.binary_length(cells), 0))
    if pc.any(odd).as_py():
        mark = pa.scalar(b'"', _BINARY)
        doubled = pc.replace_substring(cells, '"', '""')
        quoted = pc.binary_join_element_wise(mark, doubled, mark, pa.scalar(b"", _BINARY))
        cells = pc.if_else(odd, quoted, cells)
    return cells.view(TEXT)
