"""Records as columns of addresses: what `kafka_index.records.batch_encoder` packs into batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.errors import InputError
from kafka_index.kernels.record_headers import HEADER_ROWS
from kafka_index.layout.integers import Longs

_NULL = -1


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Records as columns of numbers, of length n and with ascending absolute offsets.

    Timestamps are -1 for none. Keys and values are memory addresses and sizes in bytes, -1 for
    null. `header_starts`, of length n + 1, has the first column of each record in `headers`, of
    shape (4, m): addresses and sizes of the names of headers, and of their values. `owners` keep
    the bytes alive.
    """

    offsets: Longs
    timestamps_ms: Longs
    keys: Longs
    key_sizes: Longs
    values: Longs
    value_sizes: Longs
    header_starts: Longs
    headers: Longs
    owners: tuple[object, ...] = ()

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.offsets)

    @classmethod
    def of_arrays(
        cls,
        offsets: Longs,
        timestamps_ms: Longs,
        keys: pa.Array,
        values: pa.Array,
        headers: pa.Array | None = None,
    ) -> RecordRows:
        """Return the records of Arrow columns.

        Keys and values are binary, headers lists of structs of ``key`` and ``value``. Raises
        `InputError` if a header or the name of one is null.
        """
        starts = np.zeros(len(offsets) + 1, np.int64)
        fields = np.empty((HEADER_ROWS, 0), np.int64)
        owners: tuple[object, ...] = (keys, values)
        if headers is not None and headers.null_count < len(headers):
            np.cumsum(_numbers(pc.list_value_length(headers).fill_null(0)), out=starts[1:])
            pairs = headers.flatten()
            names, contents = (child.cast(pa.binary()) for child in pairs.flatten())
            if names.null_count:
                raise InputError("a header without a name", expected="a string")
            fields = np.empty((HEADER_ROWS, len(pairs)), np.int64)
            fields[0], fields[1] = _addresses(names)
            fields[2], fields[3] = _addresses(contents)
            owners = (*owners, names, contents)
        return cls(
            # Copies: for read-only arrays, as Arrow's are, another kernel would be compiled.
            np.array(offsets, np.int64),
            np.array(timestamps_ms, np.int64),
            *_addresses(keys),
            *_addresses(values),
            starts,
            fields,
            owners,
        )


def _numbers(array: pa.Array) -> Longs:
    numbers: Longs = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers


def _addresses(array: pa.Array) -> tuple[Longs, Longs]:
    """Return the memory addresses of binary values, and their sizes, -1 for null."""
    _, ends, data = array.buffers()
    count = len(array)
    if not count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    bounds = np.frombuffer(ends, width)[array.offset : array.offset + count + 1].astype(np.int64)
    sizes = np.diff(bounds)
    if array.null_count:
        sizes[_numbers(array.is_null().cast(pa.int8())) == 1] = _NULL
    return bounds[:-1] + (0 if data is None else data.address), sizes
