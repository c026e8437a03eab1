"""Comparison of two copies of a partition by the bytes of their batches.

The copies may have different segments. If two batches differ, they are decoded, because the log
cleaner may have processed only one copy. The cleaner removes records, sets the delete horizon and,
since Kafka 4, rewrites old messages as batches. It changes neither the offset range, epoch,
producer and sequence of a batch nor the remaining records (Kafka's ``MemoryRecords.filterTo``).
Records that only one copy has are counted. The difference is harmful only if the topic is not
compacted.
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
    new_finding,
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

_BASE, _LAST, _EPOCH, _CRC, _SIZE, _POSITION, _IS_MESSAGE, _IS_CLEANED = range(8)
_COLUMNS = 8
_FIRST, _SECOND = "the first copy", "the second copy"
# The columns that are compared: they are equal if both copies have the same batch.
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
    """One copy of a partition: its segments by base offset, and its compaction."""

    segments: Sequence[SegmentFile]
    cleaning: Cleaning = field(default_factory=Cleaning)


class _Copy:
    """The batches of one copy of a partition, as columns that are consumed in offset order.

    Attributes
    ----------
    cleaned_to
        The log cleaner has processed all offsets below this offset, according to the cleaner
        checkpoint and the consumed batches. 0 if neither shows any compaction.
    thinned, thinned_from
        Number of records that batches of this copy lack, compared with the other copy, and the base
        offset of the first of these batches.
    is_rewritten
        Whether the log cleaner rewrote a batch in one of the copies. Set only in the first copy.
    """

    def __init__(self, copy_segments: CopySegments) -> None:
        self._chunks = _read_batches(copy_segments.segments)
        self.is_compacted = copy_segments.cleaning.is_compacted
        self.cleaned_to = copy_segments.cleaning.cleaned_to or 0
        self.rows = np.empty((_COLUMNS, 0), np.int64)
        self._window, self._start = np.empty(0, np.uint8), 0
        self.end_offset = copy_segments.segments[0].base_offset if copy_segments.segments else 0
        self.missing: list[tuple[int, int, int]] = []
        self.thinned, self.thinned_from = 0, 0
        self.is_rewritten = False
        self.fill()

    def is_empty(self) -> bool:
        """Return whether all batches were consumed."""
        return self.rows.shape[1] == 0

    def fill(self) -> None:
        """Read the next chunk of batches if all batches in `rows` were consumed."""
        while self.is_empty():
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            self._window, self._start, self.rows = chunk

    def consume(self, batch_count: int) -> None:
        if batch_count:
            self.end_offset = int(self.rows[_LAST, batch_count - 1]) + 1
            marked_rows = np.flatnonzero(self.rows[_IS_CLEANED, :batch_count])
            if len(marked_rows) and self.is_compacted is not False:
                self.cleaned_to = max(self.cleaned_to, int(self.rows[_BASE, marked_rows[-1]]))
            self.rows = self.rows[:, batch_count:]
            self.fill()

    def skip_to(self, offset: int) -> None:
        """Consume the batches that end before an offset."""
        while not self.is_empty():
            batch_count = int(np.searchsorted(self.rows[_LAST], offset))
            self.consume(batch_count)
            if not self.is_empty() and int(self.rows[_LAST, 0]) >= offset:
                return

    def first_bytes(self, batch_count: int = 1) -> Bytes:
        start_bytes = int(self.rows[_POSITION, 0]) - self._start
        end_bytes = (
            int(self.rows[_POSITION, batch_count - 1] + self.rows[_SIZE, batch_count - 1])
            - self._start
        )
        return self._window[start_bytes:end_bytes]

    def add_missing_range(self, complete_copy: _Copy, batch_count: int) -> None:
        """Add a missing range: the next `batch_count` batches of `complete_copy`."""
        first_offset, end_offset = (
            int(complete_copy.rows[_BASE, 0]),
            int(complete_copy.rows[_LAST, batch_count - 1]) + 1,
        )
        self.missing = [*self.unexplained_ranges(), (first_offset, end_offset, batch_count)]

    def add_lacking_records(self, records: int) -> None:
        if records and not self.thinned:
            self.thinned_from = int(self.rows[_BASE, 0])
        self.thinned += records

    def unexplained_ranges(self) -> list[tuple[int, int, int]]:
        """Return the ranges that this copy lacks, and that compaction does not explain.

        Each item is the first offset, the end offset, and the number of batches in the other copy.
        """
        return [
            missing_range for missing_range in self.missing if missing_range[1] > self.cleaned_to
        ]


def _read_batches(segments: Sequence[SegmentFile]) -> Iterator[tuple[Bytes, int, Longs]]:
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


def _compare(first_copy: _Copy, second_copy: _Copy, budget: DecompressionBudget) -> Classification:
    start_offset = 0
    if not (first_copy.is_empty() or second_copy.is_empty()):
        # Retention may have deleted the first segments of only one copy.
        start_offset = max(int(first_copy.rows[_BASE, 0]), int(second_copy.rows[_BASE, 0]))
        for copy in (first_copy, second_copy):
            copy.skip_to(start_offset)
        for copy in (first_copy, second_copy):
            if copy.is_empty() and copy.end_offset < start_offset:
                return Classification(
                    FileClass.GAP,
                    harmful=True,
                    expected="common offsets",
                    found="the copies have no common offset, and neither copy has offsets "
                    f"{copy.end_offset} to {start_offset - 1}",
                    effect="Records are missing in both copies, unless compaction removed these "
                    "records.",
                )
    while not (first_copy.is_empty() or second_copy.is_empty()):
        batch_count = min(first_copy.rows.shape[1], second_copy.rows.shape[1])
        is_unequal = (
            first_copy.rows[_COMPARED, :batch_count] != second_copy.rows[_COMPARED, :batch_count]
        )
        unequal_rows = np.flatnonzero(is_unequal.any(axis=0))
        equal_count = int(unequal_rows[0]) if len(unequal_rows) else batch_count
        classification = (
            _classify_unequal_bytes(first_copy, second_copy, equal_count) if equal_count else None
        )
        if classification is not None:
            return classification
        first_copy.consume(equal_count)
        second_copy.consume(equal_count)
        if equal_count == batch_count:
            continue
        base_offsets = int(first_copy.rows[_BASE, 0]), int(second_copy.rows[_BASE, 0])
        is_message = first_copy.rows[_IS_MESSAGE, 0] or second_copy.rows[_IS_MESSAGE, 0]
        lacking_counts = None
        if base_offsets[0] == base_offsets[1] or is_message:
            lacking_counts = count_lacking_records(
                first_copy.first_bytes(), second_copy.first_bytes(), budget
            )
        if lacking_counts is not None:
            first_copy.add_lacking_records(lacking_counts[0])
            second_copy.add_lacking_records(lacking_counts[1])
            first_copy.is_rewritten = True
            first_copy.consume(1)
            second_copy.consume(1)
        elif base_offsets[0] != base_offsets[1]:
            _drop_missing(first_copy, second_copy, is_message=bool(is_message))
        else:
            epochs = f"{int(first_copy.rows[_EPOCH, 0])} and {int(second_copy.rows[_EPOCH, 0])}"
            return Classification(
                FileClass.DIVERGED,
                harmful=True,
                expected=f"equal batches at offset {base_offsets[0]}",
                found=f"different batches at offset {base_offsets[0]}, with leader epochs {epochs}",
                effect="Only one copy has the committed records: do not merge the copies.",
            )
    return _classify_undiverged(first_copy, second_copy, start_offset)


def _classify_unequal_bytes(
    first_copy: _Copy, second_copy: _Copy, batch_count: int
) -> Classification | None:
    """Classify the first batch with equal headers and different bytes; None if there is none."""
    unequal_positions = np.flatnonzero(
        first_copy.first_bytes(batch_count) != second_copy.first_bytes(batch_count)
    )
    if not len(unequal_positions):
        return None
    position_bytes = int(unequal_positions[0]) + int(first_copy.rows[_POSITION, 0])
    row = (
        int(np.searchsorted(first_copy.rows[_POSITION, :batch_count], position_bytes, side="right"))
        - 1
    )
    offset = int(first_copy.rows[_BASE, row])
    return Classification(
        FileClass.BAD_CRC,
        harmful=True,
        expected=f"equal bytes in the batch at offset {offset}, whose checksums are equal",
        found=f"different bytes in the batch at offset {offset}",
        effect="One of the two batches does not match its checksum: verify both copies.",
    )


def _classify_undiverged(
    first_copy: _Copy, second_copy: _Copy, start_offset: int
) -> Classification:
    """Read both copies to their ends, and classify them; no batches have diverged so far."""
    end_offsets = _read_end_offset(first_copy), _read_end_offset(second_copy)
    lacking = []
    for copy_name, copy in ((_SECOND, second_copy), (_FIRST, first_copy)):
        if missing_ranges := copy.unexplained_ranges():
            batches = plural(
                sum(batch_count for *_, batch_count in missing_ranges), "batch", "batches"
            )
            lacking.append(f"{copy_name} lacks {batches} from offset {missing_ranges[0][0]} on")
    if lacking:
        incomplete_copies = "one copy" if len(lacking) == 1 else "both copies"
        return Classification(
            FileClass.GAP,
            harmful=True,
            expected="the same batches in both copies",
            found="; ".join(lacking),
            effect=f"Records are missing in {incomplete_copies}, unless compaction removed these "
            "records.",
        )
    thinned = [
        f"{copy_name} lacks {plural(copy.thinned, 'record')} inside batches from offset "
        f"{copy.thinned_from} on"
        for copy_name, copy in ((_SECOND, second_copy), (_FIRST, first_copy))
        if copy.thinned
    ]
    if thinned:
        compaction_states = {first_copy.is_compacted, second_copy.is_compacted}
        effects = {
            True: "Compaction removes records from batches.",
            None: "It is unknown without --metadata whether compaction removed the records.",
            False: "The records are lost: the topic is not compacted.",
        }
        compaction_state = next(
            is_compacted
            for is_compacted in (True, False, None)
            if is_compacted in compaction_states
        )
        return Classification(
            FileClass.THINNED,
            harmful=compaction_state is False,
            expected="the same records in both copies",
            found="; ".join(thinned),
            effect=effects[compaction_state],
        )
    if end_offsets[0] == end_offsets[1]:
        was_cleaned = first_copy.missing or second_copy.missing or first_copy.is_rewritten
        exception = ", except for batches that compaction removed or rewrote" if was_cleaned else ""
        comparison = f"equal from offset {start_offset} up to offset {end_offsets[0]}{exception}"
        return Classification(
            FileClass.EQUIVALENT if was_cleaned else FileClass.IDENTICAL, found=comparison
        )
    return Classification(
        FileClass.PREFIX,
        expected=f"offset {max(end_offsets)}",
        found=f"{_FIRST if end_offsets[0] < end_offsets[1] else _SECOND} ends at offset "
        f"{min(end_offsets)}"
        f"{'' if start_offset < min(end_offsets) else ', and no offset is in both copies'}",
        effect="The shorter copy lacks the last batches of the other copy. All other batches are "
        "equal.",
    )


def _drop_missing(first_copy: _Copy, second_copy: _Copy, *, is_message: bool) -> None:
    """Consume batches of one copy up to the offset of the other copy's next batch."""
    base_offsets = int(first_copy.rows[_BASE, 0]), int(second_copy.rows[_BASE, 0])
    ahead, behind = (
        (second_copy, first_copy)
        if base_offsets[0] < base_offsets[1]
        else (first_copy, second_copy)
    )
    # Without decoding, only the last offset of a compressed message is known: consume one message.
    count = 1 if is_message else int(np.searchsorted(behind.rows[_BASE], max(base_offsets)))
    ahead.add_missing_range(behind, count)
    behind.consume(count)


def _read_end_offset(copy: _Copy) -> int:
    while not copy.is_empty():
        copy.consume(copy.rows.shape[1])
    return copy.end_offset


def compare_copies(copies: tuple[CopySegments, CopySegments], _attempt_id: str) -> Finding:
    """Compare two copies of a partition; the finding is ``unreadable`` if a read fails."""
    first_copy, second_copy = copies
    segment = (first_copy.segments or second_copy.segments)[-1]
    finding = new_finding(segment, segment.partition_directory, FileKind.COPY, FileClass.MISSING)
    if not first_copy.segments or not second_copy.segments:
        copy_name = _SECOND if first_copy.segments else _FIRST
        effect = f"{copy_name.capitalize()} does not have the partition."
        return finding.classified(Classification(FileClass.MISSING, harmful=True, effect=effect))
    budget = shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
    try:
        return finding.classified(_compare(_Copy(first_copy), _Copy(second_copy), budget))
    except KafkaIndexError as error:
        return finding.unreadable(error)


def compare_partitions(
    workers: Workers, pairs: Sequence[tuple[CopySegments, CopySegments]]
) -> Iterator[Finding]:
    """Compare pairs of copies; yield a finding per pair, in the order of `pairs`."""
    sizes = [
        sum(segment.log_size_bytes for segment in first_copy.segments) for first_copy, _ in pairs
    ]
    return workers.run(
        pairs, compare_copies, sizes=sizes, description="compare {:,} partitions", ordered=True
    )


class _Batch(NamedTuple):
    magic: int
    is_cleaned: bool
    fixed_fields: tuple[int, ...]
    records: dict[int, _Record]


def count_lacking_records(
    first_entry: Bytes, second_entry: Bytes, budget: DecompressionBudget
) -> tuple[int, int] | None:
    """Count the records that are missing in the first entry, and those missing in the second.

    An entry is the bytes of a batch, or of a v0 or v1 message. Returns None if the log cleaner
    cannot have caused the differences.
    """
    try:
        first_batch, second_batch = (
            _decode_batch(first_entry, budget),
            _decode_batch(second_entry, budget),
        )
    except KafkaIndexError:
        return None
    if first_batch is None or second_batch is None:
        return None
    common_offsets = first_batch.records.keys() & second_batch.records.keys()
    if min(first_batch.magic, second_batch.magic) < MAGIC_RECORD_BATCH:
        is_changed = (
            first_batch.magic != second_batch.magic
            or first_batch.records.keys() != second_batch.records.keys()
        )
        may_be_rewritten = bool(common_offsets) and is_changed
    else:
        may_be_rewritten = first_batch.fixed_fields == second_batch.fixed_fields and (
            first_batch.is_cleaned or second_batch.is_cleaned
        )
    if not may_be_rewritten or any(
        first_batch.records[offset] != second_batch.records[offset] for offset in common_offsets
    ):
        return None
    return len(second_batch.records) - len(common_offsets), len(first_batch.records) - len(
        common_offsets
    )


def _decode_batch(entry: Bytes, budget: DecompressionBudget) -> _Batch | None:
    """Decode a batch or message; None if its records cannot be read."""
    records: dict[int, _Record] = {}
    for chunk_records in decode_entry(entry, budget, _records_by_offset, RecordParts.ALL):
        if isinstance(chunk_records, BatchDamage):
            return None
        records |= chunk_records
    magic = int(entry[MAGIC_POSITION])
    if magic < MAGIC_RECORD_BATCH:
        return _Batch(magic, is_cleaned=False, fixed_fields=(), records=records)
    header = np.frombuffer(entry, RECORD_BATCH_HEADER, 1)[0]
    attributes = int(header["attributes"])
    is_thinned = len(records) <= int(header["last_offset_delta"])
    return _Batch(
        magic,
        # Only the log cleaner writes batches with missing records or a delete horizon.
        is_thinned or bool(attributes & DELETE_HORIZON_MASK),
        (attributes & ~DELETE_HORIZON_MASK, *(int(header[name]) for name in _FIXED_FIELDS)),
        records,
    )


def _records_by_offset(chunk: RecordChunk) -> dict[int, _Record]:
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
            _to_list(chunk.keys),
            _to_list(chunk.values),
            starts,
            ends,
            strict=True,
        )
    }


def _to_list(column: pa.Array | None) -> list[object]:
    return [] if column is None else column.to_pylist()
