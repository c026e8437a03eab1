"""Where the restored logs end: at the ``--until`` of a request, and at the cutoff of a backup.

Below its path a backup is one data directory. Its logs end at the boundary that its
``__transaction_state`` sets: there no transaction is committed in only some of its partitions.
Executors import none of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    pass

_NAMES_SHOWN = 5
# Longer than an election. An earlier time is harmless unless a transactional ID has expired since.
_BEHIND_MS = 60_000


def check_until(dump: Dump, request: RestoreRequest) -> None:
    """Check that timestamps and partitions of the input fit ``--until``."""
    if request.until.time_ms is not None and not request.create_time:
        _check_times(dump)
    for topic, offsets in request.until.offsets.items():
        for number, offset in offsets.items():
            partition = TopicPartition(topic, number)
            if partition not in dump.replicas or offset < 0:
                raise InputError(
                    "--until has a partition that is not in the input, or an invalid offset",
                    found=f"{partition.directory_name}: {offset}",
                )


def _check_times(dump: Dump) -> None:
    """Reject topics with CreateTime. Internal topics are written by brokers."""
    topics = {
        replica.partition.topic
        for replica in dump.all_replicas
        if not replica.partition.topic.startswith(INTERNAL_PREFIX) and _has_create_time(replica)
    }
    if topics:
        raise InputError(
            "a topic has the timestamps of its producers (CreateTime), which may differ from the "
            "time of the append",
            found=", ".join(sorted(topics)[:5]),
            hint="give --create-time to use them anyway, or --until with offsets",
        )


def check_reached(until: Until, logs: Iterable[Replica]) -> None:
    """Reject a point in time before all records.

    Records of internal topics are considered only if there are no other topics.
    """
    if until.time_ms is None:
        return
    given = list(logs)
    users = [each for each in given if not each.partition.topic.startswith(INTERNAL_PREFIX)]
    headers = [(each, _first_header(each)) for each in users or given]
    first = [(each, header) for each, header in headers if header is not None]
    # Batches of older formats have no timestamp in their header, and count as reached.
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


@dataclass(frozen=True, slots=True)
class BackupSource:
    """The backup that is restored."""

    backup: Backup
    path: str

    @classmethod
    def of(cls, request: RestoreRequest) -> BackupSource | None:
        """Return the backup of a request; None for dumps.

        Raises `InputError` if other inputs are given: they reflect a different point in time.
        """
        parsed = [parse_backup_path(path) for path in request.inputs]
        found = [each for each in parsed if each is not None]
        if not found:
            return None
        root, name, _ = found[0]
        if any(each is None or (each.root, each.backup_id) != (root, name) for each in parsed):
            raise InputError(
                "a backup cannot be restored with other inputs, which reflect other points in time",
                found=", ".join(request.inputs),
            )
        backup, path = Backup(open_repository(root), name), backup_path(root, name)
        if not backup.copies:
            skipped = [
                f"{TopicPartition(each.topic, each.partition).directory_name}: {each.reason}"
                for manifest in backup.manifests
                for each in manifest.skipped
            ]
            names = f"it skipped {first_of(skipped, _NAMES_SHOWN)}" if skipped else None
            raise InputError("the backup has no partition", path=path, found=names)
        return cls(backup, path)

    def prepare(self, request: RestoreRequest, dump: Dump, source: SourceCluster) -> RestoreRequest:
        """Return the request with the ends of the backup's logs; add notes to the source cluster.

        Topics that were deleted during the backup are removed from the dump.
        """
        cutoff = time_text(cutoff_time(self.backup.manifests))
        source.backup = f"backup {self.backup.name}, whose cutoff is {cutoff}"
        source.notes += self._without_deleted(dump, source.image)
        budget = shared_budget(request.max_decompressed_bytes)
        clamp = self._clamp(request, dump, budget)
        if request.consistent:
            self._refuse_cleaned(clamp.ends)
        source.notes += self._lacking()
        source.notes += [f"{TRANSACTION_STATE_TOPIC}: {one}" for one in clamp.faults]
        until = replace(request.until, clamps=clamp.ends, is_consistent=request.consistent)
        has_groups = any(each.topic == CONSUMER_OFFSETS_TOPIC for each in dump.replicas)
        # Each broker of the same cluster would append to its own copy.
        clamps = request.clamp_groups or (has_groups and request.cluster is ClusterMode.FRESH)
        return replace(request, until=until, clamp_groups=clamps)

    def missing(
        self, request: RestoreRequest, image: ClusterImage | None
    ) -> list[RestoredPartition]:
        """Return the partitions that the backup lacks, unless its metadata lacks them too.

        The backup skipped them, or has no part of the broker that stored them.
        """
        skipped: dict[TopicPartition, SkippedPartition] = {}
        for manifest in self.backup.manifests:
            for each in manifest.skipped:
                skipped[TopicPartition(each.topic, each.partition)] = each
        reasons = {
            partition: (each.topic_id or "", f"the backup skipped it: {each.reason}")
            for partition, each in skipped.items()
        }
        lacking = missing_brokers(self.backup.manifests)
        if lacking and image is not None:
            brokers = ", ".join(map(str, lacking))
            why = f"the backup lacks broker {brokers}, and other brokers have no copy"
            for topic in image.topics.values():
                for number in topic.partitions:
                    partition = TopicPartition(topic.name, number)
                    reasons.setdefault(partition, (topic.topic_id, why))
        return [
            RestoredPartition(partition, "", topic_id, code=NOT_IN_DUMP, reason=reason)
            for partition, (topic_id, reason) in sorted(reasons.items())
            if partition not in self.backup.copies
            and (request.topics is None or request.topics.fullmatch(partition.topic))
            and _has(image, partition)
        ]

    def _without_deleted(self, dump: Dump, image: ClusterImage | None) -> list[str]:
        """Remove the topics from the dump that the metadata of the backup lacks; return notes.

        The metadata log was captured last.
        """
        if image is None:
            return []
        gone = [
            partition
            for partition in dump.replicas
            if partition in self.backup.copies
            and self._copy(partition).topic_id not in image.topics
        ]
        for partition in gone:
            del dump.replicas[partition]
        topics = sorted({each.topic for each in gone})
        return [f"{each} was deleted during the backup: it is not restored" for each in topics]

    def _clamp(
        self, request: RestoreRequest, dump: Dump, budget: DecompressionBudget
    ) -> TransactionBoundary:
        until = request.until
        begun_ms = self._states_ms()
        settled = _settled(self.backup)
        is_until = request.consistent and until.is_given
        if is_until:
            settled = {}
            if until.time_ms is not None:
                begun_ms = min(begun_ms, until.time_ms)
                settled = self._settled_before(until.time_ms)
        replicas = [each[0] for each in dump.replicas.values()]
        if all(each.partition.topic != TRANSACTION_STATE_TOPIC for each in replicas):
            replicas += self._states()
        logs = []
        for replica in replicas:
            copy = self._copy(replica.partition)
            settled_offset = settled.get((replica.partition, copy.topic_id), 0)
            is_state = replica.partition.topic == TRANSACTION_STATE_TOPIC
            if settled_offset >= copy.end_offset and not is_state:
                continue
            log = BackupLog(
                replica.partition,
                replica.segments.files(),
                settled_offset,
                [(chunk.base_offset, chunk.size_bytes) for chunk in copy.chunks],
            )
            if is_until:
                end = until.offset_of(replica.partition)
                log = replace(
                    log,
                    end_offset=INT64_MAX if end is None else end,
                    end_ms=INT64_MAX if until.time_ms is None else until.time_ms,
                )
            logs.append(log)
        return find_transaction_boundary(logs, begun_ms, budget)

    def _states_ms(self) -> int:
        """Return a time before which ``__transaction_state`` has all transactions."""
        begun_ms = min(each.capture.begun_ms for each in self.backup.manifests)
        late = [manifest.capture.high_watermarks_ms for manifest in _states_behind(self.backup)]
        return min([begun_ms, *(each - _BEHIND_MS for each in late)])

    def _settled_before(self, time_ms: int) -> _Settled:
        """Return the settled offsets of the newest complete backup before a time."""
        repository = self.backup.repository
        name = repository.newest_complete(time_ms)
        return {} if name is None else _settled(Backup(repository, name))

    def _states(self) -> list[Replica]:
        """Read ``__transaction_state``, which the request excludes."""
        if all(each.topic != TRANSACTION_STATE_TOPIC for each in self.backup.copies):
            return []
        states = read_dumps([self.path], None, topics=re.compile(TRANSACTION_STATE_TOPIC))
        return [each[0] for each in states.replicas.values()]

    def _refuse_cleaned(self, ends: Mapping[TopicPartition, int]) -> None:
        """Reject a point in time if the log cleaner has removed its transaction states."""
        for partition, end in sorted(ends.items()):
            if partition.topic != TRANSACTION_STATE_TOPIC:
                continue
            cleaned = self._copy(partition).cleaner_offset
            if cleaned is not None and cleaned > end:
                raise InputError(
                    f"{partition.directory_name} was cleaned after the point in time: the "
                    "transactions that were open then are unknown",
                    path=self.path,
                    expected=f"cleaned up to offset {end} at most",
                    found=f"cleaned up to offset {cleaned}",
                    hint="give an earlier backup after the point in time, or restore the backup "
                    "before it completely: backup:URI@TIME without --until",
                )

    def _lacking(self) -> Iterator[str]:
        """Yield notes about missing brokers, and logs that end before the cutoff."""
        manifests = self.backup.manifests
        lacking = missing_brokers(manifests)
        if lacking:
            yield (
                f"backup {self.backup.name} is incomplete: it lacks broker "
                f"{', '.join(map(str, lacking))}; its partitions are copies of other brokers, or "
                "missing"
            )
        if not is_consistent(manifests):
            yield (
                f"the brokers of backup {self.backup.name} did not synchronize: its transactions "
                "and groups are not consistent"
            )
        behind = [partition for partition, _ in _behind(self.backup)]
        if behind:
            names = first_of([each.directory_name for each in behind], _NAMES_SHOWN)
            yield (
                f"{plural(len(behind), 'log')} of backup {self.backup.name} end before its cutoff, "
                f"because a broker was killed shortly before: {names}; the records acknowledged "
                "last may be missing, and transactions and groups are not consistent"
            )

    def _copy(self, partition: TopicPartition) -> PartitionBackup:
        return self.backup.copies[partition][1]


_Settled = dict[tuple[TopicPartition, str], int]


def _settled(backup: Backup) -> _Settled:
    """Return the settled offsets of a backup, which precede its capture; keyed by partition and ID.

    There are none if the brokers did not synchronize, or ``__transaction_state`` is incomplete.
    """
    if not is_consistent(backup.manifests) or _states_behind(backup):
        return {}
    return {
        (partition, copy.topic_id): copy.settled_offset
        for partition, (_, copy) in backup.copies.items()
    }


def _behind(backup: Backup) -> Iterator[tuple[TopicPartition, Manifest]]:
    """Yield the logs that end before the cutoff, with their manifests.

    The high watermark of a killed broker is older than the capture. The high watermark of its
    followers may be older, until one of them becomes the leader.
    """
    for partition, (manifest, copy) in sorted(backup.copies.items(), key=lambda each: each[0]):
        if not all(segment.is_done for segment in copy.segments):
            yield partition, manifest


def _states_behind(backup: Backup) -> list[Manifest]:
    return [found for key, found in _behind(backup) if key.topic == TRANSACTION_STATE_TOPIC]


def _has(image: ClusterImage | None, partition: TopicPartition) -> bool:
    """Return whether a cluster has a partition; True if it is unknown."""
    if image is None:
        return True
    topic = image.topic_named(partition.topic)
    return topic is not None and partition.partition in topic.partitions


def following_backup(request: RestoreRequest) -> RestoreRequest:
    """Return a request for the first backup after the point in time, instead of the newest."""
    time_ms = request.until.time_ms
    if time_ms is None:
        return request
    return replace(request, inputs=tuple(_following(path, time_ms) for path in request.inputs))


def _following(path: str, time_ms: int) -> str:
    parsed = parse_backup_path(path)
    if parsed is None:
        return path
    repository = open_repository(parsed.root)
    if parsed.backup_id != repository.newest_complete():
        return path
    below = f"/{parsed.below}" if parsed.below else ""
    return (
        f"{backup_path(parsed.root, _first_after(repository, time_ms) or parsed.backup_id)}{below}"
    )


def _first_after(repository: Repository, time_ms: int) -> str | None:
    """Return the first complete backup that no broker began to capture before a time."""
    backups = repository.brokers_by_backup()

    def begun_ms(name: str) -> int | None:
        manifests = repository.complete_manifests(name, backups[name])
        return min((each.capture.begun_ms for each in manifests), default=None)

    first = None
    # A backup that was opened before the time may have been captured after it.
    for name in sorted((each for each in backups if backup_id_ms(each) < time_ms), reverse=True):
        begun = begun_ms(name)
        if begun is not None and begun < time_ms:
            break
        first = name if begun is not None else first
    later = (each for each in sorted(backups) if backup_id_ms(each) >= time_ms)
    return first or next((each for each in later if (begun_ms(each) or -1) >= time_ms), None)
