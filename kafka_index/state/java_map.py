"""The order in which a ``java.util.HashMap`` of producer ids that lives on iterates.

Its table only grows: producers that were dropped leave it as large as it was. Buckets that became
trees iterate otherwise, which takes nine ids with the same low bits of the hash.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

_FIRST_CAPACITY = 16
#: Below this capacity a long bucket doubles the table; from it on it becomes a tree.
_MIN_TREEIFY_CAPACITY = 64
_LONG_BUCKET = 8


class JavaMapOrder:
    """The table of a map: how many buckets it has."""

    def __init__(self) -> None:
        self.capacity = _FIRST_CAPACITY

    def put(self, producer_id: int, present: Collection[int]) -> None:
        """Take note that an id is put into a map that has others (``HashMap.putVal``)."""
        self.put_into_bucket(producer_id, present, _LONG_BUCKET)
        if len(present) + 1 > self.capacity // 4 * 3:
            self.capacity *= 2

    def of(self, ids: Collection[int]) -> list[int]:
        """Return ids, in the order they were put in, in the order of iteration."""
        return sorted(ids, key=self._bucket)

    def put_into_bucket(self, producer_id: int, present: Collection[int], long: int) -> None:
        """Double a small table when the bucket of an id has so many others."""
        if self.capacity < _MIN_TREEIFY_CAPACITY:
            bucket = self._bucket(producer_id)
            if sum(self._bucket(other) == bucket for other in present) >= long:
                self.capacity *= 2

    def _bucket(self, producer_id: int) -> int:
        folded = (producer_id ^ (producer_id >> 32)) & 0xFFFFFFFF
        return (folded ^ (folded >> 16)) & (self.capacity - 1)


def order_of_computed(ids: Sequence[int]) -> list[int]:
    """Return ids in the order of a new map that computed each when it was absent.

    ``HashMap.computeIfAbsent`` differs from ``putVal``: a new id comes first in its bucket, the
    table grows one id later, and a bucket is long one id earlier.
    """
    if len(ids) == 1:
        return list(ids)
    table = JavaMapOrder()
    for place, producer_id in enumerate(ids):
        if place > table.capacity // 4 * 3:
            table.capacity *= 2
        table.put_into_bucket(producer_id, ids[:place], _LONG_BUCKET - 1)
    return table.of(ids[::-1])
