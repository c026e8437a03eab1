"""What the tasks of a grouped lookup send each other: queries and answers by the thousand.

A shuffle of Spark's moves rows one by one. So a row is a message here, with many queries of one
block of a piece in it, packed as numpy has them: some hundred times cheaper than a row for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.lookup.keys import Longs
from kafka_index.reading.answers import Answers
from kafka_index.tasks import BIN

#: Rows of a piece that are put together in memory at a time.
BLOCK_ROWS = 1 << 18
#: Queries of a message, at most.
MESSAGE_ROWS = 1 << 15
#: In place of a block's number: findings, pickled; and what says that a piece begins, which sorts
#: behind them and before its blocks.
FINDINGS = -2
MARKER = -1

#: Queries on their way to the task that answers their partitions.
ASKED_SCHEMA = pa.schema(
    [
        pa.field(BIN, pa.int32(), nullable=False),
        pa.field("piece", pa.int32(), nullable=False),
        pa.field("block", pa.int32(), nullable=False),
        pa.field("specials", pa.bool_(), nullable=False),
        pa.field("queries", pa.binary(), nullable=False),
    ]
)
#: Answers on their way to the task that writes their piece.
REPLY_SCHEMA = pa.schema(
    [
        pa.field(BIN, pa.int32(), nullable=False),
        pa.field("piece", pa.int32(), nullable=False),
        pa.field("block", pa.int32(), nullable=False),
        pa.field("content", pa.binary(), nullable=False),
    ]
)
#: A query: its place in the block, the number of its partition, the offset or time.
QUERY = np.dtype([("row", "<i4"), ("code", "<i4"), ("key", "<i8")])

# What is handed to the JVM at a time.
_BATCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """Queries of one block of a piece.

    Parameters
    ----------
    bin : int
        Who answers them.
    piece, block : int
        Where they are from.
    specials : bool
        Whether -1, -2 and -3 are places instead of times.
    queries : ndarray of QUERY
        The queries.
    """

    bin: int
    piece: int
    block: int
    specials: bool
    queries: NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Reply:
    """Answers to queries of one block of a piece, or (`MARKER`, `FINDINGS`) something else.

    Parameters
    ----------
    bin : int
        Who writes the piece.
    piece, block : int
        Where the queries are from.
    content : bytes
        `pack_answers`, or something pickled.
    """

    bin: int
    piece: int
    block: int
    content: bytes


def asked_batches(messages: Iterable[Asked]) -> Iterator[pa.RecordBatch]:
    """Return messages as rows of `ASKED_SCHEMA`."""
    rows = (
        ((one.bin, one.piece, one.block, one.specials, one.queries.tobytes()), one.queries.nbytes)
        for one in messages
    )
    return _batches(rows, ASKED_SCHEMA)


def read_asked(batches: Iterable[pa.RecordBatch]) -> Iterator[Asked]:
    """Return the messages of rows of `ASKED_SCHEMA`."""
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ASKED_SCHEMA.names[:-1]]
        for number, (to, piece, block, specials) in enumerate(zip(*columns, strict=True)):
            content = batch.column("queries")[number].as_buffer()
            yield Asked(to, piece, block, specials, np.frombuffer(content, QUERY))


def reply_batches(messages: Iterable[Reply]) -> Iterator[pa.RecordBatch]:
    """Return messages as rows of `REPLY_SCHEMA`."""
    rows = (((one.bin, one.piece, one.block, one.content), len(one.content)) for one in messages)
    return _batches(rows, REPLY_SCHEMA)


def read_replies(batches: Iterable[pa.RecordBatch]) -> Iterator[Reply]:
    """Return the messages of rows of `REPLY_SCHEMA`."""
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in REPLY_SCHEMA.names[:-1]]
        for number, (to, piece, block) in enumerate(zip(*columns, strict=True)):
            yield Reply(to, piece, block, batch.column("content")[number].as_py())


def pack_answers(rows: NDArray[np.int32], answers: Answers, part: slice) -> bytes:
    """Pack some answers with the places of their queries in the block."""
    values = np.ascontiguousarray(answers.values[:, part])
    return b"".join((rows.tobytes(), answers.status[part].tobytes(), values.tobytes()))


def unpack_answers(content: bytes, value_count: int) -> tuple[Longs, Answers]:
    """Return the places of queries in their block, and their answers."""
    count = len(content) // (4 + 1 + 8 * value_count)
    rows = np.frombuffer(content, "<i4", count)
    status = np.frombuffer(content, np.int8, count, 4 * count)
    values = np.frombuffer(content, "<i8", value_count * count, 5 * count)
    return rows.astype(np.int64), Answers(status, values.reshape(value_count, count))


def _batches(
    rows: Iterable[tuple[tuple[object, ...], int]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    kept: list[tuple[object, ...]] = []
    size_bytes = 0
    for cells, size in rows:
        kept.append(cells)
        size_bytes += size
        if size_bytes >= _BATCH_BYTES:
            yield _batch(kept, schema)
            kept, size_bytes = [], 0
    if kept:
        yield _batch(kept, schema)


def _batch(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), schema, strict=True)
        ],
        schema=schema,
    )
