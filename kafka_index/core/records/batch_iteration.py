"""Decode records in chunks of columns, within the memory budget for decompressed records.

`RecordDecoder` iterates over the batches of a window. Uncompressed batches are read in place.
Compressed ones are decompressed into memory that is reserved only until the next chunk is
converted. So callers never hold a part of the budget while they wait, however slowly they consume
the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from kafka_index.core.errors import CorruptLogError, TooLargeError, without_frames
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.decode_state import (
    CUT_FIELD,
    DECODE_DONE,
    DECODE_FAULT,
    DECODE_FULL,
    DECODE_NEEDS_RECORDS,
    DECODE_NEEDS_ROOM,
    DECODE_SECTION_DONE,
    NEGATIVE_RECORD_COUNT,
    NOT_OPEN,
    TOO_MANY_HEADERS,
    begin_chunk,
    hand_in_section,
    new_state,
    skip_batch,
)
from kafka_index.core.kernels.decompress import new_contexts
from kafka_index.core.kernels.record_columns import (
    COPY_SLACK_BYTES,
    MAX_HEADERS,
    PLACE_ROWS,
    decode_batches,
)
from kafka_index.core.kernels.records import RecordSection
from kafka_index.core.records.decompression import (
    DecompressedRecords,
    DecompressionBudget,
    decompress,
)
from kafka_index.core.records.record_chunk import ChunkMemory, RecordChunk, RecordParts
from kafka_index.core.records.record_sections import BatchRecords, open_records, record_fault

#: Maximum bytes of keys, and of values, in a chunk with more than one record.
_CHUNK_BYTES = 4 * 1024 * 1024
#: Memory for decompressed records; a batch that needs more is decoded separately.
_ARENA_BYTES = 4 * 1024 * 1024
#: Extra rows of a chunk, in addition to a quarter more than the previous chunk had.
_MIN_SPARE = 1024
#: Size of a record with null key and value and without headers.
_MIN_RECORD_BYTES = 7

#: A batch larger than the arena is decoded in parts of this size, but at most `_MAX_PARTS`. The
#: batch is decompressed again for each part.
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

        Raises `TooLargeError` if the data does not fit.
        """
        records = decompress(codec, data, magic=magic, max_bytes=self.size_bytes - self.used_bytes)
        own = self.memory[self.used_bytes : self.used_bytes + len(records)]
        own[:] = np.frombuffer(records, np.uint8)
        self.used_bytes += len(records)
        return DecompressedRecords(own)


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
        """Expect next chunks of the same size, or of twice the size if the last chunk was full."""
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
        # Copied, because the log may change and must decompress to the same bytes again.
        self._is_copied = len(data) <= _COPY_BYTES
        self.data = data.copy() if self._is_copied else data
        self._read_bytes = 0
        self._left: int | None = None

    def resume(self, state: Any) -> None:
        """Continue after the records have been decompressed again."""
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

    Its parameters are those of `RecordDecoder` and `RecordDecoder.decode`. `meets_large_batch` is
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
        """Decode batches until there is a result; the rest of a batch stays in the arena."""
        arena = self._arena
        if self._state.left == NOT_OPEN:
            arena.used_bytes = 0
        window_end = self._address + np.uint64(len(self._window))
        while not self.is_done and not self._ready:
            code = self._decode()
            if code == DECODE_NEEDS_RECORDS:
                try:
                    self._hand_in(open_records(self._batch(), arena, verify_crc=self._verify_crc))
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
                self._hand_in(records)
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

    def _hand_in(self, records: BatchRecords) -> None:
        self._fault = records.fault
        hand_in_section(self._state, records.section)
        if records.section.is_message_set:
            self._inner_offsets[int(self._state.batch)] = records.first_offset

    def _end_section(self) -> None:
        """Continue after the decompressed records."""
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
            return CorruptLogError("a message ends before its key or its value does")
        return CorruptLogError(record_fault(count - int(self._state.left), count, code))

    def _finish_chunk(self, readable_end: np.uint64, *, is_full: bool = False) -> None:
        """Convert the records so far, and start another chunk."""
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
            # Nothing refers to its contents any more.
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
        iterator is exhausted; the headers of a chunk only until `convert` returns. Records outside
        `first_offset` to `last_offset`, both inclusive, are skipped. For a corrupt batch,
        `BatchDamage` follows the records that Kafka returns before it throws; for a compressed
        batch, these are none.
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
    """Return whether a record of an entry lacks the key that a compacted topic requires.

    Raises `CorruptLogError` if a record cannot be read.
    """
    found = False
    for result in decode_entry(entry, budget, _misses_key, RecordParts.KEYS):
        if isinstance(result, BatchDamage):
            raise result.error
        found |= result
    return found


def _misses_key(chunk: RecordChunk) -> bool:
    return chunk.keys is not None and chunk.keys.null_count > 0
