"""Lost transaction markers of restored partitions: write them again, or drop their records.

A transaction whose marker is lost would stay open for ever, or end with the marker of the
producer's next transaction. The batches around lost offsets show both. The outcome is that of the
``.txnindex`` files of the dump, of ``__transaction_state``, or of a marker with a raised epoch.
Nothing is read unless a partition has losses or an open transaction.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.commands.restore.plan import PartitionPlan, RestorePlan
from kafka_index.commands.restore.restored_partition import LostRange, RestoredPartition
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
# A timeout raises the epoch, and so does a new producer.
_MAX_FENCE = 2
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
        """Read the logs of ``__transaction_state``; skip unreadable parts."""
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
        """Return the ends of all transactions that match a key; none if one may be unknown."""
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
            one.client_version >= _BUMPING_CLIENT_VERSION,
            None if is_complete else frozenset(TopicPartition(*each) for each in one.partitions),
            one.last_update_timestamp_ms,
        )
        latest[one.transactional_id] = one.producer_id, decision
        self.decisions[one.producer_id].append(decision)


def _is_fence(ending: Ending, epoch: int) -> bool:
    """Return whether a timeout or a new producer may have aborted a transaction of an epoch."""
    return ending.outcome is Outcome.ABORT and epoch < ending.epoch <= epoch + _MAX_FENCE


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


#: The code of records that are dropped because the outcome of their transaction is unknown.
UNKNOWN_OUTCOME: Final = "unknown_transaction_outcome"
_EPOCH_BUMP = 1


class _End(Enum):
    """The end of the batches of a transaction: a marker, a lost marker, or the end of the log."""

    MARKER = auto()
    LOST = auto()
    LOG = auto()


class _Part(NamedTuple):
    """Consecutive batches of one producer, by their rows, and what ends them.

    `before` is the row of the producer's marker before them, and `following` that of its next batch
    or marker; None for none. `aborted` is the entry of a transaction index that they have.
    """

    first: int
    end: int
    ended_by: _End
    before: int | None
    following: int | None
    aborted: AbortedTransaction | None


class _Group(NamedTuple):
    """Consecutive batches of one transaction by their rows, and its end; None if unknown."""

    first: int
    end: int
    ending: Ending | None


@dataclass(frozen=True, slots=True)
class TransactionEdits:
    """The changes to the logs of a partition: markers by offset, and batches left out.

    `dropped` has the base offsets of the batches, which `lost` describes.
    """

    markers: Mapping[int, bytes] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()
    lost: tuple[LostRange, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything changes."""
        return bool(self.markers or self.dropped)

    def of_segment(self, first_offset: int, end_offset: int) -> TransactionEdits:
        """Return the changes to a segment, by its base offset and that of the next one."""
        span = range(first_offset, end_offset)
        return TransactionEdits(
            {offset: data for offset, data in self.markers.items() if offset in span},
            frozenset(offset for offset in self.dropped if offset in span),
        )

    def rewrite(self, segment: SegmentFile, path: str) -> SegmentFile:
        """Write the log of a segment with the changes under another path."""
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
class MarkerSearch:
    """The search for transactions of a partition whose markers are lost.

    `has_coordinator`: a coordinator of the output ends open transactions. `is_whole_cluster`: there
    is no other coordinator. `may_append`: no other replica has batches after the end.
    `is_compacted`: not every offset has a record.
    `open_producers` have transactions that stay open, and that nobody is known to end.
    """

    partition: TopicPartition
    found: PartitionTransactions
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
        self._taken = {each.last_offset for each in self.indexes.entries}
        self._end_gap = len(self.found.gaps) - 1
        self._next_offset = self.found.end_offset

    def edits(self) -> TransactionEdits:
        """Return the changes that end transactions, or leave out those of an unknown outcome."""
        gap = self.found.rows.gap
        for first, last, has_marker in self.found.transactions():
            if has_marker and gap[first] == gap[last]:
                continue
            for part in self._parts(first, last, has_marker=has_marker):
                self._end(part)
        return TransactionEdits(
            self._markers, frozenset(self._dropped), tuple(self._lost), tuple(self._notes)
        )

    def _parts(self, first: int, last: int, *, has_marker: bool) -> Iterator[_Part]:
        """Split the batches before a marker, or the log end, where a marker is lost for sure."""
        rows = self.found.rows
        end = last + 1 - has_marker
        following = last if has_marker else None
        data = rows.take(slice(first, end))
        is_new = (np.diff(data.epoch) != 0) & (np.diff(data.gap) != 0)
        starts = {first, *(first + 1 + np.flatnonzero(is_new)).tolist()}
        aborted: dict[int, AbortedTransaction] = {}
        for entry in self._entries(data):
            begin, stop = (first + np.searchsorted(data.base_offset, entry[1:])).tolist()
            is_lost = self.found.is_lost(entry.last_offset)
            if is_lost:
                aborted[begin] = entry
                starts |= {begin, stop}
            elif has_marker and entry.last_offset == rows.base_offset[last]:
                starts.add(begin)
        bounds = [*sorted(starts - {end}), end]
        before = first - 1 if first and rows.producer_id[first - 1] == data.producer_id[0] else None
        for begin, stop in pairwise(bounds):
            ended_by, in_index = _End.LOST, aborted.get(begin)
            if stop == end and following is None:
                ended_by = _End.LOG
            elif stop == end and in_index is None and self._may_end(stop - 1, last):
                ended_by = _End.MARKER
            yield _Part(begin, stop, ended_by, before, following if stop == end else stop, in_index)
            before = None

    def _entries(self, data: Rows) -> Iterator[AbortedTransaction]:
        """Yield the entries that begin with one of the batches, or with a lost one before it."""
        for entry in self.indexes.entries:
            if entry.producer_id != data.producer_id[0]:
                continue
            begin, stop = np.searchsorted(data.base_offset, entry[1:]).tolist()
            if begin == stop:
                continue
            is_lost = self.found.is_lost(entry.first_offset)
            is_split = begin == 0 or data.gap[begin] != data.gap[begin - 1]
            if is_split and (is_lost or entry.first_offset == data.base_offset[begin]):
                yield entry

    def _may_end(self, last: int, marker: int) -> bool:
        """Return whether a marker may be that of the transaction with a batch before it."""
        rows = self.found.rows
        steps = int(rows.epoch[marker] - rows.epoch[last])
        most = _EPOCH_BUMP + (rows.outcome(marker) is Outcome.ABORT)
        return 0 <= steps <= most or rows.gap[marker] == rows.gap[last]

    def _end(self, part: _Part) -> None:
        """End transactions whose markers are lost, or leave their batches out."""
        marker = self._marker(part)
        groups = [] if self._is_right(part, marker) else self._groups(part, marker)
        for number, (first, end, ending) in enumerate(groups):
            is_last = end == part.end
            following = marker if is_last else groups[number + 1][2]
            outcomes = {None if each is None else each.outcome for each in (ending, following)}
            if len(outcomes) == 1 and ending is not None:
                continue
            if part.ended_by is _End.LOG and is_last and self._stays_open(part, ending):
                continue
            group = part._replace(
                first=first, end=end, following=part.following if is_last else end
            )
            if ending is None or ending.outcome is Outcome.OPEN or not self._mark(group, ending):
                self._drop(group)

    def _marker(self, part: _Part) -> Ending | None:
        """Return the marker after the batches; None if that is lost."""
        if part.ended_by is not _End.MARKER or part.following is None:
            return None
        rows, row = self.found.rows, part.following
        return Ending(rows.outcome(row), int(rows.epoch[row]), is_pending=False)

    def _is_right(self, part: _Part, marker: Ending | None) -> bool:
        """Return whether a marker after lost offsets ends all batches before it.

        It may be that of a later transaction, unless it commits with the epoch after theirs, and
        each transaction of the producer has its own epoch.
        """
        if marker is None or part.following is None:
            return False
        rows = self.found.rows
        if not self._gaps(part.first, part.following):
            return True
        if marker.outcome is Outcome.COMMIT:
            is_next = marker.epoch == rows.epoch[part.end - 1] + _EPOCH_BUMP
            return (bool(is_next) and self._has_own_epochs(part)) or self._are_covered(part)
        offsets = int(rows.base_offset[part.first]), int(rows.base_offset[part.following])
        return AbortedTransaction(int(rows.producer_id[part.first]), *offsets) in (
            self.indexes.entries
        )

    def _has_own_epochs(self, part: _Part) -> bool:
        """Return whether a commit before the batches raised the epoch, as no older producer's does.

        Before that marker, nothing may be lost: it may be that of a later transaction.
        """
        rows = self.found.rows
        first = np.searchsorted(rows.producer_id, rows.producer_id[part.first])
        own = rows.take(slice(int(first), part.first))
        is_commit = (own.control_type[1:] == CONTROL_COMMIT) & (
            own.control_type[:-1] < CONTROL_ABORT
        )
        is_raised = (np.diff(own.epoch) == _EPOCH_BUMP) & (np.diff(own.gap) == 0)
        return bool((is_commit & is_raised).any())

    def _stays_open(self, part: _Part, ending: Ending | None) -> bool:
        """Return whether a coordinator or an operator has to end a transaction at the log end."""
        if ending is not None and ending.is_pending and self.has_coordinator:
            return True
        if ending is None:
            is_open = self._has_lost_nothing(part)
        else:
            is_open = not (self.may_append or self._gaps(part.end - 1, None))
        if is_open:
            self.open_producers.append(int(self.found.rows.producer_id[part.first]))
        return is_open

    def _has_lost_nothing(self, part: _Part) -> bool:
        """Return whether the log lost nothing from a transaction on, as far as the dump shows."""
        is_lost = self.found.is_end_lost or self._is_before_log(part.first)
        return part.ended_by is _End.LOG and not is_lost and not self._gaps(part.first, None)

    def _is_before_log(self, row: int) -> bool:
        """Return whether a row stands for batches before the log."""
        return int(self.found.rows.base_offset[row]) < self.found.start_offset

    def _groups(self, part: _Part, marker: Ending | None) -> list[_Group]:
        """Return batches without a lost marker between them, and the end of their transaction."""
        whole = (part.first, part.end)
        key, outcomes = self._key(part), self.outcomes()
        by_epoch = outcomes.by_epoch(key)
        candidates = list(map(self._ended, outcomes.by_time(key)))
        if marker is not None and (not candidates or candidates[-1].outcome is not marker.outcome):
            candidates = []
        found = None if by_epoch is None else self._ended(by_epoch)
        if found is None and len({each.outcome for each in candidates}) == 1:
            found = candidates[-1]
        if part.aborted is not None:
            is_contradiction = found is not None and found.outcome is Outcome.COMMIT
            abort = Ending(Outcome.ABORT, key.epoch, is_pending=False)
            return [_Group(*whole, None if is_contradiction else abort)]
        if found is None and not candidates:
            found = outcomes.by_markers(key)
        if found is None and part.ended_by is _End.LOST and self._are_covered(part):
            found = Ending(Outcome.COMMIT, key.epoch, is_pending=False)
        if found is None and self.is_whole_cluster and self._has_lost_nothing(part):
            # No coordinator can end it, and an operator can only abort it.
            found = Ending(Outcome.ABORT, key.epoch, is_pending=False)
        if found is not None:
            return [_Group(*whole, found)]
        return self._aligned(part, marker, candidates)

    def _ended(self, ending: Ending) -> Ending:
        """Return the end of a transaction without a coordinator: abort, as by its timeout."""
        if self.has_coordinator or ending.outcome is not Outcome.OPEN:
            return ending
        return ending._replace(outcome=Outcome.ABORT)

    def _aligned(
        self, part: _Part, marker: Ending | None, candidates: Sequence[Ending]
    ) -> list[_Group]:
        """Return the batches between lost gaps with the only outcome that their order allows."""
        rows, before = self.found.rows, part.before
        gap = rows.gap[part.first : part.end]
        starts = [0, *(np.flatnonzero(np.diff(gap)) + 1).tolist(), len(gap)]
        is_first_known = self.found.start_offset == 0 or before is not None
        is_first_known &= rows.gap[part.first] == (0 if before is None else rows.gap[before])
        is_last_known = marker is not None and gap[-1] == rows.gap[part.following]
        groups = []
        for number, (start, end) in enumerate(pairwise(starts)):
            possible = list(candidates)
            if number == 0 and is_first_known:
                possible = possible[:1]
            if end == len(gap) and is_last_known and marker is not None:
                possible = [marker]
            is_clear = len({each.outcome for each in possible}) == 1
            ending = possible[-1] if is_clear else None
            groups.append(_Group(part.first + start, part.first + end, ending))
        return groups

    def _key(self, part: _Part) -> TransactionKey:
        rows, before, until = self.found.rows, part.before, part.following
        is_until = until is not None and rows.control_type[until] >= CONTROL_ABORT
        return TransactionKey(
            self.partition,
            int(rows.producer_id[part.first]),
            int(rows.epoch[part.end - 1]),
            -1 if before is None else int(rows.time_ms[before]),
            int(rows.time_ms[until]) if is_until else INT64_MAX,
        )

    def _gaps(self, row: int, following: int | None) -> range:
        """Return the lost gaps after a row and before another one, or the log end."""
        gap = self.found.rows.gap
        return range(int(gap[row]), self._end_gap if following is None else int(gap[following]))

    def _are_covered(self, part: _Part) -> bool:
        """Return whether an abort marker in the gaps would be in a transaction index."""
        gaps = self._gaps(part.first, part.following)
        return all(self.indexes.cover(self.found.gaps[number]) for number in gaps)

    def _mark(self, part: _Part, ending: Ending, *, is_known: bool = True) -> bool:
        """Write a marker after batches; return False if there is no offset for it."""
        place = self._place(part)
        if place is None:
            return False
        offset, gap = place
        rows, before = self.found.rows, part.before
        producer_id = int(rows.producer_id[part.first])
        self._taken.add(offset)
        self._markers[offset] = write_end_transaction_marker(
            offset,
            gap.timestamp_ms,
            producer_id,
            ending.epoch,
            is_commit=ending.outcome is Outcome.COMMIT,
            coordinator_epoch=0 if before is None else int(rows.coordinator_epoch[before]),
            leader_epoch=gap.leader_epoch,
        )
        start = rows.base_offset[part.first]
        self._notes.append(
            f"offset {offset}: wrote the lost transaction marker of producer {producer_id} again; "
            f"its transaction from offset {start} was {ending.outcome}"
            if is_known
            else f"offset {offset}: aborted the transaction of producer {producer_id} from offset "
            f"{start}, which is before the log; its outcome is unknown"
        )
        return True

    def _place(self, part: _Part) -> tuple[int, Gap] | None:
        """Return an offset for a marker after batches, and the gap in which it is."""
        gaps = [self.found.gaps[each] for each in self._gaps(part.end - 1, part.following)]
        if part.aborted is not None:
            offset = part.aborted.last_offset
            for gap in gaps:
                if gap.first_offset <= offset <= gap.last_offset:
                    return offset, gap
        for gap in reversed(gaps):
            for offset in range(gap.last_offset, gap.first_offset - 1, -1):
                if offset not in self._taken:
                    return offset, gap
        if part.following is not None or not self.may_append:
            return None
        self._next_offset += 1
        return self._next_offset - 1, self.found.gaps[self._end_gap]

    def _drop(self, group: _Part) -> None:
        """Leave batches out; abort a transaction that would stay open without them."""
        first, end = group.first, group.end
        if self._is_before_log(first):
            abort = Ending(Outcome.ABORT, int(self.found.rows.epoch[end - 1]), is_pending=False)
            if not self._mark(group, abort, is_known=False) and group.following is None:
                self.open_producers.append(int(self.found.rows.producer_id[first]))
            first += 1
        if first == end:
            return
        rows = self.found.rows.take(slice(first, end))
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
                f"the transaction marker of producer {rows.producer_id[0]} is lost, and its "
                "outcome is unknown: the transaction's records are dropped, and the records of "
                "other producers between them are kept",
                records=None if self.is_compacted else records,
            )
        )


@dataclass(frozen=True, slots=True)
class FoundTransactions:
    """Partitions with edits to be made, and producers whose transactions stay open in partitions.

    Of the latter it is not known that a coordinator ends them.
    """

    edited: list[PartitionPlan] = field(default_factory=list)
    open_producers: dict[TopicPartition, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionSearch:
    """The search for transactions without markers in the partitions of an output.

    `only_here` are partitions without replicas elsewhere; None for all.
    """

    plan: RestorePlan
    partitions: Sequence[RestoredPartition]
    output: str
    only_here: Container[TopicPartition] | None

    def run(self) -> FoundTransactions:
        """Search all partitions that have losses or open transactions."""
        plans = {each.partition: each for each in self.plan.partitions}
        has_states = any(True for _ in self._states())
        outcomes = cache(self._outcomes)
        found = FoundTransactions()
        for restored in self._restored():
            if restored.is_edited or not (restored.lost or restored.open_producers):
                continue
            plan = plans[restored.partition]
            search = MarkerSearch(
                plan.base.partition,
                self._read(restored),
                AbortedIndexes.read(
                    each.directory
                    for each in (plan.base, *plan.others)
                    if not store_of(each.directory).needs_requests
                ),
                outcomes,
                has_coordinator=has_states and plan.base.partition == plan.partition,
                is_whole_cluster=bool(self.plan.request.seeds),
                may_append=not restored.is_limited
                and (self.only_here is None or plan.partition in self.only_here),
                is_compacted=plan.known.cleaning.is_compacted is not False,
            )
            edits = search.edits()
            if edits:
                found.edited.append(replace(plan, edits=edits))
            if search.open_producers and not restored.is_limited:
                found.open_producers[restored.partition] = search.open_producers
        return found

    def _restored(self) -> Iterator[RestoredPartition]:
        return (each for each in self.partitions if not each.is_left_out)

    def _segments(self, restored: RestoredPartition) -> list[SegmentFile]:
        name = restored.partition.directory_name
        return list_segments(restored.partition, os.path.join(self.output, name))

    def _read(self, restored: RestoredPartition) -> PartitionTransactions:
        # What was left out for its transaction is no loss that may hide a marker.
        lost = [each for each in restored.lost if each.code != UNKNOWN_OUTCOME]
        directory = os.path.join(self.output, restored.partition.directory_name)
        at_end = [each for each in list_snapshots(directory) if each == restored.log_end_offset]
        _, producers, _ = load_latest_snapshot(directory, at_end)
        return PartitionTransactions.read(self._segments(restored), lost, producers)

    def _states(self) -> Iterator[RestoredPartition]:
        return (
            each for each in self._restored() if each.partition.topic == TRANSACTION_STATE_TOPIC
        )

    def _outcomes(self) -> TransactionOutcomes:
        logs = [self._segments(each) for each in self._states()]
        request = self.plan.request
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
        return TransactionOutcomes.read(logs, budget, cache(self._markers))

    def _markers(self) -> Mapping[tuple[int, int], set[Outcome]]:
        """Return the outcomes in markers with an epoch above that of the batches before them."""
        found: dict[tuple[int, int], set[Outcome]] = defaultdict(set)
        for restored in self._restored():
            read = self._read(restored)
            rows = read.rows
            for first, last, has_marker in read.transactions():
                is_whole = has_marker and rows.gap[last - 1] == rows.gap[last] and first < last
                if is_whole and rows.epoch[last] == rows.epoch[last - 1] + 1:
                    key = int(rows.producer_id[last]), int(rows.epoch[last - 1])
                    found[key].add(rows.outcome(last))
        return found
