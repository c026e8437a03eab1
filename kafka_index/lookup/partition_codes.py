"""Partitions as numbers: finding them for queries, and grouping queries by them.

Topics are looked up once each, not once a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.layout.integers import Longs
from kafka_index.reading.answers import Answers

Codes = NDArray[np.int32]

#: No such partition, or the topic is null.
NO_PARTITION = -1

# A table with a cell for each partition up to a topic's largest is fastest, as long as partitions
# are numbered as brokers number them; one directory named t-2147483647 would fill memory.
_CELLS_PER_PARTITION = 16
_MIN_CELLS = 1 << 16
_PARTITION_BITS = 32
_RADIX_BITS = 16


class PartitionCodes:
    """Finds the code of a partition by topic and number, 0..2^31 - 1."""

    def __init__(self, topics: Sequence[str], partitions: Longs, codes: Codes) -> None:
        self._topics = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
        numbers = np.array([self._topics[topic] for topic in topics], np.int64)
        counts = np.zeros(len(self._topics), np.int64)
        np.maximum.at(counts, numbers, partitions + 1)
        self._dense: Codes | None = None
        if counts.sum() <= _CELLS_PER_PARTITION * len(codes) + _MIN_CELLS:
            # The last row, of no cells, is for unknown topics.
            self._counts = np.append(counts, 0)
            self._starts = np.append(0, np.cumsum(counts))
            self._dense = np.full(max(int(counts.sum()), 1), NO_PARTITION, np.int32)
            self._dense[self._starts[numbers] + partitions] = codes
        else:
            keys = (numbers << _PARTITION_BITS) | partitions
            order = np.argsort(keys)
            self._keys, self._codes = keys[order], codes[order]

    def find(self, topics: pa.Array | pa.ChunkedArray, partitions: Longs) -> Codes:
        """Return the number of each row's partition, `NO_PARTITION` where there is none."""
        if not len(partitions):
            return np.empty(0, np.int32)
        numbers = self._topic_numbers(topics)
        if self._dense is None:
            return self._search(numbers, partitions)
        known = (partitions >= 0) & (partitions < self._counts[numbers])
        cells = np.where(known, self._starts[numbers] + partitions, 0)
        return np.where(known, self._dense[cells], np.int32(NO_PARTITION))

    def _search(self, numbers: Longs, partitions: Longs) -> Codes:
        # An unknown topic has the number after the last one, so it is never found.
        known = (partitions >= 0) & (partitions < 1 << _PARTITION_BITS)
        keys = (numbers << _PARTITION_BITS) | np.where(known, partitions, 0)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known &= self._keys[places] == keys
        return np.where(known, self._codes[places], np.int32(NO_PARTITION))

    def _topic_numbers(self, topics: pa.Array | pa.ChunkedArray) -> Longs:
        if isinstance(topics, pa.ChunkedArray):
            topics = pa.concat_arrays(topics.chunks)
        encoded = topics if pa.types.is_dictionary(topics.type) else pc.dictionary_encode(topics)
        unknown = len(self._topics)
        numbers = np.array(
            [*(self._topics.get(name, unknown) for name in _texts(encoded.dictionary)), unknown],
            np.int64,
        )
        # A null is an unknown topic.
        indices = encoded.indices.fill_null(len(encoded.dictionary))
        found: Longs = numbers[indices.to_numpy(zero_copy_only=False)]
        return found


def grouping_order(codes: Codes) -> Longs | None:
    """Return an order that groups equal codes, stable; None when they are grouped already."""
    if len(codes) < 2 or not (codes[1:] < codes[:-1]).any():
        return None
    # numpy sorts 16-bit numbers by radix, many times faster than by comparison.
    shifted = (codes - NO_PARTITION).astype(np.uint32)
    low = shifted.astype(np.uint16)
    order = np.argsort(low, kind="stable")
    if int(shifted.max()) >> _RADIX_BITS:
        high = (shifted >> _RADIX_BITS).astype(np.uint16)
        order = order[np.argsort(high[order], kind="stable")]
    return order


def groups(codes: Codes) -> Iterator[tuple[int, slice]]:
    """Yield each group of equal, adjacent codes: the code, and its rows."""
    if not len(codes):
        return
    starts = np.concatenate(([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1, [len(codes)]))
    for start, end in pairwise(starts.tolist()):
        yield int(codes[start]), slice(start, end)


def restore_order(answers: Answers, order: Longs) -> Answers:
    """Return answers to queries that were reordered, in the original order."""
    status = np.empty_like(answers.status)
    status[order] = answers.status
    # Column by column, so that random writes stay within one column's memory.
    values = np.empty_like(answers.values)
    for column, ordered in zip(values, answers.values, strict=True):
        column[order] = ordered
    return Answers(status, values)


def _texts(names: pa.Array) -> list[str]:
    """Return names that may be null or not UTF-8: no topic has such a name."""
    cells = names.cast(pa.large_binary()).to_pylist()
    return ["" if cell is None else cell.decode(errors="replace") for cell in cells]
