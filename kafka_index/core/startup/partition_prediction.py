"""The prediction for a loaded partition: its segments, lost records, served files and notes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np

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
    KnownOffsets,
    MissingOffsets,
    MissingRange,
    SeenLog,
    missing_offsets,
    see_log,
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
from kafka_index.core.startup.conditions import OffsetRanges, Retention, is_known, known_notes
from kafka_index.core.startup.partition_loading import (
    LoadedPartition,
    LoadedSegment,
    Loading,
    changed_segments,
    lost_records,
)
from kafka_index.core.startup.prediction import LostRecords, Outcome, PartitionPrediction

_WRONG_TIMES = "lookups by timestamp and retention by time can be wrong"


def predict_loaded(
    predicted: PartitionPrediction,
    loaded: LoadedPartition,
    loading: Loading,
    known: KnownOffsets,
    known_losses: OffsetRanges = (),
) -> PartitionPrediction:
    """Return the prediction for a loaded partition.

    Missing offsets in `known_losses` were lost before this startup. Raises `KafkaIndexError` if a
    log cannot be read.
    """
    files = loaded.files
    is_emptied = bool(loaded.deleted) and not any(one.found for one in loaded.segments)
    visible_from = 0 if is_emptied else loading.log_start_offset
    lost, end_before = lost_records(loaded, visible_from)
    bases = [segment.log.base_offset for segment in files.segments]
    start_before = max(loading.log_start_offset, min(bases, default=0))
    # Segments that were split off are read with the original log.
    sizes: dict[str, int] = {}
    for one in loaded.segments:
        if one.found is not None:
            end = one.start_bytes + one.size_bytes
            sizes[one.path] = max(sizes.get(one.path, 0), end)
    cleaned_to = known.cleaning.cleaned_to or 0
    logs = [
        see_log(one.log, cleaned_to, sizes[one.log.log_path])
        for one in files.segments
        if one.log.log_path in sizes
    ]
    missing = _missing(logs, known, end_before, files.lost_ends)
    lost_before = [each for each in missing.unexplained if is_known(each, known_losses)]
    unexplained = [each for each in missing.unexplained if each not in lost_before]
    unknown = [each for each in unexplained if each.cause is not Cause.LOST]
    return replace(
        predicted,
        outcome=Outcome.EMPTIED if is_emptied else Outcome.LOADED,
        log_start_before=start_before,
        log_end_before=max(end_before, loaded.log.log_end_offset if bases else 0),
        loaded=loaded.log,
        lost=lost,
        bytes_read=loaded.bytes_read,
        segments=tuple(changed_segments(loaded)),
        torn_bytes=loaded.segments[-1].torn_bytes(),
        missing=tuple(unexplained),
        unserved=_unreadable_reason(logs, loaded.log.log_start_offset),
        unknown=f"offsets {unknown[0].first_offset} to {unknown[0].last_offset} are missing: "
        f"{unknown[0].why}"
        if unknown
        else None,
        notes=(
            *known_notes(lost_before),
            *_gap_notes(unexplained, missing),
            *_end_notes(loaded, lost),
        ),
    )


def _missing(
    logs: Sequence[SeenLog], known: KnownOffsets, end_before: int, lost_ends: Mapping[int, int]
) -> MissingOffsets:
    """Return the offsets missing from the logs that a broker loads."""
    if not logs:
        return MissingOffsets(known.cleaning)
    # Records that startup truncates or deletes count as lost, not as missing.
    logs[-1].damage_end = end_before
    return missing_offsets(
        logs,
        known,
        shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES),
        lost_ends,
    )


def _unreadable_reason(logs: Sequence[SeenLog], log_start_offset: int) -> str | None:
    """Return why a broker cannot find offsets of a log: it searches the next segment for them."""
    for log, following in pairwise(logs):
        first = max(following.segment.base_offset, log_start_offset)
        if log.offsets.end_offset > first:
            return (
                f"{following.segment.log_path}: a broker reads offsets {first} to "
                f"{log.offsets.end_offset - 1} from this log, but they are in the previous log"
            )
    return None


def _gap_notes(unexplained: Sequence[MissingRange], missing: MissingOffsets) -> Iterable[str]:
    for each in unexplained:
        yield (
            f"gap: offsets {each.first_offset} to {each.last_offset} are missing, and brokers do "
            f"not report it; {each.why}"
        )
    if missing.unnamed:
        yield f"gap: offsets are missing in {sum(missing.unnamed.values())} more places"


def _end_notes(loaded: LoadedPartition, lost: LostRecords) -> Iterable[str]:
    last = loaded.segments[-1]
    if lost.records and last.size_bytes and loaded.log.log_end_offset <= last.base_offset:
        yield (
            "hidden: the log ends at the base offset of its last segment, and new records "
            "overlap it"
        )
    elif last.torn_bytes():
        yield (
            f"torn: {last.torn_bytes()} bytes remain after the last batch; records that are "
            "appended after them are not readable"
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
    """Return a prediction with the offsets that the broker serves, and its later deletions."""
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
    predicted = _with_known_start(predicted, loaded, directory)
    predicted = replace(
        predicted,
        unserved="; ".join(filter(None, unserved)) or None,
        unknown=predicted.unknown or served.unknown,
        high_watermark=min(max(watermark, loaded.log.log_start_offset), loaded.log.log_end_offset),
    )
    return _with_retention(predicted, loaded, retention, expiration.now_ms)


def _with_known_start(
    predicted: PartitionPrediction, loaded: LoadedPartition, directory: DataDirectory
) -> PartitionPrediction:
    """Return a prediction with reappearing records, if the leader epochs show the log start.

    A broker drops the epochs before a log start, so the first remaining epoch starts there. It can
    also start at a segment from which recovery rebuilt the epochs.
    """
    start, end = loaded.log.log_start_offset, loaded.log.log_end_offset
    if end <= start:
        return predicted
    epochs = parse_leader_epoch_checkpoint(
        read_text(os.path.join(predicted.directory, LEADER_EPOCH_CHECKPOINT)) or ""
    )
    # A broker never keeps an epoch that starts after the log end.
    first = min((one.start_offset for one in epochs if one.start_offset <= end), default=None)
    has_log_starts = directory.checkpoint(LOG_START_CHECKPOINT).has_entries
    if first is None:
        names = RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT
        was_started = any(directory.checkpoint(name).offsets for name in names)
        if has_log_starts or not was_started:
            return predicted
        text = "the log start offset is lost: deleted records may reappear"
        return replace(predicted, unknown=text)
    count = _reappearing_records(loaded, first)
    if not count:
        return predicted
    offsets = f"offsets {start} to {first - 1}"
    if has_log_starts:
        # A broker that used these epochs has written the checkpoint without the log start.
        text = (
            f"the log starts at {first} by the leader epochs, but earlier by the checkpoint: "
            f"{offsets} may be deleted records that reappear"
        )
        return replace(predicted, unknown=text)
    note = (
        f"the log start offset {first} (by the leader epochs) is lost: {count} deleted records "
        f"reappear, {offsets}"
    )
    return replace(predicted, records_back=count, notes=(*predicted.notes, note))


def _reappearing_records(loaded: LoadedPartition, first_kept: int) -> int:
    """Count the records below an earlier log start offset, which startup makes readable again."""
    count = 0
    for segment in loaded.segments:
        if segment.base_offset < first_kept:
            for chunk in LogBatches(segment.log, 0, segment.base_offset, verify_crc=False):
                last = np.minimum(chunk.last_offset, first_kept - 1)
                first = np.maximum(chunk.base_offset, loaded.log.log_start_offset)
                count += int(np.maximum(last - first + 1, 0).sum())
            segment.release()
    return count


def _with_retention(
    predicted: PartitionPrediction, loaded: LoadedPartition, retention: Retention, now_ms: int
) -> PartitionPrediction:
    """Return a prediction with the effect of retention at a time, if it is known.

    ``LogManager`` deletes old segments for the first time 30 seconds after startup.
    """
    if not retention.is_known:
        return predicted
    segments, log = loaded.segments, loaded.log
    sizes_bytes = [segment.size_bytes for segment in segments]
    by_size = count_beyond_size(sizes_bytes, 0, retention.retention_bytes or 0)
    count = count_beyond_time(
        sizes_bytes,
        by_size,
        retention.retention_ms or 0,
        now_ms,
        lambda number: segments[number].largest_timestamp_ms(now_ms),
    )
    if not count:
        return replace(predicted, log_start_retained=log.log_start_offset)
    end = log.log_end_offset if count == len(segments) else segments[count].base_offset
    start = max(log.log_start_offset, end)
    limits = [
        f"{name} {limit}"
        for name, limit, is_met in (
            ("retention.bytes", retention.retention_bytes, by_size),
            ("retention.ms", retention.retention_ms, count > by_size),
        )
        if is_met
    ]
    note = (
        f"retention: 30 seconds after the start {count} of {len(segments)} segments are deleted, "
        f"up to offset {end - 1}, because of {' and '.join(limits)}"
    )
    return replace(
        predicted,
        log_start_retained=start,
        segments_to_delete=count,
        notes=(*predicted.notes, note),
    )


def replaced_by(current: PartitionPrediction, future: PartitionPrediction) -> PartitionPrediction:
    note = f"replaced by the future replica {future.directory}, and deleted later"
    lost = LostRecords()
    if current.loaded is not None and future.loaded is not None:
        log, other = current.loaded, future.loaded
        first, end = log.log_start_offset, log.log_end_offset
        for begin, until in (
            (first, min(end, other.log_start_offset)),
            (max(first, other.log_end_offset), end),
        ):
            if begin < until:
                lost.records += until - begin
                lost.first_offset = begin if lost.first_offset is None else lost.first_offset
                lost.last_offset = until - 1
    return replace(
        current,
        outcome=Outcome.REPLACED,
        lost=lost,
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
    """Check the files that a broker keeps.

    `log_start` comes from the checkpoint. Producers of a compacted log are not checked, since
    compaction can remove their batches.
    """
    state = _LogState.before(loaded, directory, log_start)
    for segment in loaded.segments:
        try:
            fault = next(_segment_faults(segment, state), None)
        finally:
            segment.release()
        if fault is not None:
            return ServedFiles(fault)
    if state.stop is not None:
        at, path = state.stop.position_bytes, state.path
        return ServedFiles(
            unknown=f"transaction indexes, snapshots and leader epochs were not checked: {path}: "
            f"{state.stop.name} at byte {at}"
        )
    found = _aborted_fault(loaded, state) or _epoch_fault(loaded, state)
    if found is None and not is_compacted:
        found = _producer_fault(loaded, directory, state, expiration)
    return ServedFiles(found)


@dataclass
class _LogState:
    """Producers, transactions and leader epochs computed from the batches of a log.

    `aborted` has the aborted transactions of each segment. `stop` is the first batch on which
    recovery would fail; the state after it in the log at `path` is unknown.
    """

    producers: PartitionState
    aborted: list[AbortedTxns] = field(default_factory=list)
    epochs: EpochRanges = field(default_factory=EpochRanges)
    stop: ScanStop | None = None
    path: str = ""

    @classmethod
    def before(cls, loaded: LoadedPartition, directory: str, log_start: int) -> _LogState:
        """Return the state at the start of the first segment, from the latest snapshot before."""
        first = loaded.segments[0].base_offset
        offsets = [
            offset
            for offset in loaded.files.snapshots
            if not is_out_of_range(offset, log_start, first)
        ]
        _, entries, _ = load_latest_snapshot(directory, offsets)
        return cls(PartitionState(entries))

    def add(self, table: ProducerTable, segment: LoadedSegment) -> None:
        if self.stop is None:
            aborted, self.stop = self.producers.apply(SegmentState.of_table(table))
            self.aborted.append(aborted)
            self.path = segment.path


def _segment_faults(segment: LoadedSegment, state: _LogState) -> Iterator[str]:
    found = segment.found
    if found is None:
        state.add(ProducerTable(), segment)
        return
    for path in found.not_files.values():
        yield f"{path} is not a file: the first read takes the data directory offline"
    entries = read_offset_entries(_read(segment, OFFSET_INDEX_SUFFIX), segment.base_offset)
    times = read_time_entries(_read(segment, TIME_INDEX_SUFFIX), segment.base_offset)
    fit, times_fit, order = OffsetEntryCheck(entries), TimeEntryCheck(times), BatchOrder(0)
    table, latest = ProducerTable(), NO_TIMESTAMP
    # Rebuilt index files match the log, because recovery has verified its checksums.
    is_kept = not segment.is_rebuilt
    batches = LogBatches(
        segment.log, 0, segment.base_offset, verify_crc=is_kept, any_offset=is_kept
    )
    for chunk in batches:
        if is_kept:
            fit.observe(chunk)
            times_fit.observe(chunk)
            latest = max(latest, int(chunk.max_timestamp_ms.max()))
            stop = order.first_stop(chunk)
            if stop is not None:
                at = stop.position_bytes
                yield (
                    f"{segment.path}: offsets decrease at byte {at}: consumers receive wrong "
                    "offsets"
                )
        stop = unknown_magic(chunk)
        if stop is not None:
            yield f"{segment.path}: {stop.name} at byte {stop.position_bytes}: consumers stop there"
        _follow(chunk, table, segment, state)
    state.add(table, segment)
    if not is_kept:
        return
    if batches.stop is not None:
        stop = batches.stop
        yield f"{segment.path}: {stop.name} at byte {stop.position_bytes}: consumers stop there"
    # Index entries beyond the end of the log are harmless: no fetch uses them.
    mismatch = fit.mismatch(INT64_MAX, len(segment.log))
    wrong = mismatch.entry if entries.disorder is None and mismatch else entries.disorder
    if wrong is not None:
        yield (
            f"{found.indexes[OFFSET_INDEX_SUFFIX]}: entry {wrong} does not point to the batch of "
            "its offset: fetches skip records, or start inside a batch"
        )
    mismatch = times_fit.mismatch(INT64_MAX, latest, is_closed=True)
    time_fault = _time_fault(times, mismatch)
    time_index = found.indexes.get(TIME_INDEX_SUFFIX)
    if time_index is not None and time_fault is not None:
        yield f"{time_index}: {time_fault}: {_WRONG_TIMES}"
    elif time_index is None and latest >= 0 and not segment.is_split:
        yield f"{segment.path} has no .timeindex: {_WRONG_TIMES}"


def _time_fault(times: StoredEntries, mismatch: IndexMismatch | None) -> str | None:
    if times.disorder is not None:
        return f"entry {times.disorder} is not above the previous entry"
    if mismatch is not None:
        return f"expected {mismatch.expected}, found {mismatch.found}"
    if times.padding or times.torn_bytes:
        return f"other bytes follow the {len(times.offsets)} entries"
    return None


def _follow(
    chunk: BatchColumns, table: ProducerTable, segment: LoadedSegment, state: _LogState
) -> None:
    state.epochs.observe(chunk)
    if state.stop is None:
        _, state.stop = table.follow(chunk)
        state.path = segment.path


def _read(segment: LoadedSegment, suffix: str) -> bytes:
    """Return an index file that a broker keeps; empty if it is missing or rebuilt."""
    path = None if segment.found is None else segment.found.indexes.get(suffix)
    if path is None or segment.is_rebuilt:
        return b""
    refuse_linked_out(path)
    with open(path, "rb") as file:
        return file.read()


def _aborted_fault(loaded: LoadedPartition, state: _LogState) -> str | None:
    segments, log = loaded.segments, loaded.log
    unstable = state.producers.first_unstable_offset
    open_from = min(log.log_end_offset if unstable is None else unstable, log.log_end_offset)
    starts = next_starts(state.aborted, open_from)
    for segment, expected, next_start in zip(segments, state.aborted, starts, strict=True):
        if segment.is_rebuilt or segment.found is None:
            continue
        data = _read(segment, TXN_INDEX_SUFFIX)
        stored = np.frombuffer(data, ABORTED_TXN, len(data) // ABORTED_TXN.itemsize)

        difference = compare_aborted_txns(
            stored, expected, partial(_has_data, segments), next_start
        )
        if difference is not None:
            path = segment.found.indexes.get(TXN_INDEX_SUFFIX)
            what = f"{segment.path} has no .txnindex" if path is None else path
            return (
                f"{what}: expected {difference.expected}, found {difference.found}. "
                f"{difference.fault.effect}"
            )
    return None


def _has_data(segments: Sequence[LoadedSegment], producer: int, first: int, last: int) -> bool:
    """Return whether a producer has batches in a range of offsets, both ends inclusive."""
    for segment in segments:
        if segment.base_offset > last:
            return False
        for chunk in LogBatches(
            segment.log, 0, segment.base_offset, verify_crc=False, any_offset=True
        ):
            is_data = (chunk.producer_id == producer) & (chunk.last_offset >= first)
            if (is_data & (chunk.base_offset <= last) & ~chunk.is_control).any():
                return True
    return False


def _epoch_fault(loaded: LoadedPartition, state: _LogState) -> str | None:
    log = loaded.log
    # `_with_known_start` checks separately whether the log started at the first epoch.
    start = max([log.log_start_offset, *(each.start_offset for each in log.epochs[:1])])
    wrong = first_wrong_epoch(LeaderEpochCache(log.epochs), state.epochs.ranges, start)
    if wrong is None:
        return None
    found = "no epoch" if wrong.found is None else f"epoch {wrong.found}"
    return (
        f"leader epochs: expected epoch {wrong.expected} at offset {wrong.offset}, found {found}: "
        "followers and consumers that compare epochs truncate at a wrong offset, or not at all"
    )


def _producer_fault(
    loaded: LoadedPartition, directory: str, state: _LogState, expiration: ProducerExpiration
) -> str | None:
    start = max(loaded.log.log_start_offset, loaded.segments[0].base_offset)
    expected = expiration.live(state.producers.entries)
    difference = compare_producers(expiration.live(loaded.log.producers), expected, start)
    if difference is None:
        return None
    return (
        f"{directory}: the snapshot that a broker loads has other producers than the log: "
        f"expected producer {difference.producer_id}: {difference.expected}, found "
        f"{difference.found}. The broker may accept duplicates, reject producers, or expose "
        "records of open transactions"
    )
