"""Answers as text: behind the cells of a CSV record, or inside the object of a JSON line."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.lookup.queries.query_piece import LINE, QueryBatch
from kafka_index.lookup.text_arrays import TEXT, join_texts, text_bytes
from kafka_index.reading.answers import ANSWER_SCHEMA, NULL, VALUE_COLUMNS, Answers, Longs, Status

_STATUS = ANSWER_SCHEMA.names[0]


class CsvAnswers:
    """Writes CSV: each query's record, and the answer's cells behind it.

    Parameters
    ----------
    path : str
        The file to write.
    header : str
        That of the queries.
    """

    def __init__(self, path: str, header: str) -> None:
        self._file: BinaryIO = open(path, "wb", buffering=0)  # noqa: SIM115, because close() is a method here
        self._file.write(f"{','.join([header, *ANSWER_SCHEMA.names])}\n".encode())

    def write(self, batch: QueryBatch, answers: Answers) -> None:
        """Write queries with their answers."""
        cells: list[Any] = [batch.rows.column(LINE), _statuses(answers, "{}")]
        cells += ["" if text is None else text for text in _numbers(answers)]
        cells[-1] = join_texts([cells[-1], "\n"])
        _write(self._file, join_texts(cells, separator=","))

    def close(self) -> None:
        """Close the file; it is not durable by that."""
        self._file.close()


class JsonAnswers:
    """Writes JSON lines: each query's line, the answer's members added.

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
        inside = pc.binary_slice(lines.cast(pa.large_binary()), 0, -1).cast(TEXT)
        heads = pc.ascii_rtrim(inside, " \t\r\n")
        # What ends so is an empty object, and wants no comma.
        comma = pc.if_else(pc.ends_with(heads, "{"), pa.scalar("", TEXT), pa.scalar(",", TEXT))
        pieces: list[Any] = [heads, comma, _statuses(answers, f'"{_STATUS}":"{{}}"')]
        constant = ""
        for name, text in zip(VALUE_COLUMNS, _numbers(answers), strict=True):
            constant += f",{json.dumps(name)}:"
            if text is None:
                constant += "null"
            else:
                pieces += [constant, text]
                constant = ""
        pieces.append(constant + "}\n")
        _write(self._file, join_texts(pieces, null="null"))

    def close(self) -> None:
        """Close the file; it is not durable by that."""
        self._file.close()


def _statuses(answers: Answers, form: str) -> pa.Array:
    texts = pa.array([form.format(status.text) for status in Status], TEXT)
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
    return pc.cast(pa.array(column, mask=missing if np.any(missing) else None), TEXT)


def _write(file: BinaryIO, texts: pa.Array) -> None:
    view = text_bytes(texts)
    while view:
        view = view[file.write(view) :]
