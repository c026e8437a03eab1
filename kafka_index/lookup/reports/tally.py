"""What became of the queries: counted by partition and status, and as places to start reading."""

from __future__ import annotations

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.lookup.inventory.partition_codes import NO_PARTITION
from kafka_index.lookup.keys import Longs, integers, plain_array
from kafka_index.lookup.lookups import Lookups
from kafka_index.lookup.queries.query_piece import QueryBatch
from kafka_index.lookup.reports.piece_report import (
    MOST_FINDINGS,
    PieceReport,
    StartingOffset,
)
from kafka_index.lookup.reports.status_counts import StatusCounts
from kafka_index.lookup.settings import By
from kafka_index.reading.answers import (
    BATCH_BASE_OFFSET,
    FOUND_OFFSET,
    Answers,
    Resolve,
    SpecialTimestamp,
    Status,
)

# What an answer says of the end or the start of the log, whatever was asked.
_AT_END = (Status.LOG_END, Status.NO_RECORD_AT_OR_AFTER, Status.AFTER_LOG_END)
_NOWHERE = (Status.UNKNOWN_PARTITION, Status.INVALID_QUERY, Status.UNREADABLE)


class PieceTally:
    """Gathers the report of a piece, batch by batch.

    Parameters
    ----------
    lookups : Lookups
        Which answers the piece, and nothing else meanwhile.
    starting_offsets : bool
        Whether to tell where to start reading.

    Raises
    ------
    InputError
        Starting offsets are asked for at the index level, which does not know where logs end.
    """

    def __init__(self, lookups: Lookups, *, starting_offsets: bool = False) -> None:
        if starting_offsets and lookups.settings.resolve is Resolve.INDEX:
            raise InputError(
                "the index level cannot tell starting offsets", hint="resolve to batch or record"
            )
        self._lookups = lookups
        self._rows = 0
        self._counts = StatusCounts(lookups.inventory)
        self._starts: list[StartingOffset] = []
        # With one more, two queries are about the same partition, and that is an error anyway.
        wanted = lookups.inventory.partition_count + 1
        self._most_starts = wanted if starting_offsets else 0

    def add(self, batch: QueryBatch, answers: Answers) -> None:
        """Take note of queries and their answers."""
        self._rows += len(answers)
        self._counts.add(batch.topics, batch.partitions, answers.status)
        wanted = min(self._most_starts - len(self._starts), len(answers))
        if wanted > 0:
            self._starts += starting_offsets_of(self._lookups, batch, answers, wanted)

    def report(self, number: int) -> PieceReport:
        """Return the report of the piece of this number."""
        findings = self._lookups.take_findings()
        return PieceReport(
            number=number,
            rows=self._rows,
            counts=tuple(self._counts.counts()),
            findings=tuple(findings[:MOST_FINDINGS]),
            findings_left_out=max(len(findings) - MOST_FINDINGS, 0),
            starting_offsets=tuple(self._starts),
        )


def starting_offsets_of(
    lookups: Lookups, batch: QueryBatch, answers: Answers, count: int
) -> list[StartingOffset]:
    """Return where the first queries of a batch say that reading starts.

    Notes
    -----
    At the offset that was found: of the record, or the one asked for, or that of the batch that
    holds the timestamp. Without one: where the log ends, or starts if the offset lies before.
    """
    topics = plain_array(batch.topics.slice(0, count)).cast(pa.large_binary()).to_pylist()
    partitions = plain_array(batch.partitions.slice(0, count))
    numbers, _ = integers(partitions)
    codes = lookups.inventory.codes(batch.topics.slice(0, count), numbers).tolist()
    places = _found_places(lookups, batch, answers, count)
    starts = []
    for row, (topic, partition, code) in enumerate(
        zip(topics, partitions.to_pylist(), codes, strict=True)
    ):
        status = Status(int(answers.status[row]))
        offset: int | None = None
        if code != NO_PARTITION and status not in _NOWHERE:
            log_start = lookups.start_offset(code)
            special = _special(lookups, batch, row)
            if special is SpecialTimestamp.EARLIEST or status is Status.BEFORE_LOG_START:
                offset = log_start
            elif special is SpecialTimestamp.LATEST or status in _AT_END:
                offset = lookups.end_offset(code)
            else:
                # A batch may begin with records that are deleted already.
                offset = max(int(places[row]), log_start)
            if offset is None:
                status = Status.UNREADABLE
        name = None if topic is None else topic.decode(errors="replace")
        starts.append(StartingOffset(name, partition, status, offset))
    return starts


def _found_places(lookups: Lookups, batch: QueryBatch, answers: Answers, count: int) -> Longs:
    places: Longs = batch.keys.values
    if lookups.settings.resolve is Resolve.RECORD:
        places = answers.values[FOUND_OFFSET]
    elif lookups.settings.by is By.TIMESTAMP:
        places = answers.values[BATCH_BASE_OFFSET]
    return places[:count]


def _special(lookups: Lookups, batch: QueryBatch, row: int) -> SpecialTimestamp | None:
    key = int(batch.keys.values[row])
    if lookups.settings.by is By.OFFSET or not batch.keys.specials or key >= 0:
        return None
    return SpecialTimestamp(key)
