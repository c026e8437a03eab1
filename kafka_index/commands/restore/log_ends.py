"""The ends of restored logs: the ``--until`` of a request, and the cutoff of a backup.

A backup is read as one data directory. Its logs end at the boundary that ``__transaction_state``
of the backup sets: at this boundary, each transaction is committed in all of its partitions or in
none. Executors do not import this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from kafka_index.commands.restore.cluster import SourceCluster
from kafka_index.commands.restore.request import ClusterMode, RestoreRequest, Until
from kafka_index.commands.restore.result import (
    NOT_IN_DUMP,
    RestoredPartition,
)
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.replicas import Dump, Replica, read_dumps
from kafka_index.core.cluster.transaction_boundary import (
    BackupLog,
    TransactionBoundary,
    find_transaction_boundary,
)
from kafka_index.core.errors import InputError, first_of, plural
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_PREFIX,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from kafka_index.core.format.records import (
    MAGIC_RECORD_BATCH,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
)
from kafka_index.core.format.times import time_text
from kafka_index.core.fs.backup.manifest import (
    Manifest,
    PartitionBackup,
    SkippedPartition,
    backup_id_ms,
    cutoff_time,
    is_consistent,
    missing_brokers,
)
from kafka_index.core.fs.backup.repository import Repository
from kafka_index.core.fs.backup.store import Backup
from kafka_index.core.fs.paths import open_repository
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.uris import backup_path, parse_backup_path
from kafka_index.core.log.choices import UpperBound
from kafka_index.core.log.read.partition_files import CheckpointReader
from kafka_index.core.query.bounds import time_span
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget

_NAMES_SHOWN = 5
# Longer than a leader election takes. A larger margin is harmless, unless a transactional ID
# expired within the margin.
_MAX_FAILOVER_MS = 60_000


def check_until(dump: Dump, request: RestoreRequest) -> None:
    """Check ``--until`` against the timestamps and partitions of the input."""
    if request.until.time_ms is not None and not request.create_time:
        _check_timestamp_types(dump)
    for topic, offsets in request.until.offsets.items():
        for number, offset in offsets.items():
            partition = TopicPartition(topic, number)
            if partition not in dump.replicas or offset < 0:
                is_unknown = partition not in dump.replicas
                raise InputError(
                    "a partition in --until is not in the input"
                    if is_unknown
                    else "an offset in --until is negative",
                    found=f"{partition.directory_name}: {offset}",
                )


def _check_timestamp_types(dump: Dump) -> None:
    """Reject topics with CreateTime, except internal topics, which brokers write."""
    topics = {
        replica.partition.topic
        for replica in dump.all_replicas
        if not replica.partition.topic.startswith(INTERNAL_PREFIX) and _has_create_time(replica)
    }
    if topics:
        raise InputError(
            "--until with a time requires topics with LogAppendTime: CreateTime timestamps are "
            "from producers",
            found=", ".join(sorted(topics)[:5]),
            hint="give --create-time to use the timestamps of producers, or --until with offsets",
        )


def check_until_reaches_records(until: Until, logs: Iterable[Replica]) -> None:
    """Reject a point in time that is before the first batch of every partition.

    Records of internal topics are considered only if the dump has no other topics.
    """
    if until.time_ms is None:
        return
    replicas = list(logs)
    user_replicas = [
        replica for replica in replicas if not replica.partition.topic.startswith(INTERNAL_PREFIX)
    ]
    headers = [(replica, _first_header(replica)) for replica in user_replicas or replicas]
    first_headers = [(replica, header) for replica, header in headers if header is not None]
    # Message format v0 and v1 have no timestamp in the batch header: assume that --until is not
    # before such a batch.
    are_reached = [
        int(header["magic"]) < MAGIC_RECORD_BATCH
        or int(header["max_timestamp_ms"]) <= until.time_ms
        for _, header in first_headers
    ]
    if not first_headers or any(are_reached):
        return
    reader = CheckpointReader(UpperBound.LOG_END)
    span = time_span(
        (
            reader.read(replica.partition, replica.segments.files(), None, replica.tiered)
            for replica, _ in first_headers
        ),
        ReadSettings(),
    )
    raise InputError(
        f"--until {time_text(until.time_ms)} is before the first batch of every partition: no "
        f"record would be restored; {span.text}",
        hint="give a later time",
    )


def _has_create_time(replica: Replica) -> bool:
    header = _first_header(replica)
    if header is None:
        return False
    is_new = header["magic"] >= MAGIC_RECORD_BATCH
    return not (is_new and int(header["attributes"]) & TIMESTAMP_TYPE_MASK)


def _first_header(replica: Replica) -> np.void | None:
    """Return the first batch header, parsed as magic 2; None if no log has a complete header."""
    for segment in replica.segments.files():
        if segment.log_size_bytes >= RECORD_BATCH_OVERHEAD_BYTES:
            data = store_of(segment.log_path).read(segment.log_path, RECORD_BATCH_OVERHEAD_BYTES)
            header: np.void = np.frombuffer(data, RECORD_BATCH_HEADER, 1)[0]
            return header
    return None


@dataclass(frozen=True, slots=True)
class BackupSource:
    """The backup that is restored."""

    backup: Backup
    path: str

    @classmethod
    def from_request(cls, request: RestoreRequest) -> BackupSource | None:
        """Return the backup of a request; None if the inputs are dumps.

        Raises `InputError` if a backup is combined with other inputs.
        """
        parsed_paths = [parse_backup_path(path) for path in request.inputs]
        backup_paths = [parsed_path for parsed_path in parsed_paths if parsed_path is not None]
        if not backup_paths:
            return None
        root, name, _ = backup_paths[0]
        if any(
            parsed_path is None or (parsed_path.root, parsed_path.backup_id) != (root, name)
            for parsed_path in parsed_paths
        ):
            raise InputError(
                "a backup cannot be restored together with another input, because the input "
                "reflects another point in time",
                found=", ".join(request.inputs),
            )
        backup, path = Backup(open_repository(root), name), backup_path(root, name)
        if not backup.copies:
            skip_reasons = [
                f"{partition.topic}-{partition.partition}: {partition.reason}"
                for manifest in backup.manifests
                for partition in manifest.skipped
            ]
            names = f"skipped {first_of(skip_reasons, _NAMES_SHOWN)}" if skip_reasons else None
            raise InputError("the backup contains no partition", path=path, found=names)
        return cls(backup, path)

    def prepare(self, request: RestoreRequest, dump: Dump, source: SourceCluster) -> RestoreRequest:
        """Return the request with the log ends that transactions require; add notes to `source`.

        Topics that were deleted during the backup are removed from the dump.
        """
        cutoff = time_text(cutoff_time(self.backup.manifests))
        source.backup = f"backup {self.backup.name}, whose cutoff is {cutoff}"
        source.notes += self._remove_deleted_topics(dump, source.image)
        budget = shared_budget(request.max_decompressed_bytes)
        boundary = self._find_boundary(request, dump, budget)
        if request.consistent:
            self._check_states_not_cleaned(boundary.ends)
        source.notes += self._completeness_notes()
        source.notes += [f"{TRANSACTION_STATE_TOPIC}: {fault}" for fault in boundary.faults]
        until = replace(
            request.until, transaction_ends=boundary.ends, is_consistent=request.consistent
        )
        has_groups = any(partition.topic == CONSUMER_OFFSETS_TOPIC for partition in dump.replicas)
        # Not by default in the same cluster: each broker would append commits to its own replica,
        # so the replicas would diverge.
        clamps = request.clamp_groups or (has_groups and request.cluster is ClusterMode.FRESH)
        return replace(request, until=until, clamp_groups=clamps)

    def missing_partitions(
        self, request: RestoreRequest, image: ClusterImage | None
    ) -> list[RestoredPartition]:
        """Return the partitions in the backup's cluster metadata whose logs are not in the backup.

        The backup skipped these partitions, or has no data of the broker that stored them.
        """
        skipped_partitions: dict[TopicPartition, SkippedPartition] = {}
        for manifest in self.backup.manifests:
            for skipped_partition in manifest.skipped:
                skipped_partitions[
                    TopicPartition(skipped_partition.topic, skipped_partition.partition)
                ] = skipped_partition
        reasons = {
            partition: (
                skipped_partition.topic_id or "",
                f"the backup skipped the partition: {skipped_partition.reason}",
            )
            for partition, skipped_partition in skipped_partitions.items()
        }
        missing_broker_ids = missing_brokers(self.backup.manifests)
        if missing_broker_ids and image is not None:
            brokers = ", ".join(map(str, missing_broker_ids))
            broker_reason = (
                f"the backup has no data of broker {brokers}, and no copy of the partition on "
                "other brokers"
            )
            for topic in image.topics.values():
                for number in topic.partitions:
                    partition = TopicPartition(topic.name, number)
                    reasons.setdefault(partition, (topic.topic_id, broker_reason))
        return [
            RestoredPartition(partition, "", topic_id, code=NOT_IN_DUMP, reason=reason)
            for partition, (topic_id, reason) in sorted(reasons.items())
            if partition not in self.backup.copies
            and (request.topics is None or request.topics.fullmatch(partition.topic))
            and _has_partition(image, partition)
        ]

    def _remove_deleted_topics(self, dump: Dump, image: ClusterImage | None) -> list[str]:
        """Remove topics that are not in the backup's cluster metadata; return notes.

        The backup captures the metadata log last, so such topics were deleted during the backup.
        """
        if image is None:
            return []
        deleted_partitions = [
            partition
            for partition in dump.replicas
            if partition in self.backup.copies
            and self._partition_backup(partition).topic_id not in image.topics
        ]
        for partition in deleted_partitions:
            del dump.replicas[partition]
        topics = sorted({partition.topic for partition in deleted_partitions})
        return [
            f"{topic} is not restored: the topic was deleted during the backup" for topic in topics
        ]

    def _find_boundary(
        self, request: RestoreRequest, dump: Dump, budget: DecompressionBudget
    ) -> TransactionBoundary:
        until = request.until
        complete_from_ms = self._complete_states_ms()
        settled_offsets = _settled_offsets(self.backup)
        is_until = request.consistent and until.is_requested
        if is_until:
            settled_offsets = {}
            if until.time_ms is not None:
                complete_from_ms = min(complete_from_ms, until.time_ms)
                settled_offsets = self._settled_offsets_before(until.time_ms)
        replicas = [replica_list[0] for replica_list in dump.replicas.values()]
        if all(replica.partition.topic != TRANSACTION_STATE_TOPIC for replica in replicas):
            replicas += self._read_transaction_state_topic()
        logs = []
        for replica in replicas:
            partition_backup = self._partition_backup(replica.partition)
            settled_offset = settled_offsets.get((replica.partition, partition_backup.topic_id), 0)
            is_state = replica.partition.topic == TRANSACTION_STATE_TOPIC
            if settled_offset >= partition_backup.end_offset and not is_state:
                continue
            log = BackupLog(
                replica.partition,
                replica.segments.files(),
                settled_offset,
                [(chunk.base_offset, chunk.size_bytes) for chunk in partition_backup.chunks],
            )
            if is_until:
                end_offset = until.end_offset_for(replica.partition)
                log = replace(
                    log,
                    end_offset=INT64_MAX if end_offset is None else end_offset,
                    end_ms=INT64_MAX if until.time_ms is None else until.time_ms,
                )
            logs.append(log)
        return find_transaction_boundary(logs, complete_from_ms, budget)

    def _complete_states_ms(self) -> int:
        """Return a time before which all transaction states are in ``__transaction_state``."""
        capture_start_ms = min(
            manifest_ms.capture.begun_ms for manifest_ms in self.backup.manifests
        )
        high_watermarks_ms = [
            manifest.capture.high_watermarks_ms
            for manifest in _incomplete_state_manifests(self.backup)
        ]
        return min(
            [
                capture_start_ms,
                *(manifest_ms - _MAX_FAILOVER_MS for manifest_ms in high_watermarks_ms),
            ]
        )

    def _settled_offsets_before(self, time_ms: int) -> _SettledOffsets:
        """Return `_settled_offsets` of the newest complete backup before a time."""
        repository = self.backup.repository
        name = repository.newest_complete(time_ms)
        return {} if name is None else _settled_offsets(Backup(repository, name))

    def _read_transaction_state_topic(self) -> list[Replica]:
        """Read ``__transaction_state`` of the backup if the request excludes the topic."""
        if all(partition.topic != TRANSACTION_STATE_TOPIC for partition in self.backup.copies):
            return []
        states = read_dumps([self.path], None, topics=re.compile(TRANSACTION_STATE_TOPIC))
        return [partition[0] for partition in states.replicas.values()]

    def _check_states_not_cleaned(self, ends: Mapping[TopicPartition, int]) -> None:
        """Reject a point in time whose transaction states the log cleaner may have removed."""
        for partition, end_offset in sorted(ends.items()):
            if partition.topic != TRANSACTION_STATE_TOPIC:
                continue
            cleaner_offset = self._partition_backup(partition).cleaner_offset
            if cleaner_offset is not None and cleaner_offset > end_offset:
                raise InputError(
                    f"{partition.directory_name} was compacted after the --until time: the "
                    "transactions that were open at this time are unknown",
                    path=self.path,
                    expected=f"compacted up to offset {end_offset} at most",
                    found=f"compacted up to offset {cleaner_offset}",
                    hint="give an earlier backup that was made after the --until time, or restore "
                    "the last backup before this time completely (without --until)",
                )

    def _completeness_notes(self) -> Iterator[str]:
        """Yield notes about missing brokers, and logs that end before the cutoff."""
        manifests = self.backup.manifests
        missing_broker_ids = missing_brokers(manifests)
        if missing_broker_ids:
            yield (
                f"backup {self.backup.name} is incomplete: it has no data of broker "
                f"{', '.join(map(str, missing_broker_ids))}, whose partitions are copied from "
                "other brokers or missing"
            )
        if not is_consistent(manifests):
            yield (
                f"the brokers of backup {self.backup.name} did not synchronize: transactions and "
                "committed offsets are not consistent"
            )
        early_partitions = [partition for partition, _ in _logs_before_cutoff(self.backup)]
        if early_partitions:
            names = first_of(
                [partition.directory_name for partition in early_partitions], _NAMES_SHOWN
            )
            yield (
                f"{plural(len(early_partitions), 'log')} of backup {self.backup.name} end before "
                f"the cutoff, because a broker was killed: {names}. The last acknowledged records "
                "may be missing, and transactions and committed offsets are not consistent"
            )

    def _partition_backup(self, partition: TopicPartition) -> PartitionBackup:
        return self.backup.copies[partition][1]


_SettledOffsets = dict[tuple[TopicPartition, str], int]


def _settled_offsets(backup: Backup) -> _SettledOffsets:
    """Return the `PartitionBackup.settled_offset` of each partition and topic ID in a backup.

    The result is empty if the brokers did not synchronize or ``__transaction_state`` is incomplete.
    """
    if not is_consistent(backup.manifests) or _incomplete_state_manifests(backup):
        return {}
    return {
        (partition, partition_backup.topic_id): partition_backup.settled_offset
        for partition, (_, partition_backup) in backup.copies.items()
    }


def _logs_before_cutoff(backup: Backup) -> Iterator[tuple[TopicPartition, Manifest]]:
    """Yield the partitions whose logs end before the cutoff, each with its broker's manifest.

    If a broker is killed, its checkpointed high watermark is older than the capture. The high
    watermarks of its followers may also be older, until a follower becomes the leader.
    """
    for partition, (manifest, partition_backup) in sorted(backup.copies.items(), key=itemgetter(0)):
        if not all(segment.is_done for segment in partition_backup.segments):
            yield partition, manifest


def _incomplete_state_manifests(backup: Backup) -> list[Manifest]:
    return [
        manifest
        for key, manifest in _logs_before_cutoff(backup)
        if key.topic == TRANSACTION_STATE_TOPIC
    ]


def _has_partition(image: ClusterImage | None, partition: TopicPartition) -> bool:
    """Return whether a cluster has a partition; True if the metadata of the cluster is unknown."""
    if image is None:
        return True
    topic = image.find_topic(partition.topic)
    return topic is not None and partition.partition in topic.partitions


def select_backup(request: RestoreRequest) -> RestoreRequest:
    """Select the first backup after the ``--until`` time, instead of the newest backup."""
    time_ms = request.until.time_ms
    if time_ms is None:
        return request
    return replace(
        request, inputs=tuple(_select_backup_path(path, time_ms) for path in request.inputs)
    )


def _select_backup_path(path: str, time_ms: int) -> str:
    parsed_path = parse_backup_path(path)
    if parsed_path is None:
        return path
    repository = open_repository(parsed_path.root)
    if parsed_path.backup_id != repository.newest_complete():
        return path
    backup_id = _first_backup_after(repository, time_ms) or parsed_path.backup_id
    subdirectory = f"/{parsed_path.below}" if parsed_path.below else ""
    return f"{backup_path(parsed_path.root, backup_id)}{subdirectory}"


def _first_backup_after(repository: Repository, time_ms: int) -> str | None:
    """Return the first complete backup whose capture began at or after a time on all brokers."""
    backups = repository.brokers_by_backup()

    def capture_start_ms(backup_id: str) -> int | None:
        manifests = repository.complete_manifests(backup_id, backups[backup_id])
        return min((manifest.capture.begun_ms for manifest in manifests), default=None)

    selected_id = None
    # The backup ID is the time at which a backup was opened; the capture may begin after `time_ms`.
    for backup_id_before in sorted(
        (backup_id for backup_id in backups if backup_id_ms(backup_id) < time_ms), reverse=True
    ):
        start_ms = capture_start_ms(backup_id_before)
        if start_ms is not None and start_ms < time_ms:
            break
        selected_id = backup_id_before if start_ms is not None else selected_id
    later_backup_ids = (
        backup_id for backup_id in sorted(backups) if backup_id_ms(backup_id) >= time_ms
    )
    return selected_id or next(
        (
            backup_id
            for backup_id in later_backup_ids
            if (capture_start_ms(backup_id) or -1) >= time_ms
        ),
        None,
    )
