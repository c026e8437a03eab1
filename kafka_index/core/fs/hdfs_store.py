"""HDFS through hdfs-native, which needs neither a JVM nor libhdfs.

Client settings come from HADOOP_CONF_DIR or HADOOP_HOME, the user from the Kerberos ticket cache or
HADOOP_USER_NAME.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

import hdfs_native
import pyarrow as pa

from kafka_index.core.errors import InputError, KafkaIndexError, PublishError, ReadError
from kafka_index.core.fs import remote_file
from kafka_index.core.fs.remote_file import RemoteFile
from kafka_index.core.fs.store import (
    DirectoryEntry,
    FileInfo,
    StorageOptions,
    Store,
    list_by_directory,
    replace_by_claim,
)
from kafka_index.core.fs.uris import split_uri

_JAVA_ERROR = re.compile(r'"?(?:[a-z][\w]*\.)+(\w+Exception)"?, "?([^\n\\]{1,200})')

_WRITE_ATTEMPTS = 3
_TIMEOUT_MESSAGE = "Failed to complete file in time"
_MS_NS = 1_000_000
# The library retries for three minutes by default; a failover of the name node takes less.
_FAILOVER_SETTINGS = {
    "dfs.client.failover.max.attempts": "8",
    "dfs.client.failover.sleep.max.millis": "5000",
}


def reason(error: Exception) -> str:
    """Return the error message without the stack trace of the name node."""
    message = str(error)
    match = _JAVA_ERROR.search(message)
    if match is not None:
        return f"{match[2].strip()} ({match[1]})"
    first_line = message.splitlines()[0] if message else ""
    return first_line[:200] or type(error).__name__


def read_error(
    error: Exception, path: str, action: str, position_bytes: int | None = None
) -> ReadError:
    """Convert the error of a failed read; `action` follows "cannot" in the message."""
    return ReadError(
        f"cannot {action}: {reason(error)}",
        path=path,
        position_bytes=position_bytes,
        hint=_suggest_remedy(error),
    )


def publish_error(error: Exception, path: str, action: str) -> PublishError:
    """Convert the error of a failed write; `action` follows "cannot" in the message."""
    return PublishError(f"cannot {action}: {reason(error)}", path=path, hint=_suggest_remedy(error))


def _suggest_remedy(error: Exception) -> str | None:
    if "AccessControlException" in str(error):
        return "run as a user with permission (HADOOP_USER_NAME, or a Kerberos ticket: kinit)"
    if isinstance(error, OSError):
        return "check the address and the network"
    return None


class _SlowNodesError(PublishError):
    """The data nodes did not report the blocks of a file within the library's timeout."""


class HdfsStore(Store):
    """An HDFS file system.

    The root is ``hdfs://host:port``, ``hdfs://nameservice``, or ``hdfs://`` for fs.defaultFS.
    Options with Hadoop's property names take precedence over its configuration files. Raises
    `InputError` if the name service is unknown.
    """

    has_rename = True

    def __init__(self, root: str, options: StorageOptions) -> None:
        self._root = root
        has_files = any(map(os.environ.get, ("HADOOP_CONF_DIR", "HADOOP_HOME")))
        settings = {} if has_files else dict(_FAILOVER_SETTINGS)
        settings |= {key: value for key, value in options.resolve().items() if "." in key}
        url = None if root.endswith("//") else root
        try:
            self._client = hdfs_native.Client(url, config=settings or None)
        except Exception as error:
            raise InputError(
                f"cannot open the file system: {reason(error)}",
                path=root,
                hint="give hdfs://HOST:PORT, or set HADOOP_CONF_DIR to the Hadoop settings",
            ) from error

    def info(self, path: str) -> FileInfo:
        try:
            return self._to_file_info(self._client.get_file_info(_hdfs_path(path)))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise read_error(error, path, "read the file") from error

    def open(self, path: str, info: FileInfo | None = None) -> HdfsFile:
        """Open a file; raises `ReadError` if the file has changed since `info`."""
        try:
            reader = self._client.read(_hdfs_path(path))
            # Requested after the blocks were located, so that the comparison below is not older
            # than the data.
            current_info = self.info(path)
        except FileNotFoundError as error:
            raise InputError("cannot open the file: it does not exist", path=path) from error
        except KafkaIndexError:
            raise
        except Exception as error:
            raise read_error(error, path, "open the file") from error
        file = HdfsFile(self, reader, info or current_info)
        if (current_info.size_bytes, current_info.mtime_ns) != (
            file.size_bytes,
            file.mtime_ns,
        ) or len(reader) != file.size_bytes:
            raise ReadError(
                "the file changed after it was listed",
                path=path,
                expected=f"{file.size_bytes} bytes",
                found=f"{current_info.size_bytes} bytes",
                hint="run again when no process writes to the file",
            )
        return file

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        try:
            with self._client.read(_hdfs_path(path)) as file:
                size = len(file) if max_bytes is None else min(max_bytes, len(file))
                return bytes(file.read_range(0, size)) if size else b""
        except FileNotFoundError:
            raise
        except Exception as error:
            raise read_error(error, path, "read the file") from error

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        name = _hdfs_path(path)
        try:
            statuses = list(self._client.list_status(name))
        except FileNotFoundError:
            return []
        except Exception as error:
            raise read_error(error, path, "read the directory") from error
        entries = [
            DirectoryEntry(
                self._root + status.path,
                status.isdir,
                status.length,
                status.modification_time * _MS_NS,
            )
            for status in statuses
            if status.path != name  # a file lists itself
        ]
        return sorted(entries, key=lambda entry: entry.path)

    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        return list_by_directory(self, path)

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Write a temporary file, and rename the file to its final name.

        The temporary name is unique, so that an abandoned writer cannot rename the file of another
        writer. `kafka_index.core.output.publish` removes leftover temporary files.
        """
        if if_absent and self._exists(path):
            return False
        for _ in range(_WRITE_ATTEMPTS - 1):
            with suppress(_SlowNodesError):
                return self._try_put(path, data, replace=not if_absent)
        return self._try_put(path, data, replace=not if_absent)

    def _try_put(self, path: str, data: bytes | memoryview, *, replace: bool) -> bool:
        name = _hdfs_path(path)
        folder, _, file_name = name.rpartition("/")
        temporary_name = f"{folder}/.{file_name}.put.{uuid.uuid4().hex}.tmp"
        try:
            self._write(temporary_name, data)
            self._client.rename(temporary_name, name, overwrite=replace)
        except FileExistsError:
            self._delete_quietly(temporary_name)
            return False
        except Exception as error:
            self._delete_quietly(temporary_name)
            error_to_raise = publish_error(error, path, "write the file")
            raise (
                _SlowNodesError(error_to_raise.message, path=path)
                if _TIMEOUT_MESSAGE in str(error)
                else error_to_raise
            ) from error
        return True

    def _write(self, name: str, data: bytes | memoryview) -> None:
        options = hdfs_native.WriteOptions(overwrite=True, create_parent=True)
        with self._client.create(name, options) as file:
            file.write(data)

    def replace(self, path: str, data: bytes, info: FileInfo) -> bool:
        return replace_by_claim(self, path, data, info)

    def rename(self, source: str, target: str) -> None:
        try:
            self._client.rename(_hdfs_path(source), _hdfs_path(target), overwrite=True)
        except Exception as error:
            raise publish_error(error, target, "rename the file to its final name") from error

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                with suppress(FileNotFoundError):
                    self._client.delete(_hdfs_path(path))
            except Exception as error:
                raise publish_error(error, path, "delete the file") from error

    def _exists(self, path: str) -> bool:
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def _delete_quietly(self, name: str) -> None:
        # Report the original failure, not the failed cleanup.
        with suppress(Exception):
            self._client.delete(name)

    def _to_file_info(self, status: Any) -> FileInfo:
        return FileInfo(self._root + status.path, status.length, status.modification_time * _MS_NS)


def _hdfs_path(path: str) -> str:
    return "/" + split_uri(path)[1]


class HdfsFile(RemoteFile):
    """An HDFS file open for reading; its blocks were located when it was opened."""

    _NOUN = "file"
    _WRONG_LENGTH = "the file ends early"

    def __init__(self, store: HdfsStore, reader: Any, info: FileInfo) -> None:
        super().__init__(info)
        self._store = store
        self._reader = reader

    def changed(self) -> str | None:
        """Return how the file changed since opening, such as ``removed``; None if unchanged."""
        try:
            current_info = self._store.info(self.path)
        except FileNotFoundError:
            return "removed"
        if (current_info.size_bytes, current_info.mtime_ns) != (self.size_bytes, self.mtime_ns):
            return "modified"
        return None

    def _request(self, position_bytes: int, size_bytes: int) -> bytes:
        try:
            with remote_file.request_slots:
                return cast("bytes", self._reader.read_range(position_bytes, size_bytes))
        except Exception as error:
            change = self._find_change()
            if change is not None:
                raise self._change_error(change, position_bytes) from error
            raise read_error(error, self.path, "read the file", position_bytes) from error

    def _find_change(self) -> str | None:
        try:
            return self.changed()
        except KafkaIndexError:
            return None
