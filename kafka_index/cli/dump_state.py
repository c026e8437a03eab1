"""Dump of what a broker keeps of producers and epochs: ``.txnindex``, ``.snapshot``, epochs."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.cli.dump_files import DumpedFile
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.text import plural
from kafka_index.errors import (
    CorruptIndexError,
    CorruptSnapshotError,
    InputError,
    InvalidEpochError,
    KafkaIndexError,
)
from kafka_index.index import TransactionIndex
from kafka_index.index.transaction_index import entry_versions
from kafka_index.layout.checkpoints import EpochEntry, parse_leader_epoch_checkpoint
from kafka_index.layout.records import (
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
    SNAPSHOT_VERSION,
)
from kafka_index.state.leader_epochs import LeaderEpochCache
from kafka_index.state.snapshots import stored_entries
from kafka_index.storage.log_directory import read_checkpoint_text

_ENTRY = ("entry", "entries")
_HEADER_LINES = 2


def dump_transaction_index(file: DumpedFile, output: DumpOutput) -> KafkaIndexError | None:
    """Print the entries of a ``.txnindex``; return the first fault in it, if there is one."""
    path, base_offset = file.path, file.base_offset
    with TransactionIndex(path, base_offset, writable=False, content=file.fetched()) as index:
        count = plural(len(index.entries), *_ENTRY)
        output.begin(f"{path}: transaction index, base offset {base_offset}, {count}")
        shown = index.entries.copy()
        shown["version"] = entry_versions(shown)
        _print_entries(shown, output)
        fault = _first_fault(index)
        if fault is None and index.torn_bytes:
            fault = CorruptIndexError(
                "the file ends inside an entry",
                path=path,
                position_bytes=index.length - index.torn_bytes,
                expected=f"a multiple of {index.entry_size} bytes",
                found=f"{index.length} bytes",
            )
    output.fault(fault)
    return fault


def dump_snapshot(file: DumpedFile, output: DumpOutput) -> KafkaIndexError | None:
    """Print the producers of a ``.snapshot``; return what makes a broker throw it away, if so."""
    path, offset, data = file.path, file.base_offset, file.content()
    fault: KafkaIndexError | None = None
    try:
        entries = stored_entries(data, path=path)
    except CorruptSnapshotError as error:
        fault = error
        entries = _readable_entries(data)
    output.begin(f"{path}: producer snapshot at offset {offset}, {plural(len(entries), *_ENTRY)}")
    _print_entries(entries, output)
    output.fault(fault)
    return fault


def dump_leader_epochs(file: DumpedFile, output: DumpOutput) -> KafkaIndexError | None:
    """Print a ``leader-epoch-checkpoint``; return the first fault in it, if there is one."""
    path = file.path
    entries = parse_leader_epoch_checkpoint(read_checkpoint_text(path) or "", path=path)
    output.begin(f"{path}: leader epochs, {plural(len(entries), *_ENTRY)}")
    columns = [
        pa.array([entry.epoch for entry in entries], pa.int64()),
        pa.array([entry.start_offset for entry in entries], pa.int64()),
    ]
    output.rows(pa.RecordBatch.from_arrays(columns, ["epoch", "start_offset"]))
    fault = _first_contradiction(entries, path)
    output.fault(fault)
    return fault


def _print_entries(entries: NDArray[np.void], output: DumpOutput) -> None:
    names = list(entries.dtype.names or ())
    columns = [pa.array(entries[name].astype(np.int64)) for name in names]
    output.rows(pa.RecordBatch.from_arrays(columns, names))


def _first_fault(index: TransactionIndex) -> KafkaIndexError | None:
    fault: KafkaIndexError | None = None
    try:
        index.sanity_check()
    except CorruptIndexError as error:
        fault = error
    # Offsets that do not ascend Kafka only refuses to append.
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
    """Return the readable entries of a damaged snapshot."""
    if len(data) < SNAPSHOT_HEADER.itemsize:
        return np.empty(0, SNAPSHOT_ENTRY)
    header = np.frombuffer(data, SNAPSHOT_HEADER, 1)[0]
    if header["version"] != SNAPSHOT_VERSION:
        return np.empty(0, SNAPSHOT_ENTRY)
    room = (len(data) - SNAPSHOT_HEADER.itemsize) // SNAPSHOT_ENTRY.itemsize
    count = min(max(int(header["count"]), 0), room)
    return np.frombuffer(data, SNAPSHOT_ENTRY, count, SNAPSHOT_HEADER.itemsize)


def _first_contradiction(entries: list[EpochEntry], path: str) -> KafkaIndexError | None:
    """Return the first line that a broker refuses, ignores, or drops others for."""
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
