"""Answers that were found by other tasks, put back to the queries of a piece."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.errors import KafkaIndexError
from kafka_index.lookup import Inventory, Keys, Lookups
from kafka_index.lookup.inventory.partition_codes import NO_PARTITION
from kafka_index.lookup.keys import Longs, integers, plain_array
from kafka_index.reading.answers import Answers, Resolve
from kafka_index.reading.findings import Finding
from kafka_index.spark.lookup_messages import (
    BLOCK_ROWS,
    FINDINGS,
    MARKER,
    Reply,
    read_replies,
    unpack_answers,
)
from kafka_index.spark.lookup_tasks import PieceWork, read_work


def partitions_to_ask(
    inventory: Inventory,
    topics: pa.Array | pa.ChunkedArray,
    partitions: pa.Array | pa.ChunkedArray,
    keys: Keys,
) -> NDArray[np.int32]:
    """Return the number of the partition that each query is sent to.

    `NO_PARTITION` where the query itself says how it ends, and no log need be asked.
    """
    numbers, present = integers(plain_array(partitions))
    codes = inventory.codes(topics, numbers)
    for flags in (present, keys.valid):
        if flags is not None:
            codes = np.where(flags, codes, np.int32(NO_PARTITION))
    return codes


class Replies:
    """The answers that have come for the pieces of one task.

    Parameters
    ----------
    batches : iterable of pa.RecordBatch
        `REPLY_SCHEMA`, sorted by piece and block.
    resolve : Resolve
        Their level.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], resolve: Resolve) -> None:
        self._messages = read_replies(batches)
        self._next: Reply | None = next(self._messages, None)
        self._resolve = resolve
        self._block = _Block(Answers.empty(0, resolve), 0)
        self._number = -1
        self._findings: list[Finding] = []

    def next_piece(self) -> PieceWork | None:
        """Return the next piece; None when there is none.

        Raises
        ------
        KafkaIndexError
            There are answers left to the piece before.
        """
        self._leave_block()
        while (message := self._next) is not None:
            if message.block >= 0:
                raise _broken("more answers than queries")
            self._advance()
            if message.block == MARKER:
                return read_work(message.content)
            if message.block == FINDINGS:
                self._findings += pickle.loads(message.content)  # noqa: S301, from our own tasks
        return None

    def take(self, piece: int, rows: Longs, answers: Answers, places: Longs) -> None:
        """Put the answers to ascending rows of a piece into their places.

        Raises
        ------
        KafkaIndexError
            They have not all come, as when the job is being cancelled.
        """
        blocks = rows // BLOCK_ROWS
        for number in np.unique(blocks).tolist():
            if number != self._number:
                self._leave_block()
                self._enter_block(piece, number)
            wanted = blocks == number
            self._block.take(rows[wanted] - number * BLOCK_ROWS, answers, places[wanted])

    def skip(self, piece: int) -> None:
        """Pass over the answers to a piece that cannot be read after all."""
        self._number, self._block = -1, _Block(Answers.empty(0, self._resolve), 0)
        while self._next is not None and self._next.piece == piece:
            self._advance()

    def take_findings(self) -> list[Finding]:
        """Return what other tasks noticed, as far as it has come."""
        found, self._findings = self._findings, []
        return found

    def _advance(self) -> None:
        self._next = next(self._messages, None)

    def _enter_block(self, piece: int, number: int) -> None:
        parts = []
        answers = Answers.empty(0, self._resolve)
        while self._next is not None and (self._next.piece, self._next.block) == (piece, number):
            parts.append(unpack_answers(self._next.content, len(answers.values)))
            self._advance()
        size = max((int(rows.max(initial=-1)) + 1 for rows, _ in parts), default=0)
        answers = Answers.empty(size, self._resolve)
        self._block = _Block(answers, sum(len(rows) for rows, _ in parts))
        for rows, some in parts:
            self._block.put(rows, some)
        self._number = number

    def _leave_block(self) -> None:
        self._block.check_all_taken()
        self._number, self._block = -1, _Block(Answers.empty(0, self._resolve), 0)


class _Block:
    """Some rows of a piece, and their answers."""

    def __init__(self, answers: Answers, count: int) -> None:
        self._answers = answers
        self._left = count
        self._has = np.zeros(len(answers), np.bool_)

    def put(self, rows: Longs, answers: Answers) -> None:
        """Note answers that came."""
        self._answers.put(rows, answers)
        self._has[rows] = True

    def take(self, rows: Longs, answers: Answers, places: Longs) -> None:
        """Give answers away."""
        if rows[-1] >= len(self._has) or not self._has[rows].all():
            raise _broken("answers are missing")
        answers.status[places] = self._answers.status[rows]
        answers.values[:, places] = self._answers.values[:, rows]
        self._left -= len(rows)

    def check_all_taken(self) -> None:
        """Refuse what nobody asked for."""
        if self._left:
            raise _broken("more answers than queries")


class ArrivedAnswers(Lookups):
    """Stands in for the lookups of a piece whose queries other tasks have answered.

    Parameters
    ----------
    lookups : Lookups
        Of this worker, for queries that no log is asked for.
    replies : Replies
        Where the other answers come from.
    piece : int
        Number of the piece.
    """

    def __init__(self, lookups: Lookups, replies: Replies, piece: int) -> None:
        super().__init__(lookups.inventory, lookups.settings)
        self._lookups = lookups
        self._replies = replies
        self._piece = piece
        self._rows = 0

    def answer(
        self,
        topics: pa.Array | pa.ChunkedArray,
        partitions: pa.Array | pa.ChunkedArray,
        keys: Keys,
    ) -> Answers:
        """Return the answers to the next queries of the piece."""
        codes = partitions_to_ask(self.inventory, topics, partitions, keys)
        sent = np.flatnonzero(codes != NO_PARTITION)
        answers = Answers.empty(len(keys), self.settings.resolve)
        self._replies.take(self._piece, self._rows + sent, answers, sent)
        self._rows += len(keys)
        if len(sent) < len(keys):
            others = np.flatnonzero(codes == NO_PARTITION)
            rows = pa.array(others)
            valid = None if keys.valid is None else keys.valid[others]
            asked = Keys(keys.values[others], valid, keys.specials)
            found = self._lookups.answer(topics.take(rows), partitions.take(rows), asked)
            answers.put(others, found)
        return answers

    def end_offset(self, code: int) -> int | None:
        """Return where a partition ends."""
        return self._lookups.end_offset(code)

    def take_findings(self) -> list[Finding]:
        """Return what this worker and those that answered have noticed."""
        return [*self._replies.take_findings(), *self._lookups.take_findings()]


def _broken(what: str) -> KafkaIndexError:
    return KafkaIndexError(
        f"the answers to a piece of the queries did not come as they were asked for: {what}",
        hint="did the query files change? run again when nothing writes to them",
    )
