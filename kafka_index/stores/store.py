"""The interface of a store, and of a file that is open for reading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]

#: A file of a listing: its path below the listed one, as `FileInfo`.
LISTING_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("version", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file, or an object, with its modification time in nanoseconds since the epoch.

    The version is the ETag of an object; empty where a store has none.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """An entry of a directory, or of what stands for one in an object store: a common prefix."""

    path: str
    is_directory: bool = False
    size_bytes: int = 0
    mtime_ns: int = 0
    version: str = ""


class ByteSource(Protocol):
    """A file that is open for reading; it is the same file, unchanged, for as long as it is open.

    A read of a file that has changed, or that ends early, raises `ReadError`.
    """

    @property
    def path(self) -> str:
        """Path or URI."""
        ...

    @property
    def size_bytes(self) -> int:
        """Size in bytes when opened."""
        ...

    @property
    def mtime_ns(self) -> int:
        """Modification time when opened, nanoseconds since the epoch."""
        ...

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return up to `size_bytes` bytes from `position_bytes` on, fewer only at the end."""
        ...

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return the bytes of ascending ranges, end exclusive; near ones share a request."""
        ...

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position to the end in pieces, read ahead of the caller."""
        ...

    def changed(self) -> str | None:
        """Return how the file at this path differs from the one opened, None when it does not."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


class Store(Protocol):
    """A local disk, a bucket, a container or a file system of HDFS.

    Methods take and return whole paths or URIs. Not found is `FileNotFoundError` in `info` and
    `read`, as both are asked for files that may not exist; everything else that fails is an error
    of `kafka_index.errors`, retriable where the store or the network is at fault.
    """

    @property
    def has_rename(self) -> bool:
        """Whether a rename is one atomic step. Otherwise a file is put whole under its name."""
        ...

    def info(self, path: str) -> FileInfo:
        """Return a file's size, modification time and version."""
        ...

    def open(self, path: str, info: FileInfo | None = None) -> ByteSource:
        """Open a file; with `info`, only that version of it, and without a request."""
        ...

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a small file, or its first ones."""
        ...

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory, sorted by path; empty where there is none."""
        ...

    def list_tree(self, path: str, *, start_after: str = "") -> Iterator[pa.RecordBatch]:
        """Yield every file below a directory as rows of `LISTING_SCHEMA`, by ascending path.

        With `start_after`, only paths (below the directory) that sort after it.
        """
        ...

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Write a file whole, durably; return False where `if_absent` and there is one."""
        ...

    def replace(self, path: str, data: bytes, info: FileInfo) -> bool:
        """Write a small file whole if it is still the one that `info` describes; return whether.

        Of several attempts at the same time, one succeeds.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing what has it."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; those that do not exist are fine."""
        ...
