"""Merge the scanned segments of a partition, and write its state files.

Segments are merged in offset order. For each segment, the transaction index and the producer
snapshot that recovery would write are written to temporary files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from kafka_index.core.errors import InputError, KafkaIndexError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    TXN_INDEX_SUFFIX,
    index_name_for,
)
from kafka_index.core.fs.registry import scan_directory, store_of
from kafka_index.core.fs.store import Entry
from kafka_index.core.log.choices import BuildOutput
from kafka_index.core.log.recovery.settings import (
    BUILT,
    FAILED,
    TRUNCATED,
    UNCHANGED,
    BuildSettings,
    SegmentReport,
)
from kafka_index.core.log.recovery.staged_segment import (
    PublishedFile,
    StagedSegment,
    describe_stored_differences,
)
from kafka_index.core.log.state.partition_state import PartitionState, ProducerExpiration
from kafka_index.core.log.state.snapshots import (
    filter_snapshots,
    is_out_of_range,
    list_snapshots,
    load_latest_snapshot,
    snapshot_path,
)
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.metadata_files import read_text
from kafka_index.core.logdir.partition_files import SegmentFile, TieredPartition
from kafka_index.core.output.publish import StagedFile, TargetFiles, write_scratch


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """Producers, leader epochs and log start offset before a partition's first segment.

    Attributes
    ----------
    checkpointed_log_start
        Entry of ``log-start-offset-checkpoint``, None without an entry.
    epochs, epochs_text
        Entries and text of ``leader-epoch-checkpoint``.
    note
        Note in the report row of the first segment, None without one.
    entries
        Entries of the partition directory, if they were listed; otherwise None.
    """

    state: PartitionState
    checkpointed_log_start: int | None
    epochs: tuple[EpochEntry, ...]
    epochs_text: str | None
    note: str | None
    entries: Sequence[Entry] | None = None

    @property
    def log_start_offset(self) -> int:
        return self.checkpointed_log_start or 0

    @classmethod
    def read(
        cls,
        first_segment: SegmentFile,
        expiration: ProducerExpiration | None,
        *,
        with_epochs: bool = True,
        tiered: TieredPartition | None = None,
        log_start_offset: int | None = None,
        run_id: str = "",
        listed_entries: Sequence[Entry] | None = None,
    ) -> PartitionStart:
        """Read the snapshots and checkpoints next to the first segment of a partition.

        As in ``ProducerStateManager.truncateAndReload``, this loads the latest valid snapshot above
        the log start offset, and at or below the base offset of the segment. Raises `InputError` if
        this process may not read a checkpoint, or if the leader epochs are malformed, so that a
        broker would not start.

        Parameters
        ----------
        expiration
            Which idle producers to remove.
        tiered
            Log start offset and leader epochs of a partition whose first segment is remote.
        log_start_offset
            Log start offset to use instead of the checkpoint.
        run_id
            With a run ID, checkpoints are read once for all partitions of the run.
        listed_entries
            The entries of the partition directory, if already listed.
        """
        if tiered is not None:
            return cls._of_tiered(first_segment, expiration, tiered)
        if not first_segment.has_log:
            note = _missing_producers_note(first_segment) if first_segment.base_offset else None
            return cls(PartitionState(None, LeaderEpochCache(), expiration), None, (), None, note)
        directory = first_segment.partition_directory
        path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
        if listed_entries is None and store_of(directory).needs_requests:
            listed_entries = scan_directory(directory)
        has_epochs = listed_entries is None or any(entry.path == path for entry in listed_entries)
        text = read_text(path) if with_epochs and has_epochs else None
        try:
            epochs = LeaderEpochCache.from_text(text or "", path=path)
        except KafkaIndexError as error:
            error.hint = "repair or remove the file, or omit epochs from --what"
            raise
        checkpointed = log_start_offset
        if checkpointed is None:
            open_data_directory = (
                _open_data_directory if run_id else _open_data_directory.__wrapped__
            )
            checkpointed = open_data_directory(os.path.dirname(directory), run_id).log_start_offset(
                first_segment.topic_partition
            )
        log_start = checkpointed or 0
        try:
            snapshots = (
                list_snapshots(directory)
                if listed_entries is None
                else filter_snapshots(listed_entries)
            )
            offsets = [
                offset
                for offset in snapshots
                if not is_out_of_range(offset, log_start, first_segment.base_offset)
            ]
            snapshot_offset, entries, damaged = load_latest_snapshot(directory, offsets)
        except OSError as error:
            raise InputError(
                f"cannot read the snapshots: {error.strerror}", path=error.filename or directory
            ) from error
        notes = [f"a snapshot was skipped: {error}" for _, error in damaged]
        if snapshot_offset is not None:
            name = os.path.basename(snapshot_path(directory, snapshot_offset))
            notes.append(f"earlier producers were loaded from {name}")
        if entries is None and first_segment.base_offset > log_start:
            notes.append(_missing_producers_note(first_segment))
        return cls(
            PartitionState(entries, epochs, expiration),
            checkpointed,
            epochs.entries,
            text,
            "; ".join(notes) or None,
            listed_entries,
        )

    @classmethod
    def _of_tiered(
        cls,
        first_segment: SegmentFile,
        expiration: ProducerExpiration | None,
        tiered: TieredPartition,
    ) -> PartitionStart:
        """Return the state before a remote first segment, for which no snapshot exists."""
        epochs = LeaderEpochCache(tiered.epochs)
        notes = []
        if tiered.is_lower_bound:
            notes.append("the log may start later than its first segment")
        if first_segment.base_offset:
            notes.append(_missing_producers_note(first_segment))
        return cls(
            PartitionState(None, epochs, expiration),
            tiered.log_start_offset,
            tiered.epochs,
            epochs.text(),
            "; ".join(notes) or None,
        )


@lru_cache(8)
def _open_data_directory(path: str, run_id: str) -> DataDirectory:
    del run_id
    return DataDirectory(path)


def _missing_producers_note(first_segment: SegmentFile) -> str:
    return (
        f"the log begins at offset {first_segment.base_offset}, and no snapshot contains the "
        "earlier producers and transactions"
    )


#: Reason codes of segments that cannot be merged with the previous segments.
STATE_UNKNOWN = "state_unknown"
SEGMENTS_OVERLAP = "segments_overlap"
#: Reason code of a note: a broker that starts on this partition deletes all its segments.
LOG_START_ABOVE_END = "log_start_above_end"
_EXISTING_INDEX = (
    "an .index already exists: remove the .index, so that a broker recovers the segment"
)
_OTHER_ORDER = "a broker's snapshot may contain the same producers in another order"


def merge_partition(
    staged: Sequence[StagedSegment],
    settings: BuildSettings,
    *,
    attempt_id: str,
    start: PartitionStart | None = None,
    listed_entries: Sequence[Entry] | None = None,
) -> MergedPartition:
    """Merge the segments of a partition in order of base offset.

    By default, `start` is read from the files next to the first segment. For `listed_entries`, see
    `PartitionStart.read`. The names of temporary files contain `attempt_id`.
    """
    merged = MergedPartition(staged)
    if not settings.needs_state:
        # No requested output depends on earlier segments, so nothing is merged.
        merged.segments = [MergedSegment(segment, segment.report) for segment in staged]
        merged.snapshots = set()
        return merged
    try:
        first_segment = staged[0].segment
        if start is None:
            start = PartitionStart.read(
                first_segment,
                settings.expiration,
                with_epochs=BuildOutput.EPOCHS in settings.outputs,
                tiered=settings.tiered.get(first_segment.topic_partition),
                run_id=settings.run_id,
                listed_entries=listed_entries,
            )
        merged.start = start
        merge = PartitionMerge(
            start, settings, attempt_id, TargetFiles(merged.directory, settings.run_id)
        )
        for segment in staged:
            merged.segments.append(merge.add(segment))
        merged.segments[-1] = merge.annotate_last(merged.segments[-1])
        merged.own_files = merge.write_last_files(staged[-1])
    except KafkaIndexError as error:
        merged.error = error
        return merged
    merged.first_offset = merge.first_offset
    merged.published = merge.published
    merged.snapshots = merge.snapshots if merge.is_complete else None
    return merged


@dataclass
class PartitionMerge:
    """Merges the segments of one partition in offset order.

    Each state file is written to a temporary file, unless the target folder has a file with the
    same content. `published` has all state files of the partition, including unchanged ones.
    """

    start: PartitionStart
    settings: BuildSettings
    attempt_id: str
    target: TargetFiles
    published: list[PublishedFile] = field(default_factory=list)
    snapshots: set[int] = field(default_factory=set)
    # The offset after the last batch so far, and the offset after the last v2 batch.
    _end_offset: int | None = None
    _map_end_offset: int = -1
    # The log end offset that a broker would read from the last merged segment.
    _log_end_offset: int = 0
    _first_offset: int = 0
    _was_truncated: bool = False
    # Why the producers of later segments are unknown, None if they are known.
    _unknown_reason: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the producers are known at the end of every segment so far."""
        return self._unknown_reason is None and self._end_offset is not None

    @property
    def first_offset(self) -> int:
        """The log start offset of a broker, which deletes snapshots at or below this offset."""
        return max(self.start.log_start_offset, self._first_offset)

    def add(self, staged: StagedSegment) -> MergedSegment:
        """Merge the next segment. An error is stored in the row of the segment."""
        row = staged.report
        base_offset = staged.segment.base_offset
        files: tuple[StagedFile, ...] = ()
        if row.status != FAILED:
            try:
                if self._unknown_reason is None:
                    row, files = self._merge(staged)
                else:
                    row, files = self._merge_without_state(staged)
            except KafkaIndexError as error:
                row = row.failed_by(error)
        if row.status == FAILED and self._unknown_reason is None:
            self._unknown_reason = f"segment {base_offset} failed"
        return MergedSegment(staged, row, files)

    def annotate_last(self, last: MergedSegment) -> MergedSegment:
        """Return the last segment. Add a note if the log start offset is above the log end offset.

        In that case, a broker deletes all segments and creates an empty log (LogLoader.load).
        """
        log_start = self.start.log_start_offset
        if not self.is_complete or self._log_end_offset >= log_start:
            return last
        note = (
            f"{LOG_START_ABOVE_END}: the log ends at offset {self._log_end_offset}, below the log "
            f"start offset {log_start} in {LOG_START_CHECKPOINT}; a broker that starts on the "
            "partition deletes all segments"
        )
        report = last.report
        notes = "; ".join(filter(None, (note, report.note)))
        code = report.reason_code or LOG_START_ABOVE_END
        return replace(last, report=replace(report, note=notes, reason_code=code))

    def write_last_files(self, last: StagedSegment) -> tuple[StagedFile, ...]:
        """Write the files of the partition itself: the last snapshot and the leader epochs.

        Raises `KafkaIndexError` if a file cannot be read or written.
        """
        if not self.is_complete or self._end_offset is None:
            return ()
        files = self._write_last_snapshots(last)
        epochs = self.start.state.epochs
        # Otherwise, keep the existing text. A broker creates a missing checkpoint, but rewrites an
        # existing one only when an epoch is added or removed, or when an epoch starts at or before
        # the log start offset (LeaderEpochFileCache.truncateFromStartAsyncFlush).
        is_written = epochs.entries != self.start.epochs
        is_written |= epochs.truncate_from_end(self._log_end_offset)
        is_written |= epochs.truncate_from_start(self.start.log_start_offset)
        if BuildOutput.EPOCHS not in self.settings.outputs:
            return files
        text = epochs.text() if is_written else self.start.epochs_text or ""
        path = os.path.join(last.directory, LEADER_EPOCH_CHECKPOINT)
        return (*files, *self._write(path, text.encode(), last))

    def _merge(self, staged: StagedSegment) -> tuple[SegmentReport, tuple[StagedFile, ...]]:
        """Merge a segment; return its row and its state files."""
        state = self.start.state
        base_offset = staged.segment.base_offset
        files: tuple[StagedFile, ...] = ()
        note = self.start.note
        if self._end_offset is None:
            self._first_offset = base_offset
        else:
            if base_offset < self._end_offset:
                return self._overlap_row(staged, self._end_offset), ()
            note = self._gap_note(base_offset)
            is_reloaded = self._reload_snapshot_below(base_offset)
            files = self._write_snapshot(staged, base_offset)
            if not is_reloaded:
                state.reload()
        segment_state = staged.read_state(self.settings)
        aborted, stop = state.apply(segment_state)
        row = staged.report
        if stop is not None:
            return row.failed(stop.reason_code, stop.text, stop.position_bytes), ()
        self._log_end_offset = base_offset if row.counts is None else row.counts.next_offset
        self._map_end_offset = max(base_offset, segment_state.map_end_offset)
        self._end_offset = max(self._log_end_offset, self._map_end_offset)
        self._was_truncated = row.status == TRUNCATED
        if state.has_tree:
            note = "; ".join(filter(None, (note, _OTHER_ORDER)))
        note = "; ".join(filter(None, (note, row.note)))
        if not staged.is_withheld:
            files += self.write_txn_index(staged, aborted.tobytes())
            if BuildOutput.TXN_INDEX in self.settings.outputs:
                built = {TXN_INDEX_SUFFIX: aborted.tobytes()}
                note = "; ".join(
                    filter(None, (note, describe_stored_differences(staged.segment, built)))
                )
        elif os.path.exists(staged.paths.offset_index):
            # The merge assumes that a broker truncates this log, but it does so only without an
            # .index.
            row = replace(row, reason=f"{row.reason}; {_EXISTING_INDEX}")
            self._unknown_reason = f"a broker keeps the invalid tail of segment {base_offset}"
        is_new = bool(files) and row.status == UNCHANGED
        row = replace(
            row,
            status=BUILT if is_new else row.status,
            aborted_txns=len(aborted),
            producers=len(state),
            note=note or None,
        )
        return row, files

    def _overlap_row(self, staged: StagedSegment, end: int) -> SegmentReport:
        error = InputError(
            "segments_overlap: the previous segment ends after the base offset of this segment",
            expected=f"a base offset of {end} or more",
            found=staged.segment.base_offset,
            hint="remove the segment that does not belong to the partition",
        )
        return staged.report.failed(SEGMENTS_OVERLAP, str(error))

    def _gap_note(self, base_offset: int) -> str | None:
        """Return a note if offsets are missing before a segment, otherwise None."""
        end = self._end_offset
        if end is None or base_offset == end:
            return None
        if self._was_truncated:
            return f"the previous segment is valid only below offset {end}"
        return f"offsets {end} to {base_offset - 1} are missing before this segment"

    def _merge_without_state(
        self, staged: StagedSegment
    ) -> tuple[SegmentReport, tuple[StagedFile, ...]]:
        """Merge a segment after a failed one: earlier producers and transactions are unknown."""
        unknown = (
            f"{STATE_UNKNOWN}: {self._unknown_reason}, so the producers and transactions "
            "before this segment are unknown"
        )
        if BuildOutput.TXN_INDEX in self.settings.outputs and len(
            staged.read_state(self.settings).aborts
        ):
            # A broker that finds an .index but no .txnindex assumes that no transaction was
            # aborted.
            reason = f"{unknown}, and this segment has aborted transactions"
            return staged.report.failed(STATE_UNKNOWN, reason), ()
        row = replace(staged.report, note=f"{unknown}; no snapshot was written")
        return row, self.write_txn_index(staged, b"")

    def _reload_snapshot_below(self, offset: int) -> bool:
        """Load the snapshot after the last v2 batch, if it is below `offset`.

        Recovery writes this snapshot, loads it again, and writes another snapshot at `offset`
        (UnifiedLog.rebuildProducerState). Returns whether the snapshot was loaded.
        """
        if self._map_end_offset <= self.start.log_start_offset:
            # A broker deletes snapshots at or below the log start offset, so none is loaded.
            self.start.state.forget_producers()
        if self._map_end_offset >= offset:
            return False
        self.start.state.reload()
        return True

    def _write_last_snapshots(self, last: StagedSegment) -> tuple[StagedFile, ...]:
        """Write the snapshot at the log end.

        Recovery of the last segment writes a snapshot after its last v2 batch. If v0 or v1 messages
        follow, recovery writes another snapshot at the log end.
        """
        files: tuple[StagedFile, ...] = ()
        if self._map_end_offset < self._log_end_offset:
            files = self._write_snapshot(last, self._map_end_offset)
            self._reload_snapshot_below(self._log_end_offset)
        return (*files, *self._write_snapshot(last, self._log_end_offset))

    def _write_snapshot(self, staged: StagedSegment, offset: int) -> tuple[StagedFile, ...]:
        """Write the snapshot at an offset above the log start offset, if not yet written."""
        if offset <= self.first_offset or BuildOutput.SNAPSHOT not in self.settings.outputs:
            return ()
        if offset in self.snapshots:
            # This can happen at the log end, or before an empty last segment.
            return ()
        self.snapshots.add(offset)
        path = snapshot_path(staged.directory, offset)
        return self._write(path, self.start.state.snapshot(), staged)

    def write_txn_index(self, staged: StagedSegment, data: bytes) -> tuple[StagedFile, ...]:
        """Write a transaction index. An empty one is written only to replace an existing file."""
        if BuildOutput.TXN_INDEX not in self.settings.outputs:
            return ()
        log_name = os.path.basename(staged.segment.log_path)
        path = os.path.join(staged.directory, index_name_for(log_name, TXN_INDEX_SUFFIX))
        if not data and not self.target.exists(path):
            return ()
        return self._write(path, data, staged)

    def _write(self, path: str, data: bytes, staged: StagedSegment) -> tuple[StagedFile, ...]:
        """Write a file, unless the target has the same content."""
        self.published.append(PublishedFile.of_bytes(os.path.basename(path), data))
        if self.target.has_content(path, data):
            return ()
        file = StagedFile(self.settings.work_path(path, self.attempt_id), path)
        attributes_of = self.settings.attributes_of(staged.segment.log_path)
        write_scratch(file.scratch_path, data, attributes_of=attributes_of)
        return (file,)


@dataclass(frozen=True, slots=True)
class MergedSegment:
    """A segment with its final report row, and the state files to publish before its ``.index``."""

    staged: StagedSegment
    report: SegmentReport
    files: tuple[StagedFile, ...] = ()


@dataclass
class MergedPartition:
    """The result of merging a partition, whose files can then be published.

    Attributes
    ----------
    staged
        The scanned segments.
    segments
        The merged segments, up to an error.
    own_files
        Files of the partition itself, which are published first.
    start
        The state before the first segment, None if nothing was merged.
    first_offset
        Log start offset of a broker that loads the partition.
    snapshots
        Offsets of all snapshots that the partition should have, None if unknown.
    published
        State files of the partition, including unchanged files.
    error
        Why no file of the partition can be published, None if all files can be published.
    """

    staged: Sequence[StagedSegment]
    segments: list[MergedSegment] = field(default_factory=list)
    own_files: tuple[StagedFile, ...] = ()
    first_offset: int = 0
    snapshots: set[int] | None = None
    error: KafkaIndexError | None = None
    published: list[PublishedFile] = field(default_factory=list)
    start: PartitionStart | None = None

    @property
    def directory(self) -> str:
        """The target folder of any segment with one: a failed segment may have none."""
        return max(segment.directory for segment in self.staged)
