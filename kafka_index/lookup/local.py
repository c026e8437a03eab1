"""The local engine: pieces on threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Self

from kafka_index.lookup.answers.answer_files import open_answers
from kafka_index.lookup.answers.output import AnswerTarget
from kafka_index.lookup.inventory.tables import Inventory
from kafka_index.lookup.lookups import Lookups
from kafka_index.lookup.piece import answer_batches, answer_piece
from kafka_index.lookup.queries.opening import Queries
from kafka_index.lookup.queries.query_piece import QueryPiece
from kafka_index.lookup.reports.piece_report import PieceReport
from kafka_index.lookup.reports.tally import PieceTally
from kafka_index.lookup.settings import LookupSettings
from kafka_index.storage import publish_error

_Answer = Callable[[QueryPiece, Lookups], PieceReport]


def run_local(
    queries: Queries,
    inventory: Inventory,
    settings: LookupSettings,
    target: AnswerTarget,
    *,
    threads: int,
    on_piece: Callable[[PieceReport], None],
    starting_offsets: bool = False,
) -> None:
    """Answer all queries into the target; publishing it is the caller's.

    Parameters
    ----------
    queries, inventory, settings, target
        What, over which logs, how, and where to. `target` is entered.
    threads : int
        Pieces at a time; each thread has a `Lookups` of its own, and holds one batch.
    on_piece : callable
        Called with each piece's report, by one thread at a time.
    starting_offsets : bool
        Whether the reports tell where to start reading.

    Raises
    ------
    InputError
        Queries cannot be read.
    PublishError
        Answers cannot be written.
    """
    turns = _Turns(queries.pieces)
    lock = threading.Lock()

    def part(piece: QueryPiece, lookups: Lookups) -> PieceReport:
        return answer_piece(
            piece,
            lookups,
            target.part_path(piece),
            attempt_id="local",
            starting_offsets=starting_offsets,
        )

    def run(answer: _Answer) -> None:
        try:
            with Lookups(inventory, settings) as lookups:
                while (piece := turns.take()) is not None:
                    report = answer(piece, lookups)
                    with lock:
                        on_piece(report)
        except _Stopped:
            return
        except BaseException:
            turns.stop()
            raise

    threads = max(min(threads, len(queries.pieces)), 1)
    with ExitStack() as stack:
        answer: _Answer = part
        if target.is_file:
            answer = stack.enter_context(
                _OneFile(queries, target, turns, starting_offsets=starting_offsets)
            ).answer
        pool = stack.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="lookup"))
        try:
            for future in [pool.submit(run, answer) for _ in range(threads)]:
                future.result()
        finally:
            # After an interrupt the other threads need not go on.
            turns.stop()


class _Stopped(Exception):  # noqa: N818, because it is no error
    """Another thread failed, and will tell."""


class _Turns:
    """Hands out pieces in order, and lets threads that finish them wait for their turn."""

    def __init__(self, pieces: tuple[QueryPiece, ...]) -> None:
        self._pieces = iter(pieces)
        self._changed = threading.Condition()
        self._next = 0
        self._stopped = False

    def take(self) -> QueryPiece | None:
        """Return the next piece, None when there is none or another thread failed."""
        with self._changed:
            return None if self._stopped else next(self._pieces, None)

    def wait_for(self, piece: QueryPiece) -> None:
        """Wait until all pieces before this one are written."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._next == piece.number)
            if self._stopped:
                raise _Stopped

    def pass_on(self) -> None:
        """Let the next piece be written."""
        with self._changed:
            self._next += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Let nobody wait any longer, and nobody begin."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class _OneFile:
    """One file that all threads write, each when its turn has come.

    A thread reads and answers its first batch before that: as many batches are in memory as there
    are threads.
    """

    def __init__(
        self, queries: Queries, target: AnswerTarget, turns: _Turns, *, starting_offsets: bool
    ) -> None:
        self._path = target.path
        self._format = target.format
        self._turns = turns
        self._starting_offsets = starting_offsets
        with self._publishing():
            self._writer = open_answers(target.whole_path, target.format, queries.pieces[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._publishing():
            self._writer.close()

    def answer(self, piece: QueryPiece, lookups: Lookups) -> PieceReport:
        """Answer a piece behind all pieces before it."""
        tally = PieceTally(lookups, starting_offsets=self._starting_offsets)
        for batch, answers in answer_batches(piece, lookups, self._format):
            tally.add(batch, answers)
            self._turns.wait_for(piece)
            with self._publishing():
                self._writer.write(batch, answers)
        self._turns.wait_for(piece)
        self._turns.pass_on()
        return tally.report(piece.number)

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise publish_error(error, self._path, "write the answers") from error
