"""Files of queries, answered on Spark.

Tasks read the queries and write the answers themselves, split by split; Spark moves a row per
split. Grouped by partition, the queries are a data frame that Spark shuffles to the tasks that
answer them, and their answers another one that it sorts back into the splits.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kafka_index.errors import InputError, KafkaIndexError
from kafka_index.lookup import (
    AnswerTarget,
    Inventory,
    Keys,
    Lookups,
    LookupSettings,
    Queries,
    QueryBatch,
    SplitReport,
    read_split,
)
from kafka_index.lookup.keys import integers, plain_array
from kafka_index.lookup.query_columns import PARTITION, TOPIC
from kafka_index.lookup.unindexed import Unindexed
from kafka_index.reading.answers import VALUE_COLUMNS, Answers, Resolve
from kafka_index.reading.findings import Finding
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.lookup_frames import gather, lookup_offsets, lookup_timestamps
from kafka_index.spark.lookup_tasks import (
    DONE_SCHEMA,
    SPLIT,
    WORK,
    SharedLookups,
    SplitWork,
    answer_splits,
    done_row,
    finish_split,
    manifest_table,
    read_done,
    read_manifest,
)
from kafka_index.spark.missing_indexes import build_missing_indexes
from kafka_index.spark.tasks import spark_schema, task
from kafka_index.tasks import BIN, balance

__all__ = ["answer_queries", "lookup_offsets", "lookup_timestamps"]

_BINS_PER_CORE = 4
_BIN_BYTES = 256 << 20
_MAX_BINS = 20_000
# Read, answer, and write.
_GROUPED_STAGES = 3

_ROW, _KEY, _FINDINGS = "row", "key", "findings"
_PLACE = [
    pa.field(BIN, pa.int32(), nullable=False),
    pa.field(SPLIT, pa.int32(), nullable=False),
    pa.field(_ROW, pa.int64(), nullable=False),
]
#: A query on its way to the task that answers its partition, and its place: split and row.
QUERY_SCHEMA = pa.schema(
    [
        *_PLACE,
        pa.field(TOPIC, pa.string()),
        pa.field(PARTITION, pa.int64()),
        pa.field(_KEY, pa.int64()),
    ]
)
# Instead of a row's number: findings, which are added to those of some split; and the split itself,
# which may be without queries. Both sort before the answers of the split.
_OF_FINDINGS, _OF_SPLIT = -2, -1


def answer_queries(
    session: SparkSession,
    queries: Queries,
    inventory: Inventory,
    settings: LookupSettings,
    target: AnswerTarget,
    *,
    workers: int,
    unindexed: Unindexed | None = None,
    group_by_partition: bool = False,
    starting_offsets: bool = False,
    jobs: Jobs | None = None,
) -> list[SplitReport]:
    """Answer all queries into the target, without publishing it.

    Parameters
    ----------
    session : SparkSession
        Classic or Connect. Its executors see queries, logs, indexes and target under the paths
        that the driver uses.
    queries, inventory, settings, target
        As for `kafka_index.lookup.run_local`.
    workers : int
        Tasks that run at a time.
    unindexed : Unindexed, optional
        Remote segments without index files: those that queries ask are read once, before the
        lookups. By default each worker reads those that it needs and no other has read before.
    group_by_partition : bool
        Whether Spark shuffles all queries of a partition to one task, which alone opens its
        segments. The output is the same.
    starting_offsets : bool
        Whether the reports hold where to start reading.
    jobs : Jobs, optional
        Follows the splits.

    Returns
    -------
    list of SplitReport
        A report for each split, in their order.

    Raises
    ------
    InputError
        Queries cannot be read.
    """
    bins = _bins(queries, workers)
    owners = balance([split.size_bytes for split in queries.splits], bins)
    manifest = session.createDataFrame(manifest_table(queries.splits, target, owners))
    lookups = SharedLookups.of(inventory, settings, target.index_folder)
    jobs = jobs or Jobs(session)
    # A task that has all queries of a partition is the only one that reads its segments.
    if unindexed is not None and unindexed.segments and not group_by_partition:
        distributed = manifest.repartitionById(bins, BIN)
        build_missing_indexes(session, distributed, lookups, unindexed, jobs)
    if group_by_partition:
        done = answer_grouped(manifest, lookups, bins, starting_offsets=starting_offsets)
    else:
        function = partial(answer_splits, lookups=lookups, starting_offsets=starting_offsets)
        done = manifest.repartitionById(bins, BIN).mapInArrow(
            task(function), spark_schema(DONE_SCHEMA)
        )
    count = len(queries.splits)
    stages = _GROUPED_STAGES if group_by_partition else 1
    with jobs.job(f"answer {count:,} splits of queries", items=count, stages=stages):
        rows = done.toArrow()
    return read_done(rows)


def _bins(queries: Queries, workers: int) -> int:
    """Return enough bins to keep all workers busy to the end, none of them too large to repeat."""
    wanted = max(_BINS_PER_CORE * workers, queries.size_bytes // _BIN_BYTES)
    return max(min(len(queries.splits), wanted, _MAX_BINS), 1)


def answered_schema(resolve: Resolve) -> pa.Schema:
    """Return the schema of answers on their way back to the places of their queries."""
    filled = len(Answers.empty(0, resolve).values)
    return pa.schema(
        [
            *_PLACE,
            pa.field(_FINDINGS, pa.binary()),
            pa.field("status", pa.int8()),
            *(pa.field(name, pa.int64()) for name in VALUE_COLUMNS[:filled]),
        ]
    )


def answer_grouped(
    manifest: DataFrame, lookups: SharedLookups, bins: int, *, starting_offsets: bool
) -> DataFrame:
    """Answer the splits of a manifest, each partition by one task: `DONE_SCHEMA`."""
    asked = manifest.repartitionById(bins, BIN).mapInArrow(
        task(read_splits), spark_schema(QUERY_SCHEMA)
    )
    answered = asked.repartition(TOPIC, PARTITION).mapInArrow(
        task(partial(answer_asked, lookups=lookups)),
        spark_schema(answered_schema(lookups.settings.resolve)),
    )
    splits = manifest.withColumn(_ROW, F.lit(_OF_SPLIT).cast("long"))
    return (
        answered.unionByName(splits, allowMissingColumns=True)
        .repartitionById(bins, BIN)
        .sortWithinPartitions(SPLIT, _ROW)
        .mapInArrow(
            task(partial(write_splits, lookups=lookups, starting_offsets=starting_offsets)),
            spark_schema(DONE_SCHEMA),
        )
    )


def read_splits(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read splits of a manifest: their queries, `QUERY_SCHEMA`."""
    for bin_number, work in read_manifest(batches):
        first_row = 0
        # The task that writes the split meets the same error, and reports it.
        with suppress(InputError):
            for batch in read_split(work.split):
                yield _placed_queries(batch, bin_number, work.split.number, first_row)
                first_row += len(batch)


def _placed_queries(
    batch: QueryBatch, bin_number: int, split: int, first_row: int
) -> pa.RecordBatch:
    keys, count = batch.keys, len(batch)
    # Of a time, a negative number is before 1970; of an integer, it can ask for a place.
    invalid = np.zeros(count, np.bool_) if keys.specials else keys.values < 0
    if keys.valid is not None:
        invalid |= ~keys.valid
    numbers, present = integers(plain_array(batch.partitions))
    columns = [
        np.full(count, bin_number, np.int32),
        np.full(count, split, np.int32),
        np.arange(first_row, first_row + count),
        plain_array(batch.topics).cast(pa.string()),
        pa.array(numbers, mask=None if present is None else ~present),
        pa.array(keys.values, mask=invalid),
    ]
    return pa.record_batch(columns, schema=QUERY_SCHEMA)


def answer_asked(
    batches: Iterable[pa.RecordBatch], *, lookups: SharedLookups
) -> Iterator[pa.RecordBatch]:
    """Answer queries of `QUERY_SCHEMA`, in whatever order they come: `answered_schema`."""
    opened = lookups.open()
    schema = answered_schema(opened.settings.resolve)
    place: list[pa.Array] = []
    for asked in gather(batches):
        keys = Keys.of(asked.column(_KEY), opened.settings.by)
        answers = opened.answer(asked.column(TOPIC), asked.column(PARTITION), keys)
        none = pa.nulls(len(answers), pa.binary())
        place = asked.columns[: len(_PLACE)]
        yield pa.record_batch([*place, none, answers.status, *answers.values], schema=schema)
    findings = opened.drain_findings()
    if place and findings:
        bin_number, split, _ = (column[-1].as_py() for column in place)
        row = {BIN: bin_number, SPLIT: split, _ROW: _OF_FINDINGS, _FINDINGS: pickle.dumps(findings)}
        yield pa.RecordBatch.from_pylist([row], schema=schema)


def write_splits(
    batches: Iterable[pa.RecordBatch], *, lookups: SharedLookups, starting_offsets: bool
) -> Iterator[pa.RecordBatch]:
    """Write splits with answers that arrive sorted by place, a row of `DONE_SCHEMA` for each."""
    arrived = ArrivedAnswers(lookups.open(), batches)
    while (work := arrived.next_split()) is not None:
        done = finish_split(work, arrived, starting_offsets=starting_offsets)
        # Queries that cannot be read to the end leave answers over.
        if not isinstance(done, InputError):
            arrived.check_exhausted()
        yield done_row(work, done)


class ArrivedAnswers(Lookups):
    """Stands in for the lookups of splits whose queries other tasks have answered.

    Parameters
    ----------
    lookups : Lookups
        Of this worker.
    batches : iterable of pa.RecordBatch
        Answers and splits, sorted by split and row.

    Notes
    -----
    The input of a cancelled task ends early as if that were all of it, and query files can change
    between two reads: every answer is checked to be that of its row.
    """

    def __init__(self, lookups: Lookups, batches: Iterable[pa.RecordBatch]) -> None:
        super().__init__(lookups.inventory, lookups.settings)
        self._parts = (part for batch in batches for part in _parts(batch))
        self._part: pa.RecordBatch | None = next(self._parts, None)
        self._next_row = 0
        self._arrived_findings: list[Finding] = []

    def next_split(self) -> SplitWork | None:
        """Return the next split to write, None when there are no more."""
        while self._part is not None:
            part, self._part = self._part, next(self._parts, None)
            row = part.column(_ROW)[0].as_py()
            if row == _OF_FINDINGS:
                packed = part.column(_FINDINGS)[0].as_py()
                self._arrived_findings += pickle.loads(packed)  # noqa: S301, written by our tasks
            elif row == _OF_SPLIT:
                self._next_row = 0
                work: SplitWork = pickle.loads(part.column(WORK)[0].as_py())  # noqa: S301, ours
                return work
        return None

    def answer(
        self,
        topics: pa.Array | pa.ChunkedArray,  # noqa: ARG002, those of `Lookups.answer`
        partitions: pa.Array | pa.ChunkedArray,  # noqa: ARG002
        keys: Keys,
    ) -> Answers:
        """Return the answers to the next queries of the split."""
        answers = Answers.empty(len(keys), self.settings.resolve)
        filled = 0
        while filled < len(keys):
            part = self._part
            if part is None or part.column(_ROW)[0].as_py() != self._next_row:
                raise _mismatch("answers are missing")
            rows = part.slice(0, len(keys) - filled)
            count = rows.num_rows
            expected = np.arange(self._next_row, self._next_row + count)
            if not np.array_equal(rows.column(_ROW), expected):
                raise _mismatch("answers are missing")
            end = filled + count
            answers.status[filled:end] = rows.column("status")
            for name, values in zip(VALUE_COLUMNS, answers.values, strict=False):
                values[filled:end] = rows.column(name)
            filled = end
            self._next_row += count
            rest = part.slice(count)
            self._part = rest if rest.num_rows else next(self._parts, None)
        return answers

    def check_exhausted(self) -> None:
        """Refuse answers that no query of the split asked for."""
        if self._part is not None and self._part.column(_ROW)[0].as_py() >= 0:
            raise _mismatch("more answers than queries")

    def drain_findings(self) -> list[Finding]:
        """Return the findings of this worker and of those that answered, each once."""
        arrived, self._arrived_findings = self._arrived_findings, []
        return [*arrived, *super().drain_findings()]


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch of arrivals into single rows of findings and splits, and runs of answers."""
    alone = np.asarray(batch.column(_ROW)) < 0
    starts = np.flatnonzero(alone[1:] | alone[:-1]) + 1
    for start, end in pairwise([0, *starts.tolist(), batch.num_rows]):
        yield batch.slice(start, end - start)


def _mismatch(found: str) -> KafkaIndexError:
    return KafkaIndexError(
        f"the answers that arrived are not those of the queries: {found}",
        hint="did the query files change? run again when nothing writes to them",
    )
