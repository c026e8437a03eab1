"""What tasks of a lookup get, share and give back."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.lookup import (
    AnswerTarget,
    Inventory,
    Lookups,
    LookupSettings,
    PieceReport,
    QueryPiece,
    answer_piece,
)
from kafka_index.spark.tasks import current_attempt_id
from kafka_index.tasks import BIN, new_run_id

#: A row per piece: a `PieceWork`, pickled, and the bin that it is answered in.
MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("piece", pa.int32(), nullable=False),
        pa.field("work", pa.binary(), nullable=False),
        pa.field(BIN, pa.int32(), nullable=False),
    ]
)
#: A row per finished piece: its `PieceReport`, or what is wrong with its queries, pickled.
DONE_SCHEMA = pa.schema(
    [
        pa.field("piece", pa.int32(), nullable=False),
        pa.field("report", pa.binary(), nullable=False),
    ]
)

# The lookups of this process, by run: a worker is used for task after task, and what it has open
# stays open. One at most.
_open: dict[str, Lookups] = {}


@dataclass(frozen=True, slots=True)
class SharedLookups:
    """How to make the `Lookups` of a run, in every worker once.

    Parameters
    ----------
    run_id : str
        No two runs share it.
    settings : LookupSettings
        How to look up.
    packed : bytes
        The inventory, pickled: it can be large, and most tasks need not even look at it.
    """

    run_id: str
    settings: LookupSettings
    packed: bytes

    @classmethod
    def of(cls, inventory: Inventory, settings: LookupSettings) -> Self:
        """Return what to send to workers."""
        return cls(new_run_id(), settings, pickle.dumps(inventory))

    def open(self) -> Lookups:
        """Return the lookups of this process, which stay open after the task."""
        if self.run_id not in _open:
            while _open:
                _open.popitem()[1].close()
            _open[self.run_id] = Lookups(pickle.loads(self.packed), self.settings)  # noqa: S301, ours
        return _open[self.run_id]


@dataclass(frozen=True, slots=True)
class PieceWork:
    """A piece, and where its answers go."""

    piece: QueryPiece
    part_path: str


def manifest_table(
    pieces: Sequence[QueryPiece], target: AnswerTarget, bins: Sequence[int]
) -> pa.Table:
    """Return the manifest of a run, `MANIFEST_SCHEMA`."""
    return pa.table(
        [
            [piece.number for piece in pieces],
            [pickle.dumps(PieceWork(piece, target.part_path(piece))) for piece in pieces],
            list(bins),
        ],
        schema=MANIFEST_SCHEMA,
    )


def read_manifest(batches: Iterable[pa.RecordBatch]) -> Iterator[PieceWork]:
    """Return the pieces of rows of `MANIFEST_SCHEMA`, in their order."""
    for batch in batches:
        for work in batch.column("work").to_pylist():
            yield read_work(work)


def read_work(packed: bytes) -> PieceWork:
    """Return one piece of a manifest."""
    work = pickle.loads(packed)  # noqa: S301, written by our own driver
    if not isinstance(work, PieceWork):
        raise TypeError(f"not a piece: {work!r}")
    return work


def answer_pieces(
    batches: Iterable[pa.RecordBatch], *, lookups: SharedLookups, starting_offsets: bool
) -> Iterator[pa.RecordBatch]:
    """Answer pieces of a manifest, a row of `DONE_SCHEMA` for each."""
    for work in read_manifest(batches):
        done, _ = finish_piece(work, lookups.open(), starting_offsets=starting_offsets)
        yield done


def finish_piece(
    work: PieceWork, lookups: Lookups, *, starting_offsets: bool
) -> tuple[pa.RecordBatch, bool]:
    """Answer a piece; return its row of `DONE_SCHEMA`, and whether its queries could be read."""
    done: PieceReport | InputError
    try:
        done = answer_piece(
            work.piece,
            lookups,
            work.part_path,
            attempt_id=current_attempt_id(),
            starting_offsets=starting_offsets,
        )
    except InputError as error:
        # Queries that cannot be read: another attempt would find them so, too.
        done = error
    columns = [pa.array([work.piece.number], pa.int32()), pa.array([pickle.dumps(done)])]
    return pa.record_batch(columns, schema=DONE_SCHEMA), not isinstance(done, InputError)


def read_done(rows: pa.Table) -> list[PieceReport]:
    """Return the reports of finished pieces, in the order of the pieces.

    Raises
    ------
    InputError
        The queries of a piece cannot be read.
    """
    reports = []
    for packed in rows.sort_by("piece").column("report").to_pylist():
        done = pickle.loads(packed)  # noqa: S301, written by our own tasks
        if isinstance(done, InputError):
            raise done
        reports.append(done)
    return reports
