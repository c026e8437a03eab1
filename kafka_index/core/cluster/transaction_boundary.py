"""The transaction boundary of a backup: log ends that contain each transaction fully or not at all.

``__transaction_state`` is captured first, so other logs may contain transactions that began or
ended after its capture. A log is truncated before the first transactional or control batch that the
captured transaction states do not include. After a restore, transaction coordinators continue from
these log ends: they abort the open transactions, and write the markers of decided transactions. No
log contains a producer epoch that its coordinator does not know.

The partitions of ``__transaction_state`` are captured one after another. Truncating a log can
therefore remove batches that a later captured state requires. In this case, the partition of
``__transaction_state`` with this state is also truncated, before the record of the completed or
decided transaction. Both steps are repeated until nothing changes. All removed batches are newer
than the first capture. Point-in-time restores use the same algorithm.

With ``transaction.version`` 2 (clients since 4.0), a producer gets a new epoch for each
transaction. If the records of a transaction have epoch e, its marker and the records of the next
transaction have epoch e + 1. Producers of older clients keep their epoch, so their transactions are
distinguished by the times of markers. Therefore, broker clocks must agree to within the duration of
a transaction. Source: ``TransactionMetadata``, ``TransactionCoordinator.endTransaction``,
``ProducerAppendInfo.checkProducerEpoch``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.cluster.metadata.decoding import TopicLog
from kafka_index.core.cluster.metadata.topic_states import (
    Transaction,
    TransactionLogState,
    transaction_change,
)
from kafka_index.core.errors import CorruptRecordError, KafkaIndexError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import TRANSACTION_STATE_TOPIC, TopicPartition
from kafka_index.core.format.records import CONTROL_MASK, TRANSACTIONAL_MASK
from kafka_index.core.job.engine import map_requests
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.decompression import DecompressionBudget

_EMPTY, _ONGOING = "Empty", "Ongoing"
_PREPARED = ("PrepareCommit", "PrepareAbort")
# The first transaction.version in which producers get a new epoch for each transaction.
_EPOCH_BUMP = 2
# Stands for the epoch of a replaced producer ID; larger than every epoch.
_REPLACED = 1 << 16
_THREADS = 16

_Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BackupLog:
    """A log of a backup.

    Attributes
    ----------
    settled_offset : int
        All batches below this offset were appended before ``__transaction_state`` was captured;
        they are called settled.
    chunks : sequence of (int, int)
        Base offset and size in bytes of each chunk of the backup; chunks form the segments.
    end_offset, end_ms : int
        The log ends at this offset, or before a batch with a later timestamp.
    """

    partition: TopicPartition
    segments: Sequence[SegmentFile]
    settled_offset: int = 0
    chunks: Sequence[tuple[int, int]] = ()
    end_offset: int = INT64_MAX
    end_ms: int = INT64_MAX

    def settled_position(self, segment: SegmentFile) -> int:
        """Return the position of a batch at or before the first unsettled batch of a segment."""
        position = next_position = 0
        for base_offset, size_bytes in self.chunks:
            if base_offset < segment.base_offset:
                continue
            if base_offset > self.settled_offset:
                break
            position, next_position = next_position, next_position + size_bytes
        return position


class _Batches(NamedTuple):
    """Transactional batches and transaction markers of a log; only markers have a `time_ms`."""

    offset: Longs
    producer_id: Longs
    epoch: Longs
    is_marker: _Mask
    time_ms: Longs

    def select(self, rows: _Mask) -> _Batches:
        columns: Any = tuple(column[rows] for column in self)
        return _Batches._make(columns)


@dataclass(slots=True)
class _DataLog:
    """A log not of ``__transaction_state``: its transactional batches and current end offset."""

    log: BackupLog
    batches: _Batches
    end_offset: int

    @classmethod
    def read(cls, log: BackupLog) -> _DataLog:
        tables, end_offset = [], log.end_offset
        for segment, start_bytes in _unsettled_segments(log):
            for table, late_offset in _scan_transactional(segment, start_bytes, log.end_ms):
                tables.append(table)
                end_offset = min(end_offset, late_offset)
        if not tables:
            empty = np.empty(0, np.int64)
            return cls(log, _Batches(empty, empty, empty, empty.astype(bool), empty), end_offset)
        batches = _Batches(*map(np.concatenate, zip(*tables, strict=True)))
        return cls(log, batches.select(batches.offset >= log.settled_offset), end_offset)


@dataclass(slots=True)
class _StateLog:
    """A partition of ``__transaction_state``: its transaction states and end offset."""

    log: BackupLog
    end_offset: int
    settled_transactions: dict[str, Transaction] = field(default_factory=dict)
    later_changes: list[tuple[int, str, Transaction | None]] = field(default_factory=list)
    faults: list[KafkaIndexError] = field(default_factory=list)

    @classmethod
    def read(cls, log: BackupLog, budget: DecompressionBudget) -> _StateLog:
        end_offset = log.end_offset
        if log.end_ms < INT64_MAX:
            end_offset = _DataLog.read(log).end_offset
        state_log = cls(log, end_offset)
        settled_state, records = TransactionLogState(), TopicLog(log.segments, budget)
        for record in records.records():
            try:
                if record.offset < log.settled_offset:
                    settled_state.add(record)
                elif (change := transaction_change(record)) is not None:
                    state_log.later_changes.append((record.offset, *change))
            except CorruptRecordError as error:
                state_log.faults.append(error)
        state_log.settled_transactions = {
            transaction.transactional_id: transaction
            for transaction in settled_state.transactions()
        }
        state_log.faults += records.faults
        return state_log

    def transactions_at_end(self) -> dict[str, Transaction]:
        """Return the transaction states at the end offset, keyed by transactional ID."""
        states = dict(self.settled_transactions)
        for offset, name, transaction in self.later_changes:
            if offset >= self.end_offset:
                break
            if transaction is None:
                states.pop(name, None)
            else:
                states[name] = transaction
        return states

    def truncate_before_last_records(self, names: Iterable[str]) -> bool:
        """Truncate the log before the last record of each ID; return whether it was truncated."""
        last_offsets = {
            name: offset for offset, name, _ in self.later_changes if offset < self.end_offset
        }
        ends = [last_offsets[name] for name in names if name in last_offsets]
        self.end_offset = min([self.end_offset, *ends])
        return bool(ends)


class _Classification(NamedTuple):
    """How the transaction states relate to each batch.

    `is_unknown` is True if the states do not include the batch, and `is_needed` if they require it.
    `row` is the row of the producer's state.
    """

    is_unknown: _Mask
    is_needed: _Mask
    row: NDArray[np.intp]


class _TransactionStates:
    """The states of transactional IDs, as columns."""

    def __init__(self, states: Mapping[str, Transaction], begun_ms: int) -> None:
        self._begun_ms = begun_ms
        rows = [(state.producer_id, state, state.producer_epoch) for state in states.values()]
        rows += [
            (state.previous_producer_id, state, _REPLACED)
            for state in states.values()
            if state.previous_producer_id not in (None, state.producer_id)
        ]
        rows.sort(key=lambda row: (row[0], -row[2]))
        self._states = [state for _, state, _ in rows]
        self._ids = np.array([producer_id for producer_id, *_ in rows], np.int64)
        self._epochs = np.array([epoch for *_, epoch in rows], np.int64)
        state_names = np.array([state.state for state in self._states], object)
        self._is_empty: _Mask = state_names == _EMPTY
        self._is_open: _Mask = state_names == _ONGOING
        self._is_decided: _Mask = np.isin(state_names, _PREPARED)
        versions = np.array([state.client_version for state in self._states], np.int64)
        self._by_epoch: _Mask = self._is_empty | (versions >= _EPOCH_BUMP)

    @cached_property
    def _rows_by_partition(self) -> Mapping[TopicPartition, list[int]]:
        rows: dict[TopicPartition, list[int]] = defaultdict(list)
        for row, transaction in enumerate(self._states):
            for partition in transaction.partitions:
                rows[TopicPartition(*partition)].append(row)
        return rows

    def transactional_id(self, row: int) -> str:
        return self._states[row].transactional_id

    def classify(self, data_log: _DataLog) -> _Classification:
        batches = data_log.batches
        count = len(batches.offset)
        state_rows = np.searchsorted(self._ids, batches.producer_id)
        state_rows[state_rows == len(self._ids)] = 0
        classified = _Classification(np.zeros(count, bool), np.zeros(count, bool), state_rows)
        has_state = np.zeros(count, bool)
        if len(self._ids):
            has_state = self._ids[state_rows] == batches.producer_id
            self._classify_by_epoch(data_log, classified, has_state)
            by_time = (
                has_state
                & ~self._by_epoch[state_rows]
                & (batches.epoch == self._epochs[state_rows])
            )
            for row in np.unique(state_rows[by_time]):
                self._classify_by_times(
                    data_log, classified, np.flatnonzero(by_time & (state_rows == row))
                )
        for producer_id in np.unique(batches.producer_id[~has_state]):
            # No state has this producer ID. Batches up to its last marker before the backup belong
            # to an expired transactional ID. All later batches are unknown.
            producer_batches = np.flatnonzero(batches.producer_id == producer_id)
            is_old_marker = batches.is_marker[producer_batches] & (
                batches.time_ms[producer_batches] < self._begun_ms
            )
            classified.is_unknown[producer_batches[_last_true(is_old_marker) + 1 :]] = True
        return classified

    def _classify_by_epoch(
        self, data_log: _DataLog, classified: _Classification, has_state: _Mask
    ) -> None:
        batches, state_rows = data_log.batches, classified.row
        is_open = np.zeros(len(self._ids), bool)
        is_open[self._rows_by_partition.get(data_log.log.partition, [])] = True
        is_open &= self._is_open
        epochs, is_marker = self._epochs[state_rows], batches.is_marker
        is_same = (batches.epoch == epochs) & has_state
        by_epoch = is_same & self._by_epoch[state_rows]
        has_begun = np.where(is_marker, ~self._is_empty[state_rows], is_open[state_rows])
        classified.is_unknown[:] = (has_state & (batches.epoch > epochs)) | (by_epoch & ~has_begun)
        is_over = by_epoch & is_marker & ~self._is_decided[state_rows] & ~self._is_empty[state_rows]
        classified.is_needed[:] = (has_state & (batches.epoch < epochs)) | is_over
        # If a transaction was completed after a broker upgrade, earlier transactions may have the
        # same epoch as its marker.
        for producer_id in np.unique(batches.producer_id[is_over]):
            producer_batches = np.flatnonzero(by_epoch & (batches.producer_id == producer_id))
            earlier_batches = producer_batches[: _last_true(is_marker[producer_batches]) + 1]
            classified.is_unknown[earlier_batches], classified.is_needed[earlier_batches] = (
                False,
                True,
            )

    def _classify_by_times(
        self, data_log: _DataLog, classified: _Classification, producer_batches: NDArray[np.intp]
    ) -> None:
        """Classify the batches of a producer that keeps its epoch."""
        row, log = int(classified.row[producer_batches[0]]), data_log.log
        state = self._states[row]
        is_marker, time_ms = (
            data_log.batches.is_marker[producer_batches],
            data_log.batches.time_ms[producer_batches],
        )
        is_listed = row in self._rows_by_partition.get(log.partition, ())
        is_open = self._is_open[row] or self._is_decided[row]
        # For a completed transaction, use the append time of its state: its last update timestamp
        # is the time of the decision, which is before the markers.
        begun_ms = (state.start_timestamp_ms or 0) if is_open else state.appended_ms
        # Batches up to the last marker at or before this time belong to previous transactions. The
        # next marker ends the current transaction.
        previous_count = _last_true(is_marker & (time_ms <= begun_ms)) + 1
        classified.is_needed[producer_batches[:previous_count]] = True
        if not (is_open and is_listed):
            classified.is_unknown[producer_batches[previous_count:]] = True
            return
        later_markers = np.flatnonzero(is_marker & (time_ms > begun_ms))
        end_marker = int(later_markers[0]) if len(later_markers) else len(producer_batches)
        if self._is_decided[row]:
            if _read_last_marker_ms(log, state) > begun_ms:
                end_marker = -1
            classified.is_needed[producer_batches[:end_marker]] = True
            end_marker += 1
        classified.is_unknown[producer_batches[max(end_marker, 0) :]] = True


@dataclass(frozen=True, slots=True)
class TransactionBoundary:
    """The end offsets of truncated logs, and errors in transaction states."""

    ends: Mapping[TopicPartition, int]
    faults: Sequence[KafkaIndexError]


def find_transaction_boundary(
    logs: Sequence[BackupLog], begun_ms: int, budget: DecompressionBudget
) -> TransactionBoundary:
    """Return the end offsets at which logs of a backup must be truncated.

    `logs` includes the logs of ``__transaction_state``. `begun_ms` is a time before their capture.
    The result includes end offsets that follow only from the `end_ms` of a log, if this truncates
    unsettled batches.
    """
    states = [
        _StateLog.read(log, budget)
        for log in logs
        if log.partition.topic == TRANSACTION_STATE_TOPIC
    ]
    data_topic_logs = [log for log in logs if log.partition.topic != TRANSACTION_STATE_TOPIC]
    data_logs = list(
        map_requests(_DataLog.read, data_topic_logs, threads=_THREADS, name="transactions")
    )
    while _truncate_logs(states, data_logs, begun_ms):
        pass
    all_logs: list[_StateLog | _DataLog] = [*states, *data_logs]
    ends = {log.log.partition: log.end_offset for log in all_logs if log.end_offset < INT64_MAX}
    return TransactionBoundary(ends, [fault for log in states for fault in log.faults])


def _truncate_logs(
    states: Sequence[_StateLog], data_logs: Sequence[_DataLog], begun_ms: int
) -> bool:
    """Truncate data logs, then state logs that require more; return whether the latter changed."""
    latest: dict[str, Transaction] = {}
    state_log_by_id: dict[str, _StateLog] = {}
    for state_log in states:
        transactions = state_log.transactions_at_end()
        latest |= transactions
        state_log_by_id |= dict.fromkeys(transactions, state_log)
    columns = _TransactionStates(latest, begun_ms)
    incomplete: dict[int, set[str]] = defaultdict(set)
    for data_log in data_logs:
        if not len(data_log.batches.offset):
            continue
        classified = columns.classify(data_log)
        unknown = data_log.batches.offset[classified.is_unknown]
        if len(unknown):
            data_log.end_offset = min(data_log.end_offset, int(unknown[0]))
        is_incomplete = classified.is_needed & (data_log.batches.offset >= data_log.end_offset)
        for row in np.unique(classified.row[is_incomplete]):
            transactional_id = columns.transactional_id(int(row))
            incomplete[id(state_log_by_id[transactional_id])].add(transactional_id)
    has_changed = [
        state_log.truncate_before_last_records(incomplete[id(state_log)])
        for state_log in states
        if id(state_log) in incomplete
    ]
    return any(has_changed)


def _last_true(rows: _Mask) -> int:
    """Return the position of the last True, -1 if there is none."""
    positions = np.flatnonzero(rows)
    return int(positions[-1]) if len(positions) else -1


def _unsettled_segments(log: BackupLog) -> Iterator[tuple[SegmentFile, int]]:
    """Yield segments that may have unsettled batches, with a position before these batches."""
    segments = list(log.segments)
    for segment, next_segment in zip(segments, [*segments[1:], None], strict=True):
        if next_segment is None or next_segment.base_offset > log.settled_offset:
            yield segment, log.settled_position(segment)


def _read_last_marker_ms(log: BackupLog, state: Transaction) -> int:
    """Return the time of the producer's last settled transaction marker, -1 if there is none."""
    for segment in reversed(log.segments):
        if segment.base_offset >= log.settled_offset:
            continue
        times = [
            batches.time_ms[
                batches.is_marker
                & (batches.producer_id == state.producer_id)
                & (batches.offset < log.settled_offset)
            ]
            for batches, _ in _scan_transactional(segment, 0, INT64_MAX)
        ]
        for marker_times in reversed(times):
            if len(marker_times):
                return int(marker_times[-1])
    return -1


def _scan_transactional(
    segment: SegmentFile, start_bytes: int, end_ms: int
) -> Iterator[tuple[_Batches, int]]:
    """Yield transactional batches, and the base offset of the first batch later than `end_ms`."""
    source = LogFileSource(
        segment.log_path, verify_crc=False, listed_segment=segment, start_bytes=start_bytes
    )
    for batches in source.chunks():
        flags = batches.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)
        rows = (flags != 0) & (batches.producer_id >= 0)
        late_batches = np.flatnonzero(batches.max_timestamp_ms > end_ms)
        yield (
            _Batches(
                batches.base_offset[rows],
                batches.producer_id[rows],
                batches.producer_epoch[rows],
                batches.is_control[rows],
                batches.control_timestamp_ms[rows],
            ),
            int(batches.base_offset[late_batches[0]]) if len(late_batches) else INT64_MAX,
        )
