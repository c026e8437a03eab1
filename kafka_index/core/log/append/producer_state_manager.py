"""The producers of a writable log: validate and record appends, and write producer snapshots.

`core.kernels.producer_state` has the rules that update a producer's entry. Index builds use the
same rules. An append is validated before it is recorded. As in Kafka, all batches of an append
update a producer together. This affects the last stable offset of an aborted transaction if the
next transaction starts in the same append.

Sources: Kafka's ``ProducerStateEntry``, ``BatchMetadata``, ``ProducerAppendInfo``,
``ProducerStateManager``, ``UnifiedLog.analyzeAndValidateProducerState`` and
``UnifiedLog.rebuildProducerState``.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptSnapshotError, InputError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import (
    ABORTED_TXN,
    ABORTED_TXN_VERSION,
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    NO_COORDINATOR_EPOCH,
    NO_LAST_OFFSET,
    NO_OFFSET_DELTA,
    NO_OPEN_TXN,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PRODUCER_STATE_ENTRY,
    TRANSACTIONAL_MASK,
)
from kafka_index.core.fs.durable_files import AtomicFile
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.headers import CONTROL_EMPTY
from kafka_index.core.kernels.producer_state import (
    add_batch,
    add_marker,
    change_epoch,
    fill_last_sequences,
    first_sequence_of,
    last_stable_offset,
    next_open_offset,
)
from kafka_index.core.log.append.incoming_batches import AppendOrigin, IncomingBatches
from kafka_index.core.log.append.log_segment_writer import Clock, floor_segment
from kafka_index.core.log.scan.file_records import LogOffsetPosition
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.log.state.snapshots import (
    JavaMapOrder,
    encode_snapshot,
    is_out_of_range,
    list_snapshots,
    load_latest_snapshot,
    order_of_computed,
    snapshot_path,
)

MAX_RECENT_BATCHES = 5


#: A recent batch of a producer: last sequence, last offset, offset delta, timestamp in ms. Not a
#: class, because the garbage collector does not track plain tuples of integers.
BatchMetadata = tuple[int, int, int, int]


class CompletedTxn(NamedTuple):
    """A transaction that a transaction marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


_FIELDS = attrgetter(*(PRODUCER_STATE_ENTRY.names or ()))


@dataclass(slots=True)
class ProducerStateEntry:
    """The fields of `PRODUCER_STATE_ENTRY` for a producer, and its recent batches."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_sequence: int = NO_SEQUENCE
    last_offset: int = NO_LAST_OFFSET
    offset_delta: int = NO_OFFSET_DELTA
    timestamp_ms: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    current_txn_first_offset: int = NO_OPEN_TXN
    batches: tuple[BatchMetadata, ...] = ()

    @classmethod
    def of_row(cls, row: tuple[int, int, int, int, int, int, int, int]) -> Self:
        """Create from the fields of a `PRODUCER_STATE_ENTRY`."""
        entry = cls(*row)
        if entry.last_offset >= 0:
            entry.batches = (
                (entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp_ms),
            )
        return entry

    def copy(self) -> ProducerStateEntry:
        return ProducerStateEntry(*self.row(), self.batches)

    def row(self) -> tuple[int, int, int, int, int, int, int, int]:
        """Return the fields in the order of `PRODUCER_STATE_ENTRY`."""
        return _FIELDS(self)

    def follow_epoch(self, epoch: int) -> None:
        """Set the producer epoch. If it changes, remove the batches of the previous epoch."""
        if change_epoch(self, epoch):
            self.batches = ()

    def add_batch(self, batch: BatchMetadata) -> None:
        add_batch(self, *batch)
        self.batches = (*self.batches, batch)[-MAX_RECENT_BATCHES:]

    def update(self, later: ProducerStateEntry) -> None:
        """Apply the batches, epochs and transaction of an append (ProducerStateEntry.update)."""
        self.follow_epoch(later.producer_epoch)
        for batch in later.batches:
            self.add_batch(batch)
        self.coordinator_epoch = later.coordinator_epoch
        self.current_txn_first_offset = later.current_txn_first_offset
        self.timestamp_ms = later.timestamp_ms

    def is_next(self, epoch: int, base_sequence: int, *, is_transactional: bool) -> bool:
        """Return whether a data batch continues the last batch, in epoch, sequence and transaction.

        If so, the batch passes all checks for any origin.
        """
        batches = self.batches
        if epoch != self.producer_epoch or not batches:
            return False
        # A batch whose sequence is above all recent sequences cannot be a duplicate.
        return (
            batches[-1][0] == base_sequence - 1 == max(batches)[0]
            and (self.current_txn_first_offset != NO_OPEN_TXN) is is_transactional
        )

    def find_duplicate(self, epoch: int, first: int, last: int) -> BatchMetadata | None:
        """Return the recent batch with this first and last sequence, if any."""
        if epoch == self.producer_epoch:
            for batch in self.batches:
                if batch[0] == last and first_sequence_of(last, batch[2]) == first:
                    return batch
        return None


class Refusal(Exception):  # noqa: N818, because the caller raises an error with the position
    """A batch that is invalid in the current state of its producer."""

    def __init__(self, reason: str, expected: object, found: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.expected = expected
        self.found = found


class ProducerAppendInfo:
    """Collects the changes of one append to a producer, without changing its `current` entry."""

    def __init__(self, current: ProducerStateEntry, origin: AppendOrigin) -> None:
        self._current = current
        self._origin = origin
        self.updated = current.copy()
        self.updated.batches = ()
        self.started: list[int] = []

    def add_data(
        self,
        epoch: int,
        base_sequence: int,
        batch: BatchMetadata,
        base_offset: int,
        *,
        is_transactional: bool,
    ) -> None:
        """Validate and record a data batch.

        Raises `Refusal` if the epoch or sequence is out of order, or if the batch is not
        transactional, but the producer has an open transaction.
        """
        self._check_epoch(epoch)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(epoch, base_sequence)
        updated = self.updated
        updated.follow_epoch(epoch)
        updated.add_batch(batch)
        if updated.current_txn_first_offset != NO_OPEN_TXN:
            if not is_transactional:
                raise Refusal(
                    "the producer has an open transaction, but the batch is not transactional",
                    f"a transactional batch after offset {updated.current_txn_first_offset}",
                    "a batch without a transaction",
                )
        elif is_transactional:
            updated.current_txn_first_offset = base_offset
            self.started.append(base_offset)

    def add_marker(
        self,
        epoch: int,
        coordinator_epoch: int,
        offset: int,
        timestamp_ms: int,
        *,
        is_abort: bool,
    ) -> CompletedTxn | None:
        """Validate and record a transaction marker; return the open transaction that it ends.

        Raises `Refusal` if the producer epoch or coordinator epoch is below the producer's last
        one.
        """
        self._check_epoch(epoch)
        updated = self.updated
        if (
            updated.coordinator_epoch > coordinator_epoch
            and self._origin is not AppendOrigin.REPLICATION
        ):
            raise Refusal(
                "the coordinator epoch is fenced",
                f"{updated.coordinator_epoch} or more",
                coordinator_epoch,
            )
        completed = None
        if updated.current_txn_first_offset != NO_OPEN_TXN:
            completed = CompletedTxn(
                updated.producer_id, updated.current_txn_first_offset, offset, is_abort
            )
        updated.follow_epoch(epoch)
        add_marker(updated, coordinator_epoch, timestamp_ms)
        return completed

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.updated.producer_epoch and self._origin is not AppendOrigin.REPLICATION:
            raise Refusal(
                "the producer epoch is fenced", f"{self.updated.producer_epoch} or more", epoch
            )

    def _check_sequence(self, epoch: int, first: int) -> None:
        updated, current = self.updated, self._current
        if epoch != updated.producer_epoch:
            if first != 0 and updated.producer_epoch != NO_PRODUCER_EPOCH:
                raise Refusal("a new producer epoch must start at sequence 0", 0, first)
            return
        last = NO_SEQUENCE
        if updated.batches:
            last = updated.batches[-1][0]
        elif epoch == current.producer_epoch and current.batches:
            last = current.batches[-1][0]
        follows = first == last + 1 or (first == 0 and last == INT32_MAX)
        if current.producer_epoch != NO_PRODUCER_EPOCH and not follows:
            raise Refusal("the sequence is out of order", last + 1, first)


#: A batch as a tuple: row, base offset, metadata, producer ID, producer epoch, base sequence,
#: attributes, control type, coordinator epoch, marker timestamp, position. Python iterates faster
#: over tuples than over columns.
Row = tuple[int, int, BatchMetadata, int, int, int, int, int, int, int, int]

_APPENDS_PER_CHUNK = 2048


class _OpenTransaction(NamedTuple):
    """An open transaction, with the fields of `OPEN_TRANSACTION`. `owner` is the producer ID."""

    first_offset: int
    owner: int


_FIRST_OFFSET = attrgetter("first_offset")


class DuplicateBatch(Exception):  # noqa: N818, because a repeated batch is no error
    """A client has sent a batch again that is already in the log."""

    def __init__(self, row: int, batch: BatchMetadata) -> None:
        super().__init__(row)
        self.row = row
        self.first_offset = batch[1] - batch[2]
        self.last_offset = batch[1]


class Producers:
    """All producers of a partition.

    Attributes
    ----------
    first_replayed_transaction
        First offset of the earliest transaction whose transaction marker was replayed. Until the
        high watermark is known, this transaction is unstable. A broker that loads a log therefore
        looks up the position of this offset.
    """

    def __init__(self, expiration_ms: int) -> None:
        self.first_replayed_transaction: int | None = None
        self._expiration_ms = expiration_ms
        self._entries: dict[int, ProducerStateEntry] = {}
        self._order = JavaMapOrder()
        self._open_transactions: list[_OpenTransaction] = []
        # For each producer changed since `begin_append`: its entry before the first change.
        self._saved_entries: dict[int, ProducerStateEntry | None] | None = None
        self._saved_transactions: list[_OpenTransaction] = []
        self._saved_capacity = 0

    @property
    def is_empty(self) -> bool:
        return not self._entries

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest open transaction, None if there is none."""
        return self._open_transactions[0].first_offset if self._open_transactions else None

    def clear(self) -> None:
        """Remove all producers. As in Java, the map keeps its capacity, which affects its order."""
        self._entries.clear()
        self._open_transactions.clear()
        self.first_replayed_transaction = None

    def load(self, entries: NDArray[np.void], now_ms: int) -> None:
        """Load the entries of a snapshot, except expired producers."""
        for row in ProducerExpiration(self._expiration_ms, now_ms).live(entries).tolist():
            entry = ProducerStateEntry.of_row(row)
            self._put(entry)
            if entry.current_txn_first_offset != NO_OPEN_TXN:
                self._add_transaction(entry.current_txn_first_offset, entry.producer_id)

    def snapshot(self) -> bytes:
        rows = [entry.row() for entry in self._entries.values()]
        entries = np.array(rows, PRODUCER_STATE_ENTRY)
        return encode_snapshot(entries[self._order.order_of(entries["producer_id"])])

    def begin_append(self) -> None:
        """From now on, save the previous entries of changed producers for `roll_back`."""
        self._saved_entries = {}
        self._saved_transactions = list(self._open_transactions)
        self._saved_capacity = self._order.capacity

    def roll_back(self) -> None:
        """Restore the producers and open transactions at the time of `begin_append`."""
        for producer_id, saved in (self._saved_entries or {}).items():
            if saved is None:
                del self._entries[producer_id]
            else:
                self._entries[producer_id] = saved
        self._open_transactions = self._saved_transactions
        self._order.capacity = self._saved_capacity
        self._saved_entries = None

    def append(
        self,
        batches: IncomingBatches,
        ends: Longs,
        first_append: int,
        end_append: int,
        origin: AppendOrigin,
    ) -> NDArray[np.void]:
        """Validate and record appends in order; return the aborted transactions.

        `ends` has, for each append, the row after its last batch. Raises `InputError` if a batch is
        invalid for its producer, and `DuplicateBatch` if a client's batch is already in the log.
        After an error, earlier batches remain recorded until `roll_back`.
        """
        aborted: list[tuple[int, int, int, int, int]] = []
        first_row, end_row = (int(ends[n - 1]) if n else 0 for n in (first_append, end_append))
        rows = first_row + np.flatnonzero(batches.columns.producer_id[first_row:end_row] >= 0)
        if len(rows):
            groups = np.searchsorted(ends, rows, side="right")
            starts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(rows)]
            for first in range(0, len(starts) - 1, _APPENDS_PER_CHUNK):
                chunk_starts = starts[first : first + _APPENDS_PER_CHUNK + 1]
                self._append_groups(
                    _producer_rows(batches, rows[chunk_starts[0] : chunk_starts[-1]]),
                    chunk_starts,
                    origin,
                    aborted,
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
        entries, saved = self._entries, self._saved_entries
        for start, stop in pairwise(starts):
            row = rows[start - offset]
            entry = entries.get(row[3])
            # Fast path for an append with one batch that continues the producer's last batch.
            if (
                stop - start == 1
                and entry is not None
                and not row[6] & CONTROL_MASK
                and entry.is_next(
                    row[4], row[5], is_transactional=bool(row[6] & TRANSACTIONAL_MASK)
                )
            ):
                if saved is not None and row[3] not in saved:
                    saved[row[3]] = entry.copy()
                add_batch(entry, *row[2])
                entry.batches = (*entry.batches, row[2])[-MAX_RECENT_BATCHES:]
            else:
                appends: dict[int, ProducerAppendInfo] = {}
                completed: list[CompletedTxn] = []
                self._validate_rows(
                    rows[start - offset : stop - offset], origin, appends, completed
                )
                aborted += self._apply_appends(appends, completed)

    def replay(self, chunks: Iterable[IncomingBatches]) -> None:
        """Record stored batches like a single append by a follower."""
        appends: dict[int, ProducerAppendInfo] = {}
        completed: list[CompletedTxn] = []
        for batches in chunks:
            rows = np.flatnonzero(batches.columns.producer_id >= 0)
            self._validate_rows(
                _producer_rows(batches, rows), AppendOrigin.REPLICATION, appends, completed
            )
        self._apply_appends(appends, completed)
        first_offsets = [txn.first_offset for txn in completed]
        if self.first_replayed_transaction is not None:
            first_offsets.append(self.first_replayed_transaction)
        self.first_replayed_transaction = min(first_offsets, default=None)

    def _validate_rows(
        self,
        rows: list[Row],
        origin: AppendOrigin,
        appends: dict[int, ProducerAppendInfo],
        completed: list[CompletedTxn],
    ) -> None:
        for row in rows:
            producer_id = row[3]
            entry = self._entries.get(producer_id)
            if origin is AppendOrigin.CLIENT and entry is not None:
                duplicate = entry.find_duplicate(row[4], row[5], row[2][0])
                if duplicate is not None:
                    raise DuplicateBatch(row[0], duplicate)
            append = appends.get(producer_id)
            if append is None:
                append = ProducerAppendInfo(entry or ProducerStateEntry(producer_id), origin)
                appends[producer_id] = append
            try:
                completed_txn = _apply_row(append, row)
            except Refusal as refusal:
                raise InputError(
                    f"cannot append the batch of producer {producer_id} at offset {row[1]}: "
                    f"{refusal.reason}",
                    position_bytes=row[10],
                    expected=refusal.expected,
                    found=refusal.found,
                ) from None
            if completed_txn is not None:
                completed.append(completed_txn)

    def _apply_appends(
        self, appends: dict[int, ProducerAppendInfo], completed: list[CompletedTxn]
    ) -> list[tuple[int, int, int, int, int]]:
        aborted = []
        for producer_id in order_of_computed(list(appends)):
            self._update(appends[producer_id])
        for txn in completed:
            if txn.is_aborted:
                next_first_offset = next_open_offset(
                    self._open_transactions, 0, len(self._open_transactions), txn.producer_id
                )
                stable = last_stable_offset(next_first_offset, txn.last_offset)
                aborted.append((ABORTED_TXN_VERSION, *txn[:3], stable))
            self._remove_transaction(txn)
        return aborted

    def _update(self, append: ProducerAppendInfo) -> None:
        updated = append.updated
        entry = self._entries.get(updated.producer_id)
        if self._saved_entries is not None and updated.producer_id not in self._saved_entries:
            self._saved_entries[updated.producer_id] = None if entry is None else entry.copy()
        if entry is None:
            self._put(updated)
        else:
            entry.update(updated)
        for offset in append.started:
            self._add_transaction(offset, updated.producer_id)

    def _put(self, entry: ProducerStateEntry) -> None:
        if entry.producer_id not in self._entries:
            self._order.put(entry.producer_id, self._entries)
        self._entries[entry.producer_id] = entry

    def _add_transaction(self, first_offset: int, producer_id: int) -> None:
        start, end = self._find_transaction(first_offset)
        # As in Kafka's `ongoingTxns`, a transaction replaces another with the same first offset.
        self._open_transactions[start:end] = [_OpenTransaction(first_offset, producer_id)]

    def _remove_transaction(self, txn: CompletedTxn) -> None:
        start, end = self._find_transaction(txn.first_offset)
        if start == end:
            raise InputError(
                f"cannot append: the transaction of producer {txn.producer_id} cannot end, because "
                f"another transaction also started at offset {txn.first_offset}, and has ended"
            )
        del self._open_transactions[start]

    def _find_transaction(self, first_offset: int) -> tuple[int, int]:
        """Return the list range of the open transaction with a first offset, empty without one."""
        start = bisect.bisect_left(self._open_transactions, first_offset, key=_FIRST_OFFSET)
        is_present = (
            start < len(self._open_transactions)
            and self._open_transactions[start].first_offset == first_offset
        )
        return start, start + int(is_present)


def _producer_rows(batches: IncomingBatches, rows: Longs) -> list[Row]:
    """Convert table rows to `Row` tuples of Python integers."""
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
    """Record a batch in an append; return the open transaction that the batch ends.

    Raises `Refusal` if the batch is invalid for its producer, or is an unsupported control batch.
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
            "the control record is not a transaction marker", "an abort or a commit", control
        )
    return append.add_marker(epoch, coordinator, base, at, is_abort=control == CONTROL_ABORT)


class ReplayedSegment(Protocol):
    """A segment whose batches are replayed to rebuild producer state."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """Size of the segment's batches, in bytes."""

    def offset_to_position(self, offset: int) -> LogOffsetPosition | None:
        """Find the batch that contains an offset, or the first batch after it, if any."""

    def bytes_of(self, start: int, end: int) -> Bytes:
        """Return a byte range of the ``.log`` file."""


class SnapshotFiles:
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def offsets(self) -> list[int]:
        return list_snapshots(self._directory)

    def load_latest(
        self, offsets: Iterable[int]
    ) -> tuple[int | None, NDArray[np.void] | None, list[tuple[int, CorruptSnapshotError]]]:
        """Read the latest valid snapshot, like `load_latest_snapshot`."""
        return load_latest_snapshot(self._directory, offsets)

    def write(self, offset: int, data: bytes, *, durable: bool) -> None:
        path = snapshot_path(self._directory, offset)
        with AtomicFile(path, scratch_path=f"{path}.tmp") as file:
            file.write(data)
            file.commit(durable=durable)

    def remove(self, offset: int) -> None:
        """Delete a snapshot if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(snapshot_path(self._directory, offset))


class ProducerStateManager:
    """The producers of a partition at `end_offset` (``mapEndOffset``), and their snapshots."""

    def __init__(self, files: SnapshotFiles, expiration_ms: int, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self.producers = Producers(expiration_ms)
        self.end_offset = 0
        self._last_snapshot = 0
        self._snapshots = set(files.offsets())

    @property
    def snapshot_offsets(self) -> tuple[int, ...]:
        """The offsets of all snapshots, ascending."""
        return tuple(sorted(self._snapshots))

    def take_snapshot(self, data: bytes | None = None, *, durable: bool = True) -> None:
        """Write a snapshot at `end_offset`, unless the latest snapshot is at or above this offset.

        By default, `data` has the current producers. A snapshot that is written at a roll is not
        synced to disk: if it is lost in a crash, loading the log rebuilds the producers without it.
        """
        if self.end_offset <= self._last_snapshot:
            return
        snapshot = self.producers.snapshot() if data is None else data
        self._files.write(self.end_offset, snapshot, durable=durable)
        self._snapshots.add(self.end_offset)
        self._last_snapshot = self.end_offset

    def drop_snapshot(self, offset: int) -> None:
        self._snapshots.discard(offset)
        self._files.remove(offset)

    def remove_stray_snapshots(self, base_offsets: Sequence[int]) -> None:
        """Delete snapshots that are at no base offset (``removeStraySnapshots``).

        The latest of these snapshots is kept if it is above all base offsets.
        """
        self._snapshots = set(self._files.offsets())
        segment_bases = set(base_offsets)
        strays = [offset for offset in self.snapshot_offsets if offset not in segment_bases]
        for offset in strays[:-1]:
            self.drop_snapshot(offset)
        if strays and base_offsets and strays[-1] < max(base_offsets):
            self.drop_snapshot(strays[-1])

    def start_at(self, offset: int) -> None:
        """Remove all producers and snapshots; set `end_offset` (``truncateFullyAndStartAt``)."""
        self.producers.clear()
        for snapshot in self.snapshot_offsets:
            self.drop_snapshot(snapshot)
        self._last_snapshot = 0
        self.end_offset = offset

    def rebuild(
        self,
        segments: Sequence[ReplayedSegment],
        log_start_offset: int,
        last_offset: int,
        *,
        after_clean_shutdown: bool,
    ) -> None:
        """Rebuild the producers at `last_offset` from the latest snapshot and later batches.

        If no snapshot exists after a clean shutdown, the log is assumed to have no producers.
        """
        snapshot_bases = [segment.base_offset for segment in segments[-2:]] + [last_offset]
        if not self._snapshots and after_clean_shutdown:
            for offset in snapshot_bases:
                self.end_offset = offset
                self.take_snapshot()
            return
        was_empty = self.producers.is_empty and self.end_offset >= last_offset
        self._truncate_and_reload(log_start_offset, last_offset)
        if last_offset > self.end_offset and not was_empty:
            self._replay(segments, log_start_offset, last_offset, snapshot_bases)
        self.end_offset = last_offset
        self.take_snapshot()

    def _truncate_and_reload(self, log_start_offset: int, end_offset: int) -> None:
        for offset in self.snapshot_offsets:
            if is_out_of_range(offset, log_start_offset, end_offset):
                self.drop_snapshot(offset)
        if end_offset == self.end_offset:
            self.end_offset = max(self.end_offset, log_start_offset)
            self._last_snapshot = max(self._snapshots, default=log_start_offset)
            return
        self.producers.clear()
        snapshot_offset, entries, damaged = self._files.load_latest(self.snapshot_offsets)
        for offset, _ in damaged:
            self.drop_snapshot(offset)
        if snapshot_offset is not None and entries is not None:
            self.producers.load(entries, self._clock())
        self._last_snapshot = self.end_offset = (
            log_start_offset if snapshot_offset is None else snapshot_offset
        )

    def _replay(
        self,
        segments: Sequence[ReplayedSegment],
        log_start_offset: int,
        last_offset: int,
        snapshot_bases: Sequence[int],
    ) -> None:
        first = floor_segment(segments, self.end_offset)
        for number in range(first, len(segments)):
            segment = segments[number]
            next_segment = segments[number + 1] if number + 1 < len(segments) else None
            if segment.base_offset >= last_offset:
                break
            self.end_offset = max(segment.base_offset, self.end_offset, log_start_offset)
            if segment.base_offset in snapshot_bases:
                self.take_snapshot()
            end = segment.size_bytes
            if next_segment is None or next_segment.base_offset > last_offset:
                last_batch = segment.offset_to_position(last_offset)
                end = segment.size_bytes if last_batch is None else last_batch.position
            first_batch = segment.offset_to_position(self.end_offset)
            if first_batch is not None and first_batch.position < end:
                data = segment.bytes_of(first_batch.position, end)
                self.producers.replay(IncomingBatches.scan_stored(data, segment.base_offset))
