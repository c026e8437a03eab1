"""Kafka's own topics, as a broker of 4.3.1 wrote them, against its answers and its own tools."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kafka_index
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.decoding import (
    GROUP_CODEC,
    HIDDEN,
    METADATA_CODEC,
    SHARE_CODEC,
    TRANSACTION_CODEC,
    LogRecord,
    TopicLog,
    is_public_config,
)
from kafka_index.core.cluster.metadata.directory import ClusterMetadata, read_metadata
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.records.decompression import DecompressionBudget
from tests.conformance.java_program import JavaProgram
from tests.conformance.kafka_jars import class_path, tool

from .broker import Broker, BrokerFolders
from .client import run_program

#: So that there are snapshots of the metadata log, and share groups on one broker.
_SETTINGS = """
metadata.log.max.record.bytes.between.snapshots=6000
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
_CODECS = {
    "__consumer_offsets": GROUP_CODEC,
    "__transaction_state": TRANSACTION_CODEC,
    "__share_group_state": SHARE_CODEC,
}
_DECODERS = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "__share_group_state": "--share-group-state-decoder",
    "__cluster_metadata": "--cluster-metadata-decoder",
}
#: What both images have of a broker.
_BROKER_FIELDS = ("broker_epoch", "incarnation_id", "rack", "is_fenced", "in_controlled_shutdown")
_HIDDEN = ("USER_SCRAM_CREDENTIAL_RECORD", "DELEGATION_TOKEN_RECORD")


@dataclass(frozen=True)
class Written:
    """The files that a broker wrote, and its description of them before it stopped."""

    home: BrokerFolders
    answer: dict[str, Any]
    found: ClusterMetadata
    described: str


@pytest.fixture(scope="module")
def written(broker_root: Path) -> Written:
    """A broker with groups of all protocols, transactions, credentials, changed topics."""
    home = BrokerFolders(broker_root / "metadata")
    broker = Broker(home)
    settings = home.root / "server.properties"
    settings.write_text(settings.read_text() + _SETTINGS)
    with broker:
        answer = json.loads(run_program("ClusterState", broker.bootstrap))
        described = describe_groups(broker.bootstrap)
    paths = [str(home.metadata), str(home.data)]
    metadata = read_metadata(paths, budget=DecompressionBudget(2**24))
    return Written(home, answer, metadata, described)


def describe_groups(bootstrap: str) -> str:
    """Offsets of all groups, as kafka-consumer-groups.sh prints them."""
    return subprocess.run(
        [
            *(tool("java"), "-cp", class_path()),
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            *("--bootstrap-server", bootstrap, "--describe", "--all-groups", "--offsets"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def described(image: ClusterImage) -> dict[str, Any]:
    """Our image, in the same form."""
    found = {
        "topics": {
            topic.topic_id: {
                "name": topic.name,
                "partitions": {
                    str(number): {name: getattr(partition, name) for name in partition.__slots__}
                    for number, partition in topic.partitions.items()
                },
            }
            for topic in image.topics.values()
        },
        "configs": {f"{kind} {name}": found for (kind, name), found in image.configs.items()},
        "brokers": {
            str(number): {name: getattr(broker, name) for name in _BROKER_FIELDS}
            | {"directories": sorted(broker.directories)}
            for number, broker in image.brokers.items()
        },
        "features": image.features,
        "next_producer_id": image.producer_ids.next_producer_id if image.producer_ids else -1,
    }
    # Tuples become lists.
    as_json: dict[str, Any] = json.loads(json.dumps(found))
    return as_json


def kafkas_image(folder: Path) -> dict[str, Any]:
    """Kafka's own image of a metadata log (`MetadataState.java`), secrets hidden."""
    with JavaProgram("MetadataState") as program:
        line = program.ask(folder)
    assert not line.startswith("error"), line
    image: dict[str, Any] = json.loads(line)
    for resource, configs in image["configs"].items():
        for name in configs:
            if not is_public_config(int(resource.split()[0]), name):
                configs[name] = HIDDEN
    return image


def test_metadata_of_a_broker_has_no_unknown_or_damaged_records(written: Written) -> None:
    assert written.found.faults.first == []
    unknown = [
        name for counts in written.found.counts.values() for name in counts if not name.is_known
    ]
    assert unknown == []


def test_topics_equal_those_listed_by_the_broker(written: Written) -> None:
    assert written.found.cluster is not None
    assert {
        topic.name: {"id": topic.topic_id, "partitions": len(topic.partitions)}
        for topic in written.found.cluster.topics.values()
    } == written.answer["topics"]


def test_configurations_equal_those_described_by_the_broker(written: Written) -> None:
    assert written.found.cluster is not None
    assert written.found.cluster.topic_configs("orders") == written.answer["configs"]


def test_groups_equal_those_listed_by_the_broker(written: Written) -> None:
    result = {group.name: group.kind for group in written.found.groups or []}

    # A group that commits nothing but in a transaction that is open exists, too.
    assert result.items() <= written.answer["groups"].items()
    assert set(written.answer["groups"]) - set(result) <= {"of-open", "of-aborted"}


def test_committed_offsets_equal_those_of_the_broker(written: Written) -> None:
    assert {
        f"{one.group} {one.topic}-{one.partition}": {
            "offset": one.offset,
            "leader_epoch": one.leader_epoch,
            "metadata": one.metadata,
        }
        for one in written.found.offsets or []
    } == written.answer["offsets"]


def test_lag_equals_that_of_kafkas_tool(written: Written) -> None:
    rows = [line.split()[:6] for line in written.described.splitlines()]
    printed = {
        (group, topic, int(partition)): (int(offset), int(end), int(lag))
        for group, topic, partition, offset, end, lag in (row for row in rows if len(row) == 6)
        if lag.isdecimal()
    }
    metadata = kafka_index.read_metadata([written.home.metadata, written.home.data], what="lag")

    assert {
        (row["group"], row["topic"], row["partition"]): (
            row["committed_offset"],
            row["log_end_offset"],
            row["lag_records"],
        )
        for row in metadata.to_arrow().to_pylist()
    } == printed
    assert {lag for *_, lag in printed.values()} > {0}


def test_transactions_equal_those_described_by_the_broker(written: Written) -> None:
    assert {
        one.transactional_id: {
            "state": one.state,
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "timeout_ms": one.timeout_ms,
            "partitions": sorted(f"{topic}-{partition}" for topic, partition in one.partitions),
        }
        for one in written.found.transactions or []
    } == written.answer["transactions"]


def test_metadata_image_equals_that_of_kafka(written: Written) -> None:
    assert written.found.cluster is not None
    assert written.found.sources[0].snapshot is not None
    theirs = kafkas_image(written.home.metadata / "__cluster_metadata-0")

    assert described(written.found.cluster) == theirs


def test_metadata_tables_contain_no_secret(written: Written) -> None:
    logs = (written.home.metadata / "__cluster_metadata-0").glob("*.log")
    assert any(written.answer["secret"].encode() in log.read_bytes() for log in logs)

    assert written.answer["secret"] not in repr(written.found)


@pytest.mark.parametrize("topic", _DECODERS)
def test_every_record_is_decoded_as_kafkas_tool_prints_it(written: Written, topic: str) -> None:
    folder = written.home.metadata if topic == "__cluster_metadata" else written.home.data
    segments = list_dump([str(folder)], topics=re.compile(topic)).segments
    command = [
        *(tool("java"), "-cp", class_path(), "org.apache.kafka.tools.DumpLogSegments"),
        *("--files", ",".join(segment.log_path for segment in segments), _DECODERS[topic]),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = [line for line in map(_printed, result.stdout.splitlines()) if line is not None]

    log = TopicLog(segments, DecompressionBudget(2**24))
    actual = [_decoded(topic, record) for record in log.records() if not record.is_control]

    assert Counter(map(json.dumps, actual)) == Counter(map(json.dumps, expected))
    assert len(actual) > 0


def _printed(line: str) -> list[object] | None:
    """A record that the tool prints, without what we do not keep."""
    if not line.startswith("| offset: ") or "payload: " not in line:
        return None
    offset = int(line.split()[2])
    head, _, payload = line.partition(" payload: ")
    _, has_key, key = head.partition(" key: ")
    value = None if payload == "<DELETE>" else json.loads(payload)
    if isinstance(value, dict) and value.get("type") in _HIDDEN:
        value["data"] = None
    return [offset, json.loads(key) if has_key else None, _without_secrets(value)]


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type") == "CONFIG_RECORD":
        data = value["data"]
        if "password" in data["name"]:
            data["value"] = "[hidden]"
    # Members of classic groups, which the tool decodes further.
    if isinstance(value, dict):
        for member in (value.get("data") or {}).get("members", []):
            member.pop("subscription", None)
            member.pop("assignment", None)
    return value


def _decoded(topic: str, record: LogRecord) -> list[object]:
    if topic == "__cluster_metadata":
        return [record.offset, None, METADATA_CODEC.as_json(METADATA_CODEC.decode(record.value))]
    codec = _CODECS[topic]
    decoded = codec.decode(record.key, record.value)
    key, value = codec.as_json(decoded)
    return [record.offset, key, _without_secrets(value)]
