"""The files of a growing log: a hold on its directory, and its segments while it is loaded.

They are changed as a broker changes them, except that a loss is refused where a broker would delete
records, or hide some, without anyone's asking. A broker holds the ``.lock`` of its data directory
while it runs, and so does a process for all its growing logs in one data directory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

from kafka_index.errors import (
    CorruptIndexError,
    CorruptLogError,
    InputError,
    KafkaIndexError,
    PublishError,
)
from kafka_index.growing.growing_segment import GrowingLogSegment
from kafka_index.growing.local_log import LocalLog
from kafka_index.growing.log_loader import LoadConditions
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


class GrowingFiles:
    """The segments of a `LocalLog` that is being loaded."""

    def __init__(self, local: LocalLog, conditions: LoadConditions) -> None:
        self._local = local
        self._conditions = conditions
        self.segments = local.segments

    def open_segments(self) -> Iterator[GrowingLogSegment]:
        """Open the segments in the directory, by base offset."""
        local = self._local
        parsed = (parse_segment_file(name) for name in os.listdir(local.directory))
        for base_offset in sorted(
            name.base_offset
            for name in parsed
            if name is not None and name.kind == LOG_SUFFIX and not name.transient
        ):
            yield local.open_segment(base_offset, local.jitter())

    def create_segment(self, base_offset: int) -> GrowingLogSegment:
        """Create a segment."""
        return self._local.open_segment(base_offset, self._local.jitter(), create=True)

    def delete_segment(self, segment: GrowingLogSegment) -> None:
        """Delete the files of a segment."""
        segment.delete()

    def check_active(self, segment: GrowingLogSegment) -> None:
        """Refuse the log of a writer that was killed if its marker calls it closed.

        Raises `InputError` if its indexes are zero-filled, or its last batch is cut off.
        """
        if not self._conditions.is_clean:
            return
        try:
            segment.offset_index.sanity_check()
            segment.time_index.sanity_check()
            end = segment.read_end()
            if end.end_bytes != segment.size_bytes:
                raise CorruptLogError(
                    "no valid batch at a position that its index or its batches lead to"
                )
            if segment.size_bytes and end.next_offset == segment.base_offset:
                raise CorruptIndexError("no batch where its last entry points to")
        except KafkaIndexError as error:
            raise InputError(
                f"the log was not closed: {error.message}",
                path=segment.log.path,
                hint="open it with was_clean=False to recover it",
            ) from error

    def check_log_start(self, log_end_offset: int) -> None:
        """Refuse a log whose start lies after its end: a broker would delete all of it."""
        raise InputError(
            "the log ends before the log start offset",
            path=self._local.directory,
            expected=f"{self._conditions.log_start_offset} or more",
            found=log_end_offset,
        )
