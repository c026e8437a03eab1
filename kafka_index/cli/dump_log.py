"""Dump of a ``.log``: a row per record batch, and the reason why the scan ends."""

from __future__ import annotations

import pyarrow as pa

from kafka_index.cli.dump_files import DumpedFile
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.dump_selection import Selection
from kafka_index.cli.text import format_count, plural
from kafka_index.errors import CorruptLogError, KafkaIndexError
from kafka_index.layout.records import (
    COMPRESSION_MASK,
    COMPRESSION_NAMES,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from kafka_index.records.batch_table import PREALLOCATED_TAIL, ScanStop
from kafka_index.scan import read_batches

_SEGMENT_COLUMNS = ("topic", "partition", "segment_base_offset")
_FLAGS = (
    (TRANSACTIONAL_MASK, "txn"),
    (CONTROL_MASK, "control"),
    (TIMESTAMP_TYPE_MASK, "append-time"),
    (DELETE_HORIZON_MASK, "horizon"),
)


def dump_log(file: DumpedFile, output: DumpOutput, *, verify_crc: bool) -> KafkaIndexError | None:
    """Print the batches of a log; return the damage that ended the scan."""
    size_bytes = file.size_bytes
    title = f"log, base offset {file.base_offset}, {format_count(size_bytes)} bytes"
    output.begin(f"{file.path}: {title}")
    batches = read_batches(file.path, verify_crc=verify_crc)
    count = 0
    for batch in batches:
        count += batch.num_rows
        output.rows(batch if output.as_json else _readable(batch))
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
    path: str, size_bytes: int, stop: ScanStop | None, found: str, output: DumpOutput
) -> KafkaIndexError | None:
    """Print how many batches or records were `found` and why the scan ended; return the damage."""
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


def out_of_order(path: str, stop: ScanStop, output: DumpOutput) -> KafkaIndexError:
    """Print where batches are out of order; return the damage."""
    output.remark(f"damaged: the batch at byte {stop.position_bytes}: {stop.text}", bad=True)
    return damage_of(path, stop)


def damage_of(path: str, stop: ScanStop) -> CorruptLogError:
    """Return the error of damage that a scan has met."""
    return CorruptLogError(
        stop.name,
        path=path,
        position_bytes=stop.position_bytes,
        expected=stop.expected,
        found=stop.found,
    )


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns that the title lacks, with the attributes spelled out."""
    batch = batch.drop_columns([n for n in _SEGMENT_COLUMNS if n in batch.schema.names])
    place = batch.schema.get_field_index("attributes")
    encoded = batch.column(place).dictionary_encode()
    names = pa.array([_attributes_text(value) for value in encoded.dictionary.to_pylist()])
    return batch.set_column(place, "attributes", names.take(encoded.indices))


def _attributes_text(attributes: int) -> str:
    codec = attributes & COMPRESSION_MASK
    name = COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else f"codec-{codec}"
    return "+".join([name, *(flag for mask, flag in _FLAGS if attributes & mask)])
