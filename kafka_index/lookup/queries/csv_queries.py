"""Queries in CSV files: a header, then a record a query, which passes through as it stands."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from kafka_index.errors import InputError
from kafka_index.lookup.queries.columns import check_names, needed_columns, refuse_differences
from kafka_index.lookup.queries.query_piece import LINE, QueryBatch, QueryPiece
from kafka_index.lookup.queries.text_records import (
    TextBlock,
    open_text,
    read_blocks,
    without_line_ends,
)
from kafka_index.lookup.queries.texts import text_integers, text_keys
from kafka_index.lookup.settings import By


def check_csv(files: Sequence[str], by: By) -> pa.Schema | None:
    """Check the headers of all files; empty files have none.

    Returns
    -------
    pa.Schema or None
        Their columns, all text; None when all files are empty.

    Raises
    ------
    InputError
        A file cannot be read, or its columns are not right or not those of the others.
    """
    schemas: list[tuple[str, pa.Schema]] = []
    for path in files:
        header = csv_header(path)
        if header is None:
            continue
        names = _header(header, path)
        check_names(names, by, path=path)
        schemas.append((path, pa.schema([(name, pa.string()) for name in names])))
        if names != schemas[0][1].names:
            # The records are passed on as they stand: their columns cannot be put in order.
            refuse_differences([schemas[0], schemas[-1]])
            raise InputError(f"the columns of {schemas[0][0]} in another order", path=path)
    return schemas[0][1] if schemas else None


def csv_header(path: str) -> str | None:
    """Return the header of a file as it stands, without its line end; None of an empty file.

    Raises
    ------
    InputError
        The file cannot be read, or its header is not UTF-8.
    """
    with open_text(path) as stream:
        for block in read_blocks(stream, path, quotes=True):
            header = _first_record(block, path)
            if header is not None:
                return header[1]
    return None


def read_csv(piece: QueryPiece) -> Iterator[QueryBatch]:
    """Read the queries of a CSV file.

    Raises
    ------
    InputError
        The file cannot be read, a quote stands where none may, or a record has more or fewer
        cells than the header.
    """
    piece.check_unchanged()
    names: list[str] | None = None
    with open_text(piece.path) as stream:
        for block in read_blocks(stream, piece.path, quotes=True):
            skipped = 0
            if names is None:
                found = _first_record(block, piece.path)
                if found is None:
                    continue
                skipped, names = found[0] + 1, _header(found[1], piece.path)
                check_names(names, piece.by, path=piece.path)
            batch = _read_block(block, skipped, names, piece)
            if len(batch):
                yield batch


def _first_record(block: TextBlock, path: str) -> tuple[int, str] | None:
    """Return the place and the text of the first record that is not empty."""
    start = 0
    for number, end in enumerate(block.ends):
        text = block.data[start:end].tobytes().strip(b"\r\n")
        start = end
        if text:
            try:
                return number, text.decode()
            except UnicodeDecodeError as error:
                raise InputError("the header is not UTF-8 text", path=path) from error
    return None


def _cells(record: str) -> list[str]:
    return next(csv.reader([record]))


def _header(text: str, path: str) -> list[str]:
    try:
        return _cells(text)
    except csv.Error as error:
        raise InputError(
            f"the header is not CSV: {error}", path=path, hint="lines end in \\n or \\r\\n"
        ) from error


def _read_block(
    block: TextBlock, skipped: int, names: Sequence[str], piece: QueryPiece
) -> QueryBatch:
    lines = without_line_ends(block.records.slice(skipped))
    start = int(block.ends[skipped - 1]) if skipped else 0
    # Names of our own: the others need not differ.
    own_names = [str(number) for number in range(len(names))]
    wanted = [own_names[names.index(name)] for name in needed_columns(piece.by)]
    cells = None
    if start < len(block.data):
        try:
            cells = pa_csv.read_csv(
                pa.BufferReader(pa.py_buffer(block.data[start:])),
                pa_csv.ReadOptions(
                    use_threads=False,
                    # One block, or types and counts could change in its middle.
                    block_size=len(block.data) + 1,
                    column_names=own_names,
                ),
                pa_csv.ParseOptions(newlines_in_values=block.quoted),
                pa_csv.ConvertOptions(
                    include_columns=wanted,
                    column_types=dict.fromkeys(wanted, pa.string()),
                    check_utf8=False,
                    strings_can_be_null=True,
                    null_values=[""],
                ),
            ).combine_chunks()
        except pa.ArrowInvalid as error:
            raise _malformed(block, skipped, names, piece.path, str(error)) from error
    filled = lines.filter(pc.not_equal(pc.binary_length(lines), 0))
    if (0 if cells is None else cells.num_rows) != len(filled):
        raise _malformed(block, skipped, names, piece.path, "lines end where they must not")
    rows = pa.RecordBatch.from_arrays([filled], [LINE])
    if cells is None:
        cells = pa.table({name: pa.array([], pa.string()) for name in wanted})
    topics, partitions, keys = (
        pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
        for column in cells.columns
    )
    values, valid = text_integers(partitions)
    return QueryBatch(
        rows,
        topics,
        pa.array(values, mask=None if valid is None else ~valid),
        text_keys(keys, piece.by),
    )


def _malformed(
    block: TextBlock, skipped: int, names: Sequence[str], path: str, reason: str
) -> InputError:
    """Return the error for a block, with the line that is to blame."""
    for number in range(skipped, len(block.ends)):
        start = int(block.ends[number - 1]) if number else 0
        # Not text for certain; but commas and quotes are in the same places.
        text = block.data[start : block.ends[number]].tobytes().decode("latin-1").strip("\r\n")
        try:
            count = len(_cells(text)) if text else len(names)
        except csv.Error as error:
            return InputError(f"line {block.line_of(number)}: {error}", path=path)
        if count != len(names):
            return InputError(
                f"line {block.line_of(number)} has another number of cells than the header",
                path=path,
                expected=len(names),
                found=count,
            )
    return InputError(f"not CSV: {reason}", path=path)
