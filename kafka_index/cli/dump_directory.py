"""Dump of directories: a line per segment, from a scan of its log."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kafka_index.cli.dump_log import damage_of
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.text import format_count, plural
from kafka_index.errors import KafkaIndexError
from kafka_index.kernels.headers import HEADER_BASE_TIMESTAMP
from kafka_index.layout.records import COMPRESSION_MASK, COMPRESSION_NAMES, NO_TIMESTAMP
from kafka_index.records.batch_table import PREALLOCATED_TAIL, ScanStop
from kafka_index.records.record_table import WindowBatches
from kafka_index.scan import LogFileSource
from kafka_index.scan.scanner import BatchOrder
from kafka_index.storage import SegmentFile, list_dump

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


def dump_directory(path: str, output: DumpOutput, *, verify_crc: bool) -> list[KafkaIndexError]:
    """Print the segments of a data directory or a partition directory; return their damage.

    Raises `InputError` if it holds no segments.
    """
    segments = list_dump([path], topics=None).segments
    sizes = format_count(sum(segment.log_size_bytes for segment in segments))
    output.begin(f"{path}: {plural(len(segments), 'segment')}, {sizes} bytes of log")
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
    wrong = f"{plural(len(damage), 'segment')} damaged" if damage else "no damage found"
    output.remark(wrong, bad=bool(damage))
    return damage


def _scan(segment: SegmentFile, *, verify_crc: bool) -> tuple[dict[str, object], ScanStop | None]:
    """Return what the batches of a segment are, and why they end before its log does."""
    source = LogFileSource.of_segment(segment, verify_crc=verify_crc)
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
