"""Load a partition like a broker at startup: sanity checks, recovery, leader epochs and producers.

`core.log.append.partition_log_writer` uses `LogLoader` to change the files of a partition.
`core.startup.partition_loading` uses it to predict the changes of a broker, without writing.
Source: Kafka's ``LogLoader.load``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.names import LEADER_EPOCH_CHECKPOINT
from kafka_index.core.format.records import MAGIC_RECORD_BATCH
from kafka_index.core.fs.durable_files import AtomicFile
from kafka_index.core.log.append.incoming_batches import AppendOrigin, IncomingBatches
from kafka_index.core.log.append.log_segment_writer import floor_segment
from kafka_index.core.log.append.producer_state_manager import ProducerStateManager, ReplayedSegment
from kafka_index.core.logdir.metadata_files import read_text


class EpochFile:
    """The leader epochs of a partition and their checkpoint file.

    A missing file is created. Raises `InputError` or `InvalidEpochError` if the file is malformed.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
        text = read_text(self._path)
        if text is None:
            text = ""
            self._write(text)
        self.cache = LeaderEpochCache.from_text(text, path=self._path)

    def assign(self, batches: IncomingBatches) -> None:
        has_changed = False
        for row, epoch, base_offset in batches.epoch_starts():
            if batches.columns.magic[row] >= MAGIC_RECORD_BATCH:
                has_changed |= self.cache.assign(epoch, base_offset)
            elif self.cache.entries:
                self.cache = LeaderEpochCache()
                has_changed = True
        self._write_changes(changed=has_changed)

    def assign_recovered(self, batches: IncomingBatches) -> None:
        """Assign the leader epochs of the batches of a recovered segment."""
        has_changed = False
        for _, epoch, base_offset in batches.epoch_starts():
            has_changed |= self.cache.assign_from_batch(epoch, base_offset)
        self._write_changes(changed=has_changed)

    def truncate_from_end(self, offset: int) -> None:
        """Remove the leader epochs that start at or above an offset."""
        self._write_changes(changed=self.cache.truncate_from_end(offset))

    def truncate_from_start(self, offset: int) -> None:
        self._write_changes(changed=self.cache.truncate_from_start(offset))

    def restore(self, entries: tuple[EpochEntry, ...]) -> None:
        has_changed = self.cache.entries != entries
        self.cache = LeaderEpochCache(entries)
        self._write_changes(changed=has_changed)

    def clear(self) -> None:
        self.cache = LeaderEpochCache()
        self._write(self.cache.text())

    def _write_changes(self, *, changed: bool) -> None:
        if changed:
            self._write(self.cache.text())

    def _write(self, text: str) -> None:
        with AtomicFile(self._path, scratch_path=f"{self._path}.tmp") as file:
            file.write(text.encode())
            file.commit()


#: Reason code of a segment whose recovery found decreasing offsets (``InvalidOffsetException``).
OFFSET_BACKWARD: Final = "offset_backward"


class OffsetsGoBackError(Exception):
    """Recovery found a batch whose offset is not above the last offset index entry.

    The loader then truncates the ``.log`` file to 0 bytes.
    """


class LoadingSegment(ReplayedSegment, Protocol):
    def passes_sanity_check(self) -> bool:
        """Return whether loading leaves the segment unchanged (``LogSegment.sanityCheck``)."""

    def recover(self) -> int:
        """Rebuild the indexes and truncate invalid batches; return the number of removed bytes.

        Raises `OffsetsGoBackError` if all batches must be removed.
        """

    def stored_batches(self) -> Iterator[IncomingBatches]:
        """Yield the batches that remain after recovery, without verifying checksums again."""

    def append_aborted(self, aborted: NDArray[np.void]) -> None: ...

    def truncate_fully(self) -> int:
        """Remove all batches (``LogSegment.truncateTo``); return the number of removed bytes."""

    def release(self) -> None:
        """Release the memory of a recovered segment."""

    def next_offset(self) -> int:
        """Return the offset after the segment's last batch (``LogSegment.readNextOffset``)."""

    def resize_indexes(self) -> None:
        """Resize the indexes of the active segment to their maximum size."""


Segment = TypeVar("Segment", bound=LoadingSegment)


class LoadingFiles(Protocol[Segment]):
    """The segments of a partition that is being loaded, and operations on its segments."""

    segments: list[Segment]

    def open_segments(self) -> Iterator[Segment]:
        """Open the segments in the directory, in order of base offset."""

    def create_segment(self, base_offset: int) -> Segment: ...

    def delete_segment(self, segment: Segment) -> None: ...

    def check_closed(self, segment: Segment) -> None:
        """Check the active segment after a clean shutdown. An exception stops loading."""

    def check_log_start(self, log_start_offset: int, log_end_offset: int) -> None:
        """Check a log whose end is below its start offset. An exception prevents its deletion."""


@dataclass(frozen=True, slots=True)
class LoadedOffsets:
    """The log start offset, log end offset and recovery point of a loaded partition."""

    log_start_offset: int
    log_end_offset: int
    recovery_point: int


@dataclass(frozen=True, slots=True)
class LoadConditions:
    """Whether the last shutdown was clean, and the checkpoints of a partition to load.

    Attributes
    ----------
    is_clean
        True if the data directory has the clean shutdown file.
    recovery_point, log_start_offset
        The partition's entries in the checkpoints of the data directory, 0 if there are none.
    is_deleted
        True for a partition whose deletion was interrupted. Nothing is recovered, and the log end
        is not determined.
    """

    is_clean: bool
    recovery_point: int = 0
    log_start_offset: int = 0
    is_deleted: bool = False


class LogLoader(Generic[Segment]):
    """Loads the segments of a partition into `files`, and its leader epochs and producers.

    Attributes
    ----------
    reasons
        Why segments are deleted, truncated or rebuilt: a code and a detail, keyed by base offset.
    """

    def __init__(
        self,
        files: LoadingFiles[Segment],
        epochs: EpochFile,
        new_producer_state: Callable[[], ProducerStateManager],
        conditions: LoadConditions,
    ) -> None:
        self._files = files
        self._epochs = epochs
        self._new_producer_state = new_producer_state
        self._conditions = conditions
        self.producer_state = new_producer_state()
        self.reasons: dict[int, str] = {}

    def load(self) -> LoadedOffsets:
        """Load the partition; after an unclean shutdown, also recover its unflushed segments."""
        files, conditions = self._files, self._conditions
        log_start = conditions.log_start_offset
        self._load_segments()
        if conditions.is_deleted:
            end: int | None = 0
        else:
            if not conditions.is_clean:
                self._recover_unflushed()
            end = self._find_log_end()
        if not files.segments:
            files.segments.append(files.create_segment(0 if conditions.is_deleted else log_start))
        active = files.segments[-1]
        log_end = active.next_offset() if end is None else end
        if not conditions.is_deleted:
            active.resize_indexes()
        self._epochs.truncate_from_end(log_end)
        self._epochs.truncate_from_start(log_start)
        producer_state = self.producer_state
        producer_state.remove_stray_snapshots([segment.base_offset for segment in files.segments])
        start = max(log_start, files.segments[0].base_offset)
        producer_state.rebuild(
            files.segments, start, log_end, after_clean_shutdown=conditions.is_clean
        )
        is_durable = conditions.is_clean and end is not None
        recovery_point = log_end if is_durable else min(conditions.recovery_point, log_end)
        # UnifiedLog.updateLogStartOffset
        return LoadedOffsets(start, log_end, max(recovery_point, start))

    def _load_segments(self) -> None:
        segments = self._files.segments
        for segment in self._files.open_segments():
            if not segment.passes_sanity_check():
                self._set_reason(
                    segment, "no_index: the .index is missing, or the .txnindex is corrupt"
                )
                self._recover(segment)
            segments.append(segment)

    def _recover_unflushed(self) -> None:
        segments = self._files.segments
        first = floor_segment(segments, self._conditions.recovery_point)
        for number in range(first, len(segments)):
            segment = segments[number]
            try:
                truncated_bytes = self._recover(segment)
            except OffsetsGoBackError as error:
                self._set_reason(segment, f"{OFFSET_BACKWARD}: {error}")
                truncated_bytes = segment.truncate_fully()
            segment.release()
            if truncated_bytes:
                reason = f"after_cut: segment {segment.base_offset} is truncated"
                self._delete(segments[number + 1 :], reason)
                return

    def _recover(self, segment: Segment) -> int:
        """Recover a segment (``LogLoader.recoverSegment``); return how many bytes are truncated."""
        producer_state = self._new_producer_state()
        producer_state.rebuild(
            self._files.segments,
            self._conditions.log_start_offset,
            segment.base_offset,
            after_clean_shutdown=False,
        )
        truncated_bytes = segment.recover()
        if truncated_bytes:
            self._set_reason(
                segment, f"invalid_batch: the batch at byte {segment.size_bytes} is invalid"
            )
        for batches in segment.stored_batches():
            count = len(batches)
            aborted = producer_state.producers.append(
                batches, np.arange(1, count + 1), 0, count, AppendOrigin.REPLICATION
            )
            segment.append_aborted(aborted)
            self._epochs.assign_recovered(batches)
            producer_state.end_offset = int(batches.columns.last_offset[-1]) + 1
        producer_state.take_snapshot()
        return truncated_bytes

    def _find_log_end(self) -> int | None:
        """Return the log end offset, None if no segment exists or all segments are deleted.

        A broker deletes all segments if the log end offset is below the log start offset.
        """
        segments, start = self._files.segments, self._conditions.log_start_offset
        if not segments:
            return None
        if self._conditions.is_clean:
            self._files.check_closed(segments[-1])
        end = segments[-1].next_offset()
        if end >= start:
            return end
        self._files.check_log_start(start, end)
        reason = (
            f"log_start_above_log_end: the log ends at offset {end}, below the log start offset "
            f"{start}"
        )
        self._delete(list(segments), reason)
        self._epochs.clear()
        self.producer_state.start_at(start)
        return None

    def _delete(self, segments: Sequence[Segment], reason: str) -> None:
        for segment in segments:
            self._files.segments.remove(segment)
            self._files.delete_segment(segment)
            self.producer_state.drop_snapshot(segment.base_offset)
            self.reasons[segment.base_offset] = reason

    def _set_reason(self, segment: Segment, reason: str) -> None:
        self.reasons[segment.base_offset] = reason
