"""The barrier of a backup: all brokers capture the coordinators' topics before other topics.

::

    {root}/barriers/{number}/open.json                 the backup ID, put by the first broker
    {root}/barriers/{number}/{stage}/{node id}.json    the broker has reached the stage
    {root}/barriers/{number}/{stage}/closed.json       the brokers in the backup, put once

Brokers wait for each other at the stage ``joined`` before they capture any log, and at ``cut`` when
they have captured ``__transaction_state`` and ``__consumer_offsets``. The first broker that sees
all brokers at a stage, or reaches its timeout, closes the stage with a list of the brokers in the
backup. A later broker is not in the list, and opens another backup. So every broker captures its
other logs after all brokers have captured the first two topics, independently of clocks. The last
stage, ``taken``, is not closed: brokers list the partitions that they stored as leaders.
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
_DIGITS = 10
# The pause between two listings of a stage grows while a broker is missing.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, _PAUSE_GROWTH = 0.05, 2.0, 1.3
# Pause between the two parts of a scheduled capture, because clocks may differ.
_SCHEDULE_GAP_S = 2.0
# Maximum time for another process to put an object.
_WRITER_S = 10.0


_Object = TypeVar("_Object", bound=msgspec.Struct)


class BarrierMissedError(KafkaIndexError):
    """A broker arrived too late at a barrier; it can open another backup."""


class _BarrierOpened(msgspec.Struct, frozen=True, rename={"backup_id": "run"}):
    """The object that opens a barrier."""

    backup_id: BackupId
    node_id: Int32
    token: str


class _BrokerArrival(msgspec.Struct, frozen=True, rename={"stored": "taken"}):
    """The object of a broker at a stage; `stored` are folders of partitions."""

    token: str
    stored: tuple[str, ...] = ()


class _StageClosed(msgspec.Struct, frozen=True):
    """The object that closes a stage.

    The token distinguishes it from an equal list of another broker.
    """

    members: tuple[Int32, ...]
    token: str


@dataclass(frozen=True)
class SingleBroker:
    """A backup of the only expected broker."""

    backup_id: str
    node_id: int

    def await_capture(self) -> None: ...

    def await_others(self) -> tuple[int, ...]:
        return (self.node_id,)

    def await_leaders(
        self,
        stored: Collection[str],  # noqa: ARG002, as of a barrier
        others: Mapping[str, int | None],
    ) -> set[str]:
        return set(others)


class Barrier:
    """A barrier that this broker has joined, and its backup; `brokers` are the expected brokers."""

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
        self._began = time.monotonic()

    def join(self) -> bool:
        """Put the arrival of this broker; return False if another process has put it."""
        return self._put(f"{JOINED}/{self._node_id}{_SUFFIX}", _BrokerArrival(self._token))

    def await_capture(self) -> None:
        """Wait until all expected brokers have arrived, or until the timeout.

        Raises `BarrierMissedError` if this broker is not in the backup.
        """
        self._close(JOINED)

    def await_others(self) -> tuple[int, ...]:
        """Wait until all brokers have captured the coordinators' topics; return the brokers.

        Raises `BarrierMissedError` if this broker is not in the backup any more.
        """
        self._put(f"{CAPTURED}/{self._node_id}{_SUFFIX}", _BrokerArrival(self._token))
        self._close(CAPTURED)
        return tuple(sorted(self.members))

    def is_closed(self) -> bool:
        """Return whether no broker can join any more."""
        return None in self._arrived(JOINED)

    def await_leaders(self, stored: Collection[str], others: Mapping[str, int | None]) -> set[str]:
        """List the partitions stored here; return the partitions of `others` that no broker stored.

        Partitions are folders of the repository; `others` has the leader of each. Waits for leaders
        in the backup, at least as long as this broker took itself. Brokers may disagree about a
        leader: then each of them stores the partition if no broker stored it.
        """
        self._put(
            f"{STORED}/{self._node_id}{_SUFFIX}", _BrokerArrival(self._token, tuple(sorted(stored)))
        )
        leaders = {each for each in others.values() if each is not None} & self.members
        timeout_s = max(self._timeout_s, time.monotonic() - self._began)
        self._wait(lambda: leaders <= self._arrived(STORED), timeout_s)
        stored_by_others = {
            folder
            for node_id in self._arrived(STORED) - {None, self._node_id}
            for folder in self._read(f"{STORED}/{node_id}{_SUFFIX}", _BrokerArrival).stored
        }
        return set(others) - stored_by_others

    def _close(self, stage: str) -> None:
        """Wait for the members at a stage; afterwards the members are the brokers at the stage.

        Raises `BarrierMissedError` if this broker is not one of them.
        """
        closed = f"{stage}/{_CLOSED}"
        arrived: set[int | None] = set()

        def is_over() -> bool:
            nonlocal arrived
            arrived = self._arrived(stage)
            return None in arrived or self.members <= arrived

        self._wait(is_over, self._timeout_s)
        found = _StageClosed(
            tuple(sorted(each for each in arrived if each is not None)), self._token
        )
        found = self._read(closed, _StageClosed, None if None in arrived else found)
        self.members = set(found.members)
        if self._node_id not in self.members:
            raise BarrierMissedError(
                f"broker {self._node_id} arrived too late for the backup {self.backup_id}",
                path=f"{self._folder}/{closed}",
            )

    def _arrived(self, stage: str) -> set[int | None]:
        """Return the brokers at a stage, and None if it is closed."""
        entries = store_of(self._root).list_directory(f"{self._folder}/{stage}")
        names = {os.path.basename(each.path) for each in entries}
        brokers: set[int | None] = {
            int(name.removesuffix(_SUFFIX))
            for name in names
            if name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX).isdecimal()
        }
        return brokers | {None} if _CLOSED in names else brokers

    def _wait(self, is_over: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        pause = _SHORTEST_PAUSE_S
        while not is_over() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_S)

    def _put(self, name: str, value: msgspec.Struct) -> bool:
        return _put(f"{self._folder}/{name}", value)

    def _read(self, name: str, kind: type[_Object], own: _Object | None = None) -> _Object:
        return _read(f"{self._folder}/{name}", kind, own)


class ScheduledCutoff(Barrier):
    """A backup with a scheduled cutoff time, at which each broker captures its logs."""

    def __init__(
        self, root: str, time_ms: int, node_id: int, brokers: Iterable[int], timeout_s: float
    ) -> None:
        self._time_ms = time_ms
        backup_id = backup_id_at(time_ms)
        super().__init__(root, backup_id, backup_id, node_id, brokers, timeout_s)

    def await_capture(self) -> None:
        """Wait for the cutoff time; raises `BarrierMissedError` if it has passed."""
        wait_s = self._time_ms / 1000 - time.time()
        if wait_s < 0:
            raise BarrierMissedError(f"the cutoff time has passed: {self.backup_id}")
        time.sleep(wait_s)

    def await_others(self) -> tuple[int, ...]:
        """Wait until two seconds after the cutoff; the manifests show whether that was enough."""
        time.sleep(max(self._time_ms / 1000 + _SCHEDULE_GAP_S - time.time(), 0))
        return ()


#: How this broker takes part in a backup.
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
        Timeout at each stage. Older barriers cannot be joined; clocks must differ by less.
    newest_backup_id : str, optional
        The newest backup in the repository; the new backup gets a later ID.
    clock_ms : callable
        The time, in milliseconds since the epoch.
    """
    earliest_ms = 0 if newest_backup_id is None else backup_id_ms(newest_backup_id) + 1
    if {*brokers} <= {node_id}:
        return SingleBroker(backup_id_at(max(clock_ms(), earliest_ms)), node_id)

    def join(number: int, backup_id: str) -> Barrier | None:
        barrier = Barrier(root, _name(number), backup_id, node_id, brokers, timeout_s)
        return barrier if not barrier.is_closed() and barrier.join() else None

    while True:
        number, newest = _newest(root)
        joined = None
        if newest is not None:
            earliest_ms = max(earliest_ms, backup_id_ms(newest) + 1)
            if clock_ms() - backup_id_ms(newest) < timeout_s * 1000:
                joined = join(number, newest)
        if joined is None:
            backup_id = backup_id_at(max(clock_ms(), earliest_ms))
            opened = _BarrierOpened(backup_id, node_id, uuid.uuid4().hex)
            # If another broker was faster, the next iteration finds its barrier.
            if _put(f"{root}/{BARRIERS_FOLDER}/{_name(number + 1)}/{_OPEN}", opened):
                joined = join(number + 1, backup_id)
        if joined is not None:
            return joined


def expired_barriers(root: str, before_ms: int) -> list[str]:
    """Return the objects of barriers older than a time; objects of the newest barrier are kept.

    The time is in milliseconds since the epoch. The newest barrier stays, so that barrier numbers
    are not reused.
    """
    top = f"{root}/{BARRIERS_FOLDER}"
    names: dict[str, list[str]] = {}
    store = open_repository(root).store
    for page in store.list_tree(top):
        for path in page["path"].to_pylist():
            names.setdefault(path.partition("/")[0], []).append(path)
    newest = max((each for each in names if each.isdecimal()), default=None)
    found = []
    for barrier, paths in names.items():
        if barrier == newest:
            continue
        backup_id = barrier if is_backup_id(barrier) else None
        if backup_id is None and f"{barrier}/{_OPEN}" in paths:
            with suppress(FileNotFoundError):  # A concurrent expiration has deleted the object.
                backup_id = _decoded(f"{top}/{barrier}/{_OPEN}", _BarrierOpened).backup_id
        if backup_id is not None and backup_id_ms(backup_id) < before_ms:
            found += [f"{top}/{path}" for path in paths]
    return found


def _newest(root: str) -> tuple[int, str | None]:
    """Return the number of the newest barrier, or 0, and its backup.

    A folder without the opening object is not a barrier: its process may have been killed.
    """
    entries = open_repository(root).store.list_directory(f"{root}/{BARRIERS_FOLDER}")
    names = [os.path.basename(each.path) for each in entries if each.is_directory]
    number = max((int(name) for name in names if name.isdecimal()), default=0)
    if not number:
        return 0, None
    path = f"{root}/{BARRIERS_FOLDER}/{_name(number)}/{_OPEN}"
    try:
        return number, _decoded(path, _BarrierOpened).backup_id
    except FileNotFoundError:
        return number - 1, None


def _name(number: int) -> str:
    return f"{number:0{_DIGITS}d}"


def _put(path: str, value: msgspec.Struct) -> bool:
    """Put an object if its name is free; return whether this object exists."""
    try:
        return store_of(path).put(path, msgspec.json.encode(value) + b"\n", if_absent=True)
    except PublishError as error:
        if isinstance(error.__cause__, BlockingIOError):
            # On a local disk: another process is putting it.
            return False
        raise


def _read(path: str, kind: type[_Object], own: _Object | None) -> _Object:
    """Return an object of a barrier that another broker has put, or is putting.

    If no other broker puts one, `own` is put: on a local disk another process may be killed while
    it puts the object. Raises `ReadError` if the object does not appear; objects of a barrier are
    deleted after a day.
    """
    deadline = time.monotonic() + _WRITER_S
    while True:
        if own is not None and _put(path, own):
            return own
        try:
            return _decoded(path, kind)
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise ReadError(
                    "the object of a barrier does not exist any more", path=path, hint="run again"
                ) from None
            time.sleep(_SHORTEST_PAUSE_S)


def _decoded(path: str, kind: type[_Object]) -> _Object:
    try:
        return decoder_of(kind).decode(store_of(path).read(path))
    except MALFORMED as error:
        raise CorruptObjectError(f"not the object of a barrier: {error}", path=path) from error
