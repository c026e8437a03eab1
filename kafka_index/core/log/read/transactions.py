"""The batches that ``read_committed`` excludes: aborted, or after the last stable offset.

Only the markers in the log decide. Transaction indexes are not used: they have no checksum and can
be verified only against the batches. Snapshots have a checksum, and are used near the end of the
log, as in a broker. Sources: Kafka's ``UnifiedLog.collectAbortedTransactions`` and
``fetchLastStableOffsetMetadata``, and the consumer's ``CompletedFetch``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptLogError, CorruptObjectError, CorruptSnapshotError
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import LOG_SUFFIX, SNAPSHOT_SUFFIX
from kafka_index.core.format.records import ABORTED_TXN, CONTROL_MASK, TRANSACTIONAL_MASK
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Bytes
from kafka_index.core.fs.uris import is_segment_path
from kafka_index.core.kernels.batch_header import fill_checksum_matches
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.scan.scanner import BatchOrder
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.log.state.partition_state import (
    PartitionState,
    ProducerTable,
    SegmentState,
    last_stable_offset_of_log,
)
from kafka_index.core.log.state.snapshots import (
    decode_snapshot,
    is_out_of_range,
    list_snapshots,
    load_latest_snapshot,
)
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import BAD_CRC, BatchColumns, ScanStop

# A transaction marker has 78 bytes; later versions may have more.
_MAX_MARKER_BYTES = 128
_CANNOT_FOLLOW = "its transactions cannot be followed: "


@dataclass(frozen=True, slots=True)
class AbortedTransactions:
    """Aborted transactions of a partition, sorted by producer and first offset.

    Last offsets are the offsets of the markers.
    """

    producer_ids: Longs
    first_offsets: Longs
    last_offsets: Longs

    @classmethod
    def of_entries(cls, entries: Sequence[NDArray[np.void]]) -> AbortedTransactions:
        joined = np.concatenate([np.empty(0, ABORTED_TXN), *entries])
        columns = [
            joined[name].astype(np.int64) for name in ("producer_id", "first_offset", "last_offset")
        ]
        order = np.lexsort((columns[1], columns[0]))
        return cls(*(column[order] for column in columns))

    def within(self, first_offset: int, last_offset: int) -> AbortedTransactions:
        kept = (self.first_offsets <= last_offset) & (self.last_offsets >= first_offset)
        return AbortedTransactions(
            self.producer_ids[kept], self.first_offsets[kept], self.last_offsets[kept]
        )

    def hold(self, batches: BatchColumns) -> NDArray[np.bool_]:
        """Return which batches belong to an aborted transaction.

        As in the consumer: the producer has an aborted transaction that starts at or before the
        batch's last offset and whose marker follows.
        """
        held = np.zeros(batches.rows, np.bool_)
        if not len(self.producer_ids):
            return held
        kind = batches.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)
        rows = np.flatnonzero(kind == TRANSACTIONAL_MASK)
        # A producer's transactions do not overlap, so only the latest started one can contain a
        # batch. Two searches find the rank of a pair of producer and offset.
        for producer_id in np.unique(batches.producer_id[rows]):
            start, end = np.searchsorted(self.producer_ids, [producer_id, producer_id + 1])
            if start == end:
                continue
            own = rows[batches.producer_id[rows] == producer_id]
            latest = np.searchsorted(
                self.first_offsets[start:end], batches.last_offset[own], "right"
            )
            markers = self.last_offsets[start:end][np.maximum(latest - 1, 0)]
            held[own] = (latest > 0) & (batches.base_offset[own] <= markers)
        return held


@dataclass(frozen=True, slots=True)
class TransactionBounds:
    """The bounds of a ``read_committed`` read of a partition.

    `last_stable_offset` is exclusive. `aborted` has the aborted transactions with batches in the
    range. `damage` is a corruption after which transactions are unknown; the last stable offset is
    at or before it.
    """

    last_stable_offset: int
    aborted: AbortedTransactions
    damage: CorruptLogError | None = None


def read_transactions(
    files: PartitionFiles, first_offset: int, end_offset: int, last_offset: int | None = None
) -> TransactionBounds:
    """Return the last stable offset, and the aborted transactions of a range of offsets.

    `first_offset` and `last_offset` are inclusive; by default the range extends to the end, and it
    is empty if last is below first. `end_offset` is the reader's upper bound: high watermark or log
    end. Reads the batches of the range, and later batches up to the end of all transactions with a
    batch in the range. Raises `CorruptLogError` if a batch contradicts earlier transactions, so
    that a broker would fail too, and `InputError` if a file cannot be read.
    """
    last_offset = end_offset - 1 if last_offset is None else min(last_offset, end_offset - 1)
    bases = np.array([segment.base_offset for segment in files.segments], np.int64)
    count = int(np.searchsorted(bases, end_offset))
    known, start = _state_before(files, count, end_offset)
    first = count
    if first_offset <= last_offset:
        first = max(int(np.searchsorted(bases, first_offset, "right")) - 1, 0)
    # Only transactions with batches in this range are tracked; their earlier part is irrelevant.
    own = PartitionState()
    aborted: list[NDArray[np.void]] = []
    damage = None
    for number in range(min(first, start), count):
        segment = files.segments[number]
        is_read = number >= first and (
            segment.base_offset <= last_offset or _has_open(own, last_offset)
        )
        if not is_read and number < start:
            continue
        states = [own] * is_read + [known] * (number >= start)
        is_open = any(state.first_unstable_offset is not None for state in states)
        following_base = int(bases[number + 1]) if number + 1 < len(bases) else None
        followed, hidden = _follow(segment, (following_base, end_offset), is_open=is_open)
        entries = [_apply(state, followed, segment) for state in states]
        aborted += entries[:is_read]
        if hidden is None:
            continue
        if number < start and hidden.offset > last_offset and not _has_open(own, last_offset):
            continue
        end_offset, damage = hidden
        known = known if number >= start else own
        break
    return TransactionBounds(
        last_stable_offset_of_log(known.first_unstable_offset, files.log_start_offset, end_offset),
        AbortedTransactions.of_entries(aborted),
        damage,
    )


def _has_open(state: PartitionState, last_offset: int) -> bool:
    first = state.first_unstable_offset
    return first is not None and first <= last_offset


def _state_before(
    files: PartitionFiles, number: int, end_offset: int
) -> tuple[PartitionState, int]:
    """Return the producers at the start of the given or an earlier segment, and its number.

    They come from the latest snapshot that a broker would load there (UnifiedLog.
    rebuildProducerState); a clean shutdown leaves one at the log end. Each remote segment was
    uploaded with the snapshot at its end.
    """
    # If any segment of a tiered partition is local, the last one is.
    directory = files.segments[-1].partition_directory
    offsets = set() if is_segment_path(directory) else set(list_snapshots(directory))
    ends = [*(segment.base_offset for segment in files.segments[:number]), end_offset]
    if number < len(files.segments):
        ends[-1] = min(end_offset, files.segments[number].base_offset)
    for candidate in range(number, -1, -1):
        offset = ends[candidate]
        if is_out_of_range(offset, files.log_start_offset, end_offset):
            continue
        entries = None
        if offset in offsets:
            _, entries, _ = load_latest_snapshot(directory, [offset])
        elif 0 < candidate < number:
            entries = _uploaded_snapshot(files.segments[candidate - 1])
        if entries is not None:
            return PartitionState(entries), candidate
    return PartitionState(), 0


def _uploaded_snapshot(segment: SegmentFile) -> NDArray[np.void] | None:
    """Return the producers at the end of a remote segment, None if there is no snapshot."""
    if not is_segment_path(segment.log_path):
        return None
    path = segment.log_path.removesuffix(LOG_SUFFIX) + SNAPSHOT_SUFFIX
    try:
        return decode_snapshot(store_of(path).read(path), path=path)
    except (FileNotFoundError, CorruptObjectError, CorruptSnapshotError):
        return None


class _Hidden(NamedTuple):
    """A corruption, and the offset from which on it may contain markers."""

    offset: int
    error: CorruptLogError


def _follow(
    segment: SegmentFile, bounds: tuple[int | None, int], *, is_open: bool
) -> tuple[SegmentState, _Hidden | None]:
    """Return the effect of a segment's batches, up to a corruption that may contain a marker.

    `bounds` are the base offset of the next segment and the reader's upper bound. `is_open` means
    that a transaction of an earlier segment is open. Batches out of order, and transactional
    batches with a wrong checksum, are skipped, as by readers. While a transaction is open, a batch
    that is out of order or as small as a marker may have ended it, whatever its header contains.
    """
    table = ProducerTable()
    following_base, end_offset = bounds
    order = BatchOrder(segment.base_offset, following_base)
    source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
    for window, start, batches in source.windows():
        for offset, stop in _followed(table, order, batches, window, start, end_offset):
            if stop.refused:
                raise stop.error(CorruptLogError, segment.log_path, _CANNOT_FOLLOW)
            if is_open or (table.producers["current_txn_first_offset"] >= 0).any():
                return SegmentState.of_table(table), _Hidden(
                    offset, stop.error(CorruptLogError, segment.log_path)
                )
        if int(batches.base_offset[-1]) >= end_offset:
            return SegmentState.of_table(table), None
    end, hidden = source.stop, None
    is_tail = end is None or (end.is_tail and segment.is_last)
    if end is not None and not is_tail and order.next_offset < end_offset:
        hidden = _Hidden(order.next_offset, end.error(CorruptLogError, segment.log_path))
    return SegmentState.of_table(table), hidden


def _followed(
    table: ProducerTable,
    order: BatchOrder,
    batches: BatchColumns,
    window: Bytes,
    window_position: int,
    end_offset: int,
) -> Iterator[tuple[int, ScanStop]]:
    """Add batches below an offset to a table; yield corruptions that may have been markers.

    Each comes with the offset after the last batch before it.
    """
    for found in order.follow(batches):
        following = order.next_offset
        if isinstance(found, ScanStop):
            yield following, found
            continue
        above = np.flatnonzero(found.base_offset >= end_offset)
        kept = found.slice(0, int(above[0])) if len(above) else found
        row = 0
        for wrong in [*_wrong_rows(kept, window, window_position), kept.rows]:
            if row < wrong:
                _, stop = table.follow(kept.slice(row, wrong))
                if stop is not None:
                    yield following, replace(stop, refused=True)
                following = int(kept.last_offset[wrong - 1]) + 1
            if wrong < kept.rows and kept.size_bytes[wrong] <= _MAX_MARKER_BYTES:
                yield following, ScanStop(BAD_CRC, int(kept.position_bytes[wrong]))
            row = wrong + 1


def _wrong_rows(batches: BatchColumns, window: Bytes, window_position: int) -> list[int]:
    """Return batches with a wrong checksum that are transactional or as small as a marker."""
    is_checked = batches.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK) != 0
    rows = np.flatnonzero(is_checked | (batches.size_bytes <= _MAX_MARKER_BYTES))
    matches = np.empty(len(rows), np.bool_)
    starts = batches.position_bytes[rows] - window_position
    fill_checksum_matches(window, starts, batches.size_bytes[rows], matches)
    wrong: list[int] = rows[~matches].tolist()
    return wrong


def _apply(state: PartitionState, followed: SegmentState, segment: SegmentFile) -> NDArray[np.void]:
    """Apply a segment to a state; return its aborted transactions."""
    aborted, stop = state.apply(followed)
    if stop is not None:
        raise stop.error(CorruptLogError, segment.log_path, _CANNOT_FOLLOW)
    return aborted
