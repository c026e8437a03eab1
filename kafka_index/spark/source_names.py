"""The names of the options of ``kafka-log``: known, ignored, and refused."""

from __future__ import annotations

from collections.abc import Iterable

from kafka_index.errors import InputError

#: The options that choose topics or partitions, one of them at a time.
SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
#: The prefix of options of the stores.
STORAGE_PREFIX = "storage."
_KNOWN = frozenset(
    name.lower()
    for name in (
        "path",
        "indexes",
        *SUBSCRIPTIONS,
        "startingOffsets",
        "endingOffsets",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestampStrategy",
        "failOnDataLoss",
        "includeHeaders",
        "minPartitions",
        "maxRecordsPerPartition",
        "kafka.isolation.level",
        "tiered",
        "tieredFormat",
        "keyPrefix",
        "tieredKeys",
        "topicIds",
        "columns",
        "includeControlRecords",
        "rows",
        "mode",
        "pushFilters",
        "followLinks",
        "maxDecompressedBytes",
    )
)
#: What Spark's Kafka source refuses too: they change rows, or where a read begins.
_REFUSED = frozenset(
    f"kafka.{name}"
    for name in (
        "auto.offset.reset",
        "enable.auto.commit",
        "interceptor.classes",
        "key.deserializer",
        "value.deserializer",
    )
)
#: Options of Spark's Kafka source that change no rows of a batch read.
_IGNORED = frozenset(
    name.lower()
    for name in (
        "groupIdPrefix",
        "kafka.group.id",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
    )
)


def check_names(names: Iterable[str]) -> list[str]:
    """Return the options without effect, by their names in lower case.

    Raises `InputError` if there is no such option, or it cannot be honoured.
    """
    ignored = []
    for name in names:
        if name in _KNOWN or name.startswith(STORAGE_PREFIX):
            continue
        if name in _REFUSED:
            raise InputError(
                "logs at rest cannot honour this option, nor does Spark's Kafka source", found=name
            )
        if name in _IGNORED or name.startswith("kafka."):
            ignored.append(name)
            continue
        raise InputError("kafka-log has no such option", found=name, hint="see docs/records.md")
    return sorted(ignored)
