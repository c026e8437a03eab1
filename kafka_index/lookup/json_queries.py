"""Queries in JSON lines: parsed by Arrow, and line by line where Arrow refuses some of them.

A line that is not an object is an invalid query.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from kafka_index.errors import InputError
from kafka_index.lookup.keys import By, Flags, Keys, plain_array, text_integers
from kafka_index.lookup.query_columns import (
    PARTITION,
    TOPIC,
    check_names,
    refuse_collisions,
)
from kafka_index.lookup.splits import QueryBatch, QuerySplit
from kafka_index.lookup.text_files import errors_of, text_blocks
from kafka_index.reading.answers import ANSWER_SCHEMA

# Small, because a line is parsed into objects of many times its size.
_BLOCK_BYTES = 4 << 20
_MAX_LINE_BYTES = 256 << 20
# Members are expected in the first lines: one that none of them has is misspelt rather than absent.
_FIRST_LINES = 1_000
# Without the overhead of json.loads, which searches for blanks around a value.
_DECODER = json.JSONDecoder()
_NULL = type(None)
_BLANKS = " \t\r"


def check_json(files: Sequence[str], by: By) -> tuple[str, ...]:
    """Check the first lines of all files; empty files have none.

    Returns
    -------
    tuple of str
        The members that these lines have, in the order in which they appear.

    Raises
    ------
    InputError
        A file cannot be read, no line has the members of a query, or one has members that are
        named like those of answers.
    """
    members: dict[str, None] = {}
    for path in files:
        with errors_of(path):
            lines = next(_lines(path), [])[:_FIRST_LINES]
        names: dict[str, None] = {}
        for line in lines:
            names.update(dict.fromkeys(_parse(line) or ()))
        if lines:
            check_names(list(names), by, path=path)
            members.update(names)
    return tuple(members)


def read_json(split: QuerySplit, *, as_lines: bool) -> Iterator[QueryBatch]:
    """Read the queries of a file of JSON lines.

    Parameters
    ----------
    split : QuerySplit
        The file.
    as_lines : bool
        Whether the queries pass through as lines, and not as columns of strings.

    Raises
    ------
    InputError
        The file cannot be read, or a line has members that are named like those of answers or,
        where the queries become columns, that none of the first lines has.
    """
    first_row = 1
    with errors_of(split.path):
        for lines in _lines(split.path):
            batch = _parse_with_arrow(lines, split, as_lines=as_lines)
            if batch is None:
                batch = _parse_by_line(lines, first_row, split, as_lines=as_lines)
            yield batch
            first_row += len(lines)


def _parse_with_arrow(lines: list[str], split: QuerySplit, *, as_lines: bool) -> QueryBatch | None:
    """Parse lines at once; None if one is bad or has members of unusual types or names.

    Arrow parses objects wherever they begin. If each line has braces around it and there are as
    many objects as lines, each line is an object.
    """
    objects = pa.array(lines, pa.large_string())
    if not pc.all(pc.and_(pc.starts_with(objects, "{"), pc.ends_with(objects, "}"))).as_py():
        return None
    text = "\n".join(lines).encode()
    needed = {TOPIC: pa.string(), PARTITION: pa.int64(), split.by.column: pa.int64()}
    if as_lines:
        # A member that is named like one of answers does not have this type, unless it is null.
        others = dict.fromkeys(ANSWER_SCHEMA.names, pa.null())
    else:
        others = {name: pa.string() for name in split.columns if name not in needed}
    for kind in (pa.int64(), pa.string()):
        needed[split.by.column] = kind
        try:
            table = pa_json.read_json(
                pa.BufferReader(text),
                pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                pa_json.ParseOptions(
                    explicit_schema=pa.schema(needed | others),
                    newlines_in_values=False,
                    unexpected_field_behavior="ignore" if as_lines else "error",
                ),
            )
        except pa.ArrowInvalid:
            continue
        if table.num_rows != len(lines):
            return None
        topics, partitions, keys = (plain_array(table.column(name)) for name in needed)
        names = [] if as_lines else [TOPIC, *others]
        rows = pa.RecordBatch.from_arrays(
            [plain_array(table.column(name)) for name in names], names
        )
        keys = _keys(keys, split.by)
        return QueryBatch(rows, topics, partitions, keys, objects if as_lines else None)
    return None


def _parse_by_line(
    lines: list[str], first_row: int, split: QuerySplit, *, as_lines: bool
) -> QueryBatch:
    objects = list(map(_parse, lines))
    bad = np.array([members is None for members in objects])
    rows = [members or {} for members in objects]
    _check_members(rows, first_row, split, as_lines=as_lines)
    key = split.by.column
    partitions = _numbers([row.get(PARTITION) for row in rows])
    if pa.types.is_string(partitions.type):
        values, valid = text_integers(partitions)
        partitions = pa.array(values, mask=None if valid is None else ~valid)
    keys = _keys(_numbers([row.get(key) for row in rows]), split.by)
    topics = [row.get(TOPIC) for row in rows]
    # In another format, partitions and keys are typed.
    names = [] if as_lines else [name for name in split.columns if name not in (PARTITION, key)]
    return QueryBatch(
        _columns(rows, names),
        _strings([topic if isinstance(topic, str) else None for topic in topics]),
        partitions,
        keys.without(bad) if bad.any() else keys,
        _object_lines(lines, bad) if as_lines else None,
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


def _parse(line: str) -> dict[str, Any] | None:
    """Return the members of a line without blanks around it; None when it is not an object."""
    try:
        parsed, end = _DECODER.raw_decode(line)
    except (ValueError, RecursionError):
        return None
    return parsed if end == len(line) and isinstance(parsed, dict) else None


def _check_members(
    rows: Sequence[dict[str, Any]], first_row: int, split: QuerySplit, *, as_lines: bool
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
            hint="they determine the columns of the answers: put such a line first, or leave out "
            "--output-format",
        )


def _object_lines(lines: list[str], bad: Flags) -> pa.Array:
    """Return lines that are objects, an empty one for each bad line."""
    if bad.any():
        lines = ["{}" if is_bad else line for line, is_bad in zip(lines, bad, strict=True)]
    return pa.array(lines, pa.large_string())


def _columns(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> pa.RecordBatch:
    """Return members as columns of strings: text as it is, null, or the JSON of other values."""
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        if not set(map(type, values)) <= {str, _NULL}:
            values = [
                value if value is None or isinstance(value, str) else json.dumps(value)
                for value in values
            ]
        columns.append(_strings(values))
    return pa.RecordBatch.from_arrays(columns, list(names))


def _keys(column: pa.Array, by: By) -> Keys:
    return Keys.of_text(column, by) if pa.types.is_string(column.type) else Keys.of(column, by)


def _numbers(values: list[object]) -> pa.Array:
    """Return values as int64 if all are integers, otherwise those that may be one as strings."""
    if set(map(type, values)) <= {int, _NULL}:
        try:
            return pa.array(values, pa.int64())
        except (OverflowError, pa.ArrowInvalid):
            pass
    return _strings([_number_text(value) for value in values])


def _number_text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _strings(values: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        # Half of a surrogate pair, which JSON can express and UTF-8 cannot.
        encoded = (None if value is None else value.encode(errors="replace") for value in values)
        return pa.array(encoded, pa.binary()).cast(pa.string())
