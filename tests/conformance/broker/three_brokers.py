"""Three brokers that are controllers too, their load, and what was acknowledged of it."""

from __future__ import annotations

import subprocess
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from tests.support.timeouts import TIMEOUT_SECONDS, wait_for

from .broker import Broker, BrokerFolders, free_ports
from .client import Client, program, run_program
from .topics import Topic

NODES = (1, 2, 3)
_SMALL = {"internal.segment.bytes": "60000", "message.timestamp.type": "LogAppendTime"}
_COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.3",
    "internal.segment.bytes": "20000",
}
PLAIN, PAYMENTS, PROFILES, COPIES = (
    f"load.{name}" for name in ("plain", "payments", "profiles", "copies")
)
TOPICS = (
    Topic(PLAIN, (), _SMALL, 2),
    Topic(PAYMENTS, (), _SMALL, 2),
    Topic(PROFILES, (), _SMALL | _COMPACT),
    Topic(COPIES, (), _SMALL, 2),
)
#: The topics that brokers keep groups and transactions in.
INTERNAL = ("__consumer_offsets", "__transaction_state")
_SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "metadata.log.max.record.bytes.between.snapshots": "20000",
    "group.initial.rebalance.delay.ms": "0",
    # A busy machine is slow: elections and registrations wait for it.
    "controller.quorum.election.timeout.ms": "5000",
    "controller.quorum.fetch.timeout.ms": "15000",
    "controller.quorum.request.timeout.ms": "15000",
    "initial.broker.registration.timeout.ms": "600000",
}


class ThreeBrokerCluster:
    """A cluster of three nodes below a folder, running while its context does; killed at its end.

    `root`: of the three homes, ``1`` to ``3``. `own_settings`: more settings of some nodes.
    `features`: levels below the newest.
    """

    def __init__(
        self,
        root: Path,
        own_settings: Mapping[int, Mapping[str, str]] | None = None,
        features: Mapping[str, int] | None = None,
    ) -> None:
        ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        self.homes = [BrokerFolders(root / str(node)) for node in NODES]
        self.brokers = [
            Broker(
                home,
                node,
                more_settings={**_SETTINGS, **(own_settings or {}).get(node, {})},
                voters=ports,
                features=features,
            )
            for node, home in zip(NODES, self.homes, strict=True)
        ]

    @property
    def bootstrap(self) -> str:
        """The addresses of all of them."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def __enter__(self) -> Self:
        try:
            # None of them is ready before two of them are there.
            with ThreadPoolExecutor(len(NODES)) as threads:
                list(threads.map(Broker.start, self.brokers))
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End them with SIGKILL, one right after another."""
        for broker in self.brokers:
            broker.kill()

    def copy_to(self, root: Path) -> list[BrokerFolders]:
        """Copy the folders of all, which may be written to meanwhile."""
        for home in self.homes:
            target = root / home.root.name
            target.mkdir(parents=True)
            # Files may be gone before they are copied.
            subprocess.run(
                ["cp", "-a", "--sparse=always", str(home.data), str(home.metadata), str(target)],
                check=False,
                stderr=subprocess.DEVNULL,
            )
        return dumped(root)

    def unexpected_log_lines(self, texts: Iterable[str]) -> list[str]:
        """Return the lines of the brokers' logs that have one of these texts."""
        texts = tuple(texts)
        return [
            line
            for broker in self.brokers
            for line in broker.log_text().splitlines()
            if any(text in line for text in texts)
        ]


def dumped(root: Path) -> list[BrokerFolders]:
    """Return the homes below a folder."""
    return [BrokerFolders(root / str(node)) for node in NODES]


class LoadRecord(NamedTuple):
    """A record that was acknowledged or consumed."""

    offset: int
    timestamp_ms: int
    crc: int
    id: str


@dataclass
class Ledger:
    """The acknowledged records, by kind and partition, and the commits of groups."""

    records: dict[str, dict[tuple[str, int], list[LoadRecord]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    commits: dict[tuple[str, str, int], list[tuple[int, int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    ends: dict[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, size: int | None = None) -> Self:
        """Read a ledger, or what it had when it was of a size."""
        result = cls()
        for line in path.read_bytes()[:size].decode().splitlines():
            kind, *fields = line.split("\t")
            if kind == "group":
                group, topic, number, *rest = fields
                offset, began, ended = map(int, rest)
                result.commits[group, topic, int(number)].append((offset, began, ended))
            elif kind == "end":
                topic, number, at = fields
                result.ends[topic, int(number)] = int(at)
            else:
                topic, number, at, time, crc, name = fields
                got = LoadRecord(int(at), int(time), int(crc), name)
                result.records[kind][topic, int(number)].append(got)
        return result

    def acknowledged(self) -> dict[tuple[str, int], list[LoadRecord]]:
        """Return the records that a consumer has to get, by partition and in order."""
        result: dict[tuple[str, int], list[LoadRecord]] = defaultdict(list)
        for kind in ("ack", "commit"):
            for partition, records in self.records[kind].items():
                result[partition] += records
        return {partition: sorted(records) for partition, records in result.items()}

    def count(self) -> dict[str, int]:
        """Return how many of each kind there are, commits of groups included."""
        kinds = {
            kind: sum(map(len, by_partition.values()))
            for kind, by_partition in self.records.items()
        }
        return kinds | {"group": sum(map(len, self.commits.values()))}


@contextmanager
def loading(
    bootstrap: str, path: Path, prefix: str, suffix: str = "", kind: str = "load"
) -> Iterator[Callable[[], None]]:
    """Put load on a cluster meanwhile; yields what ends it in an orderly way."""
    process = subprocess.Popen(
        program("Load", bootstrap, kind, str(path), prefix, *filter(None, [suffix])),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    def end() -> None:
        _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, errors.decode()[-4000:]

    try:
        yield end
    finally:
        process.kill()
        process.communicate()


def await_load(path: Path, more: int, since: int = 0) -> None:
    """Wait until a ledger has so many more records of each kind than it had at a size."""
    before = Ledger.read(path, since).count() if since else {}

    def is_there() -> bool:
        result = Ledger.read(path).count() if path.exists() else {}
        return all(
            result.get(kind, 0) - before.get(kind, 0) >= more // share
            for kind, share in {"ack": 1, "commit": 2, "abort": 4, "group": 30}.items()
        )

    wait_for(is_there, 60, f"{more} records in {path.name}")


def consumed(bootstrap: str, path: Path, isolation: str, topics: Sequence[str]) -> Ledger:
    """Consume topics from their starts to their ends."""
    run_program("Load", bootstrap, "consume", str(path), isolation, *topics)
    return Ledger.read(path)


def committed(bootstrap: str) -> dict[tuple[str, str, int], int]:
    """Return the committed offsets of all groups."""
    lines = [line.split("\t") for line in run_program("Load", bootstrap, "groups").splitlines()]
    return {(group, topic, int(number)): int(at) for group, topic, number, at in lines}


def crc_of(name: str) -> int:
    """Return the checksum of the value that a record of an id has (``Load.sendAs``)."""
    code = 0
    for letter in name:
        code = (code * 31 + ord(letter)) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    return zlib.crc32(f"{name}|{f'{code:x}' * (1 + signed % 40)}".encode())


def replicas_differ(homes: Sequence[BrokerFolders], topics: Iterable[str]) -> list[str]:
    """Return the partitions whose logs are not the same bytes at every node."""
    result = []
    for topic in topics:
        for folder in sorted(homes[0].data.glob(f"{topic}-[0-9]*")):
            logs = {
                b"".join(
                    log.read_bytes() for log in sorted((home.data / folder.name).glob("*.log"))
                )
                for home in homes
            }
            if len(logs) != 1:
                result.append(folder.name)
    return result


def create_topics(cluster: ThreeBrokerCluster, broker_root: Path) -> None:
    """Create the topics of the load, with a replica at each node."""
    with Client(cluster.bootstrap, broker_root) as client:
        for topic in TOPICS:
            client.create(topic, NODES)
