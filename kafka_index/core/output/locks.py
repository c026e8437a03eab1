"""Locks on data directories and output roots, and the marker of a run where files cannot be locked.

A broker locks each of its data directories: it opens ``.lock`` for writing, calls
``FileChannel.tryLock`` (FileLock.java), and holds that until it stops. On POSIX systems that is
an fcntl record lock over the whole file, the same as ``fcntl.lockf`` here.

In an object store or HDFS, a marker is put only where there is none. Its run writes it again every
few seconds. A run that finds another's marker watches it: a marker that does not change for a while
belongs to a killed run, and is taken over; so is at once one of a process that is gone from this
machine, since the same boot and in the same PID namespace. Where several runs take it over at the
same moment, one gets in: it replaces the version that it has watched. Nothing keeps out a run that
was stopped for longer than that and continues; two runs over the same input write the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable
from typing import Self

from kafka_index.core.errors import KafkaIndexError, PublishError
from kafka_index.core.format.names import BROKER_LOCK
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import FileInfo, Store, find_claim

#: The folder below an output in a store for what belongs to runs: the marker, and staged files.
RUNS_FOLDER = ".kafka-index"
_MARKER = "lock"
_LOGGER = logging.getLogger(__name__)
_REFRESH_SECONDS = 10.0
# Several refreshes: one of them may fail, or be slow.
_ABANDONED_SECONDS = 45.0
_POLL_SECONDS = 1.0
# The marker of the run that was faster is found sooner.
_TAKE_OVERS = 5
# The runs of this process that hold a marker.
_held_runs: set[str] = set()

OUTPUT_LOCK = ".kafka-index.lock"
_LOCK_MODE = 0o644
_TRIES = 10
# The content of a lock file made here: the run after a killed one tells it from a broker's.
_MARK = b"kafka-index\n"
# A process drops its lock on a file as soon as it closes ANY descriptor of that file, and never
# conflicts with itself. So each file is open at most once, and this is where that is recorded.
_held: set[tuple[int, int]] = set()
_held_guard = threading.Lock()


class StoreLock:
    """Keep other runs out of an output in an object store or HDFS, as far as that can be done.

    A context manager, in the driver and for the whole run.
    """

    def __init__(self, root: str, run_id: str) -> None:
        self.path = f"{root}/{RUNS_FOLDER}/{_MARKER}"
        self._run_id = run_id
        self._count = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="lock", daemon=True)

    def __enter__(self) -> Self:
        """Put the marker.

        Raises `PublishError` if another run is writing to the output, or it cannot be written.
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
            if attempts == _TAKE_OVERS:
                raise self._taken_over(store)
            time.sleep(_POLL_SECONDS)
        _held_runs.add(self._run_id)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the marker."""
        self._done.set()
        self._thread.join()
        _held_runs.discard(self._run_id)
        try:
            if self._is_ours():
                store_of(self.path).delete([self.path])
        except KafkaIndexError as failure:
            # All work is done, and the next run finds that nobody writes the marker any more.
            _LOGGER.warning("cannot remove the marker of this run: %s", failure)

    def _content(self) -> bytes:
        self._count += 1
        fields = {
            "run": self._run_id,
            "host": socket.gethostname(),
            "process": os.getpid(),
            **(_process_table() or {}),
            "started": _started(os.getpid()),
            "count": self._count,
        }
        return json.dumps(fields).encode()

    def _wait_until_abandoned(self, store: Store) -> FileInfo | None:
        """Wait until the marker belongs to no run, and return it; None if it was removed.

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
            found = _read(store, self.path)
            if found is None:
                return None
            if found != first:
                raise self._kept_out("another run is writing to this output")
        return None if first is None else info

    def _kept_out(self, message: str) -> PublishError:
        return PublishError(message, path=self.path, hint="wait for it, or choose another --output")

    def _taken_over(self, store: Store) -> PublishError:
        message = "another run is taking over this output"
        claim = find_claim(store, self.path)
        if claim is None:
            return self._kept_out(message)
        return PublishError(
            message,
            path=claim,
            hint="run again in a minute; a file that is still there then was left by a killed run: "
            "delete it",
        )

    def _refresh(self) -> None:
        store = store_of(self.path)
        while not self._done.wait(_REFRESH_SECONDS):
            try:
                if not self._is_ours():
                    _LOGGER.warning("another run took over the output: %s", self.path)
                    return
                store.put(self.path, self._content())
            except KafkaIndexError as error:
                _LOGGER.info("cannot refresh the marker of this run: %s", error)

    def _is_ours(self) -> bool:
        found = _read(store_of(self.path), self.path)
        return found is not None and _fields(found).get("run") == self._run_id


def _read(store: Store, path: str) -> bytes | None:
    try:
        return store.read(path)
    except FileNotFoundError:
        return None


def _fields(marker: bytes) -> dict[str, object]:
    try:
        fields = json.loads(marker)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _is_of_ended_process(marker: bytes | None) -> bool:
    """Return whether a marker is of no process any more; False where that cannot be known.

    Pods that share the name of their host do not see each other's processes, and a process number
    is given again.
    """
    if marker is None:
        return True
    fields = _fields(marker)
    process, table = fields.get("process"), _process_table()
    if not isinstance(process, int) or fields.get("host") != socket.gethostname() or table is None:
        return False
    if any(fields.get(name) != value for name, value in table.items()):
        return False
    started = fields.get("started")
    if process == os.getpid() and started == _started(process):
        return fields.get("run") not in _held_runs
    return not _is_running(process, started)


def _is_running(process: int, started: object) -> bool:
    """Return whether the process that a marker names runs, or may: its start time counts, too."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return started is None or _started(process) in {None, started}


def _process_table() -> dict[str, str] | None:
    """Return an ID of this boot and PID namespace, in which a process number is meaningful.

    None where the system does not say.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return {"boot": file.read().strip(), "pid_namespace": os.readlink("/proc/self/ns/pid")}
    except OSError:
        return None


def _started(process: int) -> int | None:
    """Return when a process was started, in ticks since boot; None if that cannot be read."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # After the name, which may hold blanks and parentheses: field 22 of proc(5).
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


class DirectoryLock:
    """Hold the lock files of directories, all or none, without waiting.

    A directory given twice, also through a link, is locked once. Use as a context manager, in the
    driver and for the whole run. A lock file made here, by this run or by a killed one, is
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

    def __exit__(self, *_: object) -> None:
        """Release all locks."""
        self.release()

    def release(self) -> None:
        """Release all locks, the last acquired first."""
        while self._locks:
            self._locks.pop().release()


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
        if os.path.basename(self._path) != BROKER_LOCK:
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
