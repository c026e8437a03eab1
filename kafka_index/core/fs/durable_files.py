"""Durable files: atomic writes, fsync, error translation, and copies with FICLONE.

Each fsync costs a journal commit. For more than a few files, one ``syncfs`` per file system
replaces the calls of ``fsync``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from typing import Self

from kafka_index.core.errors import OPEN_FILES_HINT, PublishError

_LOGGER = logging.getLogger(__name__)
# Up to this number of paths, fsync is cheaper than syncfs, which also writes dirty pages of other
# processes.
_MAX_FSYNC_PATHS = 4
# File systems (statfs types) whose syncfs writes all dirty pages, waits for the disk, and reports
# errors: ext, xfs, btrfs, f2fs, tmpfs. On network and FUSE mounts only fsync is sure to reach the
# server.
_SYNCFS_TYPES = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994})
# Before this kernel, syncfs returned success even if writeback had failed.
_SYNCFS_REPORTS_SINCE = (5, 8)
_STATFS_BYTES = 512
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# Errors of renameat2 if the file system or kernel does not support an atomic swap.
_EXCHANGE_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_REASONS_AND_HINTS: dict[int, tuple[str, str]] = {
    errno.ENOSPC: (
        "no space left on the target's file system",
        "free space on the file system or choose another target, then run again",
    ),
    errno.EDQUOT: (
        "the disk quota of the target is used up",
        "raise the quota or choose another target, then run again",
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
        "no permission to write to the target",
        "run as the owner of the target or choose another --output",
    ),
    errno.EPERM: (
        "the target does not permit this operation",
        "run as the owner of the target, remove its immutable flag, or choose another --output",
    ),
    errno.ENOTDIR: (
        "a file has the path of a required directory",
        "move the file away or choose another --output",
    ),
    errno.EISDIR: (
        "a directory has the path of a file to be written",
        "move the directory away or choose another --output",
    ),
    errno.EMFILE: ("too many open files", OPEN_FILES_HINT),
}
_REASONS_AND_HINTS[errno.EEXIST] = _REASONS_AND_HINTS[errno.ENOTDIR]

# The ioctl FICLONE: _IOW(0x94, 9, int) in linux/fs.h.
_FICLONE = 0x40049409
_CLONE_UNSUPPORTED = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM}
)


class AtomicFile:
    """A file that is written under a temporary name and renamed atomically.

    A context manager: without `commit`, the temporary file is removed, and an existing file stays
    unchanged. The temporary file is in the same folder, by default ``.NAME.tmp``. All runs use the
    same temporary name, so the next run overwrites the leftover of a killed run. `noun` is the word
    for the file in errors. Raises `PublishError` if the temporary file cannot be created or another
    run is writing the same file.
    """

    def __init__(self, path: str, *, scratch_path: str | None = None, noun: str = "file") -> None:
        folder, name = os.path.split(path)
        self.path = path
        self.scratch_path = scratch_path or os.path.join(folder, f".{name}.tmp")
        self._noun = noun
        self._is_committed = False
        self._descriptor = -1
        with self.writing():
            try:
                while self._descriptor < 0:
                    self._descriptor = self._open_locked()
            except BlockingIOError as error:
                raise PublishError(
                    f"another run is writing this {noun}",
                    path=path,
                    hint="choose another file name",
                ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_committed:
            try:
                with suppress(FileNotFoundError):
                    os.unlink(self.scratch_path)
            except OSError as error:
                # The next run that writes this file removes or replaces the temporary file.
                _LOGGER.warning(
                    "cannot remove the temporary file %s: %s", self.scratch_path, error.strerror
                )
        os.close(self._descriptor)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes to the temporary file; raises `PublishError` on failure."""
        view = memoryview(data)
        with self.writing():
            while view:
                view = view[os.write(self._descriptor, view) :]

    def commit(self, *, durable: bool = True) -> None:
        """Rename the temporary file to its final name, after a sync if `durable`.

        Raises `PublishError` on failure; an existing file then stays unchanged.
        """
        with self.writing():
            if durable:
                os.fsync(self._descriptor)
            os.replace(self.scratch_path, self.path)
        self._is_committed = True

    def commit_if_absent(self) -> bool:
        """Link the temporary file durably to its final name; return False if the name exists.

        Raises `PublishError` on failure.
        """
        with self.writing():
            os.fsync(self._descriptor)
            try:
                os.link(self.scratch_path, self.path)
            except FileExistsError:
                return False
        return True

    def writing(self) -> AbstractContextManager[None]:
        """Convert an `OSError` to `PublishError` in a block that writes the file."""
        return publishing(self.path, f"write the {self._noun}")

    def _open_locked(self) -> int:
        """Open, lock and empty the temporary file; return its descriptor, or -1 to try again."""
        descriptor = os.open(self.scratch_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                # Some network file systems do not support locks. The rename is atomic nevertheless.
                if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
                    raise
            # Another run may have renamed or removed the file before this run locked it.
            status = os.fstat(descriptor)
            if not os.path.samestat(status, os.lstat(self.scratch_path)):
                os.close(descriptor)
                return -1
            # A process was killed after linking the final name, before removing the temporary name.
            if status.st_nlink > 1:
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
    """Convert the error of a failed write.

    `action` follows "cannot" in the message, as in ``"create the file"``.
    """
    code = error.errno or 0
    reason, hint = _REASONS_AND_HINTS.get(
        code, (error.strerror or os.strerror(code), "check the target")
    )
    return PublishError(f"cannot {action}: {reason}", path=path, hint=hint)


@contextmanager
def publishing(path: str, action: str) -> Iterator[None]:
    """Convert an `OSError` in a block to a `publish_error` for a path."""
    try:
        yield
    except OSError as error:
        raise publish_error(error, path, action) from error


def sync(paths: Iterable[str], action: str) -> None:
    """Make files or folders durable; raise `PublishError` for the first failure.

    `action` follows "cannot" in the message, as in ``"make the report durable"``.
    """
    for path, error in make_durable(paths).items():
        raise publish_error(error, path, action) from error


def make_durable(paths: Iterable[str]) -> dict[str, OSError]:
    """Sync each file or folder once; return the errors of the paths that failed."""
    distinct_paths = list(dict.fromkeys(paths))
    if len(distinct_paths) <= _MAX_FSYNC_PATHS:
        return _sync_each(distinct_paths)
    failures: dict[str, OSError] = {}
    by_device: dict[int, list[str]] = defaultdict(list)
    for path in distinct_paths:
        try:
            by_device[os.stat(path).st_dev].append(path)
        except OSError as error:
            failures[path] = error
    for device_paths in by_device.values():
        if len(device_paths) <= _MAX_FSYNC_PATHS or not _sync_file_system(device_paths[0]):
            failures |= _sync_each(device_paths)
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
    """Sync the whole file system of `path`; return False if files must be synced one by one."""
    calls = _load_sync_calls()
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
        # An error of syncfs does not identify a file. Callers then sync each file.
        return bool(syncfs(descriptor) == 0)
    finally:
        os.close(descriptor)


@cache
def _load_sync_calls() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """Return syncfs and fstatfs of the C library; None if this system's syncfs is not reliable."""
    system = os.uname()
    try:
        release = tuple(int(number) for number in system.release.split(".", 2)[:2])
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
    """Copy a file with its times to a target, which later writes to the source do not affect.

    Follows symbolic links. Raises `OSError` if the source cannot be read or the target not written.
    """
    if not clone_file(source, target):
        shutil.copyfile(source, target)
    shutil.copystat(source, target)


def clone_file(source: str, target: str) -> bool:
    """Clone a file, so that source and target share blocks; return False if not supported.

    Follows symbolic links. The target is truncated first, and stays empty if cloning is not
    supported. Raises `OSError` if the source cannot be read or the target not written.
    """
    with open(source, "rb") as old, open(target, "wb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError as error:
            if error.errno in _CLONE_UNSUPPORTED:
                return False
            raise
    return True


def exchange(path: str, other_path: str) -> bool:
    """Swap two paths of one file system atomically; return False if not supported.

    Uses renameat2(2), which some kernels and file systems lack. Raises `OSError` on failure.
    """
    call = _load_renameat2()
    if call is None:
        return False
    names = os.fsencode(path), os.fsencode(other_path)
    if call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _EXCHANGE_UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), other_path)


@cache
def _load_renameat2() -> Callable[..., int] | None:
    try:
        call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    return call
