"""Opening a partition directory to append to it: its lock, and what a broker does when it starts.

Source: Kafka's ``LogLoader``. A broker holds the ``.lock`` of its data directory while it runs; so
do logs that grow here, all those of one data directory and process together.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np

from kafka_index.errors import (
    CorruptIndexError,
    CorruptLogError,
    InputError,
    KafkaIndexError,
    PublishError,
)
from kafka_index.growing.epoch_file import EpochFile
from kafka_index.growing.growing_segment import Clock, GrowingLogSegment
from kafka_index.growing.incoming_batches import IncomingBatches
from kafka_index.growing.producer_state_manager import ProducerStateManager
from kafka_index.growing.settings import LogSettings
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
from kafka_index.state.producers import AppendOrigin
from kafka_index.storage import DirectoryLock

_guard = threading.Lock()
_locks: dict[str, tuple[DirectoryLock, set[str]]] = {}


class PartitionHold:
    """Holds a partition directory.

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
        """Release it."""
        with _guard:
            held = _locks.get(self._parent)
            if held is None:
                return
            held[1].discard(self._directory)
            if not held[1]:
                held[0].release()
                del _locks[self._parent]


_MAKE_HINT = "let a broker start on the directory first, or move the file away"


def remove_leftovers(directory: str) -> None:
    """Remove what a broker removes first: deleted files, and indexes without their log.

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
                "a cleaner was interrupted in the partition", path=path, hint=_MAKE_HINT
            )
        is_orphan = (
            parsed.kind in INDEX_SUFFIXES
            and segment_file_name(parsed.base_offset, LOG_SUFFIX) not in names
        )
        is_deleted = parsed.transient == DELETED_SUFFIX and parsed.kind != SNAPSHOT_SUFFIX
        if is_deleted or (is_orphan and not parsed.transient):
            os.unlink(path)


class Loader:
    """Loads the segments of a partition directory, and brings epochs and producers to their end.

    Parameters
    ----------
    directory : str
        The partition directory.
    settings : LogSettings
        Of the topic.
    epochs : EpochFile
        Of the partition.
    producer_state : ProducerStateManager
        Of the partition, empty.
    make_jitter : callable
        Returns the roll jitter of a segment, in ms.
    clock : callable
        Returns the time in ms.
    """

    def __init__(
        self,
        directory: str,
        settings: LogSettings,
        epochs: EpochFile,
        producer_state: ProducerStateManager,
        make_jitter: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._epochs = epochs
        self._producer_state = producer_state
        self._make_jitter = make_jitter
        self._clock = clock
        self.segments: list[GrowingLogSegment] = []

    def load(self, log_start_offset: int, *, was_clean: bool) -> int:
        """Load everything; return the log end offset.

        Parameters
        ----------
        log_start_offset : int
            Kafka's checkpoint of it, 0 for none.
        was_clean : bool
            Whether the log was closed; otherwise all segments are recovered first.

        Raises
        ------
        InputError
            The files show that it was not closed.
        CorruptLogError
            A broker does not start with one of the logs.
        """
        for base_offset in self._base_offsets():
            self._load_segment(base_offset, log_start_offset)
        if not was_clean:
            self._recover_all(log_start_offset)
        if not self.segments:
            self.segments.append(self._segment(log_start_offset, create=True))
        active = self.segments[-1]
        if was_clean:
            _check_closed(active)
        end_offset = active.next_offset()
        if end_offset < log_start_offset:
            raise InputError(
                "the log ends before the log start offset",
                path=self._directory,
                expected=f"{log_start_offset} or more",
                found=end_offset,
            )
        active.resize_indexes()
        self._epochs.truncate_from_end(end_offset)
        self._epochs.truncate_from_start(log_start_offset)
        producer_state = self._producer_state
        producer_state.remove_stray_snapshots([segment.base_offset for segment in self.segments])
        start = max(log_start_offset, self.segments[0].base_offset)
        producer_state.rebuild(self.segments, start, end_offset, after_clean_shutdown=was_clean)
        return end_offset

    def close(self) -> None:
        """Close all files as they are."""
        for segment in self.segments:
            segment.close_handlers()

    def _base_offsets(self) -> list[int]:
        parsed = (parse_segment_file(name) for name in os.listdir(self._directory))
        return sorted(
            name.base_offset
            for name in parsed
            if name is not None and name.kind == LOG_SUFFIX and not name.transient
        )

    def _segment(self, base_offset: int, *, create: bool = False) -> GrowingLogSegment:
        return GrowingLogSegment(
            self._directory,
            base_offset,
            self._settings,
            create=create,
            roll_jitter_ms=self._make_jitter(),
            clock=self._clock,
        )

    def _load_segment(self, base_offset: int, log_start_offset: int) -> None:
        segment = self._segment(base_offset)
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
            self._recover(segment, log_start_offset)
        self.segments.append(segment)

    def _recover_all(self, log_start_offset: int) -> None:
        for place, segment in enumerate(list(self.segments)):
            before = self.segments
            self.segments = before[:place]
            lost = self._recover(segment, log_start_offset)
            self.segments = before
            if lost:
                for later in before[place + 1 :]:
                    later.delete()
                    self._producer_state.drop_snapshot(later.base_offset)
                del self.segments[place + 1 :]
                return

    def _recover(self, segment: GrowingLogSegment, log_start_offset: int) -> int:
        """Recover a segment, with the producers that the segments before it know of."""
        producer_state = ProducerStateManager(
            self._directory, self._settings.producer_id_expiration_ms, self._clock
        )
        producer_state.rebuild(
            self.segments, log_start_offset, segment.base_offset, after_clean_shutdown=False
        )
        lost = segment.recover()
        for batches in IncomingBatches.scan_chunks(segment.log.view, segment.base_offset):
            count = len(batches)
            aborted = producer_state.producers.append(
                batches, np.arange(1, count + 1), 0, count, AppendOrigin.REPLICATION
            )
            segment.transaction_index.append_many(aborted)
            for epoch, offset in _epoch_starts(batches):
                self._epochs.assign_recovered(epoch, offset)
            producer_state.end_offset = int(batches.columns.last_offset[-1]) + 1
        producer_state.take_snapshot()
        self._producer_state.adopt(producer_state)
        return lost


def _epoch_starts(batches: IncomingBatches) -> list[tuple[int, int]]:
    epochs = batches.columns.leader_epoch
    rows = [0, *((epochs[1:] != epochs[:-1]).nonzero()[0] + 1).tolist()]
    return [(int(epochs[row]), int(batches.columns.base_offset[row])) for row in rows]


def _check_closed(active: GrowingLogSegment) -> None:
    """Refuse the log of a writer that was killed: indexes full of zeros, or a torn end."""
    try:
        active.offset_index.sanity_check()
        active.time_index.sanity_check()
        end = active.read_end()
        if end.end_bytes != active.size_bytes:
            raise CorruptLogError("no valid batch where its index or its batches lead")
        if active.size_bytes and end.next_offset == active.base_offset:
            raise CorruptIndexError("no batch where its last entry points to")
    except KafkaIndexError as error:
        raise InputError(
            f"the log was not closed: {error.message}",
            path=active.log.path,
            hint="open it with was_clean=False to recover it",
        ) from error
