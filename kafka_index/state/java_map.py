"""The iteration order of a ``java.util.HashMap`` of producer ids: the order of snapshots.

Source: the JDK's ``HashMap``: ``hash``, ``putVal``, ``resize``, ``treeifyBin`` and
``computeIfAbsent``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

_FIRST_CAPACITY = 16
#: Below this capacity a long bucket doubles the table; from it on it becomes a tree.
_MIN_TREEIFY_CAPACITY = 64
#: A node that finds this many in its bucket makes the bucket too long.
_LONG_BUCKET = 8


class JavaMapOrder:
    """The table of a map, with its number of buckets as capacity.

    A table never shrinks, even when producers are removed. `has_tree`: a bucket became a tree in
    `put_all`. A tree moves its root to the front of the bucket, so that the order is not certain.
    """

    def __init__(self) -> None:
        self.capacity = _FIRST_CAPACITY
        self.has_tree = False

    def put(self, producer_id: int, present: Collection[int]) -> None:
        """Put an id into a map that has others (``HashMap.putVal``)."""
        self._put_into_bucket(producer_id, present, _LONG_BUCKET)
        if len(present) + 1 > self._threshold:
            self.capacity *= 2

    def put_all(self, producer_ids: NDArray[np.int64]) -> None:
        """Put distinct ids into an empty map, one after the other."""
        hashes = _hashes(producer_ids)
        row = 0
        while row < len(hashes) and self.capacity < _MIN_TREEIFY_CAPACITY:
            self.put(int(producer_ids[row]), producer_ids[:row].tolist())
            row += 1
        while row < len(hashes):
            # Put ids until the map holds more than three quarters of its capacity.
            end = min(len(hashes), self._threshold + 1)
            self.has_tree = self.has_tree or _makes_tree(hashes[:end], row, self.capacity)
            if end > self._threshold:
                self.capacity *= 2
            row = end

    def order_of(self, producer_ids: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the iteration order, as places in ids that are given in insertion order."""
        # Within a bucket ids are in insertion order: the low half of the sorted keys.
        keys = (_hashes(producer_ids) & (self.capacity - 1)) << 32 | np.arange(len(producer_ids))
        keys.sort()
        return (keys & 0xFFFFFFFF).astype(np.intp)

    def compute_all_absent(self, producer_ids: Sequence[int]) -> None:
        """Compute distinct ids in an empty map, one after the other.

        ``HashMap.computeIfAbsent`` differs from ``putVal``: the table grows one id later, and a
        bucket is long one id earlier.
        """
        for row, producer_id in enumerate(producer_ids):
            if row > self._threshold:
                self.capacity *= 2
            self._put_into_bucket(producer_id, producer_ids[:row], _LONG_BUCKET - 1)

    @property
    def _threshold(self) -> int:
        return self.capacity // 4 * 3

    def _put_into_bucket(self, producer_id: int, present: Collection[int], long: int) -> None:
        """Double a small table when the bucket of an id has so many others."""
        if self.capacity < _MIN_TREEIFY_CAPACITY:
            ids = np.array([producer_id, *present], np.int64)
            buckets = _hashes(ids) & (self.capacity - 1)
            if np.count_nonzero(buckets == buckets[0]) > long:
                self.capacity *= 2


def order_of_put(producer_ids: NDArray[np.int64]) -> tuple[NDArray[np.intp], bool]:
    """Return `order_of` for a new map of distinct ids, and whether a bucket became a tree."""
    table = JavaMapOrder()
    table.put_all(producer_ids)
    return table.order_of(producer_ids), table.has_tree


def order_of_computed(producer_ids: Sequence[int]) -> list[int]:
    """Return distinct ids in the order of a new map after `compute_all_absent`."""
    if len(producer_ids) == 1:
        return list(producer_ids)
    table = JavaMapOrder()
    table.compute_all_absent(producer_ids)
    # A computed id comes first in its bucket.
    backward = list(producer_ids[::-1])
    return [backward[place] for place in table.order_of(np.array(backward, np.int64)).tolist()]


def _hashes(producer_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    ids = np.ascontiguousarray(producer_ids, np.int64)
    folded = (ids ^ (ids >> 32)) & 0xFFFFFFFF
    return folded ^ (folded >> 16)


def _makes_tree(hashes: NDArray[np.int64], start: int, capacity: int) -> bool:
    """Return whether a key at `start` or later finds a long bucket."""
    buckets = hashes & (capacity - 1)
    sizes = np.bincount(buckets, minlength=capacity)
    in_long_bucket = np.flatnonzero(sizes[buckets] > _LONG_BUCKET)
    return bool(in_long_bucket.size and in_long_bucket[-1] >= start)
