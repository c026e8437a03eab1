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
_DELETED_AT_A_TIME = 500
_ANNOUNCED_AT_A_TIME = 20_000
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
    """Yield the manifests of backups, given by ID with their brokers.

    Backups that expire concurrently are omitted. The bytes of manifests are read ahead, but only
    one backup at a time is decoded.
    """

    def read(key: tuple[str, int]) -> StoredManifest | KafkaIndexError | None:
        try:
            return repository.stored_manifest(*key)
        except MissingManifestError:
            return repository.lost_manifest(*key)
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            return error

    keys = [(backup_id, node_id) for backup_id, brokers in backups.items() for node_id in brokers]
    stored = map_requests(read, keys, threads=READS_AT_A_TIME, name="manifests")
    for backup_id, own in groupby(zip(keys, stored, strict=True), key=lambda each: each[0][0]):
        manifests: list[Manifest] = []
        errors: list[KafkaIndexError] = []
        hashes: list[str] = []
        for _, each in own:
            if isinstance(each, KafkaIndexError):
                errors.append(each)
            elif each is not None:
                try:
                    manifests.append(each.parse())
                    hashes.append(hash_of(each.data))
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
    """List the backups in a repository; raises `InputError` if it is not a repository."""
    root = absolute_path(request.uri)
    repository = open_repository(root)
    repository.file()
    brokers = {backup_id: own for backup_id, own in repository.brokers_with_heads().items() if own}
    chosen = dict(list(brokers.items())[-request.last :] if request.last else brokers.items())
    now = now_ms()
    rows: list[dict[str, object]] = []
    complete_ms: int | None = None
    is_damaged = False
    for each in read_backups(repository, chosen):
        row = _row(each, now)
        is_damaged |= bool(each.errors)
        if each.is_complete:
            cutoff_ms = cutoff_time(each.manifests)
            row["gap_ms"] = None if complete_ms is None else cutoff_ms - complete_ms
            complete_ms = cutoff_ms
        rows.append(row)
    return BackupRepository(
        pa.Table.from_pylist(rows, schema=LIST_REPORT.schema),
        RunOutcome.DAMAGE if is_damaged else RunOutcome.DONE,
        root=root,
        now_ms=now,
        earlier=len(brokers) - len(chosen),
    )


def _row(backup: BackupManifests, now: int) -> dict[str, object]:
    manifests = backup.manifests
    partitions = {each.topic_partition for one in manifests for each in one.partitions}
    skipped = {TopicPartition(own.topic, own.partition) for one in manifests for own in one.skipped}
    skipped -= partitions
    status, reason = "complete", None
    if backup.errors:
        status, reason = "damaged", str(backup.errors[0])
    elif backup.missing_brokers:
        status = "incomplete"
        reason = f"no manifest of broker {', '.join(map(str, backup.missing_brokers))}"
    elif not is_consistent(manifests):
        status = "inconsistent"
        reason = "brokers did not synchronize: transactions and groups may differ between them"
    elif skipped:
        first = min(skipped).directory_name
        reason = f"{plural(len(skipped), 'partition')} skipped, such as {first}"
    cutoff_ms = cutoff_time(manifests) if manifests else None
    opened_ms = backup_id_ms(backup.backup_id)
    return {
        "backup_id": backup.backup_id,
        "opened": opened_ms,
        "cutoff": cutoff_ms,
        "status": status,
        "brokers": sorted(each.node_id for each in manifests),
        "missing_brokers": backup.missing_brokers,
        "partitions": len(partitions),
        "skipped_partitions": len(skipped),
        "new_bytes": sum(each.new_bytes for each in manifests),
        "bytes": _bytes_of(manifests),
        "age_ms": max(now - (opened_ms if cutoff_ms is None else cutoff_ms), 0),
        "reason": reason,
    }


def _bytes_of(manifests: Iterable[Manifest]) -> int:
    """Return the size of the objects in manifests, each object once."""
    copies: dict[str, list[tuple[LogChunk | KeptFile, ...]]] = {}
    for manifest in manifests:
        for partition in manifest.partitions:
            copies.setdefault(partition.folder, []).append(partition.objects)
    return sum(
        each.size_bytes
        for own in copies.values()
        for each in (own[0] if len(own) == 1 else {*chain(*own)})
    )


def verify_backups(
    request: VerifyBackupsRequest,
    _engine: Engine | None = None,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> VerifyBackupsResult:
    """Check the objects in the manifests of a backup, or of all backups.

    Names and sizes of all objects are compared with a listing. Each object is read with the
    probability `sample`. Its hash, and the checksums and offsets of its batches, are then verified.
    Raises `InputError` if the repository or backup does not exist.
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
    # Number of backups with an object, by its folder and its entry in manifests.
    backups: Counter[tuple[str, LogChunk | KeptFile]] = Counter()
    for found in read_backups(repository, brokers):
        objects: set[tuple[str, LogChunk | KeptFile]] = set()
        for each in chain.from_iterable(one.partitions for one in found.manifests):
            partitions[each.folder] = each.topic_partition
            objects.update(zip(repeat(each.folder), each.objects))
        backups.update(objects)
        rows += _manifest_faults(repository, found)
    paths = {(folder, named): f"{root}/{folder}/{named.object_name}" for folder, named in backups}
    expected_paths = {*paths.values()}
    sizes = {
        path: size
        for below, size, _ in repository.listed(DATA_FOLDER)
        if (path := f"{root}/{DATA_FOLDER}/{below}") in expected_paths
    }
    sample = {
        path
        for path in expected_paths
        if random.random() * 100 < request.sample  # noqa: S311, no secret
    }

    def check(key: tuple[str, LogChunk | KeptFile]) -> dict[str, object]:
        (folder, named), path = key, paths[key]
        size = sizes.get(path)
        row: dict[str, object] = {
            "topic": partitions[folder].topic,
            "partition": partitions[folder].partition,
            "segment_base_offset": named.base_offset if isinstance(named, LogChunk) else None,
            "path": path,
            "status": "listed",
            "backups": backups[key],
            "size_bytes": named.size_bytes,
            "is_read": False,
        }
        if size is None:
            return {
                **row,
                **_fault("missing", "the object does not exist", f"{named.size_bytes} bytes"),
            }
        if size != named.size_bytes:
            expected = f"{named.size_bytes} bytes"
            return {**row, **_fault("altered", "the size differs", expected, f"{size} bytes")}
        if path not in sample:
            return row
        return {**row, "is_read": True, **_read_fault(repository, path, named)}

    by_path = sorted(paths, key=paths.__getitem__)
    checked = [*map_requests(check, by_path, threads=READS_AT_A_TIME, name="objects")]
    for (folder, named), row in zip(by_path, checked, strict=True):
        if request.repair and row["status"] in ("missing", "altered", "damaged"):
            repository.mark_damaged(folder, named.object_name)
    rows += checked
    statuses = {str(row["status"]) for row in rows}
    outcome = RunOutcome.DONE
    if "unreadable" in statuses:
        outcome = RunOutcome.ENVIRONMENT
    elif not statuses <= {"intact", "listed"}:
        outcome = RunOutcome.DAMAGE
    table = pa.Table.from_pylist(rows, schema=VERIFY_REPORT.schema)
    return VerifyBackupsResult(table, outcome, root=root, is_repaired=request.repair)


def _manifest_faults(
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
            yield {"path": error.path, **_fault("damaged", error.message)}
            continue
        if expected not in (None, sha256):
            path = manifest_path(repository.root, backup.backup_id, manifest.node_id)
            reason = "its hash differs from the hash in its head file"
            yield {"path": path, **_fault("altered", reason, expected, sha256)}


def _read_fault(repository: Repository, path: str, named: LogChunk | KeptFile) -> dict[str, object]:
    """Return the row columns that describe how an object differs from its manifest entry."""
    try:
        data = repository.store.read(path)
    except FileNotFoundError:
        return _fault("missing", "the object was deleted concurrently", f"{named.size_bytes} bytes")
    except KafkaIndexError as error:
        if not is_retriable(error):
            raise
        return _fault("unreadable", error.message)
    _, sha256, crc32 = content_of(data)
    if sha256 != named.sha256:
        return _fault("altered", "the hash differs", named.sha256, sha256)
    if crc32 != named.crc32:
        return _fault("altered", "the CRC-32 differs", f"{named.crc32:08x}", f"{crc32:08x}")
    if isinstance(named, KeptFile):
        return {"status": "intact"}
    return _batches_fault(np.frombuffer(data, np.uint8), named.base_offset, named.last_offset)


def _batches_fault(data: Bytes, base_offset: int, last_offset: int) -> dict[str, object]:
    batches = LogBatches(data, 0, base_offset, verify_crc=True)
    last = -1
    for chunk in batches:
        last = int(chunk.last_offset[-1])
    if batches.stop is not None:
        stop = batches.stop
        reason = f"at byte {stop.position_bytes}: {stop.reason_code}"
        return _fault("damaged", reason, stop.expected, stop.found)
    if last != last_offset:
        return _fault("damaged", "the last offset differs", str(last_offset), str(last))
    return {"status": "intact"}


def _fault(
    status: str, reason: str, expected: str | None = None, found: str | None = None
) -> dict[str, object]:
    return {
        "status": status,
        "reason_code": status,
        "reason": reason,
        "expected": expected,
        "found": found,
    }


def expire_backups(
    request: ExpireBackupsRequest,
    _engine: Engine | None = None,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> ExpireBackupsResult:
    """Expire the backups that are not kept, and delete unreferenced objects.

    The objects of an expired backup are deleted by a later call, when its readers and backups based
    on it have ended. Raises `InputError` if the repository does not exist, and `CorruptObjectError`
    if a manifest cannot be read, because its objects are unknown.
    """
    repository = open_repository(absolute_path(request.uri))
    repository.file()
    now = now_ms()
    backups = [*map(_brokers_of, read_backups(repository, repository.brokers_with_heads()))]
    kept = retained_backups(backups, request, now)
    expired = [each for each in backups if each.backup_id not in kept]
    rows = [
        {
            "backup_id": each.backup_id,
            "opened": backup_id_ms(each.backup_id),
            "status": "kept" if each.backup_id in kept else "expired",
            "reason": kept.get(each.backup_id, "not covered by any --keep option"),
        }
        for each in backups
    ]
    if not request.dry_run:
        _expire(repository, expired)
    collector = _GarbageCollector(repository, len(expired) if request.dry_run else 0)
    collector.delete(dry_run=request.dry_run)
    return ExpireBackupsResult(
        pa.Table.from_pylist(rows, schema=EXPIRE_REPORT.schema),
        RunOutcome.DONE,
        deleted_objects=collector.objects,
        deleted_bytes=collector.bytes,
        waiting_manifests=collector.waiting,
        is_dry=request.dry_run,
    )


class _BackupBrokers(NamedTuple):
    """A backup, its cutoff time, and its brokers with manifests; complete if these are all."""

    backup_id: str
    cutoff_ms: int
    brokers: tuple[int, ...]
    is_complete: bool


def _brokers_of(backup: BackupManifests) -> _BackupBrokers:
    """Return the brokers of a backup; raises `CorruptObjectError` for an unreadable manifest."""
    for error in backup.errors:
        raise CorruptObjectError(
            f"no backup expires while a manifest cannot be read: {error.message}",
            path=error.path,
            hint=f"if the backup is not needed, move the manifest and {HEADS_FOLDER}/"
            f"{backup.backup_id} out of the repository",
        )
    brokers = tuple(each.node_id for each in backup.manifests)
    return _BackupBrokers(
        backup.backup_id, cutoff_time(backup.manifests), brokers, backup.is_complete
    )


def retained_backups(
    backups: Sequence[_BackupBrokers], request: ExpireBackupsRequest, now: int
) -> dict[str, str]:
    """Return the backups that are kept, each with the reason.

    An incomplete backup is kept while it may become complete, and if no complete one is newer.
    """
    complete = {each.backup_id: each.cutoff_ms for each in backups if each.is_complete}
    reasons = keep_reasons(complete, request)
    newest = max(complete, default="")
    longest_ms = rules.LONGEST_BACKUP_S * 1000
    for each in backups:
        if each.backup_id in reasons:
            continue
        if each.backup_id > newest:
            reasons[each.backup_id] = "newer than the newest complete backup"
        elif not each.is_complete and now - backup_id_ms(each.backup_id) < longest_ms:
            reasons[each.backup_id] = "may be in progress"
    newest_by_broker: dict[int, str] = {}
    for each in backups:
        for node_id in each.brokers:
            newest_by_broker[node_id] = max(each.backup_id, newest_by_broker.get(node_id, ""))
    for node_id, backup_id in newest_by_broker.items():
        reasons.setdefault(backup_id, f"the newest backup of broker {node_id}")
    return reasons


def keep_reasons(cutoffs: Mapping[str, int], request: ExpireBackupsRequest) -> dict[str, str]:
    """Return the complete backups that the ``keep`` options cover, each with the reason.

    `cutoffs` are the cutoff times of all complete backups, in milliseconds since the epoch. Only
    days, weeks and months (UTC) with a backup are counted, starting with the newest.
    """
    times = {
        backup_id: datetime.fromtimestamp(cutoff / 1000, UTC)
        for backup_id, cutoff in cutoffs.items()
    }
    newest_first = sorted(cutoffs, reverse=True)
    reasons: dict[str, str] = dict.fromkeys(newest_first[:1], "the newest complete backup")
    rules_of_periods: Sequence[tuple[int, str, Callable[[str], object]]] = (
        (request.keep_last, "one of the last", lambda backup_id: backup_id),
        (request.keep_daily, "the last of its day", lambda backup_id: times[backup_id].date()),
        (
            request.keep_weekly,
            "the last of its week",
            lambda backup_id: times[backup_id].isocalendar()[:2],
        ),
        (
            request.keep_monthly,
            "the last of its month",
            lambda backup_id: (times[backup_id].year, times[backup_id].month),
        ),
    )
    for count, reason, period_of in rules_of_periods:
        periods: set[object] = set()
        for backup_id in newest_first:
            if len(periods) >= count:
                break
            period = period_of(backup_id)
            if period not in periods:
                periods.add(period)
                reasons.setdefault(backup_id, reason)
    return reasons


def _expire(repository: Repository, backups: Iterable[_BackupBrokers]) -> None:
    """Move the manifests of backups to `EXPIRED_FOLDER`; for a short time they are in both."""
    root = repository.root
    for each in backups:
        for node_id in each.brokers:
            repository.expire(each.backup_id, node_id)
        # Delete the head first: a head without its manifest is reported as a loss.
        for folder in (HEADS_FOLDER, BACKUPS_FOLDER):
            paths = [manifest_path(root, each.backup_id, node, folder) for node in each.brokers]
            repository.store.delete(paths)
            repository.store.delete_empty_directory(f"{root}/{folder}/{each.backup_id}")


class _ReferencedNames:
    """Names of the objects of a partition in all manifests.

    Consecutive backups have nearly the same objects, so only differences are formatted.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._last: frozenset[LogChunk | KeptFile] = frozenset()

    def add(self, partition: PartitionBackup) -> None:
        now = frozenset(partition.objects)
        self.names.update(each.object_name for each in now - self._last)
        self._last = now


class _GarbageCollector:
    """Deletes unreferenced objects, and the expired manifests that referred to them."""

    def __init__(self, repository: Repository, leaving: int) -> None:
        self._repository = repository
        self._root, self._store = repository.root, repository.store
        # The number of backups that a dry run does not expire.
        self._leaving = leaving
        self._folders: set[str] = set()
        # Ages are relative to this time, because manifests that are put later are not listed.
        self._now_ms = now_ms()
        self._spared_ns = self._ns_before(rules.SPARED_S)
        self.objects = self.bytes = self.waiting = 0

    def delete(self, *, dry_run: bool) -> None:
        """Delete the objects, or only count them."""
        repository = self._repository
        # List expired manifests first: backups based on an old one have ended, so their manifests
        # are listed afterwards. List them again at the end, because another expiration may have
        # moved one.
        old = {key for key, is_free in self._expired() if is_free}
        listed = {
            (backup_id, node_id)
            for backup_id, brokers in repository.brokers_by_backup().items()
            for node_id in brokers
        }
        expired = dict(self._expired())
        # A killed expiration may have left a manifest in both folders.
        old &= {key for key, is_free in expired.items() if is_free}
        old -= listed
        young = expired.keys() - old
        self.waiting = len(young) + self._leaving
        # Another expiration may move a listed manifest, which is then young.
        places: dict[tuple[str, int], tuple[str, ...]] = dict.fromkeys(young, (EXPIRED_FOLDER,))
        places |= dict.fromkeys(listed, (BACKUPS_FOLDER, EXPIRED_FOLDER))
        named: defaultdict[str, _ReferencedNames] = defaultdict(_ReferencedNames)
        for stored in map_requests(
            self._read, sorted(places.items()), threads=READS_AT_A_TIME, name="manifests"
        ):
            for each in stored.parse().partitions if stored else ():
                named[each.folder].add(each)
        names = {folder: found.names for folder, found in named.items()}
        if dry_run:
            for objects in self._unreferenced(names):
                self._count(*objects.values())
            return
        # Manifests first, so that no reader finds a backup without objects.
        paths = [manifest_path(self._root, *key, EXPIRED_FOLDER) for key in sorted(old)]
        self._store.delete(paths)
        for path in paths:
            self._store.delete_empty_directory(os.path.dirname(path))
        for objects in self._unreferenced(names):
            self._delete(objects)
        for folder in self._folders - {*names}:
            self._store.delete_empty_directory(f"{self._root}/{folder}")
        day_ms = int(rules.LONGEST_BACKUP_S * 1000)
        self._delete_with_folders(expired_barriers(self._root, self._now_ms - day_ms))
        self._store.delete(repository.old_announcements())
        for folder, marked in repository.damaged().items():
            repository.unmark_damaged(folder, marked - names.get(folder, set()))
        self._delete_with_folders([*self._unfinished()])

    def _ns_before(self, seconds: float) -> int:
        return (self._now_ms - int(seconds * 1000)) * 1_000_000

    def _unfinished(self) -> Iterator[str]:
        """Yield temporary files that killed backups left on a local disk."""
        for folder in _FOLDERS_OF_SMALL_FILES if self._store.stages_locally else ():
            for path, _, mtime_ns in self._repository.listed(folder):
                name = os.path.basename(path)
                is_scratch = name.startswith(".") and name.endswith(".tmp")
                if is_scratch and mtime_ns < self._spared_ns:
                    yield f"{self._root}/{folder}/{path}"

    def _delete_with_folders(self, paths: Sequence[str]) -> None:
        self._store.delete(paths)
        for folder in sorted({os.path.dirname(path) for path in paths}):
            self._store.delete_empty_directory(folder)
            self._store.delete_empty_directory(os.path.dirname(folder))

    def _expired(self) -> Iterator[tuple[tuple[str, int], bool]]:
        """Yield backup ID and broker of expired manifests, and whether objects may be deleted."""
        free_ns = self._ns_before(rules.LONGEST_BACKUP_S)
        for path, _, mtime_ns in self._repository.listed(EXPIRED_FOLDER):
            backup_id, _, name = path.partition("/")
            node_id = manifest_node(name)
            if node_id is not None:
                yield (backup_id, node_id), mtime_ns < free_ns

    def _read(self, place: tuple[tuple[str, int], tuple[str, ...]]) -> StoredManifest | None:
        """Return a manifest; None if another expiration has deleted it."""
        key, folders = place
        with suppress(MissingManifestError):
            return self._repository.stored_manifest(*key, folders)
        return None

    def _unreferenced(self, named: Mapping[str, set[str]]) -> Iterator[dict[str, dict[str, int]]]:
        """Yield old unreferenced objects with sizes, by folder, in parts of limited size."""
        found: defaultdict[str, dict[str, int]] = defaultdict(dict)
        count = 0
        for path, size, mtime_ns in self._repository.listed(DATA_FOLDER):
            folder, _, name = f"{DATA_FOLDER}/{path}".rpartition("/")
            if mtime_ns < self._spared_ns and name not in named.get(folder, ()):
                found[folder][name] = size
                count += 1
            if count >= _ANNOUNCED_AT_A_TIME:
                yield found
                found, count = defaultdict(dict), 0
        yield found

    def _delete(self, objects: Mapping[str, Mapping[str, int]]) -> None:
        """Announce the deletion of objects, and delete those that are still old afterwards."""
        left = dict(objects)
        announced_at: float | None = None
        for folder, own in objects.items():
            self._folders.add(folder)
            is_over = False
            while not is_over:
                listed_at = time.monotonic()
                # Backups read the announcements made shortly before they started.
                if announced_at is None or listed_at - announced_at > rules.SETTLED_S:
                    self._repository.announce(left)
                    announced_at = time.monotonic()
                is_over = self._delete_listed(folder, own)
            del left[folder]

    def _delete_listed(self, folder: str, sizes: Mapping[str, int]) -> bool:
        """Delete objects of a folder soon after listing it; return whether all are deleted."""
        listed_at = time.monotonic()
        paths = [
            each.path
            for each in self._store.list_directory(f"{self._root}/{folder}")
            if not each.is_directory
            and each.mtime_ns < self._spared_ns
            and os.path.basename(each.path) in sizes
        ]
        for first in range(0, len(paths), _DELETED_AT_A_TIME):
            if time.monotonic() - listed_at > rules.SETTLED_S / 4:
                return False
            some = paths[first : first + _DELETED_AT_A_TIME]
            self._store.delete(some)
            self._count({path: sizes[os.path.basename(path)] for path in some})
        return True

    def _count(self, *objects: Mapping[str, int]) -> None:
        self.objects += sum(map(len, objects))
        self.bytes += sum(sum(each.values()) for each in objects)
