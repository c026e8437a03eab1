"""Dump logs: a row per record batch or record, and for directories a row per segment."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from kafka_index.commands.dump.rows import DumpedFile, SelectedRows, Selection
from kafka_index.core.errors import CorruptLogError, KafkaIndexError, TooLargeError, plural
from kafka_index.core.format.human import format_count
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.format.records import COMPRESSION_MASK, NO_TIMESTAMP
from kafka_index.core.fs.inputs import collecting_unread
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.headers import HEADER_BASE_TIMESTAMP
from kafka_index.core.log.scan.scanner import BatchOrder
from kafka_index.core.log.scan.segment_scan import LogFileSource, read_batches
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.query.printed_records import PrintedRecords
from kafka_index.core.records.batch_iteration import BatchDamage, RecordDecoder
from kafka_index.core.records.batch_table import (
    PREALLOCATED_TAIL,
    TOO_LARGE,
    BatchColumns,
    ScanStop,
    WindowBatches,
)
from kafka_index.core.records.decompression import DecompressionBudget

_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("first_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("size_bytes", pa.int64()),
        ("batches", pa.int64()),
        ("codecs", pa.string()),
        ("damage", pa.string()),
    ]
)


def dump_log(file: DumpedFile, output: SelectedRows, *, verify_crc: bool) -> KafkaIndexError | None:
    """Print the batches of a log; return the corruption that ended the scan."""
    size_bytes = file.size_bytes
    title = f"log, base offset {file.base_offset}, {format_count(size_bytes)} bytes"
    output.begin(file.path, title)
    batches = read_batches(file.path, verify_crc=verify_crc)
    count = 0
    for batch in batches:
        count += batch.num_rows
        output.rows(batch)
        if output.is_full:
            output.limited()
            return None
        if output.selection.is_past(batch.column("last_offset")[-1].as_py()):
            output.remark(f"{plural(output.printed, 'batch', 'batches')} of the offset")
            return None
    found = plural(count, "batch", "batches")
    if output.selection != Selection():
        found = f"{format_count(output.printed)} of {found} selected"
    end = log_end(file.path, size_bytes, batches.stop, found, output)
    return end if batches.overlap is None else out_of_order(file.path, batches.overlap, output)


def log_end(
    path: str, size_bytes: int, stop: ScanStop | None, found: str, output: SelectedRows
) -> KafkaIndexError | None:
    """Print the number of batches or records, and why the scan ended; return the corruption."""
    if stop is None:
        output.remark(f"{found} up to the end of the file")
        return None
    damaged = stop.code != PREALLOCATED_TAIL
    output.remark(
        f"{found}; the scan ends at byte {stop.position_bytes} of {size_bytes}: {stop.text}",
        bad=damaged,
    )
    if not damaged:
        return None
    return damage_of(path, stop)


def out_of_order(path: str, stop: ScanStop, output: SelectedRows) -> KafkaIndexError:
    """Print where batches are out of order; return the error."""
    output.remark(f"corrupt: the batch at byte {stop.position_bytes}: {stop.text}", bad=True)
    return damage_of(path, stop)


def damage_of(path: str, stop: ScanStop) -> CorruptLogError:
    """Return the error for the reason why a scan stopped."""
    return stop.error(CorruptLogError, path)


def dump_records(
    file: DumpedFile,
    output: SelectedRows,
    *,
    verify_crc: bool,
    budget: DecompressionBudget,
) -> KafkaIndexError | None:
    """Print the records of a log; return the first corruption.

    Batches whose records cannot be read are skipped.
    """
    path, size_bytes = file.path, file.size_bytes
    title = f"records, base offset {file.base_offset}, {format_count(size_bytes)} bytes"
    output.begin(path, title)
    source = LogFileSource(path, verify_crc=verify_crc, recovers=False)
    decoder = RecordDecoder(budget, verify_crc=verify_crc)
    count = 0
    damage: KafkaIndexError | None = None
    for window, start, found_batches in _in_order(source, file.base_offset):
        if isinstance(found_batches, ScanStop):
            error = out_of_order(path, found_batches, output)
            damage = damage or error
            continue
        held = output.selection.of_batches(found_batches)
        batches = BatchColumns(*(column[held] for column in found_batches))
        rows = WindowBatches(window, start, batches)
        convert = partial(PrintedRecords.of_chunk, source=rows)
        positions = batches.position_bytes
        for found in decoder.decode(window, positions - start, batches.size_bytes, convert):
            if not isinstance(found, BatchDamage):
                output.records(found)
                count += len(found)
                if output.is_full:
                    output.limited()
                    return damage
                continue
            position, error = int(positions[found.batch]), found.error
            word = "corrupt"
            if isinstance(error, TooLargeError):
                word = TOO_LARGE
                output.skipped_batch(position, TOO_LARGE)
            output.remark(f"{word}: the batch at byte {position}: {error.message}", bad=True)
            damage = damage or error.at(path, position)
        if found_batches.rows and output.selection.is_past(int(found_batches.last_offset[-1])):
            output.remark(f"{plural(output.printed, 'record')} at the offset")
            return damage
    if output.selection.has_times and not output.printed:
        for headers in read_batches(path, verify_crc=False):
            output.track_times(headers)
    found_text = plural(count, "record")
    if output.selection != Selection():
        found_text = f"{plural(output.printed, 'record')} selected"
    end = log_end(path, size_bytes, source.stop, found_text, output)
    return damage or end


def _in_order(
    source: LogFileSource, base_offset: int
) -> Iterator[tuple[Bytes, int, BatchColumns | ScanStop]]:
    """Yield the windows of a log, with batches in order, or the reason why some are omitted."""
    order = BatchOrder(base_offset)
    for window, start, batches in source.windows():
        for found in order.follow(batches):
            yield window, start, found


def dump_directory(path: str, output: SelectedRows, *, verify_crc: bool) -> list[KafkaIndexError]:
    """Print the segments of a data directory or a partition directory; return their errors.

    Raises `InputError` if it contains no segments.
    """
    with collecting_unread() as unread:
        segments = list_dump([path], topics=None).segments
    sizes = format_count(sum(segment.log_size_bytes for segment in segments))
    output.begin(path, f"{plural(len(segments), 'segment')}, {sizes} bytes of log")
    damage: list[KafkaIndexError] = []
    for segment in segments:
        if output.is_full:
            output.limited()
            return damage
        try:
            row, stop = _scan(segment, verify_crc=verify_crc)
        except KafkaIndexError as error:
            row, stop = {"damage": error.message}, None
            damage.append(error)
        if stop is not None and stop.code != PREALLOCATED_TAIL:
            damage.append(damage_of(segment.log_path, stop))
        known = {
            "topic": segment.topic,
            "partition": segment.partition,
            "base_offset": segment.base_offset,
            "size_bytes": segment.log_size_bytes,
        }
        output.rows(pa.RecordBatch.from_pylist([known | row], schema=_SCHEMA))
    found = [plural(len(damage), "corrupt segment")] if damage else []
    if unread:
        found.append(f"{plural(len(unread), 'entry', 'entries')} not read")
    output.remark("; ".join(found) or "no corruption found", bad=bool(found))
    return damage


def _scan(segment: SegmentFile, *, verify_crc: bool) -> tuple[dict[str, object], ScanStop | None]:
    """Return the row of a segment, and why its batches end before its log."""
    source = LogFileSource.of_segment(segment, verify_crc=verify_crc, recovers=False)
    count, next_offset, codecs = 0, segment.base_offset, 0
    first_ms = max_ms = NO_TIMESTAMP
    order, overlap = BatchOrder(segment.base_offset), None
    for window, start, batches in source.windows():
        overlap = overlap or order.first_stop(batches)
        if not count:
            first = WindowBatches(window, start, batches.slice(0, 1)).read_headers()
            first_ms = int(first[HEADER_BASE_TIMESTAMP, 0])
        count += batches.rows
        next_offset = int(batches.last_offset[-1]) + 1
        codecs |= int(np.bitwise_or.reduce(1 << (batches.attributes & COMPRESSION_MASK)))
        max_ms = max(max_ms, int(batches.max_timestamp_ms.max()))
    stop = overlap or source.stop
    names = [
        COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else f"codec-{codec}"
        for codec in range(COMPRESSION_MASK + 1)
        if codecs >> codec & 1
    ]
    row: dict[str, object] = {
        "next_offset": next_offset,
        "first_timestamp_ms": None if first_ms == NO_TIMESTAMP else first_ms,
        "max_timestamp_ms": None if max_ms == NO_TIMESTAMP else max_ms,
        "batches": count,
        "codecs": "+".join(names) or None,
        "damage": None if stop is None else f"{stop.name} at byte {stop.position_bytes}",
    }
    return row, stop
