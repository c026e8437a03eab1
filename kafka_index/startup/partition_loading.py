"""Loading a partition as a starting broker does, without touching its files.

Source: Kafka's ``LogLoader.load``, in its order. What is done to producers is in
`kafka_index.growing`; the snapshots that a broker would write are kept in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kafka_index.errors import CorruptLogError, CorruptSnapshotError, InputError, InvalidEpochError
from kafka_index.growing.growing_segment import Clock, floor_segment
from kafka_index.growing.incoming_batches import IncomingBatches
from kafka_index.growing.producer_state_manager import ProducerStateManager, SnapshotFiles
from kafka_index.growing.settings import LogSettings
from kafka_index.layout.names import LEADER_EPOCH_CHECKPOINT
from kafka_index.startup.found_files import FoundFiles
from kafka_index.startup.loaded_segment import LoadedSegment, OffsetsGoBackError
from kafka_index.startup.prediction import LoadedLog, StartRefusedError
from kafka_index.state.leader_epochs import LeaderEpochCache
from kafka_index.state.producer_append import AppendOrigin
from kafka_index.state.snapshots import decode_snapshot, snapshot_path
from kafka_index.storage.log_directory import read_checkpoint_text


class PredictedSnapshots(SnapshotFiles):
    """The snapshots of a partition directory with the changes that a broker would make.

    Attributes
    ----------
    bytes_read : int
        Of the files.
    """

    def __init__(self, directory: str, offsets: Iterable[int]) -> None:
        super().__init__(directory)
        self._offsets = set(offsets)
        self._written: dict[int, bytes] = {}
        self.bytes_read = 0

    def offsets(self) -> list[int]:
        """Return their offsets, in order."""
        return sorted(self._offsets)

    def load_latest(
        self, offsets: Iterable[int]
    ) -> tuple[int | None, NDArray[np.void] | None, list[tuple[int, CorruptSnapshotError]]]:
        """Read the latest that is not damaged."""
        damaged: list[tuple[int, CorruptSnapshotError]] = []
        for offset in reversed(list(offsets)):
            data = self._written.get(offset)
            if data is None:
                found, entries, faults = super().load_latest([offset])
                path = snapshot_path(self._directory, offset)
                self.bytes_read += os.path.getsize(path)
                if found is not None:
                    return found, entries, damaged
                damaged += faults
            else:
                return offset, decode_snapshot(data), damaged
        return None, None, damaged

    def write(self, offset: int, data: bytes, *, durable: bool) -> None:  # noqa: ARG002, nothing is durable here
        """Keep one in memory."""
        self._offsets.add(offset)
        self._written[offset] = data

    def remove(self, offset: int) -> None:
        """Forget one."""
        self._offsets.discard(offset)
        self._written.pop(offset, None)


@dataclass(slots=True)
class Loading:
    """How a partition is loaded.

    Parameters
    ----------
    is_clean : bool
        Whether the data directory has the marker of a clean shutdown.
    recovery_point, log_start_offset : int
        Its entries in the checkpoints; 0 without one.
    settings : LogSettings
        Of its topic.
    clock : callable
        Returns the time in ms.
    """

    is_clean: bool
    recovery_point: int
    log_start_offset: int
    settings: LogSettings
    clock: Clock


@dataclass(slots=True)
class LoadedPartition:
    """A partition after loading; a context manager's value, as its logs stay mapped.

    Parameters
    ----------
    log : LoadedLog
        What a broker has then.
    segments : list of LoadedSegment
        The segments that are left.
    deleted : dict of int to LoadedSegment
        Those that were deleted, by base offset.
    reasons : dict of int to str
        Why segments are deleted, cut or rebuilt.
    bytes_read : int
        Approximately, of logs and snapshots.
    """

    log: LoadedLog
    segments: list[LoadedSegment]
    deleted: dict[int, LoadedSegment]
    reasons: dict[int, str]
    bytes_read: int


@contextmanager
def load_partition(
    directory: str, files: FoundFiles, loading: Loading
) -> Iterator[LoadedPartition]:
    """Load a partition, and keep its logs mapped while the context lasts.

    Raises
    ------
    StartRefusedError
        A broker does not start with it.
    InputError
        A file cannot be read.
    """
    loader = _Loader(directory, files, loading)
    try:
        yield loader.load()
    finally:
        for segment in (*loader.segments, *loader.deleted.values()):
            segment.close()


@dataclass
class _Loader:
    directory: str
    files: FoundFiles
    loading: Loading
    segments: list[LoadedSegment] = field(default_factory=list)
    deleted: dict[int, LoadedSegment] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    def load(self) -> LoadedPartition:
        loading = self.loading
        self._epochs = _read_epochs(self.directory)
        self._snapshots = PredictedSnapshots(self.directory, self.files.snapshots)
        producers = self._producer_state()
        self._load_segments()
        if not loading.is_clean:
            self._recover_unflushed()
        end = self._end_or_nothing(producers)
        if not self.segments:
            self.segments.append(LoadedSegment(loading.log_start_offset, loading.settings))
        log_end = self.segments[-1].next_offset() if end is None else end
        self.segments[-1].check_active_indexes()
        self._epochs.truncate_from_end(log_end)
        start = max(loading.log_start_offset, self.segments[0].base_offset)
        self._epochs.truncate_from_start(loading.log_start_offset)
        producers.remove_stray_snapshots([segment.base_offset for segment in self.segments])
        with _refusals(self.directory):
            producers.rebuild(self.segments, start, log_end, after_clean_shutdown=loading.is_clean)
        entries = decode_snapshot(producers.producers.snapshot())
        recovered_all = loading.is_clean and end is not None
        point = log_end if recovered_all else min(loading.recovery_point, log_end)
        log = LoadedLog(
            start,
            log_end,
            # UnifiedLog.updateLogStartOffset
            max(point, start),
            tuple(segment.base_offset for segment in self.segments),
            self._epochs.entries,
            entries,
            producers.producers.first_unstable_offset,
        )
        return LoadedPartition(
            log,
            self.segments,
            self.deleted,
            self.reasons,
            self._snapshots.bytes_read
            + sum(one.bytes_read for one in (*self.segments, *self.deleted.values())),
        )

    def _producer_state(self) -> ProducerStateManager:
        return ProducerStateManager(
            self._snapshots, self.loading.settings.producer_id_expiration_ms, self.loading.clock
        )

    def _load_segments(self) -> None:
        for found in self.files.segments:
            segment = LoadedSegment(found.log.base_offset, self.loading.settings, found)
            try:
                if not segment.is_sound():
                    self._note(segment, "no_index: its .index is missing, or its .txnindex wrong")
                    self._recover(segment, self.segments)
            finally:
                # Closed with the others, whatever happens.
                self.segments.append(segment)

    def _recover_unflushed(self) -> None:
        first = floor_segment(self.segments, self.loading.recovery_point)
        for place in range(first, len(self.segments)):
            segment = self.segments[place]
            try:
                cut = self._recover(segment, self.segments)
            except OffsetsGoBackError as error:
                self._note(segment, f"offset_backward: {error.message}")
                cut = segment.cut_whole()
            segment.release()
            if cut:
                later = self.segments[place + 1 :]
                reason = f"after_cut: the segment at {segment.base_offset} is cut"
                self._delete(later, reason)
                return

    def _recover(self, segment: LoadedSegment, segments: Sequence[LoadedSegment]) -> int:
        """Recover a segment; return how many bytes are cut (``LogLoader.recoverSegment``)."""
        producers = self._producer_state()
        with _refusals(self.directory):
            producers.rebuild(
                segments,
                self.loading.log_start_offset,
                segment.base_offset,
                after_clean_shutdown=False,
            )
            cut = segment.recover()
            if cut:
                self._note(segment, f"invalid_batch: at byte {segment.size_bytes}")
            for batches in IncomingBatches.stored(segment.log, segment.base_offset):
                count = len(batches)
                producers.producers.append(
                    batches, np.arange(1, count + 1), 0, count, AppendOrigin.REPLICATION
                )
                for _, epoch, base_offset in batches.epoch_starts():
                    self._epochs.assign_from_batch(epoch, base_offset)
                producers.end_offset = int(batches.columns.last_offset[-1]) + 1
        producers.take_snapshot()
        return cut

    def _end_or_nothing(self, producers: ProducerStateManager) -> int | None:
        """Return the log end; None where there is no segment, or the log ends before its start."""
        if not self.segments:
            return None
        end = self.segments[-1].next_offset()
        start = self.loading.log_start_offset
        if end >= start:
            return end
        self._delete(
            list(self.segments), f"log_start_above_log_end: log start {start}, log end {end}"
        )
        self._epochs = LeaderEpochCache()
        producers.start_at(start)
        return None

    def _delete(self, segments: Sequence[LoadedSegment], reason: str) -> None:
        for segment in segments:
            self.segments.remove(segment)
            self.deleted[segment.base_offset] = segment
            self.reasons[segment.base_offset] = reason
            self._snapshots.remove(segment.base_offset)

    def _note(self, segment: LoadedSegment, reason: str) -> None:
        self.reasons[segment.base_offset] = reason


@contextmanager
def _refusals(directory: str) -> Iterator[None]:
    """Turn what producers and logs refuse into what keeps a broker from starting."""
    try:
        yield
    except StartRefusedError:
        raise
    except (CorruptLogError, InputError) as error:
        raise StartRefusedError(
            error.message,
            path=error.path or directory,
            position_bytes=error.position_bytes,
            expected=error.expected,
            found=error.found,
        ) from error


def _read_epochs(directory: str) -> LeaderEpochCache:
    path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
    try:
        return LeaderEpochCache.from_text(read_checkpoint_text(path) or "", path=path)
    except (InputError, InvalidEpochError) as error:
        raise StartRefusedError(
            error.message, path=path, expected=error.expected, found=error.found
        ) from error
