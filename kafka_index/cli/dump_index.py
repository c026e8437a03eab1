"""Dump of ``.index`` and ``.timeindex``: absolute values, and what breaks the files' rules."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.text import plural
from kafka_index.errors import CorruptIndexError, KafkaIndexError
from kafka_index.index import OffsetIndex, TimeIndex
from kafka_index.layout.index_entries import OFFSET_ENTRY, TIME_ENTRY

_CHUNK_ENTRIES = 64 * 1024
_ENTRY = ("entry", "entries")

_Longs = NDArray[np.int64]
_Read = Callable[[int, int], tuple[_Longs, _Longs]]


@dataclass(frozen=True, slots=True)
class _Form:
    """What tells one kind of index from the other.

    Parameters
    ----------
    kind : str
        For people.
    entry_bytes : int
        Size of an entry.
    names : tuple of str
        The two columns.
    offset_column : int
        Which of them is the offset.
    strict : tuple of bool
        Whether a column has to grow with every entry, or only must not shrink.
    """

    kind: str
    entry_bytes: int
    names: tuple[str, str]
    offset_column: int
    strict: tuple[bool, bool]


_OFFSET_FORM = _Form(
    "offset index", OFFSET_ENTRY.itemsize, ("offset", "position_bytes"), 0, (True, True)
)
_TIME_FORM = _Form("time index", TIME_ENTRY.itemsize, ("timestamp_ms", "offset"), 1, (True, False))


def dump_offset_index(path: str, base_offset: int, output: DumpOutput) -> KafkaIndexError | None:
    """Print the entries of an ``.index``; return the first fault in it, if there is one."""
    with OffsetIndex(path, base_offset, writable=False) as index:
        return _dump(path, base_offset, output, _OFFSET_FORM, index.entries, index.read_entries)


def dump_time_index(path: str, base_offset: int, output: DumpOutput) -> KafkaIndexError | None:
    """Print the entries of a ``.timeindex``; return the first fault in it, if there is one."""
    with TimeIndex(path, base_offset, writable=False) as index:
        return _dump(path, base_offset, output, _TIME_FORM, index.entries, index.read_entries)


def _dump(
    path: str, base_offset: int, output: DumpOutput, form: _Form, entries: int, read: _Read
) -> KafkaIndexError | None:
    used = _used_entries(form, base_offset, entries, read)
    output.begin(f"{path}: {form.kind}, base offset {base_offset}, {plural(used, *_ENTRY)}")
    fault: KafkaIndexError | None = None
    before: tuple[int, int] | None = None
    for start in range(0, used, _CHUNK_ENTRIES):
        columns = read(start, min(start + _CHUNK_ENTRIES, used))
        output.rows(pa.RecordBatch.from_arrays([pa.array(c) for c in columns], list(form.names)))
        fault = fault or _first_fault(path, base_offset, form, start, columns, before)
        before = int(columns[0][-1]), int(columns[1][-1])
    if used < entries:
        output.remark(
            f"{plural(entries - used, 'preallocated entry', 'preallocated entries')} of zeros "
            "behind them"
        )
    size_bytes = os.path.getsize(path)
    if fault is None and size_bytes % form.entry_bytes:
        fault = CorruptIndexError(
            "the file ends inside an entry",
            path=path,
            position_bytes=size_bytes - size_bytes % form.entry_bytes,
            expected=f"a multiple of {form.entry_bytes} bytes",
            found=f"{size_bytes} bytes",
        )
    if fault is not None:
        output.remark(f"damaged at byte {fault.position_bytes}: {fault.message}", bad=True)
    return fault


def _used_entries(form: _Form, base_offset: int, entries: int, read: _Read) -> int:
    """Count the entries before a tail of zeros.

    An entry of an offset index is never all zeros: its position lies behind a whole interval. One
    of a time index is when the largest timestamp is 0 at the base offset, and then it is alone:
    a later one has a larger timestamp.
    """
    if entries == 1 and form is _TIME_FORM:
        return 1
    for stop in range(entries, 0, -_CHUNK_ENTRIES):
        start = max(0, stop - _CHUNK_ENTRIES)
        first, second = read(start, stop)
        zero = (base_offset, 0) if form.offset_column == 0 else (0, base_offset)
        used = np.flatnonzero((first != zero[0]) | (second != zero[1]))
        if used.size:
            return start + int(used[-1]) + 1
    return 0


def _first_fault(
    path: str,
    base_offset: int,
    form: _Form,
    start: int,
    columns: tuple[_Longs, _Longs],
    before: tuple[int, int] | None,
) -> KafkaIndexError | None:
    faults = []
    for number, (name, values) in enumerate(zip(form.names, columns, strict=True)):
        least = base_offset if number == form.offset_column else 0
        low = np.flatnonzero(values < least)
        if low.size:
            faults.append((int(low[0]), f"{name} is too small", f"at least {least}", values))
        previous = np.empty_like(values)
        previous[1:] = values[:-1]
        previous[0] = values[0] - 1 if before is None else before[number]
        fall = np.flatnonzero(values <= previous if form.strict[number] else values < previous)
        if fall.size:
            place = int(fall[0])
            word = "above" if form.strict[number] else "at least"
            expected = f"{word} {int(previous[place])}"
            faults.append((place, f"{name} does not ascend", expected, values))
    if not faults:
        return None
    place, message, expected, values = min(faults, key=_by_place)
    return CorruptIndexError(
        message,
        path=path,
        position_bytes=(start + place) * form.entry_bytes,
        expected=expected,
        found=int(values[place]),
    )


def _by_place(fault: tuple[int, str, str, _Longs]) -> int:
    return fault[0]
