"""``backups list``, ``backups verify`` and ``backups expire``.

`kafka_index.core.fs.backup.repository` defines the rules for expirations that run concurrently with
backups and readers.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, groupby, repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kafka_index.commands.backup.barrier import expired_barriers
from kafka_index.commands.backup.request import (
    ExpireBackupsRequest,
    ListBackupsRequest,
    VerifyBackupsRequest,
)
from kafka_index.commands.backup.result import (
    EXPIRE_REPORT,
    LIST_REPORT,
    VERIFY_REPORT,
    BackupRepository,
    ExpireBackupsResult,
    VerifyBackupsResult,
)
from kafka_index.core.errors import CorruptObjectError, KafkaIndexError, is_retriable, plural
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup import repository as rules
from kafka_index.core.fs.backup.manifest import (
    ANNOUNCED_FOLDER,
    BACKUPS_FOLDER,
    BARRIERS_FOLDER,
    DATA_FOLDER,
    EXPIRED_FOLDER,
    HEADS_FOLDER,
    KeptFile,
    LogChunk,
    Manifest,
    PartitionBackup,
    backup_id_ms,
    content_of,
    cutoff_time,
    hash_of,
    is_consistent,
    manifest_node,
    manifest_path,
    missing_brokers,
)
from kafka_index.core.fs.backup.repository import MissingManifestError, Repository, StoredManifest
from kafka_index.core.fs.paths import absolute_path, open_repository
from kafka_index.core.fs.store import Bytes
from kafka_index.core.job.engine import Engine, Listener, map_requests
from kafka_index.core.job.result import ReportSink, RunOutcome
from kafka_index.core.log.scan.file_records import LogBatches

#: Number of manifests or objects that are read concurrently.
READS_AT_A_TIME = 8
_DELETE_BATCH = 500
_ANNOUNCEMENT_BATCH = 20_000
_FOLDERS_OF_SMALL_FILES = (
    *(HEADS_FOLDER, BACKUPS_FOLDER, EXPIRED_FOLDER),
    *(ANNOUNCED_FOLDER, BARRIERS_FOLDER),
)


class BackupManifests(NamedTuple):
    """A backup with its manifests, their hashes, and the errors of unreadable manifests."""

    backup_id: str
    manifests: tuple[Manifest, ...]
    errors: tuple[KafkaIndexError, ...] = ()
    hashes: tuple[str, ...] = ()

    @property
    def missing_brokers(self) -> list[int]:
        """The expected brokers without a manifest in the backup."""
        return missing_brokers(self.manifests)

    @property
    def is_complete(self) -> bool:
        """Whether all expected brokers have readable manifests."""
        return bool(self.manifests) and not self.errors and not self.missing_brokers


def read_backups(
    repository: Repository, backups: Mapping[str, Iterable[int]]
) -> Iterator[BackupManifests]:
    """Yield the manifests of backups; `backups` maps backup IDs to brokers.

    Backups that expire concurrently are omitted. The bytes of manifests are read ahead, but the
    manifests of only one backup at a time are decoded.
    """

    def read_manifest(key: tuple[str, int]) -> StoredManifest | KafkaIndexError | None:
        try:
            return repository.stored_manifest(*key)
        except MissingManifestError:
            return repository.lost_manifest(*key)
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            return error

    keys = [(backup_id, node_id) for backup_id, brokers in backups.items() for node_id in brokers]
    read_results = map_requests(read_manifest, keys, threads=READS_AT_A_TIME, name="manifests")
    keyed_results = zip(keys, read_results, strict=True)
    for backup_id, backup_results in groupby(keyed_results, key=lambda result: result[0][0]):
        manifests: list[Manifest] = []
        errors: list[KafkaIndexError] = []
        hashes: list[str] = []
        for _, read_result in backup_results:
            if isinstance(read_result, KafkaIndexError):
                errors.append(read_result)
            elif read_result is not None:
                try:
                    manifests.append(read_result.parse())
                    hashes.append(hash_of(read_result.data))
                except KafkaIndexError as error:
                    errors.append(error)
        if manifests or errors:
            yield BackupManifests(backup_id, tuple(manifests), tuple(errors), tuple(hashes))


def list_backups(
    request: ListBackupsRequest,
    _engine: Engine | None = None,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> BackupRepository:
    """List the backups in a repository; raises `InputError` if the URI is not a repository."""
    root = absolute_path(request.uri)
    repository = open_repository(root)
    repository.file()
    brokers = {
        backup_id: node_ids
        for backup_id, node_ids in repository.brokers_with_heads().items()
        if node_ids
    }
    listed_backups = dict(
        list(brokers.items())[-request.last :] if request.last else brokers.items()
    )
    time_ms = now_ms()
    rows: list[dict[str, object]] = []
    complete_ms: int | None = None
    is_damaged = False
    for backup in read_backups(repository, listed_backups):
        row = _backup_row(backup, time_ms)
        is_damaged |= bool(backup.errors)
        if backup.is_complete:
            cutoff_ms = cutoff_time(backup.manifests)
            row["gap_ms"] = None if complete_ms is None else cutoff_ms - complete_ms
            complete_ms = cutoff_ms
        rows.append(row)
    return BackupRepository(
        pa.Table.from_pylist(rows, schema=LIST_REPORT.schema),
        RunOutcome.DAMAGE if is_damaged else RunOutcome.DONE,
        root=root,
        now_ms=time_ms,
        earlier=len(brokers) - len(listed_backups),
    )


def _backup_row(backup: BackupManifests, time_ms: int) -> dict[str, object]:
    manifests = backup.manifests
    partitions = {
        partition.topic_partition for manifest in manifests for partition in manifest.partitions
    }
    skipped_partitions = {
        TopicPartition(entry.topic, entry.partition)
        for manifest in manifests
        for entry in manifest.skipped
    }
    skipped_partitions -= partitions
    status, reason = "complete", None
    if backup.errors:
        status, reason = "damaged", str(backup.errors[0])
    elif backup.missing_brokers:
        status = "incomplete"
        reason = f"brokers without a manifest: {', '.join(map(str, backup.missing_brokers))}"
    elif not is_consistent(manifests):
        status = "inconsistent"
        reason = (
            "brokers did not synchronize: transactions and consumer groups may differ between "
            "brokers"
        )
    elif skipped_partitions:
        example = min(skipped_partitions).directory_name
        reason = (
            f"the backup skipped {plural(len(skipped_partitions), 'partition')}, such as {example}"
        )
    cutoff_ms = cutoff_time(manifests) if manifests else None
    opened_ms = backup_id_ms(backup.backup_id)
    return {
        "backup_id": backup.backup_id,
        "opened": opened_ms,
        "cutoff": cutoff_ms,
        "status": status,
        "brokers": sorted(manifest.node_id for manifest in manifests),
        "missing_brokers": backup.missing_brokers,
        "partitions": len(partitions),
        "skipped_partitions": len(skipped_partitions),
        "new_bytes": sum(manifest.new_bytes for manifest in manifests),
        "bytes": _sum_object_bytes(manifests),
        "age_ms": max(time_ms - (opened_ms if cutoff_ms is None else cutoff_ms), 0),
        "reason": reason,
    }


def _sum_object_bytes(manifests: Iterable[Manifest]) -> int:
    """Return the total size of the distinct objects in manifests."""
    copies: dict[str, list[tuple[LogChunk | KeptFile, ...]]] = {}
    for manifest in manifests:
        for partition in manifest.partitions:
            copies.setdefault(partition.folder, []).append(partition.objects)
    return sum(
        stored_object.size_bytes
        for object_lists in copies.values()
        for stored_object in (
            object_lists[0] if len(object_lists) == 1 else {*chain(*object_lists)}
        )
    )


def verify_backups(
    request: VerifyBackupsRequest,
    _engine: Engine | None = None,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> VerifyBackupsResult:
    """Check the objects in the manifests of a backup, or of all backups.

    Names and sizes of all objects are compared with a listing. `sample` percent of the objects are
    read, to verify their hashes, and the checksums and offsets of their batches. Raises
    `InputError` if the repository or backup does not exist.
    """
    root = absolute_path(request.uri)
    repository = open_repository(root)
    repository.file()
    brokers = repository.brokers_with_heads()
    if request.backup is not None:
        name = repository.find_backup(request.backup)
        brokers = {name: brokers.get(name, ())}
    rows: list[dict[str, object]] = []
    partitions: dict[str, TopicPartition] = {}
    # Number of backups that contain an object, keyed by its folder and its manifest entry.
    backup_counts: Counter[tuple[str, LogChunk | KeptFile]] = Counter()
    for backup in read_backups(repository, brokers):
        objects: set[tuple[str, LogChunk | KeptFile]] = set()
        for partition in chain.from_iterable(manifest.partitions for manifest in backup.manifests):
            partitions[partition.folder] = partition.topic_partition
            objects.update(zip(repeat(partition.folder), partition.objects))
        backup_counts.update(objects)
        rows += _manifest_fault_rows(repository, backup)
    paths = {
        (folder, entry): f"{root}/{folder}/{entry.object_name}" for folder, entry in backup_counts
    }
    expected_paths = {*paths.values()}
    sizes = {
        path: size
        for relative_path, size, _ in repository.list_objects(DATA_FOLDER)
        if (path := f"{root}/{DATA_FOLDER}/{relative_path}") in expected_paths
    }
    sample = {
        path
        for path in expected_paths
        if random.random() * 100 < request.sample  # noqa: S311, no secret
    }

    def check_object(key: tuple[str, LogChunk | KeptFile]) -> dict[str, object]:
        (folder, entry), path = key, paths[key]
        size = sizes.get(path)
        row: dict[str, object] = {
            "topic": partitions[folder].topic,
            "partition": partitions[folder].partition,
            "segment_base_offset": entry.base_offset if isinstance(entry, LogChunk) else None,
            "path": path,
            "status": "listed",
            "backups": backup_counts[key],
            "size_bytes": entry.size_bytes,
            "is_read": False,
        }
        if size is None:
            return {
                **row,
                **_fault_columns(
                    "missing", "the object does not exist", f"{entry.size_bytes} bytes"
                ),
            }
        if size != entry.size_bytes:
            expected = f"{entry.size_bytes} bytes"
            return {
                **row,
                **_fault_columns(
                    "altered", "the size differs from the manifest", expected, f"{size} bytes"
                ),
            }
        if path not in sample:
            return row
        return {**row, "is_read": True, **_check_content(repository, path, entry)}

    sorted_keys = sorted(paths, key=paths.__getitem__)
    object_rows = [
        *map_requests(check_object, sorted_keys, threads=READS_AT_A_TIME, name="objects")
    ]
    for (folder, entry), row in zip(sorted_keys, object_rows, strict=True):
        if request.repair and row["status"] in ("missing", "altered", "damaged"):
            repository.mark_damaged(folder, entry.object_name)
    rows += object_rows
    statuses = {str(row["status"]) for row in rows}
    outcome = RunOutcome.DONE
    if "unreadable" in statuses:
        outcome = RunOutcome.ENVIRONMENT
    elif not statuses <= {"intact", "listed"}:
        outcome = RunOutcome.DAMAGE
    table = pa.Table.from_pylist(rows, schema=VERIFY_REPORT.schema)
    return VerifyBackupsResult(table, outcome, root=root, is_repaired=request.repair)


def _manifest_fault_rows(
    repository: Repository, backup: BackupManifests
) -> Iterator[dict[str, object]]:
    """Yield a row for each manifest that cannot be read or does not match its head."""
    for error in backup.errors:
        row = {"path": error.path or "", "status": "damaged", "reason": error.message}
        yield {**row, "expected": error.expected, "found": error.found}
    for manifest, sha256 in zip(backup.manifests, backup.hashes, strict=True):
        try:
            expected = repository.hash_in_head(backup.backup_id, manifest.node_id)
        except CorruptObjectError as error:
            yield {"path": error.path, **_fault_columns("damaged", error.message)}
            continue
        if expected not in (None, sha256):
            path = manifest_path(repository.root, backup.backup_id, manifest.node_id)
            reason = "the SHA-256 of the manifest differs from the head file"
            yield {"path": path, **_fault_columns("altered", reason, expected, sha256)}


def _check_content(
    repository: Repository, path: str, entry: LogChunk | KeptFile
) -> dict[str, object]:
    """Read an object; return the report columns that compare it with its manifest entry."""
    try:
        data = repository.store.read(path)
    except FileNotFoundError:
        return _fault_columns(
            "missing", "the object was deleted concurrently", f"{entry.size_bytes} bytes"
        )
    except KafkaIndexError as error:
        if not is_retriable(error):
            raise
        return _fault_columns("unreadable", error.message)
    _, sha256, crc32 = content_of(data)
    if sha256 != entry.sha256:
        return _fault_columns(
            "altered", "the SHA-256 differs from the manifest", entry.sha256, sha256
        )
    if crc32 != entry.crc32:
        return _fault_columns(
            "altered", "the CRC-32 differs from the manifest", f"{entry.crc32:08x}", f"{crc32:08x}"
        )
    if isinstance(entry, KeptFile):
        return {"status": "intact"}
    return _check_batches(np.frombuffer(data, np.uint8), entry.base_offset, entry.last_offset)


def _check_batches(data: Bytes, base_offset: int, last_offset: int) -> dict[str, object]:
    batches = LogBatches(data, 0, base_offset, verify_crc=True)
    actual_last_offset = -1
    for chunk in batches:
        actual_last_offset = int(chunk.last_offset[-1])
    if batches.stop is not None:
        end_reason = batches.stop
        reason = f"invalid batch at byte {end_reason.position_bytes}: {end_reason.reason_code}"
        return _fault_columns("damaged", reason, end_reason.expected, end_reason.found)
    if actual_last_offset != last_offset:
        return _fault_columns(
            "damaged",
            "the last offset differs from the manifest",
            str(last_offset),
            str(actual_last_offset),
        )
    return {"status": "intact"}


def _fault_columns(
    status: str, reason: str, expected: str | None = None, actual: str | None = None
) -> dict[str, object]:
    return {
        "status": status,
        "reason_code": status,
        "reason": reason,
        "expected": expected,
        "found": actual,
    }


def expire_backups(
    request: ExpireBackupsRequest,
    _engine: Engine | None = None,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> ExpireBackupsResult:
    """Expire the backups that no option retains, and delete unreferenced objects.

    A later call deletes the objects of an expired backup. Until then, readers of the backup and
    backups based on it can finish. Raises `InputError` if the repository does not exist, and
    `CorruptObjectError` if a manifest cannot be read, because its objects are unknown.
    """
    repository = open_repository(absolute_path(request.uri))
    repository.file()
    time_ms = now_ms()
    backups = [*map(_summarize_backup, read_backups(repository, repository.brokers_with_heads()))]
    retention_reasons = retained_backups(backups, request, time_ms)
    expired_backups = [backup for backup in backups if backup.backup_id not in retention_reasons]
    rows = [
        {
            "backup_id": backup.backup_id,
            "opened": backup_id_ms(backup.backup_id),
            "status": "kept" if backup.backup_id in retention_reasons else "expired",
            "reason": retention_reasons.get(backup.backup_id, "not covered by any --keep option"),
        }
        for backup in backups
    ]
    if not request.dry_run:
        _move_manifests(repository, expired_backups)
    collector = _GarbageCollector(repository, len(expired_backups) if request.dry_run else 0)
    collector.delete(dry_run=request.dry_run)
    return ExpireBackupsResult(
        pa.Table.from_pylist(rows, schema=EXPIRE_REPORT.schema),
        RunOutcome.DONE,
        deleted_objects=collector.objects,
        deleted_bytes=collector.bytes,
        waiting_manifests=collector.waiting_manifests,
        is_dry=request.dry_run,
    )


class _BackupSummary(NamedTuple):
    """A backup with its cutoff time, and whether all expected brokers have manifests."""

    backup_id: str
    cutoff_ms: int
    brokers: tuple[int, ...]
    is_complete: bool


def _summarize_backup(backup: BackupManifests) -> _BackupSummary:
    """Return the summary of a backup; raises `CorruptObjectError` for an unreadable manifest."""
    for error in backup.errors:
        raise CorruptObjectError(
            f"no backup was expired, because a manifest cannot be read: {error.message}",
            path=error.path,
            hint=f"if the backup is not needed, move the manifest and {HEADS_FOLDER}/"
            f"{backup.backup_id} out of the repository",
        )
    brokers = tuple(manifest.node_id for manifest in backup.manifests)
    return _BackupSummary(
        backup.backup_id, cutoff_time(backup.manifests), brokers, backup.is_complete
    )


def retained_backups(
    backups: Sequence[_BackupSummary], request: ExpireBackupsRequest, time_ms: int
) -> dict[str, str]:
    """Return the IDs of the backups that do not expire, with the reasons.

    An incomplete backup does not expire while it may become complete, or if no complete backup is
    newer. The newest backup of each broker does not expire.
    """
    complete = {backup.backup_id: backup.cutoff_ms for backup in backups if backup.is_complete}
    reasons = keep_reasons(complete, request)
    newest = max(complete, default="")
    longest_ms = rules.LONGEST_BACKUP_S * 1000
    for backup in backups:
        if backup.backup_id in reasons:
            continue
        if backup.backup_id > newest:
            reasons[backup.backup_id] = "newer than the newest complete backup"
        elif not backup.is_complete and time_ms - backup_id_ms(backup.backup_id) < longest_ms:
            reasons[backup.backup_id] = "the backup may be in progress"
    newest_by_broker: dict[int, str] = {}
    for backup in backups:
        for node_id in backup.brokers:
            newest_by_broker[node_id] = max(backup.backup_id, newest_by_broker.get(node_id, ""))
    for node_id, backup_id in newest_by_broker.items():
        reasons.setdefault(backup_id, f"the newest backup of broker {node_id}")
    return reasons


def keep_reasons(cutoffs: Mapping[str, int], request: ExpireBackupsRequest) -> dict[str, str]:
    """Return the IDs of the complete backups that the ``keep`` options cover, with the reasons.

    `cutoffs` has the cutoff times of all complete backups by ID, in milliseconds since the epoch.
    Only days, weeks and months (UTC) with a backup are counted, starting with the newest.
    """
    times = {
        backup_id: datetime.fromtimestamp(cutoff / 1000, UTC)
        for backup_id, cutoff in cutoffs.items()
    }
    newest_first = sorted(cutoffs, reverse=True)
    reasons: dict[str, str] = dict.fromkeys(newest_first[:1], "the newest complete backup")
    keep_rules: Sequence[tuple[int, str, Callable[[str], object]]] = (
        (
            request.keep_last,
            f"one of the last {plural(request.keep_last, 'complete backup')}",
            lambda backup_id: backup_id,
        ),
        (
            request.keep_daily,
            "the last backup of the day",
            lambda backup_id: times[backup_id].date(),
        ),
        (
            request.keep_weekly,
            "the last backup of the week",
            lambda backup_id: times[backup_id].isocalendar()[:2],
        ),
        (
            request.keep_monthly,
            "the last backup of the month",
            lambda backup_id: (times[backup_id].year, times[backup_id].month),
        ),
    )
    for count, reason, get_period in keep_rules:
        periods: set[object] = set()
        for backup_id in newest_first:
            if len(periods) >= count:
                break
            period = get_period(backup_id)
            if period not in periods:
                periods.add(period)
                reasons.setdefault(backup_id, reason)
    return reasons


def _move_manifests(repository: Repository, backups: Iterable[_BackupSummary]) -> None:
    """Move the manifests of backups to `EXPIRED_FOLDER`: copy all, then delete the originals."""
    root = repository.root
    for backup in backups:
        for node_id in backup.brokers:
            repository.expire(backup.backup_id, node_id)
        # Delete the heads first: a head without its manifest is reported as a lost manifest.
        for folder in (HEADS_FOLDER, BACKUPS_FOLDER):
            paths = [manifest_path(root, backup.backup_id, node, folder) for node in backup.brokers]
            repository.store.delete(paths)
            repository.store.delete_empty_directory(f"{root}/{folder}/{backup.backup_id}")


class _ReferencedNames:
    """Collects the names of a partition's objects from all manifests.

    Consecutive backups have nearly the same objects, so only the differing names are formatted.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._previous_objects: frozenset[LogChunk | KeptFile] = frozenset()

    def add(self, partition: PartitionBackup) -> None:
        objects = frozenset(partition.objects)
        self.names.update(
            stored_object.object_name for stored_object in objects - self._previous_objects
        )
        self._previous_objects = objects


class _GarbageCollector:
    """Deletes unreferenced objects, and expired manifests that are no longer needed."""

    def __init__(self, repository: Repository, dry_expirations: int) -> None:
        self._repository = repository
        self._root, self._store = repository.root, repository.store
        # The number of backups that a dry run would expire.
        self._dry_expirations = dry_expirations
        self._deleted_folders: set[str] = set()
        # Ages are computed at this time, because this run does not list manifests that are put
        # later.
        self._now_ms = now_ms()
        self._spared_ns = self._age_limit_ns(rules.SPARED_S)
        self.objects = self.bytes = self.waiting_manifests = 0

    def delete(self, *, dry_run: bool) -> None:
        """Delete unreferenced objects, or only count them in a dry run."""
        repository = self._repository
        # List expired manifests first. Backups based on a collectable manifest have ended, so the
        # second listing contains their manifests. List expired manifests again at the end, because
        # another expiration may have moved a manifest.
        collectable_keys = {key for key, is_collectable in self._list_expired() if is_collectable}
        active_keys = {
            (backup_id, node_id)
            for backup_id, brokers in repository.brokers_by_backup().items()
            for node_id in brokers
        }
        collectable_by_key = dict(self._list_expired())
        # A killed expiration may have left a manifest in both folders.
        collectable_keys &= {
            key for key, is_collectable in collectable_by_key.items() if is_collectable
        }
        collectable_keys -= active_keys
        waiting_manifests = collectable_by_key.keys() - collectable_keys
        self.waiting_manifests = len(waiting_manifests) + self._dry_expirations
        # Another expiration may move an active manifest to `EXPIRED_FOLDER` before it is read.
        folders_by_key = {
            **dict.fromkeys(waiting_manifests, (EXPIRED_FOLDER,)),
            **dict.fromkeys(active_keys, (BACKUPS_FOLDER, EXPIRED_FOLDER)),
        }
        referenced_names = self._read_referenced_object_names(folders_by_key)
        if dry_run:
            for objects in self._list_unreferenced(referenced_names):
                self._count_deleted(*objects.values())
            return
        # Delete manifests before objects, so that no reader finds a backup without objects.
        paths = [
            manifest_path(self._root, *key, EXPIRED_FOLDER) for key in sorted(collectable_keys)
        ]
        self._store.delete(paths)
        for path in paths:
            self._store.delete_empty_directory(os.path.dirname(path))
        for objects in self._list_unreferenced(referenced_names):
            self._announce_and_delete(objects)
        for folder in self._deleted_folders - {*referenced_names}:
            self._store.delete_empty_directory(f"{self._root}/{folder}")
        day_ms = int(rules.LONGEST_BACKUP_S * 1000)
        self._delete_with_folders(expired_barriers(self._root, self._now_ms - day_ms))
        self._store.delete(repository.old_announcements())
        for folder, damaged_names in repository.list_damaged().items():
            repository.unmark_damaged(folder, damaged_names - referenced_names.get(folder, set()))
        self._delete_with_folders([*self._list_temporary_files()])

    def _age_limit_ns(self, age_s: float) -> int:
        return (self._now_ms - int(age_s * 1000)) * 1_000_000

    def _list_temporary_files(self) -> Iterator[str]:
        """Yield temporary files that killed backups left on a local disk."""
        for folder in _FOLDERS_OF_SMALL_FILES if self._store.stages_locally else ():
            for path, _, mtime_ns in self._repository.list_objects(folder):
                name = os.path.basename(path)
                is_temporary = name.startswith(".") and name.endswith(".tmp")
                if is_temporary and mtime_ns < self._spared_ns:
                    yield f"{self._root}/{folder}/{path}"

    def _delete_with_folders(self, paths: Sequence[str]) -> None:
        self._store.delete(paths)
        for folder in sorted({os.path.dirname(path) for path in paths}):
            self._store.delete_empty_directory(folder)
            self._store.delete_empty_directory(os.path.dirname(folder))

    def _list_expired(self) -> Iterator[tuple[tuple[str, int], bool]]:
        """Yield backup ID and broker of each expired manifest, and whether it may be collected."""
        collectable_ns = self._age_limit_ns(rules.LONGEST_BACKUP_S)
        for path, _, mtime_ns in self._repository.list_objects(EXPIRED_FOLDER):
            backup_id, _, name = path.partition("/")
            node_id = manifest_node(name)
            if node_id is not None:
                yield (backup_id, node_id), mtime_ns < collectable_ns

    def _read_referenced_object_names(
        self, folders_by_key: Mapping[tuple[str, int], tuple[str, ...]]
    ) -> dict[str, set[str]]:
        """Return the object names that manifests refer to, keyed by folder of the partition."""

        def read_manifest(key: tuple[str, int]) -> StoredManifest | None:
            # Another expiration may have deleted the manifest.
            with suppress(MissingManifestError):
                return self._repository.stored_manifest(*key, folders_by_key[key])
            return None

        references: defaultdict[str, _ReferencedNames] = defaultdict(_ReferencedNames)
        for stored_manifest in map_requests(
            read_manifest, sorted(folders_by_key), threads=READS_AT_A_TIME, name="manifests"
        ):
            for partition in stored_manifest.parse().partitions if stored_manifest else ():
                references[partition.folder].add(partition)
        return {folder: referenced.names for folder, referenced in references.items()}

    def _list_unreferenced(
        self, referenced_names: Mapping[str, set[str]]
    ) -> Iterator[dict[str, dict[str, int]]]:
        """Yield the sizes of old unreferenced objects, by folder and name, in limited batches."""
        sizes_by_folder: defaultdict[str, dict[str, int]] = defaultdict(dict)
        count = 0
        for path, size, mtime_ns in self._repository.list_objects(DATA_FOLDER):
            folder, _, name = f"{DATA_FOLDER}/{path}".rpartition("/")
            if mtime_ns < self._spared_ns and name not in referenced_names.get(folder, ()):
                sizes_by_folder[folder][name] = size
                count += 1
            if count >= _ANNOUNCEMENT_BATCH:
                yield sizes_by_folder
                sizes_by_folder, count = defaultdict(dict), 0
        yield sizes_by_folder

    def _announce_and_delete(self, sizes_by_folder: Mapping[str, Mapping[str, int]]) -> None:
        """Announce the deletion of objects, and delete the objects that are still old."""
        remaining_objects = dict(sizes_by_folder)
        announced_at: float | None = None
        for folder, sizes in sizes_by_folder.items():
            self._deleted_folders.add(folder)
            is_complete = False
            while not is_complete:
                listed_at = time.monotonic()
                # Announce again after `SETTLED_S`, because backups ignore older announcements.
                if announced_at is None or listed_at - announced_at > rules.SETTLED_S:
                    self._repository.announce(remaining_objects)
                    announced_at = time.monotonic()
                is_complete = self._list_and_delete(folder, sizes)
            del remaining_objects[folder]

    def _list_and_delete(self, folder: str, sizes: Mapping[str, int]) -> bool:
        """Delete objects that a folder lists; return False if the listing becomes too old."""
        listed_at = time.monotonic()
        paths = [
            entry.path
            for entry in self._store.list_directory(f"{self._root}/{folder}")
            if not entry.is_directory
            and entry.mtime_ns < self._spared_ns
            and os.path.basename(entry.path) in sizes
        ]
        for start in range(0, len(paths), _DELETE_BATCH):
            if time.monotonic() - listed_at > rules.SETTLED_S / 4:
                return False
            batch = paths[start : start + _DELETE_BATCH]
            self._store.delete(batch)
            self._count_deleted({path: sizes[os.path.basename(path)] for path in batch})
        return True

    def _count_deleted(self, *sizes_by_folder: Mapping[str, int]) -> None:
        self.objects += sum(map(len, sizes_by_folder))
        self.bytes += sum(sum(sizes.values()) for sizes in sizes_by_folder)
