"""A repository of backups: manifests, and objects that are written once.

A repository needs no locks: an object is put only if its name is free, and a backup consists of the
objects in its manifests. The following rules keep an expiration from deleting objects that a
concurrent backup needs:

- An expired manifest is copied to ``expired/`` before it is deleted from ``runs/``. The objects
  that it lists stay for another `LONGEST_BACKUP_S`, for readers of the expired backup and for
  backups based on it.
- An unreferenced object stays until it is `SPARED_S` old. A backup reuses an object that none of
  its base manifests lists only if the object was put within `LONGEST_BACKUP_S`. The backup puts an
  older object again, which renews the object's age.
- An expiration announces the objects that it will delete, and lists the objects again. Within
  `SETTLED_S`, it deletes the announced objects that are still old. A backup reads the announcements
  before it puts its manifest. If an announcement contains an object that the backup uses, the
  backup checks `SETTLED_S` later that the object still exists.
- A backup that takes longer than `LONGEST_BACKUP_S` checks all objects that it uses.
- The head of a manifest is put after the manifest, and deleted before an expired manifest. A head
  without a manifest therefore shows that the manifest was lost: no expiration deleted it.

The clocks of hosts must differ by less than `CLOCKS_S`.
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
#: Maximum time between listing objects and deleting them, including retries of requests.
SETTLED_S: Final = 1800
#: Maximum difference between the clocks of hosts.
CLOCKS_S: Final = 3600

_LOGGER = logging.getLogger(__name__)
_PROBE = ".kafka-index-backup.probe"
_MS_NS = 1_000_000
# Pause before the next attempt to put an object that another process is writing or deleting.
_RETRY_PAUSE_S = 0.05
# Timeout of attempts to put an object whose name is taken although the object cannot be read.
_RETRY_TIMEOUT_S = 10.0


class Repository:
    """A repository below a root, which is an absolute path or a URI."""

    def __init__(self, root: str, store: Store) -> None:
        self.root = root.rstrip("/") or "/"
        self.store = UnlinkedStore(self.root) if store.has_links else store
        # Manifests on which the running backup is based, and the partitions in them by folder.
        self._base_manifests: list[tuple[str, int]] = []
        self._base_partitions: dict[str, list[PartitionBackup]] = {}
        self._started_ms = now_ms()
        # The time of the last put of an object, or listing of reusable objects.
        self._last_access_s = time.monotonic()

    def create(self, cluster_id: str, brokers: tuple[int, ...] = ()) -> Self:
        """Create the repository of a cluster if it does not exist, and return it.

        Raises `InputError` if the repository belongs to another cluster, or the store ignores
        conditional writes.
        """
        path = f"{self.root}/{REPOSITORY_FILE}"
        try:
            repository_file = self.file()
        except NotARepositoryError:
            self._refuse_overwriting_store()
            # If several brokers start concurrently, the first broker creates the repository.
            self.put(
                REPOSITORY_FILE, encode(RepositoryFile(cluster_id=cluster_id, brokers=brokers))
            )
            repository_file = self.file()
        if repository_file.cluster_id != cluster_id:
            raise InputError(
                "the repository belongs to another cluster",
                path=path,
                expected=cluster_id,
                found=repository_file.cluster_id,
                hint="use a separate repository for each cluster",
            )
        return self

    def file(self) -> RepositoryFile:
        """Return the content of `REPOSITORY_FILE`.

        Raises `NotARepositoryError` if the file does not exist, and the errors of
        `parse_repository_file`.
        """
        path = f"{self.root}/{REPOSITORY_FILE}"
        try:
            return parse_repository_file(self.store.read(path), path)
        except FileNotFoundError:
            raise NotARepositoryError(
                f"the path is not a repository of backups: {REPOSITORY_FILE} does not exist",
                path=self.root,
                hint="give the --output of kafka-index backup",
            ) from None

    def brokers_by_backup(self, folder: str = BACKUPS_FOLDER) -> dict[str, tuple[int, ...]]:
        """List a folder once; return the brokers with manifests, keyed by ascending backup ID."""
        brokers_by_id: dict[str, list[int]] = {}
        for path, _, _ in self.list_objects(folder):
            backup_id, _, name = path.partition("/")
            if is_backup_id(backup_id) and name:
                brokers = brokers_by_id.setdefault(backup_id, [])
                node_id = manifest_node(name)
                if node_id is not None:
                    brokers.append(node_id)
        return {
            backup_id: tuple(sorted(brokers_by_id[backup_id]))
            for backup_id in sorted(brokers_by_id)
        }

    def brokers_with_heads(self) -> dict[str, tuple[int, ...]]:
        """Return the brokers that have a manifest or a head, keyed by ascending backup ID."""
        # List the heads first, because an expiration deletes a head before its manifest.
        heads = self.brokers_by_backup(HEADS_FOLDER)
        manifests = self.brokers_by_backup()
        backup_ids = sorted({*heads, *manifests})
        return {
            backup_id: tuple(sorted({*heads.get(backup_id, ()), *manifests.get(backup_id, ())}))
            for backup_id in backup_ids
        }

    def list_objects(self, folder: str) -> Iterator[tuple[str, int, int]]:
        """Yield path, size and modification time in ns of each object below a folder."""
        for page in self.store.list_tree(f"{self.root}/{folder}"):
            columns = (page[name].to_pylist() for name in ("path", "size_bytes", "mtime_ns"))
            yield from zip(*columns, strict=True)

    def list_brokers(self, backup_id: str, folder: str = BACKUPS_FOLDER) -> tuple[int, ...]:
        """Return the brokers that have a manifest in a backup."""
        entries = self.store.list_directory(f"{self.root}/{folder}/{backup_id}")
        names = (os.path.basename(entry.path) for entry in entries if not entry.is_directory)
        return tuple(
            sorted(node_id for node_id in map(manifest_node, names) if node_id is not None)
        )

    def manifest(
        self, backup_id: str, node_id: int, folders: Iterable[str] = (BACKUPS_FOLDER,)
    ) -> Manifest:
        """Return the manifest of a broker in a backup; raises the errors of `StoredManifest`."""
        return self.stored_manifest(backup_id, node_id, folders).parse()

    def stored_manifest(
        self, backup_id: str, node_id: int, folders: Iterable[str] = (BACKUPS_FOLDER,)
    ) -> StoredManifest:
        """Read the manifest of a broker in a backup, from the first of `folders` that contains it.

        Raises `MissingManifestError` if no folder has the manifest.
        """
        path = ""
        for folder in folders:
            path = manifest_path(self.root, backup_id, node_id, folder)
            with suppress(FileNotFoundError):
                return StoredManifest(backup_id, node_id, path, self.store.read(path))
        raise MissingManifestError(
            f"backup {backup_id} has no manifest of broker {node_id}, or has expired",
            path=path,
            hint="run kafka-index backups list to list the backups",
        )

    def lost_manifest(self, backup_id: str, node_id: int) -> CorruptObjectError | None:
        """Return the error for a missing manifest that still has a head; None without a head."""
        with suppress(FileNotFoundError):
            self.store.info(manifest_path(self.root, backup_id, node_id, HEADS_FOLDER))
            return CorruptObjectError(
                f"the manifest of broker {node_id} in backup {backup_id} was deleted, "
                "but its head file still exists",
                path=manifest_path(self.root, backup_id, node_id),
                hint="restore the manifest, for example from an earlier version of the object; or "
                f"delete {HEADS_FOLDER}/{backup_id} to abandon the backup",
            )
        return None

    def hash_in_head(self, backup_id: str, node_id: int) -> str | None:
        """Return the SHA-256 of a manifest from its head; None if the head is missing."""
        path = manifest_path(self.root, backup_id, node_id, HEADS_FOLDER)
        with suppress(FileNotFoundError):
            return parse_head(self.store.read(path), path).sha256
        return None

    def read_base_manifest(self, backup_id: str, node_id: int) -> Manifest:
        """Read a manifest, and allow the running backup to reuse the objects in it."""
        manifest = self.manifest(backup_id, node_id)
        self._base_manifests.append((backup_id, node_id))
        for partition in manifest.partitions:
            self._base_partitions.setdefault(partition.folder, []).append(partition)
        return manifest

    def newest(self, node_id: int) -> Manifest | None:
        """Read the newest manifest of a broker; None if the broker has no manifest.

        The running backup may reuse the objects in this manifest. Base manifests that were read
        earlier no longer apply.
        """
        self._base_manifests.clear()
        self._base_partitions.clear()
        self._started_ms = now_ms()
        while True:
            backup_ids = [
                backup_id
                for backup_id, brokers in self.brokers_by_backup().items()
                if node_id in brokers
            ]
            if not backup_ids:
                return None
            with suppress(MissingManifestError):
                return self.read_base_manifest(backup_ids[-1], node_id)

    def newest_complete(self, time_ms: int | None = None) -> str | None:
        """Return the newest complete backup whose cutoff time is at or before `time_ms`.

        `time_ms` is in milliseconds since the epoch. Returns None if there is no such backup.
        """
        while True:
            with suppress(MissingManifestError):
                return self._find_newest_complete(time_ms)

    def _find_newest_complete(self, time_ms: int | None) -> str | None:
        for backup_id, brokers in sorted(self.brokers_by_backup().items(), reverse=True):
            # The cutoff time is never earlier than the opening time in the backup ID.
            if time_ms is None or backup_id_ms(backup_id) <= time_ms:
                manifests = self._read_complete(backup_id, brokers)
                if manifests and (time_ms is None or cutoff_time(manifests) <= time_ms):
                    return backup_id
        return None

    def find_backup(self, selector: str = "") -> str:
        """Return the ID of the backup that a selector selects.

        A backup ID selects this backup, a time the newest complete backup at or before the time,
        and an empty selector the newest complete backup.

        Raises `InputError` if there is no such backup, or the selector is neither an ID nor a time.
        """
        self.file()
        if is_backup_id(selector):
            if self.list_brokers(selector) or self.list_brokers(selector, EXPIRED_FOLDER):
                return selector
            raise self._missing_backup_error(f"the repository has no backup {selector}")
        time_ms = parse_time(selector) if selector else None
        newest = self.newest_complete(time_ms)
        lost_errors = self._find_lost_manifests(newest, time_ms)
        if newest is not None:
            for error in lost_errors:
                _LOGGER.warning("%s; backup %s is read instead", error, newest)
            return newest
        for error in lost_errors:
            raise error
        if selector:
            raise self._missing_backup_error(
                "the repository has no complete backup at or before "
                f"{time_text(parse_time(selector))}"
            )
        raise self._missing_backup_error("the repository has no complete backup")

    def _find_lost_manifests(
        self, backup_id: str | None, time_ms: int | None
    ) -> Iterator[CorruptObjectError]:
        for later_backup_id, brokers in self.brokers_by_backup(HEADS_FOLDER).items():
            if later_backup_id > (backup_id or "") and (
                time_ms is None or backup_id_ms(later_backup_id) <= time_ms
            ):
                for node_id in sorted({*brokers} - {*self.list_brokers(later_backup_id)}):
                    error = self.lost_manifest(later_backup_id, node_id)
                    if error is not None:
                        yield error

    def _missing_backup_error(self, message: str) -> InputError:
        brokers = self.brokers_by_backup()
        backup_ids = [backup_id for backup_id, node_ids in brokers.items() if node_ids]
        available_backups = (
            f"{plural(len(backup_ids), 'backup')}, {backup_ids[0]} to {backup_ids[-1]}"
            if backup_ids
            else "no backup"
        )
        return InputError(
            message,
            path=self.root,
            found=available_backups,
            hint="list the backups with kafka-index backups list; to read an incomplete backup, "
            "append @ and its ID to the URI",
        )

    def complete_manifests(self, backup_id: str, brokers: tuple[int, ...]) -> list[Manifest]:
        """Return the manifests of a backup; empty if the backup is incomplete or being expired."""
        with suppress(MissingManifestError):
            return self._read_complete(backup_id, brokers)
        return []

    def _read_complete(self, backup_id: str, brokers: tuple[int, ...]) -> list[Manifest]:
        manifests = []
        for node_id in brokers:
            manifests.append(self.manifest(backup_id, node_id))
            if not set(manifests[-1].brokers) <= set(brokers):
                return []
        return manifests

    def list_reusable_names(self, folder: str) -> set[str]:
        """Return the names of existing objects in a partition's folder that a backup may reuse.

        Old unreferenced objects are omitted, so that `put` uploads them again.
        """
        base_names = self._list_base_names(folder)
        reusable_names = {
            os.path.basename(entry.path)
            for entry in self.store.list_directory(f"{self.root}/{folder}")
            if not entry.is_directory
            and (os.path.basename(entry.path) in base_names or _is_recent(entry.mtime_ns))
        }
        self._last_access_s = time.monotonic()
        return reusable_names

    def put(self, relative_path: str, data: bytes | memoryview) -> bool:
        """Put an object if its name is free; return whether the object now has these bytes.

        An old unreferenced object is put again to renew its age.
        """
        path = f"{self.root}/{relative_path}"
        exists = _put_with_retries(
            path,
            lambda: (
                self.store.put(path, data, if_absent=True)
                or self._reuse_existing(relative_path, data)
            ),
        )
        self._last_access_s = time.monotonic()
        return exists

    def put_again(self, relative_path: str, data: bytes | memoryview) -> None:
        """Put an object even if its name is taken, to renew its age or to replace damaged bytes."""
        path = f"{self.root}/{relative_path}"
        _put_with_retries(path, lambda: self.store.put(path, data))

    def mark_damaged(self, folder: str, name: str) -> None:
        """Mark an object as damaged, so that the next backup puts it again."""
        self.put_again(self._mark_path(folder, name), b"")

    def unmark_damaged(self, folder: str, names: Iterable[str]) -> None:
        """Delete the damage marks of objects that are intact again or no longer needed."""
        self.store.delete([f"{self.root}/{self._mark_path(folder, name)}" for name in names])

    def list_damaged(self) -> dict[str, set[str]]:
        """Return the names of the objects marked as damaged, keyed by folder."""
        damaged_names: dict[str, set[str]] = {}
        for path, _, _ in self.list_objects(DAMAGED_FOLDER):
            folder, _, name = path.rpartition("/")
            damaged_names.setdefault(f"{DATA_FOLDER}/{folder}", set()).add(name)
        return damaged_names

    @staticmethod
    def _mark_path(folder: str, name: str) -> str:
        return f"{DAMAGED_FOLDER}{folder.removeprefix(DATA_FOLDER)}/{name}"

    def announce(self, names: Mapping[str, Iterable[str]]) -> None:
        """Announce the names of objects that will be deleted, keyed by folder."""
        announcement = Announcement(
            names={folder: (*object_names,) for folder, object_names in names.items()}
        )
        name = f"{backup_id_at(now_ms())}-{uuid.uuid4().hex}{MANIFEST_SUFFIX}"
        self.put(f"{ANNOUNCED_FOLDER}/{name}", encode(announcement))

    def old_announcements(self) -> list[str]:
        """Return the paths of announcements that are too old for any running backup."""
        entries = self.store.list_directory(f"{self.root}/{ANNOUNCED_FOLDER}")
        old_ns = (now_ms() - int(SPARED_S * 1000)) * _MS_NS
        return [entry.path for entry in entries if entry.mtime_ns < old_ns]

    def put_manifest(self, manifest: Manifest) -> None:
        """Put the manifest of a broker, which adds the broker to the backup.

        Raises `PublishError` if the backup already has another manifest of this broker, or if an
        object in the manifest was deleted or may be deleted soon.
        """
        path = manifest_path(self.root, manifest.backup_id, manifest.node_id)
        self._refuse_deleted_objects(manifest)
        data = encode(manifest)
        head = encode(Head(brokers=manifest.brokers, sha256=hash_of(data)))
        name = f"{manifest.backup_id}/{manifest.node_id}{MANIFEST_SUFFIX}"
        objects = {BACKUPS_FOLDER: data, HEADS_FOLDER: head}
        if not all(self.put(f"{folder}/{name}", content) for folder, content in objects.items()):
            raise PublishError(
                "the backup already has a manifest of this broker",
                path=path,
                hint="run one backup of a broker at a time",
            )

    def expire(self, backup_id: str, node_id: int) -> None:
        """Copy a manifest to `EXPIRED_FOLDER`; the copy's age decides when its objects are deleted.

        The copy is put again if an earlier expiration was killed before deleting the manifest.
        """
        with suppress(FileNotFoundError):
            data = self.store.read(manifest_path(self.root, backup_id, node_id))
            self.put_again(f"{EXPIRED_FOLDER}/{backup_id}/{node_id}{MANIFEST_SUFFIX}", data)

    def _reuse_existing(self, relative_path: str, data: bytes | memoryview) -> bool:
        """Return whether an object with these bytes exists; renew an old unreferenced object."""
        path = f"{self.root}/{relative_path}"
        folder, _, name = relative_path.rpartition("/")
        info = self.store.info(path)
        if info.size_bytes != len(data) or self.store.read(path) != data:
            return False
        if not _is_recent(info.mtime_ns) and name not in self._list_base_names(folder):
            self.put_again(relative_path, data)
        return True

    def _list_base_names(self, folder: str) -> set[str]:
        """Return the names of the objects in a folder that the base manifests list."""
        return {
            stored_object.object_name
            for partition in self._base_partitions.get(folder, ())
            for stored_object in partition.objects
        }

    def _refuse_deleted_objects(self, manifest: Manifest) -> None:
        """Raise `PublishError` if an object of the manifest was deleted or may be deleted soon."""
        announced_names = self._read_announcements()
        new_names = self._list_new_names(manifest, announced_names) if announced_names else {}
        if any(new_names.values()):
            time.sleep(max(self._last_access_s + SETTLED_S - time.monotonic(), 0))
        deletable_ns = 0
        if not _is_recent(self._started_ms * _MS_NS):
            self._refuse_expired_bases()
            deletable_ns = (now_ms() - int((SPARED_S - CLOCKS_S) * 1000)) * _MS_NS
            new_names = self._list_new_names(manifest)
        for folder, names in new_names.items():
            entries = self.store.list_directory(f"{self.root}/{folder}") if names else []
            existing = {
                os.path.basename(entry.path) for entry in entries if entry.mtime_ns > deletable_ns
            }
            if names - existing:
                raise PublishError(
                    "an expiration deleted, or is about to delete, an object of this backup",
                    path=f"{self.root}/{folder}/{min(names - existing)}",
                    hint="run the backup again",
                )

    def _list_new_names(
        self, manifest: Manifest, announced_names: Mapping[str, set[str]] | None = None
    ) -> dict[str, set[str]]:
        """Return the objects of a manifest that are not in its base manifests, keyed by folder.

        If `announced_names` is given, only the objects in it are returned.
        """
        names_by_folder = {}
        for partition in manifest.partitions:
            if announced_names is None or partition.folder in announced_names:
                names = {
                    stored_object.object_name for stored_object in partition.objects
                } - self._list_base_names(partition.folder)
                names_by_folder[partition.folder] = (
                    names if announced_names is None else names & announced_names[partition.folder]
                )
        return names_by_folder

    def _read_announcements(self) -> dict[str, set[str]]:
        """Return the object names in recent announcements, keyed by folder."""
        # The objects of earlier announcements were deleted before this backup started.
        since_ns = (self._started_ms - int((CLOCKS_S + 2 * SETTLED_S) * 1000)) * _MS_NS
        announced_names: dict[str, set[str]] = {}
        for entry in self.store.list_directory(f"{self.root}/{ANNOUNCED_FOLDER}"):
            if entry.mtime_ns > since_ns and entry.path.endswith(MANIFEST_SUFFIX):
                with suppress(FileNotFoundError):
                    data = self.store.read(entry.path)
                    for folder, names in parse_announcement(data, entry.path).names.items():
                        announced_names.setdefault(folder, set()).update(names)
        return announced_names

    def _refuse_expired_bases(self) -> None:
        """Raise `PublishError` if the objects of an expired base manifest may soon be deleted."""
        for backup_id, node_id in self._base_manifests:
            with suppress(FileNotFoundError):
                self.store.info(manifest_path(self.root, backup_id, node_id))
                continue
            path = manifest_path(self.root, backup_id, node_id, EXPIRED_FOLDER)
            with suppress(FileNotFoundError):
                if _is_recent(self.store.info(path).mtime_ns):
                    continue
            raise PublishError(
                f"backup {backup_id} expired while the new backup was reusing its objects",
                path=path,
                hint="run the backup again",
            )

    def _refuse_overwriting_store(self) -> None:
        """Raise `InputError` if the store ignores the condition of a conditional put."""
        if not self.store.needs_requests and self.store.is_file(self.root):
            raise InputError("the repository is a file", path=self.root, expected="a folder")
        path = f"{self.root}/{_PROBE}-{uuid.uuid4().hex}"
        original_content, replacement_content = b"first", b"second"
        try:
            self.store.put(path, original_content, if_absent=True)
            is_replaced = self.store.put(path, replacement_content, if_absent=True)
            content = self.store.read(path)
        finally:
            self.store.delete([path])
        if is_replaced or content != original_content:
            raise InputError(
                "the store does not support conditional writes",
                path=self.root,
                expected="a put with If-None-Match fails if the object exists",
                found="the existing object was overwritten",
                hint="choose a store with conditional writes",
            )


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """The bytes of a manifest; a parsed manifest needs about ten times the memory."""

    backup_id: str
    node_id: int
    path: str
    data: bytes

    def parse(self) -> Manifest:
        """Parse the manifest.

        Raises `CorruptObjectError` if the manifest is damaged or belongs to another backup or
        broker, and `InputError` if the format is not supported.
        """
        manifest = parse_manifest(self.data, self.path)
        if (manifest.backup_id, manifest.node_id) != (self.backup_id, self.node_id):
            raise CorruptObjectError(
                "the manifest belongs to another backup or broker",
                path=self.path,
                expected=f"{self.backup_id}, broker {self.node_id}",
                found=f"{manifest.backup_id}, broker {manifest.node_id}",
            )
        return manifest


class NotARepositoryError(InputError):
    pass


class MissingManifestError(InputError):
    pass


def _put_with_retries(path: str, put: Callable[[], bool]) -> bool:
    """Put an object while other processes may put it, delete it, or remove its folder.

    Raises `PublishError` if the object stays unreadable although its name is taken.
    """
    deadline = time.monotonic() + _RETRY_TIMEOUT_S
    while True:
        try:
            return put()
        except FileNotFoundError as error:
            if time.monotonic() > deadline:
                raise PublishError(
                    "cannot put the object: the name exists, but the object cannot be read",
                    path=path,
                    hint="look for a broken symbolic link",
                ) from error
        except PublishError as error:
            is_late = time.monotonic() > deadline
            retried_causes = BlockingIOError if is_late else (BlockingIOError, FileNotFoundError)
            if not isinstance(error.__cause__, retried_causes):
                raise
        time.sleep(_RETRY_PAUSE_S)


def _is_recent(mtime_ns: int) -> bool:
    """Return whether an object is too new to be deleted while a backup may still reuse it."""
    return mtime_ns > (now_ms() - int((LONGEST_BACKUP_S - CLOCKS_S) * 1000)) * _MS_NS
