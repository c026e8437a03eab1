"""Locks on data directories and outputs: lock files, and lock objects in stores.

A broker locks each of its data directories: it opens ``.lock`` for writing, calls
``FileChannel.tryLock`` (FileLock.java), and keeps the lock until it stops. On POSIX systems,
this is an fcntl record lock on the complete file, like the lock of ``fcntl.lockf``.

Object stores and HDFS have no file locks. In a store, a run puts a lock object if none exists, and
puts it again every few seconds. A run that finds the lock object of another run polls the object.
If the object does not change for `_ABANDONED_SECONDS`, the other run was killed, and the new run
replaces the object. The object is replaced immediately if the process that put it has ended: this
is known only for the same machine, boot and PID namespace. If several runs replace the object
concurrently, one run succeeds: a conditional put replaces only the version that the run has polled.
If a run is suspended for longer than `_ABANDONED_SECONDS`, another run may replace its lock object.
The suspended run then continues with a warning: two runs over the same input write the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterable
from typing import Self

from kafka_index.core.errors import KafkaIndexError, PublishError
from kafka_index.core.format.names import BROKER_LOCK
from kafka_index.core.fs.durable_files import AtomicFile, publish_error
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import FileInfo, Store, find_claim

#: The folder for the lock object and the staging directories of runs, below an output in a store.
RUNS_FOLDER = ".kafka-index"
_LOCK_OBJECT = "lock"
_WAIT_HINT = "wait until the run ends, or choose another --output"
_LOGGER = logging.getLogger(__name__)
_REFRESH_SECONDS = 10.0
# Longer than several refresh intervals, because a refresh may fail or be slow.
_ABANDONED_SECONDS = 45.0
_POLL_SECONDS = 1.0
# Give up if other runs replace an abandoned lock object first this often. Usually, this run finds
# the lock object of the other run earlier.
_MAX_REPLACEMENTS = 5
# The runs of this process that have put a lock object.
_locking_runs: set[str] = set()

OUTPUT_LOCK = ".kafka-index.lock"
#: The name of a probe file. An executor that sees this file shares the output folder with the
#: driver.
PROBE_FILE = ".kafka-index.{run_id}.shared"
_PROBE_FILES = re.compile(r"\.kafka-index\.[0-9a-f]{16}\.shared")
_MAX_ATTEMPTS = 10
# The content of lock files of this package; a broker's lock file is empty.
_CONTENT = b"kafka-index\n"
# Errors of link(2) on file systems that lack hard links, such as FAT and many FUSE mounts.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
# A process loses its lock on a file when it closes ANY descriptor of that file, and never conflicts
# with itself. So a process opens each lock file at most once. This set has the device and inode of
# each locked file.
_locked_file_ids: set[tuple[int, int]] = set()
_locked_file_ids_guard = threading.Lock()


class StoreLock:
    """The lock on an output in an object store or HDFS.

    A context manager around the run, in the driver.
    """

    def __init__(self, root: str, run_id: str) -> None:
        self.path = f"{root}/{RUNS_FOLDER}/{_LOCK_OBJECT}"
        self._run_id = run_id
        self._count = 0
        self._stop_refresh = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="lock", daemon=True)

    def __enter__(self) -> Self:
        """Put the lock object.

        Raises `PublishError` if another run is writing to the output, or the put fails.
        """
        store = store_of(self.path)
        attempts = 0
        while not store.put(self.path, self._lock_object_content(), if_absent=True):
            abandoned_object = self._wait_until_abandoned(store)
            if abandoned_object is None:
                continue
            if store.replace(self.path, self._lock_object_content(), abandoned_object):
                break
            attempts += 1
            if attempts == _MAX_REPLACEMENTS:
                raise self._replacement_error(store)
            time.sleep(_POLL_SECONDS)
        _locking_runs.add(self._run_id)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the lock object."""
        self._stop_refresh.set()
        self._thread.join()
        _locking_runs.discard(self._run_id)
        try:
            if self._is_own():
                store_of(self.path).delete([self.path])
        except KafkaIndexError as failure:
            # Only warn: the output is complete, and the next run replaces the abandoned lock
            # object.
            _LOGGER.warning("cannot remove the lock of this run: %s", failure)

    def _lock_object_content(self) -> bytes:
        self._count += 1
        fields = {
            "run": self._run_id,
            "host": socket.gethostname(),
            "process": os.getpid(),
            **(_process_namespace() or {}),
            "started": _start_ticks(os.getpid()),
            "count": self._count,
        }
        return json.dumps(fields).encode()

    def _wait_until_abandoned(self, store: Store) -> FileInfo | None:
        """Wait until the lock object is abandoned; return None if the object was deleted.

        Raises `PublishError` if another run still refreshes the object.
        """
        try:
            info = store.info(self.path)
        except FileNotFoundError:
            return None
        initial_content = _read_lock_object(store, self.path)
        deadline = time.monotonic() + _ABANDONED_SECONDS
        while time.monotonic() < deadline and not _has_process_ended(initial_content):
            time.sleep(_POLL_SECONDS)
            content = _read_lock_object(store, self.path)
            if content is None:
                return None
            if content != initial_content:
                raise self._locked_error("another run is writing to this output")
        return None if initial_content is None else info

    def _locked_error(self, message: str) -> PublishError:
        return PublishError(message, path=self.path, hint=_WAIT_HINT)

    def _replacement_error(self, store: Store) -> PublishError:
        message = "another run is taking over this output"
        claim = find_claim(store, self.path)
        if claim is None:
            return self._locked_error(message)
        return PublishError(
            message,
            path=claim,
            hint="run again in a minute; if this file still exists, delete the file: a killed run "
            "left it",
        )

    def _refresh(self) -> None:
        store = store_of(self.path)
        while not self._stop_refresh.wait(_REFRESH_SECONDS):
            try:
                if not self._is_own():
                    _LOGGER.warning("another run took over the output: %s", self.path)
                    return
                store.put(self.path, self._lock_object_content())
            except KafkaIndexError as error:
                _LOGGER.info("cannot refresh the lock of this run: %s", error)

    def _is_own(self) -> bool:
        content = _read_lock_object(store_of(self.path), self.path)
        return content is not None and _parse_lock_object(content).get("run") == self._run_id


def _read_lock_object(store: Store, path: str) -> bytes | None:
    try:
        return store.read(path)
    except FileNotFoundError:
        return None


def _parse_lock_object(content: bytes) -> dict[str, object]:
    try:
        fields = json.loads(content)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _has_process_ended(content: bytes | None) -> bool:
    """Return whether the process that put a lock object has ended; False if unknown.

    Host name and process ID are not sufficient: pods with the same host name do not see each
    other's processes, and process IDs are reused.
    """
    if content is None:
        return True
    fields = _parse_lock_object(content)
    process_id, namespace = fields.get("process"), _process_namespace()
    if (
        not isinstance(process_id, int)
        or fields.get("host") != socket.gethostname()
        or namespace is None
    ):
        return False
    if any(fields.get(name) != value for name, value in namespace.items()):
        return False
    started = fields.get("started")
    if process_id == os.getpid() and started == _start_ticks(process_id):
        return fields.get("run") not in _locking_runs
    return not _may_be_running(process_id, started)


def _may_be_running(process_id: int, started: object) -> bool:
    """Return False only if no process with this ID and start time is running."""
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return started is None or _start_ticks(process_id) in {None, started}


def _process_namespace() -> dict[str, str] | None:
    """Return the boot ID and PID namespace, in which a process ID is unique; None if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return {"boot": file.read().strip(), "pid_namespace": os.readlink("/proc/self/ns/pid")}
    except OSError:
        return None


def _start_ticks(process_id: int) -> int | None:
    """Return the start of a process in ticks since boot; None if unknown."""
    try:
        with open(f"/proc/{process_id}/stat", "rb") as file:
            # Field 22 of proc(5), after the name, which may contain blanks and parentheses.
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


class DirectoryLock:
    """Locks the lock files of several directories: all or none, without waiting.

    If two paths resolve to the same directory, the directory is locked once. A context manager
    around the run, in the driver. On entry, probe files of killed runs are removed. On exit, lock
    files of this package are removed, including lock files of killed runs, and then unlocked. The
    lock file of a broker is not removed.
    """

    def __init__(self, directories: Iterable[str], *, file_name: str) -> None:
        real_paths = dict.fromkeys(os.path.realpath(directory) for directory in directories)
        self.paths = tuple(os.path.join(directory, file_name) for directory in real_paths)
        self._locks: list[_LockFile] = []

    @classmethod
    def for_data_directories(cls, directories: Iterable[str]) -> DirectoryLock:
        """Return the lock that excludes brokers and other runs from data directories."""
        return cls(directories, file_name=BROKER_LOCK)

    @classmethod
    def for_output(cls, output_root: str) -> DirectoryLock:
        """Return the lock that excludes other runs from an output."""
        return cls([output_root], file_name=OUTPUT_LOCK)

    def __enter__(self) -> Self:
        """Acquire all locks.

        Raises `PublishError` if a lock cannot be acquired, or if a broker or another run has the
        lock. In this case, the other locks are released, and no lock file remains.
        """
        try:
            for path in self.paths:
                self._locks.append(_LockFile(path))
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release all locks in reverse order of acquisition."""
        while self._locks:
            self._locks.pop().release()


class _LockFile:
    """A lock file that this process has locked."""

    def __init__(self, path: str) -> None:
        self._path = path
        directory, name = os.path.split(path)
        # All commands that check the content of an output ignore this name.
        self._scratch_path = os.path.join(directory, f".kafka-index.{name.strip('.')}.tmp")
        for _ in range(_MAX_ATTEMPTS):
            try:
                if self._acquire():
                    return
            except OSError as error:
                raise publish_error(error, path, "lock the directory") from error
        raise PublishError(
            "other processes keep replacing the lock file", path=path, hint="run again"
        )

    def _acquire(self) -> bool:
        """Acquire the lock; return False if another process removed the file."""
        with _locked_file_ids_guard:
            # Check before opening the file: closing a second descriptor would release the lock.
            if _file_id(self._path) in _locked_file_ids:
                raise PublishError(
                    "this process has already locked the directory",
                    path=self._path,
                    hint="end the first run into this directory before the next one starts",
                )
            is_new = not os.path.exists(self._path) and self._create()
            try:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(self._descriptor)
                self._file_id = status.st_dev, status.st_ino
                # If the previous process removed the file after this process opened it, no other
                # process sees the lock.
                is_current = _file_id(self._path) == self._file_id
                self._is_own = self._has_removable_content()
            except OSError as error:
                os.close(self._descriptor)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise _lock_conflict_error(self._path) from error
                if is_new:
                    with contextlib.suppress(OSError):
                        os.unlink(self._path)
                raise
            if not is_current:
                os.close(self._descriptor)
                return False
            _locked_file_ids.add(self._file_id)
        self._remove_leftovers(is_new=is_new)
        return True

    def _remove_leftovers(self, *, is_new: bool) -> None:
        """Remove the files that a killed run has left next to the lock file."""
        with contextlib.suppress(OSError):
            if self._is_own and not is_new:
                os.unlink(self._scratch_path)
        directory, name = os.path.split(self._path)
        if name in (BROKER_LOCK, OUTPUT_LOCK):
            with contextlib.suppress(OSError):
                for entry in filter(_PROBE_FILES.fullmatch, os.listdir(directory)):
                    os.unlink(os.path.join(directory, entry))

    def _create(self) -> bool:
        """Create the file with content and owner; return False if another process created it first.

        The file is written atomically, because this run may be killed at any time. The next run
        would mistake an empty file for the lock file of a broker. A file that only root can open
        would keep the broker from starting.
        """
        try:
            with AtomicFile(self._path, scratch_path=self._scratch_path, noun="lock file") as file:
                file.write(_CONTENT)
                _give_to_directory_owner(self._scratch_path)
                return file.commit_if_absent()
        except PublishError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError):
                raise
            if isinstance(cause, BlockingIOError):
                # Another run is creating the same file.
                raise _lock_conflict_error(self._path) from error
            if cause.errno not in _NO_LINKS:
                raise cause from None
        # A file system without hard links: here a killed run can leave an empty file.
        with contextlib.suppress(FileExistsError), open(self._path, "xb") as file:
            file.write(_CONTENT)
            _give_to_directory_owner(self._path)
            return True
        return False

    def _has_removable_content(self) -> bool:
        """Return whether the file may be removed because no broker created it."""
        if os.path.basename(self._path) != BROKER_LOCK:
            return True
        return os.pread(self._descriptor, len(_CONTENT), 0) == _CONTENT

    def release(self) -> None:
        with _locked_file_ids_guard:
            try:
                if self._is_own and _file_id(self._path) == self._file_id:
                    os.unlink(self._path)
            except OSError as error:
                # Only warn: closing the file releases the lock, and the next run recognizes the
                # file by its content.
                _LOGGER.warning("cannot remove the lock file %s: %s", self._path, error.strerror)
            finally:
                _locked_file_ids.discard(self._file_id)
                os.close(self._descriptor)


def _give_to_directory_owner(path: str) -> None:
    if os.geteuid() == 0:
        owner = os.stat(os.path.dirname(path))
        os.chown(path, owner.st_uid, owner.st_gid)


def _file_id(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a file; None if it does not exist."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _lock_conflict_error(path: str) -> PublishError:
    if os.path.basename(path) == BROKER_LOCK:
        return PublishError(
            "a broker or another run has locked this directory",
            path=path,
            hint="stop the broker or the run first, or use --output",
        )
    return PublishError("another run has locked this directory", path=path, hint=_WAIT_HINT)
