"""Queries in JSON lines: an object a line, which passes through as it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from kafka_index.errors import InputError
from kafka_index.lookup.keys import Keys
from kafka_index.lookup.queries.columns import (
    PARTITION,
    TOPIC,
    check_names,
    needed_columns,
    refuse_collisions,
)
from kafka_index.lookup.queries.query_piece import LINE, QueryBatch, QueryPiece
from kafka_index.lookup.queries.text_records import TextBlock, open_text, read_blocks
from kafka_index.lookup.queries.texts import text_integers, text_keys
from kafka_index.lookup.settings import By
from kafka_index.reading.answers import ANSWER_SCHEMA

# Members are looked for in so many lines: what none of them has is misspelt rather than absent.
_FIRST_LINES = 1_000
_BLANKS = " \t\r\n"


def check_json(files: Sequence[str], by: By) -> tuple[str, ...]:
    """Check the first lines of all files; empty files have none.

    Returns
    -------
    tuple of str
        The members that these lines have, in the order in which they come.

    Raises
    ------
    InputError
        A file cannot be read, a line is no object, or no line has the members of a query, or one
        has members that are named like those of answers.
    """
    every: dict[str, None] = {}
    for path in files:
        names: dict[str, None] = {}
        with open_text(path) as stream:
            block = next(read_blocks(stream, path, quotes=False), None)
        if block is None:
            continue
        lines = _lines(block).slice(0, _FIRST_LINES)
        for number, line in enumerate(lines):
            if line.as_buffer().size:
                names.update(dict.fromkeys(_object(line, block, number, path)))
        if names:
            check_names(list(names), by, path=path)
            every.update(names)
    return tuple(every)


def read_json(piece: QueryPiece) -> Iterator[QueryBatch]:
    """Read the queries of a file of JSON lines.

    Raises
    ------
    InputError
        The file cannot be read, a line is no object, or has members that are named like those of
        answers.
    """
    piece.check_unchanged()
    with open_text(piece.path) as stream:
        for block in read_blocks(stream, piece.path, quotes=False):
            lines = _lines(block)
            filled = lines.filter(pc.not_equal(pc.binary_length(lines), 0))
            if not len(filled):
                continue
            columns = _parse(block, filled, piece.by)
            if columns is None:
                columns = _parse_line_by_line(block, lines, piece)
            topics, partitions, keys = columns
            rows = pa.RecordBatch.from_arrays([filled], [LINE])
            yield QueryBatch(rows, topics, partitions, keys)


def _lines(block: TextBlock) -> pa.Array:
    return pc.ascii_trim(block.records, _BLANKS)


def _parse(block: TextBlock, lines: pa.Array, by: By) -> tuple[pa.Array, pa.Array, Keys] | None:
    """Parse a block at once; None when it holds anything that has to be looked at."""
    # An object a line: the parser itself takes several, and objects that span lines.
    braces = pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))
    if not pc.all(braces).as_py():
        return None
    # Members named like those of answers are told by a type that they do not have.
    names = needed_columns(by)
    taken = [(name, pa.null()) for name in ANSWER_SCHEMA.names]
    for kind in (pa.int64(), pa.string()):
        schema = pa.schema([(TOPIC, pa.string()), (PARTITION, pa.int64()), (by.column, kind)])
        try:
            table = pa_json.read_json(
                pa.BufferReader(pa.py_buffer(block.data)),
                pa_json.ReadOptions(use_threads=False, block_size=len(block.data) + 1),
                pa_json.ParseOptions(
                    explicit_schema=pa.schema([*schema, *taken]),
                    newlines_in_values=False,
                    unexpected_field_behavior="ignore",
                ),
            )
        except pa.ArrowInvalid:
            continue
        if table.num_rows != len(lines):
            return None
        topics, partitions, keys = (pa.concat_arrays(table.column(name).chunks) for name in names)
        return topics, partitions, text_keys(keys, by) if kind == pa.string() else Keys.of(keys, by)
    return None


def _parse_line_by_line(
    block: TextBlock, lines: pa.Array, piece: QueryPiece
) -> tuple[pa.Array, pa.Array, Keys]:
    """Parse a block that has cells of unusual types, or is malformed, which is then said."""
    cells: list[tuple[str | None, str | None, str | None]] = []
    for number, line in enumerate(lines):
        if line.as_buffer().size:
            members = _object(line, block, number, piece.path)
            refuse_collisions(members, path=piece.path)
            topic = members.get(TOPIC)
            cells.append(
                (
                    topic if isinstance(topic, str) else None,
                    _text_of(members.get(PARTITION)),
                    _text_of(members.get(piece.by.column)),
                )
            )
    topics, partitions, keys = (
        pa.array([_encodable(cell) for cell in column], pa.string())
        for column in zip(*cells, strict=True)
    )
    values, valid = text_integers(partitions)
    mask = None if valid is None else np.logical_not(valid)
    return topics, pa.array(values, mask=mask), text_keys(keys, piece.by)


def _object(line: pa.Scalar, block: TextBlock, number: int, path: str) -> dict[str, Any]:
    try:
        parsed = json.loads(line.as_buffer().to_pybytes())
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"line {block.line_of(number)} is no JSON: {error}",
            path=path,
            hint="each line has to hold one object",
        ) from error
    if not isinstance(parsed, dict):
        raise InputError(
            f"line {block.line_of(number)} is no JSON object", path=path, found=repr(parsed)[:40]
        )
    return parsed


def _text_of(cell: object) -> str | None:
    """Return a cell that may be a number or a time as text, None for anything else."""
    if isinstance(cell, str):
        return cell
    return str(cell) if isinstance(cell, int) and not isinstance(cell, bool) else None


def _encodable(cell: str | None) -> str | None:
    """Return a text, unless it has half a character in it, which Arrow cannot hold."""
    try:
        if cell is not None:
            cell.encode()
    except UnicodeEncodeError:
        return None
    return cell
