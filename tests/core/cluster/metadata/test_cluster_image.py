"""The image of a metadata log; `tests/conformance` compares it with Kafka's image."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.core.cluster.metadata.cluster_image import ClusterImage, PartitionImage
from kafka_index.core.cluster.metadata.decoding import HIDDEN, TopicLog
from kafka_index.core.cluster.metadata.directory import ClusterMetadata, read_metadata
from kafka_index.core.errors import ReadError
from kafka_index.core.format.message_schemas import Value
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.records.decompression import DecompressionBudget
from tests.support.metadata import (
    Pair,
    cluster_record,
    log_batch,
    uuid_of,
    write_log,
    write_snapshot,
)

ORDERS = uuid_of(7)
TOPIC = cluster_record("TopicRecord", name="orders", topicId=ORDERS)
PARTITION = cluster_record(
    "PartitionRecord",
    partitionId=0,
    topicId=ORDERS,
    replicas=[1, 2],
    isr=[1, 2],
    leader=1,
    leaderEpoch=3,
    partitionEpoch=5,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "__cluster_metadata-0"


def read(path: Path) -> ClusterMetadata:
    return read_metadata([str(path)], budget=DecompressionBudget(2**20))


def image_of(directory: Path, *records: Pair) -> ClusterImage:
    write_log(directory, log_batch(0, *records))
    result = read(directory.parent)
    assert not result.faults.first
    assert result.cluster is not None
    return result.cluster


def change(**fields: Value) -> Pair:
    return cluster_record("PartitionChangeRecord", partitionId=0, topicId=ORDERS, **fields)


def config(kind: int, resource: str, name: str, value: str | None) -> Pair:
    return cluster_record(
        "ConfigRecord", resourceType=kind, resourceName=resource, name=name, value=value
    )


def partition_after(directory: Path, *changes: Pair) -> PartitionImage:
    return image_of(directory, TOPIC, PARTITION, *changes).topics[ORDERS].partitions[0]


def test_partition_change_without_a_leader_keeps_the_leader_epoch(directory: Path) -> None:
    partition = partition_after(directory, change(isr=[1]))

    assert (partition.isr, partition.leader, partition.leader_epoch) == ((1,), 1, 3)
    assert partition.partition_epoch == 6


def test_new_leader_raises_the_leader_epoch(directory: Path) -> None:
    partition = partition_after(directory, change(leader=2), change(leader=-1))

    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (-1, 5, 7)


def test_reassignment_changes_replicas_and_clears_adding_replicas(directory: Path) -> None:
    partition = partition_after(
        directory,
        change(replicas=[1, 2, 3], addingReplicas=[3], removingReplicas=[1]),
        change(replicas=[2, 3], isr=[2, 3], addingReplicas=[], removingReplicas=[]),
    )

    assert (partition.replicas, partition.adding_replicas) == ((2, 3), ())
    assert partition.removing_replicas == ()


def test_configurations_of_a_removed_topic_are_removed(directory: Path) -> None:
    image = image_of(
        directory,
        TOPIC,
        config(2, "orders", "retention.ms", "60000"),
        cluster_record("RemoveTopicRecord", topicId=ORDERS),
    )

    assert (image.topics, image.configs) == ({}, {})


def test_configuration_with_a_null_value_is_deleted(directory: Path) -> None:
    image = image_of(
        directory,
        TOPIC,
        config(2, "orders", "retention.ms", "60000"),
        config(2, "orders", "segment.ms", "1000"),
        config(2, "orders", "retention.ms", None),
    )

    assert image.topic_configs("orders") == {"segment.ms": "1000"}


def test_configuration_that_may_be_secret_is_hidden(directory: Path) -> None:
    image = image_of(
        directory,
        config(4, "", "listener.name.x.ssl.keystore.password", "hunter2"),
        config(4, "", "sasl.jaas.config", "password=hunter2"),
        config(2, "orders", "plugin.password", "hunter2"),
        config(4, "1", "log.cleaner.threads", "2"),
    )

    assert image.configs == {
        (4, ""): {"listener.name.x.ssl.keystore.password": HIDDEN, "sasl.jaas.config": HIDDEN},
        (2, "orders"): {"plugin.password": HIDDEN},
        (4, "1"): {"log.cleaner.threads": "2"},
    }


def test_records_of_a_metadata_transaction_apply_at_its_end(directory: Path) -> None:
    image = image_of(
        directory,
        cluster_record("BeginTransactionRecord", name="bootstrap"),
        TOPIC,
        cluster_record("EndTransactionRecord"),
        cluster_record("BeginTransactionRecord"),
        cluster_record("RemoveTopicRecord", topicId=ORDERS),
        cluster_record("AbortTransactionRecord"),
        cluster_record("BeginTransactionRecord"),
        cluster_record("RemoveTopicRecord", topicId=ORDERS),
    )

    assert list(image.topics) == [ORDERS]


def test_log_continues_the_newest_snapshot(directory: Path) -> None:
    other = cluster_record("TopicRecord", name="other", topicId=uuid_of(8))
    write_snapshot(directory, 2, TOPIC)
    write_snapshot(directory, 4, other)
    write_log(
        directory,
        log_batch(3, cluster_record("RemoveTopicRecord", topicId=uuid_of(8))),
        log_batch(4, cluster_record("FeatureLevelRecord", name="kraft.version", featureLevel=1)),
        base_offset=3,
    )

    result = read(directory)

    assert result.cluster is not None
    assert list(result.cluster.topics) == [uuid_of(8)]
    assert result.cluster.features == {"kraft.version": 1}
    assert result.sources[0].snapshot == "00000000000000000004-0000000001.checkpoint"
    assert result.sources[0].end_offset == 5


def test_snapshot_without_a_footer_is_reported_and_the_older_snapshot_is_read(
    directory: Path,
) -> None:
    write_snapshot(directory, 2, TOPIC)
    write_snapshot(directory, 4, PARTITION, has_footer=False)
    write_log(directory, log_batch(2, PARTITION), base_offset=2)

    result = read(directory)

    assert result.cluster is not None
    assert list(result.cluster.topics[ORDERS].partitions) == [0]
    assert any("no footer" in fault.message for fault in result.faults.first)


def test_metadata_snapshot_without_a_log_is_read(directory: Path) -> None:
    write_snapshot(directory, 2, TOPIC)

    result = read(directory)

    assert result.cluster is not None
    assert list(result.cluster.topics) == [ORDERS]
    assert not result.faults.first


def test_metadata_records_missing_before_the_log_start_are_an_error(directory: Path) -> None:
    write_log(directory, log_batch(9, TOPIC), base_offset=9)

    (fault,) = read(directory).faults.first

    assert "missing" in fault.message


def test_unknown_metadata_record_is_counted_and_a_later_version_is_an_error(
    directory: Path,
) -> None:
    later = (None, b"\x01" + b"\xc8\x01" + b"\x00" + b"rest")
    newer = (None, b"\x01" + b"\x02" + b"\x09" + b"rest")
    write_log(directory, log_batch(0, later, newer, TOPIC))

    result = read(directory)

    unknown = [name.name for name in result.counts["__cluster_metadata"] if not name.is_known]
    assert sorted(unknown) == ["API key 200", "TopicRecord version 9"]
    assert result.cluster is not None
    assert list(result.cluster.topics) == [ORDERS]
    assert [fault.found for fault in result.faults.first] == ["TopicRecord version 9"]


def test_damaged_metadata_record_is_reported_and_later_records_are_read(directory: Path) -> None:
    value = PARTITION[1]
    assert value is not None
    write_log(directory, log_batch(0, (None, value[:-3]), TOPIC))

    result = read(directory)

    assert "offset 0" in result.faults.first[0].message
    assert result.cluster is not None
    assert list(result.cluster.topics) == [ORDERS]


def test_credentials_are_removed_from_records(directory: Path) -> None:
    scram = cluster_record(
        "UserScramCredentialRecord",
        name="alice",
        mechanism=1,
        salt=b"salt-bytes",
        storedKey=b"stored-key",
        serverKey=b"server-key",
        iterations=4096,
    )
    write_log(directory, log_batch(0, scram))

    result = read(directory)

    assert "stored-key" not in repr(result)
    assert [name.name for name in result.counts["__cluster_metadata"]] == [
        "UserScramCredentialRecord"
    ]


@pytest.mark.parametrize("may_grow", [True, False])
def test_appended_metadata_log_is_read_up_to_its_old_end_if_it_may_grow(
    directory: Path, *, may_grow: bool
) -> None:
    log = write_log(directory, log_batch(0, TOPIC, PARTITION))
    segments = list(list_dump([str(directory)], topics=None).segments)
    content = TopicLog(segments, DecompressionBudget(2**20), may_grow=may_grow)
    records = content.records()
    first = next(records)
    with log.open("ab") as file:
        file.write(log_batch(2, change(isr=[1])))

    assert [one.offset for one in (first, *records)] == [0, 1]
    assert [type(fault) for fault in content.faults] == ([] if may_grow else [ReadError])
