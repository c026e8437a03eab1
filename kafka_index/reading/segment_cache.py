"""The segments that a worker keeps open, and their limit."""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Protocol
from weakref import WeakSet

# A map of a file keeps a descriptor, and so does the log itself.
_FILES_OF_A_SEGMENT = 4
_FILES_FOR_OTHERS = 128
_MIN_SEGMENTS = 8


class Closeable(Protocol):
    """Something that can be closed, and opens itself on its next use."""

    def close(self) -> None:
        """Close files and maps."""


class SegmentCache:
    """Closes the least recently used segments when more than `max_open` are open.

    Fewer stay open, at least one, if all the caches of this process together would reach its limit
    of open files: a segment takes up to four.
    """

    _all: ClassVar[WeakSet[SegmentCache]] = WeakSet()
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, max_open: int = 256) -> None:
        if max_open < 1:
            raise ValueError(f"at least one segment has to be open: {max_open}")
        self._max_open = max_open
        self._open: OrderedDict[int, Closeable] = OrderedDict()
        self._on_use: Callable[[Closeable], None] | None = None
        with self._guard:
            self._all.add(self)

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def use(self, segment: Closeable) -> None:
        """Record that a segment is about to be used, closing others where needed."""
        if id(segment) not in self._open:
            self._make_room()
        self._open[id(segment)] = segment
        self._open.move_to_end(id(segment))
        if self._on_use is not None:
            # What it opens in turn is not announced.
            on_use, self._on_use = self._on_use, None
            try:
                on_use(segment)
            finally:
                self._on_use = on_use

    @contextmanager
    def announcing(self, on_use: Callable[[Closeable], None] | None) -> Iterator[None]:
        """Call a function with each segment that is about to be used, meanwhile.

        A function that is called already stays the only one.
        """
        if on_use is None or self._on_use is not None:
            yield
            return
        self._on_use = on_use
        try:
            yield
        finally:
            self._on_use = None

    def forget(self, segment: Closeable) -> None:
        """Record that a segment is closed."""
        self._open.pop(id(segment), None)

    def _make_room(self) -> None:
        with self._guard:
            elsewhere = sum(len(cache) for cache in self._all) - len(self)
        limit = max(1, min(self._max_open, _max_segments() - elsewhere))
        while len(self._open) >= limit:
            _, oldest = self._open.popitem(last=False)
            oldest.close()


def _max_segments() -> int:
    """Return how many segments this process can have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        limit = 1 << 20
    return max(_MIN_SEGMENTS, (limit - _FILES_FOR_OTHERS) // _FILES_OF_A_SEGMENT)
