"""The local disk as a store."""

from __future__ import annotations

import mmap
import os
import shutil
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from os import PathLike
from typing import ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from kafka_index.core.contexts import Closeable
from kafka_index.core.errors import CorruptObjectError, InputError, is_retriable
from kafka_index.core.format.longs import Longs
from kafka_index.core.fs.durable_files import (
    AtomicFile,
    publish_error,
    publishing,
    sync,
)
from kafka_index.core.fs.inputs import BROKEN_LINK, NOT_A_FILE, linked_out, refuse_linked_out
from kafka_index.core.fs.store import (
    Bytes,
    DirectoryEntry,
    Entry,
    FileInfo,
    Store,
    list_by_directory,
    replace_by_claim,
)
from kafka_index.core.kernels.sigbus_guard import SigbusGuard

_NO_BYTES: Bytes = np.frombuffer(b"", np.uint8)
_BLOCK_BYTES = 1 << 20
_PROBE = ".kafka-index.probe"
_T = TypeVar("_T")


class MappedFile(Closeable):
    """A local regular file, opened read-only (KAFKA-5104) and fully memory-mapped.

    Views of the memory mapping stay valid as long as they are referenced, even after `close`.
    Sequential reads are faster through a buffer that stays in the CPU cache. The memory mapping
    suits sparse reads, and readers that need the file as one array. If another process truncates
    the file or its disk fails, lost pages read as zeros and `faulted` is set
    (`kafka_index.core.kernels.sigbus_guard`). Raises `InputError` if the file is missing,
    unreadable, or not a regular file.
    """

    is_fetched: ClassVar[bool] = False

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._map: mmap.mmap | None = None
        self._array: Bytes = _NO_BYTES
        self._guard: SigbusGuard | None = None
        self._descriptor = -1
        try:
            # O_NONBLOCK, so that opening a named pipe does not wait. Pipes are rejected below.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise InputError(f"cannot open the file: {error.strerror}", path=path) from error
        try:
            self._status = os.fstat(descriptor)
            if not stat.S_ISREG(self._status.st_mode):
                raise InputError("the path is not a regular file", path=path)  # noqa: TRY301, because it closes
            # An empty file cannot be mapped.
            if self._status.st_size:
                self._map = mmap.mmap(descriptor, self._status.st_size, access=mmap.ACCESS_READ)
                self._array = np.frombuffer(self._map, np.uint8)
                self._guard = SigbusGuard(self._array.ctypes.data, self._status.st_size)
        except (OSError, ValueError) as error:
            # ValueError: the file shrank between fstat and mmap.
            os.close(descriptor)
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot map the file: {reason}", path=path) from error
        except InputError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self.size_bytes, self.mtime_ns = self._status.st_size, self._status.st_mtime_ns

    @property
    def array(self) -> Bytes:
        """The file as a read-only uint8 array; empty after `close`."""
        return self._array

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return a view of up to `size_bytes` bytes, fewer only at the end of the file.

        Raises `ValueError` for a negative position or size.
        """
        if position_bytes < 0 or size_bytes < 0:
            raise ValueError(f"negative position or size: {position_bytes}, {size_bytes}")
        return self._array[position_bytes : position_bytes + size_bytes]

    def read_into(self, position_bytes: int, buffer: Bytes) -> int:
        """Fill a buffer from a position; return the number of bytes read.

        Raises `InputError` on I/O errors.
        """
        return fill(self._descriptor, self.path, position_bytes, memoryview(buffer.data))

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        return [self._array[start:end] for start, end in zip(starts, ends, strict=True)]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        self.advise_sequential()
        for position in range(start_bytes, self.size_bytes, _BLOCK_BYTES):
            yield self._array[position : position + _BLOCK_BYTES]

    def advise_sequential(self) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def advise_random(self) -> None:
        if self._map is not None and hasattr(mmap, "MADV_RANDOM"):
            self._map.madvise(mmap.MADV_RANDOM)

    @property
    def faulted(self) -> bool:
        """Whether bytes were lost while the file was open and zeros were read instead."""
        return self._guard is not None and self._guard.faulted

    def check_faults(self) -> None:
        """Raise `InputError` if bytes were lost while the file was open."""
        if self.faulted:
            raise InputError(
                "the file was truncated, or its disk failed, while it was read", path=self.path
            )

    def request(self, starts: Longs, ends: Longs, *, ahead: bool = False) -> None:
        """Do nothing: the file is mapped."""

    def fetch(self, starts: Longs, ends: Longs) -> None:
        """Do nothing: the file is mapped."""

    def complete(self, read: Callable[[], _T]) -> _T:
        return read()

    def changed(self, *, may_grow: bool = False) -> str | None:
        """Return how the file at this path differs from the opened file, None if it does not.

        The result is a phrase such as ``removed`` or ``grew from 10 to 20 bytes``. With `may_grow`,
        appended bytes are ignored.
        """
        try:
            current_status = os.stat(self.path)
        except FileNotFoundError:
            return "removed"
        except OSError as error:
            return f"no longer readable ({error.strerror})"
        opened_status = self._status
        if (current_status.st_dev, current_status.st_ino) != (
            opened_status.st_dev,
            opened_status.st_ino,
        ):
            return "replaced by another file"
        if current_status.st_size < opened_status.st_size or (
            current_status.st_size > opened_status.st_size and not may_grow
        ):
            verb = "grew" if current_status.st_size > opened_status.st_size else "truncated"
            return f"{verb} from {opened_status.st_size} to {current_status.st_size} bytes"
        is_modified = current_status.st_mtime_ns != opened_status.st_mtime_ns and not may_grow
        return "modified" if is_modified else None

    def close(self) -> None:
        """Unmap the file, now or when its last view is released."""
        self._array = _NO_BYTES
        if self._guard is not None:
            self._guard.release()
        if self._map is not None:
            # BufferError: a view still exists, often in a traceback. Unmapping now would crash the
            # process, so the memory mapping exists until its last view is deleted.
            with suppress(BufferError):
                self._map.close()
            self._map = None
        self.release_descriptor()

    def release_descriptor(self) -> None:
        """Close the file descriptor, which sequential reads need; the memory mapping stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def fill(descriptor: int, path: str, position_bytes: int, buffer: memoryview) -> int:
    """Fill a buffer from an open file; return the number of bytes, fewer at the end of the file.

    Raises `InputError` on I/O errors.
    """
    filled_bytes = 0
    while filled_bytes < len(buffer):
        try:
            read_bytes = os.preadv(
                descriptor, [buffer[filled_bytes:]], position_bytes + filled_bytes
            )
        except OSError as error:
            raise InputError(
                f"cannot read the file: {error.strerror}",
                path=path,
                position_bytes=position_bytes + filled_bytes,
            ) from error
        if not read_bytes:
            break
        filled_bytes += read_bytes
    return filled_bytes


class LocalEntry:
    """An entry of a local directory; system calls are made only on demand."""

    __slots__ = ("_entry", "name", "path")

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry = entry
        self.name = entry.name
        self.path = entry.path

    def is_directory(self) -> bool:
        """Return whether the entry is a directory, or a link to a directory."""
        try:
            return self._entry.is_dir()
        except OSError as error:
            if is_retriable(error):
                raise unreadable_directory(error, self.path) from error
            # The entry is a circular link, for example. A broker would not load it as a directory
            # either.
            return False

    def file_error(self) -> str | None:
        try:
            if self._entry.is_file():
                return None
        except OSError as error:
            # Disk and permission errors are reported when the file is opened.
            return None if is_retriable(error) else f"cannot be inspected: {error.strerror}"
        return BROKEN_LINK if self.is_broken_link() else NOT_A_FILE

    def is_broken_link(self) -> bool:
        return self._entry.is_symlink() and not os.path.exists(self.path)

    def info(self) -> FileInfo:
        """Return the size and modification time of the file, 0 if unknown."""
        try:
            status = self._entry.stat()
        except OSError:
            # Opening the file fails too, and reports the error for the segment.
            return FileInfo(self.path, 0, 0)
        return FileInfo(self.path, status.st_size, status.st_mtime_ns)

    def linked_out(self) -> str | None:
        """Return the target of a link out of the input that is not followed, else None."""
        if not self._entry.is_symlink():
            return None
        link = linked_out(self.path)
        return None if link is None else link.target

    def file_version(self) -> tuple[int, str]:
        """Return size and ctime of the file. Programs cannot set the ctime."""
        try:
            status = self._entry.stat()
        except OSError:
            return 0, ""
        return status.st_size, str(status.st_ctime_ns)


class LocalStore(Store):
    """The local disk; paths are plain paths."""

    has_rename = stages_locally = has_locks = hosts_brokers = has_links = True
    needs_requests = False

    def info(self, path: str) -> FileInfo:
        status = os.stat(path)
        return FileInfo(path, status.st_size, status.st_mtime_ns)

    def open(self, path: str, info: FileInfo | None = None) -> MappedFile:  # noqa: ARG002, because the caller compares what it listed
        refuse_linked_out(path)
        return MappedFile(path)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        refuse_linked_out(path)
        try:
            with open(path, "rb") as file:
                return file.read(-1 if max_bytes is None else max_bytes)
        except FileNotFoundError:
            raise
        except NotADirectoryError as error:
            raise FileNotFoundError(error.errno, error.strerror, path) from error
        except OSError as error:
            raise InputError(f"cannot read the file: {error.strerror}", path=path) from error

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the files and directories in a directory; other kinds of entries are omitted."""
        entries = []
        try:
            with os.scandir(path) as scan:
                for entry in scan:
                    if entry.is_dir():
                        entries.append(DirectoryEntry(entry.path, is_directory=True))
                    elif entry.is_file():
                        # Omit a file that is deleted concurrently.
                        with suppress(FileNotFoundError):
                            status = entry.stat()
                            entries.append(
                                DirectoryEntry(
                                    entry.path,
                                    size_bytes=status.st_size,
                                    mtime_ns=status.st_mtime_ns,
                                )
                            )
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"cannot read the directory: {error.strerror}", path=path) from error
        return sorted(entries, key=lambda entry: entry.path)

    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        return list_by_directory(self, path)

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Write a temporary file, make the file durable, and rename it to its final name."""
        if if_absent and os.path.exists(path):
            return False
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except OSError as error:
            raise publish_error(error, path, "create the folder") from error
        with AtomicFile(path) as file:
            file.write(data)
            if if_absent:
                return file.commit_if_absent()
            file.commit()
        return True

    def replace(self, path: str, data: bytes, info: FileInfo) -> bool:
        return replace_by_claim(self, path, data, info)

    def rename(self, source: str, target: str) -> None:
        try:
            os.replace(source, target)
        except OSError as error:
            raise publish_error(error, target, "rename the file to its final name") from error

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError as error:
                raise publish_error(error, path, "delete the file") from error

    def delete_tree(self, path: str) -> None:
        with publishing(path, "remove the folder"), suppress(FileNotFoundError):
            shutil.rmtree(path)

    def delete_empty_directory(self, path: str) -> None:
        with suppress(OSError):
            os.rmdir(path)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def is_special(self, path: str) -> bool:
        """Return whether something exists that is neither file nor directory, such as a pipe."""
        return not os.path.isfile(path) and not os.path.isdir(path) and os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except OSError as error:
            if is_retriable(error):
                raise unreadable_directory(error, path) from error
            return False

    def scan(self, path: str) -> list[Entry]:
        """Return all entries of a directory, of any kind; raises `OSError`."""
        with os.scandir(path) as entries:
            return list(map(LocalEntry, entries))

    def files_below(self, path: str) -> Iterator[str]:
        """Yield the path of each non-directory below a directory; links are not followed."""
        return (
            os.path.join(directory, name) for directory, _, names in walk(path) for name in names
        )

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def identity(self, path: str) -> Hashable:
        status = os.stat(path)
        return status.st_dev, status.st_ino

    def make_directory(self, path: str, action: str = "create the folder") -> None:
        with publishing(path, action):
            os.makedirs(path, exist_ok=True)

    def make_writable_directory(self, path: str) -> None:
        # All runs use the same name for the probe, so the next run removes the leftover of a killed
        # run.
        probe = os.path.join(path, _PROBE)
        with publishing(path, "write to the output"):
            os.makedirs(path, exist_ok=True)
            # Create a file, because permission bits do not account for root, read-only mounts and
            # ACLs.
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            with suppress(FileNotFoundError):  # A concurrent run has tested the folder.
                os.unlink(probe)

    def is_same_directory(self, path: str, other_path: str) -> bool:
        """Return whether two paths refer to the same directory, through links or mounts."""
        return os.path.isdir(other_path) and os.path.samefile(path, other_path)

    def make_durable(self, directories: Iterable[str], action: str) -> None:
        sync(directories, action)

    def create(self, path: str, *, scratch_path: str | None = None, noun: str) -> AtomicFile:
        return AtomicFile(path, scratch_path=scratch_path, noun=noun)

    def readable(self, path: str, info: FileInfo | None = None) -> str:  # noqa: ARG002, as in open
        return path

    def input_stream(self, path: str) -> pa.NativeFile:
        return pa.input_stream(path, compression="detect")


class UnlinkedStore(LocalStore):
    """A local folder in which no link is followed, because its writer may not be trusted.

    Listings omit links. `info`, `open`, `read` and `put` raise `CorruptObjectError` for a path
    through a link. `open` and `read` also raise it if the path is not a regular file.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def info(self, path: str) -> FileInfo:
        return super().info(self._refuse_links(path))

    def open(self, path: str, info: FileInfo | None = None) -> MappedFile:
        return super().open(self._require_file(path), info)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        return super().read(self._require_file(path), max_bytes)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        entries = super().list_directory(self._refuse_links(path))
        return [entry for entry in entries if not os.path.islink(entry.path)]

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        return super().put(self._refuse_links(path), data, if_absent=if_absent)

    def _require_file(self, path: str) -> str:
        """Return the path of a file; raises `CorruptObjectError` for any other kind of entry."""
        if os.path.exists(self._refuse_links(path)) and not os.path.isfile(path):
            raise CorruptObjectError("the path is not a regular file", path=path)
        return path

    def _refuse_links(self, path: str) -> str:
        """Return a path below the root; raises `CorruptObjectError` if a component is a link."""
        component = self._root
        for name in path[len(self._root) :].strip("/").split("/"):
            component = os.path.join(component, name)
            if name and os.path.islink(component):
                raise CorruptObjectError(
                    "a link in a repository is not followed",
                    path=component,
                    found=os.path.realpath(component),
                    hint="replace the link with its target, or mount the target at this path",
                )
        return path


def walk(root: str, *, follows_links: bool = False) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each local folder below a root with its folders and files, like `os.walk`.

    Raises `InputError` if a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise unreadable_directory(error, error.filename) from error

    return os.walk(root, onerror=fail, followlinks=follows_links)


def unreadable_directory(error: OSError, path: str) -> InputError:
    return InputError(
        f"cannot read the directory: {error.strerror}",
        path=path,
        hint="check the permissions, or omit the directory from the input",
    )
