"""The barrier of a backup: all brokers capture the coordinators' topics before other topics.

::

    {root}/barriers/{number}/open.json                 the backup ID, put by the first broker
    {root}/barriers/{number}/{stage}/{node id}.json    the broker has reached the stage
    {root}/barriers/{number}/{stage}/closed.json       the brokers in the backup, put once

Brokers wait for each other at the stage ``joined`` before they capture any log, and at ``cut`` when
they have captured ``__transaction_state`` and ``__consumer_offsets``. The first broker that sees
all brokers at a stage, or reaches its timeout, closes the stage: it puts a list of the brokers that
have arrived. A broker that arrives later is not in the list, and opens another backup. Therefore,
every broker captures its other logs after all brokers have captured these two topics, even if
clocks differ. The last stage, ``taken``, is not closed: each broker lists the partitions that it
stored as their leader.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import msgspec

from kafka_index.core.errors import CorruptObjectError, KafkaIndexError, PublishError, ReadError
from kafka_index.core.format.state_files import MALFORMED, Int32, decoder_of
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup.manifest import (
    BARRIERS_FOLDER,
    BackupId,
    backup_id_at,
    backup_id_ms,
    is_backup_id,
)
from kafka_index.core.fs.paths import open_repository
from kafka_index.core.fs.registry import store_of

#: The stages, in order.
JOINED, CAPTURED, STORED = "joined", "cut", "taken"
#: How long brokers wait for each other, in seconds.
DEFAULT_TIMEOUT_S = 60.0

_OPEN, _CLOSED, _SUFFIX = "open.json", "closed.json", ".json"
_BARRIER_DIGITS = 10
# The pause between two listings of a stage grows while a broker is missing.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, _PAUSE_GROWTH = 0.05, 2.0, 1.3
# Pause between the cutoff time and the capture of the other topics, because clocks may differ.
_SCHEDULE_GAP_S = 2.0
# Timeout of waiting for an object that another process is putting.
_WRITER_TIMEOUT_S = 10.0


_Object = TypeVar("_Object", bound=msgspec.Struct)


class BarrierMissedError(KafkaIndexError):
    """A broker arrived too late at a barrier. The broker can open another backup."""


class _BarrierOpened(msgspec.Struct, frozen=True, rename={"backup_id": "run"}):
    """The object that opens a barrier."""

    backup_id: BackupId
    node_id: Int32
    token: str


class _BrokerArrival(msgspec.Struct, frozen=True, rename={"stored_folders": "taken"}):
    """The arrival of a broker at a stage, with the folders of the partitions that it stored."""

    token: str
    stored_folders: tuple[str, ...] = ()


class _StageClosed(msgspec.Struct, frozen=True):
    """The object that closes a stage.

    The token distinguishes this object from an object of another broker with equal members.
    """

    members: tuple[Int32, ...]
    token: str


@dataclass(frozen=True)
class SingleBroker:
    """A backup with a single expected broker, which waits for no other broker."""

    backup_id: str
    node_id: int

    def await_capture(self) -> None: ...

    def await_others(self) -> tuple[int, ...]:
        return (self.node_id,)

    def await_leaders(
        self,
        stored_folders: Collection[str],  # noqa: ARG002, as of a barrier
        leaders: Mapping[str, int | None],
    ) -> set[str]:
        return set(leaders)


class Barrier:
    """The barrier of a backup, as seen by one broker; `brokers` are the expected brokers."""

    def __init__(
        self,
        root: str,
        name: str,
        backup_id: str,
        node_id: int,
        brokers: Iterable[int],
        timeout_s: float,
    ) -> None:
        self.backup_id = backup_id
        self._root = root
        self._folder = f"{root}/{BARRIERS_FOLDER}/{name}"
        self._node_id = node_id
        #: The brokers in the backup; initially all expected brokers.
        self.members = {*brokers, node_id}
        self._timeout_s = timeout_s
        self._token = uuid.uuid4().hex
        self._started_s = time.monotonic()

    def join(self) -> bool:
        """Put the arrival of this broker; return False if another process has already put it."""
        return self._put_object(f"{JOINED}/{self._node_id}{_SUFFIX}", _BrokerArrival(self._token))

    def await_capture(self) -> None:
        """Wait until all expected brokers have arrived, or until the timeout.

        Raises `BarrierMissedError` if this broker is not in the backup.
        """
        self._close_stage(JOINED)

    def await_others(self) -> tuple[int, ...]:
        """Wait until all members have captured the coordinators' topics; return the members.

        Raises `BarrierMissedError` if this broker is not in the backup any more.
        """
        self._put_object(f"{CAPTURED}/{self._node_id}{_SUFFIX}", _BrokerArrival(self._token))
        self._close_stage(CAPTURED)
        return tuple(sorted(self.members))

    def is_closed(self) -> bool:
        """Return whether no broker can join any more."""
        return None in self._list_arrivals(JOINED)

    def await_leaders(
        self, stored_folders: Collection[str], leaders: Mapping[str, int | None]
    ) -> set[str]:
        """Announce the partitions stored here; return the partitions that no broker stored.

        Partitions are given by folder. `leaders` has the leader of each partition that this broker
        has not stored. Waits for the leaders that are in the backup, up to the timeout or the time
        that this broker has needed so far, whichever is longer. If brokers disagree about a leader,
        several of them may store the partition.
        """
        self._put_object(
            f"{STORED}/{self._node_id}{_SUFFIX}",
            _BrokerArrival(self._token, tuple(sorted(stored_folders))),
        )
        awaited_leaders = {
            leader for leader in leaders.values() if leader is not None
        } & self.members
        timeout_s = max(self._timeout_s, time.monotonic() - self._started_s)
        self._wait_until(lambda: awaited_leaders <= self._list_arrivals(STORED), timeout_s)
        stored_by_others = {
            folder
            for node_id in self._list_arrivals(STORED) - {None, self._node_id}
            for folder in self._read_object(
                f"{STORED}/{node_id}{_SUFFIX}", _BrokerArrival
            ).stored_folders
        }
        return set(leaders) - stored_by_others

    def _close_stage(self, stage: str) -> None:
        """Wait until the members reach a stage; then set `members` to the brokers that did.

        Raises `BarrierMissedError` if this broker is not in the list that closed the stage.
        """
        closure_name = f"{stage}/{_CLOSED}"
        arrivals: set[int | None] = set()

        def is_complete() -> bool:
            nonlocal arrivals
            arrivals = self._list_arrivals(stage)
            return None in arrivals or self.members <= arrivals

        self._wait_until(is_complete, self._timeout_s)
        closure = _StageClosed(
            tuple(sorted(node_id for node_id in arrivals if node_id is not None)), self._token
        )
        closure = self._read_object(
            closure_name, _StageClosed, None if None in arrivals else closure
        )
        self.members = set(closure.members)
        if self._node_id not in self.members:
            raise BarrierMissedError(
                f"broker {self._node_id} arrived too late for backup {self.backup_id}",
                path=f"{self._folder}/{closure_name}",
            )

    def _list_arrivals(self, stage: str) -> set[int | None]:
        """Return the brokers at a stage, and None if the stage is closed."""
        entries = store_of(self._root).list_directory(f"{self._folder}/{stage}")
        names = {os.path.basename(entry.path) for entry in entries}
        brokers: set[int | None] = {
            int(name.removesuffix(_SUFFIX))
            for name in names
            if name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX).isdecimal()
        }
        return brokers | {None} if _CLOSED in names else brokers

    def _wait_until(self, is_complete: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        pause_s = _SHORTEST_PAUSE_S
        while not is_complete() and (remaining_s := deadline - time.monotonic()) > 0:
            time.sleep(min(pause_s, remaining_s))
            pause_s = min(pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)

    def _put_object(self, name: str, value: msgspec.Struct) -> bool:
        return _put_object(f"{self._folder}/{name}", value)

    def _read_object(
        self, name: str, object_type: type[_Object], fallback: _Object | None = None
    ) -> _Object:
        return _read_object(f"{self._folder}/{name}", object_type, fallback)


class ScheduledCutoff(Barrier):
    """A backup with a scheduled cutoff time, at which each broker captures its logs."""

    def __init__(
        self, root: str, time_ms: int, node_id: int, brokers: Iterable[int], timeout_s: float
    ) -> None:
        self._time_ms = time_ms
        backup_id = backup_id_at(time_ms)
        super().__init__(root, backup_id, backup_id, node_id, brokers, timeout_s)

    def await_capture(self) -> None:
        """Wait for the cutoff time; raises `BarrierMissedError` if the time has passed."""
        wait_s = self._time_ms / 1000 - time.time()
        if wait_s < 0:
            raise BarrierMissedError(f"the cutoff time of backup {self.backup_id} has passed")
        time.sleep(wait_s)

    def await_others(self) -> tuple[int, ...]:
        """Wait until two seconds after the cutoff; the manifests show whether that was enough."""
        time.sleep(max(self._time_ms / 1000 + _SCHEDULE_GAP_S - time.time(), 0))
        return ()


#: A backup that this broker has opened or joined.
BackupBarrier: TypeAlias = SingleBroker | Barrier


def join_backup(
    root: str,
    node_id: int,
    brokers: Collection[int],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    newest_backup_id: str | None = None,
    clock_ms: Callable[[], int] = now_ms,
) -> BackupBarrier:
    """Open a backup, or join the backup that another broker has opened.

    Parameters
    ----------
    root : str
        The repository.
    node_id : int
        This broker.
    brokers : collection of int
        The expected brokers; a single broker does not wait.
    timeout_s : float
        Timeout at each stage. Barriers older than the timeout cannot be joined. The clocks of the
        brokers must differ by less than the timeout.
    newest_backup_id : str, optional
        The newest backup in the repository; the new backup gets a later ID.
    clock_ms : callable
        The time, in milliseconds since the epoch.
    """
    earliest_ms = 0 if newest_backup_id is None else backup_id_ms(newest_backup_id) + 1
    if {*brokers} <= {node_id}:
        return SingleBroker(backup_id_at(max(clock_ms(), earliest_ms)), node_id)

    def join(number: int, backup_id: str) -> Barrier | None:
        candidate = Barrier(root, _barrier_name(number), backup_id, node_id, brokers, timeout_s)
        return candidate if not candidate.is_closed() and candidate.join() else None

    while True:
        number, barrier_backup_id = _find_newest_barrier(root)
        barrier = None
        if barrier_backup_id is not None:
            earliest_ms = max(earliest_ms, backup_id_ms(barrier_backup_id) + 1)
            if clock_ms() - backup_id_ms(barrier_backup_id) < timeout_s * 1000:
                barrier = join(number, barrier_backup_id)
        if barrier is None:
            backup_id = backup_id_at(max(clock_ms(), earliest_ms))
            opened_barrier = _BarrierOpened(backup_id, node_id, uuid.uuid4().hex)
            # If another broker was faster, the next iteration finds its barrier.
            if _put_object(
                f"{root}/{BARRIERS_FOLDER}/{_barrier_name(number + 1)}/{_OPEN}", opened_barrier
            ):
                barrier = join(number + 1, backup_id)
        if barrier is not None:
            return barrier


def expired_barriers(root: str, before_ms: int) -> list[str]:
    """Return the objects of all barriers older than a time, except the newest barrier.

    The time is in milliseconds since the epoch. The newest barrier stays, so that barrier numbers
    are not reused.
    """
    barriers_folder = f"{root}/{BARRIERS_FOLDER}"
    paths_by_barrier: dict[str, list[str]] = {}
    store = open_repository(root).store
    for page in store.list_tree(barriers_folder):
        for path in page["path"].to_pylist():
            paths_by_barrier.setdefault(path.partition("/")[0], []).append(path)
    newest = max((name for name in paths_by_barrier if name.isdecimal()), default=None)
    expired_paths = []
    for barrier, paths in paths_by_barrier.items():
        if barrier == newest:
            continue
        backup_id = barrier if is_backup_id(barrier) else None
        if backup_id is None and f"{barrier}/{_OPEN}" in paths:
            with suppress(FileNotFoundError):  # A concurrent expiration has deleted the object.
                backup_id = _decode_object(
                    f"{barriers_folder}/{barrier}/{_OPEN}", _BarrierOpened
                ).backup_id
        if backup_id is not None and backup_id_ms(backup_id) < before_ms:
            expired_paths += [f"{barriers_folder}/{path}" for path in paths]
    return expired_paths


def _find_newest_barrier(root: str) -> tuple[int, str | None]:
    """Return the number of the newest barrier, or 0, and the ID of its backup.

    A folder without the opening object is not a barrier: the broker that created the folder may
    have been killed.
    """
    entries = open_repository(root).store.list_directory(f"{root}/{BARRIERS_FOLDER}")
    names = [os.path.basename(entry.path) for entry in entries if entry.is_directory]
    number = max((int(name) for name in names if name.isdecimal()), default=0)
    if not number:
        return 0, None
    path = f"{root}/{BARRIERS_FOLDER}/{_barrier_name(number)}/{_OPEN}"
    try:
        return number, _decode_object(path, _BarrierOpened).backup_id
    except FileNotFoundError:
        return number - 1, None


def _barrier_name(number: int) -> str:
    return f"{number:0{_BARRIER_DIGITS}d}"


def _put_object(path: str, value: msgspec.Struct) -> bool:
    """Put an object; return False if another process has put it or is putting it."""
    try:
        return store_of(path).put(path, msgspec.json.encode(value) + b"\n", if_absent=True)
    except PublishError as error:
        if isinstance(error.__cause__, BlockingIOError):
            # On a local disk, another process is writing the object.
            return False
        raise


def _read_object(path: str, object_type: type[_Object], fallback: _Object | None) -> _Object:
    """Return a barrier object that another broker has put or is putting.

    `fallback` is put and returned if no other broker puts the object, or if a process was killed
    while it wrote the object to a local disk. Raises `ReadError` if the object does not appear,
    because expirations delete the objects of a barrier after a day.
    """
    deadline = time.monotonic() + _WRITER_TIMEOUT_S
    while True:
        if fallback is not None and _put_object(path, fallback):
            return fallback
        try:
            return _decode_object(path, object_type)
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise ReadError(
                    "the barrier object no longer exists", path=path, hint="run the backup again"
                ) from None
            time.sleep(_SHORTEST_PAUSE_S)


def _decode_object(path: str, object_type: type[_Object]) -> _Object:
    try:
        return decoder_of(object_type).decode(store_of(path).read(path))
    except MALFORMED as error:
        raise CorruptObjectError(f"the barrier object is malformed: {error}", path=path) from error
