"""HDFS, through hdfs-native, which needs neither a JVM nor libhdfs.

Client settings come from the files in HADOOP_CONF_DIR (or HADOOP_HOME), the user from Kerberos'
ticket cache or HADOOP_USER_NAME.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import hdfs_native
import numpy as np
import pyarrow as pa

from kafka_index.errors import InputError, KafkaIndexError, PublishError, ReadError
from kafka_index.stores import read_ahead
from kafka_index.stores.options import StorageOptions
from kafka_index.stores.store import LISTING_SCHEMA, Bytes, DirectoryEntry, FileInfo
from kafka_index.stores.uris import split_uri

_ROWS_OF_PAGE = 10_000
_MS_NS = 1_000_000
# The library's own patience is three minutes; a fail-over of the name node takes less than this.
_PATIENCE = {
    "dfs.client.failover.max.attempts": "8",
    "dfs.client.failover.sleep.max.millis": "5000",
}
_JAVA_ERROR = re.compile(r'"?(?:[a-z][\w]*\.)+(\w+Exception)"?, "?([^\n\\]{1,200})')


class HdfsStore:
    """A file system of HDFS.

    Parameters
    ----------
    root : str
        ``hdfs://host:port``, ``hdfs://nameservice``, or ``hdfs://`` for fs.defaultFS.
    options : StorageOptions
        Those under Hadoop's property names, which have dots; they win over its files.

    Raises
    ------
    InputError
        The name service is not known.
    """

    has_rename = True

    def __init__(self, root: str, options: StorageOptions) -> None:
        self._root = root
        settings = {} if _has_settings() else dict(_PATIENCE)
        settings |= {key: value for key, value in options.resolve().items() if "." in key}
        url = None if root.endswith("//") else root
        try:
            self._client = hdfs_native.Client(url, config=settings or None)
        except Exception as error:
            raise InputError(
                f"cannot open the file system: {_reason(error)}",
                path=root,
                hint="give hdfs://HOST:PORT, or set HADOOP_CONF_DIR to where its name is defined",
            ) from error

    def info(self, path: str) -> FileInfo:
        """Return a file's size and modification time."""
        try:
            return self._info(self._client.get_file_info(_name(path)))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise _read_error(error, path, "read the file") from error

    def open(self, path: str, info: FileInfo | None = None) -> HdfsFile:
        """Open a file, of the version that `info` names."""
        try:
            reader = self._client.read(_name(path))
            # After the blocks are known: what is compared is not older than what is read.
            now = self.info(path)
        except FileNotFoundError as error:
            raise InputError("cannot open the file: it does not exist", path=path) from error
        except KafkaIndexError:
            raise
        except Exception as error:
            raise _read_error(error, path, "open the file") from error
        file = HdfsFile(self, reader, info or now)
        if (now.size_bytes, now.mtime_ns) != (file.size_bytes, file.mtime_ns) or len(
            reader
        ) != file.size_bytes:
            raise ReadError(
                "the file changed after it was listed",
                path=path,
                expected=f"{file.size_bytes} bytes",
                found=f"{now.size_bytes} bytes",
                hint="run again when nothing writes to it",
            )
        return file

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a small file, or its first ones."""
        try:
            with self._client.read(_name(path)) as file:
                size = len(file) if max_bytes is None else min(max_bytes, len(file))
                return bytes(file.read_range(0, size)) if size else b""
        except FileNotFoundError:
            raise
        except Exception as error:
            raise _read_error(error, path, "read the file") from error

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory."""
        name = _name(path)
        try:
            found = list(self._client.list_status(name))
        except FileNotFoundError:
            return []
        except Exception as error:
            raise _read_error(error, path, "read the directory") from error
        entries = [
            DirectoryEntry(
                self._root + each.path, each.isdir, each.length, each.modification_time * _MS_NS
            )
            for each in found
            if each.path != name  # a file lists itself
        ]
        return sorted(entries, key=lambda entry: entry.path)

    def list_tree(self, path: str, *, start_after: str = "") -> Iterator[pa.RecordBatch]:
        """Yield the files below a directory, in the order of their paths.

        One directory's entries are in memory at a time, and those of the directories above it.
        """
        skipped = len(path.rstrip("/")) + 1
        rows: list[tuple[str, int, int, str]] = []
        for entry in self._walk(path, skipped, start_after):
            below = entry.path[skipped:]
            if below > start_after:
                rows.append((below, entry.size_bytes, entry.mtime_ns, ""))
            if len(rows) == _ROWS_OF_PAGE:
                yield _batch(rows)
                rows = []
        if rows:
            yield _batch(rows)

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Write a file aside, close it, and rename it.

        The file aside has a name of its own, so that a writer that was given up cannot rename
        what another one is still writing. One that a killed writer left is a scratch file like
        any other (`kafka_index.storage.scratch`).
        """
        folder, _, base = _name(path).rpartition("/")
        aside = f"{folder}/.{base}.put.{uuid.uuid4().hex}.tmp"
        options = hdfs_native.WriteOptions(overwrite=True, create_parent=True)
        try:
            if if_absent and self._exists(_name(path)):
                return False
            with self._client.create(aside, options) as file:
                file.write(data)
            self._client.rename(aside, _name(path), overwrite=not if_absent)
        except FileExistsError:
            self._discard(aside)
            return False
        except Exception as error:
            self._discard(aside)
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
                with suppress(FileNotFoundError):
                    self._client.delete(_name(path))
            except Exception as error:
                raise _publish_error(error, path, "delete the file") from error

    def _walk(self, path: str, skipped: int, start_after: str) -> Iterator[DirectoryEntry]:
        # As an object store sorts: a directory's files come where its name with a slash would.
        for entry in sorted(self.list_directory(path), key=_sort_key):
            if not entry.is_directory:
                yield entry
                continue
            below = f"{entry.path[skipped:]}/"
            if below > start_after or start_after.startswith(below):
                yield from self._walk(entry.path, skipped, start_after)

    def _exists(self, name: str) -> bool:
        try:
            self._client.get_file_info(name)
        except FileNotFoundError:
            return False
        return True

    def _discard(self, name: str) -> None:
        # The failure that led here is the one to report.
        with suppress(Exception):
            self._client.delete(name)

    def _info(self, status: Any) -> FileInfo:
        return FileInfo(self._root + status.path, status.length, status.modification_time * _MS_NS)


class HdfsFile:
    """A file of HDFS that is open for reading: its blocks are those of the moment it was opened."""

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
        """Its size when opened."""
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
            with read_ahead.request_slots:
                data = self._reader.read_range(position_bytes, wanted)
        except Exception as error:
            how = self._changed_meanwhile()
            if how is not None:
                raise ReadError(
                    f"the file changed while it was read: {how}",
                    path=self.path,
                    position_bytes=position_bytes,
                    hint="run again when nothing writes to it",
                ) from error
            raise _read_error(error, self.path, "read the file", position_bytes) from error
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
        return read_ahead.read_ranges(self.read_at, starts, ends)

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position on, a few pieces ahead of the caller."""
        return read_ahead.stream(self.read_at, start_bytes, self.size_bytes)

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

    def _changed_meanwhile(self) -> str | None:
        try:
            return self.changed()
        except KafkaIndexError:
            return None


def _name(path: str) -> str:
    return "/" + split_uri(path)[1]


def _sort_key(entry: DirectoryEntry) -> str:
    return f"{entry.path}/" if entry.is_directory else entry.path


def _batch(rows: list[tuple[str, int, int, str]]) -> pa.RecordBatch:
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    return pa.record_batch(columns, schema=LISTING_SCHEMA)


def _has_settings() -> bool:
    return any(os.environ.get(variable) for variable in ("HADOOP_CONF_DIR", "HADOOP_HOME"))


def _reason(error: Exception) -> str:
    """Return what went wrong, without the stack of the name node."""
    text = str(error)
    match = _JAVA_ERROR.search(text)
    if match is not None:
        return f"{match[2].strip()} ({match[1]})"
    first = text.splitlines()[0] if text else ""
    return first[:200] or type(error).__name__


def _read_error(
    error: Exception, path: str, action: str, position_bytes: int | None = None
) -> KafkaIndexError:
    return ReadError(
        f"cannot {action}: {_reason(error)}",
        path=path,
        position_bytes=position_bytes,
        hint=_hint(error),
    )


def _publish_error(error: Exception, path: str, action: str) -> PublishError:
    return PublishError(f"cannot {action}: {_reason(error)}", path=path, hint=_hint(error))


def _hint(error: Exception) -> str | None:
    if "AccessControlException" in str(error):
        return "run as a user who may (HADOOP_USER_NAME, or a Kerberos ticket: kinit)"
    if isinstance(error, OSError):
        return "check the address and the network"
    return None
