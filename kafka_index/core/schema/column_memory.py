"""The memory that the compiled loops of Avro and Protobuf fill, and Arrow arrays over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.kernels import typed_columns as ops
from kafka_index.core.schema.bodies import Bodies, DecodedTooLargeError
from kafka_index.core.schema.wire import Reason

#: The reasons why rows failed, keyed by the status codes of the compiled loop.
_REASONS: Mapping[int, Reason] = {
    ops.TRAILING: Reason.TRAILING,
    ops.TRUNCATED: Reason.TRUNCATED,
    ops.BAD_UTF8: Reason.BAD_UTF8,
    ops.BAD_INDEX: Reason.BAD_INDEX,
    ops.OUT_OF_RANGE: Reason.OUT_OF_RANGE,
    ops.TOO_LARGE: Reason.TOO_LARGE,
}
#: The maximum number of elements in all rows: Arrow's list offsets are int32.
_MAX_ELEMENTS = (1 << 31) - 1


@dataclass(slots=True)
class ColumnSpec:
    """A column that a compiled loop fills; `width` is the size of a value in bytes."""

    number: int
    level: int
    width: int
    has_data: bool = False
    is_nullable: bool = False


@dataclass(frozen=True, slots=True)
class Loop:
    """A compiled loop, a schema's tables for the loop, and the columns that the loop fills."""

    kernel: Callable[..., int]
    code: tuple[NDArray[np.int64], ...]
    columns: Sequence[ColumnSpec]
    level_count: int

    @property
    def widths(self) -> list[int]:
        """For each level, one plus the bytes of an element in all columns."""
        widths = [1] * self.level_count
        for column in self.columns:
            widths[column.level] += column.width + column.is_nullable
        return widths


def row_errors(statuses: NDArray[np.uint8]) -> dict[int, Reason]:
    """Return the errors of rows, keyed by row number."""
    failed = np.flatnonzero(np.isin(statuses, list(_REASONS)))
    return {int(row): _REASONS[int(statuses[row])] for row in failed}


class ColumnMemory:
    """The memory that a call of a compiled loop fills.

    Raises `DecodedTooLargeError` if the values exceed the memory limit.
    """

    def __init__(self, loop: Loop, bodies: Bodies, max_bytes: int) -> None:
        self._loop = loop
        self._bodies = bodies
        self._max_bytes = max_bytes
        rows = len(bodies.starts)
        if rows * loop.widths[0] > max_bytes:
            raise DecodedTooLargeError
        self._size = bodies.size_bytes
        self._levels = np.zeros((loop.level_count, ops.LEVEL_FIELDS), np.int64)
        self._levels[0, ops.CAPACITY] = rows
        # An element may have many bytes, so at most half of the memory limit is reserved initially.
        for level, width in enumerate(loop.widths[1:], 1):
            reserved = max_bytes // (2 * loop.level_count * width)
            self._levels[level, ops.CAPACITY] = min(2 * rows, self._size, reserved) + 16
        self._table = np.zeros((len(loop.columns), ops.COLUMN_FIELDS), np.int64)
        self._values: list[NDArray[np.uint8]] = []
        self._valid: list[NDArray[np.uint8] | None] = []
        self._data: list[NDArray[np.uint8] | None] = []
        for column in loop.columns:
            capacity = int(self._levels[column.level, ops.CAPACITY])
            self._values.append(np.zeros(capacity * column.width, np.uint8))
            self._valid.append(np.zeros(capacity, np.uint8) if column.is_nullable else None)
            row = self._table[column.number]
            row[ops.WIDTH], row[ops.COLUMN_LEVEL] = column.width, column.level
            data_buffer = None
            if column.has_data:
                # A column has at most as many bytes as all bodies. Unwritten pages use no memory.
                data_buffer = np.empty(self._size + ops.DATA_SLACK_BYTES, np.uint8)
                row[ops.DATA] = data_buffer.ctypes.data
            self._data.append(data_buffer)
        self._set_addresses()

    def _set_addresses(self) -> None:
        for number, (values, valid) in enumerate(zip(self._values, self._valid, strict=True)):
            self._table[number, ops.VALUES] = values.ctypes.data
            self._table[number, ops.VALID] = 0 if valid is None else valid.ctypes.data

    def run(self) -> NDArray[np.uint8]:
        """Run the loop over all rows, growing the memory; return the status code of each row.

        Raises `DecodedTooLargeError` if the values exceed the memory limit.
        """
        bodies, rows = self._bodies, len(self._bodies.starts)
        statuses = np.zeros(rows, np.uint8)
        frames = np.empty((ops.MAX_FRAMES, ops.FRAME_FIELDS), np.int64)
        requested_elements = np.zeros(2, np.int64)
        row = 0
        while True:
            row = self._loop.kernel(
                bodies.data,
                bodies.starts,
                bodies.ends,
                row,
                *self._loop.code,
                self._table,
                self._levels,
                frames,
                statuses,
                requested_elements,
            )
            if row == rows:
                break
            self._grow(*requested_elements.tolist())
        self._set_null_rows(statuses)
        return statuses

    def _set_null_rows(self, statuses: NDArray[np.uint8]) -> None:
        """Set rows without a value to null in the first column, of which all others are members."""
        valid = (statuses == ops.DECODED) | (statuses == ops.TRAILING)
        if self._loop.columns and not valid.all():
            root_valid = self._valid[0]
            self._valid[0] = valid.view(np.uint8) if root_valid is None else root_valid & valid

    def _grow(self, level: int, min_elements: int) -> None:
        """Reserve memory for at least `min_elements` elements of a level."""
        widths = self._loop.widths
        allocated_bytes = self._size + sum(
            width * int(capacity)
            for width, capacity in zip(widths, self._levels[:, ops.CAPACITY], strict=True)
        )
        old_capacity = int(self._levels[level, ops.CAPACITY])
        max_elements = (self._max_bytes - allocated_bytes) // widths[level] + old_capacity
        if min_elements > min(max_elements, _MAX_ELEMENTS):
            raise DecodedTooLargeError
        capacity = min(max(min_elements, 4 * old_capacity), max_elements)
        self._levels[level, ops.CAPACITY] = capacity
        for column in self._loop.columns:
            if column.level != level:
                continue
            values = np.zeros(capacity * column.width, np.uint8)
            values[: old_capacity * column.width] = self._values[column.number]
            self._values[column.number] = values
            valid = self._valid[column.number]
            if valid is not None:
                grown_valid = np.zeros(capacity, np.uint8)
                grown_valid[:old_capacity] = valid
                self._valid[column.number] = grown_valid
        self._set_addresses()

    # ------------------------------------------------------------------ buffers of Arrow
    def count(self, level: int) -> int:
        """Return the number of elements of a level."""
        return len(self._bodies.starts) if level == 0 else int(self._levels[level, ops.COUNT])

    def validity(self, column: ColumnSpec) -> tuple[pa.Buffer | None, int]:
        """Return the validity bitmap of a column, and the number of nulls."""
        valid = self._valid[column.number]
        if valid is None:
            return None, 0
        level_valid = valid[: self.count(column.level)]
        null_count = len(level_valid) - int(np.count_nonzero(level_valid))
        if not null_count:
            return None, 0
        return pa.py_buffer(np.packbits(level_valid, bitorder="little")), null_count

    def values(self, column: ColumnSpec) -> NDArray[np.uint8]:
        """Return the bytes of a column's values, or of its lengths if the size of values varies."""
        return self._values[column.number][: self.count(column.level) * column.width]

    def data_bytes(self, column: ColumnSpec) -> int:
        """Return the total size in bytes of the values in a column of bytes or strings."""
        return int(self._table[column.number, ops.DATA_USED])

    def offsets(self, column: ColumnSpec) -> pa.Buffer:
        """Return Arrow offsets that are computed from a column of lengths."""
        sizes = self.values(column).view(np.int32)
        offsets = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        return pa.py_buffer(offsets)

    def build_binary(self, column: ColumnSpec, arrow_type: pa.DataType) -> pa.Array:
        """Build the array of a column of bytes or strings."""
        data = self._data[column.number]
        assert data is not None  # noqa: S101, because mypy needs it
        used_bytes = self.data_bytes(column)
        validity, nulls = self.validity(column)
        buffers = [validity, self.offsets(column), pa.py_buffer(data[:used_bytes])]
        return pa.Array.from_buffers(arrow_type, self.count(column.level), buffers, nulls)

    def build_numbers(self, column: ColumnSpec, arrow_type: pa.DataType) -> pa.Array:
        """Build the array of a column of fixed-width numbers; the column has one byte per bool."""
        values = self.values(column)
        if pa.types.is_boolean(arrow_type):
            values = np.packbits(values, bitorder="little")
        validity, nulls = self.validity(column)
        buffers = [validity, pa.py_buffer(values)]
        return pa.Array.from_buffers(arrow_type, self.count(column.level), buffers, nulls)

    def build_nested(
        self, column: ColumnSpec, arrow_type: pa.DataType, *children: pa.Array
    ) -> pa.Array:
        """Build a struct from its members, a list from its elements, or a map from its entries."""
        validity, nulls = self.validity(column)
        buffers = [validity] if pa.types.is_struct(arrow_type) else [validity, self.offsets(column)]
        count = self.count(column.level)
        return pa.Array.from_buffers(arrow_type, count, buffers, nulls, children=list(children))
