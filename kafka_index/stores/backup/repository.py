"""A repository of backups: its runs, the manifests in them, and objects that are put once.

No lock is needed: an object is put where there is none, and a run is whole by its manifests. Two
rules keep an expiring beside running backups from objects that a manifest is about to name:

- A manifest that expires is put into ``expired/`` before it leaves ``runs/``, and what it names
  stays for `LONGEST_RUN_S` from then on: for whoever reads the run, or builds on it.
- An object that nothing names stays until it is `SPARED_S` old. A backup counts on an object that
  no manifest it has read names only if that was put within `LONGEST_RUN_S`; an older one it puts
  again, and looks for it `SETTLED_S` later, before it puts its manifest. An expiring deletes within
  that time what it has looked at.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kafka_index.errors import CorruptObjectError, InputError, PublishError, plural
from kafka_index.layout.times import now_ms, parse_time, time_text
from kafka_index.stores.backup.manifest import (
    MANIFEST_SUFFIX,
    REPOSITORY_FILE,
    RUNS_FOLDER,
    Manifest,
    PartitionBackup,
    RepositoryFile,
    cut_time,
    encode,
    is_run_name,
    manifest_path,
    parse_manifest,
    parse_repository_file,
    run_time,
)
from kafka_index.stores.registry import store_of
from kafka_index.stores.store import Store

#: Folder of the manifests that have expired, laid out as that of the runs is.
EXPIRED_FOLDER: Final = "expired"
#: A run commits within this time, or not at all.
LONGEST_RUN_S: Final = 24 * 3600
#: Age at which an object that nothing names may be deleted.
SPARED_S: Final = 2 * LONGEST_RUN_S
#: Time in which an expiring deletes what it has looked at.
SETTLED_S: Final = 60

_PROBE = ".kafka-index-backup.probe"
_MS_NS = 1_000_000
# Between looks at an object that another process writes at the moment.
_OTHER_WRITER_S = 0.05


class Repository:
    """A repository below a root, which is an absolute path or a URI."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"
        # By folder: partitions in manifests that are counted on; names of old objects that are in
        # none of these; and the old objects that were put again.
        self._named: defaultdict[str, list[PartitionBackup]] = defaultdict(list)
        self._old: defaultdict[str, set[str]] = defaultdict(set)
        self._put_again: defaultdict[str, set[str]] = defaultdict(set)
        self._put_again_at = 0.0

    @classmethod
    def create(cls, root: str, cluster_id: str, brokers: tuple[int, ...] = ()) -> Repository:
        """Return the repository of a cluster, made if there is none.

        Raises `InputError` if it is that of another cluster, or the store overwrites objects that
        are there.
        """
        found = cls(root)
        path = f"{found.root}/{REPOSITORY_FILE}"
        try:
            is_of = found.file()
        except NotARepositoryError:
            found._refuse_overwriting_store()
            # The first of several brokers that begin at once makes it.
            found.put(
                REPOSITORY_FILE, encode(RepositoryFile(cluster_id=cluster_id, brokers=brokers))
            )
            is_of = found.file()
        if is_of.cluster_id != cluster_id:
            raise InputError(
                "the repository is that of another cluster",
                path=path,
                expected=cluster_id,
                found=is_of.cluster_id,
                hint="give each cluster a repository of its own",
            )
        return found

    def file(self) -> RepositoryFile:
        """Return what the repository's file says.

        Raises `NotARepositoryError` if there is none, and the errors of `parse_repository_file`.
        """
        path = f"{self.root}/{REPOSITORY_FILE}"
        try:
            return parse_repository_file(self._store.read(path), path)
        except FileNotFoundError:
            raise NotARepositoryError(
                f"not a repository of backups: it has no {REPOSITORY_FILE}",
                path=self.root,
                hint="give the --output of kafka-index backup",
            ) from None

    def runs(self) -> list[str]:
        """Return the names of all runs, ascending, begun ones without a manifest too."""
        return sorted(self.brokers_of_runs())

    def brokers_of_runs(self, folder: str = RUNS_FOLDER) -> dict[str, tuple[int, ...]]:
        """Return the brokers that have manifests in each run, by one listing."""
        found: dict[str, list[int]] = {}
        top = f"{self.root}/{folder}"
        for page in self._store.list_tree(top):
            for path in page["path"].to_pylist():
                run, _, name = path.partition("/")
                if is_run_name(run) and name:
                    brokers = found.setdefault(run, [])
                    node_id = _broker_of(name)
                    if node_id is not None:
                        brokers.append(node_id)
        return {run: tuple(sorted(found[run])) for run in sorted(found)}

    def brokers_of(self, run: str, folder: str = RUNS_FOLDER) -> tuple[int, ...]:
        """Return the brokers that have manifests in a run."""
        entries = self._store.list_directory(f"{self.root}/{folder}/{run}")
        names = (os.path.basename(entry.path) for entry in entries if not entry.is_directory)
        return tuple(sorted(each for each in map(_broker_of, names) if each is not None))

    def manifest(self, run: str, node_id: int, *, may_be_expired: bool = False) -> Manifest:
        """Return the manifest of a broker in a run; raises the errors of `StoredManifest`."""
        return self.stored_manifest(run, node_id, may_be_expired=may_be_expired).parse()

    def stored_manifest(
        self, run: str, node_id: int, *, may_be_expired: bool = False
    ) -> StoredManifest:
        """Return the bytes of the manifest of a broker in a run.

        Raises `MissingManifestError` if there is none.
        """
        path = manifest_path(self.root, run, node_id)
        try:
            return StoredManifest(run, node_id, path, self._store.read(path))
        except FileNotFoundError:
            if not may_be_expired:
                raise MissingManifestError(
                    f"the run has no manifest of broker {node_id}", path=path
                ) from None
        path = expired_path(self.root, run, node_id)
        try:
            return StoredManifest(run, node_id, path, self._store.read(path))
        except FileNotFoundError:
            raise MissingManifestError(
                f"the run {run} has no manifest of broker {node_id}; it may have expired",
                path=path,
                hint="kafka-index backups list names the runs that are there",
            ) from None

    def count_on(self, run: str, node_id: int) -> Manifest:
        """Return a manifest, whose objects a backup may name from then on."""
        found = self.manifest(run, node_id)
        for each in found.partitions:
            self._named[each.folder].append(each)
        return found

    def newest(self, node_id: int) -> Manifest | None:
        """Return the newest manifest of a broker, with which a run begins; None for the first.

        From then on the repository counts on what is read, and not on what it has read before.
        """
        self._named.clear()
        self._old.clear()
        while True:
            runs = [run for run, brokers in self.brokers_of_runs().items() if node_id in brokers]
            if not runs:
                return None
            with suppress(MissingManifestError):  # it has expired, as a newer one is there
                return self.count_on(runs[-1], node_id)

    def newest_complete(self, time_ms: int | None = None) -> str | None:
        """Return the newest run, cut at or before a time, that has all its brokers' manifests.

        The time is in milliseconds since the epoch; None where there is no such run.
        """
        for run, brokers in sorted(self.brokers_of_runs().items(), reverse=True):
            # No run is cut before it is opened.
            if time_ms is None or run_time(run) <= time_ms:
                manifests = self.complete_manifests(run, brokers)
                if manifests and (time_ms is None or cut_time(manifests) <= time_ms):
                    return run
        return None

    def find_run(self, selector: str = "") -> str:
        """Return the run of a name, or the newest complete run, cut at or before a time if given.

        Raises `InputError` if there is none, this is not a repository, or the selector is neither.
        """
        self.file()
        if is_run_name(selector):
            if self.brokers_of(selector) or self.brokers_of(selector, EXPIRED_FOLDER):
                return selector
            raise self._no_run(f"the repository has no run {selector}")
        found = self.newest_complete(parse_time(selector) if selector else None)
        if found is not None:
            return found
        if selector:
            raise self._no_run(f"no complete run is at or before {time_text(parse_time(selector))}")
        raise self._no_run("the repository has no complete run")

    def _no_run(self, message: str) -> InputError:
        brokers = self.brokers_of_runs()
        begun = [run for run, found in brokers.items() if found]
        shown = f"{plural(len(begun), 'run')}, {begun[0]} to {begun[-1]}" if begun else "no run"
        return InputError(
            message,
            path=self.root,
            found=shown,
            hint="kafka-index backups list names its runs; an incomplete one is read by @RUN",
        )

    def complete_manifests(self, run: str, brokers: tuple[int, ...]) -> list[Manifest]:
        """Return the manifests of the brokers in a run, none where they are not all that they name.

        There are none either where the run has expired meanwhile.
        """
        found = []
        with suppress(MissingManifestError):
            for node_id in brokers:
                found.append(self.manifest(run, node_id))
                if not set(found[-1].brokers) <= set(brokers):
                    return []
            return found
        return []

    def names(self, folder: str) -> set[str]:
        """Return the names of the objects in a partition's folder that a manifest may name.

        An old object that no manifest names is left out: it has to be put again.
        """
        recent_ns = (now_ms() - int(LONGEST_RUN_S * 1000)) * _MS_NS
        known = {*self._put_again[folder]}
        for partition in self._named[folder]:
            known.update(each.object_name for each in partition.objects)
        found = set()
        for entry in self._store.list_directory(f"{self.root}/{folder}"):
            name = os.path.basename(entry.path)
            if entry.is_directory:
                continue
            if name in known or entry.mtime_ns > recent_ns:
                found.add(name)
            else:
                self._old[folder].add(name)
        return found

    def put(self, relative_path: str, data: bytes | memoryview) -> bool:
        """Put an object where there is none; return whether one with these bytes is there now.

        An object that `names` left out is put again, to be as young as a new one.
        """
        path = f"{self.root}/{relative_path}"
        folder, _, name = relative_path.rpartition("/")
        if name in self._old[folder]:
            self._store.put(path, data)
            self._put_again[folder].add(name)
            self._put_again_at = time.monotonic()
            return True
        while True:
            try:
                return self._store.put(path, data, if_absent=True) or self._holds(path, data)
            except FileNotFoundError:
                continue  # it was deleted at this moment
            except PublishError as error:
                if not isinstance(error.__cause__, BlockingIOError):
                    raise
                time.sleep(_OTHER_WRITER_S)

    def put_manifest(self, manifest: Manifest) -> None:
        """Put the manifest of a broker, by which it is in the run.

        Raises `PublishError` if another one is there, or an object that it counts on was deleted.
        """
        path = manifest_path(self.root, manifest.run, manifest.node_id)
        self._look_for_put_again()
        if not self.put(path[len(self.root) + 1 :], encode(manifest)):
            raise PublishError(
                "the run has a manifest of this broker already",
                path=path,
                hint="run one backup of a broker at a time",
            )

    @property
    def _store(self) -> Store:
        return store_of(self.root)

    def _holds(self, path: str, data: bytes | memoryview) -> bool:
        return self._store.info(path).size_bytes == len(data) and self._store.read(path) == data

    def _look_for_put_again(self) -> None:
        if not self._put_again:
            return
        time.sleep(max(self._put_again_at + SETTLED_S - time.monotonic(), 0))
        for folder, names in self._put_again.items():
            entries = self._store.list_directory(f"{self.root}/{folder}")
            lacking = names - {os.path.basename(entry.path) for entry in entries}
            if lacking:
                raise PublishError(
                    "an expiring deleted an object at the moment at which it was put again",
                    path=f"{self.root}/{folder}/{min(lacking)}",
                    hint="run again",
                )
        self._put_again.clear()

    def _refuse_overwriting_store(self) -> None:
        """Raise `InputError` if the store puts an object where there is one."""
        path = f"{self.root}/{_PROBE}-{uuid.uuid4().hex}"
        first, second = b"first", b"second"
        try:
            self._store.put(path, first, if_absent=True)
            is_second = self._store.put(path, second, if_absent=True)
            found = self._store.read(path)
        finally:
            self._store.delete([path])
        if is_second or found != first:
            raise InputError(
                "the store overwrites an object that is to be put where there is none",
                path=self.root,
                expected="a store that answers such a put with 'precondition failed'",
                found="the second of two bodies under one key",
                hint="choose a store with conditional writes (If-None-Match)",
            )


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """The bytes of a manifest: what it says takes some ten times as many."""

    run: str
    node_id: int
    path: str
    data: bytes

    def parse(self) -> Manifest:
        """Return what it says.

        Raises `CorruptObjectError` if it is damaged or another's, and `InputError` if it has a
        later format.
        """
        found = parse_manifest(self.data, self.path)
        if (found.run, found.node_id) != (self.run, self.node_id):
            raise CorruptObjectError(
                "the manifest is another's",
                path=self.path,
                expected=f"{self.run}, broker {self.node_id}",
                found=f"{found.run}, broker {found.node_id}",
            )
        return found


class NotARepositoryError(InputError):
    """A folder is not a repository of backups."""


class MissingManifestError(InputError):
    """A run has no manifest of a broker."""


def expired_path(root: str, run: str, node_id: int) -> str:
    """Return the path of a manifest that has expired."""
    return f"{root}/{EXPIRED_FOLDER}/{run}/{node_id}{MANIFEST_SUFFIX}"


def _broker_of(name: str) -> int | None:
    """Return the broker whose manifest has this name in a run; None for other objects."""
    digits = name.removesuffix(MANIFEST_SUFFIX)
    return int(digits) if digits != name and digits.isdecimal() and digits.isascii() else None
