"""Making one file of the parts of an output, in order."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pyarrow.parquet as pq

from kafka_index.lookup.answers.answer_files import parquet_writer
from kafka_index.lookup.queries.csv_queries import csv_header
from kafka_index.lookup.queries.query_files import QueryFormat


def join_parts(parts: Sequence[str], path: str, form: QueryFormat) -> str:
    """Write one file with the answers of all parts, and return its path.

    Parameters
    ----------
    parts : sequence of str
        Files that `answer_piece` wrote, in the order of the pieces.
    path : str
        The file to write.
    form : QueryFormat
        Theirs.
    """
    if form is QueryFormat.PARQUET:
        _join_parquet(parts, path)
    else:
        _join_texts(parts, path, has_header=form is QueryFormat.CSV)
    return path


def _join_parquet(parts: Sequence[str], path: str) -> None:
    first = pq.read_metadata(parts[0])
    with parquet_writer(path, first.schema.to_arrow_schema(), first) as writer:
        for part in parts:
            with pq.ParquetFile(part) as file:
                for number in range(file.num_row_groups):
                    rows = file.read_row_group(number, use_threads=False)
                    writer.write_table(
                        rows.select(writer.schema.names).cast(writer.schema),
                        row_group_size=max(rows.num_rows, 1),
                    )


def _join_texts(parts: Sequence[str], path: str, *, has_header: bool) -> None:
    with open(path, "wb") as whole:
        for number, part in enumerate(parts):
            with open(part, "rb") as file:
                if has_header and number:
                    file.seek(len((csv_header(part) or "").encode()) + 1)
                shutil.copyfileobj(file, whole, 1 << 20)
