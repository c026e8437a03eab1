"""Input and output of decoders for all schema languages, and imports of optional libraries."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.errors import InputError
from kafka_index.core.format.longs import Longs
from kafka_index.core.schema.wire import Reason, binary_buffers

#: The command that installs the libraries for typed values.
INSTALL_TYPED = "pip install 'kafka-index[typed]'"


class DecodedTooLargeError(Exception):
    """The values of rows exceed the memory limit."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """The encoded values of rows, without the frames that contain schema IDs.

    Attributes
    ----------
    data : array of uint8
        The memory that contains the bodies.
    starts, ends : array of int64, shape (n,)
        The body of each row in `data`; the start is -1 for a row without a body.
    """

    data: NDArray[np.uint8]
    starts: Longs
    ends: Longs

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def size_bytes(self) -> int:
        """The bytes of all bodies."""
        return int(np.where(self.starts < 0, 0, self.ends - self.starts).sum())

    def row_bytes(self, row: int) -> bytes:
        """Return the body of a row."""
        return self.data[self.starts[row] : self.ends[row]].tobytes()

    @classmethod
    def from_array(cls, values: pa.Array) -> Self:
        """Return bodies that contain all bytes of a binary array's rows."""
        data, starts, ends = binary_buffers(values)
        if values.null_count:
            starts = np.where(np.asarray(values.is_null()), -1, starts)
        return cls(data, starts, ends)

    def take(self, rows: Longs) -> Bodies:
        """Return the bodies of the rows with these row numbers."""
        return Bodies(self.data, self.starts[rows], self.ends[rows])

    def slice(self, first_row: int, end_row: int) -> Bodies:
        """Return the bodies of successive rows."""
        return Bodies(self.data, self.starts[first_row:end_row], self.ends[first_row:end_row])


@dataclass(frozen=True, slots=True)
class Decoded:
    """The decoded values of rows; null for a row without a value.

    `errors` has the reasons why rows did not decode, keyed by row number. A row with trailing bytes
    has both a value and an error.
    """

    array: pa.Array
    errors: Mapping[int, Reason] = field(default_factory=dict)


def import_extra(name: str) -> Any:
    """Import a library for typed values; raises `InputError` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"the library {error.name or name} for typed values is not installed",
            hint=INSTALL_TYPED,
        ) from error


def with_children(array: pa.Array, arrow_type: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Return a struct, list or map whose children are replaced by arrays of equal length."""
    if array.offset:
        # A slice is copied, because the buffers of a copy begin with its first row.
        array = pa.concat_arrays([array, array[:0]])
    buffers = array.buffers()[: arrow_type.num_buffers]
    return pa.Array.from_buffers(arrow_type, len(array), buffers, children=children)
