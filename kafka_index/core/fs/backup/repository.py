"""A repository of backups: its runs, the manifests in them, and objects that are put once.

No lock is needed: an object is put where there is none, and a run is whole by its manifests. These
rules keep expirings beside running backups from objects that a manifest is about to name:

- A manifest that expires is put into ``expired/`` before it leaves ``runs/``, as young as that, and
  what it names stays for `LONGEST_RUN_S` from then on: for whoever reads the run, or builds on it.
- An object that nothing names stays until it is `SPARED_S` old. A backup counts on an object that
  no manifest it has read names only if that was put within `LONGEST_RUN_S`; an older one it puts
  again, to be as young as a new one.
- An expiring announces the objects that it is about to delete, looks at them again, and deletes
  within `SETTLED_S` what is still as old. A backup reads the announcements before it puts its
  manifest: where they have an object that it has put, or found, it looks for it `SETTLED_S` later.
- A backup that takes longer than `LONGEST_RUN_S` looks for all that it counts on.
- The head of a manifest is put after it, and deleted before it, once the manifest has expired: a
  head alone shows that somebody deleted the manifest.

Ages are told by clocks that may differ by less than `CLOCKS_S`.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from kafka_index.core.errors import CorruptObjectError, InputError, PublishError, plural
from kafka_index.core.format.times import now_ms, parse_time, time_text
from kafka_index.core.fs.backup.backup_paths import REPOSITORY_FILE
from kafka_index.core.fs.backup.manifest import (
    ANNOUNCED_FOLDER,
    DAMAGED_FOLDER,
    DATA_FOLDER,
    EXPIRED_FOLDER,
    HEADS_FOLDER,
    MANIFEST_SUFFIX,
    RUNS_FOLDER,
    Announcement,
    Head,
    Manifest,
    PartitionBackup,
    RepositoryFile,
    cut_time,
    encode,
    hash_of,
    is_run_name,
    manifest_node,
    manifest_path,
    parse_announcement,
    parse_head,
    parse_manifest,
    parse_repository_file,
    run_name,
    run_time,
)
from kafka_index.core.fs.local_store import UnlinkedStore
from kafka_index.core.fs.store import Store

#: Time for which what a run builds on stays.
LONGEST_RUN_S: Final = 24 * 3600
#: Age at which an object that nothing names may be deleted.
SPARED_S: Final = 2 * LONGEST_RUN_S
#: Time in which an expiring deletes what it has looked at; requests are repeated for so long.
SETTLED_S: Final = 1800
#: Difference of clocks that the rules allow for.
CLOCKS_S: Final = 3600

_LOGGER = logging.getLogger(__name__)
_PROBE = ".kafka-index-backup.probe"
_MS_NS = 1_000_000
# Between looks at an object that another process writes at the moment.
_OTHER_WRITER_S = 0.05
# Within this time an object is there, or none is.
_OTHERS_S = 10.0


class Repository:
    """A repository below a root, which is an absolute path or a URI."""

    def __init__(self, root: str, store: Store) -> None:
        self.root = root.rstrip("/") or "/"
        self.store = UnlinkedStore(self.root) if store.has_links else store
        # Manifests that are counted on, and their partitions by folder.
        self._counted: list[tuple[str, int]] = []
        self._named: dict[str, list[PartitionBackup]] = {}
        self._begun_ms = now_ms()
        # When objects were put, or looked for.
        self._last_at = time.monotonic()

    def create(self, cluster_id: str, brokers: tuple[int, ...] = ()) -> Self:
        """Make it the repository of a cluster, if there is none, and return it.

        Raises `InputError` if it is that of another cluster, or the store overwrites objects that
        are there.
        """
        path = f"{self.root}/{REPOSITORY_FILE}"
        try:
            is_of = self.file()
        except NotARepositoryError:
            self._refuse_overwriting_store()
            # The first of several brokers that begin at once makes it.
            self.put(
                REPOSITORY_FILE, encode(RepositoryFile(cluster_id=cluster_id, brokers=brokers))
            )
            is_of = self.file()
        if is_of.cluster_id != cluster_id:
            raise InputError(
                "the repository is that of another cluster",
                path=path,
                expected=cluster_id,
                found=is_of.cluster_id,
                hint="give each cluster a repository of its own",
            )
        return self

    def file(self) -> RepositoryFile:
        """Return what the repository's file says.

        Raises `NotARepositoryError` if there is none, and the errors of `parse_repository_file`.
        """
        path = f"{self.root}/{REPOSITORY_FILE}"
        try:
            return parse_repository_file(self.store.read(path), path)
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
        for path, _, _ in self.listed(folder):
            run, _, name = path.partition("/")
            if is_run_name(run) and name:
                brokers = found.setdefault(run, [])
                node_id = manifest_node(name)
                if node_id is not None:
                    brokers.append(node_id)
        return {run: tuple(sorted(found[run])) for run in sorted(found)}

    def brokers_with_heads(self) -> dict[str, tuple[int, ...]]:
        """Return the brokers that have manifests or heads in each run, by two listings."""
        # In this order, as a head is deleted before its manifest.
        heads = self.brokers_of_runs(HEADS_FOLDER)
        found = self.brokers_of_runs()
        runs = sorted({*heads, *found})
        return {run: tuple(sorted({*heads.get(run, ()), *found.get(run, ())})) for run in runs}

    def listed(self, folder: str) -> Iterator[tuple[str, int, int]]:
        """Yield path, size and modification time in ns of each object below a folder."""
        for page in self.store.list_tree(f"{self.root}/{folder}"):
            columns = (page[name].to_pylist() for name in ("path", "size_bytes", "mtime_ns"))
            yield from zip(*columns, strict=True)

    def brokers_of(self, run: str, folder: str = RUNS_FOLDER) -> tuple[int, ...]:
        """Return the brokers that have manifests in a run."""
        entries = self.store.list_directory(f"{self.root}/{folder}/{run}")
        names = (os.path.basename(entry.path) for entry in entries if not entry.is_directory)
        return tuple(sorted(each for each in map(manifest_node, names) if each is not None))

    def manifest(self, run: str, node_id: int, folders: Iterable[str] = (RUNS_FOLDER,)) -> Manifest:
        """Return the manifest of a broker in a run; raises the errors of `StoredManifest`."""
        return self.stored_manifest(run, node_id, folders).parse()

    def stored_manifest(
        self, run: str, node_id: int, folders: Iterable[str] = (RUNS_FOLDER,)
    ) -> StoredManifest:
        """Return the bytes of the manifest of a broker in a run, from the first folder with one.

        Raises `MissingManifestError` if there is none.
        """
        path = ""
        for folder in folders:
            path = manifest_path(self.root, run, node_id, folder)
            with suppress(FileNotFoundError):
                return StoredManifest(run, node_id, path, self.store.read(path))
        raise MissingManifestError(
            f"the run {run} has no manifest of broker {node_id}; it may have expired",
            path=path,
            hint="kafka-index backups list names the runs that are there",
        )

    def lost_manifest(self, run: str, node_id: int) -> CorruptObjectError | None:
        """Return the error of a manifest that was deleted; None if it expired, or was never put."""
        with suppress(FileNotFoundError):
            self.store.info(manifest_path(self.root, run, node_id, HEADS_FOLDER))
            return CorruptObjectError(
                f"the manifest of broker {node_id} in run {run} was deleted: its head still exists",
                path=manifest_path(self.root, run, node_id),
                hint="restore it, for example from an earlier version of the object; to give up "
                f"the run, delete {HEADS_FOLDER}/{run}",
            )
        return None

    def hash_in_head(self, run: str, node_id: int) -> str | None:
        """Return the hash of a manifest from its head; None if there is no head."""
        path = manifest_path(self.root, run, node_id, HEADS_FOLDER)
        with suppress(FileNotFoundError):
            return parse_head(self.store.read(path), path).sha256
        return None

    def count_on(self, run: str, node_id: int) -> Manifest:
        """Return a manifest, whose objects a backup may name from then on."""
        found = self.manifest(run, node_id)
        self._counted.append((run, node_id))
        for each in found.partitions:
            self._named.setdefault(each.folder, []).append(each)
        return found

    def newest(self, node_id: int) -> Manifest | None:
        """Return the newest manifest of a broker, with which a run begins; None for the first.

        From then on the repository counts on what is read, and not on what it has read before.
        """
        self._counted.clear()
        self._named.clear()
        self._begun_ms = now_ms()
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
        while True:
            with suppress(MissingManifestError):  # it has expired since, as a newer one is there
                return self._newest_complete(time_ms)

    def _newest_complete(self, time_ms: int | None) -> str | None:
        for run, brokers in sorted(self.brokers_of_runs().items(), reverse=True):
            # No run is cut before it is opened.
            if time_ms is None or run_time(run) <= time_ms:
                manifests = self._manifests_of_all(run, brokers)
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
        time_ms = parse_time(selector) if selector else None
        found = self.newest_complete(time_ms)
        lost = self._lost_after(found, time_ms)
        if found is not None:
            for error in lost:
                _LOGGER.warning("%s; run %s is read instead", error, found)
            return found
        for error in lost:
            raise error
        if selector:
            raise self._no_run(f"no complete run is at or before {time_text(parse_time(selector))}")
        raise self._no_run("the repository has no complete run")

    def _lost_after(self, run: str | None, time_ms: int | None) -> Iterator[CorruptObjectError]:
        """Yield the errors of manifests that were deleted of later runs, up to a time if given."""
        for later, brokers in self.brokers_of_runs(HEADS_FOLDER).items():
            if later > (run or "") and (time_ms is None or run_time(later) <= time_ms):
                for node_id in sorted({*brokers} - {*self.brokers_of(later)}):
                    error = self.lost_manifest(later, node_id)
                    if error is not None:
                        yield error

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
        with suppress(MissingManifestError):
            return self._manifests_of_all(run, brokers)
        return []

    def _manifests_of_all(self, run: str, brokers: tuple[int, ...]) -> list[Manifest]:
        found = []
        for node_id in brokers:
            found.append(self.manifest(run, node_id))
            if not set(found[-1].brokers) <= set(brokers):
                return []
        return found

    def names(self, folder: str) -> set[str]:
        """Return the names of the objects in a partition's folder that a manifest may name.

        An old object that no manifest names is left out: `put` puts it again.
        """
        named = self._named_in(folder)
        found = {
            os.path.basename(entry.path)
            for entry in self.store.list_directory(f"{self.root}/{folder}")
            if not entry.is_directory
            and (os.path.basename(entry.path) in named or _is_recent(entry.mtime_ns))
        }
        self._last_at = time.monotonic()
        return found

    def put(self, relative_path: str, data: bytes | memoryview) -> bool:
        """Put an object where there is none; return whether one with these bytes is there now.

        An old object that no manifest names is put again, to be as young as a new one.
        """
        path = f"{self.root}/{relative_path}"
        found = _beside_others(
            path,
            lambda: (
                self.store.put(path, data, if_absent=True) or self._is_kept(relative_path, data)
            ),
        )
        self._last_at = time.monotonic()
        return found

    def put_again(self, relative_path: str, data: bytes | memoryview) -> None:
        """Put an object that may be there with the same bytes, to be as young as a new one."""
        path = f"{self.root}/{relative_path}"
        _beside_others(path, lambda: self.store.put(path, data))

    def mark_damaged(self, folder: str, name: str) -> None:
        """Mark a damaged object of a partition's folder: the next backup puts it again."""
        self.put_again(self._mark(folder, name), b"")

    def unmark_damaged(self, folder: str, names: Iterable[str]) -> None:
        """Delete the marks of objects that are intact now, or needed no more."""
        self.store.delete([f"{self.root}/{self._mark(folder, name)}" for name in names])

    def damaged(self) -> dict[str, set[str]]:
        """Return the names of the objects that are marked as damaged, by their folders."""
        found: dict[str, set[str]] = {}
        for path, _, _ in self.listed(DAMAGED_FOLDER):
            folder, _, name = path.rpartition("/")
            found.setdefault(f"{DATA_FOLDER}/{folder}", set()).add(name)
        return found

    @staticmethod
    def _mark(folder: str, name: str) -> str:
        return f"{DAMAGED_FOLDER}{folder.removeprefix(DATA_FOLDER)}/{name}"

    def announce(self, names: Mapping[str, Iterable[str]]) -> None:
        """Announce that objects are about to be deleted: their names, by folder."""
        announcement = Announcement(names={folder: (*own,) for folder, own in names.items()})
        name = f"{run_name(now_ms())}-{uuid.uuid4().hex}{MANIFEST_SUFFIX}"
        self.put(f"{ANNOUNCED_FOLDER}/{name}", encode(announcement))

    def old_announcements(self) -> list[str]:
        """Return the paths of announcements that no backup reads any more."""
        entries = self.store.list_directory(f"{self.root}/{ANNOUNCED_FOLDER}")
        old_ns = (now_ms() - int(SPARED_S * 1000)) * _MS_NS
        return [each.path for each in entries if each.mtime_ns < old_ns]

    def put_manifest(self, manifest: Manifest) -> None:
        """Put the manifest of a broker, by which it is in the run.

        Raises `PublishError` if another one is there, or an object that it counts on was deleted.
        """
        path = manifest_path(self.root, manifest.run, manifest.node_id)
        self._refuse_deleted(manifest)
        data = encode(manifest)
        head = encode(Head(brokers=manifest.brokers, sha256=hash_of(data)))
        name = f"{manifest.run}/{manifest.node_id}{MANIFEST_SUFFIX}"
        objects = {RUNS_FOLDER: data, HEADS_FOLDER: head}
        if not all(self.put(f"{folder}/{name}", own) for folder, own in objects.items()):
            raise PublishError(
                "the run has a manifest of this broker already",
                path=path,
                hint="run one backup of a broker at a time",
            )

    def expire(self, run: str, node_id: int) -> None:
        """Put a manifest into the expired ones, too: what it names stays for a while from then on.

        It is put again where an expiring was killed that had not deleted the other one yet.
        """
        with suppress(FileNotFoundError):  # another expiring has moved it
            data = self.store.read(manifest_path(self.root, run, node_id))
            self.put_again(f"{EXPIRED_FOLDER}/{run}/{node_id}{MANIFEST_SUFFIX}", data)

    def _is_kept(self, relative_path: str, data: bytes | memoryview) -> bool:
        """Return whether an object that is there has these bytes; put an old one again."""
        path = f"{self.root}/{relative_path}"
        folder, _, name = relative_path.rpartition("/")
        found = self.store.info(path)
        if found.size_bytes != len(data) or self.store.read(path) != data:
            return False
        if not _is_recent(found.mtime_ns) and name not in self._named_in(folder):
            self.put_again(relative_path, data)
        return True

    def _named_in(self, folder: str) -> set[str]:
        """Return the names of the objects in a folder that manifests name which are counted on."""
        return {
            each.object_name
            for partition in self._named.get(folder, ())
            for each in partition.objects
        }

    def _refuse_deleted(self, manifest: Manifest) -> None:
        """Raise `PublishError` if what a manifest names was deleted, or may be from now on."""
        announced = self._announced()
        wanted = self._names_in(manifest, announced) if announced else {}
        if any(wanted.values()):
            time.sleep(max(self._last_at + SETTLED_S - time.monotonic(), 0))
        spared_ns = 0
        if not _is_recent(self._begun_ms * _MS_NS):
            self._refuse_expired()
            spared_ns = (now_ms() - int((SPARED_S - CLOCKS_S) * 1000)) * _MS_NS
            wanted = self._names_in(manifest)
        for folder, names in wanted.items():
            entries = self.store.list_directory(f"{self.root}/{folder}") if names else []
            there = {os.path.basename(each.path) for each in entries if each.mtime_ns > spared_ns}
            if names - there:
                raise PublishError(
                    "an expiring deleted an object as it was put again, or found, or is about to",
                    path=f"{self.root}/{folder}/{min(names - there)}",
                    hint="run again",
                )

    def _names_in(
        self, manifest: Manifest, announced: Mapping[str, set[str]] | None = None
    ) -> dict[str, set[str]]:
        """Return what a manifest names, of what was announced if that is given, by folder.

        It is without what manifests name that are counted on.
        """
        found = {}
        for each in manifest.partitions:
            if announced is None or each.folder in announced:
                names = {own.object_name for own in each.objects} - self._named_in(each.folder)
                found[each.folder] = names if announced is None else names & announced[each.folder]
        return found

    def _announced(self) -> dict[str, set[str]]:
        """Return the names, by folder, that were announced since shortly before the run."""
        # What is deleted was announced at most so long before it was looked at.
        since_ns = (self._begun_ms - int((CLOCKS_S + 2 * SETTLED_S) * 1000)) * _MS_NS
        found: dict[str, set[str]] = {}
        for entry in self.store.list_directory(f"{self.root}/{ANNOUNCED_FOLDER}"):
            if entry.mtime_ns > since_ns and entry.path.endswith(MANIFEST_SUFFIX):
                with suppress(FileNotFoundError):
                    data = self.store.read(entry.path)
                    for folder, names in parse_announcement(data, entry.path).names.items():
                        found.setdefault(folder, set()).update(names)
        return found

    def _refuse_expired(self) -> None:
        """Raise `PublishError` if a manifest that is counted on has expired long ago."""
        for run, node_id in self._counted:
            with suppress(FileNotFoundError):
                self.store.info(manifest_path(self.root, run, node_id))
                continue
            path = manifest_path(self.root, run, node_id, EXPIRED_FOLDER)
            with suppress(FileNotFoundError):
                if _is_recent(self.store.info(path).mtime_ns):
                    continue
            raise PublishError(
                f"the run {run} expired while this one built on it",
                path=path,
                hint="run again",
            )

    def _refuse_overwriting_store(self) -> None:
        """Raise `InputError` if the store puts an object where there is one."""
        path = f"{self.root}/{_PROBE}-{uuid.uuid4().hex}"
        first, second = b"first", b"second"
        try:
            self.store.put(path, first, if_absent=True)
            is_second = self.store.put(path, second, if_absent=True)
            found = self.store.read(path)
        finally:
            self.store.delete([path])
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


def _beside_others(path: str, put: Callable[[], bool]) -> bool:
    """Put an object that others put or delete, and folders that they remove, at this moment.

    Raises `PublishError` if it is there and not to be found for longer than that can take.
    """
    deadline = time.monotonic() + _OTHERS_S
    while True:
        try:
            return put()
        except FileNotFoundError as error:
            if time.monotonic() > deadline:
                raise PublishError(
                    "cannot put the object: one is there that cannot be found",
                    path=path,
                    hint="look for a link to a place that is gone",
                ) from error
        except PublishError as error:
            is_late = time.monotonic() > deadline
            others = BlockingIOError if is_late else (BlockingIOError, FileNotFoundError)
            if not isinstance(error.__cause__, others):
                raise
        time.sleep(_OTHER_WRITER_S)


def _is_recent(mtime_ns: int) -> bool:
    """Return whether what is as old as this will stay for as long as a run takes."""
    return mtime_ns > (now_ms() - int((LONGEST_RUN_S - CLOCKS_S) * 1000)) * _MS_NS
