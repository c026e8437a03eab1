"""Files that survive a crash: written aside, made durable, renamed; errors, and copies (FICLONE).

One fsync costs a journal commit; a thousand small index files would cost a thousand. From a few
files on, one ``syncfs`` per file system does for all of them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from typing import Self

from kafka_index.core.errors import OPEN_FILES_HINT, PublishError

# Up to here an fsync each is cheaper than a syncfs, which also writes what others left dirty.
_FEW = 4
# statfs(2) types whose syncfs writes back everything, waits, and reports (ext, xfs, btrfs,
# f2fs, tmpfs). On a network or FUSE mount it may not reach the server, fsync does.
_SYNCFS_TYPES = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994})
# Before that, syncfs returned success even when writing back had failed.
_SYNCFS_REPORTS_SINCE = (5, 8)
_STATFS_BYTES = 512
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# The file system or the kernel cannot exchange names.
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_KNOWN: dict[int, tuple[str, str]] = {
    errno.ENOSPC: (
        "no space left on the target's file system",
        "free space there or choose another target, then run again",
    ),
    errno.EDQUOT: (
        "the disk quota of the target is used up",
        "raise it or choose another target, then run again",
    ),
    errno.EFBIG: (
        "the file would be larger than this process may write",
        "raise the limit (ulimit -f) and run again",
    ),
    errno.EROFS: (
        "the target's file system is read-only",
        "mount it for writing or choose another --output",
    ),
    errno.EACCES: (
        "no permission to write here",
        "run as the owner of the target or choose another --output",
    ),
    errno.EPERM: (
        "writing here is not permitted",
        "run as the owner of the target (is it immutable?) or choose another --output",
    ),
    errno.ENOTDIR: (
        "a file stands where a directory is needed",
        "move it away or choose another --output",
    ),
    errno.EISDIR: (
        "a directory stands where a file is to be written",
        "move it away or choose another --output",
    ),
    errno.EMFILE: ("too many open files", OPEN_FILES_HINT),
}
_KNOWN[errno.EEXIST] = _KNOWN[errno.ENOTDIR]

# _IOW(0x94, 9, int) of linux/fs.h.
_FICLONE = 0x40049409
_NO_CLONES = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM}
)


class AtomicFile:
    """A file that is written aside and takes its name whole, or not at all.

    A context manager: without `commit`, it removes the scratch file, and an older file stays as it
    was. The scratch path is in the same folder, by default ``.NAME.tmp``: one name for all runs, so
    that the next run overwrites the leftover of a killed one. `what` names the file in errors.
    Raises `PublishError` if the scratch file cannot be created, or another run is writing the same
    file, before any work is done.
    """

    def __init__(self, path: str, *, scratch_path: str | None = None, what: str = "file") -> None:
        folder, name = os.path.split(path)
        self.path = path
        self.scratch_path = scratch_path or os.path.join(folder, f".{name}.tmp")
        self._what = what
        self._is_committed = False
        self._descriptor = -1
        with self.writing():
            try:
                while self._descriptor < 0:
                    self._descriptor = self._open_locked()
            except BlockingIOError as error:
                raise PublishError(
                    f"another run is writing this {what}", path=path, hint="give it another name"
                ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the scratch file unless it has its final name."""
        if not self._is_committed:
            with suppress(OSError):
                os.unlink(self.scratch_path)
        os.close(self._descriptor)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes to the scratch file; raises `PublishError` if they cannot be written."""
        view = memoryview(data)
        with self.writing():
            while view:
                view = view[os.write(self._descriptor, view) :]

    def commit(self, *, durable: bool = True) -> None:
        """Give the scratch file its final name; with `durable` once its bytes are on the disk.

        Raises `PublishError` if the disk or the folder refuses it; an older file stays as it was.
        """
        with self.writing():
            if durable:
                os.fsync(self._descriptor)
            os.replace(self.scratch_path, self.path)
        self._is_committed = True

    def commit_if_absent(self) -> bool:
        """Give the scratch file its final name, durably, unless a file has it; return whether.

        Raises `PublishError` if the disk or the folder refuses it.
        """
        with self.writing():
            os.fsync(self._descriptor)
            try:
                os.link(self.scratch_path, self.path)
            except FileExistsError:
                return False
        return True

    def writing(self) -> AbstractContextManager[None]:
        """Raise the error of the operating system in a block that writes as `PublishError`."""
        return publishing(self.path, f"write the {self._what}")

    def _open_locked(self) -> int:
        """Return the descriptor of the locked, empty scratch file; -1 to try again."""
        descriptor = os.open(self.scratch_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                # Some network file systems have no locks; the rename is atomic all the same.
                if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
                    raise
            # Its last holder may have renamed it after we opened it: then it is the final file.
            opened = os.fstat(descriptor)
            if not os.path.samestat(opened, os.lstat(self.scratch_path)):
                os.close(descriptor)
                return -1
            # So it is where a holder was killed that had linked it, and not removed its first name.
            if opened.st_nlink > 1:
                os.unlink(self.scratch_path)
                os.close(descriptor)
                return -1
            os.ftruncate(descriptor, 0)
        except FileNotFoundError:
            os.close(descriptor)
            return -1
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def publish_error(error: OSError, path: str, action: str) -> PublishError:
    """Return the PublishError for a failed write.

    The action follows "cannot" in the message: ``"create the file"``.
    """
    code = error.errno or 0
    reason, hint = _KNOWN.get(code, (error.strerror or os.strerror(code), "check the target"))
    return PublishError(f"cannot {action}: {reason}", path=path, hint=hint)


@contextmanager
def publishing(path: str, action: str) -> Iterator[None]:
    """Raise the error of the operating system in a block as the `publish_error` of a path."""
    try:
        yield
    except OSError as error:
        raise publish_error(error, path, action) from error


def sync(paths: Iterable[str], action: str) -> None:
    """Make files or folders durable; raise `PublishError` for the first one that fails.

    The action follows "cannot" in the message: ``"make the report durable"``.
    """
    for path, error in make_durable(paths).items():
        raise publish_error(error, path, action) from error


def make_durable(paths: Iterable[str]) -> dict[str, OSError]:
    """Sync files or folders, each once; return the paths that failed, with their errors."""
    unique = list(dict.fromkeys(paths))
    if len(unique) <= _FEW:
        return _sync_each(unique)
    failures: dict[str, OSError] = {}
    by_device: dict[int, list[str]] = defaultdict(list)
    for path in unique:
        try:
            by_device[os.stat(path).st_dev].append(path)
        except OSError as error:
            failures[path] = error
    for members in by_device.values():
        if len(members) <= _FEW or not _sync_file_system(members[0]):
            failures |= _sync_each(members)
    return failures


def _sync_each(paths: Sequence[str]) -> dict[str, OSError]:
    failures = {}
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            failures[path] = error
    return failures


def _sync_file_system(path: str) -> bool:
    """Sync the whole file system of `path`; False when it must be done file by file."""
    calls = _libc()
    if calls is None:
        return False
    syncfs, fstatfs = calls
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = (ctypes.c_long * (_STATFS_BYTES // ctypes.sizeof(ctypes.c_long)))()
        # f_type is the first word of struct statfs on every 64-bit Linux.
        if fstatfs(descriptor, status) != 0 or status[0] not in _SYNCFS_TYPES:
            return False
        # A failure here says nothing about which file: the fsyncs that follow do.
        return bool(syncfs(descriptor) == 0)
    finally:
        os.close(descriptor)


@cache
def _libc() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """Return the C library's syncfs and fstatfs, None where they cannot be relied on."""
    system = os.uname()
    try:
        release = tuple(int(part) for part in system.release.split(".", 2)[:2])
        libc = ctypes.CDLL(None, use_errno=True)
        calls = libc.syncfs, libc.fstatfs
    except (ValueError, OSError, AttributeError):
        return None
    if (
        system.sysname != "Linux"
        or ctypes.sizeof(ctypes.c_long) != 8
        or release < _SYNCFS_REPORTS_SINCE
    ):
        return None
    return calls


def copy_file(source: str, target: str) -> None:
    """Copy a file with its times over another; neither sees later writes to the other.

    A link is followed. Raises `OSError` if the source cannot be read or the target not written.
    """
    if not clone_file(source, target):
        shutil.copyfile(source, target)
    shutil.copystat(source, target)


def clone_file(source: str, target: str) -> bool:
    """Make a file that shares blocks with another until one is written; return whether it can.

    A link is followed, and the target is replaced; it is empty if the file systems cannot clone the
    file. Raises `OSError` if the source cannot be read or the target not written.
    """
    with open(source, "rb") as old, open(target, "wb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError as error:
            if error.errno in _NO_CLONES:
                return False
            raise
    return True


def exchange(first: str, second: str) -> bool:
    """Exchange two paths of one file system at one moment; return whether the system can.

    It is renameat2(2), which not every kernel and file system has. Raises `OSError` where it fails.
    """
    call = _renameat2()
    if call is None:
        return False
    names = os.fsencode(first), os.fsencode(second)
    if call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), second)


@cache
def _renameat2() -> Callable[..., int] | None:
    try:
        call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    return call
