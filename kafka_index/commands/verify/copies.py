"""Comparison of two copies of a partition by the bytes of their batches.

Different batches are decoded, because only one copy may have been compacted. Records that only one
copy has are counted; they are harmful only if the topic is not compacted. The log cleaner also sets
the delete horizon and, since Kafka 4, rewrites old messages as batches. It keeps the offset range,
epoch, producer and sequence of a batch, and the remaining records (Kafka's
``MemoryRecords.filterTo``). The copies may have different segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kafka_index.commands.verify.result import (
    Classification,
    FileClass,
    FileKind,
    Finding,
    finding_of,
)
from kafka_index.core.errors import KafkaIndexError, plural
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import (
    DELETE_HORIZON_MASK,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    RECORD_BATCH_HEADER,
)
from kafka_index.core.fs.store import Bytes
from kafka_index.core.job.engine import Workers
from kafka_index.core.kernels.headers import (
    CONTROL_MESSAGE,
    HEADER_COLUMNS,
    HEADER_CRC,
    read_headers,
)
from kafka_index.core.log.missing_offsets import Cleaning
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.records.record_decoder import (
    BatchDamage,
    RecordChunk,
    RecordParts,
    decode_entry,
)

_BASE, _LAST, _EPOCH, _CRC, _SIZE, _POSITION, _IS_MESSAGE, _IS_MARKED = range(8)
_COLUMNS = 8
_FIRST, _SECOND = "the first copy", "the second copy"
# The columns that are equal for equal batches.
_COMPARED = slice(0, _SIZE + 1)

_FIXED_FIELDS = (
    "base_offset",
    "leader_epoch",
    "last_offset_delta",
    "producer_id",
    "producer_epoch",
    "base_sequence",
)
_Record = tuple[int, object, object, tuple[tuple[object, object], ...]]


@dataclass(frozen=True, slots=True)
class CopySegments:
    """A copy of a partition: its segments by base offset, and facts about compaction."""

    segments: Sequence[SegmentFile]
    cleaning: Cleaning = field(default_factory=Cleaning)


class _Copy:
    """The batches of a copy, as columns that are consumed from the front.

    The log cleaner has processed all offsets below `cleaned_to`, according to its checkpoint and
    the consumed batches. `cleaned_to` is 0 if the topic is not compacted. `thinned` is the number
    of records that batches lack, from offset `thinned_from` on. If `is_rewritten`, a batch has
    other bytes but the same records.
    """

    def __init__(self, copy: CopySegments) -> None:
        self._chunks = _batches(copy.segments)
        self.is_compacted = copy.cleaning.is_compacted
        self.cleaned_to = copy.cleaning.cleaned_to or 0
        self.rows = np.empty((_COLUMNS, 0), np.int64)
        self._window, self._start = np.empty(0, np.uint8), 0
        self.end_offset = copy.segments[0].base_offset if copy.segments else 0
        self.missing: list[tuple[int, int, int]] = []
        self.thinned, self.thinned_from = 0, 0
        self.is_rewritten = False
        self.fill()

    def is_empty(self) -> bool:
        """Return whether all batches were consumed."""
        return self.rows.shape[1] == 0

    def fill(self) -> None:
        """Read more if no batch is left."""
        while self.is_empty():
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            self._window, self._start, self.rows = chunk

    def drop(self, count: int) -> None:
        if count:
            self.end_offset = int(self.rows[_LAST, count - 1]) + 1
            marked = np.flatnonzero(self.rows[_IS_MARKED, :count])
            if len(marked) and self.is_compacted is not False:
                self.cleaned_to = max(self.cleaned_to, int(self.rows[_BASE, marked[-1]]))
            self.rows = self.rows[:, count:]
            self.fill()

    def skip_to(self, offset: int) -> None:
        """Consume the batches that end before an offset."""
        while not self.is_empty():
            count = int(np.searchsorted(self.rows[_LAST], offset))
            self.drop(count)
            if not self.is_empty() and int(self.rows[_LAST, 0]) >= offset:
                return

    def first_bytes(self, count: int = 1) -> Bytes:
        start = int(self.rows[_POSITION, 0]) - self._start
        end = int(self.rows[_POSITION, count - 1] + self.rows[_SIZE, count - 1]) - self._start
        return self._window[start:end]

    def lacks(self, other: _Copy, count: int) -> None:
        """Record that this copy lacks the first batches of another copy."""
        first, end = int(other.rows[_BASE, 0]), int(other.rows[_LAST, count - 1]) + 1
        self.missing = [*self.unexplained(), (first, end, count)]

    def thin(self, records: int) -> None:
        if records and not self.thinned:
            self.thinned_from = int(self.rows[_BASE, 0])
        self.thinned += records

    def unexplained(self) -> list[tuple[int, int, int]]:
        """Return the missing offsets that compaction does not explain, with their batches.

        Each item is first offset, end offset, and number of batches.
        """
        return [each for each in self.missing if each[1] > self.cleaned_to]


def _batches(segments: Sequence[SegmentFile]) -> Iterator[tuple[Bytes, int, Longs]]:
    for segment in segments:
        source = LogFileSource.of_segment(segment, verify_crc=False)
        for window, start, batches in source.windows():
            headers = np.empty((HEADER_COLUMNS, batches.rows), np.int64)
            read_headers(window, start, batches.position_bytes, headers)
            is_message = batches.control_type == CONTROL_MESSAGE
            counts = batches.record_count
            is_thinned = (counts >= 0) & (counts <= batches.last_offset - batches.base_offset)
            has_horizon = batches.attributes & DELETE_HORIZON_MASK != 0
            rows = np.stack(
                (
                    batches.base_offset,
                    batches.last_offset,
                    batches.leader_epoch,
                    headers[HEADER_CRC],
                    batches.size_bytes,
                    batches.position_bytes,
                    is_message.astype(np.int64),
                    (~is_message & (is_thinned | has_horizon)).astype(np.int64),
                )
            )
            yield window, start, rows


def _compare(one: _Copy, other: _Copy, budget: DecompressionBudget) -> Classification:
    start = 0
    if not (one.is_empty() or other.is_empty()):
        # Retention may have deleted more of one copy.
        start = max(int(one.rows[_BASE, 0]), int(other.rows[_BASE, 0]))
        for copy in (one, other):
            copy.skip_to(start)
        for copy in (one, other):
            if copy.is_empty() and copy.end_offset < start:
                return Classification(
                    FileClass.GAP,
                    harmful=True,
                    expected="copies with offsets in common",
                    found=f"the copies share no offset: {copy.end_offset} to {start - 1} are in "
                    "neither",
                    effect="Records are missing in both, unless compaction has removed them.",
                )
    while not (one.is_empty() or other.is_empty()):
        count = min(one.rows.shape[1], other.rows.shape[1])
        pairs = one.rows[_COMPARED, :count] != other.rows[_COMPARED, :count]
        unequal = np.flatnonzero(pairs.any(axis=0))
        same = int(unequal[0]) if len(unequal) else count
        damaged = _unequal_bytes(one, other, same) if same else None
        if damaged is not None:
            return damaged
        one.drop(same)
        other.drop(same)
        if same == count:
            continue
        bases = int(one.rows[_BASE, 0]), int(other.rows[_BASE, 0])
        is_message = one.rows[_IS_MESSAGE, 0] or other.rows[_IS_MESSAGE, 0]
        lacking = None
        if bases[0] == bases[1] or is_message:
            lacking = lacking_records(one.first_bytes(), other.first_bytes(), budget)
        if lacking is not None:
            one.thin(lacking[0])
            other.thin(lacking[1])
            one.is_rewritten = True
            one.drop(1)
            other.drop(1)
        elif bases[0] != bases[1]:
            _drop_missing(one, other, is_message=bool(is_message))
        else:
            epochs = f"{int(one.rows[_EPOCH, 0])} and {int(other.rows[_EPOCH, 0])}"
            return Classification(
                FileClass.DIVERGED,
                harmful=True,
                expected=f"one batch at offset {bases[0]}",
                found=f"diverged at offset {bases[0]} under epochs {epochs}",
                effect="Only one copy has the committed records: do not merge the copies.",
            )
    return _classify_rest(one, other, start)


def _unequal_bytes(one: _Copy, other: _Copy, count: int) -> Classification | None:
    """Classify the first batches with equal headers and different bytes; None if all are equal."""
    unequal = np.flatnonzero(one.first_bytes(count) != other.first_bytes(count))
    if not len(unequal):
        return None
    at = int(unequal[0]) + int(one.rows[_POSITION, 0])
    batch = int(np.searchsorted(one.rows[_POSITION, :count], at, side="right")) - 1
    offset = int(one.rows[_BASE, batch])
    return Classification(
        FileClass.BAD_CRC,
        harmful=True,
        expected=f"equal bytes in the batch at offset {offset}, as both checksums are equal",
        found=f"other bytes in the batch at offset {offset}",
        effect="One of the batches does not match its checksum: verify each copy.",
    )


def _classify_rest(one: _Copy, other: _Copy, start: int) -> Classification:
    """Classify copies that did not diverge, reading them to their ends."""
    ends = _end(one), _end(other)
    lacking = [
        f"{side} lacks {sum(count for *_, count in missing)} batches from offset {missing[0][0]} on"
        for side, copy in ((_SECOND, other), (_FIRST, one))
        if (missing := copy.unexplained())
    ]
    if lacking:
        where = "one copy" if len(lacking) == 1 else "both copies"
        return Classification(
            FileClass.GAP,
            harmful=True,
            expected="the same batches in both copies",
            found="; ".join(lacking),
            effect=f"Records are missing in {where}, unless compaction has removed them.",
        )
    thinned = [
        f"{side} lacks {plural(copy.thinned, 'record')} inside batches from offset "
        f"{copy.thinned_from} on"
        for side, copy in ((_SECOND, other), (_FIRST, one))
        if copy.thinned
    ]
    if thinned:
        known = {one.is_compacted, other.is_compacted}
        effects = {
            True: "Compaction removes records from batches.",
            None: "It is unknown without --metadata whether compaction removed the records.",
            False: "The records are lost: the topic is not compacted.",
        }
        reason = next(each for each in (True, False, None) if each in known)
        return Classification(
            FileClass.THINNED,
            harmful=reason is False,
            expected="the same records in both copies",
            found="; ".join(thinned),
            effect=effects[reason],
        )
    if ends[0] == ends[1]:
        was_cleaned = one.missing or other.missing or one.is_rewritten
        cleaned = ", except for batches that compaction removed or rewrote" if was_cleaned else ""
        found = f"equal from offset {start} up to offset {ends[0]}{cleaned}"
        return Classification(
            FileClass.EQUIVALENT if was_cleaned else FileClass.IDENTICAL, found=found
        )
    return Classification(
        FileClass.PREFIX,
        expected=f"offset {max(ends)}",
        found=f"{_FIRST if ends[0] < ends[1] else _SECOND} ends at offset {min(ends)}"
        f"{'' if start < min(ends) else ': no offset is in both'}",
        effect="The shorter copy lacks the last batches of the other copy. All other batches are "
        "equal.",
    )


def _drop_missing(one: _Copy, other: _Copy, *, is_message: bool) -> None:
    """Consume batches of one copy up to the offset of the other copy's next batch."""
    bases = int(one.rows[_BASE, 0]), int(other.rows[_BASE, 0])
    ahead, behind = (other, one) if bases[0] < bases[1] else (one, other)
    # The first offset of a compressed message is inside, so messages are compared one by one.
    count = 1 if is_message else int(np.searchsorted(behind.rows[_BASE], max(bases)))
    ahead.lacks(behind, count)
    behind.drop(count)


def _end(copy: _Copy) -> int:
    while not copy.is_empty():
        copy.drop(copy.rows.shape[1])
    return copy.end_offset


def comparison_finding(copies: tuple[CopySegments, CopySegments], _attempt_id: str) -> Finding:
    """Return the row of a partition with two copies; an unreadable copy is a row too."""
    first, second = copies
    segment = (first.segments or second.segments)[-1]
    row = finding_of(segment, segment.partition_directory, FileKind.COPY, FileClass.MISSING)
    if not first.segments or not second.segments:
        side = _SECOND if first.segments else _FIRST
        effect = f"{side.capitalize()} does not have the partition."
        return row.classified(Classification(FileClass.MISSING, harmful=True, effect=effect))
    budget = shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
    try:
        return row.classified(_compare(_Copy(first), _Copy(second), budget))
    except KafkaIndexError as error:
        return row.unreadable(error)


def compare_partitions(
    workers: Workers, pairs: Sequence[tuple[CopySegments, CopySegments]]
) -> Iterator[Finding]:
    """Yield the rows of pairs of copies, in order."""
    sizes = [sum(each.log_size_bytes for each in first.segments) for first, _ in pairs]
    return workers.run(
        pairs, comparison_finding, sizes=sizes, what="compare {:,} partitions", ordered=True
    )


class _Batch(NamedTuple):
    magic: int
    is_marked: bool
    fixed_fields: tuple[int, ...]
    records: dict[int, _Record]


def lacking_records(
    first: Bytes, second: Bytes, budget: DecompressionBudget
) -> tuple[int, int] | None:
    """Return the number of records that each of two complete entries lacks and the other has.

    None if they differ in more than the log cleaner changes.
    """
    try:
        one, other = _read(first, budget), _read(second, budget)
    except KafkaIndexError:
        return None
    if one is None or other is None:
        return None
    common = one.records.keys() & other.records.keys()
    if min(one.magic, other.magic) < MAGIC_RECORD_BATCH:
        is_changed = one.magic != other.magic or one.records.keys() != other.records.keys()
        may_be_one = bool(common) and is_changed
    else:
        may_be_one = one.fixed_fields == other.fixed_fields and (one.is_marked or other.is_marked)
    if not may_be_one or any(one.records[offset] != other.records[offset] for offset in common):
        return None
    return len(other.records) - len(common), len(one.records) - len(common)


def _read(entry: Bytes, budget: DecompressionBudget) -> _Batch | None:
    """Return an entry with its records; None if they cannot be read."""
    records: dict[int, _Record] = {}
    for found in decode_entry(entry, budget, _records, RecordParts.ALL):
        if isinstance(found, BatchDamage):
            return None
        records |= found
    magic = int(entry[MAGIC_POSITION])
    if magic < MAGIC_RECORD_BATCH:
        return _Batch(magic, is_marked=False, fixed_fields=(), records=records)
    header = np.frombuffer(entry, RECORD_BATCH_HEADER, 1)[0]
    attributes = int(header["attributes"])
    is_thinned = len(records) <= int(header["last_offset_delta"])
    return _Batch(
        magic,
        # Only the log cleaner writes such a batch.
        is_thinned or bool(attributes & DELETE_HORIZON_MASK),
        (attributes & ~DELETE_HORIZON_MASK, *(int(header[name]) for name in _FIXED_FIELDS)),
        records,
    )


def _records(chunk: RecordChunk) -> dict[int, _Record]:
    headers: list[tuple[object, object]] = []
    if chunk.has_headers:
        names, values = chunk.header_columns()
        headers = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
    ends = np.cumsum(chunk.header_counts()).tolist()
    starts = [0, *ends[:-1]]
    return {
        offset: (timestamp, key, value, tuple(headers[start:end]))
        for offset, timestamp, key, value, start, end in zip(
            chunk.offsets.tolist(),
            chunk.timestamps_ms.tolist(),
            _values(chunk.keys),
            _values(chunk.values),
            starts,
            ends,
            strict=True,
        )
    }


def _values(column: pa.Array | None) -> list[object]:
    return [] if column is None else column.to_pylist()
