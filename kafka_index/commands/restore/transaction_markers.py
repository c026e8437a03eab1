"""Missing transaction markers of restored partitions: written again, or their records dropped.

Without its marker a transaction would stay open, or end with the marker of the producer's next
transaction. The batches around lost offsets show both. The outcome is taken from the ``.txnindex``
files of the dump, from ``__transaction_state``, or from a marker with a raised epoch in another
partition. Only partitions with losses or open transactions are read, by `find_missing_markers`.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from functools import cache, partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.commands.restore.plan import PartitionPlan, RestorePlan
from kafka_index.commands.restore.result import LostRange, RestoredPartition
from kafka_index.core.cluster.metadata.decoding import TopicLog
from kafka_index.core.cluster.metadata.topic_states import Transaction, transaction_change
from kafka_index.core.cluster.replicas import read_dumps
from kafka_index.core.errors import (
    CorruptRecordError,
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
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.records.record_batch import write_end_transaction_marker

# The first version whose producers get a new epoch with each transaction.
_BUMPING_CLIENT_VERSION = 2
# A timeout raises the epoch, and a new producer raises it again.
_MAX_FENCING_STEPS = 2
_ALWAYS = -1


class Outcome(StrEnum):
    """The outcome of a transaction; its coordinator ends an open transaction."""

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


class TransactionEnd(NamedTuple):
    """The end of a transaction: its outcome, and the producer epoch of its markers.

    `is_pending`: perhaps not all markers are written, and the coordinator writes them.
    """

    outcome: Outcome
    epoch: int
    is_pending: bool


class TransactionKey(NamedTuple):
    """The records of a transaction in a partition.

    The outcome was decided after `after_ms`, the time of the previous marker in the partition, and
    at `until_ms` at the latest.
    """

    partition: TopicPartition
    producer_id: int
    epoch: int
    after_ms: int = _ALWAYS
    until_ms: int = INT64_MAX


@dataclass(slots=True, eq=False)
class _Decision:
    """A transaction in ``__transaction_state``, decided at a time.

    The partitions are None if only the record of its completion remains.
    """

    ending: TransactionEnd
    has_own_epoch: bool
    partitions: frozenset[TopicPartition] | None
    time_ms: int

    def may_list(self, partition: TopicPartition) -> bool:
        return self.partitions is None or partition in self.partitions


@dataclass(slots=True)
class TransactionOutcomes:
    """The decisions of coordinators by producer ID, and the markers in all partitions.

    All decisions since `complete_since_ms` are known. `markers` returns the outcomes by producer id
    and epoch of the records, from markers with a higher epoch. It is called as the last resort.
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
        """Read the logs of ``__transaction_state``; skip unreadable parts."""
        found = cls(markers)
        for segments in logs:
            found._read(segments, budget)
        return found

    def end_by_epoch(self, key: TransactionKey) -> TransactionEnd | None:
        """Return the end of a transaction with an epoch of its own; None if unknown."""
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

    def end_by_markers(self, key: TransactionKey) -> TransactionEnd | None:
        """Return the end of a transaction by its markers in other partitions; None if unknown."""
        outcomes = self.markers().get((key.producer_id, key.epoch), set())
        if len(outcomes) != 1:
            return None
        return TransactionEnd(next(iter(outcomes)), key.epoch + 1, is_pending=False)

    def ends_by_time(self, key: TransactionKey) -> list[TransactionEnd]:
        """Return the ends of all transactions that match a key; none if another may be unknown."""
        if self.complete_since_ms.get(key.producer_id, INT64_MAX) > key.after_ms:
            return []
        return [
            each.ending
            for each in self.decisions.get(key.producer_id, ())
            if each.partitions is not None
            and key.partition in each.partitions
            and (each.ending.outcome is Outcome.OPEN or key.after_ms < each.time_ms <= key.until_ms)
            and (each.ending.epoch == key.epoch or _is_fencing(each.ending, key.epoch))
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
        """Add the next state of a transactional ID."""
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
            TransactionEnd(outcome, one.producer_epoch, is_pending=not is_complete),
            one.client_version >= _BUMPING_CLIENT_VERSION,
            None if is_complete else frozenset(TopicPartition(*each) for each in one.partitions),
            one.last_update_timestamp_ms,
        )
        latest[one.transactional_id] = one.producer_id, decision
        self.decisions[one.producer_id].append(decision)


def _is_fencing(ending: TransactionEnd, epoch: int) -> bool:
    """Return whether a timeout or a new producer may have aborted the transaction."""
    return ending.outcome is Outcome.ABORT and epoch < ending.epoch <= epoch + _MAX_FENCING_STEPS


class TransactionBatches(NamedTuple):
    """Transactional batches and markers, as arrays of one length.

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

    def take(self, rows: NDArray[np.intp] | slice) -> TransactionBatches:
        return TransactionBatches(*(column[rows] for column in self))

    def outcome(self, row: int) -> Outcome:
        is_commit = self.control_type[row] == CONTROL_COMMIT
        return Outcome.COMMIT if is_commit else Outcome.ABORT


class Gap(NamedTuple):
    """Lost offsets between two batches, with epoch and timestamp of the batch before them."""

    first_offset: int
    last_offset: int
    leader_epoch: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PartitionTransactions:
    """The transactional batches and markers of a partition, sorted by producer ID and offset.

    The last gap begins at the log end, even if nothing is lost there. A row before the start offset
    stands for all earlier batches of a transaction that is open there.
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
        """Read the headers of logs; `lost` are missing ranges, `producers` the last snapshot."""
        starts, ends = _merge_lost_ranges(lost, [each.base_offset for each in segments])
        gaps: list[Gap] = []
        start = segments[0].base_offset
        parts = [] if producers is None else [_open_batches_before_log(start, producers)]
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
                parts.append(_transaction_batches(batches, len(gaps) + np.cumsum(is_gap)))
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
        nothing = TransactionBatches(*(np.empty(0, np.int64) for _ in TransactionBatches._fields))
        rows = TransactionBatches(*map(np.concatenate, zip(nothing, *parts, strict=True)))
        order = np.lexsort((rows.base_offset, rows.producer_id))
        is_end_lost = bool(len(ends)) and int(ends[-1]) >= end
        return cls(rows.take(order), gaps, is_end_lost, start)

    @property
    def end_offset(self) -> int:
        return self.gaps[-1].first_offset

    def is_lost(self, offset: int) -> bool:
        """Return whether an offset is in a gap or before the log."""
        return offset < self.start_offset or any(
            each.first_offset <= offset <= each.last_offset for each in self.gaps
        )

    def transactions(self) -> Iterator[tuple[int, int, bool]]:
        """Yield the first and last row of each transaction, and whether the last is its marker.

        If a marker is missing, two transactions appear as one.
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


def _open_batches_before_log(start_offset: int, producers: NDArray[np.void]) -> TransactionBatches:
    """Return a row for each open transaction of a snapshot that begins before the log."""
    first = producers["current_txn_first_offset"]
    own = producers[(first >= 0) & (first < start_offset)]
    offset, nothing = own["current_txn_first_offset"], np.zeros(len(own), np.int64)
    producer_id, epoch = own["producer_id"], own["producer_epoch"]
    is_data = nothing - 1
    return TransactionBatches(
        offset, offset, producer_id, epoch, is_data, nothing, nothing, nothing
    )


def _transaction_batches(batches: BatchColumns, gap: Longs) -> TransactionBatches:
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
    return TransactionBatches(*(column[is_own] for column in columns))


def _merge_lost_ranges(
    lost: Sequence[LostRange], base_offsets: Sequence[int]
) -> tuple[Longs, Longs]:
    """Return the merged ranges, first and last offsets; an unknown end is the segment's end."""
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
    """An entry of a transaction index; the last offset is the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class AbortedIndexes:
    """The transaction indexes of the copies of a partition.

    `reaches` has the base offset of each index and its last marker. The index has all aborted
    transactions of its segment up to that marker.
    """

    entries: tuple[AbortedTransaction, ...]
    reaches: tuple[tuple[int, int], ...]

    @classmethod
    def read(cls, directories: Iterable[str]) -> AbortedIndexes:
        """Read the indexes in directories; skip indexes that a broker would rebuild."""
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

    def covers(self, gap: Gap) -> bool:
        """Return whether an index has every abort marker that a gap may have contained."""
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


#: The code of records that are dropped because the outcome of their transaction is unknown.
UNKNOWN_OUTCOME: Final = "unknown_transaction_outcome"
_EPOCH_BUMP = 1


class _EndedBy(Enum):
    """The end of the batches of a transaction: a marker, a missing marker, or the log end."""

    MARKER = auto()
    MISSING = auto()
    LOG = auto()


class _BatchRange(NamedTuple):
    """Consecutive batches of one producer, by their rows, and the end of their transaction.

    `before` is the row of the producer's previous marker, and `following` the row of its next batch
    or marker, None if there is none. `aborted` is their entry in a transaction index.
    """

    first: int
    end: int
    ended_by: _EndedBy
    before: int | None
    following: int | None
    aborted: AbortedTransaction | None


class _TransactionRange(NamedTuple):
    """Consecutive batches of one transaction, by their rows, and its end, None if unknown."""

    first: int
    end: int
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
        """Return whether there is an edit."""
        return bool(self.markers or self.dropped)

    def in_segment(self, first_offset: int, end_offset: int) -> TransactionEdits:
        """Return the edits of a segment; its end offset is exclusive."""
        span = range(first_offset, end_offset)
        return TransactionEdits(
            {offset: data for offset, data in self.markers.items() if offset in span},
            frozenset(offset for offset in self.dropped if offset in span),
        )

    def rewrite(self, segment: SegmentFile, path: str) -> SegmentFile:
        """Write the edited log of a segment to another path."""
        waiting = sorted(self.markers.items(), reverse=True)
        try:
            with open(path, "xb") as file, MappedFile(segment.log_path) as log:
                source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
                start = end = 0
                for batches in source.chunks():
                    offsets = batches.base_offset.tolist()
                    places = batches.position_bytes.tolist()
                    sizes = batches.size_bytes.tolist()
                    for offset, position, size in zip(offsets, places, sizes, strict=True):
                        end = position + size
                        is_dropped = offset in self.dropped
                        is_after_marker = bool(waiting) and waiting[-1][0] < offset
                        if not (is_dropped or is_after_marker):
                            continue
                        file.write(log.array[start:position].data)
                        while waiting and waiting[-1][0] < offset:
                            file.write(waiting.pop()[1])
                        start = end if is_dropped else position
                file.write(log.array[start:end].data)
                while waiting:
                    file.write(waiting.pop()[1])
                file.flush()
                written = os.fstat(file.fileno())
        except OSError as error:
            raise publish_error(error, path, "write the log") from error
        return segment.copied_to(path, written)


@dataclass
class PartitionMarkers:
    """The transactions of a partition, of which some markers are missing.

    `has_coordinator`: a coordinator of the output ends open transactions. `is_whole_cluster`: there
    is no other coordinator. `may_append`: no other replica has batches after the end.
    `is_compacted`: not every offset has a record. `open_producers` have transactions that stay
    open, and that possibly no coordinator ends.
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
        self._used_offsets = {each.last_offset for each in self.indexes.entries}
        self._end_gap = len(self.log.gaps) - 1
        self._next_offset = self.log.end_offset

    def edits(self) -> TransactionEdits:
        """Return the markers that end transactions; drop transactions of an unknown outcome."""
        gap = self.log.rows.gap
        for first, last, has_marker in self.log.transactions():
            if has_marker and gap[first] == gap[last]:
                continue
            for batches in self._batch_ranges(first, last, has_marker=has_marker):
                self._repair(batches)
        return TransactionEdits(
            self._markers, frozenset(self._dropped), tuple(self._lost), tuple(self._notes)
        )

    def _batch_ranges(self, first: int, last: int, *, has_marker: bool) -> Iterator[_BatchRange]:
        """Split the batches before a marker or the log end, where a marker is certainly missing."""
        rows = self.log.rows
        end = last + 1 - has_marker
        following = last if has_marker else None
        data = rows.take(slice(first, end))
        is_new = (np.diff(data.epoch) != 0) & (np.diff(data.gap) != 0)
        starts = {first, *(first + 1 + np.flatnonzero(is_new)).tolist()}
        aborted: dict[int, AbortedTransaction] = {}
        for entry in self._entries(data):
            begin, stop = (first + np.searchsorted(data.base_offset, entry[1:])).tolist()
            is_lost = self.log.is_lost(entry.last_offset)
            if is_lost:
                aborted[begin] = entry
                starts |= {begin, stop}
            elif has_marker and entry.last_offset == rows.base_offset[last]:
                starts.add(begin)
        bounds = [*sorted(starts - {end}), end]
        before = first - 1 if first and rows.producer_id[first - 1] == data.producer_id[0] else None
        for begin, stop in pairwise(bounds):
            ended_by, in_index = _EndedBy.MISSING, aborted.get(begin)
            if stop == end and following is None:
                ended_by = _EndedBy.LOG
            elif stop == end and in_index is None and self._may_end(stop - 1, last):
                ended_by = _EndedBy.MARKER
            yield _BatchRange(
                begin, stop, ended_by, before, following if stop == end else stop, in_index
            )
            before = None

    def _entries(self, data: TransactionBatches) -> Iterator[AbortedTransaction]:
        """Yield the index entries that begin with one of the batches or with a lost batch."""
        for entry in self.indexes.entries:
            if entry.producer_id != data.producer_id[0]:
                continue
            begin, stop = np.searchsorted(data.base_offset, entry[1:]).tolist()
            if begin == stop:
                continue
            is_lost = self.log.is_lost(entry.first_offset)
            is_split = begin == 0 or data.gap[begin] != data.gap[begin - 1]
            if is_split and (is_lost or entry.first_offset == data.base_offset[begin]):
                yield entry

    def _may_end(self, last: int, marker: int) -> bool:
        """Return whether a marker may end the transaction of a batch."""
        rows = self.log.rows
        steps = int(rows.epoch[marker] - rows.epoch[last])
        most = _EPOCH_BUMP + (rows.outcome(marker) is Outcome.ABORT)
        return 0 <= steps <= most or rows.gap[marker] == rows.gap[last]

    def _repair(self, batches: _BatchRange) -> None:
        """End the transactions of batches whose markers are missing, or drop the batches."""
        marker = self._marker(batches)
        if self._is_marker_of_all(batches, marker):
            return
        groups = self._transactions_in(batches, marker)
        for number, (first, end, ending) in enumerate(groups):
            is_last = end == batches.end
            following = marker if is_last else groups[number + 1][2]
            outcomes = {None if each is None else each.outcome for each in (ending, following)}
            if len(outcomes) == 1 and ending is not None:
                continue
            if batches.ended_by is _EndedBy.LOG and is_last and self._stays_open(batches, ending):
                continue
            group = batches._replace(
                first=first, end=end, following=batches.following if is_last else end
            )
            if (
                ending is None
                or ending.outcome is Outcome.OPEN
                or not self._write_marker(group, ending)
            ):
                self._drop_batches(group)

    def _marker(self, batches: _BatchRange) -> TransactionEnd | None:
        """Return the marker after the batches; None if it is missing."""
        if batches.ended_by is not _EndedBy.MARKER or batches.following is None:
            return None
        rows, row = self.log.rows, batches.following
        return TransactionEnd(rows.outcome(row), int(rows.epoch[row]), is_pending=False)

    def _is_marker_of_all(self, batches: _BatchRange, marker: TransactionEnd | None) -> bool:
        """Return whether a marker after lost offsets ends all batches before it.

        It may belong to a later transaction, unless it commits with the next epoch and each
        transaction of the producer has its own epoch.
        """
        if marker is None or batches.following is None:
            return False
        rows = self.log.rows
        if not self._gaps_between(batches.first, batches.following):
            return True
        if marker.outcome is Outcome.COMMIT:
            is_next = marker.epoch == rows.epoch[batches.end - 1] + _EPOCH_BUMP
            return (bool(is_next) and self._has_own_epochs(batches)) or self._are_indexed(batches)
        offsets = int(rows.base_offset[batches.first]), int(rows.base_offset[batches.following])
        return AbortedTransaction(int(rows.producer_id[batches.first]), *offsets) in (
            self.indexes.entries
        )

    def _has_own_epochs(self, batches: _BatchRange) -> bool:
        """Return whether an earlier commit raised the epoch, as only newer producers do.

        No offset before that marker may be lost: it may belong to a later transaction.
        """
        rows = self.log.rows
        first = np.searchsorted(rows.producer_id, rows.producer_id[batches.first])
        own = rows.take(slice(int(first), batches.first))
        is_commit = (own.control_type[1:] == CONTROL_COMMIT) & (
            own.control_type[:-1] < CONTROL_ABORT
        )
        is_raised = (np.diff(own.epoch) == _EPOCH_BUMP) & (np.diff(own.gap) == 0)
        return bool((is_commit & is_raised).any())

    def _stays_open(self, batches: _BatchRange, ending: TransactionEnd | None) -> bool:
        """Return whether a coordinator or an operator has to end a transaction at the log end."""
        if ending is not None and ending.is_pending and self.has_coordinator:
            return True
        if ending is None:
            is_open = self._is_complete_from(batches)
        else:
            is_open = not (self.may_append or self._gaps_between(batches.end - 1, None))
        if is_open:
            self.open_producers.append(int(self.log.rows.producer_id[batches.first]))
        return is_open

    def _is_complete_from(self, batches: _BatchRange) -> bool:
        """Return whether the dump shows no loss from the start of a transaction to the log end."""
        is_lost = self.log.is_end_lost or self._is_before_log(batches.first)
        return (
            batches.ended_by is _EndedBy.LOG
            and not is_lost
            and not self._gaps_between(batches.first, None)
        )

    def _is_before_log(self, row: int) -> bool:
        return int(self.log.rows.base_offset[row]) < self.log.start_offset

    def _transactions_in(
        self, batches: _BatchRange, marker: TransactionEnd | None
    ) -> list[_TransactionRange]:
        """Return the transactions of the batches, with their ends."""
        key, outcomes = self._key(batches), self.outcomes()
        by_epoch = outcomes.end_by_epoch(key)
        candidates = list(map(self._abort_if_open, outcomes.ends_by_time(key)))
        if marker is not None and (not candidates or candidates[-1].outcome is not marker.outcome):
            candidates = []
        found = None if by_epoch is None else self._abort_if_open(by_epoch)
        if found is None and len({each.outcome for each in candidates}) == 1:
            found = candidates[-1]
        if batches.aborted is not None:
            is_contradiction = found is not None and found.outcome is Outcome.COMMIT
            abort = TransactionEnd(Outcome.ABORT, key.epoch, is_pending=False)
            return [
                _TransactionRange(batches.first, batches.end, None if is_contradiction else abort)
            ]
        if found is None and not candidates:
            found = outcomes.end_by_markers(key)
        if found is None and batches.ended_by is _EndedBy.MISSING and self._are_indexed(batches):
            found = TransactionEnd(Outcome.COMMIT, key.epoch, is_pending=False)
        if found is None and self.is_whole_cluster and self._is_complete_from(batches):
            # No coordinator can end it, and an operator can only abort it.
            found = TransactionEnd(Outcome.ABORT, key.epoch, is_pending=False)
        if found is not None:
            return [_TransactionRange(batches.first, batches.end, found)]
        return self._split_at_gaps(batches, marker, candidates)

    def _abort_if_open(self, ending: TransactionEnd) -> TransactionEnd:
        """Return the end of a transaction, aborted if it is open and has no coordinator."""
        if self.has_coordinator or ending.outcome is not Outcome.OPEN:
            return ending
        return ending._replace(outcome=Outcome.ABORT)

    def _split_at_gaps(
        self,
        batches: _BatchRange,
        marker: TransactionEnd | None,
        candidates: Sequence[TransactionEnd],
    ) -> list[_TransactionRange]:
        """Split batches at lost gaps; each part gets the only end that the order allows."""
        rows, before = self.log.rows, batches.before
        gap = rows.gap[batches.first : batches.end]
        starts = [0, *(np.flatnonzero(np.diff(gap)) + 1).tolist(), len(gap)]
        is_first_known = self.log.start_offset == 0 or before is not None
        is_first_known &= rows.gap[batches.first] == (0 if before is None else rows.gap[before])
        is_last_known = marker is not None and gap[-1] == rows.gap[batches.following]
        groups = []
        for number, (start, end) in enumerate(pairwise(starts)):
            possible = list(candidates)
            if number == 0 and is_first_known:
                possible = possible[:1]
            if end == len(gap) and is_last_known and marker is not None:
                possible = [marker]
            is_clear = len({each.outcome for each in possible}) == 1
            ending = possible[-1] if is_clear else None
            groups.append(_TransactionRange(batches.first + start, batches.first + end, ending))
        return groups

    def _key(self, batches: _BatchRange) -> TransactionKey:
        rows, before, until = self.log.rows, batches.before, batches.following
        is_until = until is not None and rows.control_type[until] >= CONTROL_ABORT
        return TransactionKey(
            self.partition,
            int(rows.producer_id[batches.first]),
            int(rows.epoch[batches.end - 1]),
            -1 if before is None else int(rows.time_ms[before]),
            int(rows.time_ms[until]) if is_until else INT64_MAX,
        )

    def _gaps_between(self, row: int, following: int | None) -> range:
        """Return the lost gaps after a row, up to another row or the log end."""
        gap = self.log.rows.gap
        return range(int(gap[row]), self._end_gap if following is None else int(gap[following]))

    def _are_indexed(self, batches: _BatchRange) -> bool:
        """Return whether a transaction index would contain an abort marker in the gaps."""
        gaps = self._gaps_between(batches.first, batches.following)
        return all(self.indexes.covers(self.log.gaps[number]) for number in gaps)

    def _write_marker(
        self, batches: _BatchRange, ending: TransactionEnd, *, is_known: bool = True
    ) -> bool:
        """Write a marker after batches; return False if there is no offset for it."""
        place = self._marker_offset(batches)
        if place is None:
            return False
        offset, gap = place
        rows, before = self.log.rows, batches.before
        producer_id = int(rows.producer_id[batches.first])
        self._used_offsets.add(offset)
        self._markers[offset] = write_end_transaction_marker(
            offset,
            gap.timestamp_ms,
            producer_id,
            ending.epoch,
            is_commit=ending.outcome is Outcome.COMMIT,
            coordinator_epoch=0 if before is None else int(rows.coordinator_epoch[before]),
            leader_epoch=gap.leader_epoch,
        )
        start = rows.base_offset[batches.first]
        self._notes.append(
            f"offset {offset}: wrote the missing transaction marker of producer {producer_id}; "
            f"its transaction from offset {start} was {ending.outcome}"
            if is_known
            else f"offset {offset}: aborted the transaction of producer {producer_id} from offset "
            f"{start}, which is before the log; its outcome is unknown"
        )
        return True

    def _marker_offset(self, batches: _BatchRange) -> tuple[int, Gap] | None:
        """Return an offset for a marker after batches, and the gap in which it is."""
        numbers = self._gaps_between(batches.end - 1, batches.following)
        gaps = [self.log.gaps[number] for number in numbers]
        if batches.aborted is not None:
            offset = batches.aborted.last_offset
            for gap in gaps:
                if gap.first_offset <= offset <= gap.last_offset:
                    return offset, gap
        for gap in reversed(gaps):
            for offset in range(gap.last_offset, gap.first_offset - 1, -1):
                if offset not in self._used_offsets:
                    return offset, gap
        if batches.following is not None or not self.may_append:
            return None
        self._next_offset += 1
        return self._next_offset - 1, self.log.gaps[self._end_gap]

    def _drop_batches(self, group: _BatchRange) -> None:
        """Drop batches; abort their transaction if it began before the log."""
        rows, first, end = self.log.rows, group.first, group.end
        if self._is_before_log(first):
            abort = TransactionEnd(Outcome.ABORT, int(rows.epoch[end - 1]), is_pending=False)
            if not self._write_marker(group, abort, is_known=False) and group.following is None:
                self.open_producers.append(int(rows.producer_id[first]))
            first += 1
        if first == end:
            return
        rows = rows.take(slice(first, end))
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
                f"the transaction marker of producer {rows.producer_id[0]} is missing, and its "
                "outcome is unknown: the transaction's records are dropped, and the records of "
                "other producers between them are kept",
                records=None if self.is_compacted else records,
            )
        )


@dataclass(frozen=True, slots=True)
class TransactionRepairs:
    """The partitions whose transactions are edited, and the producers whose transactions stay open.

    It is unknown whether a coordinator ends the open transactions.
    """

    plans: list[PartitionPlan] = field(default_factory=list)
    open_producers: dict[TopicPartition, list[int]] = field(default_factory=dict)


def find_missing_markers(
    plan: RestorePlan,
    partitions: Iterable[RestoredPartition],
    output: str,
    only_here: Container[TopicPartition] | None,
) -> TransactionRepairs:
    """Find missing markers in the restored partitions that have losses or open transactions.

    `only_here` are partitions without replicas elsewhere; None for all.
    """
    found = TransactionRepairs()
    plans = {each.partition: each for each in plan.partitions}
    output_logs = _OutputLogs(output, [each for each in partitions if not each.is_left_out])
    has_states = bool(output_logs.states)
    outcomes = cache(partial(_read_outcomes, plan, output_logs))
    for restored in output_logs.partitions:
        if restored.is_edited or not (restored.lost or restored.open_producers):
            continue
        own = plans[restored.partition]
        search = PartitionMarkers(
            own.base.partition,
            output_logs.transactions(restored),
            AbortedIndexes.read(
                each.directory
                for each in (own.base, *own.others)
                if not store_of(each.directory).needs_requests
            ),
            outcomes,
            has_coordinator=has_states and own.base.partition == own.partition,
            is_whole_cluster=bool(plan.request.seeds),
            may_append=not restored.is_limited
            and (only_here is None or own.partition in only_here),
            is_compacted=own.known.cleaning.is_compacted is not False,
        )
        edits = search.edits()
        if edits:
            found.plans.append(replace(own, edits=edits))
        if search.open_producers and not restored.is_limited:
            found.open_producers[restored.partition] = search.open_producers
    return found


@dataclass(frozen=True, slots=True)
class _OutputLogs:
    """The logs of the restored partitions in an output."""

    output: str
    partitions: Sequence[RestoredPartition]

    @property
    def states(self) -> list[RestoredPartition]:
        """The partitions of ``__transaction_state``."""
        topic = TRANSACTION_STATE_TOPIC
        return [each for each in self.partitions if each.partition.topic == topic]

    def directory(self, restored: RestoredPartition) -> str:
        return os.path.join(self.output, restored.partition.directory_name)

    def segments(self, restored: RestoredPartition) -> list[SegmentFile]:
        segments, _ = list_partition(restored.partition, scan_directory(self.directory(restored)))
        return sorted(segments, key=lambda segment: segment.base_offset)

    def transactions(self, restored: RestoredPartition) -> PartitionTransactions:
        # Batches that were dropped for their transaction hide no marker.
        lost = [each for each in restored.lost if each.code != UNKNOWN_OUTCOME]
        directory = self.directory(restored)
        at_end = [each for each in list_snapshots(directory) if each == restored.log_end_offset]
        _, producers, _ = load_latest_snapshot(directory, at_end)
        return PartitionTransactions.read(self.segments(restored), lost, producers)

    def marker_outcomes(self) -> Mapping[tuple[int, int], set[Outcome]]:
        """Return the outcomes in markers whose epoch is above the epoch of their batches."""
        found: dict[tuple[int, int], set[Outcome]] = defaultdict(set)
        for restored in self.partitions:
            read = self.transactions(restored)
            rows = read.rows
            for first, last, has_marker in read.transactions():
                is_whole = has_marker and rows.gap[last - 1] == rows.gap[last] and first < last
                if is_whole and rows.epoch[last] == rows.epoch[last - 1] + 1:
                    key = int(rows.producer_id[last]), int(rows.epoch[last - 1])
                    found[key].add(rows.outcome(last))
        return found


def _read_outcomes(plan: RestorePlan, output_logs: _OutputLogs) -> TransactionOutcomes:
    """Read ``__transaction_state`` from the output, or from the dump if --topics excludes it."""
    request = plan.request
    logs = [output_logs.segments(each) for each in output_logs.states]
    if not logs and request.topics is not None:
        states = re.compile(TRANSACTION_STATE_TOPIC)
        try:
            dump = read_dumps(request.inputs, request.tiered, topics=states)
        except InputError as error:
            if is_retriable(error):
                raise
        else:
            logs = [each[0].segments.files() for each in dump.replicas.values()]
    budget = shared_budget(request.max_decompressed_bytes)
    return TransactionOutcomes.read(logs, budget, cache(output_logs.marker_outcomes))
