"""Clusters under load that are backed up while they run, and clusters that are restored from it.

The load has transfers between accounts, whose amounts sum to 0 in each transaction, and what
`three_brokers` has: idempotent records, transactions with offsets of groups, a compacted topic. Log
starts move, and a topic is deleted and made again all the time. Agents are killed at random,
and so are brokers, where there are three; replicas move between directories and brokers.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka_index.core.fs.paths import open_repository
from tests.support.timeouts import TIMEOUT_SECONDS

from .broker import Broker, BrokerFolders
from .client import Client
from .three_brokers import (
    COPIES,
    INTERNAL,
    PAYMENTS,
    PLAIN,
    PROFILES,
    TOPICS,
    Ledger,
    LoadRecord,
    ThreeBrokerCluster,
    await_load,
    committed,
    consumed,
    crc_of,
    loading,
)
from .topics import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

BANK, TRIMMED = "load.bank", "load.trimmed"
_MORE_TOPICS = (
    Topic(BANK, (), TOPICS[0].settings, 4),
    Topic(TRIMMED, (), TOPICS[0].settings, 1),
)
_CONSUMED = [PLAIN, PAYMENTS, PROFILES, COPIES, BANK, TRIMMED]
_SETTINGS = {
    "replica.high.watermark.checkpoint.interval.ms": "1500",
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
_MOVED = (PLAIN, PROFILES, BANK)
_PRODUCERS = "6"


@dataclass(frozen=True)
class RecordedBackup:
    """A run, and the sizes of the ledgers before it began."""

    name: str
    sizes: tuple[int, int]


@dataclass
class BackedUpCluster:
    """A cluster that was backed up: its repository, what it had acknowledged, and its runs."""

    root: Path
    nodes: tuple[int, ...]
    features: Mapping[str, int]
    #: The folder or the URI of the repository.
    repository: str
    runs: list[RecordedBackup] = field(default_factory=list)
    #: How often there was a change of each kind, or an agent was killed.
    changes: Counter[str] = field(default_factory=Counter)

    @property
    def ledgers(self) -> tuple[Path, Path]:
        """The acknowledged records of both loads."""
        return self.root / "load.ledger", self.root / "bank.ledger"

    def known(self, taken: RecordedBackup) -> list[Ledger]:
        """The records that were acknowledged before a run began."""
        return [
            Ledger.read(path, size) for path, size in zip(self.ledgers, taken.sizes, strict=True)
        ]


@contextmanager
def _cluster(
    root: Path, nodes: Sequence[int], features: Mapping[str, int], more: Mapping[str, str]
) -> Iterator[tuple[str, list[Broker]]]:
    """Yield the addresses of a running cluster, and its brokers of two directories each."""
    own = {
        node: {
            **_SETTINGS,
            "log.dirs": ",".join(map(str, _directories(BrokerFolders(root / str(node))))),
            **more,
        }
        for node in nodes
    }
    if len(nodes) == 1:
        with Broker(BrokerFolders(root / "1"), more_settings=own[1], features=features) as broker:
            yield broker.bootstrap, [broker]
    else:
        with ThreeBrokerCluster(root, own, features) as cluster:
            yield cluster.bootstrap, cluster.brokers


def _directories(home: BrokerFolders) -> list[Path]:
    return [home.data, home.second]


@contextmanager
def _loads(bootstrap: str, ledgers: Sequence[Path], prefix: str) -> Iterator[None]:
    with ExitStack() as stack:
        ends = [
            stack.enter_context(loading(bootstrap, ledgers[0], prefix)),
            stack.enter_context(loading(bootstrap, ledgers[1], prefix, _PRODUCERS, "bank")),
        ]
        yield
        for end in ends:
            end()


def back_up(
    root: Path,
    seed: int,
    *,
    runs: int,
    nodes: tuple[int, ...] = (1,),
    features: Mapping[str, int] | None = None,
    settings: Mapping[str, str] | None = None,
    repository: str | None = None,
) -> BackedUpCluster:
    """Run a cluster under load, and take so many runs; one agent in three is killed."""
    rng = random.Random(seed)
    backed = BackedUpCluster(root, nodes, features or {}, repository or str(root / "repository"))
    root.mkdir()
    cluster = _cluster(root / "cluster", nodes, backed.features, settings or {})
    with cluster as (bootstrap, brokers), Client(bootstrap, root) as client:
        for topic in (*TOPICS, *_MORE_TOPICS):
            client.create(topic, nodes)
        with _loads(bootstrap, backed.ledgers, "a-"):
            for ledger in backed.ledgers:
                await_load(ledger, 400)
            while len(backed.runs) < runs:
                _attempt(backed, brokers, client, rng)
    print(f"{len(backed.runs)} runs, {dict(backed.changes)}")
    return backed


def _attempt(
    backed: BackedUpCluster, brokers: Sequence[Broker], client: Client, rng: random.Random
) -> None:
    sizes = tuple(path.stat().st_size for path in backed.ledgers)
    agents = [
        subprocess.Popen(
            _agent(backed, broker.home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for broker in brokers
    ]
    with ThreadPoolExecutor(1) as thread:
        change = thread.submit(_change, backed, brokers, client, rng.randrange(1 << 30))
        if rng.random() < 1 / 3:
            backed.changes["agents killed"] += 1
            time.sleep(rng.uniform(0.5, 6))
            rng.choice(agents).send_signal(signal.SIGKILL)
        said = [agent.communicate(timeout=TIMEOUT_SECONDS)[0].decode() for agent in agents]
        change.result()
    for agent, text in zip(agents, said, strict=True):
        assert agent.returncode in (0, -signal.SIGKILL), text
    before = {run.name for run in backed.runs}
    repository = open_repository(backed.repository)
    for name, found in sorted(repository.brokers_by_backup().items()):
        if name not in before and repository.complete_manifests(name, found):
            backed.runs.append(RecordedBackup(name, (sizes[0], sizes[1])))


def _change(backed: BackedUpCluster, brokers: Sequence[Broker], client: Client, seed: int) -> None:
    """Move replicas, kill a broker and start it again, or expire runs, beside the agents."""
    rng = random.Random(seed)
    kinds = ["moved", "expired"]
    if len(brokers) > 1:
        kinds += ["reassigned", "brokers killed"]
    kind = rng.choice(kinds)
    backed.changes[kind] += 1
    topic, node = rng.choice(_MOVED), rng.choice(backed.nodes)
    broker = brokers[backed.nodes.index(node)]
    time.sleep(rng.uniform(0, 4))
    match kind:
        case "moved":
            client.move(node, rng.choice(_directories(broker.home)), [topic])
        case "reassigned":
            client.reassign(rng.sample(backed.nodes, rng.choice((2, 3))), [topic])
        case "brokers killed":
            broker.kill()
            time.sleep(rng.uniform(0, 6))
            broker.start()
            # The next one is killed where the others have all that is acknowledged.
            client.await_in_sync(0, [*_CONSUMED, *INTERNAL])
        case _:
            _expire(backed)


def _expire(backed: BackedUpCluster) -> None:
    command = (sys.executable, "-m", "kafka_index", "backups", "expire", backed.repository)
    keep = ("--keep-last", "20", *(f"--keep-{each}=0" for each in ("daily", "weekly", "monthly")))
    result = subprocess.run([*command, *keep], capture_output=True, text=True, check=False)
    # There is no run yet, or nothing to expire.
    assert result.returncode in (0, 2), result.stdout + result.stderr


def _agent(backed: BackedUpCluster, home: BrokerFolders) -> list[str]:
    return [
        *(sys.executable, "-m", "kafka_index", "backup", "--quiet"),
        *("--input", *map(str, _directories(home)), str(home.metadata)),
        *("--output", backed.repository),
        *("--config", str(home.root / "server.properties")),
        *("--brokers", ",".join(map(str, backed.nodes))),
    ]


@dataclass(frozen=True)
class Point:
    """A run to restore, perhaps up to a time after the run before it."""

    taken: RecordedBackup
    before: RecordedBackup | None = None
    until_ms: int | None = None

    def __str__(self) -> str:
        """The point, for people."""
        return (
            self.taken.name if self.until_ms is None else f"{self.taken.name} until {self.until_ms}"
        )

    @property
    def certain(self) -> RecordedBackup:
        """The run whose acknowledged records are all there."""
        return self.taken if self.before is None else self.before


def restored(backed: BackedUpCluster, point: Point, root: Path) -> list[dict[str, Any]]:
    """Restore a point to a fresh broker, go on with the load there, and check all; return rows.

    The restored cluster is one broker.
    """
    home = BrokerFolders(root / "1")
    broker = Broker(home, more_settings=_SETTINGS, features=backed.features)
    rows = _restore(backed, point, root, home)
    with broker:
        ledgers = root / "load.ledger", root / "bank.ledger"
        with _loads(broker.bootstrap, ledgers, "b-"):
            await_load(ledgers[0], 60)
        got = consumed(broker.bootstrap, root / "got", "read_committed", _CONSUMED)
        every = consumed(broker.bootstrap, root / "every", "read_uncommitted", _CONSUMED)
        groups = committed(broker.bootstrap)
    assert got.ends == every.ends, "a transaction is open"
    known = backed.known(point.certain)
    # The cleaner may have taken a record whose key was written again after the time.
    without = () if point.until_ms is None else (PROFILES,)
    _check_acknowledged(known, got, _starts(every), without)
    _check_acknowledged([Ledger.read(path) for path in ledgers], got, _starts(every))
    aborted = [
        one.id
        for path in (*backed.ledgers, *ledgers)
        for found in Ledger.read(path).records["abort"].values()
        for one in found
    ]
    _check_once(got, set(aborted))
    _check_complete_transactions(got)
    _check_groups(got, groups, known)
    if point.until_ms is not None:
        late = [
            one
            for found in got.records["got"].values()
            for one in found
            if one.id.startswith("a-") and one.timestamp_ms > point.until_ms
        ]
        assert late == []
    return rows


def _restore(
    backed: BackedUpCluster, point: Point, root: Path, home: BrokerFolders
) -> list[dict[str, Any]]:
    report = root / "restored.json"
    more: list[str] = []
    source = f"backup:{backed.repository}@{point.taken.name}"
    if point.until_ms is not None:
        more = ["--until", f"ms:{point.until_ms}", "--consistent"]
    result = subprocess.run(
        [
            *(sys.executable, "-m", "kafka_index", "restore", "--quiet"),
            *("--input", source, "--output", str(home.data), "--seed", str(home.metadata)),
            *("--report", str(report), *more),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode in (0, 1), result.stdout + result.stderr
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    faults = [
        row
        for row in rows
        if row["status"] not in ("restored", "clamped") and row["topic"] != "load.fleeting"
    ]
    assert faults == [], point
    return rows


def _starts(every: Ledger) -> dict[tuple[str, int], int]:
    """The offset of the first record of each partition."""
    return {
        partition: min(one.offset for one in found)
        for partition, found in every.records["got"].items()
    }


def _check_acknowledged(
    known: Sequence[Ledger],
    got: Ledger,
    starts: Mapping[tuple[str, int], int],
    without: Sequence[str] = (),
) -> None:
    """Every record that was acknowledged is there, at its offset, with its time and content."""
    for ledger in known:
        for partition, found in ledger.acknowledged().items():
            if partition[0] in without:
                continue
            records = found
            if partition[0] == PROFILES:
                records = list({one.id.rpartition("-")[2]: one for one in found}.values())
                latest = {
                    one.id.rpartition("-")[2]: one.offset for one in got.records["got"][partition]
                }
                records = [
                    record
                    for record in records
                    if latest.get(record.id.rpartition("-")[2], -1) <= record.offset
                ]
            elif partition[0] == TRIMMED:
                records = [one for one in found if one.offset >= starts.get(partition, 0)]
            there = set(got.records["got"][partition])
            missing = [record for record in records if record not in there]
            assert missing == [], (partition, len(missing), len(records))


def _check_once(got: Ledger, aborted: set[str]) -> None:
    """No record is there twice, or altered, or was aborted."""
    for partition, found in got.records["got"].items():
        assert len({one.offset for one in found}) == len(found), partition
        assert all(one.crc == crc_of(one.id) for one in found), partition
        if partition[0] != COPIES:
            # Copies have the same ids when a transaction is tried again.
            twice = [name for name, count in Counter(one.id for one in found).items() if count > 1]
            assert twice == [], partition
            assert {one.id for one in found} & aborted == set(), partition


def _check_complete_transactions(got: Ledger) -> None:
    """Each transaction is there as a whole: transfers sum to 0, payments are nine."""
    sums: dict[str, int] = defaultdict(int)
    payments: Counter[str] = Counter()
    for (topic, _), found in got.records["got"].items():
        for one in found:
            if topic == BANK:
                name, _, amount = one.id.partition("=")
                sums[name.rpartition("-")[0]] += int(amount)
            elif topic == PAYMENTS:
                payments[one.id.rpartition("-")[0]] += 1
    assert sums
    assert {name: total for name, total in sums.items() if total} == {}
    assert {name: count for name, count in payments.items() if count != 9} == {}


def _check_groups(
    got: Ledger, groups: Mapping[tuple[str, str, int], int], known: Sequence[Ledger]
) -> None:
    """No group is beyond its log, none behind what it had committed; copies are its records."""
    assert groups
    for (group, topic, number), offset in groups.items():
        assert offset <= got.ends[topic, number], (group, topic, number)
    for ledger in known:
        for (group, topic, number), commits in ledger.commits.items():
            assert groups[group, topic, number] >= commits[-1][0], (group, topic, number)
    for number in range(2):
        reached = groups["copiers", PLAIN, number]
        plain = [f"of {one.id}" for one in _in_order(got, PLAIN, number) if one.offset < reached]
        copies = [one.id for one in _in_order(got, COPIES, number)]
        assert copies == plain, number


def _in_order(got: Ledger, topic: str, number: int) -> list[LoadRecord]:
    return sorted(got.records["got"][topic, number])
