"""A repository of backups: manifests, and objects that are written once.

It needs no locks: an object is put only if its name is free, and manifests make a backup complete.
The following rules keep an expiration from deleting objects that a concurrent backup needs:

- An expired manifest is copied to ``expired/`` before it is deleted from ``runs/``. Its objects
  stay for another `LONGEST_BACKUP_S`, for readers of the backup and for backups based on it.
- An unreferenced object stays until it is `SPARED_S` old. A backup reuses an object that is not
  in the manifests it has read only if the object was put within `LONGEST_BACKUP_S`. It puts
  older objects again, which renews their age.
- An expiration announces the objects that it will delete and lists them again. Then it deletes
  those that are still old, within `SETTLED_S`. A backup reads the announcements before it puts
  its manifest. If one contains an object that the backup uses, the backup checks `SETTLED_S`
  later that the object still exists.
- A backup that takes longer than `LONGEST_BACKUP_S` checks all objects that it uses.
- The head of a manifest is put after the manifest, and deleted before an expired manifest. A
  head without a manifest therefore shows that the manifest was deleted by something else.

Clocks of different hosts may differ by less than `CLOCKS_S`.
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
from kafka_index.core.fs.backup.manifest import (
    ANNOUNCED_FOLDER,
    BACKUPS_FOLDER,
    DAMAGED_FOLDER,
    DATA_FOLDER,
    EXPIRED_FOLDER,
    HEADS_FOLDER,
    MANIFEST_SUFFIX,
    Announcement,
    Head,
    Manifest,
    PartitionBackup,
    RepositoryFile,
    backup_id_at,
    backup_id_ms,
    cutoff_time,
    encode,
    hash_of,
    is_backup_id,
    manifest_node,
    manifest_path,
    parse_announcement,
    parse_head,
    parse_manifest,
    parse_repository_file,
)
from kafka_index.core.fs.local_store import UnlinkedStore
from kafka_index.core.fs.store import Store
from kafka_index.core.fs.uris import REPOSITORY_FILE

#: Time for which the objects of an expired backup are kept.
LONGEST_BACKUP_S: Final = 24 * 3600
#: Age at which an unreferenced object may be deleted.
SPARED_S: Final = 2 * LONGEST_BACKUP_S
#: Time between listing objects and deleting them, including retries of requests.
SETTLED_S: Final = 1800
#: Maximum difference between clocks.
CLOCKS_S: Final = 3600

_LOGGER = logging.getLogger(__name__)
_PROBE = ".kafka-index-backup.probe"
_MS_NS = 1_000_000
# The pause between checks of an object that another process is writing.
_OTHER_WRITER_S = 0.05
# The longest time for which an object may be reported both as existing and as missing.
_OTHERS_S = 10.0


class Repository:
    """A repository below a root, which is an absolute path or a URI."""

    def __init__(self, root: str, store: Store) -> None:
        self.root = root.rstrip("/") or "/"
        self.store = UnlinkedStore(self.root) if store.has_links else store
        # Manifests on which this backup is based, and their partitions by folder.
        self._built_on: list[tuple[str, int]] = []
        self._named: dict[str, list[PartitionBackup]] = {}
        self._begun_ms = now_ms()
        # When objects were last put or checked.
        self._last_at = time.monotonic()

    def create(self, cluster_id: str, brokers: tuple[int, ...] = ()) -> Self:
        """Create the repository of a cluster if it does not exist, and return it.

        Raises `InputError` if it belongs to another cluster, or the store overwrites existing
        objects.
        """
        path = f"{self.root}/{REPOSITORY_FILE}"
        try:
            is_of = self.file()
        except NotARepositoryError:
            self._refuse_overwriting_store()
            # If several brokers begin at once, the first one creates it.
            self.put(
                REPOSITORY_FILE, encode(RepositoryFile(cluster_id=cluster_id, brokers=brokers))
            )
            is_of = self.file()
        if is_of.cluster_id != cluster_id:
            raise InputError(
                "the repository belongs to another cluster",
                path=path,
                expected=cluster_id,
                found=is_of.cluster_id,
                hint="give each cluster a repository of its own",
            )
        return self

    def file(self) -> RepositoryFile:
        """Return the content of the repository's file.

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

    def brokers_by_backup(self, folder: str = BACKUPS_FOLDER) -> dict[str, tuple[int, ...]]:
        """Return the brokers with manifests by backup ID, ascending, from one listing."""
        found: dict[str, list[int]] = {}
        for path, _, _ in self.listed(folder):
            backup_id, _, name = path.partition("/")
            if is_backup_id(backup_id) and name:
                brokers = found.setdefault(backup_id, [])
                node_id = manifest_node(name)
                if node_id is not None:
                    brokers.append(node_id)
        return {backup_id: tuple(sorted(found[backup_id])) for backup_id in sorted(found)}

    def brokers_with_heads(self) -> dict[str, tuple[int, ...]]:
        """Return the brokers with a manifest or a head in each backup, from two listings."""
        # Heads first, because a head is deleted before its manifest.
        heads = self.brokers_by_backup(HEADS_FOLDER)
        found = self.brokers_by_backup()
        backups = sorted({*heads, *found})
        return {
            backup_id: tuple(sorted({*heads.get(backup_id, ()), *found.get(backup_id, ())}))
            for backup_id in backups
        }

    def listed(self, folder: str) -> Iterator[tuple[str, int, int]]:
        """Yield path, size and modification time in ns of each object below a folder."""
        for page in self.store.list_tree(f"{self.root}/{folder}"):
            columns = (page[name].to_pylist() for name in ("path", "size_bytes", "mtime_ns"))
            yield from zip(*columns, strict=True)

    def brokers_of(self, backup_id: str, folder: str = BACKUPS_FOLDER) -> tuple[int, ...]:
        """Return the brokers with manifests in a backup."""
        entries = self.store.list_directory(f"{self.root}/{folder}/{backup_id}")
        names = (os.path.basename(entry.path) for entry in entries if not entry.is_directory)
        return tuple(sorted(each for each in map(manifest_node, names) if each is not None))

    def manifest(
        self, backup_id: str, node_id: int, folders: Iterable[str] = (BACKUPS_FOLDER,)
    ) -> Manifest:
        """Return the manifest of a broker in a backup; raises the errors of `StoredManifest`."""
        return self.stored_manifest(backup_id, node_id, folders).parse()

    def stored_manifest(
        self, backup_id: str, node_id: int, folders: Iterable[str] = (BACKUPS_FOLDER,)
    ) -> StoredManifest:
        """Return the bytes of the manifest of a broker in a backup, from the first folder with one.

        Raises `MissingManifestError` if there is none.
        """
        path = ""
        for folder in folders:
            path = manifest_path(self.root, backup_id, node_id, folder)
            with suppress(FileNotFoundError):
                return StoredManifest(backup_id, node_id, path, self.store.read(path))
        raise MissingManifestError(
            f"the backup {backup_id} has no manifest of broker {node_id}; it may have expired",
            path=path,
            hint="run kafka-index backups list to list the backups",
        )

    def lost_manifest(self, backup_id: str, node_id: int) -> CorruptObjectError | None:
        """Return the error for a deleted manifest; None if it expired, or was never put."""
        with suppress(FileNotFoundError):
            self.store.info(manifest_path(self.root, backup_id, node_id, HEADS_FOLDER))
            return CorruptObjectError(
                f"the manifest of broker {node_id} in backup {backup_id} was deleted: "
                "its head still exists",
                path=manifest_path(self.root, backup_id, node_id),
                hint="restore it, for example from an earlier version of the object; to give up "
                f"the backup, delete {HEADS_FOLDER}/{backup_id}",
            )
        return None

    def hash_in_head(self, backup_id: str, node_id: int) -> str | None:
        """Return the hash of a manifest from its head; None if there is no head."""
        path = manifest_path(self.root, backup_id, node_id, HEADS_FOLDER)
        with suppress(FileNotFoundError):
            return parse_head(self.store.read(path), path).sha256
        return None

    def count_on(self, backup_id: str, node_id: int) -> Manifest:
        """Return a manifest and allow the backup to reuse its objects."""
        found = self.manifest(backup_id, node_id)
        self._built_on.append((backup_id, node_id))
        for each in found.partitions:
            self._named.setdefault(each.folder, []).append(each)
        return found

    def newest(self, node_id: int) -> Manifest | None:
        """Return the newest manifest of a broker, None if there is none.

        The backup may reuse the objects of this manifest, but no longer the objects of manifests
        read before.
        """
        self._built_on.clear()
        self._named.clear()
        self._begun_ms = now_ms()
        while True:
            backups = [
                backup_id
                for backup_id, brokers in self.brokers_by_backup().items()
                if node_id in brokers
            ]
            if not backups:
                return None
            with suppress(MissingManifestError):
                return self.count_on(backups[-1], node_id)

    def newest_complete(self, time_ms: int | None = None) -> str | None:
        """Return the newest complete backup with a cutoff time at or before a time.

        The time is in milliseconds since the epoch; None if there is no such backup.
        """
        while True:
            with suppress(MissingManifestError):
                return self._newest_complete(time_ms)

    def _newest_complete(self, time_ms: int | None) -> str | None:
        for backup_id, brokers in sorted(self.brokers_by_backup().items(), reverse=True):
            # The cutoff time is never earlier than the backup ID.
            if time_ms is None or backup_id_ms(backup_id) <= time_ms:
                manifests = self._manifests_of_all(backup_id, brokers)
                if manifests and (time_ms is None or cutoff_time(manifests) <= time_ms):
                    return backup_id
        return None

    def find_backup(self, selector: str = "") -> str:
        """Return a backup by its ID, or the newest complete backup, at or before a time if given.

        Raises `InputError` if it does not exist, or the selector is neither ID nor time.
        """
        self.file()
        if is_backup_id(selector):
            if self.brokers_of(selector) or self.brokers_of(selector, EXPIRED_FOLDER):
                return selector
            raise self._no_backup(f"the repository has no backup {selector}")
        time_ms = parse_time(selector) if selector else None
        found = self.newest_complete(time_ms)
        lost = self._lost_after(found, time_ms)
        if found is not None:
            for error in lost:
                _LOGGER.warning("%s; backup %s is read instead", error, found)
            return found
        for error in lost:
            raise error
        if selector:
            raise self._no_backup(
                f"no complete backup is at or before {time_text(parse_time(selector))}"
            )
        raise self._no_backup("the repository has no complete backup")

    def _lost_after(
        self, backup_id: str | None, time_ms: int | None
    ) -> Iterator[CorruptObjectError]:
        for later, brokers in self.brokers_by_backup(HEADS_FOLDER).items():
            if later > (backup_id or "") and (time_ms is None or backup_id_ms(later) <= time_ms):
                for node_id in sorted({*brokers} - {*self.brokers_of(later)}):
                    error = self.lost_manifest(later, node_id)
                    if error is not None:
                        yield error

    def _no_backup(self, message: str) -> InputError:
        brokers = self.brokers_by_backup()
        begun = [backup_id for backup_id, found in brokers.items() if found]
        shown = (
            f"{plural(len(begun), 'backup')}, {begun[0]} to {begun[-1]}" if begun else "no backup"
        )
        return InputError(
            message,
            path=self.root,
            found=shown,
            hint="run kafka-index backups list; @ID reads an incomplete backup",
        )

    def complete_manifests(self, backup_id: str, brokers: tuple[int, ...]) -> list[Manifest]:
        """Return the manifests of a backup; empty if it is incomplete or expires concurrently."""
        with suppress(MissingManifestError):
            return self._manifests_of_all(backup_id, brokers)
        return []

    def _manifests_of_all(self, backup_id: str, brokers: tuple[int, ...]) -> list[Manifest]:
        found = []
        for node_id in brokers:
            found.append(self.manifest(backup_id, node_id))
            if not set(found[-1].brokers) <= set(brokers):
                return []
        return found

    def names(self, folder: str) -> set[str]:
        """Return the objects in a partition's folder that a manifest may refer to.

        Old unreferenced objects are omitted: `put` puts them again.
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
        """Put an object if its name is free; return whether an object with these bytes exists.

        An old unreferenced object is put again to renew its age.
        """
        path = f"{self.root}/{relative_path}"
        found = _put_with_retries(
            path,
            lambda: (
                self.store.put(path, data, if_absent=True) or self._is_kept(relative_path, data)
            ),
        )
        self._last_at = time.monotonic()
        return found

    def put_again(self, relative_path: str, data: bytes | memoryview) -> None:
        """Put an object that may exist with the same bytes, to renew its age."""
        path = f"{self.root}/{relative_path}"
        _put_with_retries(path, lambda: self.store.put(path, data))

    def mark_damaged(self, folder: str, name: str) -> None:
        """Mark an object as damaged, so that the next backup puts it again."""
        self.put_again(self._mark(folder, name), b"")

    def unmark_damaged(self, folder: str, names: Iterable[str]) -> None:
        """Delete the marks of objects that are intact again or no longer needed."""
        self.store.delete([f"{self.root}/{self._mark(folder, name)}" for name in names])

    def damaged(self) -> dict[str, set[str]]:
        """Return the names of the objects marked as damaged, keyed by folder."""
        found: dict[str, set[str]] = {}
        for path, _, _ in self.listed(DAMAGED_FOLDER):
            folder, _, name = path.rpartition("/")
            found.setdefault(f"{DATA_FOLDER}/{folder}", set()).add(name)
        return found

    @staticmethod
    def _mark(folder: str, name: str) -> str:
        return f"{DAMAGED_FOLDER}{folder.removeprefix(DATA_FOLDER)}/{name}"

    def announce(self, names: Mapping[str, Iterable[str]]) -> None:
        """Announce the deletion of objects, which are keyed by folder."""
        announcement = Announcement(names={folder: (*own,) for folder, own in names.items()})
        name = f"{backup_id_at(now_ms())}-{uuid.uuid4().hex}{MANIFEST_SUFFIX}"
        self.put(f"{ANNOUNCED_FOLDER}/{name}", encode(announcement))

    def old_announcements(self) -> list[str]:
        """Return the paths of announcements that no backup reads any more."""
        entries = self.store.list_directory(f"{self.root}/{ANNOUNCED_FOLDER}")
        old_ns = (now_ms() - int(SPARED_S * 1000)) * _MS_NS
        return [each.path for each in entries if each.mtime_ns < old_ns]

    def put_manifest(self, manifest: Manifest) -> None:
        """Put the manifest of a broker, which adds the broker to the backup.

        Raises `PublishError` if another manifest exists, or a reused object was deleted.
        """
        path = manifest_path(self.root, manifest.backup_id, manifest.node_id)
        self._refuse_deleted(manifest)
        data = encode(manifest)
        head = encode(Head(brokers=manifest.brokers, sha256=hash_of(data)))
        name = f"{manifest.backup_id}/{manifest.node_id}{MANIFEST_SUFFIX}"
        objects = {BACKUPS_FOLDER: data, HEADS_FOLDER: head}
        if not all(self.put(f"{folder}/{name}", own) for folder, own in objects.items()):
            raise PublishError(
                "the backup already has a manifest of this broker",
                path=path,
                hint="run one backup of a broker at a time",
            )

    def expire(self, backup_id: str, node_id: int) -> None:
        """Copy a manifest to `EXPIRED_FOLDER`; its objects stay for a while from then on.

        It is put again if an earlier expiration was killed before it deleted the manifest.
        """
        with suppress(FileNotFoundError):
            data = self.store.read(manifest_path(self.root, backup_id, node_id))
            self.put_again(f"{EXPIRED_FOLDER}/{backup_id}/{node_id}{MANIFEST_SUFFIX}", data)

    def _is_kept(self, relative_path: str, data: bytes | memoryview) -> bool:
        """Return whether an object with these bytes exists; put an old one again."""
        path = f"{self.root}/{relative_path}"
        folder, _, name = relative_path.rpartition("/")
        found = self.store.info(path)
        if found.size_bytes != len(data) or self.store.read(path) != data:
            return False
        if not _is_recent(found.mtime_ns) and name not in self._named_in(folder):
            self.put_again(relative_path, data)
        return True

    def _named_in(self, folder: str) -> set[str]:
        """Return the names of the objects in a folder that the base manifests contain."""
        return {
            each.object_name
            for partition in self._named.get(folder, ())
            for each in partition.objects
        }

    def _refuse_deleted(self, manifest: Manifest) -> None:
        """Raise `PublishError` if an object of the manifest was deleted or may be deleted soon."""
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
            existing = {
                os.path.basename(each.path) for each in entries if each.mtime_ns > spared_ns
            }
            if names - existing:
                raise PublishError(
                    "an expiration deleted an object of this backup, or is about to delete it",
                    path=f"{self.root}/{folder}/{min(names - existing)}",
                    hint="run again",
                )

    def _names_in(
        self, manifest: Manifest, announced: Mapping[str, set[str]] | None = None
    ) -> dict[str, set[str]]:
        """Return the objects of a manifest that are not in its base manifests, keyed by folder.

        If `announced` is given, only the objects in it are returned.
        """
        found = {}
        for each in manifest.partitions:
            if announced is None or each.folder in announced:
                names = {own.object_name for own in each.objects} - self._named_in(each.folder)
                found[each.folder] = names if announced is None else names & announced[each.folder]
        return found

    def _announced(self) -> dict[str, set[str]]:
        """Return the names announced since shortly before the backup, keyed by folder."""
        # The longest time between an announcement and the listing that precedes the deletion.
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
        """Raise `PublishError` if a base manifest expired too long ago."""
        for backup_id, node_id in self._built_on:
            with suppress(FileNotFoundError):
                self.store.info(manifest_path(self.root, backup_id, node_id))
                continue
            path = manifest_path(self.root, backup_id, node_id, EXPIRED_FOLDER)
            with suppress(FileNotFoundError):
                if _is_recent(self.store.info(path).mtime_ns):
                    continue
            raise PublishError(
                f"the backup {backup_id} expired while this one built on it",
                path=path,
                hint="run again",
            )

    def _refuse_overwriting_store(self) -> None:
        """Raise `InputError` if the store ignores the condition of a conditional put."""
        if not self.store.needs_requests and self.store.is_file(self.root):
            raise InputError("the repository is a file", path=self.root, expected="a folder")
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
                "the store overwrites existing objects in spite of a condition",
                path=self.root,
                expected="a store that answers such a put with 'precondition failed'",
                found="the second of two bodies under one key",
                hint="choose a store with conditional writes (If-None-Match)",
            )


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """The bytes of a manifest; parsed manifests need about ten times the memory."""

    backup_id: str
    node_id: int
    path: str
    data: bytes

    def parse(self) -> Manifest:
        """Parse the manifest.

        Raises `CorruptObjectError` if it is damaged or belongs to another backup or broker, and
        `InputError` if it has a later format.
        """
        found = parse_manifest(self.data, self.path)
        if (found.backup_id, found.node_id) != (self.backup_id, self.node_id):
            raise CorruptObjectError(
                "the manifest belongs to another backup or broker",
                path=self.path,
                expected=f"{self.backup_id}, broker {self.node_id}",
                found=f"{found.backup_id}, broker {found.node_id}",
            )
        return found


class NotARepositoryError(InputError):
    pass


class MissingManifestError(InputError):
    pass


def _put_with_retries(path: str, put: Callable[[], bool]) -> bool:
    """Put an object while other processes may put it, delete it, or remove its folder.

    Raises `PublishError` if the object stays unreadable although its name is taken.
    """
    deadline = time.monotonic() + _OTHERS_S
    while True:
        try:
            return put()
        except FileNotFoundError as error:
            if time.monotonic() > deadline:
                raise PublishError(
                    "cannot put the object: its name is taken, but the object does not exist",
                    path=path,
                    hint="look for a broken symbolic link",
                ) from error
        except PublishError as error:
            is_late = time.monotonic() > deadline
            others = BlockingIOError if is_late else (BlockingIOError, FileNotFoundError)
            if not isinstance(error.__cause__, others):
                raise
        time.sleep(_OTHER_WRITER_S)


def _is_recent(mtime_ns: int) -> bool:
    """Return whether an object is too new to be deleted while a backup may still reuse it."""
    return mtime_ns > (now_ms() - int((LONGEST_BACKUP_S - CLOCKS_S) * 1000)) * _MS_NS
