"""What ``read_committed`` leaves out: aborted transactions, and all from the last stable offset on.

They come from the files of a broker where it would load those, and are rebuilt from the log where
it would recover the segment. Sources: Kafka's ``UnifiedLog.collectAbortedTransactions`` and
``fetchLastStableOffsetMetadata``, ``LogSegment.sanityCheck``, and the consumer's
``CompletedFetch``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kafka_index.errors import CorruptIndexError, CorruptLogError, CorruptObjectError
from kafka_index.index import TransactionIndex
from kafka_index.layout.integers import Longs
from kafka_index.layout.names import (
    OFFSET_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    index_name_for,
)
from kafka_index.layout.producer_state import ABORTED_TXN
from kafka_index.layout.records import CONTROL_MASK, TRANSACTIONAL_MASK
from kafka_index.reading.partition_files import PartitionFiles
from kafka_index.records.batch_table import BatchColumns
from kafka_index.scan import LogFileSource
from kafka_index.state.partition_state import PartitionState, last_stable_offset_of_log
from kafka_index.state.segment_state import ProducerTable, SegmentState
from kafka_index.state.snapshots import (
    is_out_of_range,
    list_snapshots,
    load_latest_snapshot,
)
from kafka_index.storage import SegmentFile
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.tiered.segment_paths import is_segment_path

_NO_LONGS: Longs = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class AbortedTransactions:
    """Aborted transactions of a partition, by producer and first offset.

    Parameters
    ----------
    producer_ids, first_offsets, last_offsets : ndarray of int64, shape (n,)
        Whose they were, their first offsets, and those of their markers.
    """

    producer_ids: Longs
    first_offsets: Longs
    last_offsets: Longs

    @classmethod
    def of_entries(cls, entries: Sequence[NDArray[np.void]]) -> AbortedTransactions:
        """Return the transactions of entries of transaction indexes."""
        joined = np.concatenate([np.empty(0, ABORTED_TXN), *entries])
        columns = [
            joined[name].astype(np.int64) for name in ("producer_id", "first_offset", "last_offset")
        ]
        order = np.lexsort((columns[1], columns[0]))
        return cls(*(column[order] for column in columns))

    def within(self, first_offset: int, last_offset: int) -> AbortedTransactions:
        """Return those that overlap with a range of offsets."""
        kept = (self.first_offsets <= last_offset) & (self.last_offsets >= first_offset)
        return AbortedTransactions(
            self.producer_ids[kept], self.first_offsets[kept], self.last_offsets[kept]
        )

    def hold(self, batches: BatchColumns) -> NDArray[np.bool_]:
        """Return which batches belong to one of them.

        As the consumer does: a batch of a transaction whose producer has one that began at or below
        the batch's last offset, and whose marker comes after it.
        """
        held = np.zeros(batches.rows, np.bool_)
        if not len(self.producer_ids):
            return held
        kind = batches.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)
        rows = np.flatnonzero(kind == TRANSACTIONAL_MASK)
        # A producer's transactions follow each other, so only the latest that has begun can hold a
        # batch. The rank of a pair of producer and offset is found by two searches.
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


NO_TRANSACTIONS = AbortedTransactions(_NO_LONGS, _NO_LONGS, _NO_LONGS)


@dataclass(frozen=True, slots=True)
class TransactionBounds:
    """What ``read_committed`` asks of a partition.

    Parameters
    ----------
    last_stable_offset : int
        Nothing is read from it on.
    aborted : AbortedTransactions
        Transactions that were aborted, from the first offset of the read on.
    damage : CorruptLogError, optional
        What hides the transactions after it; the last stable offset is no later.
    """

    last_stable_offset: int
    aborted: AbortedTransactions
    damage: CorruptLogError | None = None


def read_transactions(
    files: PartitionFiles, first_offset: int, end_offset: int
) -> TransactionBounds:
    """Return the last stable offset, and the aborted transactions from an offset on.

    Parameters
    ----------
    files : PartitionFiles
        The partition.
    first_offset, end_offset : int
        Where the read begins, and where it ends at most: at the high watermark, or the log end.

    Raises
    ------
    CorruptLogError
        The log is damaged, so that a broker could not tell either.
    InputError
        A file cannot be read.
    """
    bases = np.array([segment.base_offset for segment in files.segments], np.int64)
    first = max(int(np.searchsorted(bases, first_offset, "right")) - 1, 0)
    count = int(np.searchsorted(bases, end_offset))
    aborted = {
        number: _stored_transactions(files.segments[number], files.index_directory)
        for number in range(first, count)
    }
    missing = [number for number, entries in aborted.items() if entries is None]
    state, start = _state_before(files, min([count, *missing]), end_offset)
    damage = None
    for number in range(start, count):
        rebuilt, hidden = _follow(state, files.segments[number], end_offset)
        if number in missing:
            aborted[number] = rebuilt
        if hidden is not None:
            end_offset, damage = hidden
            break
    return TransactionBounds(
        last_stable_offset_of_log(state.first_unstable_offset, files.log_start_offset, end_offset),
        AbortedTransactions.of_entries(
            [entries for entries in aborted.values() if entries is not None]
        ),
        damage,
    )


def _stored_transactions(
    segment: SegmentFile, index_directory: str | None
) -> NDArray[np.void] | None:
    """Return the entries of a transaction index; None where a broker would rebuild it.

    It does where the offset index is missing, or the transaction index cannot be right
    (LogSegment.sanityCheck). A segment without aborted transactions has no such file.
    """
    directory = index_directory or segment.partition_directory
    name = os.path.basename(segment.log_path)
    if is_segment_path(directory):
        return _uploaded_transactions(
            os.path.join(directory, index_name_for(name, OFFSET_INDEX_SUFFIX)),
            os.path.join(directory, index_name_for(name, TXN_INDEX_SUFFIX)),
        )
    if not _exists(os.path.join(directory, index_name_for(name, OFFSET_INDEX_SUFFIX))):
        return None
    path = os.path.join(directory, index_name_for(name, TXN_INDEX_SUFFIX))
    content = _read_small(path) if is_remote(path) else None
    with TransactionIndex(path, segment.base_offset, writable=False, content=content) as index:
        try:
            index.sanity_check()
        except CorruptIndexError:
            return None
        return index.entries.copy()


def _exists(path: str) -> bool:
    if not is_remote(path):
        return os.path.exists(path)
    try:
        store_of(path).info(path)
    except FileNotFoundError:
        return False
    return True


def _read_small(path: str) -> bytes:
    try:
        return store_of(path).read(path)
    except FileNotFoundError:
        return b""


def _uploaded_transactions(offset_path: str, txn_path: str) -> NDArray[np.void] | None:
    """Return the entries of a transaction index in tiered storage, None where it has to be rebuilt.

    Of the beginning of a segment, which another segment continues, there are no indexes.
    """
    try:
        store_of(offset_path).read(offset_path)
    except (FileNotFoundError, CorruptObjectError):
        return None
    try:
        data = _read_small(txn_path)
    except CorruptObjectError:
        return None
    return None if len(data) % ABORTED_TXN.itemsize else np.frombuffer(data, ABORTED_TXN)


def _state_before(
    files: PartitionFiles, number: int, end_offset: int
) -> tuple[PartitionState, int]:
    """Return the producers before a segment, or an earlier one, and its number.

    They are those of the latest snapshot that a broker would load there (UnifiedLog.
    rebuildProducerState): a clean stop leaves one at the end of the log.
    """
    # Of a tiered partition, the last segment is the one that is local if any is.
    directory = files.segments[-1].partition_directory
    offsets = set(list_snapshots(directory))
    ends = [*(segment.base_offset for segment in files.segments[:number]), end_offset]
    if number < len(files.segments):
        ends[-1] = min(end_offset, files.segments[number].base_offset)
    for candidate in range(number, -1, -1):
        offset = ends[candidate]
        if offset in offsets and not is_out_of_range(offset, files.log_start_offset, end_offset):
            _, entries, _ = load_latest_snapshot(directory, [offset])
            if entries is not None:
                return PartitionState(entries), candidate
    return PartitionState(), 0


def _follow(
    state: PartitionState, segment: SegmentFile, end_offset: int
) -> tuple[NDArray[np.void], tuple[int, CorruptLogError] | None]:
    """Apply the batches of a segment below an offset.

    Returns
    -------
    tuple
        Its aborted transactions; and the offset where damage hides the rest, and that damage.
    """
    table = ProducerTable()
    source = LogFileSource.of_segment(segment, verify_crc=False)
    following = segment.base_offset
    is_whole = False
    for batches in source.chunks():
        below = np.flatnonzero(batches.base_offset >= end_offset)
        kept = batches.slice(0, int(below[0])) if len(below) else batches
        if kept.rows:
            following = int(kept.last_offset[-1]) + 1
            _, stop = table.follow(kept)
            if stop is not None:
                raise CorruptLogError(
                    f"its transactions cannot be followed: {stop.text}",
                    path=segment.log_path,
                    position_bytes=stop.position_bytes,
                )
        if len(below):
            is_whole = True
            break
    aborted, stop = state.apply(SegmentState.of_table(table))
    if stop is not None:
        raise CorruptLogError(
            f"its transactions cannot be followed: {stop.text}",
            path=segment.log_path,
            position_bytes=stop.position_bytes,
        )
    end = source.stop
    if is_whole or end is None or (end.is_tail and segment.is_last) or following >= end_offset:
        return aborted, None
    error = CorruptLogError(end.text, path=segment.log_path, position_bytes=end.position_bytes)
    return aborted, (following, error)
