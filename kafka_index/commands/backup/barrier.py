"""The meeting of the brokers of a run: all cut the coordinators' topics before any cuts the rest.

::

    {root}/barriers/{number}/open.json                 the run, put if absent by whoever opens it
    {root}/barriers/{number}/{stage}/{node id}.json    the broker is there
    {root}/barriers/{number}/{stage}/closed.json       who is in the run, put if absent

Brokers meet at ``joined`` before they cut anything, and at ``cut`` once `__transaction_state` and
`__consumer_offsets` are cut. A stage is closed by the first that sees all there, or whose patience
ends; the object that closes it names the brokers that are in the run from then on, and whoever is
late reads there that it is not: it opens a run of its own. So what a broker of a run cuts after
``cut`` is later than the first two topics of all its brokers, whatever their clocks say. Last comes
``taken``, which is not closed: partitions that a broker has stored as their leader.
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
    RunName,
    is_run_name,
    run_name,
    run_time,
)
from kafka_index.core.fs.paths import repository_of
from kafka_index.core.fs.registry import store_of

#: The stages, in their order.
JOINED, CUT, TAKEN = "joined", "cut", "taken"
#: How long brokers wait for each other, in seconds, before a run is without who is missing.
DEFAULT_PATIENCE_S = 60.0

_OPEN, _CLOSED, _SUFFIX = "open.json", "closed.json", ".json"
_DIGITS = 10
# Between looks: often while all are about to come, seldom while somebody is missing.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, _PAUSE_GROWTH = 0.05, 2.0, 1.3
# Between the two parts of a cut at an agreed time, by clocks that may differ.
_AGREED_GAP_S = 2.0
# A file that is about to be in place.
_WRITER_S = 10.0


_Object = TypeVar("_Object", bound=msgspec.Struct)


class BarrierMissedError(KafkaIndexError):
    """A broker was not in time for a run; it can open another."""


class _Opened(msgspec.Struct, frozen=True):
    """The object that opens a barrier."""

    run: RunName
    node_id: Int32
    token: str


class _There(msgspec.Struct, frozen=True):
    """The object of a broker at a stage; `taken` are folders of partitions."""

    token: str
    taken: tuple[str, ...] = ()


class _Closed(msgspec.Struct, frozen=True):
    """The object that closes a stage; its token makes it another than the same list of others."""

    members: tuple[Int32, ...]
    token: str


@dataclass(frozen=True)
class SingleBroker:
    """A run of the only broker that is expected."""

    run: str
    node_id: int

    def await_cut(self) -> None:
        """Return at once."""

    def await_others(self) -> tuple[int, ...]:
        """Return this broker."""
        return (self.node_id,)

    def await_leaders(
        self,
        taken: Collection[str],  # noqa: ARG002, nobody asks
        others: Mapping[str, int | None],
    ) -> set[str]:
        """Return all of them."""
        return set(others)


class Barrier:
    """A barrier that this broker has joined, with a run; `brokers` are expected there."""

    def __init__(
        self,
        root: str,
        name: str,
        run: str,
        node_id: int,
        brokers: Iterable[int],
        patience_s: float,
    ) -> None:
        self.run = run
        self._root = root
        self._folder = f"{root}/{BARRIERS_FOLDER}/{name}"
        self._node_id = node_id
        #: The brokers in the run; at first all that are expected.
        self.members = {*brokers, node_id}
        self._patience_s = patience_s
        self._token = uuid.uuid4().hex
        self._began = time.monotonic()

    def join(self) -> bool:
        """Say that this broker is there; return whether no other process has said so for it."""
        return self._put(f"{JOINED}/{self._node_id}{_SUFFIX}", _There(self._token))

    def await_cut(self) -> None:
        """Wait until the run's brokers may cut: all that are expected, or without whom is late.

        Raises `BarrierMissedError`, as each wait does, if this broker is not among them.
        """
        self._close(JOINED)

    def await_others(self) -> tuple[int, ...]:
        """Say that the first topics are cut here; wait until that is so everywhere.

        Return the brokers for `Cut.met`.
        """
        self._put(f"{CUT}/{self._node_id}{_SUFFIX}", _There(self._token))
        self._close(CUT)
        return tuple(sorted(self.members))

    def is_closed(self) -> bool:
        """Return whether nobody can join any more."""
        return None in self._there(JOINED)

    def await_leaders(self, taken: Collection[str], others: Mapping[str, int | None]) -> set[str]:
        """Say which partitions are stored here; return which of others nobody has stored.

        Partitions are folders of the repository, and the others come with their leaders. Leaders in
        the run are waited for, at least as long as this broker took. Brokers may differ about who
        leads: what nobody has stored, each of them stores.
        """
        self._put(f"{TAKEN}/{self._node_id}{_SUFFIX}", _There(self._token, tuple(sorted(taken))))
        leaders = {each for each in others.values() if each is not None} & self.members
        patience_s = max(self._patience_s, time.monotonic() - self._began)
        self._wait(lambda: leaders <= self._there(TAKEN), patience_s)
        stored = {
            folder
            for node_id in self._there(TAKEN) - {None, self._node_id}
            for folder in self._read(f"{TAKEN}/{node_id}{_SUFFIX}", _There).taken
        }
        return set(others) - stored

    def _close(self, stage: str) -> None:
        """Wait at a stage for the members, and make the brokers that are there the members.

        Raises `BarrierMissedError` if this broker is not one of them.
        """
        closed = f"{stage}/{_CLOSED}"
        there: set[int | None] = set()

        def is_over() -> bool:
            nonlocal there
            there = self._there(stage)
            return None in there or self.members <= there

        self._wait(is_over, self._patience_s)
        found = _Closed(tuple(sorted(each for each in there if each is not None)), self._token)
        found = self._read(closed, _Closed, None if None in there else found)
        self.members = set(found.members)
        if self._node_id not in self.members:
            raise BarrierMissedError(
                f"broker {self._node_id} came too late to the run {self.run}",
                path=f"{self._folder}/{closed}",
            )

    def _there(self, stage: str) -> set[int | None]:
        """Return the brokers at a stage; None among them once it is closed."""
        entries = store_of(self._root).list_directory(f"{self._folder}/{stage}")
        names = {os.path.basename(each.path) for each in entries}
        brokers: set[int | None] = {
            int(name.removesuffix(_SUFFIX))
            for name in names
            if name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX).isdecimal()
        }
        return brokers | {None} if _CLOSED in names else brokers

    def _wait(self, is_over: Callable[[], bool], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        pause = _SHORTEST_PAUSE_S
        while not is_over() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_S)

    def _put(self, name: str, value: msgspec.Struct) -> bool:
        return _put(f"{self._folder}/{name}", value)

    def _read(self, name: str, kind: type[_Object], own: _Object | None = None) -> _Object:
        return _read(f"{self._folder}/{name}", kind, own)


class ScheduledCutoff(Barrier):
    """A run that is cut at an agreed time: no broker waits for another to cut, by its clock."""

    def __init__(
        self, root: str, time_ms: int, node_id: int, brokers: Iterable[int], patience_s: float
    ) -> None:
        self._time_ms = time_ms
        run = run_name(time_ms)
        super().__init__(root, run, run, node_id, brokers, patience_s)

    def await_cut(self) -> None:
        """Wait for the time; raises `BarrierMissedError` if it is past."""
        wait_s = self._time_ms / 1000 - time.time()
        if wait_s < 0:
            raise BarrierMissedError(f"the time of the cut is past: {self.run}")
        time.sleep(wait_s)

    def await_others(self) -> tuple[int, ...]:
        """Wait until two seconds after the time, which the manifests show to be enough or not."""
        time.sleep(max(self._time_ms / 1000 + _AGREED_GAP_S - time.time(), 0))
        return ()


#: A run that a broker is in, and how it meets the others.
Meeting: TypeAlias = SingleBroker | Barrier


def open_run(
    root: str,
    node_id: int,
    brokers: Collection[int],
    *,
    patience_s: float = DEFAULT_PATIENCE_S,
    last_run: str | None = None,
    clock_ms: Callable[[], int] = now_ms,
) -> Meeting:
    """Open a run of a repository, or join the run that another broker has opened.

    Parameters
    ----------
    root : str
        Of the repository.
    node_id : int
        This broker.
    brokers : collection of int
        The expected ones; where this is the only one it meets nobody.
    patience_s : float
        How long to wait for others at each stage. An older barrier is not joined any more, by
        clocks that may differ by less.
    last_run : str, optional
        The newest run in the repository: the new one gets a later name.
    clock_ms : callable
        The time, in milliseconds since the epoch.
    """
    earliest_ms = 0 if last_run is None else run_time(last_run) + 1
    if {*brokers} <= {node_id}:
        return SingleBroker(run_name(max(clock_ms(), earliest_ms)), node_id)

    def join(number: int, run: str) -> Barrier | None:
        barrier = Barrier(root, _name(number), run, node_id, brokers, patience_s)
        return barrier if not barrier.is_closed() and barrier.join() else None

    while True:
        number, newest = _newest(root)
        joined = None
        if newest is not None:
            earliest_ms = max(earliest_ms, run_time(newest) + 1)
            if clock_ms() - run_time(newest) < patience_s * 1000:
                joined = join(number, newest)
        if joined is None:
            run = run_name(max(clock_ms(), earliest_ms))
            opened = _Opened(run, node_id, uuid.uuid4().hex)
            # Where another broker was faster, its barrier is found.
            if _put(f"{root}/{BARRIERS_FOLDER}/{_name(number + 1)}/{_OPEN}", opened):
                joined = join(number + 1, run)
        if joined is not None:
            return joined


def old_barriers(root: str, before_ms: int) -> list[str]:
    """Return the paths of the objects of barriers older than a time, but of the newest of all.

    The time is in milliseconds since the epoch. Nobody needs them; their numbers are not used
    again, as the newest stays.
    """
    top = f"{root}/{BARRIERS_FOLDER}"
    names: dict[str, list[str]] = {}
    store = repository_of(root).store
    for page in store.list_tree(top):
        for path in page["path"].to_pylist():
            names.setdefault(path.partition("/")[0], []).append(path)
    newest = max((each for each in names if each.isdecimal()), default=None)
    found = []
    for barrier, paths in names.items():
        if barrier == newest:
            continue
        run = barrier if is_run_name(barrier) else None
        if run is None and f"{barrier}/{_OPEN}" in paths:
            with suppress(FileNotFoundError):  # another expiring has deleted it
                run = _decoded(f"{top}/{barrier}/{_OPEN}", _Opened).run
        if run is not None and run_time(run) < before_ms:
            found += [f"{top}/{path}" for path in paths]
    return found


def _newest(root: str) -> tuple[int, str | None]:
    """Return the number of the newest barrier, and its run; 0 where there is none.

    A folder is not a barrier before it is opened: whoever makes it may be killed before that.
    """
    entries = repository_of(root).store.list_directory(f"{root}/{BARRIERS_FOLDER}")
    names = [os.path.basename(each.path) for each in entries if each.is_directory]
    number = max((int(name) for name in names if name.isdecimal()), default=0)
    if not number:
        return 0, None
    path = f"{root}/{BARRIERS_FOLDER}/{_name(number)}/{_OPEN}"
    try:
        return number, _decoded(path, _Opened).run
    except FileNotFoundError:
        return number - 1, None


def _name(number: int) -> str:
    return f"{number:0{_DIGITS}d}"


def _put(path: str, value: msgspec.Struct) -> bool:
    """Put an object where there is none; return whether this one is there."""
    try:
        return store_of(path).put(path, msgspec.json.encode(value) + b"\n", if_absent=True)
    except PublishError as error:
        if isinstance(error.__cause__, BlockingIOError):
            # On a local disk, another process puts it at this moment.
            return False
        raise


def _read(path: str, kind: type[_Object], own: _Object | None) -> _Object:
    """Return an object of a barrier, which somebody has just put, or is about to.

    It is this broker's own, where one is given and nobody puts another: on a local disk, another
    process may be killed as it puts one. Raises `ReadError` if it is gone, as those of barriers
    that are a day old may be.
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
                    "the object of a barrier is gone", path=path, hint="run again"
                ) from None
            time.sleep(_SHORTEST_PAUSE_S)


def _decoded(path: str, kind: type[_Object]) -> _Object:
    try:
        return decoder_of(kind).decode(store_of(path).read(path))
    except MALFORMED as error:
        raise CorruptObjectError(f"not the object of a barrier: {error}", path=path) from error
