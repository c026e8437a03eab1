"""Bootstrap of a fresh cluster: restored topics are added to ``bootstrap.checkpoint``.

If the metadata log of a cluster is empty, the first controller replays this file: topics get their
old IDs, and the restored broker leads each partition from the start. The records that formatting
wrote stay unchanged, and the new records precede the footer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from kafka_index.commands.restore.cluster import (
    CLUSTER_ID,
    DIRECTORY_ID,
    NODE_ID,
    Identity,
    SourceCluster,
    dump_identity,
    fresh_identity,
    refuse_identity,
)
from kafka_index.commands.restore.output import (
    RestoreTarget,
    directory_to_write,
    sync_directory,
    write_durably,
)
from kafka_index.commands.restore.plan import RestorePlan
from kafka_index.commands.restore.request import RestoreRequest
from kafka_index.commands.restore.result import (
    RestoredPartition,
)
from kafka_index.core.cluster.metadata.decoding import METADATA_CODEC, TOPIC_RESOURCE, TopicLog
from kafka_index.core.cluster.replicas import Dump
from kafka_index.core.errors import InputError, raise_retriable
from kafka_index.core.format.message_bytes import MessageReader
from kafka_index.core.format.message_schemas import Value
from kafka_index.core.format.names import (
    BOOTSTRAP_CHECKPOINT,
    CLUSTER_METADATA_TOPIC,
    FIRST_SNAPSHOT,
    META_PROPERTIES,
    METADATA_LOG,
    TopicPartition,
)
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.metadata_files import read_properties
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.records.record_batch import Record, write_record_batch

ORIGINAL_SUFFIX = ".orig"
_FOOTER = 4
_ELR_FEATURE = "eligible.leader.replicas.version"
_NO_LEADER = -1
_MAX_BATCH_RECORDS = 1000
_OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True)
class SeedDirectory:
    """The metadata log directory of a controller, formatted and never used."""

    path: str
    properties: Mapping[str, str]

    @property
    def bootstrap(self) -> str:
        return os.path.join(self.path, BOOTSTRAP_CHECKPOINT)

    @property
    def original(self) -> str:
        """The path to which seeding moves the bootstrap records that formatting wrote."""
        return self.bootstrap + ORIGINAL_SUFFIX


def check_seed(
    user_path: str, inputs: Sequence[str], properties: Mapping[str, str] | None
) -> SeedDirectory:
    """Check a metadata log directory without writing to the directory.

    If the directory is also the output, `properties` are the ``meta.properties`` of the output.
    """
    hint = "seed the metadata log directory of a fresh cluster, before its first start"
    path = directory_to_write(user_path, "the metadata log directory", inputs, hint=hint)
    if not os.path.isdir(path):
        raise InputError("the metadata log directory does not exist", path=user_path)
    properties_path = os.path.join(path, META_PROPERTIES)
    if not properties:
        if not os.path.exists(properties_path):
            raise _not_formatted_error(user_path, META_PROPERTIES)
        refuse_identity(path, "format the directory again")
        properties = read_properties(properties_path) or {}
    directory = SeedDirectory(path, properties)
    if not os.path.exists(directory.bootstrap):
        raise _not_formatted_error(user_path, BOOTSTRAP_CHECKPOINT)
    refuse_used(directory)
    return directory


def refuse_used(directory: SeedDirectory) -> None:
    """Reject a directory that a controller has used, or that was formatted again."""
    _refuse_records(directory.path)
    original = read_bootstrap(original_bootstrap_path(directory))
    with open(directory.bootstrap, "rb") as file:
        begins_alike = file.read(len(original.batches)) == original.batches
    if not begins_alike:
        raise InputError(
            "the bootstrap records differ from the copy made before the last seeding",
            path=directory.bootstrap,
            found=os.path.basename(directory.original),
            hint="if the directory was formatted again, remove the .orig file",
        )


def _refuse_records(path: str) -> None:
    """Reject a metadata log with records, or with a snapshot that formatting did not write."""
    log = os.path.join(path, METADATA_LOG)
    if not os.path.isdir(log):
        return
    for entry in sorted(os.scandir(log), key=attrgetter("name")):
        is_log = entry.name.endswith(".log") and entry.stat().st_size > 0
        is_snapshot = entry.name.endswith(".checkpoint") and entry.name != FIRST_SNAPSHOT
        if is_log or is_snapshot:
            raise InputError(
                "the metadata log already has records: a controller would ignore the seeded topics",
                path=path,
                found=os.path.join(METADATA_LOG, entry.name),
                hint="seed a cluster that was formatted and never started",
            )


def _not_formatted_error(user_path: str, name: str) -> InputError:
    return InputError(
        "the metadata log directory is not formatted",
        path=user_path,
        expected=name,
        hint="format the directory: kafka-storage.sh format -t CLUSTER_ID -c server.properties",
    )


def common_cluster_id(directories: Sequence[SeedDirectory], cluster_id: str | None) -> str:
    """Return the common cluster ID of all directories; `cluster_id` is the ID of the output."""
    expected_id = cluster_id
    for directory in directories:
        directory_cluster_id = directory.properties.get(CLUSTER_ID, "")
        if expected_id is None:
            expected_id = directory_cluster_id
        if directory_cluster_id != expected_id:
            raise InputError(
                "the metadata log directory belongs to another cluster",
                path=directory.path,
                expected=f"{CLUSTER_ID}={expected_id}",
                found=f"{CLUSTER_ID}={directory_cluster_id}",
                hint="format all directories with the same cluster ID",
            )
    return expected_id or ""


def fresh_cluster_identity(
    request: RestoreRequest, dump: Dump, output: RestoreTarget, seeds: Sequence[SeedDirectory]
) -> Identity:
    """Return the identity of the output in a fresh cluster."""
    if not seeds:
        return Identity(output.properties or dump_identity(dump))
    cluster_id = common_cluster_id(seeds, output.properties.get(CLUSTER_ID))
    if output.properties:
        if DIRECTORY_ID not in output.properties:
            raise InputError(
                "meta.properties of the output has no directory.id, which the partition "
                "assignments require",
                path=output.path,
                hint="format the output again, with kafka-storage.sh of the cluster",
            )
        return Identity(output.properties)
    nodes = {directory.properties.get(NODE_ID, "") for directory in seeds}
    node_id = nodes.pop() if len(nodes) == 1 else ""
    if request.node_id is not None:
        node_id = str(request.node_id)
    if not node_id:
        raise InputError(
            "the node ID of the output is unknown",
            path=request.output,
            hint="format the output as a log directory of the broker, or give --node-id",
        )
    return Identity(fresh_identity(cluster_id, node_id))


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A bootstrap file: its batches before the footer, and the footer."""

    batches: bytes
    footer: bytes
    end_offset: int
    timestamp_ms: int
    partition_version: int


def original_bootstrap_path(directory: SeedDirectory) -> str:
    is_seeded = os.path.exists(directory.original)
    return directory.original if is_seeded else directory.bootstrap


def read_bootstrap(path: str) -> Bootstrap:
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
            is_control = bool(batches.is_control[-1])
    with open(path, "rb") as file:
        data = file.read()
    log = TopicLog([segment], DecompressionBudget(1 << 24))
    records = list(log.records())
    raise_retriable(log.faults)
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
        message = METADATA_CODEC.decode(record.value)
        value = message.value
        if message.name == "FeatureLevelRecord" and value is not None:
            has_elr = value.text("name") == _ELR_FEATURE and value.integer("featureLevel") > 0
            version = 2 if has_elr else version
    return Bootstrap(data[:position], data[position:], end_offset, timestamp_ms, version)


@dataclass(frozen=True, slots=True)
class SeededTopic:
    """A topic of the new cluster, with the leader epoch of each partition."""

    name: str
    topic_id: str
    configs: Mapping[str, str]
    leader_epochs: Sequence[int]


@dataclass(frozen=True, slots=True)
class Seeding:
    """The topics and the first free producer ID that are added to the bootstrap records.

    `notes` describe assumptions about the source cluster in the runbook.
    """

    topics: Sequence[SeededTopic]
    node_id: int
    directory_id: str
    next_producer_id: int
    notes: Sequence[str] = ()


def plan_seeding(
    plan: RestorePlan,
    restored: Iterable[RestoredPartition],
    source: SourceCluster,
    properties: Mapping[str, str],
) -> Seeding:
    """Return the topics and the producer ID to add to the bootstrap records."""
    partitions_by_topic: dict[str, dict[int, RestoredPartition]] = {}
    for partition in restored:
        partitions_by_topic.setdefault(partition.partition.topic, {})[
            partition.partition.partition
        ] = partition
    plans = {partition.partition.topic: partition for partition in plan.partitions}
    compacted_topics = {
        partition.partition.topic
        for partition in plan.partitions
        if partition.known_offsets.cleaning.is_compacted
    }
    topics: list[SeededTopic] = []
    topics_with_assumed_configs, notes = [], []
    largest_producer_id = -1
    for topic, partitions in sorted(partitions_by_topic.items()):
        if topic not in plans:
            continue
        old_name = _source_topic(plan, topic)
        configs = source.configs(
            old_name,
            plan.request.topic_configs.get(topic, {}),
            is_compacted=topic in compacted_topics,
        )
        if configs.is_assumed:
            topics_with_assumed_configs.append(topic)
        if configs.withheld:
            names = ", ".join(configs.withheld)
            notes.append(f"{topic}: sensitive settings are not restored: {names}")
        largest_producer_id = max(
            [largest_producer_id, *(partition.max_producer_id for partition in partitions.values())]
        )
        numbers = range(max(source.partition_count(old_name), max(partitions) + 1))
        epochs = [
            _new_leader_epoch(old_name, number, partitions.get(number), source)
            for number in numbers
        ]
        topics.append(SeededTopic(topic, plans[topic].topic_id, configs.values, epochs))
    if topics_with_assumed_configs:
        notes.append(
            "retention is disabled for topics with unknown settings: "
            f"{', '.join(topics_with_assumed_configs)}"
        )
    node_id, directory_id = int(properties[NODE_ID]), properties[DIRECTORY_ID]
    return Seeding(
        topics, node_id, directory_id, source.next_producer_id(largest_producer_id), notes
    )


def _new_leader_epoch(
    topic: str, number: int, restored: RestoredPartition | None, source: SourceCluster
) -> int:
    """Return a leader epoch above the epochs of all records and committed offsets."""
    partition = TopicPartition(topic, number)
    last_epoch = -1 if restored is None else restored.last_epoch
    return max(last_epoch, source.committed_epoch(partition), source.leader_epoch(partition)) + 1


def _source_topic(plan: RestorePlan, topic: str) -> str:
    return next(
        (old_name for old_name, new_name in plan.request.renames.items() if new_name == topic),
        topic,
    )


def partitions_not_in_dump(plan: RestorePlan, source: SourceCluster) -> Sequence[TopicPartition]:
    """Return the partitions of the restored topics that no dump contains."""
    known_partitions = {partition_plan.partition for partition_plan in plan.partitions} | set(
        plan.without_logs
    )
    last_numbers: dict[str, int] = {}
    for partition in known_partitions:
        last_numbers[partition.topic] = max(
            last_numbers.get(partition.topic, -1), partition.partition
        )
    return [
        partition
        for topic, last_number in sorted(last_numbers.items())
        for number in range(
            max(last_number + 1, source.partition_count(_source_topic(plan, topic)))
        )
        if (partition := TopicPartition(topic, number)) not in known_partitions
    ]


def write_seed(directory: SeedDirectory, content: Seeding) -> None:
    """Add records to the bootstrap records of a controller; keep the old file as ``.orig``.

    If a call is interrupted, the next call writes the same file.
    """
    original = read_bootstrap(original_bootstrap_path(directory))
    data = bytearray(original.batches)
    offset, version = original.end_offset, original.partition_version
    values = list(_bootstrap_records(content, version))
    for start in range(0, len(values), _MAX_BATCH_RECORDS):
        chunk = values[start : start + _MAX_BATCH_RECORDS]
        data += write_record_batch(
            [Record(original.timestamp_ms, None, value) for value in chunk], offset
        )
        offset += len(chunk)
    data += offset.to_bytes(_OFFSET_BYTES, "big") + original.footer[_OFFSET_BYTES:]
    with publishing(directory.original, "keep a copy of the bootstrap records"):
        if not os.path.exists(directory.original):
            os.link(directory.bootstrap, directory.original)
            sync_directory(directory.path)
    write_durably(directory.bootstrap, bytes(data))
    sync_directory(directory.path)


def _bootstrap_records(content: Seeding, partition_version: int) -> Iterator[bytes]:
    for topic in content.topics:
        topic_message: dict[str, Value] = {"name": topic.name, "topicId": topic.topic_id}
        yield METADATA_CODEC.encode("TopicRecord", 0, topic_message)
        for name, value in sorted(topic.configs.items()):
            config: dict[str, Value] = {
                "resourceType": TOPIC_RESOURCE,
                "resourceName": topic.name,
                "name": name,
                "value": value,
            }
            yield METADATA_CODEC.encode("ConfigRecord", 0, config)
        for number, leader_epoch in enumerate(topic.leader_epochs):
            message: dict[str, Value] = {
                "partitionId": number,
                "topicId": topic.topic_id,
                "replicas": [content.node_id],
                "isr": [content.node_id],
                "removingReplicas": [],
                "addingReplicas": [],
                # When the broker first registers, a leader is elected. A leader that is set here
                # would be fenced by this registration and elected again. After the second election,
                # a group coordinator that is still loading would count as loaded, and serve old
                # committed offsets.
                "leader": _NO_LEADER,
                "leaderEpoch": leader_epoch,
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
