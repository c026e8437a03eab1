"""Loading of a partition as a starting broker does it, without changing its files.

The steps are those of `core.log.append.log_loader`. Files that a broker would write are kept in
memory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import (
    CorruptLogError,
    CorruptSnapshotError,
    DirectoryFailsError,
    InputError,
    InvalidEpochError,
    StartRefusedError,
    is_retriable,
)
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig
from kafka_index.core.format.names import LOG_SUFFIX, OFFSET_DIGITS, TopicPartition
from kafka_index.core.fs.registry import leads_nowhere, why_not_opened
from kafka_index.core.log.append.log_loader import (
    EpochFile,
    LoadConditions,
    LoadedOffsets,
    LogLoader,
    OffsetsGoBackError,
)
from kafka_index.core.log.append.log_segment_writer import Clock, floor_segment
from kafka_index.core.log.append.producer_state_manager import (
    Producers,
    ProducerStateManager,
    SnapshotFiles,
)
from kafka_index.core.log.append.settings import LogSettings, log_settings_of
from kafka_index.core.log.scan.log_offsets import SegmentSpan, split_segment
from kafka_index.core.log.state.snapshots import decode_snapshot, snapshot_path
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.startup.found_files import FoundFiles, find_files
from kafka_index.core.startup.loaded_segment import LoadedSegment, SegmentOverflowError
from kafka_index.core.startup.prediction import LoadedLog


class PredictedSnapshots(SnapshotFiles):
    """The snapshots of a partition directory, with the changes that a broker would make.

    `bytes_read` counts the bytes read from files.
    """

    def __init__(self, directory: str, offsets: Iterable[int]) -> None:
        super().__init__(directory)
        self._offsets = set(offsets)
        self._written: dict[int, bytes] = {}
        self.bytes_read = 0

    def offsets(self) -> list[int]:
        return sorted(self._offsets)

    def load_latest(
        self, offsets: Iterable[int]
    ) -> tuple[int | None, NDArray[np.void] | None, list[tuple[int, CorruptSnapshotError]]]:
        """Return the latest valid snapshot and its offset, and the corrupt ones before it."""
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
        """Keep a snapshot in memory.

        Raises `OffsetsGoBackError` if its path is a directory, socket, device or broken link:
        recovery then truncates the whole log. Raises `StartRefusedError` if it is a pipe: the
        broker waits until another process reads from it.
        """
        path = snapshot_path(self._directory, offset)
        if os.path.exists(path) and not os.path.isfile(path):
            if stat.S_ISFIFO(os.stat(path).st_mode):
                raise StartRefusedError("the snapshot to be written is a pipe", path=path)
            kind = "a directory" if os.path.isdir(path) else "no file"
            raise OffsetsGoBackError(f"the snapshot {path} is {kind}")
        if leads_nowhere(path):
            raise OffsetsGoBackError(f"the snapshot {path} is a broken link")
        self._offsets.add(offset)
        self._written[offset] = data

    def remove(self, offset: int) -> None:
        self._offsets.discard(offset)
        self._written.pop(offset, None)


class PredictedEpochs(EpochFile):
    """The leader epochs of a partition, kept only in memory."""

    def _write(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading(LoadConditions):
    """Settings and state with which a broker loads one partition.

    `clock` returns the time in ms. `is_offline` is True if the data directory is already offline.
    """

    settings: LogSettings
    clock: Clock
    is_offline: bool = False

    @classmethod
    def of(
        cls, root: DataDirectory, partition: TopicPartition, config: LogConfig, clock: Clock
    ) -> Loading:
        return cls(
            root.is_clean,
            root.recovery_point(partition),
            root.log_start_offset(partition) or 0,
            settings=log_settings_of(config, partition.topic),
            clock=clock,
        )


@dataclass(slots=True)
class LoadedPartition:
    """A partition after loading.

    Its logs stay mapped until the context ends.

    Attributes
    ----------
    segments
        The remaining segments.
    deleted
        The deleted segments, by base offset.
    reasons
        Why segments are deleted, truncated or rebuilt, by base offset.
    bytes_read
        Approximate number of bytes read from logs and snapshots.
    """

    files: FoundFiles
    log: LoadedLog
    segments: list[LoadedSegment]
    deleted: dict[int, LoadedSegment]
    reasons: dict[int, str]
    bytes_read: int


@contextmanager
def load_partition(
    partition: TopicPartition, directory: str, loading: Loading
) -> Iterator[LoadedPartition]:
    """Load a partition; its logs stay mapped until the context ends.

    Raises `StartRefusedError` if a broker does not start on it, and `InputError` if a file cannot
    be read.
    """
    predicted = _PredictedFiles(directory, find_files(partition, directory), loading.settings)
    try:
        yield _load_or_split(directory, predicted, loading)
    finally:
        for segment in predicted.opened:
            segment.close()


@dataclass
class _PredictedFiles:
    """The segments of a partition, opened read-only (`LoadingFiles`)."""

    directory: str
    files: FoundFiles
    settings: LogSettings
    segments: list[LoadedSegment] = field(default_factory=list)
    deleted: dict[int, LoadedSegment] = field(default_factory=dict)
    splits: dict[int, list[SegmentSpan]] = field(default_factory=dict)
    opened: list[LoadedSegment] = field(default_factory=list)

    def open_segments(self) -> Iterator[LoadedSegment]:
        for found in self.files.segments:
            spans = self.splits.get(found.log.base_offset)
            if spans is None:
                segments = [LoadedSegment(found.log.base_offset, self.settings, found)]
            else:
                segments = [
                    LoadedSegment(each.base_offset, self.settings, found, each) for each in spans
                ]
            self.opened += segments
            yield from segments

    def split(self, base_offset: int) -> None:
        """Split a segment and discard its loaded state.

        The producer snapshot at its base offset is deleted too.
        """
        found = next(one for one in self.files.segments if one.log.base_offset == base_offset)
        spans = split_segment(found.log, shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES))
        if not spans:
            raise StartRefusedError("an offset does not fit the segment", path=found.log.log_path)
        is_listed = any(one.base_offset == base_offset for one in self.segments)
        if not is_listed and spans[0].base_offset != base_offset:
            # ``LocalLog.replaceSegments`` does not replace a segment that is still being loaded.
            spans = [SegmentSpan(base_offset, 0, found.log.log_size_bytes), *spans]
        self.splits[base_offset] = spans
        self.files.snapshots = [each for each in self.files.snapshots if each != base_offset]
        self.segments, self.deleted = [], {}

    def create_segment(self, base_offset: int) -> LoadedSegment:
        path = os.path.join(self.directory, f"{base_offset:0{OFFSET_DIGITS}d}{LOG_SUFFIX}")
        kind = why_not_opened(path)
        if kind is not None:
            raise DirectoryFailsError(f"the log to be made is {kind}", path=path)
        return LoadedSegment(base_offset, self.settings)

    def delete_segment(self, segment: LoadedSegment) -> None:
        self.deleted[segment.base_offset] = segment

    def check_closed(self, segment: LoadedSegment) -> None:
        """Do nothing: a broker does not check closed segments."""

    def check_log_start(self, log_start_offset: int, log_end_offset: int) -> None:
        """Do nothing: a broker deletes the whole log."""


def _load_or_split(directory: str, files: _PredictedFiles, loading: Loading) -> LoadedPartition:
    """Load the partition; start over after each split (``LogLoader.retryOnOffsetOverflow``)."""
    while True:
        try:
            return _load(directory, files, loading)
        except SegmentOverflowError as error:
            files.split(error.base_offset)


def _load(directory: str, files: _PredictedFiles, loading: Loading) -> LoadedPartition:
    snapshots = PredictedSnapshots(directory, files.files.snapshots)
    with _refusals(directory):
        epochs = PredictedEpochs(directory)
        loader = LogLoader(
            files,
            epochs,
            lambda: ProducerStateManager(
                snapshots, loading.settings.producer_id_expiration_ms, loading.clock
            ),
            loading,
        )
        offsets = loader.load()
        producers = loader.producer_state.producers
        _look_up_unstable(files.segments, producers, offsets, loading)
    log = LoadedLog(
        offsets.log_start_offset,
        offsets.log_end_offset,
        offsets.recovery_point,
        tuple(segment.base_offset for segment in files.segments),
        epochs.cache.entries,
        decode_snapshot(producers.snapshot()),
        producers.first_unstable_offset,
    )
    bytes_read = snapshots.bytes_read + sum(one.bytes_read for one in files.opened)
    return LoadedPartition(
        files.files, log, files.segments, files.deleted, loader.reasons, bytes_read
    )


def _look_up_unstable(
    segments: Sequence[LoadedSegment],
    producers: Producers,
    offsets: LoadedOffsets,
    loading: Loading,
) -> None:
    """Search for the first unstable offset, which can fail as in a broker.

    Source: ``UnifiedLog.maybeIncrementFirstUnstableOffset``, ``LocalLog.read``.
    """
    unstable = (producers.first_unstable_offset, producers.first_replayed_transaction)
    first = min((offset for offset in unstable if offset is not None), default=None)
    if first is None:
        return
    if loading.is_offline:
        raise StartRefusedError(
            f"a transaction is open from offset {first}: a broker exits if the data directory is "
            "offline when it looks the transaction up"
        )
    offset = max(first, offsets.log_start_offset)
    if not segments[0].base_offset <= offset < offsets.log_end_offset:
        return
    for segment in segments[floor_segment(segments, offset) :]:
        if segment.offset_to_position(offset) is not None:
            return


@contextmanager
def _refusals(directory: str) -> Iterator[None]:
    """Convert errors on which a broker fails to `StartRefusedError`."""
    try:
        yield
    except StartRefusedError:
        raise
    except OffsetsGoBackError as error:
        raise DirectoryFailsError(str(error), path=directory) from error
    except (CorruptLogError, InputError, InvalidEpochError) as error:
        if is_retriable(error):
            raise
        raise StartRefusedError.of(error, directory) from error
