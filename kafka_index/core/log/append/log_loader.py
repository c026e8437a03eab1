"""Loading a partition: the sequence of steps, the reasons for each, and the leader epochs.

`core.log.append.partition_log_writer` applies the steps to the files of a writable log.
`core.startup.partition_loading` only computes the actions of a broker. Source: Kafka's
``LogLoader.load``.
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
    """The leader epochs of a partition and their checkpoint, which is created empty.

    Raises `InputError` or `InvalidEpochError` if the file is malformed.
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
        self._write_if(changed=has_changed)

    def assign_recovered(self, batches: IncomingBatches) -> None:
        """Record the epochs of batches like recovery does."""
        has_changed = False
        for _, epoch, base_offset in batches.epoch_starts():
            has_changed |= self.cache.assign_from_batch(epoch, base_offset)
        self._write_if(changed=has_changed)

    def truncate_from_end(self, offset: int) -> None:
        """Remove the epochs that start at or above an offset."""
        self._write_if(changed=self.cache.truncate_from_end(offset))

    def truncate_from_start(self, offset: int) -> None:
        self._write_if(changed=self.cache.truncate_from_start(offset))

    def restore(self, entries: tuple[EpochEntry, ...]) -> None:
        has_changed = self.cache.entries != entries
        self.cache = LeaderEpochCache(entries)
        self._write_if(changed=has_changed)

    def clear(self) -> None:
        self.cache = LeaderEpochCache()
        self._write(self.cache.text())

    def _write_if(self, *, changed: bool) -> None:
        if changed:
            self._write(self.cache.text())

    def _write(self, text: str) -> None:
        with AtomicFile(self._path, scratch_path=f"{self._path}.tmp") as file:
            file.write(text.encode())
            file.commit()


#: Code for a recovery that fails because offsets decrease (``InvalidOffsetException``).
OFFSET_BACKWARD: Final = "offset_backward"


class OffsetsGoBackError(Exception):
    """Recovery found an offset that is not above the last index entry.

    The whole log is truncated.
    """


class LoadingSegment(ReplayedSegment, Protocol):
    def passes_sanity_check(self) -> bool:
        """Return whether loading leaves it unchanged (``LogSegment.sanityCheck``)."""

    def recover(self) -> int:
        """Rebuild its indexes and truncate its log; return the number of truncated bytes.

        Raises `OffsetsGoBackError` if the whole log must be truncated.
        """

    def stored_batches(self) -> Iterator[IncomingBatches]:
        """Yield the batches that remain after recovery, without verifying them again."""

    def append_aborted(self, aborted: NDArray[np.void]) -> None: ...

    def truncate_fully(self) -> int:
        """Truncate the whole log (``LogSegment.truncateTo``); return the truncated bytes."""

    def release(self) -> None:
        """Release the memory of a recovered segment."""

    def next_offset(self) -> int:
        """Return the offset after its last batch (``LogSegment.readNextOffset``)."""

    def resize_indexes(self) -> None:
        """Resize the indexes of the active segment to their maximum size."""


Segment = TypeVar("Segment", bound=LoadingSegment)


class LoadingFiles(Protocol[Segment]):
    """The segments of a partition during loading, and the operations on them."""

    segments: list[Segment]

    def open_segments(self) -> Iterator[Segment]:
        """Open the segments in the directory, in order of base offset."""

    def create_segment(self, base_offset: int) -> Segment: ...

    def delete_segment(self, segment: Segment) -> None: ...

    def check_closed(self, segment: Segment) -> None:
        """Check the active segment after a clean shutdown; raise to stop loading."""

    def check_log_start(self, log_start_offset: int, log_end_offset: int) -> None:
        """Check a log that ends before its start, before all of it is deleted."""


@dataclass(frozen=True, slots=True)
class LoadedOffsets:
    """The offsets of a loaded log, absolute."""

    log_start_offset: int
    log_end_offset: int
    recovery_point: int


@dataclass(frozen=True, slots=True)
class LoadConditions:
    """The state with which a partition is loaded.

    `is_clean` is True if its data directory has the clean shutdown file. Offsets are from the
    checkpoints, 0 if missing. If `is_deleted`, nothing is recovered, and the log end is not
    determined.
    """

    is_clean: bool
    recovery_point: int = 0
    log_start_offset: int = 0
    is_deleted: bool = False


class LogLoader(Generic[Segment]):
    """Loads a partition with its leader epochs and producers.

    Fills the segments of `files`. `reasons` has a code and a detail for each segment that is
    deleted, truncated or rebuilt, keyed by base offset.
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
        """Load the partition; after an unclean shutdown, recover unflushed segments first."""
        files, conditions = self._files, self._conditions
        log_start = conditions.log_start_offset
        self._load_segments()
        if conditions.is_deleted:
            end: int | None = 0
        else:
            if not conditions.is_clean:
                self._recover_unflushed()
            end = self._end_or_nothing()
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
        point = log_end if is_durable else min(conditions.recovery_point, log_end)
        # UnifiedLog.updateLogStartOffset
        return LoadedOffsets(start, log_end, max(point, start))

    def _load_segments(self) -> None:
        segments = self._files.segments
        for segment in self._files.open_segments():
            if not segment.passes_sanity_check():
                self._note(segment, "no_index: its .index is missing, or its .txnindex wrong")
                self._recover(segment)
            segments.append(segment)

    def _recover_unflushed(self) -> None:
        segments = self._files.segments
        first = floor_segment(segments, self._conditions.recovery_point)
        for place in range(first, len(segments)):
            segment = segments[place]
            try:
                cut = self._recover(segment)
            except OffsetsGoBackError as error:
                self._note(segment, f"{OFFSET_BACKWARD}: {error}")
                cut = segment.truncate_fully()
            segment.release()
            if cut:
                reason = f"after_cut: the segment at {segment.base_offset} is cut"
                self._delete(segments[place + 1 :], reason)
                return

    def _recover(self, segment: Segment) -> int:
        """Recover a segment (``LogLoader.recoverSegment``); return the truncated bytes."""
        producer_state = self._new_producer_state()
        producer_state.rebuild(
            self._files.segments,
            self._conditions.log_start_offset,
            segment.base_offset,
            after_clean_shutdown=False,
        )
        cut = segment.recover()
        if cut:
            self._note(segment, f"invalid_batch: at byte {segment.size_bytes}")
        for batches in segment.stored_batches():
            count = len(batches)
            aborted = producer_state.producers.append(
                batches, np.arange(1, count + 1), 0, count, AppendOrigin.REPLICATION
            )
            segment.append_aborted(aborted)
            self._epochs.assign_recovered(batches)
            producer_state.end_offset = int(batches.columns.last_offset[-1]) + 1
        producer_state.take_snapshot()
        return cut

    def _end_or_nothing(self) -> int | None:
        """Return the log end, None if there are no segments or the log ends before its start."""
        segments, start = self._files.segments, self._conditions.log_start_offset
        if not segments:
            return None
        if self._conditions.is_clean:
            self._files.check_closed(segments[-1])
        end = segments[-1].next_offset()
        if end >= start:
            return end
        self._files.check_log_start(start, end)
        reason = f"log_start_above_log_end: log start {start}, log end {end}"
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

    def _note(self, segment: Segment, reason: str) -> None:
        self.reasons[segment.base_offset] = reason
