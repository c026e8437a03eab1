"""The transactional batches of a restored partition, with the lost offsets between them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.commands.restore.restored_partition import LostRange
from kafka_index.core.cluster.metadata.decoding import TopicLog
from kafka_index.core.cluster.metadata.topic_states import Transaction, transaction_change
from kafka_index.core.errors import CorruptRecordError, KafkaIndexError, raise_retriable
from kafka_index.core.format.integers import INT64_MAX, Longs
from kafka_index.core.format.names import TXN_INDEX_SUFFIX, TopicPartition, parse_segment_file
from kafka_index.core.format.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    TRANSACTIONAL_MASK,
)
from kafka_index.core.fs.directories import scan_directory
from kafka_index.core.index.transaction_index import TransactionIndex
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.partition_files import SegmentFile, list_partition
from kafka_index.core.records.batch_table import BatchColumns
from kafka_index.core.records.decompression import DecompressionBudget

# The first version whose producers get a new epoch with each transaction.
_EPOCH_BUMP = 2
_ALWAYS = -1


class Outcome(StrEnum):
    """The outcome of a transaction; an open one is ended by its coordinator."""

    COMMIT = "committed"
    ABORT = "aborted"
    OPEN = "open"


_OUTCOMES = {
    "Ongoing": Outcome.OPEN,
    "PrepareCommit": Outcome.COMMIT,
    "PrepareAbort": Outcome.ABORT,
    "CompleteCommit": Outcome.COMMIT,
    "CompleteAbort": Outcome.ABORT,
}


class Ending(NamedTuple):
    """The end of a transaction: its outcome, and the producer epoch of its markers.

    `is_pending`: not all markers are known to be written, so that the coordinator writes them.
    """

    outcome: Outcome
    epoch: int
    is_pending: bool


class TransactionKey(NamedTuple):
    """The records of a transaction in a partition.

    It was decided after `after_ms`, the time of the marker before it in the partition, and at
    `until_ms` at the latest.
    """

    partition: TopicPartition
    producer_id: int
    epoch: int
    after_ms: int = _ALWAYS
    until_ms: int = INT64_MAX


@dataclass(slots=True, eq=False)
class _Decision:
    """A transaction in ``__transaction_state``, decided at a time.

    The partitions are None if only the record of its completion is left.
    """

    ending: Ending
    has_own_epoch: bool
    partitions: frozenset[TopicPartition] | None
    time_ms: int

    def may_list(self, partition: TopicPartition) -> bool:
        """Return whether the transaction may have records in a partition."""
        return self.partitions is None or partition in self.partitions


@dataclass(slots=True)
class TransactionOutcomes:
    """The decisions of coordinators by producer id, and markers found in partitions.

    All decisions since `complete_since_ms` are known. `markers` returns the outcomes by producer id
    and epoch of the records, of markers with a higher epoch; it is called if nothing else decides.
    """

    markers: Callable[[], Mapping[tuple[int, int], set[Outcome]]]
    decisions: dict[int, list[_Decision]] = field(default_factory=lambda: defaultdict(list))
    complete_since_ms: dict[int, int] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        logs: Iterable[Sequence[SegmentFile]],
        budget: DecompressionBudget,
        markers: Callable[[], Mapping[tuple[int, int], set[Outcome]]],
    ) -> TransactionOutcomes:
        """Read the logs of ``__transaction_state``; what cannot be read of them is passed over."""
        found = cls(markers)
        for segments in logs:
            found._read(segments, budget)
        return found

    def by_epoch(self, key: TransactionKey) -> Ending | None:
        """Return the end of a transaction that has an epoch of its own; None if it is unknown."""
        listed = [
            each for each in self.decisions.get(key.producer_id, ()) if each.may_list(key.partition)
        ]
        if any(each.ending.epoch == key.epoch and not each.has_own_epoch for each in listed):
            # The servers were upgraded while this was the epoch.
            return None
        own = [
            each.ending
            for each in listed
            if each.has_own_epoch
            and each.ending.epoch == key.epoch + (each.ending.outcome is not Outcome.OPEN)
        ]
        return own[-1] if len({each.outcome for each in own}) == 1 else None

    def by_markers(self, key: TransactionKey) -> Ending | None:
        """Return the end of a transaction by its markers in other partitions; None if unknown."""
        outcomes = self.markers().get((key.producer_id, key.epoch), set())
        if len(outcomes) != 1:
            return None
        return Ending(next(iter(outcomes)), key.epoch + 1, is_pending=False)

    def by_time(self, key: TransactionKey) -> list[Ending]:
        """Return the ends of all transactions that a key may mean; none if some may be unknown."""
        if self.complete_since_ms.get(key.producer_id, INT64_MAX) > key.after_ms:
            return []
        return [
            each.ending
            for each in self.decisions.get(key.producer_id, ())
            if each.partitions is not None
            and key.partition in each.partitions
            and (each.ending.outcome is Outcome.OPEN or key.after_ms < each.time_ms <= key.until_ms)
            and (each.ending.epoch == key.epoch or _is_fence(each.ending, key.epoch))
        ]

    def _read(self, segments: Sequence[SegmentFile], budget: DecompressionBudget) -> None:
        log = TopicLog(segments, budget)
        latest: dict[str, tuple[int, _Decision]] = {}
        producers: set[int] = set()
        next_offset, complete_since_ms = 0, _ALWAYS
        for record in log.records():
            if record.offset != next_offset:
                complete_since_ms = record.timestamp_ms
            next_offset = record.offset + 1
            try:
                change = transaction_change(record)
            except CorruptRecordError:
                complete_since_ms = INT64_MAX
                continue
            if change is not None and change[1] is not None:
                producers.add(change[1].producer_id)
                self._add(latest, change[1])
        raise_retriable(log.faults)
        if log.faults:
            complete_since_ms = INT64_MAX
        self.complete_since_ms |= dict.fromkeys(producers, complete_since_ms)

    def _add(self, latest: dict[str, tuple[int, _Decision]], one: Transaction) -> None:
        """Add the state of a transactional id after all earlier ones."""
        producer_id, before = latest.pop(one.transactional_id, (one.producer_id, None))
        outcome, is_complete = _OUTCOMES.get(one.state), one.state.startswith("Complete")
        if before is not None:
            before.ending = before.ending._replace(is_pending=False)
            if before.ending.outcome is Outcome.OPEN:
                # The next state has the same transaction, or begins after its end.
                self.decisions[producer_id].remove(before)
        is_known = is_complete and before is not None and before.ending.outcome is outcome
        if outcome is None or is_known:
            return
        decision = _Decision(
            Ending(outcome, one.producer_epoch, is_pending=not is_complete),
            one.client_version >= _EPOCH_BUMP,
            None if is_complete else frozenset(TopicPartition(*each) for each in one.partitions),
            one.last_update_timestamp_ms,
        )
        latest[one.transactional_id] = one.producer_id, decision
        self.decisions[one.producer_id].append(decision)


def _is_fence(ending: Ending, epoch: int) -> bool:
    """Return whether a timeout or a new producer may have aborted a transaction of an epoch."""
    return ending.outcome is Outcome.ABORT and epoch < ending.epoch <= epoch + _EPOCH_BUMP


def list_segments(partition: TopicPartition, directory: str) -> list[SegmentFile]:
    """Return the segments of a restored partition by base offset."""
    segments, _ = list_partition(partition, scan_directory(directory))
    return sorted(segments, key=lambda segment: segment.base_offset)


class Rows(NamedTuple):
    """Transactional batches and markers of one producer: arrays of one length.

    `gap` is the number of lost gaps before a batch, and `time_ms` the time of a marker.
    """

    base_offset: Longs
    last_offset: Longs
    producer_id: Longs
    epoch: Longs
    control_type: Longs
    time_ms: Longs
    coordinator_epoch: Longs
    gap: Longs

    def take(self, rows: NDArray[np.intp] | slice) -> Rows:
        """Select batches by row."""
        return Rows(*(column[rows] for column in self))

    def outcome(self, row: int) -> Outcome:
        """Return the outcome in a transaction marker."""
        is_commit = self.control_type[row] == CONTROL_COMMIT
        return Outcome.COMMIT if is_commit else Outcome.ABORT


class Gap(NamedTuple):
    """Lost offsets between two batches; epoch and timestamp are those of the batch before them."""

    first_offset: int
    last_offset: int
    leader_epoch: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PartitionTransactions:
    """The transactional batches and markers of a partition, by producer id and offset.

    The last gap begins at the log end, whether or not anything is lost there. A row before the
    start offset stands for all batches there of a transaction that the log does not end.
    """

    rows: Rows
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
        """Read the headers of the logs of a partition; `lost` has what they lack.

        `producers` is the snapshot at the log end.
        """
        starts, ends = _merged(lost, [each.base_offset for each in segments])
        gaps: list[Gap] = []
        start = segments[0].base_offset
        parts = [] if producers is None else [_rows_before(start, producers)]
        end, epoch, time_ms = start, NO_LEADER_EPOCH, NO_TIMESTAMP
        for segment in segments:
            source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
            for batches in source.chunks():
                if not batches.rows:
                    continue
                after = np.concatenate(([end], batches.last_offset[:-1] + 1))
                place = np.searchsorted(starts, batches.base_offset) - 1
                is_gap = (batches.base_offset > after) & (place >= 0)
                is_gap[is_gap] = ends[place[is_gap]] >= after[is_gap]
                parts.append(_rows(batches, len(gaps) + np.cumsum(is_gap)))
                for row in np.flatnonzero(is_gap).tolist():
                    if row:
                        epoch = int(batches.leader_epoch[row - 1])
                        time_ms = int(batches.max_timestamp_ms[row - 1])
                    first, last = int(after[row]), int(batches.base_offset[row]) - 1
                    gaps.append(Gap(first, last, epoch, time_ms))
                end = int(batches.last_offset[-1]) + 1
                epoch = int(batches.leader_epoch[-1])
                time_ms = int(batches.max_timestamp_ms[-1])
        log_end = max(end, segments[-1].base_offset)
        if ((starts < log_end) & (ends >= end)).any():
            gaps.append(Gap(end, log_end - 1, epoch, time_ms))
        end = log_end
        gaps.append(Gap(end, INT64_MAX, epoch, time_ms))
        nothing = Rows(*(np.empty(0, np.int64) for _ in Rows._fields))
        rows = Rows(*map(np.concatenate, zip(nothing, *parts, strict=True)))
        order = np.lexsort((rows.base_offset, rows.producer_id))
        is_end_lost = bool(len(ends)) and int(ends[-1]) >= end
        return cls(rows.take(order), gaps, is_end_lost, start)

    @property
    def end_offset(self) -> int:
        """The log end offset."""
        return self.gaps[-1].first_offset

    def is_lost(self, offset: int) -> bool:
        """Return whether an offset is in a gap, or not in the log."""
        return offset < self.start_offset or any(
            each.first_offset <= offset <= each.last_offset for each in self.gaps
        )

    def transactions(self) -> Iterator[tuple[int, int, bool]]:
        """Yield first and last row of each transaction with data, and whether a marker is its last.

        A lost marker leaves two transactions in one.
        """
        is_marker = self.rows.control_type >= CONTROL_ABORT
        if not len(is_marker):
            return
        begins = np.ones(len(is_marker), np.bool_)
        begins[1:] = is_marker[:-1] | (np.diff(self.rows.producer_id) != 0)
        firsts = np.flatnonzero(begins)
        lasts = np.append(firsts[1:], len(is_marker)) - 1
        has_data = ~is_marker[firsts]
        for first, last in zip(firsts[has_data].tolist(), lasts[has_data].tolist(), strict=True):
            yield first, last, bool(is_marker[last])


def _rows_before(start_offset: int, producers: NDArray[np.void]) -> Rows:
    """Return a row for each open transaction that begins before the log."""
    first = producers["current_txn_first_offset"]
    own = producers[(first >= 0) & (first < start_offset)]
    offset, nothing = own["current_txn_first_offset"], np.zeros(len(own), np.int64)
    producer_id, epoch = own["producer_id"], own["producer_epoch"]
    is_data = nothing - 1
    return Rows(offset, offset, producer_id, epoch, is_data, nothing, nothing, nothing)


def _rows(batches: BatchColumns, gap: Longs) -> Rows:
    """Return a copy of the batches of transactions."""
    is_own = batches.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK) != 0
    is_own &= (batches.producer_id >= 0) & (batches.control_type <= CONTROL_COMMIT)
    is_own &= ~batches.is_control | (batches.control_type >= CONTROL_ABORT)
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
    return Rows(*(column[is_own] for column in columns))


def _merged(lost: Sequence[LostRange], base_offsets: Sequence[int]) -> tuple[Longs, Longs]:
    """Return first and last offsets of lost ranges, joined; unknown ends are those of segments."""
    spans = []
    for each in lost:
        following = [base for base in base_offsets if base > each.segment_base_offset]
        last = following[0] - 1 if following else INT64_MAX - 1
        first = each.segment_base_offset if each.first_offset is None else each.first_offset
        spans.append((first, last if each.last_offset is None else each.last_offset))
    spans = sorted(span for span in spans if span[0] <= span[1])
    joined: list[list[int]] = []
    for first, last in spans:
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    columns = np.array(joined, np.int64).reshape(-1, 2)
    return columns[:, 0].copy(), columns[:, 1].copy()


class AbortedTransaction(NamedTuple):
    """An entry of a transaction index; the last offset is that of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class AbortedIndexes:
    """The transaction indexes of the copies of a partition.

    `reaches` has the base offset of each index, and the last marker in it: its segment has no other
    aborted transaction whose marker is before that one.
    """

    entries: tuple[AbortedTransaction, ...]
    reaches: tuple[tuple[int, int], ...]

    @classmethod
    def read(cls, directories: Iterable[str]) -> AbortedIndexes:
        """Read the indexes of directories, without indexes that a broker would rebuild."""
        entries: set[AbortedTransaction] = set()
        reaches = []
        for directory in directories:
            for entry in scan_directory(directory):
                parsed = parse_segment_file(entry.name)
                if parsed is None or parsed.kind != TXN_INDEX_SUFFIX or parsed.transient:
                    continue
                found = _entries(os.path.join(directory, entry.name), parsed.base_offset)
                entries.update(found)
                if found:
                    reaches.append((parsed.base_offset, found[-1].last_offset))
        return cls(tuple(sorted(entries)), tuple(reaches))

    def cover(self, gap: Gap) -> bool:
        """Return whether the indexes have every aborted transaction whose marker is in a gap."""
        return any(
            base <= gap.first_offset and gap.last_offset < last for base, last in self.reaches
        )


def _entries(path: str, base_offset: int) -> list[AbortedTransaction]:
    try:
        with TransactionIndex(path, base_offset, writable=False) as index:
            index.sanity_check()
            columns = index.entries[list(AbortedTransaction._fields)].tolist()
    except KafkaIndexError as error:
        raise_retriable([error])
        return []
    found = [AbortedTransaction(*row) for row in columns]
    lasts = [each.last_offset for each in found]
    is_right = lasts == sorted(set(lasts)) and all(
        each.first_offset <= each.last_offset for each in found
    )
    return found if is_right else []
