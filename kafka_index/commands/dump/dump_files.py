"""Dumps of files and directories: identify each file, check its options, and print its rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.commands.dump.request import DumpRequest
from kafka_index.commands.dump.result import DumpedFile, DumpResult, SelectedRows, Selection
from kafka_index.core.errors import (
    CorruptIndexError,
    CorruptLogError,
    CorruptSnapshotError,
    InputError,
    InvalidEpochError,
    KafkaIndexError,
    TooLargeError,
    plural,
)
from kafka_index.core.format.checkpoints import (
    EpochEntry,
    parse_leader_epoch_checkpoint,
    parse_offset_checkpoint,
)
from kafka_index.core.format.human import format_count
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import (
    COMPRESSION_NAMES,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_file,
)
from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    NO_TIMESTAMP,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
    SNAPSHOT_VERSION,
)
from kafka_index.core.format.strings import parse_properties
from kafka_index.core.fs.inputs import collecting_unread
from kafka_index.core.fs.paths import expand_remote_glob
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Bytes
from kafka_index.core.index.sparse_indexes import OffsetIndex, TimeIndex
from kafka_index.core.index.transaction_index import TransactionIndex, entry_versions
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import ReportSink
from kafka_index.core.kernels.headers import HEADER_BASE_TIMESTAMP
from kafka_index.core.log.scan.scanner import BatchOrder
from kafka_index.core.log.scan.segment_scan import LogFileSource, read_batches
from kafka_index.core.log.state.snapshots import decode_stored_entries
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.metadata_files import read_text, read_topic_id
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.query.printed_records import PRINTED_COLUMNS, PrintedRecords
from kafka_index.core.records.batch_table import (
    PREALLOCATED_TAIL,
    TOO_LARGE,
    BatchColumns,
    ScanStop,
    WindowBatches,
)
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.records.record_decoder import BatchDamage, RecordChunk, RecordDecoder
from kafka_index.core.records.record_table import RecordTable

if TYPE_CHECKING:
    from kafka_index.commands.dump.typed_log import TypedLog

_CHUNK_ENTRIES = 64 * 1024
_ENTRY_NOUNS = ("entry", "entries")
_HEADER_LINES = 2
PROPERTY_FILES = (META_PROPERTIES, PARTITION_METADATA)


@dataclass(frozen=True, slots=True)
class _IndexFormat:
    """The format of an offset or time index.

    Attributes
    ----------
    names : tuple of str
        The two columns.
    offset_column : int
        The number of the column with the offset.
    strict : tuple of bool
        For each column, whether values must ascend with every entry. Otherwise values may repeat.
    """

    open: type[OffsetIndex | TimeIndex]
    kind: str
    names: tuple[str, str]
    offset_column: int
    strict: tuple[bool, bool]


_INDEX_FORMATS = {
    OFFSET_INDEX_SUFFIX: _IndexFormat(
        OffsetIndex, "offset index", ("offset", "position_bytes"), 0, (True, True)
    ),
    TIME_INDEX_SUFFIX: _IndexFormat(
        TimeIndex, "time index", ("timestamp_ms", "offset"), 1, (True, False)
    ),
}


def dump_sparse_index(file: DumpedFile, output: SelectedRows) -> KafkaIndexError | None:
    """Print the entries of an ``.index`` or a ``.timeindex``; return its first error."""
    form, content = _INDEX_FORMATS[file.kind], file.fetched_array()
    with form.open(file.path, file.base_offset, writable=False, content=content) as index:
        return _dump_entries(index, output, form)


def _dump_entries(
    index: OffsetIndex | TimeIndex, output: SelectedRows, form: _IndexFormat
) -> KafkaIndexError | None:
    slots = index.entries
    index.skip_padding()
    title = f"{form.kind}, base offset {index.base_offset}, {plural(index.entries, *_ENTRY_NOUNS)}"
    output.begin(index.path, f"{title}")
    fault: KafkaIndexError | None = None
    last_entry: tuple[int, int] | None = None
    floor: tuple[int, int] | None = None
    for first_entry in range(0, index.entries, _CHUNK_ENTRIES):
        columns = index.read_entries(first_entry, min(first_entry + _CHUNK_ENTRIES, index.entries))
        if output.selection.offset is None:
            _print_columns(columns, form, output)
        else:
            floor = _find_floor_entry(columns, form, output.selection.offset, floor)
        fault = fault or _first_misordered_entry(index, form, first_entry, columns, last_entry)
        last_entry = int(columns[0][-1]), int(columns[1][-1])
    if floor is not None:
        _print_columns(tuple(np.array([value], np.int64) for value in floor), form, output)
    if index.entries < slots:
        padding = plural(slots - index.entries, "preallocated entry", "preallocated entries")
        output.remark(f"{padding} of zeros at the end of the file")
    torn_bytes = index.length % index.entry_size
    if fault is None and torn_bytes:
        fault = _torn_entry_error(index, torn_bytes)
    output.fault(fault)
    return fault


def _torn_entry_error(
    index: OffsetIndex | TimeIndex | TransactionIndex, torn_bytes: int
) -> CorruptIndexError:
    return CorruptIndexError(
        "the file ends inside an entry",
        path=index.path,
        position_bytes=index.length - torn_bytes,
        expected=f"a multiple of {index.entry_size} bytes",
        found=f"{index.length} bytes",
    )


def _print_columns(columns: Sequence[Longs], form: _IndexFormat, output: SelectedRows) -> None:
    output.rows(pa.record_batch(dict(zip(form.names, columns, strict=True))))


def _find_floor_entry(
    columns: tuple[Longs, Longs], form: _IndexFormat, offset: int, floor: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Return the last entry at or before an offset, in this chunk or earlier chunks."""
    rows = np.flatnonzero(columns[form.offset_column] <= offset)
    if not rows.size:
        return floor
    return int(columns[0][rows[-1]]), int(columns[1][rows[-1]])


def _first_misordered_entry(
    index: OffsetIndex | TimeIndex,
    form: _IndexFormat,
    first_entry: int,
    columns: tuple[Longs, Longs],
    last_entry: tuple[int, int] | None,
) -> KafkaIndexError | None:
    """Return the first error in the order of a chunk, by the checks of DumpLogSegments."""
    faults: list[tuple[int, str, str, int]] = []
    for column_number, (name, values) in enumerate(zip(form.names, columns, strict=True)):
        min_value = index.base_offset if column_number == form.offset_column else 0
        too_small = np.flatnonzero(values < min_value)
        if too_small.size:
            row = int(too_small[0])
            faults.append((row, f"{name} is too small", f"at least {min_value}", int(values[row])))
        previous = np.empty_like(values)
        previous[1:] = values[:-1]
        previous[0] = values[0] - 1 if last_entry is None else last_entry[column_number]
        descending = np.flatnonzero(
            values <= previous if form.strict[column_number] else values < previous
        )
        if descending.size:
            row = int(descending[0])
            expected = (
                f"{'above' if form.strict[column_number] else 'at least'} {int(previous[row])}"
            )
            faults.append((row, f"{name} does not ascend", expected, int(values[row])))
    if not faults:
        return None
    row, message, expected, value = min(faults, key=itemgetter(0))
    return CorruptIndexError(
        message,
        path=index.path,
        position_bytes=(first_entry + row) * index.entry_size,
        expected=expected,
        found=value,
    )


def dump_transaction_index(file: DumpedFile, output: SelectedRows) -> KafkaIndexError | None:
    """Print the entries of a ``.txnindex``; return its first error, if any."""
    path, base_offset = file.path, file.base_offset
    with TransactionIndex(path, base_offset, writable=False, content=file.fetched()) as index:
        count = plural(len(index.entries), *_ENTRY_NOUNS)
        output.begin(path, f"transaction index, base offset {base_offset}, {count}")
        entries = index.entries.copy()
        entries["version"] = entry_versions(entries)
        _print_entries(entries, output)
        fault = _first_misordered_transaction(index)
        if fault is None and index.torn_bytes:
            fault = _torn_entry_error(index, index.torn_bytes)
    output.fault(fault)
    return fault


def dump_snapshot(file: DumpedFile, output: SelectedRows) -> KafkaIndexError | None:
    """Print the producers of a ``.snapshot``; return the error if a broker would discard it."""
    path, offset, data = file.path, file.base_offset, file.content()
    fault: KafkaIndexError | None = None
    try:
        entries = decode_stored_entries(data, path=path)
    except CorruptSnapshotError as error:
        fault = error
        entries = _readable_entries(data)
    output.begin(
        path, f"producer snapshot at offset {offset}, {plural(len(entries), *_ENTRY_NOUNS)}"
    )
    _print_entries(entries, output)
    output.fault(fault)
    return fault


def dump_leader_epochs(file: DumpedFile, output: SelectedRows) -> KafkaIndexError | None:
    """Print a ``leader-epoch-checkpoint``; return its first error, if any."""
    path = file.path
    entries = parse_leader_epoch_checkpoint(read_text(path) or "", path=path)
    output.begin(path, f"leader epochs, {plural(len(entries), *_ENTRY_NOUNS)}")
    epochs = pa.array([entry.epoch for entry in entries], pa.int64())
    starts = pa.array([entry.start_offset for entry in entries], pa.int64())
    output.rows(pa.record_batch({"epoch": epochs, "start_offset": starts}))
    fault = _first_rejected_epoch(entries, path)
    output.fault(fault)
    return fault


def _print_entries(entries: NDArray[np.void], output: SelectedRows) -> None:
    names = entries.dtype.names or ()
    output.rows(pa.record_batch({name: entries[name].astype(np.int64) for name in names}))


def _first_misordered_transaction(index: TransactionIndex) -> KafkaIndexError | None:
    fault: KafkaIndexError | None = None
    try:
        index.sanity_check()
    except CorruptIndexError as error:
        fault = error
    # Kafka checks that last offsets ascend only when it appends entries.
    last_offsets = index.entries["last_offset"].astype(np.int64)
    falls = np.flatnonzero(last_offsets[1:] <= last_offsets[:-1]) + 1
    if not falls.size:
        return fault
    row = int(falls[0])
    position = row * index.entry_size
    if fault is not None and (fault.position_bytes or 0) <= position:
        return fault
    return CorruptIndexError(
        "last_offset does not ascend",
        path=index.path,
        position_bytes=position,
        expected=f"above {int(last_offsets[row - 1])}",
        found=int(last_offsets[row]),
    )


def _readable_entries(data: bytes) -> NDArray[np.void]:
    if len(data) < SNAPSHOT_HEADER.itemsize:
        return np.empty(0, SNAPSHOT_ENTRY)
    header = np.frombuffer(data, SNAPSHOT_HEADER, 1)[0]
    if header["version"] != SNAPSHOT_VERSION:
        return np.empty(0, SNAPSHOT_ENTRY)
    max_count = (len(data) - SNAPSHOT_HEADER.itemsize) // SNAPSHOT_ENTRY.itemsize
    count = min(max(int(header["count"]), 0), max_count)
    return np.frombuffer(data, SNAPSHOT_ENTRY, count, SNAPSHOT_HEADER.itemsize)


def _first_rejected_epoch(entries: list[EpochEntry], path: str) -> KafkaIndexError | None:
    """Return an error for the first line that a broker rejects, or that conflicts with others."""
    epochs = LeaderEpochCache()
    for line_number, entry in enumerate(entries, start=1 + _HEADER_LINES):
        previous_entries = epochs.entries
        with suppress(InvalidEpochError):
            epochs.assign(entry.epoch, entry.start_offset)
        if epochs.entries != (*previous_entries, entry):
            previous_entry = previous_entries[-1] if previous_entries else EpochEntry(-1, -1)
            return InputError(
                f"line {line_number} of a checkpoint does not ascend",
                path=path,
                expected=f"above {previous_entry.epoch} {previous_entry.start_offset}",
                found=f"{entry.epoch} {entry.start_offset}",
            )
    return None


def dump_offset_checkpoint(file: DumpedFile, output: SelectedRows) -> KafkaIndexError | None:
    """Print an offset checkpoint of a data directory; return the error if it is malformed."""
    try:
        offsets = parse_offset_checkpoint(_read_existing(file), path=file.path)
    except InputError as error:
        output.begin(file.path, "offset checkpoint")
        output.fault(error)
        return error
    output.begin(file.path, f"offset checkpoint, {plural(len(offsets), 'entry', 'entries')}")
    columns = [
        pa.array([partition.topic for partition in offsets], pa.string()),
        pa.array([partition.partition for partition in offsets], pa.int32()),
        pa.array(list(offsets.values()), pa.int64()),
    ]
    output.rows(pa.RecordBatch.from_arrays(columns, ["topic", "partition", "offset"]))
    return None


def dump_properties(file: DumpedFile, output: SelectedRows) -> KafkaIndexError | None:
    """Print ``meta.properties`` or ``partition.metadata``; return why a broker rejects it."""
    content = _read_existing(file)
    is_metadata = file.kind == PARTITION_METADATA
    pairs = parse_properties(content.replace(":", "=") if is_metadata else content)
    output.begin(file.path, f"{'topic of the partition' if is_metadata else 'properties'}")
    names, values = pa.array(pairs, pa.string()), pa.array(pairs.values(), pa.string())
    output.rows(pa.record_batch({"name": names, "value": values}))
    if not is_metadata:
        return None
    try:
        read_topic_id(os.path.dirname(file.path))
    except KafkaIndexError as error:
        output.fault(error)
        return error
    return None


def _read_existing(file: DumpedFile) -> str:
    content = read_text(file.path)
    if content is None:
        raise InputError("the file does not exist", path=file.path)
    return content


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
            output.print_limit()
            return None
        if output.selection.is_past(batch.column("last_offset")[-1].as_py()):
            output.remark(f"{plural(output.printed, 'batch', 'batches')} with the offset")
            return None
    batch_count = plural(count, "batch", "batches")
    if output.selection != Selection():
        batch_count = f"{format_count(output.printed)} of {batch_count} selected"
    corruption = print_log_end(file.path, size_bytes, batches.stop, batch_count, output)
    return (
        corruption
        if batches.overlap is None
        else print_out_of_order(file.path, batches.overlap, output)
    )


def print_log_end(
    path: str, size_bytes: int, scan_end: ScanStop | None, count: str, output: SelectedRows
) -> KafkaIndexError | None:
    """Print the number of batches or records, and why the scan ended; return the corruption."""
    if scan_end is None:
        output.remark(f"{count} up to the end of the file")
        return None
    is_damaged = scan_end.code != PREALLOCATED_TAIL
    output.remark(
        f"{count}; the scan ends at byte {scan_end.position_bytes} of {size_bytes}: "
        f"{scan_end.text}",
        bad=is_damaged,
    )
    if not is_damaged:
        return None
    return corruption_error(path, scan_end)


def print_out_of_order(path: str, scan_end: ScanStop, output: SelectedRows) -> KafkaIndexError:
    """Print where batches are out of order; return the error."""
    output.remark(f"corrupt batch at byte {scan_end.position_bytes}: {scan_end.text}", bad=True)
    return corruption_error(path, scan_end)


def corruption_error(path: str, scan_end: ScanStop) -> CorruptLogError:
    """Return the error for the reason why a scan stopped."""
    return scan_end.error(CorruptLogError, path)


def dump_records(
    file: DumpedFile,
    output: SelectedRows,
    *,
    verify_crc: bool,
    budget: DecompressionBudget,
    typed: Mapping[str, TypedLog],
) -> KafkaIndexError | None:
    """Print the records of a log; return the first corruption.

    Batches whose records cannot be read are skipped. `typed` has the decoders of keys and values,
    by path.
    """
    path, size_bytes = file.path, file.size_bytes
    title = f"records, base offset {file.base_offset}, {format_count(size_bytes)} bytes"
    output.begin(path, title)
    source = LogFileSource(path, verify_crc=verify_crc, recovers=False)
    decoder = RecordDecoder(budget, verify_crc=verify_crc)
    typed_log = typed.get(path)
    if typed_log is not None:
        typed_log.find_types(_read_typed_records(file, output.selection, budget, typed_log))
    count = 0
    damage: KafkaIndexError | None = None
    for window, start, found_batches in _ordered_windows(source, file.base_offset):
        if isinstance(found_batches, ScanStop):
            error = print_out_of_order(path, found_batches, output)
            damage = damage or error
            continue
        is_selected = output.selection.mask_batches(found_batches)
        batches = BatchColumns(*(column[is_selected] for column in found_batches))
        rows = WindowBatches(window, start, batches)
        convert = _chunk_converter(rows, typed_log)
        positions = batches.position_bytes
        for records_or_damage in decoder.decode(
            window, positions - start, batches.size_bytes, convert
        ):
            if not isinstance(records_or_damage, BatchDamage):
                for records in _decode_records(records_or_damage, typed_log, output):
                    output.records(records)
                count += len(records_or_damage)
                if output.is_full:
                    output.print_limit()
                    return damage
                continue
            position, error = int(positions[records_or_damage.batch]), records_or_damage.error
            description = "corrupt batch"
            if isinstance(error, TooLargeError):
                description = f"skipped batch ({TOO_LARGE})"
                output.skipped_batch(position, TOO_LARGE)
            output.remark(f"{description} at byte {position}: {error.message}", bad=True)
            damage = damage or error.at(path, position)
        if found_batches.rows and output.selection.is_past(int(found_batches.last_offset[-1])):
            output.remark(f"{plural(output.printed, 'record')} at the offset")
            return damage
    return damage or _print_records_end(file, output, source.stop, count)


def _print_records_end(
    file: DumpedFile, output: SelectedRows, scan_end: ScanStop | None, count: int
) -> KafkaIndexError | None:
    """Print the number of records of a log; return the corruption that ended the scan."""
    if output.selection.has_times and not output.printed:
        for headers in read_batches(file.path, verify_crc=False):
            output.track_times(headers)
    record_count = plural(count, "record")
    if output.selection != Selection():
        record_count = f"{plural(output.printed, 'record')} selected"
    return print_log_end(file.path, file.size_bytes, scan_end, record_count, output)


def _chunk_converter(
    rows: WindowBatches, typed_log: TypedLog | None
) -> Callable[[RecordChunk], PrintedRecords | pa.RecordBatch]:
    """Return a function that converts record chunks to printed records, or to a table.

    The table is for the decoder of keys and values.
    """
    if typed_log is None:
        return partial(PrintedRecords.from_chunk, source=rows)
    partition = typed_log.partition
    table = RecordTable(partition.topic, partition.partition, PRINTED_COLUMNS)
    return partial(table.convert, source=rows)


def _decode_records(
    records: PrintedRecords | pa.RecordBatch, typed_log: TypedLog | None, output: SelectedRows
) -> Iterator[PrintedRecords]:
    """Yield records for printing, decoded if types are given; decode errors are counted."""
    if isinstance(records, PrintedRecords) or typed_log is None:
        yield records
        return
    for rows in typed_log.decode(output.selected_records(records), output.decode_errors):
        yield PrintedRecords.from_rows(rows)


def _read_typed_records(
    file: DumpedFile, selection: Selection, budget: DecompressionBudget, typed_log: TypedLog
) -> Iterator[pa.RecordBatch]:
    """Yield the records that may be printed, to find the types of their keys and values."""
    decoder, read_count = RecordDecoder(budget), 0
    source = LogFileSource(file.path, verify_crc=False, recovers=False)
    for window, start, batches in _ordered_windows(source, file.base_offset):
        if isinstance(batches, ScanStop):
            continue
        is_selected = selection.mask_batches(batches)
        rows = WindowBatches(
            window, start, BatchColumns(*(column[is_selected] for column in batches))
        )
        positions, sizes = rows.batches.position_bytes - start, rows.batches.size_bytes
        for records_or_damage in decoder.decode(
            window, positions, sizes, _chunk_converter(rows, typed_log)
        ):
            if not isinstance(records_or_damage, BatchDamage):
                records = selection.select_records(records_or_damage)
                read_count += len(records)
                yield records
            if selection.limit is not None and read_count >= selection.limit:
                return


def _ordered_windows(
    source: LogFileSource, base_offset: int
) -> Iterator[tuple[Bytes, int, BatchColumns | ScanStop]]:
    """Yield the windows of a log: batches in offset order, or why batches are omitted."""
    order = BatchOrder(base_offset)
    for window, position, batches in source.windows():
        for ordered_batches in order.follow(batches):
            yield window, position, ordered_batches


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
            output.print_limit()
            return damage
        try:
            row, scan_end = _summarize_segment(segment, verify_crc=verify_crc)
        except KafkaIndexError as error:
            row, scan_end = {"damage": error.message}, None
            damage.append(error)
        if scan_end is not None and scan_end.code != PREALLOCATED_TAIL:
            damage.append(corruption_error(segment.log_path, scan_end))
        segment_columns = {
            "topic": segment.topic,
            "partition": segment.partition,
            "base_offset": segment.base_offset,
            "size_bytes": segment.log_size_bytes,
        }
        output.rows(pa.RecordBatch.from_pylist([segment_columns | row], schema=_SCHEMA))
    problems = [plural(len(damage), "corrupt segment")] if damage else []
    if unread:
        problems.append(f"{plural(len(unread), 'entry', 'entries')} not read")
    output.remark("; ".join(problems) or "no corruption found", bad=bool(problems))
    return damage


def _summarize_segment(
    segment: SegmentFile, *, verify_crc: bool
) -> tuple[dict[str, object], ScanStop | None]:
    """Return the row of a segment, and why its batches end before the end of the file."""
    source = LogFileSource.of_segment(segment, verify_crc=verify_crc, recovers=False)
    count, next_offset, codecs = 0, segment.base_offset, 0
    first_ms = max_ms = NO_TIMESTAMP
    order, overlap = BatchOrder(segment.base_offset), None
    for window, start, batches in source.windows():
        overlap = overlap or order.first_stop(batches)
        if not count:
            first_header = WindowBatches(window, start, batches.slice(0, 1)).read_headers()
            first_ms = int(first_header[HEADER_BASE_TIMESTAMP, 0])
        count += batches.rows
        next_offset = int(batches.last_offset[-1]) + 1
        codecs |= int(np.bitwise_or.reduce(1 << (batches.attributes & COMPRESSION_MASK)))
        max_ms = max(max_ms, int(batches.max_timestamp_ms.max()))
    scan_end = overlap or source.stop
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
        "damage": None
        if scan_end is None
        else f"{scan_end.name} at byte {scan_end.position_bytes}",
    }
    return row, scan_end


_Dumper = Callable[[DumpedFile, SelectedRows], KafkaIndexError | None]
_DUMPERS: dict[str, _Dumper] = {
    OFFSET_INDEX_SUFFIX: dump_sparse_index,
    TIME_INDEX_SUFFIX: dump_sparse_index,
    TXN_INDEX_SUFFIX: dump_transaction_index,
    SNAPSHOT_SUFFIX: dump_snapshot,
    LEADER_EPOCH_CHECKPOINT: dump_leader_epochs,
    **dict.fromkeys(OFFSET_CHECKPOINTS, dump_offset_checkpoint),
    **dict.fromkeys(PROPERTY_FILES, dump_properties),
}
# File kinds whose rows can be selected by offset and by time.
_KINDS_WITH_OFFSETS = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_KINDS_WITH_TIMES = (LOG_SUFFIX, TIME_INDEX_SUFFIX)


def dump_files(
    request: DumpRequest,
    _engine: Engine,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> DumpResult:
    """Identify the files and directories of a request; the result prints them.

    Raises `InputError` or `ArgumentError` if a file does not exist, has an unknown kind, or lacks
    the fields of a selection.
    """
    verify_crc = request.verify_crc
    log: _Dumper = partial(dump_log, verify_crc=verify_crc)
    typed: dict[str, TypedLog] = {}
    if request.records:
        budget = shared_budget(request.max_decompressed_bytes)
        log = partial(dump_records, verify_crc=verify_crc, budget=budget, typed=typed)
    kinds: Mapping[str, _Dumper] = {LOG_SUFFIX: log, **_DUMPERS}
    directories = [path for path in request.files if os.path.isdir(path)]
    files = _list_dumped_files([path for path in request.files if path not in directories], kinds)
    selection = Selection.from_request(request)
    if directories and (request.records or selection != Selection(limit=selection.limit)):
        request.refuse(
            "{records}, {offset}, {from_time}, {to_time} and {at_time} require files, not a "
            "directory"
        )
    for file in files:
        _refuse_missing_fields(request, selection, file)
    if request.decode is not None:
        # Schemas and their decoders are slow to import.
        from kafka_index.commands.dump.typed_log import typed_logs  # noqa: PLC0415

        typed |= typed_logs([file.path for file in files], request)
    dumps: list[tuple[str, Callable[[SelectedRows], Iterable[KafkaIndexError]]]] = [
        *((path, partial(dump_directory, path, verify_crc=verify_crc)) for path in directories),
        *((file.path, partial(_dump_file, kinds[file.kind], file)) for file in files),
    ]
    return DumpResult(dumps, selection, follows_links=request.follow_links)


def _dump_file(dump: _Dumper, file: DumpedFile, output: SelectedRows) -> list[KafkaIndexError]:
    """Print a file; return its errors."""
    try:
        fault = dump(file, output)
        output.end()
    except KafkaIndexError as error:
        fault = error
    return [] if fault is None else [fault]


def _refuse_missing_fields(request: DumpRequest, selection: Selection, file: DumpedFile) -> None:
    """Raise `ArgumentError` if a file lacks the fields of the selection."""
    if request.records and file.kind != LOG_SUFFIX:
        request.refuse("{records} requires a .log", path=file.path)
    if request.offset is not None and file.kind not in _KINDS_WITH_OFFSETS:
        request.refuse(f"{{offset}} requires {', '.join(_KINDS_WITH_OFFSETS)}", path=file.path)
    if selection.has_times and file.kind not in _KINDS_WITH_TIMES:
        kinds = ", ".join(_KINDS_WITH_TIMES)
        request.refuse(
            f"{{from_time}}, {{to_time}} and {{at_time}} require {kinds}", path=file.path
        )


def _list_dumped_files(paths: Iterable[str], kinds: Collection[str]) -> list[DumpedFile]:
    """Return the files to dump.

    A glob of a URI is expanded to the files of known kinds, as a shell expands paths. `kinds` are
    suffixes and names. Raises `InputError` if a file does not exist, is not a file, or has an
    unknown kind.
    """
    files: list[DumpedFile] = []
    for path in paths:
        matches = expand_remote_glob(path)
        dumped_files = [
            file for match in matches if (file := _parse_file_name(match, kinds)) is not None
        ]
        if not store_of(matches[0]).needs_requests and not os.path.lexists(matches[0]):
            raise InputError("the file does not exist", path=path)
        if not dumped_files:
            raise _unknown_kind_error(matches[0], kinds)
        if len(matches) == 1 and not dumped_files[0].exists:
            raise InputError("the path is not a file", path=path)
        files += dumped_files
    return files


def _parse_file_name(path: str, kinds: Collection[str]) -> DumpedFile | None:
    name = os.path.basename(path)
    segment_file = parse_segment_file(name)
    if segment_file is not None and segment_file.kind in kinds:
        return DumpedFile(path, segment_file.base_offset, segment_file.kind)
    if name in kinds:
        return DumpedFile(path, 0, name)
    return None


def _unknown_kind_error(path: str, kinds: Collection[str]) -> InputError:
    suffixes = ", ".join(kind for kind in kinds if kind.startswith("."))
    names = ", ".join(kind for kind in kinds if not kind.startswith("."))
    return InputError(
        "the kind of the file is unknown",
        path=path,
        expected=f"20 digits and one of {suffixes}; or {names}",
        found=os.path.basename(path) or "a folder",
    )
