"""Backups of one broker with two directories, while it writes, cleans, deletes and re-creates."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.structs import TopicPartition

import kafka_index
from kafka_index.commands.backup.broker_backup import INTERVAL_SETTING
from kafka_index.core.fs.backup.manifest import PartitionBackup
from kafka_index.core.fs.paths import open_repository

from .broker import Broker, BrokerFolders

if TYPE_CHECKING:
    from pathlib import Path

_SMALL = {"segment.bytes": "1048576"}
_COMPACT = _SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
_TOPICS = {
    "orders": _SMALL,
    "events": _SMALL | {"preallocate": "true"},
    "profiles": _COMPACT | {"segment.ms": "1500"},
    "trimmed": _SMALL,
}
_PARTITIONS = 2
_RUNS = 4
_INTERVAL = {INTERVAL_SETTING: "700"}


class Load:
    """Producers of a broker, in a thread of their own; `acknowledged` has what was answered."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[tuple[str, int], list[tuple[float, int, bytes]]] = defaultdict(list)
        self._bootstrap = bootstrap
        self._stop = False
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()
        assert self._failures == []

    def _run(self) -> None:
        try:
            asyncio.run(self._load())
        except BaseException as error:  # noqa: BLE001, because a test shows it
            self._failures.append(error)

    async def _load(self) -> None:
        given = {"bootstrap_servers": self._bootstrap}
        admin = AIOKafkaAdminClient(**given)
        await admin.start()
        await admin.create_topics(
            [NewTopic(name, _PARTITIONS, 1, topic_configs=own) for name, own in _TOPICS.items()]
        )
        plain = AIOKafkaProducer(**given, acks="all", enable_idempotence=True)
        transactional = AIOKafkaProducer(**given, transactional_id="transfers")
        consumer = AIOKafkaConsumer("orders", **given, group_id="readers")
        for client in (plain, transactional, consumer):
            await client.start()
        turn = 0
        while not self._stop:
            turn += 1
            await self._send(plain, turn)
            async with transactional.transaction():
                for topic in ("orders", "events"):
                    await transactional.send_and_wait(topic, b"transfer", partition=0)
            if turn % 10 == 0:
                await consumer.getmany(timeout_ms=10)
                await consumer.commit()
                await self._change(admin, turn)
            self._ready.set()
        for client in (plain, transactional, consumer):
            await client.stop()
        await admin.close()

    async def _send(self, producer: Any, turn: int) -> None:
        sent = []
        for number in range(30):
            for topic in _TOPICS:
                value = f"{turn}-{number}".encode() + random.randbytes(300)
                partition = number % _PARTITIONS
                key = str(random.randrange(50)).encode()
                sent.append((value, await producer.send(topic, value, key, partition)))
        for value, future in sent:
            result = await future
            self.acknowledged[result.topic, result.partition].append(
                (time.time() * 1000, result.offset, value)
            )

    async def _change(self, admin: Any, turn: int) -> None:
        """Delete the first records of a topic; delete another one, and create it again."""
        end = self.acknowledged["trimmed", 0][-1][1]
        with contextlib.suppress(Exception):
            await admin.delete_records({TopicPartition("trimmed", 0): RecordsToDelete(end // 2)})
        with contextlib.suppress(Exception):
            await admin.delete_topics(["fleeting"])
        with contextlib.suppress(Exception):
            await admin.create_topics([NewTopic("fleeting", turn % 3 + 1, 1)])


def records_of(repository: Path, run: str, topic: str) -> dict[tuple[int, int], bytes]:
    """The values of a topic in a run, by partition and offset."""
    table = pa.table(kafka_index.read_records(f"backup:{repository}@{run}", topics=topic))
    keys = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    return dict(zip(keys, table["value"].to_pylist(), strict=True))


def test_every_backup_has_all_records_acknowledged_before_it(tmp_path: Path) -> None:
    home = BrokerFolders(tmp_path / "broker")
    other = home.root / "data2"
    repository = tmp_path / "repository"
    settings = _INTERVAL | {"log.dirs": f"{home.data},{other}", "file.delete.delay.ms": "500"}
    paths = [home.data, other, home.metadata]
    with Broker(home, more_settings=settings) as broker, Load(broker.bootstrap) as load:
        runs = []
        sources = set()
        for number in range(_RUNS):
            address = broker.bootstrap if number % 2 else None
            taken = kafka_index.backup_broker(
                paths, repository, config=_INTERVAL, bootstrap_server=address
            )
            sources.add((address is not None, taken.high_watermarks_from))
            assert all(row.topic == "fleeting" for row in taken.skipped_partitions), (
                taken.skipped_partitions
            )
            runs.append(taken)
        acknowledged = {key: list(found) for key, found in load.acknowledged.items()}
    # It may be asked at the moment at which a topic is deleted.
    assert {(False, "checkpoint"), (True, "broker")} <= sources
    assert sources <= {(False, "checkpoint"), (True, "broker"), (True, "checkpoint")}
    for taken in runs:
        check(repository, taken.backup_id, acknowledged)
        leaders = {each.is_leader for each in of_test(repository, taken.backup_id)}
        assert leaders == {True}
    last = kafka_index.backup_broker(paths, repository)
    assert (last.high_watermarks_from, last.ok) == ("log end", True)
    check(repository, last.backup_id, acknowledged)
    again = kafka_index.backup_broker(paths, repository)
    assert (again.sizes_bytes["new"], again.sizes_bytes["log_read"]) == (0, 0)
    assert kafka_index.verify(f"backup:{repository}@{last.backup_id}").ok


_ERASED = [b"7", b"8"]
# Without the compacted topic, which the broker may clean meanwhile.
_KEPT = ("orders", "events", "trimmed")


def test_restored_backup_lacks_erased_keys_and_keeps_other_offsets(tmp_path: Path) -> None:
    home, fresh = BrokerFolders(tmp_path / "broker"), BrokerFolders(tmp_path / "fresh")
    repository = tmp_path / "repository"
    with Broker(home, more_settings=_INTERVAL) as broker, Load(broker.bootstrap) as load:
        while len(load.acknowledged["profiles", 0]) < 600:
            time.sleep(0.1)
        # A partition that is made at the moment has no high watermark, and is in the next run.
        inputs, missed = [home.data, home.metadata], 1
        while missed:
            taken = kafka_index.backup_broker(inputs, repository, config=_INTERVAL)
            assert taken.ok, taken
            missed = taken.counts["partitions_skipped"]
    plain = kafka_index.restore_dump(f"backup:{repository}", tmp_path / "plain")
    Broker(fresh)  # formats its directories
    result = kafka_index.restore_dump(
        f"backup:{repository}", fresh.data, seeds=[fresh.metadata], drop_keys=_ERASED
    )
    assert plain.ok, plain
    assert result.ok, result
    assert result.counts["records_dropped"] > 100
    columns = ["topic", "partition", "offset", "key", "value"]
    rows = kafka_index.read_records(tmp_path / "plain", topics=[*_TOPICS], columns=columns)
    before = {
        (row["topic"], row["partition"], row["offset"]): (row["key"], row["value"])
        for row in pa.table(rows).to_pylist()
    }
    expected = {
        place: found
        for place, found in before.items()
        if place[0] in _KEPT and found[0] not in _ERASED
    }
    assert len(expected) < sum(place[0] in _KEPT for place in before)
    with Broker(fresh) as broker:
        served = asyncio.run(_served(broker.bootstrap))
        assert {place: found for place, found in served.items() if place[0] in _KEPT} == expected
        assert all(key not in _ERASED for key, _ in served.values())
        assert any(place[0] == "profiles" for place in served)
        asyncio.run(_go_on(broker.bootstrap))
        text = broker.log_text()
    assert "Recovering unflushed segment" not in text
    assert "Found a corrupted index file" not in text


async def _served(bootstrap: str) -> dict[tuple[str, int, int], tuple[bytes | None, bytes]]:
    """Return what a consumer gets of all topics."""
    result = {}
    consumer = AIOKafkaConsumer(
        *_TOPICS, bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None
    )
    await consumer.start()
    try:
        silent = 0
        while silent < 3:
            got = await consumer.getmany(timeout_ms=2_000)
            silent = 0 if got else silent + 1
            for records in got.values():
                for record in records:
                    result[record.topic, record.partition, record.offset] = record.key, record.value
    finally:
        await consumer.stop()
    return result


async def _go_on(bootstrap: str) -> None:
    """Let the transactional producer go on."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="transfers")
    await producer.start()
    async with producer.transaction():
        await producer.send_and_wait("orders", b"more", partition=0)
    await producer.stop()


def of_test(repository: Path, run: str) -> list[PartitionBackup]:
    """The partitions of a run whose topics stay."""
    manifest = open_repository(str(repository)).manifest(run, 1)
    return [partition for partition in manifest.partitions if partition.topic in _TOPICS]


def check(
    repository: Path,
    run: str,
    acknowledged: dict[tuple[str, int], list[tuple[float, int, bytes]]],
) -> None:
    """Compare the records of a run with what was acknowledged before its cut."""
    manifest = open_repository(str(repository)).manifest(run, 1)
    bounds = {(each.topic, each.partition): each for each in manifest.partitions}
    for topic in _TOPICS:
        result = records_of(repository, run, topic)
        for partition in range(_PARTITIONS):
            at = bounds[topic, partition]
            before = [
                (offset, value)
                for time_ms, offset, value in acknowledged[topic, partition]
                if time_ms < manifest.capture.begun_ms
            ]
            assert before
            assert max(offset for offset, _ in before) < at.end_offset <= at.high_watermark
            assert at.settled_offset <= at.end_offset
            for offset, value in before:
                if offset < at.start_offset:
                    continue
                stored = result.get((partition, offset))
                if stored is None:
                    # A later record of its key has replaced it.
                    assert topic == "profiles"
                else:
                    assert stored == value
