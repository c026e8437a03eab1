"""The producers of a writable log: validated and updated by appends, written to snapshots.

Sources: Kafka's ``ProducerStateManager``, and ``UnifiedLog.analyzeAndValidateProducerState``. As in
Kafka, all batches of one append update a producer together. This affects the last stable offset of
a transaction that ends in the append in which the next one starts.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import InputError
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import (
    ABORTED_TXN,
    ABORTED_TXN_VERSION,
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    NO_OPEN_TXN,
    PRODUCER_STATE_ENTRY,
    TRANSACTIONAL_MASK,
)
from kafka_index.core.kernels.headers import CONTROL_EMPTY
from kafka_index.core.kernels.producer_state import (
    add_batch,
    fill_last_sequences,
    last_stable_offset,
    next_open_offset,
)
from kafka_index.core.log.append.incoming_batches import IncomingBatches
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.log.state.producer_append import (
    BATCHES_KEPT,
    AppendOrigin,
    BatchMetadata,
    CompletedTxn,
    ProducerAppendInfo,
    ProducerStateEntry,
    Refusal,
)
from kafka_index.core.log.state.snapshots import JavaMapOrder, encode_snapshot, order_of_computed

#: A batch of a producer: row, base offset, metadata, producer ID, producer epoch, base sequence,
#: attributes, control type, coordinator epoch, marker timestamp, position. Python iterates faster
#: over tuples than over columns.
Row = tuple[int, int, BatchMetadata, int, int, int, int, int, int, int, int]

_APPENDS_AT_ONCE = 2048


class _OpenTransaction(NamedTuple):
    """An open transaction, with the fields of `OPEN_TRANSACTION`; its owner is the producer ID."""

    first_offset: int
    owner: int


_FIRST_OFFSET = attrgetter("first_offset")


class DuplicateBatch(Exception):  # noqa: N818, because a batch that is sent twice is no error
    """A batch that a client has sent before."""

    def __init__(self, row: int, batch: BatchMetadata) -> None:
        super().__init__(row)
        self.row = row
        self.first_offset = batch[1] - batch[2]
        self.last_offset = batch[1]


class Producers:
    """All producers of a partition.

    `first_replayed_transaction` is the first offset of the earliest transaction whose end was
    replayed. It is unstable until the high watermark is known, so a broker that loads a log
    searches for this offset.
    """

    def __init__(self, expiration_ms: int) -> None:
        self.first_replayed_transaction: int | None = None
        self._expiration_ms = expiration_ms
        self._entries: dict[int, ProducerStateEntry] = {}
        self._order = JavaMapOrder()
        self._open: list[_OpenTransaction] = []
        # Earlier states of the producers that changed since `begin_append`.
        self._before: dict[int, ProducerStateEntry | None] | None = None
        self._open_before: list[_OpenTransaction] = []
        self._capacity_before = 0

    @property
    def is_empty(self) -> bool:
        return not self._entries

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest open transaction, None if there is none."""
        return self._open[0].first_offset if self._open else None

    def clear(self) -> None:
        """Remove all; as in Java, the map keeps its capacity."""
        self._entries.clear()
        self._open.clear()
        self.first_replayed_transaction = None

    def load(self, entries: NDArray[np.void], now_ms: int) -> None:
        """Load the entries of a snapshot, except expired producers."""
        for row in ProducerExpiration(self._expiration_ms, now_ms).live(entries).tolist():
            entry = ProducerStateEntry.of_row(row)
            self._put(entry)
            if entry.current_txn_first_offset != NO_OPEN_TXN:
                self._begin(entry.current_txn_first_offset, entry.producer_id)

    def snapshot(self) -> bytes:
        rows = [entry.row() for entry in self._entries.values()]
        entries = np.array(rows, PRODUCER_STATE_ENTRY)
        return encode_snapshot(entries[self._order.order_of(entries["producer_id"])])

    def begin_append(self) -> None:
        """Start to save the states for `roll_back`."""
        self._before = {}
        self._open_before = list(self._open)
        self._capacity_before = self._order.capacity

    def roll_back(self) -> None:
        """Restore the state at `begin_append`."""
        for producer_id, before in (self._before or {}).items():
            if before is None:
                del self._entries[producer_id]
            else:
                self._entries[producer_id] = before
        self._open = self._open_before
        self._order.capacity = self._capacity_before
        self._before = None

    def append(
        self,
        batches: IncomingBatches,
        ends: Longs,
        first_append: int,
        end_append: int,
        origin: AppendOrigin,
    ) -> NDArray[np.void]:
        """Validate and record appends in order; return the transactions that they abort.

        `ends` has the row after the last batch of each append. Raises `InputError` if a batch is
        invalid for its producer, and `DuplicateBatch` if a client's batch is already in the log;
        earlier batches have then been recorded.
        """
        aborted: list[tuple[int, int, int, int, int]] = []
        first_row, end_row = (int(ends[n - 1]) if n else 0 for n in (first_append, end_append))
        rows = first_row + np.flatnonzero(batches.columns.producer_id[first_row:end_row] >= 0)
        if len(rows):
            groups = np.searchsorted(ends, rows, side="right")
            starts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(rows)]
            for first in range(0, len(starts) - 1, _APPENDS_AT_ONCE):
                some = starts[first : first + _APPENDS_AT_ONCE + 1]
                self._append_groups(
                    _producer_rows(batches, rows[some[0] : some[-1]]), some, origin, aborted
                )
        return np.array(aborted, ABORTED_TXN)

    def _append_groups(
        self,
        rows: list[Row],
        starts: list[int],
        origin: AppendOrigin,
        aborted: list[tuple[int, int, int, int, int]],
    ) -> None:
        offset = starts[0]
        entries, before = self._entries, self._before
        for start, stop in pairwise(starts):
            row = rows[start - offset]
            entry = entries.get(row[3])
            # Fast path: the next batch of a known producer.
            if (
                stop - start == 1
                and entry is not None
                and not row[6] & CONTROL_MASK
                and entry.is_next(
                    row[4], row[5], is_transactional=bool(row[6] & TRANSACTIONAL_MASK)
                )
            ):
                if before is not None and row[3] not in before:
                    before[row[3]] = entry.copy()
                add_batch(entry, *row[2])
                entry.batches = (*entry.batches, row[2])[-BATCHES_KEPT:]
            else:
                appends: dict[int, ProducerAppendInfo] = {}
                completed: list[CompletedTxn] = []
                self._collect(rows[start - offset : stop - offset], origin, appends, completed)
                aborted += self._finish(appends, completed)

    def replay(self, chunks: Iterable[IncomingBatches]) -> None:
        """Record batches of the log as one replicated append."""
        appends: dict[int, ProducerAppendInfo] = {}
        completed: list[CompletedTxn] = []
        for batches in chunks:
            rows = np.flatnonzero(batches.columns.producer_id >= 0)
            self._collect(
                _producer_rows(batches, rows), AppendOrigin.REPLICATION, appends, completed
            )
        self._finish(appends, completed)
        begun = [txn.first_offset for txn in completed]
        if self.first_replayed_transaction is not None:
            begun.append(self.first_replayed_transaction)
        self.first_replayed_transaction = min(begun, default=None)

    def _collect(
        self,
        rows: list[Row],
        origin: AppendOrigin,
        appends: dict[int, ProducerAppendInfo],
        completed: list[CompletedTxn],
    ) -> None:
        for row in rows:
            producer_id = row[3]
            known = self._entries.get(producer_id)
            if origin is AppendOrigin.CLIENT and known is not None:
                duplicate = known.find_duplicate(row[4], row[5], row[2][0])
                if duplicate is not None:
                    raise DuplicateBatch(row[0], duplicate)
            append = appends.get(producer_id)
            if append is None:
                append = ProducerAppendInfo(known or ProducerStateEntry(producer_id), origin)
                appends[producer_id] = append
            try:
                ended = _apply_row(append, row)
            except Refusal as refusal:
                raise InputError(
                    f"cannot append the batch of producer {producer_id} at offset {row[1]}: "
                    f"{refusal.reason}",
                    position_bytes=row[10],
                    expected=refusal.expected,
                    found=refusal.found,
                ) from None
            if ended is not None:
                completed.append(ended)

    def _finish(
        self, appends: dict[int, ProducerAppendInfo], completed: list[CompletedTxn]
    ) -> list[tuple[int, int, int, int, int]]:
        aborted = []
        for producer_id in order_of_computed(list(appends)):
            self._update(appends[producer_id])
        for txn in completed:
            if txn.is_aborted:
                following = next_open_offset(self._open, 0, len(self._open), txn.producer_id)
                stable = last_stable_offset(following, txn.last_offset)
                aborted.append((ABORTED_TXN_VERSION, *txn[:3], stable))
            self._end(txn)
        return aborted

    def _update(self, append: ProducerAppendInfo) -> None:
        updated = append.updated
        known = self._entries.get(updated.producer_id)
        if self._before is not None and updated.producer_id not in self._before:
            self._before[updated.producer_id] = None if known is None else known.copy()
        if known is None:
            self._put(updated)
        else:
            known.update(updated)
        for offset in append.started:
            self._begin(offset, updated.producer_id)

    def _put(self, entry: ProducerStateEntry) -> None:
        if entry.producer_id not in self._entries:
            self._order.put(entry.producer_id, self._entries)
        self._entries[entry.producer_id] = entry

    def _begin(self, first_offset: int, producer_id: int) -> None:
        place, end = self._find_open(first_offset)
        # As in Kafka's map by first offset, the later transaction replaces the earlier.
        self._open[place:end] = [_OpenTransaction(first_offset, producer_id)]

    def _end(self, txn: CompletedTxn) -> None:
        place, end = self._find_open(txn.first_offset)
        if place == end:
            raise InputError(
                f"cannot end the transaction of producer {txn.producer_id} that began at offset "
                f"{txn.first_offset}: another transaction began there and has ended"
            )
        del self._open[place]

    def _find_open(self, first_offset: int) -> tuple[int, int]:
        """Return the range of a transaction in the list; an empty range if it is absent."""
        place = bisect.bisect_left(self._open, first_offset, key=_FIRST_OFFSET)
        is_there = place < len(self._open) and self._open[place].first_offset == first_offset
        return place, place + int(is_there)


def _producer_rows(batches: IncomingBatches, rows: Longs) -> list[Row]:
    """Convert rows to tuples of Python integers."""
    columns = batches.columns
    base_offsets, last_offsets = columns.base_offset[rows], columns.last_offset[rows]
    base_sequences, timestamps = columns.base_sequence[rows], columns.max_timestamp_ms[rows]
    deltas = last_offsets - base_offsets
    last_sequences = np.empty(len(rows), np.int64)
    fill_last_sequences(base_sequences, deltas, last_sequences)
    metadata = (last_sequences, last_offsets, deltas, timestamps)
    return list(
        zip(
            rows.tolist(),
            base_offsets.tolist(),
            zip(*(column.tolist() for column in metadata), strict=True),
            columns.producer_id[rows].tolist(),
            columns.producer_epoch[rows].tolist(),
            base_sequences.tolist(),
            columns.attributes[rows].tolist(),
            columns.control_type[rows].tolist(),
            columns.coordinator_epoch[rows].tolist(),
            columns.control_timestamp_ms[rows].tolist(),
            columns.position_bytes[rows].tolist(),
            strict=True,
        )
    )


def _apply_row(append: ProducerAppendInfo, row: Row) -> CompletedTxn | None:
    """Add a batch to an append; return the open transaction that it ends.

    Raises `Refusal` if the batch is invalid for its producer, or an unsupported control batch.
    """
    _, base, batch, _, epoch, sequence, attributes, control, coordinator, at, _ = row
    if not attributes & CONTROL_MASK:
        append.add_data(
            epoch, sequence, batch, base, is_transactional=bool(attributes & TRANSACTIONAL_MASK)
        )
        return None
    if control == CONTROL_EMPTY:
        return None
    if control not in (CONTROL_ABORT, CONTROL_COMMIT):
        raise Refusal(
            "its control record is not a transaction marker", "an abort or a commit", control
        )
    return append.add_marker(epoch, coordinator, base, at, is_abort=control == CONTROL_ABORT)
