"""Locks on data directories and output roots.

A broker locks each of its data directories: it opens ``.lock`` for writing, calls
``FileChannel.tryLock`` (FileLock.java), and holds that until it stops. On POSIX systems that is
an fcntl record lock over the whole file, the same as ``fcntl.lockf`` here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from kafka_index.errors import PublishError
from kafka_index.layout.names import BROKER_LOCK
from kafka_index.storage.store_lock import StoreLock
from kafka_index.stores import is_remote
from kafka_index.stores.durable_files import publish_error

_LOGGER = logging.getLogger(__name__)

OUTPUT_LOCK = ".kafka-index.lock"
_LOCK_MODE = 0o644
_TRIES = 10
# The content of a lock file made here: the run after a killed one tells it from a broker's.
_MARK = b"kafka-index\n"

# A process drops its lock on a file as soon as it closes ANY descriptor of that file, and never
# conflicts with itself. So each file is open at most once, and this is where that is recorded.
_held: set[tuple[int, int]] = set()
_held_guard = threading.Lock()


class DirectoryLock:
    """Hold the lock files of directories, all or none, without waiting.

    A directory given twice, also through a link, is locked once. Use as a context manager, in the
    driver and for the whole run. A lock file made here, by this run or by one that was killed, is
    removed at the end while still held; a broker's stays.
    """

    def __init__(self, directories: Iterable[str], *, file_name: str) -> None:
        real = dict.fromkeys(os.path.realpath(directory) for directory in directories)
        self.paths = tuple(os.path.join(directory, file_name) for directory in real)
        self._locks: list[_LockFile] = []

    @classmethod
    def of_data_directories(cls, directories: Iterable[str]) -> DirectoryLock:
        """Return the lock on data directories that keeps brokers (and runs in place) out."""
        return cls(directories, file_name=BROKER_LOCK)

    @classmethod
    def of_output(cls, output_root: str) -> DirectoryLock:
        """Return the lock on an output root that keeps other runs out."""
        return cls([output_root], file_name=OUTPUT_LOCK)

    def __enter__(self) -> Self:
        """Acquire all locks.

        Raises `PublishError` if one is held by a broker or another run, or cannot be acquired; none
        is held then, and no file is left.
        """
        try:
            for path in self.paths:
                self._locks.append(_LockFile(path))
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release all locks."""
        self.release()

    def release(self) -> None:
        """Release all locks, the last acquired first."""
        while self._locks:
            self._locks.pop().release()


def lock_of_output(output_root: str, run_id: str) -> DirectoryLock | StoreLock:
    """Return what keeps other runs out of an output, wherever it is."""
    if is_remote(output_root):
        return StoreLock(output_root, run_id)
    return DirectoryLock.of_output(output_root)


class _LockFile:
    """One lock file, locked."""

    def __init__(self, path: str) -> None:
        self._path = path
        for _ in range(_TRIES):
            try:
                if self._acquire():
                    return
            except OSError as error:
                raise publish_error(error, path, "lock the directory") from error
        raise PublishError("the lock file keeps being replaced", path=path, hint="run again")

    def _acquire(self) -> bool:
        """Acquire the lock; False when the file was replaced between opening and locking it."""
        with _held_guard:
            self._refuse_if_ours()
            self._ours = True
            flags = os.O_RDWR | os.O_CLOEXEC
            try:
                self._descriptor = os.open(self._path, flags | os.O_CREAT | os.O_EXCL, _LOCK_MODE)
            except FileExistsError:
                self._ours = False
                try:
                    self._descriptor = os.open(self._path, flags)
                except FileNotFoundError:
                    return False
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                opened = os.fstat(self._descriptor)
                self._identity = opened.st_dev, opened.st_ino
                # Its last holder may have removed the file after we opened it: then the lock is
                # on a file that nobody else will ever see.
                current = _identity(self._path)
                if self._ours:
                    self._mark()
                else:
                    self._ours = self._left_by_us()
            except OSError as error:
                os.close(self._descriptor)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise _held_elsewhere(self._path) from error
                if self._ours:
                    with contextlib.suppress(OSError):
                        os.unlink(self._path)
                raise
            if current != self._identity:
                os.close(self._descriptor)
                return False
            _held.add(self._identity)
        if self._ours:
            try:
                self._give_to_owner_of_directory()
            except OSError:
                self.release()
                raise
        return True

    def _refuse_if_ours(self) -> None:
        # Before opening: closing the second descriptor would drop the first one's lock.
        if _identity(self._path) in _held:
            raise PublishError(
                "this process already holds the directory's lock",
                path=self._path,
                hint="run one build into a directory at a time",
            )

    def _mark(self) -> None:
        # On a full disk the lock holds all the same; at worst an empty file outlives a kill.
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, _MARK, 0)

    def _left_by_us(self) -> bool:
        """Return whether an existing lock file is one of ours, whose run was killed."""
        if os.path.basename(self._path) == OUTPUT_LOCK:
            return True
        return os.pread(self._descriptor, len(_MARK), 0) == _MARK

    def _give_to_owner_of_directory(self) -> None:
        """Let the broker's user open the file if this run is killed and leaves it."""
        if os.geteuid() == 0:
            owner = os.stat(os.path.dirname(self._path))
            os.fchown(self._descriptor, owner.st_uid, owner.st_gid)

    def release(self) -> None:
        with _held_guard:
            try:
                if self._ours and _identity(self._path) == self._identity:
                    os.unlink(self._path)
            except OSError as error:
                # All work is done, and closing the file releases the lock: the next run recognizes
                # the file as one of ours.
                _LOGGER.warning("cannot remove the lock file %s: %s", self._path, error.strerror)
            finally:
                _held.discard(self._identity)
                os.close(self._descriptor)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _held_elsewhere(path: str) -> PublishError:
    name = os.path.basename(path)
    if name == BROKER_LOCK:
        return PublishError(
            f"a broker (or another run) holds this directory's {name}",
            path=path,
            hint="stop it first, or use --output",
        )
    return PublishError(
        f"another run holds this directory's {name}",
        path=path,
        hint="wait for it, or choose another --output",
    )
