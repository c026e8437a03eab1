"""Locks on data directories and outputs: lock files, and lock objects in stores.

A broker locks each of its data directories: it opens ``.lock`` for writing, calls
``FileChannel.tryLock`` (FileLock.java), and keeps the lock until it stops. On POSIX systems this is
an fcntl record lock on the complete file, as ``fcntl.lockf`` takes it here.

An object store and HDFS have no such locks. There a run puts a lock object unless one exists, and
puts it again every few seconds. A run that finds the lock object of another run watches it. If it
does not change for a while, its run was killed, and the new run replaces it. It is replaced at once
if its process ended on this machine, in the same boot and PID namespace. If several runs replace
it at once, one succeeds: the one that replaces the version that it has watched. A run that was
suspended for longer and then continues is not detected; two runs over the same input write the same
bytes.
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
_LOGGER = logging.getLogger(__name__)
_REFRESH_SECONDS = 10.0
# Several refreshes, of which one may fail or be slow.
_ABANDONED_SECONDS = 45.0
_POLL_SECONDS = 1.0
# A run that loses this often finds the lock object of the winner before.
_MAX_REPLACEMENTS = 5
# The runs of this process that have put a lock object.
_locking_runs: set[str] = set()

OUTPUT_LOCK = ".kafka-index.lock"
#: The name of a probe file: executors that see it share the output folder with the driver.
PROBE_FILE = ".kafka-index.{run_id}.shared"
_PROBE_FILES = re.compile(r"\.kafka-index\.[0-9a-f]{16}\.shared")
_MAX_ATTEMPTS = 10
# The content of lock files of this package; a broker's lock file is empty.
_CONTENT = b"kafka-index\n"
# Errors of link(2) on file systems that lack hard links, such as FAT and many FUSE mounts.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
# A process loses its lock on a file when it closes ANY descriptor of that file, and never conflicts
# with itself. So a process opens each lock file at most once. These are their devices and inodes.
_locked: set[tuple[int, int]] = set()
_guard = threading.Lock()


class StoreLock:
    """The lock on an output in an object store or HDFS.

    A context manager around the run, in the driver.
    """

    def __init__(self, root: str, run_id: str) -> None:
        self.path = f"{root}/{RUNS_FOLDER}/{_LOCK_OBJECT}"
        self._run_id = run_id
        self._count = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="lock", daemon=True)

    def __enter__(self) -> Self:
        """Put the lock object.

        Raises `PublishError` if another run is writing to the output, or the put fails.
        """
        store = store_of(self.path)
        attempts = 0
        while not store.put(self.path, self._content(), if_absent=True):
            abandoned = self._wait_until_abandoned(store)
            if abandoned is None:
                continue
            if store.replace(self.path, self._content(), abandoned):
                break
            attempts += 1
            if attempts == _MAX_REPLACEMENTS:
                raise self._replaced_by_other(store)
            time.sleep(_POLL_SECONDS)
        _locking_runs.add(self._run_id)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the lock object."""
        self._done.set()
        self._thread.join()
        _locking_runs.discard(self._run_id)
        try:
            if self._is_own():
                store_of(self.path).delete([self.path])
        except KafkaIndexError as failure:
            # The work is done, and the next run replaces the abandoned lock object.
            _LOGGER.warning("cannot remove the lock of this run: %s", failure)

    def _content(self) -> bytes:
        self._count += 1
        fields = {
            "run": self._run_id,
            "host": socket.gethostname(),
            "process": os.getpid(),
            **(_process_table() or {}),
            "started": _start_ticks(os.getpid()),
            "count": self._count,
        }
        return json.dumps(fields).encode()

    def _wait_until_abandoned(self, store: Store) -> FileInfo | None:
        """Wait until the lock object belongs to no run; return None if it was deleted.

        Raises `PublishError` if it belongs to a run.
        """
        try:
            info = store.info(self.path)
        except FileNotFoundError:
            return None
        first = _read(store, self.path)
        deadline = time.monotonic() + _ABANDONED_SECONDS
        while time.monotonic() < deadline and not _is_of_ended_process(first):
            time.sleep(_POLL_SECONDS)
            content = _read(store, self.path)
            if content is None:
                return None
            if content != first:
                raise self._locked_error("another run is writing to this output")
        return None if first is None else info

    def _locked_error(self, message: str) -> PublishError:
        return PublishError(message, path=self.path, hint="wait for it, or choose another --output")

    def _replaced_by_other(self, store: Store) -> PublishError:
        message = "another run is taking over this output"
        claim = find_claim(store, self.path)
        if claim is None:
            return self._locked_error(message)
        return PublishError(
            message,
            path=claim,
            hint="run again in a minute; if the file still exists then, a killed run left it: "
            "delete it",
        )

    def _refresh(self) -> None:
        store = store_of(self.path)
        while not self._done.wait(_REFRESH_SECONDS):
            try:
                if not self._is_own():
                    _LOGGER.warning("another run took over the output: %s", self.path)
                    return
                store.put(self.path, self._content())
            except KafkaIndexError as error:
                _LOGGER.info("cannot refresh the lock of this run: %s", error)

    def _is_own(self) -> bool:
        content = _read(store_of(self.path), self.path)
        return content is not None and _fields(content).get("run") == self._run_id


def _read(store: Store, path: str) -> bytes | None:
    try:
        return store.read(path)
    except FileNotFoundError:
        return None


def _fields(content: bytes) -> dict[str, object]:
    try:
        fields = json.loads(content)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _is_of_ended_process(content: bytes | None) -> bool:
    """Return whether the process of a lock object has ended; False if this is unknown.

    Pods with the same host name do not see each other's processes, and process numbers are reused.
    """
    if content is None:
        return True
    fields = _fields(content)
    process, table = fields.get("process"), _process_table()
    if not isinstance(process, int) or fields.get("host") != socket.gethostname() or table is None:
        return False
    if any(fields.get(name) != value for name, value in table.items()):
        return False
    started = fields.get("started")
    if process == os.getpid() and started == _start_ticks(process):
        return fields.get("run") not in _locking_runs
    return not _may_run(process, started)


def _may_run(process: int, started: object) -> bool:
    """Return whether the process with this number and start time runs, or may run."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return started is None or _start_ticks(process) in {None, started}


def _process_table() -> dict[str, str] | None:
    """Return the IDs of the boot and the PID namespace, in which a process number is unique.

    None if the system does not report them.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return {"boot": file.read().strip(), "pid_namespace": os.readlink("/proc/self/ns/pid")}
    except OSError:
        return None


def _start_ticks(process: int) -> int | None:
    """Return the start of a process in ticks since boot; None if unknown."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # Field 22 of proc(5), after the name, which may contain blanks and parentheses.
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


class DirectoryLock:
    """The lock files of directories: all are locked or none, without waiting.

    A directory given twice, also through a link, is locked once. A context manager around the run,
    in the driver. On entry, probe files of killed runs are removed. On exit, lock files of this
    package, also of killed runs, are removed before they are unlocked. The lock file of a broker
    stays.
    """

    def __init__(self, directories: Iterable[str], *, file_name: str) -> None:
        real = dict.fromkeys(os.path.realpath(directory) for directory in directories)
        self.paths = tuple(os.path.join(directory, file_name) for directory in real)
        self._locks: list[_LockFile] = []

    @classmethod
    def of_data_directories(cls, directories: Iterable[str]) -> DirectoryLock:
        """Return the lock that excludes brokers and other runs from data directories."""
        return cls(directories, file_name=BROKER_LOCK)

    @classmethod
    def of_output(cls, output_root: str) -> DirectoryLock:
        """Return the lock that excludes other runs from an output."""
        return cls([output_root], file_name=OUTPUT_LOCK)

    def __enter__(self) -> Self:
        """Acquire all locks.

        Raises `PublishError` if a broker or another run has one, or one cannot be acquired. Then
        none is locked, and no file is left.
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
        """Release all locks, the last acquired first."""
        while self._locks:
            self._locks.pop().release()


class _LockFile:
    """A locked lock file."""

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
        raise PublishError("the lock file keeps being replaced", path=path, hint="run again")

    def _acquire(self) -> bool:
        """Acquire the lock; return False if another process removed the file."""
        with _guard:
            # Before the file is opened: closing a second descriptor would release the first lock.
            if _file_id(self._path) in _locked:
                raise PublishError(
                    "this process already holds the directory's lock",
                    path=self._path,
                    hint="run one build into a directory at a time",
                )
            is_new = not os.path.exists(self._path) and self._create()
            try:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                opened = os.fstat(self._descriptor)
                self._file_id = opened.st_dev, opened.st_ino
                # If its last holder removed the file after it was opened, no other process sees
                # this lock.
                is_current = _file_id(self._path) == self._file_id
                self._is_own = self._is_of_this_package()
            except OSError as error:
                os.close(self._descriptor)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise _held_elsewhere(self._path) from error
                if is_new:
                    with contextlib.suppress(OSError):
                        os.unlink(self._path)
                raise
            if not is_current:
                os.close(self._descriptor)
                return False
            _locked.add(self._file_id)
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
        """Create the file with its content and owner; return False if it exists by now.

        The file is complete when it gets its name. The broker's user must be able to open it if
        this run is killed: an empty file would pass for a broker's, and a file of root would keep
        the broker from starting.
        """
        try:
            with AtomicFile(self._path, scratch_path=self._scratch_path, what="lock file") as file:
                file.write(_CONTENT)
                _give_to_directory_owner(self._scratch_path)
                return file.commit_if_absent()
        except PublishError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError):
                raise
            if isinstance(cause, BlockingIOError):
                # Another run is creating the same file.
                raise _held_elsewhere(self._path) from error
            if cause.errno not in _NO_LINKS:
                raise cause from None
        # A file system without hard links: here a killed run can leave an empty file.
        with contextlib.suppress(FileExistsError), open(self._path, "xb") as file:
            file.write(_CONTENT)
            _give_to_directory_owner(self._path)
            return True
        return False

    def _is_of_this_package(self) -> bool:
        """Return whether the file is not a broker's, and may be removed."""
        if os.path.basename(self._path) != BROKER_LOCK:
            return True
        return os.pread(self._descriptor, len(_CONTENT), 0) == _CONTENT

    def release(self) -> None:
        with _guard:
            try:
                if self._is_own and _file_id(self._path) == self._file_id:
                    os.unlink(self._path)
            except OSError as error:
                # The work is done, and closing the file releases the lock. The next run recognizes
                # the file by its content.
                _LOGGER.warning("cannot remove the lock file %s: %s", self._path, error.strerror)
            finally:
                _locked.discard(self._file_id)
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
