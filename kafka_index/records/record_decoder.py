"""The records of batches, decoded in chunks of columns, within the budget for decompressed records.

`RecordDecoder` drives the kernel `kafka_index.kernels.record_columns` over the batches of a window:
plain ones where they lie, compressed ones decompressed into memory that is reserved for the time of
a turn. What is made of a chunk is made before that memory is given back, so no caller ever holds
any of the budget while it waits, however slowly it takes the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from kafka_index.errors import CorruptLogError, TooLargeError
from kafka_index.kernels.library_codecs import new_contexts
from kafka_index.kernels.record_columns import (
    COPY_SLACK_BYTES,
    CUT_FIELD,
    DECODE_ARENA_FULL,
    DECODE_DONE,
    DECODE_FAULT,
    DECODE_FULL,
    DECODE_NEEDS_RECORDS,
    DECODE_SECTION_DONE,
    FIELD_KEY_SIZE,
    FIELD_OFFSET,
    FIELD_ROWS,
    FIELD_TIMESTAMP,
    MAX_HEADERS,
    NEGATIVE_RECORD_COUNT,
    STATE_ARENA_USED,
    STATE_BATCH,
    STATE_FAULT,
    STATE_LEFT,
    STATE_ROWS,
    STATE_SECTION,
    TOO_MANY_HEADERS,
    begin_chunk,
    decode_batches,
    hand_in_section,
    new_state,
    skip_batch,
)
from kafka_index.layout.integers import INT64_MAX, Longs
from kafka_index.records.decompression import DecompressedRecords, DecompressionBudget, decompress
from kafka_index.records.record_sections import BatchRecords, open_records, record_fault
from kafka_index.storage import Bytes

#: The most records of a chunk. Not a power of two: columns that lie as far apart fall on the same
#: cache lines.
CHUNK_RECORDS = 32 * 1024 + 72
#: A chunk ends after the record that makes it larger than this.
CHUNK_BYTES = 4 * 1024 * 1024

#: Memory for the decompressed records of a turn; a batch that needs more has a turn of its own.
_ARENA_BYTES = 4 * 1024 * 1024

_INT64_MIN = -INT64_MAX - 1
_Result = TypeVar("_Result")
_Value = TypeVar("_Value", bound=np.generic)


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Records of successive batches; valid only while it is converted.

    Parameters
    ----------
    fields : ndarray of int64, shape (FIELD_ROWS, n)
        A column per field of `kafka_index.kernels.record_columns`, bytes as memory addresses.
    first_batch : int
        The number of the batch that the first records belong to.
    batch_ends : ndarray of int64, shape (m,)
        For that batch and those after it, the row after its last record in the chunk.
    readable_end : uint64
        Memory address after the bytes.
    inner_offsets : dict of int to int
        The first offset inside each compressed message of magic 0 or 1, by number of its batch.
    """

    fields: Longs
    first_batch: int
    batch_ends: Longs
    readable_end: np.uint64
    inner_offsets: dict[int, int]

    def __len__(self) -> int:
        """Return the number of records."""
        return int(self.fields.shape[1])

    @property
    def offsets(self) -> Longs:
        """Absolute offsets."""
        offsets: Longs = self.fields[FIELD_OFFSET]
        return offsets

    @property
    def timestamps_ms(self) -> Longs:
        """Timestamps in ms."""
        timestamps: Longs = self.fields[FIELD_TIMESTAMP]
        return timestamps

    def select(self, rows: Longs) -> RecordChunk:
        """Return some of the records, by ascending rows; valid as long as this chunk."""
        return replace(
            self, fields=self.fields[:, rows], batch_ends=np.searchsorted(rows, self.batch_ends)
        )

    def of_batches(self, values: NDArray[_Value]) -> NDArray[_Value]:
        """Return, for each record, the value of its batch.

        Parameters
        ----------
        values : ndarray, shape (batches of the window,)
            A value for each batch.
        """
        own = values[self.first_batch : self.first_batch + len(self.batch_ends)]
        return np.repeat(own, np.diff(self.batch_ends, prepend=0))


@dataclass(frozen=True, slots=True)
class BatchDamage:
    """A batch whose further records cannot be read.

    Parameters
    ----------
    batch : int
        Its number.
    error : CorruptLogError
        Why; it names no place.
    """

    batch: int
    error: CorruptLogError


class RecordDecoder:
    """Decodes batches, a window at a time.

    Parameters
    ----------
    budget : DecompressionBudget
        What is decompressed is counted in it.
    with_bytes : bool
        Whether keys, values and headers are wanted; without them only offsets and timestamps are
        decoded.
    chunk_records : int
        The most records of a chunk.
    """

    def __init__(
        self,
        budget: DecompressionBudget,
        *,
        with_bytes: bool = True,
        chunk_records: int = CHUNK_RECORDS,
    ) -> None:
        self.budget = budget
        self.with_bytes = with_bytes
        self.arena = _Arena(min(_ARENA_BYTES, budget.max_bytes))
        self.fields = np.empty((FIELD_ROWS, chunk_records), np.int64)

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
        """Decode batches, and yield what `convert` returns for each chunk of their records.

        Parameters
        ----------
        window : ndarray of uint8
            The bytes; they stay until the iterator is exhausted.
        positions, sizes : ndarray of int64, shape (n,)
            The batches in it, whole. Checksums are for the caller to verify.
        convert : callable
            Called with a `RecordChunk`, whose bytes are gone when it has returned.
        first_offset, last_offset : int
            Records below the first or above the second are left out.

        Yields
        ------
        result of `convert`, or BatchDamage
            Where a batch is damaged, after the records that Kafka returns before it throws: none
            of a compressed batch.
        """
        walk = _BatchWalk(self, window, positions, sizes, convert, first_offset, last_offset)
        while not walk.is_done:
            with self.budget.reserve(self.arena.size_bytes):
                self.arena.used_bytes = 0
                walk.fill_arena()
            if walk.meets_large_batch:
                # No room is held meanwhile: the batch may need all of it.
                walk.read_large_batch()
            yield from walk.drain()


def decode_entry(
    entry: Bytes,
    budget: DecompressionBudget,
    convert: Callable[[RecordChunk], _Result],
    *,
    with_bytes: bool = False,
) -> Iterator[_Result | BatchDamage]:
    """Decode one entry of a log; parameters and results as for `RecordDecoder.decode`."""
    decoder = RecordDecoder(budget, with_bytes=with_bytes)
    return decoder.decode(entry, np.zeros(1, np.int64), np.array([len(entry)]), convert)


def has_null_key(entry: Bytes, budget: DecompressionBudget) -> bool:
    """Return whether a record of an entry has no key, which a compacted topic asks for.

    Raises
    ------
    CorruptLogError
        One of its records cannot be read.
    """
    found = False
    for result in decode_entry(entry, budget, _misses_key, with_bytes=True):
        if isinstance(result, BatchDamage):
            raise result.error
        found |= result
    return found


def _misses_key(chunk: RecordChunk) -> bool:
    return bool((chunk.fields[FIELD_KEY_SIZE] < 0).any())


class _Arena:
    """Memory for the decompressed records of a turn, readable beyond its end by wide copies."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.memory: Bytes = np.empty(size_bytes + COPY_SLACK_BYTES, np.uint8)
        self.contexts = new_contexts(self)

    def decompress(self, codec: int, data: bytes | Bytes, *, magic: int = 2) -> DecompressedRecords:
        """Decompress as `DecompressionBudget.decompress` does; TooLargeError: it does not fit."""
        records = decompress(codec, data, magic=magic, max_bytes=self.size_bytes - self.used_bytes)
        own = self.memory[self.used_bytes : self.used_bytes + len(records)]
        own[:] = np.frombuffer(records, np.uint8)
        self.used_bytes += len(records)
        return DecompressedRecords(own)


class _BatchWalk(Generic[_Result]):
    """The pass over the batches of one window, in turns."""

    def __init__(
        self,
        decoder: RecordDecoder,
        window: Bytes,
        positions: Longs,
        sizes: Longs,
        convert: Callable[[RecordChunk], _Result],
        first_offset: int,
        last_offset: int,
    ) -> None:
        self.is_done = not len(positions)
        self.meets_large_batch = False
        self._decoder = decoder
        self._window = window
        self._address = np.uint64(window.ctypes.data)
        self._positions = positions
        self._sizes = sizes
        self._convert = convert
        self._offsets = first_offset, last_offset
        self._state = new_state()
        self._ends = np.zeros(len(positions), np.int64)
        self._chunk_batch = 0
        self._inner_offsets: dict[int, int] = {}
        self._fault: str | None = None
        self._ready: list[_Result | BatchDamage] = []

    def fill_arena(self) -> None:
        """Decode batches until the arena is full, or a chunk without compressed batches is."""
        arena = self._decoder.arena
        window_end = self._address + np.uint64(len(self._window))
        code = DECODE_NEEDS_RECORDS
        while not self.is_done:
            code = self._decode()
            if code == DECODE_NEEDS_RECORDS:
                try:
                    self._hand_in(open_records(self._batch(), arena))
                    continue
                except TooLargeError:
                    self._finish_chunk(window_end)
                    self.meets_large_batch = not arena.used_bytes
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
                self._finish_chunk(window_end)
                if code == DECODE_DONE:
                    self.is_done = True
                elif code == DECODE_ARENA_FULL or not arena.used_bytes:
                    return

    def read_large_batch(self) -> None:
        """Decode the next batch, which does not fit in the arena, and nothing else."""
        self.meets_large_batch = False
        try:
            with open_records(self._batch(), self._decoder.budget) as records:
                self._hand_in(records)
                code = DECODE_FULL
                while code == DECODE_FULL:
                    code = self._decode()
                    self._finish_chunk(records.section.end)
                if code == DECODE_FAULT:
                    self._skip_damaged(self._damage())
                else:
                    self._end_section()
        except CorruptLogError as error:
            self._skip_damaged(error)

    def drain(self) -> list[_Result | BatchDamage]:
        """Return the results since the last call."""
        ready, self._ready = self._ready, []
        return ready

    def _decode(self) -> int:
        arena = self._decoder.arena
        self._state[STATE_ARENA_USED] = arena.used_bytes
        code = decode_batches(
            self._address,
            self._positions,
            self._sizes,
            *self._offsets,
            self._decoder.with_bytes,
            CHUNK_BYTES,
            arena.memory,
            arena.contexts,
            self._decoder.fields,
            self._ends,
            self._state,
        )
        arena.used_bytes = int(self._state[STATE_ARENA_USED])
        return code

    def _batch(self) -> Bytes:
        number = self._state[STATE_BATCH]
        start = int(self._positions[number])
        return self._window[start : start + int(self._sizes[number])]

    def _hand_in(self, records: BatchRecords) -> None:
        self._fault = records.fault
        hand_in_section(self._state, records.section)
        if records.section.is_message_set:
            self._inner_offsets[int(self._state[STATE_BATCH])] = records.first_offset

    def _end_section(self) -> None:
        """Continue after the records that were handed in."""
        if self._fault is None:
            skip_batch(self._state, self._ends)
        else:
            self._skip_damaged(CorruptLogError(self._fault))

    def _skip_damaged(self, error: CorruptLogError) -> None:
        self._ready.append(BatchDamage(int(self._state[STATE_BATCH]), error))
        skip_batch(self._state, self._ends)
        self._chunk_batch = int(self._state[STATE_BATCH])

    def _damage(self) -> CorruptLogError:
        """Return the error for the fault that the kernel has found."""
        code = int(self._state[STATE_FAULT])
        count = int(self._state[STATE_SECTION + 2])
        if code == NEGATIVE_RECORD_COUNT:
            return CorruptLogError("the batch has a negative record count", found=count)
        if code == TOO_MANY_HEADERS:
            return TooLargeError("a record has too many headers", expected=f"{MAX_HEADERS} or less")
        if code == CUT_FIELD:
            return CorruptLogError("a message ends before its key or its value does")
        return CorruptLogError(record_fault(count - int(self._state[STATE_LEFT]), count, code))

    def _finish_chunk(self, readable_end: np.uint64) -> None:
        """Convert the records so far, and begin another chunk."""
        rows, number = int(self._state[STATE_ROWS]), int(self._state[STATE_BATCH])
        if rows:
            # The last batch may have more records than the chunk.
            ends = self._ends[self._chunk_batch : number + 1]
            if number < len(self._ends):
                ends[-1] = rows
            chunk = RecordChunk(
                self._decoder.fields[:, :rows],
                self._chunk_batch,
                ends,
                readable_end,
                self._inner_offsets,
            )
            self._ready.append(self._convert(chunk))
            begin_chunk(self._state)
            self._inner_offsets = {
                batch: offset for batch, offset in self._inner_offsets.items() if batch == number
            }
        self._chunk_batch = number
