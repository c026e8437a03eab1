"""Find the last stable offset and the aborted transactions for ``read_committed`` reads.

They are computed from the transaction markers in the batches. Transaction indexes are not used:
they have no checksum, so only the batches could verify them. Producer snapshots have a checksum. As
in a broker, the latest snapshot is used to find the transactions that are open at the log end.
Sources: Kafka's ``UnifiedLog.collectAbortedTransactions`` and ``fetchLastStableOffsetMetadata``,
and the consumer's ``CompletedFetch``.
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

# Maximum size of a batch with a transaction marker. Currently it has 78 bytes.
_MAX_MARKER_BYTES = 128
_UNTRACKED = "the transactions of the log cannot be tracked: "


@dataclass(frozen=True, slots=True)
class AbortedTransactions:
    """Aborted transactions of a partition, sorted by producer ID and first offset.

    The last offset of a transaction is the offset of its transaction marker.
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

    def overlapping(self, first_offset: int, last_offset: int) -> AbortedTransactions:
        overlaps = (self.first_offsets <= last_offset) & (self.last_offsets >= first_offset)
        return AbortedTransactions(
            self.producer_ids[overlaps], self.first_offsets[overlaps], self.last_offsets[overlaps]
        )

    def mask(self, batches: BatchColumns) -> NDArray[np.bool_]:
        """Return which batches belong to an aborted transaction.

        As in the consumer, a batch belongs to an aborted transaction of its producer that starts at
        or before the batch's last offset, if the transaction marker follows the batch.
        """
        is_aborted = np.zeros(batches.rows, np.bool_)
        if not len(self.producer_ids):
            return is_aborted
        transaction_bits = batches.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)
        rows = np.flatnonzero(transaction_bits == TRANSACTIONAL_MASK)
        # A producer's transactions do not overlap, so only the latest one that starts up to the
        # batch can contain it.
        for producer_id in np.unique(batches.producer_id[rows]):
            start, end = np.searchsorted(self.producer_ids, [producer_id, producer_id + 1])
            if start == end:
                continue
            producer_rows = rows[batches.producer_id[rows] == producer_id]
            latest = np.searchsorted(
                self.first_offsets[start:end], batches.last_offset[producer_rows], "right"
            )
            markers = self.last_offsets[start:end][np.maximum(latest - 1, 0)]
            is_aborted[producer_rows] = (latest > 0) & (
                batches.base_offset[producer_rows] <= markers
            )
        return is_aborted


@dataclass(frozen=True, slots=True)
class TransactionBounds:
    """The last stable offset and the aborted transactions for a ``read_committed`` read.

    Attributes
    ----------
    last_stable_offset
        Exclusive upper bound of the read.
    aborted
        The aborted transactions that overlap with the range of the read.
    damage
        A corruption at or after the last stable offset that may hide transaction markers, None
        without one. Transactions after it are unknown.
    """

    last_stable_offset: int
    aborted: AbortedTransactions
    damage: CorruptLogError | None = None


def read_transactions(
    files: PartitionFiles, first_offset: int, end_offset: int, last_offset: int | None = None
) -> TransactionBounds:
    """Return the last stable offset, and the aborted transactions of a range of offsets.

    Reads the batches in the range, and later batches until all transactions with batches in the
    range have ended. Raises `CorruptLogError` if a batch contradicts the producer state, so that a
    broker would reject it too. Raises `InputError` if a file cannot be read.

    Parameters
    ----------
    first_offset, last_offset
        Inclusive range of offsets. By default, the range extends to `end_offset`. The range is
        empty if `last_offset` is below `first_offset`.
    end_offset
        The reader's upper bound: the high watermark or the log end offset.
    """
    last_offset = end_offset - 1 if last_offset is None else min(last_offset, end_offset - 1)
    base_offsets = np.array([segment.base_offset for segment in files.segments], np.int64)
    count = int(np.searchsorted(base_offsets, end_offset))
    end_state, snapshot_number = _read_producers_before(files, count, end_offset)
    first_number = count
    if first_offset <= last_offset:
        first_number = max(int(np.searchsorted(base_offsets, first_offset, "right")) - 1, 0)
    # Batches before the range do not affect whether batches in the range are aborted, so this state
    # starts without transactions.
    range_state = PartitionState()
    aborted: list[NDArray[np.void]] = []
    damage = None
    for number in range(min(first_number, snapshot_number), count):
        segment = files.segments[number]
        is_read = number >= first_number and (
            segment.base_offset <= last_offset or _has_open_transaction(range_state, last_offset)
        )
        if not is_read and number < snapshot_number:
            continue
        states = [range_state] * is_read + [end_state] * (number >= snapshot_number)
        is_open = any(state.first_unstable_offset is not None for state in states)
        following_base = int(base_offsets[number + 1]) if number + 1 < len(base_offsets) else None
        segment_state, hidden = _follow_segment(
            segment, (following_base, end_offset), is_open=is_open
        )
        entries = [_apply(state, segment_state, segment) for state in states]
        aborted += entries[:is_read]
        if hidden is None:
            continue
        if (
            number < snapshot_number
            and hidden.offset > last_offset
            and not _has_open_transaction(range_state, last_offset)
        ):
            continue
        end_offset, damage = hidden
        end_state = end_state if number >= snapshot_number else range_state
        break
    return TransactionBounds(
        last_stable_offset_of_log(
            end_state.first_unstable_offset, files.log_start_offset, end_offset
        ),
        AbortedTransactions.of_entries(aborted),
        damage,
    )


def _has_open_transaction(state: PartitionState, last_offset: int) -> bool:
    first = state.first_unstable_offset
    return first is not None and first <= last_offset


def _read_producers_before(
    files: PartitionFiles, number: int, end_offset: int
) -> tuple[PartitionState, int]:
    """Return the latest known producers, and the number of the segment that follows them.

    The number is at most `number`. The producers are read from the latest snapshot that a broker
    would load (UnifiedLog.rebuildProducerState). A clean shutdown leaves a snapshot at the log end.
    Each remote segment was uploaded with the snapshot at its end.
    """
    # If a tiered partition has local segments, its last segment is local.
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
            entries = _read_uploaded_snapshot(files.segments[candidate - 1])
        if entries is not None:
            return PartitionState(entries), candidate
    return PartitionState(), 0


def _read_uploaded_snapshot(segment: SegmentFile) -> NDArray[np.void] | None:
    """Return the producers at the end of a remote segment, None without a valid snapshot."""
    if not is_segment_path(segment.log_path):
        return None
    path = segment.log_path.removesuffix(LOG_SUFFIX) + SNAPSHOT_SUFFIX
    try:
        return decode_snapshot(store_of(path).read(path), path=path)
    except (FileNotFoundError, CorruptObjectError, CorruptSnapshotError):
        return None


class _HiddenMarkers(NamedTuple):
    """A corruption that may hide transaction markers, and the lowest offset that they may have."""

    offset: int
    error: CorruptLogError


def _follow_segment(
    segment: SegmentFile, bounds: tuple[int | None, int], *, is_open: bool
) -> tuple[SegmentState, _HiddenMarkers | None]:
    """Return the state after a segment's batches, up to a corruption that may hide a marker.

    Batches out of order, and transactional batches with a wrong checksum, are skipped, because
    readers skip them too. While a transaction is open, such a batch may have been the transaction
    marker that ends it. However, a corrupt batch that is larger than a marker is not one.

    Parameters
    ----------
    bounds
        The base offset of the next segment, and the reader's upper bound.
    is_open
        True if a transaction of an earlier segment is open.
    """
    table = ProducerTable()
    following_base, end_offset = bounds
    order = BatchOrder(segment.base_offset, following_base)
    source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
    for window, start, batches in source.windows():
        for offset, stop in _follow_chunk(table, order, batches, window, start, end_offset):
            if stop.refused:
                raise stop.error(CorruptLogError, segment.log_path, _UNTRACKED)
            if is_open or (table.producers["current_txn_first_offset"] >= 0).any():
                return SegmentState.of_table(table), _HiddenMarkers(
                    offset, stop.error(CorruptLogError, segment.log_path)
                )
        if int(batches.base_offset[-1]) >= end_offset:
            return SegmentState.of_table(table), None
    end, hidden = source.stop, None
    is_tail = end is None or (end.is_tail and segment.is_last)
    if end is not None and not is_tail and order.next_offset < end_offset:
        hidden = _HiddenMarkers(order.next_offset, end.error(CorruptLogError, segment.log_path))
    return SegmentState.of_table(table), hidden


def _follow_chunk(
    table: ProducerTable,
    order: BatchOrder,
    batches: BatchColumns,
    window: Bytes,
    window_position: int,
    end_offset: int,
) -> Iterator[tuple[int, ScanStop]]:
    """Add batches below `end_offset` to a table; yield corruptions that may hide markers.

    Each corruption is yielded with the offset after the last batch before it.
    """
    for ordered in order.follow(batches):
        next_offset = order.next_offset
        if isinstance(ordered, ScanStop):
            yield next_offset, ordered
            continue
        end_rows = np.flatnonzero(ordered.base_offset >= end_offset)
        bounded = ordered.slice(0, int(end_rows[0])) if len(end_rows) else ordered
        row = 0
        for wrong_row in [*_find_wrong_checksums(bounded, window, window_position), bounded.rows]:
            if row < wrong_row:
                _, stop = table.follow(bounded.slice(row, wrong_row))
                if stop is not None:
                    yield next_offset, replace(stop, refused=True)
                next_offset = int(bounded.last_offset[wrong_row - 1]) + 1
            if wrong_row < bounded.rows and bounded.size_bytes[wrong_row] <= _MAX_MARKER_BYTES:
                yield next_offset, ScanStop(BAD_CRC, int(bounded.position_bytes[wrong_row]))
            row = wrong_row + 1


def _find_wrong_checksums(batches: BatchColumns, window: Bytes, window_position: int) -> list[int]:
    """Return the rows of transactional or marker-sized batches with wrong checksums."""
    is_checked = batches.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK) != 0
    rows = np.flatnonzero(is_checked | (batches.size_bytes <= _MAX_MARKER_BYTES))
    matches = np.empty(len(rows), np.bool_)
    starts = batches.position_bytes[rows] - window_position
    fill_checksum_matches(window, starts, batches.size_bytes[rows], matches)
    wrong_rows: list[int] = rows[~matches].tolist()
    return wrong_rows


def _apply(
    state: PartitionState, segment_state: SegmentState, segment: SegmentFile
) -> NDArray[np.void]:
    """Apply a segment to a state; return the aborted transactions that the segment ends."""
    aborted, stop = state.apply(segment_state)
    if stop is not None:
        raise stop.error(CorruptLogError, segment.log_path, _UNTRACKED)
    return aborted
