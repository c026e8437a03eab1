"""The prediction for a loaded partition: segments, lost records, served files and notes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np

from kafka_index.core.errors import plural
from kafka_index.core.format.checkpoints import parse_leader_epoch_checkpoint
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    OFFSET_INDEX_SUFFIX,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
)
from kafka_index.core.format.records import ABORTED_TXN, NO_TIMESTAMP
from kafka_index.core.fs.inputs import refuse_linked_out
from kafka_index.core.index.transaction_index import AbortedTxns, compare_aborted_txns, next_starts
from kafka_index.core.log.missing_offsets import (
    Cause,
    CheckpointOffsets,
    MissingOffsets,
    MissingRange,
    ScannedLog,
    missing_offsets,
    scan_log,
)
from kafka_index.core.log.retention import count_beyond_size, count_beyond_time
from kafka_index.core.log.scan.entry_check import (
    EpochRanges,
    IndexMismatch,
    OffsetEntryCheck,
    StoredEntries,
    TimeEntryCheck,
    first_wrong_epoch,
    read_offset_entries,
    read_time_entries,
)
from kafka_index.core.log.scan.file_records import LogBatches
from kafka_index.core.log.scan.scanner import BatchOrder, unknown_magic
from kafka_index.core.log.state.partition_state import (
    PartitionState,
    ProducerExpiration,
    ProducerTable,
    SegmentState,
)
from kafka_index.core.log.state.snapshots import (
    compare_producers,
    is_out_of_range,
    load_latest_snapshot,
)
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.metadata_files import read_text
from kafka_index.core.records.batch_table import BatchColumns, ScanStop
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.startup.conditions import (
    OffsetRanges,
    Retention,
    format_known_losses,
    is_known_loss,
)
from kafka_index.core.startup.partition_loading import (
    LoadedPartition,
    LoadedSegment,
    Loading,
    count_lost_records,
    predict_segments,
)
from kafka_index.core.startup.prediction import LostRecords, Outcome, PartitionPrediction

_WRONG_TIMES = "lookups by timestamp and retention by time can be wrong"


def predict_loaded(
    predicted: PartitionPrediction,
    loaded: LoadedPartition,
    loading: Loading,
    known_offsets: CheckpointOffsets,
    known_losses: OffsetRanges = (),
) -> PartitionPrediction:
    """Return the prediction for a loaded partition.

    Missing offsets in `known_losses` were lost before this startup. Raises `KafkaIndexError` if a
    log cannot be read.
    """
    files = loaded.files
    is_emptied = bool(loaded.deleted) and not any(segment.files for segment in loaded.segments)
    visible_from = 0 if is_emptied else loading.log_start_offset
    lost_records, end_before = count_lost_records(loaded, visible_from)
    base_offsets = [segment.log.base_offset for segment in files.segments]
    start_before = max(loading.log_start_offset, min(base_offsets, default=0))
    # Segments that were split off are read with the original log.
    log_sizes_bytes: dict[str, int] = {}
    for segment in loaded.segments:
        if segment.files is not None:
            end_bytes = segment.start_bytes + segment.size_bytes
            log_sizes_bytes[segment.path] = max(log_sizes_bytes.get(segment.path, 0), end_bytes)
    cleaned_to = known_offsets.cleaning.cleaned_to or 0
    logs = [
        scan_log(segment.log, cleaned_to, log_sizes_bytes[segment.log.log_path])
        for segment in files.segments
        if segment.log.log_path in log_sizes_bytes
    ]
    missing_ranges = _find_missing_offsets(logs, known_offsets, end_before, files.lost_ends)
    known_lost = [gap for gap in missing_ranges.unexplained if is_known_loss(gap, known_losses)]
    unexplained = [gap for gap in missing_ranges.unexplained if gap not in known_lost]
    unknown = [gap for gap in unexplained if gap.cause is not Cause.LOST]
    return replace(
        predicted,
        outcome=Outcome.EMPTIED if is_emptied else Outcome.LOADED,
        log_start_before=start_before,
        log_end_before=max(end_before, loaded.log.log_end_offset if base_offsets else 0),
        loaded=loaded.log,
        lost=lost_records,
        bytes_read=loaded.bytes_read,
        segments=tuple(predict_segments(loaded)),
        torn_bytes=loaded.segments[-1].torn_bytes(),
        missing=tuple(unexplained),
        unserved=_unreadable_reason(logs, loaded.log.log_start_offset),
        unknown=f"offsets {unknown[0].first_offset} to {unknown[0].last_offset} are missing: "
        f"{unknown[0].why}"
        if unknown
        else None,
        notes=(
            *format_known_losses(known_lost),
            *_gap_notes(unexplained, missing_ranges),
            *_end_notes(loaded, lost_records),
        ),
    )


def _find_missing_offsets(
    logs: Sequence[ScannedLog],
    known_offsets: CheckpointOffsets,
    end_before: int,
    lost_ends: Mapping[int, int],
) -> MissingOffsets:
    """Return the offsets missing from the logs that a broker loads."""
    if not logs:
        return MissingOffsets(known_offsets.cleaning)
    # Records that startup truncates or deletes count as lost, not as missing.
    logs[-1].damage_end = end_before
    return missing_offsets(
        logs,
        known_offsets,
        shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES),
        lost_ends,
    )


def _unreadable_reason(logs: Sequence[ScannedLog], log_start_offset: int) -> str | None:
    """Return why a broker cannot find the last offsets of a log: it searches the next segment."""
    for log, next_log in pairwise(logs):
        first_offset = max(next_log.segment.base_offset, log_start_offset)
        if log.offsets.end_offset > first_offset:
            return (
                f"{next_log.segment.log_path}: a broker reads offsets {first_offset} to "
                f"{log.offsets.end_offset - 1} from this log, but they are in the previous log"
            )
    return None


def _gap_notes(
    unexplained: Sequence[MissingRange], missing_ranges: MissingOffsets
) -> Iterable[str]:
    for gap in unexplained:
        yield (
            f"gap: offsets {gap.first_offset} to {gap.last_offset} are "
            f"missing, and brokers do not report this gap: {gap.why}"
        )
    if missing_ranges.omitted_counts:
        omitted_count = sum(missing_ranges.omitted_counts.values())
        yield f"gap: offsets are missing in {plural(omitted_count, 'more range')}"


def _end_notes(loaded: LoadedPartition, lost_records: LostRecords) -> Iterable[str]:
    last_segment = loaded.segments[-1]
    if (
        lost_records.records
        and last_segment.size_bytes
        and loaded.log.log_end_offset <= last_segment.base_offset
    ):
        yield (
            "unreadable: the log ends at the base offset of its last segment, and new records "
            "overlap this segment"
        )
    elif last_segment.torn_bytes():
        yield (
            f"torn: {last_segment.torn_bytes()} bytes remain after the last batch, and make later "
            "records unreadable"
        )


def predict_served(
    predicted: PartitionPrediction,
    loaded: LoadedPartition,
    directory: DataDirectory,
    retention: Retention,
    expiration: ProducerExpiration,
    unreachable_reason: str | None,
    *,
    is_compacted: bool,
) -> PartitionPrediction:
    """Add the offsets that the broker serves, and the deletions by retention."""
    partition = TopicPartition(predicted.topic, predicted.partition)
    served = check_served_files(
        loaded,
        predicted.directory,
        directory.log_start_offset(partition) or 0,
        expiration,
        is_compacted=is_compacted,
    )
    unserved = [predicted.unserved, *loaded.files.unserved, served.fault, unreachable_reason]
    watermark = directory.high_watermark(partition) or 0
    predicted = _predict_reappearing_records(predicted, loaded, directory)
    predicted = replace(
        predicted,
        unserved="; ".join(filter(None, unserved)) or None,
        unknown=predicted.unknown or served.unknown,
        high_watermark=min(max(watermark, loaded.log.log_start_offset), loaded.log.log_end_offset),
    )
    return _predict_retention(predicted, loaded, retention, expiration.now_ms)


def _predict_reappearing_records(
    predicted: PartitionPrediction, loaded: LoadedPartition, directory: DataDirectory
) -> PartitionPrediction:
    """Add the records that reappear because the log start offset is lost.

    The first leader epoch shows the lost log start offset. When the log start offset increases, a
    broker removes earlier epochs, and the first remaining epoch starts at the log start offset. If
    recovery rebuilt the epochs, the first epoch starts at a recovered segment instead.
    """
    log_start_offset, log_end_offset = loaded.log.log_start_offset, loaded.log.log_end_offset
    if log_end_offset <= log_start_offset:
        return predicted
    epochs = parse_leader_epoch_checkpoint(
        read_text(os.path.join(predicted.directory, LEADER_EPOCH_CHECKPOINT)) or ""
    )
    # A broker never keeps an epoch that starts after the log end.
    first_epoch_offset = min(
        (epoch.start_offset for epoch in epochs if epoch.start_offset <= log_end_offset),
        default=None,
    )
    has_log_starts = directory.checkpoint(LOG_START_CHECKPOINT).has_entries
    if first_epoch_offset is None:
        checkpoint_names = RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT
        was_started = any(directory.checkpoint(name).offsets for name in checkpoint_names)
        if has_log_starts or not was_started:
            return predicted
        reason = "the log start offset is lost: deleted records may reappear"
        return replace(predicted, unknown=reason)
    record_count = _count_reappearing_records(loaded, first_epoch_offset)
    if not record_count:
        return predicted
    offsets = f"offsets {log_start_offset} to {first_epoch_offset - 1}"
    if has_log_starts:
        # The checkpoint has entries, but not this log start offset: it is unclear whether the
        # epochs or the checkpoint are outdated.
        reason = (
            f"the leader epochs start at offset {first_epoch_offset}, but the log start offset is "
            f"lower: {offsets} may be deleted records that reappear"
        )
        return replace(predicted, unknown=reason)
    note = (
        f"the log start offset {first_epoch_offset} (from the leader epochs) is lost: "
        f"{plural(record_count, 'deleted record reappears', 'deleted records reappear')}, "
        f"{offsets}"
    )
    return replace(predicted, records_back=record_count, notes=(*predicted.notes, note))


def _count_reappearing_records(loaded: LoadedPartition, former_start: int) -> int:
    """Count the records below an earlier log start offset, which startup makes readable again."""
    record_count = 0
    for segment in loaded.segments:
        if segment.base_offset < former_start:
            for chunk in LogBatches(segment.log, 0, segment.base_offset, verify_crc=False):
                last_offset = np.minimum(chunk.last_offset, former_start - 1)
                first_offset = np.maximum(chunk.base_offset, loaded.log.log_start_offset)
                record_count += int(np.maximum(last_offset - first_offset + 1, 0).sum())
            segment.release()
    return record_count


def _predict_retention(
    predicted: PartitionPrediction, loaded: LoadedPartition, retention: Retention, now_ms: int
) -> PartitionPrediction:
    """Add the segments that retention deletes at `now_ms`, if the limits are known.

    ``LogManager`` deletes old segments for the first time 30 seconds after startup.
    """
    if not retention.is_known:
        return predicted
    segments, log = loaded.segments, loaded.log
    sizes_bytes = [segment.size_bytes for segment in segments]
    count_by_size = count_beyond_size(sizes_bytes, 0, retention.retention_bytes or 0)
    segment_count = count_beyond_time(
        sizes_bytes,
        count_by_size,
        retention.retention_ms or 0,
        now_ms,
        lambda number: segments[number].largest_timestamp_ms(now_ms),
    )
    if not segment_count:
        return replace(predicted, log_start_retained=log.log_start_offset)
    deletion_end = (
        log.log_end_offset
        if segment_count == len(segments)
        else segments[segment_count].base_offset
    )
    log_start_offset = max(log.log_start_offset, deletion_end)
    limits = [
        f"{name} {limit}"
        for name, limit, is_met in (
            ("retention.bytes", retention.retention_bytes, count_by_size),
            ("retention.ms", retention.retention_ms, segment_count > count_by_size),
        )
        if is_met
    ]
    note = (
        f"retention: 30 seconds after the start, {segment_count} of {len(segments)} segments are "
        f"deleted, up to offset {deletion_end - 1}, because of {' and '.join(limits)}"
    )
    return replace(
        predicted,
        log_start_retained=log_start_offset,
        segments_to_delete=segment_count,
        notes=(*predicted.notes, note),
    )


def predict_replacement(
    current: PartitionPrediction, future: PartitionPrediction
) -> PartitionPrediction:
    note = f"the future replica {future.directory} replaces this partition, which is deleted later"
    lost_records = LostRecords()
    if current.loaded is not None and future.loaded is not None:
        log, future_log = current.loaded, future.loaded
        log_start, log_end = log.log_start_offset, log.log_end_offset
        for range_start, range_end in (
            (log_start, min(log_end, future_log.log_start_offset)),
            (max(log_start, future_log.log_end_offset), log_end),
        ):
            if range_start < range_end:
                lost_records.records += range_end - range_start
                lost_records.first_offset = (
                    range_start if lost_records.first_offset is None else lost_records.first_offset
                )
                lost_records.last_offset = range_end - 1
    return replace(
        current,
        outcome=Outcome.REPLACED,
        lost=lost_records,
        torn_bytes=0,
        missing=(),
        records_back=0,
        unserved=None,
        unknown=None,
        notes=(note,),
    )


@dataclass(frozen=True, slots=True)
class ServedFiles:
    """The first invalid file, and the reason if some files could not be checked."""

    fault: str | None = None
    unknown: str | None = None


def check_served_files(
    loaded: LoadedPartition,
    directory: str,
    log_start: int,
    expiration: ProducerExpiration,
    *,
    is_compacted: bool,
) -> ServedFiles:
    """Check the index files, snapshots and leader epochs that a broker keeps.

    `log_start` comes from the checkpoint. Producers of a compacted log are not checked, since
    compaction can remove their batches.
    """
    state = _LogState.initial(loaded, directory, log_start)
    for segment in loaded.segments:
        try:
            fault = next(_find_segment_faults(segment, state), None)
        finally:
            segment.release()
        if fault is not None:
            return ServedFiles(fault)
    if state.stop is not None:
        return ServedFiles(
            unknown="transaction indexes, snapshots and leader epochs were not checked: "
            f"{state.path}: {state.stop.name} at byte {state.stop.position_bytes}"
        )
    fault = _find_txn_index_fault(loaded, state) or _find_epoch_fault(loaded, state)
    if fault is None and not is_compacted:
        fault = _find_producer_fault(loaded, directory, state, expiration)
    return ServedFiles(fault)


@dataclass
class _LogState:
    """Producers, transactions and leader epochs computed from the batches of a log.

    `aborted` has the aborted transactions of each segment. `stop` is the first batch on which
    recovery would fail, in the log at `path`. The producers and transactions after this batch are
    unknown.
    """

    producers: PartitionState
    aborted: list[AbortedTxns] = field(default_factory=list)
    epochs: EpochRanges = field(default_factory=EpochRanges)
    stop: ScanStop | None = None
    path: str = ""

    @classmethod
    def initial(cls, loaded: LoadedPartition, directory: str, log_start: int) -> _LogState:
        """Return the state at the first segment, from the latest producer snapshot before it."""
        first_base_offset = loaded.segments[0].base_offset
        offsets = [
            offset
            for offset in loaded.files.snapshots
            if not is_out_of_range(offset, log_start, first_base_offset)
        ]
        _, entries, _ = load_latest_snapshot(directory, offsets)
        return cls(PartitionState(entries))

    def add(self, table: ProducerTable, segment: LoadedSegment) -> None:
        if self.stop is None:
            aborted, self.stop = self.producers.apply(SegmentState.of_table(table))
            self.aborted.append(aborted)
            self.path = segment.path


def _find_segment_faults(segment: LoadedSegment, state: _LogState) -> Iterator[str]:
    files = segment.files
    if files is None:
        state.add(ProducerTable(), segment)
        return
    for path in files.not_files.values():
        yield f"{path} is not a regular file: the first read takes the data directory offline"
    entries = read_offset_entries(
        _read_index_file(segment, OFFSET_INDEX_SUFFIX), segment.base_offset
    )
    time_entries = read_time_entries(
        _read_index_file(segment, TIME_INDEX_SUFFIX), segment.base_offset
    )
    offset_check, time_check, order = (
        OffsetEntryCheck(entries),
        TimeEntryCheck(time_entries),
        BatchOrder(0),
    )
    producers, max_timestamp_ms = ProducerTable(), NO_TIMESTAMP
    # Rebuilt index files match the log, because recovery has verified its checksums.
    is_kept = not segment.is_rebuilt
    batches = LogBatches(
        segment.log, 0, segment.base_offset, verify_crc=is_kept, any_offset=is_kept
    )
    for chunk in batches:
        if is_kept:
            offset_check.observe(chunk)
            time_check.observe(chunk)
            max_timestamp_ms = max(max_timestamp_ms, int(chunk.max_timestamp_ms.max()))
            stop = order.first_stop(chunk)
            if stop is not None:
                yield (
                    f"{segment.path}: offsets decrease at byte {stop.position_bytes}: consumers "
                    "receive wrong offsets"
                )
        stop = unknown_magic(chunk)
        if stop is not None:
            yield _describe_unreadable(segment, stop)
        _track_chunk(chunk, producers, segment, state)
    state.add(producers, segment)
    if not is_kept:
        return
    if batches.stop is not None:
        yield _describe_unreadable(segment, batches.stop)
    # Index entries beyond the end of the log are harmless: no fetch uses them.
    mismatch = offset_check.mismatch(INT64_MAX, len(segment.log))
    wrong_entry = mismatch.entry if entries.disorder is None and mismatch else entries.disorder
    if wrong_entry is not None:
        yield (
            f"{files.indexes[OFFSET_INDEX_SUFFIX]}: entry {wrong_entry} does not point to the "
            "batch of its offset: fetches skip records, or start inside a batch"
        )
    mismatch = time_check.mismatch(INT64_MAX, max_timestamp_ms, is_closed=True)
    time_fault = _time_fault(time_entries, mismatch)
    time_index = files.indexes.get(TIME_INDEX_SUFFIX)
    if time_index is not None and time_fault is not None:
        yield f"{time_index}: {time_fault}: {_WRONG_TIMES}"
    elif time_index is None and max_timestamp_ms >= 0 and not segment.is_split:
        yield f"{segment.path} has no .timeindex: {_WRONG_TIMES}"


def _describe_unreadable(segment: LoadedSegment, stop: ScanStop) -> str:
    position = f"{segment.path}: {stop.name} at byte {stop.position_bytes}"
    return f"{position}: consumers cannot read past this batch"


def _time_fault(time_entries: StoredEntries, mismatch: IndexMismatch | None) -> str | None:
    if time_entries.disorder is not None:
        return f"entry {time_entries.disorder} is not above the previous entry"
    if mismatch is not None:
        return f"expected {mismatch.expected}, found {mismatch.found}"
    if time_entries.padding or time_entries.torn_bytes:
        return f"the {len(time_entries.offsets)} entries are followed by other bytes"
    return None


def _track_chunk(
    chunk: BatchColumns, table: ProducerTable, segment: LoadedSegment, state: _LogState
) -> None:
    state.epochs.observe(chunk)
    if state.stop is None:
        _, state.stop = table.follow(chunk)
        state.path = segment.path


def _read_index_file(segment: LoadedSegment, suffix: str) -> bytes:
    """Return an index file that a broker keeps; empty if it is missing or rebuilt."""
    path = None if segment.files is None else segment.files.indexes.get(suffix)
    if path is None or segment.is_rebuilt:
        return b""
    refuse_linked_out(path)
    with open(path, "rb") as file:
        return file.read()


def _find_txn_index_fault(loaded: LoadedPartition, state: _LogState) -> str | None:
    segments, log = loaded.segments, loaded.log
    unstable = state.producers.first_unstable_offset
    open_from = min(log.log_end_offset if unstable is None else unstable, log.log_end_offset)
    starts = next_starts(state.aborted, open_from)
    for segment, expected_txns, next_start in zip(segments, state.aborted, starts, strict=True):
        if segment.is_rebuilt or segment.files is None:
            continue
        data = _read_index_file(segment, TXN_INDEX_SUFFIX)
        stored_txns = np.frombuffer(data, ABORTED_TXN, len(data) // ABORTED_TXN.itemsize)

        difference = compare_aborted_txns(
            stored_txns, expected_txns, partial(_has_data_batches, segments), next_start
        )
        if difference is not None:
            path = segment.files.indexes.get(TXN_INDEX_SUFFIX)
            subject = f"{segment.path} has no .txnindex" if path is None else path
            return (
                f"{subject}: expected {difference.expected}, found {difference.found}. "
                f"{difference.fault.effect}"
            )
    return None


def _has_data_batches(
    segments: Sequence[LoadedSegment], producer_id: int, first_offset: int, last_offset: int
) -> bool:
    """Return whether a producer has batches in a range of offsets, both ends inclusive."""
    for segment in segments:
        if segment.base_offset > last_offset:
            return False
        for chunk in LogBatches(
            segment.log, 0, segment.base_offset, verify_crc=False, any_offset=True
        ):
            is_data = (chunk.producer_id == producer_id) & (chunk.last_offset >= first_offset)
            if (is_data & (chunk.base_offset <= last_offset) & ~chunk.is_control).any():
                return True
    return False


def _find_epoch_fault(loaded: LoadedPartition, state: _LogState) -> str | None:
    log = loaded.log
    # `_predict_reappearing_records` checks separately whether the log started at the first epoch.
    start = max([log.log_start_offset, *(epoch.start_offset for epoch in log.epochs[:1])])
    wrong_epoch = first_wrong_epoch(LeaderEpochCache(log.epochs), state.epochs.ranges, start)
    if wrong_epoch is None:
        return None
    found_epoch = "no epoch" if wrong_epoch.found is None else f"epoch {wrong_epoch.found}"
    return (
        f"leader epochs: expected epoch {wrong_epoch.expected} at offset {wrong_epoch.offset}, "
        f"found {found_epoch}. Followers and consumers that compare epochs truncate at a wrong "
        "offset, or not at all"
    )


def _find_producer_fault(
    loaded: LoadedPartition, directory: str, state: _LogState, expiration: ProducerExpiration
) -> str | None:
    start = max(loaded.log.log_start_offset, loaded.segments[0].base_offset)
    expected = expiration.live(state.producers.entries)
    difference = compare_producers(expiration.live(loaded.log.producers), expected, start)
    if difference is None:
        return None
    return (
        f"{directory}: the producers in the loaded snapshot differ from those in the log: "
        f"expected producer {difference.producer_id}: {difference.expected}, found "
        f"{difference.found}. The broker may accept duplicates, reject producers, or expose "
        "records of open transactions"
    )
