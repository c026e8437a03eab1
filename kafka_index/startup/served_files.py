"""The files of a partition that a broker keeps without rebuilding, compared with its log.

A broker verifies no checksum of a log that it does not recover: consumers stop at a wrong checksum.
It verifies no entry of an index that it keeps: consumers skip records at a wrong entry. It trusts
time indexes, transaction indexes, producer snapshots and the leader epoch checkpoint. All of these
files are compared with the batches of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from kafka_index.index import AbortedTxns
from kafka_index.index.aborted_txns import compare_aborted_txns, next_starts
from kafka_index.layout.integers import INT64_MAX
from kafka_index.layout.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from kafka_index.layout.records import ABORTED_TXN, NO_TIMESTAMP
from kafka_index.records.batch_table import BatchColumns, ScanStop
from kafka_index.scan.entry_fit import (
    Misfit,
    OffsetEntryFit,
    StoredEntries,
    TimeEntryFit,
    read_offset_entries,
    read_time_entries,
)
from kafka_index.scan.file_records import LogBatches
from kafka_index.scan.scanner import BatchOrder, unknown_magic
from kafka_index.startup.loaded_segment import LoadedSegment
from kafka_index.startup.partition_loading import LoadedPartition
from kafka_index.state.epoch_ranges import EpochRanges, first_wrong_epoch
from kafka_index.state.leader_epochs import LeaderEpochCache
from kafka_index.state.partition_state import PartitionState, ProducerExpiration
from kafka_index.state.segment_state import ProducerTable, SegmentState
from kafka_index.state.snapshots import (
    compare_producers,
    is_out_of_range,
    load_latest_snapshot,
)
from kafka_index.stores.inputs import refuse_linked_out

_LATE = "lookups by timestamp and retention by time can be wrong"


@dataclass(frozen=True, slots=True)
class ServedFiles:
    """The first wrong file, and the reason if some files could not be checked."""

    fault: str | None = None
    unknown: str | None = None


def judge_served_files(
    loaded: LoadedPartition,
    directory: str,
    log_start: int,
    expiration: ProducerExpiration,
    *,
    is_compacted: bool,
) -> ServedFiles:
    """Check the files that a broker keeps.

    The log start is that of the checkpoint. In a compacted log batches of producers may be gone, so
    that its producers are not judged.
    """
    state = _LogState.before(loaded, directory, log_start)
    for segment in loaded.segments:
        try:
            fault = next(_faults(segment, state), None)
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
    """The producers, transactions and leader epochs by the batches of a log.

    `aborted` has the aborted transactions of each segment. `stop` is the first batch over which
    recovery would fail: the state is not known from there on, in the log at `path`.
    """

    producers: PartitionState
    aborted: list[AbortedTxns] = field(default_factory=list)
    epochs: EpochRanges = field(default_factory=EpochRanges)
    stop: ScanStop | None = None
    path: str = ""

    @classmethod
    def before(cls, loaded: LoadedPartition, directory: str, log_start: int) -> _LogState:
        """Return the state before the first segment, by the latest snapshot up to there."""
        first = loaded.segments[0].base_offset
        offsets = [
            offset
            for offset in loaded.files.snapshots
            if not is_out_of_range(offset, log_start, first)
        ]
        _, entries, _ = load_latest_snapshot(directory, offsets)
        return cls(PartitionState(entries))

    def add(self, table: ProducerTable, segment: LoadedSegment) -> None:
        """Add the producers of a segment."""
        if self.stop is None:
            aborted, self.stop = self.producers.apply(SegmentState.of_table(table))
            self.aborted.append(aborted)
            self.path = segment.path


def _faults(segment: LoadedSegment, state: _LogState) -> Iterator[str]:
    """Yield the errors in a segment, and add its batches to the state of the log."""
    found = segment.found
    if found is None:
        state.add(ProducerTable(), segment)
        return
    for path in found.not_files.values():
        yield f"{path} is no file: the first read there takes the data directory offline"
    entries = read_offset_entries(_read(segment, OFFSET_INDEX_SUFFIX), segment.base_offset)
    times = read_time_entries(_read(segment, TIME_INDEX_SUFFIX), segment.base_offset)
    fit, times_fit, order = OffsetEntryFit(entries), TimeEntryFit(times), BatchOrder(0)
    table, latest = ProducerTable(), NO_TIMESTAMP
    # What recovery rebuilds fits the log, whose checksums it has verified.
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
                yield f"{segment.path}: at byte {at} offsets go back: consumers are led astray"
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
    # Offsets beyond the end of the log do no harm: no fetch uses them.
    misfit = fit.misfit(INT64_MAX, len(segment.log))
    wrong = misfit.entry if entries.disorder is None and misfit else entries.disorder
    if wrong is not None:
        yield (
            f"{found.indexes[OFFSET_INDEX_SUFFIX]}: entry {wrong} does not point to the batch of "
            "its offset: fetches skip records, or start inside a batch"
        )
    misfit = times_fit.misfit(INT64_MAX, latest, is_closed=True)
    time_fault = _time_fault(times, misfit)
    time_index = found.indexes.get(TIME_INDEX_SUFFIX)
    if time_index is not None and time_fault is not None:
        yield f"{time_index}: {time_fault}: {_LATE}"
    elif time_index is None and latest >= 0 and not segment.is_split:
        yield f"{segment.path} has no .timeindex: {_LATE}"


def _time_fault(times: StoredEntries, misfit: Misfit | None) -> str | None:
    if times.disorder is not None:
        return f"entry {times.disorder} is not above the one before"
    if misfit is not None:
        return f"expected {misfit.expected}, found {misfit.found}"
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
    """Return an index file that a broker keeps; nothing where there is none, or it is rebuilt."""
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
    """Return whether batches of a producer are left in a range of offsets, both ends included."""
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
    # Whether the log began at the first epoch is another question (`_with_known_start`).
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
        f"{directory}: the snapshot that a broker loads has other producers than the log: expected "
        f"producer {difference.producer_id}: {difference.expected}, found {difference.found}. It "
        "can accept duplicates, refuse producers, or expose records of open transactions"
    )
