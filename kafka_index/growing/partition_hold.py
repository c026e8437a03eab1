"""Opening a partition directory for appends: its lock, and what is removed from it first.

A broker holds the ``.lock`` of its data directory while it runs, and so does a process for all its
growing logs in one data directory.
"""

from __future__ import annotations

import os
import threading

from kafka_index.errors import InputError, PublishError
from kafka_index.layout.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    parse_segment_file,
    segment_file_name,
)
from kafka_index.storage import DirectoryLock

_guard = threading.Lock()
_locks: dict[str, tuple[DirectoryLock, set[str]]] = {}


class PartitionHold:
    """Holds a partition directory, which must exist, against brokers, processes and other logs."""

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
        """Release it."""
        with _guard:
            held = _locks.get(self._parent)
            if held is None:
                return
            held[1].discard(self._directory)
            if not held[1]:
                held[0].release()
                del _locks[self._parent]


_CLEANER_HINT = "let a broker start on the directory first, or move the file away"


def remove_leftovers(directory: str) -> None:
    """Remove the files that a broker removes first: deleted ones, and indexes without a log.

    Raises `InputError` if a cleaner was interrupted.
    """
    names = {name: parse_segment_file(name) for name in sorted(os.listdir(directory))}
    for name, parsed in names.items():
        if parsed is None:
            continue
        path = os.path.join(directory, name)
        if parsed.transient in (SWAP_SUFFIX, CLEANED_SUFFIX):
            raise InputError(
                "a cleaner was interrupted in the partition", path=path, hint=_CLEANER_HINT
            )
        is_orphan = (
            parsed.kind in INDEX_SUFFIXES
            and segment_file_name(parsed.base_offset, LOG_SUFFIX) not in names
        )
        is_deleted = parsed.transient == DELETED_SUFFIX and parsed.kind != SNAPSHOT_SUFFIX
        if is_deleted or (is_orphan and not parsed.transient):
            os.unlink(path)
