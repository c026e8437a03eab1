"""Runs that a repository no longer keeps, and the objects that only they name.

`kafka_index.core.fs.backup.repository` has the rules by which this runs beside backups and readers.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa

from kafka_index.commands.backup.barrier import old_barriers
from kafka_index.commands.backup.repository_check import READS_AT_A_TIME, RunManifests, read_runs
from kafka_index.core.errors import ConfigError, CorruptObjectError, plural
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup import repository as rules
from kafka_index.core.fs.backup.manifest import (
    ANNOUNCED_FOLDER,
    BARRIERS_FOLDER,
    DATA_FOLDER,
    EXPIRED_FOLDER,
    HEADS_FOLDER,
    RUNS_FOLDER,
    KeptFile,
    PartitionBackup,
    Piece,
    cut_time,
    manifest_node,
    manifest_path,
    run_time,
)
from kafka_index.core.fs.backup.repository import MissingManifestError, Repository, StoredManifest
from kafka_index.core.fs.paths import repository_of
from kafka_index.core.fs.store import is_remote
from kafka_index.core.job.result import RunOutcome, TableResult
from kafka_index.core.job.threads import map_requests

#: A row per run.
EXPIRED_SCHEMA = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("opened", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)

_DELETED_AT_A_TIME = 500
_ANNOUNCED_AT_A_TIME = 20_000
_FOLDERS_OF_SMALL_FILES = (
    *(HEADS_FOLDER, RUNS_FOLDER, EXPIRED_FOLDER),
    *(ANNOUNCED_FOLDER, BARRIERS_FOLDER),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The complete runs that are kept: the last ones, and the last of each day, week and month.

    Days, weeks and months count where they have runs, in UTC, from the newest on.
    """

    last: int = 1
    daily: int = 7
    weekly: int = 4
    monthly: int = 12

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        for name in ("last", "daily", "weekly", "monthly"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is negative", found=getattr(self, name))

    def reasons(self, runs: Mapping[str, int]) -> dict[str, str]:
        """Return the runs, of complete ones with the times of their cuts, that are kept, and why.

        Times are in milliseconds since the epoch.
        """
        moments = {run: datetime.fromtimestamp(cut / 1000, UTC) for run, cut in runs.items()}
        newest_first = sorted(runs, reverse=True)
        found: dict[str, str] = dict.fromkeys(newest_first[:1], "the newest complete run")
        periods_kept: Sequence[tuple[int, str, Callable[[str], object]]] = (
            (self.last, "one of the last", lambda run: run),
            (self.daily, "the last of its day", lambda run: moments[run].date()),
            (self.weekly, "the last of its week", lambda run: moments[run].isocalendar()[:2]),
            (
                self.monthly,
                "the last of its month",
                lambda run: (moments[run].year, moments[run].month),
            ),
        )
        for count, reason, period_of in periods_kept:
            periods: set[object] = set()
            for run in newest_first:
                period = period_of(run)
                if len(periods) >= count:
                    break
                if period not in periods:
                    periods.add(period)
                    found.setdefault(run, reason)
        return found


class _RunBrokers(NamedTuple):
    """A run, when it was cut, the brokers that have manifests in it, and whether these are all."""

    run: str
    cut_ms: int
    brokers: tuple[int, ...]
    is_complete: bool


def _brokers_of(found: RunManifests) -> _RunBrokers:
    """Return what a run is; raises `CorruptObjectError` if a manifest of it cannot be read."""
    for error in found.errors:
        raise CorruptObjectError(
            f"nothing expires while a manifest cannot be read: {error.message}",
            path=error.path,
            hint=f"move it and {HEADS_FOLDER}/{found.run} away, if its run is not needed",
        )
    brokers = tuple(each.node_id for each in found.manifests)
    return _RunBrokers(found.run, cut_time(found.manifests), brokers, found.is_complete)


def kept_runs(runs: Sequence[_RunBrokers], retention: Retention, now: int) -> dict[str, str]:
    """Return the runs that are kept, each with the reason.

    Incomplete runs are kept while they may become complete, and where no complete one is newer.
    """
    complete = {each.run: each.cut_ms for each in runs if each.is_complete}
    found = retention.reasons(complete)
    newest = max(complete, default="")
    longest_ms = rules.LONGEST_RUN_S * 1000
    for each in runs:
        if each.run in found:
            continue
        if each.run > newest:
            found[each.run] = "newer than the newest complete run"
        elif not each.is_complete and now - run_time(each.run) < longest_ms:
            found[each.run] = "may be under way"
    newest_of: dict[int, str] = {}
    for each in runs:
        for node_id in each.brokers:
            newest_of[node_id] = max(each.run, newest_of.get(node_id, ""))
    for node_id, run in newest_of.items():
        found.setdefault(run, f"the newest run of broker {node_id}")
    return found


@dataclass(frozen=True, repr=False)
class ExpiredBackup(TableResult):
    """The result of `expire_backup`: a row per run, and what was deleted.

    Parameters
    ----------
    rows : pa.Table
        The runs, ascending: ``kept`` or ``expired``, and why.
    ended : RunOutcome
        Always done.
    unread : tuple of str
        Always empty.
    deleted_objects, deleted_bytes : int
        Objects that no manifest names, and that are deleted, or would be.
    waiting_manifests : int
        Manifests that have expired, and whose objects are kept for now.
    is_dry : bool
        Nothing was changed.
    """

    deleted_objects: int = 0
    deleted_bytes: int = 0
    waiting_manifests: int = 0
    is_dry: bool = False

    command = "backups expire"

    @property
    def headline(self) -> str:
        """The runs and objects that went."""
        counts = self.counts
        would = "would be " if self.is_dry else ""
        return (
            f"{plural(counts['expired'], 'run')} {would}expired, {counts['kept']:,} kept; "
            f"{plural(self.deleted_objects, 'object')} of {self.deleted_bytes:,} bytes "
            f"{would}deleted"
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """Runs and objects."""
        status = self.rows["status"].to_pylist()
        return {
            "kept": status.count("kept"),
            "expired": status.count("expired"),
            "deleted_objects": self.deleted_objects,
            "waiting_manifests": self.waiting_manifests,
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes that were deleted."""
        return {"deleted": self.deleted_bytes}


def expire_backup(root: str, retention: Retention, *, dry_run: bool = False) -> ExpiredBackup:
    """Expire the runs that are not kept, and delete objects that nothing needs any more.

    The objects of a run are deleted by a later call, once nobody can read or build on the run.
    Raises `InputError` if there is no such repository, and `CorruptObjectError` if a manifest
    cannot be read: the objects that it names are not known.
    """
    repository = repository_of(root)
    repository.file()
    now = now_ms()
    runs = [*map(_brokers_of, read_runs(repository, repository.brokers_with_heads()))]
    kept = kept_runs(runs, retention, now)
    gone = [each for each in runs if each.run not in kept]
    rows = [
        {
            "run": each.run,
            "opened": run_time(each.run),
            "status": "kept" if each.run in kept else "expired",
            "reason": kept.get(each.run, "nothing keeps it"),
        }
        for each in runs
    ]
    if not dry_run:
        _expire(repository, gone)
    swept = _Sweep(repository, len(gone) if dry_run else 0)
    swept.delete(dry_run=dry_run)
    return ExpiredBackup(
        pa.Table.from_pylist(rows, schema=EXPIRED_SCHEMA),
        RunOutcome.DONE,
        deleted_objects=swept.objects,
        deleted_bytes=swept.bytes,
        waiting_manifests=swept.waiting,
        is_dry=dry_run,
    )


def _expire(repository: Repository, runs: Iterable[_RunBrokers]) -> None:
    """Move the manifests of runs to the expired ones: they are in both for a moment."""
    root = repository.root
    for each in runs:
        for node_id in each.brokers:
            repository.expire(each.run, node_id)
        # Delete the head first: a head without its manifest is reported as a loss.
        for folder in (HEADS_FOLDER, RUNS_FOLDER):
            paths = [manifest_path(root, each.run, node, folder) for node in each.brokers]
            repository.store.delete(paths)
            _remove_folder(root, f"{root}/{folder}/{each.run}")


class _Names:
    """Names of the objects in a folder that manifests name.

    Runs one after the other name nearly the same, so the names are made of what differs.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._last: frozenset[Piece | KeptFile] = frozenset()

    def add(self, partition: PartitionBackup) -> None:
        """Add the names of the objects of a partition."""
        now = frozenset(partition.objects)
        self.names.update(each.object_name for each in now - self._last)
        self._last = now


class _Sweep:
    """Finds and deletes the objects that nothing needs, and the expired manifests of such."""

    def __init__(self, repository: Repository, leaving: int) -> None:
        self._repository = repository
        self._root = repository.root
        # The number of runs that a dry run leaves there.
        self._leaving = leaving
        self._folders: set[str] = set()
        # Ages are those of now, as a manifest that is put from now on is not listed.
        self._now_ms = now_ms()
        self._spared_ns = self._ns_before(rules.SPARED_S)
        self.objects = self.bytes = self.waiting = 0

    def delete(self, *, dry_run: bool) -> None:
        """Delete, or only count."""
        repository = self._repository
        # First the expired ones: a run that built on one of them, and is as old, has ended, and its
        # manifest is listed then. Once more at last: another expiring may have moved one meanwhile.
        old = {key for key, is_free in self._expired() if is_free}
        listed = {
            (run, node_id)
            for run, brokers in repository.brokers_of_runs().items()
            for node_id in brokers
        }
        expired = dict(self._expired())
        # An expiring that was killed may have left one in both places.
        old &= {key for key, is_free in expired.items() if is_free}
        old -= listed
        young = expired.keys() - old
        self.waiting = len(young) + self._leaving
        # Another expiring may move a listed one, which is young then.
        places: dict[tuple[str, int], tuple[str, ...]] = dict.fromkeys(young, (EXPIRED_FOLDER,))
        places |= dict.fromkeys(listed, (RUNS_FOLDER, EXPIRED_FOLDER))
        named: defaultdict[str, _Names] = defaultdict(_Names)
        for stored in map_requests(
            self._read, sorted(places.items()), threads=READS_AT_A_TIME, name="manifests"
        ):
            for each in stored.parse().partitions if stored else ():
                named[each.folder].add(each)
        names = {folder: found.names for folder, found in named.items()}
        if dry_run:
            for objects in self._doomed(names):
                self._count(*objects.values())
            return
        # Nobody can find the runs whose objects go.
        paths = [manifest_path(self._root, *key, EXPIRED_FOLDER) for key in sorted(old)]
        self._repository.store.delete(paths)
        for path in paths:
            _remove_folder(self._root, os.path.dirname(path))
        for objects in self._doomed(names):
            self._delete(objects)
        for folder in self._folders - {*names}:
            _remove_folder(self._root, f"{self._root}/{folder}")
        day_ms = int(rules.LONGEST_RUN_S * 1000)
        self._delete_with_folders(old_barriers(self._root, self._now_ms - day_ms))
        self._repository.store.delete(repository.old_announcements())
        for folder, marked in repository.damaged().items():
            repository.unmark_damaged(folder, marked - names.get(folder, set()))
        self._delete_with_folders([*self._unfinished()])

    def _ns_before(self, seconds: float) -> int:
        return (self._now_ms - int(seconds * 1000)) * 1_000_000

    def _unfinished(self) -> Iterator[str]:
        """Yield what killed runs on a local disk have left of manifests and other small files."""
        for folder in () if is_remote(self._root) else _FOLDERS_OF_SMALL_FILES:
            for path, _, mtime_ns in self._repository.listed(folder):
                name = os.path.basename(path)
                is_scratch = name.startswith(".") and name.endswith(".tmp")
                if is_scratch and mtime_ns < self._spared_ns:
                    yield f"{self._root}/{folder}/{path}"

    def _delete_with_folders(self, paths: Sequence[str]) -> None:
        self._repository.store.delete(paths)
        for folder in sorted({os.path.dirname(path) for path in paths}):
            _remove_folder(self._root, folder)
            _remove_folder(self._root, os.path.dirname(folder))

    def _expired(self) -> Iterator[tuple[tuple[str, int], bool]]:
        """Yield the run and broker of expired manifests, and whether their objects are free."""
        free_ns = self._ns_before(rules.LONGEST_RUN_S)
        for path, _, mtime_ns in self._repository.listed(EXPIRED_FOLDER):
            run, _, name = path.partition("/")
            node_id = manifest_node(name)
            if node_id is not None:
                yield (run, node_id), mtime_ns < free_ns

    def _read(self, place: tuple[tuple[str, int], tuple[str, ...]]) -> StoredManifest | None:
        """Return a manifest; None where another expiring has deleted it."""
        key, folders = place
        with suppress(MissingManifestError):
            return self._repository.stored_manifest(*key, folders)
        return None

    def _doomed(self, named: Mapping[str, set[str]]) -> Iterator[dict[str, dict[str, int]]]:
        """Yield old objects that no manifest names, with sizes, by folders: some at a time."""
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
        """Announce the deletion of objects, and delete what is still as old afterwards."""
        left = dict(objects)
        announced_at: float | None = None
        for folder, own in objects.items():
            self._folders.add(folder)
            is_over = False
            while not is_over:
                looked_at = time.monotonic()
                # Backups read what was announced a short while before they began.
                if announced_at is None or looked_at - announced_at > rules.SETTLED_S:
                    self._repository.announce(left)
                    announced_at = time.monotonic()
                is_over = self._sweep(folder, own)
            del left[folder]

    def _sweep(self, folder: str, doomed: Mapping[str, int]) -> bool:
        """Delete objects of a folder soon after they are looked at; return whether that was all."""
        looked_at = time.monotonic()
        paths = [
            each.path
            for each in self._repository.store.list_directory(f"{self._root}/{folder}")
            if not each.is_directory
            and each.mtime_ns < self._spared_ns
            and os.path.basename(each.path) in doomed
        ]
        for first in range(0, len(paths), _DELETED_AT_A_TIME):
            if time.monotonic() - looked_at > rules.SETTLED_S / 4:
                return False
            some = paths[first : first + _DELETED_AT_A_TIME]
            self._repository.store.delete(some)
            self._count({path: doomed[os.path.basename(path)] for path in some})
        return True

    def _count(self, *objects: Mapping[str, int]) -> None:
        self.objects += sum(map(len, objects))
        self.bytes += sum(sum(each.values()) for each in objects)


def _remove_folder(root: str, path: str) -> None:
    """Remove a folder of a local disk that is empty; stores have none."""
    if not is_remote(root):
        with suppress(OSError):
            os.rmdir(path)
