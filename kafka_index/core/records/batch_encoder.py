"""Encode Arrow columns as v2 batches, in bulk, byte for byte like Kafka's builder.

`BatchEncoder` packs `RecordRows` into batches of at most ``batch.size`` bytes, compresses them, and
writes the headers. Sources: Kafka's ``MemoryRecordsBuilder`` and ``DefaultRecord.writeTo``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
)
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.memory import Records
from kafka_index.core.kernels.record_columns import HEADER_ROWS
from kafka_index.core.kernels.record_encoder import PACKED, pack_batches, seal_batches
from kafka_index.core.records.record_batch import BatchFields, codec_of_name, compress

_NULL = -1

#: Output buffer size; a larger record gets a larger buffer.
_CHUNK_BYTES = 4 * 1024 * 1024
_CHUNK_BATCHES = 4096
#: Number of batches that a thread compresses per task.
_COMPRESSED_TOGETHER = 16


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Records as numeric columns of length n, with ascending absolute offsets.

    Timestamps are -1 for none. Keys and values are memory addresses and sizes in bytes, -1 for
    null. `header_starts`, of length n + 1, has the first column of each record in `headers`, of
    shape (4, m): addresses and sizes of header names and values. `owners` keep the memory alive.
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
        return len(self.offsets)

    @property
    def columns(self) -> tuple[Longs, Longs, Longs, Longs, Longs, Longs, Longs, Longs]:
        """The arguments of `pack_batches`."""
        return (
            self.offsets,
            self.timestamps_ms,
            self.keys,
            self.key_sizes,
            self.values,
            self.value_sizes,
            self.header_starts,
            self.headers,
        )

    @classmethod
    def of_arrays(
        cls,
        offsets: Longs,
        timestamps_ms: Longs,
        keys: pa.Array,
        values: pa.Array,
        headers: pa.Array | None = None,
    ) -> RecordRows:
        """Convert Arrow columns.

        Keys and values are binary, headers are lists of structs with ``key`` and ``value``. Raises
        `InputError` if a header or a header name is null.
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
            # Copied, because numba would compile another kernel for read-only Arrow memory.
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
    """Return the memory addresses and sizes of binary values, -1 for null."""
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


@dataclass(frozen=True, slots=True)
class EncodedBatches:
    """Consecutive complete batches: their bytes, and the numbers of batches and records.

    The bytes are valid until the next batches are requested.
    """

    data: Bytes
    batches: int
    records: int


class BatchEncoder:
    """Packs records into batches.

    ``batch_bytes`` is ``batch.size``: the maximum size of a batch with more than one record, before
    compression. `executor`, if given, compresses batches in other threads. Raises `ConfigError` for
    an unknown ``compression.type``.
    """

    def __init__(
        self,
        compression: str,
        batch_bytes: int,
        leader_epoch: int,
        compressors: Executor | None = None,
    ) -> None:
        self._compressors = compressors
        self._codec = codec_of_name(compression)
        self._batch_bytes = batch_bytes
        self._leader_epoch = leader_epoch
        self._data: Bytes = np.empty(_CHUNK_BYTES, np.uint8)
        self._packed = np.empty(_CHUNK_BATCHES, PACKED)

    def encode(
        self, rows: RecordRows, groups: Longs, *, uses_append_time: Longs, keeps_last: bool
    ) -> Iterator[EncodedBatches]:
        """Yield the batches of records.

        Records of different groups never share a batch. `uses_append_time`, nonzero for
        LogAppendTime, is constant within a group, whose records then have one timestamp. With
        `keeps_last`, the last batch is not returned, because further records may be added; it
        starts at the row given by the sum of `EncodedBatches.records`. Raises `InputError` for a
        batch larger than Kafka's formats allow.
        """
        row = 0
        while row < len(rows):
            following, count, needed = map(
                int,
                pack_batches(
                    *rows.columns, groups, row, self._batch_bytes, -1, 0, self._data, self._packed
                ),
            )
            is_end = following == len(rows)
            if not count and needed:
                self._data = _larger(self._data, needed)
                continue
            packed = self._packed[:count]
            # Relative to the first offset, since sums with absolute offsets could overflow.
            relative = packed["base_offset"] - packed["base_offset"][0]
            relative += packed["last_offset_delta"]
            within = int(np.searchsorted(relative, INT32_MAX, "right"))
            if within < count:
                # Batches that are returned together fit into one segment.
                count, is_end = within, False
                following = int(packed["first_row"][within])
            if is_end and keeps_last:
                count -= 1
                following = int(packed["first_row"][count])
            if count:
                data = self._seal(packed[:count], uses_append_time)
                yield EncodedBatches(data, count, following - row)
            if is_end:
                return
            row = following

    def _seal(self, packed: Records, uses_append_time: Longs) -> Bytes:
        append = uses_append_time[packed["first_row"]] != 0
        packed["attributes"] = self._codec | np.where(append, TIMESTAMP_TYPE_MASK, 0)
        packed["leader_epoch"] = self._leader_epoch
        packed["producer_id"] = NO_PRODUCER_ID
        packed["producer_epoch"] = NO_PRODUCER_EPOCH
        packed["base_sequence"] = NO_SEQUENCE
        data = self._data
        if self._codec:
            data = self._compressed(packed)
        seal_batches(data, packed)
        return data[: int(packed["position"][-1] + packed["size_bytes"][-1])]

    def _compressed(self, packed: Records) -> Bytes:
        """Compress the records of batches; update the positions of the batches."""
        starts = packed["position"] + RECORD_BATCH_OVERHEAD_BYTES
        ends = packed["position"] + packed["size_bytes"]
        cuts = range(_COMPRESSED_TOGETHER, len(starts), _COMPRESSED_TOGETHER)
        together = np.split(starts, cuts), np.split(ends, cuts)
        apply = map if self._compressors is None else self._compressors.map
        compressed: Iterable[list[bytes]] = apply(self._compress, *together)
        bodies = list(chain.from_iterable(compressed))
        sizes = np.array([len(body) for body in bodies]) + RECORD_BATCH_OVERHEAD_BYTES
        packed["size_bytes"] = sizes
        packed["position"] = np.cumsum(sizes) - sizes
        header = bytes(RECORD_BATCH_OVERHEAD_BYTES)
        return np.frombuffer(bytearray(header + header.join(bodies)), np.uint8)

    def _compress(self, starts: Longs, ends: Longs) -> list[bytes]:
        data = self._data
        return [
            compress(self._codec, data[start:end].tobytes())
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]


def encode_batch(rows: RecordRows, base_offset: int, fields: BatchFields) -> bytes:
    """Encode one batch of at least one record, like `kafka_index.write_record_batch`.

    Raises `InputError` for a batch larger than Kafka's formats allow.
    """
    horizon = fields.delete_horizon_ms
    base_timestamp = int(rows.timestamps_ms[0]) if horizon is None else horizon
    packed = np.empty(1, PACKED)
    data: Bytes = np.empty(_CHUNK_BYTES // 16, np.uint8)
    groups = np.zeros(len(rows), np.int64)
    while True:
        _, count, needed = pack_batches(
            *rows.columns, groups, 0, INT64_MAX, base_offset, base_timestamp, data, packed
        )
        if count:
            break
        data = _larger(data, int(needed))
    batch = packed[0]
    codec = codec_of_name(fields.compression)
    if codec:
        records = compress(codec, data[RECORD_BATCH_OVERHEAD_BYTES : batch.size_bytes].tobytes())
        batch.size_bytes = RECORD_BATCH_OVERHEAD_BYTES + len(records)
        data = np.empty(batch.size_bytes, np.uint8)
        data[RECORD_BATCH_OVERHEAD_BYTES:] = np.frombuffer(records, np.uint8)
    if fields.last_offset_delta is not None:
        batch.last_offset_delta = fields.last_offset_delta
    if fields.log_append_time_ms is not None:
        batch.max_timestamp = fields.log_append_time_ms
    batch.attributes = fields.attributes()
    batch.leader_epoch = fields.leader_epoch
    batch.producer_id = fields.producer_id
    batch.producer_epoch = fields.producer_epoch
    batch.base_sequence = fields.base_sequence
    seal_batches(data, packed)
    return data[: batch.size_bytes].tobytes()


def _larger(data: Bytes, needed: int) -> Bytes:
    if needed > INT32_MAX:
        raise InputError("a batch is too large", expected=f"{INT32_MAX} or less", found=needed)
    # Doubled, because a batch is started again for each record that does not fit.
    return np.empty(max(needed, 2 * len(data)), np.uint8)
