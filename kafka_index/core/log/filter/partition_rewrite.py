"""The second pass over a partition: write its logs without the dropped records.

Batches that lose no record are copied byte for byte. Others are encoded like the log cleaner does
(``MemoryRecords.filterTo``): base and last offset, producer, sequence, leader epoch and delete
horizon stay. v0 and v1 messages become v2 batches.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import COMPRESSION_NAMES
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
    HEADER_BASE_SEQUENCE,
    HEADER_BASE_TIMESTAMP,
    HEADER_MAGIC,
    HEADER_PRODUCER_EPOCH,
)
from kafka_index.core.log.filter.condition import Selection
from kafka_index.core.log.filter.partition_match import (
    PartitionMatch,
    RecordMatcher,
    data_batches,
    decode,
    sound_windows,
)
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_encoder import RecordRows, encode_batch
from kafka_index.core.records.batch_iteration import RecordDecoder
from kafka_index.core.records.batch_table import BatchColumns, WindowBatches
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_batch import BatchFields, write_empty_batch
from kafka_index.core.records.record_chunk import RecordChunk
from kafka_index.core.records.record_table import RecordTable

_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


class SegmentRewriter:
    """Rewrites the segments of one partition, after the first pass has matched its records."""

    def __init__(
        self, match: PartitionMatch, selection: Selection, max_decompressed_bytes: int
    ) -> None:
        self._match = match
        self._matcher = RecordMatcher(selection, max_decompressed_bytes)
        self._decoder = RecordDecoder(shared_budget(max_decompressed_bytes), verify_crc=True)

    def rewrite(self, segment: SegmentFile, path: str) -> SegmentFile:
        """Write the filtered log of a segment to a path; return the new segment."""
        try:
            with open(path, "xb") as file:
                for source in sound_windows(segment):
                    self._write(source, segment, file)
                file.flush()
                written = os.fstat(file.fileno())
        except OSError as error:
            raise publish_error(error, path, "write the log") from error
        return segment.copied_to(path, written)

    def _write(self, source: WindowBatches, segment: SegmentFile, file: BinaryIO) -> None:
        """Write the batches of a window; copy ranges of unchanged batches at once."""
        batches = source.batches
        new = dict(self._rewritten(source, segment)) if self._match.dropped else {}
        done = 0
        for number in sorted(new):
            _copy(source, done, number, file)
            file.write(new[number])
            done = number + 1
        _copy(source, done, batches.rows, file)

    def _rewritten(
        self, source: WindowBatches, segment: SegmentFile
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the numbers of batches that lose records, with their replacements."""
        data = data_batches(source)
        dropped = self._dropped(data, segment)
        if not dropped:
            return
        touched = np.array(sorted(dropped))
        part = data.select(touched)
        headers = part.read_headers()
        stays = self._match.stays(part.batches)
        places = np.searchsorted(source.batches.position_bytes, part.batches.position_bytes)
        kept = self._kept_rows(part, [dropped[int(number)] for number in touched], segment)
        for row, place in enumerate(places.tolist()):
            rows = kept.get(row)
            if rows is not None:
                yield place, _encoded(part.batches, headers, row, rows)
            elif stays[row]:
                yield place, _emptied(part.batches, headers, row)
            else:
                yield place, b""

    def _dropped(
        self, data: WindowBatches, segment: SegmentFile
    ) -> dict[int, list[NDArray[np.bool_]]]:
        found: dict[int, list[NDArray[np.bool_]]] = defaultdict(list)
        losing: set[int] = set()
        for numbers, _, dropped in self._matcher.match(data, segment):
            losing.update(np.unique(numbers[dropped]).tolist())
            for number, rows in _runs(numbers):
                found[number].append(dropped[rows])
        return {number: found[number] for number in losing}

    def _kept_rows(
        self,
        part: WindowBatches,
        dropped: list[list[NDArray[np.bool_]]],
        segment: SegmentFile,
    ) -> Mapping[int, pa.RecordBatch]:
        table = RecordTable(segment.topic, segment.partition, _COLUMNS)
        numbers = np.arange(part.batches.rows)

        def convert(chunk: RecordChunk) -> tuple[Longs, pa.RecordBatch]:
            return chunk.of_batches(numbers), table.convert(chunk, part)

        masks = [np.concatenate(parts) for parts in dropped]
        done: dict[int, int] = defaultdict(int)
        kept: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        for of_batches, rows in decode(self._decoder, part, segment, convert):
            for number, run in _runs(of_batches):
                start = done[number]
                done[number] += run.stop - run.start
                stays = ~masks[number][start : done[number]]
                if stays.any():
                    kept[number].append(rows.slice(run.start, len(stays)).filter(pa.array(stays)))
        return {number: pa.concat_batches(parts) for number, parts in kept.items()}


def _runs(numbers: Longs) -> Iterator[tuple[int, slice]]:
    """Yield each number of an ascending column with its range of rows."""
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        if end > start:
            yield int(numbers[start]), slice(start, end)


def _copy(source: WindowBatches, first: int, end: int, file: BinaryIO) -> None:
    if end > first:
        batches = source.batches
        start = int(batches.position_bytes[first]) - source.position_bytes
        stop = int(batches.position_bytes[end - 1] + batches.size_bytes[end - 1])
        file.write(source.window[start : stop - source.position_bytes].data)


def _fields(batches: BatchColumns, headers: Longs, row: int) -> BatchFields:
    """Return the header fields of a batch that do not follow from its records."""
    attributes = int(batches.attributes[row])
    append_time = attributes & TIMESTAMP_TYPE_MASK
    fields = BatchFields(
        compression=COMPRESSION_NAMES[attributes & COMPRESSION_MASK],
        log_append_time_ms=int(batches.max_timestamp_ms[row]) if append_time else None,
    )
    if int(headers[HEADER_MAGIC, row]) < MAGIC_RECORD_BATCH:
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


def _encoded(batches: BatchColumns, headers: Longs, row: int, records: pa.RecordBatch) -> bytes:
    offsets = records.column("offset").to_numpy()
    rows = RecordRows.of_arrays(
        offsets,
        records.column("timestamp").cast(pa.int64()).to_numpy(),
        records.column("key"),
        records.column("value"),
        records.column("headers"),
    )
    is_old = int(headers[HEADER_MAGIC, row]) < MAGIC_RECORD_BATCH
    base_offset = int(offsets[0] if is_old else batches.base_offset[row])
    # The log must not end earlier, even if the last message of a wrapper is dropped.
    delta = int(batches.last_offset[row]) - base_offset
    fields = replace(_fields(batches, headers, row), last_offset_delta=delta)
    return encode_batch(rows, base_offset, fields)


def _emptied(batches: BatchColumns, headers: Longs, row: int) -> bytes:
    return write_empty_batch(
        int(batches.base_offset[row]),
        int(batches.last_offset[row]),
        int(batches.max_timestamp_ms[row]),
        _fields(batches, headers, row),
    )
