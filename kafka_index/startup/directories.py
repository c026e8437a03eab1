"""What a broker does to its data directories when it starts.

Source: Kafka's ``LogManager.loadLogs`` and ``loadLog``. The metadata log is not among the logs that
these load.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_index.config import LogConfig
from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.growing.growing_segment import Clock, system_clock
from kafka_index.layout.internal_topics import CLUSTER_METADATA_TOPIC
from kafka_index.layout.names import (
    META_PROPERTIES,
    DirectoryKind,
    TopicPartition,
    split_directory_name,
)
from kafka_index.metadata import ClusterImage
from kafka_index.scan.missing_offsets import Cleaning
from kafka_index.startup.description import KnownOffsets, describe
from kafka_index.startup.directory_files import (
    CLEAN_SHUTDOWN,
    DirectoryFiles,
    property_line,
    read_topic_id,
)
from kafka_index.startup.found_files import find_files
from kafka_index.startup.partition_loading import Loading, load_partition
from kafka_index.startup.prediction import (
    Outcome,
    PartitionPrediction,
    Prediction,
    Refusal,
    StartRefusedError,
    Verdict,
)
from kafka_index.startup.retention import with_retention
from kafka_index.startup.topic_settings import TopicSettings
from kafka_index.storage.directories import scan_directory

_REMOTE_INDEX_CACHE = "remote-log-index-cache"
_ONE_CLUSTER = ("cluster.id", "node.id")


@dataclass(frozen=True, slots=True)
class StartConditions:
    """What a broker starts with, besides its directories.

    Parameters
    ----------
    config : LogConfig
        The broker's settings, and those of topics that they name.
    cluster : ClusterImage or None
        The metadata; without it, what is stray is not known.
    node_id : int or None
        Of the broker; by default that of ``meta.properties``.
    has_marker : bool or None
        Whether the marker of a clean shutdown is there; by default as it is.
    clock : callable
        Returns the time in ms.
    properties : mapping of str to str, or None
        All of the broker's settings; without them, retention is known only of topics that have
        settings of their own.
    """

    config: LogConfig
    cluster: ClusterImage | None = None
    node_id: int | None = None
    has_marker: bool | None = None
    clock: Clock = system_clock
    properties: Mapping[str, str] | None = None


def predict_directories(paths: Sequence[str], conditions: StartConditions) -> Prediction:
    """Predict the start of a broker with these data directories.

    Raises
    ------
    InputError
        A directory cannot be read, or a running broker holds it.
    """
    return _Start(conditions).predict(paths)


class _Start:
    def __init__(self, conditions: StartConditions) -> None:
        self._conditions = conditions
        self._refused: list[Refusal] = []
        self._partitions: list[PartitionPrediction] = []
        self._notes: list[str] = []
        self._seen: dict[tuple[TopicPartition, DirectoryKind], str] = {}
        self._has_marker = False
        self._topics = TopicSettings(conditions.config, conditions.properties, conditions.cluster)
        self._has_unknown_retention = False
        self._malformed: set[str] = set()

    def predict(self, paths: Sequence[str]) -> Prediction:
        directories = []
        for path in paths:
            try:
                directories.append(DirectoryFiles.read(os.path.abspath(path)))
            except StartRefusedError as error:
                self._refused.append(_refusal(error))
        self._check_identity(directories)
        # Nothing is touched before all of them are known to belong together.
        if not any(os.path.basename(one.file) == META_PROPERTIES for one in self._refused):
            for directory in directories:
                self._directory(directory)
        if self._conditions.cluster is None:
            self._notes.append(
                "without --metadata it is not known which partitions are stray, nor the settings "
                "of topics, nor what retention deletes 30 seconds after the start"
            )
        elif self._has_unknown_retention:
            self._notes.append(
                "without --config it is not known what retention deletes 30 seconds after the "
                "start of topics that have no cleanup policy and retention of their own"
            )
        if self._malformed:
            self._notes.append(
                "what retention deletes 30 seconds after the start is not known where these "
                f"settings, which are not numbers, count: {', '.join(sorted(self._malformed))}"
            )
        return Prediction(
            self._verdict(),
            tuple(self._refused),
            tuple(self._partitions),
            tuple(self._notes),
            self._has_marker,
        )

    def _verdict(self) -> Verdict:
        if self._refused:
            return Verdict.DOES_NOT_START
        lost = any(
            one.lost.records or one.torn_bytes or one.missing or one.outcome is not Outcome.LOADED
            for one in self._partitions
        )
        return Verdict.LOSES if lost else Verdict.SAFE

    def _check_identity(self, directories: Sequence[DirectoryFiles]) -> None:
        """Refuse directories of different clusters or brokers."""
        wanted = {} if self._conditions.node_id is None else {"node.id": self._conditions.node_id}
        first: dict[str, str] = {name: str(value) for name, value in wanted.items()}
        for directory in directories:
            for name in _ONE_CLUSTER:
                found = directory.properties.get(name)
                if found is None:
                    continue
                if first.setdefault(name, found) != found:
                    path = os.path.join(directory.path, META_PROPERTIES)
                    self._refused.append(
                        Refusal(
                            path,
                            property_line(path, name),
                            f"{name} is {found}, expected {first[name]}",
                        )
                    )

    def _directory(self, directory: DirectoryFiles) -> None:
        self._notes += directory.notes
        is_clean = self._conditions.has_marker
        if is_clean is None:
            is_clean = directory.is_clean
        if is_clean:
            self._has_marker = True
            marker = os.path.join(directory.path, CLEAN_SHUTDOWN)
            self._notes.append(f"{marker} is deleted before anything is loaded")
        for entry in sorted(scan_directory(directory.path), key=lambda one: one.name):
            if not entry.is_directory() or entry.name == _REMOTE_INDEX_CACHE:
                continue
            split = split_directory_name(entry.name)
            if split is None:
                self._refused.append(
                    Refusal(entry.path, None, "not named like a partition directory")
                )
                continue
            partition, kind = split
            if partition.topic == CLUSTER_METADATA_TOPIC:
                continue
            if kind is DirectoryKind.DELETE:
                self._notes.append(f"{entry.path} is deleted 30 seconds after the start")
                continue
            if kind is DirectoryKind.STRAY:
                self._notes.append(f"{entry.path} is kept, and not served")
                continue
            before = self._other_copy(partition, kind, entry.path)
            if before is not None:
                self._refused.append(Refusal(entry.path, None, f"{before} has the same partition"))
                continue
            self._partition(partition, entry.path, directory, is_clean=is_clean)
        self._missing_partitions(directory)

    def _other_copy(self, partition: TopicPartition, kind: DirectoryKind, path: str) -> str | None:
        """Return a directory that a broker does not start with beside this one."""
        before = self._seen.setdefault((partition, kind), path)
        if before != path:
            return before
        # The copy of a partition that is being moved is in another data directory.
        future = self._seen.get((partition, DirectoryKind.FUTURE))
        current = self._seen.get((partition, DirectoryKind.LIVE))
        if future is not None and current is not None:
            other = current if path == future else future
            return other if os.path.dirname(other) == os.path.dirname(path) else None
        return None

    def _partition(
        self, partition: TopicPartition, path: str, directory: DirectoryFiles, *, is_clean: bool
    ) -> None:
        predicted = PartitionPrediction(partition.topic, partition.partition, path, Outcome.REFUSED)
        loading = Loading(
            is_clean,
            directory.recovery_points.get(partition, 0),
            directory.log_starts.get(partition, 0),
            self._topics.log_settings(partition.topic),
            self._conditions.clock,
        )
        try:
            topic_id = read_topic_id(path)
            files = find_files(partition, path)
            with load_partition(path, files, loading) as loaded:
                known = self._known_offsets(partition, directory)
                predicted = describe(predicted, files, loaded, loading, known)
                retention = self._topics.retention(partition.topic, directory.node_id)
                self._has_unknown_retention |= not retention.is_known and not retention.malformed
                self._malformed.update(retention.malformed)
                why = self._why_stray(topic_id, directory, partition)
                if why is None:
                    now_ms = self._conditions.clock()
                    predicted = with_retention(predicted, loaded, retention, now_ms)
                watermark = directory.high_watermarks.get(partition, 0)
                predicted = replace(
                    predicted,
                    high_watermark=min(
                        max(watermark, loaded.log.log_start_offset), loaded.log.log_end_offset
                    ),
                )
        except KafkaIndexError as error:
            # What this process may not read, or what changes meanwhile, says nothing of a broker.
            if is_retriable(error):
                raise
            predicted = replace(predicted, refusal=_refusal(error))
            self._refused.append(_refusal(error))
        else:
            if why is not None:
                predicted = replace(predicted, outcome=Outcome.STRAY, notes=(*predicted.notes, why))
        self._partitions.append(predicted)

    def _known_offsets(self, partition: TopicPartition, directory: DirectoryFiles) -> KnownOffsets:
        """Return what is known of a partition's offsets besides its logs."""
        policy = self._topics.cleanup_policy(partition.topic, directory.node_id)
        cluster = self._conditions.cluster
        has_topic = cluster is not None and cluster.topic_named(partition.topic) is not None
        return KnownOffsets(
            Cleaning.of(
                partition.topic,
                directory.cleaned_to.get(partition),
                policy,
                is_topic_known=has_topic or policy is not None,
            ),
            directory.log_starts.get(partition),
            max(
                directory.high_watermarks.get(partition, 0),
                directory.recovery_points.get(partition, 0),
            ),
            directory.is_clean,
        )

    def _why_stray(
        self, topic_id: str | None, directory: DirectoryFiles, partition: TopicPartition
    ) -> str | None:
        """Return why a partition is stray; None where it is not, or that is not known."""
        if topic_id is None:
            return "stray: it has no partition.metadata; an empty log takes its place"
        cluster, node_id = self._conditions.cluster, directory.node_id
        if cluster is None:
            return None
        return cluster.why_stray(partition.partition, topic_id, node_id)

    def _missing_partitions(self, directory: DirectoryFiles) -> None:
        """Add the partitions that the metadata places here, and that are not here."""
        cluster, directory_id = self._conditions.cluster, directory.properties.get("directory.id")
        node_id = directory.node_id
        if cluster is None or directory_id is None or node_id is None:
            return
        for topic in cluster.topics.values():
            for number, image in topic.partitions.items():
                placed = dict(zip(image.replicas, image.directories, strict=False))
                partition = TopicPartition(topic.name, number)
                is_here = (partition, DirectoryKind.LIVE) in self._seen
                if placed.get(node_id) == directory_id and not is_here:
                    path = os.path.join(directory.path, partition.directory_name)
                    note = "its directory is missing: an empty log is created, without a warning"
                    self._partitions.append(
                        PartitionPrediction(
                            topic.name, number, path, Outcome.EMPTIED, notes=(note,)
                        )
                    )


def _refusal(error: KafkaIndexError) -> Refusal:
    details = [
        f"{name} {value}"
        for name, value in (("expected", error.expected), ("found", error.found))
        if value is not None
    ]
    where = "" if error.position_bytes is None else f" at byte {error.position_bytes}"
    text = f"{error.message}{where}" + (f" ({', '.join(details)})" if details else "")
    return Refusal(error.path or "", error.line, text)
