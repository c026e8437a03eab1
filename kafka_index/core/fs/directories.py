"""Directories and their entries in any store; folders and globs on the local disk."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Hashable

from kafka_index.core.fs.inputs import kept_of_run
from kafka_index.core.fs.local_store import unreadable_directory, walk
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import DirectoryEntry, Entry, StoredEntry


def leads_nowhere(path: str) -> bool:
    """Return whether no file can be created through this link.

    It is circular, or the folder of its target does not exist.
    """
    if not os.path.islink(path):
        return False
    target = os.path.realpath(path)
    return os.path.islink(target) or not os.path.isdir(os.path.dirname(target))


def why_not_opened(path: str) -> str | None:
    """Return why a file cannot be opened or created for writing, None if it can."""
    if leads_nowhere(path):
        return "a broken link"
    mode = os.stat(path).st_mode if os.path.exists(path) else 0
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a socket" if stat.S_ISSOCK(mode) else None


def scan_directory(directory: str) -> list[Entry]:
    """Return the entries of a directory, in no particular order.

    Raises `InputError` if it cannot be read.
    """
    try:
        return store_of(directory).scan(directory)
    except OSError as error:
        raise unreadable_directory(error, directory) from error


def scan_input(directory: str) -> list[Entry]:
    """Return the entries of an input directory; a remote directory is listed once in a run."""
    if store_of(directory).needs_requests:
        return [StoredEntry(entry) for entry in list_stored_input(directory)]
    return scan_directory(directory)


def is_input_directory(path: str) -> bool:
    """Return whether an input is a directory; a remote directory is listed once in a run."""
    if store_of(path).needs_requests:
        return bool(list_stored_input(path))
    return os.path.isdir(path)


def list_stored_input(directory: str) -> list[DirectoryEntry]:
    """Return the entries of a remote directory, listed once in a run."""
    listings: dict[str, list[DirectoryEntry]] = kept_of_run("listings")
    found = listings.get(directory)
    if found is None:
        found = listings[directory] = store_of(directory).list_directory(directory)
    return found


def directory_exists(path: str) -> bool:
    """Return whether a directory exists; in an object store, whether the prefix has objects.

    Raises `KafkaIndexError` if the store cannot be reached or the path cannot be inspected.
    """
    return store_of(path).is_directory(path)


def matches(pattern: str) -> list[str]:
    """Return the local paths that match a glob, sorted.

    Raises `InputError` if a folder that could contain a match cannot be read.
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
    """Return a value that is equal for all paths of one directory.

    Raises `InputError` if it cannot be inspected.
    """
    try:
        return store_of(directory).identity(directory)
    except OSError as error:
        raise unreadable_directory(error, directory) from error
