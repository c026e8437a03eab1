"""Decode records in chunks of columns, within the memory budget for decompressed records.

`RecordDecoder` iterates over the batches of a window. Uncompressed batches are read in place.
Compressed batches are decompressed into memory that is reserved only until the next chunk is
converted. So callers never hold a part of the budget while they wait, however slowly they consume
the results. The columns of a chunk are in memory from Arrow's pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntFlag
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptLogError, TooLargeError, without_frames
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.decompress import new_contexts
from kafka_index.core.kernels.record_columns import (
    CHUNK,
    COPY_SLACK_BYTES,
    CUT_FIELD,
    DECODE_DONE,
    DECODE_FAULT,
    DECODE_FULL,
    DECODE_NEEDS_RECORDS,
    DECODE_NEEDS_ROOM,
    DECODE_SECTION_DONE,
    HEADER_KEY,
    HEADER_ROWS,
    HEADER_VALUE,
    MAX_HEADERS,
    NEGATIVE_RECORD_COUNT,
    NOT_OPEN,
    PART_HEADERS,
    PART_KEYS,
    PART_VALUES,
    PLACE_COUNT,
    PLACE_ROW,
    PLACE_ROWS,
    TOO_MANY_HEADERS,
    begin_chunk,
    copy_fields,
    decode_batches,
    find_headers,
    hand_in_section,
    new_state,
    skip_batch,
)
from kafka_index.core.kernels.records import RecordSection
from kafka_index.core.records.decompression import (
    DecompressedRecords,
    DecompressionBudget,
    decompress,
)
from kafka_index.core.records.record_sections import BatchRecords, open_records, record_fault

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
    has the first inner offset of compressed v0 and v1 messages, keyed by batch number.
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
        chunk_values = values[self.first_batch : self.first_batch + len(self.batch_ends)]
        return np.repeat(chunk_values, np.diff(self.batch_ends, prepend=0))

    @property
    def has_headers(self) -> bool:
        return bool(self.header_places.shape[1])

    def header_counts(self) -> Longs:
        counts = np.zeros(len(self), np.int64)
        counts[self.header_places[PLACE_ROW]] = self.header_places[PLACE_COUNT]
        return counts

    def header_columns(self) -> tuple[pa.Array, pa.Array]:
        """Return the names and values of all headers, as bytes, in record order."""
        headers = np.empty((HEADER_ROWS, int(self.header_places[PLACE_COUNT].sum())), np.int64)
        find_headers(np.ascontiguousarray(self.header_places), headers)
        return (
            _copy_ranges(headers[HEADER_KEY], headers[HEADER_KEY + 1], self.readable_end),
            _copy_ranges(headers[HEADER_VALUE], headers[HEADER_VALUE + 1], self.readable_end),
        )


def _copy_ranges(addresses: Longs, sizes: Longs, readable_end: np.uint64) -> pa.Array:
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
        self._long_bytes = _align(_LONG_BYTES * rows)
        self._end_bytes = _align(_INT32_BYTES * (rows + 1))
        self._row_bytes = _align(rows)
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


def _align(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


#: Maximum bytes of keys, and of values, in a chunk with more than one record.
_CHUNK_BYTES = 4 * 1024 * 1024
#: Memory for decompressed records; a batch that needs more is decoded separately.
_ARENA_BYTES = 4 * 1024 * 1024
#: Rows and bytes by which a chunk exceeds 125% of the expected size.
_MIN_SPARE = 1024
#: Size of a record with null key and value and without headers.
_MIN_RECORD_BYTES = 7

#: A batch larger than the arena is decoded in parts of at least this size, and in at most about
#: `_MAX_PARTS` parts. The batch is decompressed again for each part.
_PART_BYTES = 32 * 1024 * 1024
_MAX_PARTS = 4
#: A batch with more compressed bytes is decoded in one part: further parts need a copy of the
#: compressed bytes, which the budget does not count.
_COPY_BYTES = 16 * 1024 * 1024
_Result = TypeVar("_Result")
#: Maximum number of records in a chunk.
CHUNK_RECORDS = 32 * 1024
_INT64_MIN = -INT64_MAX - 1


class Arena:
    """Memory for decompressed records, with padding for vector copies."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.memory: Bytes = np.empty(size_bytes + COPY_SLACK_BYTES, np.uint8)
        self.contexts = new_contexts(self)

    def decompress(self, codec: int, data: bytes | Bytes, *, magic: int = 2) -> DecompressedRecords:
        """Decompress like `DecompressionBudget.decompress`.

        Raises `TooLargeError` if the decompressed data does not fit in the arena.
        """
        records = decompress(codec, data, magic=magic, max_bytes=self.size_bytes - self.used_bytes)
        output = self.memory[self.used_bytes : self.used_bytes + len(records)]
        output[:] = np.frombuffer(records, np.uint8)
        self.used_bytes += len(records)
        return DecompressedRecords(output)


class DecodeMemory:
    """Memory that a decoder reuses between windows.

    `max_bytes` limits its decompressed records.
    """

    def __init__(self, max_bytes: int, parts: RecordParts, chunk_records: int) -> None:
        self.parts = parts
        self.arena = Arena(min(_ARENA_BYTES, max_bytes))
        self._chunk_records = chunk_records
        places = chunk_records if parts & RecordParts.HEADERS else 0
        self._places: Longs = np.empty((PLACE_ROWS, places), np.int64)
        # Expected records, key bytes and value bytes of the next chunk, from the previous one.
        self._expected = (0, 0, 0)

    def expect_bytes(self, size_bytes: int) -> None:
        """Set the expected size of the first chunk."""
        if not any(self._expected):
            self._expected = (size_bytes // _MIN_RECORD_BYTES, size_bytes, size_bytes)

    def expect(self, rows: int, memory: ChunkMemory, *, is_full: bool) -> None:
        """Expect the next chunk to have the last chunk's size, or twice its size if it was full."""
        more = 2 if is_full else 1
        key_bytes, value_bytes = memory.used_bytes(rows)
        self._expected = (more * rows, more * key_bytes, more * value_bytes)

    def chunk(self, key_bytes: int = 0, value_bytes: int = 0) -> ChunkMemory:
        rows, keys, values = (size + size // 4 + _MIN_SPARE for size in self._expected)
        keys, values = (
            max(min(keys, _CHUNK_BYTES), key_bytes),
            max(min(values, _CHUNK_BYTES), value_bytes),
        )
        return ChunkMemory(self.parts, min(rows, self._chunk_records), keys, values, self._places)


@dataclass(frozen=True, slots=True)
class BatchDamage:
    """A batch whose remaining records cannot be read.

    The error has no file or position.
    """

    batch: int
    error: CorruptLogError


class _LargeBatch:
    """A batch that does not fit in the arena, and the state of its decoding."""

    def __init__(self, data: Bytes) -> None:
        # Copied, because the log may change, but each decompression must return the same bytes.
        self._is_copied = len(data) <= _COPY_BYTES
        self.data = data.copy() if self._is_copied else data
        self._read_bytes = 0
        self._left: int | None = None

    def resume(self, state: Any) -> None:
        """Restore the position of the next record, after decompressing the records again."""
        if self._left is not None:
            state.cursor += self._read_bytes
            state.left = self._left

    def pause(self, state: Any, section: RecordSection) -> None:
        """Save the position of the next record."""
        self._read_bytes = int(state.cursor) - int(section.start)
        self._left = int(state.left)

    def part_end(self, state: Any, section: RecordSection) -> int:
        """Return the address at which the current part ends."""
        if not self._is_copied:
            return int(section.end)
        size_bytes = int(section.end) - int(section.start)
        return int(state.cursor) + max(_PART_BYTES, size_bytes // _MAX_PARTS)


class BatchWalk(Generic[_Result]):
    """Iteration over the batches of one window.

    For its parameters, see `RecordDecoder` and `RecordDecoder.decode`. `meets_large_batch` is
    set while the next batch, or the rest of it, does not fit in the arena.
    """

    def __init__(
        self,
        memory: DecodeMemory,
        window: Bytes,
        positions: Longs,
        sizes: Longs,
        convert: Callable[[RecordChunk], _Result],
        first_offset: int,
        last_offset: int,
        *,
        verify_crc: bool,
    ) -> None:
        self.is_done = not len(positions)
        self.meets_large_batch = False
        self._memory = memory
        self._arena = memory.arena
        self._window = window
        self._address = np.uint64(window.ctypes.data)
        self._positions = positions
        self._sizes = sizes
        self._convert = convert
        self._verify_crc = verify_crc
        self._offsets = first_offset, last_offset
        self._states = new_state()
        self._state = self._states[0]
        self._ends = np.zeros(len(positions), np.int64)
        memory.expect_bytes(len(window))
        self._chunk = memory.chunk()
        self._chunk_batch = 0
        self._inner_offsets: dict[int, int] = {}
        self._fault: str | None = None
        self._large: _LargeBatch | None = None
        self._ready: list[_Result | BatchDamage] = []

    def fill_arena(self) -> None:
        """Decode batches until there is a chunk or an error; keep other records in the arena."""
        arena = self._arena
        if self._state.left == NOT_OPEN:
            arena.used_bytes = 0
        window_end = self._address + np.uint64(len(self._window))
        while not self.is_done and not self._ready:
            code = self._decode()
            if code == DECODE_NEEDS_RECORDS:
                try:
                    self._set_section(
                        open_records(self._batch(), arena, verify_crc=self._verify_crc)
                    )
                    continue
                except TooLargeError:
                    self.meets_large_batch = not arena.used_bytes
                    self._finish_chunk(window_end)
                    return
                except CorruptLogError as error:
                    self._finish_chunk(window_end)
                    self._skip_damaged(error)
            elif code == DECODE_SECTION_DONE:
                if self._fault is not None:
                    self._finish_chunk(window_end)
                self._end_section()
            elif code == DECODE_FAULT:
                self._finish_chunk(window_end)
                self._skip_damaged(self._damage())
            else:
                self._finish_chunk(window_end, is_full=code == DECODE_FULL)
                self.is_done = code == DECODE_DONE

    def read_large_batch(self, budget: DecompressionBudget) -> None:
        """Decode one part of the next batch, which does not fit in the arena.

        The batch is decompressed again for each part. No budget is held between parts, and only the
        parts that the caller consumes are decoded.
        """
        large = self._large or _LargeBatch(self._batch())
        self._large = None
        try:
            with open_records(large.data, budget, verify_crc=self._verify_crc) as records:
                section = records.section
                self._set_section(records)
                large.resume(self._state)
                part_end = large.part_end(self._state, section)
                code = DECODE_FULL
                while code == DECODE_FULL and self._state.cursor < part_end:
                    code = self._decode()
                    self._finish_chunk(section.end, is_full=code == DECODE_FULL)
                if code == DECODE_FULL:
                    large.pause(self._state, section)
                    self._large = large
                    return
                if code == DECODE_FAULT:
                    self._skip_damaged(self._damage())
                else:
                    self._end_section()
        except CorruptLogError as error:
            self._skip_damaged(error)
        self.meets_large_batch = False

    def drain(self) -> list[_Result | BatchDamage]:
        ready, self._ready = self._ready, []
        return ready

    def _decode(self) -> int:
        arena, memory = self._arena, self._memory
        self._state.arena_used = arena.used_bytes
        code = DECODE_NEEDS_ROOM
        while code == DECODE_NEEDS_ROOM:
            code = decode_batches(
                self._address,
                len(self._window),
                self._positions,
                self._sizes,
                *self._offsets,
                int(memory.parts),
                arena.memory,
                arena.contexts,
                self._chunk.columns,
                self._ends,
                self._states,
            )
            if code == DECODE_NEEDS_ROOM:
                self._chunk = memory.chunk(
                    int(self._state.needed_key_bytes),
                    int(self._state.needed_value_bytes),
                )
        arena.used_bytes = int(self._state.arena_used)
        return code

    def _batch(self) -> Bytes:
        number = self._state.batch
        start = int(self._positions[number])
        return self._window[start : start + int(self._sizes[number])]

    def _set_section(self, records: BatchRecords) -> None:
        self._fault = records.fault
        hand_in_section(self._state, records.section)
        if records.section.is_message_set:
            self._inner_offsets[int(self._state.batch)] = records.first_offset

    def _end_section(self) -> None:
        """Skip to the next batch, and report the error after the decompressed records, if any."""
        if self._fault is None:
            skip_batch(self._state, self._ends)
        else:
            self._skip_damaged(CorruptLogError(self._fault))

    def _skip_damaged(self, error: CorruptLogError) -> None:
        self._ready.append(BatchDamage(int(self._state.batch), without_frames(error)))
        skip_batch(self._state, self._ends)
        self._chunk_batch = int(self._state.batch)

    def _damage(self) -> CorruptLogError:
        """Return the error that the kernel found."""
        code = int(self._state.fault)
        count = int(self._state.record_count)
        if code == NEGATIVE_RECORD_COUNT:
            return CorruptLogError("the batch has a negative record count", found=count)
        if code == TOO_MANY_HEADERS:
            return TooLargeError("a record has too many headers", expected=f"{MAX_HEADERS} or less")
        if code == CUT_FIELD:
            return CorruptLogError("a message ends inside the key or the value")
        return CorruptLogError(record_fault(count - int(self._state.left), count, code))

    def _finish_chunk(self, readable_end: np.uint64, *, is_full: bool = False) -> None:
        """Convert the records decoded so far, and start another chunk."""
        rows, number = int(self._state.rows), int(self._state.batch)
        if rows:
            # The last batch may have more records than the chunk.
            ends = self._ends[self._chunk_batch : number + 1]
            if number < len(self._ends):
                ends[-1] = rows
            memory = self._chunk
            chunk = memory.chunk(
                rows,
                int(self._state.header_rows),
                self._chunk_batch,
                ends,
                readable_end,
                self._inner_offsets,
            )
            self._ready.append(self._convert(chunk))
            begin_chunk(self._state)
            self._memory.expect(rows, memory, is_full=is_full)
            if number < len(self._ends):
                self._chunk = self._memory.chunk()
            self._inner_offsets = {
                batch: offset for batch, offset in self._inner_offsets.items() if batch == number
            }
        self._chunk_batch = number
        if self._state.left == NOT_OPEN:
            # No record refers to the contents of the arena any more.
            self._arena.used_bytes = 0


class RecordDecoder:
    """Decodes batches, one window at a time; iterators of two windows must not be interleaved.

    Decompressed bytes are counted in the budget. `verify_crc` verifies the checksums of messages
    inside a compressed message, as the consumer does.
    """

    def __init__(
        self,
        budget: DecompressionBudget,
        parts: RecordParts = RecordParts.ALL,
        *,
        chunk_records: int = CHUNK_RECORDS,
        verify_crc: bool = False,
    ) -> None:
        self._budget = budget
        self._verify_crc = verify_crc
        self._memory = DecodeMemory(budget.max_bytes, parts, chunk_records)

    def decode(
        self,
        window: Bytes,
        positions: Longs,
        sizes: Longs,
        convert: Callable[[RecordChunk], _Result],
        *,
        first_offset: int = _INT64_MIN,
        last_offset: int = INT64_MAX,
    ) -> Iterator[_Result | BatchDamage]:
        """Decode batches, and yield the result of `convert` for each chunk of records.

        Batches must be complete with verified checksums. The window must stay valid until the
        iterator is exhausted; the headers of a chunk are valid only until `convert` returns.
        Records outside `first_offset` to `last_offset`, both inclusive, are skipped. If a batch is
        corrupt, the records that Kafka returns before it throws are followed by a `BatchDamage`.
        Kafka returns no records of a corrupt compressed v2 batch.
        """
        memory, budget = self._memory, self._budget
        walk = BatchWalk(
            memory,
            window,
            positions,
            sizes,
            convert,
            first_offset,
            last_offset,
            verify_crc=self._verify_crc,
        )
        while not walk.is_done:
            if walk.meets_large_batch:
                # No other memory is reserved here: the batch may need the whole budget.
                walk.read_large_batch(budget)
            else:
                with budget.reserve(memory.arena.size_bytes):
                    walk.fill_arena()
            yield from walk.drain()


def decode_entry(
    entry: Bytes,
    budget: DecompressionBudget,
    convert: Callable[[RecordChunk], _Result],
    parts: RecordParts = RecordParts.NONE,
) -> Iterator[_Result | BatchDamage]:
    """Decode one log entry; parameters and results as in `RecordDecoder.decode`."""
    decoder = RecordDecoder(budget, parts)
    return decoder.decode(entry, np.zeros(1, np.int64), np.array([len(entry)]), convert)


def has_null_key(entry: Bytes, budget: DecompressionBudget) -> bool:
    """Return whether a record of a log entry lacks the key that a compacted topic requires.

    Raises `CorruptLogError` if a record cannot be read.
    """
    has_null = False
    for result in decode_entry(entry, budget, _has_null_key, RecordParts.KEYS):
        if isinstance(result, BatchDamage):
            raise result.error
        has_null |= result
    return has_null


def _has_null_key(chunk: RecordChunk) -> bool:
    return chunk.keys is not None and chunk.keys.null_count > 0
