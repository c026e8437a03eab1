"""Missing transaction markers of restored partitions: write the markers, or drop the records.

Without its marker, a transaction would stay open, or the marker of the producer's next transaction
would end both transactions. The outcome of a transaction is in the ``.txnindex`` files of the dump,
in ``__transaction_state``, or in a marker with a higher epoch in another partition.
`find_missing_markers` reads only partitions with losses or open transactions.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cache, partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.commands.restore.plan import PartitionPlan, RestorePlan
from kafka_index.commands.restore.result import LostRange, RestoredPartition
from kafka_index.commands.restore.transaction_outcomes import (
    Outcome,
    TransactionEnd,
    TransactionKey,
    TransactionOutcomes,
)
from kafka_index.core.cluster.replicas import read_dumps
from kafka_index.core.errors import (
    InputError,
    KafkaIndexError,
    is_retriable,
    raise_retriable,
)
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import (
    TRANSACTION_STATE_TOPIC,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    parse_segment_file,
)
from kafka_index.core.format.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    TRANSACTIONAL_MASK,
)
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.registry import scan_directory, store_of
from kafka_index.core.index.transaction_index import TransactionIndex
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.log.state.snapshots import list_snapshots, load_latest_snapshot
from kafka_index.core.logdir.partition_files import SegmentFile, list_partition
from kafka_index.core.records.batch_table import BatchColumns
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_batch import write_end_transaction_marker


class TransactionBatches(NamedTuple):
    """Transactional batches and markers, as arrays of equal length.

    `gap` is the number of gaps with lost offsets before a batch. `time_ms` is the timestamp of a
    marker.
    """

    base_offset: Longs
    last_offset: Longs
    producer_id: Longs
    epoch: Longs
    control_type: Longs
    time_ms: Longs
    coordinator_epoch: Longs
    gap: Longs

    def take(self, rows: NDArray[np.intp] | slice) -> TransactionBatches:
        return TransactionBatches(*(column[rows] for column in self))

    def outcome(self, row: int) -> Outcome:
        is_commit = self.control_type[row] == CONTROL_COMMIT
        return Outcome.COMMIT if is_commit else Outcome.ABORT


class Gap(NamedTuple):
    """Lost offsets between two batches; leader epoch and timestamp of the batch before."""

    first_offset: int
    last_offset: int
    leader_epoch: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PartitionTransactions:
    """The transactional batches and markers of a partition, sorted by producer ID and offset.

    The last gap begins at the log end, even if no later offset is lost. A row before the start
    offset represents all earlier batches of a transaction that is open at the start offset.
    """

    rows: TransactionBatches
    gaps: list[Gap]
    is_end_lost: bool
    start_offset: int

    @classmethod
    def read(
        cls,
        segments: Sequence[SegmentFile],
        lost: Sequence[LostRange] = (),
        producers: NDArray[np.void] | None = None,
    ) -> PartitionTransactions:
        """Read batch headers; `producers` are the entries of the snapshot at the log end."""
        starts, ends = _merge_lost_ranges(lost, [segment.base_offset for segment in segments])
        gaps: list[Gap] = []
        start_offset = segments[0].base_offset
        tables = [] if producers is None else [_open_batches_before_log(start_offset, producers)]
        end_offset, epoch, time_ms = start_offset, NO_LEADER_EPOCH, NO_TIMESTAMP
        for segment in segments:
            source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
            for batches in source.chunks():
                if not batches.rows:
                    continue
                expected_offset = np.concatenate(([end_offset], batches.last_offset[:-1] + 1))
                lost_number = np.searchsorted(starts, batches.base_offset) - 1
                is_gap = (batches.base_offset > expected_offset) & (lost_number >= 0)
                is_gap[is_gap] = ends[lost_number[is_gap]] >= expected_offset[is_gap]
                tables.append(_transaction_batches(batches, len(gaps) + np.cumsum(is_gap)))
                for row in np.flatnonzero(is_gap).tolist():
                    if row:
                        epoch = int(batches.leader_epoch[row - 1])
                        time_ms = int(batches.max_timestamp_ms[row - 1])
                    first_offset, last_offset = (
                        int(expected_offset[row]),
                        int(batches.base_offset[row]) - 1,
                    )
                    gaps.append(Gap(first_offset, last_offset, epoch, time_ms))
                end_offset = int(batches.last_offset[-1]) + 1
                epoch = int(batches.leader_epoch[-1])
                time_ms = int(batches.max_timestamp_ms[-1])
        log_end = max(end_offset, segments[-1].base_offset)
        if ((starts < log_end) & (ends >= end_offset)).any():
            gaps.append(Gap(end_offset, log_end - 1, epoch, time_ms))
        end_offset = log_end
        gaps.append(Gap(end_offset, INT64_MAX, epoch, time_ms))
        empty_table = TransactionBatches(
            *(np.empty(0, np.int64) for _ in TransactionBatches._fields)
        )
        rows = TransactionBatches(*map(np.concatenate, zip(empty_table, *tables, strict=True)))
        order = np.lexsort((rows.base_offset, rows.producer_id))
        is_end_lost = bool(len(ends)) and int(ends[-1]) >= end_offset
        return cls(rows.take(order), gaps, is_end_lost, start_offset)

    @property
    def end_offset(self) -> int:
        return self.gaps[-1].first_offset

    def is_lost(self, offset: int) -> bool:
        """Return whether an offset is in a gap or before the log."""
        return offset < self.start_offset or any(
            gap.first_offset <= offset <= gap.last_offset for gap in self.gaps
        )

    def transactions(self) -> Iterator[tuple[int, int, bool]]:
        """Yield the first and last row of each transaction, and whether the last row is a marker.

        If a marker is missing, two transactions appear as one transaction.
        """
        is_marker = self.rows.control_type >= CONTROL_ABORT
        if not len(is_marker):
            return
        is_first = np.ones(len(is_marker), np.bool_)
        is_first[1:] = is_marker[:-1] | (np.diff(self.rows.producer_id) != 0)
        firsts = np.flatnonzero(is_first)
        lasts = np.append(firsts[1:], len(is_marker)) - 1
        has_data = ~is_marker[firsts]
        for first_row, last_row in zip(
            firsts[has_data].tolist(), lasts[has_data].tolist(), strict=True
        ):
            yield first_row, last_row, bool(is_marker[last_row])


def _open_batches_before_log(start_offset: int, producers: NDArray[np.void]) -> TransactionBatches:
    """Return a row for each open transaction that began before the first segment."""
    first_offset = producers["current_txn_first_offset"]
    open_producers = producers[(first_offset >= 0) & (first_offset < start_offset)]
    offset, zeros = (
        open_producers["current_txn_first_offset"],
        np.zeros(len(open_producers), np.int64),
    )
    producer_id, epoch = open_producers["producer_id"], open_producers["producer_epoch"]
    no_control_type = zeros - 1
    return TransactionBatches(
        offset, offset, producer_id, epoch, no_control_type, zeros, zeros, zeros
    )


def _transaction_batches(batches: BatchColumns, gap: Longs) -> TransactionBatches:
    is_transactional = batches.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK) != 0
    is_transactional &= (batches.producer_id >= 0) & (batches.control_type <= CONTROL_COMMIT)
    is_transactional &= ~batches.is_control | (batches.control_type >= CONTROL_ABORT)
    columns = (
        batches.base_offset,
        batches.last_offset,
        batches.producer_id,
        batches.producer_epoch,
        batches.control_type,
        batches.control_timestamp_ms,
        batches.coordinator_epoch,
        gap,
    )
    return TransactionBatches(*(column[is_transactional] for column in columns))


def _merge_lost_ranges(
    lost: Sequence[LostRange], base_offsets: Sequence[int]
) -> tuple[Longs, Longs]:
    """Merge lost ranges; if the end of a range is unknown, use the end of its segment."""
    spans = []
    for lost_range in lost:
        later_base_offsets = [
            base for base in base_offsets if base > lost_range.segment_base_offset
        ]
        last_offset = later_base_offsets[0] - 1 if later_base_offsets else INT64_MAX - 1
        first_offset = (
            lost_range.segment_base_offset
            if lost_range.first_offset is None
            else lost_range.first_offset
        )
        spans.append(
            (
                first_offset,
                last_offset if lost_range.last_offset is None else lost_range.last_offset,
            )
        )
    spans = sorted(span for span in spans if span[0] <= span[1])
    merged_ranges: list[list[int]] = []
    for first_offset, last_offset in spans:
        if merged_ranges and first_offset <= merged_ranges[-1][1] + 1:
            merged_ranges[-1][1] = max(merged_ranges[-1][1], last_offset)
        else:
            merged_ranges.append([first_offset, last_offset])
    columns = np.array(merged_ranges, np.int64).reshape(-1, 2)
    return columns[:, 0].copy(), columns[:, 1].copy()


class AbortedTransaction(NamedTuple):
    """An entry of a transaction index; `last_offset` is the offset of the abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class AbortedIndexes:
    """The transaction indexes of the copies of a partition.

    `covered_ranges` has the base offset and the last marker offset of each index. Up to this
    marker, the index contains all aborted transactions of its segment.
    """

    entries: tuple[AbortedTransaction, ...]
    covered_ranges: tuple[tuple[int, int], ...]

    @classmethod
    def read(cls, directories: Iterable[str]) -> AbortedIndexes:
        """Read ``.txnindex`` files in directories; skip files that a broker would rebuild."""
        entries: set[AbortedTransaction] = set()
        covered_ranges = []
        for directory in directories:
            for entry in scan_directory(directory):
                segment_file = parse_segment_file(entry.name)
                if (
                    segment_file is None
                    or segment_file.kind != TXN_INDEX_SUFFIX
                    or segment_file.transient
                ):
                    continue
                transactions = _read_aborted_transactions(
                    os.path.join(directory, entry.name), segment_file.base_offset
                )
                entries.update(transactions)
                if transactions:
                    covered_ranges.append((segment_file.base_offset, transactions[-1].last_offset))
        return cls(tuple(sorted(entries)), tuple(covered_ranges))

    def covers(self, gap: Gap) -> bool:
        """Return whether an index lists all aborted transactions whose markers are in a gap."""
        return any(
            base_offset <= gap.first_offset and gap.last_offset < last_offset
            for base_offset, last_offset in self.covered_ranges
        )


def _read_aborted_transactions(path: str, base_offset: int) -> list[AbortedTransaction]:
    try:
        with TransactionIndex(path, base_offset, writable=False) as index:
            index.sanity_check()
            columns = index.entries[list(AbortedTransaction._fields)].tolist()
    except KafkaIndexError as error:
        raise_retriable([error])
        return []
    transactions = [AbortedTransaction(*row) for row in columns]
    last_offsets = [transaction.last_offset for transaction in transactions]
    is_valid = last_offsets == sorted(set(last_offsets)) and all(
        transaction.first_offset <= transaction.last_offset for transaction in transactions
    )
    return transactions if is_valid else []


#: The code of records that are dropped because the outcome of their transaction is unknown.
UNKNOWN_OUTCOME: Final = "unknown_transaction_outcome"
_EPOCH_BUMP = 1


class _EndedBy(Enum):
    """What ends the batches of a transaction: a marker, a missing marker, or the log end."""

    MARKER = auto()
    MISSING = auto()
    LOG = auto()


class _BatchRange(NamedTuple):
    """Consecutive batches of one producer: a range of rows.

    `previous_marker_row` and `next_row` are the producer's previous marker and its next batch or
    marker; None if there is none. `aborted_transaction` is the transaction index entry of these
    batches, or None.
    """

    first_row: int
    end_row: int
    ended_by: _EndedBy
    previous_marker_row: int | None
    next_row: int | None
    aborted_transaction: AbortedTransaction | None


class _TransactionRange(NamedTuple):
    """Consecutive batches of a transaction: a range of rows, and the end, None if unknown."""

    first_row: int
    end_row: int
    ending: TransactionEnd | None


@dataclass(frozen=True, slots=True)
class TransactionEdits:
    """The new markers of a partition by offset, and the base offsets of dropped batches.

    `lost` has the ranges of the dropped batches.
    """

    markers: Mapping[int, bytes] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()
    lost: tuple[LostRange, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether markers are written or batches are dropped."""
        return bool(self.markers or self.dropped)

    def in_segment(self, first_offset: int, end_offset: int) -> TransactionEdits:
        """Return the edits of a segment; its end offset is exclusive."""
        span = range(first_offset, end_offset)
        return TransactionEdits(
            {offset: marker for offset, marker in self.markers.items() if offset in span},
            frozenset(offset for offset in self.dropped if offset in span),
        )

    def rewrite(self, segment: SegmentFile, path: str) -> SegmentFile:
        """Write the edited log of a segment to another path."""
        pending_markers = sorted(self.markers.items(), reverse=True)
        try:
            with open(path, "xb") as file, MappedFile(segment.log_path) as log:
                source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
                start_bytes = end_bytes = 0
                for batches in source.chunks():
                    offsets = batches.base_offset.tolist()
                    positions = batches.position_bytes.tolist()
                    sizes = batches.size_bytes.tolist()
                    for offset, position, size in zip(offsets, positions, sizes, strict=True):
                        end_bytes = position + size
                        is_dropped = offset in self.dropped
                        is_after_marker = bool(pending_markers) and pending_markers[-1][0] < offset
                        if not (is_dropped or is_after_marker):
                            continue
                        file.write(log.array[start_bytes:position].data)
                        while pending_markers and pending_markers[-1][0] < offset:
                            file.write(pending_markers.pop()[1])
                        start_bytes = end_bytes if is_dropped else position
                file.write(log.array[start_bytes:end_bytes].data)
                while pending_markers:
                    file.write(pending_markers.pop()[1])
                file.flush()
                status = os.fstat(file.fileno())
        except OSError as error:
            raise publish_error(error, path, "write the log") from error
        return segment.copied_to(path, status)


@dataclass
class PartitionMarkers:
    """Finds the missing transaction markers of a partition.

    Attributes
    ----------
    has_coordinator : bool
        A transaction coordinator of the output can end open transactions.
    is_whole_cluster : bool
        The output becomes a new cluster: no other broker coordinates its transactions.
    may_append : bool
        Markers may be appended: the log is not truncated, and no other replica has later batches.
    is_compacted : bool
        The log may be compacted: not every offset has a record.
    open_producers : list of int
        Producers of transactions that stay open, and that possibly no coordinator ends.
    """

    partition: TopicPartition
    log: PartitionTransactions
    indexes: AbortedIndexes
    outcomes: Callable[[], TransactionOutcomes]
    has_coordinator: bool
    is_whole_cluster: bool
    may_append: bool
    is_compacted: bool
    open_producers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._markers: dict[int, bytes] = {}
        self._dropped: set[int] = set()
        self._lost: list[LostRange] = []
        self._notes: list[str] = []
        self._used_offsets = {entry.last_offset for entry in self.indexes.entries}
        self._end_gap = len(self.log.gaps) - 1
        self._next_offset = self.log.end_offset

    def edits(self) -> TransactionEdits:
        """Write the missing markers; drop the records of transactions with an unknown outcome."""
        gap = self.log.rows.gap
        for first_row, last_row, has_marker in self.log.transactions():
            if has_marker and gap[first_row] == gap[last_row]:
                continue
            for batches in self._batch_ranges(first_row, last_row, has_marker=has_marker):
                self._repair(batches)
        return TransactionEdits(
            self._markers, frozenset(self._dropped), tuple(self._lost), tuple(self._notes)
        )

    def _batch_ranges(
        self, first_row: int, last_row: int, *, has_marker: bool
    ) -> Iterator[_BatchRange]:
        """Split the batches of a seeming transaction at the positions of missing markers."""
        rows = self.log.rows
        end_row = last_row + 1 - has_marker
        next_row = last_row if has_marker else None
        data = rows.take(slice(first_row, end_row))
        is_new = (np.diff(data.epoch) != 0) & (np.diff(data.gap) != 0)
        starts = {first_row, *(first_row + 1 + np.flatnonzero(is_new)).tolist()}
        aborted_by_row: dict[int, AbortedTransaction] = {}
        for entry in self._index_entries(data):
            start_row, stop_row = (
                first_row + np.searchsorted(data.base_offset, entry[1:])
            ).tolist()
            is_lost = self.log.is_lost(entry.last_offset)
            if is_lost:
                aborted_by_row[start_row] = entry
                starts |= {start_row, stop_row}
            elif has_marker and entry.last_offset == rows.base_offset[last_row]:
                starts.add(start_row)
        bounds = [*sorted(starts - {end_row}), end_row]
        previous_marker_row = (
            first_row - 1
            if first_row and rows.producer_id[first_row - 1] == data.producer_id[0]
            else None
        )
        for start_row, stop_row in pairwise(bounds):
            ended_by, aborted_transaction = _EndedBy.MISSING, aborted_by_row.get(start_row)
            if stop_row == end_row and next_row is None:
                ended_by = _EndedBy.LOG
            elif (
                stop_row == end_row
                and aborted_transaction is None
                and self._may_end(stop_row - 1, last_row)
            ):
                ended_by = _EndedBy.MARKER
            yield _BatchRange(
                start_row,
                stop_row,
                ended_by,
                previous_marker_row,
                next_row if stop_row == end_row else stop_row,
                aborted_transaction,
            )
            previous_marker_row = None

    def _index_entries(self, data: TransactionBatches) -> Iterator[AbortedTransaction]:
        """Yield the producer's index entries whose first batch is in `data` or is lost."""
        for entry in self.indexes.entries:
            if entry.producer_id != data.producer_id[0]:
                continue
            first_index, end_index = np.searchsorted(data.base_offset, entry[1:]).tolist()
            if first_index == end_index:
                continue
            is_lost = self.log.is_lost(entry.first_offset)
            is_split = first_index == 0 or data.gap[first_index] != data.gap[first_index - 1]
            if is_split and (is_lost or entry.first_offset == data.base_offset[first_index]):
                yield entry

    def _may_end(self, last_row: int, marker_row: int) -> bool:
        """Return whether epochs and gaps allow that a marker ends the transaction of a batch."""
        rows = self.log.rows
        steps = int(rows.epoch[marker_row] - rows.epoch[last_row])
        max_steps = _EPOCH_BUMP + (rows.outcome(marker_row) is Outcome.ABORT)
        return 0 <= steps <= max_steps or rows.gap[marker_row] == rows.gap[last_row]

    def _repair(self, batches: _BatchRange) -> None:
        """Write the missing markers of batches, or drop the batches."""
        marker = self._following_marker(batches)
        if self._ends_all_batches(batches, marker):
            return
        groups = self._resolve_transactions(batches, marker)
        for number, (first_row, end_row, ending) in enumerate(groups):
            is_last = end_row == batches.end_row
            next_ending = marker if is_last else groups[number + 1][2]
            outcomes = {
                None if candidate is None else candidate.outcome
                for candidate in (ending, next_ending)
            }
            if len(outcomes) == 1 and ending is not None:
                continue
            if batches.ended_by is _EndedBy.LOG and is_last and self._stays_open(batches, ending):
                continue
            group = batches._replace(
                first_row=first_row,
                end_row=end_row,
                next_row=batches.next_row if is_last else end_row,
            )
            if (
                ending is None
                or ending.outcome is Outcome.OPEN
                or not self._write_marker(group, ending)
            ):
                self._drop_batches(group)

    def _following_marker(self, batches: _BatchRange) -> TransactionEnd | None:
        """Return the marker after the batches; None if the marker is missing."""
        if batches.ended_by is not _EndedBy.MARKER or batches.next_row is None:
            return None
        rows, row = self.log.rows, batches.next_row
        return TransactionEnd(rows.outcome(row), int(rows.epoch[row]), is_pending=False)

    def _ends_all_batches(self, batches: _BatchRange, marker: TransactionEnd | None) -> bool:
        """Return whether a marker after lost offsets ends all batches before the marker.

        The marker may belong to a later transaction. This is excluded for a commit with the next
        epoch if each transaction of the producer has its own epoch.
        """
        if marker is None or batches.next_row is None:
            return False
        rows = self.log.rows
        if not self._gaps_between(batches.first_row, batches.next_row):
            return True
        if marker.outcome is Outcome.COMMIT:
            is_next = marker.epoch == rows.epoch[batches.end_row - 1] + _EPOCH_BUMP
            return (
                bool(is_next) and self._has_epoch_per_transaction(batches)
            ) or self._is_covered_by_index(batches)
        offsets = int(rows.base_offset[batches.first_row]), int(rows.base_offset[batches.next_row])
        return AbortedTransaction(int(rows.producer_id[batches.first_row]), *offsets) in (
            self.indexes.entries
        )

    def _has_epoch_per_transaction(self, batches: _BatchRange) -> bool:
        """Return whether an earlier commit raised the epoch (transaction version 2).

        A commit after lost offsets does not count, since it may belong to a later transaction.
        """
        rows = self.log.rows
        first_row = np.searchsorted(rows.producer_id, rows.producer_id[batches.first_row])
        earlier_rows = rows.take(slice(int(first_row), batches.first_row))
        is_commit = (earlier_rows.control_type[1:] == CONTROL_COMMIT) & (
            earlier_rows.control_type[:-1] < CONTROL_ABORT
        )
        is_raised = (np.diff(earlier_rows.epoch) == _EPOCH_BUMP) & (np.diff(earlier_rows.gap) == 0)
        return bool((is_commit & is_raised).any())

    def _stays_open(self, batches: _BatchRange, ending: TransactionEnd | None) -> bool:
        """Return whether a coordinator or an operator has to end a transaction at the log end."""
        if ending is not None and ending.is_pending and self.has_coordinator:
            return True
        if ending is None:
            is_open = self._is_complete_from(batches)
        else:
            is_open = not (self.may_append or self._gaps_between(batches.end_row - 1, None))
        if is_open:
            self.open_producers.append(int(self.log.rows.producer_id[batches.first_row]))
        return is_open

    def _is_complete_from(self, batches: _BatchRange) -> bool:
        """Return whether no offset is lost from the start of a transaction to the log end."""
        is_lost = self.log.is_end_lost or self._is_before_log(batches.first_row)
        return (
            batches.ended_by is _EndedBy.LOG
            and not is_lost
            and not self._gaps_between(batches.first_row, None)
        )

    def _is_before_log(self, row: int) -> bool:
        return int(self.log.rows.base_offset[row]) < self.log.start_offset

    def _resolve_transactions(
        self, batches: _BatchRange, marker: TransactionEnd | None
    ) -> list[_TransactionRange]:
        """Return the transactions of the batches, each with its end if known."""
        key, outcomes = self._transaction_key(batches), self.outcomes()
        ending_by_epoch = outcomes.end_by_epoch(key)
        candidates = list(map(self._abort_if_open, outcomes.ends_by_time(key)))
        if marker is not None and (not candidates or candidates[-1].outcome is not marker.outcome):
            candidates = []
        ending = None if ending_by_epoch is None else self._abort_if_open(ending_by_epoch)
        if ending is None and len({candidate.outcome for candidate in candidates}) == 1:
            ending = candidates[-1]
        if batches.aborted_transaction is not None:
            is_contradiction = ending is not None and ending.outcome is Outcome.COMMIT
            abort = TransactionEnd(Outcome.ABORT, key.epoch, is_pending=False)
            return [
                _TransactionRange(
                    batches.first_row, batches.end_row, None if is_contradiction else abort
                )
            ]
        if ending is None and not candidates:
            ending = outcomes.end_by_markers(key)
        if (
            ending is None
            and batches.ended_by is _EndedBy.MISSING
            and self._is_covered_by_index(batches)
        ):
            ending = TransactionEnd(Outcome.COMMIT, key.epoch, is_pending=False)
        if ending is None and self.is_whole_cluster and self._is_complete_from(batches):
            # No coordinator can end the transaction, and an operator can only abort it.
            ending = TransactionEnd(Outcome.ABORT, key.epoch, is_pending=False)
        if ending is not None:
            return [_TransactionRange(batches.first_row, batches.end_row, ending)]
        return self._split_at_gaps(batches, marker, candidates)

    def _abort_if_open(self, ending: TransactionEnd) -> TransactionEnd:
        """Return `ending`; replace an open outcome by an abort if no coordinator exists."""
        if self.has_coordinator or ending.outcome is not Outcome.OPEN:
            return ending
        return ending._replace(outcome=Outcome.ABORT)

    def _split_at_gaps(
        self,
        batches: _BatchRange,
        marker: TransactionEnd | None,
        candidates: Sequence[TransactionEnd],
    ) -> list[_TransactionRange]:
        """Split batches at gaps; a range has an end only if all possible ends agree."""
        rows, previous_marker_row = self.log.rows, batches.previous_marker_row
        gap = rows.gap[batches.first_row : batches.end_row]
        starts = [0, *(np.flatnonzero(np.diff(gap)) + 1).tolist(), len(gap)]
        is_first_known = self.log.start_offset == 0 or previous_marker_row is not None
        is_first_known &= rows.gap[batches.first_row] == (
            0 if previous_marker_row is None else rows.gap[previous_marker_row]
        )
        is_last_known = marker is not None and gap[-1] == rows.gap[batches.next_row]
        groups = []
        for number, (start_index, end_index) in enumerate(pairwise(starts)):
            possible_endings = list(candidates)
            if number == 0 and is_first_known:
                possible_endings = possible_endings[:1]
            if end_index == len(gap) and is_last_known and marker is not None:
                possible_endings = [marker]
            is_clear = len({candidate.outcome for candidate in possible_endings}) == 1
            ending = possible_endings[-1] if is_clear else None
            groups.append(
                _TransactionRange(
                    batches.first_row + start_index, batches.first_row + end_index, ending
                )
            )
        return groups

    def _transaction_key(self, batches: _BatchRange) -> TransactionKey:
        rows, previous_marker_row, next_row = (
            self.log.rows,
            batches.previous_marker_row,
            batches.next_row,
        )
        is_marker = next_row is not None and rows.control_type[next_row] >= CONTROL_ABORT
        return TransactionKey(
            self.partition,
            int(rows.producer_id[batches.first_row]),
            int(rows.epoch[batches.end_row - 1]),
            -1 if previous_marker_row is None else int(rows.time_ms[previous_marker_row]),
            int(rows.time_ms[next_row]) if is_marker else INT64_MAX,
        )

    def _gaps_between(self, row: int, next_row: int | None) -> range:
        """Return the indexes of the gaps from a row to another row, or to the log end."""
        gap = self.log.rows.gap
        return range(int(gap[row]), self._end_gap if next_row is None else int(gap[next_row]))

    def _is_covered_by_index(self, batches: _BatchRange) -> bool:
        """Return whether a transaction index contains all abort markers of the gaps."""
        gaps = self._gaps_between(batches.first_row, batches.next_row)
        return all(self.indexes.covers(self.log.gaps[number]) for number in gaps)

    def _write_marker(
        self, batches: _BatchRange, ending: TransactionEnd, *, is_known: bool = True
    ) -> bool:
        """Write a marker after batches; return False if no offset is free."""
        offset_and_gap = self._marker_offset(batches)
        if offset_and_gap is None:
            return False
        offset, gap = offset_and_gap
        rows, previous_marker_row = self.log.rows, batches.previous_marker_row
        producer_id = int(rows.producer_id[batches.first_row])
        self._used_offsets.add(offset)
        self._markers[offset] = write_end_transaction_marker(
            offset,
            gap.timestamp_ms,
            producer_id,
            ending.epoch,
            is_commit=ending.outcome is Outcome.COMMIT,
            coordinator_epoch=0
            if previous_marker_row is None
            else int(rows.coordinator_epoch[previous_marker_row]),
            leader_epoch=gap.leader_epoch,
        )
        start_offset = rows.base_offset[batches.first_row]
        self._notes.append(
            f"offset {offset}: wrote the missing transaction marker of producer {producer_id}, "
            f"whose transaction from offset {start_offset} was {ending.outcome}"
            if is_known
            else f"offset {offset}: aborted the transaction of producer {producer_id}, which began "
            f"before the log at offset {start_offset} and has an unknown outcome"
        )
        return True

    def _marker_offset(self, batches: _BatchRange) -> tuple[int, Gap] | None:
        """Return a free offset for a marker after batches, and the gap of the offset."""
        numbers = self._gaps_between(batches.end_row - 1, batches.next_row)
        gaps = [self.log.gaps[number] for number in numbers]
        if batches.aborted_transaction is not None:
            offset = batches.aborted_transaction.last_offset
            for gap in gaps:
                if gap.first_offset <= offset <= gap.last_offset:
                    return offset, gap
        for gap in reversed(gaps):
            for offset in range(gap.last_offset, gap.first_offset - 1, -1):
                if offset not in self._used_offsets:
                    return offset, gap
        if batches.next_row is not None or not self.may_append:
            return None
        self._next_offset += 1
        return self._next_offset - 1, self.log.gaps[self._end_gap]

    def _drop_batches(self, group: _BatchRange) -> None:
        """Drop batches; if their transaction began before the log, abort the transaction."""
        rows, first_row, end_row = self.log.rows, group.first_row, group.end_row
        if self._is_before_log(first_row):
            abort = TransactionEnd(Outcome.ABORT, int(rows.epoch[end_row - 1]), is_pending=False)
            if not self._write_marker(group, abort, is_known=False) and group.next_row is None:
                self.open_producers.append(int(rows.producer_id[first_row]))
            first_row += 1
        if first_row == end_row:
            return
        rows = rows.take(slice(first_row, end_row))
        self._dropped.update(rows.base_offset.tolist())
        first_offset, last_offset = int(rows.base_offset[0]), int(rows.last_offset[-1])
        records = int((rows.last_offset - rows.base_offset + 1).sum())
        self._lost.append(
            LostRange(
                first_offset,
                "",
                first_offset,
                last_offset,
                UNKNOWN_OUTCOME,
                f"the records of producer {rows.producer_id[0]} are dropped, because the "
                "transaction marker is missing and the outcome of the transaction is unknown",
                records=None if self.is_compacted else records,
            )
        )


@dataclass(frozen=True, slots=True)
class TransactionRepairs:
    """Plans of partitions with transaction edits, and producers of open transactions.

    Possibly no coordinator ends the open transactions.
    """

    plans: list[PartitionPlan] = field(default_factory=list)
    open_producers: dict[TopicPartition, list[int]] = field(default_factory=dict)


def find_missing_markers(
    plan: RestorePlan,
    partitions: Iterable[RestoredPartition],
    output: str,
    single_replicas: Container[TopicPartition] | None,
) -> TransactionRepairs:
    """Find missing markers in the restored partitions that have losses or open transactions.

    `single_replicas` are partitions with one replica; None if all partitions have one replica.
    """
    repairs = TransactionRepairs()
    plans = {partition_plan.partition: partition_plan for partition_plan in plan.partitions}
    output_logs = _OutputLogs(
        output, [restored for restored in partitions if not restored.is_skipped]
    )
    has_states = bool(output_logs.states)
    outcomes = cache(partial(_read_outcomes, plan, output_logs))
    for restored in output_logs.partitions:
        if restored.is_edited or not (restored.lost or restored.open_producers):
            continue
        partition_plan = plans[restored.partition]
        search = PartitionMarkers(
            partition_plan.base.partition,
            output_logs.transactions(restored),
            AbortedIndexes.read(
                replica.directory
                for replica in (partition_plan.base, *partition_plan.other_replicas)
                if not store_of(replica.directory).needs_requests
            ),
            outcomes,
            has_coordinator=has_states
            and partition_plan.base.partition == partition_plan.partition,
            is_whole_cluster=bool(plan.request.seeds),
            may_append=not restored.is_limited
            and (single_replicas is None or partition_plan.partition in single_replicas),
            is_compacted=partition_plan.known_offsets.cleaning.is_compacted is not False,
        )
        edits = search.edits()
        if edits:
            repairs.plans.append(replace(partition_plan, edits=edits))
        if search.open_producers and not restored.is_limited:
            repairs.open_producers[restored.partition] = search.open_producers
    return repairs


@dataclass(frozen=True, slots=True)
class _OutputLogs:
    """The logs of the restored partitions in an output."""

    output: str
    partitions: Sequence[RestoredPartition]

    @property
    def states(self) -> list[RestoredPartition]:
        """The restored partitions of ``__transaction_state``."""
        topic = TRANSACTION_STATE_TOPIC
        return [restored for restored in self.partitions if restored.partition.topic == topic]

    def directory(self, restored: RestoredPartition) -> str:
        return os.path.join(self.output, restored.partition.directory_name)

    def segments(self, restored: RestoredPartition) -> list[SegmentFile]:
        segments, _ = list_partition(restored.partition, scan_directory(self.directory(restored)))
        return sorted(segments, key=lambda segment: segment.base_offset)

    def transactions(self, restored: RestoredPartition) -> PartitionTransactions:
        # Ignore batches that were dropped for an unknown outcome: no marker was lost with the
        # batches.
        lost = [lost_range for lost_range in restored.lost if lost_range.code != UNKNOWN_OUTCOME]
        directory = self.directory(restored)
        end_snapshots = [
            offset for offset in list_snapshots(directory) if offset == restored.log_end_offset
        ]
        _, producers, _ = load_latest_snapshot(directory, end_snapshots)
        return PartitionTransactions.read(self.segments(restored), lost, producers)

    def marker_outcomes(self) -> Mapping[tuple[int, int], set[Outcome]]:
        """Return the outcomes in markers with the next epoch, by producer ID and batch epoch."""
        outcomes_by_epoch: dict[tuple[int, int], set[Outcome]] = defaultdict(set)
        for restored in self.partitions:
            transactions = self.transactions(restored)
            rows = transactions.rows
            for first_row, last_row, has_marker in transactions.transactions():
                is_complete = (
                    has_marker
                    and rows.gap[last_row - 1] == rows.gap[last_row]
                    and first_row < last_row
                )
                if is_complete and rows.epoch[last_row] == rows.epoch[last_row - 1] + 1:
                    key = int(rows.producer_id[last_row]), int(rows.epoch[last_row - 1])
                    outcomes_by_epoch[key].add(rows.outcome(last_row))
        return outcomes_by_epoch


def _read_outcomes(plan: RestorePlan, output_logs: _OutputLogs) -> TransactionOutcomes:
    """Read ``__transaction_state`` from the output, or from the dump if --topics excludes it."""
    request = plan.request
    logs = [output_logs.segments(restored) for restored in output_logs.states]
    if not logs and request.topics is not None:
        states = re.compile(TRANSACTION_STATE_TOPIC)
        try:
            dump = read_dumps(request.inputs, request.tiered, topics=states)
        except InputError as error:
            if is_retriable(error):
                raise
        else:
            logs = [replicas[0].segments.files() for replicas in dump.replicas.values()]
    budget = shared_budget(request.max_decompressed_bytes)
    return TransactionOutcomes.read(logs, budget, cache(output_logs.marker_outcomes))
