"""The counts, findings and starting offsets of queries, gathered while they are answered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.commands.lookup.queries import QuerySplit
from kafka_index.commands.lookup.result import (
    MAX_FINDINGS,
    MAX_INVALID,
    InvalidQuery,
    QueryGroup,
    SplitReport,
    StartingOffset,
)
from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import Longs
from kafka_index.core.log.read.answers import (
    BATCH_BASE_OFFSET,
    FOUND_OFFSET,
    Answers,
    SpecialTimestamp,
)
from kafka_index.core.log.read.choices import Resolve, Status
from kafka_index.core.query.choices import By
from kafka_index.core.query.inventory import Inventory
from kafka_index.core.query.keys import NO_PARTITION, PARTITION, QueryBatch, integers, plain_array
from kafka_index.core.query.lookups import Lookups

# Partitions that do not exist are counted one by one up to this many.
_MAX_UNKNOWN = 1_000

# Statuses at the end of the log, whatever was asked, and those without any place.
_AT_END = (Status.LOG_END, Status.NO_RECORD_AT_OR_AFTER, Status.AFTER_LOG_END)
_NOWHERE = (Status.UNKNOWN_PARTITION, Status.INVALID_QUERY, Status.UNREADABLE)
_MAX_CELL = 60
_WRONG_KEY = {
    By.OFFSET: "not an integer",
    By.TIMESTAMP: "neither milliseconds nor a time from 1970 on",
}


class SplitStats:
    """Gathers the report of a split, batch by batch.

    The lookups answer this split only until `report`. Raises `InputError` if starting
    offsets are asked for at the index level, which does not know where logs end.
    """

    def __init__(
        self, split: QuerySplit, lookups: Lookups, *, starting_offsets: bool = False
    ) -> None:
        if starting_offsets and lookups.settings.resolve is Resolve.INDEX:
            raise InputError(
                "the index level has no starting offsets", hint="resolve to batch or record"
            )
        self._split = split
        self._lookups = lookups
        self._rows = 0
        self._counts = StatusCounts(lookups.inventory)
        self._starts: list[StartingOffset] = []
        self._invalid: list[InvalidQuery] = []
        # With one more, two queries are about the same partition, which is an error anyway.
        wanted = lookups.inventory.partition_count + 1
        self._max_starts = wanted if starting_offsets else 0

    def add(self, rows: pa.RecordBatch, queries: QueryBatch, answers: Answers) -> None:
        """Count queries, which are in rows as they were read, and their answers."""
        if len(self._invalid) < MAX_INVALID:
            wrong = np.flatnonzero(answers.status == Status.INVALID_QUERY)
            for row in wrong[: MAX_INVALID - len(self._invalid)].tolist():
                self._invalid.append(self._invalid_query(rows, queries, row))
        self._rows += len(answers)
        self._counts.add(queries.topics, queries.partitions, answers.status)
        wanted = min(self._max_starts - len(self._starts), len(answers))
        if wanted > 0:
            self._starts += starting_offsets_of(self._lookups, queries, answers, wanted)

    def _invalid_query(self, rows: pa.RecordBatch, queries: QueryBatch, row: int) -> InvalidQuery:
        topic = plain_array(queries.topics.slice(row, 1))[0].as_py()
        return InvalidQuery(
            self._split.path,
            self._split.first_row + self._rows + row + 1,
            topic,
            queries.partitions[row].as_py(),
            self._reason(rows, queries, row, topic),
        )

    def _reason(
        self, rows: pa.RecordBatch, queries: QueryBatch, row: int, topic: str | None
    ) -> str:
        settings, keys = self._lookups.settings, queries.keys
        name = settings.by.column
        if topic is None:
            return "no topic"
        if not queries.partitions[row].is_valid:
            return _not_a_number(PARTITION, rows.column(PARTITION)[row].as_py(), "not an integer")
        if keys.valid is not None and not keys.valid[row]:
            return _not_a_number(name, rows.column(name)[row].as_py(), _WRONG_KEY[settings.by])
        value = int(keys.values[row])
        if settings.by is By.OFFSET:
            return f"offset {value} is negative"
        if keys.specials and value >= min(SpecialTimestamp):
            return f"timestamp {value} has no answer at the level of {settings.resolve.value}"
        return f"timestamp {value} is before 1970, and is not one of Kafka's special timestamps"

    def report(self) -> SplitReport:
        """Return the report of the split."""
        findings = self._lookups.drain_findings()
        return SplitReport(
            number=self._split.number,
            rows=self._rows,
            counts=self._counts.counts(),
            findings=tuple(findings[:MAX_FINDINGS]),
            findings_left_out=max(len(findings) - MAX_FINDINGS, 0),
            starting_offsets=tuple(self._starts),
            invalid=tuple(self._invalid),
        )


def _not_a_number(name: str, cell: object, wrong: str) -> str:
    if cell is None:
        return f"no {name}, or it is {wrong}"
    text = str(cell)
    shown = text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}..."
    return f"{name} {shown!r} is {wrong}"


class StatusCounts:
    """Counts queries by partition and status, at the pace of the lookups themselves."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._known: Longs = np.zeros(0, np.int64)
        self._others: Counter[QueryGroup] = Counter()

    def add(self, topics: pa.Array, partitions: pa.Array, statuses: NDArray[np.int8]) -> None:
        """Count queries by the statuses of their answers."""
        numbers, present = integers(partitions)
        codes = self._inventory.codes(topics, numbers)
        if present is not None:
            codes = np.where(present, codes, np.int32(NO_PARTITION))
        # The counts of a partition are adjacent; those of no partition come first.
        cells = (codes - NO_PARTITION) * np.int64(len(Status)) + statuses
        size = (self._inventory.partitions.num_rows + 1) * len(Status)
        counts = np.bincount(cells, minlength=size)
        self._known = counts if not len(self._known) else self._known + counts
        others = np.flatnonzero(codes == NO_PARTITION)
        if len(others):
            missing = None if present is None else ~present[others]
            # A number beyond int64 is not a partition.
            left = pa.array(numbers[others], mask=missing)
            self._add_others(topics.take(pa.array(others)), left, statuses[others])

    def counts(self) -> Counter[QueryGroup]:
        """Return the counts."""
        counts = Counter(self._others)
        for cell in np.flatnonzero(self._known[len(Status) :]).tolist():
            code, status = divmod(cell, len(Status))
            group = (*self._inventory.name_of(code), status)
            counts[group] += int(self._known[cell + len(Status)])
        return counts

    def _add_others(
        self, topics: pa.Array, partitions: pa.Array, statuses: NDArray[np.int8]
    ) -> None:
        names = ["topic", "partition", "status"]
        # Not as strings: those of Parquet may not be UTF-8.
        texts = plain_array(topics).cast(pa.large_binary())
        table = pa.table([texts, partitions, pa.array(statuses)], names=names)
        grouped = table.group_by(names).aggregate([([], "count_all")])
        # Only the most frequent are counted one by one: there may be as many as queries.
        grouped = grouped.sort_by([("count_all", "descending")])
        for row in grouped.slice(0, _MAX_UNKNOWN).to_pylist():
            name = None if row["topic"] is None else row["topic"].decode(errors="replace")
            self._add_other((name, row["partition"], row["status"]), row["count_all"])
        rest = grouped.slice(_MAX_UNKNOWN)
        for row in rest.group_by("status").aggregate([("count_all", "sum")]).to_pylist():
            self._add_other((None, None, row["status"]), row["count_all_sum"])

    def _add_other(self, group: QueryGroup, queries: int) -> None:
        if len(self._others) >= _MAX_UNKNOWN and group not in self._others:
            group = (None, None, group[2])
        self._others[group] += queries


def starting_offsets_of(
    lookups: Lookups, queries: QueryBatch, answers: Answers, count: int
) -> list[StartingOffset]:
    """Return the offsets at which reading starts, according to the first queries.

    It starts at the offset that was found: of the record, or the one asked for, or of the batch
    that holds the timestamp. Without one: where the log ends, or starts if the offset is below its
    start.
    """
    topics = plain_array(queries.topics.slice(0, count)).cast(pa.large_binary()).to_pylist()
    partitions = plain_array(queries.partitions.slice(0, count))
    numbers, _ = integers(partitions)
    codes = lookups.inventory.codes(queries.topics.slice(0, count), numbers).tolist()
    places = _found_places(lookups, queries, answers, count)
    starts = []
    for row, (topic, partition, code) in enumerate(
        zip(topics, partitions.to_pylist(), codes, strict=True)
    ):
        status = Status(int(answers.status[row]))
        offset: int | None = None
        if code != NO_PARTITION and status not in _NOWHERE:
            log_start = lookups.start_offset(code)
            special = _special(lookups, queries, row)
            if special is SpecialTimestamp.EARLIEST or status is Status.BEFORE_LOG_START:
                offset = log_start
            elif special is SpecialTimestamp.LATEST or status in _AT_END:
                offset = lookups.end_offset(code)
            else:
                # A batch may begin with records that have been deleted.
                offset = max(int(places[row]), log_start)
            if offset is None:
                status = Status.UNREADABLE
        name = None if topic is None else topic.decode(errors="replace")
        starts.append(StartingOffset(name, partition, status, offset))
    return starts


def _found_places(lookups: Lookups, queries: QueryBatch, answers: Answers, count: int) -> Longs:
    places: Longs = queries.keys.values
    if lookups.settings.resolve is Resolve.RECORD:
        places = answers.values[FOUND_OFFSET]
    elif lookups.settings.by is By.TIMESTAMP:
        places = answers.values[BATCH_BASE_OFFSET]
    return places[:count]


def _special(lookups: Lookups, queries: QueryBatch, row: int) -> SpecialTimestamp | None:
    key = int(queries.keys.values[row])
    if lookups.settings.by is By.OFFSET or not queries.keys.specials or key >= 0:
        return None
    return SpecialTimestamp(key)


def check_starting_offsets(starts: Sequence[StartingOffset]) -> dict[str, dict[int, int]]:
    """Return offsets by topic and partition, sorted.

    Raises `InputError` if two queries are about one partition, or a query has no offset; then no
    partition has one.
    """
    offsets: dict[str, dict[int, int]] = {}
    for start in starts:
        name = f"{start.topic}-{start.partition}"
        if start.topic is None or start.partition is None or start.offset is None:
            raise InputError(
                f"no starting offset for {name}: {Status(start.status).text}",
                hint="starting offsets need an answer for each query",
            )
        of_topic = offsets.setdefault(start.topic, {})
        if start.partition in of_topic:
            raise InputError(
                f"two queries are about {name}",
                hint="starting offsets need one query for each partition",
            )
        of_topic[start.partition] = start.offset
    return {topic: dict(sorted(offsets[topic].items())) for topic in sorted(offsets)}


def starting_offsets_json(starts: Sequence[StartingOffset]) -> str:
    """Return Spark's ``startingOffsets`` (or ``endingOffsets``): one line of JSON.

    Spark requires every partition of the topics that it subscribes to. Raises the errors of
    `check_starting_offsets`.
    """
    return json.dumps(check_starting_offsets(starts), separators=(",", ":")) + "\n"


def reset_offsets_csv(starts: Sequence[StartingOffset]) -> str:
    """Return the input of ``kafka-consumer-groups --reset-offsets --from-file``, for one group.

    Lines of topic, partition and offset without a header (CsvUtils.CsvRecordNoGroup). No legal
    topic needs quotes. Raises the errors of `check_starting_offsets`.
    """
    return "".join(
        f"{topic},{partition},{offset}\n"
        for topic, offsets in check_starting_offsets(starts).items()
        for partition, offset in offsets.items()
    )
