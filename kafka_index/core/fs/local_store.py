"""The local disk as a store."""

from __future__ import annotations

import mmap
import os
import shutil
import stat
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from os import PathLike

import numpy as np
import pyarrow as pa

from kafka_index.core.closeable import Closeable
from kafka_index.core.errors import CorruptObjectError, InputError, is_retriable
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
_PIECE_BYTES = 1 << 20
_PROBE = ".kafka-index.probe"


class MappedFile(Closeable):
    """A local, regular file, opened read-only (KAFKA-5104) and mapped whole.

    A view taken from the map stays valid for as long as it is held, even after `close`. Reading
    into a buffer that stays in the cache is faster than going through the map page by page; the map
    is for readers of little of a file, or that must see it all. If another process cuts the file
    shorter while it is mapped, or its disk fails, the pages that are lost read as zeros, and
    `faulted` is set (`kafka_index.core.kernels.sigbus_guard`). Raises `InputError` if the file is
    missing, unreadable, or not a regular file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._map: mmap.mmap | None = None
        self._array: Bytes = _NO_BYTES
        self._guard: SigbusGuard | None = None
        self._descriptor = -1
        try:
            # O_NONBLOCK so that a named pipe is refused below instead of waited for here.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise InputError(f"cannot open the file: {error.strerror}", path=path) from error
        try:
            self._opened = os.fstat(descriptor)
            if not stat.S_ISREG(self._opened.st_mode):
                raise InputError("not a regular file", path=path)  # noqa: TRY301, because it closes
            # An empty file cannot be mapped.
            if self._opened.st_size:
                self._map = mmap.mmap(descriptor, self._opened.st_size, access=mmap.ACCESS_READ)
                self._array = np.frombuffer(self._map, np.uint8)
                self._guard = SigbusGuard(self._array.ctypes.data, self._opened.st_size)
        except (OSError, ValueError) as error:
            # ValueError: the file shrank between fstat and mmap.
            os.close(descriptor)
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot map the file: {reason}", path=path) from error
        except InputError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self.size_bytes, self.mtime_ns = self._opened.st_size, self._opened.st_mtime_ns

    @property
    def array(self) -> Bytes:
        """The whole file as a read-only array of uint8; empty after `close`."""
        return self._array

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return a view of up to `size_bytes` bytes, fewer only at the end of the file.

        Raises `ValueError` for a negative position or size.
        """
        if position_bytes < 0 or size_bytes < 0:
            raise ValueError(f"negative position or size: {position_bytes}, {size_bytes}")
        return self._array[position_bytes : position_bytes + size_bytes]

    def read_into(self, position_bytes: int, buffer: Bytes) -> int:
        """Fill a buffer from a position on; return the number of bytes.

        Raises `InputError` if the disk or the file system fails.
        """
        return fill(self._descriptor, self.path, position_bytes, memoryview(buffer.data))

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return views of ranges, end exclusive."""
        return [self._array[start:end] for start, end in zip(starts, ends, strict=True)]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield views of the bytes from a position to the end."""
        self.advise_sequential()
        for position in range(start_bytes, self.size_bytes, _PIECE_BYTES):
            yield self._array[position : position + _PIECE_BYTES]

    def advise_sequential(self) -> None:
        """Tell the kernel to read far ahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def advise_random(self) -> None:
        """Tell the kernel not to read ahead."""
        if self._map is not None and hasattr(mmap, "MADV_RANDOM"):
            self._map.madvise(mmap.MADV_RANDOM)

    @property
    def faulted(self) -> bool:
        """Whether bytes were lost while the file was open, and zeros read in their place."""
        return self._guard is not None and self._guard.faulted

    def changed(self, *, may_grow: bool = False) -> str | None:
        """Return how the file at this path differs from the one opened, None when it does not.

        It may be replaced, gone, cut or modified: ``"it grew from 10 to 20 bytes"``. With
        `may_grow` appended bytes are no change.
        """
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return "it was removed"
        except OSError as error:
            return f"it cannot be looked at any more: {error.strerror}"
        before = self._opened
        if (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino):
            return "it was replaced by another file"
        if now.st_size < before.st_size or (now.st_size > before.st_size and not may_grow):
            how = "grew" if now.st_size > before.st_size else "was cut"
            return f"it {how} from {before.st_size} to {now.st_size} bytes"
        is_modified = now.st_mtime_ns != before.st_mtime_ns and not may_grow
        return "it was modified" if is_modified else None

    def close(self) -> None:
        """Unmap the file, or leave that to the last view of it."""
        self._array = _NO_BYTES
        if self._guard is not None:
            self._guard.release()
        if self._map is not None:
            # BufferError: someone (often the frame of a traceback) still holds a view. Unmapping
            # under it would crash the process; the map goes when the last view goes.
            with suppress(BufferError):
                self._map.close()
            self._map = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def fill(descriptor: int, path: str, position_bytes: int, buffer: memoryview) -> int:
    """Fill a buffer from an open file; return the number of bytes, fewer where the file ends.

    Raises `InputError` if the disk or the file system fails.
    """
    filled = 0
    while filled < len(buffer):
        try:
            more = os.preadv(descriptor, [buffer[filled:]], position_bytes + filled)
        except OSError as error:
            raise InputError(
                f"cannot read the file: {error.strerror}",
                path=path,
                position_bytes=position_bytes + filled,
            ) from error
        if not more:
            break
        filled += more
    return filled


class LocalEntry:
    """An entry of a local directory: no system call is made before an answer needs it."""

    __slots__ = ("_entry", "name", "path")

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry = entry
        self.name = entry.name
        self.path = entry.path

    def is_directory(self) -> bool:
        """Return whether it is a directory, or a link to one."""
        try:
            return self._entry.is_dir()
        except OSError as error:
            if is_retriable(error):
                raise unreadable_directory(error, self.path) from error
            # Such as a link that leads in circles: nothing that a broker would load.
            return False

    def why_not_a_file(self) -> str | None:
        """Return why it cannot be read as a file."""
        try:
            if self._entry.is_file():
                return None
        except OSError as error:
            # Where the disk or a permission is at fault, opening it meets and reports the same.
            return None if is_retriable(error) else f"cannot be inspected: {error.strerror}"
        return BROKEN_LINK if self.is_broken_link() else NOT_A_FILE

    def is_broken_link(self) -> bool:
        """Return whether it is a link to nothing."""
        return self._entry.is_symlink() and not os.path.exists(self.path)

    def info(self) -> FileInfo:
        """Return its size and time; 0 where they cannot be found out."""
        try:
            found = self._entry.stat()
        except OSError:
            # Opening it will fail as well, and that becomes the segment's row in the report.
            return FileInfo(self.path, 0, 0)
        return FileInfo(self.path, found.st_size, found.st_mtime_ns)

    def linked_out(self) -> str | None:
        """Return where it leads as a link out of the input that is not followed."""
        if not self._entry.is_symlink():
            return None
        found = linked_out(self.path)
        return None if found is None else found.target

    def file_version(self) -> tuple[int, str]:
        """Return its size, and the time of its last change.

        Unlike the time of its modification, no program can set that.
        """
        try:
            found = self._entry.stat()
        except OSError:
            return 0, ""
        return found.st_size, str(found.st_ctime_ns)


class LocalStore(Store):
    """Plain paths."""

    has_rename = stages_beside = has_locks = hosts_brokers = has_links = True
    needs_requests = False

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
        except NotADirectoryError as error:
            raise FileNotFoundError(error.errno, error.strerror, path) from error
        except OSError as error:
            raise InputError(f"cannot read the file: {error.strerror}", path=path) from error

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the files and directories in a directory, and no other entries."""
        entries = []
        try:
            with os.scandir(path) as found:
                for entry in found:
                    if entry.is_dir():
                        entries.append(DirectoryEntry(entry.path, is_directory=True))
                    elif entry.is_file():
                        # Without a file that is removed meanwhile, and with all others.
                        with suppress(FileNotFoundError):
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

    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield the files below a directory, in the order of their paths."""
        return list_by_directory(self, path)

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

    def delete_tree(self, path: str) -> None:
        """Delete a directory with all that is below it."""
        with publishing(path, "remove the folder"), suppress(FileNotFoundError):
            shutil.rmtree(path)

    def delete_empty_directory(self, path: str) -> None:
        """Delete a directory if it is empty, and can be deleted."""
        with suppress(OSError):
            os.rmdir(path)

    def is_file(self, path: str) -> bool:
        """Return whether there is a file, or a link to one."""
        return os.path.isfile(path)

    def is_special(self, path: str) -> bool:
        """Return whether something exists that is neither file nor directory, such as a pipe."""
        return not os.path.isfile(path) and not os.path.isdir(path) and os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        """Return whether there is a directory; raises `InputError` if it cannot be inspected."""
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except OSError as error:
            if is_retriable(error):
                raise unreadable_directory(error, path) from error
            return False

    def scan(self, path: str) -> list[Entry]:
        """Return the entries of a directory, whatever they are; raises `OSError`."""
        with os.scandir(path) as entries:
            return list(map(LocalEntry, entries))

    def files_below(self, path: str) -> Iterator[str]:
        """Yield the path of each entry below a directory that is none; links are not followed."""
        return (os.path.join(at, name) for at, _, names in walk(path) for name in names)

    def real_path(self, path: str) -> str:
        """Return a path without links."""
        return os.path.realpath(path)

    def identity(self, path: str) -> Hashable:
        """Return the device and the inode."""
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def make_directory(self, path: str, action: str = "make the folder") -> None:
        """Make a directory, with those above it."""
        with publishing(path, action):
            os.makedirs(path, exist_ok=True)

    def make_writable_directory(self, path: str) -> None:
        """Make a directory, and try a write there."""
        # One name for all runs, so that what a killed one leaves is used up by the next.
        probe = os.path.join(path, _PROBE)
        with publishing(path, "write to the output"):
            os.makedirs(path, exist_ok=True)
            # Permission bits are not enough (root, read-only mounts, access lists).
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            with suppress(FileNotFoundError):  # another run tried at the same time
                os.unlink(probe)

    def is_same_directory(self, path: str, other: str) -> bool:
        """Return whether a directory is that of another path, through links or mounts."""
        return os.path.isdir(other) and os.path.samefile(path, other)

    def make_durable(self, directories: Iterable[str], action: str) -> None:
        """Sync directories."""
        sync(directories, action)

    def create(self, path: str, *, scratch_path: str | None = None, what: str) -> AtomicFile:
        """Create a file that appears whole, or not at all."""
        return AtomicFile(path, scratch_path=scratch_path, what=what)

    def readable(self, path: str, info: FileInfo | None = None) -> str:  # noqa: ARG002, as in open
        """Return the path."""
        return path

    def input_stream(self, path: str) -> pa.NativeFile:
        """Open a file to be read once, decompressed as its name says."""
        return pa.input_stream(path, compression="detect")


class UnlinkedStore(LocalStore):
    """A folder of the local disk in which no link is followed: whoever wrote it may set any.

    A listing leaves links out; `info`, `open`, `read` and `put` raise `CorruptObjectError` for a
    path through one, and reads for anything that is no file.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def info(self, path: str) -> FileInfo:
        """Return a file's size and modification time."""
        return super().info(self._checked(path))

    def open(self, path: str, info: FileInfo | None = None) -> MappedFile:
        """Open a file and map it."""
        return super().open(self._file(path), info)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a small file, or its first ones."""
        return super().read(self._file(path), max_bytes)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the files and directories in a directory, and no other entries."""
        found = super().list_directory(self._checked(path))
        return [entry for entry in found if not os.path.islink(entry.path)]

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Write a file aside, make it durable, and rename it."""
        return super().put(self._checked(path), data, if_absent=if_absent)

    def _file(self, path: str) -> str:
        """Return the path of a file; raises `CorruptObjectError` if something else is there."""
        if os.path.exists(self._checked(path)) and not os.path.isfile(path):
            raise CorruptObjectError("not a regular file", path=path)
        return path

    def _checked(self, path: str) -> str:
        """Return a path below the root; raises `CorruptObjectError` if a part of it is a link."""
        at = self._root
        for name in path[len(self._root) :].strip("/").split("/"):
            at = os.path.join(at, name)
            if name and os.path.islink(at):
                raise CorruptObjectError(
                    "a link in a repository is not followed",
                    path=at,
                    found=os.path.realpath(at),
                    hint="replace the link with its target, or mount the target there",
                )
        return path


def walk(root: str, *, follows_links: bool = False) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each local folder from a root on with its folders and files, as `os.walk` does.

    Raises `InputError` if a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise unreadable_directory(error, error.filename) from error

    return os.walk(root, onerror=fail, followlinks=follows_links)


def unreadable_directory(error: OSError, path: str) -> InputError:
    """Return the error of a directory that cannot be read."""
    return InputError(
        f"cannot read the directory: {error.strerror}",
        path=path,
        hint="check its permissions, or leave it out of the input",
    )
