"""Where the restored logs end: at a point in time or offsets, and at the cutoff of a backup.

Below its path a backup is one data directory. Its logs end where its ``__transaction_state`` does,
or with ``--consistent`` where that of a point in time does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kafka_index.commands.restore.cluster import SourceCluster
from kafka_index.commands.restore.request import ClusterMode, RestoreRequest, Until
from kafka_index.commands.restore.restored_partition import RestoredPartition
from kafka_index.commands.restore.seed import NOT_IN_DUMP
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.topic_states import Transaction
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


def check_times(dump: Dump) -> None:
    """Refuse topics whose timestamps are those of clients.

    Internal topics are written by brokers.
    """
    topics = {
        replica.partition.topic
        for replica in dump.all_replicas
        if not replica.partition.topic.startswith(INTERNAL_PREFIX) and _has_create_time(replica)
    }
    if topics:
        raise InputError(
            "the timestamps of a topic are those of its clients (CreateTime): they say little "
            "about when records were appended",
            found=", ".join(sorted(topics)[:5]),
            hint="give --create-time to go by them all the same, or --until with offsets",
        )


def check_offsets(dump: Dump, until: Until) -> None:
    """Refuse offsets of partitions that are not in the dump."""
    for topic, offsets in until.offsets.items():
        for number, offset in offsets.items():
            partition = TopicPartition(topic, number)
            if partition not in dump.replicas or offset < 0:
                raise InputError(
                    "--until names a partition that is not in the input, or no offset",
                    found=f"{partition.directory_name}: {offset}",
                )


def open_transactions(
    cut: Mapping[TopicPartition, Iterable[int]],
    unended: Mapping[TopicPartition, Iterable[int]],
    transactions: Iterable[Transaction],
) -> list[str]:
    """Return notes of the transactions that are open in partitions.

    The arguments have producer ids of partitions that were cut, and of partitions in which perhaps
    no coordinator ends their transactions.
    """
    names = {one.producer_id: one.transactional_id for one in transactions}
    unknown = (
        "its outcome is unknown, and possibly no coordinator ends it: read_committed consumers get "
        "no records from its first offset on, until kafka-transactions.sh abort aborts it"
    )
    texts = []
    for open_producers, consequence in (
        (cut, "it may be committed in other partitions"),
        (unended, unknown),
    ):
        places: dict[int, list[str]] = {}
        for partition, producers in sorted(open_producers.items()):
            for producer_id in producers:
                places.setdefault(producer_id, []).append(partition.directory_name)
        texts += [
            f"transaction {names.get(producer_id, f'of producer {producer_id}')} is open at the "
            f"end of {', '.join(found)}; {consequence}"
            for producer_id, found in sorted(places.items())
        ]
    return texts


def cleaned_after(partitions: Mapping[TopicPartition, tuple[int, int]]) -> list[str]:
    """Return notes of the partitions whose cleaner had passed their new end.

    By partition: the offset up to which the log was cleaned, and the end of it now.
    """
    return [
        f"{partition.directory_name} ends at offset {end}, and was cleaned up to offset {cleaned}: "
        "of keys that were written again in between, the records before its end are gone"
        for partition, (cleaned, end) in sorted(partitions.items())
        if cleaned > end
    ]


def check_reached(until: Until, logs: Iterable[Replica]) -> None:
    """Refuse a point in time that is before all records: nothing would be restored.

    Internal topics do not count, where there are others.
    """
    if until.time_ms is None:
        return
    given = list(logs)
    users = [each for each in given if not each.partition.topic.startswith(INTERNAL_PREFIX)]
    headers = [(each, _first_header(each)) for each in users or given]
    first = [(each, header) for each, header in headers if header is not None]
    # The headers of older formats do not say, and are not before any time.
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
    """Return whether the first batch of a partition has the time of a client."""
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


# More than an election takes. What is counted as newer than it is costs nothing, unless a
# transactional id has expired since.
_BEHIND_MS = 60_000
_MAX_NAMES = 5


@dataclass(frozen=True, slots=True)
class BackupSource:
    """The backup that is restored."""

    backup: Backup
    path: str

    @classmethod
    def of(cls, request: RestoreRequest) -> BackupSource | None:
        """Return the backup that a request names; None for dumps.

        Raises `InputError` if other inputs are given: they reflect a different point in time.
        """
        parsed = [parse_backup_path(path) for path in request.inputs]
        found = [each for each in parsed if each is not None]
        if not found:
            return None
        root, name, _ = found[0]
        if any(each is None or (each.root, each.backup_id) != (root, name) for each in parsed):
            raise InputError(
                "a backup is restored alone: another input reflects another point in time",
                found=", ".join(request.inputs),
            )
        backup, path = Backup(open_repository(root), name), backup_path(root, name)
        if not backup.copies:
            skipped = [
                f"{TopicPartition(each.topic, each.partition).directory_name}: {each.reason}"
                for manifest in backup.manifests
                for each in manifest.skipped
            ]
            names = f"it skipped {first_of(skipped, _MAX_NAMES)}" if skipped else None
            raise InputError("the backup has no partition", path=path, found=names)
        return cls(backup, path)

    def prepare(self, request: RestoreRequest, dump: Dump, old: SourceCluster) -> RestoreRequest:
        """Return the request with the ends of the backup's logs; add notes to the source cluster.

        Topics that were deleted meanwhile are taken out of the dump.
        """
        cutoff = time_text(cutoff_time(self.backup.manifests))
        old.run = f"backup {self.backup.name}, whose cutoff is {cutoff}"
        old.notes += self._without_deleted(dump, old.image)
        budget = shared_budget(request.max_decompressed_bytes)
        clamp = self._clamp(request, dump, budget)
        if request.consistent:
            self._refuse_cleaned(clamp.ends)
        old.notes += self._lacking()
        old.notes += [f"{TRANSACTION_STATE_TOPIC}: {one}" for one in clamp.faults]
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
            why = f"the backup has no part of broker {brokers}, and no copy of it"
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
        """Return a time at which ``__transaction_state`` knew all transactions before it."""
        begun_ms = min(each.capture.begun_ms for each in self.backup.manifests)
        late = [manifest.capture.high_watermarks_ms for manifest in _states_behind(self.backup)]
        return min([begun_ms, *(each - _BEHIND_MS for each in late)])

    def _settled_before(self, time_ms: int) -> _Settled:
        """Return what the newest complete backup before a time had settled before its capture."""
        repository = self.backup.repository
        name = repository.newest_complete(time_ms)
        return {} if name is None else _settled(Backup(repository, name))

    def _states(self) -> list[Replica]:
        """Return ``__transaction_state``, which the request leaves out."""
        if all(each.topic != TRANSACTION_STATE_TOPIC for each in self.backup.copies):
            return []
        states = read_dumps([self.path], None, topics=re.compile(TRANSACTION_STATE_TOPIC))
        return [each[0] for each in states.replicas.values()]

    def _refuse_cleaned(self, ends: Mapping[TopicPartition, int]) -> None:
        """Refuse a point in time whose open transactions are not known any more."""
        for partition, end in sorted(ends.items()):
            if partition.topic != TRANSACTION_STATE_TOPIC:
                continue
            cleaned = self._copy(partition).cleaner_offset
            if cleaned is not None and cleaned > end:
                raise InputError(
                    f"{partition.directory_name} was cleaned after the point in time, so that it "
                    "does not say which transactions were open then",
                    path=self.path,
                    expected=f"cleaned up to offset {end} at most",
                    found=f"cleaned up to offset {cleaned}",
                    hint="give a backup with an earlier cutoff after it, or restore the whole "
                    "backup before it: backup:URI@TIME without --until",
                )

    def _lacking(self) -> Iterator[str]:
        """Yield what the backup as a whole lacks."""
        manifests = self.backup.manifests
        lacking = missing_brokers(manifests)
        if lacking:
            yield (
                f"backup {self.backup.name} is incomplete: it has no part of broker "
                f"{', '.join(map(str, lacking))}; their partitions are copies of others, or missing"
            )
        if not is_consistent(manifests):
            yield (
                f"the brokers of backup {self.backup.name} did not wait for each other: "
                "transactions and groups are not consistent in it"
            )
        behind = [partition for partition, _ in _behind(self.backup)]
        if behind:
            names = first_of([each.directory_name for each in behind], _MAX_NAMES)
            yield (
                f"{plural(len(behind), 'log')} of backup {self.backup.name} end before its cutoff, "
                f"as a broker was killed shortly before: {names}; the records acknowledged last "
                "may be missing, and transactions and groups are not consistent"
            )

    def _copy(self, partition: TopicPartition) -> PartitionBackup:
        return self.backup.copies[partition][1]


_Settled = dict[tuple[TopicPartition, str], int]


def _settled(backup: Backup) -> _Settled:
    """Return what was settled before a backup captured anything, by partition and topic id.

    Nothing is, where brokers did not wait for each other, or what ``__transaction_state`` had then
    is not all there.
    """
    if not is_consistent(backup.manifests) or _states_behind(backup):
        return {}
    return {
        (partition, copy.topic_id): copy.settled_offset
        for partition, (_, copy) in backup.copies.items()
    }


def _behind(backup: Backup) -> Iterator[tuple[TopicPartition, Manifest]]:
    """Yield the logs that end before the cutoff, with their manifests.

    The high watermark of a killed broker is older than the capture. That of its followers may be,
    until one of them leads.
    """
    for partition, (manifest, copy) in sorted(backup.copies.items(), key=lambda each: each[0]):
        if not all(segment.is_done for segment in copy.segments):
            yield partition, manifest


def _states_behind(backup: Backup) -> list[Manifest]:
    return [found for key, found in _behind(backup) if key.topic == TRANSACTION_STATE_TOPIC]


def following_backup(request: RestoreRequest) -> RestoreRequest:
    """Return a request for the first backup after its point in time, instead of the newest."""
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
    """Return the first complete backup whose capture no broker had begun before a time."""
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


def _has(image: ClusterImage | None, partition: TopicPartition) -> bool:
    """Return whether a cluster has a partition, as far as that is known."""
    if image is None:
        return True
    topic = image.topic_named(partition.topic)
    return topic is not None and partition.partition in topic.partitions
