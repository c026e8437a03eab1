"""Dump of ``.index`` and ``.timeindex``: absolute values, and the first entry out of order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pyarrow as pa

from kafka_index.cli.dump_files import DumpedFile
from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.text import plural
from kafka_index.errors import CorruptIndexError, KafkaIndexError
from kafka_index.index import OffsetIndex, TimeIndex
from kafka_index.layout.integers import Longs

_CHUNK_ENTRIES = 64 * 1024
_ENTRY = ("entry", "entries")


@dataclass(frozen=True, slots=True)
class _Form:
    """The differences between the two kinds of index.

    `names` are those of the two columns, and `offset_column` is the one with the offset. `strict`,
    per column: it ascends with every entry; otherwise it may repeat.
    """

    kind: str
    names: tuple[str, str]
    offset_column: int
    strict: tuple[bool, bool]


_OFFSET_FORM = _Form("offset index", ("offset", "position_bytes"), 0, (True, True))
_TIME_FORM = _Form("time index", ("timestamp_ms", "offset"), 1, (True, False))


def dump_offset_index(file: DumpedFile, output: DumpOutput) -> KafkaIndexError | None:
    """Print the entries of an ``.index``; return its first fault."""
    content = file.fetched_array()
    with OffsetIndex(file.path, file.base_offset, writable=False, content=content) as index:
        return _dump(index, output, _OFFSET_FORM)


def dump_time_index(file: DumpedFile, output: DumpOutput) -> KafkaIndexError | None:
    """Print the entries of a ``.timeindex``; return its first fault."""
    content = file.fetched_array()
    with TimeIndex(file.path, file.base_offset, writable=False, content=content) as index:
        return _dump(index, output, _TIME_FORM)


def _dump(
    index: OffsetIndex | TimeIndex, output: DumpOutput, form: _Form
) -> KafkaIndexError | None:
    slots = index.entries
    index.skip_padding()
    title = f"{form.kind}, base offset {index.base_offset}, {plural(index.entries, *_ENTRY)}"
    output.begin(f"{index.path}: {title}")
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
    size_bytes = index.length
    if fault is None and size_bytes % index.entry_size:
        fault = CorruptIndexError(
            "the file ends inside an entry",
            path=index.path,
            position_bytes=size_bytes - size_bytes % index.entry_size,
            expected=f"a multiple of {index.entry_size} bytes",
            found=f"{size_bytes} bytes",
        )
    output.fault(fault)
    return fault


def _print(columns: Sequence[Longs], form: _Form, output: DumpOutput) -> None:
    output.rows(pa.RecordBatch.from_arrays([pa.array(c) for c in columns], list(form.names)))


def _floor(
    columns: tuple[Longs, Longs], form: _Form, offset: int, before: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Return the last entry so far that is not above an offset."""
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
    """Return the first value of a chunk that is out of order, as DumpLogSegments checks it."""
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
