"""A chunk of decoded records as columns, and their memory in Arrow's pool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntFlag
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.format.longs import Longs
from kafka_index.core.kernels.decode_state import CHUNK, PART_HEADERS, PART_KEYS, PART_VALUES
from kafka_index.core.kernels.record_columns import (
    COPY_SLACK_BYTES,
    HEADER_KEY,
    HEADER_ROWS,
    HEADER_VALUE,
    PLACE_COUNT,
    PLACE_ROW,
    copy_fields,
    find_headers,
)

_INT32_BYTES, _LONG_BYTES = 4, 8
#: Alignment of columns, as in Arrow buffers.
_ALIGNMENT = 64

_Value = TypeVar("_Value", bound=np.generic)


class RecordParts(IntFlag):
    """Parts of records to decode, in addition to offsets and timestamps."""

    NONE = 0
    KEYS = PART_KEYS
    VALUES = PART_VALUES
    HEADERS = PART_HEADERS
    ALL = PART_KEYS | PART_VALUES | PART_HEADERS


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Records of consecutive batches, as arrays of length n and Arrow binary arrays.

    Keys and values are None if they are not requested. `header_places`, of shape (PLACE_ROWS, m),
    has the memory addresses of headers, and `readable_end` the end of their memory; both are valid
    only during conversion of the chunk. `first_batch` is the batch number of the first record.
    `batch_ends` has, for each batch, the row after its last record in the chunk. `inner_offsets`
    has the first inner offset of compressed v0 and v1 messages, by batch number.
    """

    offsets: Longs
    timestamps_ms: Longs
    keys: pa.Array | None
    values: pa.Array | None
    header_places: Longs
    first_batch: int
    batch_ends: Longs
    readable_end: np.uint64
    inner_offsets: dict[int, int]

    def __len__(self) -> int:
        return len(self.offsets)

    def select(self, rows: Longs) -> RecordChunk:
        """Return the records in ascending rows."""
        places = self.header_places[:, np.isin(self.header_places[PLACE_ROW], rows)]
        places[PLACE_ROW] = np.searchsorted(rows, places[PLACE_ROW])
        return replace(
            self,
            offsets=self.offsets[rows],
            timestamps_ms=self.timestamps_ms[rows],
            keys=None if self.keys is None else self.keys.take(pa.array(rows)),
            values=None if self.values is None else self.values.take(pa.array(rows)),
            header_places=places,
            batch_ends=np.searchsorted(rows, self.batch_ends),
        )

    def of_batches(self, values: NDArray[_Value]) -> NDArray[_Value]:
        own = values[self.first_batch : self.first_batch + len(self.batch_ends)]
        return np.repeat(own, np.diff(self.batch_ends, prepend=0))

    @property
    def has_headers(self) -> bool:
        return bool(self.header_places.shape[1])

    def header_counts(self) -> Longs:
        counts = np.zeros(len(self), np.int64)
        counts[self.header_places[PLACE_ROW]] = self.header_places[PLACE_COUNT]
        return counts

    def header_columns(self) -> tuple[pa.Array, pa.Array]:
        """Return the names and values of all headers, as bytes, in record order."""
        found = np.empty((HEADER_ROWS, int(self.header_places[PLACE_COUNT].sum())), np.int64)
        find_headers(np.ascontiguousarray(self.header_places), found)
        return (
            _copied(found[HEADER_KEY], found[HEADER_KEY + 1], self.readable_end),
            _copied(found[HEADER_VALUE], found[HEADER_VALUE + 1], self.readable_end),
        )


def _copied(addresses: Longs, sizes: Longs, readable_end: np.uint64) -> pa.Array:
    """Copy memory ranges to an Arrow array."""
    total = int(np.maximum(sizes, 0).sum())
    ends = np.empty(len(sizes) + 1, np.int32)
    data = pa.allocate_buffer(total + COPY_SLACK_BYTES)
    nulls = copy_fields(addresses, sizes, readable_end, ends, np.frombuffer(data, np.uint8))
    return _binary_array(pa.py_buffer(ends), data, total, sizes >= 0, nulls)


def _binary_array(
    ends: pa.Buffer, data: pa.Buffer, total: int, present: NDArray[np.bool_], nulls: int
) -> pa.Array:
    bits = pa.py_buffer(np.packbits(present, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(
        pa.binary(), len(present), [bits, ends, data.slice(0, total)], nulls
    )


class ChunkMemory:
    """Memory from Arrow's pool for the columns of one chunk, reused after it is released.

    It has a fixed capacity of rows, key bytes and value bytes. The positions of headers go to a
    separate array of shape (PLACE_ROWS, m).
    """

    def __init__(
        self, parts: RecordParts, rows: int, key_bytes: int, value_bytes: int, places: Longs
    ) -> None:
        self._places = places
        self._long_bytes = _aligned(_LONG_BYTES * rows)
        self._end_bytes = _aligned(_INT32_BYTES * (rows + 1))
        self._row_bytes = _aligned(rows)
        self._numbers = pa.allocate_buffer(
            2 * (self._long_bytes + self._end_bytes + self._row_bytes)
        )
        self._keys = self._field(parts & RecordParts.KEYS, key_bytes, 0)
        self._values = self._field(parts & RecordParts.VALUES, value_bytes, 1)
        address = self._numbers.address
        #: The argument of `kafka_index.core.kernels.record_columns.decode_batches`.
        self.columns = np.array(
            [
                (
                    address,
                    address + self._long_bytes,
                    *self._addresses(self._keys, key_bytes, 0),
                    *self._addresses(self._values, value_bytes, 1),
                    places.ctypes.data,
                    places.strides[0],
                    rows,
                )
            ],
            CHUNK,
        )

    def chunk(
        self,
        rows: int,
        header_rows: int,
        first_batch: int,
        batch_ends: Longs,
        readable_end: np.uint64,
        inner_offsets: dict[int, int],
    ) -> RecordChunk:
        return RecordChunk(
            np.frombuffer(self._numbers, np.int64, rows),
            np.frombuffer(self._numbers, np.int64, rows, self._long_bytes),
            self._array(self._keys, 0, rows),
            self._array(self._values, 1, rows),
            self._places[:, :header_rows],
            first_batch,
            batch_ends,
            readable_end,
            inner_offsets,
        )

    def used_bytes(self, rows: int) -> tuple[int, int]:
        return (
            0 if self._keys is None else self._total(0, rows),
            0 if self._values is None else self._total(1, rows),
        )

    def _field(self, is_wanted: int, size_bytes: int, number: int) -> pa.Buffer | None:
        if not is_wanted:
            return None
        np.frombuffer(self._numbers, np.int32, 1, self._ends_at(number))[0] = 0
        return pa.allocate_buffer(size_bytes + COPY_SLACK_BYTES)

    def _ends_at(self, number: int) -> int:
        return 2 * self._long_bytes + number * self._end_bytes

    def _present_at(self, number: int) -> int:
        return 2 * (self._long_bytes + self._end_bytes) + number * self._row_bytes

    def _addresses(self, data: pa.Buffer | None, size_bytes: int, number: int) -> tuple[int, ...]:
        address = self._numbers.address
        return (
            address + self._ends_at(number),
            address + self._present_at(number),
            0 if data is None else data.address,
            size_bytes,
        )

    def _total(self, number: int, rows: int) -> int:
        place = self._ends_at(number) + _INT32_BYTES * rows
        return int(np.frombuffer(self._numbers, np.int32, 1, place)[0])

    def _array(self, data: pa.Buffer | None, number: int, rows: int) -> pa.Array | None:
        if data is None:
            return None
        present = np.frombuffer(self._numbers, np.bool_, rows, self._present_at(number))
        ends = self._numbers.slice(self._ends_at(number), _INT32_BYTES * (rows + 1))
        nulls = rows - int(np.count_nonzero(present))
        return _binary_array(ends, data, self._total(number, rows), present, nulls)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
