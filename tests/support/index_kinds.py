"""Both kinds of index behind one interface, for what they share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kafka_index.index import AbstractIndex, OffsetIndex, TimeIndex

BASE = 45


@dataclass(frozen=True)
class Kind:
    """A kind of index, and entries for it: the n-th has the key n."""

    name: str
    index_class: type[OffsetIndex | TimeIndex]
    entry_size: int

    def open(
        self,
        path: Path | str,
        max_index_size: int = -1,
        *,
        writable: bool = True,
        growing: bool = False,
    ) -> OffsetIndex | TimeIndex:
        """An index with the base offset of these tests."""
        return self.index_class(path, BASE, max_index_size, writable=writable, growing=growing)

    def add(self, index: AbstractIndex, count: int) -> None:
        """Append so many entries."""
        for number in range(index.entries, index.entries + count):
            if isinstance(index, OffsetIndex):
                index.append(BASE + number, 10 * number)
            elif isinstance(index, TimeIndex):
                index.maybe_append(number, BASE + number, skip_full_check=True)

    def found(self, index: AbstractIndex, number: int) -> int:
        """The entry that a lookup for the key of the n-th finds, by its offset."""
        if isinstance(index, OffsetIndex):
            return index.lookup(BASE + number).offset - BASE
        assert isinstance(index, TimeIndex)
        return index.lookup(number).offset - BASE


OFFSET = Kind("offset", OffsetIndex, 8)
TIME = Kind("time", TimeIndex, 12)
