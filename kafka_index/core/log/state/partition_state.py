"""The state of a partition at each segment boundary, merged from the states of its segments.

Producers, transactions and leader epochs span segments. A `PartitionState` starts with the snapshot
and checkpoint that a broker would load. It applies the `SegmentState` of each segment in offset
order, and returns at each boundary what recovery writes there: the segment's aborted transactions
and the snapshot.

Source: Kafka's ``LogLoader.recoverSegment``, ``UnifiedLog.rebuildProducerState``,
``ProducerStateManager`` and ``LogSegment.recover``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.records import ABORTED_TXN, PRODUCER_STATE_ENTRY
from kafka_index.core.kernels.memory import Records
from kafka_index.core.kernels.producer_tables import (
    FIRST_NONE,
    FIRST_PLAIN,
    NO_OFFSET,
    OPEN_TRANSACTION,
    fill_last_stable_offsets,
)
from kafka_index.core.log.state.segment_state import NOT_TRANSACTIONAL, SegmentState
from kafka_index.core.log.state.snapshots import as_read, encode_snapshot, order_of_put
from kafka_index.core.records.batch_table import ScanStop

Entries = NDArray[np.void]

#: An abort marker at or before the previous one, which a transaction index rejects.
ABORT_OFFSET_BACKWARD = "abort_offset_backward"
#: A leader epoch that would start at a negative offset.
EPOCH_OFFSET_NEGATIVE = "epoch_offset_negative"

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class ProducerExpiration:
    """Expiration of producers when a snapshot is loaded.

    `after_ms` is ``producer.id.expiration.ms``, `now_ms` the time of loading in ms since the epoch.
    """

    after_ms: int
    now_ms: int

    def live(self, entries: Entries) -> Entries:
        """Return the entries that a broker loads (ProducerStateManager.isProducerExpired)."""
        # The difference overflows as in Java.
        idle = (self.now_ms - entries["timestamp_ms"]) >= self.after_ms
        return entries[~idle | (entries["current_txn_first_offset"] >= 0)]


def last_stable_offset_of_log(
    first_unstable_offset: int | None, log_start_offset: int, end_offset: int
) -> int:
    """Return the exclusive end of ``read_committed``, for a given log end or high watermark.

    Source: UnifiedLog.maybeIncrementFirstUnstableOffset and fetchLastStableOffsetMetadata.
    """
    if first_unstable_offset is None:
        return end_offset
    return min(max(first_unstable_offset, log_start_offset), end_offset)


class PartitionState:
    """Producers, transactions and leader epochs at one offset of a partition.

    Entries are the producers of a snapshot, in its order. `epochs` is the partition's checkpoint,
    updated in place. Expired producers are removed whenever a snapshot is loaded; by default none
    expires.
    """

    def __init__(
        self,
        entries: Entries | None = None,
        epochs: LeaderEpochCache | None = None,
        expiration: ProducerExpiration | None = None,
    ) -> None:
        self.epochs = LeaderEpochCache() if epochs is None else epochs
        self.has_tree = False
        self._expiration = expiration
        # In the order in which a broker inserts them into its map.
        self._entries = np.empty(0, PRODUCER_STATE_ENTRY)
        if entries is not None:
            self._entries = self._loaded(entries)

    @property
    def entries(self) -> Entries:
        """The producers, in the iteration order of a broker's map."""
        order, has_tree = order_of_put(self._entries["producer_id"])
        self.has_tree |= has_tree
        return self._entries[order]

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest open transaction, None if there is none."""
        offsets = self._entries["current_txn_first_offset"]
        return min(offsets[offsets >= 0].tolist(), default=None)

    def __len__(self) -> int:
        return len(self._entries)

    def snapshot(self) -> bytes:
        """Encode the ``.snapshot`` at this offset."""
        return encode_snapshot(self.entries)

    def forget_producers(self) -> None:
        """Remove all producers, as at a segment without a usable snapshot."""
        self._entries = self._entries[:0]

    def reload(self) -> None:
        """Load a snapshot at this offset, as the recovery of the next segment does."""
        self._entries = self._loaded(self.entries)

    def apply(self, segment: SegmentState) -> tuple[NDArray[np.void], ScanStop | None]:
        """Apply the next segment.

        Returns the entries of its transaction index, and the reason if recovery fails; then the
        state is unchanged.
        """
        carried, rows = self._matches(segment.producers)
        aborted, aborts = self._aborted(segment, rows)
        refusals = [
            *self._refused_epochs(segment.epochs),
            *_plain_in_transaction(segment.producers, carried, rows),
            *_backward(aborts),
        ]
        if refusals:
            return aborted[:0], min(refusals, key=lambda stop: stop.position_bytes)
        for epoch, start_offset, _ in segment.epochs.tolist():
            self.epochs.assign_from_batch(epoch, start_offset)
        self._join(segment.producers, carried, rows)
        return aborted, None

    def _matches(self, producers: Records) -> tuple[Entries, NDArray[np.intp]]:
        """Return the known entry of each producer and its row, -1 for none."""
        ids = self._entries["producer_id"]
        rows = np.full(len(producers), -1, np.intp)
        carried = np.zeros(len(producers), PRODUCER_STATE_ENTRY)
        carried["current_txn_first_offset"] = NO_OFFSET
        if len(ids) and len(producers):
            order = np.argsort(ids, kind="stable")
            wanted = producers["producer_id"]
            places = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
            candidates = order[places]
            found = ids[candidates] == wanted
            rows[found] = candidates[found]
            carried[found] = self._entries[rows[found]]
        return carried, rows

    def _aborted(
        self, segment: SegmentState, rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.void], Records]:
        """Return the entries of the transaction index, and the `ABORT` rows they come from."""
        aborts = segment.aborts
        if not len(aborts):
            return np.empty(0, ABORTED_TXN), aborts
        open_rows = np.flatnonzero(self._entries["current_txn_first_offset"] >= 0)
        open_entries = self._entries[open_rows]
        first_of = dict(
            zip(
                open_entries["producer_id"].tolist(),
                open_entries["current_txn_first_offset"].tolist(),
                strict=True,
            )
        )
        first = aborts["first_offset"].copy()
        is_first = (first == NO_OFFSET) | (aborts["may_begin_earlier"] == 1)
        for number in np.flatnonzero(is_first).tolist():
            producer_id = int(aborts["producer_id"][number])
            first[number] = first_of.get(producer_id, int(first[number]))
        # A marker without a known first offset ends no transaction.
        known = first != NO_OFFSET
        aborts, first = aborts[known], first[known]
        # The markers of this segment that end transactions of earlier segments.
        end_rows = np.full(len(self._entries), _NEVER)
        has_marker = (rows >= 0) & (segment.producers["first_marker_row"] >= 0)
        end_rows[rows[has_marker]] = segment.producers["first_marker_row"][has_marker]
        by_offset = np.argsort(open_entries["current_txn_first_offset"], kind="stable")
        earlier = np.empty(len(by_offset), OPEN_TRANSACTION)
        earlier["first_offset"] = open_entries["current_txn_first_offset"][by_offset]
        earlier["owner"] = open_entries["producer_id"][by_offset]
        end_rows = end_rows[open_rows][by_offset]
        aborted = np.zeros(len(aborts), ABORTED_TXN)
        stable = np.empty(len(aborts), np.int64)
        fill_last_stable_offsets(earlier, end_rows, np.argsort(end_rows), aborts, stable)
        aborted["producer_id"], aborted["last_offset"] = (
            aborts["producer_id"],
            aborts["last_offset"],
        )
        aborted["first_offset"], aborted["last_stable_offset"] = first, stable
        return aborted, aborts

    def _refused_epochs(self, epochs: Records) -> list[ScanStop]:
        latest = self.epochs.latest_epoch
        newer = epochs["epoch"] > (-1 if latest is None else latest)
        wrong = np.flatnonzero(newer & (epochs["start_offset"] < 0))
        return [
            ScanStop(EPOCH_OFFSET_NEGATIVE, int(epochs["position_bytes"][row]), refused=True)
            for row in wrong[:1]
        ]

    def _join(self, producers: Records, carried: Entries, rows: NDArray[np.intp]) -> None:
        """Update known producers from a segment, and append new ones."""
        if not len(producers):
            return
        local = _entries_of(producers)
        seen = rows >= 0
        counts = producers["first_kind"] != FIRST_NONE
        same_epoch = (producers["first_epoch"] == carried["producer_epoch"]) & (
            producers["epoch_changed"] == 0
        )
        # Markers keep the last data batch, unless they have another producer epoch.
        keeps_batch = seen & (~counts | ((producers["has_data"] == 0) & same_epoch))
        keeps_coordinator = seen & (producers["has_marker"] == 0)
        was_open = carried["current_txn_first_offset"] >= 0
        keeps_txn = seen & was_open & (~counts | (producers["txn_is_first"] == 1))
        for mask, names in (
            (seen & ~counts, ("producer_epoch", "timestamp_ms")),
            (keeps_batch, ("last_sequence", "last_offset", "offset_delta")),
            (keeps_coordinator, ("coordinator_epoch",)),
            (keeps_txn, ("current_txn_first_offset",)),
        ):
            for name in names:
                local[name][mask] = carried[name][mask]
        entries = self._entries.copy()
        entries[rows[seen]] = local[seen]
        self._entries = np.concatenate((entries, local[~seen]))

    def _loaded(self, entries: Entries) -> Entries:
        """Return the entries that a broker keeps when it loads a snapshot."""
        if self._expiration is not None:
            entries = self._expiration.live(entries)
        return as_read(entries)


def _entries_of(producers: Records) -> Entries:
    entries = np.empty(len(producers), PRODUCER_STATE_ENTRY)
    for name in PRODUCER_STATE_ENTRY.names or ():
        entries[name] = producers[name]
    return entries


def _plain_in_transaction(
    producers: Records, carried: Entries, rows: NDArray[np.intp]
) -> list[ScanStop]:
    """Find a non-transactional batch of a producer with an open transaction."""
    wrong = (
        (rows >= 0)
        & (carried["current_txn_first_offset"] >= 0)
        & (producers["first_kind"] == FIRST_PLAIN)
    )
    if not wrong.any():
        return []
    position = int(producers["first_position_bytes"][wrong].min())
    return [ScanStop(NOT_TRANSACTIONAL, position, refused=True)]


def _backward(aborts: Records) -> list[ScanStop]:
    """Find an abort marker that is not after the previous one."""
    last = aborts["last_offset"]
    wrong = np.flatnonzero(last[1:] <= last[:-1])
    return [
        ScanStop(ABORT_OFFSET_BACKWARD, int(aborts["position_bytes"][row + 1]), refused=True)
        for row in wrong[:1]
    ]
