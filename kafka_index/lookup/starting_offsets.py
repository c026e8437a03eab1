"""Answers as the offsets from which consumers start: for Spark, and for Kafka's own tool."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.layout.integers import Longs
from kafka_index.lookup.keys import By, integers, plain_array
from kafka_index.lookup.lookups import Lookups
from kafka_index.lookup.partition_codes import NO_PARTITION
from kafka_index.lookup.report import StartingOffset
from kafka_index.lookup.splits import QueryBatch
from kafka_index.reading.answers import (
    BATCH_BASE_OFFSET,
    FOUND_OFFSET,
    Answers,
    Resolve,
    SpecialTimestamp,
    Status,
)

# Statuses at the end of the log, whatever was asked, and those without any place.
_AT_END = (Status.LOG_END, Status.NO_RECORD_AT_OR_AFTER, Status.AFTER_LOG_END)
_NOWHERE = (Status.UNKNOWN_PARTITION, Status.INVALID_QUERY, Status.UNREADABLE)


def starting_offsets_of(
    lookups: Lookups, batch: QueryBatch, answers: Answers, count: int
) -> list[StartingOffset]:
    """Return where reading starts according to the first queries of a batch.

    It starts at the offset that was found: of the record, or the one asked for, or of the batch
    that holds the timestamp. Without one: where the log ends, or starts if the offset is below its
    start.
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
                # A batch may begin with records that have been deleted.
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
