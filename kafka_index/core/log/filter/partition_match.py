"""The first pass over a partition: records to drop, and batches that must stay.

All batches are verified and decoded before anything is written, so an unreadable partition is
skipped completely.

Readers of a compacted topic as a table use the newest record of each key. If it is dropped, an
older record becomes current again; if a tombstone is dropped, its key reappears. A read_uncommitted
reader sees all records. A read_committed reader and the log cleaner see only committed
transactions. Since an open transaction may be committed or aborted later, no key may reappear in
either case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptLogError
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import INTERNAL_TOPICS, TopicPartition
from kafka_index.core.format.records import TRANSACTIONAL_MASK
from kafka_index.core.kernels.headers import CONTROL_MESSAGE
from kafka_index.core.log.filter.condition import Selection, SelectionError, matcher_of
from kafka_index.core.log.filter.dropped_keys import KeyMatcher
from kafka_index.core.log.missing_offsets import SeenLog
from kafka_index.core.log.read.transactions import AbortedTransactions
from kafka_index.core.log.scan.log_offsets import LogOffsets
from kafka_index.core.log.scan.scanner import BatchOrder
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.log.state.partition_state import PartitionState, ProducerTable, SegmentState
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_iteration import BatchDamage, RecordDecoder
from kafka_index.core.records.batch_table import (
    PREALLOCATED_TAIL,
    BatchColumns,
    ScanStop,
    WindowBatches,
)
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_chunk import RecordChunk
from kafka_index.core.records.record_table import RecordTable

#: Maximum number of keys kept in memory, about 500 bytes each.
_MAX_KEYS = 5_000_000
_COMMITTED, _ABORTED = -1, -2
#: Called from any thread after a pass has read a segment.
OnRead = Callable[[SegmentFile], None]
_NONE = -1


def is_internal(partition: TopicPartition) -> bool:
    """Return whether a topic is one of Kafka's internal topics, which never lose records."""
    return partition.topic in INTERNAL_TOPICS


def ignore(_segment: SegmentFile) -> None: ...


@dataclass(frozen=True, slots=True)
class PartitionMatch:
    """The effect of a rewrite on a partition; small and picklable.

    Attributes
    ----------
    records
        Number of data records.
    revived
        Offset of a dropped record, and of the older record of its key that would become current.
    producer_ends
        Sorted last offsets of each producer's last batch. These batches are kept, empty if needed,
        and so are batches from `unstable_offset` on and the one at `end_offset`.
    unstable_offset
        First offset of the earliest open transaction.
    losing
        Base offsets of the segments that lose records.
    note
        Describes a tail that a broker truncates at every start, and that is not copied.
    seen
        Offsets of the logs.
    by_key
        Number of dropped records by key.
    """

    records: int
    dropped: int
    revived: tuple[int, int] | None
    producer_ends: Longs
    unstable_offset: int | None
    end_offset: int
    losing: frozenset[int] = frozenset()
    note: str | None = None
    seen: tuple[SeenLog, ...] = ()
    by_key: Mapping[int, int] = field(default_factory=dict)

    def stays(self, batches: BatchColumns) -> NDArray[np.bool_]:
        """Return which batches stay even if all their records are dropped.

        Source: ``Cleaner.checkBatchRetention``, which never cleans open transactions.
        """
        with_producer = batches.producer_id >= 0
        stays = with_producer & np.isin(batches.last_offset, self.producer_ends)
        stays |= batches.last_offset + 1 == self.end_offset
        if self.unstable_offset is not None:
            is_open = batches.attributes & TRANSACTIONAL_MASK != 0
            is_open &= batches.control_type != CONTROL_MESSAGE
            stays |= with_producer & is_open & (batches.last_offset >= self.unstable_offset)
        return stays


def match_partition(
    segments: Sequence[SegmentFile],
    selection: Selection,
    state: PartitionState,
    *,
    max_decompressed_bytes: int,
    checks_revival: bool,
    on_read: OnRead = ignore,
) -> PartitionMatch:
    """Read a partition once, or twice to find revived records.

    `state` is updated from the first to the last segment; `on_read` is called after each segment of
    the first pass.
    """
    matcher = RecordMatcher(selection, max_decompressed_bytes)
    # Keys are dropped with all their records, so no older record remains.
    revival = Revival() if checks_revival and selection.condition is not None else None
    aborted: list[NDArray[np.void]] = []
    notes: list[str] = []
    losing: set[int] = set()
    seen: list[SeenLog] = []
    budget = shared_budget(max_decompressed_bytes)
    records = dropped_records = 0
    end_offset = segments[0].base_offset
    for segment in segments:
        table = ProducerTable()
        offsets = LogOffsets(segment.base_offset)
        seen.append(SeenLog(segment, offsets, has_counts=True))
        # An empty segment extends the end of the log too.
        end_offset = max(end_offset, segment.base_offset)
        for source in sound_windows(segment, notes):
            offsets.observe_exactly(source.window, source.position_bytes, source.batches, budget)
            _, stop = table.follow(source.batches)
            if stop is not None:
                raise stop.error(CorruptLogError, segment.log_path)
            end_offset = int(source.batches.last_offset[-1]) + 1
            for _, rows, dropped in matcher.match(data_batches(source), segment):
                records += len(dropped)
                if not dropped.any():
                    continue
                dropped_records += int(dropped.sum())
                losing.add(segment.base_offset)
                if revival is not None:
                    revival.note_keys(rows, dropped)
        entries, stop = state.apply(SegmentState.of_table(table))
        aborted.append(entries)
        if stop is not None:
            raise stop.error(CorruptLogError, segment.log_path)
        on_read(segment)
    entries = state.entries
    if revival is not None and revival.has_keys:
        outcomes = Outcomes.of(aborted, entries)
        for segment in segments:
            for source in sound_windows(segment):
                data = data_batches(source)
                of_batches = outcomes.of_batches(data.batches)
                for numbers, rows, dropped in matcher.match(data, segment):
                    revival.note_records(rows, dropped, of_batches[numbers])
    opened = entries["current_txn_first_offset"]
    opened = opened[opened >= 0]
    return PartitionMatch(
        records,
        dropped_records,
        None if revival is None else revival.find(),
        np.sort(entries["last_offset"][entries["last_offset"] >= 0]),
        int(opened.min()) if len(opened) else None,
        end_offset,
        frozenset(losing),
        notes[0] if notes else None,
        tuple(seen),
        dict(matcher.counts),
    )


def sound_windows(segment: SegmentFile, notes: list[str] | None = None) -> Iterator[WindowBatches]:
    """Yield the verified batches of a segment.

    If the last batch is one that a broker truncates at every start, a note is added.
    """
    scan = LogFileSource.of_segment(segment, verify_crc=True, recovers=False)
    order = BatchOrder(segment.base_offset)
    for window, start, batches in scan.windows():
        stop = order.first_stop(batches)
        if stop is not None:
            raise stop.error(CorruptLogError, segment.log_path)
        yield WindowBatches(window, start, batches)
    stop = scan.stop
    if stop is None:
        return
    if not (stop.is_tail and segment.is_last):
        raise stop.error(CorruptLogError, segment.log_path)
    if notes is not None and stop.code != PREALLOCATED_TAIL:
        notes.append(_note_of_tail(segment, stop, order.next_offset))


def _note_of_tail(segment: SegmentFile, stop: ScanStop, end_offset: int) -> str:
    """Return a note if a broker truncates the end of an active segment; raise for a loss."""
    root = DataDirectory(os.path.dirname(segment.partition_directory))
    committed = root.committed_end(TopicPartition(segment.topic, segment.partition))
    if committed > end_offset:
        raise CorruptLogError(
            "the last batch is torn, and the high watermark or recovery "
            "point lies after it: committed records are lost",
            path=segment.log_path,
            position_bytes=stop.position_bytes,
            expected=f"an end at offset {committed} or later",
            found=end_offset,
            hint="restore the partition from another replica",
        )
    cut_bytes = segment.log_size_bytes - stop.position_bytes
    return f"{segment.log_path}: a torn last batch is skipped ({cut_bytes:,} B)"


def data_batches(source: WindowBatches) -> WindowBatches:
    is_data = ~source.batches.is_control
    return source if is_data.all() else source.select(is_data)


class RecordMatcher:
    """Decodes the columns that the selection needs, and evaluates it."""

    def __init__(self, selection: Selection, max_decompressed_bytes: int) -> None:
        self._matcher = matcher_of(selection)
        self._columns = tuple(dict.fromkeys(("offset", "key", *selection.columns)))
        # The columns do not depend on the partition.
        parts = RecordTable("", -1, self._columns).parts
        self._decoder = RecordDecoder(shared_budget(max_decompressed_bytes), parts, verify_crc=True)

    @property
    def counts(self) -> Mapping[int, int]:
        """The number of records by key, as in `KeyMatcher`; empty for a condition."""
        return self._matcher.counts if isinstance(self._matcher, KeyMatcher) else {}

    def match(
        self, source: WindowBatches, segment: SegmentFile
    ) -> Iterator[tuple[Longs, pa.RecordBatch, NDArray[np.bool_]]]:
        """Yield, for each chunk of records, batch numbers, records, and which are dropped."""
        table = RecordTable(segment.topic, segment.partition, self._columns)

        def convert(chunk: RecordChunk) -> tuple[Longs, pa.RecordBatch]:
            numbers = np.arange(source.batches.rows)
            return chunk.of_batches(numbers), table.convert(chunk, source)

        for numbers, rows in decode(self._decoder, source, segment, convert):
            yield numbers, rows, self._matcher.match(rows)


def decode(
    decoder: RecordDecoder,
    source: WindowBatches,
    segment: SegmentFile,
    convert: Callable[[RecordChunk], tuple[Longs, pa.RecordBatch]],
) -> Iterator[tuple[Longs, pa.RecordBatch]]:
    """Decode batches; raise for corruption."""
    positions = source.batches.position_bytes
    for found in decoder.decode(
        source.window, positions - source.position_bytes, source.batches.size_bytes, convert
    ):
        if isinstance(found, BatchDamage):
            raise found.error.at(segment.log_path, int(positions[found.batch]))
        yield found


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcome of each transaction of a partition.

    `opened` has the first offsets of open transactions, by producer ID.
    """

    aborted: AbortedTransactions
    opened: dict[int, int]

    @classmethod
    def of(cls, aborted: Sequence[NDArray[np.void]], producers: NDArray[np.void]) -> Outcomes:
        """Combine transaction index entries of a log with the producers at its end."""
        is_open = producers["current_txn_first_offset"] >= 0
        ids = producers["producer_id"][is_open].tolist()
        firsts = producers["current_txn_first_offset"][is_open].tolist()
        return cls(AbortedTransactions.of_entries(aborted), dict(zip(ids, firsts, strict=True)))

    def of_batches(self, batches: BatchColumns) -> Longs:
        """Return, for each batch, the producer of its open transaction, or its outcome.

        -1 means committed or not transactional, -2 aborted.
        """
        outcomes = np.where(self.aborted.hold(batches), _ABORTED, _COMMITTED)
        in_transaction = batches.attributes & TRANSACTIONAL_MASK != 0
        in_transaction &= batches.control_type != CONTROL_MESSAGE
        for producer, first_offset in self.opened.items():
            is_open = in_transaction & (batches.producer_id == producer)
            outcomes[is_open & (batches.base_offset >= first_offset)] = producer
        return outcomes


@dataclass(slots=True)
class _View:
    """The records of a key that a reader sees."""

    #: Offset of the newest record that stays, and of a newer record that is dropped.
    older: int = _NONE
    dropped: int = _NONE

    def drop(self, offset: int) -> None:
        if self.older != _NONE:
            self.dropped = offset

    def keep(self, offset: int) -> None:
        self.older, self.dropped = offset, _NONE


@dataclass(slots=True)
class _Key:
    """The records of a key so far."""

    uncommitted: _View = field(default_factory=_View)
    #: The view if all open transactions abort.
    committed: _View = field(default_factory=_View)
    #: For each open transaction: its newest dropped record that is not certainly superseded, and an
    #: older one.
    opened: dict[int, tuple[int, int]] = field(default_factory=dict)

    def drop(self, offset: int, outcome: int) -> None:
        self.uncommitted.drop(offset)
        if outcome == _COMMITTED:
            self.committed.drop(offset)
        elif outcome != _ABORTED and self.committed.older != _NONE:
            self.opened[outcome] = offset, self.committed.older

    def keep(self, offset: int, outcome: int) -> None:
        self.uncommitted.keep(offset)
        if outcome == _COMMITTED:
            self.committed.keep(offset)
            self.opened.clear()
        elif outcome != _ABORTED:
            self.opened.pop(outcome, None)
            if self.committed.dropped == _NONE:
                self.committed.older = offset

    def revived(self) -> tuple[int, int] | None:
        """Return the offsets of a dropped record, and of the older record that it would revive."""
        for view in (self.uncommitted, self.committed):
            if view.dropped != _NONE:
                return view.dropped, view.older
        return max(self.opened.values(), default=None)


class Revival:
    """Collects the keys of dropped records, then looks for older and newer records that stay."""

    def __init__(self) -> None:
        self._keys: dict[bytes, _Key | None] = {}

    @property
    def has_keys(self) -> bool:
        """Whether a record with a key is dropped."""
        return bool(self._keys)

    def note_keys(self, rows: pa.RecordBatch, dropped: NDArray[np.bool_]) -> None:
        keys = rows.column("key").filter(pa.array(dropped)).unique().to_pylist()
        self._keys |= dict.fromkeys(key for key in keys if key is not None)
        if len(self._keys) > _MAX_KEYS:
            raise SelectionError(
                "too many keys are dropped to find out what would be revived",
                expected=f"{_MAX_KEYS} or fewer",
                hint="rewrite topic by topic, or give --allow-revive",
            )

    def note_records(
        self, rows: pa.RecordBatch, dropped: NDArray[np.bool_], outcomes: Longs
    ) -> None:
        """Process the records of a chunk in the second pass, with their `Outcomes.of_batches`."""
        offsets = rows.column("offset").to_pylist()
        keys = rows.column("key").to_pylist()
        known = self._keys
        for row, key in enumerate(keys):
            if key not in known:
                continue
            found = known[key]
            if found is None:
                found = known[key] = _Key()
            note = found.drop if dropped[row] else found.keep
            note(offsets[row], int(outcomes[row]))

    def find(self) -> tuple[int, int] | None:
        """Return the offsets of a dropped record, and of the record that it would revive."""
        for found in self._keys.values():
            revived = None if found is None else found.revived()
            if revived is not None:
                return revived
        return None
