"""Mergeable counts of keys in bounded memory: a sample of the distinct keys, and the hot keys.

Like the theta sketch of Apache DataSketches, the sample contains the keys with the smallest hashes.
Up to `SAMPLE_KEYS`, the number of distinct keys is exact. Above it, the number is an estimate with
a relative standard error of 0.8 %. Compaction keeps the last record of each key, so the sample also
contains numbers of the last record of its keys. A HyperLogLog, such as DuckDB's
``approx_count_distinct``, contains no keys. Hot keys are counted by Space-Saving, and merged by the
rule of "Mergeable Summaries" (Agarwal et al., 2012).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.format.longs import Longs
from kafka_index.core.kernels.batch_counts import hash_fields

Hashes = NDArray[np.uint64]

#: Maximum number of keys of a sample.
SAMPLE_KEYS = 16_384
#: `HotKeys` counts at least this many keys, and at least this many per hot key.
_COUNTED_KEYS, _COUNTED_PER_HOT_KEY = 16_384, 8
#: Added keys are merged once their number is this multiple of the counted keys, or their size is
#: this many bytes.
_MAX_ADDED_MULTIPLE, _MAX_ADDED_BYTES = 8, 16 << 20
#: Only the first bytes of a longer key are shown.
SHOWN_KEY_BYTES = 256
_ALL_HASHES = 1 << 64
_MIX = np.uint64(0x9E3779B97F4A7C15)


def hash_longs(values: Longs) -> Hashes:
    mixed = (values.astype(np.uint64) + _MIX) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(29)), np.uint64)


def hash_bytes(values: pa.Array) -> Hashes:
    """Hash the values of a binary array without nulls."""
    _, ends, data = values.buffers()
    hashes = np.empty(len(values), np.uint64)
    offsets = np.frombuffer(ends, np.int32, len(values) + 1, 4 * values.offset)
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    hash_fields(content, offsets, hashes)
    return hashes


class KeySample:
    """The keys with the smallest hashes, each with three numbers of its last record.

    Added keys are merged if there are more than `SAMPLE_KEYS`, and before a property is read.
    """

    def __init__(self) -> None:
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._rows: NDArray[np.int64] = np.empty((0, 3), np.int64)
        self._limit = _ALL_HASHES
        self._added: list[tuple[Hashes, NDArray[np.int64]]] = []
        self._added_keys = 0

    def add(self, hashes: Hashes, rows: NDArray[np.int64] | None = None) -> None:
        """Add keys, each with a row: an offset, -1 for none, and two numbers of the record."""
        rows = np.full((len(hashes), 3), -1, np.int64) if rows is None else rows
        if not self.is_exact:
            is_sampled = hashes < np.uint64(self._limit)
            hashes, rows = hashes[is_sampled], rows[is_sampled]
        self._added.append((hashes, rows))
        self._added_keys += len(hashes)
        if self._added_keys > SAMPLE_KEYS:
            self._merge_added()

    def merge(self, part_sample: KeySample) -> None:
        """Add the keys of another sample."""
        part_sample._merge_added()
        self._merge_added()
        if part_sample._limit < self._limit:
            self._limit = part_sample._limit
            is_sampled = self._hashes < np.uint64(self._limit)
            self._hashes, self._rows = self._hashes[is_sampled], self._rows[is_sampled]
        self.add(part_sample._hashes, part_sample._rows)

    @property
    def hashes(self) -> Hashes:
        """The hashes, sorted and below `limit`."""
        self._merge_added()
        return self._hashes

    @property
    def rows(self) -> NDArray[np.int64]:
        """The three numbers of the last record of each key in the sample."""
        self._merge_added()
        return self._rows

    @property
    def limit(self) -> int:
        """The exclusive upper bound of the hashes."""
        self._merge_added()
        return self._limit

    @property
    def share(self) -> float:
        """The share of all keys that are in the sample."""
        return self.limit / _ALL_HASHES

    @property
    def is_exact(self) -> bool:
        """Whether the sample has all keys that were added."""
        return self._limit == _ALL_HASHES

    @property
    def distinct(self) -> int:
        """The number of distinct keys, estimated unless `is_exact`."""
        return round(len(self.hashes) / self.share)

    @property
    def relative_error(self) -> float:
        """The relative standard error of `distinct`, 0 if `distinct` is exact."""
        self._merge_added()
        return 0.0 if self.is_exact else 1 / np.sqrt(SAMPLE_KEYS - 1).item()

    def _merge_added(self) -> None:
        """Merge the added keys; keep the smallest hashes, and the last row of each key."""
        if not self._added:
            return
        hashes = np.concatenate([self._hashes, *(part[0] for part in self._added)])
        rows = np.concatenate([self._rows, *(part[1] for part in self._added)])
        self._added, self._added_keys = [], 0
        order = np.lexsort((rows[:, 0], hashes))
        hashes, rows = hashes[order], rows[order]
        is_last = np.append(hashes[1:] != hashes[:-1], True)
        hashes, rows = hashes[is_last[: len(hashes)]], rows[is_last[: len(hashes)]]
        if len(hashes) > SAMPLE_KEYS:
            self._limit = int(hashes[SAMPLE_KEYS])
            hashes, rows = hashes[:SAMPLE_KEYS].copy(), rows[:SAMPLE_KEYS].copy()
        self._hashes, self._rows = hashes, rows

    def __getstate__(self) -> dict[str, object]:
        self._merge_added()
        return self.__dict__


class HotKeys:
    """Counts of the most frequent keys, of which `max_keys` are reported.

    The stored counts are too small by at most `error`.
    """

    def __init__(self, max_keys: int) -> None:
        self.max_keys = max_keys
        self.error = 0
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._counts: Longs = np.empty(0, np.int64)
        self._keys: pa.Array = pa.array([], pa.binary())
        self._added: list[tuple[Hashes, Longs, pa.Array]] = []
        self._added_rows = self._added_bytes = 0

    @property
    def _capacity(self) -> int:
        return max(_COUNTED_KEYS, _COUNTED_PER_HOT_KEY * self.max_keys)

    def add(self, hashes: Hashes, counts: Longs, keys: pa.Array) -> None:
        """Add distinct keys with their counts."""
        # Copied: a slice would keep all bytes of the chunk.
        key_prefixes = pc.binary_slice(keys, 0, SHOWN_KEY_BYTES)
        self._added.append((hashes, counts, key_prefixes))
        self._added_rows += len(hashes)
        self._added_bytes += key_prefixes.nbytes
        max_rows = _MAX_ADDED_MULTIPLE * self._capacity
        if self._added_rows > max_rows or self._added_bytes > _MAX_ADDED_BYTES:
            self._merge_added()

    def merge(self, part_counts: HotKeys) -> None:
        """Add the counts of another part or replica."""
        part_counts._merge_added()
        self.error += part_counts.error
        self.add(part_counts._hashes, part_counts._counts, part_counts._keys)

    def top(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield each hot key with its count, and the maximum excess of the count."""
        self._merge_added()
        order = np.argsort(-self._counts, kind="stable")[: self.max_keys]
        for key, count in zip(
            self._keys.take(pa.array(order)).to_pylist(), self._counts[order].tolist(), strict=True
        ):
            yield key, count + self.error, self.error

    def _merge_added(self) -> None:
        """Merge the added counts; drop the smallest, and subtract the largest dropped count."""
        if not self._added:
            return
        parts = [(self._hashes, self._counts, self._keys), *self._added]
        self._added, self._added_rows, self._added_bytes = [], 0, 0
        hashes = np.concatenate([part[0] for part in parts])
        distinct, first_rows, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        counts = np.zeros(len(distinct), np.int64)
        np.add.at(counts, inverse, np.concatenate([part[1] for part in parts]))
        kept_keys = np.arange(len(distinct))
        if len(distinct) > self._capacity:
            largest_dropped = int(np.partition(counts, -self._capacity - 1)[-self._capacity - 1])
            counts = counts - largest_dropped
            self.error += largest_dropped
            kept_keys = np.flatnonzero(counts > 0)
        keys = pa.concat_arrays([part[2] for part in parts])
        self._hashes, self._counts = distinct[kept_keys], counts[kept_keys]
        self._keys = keys.take(pa.array(first_rows[kept_keys]))

    def __getstate__(self) -> dict[str, object]:
        self._merge_added()
        return self.__dict__
