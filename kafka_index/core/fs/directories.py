"""Directories of any store, as a listing sees them: entries, which are looked at when asked."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Hashable, Iterator
from typing import TypeAlias

from kafka_index.core.errors import InputError, is_retriable
from kafka_index.core.fs.inputs import BROKEN_LINK, NOT_A_FILE, kept_listings, linked_out
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import DirectoryEntry, FileInfo, is_remote


class LocalEntry:
    """An entry of a local directory: no system call is made before an answer needs it."""

    __slots__ = ("_entry", "name", "path")

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry = entry
        self.name = entry.name
        self.path = entry.path

    def is_directory(self) -> bool:
        """Return whether it is a directory, or a link to one."""
        try:
            return self._entry.is_dir()
        except OSError as error:
            if is_retriable(error):
                raise _unreadable(error, self.path) from error
            # Such as a link that leads in circles: nothing that a broker would load.
            return False

    def why_not_a_file(self) -> str | None:
        """Return why it cannot be read as a file."""
        try:
            if self._entry.is_file():
                return None
        except OSError as error:
            # Where the disk or a permission is at fault, opening it meets and reports the same.
            return None if is_retriable(error) else f"cannot be inspected: {error.strerror}"
        return BROKEN_LINK if self.is_broken_link() else NOT_A_FILE

    def is_broken_link(self) -> bool:
        """Return whether it is a link to nothing."""
        return self._entry.is_symlink() and not os.path.exists(self.path)

    def info(self) -> FileInfo:
        """Return its size and time; 0 where they cannot be found out."""
        try:
            found = self._entry.stat()
        except OSError:
            # Opening it will fail as well, and that becomes the segment's row in the report.
            return FileInfo(self.path, 0, 0)
        return FileInfo(self.path, found.st_size, found.st_mtime_ns)

    def linked_out(self) -> str | None:
        """Return where it leads as a link out of the input that is not followed."""
        if not self._entry.is_symlink():
            return None
        found = linked_out(self.path)
        return None if found is None else found.target

    def file_version(self) -> tuple[int, str]:
        """Return its size, and the time of its last change.

        Unlike the time of its modification, no program can set that.
        """
        try:
            found = self._entry.stat()
        except OSError:
            return 0, ""
        return found.st_size, str(found.st_ctime_ns)


def leads_nowhere(path: str) -> bool:
    """Return whether it is a link in circles, or into no folder: no file is created through it."""
    if not os.path.islink(path):
        return False
    target = os.path.realpath(path)
    return os.path.islink(target) or not os.path.isdir(os.path.dirname(target))


def why_not_opened(path: str) -> str | None:
    """Return what keeps a file from being opened or created there to be written; None otherwise."""
    if leads_nowhere(path):
        return "a link to nothing"
    mode = os.stat(path).st_mode if os.path.exists(path) else 0
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a socket" if stat.S_ISSOCK(mode) else None


class StoredEntry:
    """An object or a common prefix of an object store, or an entry of a directory of HDFS."""

    __slots__ = ("_entry", "name", "path")

    def __init__(self, entry: DirectoryEntry) -> None:
        self._entry = entry
        self.path = entry.path
        self.name = os.path.basename(entry.path)

    def is_directory(self) -> bool:
        """Return whether it is a directory, or a prefix of objects."""
        return self._entry.is_directory

    def why_not_a_file(self) -> str | None:
        """Return why it cannot be read as a file."""
        return NOT_A_FILE if self._entry.is_directory else None

    def is_broken_link(self) -> bool:
        """Return False: stores have no links that are seen here."""
        return False

    def info(self) -> FileInfo:
        """Return its size, time and version."""
        entry = self._entry
        return FileInfo(entry.path, entry.size_bytes, entry.mtime_ns, entry.version)

    def linked_out(self) -> None:
        """Return None: stores have no links that are seen here."""

    def file_version(self) -> tuple[int, str]:
        """Return its size, and its ETag or the time of its modification."""
        entry = self._entry
        return entry.size_bytes, entry.version or str(entry.mtime_ns)


#: An entry of a directory.
Entry: TypeAlias = LocalEntry | StoredEntry


def scan_directory(directory: str) -> list[Entry]:
    """Return the entries of a directory, in no particular order.

    Raises `InputError` if it cannot be read.
    """
    if is_remote(directory):
        return [StoredEntry(entry) for entry in store_of(directory).list_directory(directory)]
    try:
        with os.scandir(directory) as entries:
            return [LocalEntry(entry) for entry in entries]
    except OSError as error:
        raise _unreadable(error, directory) from error


def scan_input(directory: str) -> list[Entry]:
    """Return the entries of a directory of an input; that of a store is listed once in a run."""
    if is_remote(directory):
        return [StoredEntry(entry) for entry in list_stored_input(directory)]
    return scan_directory(directory)


def list_stored_input(directory: str) -> list[DirectoryEntry]:
    """Return the entries of a directory of a store, listed once in a run."""
    listings = kept_listings()
    found = listings.get(directory)
    if found is None:
        found = listings[directory] = store_of(directory).list_directory(directory)
    return found


def directory_exists(path: str) -> bool:
    """Return whether there is a directory; in an object store, whether it holds anything.

    Raises `KafkaIndexError` if the store cannot be reached, or the path cannot be inspected.
    """
    if is_remote(path):
        return bool(store_of(path).list_directory(path))
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        if is_retriable(error):
            raise _unreadable(error, path) from error
        return False


def walk(root: str, *, follows_links: bool = False) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each local folder from a root on with its folders and files, as `os.walk` does.

    Raises `InputError` if a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise _unreadable(error, error.filename) from error

    return os.walk(root, onerror=fail, followlinks=follows_links)


def matches(pattern: str) -> list[str]:
    """Return the local paths that a glob matches, sorted.

    Raises `InputError` if a folder that could hold a match cannot be read.
    """
    parts = pattern.split(os.sep)
    for number, part in enumerate(parts):
        if glob.has_magic(part):
            for folder in glob.glob(os.sep.join(parts[:number]) or os.sep, recursive=True):
                if directory_exists(folder):
                    scan_directory(folder)
    if "**" in parts:
        for folder in glob.glob(os.sep.join(parts[: parts.index("**")]) or os.sep):
            for _ in walk(folder):
                pass
    return sorted(glob.glob(pattern, recursive=True))


def identity_of(directory: str) -> Hashable:
    """Return a value that all paths of one directory share.

    Raises `InputError` if it cannot be inspected.
    """
    if is_remote(directory):
        return directory
    try:
        found = os.stat(directory)
    except OSError as error:
        raise _unreadable(error, directory) from error
    return found.st_dev, found.st_ino


def _unreadable(error: OSError, path: str) -> InputError:
    return InputError(
        f"cannot read the directory: {error.strerror}",
        path=path,
        hint="check its permissions, or leave it out of the input",
    )
