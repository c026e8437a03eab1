"""Runs that a repository no longer keeps, and the objects that only they name.

`kafka_index.stores.backup.repository` has the rules by which this runs beside backups and readers.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa

from kafka_index.backup.barrier import old_barriers
from kafka_index.backup.checking import READS_AT_A_TIME, RunManifests, read_runs
from kafka_index.errors import ConfigError, CorruptObjectError, plural
from kafka_index.execution import map_requests
from kafka_index.layout.times import now_ms
from kafka_index.results import RunOutcome, TableResult
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.backup import repository as rules
from kafka_index.stores.backup.manifest import (
    DATA_FOLDER,
    RUNS_FOLDER,
    KeptFile,
    PartitionBackup,
    Piece,
    cut_time,
    manifest_path,
    parse_manifest,
    run_time,
)
from kafka_index.stores.backup.repository import EXPIRED_FOLDER, Repository, expired_path

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
            hint="move it away, if its run is not needed",
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
    repository = Repository(root)
    repository.file()
    now = now_ms()
    runs = [*map(_brokers_of, read_runs(repository, repository.brokers_of_runs()))]
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
        _expire(root, gone)
    swept = _Sweep(root, set() if not dry_run else {each.run for each in gone})
    swept.delete(dry_run=dry_run)
    return ExpiredBackup(
        pa.Table.from_pylist(rows, schema=EXPIRED_SCHEMA),
        RunOutcome.DONE,
        deleted_objects=swept.objects,
        deleted_bytes=swept.bytes,
        waiting_manifests=swept.waiting,
        is_dry=dry_run,
    )


def _expire(root: str, runs: Iterable[_RunBrokers]) -> None:
    """Move the manifests of runs to the expired ones: they are in both for a moment."""
    store = store_of(root)
    for each in runs:
        paths = []
        for node_id in each.brokers:
            path = manifest_path(root, each.run, node_id)
            with suppress(FileNotFoundError):  # another expiring has moved it
                data = store.read(path)
                store.put(expired_path(root, each.run, node_id), data, if_absent=True)
                paths.append(path)
        store.delete(paths)
        _remove_folder(root, f"{root}/{RUNS_FOLDER}/{each.run}")


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

    def __init__(self, root: str, leaving: set[str]) -> None:
        self._root = root
        self._store = store_of(root)
        # Runs of a dry run that are still there.
        self._leaving = leaving
        self.objects = self.bytes = self.waiting = 0

    def delete(self, *, dry_run: bool) -> None:
        """Delete, or only count."""
        repository = Repository(self._root)
        # First the expired ones: a run that built on one of them, and is as old, has ended, and its
        # manifest is listed then.
        old, young = self._expired()
        self.waiting = len(young) + len(self._leaving)
        named: defaultdict[str, _Names] = defaultdict(_Names)
        paths = [
            manifest_path(self._root, run, node_id)
            for run, brokers in repository.brokers_of_runs().items()
            for node_id in brokers
        ]
        for read in map_requests(
            self._read, [*paths, *young], threads=READS_AT_A_TIME, name="manifests"
        ):
            if read is not None:
                for each in parse_manifest(*read).partitions:
                    named[each.folder].add(each)
        names = {folder: found.names for folder, found in named.items()}
        for folder in self._folders_with_others(names):
            self._sweep(folder, names.get(folder, set()), dry_run=dry_run)
        if dry_run:
            return
        self._store.delete(old)
        for path in old:
            _remove_folder(self._root, os.path.dirname(path))
        longest_ms = rules.LONGEST_RUN_S * 1000
        self._store.delete(old_barriers(self._root, now_ms() - longest_ms))

    def _expired(self) -> tuple[list[str], list[str]]:
        """Return the paths of expired manifests whose objects are free, and of all others."""
        free_ns = (now_ms() - int(rules.LONGEST_RUN_S * 1000)) * 1_000_000
        old: list[str] = []
        young: list[str] = []
        top = f"{self._root}/{EXPIRED_FOLDER}"
        for page in self._store.list_tree(top):
            for path, mtime_ns in zip(
                page["path"].to_pylist(), page["mtime_ns"].to_pylist(), strict=True
            ):
                (old if mtime_ns < free_ns else young).append(f"{top}/{path}")
        return old, young

    def _read(self, path: str) -> tuple[bytes, str] | None:
        """Return the bytes of a manifest and where it is; None where it is deleted."""
        try:
            return self._store.read(path), path
        except FileNotFoundError:
            # Another expiring has moved it, and then it is young, or deleted it.
            parts = path.split("/")
            moved = "/".join([*parts[:-3], EXPIRED_FOLDER, *parts[-2:]])
            with suppress(FileNotFoundError):
                return self._store.read(moved), moved
            return None

    def _folders_with_others(self, named: Mapping[str, set[str]]) -> list[str]:
        """Return the folders with old objects that no manifest names."""
        spared_ns = self._spared_ns()
        found: dict[str, None] = {}
        for page in self._store.list_tree(f"{self._root}/{DATA_FOLDER}"):
            for path, mtime_ns in zip(
                page["path"].to_pylist(), page["mtime_ns"].to_pylist(), strict=True
            ):
                folder, _, name = path.rpartition("/")
                key = f"{DATA_FOLDER}/{folder}"
                if mtime_ns < spared_ns and name not in named.get(key, ()):
                    found[key] = None
        return list(found)

    def _sweep(self, folder: str, named: set[str], *, dry_run: bool) -> None:
        """Delete old objects of a folder that are not named, soon after they are looked at."""
        is_over = False
        while not is_over:
            looked_at = time.monotonic()
            spared_ns = self._spared_ns()
            entries = [
                each
                for each in self._store.list_directory(f"{self._root}/{folder}")
                if not each.is_directory
                and each.mtime_ns < spared_ns
                and os.path.basename(each.path) not in named
            ]
            is_over = True
            for first in range(0, len(entries), _DELETED_AT_A_TIME):
                if time.monotonic() - looked_at > rules.SETTLED_S / 4:
                    is_over = False
                    break
                some = entries[first : first + _DELETED_AT_A_TIME]
                if not dry_run:
                    self._store.delete([each.path for each in some])
                self.objects += len(some)
                self.bytes += sum(each.size_bytes for each in some)
        if not dry_run and not named:
            _remove_folder(self._root, f"{self._root}/{folder}")

    def _spared_ns(self) -> int:
        return (now_ms() - int(rules.SPARED_S * 1000)) * 1_000_000


def _remove_folder(root: str, path: str) -> None:
    """Remove a folder of a local disk that is empty; stores have none."""
    if not is_remote(root):
        with suppress(OSError):
            os.rmdir(path)
