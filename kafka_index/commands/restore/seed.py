"""A fresh cluster: the restored topics, added to a formatted ``bootstrap.checkpoint``.

The first controller of a cluster whose metadata log is empty replays that file: topics get their
old IDs, and the restored broker leads each partition from the start. The records that formatting
wrote stay unchanged, and the new records precede the footer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
_RECORDS_OF_A_BATCH = 1000
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
        """The path of the bootstrap records that formatting wrote, once it was seeded."""
        return self.bootstrap + ORIGINAL_SUFFIX


def check_seed(
    given: str, inputs: Sequence[str], properties: Mapping[str, str] | None
) -> SeedDirectory:
    """Check a metadata log directory without writing to it.

    If it is the output, `properties` are the properties of the output.
    """
    hint = "seed the metadata log directory of a fresh cluster, before its first start"
    path = directory_to_write(given, "the metadata log directory", inputs, hint=hint)
    if not os.path.isdir(path):
        raise InputError("the metadata log directory does not exist", path=given)
    place = os.path.join(path, META_PROPERTIES)
    if not properties:
        if not os.path.exists(place):
            raise _not_formatted(given, META_PROPERTIES)
        refuse_identity(path, "format the directory again")
        properties = read_properties(place) or {}
    directory = SeedDirectory(path, properties)
    if not os.path.exists(directory.bootstrap):
        raise _not_formatted(given, BOOTSTRAP_CHECKPOINT)
    refuse_used(directory)
    return directory


def refuse_used(directory: SeedDirectory) -> None:
    """Reject a directory that a controller has used, or that was formatted again."""
    _refuse_records(directory.path)
    original = read_bootstrap(original_of(directory))
    with open(directory.bootstrap, "rb") as file:
        begins_alike = file.read(len(original.batches)) == original.batches
    if not begins_alike:
        raise InputError(
            "the bootstrap records differ from the copy made before the last seeding",
            path=directory.bootstrap,
            found=os.path.basename(directory.original),
            hint="was the directory formatted again? remove the .orig file",
        )


def _refuse_records(path: str) -> None:
    """Reject a metadata log with records, or with a snapshot that formatting did not write."""
    log = os.path.join(path, METADATA_LOG)
    if not os.path.isdir(log):
        return
    for entry in sorted(os.scandir(log), key=lambda each: each.name):
        is_log = entry.name.endswith(".log") and entry.stat().st_size > 0
        is_snapshot = entry.name.endswith(".checkpoint") and entry.name != FIRST_SNAPSHOT
        if is_log or is_snapshot:
            raise InputError(
                "the metadata log has records, so that a controller ignores bootstrap records",
                path=path,
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


def one_cluster(directories: Sequence[SeedDirectory], cluster_id: str | None) -> str:
    """Return the cluster ID of all directories, and of the output if it has one."""
    wanted = cluster_id
    for directory in directories:
        found = directory.properties.get(CLUSTER_ID, "")
        if wanted is None:
            wanted = found
        if found != wanted:
            raise InputError(
                "the metadata log directory belongs to another cluster",
                path=directory.path,
                expected=f"{CLUSTER_ID}={wanted}",
                found=f"{CLUSTER_ID}={found}",
                hint="format all directories with one cluster id",
            )
    return wanted or ""


def fresh_cluster_identity(
    request: RestoreRequest, dump: Dump, output: RestoreTarget, seeds: Sequence[SeedDirectory]
) -> Identity:
    """Return the identity of the output in a fresh cluster."""
    if not seeds:
        return Identity(output.properties or dump_identity(dump))
    cluster_id = one_cluster(seeds, output.properties.get(CLUSTER_ID))
    if output.properties:
        if DIRECTORY_ID not in output.properties:
            raise InputError(
                "the output has no directory.id, to which the cluster assigns partitions",
                path=output.path,
                hint="format it again, with the kafka-storage.sh of the cluster",
            )
        return Identity(output.properties)
    nodes = {each.properties.get(NODE_ID, "") for each in seeds}
    node_id = nodes.pop() if len(nodes) == 1 else ""
    if request.node_id is not None:
        node_id = str(request.node_id)
    if not node_id:
        raise InputError(
            "the broker of the output is unknown",
            path=request.output,
            hint="format the output as a log directory of that broker, or give --node-id",
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


def original_of(directory: SeedDirectory) -> str:
    kept = os.path.exists(directory.original)
    return directory.original if kept else directory.bootstrap


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
        decoded = METADATA_CODEC.decode(record.value)
        value = decoded.value
        if decoded.name == "FeatureLevelRecord" and value is not None:
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

    The notes are the assumptions in them, for people.
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
    """Return the bootstrap records of the restored partitions."""
    by_topic: dict[str, dict[int, RestoredPartition]] = {}
    for each in restored:
        by_topic.setdefault(each.partition.topic, {})[each.partition.partition] = each
    plans = {each.partition.topic: each for each in plan.partitions}
    compacted = {
        each.partition.topic for each in plan.partitions if each.known.cleaning.is_compacted
    }
    topics: list[SeededTopic] = []
    assumed, notes = [], []
    largest = -1
    for topic, partitions in sorted(by_topic.items()):
        if topic not in plans:
            continue
        old_name = _old_name(plan, topic)
        found = source.configs(
            old_name, plan.request.topic_configs.get(topic, {}), is_compacted=topic in compacted
        )
        if found.is_assumed:
            assumed.append(topic)
        if found.withheld:
            names = ", ".join(found.withheld)
            notes.append(f"{topic}: sensitive settings are not restored: {names}")
        largest = max([largest, *(each.max_producer_id for each in partitions.values())])
        numbers = range(max(source.partition_count(old_name), max(partitions) + 1))
        epochs = [
            _leader_epoch(old_name, number, partitions.get(number), source) for number in numbers
        ]
        topics.append(SeededTopic(topic, plans[topic].topic_id, found.values, epochs))
    if assumed:
        notes.append(
            "the settings of these topics are unknown. Their retention is disabled until you set "
            f"it: {', '.join(assumed)}"
        )
    node_id, directory_id = int(properties[NODE_ID]), properties[DIRECTORY_ID]
    return Seeding(topics, node_id, directory_id, source.next_producer_id(largest), notes)


def _leader_epoch(
    topic: str, number: int, restored: RestoredPartition | None, source: SourceCluster
) -> int:
    """Return an epoch above all earlier epochs, so that no record in the log has the new epoch."""
    partition = TopicPartition(topic, number)
    last = -1 if restored is None else restored.last_epoch
    return max(last, source.committed_epoch(partition), source.leader_epoch(partition)) + 1


def _old_name(plan: RestorePlan, topic: str) -> str:
    return next((old for old, new in plan.request.renames.items() if new == topic), topic)


def partitions_not_in_dump(plan: RestorePlan, source: SourceCluster) -> Sequence[TopicPartition]:
    """Return the partitions of the plan's topics that no dump has."""
    known = {each.partition for each in plan.partitions} | set(plan.without_logs)
    largest: dict[str, int] = {}
    for partition in known:
        largest[partition.topic] = max(largest.get(partition.topic, -1), partition.partition)
    return [
        partition
        for topic, last in sorted(largest.items())
        for number in range(max(last + 1, source.partition_count(_old_name(plan, topic))))
        if (partition := TopicPartition(topic, number)) not in known
    ]


def write_seed(directory: SeedDirectory, content: Seeding) -> None:
    """Add records to the bootstrap records of a controller; keep the old file as ``.orig``.

    After an interruption, the same file is written again.
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
    with publishing(directory.original, "keep the bootstrap records"):
        if not os.path.exists(directory.original):
            os.link(directory.bootstrap, directory.original)
            sync_directory(directory.path)
    write_durably(directory.bootstrap, bytes(data))
    sync_directory(directory.path)


def _records(content: Seeding, partition_version: int) -> Iterator[bytes]:
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
        for number, leader_epoch in enumerate(topic.leader_epochs):
            message: dict[str, Value] = {
                "partitionId": number,
                "topicId": topic.topic_id,
                "replicas": [content.node_id],
                "isr": [content.node_id],
                "removingReplicas": [],
                "addingReplicas": [],
                # The first registration elects a leader. An earlier leader would be fenced by the
                # registration and elected again. A group coordinator that is still loading would
                # then count as loaded, and serve old offsets.
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
