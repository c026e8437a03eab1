"""Opening a partition directory for appends: its lock, and the loading that a broker does.

Source: Kafka's ``LogLoader``. A broker holds the ``.lock`` of its data directory while it runs, and
so does a process for all its growing logs in one data directory.
"""

from __future__ import annotations

import os
import threading

import numpy as np

from kafka_index.errors import (
    CorruptIndexError,
    CorruptLogError,
    InputError,
    KafkaIndexError,
    PublishError,
)
from kafka_index.growing.epoch_file import EpochFile
from kafka_index.growing.growing_segment import GrowingLogSegment
from kafka_index.growing.incoming_batches import IncomingBatches
from kafka_index.growing.local_log import LocalLog
from kafka_index.growing.producer_state_manager import ProducerStateManager, SnapshotFiles
from kafka_index.layout.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_segment_file,
    segment_file_name,
)
from kafka_index.state.producer_append import AppendOrigin
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

    Raises
    ------
    InputError
        A cleaner was interrupted.
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


class LogLoader:
    """Loads a partition directory into a `LocalLog`, with its leader epochs and producers."""

    def __init__(
        self,
        local: LocalLog,
        epochs: EpochFile,
        producer_state: ProducerStateManager,
        log_start_offset: int,
    ) -> None:
        self._local = local
        self._epochs = epochs
        self._producer_state = producer_state
        self._log_start_offset = log_start_offset

    def load(self, *, was_clean: bool) -> None:
        """Load everything; after an unclean shutdown all segments are recovered first.

        Raises
        ------
        InputError
            The log was not closed, contrary to `was_clean`.
        CorruptLogError
            A broker would not start with a segment.
        """
        local, log_start_offset = self._local, self._log_start_offset
        for base_offset in self._base_offsets():
            self._load_segment(base_offset)
        if not was_clean:
            self._recover_all()
        if not local.segments:
            local.segments.append(local.open_segment(log_start_offset, local.jitter(), create=True))
        active = local.active_segment
        if was_clean:
            _check_closed(active)
        end_offset = active.next_offset()
        if end_offset < log_start_offset:
            raise InputError(
                "the log ends before the log start offset",
                path=local.directory,
                expected=f"{log_start_offset} or more",
                found=end_offset,
            )
        active.resize_indexes()
        self._epochs.truncate_from_end(end_offset)
        self._epochs.truncate_from_start(log_start_offset)
        producer_state = self._producer_state
        producer_state.remove_stray_snapshots([segment.base_offset for segment in local.segments])
        start = max(log_start_offset, local.segments[0].base_offset)
        producer_state.rebuild(local.segments, start, end_offset, after_clean_shutdown=was_clean)
        local.end_offset = end_offset
        local.recovery_point = end_offset if was_clean else 0

    def _base_offsets(self) -> list[int]:
        parsed = (parse_segment_file(name) for name in os.listdir(self._local.directory))
        return sorted(
            name.base_offset
            for name in parsed
            if name is not None and name.kind == LOG_SUFFIX and not name.transient
        )

    def _load_segment(self, base_offset: int) -> None:
        segments = self._local.segments
        segment = self._local.open_segment(base_offset, self._local.jitter())
        segments.append(segment)
        had_time_index = os.path.exists(segment.path(TIME_INDEX_SUFFIX))
        is_sound = os.path.exists(segment.path(OFFSET_INDEX_SUFFIX))
        if is_sound:
            if not had_time_index:
                segment.time_index.resize(0)
            try:
                segment.transaction_index.sanity_check()
            except CorruptIndexError:
                is_sound = False
        if not is_sound:
            self._recover(segment, segments[:-1])

    def _recover_all(self) -> None:
        segments = self._local.segments
        for place, segment in enumerate(segments):
            if self._recover(segment, segments[:place]):
                for later in segments[place + 1 :]:
                    later.delete()
                    self._producer_state.drop_snapshot(later.base_offset)
                del segments[place + 1 :]
                return

    def _recover(self, segment: GrowingLogSegment, earlier: list[GrowingLogSegment]) -> int:
        """Recover a segment with the producers of earlier ones; return how many bytes were cut."""
        local = self._local
        producer_state = ProducerStateManager(
            SnapshotFiles(local.directory), local.settings.producer_id_expiration_ms, local.clock
        )
        producer_state.rebuild(
            earlier, self._log_start_offset, segment.base_offset, after_clean_shutdown=False
        )
        lost = segment.recover()
        for batches in IncomingBatches.scan_chunks(segment.log.view, segment.base_offset):
            count = len(batches)
            aborted = producer_state.producers.append(
                batches, np.arange(1, count + 1), 0, count, AppendOrigin.REPLICATION
            )
            segment.transaction_index.append_many(aborted)
            self._epochs.assign_recovered(batches)
            producer_state.end_offset = int(batches.columns.last_offset[-1]) + 1
        producer_state.take_snapshot()
        return lost


def _check_closed(active: GrowingLogSegment) -> None:
    """Refuse the log of a writer that was killed: zero-filled indexes, or a torn last batch."""
    try:
        active.offset_index.sanity_check()
        active.time_index.sanity_check()
        end = active.read_end()
        if end.end_bytes != active.size_bytes:
            raise CorruptLogError(
                "no valid batch at a position that its index or its batches lead to"
            )
        if active.size_bytes and end.next_offset == active.base_offset:
            raise CorruptIndexError("no batch where its last entry points to")
    except KafkaIndexError as error:
        raise InputError(
            f"the log was not closed: {error.message}",
            path=active.log.path,
            hint="open it with was_clean=False to recover it",
        ) from error
