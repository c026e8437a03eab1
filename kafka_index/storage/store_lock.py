"""A marker in place of a lock where files cannot be locked, kept fresh by its run.

The marker is put only where there is none. Its run writes it again every few seconds. A run that
finds another's marker watches it: one that does not change for a while belongs to a killed run, and
is taken over; so is at once one of a process that is gone from this machine, since the same boot
and in the same PID namespace. Of several runs that take it over at the same moment, one gets in: it
replaces the version that it has watched.

Nothing keeps out a run that was stopped for longer than that and continues; two runs over the same
input write the same bytes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from types import TracebackType
from typing import Self

from kafka_index.errors import KafkaIndexError, PublishError
from kafka_index.stores import FileInfo, Store, store_of
from kafka_index.stores.store import find_claim

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
_held: set[str] = set()


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
        _held.add(self._run_id)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the marker."""
        self._done.set()
        self._thread.join()
        _held.discard(self._run_id)
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
        """Return the marker once it belongs to no run; None when there is none any more.

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
        return fields.get("run") not in _held
    return not _is_running(process, started)


def _is_running(process: int, started: object) -> bool:
    """Return whether a process runs, or may: one that was started when a marker says it was."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return started is None or _started(process) in {None, started}


def _process_table() -> dict[str, str] | None:
    """Return what tells the processes here from those of other boots and other PID namespaces.

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
