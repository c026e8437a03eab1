"""How many segments a worker keeps open."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Closeable(Protocol):
    """Something that can be let go, and opens itself again when it is needed."""

    def close(self) -> None:
        """Let go of files and maps."""


class SegmentCache:
    """Closes the segments that were not used for longest when too many are open.

    Parameters
    ----------
    max_open : int
        Segments open at a time; each takes up to three maps and one file handle.
    """

    def __init__(self, max_open: int = 256) -> None:
        if max_open < 1:
            raise ValueError(f"at least one segment has to be open: {max_open}")
        self._max_open = max_open
        self._open: OrderedDict[int, Closeable] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def use(self, segment: Closeable) -> None:
        """Take note that a segment is about to be used."""
        self._open[id(segment)] = segment
        self._open.move_to_end(id(segment))
        while len(self._open) > self._max_open:
            _, oldest = self._open.popitem(last=False)
            oldest.close()

    def forget(self, segment: Closeable) -> None:
        """Take note that a segment is closed."""
        self._open.pop(id(segment), None)
