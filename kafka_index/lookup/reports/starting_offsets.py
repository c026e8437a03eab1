"""Answers as the places where consumers are to start: for Spark, and for Kafka's own tool."""

from __future__ import annotations

import json
from collections.abc import Sequence

from kafka_index.errors import InputError
from kafka_index.lookup.reports.piece_report import StartingOffset
from kafka_index.reading.answers import Status


def check_starting_offsets(starts: Sequence[StartingOffset]) -> dict[str, dict[int, int]]:
    """Return offsets by topic and partition, sorted.

    Raises
    ------
    InputError
        Two queries are about one partition, or a query's answer names no offset; then there are
        none for any partition.
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

    Raises
    ------
    InputError
        As `check_starting_offsets`.

    Notes
    -----
    Spark wants every partition of the topics that it subscribes to in there.
    """
    return json.dumps(check_starting_offsets(starts), separators=(",", ":")) + "\n"


def reset_offsets_csv(starts: Sequence[StartingOffset]) -> str:
    """Return what ``kafka-consumer-groups --reset-offsets --from-file`` reads, for one group.

    Raises
    ------
    InputError
        As `check_starting_offsets`.

    Notes
    -----
    Lines of topic, partition and offset without a header (CsvUtils.CsvRecordNoGroup). No topic
    that a broker takes needs quotes.
    """
    return "".join(
        f"{topic},{partition},{offset}\n"
        for topic, offsets in check_starting_offsets(starts).items()
        for partition, offset in offsets.items()
    )
