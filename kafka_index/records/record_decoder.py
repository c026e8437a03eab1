"""The records of batches, decoded in chunks of columns, within the budget for decompressed records.

`RecordDecoder` passes over the batches of a window (`kafka_index.records.batch_walk`): plain ones
are read where they lie, compressed ones decompressed into memory that is reserved for the time of a
turn, which ends with a chunk. The result of a chunk is made before that memory is given back, so no
caller ever holds any of the budget while it waits, however slowly it takes the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from kafka_index.layout.integers import INT64_MAX, Longs
from kafka_index.records.batch_walk import BatchDamage, BatchWalk, DecodeMemory
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.records.record_chunk import RecordChunk, RecordParts
from kafka_index.storage import Bytes

#: The most records of a chunk.
CHUNK_RECORDS = 32 * 1024

_INT64_MIN = -INT64_MAX - 1
_Result = TypeVar("_Result")


class RecordDecoder:
    """Decodes batches, a window at a time; the iterators of two windows must not take turns.

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
        """Decode batches, and yield the result of `convert` for each chunk of their records.

        The batches are whole; their checksums are the caller's to verify, and the window stays
        until the iterator is exhausted. Headers of a chunk are gone once `convert` has returned.
        Records before `first_offset` or after `last_offset` are left out; both are inclusive. For a
        damaged batch, `BatchDamage` comes after the records that Kafka returns before it throws:
        none of a compressed batch.
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
                # No other room is held: the batch may need all of it.
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
    """Decode one entry of a log; parameters and results as for `RecordDecoder.decode`."""
    decoder = RecordDecoder(budget, parts)
    return decoder.decode(entry, np.zeros(1, np.int64), np.array([len(entry)]), convert)


def has_null_key(entry: Bytes, budget: DecompressionBudget) -> bool:
    """Return whether a record of an entry lacks the key that a compacted topic requires.

    Raises `CorruptLogError` if one of its records cannot be read.
    """
    found = False
    for result in decode_entry(entry, budget, _misses_key, RecordParts.KEYS):
        if isinstance(result, BatchDamage):
            raise result.error
        found |= result
    return found


def _misses_key(chunk: RecordChunk) -> bool:
    return chunk.keys is not None and chunk.keys.null_count > 0
