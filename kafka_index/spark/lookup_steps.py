"""The steps of a grouped lookup, as the tasks run them (see `kafka_index.spark.lookup_groups`)."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.errors import InputError
from kafka_index.lookup import Keys, Lookups, QueryPiece, read_piece
from kafka_index.lookup.inventory.partition_codes import NO_PARTITION
from kafka_index.lookup.planner import PartitionBins
from kafka_index.reading.answers import Answers
from kafka_index.spark.lookup_messages import (
    BLOCK_ROWS,
    FINDINGS,
    MARKER,
    MESSAGE_ROWS,
    QUERY,
    Asked,
    Reply,
    asked_batches,
    pack_answers,
    read_asked,
    reply_batches,
)
from kafka_index.spark.lookup_replies import ArrivedAnswers, Replies, partitions_to_ask
from kafka_index.spark.lookup_tasks import SharedLookups, finish_piece, read_manifest
from kafka_index.tasks import BIN

#: How many queries of some pieces ask for a partition.
COUNT_SCHEMA = pa.schema(
    [
        pa.field("code", pa.int32(), nullable=False),
        pa.field("queries", pa.int64(), nullable=False),
    ]
)
# Queries that are answered together.
_ROWS_TOGETHER = 1_000_000


@dataclass(frozen=True, slots=True)
class GroupedWork:
    """What the tasks of all steps share.

    Parameters
    ----------
    lookups : SharedLookups
        Of this run.
    owners : ndarray of int32
        The bin of the manifest that each piece is in, by its number.
    """

    lookups: SharedLookups
    owners: NDArray[np.int32]


def count(batches: Iterable[pa.RecordBatch], *, lookups: SharedLookups) -> Iterator[pa.RecordBatch]:
    """Count the queries of each partition in pieces of a manifest."""
    opened = lookups.open()
    for work in read_manifest(batches):
        for codes, _, _ in _read(work.piece, opened):
            values, counts = np.unique(codes[codes != NO_PARTITION], return_counts=True)
            yield pa.record_batch([values, counts], schema=COUNT_SCHEMA)


def ask(
    batches: Iterable[pa.RecordBatch], *, lookups: SharedLookups, places: PartitionBins
) -> Iterator[pa.RecordBatch]:
    """Read pieces of a manifest, and give out the queries that a log has to be asked for."""
    return asked_batches(_ask(batches, lookups.open(), places))


def answer_asked(
    batches: Iterable[pa.RecordBatch], *, work: GroupedWork
) -> Iterator[pa.RecordBatch]:
    """Answer the queries that were sent to one task, and send the answers to their pieces."""
    return reply_batches(_answer_asked(batches, work))


def mark(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send the pieces of a manifest themselves the way of their answers: one may have none."""
    rows = (row for batch in batches for row in batch.to_pylist())
    return reply_batches(Reply(row[BIN], row["piece"], MARKER, row["work"]) for row in rows)


def write_pieces(
    batches: Iterable[pa.RecordBatch], *, lookups: SharedLookups, starting_offsets: bool
) -> Iterator[pa.RecordBatch]:
    """Write pieces with the answers that have come, a row of `DONE_SCHEMA` for each."""
    opened = lookups.open()
    replies = Replies(batches, opened.settings.resolve)
    while (work := replies.next_piece()) is not None:
        number = work.piece.number
        arrived = ArrivedAnswers(opened, replies, number)
        done, is_whole = finish_piece(work, arrived, starting_offsets=starting_offsets)
        if not is_whole:
            replies.skip(number)
        yield done


def _read(piece: QueryPiece, lookups: Lookups) -> Iterator[tuple[NDArray[np.int32], Keys, int]]:
    """Read a piece: whom its queries ask for, what, and which row of the piece comes first."""
    first_row = 0
    # Queries that cannot be read: the task that writes the piece finds that out as well, and says.
    with suppress(InputError):
        for batch in read_piece(piece):
            codes = partitions_to_ask(lookups.inventory, batch.topics, batch.partitions, batch.keys)
            yield codes, batch.keys, first_row
            first_row += len(batch)


def _ask(
    batches: Iterable[pa.RecordBatch], lookups: Lookups, places: PartitionBins
) -> Iterator[Asked]:
    for work in read_manifest(batches):
        number = work.piece.number
        for codes, keys, first_row in _read(work.piece, lookups):
            sent = np.flatnonzero(codes != NO_PARTITION)
            rows = first_row + sent
            bins = places.of_rows(codes[sent], rows)
            blocks = rows // BLOCK_ROWS
            queries = np.empty(len(sent), QUERY)
            queries["row"] = rows - blocks * BLOCK_ROWS
            queries["code"] = codes[sent]
            queries["key"] = keys.values[sent]
            # Together what goes the same way. There are few ways, and numpy sorts numbers of 16
            # bits much faster than others.
            ways = (blocks - first_row // BLOCK_ROWS) * (int(bins.max(initial=0)) + 1) + bins
            order = np.argsort(ways.astype(np.min_scalar_type(ways.max(initial=0))), kind="stable")
            bins, blocks, queries = bins[order], blocks[order], queries[order]
            changes = np.flatnonzero(np.diff(ways[order])) + 1
            ends = [*changes.tolist(), len(queries)]
            for start, end in zip([0, *ends], ends, strict=False):
                for first in range(start, end, MESSAGE_ROWS):
                    part = queries[first : min(first + MESSAGE_ROWS, end)]
                    to, block = int(bins[first]), int(blocks[first])
                    yield Asked(to, number, block, keys.specials, part)


def _answer_asked(batches: Iterable[pa.RecordBatch], work: GroupedWork) -> Iterator[Reply]:
    opened = work.lookups.open()
    piece = None
    for messages in _together(read_asked(batches)):
        answers = _answer(messages, opened)
        start = 0
        for message in messages:
            piece = message.piece
            part = slice(start, start + len(message.queries))
            content = pack_answers(message.queries["row"], answers, part)
            yield Reply(int(work.owners[piece]), piece, message.block, content)
            start = part.stop
    findings = opened.take_findings()
    if piece is not None and findings:
        yield Reply(int(work.owners[piece]), piece, FINDINGS, pickle.dumps(findings))


def _together(messages: Iterable[Asked]) -> Iterator[list[Asked]]:
    """Put messages together until they hold enough queries, as long as they are of one kind."""
    kept: list[Asked] = []
    rows = 0
    for message in messages:
        if kept and (rows >= _ROWS_TOGETHER or kept[0].specials != message.specials):
            yield kept
            kept, rows = [], 0
        kept.append(message)
        rows += len(message.queries)
    if kept:
        yield kept


def _answer(messages: list[Asked], lookups: Lookups) -> Answers:
    """Answer the queries of messages of one kind."""
    queries = np.concatenate([message.queries for message in messages])
    codes = pa.array(np.ascontiguousarray(queries["code"]))
    partitions = lookups.inventory.partitions
    topics = pa.DictionaryArray.from_arrays(codes, partitions["topic"].combine_chunks())
    numbers = partitions["partition"].combine_chunks().take(codes)
    keys = Keys(np.ascontiguousarray(queries["key"]), specials=messages[0].specials)
    return lookups.answer(topics, numbers, keys)
