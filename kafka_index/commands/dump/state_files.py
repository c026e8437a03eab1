"""Dump the files next to a log: indexes, snapshots, epochs, checkpoints and properties."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.commands.dump.rows import DumpedFile, SelectedRows
from kafka_index.core.errors import (
    CorruptIndexError,
    CorruptSnapshotError,
    InputError,
    InvalidEpochError,
    KafkaIndexError,
    plural,
)
from kafka_index.core.format.checkpoints import (
    EpochEntry,
    parse_leader_epoch_checkpoint,
    parse_offset_checkpoint,
)
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import (
    META_PROPERTIES,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA,
    TIME_INDEX_SUFFIX,
)
from kafka_index.core.format.records import SNAPSHOT_ENTRY, SNAPSHOT_HEADER, SNAPSHOT_VERSION
from kafka_index.core.format.strings import properties_of
from kafka_index.core.index.sparse_indexes import OffsetIndex, TimeIndex
from kafka_index.core.index.transaction_index import TransactionIndex, entry_versions
from kafka_index.core.log.state.snapshots import stored_entries
from kafka_index.core.logdir.metadata_files import read_text, read_topic_id

_CHUNK_ENTRIES = 64 * 1024
_ENTRY = ("entry", "entries")
_HEADER_LINES = 2
PROPERTY_FILES = (META_PROPERTIES, PARTITION_METADATA)


@dataclass(frozen=True, slots=True)
class _Form:
    """The differences between the two kinds of index.

    `names` are the two columns, and `offset_column` the one with the offset. `strict`, per column:
    whether it ascends with every entry, or may repeat.
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
        entries = stored_entries(data, path=path)
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
