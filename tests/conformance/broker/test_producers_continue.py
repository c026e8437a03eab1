"""Producers continue after their broker was stopped and its index files were built in place.

The producers stay open meanwhile; the broker comes back at the same address. It finds in our
snapshots which sequence each of them has reached, and which transaction is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from .broker import Broker, BrokerFolders
from .client import ISOLATIONS, Client, Digest, Producer
from .files import build, remove_index_files, segments_by_partition
from .topics import Topic, write_index_settings

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = Topic("accounts", (), {"internal.segment.bytes": "6000", "index.interval.bytes": "500"})
PARTITION = f"{TOPIC.name}-0"
#: Batches before the stop and after it.
PLAIN_BATCHES = (60, 50)
LEFT_OPEN = (4, 3)


@dataclass(frozen=True)
class ContinuedProducers:
    """The states of producers at the leader, over time, and the final records of consumers."""

    at_stop: set[Producer]
    at_start: set[Producer]
    at_end: set[Producer]
    digests: dict[str, Digest]
    segments: int


@pytest.fixture(scope="module")
def continued(broker_root: Path) -> ContinuedProducers:
    config = broker_root / "going-on.properties"
    write_index_settings([TOPIC], config)
    broker = Broker(BrokerFolders(broker_root / "going-on"))
    with broker, Client(broker.bootstrap, broker_root) as client:
        client.create(TOPIC)
        client.open_producer("plain", transactional=False)
        for name in ("left-open", "resumed"):
            client.open_producer(name, transactional=True)
        for commit in (True, False, True):
            client.begin("resumed")
            client.send("plain", TOPIC.name, PLAIN_BATCHES[0] // 3)
            client.send("resumed", TOPIC.name, 5)
            client.end("resumed", commit=commit)
        client.begin("left-open")
        client.send("left-open", TOPIC.name, LEFT_OPEN[0])
        at_stop = client.settled_producers(PARTITION, open_transactions=1)

        broker.stop()
        remove_index_files(broker.home.data)
        assert {row["status"] for row in build(broker.home.data, config)} == {"built"}
        segments = segments_by_partition(broker.home.data)[PARTITION]
        broker.start()
        client.await_in_sync(1, [TOPIC.name])

        at_start = client.producers([TOPIC.name])[PARTITION]
        client.send("plain", TOPIC.name, PLAIN_BATCHES[1])
        client.send("left-open", TOPIC.name, LEFT_OPEN[1])
        client.end("left-open", commit=True)
        # Another one with the same transactional.id.
        client.open_producer("resumed", transactional=True)
        client.begin("resumed")
        client.send("resumed", TOPIC.name, 2)
        client.end("resumed", commit=True)
        at_end = client.settled_producers(PARTITION, open_transactions=0)
        digests = {
            isolation: client.digests(isolation, [TOPIC.name])[PARTITION]
            for isolation in ISOLATIONS
        }
    return ContinuedProducers(at_stop, at_start, at_end, digests, segments)


def test_leader_has_the_same_producers_and_open_transactions(continued: ContinuedProducers) -> None:
    assert continued.segments >= 2
    assert continued.at_start == continued.at_stop
    assert sum(one.current_txn_first_offset is not None for one in continued.at_start) == 1


def test_idempotent_producer_continues_its_sequence(continued: ContinuedProducers) -> None:
    before = max(continued.at_start, key=lambda one: one.last_sequence)
    (after,) = (one for one in continued.at_end if one.producer_id == before.producer_id)
    assert before.last_sequence == PLAIN_BATCHES[0] - 1
    assert after.last_sequence == sum(PLAIN_BATCHES) - 1
    assert after.producer_epoch == before.producer_epoch


def test_transactions_continue_and_every_record_is_read_once(continued: ContinuedProducers) -> None:
    plain, left_open = sum(PLAIN_BATCHES), sum(LEFT_OPEN)
    assert continued.digests["read_uncommitted"].records == plain + left_open + 3 * 5 + 2
    assert continued.digests["read_committed"].records == plain + left_open + 2 * 5 + 2
    assert all(one.current_txn_first_offset is None for one in continued.at_end)
