"""Broker runs, once for a session: they write, rebuild, are killed, and recover.

Brokers that do not need each other run at the same time.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.conformance.kafka_jars import (
    DEFAULT_VERSION,
    OLD_VERSION,
    class_path,
    needing_kafka,
    tool,
)
from tests.support.timeouts import TIMEOUT_SECONDS

from .broker import Broker, Home
from .client import ISOLATIONS, Client, Digest, Producer
from .files import is_cleaned, keep_only_logs
from .topics import FOLLOWED, KILLED, TOPICS, TRIMMED, TRIMMED_TO, write_index_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any


_COMPACTED_ALONE = {f"{topic.name}-0" for topic in TOPICS if topic.is_compacted}
_COMPACTED = _COMPACTED_ALONE | {f"{topic.name}-0" for topic in FOLLOWED if topic.is_compacted}
_NAMES = [topic.name for topic in TOPICS]
_FOLLOWED_NAMES = [topic.name for topic in FOLLOWED]


@dataclass(frozen=True)
class Written:
    """Directories as brokers left them at a clean stop, never restarted.

    And what consumers had got, by isolation level and partition, and what the leaders knew of
    producers, by partition.
    """

    leader: Home
    follower: Home
    digests: dict[str, dict[str, Digest]]
    producers: dict[str, set[Producer]]
    config: Path


@dataclass(frozen=True)
class Recovered:
    """A data directory before a broker started on it, and after that broker's clean stop."""

    before: Home
    after: Home
    log_text: str


@pytest.fixture(scope="session")
def room(scratch: Path) -> Path:
    """A folder for brokers; skips where none can run, and fails instead where one has to."""
    with needing_kafka():
        for version in (DEFAULT_VERSION, OLD_VERSION):
            class_path(version)
        for needed in ("java", "javac"):
            tool(needed)
    folder = scratch / "brokers"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def running(request: pytest.FixtureRequest, room: Path) -> Iterator[dict[str, Future[Any]]]:
    """The traffic that the tests of this session need, all of it under way, by fixture."""
    needed = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    with ThreadPoolExecutor() as threads:
        yield {
            name: threads.submit(traffic, room)
            for name, traffic in _TRAFFIC.items()
            if name in needed
        }


@pytest.fixture(scope="session")
def written(running: dict[str, Future[Written]]) -> Written:
    """All traffic on one broker; a second one copies it, then follows while more comes."""
    return running["written"].result()


@pytest.fixture(scope="session")
def older(running: dict[str, Future[Home]]) -> Home:
    """A directory as a broker of an older version left it at a clean stop, never restarted."""
    return running["older"].result()


@pytest.fixture(scope="session")
def killed(running: dict[str, Future[Recovered]]) -> Recovered:
    """A broker is killed after traffic; another starts on a copy, and stops."""
    return running["killed"].result()


@pytest.fixture(scope="session")
def rebuilt(written: Written, room: Path) -> Recovered:
    """A broker starts on nothing but logs, and stops."""
    logs = written.leader.copy_to(room / "logs")
    keep_only_logs(logs.data)
    home = logs.copy_to(room / "rebuilt")
    with Broker(home) as broker:
        pass
    return Recovered(logs, home, broker.log_text())


def _write(room: Path) -> Written:
    config = room / "index.properties"
    write_index_settings((*TOPICS, *FOLLOWED, *KILLED), config)
    leader = Broker(Home(room / "leader"))
    with leader, Client(leader.bootstrap, room) as client:
        for topic in TOPICS:
            client.create(topic)
            client.fill(topic)
        client.delete_records(TRIMMED.name, 0, TRIMMED_TO)
        follower = Broker(Home(room / "follower"), 2, leader.controller_port)
        with follower:
            client.reassign((1, 2), _NAMES)
            client.await_in_sync(2, _NAMES)
            for topic in FOLLOWED:
                client.create(topic, replicas=(1, 2))
                client.fill(topic)
            client.await_in_sync(2, _FOLLOWED_NAMES)
            for data in (leader.home.data, follower.home.data):
                _wait_for(f"compaction in {data}", partial(is_cleaned, data, _COMPACTED))
            names = [*_NAMES, *_FOLLOWED_NAMES]
            digests = {isolation: client.digests(isolation, names) for isolation in ISOLATIONS}
            producers = client.producers(names)
    return Written(leader.home, follower.home, digests, producers, config)


def _write_older(room: Path) -> Home:
    broker = Broker(Home(room / "older"), version=OLD_VERSION)
    with broker, Client(broker.bootstrap, room) as client:
        for topic in TOPICS:
            client.create(topic.for_older_brokers())
            client.fill(topic)
        _wait_for("compaction", partial(is_cleaned, broker.home.data, _COMPACTED_ALONE))
    return broker.home


def _kill(room: Path) -> Recovered:
    broker = Broker(Home(room / "killed"))
    broker.start()
    try:
        with Client(broker.bootstrap, room) as client:
            for topic in KILLED:
                client.create(topic)
                client.fill(topic)
            broker.kill()
    finally:
        broker.kill()
    home = broker.home.copy_to(room / "recovered")
    with Broker(home) as recovering:
        pass
    return Recovered(broker.home, home, recovering.log_text())


_TRAFFIC = {"written": _write, "older": _write_older, "killed": _kill}


def _wait_for(what: str, done: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {TIMEOUT_SECONDS} s")
        time.sleep(0.1)
