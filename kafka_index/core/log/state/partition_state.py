"""Producers, transactions and leader epochs at each segment boundary of a partition.

Producers, transactions and leader epochs span segments. A `PartitionState` starts with the snapshot
and checkpoint that a broker would load. It applies the `SegmentState` of each segment in offset
order. At the end of each segment, it returns what recovery writes: the segment's transaction index
and the producer snapshot.

Source: Kafka's ``LogLoader.recoverSegment``, ``UnifiedLog.rebuildProducerState``,
``ProducerStateManager`` and ``LogSegment.recover``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.errors import InputError
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.records import ABORTED_TXN, PRODUCER_STATE_ENTRY
from kafka_index.core.fs.registry import store_of
from kafka_index.core.kernels.headers import CONTROL_COMPRESSED, CONTROL_MESSAGE
from kafka_index.core.kernels.memory import Records
from kafka_index.core.kernels.producer_state import (
    ABORT,
    EPOCH,
    FIRST_NONE,
    FIRST_PLAIN,
    NO_OFFSET,
    OPEN_TRANSACTION,
    PRODUCER,
    PRODUCERS_MARKER_INVALID,
    PRODUCERS_MARKER_REFUSED,
    PRODUCERS_NO_ROOM,
    PRODUCERS_NOT_TRANSACTIONAL,
    PRODUCERS_OK,
    PRODUCERS_TRANSACTION_UNKNOWN,
    ProducerTables,
    fill_buckets,
    fill_last_stable_offsets,
    follow_producers,
)
from kafka_index.core.log.state.snapshots import encode_snapshot, normalize_entries, order_of_put
from kafka_index.core.records.batch_table import (
    COMPRESSED_MARKER,
    INVALID_MARKER,
    BatchColumns,
    ScanStop,
)

#: Reason code of a non-transactional batch whose producer has an open transaction.
NOT_TRANSACTIONAL = "not_transactional"

_REFUSALS = {
    PRODUCERS_MARKER_REFUSED: "unreadable_marker",
    PRODUCERS_NOT_TRANSACTIONAL: NOT_TRANSACTIONAL,
    PRODUCERS_TRANSACTION_UNKNOWN: "transaction_unknown",
}
#: Reason codes of batches that are rejected because of their producer. Recovery adds the index
#: entries of such a batch, and then fails.
PRODUCER_REFUSALS = frozenset((*_REFUSALS.values(), COMPRESSED_MARKER))

_FIRST_ROWS = 32

# A state file contains the row counts of the tables, `map_end_offset`, and the compressed tables.
# The tables are stored column by column, which gives the best compression. The format has no
# version, because a state file is only read by the version of kafka-index that wrote it.
_LONG = np.dtype("<i8")
_TABLES = (PRODUCER, ABORT, EPOCH)
_HEADER_BYTES = (len(_TABLES) + 1) * _LONG.itemsize
_CODEC = "lz4"


class ProducerTable:
    """Tracks the producers and leader epochs of a segment, chunk by chunk.

    `map_end_offset` is the offset after the last v2 batch, -1 if there is none. Kafka:
    ``ProducerStateManager.mapEndOffset``.
    """

    def __init__(self) -> None:
        self.map_end_offset = NO_OFFSET
        self._tables = ProducerTables.empty(_FIRST_ROWS)

    @property
    def has_transactions(self) -> bool:
        """Whether any batch so far belongs to a transaction."""
        return bool(self._counts.has_transactions)

    @property
    def producers(self) -> Records:
        """A view of the producers in order of their first batches."""
        return self._tables.producers[: self._counts.producers]

    @property
    def aborts(self) -> Records:
        """A view of the aborted transactions in the order of their transaction markers."""
        return self._tables.aborts[: self._counts.aborts]

    @property
    def epochs(self) -> Records:
        """A view of the ascending leader epochs, with their start offsets and byte positions."""
        return self._tables.epochs[: self._counts.epochs]

    @property
    def _counts(self) -> Any:
        return self._tables.counts[0]

    def follow(self, batches: BatchColumns) -> tuple[int, ScanStop | None]:
        """Process a chunk.

        Returns the number of batches for which recovery adds index entries, and why recovery fails
        after these batches, None if it does not fail.
        """
        row = 0
        while True:
            code, row = follow_producers(batches, row, self._tables)
            if code != PRODUCERS_NO_ROOM:
                break
            self._grow_tables()
        if code == PRODUCERS_OK:
            self._advance(batches)
            return batches.rows, None
        self._advance(batches.slice(0, row))
        position = int(batches.position_bytes[row])
        # Include the rejected batch, because recovery adds its index entry before it checks the
        # producer.
        if code == PRODUCERS_MARKER_INVALID:
            return row + 1, ScanStop(INVALID_MARKER, position)
        reason = _REFUSALS[code]
        if code == PRODUCERS_MARKER_REFUSED and batches.control_type[row] == CONTROL_COMPRESSED:
            reason = COMPRESSED_MARKER
        return row + 1, ScanStop(reason, position, refused=True)

    def _advance(self, batches: BatchColumns) -> None:
        """Set `map_end_offset` to the offset after the last v2 batch (updateMapEndOffset)."""
        row = batches.rows - 1
        if row >= 0 and batches.control_type[row] == CONTROL_MESSAGE:
            rows = np.flatnonzero(batches.control_type != CONTROL_MESSAGE)
            row = int(rows[-1]) if len(rows) else -1
        if row >= 0:
            self.map_end_offset = int((batches.last_offset[row : row + 1] + 1)[0])

    def _grow_tables(self) -> None:
        """Double the capacity of each table that is full."""
        tables, counts = self._tables, self._counts
        if counts.producers == len(tables.producers):
            producers = _double_table(tables.producers)
            buckets = np.empty(2 * len(producers), np.int64)
            tables = tables._replace(producers=producers, buckets=buckets)
            fill_buckets(tables)
        if 2 * counts.open_transactions >= len(tables.open_transactions):
            tables = tables._replace(open_transactions=_double_table(tables.open_transactions))
        if counts.aborts == len(tables.aborts):
            tables = tables._replace(aborts=_double_table(tables.aborts))
        if counts.epochs == len(tables.epochs):
            tables = tables._replace(epochs=_double_table(tables.epochs))
        self._tables = tables


@dataclass(frozen=True, eq=False)
class SegmentState:
    """The producers, aborted transactions and leader epochs from a scan of one segment.

    The scan starts without producers of earlier segments. For the tables and their order, see
    `ProducerTable`. `map_end_offset` is -1 for a segment without v2 batches.
    """

    producers: Records
    aborts: Records
    epochs: Records
    map_end_offset: int

    @classmethod
    def of_table(cls, table: ProducerTable) -> Self:
        """Copy the tables after all batches of a segment were processed."""
        return cls(
            table.producers.copy(), table.aborts.copy(), table.epochs.copy(), table.map_end_offset
        )

    def write(self, path: str) -> None:
        tables = (self.producers, self.aborts, self.epochs)
        header = np.array([*map(len, tables), self.map_end_offset], _LONG)
        columns = b"".join(
            table[name].astype(_LONG).tobytes()
            for table in tables
            for name in table.dtype.names or ()
        )
        with open(path, "wb") as file:
            file.write(header.tobytes())
            file.write(pa.compress(columns, codec=_CODEC))

    @classmethod
    def read(cls, path: str) -> Self:
        """Read a state file; raises `InputError` if the file is missing or malformed."""
        try:
            content = store_of(path).read(path)
            *counts, map_end_offset = np.frombuffer(content[:_HEADER_BYTES], _LONG).tolist()
            packed = content[_HEADER_BYTES:]
            tables = [np.empty(rows, dtype) for rows, dtype in zip(counts, _TABLES, strict=True)]
            size = sum(table.nbytes for table in tables)
            data = np.frombuffer(pa.decompress(packed, size, codec=_CODEC), _LONG)
            start = 0
            for table in tables:
                for name in table.dtype.names or ():
                    table[name] = data[start : start + len(table)]
                    start += len(table)
        except (
            InputError,
            OSError,
            ValueError,
            OverflowError,
            MemoryError,
            pa.ArrowException,
        ) as error:
            raise InputError(
                f"cannot read the saved state of a scanned segment: {error}",
                path=path,
                hint="run again; if the error remains, add --overwrite",
            ) from error
        producers, aborts, epochs = tables
        return cls(producers, aborts, epochs, map_end_offset)


def _double_table(table: Records) -> Records:
    larger = np.empty(2 * len(table), table.dtype)
    larger[: len(table)] = table
    return larger


Entries = NDArray[np.void]

#: Reason code of an abort marker that a transaction index rejects, because its offset is not above
#: the previous entry.
ABORT_OFFSET_BACKWARD = "abort_offset_backward"
#: Reason code of a leader epoch that would start at a negative offset.
EPOCH_OFFSET_NEGATIVE = "epoch_offset_negative"

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class ProducerExpiration:
    """Which producers are omitted when a snapshot is loaded.

    `after_ms` is ``producer.id.expiration.ms``, `now_ms` the time of loading in ms since the epoch.
    """

    after_ms: int
    now_ms: int

    def live(self, entries: Entries) -> Entries:
        """Return the entries that a broker keeps (ProducerStateManager.isProducerExpired)."""
        # This subtraction overflows as in Java.
        idle = (self.now_ms - entries["timestamp_ms"]) >= self.after_ms
        return entries[~idle | (entries["current_txn_first_offset"] >= 0)]


def last_stable_offset_of_log(
    first_unstable_offset: int | None, log_start_offset: int, end_offset: int
) -> int:
    """Return the last stable offset; `end_offset` is the log end offset or the high watermark.

    Source: UnifiedLog.maybeIncrementFirstUnstableOffset and fetchLastStableOffsetMetadata.
    """
    if first_unstable_offset is None:
        return end_offset
    return min(max(first_unstable_offset, log_start_offset), end_offset)


class PartitionState:
    """The producers, open transactions and leader epochs at one offset of a partition.

    Parameters
    ----------
    entries
        The producers of a snapshot, in file order.
    epochs
        The partition's leader epochs before this offset, which `apply` updates in place.
    expiration
        Which producers to remove whenever a snapshot is loaded; by default, none.
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
        # The producers in the order in which a broker inserts them into its `HashMap`.
        self._entries = np.empty(0, PRODUCER_STATE_ENTRY)
        if entries is not None:
            self._entries = self._load_entries(entries)

    @property
    def entries(self) -> Entries:
        """The producers, in the iteration order of the `HashMap` of a broker."""
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
        """Return the content of the ``.snapshot`` file at this offset."""
        return encode_snapshot(self.entries)

    def forget_producers(self) -> None:
        """Remove all producers, like a broker that finds no usable snapshot."""
        self._entries = self._entries[:0]

    def reload(self) -> None:
        """Load the snapshot at this offset, like the recovery of the next segment."""
        self._entries = self._load_entries(self.entries)

    def apply(self, segment: SegmentState) -> tuple[NDArray[np.void], ScanStop | None]:
        """Apply the next segment.

        Returns the entries of the segment's transaction index, and why recovery fails, None if it
        does not fail. If recovery fails, this state is unchanged.
        """
        carried, rows = self._match_entries(segment.producers)
        aborted, aborts = self._find_aborted(segment, rows)
        refusals = [
            *self._find_negative_epochs(segment.epochs),
            *_find_non_transactional(segment.producers, carried, rows),
            *_find_backward_aborts(aborts),
        ]
        if refusals:
            return aborted[:0], min(refusals, key=lambda stop: stop.position_bytes)
        for epoch, start_offset, _ in segment.epochs.tolist():
            self.epochs.assign_from_batch(epoch, start_offset)
        self._update_entries(segment.producers, carried, rows)
        return aborted, None

    def _match_entries(self, producers: Records) -> tuple[Entries, NDArray[np.intp]]:
        """Return each producer's current entry, and the row of this entry, -1 if it is new."""
        ids = self._entries["producer_id"]
        rows = np.full(len(producers), -1, np.intp)
        carried = np.zeros(len(producers), PRODUCER_STATE_ENTRY)
        carried["current_txn_first_offset"] = NO_OFFSET
        if len(ids) and len(producers):
            order = np.argsort(ids, kind="stable")
            producer_ids = producers["producer_id"]
            positions = np.minimum(np.searchsorted(ids[order], producer_ids), len(ids) - 1)
            candidates = order[positions]
            is_found = ids[candidates] == producer_ids
            rows[is_found] = candidates[is_found]
            carried[is_found] = self._entries[rows[is_found]]
        return carried, rows

    def _find_aborted(
        self, segment: SegmentState, rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.void], Records]:
        """Return the segment's transaction index entries, and the `ABORT` row of each."""
        aborts = segment.aborts
        if not len(aborts):
            return np.empty(0, ABORTED_TXN), aborts
        open_rows = np.flatnonzero(self._entries["current_txn_first_offset"] >= 0)
        open_entries = self._entries[open_rows]
        first_offset_by_producer = dict(
            zip(
                open_entries["producer_id"].tolist(),
                open_entries["current_txn_first_offset"].tolist(),
                strict=True,
            )
        )
        first_offsets = aborts["first_offset"].copy()
        is_first = (first_offsets == NO_OFFSET) | (aborts["may_begin_earlier"] == 1)
        for number in np.flatnonzero(is_first).tolist():
            producer_id = int(aborts["producer_id"][number])
            first_offsets[number] = first_offset_by_producer.get(
                producer_id, int(first_offsets[number])
            )
        # A transaction marker ends no transaction if no first offset is known.
        has_first_offset = first_offsets != NO_OFFSET
        aborts, first_offsets = aborts[has_first_offset], first_offsets[has_first_offset]
        # For each producer, the marker of this segment that ends its transaction from an earlier
        # segment.
        end_rows = np.full(len(self._entries), _NEVER)
        has_marker = (rows >= 0) & (segment.producers["first_marker_row"] >= 0)
        end_rows[rows[has_marker]] = segment.producers["first_marker_row"][has_marker]
        by_offset = np.argsort(open_entries["current_txn_first_offset"], kind="stable")
        open_transactions = np.empty(len(by_offset), OPEN_TRANSACTION)
        open_transactions["first_offset"] = open_entries["current_txn_first_offset"][by_offset]
        open_transactions["owner"] = open_entries["producer_id"][by_offset]
        end_rows = end_rows[open_rows][by_offset]
        aborted = np.zeros(len(aborts), ABORTED_TXN)
        stable_offsets = np.empty(len(aborts), np.int64)
        fill_last_stable_offsets(
            open_transactions, end_rows, np.argsort(end_rows), aborts, stable_offsets
        )
        aborted["producer_id"], aborted["last_offset"] = (
            aborts["producer_id"],
            aborts["last_offset"],
        )
        aborted["first_offset"], aborted["last_stable_offset"] = first_offsets, stable_offsets
        return aborted, aborts

    def _find_negative_epochs(self, epochs: Records) -> list[ScanStop]:
        latest = self.epochs.latest_epoch
        newer = epochs["epoch"] > (-1 if latest is None else latest)
        wrong = np.flatnonzero(newer & (epochs["start_offset"] < 0))
        return [
            ScanStop(EPOCH_OFFSET_NEGATIVE, int(epochs["position_bytes"][row]), refused=True)
            for row in wrong[:1]
        ]

    def _update_entries(self, producers: Records, carried: Entries, rows: NDArray[np.intp]) -> None:
        """Update the entries of producers in a segment, and append entries of new producers."""
        if not len(producers):
            return
        updated = _to_entries(producers)
        is_known = rows >= 0
        sets_epoch = producers["first_kind"] != FIRST_NONE
        same_epoch = (producers["first_epoch"] == carried["producer_epoch"]) & (
            producers["epoch_changed"] == 0
        )
        # A transaction marker keeps the last data batch, unless it has another producer epoch.
        keeps_batch = is_known & (~sets_epoch | ((producers["has_data"] == 0) & same_epoch))
        keeps_coordinator = is_known & (producers["has_marker"] == 0)
        was_open = carried["current_txn_first_offset"] >= 0
        keeps_txn = is_known & was_open & (~sets_epoch | (producers["txn_is_first"] == 1))
        for mask, names in (
            (is_known & ~sets_epoch, ("producer_epoch", "timestamp_ms")),
            (keeps_batch, ("last_sequence", "last_offset", "offset_delta")),
            (keeps_coordinator, ("coordinator_epoch",)),
            (keeps_txn, ("current_txn_first_offset",)),
        ):
            for name in names:
                updated[name][mask] = carried[name][mask]
        entries = self._entries.copy()
        entries[rows[is_known]] = updated[is_known]
        self._entries = np.concatenate((entries, updated[~is_known]))

    def _load_entries(self, entries: Entries) -> Entries:
        """Return the entries that a broker keeps when it loads a snapshot."""
        if self._expiration is not None:
            entries = self._expiration.live(entries)
        return normalize_entries(entries)


def _to_entries(producers: Records) -> Entries:
    entries = np.empty(len(producers), PRODUCER_STATE_ENTRY)
    for name in PRODUCER_STATE_ENTRY.names or ():
        entries[name] = producers[name]
    return entries


def _find_non_transactional(
    producers: Records, carried: Entries, rows: NDArray[np.intp]
) -> list[ScanStop]:
    """Find the first non-transactional batch whose producer has an open transaction."""
    wrong = (
        (rows >= 0)
        & (carried["current_txn_first_offset"] >= 0)
        & (producers["first_kind"] == FIRST_PLAIN)
    )
    if not wrong.any():
        return []
    position = int(producers["first_position_bytes"][wrong].min())
    return [ScanStop(NOT_TRANSACTIONAL, position, refused=True)]


def _find_backward_aborts(aborts: Records) -> list[ScanStop]:
    """Find the first abort marker whose offset is not above the previous one."""
    last = aborts["last_offset"]
    wrong = np.flatnonzero(last[1:] <= last[:-1])
    return [
        ScanStop(ABORT_OFFSET_BACKWARD, int(aborts["position_bytes"][row + 1]), refused=True)
        for row in wrong[:1]
    ]
