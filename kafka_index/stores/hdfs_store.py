"""HDFS, through hdfs-native, which needs neither a JVM nor libhdfs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import hdfs_native
import numpy as np
import pyarrow as pa

from kafka_index.errors import InputError, KafkaIndexError, PublishError, ReadError
from kafka_index.stores.options import StorageOptions
from kafka_index.stores.store import LISTING_SCHEMA, Bytes, DirectoryEntry, FileInfo
from kafka_index.stores.uris import split_uri

_LIST_CHUNK = 10_000
_PIECE_BYTES = 8 << 20


class HdfsStore:
    """A file system of HDFS.

    Parameters
    ----------
    root : str
        ``hdfs://host:port`` or ``hdfs://nameservice``.
    options : StorageOptions
        Under Hadoop's property names; they win over the files in HADOOP_CONF_DIR.
    """

    has_rename = True

    def __init__(self, root: str, options: StorageOptions) -> None:
        self._root = root
        try:
            self._client = hdfs_native.Client(root, config=options.resolve() or None)
        except Exception as error:  # the library's errors have no common base
            raise _error(error, root, "open the store") from error

    def info(self, path: str) -> FileInfo:
        """Return a file's size and modification time."""
        try:
            return self._info(self._client.get_file_info(_name(path)))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise _error(error, path, "read the file") from error

    def open(self, path: str, info: FileInfo | None = None) -> HdfsFile:
        """Open a file, of the version that `info` names."""
        try:
            found = self.info(path) if info is None else info
            return HdfsFile(self, self._client.read(_name(path)), found)
        except FileNotFoundError as error:
            raise InputError("cannot open the file: it does not exist", path=path) from error
        except KafkaIndexError:
            raise
        except Exception as error:
            raise _error(error, path, "open the file") from error

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a small file, or its first ones."""
        try:
            with self._client.read(_name(path)) as file:
                size = len(file) if max_bytes is None else min(max_bytes, len(file))
                return bytes(file.read_range(0, size)) if size else b""
        except FileNotFoundError:
            raise
        except Exception as error:
            raise _error(error, path, "read the file") from error

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory."""
        try:
            found = list(self._client.list_status(_name(path)))
        except FileNotFoundError:
            return []
        except Exception as error:
            raise _error(error, path, "read the directory") from error
        entries = [
            DirectoryEntry(info.path, each.isdir, info.size_bytes, info.mtime_ns)
            for each in found
            for info in [self._info(each)]
        ]
        return sorted(entries, key=lambda entry: entry.path)

    def list_tree(self, path: str, *, start_after: str = "") -> Iterator[pa.RecordBatch]:
        """Yield the files below a directory, in the order of their paths."""
        rows = []
        try:
            for each in self._client.list_status(_name(path), recursive=True):
                if not each.isdir:
                    info = self._info(each)
                    rows.append((info.path, info.size_bytes, info.mtime_ns, ""))
        except FileNotFoundError:
            return
        except Exception as error:
            raise _error(error, path, "read the directory") from error
        skipped = len(path.rstrip("/")) + 1
        kept = sorted((row[0][skipped:], *row[1:]) for row in rows)
        kept = [row for row in kept if row[0] > start_after]
        for first in range(0, len(kept), _LIST_CHUNK):
            columns = [
                pa.array(column) for column in zip(*kept[first : first + _LIST_CHUNK], strict=True)
            ]
            yield pa.record_batch(columns, schema=LISTING_SCHEMA)

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Write a file aside, close it, and rename it."""
        name = _name(path)
        folder, _, base = name.rpartition("/")
        aside = f"{folder}/.{base}.tmp"
        try:
            if if_absent and self._exists(name):
                return False
            with self._client.create(
                aside, hdfs_native.WriteOptions(overwrite=True, create_parent=True)
            ) as file:
                file.write(data)
            self._client.rename(aside, name, overwrite=not if_absent)
        except Exception as error:
            raise _publish_error(error, path, "write the file") from error
        return True

    def rename(self, source: str, target: str) -> None:
        """Rename a file."""
        try:
            self._client.rename(_name(source), _name(target), overwrite=True)
        except Exception as error:
            raise _publish_error(error, target, "put the file in place") from error

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files."""
        for path in paths:
            try:
                self._client.delete(_name(path))
            except FileNotFoundError:
                continue
            except Exception as error:
                raise _publish_error(error, path, "delete the file") from error

    def _exists(self, name: str) -> bool:
        try:
            self._client.get_file_info(name)
        except FileNotFoundError:
            return False
        return True

    def _info(self, status: Any) -> FileInfo:
        name = split_uri(status.path)[1] if "://" in status.path else status.path.strip("/")
        return FileInfo(f"{self._root}/{name}", status.length, status.modification_time * 1_000_000)


class HdfsFile:
    """A file of HDFS that is open for reading."""

    def __init__(self, store: HdfsStore, reader: Any, info: FileInfo) -> None:
        self._store = store
        self._reader = reader
        self._info = info

    @property
    def path(self) -> str:
        """Its URI."""
        return self._info.path

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self._info.size_bytes

    @property
    def mtime_ns(self) -> int:
        """Its modification time, nanoseconds since the epoch."""
        return self._info.mtime_ns

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return up to `size_bytes` bytes, fewer only at the end of the file."""
        if position_bytes < 0 or size_bytes < 0:
            raise ValueError(f"negative position or size: {position_bytes}, {size_bytes}")
        wanted = min(size_bytes, self.size_bytes - position_bytes)
        if wanted <= 0:
            return np.empty(0, np.uint8)
        try:
            data = self._reader.read_range(position_bytes, wanted)
        except Exception as error:
            raise _error(error, self.path, "read the file", position_bytes) from error
        if len(data) != wanted:
            raise ReadError(
                "the file ends early",
                path=self.path,
                position_bytes=position_bytes,
                expected=wanted,
                found=len(data),
            )
        found: Bytes = np.frombuffer(data, np.uint8)
        return found

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return the bytes of ascending ranges."""
        return [self.read_at(start, end - start) for start, end in zip(starts, ends, strict=True)]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position on."""
        for position in range(start_bytes, self.size_bytes, _PIECE_BYTES):
            yield self.read_at(position, _PIECE_BYTES)

    def changed(self) -> str | None:
        """Return how the file differs from the one opened; None when it does not."""
        try:
            now = self._store.info(self.path)
        except FileNotFoundError:
            return "it was removed"
        if (now.size_bytes, now.mtime_ns) != (self.size_bytes, self.mtime_ns):
            return "it was modified"
        return None

    def close(self) -> None:
        """Do nothing: connections belong to the client."""


def _name(path: str) -> str:
    return "/" + split_uri(path)[1]


def _error(
    error: Exception, path: str, action: str, position_bytes: int | None = None
) -> KafkaIndexError:
    return ReadError(
        f"cannot {action}: {type(error).__name__}", path=path, position_bytes=position_bytes
    )


def _publish_error(error: Exception, path: str, action: str) -> PublishError:
    return PublishError(f"cannot {action}: {type(error).__name__}", path=path)
