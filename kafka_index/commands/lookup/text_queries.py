"""Queries in texts: CSV, parsed by Arrow with all columns as strings, and JSON lines, line by line.

A row of CSV with another number of cells than the header stays in its place, as an invalid query,
and so does a line that is not an object.
"""

from __future__ import annotations

import csv
import io
import json
import threading
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv

from kafka_index.commands.lookup.query_files import (
    PARTITION,
    TOPIC,
    QueryBatch,
    QuerySplit,
    check_names,
    errors_of,
    needed_columns,
    refuse_collisions,
    refuse_differences,
    text_blocks,
)
from kafka_index.core.errors import InputError
from kafka_index.core.query.keys import By, Flags

# A row fits into a block.
_CSV_BLOCK_BYTES = 16 << 20
# Rows of a wrong width are held until rows of the right width follow.
_MAX_BAD_ROWS = 1_000_000
# Arrow's thread finishes the block that it is reading.
_MAX_WAIT_SECONDS = 60
# A row of one cell after the last one. Arrow reports it as a row of a wrong width, unless a quote
# that is never closed has swallowed it.
_END = "\x04end of queries\x04"

_BadRow = tuple[int, str]
# Small, because a line is parsed into objects of many times its size.
_JSON_BLOCK_BYTES = 4 << 20
_MAX_LINE_BYTES = 256 << 20
# Members are expected in the first lines: a member that none of them has is misspelt rather than
# absent.
_FIRST_LINES = 1_000
_NULL = type(None)
_BLANKS = " \t\r"
_Members = dict[str, Any]


def check_csv(files: Sequence[str], by: By) -> tuple[str, ...]:
    """Check the headers of all files; return their columns, none if all files are empty.

    Raises `InputError` if a file cannot be read, or its columns are not right or not those of the
    others.
    """
    schemas: list[tuple[str, pa.Schema]] = []
    for path in files:
        with _csv_errors_of(path), _CsvReader(path, (), []) as reader:
            names = reader.schema.names
        if names == [_END]:
            continue
        check_names(names, by, path=path)
        schemas.append((path, pa.schema([(name, pa.string()) for name in names])))
    if not schemas:
        return ()
    refuse_differences(schemas)
    return tuple(schemas[0][1].names)


def read_csv(split: QuerySplit) -> Iterator[QueryBatch]:
    """Read the queries of a CSV file.

    Raises `InputError` if the file cannot be read, changed after it was checked, has a quote that
    is never closed or a row that is too long.
    """
    bad_rows: list[_BadRow] = []
    next_row = 2  # the header is row 1
    with _csv_errors_of(split.path), _CsvReader(split.path, split.columns, bad_rows) as reader:
        names = reader.schema.names
        if names == [_END]:
            return
        if sorted(names) != sorted(split.columns):
            raise split.changed()
        for batch in reader:
            rows, bad = _insert_bad_rows(batch, bad_rows, next_row)
            next_row += rows.num_rows
            if rows.num_rows:
                yield _csv_batch(rows, bad, split)
        if not bad_rows or bad_rows[-1][1] != _END:
            raise InputError(
                "a quote is never closed",
                path=split.path,
                hint="enclose cells that hold quotes in quotes, and double those inside",
            )
        bad_rows.pop()
        if bad_rows:
            bad = np.ones(len(bad_rows), np.bool_)
            yield _csv_batch(_padded(bad_rows, reader.schema), bad, split)


class _CsvReader:
    """A CSV file, read by Arrow; collects number and text of the rows of a wrong width.

    The file must have the columns `names` for them to be read as strings.
    """

    def __init__(self, path: str, names: Sequence[str], bad_rows: list[_BadRow]) -> None:
        def skip(row: pa_csv.InvalidRow) -> str:
            bad_rows.append((row.number, row.text))
            return "skip" if len(bad_rows) <= _MAX_BAD_ROWS else "error"

        # Arrow takes what a read returns for a block: a row may span two of them, and not three.
        blocks = io.BufferedReader(_Blocks(path))
        self._released = [_released(blocks), _released(skip)]
        self._reader: pa_csv.CSVStreamingReader | None = None
        try:
            self._reader = pa_csv.open_csv(
                blocks,
                # Only without threads are rows numbered.
                pa_csv.ReadOptions(use_threads=False, block_size=_CSV_BLOCK_BYTES),
                pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
                pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    check_utf8=False,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    null_values=[""],
                ),
            )
        except BaseException as error:
            del blocks, skip
            self._release(error)
            raise
        self.schema: pa.Schema = self._reader.schema

    def __enter__(self) -> Self:
        return self

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._reader or ())

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._release(error)

    def _release(self, error: BaseException | None) -> None:
        """Wait until Arrow has released the file and the handler.

        A thread of Arrow reads ahead and releases them. If the interpreter ends before that, it
        ends that thread in the middle of C++ code, which aborts the process.
        """
        if error is not None:
            # The frame of the read that failed refers to the file.
            traceback.clear_frames(error.__traceback__)
        for released in self._released:
            released.wait(_MAX_WAIT_SECONDS)


def _released(value: object) -> threading.Event:
    """Return an event that is set when nothing refers to a value any more."""
    event = threading.Event()
    weakref.finalize(value, event.set).atexit = False
    return event


class _Blocks(io.RawIOBase):
    """The text of a CSV file, for Arrow."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._blocks = _blocks(path)
        self._block = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        """Write the next bytes into a buffer; return how many, 0 at the end."""
        self._block = self._block or memoryview(next(self._blocks, "").encode())
        count = min(len(target), len(self._block))
        target[:count] = self._block[:count]
        self._block = self._block[count:]
        return count


def _blocks(path: str) -> Iterator[str]:
    """Yield the text from its first line that is not blank, which Arrow requires, to `_END`."""
    block = ""
    for text in text_blocks(path, _CSV_BLOCK_BYTES):
        if block:
            yield block
            block = text
        else:
            block = text.lstrip("\r\n")
    yield f"{block}\n{_END}\n"


def _insert_bad_rows(
    batch: pa.RecordBatch, bad_rows: list[_BadRow], first_row: int
) -> tuple[pa.RecordBatch, Flags | None]:
    """Return a batch with the rows of a wrong width in their places, and which those are.

    `bad_rows` has number and text of each from `first_row` on, which is the number of the first row
    of either kind; rows that are inserted are removed from it.
    """
    numbers = np.array([number for number, _ in bad_rows], np.int64) - first_row
    # So many rows of the right width come before each of them.
    before = numbers - np.arange(len(numbers))
    count = int(np.searchsorted(before, batch.num_rows))
    if not count:
        return batch, None
    inserted = _padded(bad_rows[:count], batch.schema)
    del bad_rows[:count]
    bad = np.zeros(batch.num_rows + count, np.bool_)
    bad[numbers[:count]] = True
    order = np.empty(len(bad), np.int64)
    order[bad] = batch.num_rows + np.arange(count)
    order[~bad] = np.arange(batch.num_rows)
    both = pa.Table.from_batches([batch, inserted]).take(pa.array(order)).combine_chunks()
    return both.to_batches()[0], bad


def _padded(bad_rows: Sequence[_BadRow], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of a wrong width with as many cells as there are columns."""
    rows = []
    for _, text in bad_rows:
        try:
            cells = next(csv.reader([text]), [])
        except csv.Error:
            cells = [text]
        rows.append([cell or None for cell in (cells + [""] * len(schema))[: len(schema)]])
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _csv_batch(rows: pa.RecordBatch, bad: Flags | None, split: QuerySplit) -> QueryBatch:
    if rows.schema.names != list(split.columns):
        rows = rows.select(list(split.columns))
    topics, partitions, keys = map(rows.column, needed_columns(split.by))
    return QueryBatch.of_text(rows, topics, partitions, keys, split.by, malformed=bad)


@contextmanager
def _csv_errors_of(path: str) -> Iterator[None]:
    """Raise what is wrong with a file as an InputError that names it."""
    try:
        with errors_of(path):
            yield
    except pa.ArrowInvalid as error:
        if "straddling" in str(error):
            raise InputError(
                f"a row of more than {_CSV_BLOCK_BYTES} bytes",
                path=path,
                hint="is a quote not closed?",
            ) from error
        raise InputError(
            f"not CSV: {error}", path=path, hint="does each row have the cells of the header?"
        ) from error


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
    for text in text_blocks(path, _JSON_BLOCK_BYTES):
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
