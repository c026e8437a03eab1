"""The one function of a lookup that both engines call: a piece of queries in, a part out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pyarrow as pa

from kafka_index.lookup.answers.answer_files import make_file_durable, open_answers
from kafka_index.lookup.conversion.converter import Converter
from kafka_index.lookup.lookups import Lookups
from kafka_index.lookup.queries.parquet_queries import PIECE_ROWS, READ_ROWS
from kafka_index.lookup.queries.query_files import QueryFormat
from kafka_index.lookup.queries.query_piece import QueryBatch, QueryPiece
from kafka_index.lookup.queries.reading import read_piece
from kafka_index.lookup.reports.piece_report import PieceReport
from kafka_index.lookup.reports.tally import PieceTally
from kafka_index.reading.answers import Answers
from kafka_index.storage import publish_error


def answer_batches(
    piece: QueryPiece, lookups: Lookups, output_format: QueryFormat | None = None
) -> Iterator[tuple[QueryBatch, Answers]]:
    """Answer the queries of a piece, batch by batch, in order.

    Parameters
    ----------
    piece : QueryPiece
        The queries.
    lookups : Lookups
        Of this thread or worker.
    output_format : QueryFormat, optional
        What their rows are converted to; None: nothing.

    Raises
    ------
    InputError
        The queries cannot be read.
    """
    converter = None
    if output_format not in (None, piece.format):
        converter = Converter(piece, output_format)
    # Each batch asks for all segments anew: with more of them than are kept open, rather few and
    # large ones.
    many = lookups.inventory.segment_count > lookups.settings.max_open_segments
    for batch in read_piece(piece, most_rows=PIECE_ROWS if many else READ_ROWS):
        answers = lookups.answer(batch.topics, batch.partitions, batch.keys)
        yield batch if converter is None else converter.convert(batch), answers


def answer_piece(
    piece: QueryPiece,
    lookups: Lookups,
    part_path: str,
    *,
    attempt_id: str,
    starting_offsets: bool = False,
) -> PieceReport:
    """Answer the queries of a piece into one file, which appears whole and durable.

    Parameters
    ----------
    piece : QueryPiece
        The queries.
    lookups : Lookups
        Of this thread or worker. What it noticed before and was not asked for is told, too.
    part_path : str
        The file, as `AnswerTarget.part_path` says. Its ending is the format of the answers;
        without one that is known, it is that of the queries.
    attempt_id : str
        Letters, digits and underscores. Two attempts at one piece that may overlap differ in it.
    starting_offsets : bool
        Whether to tell where to start reading.

    Raises
    ------
    InputError
        The queries cannot be read.
    PublishError
        The part cannot be written.
    """
    form = QueryFormat.of(part_path) or piece.format
    tally = PieceTally(lookups, starting_offsets=starting_offsets)
    folder, name = os.path.split(part_path)
    scratch = os.path.join(folder, f".{name}.{attempt_id}.tmp")
    try:
        writer = open_answers(scratch, form, piece)
        try:
            for batch, answers in answer_batches(piece, lookups, form):
                writer.write(batch, answers)
                tally.add(batch, answers)
        finally:
            writer.close()
        make_file_durable(scratch)
        os.replace(scratch, part_path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        if isinstance(error, OSError):
            raise publish_error(error, part_path, "write the answers") from error
        raise
    return tally.report(piece.number)


def answer_batch(rows: pa.RecordBatch, lookups: Lookups) -> pa.RecordBatch:
    """Answer queries in memory: their columns, and behind them those of `ANSWER_SCHEMA`.

    The columns are those that `check_columns` lets pass.
    """
    batch = QueryBatch.of(rows, lookups.settings.by)
    answers = lookups.answer(batch.topics, batch.partitions, batch.keys).to_arrow()
    schema = pa.schema([*rows.schema, *answers.schema], rows.schema.metadata)
    return pa.RecordBatch.from_arrays([*rows.columns, *answers.columns], schema=schema)
