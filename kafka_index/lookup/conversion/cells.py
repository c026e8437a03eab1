"""Lines of CSV and JSON as columns of texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from kafka_index.lookup.conversion.places import Place
from kafka_index.lookup.keys import plain_array
from kafka_index.lookup.queries.columns import PARTITION
from kafka_index.lookup.settings import By
from kafka_index.lookup.text_arrays import join_texts, text_bytes

# Numbers stay the texts they are.
_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str, parse_constant=str)
_HALF_CHARACTER = re.compile(r"\\u[dD]")
_SPACE = re.compile(r"[ \t\r\n]*")


def csv_cells(lines: pa.Array, names: Sequence[str], place: Place) -> pa.RecordBatch:
    """Return records of CSV as columns of texts; an empty cell is an empty text.

    Parameters
    ----------
    lines : Array of large strings
        Records without line ends, that were read as CSV before.
    names : sequence of str
        The columns.
    place : Place
        Of the records.

    Raises
    ------
    InputError
        A cell is not UTF-8.
    """
    text = text_bytes(join_texts([lines, "\n"]))
    table = pa_csv.read_csv(
        pa.BufferReader(pa.py_buffer(text)),
        pa_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=list(names)),
        pa_csv.ParseOptions(newlines_in_values=True),
        pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            check_utf8=False,
            strings_can_be_null=False,
        ),
    )
    columns = [plain_array(column) for column in table.columns]
    for name, column in zip(names, columns, strict=True):
        row = _not_utf8(column)
        if row is not None:
            raise place.error(row, f"{name} is not UTF-8 text")
    return pa.RecordBatch.from_arrays(columns, list(names))


def json_cells(lines: pa.Array, names: Sequence[str], place: Place) -> pa.RecordBatch:
    """Return objects of JSON lines as columns of texts, as `csv_cells` does.

    Strings are their text, null and what is not there are null, anything else is its JSON as it
    stands.

    Raises
    ------
    InputError
        A line has a member that is no column, or is not UTF-8.
    """
    cells = _parse(lines, names, place.piece.by)
    return _parse_line_by_line(lines, names, place) if cells is None else cells


def _not_utf8(column: pa.Array) -> int | None:
    """Return the first cell that is not UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for row, cell in enumerate(column.cast(pa.binary()).to_pylist()):
            try:
                (cell or b"").decode()
            except UnicodeDecodeError:
                return row
    return None


def _parse(lines: pa.Array, names: Sequence[str], by: By) -> pa.RecordBatch | None:
    """Parse objects at once; None when one has members that are no texts, or no columns."""
    text = text_bytes(join_texts([lines, "\n"]))
    for kind in (pa.int64(), pa.string()):
        types = dict.fromkeys(names, pa.string()) | {PARTITION: pa.int64(), by.column: kind}
        try:
            table = pa_json.read_json(
                pa.BufferReader(pa.py_buffer(text)),
                pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                pa_json.ParseOptions(
                    explicit_schema=pa.schema(types.items()),
                    newlines_in_values=False,
                    unexpected_field_behavior="error",
                ),
            )
        except pa.ArrowInvalid:
            continue
        columns = [plain_array(table.column(name)).cast(pa.string()) for name in names]
        if table.num_rows == len(lines) and all(_not_utf8(column) is None for column in columns):
            return pa.RecordBatch.from_arrays(columns, list(names))
        return None
    return None


def _parse_line_by_line(lines: pa.Array, names: Sequence[str], place: Place) -> pa.RecordBatch:
    columns: dict[str, list[str | None]] = {name: [None] * len(lines) for name in names}
    for row, line in enumerate(lines):
        try:
            members = _members(line.as_buffer().to_pybytes().decode())
        except (ValueError, IndexError, RecursionError) as error:
            raise place.error(row, f"no JSON: {error}") from error
        for name, text in members.items():
            if name not in columns:
                raise place.error(
                    row,
                    f"the member {name!r} is in none of the files' first lines",
                    hint="they say which columns the answers have: put such a line first, or leave "
                    "out --output-format",
                )
            columns[name][row] = text
    return pa.RecordBatch.from_arrays(
        [pa.array(column, pa.string()) for column in columns.values()], list(columns)
    )


def _members(text: str) -> dict[str, str | None]:
    """Return the members of an object: strings, or the JSON of anything else as it stands."""
    members: dict[str, Any] = _DECODER.decode(text)
    if _HALF_CHARACTER.search(text) or any(isinstance(v, dict | list) for v in members.values()):
        return dict(_walk(text))
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in members.items()
    }


def _walk(text: str) -> Iterator[tuple[str, str | None]]:
    """Return the members of an object one by one, with where their values begin and end."""
    at = _skip(text, 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        value, end = _DECODER.raw_decode(text, at)
        yield name, None if value is None else _text_of(value, text[at:end])
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _text_of(value: object, as_json: str) -> str:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # half a character: no text can hold that
            return as_json
        return value
    return as_json


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
