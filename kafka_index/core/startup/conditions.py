"""The conditions of a startup: broker settings, cluster metadata, and known lost offsets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import pyarrow as pa

from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.errors import InputError
from kafka_index.core.format.config import LogConfig, parse_integer
from kafka_index.core.format.names import METADATA_LOG, TopicPartition
from kafka_index.core.log.append.log_segment_writer import Clock, system_clock
from kafka_index.core.log.missing_offsets import MissingRange
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.startup.identity import find_metadata_directory, started_directories
from kafka_index.core.startup.metadata_log import read_started_cluster

#: Ranges of offsets, both ends inclusive. The end is None if corruption makes it unknown.
OffsetRanges = Sequence[tuple[int, int | None]]
KnownLosses = Mapping[TopicPartition, OffsetRanges]

_COLUMNS = ("topic", "partition", "status", "first_offset", "last_offset")
_FORMATS = {".parquet": "parquet", ".json": "json", ".csv": "csv", ".arrow": "ipc"}


def read_known_losses(path: str) -> KnownLosses:
    """Read the lost offset ranges from a restore report.

    Raises `InputError` if the file cannot be read or is not a restore report.
    """
    file_format = _FORMATS.get(os.path.splitext(path)[1])
    if file_format is None:
        raise InputError(
            "unknown format of a restore report",
            path=path,
            expected="a file name that ends in .parquet, .json, .csv or .arrow",
        )
    # Imported late: the import is slow, because it imports pandas.
    import pyarrow.dataset as pads  # noqa: PLC0415

    try:
        table = pads.dataset(path, format=file_format).to_table(columns=list(_COLUMNS))
    except (OSError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"cannot read the restore report: {reason}", path=path) from error
    losses: dict[TopicPartition, list[tuple[int, int | None]]] = {}
    for row in table.to_pylist():
        if row["status"] == "lost" and row["first_offset"] is not None:
            partition = TopicPartition(row["topic"], row["partition"])
            losses.setdefault(partition, []).append((row["first_offset"], row["last_offset"]))
    return losses


def is_known_loss(gap: MissingRange, known_losses: OffsetRanges) -> bool:
    """Return whether a restore reported all offsets of a missing range as lost."""
    next_offset = gap.first_offset
    for first_offset, last_offset in sorted(known_losses, key=itemgetter(0)):
        if last_offset is None:
            if first_offset == gap.first_offset:
                return True
        elif first_offset <= next_offset:
            next_offset = max(next_offset, last_offset + 1)
    return next_offset >= gap.end_offset


def format_known_losses(missing_ranges: Iterable[MissingRange]) -> list[str]:
    return [
        f"the restore report lists offsets {gap.first_offset} to {gap.last_offset} as lost"
        for gap in missing_ranges
    ]


_RETENTION_MS, _RETENTION_BYTES = "retention.ms", "retention.bytes"
# The first of these properties that is set applies (AbstractKafkaConfig.logRetentionTimeMillis).
_BROKER_RETENTION_MS = (
    ("log.retention.ms", 1),
    ("log.retention.minutes", 60_000),
    ("log.retention.hours", 3_600_000),
)
_DEFAULT_RETENTION_MS = 168 * 3_600_000
_DEFAULT_POLICY = "delete"


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention limits of a topic: negative means unlimited, None means unknown.

    `malformed` lists settings that are not numbers, as ``name=value``; they make a limit unknown.
    """

    retention_ms: int | None
    retention_bytes: int | None
    malformed: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        return self.retention_ms is not None and self.retention_bytes is not None


@dataclass(frozen=True, slots=True)
class StartConditions:
    """Broker settings, cluster metadata and clock of a startup.

    Attributes
    ----------
    config
        Index settings of the broker, with the overrides of topics.
    cluster
        Cluster metadata. If None, stray partitions cannot be detected.
    clock
        Returns the current time in ms.
    properties
        All settings of the broker, as in ``server.properties``. If None, retention is known only
        for topics with their own settings.
    metadata_directory
        Directory of the metadata log. Default: the directory in `properties` if it exists here,
        otherwise the data directory that contains a metadata log.
    metadata_fault
        Why the metadata after startup is unknown, if the metadata log is corrupt.
    ignores_clean_shutdown
        Ignore clean shutdown files.
    known_losses
        Offsets that a restore reported as lost.
    """

    config: LogConfig
    cluster: ClusterImage | None = None
    clock: Clock = system_clock
    properties: Mapping[str, str] | None = None
    metadata_directory: str | None = None
    metadata_fault: str | None = None
    ignores_clean_shutdown: bool = False
    known_losses: KnownLosses = field(default_factory=dict)

    def cleanup_policy(self, topic: str, node_id: int | None) -> str | None:
        """Return ``cleanup.policy`` of a topic on a broker, None if unknown."""
        if self.cluster is None:
            return None
        policy = self.cluster.cleanup_policy(topic, self.properties, node_id)
        if policy is None and self.properties is not None:
            return _DEFAULT_POLICY
        return policy

    def has_topic(self, topic: str) -> bool:
        return self.cluster is not None and self.cluster.find_topic(topic) is not None

    def stray_reason(
        self, partition: TopicPartition, topic_id: str | None, node_id: int | None
    ) -> str | None:
        """Return why a broker treats the partition as stray, None if not stray or unknown."""
        if topic_id is None:
            return (
                "stray: the directory has no partition.metadata, and a broker creates an empty log"
            )
        if self.cluster is None:
            return None
        return self.cluster.stray_reason(partition.partition, topic_id, node_id)

    def unreachable_reason(self, topic: str, topic_id: str | None) -> str | None:
        """Return the reason if a partition's topic ID belongs to a topic of another name."""
        name = (
            None if self.cluster is None else self.cluster.conflicting_name(topic_id or "", topic)
        )
        if name is None:
            return None
        return (
            f"topic ID {topic_id} in partition.metadata belongs to topic {name}: after an "
            "InconsistentTopicId error, the broker serves no partition"
        )

    def directory_id(self, topic_id: str | None, partition: int, node_id: int | None) -> str | None:
        topic = None if self.cluster is None else self.cluster.topics.get(topic_id or "")
        image = None if topic is None else topic.partitions.get(partition)
        return None if image is None else image.directory_at(node_id)

    def retention(self, topic: str, node_id: int | None) -> Retention:
        if self.cluster is None:
            return Retention(None, None)
        configs = self.cluster.topic_configs(topic)
        is_remote = configs.get("remote.storage.enable") == "true"
        policy = self.cleanup_policy(topic, node_id)
        if is_remote or (policy is not None and "delete" not in policy):
            # Local deletion of tiered topics depends on the uploaded segments, so it is not
            # predicted here.
            return Retention(-1, -1)
        if policy is None:
            return Retention(None, None)
        broker_configs = self.cluster.broker_settings(self.properties, node_id)
        has_properties = self.properties is not None
        malformed: list[str] = []

        def limit(*names: tuple[Mapping[str, str], str, int], default: int) -> int | None:
            for settings, name, factor in names:
                if name in settings:
                    number = parse_integer(settings[name].strip())
                    if number is None:
                        malformed.append(f"{name}={settings[name]}")
                        return None
                    return number * factor
            return default if has_properties else None

        broker_retention = ((broker_configs, name, factor) for name, factor in _BROKER_RETENTION_MS)
        return Retention(
            limit((configs, _RETENTION_MS, 1), *broker_retention, default=_DEFAULT_RETENTION_MS),
            limit(
                (configs, _RETENTION_BYTES, 1),
                (broker_configs, "log.retention.bytes", 1),
                default=-1,
            ),
            tuple(malformed),
        )


def collect_conditions(
    directories: Sequence[str],
    metadata: str | None,
    properties: Mapping[str, str] | None,
    config: LogConfig,
    max_decompressed_bytes: int,
    known_losses: str | None = None,
) -> StartConditions:
    """Collect the conditions of a startup.

    Parameters
    ----------
    metadata
        Path of the metadata log. By default, the metadata log is searched in `directories`.
    properties
        All broker settings, None if unknown.
    known_losses
        Path of a restore report.
    """
    losses = {} if known_losses is None else read_known_losses(known_losses)
    directories = started_directories(directories, properties)
    directory = find_metadata_directory(directories, properties, metadata)
    path = directory if metadata is None else metadata
    cluster, fault = None, None
    has_metadata_log = metadata is not None or os.path.isdir(os.path.join(path or "", METADATA_LOG))
    if path is not None and has_metadata_log:
        budget = shared_budget(max_decompressed_bytes)
        cluster, fault = read_started_cluster(path, properties, budget)
    return StartConditions(
        config,
        cluster,
        properties=properties,
        metadata_directory=directory,
        metadata_fault=fault,
        known_losses=losses,
    )
