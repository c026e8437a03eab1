"""The files that a target folder holds already, and the folders that a target has."""

from __future__ import annotations

import os
import threading
from functools import cached_property, lru_cache

from kafka_index.errors import KafkaIndexError
from kafka_index.stores import DirectoryEntry, is_remote, scheme_of, store_of
from kafka_index.stores.uris import OBJECT_SCHEMES


class TargetFiles:
    """The files of a target folder. One of a store is listed once, when first asked for.

    Parameters
    ----------
    directory : str
        Path or URI.
    is_new : bool
        Whether nothing is there (`is_new_folder`).
    """

    def __init__(self, directory: str, *, is_new: bool = False) -> None:
        self.directory = directory
        self._is_remote = is_remote(directory)
        self._is_new = is_new

    def exists(self, path: str) -> bool:
        """Return whether there is a file."""
        if self._is_remote:
            return path in self._listed
        return os.path.exists(path)

    def holds(self, path: str, data: bytes) -> bool:
        """Return whether there is a file with these bytes."""
        try:
            if self._is_remote:
                found = self._listed.get(path)
                if found is None or found.size_bytes != len(data):
                    return False
            elif os.stat(path).st_size != len(data):
                return False
            return store_of(path).read(path) == data
        except (OSError, KafkaIndexError):
            # It is about to be replaced; whatever is wrong there shows then.
            return False

    @cached_property
    def _listed(self) -> dict[str, DirectoryEntry]:
        if self._is_new:
            return {}
        found = store_of(self.directory).list_directory(self.directory)
        return {entry.path: entry for entry in found if not entry.is_directory}


def is_new_folder(directory: str, run_id: str) -> bool:
    """Return whether a folder of an object store was not there when the run began to look.

    One request tells it of all folders of a target, so that none is asked for what it cannot have.
    Whatever is there by now, an attempt of the same run has put: no other run holds the target.
    """
    if scheme_of(directory) not in OBJECT_SCHEMES:
        return False
    root, name = os.path.split(directory)
    try:
        # Threads begin together, and one of them lists.
        with _listing:
            return name not in _folders_before(root, run_id)
    except KafkaIndexError:
        # Whatever is wrong there shows when something is written.
        return False


_listing = threading.Lock()


@lru_cache(4)
def _folders_before(root: str, run_id: str) -> frozenset[str]:
    del run_id
    found = store_of(root).list_directory(root)
    return frozenset(os.path.basename(entry.path) for entry in found if entry.is_directory)
