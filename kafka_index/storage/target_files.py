"""The files that a target folder holds already."""

from __future__ import annotations

import os
from functools import cached_property

from kafka_index.errors import KafkaIndexError
from kafka_index.stores import DirectoryEntry, is_remote, store_of


class TargetFiles:
    """The files of a target folder. One of a store is listed once, when first asked for.

    Parameters
    ----------
    directory : str
        Path or URI.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._is_remote = is_remote(directory)

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
        found = store_of(self.directory).list_directory(self.directory)
        return {entry.path: entry for entry in found if not entry.is_directory}
