"""Dumps of files and directories: identify each one, check its options, print its rows."""

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
from kafka_index.core.format.strings import properties_of
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
_ENTRY = ("entry", "entries")
_HEADER_LINES = 2
PROPERTY_FILES = (META_PROPERTIES, PARTITION_METADATA)


@dataclass(frozen=True, slots=True)
class _Form:
    """The differences between the two kinds of index.

    `names` are the two columns, and `offset_column` the column with the offset. `strict`, per
    column: whether it ascends with every entry, or may repeat.
    """

    open: type[OffsetIndex | TimeIndex]
    kind: str
    names: tuple[str, str]
    offset_column: int
    strict: tuple[bool, bool]


_FORMS = {
    OFFSET_INDEX_SUFFIX: _Form(
        OffsetIndex, "offset index", ("offset", "position_bytes"), 0, (True, True)
    ),
    TIME_INDEX_SUFFIX: _Form(TimeIndex, "time index", ("timestamp_ms", "offset"), 1, (True, False)),
}


def dump_sparse_index(file: DumpedFile, output: SelectedRows) -> KafkaIndexError | None:
    """Print the entries of an ``.index`` or a ``.timeindex``; return its first error."""
    form, content = _FORMS[file.kind], file.fetched_array()
    with form.open(file.path, file.base_offset, writable=False, content=content) as index:
        return _dump(index, output, form)


def _dump(
    index: OffsetIndex | TimeIndex, output: SelectedRows, form: _Form
) -> KafkaIndexError | None:
    slots = index.entries
    index.skip_padding()
    title = f"{form.kind}, base offset {index.base_offset}, {plural(index.entries, *_ENTRY)}"
    output.begin(index.path, f"{title}")
    fault: KafkaIndexError | None = None
    before: tuple[int, int] | None = None
    floor: tuple[int, int] | None = None
    for start in range(0, index.entries, _CHUNK_ENTRIES):
        columns = index.read_entries(start, min(start + _CHUNK_ENTRIES, index.entries))
        if output.selection.offset is None:
            _print(columns, form, output)
        else:
            floor = _floor(columns, form, output.selection.offset, floor)
        fault = fault or _first_fault(index, form, start, columns, before)
        before = int(columns[0][-1]), int(columns[1][-1])
    if floor is not None:
        _print(tuple(np.array([value], np.int64) for value in floor), form, output)
    if index.entries < slots:
        padding = plural(slots - index.entries, "preallocated entry", "preallocated entries")
        output.remark(f"{padding} of zeros after them")
    torn_bytes = index.length % index.entry_size
    if fault is None and torn_bytes:
        fault = _torn(index, torn_bytes)
    output.fault(fault)
    return fault


def _torn(index: OffsetIndex | TimeIndex | TransactionIndex, torn_bytes: int) -> CorruptIndexError:
    return CorruptIndexError(
        "the file ends inside an entry",
        path=index.path,
        position_bytes=index.length - torn_bytes,
        expected=f"a multiple of {index.entry_size} bytes",
        found=f"{index.length} bytes",
    )


def _print(columns: Sequence[Longs], form: _Form, output: SelectedRows) -> None:
    output.rows(pa.record_batch(dict(zip(form.names, columns, strict=True))))


def _floor(
    columns: tuple[Longs, Longs], form: _Form, offset: int, before: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Return the last entry so far at or below an offset."""
    rows = np.flatnonzero(columns[form.offset_column] <= offset)
    if not rows.size:
        return before
    return int(columns[0][rows[-1]]), int(columns[1][rows[-1]])


def _first_fault(
    index: OffsetIndex | TimeIndex,
    form: _Form,
    start: int,
    columns: tuple[Longs, Longs],
    before: tuple[int, int] | None,
) -> KafkaIndexError | None:
    """Return the first value of a chunk that is out of order, as checked by DumpLogSegments."""
    faults: list[tuple[int, str, str, int]] = []
    for number, (name, values) in enumerate(zip(form.names, columns, strict=True)):
        least = index.base_offset if number == form.offset_column else 0
        low = np.flatnonzero(values < least)
        if low.size:
            row = int(low[0])
            faults.append((row, f"{name} is too small", f"at least {least}", int(values[row])))
        previous = np.empty_like(values)
        previous[1:] = values[:-1]
        previous[0] = values[0] - 1 if before is None else before[number]
        fall = np.flatnonzero(values <= previous if form.strict[number] else values < previous)
        if fall.size:
            row = int(fall[0])
            expected = f"{'above' if form.strict[number] else 'at least'} {int(previous[row])}"
            faults.append((row, f"{name} does not ascend", expected, int(values[row])))
    if not faults:
        return None
    row, message, expected, found = min(faults, key=itemgetter(0))
    return CorruptIndexError(
        message,
        path=index.path,
        position_bytes=(start + row) * index.entry_size,
        expected=expected,
        found=found,
    )


def dump_transaction_index(file: DumpedFile, output: SelectedRows) -> KafkaIndexError | None:
    """Print the entries of a ``.txnindex``; return its first error, if any."""
    path, base_offset = file.path, file.base_offset
    with TransactionIndex(path, base_offset, writable=False, content=file.fetched()) as index:
        count = plural(len(index.entries), *_ENTRY)
        output.begin(path, f"transaction index, base offset {base_offset}, {count}")
        shown = index.entries.copy()
        shown["version"] = entry_versions(shown)
        _print_entries(shown, output)
        fault = _first_transaction_fault(index)
        if fault is None and index.torn_bytes:
            fault = _torn(index, index.torn_bytes)
    output.fault(fault)
    return fault


def dump_snapshot(file: DumpedFile, output: SelectedRows) -> KafkaIndexError | None:
    """Print the producers of a ``.snapshot``; return why a broker would discard it, if so."""
    path, offset, data = file.path, file.base_offset, file.content()
    fault: KafkaIndexError | None = None
    try:
        entries = decode_stored_entries(data, path=path)
    except CorruptSnapshotError as error:
        fault = error
        entries = _readable_entries(data)
    output.begin(path, f"producer snapshot at offset {offset}, {plural(len(entries), *_ENTRY)}")
    _print_entries(entries, output)
    output.fault(fault)
    return fault


def dump_leader_epochs(file: DumpedFile, output: SelectedRows) -> KafkaIndexError | None:
    """Print a ``leader-epoch-checkpoint``; return its first error, if any."""
    path = file.path
    entries = parse_leader_epoch_checkpoint(read_text(path) or "", path=path)
    output.begin(path, f"leader epochs, {plural(len(entries), *_ENTRY)}")
    epochs = pa.array([entry.epoch for entry in entries], pa.int64())
    starts = pa.array([entry.start_offset for entry in entries], pa.int64())
    output.rows(pa.record_batch({"epoch": epochs, "start_offset": starts}))
    fault = _first_contradiction(entries, path)
    output.fault(fault)
    return fault


def _print_entries(entries: NDArray[np.void], output: SelectedRows) -> None:
    names = entries.dtype.names or ()
    output.rows(pa.record_batch({name: entries[name].astype(np.int64) for name in names}))


def _first_transaction_fault(index: TransactionIndex) -> KafkaIndexError | None:
    fault: KafkaIndexError | None = None
    try:
        index.sanity_check()
    except CorruptIndexError as error:
        fault = error
    # Kafka rejects offsets that do not ascend only when it appends.
    last = index.entries["last_offset"].astype(np.int64)
    falls = np.flatnonzero(last[1:] <= last[:-1]) + 1
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
        expected=f"above {int(last[row - 1])}",
        found=int(last[row]),
    )


def _readable_entries(data: bytes) -> NDArray[np.void]:
    if len(data) < SNAPSHOT_HEADER.itemsize:
        return np.empty(0, SNAPSHOT_ENTRY)
    header = np.frombuffer(data, SNAPSHOT_HEADER, 1)[0]
    if header["version"] != SNAPSHOT_VERSION:
        return np.empty(0, SNAPSHOT_ENTRY)
    room = (len(data) - SNAPSHOT_HEADER.itemsize) // SNAPSHOT_ENTRY.itemsize
    count = min(max(int(header["count"]), 0), room)
    return np.frombuffer(data, SNAPSHOT_ENTRY, count, SNAPSHOT_HEADER.itemsize)


def _first_contradiction(entries: list[EpochEntry], path: str) -> KafkaIndexError | None:
    """Return the first line that a broker rejects or ignores, or that makes it drop other lines."""
    epochs = LeaderEpochCache()
    for number, entry in enumerate(entries, start=1 + _HEADER_LINES):
        before = epochs.entries
        with suppress(InvalidEpochError):
            epochs.assign(entry.epoch, entry.start_offset)
        if epochs.entries != (*before, entry):
            last = before[-1] if before else EpochEntry(-1, -1)
            return InputError(
                f"line {number} of a checkpoint does not ascend",
                path=path,
                expected=f"above {last.epoch} {last.start_offset}",
                found=f"{entry.epoch} {entry.start_offset}",
            )
    return None


def dump_offset_checkpoint(file: DumpedFile, output: SelectedRows) -> KafkaIndexError | None:
    """Print an offset checkpoint of a data directory; return why it is malformed, if so."""
    try:
        offsets = parse_offset_checkpoint(_text(file), path=file.path)
    except InputError as error:
        output.begin(file.path, "offset checkpoint")
        output.fault(error)
        return error
    output.begin(file.path, f"offset checkpoint, {plural(len(offsets), 'entry', 'entries')}")
    columns = [
        pa.array([each.topic for each in offsets], pa.string()),
        pa.array([each.partition for each in offsets], pa.int32()),
        pa.array(list(offsets.values()), pa.int64()),
    ]
    output.rows(pa.RecordBatch.from_arrays(columns, ["topic", "partition", "offset"]))
    return None


def dump_properties(file: DumpedFile, output: SelectedRows) -> KafkaIndexError | None:
    """Print ``meta.properties`` or ``partition.metadata``; return why a broker rejects it."""
    text = _text(file)
    is_metadata = file.kind == PARTITION_METADATA
    pairs = properties_of(text.replace(":", "=") if is_metadata else text)
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


def _text(file: DumpedFile) -> str:
    text = read_text(file.path)
    if text is None:
        raise InputError("no such file", path=file.path)
    return text


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
    typed: Mapping[str, TypedLog],
) -> KafkaIndexError | None:
    """Print the records of a log; return the first corruption.

    Batches whose records cannot be read are skipped. `typed` has, by path, what decodes keys and
    values.
    """
    path, size_bytes = file.path, file.size_bytes
    title = f"records, base offset {file.base_offset}, {format_count(size_bytes)} bytes"
    output.begin(path, title)
    source = LogFileSource(path, verify_crc=verify_crc, recovers=False)
    decoder = RecordDecoder(budget, verify_crc=verify_crc)
    typed_log = typed.get(path)
    if typed_log is not None:
        typed_log.find_types(_rows_of_types(file, output.selection, budget, typed_log))
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
        convert = _conversion(rows, typed_log)
        positions = batches.position_bytes
        for found in decoder.decode(window, positions - start, batches.size_bytes, convert):
            if not isinstance(found, BatchDamage):
                for records in _decoded(found, typed_log, output):
                    output.records(records)
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
    return damage or _records_end(file, output, source.stop, count)


def _records_end(
    file: DumpedFile, output: SelectedRows, stop: ScanStop | None, count: int
) -> KafkaIndexError | None:
    """Print the end of the records of a log; return the corruption that ended the scan."""
    if output.selection.has_times and not output.printed:
        for headers in read_batches(file.path, verify_crc=False):
            output.track_times(headers)
    found = plural(count, "record")
    if output.selection != Selection():
        found = f"{plural(output.printed, 'record')} selected"
    return log_end(file.path, file.size_bytes, stop, found, output)


def _conversion(
    rows: WindowBatches, typed_log: TypedLog | None
) -> Callable[[RecordChunk], PrintedRecords | pa.RecordBatch]:
    """Return how chunks are converted: for printing, or to a table whose columns are decoded."""
    if typed_log is None:
        return partial(PrintedRecords.from_chunk, source=rows)
    partition = typed_log.partition
    table = RecordTable(partition.topic, partition.partition, PRINTED_COLUMNS)
    return partial(table.convert, source=rows)


def _decoded(
    records: PrintedRecords | pa.RecordBatch, typed_log: TypedLog | None, output: SelectedRows
) -> Iterator[PrintedRecords]:
    """Yield records for printing; in selected records, keys and values that fail are counted."""
    if isinstance(records, PrintedRecords) or typed_log is None:
        yield records
        return
    for part in typed_log.decode(output.selected_records(records), output.decode_errors):
        yield PrintedRecords.from_rows(part)


def _rows_of_types(
    file: DumpedFile, selection: Selection, budget: DecompressionBudget, typed_log: TypedLog
) -> Iterator[pa.RecordBatch]:
    """Yield the records that may be printed, for the types of their keys and values."""
    decoder, read = RecordDecoder(budget), 0
    source = LogFileSource(file.path, verify_crc=False, recovers=False)
    for window, start, batches in _in_order(source, file.base_offset):
        if isinstance(batches, ScanStop):
            continue
        held = selection.of_batches(batches)
        rows = WindowBatches(window, start, BatchColumns(*(column[held] for column in batches)))
        positions, sizes = rows.batches.position_bytes - start, rows.batches.size_bytes
        for found in decoder.decode(window, positions, sizes, _conversion(rows, typed_log)):
            if not isinstance(found, BatchDamage):
                records = selection.of_records(found)
                read += len(records)
                yield records
            if selection.limit is not None and read >= selection.limit:
                return


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


_Dump = Callable[[DumpedFile, SelectedRows], KafkaIndexError | None]
_KINDS: dict[str, _Dump] = {
    OFFSET_INDEX_SUFFIX: dump_sparse_index,
    TIME_INDEX_SUFFIX: dump_sparse_index,
    TXN_INDEX_SUFFIX: dump_transaction_index,
    SNAPSHOT_SUFFIX: dump_snapshot,
    LEADER_EPOCH_CHECKPOINT: dump_leader_epochs,
    **dict.fromkeys(OFFSET_CHECKPOINTS, dump_offset_checkpoint),
    **dict.fromkeys(PROPERTY_FILES, dump_properties),
}
# File kinds whose rows can be selected by offset and by time.
_WITH_OFFSETS = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_WITH_TIMES = (LOG_SUFFIX, TIME_INDEX_SUFFIX)


def dump_files(
    request: DumpRequest,
    _engine: Engine,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> DumpResult:
    """Identify the files and directories of a request; the result prints them.

    Raises `InputError` or `ArgumentError` if one does not exist, is of an unknown kind, or lacks
    the fields of a selection.
    """
    verify_crc = request.verify_crc
    log: _Dump = partial(dump_log, verify_crc=verify_crc)
    typed: dict[str, TypedLog] = {}
    if request.records:
        budget = shared_budget(request.max_decompressed_bytes)
        log = partial(dump_records, verify_crc=verify_crc, budget=budget, typed=typed)
    kinds: Mapping[str, _Dump] = {LOG_SUFFIX: log, **_KINDS}
    directories = [path for path in request.files if os.path.isdir(path)]
    files = _known_files([path for path in request.files if path not in directories], kinds)
    selection = Selection.of_request(request)
    if directories and (request.records or selection != Selection(limit=selection.limit)):
        request.refuse(
            "{records}, {offset}, {from_time}, {to_time} and {at_time} require files, not a "
            "directory"
        )
    for file in files:
        _refuse_without_rows(request, selection, file)
    if request.decode is not None:
        # Schemas and their decoders are slow to import.
        from kafka_index.commands.dump.typed_log import typed_logs  # noqa: PLC0415

        typed |= typed_logs([file.path for file in files], request)
    dumps: list[tuple[str, Callable[[SelectedRows], Iterable[KafkaIndexError]]]] = [
        *((path, partial(dump_directory, path, verify_crc=verify_crc)) for path in directories),
        *((file.path, partial(_dump_file, kinds[file.kind], file)) for file in files),
    ]
    return DumpResult(dumps, selection, follows_links=request.follow_links)


def _dump_file(dump: _Dump, file: DumpedFile, output: SelectedRows) -> list[KafkaIndexError]:
    """Print a file; return its errors."""
    try:
        fault = dump(file, output)
        output.end()
    except KafkaIndexError as error:
        fault = error
    return [] if fault is None else [fault]


def _refuse_without_rows(request: DumpRequest, selection: Selection, file: DumpedFile) -> None:
    """Reject a selection by fields that a file does not have."""
    if request.records and file.kind != LOG_SUFFIX:
        request.refuse("{records} requires a .log", path=file.path)
    if request.offset is not None and file.kind not in _WITH_OFFSETS:
        request.refuse(f"{{offset}} requires {', '.join(_WITH_OFFSETS)}", path=file.path)
    if selection.has_times and file.kind not in _WITH_TIMES:
        kinds = ", ".join(_WITH_TIMES)
        request.refuse(
            f"{{from_time}}, {{to_time}} and {{at_time}} require {kinds}", path=file.path
        )


def _known_files(given: Iterable[str], kinds: Collection[str]) -> list[DumpedFile]:
    """Return the files to dump; reject files of unknown kinds.

    A glob of a URI is expanded to files of a known kind, as the shell does for paths. `kinds` are
    suffixes and names. Raises `InputError` if a file does not exist, is not a file, or is of
    another kind.
    """
    files: list[DumpedFile] = []
    for path in given:
        matches = expand_remote_glob(path)
        known = [file for match in matches if (file := _known(match, kinds)) is not None]
        if not store_of(matches[0]).needs_requests and not os.path.lexists(matches[0]):
            raise InputError("no such file", path=path)
        if not known:
            raise _unknown_kind(matches[0], kinds)
        if len(matches) == 1 and not known[0].exists:
            raise InputError("not a file", path=path)
        files += known
    return files


def _known(path: str, kinds: Collection[str]) -> DumpedFile | None:
    name = os.path.basename(path)
    parsed = parse_segment_file(name)
    if parsed is not None and parsed.kind in kinds:
        return DumpedFile(path, parsed.base_offset, parsed.kind)
    if name in kinds:
        return DumpedFile(path, 0, name)
    return None


def _unknown_kind(path: str, kinds: Collection[str]) -> InputError:
    suffixes = ", ".join(kind for kind in kinds if kind.startswith("."))
    names = ", ".join(kind for kind in kinds if not kind.startswith("."))
    return InputError(
        "not a kind of file that can be dumped",
        path=path,
        expected=f"20 digits and one of {suffixes}; or {names}",
        found=os.path.basename(path) or "a folder",
    )
