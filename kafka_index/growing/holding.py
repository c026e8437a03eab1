"""Who may write in a data directory: one process, and in it one log per partition.

A broker holds the ``.lock`` of its data directory while it runs; so do logs that grow here, all of
one data directory together.
"""

from __future__ import annotations

import os
import threading

from kafka_index.errors import PublishError
from kafka_index.storage import DirectoryLock

_guard = threading.Lock()
_locks: dict[str, tuple[DirectoryLock, set[str]]] = {}


class PartitionHold:
    """Hold a partition directory.

    Parameters
    ----------
    directory : str
        The partition directory, which exists.

    Raises
    ------
    PublishError
        A broker, or another process or log, holds it.
    """

    def __init__(self, directory: str) -> None:
        self._directory = os.path.realpath(directory)
        self._parent = os.path.dirname(self._directory)
        with _guard:
            held = _locks.get(self._parent)
            if held is None:
                lock = DirectoryLock.of_data_directories([self._parent])
                lock.__enter__()
                held = _locks[self._parent] = lock, set()
            if self._directory in held[1]:
                raise PublishError(
                    "this process already appends to the partition",
                    path=self._directory,
                    hint="close the other log first",
                )
            held[1].add(self._directory)

    def release(self) -> None:
        """Let it go."""
        with _guard:
            held = _locks.get(self._parent)
            if held is None:
                return
            held[1].discard(self._directory)
            if not held[1]:
                held[0].release()
                del _locks[self._parent]
