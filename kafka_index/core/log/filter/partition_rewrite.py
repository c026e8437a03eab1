"""Rewrite a partition in two passes: find the records to drop, then write logs without them.

The first pass verifies and decodes all batches, so an unreadable partition is skipped before any of
its files is written. The first pass also finds the batches that must stay.

Consumers that read a compacted topic as a table use the newest record of each key. If the newest
record is dropped, an older record becomes current. If a dropped newest record is a tombstone, its
key reappears. A read_uncommitted reader sees all records. A read_committed reader and the log
cleaner see only committed transactions. An open transaction may be committed or aborted later, so
keys are checked for both outcomes.

Batches that lose no record are copied byte for byte. Other batches are encoded again as by the log
cleaner (``MemoryRecords.filterTo``), with the same base and last offset, producer, sequence, leader
epoch and delete horizon. v0 and v1 messages become v2 batches.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptLogError
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import COMPRESSION_NAMES, INTERNAL_TOPICS, TopicPartition
from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    DELETE_HORIZON_MASK,
    MAGIC_RECORD_BATCH,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.kernels.headers import (
    CONTROL_MESSAGE,
    HEADER_BASE_SEQUENCE,
    HEADER_BASE_TIMESTAMP,
    HEADER_PRODUCER_EPOCH,
)
from kafka_index.core.log.filter.selection import (
    KeyMatcher,
    Selection,
    SelectionError,
    open_matcher,
)
from kafka_index.core.log.missing_offsets import ScannedLog
from kafka_index.core.log.read.transactions import AbortedTransactions
from kafka_index.core.log.scan.log_offsets import LogOffsets
from kafka_index.core.log.scan.scanner import BatchOrder
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.log.state.partition_state import PartitionState, ProducerTable, SegmentState
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import (
    PREALLOCATED_TAIL,
    BatchColumns,
    ScanStop,
    WindowBatches,
)
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_batch import (
    BatchFields,
    RecordRows,
    encode_batch,
    write_empty_batch,
)
from kafka_index.core.records.record_decoder import BatchDamage, RecordChunk, RecordDecoder
from kafka_index.core.records.record_table import RecordTable

#: Maximum number of keys of dropped records in memory, at about 500 bytes each.
_MAX_KEYS = 5_000_000
_COMMITTED, _ABORTED = -1, -2
#: Called after the first pass has read a segment, from any thread.
OnRead = Callable[[SegmentFile], None]
_NO_OFFSET = -1


def is_internal(partition: TopicPartition) -> bool:
    """Return whether the topic is an internal topic of Kafka, which a rewrite never filters."""
    return partition.topic in INTERNAL_TOPICS


def ignore(_segment: SegmentFile) -> None: ...


@dataclass(frozen=True, slots=True)
class PartitionMatch:
    """The effect of a rewrite on a partition; small and picklable.

    Attributes
    ----------
    records
        Number of data records.
    dropped
        Number of dropped records.
    revived
        Offset of a dropped record, and offset of the older record with its key that would become
        current. None if no record would become current.
    producer_ends
        Last offset of each producer's last batch, sorted. These batches stay even if they lose all
        records.
    unstable_offset
        First offset of the earliest open transaction, None if there is none. Transactional batches
        from this offset on stay even if they lose all records.
    end_offset
        The log end offset. The last batch stays even if it loses all records.
    losing
        Base offsets of the segments that lose records.
    note
        Describes a torn batch at the end of the active segment, which is not copied. A broker
        truncates it at startup.
    seen
        The offsets in each ``.log`` file.
    by_key
        Number of dropped records by key, as in `KeyMatcher`.
    """

    records: int
    dropped: int
    revived: tuple[int, int] | None
    producer_ends: Longs
    unstable_offset: int | None
    end_offset: int
    losing: frozenset[int] = frozenset()
    note: str | None = None
    seen: tuple[ScannedLog, ...] = ()
    by_key: Mapping[int, int] = field(default_factory=dict)

    def stays(self, batches: BatchColumns) -> NDArray[np.bool_]:
        """Return which batches stay even if all their records are dropped.

        Source: ``Cleaner.checkBatchRetention``. The log cleaner never cleans open transactions.
        """
        with_producer = batches.producer_id >= 0
        is_required = with_producer & np.isin(batches.last_offset, self.producer_ends)
        is_required |= batches.last_offset + 1 == self.end_offset
        if self.unstable_offset is not None:
            is_open = batches.attributes & TRANSACTIONAL_MASK != 0
            is_open &= batches.control_type != CONTROL_MESSAGE
            is_required |= with_producer & is_open & (batches.last_offset >= self.unstable_offset)
        return is_required


def match_partition(
    segments: Sequence[SegmentFile],
    selection: Selection,
    state: PartitionState,
    *,
    max_decompressed_bytes: int,
    checks_revival: bool,
    on_read: OnRead = ignore,
) -> PartitionMatch:
    """Find the records to drop, and whether older records of their keys would become current.

    The segments are applied to `state`. `on_read` is called after the first pass over each segment.
    """
    matcher = RecordMatcher(selection, max_decompressed_bytes)
    # A selection by keys drops all records of a key, so no older record remains.
    revival = Revival() if checks_revival and selection.condition is not None else None
    aborted: list[NDArray[np.void]] = []
    notes: list[str] = []
    losing: set[int] = set()
    scanned_logs: list[ScannedLog] = []
    budget = shared_budget(max_decompressed_bytes)
    records = dropped_records = 0
    end_offset = segments[0].base_offset
    for segment in segments:
        table = ProducerTable()
        offsets = LogOffsets(segment.base_offset)
        scanned_logs.append(ScannedLog(segment, offsets, has_counts=True))
        # The log end offset is at least the base offset of an empty last segment.
        end_offset = max(end_offset, segment.base_offset)
        for source in verified_windows(segment, notes):
            offsets.observe_records(source.window, source.position_bytes, source.batches, budget)
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
            for source in verified_windows(segment):
                data = data_batches(source)
                batch_outcomes = outcomes.of_batches(data.batches)
                for numbers, rows, dropped in matcher.match(data, segment):
                    revival.note_records(rows, dropped, batch_outcomes[numbers])
    open_offsets = entries["current_txn_first_offset"]
    open_offsets = open_offsets[open_offsets >= 0]
    return PartitionMatch(
        records,
        dropped_records,
        None if revival is None else revival.find(),
        np.sort(entries["last_offset"][entries["last_offset"] >= 0]),
        int(open_offsets.min()) if len(open_offsets) else None,
        end_offset,
        frozenset(losing),
        notes[0] if notes else None,
        tuple(scanned_logs),
        dict(matcher.counts),
    )


def verified_windows(
    segment: SegmentFile, notes: list[str] | None = None
) -> Iterator[WindowBatches]:
    """Yield the verified batches of a segment.

    A torn last batch of the active segment is omitted, and described in `notes`.
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
        notes.append(_describe_tail(segment, stop, order.next_offset))


def _describe_tail(segment: SegmentFile, stop: ScanStop, end_offset: int) -> str:
    """Describe the torn last batch of an active segment, which a broker truncates at startup.

    Raises `CorruptLogError` if the log ends below the high watermark or the recovery point.
    """
    root = DataDirectory(os.path.dirname(segment.partition_directory))
    committed = root.committed_end(TopicPartition(segment.topic, segment.partition))
    if committed > end_offset:
        raise CorruptLogError(
            "committed records are lost: the last batch is torn, and the log ends below the high "
            "watermark or the recovery point",
            path=segment.log_path,
            position_bytes=stop.position_bytes,
            expected=f"an end offset of {committed} or more",
            found=end_offset,
            hint="restore the partition from another replica",
        )
    tail_bytes = segment.log_size_bytes - stop.position_bytes
    return f"{segment.log_path}: a torn last batch is skipped ({tail_bytes:,} B)"


def data_batches(source: WindowBatches) -> WindowBatches:
    is_data = ~source.batches.is_control
    return source if is_data.all() else source.select(is_data)


class RecordMatcher:
    """Decodes the record columns that a selection needs, and selects the records to drop."""

    def __init__(self, selection: Selection, max_decompressed_bytes: int) -> None:
        self._matcher = open_matcher(selection)
        self._columns = tuple(dict.fromkeys(("offset", "key", *selection.columns)))
        # The decoded fields do not depend on topic and partition, so any table works here.
        field_names = RecordTable("", -1, self._columns).parts
        self._decoder = RecordDecoder(
            shared_budget(max_decompressed_bytes), field_names, verify_crc=True
        )

    @property
    def counts(self) -> Mapping[int, int]:
        """The number of matching records by key, as in `KeyMatcher`; empty for a condition."""
        return self._matcher.counts if isinstance(self._matcher, KeyMatcher) else {}

    def match(
        self, source: WindowBatches, segment: SegmentFile
    ) -> Iterator[tuple[Longs, pa.RecordBatch, NDArray[np.bool_]]]:
        """Yield chunks of records, each with batch numbers and a mask of the records to drop."""
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
    """Decode batches; raise an error if a batch is corrupt."""
    positions = source.batches.position_bytes
    for decoded in decoder.decode(
        source.window, positions - source.position_bytes, source.batches.size_bytes, convert
    ):
        if isinstance(decoded, BatchDamage):
            raise decoded.error.at(segment.log_path, int(positions[decoded.batch]))
        yield decoded


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcome of each transaction of a partition.

    `opened` has the first offsets of open transactions, keyed by producer ID.
    """

    aborted: AbortedTransactions
    opened: dict[int, int]

    @classmethod
    def of(cls, aborted: Sequence[NDArray[np.void]], producers: NDArray[np.void]) -> Outcomes:
        """Combine a partition's transaction index entries with the producers at its log end."""
        is_open = producers["current_txn_first_offset"] >= 0
        ids = producers["producer_id"][is_open].tolist()
        firsts = producers["current_txn_first_offset"][is_open].tolist()
        return cls(AbortedTransactions.of_entries(aborted), dict(zip(ids, firsts, strict=True)))

    def of_batches(self, batches: BatchColumns) -> Longs:
        """Return the outcome of each batch.

        -1 means committed or not transactional, and -2 aborted. The outcome of a batch in an open
        transaction is its producer ID.
        """
        outcomes = np.where(self.aborted.mask(batches), _ABORTED, _COMMITTED)
        in_transaction = batches.attributes & TRANSACTIONAL_MASK != 0
        in_transaction &= batches.control_type != CONTROL_MESSAGE
        for producer, first_offset in self.opened.items():
            is_open = in_transaction & (batches.producer_id == producer)
            outcomes[is_open & (batches.base_offset >= first_offset)] = producer
        return outcomes


@dataclass(slots=True)
class _KeyView:
    """The newest records of a key for one isolation level."""

    #: `older` is the offset of the newest record that stays, and `dropped` the offset of the newest
    #: dropped record after it.
    older: int = _NO_OFFSET
    dropped: int = _NO_OFFSET

    def drop(self, offset: int) -> None:
        if self.older != _NO_OFFSET:
            self.dropped = offset

    def keep(self, offset: int) -> None:
        self.older, self.dropped = offset, _NO_OFFSET


@dataclass(slots=True)
class _KeyRecords:
    """The records of a key that the second pass has read so far."""

    uncommitted: _KeyView = field(default_factory=_KeyView)
    #: The records for read_committed if all open transactions abort.
    committed: _KeyView = field(default_factory=_KeyView)
    #: Keyed by the producer ID of an open transaction. The offset of its newest dropped record that
    #: no later committed record replaces, and of the older record that would become current.
    opened: dict[int, tuple[int, int]] = field(default_factory=dict)

    def drop(self, offset: int, outcome: int) -> None:
        self.uncommitted.drop(offset)
        if outcome == _COMMITTED:
            self.committed.drop(offset)
        elif outcome != _ABORTED and self.committed.older != _NO_OFFSET:
            self.opened[outcome] = offset, self.committed.older

    def keep(self, offset: int, outcome: int) -> None:
        self.uncommitted.keep(offset)
        if outcome == _COMMITTED:
            self.committed.keep(offset)
            self.opened.clear()
        elif outcome != _ABORTED:
            self.opened.pop(outcome, None)
            if self.committed.dropped == _NO_OFFSET:
                self.committed.older = offset

    def revived(self) -> tuple[int, int] | None:
        """Return the offset of a dropped record, and of an older one that would become current."""
        for view in (self.uncommitted, self.committed):
            if view.dropped != _NO_OFFSET:
                return view.dropped, view.older
        return max(self.opened.values(), default=None)


class Revival:
    """Collects the keys of dropped records, then finds older records that would become current."""

    def __init__(self) -> None:
        self._keys: dict[bytes, _KeyRecords | None] = {}

    @property
    def has_keys(self) -> bool:
        """Whether any dropped record has a key."""
        return bool(self._keys)

    def note_keys(self, rows: pa.RecordBatch, dropped: NDArray[np.bool_]) -> None:
        keys = rows.column("key").filter(pa.array(dropped)).unique().to_pylist()
        self._keys |= dict.fromkeys(key for key in keys if key is not None)
        if len(self._keys) > _MAX_KEYS:
            raise SelectionError(
                "the condition drops records of too many keys to find the records that would "
                "reappear",
                expected=f"{_MAX_KEYS} keys or fewer",
                hint="rewrite topic by topic, or give --allow-revive",
            )

    def note_records(
        self, rows: pa.RecordBatch, dropped: NDArray[np.bool_], outcomes: Longs
    ) -> None:
        """Process a chunk of records in the second pass, with results of `Outcomes.of_batches`."""
        offsets = rows.column("offset").to_pylist()
        keys = rows.column("key").to_pylist()
        key_records = self._keys
        for row, key in enumerate(keys):
            if key not in key_records:
                continue
            records = key_records[key]
            if records is None:
                records = key_records[key] = _KeyRecords()
            update = records.drop if dropped[row] else records.keep
            update(offsets[row], int(outcomes[row]))

    def find(self) -> tuple[int, int] | None:
        """Return the offset of a dropped record, and of an older one that would become current."""
        for records in self._keys.values():
            revived = None if records is None else records.revived()
            if revived is not None:
                return revived
        return None


_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


class SegmentRewriter:
    """Rewrites the segments of one partition with the `PartitionMatch` of the first pass."""

    def __init__(
        self, match: PartitionMatch, selection: Selection, max_decompressed_bytes: int
    ) -> None:
        self._match = match
        self._matcher = RecordMatcher(selection, max_decompressed_bytes)
        self._decoder = RecordDecoder(shared_budget(max_decompressed_bytes), verify_crc=True)

    def rewrite(self, segment: SegmentFile, path: str) -> SegmentFile:
        """Write the ``.log`` file without the dropped records to `path`; return the new segment."""
        try:
            with open(path, "xb") as file:
                for source in verified_windows(segment):
                    self._write(source, segment, file)
                file.flush()
                status = os.fstat(file.fileno())
        except OSError as error:
            raise publish_error(error, path, "write the log") from error
        return segment.copied_to(path, status)

    def _write(self, source: WindowBatches, segment: SegmentFile, file: BinaryIO) -> None:
        """Write the batches of a window; copy consecutive unchanged batches with a single write."""
        batches = source.batches
        replacements = dict(self._rewrite_batches(source, segment)) if self._match.dropped else {}
        next_batch = 0
        for number in sorted(replacements):
            _copy_batches(source, next_batch, number, file)
            file.write(replacements[number])
            next_batch = number + 1
        _copy_batches(source, next_batch, batches.rows, file)

    def _rewrite_batches(
        self, source: WindowBatches, segment: SegmentFile
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the number of each batch that loses records, and the bytes that replace it."""
        data = data_batches(source)
        masks = self._match_batches(data, segment)
        if not masks:
            return
        changed = np.array(sorted(masks))
        changed_batches = data.select(changed)
        headers = changed_batches.read_headers()
        stays = self._match.stays(changed_batches.batches)
        batch_numbers = np.searchsorted(
            source.batches.position_bytes, changed_batches.batches.position_bytes
        )
        remaining = self._read_remaining_rows(
            changed_batches, [masks[int(number)] for number in changed], segment
        )
        for row, batch_number in enumerate(batch_numbers.tolist()):
            rows = remaining.get(row)
            if rows is not None:
                yield batch_number, _encode_remaining(changed_batches.batches, headers, row, rows)
            elif stays[row]:
                yield batch_number, _encode_empty(changed_batches.batches, headers, row)
            else:
                yield batch_number, b""

    def _match_batches(
        self, data: WindowBatches, segment: SegmentFile
    ) -> dict[int, list[NDArray[np.bool_]]]:
        masks: dict[int, list[NDArray[np.bool_]]] = defaultdict(list)
        losing: set[int] = set()
        for numbers, _, dropped in self._matcher.match(data, segment):
            losing.update(np.unique(numbers[dropped]).tolist())
            for number, rows in _group_rows(numbers):
                masks[number].append(dropped[rows])
        return {number: masks[number] for number in losing}

    def _read_remaining_rows(
        self,
        source: WindowBatches,
        dropped: list[list[NDArray[np.bool_]]],
        segment: SegmentFile,
    ) -> Mapping[int, pa.RecordBatch]:
        table = RecordTable(segment.topic, segment.partition, _COLUMNS)
        numbers = np.arange(source.batches.rows)

        def convert(chunk: RecordChunk) -> tuple[Longs, pa.RecordBatch]:
            return chunk.of_batches(numbers), table.convert(chunk, source)

        masks = [np.concatenate(chunks) for chunks in dropped]
        row_counts: dict[int, int] = defaultdict(int)
        remaining: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        for batch_numbers, rows in decode(self._decoder, source, segment, convert):
            for number, row_range in _group_rows(batch_numbers):
                start = row_counts[number]
                row_counts[number] += row_range.stop - row_range.start
                stays = ~masks[number][start : row_counts[number]]
                if stays.any():
                    remaining[number].append(
                        rows.slice(row_range.start, len(stays)).filter(pa.array(stays))
                    )
        return {number: pa.concat_batches(chunks) for number, chunks in remaining.items()}


def _group_rows(numbers: Longs) -> Iterator[tuple[int, slice]]:
    """Yield each distinct number of an ascending column, and the range of rows with this number."""
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        if end > start:
            yield int(numbers[start]), slice(start, end)


def _copy_batches(source: WindowBatches, first: int, end: int, file: BinaryIO) -> None:
    if end > first:
        batches = source.batches
        start = int(batches.position_bytes[first]) - source.position_bytes
        stop = int(batches.position_bytes[end - 1] + batches.size_bytes[end - 1])
        file.write(source.window[start : stop - source.position_bytes].data)


def _header_fields(batches: BatchColumns, headers: Longs, row: int) -> BatchFields:
    """Return the header fields of a batch that cannot be computed from its records."""
    attributes = int(batches.attributes[row])
    append_time = attributes & TIMESTAMP_TYPE_MASK
    fields = BatchFields(
        compression=COMPRESSION_NAMES[attributes & COMPRESSION_MASK],
        log_append_time_ms=int(batches.max_timestamp_ms[row]) if append_time else None,
    )
    if int(batches.magic[row]) < MAGIC_RECORD_BATCH:
        return replace(
            fields,
            leader_epoch=NO_LEADER_EPOCH,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
        )
    has_horizon = attributes & DELETE_HORIZON_MASK
    return replace(
        fields,
        leader_epoch=int(batches.leader_epoch[row]),
        producer_id=int(batches.producer_id[row]),
        producer_epoch=int(headers[HEADER_PRODUCER_EPOCH, row]),
        base_sequence=int(headers[HEADER_BASE_SEQUENCE, row]),
        is_transactional=bool(attributes & TRANSACTIONAL_MASK),
        delete_horizon_ms=int(headers[HEADER_BASE_TIMESTAMP, row]) if has_horizon else None,
    )


def _encode_remaining(
    batches: BatchColumns, headers: Longs, row: int, records: pa.RecordBatch
) -> bytes:
    offsets = records.column("offset").to_numpy()
    rows = RecordRows.of_arrays(
        offsets,
        records.column("timestamp").cast(pa.int64()).to_numpy(),
        records.column("key"),
        records.column("value"),
        records.column("headers"),
    )
    is_message = int(batches.magic[row]) < MAGIC_RECORD_BATCH
    base_offset = int(offsets[0] if is_message else batches.base_offset[row])
    # The last offset stays, so that the log end offset does not decrease if the last record is
    # dropped.
    delta = int(batches.last_offset[row]) - base_offset
    fields = replace(_header_fields(batches, headers, row), last_offset_delta=delta)
    return encode_batch(rows, base_offset, fields)


def _encode_empty(batches: BatchColumns, headers: Longs, row: int) -> bytes:
    return write_empty_batch(
        int(batches.base_offset[row]),
        int(batches.last_offset[row]),
        int(batches.max_timestamp_ms[row]),
        _header_fields(batches, headers, row),
    )
