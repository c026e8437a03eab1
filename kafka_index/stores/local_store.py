"""The local disk as a store."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.stores.claims import replace_by_claim
from kafka_index.stores.durable_files import AtomicFile, publish_error
from kafka_index.stores.inputs import refuse_linked_out
from kafka_index.stores.mapped_file import MappedFile
from kafka_index.stores.store import LISTING_SCHEMA, DirectoryEntry, FileInfo

_LIST_CHUNK = 10_000


class LocalStore:
    """Plain paths."""

    has_rename = True

    def info(self, path: str) -> FileInfo:
        """Return a file's size and modification time."""
        found = os.stat(path)
        return FileInfo(path, found.st_size, found.st_mtime_ns)

    def open(self, path: str, info: FileInfo | None = None) -> MappedFile:  # noqa: ARG002, because the caller compares what it listed
        """Open a file and map it."""
        refuse_linked_out(path)
        return MappedFile(path)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a small file, or its first ones."""
        refuse_linked_out(path)
        try:
            with open(path, "rb") as file:
                return file.read(-1 if max_bytes is None else max_bytes)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise InputError(f"cannot read the file: {error.strerror}", path=path) from error

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory, without those that are neither file nor directory."""
        entries = []
        try:
            with os.scandir(path) as found:
                for entry in found:
                    if entry.is_dir():
                        entries.append(DirectoryEntry(entry.path, is_directory=True))
                    elif entry.is_file():
                        stat = entry.stat()
                        entries.append(
                            DirectoryEntry(
                                entry.path, size_bytes=stat.st_size, mtime_ns=stat.st_mtime_ns
                            )
                        )
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"cannot read the directory: {error.strerror}", path=path) from error
        return sorted(entries, key=lambda entry: entry.path)

    def list_tree(self, path: str, *, start_after: str = "") -> Iterator[pa.RecordBatch]:
        """Yield the files below a directory, in the order of their paths."""
        rows: list[tuple[str, int, int, str]] = []
        skipped = len(os.path.join(path, ""))
        for entry in self._walk(path):
            below = entry.path[skipped:]
            if below > start_after:
                rows.append((below, entry.size_bytes, entry.mtime_ns, ""))
            if len(rows) == _LIST_CHUNK:
                yield _batch(rows)
                rows = []
        if rows:
            yield _batch(rows)

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Write a file aside, make it durable, and rename it."""
        if if_absent and os.path.exists(path):
            return False
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except OSError as error:
            raise publish_error(error, path, "make the folder") from error
        with AtomicFile(path) as file:
            file.write(data)
            if if_absent:
                return file.commit_if_absent()
            file.commit()
        return True

    def replace(self, path: str, data: bytes, info: FileInfo) -> bool:
        """Write a file if its size and time are those of `info`, one process at a time."""
        return replace_by_claim(self, path, data, info)

    def rename(self, source: str, target: str) -> None:
        """Rename a file."""
        try:
            os.replace(source, target)
        except OSError as error:
            raise publish_error(error, target, "put the file in place") from error

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files."""
        for path in paths:
            try:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError as error:
                raise publish_error(error, path, "delete the file") from error

    def _walk(self, path: str) -> Iterator[DirectoryEntry]:
        waiting: list[tuple[str, DirectoryEntry]] = []
        for entry in self.list_directory(path):
            heapq.heappush(waiting, (_sort_key(entry), entry))
        while waiting:
            _, entry = heapq.heappop(waiting)
            if not entry.is_directory:
                yield entry
                continue
            for inner in self.list_directory(entry.path):
                heapq.heappush(waiting, (_sort_key(inner), inner))


def _sort_key(entry: DirectoryEntry) -> str:
    # As an object store sorts: a directory's files come where its name with a slash would.
    return f"{entry.path}/" if entry.is_directory else entry.path


def _batch(rows: list[tuple[str, int, int, str]]) -> pa.RecordBatch:
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    return pa.record_batch(columns, schema=LISTING_SCHEMA)
