"""Queries in CSV: parsed by Arrow, with all columns as strings.

A row with another number of cells than the header stays in its place, as an invalid query.
"""

from __future__ import annotations

import csv
import io
import threading
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from kafka_index.errors import InputError
from kafka_index.lookup.keys import By, Flags
from kafka_index.lookup.query_columns import (
    QueryBatch,
    check_names,
    needed_columns,
    refuse_differences,
)
from kafka_index.lookup.query_files import QuerySplit, errors_of, text_blocks

# A row fits into a block.
_BLOCK_BYTES = 16 << 20
# Rows of a wrong width are held until rows of the right width follow.
_MAX_BAD_ROWS = 1_000_000
# Arrow's thread finishes the block that it is reading.
_MAX_WAIT_SECONDS = 60
# A row of one cell after the last one. Arrow reports it as a row of a wrong width, unless a quote
# that is never closed has swallowed it.
_END = "\x04end of queries\x04"

_BadRow = tuple[int, str]


def check_csv(files: Sequence[str], by: By) -> pa.Schema | None:
    """Check the headers of all files; return their columns, all strings.

    Empty files have none, and the result is None when all files are empty. Raises `InputError` if a
    file cannot be read, or its columns are not right or not those of the others.
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
        return None
    refuse_differences(schemas)
    return schemas[0][1]


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

        blocks = _Blocks(path)
        self._released = [_released(blocks), _released(skip)]
        self._reader: pa_csv.CSVStreamingReader | None = None
        try:
            self._reader = pa_csv.open_csv(
                blocks,
                # Only without threads are rows numbered.
                pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
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

    def read(self, size: int = -1) -> bytes:
        """Return at most so many bytes, none at the end."""
        self._block = self._block or memoryview(next(self._blocks, "").encode())
        block = self._block[:size] if size >= 0 else self._block
        self._block = self._block[len(block) :]
        return bytes(block)


def _blocks(path: str) -> Iterator[str]:
    """Yield the text from its first line that is not blank, which Arrow requires, to `_END`."""
    block = ""
    for text in text_blocks(path, _BLOCK_BYTES):
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
                f"a row of more than {_BLOCK_BYTES} bytes", path=path, hint="is a quote not closed?"
            ) from error
        raise InputError(
            f"not CSV: {error}", path=path, hint="does each row have the cells of the header?"
        ) from error
