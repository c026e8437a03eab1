"""Whether what a read of ``kafka-log`` names is what the logs have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka_index.errors import InputError
from kafka_index.layout.names import TopicPartition
from kafka_index.reading import PartitionFiles
from kafka_index.spark.source_options import SourceOptions


def check_partitions(options: SourceOptions, files: Sequence[PartitionFiles]) -> None:
    """Refuse names of partitions that the dump does not have, as Spark's Kafka source does.

    Raises `InputError` if a topic or a partition that is named is not in the dump, or bounds by
    partition leave one out.
    """
    found = {(one.topic, one.partition) for one in files}
    topics = {topic for topic, _ in found}
    where = ", ".join(options.paths)
    for name in options.topic_names:
        if name not in topics:
            raise InputError("the topic is not in the logs", path=where, found=name)
    assigned = {
        (topic, number)
        for topic, numbers in (options.partitions or {}).items()
        for number in numbers
    }
    _refuse_difference(assigned - found, "assigned partitions that are not in the logs", where)
    bounds = options.bounds
    for bound in (
        bounds.starting_offsets,
        bounds.ending_offsets,
        bounds.starting_timestamp,
        bounds.ending_timestamp,
    ):
        if isinstance(bound, Mapping):
            named = {(topic, number) for topic, numbers in bound.items() for number in numbers}
            _refuse_difference(named - found, "bounds of partitions that are not read", where)
            _refuse_difference(found - named, "bounds by partition leave some out", where)


def _refuse_difference(partitions: set[tuple[str, int]], what: str, where: str) -> None:
    if partitions:
        names = [TopicPartition(*one).directory_name for one in sorted(partitions)[:5]]
        raise InputError(
            what,
            path=where,
            found=", ".join(names),
            hint="name all partitions that are read, and no others",
        )
