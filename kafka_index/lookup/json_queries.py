"""Queries in JSON lines, parsed line by line. A line that is not an object is an invalid query."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.lookup.keys import By
from kafka_index.lookup.query_columns import (
    PARTITION,
    TOPIC,
    QueryBatch,
    check_names,
    refuse_collisions,
)
from kafka_index.lookup.query_files import QuerySplit, errors_of, text_blocks

# Small, because a line is parsed into objects of many times its size.
_BLOCK_BYTES = 4 << 20
_MAX_LINE_BYTES = 256 << 20
# Members are expected in the first lines: a member that none of them has is misspelt rather than
# absent.
_FIRST_LINES = 1_000
_NULL = type(None)
_BLANKS = " \t\r"

_Members = dict[str, Any]


def check_json(files: Sequence[str], by: By) -> tuple[str, ...]:
    """Check the first lines of all files; return their members in the order in which they appear.

    Empty files have none. Raises `InputError` if a file cannot be read, no line has the members of
    a query, or one has members that are named like those of answers.
    """
    members: dict[str, None] = {}
    for path in files:
        with errors_of(path):
            lines = next(_lines(path), [])[:_FIRST_LINES]
        names = dict.fromkeys(name for members in _parse(lines)[0] for name in members)
        if lines:
            check_names(list(names), by, path=path)
            members.update(names)
    return tuple(members)


def read_json(split: QuerySplit, *, as_lines: bool) -> Iterator[QueryBatch]:
    """Read the queries of a file of JSON lines, `as_lines` or as columns of strings.

    Raises `InputError` if the file cannot be read, or a line has members that are named like those
    of answers or, where the queries become columns, that none of the first lines has.
    """
    first_row = 1
    with errors_of(split.path):
        for lines in _lines(split.path):
            rows, bad = _parse(lines)
            _check_members(rows, first_row, split, as_lines=as_lines)
            yield _batch(lines, rows, bad, split, as_lines=as_lines)
            first_row += len(lines)


def _batch(
    lines: list[str], rows: list[_Members], bad: list[int], split: QuerySplit, *, as_lines: bool
) -> QueryBatch:
    key = split.by.column
    topics = [row.get(TOPIC) for row in rows]
    if not set(map(type, topics)) <= {str, _NULL}:
        topics = [topic if isinstance(topic, str) else None for topic in topics]
    flags = None
    if bad:
        flags = np.zeros(len(lines), np.bool_)
        flags[bad] = True
        lines = ["{}" if is_bad else line for line, is_bad in zip(lines, flags, strict=True)]
    # In Parquet, partitions and keys are typed.
    names = [] if as_lines else [name for name in split.columns if name not in (PARTITION, key)]
    return QueryBatch.of_text(
        pa.RecordBatch.from_arrays([_texts(rows, name) for name in names], names),
        pa.array(topics, pa.string()),
        _numbers([row.get(PARTITION) for row in rows]),
        _numbers([row.get(key) for row in rows]),
        split.by,
        lines=pa.array(lines, pa.large_string()) if as_lines else None,
        malformed=flags,
    )


def _lines(path: str) -> Iterator[list[str]]:
    """Yield the lines of a text that are not blank, some at a time."""
    left = ""
    for text in text_blocks(path, _BLOCK_BYTES):
        head, newline, tail = text.rpartition("\n")
        if not newline:
            left += text
            if len(left) > _MAX_LINE_BYTES:
                raise InputError(
                    f"a line of more than {_MAX_LINE_BYTES} bytes", path=path, hint="is this text?"
                )
            continue
        lines = [line for piece in (left + head).split("\n") if (line := piece.strip(_BLANKS))]
        left = tail
        if lines:
            yield lines
    if last := left.strip(_BLANKS):
        yield [last]


def _parse(lines: list[str]) -> tuple[list[_Members], list[int]]:
    """Return the members of each line, and which lines are not objects: they have no members."""
    rows: list[_Members] = []
    bad: list[int] = []
    for line in lines:
        try:
            parsed = orjson.loads(line)
        except orjson.JSONDecodeError:
            parsed = None
        if not isinstance(parsed, dict):
            bad.append(len(rows))
            parsed = {}
        rows.append(parsed)
    return rows, bad


def _check_members(
    rows: Sequence[_Members], first_row: int, split: QuerySplit, *, as_lines: bool
) -> None:
    names = set().union(*rows)
    refuse_collisions(names, path=split.path)
    unknown = set() if as_lines else names.difference(split.columns)
    if unknown:
        row = next(row for row, members in enumerate(rows) if unknown & members.keys())
        raise InputError(
            f"query {first_row + row}: the member {min(unknown & rows[row].keys())!r} is in none "
            "of the files' first lines",
            path=split.path,
            hint="they determine the columns of answers in Parquet: put such a line first, or "
            "write JSON lines",
        )


def _texts(rows: Sequence[_Members], name: str) -> pa.Array:
    """Return a member as a column of strings: text as it is, null, or the JSON of other values."""
    values = [row.get(name) for row in rows]
    if not set(map(type, values)) <= {str, _NULL}:
        values = [
            value if value is None or isinstance(value, str) else json.dumps(value)
            for value in values
        ]
    return pa.array(values, pa.string())


def _numbers(values: list[object]) -> pa.Array:
    """Return values as int64 if all are integers, else as text; null for any other value."""
    if set(map(type, values)) <= {int, _NULL}:
        try:
            return pa.array(values, pa.int64())
        except (OverflowError, pa.ArrowInvalid):
            pass
    return pa.array([_number_text(value) for value in values], pa.string())


def _number_text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
