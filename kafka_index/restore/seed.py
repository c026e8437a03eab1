"""Seeding a fresh cluster: the restored topics, added to a formatted ``bootstrap.checkpoint``.

The first controller of a cluster whose metadata log is empty replays that file: topics get their
old ids, and the restored broker leads each partition from the start. The records that formatting
wrote stay as they are, byte for byte; ours come before the footer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kafka_index.errors import InputError
from kafka_index.layout.internal_topics import CLUSTER_METADATA_TOPIC, METADATA_LOG
from kafka_index.layout.message_bytes import MessageReader
from kafka_index.layout.message_fields import Value
from kafka_index.layout.names import META_PROPERTIES
from kafka_index.layout.records import CONTROL_MASK
from kafka_index.metadata.decoding import METADATA_CODEC
from kafka_index.metadata.sensitive import TOPIC_RESOURCE
from kafka_index.metadata.topic_log import TopicLog
from kafka_index.records import Record, write_record_batch
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.restore.cluster import CLUSTER_ID
from kafka_index.restore.dump_files import refuse_running
from kafka_index.restore.output import sync_directory, write_durably
from kafka_index.scan import LogFileSource
from kafka_index.startup.directory_files import read_properties
from kafka_index.storage import SegmentFile, publish_error

BOOTSTRAP = "bootstrap.checkpoint"
ORIGINAL_SUFFIX = ".orig"
_FIRST_SNAPSHOT = "00000000000000000000-0000000000.checkpoint"
_RECORDS_OF_A_BATCH = 1000
_FOOTER = 4
_ELR_FEATURE = "eligible.leader.replicas.version"
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


@dataclass(frozen=True, slots=True)
class SeedDirectory:
    """The metadata log directory of a controller, formatted and never used.

    Parameters
    ----------
    path : str
        Absolute, links resolved.
    properties : mapping of str to str
        Of its ``meta.properties``.
    """

    path: str
    properties: Mapping[str, str]

    @property
    def bootstrap(self) -> str:
        """The path of the bootstrap records."""
        return os.path.join(self.path, BOOTSTRAP)

    @property
    def original(self) -> str:
        """Where the bootstrap records are kept as formatting wrote them."""
        return self.bootstrap + ORIGINAL_SUFFIX


def check_seed(given: str, properties: Mapping[str, str] | None = None) -> SeedDirectory:
    """Check a metadata log directory; nothing is written.

    Parameters
    ----------
    given : str
        As it was given.
    properties : mapping of str to str, optional
        Its ``meta.properties``, where an unfinished restore has put that away.

    Raises
    ------
    InputError
        It is not formatted, a running controller holds it, or its metadata log has records.
    """
    path = os.path.realpath(given)
    if not os.path.isdir(path):
        raise InputError("the metadata log directory does not exist", path=given)
    refuse_running(path, "a cluster can be seeded only before its first start")
    place = os.path.join(path, META_PROPERTIES)
    if not properties:
        if not os.path.exists(place):
            raise _not_formatted(given, META_PROPERTIES)
        properties = read_properties(place)
    directory = SeedDirectory(path, properties)
    if not os.path.exists(directory.bootstrap):
        raise _not_formatted(given, BOOTSTRAP)
    _refuse_used(path, given)
    original = _read_bootstrap(_original_of(directory))
    with open(directory.bootstrap, "rb") as file:
        begins_alike = file.read(len(original.batches)) == original.batches
    if not begins_alike:
        raise InputError(
            "the bootstrap records are not those that were kept aside before the last seeding",
            path=directory.bootstrap,
            found=os.path.basename(directory.original),
            hint="was the directory formatted again? remove the .orig file",
        )
    return directory


def one_cluster(directories: Sequence[SeedDirectory], cluster_id: str | None) -> str:
    """Return the cluster id that all directories share, and the output, where it has one.

    Raises
    ------
    InputError
        They are of different clusters.
    """
    wanted = cluster_id
    for directory in directories:
        found = directory.properties.get(CLUSTER_ID, "")
        if wanted is None:
            wanted = found
        if found != wanted:
            raise InputError(
                "the metadata log directory is that of another cluster",
                path=directory.path,
                expected=f"{CLUSTER_ID}={wanted}",
                found=f"{CLUSTER_ID}={found}",
                hint="format all directories with one cluster id",
            )
    return wanted or ""


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
    before = _read_bootstrap(_original_of(directory))
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


@dataclass(frozen=True, slots=True)
class _Bootstrap:
    """A bootstrap file: its batches up to the footer, and that."""

    batches: bytes
    footer: bytes
    end_offset: int
    timestamp_ms: int
    partition_version: int


def _original_of(directory: SeedDirectory) -> str:
    """Return the file that holds the records that formatting wrote."""
    kept = os.path.exists(directory.original)
    return directory.original if kept else directory.bootstrap


def _read_bootstrap(path: str) -> _Bootstrap:
    info = os.stat(path)
    segment = SegmentFile(CLUSTER_METADATA_TOPIC, 0, 0, path, info.st_size, info.st_mtime_ns)
    source = LogFileSource.of_segment(segment, verify_crc=True)
    position = end_offset = timestamp_ms = 0
    is_control = False
    for batches in source.chunks():
        if batches.rows:
            position = int(batches.position_bytes[-1])
            end_offset = int(batches.base_offset[-1])
            timestamp_ms = int(batches.max_timestamp_ms[-1])
            is_control = bool(int(batches.attributes[-1]) & CONTROL_MASK)
    with open(path, "rb") as file:
        data = file.read()
    records = list(TopicLog([segment], DecompressionBudget(1 << 24)).records())
    if source.stop is not None or not is_control or not records:
        raise InputError(
            "the bootstrap records are damaged", path=path, hint="format the directory again"
        )
    key = MessageReader(records[-1].key or b"", 2)
    if key.int16() != _FOOTER:
        raise InputError("the bootstrap records have no footer", path=path)
    version = 1
    for record in records:
        if record.is_control:
            continue
        decoded = METADATA_CODEC.decode(record.value)
        value = decoded.value
        if decoded.name == "FeatureLevelRecord" and value is not None:
            has_elr = value.text("name") == _ELR_FEATURE and value.integer("featureLevel") > 0
            version = 2 if has_elr else version
    return _Bootstrap(data[:position], data[position:], end_offset, timestamp_ms, version)


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


def _refuse_used(path: str, given: str) -> None:
    """Refuse a metadata log that has records, or a snapshot but that of formatting."""
    log = os.path.join(path, METADATA_LOG)
    if not os.path.isdir(log):
        return
    for entry in sorted(os.scandir(log), key=lambda each: each.name):
        is_log = entry.name.endswith(".log") and entry.stat().st_size > 0
        is_snapshot = entry.name.endswith(".checkpoint") and entry.name != _FIRST_SNAPSHOT
        if is_log or is_snapshot:
            raise InputError(
                "the metadata log has records: bootstrap records are not read again",
                path=given,
                found=os.path.join(METADATA_LOG, entry.name),
                hint="seed a cluster that was formatted and never started",
            )


def _not_formatted(given: str, name: str) -> InputError:
    return InputError(
        "the metadata log directory is not formatted",
        path=given,
        expected=name,
        hint="format it first: kafka-storage.sh format -t CLUSTER_ID -c server.properties",
    )
