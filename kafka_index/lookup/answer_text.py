"""Answers as text: behind the cells of a CSV record, or inside the object of a JSON line."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.log.answers import ANSWER_SCHEMA, NULL, VALUE_COLUMNS, Answers, Longs, Status
from kafka_index.lookup.columns import needed_columns
from kafka_index.lookup.csv_queries import csv_header
from kafka_index.lookup.query_piece import LINE, QueryBatch
from kafka_index.lookup.settings import By

_TEXT = pa.large_string()
_STATUS = ANSWER_SCHEMA.names[0]


class CsvAnswers:
    """Writes CSV: each query's record as it stood in its file, and the answer's cells behind it.

    Parameters
    ----------
    path : str
        The file to write.
    template : str
        A file of queries; the header is its.
    by : By
        What the queries ask for, for the header of a file that has none.
    """

    def __init__(self, path: str, template: str, by: By) -> None:
        header = csv_header(template)
        columns = ",".join(needed_columns(by)) if header is None else header
        self._file: BinaryIO = open(path, "wb", buffering=0)  # noqa: SIM115, because close() is a method here
        self._file.write(f"{','.join([columns, *ANSWER_SCHEMA.names])}\n".encode())

    def write(self, batch: QueryBatch, answers: Answers) -> None:
        """Write queries with their answers."""
        cells: list[Any] = [batch.rows.column(LINE), _statuses(answers, "{}")]
        cells += [_scalar("") if text is None else text for text in _numbers(answers)]
        cells[-1] = _join([cells[-1], _scalar("\n")])
        _write(self._file, _join(cells, separator=","))

    def close(self) -> None:
        """Close the file; it is not durable by that."""
        self._file.close()


class JsonAnswers:
    """Writes JSON lines: each query's line as it stood in its file, the answer's members added.

    Parameters
    ----------
    path : str
        The file to write.
    """

    def __init__(self, path: str) -> None:
        self._file: BinaryIO = open(path, "wb", buffering=0)  # noqa: SIM115, because close() is a method here

    def write(self, batch: QueryBatch, answers: Answers) -> None:
        """Write queries with their answers."""
        lines = batch.rows.column(LINE)
        inside = pc.binary_slice(lines.cast(pa.large_binary()), 0, -1).cast(_TEXT)
        heads = pc.ascii_rtrim(inside, " \t\r\n")
        # What ends so is an empty object, and wants no comma.
        comma = pc.if_else(pc.ends_with(heads, "{"), _scalar(""), _scalar(","))
        pieces: list[Any] = [heads, comma, _statuses(answers, f'"{_STATUS}":"{{}}"')]
        constant = ""
        for name, text in zip(VALUE_COLUMNS, _numbers(answers), strict=True):
            constant += f",{json.dumps(name)}:"
            if text is None:
                constant += "null"
            else:
                pieces += [_scalar(constant), text]
                constant = ""
        pieces.append(_scalar(constant + "}\n"))
        _write(self._file, _join(pieces, null="null"))

    def close(self) -> None:
        """Close the file; it is not durable by that."""
        self._file.close()


def _statuses(answers: Answers, form: str) -> pa.Array:
    texts = pa.array([form.format(status.text) for status in Status], _TEXT)
    return texts.take(pa.array(answers.status))


def _numbers(answers: Answers) -> list[pa.Array | None]:
    """Return the value columns as texts; None for those that are null throughout."""
    columns: list[Longs | None] = [*answers.values]
    columns += [None] * (len(VALUE_COLUMNS) - len(columns))
    return [None if column is None else _text(column) for column in columns]


def _text(column: Longs) -> pa.Array | None:
    missing = column == NULL
    if missing.all():
        return None
    return pc.cast(pa.array(column, mask=missing if np.any(missing) else None), _TEXT)


def _join(pieces: list[Any], *, separator: str = "", null: str = "") -> pa.Array:
    return pc.binary_join_element_wise(
        *pieces, _scalar(separator), null_handling="replace", null_replacement=null
    )


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, _TEXT)


def _write(file: BinaryIO, texts: pa.Array) -> None:
    """Write the bytes of texts, one behind the other: they lie so in memory."""
    if not len(texts):
        return
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, offset=8 * texts.offset)
    view = memoryview(texts.buffers()[2])[int(offsets[0]) : int(offsets[-1])]
    while view:
        view = view[file.write(view) :]
