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

from .broker import Broker, BrokerFolders
from .client import ISOLATIONS, Client, Digest, Producer
from .files import is_cleaned, remove_all_but_logs
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

    leader: BrokerFolders
    follower: BrokerFolders
    digests: dict[str, dict[str, Digest]]
    producers: dict[str, set[Producer]]
    config: Path


@dataclass(frozen=True)
class Recovered:
    """A data directory before a broker started on it, and after that broker's clean stop."""

    before: BrokerFolders
    after: BrokerFolders
    log_text: str


@pytest.fixture(scope="session")
def broker_root(scratch: Path) -> Path:
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
def running(request: pytest.FixtureRequest, broker_root: Path) -> Iterator[dict[str, Future[Any]]]:
    """The traffic that the tests of this session need, all of it under way, by fixture."""
    needed = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    with ThreadPoolExecutor() as threads:
        yield {
            name: threads.submit(traffic, broker_root)
            for name, traffic in _TRAFFIC.items()
            if name in needed
        }


@pytest.fixture(scope="session")
def written(running: dict[str, Future[Written]]) -> Written:
    """All traffic on one broker; a second one copies it, then follows while more comes."""
    return running["written"].result()


@pytest.fixture(scope="session")
def older_directory(running: dict[str, Future[BrokerFolders]]) -> BrokerFolders:
    """A directory as a broker of an older version left it at a clean stop, never restarted."""
    return running["older_directory"].result()


@pytest.fixture(scope="session")
def killed(running: dict[str, Future[Recovered]]) -> Recovered:
    """A broker is killed after traffic; another starts on a copy, and stops."""
    return running["killed"].result()


@pytest.fixture(scope="session")
def rebuilt(written: Written, broker_root: Path) -> Recovered:
    """A broker starts on nothing but logs, and stops."""
    logs = written.leader.copy_to(broker_root / "logs")
    remove_all_but_logs(logs.data)
    home = logs.copy_to(broker_root / "rebuilt")
    with Broker(home) as broker:
        pass
    return Recovered(logs, home, broker.log_text())


def _write(broker_root: Path) -> Written:
    config = broker_root / "index.properties"
    write_index_settings((*TOPICS, *FOLLOWED, *KILLED), config)
    leader = Broker(BrokerFolders(broker_root / "leader"))
    with leader, Client(leader.bootstrap, broker_root) as client:
        for topic in TOPICS:
            client.create(topic)
            client.fill(topic)
        client.delete_records(TRIMMED.name, 0, TRIMMED_TO)
        follower = Broker(BrokerFolders(broker_root / "follower"), 2, leader.controller_port)
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


def _write_older(broker_root: Path) -> BrokerFolders:
    broker = Broker(BrokerFolders(broker_root / "older_directory"), version=OLD_VERSION)
    with broker, Client(broker.bootstrap, broker_root) as client:
        for topic in TOPICS:
            client.create(topic.for_older_brokers())
            client.fill(topic)
        _wait_for("compaction", partial(is_cleaned, broker.home.data, _COMPACTED_ALONE))
    return broker.home


def _kill(broker_root: Path) -> Recovered:
    broker = Broker(BrokerFolders(broker_root / "killed"))
    broker.start()
    try:
        with Client(broker.bootstrap, broker_root) as client:
            for topic in KILLED:
                client.create(topic)
                client.fill(topic)
            broker.kill()
    finally:
        broker.kill()
    home = broker.home.copy_to(broker_root / "recovered")
    with Broker(home) as recovering:
        pass
    return Recovered(broker.home, home, recovering.log_text())


_TRAFFIC = {"written": _write, "older_directory": _write_older, "killed": _kill}


def _wait_for(what: str, done: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {TIMEOUT_SECONDS} s")
        time.sleep(0.1)
