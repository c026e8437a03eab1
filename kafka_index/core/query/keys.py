"""The keys and partitions of queries, converted to numbers.

Keys are offsets, or timestamps in milliseconds. They come from typed columns (Parquet, data frames)
or from text (CSV, JSON). Cells without a valid key are marked and are not errors. Whole columns are
converted at once; only cells of unusual form are parsed individually. Each topic is looked up once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.errors import InputError
from kafka_index.core.format.config import parse_integer
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.times import parse_iso_time
from kafka_index.core.log.read.answers import Answers
from kafka_index.core.query.choices import By

Flags = NDArray[np.bool_]
#: Columns of every query besides its key.
TOPIC, PARTITION = "topic", "partition"

_MS_PER_DAY = 86_400_000
_MS_PER_SECOND = 1_000
# Units of a timestamp type per millisecond.
_UNITS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_BLANKS = " \t"
# Integers with this many digits always fit into int64.
_SHORT_INTEGER = r"^[+-]?[0-9]{1,18}$"
# Times that Arrow parses, in microseconds.
_ZONED = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})$"  # noqa: E501
Codes = NDArray[np.int32]
#: The partition does not exist, or the topic is null.
NO_PARTITION = -1
# A table indexed by partition number is fastest for normal numbering. Its size is limited, because
# a directory named t-2147483647 would exhaust memory.
_CELLS_PER_PARTITION = 16
_MIN_CELLS = 1 << 16
_PARTITION_BITS = 32
_RADIX_BITS = 16


@dataclass(frozen=True, slots=True)
class Keys:
    """The offsets or timestamps of n queries, in milliseconds since the epoch.

    Values are undefined if `valid` is False; None means that all are valid. With `specials`, -1, -2
    and -3 are special timestamps (`SpecialTimestamp`). In a column of a timestamp type they are
    times before 1970.
    """

    values: Longs
    valid: Flags | None = None
    specials: bool = True

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, column: pa.Array | pa.ChunkedArray, by: By) -> Keys:
        """Convert a column accepted by `check_columns`, or strings.

        Columns are integers (timestamps in milliseconds) or, for timestamps, times and dates,
        rounded up to a millisecond. Times without a zone are UTC. Strings contain integers, or ISO
        8601 dates and times. Only integers can be special timestamps: text of a time before 1970 is
        invalid.
        """
        column = plain_array(column)
        is_text = pa.types.is_string(column.type)
        if pa.types.is_integer(column.type) or (is_text and by is By.OFFSET):
            return cls(*integers(column))
        if by is By.OFFSET:
            raise InputError("offsets must be integers", found=column.type)
        if not is_text:
            return cls(_milliseconds(column), _validity(column), specials=False)
        times = _column_of_times(column)
        if times is not None:
            return cls(times, times >= 0)
        values, valid = integers(column)
        if valid is None:
            return cls(values)
        rest = np.flatnonzero(~valid & column.is_valid().to_numpy(zero_copy_only=False))
        if len(rest):
            values = values.copy()
            values[rest], valid[rest] = _mixed_times(column.take(pa.array(rest)))
        return cls(values, valid)

    def to_arrow(self) -> pa.Array:
        return pa.array(self.values, mask=None if self.valid is None else ~self.valid)


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Queries as columns; topics may be dictionary-encoded, partitions are integers.

    A partition is null if its cell is not an integer.
    """

    topics: pa.Array | pa.ChunkedArray
    partitions: pa.Array
    keys: Keys

    @classmethod
    def of(cls, rows: pa.RecordBatch | pa.Table, by: By) -> QueryBatch:
        """Convert a table of queries; partitions and keys may be strings."""
        partitions = plain_array(rows.column(PARTITION))
        if not pa.types.is_integer(partitions.type):
            numbers, valid = integers(partitions)
            partitions = pa.array(numbers, mask=None if valid is None else ~valid)
        return cls(rows.column(TOPIC), partitions, Keys.of(rows.column(by.column), by))

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Longs) -> QueryBatch:
        chosen, keys = pa.array(rows), self.keys
        valid = None if keys.valid is None else keys.valid[rows]
        asked = Keys(keys.values[rows], valid, keys.specials)
        return QueryBatch(self.topics.take(chosen), self.partitions.take(chosen), asked)


def plain_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Combine a column into one array that is not dictionary-encoded."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return column


def integers(column: pa.Array | pa.ChunkedArray) -> tuple[Longs, Flags | None]:
    """Convert integers or strings of integers to int64; also return which are valid (None: all)."""
    column = plain_array(column)
    if pa.types.is_string(column.type):
        return _text_integers(column)
    valid = _validity(column)
    if column.type == pa.uint64():
        wide = column.fill_null(0).to_numpy(zero_copy_only=False)
        fits = wide <= INT64_MAX
        if not fits.all():
            valid = fits if valid is None else valid & fits
        return wide.astype(np.int64), valid
    return _longs(column.cast(pa.int64())), valid


def _text_integers(column: pa.Array) -> tuple[Longs, Flags | None]:
    whole = _try_cast(column, pa.int64())
    # Arrow would parse 0x10 as a number.
    if whole is not None and not any(
        pc.any(pc.starts_with(column, prefix)).as_py() for prefix in ("0x", "0X")
    ):
        return _longs(whole), _validity(column)
    text = pc.utf8_trim(column, _BLANKS)
    short = pc.match_substring_regex(text, _SHORT_INTEGER).fill_null(False)  # noqa: FBT003
    unsigned = pc.utf8_ltrim(pc.if_else(short, text, None), "+")
    values = _longs(unsigned.cast(pa.int64())).copy()
    valid = np.array(short.to_numpy(zero_copy_only=False))
    for row in np.flatnonzero(~valid):
        cell = text[int(row)].as_py()
        value = None if cell is None else parse_integer(cell)
        if value is not None:
            values[row], valid[row] = value, True
    return values, valid


def ceil_divide(values: Longs, by: int) -> Longs:
    """Divide and round up, without overflow."""
    if by == 1:
        return values
    whole: Longs = values // by
    whole += values != whole * by
    return whole


def _milliseconds(column: pa.Array) -> Longs:
    """Convert a timestamp or date array to milliseconds, rounded up."""
    kind = column.type
    if pa.types.is_date32(kind):
        return _longs(column.view(pa.int32()).cast(pa.int64())) * _MS_PER_DAY
    values = _longs(column.view(pa.int64()))
    if pa.types.is_date64(kind):
        return values
    if kind.unit == "s":
        # A time outside the range of milliseconds is before or after all records.
        limit = INT64_MAX // _MS_PER_SECOND
        return np.clip(values, -limit, limit) * _MS_PER_SECOND
    return ceil_divide(values, _UNITS_PER_MS[kind.unit])


def _column_of_times(column: pa.Array) -> Longs | None:
    """Convert a column that has only times with a zone, the usual case; otherwise None."""
    # Checked on the first cell, so that a column of integers does not need a failing cast.
    if column.null_count or not len(column) or parse_iso_time(column[0].as_py()) is None:
        return None
    parsed = _try_cast(column, pa.timestamp("us", "UTC"))
    return None if parsed is None else _milliseconds(parsed)


def _mixed_times(column: pa.Array) -> tuple[Longs, Flags]:
    """Parse cells that are not integers as times; return which are valid and not before 1970."""
    text = pc.utf8_trim(column, _BLANKS)
    zoned = pc.match_substring_regex(text, _ZONED)
    parsed = _try_cast(pc.if_else(zoned, text, None), pa.timestamp("us", "UTC"))
    values = np.full(len(column), -1, np.int64)
    left = np.arange(len(column))
    if parsed is not None:
        done = np.array(zoned.to_numpy(zero_copy_only=False))
        values[done] = _milliseconds(parsed)[done]
        left = np.flatnonzero(~done)
    for row in left:
        time = parse_iso_time(text[int(row)].as_py())
        if time is not None:
            values[row] = time
    return values, values >= 0


def _try_cast(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return None


def _validity(column: pa.Array) -> Flags | None:
    if not column.null_count:
        return None
    return np.array(column.is_valid().to_numpy(zero_copy_only=False))


def _longs(column: pa.Array) -> Longs:
    values: Longs = column.fill_null(0).to_numpy(zero_copy_only=False)
    return values


class PartitionCodes:
    """Maps topic and partition number to a code, 0..2^31 - 1."""

    def __init__(self, topics: Sequence[str], partitions: Longs, codes: Codes) -> None:
        self._topics = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
        numbers = np.array([self._topics[topic] for topic in topics], np.int64)
        counts = np.zeros(len(self._topics), np.int64)
        np.maximum.at(counts, numbers, partitions + 1)
        self._dense: Codes | None = None
        if counts.sum() <= _CELLS_PER_PARTITION * len(codes) + _MIN_CELLS:
            # The last row, without cells, is for unknown topics.
            self._counts = np.append(counts, 0)
            self._starts = np.append(0, np.cumsum(counts))
            self._dense = np.full(max(int(counts.sum()), 1), NO_PARTITION, np.int32)
            self._dense[self._starts[numbers] + partitions] = codes
        else:
            keys = (numbers << _PARTITION_BITS) | partitions
            order = np.argsort(keys)
            self._keys, self._codes = keys[order], codes[order]

    def find(self, topics: pa.Array | pa.ChunkedArray, partitions: Longs) -> Codes:
        """Return the code of each row's partition, or `NO_PARTITION`."""
        if not len(partitions):
            return np.empty(0, np.int32)
        numbers = self._topic_numbers(topics)
        if self._dense is None:
            return self._search(numbers, partitions)
        known = (partitions >= 0) & (partitions < self._counts[numbers])
        cells = np.where(known, self._starts[numbers] + partitions, 0)
        return np.where(known, self._dense[cells], np.int32(NO_PARTITION))

    def _search(self, numbers: Longs, partitions: Longs) -> Codes:
        # An unknown topic has the number after the last one, so it is never found.
        known = (partitions >= 0) & (partitions < 1 << _PARTITION_BITS)
        keys = (numbers << _PARTITION_BITS) | np.where(known, partitions, 0)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known &= self._keys[places] == keys
        return np.where(known, self._codes[places], np.int32(NO_PARTITION))

    def _topic_numbers(self, topics: pa.Array | pa.ChunkedArray) -> Longs:
        if isinstance(topics, pa.ChunkedArray):
            topics = pa.concat_arrays(topics.chunks)
        encoded = topics if pa.types.is_dictionary(topics.type) else pc.dictionary_encode(topics)
        unknown = len(self._topics)
        numbers = np.array(
            [*(self._topics.get(name, unknown) for name in _texts(encoded.dictionary)), unknown],
            np.int64,
        )
        # A null is an unknown topic.
        indices = encoded.indices.fill_null(len(encoded.dictionary))
        found: Longs = numbers[indices.to_numpy(zero_copy_only=False)]
        return found


def grouping_order(codes: Codes) -> Longs | None:
    """Return an order that groups equal codes, stable; None when they are grouped already."""
    if len(codes) < 2 or not (codes[1:] < codes[:-1]).any():
        return None
    # numpy sorts 16-bit numbers by radix, many times faster than by comparison.
    shifted = (codes - NO_PARTITION).astype(np.uint32)
    low = shifted.astype(np.uint16)
    order = np.argsort(low, kind="stable")
    if int(shifted.max()) >> _RADIX_BITS:
        high = (shifted >> _RADIX_BITS).astype(np.uint16)
        order = order[np.argsort(high[order], kind="stable")]
    return order


def groups(codes: Codes) -> Iterator[tuple[int, slice]]:
    if not len(codes):
        return
    starts = np.concatenate(([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1, [len(codes)]))
    for start, end in pairwise(starts.tolist()):
        yield int(codes[start]), slice(start, end)


def restore_order(answers: Answers, order: Longs) -> Answers:
    """Return answers to queries that were reordered, in the original order."""
    status = np.empty_like(answers.status)
    status[order] = answers.status
    # Column by column, so that random writes stay within one column's memory.
    values = np.empty_like(answers.values)
    for column, ordered in zip(values, answers.values, strict=True):
        column[order] = ordered
    return Answers(status, values)


def _texts(names: pa.Array) -> list[str]:
    """Return names that may be null or not UTF-8: no topic has such a name."""
    cells = names.cast(pa.large_binary()).to_pylist()
    return ["" if cell is None else cell.decode(errors="replace") for cell in cells]
