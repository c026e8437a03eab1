"""Restoring to a point in time, or to offsets: where each log ends, and what that cuts apart.

A log ends before the first batch that has a timestamp above the time, or that reaches the offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from kafka_index.commands.restore.request import Until
from kafka_index.core.cluster.metadata.topic_states import Transaction
from kafka_index.core.cluster.replicas import Dump, Replica
from kafka_index.core.errors import InputError
from kafka_index.core.format.names import INTERNAL_PREFIX, TopicPartition
from kafka_index.core.format.records import (
    MAGIC_RECORD_BATCH,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
)
from kafka_index.core.format.times import time_text
from kafka_index.core.fs.registry import store_of
from kafka_index.core.log.read.choices import UpperBound
from kafka_index.core.log.read.partition_files import CheckpointReader
from kafka_index.core.query.bounds import time_span
from kafka_index.core.query.settings import ReadSettings


def check_times(dump: Dump) -> None:
    """Refuse topics whose timestamps are those of clients.

    Internal topics are written by brokers.
    """
    topics = {
        replica.partition.topic
        for replica in dump.all_replicas
        if not replica.partition.topic.startswith(INTERNAL_PREFIX) and _has_create_time(replica)
    }
    if topics:
        raise InputError(
            "the timestamps of a topic are those of its clients (CreateTime): they say little "
            "about when records were appended",
            found=", ".join(sorted(topics)[:5]),
            hint="give --create-time to go by them all the same, or --until with offsets",
        )


def check_offsets(dump: Dump, until: Until) -> None:
    """Refuse offsets of partitions that are not in the dump."""
    for topic, offsets in until.offsets.items():
        for number, offset in offsets.items():
            partition = TopicPartition(topic, number)
            if partition not in dump.replicas or offset < 0:
                raise InputError(
                    "--until names a partition that is not in the input, or no offset",
                    found=f"{partition.directory_name}: {offset}",
                )


def open_transactions(
    cut: Mapping[TopicPartition, Iterable[int]],
    unended: Mapping[TopicPartition, Iterable[int]],
    transactions: Iterable[Transaction],
) -> list[str]:
    """Return the transactions that are open in partitions, for people.

    The arguments have producer ids of partitions that were cut, and of partitions in which perhaps
    no coordinator ends their transactions.
    """
    names = {one.producer_id: one.transactional_id for one in transactions}
    unknown = (
        "its outcome is unknown, and possibly no coordinator ends it: read_committed consumers get "
        "no records from its first offset on, until kafka-transactions.sh abort aborts it"
    )
    texts = []
    for open_producers, consequence in (
        (cut, "it may be committed in other partitions"),
        (unended, unknown),
    ):
        places: dict[int, list[str]] = {}
        for partition, producers in sorted(open_producers.items()):
            for producer_id in producers:
                places.setdefault(producer_id, []).append(partition.directory_name)
        texts += [
            f"transaction {names.get(producer_id, f'of producer {producer_id}')} is open at the "
            f"end of {', '.join(found)}; {consequence}"
            for producer_id, found in sorted(places.items())
        ]
    return texts


def cleaned_after(partitions: Mapping[TopicPartition, tuple[int, int]]) -> list[str]:
    """Return the partitions whose cleaner had passed their new end, for people.

    By partition: the offset up to which the log was cleaned, and the end of it now.
    """
    return [
        f"{partition.directory_name} ends at offset {end}, and was cleaned up to offset {cleaned}: "
        "of keys that were written again in between, the records before its end are gone"
        for partition, (cleaned, end) in sorted(partitions.items())
        if cleaned > end
    ]


def check_reached(until: Until, logs: Iterable[Replica]) -> None:
    """Refuse a point in time that is before all records: nothing would be restored.

    Internal topics do not count, where there are others.
    """
    if until.time_ms is None:
        return
    given = list(logs)
    users = [each for each in given if not each.partition.topic.startswith(INTERNAL_PREFIX)]
    headers = [(each, _first_header(each)) for each in users or given]
    first = [(each, header) for each, header in headers if header is not None]
    # The headers of older formats do not say, and are not before any time.
    reached = [
        int(header["magic"]) < MAGIC_RECORD_BATCH
        or int(header["max_timestamp_ms"]) <= until.time_ms
        for _, header in first
    ]
    if not first or any(reached):
        return
    reader = CheckpointReader(UpperBound.LOG_END)
    span = time_span(
        (
            reader.read(each.partition, each.segments.files(), None, each.tiered)
            for each, _ in first
        ),
        ReadSettings(),
    )
    raise InputError(
        f"--until {time_text(until.time_ms)} is before the first batch of every partition, so that "
        f"nothing would be restored: {span.text}",
        hint="give a later time",
    )


def _has_create_time(replica: Replica) -> bool:
    """Return whether the first batch of a partition has the time of a client."""
    header = _first_header(replica)
    if header is None:
        return False
    is_new = header["magic"] >= MAGIC_RECORD_BATCH
    return not (is_new and int(header["attributes"]) & TIMESTAMP_TYPE_MASK)


def _first_header(replica: Replica) -> np.void | None:
    """Return the header of the first batch, in the layout of magic 2; None for no batch."""
    for segment in replica.segments.files():
        if segment.log_size_bytes >= RECORD_BATCH_OVERHEAD_BYTES:
            data = store_of(segment.log_path).read(segment.log_path, RECORD_BATCH_OVERHEAD_BYTES)
            header: np.void = np.frombuffer(data, RECORD_BATCH_HEADER, 1)[0]
            return header
    return None
