"""The two indexes as lists, with the semantics of Kafka's ``OffsetIndex`` and ``TimeIndex``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kafka_index.core.index.sparse_indexes import AbstractIndex, OffsetIndex, TimeIndex

INT32_MAX = 2**31 - 1


@dataclass
class OffsetIndexModel:
    """Entries are (offset, position)."""

    base_offset: int
    max_entries: int
    entries: list[tuple[int, int]] = field(default_factory=list)

    def append(self, offset: int, position: int) -> str | None:
        """The name of the error, or None."""
        if len(self.entries) >= self.max_entries:
            return "IndexFullError"
        if self.entries and offset <= self.entries[-1][0]:
            return "InvalidOffsetError"
        if not 0 <= offset - self.base_offset <= INT32_MAX:
            return "IndexOffsetOverflowError"
        self.entries.append((offset, position))
        return None

    def lookup(self, offset: int) -> tuple[int, int]:
        """The last entry at or below an offset."""
        below = [entry for entry in self.entries if entry[0] <= offset]
        return below[-1] if below else (self.base_offset, 0)

    def truncate_to(self, offset: int) -> None:
        """Drop what is at or above an offset."""
        self.entries = [entry for entry in self.entries if entry[0] < offset]


@dataclass
class TimeIndexModel:
    """Entries are (timestamp, offset)."""

    base_offset: int
    max_entries: int
    entries: list[tuple[int, int]] = field(default_factory=list)

    def maybe_append(  # noqa: PLR0911, because each of Kafka's refusals is one exit
        self, timestamp: int, offset: int, *, skip_full_check: bool
    ) -> str | None:
        """The name of the error, or None."""
        last = self.entries[-1] if self.entries else (-1, self.base_offset)
        if not skip_full_check and len(self.entries) >= self.max_entries - 1:
            return "IndexFullError"
        if self.entries and offset < last[1]:
            return "InvalidOffsetError"
        if self.entries and timestamp < last[0]:
            return "InvalidTimestampError"
        if timestamp <= last[0]:
            return None
        if len(self.entries) >= self.max_entries:
            return "IndexFullError"
        if not 0 <= offset - self.base_offset <= INT32_MAX:
            return "IndexOffsetOverflowError"
        self.entries.append((timestamp, offset))
        return None

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The last entry at or below a timestamp."""
        below = [entry for entry in self.entries if entry[0] <= timestamp]
        return below[-1] if below else (-1, self.base_offset)


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
