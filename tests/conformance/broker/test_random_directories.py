"""Random data directories, started by Kafka's own loaders, and what was predicted of them.

``Starting.java`` starts them in one process, about a hundred times faster than a broker does.
``make campaign`` starts 2,000 directories at each of two seeds. Brokers start on some directories
of each verdict.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.directory import read_cluster
from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.format.config import LogConfig
from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.startup.conditions import StartConditions
from kafka_index.core.startup.directories import predict_directories
from kafka_index.core.startup.prediction import Verdict
from tests.conformance.campaign import SEED
from tests.conformance.kafka_reference import KafkaReference
from tests.support.campaign import sample_size

from .broker import Broker, BrokerError, BrokerFolders
from .client import Client
from .random_directories import RandomDirectory, draw_directory
from .started_directories import Started, readable, times_of, topic_fields, visible
from .topics import Topic, Traffic, Transactions

_SMALL = {"internal.segment.bytes": "20480"}
TOPICS = (
    Topic("random", (Traffic(batches=90),), _SMALL, 6),
    Topic("random.payments", (Transactions(batches=60, left_open="true"),), _SMALL, 2),
    Topic("trimmed", (Traffic(batches=90),), _SMALL, 2),
    Topic("other-1", (Traffic(batches=5),), {}, 1),
)
TRIMMED_TO = 100
# Retention deletes nothing meanwhile.
NOT_RETAINING = {"log.initial.task.delay.ms": "86400000"}
STARTS = {"trimmed-0": TRIMMED_TO, "trimmed-1": TRIMMED_TO}
NODE = 1
DIRECTORIES = sample_size(2000, one_in=60)
SEEDS = (SEED, SEED + 1)
#: A reference program keeps the files open of what it has started.
_PER_REFERENCE = 150
#: Brokers that start on directories of each verdict in a campaign; otherwise on a safe one.
_STARTED: dict[Verdict, int] = {
    verdict: sample_size(5) for verdict in Verdict if verdict is not Verdict.UNKNOWN
}
_STARTED_NOW: dict[Verdict, int] = _STARTED if DIRECTORIES == 2000 else {Verdict.SAFE: 1}
#: The verdicts on a directory over which a broker exits.
_EXITING = (Verdict.DOES_NOT_START, Verdict.UNKNOWN)
_UNKNOWN_AT_MOST = max(DIRECTORIES // 50, 1)


@dataclass(frozen=True)
class StoppedBroker:
    """The directories of a broker with two data directories that stopped cleanly."""

    root: Path
    cluster: ClusterImage
    written: dict[str, set[int]]
    times: str
    intact: dict[str, str]

    def draw(
        self, seed: str, broker_root: Path
    ) -> tuple[RandomDirectory, dict[str, set[int]], Verdict | str]:
        """Draw a directory; return it, the offsets that are to be served, and what is predicted."""
        topic_ids = {topic.name: topic_id for topic_id, topic in self.cluster.topics.items()}
        copy = draw_directory(self.root, broker_root / f"random-{seed}", seed, topic_ids)
        expected = visible(copy.data, self.written, STARTS)
        return copy, expected, self._predicted(copy, random.Random(seed))

    def draws(
        self, seed: int, broker_root: Path
    ) -> Iterator[tuple[list[str], Verdict | str, Started, dict[str, str]]]:
        """Yield random changes, what was predicted, what the start made of them, and its faults."""
        for first in range(0, DIRECTORIES, _PER_REFERENCE):
            with KafkaReference() as reference:
                for number in range(first, min(first + _PER_REFERENCE, DIRECTORIES)):
                    copy, expected, verdict = self.draw(f"{seed}-{number}", broker_root)
                    directories = ",".join(map(str, copy.log_dirs))
                    fields = topic_fields(self.cluster, NODE)
                    reply = reference.demand(
                        "start", NODE, copy.metadata, directories, self.times, *fields
                    )
                    started = Started.of(reply[1:])
                    # What a start deletes later may still be under way.
                    shutil.rmtree(copy.root, ignore_errors=True)
                    faults = started.faults(expected, STARTS, self.intact)
                    yield copy.changes, verdict, started, faults

    def _predicted(self, copy: RandomDirectory, draw: random.Random) -> Verdict | str:
        # A broker starts on all data directories of its settings, whichever of them are given.
        paths = draw.sample([str(path) for path in copy.data], draw.choice((1, 2, 2)))
        settings = {
            "node.id": str(NODE),
            "log.dirs": ",".join(map(str, copy.log_dirs)),
            "metadata.log.dir": str(copy.metadata),
        }
        conditions = StartConditions(LogConfig(), self.cluster, properties=settings)
        try:
            return predict_directories(paths, conditions).verdict
        except KafkaIndexError as error:
            return str(error)


@pytest.fixture(scope="module")
def stopped(broker_root: Path) -> StoppedBroker:
    home = BrokerFolders(broker_root / "to-be-random-from")
    second = home.root / "data-2"
    broker = Broker(home, more_settings={"log.dirs": f"{home.data},{second}"})
    with broker, Client(broker.bootstrap, broker_root) as client:
        for topic in TOPICS:
            client.create(topic)
            client.fill(topic)
        for number in range(2):
            client.delete_records("trimmed", number, TRIMMED_TO)
    cluster = read_cluster([str(home.root / "metadata")], budget=DecompressionBudget(2**24))
    times = f"@{','.join(map(str, times_of([home.data, second])))}"
    copy = broker_root / "to-be-random-from-intact"
    shutil.copytree(home.root, copy)
    with KafkaReference() as reference:
        directories = f"{copy / 'data'},{copy / 'data-2'}"
        fields = topic_fields(cluster, NODE)
        started = reference.demand("start", NODE, copy / "metadata", directories, times, *fields)
    shutil.rmtree(copy)
    intact = Started.of(started[1:]).partitions
    return StoppedBroker(home.root, cluster, readable([home.data, second]), times, intact)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_directory_predicted_as_safe_starts_without_loss(
    broker_root: Path, stopped: StoppedBroker, seed: int
) -> None:
    verdicts: Counter[Verdict | str] = Counter()
    wrong = []
    for number, (changes, verdict, started, faults) in enumerate(stopped.draws(seed, broker_root)):
        verdicts[verdict] += 1
        if (
            not isinstance(verdict, Verdict)
            or (verdict is Verdict.SAFE and (faults or not started.starts))
            or (verdict is Verdict.DOES_NOT_START and started.starts)
            or (verdict not in _EXITING and not started.starts)
        ):
            wrong.append((number, verdict, changes, started.reason, faults))
    assert wrong == []
    assert verdicts[Verdict.SAFE] > 0
    assert verdicts[Verdict.DOES_NOT_START] > 0
    assert verdicts[Verdict.UNKNOWN] <= _UNKNOWN_AT_MOST


@pytest.mark.parametrize("verdict", _STARTED_NOW, ids=str)
def test_broker_starts_on_a_random_directory_as_predicted(
    broker_root: Path, stopped: StoppedBroker, verdict: Verdict
) -> None:
    kinds: set[str] = set()
    number = 0
    while len(kinds) < _STARTED_NOW[verdict]:
        number += 1
        copy, expected, found = stopped.draw(f"{SEED}-{verdict.value}-{number}", broker_root)
        kind = re.sub(r"\S*/|[0-9]+", "", copy.changes[-1])
        if found is verdict and kind not in kinds:
            kinds.add(kind)
            served = consume_from_started_broker(copy, broker_root, is_read=verdict is Verdict.SAFE)
            assert (served is None) == (verdict is Verdict.DOES_NOT_START), copy.changes
            if verdict is Verdict.SAFE:
                wanted = {name: len(offsets) for name, offsets in expected.items()}
                assert served == {name: wanted[name] for name in served or ()}, copy.changes
                assert served
        shutil.rmtree(copy.root, ignore_errors=True)


def consume_from_started_broker(
    copy: RandomDirectory, broker_root: Path, *, is_read: bool
) -> dict[str, int] | None:
    """Start a broker; return how many records a consumer gets by partition, None if it exits."""
    settings = {"log.dirs": ",".join(map(str, copy.log_dirs)), **NOT_RETAINING}
    try:
        with Broker(BrokerFolders(copy.root), more_settings=settings) as broker:
            if not is_read:
                broker.kill()
                return {}
            with Client(broker.bootstrap, broker_root) as client:
                result = client.digests("read_uncommitted", [topic.name for topic in TOPICS])
            broker.kill()
    except BrokerError:
        return None
    return {name: digest.records for name, digest in result.items()}
