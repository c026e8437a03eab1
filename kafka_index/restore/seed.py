"""Seeding a fresh cluster: the restored topics, added to a formatted ``bootstrap.checkpoint``.

The first controller of a cluster whose metadata log is empty replays that file: topics get their
old ids, and the restored broker leads each partition from the start. The records that formatting
wrote stay as they are, byte for byte; ours come before the footer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kafka_index.layout.message_fields import Value
from kafka_index.metadata.decoding import METADATA_CODEC
from kafka_index.metadata.sensitive import TOPIC_RESOURCE
from kafka_index.records import Record, write_record_batch
from kafka_index.restore.root_files import sync_directory, write_durably
from kafka_index.restore.seed_directory import SeedDirectory, original_of, read_bootstrap
from kafka_index.storage import publish_error

_RECORDS_OF_A_BATCH = 1000
_OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True)
class SeededPartition:
    """A partition as the new cluster is to have it."""

    number: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class SeededTopic:
    """A topic as the new cluster is to have it.

    Parameters
    ----------
    name, topic_id : str
        Of the topic.
    configs : mapping of str to str
        Its settings.
    partitions : sequence of SeededPartition
        All of them.
    """

    name: str
    topic_id: str
    configs: Mapping[str, str]
    partitions: Sequence[SeededPartition]


@dataclass(frozen=True, slots=True)
class SeedContent:
    """What is added to the bootstrap records.

    Parameters
    ----------
    topics : sequence of SeededTopic
        The topics.
    node_id : int
        The broker that has all partitions.
    directory_id : str
        Of the restored directory.
    next_producer_id : int
        The first producer id that is free.
    """

    topics: Sequence[SeededTopic]
    node_id: int
    directory_id: str
    next_producer_id: int


def write_seed(directory: SeedDirectory, content: SeedContent) -> None:
    """Add records to the bootstrap records of a controller; the old file stays as ``.orig``.

    Written again after an interruption, it is the same.

    Raises
    ------
    InputError
        The bootstrap records cannot be read.
    PublishError
        The directory cannot be written.
    """
    before = read_bootstrap(original_of(directory))
    data = bytearray(before.batches)
    offset, version = before.end_offset, before.partition_version
    values = list(_records(content, version))
    for start in range(0, len(values), _RECORDS_OF_A_BATCH):
        some = values[start : start + _RECORDS_OF_A_BATCH]
        data += write_record_batch(
            [Record(before.timestamp_ms, None, each) for each in some], offset
        )
        offset += len(some)
    data += offset.to_bytes(_OFFSET_BYTES, "big") + before.footer[_OFFSET_BYTES:]
    try:
        if not os.path.exists(directory.original):
            os.link(directory.bootstrap, directory.original)
            sync_directory(directory.path)
    except OSError as error:
        raise publish_error(error, directory.original, "keep the bootstrap records") from error
    write_durably(directory.bootstrap, bytes(data))
    sync_directory(directory.path)


def _records(content: SeedContent, partition_version: int) -> Iterator[bytes]:
    for topic in content.topics:
        named: dict[str, Value] = {"name": topic.name, "topicId": topic.topic_id}
        yield METADATA_CODEC.encode("TopicRecord", 0, named)
        for name, value in sorted(topic.configs.items()):
            config: dict[str, Value] = {
                "resourceType": TOPIC_RESOURCE,
                "resourceName": topic.name,
                "name": name,
                "value": value,
            }
            yield METADATA_CODEC.encode("ConfigRecord", 0, config)
        for partition in topic.partitions:
            message: dict[str, Value] = {
                "partitionId": partition.number,
                "topicId": topic.topic_id,
                "replicas": [content.node_id],
                "isr": [content.node_id],
                "removingReplicas": [],
                "addingReplicas": [],
                "leader": content.node_id,
                "leaderEpoch": partition.leader_epoch,
                "partitionEpoch": 0,
                "directories": [content.directory_id],
            }
            yield METADATA_CODEC.encode("PartitionRecord", partition_version, message)
    if content.next_producer_id > 0:
        producers: dict[str, Value] = {
            "brokerId": content.node_id,
            "brokerEpoch": -1,
            "nextProducerId": content.next_producer_id,
        }
        yield METADATA_CODEC.encode("ProducerIdsRecord", 0, producers)
