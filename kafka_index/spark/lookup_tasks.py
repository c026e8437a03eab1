"""Tasks of lookups: splits of query files that they answer, and what a worker keeps open."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.execution.tasks import BIN, new_run_id
from kafka_index.lookup import (
    AnswerTarget,
    Inventory,
    Lookups,
    LookupSettings,
    QuerySplit,
    SplitReport,
    answer_split,
)
from kafka_index.reading.fetched_indexes import IndexFolder
from kafka_index.spark.tasks import current_attempt_id

#: Columns of `MANIFEST_SCHEMA`, besides the bin.
SPLIT, WORK = "split", "work"
#: A row per split: a `SplitWork`, pickled, and the bin that it is answered in.
MANIFEST_SCHEMA = pa.schema(
    [
        pa.field(BIN, pa.int32(), nullable=False),
        pa.field(SPLIT, pa.int32(), nullable=False),
        pa.field(WORK, pa.binary(), nullable=False),
    ]
)
#: A row per finished split: its `SplitReport`, or what is wrong with its queries, pickled.
DONE_SCHEMA = pa.schema(
    [
        pa.field(SPLIT, pa.int32(), nullable=False),
        pa.field("report", pa.binary(), nullable=False),
    ]
)

# The lookups of this process, by run, one at most: Spark reuses a worker for many tasks, and what
# one has opened stays open for the next.
_open: dict[str, Lookups] = {}


@dataclass(frozen=True, slots=True)
class SharedLookups:
    """Makes the `Lookups` of a run, once in every worker.

    The inventory is pickled: it can be large, and most tasks need not unpack it. Workers share the
    indexes that they build in the folder. No two runs share a run id.
    """

    run_id: str
    settings: LookupSettings
    packed: bytes
    folder: IndexFolder | None = None

    @classmethod
    def of(
        cls, inventory: Inventory, settings: LookupSettings, folder: IndexFolder | None = None
    ) -> Self:
        """Return the object to send to workers."""
        return cls(new_run_id(), settings, pickle.dumps(inventory), folder)

    def open(self) -> Lookups:
        """Return the lookups of this process, which stay open after the task."""
        if self.run_id not in _open:
            while _open:
                _open.popitem()[1].close()
            inventory: Inventory = pickle.loads(self.packed)  # noqa: S301, ours
            inventory.fetched_indexes.share(self.folder)
            _open[self.run_id] = Lookups(inventory, self.settings)
        return _open[self.run_id]


@dataclass(frozen=True, slots=True)
class SplitWork:
    """A split of the queries, and where its answers go."""

    split: QuerySplit
    part_path: str


def manifest_table(
    splits: Sequence[QuerySplit], target: AnswerTarget, bins: Sequence[int]
) -> pa.Table:
    """Return the manifest of a run, `MANIFEST_SCHEMA`."""
    return pa.table(
        [
            list(bins),
            [split.number for split in splits],
            [pickle.dumps(SplitWork(split, target.part_path(split))) for split in splits],
        ],
        schema=MANIFEST_SCHEMA,
    )


def read_done(rows: pa.Table) -> list[SplitReport]:
    """Return the reports in rows of `DONE_SCHEMA`, in the order of the splits.

    Raises `InputError` if the queries of a split cannot be read.
    """
    reports = []
    for packed in rows.sort_by(SPLIT).column("report").to_pylist():
        done = pickle.loads(packed)  # noqa: S301, written by our own tasks
        if isinstance(done, InputError):
            raise done
        reports.append(done)
    return reports


def answer_splits(
    batches: Iterable[pa.RecordBatch], *, lookups: SharedLookups, starting_offsets: bool
) -> Iterator[pa.RecordBatch]:
    """Answer splits of a manifest, a row of `DONE_SCHEMA` for each."""
    for work in read_manifest(batches):
        done: SplitReport | InputError
        try:
            done = answer_split(
                work.split,
                lookups.open(),
                work.part_path,
                attempt_id=current_attempt_id(),
                starting_offsets=starting_offsets,
            )
        except InputError as error:
            # Another attempt cannot read the queries either.
            done = error
        yield pa.record_batch([[work.split.number], [pickle.dumps(done)]], schema=DONE_SCHEMA)


def read_manifest(batches: Iterable[pa.RecordBatch]) -> Iterator[SplitWork]:
    """Return the splits in rows of `MANIFEST_SCHEMA`."""
    for batch in batches:
        for packed in batch.column(WORK).to_pylist():
            yield pickle.loads(packed)  # noqa: S301, written by our own driver
