"""The log of a remote segment over its chunks: only requested chunks are read.

Source: ``DefaultChunkManager``, ``DecryptionChunkEnumeration`` and
``DecompressionChunkEnumeration`` of Aiven's plugin.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from kafka_index.errors import CorruptObjectError
from kafka_index.stores.store import Bytes, ByteSource
from kafka_index.stores.tiered.encryption import OVERHEAD_BYTES, Decryption
from kafka_index.stores.tiered.manifest import SegmentManifest

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class RecentCache(Generic[_Key, _Value]):
    """The values that were used last, as many as a limit allows for the sum of their sizes.

    By default the size of each is 1. Threads may share it.
    """

    def __init__(self, limit: int, size_of: Callable[[_Value], int] = lambda _: 1) -> None:
        self._limit = limit
        self._size_of = size_of
        self._used = 0
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: _Key) -> _Value | None:
        """Return a value, if it is there."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: _Key, value: _Value) -> None:
        """Keep a value, in the place of the least recently used ones."""
        size = self._size_of(value)
        if size > self._limit:
            return
        with self._lock:
            if key in self._values:
                self._used -= self._size_of(self._values.pop(key))
            self._values[key] = value
            self._used += size
            while self._used > self._limit:
                self._used -= self._size_of(self._values.popitem(last=False)[1])


#: The chunks of all logs of a store, by path and number.
ChunkCache: TypeAlias = RecentCache[tuple[str, int], Bytes]


class ChunkedLog:
    """A log that is stored in transformed chunks, open for reading (`ByteSource`).

    `path` is the path it was opened with, `stored` the ``.log`` object, and the cache that of the
    store; the decryption is given if the chunks are encrypted. Raises `CorruptObjectError` if the
    object has another size than the manifest says.
    """

    def __init__(
        self,
        path: str,
        stored: ByteSource,
        manifest: SegmentManifest,
        decryption: Decryption | None,
        cache: ChunkCache,
    ) -> None:
        self.path = path
        self.size_bytes = manifest.log_size_bytes
        self.mtime_ns = stored.mtime_ns
        self._stored = stored
        self._chunks = manifest.chunks
        self._is_compressed = manifest.is_compressed
        self._decryption = decryption
        self._cache = cache
        self._check_sizes(manifest)

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return up to `size_bytes` bytes from `position_bytes` on, fewer only at the end."""
        if position_bytes < 0 or size_bytes < 0:
            raise ValueError(f"negative position or size: {position_bytes}, {size_bytes}")
        end = min(position_bytes + size_bytes, self.size_bytes)
        return self.read_ranges([position_bytes], [max(position_bytes, end)])[0]

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return the bytes of ascending ranges, end exclusive."""
        ranges = list(zip(starts, [min(end, self.size_bytes) for end in ends], strict=True))
        needed = sorted({chunk for each in ranges for chunk in self._chunks.within(*each)})
        found = self._read_chunks(needed)
        return [self._join(found, start, end) for start, end in ranges]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position to the end, a chunk at a time."""
        first = start_bytes // self._chunks.chunk_size_bytes
        if start_bytes >= self.size_bytes:
            return
        offset = start_bytes - first * self._chunks.chunk_size_bytes
        starts = self._chunks.starts
        pieces = self._stored.stream(int(starts[first]))
        sizes = np.diff(starts[first:]).tolist()
        for chunk, data in enumerate(_regroup(pieces, sizes), start=first):
            yield self._decode(chunk, data)[offset:]
            offset = 0

    def changed(self) -> str | None:
        """Return how the object differs from the one opened, None when it does not."""
        return self._stored.changed()

    def close(self) -> None:
        """Close the object."""
        self._stored.close()

    def _check_sizes(self, manifest: SegmentManifest) -> None:
        found, expected = self._stored.size_bytes, self._chunks.stored_size_bytes
        if found != expected:
            raise CorruptObjectError(
                f"the log object {'is cut' if found < expected else 'is too long'}",
                path=self._stored.path,
                expected=f"{expected} bytes, by its manifest",
                found=found,
            )
        if self._is_compressed:
            return
        overhead = OVERHEAD_BYTES if self._decryption is not None else 0
        sizes = self._chunks.starts[1:] - self._chunks.starts[:-1] - overhead
        for chunk, size in enumerate(sizes.tolist()):
            if size != self._chunks.original_size(chunk):
                raise CorruptObjectError(
                    f"the manifest gives chunk {chunk} another size than its transformation does",
                    path=manifest.path,
                    expected=self._chunks.original_size(chunk) + overhead,
                    found=size + overhead,
                )

    def _read_chunks(self, numbers: list[int]) -> dict[int, Bytes]:
        found: dict[int, Bytes] = {}
        missing = []
        for chunk in numbers:
            cached = self._cache.get((self.path, chunk))
            if cached is None:
                missing.append(chunk)
            else:
                found[chunk] = cached
        starts = self._chunks.starts
        stored = self._stored.read_ranges(
            [int(starts[chunk]) for chunk in missing],
            [int(starts[chunk + 1]) for chunk in missing],
        )
        for chunk, data in zip(missing, stored, strict=True):
            found[chunk] = self._decode(chunk, data)
            self._cache.put((self.path, chunk), found[chunk])
        return found

    def _join(self, chunks: dict[int, Bytes], start: int, end: int) -> Bytes:
        size = self._chunks.chunk_size_bytes
        pieces = [
            chunks[chunk][max(start - chunk * size, 0) : end - chunk * size]
            for chunk in self._chunks.within(start, end)
        ]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, np.uint8)

    def _decode(self, chunk: int, stored: Bytes) -> Bytes:
        data: bytes | memoryview = stored.data
        expected = self._chunks.original_size(chunk)
        try:
            if self._decryption is not None:
                data = self._decryption.decrypt(data)
            if self._is_compressed:
                data = pa.decompress(data, expected, codec="zstd", asbytes=True)
        except (OSError, ValueError) as error:
            reason = "its zstd frame is damaged" if isinstance(error, OSError) else str(error)
            raise self._damaged(chunk, reason) from error
        if len(data) != expected:
            raise self._damaged(chunk, f"it has {len(data)} bytes instead of {expected}")
        return np.frombuffer(data, np.uint8)

    def _damaged(self, chunk: int, reason: str) -> CorruptObjectError:
        return CorruptObjectError(
            f"chunk {chunk} of {self._chunks.count} cannot be read: {reason}",
            path=self._stored.path,
            position_bytes=int(self._chunks.starts[chunk]),
        )


class LimitedLog:
    """The beginning of a log (`ByteSource`), cut at `size_bytes`."""

    def __init__(self, path: str, log: ByteSource, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = min(size_bytes, log.size_bytes)
        self.mtime_ns = log.mtime_ns
        self._log = log

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return up to `size_bytes` bytes from `position_bytes` on, fewer only at the end."""
        left = max(self.size_bytes - position_bytes, 0)
        return self._log.read_at(position_bytes, min(size_bytes, left))

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return the bytes of ascending ranges, end exclusive."""
        return self._log.read_ranges(starts, [min(end, self.size_bytes) for end in ends])

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position to the end."""
        left = self.size_bytes - start_bytes
        if left <= 0:
            return
        for piece in self._log.stream(start_bytes):
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return

    def changed(self) -> str | None:
        """Return how the log differs from the one opened, None when it does not."""
        return self._log.changed()

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def _regroup(pieces: Iterable[Bytes], sizes: Sequence[int]) -> Iterator[Bytes]:
    """Cut a stream of pieces into others of given sizes."""
    waiting: list[Bytes] = []
    have = 0
    source = iter(pieces)
    for size in sizes:
        while have < size:
            piece = next(source)
            waiting.append(piece)
            have += len(piece)
        joined = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
        yield joined[:size]
        waiting, have = [joined[size:]], have - size
