"""``backups expire``: removes backups, and deletes objects that only they use.

`kafka_index.core.fs.backup.repository` defines the rules for expirations that run concurrently with
backups and readers.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa

from kafka_index.commands.backup.barrier import expired_barriers
from kafka_index.commands.backup.repository_check import (
    READS_AT_A_TIME,
    BackupManifests,
    read_backups,
)
from kafka_index.commands.backup.request import ExpireBackupsRequest
from kafka_index.commands.backup.result import EXPIRE_REPORT, ExpireBackupsResult
from kafka_index.core.errors import CorruptObjectError
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
    PartitionBackup,
    backup_id_ms,
    cutoff_time,
    manifest_node,
    manifest_path,
)
from kafka_index.core.fs.backup.repository import MissingManifestError, Repository, StoredManifest
from kafka_index.core.fs.paths import absolute_path, open_repository
from kafka_index.core.job.engine import Engine, Listener, map_requests
from kafka_index.core.job.result import ReportSink, RunOutcome

_DELETED_AT_A_TIME = 500
_ANNOUNCED_AT_A_TIME = 20_000
_FOLDERS_OF_SMALL_FILES = (
    *(HEADS_FOLDER, BACKUPS_FOLDER, EXPIRED_FOLDER),
    *(ANNOUNCED_FOLDER, BARRIERS_FOLDER),
)


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


class _BackupBrokers(NamedTuple):
    """A backup, its cutoff time, and its brokers with manifests; complete if these are all."""

    backup_id: str
    cutoff_ms: int
    brokers: tuple[int, ...]
    is_complete: bool


def _brokers_of(found: BackupManifests) -> _BackupBrokers:
    """Return the brokers of a backup; raises `CorruptObjectError` for an unreadable manifest."""
    for error in found.errors:
        raise CorruptObjectError(
            f"no backup expires while a manifest cannot be read: {error.message}",
            path=error.path,
            hint=f"if the backup is not needed, move the manifest and {HEADS_FOLDER}/"
            f"{found.backup_id} out of the repository",
        )
    brokers = tuple(each.node_id for each in found.manifests)
    return _BackupBrokers(found.backup_id, cutoff_time(found.manifests), brokers, found.is_complete)


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


class _Names:
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
        named: defaultdict[str, _Names] = defaultdict(_Names)
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
        for folder in _FOLDERS_OF_SMALL_FILES if self._store.stages_beside else ():
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
                looked_at = time.monotonic()
                # Backups read the announcements made shortly before they started.
                if announced_at is None or looked_at - announced_at > rules.SETTLED_S:
                    self._repository.announce(left)
                    announced_at = time.monotonic()
                is_over = self._sweep(folder, own)
            del left[folder]

    def _sweep(self, folder: str, sizes: Mapping[str, int]) -> bool:
        """Delete objects of a folder soon after listing it; return whether all are deleted."""
        looked_at = time.monotonic()
        paths = [
            each.path
            for each in self._store.list_directory(f"{self._root}/{folder}")
            if not each.is_directory
            and each.mtime_ns < self._spared_ns
            and os.path.basename(each.path) in sizes
        ]
        for first in range(0, len(paths), _DELETED_AT_A_TIME):
            if time.monotonic() - looked_at > rules.SETTLED_S / 4:
                return False
            some = paths[first : first + _DELETED_AT_A_TIME]
            self._store.delete(some)
            self._count({path: sizes[os.path.basename(path)] for path in some})
        return True

    def _count(self, *objects: Mapping[str, int]) -> None:
        self.objects += sum(map(len, objects))
        self.bytes += sum(sum(each.values()) for each in objects)
