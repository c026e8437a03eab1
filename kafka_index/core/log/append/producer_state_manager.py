"""The producer snapshots of a writable log: when they are written, loaded and deleted.

Sources: Kafka's ``ProducerStateManager`` and ``UnifiedLog.rebuildProducerState``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptSnapshotError
from kafka_index.core.fs.durable_files import AtomicFile
from kafka_index.core.fs.store import Bytes
from kafka_index.core.log.append.incoming_batches import IncomingBatches
from kafka_index.core.log.append.log_segment_writer import Clock, floor_segment
from kafka_index.core.log.append.producers import Producers
from kafka_index.core.log.scan.file_records import LogOffsetPosition
from kafka_index.core.log.state.snapshots import (
    is_out_of_range,
    list_snapshots,
    load_latest_snapshot,
    snapshot_path,
)


class ReplayedSegment(Protocol):
    """A segment whose batches are replayed to rebuild producer state."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """Size of its batches."""

    def offset_to_position(self, offset: int) -> LogOffsetPosition | None:
        """Find the batch that contains an offset, or the first one after it, None if none."""

    def bytes_of(self, start: int, end: int) -> Bytes:
        """Return a byte range of its log."""


class SnapshotFiles:
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def offsets(self) -> list[int]:
        return list_snapshots(self._directory)

    def load_latest(
        self, offsets: Iterable[int]
    ) -> tuple[int | None, NDArray[np.void] | None, list[tuple[int, CorruptSnapshotError]]]:
        """Read the latest valid snapshot, like `load_latest_snapshot`."""
        return load_latest_snapshot(self._directory, offsets)

    def write(self, offset: int, data: bytes, *, durable: bool) -> None:
        path = snapshot_path(self._directory, offset)
        with AtomicFile(path, scratch_path=f"{path}.tmp") as file:
            file.write(data)
            file.commit(durable=durable)

    def remove(self, offset: int) -> None:
        """Delete a snapshot if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(snapshot_path(self._directory, offset))


class ProducerStateManager:
    """The producers of a partition at `end_offset` (``mapEndOffset``), and their snapshots."""

    def __init__(self, files: SnapshotFiles, expiration_ms: int, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self.producers = Producers(expiration_ms)
        self.end_offset = 0
        self._last_snapshot = 0
        self._snapshots = set(files.offsets())

    @property
    def snapshot_offsets(self) -> tuple[int, ...]:
        """The offsets of all snapshots, ascending."""
        return tuple(sorted(self._snapshots))

    def take_snapshot(self, data: bytes | None = None, *, durable: bool = True) -> None:
        """Write a snapshot at `end_offset`, unless one exists at or above it.

        By default `data` is the current state. A roll does not make it durable: a log without the
        snapshot is recovered.
        """
        if self.end_offset <= self._last_snapshot:
            return
        snapshot = self.producers.snapshot() if data is None else data
        self._files.write(self.end_offset, snapshot, durable=durable)
        self._snapshots.add(self.end_offset)
        self._last_snapshot = self.end_offset

    def drop_snapshot(self, offset: int) -> None:
        self._snapshots.discard(offset)
        self._files.remove(offset)

    def remove_stray_snapshots(self, base_offsets: Sequence[int]) -> None:
        """Delete snapshots without a segment, except the last (``removeStraySnapshots``)."""
        self._snapshots = set(self._files.offsets())
        known = set(base_offsets)
        strays = [offset for offset in self.snapshot_offsets if offset not in known]
        for offset in strays[:-1]:
            self.drop_snapshot(offset)
        if strays and base_offsets and strays[-1] < max(base_offsets):
            self.drop_snapshot(strays[-1])

    def start_at(self, offset: int) -> None:
        """Remove all producers and snapshots (``truncateFullyAndStartAt``)."""
        self.producers.clear()
        for snapshot in self.snapshot_offsets:
            self.drop_snapshot(snapshot)
        self._last_snapshot = 0
        self.end_offset = offset

    def rebuild(
        self,
        segments: Sequence[ReplayedSegment],
        log_start_offset: int,
        last_offset: int,
        *,
        after_clean_shutdown: bool,
    ) -> None:
        """Rebuild the producers at an offset, from the latest snapshot and the batches after it.

        After a clean shutdown without a snapshot there are no producers.
        """
        marks = [segment.base_offset for segment in segments[-2:]] + [last_offset]
        if not self._snapshots and after_clean_shutdown:
            for offset in marks:
                self.end_offset = offset
                self.take_snapshot()
            return
        was_empty = self.producers.is_empty and self.end_offset >= last_offset
        self._truncate_and_reload(log_start_offset, last_offset)
        if last_offset > self.end_offset and not was_empty:
            self._replay(segments, log_start_offset, last_offset, marks)
        self.end_offset = last_offset
        self.take_snapshot()

    def _truncate_and_reload(self, log_start_offset: int, end_offset: int) -> None:
        for offset in self.snapshot_offsets:
            if is_out_of_range(offset, log_start_offset, end_offset):
                self.drop_snapshot(offset)
        if end_offset == self.end_offset:
            self.end_offset = max(self.end_offset, log_start_offset)
            self._last_snapshot = max(self._snapshots, default=log_start_offset)
            return
        self.producers.clear()
        found, entries, damaged = self._files.load_latest(self.snapshot_offsets)
        for offset, _ in damaged:
            self.drop_snapshot(offset)
        if found is not None and entries is not None:
            self.producers.load(entries, self._clock())
        self._last_snapshot = self.end_offset = log_start_offset if found is None else found

    def _replay(
        self,
        segments: Sequence[ReplayedSegment],
        log_start_offset: int,
        last_offset: int,
        marks: Sequence[int],
    ) -> None:
        first = floor_segment(segments, self.end_offset)
        for place in range(first, len(segments)):
            segment = segments[place]
            following = segments[place + 1] if place + 1 < len(segments) else None
            if segment.base_offset >= last_offset:
                break
            self.end_offset = max(segment.base_offset, self.end_offset, log_start_offset)
            if segment.base_offset in marks:
                self.take_snapshot()
            end = segment.size_bytes
            if following is None or following.base_offset > last_offset:
                found = segment.offset_to_position(last_offset)
                end = segment.size_bytes if found is None else found.position
            start = segment.offset_to_position(self.end_offset)
            if start is not None and start.position < end:
                data = segment.bytes_of(start.position, end)
                self.producers.replay(IncomingBatches.stored(data, segment.base_offset))
