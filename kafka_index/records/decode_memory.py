"""The memory of a decoder: for decompressed records, and for the columns of chunks."""

from __future__ import annotations

import numpy as np

from kafka_index.kernels.library_codecs import new_contexts
from kafka_index.kernels.record_headers import COPY_SLACK_BYTES, PLACE_ROWS
from kafka_index.layout.integers import Longs
from kafka_index.records.decompression import DecompressedRecords, decompress
from kafka_index.records.record_chunk import ChunkMemory, RecordParts
from kafka_index.storage import Bytes

#: The most bytes of the keys of a chunk, and of its values, unless it is of one record.
_CHUNK_BYTES = 4 * 1024 * 1024
#: Memory for the decompressed records of a turn; a batch that needs more has a turn of its own.
_ARENA_BYTES = 4 * 1024 * 1024
#: What a chunk has room for beyond a quarter more than the one before had.
_MIN_SPARE = 1024
#: Nulls without headers.
_MIN_RECORD_BYTES = 7


class Arena:
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


class DecodeMemory:
    """The memory that a decoder keeps from window to window.

    `max_bytes` bounds the decompressed records in it.
    """

    def __init__(self, max_bytes: int, parts: RecordParts, chunk_records: int) -> None:
        self.parts = parts
        self.arena = Arena(min(_ARENA_BYTES, max_bytes))
        self._chunk_records = chunk_records
        places = chunk_records if parts & RecordParts.HEADERS else 0
        self._places: Longs = np.empty((PLACE_ROWS, places), np.int64)
        # Records, bytes of keys and bytes of values: the next chunk is likely to be as large as the
        # last one was.
        self._expected = (0, 0, 0)

    def expect_bytes(self, size_bytes: int) -> None:
        """Expect about so many bytes of records, if there was no chunk before."""
        if not any(self._expected):
            self._expected = (size_bytes // _MIN_RECORD_BYTES, size_bytes, size_bytes)

    def expect(self, rows: int, memory: ChunkMemory, *, is_full: bool) -> None:
        """Expect further chunks like one with so many records, or larger ones if it was full."""
        more = 2 if is_full else 1
        key_bytes, value_bytes = memory.used_bytes(rows)
        self._expected = (more * rows, more * key_bytes, more * value_bytes)

    def chunk(self, key_bytes: int = 0, value_bytes: int = 0) -> ChunkMemory:
        """Return memory for a chunk that has room for such a key and such a value."""
        rows, keys, values = (size + size // 4 + _MIN_SPARE for size in self._expected)
        keys, values = (
            max(min(keys, _CHUNK_BYTES), key_bytes),
            max(min(values, _CHUNK_BYTES), value_bytes),
        )
        return ChunkMemory(self.parts, min(rows, self._chunk_records), keys, values, self._places)
